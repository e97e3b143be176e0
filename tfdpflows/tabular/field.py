"""One column of a table, as publicly known."""

from __future__ import annotations

import dataclasses
import math
import numbers

TYPES = ('integer', 'number', 'string', 'boolean')
_CONSTRAINTS = ('minimum', 'maximum', 'enum', 'required')
_MARKABLE = (*_CONSTRAINTS, 'type')
# Larger whole numbers have no exact float.
_LARGEST = 2**53


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

  >>> from tfdpflows.tabular.field import Field
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
  def is_numeric(self):
    """Whether values are integers or numbers."""
    return self.type in ('integer', 'number')

  @property
  def categories(self):
    """The declared values as a tuple, or `None` for a range."""
    if self.type == 'boolean' and self.enum is None:
      return (False, True)
    return self.enum

  @property
  def is_constant(self):
    """Whether the declaration allows one value only."""
    if self.categories is not None:
      return len(self.categories) == 1
    return self.minimum == self.maximum

  def to_dict(self):
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
  def from_dict(cls, raw):
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
