"""Every event and every mechanism is attacked: a new one fails without a row.

An event is attacked as the mechanism that its documentation describes, a
mechanism as it is. No bound may be above the claim.
"""

import dataclasses
import functools
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import pandas as pd
import pytest
from dp_accounting import dp_event
from scipy import stats

from tfdpflows import accounting, audit, expm, mechanisms, pate, sampling
from tfdpflows.accounting import events
from tfdpflows.pate import smooth_sensitivity
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import Field, TableSchema

DELTA = 1e-5
ADD = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
SPECIAL = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
Gaussian = dp_accounting.GaussianDpEvent


@dataclasses.dataclass(frozen=True)
class Row:
  """A mechanism, what it costs, and a pair of tables."""

  claim: Any
  # Of a table, a number of runs and a generator; returns scores.
  run: Callable
  table: Any = 0.0
  neighbor: Any = 1.0
  # What the attack reaches of epsilon; of mu, for a Gaussian mechanism.
  least: float = 0.0
  mu: float = 0.0
  num_runs: int = 100_000
  delta: float = DELTA
  accountant: str = 'pld'
  relation: Any = ADD


def _normal(sigma=1.0, terms=1):
  return lambda value, runs, rng: (
    value * terms + sigma * np.sqrt(terms) * rng.normal(size=runs)
  )


def _composed(value, runs, rng):
  normal = value + 2 * rng.normal(size=runs)
  laplace = value + 2 * rng.laplace(size=runs)
  return normal / 4 + (np.abs(laplace) - np.abs(laplace - 1)) / 2


def _epsilon_delta(value, runs, rng):
  answer = np.where(rng.random(runs) < 1 / (1 + np.exp(-1.0)), value, 1 - value)
  return np.where(rng.random(runs) < 0.01, 10.0 * (2 * value - 1), answer)


def _flipped(worst, runs, rng):
  """Permute-and-flip of two candidates, `worst` the loss of the second."""
  first = rng.random(runs) < 0.5
  return first & (rng.random(runs) < np.exp(-worst))


def _sparse_vector(value, runs, rng):
  # Scales D / epsilon_threshold, and 2 c D / epsilon_queries.
  threshold = rng.laplace(scale=2.0, size=runs) + 12.0
  return (value + rng.laplace(scale=4.0, size=runs) >= threshold) * 1.0


def _noisy_max(counts, runs, rng):
  noise = rng.exponential(scale=1.0, size=[runs, 2])
  return np.argmax(np.array(counts) + noise, 1)


def _truncated(value, runs, rng):
  """Four other rows of -1 that fill a sample of at most two."""
  number = 4 + (value > 0)
  drawn = rng.random([runs, number]) < 0.9
  rank = np.argsort(np.where(drawn, rng.random([runs, number]), 2.0), 1)
  kept = np.zeros_like(drawn)
  np.put_along_axis(kept, rank[:, :2], True, 1)
  values = np.full(number, -1.0)
  values[-1] = 1.0 if value > 0 else -1.0
  return (kept & drawn) @ values + rng.normal(size=runs)


def _discrete_laplace(value, runs, rng):
  p = 1 - np.exp(-1.0)
  return value + rng.geometric(p, runs) - rng.geometric(p, runs)


def _response(value, runs, rng):
  anything = rng.integers(3, size=runs)
  answer = np.where(rng.random(runs) < 0.5, anything, value)
  return np.select([answer == 1, answer == 0], [1.0, -1.0], 0.0)


def _sampled(q, sigma, low=0.0):
  def run(value, runs, rng):
    drawn = rng.random(runs) < q
    return np.where(drawn, value, low) + sigma * rng.normal(size=runs)

  return run


def _replaced(value, runs, rng):
  """One of ten rows is drawn; the others are zero."""
  return value * (rng.random(runs) < 0.1) + 0.5 * rng.normal(size=runs)


def _perturbed(value, runs, rng):
  """A row with feature `value`, lambda 1 and noise of 2; by bisection."""
  noise = 2.0 * rng.normal(size=runs)
  low, high = np.full(runs, -30.0), np.full(runs, 30.0)
  for _ in range(40):
    middle = (low + high) / 2
    slope = -value / (1 + np.exp(value * middle)) + middle + noise
    low, high = (
      np.where(slope < 0, middle, low),
      np.where(slope < 0, high, middle),
    )
  return low


