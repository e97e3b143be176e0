"""Table models, each with a row in `MODELS`."""

from __future__ import annotations

import importlib

# By name: the module and the class. Imported when first asked for, so that
# names can be listed without TensorFlow.
MODELS = {
  'histogram': ('tfdpflows.tabular.models.histogram', 'HistogramModel'),
  'spline': ('tfdpflows.tabular.models.spline', 'SplineModel'),
  'hflow': ('tfdpflows.tabular.models.spline', 'HFlowModel'),
  'dpgan': ('tfdpflows.tabular.models.dpgan', 'DPGANModel'),
  'pategan': ('tfdpflows.tabular.models.pategan', 'PATEGANModel'),
}
# Hyper-parameters that were called otherwise in files of earlier versions.
_RENAMED = {
  'guides': 'adaptive_marginals',
  'guide_share': 'adaptive_share',
  'num_draws': 'augmentation_multiplicity',
}


def model_class(name: str) -> type:
  """Returns the `TableModel` of a name.

  Raises:
    ValueError: if there is none.

  #### Example

  >>> model_class('hflow').__name__
  'HFlowModel'
  """
  if name not in MODELS:
    raise ValueError(f'model is {name!r}; it must be one of {tuple(MODELS)}.')
  module, attribute = MODELS[name]
  return getattr(importlib.import_module(module), attribute)


def current_settings(settings: dict) -> dict:
  """Returns `settings` of a file of any version as this version writes them.

  Earlier versions had one class for the hyper-parameters of all models, with
  the flow in `transform`; before that there was one model, without a name.
  """
  if 'hyperparameters' not in settings:
    return settings
  found = {
    _RENAMED.get(key, key): value
    for key, value in dict(settings['hyperparameters']).items()
  }
  name = settings.get('model', 'spline')
  if 'transform' in found or 'model' not in settings:
    is_histogram = found.get('transform') == 'histogram'
    if is_histogram != (name == 'histogram'):
      name = 'histogram' if is_histogram else 'spline'
    fields = model_class(name).__dataclass_fields__
    found = {key: value for key, value in found.items() if key in fields}
  if name == 'histogram':
    # Before there was a choice.
    found.setdefault('connections', 'all')
  return {**settings, 'model': name, 'hyperparameters': found}
