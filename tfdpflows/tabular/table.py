"""Tables in CSV files."""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import gzip
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pandas as pd

from tfdpflows import atomic
from tfdpflows.tabular import values
from tfdpflows.tabular.dialect import COMMAS, DELIMITERS, MISSING, Dialect
from tfdpflows.tabular.field import of_counts, typed
from tfdpflows.tabular.schema import TableSchema, check_schema

# Rows that are turned into columns at one time.
_BLOCK = 1 << 14
_ZIP = b'PK\x03\x04'
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Bytes of a header that tell UTF-16 without a byte order mark.
_START = 1 << 10


def read_table(
  path: str | os.PathLike,
  schema: TableSchema | None = None,
  out_of_range: str = 'error',
) -> pd.DataFrame:
  """Reads a CSV file: a header, one row per line.

  It is of UTF-8 with commas, and empty cells and the words NA, NaN and null are
  missing values, unless the schema says otherwise: by its dialect, by the
  formats of its columns, or by listing a word among the categories.

  Args:
    path: path of the file; may end in '.gz'.
    schema: `TableSchema` with the types, or `None` to infer them: boolean,
      integer and number where every value reads as one (a leading zero or more
      than 15 digits make a code, which stays text), string otherwise. A column
      whose type is marked as read off the data stays text.
    out_of_range: 'error' refuses other files and cells of another type. 'clip',
      with a schema, refuses no row: bytes that are not UTF-8 become the
      character U+FFFD, cells that a line lacks are missing, extra cells are
      dropped, a quote that is never closed is an ordinary character, and for
      cells of another type see `TableSchema.validate`.

  Returns:
    A `DataFrame` in the order of the file: `Int64` or `int64` integers,
    `float64` numbers, `boolean` or `bool`, strings as `object`. Ranges and
    categories are not checked; `TableSchema.validate` does that.

  Raises:
    ValueError: naming path, line and cause if the file is no such table. Under
      'clip' for its header, or if there are no rows.
    OSError: if it cannot be read.

  #### Example

  >>> import os, tempfile
  >>> from tfdpflows.tabular import read_table
  >>> path = os.path.join(tempfile.mkdtemp(), 'people.csv')
  >>> with open(path, 'w') as file:
  ...   _ = file.write('age,zip\\n31,01234\\nNA,99501\\n')
  >>> read_table(path)
      age    zip
  0    31  01234
  1  <NA>  99501
  """
  if schema is not None:
    check_schema(schema)
  path = os.fspath(path)
  clip = out_of_range == 'clip'
  names, columns, known = [], [], []
  dialect = COMMAS if schema is None else schema.dialect
  for names, cells in csv_blocks(path, clip, dialect):
    columns = columns or [[] for _ in names]
    # Equal cells share one string.
    known = known or [{} for _ in names]
    for column, seen, part in zip(columns, known, cells):
      column.extend(map(seen.setdefault, part, part))
  if not columns[0]:
    raise ValueError(f'{path}: the file has a header but no rows; add rows.')
  try:
    return pd.DataFrame(
      {
        name: _typed(pd.Series(cells, dtype=object), name, schema, clip)
        for name, cells in zip(names, columns)
      }
    )
  except values.CellError as error:
    find = functools.partial(line_of, path, dialect)
    raise ValueError(f'{path}: {error.in_file(find)}') from None
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def csv_blocks(
  path: str, clip: bool, dialect: Dialect, size: int = _BLOCK
) -> Iterator[tuple[list[str], list[tuple[str, ...]]]]:
  """Yields the names of the columns, and the cells of some rows by column.

  Of a file without rows one empty block.

  Args:
    path: see `read_table`, as the errors.
    clip: whether no row is refused.
    dialect: the `Dialect` of the file.
    size: most rows of a block.
  """
  try:
    with _cells_of_any_length():
      physical = _physical(path, clip, dialect.reads)
      lines = _lines(physical, clip, dialect.delimiter)
      yield from _blocks(lines, clip, size, dialect.delimiter)
  except UnicodeDecodeError as error:
    raise ValueError(f'{path}: {_not_decoded(path, dialect)}') from error
  except (ValueError, csv.Error) as error:
    raise ValueError(f'{path}: {error}') from error


def line_of(path: str, dialect: Dialect, row: int) -> int | None:
  """Returns the line of a CSV file where a row begins, for messages.

  Cells may have line breaks, and lines may be empty. Rows are counted from 0,
  lines from 1; it is `None` where the file cannot be read so far, or again.
  """
  if not os.path.isfile(path):
    return None  # A pipe is read once: opened again it would wait for ever.
  names, before = None, 0
  with contextlib.suppress(ValueError, csv.Error), _cells_of_any_length():
    lines = _lines(
      _physical(path, False, dialect.reads), False, dialect.delimiter
    )
    for number, cells in lines:
      if names is None:
        names = cells or None
      elif cells or len(names) == 1:
        if not row:
          return before + 1
        row -= 1
      before = number
  return None


