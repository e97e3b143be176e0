"""Values of table columns: parsing, type inference, checks against a schema."""

from __future__ import annotations

import datetime
import decimal
import math
import numbers
import re
import warnings

import numpy as np
import pandas as pd

MISSING = ('', 'NA', 'NaN', 'null')
_TRUE = ('true', 'True', 'TRUE', '1')
_FALSE = ('false', 'False', 'FALSE', '0')
_WORDS = ('true', 'True', 'TRUE', 'false', 'False', 'FALSE')
# More digits than one after a leading zero is a code, such as a postal code.
_CODE = re.compile(r'^[+-]?0\d')


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
  try:
    missing = np.array(column.isna(), bool)
  except Exception:  # Of decimals that refuse to be compared.
    missing = np.array([_is_blank(v) for v in _objects(column)], bool)
  if is_text(column):
    words = {word for word in MISSING if word not in declared}
    is_word = lambda value: type(value) is str and value in words
    missing = missing | np.array(_each(_objects(column), is_word), bool)
  return missing


def _is_blank(value):
  try:
    return pd.api.types.is_scalar(value) and bool(pd.isna(value))
  except Exception:
    return False


def is_text(column):
  """Whether a column may hold strings, whatever pandas calls them."""
  return isinstance(column.dtype, pd.CategoricalDtype) or (
    getattr(column.dtype, 'kind', 'O') == 'O'
  )


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
    kind = _kind_of_words(set(_texts(column[~missing])))
  elif pd.api.types.is_bool_dtype(column.dtype):
    kind = 'boolean'
  elif _holds_numbers(column):
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
  found = {_kind_of(word) for word in words}
  if found == {'boolean'}:
    return 'boolean'
  if found & {'boolean', 'string'}:
    return 'string'
  return 'number' if 'number' in found else 'integer'


def _kind_of(word):
  if word in _WORDS:
    return 'boolean'
  if word is None or _CODE.match(word):
    return 'string'
  if _is_integer(word):
    return 'integer'
  return 'number' if _is_float(word) else 'string'


def kinds(column):
  """Returns of which type every cell looks; see `TableSchema.kinds`."""
  missing = is_missing(column)
  words = _texts(column[~missing])
  known = {word: _kind_of(word) for word in set(words)}
  found = np.full(len(column), None, object)
  found[~missing] = [known[word] for word in words]
  return found


def _is_integer(word):
  return re.match(r'^\s*[+-]?\d{1,15}\s*$', word, re.ASCII) is not None


def _is_float(word):
  return bool(np.isfinite(_number_of(word)))


