"""The accountant of Gaussian differential privacy: a limit, not a bound."""

from __future__ import annotations

import math

from tfdpflows.accounting import accountant
from tfdpflows.accounting.logarithms import exp_upwards
from tfdpflows.accounting.mechanisms import Gaussian, gaussian_profile

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

  #### Formal guarantee
  None where a mechanism is on a sample: epsilon is that of a limit, and may lie
  below the true one. In the example it does, by a tenth: the true one is above
  1.818, as the accountant of Gopi, Lee and Wutschitz 2021 certifies. If `exact`
  is true nothing is approximated: several Gaussian releases equal
  one with mu^2 = sum 1 / sigma^2 (Dong, Roth and Su 2022, corollary 3.3), and
  epsilon and delta are the smallest ones, from above.

  #### Example

  >>> import dp_accounting
  >>> accountant = GDPAccountant()
  >>> step = dp_accounting.PoissonSampledDpEvent(
  ...     0.01, dp_accounting.GaussianDpEvent(1.0))
  >>> accountant.compose(step, 1000).get_epsilon(1e-5)
  1.617...
  >>> accountant.exact
  False
  """

  name = 'gdp'
  guarantee = 'asymptotic'
  question = 'gaussian_mu'

  @property
  def mu(self) -> float:
    """One over the noise of the one Gaussian release that equals all."""
    if self._is_non_private():
      return math.inf
    parts = [
      math.sqrt(count) * mechanism.gaussian_mu()
      for mechanism, count in sorted(self._totals.items())
    ]
    return math.hypot(*parts)

  @property
  def exact(self) -> bool:
    """Whether no mechanism is on a sample, so that nothing is approximated."""
    return all(
      isinstance(mechanism, Gaussian) and not mechanism.on_sample
      for mechanism in self._totals
    )

  def remarks(self, target_delta: float) -> tuple[str, ...]:
    """Returns one sentence that qualifies every epsilon."""
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

  def _epsilon_at(self, delta: float) -> float:
    mu = self.mu * (1 + _ROUNDING)
    return float(gaussian_profile.epsilon_at(math.log(delta) - _ROUNDING, mu))

  def _delta_at(self, epsilon: float) -> float:
    mu = self.mu * (1 + _ROUNDING)
    if mu == 0:
      return 0.0
    log_delta = gaussian_profile.log_delta_at(epsilon, mu)
    return min(float(exp_upwards(log_delta)), 1.0)
