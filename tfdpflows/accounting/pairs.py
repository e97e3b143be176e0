"""Dominating pairs of single mechanisms, and their mass between two losses.

A mechanism is dominated by a pair of one-dimensional distributions (P, Q). The
privacy loss is log(dP/dQ)(x). Each pair here is symmetric: the loss under P is
distributed as minus the loss under Q, so that one pair serves both directions.

- Gaussian: N(1, sigma^2) and N(0, sigma^2); the loss is (x - 1/2) / sigma^2.
- Laplace: Lap(1, b) and Lap(0, b). With E = 1 / b the loss has atoms at -E and
  E, of mass 1/2 and exp(-E)/2 under Q; between them, Q has the density
  exp(-(E + loss)/2) / 4.
- Bounded range E (the exponential mechanism): all losses of such a mechanism
  lie in [t - E, t] for some t in [0, E], where p = (exp(E) - exp(t)) /
  (exp(E) - 1) at t and 1 - p at t - E is the worst (Dong, Durfee and Rogers
  2020, lemma 3.2: moving mass outwards, with its masses under P and Q kept,
  only adds divergence). Such a pair has the divergence p (1 - exp(x - t)) at x,
  which is largest at t = (E + x)/2. The largest one,

      delta(x) = (exp(E/2) - exp(x/2))^2 / (exp(E) - 1),   -E <= x <= E,

  is convex in exp(x), with slope -1 at -E and 0 at E. It is therefore the
  divergence of a pair, one without atoms, and that pair dominates whatever t
  each run has (Zhu, Dong and Wang 2022, proposition 8 and theorem 10). Its
  slope is minus the mass of Q above: (exp((E - x)/2) - 1) / (exp(E) - 1). So Q
  has the density of the Laplace pair, times 2 / (1 - exp(-E)).

#### A row replaced in a Poisson sample
Given all other rows of the sample, let the output be w0 without the row that
differs, w with it and w' with the row in its place. Additive noise of which P
and Q above (of standard deviation or scale s per unit) dominate w against w0
and w' against w0 gives, for every event A and K_m the noise around m,

    w(A) <= K_1(x >= t)  and  w'(A) >= K_-1(x >= t)  where w0(A) = K_0(x >= t):

both are the lemma of Neyman and Pearson for P and Q, whose likelihood ratio
grows with x, and, mirrored, for K_-1 and K_0, whose ratio falls. It is one and
the same t in both. So for every alpha >= 0 (q being the probability of a row)

    (1 - q) w0(A) + q w(A) - alpha ((1 - q) w0(A) + q w'(A))

is at most the same for the event x >= t under the K, and with the supremum over
A and the mean over all other rows (divergences are jointly convex) the pair

    (1 - q) K_0 + q K_1  against  (1 - q) K_0 + q K_-1

dominates the mechanism on the sample (Zhu, Dong and Wang 2022, definition 7),
under composition too (theorem 10 there). It is what happens to a row of 1 that
is replaced by one of -1 among rows of 0, so nothing less would do. (This pair
is also the one of dp_accounting 0.6 for Gaussian noise.) The mirror image x ->
-x swaps its two distributions. The loss grows with x and is 0 at x = 0, so that
x > 0 is where it is positive.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

__all__ = [
  'interval_masses',
  'loss_bounds',
  'opposite_bound',
  'opposite_masses',
  'sampled_loss',
]

# Tails of the noise beyond this many standard deviations (mass 2e-33) count as
# an infinite loss.
_TAIL = 12.0
# Bins of a normal distribution are integrated by a series up to this width.
_NARROW = 0.05
# The inverse of less than this is no float.
_LEAST = 1e-300


def loss_bounds(kind: str, parameter: float) -> tuple[float, float]:
  """The smallest and the largest loss of a pair that need a grid point.

  Args:
    kind: 'gaussian', 'laplace' or 'bounded_range'.
    parameter: Of the `Mechanism`.

  Returns:
    A pair of floats, in nats; infinite where they do not fit into a float.

  ```python
  >>> loss_bounds('laplace', 2.0)
  (-0.5, 0.5)

  ```
  """
  if kind == 'gaussian':
    bound = _TAIL / parameter + 0.5 / parameter / parameter
  elif kind == 'laplace':
    bound = 1 / parameter
  else:
    bound = parameter
  return -bound, bound


def interval_masses(
  kind: str, parameter: float, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Masses of both distributions between losses.

  Args:
    kind: 'gaussian', 'laplace' or 'bounded_range'.
    parameter: Of the `Mechanism`.
    edges: Float64 [k + 1], losses in nats, increasing; the first and the last
      may be infinite.

  Returns:
    Two float64 [k]: the masses of P and of Q. Their errors are relative to each
    mass, a few units in the last place times one plus its logarithm.

  ```python
  >>> p, q = interval_masses('laplace', 1.0, np.array([-np.inf, 0.0, np.inf]))
  >>> print(p.round(3), q.round(3))
  [0.303 0.697] [0.697 0.303]

  ```
  """
  if kind == 'gaussian':
    return _gaussian(parameter, edges)
  if kind == 'laplace':
    return _exponential(1 / parameter, edges, 0.5, 0.5)
  bound = max(parameter, _LEAST)
  return _exponential(bound, edges, -1 / math.expm1(-bound), 0.0)


