"""Parses columns into the types of a schema, and infers these types."""

from __future__ import annotations

import datetime
import decimal
import math
import numbers
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pandas as pd

from tfdpflows.tabular.dialect import MISSING, PLAIN, CellFormat
from tfdpflows.tabular.times import TimeScale

# 1 and 0 are numbers before they are booleans.
_NO_WORDS = ('1', '0')
# More digits than one after a leading zero are a code, as in postal codes, and
# so are more digits than a float has.
_CODE = re.compile(r'^[+-]?(0\d|\d{16,}$)')
_INTEGER = re.compile(r'\s*[+-]?\d{1,15}\s*', re.ASCII)
# Beside a number these are no currency or unit: sentences, and codes as A12.
_NO_UNIT = re.compile(r'(?:[^\W\d_].*){5}|(?<![^\W\d_])[^\W\d_]\d', re.DOTALL)
# Whole numbers as floats are written.
_WHOLE = re.compile(r'^([+-]?\d+)\.0*$')
# More digits after the decimal point come from arithmetic.
_MOST_DECIMALS = 6
# Whole numbers up to this are floats.
_LARGEST_WHOLE = 2**53
_DIGITS = re.compile('[0-9]+')
_HALF = re.compile('[\ud800-\udfff]')


class CellError(ValueError):
  """A cell that cannot be used.

  Args:
    column: name of its column.
    row: number of its row.
    problem: what is wrong, and what to do.
    line: the line of a CSV file where the row is, if it is of one.

  Attributes:
    column: see above, as the others.
    row: see above.
    problem: see above.
  """

  def __init__(
    self, column: str, row: int, problem: str, line: int | None = None
  ):
    where = '' if line is None else f' (line {line} of a CSV file)'
    super().__init__(f'Column {column!r}, row {row + 1}{where}: {problem}')
    self.column, self.row, self.problem = column, int(row), problem

  def in_file(
    self, line_of: Callable[[int], int | None] | None, first: int = 0
  ) -> CellError:
    """Returns the error for a file, of which it names the line if it has any.

    Args:
      line_of: `Part.line_of` of the file.
      first: number of the row of the file, from 0, that it counts from.
    """
    row = self.row + first
    line = None if line_of is None else line_of(row)
    return CellError(self.column, row, self.problem, line)


def columns_of(df: pd.DataFrame) -> dict[str, pd.Series]:
  """Returns the columns of a table by name; of two with one, the first."""
  found = {}
  for i, name in enumerate(df.columns):
    found.setdefault(str(name), df.iloc[:, i])
  return found


def checked_columns(
  df: pd.DataFrame, allow_empty: bool = False
) -> dict[str, pd.Series]:
  """Returns the columns of a table that has rows, all of different names."""
  names = [str(name) for name in df.columns]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(f'Two columns are named {name!r}; rename one.')
  if not names:
    raise ValueError('The table has no columns; give it a header and rows.')
  if not len(df) and not allow_empty:
    raise ValueError('The table has no rows; give it at least two.')
  return columns_of(df)


def is_missing(
  column: pd.Series,
  declared: Collection = (),
  words: Collection[str] = MISSING,
) -> np.ndarray:
  """Returns bool `[n]`: NaN, or a word for missing that is not declared.

  Cells that are numbers are missing too where a word is that number.
  """
  try:
    missing = np.array(column.isna(), bool)
  except Exception:  # Of decimals that refuse to be compared.
    missing = np.array([_is_blank(v) for v in _objects(column)], bool)
  words = {word for word in words if word not in declared}
  numbers = missing_numbers(words, declared)
  if is_text(column):

    def is_word(value):
      if type(value) is str:
        return value in words
      return bool(numbers) and _number_of(value) in numbers

    missing = missing | np.array(_each(_objects(column), is_word), bool)
  elif numbers and _holds_numbers(column):
    found = column[~missing].to_numpy(np.float64)
    missing[~missing] = np.isin(found, numbers)
  return missing


