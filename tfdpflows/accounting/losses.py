"""Privacy loss distributions of single mechanisms, on a grid.

For x drawn from P, the loss is log(dP/dQ)(x), and the hockey-stick divergence

    delta(epsilon) = E_P[max(0, 1 - exp(epsilon - loss))]

is the smallest delta at which the pair (P, Q) is (epsilon, delta)-private
(Sommer, Meiser and Mohammadi 2019). The pairs are those of
`tfdpflows.accounting.pairs`; what sampling makes of them is derived here.

- A row is added or removed: (1 - q) Q + q P against Q, and the other way round
  (Zhu, Dong and Wang 2022, theorem 11).
- A row is replaced in a Poisson sample of a mechanism with additive noise: the
  pair of `tfdpflows.accounting.pairs`, which is symmetric.
- A row is replaced, else: the profile g(alpha) = H_alpha((1 - q) Q + q P || Q)
  for alpha = exp(epsilon) >= 1 holds in both directions (Balle, Barthe and
  Gaboardi 2018, theorem 2; see `tfdpflows.accounting.flatten`), and so, for any
  two distributions, does g(alpha) = alpha g(1 / alpha) + 1 - alpha below 1.
  That is the divergence of a pair: each positive loss l has the masses under (1
  - q) Q + q P and Q that it has there, -l has the same two swapped, and what is
  left, equal under both, has loss 0. This needs something to be left: with A
  the event that the loss is positive, (1 - q) Q(A) + q P(A) + Q(A) <= 1. As the
  pair without sampling is symmetric, P(A) + Q(A) = 1 - P[loss = 0] <= 1 and
  Q(A) <= P(A), so that Q(A) <= 1/2, and the sum is 2 (1 - q) Q(A) + q (P(A) +
  Q(A)) <= 1. With q = 1 it is the pair without sampling.
- One of several mechanisms is drawn, with probabilities that have nothing to do
  with the row that differs: by joint convexity the average of their divergences
  is a bound, and that is the divergence of the average of their distributions
  of losses.

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

from tfdpflows.accounting import atoms, null_rows, pairs
from tfdpflows.accounting.cache import cached
from tfdpflows.accounting.mechanism import OPPOSITE, Mechanism

__all__ = [
  'UNIT_ORDERS',
  'LossDistribution',
  'loss_distributions',
  'loss_range',
  'loss_scale',
]

# Orders of the moment generating functions that the tails are bounded with,
# times the distance of two grid points.
_POSITIVE = np.geomspace(1e-6, 1, 97)
UNIT_ORDERS = np.concatenate([-_POSITIVE[::-1], [0.0], _POSITIVE])
# Grid points that the moments are summed over at once; exp(512) is a float.
_ROW = 1024
# Bytes of distributions that are kept.
_KEPT = 2**28
_EPS = float(np.finfo(np.float64).eps)


class LossDistribution(NamedTuple):
  """Masses of P at the losses `interval * (lower + arange(len(masses)))`.

  Attributes:
    lower: Index of the first grid point.
    masses: Float64 [k], zero or more.
    infinity: Mass of an infinite loss.
    log_mgf: Float64 [len(UNIT_ORDERS)], log sum masses * exp(order * loss) at
      the orders `UNIT_ORDERS / interval`.
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
    A pair of floats, rounded outwards.

  ```python
  >>> loss_range(Mechanism('laplace', 2.0))
  (-0.50000000000..., 0.50000000000...)

  ```
  """
  kind, parameter, q = mechanism[:3]
  if kind in atoms.KINDS:
    losses = atoms.atoms(mechanism).losses
    return float(losses[0]), float(losses[-1])
  if kind == 'gaussian_or_null':
    largest = pairs.loss_bounds('gaussian', parameter)[1]
    largest = _outwards(null_rows.loss_at(largest, q, parameter))
    return -largest, largest
  if kind == 'mixture':
    ranges = [loss_range(part) for part, _ in mechanism.parts]
    return min(low for low, _ in ranges), max(high for _, high in ranges)
  if kind == 'epsilon_delta':
    low, high = -parameter, parameter
  elif mechanism.replaced == OPPOSITE and q < 1:
    high = pairs.opposite_bound(kind, parameter, q)
    low = -high
  else:
    low, high = (
      pairs.sampled_loss(bound, q)
      for bound in pairs.loss_bounds(kind, parameter)
    )
    low = -high if mechanism.replaced else low
  return _outwards(low), _outwards(high)


def loss_scale(mechanism: Mechanism) -> float:
  """Roughly the standard deviation of the loss of a mechanism, in nats.

  Args:
    mechanism: A mechanism.

  Returns:
    A float. It is only good for choosing a grid.

  ```python
  >>> round(loss_scale(Mechanism('gaussian', 10.0)), 3)
  0.1

  ```
  """
  kind, parameter, probability = mechanism[:3]
  if kind == 'mixture':
    scales = [
      math.sqrt(weight) * loss_scale(part) for part, weight in mechanism.parts
    ]
    return math.hypot(*scales)
  if kind == 'gaussian' and mechanism.replaced == OPPOSITE:
    ratio = math.sinh(min(0.25 / parameter / parameter, 100.0))
    return min(2 * probability * math.sqrt(ratio), 1 / parameter)
  if kind in ('gaussian', 'gaussian_or_null'):
    # Under Q, sampled, and at most the one without sampling.
    ratio = math.expm1(min(1 / parameter / parameter, 100.0))
    return min(probability * math.sqrt(ratio), 1 / parameter)
  if kind in atoms.KINDS:
    losses, upper, _ = atoms.atoms(mechanism)
    return math.sqrt(float(np.sum(upper * losses * losses)))
  return probability * pairs.loss_bounds(kind, parameter)[1]


@cached(_KEPT, lambda pair: 16 * max(len(x.masses) for x in pair))
def loss_distributions(
  mechanism: Mechanism, interval: float
) -> tuple[LossDistribution, LossDistribution]:
  """The loss distributions of a mechanism, in both directions.

  Args:
    mechanism: Of a kind with a loss distribution: gaussian, laplace,
      bounded_range, epsilon_delta, gaussian_or_null, mixture or one of
      `atoms.KINDS`.
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
  if mechanism.kind == 'gaussian_or_null':
    return _null_row(mechanism, interval)
  if mechanism.kind in atoms.KINDS:
    return _atomic(mechanism, interval)
  if mechanism.kind == 'epsilon_delta':
    both = _randomized_response(mechanism, interval)
    return both, both
  if mechanism.kind == 'mixture':
    return _mixture(mechanism, interval)
  kind, parameter, q = mechanism[:3]
  low, high = loss_range(mechanism)
  first, last = math.floor(low / interval), math.ceil(high / interval)
  argument = 0.0
  if kind == 'gaussian':
    argument = 0.5 / parameter / parameter
  if q < 1:
    argument -= math.log(q)
  if mechanism.replaced == OPPOSITE and q < 1:
    edges = np.arange(last + 1) * interval
    edges = np.append(edges, np.inf)
    if kind != 'gaussian':
      # No loss is above the last grid point.
      edges = np.append(edges[:-2], [np.inf, np.inf])
    masses = pairs.opposite_masses(kind, parameter, q, edges)
    with_row, without = (np.append(0.0, x) for x in masses)
    both = _replaced(with_row, without, last, interval, argument)
    return both, both
  replaced = mechanism.replaced and q < 1
  if replaced:
    first = 0
  edges = _unsampled_loss(np.arange(first, last + 1) * interval, q)
  if kind != 'gaussian':
    # The losses end there, and rounding must not cut an end off.
    edges[-1] = np.inf
    if not replaced:
      edges[0] = -np.inf
  edges = np.concatenate([[-np.inf], edges, [np.inf]])
  with_row, without = pairs.interval_masses(kind, parameter, edges)
  if q < 1:
    with_row = q * with_row + (1 - q) * without
  if replaced:
    both = _replaced(with_row, without, last, interval, argument)
    return both, both
  remove = _on_grid(with_row, without, first, interval, argument)
  if q == 1:
    return remove, remove
  add = _on_grid(without[::-1], with_row[::-1], -last, interval, argument)
  return remove, add


