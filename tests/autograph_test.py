"""What users write may decide in Python by a tensor, whoever calls it."""

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tfdpflows import gradients, sampling
from tfdpflows._keras import keras

X = np.random.default_rng(0).normal(size=[60, 2]).astype('float32')
Y = X[:, :1] + 1


def _optimizer():
  plan = tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=60, sampling_probability=0.2),
    gradients.Flat(1.0),
    noise_multiplier=2.0,
    steps=2,
    delta=1e-4,
    seed=0,
  )
  return plan.optimizer('sgd', learning_rate=0.1)


def _doubled(x):
  if tf.constant(2) > 1:
    result = 2 * x
  else:
    result = x
  return result


class _Doubled(keras.layers.Layer):
  def call(self, x):
    return _doubled(x)


class _Squares(keras.losses.Loss):
  def call(self, y_true, y_pred):
    return _squares(y_true, y_pred)


def _squares(y_true, y_pred):
  return tf.reduce_mean((_doubled(y_true) - _doubled(y_pred)) ** 2, -1)


def _usable(x, unused_y):
  return tf.reduce_all(_doubled(x) < 100.0, 1)


@pytest.mark.parametrize('loss', [_squares, _Squares()])
def test_layers_losses_and_usable(loss):
  network = keras.Sequential([_Doubled(), keras.layers.Dense(1)])
  model = tfdpflows.PrivateModel(network, usable=_usable)
  model.compile(optimizer=_optimizer(), loss=loss)
  model.fit(X, Y, verbose=0)
  assert model.optimizer.iterations == 2


class _Called(keras.Model):
  """Decides in its `__call__`, before that of Keras."""

  def __init__(self, decide):
    super().__init__()
    self.dense, self.decide = keras.layers.Dense(1), decide

  def __call__(self, x, training=None):
    return super().__call__(self.decide(x), training=training)

  def call(self, x):
    return self.dense(x)


def test_models_with_a_call_of_their_own():
  model = tfdpflows.PrivateModel(_Called(_doubled))
  model.compile(optimizer=_optimizer(), loss='mse')
  model.fit(X, Y, verbose=0)
  assert model.optimizer.iterations == 2


def test_what_only_a_conversion_shows_is_refused():
  """Unconverted it is an error that is caught, and nothing is decided."""

  def hidden(x):
    try:
      if tf.reduce_max(x) > 20.0:
        x = 0.0 * x
    except TypeError:
      pass
    return x

  model = tfdpflows.PrivateModel(_Called(hidden))
  model.compile(optimizer=_optimizer(), loss='mse')
  with pytest.raises(ValueError, match='for another'):
    model.fit(X, Y, verbose=0)


def test_preprocessing():
  flow = tfdpflows.flows.masked_autoregressive_flow(2, num_blocks=1)
  model = tfdpflows.DensityModel(flow, _doubled)
  model.compile(optimizer=_optimizer())
  model.fit(X, verbose=0)
  assert model.optimizer.iterations == 2


def test_errors_are_what_the_user_has_raised():
  def loss(y_true, unused_y_pred):
    raise ValueError(f'{_doubled(y_true).shape.rank} axes.')

  model = tfdpflows.PrivateModel(keras.Sequential([keras.layers.Dense(1)]))
  model.compile(optimizer=_optimizer(), loss=loss)
  with pytest.raises(ValueError, match='^2 axes.$'):
    model.fit(X, Y, verbose=0)
