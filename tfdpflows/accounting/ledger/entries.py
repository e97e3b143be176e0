"""The state of a ledger: its entries, replayed from records."""

from __future__ import annotations

import collections
import functools
import json
import os
import reprlib
from collections.abc import Iterable
from typing import Any, Callable, Optional

import dp_accounting

from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import events_json
from tfdpflows.accounting.event_bounds import MAX_RUNS
from tfdpflows.accounting.ledger.file import LedgerError

_SEARCH = 'search over hyper-parameters'


class Entry:
  """One charge or reservation.

  Attributes:
    kind: 'charge' or 'reserve'.
    label: what it was for.
    event: the `DpEvent` of one run.
    public_event: the same at its data-independent cost.
    key, public_key: these events as text, equal for equal events.
    limit: how many runs it is for.
    charged: how many runs are charged.
    released: whether the rest of a reservation was released.
    randomness_id: its `randomness_id`, or ''.
    nonce: an integer that a reservation drew when it was begun, for random
      numbers of its own; 0 if it has none.
    origin: its label in the ledger that it was merged from, or None.
    time: when it was written to a file, as text, or None.
  """

  def __init__(self, record: dict[str, Any]):
    self.kind = record['kind']
    self.label = record['label']
    if not isinstance(self.label, str):
      raise TypeError(f'the label {reprlib.repr(self.label)} is not a string')
    self.event = events_json.event_from_dict(record['event'])
    self.public_event = events_lib.data_independent(self.event)
    self.key = _as_text(record['event'])
    self.public_key = _as_text(events_json.event_to_dict(self.public_event))
    self.limit = record['count']
    self.released = False
    self.randomness_id = str(record.get('owner', ''))
    self.nonce = record.get('nonce', 0)
    self.origin: Optional[str] = record.get('origin')
    self.time: Optional[str] = record.get('time')
    if not (_is_whole(self.limit) and 1 <= self.limit <= MAX_RUNS):
      raise ValueError(
        f'the count {reprlib.repr(self.limit)} is not an integer above 0 '
        'and at most 10^15'
      )
    if not _is_whole(self.nonce):
      raise ValueError(f'the nonce {reprlib.repr(self.nonce)} is no integer')
    self.charged = self.limit if self.kind == 'charge' else 0


