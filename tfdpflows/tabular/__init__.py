"""Synthetic tables: schema, files, encoding, models, synthesizer."""

import importlib

# The module that each name is of, imported when it is first asked for.
_MODULES = {
  'CellFormat': 'tfdpflows.tabular.dialect',
  'Computed': 'tfdpflows.tabular.constraints',
  'Dialect': 'tfdpflows.tabular.dialect',
  'ExcludedCombinations': 'tfdpflows.tabular.constraints',
  'Field': 'tfdpflows.tabular.field',
  'FixedCombinations': 'tfdpflows.tabular.constraints',
  'Inequality': 'tfdpflows.tabular.constraints',
  'Source': 'tfdpflows.tabular.sources',
  'TableEncoder': 'tfdpflows.tabular.encoding',
  'TableSchema': 'tfdpflows.tabular.schema',
  'TabularSynthesizer': 'tfdpflows.tabular.synthesizer',
  'draft_schema': 'tfdpflows.tabular.drafting',
  'fit_to_directory': 'tfdpflows.tabular.synthesizer',
  'read_table': 'tfdpflows.tabular.table',
  'tune_to_directory': 'tfdpflows.tabular.tuning',
  'write_frames': 'tfdpflows.tabular.sinks',
  'write_table': 'tfdpflows.tabular.table',
}

__all__ = list(_MODULES)


def __getattr__(name):
  if name in _MODULES:
    return getattr(importlib.import_module(_MODULES[name]), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__():
  return sorted({*globals(), *__all__})