def _smooth(value, runs, rng):
  """A number and its smooth sensitivity, both on the edge of what is smooth."""
  beta, sigma = 0.05, 4.0
  release = value + sigma * np.exp(beta * value) * rng.normal(size=runs)
  pair = stats.norm(1, sigma * np.exp(beta)), stats.norm(0, sigma)
  return pair[0].logpdf(release) - pair[1].logpdf(release)


def _counts(value, runs, rng):
  """Two counts that move against each other."""
  return value * 2 + np.sqrt(2.0) * rng.normal(size=runs)


def _confident(value, runs, rng):
  """The log-likelihood ratio of a check and of two counts."""
  check = value + 3 * rng.normal(size=runs)
  gap = 2 * value + 2 * np.sqrt(2.0) * rng.normal(size=runs)
  return check / 9 + gap / 4


def _best_of_many(value, runs, rng):
  number = rng.geometric(0.5, size=runs)
  found = value + rng.laplace(size=[runs, 20])
  found[np.arange(20) >= number[:, None]] = -np.inf
  return found.max(1)


def _toeplitz(value, runs, rng):
  noised = value * np.array([1, 0.5, 0.0]) + rng.normal(size=[runs, 3])
  return noised @ np.array([1, 0.5, 0.0])


def _lnmax(counts, runs, rng):
  return np.argmax(np.array(counts) + rng.laplace(scale=2, size=[runs, 2]), 1)


