"""The codes of a table on disk: the pass, its faults, and what is counted."""

import decimal
import errno
import json
import os
import pathlib
import resource
import signal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests import forked
from tests.grids import thinned
from tests.tabular import small_table
from tfdpflows import accounting, mechanisms, stored_rows
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.mechanisms import histograms, marginals
from tfdpflows.randomness import Randomness
from tfdpflows.sampling import poisson
from tfdpflows.stored_rows import MappedRows
from tfdpflows.tabular import (
  Field,
  TableEncoder,
  TableSchema,
  TabularSynthesizer,
  code_store,
)
from tfdpflows.tabular.models import dp_sgd
from tfdpflows.tabular.sources import Part, Source
from tfdpflows.tabular.synthesizer import fit_to_directory

pytestmark = pytest.mark.usefixtures('unexported')


@pytest.fixture(autouse=True, scope='module')
def _short():
  """Fits are compared with each other: none has to learn much."""
  with small_table.short():
    yield


@pytest.fixture(scope='module')
def people():
  made = small_table.make()
  made.encoder = TableEncoder(made.schema)
  made.codes = made.encoder.encode(made.schema.validate(made.table))
  return made


@pytest.fixture
def shards(people, tmp_path):
  """Paths of three Parquet files with the rows of the table."""
  folder = tmp_path / 'shards'
  folder.mkdir()
  table = pa.Table.from_pandas(people.table)
  paths = []
  for number in range(3):
    paths.append(str(folder / f'{number}.parquet'))
    pa.parquet.write_table(table[number * 150 : (number + 1) * 150], paths[-1])
  return paths


@pytest.fixture
def small_blocks(monkeypatch):
  monkeypatch.setattr(stored_rows, 'BLOCK', 64)


def _source(table):
  return Source.of(pa.Table.from_pandas(table, preserve_index=False))


def _read(paths, people, folder=None, out_of_range='error'):
  folder = None if folder is None else str(folder)
  return code_store.read(Source.of(paths), people.schema, out_of_range, folder)


def test_a_row_is_a_record_of_few_bytes():
  schema = TableSchema(
    [
      Field('a', 'integer', minimum=-5, maximum=250, required=True),
      Field('b', 'integer', minimum=-5, maximum=250),
      Field('c', 'integer', minimum=0, maximum=70_000),
      Field('d', 'integer', minimum=0, maximum=2**30),
      Field('e', 'boolean'),
    ]
  )
  kinds = code_store.record_dtype(TableEncoder(schema))
  assert [str(kinds[i]) for i in range(5)] == [
    *('uint8', 'uint16', 'uint32', 'float32', 'uint8')
  ]
  table = pd.DataFrame(
    {
      'a': [-5, 250, 0, 1],
      'b': [-5, 250, None, 0],
      'c': [0, 70_000, None, 65_536],
      'd': [0, 2**30, None, 2**25 + 1],
      'e': [True, False, None, True],
    }
  )
  store = code_store.read(_source(table), schema, 'error')
  expected = TableEncoder(schema).encode(schema.validate(table))
  np.testing.assert_array_equal(store[:], expected)


def test_rows_are_read_in_any_way(people, shards, tmp_path):
  stores = _read(shards, people), _read(shards, people, tmp_path / 'rows')
  for store in stores:
    assert store.shape == people.codes.shape
    np.testing.assert_array_equal(store[:], people.codes)
    np.testing.assert_array_equal(store[390:500], people.codes[390:])
    numbers = np.array([[3, 3, 399], [0, 7, 1]])
    np.testing.assert_array_equal(store[numbers], people.codes[numbers])
    twice = MappedRows(store, lambda x: 2 * x[:, :2], [])
    np.testing.assert_array_equal(twice[numbers], 2 * people.codes[numbers, :2])
    assert [
      len(block) for block in store.map_blocks(lambda _, block: block)
    ] == [400]
    with pytest.raises(TypeError, match='read in parts'):
      np.asarray(store)
  assert stores[0].digest.tobytes() == stores[1].digest.tobytes()
  other = _read(shards[::-1], people)
  assert other.digest.tobytes() != stores[0].digest.tobytes()
  assert twice.digest.tobytes() != store.digest.tobytes()
  path = tmp_path / 'rows'
  assert path.stat().st_mode & 0o777 == 0o700
  assert {f.stat().st_mode & 0o777 for f in path.iterdir()} == {0o600}


