"""The accountant of Gaussian differential privacy: a limit, not a bound."""

from __future__ import annotations

import math

import dp_accounting
from scipy import special

from tfdpflows.accounting import accountant, gaussian
from tfdpflows.accounting import budget as budget_lib
from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting.logarithms import exp_upwards
from tfdpflows.accounting.mechanism import OPPOSITE, PRESENT, Mechanism

__all__ = ['GDPAccountant']

# Sums and square roots, in units in the last place.
_ROUNDING = 1e-14


class GDPAccountant(accountant.MechanismAccountant):
  """Accounts by the central limit theorem for privacy losses.

  Many small losses add up to nearly what one Gaussian release with noise 1 / mu
  loses, and `mu` is known in closed form (Bu, Dong, Long and Su 2020): over T
  steps with sampling probability q and noise multiplier sigma

      Poisson sampling: mu = q sqrt(T (exp(1 / sigma^2) - 1)),
      fixed size:       mu = q sqrt(2 T (exp(1 / s^2) Phi(3 / (2 s))
                                         + 3 Phi(-1 / (2 s)) - 2)),

  where neighbours of the second replace a row, and s is the noise over the
  change that this makes, half the noise multiplier. Squares of mu add up.

  Takes Gaussian mechanisms only, whole or on a sample.

  Args:
    neighboring_relation: `ADD_OR_REMOVE_ONE`, `REPLACE_ONE` or
      `REPLACE_SPECIAL`.

  #### Formal guarantee
  None where a mechanism is on a sample: epsilon is that of a limit, and may lie
  below the true one. In the example it does, by a tenth: the true one is above
  1.818, as the accountant of Gopi, Lee and Wutschitz 2021 certifies. If `exact`
  is true there is nothing to approximate: several Gaussian releases are worth
  one with mu^2 = sum 1 / sigma^2 (Dong, Roth and Su 2022, corollary 3.3), and
  epsilon and delta are the smallest ones, from above.

  ```python
  >>> accountant = GDPAccountant()
  >>> step = dp_accounting.PoissonSampledDpEvent(
  ...     0.01, dp_accounting.GaussianDpEvent(1.0))
  >>> accountant.compose(step, 1000).get_epsilon(1e-5)
  1.617...
  >>> accountant.exact
  False

  ```
  """

  name = 'gdp'
  guarantee = 'asymptotic'
  kinds = frozenset({'gaussian'})
  events = (
    dp_accounting.GaussianDpEvent,
    dp_accounting.PoissonSampledDpEvent,
    dp_accounting.SampledWithoutReplacementDpEvent,
    events_lib.SingleEpochTreeAggregationDpEvent,
    events_lib.MatrixMechanismDpEvent,
    events_lib.ToeplitzMechanismDpEvent,
    events_lib.CyclicPoissonSampledDpEvent,
    events_lib.GNMaxDpEvent,
    events_lib.ConfidentGNMaxDpEvent,
  )

  @property
  def mu(self) -> float:
    """One over the noise of the Gaussian release that all is worth."""
    if self._is_non_private():
      return math.inf
    parts = [
      math.sqrt(count) * _mu(mechanism)
      for mechanism, count in sorted(self._totals.items())
    ]
    return math.hypot(*parts)

  @property
  def exact(self) -> bool:
    """Whether no mechanism is on a sample, so that nothing is approximated."""
    return all(
      mechanism.kind == 'gaussian' and mechanism.probability == 1
      for mechanism in self._totals
    )

  def remarks(self, target_delta: float) -> tuple[str, ...]:
    """What has to stand beside `get_epsilon(target_delta)`.

    Args:
      target_delta: Inside (0, 1).

    Returns:
      One sentence.
    """
    del target_delta
    if self.exact:
      return (
        'exact: Gaussian mechanisms only, none on a sample, '
        f'mu = {self.mu:.6g}.',
      )
    return (
      f'asymptotic: the limit of many small steps, mu = {self.mu:.6g}; it may '
      'lie below the true epsilon.',
    )

  def get_epsilon(self, target_delta: float) -> float:
    """Epsilon of the limit at a delta.

    Args:
      target_delta: Inside (0, 1).

    Returns:
      Epsilon in nats; infinite if no finite one is known.

    Raises:
      ValueError: If the delta is not inside (0, 1).
    """
    target_delta = budget_lib.check_delta(target_delta)
    mu = self.mu * (1 + _ROUNDING)
    return float(gaussian.epsilon_at(math.log(target_delta) - _ROUNDING, mu))

  def get_delta(self, target_epsilon: float) -> float:
    """Delta of the limit at an epsilon.

    Args:
      target_epsilon: Zero or more, in nats.

    Returns:
      Delta, in [0, 1].

    Raises:
      ValueError: If the epsilon is negative or not a number.
    """
    target_epsilon = budget_lib.check_epsilon(target_epsilon)
    mu = self.mu * (1 + _ROUNDING)
    if mu == 0:
      return 0.0
    return min(
      float(exp_upwards(gaussian.log_delta_at(target_epsilon, mu))), 1.0
    )


def _mu(mechanism: Mechanism) -> float:
  """The mu of one run."""
  x, q = 1 / mechanism.parameter, mechanism.probability
  if q == 1:
    return x
  # The log of mu^2 / q^2.
  if mechanism.replaced == OPPOSITE and x >= 1e-5:
    # Noise of 2 / x around 1 and around -1: 2 exp(x^2 / 4) - 2 exp(-x^2 / 4).
    square = x * x / 4
    log_square = math.log(2) + square + math.log(-math.expm1(-2 * square))
  elif x < 1e-5:
    # The first terms of both series; what follows is x^2 of them.
    log_square = 2 * math.log(x)
    if mechanism.replaced == PRESENT:
      log_square += math.log1p(math.sqrt(2 / math.pi) * x)
  elif not mechanism.replaced or x > 6:
    # Above 6, Phi(3 x / 2) is one and the rest is nothing.
    log_square = x * x + math.log(-math.expm1(-x * x))
    log_square += math.log(2) if mechanism.replaced else 0.0
  else:
    # 3 Phi(-x / 2) - 2 cancels against Phi(3 x / 2).
    y = x / math.sqrt(8)
    square = 2 * math.expm1(x * x) * float(special.ndtr(1.5 * x))
    log_square = math.log(square + math.erf(3 * y) - 3 * math.erf(y))
  log_mu = math.log(q) + log_square / 2
  return math.exp(log_mu) if log_mu < 700 else math.inf
