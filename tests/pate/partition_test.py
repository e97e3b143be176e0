"""Shards: disjoint, drawn once, a unit in one of them."""

import numpy as np
import pandas as pd
import pytest

from tfdpflows import pate
from tfdpflows.randomness import Randomness


def test_every_row_has_one_shard_and_shards_are_uniform():
  shards = pate.partition(100_000, 10, randomness=Randomness(seed=0))
  assert shards.shape == (100_000,)
  counts = np.bincount(shards, minlength=10)
  assert len(counts) == 10
  assert np.all(np.abs(counts - 10_000) < 500)


def test_one_row_more_moves_no_other():
  rows = [
    pate.partition(n, 7, randomness=Randomness(seed=1)) for n in (500, 501)
  ]
  np.testing.assert_array_equal(rows[0], rows[1][:500])


def test_shards_are_drawn_once():
  randomness = Randomness(seed=0)
  pate.partition(10, 2, randomness=randomness)
  with pytest.raises(ValueError, match='were used already'):
    pate.partition(10, 2, randomness=randomness)


def test_without_a_seed_shards_differ():
  one, other = (pate.partition(1000, 50) for _ in range(2))
  assert (one != other).any()


@pytest.mark.parametrize('dtype', ['int64', 'U8'])
def test_a_unit_is_in_one_shard_whatever_other_units_there_are(dtype):
  rng = np.random.default_rng(0)
  units = rng.integers(0, 300, 2000).astype(dtype)
  shards = pate.partition(2000, 20, randomness=Randomness(seed=2), units=units)
  for unit in np.unique(units):
    assert len(set(shards[units == unit])) == 1
  assert len(set(shards)) == 20
  kept = units != units[0]
  fewer = pate.partition(
    int(kept.sum()), 20, randomness=Randomness(seed=2), units=units[kept]
  )
  np.testing.assert_array_equal(fewer, shards[kept])


@pytest.mark.parametrize('dtype', ['str', 'string', 'object', 'category'])
def test_units_may_be_a_column_of_texts_of_pandas(dtype):
  texts = ['ann', 'bob', 'ann', 'eve'] * 10
  shards = [
    pate.partition(40, 3, randomness=Randomness(seed=2), units=units)
    for units in (np.array(texts), pd.Series(texts).astype(dtype))
  ]
  np.testing.assert_array_equal(*shards)


@pytest.mark.parametrize('dtype', ['Int64', 'object'])
def test_units_may_be_a_column_of_integers_of_pandas(dtype):
  numbers = np.arange(40) // 3
  shards = [
    pate.partition(40, 3, randomness=Randomness(seed=2), units=units)
    for units in (numbers, pd.Series(numbers).astype(dtype))
  ]
  np.testing.assert_array_equal(*shards)


def test_a_missing_unit_in_a_column_of_pandas_is_refused():
  units = pd.Series(['ann', None, 'bob'])
  for column in (units, units.astype(object), units.astype('str')):
    if column.isna().any():
      with pytest.raises(ValueError, match='Name missing units first'):
        pate.partition(3, 2, units=column)


def test_how_many_rows_units_have_decides_nothing():
  """Of a ledger of units the number of rows is private."""
  assert len(pate.partition(3, 4, units=['ann', 'ann', 'bob'])) == 3
  assert (
    len(pate.partition(5, 4, units=['ann', 'ann', 'bob', 'ann', 'cid'])) == 5
  )


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'num_rows': 3, 'num_shards': 4}, '3 rows for 4 shards'),
    ({'num_rows': 3, 'num_shards': 0}, 'num_shards is 0'),
    ({'num_rows': 3, 'num_shards': 2, 'units': [1, 2]}, r'must be \[3\]'),
    ({'num_rows': 2, 'num_shards': 2, 'units': [1.0, np.nan]}, 'float64'),
  ],
)
def test_bad_input(arguments, message):
  with pytest.raises(ValueError, match=message):
    pate.partition(**arguments)
