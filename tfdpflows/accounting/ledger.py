"""The ledger: what was spent on one table, known before it is spent."""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import numbers
import os
import reprlib
import threading
from typing import Any, Optional

import dp_accounting

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import (
  events_json,
  flatten,
  ledger_file,
  ledger_state,
  overspending,
  registry,
)
from tfdpflows.accounting.earlier_entries import EarlierEntries
from tfdpflows.accounting.event_bounds import MAX_RUNS, check_event
from tfdpflows.accounting.owners import name_of
from tfdpflows.accounting.reservation import Reservation
from tfdpflows.accounting.seal import describe_seal
from tfdpflows.version import __version__

__all__ = ['LedgerEntry', 'PrivacyLedger']

LedgerError = ledger_file.LedgerError
_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
# What a record that is not valid raises.
_INVALID = (
  ArithmeticError,
  AttributeError,
  LookupError,
  RecursionError,
  TypeError,
  ValueError,
)
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LedgerEntry:
  """One mechanism of a ledger.

  Attributes:
    label: What it was for.
    event: The `DpEvent` of one run of it.
    count: How many runs are charged.
    reserved: How many runs may be charged in all; `count` for plain charges and
      for reservations that were released.
  """

  label: str
  event: dp_accounting.DpEvent
  count: int
  reserved: int


