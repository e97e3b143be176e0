"""ExpM+NF: known targets are recovered, and nothing is composed or saved."""

import copy
import math
import pickle

import numpy as np
import pytest
import tensorflow as tf

from tfdpflows import accounting, expm
from tfdpflows.expm import functional
from tfdpflows.randomness import Randomness

MEAN = np.array([1.0, -0.5], np.float32)
PRECISION = np.array([[2.0, 0.8], [0.8, 1.0]], np.float32)
BUDGET = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)


def gaussian(epsilon=2.0, **kwargs):
  """The mechanism whose law is N(MEAN, inverse of PRECISION / 2)."""

  def utility(theta):
    gap = theta - MEAN
    return -tf.reduce_sum(tf.matmul(gap, PRECISION) * gap, -1)

  return expm.ExponentialMechanism(
    utility, sensitivity=1.0, epsilon=epsilon, **kwargs
  )


def fitted(mechanism=None, steps=50, seed=0, **kwargs):
  sampler = expm.NoProofFlowSampler(
    mechanism or gaussian(),
    randomness=Randomness(seed=seed),
    **{'num_parameters': 2, 'layers': 2, **kwargs},
  )
  sampler.fit(steps=steps, num_samples=50)
  return sampler


@pytest.fixture(scope='module')
def small():
  return fitted()


def grid(low, high, count):
  axis = np.linspace(low, high, count)
  points = np.stack(np.meshgrid(axis, axis, indexing='ij'), -1).reshape(-1, 2)
  return points.astype(np.float32), (axis[1] - axis[0]) ** 2


@pytest.mark.parametrize(
  'units', [None, pytest.param(2, marks=pytest.mark.full)]
)
def test_recovers_a_gaussian(units):
  sampler = expm.NoProofFlowSampler(
    gaussian(),
    num_parameters=2,
    layers=4,
    units=units,
    randomness=Randomness(seed=0),
  )
  sampler.fit(steps=600, num_samples=150, patience=100)
  found = sampler.sample(
    5000, ledger=accounting.PrivacyLedger(), randomness=Randomness(seed=1)
  )
  covariance = np.linalg.inv(2 * PRECISION)
  np.testing.assert_allclose(found.mean(0), MEAN, atol=0.1)
  np.testing.assert_allclose(np.cov(found.T), covariance, atol=0.1)
  # The losses fall to the constant of the target.
  least = -0.5 * math.log((2 * math.pi) ** 2 * np.linalg.det(covariance))
  least += 1 + math.log(2 * math.pi)
  assert sampler.private_losses[-1] < sampler.private_losses[0]
  assert abs(sampler.private_losses[-1] - least) < 0.2


