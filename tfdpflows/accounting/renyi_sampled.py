"""Renyi divergences of mechanisms on a sample.

A mechanism that (P, Q) dominates is, on a sample with probability q, dominated
by M = (1 - q) Q + q P against Q (see `mechanism.Mechanism`). The log of the
moment of order a, which is (a - 1) times the divergence, is computed as that of
one plus something positive, never as a difference, so that it is accurate for
small q as well. With r = dM/dQ = 1 + v, v = q (dP/dQ - 1), that excess is

- E_Q[r^a - 1 - a v] for M against Q, as E_Q[v] = 0,
- E_Q[r^b - 1 - b v] with b = 1 - a for Q against M,
- E_Q[(r^(a - 1) - 1) (r - r^(1 - a)); r > 1] for the symmetric pair that stands
  for both where a row is replaced: M and Q where r > 1, the same two swapped on
  a copy of that set, and what is left, the same under both. (Domination for all
  hockey-stick divergences is domination for all f-divergences.)
- for a row replaced in a Poisson sample (see `tfdpflows.accounting.pairs`), r =
  M+ / M- and both as in E_M-[r^a - 1 - a (r - 1)], or by symmetry the integral
  of the third kind, under M-.

Each integrand is a convex function of dP/dQ.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy import special

from tfdpflows.accounting import pairs
from tfdpflows.accounting.logarithms import log_bernoulli, log_expm1, log_sum
from tfdpflows.accounting.mechanism import OPPOSITE

__all__ = ['sampled_gaussian', 'sampled_pair']

# Below this noise the numerical integrals would need too many points; the
# bounds that they improve are close there.
_LEAST_NOISE = 0.1
# Orders between whole ones for which the moment is integrated, and whole ones
# for which it is summed.
_INTEGRATED = 64.0
_SUMMED = 2**20
# Tails beyond this many standard deviations (1e-44) are left out.
_TAIL = 14.0
# More points than this are not worth it.
_MOST_POINTS = 100_000
# Orders below this are integrated for a row replaced in a Poisson sample.
_FEW = 600.0
# Moments beyond exp(30) need no integral to tell one from nothing.
_FAR = 30.0
# Errors of an integrand and of its integral, relatively.
_SLACK = 1e-10
_ULPS = 1e-15
# A pair with losses of up to this, and the cells they are put into.
_LARGEST_LOSS = 30.0
_CELLS = 1024


def sampled_gaussian(
  a: np.ndarray, q: float, sigma: float, replaced: int
) -> np.ndarray:
  """The larger of both directions, for a Gaussian mechanism.

  Args:
    a: Orders above 1.
    q: Probability of sampling, inside (0, 1).
    sigma: Noise over sensitivity, above zero.
    replaced: As in `Mechanism`.

  Returns:
    Divergences in nats, from above. Adding or removing a row, M against Q is
    the larger one (Mironov, Talwar and Zhang 2019, theorem 5): at whole orders
    a finite sum, between them the smaller one of an integral and of the chord,
    as the log moment is convex. Never above the divergence without sampling.

  ```python
  >>> print(sampled_gaussian(np.array([2.0, 8.0]), 0.01, 1.0, False))
  [0.00017181 0.00089364]

  ```
  """
  log_moment = _one_sided(a, q, sigma)
  if replaced:
    # The moment is less than that of M against Q, and one.
    both = np.logaddexp(0.0, log_moment)
    if sigma >= _LEAST_NOISE:
      wanted = log_moment < _FAR
      both[wanted] = np.fmin(
        both[wanted], _symmetric_moments(a[wanted], q, sigma)
      )
    log_moment = both
    if replaced == OPPOSITE and sigma >= _LEAST_NOISE:
      # Those of PRESENT are larger.
      wanted = a < _FEW
      log_moment[wanted] = np.fmin(
        log_moment[wanted], _opposite_moments(a[wanted], q, 2 * sigma)
      )
  return np.fmin(log_moment / (a - 1), a / 2 / sigma / sigma)


def sampled_pair(
  kind: str, parameter: float, a: np.ndarray, q: float, replaced: int
) -> np.ndarray:
  """The larger of both directions, for a pair of `pairs` with bounded losses.

  Args:
    kind: 'laplace' or 'bounded_range'.
    parameter: Of the `Mechanism`.
    a: Orders above 1.
    q: Probability of sampling, inside (0, 1).
    replaced: As in `Mechanism`.

  Returns:
    Divergences in nats, from above: what Q has between two losses is moved to
    these, so that the mean of dP/dQ stays, and the mean of a convex function of
    it can only grow. Infinite where the losses are very large.

  ```python
  >>> print(sampled_pair('laplace', 1.0, np.array([2.0]), 0.1, False).round(6))
  [0.008536]

  ```
  """
  bound = pairs.loss_bounds(kind, parameter)[1]
  if not bound <= _LARGEST_LOSS:
    return np.full_like(a, math.inf)
  if replaced == OPPOSITE:
    return _opposite_pair(kind, parameter, a, q)
  edges = np.linspace(-bound, bound, _CELLS + 1)
  upper, masses = pairs.interval_masses(kind, parameter, edges)
  # Of a cell between losses l and l + w with mass m under Q and p under P, the
  # share of the upper end is (p exp(-l) - m) / (m (exp(w) - 1)).
  right = (upper * np.exp(-edges[:-1]) - masses) / np.expm1(np.diff(edges))
  right = np.clip(right, 0.0, masses)
  weights = np.append(masses - right, 0.0) + np.append(0.0, right)
  v = q * np.expm1(edges)
  log_ratio = np.log1p(v)
  with np.errstate(divide='ignore'):
    log_weights = np.log(weights)
  excess = np.empty_like(a)
  for i, order in enumerate(a):
    if replaced:
      half = slice(_CELLS // 2, None)
      # The cell below zero has given its part to the edge at zero, where the
      # integrand is zero.
      logs = _log_symmetric(order, log_ratio[half]) + log_weights[half]
      excess[i] = log_sum(logs)
    else:
      excess[i] = max(
        log_sum(log_bernoulli(b, v, log_ratio) + log_weights)
        for b in (order, 1 - order)
      )
  return _log_moment(excess, a) / (a - 1)


def _opposite_pair(
  kind: str, parameter: float, a: np.ndarray, q: float
) -> np.ndarray:
  """`sampled_pair` for a row replaced in a Poisson sample."""
  top = pairs.opposite_bound(kind, parameter, q) * (1 + 1e-14)
  edges = np.linspace(0.0, top, _CELLS // 2 + 1)
  ends = np.append(edges[:-1], np.inf)
  upper, masses = pairs.opposite_masses(kind, parameter, q, ends)
  # As in `sampled_pair`, with M+ and M- in the place of P and Q. What is moved
  # to the left end of the first cell counts for nothing.
  right = (upper * np.exp(-edges[:-1]) - masses) / np.expm1(np.diff(edges))
  # Of masses and of their small differences.
  right += 1e-12 * (upper + masses) / np.expm1(np.diff(edges))
  right = np.clip(right, 0.0, masses)
  weights = np.append(masses - right, 0.0) + np.append(0.0, right)
  with np.errstate(divide='ignore'):
    log_weights = np.log(weights)
    excess = [
      log_sum(_log_symmetric(order, edges) + log_weights) for order in a
    ]
  return _log_moment(np.array(excess), a) / (a - 1)


def _opposite_moments(a: np.ndarray, q: float, noise: float) -> np.ndarray:
  """Log moments of M+ against M- for a Gaussian mechanism.

  Args:
    a: Orders above 1.
    q: Probability of sampling, inside (0, 1).
    noise: Standard deviation s; M+ and M- are mixtures of noise around 0 and
      around 1 or -1.

  The trapezoid rule over z = x / s. With y = z / s and c = 1 / (2 s^2), M+ is
  the normal density times 1 - q + q exp(y - c), and M- its mirror image. For
  |Im y| <= h < 1 the absolute value of M+ is no larger than at Re y, and that
  of M- at least cos(h) of it, so that the integrand grows by less than
  cos(h)^(1 - a) exp((s h)^2 / 2). With h = min(1/2, 2 / sqrt(a), 2 / s) that is
  less than exp(5), and a step of s h / 6 leaves exp(5 - 12 pi) = 6e-15 of the
  integral of the moment and of the two that are taken from it. The integrand
  has its maximum below (2 a - 1) / s, where its slope is that without sampling.
  """
  shift = 0.5 / noise / noise
  found = np.full_like(a, math.inf)
  for i, order in enumerate(a):
    width = noise * min(0.5, 2 / math.sqrt(order), 2 / noise)
    step = width / 6
    low = -_TAIL - 1 / noise
    points = math.ceil(((2 * order - 1) / noise + _TAIL - low) / step)
    if points > _MOST_POINTS:
      continue
    z = low + step * np.arange(points + 1)
    y = z / noise
    upper, lower = _log_mixed(y - shift, q), _log_mixed(-y - shift, q)
    # r - 1, without cancellation.
    v = np.expm1(upper - lower)
    logs = log_bernoulli(order, v, upper - lower) + lower - 0.5 * z * z
    excess = log_sum(np.where(np.isnan(logs), -np.inf, logs))
    found[i] = excess + math.log(step / math.sqrt(2 * math.pi))
  return _log_moment(found, a)


def _one_sided(a: np.ndarray, q: float, sigma: float) -> np.ndarray:
  """Log moments of M against Q for a Gaussian mechanism."""
  lower, upper = np.floor(a), np.ceil(a)
  moments = {
    order: _whole_moment(int(order), q, sigma) if order <= _SUMMED else math.inf
    for order in {*lower.tolist(), *upper.tolist()}
  }
  below = np.array([moments[order] for order in lower.tolist()])
  above = np.array([moments[order] for order in upper.tolist()])
  share = a - lower
  log_moment = below.copy()
  between = share > 0
  log_moment[between] = ((1 - share) * below + share * above)[between]
  between &= a < _INTEGRATED
  if np.any(between) and sigma >= _LEAST_NOISE:
    log_moment[between] = np.fmin(
      log_moment[between], _integrated_moments(a[between], q, sigma)
    )
  return log_moment


def _whole_moment(order: int, q: float, sigma: float) -> float:
  """log sum_i Binomial(order, q)(i) exp((i^2 - i) / (2 sigma^2)).

  Mironov, Talwar and Zhang 2019, section 3.3, with each exponential less one.
  """
  if order == 1:
    return 0.0
  i = np.arange(2, order + 1, dtype=np.float64)
  factorials = _log_factorials(max(order.bit_length(), 12))
  logs = log_expm1(i * (i - 1) / 2 / sigma / sigma)
  logs -= factorials[2 : order + 1] + factorials[order - 2 :: -1][: i.size]
  logs += i * math.log(q) + (order - i) * math.log1p(-q)
  excess = log_sum(logs) + factorials[order]
  # Of each term, and of sums of up to a million of them.
  parts = 4 * factorials[order] + order * -(math.log(q) + math.log1p(-q))
  excess += _ULPS * (parts + 3 * abs(excess)) + _SLACK
  return float(np.logaddexp(0.0, excess))


@functools.lru_cache(maxsize=8)
def _log_factorials(bits: int) -> np.ndarray:
  return special.gammaln(np.arange(1.0, 2**bits + 1))


def _integrated_moments(a: np.ndarray, q: float, sigma: float) -> np.ndarray:
  """Log moments of M against Q by the trapezoid rule.

  With x = sigma y ~ N(0, sigma^2) the log of dP/dQ is y / sigma - 1 / (2
  sigma^2). The integrand is analytic for |Im y| < pi sigma, and grows there by
  a factor exp(Im(y)^2 / 2), and as little otherwise, so that the error falls
  exponentially with the inverse of the step; with this step it is far below
  1e-14 of the integral.
  """
  step = min(1.0, sigma) / 8
  high = float(np.max(a)) / sigma + _TAIL
  y = -_TAIL + step * np.arange(math.ceil((high + _TAIL) / step) + 1)
  loss = y / sigma - 0.5 / sigma / sigma
  with np.errstate(over='ignore'):
    v = q * np.expm1(loss)
  log_ratio = _log_mixed(loss, q)
  log_density = -0.5 * y * y + math.log(step / math.sqrt(2 * math.pi))
  excess = [
    log_sum(log_density + log_bernoulli(order, v, log_ratio)) for order in a
  ]
  return _log_moment(np.array(excess), a)


def _symmetric_moments(a: np.ndarray, q: float, sigma: float) -> np.ndarray:
  """Log moments of the symmetric pair of a Gaussian mechanism.

  The integral over x > 1/2, with x = 1/2 + w log(1 + exp(t)), w = min(sigma,
  sigma^2), by the trapezoid rule over all t: the integrand falls like exp(3t)
  to the left. In the strip |Im t| < h it grows by less than exp(h^2) from the
  density, and by (1 - h^2 / 4)^((1 - a) / 2) from r^(1 - a), which is next to
  nothing for h = min(1/2, 4 / sqrt(a)). A step of h / 6 leaves exp(-12 pi).
  """
  width = min(sigma, sigma * sigma)
  excess = np.empty_like(a)
  for i, order in enumerate(a):
    step = min(0.5, 4 / math.sqrt(order)) / 6
    high = (order + _TAIL * sigma) / width
    t = np.arange(-20.0, high + step, step)
    distance = np.logaddexp(0.0, t)
    y = 0.5 / sigma + width / sigma * distance
    log_ratio = _log_mixed(width / sigma / sigma * distance, q)
    logs = _log_symmetric(order, log_ratio) - 0.5 * y * y
    logs -= np.logaddexp(0.0, -t)
    excess[i] = log_sum(logs) + math.log(step)
  excess += math.log(width / sigma / math.sqrt(2 * math.pi))
  return _log_moment(excess, a)


def _log_symmetric(order: float, log_ratio: np.ndarray) -> np.ndarray:
  """log((r^(a - 1) - 1) (r - r^(1 - a))) for r >= 1."""
  with np.errstate(divide='ignore'):
    falling = np.log(-np.expm1(-order * log_ratio))
  return log_expm1((order - 1) * log_ratio) + log_ratio + falling


def _log_mixed(loss: np.ndarray, q: float) -> np.ndarray:
  """log(1 + q (exp(loss) - 1))."""
  small = np.log1p(q * np.expm1(np.minimum(loss, 1.0)))
  large = np.logaddexp(math.log1p(-q), math.log(q) + loss)
  return np.where(loss < 1, small, large)


def _log_moment(log_excess: np.ndarray, a: np.ndarray) -> np.ndarray:
  """log(1 + excess), with the errors of a numerical integral."""
  slack = np.log1p(_SLACK * a / (a - 1))
  return np.logaddexp(0.0, log_excess + slack)
