"""Epsilon and delta of composed privacy losses.

#### Formal guarantee
`epsilon_at` and `delta_at` are upper bounds for the composition. All errors of
the composed masses are bounded, see `transforms`, and added to delta. Their
absolute part is worth exp(log M(s) - s * epsilon) times itself there, M being
the moment generating function and s the order of the
tilt. That is small where Chernoff's bound is sharp. It is not where most of
delta comes from rare large losses (a tiny sampling probability, a tiny delta):
there the tilt is chosen anew at the epsilon that was found, in extended
precision, as long as that helps. Any tilt gives an upper bound.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import numpy as np

from tfdpflows.accounting.mechanisms import losses as losses_lib
from tfdpflows.accounting.pld import transforms
from tfdpflows.accounting.pld.transforms import GridTooFineError, Parts

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


def epsilon_at(
  delta: float,
  parts: Parts,
  interval: float,
  check: Callable[[], None] = lambda: None,
) -> float:
  """Returns the smallest epsilon known to hold at a delta.

  Args:
    delta: inside (0, 1).
    parts: pairs of a loss distribution and how often it is composed.
    interval: distance of the grid points, in nats.
    check: called between the pieces of work; may raise to end it.

  Returns:
    Epsilon, zero or more; infinite if no finite one is known.

  Raises:
    GridTooFineError: if a larger interval is needed.

  >>> from tfdpflows.accounting import mechanisms
  >>> laplace = mechanisms.Laplace(1.0)
  >>> remove, _ = mechanisms.loss_distributions(laplace, 1e-3)
  >>> round(epsilon_at(1e-9, [(remove, 1)], 1e-3), 6)
  1.0
  """
  total = transforms.LossSum(parts, interval, check)
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


def _first_anchors(delta: float, total: transforms.LossSum) -> Iterator[float]:
  """Returns Chernoff's bound, after smaller ones if its window is too large.

  With rare large losses the bound is several of them, and the tilt for it has a
  tail of many. A smaller anchor may be all that is needed, or too small to be
  of any use.
  """
  positive = losses_lib.UNIT_ORDERS > 0
  orders = losses_lib.UNIT_ORDERS[positive] / total.interval
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
  anchor: float, delta: float, total: transforms.LossSum, extended: bool
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
    return _below_window(
      delta - infinity - float(inside[0]),
      float(lower[0]) * (1 + tilted.rounding),
      float(excess[0]),
      anchor,
      tilted,
    )
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
  room: float,
  lower: float,
  end: float,
  anchor: float,
  tilted: transforms.TiltedMasses,
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
  total = transforms.LossSum(parts, interval, check)
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
  epsilon: float, total: transforms.LossSum, extended: bool
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
