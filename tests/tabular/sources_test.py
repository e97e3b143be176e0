"""Tables from files, Arrow and TensorFlow: the same rows from all of them."""

import datetime
import decimal
import gzip
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest
import tensorflow as tf

from tests.tabular import small_table
from tfdpflows.tabular import Field, TableEncoder, TableSchema, code_store
from tfdpflows.tabular.drafting import draft, draft_schema
from tfdpflows.tabular.sources import Distinct, Source
from tfdpflows.tabular.table import write_table


@pytest.fixture(scope='module')
def people():
  made = small_table.make(num_rows=90)
  made.codes = TableEncoder(made.schema).encode(
    made.schema.validate(made.table)
  )
  made.arrow = pa.Table.from_pandas(made.table)
  return made


def _parts(table, count=3):
  size = -(-len(table) // count)
  return [table[i * size : (i + 1) * size] for i in range(count)]


def _to_records(table, path, compression=''):
  kinds = {
    int: lambda v: tf.train.Feature(
      int64_list=tf.train.Int64List(value=[int(v)])
    ),
    float: lambda v: tf.train.Feature(
      float_list=tf.train.FloatList(value=[float(v)])
    ),
    str: lambda v: tf.train.Feature(
      bytes_list=tf.train.BytesList(value=[v.encode()])
    ),
  }
  kinds[bytes] = lambda v: tf.train.Feature(
    bytes_list=tf.train.BytesList(value=[v])
  )
  kinds[bool] = kinds[int]
  with tf.io.TFRecordWriter(str(path), compression) as writer:
    for row in table.to_pylist():
      features = {
        name: kinds[type(value)](value)
        for name, value in row.items()
        if value is not None
      }
      example = tf.train.Example(features=tf.train.Features(feature=features))
      writer.write(example.SerializeToString())


def _csv(people, folder):
  for number, part in enumerate(_parts(people.table)):
    write_table(part, folder / f'{number}.csv{".gz" * (number == 1)}')
  return str(folder / '*.csv*')


def _parquet(people, folder):
  pa.parquet.write_table(people.arrow, folder / 'a.parquet', row_group_size=7)
  return folder / 'a.parquet'


def _parquet_folder(people, folder):
  for number, part in enumerate(_parts(people.arrow)):
    pa.parquet.write_table(part, folder / f'part-{number}.pq')
  (folder / '_SUCCESS').touch()
  return folder


def _dictionaries(people, folder):
  table = people.table.assign(city=people.table['city'].astype('category'))
  pa.feather.write_feather(table, folder / 'a.feather')
  return [folder / 'a.feather']


def _ipc(people, folder):
  path = str(folder / 'a.arrow')
  with pa.ipc.new_file(path, people.arrow.schema) as writer:
    writer.write_table(people.arrow, max_chunksize=20)
  return folder / 'a.arrow'


def _records(people, folder):
  for number, part in enumerate(_parts(people.arrow)):
    _to_records(part, folder / f'{number}.tfrecord')
  return folder


def _packed_records(people, folder):
  _to_records(people.arrow, folder / 'a.tfrecord.gz', 'GZIP')
  return folder / 'a.tfrecord.gz'


def _dataset(people, folder):
  del folder
  table = people.table
  columns = {
    'age': table['age'].to_numpy(),
    'income': table['income'].to_numpy(),
    'visits': table['visits'].to_numpy(float, na_value=np.nan),
    'city': table['city'].fillna('').to_numpy(str),
    'member': table['member'].to_numpy(),
  }
  return tf.data.Dataset.from_tensor_slices(columns)


SOURCES = {
  'csv': _csv,
  'parquet': _parquet,
  'parquet_folder': _parquet_folder,
  'feather with dictionaries': _dictionaries,
  'ipc': _ipc,
  'records': _records,
  'packed records': _packed_records,
  'tf rows': _dataset,
  'tf batches': lambda *args: _dataset(*args).batch(40),
  'table': lambda people, _: people.arrow,
  'batch': lambda people, _: people.arrow.to_batches()[0],
  'reader': lambda people, _: people.arrow.to_reader(20),
  'arrow dataset': lambda *args: pa.dataset.dataset(_parquet_folder(*args)),
}


@pytest.mark.parametrize('name', SOURCES)
def test_all_sources_give_the_codes_of_the_data_frame(people, name, tmp_path):
  source = Source.of(SOURCES[name](people, tmp_path))
  store = code_store.read(source, people.schema, 'error')
  expected = people.codes
  if 'records' in name:
    # They have floats of 32 bits.
    np.testing.assert_allclose(store[:], expected, rtol=1e-6)
  else:
    np.testing.assert_array_equal(store[:], expected)
  frame = Source.of(SOURCES[name](people, tmp_path)).to_frame(
    people.schema, 'error'
  )
  again = TableEncoder(people.schema).encode(people.schema.validate(frame))
  np.testing.assert_array_equal(again, store[:])


def test_a_stream_of_another_library_is_a_table(people):
  class Relation:
    """As DuckDB and Polars have them."""

    def __arrow_c_stream__(self, requested_schema=None):
      return people.arrow.to_reader(30).__arrow_c_stream__(requested_schema)

  store = code_store.read(Source.of(Relation()), people.schema, 'error')
  np.testing.assert_array_equal(store[:], people.codes)


def test_folders_of_hive_are_columns_of_text(tmp_path):
  """'007' is no number, and a missing value is missing."""
  schema = TableSchema(
    [
      Field('n', 'integer', minimum=0, maximum=9),
      Field('zip', 'string', enum=('007', '1 %')),
    ]
  )
  for n, folder in enumerate(
    ['zip=007', 'zip=1%20%25', 'zip=__HIVE_DEFAULT_PARTITION__']
  ):
    (tmp_path / folder).mkdir()
    pa.parquet.write_table(
      pa.table({'n': [n, 5]}), tmp_path / folder / 'x.parquet'
    )
  frame = Source.of(tmp_path).to_frame(schema, 'error')
  found = schema.validate(frame)
  assert (
    found['zip'].fillna('-').tolist() == ['007'] * 2 + ['1 %'] * 2 + ['-'] * 2
  )
  pa.parquet.write_table(
    pa.table({'n': [1], 'zip': ['007']}), tmp_path / 'zip=007' / 'y.parquet'
  )
  with pytest.raises(ValueError, match="y.parquet: the column 'zip' is in the"):
    Source.of(tmp_path).to_frame(schema, 'error')


def test_a_folder_of_hive_that_is_given_itself_is_no_column(tmp_path):
  schema = TableSchema(
    [
      Field('n', 'integer', minimum=0, maximum=9),
      Field('year', 'integer', minimum=2020, maximum=2030),
    ]
  )
  (tmp_path / 'year=2024').mkdir()
  path = _write(tmp_path / 'year=2024' / 'a.parquet', pa.table({'n': [1, 2]}))
  store = code_store.read(Source.of(tmp_path), schema, 'error')
  assert store.shape == (2, 2)
  for given in (path, tmp_path / 'year=2024'):
    with pytest.raises(ValueError, match=r"'year'.* Folders named year=\.\.\."):
      code_store.read(Source.of(given), schema, 'error')


def test_a_file_without_the_privacy_unit_is_named(tmp_path):
  schema = TableSchema(
    [Field('n', 'integer', minimum=0, maximum=9)], privacy_unit='who'
  )
  paths = [
    _write(tmp_path / '0.parquet', pa.table({'n': [1, 2], 'who': [1, 2]})),
    _write(tmp_path / '1.parquet', pa.table({'n': [1, 2]})),
  ]
  with pytest.raises(ValueError, match=r"1\.parquet: .*'who', which is the pr"):
    code_store.read(Source.of(paths), schema, 'clip', max_rows_per_unit=2)


def _write(path, table):
  pa.parquet.write_table(table, path)
  return str(path)


def test_errors_name_file_row_and_column(people, tmp_path):
  schema = people.schema
  good = _write(tmp_path / '0.parquet', people.arrow)
  bad = people.table.copy()
  bad.loc[[40, 41], 'city'] = 'Rom'
  bad = _write(tmp_path / '1.parquet', pa.Table.from_pandas(bad))
  message = r"1\.parquet: Column 'city', row 41: .*'Rom' is not in the enum"
  with pytest.raises(ValueError, match=message):
    code_store.read(Source.of([good, bad]), schema, 'error')
  # Of each chunk the row is that of the file.
  batches = people.arrow.to_batches(max_chunksize=7)
  reader = pa.RecordBatchReader.from_batches(
    people.arrow.schema,
    [*batches, *pa.parquet.read_table(bad).to_batches(max_chunksize=7)],
  )
  with pytest.raises(ValueError, match=r"The table: Column 'city', row 131: "):
    code_store.read(Source.of(reader), schema, 'error')
  code_store.read(Source.of([good, bad]), schema, 'clip')

  # Words of a dictionary that no row has are no values.
  cells = pa.DictionaryArray.from_arrays([0, 2, 0], ['Bonn', 'Rom', 'Köln'])
  one = TableSchema([schema['city']])
  store = code_store.read(Source.of(pa.table({'city': cells})), one, 'error')
  assert store[:].ravel().tolist() == [2, 1, 2]


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda t: t.drop_columns(['age']), r"1\.parquet: .*no column 'age'"),
    (
      lambda t: t.append_column('more', t['age']),
      r"1\.parquet: The schema has no field 'more'",
    ),
    (
      lambda t: t.set_column(0, 'age', pa.array(['x'] * t.num_rows)),
      r"1\.parquet: Column 'age', row 1: .*'x' is no integer",
    ),
    (
      lambda t: t.append_column('age', t['age']),
      r'1\.parquet: .*duplicate field names',
    ),
  ],
)
def test_files_with_other_columns_are_refused(
  people, tmp_path, change, message
):
  paths = [
    _write(tmp_path / '0.parquet', people.arrow),
    _write(tmp_path / '1.parquet', change(people.arrow)),
  ]
  with pytest.raises(ValueError, match=message):
    code_store.read(Source.of(paths), people.schema, 'error')


