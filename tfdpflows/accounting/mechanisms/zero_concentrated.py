"""Mechanisms of which only a zero-concentrated guarantee is known.

A mechanism is (xi, rho)-zCDP if its Renyi divergence of every order alpha > 1
is at most xi + rho alpha (Bun and Steinke 2016, definition 1.1). Proposition 12
of Canonne, Kamath and Steinke 2020, at the best order, makes epsilons and
deltas of it.
"""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np
from numpy import typing as npt

from tfdpflows.accounting import events
from tfdpflows.accounting.mechanisms import base

# Sums of a few terms, relative to the sum of their magnitudes.
_ROUNDING = 1e-14


@dataclasses.dataclass(frozen=True)
class ZeroConcentrated(base.Mechanism):
  """A mechanism that is (xi, rho)-zCDP."""

  name = 'zcdp'
  words = 'zCDP'
  takes_delta = True
  worst = {'rho': max}
  shards_compare = True

  rho: float
  xi: float = 0.0

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    return self.xi + orders * self.rho

  def zcdp(self) -> base.ZCDPGuarantee:
    return base.ZCDPGuarantee(self.rho, self.xi)

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    return zcdp_epsilon(self.rho, self.xi, base.lower_log(log_delta))


@events.event_class
class ZCDpEvent(dp_accounting.DpEvent):
  """A mechanism of which only a zero-concentrated guarantee is known.

  Attributes:
    rho: the Renyi divergence of every order alpha > 1 is at most
      `xi + rho * alpha`; zero or more.
    xi: the offset of that bound; zero or more.

  #### Formal guarantee
  The bound must hold in both directions under the neighbouring relation of the
  accountant (Bun and Steinke 2016, definitions 1.1 and 8.1).
  """

  rho: float
  xi: float = 0.0


def _describe(event: ZCDpEvent) -> str:
  offset = f' with offset {event.xi:.6g}' if event.xi else ''
  return f'{event.rho:.6g}-zCDP mechanism{offset}'


@events.register(ZCDpEvent, _describe, kind='ZCDp')
def _(event, relation):
  rho, xi = (events.event_number(event, field) for field in ('rho', 'xi'))
  return [(ZeroConcentrated(rho, xi), 1)] if rho or xi else []


def zcdp_epsilon(
  rho: npt.ArrayLike, xi: npt.ArrayLike, log_delta: npt.ArrayLike
) -> np.ndarray:
  """Returns the smallest epsilon known of a zCDP mechanism.

  Proposition 12 of Canonne, Kamath and Steinke 2020: with x = order - 1 > 0,

      epsilon = xi + (1 + x) rho + log(x / (1 + x))
                + (log(1 / delta) - log(1 + x)) / x.

  Its derivative is rho + (log(1 + x) - log(1 / delta)) / x^2, so that the best
  x solves rho x^2 + log(1 + x) = log(1 / delta). Any x gives a bound.

  Rho and xi are finite and zero or more, the log of delta is below zero, and
  all broadcast against each other. The result is in nats, from above.

  >>> print(zcdp_epsilon(0.125, 0.0, math.log(1e-5)).round(4))
  2.1657
  """
  rho, xi, log_delta = np.broadcast_arrays(
    *(np.asarray(x, np.float64) for x in (rho, xi, log_delta))
  )
  size = np.maximum(-log_delta, 0.0)  # log(1 / delta)
  with np.errstate(divide='ignore', over='ignore', invalid='ignore'):
    # The root in t = log(x), by Newton's method from above: the left side is
    # convex in t. Above it are the roots of either term alone.
    log_rho = np.log(rho)
    t = np.minimum(
      (np.log(size) - log_rho) / 2, size + np.log(-np.expm1(-size))
    )
    t = np.clip(np.nan_to_num(t), -700.0, 700.0)
    for _ in range(30):
      square = np.exp(np.minimum(log_rho + 2 * t, 700.0))
      excess = square + np.log1p(np.exp(t)) - size
      t = t - np.fmax(excess / (2 * square + 1 / (1 + np.exp(-t))), 0.0)
    x = np.exp(np.clip(t, -700.0, 700.0))
    positive = (1 + x) * rho + xi + size / x
    negative = np.log1p(1 / x) + np.log1p(x) / x
    epsilon = positive - negative + _ROUNDING * (positive + negative)
  # Not a number: an order that does not fit into floats.
  epsilon = np.where(np.isnan(epsilon), np.inf, np.maximum(epsilon, 0.0))
  return np.where(_log_distance(rho, xi) <= log_delta, 0.0, epsilon)


def zcdp_log_delta(rho: float, xi: float, epsilon: float) -> float:
  """Returns the log of the smallest delta known of a zCDP mechanism.

  By the same proposition, the log of delta is x (xi + (1 + x) rho - epsilon +
  log(x / (1 + x))) - log(1 + x), and the best x solves 2 rho x - log(1 + 1 / x)
  = epsilon - xi - rho.

  >>> round(math.exp(zcdp_log_delta(0.125, 0.0, 2.0)), 7)
  3...e-05
  """
  if epsilon == math.inf or (rho == 0 and epsilon >= xi):
    return -math.inf
  distance = float(_log_distance(np.float64(rho), np.float64(xi)))
  low, high = -700.0, 700.0
  for _ in range(60):
    t = (low + high) / 2
    slope = 2 * rho * math.exp(t) - np.logaddexp(0.0, -t)
    low, high = (t, high) if slope < epsilon - xi - rho else (low, t)
  x = math.exp(low)
  gain = epsilon + math.log1p(1 / x)
  loss = xi + (1 + x) * rho
  slack = _ROUNDING * (x * (gain + loss) + math.log1p(x))
  found = x * (loss - gain) - math.log1p(x) + slack
  return min(distance, found, 0.0)


def _log_distance(rho: np.ndarray, xi: np.ndarray) -> np.ndarray:
  """Returns the log of a bound on delta at epsilon zero, a total variation.

  That of Pinsker or of Bretagnolle and Huber; the divergence of order one, the
  limit of those above it, is at most xi + rho.
  """
  with np.errstate(divide='ignore', over='ignore'):
    divergence = (xi + rho) * (1 + _ROUNDING)
    square = np.minimum(divergence / 2, -np.expm1(-divergence))
    log = 0.5 * np.log(square)
    return log + _ROUNDING * (1 + np.abs(np.maximum(log, -1e3)))
