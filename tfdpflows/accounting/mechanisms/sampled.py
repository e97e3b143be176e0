"""Mechanisms on samples that a symmetric pair of distributions dominates.

A mechanism is dominated by a pair of one-dimensional distributions (P, Q). The
privacy loss is log(dP/dQ)(x). Each pair here is symmetric without a sample: the
loss under P is distributed as minus the loss under Q, so that one pair serves
both directions. What sampling with probability q makes of it:

- `ABSENT`, a row is added or removed: (1 - q) Q + q P against Q, and the other
  way round (Zhu, Dong and Wang 2022, theorem 11).
- `OPPOSITE`, a row is replaced in a Poisson sample of a mechanism with additive
  noise: the pair derived below, which is symmetric.
- `PRESENT`, a row is replaced, else: the profile g(alpha) = H_alpha((1 - q) Q +
  q P || Q) for alpha = exp(epsilon) >= 1 holds in both directions (Balle,
  Barthe and Gaboardi 2018, theorem 2; see `sampling`), and so, for any two
  distributions, does g(alpha) = alpha g(1 / alpha) + 1 - alpha below 1. That is
  the divergence of a pair: each positive loss l has the masses under (1 - q) Q
  + q P and Q that it has there, -l has the same two swapped, and what is left,
  equal under both, has loss 0. This needs something to be left: with A the
  event that the loss is positive, (1 - q) Q(A) + q P(A) + Q(A) <= 1. As the
  pair without sampling is symmetric, P(A) + Q(A) = 1 - P[loss = 0] <= 1 and
  Q(A) <= P(A), so that Q(A) <= 1/2, and the sum is 2 (1 - q) Q(A) + q (P(A) +
  Q(A)) <= 1. With q = 1 it is the pair without sampling.

#### A row replaced in a Poisson sample
Given all other rows of the sample, let the output be w0 without the row that
differs, w with it and w' with the row in its place. Additive noise of which P
and Q above (of standard deviation or scale s per unit) dominate w against w0
and w' against w0 gives, for every event A and K_m the noise around m,

    w(A) <= K_1(x >= t)  and  w'(A) >= K_-1(x >= t)  where w0(A) = K_0(x >= t):

both are the lemma of Neyman and Pearson for P and Q, whose likelihood ratio
grows with x, and, mirrored, for K_-1 and K_0, whose ratio falls. It is one and
the same t in both. So for every alpha >= 0 (q being the probability of a row)

    (1 - q) w0(A) + q w(A) - alpha ((1 - q) w0(A) + q w'(A))

is at most the same for the event x >= t under the K, and with the supremum over
A and the mean over all other rows (divergences are jointly convex) the pair

    (1 - q) K_0 + q K_1  against  (1 - q) K_0 + q K_-1

dominates the mechanism on the sample (Zhu, Dong and Wang 2022, definition 7),
under composition too (theorem 10 there). It is what happens to a row of 1 that
is replaced by one of -1 among rows of 0, so nothing less would do. (This pair
is also the one of dp_accounting 0.6 for Gaussian noise.) The mirror image x ->
-x swaps its two distributions. The loss grows with x and is 0 at x = 0, so that
x > 0 is where it is positive.

#### Renyi divergences
The log of the moment of order a of M = (1 - q) Q + q P against Q, which is (a -
1) times the divergence, is computed as that of one plus something positive,
never as a difference, so that it is accurate for small q as well. With r =
dM/dQ = 1 + v, v = q (dP/dQ - 1), that excess is

- E_Q[r^a - 1 - a v] for M against Q, as E_Q[v] = 0,
- E_Q[r^b - 1 - b v] with b = 1 - a for Q against M,
- E_Q[(r^(a - 1) - 1) (r - r^(1 - a)); r > 1] for the symmetric pair that stands
  for both where a row is replaced: M and Q where r > 1, the same two swapped on
  a copy of that set, and what is left, the same under both. (Domination for all
  hockey-stick divergences is domination for all f-divergences.)
- for a row replaced in a Poisson sample (above, M+ and M- being the pair), r =
  M+ / M- and both as in E_M-[r^a - 1 - a (r - 1)], or by symmetry the integral
  of the third kind, under M-.

Each integrand is a convex function of dP/dQ.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from tfdpflows.accounting.logarithms import log_bernoulli, log_expm1, log_sum
from tfdpflows.accounting.mechanisms import losses
from tfdpflows.accounting.mechanisms.base import Mechanism

# Where the row that differs is, see `SampledMechanism`.
ABSENT, PRESENT, OPPOSITE = range(3)

# A pair with losses of up to this, and the cells they are put into.
_LARGEST_LOSS = 30.0
_CELLS = 1024
# Errors of an integrand and of its integral, relatively.
_SLACK = 1e-10
# Errors of a mass, relatively; of those of a row replaced in a sample, whose
# losses are inverted twice.
_MASS_SLACK = 1e-14
_OPPOSITE_MASS_SLACK = 1e-12


class SampledMechanism(Mechanism):
  """A mechanism that may be on a sample; subclasses have these fields.

  Attributes:
    sampling_probability: probability q with which the sample takes a row; 1 if
      there is no sample.
    row: `ABSENT`, `PRESENT` or `OPPOSITE`, as above. For `OPPOSITE` the noise
      of w around w0 has twice the `noise_multiplier`; all that holds for
      `PRESENT` holds for it as well, and more.
    bounded: whether the losses have a largest one.
  """

  bounded: ClassVar[bool] = True
  sampling_probability: float
  row: int

  # The pair (P, Q) without a sample.

  def loss_bound(self) -> float:
    """The largest loss without a sample that needs a grid point."""
    raise NotImplementedError

  def masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Masses of P and of Q between increasing losses, also infinite ones.

    Their errors are relative to each mass, a few units in the last place times
    one plus its logarithm.
    """
    raise NotImplementedError

  def cancelling(self) -> float:
    """The largest term of a loss that may cancel against another one."""
    return 0.0

  # The pair of `OPPOSITE`.

  def opposite_bound(self) -> float:
    """The largest loss that needs a grid point, up to a few last places."""
    raise NotImplementedError

  def opposite_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `masses`, of (1 - q) K_0 + q K_1 and of (1 - q) K_0 + q K_-1.

    The first edge is zero; the last may be infinite.
    """
    raise NotImplementedError

  # Answers.

  def loss_range(self) -> tuple[float, float]:
    q = self.sampling_probability
    if self.row == OPPOSITE and q < 1:
      high = self.opposite_bound()
      low = -high
    else:
      bound = self.loss_bound()
      low, high = sampled_loss(-bound, q), sampled_loss(bound, q)
      low = -high if self.row else low
    return losses.outwards(low), losses.outwards(high)

  def loss_scale(self) -> float:
    return self.sampling_probability * self.loss_bound()

  def loss_distributions(self, interval: float) -> losses.LossPair:
    q = self.sampling_probability
    low, high = self.loss_range()
    first, last = math.floor(low / interval), math.ceil(high / interval)
    argument = self.cancelling()
    if q < 1:
      argument -= math.log(q)
    if self.row == OPPOSITE and q < 1:
      edges = np.arange(last + 1) * interval
      edges = np.append(edges, np.inf)
      if self.bounded:
        # No loss is above the last grid point.
        edges = np.append(edges[:-2], [np.inf, np.inf])
      pair = self.opposite_masses(edges)
      both = losses.two_sided(pair, pair, interval, argument)
      return both, both
    replaced = self.row and q < 1
    if replaced:
      first = 0
    edges = unsampled_loss(np.arange(first, last + 1) * interval, q)
    if self.bounded:
      # The losses end there, and rounding must not cut an end off.
      edges[-1] = np.inf
      if not replaced:
        edges[0] = -np.inf
    edges = np.concatenate([[-np.inf], edges, [np.inf]])
    with_row, without = self.masses(edges)
    if q < 1:
      with_row = q * with_row + (1 - q) * without
    if replaced:
      pair = with_row[1:], without[1:]
      both = losses.two_sided(pair, pair, interval, argument)
      return both, both
    remove = losses.one_sided(with_row, without, first, interval, argument)
    if q == 1:
      return remove, remove
    add = losses.one_sided(
      without[::-1], with_row[::-1], -last, interval, argument
    )
    return remove, add


def sampled_loss(loss: float, q: float) -> float:
  """Returns log(1 - q + q exp(loss)), the loss on a sample.

  It is off by a few units in the last place: near zero the logarithm is not
  taken of a rounded number near one.
  """
  if q == 1:
    return loss
  if loss > 700:
    return math.log(q) + loss + math.log1p((1 - q) / q * math.exp(-loss))
  change = q * math.expm1(loss)
  if change > -0.5:
    return math.log1p(change)
  return math.log((1 - q) + q * math.exp(loss))


def unsampled_loss(loss: np.ndarray, q: float) -> np.ndarray:
  """Returns the inverse of `sampled_loss`; minus infinity below its range."""
  if q == 1:
    return loss
  # log((exp(loss) - (1 - q)) / q), written so that nothing cancels.
  above = np.maximum(loss - math.log1p(-q), 0.0)
  with np.errstate(divide='ignore', over='ignore'):
    logs = np.log(np.expm1(np.minimum(above, 40.0)))
  logs += np.maximum(above - 40.0, 0.0)
  return logs + (math.log1p(-q) - math.log(q))


def sampled_renyi(mechanism: SampledMechanism, a: np.ndarray) -> np.ndarray:
  """Returns Renyi divergences on a sample for `bounded` losses, from above.

  The mass of Q between two losses is moved to both of them, so that the mean of
  dP/dQ stays, and the mean of a convex function of it can only grow. The result
  is infinite where the losses are very large.

  >>> from tfdpflows.accounting.mechanisms import Laplace
  >>> print(sampled_renyi(Laplace(1.0, 0.1), np.array([2.0])).round(6))
  [0.008536]
  """
  bound, q = mechanism.loss_bound(), mechanism.sampling_probability
  if not bound <= _LARGEST_LOSS:
    return np.full_like(a, math.inf)
  if mechanism.row == OPPOSITE:
    return _opposite_renyi(mechanism, a)
  edges = np.linspace(-bound, bound, _CELLS + 1)
  upper, masses = mechanism.masses(edges)
  weights = _moved_to_edges(edges, upper, masses, _MASS_SLACK)
  v = q * np.expm1(edges)
  log_ratio = np.log1p(v)
  with np.errstate(divide='ignore'):
    log_weights = np.log(weights)
  excess = np.empty_like(a)
  for i, order in enumerate(a):
    if mechanism.row:
      half = slice(_CELLS // 2, None)
      # The cell below zero has given its part to the edge at zero, where the
      # integrand is zero.
      logs = log_symmetric(order, log_ratio[half]) + log_weights[half]
      excess[i] = log_sum(logs)
    else:
      excess[i] = max(
        log_sum(log_bernoulli(b, v, log_ratio) + log_weights)
        for b in (order, 1 - order)
      )
  return log_moment(excess, a) / (a - 1)


def _opposite_renyi(mechanism: SampledMechanism, a: np.ndarray) -> np.ndarray:
  """Returns `sampled_renyi` for a row replaced in a Poisson sample."""
  top = mechanism.opposite_bound() * (1 + 1e-14)
  edges = np.linspace(0.0, top, _CELLS // 2 + 1)
  ends = np.append(edges[:-1], np.inf)
  upper, masses = mechanism.opposite_masses(ends)
  # M+ and M- are in the place of P and Q. What is moved to the left end of the
  # first cell counts for nothing.
  weights = _moved_to_edges(edges, upper, masses, _OPPOSITE_MASS_SLACK)
  with np.errstate(divide='ignore'):
    log_weights = np.log(weights)
    excess = [log_sum(log_symmetric(order, edges) + log_weights) for order in a]
  return log_moment(np.array(excess), a) / (a - 1)


def _moved_to_edges(edges, upper, masses, slack):
  """Returns masses under Q of edges, to which those of cells are moved.

  Of a cell between losses l and l + w with mass m under Q and p under P, the
  share of the upper end is (p exp(-l) - m) / (m (exp(w) - 1)).
  """
  scaled, width = upper * np.exp(-edges[:-1]), np.expm1(np.diff(edges))
  right = (scaled - masses) / width
  # The integrands grow from zero on, to both sides: so does what may be an
  # error of masses, and of their small differences where losses are tiny.
  outwards = np.where(edges[:-1] >= 0, 1.0, -1.0)
  right += outwards * slack * (scaled + masses) / width
  right = np.clip(right, 0.0, masses)
  return np.append(masses - right, 0.0) + np.append(0.0, right)


def log_symmetric(order: float, log_ratio: np.ndarray) -> np.ndarray:
  """Returns log((r^(a - 1) - 1) (r - r^(1 - a))) for r >= 1."""
  with np.errstate(divide='ignore'):
    falling = np.log(-np.expm1(-order * log_ratio))
  return log_expm1((order - 1) * log_ratio) + log_ratio + falling


def log_mixed(loss: np.ndarray, q: float) -> np.ndarray:
  """Returns log(1 + q (exp(loss) - 1))."""
  small = np.log1p(q * np.expm1(np.minimum(loss, 1.0)))
  large = np.logaddexp(math.log1p(-q), math.log(q) + loss)
  return np.where(loss < 1, small, large)


def log_moment(log_excess: np.ndarray, a: np.ndarray) -> np.ndarray:
  """Returns log(1 + excess), with the errors of a numerical integral."""
  slack = np.log1p(_SLACK * a / (a - 1))
  return np.logaddexp(0.0, log_excess + slack)
