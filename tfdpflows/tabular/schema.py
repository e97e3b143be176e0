"""What is publicly known about a table: columns, types, ranges, categories."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pandas as pd

from tfdpflows import atomic
from tfdpflows._checks import check_type
from tfdpflows.tabular import (
  constrained_rows,
  constraints,
  declared,
  values,
)
from tfdpflows.tabular.dialect import (
  COMMAS,
  MISSING,
  CellFormat,
  Dialect,
  can_write,
)
from tfdpflows.tabular.field import (
  Field,
  check_properties,
  digits,
  of_counts,
)

_MATCHES = ('equal', 'subset')
_PROPERTIES = ('fields', 'privacyUnit', 'missingValues', 'dialect', 'encoding')
_PROPERTIES += ('fieldsMatch', 'constraints', 'identifiers')
# A step between numbers that is told: in narrower ranges noise blurs more.
_COARSE = 1000


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
    if not name:
      raise ValueError(
        'An identifier of the schema has an empty name; give that of a column.'
      )
    if name in self.names:
      raise ValueError(
        f'The identifier {name!r} of the schema has the name of a field; an '
        'identifier is not learned. Remove the field or the identifier.'
      )
    if name == self.privacy_unit:
      raise ValueError(
        f'The identifier {name!r} of the schema has the name of the privacy '
        'unit, which is not made anew. Remove the identifier.'
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
    """Returns the schema that a `dict` with key 'fields' describes.

    Raises:
      ValueError: for what describes no table, naming the column or property.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get('fields'), list):
      raise ValueError('A schema is an object with a list named "fields".')
    check_properties(raw, _PROPERTIES, 'The schema')
    fields, match = raw['fields'], raw.get('fieldsMatch', 'equal')
    if match == 'exact':  # The order of columns has never mattered.
      match = 'equal'
    if 'missingValues' in raw:
      # Of all fields that have no words of their own.
      words = {'missingValues': raw['missingValues']}
      fields = [{**words, **f} if isinstance(f, dict) else f for f in fields]
    return cls(
      (Field.from_dict(field) for field in fields),
      raw.get('privacyUnit'),
      Dialect.from_dict(raw),
      match,
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
    except UnicodeDecodeError as error:
      raise ValueError(f'{path} is not UTF-8; save it as UTF-8.') from error
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
    atomic.write_file(path, f'{text}\n'.encode())

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
    check_out_of_range(out_of_range)
    clip = out_of_range == 'clip'
    given = values.checked_columns(df)
    self.check_columns(given)
    if fitting:
      check_num_rows(len(df), self)
      self.warn_of_columns()
    columns = {
      field.name: declared.declared(
        given[field.name],
        field,
        field.from_data if fitting else (),
        clip,
        fitting,
        whole=fitting and not clip,
      )
      for field in self.fields
    }
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
    is_needed = set(self.names if self.constraints or not names else names)
    clip = out_of_range == 'clip'
    columns = {
      field.name: declared.declared(
        df[field.name], field, field.from_data, clip
      )
      for field in self.fields
      if field.name in is_needed
    }
    return constrained_rows.meet(pd.DataFrame(columns), self, out_of_range)

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
      raise ValueError(
        f'The table has no column {self.privacy_unit!r}, which is the privacy '
        f'unit. It has {", ".join(map(repr, names))}.'
      )

  def warn_of_columns(self) -> None:
    """Warns of columns of one value, and of ranges that blur small numbers."""
    for field in self.fields:
      step = _step(field)
      if step >= _COARSE:
        warnings.warn(
          f'Column {field.name!r} has a range in which numbers are told apart '
          f'to the nearest {step:,.0f}, and smaller ones become 0 or '
          f'{step:,.0f}. If that loses something, narrow the range, or give '
          'the logarithm in its place.',
          stacklevel=4,
        )
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
    return declared.declared(column, self[name], (), out_of_range == 'clip')

  def count_clipped(self, df: pd.DataFrame) -> dict[str, int]:
    """Returns `{column: cells that 'clip' replaces}`, without columns of none.

    A value is replaced where it is moved, rounded or made missing, a missing
    one where the column is required, and one with which its row would break a
    constraint (`validate`).

    >>> schema = TableSchema([Field('age', 'integer', 0, 120)])
    >>> schema.count_clipped(pd.DataFrame({'age': ['7', '130', '0.5', None]}))
    {'age': 2}
    """
    given = values.columns_of(df)
    self._check_complete(given)
    columns = {
      name: self.validate_column(name, given[name], 'clip')
      for name in self.names
    }
    met = constrained_rows.meet(pd.DataFrame(columns), self, 'clip')
    counts = {}
    for field in self.fields:
      column = given[field.name].reset_index(drop=True)
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
    given = values.columns_of(df)
    self._check_complete(given)
    return dataclasses.replace(
      self,
      constraints=(),
      fields=[
        declared.widened(field, given[field.name], most)
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
    given = values.checked_columns(df)
    self.check_unit(given)
    column = given[self.privacy_unit]
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
        'the identifier of the privacy unit is missing. Fill it in, with text '
        'or a whole number, or set out_of_range to clip, which leaves such '
        'rows out.',
      ),
      (
        values.beyond_floats(column),
        'the identifier is beyond 2**53 (in float32, 2**24), and is rounded to '
        'that of others. Give the column as text, of the whole numbers: '
        "df[...].astype('str').",
      ),
      (
        values.unreadable(ids),
        'the identifier has a character that cannot be a part of text (NUL, '
        'U+FFFD or an unpaired surrogate), so that it may equal that of '
        'others. Correct it, or set out_of_range to clip, which leaves such '
        'rows out.',
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
    given = values.columns_of(df)
    self._check_complete(given)
    self._check_payable()
    columns = {}
    for field in self.fields:
      if 'decimals' in field.from_data:
        raise ValueError(
          f'Column {field.name!r} marks its decimals as read off the data, and '
          'no budget pays for them: state them from public knowledge, or '
          'remove them (`TableSchema.for_bounds`).'
        )
      columns[field.name] = declared.declared(
        given[field.name], field, field.from_data, clip=True
      )
    return pd.DataFrame(columns)

  def _check_complete(self, names):
    for name in self.names:
      if name not in names:
        raise ValueError(
          f'The table has no column {name!r}; add it, or remove the field from '
          f'the schema. The table has {", ".join(map(repr, names))}.'
          f'{_other_delimiter(names, self.dialect.delimiter)}'
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


def _other_delimiter(names, expected):
  """What to do where all names seem to be in one, separated otherwise."""
  for delimiter in ',;\t|'.replace(expected, ''):
    if len(names) == 1 and delimiter in str(next(iter(names))):
      if expected != ',':
        return (
          f' Its cells seem to be separated by {delimiter!r}, and the schema '
          f'says {expected!r}.'
        )
      return (
        ' If cells are separated by that, add "dialect": {"delimiter": '
        f'{json.dumps(delimiter)}}} to the schema before a fit; for a model '
        f'that is fitted, separate them by {expected!r}.'
      )
  return ''


def check_schema(schema: Any) -> None:
  """Raises a `TypeError` for what is no `TableSchema`, such as its path."""
  check_type('schema', schema, TableSchema, 'TableSchema.from_json(path)')


def check_out_of_range(value: str) -> None:
  """Raises a `ValueError` for what is neither 'error' nor 'clip'."""
  if value not in ('error', 'clip'):
    raise ValueError(
      f"out_of_range is {value!r}; it must be 'error' or 'clip'."
    )


def check_num_rows(num_rows: int, schema: TableSchema) -> None:
  """Refuses a table of which nothing can be learned.

  Where rows belong to units, the number of these is public, and that of the
  rows is not.
  """
  if num_rows < 2 and schema.privacy_unit is None:
    raise ValueError(
      'The table has one row; a distribution needs at least two.'
    )


def _step(field):
  """To what numbers of a public range without decimals are rounded, else 0."""
  if field.type != 'number' or field.categories or field.grid is not None:
    return 0
  if field.is_constant or {'minimum', 'maximum'} & set(field.from_data):
    return 0
  size = float(field.maximum) - float(field.minimum)
  return 10.0 ** -digits(size) if math.isfinite(size) else 0
