"""The accountant of privacy loss distributions: tight, always from above."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import dp_accounting

from tfdpflows.accounting import accountant, convolution
from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import flatten as flatten_lib
from tfdpflows.accounting import losses as losses_lib

__all__ = ['PLDAccountant']

# More grid points than this for one mechanism, and the grid is made coarser.
_MAX_POINTS = 2**20
# The grid is made finer where it would matter and costs less points than this.
_FINE_POINTS = 2**18

_Counts = tuple[tuple[flatten_lib.Mechanism, int], ...]


class PLDAccountant(accountant.MechanismAccountant):
  """Accounts by composing privacy loss distributions numerically.

  Takes Gaussian, Laplace and (epsilon, delta) mechanisms, each also on a
  Poisson sample under add-or-remove-one neighbours. Results are remembered for
  the process, so that asking after each block of a training run is cheap.

  Args:
    neighboring_relation: `ADD_OR_REMOVE_ONE` or `REPLACE_ONE`.
    value_discretization_interval: Distance of the grid of losses, in nats. It
      is doubled until the arrays fit into memory, where losses are very large.

  Raises:
    ValueError: If the interval is not a positive number.

  #### Formal guarantee
  `get_epsilon(delta)` is an epsilon for which the composition, adaptive or not,
  is (epsilon, delta)-differentially private. Discretization, truncation and the
  rounding of Fourier transforms are bounded and added; see
  `tfdpflows.accounting.losses` and `tfdpflows.accounting.convolution`.

  #### References
  Sommer, Meiser and Mohammadi 2019; Koskela, Jalko and Honkela 2020; Doroshenko
  et al. 2022; Zhu, Dong and Wang 2022.

  ```python
  >>> accountant = PLDAccountant()
  >>> step = dp_accounting.PoissonSampledDpEvent(
  ...     0.01, dp_accounting.GaussianDpEvent(1.0))
  >>> accountant.compose(step, 1000).get_epsilon(1e-5)
  1.828...

  ```
  """

  name = 'pld'
  guarantee = 'upper_bound'
  kinds = frozenset({'gaussian', 'laplace', 'epsilon_delta'})

  def __init__(
    self,
    neighboring_relation: dp_accounting.NeighboringRelation = (
      dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    ),
    value_discretization_interval: float = 1e-4,
  ):
    super().__init__(neighboring_relation)
    interval = float(value_discretization_interval)
    if not 0 < interval <= 1:
      raise ValueError(
        'value_discretization_interval must lie in (0, 1], for example 1e-4, '
        f'not {interval}.'
      )
    self._interval = interval

  def get_epsilon(self, target_delta: float) -> float:
    """The smallest epsilon known for a delta.

    Args:
      target_delta: Inside (0, 1).

    Returns:
      Epsilon in nats; infinite if no finite one is known.

    Raises:
      ValueError: If the delta is not inside (0, 1).
    """
    target_delta = budget_lib.check_delta(target_delta)
    if self._is_non_private():
      return math.inf
    counts = _canonical(self._totals)
    return _epsilon(counts, target_delta, self._interval) if counts else 0.0

  def get_delta(self, target_epsilon: float) -> float:
    """The smallest delta known for an epsilon.

    Args:
      target_epsilon: Zero or more, in nats.

    Returns:
      Delta, in [0, 1].

    Raises:
      ValueError: If the epsilon is negative or not a number.
    """
    target_epsilon = float(target_epsilon)
    if not target_epsilon >= 0:
      raise ValueError(f'epsilon must be zero or more, not {target_epsilon}.')
    if self._is_non_private():
      return 1.0
    counts = _canonical(self._totals)
    return _delta(counts, target_epsilon, self._interval) if counts else 0.0


def _canonical(totals: dict[flatten_lib.Mechanism, int]) -> _Counts:
  """Counts in a fixed order, with all plain Gaussians as one.

  The composition of Gaussian releases is a Gaussian release: no error, and one
  distribution less.
  """
  plain = {
    mechanism: count
    for mechanism, count in totals.items()
    if mechanism.kind == 'gaussian' and mechanism.probability == 1
  }
  rest = {m: count for m, count in totals.items() if m not in plain}
  if plain:
    joint = flatten_lib.joint_noise(plain)
    rest[flatten_lib.Mechanism('gaussian', joint)] = 1
  return tuple(sorted(rest.items()))


@functools.lru_cache(maxsize=4096)
def _epsilon(counts: _Counts, delta: float, interval: float) -> float:
  return _worse_direction(
    counts, interval, functools.partial(convolution.epsilon_at, delta)
  )


@functools.lru_cache(maxsize=4096)
def _delta(counts: _Counts, epsilon: float, interval: float) -> float:
  return _worse_direction(
    counts, interval, functools.partial(convolution.delta_at, epsilon)
  )


def _worse_direction(
  counts: _Counts, interval: float, price: Callable[..., float]
) -> float:
  """The larger price of the two directions, on the first grid that fits."""
  ranges = [losses_lib.loss_range(mechanism) for mechanism, _ in counts]
  width = max(high - low for low, high in ranges)
  if not math.isfinite(width):
    return math.inf
  while width / interval > _MAX_POINTS:
    interval *= 2
  interval = _fine_enough(counts, width, interval)
  while True:
    pairs = [losses_lib.loss_distributions(m, interval) for m, _ in counts]
    numbers = [count for _, count in counts]
    try:
      worst = price(
        [(p[0], n) for p, n in zip(pairs, numbers)], interval=interval
      )
      if any(remove is not add for remove, add in pairs):
        worst = max(
          worst,
          price([(p[1], n) for p, n in zip(pairs, numbers)], interval=interval),
        )
      return worst
    except convolution.GridTooFineError:
      interval *= 2


def _fine_enough(counts: _Counts, width: float, interval: float) -> float:
  """Refines a grid that would blur losses much smaller than itself.

  A grid adds up to interval^2 / 4 to the variance of each loss. Any grid gives
  an upper bound; this only chooses a tighter one.
  """
  steps = sum(count for _, count in counts)
  variance = sum(
    count * losses_lib.loss_scale(mechanism) ** 2 for mechanism, count in counts
  )
  width = max(width, 20 * math.sqrt(variance))
  while (
    steps * interval**2 / 4 > 1e-4 * variance
    and 2 * width / interval < _FINE_POINTS
  ):
    interval /= 2
  return interval