def missing_numbers(
  words: Collection[str], declared: Collection = ()
) -> list[float]:
  """Returns the numbers that stand for a missing value, a list."""
  found = {_number_of(word) for word in words} - {*map(_number_of, declared)}
  return [number for number in found if math.isfinite(number)]


def _is_blank(value):
  try:
    return pd.api.types.is_scalar(value) and bool(pd.isna(value))
  except Exception:
    return False


def is_text(column: pd.Series) -> bool:
  """Whether a column may hold strings, whatever pandas calls them."""
  return isinstance(column.dtype, pd.CategoricalDtype) or (
    getattr(column.dtype, 'kind', 'O') == 'O'
  )


def inferred(
  column: pd.Series, name: str, cells: CellFormat = PLAIN
) -> tuple[str, pd.Series]:
  """Returns the type of a column, and the column in that type.

  Raises:
    ValueError: if all values are missing.
  """
  missing = is_missing(column, (), cells.missing_values)
  if missing.all():
    raise ValueError(
      f'Column {name!r} has no values, only missing ones; drop the column.'
    )
  column = column.reset_index(drop=True)
  if is_text(column):
    kind = _kind_of_words(set(_texts(column[~missing], cells)), cells)
  elif pd.api.types.is_bool_dtype(column.dtype):
    kind = 'boolean'
  elif _holds_numbers(column):
    present = column[~missing].to_numpy(np.float64)
    if not np.isfinite(present).all():
      row = int(np.flatnonzero(~missing)[~np.isfinite(present)][0])
      raise CellError(name, row, 'the value is infinite; replace it.')
    whole = (np.floor(present) == present).all()
    kind = 'integer' if whole else 'number'
  else:
    raise ValueError(
      f'Column {name!r} has type {column.dtype}; convert it to numbers or '
      'strings, or drop it.'
    )
  return kind, typed(column, kind, name, cells=cells)


def _kind_of_words(words, cells):
  found = {_kind_of(word, cells) for word in words}
  if found == {'boolean'}:
    return 'boolean'
  if found & {'boolean', 'string'}:
    return 'string'
  return 'number' if 'number' in found else 'integer'


def _kind_of(word, cells):
  is_word = word in cells.true_values or word in cells.false_values
  if is_word and word not in _NO_WORDS:
    return 'boolean'
  if word is not None and not cells.bare_number and _NO_UNIT.search(word):
    return 'string'
  word = None if word is None else cells.plain(word)
  if word is None or _CODE.match(word):
    return 'string'
  if _INTEGER.fullmatch(word):
    return 'integer'
  return 'number' if math.isfinite(_number_of(word)) else 'string'


def kinds(column: pd.Series, cells: CellFormat = PLAIN) -> np.ndarray:
  """Returns the apparent type of each cell of a column of strings.

  It is 'boolean', 'integer', 'number', 'string', or `None` if missing.
  """
  missing = is_missing(column, (), cells.missing_values)
  words = _texts(column[~missing], cells)
  known = {word: _kind_of(word, cells) for word in set(words)}
  found = np.full(len(column), None, object)
  found[~missing] = [known[word] for word in words]
  return found