def test_a_type_may_change_between_files(people, tmp_path):
  """Each cell is read by itself, as from one `DataFrame` of objects."""
  texts = people.arrow.set_column(
    0, 'age', people.arrow['age'].cast(pa.string())
  )
  paths = [
    _write(tmp_path / '0.parquet', people.arrow),
    _write(tmp_path / '1.parquet', texts),
  ]
  store = code_store.read(Source.of(paths), people.schema, 'error')
  np.testing.assert_array_equal(store[:], np.tile(people.codes, [2, 1]))


def test_damaged_files_are_named(people, tmp_path):
  whole = _write(tmp_path / '0.parquet', people.arrow)
  content = (tmp_path / '0.parquet').read_bytes()
  (tmp_path / '1.parquet').write_bytes(content[:-100])
  (tmp_path / '2.parquet').write_bytes(b'')
  middle = bytearray(content)
  middle[10:200] = bytes(190)
  (tmp_path / '3.parquet').write_bytes(middle)
  packed = gzip.compress(people.table.to_csv(index=False).encode())
  (tmp_path / '4.csv.gz').write_bytes(packed[:-200])
  (tmp_path / '5.csv.gz').write_bytes(b'no gzip')
  _to_records(people.arrow, tmp_path / '6.tfrecord')
  content = (tmp_path / '6.tfrecord').read_bytes()
  (tmp_path / '6.tfrecord').write_bytes(content[:-10])
  (tmp_path / '7.arrow').write_bytes(b'ARROW1 and no more')
  (tmp_path / '8.tfrecord').write_bytes(b'')
  for name in (
    *('1.parquet', '2.parquet', '3.parquet', '4.csv.gz', '5.csv.gz'),
    *('6.tfrecord', '7.arrow'),
  ):
    path = str(tmp_path / name)
    with pytest.raises((ValueError, OSError)) as caught:
      code_store.read(Source.of([whole, path]), people.schema, 'error')
    assert path in str(caught.value)
    if name in ('1.parquet', '2.parquet'):
      assert 'damaged or cut off' in str(caught.value)
  # A file without rows is one.
  empty = str(tmp_path / '8.tfrecord')
  assert len(code_store.read(Source.of([whole, empty]), people.schema, 'error'))