EVENTS = {
  'NoOp': Row(
    dp_accounting.NoOpDpEvent(), lambda value, runs, rng: np.zeros(runs)
  ),
  'NonPrivate': Row(
    dp_accounting.NonPrivateDpEvent(),
    lambda value, runs, rng: np.full(runs, value),
  ),
  'Composed': Row(
    dp_accounting.ComposedDpEvent(
      [Gaussian(2.0), dp_accounting.LaplaceDpEvent(2.0)]
    ),
    _composed,
    delta=0.01,
    least=0.85,
  ),
  'SelfComposed': Row(
    dp_accounting.SelfComposedDpEvent(Gaussian(4.0), 16),
    _normal(4.0, 16),
    mu=0.9,
  ),
  'EpsilonDelta': Row(
    accounting.EpsilonDeltaDpEvent(1.0, 0.01),
    _epsilon_delta,
    delta=0.011,
    least=0.9,
  ),
  'PermuteAndFlip': Row(
    accounting.PermuteAndFlipDpEvent(1.0),
    _flipped,
    3.0,
    2.0,
    least=0.9,
  ),
  # Only the noise of the threshold is met by one query far below it.
  'SparseVector': Row(
    accounting.SparseVectorDpEvent(0.5, 0.5), _sparse_vector, least=0.15
  ),
  'Laplace': Row(
    dp_accounting.LaplaceDpEvent(1.0),
    lambda value, runs, rng: value + rng.laplace(size=runs),
    least=0.9,
  ),
  'ExponentialMechanism': Row(
    accounting.ExponentialMechanismDpEvent(1.0),
    lambda gap, runs, rng: rng.random(runs) < 1 / (1 + np.exp(gap)),
    4.0,
    3.0,
    least=0.9,
    num_runs=400_000,
  ),
  'ReportNoisyMax': Row(
    # Scale 2 * sensitivity / epsilon, of a sensitivity of 1/2.
    accounting.ReportNoisyMaxDpEvent(1.0, noise='exponential'),
    _noisy_max,
    (3.0, 0.0),
    (2.5, 0.5),
    least=0.9,
  ),
  'TruncatedSubsampledGaussian': Row(
    accounting.TruncatedSubsampledGaussianDpEvent(4, 0.9, 2, 1.0),
    _truncated,
    delta=0.01,
    least=0.1,
  ),
  'DiscreteLaplace': Row(
    accounting.DiscreteLaplaceDpEvent(1.0, 1), _discrete_laplace, least=0.9
  ),
  'RandomizedResponse': Row(
    accounting.RandomizedResponseDpEvent(0.5, 3),
    _response,
    0,
    1,
    least=0.9,
    relation=REPLACE,
  ),
  'Gaussian': Row(Gaussian(1.0), _normal(), mu=0.9),
  'ToeplitzMechanism': Row(
    accounting.ToeplitzMechanismDpEvent(1.0, [1, 0.5], steps=3),
    _toeplitz,
    mu=0.9,
    relation=SPECIAL,
  ),
  'MatrixMechanism': Row(
    accounting.MatrixMechanismDpEvent(1.0, [[1], [0.5, 1], [0, 0.5, 1]]),
    _toeplitz,
    mu=0.9,
    relation=SPECIAL,
  ),
  # A leaf and the two nodes above it.
  'SingleEpochTreeAggregation': Row(
    dp_event.SingleEpochTreeAggregationDpEvent(2.0, 4),
    _normal(2.0, 3),
    mu=0.9,
    relation=SPECIAL,
  ),
  'CyclicPoissonSampled': Row(
    accounting.CyclicPoissonSampledDpEvent(
      0.2, 2, accounting.ToeplitzMechanismDpEvent(0.5, [1.0], steps=2)
    ),
    _sampled(0.2, 0.5),
    delta=0.01,
    least=0.85,
    num_runs=400_000,
  ),
  'ObjectivePerturbation': Row(
    accounting.ObjectivePerturbationDpEvent(2.0, 1.0),
    _perturbed,
    delta=0.01,
    # The bound is over all rows and points at once.
    least=0.1,
  ),
  'Parallel': Row(
    accounting.ParallelDpEvent([Gaussian(1.0), Gaussian(2.0)]),
    _normal(),
    mu=0.9,
  ),
  'PoissonSampled': Row(
    dp_accounting.PoissonSampledDpEvent(0.2, Gaussian(0.5)),
    _sampled(0.2, 0.5),
    delta=0.01,
    num_runs=1_000_000,
    least=0.9,
  ),
  'SampledWithoutReplacement': Row(
    dp_accounting.SampledWithoutReplacementDpEvent(10, 1, Gaussian(0.5)),
    _replaced,
    -1.0,
    delta=0.01,
    relation=REPLACE,
    num_runs=400_000,
    accountant='rdp',
    # Its bound has much slack at a small sample, and at few orders.
    least=0.1,
  ),
  'SmoothSensitivity': Row(
    accounting.SmoothSensitivityDpEvent(4.0, 0.05),
    _smooth,
    accountant='rdp',
    delta=0.01,
    least=0.3,
  ),
  # A Gaussian mechanism with this divergence at this order.
  'Renyi': Row(
    accounting.RenyiDpEvent(8.0, 4.0),
    _normal(),
    accountant='rdp',
    delta=0.01,
    least=0.4,
  ),
  'LNMax': Row(
    accounting.LNMaxDpEvent(0.5), _lnmax, (4.0, 4.0), (3.0, 5.0), least=0.5
  ),
  'GNMax': Row(accounting.GNMaxDpEvent(1.0), _counts, mu=0.9),
  'ConfidentGNMax': Row(
    accounting.ConfidentGNMaxDpEvent(10.0, 3.0, 2.0), _confident, mu=0.9
  ),
  'VoteThreshold': Row(accounting.VoteThresholdDpEvent(1.0), _normal(), mu=0.9),
  'RepeatAndSelect': Row(
    dp_event.RepeatAndSelectDpEvent(
      dp_accounting.LaplaceDpEvent(1.0), 2.0, 1.0
    ),
    _best_of_many,
    accountant='rdp',
    least=0.2,
  ),
  'ZCDp': Row(
    accounting.ZCDpEvent(0.5),
    _normal(),
    accountant='zcdp',
    delta=0.01,
    least=0.6,
  ),
}
NO_EVENT = {
  'DataDependent': 'for one direction and given votes: no claim rests on it',
  'NoProof': 'every accountant refuses it: its epsilon is infinite',
}


def test_every_event_has_a_row():
  assert set(events.KINDS) == set(EVENTS) | set(NO_EVENT)


def _audited(row):
  rng = np.random.default_rng(0)
  return audit.audit_mechanism(
    lambda table, runs: row.run(table, runs, rng),
    row.table,
    row.neighbor,
    claim=row.claim,
    delta=row.delta,
    num_runs=row.num_runs,
    accountant=row.accountant,
    neighboring_relation=row.relation,
  )


@pytest.mark.parametrize('name', EVENTS)
def test_events_cost_at_least_what_is_found(name):
  row = EVENTS[name]
  found = _audited(row)
  assert not found.refuted, found
  if row.least:
    assert found.epsilon_lower >= row.least * found.epsilon_claimed
  if row.mu:
    known = accounting.create_accountant('pld', row.relation)
    known.compose(row.claim)
    # mu of a Gaussian mechanism with as large an epsilon.
    epsilon = known.get_epsilon(DELTA)
    gaussian = lambda mu: accounting.compute_epsilon(Gaussian(1 / mu), DELTA)
    assert found.mu_lower <= 8 and gaussian(found.mu_lower) <= epsilon
    assert gaussian(found.mu_lower / row.mu) >= epsilon


