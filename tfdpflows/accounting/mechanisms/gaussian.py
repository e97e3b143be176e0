"""Gaussian noise, on the whole table or on a sample.

The pair is N(1, sigma^2) and N(0, sigma^2); the loss is (x - 1/2) / sigma^2.
What one release costs exactly is in `gaussian_profile`. The composition of
Gaussian releases is a Gaussian release, with `joint_noise`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction

import dp_accounting
import numpy as np
from scipy import special

from tfdpflows.accounting import events
from tfdpflows.accounting.logarithms import log_bernoulli, log_expm1, log_sum
from tfdpflows.accounting.mechanisms import base, gaussian_profile, sampled

# Tails of the noise beyond this many standard deviations (mass 2e-33) count as
# an infinite loss.
_LOSS_TAIL = 12.0
# Bins of a normal distribution are integrated by a series up to this width.
_NARROW = 0.05
# The joint noise of this many is computed with fractions.
_EXACTLY = 8
# Below this noise the numerical integrals would need too many points; the
# bounds that they improve are close there.
_LEAST_NOISE = 0.1
# Orders between whole ones for which the moment is integrated, and whole ones
# for which it is summed.
_INTEGRATED = 64.0
_SUMMED = 2**20
# Tails beyond this many standard deviations (1e-44) are left out.
_TAIL = 14.0
_MOST_POINTS = 100_000
# Orders below this are integrated for a row replaced in a Poisson sample.
_FEW = 600.0
# Moments beyond exp(30) need no integral.
_FAR = 30.0
# Errors of an integrand and of its integral, relatively.
_SLACK = 1e-10
_ULPS = 1e-15


@dataclasses.dataclass(frozen=True)
class Gaussian(sampled.SampledMechanism):
  """A sum with Gaussian noise.

  >>> print(Gaussian(2.0).renyi(np.array([2.0, 4.0])))
  [0.25 0.5 ]
  """

  name = 'gaussian'
  words = 'Gaussian'
  takes_delta = True
  worst = {'noise_multiplier': min, 'sampling_probability': max}
  shards_compare = True
  bounded = False

  noise_multiplier: float  # Standard deviation over the sensitivity.
  sampling_probability: float = 1.0
  row: int = sampled.ABSENT

  def loss_bound(self) -> float:
    sigma = self.noise_multiplier
    return _LOSS_TAIL / sigma + 0.5 / sigma / sigma

  def masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return gaussian_masses(self.noise_multiplier, edges)

  def cancelling(self) -> float:
    return 0.5 / self.noise_multiplier / self.noise_multiplier

  def opposite_bound(self) -> float:
    sigma, q = self.noise_multiplier, self.sampling_probability
    high = Gaussian(2 * sigma).loss_bound()
    low = -high - 0.25 / sigma / sigma
    return sampled.sampled_loss(high, q) - sampled.sampled_loss(low, q)

  def opposite_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As in `SampledMechanism`.

    With y = x / s^2 and c = 1 / (2 s^2), the loss is log(1 - q + q exp(y - c))
    - log(1 - q + q exp(-y - c)), and y = loss / 2 + asinh((1 - q) / q exp(c)
    sinh(loss / 2)).
    """
    noise, q = 2 * self.noise_multiplier, self.sampling_probability
    half = edges / 2
    shift = 0.5 / noise / noise
    with np.errstate(divide='ignore', over='ignore', invalid='ignore'):
      log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
      log_sinh += shift + math.log1p(-q) - math.log(q)
      y = half + np.where(
        log_sinh < 20,
        np.arcsinh(np.exp(np.minimum(log_sinh, 20.0))),
        log_sinh + math.log(2),
      )
    y = np.where(edges == np.inf, np.inf, y)
    one, zero = gaussian_masses(noise, y - shift)
    other = gaussian_masses(noise, (-y - shift)[::-1])[0][::-1]
    return (1 - q) * zero + q * one, (1 - q) * zero + q * other

  def loss_scale(self) -> float:
    sigma, q = self.noise_multiplier, self.sampling_probability
    if self.row == sampled.OPPOSITE:
      ratio = math.sinh(min(0.25 / sigma / sigma, 100.0))
      return min(2 * q * math.sqrt(ratio), 1 / sigma)
    # Under Q, sampled, and at most the one without sampling.
    ratio = math.expm1(min(1 / sigma / sigma, 100.0))
    return min(q * math.sqrt(ratio), 1 / sigma)

  def largest_step(self) -> None:
    return None

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    sigma = self.noise_multiplier
    if self.sampling_probability == 1:
      return orders / 2 / sigma / sigma
    return sampled_gaussian_renyi(
      orders, self.sampling_probability, sigma, self.row
    )

  def zcdp(self) -> base.ZCDPGuarantee:
    """rho = 1 / (2 sigma^2), with equality."""
    rho = 0.5 / self.noise_multiplier / self.noise_multiplier
    return base.ZCDPGuarantee.above(rho)

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    # One over the noise, upwards.
    mu = math.nextafter(1 / self.noise_multiplier, math.inf)
    q = self.sampling_probability
    epsilon = gaussian_profile.epsilon_at(
      base.lower_log(log_delta) - math.log(q), mu
    )
    return base.amplified_epsilons(epsilon, q)

  def gaussian_mu(self) -> float:
    """The mu of one run, see `tfdpflows.accounting.gdp`."""
    x, q = 1 / self.noise_multiplier, self.sampling_probability
    if q == 1:
      return x
    # The log of mu^2 / q^2.
    if self.row == sampled.OPPOSITE and x >= 1e-5:
      # Noise of 2 / x around 1 and around -1: 2 exp(x^2 / 4) - 2 exp(-x^2 / 4).
      square = x * x / 4
      log_square = math.log(2) + square + math.log(-math.expm1(-2 * square))
    elif x < 1e-5:
      # The first terms of both series; what follows is x^2 of them.
      log_square = 2 * math.log(x)
      if self.row == sampled.PRESENT:
        log_square += math.log1p(math.sqrt(2 / math.pi) * x)
    elif not self.row or x > 6:
      # Above 6, Phi(3 x / 2) is one and the rest is nothing.
      log_square = x * x + math.log(-math.expm1(-x * x))
      log_square += math.log(2) if self.row else 0.0
    else:
      # 3 Phi(-x / 2) - 2 cancels against Phi(3 x / 2).
      y = x / math.sqrt(8)
      square = 2 * math.expm1(x * x) * float(special.ndtr(1.5 * x))
      log_square = math.log(square + math.erf(3 * y) - 3 * math.erf(y))
    log_mu = math.log(q) + log_square / 2
    return math.exp(log_mu) if log_mu < 700 else math.inf