def test_files_that_vanish_or_change_are_named(people, tmp_path):
  paths = [_write(tmp_path / f'{i}.parquet', people.arrow) for i in range(2)]
  source = Source.of(paths)
  os.unlink(paths[1])
  with pytest.raises(OSError, match=r'1\.parquet'):
    code_store.read(source, people.schema, 'error')
  with pytest.raises(OSError, match=r'1\.parquet'):
    Source.of(paths)
  _write(tmp_path / '1.parquet', people.arrow[:50])
  source = Source.of(paths)
  _write(tmp_path / '1.parquet', people.arrow[:60])
  with pytest.raises(ValueError, match=r'1\.parquet: the file changed while'):
    code_store.read(source, people.schema, 'error')


@pytest.mark.parametrize(
  'data, error, message',
  [
    ([], ValueError, 'not of paths'),
    (3, ValueError, 'cannot be a int: give a DataFrame'),
    (pd.Series([1]), ValueError, 'cannot be a Series: give a DataFrame'),
    ('none-*.csv', OSError, 'No file is named like none-'),
    ('.', OSError, 'has no file whose name ends in'),
    (tf.data.Dataset.range(3), ValueError, 'must be dicts of tensors'),
    (
      tf.data.Dataset.from_tensors({'a': tf.zeros([2, 2])}),
      ValueError,
      'must be dicts of tensors',
    ),
  ],
)
def test_what_is_no_table_is_refused(
  data, error, message, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  schema = TableSchema([Field('a', 'integer', minimum=0, maximum=9)])
  with pytest.raises(error, match=message):
    Source.of(data).to_frame(schema, 'error')


def test_a_file_counts_once(tmp_path):
  path = _write(tmp_path / '0.parquet', pa.table({'a': [1]}))
  with pytest.raises(ValueError, match='given twice'):
    Source.of([path, str(tmp_path / '*.parquet')])


def test_records_of_several_values_or_kinds_are_read_one_by_one(tmp_path):
  schema = TableSchema([Field('a', 'integer', minimum=0, maximum=9)])
  lists = [
    tf.train.Feature(int64_list=tf.train.Int64List(value=[4])),
    tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2])),
    tf.train.Feature(bytes_list=tf.train.BytesList(value=[b'7'])),
    tf.train.Feature(),
  ]
  with tf.io.TFRecordWriter(str(tmp_path / 'a.tfrecord')) as writer:
    for feature in lists:
      features = tf.train.Features(feature={'a': feature})
      example = tf.train.Example(features=features)
      writer.write(example.SerializeToString())
  source = Source.of(tmp_path / 'a.tfrecord')
  with pytest.raises(
    ValueError, match=r"Column 'a', row 2: .*\(1, 2\) is no in"
  ):
    code_store.read(source, schema, 'error')
  store = code_store.read(source, schema, 'clip')
  assert store[:].ravel().tolist() == [4, 10, 7, 10]


