import math

import numpy as np
import pandas as pd
import pytest

from tfdpflows.mechanisms import domains


def _categories(column, std, delta, rng):
  categories = domains.Categories(column, delta=delta)
  categories.measure(domains.Noise(std), rng)
  return categories.enum()


def test_categories_are_known_by_type_and_value():
  """Which of two equal values stood first must not give them their name."""
  rng = np.random.default_rng(0)
  for first in (0.0, -0.0, False, 0):
    column = [first, *[0] * 500, *[0.0] * 500, [1], float('nan'), None, b'x']
    found = _categories(column, 1.0, 1e-6, rng)
    assert [(type(c).__name__, str(c)) for c in found] == [
      ('float', '0.0'),
      ('int', '0'),
    ]


@pytest.mark.parametrize(
  ('values', 'integer', 'low', 'high'),
  [
    (np.zeros(500), True, 0, 0),
    (np.full(500, -7.0), True, -8, -1),
    (np.full(500, 0.01), False, 0, 2**-6),
    (np.full(500, 1e300), False, 0, 2.0**120),
    (np.array([-5.0, 5.0, np.nan, np.inf] * 500), False, -8, 8),
  ],
)
def test_ranges_hold_the_values(values, integer, low, high):
  bins = domains.Bins(values, integer)
  bins.measure(domains.Noise(0.1), np.random.default_rng(1))
  assert bins.range() == (low, high)


def test_a_look_more_is_as_good_as_less_noise():
  once, twice = domains.Bins([3.0] * 9), domains.Bins([3.0] * 9)
  once.measure(domains.Noise(1.0), np.random.default_rng(0))
  for std in (1.25, 5 / 3):
    twice.measure(domains.Noise(std), np.random.default_rng(0))
  assert twice._noise.scale == pytest.approx(1.0)
  np.testing.assert_allclose(twice._noisy - once._noisy, 0, atol=8)


def test_categories_of_a_categorical_column_need_rows():
  column = pd.Series(['a'] * 300).astype(pd.CategoricalDtype(['a', 'secret']))
  for seed in range(50):
    found = _categories(column, 10.0, 0.2, np.random.default_rng(seed))
    assert 'secret' not in found


def test_a_single_row_shows_with_chance_delta():
  delta, runs = 0.05, 4000
  shown = sum(
    bool(_categories(['me'], 1.0, delta, np.random.default_rng(s)))
    for s in range(runs)
  )
  assert shown / runs == pytest.approx(delta, abs=5 * math.sqrt(delta / runs))


class TestLeft:
  """The second look, at the rows whose categories were not shown."""

  COLUMNS = (
    ['red'] * 400 + ['blue'] * 30 + ['green'] * 3 + ['grey'],
    ['one'] * 403 + ['two'] * 30 + [None],
    [str(number % 40) for number in range(434)],
  )
  SHARES = (0.2, 0.5, 0.3)

  def test_a_row_changes_all_counts_by_one_at_most(self):
    rng = np.random.default_rng(0)
    for _ in range(200):
      columns = [list(rng.permutation(c)) for c in self.COLUMNS]
      weights = np.where(rng.random(434) < 0.3, rng.random(434), 1.0)
      some = [domains.Categories(c, weights, delta=1e-6) for c in columns]
      shown = [rng.random(len(s._names)) < 0.4 for s in some]
      counted = []
      for s, mask in zip(some, shown):
        s._shown = lambda mask=mask: mask
        s.add_counts = lambda counts, noise, rng, into=counted: into.append(
          counts
        )
      rows = [(columns, weights)]
      domains.measure_left(some, rows, self.SHARES, domains.Noise(1.0), rng)
      places = [s.places(c) for s, c in zip(some, columns)]
      left = [s.left(place) for s, place in zip(some, places)]
      moved = domains.parts_of_rows(left, self.SHARES) * weights[:, None]
      for counts, place, part in zip(counted, places, moved.T):
        expected = np.bincount(place, part, len(counts))
        np.testing.assert_array_equal(counts, expected)
      left = np.stack(left, 1)
      norms = np.sqrt((moved**2).sum(1))
      assert (norms <= weights).all()
      np.testing.assert_allclose(norms[left.any(1)], weights[left.any(1)])
      assert not moved[~left].any()

  def test_what_one_column_has_left_is_counted_whole(self):
    columns = [['a'] * 500 + ['b'] * 60 + ['c'] * 2, ['x'] * 562]
    some = [domains.Categories(c, delta=1e-6) for c in columns]
    rng = np.random.default_rng(0)
    for s in some:
      s.measure(domains.Noise(40.0), rng)
    assert [s.enum() for s in some] == [('a',), ('x',)]
    rows = [(columns, np.ones(562))]
    domains.measure_left(some, rows, [0.5, 0.5], domains.Noise(5.0), rng)
    assert [s.enum() for s in some] == [('a', 'b'), ('x',)]
    # What was shown is not measured again.
    assert some[0]._scales.round(1).tolist() == [40.0, 5.0, 5.0, 40.0]

  def test_a_category_of_one_row_is_shown_as_rarely_as_is_claimed(self):
    rng, delta, shown = np.random.default_rng(0), 0.01, 0
    for _ in range(4000):
      columns = ['a'] * 99 + ['only'], ['x'] * 99 + ['y']
      some = [domains.Categories(c, delta=delta / 2) for c in columns]
      for s in some:
        s.measure(domains.Noise(3.0), rng)
      rows = [(columns, np.ones(100))]
      domains.measure_left(some, rows, [0.9, 0.1], domains.Noise(2.0), rng)
      shown += 'only' in some[0].enum()
    assert shown / 4000 <= delta + 4 * np.sqrt(delta / 4000)
    assert shown
