"""The JSON file of a fitted mixture, with what was spent on it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import dp_accounting
import numpy as np

from tfdpflows import accounting
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
    ledger: a copy, in memory, of the `PrivacyLedger` that paid for it.
    seeded: whether the noise came from a seed that may be known.
  """

  config: dict[str, Any]
  parameters: GaussianMixture
  event: dp_accounting.DpEvent
  ledger: accounting.PrivacyLedger
  seeded: bool


def to_dict(config, parameters, event, ledger, seeded):
  """Returns the content of a file, for JSON. See `SavedMixture`."""
  budget = ledger.budget
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
    'ledger': {
      'budget': None if budget is None else dataclasses.asdict(budget),
      'accountant': ledger.accountant,
      'neighboring_relation': ledger.neighboring_relation.name,
      'metadata': ledger.metadata,
      'entries': [
        {
          'label': entry.label,
          'event': accounting.event_to_dict(entry.event),
          'count': entry.count,
        }
        for entry in ledger.entries
        if entry.count
      ],
    },
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
      _ledger(content['ledger']),
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


def _ledger(content):
  """A ledger in memory with the entries of a file."""
  budget = content['budget']
  ledger = accounting.PrivacyLedger(
    budget=None if budget is None else accounting.PrivacyBudget(**budget),
    accountant=content['accountant'],
    neighboring_relation=dp_accounting.NeighboringRelation[
      content['neighboring_relation']
    ],
    metadata=content['metadata'],
  )
  for entry in content['entries']:
    event = accounting.event_from_dict(entry['event'])
    ledger.charge(event, entry['count'], entry['label'])
  return ledger
