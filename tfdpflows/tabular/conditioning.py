"""Rows that have given values in some columns: drawn exactly, or reweighted."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf
from scipy import special

from tfdpflows.tabular.density import TableDensity
from tfdpflows.tabular.encoding import EncodedColumn, TableEncoder
from tfdpflows.tabular.schema import TableSchema

# Rows per call of a compiled function.
_BATCH = 8192
# Batches after which it is decided whether waiting for rows that agree is in
# vain, and how many it may take in all.
_TRIED, _MOST = 4, 64
# Candidates for each row that is wanted, and how many at least.
_PER_ROW, _LEAST = 4, 2 * _BATCH
# Points over which a conditional probability is estimated, and candidates that
# are weighted at one time.
_DRAWS, _CHUNK = 32, 512
# Below this share of the rows asked for the effective number is warned of.
_FEW = 0.5


@dataclasses.dataclass(frozen=True)
class Conditional:
  """Codes of rows that meet conditions, and how they were found.

  Attributes:
    codes: float32 `[n, d]`.
    method: 'exact', for rows of the model that happened to agree; or
      'importance', for rows that were made to agree and resampled.
    effective: the number of independent rows that these are worth: n if exact.
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
    conditions: dict from names of columns to values; `None` for missing.

  Raises:
    ValueError: naming the column, if the schema has no such column or does not
      declare the value.
  """
  names = [field.name for field in schema.fields]
  codes = {}
  for name, value in conditions.items():
    if name not in names:
      raise ValueError(
        f'There is a condition on column {name!r}; the schema has {names}.'
      )
    one = TableSchema([schema[name]])
    table = pd.DataFrame({name: pd.Series([value], dtype=object)})
    try:
      table = one.validate(table, fitting=False)
    except ValueError as error:
      raise ValueError(
        f'The condition {name!r}: {value!r} is outside of the schema. {error}'
      ) from error
    codes[names.index(name)] = float(TableEncoder(one).encode(table)[0, 0])
  return codes


def sample(
  density: TableDensity,
  columns: Sequence[EncodedColumn],
  num_rows: int,
  codes: dict[int, float],
  rng: np.random.Generator,
) -> Conditional:
  """Draws rows that meet conditions.

  Where every condition is on a category, an integer or a missing value, rows of
  the model are drawn until enough of them agree: exact, whatever the order of
  the columns. Where that would take too long, or for the value of a continuous
  column, which no row has, candidates from the model get the values that are
  asked for and are resampled by `p(values | rest of the row)`, estimated from
  a few points each. That is right in the limit of many candidates.

  Args:
    density: what is drawn from.
    columns: its encoded columns.
    num_rows: number of rows.
    codes: from `encode_conditions`.
    rng: source of the draws.
  """
  wanted = {j: _region(columns[j], code) for j, code in codes.items()}
  if all(low < high for low, high in wanted.values()):
    found = _wait(density, wanted, num_rows, rng)
    if found is not None:
      return Conditional(found, 'exact', float(num_rows))
  found, effective = _reweigh(density, wanted, codes, num_rows, rng)
  if effective < _FEW * num_rows:
    warnings.warn(
      f'The {num_rows} rows are worth about {effective:.0f} independent ones: '
      'the model finds the conditions unlikely together with most of its rows, '
      'and many repeat. Ask for fewer rows, or for less rare values.',
      stacklevel=3,
    )
  return Conditional(found, 'importance', effective)


def _region(column, code):
  """Returns where the points of a code are: a cell, an interval or a point."""
  if column.cell:
    return code, code + 1.0
  if column.missing and code >= column.value_size:
    return column.value_size, column.size
  return code, code


def _wait(density, wanted, num_rows, rng):
  """Returns rows that agree, or `None` if they are too rare."""
  found, count = [], 0
  for batch in range(1, _MOST + 1):
    rows = density.sample(_BATCH, rng)
    agree = np.ones(len(rows), bool)
    for j, (low, high) in wanted.items():
      agree &= (rows[:, j] >= low) & (rows[:, j] < high)
    found.append(rows[agree])
    count += agree.sum()
    if count >= num_rows:
      return np.concatenate(found)[:num_rows]
    if batch == _TRIED and count * _MOST < num_rows * batch:
      return None
  return None


def _reweigh(density, wanted, codes, num_rows, rng):
  count = max(_LEAST, _PER_ROW * num_rows)
  rows = density.sample(count, rng)
  weights = np.empty(count)
  for start in range(0, count, _CHUNK):
    part = rows[start : start + _CHUNK]
    padded = np.pad(part, ((0, _CHUNK - len(part)), (0, 0)), 'edge')
    found = _log_weights(density, padded, wanted, rng)
    weights[start : start + _CHUNK] = found[: len(part)]
  weights = np.exp(weights - weights.max())
  weights /= weights.sum()
  chosen = rows[rng.choice(count, num_rows, p=weights)]
  for j, code in codes.items():
    chosen[:, j] = code
  return chosen, 1 / np.sum(weights**2)


def _log_weights(density, rows, wanted, rng):
  """Returns `log p(values | rest)` of rows, up to a constant.

  With z the normal scores and N their standard normal density, it is the mean
  of `p(z) / N(z_c)` over scores z_c of the conditions, evenly drawn from where
  they are, over its mean where z_c are drawn from N: all that the marginals
  add is the same above and below.
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
  """Returns numbers in (0, 1), one in each of equal parts, `[draws, count]`.

  In an order of its own for each column: a Latin hypercube for several.
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
  return tf.reduce_logsumexp(log_ratio, 1)