def typed(
  column: pd.Series,
  kind: str,
  name: str,
  declared: Collection = (),
  clip: bool = False,
  cells: CellFormat = PLAIN,
  scale: TimeScale | None = None,
) -> pd.Series:
  """Returns a column in a type of the schema, missing values included.

  Each cell is converted by itself: neither other cells matter, nor the type
  that pandas gave to the column because of them.

  Args:
    column: `pandas.Series`, of strings or typed.
    kind: 'integer', 'number', 'string', 'boolean', or a type of time.
    name: its name, for messages.
    declared: values that are not taken for missing.
    clip: whether to refuse no cell: numbers are rounded to integers, infinite
      ones kept for a bound, and all else that does not fit is missing.
    cells: how texts stand for values.
    scale: the `TimeScale` of a type of time.

  Returns:
    A `Series` of type `Int64`, `float64`, `object` or `boolean`, missing
    values as NA, indexed from 0. Of a type of time it has the whole units.

  Raises:
    ValueError: naming the first cell that does not fit.
  """
  column = column.reset_index(drop=True)
  missing = is_missing(column, declared, cells.missing_values)
  present = column[~missing]
  if kind == 'string':
    result = pd.Series(np.nan, index=column.index, dtype=object)
    words = _with_zeros(_texts(present, cells), present, declared)
    unreadable = np.array([word is None for word in words], bool)
    if not clip:
      _refuse(unreadable, present, kind, name, 'give it as text')
    result[~missing] = np.array([*words, None], object)[:-1]
    result[result.isna()] = np.nan
    return result.rename(name)
  if kind == 'boolean':
    codes = _booleans(present, cells)
    if not clip:
      fix = (
        f'write {cells.true_values[0]} or {cells.false_values[0]}, or list it '
        'in "trueValues", "falseValues" or "missingValues" of the field'
      )
      _refuse(np.isnan(codes), present, kind, name, fix)
    missing[~missing] = np.isnan(codes)
    return _masked(codes[~np.isnan(codes)].astype(bool), missing, name)
  if scale is not None:
    counts, bad = scale.counts(present, clip)
    if not clip:
      _refuse(bad, present, kind, name, _time_fix(scale))
    missing[~missing] = bad
    return _masked(counts[~bad], missing, name)
  number = _numbers(present, cells)
  if not clip:
    fix = (
      'correct it, list it in "missingValues" of the schema with all other '
      'words for missing values, say how numbers are written ("decimalChar", '
      f'"groupChar", "bareNumber"), or declare another type than {kind}'
    )
    _refuse(~np.isfinite(number), present, kind, name, fix)
    if kind == 'integer':
      _refuse(np.floor(number) != number, present, kind, name, fix)
  all_numbers = np.full(len(column), np.nan)
  # -0.0 is 0.0: one row must not decide how zero is written.
  all_numbers[~missing] = number + 0.0
  absent = missing_numbers(cells.missing_values, declared)
  all_numbers[np.isin(all_numbers, absent)] = np.nan
  if kind == 'number':
    return pd.Series(all_numbers, name=name)
  missing = np.isnan(all_numbers)
  whole = np.clip(np.rint(all_numbers[~missing]), -(2.0**62), 2.0**62)
  return _masked(whole.astype(np.int64), missing, name)


def _masked(present, missing, name):
  """A column of whole numbers or booleans, NA where they are missing."""
  found = np.zeros(len(missing), present.dtype)
  found[~missing] = present
  is_bool = present.dtype == bool
  array = pd.arrays.BooleanArray if is_bool else pd.arrays.IntegerArray
  return pd.Series(array(found, missing), name=name)


def _time_fix(scale):
  if scale.type == 'duration':
    return 'write it as P1DT2H3M4S'
  if scale.type == 'time':
    return 'write it as ISO 8601 has it, such as 09:05 or 09:05:30'
  zone = 'has no timezone' if scale.timezone is None else 'has a timezone'
  zone = f' The field {zone}.' if scale.type == 'datetime' else ''
  form = f'as {scale.format} or ' if scale.format is not None else ''
  return f'write it {form}as ISO 8601 has it, or declare its "format".{zone}'[
    :-1
  ]


def decimals(numbers: pd.Series) -> int | None:
  """Returns the most digits after the point; `None` where they are noise.

  >>> decimals(pd.Series([170.2, 3.0])), decimals(pd.Series([1 / 3]))
  (1, None)
  """
  most = 0
  for number in numbers.unique().tolist():
    places = -decimal.Decimal(repr(number)).normalize().as_tuple().exponent
    most = max(most, places)
    # That many are the marks of arithmetic, not of a measurement.
    if most > _MOST_DECIMALS:
      return None
  return most


def identifiers(texts: pd.Series) -> pd.Series:
  """Returns texts without blanks around them, and whole numbers without '.0'.

  >>> identifiers(pd.Series([' 7', '7.0', '007', np.nan])).tolist()
  ['7', '7', '007', nan]
  """
  known = {
    text: _WHOLE.sub(r'\1', text.strip()) for text in set(texts.dropna())
  }
  return texts.map(lambda text: known.get(text, text))


