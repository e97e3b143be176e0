"""GRU-D as a Keras layer: per-example gradients, and training with DP-SGD."""

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tfdpflows import gradients
from tfdpflows._keras import keras
from tfdpflows.expm import functional

MODEL = functional.GRUD(num_features=3, num_steps=3, units=2)


def _rows(count, seed=0):
  x = np.random.default_rng(seed).normal(size=[count, *MODEL.row_shape])
  x[:, :, 1] = x[:, :, 1] > 0
  x[:, :, 2] = np.abs(x[:, :, 2])
  return x.astype('float32')


def _model(seed=0):
  vector = np.random.default_rng(seed).normal(size=MODEL.num_parameters)
  return MODEL.from_vector(vector)


@pytest.mark.parametrize(
  'xla', [False, pytest.param(True, marks=pytest.mark.full)]
)
def test_per_example_gradients_are_those_of_the_jacobian(xla):
  model, x = _model(), _rows(5)
  with tf.GradientTape(persistent=True) as tape:
    loss = tf.sin(model(x))[:, 0]
  variables = model.trainable_variables
  jacobian = tape.jacobian(loss, variables, experimental_use_pfor=False)
  squared = sum(np.sum(np.reshape(j, [5, -1]) ** 2, 1) for j in jacobian)
  clip = float(np.median(np.sqrt(squared)))

  @tf.function(jit_compile=xla)
  def clipped():
    with gradients.PerExampleTape() as tape:
      loss = tf.sin(_with_primitives(model, x))[:, 0]
    found = tape.per_example_gradients(loss, variables)
    return found.squared_norms(), gradients.Flat(clip).clip_and_sum(found)

  found_squared, found = clipped()
  np.testing.assert_allclose(found_squared, squared, rtol=1e-5)
  scale = np.minimum(1, clip / np.sqrt(squared))
  for sums, j in zip(found, jacobian):
    expected = np.tensordot(scale, j, 1)
    atol = 1e-5 * max(1, np.abs(expected).max())
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=atol)


def _with_primitives(model, x):
  layer, last = model.layers
  return gradients.linear(layer(x), last.kernel, last.bias)


def test_dp_sgd_trains_it_and_examples_are_proven_independent():
  rng = np.random.default_rng(0)
  x = _rows(400)
  y = (x[:, -1, :1, 0] * x[:, -1, 1:2, 0] > 0).astype('float32')
  plan = tfdpflows.TrainingPlan(
    tfdpflows.sampling.PoissonSampler(
      num_examples=400, sampling_probability=0.25
    ),
    gradients.Flat(1.0),
    noise_multiplier=0.5,
    steps=30,
    seed=0,
  )
  vector = 0.3 * rng.normal(size=MODEL.num_parameters)
  network = MODEL.from_vector(vector)
  model = tfdpflows.PrivateModel(network)
  loss = keras.losses.BinaryCrossentropy(from_logits=True)
  model.compile(plan.optimizer('adam', learning_rate=0.1), loss)
  before = loss(y, network(x))
  model.fit(x, y, verbose=0)
  assert model.checked_independence == 'proven'
  assert loss(y, network(x)) < before - 0.05


def test_without_observations_values_decay_and_states_are_finite():
  layer = tfdpflows.networks.GRUD(2)
  x = _rows(3)
  x[:, :, 1] = 0
  x[:, :, 2] = 1e6
  assert np.all(np.isfinite(layer(x)))


def test_config_and_bad_shapes():
  layer = tfdpflows.networks.GRUD(3, name='series')
  again = tfdpflows.networks.GRUD.from_config(layer.get_config())
  assert (again.units, again.name) == (3, 'series')
  with pytest.raises(ValueError, match='units'):
    tfdpflows.networks.GRUD(0)
  for shape in ([2, 4, 2, 3], [2, 4, 9]):
    with pytest.raises(ValueError, match='steps, 3, features|compatible'):
      layer(tf.zeros(shape))
