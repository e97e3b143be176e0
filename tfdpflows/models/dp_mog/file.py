"""The JSON file of a fitted mixture, with what was spent on it."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import dp_accounting
import numpy as np

from tfdpflows import accounting, atomic
from tfdpflows.accounting import events_json
from tfdpflows.models.dp_mog.em import GaussianMixture
from tfdpflows.version import __version__

__all__ = ['Fit', 'LedgerCopy', 'read', 'write']

_FORMAT = 'tfdpflows mixture of Gaussians'
_FORMAT_VERSION = 1
_ARRAYS = ('weights', 'means', 'scales')


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
  """What a fit found and what it cost.

  Attributes:
    parameters: the `GaussianMixture` that was released.
    event: the `DpEvent` of the fit.
    budget: what the fit was calibrated for.
    ledger: the one that was charged, or a `LedgerCopy` of it.
    seeded: whether the noise came from a seed that may be known.
  """

  parameters: GaussianMixture
  event: dp_accounting.DpEvent
  budget: accounting.PrivacyBudget
  ledger: accounting.PrivacyLedger
  seeded: bool


class LedgerCopy(accounting.PrivacyLedger):
  """A ledger that refuses charges: with copies a budget could be spent twice.

  Args:
    content: what `_ledger_to_dict` made.
    path: the file, for messages.

  Attributes:
    original: name of the file of the ledger that was charged; `None` if it was
      in memory.

  Raises:
    KeyError, TypeError, ValueError: if the content is damaged.
  """

  def __init__(self, content: dict[str, Any], path: atomic.PathLike):
    budget = content['budget']
    super().__init__(
      budget=None if budget is None else accounting.PrivacyBudget(**budget),
      accountant=content['accountant'],
      neighboring_relation=dp_accounting.NeighboringRelation[
        content['neighboring_relation']
      ],
      metadata={'seeded': content['seeded']},
    )
    self.original = content['original']
    self._copy = str(path)
    for entry in content['entries']:
      for record in _records(entry):
        # Not `charge`: what was spent may be over the budget.
        self._state.apply(record)

  def _check_chargeable(self):
    raise accounting.LedgerError(
      f'This is a copy of a ledger, read from {self._copy}, and cannot be '
      'charged. Charge the original ledger, '
      f'{self.original or "which was in memory"}.'
    )


def write(path: atomic.PathLike, config: dict[str, Any], fit: Fit) -> None:
  """Writes a fit, and the arguments of the constructor; see `DPMoG.save`."""
  content = {
    'format': _FORMAT,
    'format_version': _FORMAT_VERSION,
    'library_version': __version__,
    'config': config,
    **{name: getattr(fit.parameters, name).tolist() for name in _ARRAYS},
    'event': events_json.event_to_dict(fit.event),
    'seeded': fit.seeded,
    'budget': dataclasses.asdict(fit.budget),
    'ledger': _ledger_to_dict(fit.ledger),
  }
  text = json.dumps(content, indent=1, allow_nan=False) + '\n'
  atomic.write_file(path, text.encode())


def read(path: atomic.PathLike) -> tuple[dict[str, Any], Fit]:
  """Returns the arguments of the constructor, and the `Fit`; or refuses."""
  with open(path, encoding='utf-8') as file:
    text = file.read()
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
    arrays = (np.array(content[name], np.float64) for name in _ARRAYS)
    return dict(content['config']), Fit(
      _checked(GaussianMixture(*arrays)),
      events_json.event_from_dict(content['event']),
      accounting.PrivacyBudget(**content['budget']),
      LedgerCopy(content['ledger'], path),
      bool(content['seeded']),
    )
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(f'{path} is damaged: {error!r}.') from error


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


def _ledger_to_dict(ledger):
  """Returns what a ledger spent and reserved, for JSON and for publication.

  Costs that depend on private votes are replaced by those that do not. Of the
  metadata only whether there was a seed is kept, of the path only the name.
  """
  if isinstance(ledger, LedgerCopy):
    original = ledger.original
  else:
    original = ledger.path and os.path.basename(ledger.path)
  budget, independent = ledger.budget, accounting.events.data_independent
  return {
    'original': original,
    'budget': None if budget is None else dataclasses.asdict(budget),
    'accountant': ledger.accountant,
    'neighboring_relation': ledger.neighboring_relation.name,
    'seeded': ledger.seeded,
    'entries': [
      {
        'label': entry.label,
        'event': events_json.event_to_dict(independent(entry.event)),
        'count': entry.count,
        'reserved': entry.reserved,
      }
      for entry in ledger.entries
      if entry.reserved
    ],
  }


def _records(entry):
  """Returns the records of a ledger that make an entry as it was."""
  first = {name: entry[name] for name in ('label', 'event')}
  count, reserved = entry['count'], entry['reserved']
  if count == reserved:
    return [{**first, 'kind': 'charge', 'count': count}]
  records = [{**first, 'kind': 'reserve', 'count': reserved}]
  if count:
    records.append({'kind': 'advance', 'label': entry['label'], 'total': count})
  return records
