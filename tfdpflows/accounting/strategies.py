"""How far one row can move what a strategy matrix makes of a stream.

A matrix mechanism releases C x + z: row t of x [n, d] is the contribution of
step t, a sum of rows of the table clipped to l2 norm 1, and z is Gaussian
noise. A row of the table that takes part in the steps of a set S, by a vector
u_t of norm 1 at most in each, moves C x by the sum of c_t u_t over S, c_t the
columns of C. With W = |C^T C|, entry by entry, the square of that is at most

    sum of W[s, t] over s and t in S                                         (1)

(Choquette-Choo et al. 2023, 'Multi-epoch matrix factorization mechanisms',
whose bound has no absolute values where no entry of C^T C is negative). S has
at most k steps, any two of them at least b apart. How the largest (1) is
bounded from above:

- k = 1: the largest norm of a column.
- C is Toeplitz with coefficients that are not negative and do not grow: W[s, t]
  falls with the larger one of s and t and with their distance, so that the
  steps 0, b, 2b, ... are the worst (Kalinin and Lampert 2024, theorem 2). So
  they are for any coefficients if there are no more than b of them, as W is
  diagonal then. Else each coefficient is replaced by the largest absolute value
  of those from it on, which no entry of W is smaller for.
- Any other C: (1) is at most the sum over s in S of r_s, where r_s is the
  largest sum of W[s, t] over all sets with s in them; both are found exactly,
  by going through the steps in order. If W is zero from distance b on, that is
  (1) itself.

Adaptive inputs, which depend on earlier outputs, change nothing if C is lower
triangular (Denisov, McMahan, Rush, Smith and Thakurta 2022, theorem 2.1).
"""

from __future__ import annotations

import functools
import math
from typing import Optional

import numpy as np

__all__ = ['matrix_sensitivity', 'toeplitz_sensitivity', 'tree_depth']

_EPS = float(np.finfo(np.float64).eps)
_MOST_STEPS = 4096
_MOST_PRODUCTS = 10**9


def tree_depth(steps: int) -> int:
  """The number of nodes of a binary tree that one leaf is in.

  Args:
    steps: Number of leaves, zero or more, added one by one; a node is released
      when all leaves under it are there.

  Returns:
    floor(log2(steps)) + 1, or zero without steps.

  ```python
  >>> [tree_depth(steps) for steps in (0, 1, 2, 3, 4, 1000)]
  [0, 1, 2, 2, 3, 10]

  ```
  """
  return int(steps).bit_length()


@functools.lru_cache(maxsize=64)
def matrix_sensitivity(
  strategy: tuple[tuple[float, ...], ...],
  min_separation: int = 1,
  max_participations: Optional[int] = 1,
) -> float:
  """The l2 sensitivity of a strategy, for contributions of norm 1 at most.

  Args:
    strategy: The rows of a lower triangular matrix, each with as many numbers
      as there are steps, or up to the diagonal only.
    min_separation: The steps that one row takes part in are at least this far
      apart, 1 or more.
    max_participations: How many there are at most, 1 or more; None for as many
      as fit.

  Returns:
    A number that is not below the sensitivity.

  Raises:
    ValueError: If the matrix is empty, too large, not lower triangular or not
      finite, or a number is outside its range.

  ```python
  >>> round(matrix_sensitivity(((3.0,), (4.0, 1.0))), 6)
  5.0
  >>> round(matrix_sensitivity(((3.0,), (4.0, 1.0)), 1, 2), 6)  # |(3, 5)|
  5.830952

  ```
  """
  matrix = _matrix(strategy)
  steps = len(matrix)
  b, k = _participations(min_separation, max_participations, steps)
  slack = 1 + (4 * steps + 64) * _EPS
  # Relative to the largest, so that no square leaves the range of floats.
  scale = float(np.max(np.abs(matrix)))
  if scale == 0:
    return 0.0
  matrix = matrix / scale
  if k == 1:
    return scale * math.sqrt(np.max(np.sum(matrix**2, axis=0))) * slack
  if steps**2 * (1 if k * b >= steps else k) > _MOST_PRODUCTS:
    raise ValueError(
      f'{steps} steps with {k} participations are too many for a full matrix; '
      'use ToeplitzMechanismDpEvent, or a larger min_separation.'
    )
  both = np.abs(matrix.T @ matrix)
  # Of what cancels, relative to what is summed.
  both += np.abs(matrix).T @ np.abs(matrix) * ((steps + 8) * _EPS)
  index = np.arange(steps)
  near = np.abs(index[:, None] - index[None, :]) < b
  others = _largest_sums(np.where(near, 0.0, both), b, k - 1)
  found = _largest_sums((np.diag(both) + others)[None, :], b, k)[0]
  return scale * math.sqrt(found) * slack


