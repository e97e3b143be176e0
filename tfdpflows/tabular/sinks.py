"""Files that tables are written to part by part: CSV, Parquet, TFRecord."""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Iterable

import numpy as np
import pandas as pd

from tfdpflows import atomic
from tfdpflows.tabular import table
from tfdpflows.tabular.field import Field
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.sources import FORMATS, file_format, import_arrow

# Names of CSV files, besides `FORMATS`.
_TEXT = ('.tsv', '.txt', '.gz')


def check_format(path: str) -> None:
  """Refuses a file that cannot be written.

  Raises:
    ValueError: for an end of the name that stands for no format.
    ImportError: for a format of Arrow without pyarrow.
  """
  # Without any end, such as of /dev/stdout, it is CSV.
  if os.path.splitext(path)[1] and not path.lower().endswith(
    (*FORMATS, *_TEXT)
  ):
    raise ValueError(
      f'{path} has a name that stands for no format: let it end in '
      f'{", ".join((*FORMATS, *_TEXT))}.'
    )
  if file_format(path) in ('parquet', 'ipc'):
    import_arrow()


def write_frames(
  frames: Iterable[pd.DataFrame], path: str | os.PathLike, schema: TableSchema
) -> int:
  """Writes a table that comes in parts; it appears whole, or not at all.

  The end of the name decides on the format, as for `sources.Source.of`: CSV
  (also `.tsv` and `.txt`), compressed by `.gz`, Parquet, Arrow or Feather, or
  TFRecord of `tf.Example`, in which a missing value is a feature without a
  value. In a CSV file it is the first word for missing values of the column
  that is no category: an empty cell by default, or NA, NaN or null.

  A CSV file is one that the schema reads, in its dialect: its delimiter,
  encoding, decimal point, true and false. Digits are not grouped, and numbers
  stand alone, without a currency or %.

  Args:
    frames: parts of the table, in the types that `TableSchema.validate` gives,
      with the identifiers of the schema, or without.
    path: path of the file; one that is there is replaced.
    schema: the `TableSchema` of the parts.

  Returns:
    The number of rows.

  Raises:
    OSError: if it cannot be written; a file that was there is left alone.
    ValueError: see `check_format`, as the next.
    ImportError: for want of pyarrow.

  #### Example

  >>> import os, tempfile
  >>> import pandas as pd
  >>> from tfdpflows.tabular import Field, TableSchema, read_table, sinks
  >>> schema = TableSchema([Field('age', 'integer', minimum=0, maximum=99)])
  >>> path = os.path.join(tempfile.mkdtemp(), 'ages.csv')
  >>> sinks.write_frames(
  ...   (pd.DataFrame({'age': [age]}) for age in (31, 64)), path, schema)
  2
  >>> read_table(path)['age'].tolist()
  [31, 64]
  """
  path = os.fspath(path)
  check_format(path)
  write = {
    'csv': _write_csv,
    'tfrecord': _write_records,
  }.get(file_format(path), _write_arrow)
  frames = iter(frames)
  first = list(itertools.islice(frames, 1))
  identifiers = [n for n in schema.identifiers if first and n in first[0]]
  sizes = []

  def counted():
    for frame in itertools.chain(first, frames):
      sizes.append(len(frame))
      yield frame

  with atomic.file_aside(path) as aside:
    write(counted(), path, aside, schema, identifiers)
  return sum(sizes)


def _write_csv(frames, path, aside, schema, identifiers):
  words = missing_words(schema)
  missing = next(iter(words.values()))
  with open(aside, 'wb') as raw:
    file = raw
    if path.endswith('.gz'):
      file = gzip.GzipFile(fileobj=raw, mode='wb', filename='')
    header = True
    for frame in frames:
      columns = {name: frame[name] for name in identifiers}
      columns.update(
        (f.name, _texts(frame[f.name], f, words[f.name], missing))
        for f in schema
      )
      table.write_csv(
        pd.DataFrame(columns), file, missing, header, schema.dialect
      )
      header = False
    if file is not raw:
      file.close()


