"""Units whose rows are not in memory: the same rows are used, to the last."""

import dataclasses
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.tabular import small_table
from tfdpflows import mechanisms, sampling, stored_rows
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.randomness import Randomness
from tfdpflows.sampling import units as sampling_units
from tfdpflows.tabular import (
  TableEncoder,
  TabularSynthesizer,
  code_store,
  unit_order,
)
from tfdpflows.tabular.sources import Source

PERSON = 'person'


@pytest.fixture(scope='module')
def people():
  """The small table, with 90 people; one has a third of all rows."""
  made = small_table.make()
  rng = np.random.default_rng(0)
  ids = rng.integers(0, 90, 400)
  ids[rng.random(400) < 0.3] = 5
  made.table[PERSON] = ids
  made.schema = dataclasses.replace(made.schema, privacy_unit=PERSON)
  made.encoder = TableEncoder(made.schema)
  made.codes = made.encoder.encode(made.schema.validate(made.table))
  made.ids = made.schema.unit_ids(made.table)
  made.arguments = {**made.budget, 'delta': 1e-3, 'max_rows_per_unit': 3}
  return made


@pytest.fixture
def few_rows(monkeypatch):
  """Files and blocks of few rows."""
  monkeypatch.setattr(unit_order, '_ROWS_PER_FILE', 50)
  monkeypatch.setattr(unit_order, '_BLOCK', 32)
  monkeypatch.setattr(stored_rows, 'BLOCK', 64)


