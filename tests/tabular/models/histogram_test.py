"""Bins that other columns can depend on."""

import numpy as np
from scipy import special

from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models import histogram

AGE = EncodedColumn('age', 100.0, 1.0, False, True)
CITY = EncodedColumn('city', 100.0, 1.0, False, False)


def _masses(knots):
  return np.diff(special.ndtr([-np.inf, *knots, np.inf]))


def test_neighbours_are_joined_into_even_parts():
  knots = histogram.knots(AGE, np.arange(101), np.full(100, 0.01), 8)
  assert len(knots) == 8
  np.testing.assert_allclose(_masses(knots)[:-1], 0.12, atol=1e-4)


def test_heavy_values_stay_apart_and_what_they_leave_is_cut_finer():
  p = np.full(100, 0.001)
  p[[0, 40, 99]] = 0.5, 0.3, 0.103
  # They leave .2: parts have sqrt(.2) / 8 = .056.
  masses = _masses(histogram.knots(AGE, np.arange(101), p, 8))
  np.testing.assert_allclose(
    masses, [0.5, 0.039, 0.3, 0.055, 0.003, 0.103], atol=1e-4
  )


def test_a_rare_tail_gets_few_bins():
  p = np.full(100, 0.0001)
  p[0] = 0.9901
  # 32 sqrt(.0099) = 3.2 parts beside the spike.
  assert len(histogram.knots(AGE, np.arange(101), p, 32)) == 4


def test_categories_have_bins_of_their_own():
  p = np.arange(1, 101) / np.arange(1, 101).sum()
  knots = histogram.knots(CITY, np.arange(101), p, 25)
  np.testing.assert_allclose(_masses(knots), p, atol=1e-4)
  assert len(histogram.knots(CITY, np.arange(101), np.ones(100), 5)) == 19


def test_few_bins_are_kept_and_one_has_no_knots():
  assert len(histogram.knots(AGE, np.arange(4), [0.2, 0.3, 0.5], 8)) == 2
  assert len(histogram.knots(AGE, [0, 100], [1.0], 8)) == 0