def _each(release):
  """Runs one release after the other, each with a ledger of its own."""

  def run(table, runs, rng):
    seeds = rng.integers(2**62, size=runs).tolist()
    return np.array(
      [
        release(
          table, accounting.PrivacyLedger(accountant='rdp'), Randomness(seed)
        )
        for seed in seeds
      ],
      np.float64,
    )

  return run


def _marginal(rows, ledger, randomness):
  codes = np.zeros([rows, 1], np.int64)
  (found,) = mechanisms.noisy_marginals(
    codes, [2], [(0,)], 1.0, randomness, ledger
  )
  return found.counts[0]


def _selection(rows, ledger, randomness):
  codes = np.zeros([rows, 2], np.int64)
  return mechanisms.select_marginal(
    codes,
    [2, 2],
    [(0,), (1,)],
    # One row more is an error more of the one, and one less of the other.
    [[0, 0], [6, 0]],
    1.0,
    1.0,
    randomness,
    ledger,
  )


def _histogram(rows, ledger, randomness):
  column = types.SimpleNamespace(
    name='x', size=2.0, cell=1.0, missing=False, ordered=False, resolution=1.0
  )
  (found,) = mechanisms.noisy_histograms(
    np.zeros([rows, 1]), [column], 1.0, randomness, ledger
  )
  return found.counts[0]


BOUNDS = TableSchema(
  [Field('x', 'integer', 0, 9, from_data=('minimum', 'maximum'), required=True)]
)


def _bounds(rows, ledger, randomness):
  """So many rows far out, where about 22 rise above the threshold."""
  df = pd.DataFrame({'x': [3] * 300 + [2**20] * rows})
  schema = mechanisms.private_bounds(df, BOUNDS, 1.0, 0.0, randomness, ledger)
  return np.log2(schema['x'].maximum)


def _exponential(votes, ledger, randomness):
  votes = np.array(votes)
  mechanism = expm.ExponentialMechanism(
    lambda chosen: votes[np.asarray(chosen)[:, 0].astype(int)],
    sensitivity=1.0,
    epsilon=1.0,
  )
  found = mechanism.sample_from(
    [[0], [1]], ledger=ledger, randomness=randomness
  )
  return found[0]


def _max_rows(counts, ledger, randomness):
  """Of one more unit, with many rows, in place of one with one row."""
  ids = np.repeat(np.arange(len(counts)), counts)
  units = sampling.Units(ids, max_rows_per_unit=2, name='person')
  ledger = accounting.PrivacyLedger(accountant='rdp', privacy_unit='person')
  return mechanisms.private_max_rows(
    units, epsilon=1.0, ledger=ledger, randomness=randomness
  )


def _quantile(rows, ledger, randomness):
  values = np.full(rows, 0.9)
  return mechanisms.private_quantile(
    values,
    0.5,
    lower=0.0,
    upper=1.0,
    epsilon=1.0,
    ledger=ledger,
    randomness=randomness,
  )


def _counts(rows, ledger, randomness):
  counts = {'a': np.array([rows, 2]), 'b': np.array([1, rows])}
  found = mechanisms.from_exact_counts(counts, 1.0, randomness, ledger)
  return (found['a'][0] + found['b'][1]) / math.sqrt(2)


def _mean(rows, ledger, randomness):
  # The number of rows is public: one more row adds the largest value.
  values = np.append(np.ones(rows), np.zeros(10 - rows))
  return mechanisms.noisy_mean(
    values,
    lower=-1.0,
    upper=1.0,
    noise_multiplier=1.0,
    ledger=ledger,
    randomness=randomness,
  )


def _total_variation(rows, ledger, randomness):
  # All other rows are where the model has none: one more is an error more.
  return mechanisms.noisy_total_variation(
    np.ones([rows, 1], np.int64),
    [2],
    [(0,)],
    [[1.0, 0.0]],
    noise_multiplier=1.0,
    num_examples=1,
    ledger=ledger,
    randomness=randomness,
  )


def _normalization(rows, ledger, randomness):
  x = np.ones([rows, 1])
  found = mechanisms.private_normalization(
    x,
    bound=1.0,
    noise_multiplier=1.0,
    num_examples=10,
    ledger=ledger,
    randomness=randomness,
  )
  return found.mean[0]