@pytest.mark.parametrize(
  'many, one',
  [
    ({'float_list': [0.0, 1.0]}, {'float_list': [-0.0, 1.0]}),
    ({'int64_list': [1, 2]}, {'float_list': [1.0, 2.0]}),
  ],
)
def test_a_record_changes_no_other_that_equals_it(many, one, tmp_path):
  texts = ('(0.0, 1.0)', '(-0.0, 1.0)', '(1, 2)', '(1.0, 2.0)')
  schema = TableSchema([Field('a', 'string', enum=texts)])

  def codes(name, *records):
    path = str(tmp_path / f'{name}.tfrecord')
    with tf.io.TFRecordWriter(path) as writer:
      for lists in records:
        ((kind, values),) = lists.items()
        message = tf.train.Feature()
        getattr(message, kind).value.extend(values)
        features = tf.train.Features(feature={'a': message})
        example = tf.train.Example(features=features)
        writer.write(example.SerializeToString())
    return code_store.read(Source.of(path), schema, 'clip')[:].ravel().tolist()

  alone, among = codes('alone', *[many] * 3), codes('among', one, *[many] * 3)
  assert among[1:] == alone
  assert among[0] == codes('ones', one, one)[0] != alone[0]


@pytest.mark.parametrize('times', [[0, None], [None, None]])
def test_an_unknown_time_zone_is_refused_whatever_the_rows(times):
  schema = TableSchema(
    [Field('a', 'datetime', '2020-01-01T00:00:00', '2021-01-01T00:00:00')]
  )
  table = pa.table({'a': pa.array(times, pa.timestamp('s', 'Nowhere/X'))})
  with pytest.raises(ValueError, match="zone 'Nowhere/X', which is not known"):
    code_store.read(Source.of(table), schema, 'clip')


