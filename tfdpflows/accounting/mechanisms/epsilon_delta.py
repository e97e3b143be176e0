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

import dp_accounting
import numpy as np

from tfdpflows.accounting import events
from tfdpflows.accounting.events import event_number
from tfdpflows.accounting.logarithms import log_expm1
from tfdpflows.accounting.mechanisms import base, losses

_ROUNDING = 1e-14


@dataclasses.dataclass(frozen=True)
class EpsilonDelta(base.Mechanism):
  """An (epsilon, delta)-private mechanism."""

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
    epsilon, delta = base.amplified(self.epsilon, probability), self.delta
    if delta > 0:
      delta = min(math.nextafter(probability * delta, 1.0), delta)
    return EpsilonDelta(epsilon, delta) if epsilon or delta else None

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    """Of the pure part, see `failure`."""
    return pure_renyi(self.epsilon, orders)

  def zcdp(self) -> base.ZCDPGuarantee:
    log_kept = math.log1p(-self.delta) if self.delta < 1 else -math.inf
    rho = math.nextafter(pure_rho(self.epsilon), math.inf)
    return base.ZCDPGuarantee(rho, 0.0, log_kept)

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

  def loss_distributions(self, interval: float) -> losses.LossPair:
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
) -> list[tuple[base.Mechanism, int]]:
  """Returns one run, or none where it costs nothing."""
  if epsilon == 0 and delta == 0:
    return []
  return [(EpsilonDelta(epsilon, delta), 1)]


@events.event_class
class EpsilonDeltaDpEvent(dp_accounting.DpEvent):
  """A mechanism of which only an (epsilon, delta) guarantee is known.

  Attributes:
    epsilon: the epsilon of the guarantee, in nats; zero or more.
    delta: the delta of the guarantee, in [0, 1).

  #### Formal guarantee
  The mechanism must be (epsilon, delta)-differentially private under the
  neighbouring relation of the accountant that the event is handed to. It is
  accounted as the worst mechanism with that guarantee: with probability delta
  it reveals everything, and else it is randomized response at epsilon (Kairouz,
  Oh and Viswanath 2015).
  """

  epsilon: float
  delta: float = 0.0


def _describe_guarantee(event: EpsilonDeltaDpEvent) -> str:
  parameters = f'{event.epsilon:.6g}'
  if event.delta:
    parameters = f'({parameters}, {event.delta:.6g})'
  return f'{parameters}-differentially private mechanism'


@events.register(EpsilonDeltaDpEvent, _describe_guarantee)
def _(event, relation):
  return epsilon_delta(
    event_number(event, 'epsilon'), event_number(event, 'delta', 0.0, 1.0)
  )


@events.event_class
class PermuteAndFlipDpEvent(dp_accounting.DpEvent):
  """A choice by permute-and-flip (McKenna and Sheldon 2020).

  Attributes:
    epsilon: candidates are tried in random order, and the candidate r is
      taken with probability exp(epsilon * (u(r) - largest u) / (2 * sensitivity
      of u)); without the 2 for monotonic u, as in
      `ExponentialMechanismDpEvent`.

  #### Formal guarantee
  Under the neighbouring relation that the sensitivity was taken for, epsilon-
  private (theorem 1 there); the same law as report noisy max with exponential
  noise (Ding et al. 2021). It is not epsilon-bounded-range: where one of two
  candidates gains 2 on the other from a tie, at sensitivity 1, the log ratios
  of their probabilities are log(2 - exp(-epsilon)) and -epsilon, further apart
  than epsilon. So it is not composed like the exponential mechanism.
  """

  epsilon: float


@events.register(
  PermuteAndFlipDpEvent, 'permute-and-flip, epsilon {0.epsilon:.6g}'
)
def _(event, relation):
  return epsilon_delta(event_number(event, 'epsilon'))


@events.event_class
class SparseVectorDpEvent(dp_accounting.DpEvent):
  """The sparse vector technique: which queries are above a threshold.

  In the form of Lyu, Su and Li 2017, algorithm 7, with queries of sensitivity D
  and at most c positive answers, however many queries there are.

  Attributes:
    epsilon_threshold: the threshold is noised once, by Laplace noise of scale
      D / epsilon_threshold.
    epsilon_queries: each query is noised by Laplace noise of scale
      2 c D / epsilon_queries; half of that for monotonic queries, as in
      `ExponentialMechanismDpEvent`.
    epsilon_answers: positive queries are answered with fresh Laplace noise of
      scale c D / epsilon_answers; zero if they are not answered.

  #### Formal guarantee
  Private at the sum of the three (theorems 4 and 5 there).
  """

  epsilon_threshold: float
  epsilon_queries: float
  epsilon_answers: float = 0.0


def _describe_sparse_vector(event: SparseVectorDpEvent) -> str:
  text = (
    f'sparse vector technique, epsilon {event.epsilon_threshold:.6g} for the '
    f'threshold and {event.epsilon_queries:.6g} for the queries'
  )
  if event.epsilon_answers:
    text += f' and {event.epsilon_answers:.6g} for the answers'
  return text


@events.register(SparseVectorDpEvent, _describe_sparse_vector)
def _(event, relation):
  fields = ('epsilon_threshold', 'epsilon_queries', 'epsilon_answers')
  # The sum of three floats, upwards.
  epsilons = [event_number(event, field) for field in fields]
  return epsilon_delta(math.fsum(epsilons) * (1 + 1e-15))


def pure_rho(epsilon: float) -> float:
  """Returns the rho of the zCDP of a pure mechanism.

  It is epsilon tanh(epsilon / 2), less than epsilon^2 / 2 (Bun and Steinke
  2016, proposition 1.4). Randomized response is the worst: the loss L is
  epsilon with probability p = 1 / (1 + exp(-epsilon)), else -epsilon. Its mean
  is rho, and by the inequality of Kearns and Saul (1998), log E[exp(t (X - p))]
  <= t^2 (1 - 2p) / (4 log((1 - p) / p)) for a coin X, what is left of log
  E[exp(s L)] is at most s^2 rho; so all of it is at most s (1 + s) rho.
  """
  return epsilon * math.tanh(epsilon / 2)


def pure_renyi(epsilon: float, a: np.ndarray) -> np.ndarray:
  """Returns the divergences of randomized response, which dominates all.

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
