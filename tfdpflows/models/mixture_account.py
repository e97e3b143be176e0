"""What was spent on a saved mixture: a ledger that only tells."""

from __future__ import annotations

import dataclasses
import os

import dp_accounting

from tfdpflows import accounting


class MixtureAccount(accounting.PrivacyLedger):
  """A copy of a ledger from a file. It states and sums, and refuses charges.

  A copy that could be charged would let a budget be spent once per copy.

  Args:
    content: what `to_dict` made.
    path: the file, for messages.

  Attributes:
    original: name of the file of the ledger that was charged; `None` if it was
      in memory.

  Raises:
    KeyError, TypeError, ValueError: if the content is damaged.

  #### Example

  >>> import dp_accounting
  >>> from tfdpflows import accounting
  >>> from tfdpflows.models import mixture_account
  >>> ledger = accounting.PrivacyLedger(
  ...   budget=accounting.PrivacyBudget(1., 1e-5))
  >>> event = dp_accounting.GaussianDpEvent(5.)
  >>> _ = ledger.charge(event, label='mixture')
  >>> account = mixture_account.MixtureAccount(
  ...   mixture_account.to_dict(ledger), 'mixture.json')
  >>> account.epsilon() == ledger.epsilon()
  True
  >>> account.charge(event, label='more')
  Traceback (most recent call last):
  ...
  tfdpflows.accounting.ledger.file.LedgerError: 'more' cannot be charged ...
  """

  def __init__(self, content, path):
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
        # Not `charge`: what was spent is told, whether or not it fits a budget.
        self._state.apply(record)

  def charge(self, event, count=1, label=None, *unused_args, **unused_kwargs):
    """Refuses."""
    self._refuse(accounting.describe_event(event) if label is None else label)

  def reserve(self, event, count, label, **unused_kwargs):
    """Refuses."""
    self._refuse(label)

  def _write(self, record):
    """Refuses: whatever else would change a ledger passes through here."""
    self._refuse(record['kind'])

  def _refuse(self, label):
    original = self.original or 'which was in memory'
    raise accounting.LedgerError(
      f'{str(label)!r} cannot be charged here: this is a copy, read from '
      f'{self._copy}, that tells what was spent. Charge the original ledger, '
      f'{original}.'
    )


def to_dict(ledger):
  """Returns what a ledger spent and reserved, for JSON and for publication.

  Prices that depend on private votes are replaced by those that do not. Of the
  metadata, only whether there was a seed is kept, and of the path, the name.
  """
  budget = ledger.budget
  if isinstance(ledger, MixtureAccount):
    original = ledger.original
  else:
    original = ledger.path and os.path.basename(ledger.path)
  return {
    'original': original,
    'budget': None if budget is None else dataclasses.asdict(budget),
    'accountant': ledger.accountant,
    'neighboring_relation': ledger.neighboring_relation.name,
    'seeded': ledger.seeded,
    'entries': [
      {
        'label': entry.label,
        'event': accounting.event_to_dict(
          accounting.data_independent(entry.event)
        ),
        'count': entry.count,
        'reserved': entry.reserved,
      }
      for entry in ledger.entries
      if entry.reserved
    ],
  }


def _records(entry):
  """The records of a ledger that make an entry as it was."""
  first = {name: entry[name] for name in ('label', 'event')}
  count, reserved = entry['count'], entry['reserved']
  if count == reserved:
    return [{**first, 'kind': 'charge', 'count': count}]
  records = [{**first, 'kind': 'reserve', 'count': reserved}]
  if count:
    records.append({'kind': 'advance', 'label': entry['label'], 'total': count})
  return records
