"""How near the rows of one table are to those of another."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from tfdpflows.evaluation import discretization
from tfdpflows.tabular.schema import TableSchema

# Distances are of all rows of one table to all of the other.
_MOST_ROWS = 2000


@dataclasses.dataclass(frozen=True)
class NearestRows:
  """The result of `nearest_rows`.

  Attributes:
    synthetic: distances of synthetic rows to the nearest real one, float64.
    real: distances of real rows to the nearest other real one.
  """

  synthetic: np.ndarray
  real: np.ndarray


def nearest_rows(
  real: pd.DataFrame,
  synthetic: pd.DataFrame,
  schema: TableSchema,
  seed: int = 0,
) -> NearestRows:
  """Finds the nearest real row of synthetic rows, and of real ones.

  The distance is Gower's: the mean over columns of the difference of numbers as
  a share of their declared range, of 0 or 1 for categories, and of 1 where one
  of two values is missing. Of either table at most 2,000 rows are taken.

  This is no measure of privacy: a model may leak much and copy no row, and rows
  of few columns are equal by chance.

  Args:
    real: DataFrame `[n, d]` of real rows, as `TableSchema.validate` returns it.
    synthetic: DataFrame `[m, d]` of synthetic rows.
    schema: the `TableSchema` of both.
    seed: of the choice of rows.

  Returns:
    A `NearestRows`.

  #### Example

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
  rng = np.random.default_rng(seed)
  real, synthetic = (
    table.iloc[rng.permutation(len(table))[:_MOST_ROWS]]
    for table in (real, synthetic)
  )
  others = _distances(real, real, schema)
  np.fill_diagonal(others, np.inf)
  return NearestRows(
    synthetic=_distances(synthetic, real, schema).min(1),
    real=others.min(1) if len(real) > 1 else np.zeros(0),
  )


def _distances(rows, others, schema):
  """Gower's distances, float64 `[len(rows), len(others)]`."""
  total = np.zeros([len(rows), len(others)])
  for field in schema.fields:
    if field.is_numeric:
      low, high = discretization.declared_range(field)
      a, b = (
        discretization.numbers(table[field.name]) / max(high - low, 1e-300)
        for table in (rows, others)
      )
      missing = np.isnan(a)[:, None] != np.isnan(b)
      gap = np.nan_to_num(np.abs(a[:, None] - b), nan=0.0)
      total += np.where(missing, 1.0, np.minimum(gap, 1.0))
    else:
      a, b = (
        discretization.category_codes(table[field.name], field)
        for table in (rows, others)
      )
      total += a[:, None] != b
  return total / len(schema.fields)