class PrivacyLedger:
  """Counts every mechanism that touches one table, and refuses to overspend.

  Args:
    path: A file that does not exist yet; None for a ledger in memory.
    budget: What may be spent; None for no limit.
    accountant: Name of the accountant that enforces the budget.
    neighboring_relation: What two neighbouring tables are.
    metadata: JSON-able dict that is kept in the first line of the file.

  Raises:
    LedgerError: If the file exists or cannot be written.
    ValueError: If the accountant is unknown or the relation not supported.

  #### Formal guarantee
  If each mechanism runs only after its charge has returned, then at every
  moment `epsilon(delta)` is an upper bound for all that ran, whatever crashed
  in between, and the whole is (budget.epsilon, budget.delta)-differentially
  private (where the accountant's guarantee is 'upper_bound'). What is asked of
  the table may depend on earlier outputs; the noise, the sampling and the
  number of runs may not, as numerical composition assumes these fixed. No
  refusal depends on private votes: `DataDependentDpEvent`s are priced by their
  data-independent twins. A file that holds such events tells of the votes and
  has to be kept as private as they are.

  ```python
  >>> ledger = PrivacyLedger(budget=budget_lib.PrivacyBudget(1.0, 1e-5))
  >>> ledger.charge(dp_accounting.GaussianDpEvent(5.0), label='histograms')
  True
  >>> round(ledger.epsilon(), 4)
  0.7255
  >>> ledger.charge(dp_accounting.GaussianDpEvent(4.0), label='one too many')
  Traceback (most recent call last):
  ...
  tfdpflows.accounting.budget.BudgetExceededError: 'one too many' ...

  ```
  """

  def __init__(
    self,
    path=None,
    budget: Optional[budget_lib.PrivacyBudget] = None,
    accountant: str = 'pld',
    neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
    metadata: Optional[dict[str, Any]] = None,
  ):
    header = {
      'kind': 'header',
      'library_version': __version__,
      'budget': None if budget is None else dataclasses.asdict(budget),
      'accountant': registry.resolve_name(accountant),
      'neighboring_relation': neighboring_relation.name,
      'metadata': dict(metadata or {}),
      'time': _now(),
    }
    ledger_file.check_record(header, 'The metadata')
    self._set_up(json.loads(json.dumps(header, allow_nan=False)))
    if path is not None:
      self._store(path)

  @classmethod
  def open(
    cls,
    path,
    budget: Optional[budget_lib.PrivacyBudget] = None,
    read_only: bool = False,
  ) -> PrivacyLedger:
    """Opens a ledger from a file, verifies every line of it, and continues it.

    Args:
      path: The file.
      budget: If given, must equal the budget in the file. What was promised
        does not change; `merge_ledgers` makes a new ledger with a new budget.
      read_only: Whether to open it without a lock and refuse to charge, for
        reading what was spent while somebody else writes.

    Returns:
      The ledger.

    Raises:
      LedgerError: If the file is missing, in use, of another format version, or
        damaged; names the line and the cause.
    """
    ledger = cls._read(path, read_only)
    try:
      if not read_only:
        ledger._check_seal()
      if budget is not None and budget != ledger.budget:
        raise LedgerError(overspending.describe_other_budget(ledger, budget))
    except BaseException:
      ledger.close()
      raise
    for note in ledger._file.notes:
      _logger.warning('%s', note)
    return ledger

  @classmethod
  def _read(cls, path, read_only: bool) -> PrivacyLedger:
    """A ledger from a file, whether or not it may be charged."""
    file = ledger_file.LedgerFile.open(path, read_only)
    try:
      ledger = cls.__new__(cls)
      for number, record in enumerate(file.records, 1):
        try:
          if number == 1:
            ledger._set_up(record)
          else:
            ledger._state.apply(record)
        except _INVALID as error:
          raise LedgerError(
            f'{file.path}, line {number}: not a valid record ({error}).'
          ) from error
    except BaseException:
      file.close()
      raise
    file.records.clear()
    ledger._file = file
    ledger._earlier = EarlierEntries(ledger._state.entries)
    return ledger

  def _set_up(self, header: dict[str, Any]) -> None:
    budget = header['budget']
    self.budget = None if budget is None else budget_lib.PrivacyBudget(**budget)
    self.accountant = registry.resolve_name(header['accountant'])
    names = {relation.name: relation for relation in flatten.RELATIONS}
    name = header['neighboring_relation']
    if name not in names:
      raise ValueError(
        f'The neighbouring relation {name} is not supported; use '
        f'{" or ".join(names)}.'
      )
    self.neighboring_relation = names[name]
    self.metadata = dict(header['metadata'])
    self._header = header
    self._file: Optional[ledger_file.LedgerFile] = None
    self._state = ledger_state.LedgerState()
    self._earlier = EarlierEntries()
    self._lock = threading.RLock()
    # A forked process has a copy, of which this one knows nothing.
    self._process = os.getpid()

  def charge(
    self,
    event: dp_accounting.DpEvent,
    count: int = 1,
    label: Optional[str] = None,
    resume: bool = False,
    *,
    owner: str = '',
    seeded: bool = False,
  ) -> bool:
    """Charges a mechanism that is about to run.

    Args:
      event: What one run costs.
      count: How many runs.
      label: What it is for; the event in words if None.
      resume: Whether a charge with this label that an earlier process wrote to
        the same file counts as this one. That is sound where the interrupted
        run published nothing, or where this one repeats it with the same random
        numbers. Of the charges that were merged in, only those with an owner
        count.
      owner: Names the random numbers, without giving them away, and what they
        are used for (`owners.owner_of`). What was charged for one owner is not
        resumed by another, and random numbers of one name are charged once.
      seeded: Whether the random numbers come from a seed that may be known;
        statements say so from then on.

    Returns:
      True if it was charged now, False if it had been charged before.

    Raises:
      BudgetExceededError: If it would pass the budget; nothing is written.
      dp_accounting.UnsupportedEventError: If the accountant does not support
        the event; nothing is written.
      LedgerError: If it cannot be written, if `resume` finds another event,
        count or owner under the label, or if its random numbers were charged
        before and it does not resume.
      ValueError: If a parameter is outside its range.
    """
    self.check_usable()
    label = events_lib.describe_event(event) if label is None else str(label)
    record = self._record('charge', label, event, count)
    if owner:
      record['owner'] = owner
    if seeded:
      record['seeded'] = True
    with self._lock:
      if resume and self._earlier.take(record) is not None:
        return False
      if owner and name_of(owner) in self._state.owner_names:
        raise LedgerError(
          f'The random numbers of {label!r} were used for an earlier charge: '
          'noise must not be used twice. Give another label or another '
          'Randomness; or, to repeat an interrupted release, resume=True with '
          'the ledger opened from its file.'
        )
      overspending.check_charge(self, event, record['count'], label)
      self._write(record)
    return True

  def reserve(
    self,
    event: dp_accounting.DpEvent,
    count: int,
    label: str,
    *,
    resume: bool = False,
    owner: str = '',
  ) -> Reservation:
    """Checks the budget for many runs at once, to be charged as they happen.

    Args:
      event: What one run costs.
      count: How many runs at most.
      label: What it is for; unique in the ledger.
      resume: Whether to go on with the reservation that an earlier process made
        under this label in the same file, with what it has charged. That is
        sound only where its runs are repeated with the same random numbers. A
        reservation that was merged in is found by the label it had before.
      owner: Names the random numbers, without giving them away, and what they
        are used for (`owners.owner_of`). What was reserved for one owner is
        not resumed by another; an owner that is a name alone resumes whatever
        it was used for, and has to go on after all that was charged.

    Returns:
      A `Reservation`.

    Raises:
      BudgetExceededError: If all that is charged and reserved would pass the
        budget; nothing is written.
      dp_accounting.UnsupportedEventError: If the accountant does not support
        the event; nothing is written.
      LedgerError: If the label is taken, or `resume` finds another event, count
        or owner under it.
      ValueError: If a parameter is outside its range.
    """
    self.check_usable()
    label = str(label)
    record = {**self._record('reserve', label, event, count), 'owner': owner}
    with self._lock:
      entry = self._earlier.take(record) if resume else None
      if entry is None:
        if label in self._state.labels:
          raise LedgerError(
            f'The label {label!r} is taken in this ledger; a reservation needs '
            'one of its own.'
          )
        overspending.check_charge(self, event, record['count'], label)
        self._write(record)
      elif entry.released and entry.charged < entry.limit:
        overspending.check_charge(
          self, event, entry.limit - entry.charged, label
        )
        self._write({**record, 'label': entry.label})
      found = label if entry is None else entry.label
      return Reservation(self, self._state.reserved[found])

  @property
  def entries(self) -> tuple[LedgerEntry, ...]:
    """All mechanisms in the order of their first line."""
    with self._lock:
      return tuple(
        LedgerEntry(
          entry.label,
          entry.event,
          entry.charged,
          entry.charged if entry.released else entry.limit,
        )
        for entry in self._state.entries
      )

  @property
  def event(self) -> dp_accounting.ComposedDpEvent:
    """All that is charged, as one event, as it was charged."""
    with self._lock:
      return self._state.charged(data_dependent=True)

  @property
  def committed_event(self) -> dp_accounting.ComposedDpEvent:
    """All that is charged or reserved, at prices that depend on no votes."""
    with self._lock:
      return self._state.committed()

  @property
  def remaining(self) -> Optional[float]:
    """Epsilon of the budget less that of all that is charged or reserved.

    Epsilons do not add up: more noise than this suggests may still fit in. None
    if there is no budget.
    """
    if self.budget is None:
      return None
    return max(self.budget.epsilon - self._epsilon(self.committed_event), 0.0)

  @property
  def seeded(self) -> bool:
    """Whether random numbers came from a seed that may be known."""
    return bool(self.metadata.get('seeded', False) or self._state.seeded)

  @property
  def notes(self) -> tuple[str, ...]:
    """What there is to know of the file, in words."""
    notes = () if self._file is None else self._file.notes
    if self._state.seal is not None:
      notes += (describe_seal(self.path, self._state.seal),)
    if 'merged_from' in self.metadata:
      names = ', '.join(x['path'] for x in self.metadata['merged_from'])
      notes += (f'Merged from these ledgers, with all they spent: {names}.',)
    return notes

  @property
  def path(self) -> Optional[str]:
    """Where the file is; None for a ledger in memory."""
    return None if self._file is None else self._file.path

  def epsilon(
    self,
    delta: Optional[float] = None,
    accountant: Optional[str] = None,
    *,
    data_dependent: bool = False,
  ) -> float:
    """Epsilon of all that is charged.

    Args:
      delta: Inside (0, 1); that of the budget if None.
      accountant: Name of an accountant; that of the ledger if None.
      data_dependent: Whether to price `DataDependentDpEvent`s by the votes they
        were made from. The result is then itself private.

    Returns:
      Epsilon in nats, infinite if no finite one is known. The same question is
      answered from memory.

    Raises:
      dp_accounting.UnsupportedEventError: If the accountant does not support a
        mechanism of the ledger.
      ValueError: If the delta is missing or outside its range.
    """
    if delta is None and self.budget is None:
      raise ValueError('A ledger without a budget has no delta; give one.')
    with self._lock:
      event = self._state.charged(data_dependent)
    return self._epsilon(event, delta, accountant)

  def _store(self, path, records=(), before=lambda: None) -> None:
    """Puts a ledger that has only been in memory on disk."""
    records = [{**record, 'time': _now()} for record in records]
    self._file = ledger_file.LedgerFile.create(
      path, self._header, records, before
    )

  def release(self, label: str) -> int:
    """Gives up what a reservation has not charged, whoever made it.

    For one whose program is gone and will not resume it, so that it does not
    hold a part of the budget for ever. What it has charged stays charged, as it
    may have run. Its program can still go on, if the budget has room then: what
    it gave up is paid for anew when it resumes.

    Args:
      label: Of the reservation.

    Returns:
      How many runs were given up; 0 if all are charged or were given up before.

    Raises:
      LedgerError: If there is no such reservation, or it cannot be written.

    #### Formal guarantee
    A run is charged, on disk, before it begins, and as long as this ledger is
    open nobody else can charge one. So what is given up has not run, and cannot
    run without being paid for.

    ```python
    >>> ledger = PrivacyLedger()
    >>> event = dp_accounting.GaussianDpEvent(20.0)
    >>> ledger.reserve(event, count=100, label='training').ensure(30)
    >>> ledger.release('training')
    70

    ```
    """
    with self._lock:
      self.check_usable()
      entry = self._state.reserved.get(label)
      if entry is None:
        raise LedgerError(
          f'There is no reservation {label!r} in this ledger. '
          + overspending.describe_reserved(self)
        )
      left = 0 if entry.released else entry.limit - entry.charged
      if left:
        self._write({'kind': 'release', 'label': label})
      return left

  def close(self) -> None:
    """Unlocks the file; nothing can be charged afterwards.

    Warns if the file was replaced, deleted or written to while it was open.
    """
    if self._file is None:
      return
    # Not in a process that was forked: the ledger goes on in the other one.
    if self._process == os.getpid() and not self._file.broken:
      what = self._file.displaced()
      if what is not None:
        _logger.warning('%s', what)
    self._file.close()

  def __enter__(self) -> PrivacyLedger:
    return self

  def __exit__(self, *unused_args) -> None:
    self.close()

  def _epsilon(self, event, delta=None, accountant=None) -> float:
    return registry.compute_epsilon(
      event,
      self.budget.delta if delta is None else delta,
      self.accountant if accountant is None else accountant,
      self.neighboring_relation,
    )

  def _record(self, kind, label, event, count) -> dict[str, Any]:
    whole = isinstance(count, numbers.Real) and not isinstance(count, bool)
    # Compared, not converted: NaN and infinity cannot be, nor be printed what
    # has too many digits.
    if not (whole and 1 <= count <= MAX_RUNS and count % 1 == 0):
      printed = not whole or not count > MAX_RUNS
      raise ValueError(
        f'The count of {label!r} must be a whole number above zero and at most '
        f'10^15, not {reprlib.repr(count) if printed else "more"}.'
      )
    check_event(event, runs=int(count))
    record = {
      'kind': kind,
      'label': label,
      'event': events_json.event_to_dict(event),
      'count': int(count),
    }
    # As it is going to be read.
    return json.loads(json.dumps(record))

  def _check_seal(self) -> None:
    if self._state.seal is not None:
      raise LedgerError(
        describe_seal(self.path, self._state.seal)
        + ' Nothing can be charged here any more.'
      )

  def check_usable(self) -> None:
    """Raises `LedgerError` if nothing can be charged here."""
    if self._file is not None:
      self._file.check_writable()
    self.check_process()
    self._check_seal()

  def check_process(self) -> None:
    """Raises `LedgerError` in a process that was forked from the ledger's."""
    if self._process != os.getpid():
      raise LedgerError(
        'This ledger was made by the process that this one was forked from, '
        'which does not know what is charged or run here. Charge it there, '
        'before the fork; or close it there and open its file here.'
      )

  def _write(self, record: dict[str, Any]) -> None:
    """On disk first, then in memory; nothing that is not valid."""
    self.check_process()
    self._check_seal()
    change = self._state.prepare(record)
    if self._file is None:
      change()
    else:
      self._file.append({**record, 'time': _now()}, change)


def _now() -> str:
  now = datetime.datetime.now(datetime.timezone.utc)
  return now.isoformat(timespec='seconds')