def _votes(make, score=lambda answers: answers):
  """Each run is one query of an aggregator; all are in one call."""

  def run(votes, runs, rng):
    aggregator = make(
      num_teachers=sum(votes),
      num_classes=len(votes),
      ledger=accounting.PrivacyLedger(),
      randomness=Randomness(int(rng.integers(2**62))),
    )
    return score(aggregator.query(np.tile(votes, [runs, 1])))

  return run


def _confident_answers(**kwargs):
  return pate.ConfidentGNMax(5.0, 2.0, 2.0, 10**6, **kwargs)


def _interactive(votes, runs, rng):
  aggregator = pate.InteractiveGNMax(
    1.0,
    2.0,
    2.0,
    10**6,
    confidence=0.9,
    num_teachers=sum(votes),
    num_classes=2,
    ledger=accounting.PrivacyLedger(),
    randomness=Randomness(int(rng.integers(2**62))),
  )
  return aggregator.query(
    np.tile(votes, [runs, 1]), np.tile([0.5, 0.5], [runs, 1])
  )


def _rare_votes(votes, ledger, randomness):
  return pate.SparseVector(
    8.0,
    1.0,
    1,
    num_teachers=sum(votes),
    ledger=ledger,
    randomness=randomness,
  ).query([votes])[0]


_COST = {
  'sigma': 3.0,
  'order': 4.0,
  'beta': 0.05,
  'num_teachers': 20,
}


def _bounded_cost(votes, ledger, randomness):
  return pate.BoundedCostGNMax(
    max_divergence=0.5,
    sigma_test=5.0,
    failure=1e-3,
    num_classes=2,
    ledger=ledger,
    randomness=randomness,
    **_COST,
  ).query([votes])[0]


def _vote_cost(votes, ledger, randomness):
  return pate.release_vote_cost(
    [votes],
    sigma_release=5.0,
    failure=1e-3,
    ledger=ledger,
    randomness=randomness,
    **_COST,
  ).divergence


def _neighbours(rows, ledger, randomness):
  labels = np.array([1] + [0] * (rows - 1)) if rows == 2 else np.array([0])
  knn = pate.PrivateKNN(
    np.zeros([len(labels), 1]),
    labels,
    num_classes=2,
    num_neighbors=3,
    sampling_probability=0.5,
    sigma=1.0,
    ledger=ledger,
    randomness=randomness,
  )
  return knn.query([[0.0]])[0]


DESCENT = expm.NoisyDescent(
  sensitivity=1.0,
  strong_convexity=1.0,
  smoothness=1.0,
  step_size=0.5,
  noise_std=2.0,
  steps=5,
)


def _descent(value, runs, rng):
  # F = theta^2 / 2 - value * theta, for every run by itself.
  return DESCENT.run(lambda theta: theta - value, np.zeros(runs), rng)


def _exponential_density(value, runs, rng):
  # exp(-theta^2 / 2 + value * theta): a change with gradient 1, convexity 1.
  return rng.normal(loc=value, size=runs)


def _ledger_event(release, table):
  ledger = accounting.PrivacyLedger(accountant='rdp')
  release(table, ledger, Randomness(0))
  return ledger.committed_event


def _small(release, table, neighbor, least=0.0, **kwargs):
  return Row(
    lambda: _ledger_event(release, table),
    _each(release),
    table,
    neighbor,
    least=least,
    num_runs=600,
    accountant='rdp',
    delta=0.01,
    **kwargs,
  )


