"""What the lines of a ledger add up to."""

from __future__ import annotations

import json
from typing import Any

import dp_accounting

from tfdpflows.accounting import events_json

__all__ = ['Entry', 'LedgerState', 'composed', 'event_key']


class Entry:
  """One charge or reservation.

  Attributes:
    kind: 'charge' or 'reserve'.
    label: What it was for.
    event: The `DpEvent` of one run.
    key: The event as text, equal for equal events.
    limit: How many runs it is for.
    charged: How many runs are charged.
    released: Whether the rest of a reservation was given up.
    owner: Whose random numbers a reservation is for.
  """

  def __init__(self, kind, label, event, key, limit, charged, owner=''):
    self.kind = kind
    self.label = label
    self.event = event
    self.key = key
    self.limit = limit
    self.charged = charged
    self.released = False
    self.owner = owner


class LedgerState:
  """Replays records, one after the other; the file and the live ledger agree.

  Attributes:
    entries: All entries, in the order of their first record.
    reserved: The reservations by their label.

  ```python
  >>> state = LedgerState()
  >>> event = {'kind': 'Gaussian', 'noise_multiplier': 2.0}
  >>> state.apply({'kind': 'reserve', 'label': 'a', 'event': event, 'count': 9})
  >>> state.apply({'kind': 'advance', 'label': 'a', 'total': 4})
  >>> state.charged_event.events
  [SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=4)]

  ```
  """

  def __init__(self):
    self.entries: list[Entry] = []
    self.reserved: dict[str, Entry] = {}
    self._open: dict[str, Entry] = {}
    # Equal events are counted together: as long as the list of mechanisms is
    # short, so is the event, however long the file.
    self._charged: dict[str, list] = {}

  @property
  def charged_event(self) -> dp_accounting.ComposedDpEvent:
    """All that is charged."""
    return composed(self._charged.values())

  @property
  def committed_event(self) -> dp_accounting.ComposedDpEvent:
    """All that is charged or reserved."""
    rest = [
      (entry.event, entry.limit - entry.charged)
      for entry in self._open.values()
    ]
    return composed([*self._charged.values(), *rest])

  def apply(self, record: dict[str, Any]) -> None:
    """Adds one record.

    Args:
      record: With the keys `kind` and `label`, and those of its kind.

    Raises:
      KeyError, TypeError, ValueError: If it is not valid after the others; then
        nothing changes.
    """
    kind, label = record['kind'], record['label']
    if kind in ('charge', 'reserve'):
      event = events_json.event_from_dict(record['event'])
      key, count = event_key(record['event']), record['count']
      if not isinstance(count, int) or count < 1:
        raise ValueError(f'the count {count!r} is not a whole number above 0')
      if kind == 'charge':
        self.entries.append(Entry(kind, label, event, key, count, count))
        self._add(key, event, count)
        return
      entry = self.reserved.get(label)
      if entry is None:
        owner = str(record.get('owner', ''))
        entry = Entry(kind, label, event, key, count, 0, owner)
        self.entries.append(entry)
        self.reserved[label] = entry
      elif not entry.released or (entry.key, entry.limit) != (key, count):
        raise ValueError(f'the label {label!r} is reserved already')
      entry.released = False
      self._open[label] = entry
      return
    if kind not in ('advance', 'release'):
      raise ValueError(f'unknown kind of record {kind!r}')
    entry = self._open.get(label)
    if entry is None:
      raise ValueError(f'no open reservation has the label {label!r}')
    if kind == 'advance':
      total = record['total']
      if not (isinstance(total, int) and entry.charged < total <= entry.limit):
        raise ValueError(
          f'{label!r} cannot go from {entry.charged} to {total!r} of '
          f'{entry.limit}'
        )
      self._add(entry.key, entry.event, total - entry.charged)
      entry.charged = total
      if entry.charged == entry.limit:
        del self._open[label]
    else:
      entry.released = True
      del self._open[label]

  def _add(self, key: str, event: dp_accounting.DpEvent, count: int) -> None:
    self._charged.setdefault(key, [event, 0])[1] += count


def event_key(event: dict[str, Any]) -> str:
  """An event, as `event_to_dict` gives it, as text."""
  return json.dumps(event, sort_keys=True)


def composed(pairs) -> dp_accounting.ComposedDpEvent:
  """Pairs of an event and a count as one event."""
  return dp_accounting.ComposedDpEvent(
    [
      event if count == 1 else dp_accounting.SelfComposedDpEvent(event, count)
      for event, count in pairs
      if count > 0
    ]
  )
