"""The accountant of Renyi divergences: the moments accountant, and fast."""

from __future__ import annotations

import functools
import math

import dp_accounting
import numpy as np
from scipy import special

from tfdpflows.accounting import accountant
from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import flatten as flatten_lib

__all__ = ['RDPAccountant', 'renyi_curve']

# The orders of dp_accounting, and some between its last ones.
_DEFAULT_ORDERS = (
  *(1 + x / 10 for x in range(1, 100)),
  *range(11, 64),
  *(64, 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024, 2048),
)
# Rounding of sums of up to 2048 positive terms, in nats of the moment.
_ROUNDING = 1e-14


class RDPAccountant(accountant.MechanismAccountant):
  """Accounts by adding Renyi divergences, order by order.

  Takes Gaussian, Laplace, (epsilon, delta) and zCDP mechanisms; Gaussian,
  Laplace and (epsilon, delta) ones also on a Poisson sample under
  add-or-remove- one neighbours. Its epsilon is some ten per cent above that of
  'pld'.

  Args:
    neighboring_relation: `ADD_OR_REMOVE_ONE` or `REPLACE_ONE`.
    orders: Orders of the divergences, each above 1; None for a good choice.

  Raises:
    ValueError: If an order is not above 1.

  #### Formal guarantee
  `get_epsilon(delta)` is an epsilon for which the composition, adaptive or not,
  is (epsilon, delta)-differentially private: curves add up under composition
  (Mironov 2017) and are converted by proposition 12 of Canonne, Kamath and
  Steinke 2020. The deltas of (epsilon, delta) mechanisms are taken off the
  target delta first, as such a mechanism is a pure one except with probability
  delta (Kairouz, Oh and Viswanath 2015).

  #### References
  Abadi et al. 2016; Mironov 2017; Mironov, Talwar and Zhang 2019.

  ```python
  >>> accountant = RDPAccountant()
  >>> step = dp_accounting.PoissonSampledDpEvent(
  ...     0.01, dp_accounting.GaussianDpEvent(1.0))
  >>> accountant.compose(step, 1000).get_epsilon(1e-5)
  2.10...

  ```
  """

  name = 'rdp'
  guarantee = 'upper_bound'
  kinds = frozenset({'gaussian', 'laplace', 'epsilon_delta', 'zcdp'})

  def __init__(
    self,
    neighboring_relation: dp_accounting.NeighboringRelation = (
      dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    ),
    orders=None,
  ):
    super().__init__(neighboring_relation)
    orders = _DEFAULT_ORDERS if orders is None else orders
    self._orders = tuple(float(order) for order in orders)
    if not self._orders or not all(1 < x < math.inf for x in self._orders):
      raise ValueError(f'orders must be finite and above 1, not {orders!r}.')

  @property
  def orders(self) -> np.ndarray:
    """The orders, float64 [k]."""
    return np.array(self._orders)

  @property
  def rdp(self) -> np.ndarray:
    """The divergences at `orders`, float64 [k], in nats."""
    curve = np.zeros(len(self._orders))
    if self._is_non_private():
      return curve + math.inf
    for mechanism, count in sorted(self._totals.items()):
      curve = curve + count * renyi_curve(mechanism, self._orders)
    return curve

  def get_epsilon_and_optimal_order(self, target_delta: float):
    """The smallest epsilon known for a delta, and the order it rests on.

    Args:
      target_delta: Inside (0, 1).

    Returns:
      A pair of floats. Epsilon is infinite if no finite one is known.

    Raises:
      ValueError: If the delta is not inside (0, 1).
    """
    target_delta = budget_lib.check_delta(target_delta)
    curve, orders = self.rdp, self.orders
    delta = target_delta - self._failure()
    if delta <= 0:
      return math.inf, float(orders[0])
    if not np.any(curve):
      return 0.0, float(orders[0])
    epsilons = (
      curve
      + np.log1p(-1 / orders)
      - (math.log(delta) + np.log(orders)) / (orders - 1)
    )
    # delta(0) is a total variation distance, at most sqrt(1 - exp(-KL)).
    epsilons = np.where(-np.expm1(-curve) < delta**2, 0.0, epsilons)
    best = int(np.argmin(epsilons))
    pure = self._pure_epsilon()
    if pure < epsilons[best]:
      return pure, math.inf
    return max(float(epsilons[best]), 0.0), float(orders[best])

  def get_epsilon(self, target_delta: float) -> float:
    """The smallest epsilon known for a delta.

    Args:
      target_delta: Inside (0, 1).

    Returns:
      Epsilon in nats; infinite if no finite one is known.

    Raises:
      ValueError: If the delta is not inside (0, 1).
    """
    return self.get_epsilon_and_optimal_order(target_delta)[0]

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
    curve, orders = self.rdp, self.orders
    if not np.any(curve):
      return min(self._failure(), 1.0)
    logs = (orders - 1) * (curve - target_epsilon + np.log1p(-1 / orders))
    logs -= np.log(orders)
    with np.errstate(divide='ignore'):
      logs = np.minimum(logs, 0.5 * np.log(-np.expm1(-curve)))
    return min(math.exp(min(float(np.min(logs)), 0.0)) + self._failure(), 1.0)

  def _pure_epsilon(self) -> float:
    """The divergence of infinite order, where every mechanism has one."""
    total = 0.0
    for mechanism, count in sorted(self._totals.items()):
      if mechanism.kind == 'laplace':
        epsilon = _amplified(1 / mechanism.parameter, mechanism.probability)
      elif mechanism.kind == 'epsilon_delta':
        epsilon = mechanism.parameter
      else:
        return math.inf
      total += count * epsilon
    return total

  def _failure(self) -> float:
    """Probability that an (epsilon, delta) mechanism reveals everything."""
    kept = sum(
      count * math.log1p(-mechanism.extra) if mechanism.extra < 1 else -math.inf
      for mechanism, count in self._totals.items()
      if mechanism.kind == 'epsilon_delta'
    )
    return -math.expm1(kept) * (1 + 1e-12)


