"""Batches of one size: who is in them, and what they cost."""

import dp_accounting
import numpy as np
import pytest
import scipy.stats

import tfdpflows
from tfdpflows import accounting, gradients, sampling

RELATION = dp_accounting.NeighboringRelation


def _sampler(n=200, size=40):
  return sampling.FixedSizeSampler(num_examples=n, batch_size=size)


def _plan(steps=5, noise_multiplier=4.0, **kwargs):
  return tfdpflows.TrainingPlan(
    _sampler(),
    gradients.Flat(1.0),
    noise_multiplier=noise_multiplier,
    steps=steps,
    delta=1e-4,
    **kwargs,
  )


def test_every_set_of_rows_is_as_likely():
  sampler, rng = _sampler(6, 3), np.random.default_rng(0)
  counts = {}
  for _ in range(4000):
    rows, weights = sampler.batch(np.arange(6), rng)
    assert len(set(rows)) == 3 and weights.tolist() == [1, 1, 1]
    key = tuple(sorted(rows))
    counts[key] = counts.get(key, 0) + 1
  assert len(counts) == 20
  assert scipy.stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_rows_keep_their_shape_and_dtype():
  data = np.ones([200, 2, 3], 'float32')
  rows, weights = _sampler().batch(data, np.random.default_rng(0))
  assert rows.shape == (40, 2, 3) and rows.dtype == 'float32'
  assert weights.shape == (40,) and weights.dtype == 'float32'


def test_event_and_public_constants():
  sampler = _sampler(1000, 30)
  assert sampler.event(2.0) == dp_accounting.SampledWithoutReplacementDpEvent(
    1000, 30, dp_accounting.GaussianDpEvent(2.0)
  )
  assert sampler.expected_batch_size == 30
  assert sampler.steps_per_epoch == 33
  assert 'without replacement' in sampler.describe()


def test_bad_input():
  for n, size, message in (
    (0, 1, 'num_examples'),
    (1.5, 1, 'num_examples'),
    (np.inf, 1, 'num_examples is inf'),
    (np.nan, 1, 'num_examples is nan'),
    (10, 0, 'batch_size'),
    (10, 11, r'batch_size is 11.*\[1, num_examples=10\]'),
    (10, 2.5, 'batch_size'),
    (10, np.nan, 'batch_size'),
  ):
    with pytest.raises(ValueError, match=message):
      _sampler(n, size)


@pytest.mark.parametrize('accountant', ['pld', 'rdp'])
def test_a_swapped_row_costs_what_half_the_noise_costs(accountant):
  """Neighbours of a batch of one size differ by a swap, however tables do."""
  steps = 20
  fixed = dp_accounting.SelfComposedDpEvent(_sampler().event(4.0), steps)
  poisson = sampling.PoissonSampler(num_examples=200, sampling_probability=0.2)
  event = dp_accounting.SelfComposedDpEvent(poisson.event(2.0), steps)
  added, replaced = (
    accounting.compute_epsilon(fixed, 1e-4, accountant, relation)
    for relation in (RELATION.ADD_OR_REMOVE_ONE, RELATION.REPLACE_ONE)
  )
  expected = accounting.compute_epsilon(event, 1e-4, accountant)
  assert added == pytest.approx(expected, rel=1e-3)
  # Where both tables hold the row, losses have both signs: a little more.
  assert expected <= replaced <= 1.05 * expected
  # A Poisson sample without the row has no other one in its place.
  event = dp_accounting.SelfComposedDpEvent(poisson.event(4.0), steps)
  assert replaced > accounting.compute_epsilon(
    event, 1e-4, accountant, RELATION.REPLACE_ONE
  )


def test_plan_draws_and_charges_what_the_sampler_says():
  plan = _plan()
  x = np.arange(200, dtype='float32')[:, None]
  for rows, weights, _ in plan.dataset(x):
    assert len(set(rows.numpy()[:, 0])) == 40
    assert weights.numpy().sum() == 40
  (entry,) = plan.ledger.entries
  assert entry.event == _sampler().event(4.0) and entry.count == 5
  statement = str(plan.privacy_statement())
  assert 'without replacement' in statement
  assert 'add or remove one' in statement
  assert plan.optimizer('sgd', learning_rate=0.1).expected_batch_size == 40


def test_for_epsilon_calibrates_to_the_sampler_and_to_the_neighbours():
  kwargs = {
    'epsilon': 1.0,
    'delta': 1e-4,
    'clipping': gradients.Flat(1.0),
    'epochs': 2,
  }
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-4)
  for relation in (RELATION.ADD_OR_REMOVE_ONE, RELATION.REPLACE_ONE):
    ledger = accounting.PrivacyLedger(
      budget=budget, neighboring_relation=relation
    )
    plan = tfdpflows.TrainingPlan.for_epsilon(
      **kwargs, sampler=_sampler(), ledger=ledger
    )
    assert plan.steps == 10
    assert 0.998 < plan.epsilon() <= 1.0
    list(plan.dataset(np.zeros([200, 1])))
    assert ledger.epsilon() == pytest.approx(plan.epsilon())
    name = relation.name.lower().replace('_', ' ')
    assert name in str(plan.privacy_statement())
  for bad in ({}, {'sampler': _sampler(), 'num_examples': 200}):
    with pytest.raises(ValueError, match='`sampler`'):
      tfdpflows.TrainingPlan.for_epsilon(**kwargs, **bad)


def test_poisson_plan_follows_the_relation_of_its_ledger():
  ledger = accounting.PrivacyLedger(neighboring_relation=RELATION.REPLACE_ONE)
  sampler = sampling.PoissonSampler(num_examples=200, sampling_probability=0.2)
  plans = [
    tfdpflows.TrainingPlan(
      sampler,
      gradients.Flat(1.0),
      noise_multiplier=4.0,
      steps=10,
      delta=1e-4,
      **kwargs,
    )
    for kwargs in ({'ledger': ledger}, {})
  ]
  assert plans[0].epsilon() > 1.5 * plans[1].epsilon()


def test_a_density_model_trains_on_it():
  x = np.random.default_rng(0).normal(size=[200, 2]).astype('float32')
  plan = _plan(seed=0)
  model = tfdpflows.DensityModel(tfdpflows.flows.dp_nf(2, 1, [4], seed=0))
  model.compile(optimizer=plan.optimizer('adam', learning_rate=1e-2))
  assert model.fit(x, verbose=0).history == {}
  assert plan.remaining_steps == 0
  assert np.isfinite(model.log_prob(x)).all()