def typed(column, kind, name, declared=(), clip=False):
  """Returns a column in a type of the schema, missing values included.

  What a cell becomes depends on the cell alone: not on the others, nor on the
  type that pandas gave to the column for their sake.

  Args:
    column: `pandas.Series`, of strings or typed.
    kind: 'integer', 'number', 'string' or 'boolean'.
    name: its name, for messages.
    declared: values that are not taken for missing.
    clip: whether no cell is refused: numbers between whole ones are rounded,
      infinite ones kept for a bound, and all else that does not fit is missing.

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
    words = _texts(present)
    unreadable = np.array([word is None for word in words], bool)
    if not clip:
      _refuse(unreadable, present, kind, name, 'give it as text')
    result[~missing] = np.array([*words, None], object)[:-1]
    result[result.isna()] = np.nan
    return result.rename(name)
  if kind == 'boolean':
    codes = _booleans(present)
    if not clip:
      _refuse(np.isnan(codes), present, kind, name, 'write true or false')
    missing[~missing] = np.isnan(codes)
    result = pd.array(np.zeros(len(column), bool), dtype='boolean')
    result[~missing] = codes[~np.isnan(codes)].astype(bool)
    result[missing] = pd.NA
    return pd.Series(result, name=name)
  number = _numbers(present)
  if not clip:
    fix = f'correct it, or declare the column of another type than {kind}'
    _refuse(~np.isfinite(number), present, kind, name, fix)
    if kind == 'integer':
      _refuse(np.floor(number) != number, present, kind, name, fix)
  all_numbers = np.full(len(column), np.nan)
  # -0.0 is 0.0: one row must not decide how zero is written.
  all_numbers[~missing] = number + 0.0
  if kind == 'number':
    return pd.Series(all_numbers, name=name)
  missing = np.isnan(all_numbers)
  result = pd.array(np.zeros(len(column), np.int64), dtype='Int64')
  result[~missing] = np.clip(
    np.rint(all_numbers[~missing]), -(2.0**62), 2.0**62
  ).astype(np.int64)
  result[missing] = pd.NA
  return pd.Series(result, name=name)


def _holds_numbers(column):
  """Whether pandas says that all cells are real numbers or booleans."""
  dtype = column.dtype
  return not isinstance(dtype, pd.CategoricalDtype) and (
    getattr(dtype, 'kind', 'O') in tuple('biuf')
  )


def _objects(column):
  """The cells as Python has them, in an object array; texts as plain `str`."""
  cells = column.astype(object).to_numpy(object)
  found = np.empty(len(cells), object)
  # Classes of texts may compare and write themselves as they like, or fail to.
  found[:] = [
    str.__str__(cell) if issubclass(type(cell), str) else cell for cell in cells
  ]
  return found


def _each(cells, function):
  """Returns what a function makes of cells, a list; of equal texts once."""
  # Other cells may hold what can neither be compared nor hashed.
  if pd.api.types.infer_dtype(cells, skipna=False) != 'string':
    return [function(value) for value in cells]
  codes, distinct = pd.factorize(cells)
  found = np.empty(len(distinct), object)
  found[:] = [function(value) for value in distinct]
  return found[codes].tolist()


def _texts(present):
  """The texts of cells, a list; `None` for what has none."""
  return _each(_objects(present), _text_of)


def _text_of(value):
  try:
    # One missing value makes floats of a whole column of integers: no other
    # row may read differently for it.
    value = _real(value)
    if isinstance(value, (float, np.floating)):
      value = float(value)
      value = int(value) if value.is_integer() else value
    # As pandas has them in a column of nothing else.
    if isinstance(value, (np.datetime64, datetime.datetime)):
      value = pd.Timestamp(value)
    elif isinstance(value, (np.timedelta64, datetime.timedelta)):
      value = pd.Timedelta(value)
    text = str.__str__(str(value))
    # Half of a character has no UTF-8, and files and hashes need it.
    return text if text.isascii() else text.encode('utf-8', 'replace').decode()
  except Exception:  # Whatever a cell is, a table is not refused for it.
    return None


def _booleans(present):
  if _holds_numbers(present):
    number = _numbers(present)
    return np.where((number == 0) | (number == 1), number, np.nan)
  table = dict.fromkeys(_TRUE, 1.0)
  table.update(dict.fromkeys(_FALSE, 0.0))
  return np.array([table.get(t, np.nan) for t in _texts(present)], np.float64)


def _numbers(present):
  """The numbers of cells, float64 `[n]`: infinite ones too, or NaN."""
  if _holds_numbers(present):
    with np.errstate(over='ignore'):  # Of floats wider than these.
      return present.to_numpy(np.float64)
  return np.array(_each(_objects(present), _number_of), np.float64)


def _real(value):
  """A complex number as a real one if it is: others made it complex."""
  if isinstance(value, (complex, np.complexfloating)) and value.imag == 0:
    return value.real
  return value


def _number_of(value):
  """The number that a cell stands for, NaN if there is none."""
  try:
    # Python reads 1_000 and the digits of all scripts; tables do not mean them.
    if isinstance(value, str) and ('_' in value or not value.isascii()):
      return math.nan
    value = _real(value)
    if not isinstance(value, (str, numbers.Real, decimal.Decimal, np.bool_)):
      return math.nan
    if isinstance(value, np.timedelta64):  # A whole number to NumPy alone.
      return math.nan
    try:
      return float(value)
    except OverflowError:
      return math.inf if value > 0 else -math.inf
  except Exception:  # As for texts.
    return math.nan


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
    column = df.iloc[:, names.index(field.name)]
    marks = field.from_data if fitting else ()
    clip = out_of_range == 'clip'
    column = _declared(column, field, marks, clip)
    if fitting:
      _check_informative(column, field, clip)
    columns[field.name] = _validated_column(column, field, marks, clip)
  return pd.DataFrame(columns)


def public_part(schema, df):
  """Returns what a schema says of `df` without its marks; see there."""
  names = [str(name) for name in df.columns]
  _check_complete(schema, names)
  columns = {}
  for field in schema.fields:
    column = df.iloc[:, names.index(field.name)]
    column = _declared(column, field, field.from_data, True)
    columns[field.name] = _validated_column(
      column, field, field.from_data, True
    )
  return pd.DataFrame(columns)


def _check_complete(schema, names):
  for name in schema.names:
    if name not in names:
      raise ValueError(
        f'The table has no column {name!r}; add it, or remove the field from '
        f'the schema. The table has {", ".join(map(repr, names))}.'
      )


def _declared(column, field, marks, clip):
  """The column in its type; as text where that is marked."""
  declared = () if 'enum' in marks else field.enum or ()
  if 'type' in marks:
    return typed(column, 'string', field.name, (), clip=True)
  return typed(column, field.type, field.name, declared, clip)


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


def _validated_column(column, field, marks, clip):
  if 'type' in marks:
    return column
  missing = column.isna().to_numpy()
  column = _within(column, missing, field, marks, clip)
  missing = column.isna().to_numpy()
  if not field.required or 'required' in marks:
    return column
  if missing.any():
    if not clip:
      row = int(np.flatnonzero(missing)[0])
      raise ValueError(
        f'Column {field.name!r}, {where(row)}: the value is missing but the '
        'field is required; set "required" to false, fill the value in, or '
        'set out_of_range to clip.'
      )
    if {'minimum', 'maximum', 'enum'} & set(marks):
      return column  # There is no public value to stand in.
    column = column.where(~missing, _stand_in(field))
  dtype = {'integer': 'int64', 'boolean': 'bool'}.get(field.type)
  return column.astype(dtype) if dtype else column


def _within(column, missing, field, marks, clip):
  if field.categories is not None:
    if 'enum' in marks:
      return column
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
    low = -math.inf if 'minimum' in marks else field.minimum
    high = math.inf if 'maximum' in marks else field.maximum
    if clip:
      return _clipped(column, low, high)
    number = column.to_numpy(np.float64, na_value=np.nan)
    outside = (number < low) | (number > high)
    said = f'is outside [{low}, {high}]'
    fix = 'widen the bounds, or set out_of_range to clip'
  if outside.any():
    row = int(np.flatnonzero(outside)[0])
    raise ValueError(
      f'Column {field.name!r}, {where(row)}: {column.iloc[row]!r} {said}; '
      f'{fix}.'
    )
  return column


def _clipped(column, low, high):
  # One side after the other: an infinite bound would make floats of integers.
  if math.isfinite(low):
    column = column.clip(lower=low)
  return column.clip(upper=high) if math.isfinite(high) else column


def _nearest(number, enum):
  enum = np.sort(np.asarray(enum, np.float64))
  middle = (enum[1:] + enum[:-1]) / 2
  return enum[np.searchsorted(middle, number)]


def _stand_in(field):
  if field.categories is not None:
    return field.categories[0]
  middle = field.minimum / 2 + field.maximum / 2  # Their sum may overflow.
  return int(middle) if field.type == 'integer' else middle
