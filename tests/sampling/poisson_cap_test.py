"""A cap on Poisson batches: who stays, and that delta pays for it."""

import itertools

import numpy as np
import pytest
import scipy.stats

import tfdpflows
from tests.grids import thinned
from tfdpflows import accounting, gradients, sampling

Truncated = accounting.TruncatedSubsampledGaussianDpEvent


def _sampler(n=500, q=0.1, cap=80, **kwargs):
  return sampling.PoissonSampler(
    num_examples=n, sampling_probability=q, max_batch_size=cap, **kwargs
  )


def _uncautious(n, q, cap):
  """A sampler whose cap is hit often, which the constructor refuses."""
  sampler = sampling.PoissonSampler(
    num_examples=n, sampling_probability=q, chunk=1
  )
  vars(sampler)['max_batch_size'] = cap
  return sampler


def _claimed(event, epsilon):
  return _claims(event, [epsilon])[0]


def _claims(event, epsilons):
  made = accounting.create_accountant('pld').compose(event)
  return [made.get_delta(epsilon) for epsilon in epsilons]


def test_capped_batches_are_uniform_subsets():
  n, q, cap, draws = 6, 0.6, 3, 20_000
  sampler, rng = _uncautious(n, q, cap), np.random.default_rng(0)
  data = np.arange(n) + 1.0
  found = dict.fromkeys(_subset_probabilities(n, q, cap), 0)
  for _ in range(draws):
    rows, weights = sampler.batch(data, rng)
    found[frozenset(rows[weights == 1].astype(int) - 1)] += 1
  expected = {s: draws * p for s, p in _subset_probabilities(n, q, cap).items()}
  assert set(found) == set(expected)
  statistic, p = scipy.stats.chisquare(
    [found[s] for s in expected], list(expected.values())
  )
  assert p > 1e-4, statistic


def _subset_probabilities(n, q, cap):
  """Probability of each batch, by going through all samples."""
  found = {}
  for drawn in itertools.product([False, True], repeat=n):
    rows = [i for i in range(n) if drawn[i]]
    p = q ** len(rows) * (1 - q) ** (n - len(rows))
    kept = list(itertools.combinations(rows, min(cap, len(rows))))
    for subset in map(frozenset, kept):
      found[subset] = found.get(subset, 0.0) + p / len(kept)
  return found


