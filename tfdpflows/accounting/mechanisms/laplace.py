"""Laplace noise, on the whole table or on a sample.

The pair is Lap(1, b) and Lap(0, b). With E = 1 / b the loss has atoms at -E and
E, of mass 1/2 and exp(-E)/2 under Q; between them, Q has the density exp(-(E +
loss)/2) / 4.
"""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np

from tfdpflows.accounting import events
from tfdpflows.accounting.mechanisms import base, sampled
from tfdpflows.accounting.mechanisms.epsilon_delta import pure_renyi

# Rounding of a log moment near zero, of sums, and of a few products.
_ROUNDING = 1e-14


@dataclasses.dataclass(frozen=True)
class Laplace(sampled.SampledMechanism, base.PureMechanism):
  """A sum with Laplace noise."""

  name = 'laplace'
  words = 'Laplace'
  worst = {'noise_multiplier': min, 'sampling_probability': max}
  shards_compare = True

  noise_multiplier: float  # Scale of the noise over the sensitivity.
  sampling_probability: float = 1.0
  row: int = sampled.ABSENT

  def loss_bound(self) -> float:
    return 1 / self.noise_multiplier

  def masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return exponential_masses(1 / self.noise_multiplier, edges, 0.5, 0.5)

  def opposite_bound(self) -> float:
    top, q = 1 / (2 * self.noise_multiplier), self.sampling_probability
    return sampled.sampled_loss(top, q) - sampled.sampled_loss(-top, q)

  def opposite_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As in `SampledMechanism`.

    The loss is log(1 - q + q exp(l)) - log(1 - q + q exp(-1 / s)), l being the
    loss of K_1 against K_0, and K_-1 is exp(-1 / s) K_0 for x > 0.
    """
    q, whole = self.sampling_probability, Laplace(2 * self.noise_multiplier)
    top = 1 / whole.noise_multiplier
    low = -sampled.sampled_loss(-top, q)
    losses = sampled.unsampled_loss(edges - low, q)
    # Not the atom at the lowest loss, which is all of x < 0.
    losses[0] = math.nextafter(-top, math.inf)
    one, zero = whole.masses(np.append(-np.inf, losses))
    one, zero = one[1:], zero[1:]
    other = zero * math.exp(-top)
    return (1 - q) * zero + q * one, (1 - q) * zero + q * other

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    """Mironov 2017, table II; where that cancels, (epsilon^2 / 2)-zCDP."""
    a = orders
    if self.on_sample:
      return np.fmin(
        pure_renyi(self.pure_epsilon() * (1 + _ROUNDING), a),
        sampled.sampled_renyi(self, a),
      )
    epsilon = 1 / self.noise_multiplier
    moment = np.logaddexp(
      np.log(a / (2 * a - 1)) + (a - 1) * epsilon,
      np.log((a - 1) / (2 * a - 1)) - a * epsilon,
    )
    curve = (moment + _ROUNDING * (1 + np.abs(moment))) / (a - 1)
    return np.fmin(np.fmin(curve, epsilon), a / 2 * epsilon * epsilon)

  def zcdp(self) -> base.ZCDPGuarantee:
    """rho = epsilon + exp(-epsilon) - 1 (Harrison and Manurangsi 2025).

    Let epsilon = 1 / noise, K(s) = log E[exp(s L)] with L the privacy loss, n =
    2 s + 1 and y = exp(-epsilon). Then s (1 + s) rho - K(s) is 0 at epsilon =
    0, and its derivative by epsilon has the sign of h(y) = (n - 1) - (n + 1) y
    + (n + 1) y^n - (n - 1) y^(n + 1), where h(1) = h'(1) = 0 and h'' = n (n^2 -
    1) y^(n - 2) (1 - y) >= 0, so that h >= 0 for y <= 1.
    """
    return base.ZCDPGuarantee.above(laplace_rho(1 / self.noise_multiplier))

  def unsampled_epsilon(self) -> float:
    return math.nextafter(1 / self.noise_multiplier, math.inf)

  def pure_epsilon(self) -> float:
    if self.row == sampled.OPPOSITE:
      bound = self.opposite_bound()
      return math.nextafter(bound * (1 + _ROUNDING), math.inf)
    return super().pure_epsilon()

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    if self.row:
      return np.full_like(log_delta, self.pure_epsilon())
    return super().epsilon_at(log_delta)


@events.register(
  dp_accounting.LaplaceDpEvent,
  'Laplace mechanism, noise multiplier {0.noise_multiplier:.6g}',
)
def _(event, relation):
  noise = events.event_number(event, 'noise_multiplier')
  if relation is events.Relation.REPLACE_ONE:
    noise = noise / 2
  return [(Laplace(noise) if noise > 0 else base.NonPrivate(), 1)]


def laplace_rho(epsilon: float) -> float:
  """Returns epsilon + exp(-epsilon) - 1, from above."""
  if epsilon > 0.1:
    return epsilon + math.expm1(-epsilon)
  # The series alternates: to stop after a positive term is an upper bound.
  series = 1 / 24 - epsilon / 120 + epsilon * epsilon / 720
  return epsilon * epsilon * (0.5 - epsilon / 6 + epsilon * epsilon * series)


def exponential_masses(
  bound: float, edges: np.ndarray, weight: float, atom: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns masses of P and Q between losses, for a symmetric pair.

  Under Q there is the density weight exp(-(bound + loss)/2) / 2, and an atom at
  -bound; the atom at the other end has exp(-bound) times its mass.
  """
  inner = np.clip(edges, -bound, bound)
  width = -np.expm1(-np.diff(inner) / 2) * weight
  upper = width * np.exp((inner[1:] - bound) / 2)
  lower = width * np.exp(-(bound + inner[:-1]) / 2)
  if atom > 0:
    # Into the interval that holds the loss; the outermost ones hold the rest.
    last = len(width) - 1
    low = min(max(np.searchsorted(edges, -bound, 'right') - 1, 0), last)
    high = min(max(np.searchsorted(edges, bound, 'left') - 1, 0), last)
    far = atom * math.exp(-bound)
    upper[low] += far
    lower[low] += atom
    upper[high] += atom
    lower[high] += far
  return upper, lower
