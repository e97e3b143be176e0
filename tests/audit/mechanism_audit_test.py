"""Audits stay below true claims, come close to them, and refute false ones.

A new mechanism is one row of `MECHANISMS`.
"""

import dataclasses
import decimal
import math
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import pytest
from scipy import special

from tfdpflows import accounting, audit, pate
from tfdpflows.randomness import Randomness

DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Row:
  """A mechanism, the pair of tables it tells apart best, and what is asked."""

  run: Callable
  event: dp_accounting.DpEvent
  table: Any = 0.0
  neighbor: Any = 1.0
  least: float = 0.9
  delta: float = DELTA
  num_runs: int = 200_000
  gaussian: bool = False


def _sampled(q, sigma):
  # The row of value 1 is in a batch with probability q.
  return lambda value, runs, rng: (
    value * (rng.random(runs) < q) + sigma * rng.normal(size=runs)
  )


def _votes(make):
  """Queries of an aggregator, of which each run is one."""
  return lambda votes, runs, rng: make(
    num_teachers=sum(votes),
    num_classes=len(votes),
    ledger=accounting.PrivacyLedger(),
    randomness=Randomness(int(rng.integers(2**32))),
  ).query(np.tile(votes, [runs, 1]))


def _discrete_laplace(value, runs, rng):
  p = 1 - math.exp(-1.0)
  return value + rng.geometric(p, runs) - rng.geometric(p, runs)


def _exponential(utilities, runs, rng):
  gumbel = rng.gumbel(size=[runs, 2])
  return np.argmax(np.array(utilities) + gumbel, 1)


MECHANISMS = {
  'gaussian': Row(
    lambda value, runs, rng: value + rng.normal(size=runs),
    dp_accounting.GaussianDpEvent(1.0),
    gaussian=True,
  ),
  'laplace': Row(
    lambda value, runs, rng: value + rng.laplace(size=runs),
    dp_accounting.LaplaceDpEvent(1.0),
  ),
  'discrete laplace': Row(
    _discrete_laplace, accounting.DiscreteLaplaceDpEvent(1.0, 1)
  ),
  # Utilities move by 1/2 each: two outcomes reach all of epsilon.
  'exponential': Row(
    _exponential,
    accounting.ExponentialMechanismDpEvent(1.0),
    (4.0, 0.0),
    (3.5, 0.5),
  ),
  'sampled gaussian': Row(
    _sampled(0.2, 0.5),
    dp_accounting.PoissonSampledDpEvent(
      0.2, dp_accounting.GaussianDpEvent(0.5)
    ),
    delta=0.01,
    num_runs=1_000_000,
  ),
  'composed gaussians': Row(
    lambda value, runs, rng: np.sum(
      value + 4.0 * rng.normal(size=[runs, 16]), 1
    ),
    dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 16),
    gaussian=True,
  ),
  'LNMax': Row(
    _votes(lambda **kwargs: pate.LNMax(0.5, **kwargs)),
    accounting.LNMaxDpEvent(0.5),
    [4, 4],
    [3, 5],
    least=0.5,
  ),
  'exponential vote': Row(
    _votes(lambda **kwargs: pate.ExponentialVote(1.0, **kwargs)),
    accounting.ExponentialMechanismDpEvent(1.0),
    [8, 1],
    [7, 2],
    num_runs=400_000,
  ),
}


def _audited(row, **kwargs):
  rng = np.random.default_rng(0)
  return audit.audit_mechanism(
    lambda table, runs: row.run(table, runs, rng),
    row.table,
    row.neighbor,
    claim=row.event,
    delta=row.delta,
    num_runs=row.num_runs,
    **kwargs,
  )


@pytest.mark.parametrize('name', MECHANISMS)
def test_comes_close_to_the_claim_from_below(name):
  row = MECHANISMS[name]
  found = _audited(row)
  assert not found.refuted
  lower = found.epsilon_lower_gaussian if row.gaussian else found.epsilon_lower
  print(f'{name}: {lower / found.epsilon_claimed:.3f} of the claim')
  assert row.least * found.epsilon_claimed <= lower <= found.epsilon_claimed