def _mixture(
  mechanism: Mechanism, interval: float
) -> tuple[LossDistribution, LossDistribution]:
  """The average of the distributions of some mechanisms."""
  parts = [
    (loss_distributions(part, interval), weight)
    for part, weight in mechanism.parts
  ]
  symmetric = all(remove is add for (remove, add), _ in parts)
  found = []
  for direction in range(1 if symmetric else 2):
    each = [(pair[direction], weight) for pair, weight in parts]
    lower = min(part.lower for part, _ in each)
    size = max(part.lower + len(part.masses) for part, _ in each) - lower
    masses, infinity = np.zeros(size), 0.0
    for part, weight in each:
      start = part.lower - lower
      masses[start : start + len(part.masses)] += weight * part.masses
      infinity += weight * part.infinity
    infinity = min(infinity * (1 + 8 * _EPS), 1.0)
    found.append(_with_mgf(lower, masses, infinity, interval))
  return found[0], found[-1]


def _outwards(loss: float) -> float:
  """Away from zero, by more than a few units in the last place."""
  if loss == 0 or not math.isfinite(loss):
    return loss
  return math.nextafter(loss * (1 + 16 * _EPS), math.copysign(math.inf, loss))


def _unsampled_loss(loss: np.ndarray, q: float) -> np.ndarray:
  """The inverse of `pairs.sampled_loss`; minus infinity below its range."""
  if q == 1:
    return loss
  # log((exp(loss) - (1 - q)) / q), written so that nothing cancels.
  above = np.maximum(loss - math.log1p(-q), 0.0)
  with np.errstate(divide='ignore', over='ignore'):
    logs = np.log(np.expm1(np.minimum(above, 40.0)))
  logs += np.maximum(above - 40.0, 0.0)
  return logs + (math.log1p(-q) - math.log(q))


