"""Samples written part by part, and read again."""

import os
import resource
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from tests.tabular import small_table
from tfdpflows.tabular import (
  Field,
  TableEncoder,
  TableSchema,
  TabularSynthesizer,
  code_store,
  density,
  sinks,
  sources,
)
from tfdpflows.tabular.table import read_table, write_table

NAMES = (
  *('s.csv', 's.csv.gz', 's.parquet', 's.arrow', 's.feather'),
  *('s.tfrecord', 's.tfrecord.gz'),
)


@pytest.fixture(scope='module')
def people():
  made = small_table.make(num_rows=100)
  made.rows = made.schema.validate(made.table)
  # TFRecord has floats of 32 bits.
  made.rows['income'] = made.rows['income'].astype('float32').astype(float)
  made.codes = TableEncoder(made.schema).encode(made.rows)
  return made


@pytest.fixture(scope='module')
def synthesizer(people):
  """Of measured marginals alone: how rows are cut is the same with training."""
  with small_table.untrained(), small_table.short():
    return TabularSynthesizer(
      people.schema,
      seed=1,
      **people.budget,
      **people.tiny,
      adaptive_marginals=2,
    ).fit(people.table, progress=False)


def _parts(rows):
  return (rows[i : i + 33] for i in range(0, len(rows), 33))


@pytest.mark.parametrize('name', NAMES)
def test_what_is_written_in_parts_is_read_as_it_was(people, name, tmp_path):
  path = tmp_path / name
  assert sinks.write_frames(_parts(people.rows), path, people.schema) == 100
  assert os.listdir(tmp_path) == [name]
  found = code_store.read(sources.Source.of(path), people.schema, 'error')
  np.testing.assert_array_equal(found[:], people.codes)
  if name == 's.csv':
    write_table(people.rows, tmp_path / 'whole.csv')
    assert path.read_bytes() == (tmp_path / 'whole.csv').read_bytes()


@pytest.mark.parametrize('name', NAMES)
def test_what_fails_leaves_what_was_there(people, name, tmp_path):
  def frames():
    yield people.rows[:50]
    raise OSError(28, os.strerror(28))

  path = tmp_path / name
  path.write_text('old')
  with pytest.raises(OSError, match='No space left') as caught:
    sinks.write_frames(frames(), path, people.schema)
  assert caught.value.filename == os.fspath(path)
  assert path.read_text() == 'old'
  assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize('name', NAMES)
def test_a_file_that_cannot_be_written_is_an_error_of_it(
  people, name, tmp_path
):
  """As where the disk is full, whoever writes to it."""
  path = tmp_path / name
  frames = [people.rows] * 20
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
  try:
    with pytest.raises(OSError, match='File too large'):
      sinks.write_frames(frames, path, people.schema)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert not os.listdir(tmp_path)


def test_no_category_is_taken_for_a_missing_value(tmp_path):
  """Nor a missing value for one; of a part without any too."""
  schema = TableSchema([Field('a', 'string', enum=('', 'NA', 'x'))])
  frames = [pd.DataFrame({'a': ['x']}), pd.DataFrame({'a': ['', 'NA', np.nan]})]
  path = tmp_path / 's.csv'
  sinks.write_frames(frames, path, schema)
  assert path.read_text() == 'a\nx\n""\nNA\nNaN\n'
  store = code_store.read(sources.Source.of(path), schema, 'error')
  assert store[:].ravel().tolist() == [2, 0, 1, 3]


def test_samples_in_parts_are_the_sample(synthesizer, monkeypatch):
  whole = synthesizer.sample(20_000, seed=5)
  monkeypatch.setattr('tfdpflows.tabular.fitted._FRAME', 10_000)
  parts = list(synthesizer.sample_frames(20_000, seed=5))
  assert [len(part) for part in parts] == [16_384, 3616]
  pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), whole)
  (empty,) = synthesizer.sample_frames(0)
  pd.testing.assert_frame_equal(empty, whole[:0])
  with pytest.raises(ValueError, match='num_rows'):
    next(synthesizer.sample_frames(-1))
  # As many as there may be: no part waits longer than it must.
  parts = synthesizer.sample_frames(10**12)
  next(parts)
  tracemalloc.start()
  next(parts)
  parts.close()
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 100 * density.BATCH * 100


def test_scores_in_parts_are_the_scores(synthesizer, monkeypatch):
  """Wherever rows are cut, they meet the same random numbers."""
  table = synthesizer.sample(3000, seed=5)
  whole = synthesizer.log_prob(table)
  assert whole.shape == (3000,)
  monkeypatch.setattr('tfdpflows.tabular.fitted._FRAME', 1024)
  for ends in ([3000], [1, 700, 701, 2900, 3000], [1000, 2000, 3000]):
    frames = [table[a:b] for a, b in zip([0, *ends], ends)]
    parts = list(synthesizer.log_prob_frames(frames))
    assert [len(part) for part in parts] == [1024, 1024, 952]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
  assert list(synthesizer.log_prob_frames([])) == []
  with pytest.raises(ValueError, match='no rows'):
    list(synthesizer.log_prob_frames([table[:0]]))


def test_the_generator_is_used_as_far_as_it_was(people):
  """Whoever draws on after a sample gets the same numbers."""

  class Rows(density.TableDistribution):
    def __init__(self):
      super().__init__(TableEncoder(people.schema).columns, 'rows')

    def _draw(self, shape, seed):
      del seed
      return np.zeros([*shape, 5], np.float32)

    def saved_parts(self):
      return {}

  for count in (0, 1, density.BATCH, 7 * density.BATCH + 1):
    rng, expected = (np.random.default_rng(0) for _ in range(2))
    assert Rows().sample(count, rng).shape == (count, 5)
    for _ in range(-(-count // density.BATCH)):
      expected.integers(-(2**31), 2**31, 2, dtype=np.int32)
    assert rng.random() == expected.random()


def test_a_carriage_return_ends_no_row(tmp_path):
  schema = TableSchema(
    [
      Field('s', 'string', enum=('a\rb', '\r', 'c')),
      Field('x', 'integer', 0, 9),
    ]
  )
  table = pd.DataFrame(
    {'s': ['a\rb', '\r', 'c', np.nan], 'x': pd.array([1, 2, None, 4], 'Int64')}
  )
  path = tmp_path / 'table.csv'
  sinks.write_frames([table[:2], table[2:]], path, schema)
  found = read_table(path, schema)
  assert (
    found.astype(object).astype(str).equals(table.astype(object).astype(str))
  )


def test_a_missing_value_that_no_word_is_left_for_is_refused(tmp_path):
  field = Field('s', 'string', enum=('', 'NA', 'NaN', 'null'))
  schema = TableSchema([field, Field('x', 'integer', 0, 9)])
  table = pd.DataFrame({'s': ['', 'NA'], 'x': pd.array([1, None], 'Int64')})
  path = tmp_path / 'table.csv'
  sinks.write_frames([table], path, schema)
  table.loc[0, 's'] = np.nan
  with pytest.raises(ValueError, match='include all words for one'):
    sinks.write_frames([table], path, schema)


def test_records_round_no_number_out_of_its_bounds(tmp_path):
  fields = [Field('n', 'number', -0.1, 0.1), Field('x', 'integer', 0, 9)]
  schema = TableSchema(fields)
  table = pd.DataFrame({'n': [0.1, -0.1], 'x': [1, 2]})
  path = tmp_path / 'table.tfrecord'
  sinks.write_frames([table], path, schema)
  found = schema.validate(sources.Source.of(path).to_frame(schema))
  assert np.allclose(found['n'], table['n'])
