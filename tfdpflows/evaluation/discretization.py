"""Columns of tables as numbers and codes, and bins that two tables share."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tfdpflows.tabular.field import Field, typed
from tfdpflows.tabular.schema import TableSchema

_BOOLEANS = {
  'true': 1, '1': 1, '1.0': 1,
  'false': 0, '0': 0, '0.0': 0,
}  # fmt: skip


def declared_values(field: Field) -> tuple:
  """Returns the values of a field, `()` for a range.

  Numbers of an enum are sorted; categories keep the order of the schema.
  """
  if field.type == 'boolean':
    return (False, True)
  values = field.enum or ()
  return tuple(sorted(values) if field.is_numeric else values)


def declared_range(field: Field) -> tuple[float, float]:
  """Returns the least and the largest number that a field allows."""
  declared = declared_values(field) or (field.minimum, field.maximum)
  return declared[0], declared[-1]


def numbers(series: pd.Series) -> np.ndarray:
  """Returns a column as float64 `[n]`, NaN where it is missing."""
  return pd.to_numeric(series, errors='coerce').to_numpy(
    dtype=np.float64, na_value=np.nan
  )


def moderate(values: np.ndarray) -> tuple[np.ndarray, float]:
  """Returns numbers over a scale, and the scale: sums of squares are finite.

  Where they are already, the scale is 1.

  >>> moderate(np.array([1e300, -2e300]))
  (array([ 0.5, -1. ]), 2e+300)
  """
  largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
  return (values / largest, largest) if largest > 1e100 else (values, 1.0)


def finite(series: pd.Series) -> np.ndarray:
  """Returns the finite values of a column, float64."""
  found = numbers(series)
  return found[np.isfinite(found)]


def numeric(
  schema: TableSchema, *tables: pd.DataFrame
) -> tuple[TableSchema, ...]:
  """Returns schema and tables with types of time as whole numbers of units."""
  times = [field for field in schema.fields if field.is_temporal]
  if not times:
    return (schema, *tables)
  fields = [numeric_field(field) for field in schema.fields]
  return (
    TableSchema(fields, schema.privacy_unit),
    *(
      table.assign(
        **{f.name: typed(table[f.name], f, (), True).to_numpy() for f in times}
      )
      for table in tables
    ),
  )


def numeric_field(field: Field) -> Field:
  """Returns a field with a type of time as an integer of units."""
  if not field.is_temporal:
    return field
  return Field(field.name, 'integer', *field.grid, required=field.required)


def category_codes(series: pd.Series, field: Field) -> np.ndarray:
  """Returns int64 codes `[n]` into `declared_values(field)`, -1 if missing."""
  missing = series.isna().to_numpy(dtype=bool)
  text = series.astype(object).where(~missing, '').astype(str)
  if field.type == 'boolean':
    codes = text.str.lower().map(_BOOLEANS).fillna(-1).to_numpy(np.int64)
  else:
    names = [str(value) for value in field.enum]
    codes = pd.Index(names).get_indexer(text).astype(np.int64)
  return np.where(missing, -1, codes)


def coded(field: Field, *tables: pd.DataFrame) -> list[np.ndarray]:
  """Returns a column of each table: numbers, or codes of categories."""
  if field.is_numeric:
    return [numbers(table[field.name]) for table in tables]
  return [category_codes(table[field.name], field) for table in tables]


def bin_edges(values: np.ndarray, max_bins: int) -> np.ndarray:
  """Cuts the real line into at most `max_bins` bins of similar mass.

  Cuts fall midway between neighbouring distinct values, so that a value that
  many rows have lies well inside its bin, with synthetic values near it.
  Returns increasing inner edges, `[k]` with `k < max_bins`, for
  `np.searchsorted`; none if there are fewer than two distinct values.

  >>> bin_edges([0., 0., 0., 1., 5.], 8).tolist()
  [0.5, 3.0]
  """
  values = np.asarray(values, np.float64)
  distinct, counts = np.unique(values[np.isfinite(values)], return_counts=True)
  if len(distinct) < 2:
    return np.empty(0)
  last = np.arange(len(distinct) - 1)
  if len(distinct) > max_bins:
    share = np.cumsum(counts) / counts.sum()
    last = np.searchsorted(share, np.arange(1, max_bins) / max_bins)
    last = np.unique(np.minimum(last, len(distinct) - 2))
  return (distinct[last] + distinct[last + 1]) / 2


def common_bins(
  real: pd.Series, synthetic: pd.Series, field: Field, max_bins: int = 32
) -> tuple[np.ndarray, np.ndarray, int]:
  """Codes one column of two tables by the same bins.

  Each category and each number of an enum is a bin. Other numbers are cut by
  `bin_edges` of the real column; one that is constant has a bin as wide as that
  part of the range about its value. Missing values have the last bin.
  Returns `(real_codes [n], synthetic_codes [m], num_bins)`.
  """
  if not field.is_numeric:
    size = len(declared_values(field))
    codes = [category_codes(column, field) for column in (real, synthetic)]
  else:
    columns = [numbers(column) for column in (real, synthetic)]
    edges = (
      bin_edges(declared_values(field), len(field.enum))
      if field.enum
      else bin_edges(columns[0], max_bins)
    )
    if not len(edges) and not field.enum:
      edges = _around(columns[0], field, max_bins)
    size = len(edges) + 1
    codes = [
      np.where(np.isnan(column), -1, np.searchsorted(edges, column))
      for column in columns
    ]
  return (*(np.where(code < 0, size, code) for code in codes), size + 1)


def _around(values, field, bins):
  values = values[np.isfinite(values)]
  if not len(values):
    return np.empty(0)
  half = (field.maximum / 2 - field.minimum / 2) / bins
  return values[0] + np.array([-half, half])


def common_shares(
  real: pd.Series, synthetic: pd.Series, field: Field
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the shares of both columns in the bins of `common_bins`."""
  *codes, size = common_bins(real, synthetic, field)
  return tuple(np.bincount(c, minlength=size) / len(c) for c in codes)
