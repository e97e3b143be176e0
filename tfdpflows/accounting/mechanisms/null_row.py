"""Gaussian noise on a sample of fixed size, where a row becomes the null row.

Of n rows, m are drawn, q = m / n < 1, and noise N (0, sigma^2 I) is added to
their sum, to which each row contributes a vector of norm 1 at most and the null
row zero. One row x is null in one of the tables. Let S be m - 1 of the other
rows with the sum s, and y one more of them; all these are equally likely. Then
with x, and with the null row, the outputs are averages over S and y of

    A = (1 - q) N(s + y) + q N(s + x),   B = (1 - q) N(s + y) + q N(s).

#### Formal guarantee
With a = 1 + q (b - 1) and c = a / b, for b >= 1, advanced joint convexity
(Balle, Barthe and Gaboardi 2018, theorem 2) is an equation,

    H_a(A || B) = q H_b(N(s + x) || (1 - c) N(s + y) + c N(s)),
    H_a(B || A) = q H_b(N(s) || (1 - c) N(s + y) + c N(s + x)).

On the right stand divergences E[f(sum of w_i exp(g_i - var(g_i) / 2))] of a
Gaussian from a mixture of others, f being convex and the g_i jointly Gaussian:
their covariances are, over sigma^2, the inner products of where the others lie,
seen from the first. By Kahane's convexity inequality (1985; Ledoux and
Talagrand 1991, section 3.3) that grows with every covariance. Above, the others
are at y - x and -x, of norm 2 and 1 at most, below at y and x, of norm 1 at
most; and inner products are largest on one half-line. So

    H_a(A || B) <= H_a((1 - q) N(-1) + q N(1) || (1 - q) N(-1) + q N(0)),   (1)
    H_a(B || A) <= H_a((1 - q) N(0) + q N(1) || N(0)),                      (2)

on a line, turned over for (1), and the averages are no further apart.

Several releases on one sample, each chosen in view of earlier ones, count as
one with their joint noise, although the g_i are then jointly Gaussian only
given what came out before. The inequality needs no more of the function than
that none of its second derivatives in the terms of the sum is negative. So it
applies to the last release, given those before; the mean over what stands in
its place, which depends on nothing, is a function of that kind of the terms up
to there; and so on to the first. The covariances on the line add up like one
over the squares of the noises.

For a < 1 each profile follows from the other one. That is a pair: the losses
above zero of (1), where x > 1/2, those of (2), the same x, with both sides
swapped and at minus the loss, and what is left at zero. With F the normal
distribution function and t = F(-1 / (2 sigma)), the first two have a mass of at
most q (1 - t) + (2 - q) t = q + 2 (1 - q) t <= 1 on either side, and the masses
of (1) and of (2) differ by q (1 - 2 t) each, so that the same is left on both
sides.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from tfdpflows.accounting.logarithms import log_bernoulli, log_sum
from tfdpflows.accounting.mechanisms import base, gaussian_profile, losses
from tfdpflows.accounting.mechanisms.gaussian import (
  Gaussian,
  gaussian_masses,
  sampled_gaussian_renyi,
)
from tfdpflows.accounting.mechanisms.sampled import (
  PRESENT,
  sampled_loss,
  unsampled_loss,
)

# Beyond this many standard deviations or more (T), moments are bounded in
# closed form.
_TAIL = 14.0
# Masses further out than this leave the range of floats.
_FURTHEST = 37.0
_MOST_CELLS = 2**16
_SLACK = 1e-10
_EPS = float(np.finfo(np.float64).eps)


@dataclasses.dataclass(frozen=True)
class NullRowGaussian(base.Mechanism):
  """Gaussian noise on a sample of fixed size, with a row or the null row."""

  name = 'gaussian_or_null'
  words = 'gaussian_or_null'
  takes_delta = True
  worst = {'noise_multiplier': min, 'sampling_probability': max}
  on_sample = True
  work = 3.0

  noise_multiplier: float  # Over the norm of a row.
  sampling_probability: float  # Share q of the rows that are drawn.

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    sigma, q = self.noise_multiplier, self.sampling_probability
    # As of a replaced row, or as if it were known who is drawn.
    curve = np.fmin(
      sampled_gaussian_renyi(orders, q, sigma / 2, PRESENT),
      orders / 2 / sigma / sigma,
    )
    return np.fmin(curve, null_row_renyi(orders, q, sigma))

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    # As of a replaced row, or with both outputs split by whether the row is
    # drawn, which only delta gains from.
    q = self.sampling_probability
    log_share = base.lower_log(log_delta) - math.log(q)
    mu = math.nextafter(1 / self.noise_multiplier, math.inf)
    replaced = gaussian_profile.epsilon_at(log_share, 2 * mu)
    split = gaussian_profile.epsilon_at(log_share, mu)
    return np.minimum(split, base.amplified_epsilons(replaced, q))

  def loss_range(self) -> tuple[float, float]:
    sigma, q = self.noise_multiplier, self.sampling_probability
    largest = loss_at(Gaussian(sigma).loss_bound(), q, sigma)
    return -losses.outwards(largest), losses.outwards(largest)

  def loss_scale(self) -> float:
    return Gaussian(
      self.noise_multiplier, self.sampling_probability
    ).loss_scale()

  def loss_distributions(self, interval: float) -> losses.LossPair:
    """First with the row on top, then with it below."""
    sigma, q = self.noise_multiplier, self.sampling_probability
    largest = Gaussian(sigma).loss_bound()
    masses = []
    for row, high in (
      (True, loss_at(largest, q, sigma)),
      (False, sampled_loss(largest, q)),
    ):
      edges = np.arange(math.ceil(high / interval) + 1) * interval
      edges = np.append(edges, np.inf)
      if row:
        masses.append(masses_between(edges, q, sigma))
        continue
      with_row, without = gaussian_masses(sigma, unsampled_loss(edges, q))
      masses.append((q * with_row + (1 - q) * without, without))
    row, null = masses
    argument = 0.5 / sigma / sigma - math.log(q)
    return (
      losses.two_sided(row, null, interval, argument),
      losses.two_sided(null, row, interval, argument),
    )


def loss_at(s: float, q: float, sigma: float) -> float:
  """Returns the loss of (1) where N(1) against N(0) has the loss s >= 0.

  That is log(1 + (exp(s) - 1) q / (q + (1 - q) exp(-s - 1 / sigma^2))); it
  grows with s.
  """
  # Of what q / (q + ...) leaves of exp(s) - 1.
  share = 1 / (1 + math.exp(_log_rest(q, sigma) - s))
  if s < 700:
    return math.log1p(math.expm1(s) * share)
  return s + math.log(share)


def masses_between(
  losses: np.ndarray, q: float, sigma: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the masses of both sides of (1) between losses, zero or more.

  Errors are relative to each mass; the last loss may be infinite.
  """
  with np.errstate(over='ignore', invalid='ignore'):
    m = np.expm1(losses)
    rest = math.exp(_log_rest(q, sigma))
    # The root y = exp(s) of y^2 - (1 + m) y = m * rest, less one.
    root = np.hypot(1 + m, 2 * np.sqrt(m * rest))
    s = np.log1p(0.5 * m * (1 + (2 + m + 4 * rest) / (root + 1)))
    # There the last summand does not matter, and y = 1 + m.
    s = np.where(losses > 300, losses + 0.0, s)
  with_row, null = gaussian_masses(sigma, s)
  _, other = gaussian_masses(sigma, s + 1 / sigma / sigma)
  return q * with_row + (1 - q) * other, q * null + (1 - q) * other


