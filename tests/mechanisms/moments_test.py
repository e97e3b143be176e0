"""Noisy moments: what one row can change, and how much noise there is."""

from unittest import mock

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tfdpflows import accounting, noise_grid
from tfdpflows.mechanisms import moments

_D, _K = 3, 4
_KINDS = ('gaussian', 'laplace')
# Rows that somebody might send to break the bounds.
_NUMBERS = st.one_of(
  st.floats(-3, 3),
  st.sampled_from([0.0, 1e-320, -1e300, 1e308, np.inf, -np.inf, np.nan]),
)


def release(weights, vectors, noise, seed=0):
  """The moments with their noise, before they are rounded."""
  rng = np.random.default_rng(seed)
  patches = [
    mock.patch.object(module, 'round_to_grid', lambda x, scale: x)
    for module in (moments, noise_grid)
  ]
  with patches[0], patches[1]:
    return moments.noisy_moments([(weights, vectors)], _K, noise, rng)


def differences(a, b):
  """Of counts, means and second moments; isometric coordinates of the last."""
  second = (a.second - b.second).reshape(_K, -1)
  return a.counts - b.counts, a.first - b.first, second


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_one_row_moves_the_noised_sums_by_its_sensitivity_at_most(data):
  kind = data.draw(st.sampled_from(_KINDS))
  radius = data.draw(st.sampled_from([1e-100, 0.1, 1.0, 7.0, 1e100]))
  sigma = data.draw(st.sampled_from([0.5, 3.0]))
  noise = moments.MomentNoise(sigma, _D, radius, kind)
  rng = np.random.default_rng(data.draw(st.integers(0, 99)))
  weights, vectors = rng.random([6, _K]), 3 * rng.normal(size=[_K, 6, _D])
  row = lambda n: data.draw(st.lists(_NUMBERS, min_size=n, max_size=n))
  weights[-1] = row(_K)
  vectors[:, -1] = np.reshape(row(_K * _D), [_K, _D])
  with_it = release(weights, vectors, noise)
  without = release(weights[:-1], vectors[:, :-1], noise)
  count, first, second = differences(with_it, without)
  multipliers = np.array(noise.multipliers)
  if kind == 'gaussian':
    # Divided first: the squares of 1e200 overflow.
    moved = [
      np.linalg.norm(part / radius**power)
      for power, part in enumerate((count, first, second))
    ] / multipliers
    assert np.linalg.norm(moved) <= (1 + 1e-9) / sigma
  else:
    assert np.abs(count).sum() <= 1 + 1e-9
    assert np.abs(first).sum() <= radius * np.sqrt(_D) * (1 + 1e-9)
    assert np.linalg.norm(second / radius**2) <= 1 + 1e-9


@pytest.mark.parametrize('kind', _KINDS)
def test_the_bound_is_reached(kind):
  noise = moments.MomentNoise(2.0, _D, 1.5, kind)
  vectors = np.full([_K, 1, _D], 99.0)
  weights = np.eye(_K)[:1]
  moved = differences(
    release(weights, vectors, noise),
    release(weights[:0], vectors[:, :0], noise),
  )
  if kind == 'gaussian':
    sizes = [np.linalg.norm(part) for part in moved]
    units = np.array(noise.multipliers) * 1.5 ** np.arange(3)
    assert np.linalg.norm(sizes / units) == pytest.approx(1 / 2.0)
  else:
    assert np.abs(moved[1]).sum() == pytest.approx(1.5 * np.sqrt(_D))


def test_rows_that_are_not_finite_count_for_nothing():
  noise = moments.MomentNoise(1.0, _D, 1.0)
  rng = np.random.default_rng(1)
  weights, vectors = np.full([5, _K], 0.25), rng.normal(size=[_K, 5, _D])
  bad = vectors.copy()
  bad[2, 4, 1] = np.nan
  a = release(weights, bad, noise)
  b = release(weights[:4], vectors[:, :4], noise)
  for part in differences(a, b):
    np.testing.assert_allclose(part, 0, atol=1e-12)
  assert np.isfinite(a.second).all()