def _replaced(
  upper: np.ndarray,
  lower: np.ndarray,
  last: int,
  interval: float,
  argument: float,
) -> LossDistribution:
  """The symmetric pair of the losses above zero.

  Args:
    upper: Float64 [last + 2], mass of the upper distribution at losses below
      zero, between each two grid points, and above the last.
    lower: Float64 [last + 2], the same of the lower one.
    last: Index of the last grid point.
    interval: Distance of the grid points.
    argument: As in `_shared`.

  Returns:
    The distribution on 2 last + 1 grid points.
  """
  positive = _shared(upper[1:-1], lower[1:-1], 0, interval, argument)
  negative = _shared(lower[-2:0:-1], upper[-2:0:-1], -last, interval, argument)
  masses = np.zeros(2 * last + 1)
  masses[last:] += positive
  masses[: last + 1] += negative
  masses[0] += lower[-1]
  rest = 1 - float(np.sum(upper[1:])) - float(np.sum(lower[1:]))
  masses[last] += max(rest, 0.0) + 16 * _EPS
  return _with_mgf(-last, masses, float(upper[-1]), interval)


def _null_row(
  mechanism: Mechanism, interval: float
) -> tuple[LossDistribution, LossDistribution]:
  """The pair of `null_rows`, with the row on top and below."""
  _, sigma, q = mechanism[:3]
  largest = pairs.loss_bounds('gaussian', sigma)[1]
  masses = []
  for row, high in (
    (True, null_rows.loss_at(largest, q, sigma)),
    (False, pairs.sampled_loss(largest, q)),
  ):
    edges = np.arange(math.ceil(high / interval) + 1) * interval
    edges = np.append(edges, np.inf)
    if row:
      masses.append(null_rows.masses_between(edges, q, sigma))
      continue
    with_row, without = pairs.interval_masses(
      'gaussian', sigma, _unsampled_loss(edges, q)
    )
    masses.append((q * with_row + (1 - q) * without, without))
  row, null = masses
  argument = 0.5 / sigma / sigma - math.log(q)
  return (
    _two_sided(row, null, interval, argument),
    _two_sided(null, row, interval, argument),
  )


