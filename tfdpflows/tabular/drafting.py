"""Drafts of schemas: what is read off a table, marked, and what cannot be."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import warnings
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tfdpflows.tabular import times, values
from tfdpflows.tabular.dialect import COMMAS, PLAIN, CellFormat, Dialect
from tfdpflows.tabular.field import Field
from tfdpflows.tabular.schema import TableSchema

_MOST_CATEGORIES = 1000
# Of so many values, nearly all different ones name rows.
_FEW = 20
_NEARLY_ALL = 0.9
# Words of a column that a message names.
_SHOWN = 4
_TRIED = 100
_LISTS = ('enum', 'trueValues', 'falseValues', 'missingValues')
_TEXTS = ('type', 'unit', 'format', 'timezone', 'decimalChar', 'groupChar')
_WORDS = ('required', 'bareNumber')
_OF_RANGES = ('minimum', 'maximum', 'decimals')
_OF_TIMES = ('unit', 'format', 'timezone')
_GIVEN = ('name', *_TEXTS, *_OF_RANGES, *_WORDS, *_LISTS)
# What says more than how cells are written: of which type these are.
_OF_TYPES = ('minimum', 'maximum', 'decimals', 'enum', 'unit', 'timezone')
_LIKE_A_DATE = re.compile(r'\d{1,4}[./-]\d{1,2}[./-]\d{1,4}(?:[T ][\d:.]+)?')
_LIKE_A_TIME = re.compile(r'\d{1,2}:\d\d(?::\d\d)?')
# A leading zero makes a code.
_CODE = re.compile(r'[+-]?0\d+')
# Decimal point and separator of groups that are tried.
_NOTATIONS = (('.', None), ('.', ','), (',', None), (',', '.'))
# A column is of numbers, or dates, if so many of its texts are; the others may
# be words for missing values.
_MOST = 0.75
_LETTERS = re.compile(r'[^\W\d_]+')
# As units; more different ones are parts of codes, such as 12A.
_MOST_UNITS = 3
# Names of identifiers, and how many texts may be those of people or products.
_NAMED_ID = re.compile(r'(?i:(?:.*[\W_])?id)|.*[a-z]I[Dd]', re.DOTALL)
_MANY = 200
# Names of those whose rows they may be, where there are more than a few.
_NAMED_WHO = re.compile(
  r'(?i:(?:.*[\W_])?(?:person|individual|subject|patient|respondent|customer|'
  r'client|employee|student|user|household)(?:[\W_]?(?:no|nr|number))?)',
  re.DOTALL,
)
_NUMBERS = ('integer', 'number')


class Finding(NamedTuple):
  """What somebody has to decide about a column.

  Attributes:
    column: its name.
    problem: what there is.
    fix: what to do.
    is_drafted: whether the schema has the column all the same.
  """

  column: str
  problem: str
  fix: str
  is_drafted: bool


class Draft(NamedTuple):
  """A schema that was read off a table.

  Attributes:
    schema: the `TableSchema`, with all that came from rows marked; `None` if no
      column can be described.
    findings: what cannot be described, or should be looked at.
  """

  schema: TableSchema | None
  findings: list[Finding]


def draft_schema(
  df: pd.DataFrame, privacy_unit: str | None = None, **options: Any
) -> TableSchema:
  """Returns a schema read off a table, of all columns, with everything marked.

  Args:
    df: a `pandas.DataFrame`.
    privacy_unit: name of the column with the privacy unit, if there is one.
    **options: see `draft`, which tells of all columns what is the matter.

  Raises:
    ValueError: if the table is empty, or naming the columns that cannot be
      described.

  #### Example

  >>> import pandas as pd
  >>> from tfdpflows.tabular import draft_schema
  >>> draft_schema(pd.DataFrame({'age': [31, 64, 64]})).draft_marks()
  {'age': ('minimum', 'maximum', 'required', 'type')}
  """
  found = draft(df, privacy_unit, **options)
  bad = [finding for finding in found.findings if not finding.is_drafted]
  if bad or found.schema is None:
    names = [finding.column for finding in bad]
    raise ValueError(
      '\n'.join(f'Column {f.column!r}: {f.problem}.' for f in bad)
      + f'\nLeave out what is not to be learned, drop={names}; the column that '
      'says whose rows are whose, if there is one, is the privacy_unit.'
    )
  for finding in found.findings:
    warnings.warn(
      f'Column {finding.column!r}: {finding.problem}.', stacklevel=2
    )
  return found.schema


def draft(
  df: pd.DataFrame,
  privacy_unit: str | None = None,
  *,
  columns: Collection[str] = (),
  drop: Collection[str] = (),
  overrides: dict[str, dict[str, Any]] | None = None,
  dialect: Dialect = COMMAS,
  cells: CellFormat = PLAIN,
  date_format: str | None = None,
  identifiers: Mapping[str, str] | None = None,
) -> Draft:
  """Reads a schema off a table, column by column.

  Args:
    df: a `pandas.DataFrame`.
    privacy_unit: name of the column with the privacy unit, if there is one.
    columns: the columns to describe; all by default. If there are others, the
      schema says that the table may have them.
    drop: the columns that are not described, likewise.
    overrides: `{column: what is public of it}`, as `read_overrides` gives it.
      It is taken as it is, and not marked.
    dialect: the `Dialect` of CSV files.
    cells: the `CellFormat` of all columns.
    date_format: of dates that are not written as in ISO 8601, and of those that
      are overridden without a format; see `times.TimeScale`.
    identifiers: of the schema, see `TableSchema`: columns that are not
      described, and of which synthetic rows get new values.

  Raises:
    ValueError: if the table is empty, or has not a column that is named; for a
      date_format in which no date can be written.

  #### Example

  >>> import pandas as pd
  >>> from tfdpflows.tabular import drafting
  >>> table = pd.DataFrame({'age': [31, 64], 'note': ['', '']})
  >>> found = drafting.draft(table, overrides={'age': {
  ...   'type': 'integer', 'minimum': 0, 'maximum': 120, 'required': True}})
  >>> found.schema['age'].maximum, found.schema.is_draft
  (120, False)
  >>> found.findings[0].column, found.findings[0].problem
  ('note', 'all values are missing')
  """
  given = values.checked_columns(df)
  if date_format is not None:
    try:
      times.TimeScale('date', None, date_format, None)
    except ValueError as error:
      raise ValueError(f'date_format {error}.') from None
  overrides, identifiers = overrides or {}, dict(identifiers or {})
  unit = None if privacy_unit is None else str(privacy_unit)
  if columns and drop:
    raise ValueError('Columns are to be described and dropped; give one list.')
  named = (*columns, *drop, *overrides, *identifiers)
  for name in (*named, *([] if unit is None else [unit])):
    if name not in given:
      is_unit = ', which is the privacy unit' if name == unit else ''
      raise ValueError(
        f'The table has no column {name!r}{is_unit}. It has '
        f'{", ".join(map(repr, given))}.'
      )
  wanted = [
    name
    for name in given
    if name not in (unit, *identifiers, *drop)
    and (not columns or name in columns)
  ]
  fields, findings = [], []
  for name in wanted:
    column = given[name].reset_index(drop=True)
    try:
      public = overrides.get(name, {})
      described = _Column(name, column, cells, date_format, public, findings)
      field = described.field()
    except ValueError as error:
      if name in overrides:
        if repr(name) in str(error):
          raise
        raise ValueError(
          f'Column {name!r}: {error}. Correct what the overrides say of it.'
        ) from error
      text = re.sub(r'^(Column|Field) .*?\'[:,]? |\.$', '', str(error))
      findings.append(Finding(name, text, _drop(name), False))
      continue
    if field is not None:
      fields.append(field)
  if not fields:
    return Draft(None, findings)
  known = {*wanted, *identifiers, unit}
  match = 'equal' if known.issuperset(given) else 'subset'
  schema = TableSchema(fields, unit, dialect, match, identifiers=identifiers)
  return Draft(schema, findings)


class _Column:
  """A column and what is read off it.

  Args:
    name: its name.
    cells: of the column, indexed from 0.
    cell_format: the `CellFormat`.
    date_format: of dates.
    given: what is public of it, a dict.
    findings: a list, to which what somebody has to decide is added.
  """

  def __init__(self, name, cells, cell_format, date_format, given, findings):
    self._name, self._cells, self._given = name, cells, dict(given)
    self._cell_format, self._date_format = cell_format, date_format
    self._findings = findings

  def field(self):
    """Returns the `Field`, `None` for what cannot be described."""
    given = self._given
    if given:
      # As in a schema, so that it is checked in the same way.
      _check_given(self._name, given)
      own = {**self._cell_format.to_dict(), **given}
      self._cell_format = CellFormat.from_dict(own)
    kind, marks = given.get('type'), []
    if kind == 'date':
      given.setdefault('format', self._date_format)
    if kind is None:
      missing = values.is_missing(
        self._cells, (), self._cell_format.missing_values
      )
      if missing.all():
        self._find('all values are missing', self._drop)
        return None
      if any(map(_is_no_text, self._cells[~missing])):
        self._find('bytes that are no text in UTF-8', self._drop)
        return None
      found = self._temporal(self._cells[~missing])
      if found is None:
        kind, _ = values.inferred(self._cells, self._name, self._cell_format)
      else:
        kind = found.pop('type')
        given.update(found)
      marks.append('type')
    known = {'required': given.get('required')}
    if 'enum' in given:
      known['enum'] = tuple(given['enum'])
    elif kind == 'string':
      known['enum'] = self._enum()
      if known['enum'] is None:
        return None
      marks.append('enum')
    elif kind != 'boolean':
      self._range(kind, known, marks)
    if 'required' not in given:
      known['required'] = not self._typed(kind).isna().any()
      marks.append('required')
    field = Field(
      self._name,
      kind,
      **known,
      from_data=tuple(m for m in _ORDER if m in marks),
      cells=self._cell_format,
      **{k: given.get(k) for k in _OF_TIMES},
    )
    if marks:
      self._note(field)
    return field

  @property
  def _drop(self):
    return _drop(self._name)

  def _find(self, problem, fix, is_drafted=False):
    self._findings.append(Finding(self._name, problem, fix, is_drafted))

  def _scale(self, kind):
    """The `TimeScale` of a type of time, else `None`."""
    if kind not in times.TYPES:
      return None
    return times.TimeScale(kind, *(self._given.get(k) for k in _OF_TIMES))

  def _typed(self, kind):
    """The values in a type; whole units of a type of time."""
    return values.typed(
      self._cells,
      kind,
      self._name,
      self._given.get('enum', ()),
      True,
      self._cell_format,
      self._scale(kind),
    )

  def _temporal(self, present):
    """The type of time of all cells, with its format; `None` if there is none.

    Numbers, and texts of numbers, are none.
    """
    zone = _zone_of(present)
    tries = [
      {'type': 'date'},
      {'type': 'datetime'},
      {'type': 'datetime', 'timezone': 'UTC'},
      {'type': 'time'},
      {'type': 'duration'},
    ]
    if zone is not None:
      tries.insert(0, {'type': 'datetime', 'timezone': str(zone)})
    if self._date_format is not None:
      tries.insert(-4, {'type': 'date', 'format': self._date_format})
    for found in tries:
      try:
        scale = times.TimeScale(**found)
      except ValueError:
        if found.get('format') is not None:
          raise
        continue  # A time zone that is an offset.
      if not any(
        scale.counts(some, clip=False)[1].any()
        for some in (present[:_TRIED], present)
      ):
        return found
    return None

  def _range(self, kind, known, marks):
    """Adds minimum, maximum and decimals, given or read."""
    known.update({k: self._given[k] for k in _OF_RANGES if k in self._given})
    if kind == 'time' and 'type' in self._given:
      return  # Any of a day.
    missing = [k for k in ('minimum', 'maximum') if k not in known]
    if kind == 'number' and 'decimals' not in known:
      missing.append('decimals')
    if not missing:
      return
    present = self._typed(kind).dropna()
    if not len(present):
      raise ValueError(f'no value is of the type {kind!r}')
    for key in missing:
      if key == 'decimals':
        known[key] = values.decimals(present)
        if known[key] is None:
          continue
      else:
        value = present.min() if key == 'minimum' else present.max()
        known[key] = self._written(kind, value)
      marks.append(key)

  def _written(self, kind, value):
    scale = self._scale(kind)
    if scale is None:
      return float(value) if kind == 'number' else int(value)
    try:
      return scale.text(int(value), iso=True)
    except OverflowError:
      raise ValueError('a time is out of range of the calendar') from None

  def _enum(self):
    """The different texts; `None` where they are no categories."""
    present = self._typed('string').dropna()
    texts = sorted(present.unique().tolist())
    if not texts:
      raise ValueError('no value is of the type')
    many = len(texts) > _MOST_CATEGORIES
    distinct = len(texts) > _NEARLY_ALL * len(present) and len(present) >= _FEW
    if not (many or distinct):
      return texts
    what = f'{len(texts)} different texts in {len(present)} rows'
    hint = self._hint(texts)
    if hint is not None:
      self._find(f'{what}{hint[0]}', f'{hint[1]}, or {self._drop}')
      return None
    blanks = np.mean([' ' in text.strip() for text in texts[:_TRIED]])
    if blanks > 0.5:
      what = f'free text: {what}'
      fix = 'or make categories of it: free text is not learned'
    elif distinct:
      what = f'an identifier: {what}'
      fix = f'or {self._new_ones} for new ones'
    else:
      fix = f'or group them into at most {_MOST_CATEGORIES} categories'
    if len(texts) < len(present) and blanks <= 0.5:
      # Of rows that are all different none is somebody's second.
      fix += f', or {self._unit} if it says whose rows are whose'
    self._find(what, f'{self._drop}, {fix}')
    return None

  @property
  def _new_ones(self):
    return f'--identifier={shlex.quote(f"{self._name}={{:06d}}")}'

  @property
  def _unit(self):
    return f'--privacy_unit={shlex.quote(self._name)}'

  def _hint(self, texts):
    """What texts may be that are written in another way, `None` if nothing.

    Returns:
      What more there is to say of them ('' if nothing), and what to do.
    """
    some = texts[:: -(-len(texts) // _TRIED)]
    most = _MOST * len(some)
    if sum(map(_is_like_a_date, some)) >= most:
      words = [text for text in texts if not _is_like_a_date(text)]
      return self._hint_of_dates(texts, words)
    if (
      sum(_LIKE_A_TIME.fullmatch(text.strip()) is not None for text in some)
      >= most
    ):
      return self._hint_of_times(texts)
    if any(_CODE.fullmatch(text.strip()) for text in texts):
      return None
    best = max(self._notations(), key=lambda cells: _count(some, cells))
    if _count(some, best) < most:
      return None
    kinds = values.kinds(pd.Series(texts, dtype=object), best)
    words = [text for text, kind in zip(texts, kinds) if kind not in _NUMBERS]
    if not words and best == self._cell_format:
      return None
    return self._with_words(words, _flags(best, self._cell_format), 'numbers')

  def _notations(self):
    """The formats of numbers to try, those that say least first."""
    yield self._cell_format
    for bare in (True, False):
      for point, group in _NOTATIONS:
        yield dataclasses.replace(
          self._cell_format,
          decimal_char=point,
          group_char=group,
          bare_number=bare,
        )

  def _hint_of_dates(self, texts, words):
    if self._date_format is None:
      return self._with_words(words, '--date_format=%d.%m.%Y', 'dates')
    scale = times.TimeScale('date', None, self._date_format, None)
    _, bad = scale.counts(pd.Series(texts, dtype=object), clip=False)
    others = [t for t in np.array(texts, object)[bad] if _is_like_a_date(t)]
    if not others:
      return self._with_words(words, '', 'dates')
    return (
      f', of which {len(others)} do not fit --date_format={self._date_format}, '
      f'such as {others[0]!r}',
      'write all dates in one format',
    )

  def _hint_of_times(self, texts):
    scale = times.TimeScale('time', None, None, None)
    _, bad = scale.counts(pd.Series(texts, dtype=object), clip=False)
    if not bad.any():
      return None
    other = max(np.array(texts, object)[bad], key=len)
    return (
      f', of which {bad.sum()} are no times of a day, such as {other!r}',
      'write times as 09:05, and none as an empty cell, if they are times',
    )

  def _with_words(self, words, flags, kind):
    """A hint that names flags, and the words that are no numbers or dates."""
    if not words:
      return '', f'{flags} if they are {kind}'
    one = len(words) == 1
    is_none = f'1 is no {kind[:-1]}' if one else f'{len(words)} are no {kind}'
    # The flags stand in place of the words that are known by now.
    shown = (*words[:_SHOWN], *self._cell_format.missing_values)
    missing = [f'--missing_values={shlex.quote(w) if w else w}' for w in shown]
    fix = ' '.join([flags, *missing] if flags else missing)
    more = ' and so on' * (len(words) > _SHOWN)
    these = 'this is a missing value' if one else 'these are missing values'
    also = f'they are {kind} and ' if flags else ''
    return f', of which {is_none}', f'{fix}{more} if {also}{these}'

  def _note(self, field):
    """Notes what was drafted, and should be looked at."""
    if field.is_constant and field.required:
      what = 'a single value; nothing can be learned from it'
      self._find(what, self._drop, True)
    elif field.is_constant:
      what = 'a single value, or none'
      self._find(
        what, f'{self._drop} if which rows have none says little', True
      )
    elif field.type == 'string' and 'enum' in field.from_data:
      hint = self._hint(list(field.enum))
      if hint is not None:
        what = hint[0] or ' that look like something else'
        self._find(f'{len(field.enum)} texts{what}', hint[1], True)
      elif self._may_be_who(len(field.enum)) or len(field.enum) > _MANY:
        self._note_identifier(len(field.enum))
    elif field.type == 'integer' and 'type' in field.from_data:
      present = self._typed('integer').dropna()
      if len(present) >= _FEW and present.is_unique:
        what = 'all values are different, as those of an identifier'
        self._find(what, f'{self._drop} if it is', True)
      elif self._may_be_who(present.nunique()):
        self._note_identifier(present.nunique())

  def _may_be_who(self, count):
    """Whether the name is that of an identifier with so many values."""
    if _NAMED_ID.fullmatch(self._name):
      return True
    return count >= _FEW and _NAMED_WHO.fullmatch(self._name) is not None

  def _note_identifier(self, count):
    """Notes a column of values that repeat, and that may be people."""
    self._find(
      f'{count} different values that repeat: an identifier, or a code?',
      f'{self._unit} if it says whose rows are whose, {self._new_ones} for '
      'new ones, or list the values of the code (enum in --overrides)',
      True,
    )


def _is_like_a_date(text):
  return _LIKE_A_DATE.fullmatch(text.strip()) is not None


def _count(texts, cells):
  """How many texts are numbers in a format; none if they are rather codes."""
  kinds = values.kinds(pd.Series(texts, dtype=object), cells)
  found = [text for text, kind in zip(texts, kinds) if kind in _NUMBERS]
  units = {unit for text in found for unit in _LETTERS.findall(text)}
  # Few texts such as 'Type 1' are categories.
  most = _MOST_UNITS if len(texts) >= _FEW else 0
  return len(found) if len(units) <= most else 0


def _flags(cells, given):
  """The flags of a format of numbers, '' if it is the one that was given."""
  if cells == given:
    return ''
  found = []
  if {cells.decimal_char, given.decimal_char} != {'.'}:
    found.append(f'--decimal_char={cells.decimal_char}')
  if cells.group_char:
    found.append(f'--group_char={shlex.quote(cells.group_char)}')
  if not cells.bare_number:
    found.append('--nobare_number')
  return ' '.join(found)


def _zone_of(cells):
  """The time zone of a column, `None` without one.

  As its type has it, or all of its first cells: files give objects of Python.
  """
  if hasattr(cells.dtype, 'tz'):
    return cells.dtype.tz
  zones = {getattr(cell, 'tzinfo', None) for cell in cells[:_TRIED]}
  return zones.pop() if len(zones) == 1 else None


def _is_no_text(cell):
  try:
    if isinstance(cell, bytes):
      cell.decode()
  except UnicodeDecodeError:
    return True
  return False


def _drop(name):
  return f'--drop={shlex.quote(name)}'


# In which marks are written.
_ORDER = ('decimals', 'minimum', 'maximum', 'enum', 'required', 'type')


def _check_given(name, given):
  for key in given:
    if key not in _GIVEN:
      raise ValueError(
        f'Column {name!r}: {key!r} is no property; known are '
        f'{", ".join(_GIVEN)}.'
      )
  of_type = [key for key in _OF_TYPES if key in given]
  if of_type and 'type' not in given:
    raise ValueError(
      f'Column {name!r}: {of_type[0]} is given, and no type; give the type too.'
    )
  for key in _LISTS:
    if isinstance(given.get(key), str):
      raise ValueError(
        f'Column {name!r}: {key} is the text {given[key]!r}; give a list.'
      )


def read_overrides(path: str | os.PathLike) -> dict[str, dict[str, Any]]:
  """Reads what is publicly known of some columns from a CSV file.

  A row is a column of the table: `name`, and any of `type`, `minimum`,
  `maximum`, `enum`, `required`, `decimals`, `unit`, `format`, `timezone`,
  `decimalChar`, `groupChar`, `bareNumber`, `trueValues`, `falseValues`,
  `missingValues`. An empty cell says nothing. Lists are separated by |. A row
  with a range or an enum has the type too.

  Raises:
    ValueError: naming the file, and the row and what to do.
    OSError: if it cannot be read.

  #### Example

  >>> import os, tempfile
  >>> path = os.path.join(tempfile.mkdtemp(), 'public.csv')
  >>> with open(path, 'w') as file:
  ...   _ = file.write('name,type,minimum,maximum,enum\\n'
  ...                  'age,integer,0,120,\\nsex,string,,,f|m\\n')
  >>> read_overrides(path)['sex']
  {'type': 'string', 'enum': ['f', 'm']}
  """
  dialect = Dialect.of_file(path)
  try:
    table = pd.read_csv(
      path,
      sep=dialect.delimiter,
      encoding=dialect.reads,
      dtype=str,
      keep_default_na=False,
      index_col=False,
    )
  except (ValueError, pd.errors.ParserError) as error:
    raise ValueError(f'{path}: {error}') from error
  found = {}
  for key in table.columns:
    if key not in _GIVEN:
      raise ValueError(
        f'{path}: {key!r} is no property; known are {", ".join(_GIVEN)}.'
      )
  if 'name' not in table.columns:
    raise ValueError(f'{path}: there is no column "name"; name the columns.')
  for row, line in enumerate(table.to_dict('records')):
    name = line.pop('name')
    if not name or name in found:
      raise ValueError(
        f'{path}, row {row + 1}: the name {name!r} is empty or there twice.'
      )
    try:
      given = {k: v for k, v in line.items() if v != ''}
      kind = given.get('type')
      given = {k: _read_given(k, v, kind) for k, v in given.items()}
      _check_given(name, given)
    except ValueError as error:
      raise ValueError(f'{path}, row {row + 1}: {error}') from error
    found[name] = given
  return found


def _read_given(key, text, kind):
  if key in _TEXTS:
    return text
  if key in _WORDS:
    if text.lower() not in ('true', 'false'):
      raise ValueError(f'{key} is {text!r}; write true or false.')
    return text.lower() == 'true'
  if key in _LISTS:
    texts = text.split('|')
    if key == 'enum' and len(texts) == 1 and re.search('[,;]', text):
      raise ValueError(
        f'enum is {text!r}, one value: write | between values, or, if it is '
        'one, write it into the schema.'
      )
    if key == 'enum' and kind in ('integer', 'number'):
      return [_number(key, text) for text in texts]
    return texts
  if key == 'decimals' or kind not in times.TYPES:
    return _number(key, text)
  return text


def _number(key, text):
  try:
    return int(text)
  except ValueError:
    pass
  try:
    return float(text)
  except ValueError:
    raise ValueError(f'{key} has {text!r}; give a number.') from None