def sampled_loss(loss: float, q: float) -> float:
  """log(1 - q + q exp(loss)), what sampling makes of a loss.

  Args:
    loss: In nats.
    q: Probability of sampling, inside (0, 1].

  Returns:
    A float, a few units in the last place off: near zero the logarithm is not
    taken of a rounded number near one.

  ```python
  >>> sampled_loss(1e-9, 0.5)
  5.0000000012...e-10

  ```
  """
  if q == 1:
    return loss
  if loss > 700:
    return math.log(q) + loss + math.log1p((1 - q) / q * math.exp(-loss))
  change = q * math.expm1(loss)
  if change > -0.5:
    return math.log1p(change)
  return math.log((1 - q) + q * math.exp(loss))


def opposite_bound(kind: str, parameter: float, q: float) -> float:
  """The largest loss of the pair of a row replaced in a Poisson sample.

  Args:
    kind: 'gaussian' or 'laplace'.
    parameter: Of the `Mechanism`, which is half the noise.
    q: Probability of sampling, inside (0, 1).

  Returns:
    In nats; up to a few units in the last place. For a Gaussian mechanism, the
    largest that needs a grid point.
  """
  high = loss_bounds(kind, 2 * parameter)[1]
  low = -1 / (2 * parameter)
  if kind == 'gaussian':
    low = -high - 0.25 / parameter / parameter
  return sampled_loss(high, q) - sampled_loss(low, q)


