"""Rows whose label no loss can be computed for: they add nothing."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tests.grids import thinned
from tfdpflows import gradients, optimizers, sampling
from tfdpflows._keras import keras

L = keras.layers
N = 30
BAD = 3


def _x():
  return np.random.default_rng(0).normal(size=[N, 4]).astype('float32')


def _labels(bad, dtype='int64'):
  y = np.random.default_rng(1).integers(0, 2, N).astype(dtype)
  y[BAD] = bad
  return y


def _model(*layers):
  keras.utils.set_random_seed(0)
  return keras.Sequential([keras.Input([4]), *layers])


def _trainer(model, loss, optimizer=None, **kwargs):
  """Returns a function that trains without noise, always from the same start.

  And perhaps without the row. It returns weights and what `fit` says.
  """
  private = tfdpflows.PrivateModel(model, usable=kwargs.pop('usable', None))
  private.compile(
    optimizers.DPKerasSGD(
      l2_norm_clip=1.0,
      noise_multiplier=0.0,
      expected_batch_size=N,
      learning_rate=1.0,
      **(optimizer or {}),
    ),
    loss,
    **kwargs,
  )
  start = model.get_weights()

  def trained(x, y, without=False):
    if without:
      x, y = np.delete(x, BAD, 0), np.delete(y, BAD, 0)
    model.set_weights(start)
    history = private.fit(x, y, batch_size=N, shuffle=False, verbose=0)
    return model.get_weights(), history.history

  return trained


def _trained(model, loss, x, y, without=False, **kwargs):
  return _trainer(model, loss, **kwargs)(x, y, without)


def _same(one, other):
  assert len(one) == len(other)
  for a, b in zip(one, other):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def _entropy(**kwargs):
  return keras.losses.SparseCategoricalCrossentropy(**kwargs)


LOSSES = {
  'logits': (L.Dense(2).get_config(), lambda: _entropy(from_logits=True)),
  'probabilities': (L.Dense(2, 'softmax').get_config(), _entropy),
  'name': (
    L.Dense(2, 'softmax').get_config(),
    lambda: 'sparse_categorical_crossentropy',
  ),
  'function': (
    L.Dense(2, 'softmax').get_config(),
    lambda: keras.losses.sparse_categorical_crossentropy,
  ),
  'partial': (
    L.Dense(2).get_config(),
    lambda: functools.partial(
      keras.losses.sparse_categorical_crossentropy,
      from_logits=True,
      ignore_class=255,
    ),
  ),
  'ignore_class': (
    L.Dense(2).get_config(),
    lambda: _entropy(from_logits=True, ignore_class=255),
  ),
}


@functools.cache
def _without_the_row(name):
  """The same for all that compute one loss: no label left is a bad one."""
  config, loss = LOSSES[name]
  model = _model(L.Dense.from_config(config))
  return _trained(model, loss(), _x(), _labels(0), without=True)[0]


@pytest.mark.parametrize(
  ('name', 'bad'),
  thinned(
    itertools.product(LOSSES, [7, -1, 2**40]),
    # A name stands for the function.
    lambda point: point[1] == 7 and point[0] != 'function',
  ),
)
def test_a_label_that_is_no_class_adds_nothing(name, bad):
  """It ended training, with the labels of the whole batch in the error."""
  config, loss = LOSSES[name]
  make = lambda: _model(L.Dense.from_config(config))
  x, y = _x(), _labels(bad)
  start = make().get_weights()
  found, _ = _trained(make(), loss(), x, y)
  of_logits = config['activation'] == 'linear'
  _same(found, _without_the_row('logits' if of_logits else 'probabilities'))
  assert any(np.any(a != b) for a, b in zip(start, found))


@pytest.mark.parametrize(
  ('how', 'bad'),
  thinned(
    [
      (how, bad)
      for bad in (7, np.nan, np.inf, -1)
      for how in ('run_eagerly', 'jit_compile')
    ],
    lambda point: (
      point[0] == ('jit_compile' if point[1] == 7 else 'run_eagerly')
      and (point[1] == 7 or np.isnan(point[1]))
    ),
  ),
)
def test_labels_under_xla_and_eagerly(how, bad):
  x, y = _x(), _labels(bad, 'float32')
  loss = _entropy(from_logits=True)
  found, _ = _trained(_model(L.Dense(2)), loss, x, y, **{how: True})
  _same(found, _without_the_row('logits'))


@pytest.mark.parametrize('jit_compile', thinned([False, True], 1))
def test_ignored_labels_are_no_bad_ones(jit_compile):
  """A position to ignore; one that is no class leaves its whole row out."""
  model = _model(L.Reshape([2, 2]), L.Dense(2))
  y = np.stack([_labels(0), _labels(255)], 1)
  loss = _entropy(from_logits=True, ignore_class=255)
  trained = _trainer(model, loss, jit_compile=jit_compile)
  found, _ = trained(_x(), y)
  without, _ = trained(_x(), y, without=True)
  assert any(np.any(a != b) for a, b in zip(found, without))
  y[BAD, 0] = 254
  found, _ = trained(_x(), y)
  _same(found, without)


@pytest.mark.parametrize('recurrent', thinned([False, True], 1))
def test_labels_that_a_mask_leaves_out_need_no_class(recurrent):
  keras.utils.set_random_seed(0)
  between = [L.SimpleRNN(3, return_sequences=True)] if recurrent else []
  model = keras.Sequential(
    [keras.Input([3, 4]), L.Masking(), *between, L.Dense(2)]
  )
  trainer = _trainer(model, _entropy(from_logits=True))

  def trained(padding, without=False):
    x = np.repeat(_x()[:, None], 3, 1)
    x[:, 2] = 0
    y = np.stack([_labels(0), _labels(1), np.full(N, padding)], 1)
    return trainer(x, y, without)[0]

  found = trained(-1)
  _same(found, trained(1))
  without = trained(-1, without=True)
  assert any(np.any(a != b) for a, b in zip(found, without))


def test_the_other_output_of_such_a_row_adds_nothing_either():
  keras.utils.set_random_seed(0)
  features = keras.Input([4])
  model = keras.Model(features, [L.Dense(2)(features), L.Dense(1)(features)])
  trained = _trainer(model, [_entropy(from_logits=True), 'mse'])
  x, y, target = _x(), _labels(7), _x()[:, :1]
  rest = [np.delete(a, BAD, 0) for a in (x, y, target)]
  found, _ = trained(x, (y, target))
  _same(found, trained(rest[0], tuple(rest[1:]))[0])


def test_such_a_row_is_not_in_the_released_loss():
  loss = _entropy(from_logits=True)
  trained = _trainer(_model(L.Dense(2)), loss, optimizer={'loss_bound': 5.0})
  x, y = _x(), _labels(7)
  _, found = trained(x, y)
  _, rest = trained(x, y, without=True)
  np.testing.assert_allclose(found['loss'], rest['loss'], rtol=1e-5)


@pytest.mark.parametrize('jit_compile', thinned([False, True], 1))
def test_rows_of_a_loss_of_ones_own_are_named(jit_compile):
  """`usable`: the row meets neither the layers nor the loss."""
  make = lambda: _model(L.Dense(2))
  own = lambda y, p: keras.losses.sparse_categorical_crossentropy(
    y, p, from_logits=True
  )
  x, y = _x(), _labels(7)
  with pytest.raises(ValueError, match='cannot be computed where rows hold -1'):
    _trained(make(), own, x, y)
  usable = lambda x, y: tf.logical_and(y >= 0, y < 2)
  trained = _trainer(make(), own, usable=usable, jit_compile=jit_compile)
  found, _ = trained(x, y)
  _same(found, trained(x, y, without=True)[0])


def test_usable_must_look_at_each_row_alone():
  usable = lambda x, y: tf.fill(tf.shape(y)[:1], tf.reduce_max(x) < 0.9)
  with pytest.raises(ValueError, match='mixes examples|not finite'):
    _trained(_model(L.Dense(2)), 'mse', _x(), _x()[:, :2], usable=usable)
  usable = lambda x, y: x > 0
  with pytest.raises(ValueError, match='one bool for each row'):
    _trained(_model(L.Dense(2)), 'mse', _x(), _x()[:, :2], usable=usable)


@pytest.mark.parametrize('name', thinned(['hinge', 'squared_hinge'], 1))
def test_hinge_losses_read_each_label_by_itself(name):
  """Keras reads 0 as -1 only where all labels of the batch are 0 or 1."""
  trained = _trainer(_model(L.Dense(1)), name)
  x = _x()
  plain = _labels(0, 'float32')
  signed = 2 * plain - 1
  found, _ = trained(x, plain)
  _same(found, trained(x, signed)[0])
  odd = plain.copy()
  odd[BAD] = np.nan
  found, _ = trained(x, odd)
  _same(found, trained(x, plain, without=True)[0])


def test_under_a_plan_training_goes_on():
  """The same noise, and the row left out in two ways."""

  def trained(x, y):
    plan = tfdpflows.TrainingPlan(
      sampling.PoissonSampler(num_examples=N, sampling_probability=0.9),
      gradients.Flat(1.0),
      noise_multiplier=0.5,
      steps=4,
      delta=1e-4,
      seed=0,
    )
    model = _model(L.Dense(2))
    private = tfdpflows.PrivateModel(model)
    private.compile(
      plan.optimizer('adam', learning_rate=0.1), _entropy(from_logits=True)
    )
    private.fit(x, y, verbose=0)
    assert plan.remaining_steps == 0
    return model.get_weights()

  x = _x()
  x[BAD] = np.nan
  _same(trained(_x(), _labels(7)), trained(x, _labels(1)))


@pytest.mark.parametrize(
  'loss', thinned(['mse', 'binary_crossentropy', 'poisson'], 1)
)
def test_targets_features_and_weights_that_are_not_finite(loss):
  trained = _trainer(_model(L.Dense(1, 'sigmoid')), loss)
  y = _labels(1, 'float32')
  without, _ = trained(_x(), y, without=True)
  for bad in (np.nan, np.inf):
    found, _ = trained(_x(), _labels(bad, 'float32'))
    _same(found, without)
    x = _x()
    x[BAD] = bad
    found, _ = trained(x, y)
    _same(found, without)


@pytest.mark.parametrize('value', [None, 0.5])
def test_a_loss_gives_a_tensor(value):
  model = tfdpflows.PrivateModel(keras.Sequential([keras.layers.Dense(1)]))
  optimizer = optimizers.DPKerasSGD(
    l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=9
  )
  model.compile(optimizer, lambda y, p: value)
  spec = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])
  with pytest.raises(ValueError, match='gives .*, and must give one number'):
    model._checker.check(spec)
