"""Runs that are paid for in advance, block by block."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING

import dp_accounting

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import ledger_file
from tfdpflows.accounting.event_bounds import MAX_RUNS

if TYPE_CHECKING:
  from tfdpflows.accounting import ledger as ledger_lib

__all__ = ['Reservation']


class Reservation:
  """A number of runs for which the budget was checked once.

  Made by `PrivacyLedger.reserve`. Charging from it does no accounting and takes
  the same time however many runs there were.

  ```python
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

  ```
  """

  def __init__(self, ledger: ledger_lib.PrivacyLedger, entry):
    self._ledger = ledger
    self._entry = entry

  @property
  def label(self) -> str:
    """What it is for."""
    return self._entry.label

  @property
  def event(self) -> dp_accounting.DpEvent:
    """What one run costs."""
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
  def released(self) -> bool:
    """Whether the rest was given up."""
    return self._entry.released

  def ensure(self, total: int, block: int = 1) -> None:
    """Makes sure that a number of runs is charged, ahead of them.

    Args:
      total: How many runs there will have been, counted from the first.
      block: A larger block writes to the disk less often; after a crash, up to
        one block more is charged than was run, never less.

    Raises:
      BudgetExceededError: If `total` is above `count`; nothing is charged.
      LedgerError: If it cannot be written, or if the rest was released.
      ValueError: If a number is outside its range.
    """
    whole = 0 <= total <= MAX_RUNS and total % 1 == 0
    if not (whole and block >= 1 and block % 1 == 0):
      shown = [
        'more' if x > MAX_RUNS else reprlib.repr(x) for x in (total, block)
      ]
      raise ValueError(
        'total must be a whole number, zero or more and at most 10^15, and '
        f'block one above zero, not {shown[0]} and {shown[1]}.'
      )
    # What was charged before a fork is run once, and by one of the two.
    self._ledger.check_process()
    entry = self._entry
    if total <= entry.charged:
      return
    with self._ledger._lock:
      if total <= entry.charged:
        return
      if total > entry.limit:
        raise self._refusal(int(total))
      if entry.released:
        raise ledger_file.LedgerError(
          f'The reservation {entry.label!r} was released after {entry.charged} '
          f'of {entry.limit} runs. Reserve again to go on.'
        )
      target = min(-(-int(total) // int(block)) * int(block), entry.limit)
      self._ledger._write(
        {'kind': 'advance', 'label': entry.label, 'total': target}
      )

  def release(self) -> None:
    """Gives up what is not charged; does nothing if all is, or twice.

    Raises:
      LedgerError: If it cannot be written.
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
      more = dp_accounting.SelfComposedDpEvent(entry.claim, total - entry.limit)
      spent = ledger._epsilon(committed)
      asked = ledger._epsilon(dp_accounting.ComposedDpEvent([committed, more]))
    return budget_lib.BudgetExceededError(
      ledger.budget,
      spent,
      asked,
      message=(
        f'{entry.label!r} asked for run {total}, and {entry.limit} runs were '
        'reserved. Nothing was charged. Stop there, or reserve more runs from '
        'the start.'
      ),
    )