@pytest.mark.parametrize('name', ['gaussian', 'composed gaussians'])
def test_mu_of_gaussians(name):
  assert 0.95 < _audited(MECHANISMS[name]).mu_lower <= 1.0


FALSE = {
  'half the noise': (
    'laplace',
    lambda value, runs, rng: value + rng.laplace(scale=0.5, size=runs),
  ),
  'no sampling': ('sampled gaussian', _sampled(1.0, 0.5)),
  'wrong sensitivity': (
    'laplace',
    lambda value, runs, rng: 2 * value + rng.laplace(size=runs),
  ),
  'no noise': ('gaussian', lambda value, runs, rng: np.full(runs, value)),
  'utility of sensitivity 2': (
    'exponential',
    lambda utilities, runs, rng: _exponential(
      2 * np.array(utilities), runs, rng
    ),
  ),
}


@pytest.mark.parametrize('name', FALSE)
def test_false_claims_are_refuted(name):
  of, run = FALSE[name]
  row = dataclasses.replace(MECHANISMS[of], run=run, num_runs=50_000)
  assert _audited(row).refuted
  assert 'REFUTED' in str(_audited(row))


def test_too_few_runs_to_refute_anything_are_told():
  def all_of_it(table, runs):
    return np.full(runs, float(sum(table)))

  claim, texts = dp_accounting.LaplaceDpEvent(0.2), []
  for runs in (100, 10_000):
    found = audit.audit_mechanism(
      all_of_it, [1, 1], [1], claim=claim, delta=1e-6, num_runs=runs
    )
    assert found.refuted == found.could_refute == (runs == 10_000)
    texts.append(str(found))
  assert 'not refuted, and no attack could with so few runs.' in texts[0]
  assert 'few' not in texts[1]


def test_texts_are_rounded_to_the_safe_side():
  row = dataclasses.replace(MECHANISMS['laplace'], num_runs=100)
  found = dataclasses.replace(
    _audited(row), epsilon_claimed=0.99974, epsilon_lower=0.56789, mu_lower=1.0
  )
  assert 'epsilon <= 0.9998 at' in str(found)
  assert 'epsilon >= 0.5678, mu >= 1 (' in str(found)
  marked = str(dataclasses.replace(found, accountant='gdp'))
  assert '(gdp, asymptotic: no upper bound): not refuted.' in marked
  assert 'asymptotic' not in str(found)


def test_confidence_is_kept():
  """Bounds of a known mechanism are wrong at most as often as they may be."""
  rng = np.random.default_rng(0)
  wrong = 0
  for _ in range(400):
    first, second = rng.laplace(size=[2, 400])
    rates = audit.error_rates(first, 1 + second, delta=0.0, confidence=0.8)
    wrong += rates.epsilon(0.0) > 1.0
  # 80 expected at most; 107 is its 99.9 % quantile.
  assert wrong <= 107


def test_few_runs_prove_something():
  """Where no bound at all thresholds together holds, the best guess does."""
  rng = np.random.default_rng(0)
  found = [
    audit.error_rates(
      rng.normal(size=250), 1 + rng.normal(size=250), delta=0.0, by='mu'
    ).mu()
    for _ in range(100)
  ]
  assert np.mean(found) > 0.4
  # 5 expected at most.
  assert np.sum(np.array(found) > 1) <= 12


def test_rates_of_a_gaussian():
  fp, fn = special.ndtr([-1.5, 0.5])
  rates = audit.ErrorRates(fp, fn, confidence=1.0)
  assert rates.mu() == pytest.approx(1.0)
  assert rates.epsilon(0.0) == pytest.approx(math.log((1 - fn) / fp))
  epsilon = rates.epsilon(1e-3)
  assert rates.delta(epsilon) == pytest.approx(1e-3)
  # Half the order times the squared distance, before processing.
  assert 0 < rates.renyi(2.0) < 1.0
  assert rates.renyi(50.0) < 25.0
  assert audit.ErrorRates(0.6, 0.6, 0.95).renyi(2.0) == 0.0


