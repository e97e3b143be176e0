"""What the lines of a ledger add up to."""

from __future__ import annotations

import functools
import json
import reprlib
from collections.abc import Callable
from typing import Any, Optional

import dp_accounting

from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import events_json
from tfdpflows.accounting.event_bounds import MAX_RUNS
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
    if not isinstance(self.label, str):
      raise TypeError(f'the label {reprlib.repr(self.label)} is no text')
    self.event = events_json.event_from_dict(record['event'])
    self.claim = events_lib.data_independent(self.event)
    self.key = event_key(record['event'])
    self.claim_key = event_key(events_json.event_to_dict(self.claim))
    self.limit = record['count']
    self.released = False
    self.owner = str(record.get('owner', ''))
    self.origin: Optional[str] = record.get('origin')
    whole = isinstance(self.limit, int) and not isinstance(self.limit, bool)
    if not (whole and 1 <= self.limit <= MAX_RUNS):
      raise ValueError(
        f'the count {reprlib.repr(self.limit)} is not a whole number above 0 '
        'and at most 10^15'
      )
    self.charged = self.limit if self.kind == 'charge' else 0


class LedgerState:
  """Replays records, one after the other; the file and the live ledger agree.

  #### Formal guarantee
  An interrupt at any moment leaves a state that counts all records that were
  applied, and the one that was being applied either wholly or not at all. The
  entries alone say what was spent, and a record changes them in one assignment;
  all else is worked out from them, anew if that was interrupted.

  Attributes:
    entries: All entries, in the order of their first record.
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
    self.seeded = False
    self.seal: Optional[dict[str, Any]] = None
    self._sums: Optional[_Sums] = _Sums()

  @property
  def reserved(self) -> dict[str, Entry]:
    """The reservations by their label."""
    return self._summed().reserved

  @property
  def open(self) -> dict[str, Entry]:
    """Those that may be charged more, by their label."""
    return self._summed().open

  @property
  def labels(self) -> set[str]:
    """The labels of all entries."""
    return self._summed().labels

  @property
  def owner_names(self) -> set[str]:
    """The names of the random numbers of all plain charges."""
    return self._summed().owner_names

  def charged(self, data_dependent: bool = False) -> _Composed:
    """All that is charged.

    Args:
      data_dependent: Whether to leave prices that depend on private votes as
        they are.

    Returns:
      A composed event.
    """
    sums = self._summed()
    return composed((sums.events if data_dependent else sums.claims).values())

  def committed(self) -> _Composed:
    """All that is charged or reserved, at prices that depend on no votes.

    Returns:
      A composed event.
    """
    sums = self._summed()
    rest = [
      (entry.claim, entry.limit - entry.charged) for entry in sums.open.values()
    ]
    return composed([*sums.claims.values(), *rest])

  def apply(self, record: dict[str, Any]) -> None:
    """Adds one record.

    Args:
      record: With the key `kind`, and those of its kind.

    Raises:
      KeyError, TypeError, ValueError: If it is not valid after the others; then
        nothing changes.
    """
    self.prepare(record)()

  def prepare(self, record: dict[str, Any]) -> Callable[[], None]:
    """Checks a record, before it is written.

    Args:
      record: As for `apply`.

    Returns:
      What adds it, and raises nothing; to be called before any other record is
      prepared.

    Raises:
      KeyError, TypeError, ValueError: If it is not valid after the others.
    """
    if self.seal is not None:
      raise ValueError('something was added after the seal')
    kind = record['kind']
    if kind == 'charge':
      seeded = bool(record.get('seeded', False))
      return functools.partial(self._add, Entry(record), seeded)
    if kind == 'reserve':
      entry = Entry(record)
      old = self.reserved.get(entry.label)
      if old is None:
        return functools.partial(self._add, entry)
      if not old.released or (old.key, old.limit) != (entry.key, entry.limit):
        raise ValueError(f'the label {entry.label!r} is reserved already')
      return functools.partial(self._change, old, released=False)
    if kind == 'advance':
      entry, total = self._open_entry(record), record['total']
      whole = isinstance(total, int) and not isinstance(total, bool)
      if not (whole and entry.charged < total <= entry.limit):
        raise ValueError(
          f'{entry.label!r} cannot go from {entry.charged} to '
          f'{reprlib.repr(total)} of {entry.limit}'
        )
      return functools.partial(self._change, entry, charged=total)
    if kind == 'release':
      entry = self._open_entry(record)
      return functools.partial(self._change, entry, released=True)
    if kind == 'seal':
      seal = {'into': record['into'], 'sources': list(record['sources'])}
      return functools.partial(setattr, self, 'seal', seal)
    raise ValueError(f'unknown kind of record {reprlib.repr(kind)}')

  def _open_entry(self, record: dict[str, Any]) -> Entry:
    entry = self.open.get(record['label'])
    if entry is None:
      raise ValueError(f'no open reservation has the label {record["label"]!r}')
    return entry

  def _add(self, entry: Entry, seeded: bool = False) -> None:
    self.seeded = self.seeded or seeded
    # An interrupt from here on leaves no sums, which are then made anew.
    sums, self._sums = self._summed(), None
    self.entries.append(entry)
    sums.add(entry)
    self._sums = sums

  def _change(self, entry: Entry, **change: Any) -> None:
    sums, self._sums = self._summed(), None
    more = change.get('charged', entry.charged) - entry.charged
    [(name, value)] = change.items()
    setattr(entry, name, value)
    sums.count(entry, more)
    self._sums = sums

  def _summed(self) -> _Sums:
    if self._sums is None:
      sums = _Sums()
      for entry in self.entries:
        sums.add(entry)
      self._sums = sums
    return self._sums


class _Sums:
  """What follows from the entries of a state."""

  def __init__(self):
    self.reserved: dict[str, Entry] = {}
    self.open: dict[str, Entry] = {}
    self.labels: set[str] = set()
    self.owner_names: set[str] = set()
    # Equal events are counted together: as long as the list of mechanisms is
    # short, so is the event, however long the file.
    self.events: dict[str, list] = {}
    self.claims: dict[str, list] = {}

  def add(self, entry: Entry) -> None:
    self.labels.add(entry.label)
    if entry.kind == 'reserve':
      self.reserved[entry.label] = entry
    elif entry.owner:
      self.owner_names.add(name_of(entry.owner))
    self.count(entry, entry.charged)

  def count(self, entry: Entry, more: int) -> None:
    if more:
      self.events.setdefault(entry.key, [entry.event, 0])[1] += more
      self.claims.setdefault(entry.claim_key, [entry.claim, 0])[1] += more
    if entry.kind == 'charge':
      return
    if entry.released or entry.charged >= entry.limit:
      self.open.pop(entry.label, None)
    else:
      self.open[entry.label] = entry


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