def write_table(df: pd.DataFrame, path: str | os.PathLike) -> None:
  """Writes a table as CSV atomically, and replaces an earlier file.

  Missing values become empty cells (or the first of NA, NaN and null that is
  no value of the table, when an empty string is one), booleans true and false.

  Args:
    df: a `DataFrame`.
    path: path of the file; compressed if it ends in '.gz'.

  Raises:
    OSError: if it cannot be written; a file that was there is left alone.
  """
  path = os.fspath(path)
  used = set()
  for column in values.checked_columns(df, allow_empty=True).values():
    is_bool = pd.api.types.is_bool_dtype(column.dtype)
    if values.is_text(column) and not is_bool:
      used.update(column.dropna().unique())
  missing = next((word for word in MISSING if word not in used), '')

  def write(file):
    if path.endswith('.gz'):
      with gzip.GzipFile(fileobj=file, mode='wb', filename='') as packed:
        write_csv(df, packed, missing)
    else:
      write_csv(df, file, missing)

  atomic.write_file(path, write)


def write_csv(
  df: pd.DataFrame,
  file: BinaryIO,
  missing: str,
  header: bool = True,
  dialect: Dialect = COMMAS,
) -> None:
  """Writes rows of CSV to an open file.

  Args:
    df: a `DataFrame`.
    file: binary.
    missing: what stands for a missing value.
    header: whether the names of the columns come first.
    dialect: the `Dialect` to write in.
  """
  columns = {}
  for name in df.columns:
    column = df[name]
    if pd.api.types.is_bool_dtype(column.dtype):
      column = column.astype(object).map({True: 'true', False: 'false'})
    columns[name] = column
  texts = [str(name) for name in columns]
  for column in columns.values():
    if values.is_text(column):
      texts += [text for text in column.unique() if isinstance(text, str)]
  # Python quotes no carriage return, and reads it as the end of a row.
  has_returns = any('\r' in text for text in texts)
  text = io.TextIOWrapper(file, encoding=dialect.encoding, newline='')
  pd.DataFrame(columns).to_csv(
    text,
    index=False,
    na_rep=missing,
    lineterminator='\n',
    header=header,
    sep=dialect.delimiter,
    quoting=csv.QUOTE_ALL if has_returns else csv.QUOTE_MINIMAL,
  )
  text.flush()
  text.detach()


def _not_decoded(path, dialect):
  """Says which line of a file is not in its encoding."""
  name = dialect.encoding.upper()
  fix = (
    'name its encoding in the schema ("encoding": "cp1252"), or convert the '
    'file, for instance with iconv -f latin1 -t utf-8.'
  )
  with _opened(path) as file:
    for number, line in enumerate(file, 1):
      try:
        line.decode(dialect.encoding)
      except UnicodeDecodeError as error:
        if not name.startswith('UTF-8'):
          break  # Lines of bytes may be none of characters.
        byte = line[error.start]
        return f'line {number} is not {name} (byte 0x{byte:02x}); {fix}'
  return f'the file is not {name}; {fix}'


def _opened(path):
  return (gzip.open if path.endswith('.gz') else open)(path, 'rb')


def _blocks(lines, clip, size, delimiter):
  _, names = next((line for line in lines if line[1]), (0, None))
  if names is None:
    raise ValueError('the file is empty; it needs a header and rows.')
  for place, name in enumerate(names):
    if not name.strip():
      raise ValueError(f'column {place + 1} has no name; name it in line 1.')
    if name in names[:place]:
      raise ValueError(f'two columns are named {name!r}; rename one.')
  block, is_empty = [], True
  for number, cells in lines:
    # An empty line is a missing value of a single column, else no row at all.
    if not cells and len(names) > 1:
      continue
    if len(cells) != len(names):
      if cells and not clip:
        raise ValueError(
          f'line {number} has {len(cells)} cells, the header has '
          f'{len(names)}; {_other_delimiter(names, delimiter)}quote cells that '
          f'contain {_words(delimiter)}.'
        )
      cells = [*cells, *[''] * len(names)][: len(names)]
    block.append(cells)
    if len(block) == size:
      is_empty = False
      yield names, list(zip(*block))
      block.clear()
  if block:
    yield names, list(zip(*block))
  elif is_empty:
    yield names, [()] * len(names)


def _other_delimiter(names, delimiter):
  """What to do where the only name seems to be several; '' elsewhere."""
  other = likely_delimiter(names, delimiter)
  if other is None:
    return ''
  return (
    f'if {_words(other)} are between the cells, name them in the schema '
    f'("dialect": {{"delimiter": {json.dumps(other)}}}), else '
  )


