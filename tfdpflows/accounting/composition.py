"""Accountants that use one (epsilon, delta) of each mechanism.

They need no distributions and are easy to check by hand; their epsilons are
well above those of 'pld'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from scipy import optimize

from tfdpflows.accounting import accountant, mechanisms
from tfdpflows.accounting.mechanisms.base import Mechanism, lower_log

_Counts = Sequence[tuple[Mechanism, int]]

# Errors of sums and of amplified epsilons, relative.
_UP = 1 + 1e-12
# The share of delta that goes to the slack of advanced composition, and what is
# left to the mechanisms.
_SHARES = 1 / (1 + np.geomspace(1e-6, 1e6, 41))


class BasicAccountant(accountant.MechanismAccountant):
  """Accounts by adding epsilons and deltas.

  A mechanism that is private for many (epsilon, delta), such as a Gaussian one,
  enters with its smallest epsilon at an even share of the delta that mechanisms
  with a given delta leave.

  #### Formal guarantee
  Epsilons and deltas add up (Dwork et al. 2006, theorem 1). Gaussian mechanisms
  are accounted by theorem 8 of Balle and Wang 2018, mechanisms on a sample, by
  log(1 + q (exp(epsilon) - 1)) at q delta, as in theorems 8 and 9 of Balle,
  Barthe and Gaboardi 2018 (see `mechanisms.sampling` for when a row is
  replaced), zCDP ones as in `mechanisms.zero_concentrated`, disjoint shards by
  the one that costs most.

  #### Example

  >>> import dp_accounting
  >>> accountant = BasicAccountant()
  >>> accountant.compose(dp_accounting.LaplaceDpEvent(4.0), 8).get_epsilon(1e-5)
  2.000...
  """

  name = 'basic'
  guarantee = 'upper_bound'
  question = 'epsilon_at'

  def _epsilon_at(self, delta: float) -> float:
    best = math.inf
    for counts in self._sorted_readings():
      left = Fraction(delta) - mechanisms.given_delta(counts)
      if left >= 0:
        best = min(best, self._epsilon(counts, _log(left)))
    return best

  def _delta_at(self, epsilon: float) -> float:
    # Found by bisection: a millionth above the smallest.
    return min(self._delta(x, epsilon) for x in self._sorted_readings())

  def _sorted_readings(self) -> list[_Counts]:
    return [sorted(counts.items()) for counts in self._readings()]

  def _delta(self, counts: _Counts, target_epsilon: float) -> float:
    given = mechanisms.given_delta(counts)
    if given >= 1:
      return 1.0
    # What is seen to be enough is enough, whatever lies between.
    if self._epsilon(counts, -math.inf) <= target_epsilon:
      return _up(given)
    low, high = -800.0, _log(1 - given)
    # Where delta was found to be too small, and large enough.
    short, enough = -math.inf, math.inf

    def excess(log_left: float) -> float:
      nonlocal short, enough
      found = self._epsilon(counts, log_left) - target_epsilon
      if found <= 0:
        enough = min(enough, log_left)
        return found
      short = max(short, log_left)
      return min(1e3, found)  # Of infinity and NaN, too.

    if excess(high) > 0:
      return 1.0
    if excess(low) > 0:
      # Brent's method comes close in a third of the steps.
      optimize.brentq(excess, low, high, xtol=1e-8, disp=False)
    while high - low > 1e-7:
      middle = (low + high) / 2
      if short < middle < enough:
        excess(middle)
      low, high = (low, middle) if middle >= enough else (middle, high)
    return min(_up(given + Fraction(math.exp(high) * _UP + 5e-324)), 1.0)

  def _epsilon(self, counts: _Counts, log_left: float) -> float:
    """Returns epsilon at a delta above those that are given."""
    return float(mechanisms.summed_epsilons(counts, np.float64(log_left)))


class AdvancedAccountant(BasicAccountant):
  """Accounts by advanced (or strong) composition.

  A part of delta, the slack s, covers the probability that losses add up to
  more than a bound; the rest is shared as in 'basic'. The best of a fixed set
  of slacks is taken, and 'basic' where that is less.

  #### Formal guarantee
  Theorem 3.5 of Kairouz, Oh and Viswanath 2015, the smallest of sum e, of B + S
  sqrt(2 log(exp(1) + S / s)) and of B + S sqrt(2 log(1 / s)), with B = sum e
  tanh(e / 2) and S^2 = sum e^2 over the epsilons e of all runs. In short: but
  for their deltas, runs lose no more than randomized responses, of which B is
  the mean loss, and the loss is more than B + c with probability exp(-c^2 / (2
  S^2)) at most (Hoeffding). So delta(B + c), the integral of P[loss > B + c +
  u] exp(-u) over u > 0, is at most exp(-c^2 / (2 S^2)) / (1 + c / S^2), which
  is at most s for both c.

  #### Example

  >>> import dp_accounting
  >>> accountant = AdvancedAccountant()
  >>> step = dp_accounting.LaplaceDpEvent(40.0)
  >>> accountant.compose(step, 80).get_epsilon(1e-5)
  1.0...
  """

  name = 'advanced'

  def _epsilon(self, counts: _Counts, log_left: float) -> float:
    basic = super()._epsilon(counts, log_left)
    if not counts or log_left == -math.inf:
      return basic
    takers = mechanisms.count_approximate(counts)
    slack, rest = (_SHARES, _SHARES[::-1]) if takers else (np.ones(1),) * 2
    with np.errstate(divide='ignore', over='ignore', invalid='ignore'):
      log_share = log_left + np.log(rest) - math.log(max(takers, 1))
      epsilons = np.array(
        [mechanism.epsilon_at(log_share) for mechanism, _ in counts]
      )
      number = np.array([float(count) for _, count in counts])[:, None]
      # Relative to the largest, so that no square leaves the range of floats.
      largest = np.maximum(np.max(epsilons, axis=0), 5e-324)
      scale = largest * np.sqrt(
        np.sum(number * (epsilons / largest) ** 2, axis=0)
      )
      mean = np.sum(number * epsilons * np.tanh(epsilons / 2), axis=0)
      log_slack = lower_log(log_left + np.log(slack))
      # log(exp(1) + S / s), without the range of floats being left either.
      second = np.logaddexp(1.0, np.log(scale) - log_slack)
      best = mean + scale * np.sqrt(2 * np.minimum(second, -log_slack))
    best = best[~np.isnan(best)]
    return min(basic, float(np.min(best, initial=math.inf)) * _UP)


def _log(number: Fraction) -> float:
  """Returns the log of a number in [0, 1], even if too small for a float."""
  if number <= 0:
    return -math.inf
  return math.log(number.numerator) - math.log(number.denominator)


def _up(number: Fraction) -> float:
  """Returns a float that is not below."""
  value = float(number)
  return value if Fraction(value) >= number else math.nextafter(value, math.inf)
