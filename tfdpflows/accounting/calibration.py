"""What a budget has room for: noise, steps, sampling; and what it has to be.

Everything is accounted together with what was spent before, as epsilons do not
add up. An accountant whose guarantee is 'asymptotic' calibrates only where its
name is given, and what comes out of it may then cost more than the budget.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

import dp_accounting

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import registry

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
# Of a whole search, in seconds.
_TIME_LIMIT = 20.0
# Searches stay this far, relatively, below a budget, and an epsilon that is to
# be a budget is put twice as far above: another machine's last digit cannot
# pass it.
_MARGIN = 1e-9
# Epsilons further from the target than exp(50) say no more than that.
_FAR = 50.0
# Points this close, relatively, are one point.
_SAME = 1e-9


class _Search:
  """Epsilons of pipelines, and the last point of a range within a budget."""

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
    self._before = self._epsilon_of([])
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

  def _epsilon_of(self, events) -> float:
    return _epsilon(
      [*self._spent, *events],
      self._budget.delta,
      self._accountant,
      self._relation,
    )

  def last(self, make_event, first, last, refusal: str, **kwargs):
    """`last_affordable`, or an error beginning with `refusal`."""
    epsilon_of = lambda value: self._epsilon_of([make_event(value)])
    late = False

    def is_over():
      nonlocal late
      late = time.thread_time() >= self._end
      return late

    found = last_affordable(
      epsilon_of,
      self._budget.epsilon * (1 - _MARGIN),
      first,
      last,
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
    asked = epsilon_of(first)
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
  *,
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
  >>> budget = budget_lib.PrivacyBudget(epsilon=1.0, delta=1e-5)
  >>> sigma = calibrate_noise_multiplier(dp_accounting.GaussianDpEvent, budget)
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
  *,
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
  >>> budget = budget_lib.PrivacyBudget(epsilon=1.0, delta=1e-5)
  >>> step = dp_accounting.GaussianDpEvent(50.0)
  >>> calibrate_steps(  # (50 / 3.7306...) ** 2
  ...     lambda n: dp_accounting.SelfComposedDpEvent(step, n), budget)
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
  *,
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
  ...     budget_lib.PrivacyBudget(epsilon=1.8283, delta=1e-5))
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
  *,
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
  >>> round(calibrate_epsilon(event, 1e-5), 4)
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
  return max(epsilon * (1 + 2 * _MARGIN), _SMALLEST_EPSILON)


def epsilon_after(
  event: dp_accounting.DpEvent,
  counts: Sequence[int],
  *,
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


class _Point(NamedTuple):
  place: float  # log(value / first), without its sign
  value: float
  excess: float  # log(epsilon / target), within [-_FAR, _FAR]
  fits: bool


def last_affordable(
  epsilon_of: Callable[[float], float],
  target: float,
  first: float,
  last: float,
  start: float,
  tolerance: float = 1e-3,
  whole: bool = False,
  is_over: Callable[[], bool] = lambda: False,
) -> Optional[float]:
  """Goes from one end of a range towards the other as far as a target allows.

  Args:
    epsilon_of: Epsilon of a point. It should not fall on the way from `first`
      to `last`; where it does, the result is still a point whose epsilon was
      seen to be at most the target. NaN counts as too much.
    target: What epsilon may be; above 0.
    first: One end of the range, above 0.
    last: The other end, above 0; larger or smaller.
    start: Where to look first, within the range.
    tolerance: The result is at most this much, relatively, before the first
      point above the target, and its epsilon at most this much below it (unless
      epsilon jumps there).
    whole: Whether only whole numbers are points, and `first < last`; then the
      number after the result is above the target, whatever the tolerance.
    is_over: Called before each epsilon is computed; once it is true, the search
      ends with the best point that it has, whatever the tolerance, if it has
      one.

  Returns:
    The point; `last` itself if it is within the target; None if no point was.

  ```python
  >>> 2.998 < last_affordable(lambda x: x * x, 9.0, 1e-3, 1e3, start=1.0) <= 3
  True
  >>> last_affordable(lambda x: x * x, 9.5, 1, 10**9, start=1, whole=True)
  3

  ```
  """
  origin = math.log(first)
  length = abs(math.log(last) - origin)
  sign = 1 if last > first else -1

  def point_of(value: float, place: float) -> _Point:
    epsilon = epsilon_of(value)
    fits = bool(epsilon <= target)
    excess = -_FAR if fits else _FAR
    if 0 < epsilon < math.inf:
      excess = math.log(epsilon) - math.log(target)
    return _Point(place, value, min(max(excess, -_FAR), _FAR), fits)

  def at(place: float, good=None, bad=None) -> _Point:
    """The point at a place, between others where there are any."""
    if place >= length:
      return point_of(last, length)
    if place <= 0:
      return point_of(first, 0.0)
    if not whole:
      return point_of(math.exp(origin + sign * place), place)
    value = round(math.exp(origin + place))
    value = max(value, first if good is None else good.value + 1)
    value = min(value, last if bad is None else bad.value - 1)
    return point_of(value, math.log(value) - origin)

  # Outwards from the start in growing strides, until two points enclose the
  # last one within the target.
  good = bad = None
  point, reach = at(abs(math.log(start) - origin)), math.log(8)
  while True:
    if point.fits:
      good = point
      if point.value == last:
        return last
    else:
      bad = point
      if point.value == first:
        return None
    if good is not None and bad is not None:
      break
    if good is not None and is_over():
      return good.value
    # Epsilons mostly grow like the point or its square root.
    stride = min(max(1.5 * abs(point.excess), 0.2), reach)
    reach *= 2
    point = at(point.place + (stride if point.fits else -stride), good, bad)

  # The rule of false position (Illinois) on logs; bisection where a jump or a
  # bend makes that slow.
  weights, before = {True: 1.0, False: 1.0}, None
  for turn in range(200):
    width = bad.place - good.place
    near = good.excess >= math.log1p(-tolerance)
    if whole and bad.value - good.value <= 1:
      break
    if not whole and width <= (math.log1p(tolerance) if near else _SAME):
      break
    if is_over():
      break
    below, above = -good.excess * weights[True], bad.excess * weights[False]
    share = below / (below + above) if below + above > 0 else 0.5
    if turn >= 6:
      share = 0.5
    elif not whole:
      # First to one side of the estimate, then to the other: two points this
      # far apart end the search.
      slope = max((bad.excess - good.excess) / width, 1.0)
      aside = tolerance / 3 / slope / width
      share += aside if near else -aside
      share = min(max(share, min(aside, 0.25)), 1 - min(aside, 0.25))
    point = at(good.place + share * width, good, bad)
    weights[not point.fits] *= 0.5 if point.fits == before else 1.0
    weights[point.fits], before = 1.0, point.fits
    good, bad = (point, bad) if point.fits else (good, point)
  return good.value
