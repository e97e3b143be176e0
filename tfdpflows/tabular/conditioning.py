"""Rows with given values: by rejection sampling or importance resampling."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy import special

from tfdpflows.tabular.density import BATCH, TableDensity, TableDistribution
from tfdpflows.tabular.encoding import EncodedColumn, TableEncoder
from tfdpflows.tabular.row_filter import validated
from tfdpflows.tabular.schema import TableSchema

# Rejection sampling: after so many batches it is decided whether it would take
# too long, and it draws at most so many.
_TRIED, _MOST = 4, 64
# Importance resampling: candidates per row, and how many at least; draws per
# estimate of a conditional probability, and candidates per compiled call.
_PER_ROW, _LEAST = 4, 2 * BATCH
_DRAWS, _CHUNK = 32, 512
# Warned of is an effective sample size below this share of the rows.
_FEW = 0.5


class Conditional(NamedTuple):
  """Codes of rows that meet conditions, float32 `[n, d]`.

  `method` is 'exact' (rejection sampling) or 'importance' (resampling), and
  `effective` the effective sample size, n if exact.
  """

  codes: np.ndarray
  method: str
  effective: float


def encode_conditions(
  schema: TableSchema, conditions: dict[str, Any]
) -> dict[int, float]:
  """Returns the code of each condition, as a dict by number of the column.

  Args:
    schema: `TableSchema`.
    conditions: dict from names of columns to values; `None` for missing. The
      columns are encoded by themselves (`TableEncoder.is_alone`).

  Raises:
    ValueError: naming the column, for a condition that the schema rules out.
  """
  numbers = {c.name: i for i, c in enumerate(TableEncoder(schema).columns)}
  codes = {}
  for name, value in conditions.items():
    table = validated(schema, name, value)
    one = TableSchema([schema[name]])
    codes[numbers[name]] = float(TableEncoder(one).encode(table)[0, 0])
  return codes


def sample(
  distribution: TableDistribution,
  columns: Sequence[EncodedColumn],
  num_rows: int,
  codes: dict[int, float],
  rng: np.random.Generator,
  keep: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Conditional:
  """Draws rows that meet conditions.

  Where every condition is on a category, an integer or a missing value, it is
  rejection sampling: exact, whatever the order of the columns. Where that would
  take too long, or for the value of a continuous column, which has probability
  zero, it is importance resampling: candidates from the model get the values
  asked for and are resampled by `p(values | rest of the row)`, estimated from a
  few points each. That is right in the limit of many candidates. Other
  conditions (`keep`) are met by rejection sampling alone.

  Args:
    distribution: the `TableDistribution`.
    columns: its encoded columns.
    num_rows: number of rows.
    codes: from `encode_conditions`.
    rng: generator of the draws.
    keep: function from codes `[m, d]` to whether a row meets the other
      conditions, bool `[m]`.

  Raises:
    ValueError: where rejection sampling does not do, for a distribution without
      a density, or other conditions.
  """
  wanted = {j: _interval(columns[j], code) for j, code in codes.items()}
  if all(low < high for low, high in wanted.values()):
    found = _reject(distribution, wanted, num_rows, rng, keep)
    if found is not None:
      return Conditional(found, 'exact', float(num_rows))
  if keep is not None:
    raise ValueError(
      'Hardly any row of the model meets all conditions together, or none '
      'does: the constraints of the schema may rule them out, or one asks for '
      'one value of a continuous column beside a range or a list. Widen the '
      'conditions, or ask for fewer rows.'
    )
  if not isinstance(distribution, TableDensity):
    raise ValueError(
      'The conditions are on the value of a continuous column, or met by too '
      'few rows of the model: such rows are resampled by their density, which '
      'this model does not have.'
    )
  found, effective = _resample(distribution, wanted, codes, num_rows, rng)
  if effective < _FEW * num_rows:
    warnings.warn(
      f'The {num_rows} rows are worth about {effective:.0f} independent ones: '
      'the model finds the conditions unlikely together with most of its rows, '
      'and many repeat. Ask for fewer rows, or for less rare values.',
      stacklevel=3,
    )
  return Conditional(found, 'importance', effective)


def _interval(column, code):
  """Returns the bounds of the points that a code stands for."""
  if column.cell:
    return code, code + 1.0
  if column.missing and code >= column.value_size:
    return column.value_size, column.size
  return code, code


def _reject(distribution, wanted, num_rows, rng, keep=None):
  """Rejection sampling; returns `None` if the rows are too rare."""
  found, count = [], 0
  for batch in range(1, _MOST + 1):
    rows = distribution.sample(BATCH, rng)
    agree = np.ones(len(rows), bool)
    for j, (low, high) in wanted.items():
      agree &= (rows[:, j] >= low) & (rows[:, j] < high)
    if keep is not None:
      agree[agree] = keep(rows[agree])
    found.append(rows[agree])
    count += agree.sum()
    if count >= num_rows:
      return np.concatenate(found)[:num_rows]
    if batch == _TRIED and count * _MOST < num_rows * batch:
      return None
  return None


def _resample(density, wanted, codes, num_rows, rng):
  """Importance resampling; returns rows and the effective sample size."""
  count = max(_LEAST, _PER_ROW * num_rows)
  rows = density.sample(count, rng)
  weights = np.empty(count)
  for start in range(0, count, _CHUNK):
    part = rows[start : start + _CHUNK]
    padded = np.pad(part, ((0, _CHUNK - len(part)), (0, 0)), 'edge')
    found = _log_weights(density, padded, wanted, rng)
    weights[start : start + _CHUNK] = found[: len(part)]
  for j, code in codes.items():
    rows[:, j] = code
  weights[density.is_broken(rows)] = -np.inf
  if not np.isfinite(weights).any():
    raise ValueError(
      'No row of the model meets the conditions and the inequalities of the '
      'schema together: ask for other values.'
    )
  weights = np.exp(weights - weights.max())
  weights /= weights.sum()
  chosen = rows[rng.choice(count, num_rows, p=weights)]
  return chosen, 1 / np.sum(weights**2)


def _log_weights(density, rows, wanted, rng):
  """Returns `log p(values | rest)` of rows, up to a constant.

  With z the normal scores and N the standard normal density, the numerator is
  the mean of `p(z) / N(z_c)` over scores z_c of the conditions, drawn uniformly
  from their intervals, and the denominator its mean over z_c drawn from N. The
  marginals cancel.
  """
  points = np.broadcast_to(rows, (2, _DRAWS, *rows.shape)).copy()
  spread = np.zeros(points.shape[1:], np.float32)
  chosen = np.zeros(rows.shape[1], bool)
  for j, (low, high) in wanted.items():
    even = _strata(len(rows), rng)
    # Rounding must not reach the next cell.
    top = np.nextafter(np.float32(high), np.float32(low))
    points[0, ..., j] = np.minimum(low + (high - low) * even, top)
    spread[..., j] = special.ndtri(_strata(len(rows), rng))
    chosen[j] = True
  found = _log_ratios(
    density, tf.constant(points), tf.constant(spread), tf.constant(chosen)
  ).numpy()
  return found[0] - found[1]


def _strata(count, rng):
  """Returns a stratified sample of (0, 1), `[draws, count]`.

  Strata are permuted column by column: a Latin hypercube for several columns.
  """
  places = np.broadcast_to(np.arange(_DRAWS), (count, _DRAWS))
  places = rng.permuted(places, axis=1).T
  return (places + rng.uniform(1e-6, 1, places.shape)) / _DRAWS


@tf.function(autograph=False)
def _log_ratios(density, points, spread, chosen):
  z = density.marginal.forward(points)
  z = tf.stack([z[0], tf.where(chosen, spread, z[1])])
  scores = tf.where(chosen, -z * z / 2, tf.zeros_like(z))
  log_ratio = density.latent.log_prob(z) - tf.reduce_sum(scores, -1)
  drawn = tf.where(chosen, density.marginal.inverse(z[1]), points[1])
  log_ratio += density.log_within(tf.stack([points[0], drawn]), z)
  return tf.reduce_logsumexp(log_ratio, 1)
