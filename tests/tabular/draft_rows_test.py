"""Fits of drafts that read files: what they learn is that of the table."""

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.grids import thinned
from tests.tabular import small_table
from tfdpflows import accounting, randomness
from tfdpflows.mechanisms import bounds
from tfdpflows.tabular import (
  Field,
  TableSchema,
  TabularSynthesizer,
  code_store,
  draft_rows,
)
from tfdpflows.tabular import sources as table_sources
from tfdpflows.tabular.draft_rows import DraftRows, of_source
from tfdpflows.tabular.drafting import draft_schema
from tfdpflows.tabular.sources import Source
from tfdpflows.tabular.table import write_table

ROWS = 3000


@pytest.fixture(scope='module')
def people():
  """Columns of all kinds, some of them with rare or missing values."""
  rng = np.random.default_rng(0)
  table = pd.DataFrame(
    {
      'age': rng.integers(18, 90, ROWS),
      'wage': rng.lognormal(3, 1, ROWS).round(4),
      'debt': rng.normal(0, 40, ROWS).clip(-100, 100),
      'city': rng.choice(['Bonn', 'Ulm', 'Köln', 'Trier'], ROWS),
      'job': rng.choice(
        [*'abcdefghijklmnop'], ROWS, p=[*[0.1] * 9, *[1 / 70] * 7]
      ),
      'member': rng.random(ROWS) < 0.4,
    }
  )
  table.loc[::7, 'debt'] = np.nan
  table.loc[::9, 'city'] = None
  # Rows of which a few categories are their own.
  table.loc[5:15, 'city'] = [f'village {i}' for i in range(11)]
  return table


@pytest.fixture
def paths(people, tmp_path):
  """The table in files of three formats."""
  write_table(people[:1000], tmp_path / 'a.csv')
  for name, part in (('b', people[1000:2300]), ('c', people[2300:])):
    table = pa.Table.from_pandas(part, preserve_index=False)
    path = tmp_path / f'{name}.parquet'
    pa.parquet.write_table(table, path, row_group_size=400)
  return sorted(tmp_path.iterdir())


@pytest.fixture(autouse=True)
def large(monkeypatch):
  """As if the table were too large for the memory."""
  monkeypatch.setattr(draft_rows, '_MOST_IN_MEMORY', 0)


@pytest.fixture
def small_chunks(monkeypatch):
  monkeypatch.setattr(table_sources, 'CHUNK', 256)


def _draft(people, public=False):
  schema = draft_schema(people).for_bounds()
  if not public:
    return schema
  # Types that are known, as in most drafts that somebody has looked at.
  fields = [
    Field('age', 'integer', minimum=0, maximum=99, from_data=('maximum',)),
    Field('wage', 'number', 0, 9, from_data=('minimum', 'maximum', 'required')),
    Field('debt', 'number', minimum=-100, maximum=100),
    Field('city', 'string', enum=('?',), from_data=('enum', 'required')),
    Field('job', 'string', enum=('?',), from_data=('enum',), required=True),
    Field('member', 'boolean', required=True),
  ]
  return TableSchema(fields)


@pytest.mark.parametrize(
  ('how', 'public'),
  thinned(
    [('error', True), ('clip', False), ('error', False), ('clip', True)], 2
  ),
)
def test_bounds_are_those_of_the_table_in_memory(
  people, paths, small_chunks, public, how
):
  schema = _draft(people, public)
  rows = DraftRows(Source.of(paths), schema, how)
  whole = schema.validate(Source.of(paths).to_frame(), how)
  pd.testing.assert_frame_equal(
    pd.concat(rows.frames(), ignore_index=True), whole
  )
  assert len(list(rows.frames())) > 9
  found = []
  for table in (whole, rows):
    ledger = accounting.PrivacyLedger()
    seed = randomness.Randomness(seed=3)
    found.append(bounds.release_bounds(table, schema, 2.0, 1e-4, seed, ledger))
    (entry,) = ledger.entries
    assert entry.label == 'bounds'
  assert found[0] == found[1]
  assert not found[0].schema.is_draft
  assert 'village 3' not in found[0].schema['city'].categories


SETTINGS = {
  'epsilon': 4.0,
  'delta': 1e-4,
  'accountant': 'rdp',
  'bounds_epsilon': 2.0,
  'seed': 5,
  'epochs': 1,
  'adaptive_marginals': 0,
}


def _fit(people, data, work=None, **options):
  """Fits a draft; returns the fit and the codes that it would train on."""
  with small_table.untrained() as train:
    fitted = TabularSynthesizer(draft_schema(people), **SETTINGS)
    fitted.fit(data, work, progress=False, **options)
  codes = train.call_args.args[2]
  return fitted, codes[:]


@pytest.fixture(scope='module')
def in_memory(people):
  """The fit of the table itself."""
  return _fit(people, people)


