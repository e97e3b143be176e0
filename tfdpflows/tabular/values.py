"""Values of table columns: parsing, type inference, checks against a schema."""

from __future__ import annotations

import os
import re
import tempfile
import warnings

import numpy as np
import pandas as pd

MISSING = ('', 'NA', 'NaN', 'null')
_TRUE = ('true', 'True', 'TRUE', '1')
_FALSE = ('false', 'False', 'FALSE', '0')
_WORDS = ('true', 'True', 'TRUE', 'false', 'False', 'FALSE')
# More digits than one after a leading zero is a code, such as a postal code.
_CODE = re.compile(r'^[+-]?0\d')


def write_aside(path, write):
  """Writes a file under another name first, then renames it.

  Args:
    path: path of the file.
    write: called with a binary file; what it writes is the file's content.
  """
  path = os.fspath(path)
  folder = os.path.dirname(os.path.abspath(path))
  handle, aside = tempfile.mkstemp(
    dir=folder, prefix=os.path.basename(path) + '.', suffix='.partial'
  )
  try:
    with os.fdopen(handle, 'wb') as file:
      write(file)
      file.flush()
      os.fsync(file.fileno())
    # mkstemp makes files private; this one gets what open() would have given.
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(aside, 0o666 & ~mask)
    os.replace(aside, path)
  except BaseException:
    os.unlink(aside)
    raise


def where(row):
  """Names a row by its number among the data and by its line in a CSV file."""
  return f'row {row + 1} (line {row + 2} of a CSV file)'


def checked_names(df, allow_empty=False):
  """Returns the names of the columns of a table that has some rows."""
  names = [str(name) for name in df.columns]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(f'Two columns are named {name!r}; rename one.')
  if not names:
    raise ValueError('The table has no columns; give it a header and rows.')
  if not len(df) and not allow_empty:
    raise ValueError('The table has no rows; give it at least two.')
  return list(df.columns)


def is_missing(column, declared=()):
  """Returns bool `[n]`: NaN, or a word for missing that is not declared."""
  missing = column.isna().to_numpy()
  if is_text(column):
    words = [word for word in MISSING if word not in declared]
    missing = missing | column.isin(words).to_numpy()
  return missing


def is_text(column):
  """Whether a column may hold strings, whatever pandas calls them."""
  return isinstance(
    column.dtype, (pd.StringDtype, pd.CategoricalDtype)
  ) or pd.api.types.is_object_dtype(column.dtype)


def inferred(column, name):
  """Returns the type of a column and the column in that type.

  Args:
    column: `pandas.Series`, of strings or typed.
    name: its name, for messages.

  Returns:
    A type of the schema, and a `Series` of that type with missing values.

  Raises:
    ValueError: if all values are missing.
  """
  missing = is_missing(column)
  if missing.all():
    raise ValueError(
      f'Column {name!r} has no values, only missing ones; drop the column.'
    )
  column = column.reset_index(drop=True)
  if is_text(column):
    words = column[~missing].astype(str).unique().tolist()
    kind = _kind_of_words(words)
  elif pd.api.types.is_bool_dtype(column.dtype):
    kind = 'boolean'
  elif pd.api.types.is_numeric_dtype(column.dtype):
    present = column[~missing].to_numpy(np.float64)
    if not np.isfinite(present).all():
      row = int(np.flatnonzero(~missing)[~np.isfinite(present)][0])
      raise ValueError(
        f'Column {name!r}, {where(row)}: the value is infinite; replace it.'
      )
    whole = (np.floor(present) == present).all()
    kind = 'integer' if whole else 'number'
  else:
    raise ValueError(
      f'Column {name!r} has type {column.dtype}; convert it to numbers or '
      'strings, or drop it.'
    )
  return kind, typed(column, kind, name)


def _kind_of_words(words):
  if set(words) <= set(_WORDS):
    return 'boolean'
  if any(_CODE.match(word) for word in words):
    return 'string'
  if all(_is_integer(word) for word in words):
    return 'integer'
  if all(_is_float(word) for word in words):
    return 'number'
  return 'string'


def _is_integer(word):
  return re.match(r'^\s*[+-]?\d{1,15}\s*$', word, re.ASCII) is not None


def _is_float(word):
  try:
    return np.isfinite(float(word)) and '_' not in word
  except ValueError:
    return False


def typed(column, kind, name, declared=()):
  """Returns a column in a type of the schema, missing values included.

  Args:
    column: `pandas.Series`, of strings or typed.
    kind: 'integer', 'number', 'string' or 'boolean'.
    name: its name, for messages.
    declared: values that are not taken for missing.

  Returns:
    A `Series` of type `Int64`, `float64`, `object` or `boolean`, missing
    values as NA, indexed from 0.

  Raises:
    ValueError: naming column, row and value of the first that does not fit.
  """
  column = column.reset_index(drop=True)
  missing = is_missing(column, declared)
  present = column[~missing]
  if kind == 'string':
    result = pd.Series(np.nan, index=column.index, dtype=object)
    result[~missing] = _as_text(present)
    return result.rename(name)
  if kind == 'boolean':
    codes = _booleans(present)
    _refuse(np.isnan(codes), present, kind, name, 'write true or false')
    result = pd.array(np.zeros(len(column), bool), dtype='boolean')
    result[~missing] = codes.astype(bool)
    result[missing] = pd.NA
    return pd.Series(result, name=name)
  number = _numbers(present)
  fix = f'correct it, or declare the column of another type than {kind}'
  _refuse(~np.isfinite(number), present, kind, name, fix)
  if kind == 'number':
    result = np.full(len(column), np.nan)
    result[~missing] = number
    return pd.Series(result, name=name)
  _refuse(np.floor(number) != number, present, kind, name, fix)
  result = pd.array(np.zeros(len(column), np.int64), dtype='Int64')
  result[~missing] = np.clip(number, -(2.0**62), 2.0**62).astype(np.int64)
  result[missing] = pd.NA
  return pd.Series(result, name=name)


