"""Poisson batches of many rows: how many join is drawn first, then which."""

import itertools
from fractions import Fraction
from math import comb

import numpy as np
import pytest
import scipy.stats

from tfdpflows import randomness, sampling
from tfdpflows.sampling import poisson


def _many(n, q, **kwargs):
  return sampling.PoissonSampler(
    num_examples=n, sampling_probability=q, **kwargs
  )


@pytest.fixture
def no_coins(monkeypatch):
  monkeypatch.setattr(poisson, '_MOST_COINS', 0)


@pytest.mark.parametrize('n, q', [(7, 0.1), (40, 0.125), (3, 1e-9), (1, 0.5)])
def test_sizes_have_their_binomial_probabilities(n, q):
  """All of them, exactly up to 2^-150 in all."""
  p = Fraction(randomness.drawn_below(q))
  sizes = poisson.BinomialSizes(n, float(p))
  counts = np.diff([0, *sizes._ends]).tolist()
  found = [Fraction(0)] * (n + 1)
  for k, count in enumerate(counts, sizes._first):
    if 0 <= k <= n:
      found[k] = Fraction(count, sizes._ends[-1])
    else:
      assert count == 0
  exact = [comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
  assert sum(abs(a - b) for a, b in zip(found, exact)) < Fraction(1, 2**150)


@pytest.mark.parametrize(
  'n, q', [(10**7, 4e-4), (10**9, 4e-6), (10**12, 1e-14)]
)
def test_sizes_of_many_coins(n, q):
  p = randomness.drawn_below(q)
  sizes = poisson.BinomialSizes(n, p)
  counts = np.diff(np.array([0, *sizes._ends], object))
  found = np.array([float(c / sizes._ends[-1]) for c in counts])
  k = np.arange(sizes._first, sizes._first + len(found))
  np.testing.assert_allclose(found, scipy.stats.binom.pmf(k, n, p), atol=1e-9)
  rng = np.random.default_rng(0)
  drawn = np.array([sizes.draw(rng) for _ in range(2000)])
  assert abs(drawn.mean() - n * p) < 4 * np.sqrt(n * p / 2000) + 1e-3


def test_a_size_is_the_inverse_of_its_distribution_function():
  """The bounds of the number that is drawn belong to the right sizes."""
  sizes = poisson.BinomialSizes(5, 0.25)
  ends, total = sizes._ends, sizes._ends[-1]

  class Rng:
    def integers(self, *unused_args, size, dtype):
      words = np.zeros(size, dtype)
      # Rounded up, so that it stands for the number or a little more.
      value = -(-(self.number << 256) // total)
      for i in range(size):
        words[i] = value >> 32 * i & 0xFFFFFFFF
      return words

  rng = Rng()
  for k, end in enumerate(ends):
    if end < total:
      rng.number = end
      assert sizes.draw(rng) == sizes._first + k + 1
    rng.number = end - 1
    assert sizes.draw(rng) == sizes._first + k


def test_subsets_are_equally_likely():
  rng, n, size = np.random.default_rng(1), 6, 3
  sets = list(itertools.combinations(range(n), size))
  counts = dict.fromkeys(sets, 0)
  for _ in range(6000):
    found = poisson.subset(n, size, rng)
    assert found.dtype == np.int64
    counts[tuple(found.tolist())] += 1
  _, p = scipy.stats.chisquare(list(counts.values()))
  assert p > 1e-4


def test_batches_have_the_law_of_coins(no_coins):
  """Of every set of rows: sizes, single rows and pairs."""
  n, q, draws = 8, 0.12, 20_000
  sampler, rng = _many(n, q), np.random.default_rng(2)
  counts = np.zeros(2**n)
  for _ in range(draws):
    numbers, weights = sampler.draw(rng)
    assert (np.diff(numbers[weights > 0]) > 0).all()
    counts[int(sum(1 << int(i) for i in numbers[weights > 0]))] += 1
  sizes = np.array([bin(s).count('1') for s in range(2**n)])
  expected = draws * q**sizes * (1 - q) ** (n - sizes)
  common = expected >= 5
  rest = [counts[~common].sum(), expected[~common].sum()]
  seen, wanted = (
    np.append(counts[common], rest[0]),
    np.append(expected[common], rest[1]),
  )
  _, p = scipy.stats.chisquare(seen, wanted * seen.sum() / wanted.sum())
  assert p > 1e-4


def test_many_rows_take_no_memory_for_each():
  import tracemalloc

  sampler = _many(10**10, 2e-7)
  tracemalloc.start()
  numbers, weights = sampler.draw(np.random.default_rng(0))
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 10e6
  assert abs(weights.sum() - 2000) < 250
  assert numbers.max() > 2**32
  same = sampler.draw(np.random.default_rng(0))[0]
  np.testing.assert_array_equal(same, numbers)


def test_padding_and_cap_are_as_with_coins(no_coins):
  capped = _many(2000, 0.05, chunk=64, max_batch_size=160)
  for seed in range(30):
    numbers, weights = capped.draw(np.random.default_rng(seed))
    assert len(numbers) % 64 == 0
    assert not numbers[weights == 0].any()
    assert weights.sum() <= 160
    rows, same = capped.batch(np.arange(2000) + 1, np.random.default_rng(seed))
    np.testing.assert_array_equal(rows, (numbers + 1) * (weights > 0))
    np.testing.assert_array_equal(same, weights)


def test_coins_are_tossed_where_many_join(monkeypatch):
  """Numbers of a batch take as much memory then."""
  monkeypatch.setattr(poisson, '_MOST_COINS', 0)
  monkeypatch.setattr(poisson, 'BinomialSizes', None)
  numbers, weights = _many(100, 0.5).draw(np.random.default_rng(0))
  same = np.flatnonzero(np.random.default_rng(0).random(100) < 0.5)
  np.testing.assert_array_equal(numbers[weights > 0], same)