def test_text_that_is_not_utf8(tmp_path):
  schema = TableSchema([Field('a', 'string', enum=('a', 'b\ufffd'))])
  bad = pa.array([b'a', b'b\xff'], pa.binary()).view(pa.string())
  table = pa.table({'a': bad})
  with pytest.raises(ValueError, match='not UTF-8'):
    code_store.read(Source.of(table), schema, 'error')
  store = code_store.read(Source.of(table), schema, 'clip')
  assert store[:].ravel().tolist() == [0, 1]
  for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint8()):
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1], kind), bad)
    table = pa.table({'a': words})
    parquet = _write(tmp_path / 'words.parquet', table)
    for source in (table, parquet):
      store = code_store.read(Source.of(source), schema, 'clip')
      assert store[:].ravel().tolist() == [0, 1]
      with pytest.raises(ValueError, match='UTF-8|UTF8'):
        code_store.read(Source.of(source), schema, 'error')


@pytest.mark.parametrize('kind', ['parquet', 'tfrecord', 'table', 'dataset'])
def test_bytes_that_are_no_text_are_left_out(kind, tmp_path):
  """A hash, an image: what the schema has no use for refuses no table."""
  ages, hashes = [31, 64] * 4, [b'\x00\xff', b'a'] * 4
  data = table = pa.table({'age': ages, 'hash': pa.array(hashes, pa.binary())})
  if kind == 'parquet':
    data = _write(tmp_path / 'a.parquet', table)
  elif kind == 'tfrecord':
    data = tmp_path / 'a.tfrecord'
    _to_records(table, data)
  elif kind == 'dataset':
    columns = {'age': ages, 'hash': np.array(hashes, object)}
    data = tf.data.Dataset.from_tensor_slices(columns)
  source = Source.of(data)
  found = draft(source.to_frame())
  assert [tuple(finding) for finding in found.findings] == [
    ('hash', 'bytes that are no text in UTF-8', '--drop=hash', False)
  ]
  schema = TableSchema(
    [Field('age', 'integer', 0, 99, required=True)], fields_match='subset'
  )
  store = code_store.read(source, schema, 'error')
  assert store[:].ravel().tolist() == ages
  schema = TableSchema(
    [Field('hash', 'string', enum=['a'])], fields_match='subset'
  )
  with pytest.raises(ValueError, match="column 'hash': a text is not UTF-8"):
    code_store.read(source, schema, 'error')


def test_a_table_of_any_kind_has_a_draft(people, tmp_path):
  table = Source.of(_parquet(people, tmp_path)).to_frame()
  kinds = {field.name: field.type for field in draft_schema(table)}
  assert kinds == {f.name: f.type for f in people.schema}


