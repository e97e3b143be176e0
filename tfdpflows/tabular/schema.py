"""What is publicly known about a table: columns, types, ranges, categories."""

from __future__ import annotations

import dataclasses
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
from tfdpflows.tabular import values

TYPES = ('integer', 'number', 'string', 'boolean')
_CONSTRAINTS = ('minimum', 'maximum', 'enum', 'required')
_MARKABLE = (*_CONSTRAINTS, 'type')
# Larger whole numbers have no exact float.
_LARGEST = 2**53
_MOST_CATEGORIES = 1000


@dataclasses.dataclass(frozen=True)
class Field:
  """One column, in the vocabulary of Frictionless Table Schema.

  Attributes:
    name: name of the column.
    type: 'integer', 'number', 'string' or 'boolean'.
    minimum: least value of an integer or number.
    maximum: largest value of an integer or number.
    enum: the allowed values; needed for strings, implied for booleans.
    required: whether a missing value is an error.
    from_data: names of the constraints that were read off private data and
      are therefore no public statement yet; 'type' for the type.

  #### Example

  >>> from tfdpflows.tabular import Field
  >>> Field('age', 'integer', minimum=0, maximum=120).is_numeric
  True
  """

  name: str
  type: str
  minimum: float | None = None
  maximum: float | None = None
  enum: tuple | None = None
  required: bool = False
  from_data: tuple = ()

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
    if self.enum is not None:
      object.__setattr__(self, 'enum', self._checked_enum())
    if self.is_numeric and self.enum is None:
      self._check_range()
    elif self.minimum is not None or self.maximum is not None:
      raise self._error(
        f'of type {self.type} has minimum or maximum beside an enum, or is no '
        'number; remove minimum and maximum'
      )
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
    return self.minimum == self.maximum

  def to_dict(self) -> dict:
    """Returns the field as JSON-able `dict`."""
    constraints = {'required': self.required}
    for key in ('minimum', 'maximum', 'enum'):
      value = getattr(self, key)
      if value is not None:
        constraints[key] = list(value) if key == 'enum' else value
    result = {'name': self.name, 'type': self.type, 'constraints': constraints}
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
    return cls(
      name,
      raw.get('type', 'string'),
      **{**constraints, 'enum': None if enum is None else tuple(enum)},
      from_data=tuple(raw.get('fromData', ())),
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

  Raises:
    ValueError: if there is no field, two have the same name, or one that of
      the privacy unit.

  #### Example

  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([Field('sex', 'string', enum=('f', 'm'))])
  >>> schema.names, schema.is_draft
  (('sex',), False)
  """

  fields: tuple[Field, ...]
  privacy_unit: str | None = None

  def __post_init__(self):
    object.__setattr__(self, 'fields', tuple(self.fields))
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
    return cls(
      (Field.from_dict(field) for field in raw['fields']),
      raw.get('privacyUnit'),
    )

  def to_dict(self) -> dict:
    """Returns the schema as a JSON-able `dict`."""
    found = {'fields': [field.to_dict() for field in self.fields]}
    if self.privacy_unit is not None:
      found['privacyUnit'] = self.privacy_unit
    return found

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

  @classmethod
  def draft(
    cls, df: pd.DataFrame, privacy_unit: str | None = None
  ) -> TableSchema:
    """Returns a schema read off a table, with everything marked.

    Args:
      df: a `pandas.DataFrame`.
      privacy_unit: name of the column with the privacy unit, if there is one.

    Raises:
      ValueError: if the table is empty or a column cannot be described.
    """
    names = values.checked_names(df)
    unit = None if privacy_unit is None else str(privacy_unit)
    if unit is not None and unit not in map(str, names):
      raise ValueError(_no_unit(unit, names))
    return cls(
      (_draft_field(df, name) for name in names if str(name) != unit), unit
    )

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
        first category.
      fitting: whether the table is to be learned from. It needs two rows then,
        and under 'error' a value in each column; what is marked as read off the
        data restricts no value; and a column whose type is marked is returned
        as text.

    Returns:
      A new `DataFrame` with columns in the order of the schema: integers as
      `int64` (`Int64` unless required), numbers as `float64`, booleans as
      `bool` (`boolean` unless required), strings as `object`.

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
      check_num_rows(len(df))
      self.warn_of_constants()
    columns = {}
    for field in self.fields:
      marks = field.from_data if fitting else ()
      column = _typed(df.iloc[:, names.index(field.name)], field, marks, clip)
      if fitting and not clip:
        check_informative(not column.isna().all(), field)
      columns[field.name] = _declared(column, field, marks, clip, fitting)
    return pd.DataFrame(columns)

  def check_columns(self, names: Collection[str]) -> None:
    """Refuses a table with other columns than the schema.

    Raises:
      ValueError: naming a column that is missing, or has no field.
    """
    self._check_complete(names)
    for name in names:
      if name not in (*self.names, self.privacy_unit):
        raise ValueError(
          f'The schema has no field {name!r}; describe it, or drop the column.'
        )

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
    return _declared(_typed(column, field, (), clip), field, (), clip)

  def count_clipped(self, df: pd.DataFrame) -> dict[str, int]:
    """Returns `{column: cells that 'clip' replaces}`, without columns of none.

    A value is replaced where it is moved, rounded or made missing, and a
    missing one where the column is required (`validate`).

    >>> schema = TableSchema([Field('age', 'integer', 0, 120)])
    >>> schema.count_clipped(pd.DataFrame({'age': ['7', '130', '0.5', None]}))
    {'age': 2}
    """
    names = [str(name) for name in df.columns]
    self._check_complete(names)
    counts = {}
    for field in self.fields:
      column = df.iloc[:, names.index(field.name)].reset_index(drop=True)
      kind = 'number' if field.is_numeric else field.type
      before = values.typed(column, kind, field.name, field.enum or (), True)
      after = self.validate_column(field.name, column, 'clip')
      read, missing = (x.isna().to_numpy(bool) for x in (before, after))
      there = ~values.is_missing(column, field.enum or ())
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

    Ranges reach to all finite numbers, and enums have the most frequent `most`
    of the further values. No column is required in which a value is missing, or
    cannot be read. It describes this table alone, and is as private as it is.

    >>> schema = TableSchema([Field('age', 'integer', 0, 120)])
    >>> schema.widened(pd.DataFrame({'age': [7, 130]}))['age'].maximum
    130
    """
    names = [str(name) for name in df.columns]
    self._check_complete(names)
    return dataclasses.replace(
      self,
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
      out_of_range: 'error' refuses a missing identifier, and an integer beyond
        2^53, whose last digits floats do not have. Under 'clip' the first is
        missing in the result (its row is not used: whoever's it is adds nothing
        with it), and the second is rounded.

    Returns:
      A `Series` of texts, indexed from 0; NaN where the identifier is missing.

    Raises:
      ValueError: without the column; under 'error', naming a row; if no row has
        an identifier.
    """
    names = [str(name) for name in values.checked_names(df)]
    if self.privacy_unit not in names:
      raise ValueError(_no_unit(self.privacy_unit, names))
    column = df.iloc[:, names.index(self.privacy_unit)]
    if values.is_missing(column).all():
      raise self.no_identifiers()
    ids = self.unit_ids_of(column, out_of_range)
    if ids.isna().all():
      raise self.no_identifiers()
    return ids

  def no_identifiers(self) -> ValueError:
    """Returns the error of a table in which no row has an identifier."""
    return ValueError(
      f'Column {self.privacy_unit!r} has no values, only missing ones; name '
      'another privacy unit.'
    )

  def unit_ids_of(self, column: pd.Series, out_of_range: str) -> pd.Series:
    """Returns the identifiers of some cells of their column; see `unit_ids`.

    Raises:
      CellError: under 'error', for the first cell without one.
    """
    column = column.reset_index(drop=True)
    clip = out_of_range == 'clip'
    ids = values.typed(column, 'string', self.privacy_unit, clip=clip)
    ids = values.identifiers(ids)
    if clip:
      return values.rounded_digits(ids)
    missing = ids.isna().to_numpy()
    if missing.any():
      raise values.CellError(
        self.privacy_unit,
        np.flatnonzero(missing)[0],
        'the identifier is missing, and whose row it is is not known. Fill it '
        'in, with text or a whole number, or set out_of_range to clip, which '
        'leaves such rows out.',
      )
    rounded = values.beyond_floats(column)
    if rounded.any():
      raise values.CellError(
        self.privacy_unit,
        np.flatnonzero(rounded)[0],
        'the identifier is beyond 2**53, and would be rounded to that of '
        "others. Give the column as text: df[...].astype('str').",
      )
    return ids

  def public_part(self, df: pd.DataFrame) -> pd.DataFrame:
    """Returns what `validate` returns under 'clip' for fitting, for any rows.

    Args:
      df: a `pandas.DataFrame` with at least the columns of the schema.
    """
    names = [str(name) for name in df.columns]
    self._check_complete(names)
    columns = {}
    for field in self.fields:
      column = df.iloc[:, names.index(field.name)]
      column = _typed(column, field, field.from_data, clip=True)
      columns[field.name] = _declared(column, field, field.from_data, clip=True)
    return pd.DataFrame(columns)

  def _check_complete(self, names):
    for name in self.names:
      if name not in names:
        raise ValueError(
          f'The table has no column {name!r}; add it, or remove the field from '
          f'the schema. The table has {", ".join(map(repr, names))}.'
        )

  @staticmethod
  def kinds(column: pd.Series) -> np.ndarray:
    """Returns the apparent type of every cell; see `values.kinds`."""
    return values.kinds(column)


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


def _draft_field(df, name):
  kind, column = values.inferred(df[name], name)
  present = column.dropna()
  required = len(present) == len(column)
  if present.nunique() == 1:
    warnings.warn(
      f'Column {name!r} has a single value; nothing can be learned from it, '
      'consider dropping it.',
      stacklevel=4,
    )
  marks = ('required', 'type')
  if kind == 'boolean':
    return Field(name, kind, required=required, from_data=marks)
  if kind == 'string':
    enum = tuple(sorted(present.unique().tolist()))
    if len(enum) > _MOST_CATEGORIES:
      raise ValueError(
        f'Column {name!r} has {len(enum)} different strings, more than '
        f'{_MOST_CATEGORIES}; drop it or group its values.'
      )
    marks = ('enum', *marks)
    return Field(name, kind, enum=enum, required=required, from_data=marks)
  low, high = present.min(), present.max()
  marks = ('minimum', 'maximum', *marks)
  convert = int if kind == 'integer' else float
  return Field(name, kind, convert(low), convert(high), None, required, marks)


def check_num_rows(num_rows: int) -> None:
  """Refuses a table of which nothing can be learned."""
  if num_rows < 2:
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


def _typed(
  column: pd.Series, field: Field, marks: Collection[str], clip: bool
) -> pd.Series:
  """The column in its type; as text where that is marked."""
  enum = () if 'enum' in marks else field.enum or ()
  if 'type' in marks:
    return values.typed(column, 'string', field.name, clip=True)
  return values.typed(column, field.type, field.name, enum, clip)


def _declared(column, field, marks, clip, fitting=True):
  """The column with values that are declared and not marked."""
  if 'type' in marks:
    return column
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
  return (
    -math.inf if 'minimum' in marks else field.minimum,
    math.inf if 'maximum' in marks else field.maximum,
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
    said, mend = f'is outside [{low}, {high}]', 'widen the bounds, or '
  elif 'enum' not in marks:
    outside = _undeclared(column, field)
    said, mend = 'is not in the enum', 'add it to the enum, or '
  else:
    return
  if outside.any():
    row = int(np.flatnonzero(outside)[0])
    raise values.CellError(
      field.name,
      row,
      # The schema of a model is settled.
      f'{column.iloc[row]!r} {said}; {mend if fitting else ""}set out_of_range '
      'to clip.',
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
  column = _typed(column, field, (), clip=True)
  changes = {}
  if field.enum is not None:
    further = column[_undeclared(column, field)]
    if field.is_numeric:
      further = further[np.isfinite(further.to_numpy(np.float64))]
    changes['enum'] = (*field.enum, *further.value_counts().index[:most])
  elif field.is_numeric:
    number = column.to_numpy(np.float64, na_value=np.nan)
    number = number[np.isfinite(number)]
    if field.type == 'integer':
      number = np.clip(number, -_LARGEST, _LARGEST)
    low = min([field.minimum, *number[number < field.minimum]])
    high = max([field.maximum, *number[number > field.maximum]])
    changes = {'minimum': low, 'maximum': high}
  required = field.required and not column.isna().any()
  return dataclasses.replace(field, required=required, **changes)


def _nearest(number, enum):
  enum = np.sort(np.asarray(enum, np.float64))
  middle = (enum[1:] + enum[:-1]) / 2
  return enum[np.searchsorted(middle, number)]


def stand_in(field: Field) -> Any:
  """Returns what stands for a missing value of a required field."""
  if field.categories is not None:
    return field.categories[0]
  middle = field.minimum / 2 + field.maximum / 2  # Their sum may overflow.
  return int(middle) if field.type == 'integer' else middle
