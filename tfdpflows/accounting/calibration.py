"""What a budget has room for: noise, steps, sampling; and what it has to be.

Everything is priced together with what was spent before, as epsilons do not
add up. An accountant whose guarantee is 'asymptotic' calibrates only where its
name is given, and what comes out of it may then cost more than the budget.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Optional

import dp_accounting

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import registry, root_finding

__all__ = [
  'calibrate_epsilon',
  'calibrate_noise_multiplier',
  'calibrate_sampling_probability',
  'calibrate_steps',
  'epsilon_after',
]

_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_LARGEST_NOISE = 1e7
_SMALLEST_NOISE = 1e-3
_SMALLEST_PROBABILITY = 1e-12
_SMALLEST_EPSILON = 1e-9
# Of all prices of a search together, in seconds.
_TIME_LIMIT = 20.0
# Searches stay this far, relatively, below a budget, and an epsilon that is to
# be a budget is put twice as far above: another machine's last digit cannot
# pass it.
_HAIR = 1e-9


class _Search:
  """Prices of pipelines, and the last point of a range that a budget allows."""

  def __init__(
    self, budget, spent, accountant, neighboring_relation, time_limit
  ):
    if not float(time_limit) >= 0:
      raise ValueError(
        f'time_limit must be zero or more seconds, not {time_limit}.'
      )
    # Of this thread's own work: another process that keeps the machine busy
    # does not change a result.
    self._end = time.thread_time() + float(time_limit)
    self._time_limit = float(time_limit)
    self._budget = budget
    self._spent = [] if spent is None else [spent]
    self._accountant = accountant
    self._relation = neighboring_relation
    self._before = 0.0
    if not self._spent:
      return
    self._before = self._price([])
    if not self._before < budget.epsilon:
      raise budget_lib.BudgetExceededError(
        budget,
        self._before,
        self._before,
        message=(
          f'What is paid besides costs epsilon {self._before:.7g} at '
          f'delta={budget.delta:g}, and the whole budget is '
          f'{budget.epsilon:.7g}. Nothing is left: add noise there, or start '
          'with a larger budget.'
        ),
      )

  def _price(self, events) -> float:
    return _epsilon(
      [*self._spent, *events],
      self._budget.delta,
      self._accountant,
      self._relation,
    )

  def last(self, make_event, cheap, dear, refusal: str, **kwargs):
    """`root_finding.last_affordable`, or an error beginning with `refusal`."""
    price = lambda value: self._price([make_event(value)])
    late = False

    def is_over():
      nonlocal late
      late = time.thread_time() >= self._end
      return late

    found = root_finding.last_affordable(
      price,
      self._budget.epsilon * (1 - _HAIR),
      cheap,
      dear,
      is_over=is_over,
      **kwargs,
    )
    if late:
      warnings.warn(
        f'The search ended after {self._time_limit:g} s, at {found:.7g}: that '
        'is within the budget, and may not be the best that is. Raise '
        'time_limit to search on.',
        RuntimeWarning,
        stacklevel=3,
      )
    if found is not None:
      return found
    asked = price(cheap)
    raise budget_lib.BudgetExceededError(
      self._budget,
      self._before,
      asked,
      message=(
        f'{refusal}: it would bring epsilon from {self._before:.7g}, for what '
        f'is paid besides, to {asked:.7g} at delta={self._budget.delta:g}, '
        f'and the budget is {self._budget.epsilon:.7g}. Start with a larger '
        'budget, or ask for less.'
      ),
    )


def _epsilon(events, delta, accountant, relation) -> float:
  event = events_lib.data_independent(dp_accounting.ComposedDpEvent(events))
  return registry.compute_epsilon(event, delta, accountant, relation)


def _check_tolerance(tolerance: float) -> None:
  if not 0 < tolerance < 1:
    raise ValueError(f'tolerance must lie inside (0, 1), not {tolerance}.')


def calibrate_noise_multiplier(
  make_event: Callable[[float], dp_accounting.DpEvent],
  budget: budget_lib.PrivacyBudget,
  spent: Optional[dp_accounting.DpEvent] = None,
  accountant: str = 'pld',
  tolerance: float = 1e-3,
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
  time_limit: float = _TIME_LIMIT,
) -> float:
  """The smallest noise multiplier that keeps a pipeline within a budget.

  Args:
    make_event: The `DpEvent` of all that is still to be done, given the noise
      multiplier (more noise must not cost more).
    budget: What everything together may cost.
    spent: The event of what is or will be paid besides, for example a
      `PrivacyLedger.committed_event`; None for nothing.
    accountant: Name of an accountant.
    tolerance: The result is at most this much, relatively, above the smallest
      one, and its epsilon at most this much below the budget (unless epsilon
      jumps there).
    neighboring_relation: What two neighbouring tables are.
    time_limit: Seconds of work after which the search ends with the best that
      it has found to be within the budget, and a warning, whatever else is
      said here. May be infinite.

  Returns:
    A noise multiplier whose epsilon, by the same accountant, is at most
    `budget.epsilon`; 1e-3 if that is enough.

  Raises:
    BudgetExceededError: If `spent` alone exceeds the budget, or leaves so
      little that no noise multiplier up to 1e7 is enough.
    dp_accounting.UnsupportedEventError: If the accountant does not support an
      event.
    ValueError: If a parameter is outside its range.

  ```python
  >>> sigma = calibrate_noise_multiplier(
  ...     dp_accounting.GaussianDpEvent, budget_lib.PrivacyBudget(1.0, 1e-5))
  >>> round(sigma, 2)  # the exact one is 3.7306...
  3.73

  ```
  """
  _check_tolerance(tolerance)
  return _Search(
    budget, spent, accountant, neighboring_relation, time_limit
  ).last(
    make_event,
    _LARGEST_NOISE,
    _SMALLEST_NOISE,
    f'No noise multiplier up to {_LARGEST_NOISE:g} is enough',
    start=1.0,
    tolerance=tolerance,
  )


def calibrate_steps(
  make_event: Callable[[int], dp_accounting.DpEvent],
  budget: budget_lib.PrivacyBudget,
  spent: Optional[dp_accounting.DpEvent] = None,
  accountant: str = 'pld',
  max_steps: int = 10**9,
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
  time_limit: float = _TIME_LIMIT,
) -> int:
  """The largest number of steps that a budget allows.

  Args:
    make_event: The `DpEvent` of all that is still to be done, given the number
      of steps (more steps must not cost less).
    budget: What everything together may cost.
    spent: The event of what is or will be paid besides, for example a
      `PrivacyLedger.committed_event`; None for nothing.
    accountant: Name of an accountant.
    max_steps: Where to stop looking, 1 or more.
    neighboring_relation: What two neighbouring tables are.
    time_limit: Seconds of work after which the search ends with the best that
      it has found to be within the budget, and a warning, whatever else is
      said here. May be infinite.

  Returns:
    A number of steps whose epsilon, by the same accountant, is at most
    `budget.epsilon`, while that of one step more is not; or `max_steps`, if
    even as many as that fit.

  Raises:
    BudgetExceededError: If `spent` alone exceeds the budget, or leaves so
      little that not even one step fits.
    dp_accounting.UnsupportedEventError: If the accountant does not support an
      event.
    ValueError: If a parameter is outside its range.

  ```python
  >>> step = dp_accounting.GaussianDpEvent(50.0)
  >>> calibrate_steps(
  ...     lambda steps: dp_accounting.SelfComposedDpEvent(step, steps),
  ...     budget_lib.PrivacyBudget(1.0, 1e-5))  # (50 / 3.7306...) ** 2
  179

  ```
  """
  if not 1 <= max_steps < math.inf or max_steps != int(max_steps):
    raise ValueError(
      f'max_steps must be a whole number, 1 or more, not {max_steps}.'
    )
  return _Search(
    budget, spent, accountant, neighboring_relation, time_limit
  ).last(
    make_event,
    1,
    int(max_steps),
    'Not even one step fits',
    start=1,
    whole=True,
  )


def calibrate_sampling_probability(
  make_event: Callable[[float], dp_accounting.DpEvent],
  budget: budget_lib.PrivacyBudget,
  spent: Optional[dp_accounting.DpEvent] = None,
  accountant: str = 'pld',
  tolerance: float = 1e-3,
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
  time_limit: float = _TIME_LIMIT,
) -> float:
  """The largest sampling probability that keeps a pipeline within a budget.

  Args:
    make_event: The `DpEvent` of all that is still to be done, given the
      probability with which a batch takes a row (a larger one must not cost
      less).
    budget: What everything together may cost.
    spent: The event of what is or will be paid besides, for example a
      `PrivacyLedger.committed_event`; None for nothing.
    accountant: Name of an accountant.
    tolerance: The result is at most this much, relatively, below the largest
      one, and its epsilon at most this much below the budget (unless epsilon
      jumps there).
    neighboring_relation: What two neighbouring tables are.
    time_limit: Seconds of work after which the search ends with the best that
      it has found to be within the budget, and a warning, whatever else is
      said here. May be infinite.

  Returns:
    A probability whose epsilon, by the same accountant, is at most
    `budget.epsilon`; 1.0 if that fits.

  Raises:
    BudgetExceededError: If `spent` alone exceeds the budget, or leaves so
      little that not even a probability of 1e-12 fits.
    dp_accounting.UnsupportedEventError: If the accountant does not support an
      event.
    ValueError: If a parameter is outside its range.

  ```python
  >>> step = dp_accounting.GaussianDpEvent(1.0)
  >>> q = calibrate_sampling_probability(
  ...     lambda q: dp_accounting.SelfComposedDpEvent(
  ...         dp_accounting.PoissonSampledDpEvent(q, step), 1000),
  ...     budget_lib.PrivacyBudget(1.8283, 1e-5))
  >>> round(q, 4)
  0.01

  ```
  """
  _check_tolerance(tolerance)
  return _Search(
    budget, spent, accountant, neighboring_relation, time_limit
  ).last(
    make_event,
    _SMALLEST_PROBABILITY,
    1.0,
    f'Not even a sampling probability of {_SMALLEST_PROBABILITY:g} fits',
    start=1.0,
    tolerance=tolerance,
  )


def calibrate_epsilon(
  event: dp_accounting.DpEvent,
  delta: float,
  spent: Optional[dp_accounting.DpEvent] = None,
  accountant: str = 'pld',
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
) -> float:
  """The smallest epsilon of a budget that a pipeline fits into.

  Args:
    event: All that is still to be done.
    delta: Inside (0, 1).
    spent: The event of what is or will be paid besides, for example a
      `PrivacyLedger.committed_event`; None for nothing.
    accountant: Name of an accountant.
    neighboring_relation: What two neighbouring tables are.

  Returns:
    Epsilon in nats, two parts in 10^9 above what the accountant says, so that
    a ledger with that budget admits all of it. At least 1e-9, as no budget is
    zero.

  Raises:
    dp_accounting.UnsupportedEventError: If the accountant does not support an
      event.
    ValueError: If a parameter is outside its range, or no finite epsilon is
      known.

  ```python
  >>> event = dp_accounting.GaussianDpEvent(1.0)
  >>> budget = budget_lib.PrivacyBudget(calibrate_epsilon(event, 1e-5), 1e-5)
  >>> round(budget.epsilon, 4)
  4.3772

  ```
  """
  delta = budget_lib.check_delta(delta)
  events = [event] if spent is None else [spent, event]
  epsilon = _epsilon(events, delta, accountant, neighboring_relation)
  if not epsilon < math.inf:
    raise ValueError(
      f'No finite epsilon is known at delta={delta:g}: something has no noise, '
      'or may fail with a probability above delta. Add noise, or take a larger '
      'delta.'
    )
  return max(epsilon * (1 + 2 * _HAIR), _SMALLEST_EPSILON)


def epsilon_after(
  event: dp_accounting.DpEvent,
  counts: Sequence[int],
  delta: float,
  spent: Optional[dp_accounting.DpEvent] = None,
  accountant: str = 'pld',
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
) -> list[float]:
  """Epsilon after numbers of runs, as a curve or a progress bar shows it.

  Args:
    event: One run.
    counts: Numbers of runs, zero or more, in any order.
    delta: Inside (0, 1).
    spent: The event of what was paid before; None for nothing.
    accountant: Name of an accountant.
    neighboring_relation: What two neighbouring tables are.

  Returns:
    Epsilon in nats for each count.

  Raises:
    dp_accounting.UnsupportedEventError: If the accountant does not support an
      event.
    ValueError: If a parameter is outside its range.

  ```python
  >>> step = dp_accounting.GaussianDpEvent(10.0)
  >>> [round(x, 3) for x in epsilon_after(step, [0, 1, 4], delta=1e-5)]
  [0.0, 0.341, 0.726]

  ```
  """
  before = [] if spent is None else [spent]
  return [
    _epsilon(
      [*before, dp_accounting.SelfComposedDpEvent(event, int(count))],
      delta,
      accountant,
      neighboring_relation,
    )
    for count in counts
  ]