@events.register(
  dp_accounting.GaussianDpEvent,
  'Gaussian mechanism, noise multiplier {0.noise_multiplier:.6g}',
)
def _(event, relation):
  noise = events.event_number(event, 'noise_multiplier')
  if relation is events.Relation.REPLACE_ONE:
    noise = noise / 2
  return gaussian_run(noise)


def gaussian_run(noise: float) -> list[tuple[base.Mechanism, int]]:
  """Returns one run with a noise of zero or more."""
  return [(Gaussian(noise) if noise > 0 else base.NonPrivate(), 1)]


def joint_noise(gaussians: dict[Gaussian, int]) -> float:
  """Returns the noise of the one Gaussian release that equals several.

  It is rounded downwards; none of these is sampled.

  >>> joint_noise({Gaussian(4.0): 4})
  2.0
  """
  # Relative to the smallest, so that no square leaves the range of floats.
  smallest = min(mechanism.noise_multiplier for mechanism in gaussians)
  if list(gaussians.values()) == [1]:
    return smallest
  precision = sum(
    count * (smallest / mechanism.noise_multiplier) ** 2
    for mechanism, count in sorted(gaussians.items())
  )
  # Downwards: each summand, each sum and the root are off by a few units in the
  # last place. Never zero, which would be no noise at all.
  if len(gaussians) > _EXACTLY:
    precision *= 1 + (8 + len(gaussians)) * 2.0**-52
  noise = smallest / math.sqrt(precision)
  if len(gaussians) > _EXACTLY:
    return max(math.nextafter(noise, 0.0), 5e-324)
  exact = sum(
    count / Fraction(mechanism.noise_multiplier) ** 2
    for mechanism, count in gaussians.items()
  )
  while Fraction(noise) ** 2 * exact > 1:
    noise = math.nextafter(noise, 0.0)
  return max(noise, 5e-324)


def joined(counts: dict[base.Mechanism, int]) -> dict[base.Mechanism, int]:
  """Returns counts with all Gaussian mechanisms on the whole table as one."""
  plain = {
    mechanism: count
    for mechanism, count in counts.items()
    if isinstance(mechanism, Gaussian) and not mechanism.on_sample
  }
  rest = {m: count for m, count in counts.items() if m not in plain}
  if plain:
    rest[Gaussian(joint_noise(plain))] = 1
  return rest


