"""The ledger of one table: every charge is recorded before it is spent."""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import math
import numbers
import os
import reprlib
import threading
from collections.abc import Sequence
from typing import Any, Callable, Optional

import dp_accounting

from tfdpflows import _observer
from tfdpflows._checks import Home, check_type
from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import events_json, mechanisms, registry
from tfdpflows.accounting.event_bounds import MAX_RUNS, check_event
from tfdpflows.accounting.ledger import entries as entries_lib
from tfdpflows.accounting.ledger import file as file_lib
from tfdpflows.accounting.ledger.file import LedgerError
from tfdpflows.accounting.mechanisms import no_proof
from tfdpflows.atomic import PathLike
from tfdpflows.version import __version__

_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
# What a record that is not valid raises.
_INVALID = ArithmeticError, AttributeError, LookupError, RecursionError
_INVALID += TypeError, ValueError
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LedgerEntry:
  """One mechanism of a ledger.

  As many runs as are reserved may be charged in all: `count` for plain charges
  and released reservations.
  """

  label: str  # What it was for.
  event: dp_accounting.DpEvent  # Of one run.
  count: int  # How many runs are charged.
  reserved: int


class PrivacyLedger:
  """Records every mechanism run on one table, and enforces a budget.

  Args:
    path: a file that does not exist yet; None for a ledger in memory.
    budget: a `PrivacyBudget`; None for no limit.
    accountant: name of the accountant that enforces the budget.
    neighboring_relation: what two neighbouring tables are.
    metadata: JSON-able dict that is kept in the first line of the file.
    allow_no_proof: whether a ledger with a budget takes a `NoProofDpEvent`,
      which the budget does not limit; one without a budget always does. Kept in
      the first line of the file.
    privacy_unit: name of the column whose values are the units of privacy, such
      as 'person_id', where neighbours differ by a unit with all its rows; None
      for rows. Kept in the first line of the file.

  Raises:
    LedgerError: if the file exists or cannot be written.
    ValueError: if the accountant is unknown or the relation not supported.

  #### Formal guarantee
  If each mechanism runs only after its charge has returned, then at every
  moment `epsilon(delta)` is an upper bound for all that ran, whatever crashed
  in between, and the whole is (budget.epsilon, budget.delta)-differentially
  private (where the accountant's guarantee is 'upper_bound'). Queries may
  depend on earlier outputs; noise, sampling and number of runs may not, as
  numerical composition assumes these fixed. A mechanism that says it protects
  another unit than the ledger is refused. No refusal depends on private
  votes: `DataDependentDpEvent`s count at their data-independent cost. A file
  that holds such events reveals the votes and must be kept as private as they.

  Of a `NoProofDpEvent` nothing is guaranteed: with one charged, `epsilon` is
  infinite, `remaining` is zero, and the budget bounds the epsilon of all other
  releases alone; `privacy_statement` lists both.

  #### Example

  >>> budget = budget_lib.PrivacyBudget(epsilon=1.0, delta=1e-5)
  >>> ledger = PrivacyLedger(budget=budget)
  >>> ledger.charge(dp_accounting.GaussianDpEvent(5.0), label='histograms')
  True
  >>> round(ledger.epsilon(), 4)
  0.7255
  >>> ledger.charge(dp_accounting.GaussianDpEvent(4.0), label='one too many')
  Traceback (most recent call last):
  ...
  tfdpflows.accounting.budget.BudgetExceededError: 'one too many' ...
  """

  def __init__(
    self,
    path: Optional[PathLike] = None,
    *,
    budget: Optional[budget_lib.PrivacyBudget] = None,
    accountant: str = 'pld',
    neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
    metadata: Optional[dict[str, Any]] = None,
    allow_no_proof: bool = False,
    privacy_unit: Optional[str] = None,
  ):
    if budget is not None:
      budget_lib.check_budget(budget)
    header = {
      'kind': 'header',
      'library_version': __version__,
      'budget': None if budget is None else dataclasses.asdict(budget),
      'accountant': registry.resolve_name(accountant),
      'neighboring_relation': neighboring_relation.name,
      'metadata': dict(metadata or {}),
      'time': _now(),
    }
    if allow_no_proof:
      header['allow_no_proof'] = True
    if privacy_unit is not None:
      header['privacy_unit'] = str(privacy_unit)
    file_lib.check_record(header, 'The metadata')
    self._set_up(json.loads(json.dumps(header, allow_nan=False)))
    if path is not None:
      self._store(path, [], lambda: None)

  @classmethod
  def open(
    cls,
    path: PathLike,
    *,
    budget: Optional[budget_lib.PrivacyBudget] = None,
    read_only: bool = False,
  ) -> PrivacyLedger:
    """Opens a ledger file, verifies every line, and continues it.

    Args:
      path: the file.
      budget: if given, must equal the budget in the file, which never changes;
        `merge_ledgers` makes a new ledger with a new budget.
      read_only: whether to open it without a lock and refuse to charge, to read
        what was spent while another process writes.

    Raises:
      LedgerError: if the file is missing, in use, of another format version, or
        damaged; names the line and the cause.
    """
    ledger = cls._read(path, read_only)
    try:
      if not read_only:
        ledger._check_chargeable()
      if budget is not None and budget != ledger.budget:
        ledger._refuse_other_budget(budget)
    except BaseException:
      ledger.close()
      raise
    for note in ledger._file.notes:
      _logger.warning('%s', note)
    return ledger

  @classmethod
  def _read(cls, path: PathLike, read_only: bool) -> PrivacyLedger:
    """Reads a ledger file, also one that was merged into another."""
    file = file_lib.LedgerFile.open(path, read_only)
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
    ledger._resumable = entries_lib.ResumableEntries(ledger._state.entries)
    return ledger

  def _set_up(self, header: dict[str, Any]) -> None:
    budget = header['budget']
    self.budget = None if budget is None else budget_lib.PrivacyBudget(**budget)
    self.accountant = registry.resolve_name(header['accountant'])
    names = {relation.name: relation for relation in mechanisms.RELATIONS}
    name = header['neighboring_relation']
    if name not in names:
      raise ValueError(
        f'The neighbouring relation {name} is not supported; use '
        f'{" or ".join(names)}.'
      )
    self.neighboring_relation = names[name]
    self.metadata = dict(header['metadata'])
    self.allow_no_proof = bool(header.get('allow_no_proof', False))
    self.privacy_unit: Optional[str] = header.get('privacy_unit')
    self._header = header
    self._file: Optional[file_lib.LedgerFile] = None
    self._state = entries_lib.LedgerState()
    self._resumable = entries_lib.ResumableEntries()
    self._lock = threading.RLock()
    # Results of `epsilon` since the last record.
    self._answers: dict[tuple, float] = {}
    # A forked process has a copy, of which this one knows nothing.
    self._home = Home()

  def charge(
    self,
    event: dp_accounting.DpEvent,
    count: int = 1,
    *,
    label: Optional[str] = None,
    resume: bool = False,
    randomness_id: str = '',
    seeded: bool = False,
    privacy_unit: Optional[str] = None,
  ) -> bool:
    """Charges a mechanism that is about to run.

    Args:
      event: the `DpEvent` of one run.
      count: how many runs.
      label: what it is for; a description of the event if None.
      resume: whether a charge with this label that an earlier process wrote to
        the same file counts as this one. That is sound where the interrupted
        run published nothing, or where this one repeats it with the same random
        numbers. Of the charges that were merged in, only those with a
        `randomness_id` count.
      randomness_id: identifies the random numbers, without revealing them, and
        their use (`ledger.randomness_id`). A charge for other ones is not
        resumed, and the same random numbers are charged only once.
      seeded: whether the random numbers come from a seed that may be known;
        privacy statements then report it.
      privacy_unit: name of the units that the mechanism protects, `None` for
        rows.

    Returns:
      True if it was charged now, False if it had been charged before.

    Raises:
      BudgetExceededError: if it would exceed the budget, or has no privacy
        proof and the ledger does not allow that; nothing is written.
      dp_accounting.UnsupportedEventError: if the accountant does not support
        the event; nothing is written.
      LedgerError: if it cannot be written, if `resume` finds another event,
        count or `randomness_id` under the label, or if its random numbers were
        charged before and it does not resume.
      ValueError: if a parameter is outside its range, or the ledger has another
        privacy unit.
    """
    self._check_usable()
    label = events_lib.describe_event(event) if label is None else str(label)
    self._check_unit(privacy_unit, label)
    record = _record('charge', label, event, count)
    if randomness_id:
      record['owner'] = randomness_id
    if seeded:
      record['seeded'] = True
    with self._lock:
      if resume and self._resumable.take(record) is not None:
        return False
      self._check_unused(entries_lib.name_of(randomness_id), label)
      self._check_budget(event, record['count'], label)
      self._write(record)
    return True

  def reserve(
    self,
    event: dp_accounting.DpEvent,
    count: int,
    label: str,
    *,
    resume: bool = False,
    randomness_id: str = '',
    seeded: bool = False,
    privacy_unit: Optional[str] = None,
  ) -> Reservation:
    """Checks the budget for many runs at once, to be charged as they happen.

    Args:
      event: the `DpEvent` of one run.
      count: how many runs at most.
      label: what it is for; unique in the ledger.
      resume: whether to continue the reservation that an earlier process made
        under this label in the same file. That is sound only where its runs are
        repeated with the same random numbers. A reservation that was merged in
        is found by the label it had before.
      randomness_id: as for `charge`. A name without facts resumes any use of
        those random numbers, and must continue after all that was charged.
      seeded: as for `charge`.
      privacy_unit: as for `charge`.

    Returns:
      A `Reservation`.

    Raises:
      BudgetExceededError: if all that is charged and reserved would exceed the
        budget; nothing is written.
      dp_accounting.UnsupportedEventError: if the accountant does not support
        the event; nothing is written.
      LedgerError: if the label is taken, or its random numbers were used
        before, here or in a ledger that was merged in, or `resume` finds
        another event, count or `randomness_id` under it.
      ValueError: if a parameter is outside its range, or the ledger has another
        privacy unit.
    """
    self._check_usable()
    label = str(label)
    self._check_unit(privacy_unit, label)
    record = _record('reserve', label, event, count)
    record['owner'] = randomness_id
    if seeded:
      record['seeded'] = True
    elif _observer.current() is None:  # A replay has the random numbers again.
      record['nonce'] = _new_nonce()
    with self._lock:
      entry = self._resumable.take(record) if resume else None
      if entry is None:
        if label in self._state.sums.labels:
          raise LedgerError(
            f'The label {label!r} is taken in this ledger; a reservation needs '
            'one of its own.'
          )
        used = label, entries_lib.name_of(randomness_id)
        if used in self._state.sums.merged_reservations:
          raise LedgerError(
            f'The random numbers of {label!r} were used in a ledger that was '
            'merged into this one: noise must not be used twice. Give another '
            'label or another Randomness, or resume=True to go on with that '
            'reservation.'
          )
        self._check_unused(used[1], label)
        self._check_budget(event, record['count'], label)
        self._write(record)
      elif entry.released and entry.charged < entry.limit:
        self._check_budget(event, entry.limit - entry.charged, label)
        self._write({**record, 'label': entry.label})
      found = label if entry is None else entry.label
      return Reservation(self, self._state.sums.reserved[found])

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
    """All that is charged, as one event."""
    with self._lock:
      return self._state.charged(data_dependent=True)

  @property
  def committed_event(self) -> dp_accounting.ComposedDpEvent:
    """All that is charged or reserved, at its data-independent cost."""
    with self._lock:
      return self._state.committed()

  @property
  def remaining(self) -> Optional[float]:
    """Epsilon of the budget minus that of `committed_event`; None without one.

    Epsilons do not add up: a mechanism with a larger epsilon may still fit.
    Zero with a `NoProofDpEvent`, as then no epsilon holds for all.
    """
    if self.budget is None:
      return None
    return max(self.budget.epsilon - self._epsilon(self.committed_event), 0.0)

  @property
  def seeded(self) -> bool:
    """Whether random numbers came from a seed that may be known."""
    return bool(self.metadata.get('seeded', False) or self._state.seeded)

  @property
  def searches(self) -> frozenset[str]:
    """Labels of what was charged for whole searches over hyper-parameters."""
    with self._lock:
      return frozenset(
        entry.label
        for entry in self._state.entries
        if entries_lib.is_search(entry.randomness_id)
      )

  @property
  def notes(self) -> tuple[str, ...]:
    """Remarks on the file: repairs and merges."""
    notes = () if self._file is None else self._file.notes
    if self._state.merged is not None:
      notes += (self._describe_merge(),)
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
      delta: inside (0, 1); that of the budget if None.
      accountant: name of an accountant; that of the ledger if None.
      data_dependent: whether `DataDependentDpEvent`s count at their
        data-dependent cost. The result is then itself private.

    Returns:
      Epsilon in nats, infinite if no finite one is known, as with a
      `NoProofDpEvent`; cached.

    Raises:
      dp_accounting.UnsupportedEventError: if the accountant does not support a
        mechanism of the ledger.
      ValueError: if the delta is missing or outside its range.
    """
    if delta is None and self.budget is None:
      raise ValueError('A ledger without a budget has no delta; give one.')
    with self._lock:
      answers, key = self._answers, (delta, accountant, data_dependent)
      if key in answers:
        return answers[key]
      event = self._state.charged(data_dependent)
    answers[key] = epsilon = self._epsilon(event, delta, accountant)
    return epsilon

  def release(self, label: str) -> int:
    """Releases what a reservation has not charged, whoever made it.

    For one whose program is gone and will not resume it, so that it does not
    hold a part of the budget for ever. What it has charged stays charged, as it
    may have run. If its program resumes after all, the released runs are
    checked against the budget and charged anew.

    Args:
      label: of the reservation.

    Returns:
      How many runs were released; 0 if all are charged or were released before.

    Raises:
      LedgerError: if there is no such reservation, or it cannot be written.

    #### Formal guarantee
    A run is charged, on disk, before it begins, and while this ledger is open
    nobody else can charge one. So released runs have not run, and cannot run
    without being charged.

    #### Example

    >>> ledger = PrivacyLedger()
    >>> event = dp_accounting.GaussianDpEvent(20.0)
    >>> ledger.reserve(event, count=100, label='training').ensure(30)
    >>> ledger.release('training')
    70
    """
    with self._lock:
      self._check_usable()
      entry = self._state.sums.reserved.get(label)
      if entry is None:
        raise LedgerError(
          f'There is no reservation {label!r} in this ledger. '
          + self._describe_open()
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
    if self._home.is_here and not self._file.broken:
      what = self._file.displaced()
      if what is not None:
        _logger.warning('%s', what)
    self._file.close()

  def __copy__(self) -> PrivacyLedger:
    # Another one would not see what is charged to this one.
    return self

  def __enter__(self) -> PrivacyLedger:
    return self

  def __exit__(self, *unused_args) -> None:
    self.close()

  def _check_usable(self) -> None:
    """Raises `LedgerError` if nothing can be charged here."""
    if self._file is not None:
      self._file.check_writable()
    self._check_process()
    self._check_chargeable()

  def _check_process(self) -> None:
    self._home.check(
      'This ledger was made',
      'which does not know what is charged or run here. Charge it there, '
      'before the fork; or close it there and open its file here.',
      LedgerError,
    )

  def _check_unused(self, name: str, label: str) -> None:
    """Raises `LedgerError` if random numbers were charged or reserved for."""
    if name and name in self._state.sums.randomness_names:
      raise LedgerError(
        f'The random numbers of {label!r} were used for an earlier charge: '
        'noise must not be used twice. Give another label or another '
        'Randomness; or, to repeat an interrupted release, resume=True with '
        'the ledger opened from its file.'
      )

  def _check_unit(self, privacy_unit: Optional[str], label: str) -> None:
    if privacy_unit == self.privacy_unit:
      return
    named = lambda unit: 'rows' if unit is None else f'units {unit!r}'
    raise ValueError(
      f'{label!r} is refused: it protects {named(privacy_unit)}, and this '
      f'ledger is for {named(self.privacy_unit)}. Nothing was charged. Use a '
      'mechanism that takes `units`, with those of the ledger; or keep two '
      'ledgers, with two claims.'
    )

  def _check_chargeable(self) -> None:
    if self._state.merged is not None:
      raise LedgerError(
        self._describe_merge() + ' Nothing can be charged here any more.'
      )

  def _describe_merge(self) -> str:
    """Which ledger this one was merged into."""
    what = 'This ledger' if self.path is None else f'The ledger {self.path}'
    into = self._state.merged['into']
    if into is None:
      return f'{what} was merged into one in memory: continue that one.'
    if self.path is not None:
      folder = os.path.dirname(os.path.realpath(self.path))
      into = os.path.normpath(os.path.join(folder, into))
    if os.path.exists(into):
      return f'{what} was merged into {into}: continue that one.'
    return (
      f'{what} was being merged into {into}, which is not there: merge the '
      f'same ledgers again ({", ".join(self._state.merged["sources"])}, as '
      f'seen from {os.path.dirname(into)}).'
    )

  def _epsilon(
    self,
    event: dp_accounting.DpEvent,
    delta: Optional[float] = None,
    accountant: Optional[str] = None,
  ) -> float:
    event, unproven = no_proof.split(event)
    delta = self.budget.delta if delta is None else delta
    name = self.accountant if accountant is None else accountant
    relation = self.neighboring_relation
    found = registry.compute_epsilon(event, delta, name, relation)
    # Never the epsilon of a part of what was released.
    return math.inf if unproven else found

  def _check_budget(
    self, event: dp_accounting.DpEvent, count: int, label: str
  ) -> None:
    """Refuses a charge that would exceed the budget, with the numbers."""
    event = events_lib.data_independent(event)
    more, unproven = no_proof.split(entries_lib.composed([(event, count)]))
    relation = self.neighboring_relation
    if unproven and not (self.budget is None or self.allow_no_proof):
      message = (
        f'{label!r} is refused: it has no privacy proof, so that no budget '
        'bounds it. Nothing was charged. A ledger made with '
        'allow_no_proof=True lists it beside its budget.'
      )
      spent = self._epsilon(self.committed_event)
      raise budget_lib.BudgetExceededError(
        self.budget, spent, math.inf, message
      )
    if self.budget is None:
      registry.compose_event(more, self.accountant, relation)
      return
    before, _ = no_proof.split(self.committed_event)
    after = entries_lib.composed([(before, 1), (more, 1)])
    made = registry.compose_event(after, self.accountant, relation)
    # The accountants that know a fast answer have this.
    surely = getattr(made, 'is_surely_within', None)
    if surely and surely(self.budget.epsilon, self.budget.delta):
      return
    asked = self._epsilon(after)
    if asked <= self.budget.epsilon:
      return
    spent, budget = self._epsilon(before), self.budget
    hint = ' ' + self._describe_open() if self._state.sums.open else ''
    fix = 'Nothing was charged. Add noise, ask for less, or start with a larger'
    if mechanisms.NonPrivate() in mechanisms.decompose(more, relation):
      what = events_lib.describe_event(event)
      refusal = (
        f'{what}, has no noise, so that its epsilon is infinite and no budget '
        'admits it. Nothing was charged. Add noise.'
      )
    elif math.isinf(asked):
      refusal = (
        f'with it no finite epsilon is known at delta={budget.delta:g} '
        f'(infinity, after {spent:.7g}), and the budget is '
        f'{budget.epsilon:.7g}. {fix} budget and a larger delta.{hint}'
      )
    else:
      # Seven digits, so that an excess in the sixth can be read.
      refusal = (
        f'it would bring epsilon from {spent:.7g} to {asked:.7g} at '
        f'delta={budget.delta:g} and the budget is {budget.epsilon:.7g}. {fix} '
        f'budget.{hint}'
      )
    message = f'{label!r} is refused: {refusal}'
    raise budget_lib.BudgetExceededError(budget, spent, asked, message)

  def _describe_open(self) -> str:
    """Which reservations hold a part of the budget, and how to release it."""
    held = [
      f'{x.label!r} ({x.limit - x.charged:,} of {x.limit:,} runs)'
      for x in self._state.sums.open.values()
    ]
    if not held:
      return 'No reservation holds anything that is not charged.'
    more = f' and {len(held) - 5} more' if len(held) > 5 else ''
    return (
      f'Reserved and not charged: {", ".join(held[:5])}{more}. '
      'PrivacyLedger.release returns to the budget what nobody will resume.'
    )

  def _refuse_other_budget(self, budget: budget_lib.PrivacyBudget) -> None:
    spent = ''
    proven, _ = no_proof.split(self.committed_event)
    epsilon = self._epsilon(proven, budget.delta)
    if not epsilon <= budget.epsilon:
      spent = (
        f'It is lower than what is spent already: epsilon {epsilon:.7g} at '
        f'delta={budget.delta:g}. '
      )
    raise LedgerError(
      f'The budget of {self.path} is {self.budget} and cannot become '
      f'{budget}. {spent}Continue with the same epsilon and delta.'
    )

  def _store(
    self,
    path: PathLike,
    records: Sequence[dict[str, Any]],
    before: Callable[[], None],
  ) -> None:
    records = [{'time': _now(), **record} for record in records]
    self._file = file_lib.LedgerFile.create(path, self._header, records, before)

  def _write(self, record: dict[str, Any]) -> None:
    """On disk first, then in memory; nothing that is not valid."""
    self._check_process()
    self._check_chargeable()
    change = self._state.prepare(record)
    # Before the change: an interrupt must leave no answer that is too low. A
    # new dict: `epsilon` may still be computing an answer for the old one.
    self._answers = {}
    if self._file is None:
      change()
    else:
      self._file.append({**record, 'time': _now()}, change)
    observer = _observer.current()
    if observer is not None:
      observer.charged(self, record)


class Reservation:
  """A number of runs for which the budget was checked once.

  Made by `PrivacyLedger.reserve`. `ensure` does no accounting and takes the
  same time however many runs there were.

  >>> from tfdpflows.accounting import PrivacyLedger
  >>> ledger = PrivacyLedger()
  >>> steps = ledger.reserve(
  ...     dp_accounting.GaussianDpEvent(20.0), count=100, label='training')
  >>> steps.ensure(1, block=30)  # before the first step
  >>> steps.charged
  30
  >>> steps.release()  # training ended early
  >>> ledger.entries[0].count, ledger.entries[0].reserved
  (30, 30)
  """

  def __init__(self, ledger: PrivacyLedger, entry: entries_lib.Entry):
    self._ledger = ledger
    self._entry = entry

  @property
  def label(self) -> str:
    """Its label."""
    return self._entry.label

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The `DpEvent` of one run."""
    return self._entry.event

  @property
  def count(self) -> int:
    """How many runs may be charged in all."""
    return self._entry.limit

  @property
  def charged(self) -> int:
    """How many runs are charged; with a file, by this or an earlier process."""
    return self._entry.charged

  @property
  def _facts(self) -> dict[str, Any]:
    """What is known of the use of its random numbers, see `randomness_id`."""
    return entries_lib.facts_of(self._entry.randomness_id)

  @property
  def _nonce(self) -> int:
    """For random numbers of this reservation alone; 0 if it has none."""
    return self._entry.nonce

  @property
  def released(self) -> bool:
    """Whether the rest was released."""
    return self._entry.released

  def ensure(self, total: int, block: int = 1) -> None:
    """Charges runs that are about to happen, if they are not charged yet.

    Args:
      total: how many runs there will have been, counted from the first.
      block: runs are charged in multiples of it. A larger block writes to the
        disk less often; after a crash, up to one block more is charged than was
        run, never less.

    Raises:
      BudgetExceededError: if `total` is above `count`; nothing is charged.
      LedgerError: if it cannot be written, or if the rest was released.
      ValueError: if a number is outside its range.
    """
    whole = 0 <= total <= MAX_RUNS and total % 1 == 0
    if not (whole and block >= 1 and block % 1 == 0):
      shown = [
        'more' if x > MAX_RUNS else reprlib.repr(x) for x in (total, block)
      ]
      raise ValueError(
        'total must be an integer, zero or more and at most 10^15, and '
        f'block one above zero, not {shown[0]} and {shown[1]}.'
      )
    # What was charged before a fork is run once, and by one of the two.
    self._ledger._check_process()
    entry = self._entry
    if total <= entry.charged:
      return
    with self._ledger._lock:
      if total <= entry.charged:
        return
      if total > entry.limit:
        raise self._refusal(int(total))
      if entry.released:
        raise LedgerError(
          f'The reservation {entry.label!r} was released after {entry.charged} '
          f'of {entry.limit} runs. Reserve again to go on.'
        )
      target = min(-(-int(total) // int(block)) * int(block), entry.limit)
      self._ledger._write(
        {'kind': 'advance', 'label': entry.label, 'total': target}
      )

  def release(self) -> None:
    """Releases what is not charged; does nothing if all is, or twice.

    Raises:
      LedgerError: if it cannot be written.
    """
    with self._ledger._lock:
      entry = self._entry
      if not entry.released and entry.charged < entry.limit:
        self._ledger.release(entry.label)

  def _refusal(self, total: int) -> budget_lib.BudgetExceededError:
    entry, ledger = self._entry, self._ledger
    spent = asked = None
    if ledger.budget is not None:
      committed = ledger.committed_event
      more = [(committed, 1), (entry.public_event, total - entry.limit)]
      spent = ledger._epsilon(committed)
      asked = ledger._epsilon(entries_lib.composed(more))
    message = (
      f'{entry.label!r} asked for run {total}, and {entry.limit} runs were '
      'reserved. Nothing was charged. Stop there, or reserve more runs from '
      'the start.'
    )
    return budget_lib.BudgetExceededError(ledger.budget, spent, asked, message)


def check_ledger(ledger: Any) -> None:
  """Raises a `TypeError` for what is no ledger, such as a path."""
  # Whatever is charged like one will do, a stand-in of a test for instance.
  if not hasattr(ledger, 'neighboring_relation'):
    example = (
      "tfdpflows.PrivacyLedger('ledger.jsonl'), or PrivacyLedger.open of a "
      'file that is there'
    )
    check_type('ledger', ledger, PrivacyLedger, example)


def _record(
  kind: str, label: str, event: dp_accounting.DpEvent, count: int
) -> dict[str, Any]:
  """The record of a charge or a reservation, as it will be read back."""
  whole = isinstance(count, numbers.Real) and not isinstance(count, bool)
  # Compared, not converted: NaN and infinity cannot be, nor be printed what
  # has too many digits.
  if not (whole and 1 <= count <= MAX_RUNS and count % 1 == 0):
    printed = not whole or not count > MAX_RUNS
    raise ValueError(
      f'The count of {label!r} must be an integer above zero and at most '
      f'10^15, not {reprlib.repr(count) if printed else "more"}.'
    )
  check_event(event, runs=int(count))
  record = {
    'kind': kind,
    'label': label,
    'event': events_json.event_to_dict(event),
    'count': int(count),
  }
  return json.loads(json.dumps(record))


def _new_nonce() -> int:
  """Returns a random number above zero that fits into an int64."""
  return (int.from_bytes(os.urandom(8), 'big') >> 2) + 1


def _now() -> str:
  now = datetime.datetime.now(datetime.timezone.utc)
  return now.isoformat(timespec='seconds')