def test_no_batch_and_no_shape_is_above_the_cap():
  data = np.ones([500, 2])
  rng = np.random.default_rng(0)
  for cap, chunk in ((40, 16), (48, 16), (50, 64), (60, 1)):
    sampler = _uncautious(500, 0.1, cap)
    vars(sampler)['chunk'] = chunk
    sizes = set()
    for _ in range(200):
      rows, weights = sampler.batch(data, rng)
      assert len(rows) % chunk == 0
      assert len(rows) <= -(-cap // chunk) * chunk
      assert rows.sum() == 2 * weights.sum()
      sizes.add(int(weights.sum()))
    assert max(sizes) <= cap


def test_without_an_overflow_the_batch_is_the_same_as_without_a_cap():
  data = np.arange(500.0)
  free = sampling.PoissonSampler(num_examples=500, sampling_probability=0.1)
  for seed in range(20):
    one, other = (
      s.batch(data, np.random.default_rng(seed)) for s in (free, _sampler())
    )
    np.testing.assert_array_equal(one[0], other[0])


@pytest.mark.parametrize(
  ('n', 'q', 'cap'),
  [(500, 0.1, 80), (10**6, 1e-3, 1300), (30, 0.5, 29), (10, 0.01, 3)],
)
def test_overflow_is_a_binomial_tail(n, q, cap):
  sampler = _sampler(n, q, cap)
  exact = scipy.stats.binom.sf(cap - 1, n, q)
  assert sampler.overflow_probability == pytest.approx(exact, rel=1e-6)
  assert sampler.overflow_probability >= exact * (1 - 1e-12)
  # It is no failure: where the noise is without end, nothing is in delta.
  event = sampler.event(1e9)
  assert _claimed(event, 0.1) <= 1e-12


def _density(rows, q, cap, sigma, grid):
  """Density of the noised sum of a capped batch."""
  subsets = _subset_probabilities(len(rows), q, cap)
  return sum(
    p * scipy.stats.norm.pdf(grid, sum(rows[i] for i in subset), sigma)
    for subset, p in subsets.items()
  )


def _divergences(rows, more, q, cap, sigma, epsilons):
  """Largest hockey-stick divergence of two tables, both ways, by quadrature."""
  reach = len(rows) + 1 + 10 * sigma
  grid = np.linspace(-reach, reach, 40_001)
  one = _density(rows, q, cap, sigma, grid)
  other = _density([*rows, more], q, cap, sigma, grid)
  step = grid[1] - grid[0]
  return [
    max(
      step * np.maximum(p - np.exp(epsilon) * r, 0.0).sum()
      for p, r in ((one, other), (other, one))
    )
    for epsilon in epsilons
  ]


@pytest.mark.parametrize('seed', thinned(range(12), 1))
def test_delta_covers_the_truth(seed):
  rng = np.random.default_rng(seed)
  n = int(rng.integers(1, 6))
  cap = int(rng.integers(1, n + 2))
  q = float(rng.uniform(0.05, 0.95))
  sigma = float(rng.uniform(0.2, 2.0))
  if seed % 2:
    rows, more = [-1.0] * n, 1.0  # The row takes the place of its opposite.
  else:
    rows, more = list(rng.uniform(-1, 1, n)), float(rng.uniform(-1, 1))
  epsilons = 0.0, 0.5, 2.0, 5.0
  worst = _divergences(rows, more, q, cap, sigma, epsilons)
  # The number of rows that is public may be that of either table.
  for size in (n, n + 1):
    claimed = _claims(Truncated(size, q, cap, sigma), epsilons)
    assert all(w <= c + 1e-9 for w, c in zip(worst, claimed))


def test_without_the_overflow_delta_would_be_wrong():
  n, q, cap, sigma, epsilon = 5, 0.9, 5, 1.5, 1.5
  (worst,) = _divergences([-1.0] * n, 1.0, q, cap, sigma, [epsilon])
  poisson = sampling.PoissonSampler(num_examples=n, sampling_probability=q)
  assert worst > 2 * _claimed(poisson.event(sigma), epsilon)
  assert worst <= _claimed(Truncated(n, q, cap, sigma), epsilon)


def test_a_plan_pays_for_the_overflow():
  x = np.arange(200, dtype='float32')[:, None]
  arguments = {
    'clipping': gradients.Flat(3.0),
    'noise_multiplier': 2.0,
    'steps': 8,
    'delta': 1e-4,
  }
  sampler = _sampler(200, 0.25, 80, chunk=16)
  plan = tfdpflows.TrainingPlan(sampler, **arguments)
  free = tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=200, sampling_probability=0.25),
    **arguments,
  )
  assert 8 * sampler.overflow_probability < 1e-4
  assert plan.epsilon() > free.epsilon()
  assert plan.sampler.expected_batch_size == 50
  batches = list(plan.dataset(x))
  assert len(batches) == 8
  assert all(len(rows) in (16, 32, 48, 64, 80) for rows, _, _ in batches)
  assert plan.ledger.entries[0].event == Truncated(200, 0.25, 80, 2.0)
  assert plan.ledger.entries[0].count == 8
  assert plan.ledger.epsilon() == plan.epsilon()
  statement = ' '.join(str(plan.privacy_statement()).split())
  assert 'of more than 80 rows a random subset' in statement


def test_caps_that_make_no_sense():
  for cap, message in (
    (0, 'max_batch_size is 0'),
    (-1, 'max_batch_size'),
    (60.5, 'integer'),
    (np.nan, 'integer'),
    (np.inf, 'integer'),
    (49, 'probability 0.5'),
    (60, 'such as 105'),
  ):
    with pytest.raises(ValueError, match=message):
      _sampler(cap=cap)
  # A cap that no table next to this one can reach costs nothing.
  assert _sampler(5, 1.0, 6).overflow_probability == 0
  with pytest.raises(ValueError, match='probability 1 '):
    _sampler(5, 1.0, 5)
  assert (
    'adds'
    not in sampling.PoissonSampler(
      num_examples=5, sampling_probability=0.5
    ).describe()
  )
