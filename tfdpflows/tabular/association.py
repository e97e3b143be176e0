"""How strongly the columns of a table depend on each other, pair by pair."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd

from tfdpflows.tabular import cells


def association_matrix(table, schema):
  """Measures the association of every pair of columns.

  - two numeric columns: Pearson's correlation, in [-1, 1];
  - a numeric and a categorical column: the correlation ratio, in [0, 1];
  - two categorical columns: Cramer's V, in [0, 1].

  The last two are corrected for their bias (which grows with the number of
  categories and shrinks with the number of rows), so that tables of different
  lengths can be compared. A missing category counts as a category of its own;
  rows where a number is missing are left out of that number's pairs. A column
  that is constant has association 0 with every other.

  Args:
    table: DataFrame with the columns of `schema`, as `TableSchema.validate`
      returns it.
    schema: The `TableSchema`; string and boolean fields are categorical.

  Returns:
    DataFrame `[d, d]`, symmetric, with ones on the diagonal, rows and columns
    in the order of the schema.

  Raises:
    ValueError: if a column of the schema is not in the table.

  #### References

  - W. Bergsma (2013), *A bias-correction for Cramer's V and Tschuprow's T*.
  - T. L. Kelley (1935), *An unbiased correlation ratio measure*.

  #### Example

  >>> import pandas as pd
  >>> from tfdpflows.tabular.schema import TableSchema
  >>> schema = TableSchema.from_dict({'fields': [
  ...     {'name': 'age', 'type': 'integer',
  ...      'constraints': {'minimum': 0, 'maximum': 9, 'required': True}},
  ...     {'name': 'adult', 'type': 'boolean',
  ...      'constraints': {'required': True}}]})
  >>> table = pd.DataFrame({'age': [1, 2, 7, 8], 'adult': [False, False,
  ...                                                      True, True]})
  >>> round(float(association_matrix(table, schema).loc['age', 'adult']), 2)
  0.98
  """
  fields = list(schema.fields)
  require_columns(table, fields, 'the table')
  names = [field.name for field in fields]
  numeric = [f for f in fields if not cells.is_categorical(f)]
  codes = {f.name: _codes(table[f.name], f) for f in fields if f not in numeric}
  values = pd.DataFrame({f.name: cells.numbers(table[f.name]) for f in numeric})
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


def require_columns(table, fields, what):
  """Raises a `ValueError` that names the columns `table` does not have."""
  missing = [field.name for field in fields if field.name not in table.columns]
  if missing:
    raise ValueError(
      f'Column {", ".join(map(repr, missing))} of the schema is not in {what}.'
      ' Add it to the table, or remove the field from the schema.'
    )


def require_tables(real, synthetic, schema):
  """Raises a `ValueError` if a table lacks a column of the schema, or rows."""
  for table, what in ((real, 'the real table'), (synthetic, 'the synthetic')):
    require_columns(table, schema.fields, what)
    if not len(table):
      raise ValueError(f'There are no rows in {what}; give at least one.')


def _codes(series, field):
  """Codes without gaps: only categories that occur, missing as one of them."""
  code = cells.category_codes(series, field)
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
