"""The last point of a range that a budget can pay for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Optional

__all__ = ['last_affordable']

# Prices further from the target than exp(50) say no more than that.
_FAR = 50.0
# Points this close, relatively, are one point.
_SAME = 1e-9


class _Point(NamedTuple):
  place: float  # log(value / cheap), without its sign
  value: float
  excess: float  # log(price / target), within [-_FAR, _FAR]
  fits: bool


def last_affordable(
  price: Callable[[float], float],
  target: float,
  cheap: float,
  dear: float,
  start: float,
  tolerance: float = 1e-3,
  whole: bool = False,
  is_over: Callable[[], bool] = lambda: False,
) -> Optional[float]:
  """Goes from one end of a range towards the other as far as a target allows.

  Args:
    price: Price of a point. It should not fall on the way from `cheap` to
      `dear`; where it does, the result is still one whose price was seen to be
      at most the target. NaN counts as too much.
    target: What the price may be; above 0.
    cheap: One end of the range, above 0.
    dear: The other end, above 0; larger or smaller.
    start: Where to look first, within the range.
    tolerance: The result is at most this much, relatively, before the first
      point that is too dear, and its price at most this much below the target
      (unless the price jumps there).
    whole: Whether only whole numbers are points, and `cheap < dear`; then the
      number after the result is too dear, whatever the tolerance.
    is_over: Called before each price; once it is true, the search ends with the
      best point that it has, whatever the tolerance, if it has one.

  Returns:
    The point; `dear` itself if it is affordable; None if no point was.

  ```python
  >>> 2.998 < last_affordable(lambda x: x * x, 9.0, 1e-3, 1e3, start=1.0) <= 3
  True
  >>> last_affordable(lambda x: x * x, 9.5, 1, 10**9, start=1, whole=True)
  3

  ```
  """
  origin = math.log(cheap)
  length = abs(math.log(dear) - origin)
  sign = 1 if dear > cheap else -1

  def point_of(value: float, place: float) -> _Point:
    cost = price(value)
    fits = bool(cost <= target)
    excess = -_FAR if fits else _FAR
    if 0 < cost < math.inf:
      excess = math.log(cost) - math.log(target)
    return _Point(place, value, min(max(excess, -_FAR), _FAR), fits)

  def at(place: float, good=None, bad=None) -> _Point:
    """The point at a place, between others where there are any."""
    if place >= length:
      return point_of(dear, length)
    if place <= 0:
      return point_of(cheap, 0.0)
    if not whole:
      return point_of(math.exp(origin + sign * place), place)
    value = round(math.exp(origin + place))
    value = max(value, cheap if good is None else good.value + 1)
    value = min(value, dear if bad is None else bad.value - 1)
    return point_of(value, math.log(value) - origin)

  # Outwards from the start in growing strides, until two points enclose the
  # end of what is affordable.
  good = bad = None
  point, reach = at(abs(math.log(start) - origin)), math.log(8)
  while True:
    if point.fits:
      good = point
      if point.value == dear:
        return dear
    else:
      bad = point
      if point.value == cheap:
        return None
    if good is not None and bad is not None:
      break
    if good is not None and is_over():
      return good.value
    # Prices mostly grow like the point or its square root.
    stride = min(max(1.5 * abs(point.excess), 0.2), reach)
    reach *= 2
    point = at(point.place + (stride if point.fits else -stride), good, bad)

  # The rule of false position (Illinois) on logs; bisection where a jump or a
  # bend makes that slow.
  weights, last = {True: 1.0, False: 1.0}, None
  for turn in range(200):
    width = bad.place - good.place
    near = good.excess >= math.log1p(-tolerance)
    if whole and bad.value - good.value <= 1:
      break
    if not whole and width <= (math.log1p(tolerance) if near else _SAME):
      break
    if is_over():
      break
    below, above = -good.excess * weights[True], bad.excess * weights[False]
    share = below / (below + above) if below + above > 0 else 0.5
    if turn >= 6:
      share = 0.5
    elif not whole:
      # First to one side of the estimate, then to the other: two points this
      # far apart end the search.
      slope = max((bad.excess - good.excess) / width, 1.0)
      aside = tolerance / 3 / slope / width
      share += aside if near else -aside
      share = min(max(share, min(aside, 0.25)), 1 - min(aside, 0.25))
    point = at(good.place + share * width, good, bad)
    weights[not point.fits] *= 0.5 if point.fits == last else 1.0
    weights[point.fits], last = 1.0, point.fits
    good, bad = (point, bad) if point.fits else (good, point)
  return good.value
