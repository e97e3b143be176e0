"""Delta and epsilon of one Gaussian release, exactly, rounded upwards.

With noise of standard deviation sigma per unit of sensitivity and mu = 1 /
sigma, the smallest delta at an epsilon is (Balle and Wang 2018, theorem 8)

    delta(epsilon) = Phi(-a) - exp(epsilon) Phi(-b),
    a = epsilon / mu - mu / 2,   b = epsilon / mu + mu / 2.

As exp(epsilon) phi(b) = phi(a), that is phi(a) (R(a) - R(b)) with the ratio of
Mills R(x) = Phi(-x) / phi(x), or phi(a) times the integral of h(x) = 1 - x R(x)
from a to b: sums of positive terms, which keep their accuracy for a small mu.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import typing as npt
from scipy import special

_EPS = float(np.finfo(np.float64).eps)
_LOG_ROOT = 0.5 * math.log(2 * math.pi)
# Deltas below exp(-1000) count as equal.
_LOWEST = -1000.0
_FAR = 50.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(14)


def log_delta_at(epsilon: npt.ArrayLike, mu: npt.ArrayLike) -> np.ndarray:
  """Returns the log of the smallest delta at an epsilon, from above.

  It is at most 1e-9 too large, or 1e-12 where delta is above 1e-20, plus the
  effect of a change of epsilon in its last places. Where delta is below
  exp(-1000), it is some bound below that. `mu` is one over the noise, above
  zero.

  >>> print(np.exp(log_delta_at(4.0, 1.0)).round(9))
  4.7122e-05
  """
  return _log_delta_and_slope(
    np.asarray(epsilon, np.float64), np.asarray(mu, np.float64)
  )[0]


def epsilon_at(log_delta: npt.ArrayLike, mu: npt.ArrayLike) -> np.ndarray:
  """Returns the smallest epsilon at a delta; below exp(-1000) it is infinite.

  It is a number whose `log_delta_at` is at most `log_delta`, and larger than
  the smallest such one by rounding errors only. `mu` is one over the noise,
  zero or more.

  >>> print(epsilon_at(math.log(1e-5), 1.0).round(4))
  4.3772
  """
  target, mu = np.broadcast_arrays(
    np.asarray(log_delta, np.float64), np.asarray(mu, np.float64)
  )
  # Phi(-a) alone is below exp(-a^2 / 2).
  far = np.sqrt(-2 * np.clip(target, _LOWEST, 0.0))
  with np.errstate(over='ignore'):
    epsilon = mu * (far + mu / 2)
  free = (mu == 0) | (target >= 0)
  known = free | (target < _LOWEST) | ~np.isfinite(epsilon) | np.isnan(target)
  result = np.where(free, 0.0, np.inf)
  epsilon, mu = np.where(known, 1.0, epsilon), np.where(known, 1.0, mu)
  target = np.where(known, 0.0, target)
  step = 4 * _EPS
  excess, slope = _log_delta_and_slope(epsilon, mu)
  while np.any(excess > target):
    # The rounding of a where mu is large.
    epsilon = np.where(excess > target, epsilon * (1 + step), epsilon)
    step *= 2
    excess, slope = _log_delta_and_slope(epsilon, mu)
  # The log of delta is concave, as a convolution of exp(-x) and of the tail of
  # a normal distribution, which are log-concave. Newton's steps from the right
  # thus stay on the right, but for rounding; then bisection takes over.
  enough, short = epsilon, np.full_like(epsilon, -1.0)
  for _ in range(100):
    with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
      newton = np.fmax(epsilon + (excess - target) / slope, 0.0)
    epsilon = np.where(short < 0, newton, 0.5 * (short + enough))
    if np.all(enough - epsilon <= 1e-13 * enough):
      break
    excess, slope = _log_delta_and_slope(epsilon, mu)
    fits = excess <= target
    enough = np.where(fits, epsilon, enough)
    short = np.where(fits, short, epsilon)
  return np.where(known, result, enough)


def _log_delta_and_slope(
  epsilon: np.ndarray, mu: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the log of delta from above, and minus its slope in epsilon."""
  with np.errstate(over='ignore', divide='ignore', invalid='ignore'):
    # The rounding of a and b has less effect than this change of epsilon. Delta
    # falls with a, so that what is far out may be brought in.
    a = np.minimum(epsilon * (1 - 4 * _EPS) / mu - mu / 2, _FAR)
    density = -0.5 * a * a - _LOG_ROOT
    lost = density + np.log(_mills(a + mu))  # exp(epsilon) Phi(-b)
    # For a small mu, -1/2 <= a. Fourteen points are enough for an interval of
    # length one.
    short = np.minimum(mu, 1.0)[..., None] / 2
    x = np.maximum(a, -0.5)[..., None] + short * (1 + _NODES)
    area = np.sum(short * _WEIGHTS * (1 - x * _mills(x)), axis=-1)
    kept = special.log_ndtr(-a)
    log_delta = np.where(
      mu <= 1,
      density + np.log(area),
      kept + np.log(-np.expm1(np.minimum(lost - kept, 0.0))),
    )
  # Errors of the density are a^2 units in the last place, and the difference of
  # both terms is at least 1 / a of them.
  slack = 4 * _EPS * (20 + np.maximum(a, 0.0) ** 3)
  # NaN counts as a delta of one.
  return np.fmin(log_delta + slack, 0.0), np.exp(
    np.minimum(lost - log_delta, 700.0)
  )


def _mills(x: np.ndarray) -> np.ndarray:
  return math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2))
