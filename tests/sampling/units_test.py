"""Which rows of a unit are used, what they weigh, and who changes that."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest

from tfdpflows import sampling

WEIGHTINGS = ['rows', 'units']


def _table(seed=0, people=40):
  """Identifiers with 1 to 12 rows each, shuffled."""
  rng = np.random.default_rng(seed)
  ids = np.repeat(np.arange(people), rng.integers(1, 13, people))
  return rng.permutation(ids)


@pytest.mark.parametrize('weighting', WEIGHTINGS)
@pytest.mark.parametrize('most', [1, 3, 100])
def test_a_unit_weighs_one_at_most(most, weighting):
  ids = _table()
  units = sampling.Units(
    ids, name='unit', max_rows_per_unit=most, weighting=weighting
  )
  assert (units.num_rows, units.num_units) == (len(ids), 40)
  weights, counts = units.row_weights(), np.bincount(ids)
  used = np.minimum(counts, most)
  found = np.bincount(ids, weights)
  np.testing.assert_allclose(
    found, used / most if weighting == 'rows' else np.ones(40)
  )
  np.testing.assert_array_equal(np.bincount(ids, weights > 0), used)
  rows, factors = units.batch(np.arange(40), np.ones(40))
  for own, factor in zip(rows, factors):
    assert len(set(own[factor > 0])) == (factor > 0).sum()
    assert len(set(ids[own])) == 1


@pytest.mark.parametrize('weighting', WEIGHTINGS)
def test_other_units_and_their_order_change_nothing(weighting):
  ids = _table()
  of = lambda ids: sampling.Units(
    ids, name='unit', max_rows_per_unit=3, weighting=weighting
  ).row_weights()
  for person in range(0, 40, 7):
    kept = ids != person
    np.testing.assert_array_equal(of(ids)[kept], of(ids[kept]))
  # Rows keep their order within each unit.
  order = np.argsort(ids, kind='stable')
  np.testing.assert_array_equal(of(ids)[order], of(ids[order]))


def test_every_row_of_a_unit_is_as_likely_to_be_used():
  ids = np.repeat(np.arange(4000), 5)
  units = sampling.Units(ids, name='unit', max_rows_per_unit=2)
  share = (units.row_weights() > 0).reshape(4000, 5).mean(0)
  np.testing.assert_allclose(share, 0.4, atol=4 * np.sqrt(0.24 / 4000))


@pytest.mark.parametrize('weighting', WEIGHTINGS)
def test_batches_hold_the_rows_of_their_units(weighting):
  ids = np.array([3, 5, 3, 9, 3])
  units = sampling.Units(
    ids, name='unit', max_rows_per_unit=4, weighting=weighting
  )
  rows, weights = units.batch(np.array([2, 0, 1]), np.array([1.0, 1.0, 0.0]))
  assert rows.shape == weights.shape == (3, 4)
  assert weights.dtype == np.float32
  # A row that is not there is one of the same unit, with weight 0.
  assert set(rows[0]) == {3}
  assert set(rows[1]) == {0, 2, 4}
  each = 1 if weighting == 'rows' else 4 / 3
  np.testing.assert_allclose(sorted(weights[1]), [0, each, each, each])
  assert not weights[2].any()


def test_units_that_are_absent_keep_their_number():
  ids = _table()
  units = sampling.Units(ids, name='unit', max_rows_per_unit=3)
  one = units.without(np.flatnonzero(ids == 8))
  assert one.num_units == units.num_units
  np.testing.assert_array_equal(
    one.row_weights(), np.where(ids == 8, 0, units.row_weights())
  )
  _, before = units.batch(np.arange(40), np.ones(40))
  _, weights = one.batch(np.arange(40), np.ones(40))
  assert (before != weights).any(1).sum() == 1
  assert (weights.any(1) == 0).sum() == 1


def test_fewer_rows_are_those_that_were_chosen_first():
  ids = _table()
  many = sampling.Units(ids, name='unit', max_rows_per_unit=9)
  few = many.limited(2)
  np.testing.assert_array_equal(
    few.row_weights(),
    sampling.Units(ids, name='unit', max_rows_per_unit=2).row_weights(),
  )
  assert (many.max_rows_per_unit, few.max_rows_per_unit) == (9, 2)
  with pytest.raises(ValueError, match='these units have 2 at most'):
    few.limited(3)


def _groups(ids):
  """Returns which rows are of one unit, in the order of the units."""
  units = sampling.Units(ids, max_rows_per_unit=len(ids), name='person')
  codes = units.arrays()[0]
  return [np.flatnonzero(codes == i).tolist() for i in range(units.num_units)]


@pytest.mark.parametrize(
  'ids',
  [
    ['a', 'b', 'a'],
    np.array(['a', 'b', 'a']),
    np.array([b'a', b'b', b'a'], object),
    pd.Series(['a', 'b', 'a']),
    pd.Series(['a', 'b', 'a'], dtype='category'),
    pd.Series([1, 2, 1], dtype='Int64'),
    pd.Series(pd.to_datetime(['2020-01-01', '2020-01-02', '2020-01-01'])),
    [2.5, 3.5, 2.5],
    [True, False, True],
    np.array([True, False, True]),
    ['a', 'a\0b', 'a'],
    ['\ud800', 'a', '\ud800'],
    [10**400, 7, 10**400],
    # One person, whatever the type.
    [7, '8', '7'],
    np.array([7, 8.0, 7.0, np.int8(7)], object)[:3],
    pd.Categorical([7, 8, '7']),
    [(1, 2), (1, 3), (1, 2)],
  ],
)
def test_identifiers_of_any_type(ids):
  assert _groups(ids) == [[0, 2], [1]]


@pytest.mark.parametrize(
  'more', [[300], [2.5], [2**64], [-1, 2**63], ['x'], ['1\0x'], [True]]
)
@pytest.mark.parametrize('kind', [int, float, str, 'Int64', 'category'])
def test_one_more_unit_of_any_type_changes_no_other(kind, more):
  """Which rows are used follows from each identifier alone."""
  ids = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 6))
  of = lambda ids: sampling.Units(
    ids, max_rows_per_unit=2, name='person'
  ).row_weights()
  first = of(pd.Series(ids).astype(kind))
  np.testing.assert_array_equal(first, of(ids))
  mixed = [*pd.Series(ids).astype(kind).tolist(), *more]
  for given in (mixed, pd.Series(mixed), pd.Series(mixed, dtype=object)):
    np.testing.assert_array_equal(of(given)[: len(ids)], first)
  # As pandas leaves a column from which a row without identifier was dropped.
  rest = pd.Series([*ids, np.nan]).dropna()
  np.testing.assert_array_equal(of(rest), first)


@pytest.mark.parametrize(
  ('one', 'equal'),
  [
    (decimal.Decimal(7), decimal.Decimal('7.0')),
    (
      datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc),
      datetime.datetime(
        2026,
        1,
        1,
        13,
        tzinfo=datetime.timezone(datetime.timedelta(hours=1)),
      ),
    ),
    ((1, 2), (1.0, 2.0)),
  ],
)
def test_equal_identifiers_of_other_texts_do_not_decide_each_other(one, equal):
  """Rows of a unit stay its own, whoever stands in front."""
  ids = [str(one), one]
  assert _groups(ids) == [[0, 1]]
  assert _groups([equal, *ids]) == [[0], [1, 2]]


def test_one_unit_with_many_rows_takes_no_memory_of_others():
  ids = np.concatenate([np.arange(200_000), np.zeros(200_000, int)])
  units = sampling.Units(ids, max_rows_per_unit=1000, name='person')
  assert units.rows_per_unit.max() == 200_001
  rows, factors = units.batch(np.array([0, 5]), np.ones(2))
  assert (factors > 0).sum(1).tolist() == [1000, 1]
  assert (ids[rows] == [[0], [5]]).all()


@pytest.mark.parametrize(
  'ids, kwargs, message',
  [
    ([1], {'max_rows_per_unit': 0}, 'max_rows_per_unit is 0'),
    ([1], {'max_rows_per_unit': 1.5}, 'max_rows_per_unit is 1.5'),
    ([1], {'weighting': 'mean'}, "weighting is 'mean'"),
    ([1], {'max_rows_per_unit': 10**9}, 'must be at most 1000'),
    ([], {}, 'ids are empty'),
    ('abc', {}, 'ids are a str'),
    ({1, 2}, {}, 'ids are a set'),
    (np.array([[1, 2]]), {}, r'shape \(1, 2\)'),
    (['a', None, 'b', None], {}, r"unit 'person' of row 2 is missing \(2 of 4"),
    ([1.0, np.nan], {}, 'row 2 is missing'),
  ],
)
def test_bad_input_is_named(ids, kwargs, message):
  kwargs = {'max_rows_per_unit': 2, 'name': 'person', **kwargs}
  with pytest.raises(ValueError, match=message):
    sampling.Units(ids, **kwargs)