_PASS = """
import os, signal, sys
from tfdpflows.tabular import TableSchema, code_store
from tfdpflows.tabular.sources import Source

encode, chunks = code_store.ChunkEncoder.__call__, []

def kill(self, chunk):
  chunks.append(1)
  if len(chunks) == 3:
    os.kill(os.getpid(), signal.SIGKILL)
  return encode(self, chunk)

code_store.ChunkEncoder.__call__ = kill
schema, folder, *paths = sys.argv[1:]
schema = TableSchema.from_json(schema)
code_store.read(Source.of(paths), schema, 'error', folder)
"""


def test_a_pass_that_was_killed_goes_on_after_its_last_file(
  people, shards, tmp_path, monkeypatch
):
  people.schema.to_json(tmp_path / 'schema.json')
  folder = tmp_path / 'rows'
  log = tmp_path / 'log.txt'
  program = ['-c', _PASS, tmp_path / 'schema.json', folder, *shards]
  assert forked.run(program, log) == -signal.SIGKILL, log.read_text()
  state = json.loads((folder / 'state.json').read_text())
  assert [part['sums'][0] for part in state['parts']] == [150, 300]
  assert not state['complete']
  read = []
  whole = Part.read

  def watched(self, *args):
    read.append(os.path.basename(self.name))
    return whole(self, *args)

  monkeypatch.setattr(Part, 'read', watched)
  store = _read(shards, people, folder)
  assert read == ['2.parquet']
  np.testing.assert_array_equal(store[:], people.codes)

  # All is read again where a file of a whole pass has changed since.
  read.clear()
  pa.parquet.write_table(pa.parquet.read_table(shards[1])[:-1], shards[1])
  store = _read(shards, people, folder)
  assert read == ['0.parquet', '1.parquet', '2.parquet']
  np.testing.assert_array_equal(store[:], np.delete(people.codes, 299, 0))
  # And for another schema, or without what was stored.
  read.clear()
  assert len(_read(shards, people, folder, 'clip')) == 399
  (folder / 'state.json').write_text('{')
  assert len(_read(shards, people, folder)) == 399
  assert len(read) == 6


def test_a_full_disk_keeps_what_was_read(people, shards, tmp_path):
  folder = tmp_path / 'rows'
  size = code_store.record_dtype(people.encoder).itemsize
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (200 * size, hard))
  try:
    with pytest.raises(OSError, match='File too large'):
      _read(shards, people, folder)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  state = json.loads((folder / 'state.json').read_text())
  assert len(state['parts']) == 1
  store = _read(shards, people, folder)
  np.testing.assert_array_equal(store[:], people.codes)


def test_what_is_refused_leaves_nothing(people, shards, tmp_path):
  bad = people.table.assign(age=[*[30] * 399, 100])
  pa.parquet.write_table(pa.Table.from_pandas(bad), shards[2])
  with pytest.raises(ValueError, match=r"2\.parquet: Column 'age', row 400: "):
    _read(shards, people, tmp_path / 'rows')
  assert os.listdir(tmp_path) == ['shards']
  empty = people.table.assign(city=None)
  table = pa.Table.from_pandas(empty)
  message = "'city' has no values, only missing .* or set out_of_range to clip"
  with pytest.raises(ValueError, match=message):
    code_store.read(Source.of(table), people.schema, 'error')
  for count, message in ((1, 'has one row'), (0, 'has no rows')):
    with pytest.raises(ValueError, match=message):
      code_store.read(
        _source(people.table[:count]),
        people.schema,
        'clip',
      )


def _random_columns(rng, n=5000):
  """A table of all kinds of columns, some with spikes, and its encoder."""
  schema = TableSchema(
    [
      Field('few', 'integer', minimum=0, maximum=9),
      Field('many', 'integer', minimum=0, maximum=100_000, required=True),
      Field('wide', 'integer', minimum=0, maximum=2**40),
      Field('number', 'number', minimum=0, maximum=99),
      Field('fine', 'number', minimum=-1, maximum=1, required=True),
      Field('word', 'string', enum=tuple('abcdefgh')),
    ]
  )
  table = pd.DataFrame(
    {
      'few': rng.integers(0, 10, n),
      'many': (rng.random(n) ** 5 * 100_000).astype(int),
      'wide': np.where(rng.random(n) < 0.5, 7, rng.integers(0, 2**40, n)),
      'number': np.where(rng.random(n) < 0.3, 99, rng.random(n) * 99),
      'fine': np.where(rng.random(n) < 0.3, 0.25, rng.random(n) * 2 - 1),
      'word': rng.choice(list('abcdefgh'), n),
    }
  )
  for name in ('few', 'wide', 'number', 'word'):
    table.loc[rng.random(n) < 0.1, name] = None
  return schema, table, TableEncoder(schema)