class LedgerState:
  """Applies records in order, those of a file and those of a live ledger.

  #### Formal guarantee
  An interrupt at any moment leaves a state that counts all records that were
  applied, and the one that was being applied either wholly or not at all. The
  entries alone determine what was spent, and a record changes them in one
  assignment; all else is derived from them, anew if that was interrupted.

  Attributes:
    entries: all entries, in the order of their first record.
    seeded: whether a charge or reservation was for random numbers from a known
      seed.
    merged: `into` and `sources` of the merge that ended the ledger, or None.

  #### Example

  >>> state = LedgerState()
  >>> event = {'kind': 'Gaussian', 'noise_multiplier': 2.0}
  >>> state.apply({'kind': 'reserve', 'label': 'a', 'event': event, 'count': 9})
  >>> state.apply({'kind': 'advance', 'label': 'a', 'total': 4})
  >>> state.charged().events
  [SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=4)]
  """

  def __init__(self):
    self.entries: list[Entry] = []
    self.seeded = False
    self.merged: Optional[dict[str, Any]] = None
    self._sums: Optional[_Sums] = _Sums()

  @property
  def sums(self) -> _Sums:
    """Derived from the entries."""
    if self._sums is None:
      sums = _Sums()
      for entry in self.entries:
        sums.add(entry)
      self._sums = sums
    return self._sums

  def charged(
    self, data_dependent: bool = False
  ) -> dp_accounting.ComposedDpEvent:
    """Returns all that is charged, at its data-dependent cost if asked for."""
    sums = self.sums
    counts = sums.events if data_dependent else sums.public_events
    return composed(counts.values())

  def committed(self) -> dp_accounting.ComposedDpEvent:
    """Returns what is charged or reserved, at its data-independent cost."""
    sums = self.sums
    rest = [(x.public_event, x.limit - x.charged) for x in sums.open.values()]
    return composed([*sums.public_events.values(), *rest])

  def apply(self, record: dict[str, Any]) -> None:
    """Adds one record; if it is not valid (see `prepare`), nothing changes."""
    self.prepare(record)()

  def prepare(self, record: dict[str, Any]) -> Callable[[], None]:
    """Checks a record, before it is written; returns a function that adds it.

    That raises nothing, and is to be called before any other is prepared.

    Raises:
      KeyError, TypeError, ValueError: if it is not valid after the others.
    """
    if self.merged is not None:
      raise ValueError('something was added after the merge')
    kind = record['kind']
    if kind in ('charge', 'reserve'):
      entry, seeded = Entry(record), bool(record.get('seeded', False))
      old = None if kind == 'charge' else self.sums.reserved.get(entry.label)
      if old is None:
        return functools.partial(self._add, entry, seeded)
      if not old.released or (old.key, old.limit) != (entry.key, entry.limit):
        raise ValueError(f'the label {entry.label!r} is reserved already')
      return functools.partial(self._change, old, released=False)
    if kind == 'advance':
      entry, total = self._open_entry(record), record['total']
      if not (_is_whole(total) and entry.charged < total <= entry.limit):
        raise ValueError(
          f'{entry.label!r} cannot go from {entry.charged} to '
          f'{reprlib.repr(total)} of {entry.limit}'
        )
      return functools.partial(self._change, entry, charged=total)
    if kind == 'release':
      entry = self._open_entry(record)
      return functools.partial(self._change, entry, released=True)
    if kind == 'seal':
      merged = {'into': record['into'], 'sources': list(record['sources'])}
      return functools.partial(setattr, self, 'merged', merged)
    raise ValueError(f'unknown kind of record {reprlib.repr(kind)}')

  def _open_entry(self, record: dict[str, Any]) -> Entry:
    entry = self.sums.open.get(record['label'])
    if entry is None:
      raise ValueError(f'no open reservation has the label {record["label"]!r}')
    return entry

  def _add(self, entry: Entry, seeded: bool = False) -> None:
    self.seeded = self.seeded or seeded
    # An interrupt from here on leaves no sums, which are then made anew.
    sums, self._sums = self.sums, None
    self.entries.append(entry)
    sums.add(entry)
    self._sums = sums

  def _change(self, entry: Entry, **change: Any) -> None:
    sums, self._sums = self.sums, None
    more = change.get('charged', entry.charged) - entry.charged
    [(name, value)] = change.items()
    setattr(entry, name, value)
    sums.count(entry, more)
    self._sums = sums


class _Sums:
  """Derived from the entries of a state.

  Attributes:
    reserved: the reservations by their label.
    open: those that may be charged more, by their label.
    labels: the labels of all entries.
    randomness_names: the names of the random numbers of all plain charges.
    merged_reservations: of those merged in, the labels that they had before and
      the names of their random numbers.
    events, public_events: for each key, an event and how often it is charged.
      Equal events are counted together, so that the composed event stays short
      however long the file.
  """

  def __init__(self):
    self.reserved: dict[str, Entry] = {}
    self.open: dict[str, Entry] = {}
    self.labels: set[str] = set()
    self.randomness_names: set[str] = set()
    self.merged_reservations: set[tuple[str, str]] = set()
    self.events: dict[str, list] = {}
    self.public_events: dict[str, list] = {}

  def add(self, entry: Entry) -> None:
    self.labels.add(entry.label)
    if entry.kind == 'reserve':
      self.reserved[entry.label] = entry
      if entry.origin is not None and entry.randomness_id:
        self.merged_reservations.add(
          (entry.origin, name_of(entry.randomness_id))
        )
    elif entry.randomness_id:
      self.randomness_names.add(name_of(entry.randomness_id))
    self.count(entry, entry.charged)

  def count(self, entry: Entry, more: int) -> None:
    if more:
      for counts, key, event in (
        (self.events, entry.key, entry.event),
        (self.public_events, entry.public_key, entry.public_event),
      ):
        counts.setdefault(key, [event, 0])[1] += more
    if entry.kind == 'charge':
      return
    if entry.released or entry.charged >= entry.limit:
      self.open.pop(entry.label, None)
    else:
      self.open[entry.label] = entry


