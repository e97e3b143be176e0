"""Calibration: the least noise, or the most steps, within a budget.

Everything is composed with what was spent before, as epsilons do not add up.
An accountant whose guarantee is 'asymptotic' calibrates only where its name is
given, and the true epsilon may then exceed the budget.
"""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

import dp_accounting

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import registry
from tfdpflows.accounting.ledger import PrivacyLedger

_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_LARGEST_NOISE = 1e7
_SMALLEST_NOISE = 1e-3
_SMALLEST_PROBABILITY = 1e-12
_SMALLEST_EPSILON = 1e-9
# Of a whole search, in seconds.
_TIME_LIMIT = 20.0
# Searches stay this far, relatively, below a budget, and `calibrate_epsilon`
# twice as far above: another machine's last digit cannot exceed the budget.
_MARGIN = 1e-9
# Logarithms of epsilon over the target are cut off here.
_FAR = 50.0
# How far, relatively, results may be from the best.
_TOLERANCE = 1e-3
# How far, relatively, results of two machines may be apart.
_DIGITS = 1e-6
# Points this close, relatively, are one point.
_SAME = 1e-9


def calibrate_noise_multiplier(
  make_event: Callable[[float], dp_accounting.DpEvent],
  budget: budget_lib.PrivacyBudget,
  *,
  spent: Optional[dp_accounting.DpEvent] = None,
  accountant: str = 'pld',
  tolerance: float = _TOLERANCE,
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
  time_limit: float = _TIME_LIMIT,
) -> float:
  """Returns the smallest noise multiplier within a budget.

  Args:
    make_event: the `DpEvent` of all that is still to be done, given the noise
      multiplier (more noise must not cost more).
    budget: the `PrivacyBudget` of everything together.
    spent: the event of what is charged separately, before or after, for example
      a `PrivacyLedger.committed_event`; None for nothing.
    accountant: name of an accountant.
    tolerance: the result is at most this much, relatively, above the smallest
      one, and its epsilon at most this much below the budget (unless epsilon
      jumps there).
    neighboring_relation: what two neighbouring tables are.
    time_limit: seconds of processor time after which the search ends with a
      warning and the best value found to be within the budget, whatever the
      tolerance. May be infinite.

  Returns:
    A noise multiplier whose epsilon, by the same accountant, is at most
    `budget.epsilon`; 1e-3 if that is enough.

  Raises:
    BudgetExceededError: if `spent` alone exceeds the budget, or no noise
      multiplier up to 1e7 is enough.
    dp_accounting.UnsupportedEventError: if the accountant does not support an
      event.
    ValueError: if a parameter is outside its range.

  #### Example

  >>> budget = budget_lib.PrivacyBudget(epsilon=1.0, delta=1e-5)
  >>> sigma = calibrate_noise_multiplier(dp_accounting.GaussianDpEvent, budget)
  >>> round(sigma, 2)  # the exact one is 3.7306...
  3.73
  """
  ends = _LARGEST_NOISE, _SMALLEST_NOISE
  refusal = f'No noise multiplier up to {_LARGEST_NOISE:g} is enough'
  settings = spent, accountant, neighboring_relation, time_limit
  return _search(make_event, budget, ends, refusal, settings, tolerance)


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
  """Returns the largest number of steps within a budget.

  Args:
    make_event: the `DpEvent` of all that is still to be done, given the number
      of steps (more steps must not cost less).
    budget, spent, accountant, neighboring_relation, time_limit: as for
      `calibrate_noise_multiplier`.
    max_steps: where the search ends.

  Returns:
    A number of steps whose epsilon, by the same accountant, is at most
    `budget.epsilon`, while that of one step more is not; or `max_steps`.

  Raises:
    BudgetExceededError: if `spent` alone, or with one step, exceeds the budget.
    dp_accounting.UnsupportedEventError: if the accountant does not support an
      event.
    ValueError: if a parameter is outside its range.

  #### Example

  >>> budget = budget_lib.PrivacyBudget(epsilon=1.0, delta=1e-5)
  >>> step = dp_accounting.GaussianDpEvent(50.0)
  >>> calibrate_steps(  # (50 / 3.7306...) ** 2
  ...     lambda n: dp_accounting.SelfComposedDpEvent(step, n), budget)
  179
  """
  if not 1 <= max_steps < math.inf or max_steps != int(max_steps):
    raise ValueError(
      f'max_steps must be an integer, 1 or more, not {max_steps}.'
    )
  ends, refusal = (1, int(max_steps)), 'Not even one step fits'
  settings = spent, accountant, neighboring_relation, time_limit
  return _search(make_event, budget, ends, refusal, settings, whole=True)


