"""Models of which no run shows that rows meet, and those that are proven."""

import contextlib
import logging

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tfdpflows import flows, gradients, optimizers, sampling
from tfdpflows._keras import keras, tfp
from tfdpflows.independence import checker

L = keras.layers
tfd = tfp.distributions
INTEGERS = tf.TensorSpec([None, 4], tf.int64), tf.TensorSpec([None])
FLOATS = tf.TensorSpec([None, 4]), tf.TensorSpec([None])


def _optimizer(**kwargs):
  return optimizers.DPKerasSGD(
    l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=9, **kwargs
  )


def _checked(layers, spec=FLOATS, loss='mse', optimizer=None, **kwargs):
  model = keras.Sequential(
    [keras.Input([4], dtype=spec[0].dtype), *layers, L.Dense(1)]
  )
  private = tfdpflows.PrivateModel(model, **kwargs)
  private.compile(_optimizer() if optimizer is None else optimizer, loss)
  assert private.checked_independence == ''
  private._checker.check(spec)
  return private.checked_independence


class _Masked(L.Layer):
  """Adds the mean of the batch where a mask says so, which is 0 at first."""

  def build(self, shape):
    self.mask = self.add_weight(
      'mask', [], tf.int64, initializer='zeros', trainable=False
    )

  def call(self, x):
    x = tf.cast(x, tf.int64)
    return tf.cast(x + self.mask * tf.reduce_max(x, 0), tf.float32)


def _annealed(optimizer):
  """Losses that come near to each other as training goes on."""

  def loss(y, p):
    losses = keras.losses.mse(y, p)
    late = optimizer.iterations > 1000
    return tf.where(late, losses - tf.reduce_mean(losses), losses)

  return loss


def _mined(y, p):
  losses = keras.losses.mse(y, p)
  count = tf.shape(losses)[0]
  largest = tf.math.top_k(losses, tf.minimum(64, count)).values
  return tf.where(losses >= largest[-1], losses, 0.0)


def _lagged(x):
  return x + tf.concat([0 * x[:7], x[:-7]], 0)


def _within_deviations(x, y):
  mean, variance = tf.nn.moments(x, [0])
  return tf.reduce_all(tf.abs(x - mean) <= 3 * tf.sqrt(variance), 1)


@pytest.mark.core
def test_statistics_and_gates_of_the_batch_are_refused():
  optimizer = _optimizer()
  for layers, kwargs in (
    ([_Masked()], {'spec': INTEGERS}),
    ([L.Dense(4)], {'loss': _annealed(optimizer), 'optimizer': optimizer}),
    ([L.Lambda(_lagged)], {}),
    ([L.Dense(4)], {'loss': _mined}),
    ([L.Dense(4)], {'usable': _within_deviations}),
  ):
    with pytest.raises(ValueError, match='mixes examples'):
      _checked(layers, **kwargs)


@pytest.mark.core
def test_what_is_refused_names_layer_and_operation():
  with pytest.raises(ValueError, match='layer mask mixes.*operation Max'):
    _checked([_Masked(name='mask')], INTEGERS)


@pytest.mark.core
def test_what_changes_nothing_can_be_declared():
  layers = [_Masked()]
  assert _checked(layers, INTEGERS, examples_independent=True) == 'declared'


@contextlib.contextmanager
def _logged(caplog, level=logging.WARNING):
  logger = logging.getLogger('absl')
  old, logger.propagate = logger.propagate, True
  try:
    caplog.set_level(level, logger='absl')
    yield
  finally:
    logger.propagate = old


@pytest.mark.core
def test_what_has_no_rule_is_only_tested(caplog):
  with _logged(caplog):
    layer = L.Lambda(lambda x: x + _until_small(x), name='searches')
    assert _checked([layer]) == 'tested'
  said = [r.getMessage() for r in caplog.records if 'not proven' in r.message]
  assert len(said) == 1 and 'The layer searches' in said[0]


def test_what_was_not_compared_is_told_where_nothing_is_proven(caplog):
  """Keras alone has no row for the ids; the rule of the layer has zeros."""
  searching = L.Lambda(lambda x: x + _until_small(x))
  with _logged(caplog):
    assert _checked([L.Embedding(5, 3), L.Flatten()], INTEGERS) == 'proven'
    assert not caplog.records
    layers = [L.Embedding(5, 3), L.Flatten(), searching]
    assert _checked(layers, INTEGERS) == 'tested'
  said = [r.getMessage() for r in caplog.records if 'compared' in r.message]
  assert len(said) == len(set(said)) and 'is not in [0, 5)' in said[0]


def test_a_check_that_takes_long_is_told_before_it(caplog, monkeypatch):
  monkeypatch.setattr(checker, '_SLOW', 0.0)
  with _logged(caplog, logging.INFO):
    _checked([])
  (said,) = [
    r.message for r in caplog.records if 'before it trains' in r.message
  ]
  assert said.endswith('once: about 1 minute.')


def _until_small(x):
  """Each row halves what it has until it is small, however long others take."""

  def halve(y):
    return [tf.where(y > 0.1, y / 2, y)]

  any_left = lambda y: tf.reduce_any(y > 0.1)
  return tf.while_loop(any_left, halve, [x], maximum_iterations=100)[0]


