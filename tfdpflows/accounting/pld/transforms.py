"""Sums of privacy losses by tilted Fourier transforms.

The loss of a composition is the sum of the losses of its parts, so its
distribution is a convolution. A plain Fourier transform leaves an absolute
error of about 1e-16 a step everywhere, which is more than the tail that a small
delta is about. Here every distribution is first multiplied by exp(s * loss) and
normalized, with s chosen so that the product is centred where delta is decided;
the error is then relative to that tail (the same device as in exponentially
tilted or 'asymptotically relative error bounded' Fourier convolution, Wilson
and Keich 2016). Where that is still too much, extended precision is used, on
machines that have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
  """The sum of independent losses.

  Args:
    parts: pairs of a loss distribution and how often it is added.
    interval: distance of the grid points, in nats.
    check: called between the pieces of work; may raise to end it.

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
    """Returns the masses, accurate around a loss and above it.

    Args:
      anchor: the loss, in nats.
      extended: whether to use extended precision, if there is any.

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
