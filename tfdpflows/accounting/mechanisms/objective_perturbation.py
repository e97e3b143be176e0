"""Logistic regression whose objective has a random linear term.

With rows u_i = y_i x_i, y_i in {-1, 1} and |x_i| <= B, lambda > 0 and b drawn
from N(0, sigma^2 I), what is released is the minimizer over theta of

    sum_i log(1 + exp(-u_i . theta)) + lambda / 2 |theta|^2 + b . theta

(Chaudhuri, Monteleoni and Sarwate 2011, with the noise of Kifer, Smith and
Thakurta 2012). Here z = sigma / B is the noise multiplier, and a = B^2 /
lambda.

#### Formal guarantee
The gradient J of the objective without noise is one-to-one and onto, with a
derivative H >= lambda I, and b = -J(theta): the minimizer has the density
N(J(theta); 0, sigma^2 I) det H(theta). Let one table have one more row u. At
theta its loss has the gradient -t u with t = 1 / (1 + exp(u . theta)), inside
(0, 1) and of known sign, and the derivative t (1 - t) u u' of rank one.

*With the row on top.* Let b be the noise of the table with the row; without it,
the same theta needs b - t u. The log of the ratio of the densities is

    log(1 + t (1 - t) u' H^-1 u) + (-2 t b . u + t^2 |u|^2) / (2 sigma^2).

Let s = -b . u / (sigma |u|), a standard normal variable, and v = t |u| / B.
Then, as t (1 - t) |u|^2 <= (v - v^2) B^2, the loss is at most

    V = max over v in [0, 1] of a v (1 - v) + v s / z + v^2 / (2 z^2).

With A = a - 1 / (2 z^2) and m = s / z + a the bracket is m v - A v^2. So V is 0
for m <= 0; else for A > 0 it is m^2 / (4 A) where m <= 2 A, and in all other
cases max(0, m - A) = max(0, s / z + 1 / (2 z^2)), the loss of the Gaussian
mechanism.

*With the row below.* The determinants only lower the loss, and what is left is
at most max(0, s / z + 1 / (2 z^2)), which is V at a = 0.

The hockey-stick divergence at epsilon is E[max(0, 1 - exp(epsilon - loss))],
which grows with the loss, so that it is at most that of V. That is the profile
of a pair: V >= 0 under P, exp(-V) P and the rest, where P has no mass, under Q.
So the pair dominates (Zhu, Dong and Wang 2022, definition 7), also under
composition. As a function of s, V is never above max(0, s / z + 1 / (2 z^2)) +
A / 4, and as log(1 + a v (1 - v)) <= log(1 + a / 4), the loss is not above that
with log(1 + a / 4) for A / 4 either.

**At epsilon >= max(0, A) the bound is the Gaussian mechanism's delta**: V is
its loss where that is A or more. No larger noise is needed if lambda >= B^2 /
(epsilon + 1 / (2 z^2)). That uses the sign of the gradient, and that t (1 - t)
vanishes where t is 1, which bounds for all linear models (Redberg, Koskela and
Wang 2023) cannot.

*A row u replaced by w.* The densities have the ratio of determinants at most 1
+ a / 4, and the noises differ by d = p w - q u with p, q in [0, 1]. b . d +
|d|^2 / 2 is convex in (p, q), so it is largest at a corner, where d is 0, w, -u
or w - u, of norm at most B, B and 2 B. The loss is at most c = log(1 + a / 4)
plus the largest of 0 and three losses of Gaussian mechanisms, one of twice the
sensitivity. The probability that one of three exceeds y is at most the sum.

A row without features, such as the null row, has no gradient: with it in its
place, a row is removed.

#### References
Chaudhuri, Monteleoni and Sarwate 2011, "Differentially private empirical risk
minimization". Kifer, Smith and Thakurta 2012, "Private convex empirical risk
minimization and high-dimensional regression". Iyengar et al. 2019, "Towards
practical differentially private convex optimization". Redberg, Koskela and Wang
2023, "Improving the privacy and practicality of objective perturbation for
differentially private linear learners".
"""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np
from scipy import special

from tfdpflows.accounting import events
from tfdpflows.accounting.mechanisms import gaussian_profile, losses
from tfdpflows.accounting.mechanisms.base import Mechanism, lower_log
from tfdpflows.accounting.mechanisms.gaussian import gaussian_masses

# Tails of the noise beyond this many standard deviations (mass 2e-33) count as
# an infinite loss.
_TAIL = 12.0
_ROUNDING = 1e-13