NETWORKS = {
  'dense': lambda: [L.Dense(4, 'relu'), L.Dropout(0.5), L.LayerNormalization()],
  'convolution': lambda: [
    L.Reshape([2, 2, 1]),
    L.Conv2D(3, 2, padding='same'),
    L.GroupNormalization(3),
    L.MaxPool2D(2, 1),
    L.Flatten(),
  ],
  'convolution in groups': lambda: [
    L.Dense(32),
    L.Reshape([4, 8]),
    L.Conv1D(8, 2, groups=2, padding='causal'),
    L.Reshape([2, 2, 8]),
    L.Conv2D(8, 2, groups=4, padding='same'),
    L.Reshape([2, 2, 2, 4]),
    L.Conv3D(4, 2, groups=2),
    L.Flatten(),
  ],
  'recurrent': lambda: [L.Reshape([4, 1]), L.LSTM(3)],
  'augmentation': lambda: [L.Reshape([2, 2, 1]), L.RandomFlip(), L.Flatten()],
  'without a rule': lambda: [L.PReLU()],
  # It draws numbers column by column, so that others belong to a row where the
  # batch has another size.
  'latent variables': lambda: [
    L.Dense(4),
    L.Lambda(lambda x: tfd.MultivariateNormalDiag(x).sample()),
  ],
}


@pytest.mark.core
@pytest.mark.parametrize('name', NETWORKS)
def test_ordinary_networks_are_proven(name):
  assert _checked(NETWORKS[name]()) == 'proven'


@pytest.mark.core
def test_other_random_numbers_in_other_batches_are_refused_without_a_proof():
  def call(x):
    by_column = tf.random.normal([4, tf.shape(x)[0]])
    return _until_small(x) + tf.transpose(by_column)

  with pytest.raises(
    ValueError, match='other random numbers for a batch of an'
  ):
    _checked([L.Lambda(call)])
  assert _checked([L.Lambda(call)], examples_independent=True) == 'tested'


@pytest.mark.core
def test_several_draws_of_an_example_are_proven():
  optimizer = _optimizer(augmentation_multiplicity=2)
  assert _checked([L.GaussianNoise(0.1), L.PReLU()], optimizer=optimizer) == (
    'proven'
  )


@pytest.mark.core
def test_embeddings_and_hinge_losses_are_proven():
  layers = lambda: [L.Embedding(5, 3), L.Flatten()]
  assert _checked(layers(), INTEGERS) == 'proven'
  hinge = keras.losses.CategoricalHinge()
  assert _checked([L.Dense(4)], loss=lambda y, p: hinge.fn(y, p)) == 'proven'
  assert _checked([L.Dense(4)], loss=keras.losses.SquaredHinge()) == 'proven'


@pytest.mark.core
def test_tables_of_the_sizes_of_hashes_are_proven():
  assert _checked([L.Embedding(10007, 1), L.Flatten()], INTEGERS) == 'proven'


@pytest.mark.core
def test_a_squeeze_of_all_axes_is_refused():
  """Of one row alone it takes the axis of rows away."""
  column = lambda x: tf.squeeze(x[:, :1])
  layers = [L.Lambda(lambda x: tf.reshape(column(x), [tf.shape(x)[0], 1]))]
  with pytest.raises(ValueError, match='Squeeze drops all axes'):
    _checked(layers)


def test_flows_are_proven():
  flow = flows.masked_autoregressive_flow(4, 2, [8], seed=0)
  model = tfdpflows.DensityModel(flow)
  model.compile(_optimizer())
  model._checker.check(FLOATS[0])
  assert model.checked_independence == 'proven'


def test_where_all_functions_run_eagerly_nothing_is_proven():
  tf.config.run_functions_eagerly(True)
  try:
    assert _checked([L.Dense(4)]) == 'tested'
  finally:
    tf.config.run_functions_eagerly(False)


def test_strategies_do_not_matter():
  for clipping in (gradients.PerLayer(1.0), gradients.PerUnit(1.0)):
    optimizer = optimizers.DPKerasSGD(
      clipping=clipping, noise_multiplier=1.0, expected_batch_size=9
    )
    assert _checked([L.Dense(4)], optimizer=optimizer) == 'proven'


def test_made_anew_a_model_is_checked_anew():
  model = keras.Sequential([L.Dense(3)])
  private = tfdpflows.PrivateModel(model)
  private.compile(_optimizer(), 'mse')
  private._checker.check(FLOATS)
  assert private.checked_independence == 'proven'
  private._checker.forget()
  assert private.checked_independence == ''
  rows = np.zeros([9, 4], 'float32')
  private.compile(_optimizer(), 'mse')
  private.fit(rows, np.zeros([9, 3], 'float32'), batch_size=9, verbose=0)
  assert private.checked_independence == 'proven'


class _LaterMixing(L.Layer):
  """Takes the mean of the batch, but not in the first calls in Python."""

  def __init__(self, first):
    super().__init__()
    self.first, self.calls = first, 0

  def call(self, x):
    self.calls += 1
    return x if self.calls <= self.first else tf.reduce_mean(x, 0) + 0 * x


def _trained_with(layer, **kwargs):
  x = np.ones([30, 4], 'float32')
  plan = tfdpflows.TrainingPlan(
    sampling.PoissonSampler(num_examples=30, sampling_probability=0.3),
    gradients.Flat(1.0),
    noise_multiplier=1.0,
    steps=2,
    delta=1e-4,
  )
  model = keras.Sequential([keras.Input([4]), layer, L.Dense(1)])
  private = tfdpflows.PrivateModel(model)
  private.compile(plan.optimizer('sgd', learning_rate=0.1), 'mse', **kwargs)
  private.fit(x, np.ones([30, 1], 'float32'), verbose=0)
  return layer.calls


def test_the_graph_that_was_checked_is_what_trains():
  calls = _trained_with(_LaterMixing(10**6))
  with pytest.raises(ValueError, match='mixes examples'):
    _trained_with(_LaterMixing(calls - 1))
  # Python would have mixed rows in the graph of the step, had it run again.
  assert _trained_with(_LaterMixing(calls)) == calls