def _texts(column, field, word, missing):
  """The column as a file of the schema has it, where it is written otherwise.

  `missing` is what all missing values become that are none yet.
  """
  cells = field.cells
  if field.type == 'boolean':
    names = {True: cells.true_values[0], False: cells.false_values[0]}
    column = column.astype(object).map(names, na_action='ignore')
  elif field.type == 'number' and cells.decimal_char != '.':
    texts = lambda number: cells.written(float(number))
    column = column.astype(object).map(texts, na_action='ignore')
  elif field.is_temporal:
    column = field.scale.texts(column)
  is_taken = field.type == 'string' and word in field.categories
  if is_taken and column.isna().any():
    raise ValueError(
      f'Column {field.name!r} has missing values, and its categories include '
      'all words for one; give another word in "missingValues".'
    )
  if word != missing:
    column = column.astype(object).where(column.notna(), word)
  return column


def missing_words(schema: TableSchema) -> dict[str, str]:
  """Returns what stands for a missing value of each column in a CSV file."""
  used = {
    word
    for field in schema
    if field.type == 'string'
    for word in field.categories
  }
  found = {}
  for field in schema:
    own = field.categories if field.type == 'string' else ()
    words = [
      word
      for avoided in (used, own)
      for word in field.cells.missing_values
      if word not in avoided
    ]
    found[field.name] = words[0] if words else ''
  return found


def _write_arrow(frames, path, aside, schema, identifiers):
  pa, _ = import_arrow()
  kinds = {
    'date': pa.date32(),
    'integer': pa.int64(),
    'number': pa.float64(),
    'string': pa.string(),
    'boolean': pa.bool_(),
  }
  columns = pa.schema(
    [
      *(pa.field(name, pa.string(), False) for name in identifiers),
      *(
        pa.field(f.name, kinds.get(f.type) or _time_type(pa, f), not f.required)
        for f in schema
      ),
    ]
  )
  if file_format(path) == 'parquet':
    from pyarrow import parquet  # noqa: PLC0415 (an extra)

    writer = parquet.ParquetWriter(aside, columns)
  else:
    writer = pa.ipc.new_file(aside, columns)
  with writer:
    for frame in frames:
      # A float that is missing is null, as are cells of the other types.
      writer.write_table(
        pa.Table.from_pandas(
          frame[columns.names], columns, preserve_index=False
        )
      )


def _time_type(pa, field):
  unit = field.scale.resolution
  if field.type == 'time':
    return pa.time64(unit) if unit == 'us' else pa.time32(unit)
  if field.type == 'duration':
    return pa.duration(unit)
  return pa.timestamp(unit, field.timezone)


def _write_records(frames, path, aside, schema, identifiers):
  import tensorflow as tf  # noqa: PLC0415 (not before it is needed)

  from tfdpflows.tabular import system_errors  # noqa: PLC0415 (TensorFlow's)

  options = 'GZIP' if path.endswith('.gz') else ''
  with (
    system_errors.of_file(path),
    tf.io.TFRecordWriter(aside, options) as writer,
  ):
    for frame in frames:
      columns = {name: _texts_of(tf, frame[name]) for name in identifiers}
      columns.update((f.name, _features(tf, frame[f.name], f)) for f in schema)
      for row in zip(*columns.values()):
        features = tf.train.Features(feature=dict(zip(columns, row)))
        example = tf.train.Example(features=features)
        writer.write(example.SerializeToString(deterministic=True))


def _texts_of(tf, column):
  return [
    tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
    for text in column
  ]


def _features(tf, column: pd.Series, field: Field) -> list:
  """The `tf.train.Feature` of each cell; equal cells share one."""
  empty = tf.train.Feature()
  if field.is_temporal:
    column = field.scale.texts(column)
  present = column.notna().to_numpy()
  cells = column.to_numpy(object)[present]
  if field.type == 'string' or field.is_temporal:
    make = lambda v: {'bytes_list': tf.train.BytesList(value=[v.encode()])}
  elif field.type == 'number':
    make = lambda v: {
      'float_list': tf.train.FloatList(value=[_float_within(v, field)])
    }
  else:
    make = lambda v: {'int64_list': tf.train.Int64List(value=[int(v)])}
  known = {v: tf.train.Feature(**make(v)) for v in set(cells)}
  found = np.full(len(column), empty, object)
  found[present] = [known[cell] for cell in cells]
  return list(found)


def _float_within(number, field):
  """The nearest float of 32 bits that is within the bounds of a field."""
  found = np.float32(number)
  if field.maximum is not None and float(found) > field.maximum:
    found = np.nextafter(found, np.float32(-np.inf))
  if field.minimum is not None and float(found) < field.minimum:
    found = np.nextafter(found, np.float32(np.inf))
  return float(found)