def test_types_of_parquet_are_those_of_its_draft(tmp_path):
  """Times, booleans and numbers of all kinds, also with missing cells."""
  day, noon = datetime.date(2024, 5, 17), datetime.datetime(2024, 5, 17, 12)
  cells = {
    'date': ([day, None], pa.date32()),
    'stamp': ([noon, None], pa.timestamp('us')),
    'nanos': ([noon, noon], pa.timestamp('ns')),
    'berlin': ([noon, noon], pa.timestamp('ms', tz='Europe/Berlin')),
    'clock': ([datetime.time(7), None], pa.time64('us')),
    'span': ([datetime.timedelta(1), None], pa.duration('s')),
    'flag': ([True, None], pa.bool_()),
    'whole': ([1, None], pa.int16()),
    'price': ([decimal.Decimal('1.25'), None], pa.decimal128(9, 2)),
    'word': (['a', None], pa.dictionary(pa.int8(), pa.string())),
  }
  table = pa.table(
    {name: pa.array(found * 9, kind) for name, (found, kind) in cells.items()}
  )
  path = _write(tmp_path / 'a.parquet', table)
  schema = draft(Source.of(path).to_frame()).schema
  assert {field.name: field.type for field in schema} == {
    'date': 'date',
    'stamp': 'datetime',
    'nanos': 'datetime',
    'berlin': 'datetime',
    'clock': 'time',
    'span': 'duration',
    'flag': 'boolean',
    'whole': 'integer',
    'price': 'number',
    'word': 'string',
  }
  assert schema['berlin'].timezone == 'Europe/Berlin'
  assert schema['stamp'].timezone is None
  _write(tmp_path / 'a.parquet', table[:0])
  with pytest.raises(ValueError, match=r'no rows; .*a\.parquet'):
    Source.of(path).to_frame()


def test_distinct_cells_keep_what_pandas_would_join():
  column = Distinct.of(['a\0b', 'a', 'a\0c', 'a'])
  assert column.values.tolist() == ['a\0b', 'a', 'a\0c']
  assert column.places.tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize('out_of_range', ['error', 'clip'])
def test_cells_of_arrow_are_those_of_pandas(out_of_range):
  """Of all types, with and without missing values."""
  schema = TableSchema(
    [
      Field('x', 'number', minimum=-5, maximum=9),
    ]
  )
  day = datetime.date(2020, 1, 2)
  for values, kind in (
    ([1, None, -3], pa.int8()),
    ([1, 2, 3], pa.uint64()),
    ([1.5, None, float('nan')], pa.float32()),
    ([1.5, 2.5, 3.0], pa.float16()),
    ([True, None, False], pa.bool_()),
    ([True, True, False], pa.bool_()),
    ([decimal.Decimal('1.50'), None], pa.decimal128(8, 2)),
    (['1', None, '2.5'], pa.string()),
    (['1', '', 'NA'], pa.large_string()),
    ([None, None], pa.null()),
    ([day, None], pa.date32()),
    ([[1, 2], None], pa.list_(pa.int64())),
    ([datetime.datetime(9999, 1, 1), None], pa.timestamp('us')),
  ):
    values = [np.float16(v) for v in values] if kind == pa.float16() else values
    table = pa.table({'x': pa.array(values, kind)})
    frame = pd.DataFrame({'x': pd.Series(values, dtype=object)})

    def encode(frame):
      return TableEncoder(schema).encode(schema.validate(frame, out_of_range))

    def read(table):
      return code_store.read(Source.of(table), schema, out_of_range)[:]

    np.testing.assert_array_equal(
      _or_error(read, table), _or_error(encode, frame)
    )


def _or_error(function, data):
  """What a function returns, or why it does not, without the cell."""
  try:
    return function(data)
  except ValueError as error:
    return str(error).split(' is ')[-1].split(';')[-1]


def test_a_file_is_not_read_twice_under_two_names(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'd').mkdir()
  (tmp_path / 'd' / '0.csv').write_text('age\n1\n')
  for other in (
    'd/0.csv',
    './d/0.csv',
    'd/../d/0.csv',
    'd',
    str(tmp_path / 'd'),
  ):
    with pytest.raises(ValueError, match=r'0\.csv is given twice'):
      Source.of(['d/0.csv', other])
  (tmp_path / 'd' / 'latest.csv').symlink_to('0.csv')
  with pytest.raises(ValueError, match='given twice, also as'):
    Source.of('d')


def test_records_that_are_none_are_not_shown(tmp_path, capfd):
  tf = pytest.importorskip('tensorflow')
  path = str(tmp_path / 'x.tfrecord')
  good = tf.train.Example()
  good.features.feature['age'].int64_list.value.append(3)
  for secret in (b'ann;31;HIV+', b'\xff\xfeann\x81'):
    for records in ([good.SerializeToString(), secret], [secret]):
      with tf.io.TFRecordWriter(path) as writer:
        for record in records:
          writer.write(record)
      with pytest.raises(ValueError, match='damaged') as caught:
        list(Source.of(path).parts[0].read(['age'], True))
      error = caught.value
      while error is not None:
        assert 'ann' not in str(error)
        error = error.__context__
  # Nor by TensorFlow, which prints what it refuses before it raises.
  assert 'ann' not in capfd.readouterr().err


