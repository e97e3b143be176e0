"""The accountant of Renyi divergences (the moments accountant)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

import numpy as np

from tfdpflows.accounting import accountant, mechanisms, renyi_conversion
from tfdpflows.accounting.budget import check_delta
from tfdpflows.accounting.events import Relation

# The orders of dp_accounting, some between its last ones, and large ones for
# small epsilons.
_DEFAULT_ORDERS = (
  *(1 + x / 10 for x in range(1, 100)),
  *range(11, 64),
  *(64, 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024, 2048),
  *(4096, 8192, 16384, 32768, 65536),
)


class RDPAccountant(accountant.MechanismAccountant):
  """Accounts by adding Renyi divergences, order by order.

  Takes every event of this package. Its epsilon is some ten per cent above that
  of 'pld'.

  Args:
    neighboring_relation: what two neighbouring tables are.
    orders: orders of the divergences, each above 1; None for a good choice.

  Raises:
    ValueError: if an order is not above 1.

  #### Formal guarantee
  Curves add up under composition (Mironov 2017) and are converted by
  proposition 12 of Canonne, Kamath and Steinke 2020. The deltas of (epsilon,
  delta) mechanisms are taken off the target delta first, as such a mechanism is
  a pure one except with probability delta (Kairouz, Oh and Viswanath 2015).
  Where every mechanism is pure, the sum of their epsilons is returned if it is
  less.

  #### References
  Abadi et al. 2016; Mironov 2017; Mironov, Talwar and Zhang 2019; Papernot et
  al. 2018; Papernot and Steinke 2022. The curves are in
  `tfdpflows.accounting.mechanisms`.

  #### Example

  >>> import dp_accounting
  >>> accountant = RDPAccountant()
  >>> step = dp_accounting.PoissonSampledDpEvent(
  ...     0.01, dp_accounting.GaussianDpEvent(1.0))
  >>> accountant.compose(step, 1000).get_epsilon(1e-5)
  2.10...
  """

  name = 'rdp'
  guarantee = 'upper_bound'
  question = 'renyi'

  def __init__(
    self,
    neighboring_relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    *,
    orders: Optional[Sequence[float]] = None,
  ):
    super().__init__(neighboring_relation)
    orders = _DEFAULT_ORDERS if orders is None else orders
    self._orders = tuple(float(order) for order in orders)
    if not self._orders or not all(1 < x < math.inf for x in self._orders):
      raise ValueError(f'orders must be finite and above 1, not {orders!r}.')

  @property
  def orders(self) -> np.ndarray:
    """The orders, float64 [k]."""
    return np.array(self._orders)

  @property
  def rdp(self) -> np.ndarray:
    """The divergences at `orders`, float64 [k], in nats.

    Infinite at orders that are left out, see `remarks`.
    """
    if self._is_non_private():
      return np.full(len(self._orders), math.inf)
    return mechanisms.total_curve(self._totals.items(), self._orders)

  def get_epsilon_and_optimal_order(
    self, target_delta: float
  ) -> tuple[float, float]:
    """Returns `get_epsilon(target_delta)` and the order that it rests on."""
    return self._best(check_delta(target_delta), self.rdp)

  def _epsilon_at(self, delta: float) -> float:
    return self._best(delta, self.rdp)[0]

  def _delta_at(self, epsilon: float) -> float:
    best = 1.0
    for counts in self._readings():
      failure = mechanisms.failure(counts.items())
      if mechanisms.pure_epsilon(counts.items()) <= epsilon:
        best = min(best, failure)
        continue
      curve = mechanisms.total_curve(counts.items(), self._orders)
      found = renyi_conversion.deltas(self.orders, curve, epsilon, failure)
      # Upwards.
      best = min(best, math.nextafter(float(np.min(found)) + failure, 2.0))
    return best

  def remarks(self, target_delta: float) -> tuple[str, ...]:
    """Returns sentences that qualify `get_epsilon(target_delta)`, if any.

    They state that the best order is the first or the last, so that others
    might give less, and which orders are left out, and why.

    >>> import dp_accounting
    >>> accountant = RDPAccountant(orders=[2.0, 3.0])
    >>> event = dp_accounting.GaussianDpEvent(1.0)
    >>> accountant.compose(event).remarks(1e-6)
    ('rdp: the value at delta=1e-06 rests on the largest order 3: other orders
    might give a smaller epsilon.',)
    """
    target_delta = check_delta(target_delta)
    if self._is_non_private():
      return ()
    curve, orders = self.rdp, self.orders
    epsilon, order = self._best(target_delta, curve)
    sentences = []
    used = orders[np.isfinite(curve)]
    if 0 < epsilon < math.inf and order in (np.min(used), np.max(used)):
      end = 'smallest' if order == np.min(used) else 'largest'
      sentences.append(
        f'rdp: the value at delta={target_delta:g} rests on the {end} order '
        f'{order:g}: other orders might give a smaller epsilon.'
      )
    failed = orders[~np.isfinite(curve)]
    if failed.size:
      sentences.append(self._left_out(failed))
    return tuple(sentences)

  def _best(self, delta: float, curve: np.ndarray) -> tuple[float, float]:
    """Returns epsilon and its order, infinite for the pure guarantee."""
    orders = self.orders
    if self._is_non_private():
      return math.inf, float(orders[0])
    if not self._totals:
      return 0.0, float(orders[0])
    found = []
    for counts in self._readings():
      if counts is not self._totals:
        curve = mechanisms.total_curve(counts.items(), self._orders)
      failure = mechanisms.failure(counts.items())
      left, pure = delta, math.inf
      if failure <= delta:
        pure = mechanisms.pure_epsilon(counts.items())
      if failure > 0:
        # Downwards.
        left = math.nextafter(delta - failure, 0.0)
      found.append((pure, math.inf))
      if left > 0:
        epsilons = renyi_conversion.epsilons(orders, curve, left, failure)
        best = int(np.argmin(epsilons))
        found.append((float(epsilons[best]), float(orders[best])))
    # Of equal ones, the first that rests on an order.
    return min(found, key=lambda pair: (pair[0], pair[1] == math.inf))

  def _left_out(self, failed: np.ndarray) -> str:
    """Returns a sentence about orders without a finite divergence."""
    at = tuple(failed.tolist())
    names = sorted(
      {
        mechanism.name.replace('_', ' ')
        for mechanism in self._totals
        if not np.all(np.isfinite(mechanisms.renyi_curve(mechanism, at)))
      }
    )
    shown = ', '.join(f'{order:g}' for order in failed[:3])
    if failed.size > 4:
      shown += f', ... {np.max(failed):g} ({failed.size} orders)'
    elif failed.size == 4:
      shown += f' and {failed[3]:g}'
    whose = (
      f'that of a {" and a ".join(names)} mechanism' if names else 'the sum'
    )
    return (
      f'rdp: left out order {shown}: the divergence, {whose}, is not a finite '
      'number there.'
    )