def unlike_others(column: pd.Series, texts: pd.Series) -> np.ndarray:
  """Returns bool `[n]`: identifiers whose text may be that of others too.

  These are numbers whose digits a float has not (one missing value makes floats
  of a whole column of integers, so that the type of a column cannot decide),
  and texts with characters that could not be read.

  Args:
    column: `[n]` cells.
    texts: their texts, as `identifiers` returns them.

  >>> cells = pd.Series([7, 2**53 + 1, '9007199254740993', 'a' + chr(0)])
  >>> unlike_others(cells, typed(cells, 'string', 'who')).tolist()
  [False, True, False, True]
  """
  largest = _first_rounded(column.dtype)
  inexact = [_is_inexact(value, largest) for value in _objects(column)]
  return unreadable(texts) | np.array(inexact, bool)


def unreadable(texts: pd.Series) -> np.ndarray:
  """Returns bool `[n]`: texts with a character that was none."""
  return np.array(
    [isinstance(text, str) and '\ufffd' in text for text in texts], bool
  )


def is_rounded(value: Any, largest: int = _LARGEST_WHOLE) -> bool:
  """Whether a number may be a whole one that was rounded to it.

  Args:
    value: the number.
    largest: from where on that is so, of the column that it is from.

  >>> is_rounded(2.0**53 - 1), is_rounded(2.0**53)
  (False, True)
  >>> is_rounded(np.float32(2**24))
  True
  """
  own = _first_rounded(getattr(value, 'dtype', None))
  return abs(float(value)) >= min(largest, own)


def _first_rounded(dtype):
  """Returns from where on whole numbers may be others, rounded to a dtype."""
  dtype = getattr(dtype, 'numpy_dtype', dtype)  # Of pandas' own Float32.
  if isinstance(dtype, np.dtype) and dtype.kind == 'f':
    return min(2 ** (np.finfo(dtype).nmant + 1), _LARGEST_WHOLE)
  return _LARGEST_WHOLE


def _is_inexact(value, largest):
  if isinstance(value, (str, bytes, bool, np.bool_)):
    return False
  try:
    value = _real(value)
    if not isinstance(value, (numbers.Real, decimal.Decimal)):
      return False
    if isinstance(value, np.timedelta64):  # A whole number to NumPy alone.
      return False
    # This one itself may be the next one, rounded.
    if is_rounded(value, largest):
      return True
    found = float(value)
    if isinstance(value, decimal.Decimal):
      return decimal.Decimal(repr(found)) != value
    return bool(value != found)
  except Exception:  # As for texts.
    return True


def beyond_floats(column: pd.Series) -> np.ndarray:
  """Returns bool `[n]`: numbers with digits that a float has not.

  Of floats these are all that may have been rounded to what they are.

  >>> beyond_floats(pd.Series([2**53, 2**53 + 1])).tolist()
  [False, True]
  >>> beyond_floats(pd.Series([2**24 - 1, 2**24 + 1], dtype='float32')).tolist()
  [False, True]
  """
  largest = _first_rounded(column.dtype)
  found = [
    is_rounded(value, largest)
    if isinstance(value, (float, np.floating))
    else _is_large(value)
    for value in _objects(column)
  ]
  return np.array(found, bool)


def _is_large(value):
  # By no absolute value: NumPy warns that its least integers have none.
  return isinstance(value, numbers.Integral) and (
    value > _LARGEST_WHOLE or value < -_LARGEST_WHOLE
  )


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
  # One by one: of several NumPy asks each whether it is an array.
  for place, cell in enumerate(cells):
    found[place] = str.__str__(cell) if issubclass(type(cell), str) else cell
  return found


def _each(cells, function):
  """Returns what a function makes of cells, a list; of equal texts once."""
  # Other cells may hold what can neither be compared nor hashed.
  if pd.api.types.infer_dtype(cells, skipna=False) != 'string':
    return [function(value) for value in cells]
  # pandas takes texts for equal that are so up to a NUL character.
  known = {text: function(text) for text in set(cells)}
  return [known[text] for text in cells]


