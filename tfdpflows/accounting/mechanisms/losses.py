"""Privacy loss distributions on a grid.

For x drawn from P, the loss is log(dP/dQ)(x), and the hockey-stick divergence

    delta(epsilon) = E_P[max(0, 1 - exp(epsilon - loss))]

is the smallest delta at which the pair (P, Q) is (epsilon, delta)-private
(Sommer, Meiser and Mohammadi 2019). Which pair dominates a mechanism is derived
where its class is; here losses are put on a grid.

#### Formal guarantee
The discrete distribution dominates the continuous one. The outcomes whose loss
falls between two neighbouring grid points have some mass p under P and q under
Q; p is shared between the two points so that q is kept as well ('Connect the
dots', Doroshenko et al. 2022, theorem 3.3). Its hockey-stick divergence is the
chord, in exp(epsilon), of a convex function that it meets at the grid points,
so it is never below. Mass beyond the grid is moved to the lowest point or to an
infinite loss, both upwards. Rounding cannot undo this: masses are integrated
with an error relative to each mass, and what the rounding of masses, losses and
edges may come to is moved up by one grid point; the ends of the grid are
rounded outwards, so that no loss lies beyond them by rounding.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from scipy import special

# Orders of the moment generating functions that the tails are bounded with,
# times the distance of two grid points.
_POSITIVE = np.geomspace(1e-6, 1, 97)
UNIT_ORDERS = np.concatenate([-_POSITIVE[::-1], [0.0], _POSITIVE])
# Grid points that the moments are summed over at once; exp(512) is a float.
_ROW = 1024
_EPS = float(np.finfo(np.float64).eps)


class LossDistribution(NamedTuple):
  """Masses of P at the losses `interval * (lower + arange(len(masses)))`.

  `log_mgf` is log sum masses * exp(order * loss) at the orders `UNIT_ORDERS /
  interval`.
  """

  lower: int  # Index of the first grid point.
  masses: np.ndarray
  infinity: float  # Mass of an infinite loss.
  log_mgf: np.ndarray


# In both directions; the same object twice for a symmetric pair.
LossPair = tuple[LossDistribution, LossDistribution]


def outwards(loss: float) -> float:
  """Returns a loss moved away from zero by a few units in the last place."""
  if loss == 0 or not math.isfinite(loss):
    return loss
  return math.nextafter(loss * (1 + 16 * _EPS), math.copysign(math.inf, loss))


def one_sided(
  upper: np.ndarray,
  lower: np.ndarray,
  first: int,
  interval: float,
  argument: float,
) -> LossDistribution:
  """Returns a distribution, with masses shared between grid points.

  Args:
    upper: Float64 [k + 1], mass of P below the first grid point, between each
      two, and above the last.
    lower: Float64 [k + 1], the same of Q.
    first: index of the first grid point.
    interval: distance of the grid points.
    argument: as in `shared`.
  """
  masses = shared(upper[1:-1], lower[1:-1], first, interval, argument)
  masses[0] += upper[0]
  return with_moments(first, masses, float(upper[-1]))


def two_sided(
  above: tuple[np.ndarray, np.ndarray],
  below: tuple[np.ndarray, np.ndarray],
  interval: float,
  argument: float,
) -> LossDistribution:
  """Returns one pair above zero, another swapped below, the rest at zero.

  Args:
    above: two float64 [k + 1]: masses of both sides at losses between each two
      grid points from zero on, and above the last.
    below: the same of the other pair.
    interval: distance of the grid points.
    argument: as in `shared`.
  """
  upper, lower = above
  swapped, top = below
  last = len(swapped) - 1
  masses = np.zeros(last + len(upper))
  masses[last:] += shared(upper[:-1], lower[:-1], 0, interval, argument)
  masses[: last + 1] += shared(
    top[-2::-1], swapped[-2::-1], -last, interval, argument
  )
  masses[0] += top[-1]
  rest = 1 - float(np.sum(upper)) - float(np.sum(top))
  masses[last] += max(rest, 0.0) + 16 * _EPS
  return with_moments(-last, masses, float(upper[-1]))


def discrete(
  losses: np.ndarray,
  upper: np.ndarray,
  lower: np.ndarray,
  logs: float,
  interval: float,
) -> LossDistribution:
  """Returns a distribution of increasing losses, shared between grid points.

  Their masses are `upper` under P and `lower` under Q; `logs` is the largest
  log that the losses were computed from, if not themselves.
  """
  # Where rounding leaves open which side of a grid point a loss is on, it is
  # above it, where it may be moved up; `shared` does so.
  rounding = 16 * _EPS * (np.abs(losses) + logs)
  edges = np.floor((losses + rounding) / interval)
  edges = edges.astype(np.int64)
  first, number = int(edges[0]), int(edges[-1] - edges[0]) + 1
  binned = [
    np.bincount(edges - first, masses, number) for masses in (upper, lower)
  ]
  return with_moments(first, shared(*binned, first, interval), 0.0)


def shared(
  upper: np.ndarray,
  lower: np.ndarray,
  first: int,
  interval: float,
  argument: float = 0.0,
) -> np.ndarray:
  """Returns the masses at the ends of intervals with masses of P and Q.

  The edges are losses without sampling, and sums in which `argument` is a part
  that may cancel.
  """
  left = np.arange(first, first + len(upper)) * interval
  # Where exp(left) overflows, Q has no mass that a float can hold.
  with np.errstate(over='ignore', invalid='ignore'):
    above = upper - lower * np.exp(left)
  above = np.where(np.isfinite(above), above, upper)
  # Rounding, of exponentials relative to their arguments: those are the logs of
  # both masses and the loss itself.
  above += (
    upper * (4 + 2 * np.abs(left) + 2 * argument)
    - 2 * special.xlogy(upper, upper)
  ) * (32 * _EPS)
  moved = np.clip(above / -math.expm1(-interval), 0, upper)
  masses = np.zeros(len(upper) + 1)
  masses[:-1] = upper - moved
  masses[1:] += moved
  return masses


def with_moments(
  lower: int, masses: np.ndarray, infinity: float
) -> LossDistribution:
  """Returns a distribution without the zeros at its ends."""
  kept = np.flatnonzero(masses)
  if len(kept) == 0:
    none = np.full(len(UNIT_ORDERS), -np.inf)
    return LossDistribution(0, np.zeros(1), infinity, none)
  masses = masses[kept[0] : kept[-1] + 1]
  lower += int(kept[0])
  masses.flags.writeable = False
  return LossDistribution(lower, masses, infinity, _log_mgf(lower, masses))


@functools.lru_cache(maxsize=1)
def _moments() -> np.ndarray:
  return np.exp(np.outer(np.arange(_ROW) - _ROW // 2, UNIT_ORDERS))


def _log_mgf(lower: int, masses: np.ndarray) -> np.ndarray:
  """Returns log sum masses * exp(order * loss), by one matrix product.

  The grid is cut into rows short enough for exp(order * loss) to keep within
  the range of floats in a row; the rows are then added in logs.
  """
  table = np.pad(masses, (0, -len(masses) % _ROW)).reshape(-1, _ROW)
  # Relative to the largest mass of a row, so that nothing that counts vanishes.
  peaks = np.maximum(np.max(table, axis=1), np.finfo(np.float64).tiny)
  with np.errstate(divide='ignore'):
    rows = np.log((table / peaks[:, None]) @ _moments())
  rows += np.log(peaks)[:, None]
  centres = lower + _ROW // 2 + _ROW * np.arange(len(table))
  return special.logsumexp(rows + np.outer(centres, UNIT_ORDERS), axis=0)
