"""Logs of sums and differences, without overflow or cancellation."""

from __future__ import annotations

import math

import numpy as np
from numpy import typing as npt

# Below this, the four terms of the series in `log_bernoulli` have an error of
# 1e-12, and above it the direct formula has one of about that.
_SMALL = 1e-3
_EPS = float(np.finfo(np.float64).eps)


def log_expm1(x: npt.ArrayLike) -> np.ndarray:
  """Returns log(exp(x) - 1) for x >= 0, minus infinity at zero.

  >>> print(log_expm1([1e-20, 1.0, 1e4]).round(4))
  [-4.60517e+01  5.41300e-01  1.00000e+04]
  """
  x = np.asarray(x, np.float64)
  with np.errstate(divide='ignore'):
    low = np.log(np.expm1(np.minimum(x, 30.0)))
  return np.where(x > 30, x + np.log1p(-np.exp(-np.maximum(x, 30.0))), low)


def log_bernoulli(
  exponent: float, v: np.ndarray, log_ratio: np.ndarray
) -> np.ndarray:
  """Returns log((1 + v)^b - 1 - b v), the excess in Bernoulli's inequality.

  Of an exponent b above 1 or below 0, v above -1 and `log_ratio` = log(1 + v).
  It is rounded upwards where it is not exact; relative errors of the number
  itself are about 1e-11, times b / (b - 1) where b is near 1.

  >>> v = np.array([1e-9, 0.5])
  >>> print(np.exp(log_bernoulli(2.0, v, np.log1p(v))))
  [1.0e-18 2.5e-01]
  """
  b = exponent
  with np.errstate(all='ignore'):
    series = 1 + (b - 4) * v / 5
    series = 1 + (b - 3) * v / 4 * series
    series = 1 + (b - 2) * v / 3 * series
    series = 2 * np.log(np.abs(v)) + np.log(b * (b - 1) / 2 * series)
    power = b * log_ratio
    direct = np.log(np.expm1(power) - b * v)
  # Where the power leaves the range of floats, -1 - b v only makes it less.
  value = np.where(power > 700, power, direct)
  return np.where(max(abs(b), 1.0) * np.abs(v) < _SMALL, series, value)


def exp_upwards(log: npt.ArrayLike) -> np.ndarray:
  """Returns exp(log), a few units in the last place above.

  Zero only for minus infinity: a probability that is too small for a float is
  not zero.

  >>> print(exp_upwards([-np.inf, -1000.0, 0.0]))
  [0.e+000 5.e-324 1.e+000]
  """
  log = np.asarray(log, np.float64)
  with np.errstate(over='ignore', under='ignore'):
    value = np.nextafter(np.exp(log) * (1 + 4 * _EPS), np.inf)
  return np.where(log == -np.inf, 0.0, value)


def log_sum(logs: np.ndarray) -> float:
  """Returns the log of a sum; `scipy.special.logsumexp` takes longer."""
  largest = float(np.max(logs))
  if not math.isfinite(largest):
    return largest
  return largest + math.log(float(np.sum(np.exp(logs - largest))))