def calibrate_sampling_probability(
  make_event: Callable[[float], dp_accounting.DpEvent],
  budget: budget_lib.PrivacyBudget,
  *,
  spent: Optional[dp_accounting.DpEvent] = None,
  accountant: str = 'pld',
  tolerance: float = _TOLERANCE,
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
  time_limit: float = _TIME_LIMIT,
) -> float:
  """Returns the largest sampling probability within a budget.

  Args:
    make_event: the `DpEvent` of all that is still to be done, given the
      probability with which a batch takes a row (a larger one must not cost
      less).
    budget, spent, accountant, neighboring_relation, time_limit: as for
      `calibrate_noise_multiplier`.
    tolerance: the same, below the largest probability.

  Returns:
    A probability whose epsilon, by the same accountant, is at most
    `budget.epsilon`; 1.0 if that fits.

  Raises:
    BudgetExceededError: if `spent` alone, or with a probability of 1e-12,
      exceeds the budget.
    dp_accounting.UnsupportedEventError: if the accountant does not support an
      event.
    ValueError: if a parameter is outside its range.

  #### Example

  >>> budget = budget_lib.PrivacyBudget(epsilon=1.8283, delta=1e-5)
  >>> step = dp_accounting.GaussianDpEvent(1.0)
  >>> q = calibrate_sampling_probability(
  ...     lambda q: dp_accounting.SelfComposedDpEvent(
  ...         dp_accounting.PoissonSampledDpEvent(q, step), 1000), budget)
  >>> round(q, 4)
  0.01
  """
  least = _SMALLEST_PROBABILITY
  refusal = f'Not even a sampling probability of {least:g} fits'
  settings = spent, accountant, neighboring_relation, time_limit
  return _search(make_event, budget, (least, 1.0), refusal, settings, tolerance)


def calibrate_epsilon(
  event: dp_accounting.DpEvent,
  delta: float,
  *,
  spent: Optional[dp_accounting.DpEvent] = None,
  accountant: str = 'pld',
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
) -> float:
  """Returns the smallest epsilon of a budget that admits an event.

  It is two parts in 10^9 above that of the accountant, so that a ledger with
  that budget admits all of it, and at least 1e-9, as no budget is zero.
  Arguments are those of `calibrate_noise_multiplier`, `event` being all that is
  still to be done.

  Raises:
    dp_accounting.UnsupportedEventError: if the accountant does not support an
      event.
    ValueError: if a parameter is outside its range, or no finite epsilon is
      known.

  >>> round(calibrate_epsilon(dp_accounting.GaussianDpEvent(1.0), 1e-5), 4)
  4.3772
  """
  delta = budget_lib.check_delta(delta)
  epsilon = _epsilon([event], spent, delta, accountant, neighboring_relation)
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
  """Returns epsilon after numbers of runs, for a curve or a progress bar.

  Arguments are those of `calibrate_epsilon`, but that the event is one run and
  the counts are in any order.

  >>> step = dp_accounting.GaussianDpEvent(10.0)
  >>> [round(x, 3) for x in epsilon_after(step, [0, 1, 4], delta=1e-5)]
  [0.0, 0.341, 0.726]
  """
  runs = [dp_accounting.SelfComposedDpEvent(event, int(n)) for n in counts]
  return [
    _epsilon([run], spent, delta, accountant, neighboring_relation)
    for run in runs
  ]


def _epsilon(events, spent, delta, accountant, relation) -> float:
  events = events if spent is None else [spent, *events]
  event = events_lib.data_independent(dp_accounting.ComposedDpEvent(events))
  return registry.compute_epsilon(event, delta, accountant, relation)


def _search(
  make_event, budget, ends, refusal, settings, tolerance=_TOLERANCE, whole=False
):
  """`last_within` a budget, or an error that begins with `refusal`."""
  spent, accountant, relation, time_limit = settings
  budget_lib.check_budget(budget)
  if not 0 < tolerance < 1:
    raise ValueError(f'tolerance must lie inside (0, 1), not {tolerance}.')
  time_limit = budget_lib.check_time_limit(time_limit)
  # Of this thread's own work: another process that keeps the machine busy does
  # not change a result.
  end, late = time.thread_time() + time_limit, False
  at_budget = (
    f'at delta={budget.delta:g}, and the budget is {budget.epsilon:.7g}'
  )

  def epsilon_of(*values):
    events = [make_event(value) for value in values]
    return _epsilon(events, spent, budget.delta, accountant, relation)

  def is_over():
    nonlocal late
    late = time.thread_time() >= end
    return late

  before = 0.0 if spent is None else epsilon_of()
  if not before < budget.epsilon:
    message = (
      f'What is charged separately has epsilon {before:.7g} {at_budget}. '
      'Nothing is left: add noise there, or start with a larger budget.'
    )
    raise budget_lib.BudgetExceededError(budget, before, before, message)
  target = budget.epsilon * (1 - _MARGIN)
  found = last_within(epsilon_of, target, *ends, 1, tolerance, whole, is_over)
  if late:
    warnings.warn(
      f'The search ended after {time_limit:g} s, at {found:.7g}, which is '
      'within the budget and may not be the best value. Raise time_limit to '
      'search on.',
      RuntimeWarning,
      stacklevel=3,
    )
  if found is None:
    asked = epsilon_of(ends[0])
    start = f' from {before:.7g}, charged separately,' if before else ''
    message = (
      f'{refusal}: it would bring epsilon{start} to {asked:.7g} {at_budget}. '
      'Start with a larger budget, or ask for less.'
    )
    raise budget_lib.BudgetExceededError(budget, before, asked, message)
  return found


