"""One column of a schema: its type, its range or categories, its cells."""

from __future__ import annotations

import dataclasses
import decimal
import difflib
import math
import numbers
from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd

from tfdpflows.tabular import times, values
from tfdpflows.tabular.dialect import PLAIN, WORDS, CellFormat, can_write

TYPES = ('integer', 'number', 'string', 'boolean', *times.TYPES)
_CONSTRAINTS = ('minimum', 'maximum', 'enum', 'required')
_MARKABLE = (*_CONSTRAINTS, 'decimals', 'type')
# Larger whole numbers have no exact float.
LARGEST_WHOLE = 2**53
# Of ten to the power of so many, and of their quotients, floats are exact.
_MOST_DECIMALS = 15
_OF_TIMES = ('unit', 'format', 'timezone')
_PROPERTIES = ('name', 'type', 'constraints', 'fromData', 'decimals')
_PROPERTIES += (*_OF_TIMES, *WORDS)
_LAST_MICROSECOND = 86_400_000_000 - 1
_EXAMPLES = {
  'date': '2026-11-25',
  'datetime': '2026-11-25T13:45:00',
  'time': '13:45:00',
  'duration': 'P1DT2H30M',
}


@dataclasses.dataclass(frozen=True)
class Field:
  """One column, in the vocabulary of Frictionless Table Schema.

  Attributes:
    name: name of the column.
    type: 'integer', 'number', 'string', 'boolean', 'date', 'datetime', 'time'
      or 'duration'.
    minimum: least value of a number, or of a type of time: as text of ISO 8601
      or in the `format`, or as a value such as a `datetime.date`. It is kept as
      text. By default a time is any of a day.
    maximum: largest value.
    enum: the allowed values; needed for strings, implied for booleans.
    required: whether a missing value is an error.
    decimals: number of digits after the decimal point: values are rounded
      to them, and are multiples of `10**-decimals` within the bounds; -3 is for
      thousands. By default a number has as many as float32 has room for.
    cells: the `CellFormat`, how a file writes the values.
    unit: of a type of time, see `times.TimeScale`.
    format: see there.
    timezone: see there.
    from_data: names of the constraints that were read off private data and
      are therefore no public statement yet; 'type' for the type.

  #### Example

  >>> from tfdpflows.tabular import Field
  >>> Field('age', 'integer', minimum=0, maximum=120).is_numeric
  True
  """

  name: str
  type: str
  minimum: float | str | None = None
  maximum: float | str | None = None
  enum: tuple | None = None
  required: bool = False
  from_data: tuple = ()
  decimals: int | None = None
  cells: CellFormat = PLAIN
  unit: str | None = None
  format: str | None = None
  timezone: str | None = None

  def __post_init__(self):
    if not isinstance(self.name, str) or not self.name:
      raise ValueError(f'Field name {self.name!r}; give a non-empty string.')
    if self.type not in TYPES:
      raise self._error(
        f'has type {self.type!r}; use one of {", ".join(TYPES)}'
      )
    object.__setattr__(self, 'from_data', tuple(self.from_data))
    for mark in self.from_data:
      if mark not in _MARKABLE:
        raise self._error(
          f'marks {mark!r} as read off the data; "fromData" may list '
          f'{", ".join(_MARKABLE)}'
        )
    if not isinstance(self.required, bool):
      raise self._error(f'has required={self.required!r}; write true or false')
    if self.enum is not None and not self.is_temporal:
      object.__setattr__(self, 'enum', self._checked_enum())
    if self.is_temporal:
      if self.format == 'default':
        object.__setattr__(self, 'format', None)
      self._check_times()
    elif self.is_numeric and self.enum is None:
      self._check_range()
    elif self.minimum is not None or self.maximum is not None:
      raise self._error(
        f'of type {self.type} has minimum or maximum beside an enum, or is no '
        'number; remove minimum and maximum'
      )
    if self.type == 'boolean':
      self._check_booleans()
    if self.decimals is not None:
      self._check_decimals()
    if self.type == 'string' and self.enum is None:
      raise self._error(
        'is a string without "enum"; list its categories or drop the column'
      )

  def _error(self, text):
    return ValueError(f'Field {self.name!r} {text}.')

  def _checked_enum(self):
    if isinstance(self.enum, str):
      raise self._error(
        f'has the text {self.enum!r} for its enum; give a list of the values'
      )
    if not self.enum:
      raise self._error('has an empty enum; list at least one value')
    for value in self.enum:
      ok = {
        'string': isinstance(value, str),
        'boolean': isinstance(value, bool),
        'integer': _is_number(value) and float(value).is_integer(),
        'number': _is_number(value),
      }[self.type]
      if not ok:
        raise self._error(
          f'of type {self.type} lists {value!r} in its enum; change the type '
          'or the value'
        )
      if self.type == 'integer' and abs(value) > LARGEST_WHOLE:
        raise self._error(
          f'lists the integer {value!r} in its enum, beyond 2**53; declare it '
          'a string, or drop it if it is an identifier'
        )
      if self.type == 'string' and not can_write(value, 'utf-8'):
        raise self._error(
          f'lists {value!r} in its enum, which is half of a character and '
          'cannot be written as UTF-8; correct it'
        )
      if self.type == 'string' and '\0' in value:
        raise self._error(
          f'lists {value!r} in its enum, with a NUL character, which cells '
          'are read without; write U+FFFD in its place'
        )
    # -0.0 is 0.0, here and in tables.
    convert = {'integer': int, 'number': lambda v: float(v) + 0.0}
    result = tuple(map(convert.get(self.type, lambda v: v), self.enum))
    if len(set(result)) != len(result):
      raise self._error('lists a value twice in its enum; remove one')
    return result

  def _check_booleans(self):
    cells = self.cells
    for word in (*cells.true_values, *cells.false_values):
      if word in cells.missing_values:
        raise self._error(
          f'takes {word!r} for a value, and for a missing one; remove it from '
          '"missingValues", which are empty cells, NA, NaN and null by default'
        )

  def _check_range(self):
    for key in ('minimum', 'maximum'):
      value = getattr(self, key)
      if value is None:
        raise self._error(
          f'of type {self.type} has no {key}; give minimum and maximum from '
          'public knowledge, or an enum'
        )
      if not _is_number(value):
        raise self._error(f'has {key} {value!r}; give a finite number')
      if self.type == 'integer' and not float(value).is_integer():
        raise self._error(f'has {key} {value!r}; give a whole number')
      if self.type == 'integer' and abs(value) > LARGEST_WHOLE:
        raise self._error(
          f'has the integer {key} {value!r}, beyond 2**53; declare it a '
          'number, or drop it if it is an identifier'
        )
      convert = int if self.type == 'integer' else float
      object.__setattr__(self, key, convert(value))
    if self.minimum > self.maximum:
      raise self._error(
        f'has minimum {self.minimum} above maximum {self.maximum}; swap them'
      )

  def _check_times(self):
    if self.enum is not None:
      raise self._error(
        f'of type {self.type} has an enum; give minimum and maximum, or '
        'declare it a string'
      )
    try:
      scale = self.scale
    except ValueError as error:
      raise self._error(str(error)) from error
    if self.type == 'time':
      # What there is in a day is no secret.
      for key, value in (('minimum', 0), ('maximum', _LAST_MICROSECOND)):
        if getattr(self, key) is None:
          text = scale.text(scale.floor(value))
          object.__setattr__(self, key, text)
    for key in ('minimum', 'maximum'):
      value = getattr(self, key)
      if value is None:
        raise self._error(
          f'of type {self.type} has no {key}; give minimum and maximum from '
          'public knowledge'
        )
      count = scale.count(value)
      if count is None:
        raise self._error(
          f'has {key} {value!r}, which is no {self.type}; write it as '
          f'{_EXAMPLES[self.type]}'
        )
      if key == 'minimum' and not scale.is_whole(value):
        raise self._error(
          f'has minimum {value!r}, which is no whole {scale.unit}; change it, '
          'or give a finer unit'
        )
      if abs(count) > scale.largest:
        raise self._error(
          f'has {key} {value!r}, beyond 2**53 {scale.unit}s or 2**62 '
          'microseconds; give a coarser unit, or a nearer bound'
        )
      try:
        text = scale.text(count, iso=True)
      except OverflowError:
        raise self._error(
          f'has {key} {value!r}, which is out of the calendar in UTC; give a '
          'nearer bound'
        ) from None
      object.__setattr__(self, key, text)
    if self.grid[0] > self.grid[1]:
      raise self._error(
        f'has minimum {self.minimum} above maximum {self.maximum}; swap them'
      )

  @property
  def is_temporal(self) -> bool:
    """Whether values are dates, datetimes, times or durations."""
    return self.type in times.TYPES

  @property
  def scale(self) -> times.TimeScale | None:
    """The `times.TimeScale` of a type of time, else `None`."""
    if not self.is_temporal:
      return None
    return times.TimeScale(self.type, self.unit, self.format, self.timezone)

  def _check_decimals(self):
    if self.type != 'number' or self.enum is not None:
      raise self._error(
        f'of type {self.type} has "decimals"; only numbers with minimum and '
        'maximum have, remove it'
      )
    if type(self.decimals) is not int or abs(self.decimals) > _MOST_DECIMALS:
      raise self._error(
        f'has decimals={self.decimals!r}; give a whole number of digits, at '
        f'most {_MOST_DECIMALS}'
      )
    if 'type' in self.from_data and 'decimals' not in self.from_data:
      raise self._error(
        'states its decimals, and marks its type as read off the data: state '
        'the type too, and remove "type" from its "fromData"'
      )
    first, last = self.grid
    if first > last:
      raise self._error(
        f'has no value with {self.decimals} decimals between '
        f'{self.minimum} and {self.maximum}; widen the bounds'
      )
    if max(abs(first), abs(last)) > LARGEST_WHOLE:
      raise self._error(
        f'has more than 2**53 values with {self.decimals} decimals; give fewer '
        'decimals or narrower bounds, or leave the column out if it is an '
        'identifier'
      )

  @property
  def grid(self) -> tuple[int, int] | None:
    """The first and last value as multiples of the step between values.

    `None` for numbers without a step, and for categories. The step of integers
    is 1, that of numbers `10**-decimals`, that of types of time their unit.

    >>> Field('price', 'number', 0.25, 9.99, decimals=1).grid
    (3, 99)
    """
    if self.categories is not None:
      return None
    if self.type == 'integer':
      return self.minimum, self.maximum
    if self.is_temporal:
      return self.scale.count(self.minimum), self.scale.count(self.maximum)
    if self.decimals is None:
      return None
    # Exactly, by the digits that are written: 0.3 is 3 tenths.
    low, high = (
      decimal.Decimal(repr(bound)).scaleb(self.decimals)
      for bound in (self.minimum, self.maximum)
    )
    return math.ceil(low), math.floor(high)

  def scaled(self, number: np.ndarray) -> np.ndarray:
    """Returns numbers of a field with a `grid` in steps, not rounded."""
    if self.decimals is None:
      return number
    scale = 10.0 ** abs(self.decimals)
    return number * scale if self.decimals >= 0 else number / scale

  def steps(self, column: pd.Series) -> np.ndarray:
    """Returns validated values of a field with a `grid` as multiples of it.

    Returns:
      float64 `[n]`, NaN where the value is missing.

    >>> price = Field('price', 'number', minimum=0, maximum=9, decimals=1)
    >>> price.steps(pd.Series([0.3, 7.96]))
    array([ 3., 80.])
    """
    if self.is_temporal:
      column = typed(column, self, (), clip=True)
    number = column.to_numpy(np.float64, na_value=np.nan)
    if self.decimals is None:
      return number
    return np.clip(np.rint(self.scaled(number)), *self.grid)

  def of_steps(
    self, number: np.ndarray, missing: np.ndarray | None = None
  ) -> Any:
    """Returns what multiples of the step are, the inverse of `steps`.

    Args:
      number: integers `[n]`.
      missing: of types of time and of numbers with decimals, which are missing,
        bool `[n]`.
    """
    if self.is_temporal:
      return self.scale.values(number, missing)
    if self.decimals is None:
      return number
    # The float nearest to the digits: both numbers are exact.
    scale = 10.0 ** abs(self.decimals)
    number = number / scale if self.decimals >= 0 else number * scale
    number = np.clip(number, self.minimum, self.maximum) + 0.0
    return number if missing is None else np.where(missing, np.nan, number)

  @property
  def is_numeric(self) -> bool:
    """Whether values are integers or numbers."""
    return self.type in ('integer', 'number')

  @property
  def categories(self) -> tuple | None:
    """The declared values as a tuple, or `None` for a range."""
    if self.type == 'boolean' and self.enum is None:
      return (False, True)
    return self.enum

  @property
  def is_constant(self) -> bool:
    """Whether the declaration allows one value only."""
    if self.categories is not None:
      return len(self.categories) == 1
    if self.grid is not None:
      return self.grid[0] == self.grid[1]
    return self.minimum == self.maximum

  def to_dict(self) -> dict:
    """Returns the field as JSON-able `dict`."""
    constraints = {'required': self.required}
    for key in ('minimum', 'maximum', 'enum'):
      value = getattr(self, key)
      if value is not None:
        constraints[key] = list(value) if key == 'enum' else value
    result = {'name': self.name, 'type': self.type, 'constraints': constraints}
    if self.decimals is not None:
      result['decimals'] = self.decimals
    for key in _OF_TIMES:
      if getattr(self, key) is not None:
        result[key] = getattr(self, key)
    result.update(self.cells.to_dict())
    if self.from_data:
      result['fromData'] = list(self.from_data)
    return result

  @classmethod
  def from_dict(cls, raw: dict) -> Field:
    """Returns the field that a `dict` of JSON describes."""
    if not isinstance(raw, dict) or 'name' not in raw:
      raise ValueError(
        f'A field of the schema is {raw!r}; it needs "name" and "type".'
      )
    name, constraints = raw['name'], raw.get('constraints', {})
    for word in raw:
      if word in _CONSTRAINTS:
        raise ValueError(
          f'Field {name!r} has {word!r} beside "constraints"; put it into them.'
        )
    check_properties(raw, _PROPERTIES, f'Field {name!r}')
    if not isinstance(constraints, dict):
      raise ValueError(
        f'Field {name!r}: "constraints" must be an object, as in '
        '{"minimum": 0, "maximum": 9}.'
      )
    unknown = sorted(set(constraints) - set(_CONSTRAINTS))
    if unknown:
      raise ValueError(
        f'Field {name!r} has the unknown constraint {unknown[0]!r}; known are '
        f'{", ".join(_CONSTRAINTS)}.'
      )
    enum = constraints.get('enum')
    if enum is not None and not isinstance(enum, (list, tuple)):
      raise ValueError(
        f'Field {name!r}: "enum" must be a list of the allowed values.'
      )
    try:
      cells = CellFormat.from_dict(raw)
    except ValueError as error:
      raise ValueError(f'Field {name!r}: {error}') from error
    return cls(
      name,
      raw.get('type', 'string'),
      **{**constraints, 'enum': None if enum is None else tuple(enum)},
      from_data=tuple(raw.get('fromData', ())),
      decimals=raw.get('decimals'),
      cells=cells,
      # Frictionless has formats of other types, which change no value.
      **{k: raw.get(k) for k in _OF_TIMES if raw.get('type') in times.TYPES},
    )


