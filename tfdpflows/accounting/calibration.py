"""How much noise a budget needs, and what it costs as it goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Optional

import dp_accounting

from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import registry

__all__ = ['calibrate_noise_multiplier', 'epsilon_after']

_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_LARGEST = 1e7
_SMALLEST = 1e-3


def calibrate_noise_multiplier(
  make_event: Callable[[float], dp_accounting.DpEvent],
  budget: budget_lib.PrivacyBudget,
  spent: Optional[dp_accounting.DpEvent] = None,
  accountant: str = 'pld',
  tolerance: float = 1e-3,
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
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

  Returns:
    A noise multiplier whose epsilon, by the same accountant, is at most
    `budget.epsilon`.

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
  if not 0 < tolerance < 1:
    raise ValueError(f'tolerance must lie inside (0, 1), not {tolerance}.')

  def price(noise_multiplier: float) -> float:
    event = make_event(noise_multiplier)
    if spent is not None:
      event = dp_accounting.ComposedDpEvent([spent, event])
    return registry.compute_epsilon(
      event, budget.delta, accountant, neighboring_relation
    )

  before = 0.0
  if spent is not None:
    before = registry.compute_epsilon(
      spent, budget.delta, accountant, neighboring_relation
    )
    if before >= budget.epsilon:
      raise budget_lib.BudgetExceededError(
        budget,
        before,
        before,
        message=(
          f'What is paid besides costs epsilon {before:.7g} at '
          f'delta={budget.delta:g}, and the whole budget is '
          f'{budget.epsilon:.7g}. Nothing is left: add noise there, or start '
          'with a larger budget.'
        ),
      )
  # A hair below, so that another machine's last digit cannot pass the budget.
  target = budget.epsilon * (1 - 1e-9)
  low, high = _bracket(price, target, budget, before)
  if low is None:
    return high[0]
  return _narrow(price, target, low, high, tolerance)


def _bracket(price, target, budget, before):
  """Two noise multipliers with their epsilons, one too small, one enough."""
  point = (1.0, price(1.0))
  if point[1] > target:
    while point[1] > target:
      if point[0] >= _LARGEST:
        raise budget_lib.BudgetExceededError(
          budget,
          before,
          point[1],
          message=(
            f'No noise multiplier up to {_LARGEST:g} is enough: what is paid '
            f'besides costs epsilon {before:.7g} of {budget.epsilon:.7g} at '
            f'delta={budget.delta:g}. Start with a larger budget.'
          ),
        )
      low = point
      # Epsilon is about proportional to one over the noise, or to its square.
      factor = min(max(point[1] / target, 1.25), 8.0)
      noise = min(point[0] * factor, _LARGEST)
      point = (noise, price(noise))
    return low, point
  while point[1] <= target:
    high = point
    if point[0] <= _SMALLEST:
      return None, high
    noise = max(point[0] / 2, _SMALLEST)
    point = (noise, price(noise))
  return point, high


def _narrow(price, target, low, high, tolerance) -> float:
  """Regula falsi (Illinois) on logs, with bisection where that is slow."""
  weight_low = weight_high = 1.0
  last_side = 0
  for step in range(80):
    near = high[1] >= target * (1 - tolerance)
    if high[0] <= low[0] * (1 + tolerance) and near:
      break
    if high[0] <= low[0] * (1 + 1e-9):
      break
    a, b = math.log(low[0]), math.log(high[0])
    # A point that aims a little inside the tolerance ends the search at once.
    aim = math.log(target * (1 - tolerance / 3))
    above = (
      math.log(low[1]) - aim if math.isfinite(low[1]) else 0
    ) * weight_low
    below = (aim - math.log(max(high[1], 1e-300))) * weight_high
    share = above / (above + below) if above > 0 and below > 0 else 0.5
    if step % 4 == 3:
      share = 0.5
    elif near:
      # The epsilon is near enough; only the noise from below is not.
      share = max(share - 2 * tolerance / (b - a), 0.0)
    margin = min(0.25, tolerance / 4 / (b - a))
    noise = math.exp(a + (b - a) * min(max(share, margin), 1 - margin))
    point = (noise, price(noise))
    if point[1] <= target:
      high = point
      weight_low = weight_low / 2 if last_side == 1 else 1.0
      weight_high, last_side = 1.0, 1
    else:
      low = point
      weight_high = weight_high / 2 if last_side == -1 else 1.0
      weight_low, last_side = 1.0, -1
  return high[0]


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
    registry.compute_epsilon(
      dp_accounting.ComposedDpEvent(
        [*before, dp_accounting.SelfComposedDpEvent(event, int(count))]
      ),
      delta,
      accountant,
      neighboring_relation,
    )
    for count in counts
  ]
