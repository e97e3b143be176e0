"""The optimal adaptive composition of exponential mechanisms.

#### Formal guarantee
Let D_k(a) be the largest hockey-stick divergence of order a of k mechanisms,
each of which has losses in an interval of length E (bounded range, as the
exponential mechanism) and is chosen after the outcomes of those before. With x
= log(a), D_0 = max(0, 1 - a), and given the loss L of the first mechanism what
is left is D_(k-1) at x - L, so that

    D_k = sup over the first pair (P, Q) of E_P[D_(k-1) at x - L].

That is E_Q[r D_(k-1)(a / r)] with r = dP/dQ = exp(L), of a convex function of r
(the perspective of a convex one). As E_Q[r] = 1 and L is in some [t - E, t], 0
<= t <= E, it is largest where L is t, with probability p = (exp(E) - exp(t)) /
(exp(E) - 1) under P, or t - E:

    D_k = max over t of p D_(k-1) at x - t, and (1 - p) times it at x - t + E

(Dong, Durfee and Rogers 2020, sections 4 and 6, where this recursion is shown
to be the optimum; what holds if none is chosen after another is less, and is
not a bound here). D_k is convex in a, as a supremum of convex functions. So it
is kept at the points E / m * i only, and between them a chord is above it. With
chords, what is maximized is c - g exp(t) - b exp(-t) between any two points,
the maximum of which has a closed form; that it is missed by rounding, and all
other rounding, is covered by a factor.

#### References
Dong, Durfee and Rogers 2020, "Optimal differential privacy composition for
exponential mechanisms".
"""

from __future__ import annotations

import functools
import math
from typing import Optional

import numpy as np

__all__ = ['AdaptiveProfile', 'adaptive_profile']

# Work is about the square of the number of points of all mechanisms together.
_POINTS = 1600
_MOST_CELLS = 16
_LEAST_CELLS = 3
# Exponentials of more than this are left to other bounds.
_LARGEST = 30.0


class AdaptiveProfile:
  """Deltas at the points of a grid of epsilons, and between them.

  Args:
    deltas: Float64 [n + 1], at `interval * i`; falling, the last one zero.
    interval: Distance of the points, in nats.
  """

  def __init__(self, deltas: np.ndarray, interval: float):
    self._deltas = deltas
    self._interval = interval

  def delta_at(self, epsilon: float) -> float:
    """Delta at an epsilon, from above."""
    index = int(min(epsilon / self._interval, len(self._deltas)))
    # Rounding is on the side of the smaller epsilon.
    index = index - 1 if index * self._interval > epsilon else index
    if index + 1 >= len(self._deltas):
      return (
        0.0
        if epsilon >= len(self._deltas) * self._interval
        else (float(self._deltas[-1]))
      )
    rest = max((index + 1) * self._interval - epsilon, 0.0)
    share = math.expm1(-rest) / math.expm1(-self._interval) * (1 + 1e-12)
    left, right = self._deltas[index], self._deltas[index + 1]
    return float(min(right + min(share, 1.0) * (left - right), 1.0))

  def epsilon_at(self, delta: float) -> float:
    """Epsilon at a delta, from above."""
    enough = np.flatnonzero(self._deltas <= delta)
    index = int(enough[0])
    if index == 0:
      return 0.0
    left, right = self._deltas[index - 1], self._deltas[index]
    share = (delta - right) / (left - right) * (1 - 1e-12)
    back = math.log1p(share * math.expm1(-self._interval))
    return (index * self._interval + back) * (1 + 1e-12)


@functools.lru_cache(maxsize=64)
def adaptive_profile(epsilon: float, count: int) -> Optional[AdaptiveProfile]:
  """The profile of exponential mechanisms, each chosen as one likes.

  Args:
    epsilon: The length of the interval of the losses of each, in nats.
    count: How many there are.

  Returns:
    An `AdaptiveProfile`; None where there are too many for it.

  ```python
  >>> round(adaptive_profile(0.5, 10).epsilon_at(1e-6), 2)
  3.59

  ```
  """
  cells = min(_POINTS // count, _MOST_CELLS)
  if cells < _LEAST_CELLS or not 1e-6 <= epsilon <= _LARGEST:
    return None
  epsilon *= 1 + 1e-14
  h = epsilon / cells
  points = count * cells
  # From -count * epsilon on, and zeros above.
  deltas = np.maximum(-np.expm1(h * np.arange(-points, 1)), 0.0)
  deltas = np.append(deltas, np.zeros(cells))
  slack = 1 + 1e-12 + 1e-13 / h
  whole = math.expm1(epsilon)
  for _ in range(count):
    # `deltas` begins one epsilon further down than what is wanted now.
    first, size = cells, points + 1
    padded = np.append(deltas, np.zeros(2 * cells + size))
    best = padded[first : first + size].copy()
    for j in range(cells):
      low, high = math.exp(-(j + 1) * h), math.exp(-j * h)
      width = high * -math.expm1(-h)
      near = padded[first - j : first - j + size]
      far = padded[first - j - 1 : first - j - 1 + size]
      near_up = padded[first - j + cells : first - j + cells + size]
      far_up = padded[first - j - 1 + cells : first - j - 1 + cells + size]
      slope, slope_up = (near - far) / width, (near_up - far_up) / width
      linear = (far_up - slope_up * low) - (far - slope * low)
      inverse = math.exp(epsilon) * slope - slope_up
      with np.errstate(all='ignore'):
        s = np.sqrt(inverse / linear)
      s = np.clip(np.nan_to_num(s, nan=1 / high), 1 / high, 1 / low)
      for place in (s, 1 / low):
        share = np.clip((1 / place - low) / width, 0.0, 1.0)
        p = np.clip((math.exp(epsilon) - place) / whole, 0.0, 1.0)
        up = np.clip((place - 1) / whole, 0.0, 1.0)
        value = p * (share * near + (1 - share) * far)
        value += up * (share * near_up + (1 - share) * far_up)
        np.maximum(best, value, out=best)
    deltas = best * slack
  return AdaptiveProfile(
    np.minimum(np.maximum.accumulate(deltas[::-1])[::-1], 1.0), h
  )
