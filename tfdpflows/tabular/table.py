"""Tables in CSV files."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os

import pandas as pd

from tfdpflows import atomic
from tfdpflows.tabular import values
from tfdpflows.tabular.schema import TableSchema

# Rows that are turned into columns at one time.
_BLOCK = 1 << 14


def read_table(
  path: str | os.PathLike,
  schema: TableSchema | None = None,
  out_of_range: str = 'error',
) -> pd.DataFrame:
  """Reads a CSV file: UTF-8, commas, a header, one row per line.

  Empty cells and the words NA, NaN and null are missing values, unless the
  schema lists them among the categories of the column.

  Args:
    path: path of the file; may end in '.gz'.
    schema: `TableSchema` with the types, or `None` to infer them: boolean,
      integer and number where every value reads as one (a leading zero makes a
      code, which stays text), string otherwise. A column whose type is marked
      as read off the data stays text.
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
  path = os.fspath(path)
  clip = out_of_range == 'clip'
  try:
    names, columns = _columns(_text(path, clip), clip)
    return pd.DataFrame(
      {
        name: _typed(pd.Series(cells, dtype=object), name, schema, clip)
        for name, cells in zip(names, columns)
      }
    )
  except (ValueError, csv.Error) as error:
    raise ValueError(f'{path}: {error}') from error


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
  columns = {}
  used = set()
  for name in values.checked_names(df, allow_empty=True):
    column = df[name]
    if pd.api.types.is_bool_dtype(column.dtype):
      column = column.astype(object).map({True: 'true', False: 'false'})
    elif values.is_text(column):
      used.update(column.dropna().unique())
    columns[name] = column
  missing = next((word for word in values.MISSING if word not in used), '')
  frame = pd.DataFrame(columns)

  def write(file):
    if path.endswith('.gz'):
      with gzip.GzipFile(fileobj=file, mode='wb', filename='') as packed:
        _write_text(frame, packed, missing)
    else:
      _write_text(frame, file, missing)

  atomic.write_file(path, write)


def _write_text(frame, file, missing):
  text = io.TextIOWrapper(file, encoding='utf-8', newline='')
  frame.to_csv(text, index=False, na_rep=missing, lineterminator='\n')
  text.flush()
  text.detach()


def _text(path, clip):
  opened = gzip.open if path.endswith('.gz') else open
  with opened(path, 'rb') as file:
    content = file.read()
  if clip:
    # Python 3.9 and 3.10 read no file with NUL characters.
    return content.decode('utf-8-sig', 'replace').replace('\0', '\ufffd')
  try:
    return content.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    line = content.count(b'\n', 0, error.start) + 1
    raise ValueError(
      f'line {line} is not UTF-8 (byte 0x{content[error.start]:02x}); convert '
      'the file, for instance with iconv -f latin1 -t utf-8.'
    ) from error


def _columns(text, clip):
  """Returns the names of the columns, and their cells: a list for each."""
  with _cells_of_any_length():
    lines = _lines(text, clip)
    _, names = next((line for line in lines if line[1]), (0, None))
    if names is None:
      raise ValueError('the file is empty; it needs a header and rows.')
    for place, name in enumerate(names):
      if not name.strip():
        raise ValueError(f'column {place + 1} has no name; name it in line 1.')
      if name in names[:place]:
        raise ValueError(f'two columns are named {name!r}; rename one.')
    columns = [[] for _ in names]
    # Equal cells share one string.
    known = [{} for _ in names]
    block = []
    for number, cells in lines:
      # An empty line is a missing value of a single column, else no row at all.
      if not cells and len(names) > 1:
        continue
      if len(cells) != len(names):
        if cells and not clip:
          raise ValueError(
            f'line {number} has {len(cells)} cells, the header has '
            f'{len(names)}; quote cells that contain commas.'
          )
        cells = [*cells, *[''] * len(names)][: len(names)]
      block.append(cells)
      if len(block) == _BLOCK:
        _take(block, columns, known)
    _take(block, columns, known)
  if not columns[0]:
    raise ValueError('the file has a header but no rows; add rows.')
  return names, columns


def _take(block, columns, known):
  """Moves rows to columns."""
  for column, seen, cells in zip(columns, known, zip(*block)):
    column.extend(map(seen.setdefault, cells, cells))
  block.clear()


@contextlib.contextmanager
def _cells_of_any_length():
  limit = csv.field_size_limit(2**31 - 1)
  try:
    yield
  finally:
    csv.field_size_limit(limit)


def _lines(text, clip):
  """Yields the number of a line of a CSV file, and its cells."""
  if not clip:
    lines = csv.reader(io.StringIO(text, newline=''), strict=True)
    for cells in lines:
      yield lines.line_num, cells
    return
  physical = list(io.StringIO(text, newline=''))
  lines = csv.reader(physical)
  start = 0  # Where the row begins that is read next.
  for cells in lines:
    if lines.line_num == len(physical) and _is_open(physical[start:]):
      break
    yield lines.line_num, cells
    start = lines.line_num
  # A quote swallowed all that follows. None of these lines closes a quote that
  # an earlier one leaves open: each is a row, those with such a quote as is.
  for number, line in enumerate(physical[start:], start + 1):
    quoting = csv.QUOTE_NONE if _is_open([line]) else csv.QUOTE_MINIMAL
    yield number, next(csv.reader([line], quoting=quoting))


def _is_open(lines):
  """Whether a quote in the last row of a file is never closed."""
  return len(list(csv.reader([*lines, 'x']))) == 1


def _typed(column, name, schema, clip):
  if schema is not None and name == schema.privacy_unit:
    return values.typed(column, 'string', name, clip=clip)
  if schema is not None and name in schema.names:
    field = schema[name]
    declared = () if 'enum' in field.from_data else field.enum or ()
    kind = 'string' if 'type' in field.from_data else field.type
    return _dense(values.typed(column, kind, name, declared, clip))
  if values.is_missing(column).all():
    return pd.Series(float('nan'), index=column.index, name=name)
  return _dense(values.inferred(column, name)[1])


def _dense(column):
  """Drops the mask of a column that has no missing values."""
  plain = {'Int64': 'int64', 'boolean': 'bool'}.get(str(column.dtype))
  if plain and not column.isna().any():
    return column.astype(plain)
  return column