def _texts(present, cells=PLAIN):
  """The texts of cells, a list; `None` for what has none."""

  # A file of the same format has these texts in place of the values.
  def text_of(value):
    if has_words and isinstance(value, (bool, np.bool_)):
      return (cells.true_values if value else cells.false_values)[0]
    text = _text_of(value)
    is_float = isinstance(_real(value), (float, np.floating))
    return text.replace('.', cells.decimal_char) if is_float and text else text

  has_words = (cells.true_values, cells.false_values) != (
    PLAIN.true_values,
    PLAIN.false_values,
  )
  is_plain = cells.decimal_char == '.' and not has_words
  return _each(_objects(present), _text_of if is_plain else text_of)


def _with_zeros(words, cells, declared):
  """Gives numbers the zeros before them that the declared digits have.

  pandas reads a column of codes such as 01067 as numbers, 1067.
  """
  widths = {len(word) for word in declared}
  if len(widths) != 1 or not all(map(_DIGITS.fullmatch, declared)):
    return words
  (width,) = widths
  padded = {word: word.zfill(width) for word in words if word}
  return [
    padded[word]
    if word and not isinstance(cell, str) and padded[word] in declared
    else word
    for word, cell in zip(words, _objects(cells))
  ]


def _text_of(value):
  try:
    # One missing value makes floats of a whole column of integers: no other
    # row may read differently for it, nor lose digits.
    value = _real(value)
    if _is_large(value):
      value = _rounded(value)
    if isinstance(value, (float, np.floating)):
      value = float(value)
      value = int(value) if value.is_integer() else value
    # As pandas has them in a column of nothing else.
    if isinstance(value, (np.datetime64, datetime.datetime)):
      value = pd.Timestamp(value)
    elif isinstance(value, (np.timedelta64, datetime.timedelta)):
      value = pd.Timedelta(value)
    if isinstance(value, pd.Interval):
      value = _interval(value)
    text = str.__str__(str(value))
    # The hashes of pandas end at a NUL character.
    text = text.replace('\0', '\ufffd')
    # Half of a character has no UTF-8, and files and hashes need it.
    return text if text.isascii() else _HALF.sub('\ufffd', text)
  except Exception:  # Whatever a cell is, a table is not refused for it.
    return None


def _rounded(value):
  """A whole number with the digits that a float has."""
  try:
    return int(float(value))
  except OverflowError:  # No column of floats could hold it.
    return value


def _interval(value):
  """An interval with whole numbers as ends, or else with floats."""
  ends = value.left, value.right
  if not all(isinstance(end, numbers.Real) for end in ends):
    return value
  ends = [float(end) for end in ends]
  kind = int if all(end.is_integer() for end in ends) else float
  return pd.Interval(*map(kind, ends), closed=value.closed)


def _booleans(present, cells):
  if _holds_numbers(present):
    number = _numbers(present, cells)
    return np.where((number == 0) | (number == 1), number, np.nan)
  words, plain = (
    {**dict.fromkeys(f.true_values, 1.0), **dict.fromkeys(f.false_values, 0.0)}
    for f in (cells, PLAIN)
  )

  def boolean_of(value):
    known = words if isinstance(value, str) else plain
    return known.get(_text_of(value), np.nan)

  return np.array(_each(_objects(present), boolean_of), np.float64)


def _numbers(present, cells):
  """The numbers of cells, float64 `[n]`: infinite ones too, or NaN."""
  if _holds_numbers(present):
    with np.errstate(over='ignore'):  # Of floats wider than these.
      return present.to_numpy(np.float64)

  def number_of(value):
    if type(value) is str:
      value = cells.plain(value)
    return _number_of(value)

  return np.array(_each(_objects(present), number_of), np.float64)


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
    raise CellError(
      name,
      present.index[place],
      f'{present.iloc[place]!r} is no {kind}; {fix}.',
    )
