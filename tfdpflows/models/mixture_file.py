"""The JSON file of a fitted mixture, with what was spent on it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import dp_accounting
import numpy as np

from tfdpflows import accounting
from tfdpflows.models import mixture_account
from tfdpflows.models.gaussian_mixture import GaussianMixture
from tfdpflows.version import __version__

_FORMAT = 'tfdpflows mixture of Gaussians'
_FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class SavedMixture:
  """What a file holds.

  Attributes:
    config: arguments of the constructor.
    parameters: the `GaussianMixture`.
    event: the `DpEvent` of the fit.
    budget: what the fit was calibrated for.
    ledger: what its ledger had spent, as a `MixtureAccount`.
    seeded: whether the noise came from a seed that may be known.
  """

  config: dict[str, Any]
  parameters: GaussianMixture
  event: dp_accounting.DpEvent
  budget: accounting.PrivacyBudget
  ledger: mixture_account.MixtureAccount
  seeded: bool


def to_dict(config, parameters, event, budget, ledger, seeded):
  """Returns the content of a file, for JSON. See `SavedMixture`."""
  return {
    'format': _FORMAT,
    'format_version': _FORMAT_VERSION,
    'library_version': __version__,
    'config': config,
    'weights': parameters.weights.tolist(),
    'means': parameters.means.tolist(),
    'scales': parameters.scales.tolist(),
    'event': accounting.event_to_dict(event),
    'seeded': seeded,
    'budget': dataclasses.asdict(budget),
    'ledger': mixture_account.to_dict(ledger),
  }


def from_text(text, path):
  """Reads what `to_dict` made.

  Args:
    text: the content of the file.
    path: the file, for messages.

  Returns:
    A `SavedMixture`.

  Raises:
    ValueError: if it is of another kind or version, or damaged.
  """
  try:
    content = json.loads(text)
    kind = content['format'], content['format_version']
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f'{path} is no file of a DPMoG ({error!r}).') from error
  if kind != (_FORMAT, _FORMAT_VERSION):
    raise ValueError(
      f'{path} holds {kind[0]!r} in version {kind[1]}; this library reads '
      f'{_FORMAT!r} in version {_FORMAT_VERSION}.'
    )
  try:
    return SavedMixture(
      dict(content['config']),
      _checked(
        GaussianMixture(
          *(np.array(content[name], np.float64) for name in _ARRAYS)
        )
      ),
      accounting.event_from_dict(content['event']),
      accounting.PrivacyBudget(**content['budget']),
      mixture_account.MixtureAccount(content['ledger'], path),
      bool(content['seeded']),
    )
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(f'{path} is damaged: {error!r}.') from error


_ARRAYS = ('weights', 'means', 'scales')


def _checked(parameters):
  k, d = parameters.means.shape
  shapes = parameters.weights.shape, parameters.scales.shape
  if shapes != ((k,), (k, d, d)):
    raise ValueError(f'shapes {shapes} do not fit means of shape {(k, d)}')
  diagonals = np.diagonal(parameters.scales, axis1=1, axis2=2)
  if not (
    all(np.isfinite(getattr(parameters, name)).all() for name in _ARRAYS)
    and (parameters.weights > 0).all()
    and (diagonals > 0).all()
    and not np.triu(parameters.scales, 1).any()
  ):
    raise ValueError('these are no weights, means and scales of Gaussians')
  return parameters
