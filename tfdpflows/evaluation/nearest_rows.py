"""How near the rows of one table are to those of another."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from tfdpflows.evaluation import discretization
from tfdpflows.tabular.schema import TableSchema

# Distances are of all of so many rows, at most, to as many of the other table.
NUM_NEAREST = 2000


@dataclasses.dataclass(frozen=True)
class NearestRows:
  """The result of `nearest_rows`."""

  synthetic: np.ndarray  # Distances to the nearest real row.
  real: np.ndarray  # Distances to the nearest other real row.
  synthetic_equal: float  # Share of all that equal a real row.
  real_equal: float  # Share of all that equal another real row.


def nearest_rows(
  real: pd.DataFrame,
  synthetic: pd.DataFrame,
  schema: TableSchema,
  seed: int = 0,
) -> NearestRows:
  """Finds the nearest real row of synthetic rows, and of real ones.

  The distance is Gower's: the mean over columns of the difference of numbers as
  a share of their declared range, of 0 or 1 for categories, and of 1 where one
  of two values is missing. Distances are of at most 2,000 rows of either table;
  which rows are equal is looked up among all. Both are as
  `TableSchema.validate` returns them.

  This is no measure of privacy: a model may leak much and copy no row, and rows
  of few columns are equal by chance.

  >>> import pandas as pd
  >>> from tfdpflows.evaluation.nearest_rows import nearest_rows
  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([Field('age', 'integer', 0, 10, required=True)])
  >>> real = pd.DataFrame({'age': [0, 4]})
  >>> found = nearest_rows(real, pd.DataFrame({'age': [5]}), schema)
  >>> found.synthetic.round(2), found.real.round(2)
  (array([0.1]), array([0.4, 0.4]))
  """
  schema, real, synthetic = discretization.numeric(schema, real, synthetic)
  keys = [_keys(table, schema) for table in (real, synthetic)]
  _, place, counts = np.unique(keys[0], return_inverse=True, return_counts=True)
  rng = np.random.default_rng(seed)
  real, synthetic = (
    table.iloc[rng.permutation(len(table))[:NUM_NEAREST]]
    for table in (real, synthetic)
  )
  others = _distances(real, real, schema)
  np.fill_diagonal(others, np.inf)
  return NearestRows(
    synthetic=_distances(synthetic, real, schema).min(1),
    real=others.min(1) if len(real) > 1 else np.zeros(0),
    synthetic_equal=float(np.isin(keys[1], keys[0]).mean()),
    real_equal=float((counts[place] > 1).mean()),
  )


def _keys(table, schema):
  """A number for each row, the same for rows at a distance of zero."""
  columns = {}
  for place, field in enumerate(schema.fields):
    (columns[place],) = discretization.coded(field, table)
    if field.is_numeric:
      # As distances are computed, but for rounding.
      columns[place] = (columns[place] / _width(field)).round(10) + 0.0
  return pd.util.hash_pandas_object(
    pd.DataFrame(columns), index=False
  ).to_numpy()


def _width(field):
  low, high = discretization.declared_range(field)
  return max(high - low, 1e-300)


def _distances(rows, others, schema):
  """Gower's distances, float64 `[len(rows), len(others)]`."""
  total = np.zeros([len(rows), len(others)])
  for field in schema.fields:
    a, b = discretization.coded(field, rows, others)
    if field.is_numeric:
      a, b = a / _width(field), b / _width(field)
      missing = np.isnan(a)[:, None] != np.isnan(b)
      gap = np.nan_to_num(np.abs(a[:, None] - b), nan=0.0)
      total += np.where(missing, 1.0, np.minimum(gap, 1.0))
    else:
      total += a[:, None] != b
  return total / len(schema.fields)
