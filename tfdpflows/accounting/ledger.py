"""The ledger: what was spent on one table, known before it is spent."""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
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
  registry,
)
from tfdpflows.accounting.reservation import Reservation
from tfdpflows.version import __version__

__all__ = ['LedgerEntry', 'PrivacyLedger']

LedgerError = ledger_file.LedgerError
_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
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
  number of runs may not, as numerical composition assumes these fixed.

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
    self._set_up(json.loads(json.dumps(header, allow_nan=False)))
    if path is not None:
      self._file = ledger_file.LedgerFile.create(path, header)

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
      budget: If given, must equal the budget in the file.
      read_only: Whether to open it without a lock and refuse to charge, for
        reading what was spent while somebody else writes.

    Returns:
      The ledger.

    Raises:
      LedgerError: If the file is missing, in use, of another format version, or
        damaged; names the line and the cause.
    """
    file = ledger_file.LedgerFile.open(path, read_only)
    try:
      ledger = cls.__new__(cls)
      for number, record in enumerate(file.records, 1):
        try:
          if number == 1:
            ledger._set_up(record)
          else:
            ledger._state.apply(record)
        except (KeyError, TypeError, ValueError) as error:
          raise LedgerError(
            f'{file.path}, line {number}: not a valid record ({error}).'
          ) from error
      if budget is not None and budget != ledger.budget:
        raise LedgerError(
          f'The budget of {file.path} is {ledger.budget} and cannot become '
          f'{budget}. Continue with the same epsilon and delta.'
        )
    except BaseException:
      file.close()
      raise
    file.records.clear()
    for note in file.notes:
      _logger.warning('%s', note)
    ledger._file = file
    ledger._from_before = list(ledger._state.entries)
    return ledger

  def _set_up(self, header: dict[str, Any]) -> None:
    budget = header['budget']
    self.budget = None if budget is None else budget_lib.PrivacyBudget(**budget)
    self.accountant = registry.resolve_name(header['accountant'])
    self.neighboring_relation = dp_accounting.NeighboringRelation[
      header['neighboring_relation']
    ]
    if self.neighboring_relation not in flatten.RELATIONS:
      raise ValueError(
        f'The neighbouring relation {self.neighboring_relation.name} is not '
        'supported; use ADD_OR_REMOVE_ONE or REPLACE_ONE.'
      )
    self.metadata = dict(header['metadata'])
    self._header = header
    self._file: Optional[ledger_file.LedgerFile] = None
    self._state = ledger_state.LedgerState()
    self._from_before: list[ledger_state.Entry] = []
    self._lock = threading.RLock()

  def charge(
    self,
    event: dp_accounting.DpEvent,
    count: int = 1,
    label: Optional[str] = None,
    resume: bool = False,
  ) -> bool:
    """Charges a mechanism that is about to run.

    Args:
      event: What one run costs.
      count: How many runs.
      label: What it is for; the event in words if None.
      resume: Whether a charge with this label that an earlier process wrote to
        the same file counts as this one. That is sound where the interrupted
        run published nothing, or where this one repeats it with the same random
        numbers.

    Returns:
      True if it was charged now, False if it had been charged before.

    Raises:
      BudgetExceededError: If it would pass the budget; nothing is written.
      dp_accounting.UnsupportedEventError: If the accountant does not support
        the event; nothing is written.
      LedgerError: If it cannot be written, or if `resume` finds another event
        or count under the label.
      ValueError: If a parameter is outside its range.
    """
    label = events_lib.describe_event(event) if label is None else str(label)
    record = self._record('charge', label, event, count)
    with self._lock:
      if resume and self._claim('charge', record) is not None:
        return False
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
    owner: str = '',
  ) -> Reservation:
    """Checks the budget for many runs at once, to be charged as they happen.

    Args:
      event: What one run costs.
      count: How many runs at most.
      label: What it is for; unique in the ledger.
      resume: Whether to go on with the reservation that an earlier process made
        under this label in the same file, with what it has charged. That is
        sound only where its runs are repeated with the same random numbers.
      owner: Names the random numbers, without giving them away. What was
        reserved for one owner is not resumed by another.

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
    label = str(label)
    record = {**self._record('reserve', label, event, count), 'owner': owner}
    with self._lock:
      entry = self._claim('reserve', record) if resume else None
      if entry is not None and entry.owner != owner:
        raise LedgerError(
          f'What {label!r} has charged was for other random numbers: with new '
          'ones its runs are new and have to be paid. Resume with the secret '
          'that it was begun with, or reserve under another label.'
        )
      if entry is None:
        if any(entry.label == label for entry in self._state.entries):
          raise LedgerError(
            f'The label {label!r} is taken in this ledger; a reservation needs '
            'one of its own.'
          )
        self._check_budget(event, record['count'], label)
        self._write(record)
      elif entry.released and entry.charged < entry.limit:
        self._check_budget(event, entry.limit - entry.charged, label)
        self._write(record)
      return Reservation(self, self._state.reserved[label])

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
      return self._state.charged_event

  @property
  def committed_event(self) -> dp_accounting.ComposedDpEvent:
    """All that is charged or reserved, as one event."""
    with self._lock:
      return self._state.committed_event

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
  def notes(self) -> tuple[str, ...]:
    """What was repaired when the file was opened, in words."""
    return () if self._file is None else self._file.notes

  @property
  def path(self) -> Optional[str]:
    """Where the file is; None for a ledger in memory."""
    return None if self._file is None else self._file.path

  def epsilon(
    self, delta: Optional[float] = None, accountant: Optional[str] = None
  ) -> float:
    """Epsilon of all that is charged.

    Args:
      delta: Inside (0, 1); that of the budget if None.
      accountant: Name of an accountant; that of the ledger if None.

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
    return self._epsilon(self.event, delta, accountant)

  def close(self) -> None:
    """Unlocks the file; nothing can be charged afterwards."""
    if self._file is not None:
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
    if isinstance(count, bool) or int(count) != count or count < 1:
      raise ValueError(
        f'The count of {label!r} must be a whole number above zero, not '
        f'{count!r}.'
      )
    return {
      'kind': kind,
      'label': label,
      'event': events_json.event_to_dict(event),
      'count': int(count),
    }

  def _claim(
    self, kind: str, record: dict[str, Any]
  ) -> Optional[ledger_state.Entry]:
    """An entry of an earlier process that this one continues, once."""
    key = ledger_state.event_key(record['event'])
    same = [x for x in self._from_before if x.label == record['label']]
    for entry in same:
      if (entry.kind, entry.key, entry.limit) == (kind, key, record['count']):
        self._from_before.remove(entry)
        return entry
    if same:
      raise LedgerError(
        f'The label {record["label"]!r} was used before for {same[0].limit} x '
        f'({events_lib.describe_event(same[0].event)}), not for this. Resume '
        'with the same parameters, or start anew.'
      )
    return None

  def _check_budget(self, event, count: int, label: str) -> None:
    more = ledger_state.composed([(event, count)])
    if self.budget is None:
      registry.compose_event(more, self.accountant, self.neighboring_relation)
      return
    before = self.committed_event
    asked = self._epsilon(ledger_state.composed([(before, 1), (more, 1)]))
    if not asked <= self.budget.epsilon:
      raise budget_lib.BudgetExceededError(
        self.budget, self._epsilon(before), asked, what=repr(label)
      )

  def _write(self, record: dict[str, Any]) -> None:
    """On disk first, then in memory."""
    if self._file is not None:
      self._file.append({**record, 'time': _now()})
    self._state.apply(record)


def _now() -> str:
  now = datetime.datetime.now(datetime.timezone.utc)
  return now.isoformat(timespec='seconds')