class ResumableEntries:
  """Entries of earlier processes, each to be resumed once.

  #### Formal guarantee
  Of what was merged in from another ledger, only entries with a `randomness_id`
  may be resumed, and under the label that they had there. Without one, work of
  one source could be resumed by the charge of another one.
  """

  def __init__(self, entries: Iterable[Entry] = ()):
    self._by_label = collections.defaultdict(list)
    for entry in entries:
      if entry.origin is None:
        self._by_label[entry.label].append(entry)
      elif entry.randomness_id:
        self._by_label[entry.origin].append(entry)

  def take(self, record: dict[str, Any]) -> Optional[Entry]:
    """Removes and returns the entry that a charge or reservation resumes.

    Raises:
      LedgerError: if there is one under its label for something else.
    """
    wanted = Entry(record)
    label, same = wanted.label, self._by_label.get(wanted.label, [])
    # Costs computed from private votes may differ: no refusal depends on them.
    terms = lambda entry: (entry.kind, entry.public_key, entry.limit)
    fitting = [entry for entry in same if terms(entry) == terms(wanted)]
    identity = wanted.randomness_id
    mine = [
      entry
      for entry in fitting
      if identity in (entry.randomness_id, name_of(entry.randomness_id))
    ]
    if len(mine) > 1 and wanted.kind == 'reserve':
      raise LedgerError(
        f'There are {len(mine)} reservations for the same random numbers that '
        f'were called {label!r} before the merge: which to resume cannot be '
        'told. Reserve under another label.'
      )
    if mine:
      same.remove(mine[0])
      return mine[0]
    if fitting:
      different = _difference(fitting[0].randomness_id, identity)
      if different:
        raise LedgerError(
          f'What {label!r} has charged was for another {different}. The same '
          'noise on other sums would reveal their difference. Resume with what '
          'it was begun with, or reserve under another label.'
        )
      raise LedgerError(
        f'What {label!r} has charged was for other random numbers: with new '
        'ones its runs are new and must be charged. Resume with the secret '
        'that it was begun with, or reserve under another label.'
      )
    if same:
      raise LedgerError(
        f'The label {label!r} was used before for {same[0].limit} x '
        f'({events_lib.describe_event(same[0].event)}), not for this. Resume '
        'with the same parameters, or start anew.'
      )
    return None


def randomness_id(name: str, facts: dict[str, Any]) -> str:
  """Returns the `randomness_id` of `PrivacyLedger.charge` and `reserve`.

  Noise that enters two different sums can be subtracted from both. A training
  that is replayed may repeat its noise only where all that its sums depend on
  is the same; `facts` holds what of it is known.

  Args:
    name: identifies the random numbers, without revealing them; no spaces.
    facts: what they are used for, JSON-able and public.

  >>> randomness_id('5f1e', {'clip': 2.0})
  '5f1e {"clip": 2.0}'
  """
  return f'{name} {json.dumps(facts, sort_keys=True)}'


def name_of(identity: str) -> str:
  """The name in a `randomness_id`, without the facts."""
  return identity.partition(' ')[0]


def facts_of(identity: str) -> dict[str, Any]:
  """The facts in a `randomness_id`; none, if it is a name."""
  facts = identity.partition(' ')[2]
  return json.loads(facts) if facts else {}


def search_id(name: str) -> str:
  """Returns the `randomness_id` of a whole search over hyper-parameters.

  It is another for every search: of which rows is not known.
  """
  return randomness_id(name, {'use': _SEARCH, 'search': os.urandom(16).hex()})


def is_search(identity: str) -> bool:
  """Whether a `randomness_id` is that of a whole search."""
  facts = identity.partition(' ')[2]
  return f'"use": "{_SEARCH}"' in facts


def _difference(one: str, other: str) -> str:
  """Describes where the facts of two `randomness_id`s differ.

  '' if their names differ or one has no facts. Facts that only one of them has
  are listed where they agree in all they share.
  """
  name, _, facts = one.partition(' ')
  other_name, _, others = other.partition(' ')
  if name != other_name or not facts or not others:
    return ''
  facts, others = json.loads(facts), json.loads(others)
  keys = [k for k in facts if k in others and facts[k] != others[k]]
  found = []
  for key in sorted(keys or facts.keys() ^ others.keys()):
    values = (json.dumps(x.get(key)) for x in (facts, others))
    found.append(f'{key}: {", and not ".join(values)}')
  return '; '.join(found)


def composed(
  pairs: Iterable[tuple[dp_accounting.DpEvent, int]],
) -> dp_accounting.ComposedDpEvent:
  """Returns pairs of an event and a count as one event."""
  return dp_accounting.ComposedDpEvent(
    [
      event if count == 1 else dp_accounting.SelfComposedDpEvent(event, count)
      for event, count in pairs
      if count > 0
    ]
  )


def _as_text(event: dict[str, Any]) -> str:
  return json.dumps(event, sort_keys=True)


def _is_whole(number: Any) -> bool:
  return isinstance(number, int) and not isinstance(number, bool)
