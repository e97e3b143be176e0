"""Discrete Laplace noise and randomized response: finitely many losses.

A mechanism is dominated by a pair (P, Q) of distributions with finitely many
outcomes, so that its losses log(P / Q) are a list and no integrals are needed.
P is of the table with the row.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import dp_accounting
import numpy as np

from tfdpflows.accounting import events
from tfdpflows.accounting.logarithms import log_bernoulli, log_sum
from tfdpflows.accounting.mechanisms import base
from tfdpflows.accounting.mechanisms import losses as losses_lib
from tfdpflows.accounting.mechanisms.epsilon_delta import pure_renyi, pure_rho
from tfdpflows.accounting.mechanisms.laplace import laplace_rho
from tfdpflows.accounting.mechanisms.sampled import ABSENT, log_mixed

# Whole numbers up to this are floats.
_LARGEST_WHOLE = 2**53
# The number of different losses, about, on a grid and in a Renyi curve.
_MOST_LOSSES = 2**14
_MOST_IN_CURVE = 1024
# Above this loss, moments are sums of plain exponentials.
_LARGEST_LOSS = 30.0
_EPS = float(np.finfo(np.float64).eps)
_ROUNDING = 1e-14
_SLACK = 1e-10


class DiscretePair(NamedTuple):
  """A pair of discrete distributions, each float64 [k]."""

  losses: np.ndarray  # log(P / Q), increasing, in nats.
  upper: np.ndarray  # Masses of P; their errors are relative to each.
  lower: np.ndarray  # Masses of Q.

  def swapped(self) -> DiscretePair:
    """The pair (Q, P)."""
    return DiscretePair(-self.losses[::-1], self.lower[::-1], self.upper[::-1])


class DiscreteMechanism(base.PureMechanism):
  """A mechanism with finitely many losses, which may be on a sample."""

  row = ABSENT

  @property
  def symmetric(self) -> bool:
    """Whether the loss under P is distributed as minus the loss under Q."""
    return bool(self.row or self.sampling_probability == 1)

  def unsampled_pair(self, most: int) -> DiscretePair:
    """The pair without a sample; `most` as for `pair`."""
    raise NotImplementedError

  def pair(self, most: int = _MOST_LOSSES) -> DiscretePair:
    """Returns the pair on the sample: that of `sampled`.

    Where there would be many more than `most` losses, neighbouring ones are put
    together: what they have under P and Q is moved to the first and the last of
    them with both kept, which can only add divergence ('Connect the dots',
    Doroshenko et al. 2022, theorem 3.3).
    """
    pair = self.unsampled_pair(most)
    q = self.sampling_probability
    if q == 1:
      return pair
    mixed = DiscretePair(
      log_mixed(pair.losses, q),
      q * pair.upper + (1 - q) * pair.lower,
      pair.lower,
    )
    if not self.row:
      return mixed
    above = mixed.losses > 0
    over = DiscretePair(*(field[above] for field in mixed))
    under = over.swapped()
    rest = 1 - float(np.sum(over.upper)) - float(np.sum(over.lower))
    rest = max(rest, 0.0) + 16 * _EPS
    parts = zip(under, (0.0, rest, rest), over)
    return DiscretePair(*(np.concatenate([a, [b], c]) for a, b, c in parts))

  def loss_range(self) -> tuple[float, float]:
    losses = self.pair().losses
    return float(losses[0]), float(losses[-1])

  def loss_scale(self) -> float:
    losses, upper, _ = self.pair()
    return math.sqrt(float(np.sum(upper * losses * losses)))

  def loss_distributions(self, interval: float) -> losses_lib.LossPair:
    pair, q = self.pair(), self.sampling_probability
    # The largest logs that the losses were computed from, if not themselves.
    logs = 0.0 if q == 1 else self.unsampled_epsilon() - math.log(q)
    remove = losses_lib.discrete(*pair, logs, interval)
    if self.symmetric:
      return remove, remove
    return remove, losses_lib.discrete(*pair.swapped(), logs, interval)

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    epsilon = self.pure_epsilon() * (1 + _ROUNDING)
    curve = renyi_of_pair(self.pair(_MOST_IN_CURVE), orders)
    return np.fmin(np.fmin(curve, epsilon), pure_renyi(epsilon, orders))

  def zcdp(self) -> base.ZCDPGuarantee:
    return base.ZCDPGuarantee.above(pure_rho(self.unsampled_epsilon()))


@dataclasses.dataclass(frozen=True)
class DiscreteLaplace(DiscreteMechanism):
  """Sums of whole numbers with discrete Laplace (two-sided geometric) noise.

  The noise Z has mass tanh(a/2) exp(-a |z|) at each integer z, a being the
  parameter. A sample is as in `SampledMechanism`, but `row` is not `OPPOSITE`.

  #### Formal guarantee
  P is the law of s + Z and Q that of Z. With y = exp(-a) the losses are a (2k -
  s) for k = 0, ..., s, with masses 1 / (1 + y) at k = s and y^s / (1 + y) at k
  = 0 under P, and tanh(a/2) y^(s - k) between; under Q the same, read
  backwards. For s = 1 that is randomized response at epsilon = a. One number
  that moves by s stands for all vectors of whole numbers that move by s in the
  l1 norm. For a log-concave noise the best test at every level is a
  (randomized) threshold, the same for all shifts, so that the trade-off
  functions of two shifts, applied one after the other, are that of their sum.
  Moving one coordinate after the other, that is a bound for moving all of them
  (Dong, Roth and Su 2022, lemma A.5).
  """

  name = 'discrete_laplace'
  words = 'discrete Laplace'
  worst = {
    'noise_parameter': max,
    'sampling_probability': max,
    'sensitivity': max,
  }

  noise_parameter: float
  sensitivity: float  # s, how far the sums move in the l1 norm.
  sampling_probability: float = 1.0
  row: int = ABSENT

  @functools.cached_property
  def _key(self) -> tuple:
    values = self.noise_parameter, self.sampling_probability
    return (self.name, *values, self.sensitivity, self.row)

  def loss_bound(self) -> float:
    return self.noise_parameter * self.sensitivity

  def unsampled_epsilon(self) -> float:
    return self.loss_bound() * (1 + 8 * _EPS)

  def unsampled_pair(self, most: int) -> DiscretePair:
    return _discrete_laplace(self.noise_parameter, int(self.sensitivity), most)

  def largest_step(self) -> float:
    """All losses are multiples of this."""
    return self.noise_parameter

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    if self.on_sample:
      return super().renyi(orders)
    return discrete_laplace_renyi(
      self.noise_parameter, self.sensitivity, orders
    )

  def zcdp(self) -> base.ZCDPGuarantee:
    rho = discrete_laplace_rho(self.noise_parameter, self.sensitivity)
    return base.ZCDPGuarantee.above(rho)


@dataclasses.dataclass(frozen=True)
class RandomizedResponse(DiscreteMechanism):
  """The answer of a row, which is replaced by another row.

  P is 1 - p + p/k at the answer of the row and p/k at the k - 1 others, Q
  likewise for another row. The losses are -x, 0 and x = log(1 + k (1 - p) / p).
  """

  name = 'randomized_response'
  words = 'randomized-response'
  worst = {'noise_parameter': min}
  work = 0.25

  noise_parameter: float  # p, inside (0, 1).
  num_buckets: float  # k, 2 or more.

  def _loss(self) -> float:
    p, k = self.noise_parameter, self.num_buckets
    ratio = k * (1 - p) / p
    if math.isfinite(ratio):
      return math.log1p(ratio)
    return math.log(k) + math.log1p(-p) - math.log(p)

  def unsampled_epsilon(self) -> float:
    return self._loss() * (1 + 8 * _EPS)

  def unsampled_pair(self, most: int) -> DiscretePair:
    p, k, loss = self.noise_parameter, self.num_buckets, self._loss()
    top = (1 - p) + p / k
    losses = np.array([-loss, 0.0, loss])
    upper = np.array([p / k, p * ((k - 2) / k), top])
    kept = upper > 0
    return DiscretePair(losses[kept], upper[kept], upper[::-1][kept])


@dataclasses.dataclass(frozen=True)
class RandomizedResponseOrNull(DiscreteMechanism):
  """The answer of a row that is null in one table, with a uniform answer there.

  P is as for `RandomizedResponse`, Q is the uniform law. The losses are log(k
  (1 - p) + p) at the answer, and log(p) elsewhere.
  """

  name = 'response_or_null'
  words = 'randomized-response'
  worst = {'noise_parameter': min}
  symmetric = False
  work = 0.25

  noise_parameter: float  # p, inside (0, 1).
  num_buckets: float  # k, 2 or more.

  def unsampled_epsilon(self) -> float:
    p, k = self.noise_parameter, self.num_buckets
    largest = max(math.log1p((k - 1) * (1 - p)), -math.log(p))
    return largest * (1 + 8 * _EPS)

  def unsampled_pair(self, most: int) -> DiscretePair:
    p, k = self.noise_parameter, self.num_buckets
    return DiscretePair(
      np.array([math.log(p), math.log1p((k - 1) * (1 - p))]),
      np.array([p * ((k - 1) / k), (1 - p) + p / k]),
      np.array([(k - 1) / k, 1 / k]),
    )

  def zcdp(self) -> base.ZCDPGuarantee:
    p, k = self.noise_parameter, self.num_buckets
    # Both losses, which have different signs, in an interval.
    length = -math.log(p) + math.log1p((k - 1) * (1 - p))
    hoeffding = length * length / 8 * (1 + _ROUNDING)
    return base.ZCDPGuarantee.above(
      min(pure_rho(self.unsampled_epsilon()), hoeffding)
    )


@events.event_class
class DiscreteLaplaceDpEvent(dp_accounting.DpEvent):
  """A sum of whole numbers with discrete Laplace (two-sided geometric) noise.

  Each coordinate of the sum gets its own noise, which is z with probability
  tanh(a/2) exp(-a |z|). It can be drawn exactly (Canonne, Kamath and Steinke
  2020), so that no low-order bits of floats leak.

  Attributes:
    noise_parameter: a, above zero.
    sensitivity: the largest l1 norm of the whole numbers that one row
      contributes; a replaced row may move the sum by twice that.

  #### Formal guarantee
  The mechanism is (a * sensitivity)-private (Ghosh, Roughgarden and
  Sundararajan 2012); its losses are those of `DiscreteLaplace`.
  """

  noise_parameter: float
  sensitivity: int


@events.register(
  DiscreteLaplaceDpEvent,
  'discrete Laplace mechanism, noise parameter {0.noise_parameter:.6g}, '
  'sensitivity {0.sensitivity}',
)
def _(event, relation):
  a = events.event_number(event, 'noise_parameter')
  if a == 0:
    raise ValueError(
      f'noise_parameter of {event!r} must be above zero: there is no such '
      'noise. Less of it is more noise.'
    )
  shift = events.event_number(event, 'sensitivity', 0, _LARGEST_WHOLE // 2)
  if shift != int(shift):
    raise ValueError(f'sensitivity of {event!r} must be an integer.')
  if relation is events.Relation.REPLACE_ONE:
    shift *= 2
  if shift == 0:
    return []
  if not math.isfinite(a * shift):
    return [(base.NonPrivate(), 1)]
  return [(DiscreteLaplace(a, shift), 1)]


@events.event_class
class RandomizedResponseDpEvent(dp_accounting.DpEvent):
  """Randomized response of every row (Warner 1965).

  The answer of a row is one of k buckets: with probability 1 - p the bucket of
  the row, else any of the k, each with the same probability.

  Attributes:
    noise_parameter: p, in [0, 1]; at zero nothing is private.
    num_buckets: k, 1 or more.

  #### Formal guarantee
  All answers may be published: only that of one row changes, and it is
  independent of the others. The event is for rows replaced by another
  (`REPLACE_ONE`) or by the null row (`REPLACE_SPECIAL`), which must answer each
  bucket with the same probability. It is refused on a sample and with
  `ADD_OR_REMOVE_ONE`, as the number of answers would reveal the row.
  """

  noise_parameter: float
  num_buckets: int


@events.register(
  RandomizedResponseDpEvent,
  'randomized response of every row over {0.num_buckets} buckets, '
  'noise parameter {0.noise_parameter:.6g}',
)
def _(event, relation):
  p = events.event_number(event, 'noise_parameter', 0.0, 1.0)
  k = events.event_number(event, 'num_buckets', 1, _LARGEST_WHOLE)
  if k != int(k):
    raise ValueError(f'num_buckets of {event!r} must be an integer.')
  if relation is events.Relation.ADD_OR_REMOVE_ONE:
    raise events.RefusedEventError(
      event,
      'a row that is added adds an answer: randomized response is only '
      'supported with REPLACE_ONE and REPLACE_SPECIAL, not with '
      f'{relation.name}.',
    )
  if k == 1 or p == 1:
    return []
  if p == 0:
    return [(base.NonPrivate(), 1)]
  if relation is events.Relation.REPLACE_ONE:
    return [(RandomizedResponse(p, k), 1)]
  return [(RandomizedResponseOrNull(p, k), 1)]


def renyi_of_pair(pair: DiscretePair, a: np.ndarray) -> np.ndarray:
  """Returns Renyi divergences of a pair, the larger of both directions.

  With r = P / Q = 1 + v, the moments less one are E_Q[r^b - 1 - b v] for b = a
  and b = 1 - a, sums of positive terms, as E_Q[v] = 0; so that nothing cancels
  where they are small.

  >>> pair = RandomizedResponse(0.5, 2.0).pair()
  >>> print(renyi_of_pair(pair, np.array([2.0])).round(6))
  [0.847298]
  """
  with np.errstate(divide='ignore'):
    log_upper, log_lower = np.log(pair.upper), np.log(pair.lower)
  x = pair.losses
  moments = np.empty_like(a)
  if np.max(np.abs(x)) <= _LARGEST_LOSS:
    v = np.expm1(x)
    for i, order in enumerate(a):
      excess = max(
        log_sum(log_bernoulli(b, v, x) + log_lower) for b in (order, 1 - order)
      )
      slack = math.log1p(_SLACK * order / (order - 1))
      moments[i] = np.logaddexp(0.0, excess + slack)
    return moments / (a - 1) * (1 + _ROUNDING)
  for i, t in enumerate(a - 1):
    moment = max(log_sum(log_upper + t * x), log_sum(log_lower - t * x))
    scale = 1 + abs(moment) + t * float(np.max(np.abs(x)))
    moments[i] = moment + _ROUNDING * scale
  return moments / (a - 1)


def discrete_laplace_renyi(
  parameter: float, shift: float, a: np.ndarray
) -> np.ndarray:
  """Returns Renyi divergences of discrete Laplace noise, without a sample.

  With t = a - 1, n = 2t + 1, y = exp(-parameter) and u = parameter * shift, the
  sum of the moments of all losses is

      A exp(tu) + B exp(-(1 + t) u),
      A = (1 - y^(n + 1)) / ((1 + y) (1 - y^n)),   B = 1 - A,

  as the masses between the ends make a geometric series. Towards y = 1 that is
  the Laplace mechanism (Mironov 2017, table II). Where it cancels,
  `discrete_laplace_rho` is taken.

  >>> print(discrete_laplace_renyi(1.0, 1.0, np.array([2.0])).round(6))
  [0.735326]
  """
  t, u = a - 1, parameter * shift
  scale = math.log1p(math.exp(-parameter))
  with np.errstate(divide='ignore', under='ignore'):
    both = np.log(-np.expm1(-(2 * t + 1) * parameter)) + scale
    log_a = np.log(-np.expm1(-(2 * t + 2) * parameter)) - both
    log_b = np.log(-np.expm1(-2 * t * parameter)) - parameter - both
  moment = np.logaddexp(log_a + t * u, log_b - a * u)
  size = 1 + np.abs(log_a) + np.abs(log_b) + np.abs(both) + a * u
  curve = (moment + _ROUNDING * size) / t
  rho = discrete_laplace_rho(parameter, shift)
  return np.fmin(np.fmin(curve, u * (1 + 4 * _EPS)), a * rho)


def discrete_laplace_rho(parameter: float, shift: float) -> float:
  """Returns the smallest rho of the zCDP of discrete Laplace noise, from above.

  It is the mean loss u - c (1 - exp(-u)), with u = a * shift and c = a /
  sinh(a), a being the parameter.

  #### Formal guarantee
  With M(u) = A exp(tu) + B exp(-(1 + t) u) of `discrete_laplace_renyi`, rho(u)
  = u - c (1 - exp(-u)) and w = exp(-u), G(u) = t (1 + t) rho(u) - log M(u) is
  zero at u = 0, and its derivative has the sign of

      h(w) = A t ((1 + t) (1 - cw) - 1) + B (1 + t) w^n (1 + t (1 - cw)).

  That is not negative for 0 < w <= 1, so that (1 + t) rho bounds the divergence
  of order 1 + t:

  - At w = 1 it is (n^2 + 1) / 4 - f / 2 - c (n^2 - 1) / 4 with f = n tanh(a/2)
    coth(na/2). As x coth(x) is concave in x^2, f is concave in n^2; at n = 1 it
    is 1 with the slope (1 - c) / 2, so that f <= 1 + (n^2 - 1) (1 - c) / 2.
  - With x = cw, h < 0 means that B (1 + t) w^n / (A t) is below D1 / D2, where
    D1 = (1 + t) x - t is above zero and D2 = (1 + t) - t x. The log of the one
    less that of the other has, times w, the derivative n - n x / (D1 D2), and
    D1 D2 = x - t (1 + t) (1 - x)^2 <= x: it falls with w. If it were below
    zero somewhere, it would be so at w = 1.

  For shift 1 that is the bound of Kearns and Saul on a coin, and for a small
  parameter that of Harrison and Manurangsi 2025 on the Laplace mechanism.

  #### Example

  >>> round(discrete_laplace_rho(1.0, 1.0), 6)  # tanh(1/2)
  0.462117
  """
  u = parameter * shift
  if parameter < 0.1:
    # 1 - a / sinh(a); the series alternates.
    square = parameter * parameter
    rest = square * (1 / 6 - square * (7 / 360 - square * 31 / 15120))
  elif parameter < 700:
    rest = 1 - parameter / math.sinh(parameter)
  else:
    rest = 1.0
  return (laplace_rho(u) - rest * math.expm1(-u)) * (1 + 64 * _EPS)


def _discrete_laplace(a: float, s: int, most: int) -> DiscretePair:
  y = math.exp(-a)
  # Inner outcomes 1, ..., s - 1, in groups of neighbours.
  size = max(-(-(s - 1) // most), 1)
  first = 1 + size * np.arange(-(-(s - 1) // size), dtype=np.int64)
  last = np.minimum(first + (size - 1), s - 1)
  share = -np.expm1(-a * (last - first + 1)) / (1 + y)
  lower = share * np.exp(-a * first)
  upper = share * np.exp(-a * (s - last))
  ends = a * (2.0 * first - s), a * (2.0 * last - s)
  if size > 1:
    width = np.where(last > first, ends[1] - ends[0], 1.0)
    with np.errstate(over='ignore', invalid='ignore'):
      above = upper - lower * np.exp(ends[0])
    above = np.where(np.isfinite(above), above, upper)
    # Rounding, upwards.
    above += upper * (16 + 4 * a * s) * _EPS
    moved = np.clip(above / -np.expm1(-width), 0.0, upper)
    moved = np.where(last > first, moved, upper)
    losses = np.stack(ends, axis=1).ravel()
    upper = np.stack([upper - moved, moved], axis=1).ravel()
    # As losses may be large, from the other side.
    with np.errstate(over='ignore', under='ignore'):
      lower = np.where(upper > 0, np.exp(np.log(upper + 5e-324) - losses), 0.0)
  else:
    losses = ends[0]
  far = math.exp(-a * s) / (1 + y)
  near = 1 / (1 + y)
  return DiscretePair(
    np.concatenate([[-a * s], losses, [a * s]]),
    np.concatenate([[far], upper, [near]]),
    np.concatenate([[near], lower, [far]]),
  )
