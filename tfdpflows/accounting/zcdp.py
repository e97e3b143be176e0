"""The accountant of zero-concentrated differential privacy.

A mechanism is (xi, rho)-zCDP if its Renyi divergence of every order alpha > 1
is at most xi + rho alpha (Bun and Steinke 2016, definition 1.1). With L the
privacy loss, that divergence times s = alpha - 1 is K(s) = log E[exp(s L)]. The
constants used here:

- Gaussian: rho = 1 / (2 sigma^2), with equality.
- Pure epsilon: rho = epsilon tanh(epsilon / 2). Randomized response is the
  worst (Kairouz, Oh and Viswanath 2015): L = epsilon with probability p = 1 /
  (1 + exp(-epsilon)), else -epsilon. Its mean is rho, and by the inequality of
  Kearns and Saul (1998), log E[exp(t (X - p))] <= t^2 (1 - 2p) / (4 log((1 - p)
  / p)) for a coin X, what is left of K(s) is at most s^2 rho; so K(s) <= s (1 +
  s) rho. Half epsilon squared (Bun and Steinke 2016, proposition 1.4) is more.
- Laplace of scale 1 / epsilon: rho = epsilon + exp(-epsilon) - 1 (Harrison and
  Manurangsi 2025). With n = 2 s + 1 and y = exp(-epsilon), s (1 + s) rho - K(s)
  is 0 at epsilon = 0, and its derivative by epsilon has the sign of h(y) = (n -
  1) - (n + 1) y + (n + 1) y^n - (n - 1) y^(n + 1), where h(1) = h'(1) = 0 and
  h'' = n (n^2 - 1) y^(n - 2) (1 - y) >= 0, so that h >= 0 for y <= 1.
- Discrete Laplace: the mean loss, see `atoms.discrete_laplace_rho`.
- Bounded range epsilon: rho = epsilon^2 / 8 (Cesar and Rogers 2021). L lies in
  an interval of length epsilon, so that by Hoeffding's lemma K(s) <= s m + s^2
  epsilon^2 / 8, m the mean; and m <= epsilon^2 / 8 because K(-1) = 0. It is
  pure as well, and the smaller rho is taken.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import dp_accounting
import numpy as np
from numpy import typing as npt

from tfdpflows.accounting import accountant, atoms
from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting.logarithms import exp_upwards
from tfdpflows.accounting.mechanism import Mechanism

__all__ = ['ZCDPAccountant', 'epsilon_at', 'log_delta_at']

# Sums of a few terms, relative to the sum of their magnitudes.
_ROUNDING = 1e-14


class _Guarantee(NamedTuple):
  """(xi, rho)-zCDP but for a failure, kept away with probability exp(log_kept).

  Attributes:
    rho: Zero or more.
    xi: Zero or more.
    log_kept: Zero or less.
  """

  rho: float
  xi: float
  log_kept: float


class ZCDPAccountant(accountant.MechanismAccountant):
  """Accounts by adding rho and xi.

  Takes Gaussian, Laplace, bounded-range, (epsilon, delta) and zCDP mechanisms,
  discrete Laplace noise, randomized response, and disjoint shards of them.
  Mechanisms on a sample are refused: sampling does not amplify zCDP (Bun,
  Dwork, Rothblum and Steinke 2018).

  Args:
    neighboring_relation: `ADD_OR_REMOVE_ONE`, `REPLACE_ONE` or
      `REPLACE_SPECIAL`.

  #### Formal guarantee
  `get_epsilon(delta)` is an epsilon for which the composition, adaptive or not,
  is (epsilon, delta)-differentially private: divergences add up (Mironov 2017,
  proposition 1), and so do rho and xi; proposition 12 of Canonne, Kamath and
  Steinke 2020 converts them, at the best order. The deltas of (epsilon, delta)
  mechanisms are taken off the target delta first, as such a mechanism is a pure
  one except with probability delta (Kairouz, Oh and Viswanath 2015).

  ```python
  >>> accountant = ZCDPAccountant().compose(dp_accounting.GaussianDpEvent(2.0))
  >>> accountant.rho
  0.12500...
  >>> accountant.get_epsilon(1e-5)
  2.1657...

  ```
  """

  name = 'zcdp'
  guarantee = 'upper_bound'
  kinds = frozenset(
    {
      'bounded_range',
      'discrete_laplace',
      'epsilon_delta',
      'gaussian',
      'laplace',
      'parallel',
      'randomized_response',
      'response_or_null',
      'zcdp',
    }
  )
  events = (
    dp_accounting.GaussianDpEvent,
    dp_accounting.LaplaceDpEvent,
    events_lib.EpsilonDeltaDpEvent,
    events_lib.ZCDpEvent,
    events_lib.ExponentialMechanismDpEvent,
    events_lib.DiscreteLaplaceDpEvent,
    events_lib.RandomizedResponseDpEvent,
    events_lib.PermuteAndFlipDpEvent,
    events_lib.SingleEpochTreeAggregationDpEvent,
    events_lib.MatrixMechanismDpEvent,
    events_lib.ToeplitzMechanismDpEvent,
    events_lib.ReportNoisyMaxDpEvent,
    events_lib.SparseVectorDpEvent,
    events_lib.LNMaxDpEvent,
    events_lib.GNMaxDpEvent,
    events_lib.ConfidentGNMaxDpEvent,
    events_lib.ParallelDpEvent,
  )

  @property
  def rho(self) -> float:
    """The sum of all rho, from above."""
    return self._guarantee().rho

  @property
  def xi(self) -> float:
    """The sum of all xi, from above."""
    return self._guarantee().xi

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
    rho, xi, log_kept = self._guarantee()
    delta = (target_delta - _failure(log_kept)) * (1 - _ROUNDING)
    if delta <= 0 or not math.isfinite(rho + xi):
      return math.inf
    return float(epsilon_at(rho, xi, math.log(delta)))

  def get_delta(self, target_epsilon: float) -> float:
    """The smallest delta known for an epsilon.

    Args:
      target_epsilon: Zero or more, in nats.

    Returns:
      Delta, in [0, 1].

    Raises:
      ValueError: If the epsilon is negative or not a number.
    """
    target_epsilon = budget_lib.check_epsilon(target_epsilon)
    rho, xi, log_kept = self._guarantee()
    if not math.isfinite(rho + xi):
      return 1.0
    delta = float(exp_upwards(log_delta_at(rho, xi, target_epsilon)))
    return min((delta + _failure(log_kept)) * (1 + _ROUNDING), 1.0)

  def _refusal(self, mechanism: Mechanism) -> Optional[str]:
    if mechanism.probability == 1:
      return None
    return (
      "the accountant 'zcdp' does not support mechanisms on a sample, as "
      'sampling does not amplify zCDP.'
    )

  def _guarantee(self) -> _Guarantee:
    if self._is_non_private():
      return _Guarantee(math.inf, math.inf, -math.inf)
    return _sum(sorted(self._totals.items()))


def epsilon_at(
  rho: npt.ArrayLike, xi: npt.ArrayLike, log_delta: npt.ArrayLike
) -> np.ndarray:
  """The smallest epsilon known of a zCDP mechanism.

  Proposition 12 of Canonne, Kamath and Steinke 2020: with x = order - 1 > 0,

      epsilon = xi + (1 + x) rho + log(x / (1 + x))
                + (log(1 / delta) - log(1 + x)) / x.

  Its derivative is rho + (log(1 + x) - log(1 / delta)) / x^2, so that the best
  x solves rho x^2 + log(1 + x) = log(1 / delta). Any x gives a bound.

  Args:
    rho: Zero or more, finite.
    xi: Zero or more, finite.
    log_delta: Log of delta, below zero; all broadcast against each other.

  Returns:
    Float64 in nats, from above.

  ```python
  >>> print(epsilon_at(0.125, 0.0, math.log(1e-5)).round(4))
  2.1657

  ```
  """
  rho, xi, log_delta = np.broadcast_arrays(
    *(np.asarray(x, np.float64) for x in (rho, xi, log_delta))
  )
  size = np.maximum(-log_delta, 0.0)  # log(1 / delta)
  with np.errstate(divide='ignore', over='ignore', invalid='ignore'):
    # The root in t = log(x), by Newton's method from above: the left side is
    # convex in t. Above it are the roots of either term alone.
    log_rho = np.log(rho)
    t = np.minimum(
      (np.log(size) - log_rho) / 2, size + np.log(-np.expm1(-size))
    )
    t = np.clip(np.nan_to_num(t), -700.0, 700.0)
    for _ in range(30):
      square = np.exp(np.minimum(log_rho + 2 * t, 700.0))
      excess = square + np.log1p(np.exp(t)) - size
      t = t - np.fmax(excess / (2 * square + 1 / (1 + np.exp(-t))), 0.0)
    x = np.exp(np.clip(t, -700.0, 700.0))
    positive = (1 + x) * rho + xi + size / x
    negative = np.log1p(1 / x) + np.log1p(x) / x
    epsilon = positive - negative + _ROUNDING * (positive + negative)
  # Not a number: an order that does not fit into floats.
  epsilon = np.where(np.isnan(epsilon), np.inf, np.maximum(epsilon, 0.0))
  return np.where(_log_distance(rho, xi) <= log_delta, 0.0, epsilon)


def log_delta_at(rho: float, xi: float, epsilon: float) -> float:
  """Log of the smallest delta known of a zCDP mechanism.

  By the same proposition, the log of delta is x (xi + (1 + x) rho - epsilon +
  log(x / (1 + x))) - log(1 + x), and the best x solves 2 rho x - log(1 + 1 / x)
  = epsilon - xi - rho.

  Args:
    rho: Zero or more, finite.
    xi: Zero or more, finite.
    epsilon: Zero or more, in nats.

  Returns:
    The log, from above.

  ```python
  >>> round(math.exp(log_delta_at(0.125, 0.0, 2.0)), 7)
  3...e-05

  ```
  """
  if epsilon == math.inf or (rho == 0 and epsilon >= xi):
    return -math.inf
  distance = float(_log_distance(np.float64(rho), np.float64(xi)))
  low, high = -700.0, 700.0
  for _ in range(60):
    t = (low + high) / 2
    slope = 2 * rho * math.exp(t) - np.logaddexp(0.0, -t)
    low, high = (t, high) if slope < epsilon - xi - rho else (low, t)
  x = math.exp(low)
  gain = epsilon + math.log1p(1 / x)
  loss = xi + (1 + x) * rho
  slack = _ROUNDING * (x * (gain + loss) + math.log1p(x))
  found = x * (loss - gain) - math.log1p(x) + slack
  return min(distance, found, 0.0)


def _log_distance(rho: np.ndarray, xi: np.ndarray) -> np.ndarray:
  """Log of a bound on the total variation distance, delta at epsilon zero.

  Of Pinsker and of Bretagnolle and Huber; the divergence of order one, which is
  the limit of those above it, is at most xi + rho.
  """
  with np.errstate(divide='ignore', over='ignore'):
    divergence = (xi + rho) * (1 + _ROUNDING)
    square = np.minimum(divergence / 2, -np.expm1(-divergence))
    log = 0.5 * np.log(square)
    return log + _ROUNDING * (1 + np.abs(np.maximum(log, -1e3)))


def _sum(counts) -> _Guarantee:
  """Pairs of a mechanism and a count, together."""
  parts = [(_one(mechanism), count) for mechanism, count in counts]
  upwards = 1 + _ROUNDING * (1 + len(parts))
  return _Guarantee(
    *(
      sum(count * part[field] for part, count in parts) * upwards
      for field in range(3)
    )
  )


def _one(mechanism: Mechanism) -> _Guarantee:
  kind, parameter, _, extra = mechanism[:4]
  if kind == 'parallel':
    shards = [_sum(parts) for parts in mechanism.parts]
    return _Guarantee(
      max(shard.rho for shard in shards),
      max(shard.xi for shard in shards),
      min(shard.log_kept for shard in shards),
    )
  log_kept = 0.0
  if kind == 'zcdp':
    return _Guarantee(parameter, extra, log_kept)
  if kind == 'epsilon_delta':
    rho, xi = _pure(parameter), 0.0
    log_kept = math.log1p(-extra) if extra < 1 else -math.inf
  else:
    xi = 0.0
    if kind == 'gaussian':
      rho = 0.5 / parameter / parameter
    elif kind == 'laplace':
      rho = atoms.laplace_rho(1 / parameter)
    elif kind == 'discrete_laplace':
      rho = atoms.discrete_laplace_rho(parameter, extra)
    elif kind in atoms.KINDS:
      epsilon = atoms.pure_epsilon(mechanism)
      rho = _pure(epsilon)
      if kind == 'response_or_null':
        # Both losses, which have different signs, in an interval.
        length = -math.log(parameter) + math.log1p(
          (extra - 1) * (1 - parameter)
        )
        rho = min(rho, length * length / 8 * (1 + _ROUNDING))
    else:
      rho = min(parameter * parameter / 8, _pure(parameter))
  # Upwards, where the square of something small is zero.
  return _Guarantee(math.nextafter(rho, math.inf), xi, log_kept)


def _pure(epsilon: float) -> float:
  return epsilon * math.tanh(epsilon / 2)


def _failure(log_kept: float) -> float:
  return -math.expm1(log_kept) * (1 + _ROUNDING)