MECHANISMS = {
  mechanisms.noisy_marginals: _small(_marginal, 5, 6, least=0.1),
  mechanisms.noisy_histograms: _small(_histogram, 20, 21, least=0.1),
  mechanisms.private_bounds: _small(_bounds, 22, 23),
  mechanisms.select_marginal: _small(_selection, 5, 6),
  mechanisms.private_quantile: _small(_quantile, 3, 4),
  mechanisms.private_max_rows: dataclasses.replace(
    _small(_max_rows, [1, 1, 2], [1, 2, 2]),
    claim=lambda: accounting.ExponentialMechanismDpEvent(1.0),
  ),
  mechanisms.from_exact_counts: _small(_counts, 4, 5, least=0.1),
  mechanisms.noisy_mean: _small(_mean, 4, 5, least=0.1),
  mechanisms.noisy_total_variation: _small(_total_variation, 4, 5),
  mechanisms.private_normalization: _small(_normalization, 4, 5, least=0.1),
  pate.LNMax: Row(
    accounting.LNMaxDpEvent(0.5),
    _votes(lambda **kwargs: pate.LNMax(0.5, **kwargs)),
    (4, 4),
    (3, 5),
    least=0.5,
  ),
  pate.GNMax: Row(
    accounting.GNMaxDpEvent(2.0),
    _votes(lambda **kwargs: pate.GNMax(2.0, **kwargs)),
    (4, 4),
    (3, 5),
    least=0.1,
  ),
  pate.ConfidentGNMax: Row(
    accounting.ConfidentGNMaxDpEvent(5.0, 2.0, 2.0),
    _votes(_confident_answers),
    (4, 4),
    (3, 5),
    least=0.05,
    num_runs=50_000,
  ),
  pate.InteractiveGNMax: Row(
    accounting.ConfidentGNMaxDpEvent(1.0, 2.0, 2.0),
    _interactive,
    (4, 4),
    (3, 5),
    least=0.05,
    num_runs=50_000,
  ),
  pate.ExponentialVote: Row(
    accounting.ExponentialMechanismDpEvent(1.0),
    _votes(lambda **kwargs: pate.ExponentialVote(1.0, **kwargs)),
    (8, 1),
    (7, 2),
    least=0.8,
  ),
  pate.SparseVector: _small(_rare_votes, (4, 6), (3, 7)),
  pate.BoundedCostGNMax: _small(_bounded_cost, (12, 8), (11, 9)),
  pate.release_vote_cost: _small(_vote_cost, (12, 8), (11, 9)),
  pate.PrivateKNN: _small(_neighbours, 1, 2),
  expm.ExponentialMechanism: _small(
    _exponential, (4.0, 3.0), (3.0, 4.0), least=0.1
  ),
  expm.NoisyDescent: Row(DESCENT.event, _descent, delta=0.01, mu=0.9),
  expm.exponential_mechanism_mu: Row(
    Gaussian(1 / expm.exponential_mechanism_mu(1.0, 1.0)),
    _exponential_density,
    mu=0.9,
  ),
}
# What is no mechanism, or is attacked elsewhere.
NO_MECHANISM = {
  mechanisms.Histogram: 'a result',
  mechanisms.Marginal: 'a result',
  mechanisms.Normalization: 'a result',
  expm.NoProofFlowSampler: 'of which no privacy is claimed',
  expm.dp_distance: 'computes distances',
  expm.epsilon_of_close: 'computes costs',
  expm.epsilon_of_mixture: 'computes costs',
  expm.epsilon_of_squeezed: 'computes costs',
  expm.l2_utility: 'a utility, before any noise',
  pate.Aggregator: 'a base class',
  pate.AnomalyEnsemble: 'an aggregator on votes of teachers',
  pate.QueryPlan: 'a result',
  pate.ReleasedCost: 'a result',
  pate.TeacherEnsemble: 'an aggregator on votes of teachers',
  pate.count_votes: 'votes, before any noise',
  pate.data_dependent_epsilon: 'private, and published nowhere',
  pate.fit_student: 'post-processing',
  pate.partition: 'drawn without the rows',
  pate.plan_queries: 'computes costs',
  pate.private_knn_event: 'computes costs',
}


def test_every_mechanism_has_a_row():
  public = set()
  for module in (mechanisms, pate, expm):
    for name in module.__all__:
      found = getattr(module, name)
      if inspect.ismodule(found):
        continue
      public.add(found)
  covered = set(MECHANISMS) | set(NO_MECHANISM)
  assert not public - covered, 'A mechanism without a row: give it one.'


# Of the few rows, which it says each time.
@pytest.mark.filterwarnings('ignore:Private bounds may leave')
@pytest.mark.parametrize(
  'mechanism', MECHANISMS, ids=lambda found: found.__name__
)
def test_mechanisms_cost_at_least_what_is_found(mechanism, monkeypatch):
  # A function of public parameters, which are the same in all runs.
  monkeypatch.setattr(
    smooth_sensitivity, '_Table', functools.cache(smooth_sensitivity._Table)
  )
  row = MECHANISMS[mechanism]
  if callable(row.claim):
    row = dataclasses.replace(row, claim=row.claim())
  found = _audited(row)
  print(f'{mechanism.__name__}: {found}')
  assert not found.refuted, found
  assert found.epsilon_lower >= row.least * found.epsilon_claimed
  if row.mu:
    mu = 1 / row.claim.noise_multiplier
    assert row.mu * mu <= found.mu_lower <= mu
