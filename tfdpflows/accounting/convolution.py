"""Composition of privacy loss distributions by tilted Fourier transforms.

The loss of a composition is the sum of the losses of its parts, so its
distribution is a convolution. A plain Fourier transform leaves an absolute
error of about 1e-16 a step everywhere, which is more than the tail that a small
delta is about. Here every distribution is first multiplied by exp(s * loss) and
normalized, with s chosen so that the product is centred where delta is decided;
the error is then relative to that tail (the same device as in exponentially
tilted or 'asymptotically relative error bounded' Fourier convolution, Wilson
and Keich 2016).

#### Formal guarantee
`epsilon_at` and `delta_at` are upper bounds for the composition. Three errors
are bounded and added to delta, none is ignored:

- mass outside the window of the transform, by Chernoff's bound on both sides;
- the same mass wrapped around into the window: it can only add;
- rounding of the transform, by a bound on its l2 error,
  `16 eps log2(N) steps ||transform||_2`, which is several times larger than
  what is found against closed forms.

An error e of the tilted masses, summed over losses above epsilon, is worth at
most exp(log M(s) - s epsilon) e in delta, M being the moment generating
function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import fft

from tfdpflows.accounting import losses as losses_lib

__all__ = ['GridTooFineError', 'delta_at', 'epsilon_at']

ORDERS = losses_lib.ORDERS
Parts = Sequence[tuple[losses_lib.LossDistribution, int]]

_LOG_OUTSIDE = math.log(1e-17)
_MAX_SIZE = 2**22
# Sums of positive float64 numbers; far above their rounding.
_ROUNDING = 1e-9
# A grid this coarse is for losses whose exponentials overflow: no privacy.
_COARSEST = 600.0


class GridTooFineError(Exception):
  """The window of the composed losses has too many grid points."""


def epsilon_at(delta: float, parts: Parts, interval: float) -> float:
  """The smallest epsilon known to hold at a delta.

  Args:
    delta: Inside (0, 1).
    parts: Pairs of a loss distribution and how often it is composed.
    interval: Distance of the grid points, in nats.

  Returns:
    Epsilon, zero or more; infinite if no finite one is known.

  Raises:
    GridTooFineError: If a larger interval is needed.

  ```python
  >>> mechanism = losses_lib.Mechanism('laplace', 1.0)
  >>> remove, _ = losses_lib.loss_distributions(mechanism, 1e-3)
  >>> round(epsilon_at(1e-9, [(remove, 1)], 1e-3), 6)
  1.0

  ```
  """
  infinity = _infinity(parts)
  if infinity >= delta or interval > _COARSEST:
    return math.inf
  log_mgf = _log_mgf(parts)
  positive = ORDERS > 0
  # Chernoff's bound is a first epsilon.
  bounds = np.where(
    positive,
    (log_mgf - math.log(delta)) / np.where(positive, ORDERS, 1),
    np.inf,
  )
  anchor = float(np.min(bounds))
  tilt = _tilt(log_mgf - ORDERS * anchor)
  losses, masses, error = _composed(parts, interval, log_mgf, tilt, anchor)
  order = ORDERS[tilt]
  scale = math.exp(log_mgf[tilt] - order * anchor)
  # Everything is relative to the anchor, so that no exponential overflows.
  excess = losses - anchor
  keep = excess * (order + 1) > -600
  losses, masses, excess = losses[keep], masses[keep], excess[keep]
  weights = masses * np.exp(-order * excess) * scale
  infinity += float(np.sum(weights[excess >= 600]))
  excess, weights = excess[excess < 600], weights[excess < 600]
  # Mass of Q at each loss and above, and from it the divergence at each grid
  # point: both are sums of positive numbers, so that nothing cancels.
  lower = np.cumsum((weights * np.exp(-excess))[::-1])[::-1]
  jumps = np.append(np.exp(excess[:-1]) * lower[1:], 0) * math.expm1(interval)
  inside = np.cumsum(jumps[::-1])[::-1] * (1 + _ROUNDING)
  slack = infinity + error * scale * np.exp(-order * excess)
  enough = np.flatnonzero(inside + slack <= delta)
  if len(enough) == 0:
    return math.inf
  index = int(enough[0])
  if losses[index] <= 0:
    return 0.0
  if index == 0:
    return float(losses[0])
  # Between two grid points the divergence is a line in exp(epsilon); the slack
  # is taken at the lower one, where it is larger.
  room = delta - inside[index] - slack[index - 1]
  lowest = float(max(losses[index - 1], 0.0))
  if room <= 0:
    return float(losses[index])
  if lower[index] <= 0:
    return lowest
  grown = math.exp(excess[index]) - room / lower[index] / (1 + _ROUNDING)
  if grown <= 0:
    return lowest
  return max(min(anchor + math.log(grown), float(losses[index])), lowest)


def delta_at(epsilon: float, parts: Parts, interval: float) -> float:
  """The smallest delta known to hold at an epsilon.

  Args:
    epsilon: Zero or more, in nats.
    parts: Pairs of a loss distribution and how often it is composed.
    interval: Distance of the grid points, in nats.

  Returns:
    Delta, in [0, 1].

  Raises:
    GridTooFineError: If a larger interval is needed.

  ```python
  >>> mechanism = losses_lib.Mechanism('laplace', 1.0)
  >>> remove, _ = losses_lib.loss_distributions(mechanism, 1e-3)
  >>> round(delta_at(0.5, [(remove, 1)], 1e-3), 5)  # 1 - exp(-0.25)
  0.2212

  ```
  """
  infinity = _infinity(parts)
  if infinity >= 1 or interval > _COARSEST:
    return 1.0
  log_mgf = _log_mgf(parts)
  tilt = _tilt(log_mgf - ORDERS * epsilon)
  order = ORDERS[tilt]
  losses, masses, error = _composed(parts, interval, log_mgf, tilt, epsilon)
  keep = losses > epsilon
  losses, masses = losses[keep], masses[keep]
  scale = math.exp(min(log_mgf[tilt] - order * epsilon, 700))
  weights = masses * np.exp(-order * (losses - epsilon)) * scale
  inside = float(np.sum(weights * -np.expm1(epsilon - losses)))
  return min(inside * (1 + _ROUNDING) + infinity + error * scale, 1.0)


def _infinity(parts: Parts) -> float:
  finite = 0.0
  for part, count in parts:
    if part.infinity >= 1:
      return 1.0
    finite += count * math.log1p(-part.infinity)
  # One unit in the last place of each summand, upwards.
  return -math.expm1(finite) * (1 + 1e-12)


def _log_mgf(parts: Parts) -> np.ndarray:
  return np.sum([count * part.log_mgf for part, count in parts], axis=0)


def _tilt(log_tails: np.ndarray) -> int:
  """Index of the order of the tilt.

  Args:
    log_tails: Chernoff's bounds on the log of the tail that matters, by order.

  Returns:
    The smallest positive order whose bound is near the best one. The best one
    leaves the smallest error; a smaller order needs a smaller window.
  """
  first = len(ORDERS) // 2 + 1
  log_tails = log_tails[first:-3]
  good = np.flatnonzero(log_tails <= np.min(log_tails) + 5)
  return first + int(good[0])


def _composed(
  parts: Parts,
  interval: float,
  log_mgf: np.ndarray,
  tilt: int,
  anchor: float,
) -> tuple[np.ndarray, np.ndarray, float]:
  """Tilted masses of the sum of the losses.

  Args:
    parts: Pairs of a loss distribution and how often it is composed.
    interval: Distance of the grid points.
    log_mgf: Of the composition, at `ORDERS`.
    tilt: Index of the order of the tilt.
    anchor: A loss that the window should reach up to.

  Returns:
    Losses [n], their masses times exp(order * loss - log_mgf) [n], and a bound
    on the sum of the absolute errors of these.
  """
  lowest = sum(count * part.lower for part, count in parts)
  highest = sum(
    count * (part.lower + len(part.masses) - 1) for part, count in parts
  )
  order = ORDERS[tilt]
  with np.errstate(divide='ignore', invalid='ignore'):
    tails = (log_mgf - log_mgf[tilt] - _LOG_OUTSIDE) / (ORDERS - order)
  high = int(min(np.ceil(np.min(tails[tilt + 1 :]) / interval), highest))
  low = int(max(np.floor(np.max(tails[:tilt]) / interval), lowest))
  high = max(high, min(math.ceil(anchor / interval) + 1, highest), low)
  if high - low + 1 > _MAX_SIZE:
    raise GridTooFineError()
  size = fft.next_fast_len(high - low + 1, real=True)
  steps = sum(count for _, count in parts)
  if len(parts) == 1 and steps == 1:
    transform, masses = None, _tilted(parts[0][0], interval, tilt, size)
  else:
    transform = 1.0
    for part, count in parts:
      factor = fft.rfft(_tilted(part, interval, tilt, size))
      transform = transform * (factor if count == 1 else factor**count)
    masses = np.maximum(fft.irfft(transform, size), 0.0)
  masses = np.roll(masses, -((low - lowest) % size))
  losses = (low + np.arange(size)) * interval
  error = 2 * math.exp(_LOG_OUTSIDE)
  if transform is not None:
    norm = math.sqrt(2 * float(np.sum(np.abs(transform) ** 2)))
    machine = np.finfo(np.float64).eps
    error += 16 * machine * math.log2(size) * steps * max(norm, 1.0)
  return losses, masses, error


def _tilted(
  part: losses_lib.LossDistribution, interval: float, tilt: int, size: int
) -> np.ndarray:
  """Masses times exp(order * loss) / M(order), wrapped around to a size."""
  losses = (part.lower + np.arange(len(part.masses))) * interval
  # The product is at most 1; the cap is for points without mass.
  exponents = np.minimum(ORDERS[tilt] * losses - part.log_mgf[tilt], 700)
  masses = part.masses * np.exp(exponents)
  if len(masses) <= size:
    return np.pad(masses, (0, size - len(masses)))
  return np.pad(masses, (0, -len(masses) % size)).reshape(-1, size).sum(axis=0)