def _source(table, folder=None, shards=3):
  """In no file, or spread over some."""
  table = pa.Table.from_pandas(table, preserve_index=False)
  if folder is None:
    return Source.of(table)
  folder.mkdir()
  size = -(-table.num_rows // shards)
  for number in range(shards):
    # Most units are in all of them.
    part = table.slice(number * size, size)
    pa.parquet.write_table(part, folder / f'{number}.parquet')
  return Source.of(folder)


def _read(table, people):
  return code_store.read(_source(table), people.schema, 'error', None, 3)


def _units(people, **arguments):
  return sampling.Units(
    people.ids, **{'max_rows_per_unit': 3, 'name': PERSON, **arguments}
  )


def _sorted_units(store, **arguments):
  return sampling_units.SortedUnits(
    store.rows_per_unit,
    **{'max_rows_per_unit': 3, 'name': PERSON, **arguments},
  )


@pytest.mark.parametrize('where', ['memory', 'disk'])
@pytest.mark.parametrize('weighting', ['rows', 'units'])
def test_the_same_rows_are_used_in_the_same_order(
  people, where, weighting, few_rows, tmp_path
):
  source, folder = _source(people.table), None
  if where == 'disk':
    source = _source(people.table, tmp_path / 'shards')
    folder = str(tmp_path / 'rows')
  store = code_store.read(source, people.schema, 'error', folder, 3)
  if folder:
    assert sorted(os.listdir(folder)) == ['counts', 'ordered', 'state.json']
  before = _units(people, weighting=weighting)
  after = _sorted_units(store, weighting=weighting)
  assert after.num_units == before.num_units
  assert after.num_rows == len(store) < len(people.codes)
  everyone = np.arange(after.num_units)
  for most in (3, 2):
    before, after = before.limited(most), after.limited(most)
    numbers, factors = before.batch(everyone, np.ones(len(everyone)))
    places, same = after.batch(everyone, np.ones(len(everyone)))
    np.testing.assert_array_equal(factors, same)
    used = factors > 0
    np.testing.assert_array_equal(
      people.codes[numbers[used]], store[places[used]]
    )
    np.testing.assert_allclose(
      after.row_weights().sum(), before.row_weights().sum()
    )
    np.testing.assert_array_equal(
      after.row_weights()[7:40], after.weights_of(7, 33)
    )
  without = after.without([0])
  assert without.row_weights()[: store.rows_per_unit[0]].sum() == 0
  assert without.row_weights().sum() == pytest.approx(
    before.without([0]).row_weights().sum()
  )


def test_counts_are_those_of_the_array(people, few_rows):
  """But for the rounding of sums of weights."""
  store = code_store.read(
    _source(people.table), people.schema, 'error', None, 3
  )
  found, expected = (
    mechanisms.noisy_histograms(
      x,
      people.encoder.columns,
      0.5,
      Randomness(seed=1),
      PrivacyLedger(privacy_unit=PERSON),
      units=units,
    )
    for x, units in (
      (store, _sorted_units(store)),
      (people.codes, _units(people)),
    )
  )
  for a, b in zip(found, expected):
    np.testing.assert_allclose(a.edges, b.edges)
    np.testing.assert_allclose(a.counts, b.counts, rtol=1e-6)
  with pytest.raises(ValueError, match='the units are those of 400'):
    mechanisms.noisy_histograms(
      store,
      people.encoder.columns,
      0.5,
      Randomness(seed=1),
      PrivacyLedger(privacy_unit=PERSON),
      units=_units(people),
    )


def test_fits_are_those_of_the_data_frame(people, few_rows, tmp_path):
  arguments = {**people.arguments, **people.tiny, 'seed': 3}
  arguments.update(max_rows_epsilon=0.2, adaptive_marginals=2)
  with small_table.short():
    one, other = (
      TabularSynthesizer(people.schema, **arguments).fit(
        data, work_dir=work, progress=False
      )
      for data, work in (
        (people.table, None),
        (_source(people.table, tmp_path / 'shards'), tmp_path / 'work'),
      )
    )
  assert one._fitted.units == other._fitted.units
  for a, b in zip(
    one._fitted.distribution.exported_variables(),
    other._fitted.distribution.exported_variables(),
  ):
    np.testing.assert_allclose(a.numpy(), b.numpy(), atol=2e-4)


@pytest.mark.parametrize('where', ['memory', 'disk'])
def test_rows_without_a_unit(people, where, tmp_path):
  table = people.table.copy()
  table[PERSON] = table[PERSON].astype(object)
  table.loc[[3, 250], PERSON] = None
  source = _source(table.astype({PERSON: 'Int64'}), tmp_path / 'shards')
  folder = str(tmp_path / 'rows') if where == 'disk' else None
  message = r"0\.parquet: Column 'person', row 4: .*unit is missing"
  with pytest.raises(ValueError, match=message):
    code_store.read(source, people.schema, 'error', folder, 3)
  assert os.listdir(tmp_path) == ['shards']
  store = code_store.read(source, people.schema, 'clip', folder, 3)
  ids = people.schema.unit_ids(table, 'clip')
  known = ids.notna().to_numpy()
  units = sampling.Units(ids[known], max_rows_per_unit=3, name=PERSON)
  used = units.row_weights() > 0
  assert len(store) == used.sum()
  expected = people.codes[known][used]
  np.testing.assert_array_equal(np.sort(store[:], 0), np.sort(expected, 0))
  with pytest.raises(ValueError, match='has no values, only missing'):
    code_store.read(
      _source(table.assign(person=None)), people.schema, 'clip', None, 3
    )


@pytest.mark.parametrize(
  'change',
  [
    lambda ids: ids.astype(str),
    lambda ids: ids.astype(float),
    lambda ids: ' ' + ids.astype(str) + '.0',
    lambda ids: ids.astype(str).astype('category'),
  ],
)
def test_identifiers_of_any_type_are_the_same_units(people, change):
  expected = _read(people.table, people)
  table = people.table.assign(person=change(people.table[PERSON]))
  found = _read(table, people)
  assert found.digest.tobytes() == expected.digest.tobytes()
  with pytest.raises(ValueError, match=r"'person', row 1: .*beyond 2\*\*53"):
    code_store.read(
      _source(people.table.assign(person=2**60)),
      people.schema,
      'error',
      None,
      3,
    )


def test_a_kill_among_the_units_goes_on(
  people, tmp_path, monkeypatch, few_rows
):
  """At any of its steps: rows of the pass are not taken for sorted ones."""
  expected = _read(people.table, people)
  source = _source(people.table, tmp_path / 'shards')

  def stop(*unused_args, **unused_kwargs):
    raise KeyboardInterrupt

  folder = tmp_path / 'rows'
  for owner, name in (
    (unit_order, '_distribute'),
    (sampling_units, 'chosen_rows'),
    (unit_order, '_runs'),
    (unit_order.shutil, 'rmtree'),
    (code_store.os.path, 'getsize'),
    (code_store.os, 'unlink'),
  ):
    with monkeypatch.context() as patch:
      patch.setattr(owner, name, stop)
      with pytest.raises(KeyboardInterrupt):
        code_store.read(source, people.schema, 'error', str(folder), 3)
  found = code_store.read(source, people.schema, 'error', str(folder), 3)
  assert found.digest.tobytes() == expected.digest.tobytes()
  assert sorted(os.listdir(folder)) == ['counts', 'ordered', 'state.json']
  # Another number of rows is another store.
  other = code_store.read(source, people.schema, 'error', str(folder), 2)
  assert other.rows_per_unit.max() == 2


def test_identities_are_those_of_texts():
  texts = pd.Series(['a', 'b', 'a', '\u00e9'])
  found = sampling_units.identities(texts)
  assert len(np.unique(found)) == 3
  assert found[0] == found[2]
  assert found['order'].tolist() == [
    int(sampling_units._hash(text)) for text in texts
  ]
