"""What an earlier process charged, for one that goes on with its work."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any, Optional

from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import ledger_state, owners
from tfdpflows.accounting.ledger_file import LedgerError

__all__ = ['EarlierEntries']


class EarlierEntries:
  """Entries of a ledger that may be resumed, each of them once.

  #### Formal guarantee
  Of what was merged in from another ledger, only entries with an owner may be
  resumed, and under the label that they had there. Without an owner, the work
  of one source could be taken as paid by a charge of another one.

  Args:
    entries: All entries of the ledger before this process.
  """

  def __init__(self, entries: Iterable[ledger_state.Entry] = ()):
    self._by_label = collections.defaultdict(list)
    for entry in entries:
      if entry.origin is None:
        self._by_label[entry.label].append(entry)
      elif entry.owner:
        self._by_label[entry.origin].append(entry)

  def take(self, record: dict[str, Any]) -> Optional[ledger_state.Entry]:
    """Finds the entry that a record would be a repetition of.

    Args:
      record: Of the kind 'charge' or 'reserve'.

    Returns:
      The entry, which is not found again; None if there is none.

    Raises:
      LedgerError: If there is one under its label for something else.
    """
    label = record['label']
    same = self._by_label.get(label, [])
    # Prices from private votes may differ: no refusal depends on them.
    key = ledger_state.claim_key(record['event'])
    wanted = (record['kind'], key, record['count'])
    fitting = [x for x in same if (x.kind, x.claim_key, x.limit) == wanted]
    owner = record.get('owner', '')
    mine = [x for x in fitting if owner in (x.owner, owners.name_of(x.owner))]
    if len(mine) > 1 and record['kind'] == 'reserve':
      raise LedgerError(
        f'There are {len(mine)} reservations for the same random numbers that '
        f'were called {label!r} before the merge: which to resume cannot be '
        'told. Reserve under another label.'
      )
    if mine:
      same.remove(mine[0])
      return mine[0]
    if fitting:
      different = owners.difference_of_owners(fitting[0].owner, owner)
      if different:
        raise LedgerError(
          f'What {label!r} has charged was for another {different}. The same '
          'noise on other sums would reveal their difference. Resume with what '
          'it was begun with, or reserve under another label.'
        )
      raise LedgerError(
        f'What {label!r} has charged was for other random numbers: with new '
        'ones its runs are new and have to be paid. Resume with the secret '
        'that it was begun with, or reserve under another label.'
      )
    if same:
      raise LedgerError(
        f'The label {label!r} was used before for {same[0].limit} x '
        f'({events_lib.describe_event(same[0].event)}), not for this. Resume '
        'with the same parameters, or start anew.'
      )
    return None