def check_properties(raw: dict, known: Collection[str], what: str) -> None:
  """Refuses a property that is spelt nearly like a known one.

  Others, such as titles, are taken for descriptions, which change nothing.

  Raises:
    ValueError: for such a property; the message begins with `what`.
  """
  for word in raw:
    if word in known or not isinstance(word, str):
      continue
    lower = {name.lower(): name for name in known}
    squeezed = word.lower().replace('_', '')
    near = difflib.get_close_matches(squeezed, lower, n=1, cutoff=0.8)
    if near:
      raise ValueError(
        f'{what} has the unknown property {word!r}; did you mean '
        f'{lower[near[0]]!r}?'
      )


def _is_number(value):
  is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  try:
    return is_number and math.isfinite(value)
  except OverflowError:  # Whole numbers that no float holds.
    return False


def typed(
  column: pd.Series, field: Field, marks: Collection[str], clip: bool
) -> pd.Series:
  """Returns a column in the type of its field; as text where that is marked.

  `marks` are those that count. For the rest see `values.typed`.
  """
  enum = () if 'enum' in marks else field.enum or ()
  if 'type' in marks:
    return values.typed(
      column, 'string', field.name, clip=True, cells=field.cells
    )
  return values.typed(
    column, field.type, field.name, enum, clip, field.cells, field.scale
  )


def of_counts(column: pd.Series, field: Field) -> pd.Series:
  """Returns the values of whole units, of a field with a type of time."""
  missing = column.isna().to_numpy(bool)
  counts = column.to_numpy(np.int64, na_value=0)
  return field.scale.values(counts, missing).rename(field.name)


def stand_in(field: Field) -> Any:
  """Returns what stands for a missing value of a required field.

  Of a type of time it is the number of units.
  """
  if field.is_temporal:
    return sum(field.grid) // 2
  if field.categories is not None:
    return field.categories[0]
  middle = field.minimum / 2 + field.maximum / 2  # Their sum may overflow.
  return int(middle) if field.type == 'integer' else middle


def digits(size: float) -> int:
  """Returns how many digits after the point float32 has for such a range.

  >>> digits(99.0), digits(1e6)
  (5, 1)
  """
  return 7 - math.ceil(math.log10(size))