@dataclasses.dataclass(frozen=True)
class ObjectivePerturbation(Mechanism):
  """Logistic regression with a random linear term in its objective.

  The noise is over the bound on the norm of a row, the curvature the square of
  that bound over the strong convexity of the objective without the rows.

  >>> mechanism = ObjectivePerturbation(4.0, 0.5)
  >>> print(mechanism.epsilon_at(np.log([1e-5])).round(3))  # the Gaussian's
  [0.926]
  """

  name = 'objective_perturbation'
  words = 'objective perturbation'
  takes_delta = True
  worst = {'noise_multiplier': min, 'curvature': max, 'replaced': max}

  noise_multiplier: float
  curvature: float
  replaced: bool = False  # Whether a row is, not added or removed.

  @property
  def _excess(self) -> float:
    """A, from above."""
    z, a = self.noise_multiplier, self.curvature
    return a - 0.5 / z / z + _ROUNDING * (a + 0.5 / z / z)

  @property
  def _shift(self) -> float:
    """What the loss is at most above that of a Gaussian, or above zero."""
    shift = math.log1p(self.curvature / 4)
    if not self.replaced:
      shift = min(shift, max(self._excess, 0.0) / 4)
    return shift * (1 + _ROUNDING)

  @property
  def _mu(self) -> float:
    """Mu of the largest Gaussian, from above."""
    mu = (2 if self.replaced else 1) / self.noise_multiplier
    return math.nextafter(mu, math.inf)

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    if self.replaced:
      # Three deltas, none above that of the largest.
      share = lower_log(log_delta) - math.log(3)
      return gaussian_profile.epsilon_at(share, self._mu) + self._shift
    return np.maximum(
      gaussian_profile.epsilon_at(log_delta, self._mu), self._excess
    )

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    """E[exp((a - 1) (shift + max(0, L)))], L the loss of a Gaussian.

    That is P[L <= 0] + exp(a (a - 1) mu^2 / 2) Phi((a - 1/2) mu). Of three
    Gaussian losses, the moment above zero is at most the sum.
    """
    mu = self._mu
    low = special.log_ndtr(-mu / 2) if not self.replaced else 0.0
    powers = [mu, mu / 2, mu / 2] if self.replaced else [mu]
    moment = np.full_like(orders, low)
    for x in powers:
      above = special.log_ndtr((orders - 0.5) * x)
      moment = np.logaddexp(moment, orders * (orders - 1) * x * x / 2 + above)
    slack = _ROUNDING * (2 + np.abs(moment))
    return (moment + slack) / (orders - 1) + self._shift

  def loss_range(self) -> tuple[float, float]:
    mu, excess = self._mu, self._excess
    top = _TAIL * mu + mu * mu / 2
    if self.replaced:
      return 0.0, losses.outwards(top + self._shift)
    if excess > top:
      m = _TAIL * mu + self.curvature
      top = m * m / 4 / excess
    return 0.0, losses.outwards(top)

  def loss_scale(self) -> float:
    return self._mu

  def largest_step(self) -> None:
    return None

  def loss_distributions(self, interval: float) -> losses.LossPair:
    if self.replaced:
      found = self._distribution(interval, self._replaced_masses)
      return found, found
    below = dataclasses.replace(self, curvature=0.0)
    return (
      self._distribution(interval, self._masses),
      below._distribution(interval, below._masses),
    )

  def _distribution(self, interval, masses_of) -> losses.LossDistribution:
    _, top = self.loss_range()
    edges = np.arange(math.ceil(top / interval) + 1) * interval
    upper, lower = masses_of(np.append(edges, np.inf))
    argument = 0.5 * self._mu * self._mu + self._shift
    rest = max(1 - float(np.sum(upper)), 0.0) + 1e-15
    return losses.one_sided(
      np.append(rest, upper), np.append(0.0, lower), 0, interval, argument
    )

  def _masses(self, edges):
    """Masses between losses above zero; what is left is at zero."""
    z, a, excess = self.noise_multiplier, self.curvature, self._excess
    # Of the Gaussian; exact where V is its loss.
    upper, lower = gaussian_masses(z, edges)
    if excess > 0:
      ends = np.where(edges < excess, edges, excess)
      s = z * (2 * np.sqrt(excess * ends) - a)
      s -= _ROUNDING * z * (excess + a)
      s = np.where(edges < excess, s, z * edges - 0.5 / z)
      below = edges[:-1] < excess
      found = np.diff(special.ndtr(s))
      upper = np.where(below, np.maximum(found, 0.0), upper)
      # At the larger end, which is no less.
      lower = np.where(below, upper * np.exp(-edges[1:]), lower)
    return upper, lower

  def _replaced_masses(self, edges):
    z, y = self.noise_multiplier, edges - self._shift
    survival = special.ndtr(1 / z - y * z / 2)
    survival = survival + 2 * special.ndtr(0.5 / z - y * z)
    survival = np.where(y > 0, np.minimum(survival, 1.0), 1.0)
    survival[-1] = 0.0
    upper = np.maximum(-np.diff(survival), 0.0)
    return upper, upper * np.exp(-edges[1:])


@events.event_class
class ObjectivePerturbationDpEvent(dp_accounting.DpEvent):
  """A logistic regression with a random linear term in its objective.

  The minimizer of the sum of logistic losses, plus lambda / 2 |theta|^2, plus b
  . theta with Gaussian b. Without an approximation: what is released of an
  approximate minimizer needs noise of its own.

  Attributes:
    noise_multiplier: standard deviation of b over the bound B on the l2 norm of
      a row (with a constant feature for the intercept, if there is one).
    curvature: B^2 / lambda.

  #### Formal guarantee
  That of `mechanisms.objective_perturbation`. At an epsilon of at least
  `curvature - 1 / (2 noise_multiplier^2)` that of a Gaussian mechanism with
  this noise multiplier, where a row is added or removed.
  """

  noise_multiplier: float
  curvature: float


@events.register(
  ObjectivePerturbationDpEvent,
  'objective perturbation of a logistic regression, noise multiplier '
  '{0.noise_multiplier:.6g}, curvature {0.curvature:.6g}',
)
def _(event, relation):
  noise = events.event_number(event, 'noise_multiplier')
  curvature = events.event_number(event, 'curvature')
  if noise == 0:
    return events.mechanisms_of(dp_accounting.NonPrivateDpEvent(), relation)
  replaced = relation is events.Relation.REPLACE_ONE
  return [(ObjectivePerturbation(noise, curvature, replaced), 1)]