def test_histograms_are_those_of_the_array(small_blocks):
  """To the last bit, with the same noise, at all levels."""
  schema, table, encoder = _random_columns(np.random.default_rng(0))
  store = code_store.read(_source(table), schema, 'error')
  for noise in (0.5, 10.0):
    found, expected = (
      mechanisms.noisy_histograms(
        x, encoder.columns, noise, Randomness(seed=1), PrivacyLedger()
      )
      for x in (store, store[:])
    )
    for a, b in zip(found, expected):
      np.testing.assert_array_equal(a.edges, b.edges)
      np.testing.assert_array_equal(a.counts, b.counts)
    assert max(len(h.counts) for h in found) > 64


def test_marginals_are_those_of_the_array(small_blocks):
  rng = np.random.default_rng(0)
  codes = rng.integers(0, 7, [1000, 4])
  schema = TableSchema(
    [Field(f'{i}', 'integer', minimum=0, maximum=6) for i in range(4)]
  )
  table = pa.table({f'{i}': codes[:, i] for i in range(4)})
  store = code_store.read(Source.of(table), schema, 'clip')
  # Codes out of range count as the nearest bin.
  bins = MappedRows(store, lambda x: x.astype(np.uint8) + 1, [1])
  sizes, groups = [7] * 4, [(0, 1), (3,), (1, 2, 3)]
  ledger = accounting.PrivacyLedger()
  for x in (bins, codes + 1):
    rows = marginals.BinnedRows(x, sizes)
    rows.count_all(groups)
    found = mechanisms.noisy_marginals(
      rows, sizes, groups, 1.0, Randomness(seed=1), PrivacyLedger()
    )
    chosen = mechanisms.select_marginal(
      rows,
      sizes,
      [(0, 1), (2, 3)],
      [np.full([7, 7], 20.0), np.zeros([7, 7])],
      1.0,
      1.0,
      Randomness(seed=1),
      ledger,
      label=str(type(x)),
    )
    if x is bins:
      expected, choice = found, chosen
  for a, b in zip(found, expected):
    np.testing.assert_array_equal(a.counts, b.counts)
  assert chosen == choice


# With coins they are those that `expected` is compared with.
@pytest.mark.parametrize('coins', thinned([False, True], 1))
def test_fits_are_those_of_the_data_frame(
  people, shards, coins, small_blocks, monkeypatch, tmp_path
):
  """With one seed, to the last bit, however batches are drawn."""
  if not coins:
    monkeypatch.setattr(poisson, '_MOST_COINS', 0)
    monkeypatch.setattr(poisson, '_FEW', 1.0)
  arguments = {**people.budget, **people.quick, 'seed': 3}
  if coins:
    arguments['adaptive_marginals'] = 3
  one, other = (
    TabularSynthesizer(people.schema, **arguments).fit(
      data, work_dir=work, progress=False
    )
    for data, work in ((people.table, None), (shards, tmp_path / 'work'))
  )
  small_table.assert_same_model(one, other)
  assert sorted(os.listdir(tmp_path)) == ['shards', 'work']


def test_models_without_stored_rows_take_the_codes(people, shards):
  arguments = {**people.budget, 'seed': 3, 'model': 'dpgan', 'epochs': 1}
  for data in (people.table, shards):
    with small_table.untrained() as train:
      TabularSynthesizer(people.schema, **arguments).fit(data, progress=False)
    codes = train.call_args.args[2]
    assert isinstance(codes, np.ndarray)
    np.testing.assert_array_equal(codes, people.codes)


@pytest.fixture
def same_secret(monkeypatch):
  monkeypatch.setattr(os, 'urandom', lambda size: bytes(range(size)))


