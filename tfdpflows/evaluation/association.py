"""How strongly the columns of a table depend on each other, pair by pair."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd

from tfdpflows.evaluation import discretization
from tfdpflows.tabular.schema import TableSchema, check_schema

_MOST_ROWS = 20_000


def association_matrix(
  table: pd.DataFrame, schema: TableSchema
) -> pd.DataFrame:
  """Returns the association of every pair of columns.

  - two numeric columns: Pearson's correlation, in [-1, 1];
  - a numeric and a categorical column: the correlation ratio, in [0, 1];
  - two categorical columns: Cramer's V, in [0, 1].

  The last two are corrected for their bias (Kelley 1935; Bergsma 2013), which
  grows with the number of categories and shrinks with the number of rows, so
  that tables of different lengths can be compared. A missing category counts as
  a category; rows where a number is missing are left out of that number's
  pairs. A constant column has association 0 with every other.

  The table is as `TableSchema.validate` returns it. The result is symmetric,
  `[d, d]`, with ones on the diagonal, in the order of the schema.

  Raises:
    ValueError: if a column of the schema is not in the table.
  """
  require_columns(table, schema, 'the table')
  schema, table = discretization.numeric(schema, table)
  fields, names = list(schema.fields), list(schema.names)
  numeric = [f for f in fields if f.is_numeric]
  codes = {f.name: _codes(table[f.name], f) for f in fields if f not in numeric}
  of = lambda f: discretization.moderate(discretization.numbers(table[f.name]))
  values = pd.DataFrame({f.name: of(f)[0] for f in numeric})
  matrix = pd.DataFrame(np.eye(len(names)), index=names, columns=names)
  if len(numeric):
    with warnings.catch_warnings(), np.errstate(all='ignore'):
      warnings.simplefilter('ignore', RuntimeWarning)
      correlation = values.corr().fillna(0.0)
    matrix.loc[correlation.index, correlation.columns] = correlation
  for number in values.columns:
    for name, code in codes.items():
      ratio = _correlation_ratio(values[number].to_numpy(), code)
      matrix.loc[number, name] = matrix.loc[name, number] = ratio
  categorical = list(codes)
  for i, first in enumerate(categorical):
    for second in categorical[:i]:
      strength = _cramers_v(codes[first], codes[second])
      matrix.loc[first, second] = matrix.loc[second, first] = strength
  symmetric = matrix.to_numpy(copy=True)
  np.fill_diagonal(symmetric, 1.0)  # A constant column has no correlation.
  return pd.DataFrame(symmetric, index=names, columns=names)


def kendall_matrix(
  table: pd.DataFrame,
  schema: TableSchema,
  *,
  max_rows: int = _MOST_ROWS,
  seed: int = 0,
) -> pd.DataFrame:
  """Returns Kendall's tau-b (Kendall 1945) of every pair of columns.

  Unlike Pearson's correlation it does not change when a column is transformed
  by an increasing function, and single outliers have little influence. Booleans
  and categories count by their place in the schema: with categories in no
  natural order tau only tells whether two tables agree, not how strong a
  dependence is. A pair leaves out the rows where one of its values is missing.
  A constant column has tau 0 with every other.

  Of more than `max_rows` as many are drawn at random. With 20,000 a tau has a
  standard error of about 0.005. The result is symmetric, `[d, d]`, in [-1, 1],
  with ones on the diagonal.

  Raises:
    ValueError: if a column of the schema is not in the table, the table has no
      rows, or `max_rows` is less than 2.
  """
  require_columns(table, schema, 'the table')
  schema, table = discretization.numeric(schema, table)
  if not len(table):
    raise ValueError('There are no rows in the table; give at least two.')
  if max_rows < 2:
    raise ValueError(f'max_rows is {max_rows}; it must be at least 2.')
  if len(table) > max_rows:
    rng = np.random.default_rng(seed)
    table = table.iloc[rng.choice(len(table), max_rows, replace=False)]
  # Reversed: which of two comes first decides the last digit of their tau.
  fields = reversed(schema.fields)
  columns = {f.name: _ordered(table[f.name], f) for f in fields}
  # A constant column has no order to agree with.
  tau = pd.DataFrame(columns).corr('kendall').fillna(0.0)
  matrix = tau.to_numpy(copy=True)[::-1, ::-1]
  np.fill_diagonal(matrix, 1.0)
  return pd.DataFrame(matrix, index=schema.names, columns=schema.names)


def kendall_errors(
  real: pd.DataFrame,
  synthetic: pd.DataFrame,
  schema: TableSchema,
  *,
  max_rows: int = _MOST_ROWS,
  seed: int = 0,
) -> dict[str, float]:
  """Compares Kendall's tau-b of all pairs of columns of two tables.

  Args:
    real: DataFrame `[n, d]` of real rows.
    synthetic: DataFrame `[m, d]` of synthetic rows.
    schema: the `TableSchema` of both.
    max_rows: largest number of rows of each that are used.
    seed: of their draw.

  Returns:
    A dict of `kendall_rmse` and `kendall_mae`: root mean square and mean
    absolute difference of tau over all pairs of different columns; 0.0 for a
    table of one column.

  Raises:
    ValueError: if a column of the schema is not in a table, a table has no
      rows, or `max_rows` is less than 2.

  #### Example

  >>> import pandas as pd
  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([
  ...     Field(name, 'integer', minimum=0, maximum=9, required=True)
  ...     for name in 'xy'])
  >>> real = pd.DataFrame({'x': [1, 2, 3], 'y': [1, 2, 3]})
  >>> made = pd.DataFrame({'x': [1, 2, 3], 'y': [3, 2, 1]})
  >>> kendall_errors(real, made, schema)['kendall_mae']
  2.0
  """
  first, second = (
    kendall_matrix(table, schema, max_rows=max_rows, seed=seed).to_numpy()
    for table in (real, synthetic)
  )
  errors = (second - first)[np.triu_indices(len(first), k=1)]
  if not len(errors):
    return {'kendall_rmse': 0.0, 'kendall_mae': 0.0}
  return {
    'kendall_rmse': float(np.sqrt(np.mean(errors**2))),
    'kendall_mae': float(np.mean(np.abs(errors))),
  }


def require_columns(
  table: pd.DataFrame, schema: TableSchema, what: str
) -> None:
  """Raises a `ValueError` that names the columns `table` does not have."""
  missing = [name for name in schema.names if name not in table.columns]
  if missing:
    raise ValueError(
      f'Column {", ".join(map(repr, missing))} of the schema is not in {what}.'
      ' Add it to the table, or remove the field from the schema.'
    )


def require_tables(
  real: pd.DataFrame, synthetic: pd.DataFrame, schema: TableSchema
) -> None:
  """Raises a `ValueError` if a table lacks a column of the schema, or rows."""
  check_schema(schema)
  for table, what in ((real, 'the real table'), (synthetic, 'the synthetic')):
    require_columns(table, schema, what)
    if not len(table):
      raise ValueError(f'There are no rows in {what}; give at least one.')


def _codes(series, field):
  """Codes without gaps: only categories that occur, missing as one of them."""
  code = discretization.category_codes(series, field)
  return np.unique(code, return_inverse=True)[1]


def _correlation_ratio(values, codes):
  present = np.isfinite(values)
  values = values[present]
  codes = np.unique(codes[present], return_inverse=True)[1]
  n = len(values)
  total = np.sum((values - values.mean()) ** 2) if n else 0.0
  counts = np.bincount(codes) if n else np.zeros(0)
  if total <= 0 or len(counts) < 2 or n <= len(counts):
    return 0.0
  means = np.bincount(codes, weights=values - values.mean()) / counts
  explained = np.sum(counts * means**2) / total
  corrected = 1 - (1 - explained) * (n - 1) / (n - len(counts))
  return float(np.sqrt(np.clip(corrected, 0, 1)))


def _cramers_v(first, second):
  n = len(first)
  rows, columns = first.max(initial=0) + 1, second.max(initial=0) + 1
  if n < 2 or min(rows, columns) < 2:
    return 0.0
  table = np.bincount(first * columns + second, minlength=rows * columns)
  table = table.reshape(rows, columns).astype(np.float64)
  expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / n
  phi2 = np.sum((table - expected) ** 2 / expected) / n
  phi2 = max(0.0, phi2 - (rows - 1) * (columns - 1) / (n - 1))
  rows -= (rows - 1) ** 2 / (n - 1)
  columns -= (columns - 1) ** 2 / (n - 1)
  return float(np.sqrt(min(1.0, phi2 / max(min(rows, columns) - 1, 1e-12))))


def _ordered(series, field):
  """Numbers, or the places of categories; NaN where the value is missing."""
  if field.is_numeric:
    return discretization.numbers(series)
  codes = discretization.category_codes(series, field)
  return np.where(codes < 0, np.nan, codes)
