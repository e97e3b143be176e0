"""From Renyi divergences to epsilon and delta, and back.

Canonne, Kamath and Steinke 2020, proposition 12. Besides, delta at epsilon zero
is a total variation distance, which is at most sqrt(1 - exp(-KL)) (Bretagnolle
and Huber), and the divergence of any order above 1 is at least KL.

Where P has these divergences but for a failure, what is left of it is a measure
P0 of a mass m below one (`RenyiDpEvent`). The proposition holds for it as it
is; KL is of the law P0 / m, whose divergence of order a is larger than that of
P0 by a / (a - 1) log(1 / m).
"""

from __future__ import annotations

import math

import numpy as np

from tfdpflows.accounting.logarithms import exp_upwards

_ULPS = 2e-15


def epsilons(
  orders: np.ndarray, curve: np.ndarray, delta: float, failure: float = 0.0
) -> np.ndarray:
  """Returns the epsilon that each order above 1 gives for a delta.

  The `curve` are divergences at these orders, in nats, but for a failure, which
  is no part of the delta.

  >>> print(epsilons(np.array([2.0]), np.array([0.5]), 1e-2).round(3))
  [3.719]
  """
  reward = (math.log(delta) + np.log(orders)) / (orders - 1)
  found = curve + np.log1p(-1 / orders) - reward
  found += _ULPS * (curve + np.abs(np.log1p(-1 / orders)) + np.abs(reward))
  found = np.where(_distance(orders, curve, failure) <= delta, 0.0, found)
  return np.maximum(found, 0.0)


def deltas(
  orders: np.ndarray, curve: np.ndarray, epsilon: float, failure: float = 0.0
) -> np.ndarray:
  """Returns the delta that each order gives for an epsilon, at most 1.

  Arguments are those of `epsilons`; the failure comes on top of the result.

  >>> print(deltas(np.array([2.0]), np.array([0.5]), 3.719).round(3))
  [0.01]
  """
  with np.errstate(over='ignore', invalid='ignore'):
    logs = (orders - 1) * (curve - epsilon + np.log1p(-1 / orders))
    logs -= np.log(orders)
    logs += _ULPS * ((orders - 1) * (curve + epsilon + 1) + np.log(orders))
    found = np.fmin(exp_upwards(logs), _distance(orders, curve, failure))
  # NaN is no bound.
  return np.fmin(found, 1.0)


def _distance(orders, curve, failure):
  """Returns delta at epsilon zero, from above."""
  log_kept = math.log1p(-failure) if failure < 1 else -math.inf
  curve = curve - orders / (orders - 1) * log_kept * (1 + _ULPS)
  return np.sqrt(-np.expm1(-curve)) * (1 + _ULPS)