def null_row_renyi(a: np.ndarray, q: float, sigma: float) -> np.ndarray:
  """Returns Renyi divergences of the pair, the larger of both directions.

  With r the ratio of both sides, the moments less one are E[r^b - 1 - b (r -
  1)], b = a or 1 - a, under the side below: an integral of a convex function of
  r over x > 1/2 for the losses of (1), and one for those of (2) swapped. In
  each of many cells, the mass is moved to both ends so that the mean of r
  stays, which can only add. Beyond x = a + T sigma, N(0) r^a <= exp(a (a - 1)
  / (2 sigma^2)) N(a) bounds the terms with a power above one, as r <= exp(s)
  and B <= N(0) there; all others are at most a times the mass of N(1).

  The result is infinite where the cells would be too many, or masses leave the
  range of floats.

  >>> print(null_row_renyi(np.array([2.0]), 0.01, 1.0).round(4))
  [0.003]
  """
  curve = np.full(a.shape, math.inf)
  for i, order in enumerate(a.tolist()):
    reach = math.hypot(_TAIL, math.sqrt(order * (order - 1)) / sigma)
    end = 0.5 + order + reach * sigma
    width = min(sigma / 16, sigma * sigma / order / 8)
    cells = math.ceil((end - 0.5) / width)
    if (end + 1) / sigma > _FURTHEST or cells > _MOST_CELLS:
      continue
    curve[i] = _divergence(order, q, sigma, cells, reach)
  return curve


def _divergence(
  order: float, q: float, sigma: float, cells: int, reach: float
) -> float:
  end = (order + reach * sigma) / sigma / sigma
  s = np.linspace(0.0, end, cells + 1)
  with_row, null = gaussian_masses(sigma, s)
  _, other = gaussian_masses(sigma, s + 1 / sigma / sigma)
  grown = np.expm1(s)
  # Of each cell, the part of the mass that goes to the far end: the top less
  # the near ratio times the mass below, over the difference of the ratios. The
  # slack is for what cancels between masses of N(1) and N(0).
  slack = 1e-12 + 64 * _EPS * cells / end
  first = grown / (1 + np.exp(_log_rest(q, sigma) - s))
  below = q * null + (1 - q) * other
  far = (q * (with_row - null) - first[:-1] * below) / np.diff(first)
  points = [(first, np.log1p(first), below, far)]
  below = q * with_row + (1 - q) * null
  far = (with_row - null - grown[:-1] * null) / np.diff(grown)
  second = -q * grown / (1 + q * grown)
  far = far * (1 + q * grown[1:])
  points.append((second, -np.log1p(q * grown), below, far))
  weighted = []
  for v, log_ratio, below, far in points:
    # The integrand grows from the ratio one on, to both sides.
    far = np.clip(far + slack * below, 0.0, below)
    weights = np.append(below - far, 0.0) + np.append(0.0, far)
    with np.errstate(divide='ignore'):
      weighted.append((v, log_ratio, np.log(weights)))
  log_power = order * (order - 1) / 2 / sigma / sigma
  tail = np.array([log_power, math.log(2 * order)])
  tail = log_sum(tail + math.log(2) + special.log_ndtr(-reach))
  worst = -math.inf
  for b in (order, 1 - order):
    logs = [
      log_sum(log_bernoulli(b, v, log_ratio) + weights)
      for v, log_ratio, weights in weighted
    ]
    if np.any(np.isnan(logs)):
      return math.inf
    worst = max(worst, log_sum(np.array([*logs, tail])))
  slack = math.log1p(_SLACK * order / (order - 1))
  moment = float(np.logaddexp(0.0, worst + slack))
  return moment / (order - 1) * (1 + 1e-14)


def _log_rest(q: float, sigma: float) -> float:
  """Returns the log of (1 - q) / q exp(-1 / sigma^2)."""
  return math.log1p(-q) - math.log(q) - 1 / sigma / sigma
