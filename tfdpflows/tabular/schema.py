"""What is publicly known about a table: columns, types, ranges, categories."""

from __future__ import annotations

import dataclasses
import decimal
import json
import math
import numbers
import os
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pandas as pd

from tfdpflows import atomic
from tfdpflows._checks import check_type
from tfdpflows.tabular import constrained_rows, constraints, times, values
from tfdpflows.tabular.dialect import (
  COMMAS,
  MISSING,
  PLAIN,
  CellFormat,
  Dialect,
  can_write,
)

TYPES = ('integer', 'number', 'string', 'boolean', *times.TYPES)
_CONSTRAINTS = ('minimum', 'maximum', 'enum', 'required')
_MARKABLE = (*_CONSTRAINTS, 'decimals', 'type')
# Larger whole numbers have no exact float.
_LARGEST = 2**53
# Of ten to the power of so many, and of their quotients, floats are exact.
_MOST_DECIMALS = 15
_MATCHES = ('equal', 'subset')
_OF_TIMES = ('unit', 'format', 'timezone')
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
    decimals: how many digits behind the point a number has: values are rounded
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
      if self.type == 'integer' and abs(value) > _LARGEST:
        raise self._error(
          f'lists the integer {value!r} in its enum, beyond 2**53; declare it '
          'a string, or drop it if it is an identifier'
        )
      if self.type == 'string' and not _is_unicode(value):
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
      if self.type == 'integer' and abs(value) > _LARGEST:
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
    if max(abs(first), abs(last)) > _LARGEST:
      raise self._error(
        f'has more than 2**53 values with {self.decimals} decimals; give fewer'
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


@dataclasses.dataclass(frozen=True)
class TableSchema:
  """The public description of a table.

  Bounds and categories are statements by the owner of the data. What was read
  off the data instead is marked, and no model is fitted before the marks are
  removed or replaced by private estimates (`mechanisms.private_bounds`).

  Attributes:
    fields: tuple of `Field`, in the order of the columns.
    privacy_unit: name of the column that tells whose rows are whose, where
      people (or other units) with several rows are to be protected. It is no
      field: what it holds is not learned.
    dialect: the `Dialect` of CSV files of the table.
    fields_match: 'equal' if a table has the columns of the schema and no
      others, 'subset' if others are to be left out.
    constraints: what is publicly known of several columns together: tuple of
      `Inequality`, `FixedCombinations`, `ExcludedCombinations` and `Computed`.
    identifiers: dict of columns that are not read, and of which synthetic rows
      get new values: from the name to a text with the number of the row, such
      as 'P{:06d}'. They come first. A table may have them or not.

  Raises:
    ValueError: if there is no field, two have the same name, or one that of
      the privacy unit or of an identifier; for constraints that cannot be met.

  #### Example

  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([Field('sex', 'string', enum=('f', 'm'))])
  >>> schema.names, schema.is_draft
  (('sex',), False)
  """

  fields: tuple[Field, ...]
  privacy_unit: str | None = None
  dialect: Dialect = COMMAS
  fields_match: str = 'equal'
  constraints: tuple[constraints.Constraint, ...] = ()
  identifiers: dict[str, str] = dataclasses.field(
    default_factory=dict, hash=False
  )

  def __post_init__(self):
    object.__setattr__(self, 'fields', tuple(self.fields))
    object.__setattr__(self, 'constraints', tuple(self.constraints))
    object.__setattr__(self, 'identifiers', dict(self.identifiers))
    if self.fields_match not in _MATCHES:
      raise ValueError(
        f'"fieldsMatch" of the schema is {self.fields_match!r}; use '
        f'{" or ".join(_MATCHES)}.'
      )
    for field in self.fields:
      check_type(
        'A field of the schema', field, Field, "Field('age', 'integer')"
      )
      cells = field.cells
      words = (field.name, *(field.enum or ()), *cells.missing_values)
      if field.type == 'boolean':
        words += cells.true_values[0], cells.false_values[0]
      elif field.type == 'number':
        words += (cells.decimal_char,)
      for text in words:
        if isinstance(text, str) and not can_write(text, self.dialect.encoding):
          raise ValueError(
            f'Field {field.name!r} has {text!r}, which the encoding '
            f'{self.dialect.encoding!r} cannot write; choose another encoding.'
          )
    if self.privacy_unit is not None and not (
      isinstance(self.privacy_unit, str) and self.privacy_unit
    ):
      raise ValueError(
        f'The privacy unit of the schema is {self.privacy_unit!r}; give the '
        'name of a column.'
      )
    if self.privacy_unit in self.names:
      raise ValueError(
        f'The schema has a field {self.privacy_unit!r}, which is its privacy '
        'unit: identifiers are not learned. Remove the field.'
      )
    if not self.fields:
      raise ValueError(
        'The schema has no fields; describe at least one column.'
      )
    for place, name in enumerate(self.names):
      if name in self.names[:place]:
        raise ValueError(
          f'The schema has two fields named {name!r}; rename one.'
        )
    for name, text in self.identifiers.items():
      self._check_identifier(name, text)
    constraints.check(self.constraints, self)

  def _check_identifier(self, name, text):
    if name in self.names or name == self.privacy_unit or not name:
      raise ValueError(
        f'The identifier {name!r} of the schema has no name, that of a field, '
        'or that of the privacy unit; an identifier is not learned, and the '
        'privacy unit is not made anew. Rename or remove one.'
      )
    try:
      found = [text.format(number) for number in (1, 2)]
    except (AttributeError, IndexError, KeyError, ValueError, TypeError):
      found = []
    if len(set(found)) < 2 or not all(
      can_write(one, self.dialect.encoding) for one in (name, *found)
    ):
      raise ValueError(
        f'The identifier {name!r} of the schema is written as {text!r}; give a '
        "text with {} for the number of the row, such as 'P{:06d}'."
      )

  def __len__(self) -> int:
    return len(self.fields)

  def __iter__(self) -> Iterator[Field]:
    return iter(self.fields)

  def __getitem__(self, name: str) -> Field:
    for field in self.fields:
      if field.name == name:
        return field
    raise KeyError(f'The schema has no field {name!r}; it has {self.names}.')

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the columns, in order."""
    return tuple(field.name for field in self.fields)

  @property
  def is_draft(self) -> bool:
    """Whether anything in it was read off the data."""
    return any(field.from_data for field in self.fields)

  def for_bounds(self) -> TableSchema:
    """Returns the schema without marked `decimals`, which no budget pays for.

    How many digits the values of a column have is then not used: numbers have
    as many as float32 has room for.

    Raises:
      ValueError: for a type of time that is marked, or its range: private
        bounds know numbers and categories.
    """
    self._check_payable()
    fields = [
      dataclasses.replace(
        f,
        decimals=None,
        from_data=[mark for mark in f.from_data if mark != 'decimals'],
      )
      if 'decimals' in f.from_data
      else f
      for f in self.fields
    ]
    return dataclasses.replace(self, fields=fields)

  def _check_payable(self):
    for field in self.fields:
      marks = set(field.from_data) & {'type', 'minimum', 'maximum'}
      if field.is_temporal and marks:
        raise ValueError(
          f'Column {field.name!r} of type {field.type} marks '
          f'{", ".join(sorted(marks))} as read off the data, and no budget '
          'pays for that: private bounds are of numbers and categories. State '
          'the type, minimum and maximum from public knowledge, and remove '
          'their marks.'
        )

  def draft_marks(self) -> dict[str, tuple[str, ...]]:
    """Returns `{column: names of the constraints read off the data}`."""
    return {f.name: f.from_data for f in self.fields if f.from_data}

  @classmethod
  def from_dict(cls, raw: dict) -> TableSchema:
    """Returns the schema that a `dict` with key 'fields' describes."""
    if not isinstance(raw, dict) or not isinstance(raw.get('fields'), list):
      raise ValueError('A schema is an object with a list named "fields".')
    if 'privacy_unit' in raw:
      raise ValueError(
        'The schema has "privacy_unit"; in JSON it is named "privacyUnit".'
      )
    fields = raw['fields']
    if 'missingValues' in raw:
      # Of all fields that have no words of their own.
      words = {'missingValues': raw['missingValues']}
      fields = [{**words, **f} if isinstance(f, dict) else f for f in fields]
    return cls(
      (Field.from_dict(field) for field in fields),
      raw.get('privacyUnit'),
      Dialect.from_dict(raw),
      # Their order has never mattered.
      _same_match(raw.get('fieldsMatch', 'equal')),
      _listed(raw),
      _identifiers(raw),
    )

  def to_dict(self) -> dict:
    """Returns the schema as a JSON-able `dict`."""
    found = {'fields': [field.to_dict() for field in self.fields]}
    words = {field.cells.missing_values for field in self.fields}
    if len(words) == 1 and words != {MISSING}:
      found['missingValues'] = list(*words)
      for field in found['fields']:
        del field['missingValues']
    if self.privacy_unit is not None:
      found['privacyUnit'] = self.privacy_unit
    if self.fields_match != 'equal':
      found['fieldsMatch'] = self.fields_match
    if self.constraints:
      found['constraints'] = [c.to_dict() for c in self.constraints]
    if self.identifiers:
      found['identifiers'] = self.identifiers
    return {**found, **self.dialect.to_dict()}

  @classmethod
  def from_json(cls, path: str | os.PathLike) -> TableSchema:
    """Reads a schema from a JSON file in UTF-8.

    Raises:
      ValueError: if the file is no JSON or describes no table; the message
        starts with the path.
      OSError: if the file cannot be read.
    """
    with open(path, 'rb') as file:
      content = file.read()
    try:
      return cls.from_dict(json.loads(content.decode('utf-8-sig')))
    except json.JSONDecodeError as error:
      raise ValueError(
        f'{path} is not JSON ({error}); `tfdpflows schema` drafts a schema.'
      ) from error
    except (ValueError, RecursionError) as error:
      raise ValueError(f'{path}: {error}') from error

  def to_json(self, path: str | os.PathLike, overwrite: bool = False) -> None:
    """Writes the schema to a file, atomically.

    Raises:
      FileExistsError: if the file is there and `overwrite` is false.
    """
    if os.path.exists(path) and not overwrite:
      raise FileExistsError(
        f'{path} exists; remove it or say that it may be overwritten.'
      )
    text = json.dumps(
      self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False
    )
    atomic.write_file(path, lambda file: file.write(f'{text}\n'.encode()))

  def validate(
    self, df: pd.DataFrame, out_of_range: str = 'error', *, fitting: bool = True
  ) -> pd.DataFrame:
    """Returns the table in the declared types, or refuses it.

    Args:
      df: a `pandas.DataFrame` with the columns of the schema, in any order;
        values may be strings as read from a CSV file. It may have the column of
        the privacy unit, which the result has not.
      out_of_range: 'error' refuses the first cell that the schema does not
        declare. 'clip' refuses no cell, and replaces each by itself: numbers
        move to the nearest bound, whole number or number of an enum; what is no
        number, no category or neither true nor false becomes missing; and what
        is missing in a required column becomes the middle of the range or the
        first category. A row that then breaks a constraint is changed so that
        it meets it (`constrained_rows.meet`).
      fitting: whether the table is to be learned from. It needs two rows then,
        and under 'error' a value in each column; what is marked as read off the
        data restricts no value; and a column whose type is marked is returned
        as text.

    Returns:
      A new `DataFrame` with columns in the order of the schema: integers as
      `int64` (`Int64` unless required), numbers as `float64`, booleans as
      `bool` (`boolean` unless required), strings as `object`, and types of time
      as `times.TimeScale.values` has them.

    Raises:
      ValueError: naming the column, the first row and what to do about it.
        Under 'clip' for the columns and the number of rows alone.
    """
    if out_of_range not in ('error', 'clip'):
      raise ValueError(
        f"out_of_range is {out_of_range!r}; it must be 'error' or 'clip'."
      )
    clip = out_of_range == 'clip'
    names = [str(name) for name in values.checked_names(df)]
    self.check_columns(names)
    if fitting:
      check_num_rows(len(df), self)
      self.warn_of_constants()
    columns = {}
    for field in self.fields:
      marks = field.from_data if fitting else ()
      column = typed(df.iloc[:, names.index(field.name)], field, marks, clip)
      if fitting and not clip:
        check_informative(not column.isna().all(), field)
      columns[field.name] = _declared(column, field, marks, clip, fitting)
    return constrained_rows.meet(pd.DataFrame(columns), self, out_of_range)

  def validate_part(
    self,
    df: pd.DataFrame,
    out_of_range: str,
    names: Collection[str] | None = None,
  ) -> pd.DataFrame:
    """Returns some rows as `validate` does those of a table to be learned.

    What all rows have to have, together, is not checked: that there are two,
    and a value in each column.

    Args:
      df: the rows.
      out_of_range: see `validate`.
      names: the columns that are needed. With constraints between columns it
        has all of them anyway.
    """
    clip, columns = out_of_range == 'clip', {}
    is_needed = set(self.names if self.constraints or not names else names)
    for field in self.fields:
      if field.name not in is_needed:
        continue
      marks = field.from_data
      column = typed(df[field.name], field, marks, clip)
      columns[field.name] = _declared(column, field, marks, clip)
    table = pd.DataFrame(columns)
    if not self.constraints:
      return table
    return constrained_rows.meet(table, self, out_of_range)

  def check_columns(self, names: Collection[str]) -> None:
    """Refuses a table with other columns than the schema.

    Raises:
      ValueError: naming a column that is missing, or has no field.
    """
    self._check_complete(names)
    known = {*self.names, *self.identifiers, self.privacy_unit}
    for name in names if self.fields_match == 'equal' else ():
      if name not in known:
        raise ValueError(
          f'The schema has no field {name!r}; describe it, or drop the column: '
          'with "fieldsMatch": "subset" the schema leaves others out.'
        )

  def check_unit(self, names: Collection[str]) -> None:
    """Refuses a table that has not the column of the privacy unit.

    Raises:
      ValueError: naming it.
    """
    if self.privacy_unit not in names:
      raise ValueError(_no_unit(self.privacy_unit, names))

  def warn_of_constants(self) -> None:
    """Warns of columns that are declared to have one value only."""
    for field in self.fields:
      if field.is_constant and field.required and not field.from_data:
        warnings.warn(
          f'Column {field.name!r} is declared to be constant; it is copied to '
          'the synthetic table and nothing can be learned from it.',
          stacklevel=4,
        )

  def validate_column(
    self, name: str, column: pd.Series, out_of_range: str
  ) -> pd.Series:
    """Returns some cells of a column as `validate` does, of a public field.

    Raises:
      CellError: under 'error', for the first cell that is not declared.
    """
    field, clip = self[name], out_of_range == 'clip'
    return _declared(typed(column, field, (), clip), field, (), clip)

  def count_clipped(self, df: pd.DataFrame) -> dict[str, int]:
    """Returns `{column: cells that 'clip' replaces}`, without columns of none.

    A value is replaced where it is moved, rounded or made missing, a missing
    one where the column is required, and one with which its row would break a
    constraint (`validate`).

    >>> schema = TableSchema([Field('age', 'integer', 0, 120)])
    >>> schema.count_clipped(pd.DataFrame({'age': ['7', '130', '0.5', None]}))
    {'age': 2}
    """
    names = [str(name) for name in df.columns]
    self._check_complete(names)
    cells = {
      name: df.iloc[:, names.index(name)].reset_index(drop=True)
      for name in self.names
    }
    columns = {
      name: self.validate_column(name, column, 'clip')
      for name, column in cells.items()
    }
    met = constrained_rows.meet(pd.DataFrame(columns), self, 'clip')
    counts = {}
    for field in self.fields:
      column = cells[field.name]
      kind = 'number' if field.is_numeric else field.type
      before = values.typed(
        column,
        kind,
        field.name,
        field.enum or (),
        clip=True,
        cells=field.cells,
        scale=field.scale,
      )
      after = met[field.name]
      if field.is_temporal:
        before = of_counts(before, field)
      read, missing = (x.isna().to_numpy(bool) for x in (before, after))
      there = ~values.is_missing(
        column, field.enum or (), field.cells.missing_values
      )
      # What cannot be read becomes missing, or what stands in for that.
      replaced = (there & read) | (read != missing)
      both = ~read & ~missing
      first, second = (x[both].to_numpy(object) for x in (before, after))
      replaced[both] = first != second
      if replaced.any():
        counts[field.name] = int(replaced.sum())
    return counts

  def widened(self, df: pd.DataFrame, most: int = 64) -> TableSchema:
    """Returns a schema that also allows what the cells of a table hold.

    It has no constraints, ranges reach to all finite numbers that a field can
    have, and enums have the most frequent `most` of such further values. No
    column is required in which a value is missing, or cannot be read. It
    describes this table alone, and is as private as it is.

    >>> schema = TableSchema([Field('age', 'integer', 0, 120)])
    >>> schema.widened(pd.DataFrame({'age': [7, 130]}))['age'].maximum
    130
    """
    names = [str(name) for name in df.columns]
    self._check_complete(names)
    return dataclasses.replace(
      self,
      constraints=(),
      fields=[
        _widened(field, df.iloc[:, names.index(field.name)], most)
        for field in self.fields
      ],
    )

  def unit_ids(
    self, df: pd.DataFrame, out_of_range: str = 'error'
  ) -> pd.Series:
    """Returns the identifier of each row's unit, as text.

    Whole numbers are written without '.0', also where they are texts, and
    texts without blanks around them: 7, 7.0, '7', '7.0' and ' 7' are one unit.
    Other texts are different units ('007').

    Args:
      df: a `pandas.DataFrame` with the column of the privacy unit.
      out_of_range: 'error' refuses a missing identifier, a number beyond 2^53
        (2^24 in float32), whose last digits floats do not have, and a text with
        a character that could not be read (U+FFFD): they could be those of
        others. Under 'clip' they are missing in the result, as is every number
        that is not exactly such a float (its row is not used: whoever's it is
        adds nothing with it). Texts keep all digits.

    Returns:
      A `Series` of texts, indexed from 0; NaN where the identifier is missing.

    Raises:
      ValueError: without the column; under 'error', naming a row; if no row has
        an identifier.
    """
    names = [str(name) for name in values.checked_names(df)]
    self.check_unit(names)
    column = df.iloc[:, names.index(self.privacy_unit)]
    if values.is_missing(column, (), self._words()).all():
      raise self.no_identifiers()
    ids = self.unit_ids_of(column, out_of_range)
    if ids.isna().all():
      raise self.no_identifiers()
    return ids

  def _words(self):
    """The words for a missing value of all columns."""
    words = [MISSING, *(field.cells.missing_values for field in self.fields)]
    return tuple(dict.fromkeys(word for some in words for word in some))

  def no_identifiers(self) -> ValueError:
    """Returns the error of a table in which no row has an identifier."""
    return ValueError(
      f'Column {self.privacy_unit!r} has no values, only missing ones (numbers '
      'beyond 2**53 are: give them as text); name another privacy unit.'
    )

  def unit_ids_of(self, column: pd.Series, out_of_range: str) -> pd.Series:
    """Returns the identifiers of some cells of their column; see `unit_ids`.

    Raises:
      CellError: under 'error', for the first cell without one.
    """
    column = column.reset_index(drop=True)
    clip = out_of_range == 'clip'
    cells = CellFormat(missing_values=self._words())
    ids = values.typed(
      column, 'string', self.privacy_unit, clip=clip, cells=cells
    )
    ids = values.identifiers(ids)
    if clip:
      # Two that became one could not be told apart: one of the two taken away
      # would move the rows of the other.
      return ids.mask(values.unlike_others(column, ids))
    for bad, problem in (
      (
        ids.isna().to_numpy(),
        'the identifier is missing, and whose row it is is not known. Fill it '
        'in, with text or a whole number, or set out_of_range to clip, which '
        'leaves such rows out.',
      ),
      (
        values.beyond_floats(column),
        'the identifier is beyond 2**53 (in float32, 2**24), and is rounded to '
        'that of others. Give the column as text, of the whole numbers: '
        "df[...].astype('str').",
      ),
      (
        values.unreadable(ids),
        'the identifier has a character that is none (NUL, U+FFFD or half of a '
        'pair), and may be that of others. Correct it, or set out_of_range to '
        'clip, which leaves such rows out.',
      ),
    ):
      if bad.any():
        row = np.flatnonzero(bad)[0]
        raise values.CellError(self.privacy_unit, row, problem)
    return ids

  def public_part(self, df: pd.DataFrame) -> pd.DataFrame:
    """Returns what `validate` returns under 'clip' for fitting, for any rows.

    Args:
      df: a `pandas.DataFrame` with at least the columns of the schema.
    """
    names = [str(name) for name in df.columns]
    self._check_complete(names)
    self._check_payable()
    columns = {}
    for field in self.fields:
      if 'decimals' in field.from_data:
        raise ValueError(
          f'Column {field.name!r} marks its decimals as read off the data, and '
          'no budget pays for them: state them from public knowledge, or '
          'remove them (`TableSchema.for_bounds`).'
        )
      column = df.iloc[:, names.index(field.name)]
      column = typed(column, field, field.from_data, clip=True)
      columns[field.name] = _declared(column, field, field.from_data, clip=True)
    return pd.DataFrame(columns)

  def _check_complete(self, names):
    for name in self.names:
      if name not in names:
        raise ValueError(
          f'The table has no column {name!r}; add it, or remove the field from '
          f'the schema. The table has {", ".join(map(repr, names))}.'
        )

  def kinds(self, column: pd.Series) -> np.ndarray:
    """Returns the apparent type of every cell of a column, by its name.

    See `values.kinds`.
    """
    return values.kinds(column, self[column.name].cells)


def _listed(raw):
  found = raw.get('constraints', ())
  if not isinstance(found, (list, tuple)):
    raise ValueError(
      f'The schema has the constraints {found!r}; give a list of objects.'
    )
  return [constraints.from_dict(one) for one in found]


def _identifiers(raw):
  found = raw.get('identifiers', {})
  if not isinstance(found, dict):
    raise ValueError(
      f'The schema has the identifiers {found!r}; give an object, such as '
      '{"id": "P{:06d}"}.'
    )
  return found


def _same_match(word):
  return 'equal' if word == 'exact' else word


def _no_unit(privacy_unit, names):
  return (
    f'The table has no column {privacy_unit!r}, which is the privacy unit. It '
    f'has {", ".join(map(repr, names))}.'
  )


def _is_number(value):
  is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  try:
    return is_number and math.isfinite(value)
  except OverflowError:  # Whole numbers that no float holds.
    return False


def _is_unicode(text):
  try:
    text.encode()
  except UnicodeEncodeError:
    return False
  return True


def check_schema(schema: Any) -> None:
  """Raises a `TypeError` for what is no `TableSchema`, such as its path."""
  check_type('schema', schema, TableSchema, 'TableSchema.from_json(path)')


def check_num_rows(num_rows: int, schema: TableSchema) -> None:
  """Refuses a table of which nothing can be learned.

  Where rows belong to units, the number of these is public, and that of the
  rows is not.
  """
  if num_rows < 2 and schema.privacy_unit is None:
    raise ValueError(
      'The table has one row; a distribution needs at least two.'
    )


def check_informative(any_present: bool, field: Field) -> None:
  """Refuses a column without values."""
  if not any_present:
    raise ValueError(
      f'Column {field.name!r} has no values, only missing ones; drop the '
      'column and its field.'
    )


def typed(
  column: pd.Series, field: Field, marks: Collection[str], clip: bool
) -> pd.Series:
  """Returns a column in the type of its field; as text where that is marked.

  Args:
    column: the cells.
    field: the `Field`.
    marks: the marks that count.
    clip: see `values.typed`, as the errors and the result.
  """
  enum = () if 'enum' in marks else field.enum or ()
  if 'type' in marks:
    return values.typed(
      column, 'string', field.name, clip=True, cells=field.cells
    )
  return values.typed(
    column, field.type, field.name, enum, clip, field.cells, field.scale
  )


def _declared(column, field, marks, clip, fitting=True):
  """The column with values that are declared and not marked."""
  if 'type' in marks:
    return column
  column = _checked(column, field, marks, clip, fitting)
  return of_counts(column, field) if field.is_temporal else column


def of_counts(column: pd.Series, field: Field) -> pd.Series:
  """Returns the values of whole units, of a field with a type of time."""
  missing = column.isna().to_numpy(bool)
  counts = column.to_numpy(np.int64, na_value=0)
  return field.scale.values(counts, missing).rename(field.name)


def _checked(column, field, marks, clip, fitting):
  if clip:
    column = _clipped(column, field, marks)
  else:
    _check_declared(column, field, marks, fitting)
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


def _check_declared(column, field, marks, fitting):
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
    raise values.CellError(
      field.name,
      row,
      # The schema of a model is settled.
      f'{cell!r} {said}; {mend if fitting else ""}set out_of_range to clip.',
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


def _widened(field, column, most):
  column = typed(column, field, (), clip=True)
  changes = {}
  if field.enum is not None:
    further = column[_undeclared(column, field)]
    if field.is_numeric:
      number = further.to_numpy(np.float64)
      is_whole = field.type == 'integer'
      largest = _LARGEST if is_whole else np.finfo(np.float64).max
      further = further[np.abs(number) <= largest]
    changes['enum'] = (*field.enum, *further.value_counts().index[:most])
  elif field.is_numeric:
    number = column.to_numpy(np.float64, na_value=np.nan)
    number = number[np.isfinite(number)]
    places = 0 if field.type == 'integer' else field.decimals
    if places is not None:
      largest = float(decimal.Decimal(_LARGEST).scaleb(-places))
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
