"""Tables in CSV files."""

from __future__ import annotations

import csv
import gzip
import io
import os

import pandas as pd

from tfdpflows.tabular import values


def read_table(path, schema=None):
  """Reads a CSV file: UTF-8, commas, a header, one row per line.

  Empty cells and the words NA, NaN and null are missing values, unless the
  schema lists them among the categories of the column.

  Args:
    path: path of the file; may end in '.gz'.
    schema: `TableSchema` that says the types, or `None` to infer them:
      boolean, integer and number where every value reads as one (a leading
      zero makes a code, which stays text), string otherwise.

  Returns:
    A `DataFrame` in the order of the file: `Int64` or `int64` integers,
    `float64` numbers, `boolean` or `bool`, strings as `object`. Ranges and
    categories are not checked; `TableSchema.validate` does that.

  Raises:
    ValueError: naming path, line and cause if the file is no such table.
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
  try:
    text = _text(path)
    names = _checked_header(text)
    frame = pd.read_csv(
      io.StringIO(text),
      dtype=str,
      na_filter=False,
      index_col=False,
      header=0,
      names=names,
      skip_blank_lines=len(names) > 1,
    )
    columns = {name: _typed(frame[name], name, schema) for name in names}
    return pd.DataFrame(columns)
  except (ValueError, csv.Error) as error:
    raise ValueError(f'{path}: {error}') from error


def write_table(df, path):
  """Writes a table as CSV, all of it or nothing; replaces what was there.

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

  values.write_aside(path, write)


def _write_text(frame, file, missing):
  text = io.TextIOWrapper(file, encoding='utf-8', newline='')
  frame.to_csv(text, index=False, na_rep=missing, lineterminator='\n')
  text.flush()
  text.detach()


def _text(path):
  opened = gzip.open if path.endswith('.gz') else open
  with opened(path, 'rb') as file:
    content = file.read()
  try:
    return content.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    line = content.count(b'\n', 0, error.start) + 1
    raise ValueError(
      f'line {line} is not UTF-8 (byte 0x{content[error.start]:02x}); convert '
      'the file, for instance with iconv -f latin1 -t utf-8.'
    ) from error


def _checked_header(text):
  """Returns the names of the columns after checking every line's length."""
  lines = csv.reader(io.StringIO(text, newline=''), strict=True)
  names = next((line for line in lines if line), None)
  if names is None:
    raise ValueError('the file is empty; it needs a header and rows.')
  for place, name in enumerate(names):
    if not name.strip():
      raise ValueError(f'column {place + 1} has no name; name it in line 1.')
    if name in names[:place]:
      raise ValueError(f'two columns are named {name!r}; rename one.')
  count = 0
  for line in lines:
    # An empty line is a missing value of a single column, else no row at all.
    if not line:
      count += len(names) == 1
      continue
    if len(line) != len(names):
      raise ValueError(
        f'line {lines.line_num} has {len(line)} cells, the header has '
        f'{len(names)}; quote cells that contain commas.'
      )
    count += 1
  if not count:
    raise ValueError('the file has a header but no rows; add rows.')
  return names


def _typed(column, name, schema):
  if schema is not None and name in schema.names:
    field = schema[name]
    return _dense(values.typed(column, field.type, name, field.enum or ()))
  if values.is_missing(column).all():
    return pd.Series(float('nan'), index=column.index, name=name)
  return _dense(values.inferred(column, name)[1])


def _dense(column):
  """Drops the mask of a column that has no missing values."""
  plain = {'Int64': 'int64', 'boolean': 'bool'}.get(str(column.dtype))
  if plain and not column.isna().any():
    return column.astype(plain)
  return column
