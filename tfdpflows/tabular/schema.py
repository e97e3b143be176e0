"""What is publicly known about a table: columns, types, ranges, categories."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import os
import warnings
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from tfdpflows import atomic
from tfdpflows.tabular import validation, values

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
      raise ValueError(
        f'Field {self.name!r} has type {self.type!r}; use one of '
        f'{", ".join(TYPES)}.'
      )
    object.__setattr__(self, 'from_data', tuple(self.from_data))
    for mark in self.from_data:
      if mark not in _MARKABLE:
        raise ValueError(
          f'Field {self.name!r} marks {mark!r} as read off the data; '
          f'"fromData" may list {", ".join(_MARKABLE)}.'
        )
    if not isinstance(self.required, bool):
      raise ValueError(
        f'Field {self.name!r} has required={self.required!r}; write true or '
        'false.'
      )
    if self.enum is not None:
      object.__setattr__(self, 'enum', _checked_enum(self))
    if self.is_numeric and self.enum is None:
      _check_range(self)
    elif self.minimum is not None or self.maximum is not None:
      raise ValueError(
        f'Field {self.name!r} of type {self.type} has minimum or maximum '
        'beside an enum, or is no number; remove minimum and maximum.'
      )
    if self.type == 'string' and self.enum is None:
      raise ValueError(
        f'Field {self.name!r} is a string without "enum"; list its categories '
        'or drop the column.'
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
    for key in ('minimum', 'maximum'):
      if getattr(self, key) is not None:
        constraints[key] = getattr(self, key)
    if self.enum is not None:
      constraints['enum'] = list(self.enum)
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
    constraints = raw.get('constraints', {})
    if not isinstance(constraints, dict):
      raise ValueError(
        f'Field {raw["name"]!r}: "constraints" must be an object, as in '
        '{"minimum": 0, "maximum": 9}.'
      )
    unknown = sorted(set(constraints) - set(_CONSTRAINTS))
    if unknown:
      raise ValueError(
        f'Field {raw["name"]!r} has the unknown constraint {unknown[0]!r}; '
        f'known are {", ".join(_CONSTRAINTS)}.'
      )
    enum = constraints.get('enum')
    if enum is not None and not isinstance(enum, (list, tuple)):
      raise ValueError(
        f'Field {raw["name"]!r}: "enum" must be a list of the allowed values.'
      )
    return cls(
      name=raw['name'],
      type=raw.get('type', 'string'),
      minimum=constraints.get('minimum'),
      maximum=constraints.get('maximum'),
      enum=None if enum is None else tuple(enum),
      required=constraints.get('required', False),
      from_data=tuple(raw.get('fromData', ())),
    )


class TableSchema:
  """The public description of a table that synthesis rests on.

  Bounds and categories are statements by the owner of the data. What was read
  off the data instead is marked, and nothing private is computed from it until
  the marks are removed or paid for.

  Args:
    fields: sequence of `Field`, in the order of the columns.

  Raises:
    ValueError: if there is no field or two have the same name.

  #### Example

  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([Field('sex', 'string', enum=('f', 'm'))])
  >>> schema.names, schema.is_draft
  (('sex',), False)
  """

  def __init__(self, fields: Iterable[Field]):
    self.fields = tuple(fields)
    if not self.fields:
      raise ValueError(
        'The schema has no fields; describe at least one column.'
      )
    seen = set()
    for field in self.fields:
      if field.name in seen:
        raise ValueError(
          f'The schema has two fields named {field.name!r}; rename one.'
        )
      seen.add(field.name)

  def __eq__(self, other):
    return isinstance(other, TableSchema) and self.fields == other.fields

  def __hash__(self):
    return hash(self.fields)

  def __len__(self) -> int:
    return len(self.fields)

  def __iter__(self) -> Iterator[Field]:
    return iter(self.fields)

  def __getitem__(self, name: str) -> Field:
    for field in self.fields:
      if field.name == name:
        return field
    raise KeyError(f'The schema has no field {name!r}; it has {self.names}.')

  def __repr__(self):
    return f'TableSchema({list(self.fields)!r})'

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
    return cls(Field.from_dict(field) for field in raw['fields'])

  def to_dict(self) -> dict:
    """Returns the schema as a JSON-able `dict`."""
    return {'fields': [field.to_dict() for field in self.fields]}

  @classmethod
  def from_json(cls, path: str | os.PathLike) -> TableSchema:
    """Reads a schema from a file.

    Args:
      path: path of a JSON file in UTF-8.

    Returns:
      A `TableSchema`.

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
    """Writes the schema to a file, all of it or nothing.

    Args:
      path: path to write.
      overwrite: whether a file that is there may be replaced.

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
  def draft(cls, df: pd.DataFrame) -> TableSchema:
    """Returns a schema read off a table, with everything that was marked.

    Args:
      df: a `pandas.DataFrame`.

    Returns:
      A `TableSchema` whose types, bounds, categories and `required` are
      marked.

    Raises:
      ValueError: if the table is empty or a column cannot be described.
    """
    return cls(_draft_field(df, name) for name in values.checked_names(df))

  def validate(
    self,
    df: pd.DataFrame,
    out_of_range: str = 'error',
    *,
    fitting: bool = True,
  ) -> pd.DataFrame:
    """Returns the table with declared types only, or says what is wrong.

    Args:
      df: a `pandas.DataFrame` with the columns of the schema, in any order;
        values may be strings as read from a CSV file.
      out_of_range: 'error' names the first cell that the schema does not
        declare. 'clip' puts declared values in place of such cells and refuses
        none, whatever it holds: numbers move to the nearest bound, whole
        number or number of an enum; what is no number, no category or neither
        true nor false becomes missing; and what is missing in a required
        column the middle of the range or the first category. What a cell
        becomes depends on no other cell.
      fitting: whether the table is to be learned from. It needs two rows then,
        and under 'error' no column without values. And what is marked as read
        off the data says nothing of which values there may be: it bounds none.
        A column whose type is marked is returned as text.

    Returns:
      A new `DataFrame` with columns in the order of the schema: integers as
      `int64` (`Int64` unless required), numbers as `float64`, booleans as
      `bool` (`boolean` unless required), strings as `object`.

    Raises:
      ValueError: naming the column, the first row and what to do about it.
        Under 'clip' for the columns and the number of rows alone.
    """
    return validation.validated(self, df, out_of_range, fitting)

  def public_part(self, df: pd.DataFrame) -> pd.DataFrame:
    """Returns a table of what the schema says without its marks.

    Args:
      df: a `pandas.DataFrame` with the columns of the schema at least, of any
        number of rows and any values.

    Returns:
      A new `DataFrame`, as `validate` returns it under 'clip' for fitting.
    """
    return validation.public_part(self, df)

  @staticmethod
  def kinds(column: pd.Series) -> np.ndarray:
    """Returns of which type every cell of a column looks.

    Args:
      column: a `pandas.Series` of strings, such as `public_part` gives of a
        column whose type is marked.

    Returns:
      An object array `[n]` of 'boolean', 'integer', 'number', 'string', or
      `None` for a missing value.
    """
    return values.kinds(column)


def _checked_enum(field):
  if not field.enum:
    raise ValueError(
      f'Field {field.name!r} has an empty enum; list at least one value.'
    )
  result = []
  for value in field.enum:
    ok = {
      'string': isinstance(value, str),
      'boolean': isinstance(value, bool),
      'integer': _is_number(value) and float(value).is_integer(),
      'number': _is_number(value),
    }[field.type]
    if not ok:
      raise ValueError(
        f'Field {field.name!r} of type {field.type} lists {value!r} in its '
        'enum; change the type or the value.'
      )
    if field.type == 'integer' and abs(value) > _LARGEST:
      raise ValueError(
        f'Integer field {field.name!r} lists {value!r} in its enum, beyond '
        '2**53; declare it a string, or drop it if it is an identifier.'
      )
    if field.type == 'string' and not _is_unicode(value):
      raise ValueError(
        f'Field {field.name!r} lists {value!r} in its enum, which is half of a '
        'character and cannot be written as UTF-8; correct it.'
      )
    # -0.0 is 0.0, here and in tables.
    convert = {'integer': int, 'number': lambda v: float(v) + 0.0}
    result.append(convert.get(field.type, lambda v: v)(value))
  if len(set(result)) != len(result):
    raise ValueError(
      f'Field {field.name!r} lists a value twice in its enum; remove one.'
    )
  return tuple(result)


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


def _check_range(field):
  for key in ('minimum', 'maximum'):
    value = getattr(field, key)
    if value is None:
      raise ValueError(
        f'Field {field.name!r} of type {field.type} has no {key}; give minimum '
        'and maximum from public knowledge, or an enum.'
      )
    if not _is_number(value):
      raise ValueError(
        f'Field {field.name!r} has {key} {value!r}; give a finite number.'
      )
    if field.type == 'integer':
      if not float(value).is_integer():
        raise ValueError(
          f'Integer field {field.name!r} has {key} {value!r}; give a whole '
          'number.'
        )
      if abs(value) > _LARGEST:
        raise ValueError(
          f'Integer field {field.name!r} has {key} {value!r}, beyond 2**53; '
          'declare it a number, or drop it if it is an identifier.'
        )
    convert = int if field.type == 'integer' else float
    object.__setattr__(field, key, convert(value))
  if field.minimum > field.maximum:
    raise ValueError(
      f'Field {field.name!r} has minimum {field.minimum} above maximum '
      f'{field.maximum}; swap them.'
    )


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