def test_the_place_of_a_record_of_other_types_is_not_printed(tmp_path, capfd):
  path = str(tmp_path / 'x.tfrecord')
  with tf.io.TFRecordWriter(path) as writer:
    for number in range(9):
      example = tf.train.Example()
      feature = example.features.feature['age']
      if number == 7:
        feature.bytes_list.value.append(b'31')
      else:
        feature.int64_list.value.append(number)
      writer.write(example.SerializeToString())
  schema = TableSchema([Field('age', 'integer', 0, 99)])
  found = code_store.read(Source.of(path), schema, 'clip')[:].ravel()
  assert found.tolist() == [*range(7), 31, 8]
  printed = capfd.readouterr().err
  assert 'Index' not in printed and "types don't match" not in printed


def test_clip_refuses_no_record_for_features_that_nobody_asked_for(tmp_path):
  tf = pytest.importorskip('tensorflow')
  path = str(tmp_path / 'x.tfrecord')
  with tf.io.TFRecordWriter(path) as writer:
    for names in (['age', 'hiv'], ['age']):
      example = tf.train.Example()
      for name in names:
        example.features.feature[name].int64_list.value.append(3)
      writer.write(example.SerializeToString())
  part = Source.of(path).parts[0]
  assert [list(c) for c in part.read(['age'], True)] == [['age']]
  assert [list(c) for c in part.read(['age'], False)] == [['age', 'hiv']]


def test_other_rows_do_not_decide_how_an_identifier_was_rounded(tmp_path):
  """A float32 from 2^24 on may be others', whatever stands beside it."""
  schema = TableSchema([Field('age', 'integer', 0, 99)], privacy_unit='id')
  ids = np.array([7, 2**24 + 2, 2**24 - 1], np.float32)
  expected = ['7', str(2**24 - 1)]
  found = lambda source: schema.unit_ids(
    source.to_frame(schema, 'clip'), 'clip'
  )
  stored = lambda source: code_store.read(source, schema, 'clip', None, 1)

  def write(name, columns):
    table = pa.table({'age': pa.array([3] * len(columns)), 'id': columns})
    pa.parquet.write_table(table, tmp_path / name)

  write('0.parquet', pa.array(ids))
  for other in (['bob'], [None], []):
    write('1.parquet', pa.array(other, pa.string()))
    source = Source.of([str(tmp_path / f'{n}.parquet') for n in (0, 1)])
    present = [x for x in other if x]
    assert found(source).dropna().tolist() == [*expected, *present]
    assert len(stored(source)) == 2 + len(present)

  path = str(tmp_path / 'x.tfrecord')
  for other in ((b'bob', 1), (b'bob', 2), (None, 1), (b'7', 1)):
    with tf.io.TFRecordWriter(path) as writer:
      for name, times in (*((x, 1) for x in ids), other):
        example = tf.train.Example()
        feature = example.features.feature
        feature['age'].int64_list.value.extend([3] * times)
        if isinstance(name, bytes):
          feature['id'].bytes_list.value.append(name)
        elif name is not None:
          feature['id'].float_list.value.append(name)
        writer.write(example.SerializeToString())
    source = Source.of(path)
    assert found(source).dropna().tolist()[:2] == expected
    assert len(stored(source)) == found(source).nunique()


def test_times_beyond_the_calendar_are_as_in_a_dataframe():
  far = np.array(['12000-01-01', '2000-01-01', '-0500-01-01'], 'M8[s]')
  schema = TableSchema([Field('x', 'datetime', '1900-01-01', '2100-01-01')])
  expected = schema.validate(pd.DataFrame({'x': far}), 'clip')
  source = Source.of(pa.table({'x': pa.array(far)}))
  found = schema.validate(source.to_frame(schema, 'clip'), 'clip')
  assert found.equals(expected)
  assert found['x'].dt.year.tolist() == [2100, 2000, 1900]
