"""Privacy loss distributions of single mechanisms, on a grid.

A mechanism is dominated by a pair of one-dimensional distributions (P, Q). Its
privacy loss is log(dP/dQ)(x) for x drawn from P, and the hockey-stick
divergence

    delta(epsilon) = E_P[max(0, 1 - exp(epsilon - loss))]

is the smallest delta at which it is (epsilon, delta)-private (Sommer, Meiser
and Mohammadi 2019; Zhu, Dong and Wang 2022 for the dominating pairs used here).

#### Formal guarantee
The discrete distribution dominates the continuous one. The outcomes whose loss
falls between two neighbouring grid points have some mass p under P and q under
Q; p is shared between the two points so that q is kept as well ('Connect the
dots', Doroshenko et al. 2022, theorem 3.3). Its hockey-stick divergence is the
chord, in exp(epsilon), of a convex function that it meets at the grid points,
so it is never below. Mass beyond the grid is moved to the lowest point or to an
infinite loss, both upwards. Masses are taken as differences of distribution
functions on the side of the tail, and so keep their relative accuracy there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from tfdpflows.accounting import flatten as flatten_lib

__all__ = [
  'ORDERS',
  'LossDistribution',
  'loss_distributions',
  'loss_range',
  'loss_scale',
]

Mechanism = flatten_lib.Mechanism

# Tails of the noise beyond this many standard deviations (mass 2e-33) count as
# an infinite loss.
_TAIL = 12.0

# Orders of the moment generating functions that the tails are bounded with.
_POSITIVE = np.geomspace(2e-3, 4e3, 64)
ORDERS = np.concatenate([-_POSITIVE[::-1], [0.0], _POSITIVE])


class LossDistribution(NamedTuple):
  """Masses of P at the losses `interval * (lower + arange(len(masses)))`.

  Attributes:
    lower: Index of the first grid point.
    masses: Float64 [k], zero or more.
    infinity: Mass of an infinite loss.
    log_mgf: Float64 [len(ORDERS)], log sum masses * exp(order * loss).
  """

  lower: int
  masses: np.ndarray
  infinity: float
  log_mgf: np.ndarray


def loss_range(mechanism: Mechanism) -> tuple[float, float]:
  """The smallest and the largest finite loss of a mechanism, in nats.

  Args:
    mechanism: A mechanism.

  Returns:
    A pair of floats.

  ```python
  >>> loss_range(Mechanism('laplace', 2.0))
  (-0.5, 0.5)

  ```
  """
  kind, parameter, probability, _ = mechanism
  if kind == 'epsilon_delta':
    return -parameter, parameter
  if kind == 'laplace':
    bounds = np.array([-1.0, 1.0]) / parameter
  else:
    outcomes = np.array([-_TAIL * parameter, 1 + _TAIL * parameter])
    bounds = (outcomes - 0.5) / parameter / parameter
  low, high = _sampled_loss(bounds, probability)
  return float(low), float(high)


def loss_scale(mechanism: Mechanism) -> float:
  """Roughly the standard deviation of the loss of a mechanism, in nats.

  Args:
    mechanism: A mechanism.

  Returns:
    A float. It is only good for choosing a grid.

  ```python
  >>> loss_scale(Mechanism('gaussian', 10.0))
  0.1

  ```
  """
  kind, parameter, probability, _ = mechanism
  if kind == 'epsilon_delta':
    return parameter
  return probability / parameter


@functools.lru_cache(maxsize=24)
def loss_distributions(
  mechanism: Mechanism, interval: float
) -> tuple[LossDistribution, LossDistribution]:
  """The loss distributions of a mechanism, in both directions.

  Args:
    mechanism: Of a kind with a loss distribution: gaussian, laplace or
      epsilon_delta.
    interval: Distance of the grid points, in nats.

  Returns:
    The distribution where the table with one more row is on top (P) and the one
    where it is below (Q). They are the same object where the mechanism is
    symmetric.

  ```python
  >>> remove, add = loss_distributions(Mechanism('laplace', 1.0), 0.01)
  >>> remove is add, remove.lower, len(remove.masses)
  (True, -100, 201)

  ```
  """
  if mechanism.kind == 'epsilon_delta':
    both = _randomized_response(mechanism, interval)
    return both, both
  low, high = loss_range(mechanism)
  first, last = math.floor(low / interval), math.ceil(high / interval)
  losses = np.arange(first, last + 1) * interval
  inner = _unsampled_loss(losses, mechanism.probability)
  if mechanism.kind == 'gaussian':
    edges = inner * mechanism.parameter**2 + 0.5
    distribution, survival = special.ndtr, lambda x: special.ndtr(-x)
  else:
    # The losses at both ends are atoms, and rounding must not cut them off.
    edges = np.where(
      np.abs(inner) < 1 / mechanism.parameter,
      0.5 + 0.5 * mechanism.parameter * inner,
      np.copysign(np.inf, inner),
    )
    edges[0], edges[-1] = -np.inf, np.inf
    distribution, survival = _laplace, lambda x: _laplace(-x)
  edges = np.concatenate([[-np.inf], edges, [np.inf]])
  without = _interval_masses(edges, mechanism, distribution, survival)
  shifted = _interval_masses(edges - 1, mechanism, distribution, survival)
  q = mechanism.probability
  with_row = q * shifted + (1 - q) * without
  remove = _on_grid(with_row, without, first, interval)
  if q == 1:
    return remove, remove
  add = _on_grid(without[::-1], with_row[::-1], -last, interval)
  return remove, add


def _sampled_loss(loss: np.ndarray, q: float) -> np.ndarray:
  """log(1 - q + q exp(loss))."""
  if q == 1:
    return loss
  return np.logaddexp(math.log1p(-q), math.log(q) + loss)


def _unsampled_loss(loss: np.ndarray, q: float) -> np.ndarray:
  """The inverse of `_sampled_loss`; minus infinity below its range."""
  if q == 1:
    return loss
  with np.errstate(divide='ignore', over='ignore'):
    excess = np.maximum(np.expm1(loss) + q, 0.0)
    exact = np.log(excess) - math.log(q)
  large = loss - math.log(q) + np.log1p((q - 1) * np.exp(-np.abs(loss)))
  return np.where(loss > 30, large, exact)


def _laplace(x: np.ndarray) -> np.ndarray:
  half = 0.5 * np.exp(-np.abs(x))
  return np.where(x < 0, half, 1 - half)


def _interval_masses(
  edges: np.ndarray,
  mechanism: Mechanism,
  distribution: Callable[[np.ndarray], np.ndarray],
  survival: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
  z = edges / mechanism.parameter
  below = np.diff(distribution(z))
  above = -np.diff(survival(z))
  return np.where(z[:-1] > 0, above, below)


def _on_grid(
  upper: np.ndarray, lower: np.ndarray, first: int, interval: float
) -> LossDistribution:
  """Shares masses between grid points.

  Args:
    upper: Float64 [k + 1], mass of P below the first grid point, between each
      two, and above the last.
    lower: Float64 [k + 1], the same of Q.
    first: Index of the first grid point.
    interval: Distance of the grid points.

  Returns:
    The distribution on k grid points.
  """
  inside = upper[1:-1]
  left = np.arange(first, first + len(inside)) * interval
  # Where exp(left) overflows, Q has no mass that a float can hold.
  with np.errstate(over='ignore', invalid='ignore'):
    moved = (inside - lower[1:-1] * np.exp(left)) / -math.expm1(-interval)
  moved = np.clip(np.where(np.isnan(moved), inside, moved), 0, inside)
  masses = np.zeros(len(inside) + 1)
  masses[:-1] = inside - moved
  masses[1:] += moved
  masses[0] += upper[0]
  return _with_mgf(first, masses, float(upper[-1]), interval)


def _randomized_response(
  mechanism: Mechanism, interval: float
) -> LossDistribution:
  epsilon, delta = mechanism.parameter, mechanism.extra
  truth = (1 - delta) / (1 + math.exp(-epsilon))
  lie = truth * math.exp(-epsilon)
  last = max(math.ceil(epsilon / interval), 1)
  masses = np.zeros(2 * last + 1)
  # The two atoms sit at -epsilon and epsilon. Each is shared between the grid
  # points around it, with its masses under P and Q kept.
  gap = epsilon - (last - 1) * interval
  up = truth * min(max(-math.expm1(-gap) / -math.expm1(-interval), 0), 1)
  masses[-1] += up
  masses[-2] += truth - up
  gap = last * interval - epsilon
  up = lie * min(max(-math.expm1(-gap) / -math.expm1(-interval), 0), 1)
  masses[1] += up
  masses[0] += lie - up
  return _with_mgf(-last, masses, delta, interval)


def _with_mgf(
  lower: int, masses: np.ndarray, infinity: float, interval: float
) -> LossDistribution:
  kept = np.flatnonzero(masses > 0)
  if len(kept) == 0:
    return LossDistribution(
      0, np.zeros(1), infinity, np.full(len(ORDERS), -np.inf)
    )
  masses = masses[kept[0] : kept[-1] + 1]
  lower += int(kept[0])
  log_mgf = _log_mgf(lower, masses, interval)
  masses.flags.writeable = False
  return LossDistribution(lower, masses, infinity, log_mgf)


def _log_mgf(lower: int, masses: np.ndarray, interval: float) -> np.ndarray:
  """log sum masses * exp(order * loss) at `ORDERS`, as one matrix product.

  The grid is cut into rows short enough for exp(order * loss) to keep within
  the range of floats in a row; the rows are then added in logs.
  """
  row = int(min(max(500 / (interval * ORDERS[-1]), 1), 1024))
  table = np.pad(masses, (0, -len(masses) % row)).reshape(-1, row)
  centred = (np.arange(row) - row // 2) * interval
  with np.errstate(divide='ignore'):
    rows = np.log(table @ np.exp(np.outer(centred, ORDERS)))
  centres = (lower + row // 2 + row * np.arange(len(table))) * interval
  return special.logsumexp(rows + np.outer(centres, ORDERS), axis=0)
