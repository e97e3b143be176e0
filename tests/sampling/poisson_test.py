"""Poisson batches: who is in them, and what they are padded with."""

from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
import scipy.stats

from tfdpflows import randomness, sampling


def _sampler(n=500, q=0.1, **kwargs):
  return sampling.PoissonSampler(
    num_examples=n, sampling_probability=q, **kwargs
  )


def test_rows_join_independently_with_the_stated_probability():
  sampler, rng = _sampler(), np.random.default_rng(0)
  data = np.arange(500.0)[:, None] + 1
  joined = np.zeros([2000, 500], bool)
  for i in range(2000):
    rows, weights = sampler.batch(data, rng)
    joined[i, rows[weights == 1, 0].astype(int) - 1] = True
  sizes = joined.sum(1)
  # Binomial sizes: mean nq, variance nq(1-q); each row has its own coin.
  assert abs(sizes.mean() - 50) < 4 * np.sqrt(45 / 2000)
  p = scipy.stats.chi2.cdf(1999 * sizes.var(ddof=1) / 45, 1999)
  assert 1e-4 < p < 1 - 1e-4
  per_row = joined.sum(0)
  statistic = np.sum((per_row - 200) ** 2 / 180)
  assert 1e-4 < scipy.stats.chi2.cdf(statistic, 500) < 1 - 1e-4
  neighbours = np.mean(joined[:, 0] & joined[:, 1])
  assert abs(neighbours - 0.01) < 0.01


def test_padding_is_zero_with_weight_zero_and_nothing_is_cut():
  sampler = _sampler(chunk=64)
  data = np.ones([500, 3], 'float32')
  for seed in range(50):
    rows, weights = sampler.batch(data, np.random.default_rng(seed))
    assert len(rows) % 64 == 0
    assert rows.dtype == 'float32'
    drawn = int(weights.sum())
    assert set(weights) <= {0.0, 1.0}
    assert rows.sum() == 3 * drawn
    same = np.random.default_rng(seed).random(500) < 0.1
    assert drawn == same.sum()


def test_empty_and_full_batches():
  data = np.ones([5, 2])
  rows, weights = _sampler(5, 1e-9).batch(data, np.random.default_rng(0))
  assert len(rows) > 0
  assert not weights.any()
  _, weights = _sampler(5, 1.0).batch(data, np.random.default_rng(0))
  assert weights.sum() == 5


def test_event_and_public_constants():
  sampler = _sampler(1000, 0.01)
  assert sampler.event(2.0) == dp_accounting.PoissonSampledDpEvent(
    0.01, dp_accounting.GaussianDpEvent(2.0)
  )
  assert sampler.expected_batch_size == 10
  assert sampler.steps_per_epoch == 100
  assert 'Poisson' in sampler.describe()
  assert '0.01' in sampler.describe()


def test_bad_input():
  for arguments, message in (
    ({'n': 0}, 'num_examples'),
    ({'n': 1.5}, 'num_examples'),
    ({'q': 0.0}, 'sampling_probability'),
    ({'q': 1.1}, 'sampling_probability'),
    ({'q': np.nan}, 'sampling_probability'),
    ({'chunk': 0}, 'chunk'),
  ):
    with pytest.raises(ValueError, match=message):
      _sampler(**arguments)


class Lowest:
  """Draws what `Generator.random` draws with a probability of 2^-53."""

  def random(self, size):
    return np.zeros(size)


def test_no_row_is_drawn_with_more_than_its_probability():
  _, weights = _sampler(q=1e-30).batch(np.ones([500, 1]), Lowest())
  assert not weights.any()
  for q in (1e-30, 1e-5, 0.1, 0.5, 1 - 2**-54, 1.0):
    below = randomness.drawn_below(q)
    assert (below * 2**53) % 1 == 0
    # Not more, and less by less than what the numbers are multiples of.
    assert 0 <= Fraction(q) - Fraction(below) < Fraction(1, 2**53)