# A folder to work in has the interrupted one below.
@pytest.mark.parametrize('in_folder', thinned([False, True], 1))
def test_a_fit_of_files_is_that_of_the_table(
  in_folder, people, in_memory, paths, small_chunks, tmp_path
):
  expected, expected_codes = in_memory
  data, folder = paths, None
  if in_folder:
    data, folder = [str(path) for path in paths], tmp_path / 'work'
  other, codes = _fit(people, data, folder)
  assert other.bounds == expected.bounds
  small_table.assert_same_model(other, expected)
  np.testing.assert_array_equal(codes, expected_codes)
  other.ledger.close()


def test_a_fit_that_was_interrupted_reads_the_same_files(
  people, in_memory, paths, tmp_path, monkeypatch
):
  work = tmp_path / 'work'
  fit = lambda **options: _fit(people, paths, work, **options)

  def stop(*_, **__):
    raise KeyboardInterrupt

  with monkeypatch.context() as patched:
    patched.setattr('tfdpflows.mechanisms.noisy_histograms', stop)
    with pytest.raises(KeyboardInterrupt):
      fit()
  assert (work / code_store.ROWS / 'codes').exists()
  with monkeypatch.context() as patched:
    # What is encoded is not encoded again.
    patched.setattr(code_store, 'read', stop)
    resumed, codes = fit(resume=True)
  expected, expected_codes = in_memory
  assert resumed.schema == expected.schema
  np.testing.assert_array_equal(codes, expected_codes)
  assert [e.label for e in resumed.ledger.entries].count('bounds') == 1
  resumed.ledger.close()
  # Other rows are refused.
  write_table(people[1:1000], paths[0])
  with pytest.raises(ValueError, match='begun with|differ'):
    fit(resume=True)


def test_rows_that_change_between_passes_are_refused(people, paths):
  schema = _draft(people)
  rows = DraftRows(Source.of(paths), schema, 'clip')
  known, text = paths[0].stat(), paths[0].read_text()
  # Of the same size, and with the same time.
  paths[0].write_text(text.replace('Bonn', 'Bern'))
  os.utime(paths[0], ns=(known.st_atime_ns, known.st_mtime_ns))
  assert len(list(rows.frames(['age']))) > 1
  ledger = accounting.PrivacyLedger()
  seed = randomness.Randomness(seed=3)
  with pytest.raises(ValueError, match="changed between two .*'city'"):
    bounds.release_bounds(rows, schema, 2.0, 1e-4, seed, ledger)
  assert [entry.label for entry in ledger.entries] == ['bounds']
  # Where the first rows are back, the same noise is on the same counts.
  paths[0].write_text(text)
  os.utime(paths[0], ns=(known.st_atime_ns, known.st_mtime_ns))
  assert sum(map(len, rows.frames())) == ROWS


def test_errors_name_file_row_and_column(people, paths, small_chunks):
  schema = _draft(people, public=True)
  table = people[2300:].copy()
  table.loc[2900, 'debt'] = 101.0
  table = pa.Table.from_pandas(table, preserve_index=False)
  pa.parquet.write_table(table, paths[2], row_group_size=400)
  message = r"c\.parquet: Column 'debt', row 601: .*101.0 is outside"
  with pytest.raises(ValueError, match=message):
    of_source(Source.of(paths), schema, 'error')
  assert len(of_source(Source.of(paths), schema, 'clip')) == ROWS
  pa.parquet.write_table(table[:0], paths[2])
  with pytest.raises(ValueError, match=r'no rows; .*c\.parquet'):
    of_source(Source.of(paths[2]), schema, 'clip')
  pa.parquet.write_table(table[:1], paths[2])
  with pytest.raises(ValueError, match='one row'):
    of_source(Source.of(paths[2]), schema, 'clip')
  pa.parquet.write_table(table.drop_columns(['job']), paths[2])
  with pytest.raises(ValueError, match=r"c\.parquet: .*no column 'job'"):
    of_source(Source.of(paths), schema, 'clip')
  # A column without values is told of under 'error' alone.
  none = [[None] * 9] * len(schema)
  pa.parquet.write_table(pa.table(none, list(schema.names)), paths[2])
  schema = _draft(people)
  with pytest.raises(ValueError, match='no values, only missing'):
    of_source(Source.of(paths[2]), schema, 'error')
  assert len(of_source(Source.of(paths[2]), schema, 'clip')) == 9


def test_small_tables_streams_and_units_are_in_memory(
  people, paths, monkeypatch
):
  schema = _draft(people)
  with monkeypatch.context() as patched:
    patched.setattr(draft_rows, '_MOST_IN_MEMORY', ROWS)
    found = of_source(Source.of(paths), schema, 'error')
  expected = schema.validate(Source.of(paths).to_frame(), 'error')
  pd.testing.assert_frame_equal(found, expected)
  assert isinstance(of_source(Source.of(paths), schema, 'error'), DraftRows)
  table = pa.Table.from_pandas(people, preserve_index=False)
  found = of_source(Source.of(table.to_reader(100)), schema, 'error')
  assert isinstance(found, pd.DataFrame)
  schema = draft_schema(people, privacy_unit='job')
  found = of_source(Source.of(paths), schema, 'error')
  assert isinstance(found, pd.DataFrame)