def likely_delimiter(names: Sequence[str], delimiter: str) -> str | None:
  """Returns what else may be between the cells; `None` if nothing is likely.

  >>> likely_delimiter(['age;sex'], ','), likely_delimiter(['age', 'sex'], ',')
  (';', None)
  """
  if len(names) != 1:
    return None
  others = [d for d in DELIMITERS if d != delimiter and d in names[0]]
  return max(others, key=names[0].count, default=None)


def _words(delimiter):
  known = {',': 'commas', ';': 'semicolons', '\t': 'tabs'}
  return known.get(delimiter, delimiter)


@contextlib.contextmanager
def _cells_of_any_length():
  limit = csv.field_size_limit(2**31 - 1)
  try:
    yield
  finally:
    csv.field_size_limit(limit)


def _physical(path, clip, encoding):
  """Yields the lines of a file as text."""
  with _opened(path) as file:
    # In UTF-8 there are no such bytes; they stand before the header.
    if encoding == 'utf-8-sig' and file.peek(2)[:2] in _UTF16:
      raise ValueError(
        'the file is UTF-16, by its byte order mark; name its encoding in the '
        'schema ("encoding": "utf-16"), or convert the file, for instance with '
        'iconv -f utf-16 -t utf-8.'
      )
    kind = _utf16_without_mark(file.peek(_START)[:_START])
    if encoding == 'utf-8-sig' and kind is not None:
      raise ValueError(
        'the file is UTF-16 without a byte order mark, by the NUL bytes of '
        f'its header; name its encoding in the schema ("encoding": "{kind}"), '
        f'or convert the file, for instance with iconv -f {kind} -t utf-8.'
      )
    if file.peek(4)[:4] == _ZIP:
      raise ValueError(
        'the file is a ZIP archive, as those of Excel are, and no CSV file; '
        'save its sheet as CSV.'
      )
    errors = 'replace' if clip else 'strict'
    for line in io.TextIOWrapper(file, encoding, errors, newline=''):
      # Python 3.9 and 3.10 read no file with NUL characters.
      yield line.replace('\0', '\ufffd') if clip else line


def _utf16_without_mark(start):
  """The encoding of a header whose every other byte is NUL, or `None`.

  Of the header alone, which is public: lines may end in CR.
  """
  header = re.split(rb'[\r\n]', start, maxsplit=1)[0]
  even, odd = header[::2].count(0), header[1::2].count(0)
  if 5 * max(even, odd) < 2 * len(header) or even == odd:
    return None
  return 'utf-16-be' if even > odd else 'utf-16-le'


def _lines(physical, clip, delimiter=','):
  """Yields the number of a line of a CSV file, and its cells."""
  if not clip:
    lines = csv.reader(physical, strict=True, delimiter=delimiter)
    for cells in lines:
      yield lines.line_num, cells
    return
  physical = _Physical(physical)
  lines = csv.reader(physical, delimiter=delimiter)
  start = 0  # Where the row begins that is read next.
  for cells in lines:
    if physical.ended and _is_open(physical.of_row, delimiter):
      break
    yield lines.line_num, cells
    start = lines.line_num
    physical.of_row.clear()
  # A quote swallowed all that follows. None of these lines closes a quote that
  # an earlier one leaves open: each is a row, those with such a quote as is.
  for number, line in enumerate(physical.of_row, start + 1):
    is_open = _is_open([line], delimiter)
    quoting = csv.QUOTE_NONE if is_open else csv.QUOTE_MINIMAL
    row = csv.reader([line], quoting=quoting, delimiter=delimiter)
    yield number, next(row)


class _Physical:
  """Lines, of which it is known which make a row and whether one is the last.

  Attributes:
    of_row: the lines that were read since this list was cleared.
  """

  def __init__(self, lines):
    self._lines = iter(lines)
    self._next = next(self._lines, None)
    self.of_row = []

  @property
  def ended(self):
    return self._next is None

  def __iter__(self):
    return self

  def __next__(self):
    line = self._next
    if line is None:
      raise StopIteration
    self._next = next(self._lines, None)
    self.of_row.append(line)
    return line


def _is_open(lines, delimiter=','):
  """Whether a quote in the last row of a file is never closed."""
  return len(list(csv.reader([*lines, 'x'], delimiter=delimiter))) == 1


def _typed(column, name, schema, clip):
  if schema is not None and name == schema.privacy_unit:
    return values.typed(column, 'string', name, clip=clip)
  if schema is not None and name in schema.names:
    field = schema[name]
    column = typed(column, field, field.from_data, clip)
    if field.is_temporal and 'type' not in field.from_data:
      return of_counts(column, field)
    return _dense(column)
  if values.is_missing(column).all():
    return pd.Series(float('nan'), index=column.index, name=name)
  return _dense(values.inferred(column, name)[1])


def _dense(column):
  """Drops the mask of a column that has no missing values."""
  plain = {'Int64': 'int64', 'boolean': 'bool'}.get(str(column.dtype))
  if plain and not column.isna().any():
    return column.astype(plain)
  return column
