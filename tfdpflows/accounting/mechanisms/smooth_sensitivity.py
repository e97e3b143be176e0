"""Gaussian noise scaled by a smooth sensitivity, and what it tests.

A function f of a table has a smooth upper bound S on its local sensitivity
where, for all neighbours x and x',

    |f(x) - f(x')| <= min(S(x), S(x'))  and  S(x) <= exp(beta) S(x')

(Nissim, Raskhodnikova and Smith 2007). The release f(x) + S(x) (shift + sigma
Z), Z normal, hides the table although its scale depends on it.

#### Formal guarantee
On x and x' the release is normal, around centres that are at most kappa min(S,
S') apart, kappa = 1 + shift (exp(beta) - 1), as the shares of the shift differ
by shift |S - S'| <= shift (exp(beta) - 1) min(S, S'). Let r = S / S', which is
within exp(-beta) and exp(beta). The divergence of order a of N(m, (r s)^2) from
N(m', s^2), with s = sigma S', is, for v(r) = a - (a - 1) r^2 > 0,

    h(r) + a (m - m')^2 / (2 s^2 v(r)),
    h(r) = -log(r) - log(v(r)) / (2 (a - 1))

(Gil, Alajaji and Linder 2013), so at most h(r) + a kappa^2 min(r, 1)^2 / (2
sigma^2 v(r)). The second term rises with r. The derivative of h in u = log(r)
is a (exp(2 u) - 1) / v: h has its minimum at r = 1, and at u it is steeper than
at -u, as a (exp(2 u) - 1) / (a exp(2 u) - (a - 1)) has the larger denominator
(by (2 a - 1) (exp(2 u) - 1)). So the maximum is at r = exp(beta):

    -beta - log(t) / (2 (a - 1)) + a kappa^2 / (2 sigma^2 t),
    t = 1 - (a - 1) (exp(2 beta) - 1),

where t > 0, that is for orders below 1 / (1 - exp(-2 beta)); no bound is known
beyond. It is reached. Up to orders of about 1 / (4 beta) it is less than the
formula of the published code (Papernot et al. 2018, theorem 23). Above these
that formula is no bound: with sigma 1, beta 0.02 and order 20 it is 20.9, where
t is 0.22 and the divergence of two normal distributions is 44.5.

#### References
Nissim, Raskhodnikova and Smith 2007, "Smooth sensitivity and sampling in
private data analysis". Papernot et al. 2018, "Scalable private learning with
PATE", appendix B. Redberg, Zhu and Wang 2023, "Generalized PTR".
"""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np

from tfdpflows.accounting import events
from tfdpflows.accounting.events import event_number
from tfdpflows.accounting.mechanisms.base import Mechanism

# Rounding of a few terms, relative to the sum of their magnitudes.
_ROUNDING = 1e-14


@dataclasses.dataclass(frozen=True)
class SmoothSensitivity(Mechanism):
  """Gaussian noise scaled by a smooth sensitivity.

  >>> print(SmoothSensitivity(10.0, 0.02).renyi(np.array([20.0, 100.0])))
  [0.46...        inf]
  """

  name = 'smooth_sensitivity'
  words = 'smooth sensitivity'
  worst = {'sigma': min, 'beta': max, 'shift': max}

  sigma: float  # Of the noise, over the smooth sensitivity.
  beta: float  # That changes by exp(beta) at most.
  shift: float = 0.0  # What is added, over it.

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    growth = math.expm1(2 * self.beta) * (1 + _ROUNDING)
    lost = (orders - 1) * growth
    kappa = 1 + self.shift * math.expm1(self.beta)
    ratio = kappa / self.sigma
    lost = np.where(lost < 1, lost, np.nan)
    scales = -np.log1p(-lost) / 2 / (orders - 1)
    centres = orders / 2 * ratio * ratio / (1 - lost)
    curve = scales - self.beta + centres
    curve += _ROUNDING * (scales + self.beta + centres) * (1 + 1 / (1 - lost))
    return np.where(np.isnan(lost), math.inf, curve)


@events.event_class
class SmoothSensitivityDpEvent(dp_accounting.DpEvent):
  """A number with Gaussian noise that is scaled by its smooth sensitivity.

  Attributes:
    sigma: standard deviation of the noise over the smooth sensitivity S.
    beta: S changes by a factor of at most exp(beta) between neighbours.
    shift: the number itself has this times S added to it.

  #### Formal guarantee
  That of the module, if S is smooth and at least the change of the number,
  under the neighbouring relation of the accountant.
  """

  sigma: float
  beta: float
  shift: float = 0.0


@events.register(
  SmoothSensitivityDpEvent,
  'Gaussian noise scaled by a smooth sensitivity, sigma {0.sigma:.6g}, beta '
  '{0.beta:.6g}, shift {0.shift:.6g}',
)
def _(event, relation):
  sigma, beta, shift = (
    event_number(event, field) for field in ('sigma', 'beta', 'shift')
  )
  if sigma == 0:
    return events.mechanisms_of(dp_accounting.NonPrivateDpEvent(), relation)
  return [(SmoothSensitivity(sigma, beta, shift), 1)]


@dataclasses.dataclass(frozen=True)
class RenyiPrivate(Mechanism):
  """A mechanism with a bound on one Renyi divergence, but for a failure."""

  name = 'renyi'
  words = 'Renyi-private'
  worst = {'divergence': max, 'delta': max}

  order: float
  divergence: float  # At this order and, as it rises with it, below.
  delta: float = 0.0  # Probability of the failure.

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    return np.where(orders <= self.order, self.divergence, math.inf)

  def failure(self) -> float:
    return self.delta


@events.event_class
class RenyiDpEvent(dp_accounting.DpEvent):
  """A mechanism of which one Renyi divergence is known.

  Attributes:
    order: the order, above 1.
    divergence: a bound on the divergence of this order, in nats.
    delta: probability of a failure, in [0, 1).

  #### Formal guarantee
  For all neighbours, in each direction, the law P of the output on the one
  table and the law Q on the other, P must be the sum of a measure of at most
  `delta` and of a measure P0 where the integral of P0^a Q^(1 - a) is at most
  exp((a - 1) divergence), for a up to the order. Under composition these
  integrals multiply, and all of P but a mass of at most the sum of the deltas
  is in the product of the P0. The conversion to epsilon is a bound on the
  integral of (P0 - exp(epsilon) Q)_+ by that of P0^a Q^(1 - a), pointwise, and
  needs no more. It is enough that this holds jointly with another event.
  """

  order: float
  divergence: float
  delta: float = 0.0


@events.register(
  RenyiDpEvent,
  'mechanism with a Renyi divergence of {0.divergence:.6g} at order '
  '{0.order:.6g}, delta {0.delta:.6g}',
)
def _(event, relation):
  order = event_number(event, 'order', 1.0)
  if order == 1:
    raise ValueError(f'order of {event!r} must be above 1.')
  divergence = event_number(event, 'divergence')
  delta = event_number(event, 'delta', 0.0, 1.0)
  if delta == 1:
    return events.mechanisms_of(dp_accounting.NonPrivateDpEvent(), relation)
  return [(RenyiPrivate(order, divergence, delta), 1)]