@pytest.mark.parametrize('kind', _KINDS)
def test_noise_has_the_size_that_is_charged(kind):
  noise = moments.MomentNoise(3.0, _D, 2.0, kind)
  rng = np.random.default_rng(7)
  parts = [moments.noisy_moments([], 500, noise, rng) for _ in range(10)]
  counts = np.concatenate([p.counts for p in parts])
  first = np.concatenate([p.first for p in parts])
  second = np.concatenate([p.second for p in parts])
  np.testing.assert_array_equal(second, second.transpose(0, 2, 1))
  upper = np.triu_indices(_D, 1)
  gaussian = [
    (np.diagonal(second, axis1=1, axis2=2), noise.stds[2]),
    (np.sqrt(2) * second[:, upper[0], upper[1]], noise.stds[2]),
  ]
  other = [(counts, noise.stds[0]), (first, noise.stds[1])]
  if kind == 'gaussian':
    gaussian += other
  else:
    for sample, std in other:
      scale = std / np.sqrt(2)
      assert stats.kstest(sample.ravel() / scale, 'laplace').pvalue > 1e-4
  for sample, std in gaussian:
    square = ((sample / std) ** 2).sum()
    assert 1e-4 < stats.chi2.cdf(square, sample.size) < 1 - 1e-4
    assert stats.kstest(sample.ravel() / std, 'norm').pvalue > 1e-4
  # Independent, as the proof needs.
  correlation = np.corrcoef(np.c_[counts, first, second.reshape(-1, _D**2)].T)
  independent = np.abs(correlation[np.triu_indices(4, 1)])
  assert independent.max() < 0.1


def test_gaussian_shares_add_up_to_one_mechanism():
  noise = moments.MomentNoise(3.0, 10, 5.0)
  precision = sum(1 / m**2 for m in noise.multipliers)
  assert precision == pytest.approx(1 / 9)
  assert noise.event == dp_accounting.GaussianDpEvent(3.0)


@pytest.mark.parametrize('accountant', ['pld', 'rdp', 'zcdp'])
def test_laplace_noise_is_priced(accountant):
  noise = moments.MomentNoise(4.0, 2, 5.0, 'laplace')
  count, first, second = noise.multipliers
  assert noise.stds[1] == pytest.approx(first * 5.0 * np.sqrt(2) * np.sqrt(2))
  epsilon = accounting.compute_epsilon(noise.event, 1e-5, accountant)
  alone = accounting.compute_epsilon(
    dp_accounting.GaussianDpEvent(second), 1e-5, accountant
  )
  assert alone < epsilon < np.inf
  assert epsilon < alone + 1 / count + 1 / first + 2.0


@pytest.mark.parametrize('parts', [(0.5, 0.5), (0.9, 0.1), (0.2, 0.3, 0.5)])
def test_laplace_noise_on_several_numbers_is_no_worse_than_on_one(parts):
  one = dp_accounting.LaplaceDpEvent(1.0)
  several = dp_accounting.ComposedDpEvent(
    [dp_accounting.LaplaceDpEvent(1 / part) for part in parts]
  )
  for delta in (1e-6, 1e-3, 0.05, 0.2):
    epsilon = accounting.compute_epsilon(several, delta)
    assert epsilon <= accounting.compute_epsilon(one, delta) * 1.001


def test_clipped_norms():
  x = np.array([[3.0, 4.0], [0.0, 0.0], [1e308, -1e308], [0.3, 0.4]])
  clipped = moments.clip_norms(x, 1.0)
  np.testing.assert_allclose(
    clipped, [[0.6, 0.8], [0, 0], np.array([1, -1]) / np.sqrt(2), [0.3, 0.4]]
  )


@pytest.mark.parametrize('radius', [1e-100, 1e100])
def test_rows_are_clipped_to_radii_near_the_ends_of_their_range(radius):
  for x in ([[3e-99, 4e-99]], [[1e308, 1e-100]], [[1e-99, 0.0], [1e300, 1.0]]):
    norms = np.hypot(*moments.clip_norms(np.array(x), radius).T) / radius
    assert norms.max() <= 1 + 1e-12
  with pytest.raises(ValueError, match='radius is 1e-162'):
    moments.clip_norms(np.array([[1e-161, 0.0]]), 1e-162)


@pytest.mark.parametrize(
  'arguments, message',
  [
    ((0.0, 2, 1.0), 'noise_multiplier'),
    ((np.nan, 2, 1.0), 'noise_multiplier'),
    ((1.0, 2, np.inf), 'radius'),
    ((1.0, 2, np.nan), 'radius'),
    ((1.0, 2, 1e-162), 'radius'),
    ((1.0, 2, 1e155), 'radius'),
    ((1.0, 0, 1.0), 'event_size'),
    ((1.0, 2, 1.0, 'uniform'), "'gaussian', 'laplace'"),
  ],
)
def test_noise_out_of_range_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    moments.MomentNoise(*arguments)
