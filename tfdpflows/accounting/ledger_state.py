"""What the lines of a ledger add up to."""

from __future__ import annotations

import json
from typing import Any, Optional

import dp_accounting

from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import events_json
from tfdpflows.accounting.owners import name_of

__all__ = ['Entry', 'LedgerState', 'claim_key', 'composed', 'event_key']

_Composed = dp_accounting.ComposedDpEvent


class Entry:
  """One charge or reservation.

  Attributes:
    kind: 'charge' or 'reserve'.
    label: What it was for.
    event: The `DpEvent` of one run.
    claim: The same at a price that does not depend on private votes.
    key: The event as text, equal for equal events.
    claim_key: The claim as text.
    limit: How many runs it is for.
    charged: How many runs are charged.
    released: Whether the rest of a reservation was given up.
    owner: Whose random numbers it is for.
    origin: Its label in the ledger that it was merged from; None if it was
      begun in this one.
  """

  def __init__(self, record: dict[str, Any]):
    self.kind = record['kind']
    self.label = record['label']
    self.event = events_json.event_from_dict(record['event'])
    self.claim = events_lib.data_independent(self.event)
    self.key = event_key(record['event'])
    self.claim_key = claim_key(record['event'])
    self.limit = record['count']
    self.charged = 0
    self.released = False
    self.owner = str(record.get('owner', ''))
    self.origin: Optional[str] = record.get('origin')
    if not isinstance(self.limit, int) or self.limit < 1:
      raise ValueError(
        f'the count {self.limit!r} is not a whole number above 0'
      )


class LedgerState:
  """Replays records, one after the other; the file and the live ledger agree.

  Attributes:
    entries: All entries, in the order of their first record.
    reserved: The reservations by their label.
    labels: The labels of all entries.
    owner_names: The names of the random numbers of all plain charges.
    seeded: Whether a charge was for random numbers from a known seed.
    seal: The record that ended the ledger; None while it goes on.

  ```python
  >>> state = LedgerState()
  >>> event = {'kind': 'Gaussian', 'noise_multiplier': 2.0}
  >>> state.apply({'kind': 'reserve', 'label': 'a', 'event': event, 'count': 9})
  >>> state.apply({'kind': 'advance', 'label': 'a', 'total': 4})
  >>> state.charged().events
  [SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=4)]

  ```
  """

  def __init__(self):
    self.entries: list[Entry] = []
    self.reserved: dict[str, Entry] = {}
    self.labels: set[str] = set()
    self.owner_names: set[str] = set()
    self.seeded = False
    self.seal: Optional[dict[str, Any]] = None
    self._open: dict[str, Entry] = {}
    # Equal events are counted together: as long as the list of mechanisms is
    # short, so is the event, however long the file.
    self._events: dict[str, list] = {}
    self._claims: dict[str, list] = {}

  def charged(self, data_dependent: bool = False) -> _Composed:
    """All that is charged.

    Args:
      data_dependent: Whether to leave prices that depend on private votes as
        they are.

    Returns:
      A composed event.
    """
    return composed((self._events if data_dependent else self._claims).values())

  def committed(self) -> _Composed:
    """All that is charged or reserved, at prices that depend on no votes.

    Returns:
      A composed event.
    """
    rest = [
      (entry.claim, entry.limit - entry.charged)
      for entry in self._open.values()
    ]
    return composed([*self._claims.values(), *rest])

  def apply(self, record: dict[str, Any]) -> None:
    """Adds one record.

    Args:
      record: With the key `kind`, and those of its kind.

    Raises:
      KeyError, TypeError, ValueError: If it is not valid after the others; then
        nothing changes.
    """
    if self.seal is not None:
      raise ValueError('something was added after the seal')
    kind = record['kind']
    if kind == 'charge':
      self._add_entry(Entry(record))
      self.seeded |= bool(record.get('seeded', False))
    elif kind == 'reserve':
      self._reserve(Entry(record))
    elif kind == 'advance':
      self._advance(self._open_entry(record), record['total'])
    elif kind == 'release':
      entry = self._open_entry(record)
      entry.released = True
      del self._open[entry.label]
    elif kind == 'seal':
      self.seal = {'into': record['into'], 'sources': list(record['sources'])}
    else:
      raise ValueError(f'unknown kind of record {kind!r}')

  def _add_entry(self, entry: Entry) -> None:
    self.entries.append(entry)
    self.labels.add(entry.label)
    if entry.kind == 'charge':
      if entry.owner:
        self.owner_names.add(name_of(entry.owner))
      self._charge(entry, entry.limit)

  def _reserve(self, entry: Entry) -> None:
    label, old = entry.label, self.reserved.get(entry.label)
    if old is None:
      self._add_entry(entry)
      self.reserved[label] = self._open[label] = entry
      return
    if not old.released or (old.key, old.limit) != (entry.key, entry.limit):
      raise ValueError(f'the label {label!r} is reserved already')
    old.released = False
    self._open[label] = old

  def _open_entry(self, record: dict[str, Any]) -> Entry:
    entry = self._open.get(record['label'])
    if entry is None:
      raise ValueError(f'no open reservation has the label {record["label"]!r}')
    return entry

  def _advance(self, entry: Entry, total: int) -> None:
    if not (isinstance(total, int) and entry.charged < total <= entry.limit):
      raise ValueError(
        f'{entry.label!r} cannot go from {entry.charged} to {total!r} of '
        f'{entry.limit}'
      )
    self._charge(entry, total - entry.charged)
    if entry.charged == entry.limit:
      del self._open[entry.label]

  def _charge(self, entry: Entry, count: int) -> None:
    entry.charged += count
    self._events.setdefault(entry.key, [entry.event, 0])[1] += count
    self._claims.setdefault(entry.claim_key, [entry.claim, 0])[1] += count


def event_key(event: dict[str, Any]) -> str:
  """An event, as `event_to_dict` gives it, as text."""
  return json.dumps(event, sort_keys=True)


def claim_key(event: dict[str, Any]) -> str:
  """The same of the event at a price that does not depend on private votes."""
  claim = events_lib.data_independent(events_json.event_from_dict(event))
  return event_key(events_json.event_to_dict(claim))


def composed(pairs) -> _Composed:
  """Pairs of an event and a count as one event."""
  return _Composed(
    [
      event if count == 1 else dp_accounting.SelfComposedDpEvent(event, count)
      for event, count in pairs
      if count > 0
    ]
  )
