"""What an event comes to, and brute force where that takes a proof."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from scipy import stats

from tests.grids import thinned
from tfdpflows import accounting
from tfdpflows.accounting import events
from tfdpflows.accounting.mechanisms import (
  OPPOSITE,
  PRESENT,
  BoundedRange,
  DataDependentGNMax,
  DataDependentLNMax,
  DataDependentThreshold,
  EpsilonDelta,
  Gaussian,
  Laplace,
  NonPrivate,
  Parallel,
  RepeatAndSelect,
  decompose,
)

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
GAUSSIAN = dp_accounting.GaussianDpEvent(4.0)
LAPLACE = dp_accounting.LaplaceDpEvent(4.0)
PURE = accounting.EpsilonDeltaDpEvent(0.5)
CHOICE = accounting.ExponentialMechanismDpEvent(0.5)


def poisson(event, q=0.25):
  return dp_accounting.PoissonSampledDpEvent(q, event)


def fixed(event, n=8, m=2):
  return dp_accounting.SampledWithoutReplacementDpEvent(n, m, event)


def confident(answered=True):
  return accounting.ConfidentGNMaxDpEvent(3.0, 8.0, 4.0, answered)


@pytest.mark.parametrize(
  ('event', 'relation', 'counts'),
  [
    (CHOICE, ADD, {BoundedRange(0.5): 1}),
    (
      accounting.ReportNoisyMaxDpEvent(0.5, 'gumbel'),
      REPLACE,
      {BoundedRange(0.5): 1},
    ),
    (
      accounting.ReportNoisyMaxDpEvent(0.5, 'exponential'),
      ADD,
      {EpsilonDelta(0.5): 1},
    ),
    (
      accounting.LNMaxDpEvent(0.25),
      REPLACE,
      {EpsilonDelta(0.5): 1},
    ),
    (
      confident(),
      REPLACE,
      {
        Gaussian(8.0): 1,
        Gaussian(math.nextafter(4.0 / math.sqrt(2), 0.0)): 1,
      },
    ),
    (confident(False), ADD, {Gaussian(8.0): 1}),
    (
      accounting.DataDependentDpEvent(confident(), -3.0, -0.5),
      ADD,
      {
        DataDependentThreshold(8.0, -0.5): 1,
        DataDependentGNMax(4.0, -3.0): 1,
      },
    ),
    (
      accounting.DataDependentDpEvent(accounting.LNMaxDpEvent(0.2), -3.0),
      ADD,
      {DataDependentLNMax(0.2, -3.0): 1},
    ),
    (poisson(CHOICE), ADD, {BoundedRange(0.5, 0.25): 1}),
    (
      poisson(GAUSSIAN),
      REPLACE,
      {Gaussian(2.0, 0.25, row=OPPOSITE): 1},
    ),
    (fixed(GAUSSIAN), ADD, {Gaussian(2.0, 0.25): 1}),
    (
      fixed(LAPLACE),
      REPLACE,
      {Laplace(2.0, 0.25, row=True): 1},
    ),
    (
      fixed(CHOICE),
      REPLACE,
      {BoundedRange(0.5, 0.25, row=True): 1},
    ),
    (fixed(CHOICE, 8, 8), REPLACE, {BoundedRange(0.5): 1}),
    (fixed(GAUSSIAN, 8, 0), REPLACE, {}),
    (accounting.ParallelDpEvent([]), ADD, {}),
    (
      accounting.ParallelDpEvent([LAPLACE, dp_accounting.NoOpDpEvent()]),
      ADD,
      {Laplace(4.0): 1},
    ),
    (
      # The worse of two is plain: more noise, and Gaussians as one.
      accounting.ParallelDpEvent(
        [
          dp_accounting.SelfComposedDpEvent(GAUSSIAN, 4),
          dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2.5)]),
        ]
      ),
      ADD,
      {Gaussian(2.0): 1},
    ),
    (
      accounting.ParallelDpEvent([GAUSSIAN, LAPLACE]),
      ADD,
      {
        Parallel(
          (
            ((Gaussian(4.0), 1),),
            ((Laplace(4.0), 1),),
          )
        ): 1
      },
    ),
    (
      accounting.ParallelDpEvent([GAUSSIAN, dp_accounting.NonPrivateDpEvent()]),
      ADD,
      {NonPrivate(): 1},
    ),
    (
      dp_event.RepeatAndSelectDpEvent(poisson(GAUSSIAN), 5.0, math.inf),
      ADD,
      {RepeatAndSelect(5.0, math.inf, ((Gaussian(4.0, 0.25), 1),)): 1},
    ),
    (
      dp_accounting.GaussianDpEvent(0.0),
      ADD,
      {NonPrivate(): 1},
    ),
  ],
)
def test_counts(event, relation, counts):
  assert decompose(event, relation) == counts
  thrice = dp_accounting.SelfComposedDpEvent(event, 3)
  assert decompose(thrice, relation) == {m: 3 * n for m, n in counts.items()}


def test_votes_on_a_sample_are_not_taken_for_opposite_rows():
  # Adding a row moves two votes, as replacing one does.
  vote = accounting.GNMaxDpEvent(4.0)
  both = dp_accounting.ComposedDpEvent([vote, GAUSSIAN])
  for event in (vote, both):
    (mechanism,) = decompose(poisson(event), REPLACE)
    assert mechanism.row == PRESENT
  (mechanism,) = decompose(poisson(GAUSSIAN), REPLACE)
  assert mechanism.row == OPPOSITE
  added = accounting.compute_epsilon(poisson(vote), 1e-5)
  assert accounting.compute_epsilon(
    poisson(vote), 1e-5, 'pld', REPLACE
  ) >= added * (1 - 1e-6)


def test_a_cap_is_a_mixture():
  event = accounting.TruncatedSubsampledGaussianDpEvent(1000, 0.1, 110, 1.5)
  (mechanism,) = decompose(event, REPLACE)
  assert mechanism.name == 'mixture'
  (plain, kept), (full, overflow) = mechanism.parts[:2]
  assert plain == Gaussian(0.75, 0.1, row=OPPOSITE)
  exact = stats.binom.sf(109, 999, 0.1)
  assert overflow == pytest.approx(exact, rel=1e-8)
  assert kept == pytest.approx(1 - exact, rel=1e-8)
  assert kept + sum(weight for _, weight in mechanism.parts[1:]) >= 1
  # The mean of q cap / (k + 1) over k >= cap.
  k = np.arange(110, 1000)
  mean = np.sum(stats.binom.pmf(k, 999, 0.1) * 0.1 * 110 / (k + 1)) / exact
  assert full.sampling_probability == pytest.approx(mean, rel=1e-8)
  assert full.sampling_probability >= mean * (1 - 1e-12)
  for cap in (1001, 10**9):
    event = accounting.TruncatedSubsampledGaussianDpEvent(1000, 0.1, cap, 1.5)
    assert list(decompose(event)) == [Gaussian(1.5, 0.1)]


@pytest.mark.parametrize(
  ('event', 'words'),
  [
    (accounting.ExponentialMechanismDpEvent(-0.1), 'epsilon of Exponential'),
    (accounting.ExponentialMechanismDpEvent(math.inf), 'epsilon of Exponen'),
    (accounting.ReportNoisyMaxDpEvent(0.1, 'gauss'), 'noise of Report.*gumbel'),
    (accounting.SparseVectorDpEvent(0.1, math.nan), 'epsilon_queries'),
    (accounting.LNMaxDpEvent(-1.0), 'gamma'),
    (accounting.GNMaxDpEvent(math.nan), 'sigma'),
    (accounting.ConfidentGNMaxDpEvent(math.nan, 1.0, 1.0), 'threshold'),
    (
      accounting.DataDependentDpEvent(accounting.GNMaxDpEvent(2.0)),
      'log_q.*missing',
    ),
    (
      accounting.DataDependentDpEvent(accounting.GNMaxDpEvent(2.0), math.nan),
      'log_q',
    ),
    (fixed(GAUSSIAN, 8, 9), 'sample_size'),
    (fixed(GAUSSIAN, 8.5, 2), 'integer'),
    (
      accounting.TruncatedSubsampledGaussianDpEvent(10, 0.1, 0, 1.0),
      'truncated_batch_size',
    ),
    (
      accounting.TruncatedSubsampledGaussianDpEvent(10, 1.1, 5, 1.0),
      'sampling_probability',
    ),
    (dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 0.5, 1.0), 'mean'),
    (dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 2.0, -1.0), 'shape'),
  ],
)
def test_parameters_out_of_range_are_named(event, words):
  with pytest.raises(ValueError, match=words):
    decompose(event)


@pytest.mark.parametrize(
  'event',
  [
    accounting.DataDependentDpEvent(confident(), -3.0, -0.5),
    accounting.DataDependentDpEvent(
      accounting.DataDependentDpEvent(accounting.GNMaxDpEvent(4.0), -5.0), -5.0
    ),
    confident(False),
    accounting.ParallelDpEvent([confident(False)]),
    poisson(dp_accounting.SelfComposedDpEvent(confident(False), 2)),
    dp_accounting.ComposedDpEvent([confident(False), GAUSSIAN]),
  ],
)
def test_data_independent_prices_are_those_of_an_answer(event):
  text = repr(events.data_independent(event))
  assert 'DataDependent' not in text and 'answered=False' not in text


def test_prices_from_votes_are_not_repeated():
  votes = accounting.DataDependentDpEvent(accounting.GNMaxDpEvent(4.0), -5.0)
  for inner in (votes, accounting.ParallelDpEvent([votes, LAPLACE])):
    event = dp_event.RepeatAndSelectDpEvent(inner, 5.0, 1.0)
    with pytest.raises(ValueError, match='both'):
      decompose(event)


def test_a_billion_releases_of_hardly_any_noise_have_a_price():
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.GaussianDpEvent(5e-324), 10**9
  )
  for name in ('pld', 'rdp', 'zcdp', 'basic', 'advanced'):
    assert accounting.compute_epsilon(event, 1e-5, name) == math.inf


def hockey_stick(epsilon, first, second, noise, laplace):
  """Of two mixtures {mean: weight} of one kind of noise, by integration."""
  x = np.linspace(-30, 30, 120_001)
  density = stats.laplace.pdf if laplace else stats.norm.pdf
  p, q = (
    sum(w * density(x, mean, noise) for mean, w in mixture.items())
    for mixture in (first, second)
  )
  return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0)) * (x[1] - x[0]))


def fixed_mixture(rows, m):
  samples = list(itertools.combinations(rows, m))
  found = {}
  for sample in samples:
    found[sum(sample)] = found.get(sum(sample), 0) + 1 / len(samples)
  return found


def poisson_mixture(rows, q):
  found = {}
  for size in range(len(rows) + 1):
    for sample in itertools.combinations(rows, size):
      weight = q**size * (1 - q) ** (len(rows) - size)
      found[sum(sample)] = found.get(sum(sample), 0) + weight
  return found


@pytest.mark.parametrize('laplace', [False, True])
@pytest.mark.parametrize('seed', thinned(range(4), 1))
def test_sampling_is_covered(seed, laplace):
  rng = np.random.default_rng(seed)
  noise = rng.uniform(0.5, 2)
  event = (
    dp_accounting.LaplaceDpEvent if laplace else dp_accounting.GaussianDpEvent
  )(noise)
  n = int(rng.integers(3, 6))
  m = int(rng.integers(1, n))
  q = rng.uniform(0.1, 0.9)
  rest = [float(x) for x in rng.choice([-1.0, 1.0, 0.3], n - 1)]
  larger, other = [*rest, 1.0], [*rest, -1.0]
  cases = [
    (poisson(event, q), ADD, poisson_mixture, (larger, q), (rest, q)),
    (poisson(event, q), REPLACE, poisson_mixture, (larger, q), (other, q)),
    (fixed(event, n, m), REPLACE, fixed_mixture, (larger, m), (other, m)),
  ]
  if m <= n - 1:
    cases.append(
      (fixed(event, n, m), ADD, fixed_mixture, (larger, m), (rest, m))
    )
  for sampled, relation, mixture, first, second in cases:
    made = accounting.create_accountant('pld', relation).compose(sampled)
    for epsilon in (0.0, 0.2, 0.7, 1.5):
      claimed = made.get_delta(epsilon)
      pair = mixture(*first), mixture(*second)
      for one, two in (pair, pair[::-1]):
        true = hockey_stick(epsilon, one, two, noise, laplace)
        assert true <= claimed + 2e-5


def test_best_epsilon_is_the_smallest_upper_bound():
  event = dp_accounting.SelfComposedDpEvent(poisson(GAUSSIAN, 0.01), 1000)
  best = accounting.best_epsilon(event, 1e-5)
  assert best.accountant == 'pld'
  assert best.epsilon == accounting.compute_epsilon(event, 1e-5)
  # Only some take this one; the asymptotic one never stands in.
  ledger = accounting.PrivacyLedger(accountant='rdp')
  ledger.charge(accounting.ZCDpEvent(0.01))
  ledger.charge(GAUSSIAN)
  best = accounting.best_epsilon(ledger, 1e-5)
  assert best.accountant in ('rdp', 'zcdp')
  votes = accounting.DataDependentDpEvent(accounting.GNMaxDpEvent(4.0), -60.0)
  assert accounting.best_epsilon(votes, 1e-5) == accounting.best_epsilon(
    accounting.GNMaxDpEvent(4.0), 1e-5
  )
  with pytest.raises(
    dp_accounting.UnsupportedEventError, match='No accountant'
  ):
    accounting.best_epsilon(dp_accounting.UnsupportedDpEvent(), 1e-5)
  with pytest.raises(ValueError, match='ADD_OR_REMOVE_ONE.*REPLACE_ONE'):
    accounting.best_epsilon(ledger, 1e-5, REPLACE)
