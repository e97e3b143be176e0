"""Mechanisms of which only an (epsilon, delta) guarantee is known.

With probability delta such a mechanism reveals everything, and else it is
randomized response at epsilon (Kairouz, Oh and Viswanath 2015), which is what
permute-and-flip, report noisy max and the sparse vector technique count as.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Optional

import numpy as np

from tfdpflows.accounting import events
from tfdpflows.accounting.logarithms import log_expm1
from tfdpflows.accounting.mechanisms import losses
from tfdpflows.accounting.mechanisms.base import (
  Mechanism,
  ZCDPGuarantee,
  amplified,
  event_number,
)
from tfdpflows.accounting.mechanisms.decompose import mechanisms_of

__all__ = ['EpsilonDelta', 'epsilon_delta', 'pure_renyi', 'pure_rho']

_ROUNDING = 1e-14


@dataclasses.dataclass(frozen=True)
class EpsilonDelta(Mechanism):
  """An (epsilon, delta)-private mechanism.

  Attributes:
    epsilon: In nats.
    delta: In [0, 1].
  """

  name = 'epsilon_delta'
  words = '(epsilon, delta)'
  worst = {'epsilon': max}
  shards_compare = True

  epsilon: float
  delta: float = 0.0

  def sampled(self, probability: float) -> Optional[EpsilonDelta]:
    """The guarantee on a sample; None if that costs nothing.

    Balle, Barthe and Gaboardi 2018, theorems 8 and 9.
    """
    epsilon, delta = amplified(self.epsilon, probability), self.delta
    if delta > 0:
      delta = min(math.nextafter(probability * delta, 1.0), delta)
    return EpsilonDelta(epsilon, delta) if epsilon or delta else None

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    """Of the pure part, see `failure`."""
    return pure_renyi(self.epsilon, orders)

  def zcdp(self) -> ZCDPGuarantee:
    log_kept = math.log1p(-self.delta) if self.delta < 1 else -math.inf
    rho = math.nextafter(pure_rho(self.epsilon), math.inf)
    return ZCDPGuarantee(rho, 0.0, log_kept)

  def pure_epsilon(self) -> float:
    return self.epsilon

  def failure(self) -> float:
    return self.delta

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    return np.full_like(log_delta, self.epsilon)

  def given_delta(self) -> Fraction:
    return Fraction(self.delta)

  def loss_range(self) -> tuple[float, float]:
    return losses.outwards(-self.epsilon), losses.outwards(self.epsilon)

  def loss_scale(self) -> float:
    return self.epsilon

  def loss_distributions(
    self, interval: float
  ) -> tuple[losses.LossDistribution, losses.LossDistribution]:
    epsilon, delta = self.epsilon, self.delta
    truth = (1 - delta) / (1 + math.exp(-epsilon))
    last = max(math.ceil(losses.outwards(epsilon) / interval), 1)
    # Two atoms, at -epsilon and epsilon.
    upper = np.zeros(2 * last)
    upper[0], upper[-1] = truth * math.exp(-epsilon), truth
    masses = losses.shared(upper, upper[::-1], -last, interval)
    both = losses.with_moments(-last, masses, delta)
    return both, both


def epsilon_delta(
  epsilon: float, delta: float = 0.0
) -> list[tuple[Mechanism, int]]:
  """One run, or none where it costs nothing."""
  if epsilon == 0 and delta == 0:
    return []
  return [(EpsilonDelta(epsilon, delta), 1)]


@mechanisms_of.register(events.EpsilonDeltaDpEvent)
def _(event, relation):
  return epsilon_delta(
    event_number(event, 'epsilon'), event_number(event, 'delta', 0.0, 1.0)
  )


@mechanisms_of.register(events.PermuteAndFlipDpEvent)
def _(event, relation):
  return epsilon_delta(event_number(event, 'epsilon'))


@mechanisms_of.register(events.SparseVectorDpEvent)
def _(event, relation):
  fields = ('epsilon_threshold', 'epsilon_queries', 'epsilon_answers')
  # The sum of three floats, upwards.
  epsilons = [event_number(event, field) for field in fields]
  return epsilon_delta(math.fsum(epsilons) * (1 + 1e-15))


def pure_rho(epsilon: float) -> float:
  """The rho of the zero-concentrated privacy of a pure mechanism.

  Args:
    epsilon: In nats.

  Returns:
    epsilon tanh(epsilon / 2), which is less than epsilon^2 / 2 (Bun and Steinke
    2016, proposition 1.4). Randomized response is the worst: the loss L is
    epsilon with probability p = 1 / (1 + exp(-epsilon)), else -epsilon. Its
    mean is rho, and by the inequality of Kearns and Saul (1998), log E[exp(t (X
    - p))] <= t^2 (1 - 2p) / (4 log((1 - p) / p)) for a coin X, what is left of
    log E[exp(s L)] is at most s^2 rho; so all of it is at most s (1 + s) rho.
  """
  return epsilon * math.tanh(epsilon / 2)


def pure_renyi(epsilon: float, a: np.ndarray) -> np.ndarray:
  """Randomized response, which dominates every pure mechanism.

  With p = 1 / (1 + exp(-epsilon)), the moment p^a (1 - p)^(1 - a) + (1 - p)^a
  p^(1 - a) is one and

      (exp((a - 1) epsilon) - 1) (1 - exp(-a epsilon)) / (1 + exp(-epsilon)).
  """
  excess = (
    log_expm1((a - 1) * epsilon)
    + np.log(-np.expm1(-a * epsilon))
    - math.log1p(math.exp(-epsilon))
  )
  curve = np.logaddexp(0.0, excess) / (a - 1) * (1 + _ROUNDING)
  return np.fmin(np.fmin(curve, epsilon), a / 2 * epsilon * epsilon)
