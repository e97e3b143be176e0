"""The exponential mechanism, whose losses lie in a range of length E.

All losses of the exponential mechanism lie in [t - E, t] for some t in [0, E],
where p = (exp(E) - exp(t)) / (exp(E) - 1) at t and 1 - p at t - E is the worst
(Dong, Durfee and Rogers 2020, lemma 3.2: moving mass outwards, with its masses
under P and Q kept, only adds divergence). Such a pair has the divergence p (1 -
exp(x - t)) at x, which is largest at t = (E + x)/2. The largest one,

    delta(x) = (exp(E/2) - exp(x/2))^2 / (exp(E) - 1),   -E <= x <= E,

is convex in exp(x), with slope -1 at -E and 0 at E. It is therefore the
divergence of a pair, one without atoms, and that pair dominates whatever t each
run has (Zhu, Dong and Wang 2022, proposition 8 and theorem 10). Its slope is
minus the mass of Q above: (exp((E - x)/2) - 1) / (exp(E) - 1). So Q has the
density of the Laplace pair, times 2 / (1 - exp(-E)).

#### Several of them, each chosen after the outcomes of those before
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

import dataclasses
import functools
import math
from typing import Optional

import dp_accounting
import numpy as np

from tfdpflows.accounting import events
from tfdpflows.accounting.mechanisms import base
from tfdpflows.accounting.mechanisms.epsilon_delta import (
  epsilon_delta,
  pure_renyi,
  pure_rho,
)
from tfdpflows.accounting.mechanisms.laplace import exponential_masses
from tfdpflows.accounting.mechanisms.sampled import (
  ABSENT,
  SampledMechanism,
  sampled_renyi,
)

# Work is about the square of the number of points of all mechanisms together.
_POINTS = 1600
_MOST_CELLS = 16
_LEAST_CELLS = 3
# Exponentials of more than this are left to other bounds.
_LARGEST = 30.0
# The inverse of less than this is no float.
_LEAST = 1e-300
_ROUNDING = 1e-14


@dataclasses.dataclass(frozen=True)
class BoundedRange(SampledMechanism, base.PureMechanism):
  """A mechanism whose losses lie in an interval; `row` is not `OPPOSITE`."""

  name = 'bounded_range'
  words = 'bounded-range (exponential)'
  worst = {'epsilon': max, 'sampling_probability': max}
  shards_compare = True

  epsilon: float  # Length of the interval, in nats.
  sampling_probability: float = 1.0
  row: int = ABSENT

  def loss_bound(self) -> float:
    return self.epsilon

  def masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bound = max(self.epsilon, _LEAST)
    return exponential_masses(bound, edges, -1 / math.expm1(-bound), 0.0)

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    curve = _unsampled_renyi(self.epsilon, orders)
    if not self.on_sample:
      return curve
    # A mixture with what is the same for both is no further apart.
    sampled = np.fmin(
      pure_renyi(self.pure_epsilon() * (1 + _ROUNDING), orders),
      sampled_renyi(self, orders),
    )
    return np.fmin(curve, sampled)

  def zcdp(self) -> base.ZCDPGuarantee:
    """rho = epsilon^2 / 8 (Cesar and Rogers 2021), or that of its epsilon.

    The loss lies in an interval of length epsilon, so that by Hoeffding's lemma
    K(s) = log E[exp(s L)] <= s m + s^2 epsilon^2 / 8, m the mean; and m <=
    epsilon^2 / 8 because K(-1) = 0.
    """
    rho = min(self.epsilon * self.epsilon / 8, pure_rho(self.epsilon))
    return base.ZCDPGuarantee.above(rho)

  def unsampled_epsilon(self) -> float:
    return self.epsilon


@events.event_class
class ExponentialMechanismDpEvent(dp_accounting.DpEvent):
  """A choice by the exponential mechanism (McSherry and Talwar 2007).

  Attributes:
    epsilon: the candidate r is chosen with probability proportional to
      exp(epsilon * u(r) / (2 * sensitivity of u)); without the 2 for monotonic
      u, where one more row can only raise every u(r), or only lower every u(r),
      and neighbours add or remove a row or put the null row in its place.

  #### Formal guarantee
  Under the neighbouring relation that the sensitivity was taken for, the log
  ratios of the probabilities of all candidates lie within an interval of length
  epsilon: the mechanism is epsilon-bounded-range (Durfee and Rogers 2019),
  which is epsilon-private and composes like an (epsilon / 2)-private one.
  """

  epsilon: float


@events.register(
  ExponentialMechanismDpEvent, 'exponential mechanism, epsilon {0.epsilon:.6g}'
)
def _(event, relation):
  return _bounded_range(events.event_number(event, 'epsilon'))


@events.event_class
class ReportNoisyMaxDpEvent(dp_accounting.DpEvent):
  """The index of the largest of several noisy scores, without its value.

  Attributes:
    epsilon: the noise has scale 2 * sensitivity / epsilon; half of that for
      monotonic scores, as in `ExponentialMechanismDpEvent`.
    noise: 'laplace', 'exponential' (the same law as permute-and-flip, McKenna
      and Sheldon 2020) or 'gumbel' (the same law as the exponential mechanism).

  #### Formal guarantee
  epsilon-private (Dwork and Roth 2014, claim 3.9; Ding et al. 2021); with
  Gumbel noise epsilon-bounded-range.
  """

  epsilon: float
  noise: str = 'laplace'


@events.register(
  ReportNoisyMaxDpEvent,
  'report noisy max, {0.noise} noise, epsilon {0.epsilon:.6g}',
)
def _(event, relation):
  epsilon = events.event_number(event, 'epsilon')
  if event.noise == 'gumbel':
    return _bounded_range(epsilon)
  if event.noise in ('laplace', 'exponential'):
    return epsilon_delta(epsilon)
  raise ValueError(
    f'noise of {event!r} must be one of laplace, exponential, gumbel; for '
    'Gaussian noise on votes there is GNMaxDpEvent.'
  )


def _bounded_range(epsilon: float) -> list[tuple[base.Mechanism, int]]:
  return [(BoundedRange(epsilon), 1)] if epsilon > 0 else []


def _unsampled_renyi(epsilon: float, a: np.ndarray) -> np.ndarray:
  """Returns divergences of the worst mechanism with losses in some [t - E, t].

  As the moment is convex in dP/dQ, the worst has only the losses t, with
  probability p = (e^E - e^t) / (e^E - 1), and t - E. Its moment is
  e^((a - 1) t) (A - e^t B) / (e^E - 1) with A = e^E - e^(-(a - 1) E) and B = 1
  - e^(-(a - 1) E), the largest at e^t = (a - 1) A / (a B); that t is in [0, E],
  as the slope at the ends has the signs that the inequality of means gives it.

  Where this cancels, a E^2 / 8 (Cesar and Rogers 2021): let K(s) = log E_Q[(dP
  / dQ)^s]. K(0) = K(1) = 0, and the second derivative is the variance of losses
  in an interval of length E, at most E^2 / 4: K(a) <= a (a - 1) E^2 / 8.
  """
  share_a = np.log(-np.expm1(-a * epsilon))  # log(A) - epsilon
  share_b = np.log(-np.expm1(-(a - 1) * epsilon))
  t = np.clip(np.log1p(-1 / a) + epsilon + share_a - share_b, 0.0, epsilon)
  moment = (a - 1) * t + share_a - np.log(a) - math.log(-math.expm1(-epsilon))
  slack = _ROUNDING * (1 + (a - 1) * (t + np.abs(share_b)) + np.abs(share_a))
  curve = (moment + slack) / (a - 1)
  return np.fmin(np.fmin(curve, epsilon), a / 8 * epsilon * epsilon)


class AdaptiveProfile:
  """Deltas at epsilons `interval * i`, falling to zero, and between them."""

  def __init__(self, deltas: np.ndarray, interval: float):
    self._deltas = deltas
    self._interval = interval

  def delta_at(self, epsilon: float) -> float:
    """Returns delta at an epsilon, from above."""
    index = int(min(epsilon / self._interval, len(self._deltas)))
    # Rounding is on the side of the smaller epsilon.
    index = index - 1 if index * self._interval > epsilon else index
    if index + 1 >= len(self._deltas):
      beyond = epsilon >= len(self._deltas) * self._interval
      return 0.0 if beyond else float(self._deltas[-1])
    rest = max((index + 1) * self._interval - epsilon, 0.0)
    share = math.expm1(-rest) / math.expm1(-self._interval) * (1 + 1e-12)
    left, right = self._deltas[index], self._deltas[index + 1]
    return float(min(right + min(share, 1.0) * (left - right), 1.0))

  def epsilon_at(self, delta: float) -> float:
    """Returns epsilon at a delta, from above."""
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
  """Returns the profile of exponential mechanisms chosen one after another.

  The losses of each are in an interval of length `epsilon`. Returns None where
  there are too many.

  >>> round(adaptive_profile(0.5, 10).epsilon_at(1e-6), 2)
  3.59
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
