"""The accountant of zero-concentrated differential privacy."""

from __future__ import annotations

import math
from typing import Optional

from tfdpflows.accounting import accountant, mechanisms
from tfdpflows.accounting.logarithms import exp_upwards
from tfdpflows.accounting.mechanisms.base import Mechanism, ZCDPGuarantee
from tfdpflows.accounting.mechanisms.zero_concentrated import (
  zcdp_epsilon,
  zcdp_log_delta,
)

# Sums of a few terms, relative to the sum of their magnitudes.
_ROUNDING = 1e-14


class ZCDPAccountant(accountant.MechanismAccountant):
  """Accounts by adding rho and xi.

  Takes Gaussian, Laplace, bounded-range, (epsilon, delta) and zCDP mechanisms,
  discrete Laplace noise, randomized response, and disjoint shards of them.
  Mechanisms on a sample are refused: sampling does not amplify zCDP (Bun,
  Dwork, Rothblum and Steinke 2018).

  #### Formal guarantee
  Divergences add up (Mironov 2017, proposition 1), and so do rho and xi;
  proposition 12 of Canonne, Kamath and Steinke 2020 converts them, at the best
  order. The deltas of (epsilon, delta) mechanisms are taken off the target
  delta first, as such a mechanism is a pure one except with probability delta
  (Kairouz, Oh and Viswanath 2015).

  #### Example

  >>> import dp_accounting
  >>> accountant = ZCDPAccountant().compose(dp_accounting.GaussianDpEvent(2.0))
  >>> accountant.rho
  0.12500...
  >>> accountant.get_epsilon(1e-5)
  2.1657...
  """

  name = 'zcdp'
  guarantee = 'upper_bound'
  question = 'zcdp'

  @property
  def rho(self) -> float:
    """The sum of all rho, from above."""
    return self._guarantee().rho

  @property
  def xi(self) -> float:
    """The sum of all xi, from above."""
    return self._guarantee().xi

  def _epsilon_at(self, delta: float) -> float:
    rho, xi, log_kept = self._guarantee()
    delta = (delta - _failure(log_kept)) * (1 - _ROUNDING)
    if delta <= 0 or not math.isfinite(rho + xi):
      return math.inf
    return float(zcdp_epsilon(rho, xi, math.log(delta)))

  def _delta_at(self, epsilon: float) -> float:
    rho, xi, log_kept = self._guarantee()
    if not math.isfinite(rho + xi):
      return 1.0
    delta = float(exp_upwards(zcdp_log_delta(rho, xi, epsilon)))
    return min((delta + _failure(log_kept)) * (1 + _ROUNDING), 1.0)

  def _refusal(self, mechanism: Mechanism) -> Optional[str]:
    if not mechanism.on_sample:
      return None
    return (
      "the accountant 'zcdp' does not support mechanisms on a sample, as "
      'sampling does not amplify zCDP.'
    )

  def _guarantee(self) -> ZCDPGuarantee:
    if self._is_non_private():
      return ZCDPGuarantee(math.inf, math.inf, -math.inf)
    return mechanisms.total_zcdp(sorted(self._totals.items()))


def _failure(log_kept: float) -> float:
  return -math.expm1(log_kept) * (1 + _ROUNDING)