def _as_text(present):
  present = present.astype(object)
  if pd.api.types.infer_dtype(present, skipna=False) == 'string':
    return present.to_numpy()
  return present.map(_text_of).to_numpy(object)


def _text_of(value):
  # One missing value makes floats of a whole column of integers: no other row
  # may read differently for it.
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  return str(value)


def _booleans(present):
  if pd.api.types.is_numeric_dtype(present.dtype):
    number = present.to_numpy(np.float64)
    return np.where((number == 0) | (number == 1), number, np.nan)
  table = dict.fromkeys(_TRUE, 1.0)
  table.update(dict.fromkeys(_FALSE, 0.0))
  return present.astype(object).map(_text_of).map(table).to_numpy(np.float64)


def _numbers(present):
  if pd.api.types.is_numeric_dtype(present.dtype):
    return present.to_numpy(np.float64)
  numbers = pd.to_numeric(present.astype(object), errors='coerce')
  return numbers.to_numpy(np.float64)


def _refuse(bad, present, kind, name, fix):
  if bad.any():
    place = int(np.flatnonzero(bad)[0])
    row = int(present.index[place])
    raise ValueError(
      f'Column {name!r}, {where(row)}: {present.iloc[place]!r} is no {kind}; '
      f'{fix}.'
    )


def validated(schema, df, out_of_range, fitting):
  """Returns `df` with the columns and types of `schema`; see its `validate`."""
  if out_of_range not in ('error', 'clip'):
    raise ValueError(
      f"out_of_range is {out_of_range!r}; it must be 'error' or 'clip'."
    )
  names = [str(name) for name in checked_names(df)]
  for name in schema.names:
    if name not in names:
      raise ValueError(
        f'The table has no column {name!r}; add it, or remove the field from '
        f'the schema. The table has {", ".join(map(repr, names))}.'
      )
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
    column = df.iloc[:, names.index(field.name)]
    column = typed(column, field.type, field.name, field.enum or ())
    if fitting:
      _check_informative(column, field)
    columns[field.name] = _validated_column(column, field, out_of_range)
  return pd.DataFrame(columns)


def _check_informative(column, field):
  if column.isna().all():
    raise ValueError(
      f'Column {field.name!r} has no values, only missing ones; drop the '
      'column and its field.'
    )
  if field.is_constant and field.required:
    warnings.warn(
      f'Column {field.name!r} is declared to be constant; it is copied to the '
      'synthetic table and nothing can be learned from it.',
      stacklevel=4,
    )


def _validated_column(column, field, out_of_range):
  missing = column.isna().to_numpy()
  column = _within(column, missing, field, out_of_range == 'clip')
  missing = column.isna().to_numpy()
  if not field.required:
    return column
  if missing.any():
    if out_of_range == 'error':
      row = int(np.flatnonzero(missing)[0])
      raise ValueError(
        f'Column {field.name!r}, {where(row)}: the value is missing but the '
        'field is required; set "required" to false, or fill the value in.'
      )
    column = column.where(~missing, _stand_in(field))
  dtype = {'integer': 'int64', 'boolean': 'bool'}.get(field.type)
  return column.astype(dtype) if dtype else column


def _within(column, missing, field, clip):
  if field.categories is not None:
    outside = ~missing & ~column.isin(field.categories).to_numpy(bool)
    said = 'is not in the enum'
    fix = 'add it to the enum, or set out_of_range to clip'
    if clip:
      if field.is_numeric:
        nearest = _nearest(column[outside].to_numpy(np.float64), field.enum)
        column = column.copy()
        column[outside] = nearest.astype(
          np.int64 if field.type == 'integer' else np.float64
        )
        return column
      return column.mask(pd.Series(outside))
  else:
    if clip:
      return column.clip(field.minimum, field.maximum)
    number = column.to_numpy(np.float64, na_value=np.nan)
    outside = (number < field.minimum) | (number > field.maximum)
    said = f'is outside [{field.minimum}, {field.maximum}]'
    fix = 'widen the bounds, or set out_of_range to clip'
  if outside.any():
    row = int(np.flatnonzero(outside)[0])
    raise ValueError(
      f'Column {field.name!r}, {where(row)}: {column.iloc[row]!r} {said}; '
      f'{fix}.'
    )
  return column


def _nearest(number, enum):
  enum = np.sort(np.asarray(enum, np.float64))
  middle = (enum[1:] + enum[:-1]) / 2
  return enum[np.searchsorted(middle, number)]


def _stand_in(field):
  if field.categories is not None:
    return field.categories[0]
  middle = field.minimum + (field.maximum - field.minimum) / 2
  return int(middle) if field.type == 'integer' else middle