def test_tables_are_not_changed_by_runs():
  def run(table, runs):
    table -= 1
    return np.random.default_rng(0).laplace(size=runs)

  table = np.ones(3)
  audit.audit_mechanism(
    run,
    table,
    table[:2],
    claim=dp_accounting.LaplaceDpEvent(1.0),
    delta=1e-6,
    num_runs=100,
  )
  np.testing.assert_array_equal(table, 1)


def test_a_ledger_is_a_claim():
  relation = dp_accounting.NeighboringRelation.REPLACE_ONE
  ledger = accounting.PrivacyLedger(neighboring_relation=relation)
  ledger.charge(dp_accounting.LaplaceDpEvent(1.0), label='noise')
  rng = np.random.default_rng(0)
  found = audit.audit_mechanism(
    lambda value, runs: value + rng.laplace(size=runs),
    -1.0,
    1.0,
    claim=ledger,
    delta=DELTA,
    num_runs=50_000,
  )
  assert found.epsilon_claimed == pytest.approx(2.0, rel=1e-3)
  assert 1.8 < found.epsilon_lower <= 2.0


def test_bad_arguments_are_named():
  scores = np.zeros(20)
  for kwargs, message in (
    ({'delta': 1.0}, 'delta is 1.0'),
    ({'confidence': 1.0}, 'confidence is 1.0'),
    ({'by': 'auc'}, "by is 'auc'"),
  ):
    with pytest.raises(ValueError, match=message):
      audit.error_rates(scores, scores, **{'delta': 0.0, **kwargs})
  with pytest.raises(ValueError, match=r'other_scores has shape \[3\]'):
    audit.error_rates(scores, scores[:3], delta=0.0)
  with pytest.raises(ValueError, match='scores holds NaN'):
    audit.error_rates(scores + math.nan, scores, delta=0.0)
  event = dp_accounting.LaplaceDpEvent(1.0)
  with pytest.raises(ValueError, match=r'scores of table have shape \[2\]'):
    audit.audit_mechanism(
      lambda table, runs: np.zeros(2), 0, 1, claim=event, delta=DELTA
    )
  with pytest.raises(ValueError, match='num_runs is 5'):
    audit.audit_mechanism(
      lambda table, runs: np.zeros(2), 0, 1, claim=event, delta=1e-5, num_runs=5
    )
  with pytest.raises(ValueError, match='has no entries'):
    audit.audit_mechanism(
      lambda table, runs: np.zeros(runs),
      0,
      1,
      claim=accounting.PrivacyLedger(),
      delta=DELTA,
    )
  for order in (1.0, math.inf):
    with pytest.raises(ValueError, match=f'order is {order}'):
      audit.ErrorRates(0.1, 0.1, 0.95).renyi(order)


def test_rates_of_zero_leave_no_epsilon():
  assert audit.ErrorRates(0.0, 0.5, 0.95).epsilon(0.0) == math.inf
  assert audit.ErrorRates(1.0, 0.0, 0.95).epsilon(0.0) == 0.0


def test_scores_without_a_difference_prove_nothing():
  rates = audit.error_rates(np.zeros(1000), np.zeros(1000), delta=0.0)
  assert rates.epsilon(0.0) == rates.mu() == 0.0


def test_renyi_of_rates_that_nearly_add_to_one_is_below_the_truth():
  def truth(fp, fn, order):
    with decimal.localcontext() as context:
      context.prec = 60
      fp, fn, order = map(decimal.Decimal, (fp, fn, order))
      divergences = [
        sum(a**order * b ** (1 - order) for a, b in ((p, q), (1 - p, 1 - q)))
        for p, q in ((1 - fn, fp), (1 - fp, fn))
      ]
      return max(divergences).ln() / (order - 1)

  rng = np.random.default_rng(0)
  for order in (1.001, 1.5, 2.0, 32.0):
    for gap in 10.0 ** rng.uniform(-14, -2, 50):
      fp = rng.uniform(0.01, 0.9)
      rates = audit.ErrorRates(fp, 1 - fp - gap, 0.95)
      found = rates.renyi(order)
      assert 0 <= found <= truth(fp, rates.false_negative, order)
