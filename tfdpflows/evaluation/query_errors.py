"""Errors of the counts that analysts ask of a table: marginals and ranges."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd

from tfdpflows.evaluation import discretization
from tfdpflows.evaluation.association import require_tables
from tfdpflows.tabular.schema import TableSchema

_BINS = 8
# Above this many possible cells only those with rows are counted.
_MOST_CELLS = 2**22


def marginal_errors(
  real: pd.DataFrame,
  synthetic: pd.DataFrame,
  schema: TableSchema,
  order: int = 2,
  *,
  most: int = 200,
  seed: int = 0,
) -> dict[tuple[str, ...], float]:
  """Returns how far marginals of several columns are from the real ones.

  Ranges are cut into at most 8 bins with similar numbers of real rows;
  categories stay whole. The mean is half of the error of McKenna et al. (2022),
  *AIM*, section 2, for all marginals of `order` columns with equal weights.

  Args:
    real: DataFrame `[n, d]` of real rows.
    synthetic: DataFrame `[m, d]` of synthetic rows.
    schema: the `TableSchema` of both.
    order: number of columns of a marginal.
    most: largest number of marginals; of more, as many are drawn at random.
    seed: of that draw.

  Returns:
    The total variation distance of each marginal, a dict by tuple of names.

  Raises:
    ValueError: if a table has no rows or lacks a column, or `order` is not
      between 1 and the number of columns.

  #### Example

  >>> import pandas as pd
  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([Field('a', 'boolean'), Field('b', 'boolean')])
  >>> real = pd.DataFrame({'a': [True, False], 'b': [True, False]})
  >>> other = pd.DataFrame({'a': [True, False], 'b': [False, True]})
  >>> marginal_errors(real, other, schema)
  {('a', 'b'): 1.0}
  """
  require_tables(real, synthetic, schema)
  schema, real, synthetic = discretization.numeric(schema, real, synthetic)
  fields = list(schema.fields)
  if not 1 <= order <= len(fields):
    raise ValueError(
      f'order is {order}; with {len(fields)} columns it must be in [1, '
      f'{len(fields)}].'
    )
  coded = {
    field.name: discretization.common_bins(
      real[field.name], synthetic[field.name], field, _BINS
    )
    for field in fields
  }
  errors = {}
  for names in _some_subsets(list(coded), order, most, seed):
    size, joint = 1, [0, 0]
    for name in names:
      *codes, more = coded[name]
      joint = [a * more + b for a, b in zip(joint, codes)]
      size *= more
    errors[names] = _total_variation(*joint, size)
  return errors


def range_query_errors(
  real: pd.DataFrame,
  synthetic: pd.DataFrame,
  schema: TableSchema,
  *,
  num_queries: int = 1000,
  order: int = 3,
  seed: int = 0,
) -> np.ndarray:
  """Returns the errors of random counting queries.

  A query is the share of rows that meet a condition on each of `order` random
  columns: a number between two values drawn from the real rows, or one of a
  random half of the categories.

  Args:
    real: DataFrame `[n, d]` of real rows.
    synthetic: DataFrame `[m, d]` of synthetic rows.
    schema: the `TableSchema` of both.
    num_queries: number of queries.
    order: number of columns of a query; all, where there are fewer.
    seed: of the queries.

  Returns:
    float64 array `[num_queries]`: absolute differences of the shares.

  Raises:
    ValueError: if a table has no rows or lacks a column.
  """
  require_tables(real, synthetic, schema)
  schema, real, synthetic = discretization.numeric(schema, real, synthetic)
  fields = list(schema.fields)
  rng = np.random.default_rng(seed)
  columns = [discretization.coded(field, real, synthetic) for field in fields]
  errors = np.empty(num_queries)
  for query in range(num_queries):
    chosen = rng.choice(len(fields), min(order, len(fields)), replace=False)
    meets = [np.ones(len(table), bool) for table in (real, synthetic)]
    for i in chosen:
      for all_of, some in zip(meets, _condition(fields[i], columns[i], rng)):
        all_of &= some
    errors[query] = abs(meets[0].mean() - meets[1].mean())
  return errors


def _some_subsets(names, order, most, seed):
  """All subsets of a size, or `most` different ones, in order of columns."""
  if math.comb(len(names), order) <= most:
    return list(itertools.combinations(names, order))
  rng = np.random.default_rng(seed)
  found = set()
  while len(found) < most:
    found.add(tuple(sorted(rng.choice(len(names), order, replace=False))))
  return [tuple(names[i] for i in subset) for subset in sorted(found)]


def _total_variation(first, second, size):
  if size > _MOST_CELLS:
    _, joint = np.unique(np.concatenate([first, second]), return_inverse=True)
    first, second = joint[: len(first)], joint[len(first) :]
    size = joint.max() + 1
  p, q = (np.bincount(c, minlength=size) / len(c) for c in (first, second))
  return float(np.abs(p - q).sum() / 2)


def _condition(field, values, rng):
  """Which rows of each table meet a random condition; missing ones do not."""
  if not field.is_numeric:
    size = len(discretization.declared_values(field))
    chosen = np.append(rng.random(size) < 0.5, False)
    return [chosen[codes] for codes in values]
  known = values[0][np.isfinite(values[0])]
  if not len(known):
    return [np.zeros(len(column), bool) for column in values]
  low, high = np.sort(rng.choice(known, 2))
  return [(column >= low) & (column <= high) for column in values]
