"""Tables wherever they are: files, Arrow, TensorFlow; read in parts."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import stat
import urllib.parse
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
import pandas as pd

from tfdpflows.tabular import table
from tfdpflows.tabular.dialect import COMMAS, Dialect

if TYPE_CHECKING:
  from tfdpflows.tabular.schema import TableSchema

# Rows that are worked on at one time.
CHUNK = 1 << 16
# By the end of a file's name; all other files are CSV.
FORMATS = {
  '.csv': 'csv',
  '.csv.gz': 'csv',
  '.parquet': 'parquet',
  '.pq': 'parquet',
  '.arrow': 'ipc',
  '.feather': 'ipc',
  '.ipc': 'ipc',
  '.tfrecord': 'tfrecord',
  '.tfrecord.gz': 'tfrecord',
  '.tfrecords': 'tfrecord',
  '.tfrecords.gz': 'tfrecord',
}
_NO_PARTITION = '__HIVE_DEFAULT_PARTITION__'
_KINDS = ('bytes_list', 'float_list', 'int64_list')


class Distinct(NamedTuple):
  """A column of few different cells.

  Attributes:
    values: object array, the cells without repetition.
    places: integers `[n]`, which of them each row has.
  """

  values: np.ndarray
  places: np.ndarray

  @classmethod
  def of(cls, cells: Iterable[Any]) -> Distinct:
    """Returns the column of some cells, which can be hashed.

    It is not enough that they are equal: the first of 0. and -0., of (1, 2) and
    (1., 2.), or of two decimals 7 and 7.0 would give all others its text.
    """
    numbers, found, places = {}, [], []
    for cell in cells:
      key = cell
      if type(cell) is not str:
        key = type(cell), repr(cell), cell
      place = numbers.setdefault(key, len(numbers))
      if place == len(found):
        found.append(cell)
      places.append(place)
    return cls(_objects(found), np.array(places, np.int64))


# Columns of some rows by name.
Chunk = dict[str, Union[pd.Series, Distinct]]


class Part(NamedTuple):
  """A file of a table, or all of one that is no file.

  Attributes:
    name: path of the file, or what else it is, for messages.
    identity: JSON-able list that tells the file from others and from what it
      was at another time; `None` for what is no file.
    chunks: a function of the wanted names of columns, and of whether no cell is
      refused, that yields `Chunk`s. They may have further columns.
    line_of: a function of the number of a row, from 0, that returns the line
      of a CSV file where it begins; `None` for what has no lines.
  """

  name: str
  identity: list | None
  chunks: Callable[[Sequence[str], bool], Iterator[Chunk]]
  line_of: Callable[[int], int | None] | None = None

  def read(self, names: Sequence[str], clip: bool) -> Iterator[Chunk]:
    """Yields the chunks; errors begin with the name.

    Raises:
      ValueError: if the part is damaged, or changed while it was read.
      OSError: if it cannot be read.
    """
    with _named(self.name):
      yield from self.chunks(names, clip)
      if self.identity is not None and _identity(self.name) != self.identity:
        raise ValueError(
          'the file changed while it was read. Read it when nothing writes it.'
        )


class Source(NamedTuple):
  """A table that is read in parts, in a fixed order.

  Attributes:
    parts: its `Part`s.

  #### Example

  >>> import os, tempfile
  >>> from tfdpflows.tabular import sources
  >>> folder = tempfile.mkdtemp()
  >>> for number in range(2):
  ...   with open(os.path.join(folder, f'{number}.csv'), 'w') as file:
  ...     _ = file.write(f'age,sex\\n3{number},f\\n')
  >>> source = sources.Source.of(os.path.join(folder, '*.csv'))
  >>> [os.path.basename(part.name) for part in source.parts]
  ['0.csv', '1.csv']
  """

  parts: tuple[Part, ...]

  @classmethod
  def of(cls, data: Any, dialect: Dialect = COMMAS) -> Source:
    """Returns the source of a table.

    Args:
      data: a path or glob pattern, or a list of such: of CSV files (`.csv` or
        any other name, `.csv.gz`), Parquet (`.parquet`, `.pq`), Arrow IPC and
        Feather (`.arrow`, `.feather`, `.ipc`) or TFRecord of `tf.Example`
        (`.tfrecord`, also with `.gz`), or of folders of them; folders below one
        that are named `column=value`, as Hive's, give that column. Or a
        `tf.data.Dataset` of dicts, of rows or of batches; a `pyarrow` `Table`,
        `RecordBatch`, `RecordBatchReader` or `dataset`; or anything with an
        Arrow stream, such as a relation of DuckDB.
      dialect: of CSV files, `TableSchema.dialect`.

    Raises:
      ValueError: for anything else.
      OSError: for a file that does not exist.
      ImportError: if pyarrow is needed and missing.
    """
    if isinstance(data, cls):
      return data
    if isinstance(data, (str, os.PathLike)):
      data = [data]
    if isinstance(data, (list, tuple)):
      if not data or not all(isinstance(p, (str, os.PathLike)) for p in data):
        raise ValueError(
          'A table is given as a list, and not of paths: give the paths of its '
          'files, or one table.'
        )
      parts = [
        part for path in data for part in _file_parts(os.fspath(path), dialect)
      ]
      _check_different(parts)
      return cls(tuple(parts))
    return cls((_part_of_object(data),))

  @property
  def identity(self) -> list | None:
    """Of all files, in order; `None` if the table is in no files."""
    found = [part.identity for part in self.parts]
    return None if None in found else found

  def no_rows(self) -> ValueError:
    """Returns the error of a table without rows."""
    names = ', '.join(part.name for part in self.parts)
    return ValueError(f'The table has no rows; {names}: a header but no rows.')

  def to_frame(
    self, schema: TableSchema | None = None, out_of_range: str = 'error'
  ) -> pd.DataFrame:
    """Returns all rows in memory, with the cells as they are.

    Args:
      schema: `TableSchema` with the columns that records may lack; by default
        there are those of the first record.
      out_of_range: see `read_table`.

    Raises:
      ValueError: for damaged files, and files with different columns.
      OSError: if one cannot be read.
    """
    columns, names = {}, None
    expected = () if schema is None else wanted(schema)
    for part in self.parts:
      for chunk in part.read(expected, out_of_range == 'clip'):
        if names is None:
          names = list(chunk)
        elif set(names) != set(chunk):
          raise ValueError(
            f'{part.name} has the columns {list(chunk)}, and '
            f'{self.parts[0].name} has {names}: give files with the same ones.'
          )
        for name, column in chunk.items():
          columns.setdefault(name, []).append(cells(column))
    if names is None:
      raise self.no_rows()
    return pd.DataFrame({name: joined(c) for name, c in columns.items()})


def wanted(schema: TableSchema) -> tuple[str, ...]:
  """Returns the names of the columns that a schema has a use for."""
  unit = schema.privacy_unit
  return schema.names if unit is None else (*schema.names, unit)


def num_rows(chunk: Chunk) -> int:
  """Returns how many rows the columns of a chunk have."""
  column = next(iter(chunk.values()))
  return len(column.places if isinstance(column, Distinct) else column)


def cells(column: pd.Series | Distinct) -> pd.Series:
  """Returns the cells of a column."""
  if isinstance(column, Distinct):
    return pd.Series(column.values[column.places], dtype=object)
  return column


def joined(columns: Sequence[pd.Series]) -> pd.Series:
  """Returns the cells of parts of a column, one after the other."""
  if len({column.dtype for column in columns}) > 1:
    # As each of them is, without digits that another type has not.
    columns = [_cells_by_type(column) for column in columns]
  return pd.concat(columns, ignore_index=True)


def _cells_by_type(column):
  """The cells as objects; floats of their own type, which tells how rounded."""
  dtype = getattr(column.dtype, 'numpy_dtype', column.dtype)
  if isinstance(dtype, np.dtype) and dtype.kind == 'f':
    return pd.Series(_objects(column.to_numpy(dtype, na_value=np.nan)))
  return column.astype(object)


def _objects(values):
  found = np.empty(len(values), object)
  found[:] = list(values)
  return found


@contextlib.contextmanager
def _named(name):
  """Begins the text of an error with the name of a part."""
  try:
    yield
  except (EOFError, zlib.error) as error:
    raise ValueError(f'{name}: the file is damaged ({error}).') from error
  except ValueError as error:
    if str(error).startswith(name):
      raise
    raise ValueError(f'{name}: {error}') from error
  except OSError as error:
    # Those of Python have the path; those of Arrow have not.
    if error.filename is not None or name in str(error):
      raise
    raise OSError(f'{name}: {error}') from error


# Files.


def _check_different(parts):
  """Refuses a file that is given twice, also by other names."""
  known = {}
  for part in parts:
    found = os.stat(part.name)
    if not stat.S_ISREG(found.st_mode):
      continue
    place = found.st_dev, found.st_ino
    other = known.get(place)
    known[place] = part.name
    if other is not None:
      also = '' if other == part.name else f', also as {other}'
      raise ValueError(
        f'{part.name} is given twice{also}: its rows would count twice.'
      )


def _file_parts(given, dialect):
  """The parts of a path, folder or pattern."""
  if os.path.isdir(given):
    return [_file_part(path, dialect, given) for path in _files_below(given)]
  if glob.has_magic(given) and not os.path.exists(given):
    paths = sorted(glob.glob(given, recursive=True))
    if not paths:
      raise FileNotFoundError(f'No file is named like {given}.')
    return [p for path in paths for p in _file_parts(path, dialect)]
  return [_file_part(given, dialect)]


def _files_below(folder):
  found = []
  for place, folders, names in os.walk(folder):
    # Of those that begin so Hive and Spark say that they are no data.
    folders[:] = sorted(n for n in folders if n[0] not in '._')
    found += [
      os.path.join(place, name)
      for name in sorted(names)
      if name[0] not in '._' and _known_format(name) is not None
    ]
  if not found:
    raise FileNotFoundError(
      f'The folder {folder} has no file whose name ends in '
      f'{", ".join(FORMATS)}.'
    )
  return found


def file_format(path: str) -> str:
  """Returns the format that a name stands for.

  It is 'csv', 'parquet', 'ipc' (Arrow's, also of Feather) or 'tfrecord'.

  >>> file_format('people.csv.gz'), file_format('people.pq')
  ('csv', 'parquet')
  """
  return _known_format(path) or 'csv'


def _known_format(path):
  for end, kind in FORMATS.items():
    if path.lower().endswith(end):
      return kind
  return None


def _file_part(path, dialect, folder=None):
  kind = file_format(path)
  read = _read_tfrecord
  if kind == 'csv':
    read = lambda path, names, clip: _read_csv(path, clip, dialect)
  elif kind != 'tfrecord':
    import_arrow()
    read = lambda path, *args: _read_arrow_file(path, kind, *args)
  of_folders = {}
  if folder is not None:
    of_folders = partition(os.path.relpath(path, folder))

  def chunks(names, clip):
    for chunk in read(path, names, clip):
      count = num_rows(chunk)
      for name, value in of_folders.items():
        if name in chunk:
          raise ValueError(
            f'the column {name!r} is in the file and in the name of its folder.'
          )
        chunk[name] = Distinct(_objects([value]), np.zeros(count, np.int64))
      yield chunk

  line_of = None
  if kind == 'csv':
    line_of = functools.partial(table.line_of, path, dialect)
  return Part(path, _identity(path), chunks, line_of)


def _identity(path):
  """What tells a file from others; `None` of a pipe, which is read once."""
  found = os.stat(path)
  if not stat.S_ISREG(found.st_mode):
    return None
  return [os.path.abspath(path), found.st_size, found.st_mtime_ns]


def partition(path: str) -> dict[str, str | None]:
  """Returns the columns that are named by the folders of a file, as text.

  >>> partition('sales/year=2024/part.parquet')
  {'year': '2024'}
  """
  found = {}
  for word in path.split(os.sep)[:-1]:
    name, equals, value = word.partition('=')
    if equals:
      value = None if value == _NO_PARTITION else urllib.parse.unquote(value)
      found[urllib.parse.unquote(name)] = value
  return found


def _read_csv(path, clip, dialect):
  for header, columns in table.csv_blocks(path, clip, dialect, CHUNK):
    yield {name: Distinct.of(cells) for name, cells in zip(header, columns)}


def _read_arrow_file(path, kind, names, clip):
  pa, dataset = import_arrow()
  form = kind
  if kind == 'parquet':
    _check_end(path)
    found = dataset.dataset(path, format='parquet').schema
    # Text comes as the file has it, each word once; a dictionary with the index
    # of its own type would be refused for one word that is no UTF-8.
    texts = [
      f.name
      for f in found
      if _is_text(pa, getattr(f.type, 'value_type', f.type))
      and not pa.types.is_nested(f.type)
    ]
    form = dataset.ParquetFileFormat(dictionary_columns=texts)
  batches = _batches_of(dataset.dataset(path, format=form))
  yield from _chunks_of_batches(batches, names, clip)


def _check_end(path):
  """Refuses a file that has not the end of Parquet."""
  with open(path, 'rb') as file:
    file.seek(-min(4, os.path.getsize(path)), os.SEEK_END)
    end = file.read()
  if end not in (b'PAR1', b'PARE'):
    raise ValueError('the file is damaged or cut off, or is no Parquet file.')


# Arrow.


def import_arrow() -> tuple[Any, Any]:
  """Returns pyarrow and its module of datasets.

  Raises:
    ImportError: saying how to install it, and what is wrong with it.
  """
  try:
    import pyarrow as pa  # noqa: PLC0415 (an extra)
    from pyarrow import dataset  # noqa: PLC0415
  except ImportError as error:
    raise ImportError(
      "Parquet, Arrow and Feather need pyarrow: pip install 'tfdpflows[arrow]' "
      f'({error}).'
    ) from error
  return pa, dataset


def _batches_of(dataset):
  # Little is read ahead: a table may be far larger than the memory.
  return dataset.to_batches(
    batch_size=CHUNK, batch_readahead=4, fragment_readahead=1
  )


def _chunks_of_batches(batches, names, clip):
  for batch in batches:
    for start in range(0, batch.num_rows, CHUNK):
      part = batch.slice(start, CHUNK)
      _check_names(part.schema.names)
      found = {}
      for name, array in zip(part.schema.names, part.columns):
        with _of_column(name):
          found[name] = _arrow_column(array, _handler(name, names, clip))
      yield found


def _handler(name, names, clip):
  """What is done with bytes of a column that are no UTF-8.

  An error handler of `bytes.decode`: what is not wanted is not refused. `None`
  in a draft: they stay bytes, and it says so of the column.
  """
  if clip or (names and name not in names):
    return 'replace'
  return 'strict' if names else None


@contextlib.contextmanager
def _of_column(name):
  """Begins the text of an error with the name of a column."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f'column {name!r}: {error}') from error.__cause__


def _check_names(names):
  for name in names:
    if names.count(name) > 1:
      raise ValueError(f'two columns are named {name!r}; rename one.')


def _is_text(pa, kind):
  return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _arrow_column(array, errors):
  """Returns a column as pandas has it, texts as `Distinct`.

  The `errors` are those of `_handler`.
  """
  pa, _ = import_arrow()
  types, kind = pa.types, array.type
  if _is_text(pa, kind) or _is_bytes(pa, kind):
    array = array.dictionary_encode()
  if types.is_dictionary(array.type):
    values, places = _texts(pa, array.dictionary, errors), array.indices
    if array.null_count:
      places = places.cast(pa.int64()).fill_null(len(values))
      values = [*values, None]
    return Distinct(_objects(values), places.to_numpy(zero_copy_only=False))
  if types.is_integer(kind) or types.is_boolean(kind):
    missing = array.is_null().to_numpy(zero_copy_only=False)
    filled = array.fill_null(False if types.is_boolean(kind) else 0)
    filled = filled.to_numpy(zero_copy_only=False)
    if not array.null_count:
      return pd.Series(filled)
    masked = pd.arrays.IntegerArray
    if types.is_boolean(kind):
      masked = pd.arrays.BooleanArray
    return pd.Series(masked(filled.copy(), missing.copy()))
  if types.is_floating(kind):
    return pd.Series(array.to_numpy(zero_copy_only=False))
  if types.is_null(kind):
    return Distinct(_objects([None]), np.zeros(len(array), np.int64))
  return pd.Series(_objects(_cells_of(array, errors)), dtype=object)


def _is_bytes(pa, kind):
  types = pa.types
  return (
    types.is_binary(kind)
    or types.is_large_binary(kind)
    or types.is_fixed_size_binary(kind)
  )


def _cells_of(array, errors):
  """The cells of other types, each by itself: some times are too far away."""
  _check_zone(array.type)
  found = []
  for cell in array:
    try:
      found.append(cell.as_py())
    except (ValueError, OverflowError):
      if errors != 'replace':
        raise ValueError('a time is out of range of the calendar.') from None
      found.append(_far_time(cell))
  return found


def _check_zone(kind):
  """Refuses times of an unknown zone, whether or not there is one."""
  pa, _ = import_arrow()
  if pa.types.is_timestamp(kind) and kind.tz is not None:
    try:
      pa.scalar(0, kind).as_py()
    except (KeyError, ValueError) as error:
      raise ValueError(
        f'its times are of zone {kind.tz!r}, which is not known here. Cast the '
        'column to UTC, or install the package tzdata.'
      ) from error


def _far_time(cell):
  """A time beyond the calendar of Python, as a DataFrame has it."""
  pa, _ = import_arrow()
  try:
    if pa.types.is_timestamp(cell.type):
      found = pd.Timestamp(np.datetime64(cell.value, cell.type.unit))
      zone = cell.type.tz
      return found if zone is None else found.tz_localize('UTC')
    if pa.types.is_duration(cell.type):
      return pd.Timedelta(np.timedelta64(cell.value, cell.type.unit))
  except Exception:  # Too far for pandas too.
    pass
  return None


def _texts(pa, array, errors):
  """The values of a dictionary, as a list."""
  if _is_bytes(pa, array.type):
    return [_decoded(value, errors) for value in array.to_pylist()]
  if not _is_text(pa, array.type):
    return _cells_of(array, errors)
  try:
    return array.to_pylist()
  except UnicodeDecodeError as error:
    if errors != 'replace':
      raise ValueError('a text is not UTF-8. Write it as UTF-8.') from error
    return [
      None if value is None else value.decode('utf-8', 'replace')
      for value in array.cast(pa.binary()).to_pylist()
    ]


# What is no file.


def _part_of_object(data):
  module = type(data).__module__.partition('.')[0]
  if module == 'tensorflow' and hasattr(data, 'element_spec'):
    return Part('The dataset', None, functools.partial(_read_dataset, data))
  if module == 'pyarrow':
    pa, dataset = import_arrow()
    if isinstance(data, dataset.Dataset):
      return _arrow_part(lambda: _batches_of(data))
    if isinstance(data, pa.RecordBatch):
      return _arrow_part(lambda: [data])
    if isinstance(data, pa.Table):
      return _arrow_part(lambda: data.to_batches(max_chunksize=CHUNK))
  if hasattr(data, '__arrow_c_stream__'):
    pa, _ = import_arrow()
    reader = data
    if not isinstance(data, pa.RecordBatchReader):
      try:
        reader = pa.RecordBatchReader.from_stream(data)
      except pa.ArrowInvalid:  # A stream of one column, such as a Series.
        reader = None
    if reader is not None:
      return _arrow_part(lambda: reader)
  raise ValueError(
    f'A table cannot be a {type(data).__name__}: give a DataFrame, the paths '
    'of files, a tf.data.Dataset of dicts, or a table, dataset or reader of '
    'pyarrow.'
  )


def _arrow_part(batches):
  read = lambda *args: _chunks_of_batches(batches(), *args)
  return Part('The table', None, read)


def _read_dataset(dataset, names, clip):
  """Yields the chunks of a `tf.data.Dataset` of dicts."""
  spec = dataset.element_spec
  ranks = set()
  if isinstance(spec, dict):
    ranks = {
      getattr(getattr(s, 'shape', None), 'rank', None) for s in spec.values()
    }
  if len(ranks) != 1 or not ranks <= {0, 1}:
    raise ValueError(
      'its elements must be dicts of tensors, all scalars (a row) or all '
      f'vectors (a batch of rows); they are {spec}.'
    )
  if ranks == {0}:
    dataset = dataset.batch(CHUNK)
  for batch in dataset.as_numpy_iterator():
    if len({len(array) for array in batch.values()}) > 1:
      raise ValueError('the columns of a batch have different numbers of rows.')
    found = {}
    for name, array in batch.items():
      found[name] = _numpy_column(array, name, _handler(name, names, clip))
    yield found


def _numpy_column(array, name, errors):
  if array.dtype == object:
    with _of_column(name):
      return Distinct.of(_decoded(value, errors) for value in array)
  return pd.Series(array)


def _decoded(value, errors):
  """A text as `str`: TensorFlow has bytes."""
  if not isinstance(value, bytes):
    return value
  try:
    return value.decode('utf-8', errors or 'strict')
  except UnicodeDecodeError as error:
    if errors is None:
      return value
    raise ValueError('a text is not UTF-8. Write it as UTF-8.') from error


# Records of tf.Example.


def _read_tfrecord(path, names, clip):
  import tensorflow as tf  # noqa: PLC0415 (not before it is needed)

  compression = 'GZIP' if path.lower().endswith('.gz') else ''
  records, damaged = tf.data.TFRecordDataset(path, compression), False
  try:
    for batch in records.batch(CHUNK // 8).as_numpy_iterator():
      yield _parsed(tf, batch, names, clip)
  except tf.errors.NotFoundError as error:
    raise FileNotFoundError(f'{path} does not exist.') from error
  except tf.errors.OpError:
    damaged = True
  if damaged:
    # Not in the `except`: what TensorFlow says may have parts of a record.
    raise ValueError('the file is damaged, or holds no records.')


def _parsed(tf, batch, names, clip):
  """Returns the chunk of some serialized records."""
  rows = [_features_of(tf, record) for record in batch]
  known = _kinds_of_features(rows, names, clip)
  errors = {name: _handler(name, names, clip) for name in known}
  absent = Distinct(_objects([None]), np.zeros(len(batch), np.int64))
  columns = {name: absent for name in names if name not in known}
  dtypes = {
    'bytes_list': tf.string,
    'float_list': tf.float32,
    'int64_list': tf.int64,
  }
  spec = {n: tf.io.VarLenFeature(dtypes[kind]) for n, kind in known.items()}
  found = None
  # What TensorFlow refuses it prints, with its place or all that is in it.
  if all(_has_kinds(features, known) for features in rows):
    # What TensorFlow says of others has the whole record.
    with contextlib.suppress(
      tf.errors.InvalidArgumentError, UnicodeDecodeError
    ):
      found = tf.io.parse_example(batch, spec) if spec else {}
  sizes = [
    np.bincount(x.indices.numpy()[:, 0], minlength=len(batch))
    for x in (found or {}).values()
  ]
  if found is None or any((size > 1).any() for size in sizes):
    return {**columns, **_one_by_one(rows, known, errors)}
  for (name, sparse), size in zip(found.items(), sizes):
    values, present = sparse.values.numpy(), size == 1
    if present.all():
      columns[name] = _numpy_column(values, name, errors[name])
    else:
      whole = np.full(len(batch), None, object)
      # Floats of their own type, which says how they were rounded.
      is_float = values.dtype.kind == 'f'
      whole[present] = list(values) if is_float else values.tolist()
      columns[name] = _numpy_column(whole, name, errors[name])
  return columns


def _has_kinds(features, known):
  """Whether the features of a record have the kinds that are known."""
  return all(
    features[name].WhichOneof('kind') in (kind, None)
    for name, kind in known.items()
  )


def _features_of(tf, record):
  from google.protobuf.message import DecodeError  # noqa: PLC0415 (TensorFlow's)

  try:
    return tf.train.Example.FromString(record).features.feature
  except DecodeError:
    pass
  # Not in the `except`: what it says may have parts of the record.
  raise ValueError('the file is damaged: a record is no tf.Example.')


def _kinds_of_features(rows, names, clip):
  """Which features a batch has, and of what kind.

  Those that are wanted of the first record that has them. Where rows may be
  refused also all others of the first one: the schema may not have them.
  """
  known, rest = {}, set(names)
  for number, features in enumerate(rows):
    is_all = number == 0 and not (clip and names)
    for name in features if is_all else rest & set(features):
      kind = features[name].WhichOneof('kind')
      if kind is not None:
        known[name] = kind
        rest.discard(name)
      elif number == 0 and name not in names:
        known[name] = _KINDS[0]
    if not rest:
      break
  return known


def _one_by_one(rows, known, errors):
  """The chunk of records of which some are unlike the others."""
  columns = {name: [] for name in known}
  for features in rows:
    for name, column in columns.items():
      values, kind = (), features[name].WhichOneof('kind')
      if kind is not None:
        values = getattr(features[name], kind).value
        if kind == 'float_list':  # As in a chunk of records that are alike.
          values = map(np.float32, values)
      with _of_column(name):
        cells = tuple(_decoded(value, errors[name]) for value in values)
      # Several values are one cell, which fits no type.
      column.append(cells if len(cells) > 1 else (*cells, None)[0])
  return {name: Distinct.of(column) for name, column in columns.items()}
