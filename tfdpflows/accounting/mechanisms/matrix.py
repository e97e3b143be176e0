"""Streams of sums with Gaussian noise: trees and matrix mechanisms.

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

#### Tree aggregation
A row is in one leaf of one tree, and the sum of each node above it,
`tree_depth` with the leaf, moves by C at most; Gaussian releases add up by
their squares, so that all nodes are one release of sensitivity C sqrt(depth),
whatever depends on earlier ones (Kairouz et al. 2021, appendix D).
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Sequence
from typing import Optional

import attr
import dp_accounting
import numpy as np
from dp_accounting import dp_event

from tfdpflows.accounting import events
from tfdpflows.accounting.mechanisms.gaussian import gaussian_run

# Whole numbers up to this are floats.
_LARGEST_WHOLE = 2**53
_EPS = float(np.finfo(np.float64).eps)
_MOST_STEPS = 4096
_MOST_PRODUCTS = 10**9


def _rows(strategy: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
  return tuple(tuple(map(float, row)) for row in strategy)


def _numbers(coefficients: Sequence[float]) -> tuple[float, ...]:
  return tuple(map(float, coefficients))


@events.event_class
class MatrixMechanismDpEvent(dp_accounting.DpEvent):
  """A stream of sums with correlated Gaussian noise: C x + z, or B (C x + z).

  Row t of x is the sum of step t, to which each row of the table contributes a
  vector of l2 norm C at most; z has independent coordinates.

  Attributes:
    noise_multiplier: standard deviation of z over C.
    strategy: the lower triangular matrix C, row by row, each with as many
      numbers as there are steps or up to the diagonal only. B does not matter.
    min_separation: the steps that one row takes part in are at least this far
      apart.
    max_participations: how many they are at most; None for as many as fit.

  #### Formal guarantee
  A Gaussian mechanism with the sensitivity of
  `tfdpflows.accounting.mechanisms.matrix`, also where sums depend on earlier
  outputs (Denisov et al. 2022, theorem 2.1). Which steps a row takes part in
  must not depend on other rows: so the event is for `REPLACE_SPECIAL` and, with
  the same steps for both rows, `REPLACE_ONE`; a row that is removed from a
  stream may move all later ones. Nothing is amplified by sampling.

  #### Example

  >>> MatrixMechanismDpEvent(4.0, [[1], [0.5, 1]]).strategy
  ((1.0,), (0.5, 1.0))
  """

  noise_multiplier: float
  strategy: Sequence[Sequence[float]] = attr.ib(converter=_rows)
  min_separation: int = 1
  max_participations: Optional[int] = 1


@events.event_class
class ToeplitzMechanismDpEvent(dp_accounting.DpEvent):
  """`MatrixMechanismDpEvent` with the same coefficients in every column.

  Attributes:
    noise_multiplier: as there.
    coefficients: of the first column of C, from the diagonal down; what is
      missing is zero.
    steps: number of rows and columns of C.
    min_separation: as there.
    max_participations: as there.

  #### Formal guarantee
  As there; with coefficients that are not negative and do not grow, or no more
  of them than `min_separation`, the sensitivity is exact.
  """

  noise_multiplier: float
  coefficients: Sequence[float] = attr.ib(converter=_numbers)
  steps: int
  min_separation: int = 1
  max_participations: Optional[int] = 1


# Events of which the order of the rows matters.
_STREAMS = (
  dp_event.SingleEpochTreeAggregationDpEvent,
  MatrixMechanismDpEvent,
  ToeplitzMechanismDpEvent,
)


def _steps_in_words(step_counts) -> str:
  counts = np.ravel(step_counts).tolist()
  parts = collections.Counter(counts).items()
  return ', '.join(
    f'{steps}' if number == 1 else f'{number} x {steps}'
    for steps, number in parts
  )


def _participation_in_words(event: dp_accounting.DpEvent) -> str:
  if event.max_participations == 1:
    return 'every row in one step'
  most = event.max_participations
  limit = '' if most is None else f'at most {most} '
  return f'every row in {limit}steps at least {event.min_separation} apart'


def _describe_matrix(event: dp_accounting.DpEvent) -> str:
  if isinstance(event, ToeplitzMechanismDpEvent):
    size = f'Toeplitz with {len(event.coefficients)} bands, {event.steps}'
  else:
    size = f'{len(event.strategy)}'
  return (
    f'matrix mechanism, {size} steps, noise multiplier '
    f'{event.noise_multiplier:.6g} before the sensitivity of the strategy, '
    f'{_participation_in_words(event)}'
  )


@events.register(
  dp_event.SingleEpochTreeAggregationDpEvent,
  lambda event: (
    'tree aggregation, every row in one leaf, noise multiplier '
    f'{event.noise_multiplier:.6g} at each node, steps of each tree: '
    f'{_steps_in_words(event.step_counts)}'
  ),
)
@events.register(MatrixMechanismDpEvent, _describe_matrix)
@events.register(ToeplitzMechanismDpEvent, _describe_matrix)
def _(event, relation):
  noise = events.event_number(event, 'noise_multiplier')
  if relation is events.Relation.ADD_OR_REMOVE_ONE:
    raise events.RefusedEventError(
      event,
      'a row that is removed from a stream may move all later ones to other '
      'steps: streams are only supported with REPLACE_SPECIAL and REPLACE_ONE, '
      f'not with {relation.name}.',
    )
  if isinstance(event, dp_event.SingleEpochTreeAggregationDpEvent):
    sensitivity = math.sqrt(_depth(event)) * (1 + 1e-15)
  else:
    separation = event.min_separation, event.max_participations
    sensitivity = _sensitivity(event, *separation)
  if sensitivity == 0:
    return []
  if relation is events.Relation.REPLACE_ONE:
    noise = noise / 2
  return gaussian_run(noise / sensitivity)


@events.event_class
class CyclicPoissonSampledDpEvent(dp_accounting.DpEvent):
  """A banded matrix mechanism on Poisson samples of parts that take turns.

  Step t draws each row of part t mod `parts` of the table, independently, with
  probability `sampling_probability`, and no row of the others (Choquette-Choo
  et al. 2023, '(Amplified) banded matrix factorization', algorithm 2).

  Attributes:
    sampling_probability: that of each row in the steps of its part.
    parts: number of parts, at least the number of bands of the strategy.
    event: a `MatrixMechanismDpEvent` or `ToeplitzMechanismDpEvent`; its
      participations, which the parts determine, are not used.

  #### Formal guarantee
  Which part a row belongs to must depend on chance or, with
  `ADD_OR_REMOVE_ONE`, on nothing but the row itself; with the other relations,
  whatever is in its place must belong to the same part. With n steps it is
  ceil(n / parts) times a Gaussian mechanism on a Poisson sample, with the noise
  over the largest norm of a column (theorem 4 there).

  Proof. Let the coins of all other rows be known. A row may be drawn in steps
  `parts` apart, and a draw moves the outputs of less than that many steps, from
  its own one on. So these steps make a block, and blocks do not overlap. Given
  all before the block, a row that is drawn adds one vector g, of norm C at
  most, times the column of the step to the means of the block's outputs; all
  else in these is a function of earlier outputs. So the ratio of densities is
  that of two Gaussians at the distance |g| times the norm of the column, mixed
  with the probability of the draw; and blocks compose.
  """

  sampling_probability: float
  parts: int
  event: dp_accounting.DpEvent


@events.register(
  CyclicPoissonSampledDpEvent,
  '{inner}; for each step a Poisson sample '
  'with probability {0.sampling_probability:.6g} of one of '
  '{0.parts} parts in turn',
)
def _(event, relation):
  noise, count = cyclic_blocks(event)
  q = events.event_number(event, 'sampling_probability', 0.0, 1.0)
  if noise == math.inf:
    return []
  block = dp_accounting.PoissonSampledDpEvent(
    q, dp_accounting.GaussianDpEvent(noise)
  )
  return events.decompose(block, relation, count).items()


def _sensitivity(event: dp_accounting.DpEvent, *participations) -> float:
  """Returns the sensitivity of a matrix mechanism; errors name the event."""
  try:
    if isinstance(event, ToeplitzMechanismDpEvent):
      return toeplitz_sensitivity(
        event.coefficients, event.steps, *participations
      )
    return matrix_sensitivity(event.strategy, *participations)
  except ValueError as error:
    name = type(event).__name__
    raise ValueError(f'A {name} cannot be accounted: {error}') from error


def has_stream(event: dp_accounting.DpEvent) -> bool:
  """Returns whether an event holds tree aggregation or a matrix mechanism."""
  if isinstance(event, _STREAMS):
    return True
  parts = getattr(event, 'events', None) or [getattr(event, 'event', None)]
  return any(
    has_stream(x) for x in parts if isinstance(x, dp_accounting.DpEvent)
  )


def _depth(event: dp_event.SingleEpochTreeAggregationDpEvent) -> int:
  counts = event.step_counts
  if not isinstance(counts, (list, tuple)):
    counts = [counts]
  if not counts or not all(
    not isinstance(x, (str, bool)) and 0 <= x < math.inf and x == int(x)
    for x in counts
  ):
    raise ValueError(
      f'step_counts of {event!r} must be an integer, zero or more, or a '
      'list of such numbers, at least one.'
    )
  return max(tree_depth(int(x)) for x in counts)


def tree_depth(steps: int) -> int:
  """Returns how many nodes of a binary tree hold one leaf, the leaf included.

  That is floor(log2(steps)) + 1, or zero without steps.
  """
  return steps.bit_length()


def cyclic_blocks(event: CyclicPoissonSampledDpEvent) -> tuple[float, int]:
  """Returns the noise of each block of steps, and the number of blocks.

  The noise is over the sensitivity of a row that is drawn, infinite if that is
  zero; the number is the largest number of steps of a part.

  Raises:
    RefusedEventError: if the event in it is no matrix mechanism.
    ValueError: if a parameter is outside its range, or the strategy has more
      bands than there are parts.

  >>> banded = ToeplitzMechanismDpEvent(4.0, [2.0], steps=3)
  >>> cyclic_blocks(CyclicPoissonSampledDpEvent(0.1, 2, banded))
  (1.999..., 2)
  """
  inner = event.event
  parts = events.event_number(event, 'parts', 1, _LARGEST_WHOLE)
  if parts != int(parts):
    raise ValueError(f'parts of {event!r} must be an integer.')
  if isinstance(inner, ToeplitzMechanismDpEvent):
    steps, norm = inner.steps, _sensitivity(inner)
    kept = np.flatnonzero(inner.coefficients[:steps])
    bands = int(kept[-1]) + 1 if kept.size else 0
  elif isinstance(inner, MatrixMechanismDpEvent):
    steps, norm = len(inner.strategy), _sensitivity(inner)
    each = [
      t - int(np.flatnonzero(row)[0]) + 1
      for t, row in enumerate(inner.strategy)
      if np.any(row)
    ]
    bands = max(each, default=0)
  else:
    raise events.RefusedEventError(
      event, 'only matrix mechanisms are taken on samples of parts in turn.'
    )
  if bands > parts:
    raise ValueError(
      f'The strategy has {bands} bands, more than there are parts '
      f'({int(parts)}): what a row adds in two of its steps would overlap. '
      'Take more parts, or a strategy with less bands.'
    )
  noise = events.event_number(inner, 'noise_multiplier')
  return noise / norm if norm > 0 else math.inf, math.ceil(steps / parts)


@functools.lru_cache(maxsize=64)
def matrix_sensitivity(
  strategy: tuple[tuple[float, ...], ...],
  min_separation: int = 1,
  max_participations: Optional[int] = 1,
) -> float:
  """Returns the l2 sensitivity of a strategy for rows of norm 1, from above.

  Arguments are those of `MatrixMechanismDpEvent`.

  Raises:
    ValueError: if the matrix is empty, too large, not lower triangular or not
      finite, or a number is outside its range.

  >>> round(matrix_sensitivity(((3.0,), (4.0, 1.0))), 6)
  5.0
  >>> round(matrix_sensitivity(((3.0,), (4.0, 1.0)), 1, 2), 6)  # |(3, 5)|
  5.830952
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
  """Returns `matrix_sensitivity` of a matrix with entries coefficients[s - t].

  It has as many rows and columns as there are steps, and zeros below the
  coefficients.

  >>> round(toeplitz_sensitivity((1.0, 0.5), 4), 6)  # sqrt(1.25)
  1.118034
  >>> round(toeplitz_sensitivity((1.0, 0.5), 4, 2, 2), 6)  # sqrt(2.5)
  1.581139
  """
  if steps != int(steps) or not 1 <= steps <= 10**8:
    raise ValueError(
      f'steps must be an integer in [1, 100000000], not {steps!r}.'
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
  """Returns b and k, at most as many as fit."""
  for name, value in (
    ('min_separation', min_separation),
    ('max_participations', max_participations),
  ):
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not (whole and value >= 1) and not (name[:3] == 'max' and value is None):
      raise ValueError(f'{name} must be an integer, 1 or more: {value!r}.')
  b = min(int(min_separation), steps)
  fit = -(-steps // b)
  k = fit if max_participations is None else min(int(max_participations), fit)
  return b, k


def _largest_sums(weights: np.ndarray, b: int, k: int) -> np.ndarray:
  """Returns the largest sums of at most k entries of each row, b apart."""
  rows, steps = weights.shape
  best = np.zeros((rows, steps + b))
  # No more than k fit anyway: one pass in place.
  unlimited = k * b >= steps
  for _ in range(1 if unlimited else k):
    more = best if unlimited else np.zeros_like(best)
    for t in range(steps):
      more[:, t + b] = np.maximum(
        more[:, t + b - 1], best[:, t] + weights[:, t]
      )
    best = more
  return best[:, -1]