def _two_sided(
  above: tuple[np.ndarray, np.ndarray],
  below: tuple[np.ndarray, np.ndarray],
  interval: float,
  argument: float,
) -> LossDistribution:
  """One pair at losses above zero, another one swapped below, the rest at zero.

  Args:
    above: Two float64 [k + 1]: masses of both sides at losses between each two
      grid points from zero on, and above the last.
    below: The same of the other pair.
    interval: Distance of the grid points.
    argument: As in `_shared`.

  Returns:
    The distribution.
  """
  upper, lower = above
  swapped, top = below
  last = len(swapped) - 1
  masses = np.zeros(last + len(upper))
  masses[last:] += _shared(upper[:-1], lower[:-1], 0, interval, argument)
  masses[: last + 1] += _shared(
    top[-2::-1], swapped[-2::-1], -last, interval, argument
  )
  masses[0] += top[-1]
  rest = 1 - float(np.sum(upper)) - float(np.sum(top))
  masses[last] += max(rest, 0.0) + 16 * _EPS
  return _with_mgf(-last, masses, float(upper[-1]), interval)


def _on_grid(
  upper: np.ndarray,
  lower: np.ndarray,
  first: int,
  interval: float,
  argument: float,
) -> LossDistribution:
  """Shares masses between grid points.

  Args:
    upper: Float64 [k + 1], mass of P below the first grid point, between each
      two, and above the last.
    lower: Float64 [k + 1], the same of Q.
    first: Index of the first grid point.
    interval: Distance of the grid points.
    argument: As in `_shared`.

  Returns:
    The distribution on k grid points.
  """
  masses = _shared(upper[1:-1], lower[1:-1], first, interval, argument)
  masses[0] += upper[0]
  return _with_mgf(first, masses, float(upper[-1]), interval)


def _shared(
  upper: np.ndarray,
  lower: np.ndarray,
  first: int,
  interval: float,
  argument: float = 0.0,
) -> np.ndarray:
  """Masses at the grid points around each interval, see `_on_grid`.

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


def _atomic(
  mechanism: Mechanism, interval: float
) -> tuple[LossDistribution, LossDistribution]:
  pair, q = atoms.atoms(mechanism), mechanism.probability
  # The largest logs that the losses were computed from, if not themselves.
  logs = 0.0 if q == 1 else atoms.pure_epsilon(mechanism) - math.log(q)
  remove = _of_atoms(pair, logs, interval)
  symmetric = mechanism.kind != 'response_or_null' and (
    mechanism.replaced or mechanism.probability == 1
  )
  return remove, remove if symmetric else _of_atoms(
    pair.swapped(), logs, interval
  )


def _of_atoms(
  pair: atoms.Atoms, logs: float, interval: float
) -> LossDistribution:
  """Puts each loss between two grid points, and shares it between them."""
  losses, upper, lower = pair
  # Where rounding leaves open which side of a grid point a loss is on, it is
  # above it, where it may be moved up; `_shared` does so.
  rounding = 16 * _EPS * (np.abs(losses) + logs)
  edges = np.floor((losses + rounding) / interval)
  edges = edges.astype(np.int64)
  first, number = int(edges[0]), int(edges[-1] - edges[0]) + 1
  binned = [
    np.bincount(edges - first, masses, number) for masses in (upper, lower)
  ]
  return _with_mgf(first, _shared(*binned, first, interval), 0.0, interval)


def _randomized_response(
  mechanism: Mechanism, interval: float
) -> LossDistribution:
  epsilon, delta = mechanism.parameter, mechanism.extra
  truth = (1 - delta) / (1 + math.exp(-epsilon))
  last = max(math.ceil(_outwards(epsilon) / interval), 1)
  # Two atoms, at -epsilon and epsilon.
  upper = np.zeros(2 * last)
  upper[0], upper[-1] = truth * math.exp(-epsilon), truth
  masses = _shared(upper, upper[::-1], -last, interval)
  return _with_mgf(-last, masses, delta, interval)


def _with_mgf(
  lower: int, masses: np.ndarray, infinity: float, interval: float
) -> LossDistribution:
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
  """log sum masses * exp(order * loss), as one matrix product.

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