def _fit(people, data, model_dir, **arguments):
  return fit_to_directory(
    data,
    people.schema,
    model_dir,
    progress=False,
    **{**people.budget, **people.tiny, 'adaptive_marginals': 2, **arguments},
  )


def _stop(*unused_args, **unused_kwargs):
  raise KeyboardInterrupt


def _same(one, other):
  assert one.ledger.entries == other.ledger.entries
  small_table.assert_same_model(one, other)


def _unsaved(people, data, work, **options):
  """As `_fit`, without the folder of the model."""
  arguments = {**people.budget, **people.tiny, 'adaptive_marginals': 2}
  return TabularSynthesizer(people.schema, **arguments).fit(
    data, work_dir=work, progress=False, **options
  )


@pytest.fixture(scope='module')
def expected(people, tmp_path_factory):
  """A fit of these rows with that secret, which nothing interrupts."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(os, 'urandom', lambda size: bytes(range(size)))
    work = tmp_path_factory.mktemp('expected') / 'work'
    return _unsaved(people, pa.Table.from_pandas(people.table), work)


def test_a_fit_goes_on_without_paying_twice(
  people, shards, expected, tmp_path, monkeypatch, same_secret, small_blocks
):
  """It stops in the pass, in counting, in training; files change meanwhile."""
  model, work = tmp_path / 'model', tmp_path / 'model.partial'
  with pytest.raises(FileNotFoundError, match='nothing to resume'):
    _fit(people, shards, model, resume=True)
  for owner, name, kept in (
    (code_store, 'encode_column', 'model.partial.rows'),
    (histograms, '_weights_below', 'model.partial'),
    (dp_sgd, '_check_start', 'model.partial'),
  ):
    with monkeypatch.context() as patch:
      patch.setattr(owner, name, _stop)
      with pytest.raises(KeyboardInterrupt):
        _fit(people, shards, model, resume=name != 'encode_column')
    assert kept in os.listdir(tmp_path)
    if name == '_weights_below':
      with pytest.raises(FileExistsError, match='was not finished'):
        _fit(people, shards, model)
  assert sorted(os.listdir(work / 'rows')) == ['codes', 'state.json']

  # Other rows, with the same noise, would show their difference.
  content = pathlib.Path(shards[1]).read_bytes()
  before = (work / 'rows' / 'codes').read_bytes()
  table = pa.parquet.read_table(shards[1])
  pa.parquet.write_table(table[:-1], shards[1])
  with pytest.raises(ValueError, match='another num_rows'):
    _fit(people, shards, model, resume=True)
  table = table.set_column(0, 'age', pa.array([18] * table.num_rows))
  pa.parquet.write_table(table, shards[1])
  with pytest.raises(ValueError, match='begun with another table'):
    _fit(people, shards, model, resume=True)
  assert (work / 'rows' / 'codes').read_bytes() == before
  assert not os.path.exists(f'{work}.rows')

  # A copy of the same file is read again; so is a store that is damaged.
  pathlib.Path(shards[1]).write_bytes(content)
  (work / 'rows' / 'codes').write_bytes(before[:-1] + b'\7')
  _same(_fit(people, shards, model, resume=True), expected)
  assert sorted(os.listdir(tmp_path)) == ['model', 'shards']


def test_a_table_in_no_files_is_read_again(
  people, expected, tmp_path, monkeypatch, same_secret
):
  table, work = pa.Table.from_pandas(people.table), tmp_path / 'work'
  with monkeypatch.context() as patch:
    patch.setattr(dp_sgd, 'train', _stop)
    with pytest.raises(KeyboardInterrupt):
      _unsaved(people, table, work)
  with pytest.raises(ValueError, match='begun with another table'):
    _unsaved(people, table.take(list(range(400))[::-1]), work, resume=True)
  _same(_unsaved(people, table, work, resume=True), expected)


def test_a_fit_that_another_one_keeps_from_beginning_leaves_no_rows(
  people, shards, tmp_path, monkeypatch
):
  work = tmp_path / 'model.partial'
  with monkeypatch.context() as patch:
    patch.setattr(dp_sgd, 'train', _stop)
    with pytest.raises(KeyboardInterrupt):
      _fit(people, shards, tmp_path / 'model')
  with (
    PrivacyLedger.open(work / 'ledger.jsonl'),
    pytest.raises(accounting.LedgerError, match='in use'),
  ):
    _fit(people, shards, tmp_path / 'model', overwrite=True)
  assert sorted(os.listdir(tmp_path)) == ['model.partial', 'shards']


def test_a_fit_that_another_one_overtakes_leaves_no_rows(
  people, shards, tmp_path, monkeypatch
):
  """One of rows in memory, which has not to wait while these are read."""
  work, read = tmp_path / 'model.partial', code_store.read

  def overtaken(*args):
    work.mkdir()
    (work / 'settings.json').write_text('{}')
    return read(*args)

  monkeypatch.setattr(code_store, 'read', overtaken)
  with pytest.raises(FileExistsError, match='was not finished'):
    _fit(people, shards, tmp_path / 'model')
  assert sorted(os.listdir(tmp_path)) == ['model.partial', 'shards']


def test_a_refused_budget_leaves_no_rows(people, shards, tmp_path):
  with pytest.raises(ValueError, match='accountant'):
    _fit(people, shards, tmp_path / 'model', accountant='gdp', epsilon=1e-9)
  assert os.listdir(tmp_path) == ['shards']


def test_sorted_rows_change_nothing_but_their_order(people, tmp_path):
  """The codes of a table sorted by a column are the same, sorted."""
  table = people.table.sort_values('member', kind='stable')
  store = code_store.read(_source(table), people.schema, 'error')
  order = np.argsort(people.table['member'], kind='stable')
  np.testing.assert_array_equal(store[:], people.codes[order])


def test_one_row_of_a_part_does_not_decide_whether_a_fit_is_refused(tmp_path):
  schema = TableSchema([Field('age', 'integer', minimum=0, maximum=99)])
  (tmp_path / '0.csv').write_text('age\n1\n2\n')
  (tmp_path / '1.csv').write_text('age\n')
  store = code_store.read(Source.of(str(tmp_path)), schema, 'clip')
  assert len(store) == 2
  # Times that no calendar has.
  cells = pa.array([1, 2**61], pa.timestamp('us'))
  pa.parquet.write_table(pa.table({'age': cells}), tmp_path / 'a.parquet')
  source = Source.of(str(tmp_path / 'a.parquet'))
  assert len(code_store.read(source, schema, 'clip')) == 2
  with pytest.raises(ValueError, match='a time is out of range') as caught:
    code_store.read(source, schema, 'error')
  assert caught.value.__cause__.__cause__ is None


@pytest.mark.parametrize(
  'spellings',
  [
    [pa.array([b'ann'], pa.binary()), pa.array(['ann'])],
    [pa.array([9007199254740993]), pa.array(['9007199254740993'])],
    [pa.array([7]), pa.array(['7']), pa.array([7.0]), pa.array([' 7'])],
  ],
)
def test_a_person_is_one_unit_in_files_of_all_types(spellings, tmp_path):
  schema = TableSchema(
    [Field('age', 'integer', minimum=0, maximum=99)], privacy_unit='id'
  )
  for number, ids in enumerate(spellings):
    rows = pa.table({'age': [1, 2], 'id': pa.concat_arrays([ids, ids])})
    pa.parquet.write_table(rows, tmp_path / f'{number}.parquet')
  # Another person: a table has two.
  (tmp_path / 'x.csv').write_text('age,id\n3,bob\n')
  store = code_store.read(
    Source.of(str(tmp_path)), schema, 'clip', None, max_rows_per_unit=1
  )
  assert store.rows_per_unit.tolist() == [1, 1]


def test_clip_refuses_no_identifier(tmp_path):
  schema = TableSchema(
    [Field('x', 'integer', minimum=0, maximum=9)], privacy_unit='id'
  )
  for name in (b'a', b'b', b'\xff'):
    folder = os.path.join(os.fsencode(tmp_path), b'id=' + name)
    os.mkdir(folder)
    with open(os.path.join(folder, b'rows.csv'), 'w') as file:
      file.write('x\n1\n2\n')
  source = Source.of(tmp_path)
  # The last name cannot be read, and might be that of another one.
  assert len(code_store.read(source, schema, 'clip', None, 5)) == 4
  cells = [decimal.Decimal('sNaN'), decimal.Decimal('inf'), 10**400, 7.0, '7']
  found = code_store.known_everywhere(pd.Series(cells, dtype=object))
  assert found.tolist() == [None, None, 10**400, 7, '7']


def test_identifiers_that_files_spell_differently_are_none(tmp_path):
  schema = TableSchema(
    [Field('age', 'integer', minimum=0, maximum=99)], privacy_unit='id'
  )
  (tmp_path / 'x.csv').write_text('age,id\n3,bob\n4,ann\n')
  times = pa.array([0, 1], pa.timestamp('us'))
  for ids in (pa.array([True, False]), times, times.cast(pa.date32(), False)):
    rows = pa.table({'age': [1, 2], 'id': ids})
    pa.parquet.write_table(rows, tmp_path / 'y.parquet')
    source = Source.of(str(tmp_path))
    store = code_store.read(source, schema, 'clip', None, 1)
    assert store.rows_per_unit.tolist() == [1, 1]
    with pytest.raises(ValueError, match='text or a whole number'):
      code_store.read(source, schema, 'error', None, 1)


@pytest.mark.parametrize(
  'dtype, first', [('float64', 2**53), ('float32', 2**24), ('float16', 2**11)]
)
def test_identifiers_that_floats_round_are_nobodys(dtype, first, tmp_path):
  """Two people are one there: without one, rows of the other would move."""
  schema = TableSchema(
    [Field('age', 'integer', minimum=0, maximum=99)], privacy_unit='id'
  )
  ids = np.array([first, first + 1, first - 1, 7]).astype(dtype)
  table = pd.DataFrame({'age': [1, 2, 3, 4], 'id': ids})
  pa.parquet.write_table(pa.Table.from_pandas(table), tmp_path / 'x.parquet')
  found = schema.unit_ids(table, 'clip')
  assert found.dropna().tolist() == [str(first - 1), '7']
  source = Source.of(str(tmp_path))
  for rows in (source, _source(table)):
    store = code_store.read(rows, schema, 'clip', None, 1)
    assert store.rows_per_unit.tolist() == [1, 1]
    with pytest.raises(ValueError, match='is rounded to that of others'):
      code_store.read(rows, schema, 'error', None, 1)
  with pytest.raises(ValueError, match='is rounded to that of others'):
    schema.unit_ids(table, 'error')


def test_a_folder_that_others_have_made_is_refused(people, shards, tmp_path):
  folder = tmp_path / 'rows'
  folder.mkdir()
  folder.chmod(0o777)
  with pytest.raises(PermissionError, match='open to others'):
    _read(shards, people, folder)
  folder.rmdir()
  folder.symlink_to(tmp_path)
  with pytest.raises(PermissionError, match='is a link'):
    _read(shards, people, folder)


def test_two_fits_do_not_read_rows_to_one_folder(people, shards, tmp_path):
  def stored():
    return code_store.stored(
      Source.of(shards),
      people.schema,
      'error',
      os.fspath(tmp_path / 'model'),
      resume=False,
      overwrite=False,
    )

  store = stored()
  rows = store[:]
  # As of another process: the second would write over what the first uses.
  with pytest.raises(BlockingIOError, match='model.rows is in use by another'):
    stored()
  np.testing.assert_array_equal(store[:], rows)
  store.discard(tmp_path / 'model')
  again = stored()
  again.move(os.fspath(tmp_path / 'moved'))
  np.testing.assert_array_equal(again[:], rows)
  # An interrupt leaves one behind that nobody has any more.
  stored()
  assert len(stored()) == len(rows)


def test_what_was_written_over_is_not_taken_for_what_it_was(
  people, shards, tmp_path, monkeypatch
):
  folder = tmp_path / 'rows'
  first = _read(shards, people, folder)[:]
  other = [shards[1], shards[0], shards[2]]
  write, calls = code_store._write_state, []

  def full(*args):
    calls.append(1)
    if len(calls) > 1:
      raise OSError(errno.ENOSPC, 'No space left on device')
    write(*args)

  with monkeypatch.context() as patch:
    patch.setattr(code_store, '_write_state', full)
    with pytest.raises(OSError, match='No space'):
      _read(other, people, folder)
  np.testing.assert_array_equal(_read(shards, people, folder)[:], first)
  stored = code_store.reopen(
    Source.of(shards), people.schema, 'error', str(folder), None
  )
  np.testing.assert_array_equal(stored[:], first)
