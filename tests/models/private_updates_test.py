"""`PrivateModel`: draws, chunks and averages; updates outside of `fit`."""

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tests.unproven import proven
from tfdpflows import gradients, optimizers, sampling
from tfdpflows._keras import keras

L = keras.layers
N = 40


def _data():
  rng = np.random.default_rng(0)
  return rng.normal(size=[N, 4]).astype('float32'), rng.integers(0, 3, N)


class _Augmented(L.Layer):
  """Moves the first and the second of two draws apart."""

  def call(self, x):
    numbers = tf.range(tf.shape(x)[0]) % 2
    return x + tf.cast(numbers, x.dtype)[:, None]


def _model(*layers):
  keras.utils.set_random_seed(0)
  return keras.Sequential(
    [keras.Input([4]), *layers, L.Dense(5, 'tanh'), L.Dense(3)]
  )


def _private(model, declared=False, **kwargs):
  private = tfdpflows.PrivateModel(model, examples_independent=declared)
  optimizer = optimizers.DPKerasSGD(
    l2_norm_clip=0.5,
    noise_multiplier=0.0,
    expected_batch_size=N,
    learning_rate=1.0,
    **kwargs,
  )
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  private.compile(optimizer, loss)
  return private


def _step(private, **kwargs):
  """Returns the update of one step over all rows."""
  before = [v.numpy() for v in private.model.trainable_variables]
  x, y = _data()
  private.fit(x, y, batch_size=N, shuffle=False, verbose=0, **kwargs)
  after = private.model.trainable_variables
  return [old - new.numpy() for old, new in zip(before, after)]


@pytest.mark.parametrize('size', thinned([16, None], 1))
@proven()
def test_draws_are_averaged_before_the_clip(size):
  model = _model()
  x, y = _data()
  with tf.GradientTape(persistent=True) as tape:
    losses = 0.5 * sum(
      keras.losses.sparse_categorical_crossentropy(
        y, model(x + move), from_logits=True
      )
      for move in (0.0, 1.0)
    )
  jacobian = tape.jacobian(
    losses, model.trainable_variables, experimental_use_pfor=False
  )
  jacobian = [j.numpy() for j in jacobian]
  norms = np.sqrt(sum(np.sum(j.reshape(N, -1) ** 2, 1) for j in jacobian))
  scale = np.minimum(1, 0.5 / norms)
  assert np.any(scale < 1)
  private = _private(
    _model(_Augmented()),
    # It draws by the place in the batch, so that draws can be repeated.
    declared=True,
    augmentation_multiplicity=2,
    chunk_size=size,
  )
  for found, j in zip(_step(private), jacobian):
    expected = np.tensordot(scale, j, 1) / N
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_chunks_give_the_same_update_with_weights_of_rows_too():
  whole, parts = _private(_model()), _private(_model(), chunk_size=16)
  for weights in (None, np.r_[np.zeros(20), np.full(20, 2.0)]):
    updates = [_step(model, sample_weight=weights) for model in (whole, parts)]
    for a, b in zip(*updates):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('built', [True, False])
def test_weights_are_averaged_over_steps(built):
  keras.utils.set_random_seed(0)
  layers = [keras.Input([4])] * built + [L.Dense(1)]
  private = tfdpflows.PrivateModel(keras.Sequential(layers), ema_momentum=0.5)
  optimizer = optimizers.DPKerasSGD(
    l2_norm_clip=1.0,
    noise_multiplier=0.1,
    expected_batch_size=10,
    learning_rate=1.0,
  )
  private.compile(optimizer, 'mse')
  x, y = _data()
  seen = []
  callback = keras.callbacks.LambdaCallback(
    on_batch_end=lambda batch, logs: seen.append(
      private.model.trainable_variables[0].numpy()
    )
  )
  if not built:
    private.model(x[:1])
  average = private.model.trainable_variables[0].numpy()
  private.fit(x, y, batch_size=10, verbose=0, callbacks=[callback])
  for t, weights in enumerate(seen, 1):
    momentum = min(0.5, t / (9 + t))
    average = momentum * average + (1 - momentum) * weights
  kernel = private.model.trainable_variables[0]
  np.testing.assert_allclose(kernel, average, rtol=1e-5, atol=1e-6)


def test_updates_outside_of_fit_are_refused_under_a_plan():
  """The compiled step is left behind by `fit`: it must not run for free."""
  x, y = _data()
  plan = tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=N, sampling_probability=0.5),
    gradients.Flat(1.0),
    noise_multiplier=1.0,
    steps=4,
    delta=1e-4,
    seed=0,
  )
  private = tfdpflows.PrivateModel(keras.Sequential([L.Dense(1)]))
  private.compile(plan.optimizer('sgd', learning_rate=1.0), 'mse')
  private.fit(x, y, epochs=1, verbose=0)
  before = [v.numpy() for v in private.model.trainable_variables]
  for step in (0, plan.step, plan.steps):
    one = ((x, y), np.ones(N, 'float32'), np.int64(step))
    batch = tf.data.Dataset.from_tensors(one)
    for function in (private.train_function, private.train_tf_function):
      with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        function(iter(batch))
  with pytest.raises(ValueError, match='use fit'):
    private.train_on_batch(x, y)
  for old, new in zip(before, private.model.trainable_variables):
    np.testing.assert_array_equal(old, new)
