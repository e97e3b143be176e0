"""What is publicly known about a table: columns, types, ranges, categories."""

from __future__ import annotations

import json
import os
import warnings

from tfdpflows import atomic
from tfdpflows.tabular import values
from tfdpflows.tabular.field import Field

_MOST_CATEGORIES = 1000


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

  def __init__(self, fields):
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

  def __len__(self):
    return len(self.fields)

  def __iter__(self):
    return iter(self.fields)

  def __getitem__(self, name):
    for field in self.fields:
      if field.name == name:
        return field
    raise KeyError(f'The schema has no field {name!r}; it has {self.names}.')

  def __repr__(self):
    return f'TableSchema({list(self.fields)!r})'

  @property
  def names(self):
    """Names of the columns, in order."""
    return tuple(field.name for field in self.fields)

  @property
  def is_draft(self):
    """Whether anything in it was read off the data."""
    return any(field.from_data for field in self.fields)

  def draft_marks(self):
    """Returns `{column: names of the constraints read off the data}`."""
    return {f.name: f.from_data for f in self.fields if f.from_data}

  @classmethod
  def from_dict(cls, raw):
    """Returns the schema that a `dict` with key 'fields' describes."""
    if not isinstance(raw, dict) or not isinstance(raw.get('fields'), list):
      raise ValueError('A schema is an object with a list named "fields".')
    return cls(Field.from_dict(field) for field in raw['fields'])

  def to_dict(self):
    """Returns the schema as a JSON-able `dict`."""
    return {'fields': [field.to_dict() for field in self.fields]}

  @classmethod
  def from_json(cls, path):
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

  def to_json(self, path, overwrite=False):
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
  def draft(cls, df):
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

  def validate(self, df, out_of_range='error', *, fitting=True):
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
    return values.validated(self, df, out_of_range, fitting)

  def public_part(self, df):
    """Returns a table of what the schema says without its marks.

    Args:
      df: a `pandas.DataFrame` with the columns of the schema at least, of any
        number of rows and any values.

    Returns:
      A new `DataFrame`, as `validate` returns it under 'clip' for fitting.
    """
    return values.public_part(self, df)

  @staticmethod
  def kinds(column):
    """Returns of which type every cell of a column looks.

    Args:
      column: a `pandas.Series` of strings, such as `public_part` gives of a
        column whose type is marked.

    Returns:
      An object array `[n]` of 'boolean', 'integer', 'number', 'string', or
      `None` for a missing value.
    """
    return values.kinds(column)


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