def sampled_gaussian_renyi(
  a: np.ndarray, q: float, sigma: float, row: int
) -> np.ndarray:
  """Returns Renyi divergences, the larger of both directions, from above.

  Adding or removing a row, M against Q is the larger one (Mironov, Talwar and
  Zhang 2019, theorem 5): at whole orders a finite sum, between them the smaller
  one of an integral and of the chord, as the log moment is convex. Never above
  the divergence without sampling.
  """
  moments = _one_sided(a, q, sigma)
  if row:
    # The moment is less than that of M against Q, and one.
    both = np.logaddexp(0.0, moments)
    if sigma >= _LEAST_NOISE:
      wanted = moments < _FAR
      both[wanted] = np.fmin(
        both[wanted], _symmetric_moments(a[wanted], q, sigma)
      )
    moments = both
    if row == sampled.OPPOSITE and sigma >= _LEAST_NOISE:
      # Those of PRESENT are larger.
      wanted = a < _FEW
      moments[wanted] = np.fmin(
        moments[wanted], _opposite_moments(a[wanted], q, 2 * sigma)
      )
  return np.fmin(moments / (a - 1), a / 2 / sigma / sigma)


def _opposite_moments(a: np.ndarray, q: float, noise: float) -> np.ndarray:
  """Returns log moments of M+ against M-, mixtures of noise s around 0 and +-1.

  The trapezoid rule over z = x / s. With y = z / s and c = 1 / (2 s^2), M+ is
  the normal density times 1 - q + q exp(y - c), and M- its mirror image. For
  |Im y| <= h < 1 the absolute value of M+ is no larger than at Re y, and that
  of M- at least cos(h) of it, so that the integrand grows by less than
  cos(h)^(1 - a) exp((s h)^2 / 2). With h = min(1/2, 2 / sqrt(a), 2 / s) that is
  less than exp(5), and a step of s h / 6 leaves exp(5 - 12 pi) = 6e-15 of the
  integral of the moment and of the two that are taken from it. The integrand
  has its maximum below (2 a - 1) / s, where its slope is that without sampling.
  """
  shift = 0.5 / noise / noise
  found = np.full_like(a, math.inf)
  for i, order in enumerate(a):
    width = noise * min(0.5, 2 / math.sqrt(order), 2 / noise)
    step = width / 6
    low = -_TAIL - 1 / noise
    points = math.ceil(((2 * order - 1) / noise + _TAIL - low) / step)
    if points > _MOST_POINTS:
      continue
    z = low + step * np.arange(points + 1)
    y = z / noise
    upper, lower = (
      sampled.log_mixed(y - shift, q),
      sampled.log_mixed(-y - shift, q),
    )
    # r - 1, without cancellation.
    v = np.expm1(upper - lower)
    logs = log_bernoulli(order, v, upper - lower) + lower - 0.5 * z * z
    excess = log_sum(np.where(np.isnan(logs), -np.inf, logs))
    found[i] = excess + math.log(step / math.sqrt(2 * math.pi))
  return sampled.log_moment(found, a)


def _one_sided(a: np.ndarray, q: float, sigma: float) -> np.ndarray:
  """Returns log moments of M against Q."""
  lower, upper = np.floor(a), np.ceil(a)
  whole = {
    order: _whole_moment(int(order), q, sigma) if order <= _SUMMED else math.inf
    for order in {*lower.tolist(), *upper.tolist()}
  }
  below = np.array([whole[order] for order in lower.tolist()])
  above = np.array([whole[order] for order in upper.tolist()])
  share = a - lower
  moments = below.copy()
  between = share > 0
  moments[between] = ((1 - share) * below + share * above)[between]
  between &= a < _INTEGRATED
  if np.any(between) and sigma >= _LEAST_NOISE:
    moments[between] = np.fmin(
      moments[between], _integrated_moments(a[between], q, sigma)
    )
  return moments


def _whole_moment(order: int, q: float, sigma: float) -> float:
  """log sum_i Binomial(order, q)(i) exp((i^2 - i) / (2 sigma^2)).

  Mironov, Talwar and Zhang 2019, section 3.3, with each exponential less one.
  """
  if order == 1:
    return 0.0
  i = np.arange(2, order + 1, dtype=np.float64)
  factorials = _log_factorials(max(order.bit_length(), 12))
  logs = log_expm1(i * (i - 1) / 2 / sigma / sigma)
  logs -= factorials[2 : order + 1] + factorials[order - 2 :: -1][: i.size]
  logs += i * math.log(q) + (order - i) * math.log1p(-q)
  excess = log_sum(logs) + factorials[order]
  # Of each term, and of sums of up to a million of them.
  parts = 4 * factorials[order] + order * -(math.log(q) + math.log1p(-q))
  excess += _ULPS * (parts + 3 * abs(excess)) + _SLACK
  return float(np.logaddexp(0.0, excess))


@functools.lru_cache(maxsize=8)
def _log_factorials(bits: int) -> np.ndarray:
  return special.gammaln(np.arange(1.0, 2**bits + 1))