@functools.lru_cache(maxsize=64)
def toeplitz_sensitivity(
  coefficients: tuple[float, ...],
  steps: int,
  min_separation: int = 1,
  max_participations: Optional[int] = 1,
) -> float:
  """`matrix_sensitivity` of the matrix with entries coefficients[s - t].

  Args:
    coefficients: Those of the first column, from the diagonal down; zero below.
    steps: Number of rows and columns.
    min_separation: As for `matrix_sensitivity`.
    max_participations: As for `matrix_sensitivity`.

  Returns:
    A number that is not below the sensitivity.

  Raises:
    ValueError: If there is no coefficient or one is not finite, or a number is
      outside its range.

  ```python
  >>> round(toeplitz_sensitivity((1.0, 0.5), 4), 6)  # sqrt(1.25)
  1.118034
  >>> round(toeplitz_sensitivity((1.0, 0.5), 4, 2, 2), 6)  # sqrt(2.5)
  1.581139

  ```
  """
  if steps != int(steps) or not 1 <= steps <= 10**8:
    raise ValueError(
      f'steps must be a whole number in [1, 100000000], not {steps!r}.'
    )
  steps = int(steps)
  b, k = _participations(min_separation, max_participations, steps)
  c = np.array(coefficients, np.float64)[:steps]
  if c.ndim != 1 or not c.size or not np.all(np.isfinite(coefficients)):
    raise ValueError('coefficients must be finite numbers, at least one.')
  scale = float(np.max(np.abs(c)))
  if scale == 0:
    return 0.0
  c = np.abs(c / scale)
  if k > 1 and c.size > b:
    c = np.maximum.accumulate(c[::-1])[::-1]
    if k * c.size > _MOST_PRODUCTS:
      raise ValueError(
        f'{k} participations of {c.size} coefficients are too many to add up; '
        'use less coefficients, or a larger min_separation.'
      )
  # Both are zero or more, so that nothing cancels. Without an overlap the sum
  # of the columns has the sum of their squares, and signs do not matter.
  moved = np.zeros(min(steps, (k - 1) * b + c.size))
  for start in range(0, k * b, b):
    part = c[: len(moved) - start]
    moved[start : start + len(part)] += part
  slack = 1 + (len(moved) + k + 64) * _EPS
  return scale * math.sqrt(float(np.sum(moved**2))) * slack


def _matrix(strategy: tuple[tuple[float, ...], ...]) -> np.ndarray:
  steps = len(strategy)
  if not 1 <= steps <= _MOST_STEPS:
    raise ValueError(
      f'strategy has {steps} rows; it must have 1 to {_MOST_STEPS}. For longer '
      'streams there is ToeplitzMechanismDpEvent.'
    )
  matrix = np.zeros((steps, steps))
  for t, row in enumerate(strategy):
    row = np.asarray(row, np.float64)
    if row.ndim != 1 or not t < row.size <= steps or np.any(row[t + 1 :]):
      raise ValueError(
        f'Row {t} of strategy must have {t + 1} to {steps} numbers, with zeros '
        'above the diagonal: inputs may depend on earlier outputs only.'
      )
    matrix[t, : t + 1] = row[: t + 1]
  if not np.all(np.isfinite(matrix)):
    raise ValueError('strategy must be of finite numbers.')
  return matrix


def _participations(
  min_separation: int, max_participations: Optional[int], steps: int
) -> tuple[int, int]:
  """b and k; k is never more than fit."""
  for name, value in (
    ('min_separation', min_separation),
    ('max_participations', max_participations),
  ):
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not (whole and value >= 1) and not (name[:3] == 'max' and value is None):
      raise ValueError(f'{name} must be a whole number, 1 or more: {value!r}.')
  b = min(int(min_separation), steps)
  fit = -(-steps // b)
  k = fit if max_participations is None else min(int(max_participations), fit)
  return b, k


def _largest_sums(weights: np.ndarray, b: int, k: int) -> np.ndarray:
  """Largest sums of at most k entries of each row, at least b apart.

  Args:
    weights: Float64 [m, n], zero or more.
    b: 1 or more.
    k: Zero or more.

  Returns:
    Float64 [m].
  """
  rows, steps = weights.shape
  if k * b >= steps:
    # No more fit anyway.
    best = np.zeros((rows, steps + b))
    for t in range(steps):
      best[:, t + b] = np.maximum(
        best[:, t + b - 1], best[:, t] + weights[:, t]
      )
    return best[:, -1]
  best = np.zeros((rows, steps + b))
  for _ in range(k):
    more = np.zeros_like(best)
    for t in range(steps):
      more[:, t + b] = np.maximum(
        more[:, t + b - 1], best[:, t] + weights[:, t]
      )
    best = more
  return best[:, -1]