@functools.lru_cache(maxsize=512)
def renyi_curve(
  mechanism: flatten_lib.Mechanism, orders: tuple[float, ...]
) -> np.ndarray:
  """Renyi divergences of a mechanism, the larger of both directions.

  Args:
    mechanism: A mechanism. Of an (epsilon, delta) one, that of its pure part.
    orders: Orders above 1.

  Returns:
    Float64 [len(orders)], in nats; read-only.

  ```python
  >>> gaussian = flatten_lib.Mechanism('gaussian', 2.0)
  >>> print(renyi_curve(gaussian, (2.0, 4.0)))  # order / (2 * 2.0**2)
  [0.25 0.5 ]

  ```
  """
  a = np.array(orders)
  kind, parameter, probability, extra = mechanism
  if kind == 'laplace' and probability < 1:
    # The pure guarantee of a Laplace mechanism, amplified by sampling.
    kind = 'epsilon_delta'
    parameter = _amplified(1 / parameter, probability)
  if kind == 'gaussian' and probability == 1:
    curve = a / 2 / parameter / parameter
  elif kind == 'gaussian':
    curve = _sampled_gaussian(a, probability, parameter)
  elif kind == 'laplace':
    # Mironov 2017, table II.
    curve = np.logaddexp(
      np.log(a / (2 * a - 1)) + (a - 1) / parameter,
      np.log((a - 1) / (2 * a - 1)) - a / parameter,
    )
    curve = np.maximum(curve + _ROUNDING, 0) / (a - 1)
  elif kind == 'epsilon_delta':
    # Randomized response, which dominates every pure mechanism.
    curve = np.logaddexp((a - 1) * parameter, -a * parameter)
    curve -= math.log1p(math.exp(-parameter))
    curve = np.maximum(curve + _ROUNDING, 0) / (a - 1)
    curve = np.minimum(curve, parameter)
  else:
    curve = extra + a * parameter
  curve.flags.writeable = False
  return curve


def _amplified(epsilon: float, probability: float) -> float:
  if probability == 1:
    return epsilon
  return float(
    np.logaddexp(math.log1p(-probability), math.log(probability) + epsilon)
  )


def _sampled_gaussian(a: np.ndarray, q: float, sigma: float) -> np.ndarray:
  """Mironov, Talwar and Zhang 2019, section 3.3.

  The moment is a finite sum at whole orders. Its log is convex in the order and
  zero at order 1, so that between whole orders the chord is a bound; for lower
  orders, where the chord is loose, the moment is integrated numerically and the
  smaller of the two is taken.
  """
  lower, upper = np.floor(a), np.ceil(a)
  moments = {
    order: _whole_moment(int(order), q, sigma)
    for order in {*lower.tolist(), *upper.tolist()}
  }
  below = np.array([moments[order] for order in lower.tolist()])
  above = np.array([moments[order] for order in upper.tolist()])
  share = a - lower
  log_moment = np.where(share > 0, (1 - share) * below + share * above, below)
  between = share > 0
  if np.any(between) and sigma >= 0.1:
    log_moment[between] = np.minimum(
      log_moment[between],
      _integrated_moments(a[between], q, sigma) * (1 + 1e-12),
    )
  return np.maximum(log_moment + _ROUNDING, 0) / (a - 1)


def _whole_moment(order: int, q: float, sigma: float) -> float:
  if order == 1:
    return 0.0
  i = np.arange(order + 1)
  terms = (
    special.gammaln(order + 1)
    - special.gammaln(i + 1)
    - special.gammaln(order - i + 1)
    + i * math.log(q)
    + (order - i) * math.log1p(-q)
    + (i * i - i) / 2 / sigma / sigma
  )
  return float(special.logsumexp(terms)) * (1 + 1e-13)


def _integrated_moments(a: np.ndarray, q: float, sigma: float) -> np.ndarray:
  """log E[(1 - q + q exp((2x - 1) / (2 sigma^2)))^a] for x ~ N(0, sigma^2).

  The integrand is analytic in a strip of half width pi sigma^2 around the real
  line, so that the error of the trapezoid rule falls exponentially with the
  inverse of its step; with this step it is far below 1e-14 of the integral.
  """
  step = min(sigma, sigma**2) / 8
  low, high = -14 * sigma, float(np.max(a)) + 14 * sigma
  x = low + step * np.arange(math.ceil((high - low) / step) + 1)
  log_density = -0.5 * (x / sigma) ** 2 - math.log(sigma * math.sqrt(2 * np.pi))
  log_ratio = np.logaddexp(
    math.log1p(-q), math.log(q) + (2 * x - 1) / 2 / sigma / sigma
  )
  return np.array(
    [
      special.logsumexp(log_density + order * log_ratio) + math.log(step)
      for order in a
    ]
  )