def _integrated_moments(a: np.ndarray, q: float, sigma: float) -> np.ndarray:
  """Returns log moments of M against Q by the trapezoid rule.

  With x = sigma y ~ N(0, sigma^2) the log of dP/dQ is y / sigma - 1 / (2
  sigma^2). The integrand is analytic for |Im y| < pi sigma, and grows there by
  a factor exp(Im(y)^2 / 2), and as little otherwise, so that the error falls
  exponentially with the inverse of the step; with this step it is far below
  1e-14 of the integral.
  """
  step = min(1.0, sigma) / 8
  high = float(np.max(a)) / sigma + _TAIL
  y = -_TAIL + step * np.arange(math.ceil((high + _TAIL) / step) + 1)
  loss = y / sigma - 0.5 / sigma / sigma
  with np.errstate(over='ignore'):
    v = q * np.expm1(loss)
  log_ratio = sampled.log_mixed(loss, q)
  log_density = -0.5 * y * y + math.log(step / math.sqrt(2 * math.pi))
  excess = [
    log_sum(log_density + log_bernoulli(order, v, log_ratio)) for order in a
  ]
  return sampled.log_moment(np.array(excess), a)


def _symmetric_moments(a: np.ndarray, q: float, sigma: float) -> np.ndarray:
  """Returns log moments of the symmetric pair.

  The integral over x > 1/2, with x = 1/2 + w log(1 + exp(t)), w = min(sigma,
  sigma^2), by the trapezoid rule over all t: the integrand falls like exp(3t)
  to the left. In the strip |Im t| < h it grows by less than exp(h^2) from the
  density, and by (1 - h^2 / 4)^((1 - a) / 2) from r^(1 - a), which is next to
  nothing for h = min(1/2, 4 / sqrt(a)). A step of h / 6 leaves exp(-12 pi).
  """
  width = min(sigma, sigma * sigma)
  excess = np.empty_like(a)
  for i, order in enumerate(a):
    step = min(0.5, 4 / math.sqrt(order)) / 6
    high = (order + _TAIL * sigma) / width
    t = np.arange(-20.0, high + step, step)
    distance = np.logaddexp(0.0, t)
    y = 0.5 / sigma + width / sigma * distance
    log_ratio = sampled.log_mixed(width / sigma / sigma * distance, q)
    logs = sampled.log_symmetric(order, log_ratio) - 0.5 * y * y
    logs -= np.logaddexp(0.0, -t)
    excess[i] = log_sum(logs) + math.log(step)
  excess += math.log(width / sigma / math.sqrt(2 * math.pi))
  return sampled.log_moment(excess, a)


def gaussian_masses(
  sigma: float, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the masses of N(1, sigma^2) and N(0, sigma^2) between losses.

  The edges are increasing, and may be infinite; errors are relative to each
  mass.
  """
  shift = 0.5 / sigma
  with np.errstate(invalid='ignore', over='ignore'):
    width = sigma * np.diff(edges)
    middle = sigma * (0.5 * edges[:-1] + 0.5 * edges[1:])
    narrow = width * (1 + shift + np.abs(middle)) < _NARROW
  # The first run of narrow ones; that is all of them, or nearly.
  first = int(np.argmax(narrow))
  length = int(np.argmin(np.append(narrow[first:], False)))
  others = np.r_[0:first, first + length : len(narrow)]
  inside = slice(first, first + length)
  upper, lower = np.empty(len(width)), np.empty(len(width))
  with np.errstate(over='ignore'):
    ends = sigma * edges[others], sigma * edges[others + 1]
  for masses, offset in ((upper, -shift), (lower, shift)):
    masses[inside] = _narrow_masses(middle[inside] + offset, width[inside])
    masses[others] = _normal_masses(ends[0] + offset, ends[1] + offset)
  return upper, lower


def _narrow_masses(middle: np.ndarray, width: np.ndarray) -> np.ndarray:
  """Returns the density times the width, with three terms of Taylor's series.

  Differences of distribution functions would leave an error of 1e-16 in each
  mass, which is not small when a million bins are composed a million times.
  """
  x, w = middle * middle, width * width
  series = (x * (x * (x - 15) + 45) - 15) * (w / 322560)
  series = ((x * (x - 6) + 3) / 1920 + series) * w
  series = ((x - 1) / 24 + series) * w
  density = np.exp(-0.5 * x) / math.sqrt(2 * math.pi)
  return density * (width * (1 + series))


def _normal_masses(left: np.ndarray, right: np.ndarray) -> np.ndarray:
  # On the side of the tail, where the difference keeps its relative accuracy.
  mirrored = left > 0
  left, right = (
    np.where(mirrored, -right, left),
    np.where(mirrored, -left, right),
  )
  return special.ndtr(right) - special.ndtr(left)
