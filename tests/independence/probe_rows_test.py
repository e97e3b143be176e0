"""Models that mix examples only where rows or gradients are large."""

import numpy as np
import pytest
import tensorflow as tf

import tfdpflows
from tfdpflows import gradients, optimizers
from tfdpflows._keras import keras, tfp
from tfdpflows.independence import probe_rows, runs

L = keras.layers
tfb, tfd = tfp.bijectors, tfp.distributions
SPEC = tf.TensorSpec([None, 4]), tf.TensorSpec([None])


def _optimizer():
  return optimizers.DPKerasSGD(
    l2_norm_clip=1.0, noise_multiplier=1.0, expected_batch_size=9
  )


def _checked(*layers):
  model = keras.Sequential([*layers, L.Dense(1)])
  private = tfdpflows.PrivateModel(model)
  private.compile(_optimizer(), 'mse')
  private._checker.check(SPEC)


def _any_nan(x):
  bad = tf.reduce_any(tf.math.is_nan(x))
  return tf.where(bad, tf.zeros_like(x), x)


MIXING = {
  'bytes': lambda x: tf.cond(tf.reduce_max(x) > 1, lambda: x / 255, lambda: x),
  'maximum': lambda x: x / tf.maximum(1.0, tf.reduce_max(tf.abs(x))),
  'clip': lambda x: tf.clip_by_norm(x, 10.0),
  'nan': _any_nan,
  'least': lambda x: x / tf.maximum(1.0, -tf.reduce_min(x)),
  'little': lambda x: x + 1e-5 * tf.reduce_mean(x, 0),
}


@pytest.mark.parametrize('name', MIXING)
def test_mixing_that_begins_above_a_size_is_refused(name):
  with pytest.raises(ValueError, match='mixes examples: one that holds'):
    _checked(L.Lambda(MIXING[name], name='bad'))


def _with_gradient(function):
  @tf.custom_gradient
  def found(x):
    return tf.identity(x), function

  return found


BACKWARD = {
  'clip': lambda d: tf.clip_by_norm(d, 5.0),
  'mean': lambda d: d - tf.reduce_mean(d, 0),
  'small': lambda d: tf.where(
    tf.abs(d) < 1e-4 * tf.reduce_max(tf.abs(d)), tf.zeros_like(d), d
  ),
}


@pytest.mark.parametrize('name', BACKWARD)
def test_backward_passes_that_mix_are_refused(name):
  bad = L.Lambda(_with_gradient(BACKWARD[name]))
  with pytest.raises(ValueError, match='mixes examples'):
    _checked(L.Dense(8, 'relu'), bad)


class _Shift(tfb.Bijector):
  """Moves rows by what a network, past Keras, makes of ones."""

  def __init__(self, gradient):
    parameters = dict(locals())
    self.kernel = tf.Variable(0.1 * tf.ones([4, 4]))
    self._soften = _with_gradient(gradient)
    super().__init__(
      forward_min_event_ndims=1,
      is_constant_jacobian=True,
      parameters=parameters,
    )

  def _inverse(self, y):
    return y - self._soften(gradients.linear(tf.ones_like(y), self.kernel))

  def _inverse_log_det_jacobian(self, y):
    return tf.zeros([], y.dtype)


@pytest.mark.parametrize('by_row', [False, True])
def test_backward_passes_of_densities(by_row):
  axes = [1] if by_row else None
  shift = _Shift(lambda d: tf.clip_by_norm(d, 1.0, axes))
  model = tfdpflows.DensityModel(
    tfd.TransformedDistribution(tfd.MultivariateNormalDiag(tf.zeros(4)), shift)
  )
  model.compile(_optimizer())
  if by_row:
    model._checker.check(SPEC[0])
  else:
    with pytest.raises(ValueError, match='mixes examples in its backward pass'):
      model._checker.check(SPEC[0])


def test_losses_that_overflow_for_large_rows_are_kept():
  _checked(L.Dense(4, 'exponential'), L.LayerNormalization())


@pytest.mark.core
def test_models_that_fail_for_some_rows_are_refused():
  finite = lambda x: tf.debugging.check_numerics(x, 'bad')
  with pytest.raises(ValueError, match='The layer finite uses .*CheckNumerics'):
    _checked(L.Lambda(finite, name='finite'))


def test_floats_and_integers_are_made_extreme_by_themselves():
  rows = (tf.constant([[0.5], [0.25]]), tf.constant([1, 0]))
  found = list(probe_rows.extreme(rows))
  assert len({what for _, what in found}) == len(found) == 5 + 4
  for (x, y), _ in found[:5]:
    np.testing.assert_array_equal(y, rows[1])
    assert not np.any(np.abs(x) <= 1)
  for (x, y), _ in found[5:]:
    np.testing.assert_array_equal(x, rows[0])
    assert np.abs(y[0]) > 1
  assert len(list(probe_rows.extreme(rows, floats_only=True))) == 5
  assert not list(probe_rows.extreme(rows[1], floats_only=True))
  small = tf.constant([1, 0], tf.uint8)
  assert len(list(probe_rows.extreme(small))) == 3
  (text, _), (empty, what) = probe_rows.extreme(tf.constant(['a']))
  assert len(text.numpy()[0].split()) > 40
  assert (empty.numpy()[0], what) == (b'', 'empty text')


@pytest.mark.parametrize(
  ('op', 'legacy'),
  [
    ('RandomUniform', True),
    ('FractionalMaxPool', True),
    ('CudnnRNNV3', True),
    ('Timestamp', True),
    ('EagerPyFunc', True),
    ('StatelessRandomUniformV2', False),
    ('StatefulRandomBinomial', False),
    ('RandomIndexShuffle', False),
  ],
)
def test_operations_with_a_state_of_their_own(op, legacy):
  assert bool(runs._OWN_STATE.match(op)) == legacy


@pytest.mark.core
@pytest.mark.parametrize(
  'shape', [[2], [3], [4], [5], [6], [3, 2], [5, 1], [2, 5]]
)
def test_made_up_integers_are_not_all_zeros(shape):
  """Ids of zero may be masked: a row of nothing else has no mean."""
  for rows in probe_rows.made_up(tf.TensorSpec([None, *shape], tf.int64)):
    axis = [i + 1 for i, n in enumerate(shape) if n > 1][-1]
    assert np.all(np.ptp(rows, axis) == 1)


def _masked_mean(count, **kwargs):
  """A mean of the embeddings of ids of which 0 is masked."""
  layers = [L.Embedding(5, 3, mask_zero=True), L.GlobalAveragePooling1D()]
  model = keras.Sequential([*layers, L.Dense(1)])
  private = tfdpflows.PrivateModel(model, **kwargs)
  private.compile(_optimizer(), 'mse')
  ids = tf.TensorSpec([None, count], tf.int64)
  private._checker.check((ids, tf.TensorSpec([None])))
  return private.checked_independence


@pytest.mark.core
@pytest.mark.parametrize('count', [2, 6, 12])
def test_masked_means_are_proven(count):
  assert _masked_mean(count) == 'proven'


@pytest.mark.core
def test_rows_that_are_masked_entirely_are_no_mixing():
  with pytest.raises(ValueError, match='not finite on some rows.*mask_zero'):
    _masked_mean(1)
  public = np.array([[1], [2], [3]]), np.zeros([3], 'float32')
  assert _masked_mean(1, example=public) == 'proven'
  assert _masked_mean(1, examples_independent=True) == 'proven'
