"""Composition of privacy losses by tilted Fourier transforms.

The loss of a composition is the sum of the losses of its parts, so its
distribution is a convolution. A plain Fourier transform leaves an absolute
error of about 1e-16 a step everywhere, which is more than the tail that a small
delta is about. Here every distribution is first multiplied by exp(s * loss) and
normalized, with s chosen so that the product is centred where delta is decided;
the error is then relative to that tail (the same device as in exponentially
tilted or 'asymptotically relative error bounded' Fourier convolution, Wilson
and Keich 2016). Where that is still too much, extended precision is used, on
machines that have it.

#### Formal guarantee
`epsilon_at` and `delta_at` are upper bounds for the composition. All errors of
the composed masses are bounded, see `LossSum`, and added to delta. Their
absolute part is worth exp(log M(s) - s * epsilon) times itself there, M being
the moment generating function and s the order of the tilt. That is small where
Chernoff's bound is sharp. It is not where most of delta comes from rare large
losses (a tiny sampling probability, a tiny delta): there the tilt is chosen
anew at the epsilon that was found, in extended precision, as long as that
helps. Any tilt gives an upper bound.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft

from tfdpflows.accounting.mechanisms import losses as losses_lib

Parts = Sequence[tuple[losses_lib.LossDistribution, int]]

_UNIT_ORDERS = losses_lib.UNIT_ORDERS
_LOG_OUTSIDE = math.log(1e-20)
_MAX_SIZE = 2**22
_MAX_EXTENDED_SIZE = 2**20
# From this power on, powers are taken by logarithms.
_LARGE_POWER = 8
# Sums of positive float64 numbers; far above their rounding.
_ROUNDING = 1e-9
_EPS = float(np.finfo(np.float64).eps)
# 64 or 113 bits; some machines have no such type, or two floats in its place.
_HAS_EXTENDED = 1e-36 < float(np.finfo(np.longdouble).eps) < 1e-18
# A grid this coarse is for losses whose exponentials overflow: no privacy.
COARSEST = 600.0
# A first tilt that needs a larger window than this may be a bad one.
_COMFORTABLE = 2**18
# With errors of more than this share of delta, a larger anchor is tried; and if
# that is all there is, a coarser grid.
_POOR = (0.5, 0.05)
# The tilt is chosen anew at most this often, and not if errors are less than
# this share of delta, the second one in extended precision.
_ROUNDS = 12
_SMALL = (1e-4, 1e-3)


class GridTooFineError(Exception):
  """The window of the composed losses has too many grid points.

  Attributes:
    excess: how many times too many.
  """

  def __init__(self, excess: float):
    super().__init__(f'There are {excess:.3g} times too many grid points.')
    self.excess = excess


class TiltedMasses(NamedTuple):
  """Masses of a sum of losses, multiplied by exp(order * (loss - anchor)).

  `log_scale` is the logarithm of the moment generating function at `order`,
  less order * anchor: Chernoff's bound on the mass above the anchor. `error` is
  what absolute errors of the masses, and the mass outside the window, add to
  the divergence at any epsilon, at most, relative to exp(log_scale + order *
  (anchor - epsilon)).
  """

  losses: np.ndarray  # Grid points in nats, increasing, rounded upwards.
  masses: np.ndarray  # Relative to exp(log_scale).
  order: float  # Of the tilt.
  log_scale: float
  error: float
  rounding: float  # What errors relative to each mass add, as a share of it.


class LossSum:
  """The sum of independent losses, each with how often it is added.

  `check` is called between the pieces of work, and may raise to end it.

  Attributes:
    interval: distance of the grid points, in nats.
    infinity: probability that the sum is infinite, rounded upwards.
    largest: the largest finite sum, in nats, rounded upwards.
    log_mgf: Float64 [k], logarithm of the moment generating function of the
      finite losses at the orders `losses.UNIT_ORDERS / interval`.

  >>> from tfdpflows.accounting import mechanisms
  >>> laplace = mechanisms.Laplace(1.0)
  >>> part, _ = mechanisms.loss_distributions(laplace, 0.01)
  >>> tilted = LossSum([(part, 4)], 0.01).tilted_near(3.0)
  >>> bool(tilted.losses[-1] > 3.0)
  True
  """

  def __init__(
    self,
    parts: Parts,
    interval: float,
    check: Callable[[], None] = lambda: None,
  ):
    self.interval = interval
    self._parts = parts
    self._check = check
    self._lowest = sum(count * part.lower for part, count in parts)
    self._highest = sum(
      count * (part.lower + len(part.masses) - 1) for part, count in parts
    )
    self.largest = float(_grid_points(self._highest, interval))
    finite = sum(
      count * math.log1p(-part.infinity) if part.infinity < 1 else -math.inf
      for part, count in parts
    )
    # One unit in the last place of each summand, upwards.
    self.infinity = min(abs(math.expm1(finite)) * (1 + 1e-12), 1.0)
    self.log_mgf = np.sum([count * p.log_mgf for p, count in parts], axis=0)

  def window_size(self, anchor: float) -> int:
    """Returns how many grid points `tilted_near` needs."""
    low, high = self._window(self._tilt(anchor, 5.0), anchor)
    return high - low + 1

  def tilted_near(self, anchor: float, extended: bool = False) -> TiltedMasses:
    """Returns the masses, accurate around a loss, the anchor, and above it.

    With `extended` precision, if there is any.

    Raises:
      GridTooFineError: if a larger interval is needed.

    #### Formal guarantee
    Three things can be wrong with the masses. That they are bounded is shown
    here; `error` and `rounding` hold the bounds.

    - Mass outside the window, by Chernoff's bound on both sides. It is wrapped
      around into the window, where it can only add.
    - Rounding of the transforms, see `_power`: an error of the masses in the l2
      norm. Its part in the divergence at epsilon is at most that norm times the
      one of w = exp(-order * x)(1 - exp(-x)) at the grid points x = loss -
      epsilon > 0. These are h (k - t) with k = 1, 2, ... and some t in [0, 1),
      so that w <= min(1, h k) y^((k - 1) / 2) with y = exp(-2 order h), and the
      sum of w^2 is at most min(1 / (1 - y), h^2 (1 + y) / (1 - y)^3).
    - Rounding of exponentials, relative to each mass and to the largest
      argument; 200 stands for the logs of masses that count.
    """
    most = _MAX_EXTENDED_SIZE if extended else _MAX_SIZE
    for margin in (2.0, 5.0) if extended else (5.0,):
      tilt = self._tilt(anchor, margin)
      low, high = self._window(tilt, anchor)
      if high - low + 1 <= most:
        break
    else:
      raise GridTooFineError((high - low + 1) / most)
    size = fft.next_fast_len(high - low + 1, real=True)
    single = len(self._parts) == 1 and self._parts[0][1] == 1
    start, noise, rounding = 0, 0.0, _ROUNDING
    kind = np.longdouble if extended and _HAS_EXTENDED else np.float64
    transform = np.ones(size // 2 + 1, np.result_type(kind, np.complex64))
    for part, count in self._parts:
      self._check()
      tilted, argument = _tilted(part, tilt)
      rounding += 4 * _EPS * count * (200 + argument)
      peak = int(np.argmax(tilted))
      start += count * (part.lower + peak)
      masses = _wrapped(tilted.astype(kind), peak, size)
      if not single:
        power, error = _power(masses, count)
        transform *= power
        noise += error
    if not single:
      level = _level(size, transform.dtype)
      noise += (len(self._parts) + 1) * level * _norm(transform)
      masses = np.maximum(fft.irfft(transform, size), 0).astype(np.float64)
    order = _UNIT_ORDERS[tilt] / self.interval
    weight = float(self._weights[tilt])
    return TiltedMasses(
      losses=_grid_points(low + np.arange(size), self.interval),
      masses=np.roll(masses, (start - low) % size),
      order=order,
      log_scale=float(self.log_mgf[tilt] - order * anchor),
      error=noise * math.sqrt(weight / size) + 2 * math.exp(_LOG_OUTSIDE),
      rounding=rounding,
    )

  @property
  def _weights(self) -> np.ndarray:
    """Returns squared norms of w, by order; see `tilted_near`."""
    with np.errstate(divide='ignore', over='ignore'):
      gap = -np.expm1(-2 * np.maximum(_UNIT_ORDERS, 0))
      return np.minimum(1 / gap, self.interval**2 * (2 - gap) / gap**3)

  def _tilt(self, anchor: float, margin: float) -> int:
    """Returns the index of the smallest order with nearly the least error.

    A smaller order needs a smaller window. The margin is in nats.
    """
    first = len(_UNIT_ORDERS) // 2 + 1
    logs = self.log_mgf - _UNIT_ORDERS * (anchor / self.interval)
    logs = (logs + 0.5 * np.log(self._weights))[first:-3]
    return first + int(np.flatnonzero(logs <= np.min(logs) + margin)[0])

  def _window(self, tilt: int, anchor: float) -> tuple[int, int]:
    with np.errstate(divide='ignore', invalid='ignore'):
      tails = self.log_mgf - self.log_mgf[tilt] - _LOG_OUTSIDE
      tails /= _UNIT_ORDERS - _UNIT_ORDERS[tilt]
    high = int(min(np.ceil(np.min(tails[tilt + 1 :])), self._highest))
    low = int(max(np.floor(np.max(tails[:tilt])), self._lowest))
    anchored = min(math.ceil(anchor / self.interval) + 1, self._highest)
    return low, max(high, anchored, low)


def _grid_points(indices, interval: float) -> np.ndarray:
  """Returns indices times the interval, upwards; zero is exact."""
  points = np.asarray(indices, np.float64) * interval
  return np.where(points == 0, 0.0, np.nextafter(points, np.inf))


def _tilted(
  part: losses_lib.LossDistribution, tilt: int
) -> tuple[np.ndarray, float]:
  """Returns masses times exp(order * loss) / M(order) and the top exponent."""
  indices = part.lower + np.arange(len(part.masses))
  exponents = _UNIT_ORDERS[tilt] * indices - part.log_mgf[tilt]
  largest = float(max(abs(exponents[0]), abs(exponents[-1])))
  # The product is at most 1; the cap is for points without mass.
  return part.masses * np.exp(np.minimum(exponents, 700.0)), largest


def _wrapped(masses: np.ndarray, peak: int, size: int) -> np.ndarray:
  """Returns masses on a circle, with the one at the index `peak` first."""
  if len(masses) <= size:
    wrapped = np.zeros(size, masses.dtype)
    wrapped[: len(masses) - peak] = masses[peak:]
    wrapped[size - peak :] = masses[:peak]
    return wrapped
  table = np.pad(masses, (0, -len(masses) % size)).reshape(-1, size)
  return np.roll(np.sum(table, axis=0), -(peak % size))


def _power(masses: np.ndarray, count: int) -> tuple[np.ndarray, float]:
  """Returns the transform X of masses to a power T, and a bound on its error.

  With u the unit roundoff, the transform of x as it is computed is off by at
  most c ||x||_1 at each frequency and c ||x||_2 in the l2 norm, c = 8 u log2(N)
  (as in Higham 2002, theorem 24.2). Often most of the mass is at one point, the
  loss of a row that is not in the sample; as that comes first, its transform is
  1 at all frequencies. So only the rest r is transformed and X = 1 + z, z being
  the transform of r less the mass that is missing at the first point. To first
  order the error of X^T is T |X|^(T - 1) times that of z, and |X| <= 1:

  - T = 1: c ||R||_2, R being the transform of r;
  - T > 1: at most T c ||R||_2, and at most T c ||r||_1 ||X^(T/2)||_2;
  - for a large T, exp(T log(1 + z)) adds a few u (1 + T |log X|) |X|^T, which
    is less than a few u |X|^(T/2).

  The masses, one in sum, are overwritten. What is returned is the half [n // 2
  + 1] of the power that belongs to a real result, and a bound on the l2 norm of
  the error of the whole.
  """
  first = masses[0]
  masses[0] = 0
  rest = float(np.sum(masses))
  transform = fft.rfft(masses)
  level = _level(len(masses), transform.dtype)
  noise = count * _norm(transform)
  if count < _LARGE_POWER:
    transform += first
    if count > 1:
      transform = transform**count
      halved = math.sqrt(2 * float(np.sum(np.abs(transform))))
      noise = min(noise, count * rest * halved)
    return transform, level * noise
  x, y = transform.real + (first - 1), transform.imag
  with np.errstate(divide='ignore'):
    logs = np.log1p(np.maximum(x * (2 + x) + y * y, -1)) * (0.5 * count)
  sizes = np.exp(logs)
  angles = np.arctan2(y, 1 + x) * count
  transform.real, transform.imag = (
    sizes * np.cos(angles),
    sizes * np.sin(angles),
  )
  halved = math.sqrt(2 * float(np.sum(sizes)))
  return transform, level * (min(noise, count * rest * halved) + halved)


def _level(size: int, dtype: np.dtype) -> float:
  """Returns the error of a transform of real numbers, relative to its norm."""
  return 4 * float(np.finfo(dtype).eps) * (math.log2(size) + 2)


def _norm(half: np.ndarray) -> float:
  """Returns the l2 norm of a transform, from the half of it that is kept."""
  return math.sqrt(2 * float(np.vdot(half, half).real))


def epsilon_at(
  delta: float,
  parts: Parts,
  interval: float,
  check: Callable[[], None] = lambda: None,
) -> float:
  """Returns the smallest epsilon known to hold at a delta, or infinity.

  Other arguments are those of `LossSum`.

  Raises:
    GridTooFineError: if a larger interval is needed.

  >>> from tfdpflows.accounting import mechanisms
  >>> laplace = mechanisms.Laplace(1.0)
  >>> remove, _ = mechanisms.loss_distributions(laplace, 1e-3)
  >>> round(epsilon_at(1e-9, [(remove, 1)], 1e-3), 6)
  1.0
  """
  total = LossSum(parts, interval, check)
  if total.infinity >= delta or interval > COARSEST:
    return math.inf
  best, error = math.inf, math.inf
  for anchor in _first_anchors(delta, total):
    found, error = _epsilon_near(anchor, delta, total, extended=False)
    best = min(best, found)
    if error <= _POOR[0] * delta:
      break
  if error <= _SMALL[0] * delta:
    return best
  anchor = min(anchor, best)
  for _ in range(_ROUNDS):
    try:
      found, error = _epsilon_near(anchor, delta, total, extended=True)
    except GridTooFineError:
      if error > _POOR[1] * delta:
        raise
      break
    best = min(best, found)
    if error <= _SMALL[1] * delta or abs(anchor - best) <= 1e-2 * anchor:
      break
    anchor = min(anchor, best)
  # No finite sum of losses is larger than the largest.
  return min(best, max(total.largest, 0.0))


def _first_anchors(delta: float, total: LossSum) -> Iterator[float]:
  """Returns Chernoff's bound, after smaller ones if its window is too large.

  With rare large losses the bound is several of them, and the tilt for it has a
  tail of many. A smaller anchor may be all that is needed, or too small to be
  of any use.
  """
  positive = _UNIT_ORDERS > 0
  orders = _UNIT_ORDERS[positive] / total.interval
  anchor = float(np.min((total.log_mgf[positive] - math.log(delta)) / orders))
  anchors = [min(anchor, total.largest)]
  sizes = [total.window_size(anchors[0])]
  while sizes[-1] > _COMFORTABLE:
    size = total.window_size(anchors[-1] / 2)
    if size > 0.8 * sizes[-1]:
      break
    anchors.append(anchors[-1] / 2)
    sizes.append(size)
  return reversed(anchors)


def _epsilon_near(
  anchor: float, delta: float, total: LossSum, extended: bool
) -> tuple[float, float]:
  """Returns epsilon by the tilt for an anchor, and the error in its delta.

  An anchor nearer to epsilon would make that part of delta smaller.
  """
  tilted = total.tilted_near(anchor, extended)
  order = tilted.order
  if tilted.log_scale > 600:
    return math.inf, 0.0
  scale = math.exp(tilted.log_scale)
  # Everything is relative to the anchor, so that no exponential overflows.
  excess = tilted.losses - anchor
  keep = excess * (order + 1) > -600
  whole = bool(keep[0])
  losses, excess = tilted.losses[keep], excess[keep]
  untilt = np.exp(-order * excess)
  weights = tilted.masses[keep] * untilt * scale
  infinity = total.infinity + float(np.sum(weights[excess >= 600]))
  keep = excess < 600
  losses, weights, excess, untilt = (
    x[keep] for x in (losses, weights, excess, untilt)
  )
  # Mass of Q at each loss and above, and from it the divergence at each grid
  # point: both are sums of positive numbers, so that nothing cancels.
  ratio = np.exp(-excess)
  lower = np.cumsum((weights * ratio)[::-1])[::-1]
  jumps = np.append(lower[1:] / ratio[:-1], 0)
  jumps *= math.expm1(total.interval)
  inside = np.cumsum(jumps[::-1])[::-1] * (1 + tilted.rounding)
  slack = infinity + tilted.error * scale * untilt
  enough = np.flatnonzero(inside + slack <= delta)
  if len(enough) == 0:
    return math.inf, math.inf
  index = int(enough[0])
  if losses[index] <= 0:
    return 0.0, 0.0
  if index == 0 and not whole:
    # Masses were left out further down; they matter for any anchor there.
    return float(losses[0]), delta
  if index == 0:
    room = delta - infinity - float(inside[0])
    mass = float(lower[0]) * (1 + tilted.rounding)
    return _below_window(room, mass, float(excess[0]), anchor, tilted)
  error = float(slack[index - 1]) - infinity
  # Between two grid points the divergence is a line in exp(epsilon); the slack
  # is taken at the lower one, where it is larger.
  room = delta - inside[index] - slack[index - 1]
  lowest = float(max(losses[index - 1], 0.0))
  if room <= 0:
    return float(losses[index]), error
  if lower[index] <= 0:
    return lowest, error
  grown = math.exp(excess[index]) - room / lower[index] / (1 + tilted.rounding)
  if grown <= 0:
    return lowest, error
  found = anchor + math.log(grown)
  # The rounding of the sum; a grid point is one.
  found += 1e-15 * (1 + abs(anchor) + abs(found))
  return max(min(found, float(losses[index])), lowest), error


def _below_window(
  room: float, lower: float, end: float, anchor: float, tilted: TiltedMasses
) -> tuple[float, float]:
  """Returns what `_epsilon_near` does, for an epsilon below the window.

  `room` is what is left of delta at the lowest loss, apart from errors, `lower`
  the mass of Q in the window, times exp(anchor), and `end` the lowest loss,
  less the anchor.
  """

  def error_at(excess: float) -> float:
    log_scale = tilted.log_scale - tilted.order * excess
    return tilted.error * math.exp(min(log_scale, 700.0))

  # The divergence grows towards the left, so that any point that fits will do.
  fits, short = end, -anchor
  for _ in range(60):
    middle = 0.5 * (fits + short)
    grown = lower * math.exp(end) * -math.expm1(middle - end)
    if grown + error_at(middle) <= room:
      fits = middle
    else:
      short = middle
  return max(anchor + fits, 0.0), error_at(fits)


def delta_at(
  epsilon: float,
  parts: Parts,
  interval: float,
  check: Callable[[], None] = lambda: None,
) -> float:
  """Returns the smallest delta known to hold at an epsilon.

  Arguments and errors are as in `epsilon_at`.

  >>> from tfdpflows.accounting import mechanisms
  >>> laplace = mechanisms.Laplace(1.0)
  >>> remove, _ = mechanisms.loss_distributions(laplace, 1e-3)
  >>> round(delta_at(0.5, [(remove, 1)], 1e-3), 5)  # 1 - exp(-0.25)
  0.2212
  """
  total = LossSum(parts, interval, check)
  if total.infinity >= 1 or interval > COARSEST:
    return 1.0
  if epsilon >= total.largest:
    return total.infinity
  found, error = _delta_near(epsilon, total, False)
  if error > _SMALL[0] * found:
    # A larger window is needed for this, and may not be affordable.
    with contextlib.suppress(GridTooFineError):
      again = _delta_near(epsilon, total, True)
      found, error = min((found, error), again, key=sum)
  # Upwards; what is too small for a float is not nothing.
  return min(math.nextafter(found + error + total.infinity, 2.0), 1.0)


def _delta_near(
  epsilon: float, total: LossSum, extended: bool
) -> tuple[float, float]:
  tilted = total.tilted_near(epsilon, extended)
  keep = (tilted.losses > epsilon) & (tilted.masses > 0)
  excess = tilted.losses[keep] - epsilon
  # Without the tilt a mass is at most 1, whatever rounding made of it.
  logs = np.log(tilted.masses[keep]) + tilted.log_scale
  logs = np.minimum(logs - tilted.order * excess, 0.0)
  inside = float(np.sum(np.exp(logs) * -np.expm1(-excess)))
  error = tilted.error * math.exp(min(tilted.log_scale, 700.0))
  return inside * (1 + tilted.rounding), error