class _Point(NamedTuple):
  place: float  # log(value / first), without its sign
  value: float
  excess: float  # log(epsilon / target), within [-_FAR, _FAR]
  fits: bool


def last_within(
  epsilon_of: Callable[[float], float],
  target: float,
  first: float,
  last: float,
  start: float,
  tolerance: float = _TOLERANCE,
  whole: bool = False,
  is_over: Callable[[], bool] = lambda: False,
) -> Optional[float]:
  """Returns the last point of a range whose epsilon is within a target.

  Args:
    epsilon_of: epsilon of a point. It should not fall on the way from `first`
      to `last`; where it does, the result is still a point whose epsilon was
      seen to be at most the target. NaN counts as too much.
    target: the largest epsilon allowed; above 0.
    first: one end of the range, above 0.
    last: the other end, above 0; larger or smaller.
    start: where to look first, within the range.
    tolerance: the result is at most this much, relatively, before the first
      point above the target, and its epsilon at most this much below it (unless
      epsilon jumps there).
    whole: whether only whole numbers are points, and `first < last`; then the
      number after the result is above the target, whatever the tolerance.
    is_over: called before each epsilon is computed; once it is true, the search
      ends with the best point that it has, whatever the tolerance, if it has
      one.

  Returns:
    The point; `last` itself if it is within the target; None if no point is.

  >>> 2.998 < last_within(lambda x: x * x, 9.0, 1e-3, 1e3, start=1.0) <= 3
  True
  >>> last_within(lambda x: x * x, 9.5, 1, 10**9, start=1, whole=True)
  3
  """
  origin = math.log(first)
  length = abs(math.log(last) - origin)
  sign = 1 if last > first else -1
  good = bad = None

  def at(place: float) -> _Point:
    """The point at a place, between `good` and `bad` where there are any."""
    if place >= length:
      place, value = length, last
    elif place <= 0:
      place, value = 0.0, first
    elif whole:
      value = round(math.exp(origin + place))
      value = max(value, first if good is None else good.value + 1)
      value = min(value, last if bad is None else bad.value - 1)
      place = math.log(value) - origin
    else:
      value = math.exp(origin + sign * place)
    epsilon = epsilon_of(value)
    fits = bool(epsilon <= target)
    excess = -_FAR if fits else _FAR
    if 0 < epsilon < math.inf:
      excess = math.log(epsilon) - math.log(target)
    return _Point(place, value, min(max(excess, -_FAR), _FAR), fits)

  # Outwards from the start in growing strides, until two points enclose the
  # last one within the target.
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
    point = at(point.place + (stride if point.fits else -stride))

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
    point = at(good.place + share * width)
    weights[not point.fits] *= 0.5 if point.fits == before else 1.0
    weights[point.fits], before = 1.0, point.fits
    good, bad = (point, bad) if point.fits else (good, point)
  return good.value


@functools.lru_cache
def whole_noise_multiplier(budget: budget_lib.PrivacyBudget) -> float:
  """Returns the noise of the Gaussian mechanism that costs a whole budget.

  >>> budget = budget_lib.PrivacyBudget(epsilon=1.0, delta=1e-5)
  >>> round(whole_noise_multiplier(budget), 2)
  3.73
  """
  return calibrate_noise_multiplier(
    dp_accounting.GaussianDpEvent,
    budget,
    # Of one Gaussian mechanism it is exact.
    accountant='gdp',
  )


def charged_noise_multiplier(
  make_event: Callable[[float], dp_accounting.DpEvent],
  noise_multiplier: float,
  *,
  ledger: Optional[PrivacyLedger],
  label: str,
) -> float:
  """Returns the noise multiplier that a ledger was charged for under a label.

  A calibration ends with other digits on another machine. A mechanism that is
  resumed needs the noise multiplier it was charged for, to the last bit.

  Returns:
    That of the first charge or reservation under the label that differs in
    nothing else from the event of the `noise_multiplier` that was calibrated
    now, and there by less than a millionth; else `noise_multiplier`.
  """
  for entry in () if ledger is None else ledger.entries:
    innermost = entry.event
    while hasattr(innermost, 'event'):
      innermost = innermost.event
    charged = getattr(innermost, 'noise_multiplier', math.nan)
    if (
      entry.label == label
      and abs(charged - noise_multiplier) <= _DIGITS * noise_multiplier
      and make_event(charged) == entry.event
    ):
      return charged
  return noise_multiplier
