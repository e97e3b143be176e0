"""A table against a schema: refused, or with declared values in their place."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfdpflows.tabular import values

if TYPE_CHECKING:
  from tfdpflows.tabular.schema import Field, TableSchema


def validated(
  schema: TableSchema, df: pd.DataFrame, out_of_range: str, fitting: bool
) -> pd.DataFrame:
  """Returns `df` with the columns and types of `schema`; see its `validate`."""
  if out_of_range not in ('error', 'clip'):
    raise ValueError(
      f"out_of_range is {out_of_range!r}; it must be 'error' or 'clip'."
    )
  clip = out_of_range == 'clip'
  names = [str(name) for name in values.checked_names(df)]
  _check_complete(schema, names)
  for name in names:
    if name not in schema.names:
      raise ValueError(
        f'The schema has no field {name!r}; describe it, or drop the column.'
      )
  if fitting and len(df) < 2:
    raise ValueError(
      'The table has one row; a distribution needs at least two.'
    )
  columns = {}
  for field in schema.fields:
    marks = field.from_data if fitting else ()
    column = _typed(df.iloc[:, names.index(field.name)], field, marks, clip)
    if fitting:
      _check_informative(column, field, clip)
    columns[field.name] = _declared(column, field, marks, clip)
  return pd.DataFrame(columns)


def public_part(schema: TableSchema, df: pd.DataFrame) -> pd.DataFrame:
  """Returns what `schema` says of `df` without its marks; see there."""
  names = [str(name) for name in df.columns]
  _check_complete(schema, names)
  columns = {}
  for field in schema.fields:
    column = df.iloc[:, names.index(field.name)]
    column = _typed(column, field, field.from_data, clip=True)
    columns[field.name] = _declared(column, field, field.from_data, clip=True)
  return pd.DataFrame(columns)


def _check_complete(schema, names):
  for name in schema.names:
    if name not in names:
      raise ValueError(
        f'The table has no column {name!r}; add it, or remove the field from '
        f'the schema. The table has {", ".join(map(repr, names))}.'
      )


def _check_informative(column, field, clip):
  if not clip and column.isna().all():
    raise ValueError(
      f'Column {field.name!r} has no values, only missing ones; drop the '
      'column and its field.'
    )
  if field.is_constant and field.required and not field.from_data:
    warnings.warn(
      f'Column {field.name!r} is declared to be constant; it is copied to the '
      'synthetic table and nothing can be learned from it.',
      stacklevel=4,
    )


def _typed(
  column: pd.Series, field: Field, marks: Collection[str], clip: bool
) -> pd.Series:
  """The column in its type; as text where that is marked."""
  enum = () if 'enum' in marks else field.enum or ()
  if 'type' in marks:
    return values.typed(column, 'string', field.name, clip=True)
  return values.typed(column, field.type, field.name, enum, clip)


def _declared(column, field, marks, clip):
  """The column with values that are declared and not marked."""
  if 'type' in marks:
    return column
  if clip:
    column = _clipped(column, field, marks)
  else:
    _check_declared(column, field, marks)
  if not field.required or 'required' in marks:
    return column
  missing = column.isna().to_numpy()
  if missing.any():
    if not clip:
      row = values.name_row(np.flatnonzero(missing)[0])
      raise ValueError(
        f'Column {field.name!r}, {row}: the value is missing but the field is '
        'required; set "required" to false, fill the value in, or set '
        'out_of_range to clip.'
      )
    if {'minimum', 'maximum', 'enum'} & set(marks):
      return column  # There is no public value to stand in.
    column = column.where(~missing, _stand_in(field))
  dtype = {'integer': 'int64', 'boolean': 'bool'}.get(field.type)
  return column.astype(dtype) if dtype else column


def _range(field, marks):
  return (
    -math.inf if 'minimum' in marks else field.minimum,
    math.inf if 'maximum' in marks else field.maximum,
  )


def _undeclared(column, field):
  """Which values are none of the enum, bool `[n]`."""
  present = ~column.isna().to_numpy()
  return present & ~column.isin(field.categories).to_numpy(bool)


def _check_declared(column, field, marks):
  if field.categories is None:
    low, high = _range(field, marks)
    number = column.to_numpy(np.float64, na_value=np.nan)
    outside = (number < low) | (number > high)
    said = f'is outside [{low}, {high}]; widen the bounds'
  elif 'enum' not in marks:
    outside = _undeclared(column, field)
    said = 'is not in the enum; add it to the enum'
  else:
    return
  if outside.any():
    row = int(np.flatnonzero(outside)[0])
    raise ValueError(
      f'Column {field.name!r}, {values.name_row(row)}: {column.iloc[row]!r} '
      f'{said}, or set out_of_range to clip.'
    )


def _clipped(column, field, marks):
  if field.categories is None:
    low, high = _range(field, marks)
    # One side after the other: an infinite bound would make floats of integers.
    if math.isfinite(low):
      column = column.clip(lower=low)
    return column.clip(upper=high) if math.isfinite(high) else column
  if 'enum' in marks:
    return column
  outside = _undeclared(column, field)
  if not field.is_numeric:
    return column.mask(pd.Series(outside))
  nearest = _nearest(column[outside].to_numpy(np.float64), field.enum)
  column = column.copy()
  column[outside] = nearest.astype(
    np.int64 if field.type == 'integer' else np.float64
  )
  return column


def _nearest(number, enum):
  enum = np.sort(np.asarray(enum, np.float64))
  middle = (enum[1:] + enum[:-1]) / 2
  return enum[np.searchsorted(middle, number)]


def _stand_in(field):
  if field.categories is not None:
    return field.categories[0]
  middle = field.minimum / 2 + field.maximum / 2  # Their sum may overflow.
  return int(middle) if field.type == 'integer' else middle