def test_recovers_the_posterior_of_a_logistic_regression():
  rng = np.random.default_rng(0)
  x = rng.normal(size=[300, 1]).astype(np.float32)
  y = (rng.uniform(size=300) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(float)
  utility = expm.l2_utility(functional.LogisticRegression(1), x, y)
  mechanism = expm.ExponentialMechanism(
    utility, sensitivity=1.0, epsilon=1.0, l2=0.05
  )
  sampler = expm.NoProofFlowSampler(
    mechanism, layers=4, units=2, base_scale=1.5, randomness=Randomness(seed=0)
  )
  sampler.fit(steps=400, num_samples=100, batch_size=100, patience=50)
  points, cell = grid(-8, 12, 101)
  weights = np.exp(mechanism.unnormalized_log_prob(points).numpy())
  weights /= weights.sum()
  flow = np.exp(sampler.private_log_prob(points))
  assert 0.97 < flow.sum() * cell < 1.03
  mean = weights @ points
  deviation = np.sqrt(weights @ (points - mean) ** 2)
  found = sampler.sample(
    4000, ledger=accounting.PrivacyLedger(), randomness=Randomness(seed=1)
  )
  assert np.all(np.abs(found.mean(0) - mean) < 0.3 * deviation)
  assert np.all(np.abs(found.std(0) / deviation - 1) < 0.3)
  # Total variation on the grid.
  assert np.abs(flow * cell - weights).sum() / 2 < 0.2


@pytest.mark.parametrize('units', [None, 2])
def test_the_density_is_that_of_the_samples(units):
  sampler = fitted(units=units)
  points, cell = grid(-8, 8, 161)
  density = np.exp(sampler.private_log_prob(points))
  assert abs(density.sum() * cell - 1) < 1e-3
  found = sampler.sample(
    20_000, ledger=accounting.PrivacyLedger(), randomness=Randomness(seed=2)
  )
  mean = (density * cell) @ points
  np.testing.assert_allclose(found.mean(0), mean, atol=0.05)
  second = (density * cell) @ points**2
  np.testing.assert_allclose((found**2).mean(0), second, rtol=0.05)


def test_each_sample_is_charged(small):
  ledger = accounting.PrivacyLedger(budget=BUDGET, allow_no_proof=True)
  assert small.sample(ledger=ledger).shape == (1, 2)
  assert small.sample(3, ledger=ledger, label='more').shape == (3, 2)
  assert [entry.count for entry in ledger.entries] == [1, 3]
  assert 'no privacy proof' in ledger.entries[0].label
  assert {x.event for x in ledger.entries} == {
    accounting.NoProofDpEvent('ExpM+NF', 2.0)
  }
  assert ledger.epsilon() == math.inf
  statement = accounting.privacy_statement(ledger)
  assert statement.claim.startswith('no privacy proof: 4 releases')
  # The training was seeded, the samples were not.
  assert statement.seeded


def test_refused_without_a_draw(small):
  drawn = []

  class Watched(Randomness):
    def numpy(self, *path):
      drawn.append(path)
      return super().numpy(*path)

  ledger = accounting.PrivacyLedger(budget=BUDGET)
  randomness = Watched(seed=0)
  with pytest.raises(accounting.BudgetExceededError, match='no privacy proof'):
    small.sample(ledger=ledger, randomness=randomness)
  assert not drawn
  assert not ledger.entries
  # Once allowed, the same random numbers are drawn once.
  free = accounting.PrivacyLedger()
  small.sample(ledger=free, randomness=randomness)
  with pytest.raises(ValueError, match='used already'):
    small.sample(ledger=free, randomness=randomness)


def test_interrupted_after_the_charge(small, tmp_path, monkeypatch):
  path = tmp_path / 'ledger'
  with (
    monkeypatch.context() as patched,
    accounting.PrivacyLedger(path) as ledger,
  ):
    patched.setattr(small, '_transformed', lambda z: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      small.sample(2, ledger=ledger, randomness=Randomness(seed=7))
  with accounting.PrivacyLedger.open(path) as ledger:
    assert ledger.entries[0].count == 2
    again = small.sample(
      2, ledger=ledger, randomness=Randomness(seed=7), resume=True
    )
    assert len(ledger.entries) == 1
  once = small.sample(
    2, ledger=accounting.PrivacyLedger(), randomness=Randomness(seed=7)
  )
  np.testing.assert_array_equal(again, once)


def test_a_flow_is_neither_saved_nor_copied(small):
  for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
    with pytest.raises(TypeError, match='as private as the rows'):
      attempt(small)
  assert not isinstance(small, tf.Module)
  public = [name for name in dir(small) if not name.startswith('_')]
  # What depends on the rows says so in its name.
  assert set(public) == {
    'fit',
    'mechanism',
    'num_parameters',
    'private_log_prob',
    'private_losses',
    'sample',
  }


def test_progress_shows_no_loss(capsys, monkeypatch):
  monkeypatch.setattr('sys.stderr.isatty', lambda: True, raising=False)
  sampler = fitted(steps=100, layers=1)
  shown = capsys.readouterr()
  assert not shown.out
  assert '100/100' in shown.err
  for loss in sampler.private_losses:
    assert f'{loss:.2f}' not in shown.err


def test_batches_see_every_row():
  seen = []

  class Utility:
    num_examples, num_parameters = 10, 1

    def __call__(self, parameters):
      return -tf.reduce_sum(parameters**2, -1)

    def estimate(self, parameters, rows=None):
      tf.numpy_function(lambda r: seen.append(r.copy()), [rows], [])
      return self(parameters)

  mechanism = expm.ExponentialMechanism(Utility(), sensitivity=1.0, epsilon=1.0)
  sampler = expm.NoProofFlowSampler(mechanism, layers=1)
  sampler.fit(steps=60, batch_size=5, num_samples=2)
  assert len(seen) == 60
  for start in range(0, 60, 2):
    assert sorted(np.concatenate(seen[start : start + 2])) == list(range(10))
  with pytest.raises(ValueError, match='batch_size needs'):
    fitted().fit(batch_size=3)


@pytest.mark.parametrize(
  ('kwargs', 'match'),
  [
    ({'num_parameters': None}, 'num_parameters'),
    ({'num_parameters': 0}, 'num_parameters'),
    ({'layers': 0}, 'layers'),
    ({'units': 3}, 'units'),
    ({'base_scale': 0.0}, 'base_scale'),
    ({'base_scale': math.nan}, 'base_scale'),
    ({'base_scale': [1.0, 2.0, 3.0]}, 'base_scale'),
  ],
)
def test_bad_parameters(kwargs, match):
  with pytest.raises(ValueError, match=match):
    expm.NoProofFlowSampler(gaussian(), **{'num_parameters': 2, **kwargs})


@pytest.mark.parametrize(
  'kwargs',
  [
    {'steps': 0},
    {'num_samples': 0},
    {'learning_rate': 0.0},
    {'momentum': 1.0},
    {'patience': 0},
  ],
)
def test_bad_training(kwargs, small):
  [name] = kwargs
  with pytest.raises(ValueError, match=name):
    small.fit(**kwargs)


def test_a_bounded_utility_needs_a_prior():
  utility = expm.l2_utility(
    functional.LogisticRegression(1), np.zeros([2, 1]), [0.0, 1.0]
  )
  mechanism = expm.ExponentialMechanism(utility, sensitivity=1.0, epsilon=1.0)
  with pytest.raises(ValueError, match='no integral'):
    expm.NoProofFlowSampler(mechanism)


def test_nothing_to_release():
  ledger = accounting.PrivacyLedger()
  sampler = expm.NoProofFlowSampler(gaussian(), num_parameters=2, layers=1)
  with pytest.raises(RuntimeError, match='fit'):
    sampler.sample(ledger=ledger)
  broken = fitted(layers=1, steps=1)
  broken._variables[0].assign(broken._variables[0] * math.nan)
  with pytest.raises(RuntimeError, match='not finite'):
    broken.sample(ledger=ledger)
  with pytest.raises(ValueError, match='not all finite'):
    broken.fit(steps=1)
  nan = expm.ExponentialMechanism(
    lambda theta: theta[:, 0] * math.nan, sensitivity=1.0, epsilon=1.0
  )
  with pytest.raises(ValueError, match='not finite'):
    fitted(nan)
  steep = expm.ExponentialMechanism(
    lambda theta: tf.where(
      tf.reduce_max(tf.abs(theta)) > 0.5, math.nan, theta[:, 0]
    ),
    sensitivity=1.0,
    epsilon=1.0,
  )
  with pytest.raises((ValueError, RuntimeError), match='finite'):
    fitted(steep, base_scale=0.1, steps=200)
  assert not ledger.entries
