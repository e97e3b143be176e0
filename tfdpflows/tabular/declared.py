"""Columns whose values are those that their field declares.

A value that is not declared is refused, clipped, or added to the field.
"""

from __future__ import annotations

import dataclasses
import decimal
import math

import numpy as np
import pandas as pd

from tfdpflows.tabular import values
from tfdpflows.tabular.field import (
  LARGEST_WHOLE,
  Field,
  of_counts,
  stand_in,
  typed,
)


def declared(cells, field, marks, clip, fitting=True, whole=False):
  """Returns cells in the type of their field, with values that it declares.

  What is marked restricts none. `whole` says that these are all cells of a
  column to be learned from, which needs a value.
  """
  column = typed(cells, field, marks, clip)
  if whole:
    check_informative(not column.isna().all(), field)
  if 'type' in marks:
    return column
  column = _checked(column, field, marks, clip, fitting, cells)
  return of_counts(column, field) if field.is_temporal else column


def check_informative(any_present: bool, field: Field) -> None:
  """Refuses a column without values."""
  if not any_present:
    raise ValueError(
      f'Column {field.name!r} has no values, only missing ones; drop the '
      'column and its field, or set out_of_range to clip.'
    )


def _checked(column, field, marks, clip, fitting, cells):
  if clip:
    column = _clipped(column, field, marks)
  else:
    _check_declared(column, field, marks, fitting, cells)
  if not field.required or 'required' in marks:
    return column
  missing = column.isna().to_numpy()
  if missing.any():
    if not clip:
      raise values.CellError(
        field.name,
        np.flatnonzero(missing)[0],
        'the value is missing but the field is required; set "required" to '
        'false, fill the value in, or set out_of_range to clip.',
      )
    if {'minimum', 'maximum', 'enum'} & set(marks):
      return column  # There is no public value to stand in.
    column = column.where(~missing, stand_in(field))
  dtype = {'integer': 'int64', 'boolean': 'bool'}.get(field.type)
  return column.astype(dtype) if dtype else column


def _range(field, marks):
  low, high = field.minimum, field.maximum
  if field.is_temporal:
    low, high = field.grid
  return (
    -math.inf if 'minimum' in marks else low,
    math.inf if 'maximum' in marks else high,
  )


def _undeclared(column, field):
  """Which values are none of the enum, bool `[n]`."""
  present = ~column.isna().to_numpy()
  return present & ~column.isin(field.categories).to_numpy(bool)


def _check_declared(column, field, marks, fitting, cells):
  if field.categories is None:
    low, high = _range(field, marks)
    number = column.to_numpy(np.float64, na_value=np.nan)
    outside = (number < low) | (number > high)
    if field.is_temporal:
      low, high = field.minimum, field.maximum
    said, mend = f'is outside [{low}, {high}]', 'widen the bounds, or '
  elif 'enum' not in marks:
    outside = _undeclared(column, field)
    said, mend = 'is not in the enum', 'add it to the enum, or '
  else:
    return
  if outside.any():
    row = int(np.flatnonzero(outside)[0])
    cell = column.iloc[row]
    if field.is_temporal:
      cell = field.scale.values(np.array([cell])).astype(str)[0]
    # The schema of a model is settled.
    fix = f'{mend if fitting else ""}set out_of_range to clip'
    shown = repr(cell)
    if field.type == 'string':
      is_text = isinstance(cells.iloc[row], str)
      shown = shown if is_text else cell
      padded = _with_zeros(cell, field.enum)
      if padded is not None:
        said += f', which has {padded!r}'
        fix = f'write it so, {fix}'
        if not is_text:
          fix = (
            'numbers have lost their leading zeros: give the column as text, '
            'as tabular.read_table reads it'
          )
    raise values.CellError(field.name, row, f'{shown} {said}; {fix}.')


def _with_zeros(text, enum):
  """The category that is a text with further zeros before it, if any is."""
  if not text.isdigit():
    return None
  found = (
    category
    for category in enum
    if len(category) > len(text) and category.lstrip('0') == text.lstrip('0')
  )
  return next(found, None)


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


def widened(field, column, most):
  """Returns the field that declares the values of a column too.

  Of texts and other categories that it does not have, the `most` frequent ones.
  """
  column = typed(column, field, (), clip=True)
  changes = {}
  if field.enum is not None:
    further = column[_undeclared(column, field)]
    if field.is_numeric:
      number = further.to_numpy(np.float64)
      is_whole = field.type == 'integer'
      largest = LARGEST_WHOLE if is_whole else np.finfo(np.float64).max
      further = further[np.abs(number) <= largest]
    changes['enum'] = (*field.enum, *further.value_counts().index[:most])
  elif field.is_numeric:
    number = column.to_numpy(np.float64, na_value=np.nan)
    number = number[np.isfinite(number)]
    places = 0 if field.type == 'integer' else field.decimals
    if places is not None:
      largest = float(decimal.Decimal(LARGEST_WHOLE).scaleb(-places))
      # As rounded it may be above.
      largest = np.nextafter(largest, 0) if places else largest
      number = np.clip(number, -largest, largest)
    low = min([field.minimum, *number[number < field.minimum]])
    high = max([field.maximum, *number[number > field.maximum]])
    changes = {'minimum': low, 'maximum': high}
  elif field.is_temporal:
    low, high = field.grid
    counts = column.dropna().to_numpy(np.int64)
    ends = {'minimum': counts[counts < low], 'maximum': counts[counts > high]}
    changes = {
      name: of_counts(pd.Series(found), field)
      .sort_values()
      .astype(str)
      .iloc[at]
      for (name, found), at in zip(ends.items(), (0, -1))
      if len(found)
    }
  required = field.required and not column.isna().any()
  return dataclasses.replace(field, required=required, **changes)


def _nearest(number, enum):
  enum = np.sort(np.asarray(enum, np.float64))
  middle = (enum[1:] + enum[:-1]) / 2
  return enum[np.searchsorted(middle, number)]
