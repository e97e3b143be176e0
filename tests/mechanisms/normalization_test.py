"""Private means and standard deviations."""

import dp_accounting
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpflows import accounting, mechanisms
from tfdpflows.mechanisms import normalization
from tfdpflows.randomness import Randomness

KINDS = ({'epsilon': 0.7}, {'noise_multiplier': 1.3})
ANY = st.floats(width=64) | st.sampled_from([0.5, 1.0, -1.0, 0.935, np.nan])


def _find(x, seed=0, ledger=None, bound=2.0, **kwargs):
  return mechanisms.private_normalization(
    np.asarray(x),
    bound=bound,
    ledger=accounting.PrivacyLedger() if ledger is None else ledger,
    randomness=Randomness(seed=seed),
    **kwargs,
  )


@settings(max_examples=200, deadline=None)
@given(
  row=st.lists(ANY, min_size=3, max_size=3),
  bound=st.sampled_from([1.0, 1e-3, 7.0]),
)
def test_a_row_moves_the_sums_by_the_sensitivity_at_most(row, bound):
  x = np.array([[0.1, -0.3, 5.0], [np.nan, 2.0, -1.0]])
  more = np.concatenate([x, [row]])
  for centre, order, limit in ((0.875, 1, 9 / 8 * 3), (1.0, 2, 3**0.5)):
    sums = [
      normalization._sums(values, np.full(3, bound), centre)
      for values in (x, more)
    ]
    moved = np.linalg.norm((sums[1] - sums[0]).ravel(), order)
    assert moved <= limit + 1e-12
  # The centres are the ones that the noise is meant for.
  assert normalization._LAPLACE_CENTRE == 0.875
  assert normalization._GAUSSIAN_CENTRE == 1.0


@pytest.mark.parametrize('kind', KINDS)
def test_release_is_the_sums_and_frozen_noise(kind):
  """With the noise frozen, neighbours' releases differ by no more either."""
  rng = np.random.default_rng(0)
  x = rng.uniform(-2, 2, [5000, 2])
  kind = {k: 100 * v for k, v in kind.items()} if 'epsilon' in kind else kind
  y = np.concatenate([x, [[2.0, -1.0]]])
  a, b = (_find(v, num_examples=5000, **kind) for v in (x, y))
  moved = [(b.mean - a.mean) / 2]
  moved.append((b.std**2 + b.mean**2 - a.std**2 - a.mean**2) / 4)
  centre = 0.875 if 'epsilon' in kind else 1.0
  np.testing.assert_allclose(
    np.array(moved) * 5000,
    [[1.0, -0.5], [1 - centre, 0.25 - centre]],
    atol=1e-6,
  )


def test_noise_has_the_stated_law():
  n, d, runs = 1000, 3, 300
  x = np.zeros([n, d])
  for kind, law in (
    ({'epsilon': 2.0}, scipy.stats.laplace(scale=9 * d / 8 / 2)),
    ({'noise_multiplier': 3.0}, scipy.stats.norm(scale=3 * d**0.5)),
  ):
    noise = np.concatenate(
      [_find(x, seed, bound=2.0, **kind).mean * n / 2 for seed in range(runs)]
    )
    assert scipy.stats.kstest(noise, law.cdf).pvalue > 1e-3
    # Both coordinates of a column have the same noise, independent of it.
    assert noise.var() == pytest.approx(law.var(), rel=0.25)


def test_close_to_the_truth_where_noise_is_small():
  rng = np.random.default_rng(0)
  mean, std = np.array([1.0, -2.0, 0.0]), np.array([0.5, 0.1, 1.5])
  x = rng.normal(mean, std, [50_000, 3])
  for kind in ({'epsilon': 5.0}, {'noise_multiplier': 1.0}):
    found = _find(x, bound=[5.0, 3.0, 8.0], **kind)
    np.testing.assert_allclose(found.mean, mean, atol=0.02)
    np.testing.assert_allclose(found.std, std, rtol=0.1)


@pytest.mark.parametrize('kind', KINDS)
def test_charged_before_anything_is_read(kind, monkeypatch):
  def unread(*unused_args):
    raise AssertionError('The table was read.')

  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=0.01, delta=1e-6)
  )
  x = np.full([10, 2], np.nan)
  monkeypatch.setattr(normalization, '_sums', unread)
  with pytest.raises(accounting.BudgetExceededError, match='normalization'):
    _find(x, ledger=ledger, **kind)
  assert ledger.entries == ()
  ledger = accounting.PrivacyLedger()
  with pytest.raises(AssertionError, match='was read'):
    _find(x, ledger=ledger, **kind)
  (entry,) = ledger.entries
  assert entry.event == normalization.normalization_event(**kind)
  expected = {
    'epsilon': lambda v: dp_accounting.LaplaceDpEvent(1 / v),
    'noise_multiplier': dp_accounting.GaussianDpEvent,
  }
  ((name, value),) = kind.items()
  assert entry.event == expected[name](value)


@pytest.mark.parametrize('kind', KINDS)
def test_what_is_not_finite_counts_as_zero(kind):
  x = np.random.default_rng(0).normal(size=[50, 2])
  bad, zero = x.copy(), x.copy()
  bad[3], bad[4, 1], zero[3], zero[4, 1] = np.nan, -np.inf, 0, 0
  for a, b in zip(_find(bad, **kind), _find(zero, **kind)):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('kind', KINDS)
def test_any_table_gives_finite_numbers(kind):
  for x in (
    np.zeros([0, 2]),
    np.zeros([1, 2]),
    np.full([100, 2], 7.0),
    np.full([3, 50], 1e300),
    np.ones([10, 2], int),
  ):
    for seed in range(5):
      found = _find(x, seed, num_examples=max(len(x), 1), **kind)
      assert np.isfinite(found.mean).all() and (found.std > 0).all()
      assert (np.abs(found.mean) <= 2).all() and (found.std <= 2).all()


def test_bad_arguments_are_named():
  x = np.zeros([5, 2])
  for kwargs, message in (
    ({}, 'epsilon'),
    ({'epsilon': 1.0, 'noise_multiplier': 1.0}, 'noise_multiplier'),
    ({'epsilon': 0.0}, 'epsilon is 0'),
    ({'noise_multiplier': np.inf}, 'noise_multiplier is inf'),
    ({'epsilon': 1.0, 'bound': 0.0}, 'bound'),
    ({'epsilon': 1.0, 'bound': [1.0, 2.0, 3.0]}, 'one for each of the 2'),
    ({'epsilon': 1.0, 'num_examples': 0}, 'num_examples'),
    ({'epsilon': 1.0, 'num_examples': np.inf}, 'num_examples is inf'),
    ({'epsilon': 1.0, 'num_examples': np.nan}, 'num_examples is nan'),
  ):
    with pytest.raises(ValueError, match=message):
      _find(x, **kwargs)
  with pytest.raises(ValueError, match=r'\[num_rows, columns\]'):
    _find(np.zeros(5), epsilon=1.0)


def test_noise_is_not_used_twice():
  randomness = Randomness(seed=0)
  kwargs = {'bound': 1.0, 'epsilon': 1.0, 'randomness': randomness}
  ledger = accounting.PrivacyLedger()
  x = np.zeros([5, 2])
  mechanisms.private_normalization(x, ledger=ledger, **kwargs)
  with pytest.raises(ValueError, match='twice'):
    mechanisms.private_normalization(x, ledger=ledger, **kwargs)
