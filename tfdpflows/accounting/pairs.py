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
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

__all__ = ['interval_masses', 'loss_bounds']

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
