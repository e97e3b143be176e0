"""Flows trained privately on tables that nobody would wish for."""

import numpy as np
import pytest

import tfdpflows
from tests.grids import thinned
from tfdpflows import accounting, flows, gradients, sampling
from tfdpflows._keras import keras


def _train(x, steps=20, **kwargs):
  plan = tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=len(x), sampling_probability=0.5),
    gradients.Flat(5.0),
    noise_multiplier=0.3,
    steps=steps,
    delta=1e-4,
    seed=0,
  )
  model = tfdpflows.DensityModel(
    flows.dp_nf(x.shape[1], 1, [8], seed=0, num_bins=4, **kwargs),
    ema_momentum=0.9,
  )
  model.compile(optimizer=plan.optimizer('adam', learning_rate=0.02))
  model.fit(x, verbose=0)
  return model


def _finite(model, x):
  assert all(np.isfinite(v).all() for v in model.distribution.variables)
  return np.isfinite(model.log_prob(x)).all()


@pytest.mark.parametrize('transform', thinned(['affine', 'spline'], 1))
def test_duplicates_constant_columns_and_nan_leave_a_finite_model(transform):
  """An infinite ridge of likelihood: one point, many times, and a line."""
  x = np.random.default_rng(0).normal(size=[60, 4]).astype('float32')
  x[:30] = x[0]
  x[:, 2] = 0.25
  x[31], x[32, 1], x[33], x[34] = np.nan, np.nan, np.inf, 3e38
  model = _train(x, 60, transform=transform, actnorm=True)
  assert _finite(model, np.delete(x, [31, 32, 33, 34], 0))
  assert np.isfinite(model.sample(50, seed=0)).all()


def test_fewer_rows_than_columns():
  x = np.random.default_rng(0).normal(size=[3, 10]).astype('float32')
  model = _train(x)
  assert _finite(model, x)
  assert _finite(model, np.zeros([1, 10], 'float32'))


def test_a_table_of_nan_trains_on_noise_alone():
  model = _train(np.full([20, 2], np.nan, 'float32'), steps=5)
  assert _finite(model, np.zeros([1, 2], 'float32'))


@pytest.mark.core
@pytest.mark.parametrize('accountant', ['pld', 'rdp'])
def test_a_budget_too_small_for_one_step_is_refused_in_words(accountant):
  kwargs = {
    'delta': 1e-12,
    'num_examples': 300,
    'expected_batch_size': 100,
    'steps': 1,
    'clipping': gradients.Flat(1.0),
    'accountant': accountant,
  }
  with pytest.raises(
    accounting.BudgetExceededError, match='No noise multiplier.*larger budget'
  ):
    tfdpflows.TrainingPlan.for_epsilon(epsilon=1e-9, **kwargs)
  with pytest.raises(ValueError, match='epsilon must be .* above zero'):
    tfdpflows.TrainingPlan.for_epsilon(epsilon=0.0, **kwargs)


@pytest.mark.core
def test_training_log_names_nothing_private(capsys):
  """What callbacks and the terminal see says no more than the plan."""
  seen = []
  callback = keras.callbacks.LambdaCallback(
    on_batch_end=lambda batch, logs: seen.append(logs),
    on_epoch_end=lambda epoch, logs: seen.append(logs),
  )
  x = np.random.default_rng(0).normal(size=[40, 2]).astype('float32')
  x[::2] *= 100
  plan = tfdpflows.TrainingPlan(
    sampling.FixedSizeSampler(num_examples=40, batch_size=20),
    gradients.Flat(1.0),
    noise_multiplier=1.0,
    steps=4,
    delta=1e-4,
    seed=0,
  )
  model = tfdpflows.DensityModel(flows.dp_nf(2, 1, [4]))
  model.compile(optimizer=plan.optimizer('sgd', learning_rate=0.1))
  assert model.fit(x, verbose=2, callbacks=[callback]).history == {}
  assert seen and all(not logs for logs in seen)
  # Epochs and times.
  assert 'loss' not in capsys.readouterr().out
