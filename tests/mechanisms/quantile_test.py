"""A private quantile."""

from unittest import mock

import dp_accounting
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpflows import accounting, mechanisms
from tfdpflows.accounting import ExponentialMechanismDpEvent
from tfdpflows.mechanisms import quantile
from tfdpflows.randomness import Randomness

REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
VALUES = st.floats(-2, 2) | st.sampled_from([-1.0, 0.0, 0.5, 1.0])


def _find(values, q=0.5, seed=0, ledger=None, **kwargs):
  kwargs = {'lower': -1.0, 'upper': 1.0, 'epsilon': 1.0, **kwargs}
  return mechanisms.private_quantile(
    values,
    q,
    ledger=accounting.PrivacyLedger() if ledger is None else ledger,
    randomness=Randomness(seed=seed),
    **kwargs,
  )


def _intervals(values, q, per_utility):
  """Their edges in [-1, 1], and log-weights."""
  edges = quantile._edges(np.array(values), -1.0, 1.0)
  edges, weights = quantile._intervals(edges, q, per_utility)
  return 2 * edges / edges[-1] - 1, weights


def _log_density(values, q, points, per_utility):
  """Of the release at points that are no values."""
  edges, weights = _intervals(values, q, per_utility)
  total = np.logaddexp.reduce(weights)
  place = np.searchsorted(edges, points) - 1
  with np.errstate(divide='ignore', invalid='ignore'):
    return (weights - total - np.log(np.diff(edges)))[place]


@settings(max_examples=200, deadline=None)
@given(
  values=st.lists(VALUES, max_size=8),
  new=VALUES,
  old=VALUES,
  q=st.sampled_from([0.0, 0.1, 0.5, 0.99, 1.0]),
)
def test_log_densities_of_neighbours_differ_by_epsilon_at_most(
  values, new, old, q
):
  points = np.random.default_rng(0).uniform(-1, 1, 40)
  points = np.setdiff1d(points, [*values, new, old])
  per_utility = 1 / (2 * max(q, 1 - q))
  a = _log_density(values, q, points, per_utility)
  b = _log_density([*values, new], q, points, per_utility)
  # Bounded range: not only is each ratio bounded, all lie in one interval.
  assert np.abs(b - a).max() <= 1 + 1e-9
  assert np.ptp(b - a) <= 1 + 1e-9
  replaced = [_log_density([*values, x], q, points, 1 / 2) for x in (old, new)]
  assert np.ptp(replaced[1] - replaced[0]) <= 1 + 1e-9


def test_the_draw_has_that_density():
  values = [-0.5, 0.0, 0.0, 0.0, 0.3, 5.0]
  draws = np.array([_find(values, 0.7, seed) for seed in range(3000)])
  edges, weights = _intervals(values, 0.7, 1 / 1.4)
  probability = np.exp(weights - np.logaddexp.reduce(weights))
  expected = probability[probability > 0] * len(draws)
  counts = np.histogram(draws, np.unique(edges))[0]
  assert scipy.stats.chisquare(counts, expected).pvalue > 1e-4
  inside = draws[(draws > 0.3) & (draws < 1)]
  assert scipy.stats.kstest((inside - 0.3) / 0.7, 'uniform').pvalue > 1e-4


def test_the_same_numbers_are_released_whatever_the_values_are():
  for value in (3.25, 4.5):
    found = [
      _find([value], lower=0.0, upper=2.0**52, seed=i) for i in range(300)
    ]
    assert all(x == int(x) for x in found)
  with mock.patch.object(quantile, '_CELLS', 8):
    for value in (0.2, 0.3):
      found = {_find([value], seed=i) for i in range(300)}
      assert found == set(np.arange(-1.0, 1.0, 0.25))


def test_close_to_the_truth_where_epsilon_is_large():
  x = np.random.default_rng(0).normal(size=5000)
  for q in (0.01, 0.5, 0.99):
    found = _find(x, q, lower=-50.0, upper=50.0, epsilon=1.0)
    # The error is in rank: a few dozen rows.
    assert abs(np.mean(x < found) - q) < 0.01


def test_any_values_give_a_number_in_the_bounds():
  for values in (
    [],
    [np.nan],
    [np.inf, -np.inf],
    [0.0] * 100,
    [1.0] * 9,
    [-1.0],
  ):
    for q in (0.0, 0.5, 1.0):
      for seed in range(5):
        assert -1 <= _find(np.array(values, float), q, seed) <= 1


def test_nan_stands_for_a_public_value():
  x = np.random.default_rng(0).uniform(-1, 1, 200)
  with_nan = np.concatenate([x, [np.nan] * 50])
  for value in (None, -1.0, 0.2):
    filled = np.concatenate([x, [1.0 if value is None else value] * 50])
    assert _find(with_nan, nan=value) == _find(filled)


def test_charged_before_anything_is_read():
  def unread():
    raise AssertionError('The values were read.')

  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=0.5, delta=1e-6)
  )
  with pytest.raises(accounting.BudgetExceededError, match='quantile'):
    _find(unread, ledger=ledger)
  assert ledger.entries == ()
  with pytest.raises(AssertionError):
    _find(unread, ledger=ledger, epsilon=0.4)
  (entry,) = ledger.entries
  assert entry.event == ExponentialMechanismDpEvent(0.4)


def test_neighbours_that_replace_a_row_need_more_noise_in_the_middle():
  x = np.random.default_rng(0).uniform(-1, 1, 1000)
  spread = []
  for relation in (None, REPLACE_ONE):
    kwargs = {} if relation is None else {'neighboring_relation': relation}
    draws = [
      _find(x, 0.5, seed, accounting.PrivacyLedger(**kwargs), epsilon=0.1)
      for seed in range(200)
    ]
    spread.append(np.std(draws))
  assert spread[1] > 1.5 * spread[0]


def test_bad_arguments_are_named():
  for kwargs, message in (
    ({'q': 1.1}, 'q is 1.1'),
    ({'q': np.nan}, 'q is nan'),
    ({'lower': 1.0}, 'lower is 1.0'),
    ({'upper': np.inf}, 'upper inf'),
    ({'nan': 3.0}, 'nan is 3.0'),
    ({'epsilon': 0.0}, 'epsilon'),
  ):
    with pytest.raises(ValueError, match=message):
      _find(np.zeros(3), **kwargs)
  with pytest.raises(ValueError, match=r'must be \[n\]'):
    _find(np.zeros([3, 2]))