def opposite_masses(
  kind: str, parameter: float, q: float, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Masses of the pair of a row replaced in a Poisson sample, see the top.

  Args:
    kind: 'gaussian' or 'laplace'.
    parameter: Of the `Mechanism`, which is half the noise.
    q: Probability of sampling, inside (0, 1).
    edges: Float64 [k + 1], losses in nats, increasing, the first one zero; the
      last may be infinite.

  Returns:
    Two float64 [k], of (1 - q) K_0 + q K_1 and of (1 - q) K_0 + q K_-1 between
    these losses, with errors as in `interval_masses`.

  With y = x / s^2 and c = 1 / (2 s^2), the loss of Gaussian noise is log(1 - q
  + q exp(y - c)) - log(1 - q + q exp(-y - c)), and y = loss / 2 + asinh((1 - q)
  / q exp(c) sinh(loss / 2)). That of Laplace noise is log(1 - q + q exp(l)) -
  log(1 - q + q exp(-1 / s)), l being the loss of K_1 against K_0, and K_-1 is
  exp(-1 / s) K_0 for x > 0.
  """
  noise = 2 * parameter
  if kind == 'laplace':
    top = 1 / noise
    low = -sampled_loss(-top, q)
    with np.errstate(divide='ignore', over='ignore', invalid='ignore'):
      rest = np.log(np.expm1(np.minimum(edges - low - math.log1p(-q), 40.0)))
    rest += np.maximum(edges - low - math.log1p(-q) - 40.0, 0.0)
    losses = rest + (math.log1p(-q) - math.log(q))
    # Not the atom at the lowest loss, which is all of x < 0.
    losses[0] = math.nextafter(-top, math.inf)
    one, zero = interval_masses(kind, noise, np.append(-np.inf, losses))
    one, zero = one[1:], zero[1:]
    other = zero * math.exp(-top)
  else:
    half = edges / 2
    shift = 0.5 / noise / noise
    with np.errstate(divide='ignore', over='ignore', invalid='ignore'):
      log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
      log_sinh += shift + math.log1p(-q) - math.log(q)
      y = half + np.where(
        log_sinh < 20,
        np.arcsinh(np.exp(np.minimum(log_sinh, 20.0))),
        log_sinh + math.log(2),
      )
    y = np.where(edges == np.inf, np.inf, y)
    one, zero = interval_masses(kind, noise, y - shift)
    other = interval_masses(kind, noise, (-y - shift)[::-1])[0][::-1]
  return (1 - q) * zero + q * one, (1 - q) * zero + q * other


def _exponential(
  bound: float, edges: np.ndarray, weight: float, atom: float
) -> tuple[np.ndarray, np.ndarray]:
  """Density weight exp(-(bound + loss)/2) / 2 under Q, and an atom at -bound.

  The atom at the other end has exp(-bound) times its mass.
  """
  inner = np.clip(edges, -bound, bound)
  width = -np.expm1(-np.diff(inner) / 2) * weight
  upper = width * np.exp((inner[1:] - bound) / 2)
  lower = width * np.exp(-(bound + inner[:-1]) / 2)
  if atom > 0:
    # Into the interval that holds the loss; the outermost ones hold the rest.
    last = len(width) - 1
    low = min(max(np.searchsorted(edges, -bound, 'right') - 1, 0), last)
    high = min(max(np.searchsorted(edges, bound, 'left') - 1, 0), last)
    far = atom * math.exp(-bound)
    upper[low] += far
    lower[low] += atom
    upper[high] += atom
    lower[high] += far
  return upper, lower


def _gaussian(sigma: float, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  shift = 0.5 / sigma
  with np.errstate(invalid='ignore', over='ignore'):
    width = sigma * np.diff(edges)
    middle = sigma * (0.5 * edges[:-1] + 0.5 * edges[1:])
    narrow = width * (1 + shift + np.abs(middle)) < _NARROW
  # The first run of narrow ones; that is all of them, or nearly.
  first = int(np.argmax(narrow))
  length = int(np.argmin(np.append(narrow[first:], False)))
  others = np.r_[0:first, first + length : len(narrow)]
  inside = slice(first, first + length)
  upper, lower = np.empty(len(width)), np.empty(len(width))
  with np.errstate(over='ignore'):
    ends = sigma * edges[others], sigma * edges[others + 1]
  for masses, offset in ((upper, -shift), (lower, shift)):
    masses[inside] = _narrow_masses(middle[inside] + offset, width[inside])
    masses[others] = _normal_masses(ends[0] + offset, ends[1] + offset)
  return upper, lower


def _narrow_masses(middle: np.ndarray, width: np.ndarray) -> np.ndarray:
  """The normal density times the width, and three terms of Taylor's series.

  Differences of distribution functions would leave an error of 1e-16 in each
  mass, which is not small when a million bins are composed a million times.
  """
  x, w = middle * middle, width * width
  series = (x * (x * (x - 15) + 45) - 15) * (w / 322560)
  series = ((x * (x - 6) + 3) / 1920 + series) * w
  series = ((x - 1) / 24 + series) * w
  density = np.exp(-0.5 * x) / math.sqrt(2 * math.pi)
  return density * (width * (1 + series))


def _normal_masses(left: np.ndarray, right: np.ndarray) -> np.ndarray:
  # On the side of the tail, where the difference keeps its relative accuracy.
  mirrored = left > 0
  left, right = (
    np.where(mirrored, -right, left),
    np.where(mirrored, -left, right),
  )
  return special.ndtr(right) - special.ndtr(left)
