"""Gaussian noise on a sample of fixed size, where a row becomes the null row.

The kind 'gaussian_or_null': m of n rows are drawn, q = m / n < 1, and noise N
(0, sigma^2 I) is added to their sum, to which each row contributes a vector of
norm 1 at most and the null row zero. One row x is null in one of the tables.
Let S be m - 1 of the other rows with the sum s, and y one more of them; all
these are equally likely. Then with x, and with the null row, the outputs are
averages over S and y of

    A = (1 - q) N(s + y) + q N(s + x),   B = (1 - q) N(s + y) + q N(s).

#### Formal guarantee
With a = 1 + q (b - 1) and c = a / b, for b >= 1, advanced joint convexity
(Balle, Barthe and Gaboardi 2018, theorem 2) is an equation,

    H_a(A || B) = q H_b(N(s + x) || (1 - c) N(s + y) + c N(s)),
    H_a(B || A) = q H_b(N(s) || (1 - c) N(s + y) + c N(s + x)).

On the right stand divergences E[f(sum of w_i exp(g_i - var(g_i) / 2))] of a
Gaussian from a mixture of others, f being convex and the g_i jointly Gaussian:
their covariances are, over sigma^2, the inner products of where the others lie,
seen from the first. By Kahane's convexity inequality (1985; Ledoux and
Talagrand 1991, section 3.3) that grows with every covariance. Above, the
others are at y - x and -x, of norm 2 and 1 at most, below at y and x, of norm 1
at most; and inner products are largest on one half-line. So

    H_a(A || B) <= H_a((1 - q) N(-1) + q N(1) || (1 - q) N(-1) + q N(0)),   (1)
    H_a(B || A) <= H_a((1 - q) N(0) + q N(1) || N(0)),                      (2)

on a line, turned over for (1), and the averages are no further apart. For a < 1
each profile follows from the other one. That is a pair: the losses above zero
of (1), where x > 1/2, those of (2), the same x, with both sides swapped and at
minus the loss, and what is left at zero. With F the normal distribution
function and t = F(-1 / (2 sigma)), the first two have a mass of at most q (1 -
t) + (2 - q) t = q + 2 (1 - q) t <= 1 on either side, and the masses of (1) and
of (2) differ by q (1 - 2 t) each, so that the same is left on both sides.
"""

from __future__ import annotations

import math

import numpy as np

from tfdpflows.accounting import pairs

__all__ = ['loss_at', 'masses_between']


def loss_at(s: float, q: float, sigma: float) -> float:
  """The loss of (1) where N(1) against N(0) has the loss s.

  Args:
    s: Zero or more.
    q: Inside (0, 1).
    sigma: Above zero.

  Returns:
    log(1 + (exp(s) - 1) q / (q + (1 - q) exp(-s - 1 / sigma^2))); it grows with
    s.

  ```python
  >>> round(loss_at(1.0, 0.5, 1.0), 4)
  0.9217

  ```
  """
  # Of what q / (q + ...) leaves of exp(s) - 1.
  share = 1 / (1 + math.exp(_log_rest(q, sigma) - s))
  if s < 700:
    return math.log1p(math.expm1(s) * share)
  return s + math.log(share)


def masses_between(
  losses: np.ndarray, q: float, sigma: float
) -> tuple[np.ndarray, np.ndarray]:
  """Masses of both sides of (1) between losses.

  Args:
    losses: Float64 [k + 1], increasing from zero or more; the last may be
      infinite.
    q: Inside (0, 1).
    sigma: Above zero.

  Returns:
    Two float64 [k], with errors relative to each.

  ```python
  >>> upper, lower = masses_between(np.array([0.0, np.inf]), 0.5, 1.0)
  >>> print(upper.round(4), lower.round(4))
  [0.3791] [0.1877]

  ```
  """
  with np.errstate(over='ignore', invalid='ignore'):
    m = np.expm1(losses)
    rest = math.exp(_log_rest(q, sigma))
    # The root y = exp(s) of y^2 - (1 + m) y = m * rest, less one.
    root = np.hypot(1 + m, 2 * np.sqrt(m * rest))
    s = np.log1p(0.5 * m * (1 + (2 + m + 4 * rest) / (root + 1)))
    # There the last summand does not matter, and y = 1 + m.
    s = np.where(losses > 300, losses + 0.0, s)
  with_row, null = pairs.interval_masses('gaussian', sigma, s)
  _, other = pairs.interval_masses('gaussian', sigma, s + 1 / sigma / sigma)
  return q * with_row + (1 - q) * other, q * null + (1 - q) * other


def _log_rest(q: float, sigma: float) -> float:
  """The log of (1 - q) / q exp(-1 / sigma^2)."""
  return math.log1p(-q) - math.log(q) - 1 / sigma / sigma
