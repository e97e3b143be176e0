"""What must not break the guarantee, and what is refused by name."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import _keras, gradients, optimizers

keras = _keras.keras
STRATEGIES = {
  'flat': gradients.Flat(1.0),
  'per_layer': gradients.PerLayer(1.0),
  'per_unit': gradients.PerUnit(1.0),
  'automatic': gradients.Automatic(1.0),
  'sparse': gradients.StochasticSparsification(1.0, 0.5),
  'adaptive': gradients.AdaptiveQuantile(1.0),
}


def _optimizer(clipping='flat', **kwargs):
  return optimizers.DPKerasSGD(
    clipping=STRATEGIES[clipping],
    **{'noise_multiplier': 1.0, 'expected_batch_size': 4, 'seed': 0, **kwargs},
  )


def _losses(x, kernel, bias):
  return tf.reduce_sum(tf.sin(gradients.linear(x, kernel, bias)), -1)


def _compiled(clipping, dtype, xla):
  """Returns a function of rows, as many as there are, traced once."""
  kernel = tf.Variable(np.ones([3, 2], dtype))
  bias = tf.Variable(np.ones(2, dtype))
  optimizer = _optimizer(clipping)

  @tf.function(
    jit_compile=xla, input_signature=[tf.TensorSpec([None, 3], dtype)]
  )
  def step(x):
    losses = lambda x: _losses(x, kernel, bias)
    return optimizer.private_gradients_of(losses, x, [kernel, bias])[0]

  return step


@pytest.mark.parametrize(
  ('clipping', 'dtype', 'xla'),
  thinned(
    itertools.product(STRATEGIES, ('float32', 'float64'), (False, True)),
    lambda point: (
      point[1:] == ('float32', False) or point == ('flat', 'float64', False)
    ),
  ),
)
def test_batches_of_any_size_and_with_bad_rows(clipping, dtype, xla):
  """Empty, of one, and where nothing is finite: finite, noised updates."""
  step = _compiled(clipping, dtype, xla)
  good = np.ones([1, 3], dtype)
  for x in (good[:0], good, good * np.nan, np.repeat(good * np.inf, 3, 0)):
    means = step(tf.constant(x))
    assert all(mean.dtype == dtype for mean in means)
    assert all(np.all(np.isfinite(mean)) for mean in means)
    assert any(np.any(mean) for mean in means)


@pytest.mark.core
@pytest.mark.parametrize('clipping', STRATEGIES)
def test_a_bad_row_more_changes_nothing_of_the_gradient(clipping):
  kernel = tf.Variable(np.ones([3, 2], 'float32'))
  bias = tf.Variable(np.ones(2, 'float32'))
  x = np.random.default_rng(0).normal(size=[4, 3]).astype('float32')

  def means(x):
    optimizer = _optimizer(clipping, noise_multiplier=0.0)
    losses = lambda x: _losses(x, kernel, bias)
    return optimizer.private_gradients_of(losses, x, [kernel, bias])[0]

  for bad in (np.nan, np.inf):
    worse = np.concatenate([x, np.full([1, 3], bad, 'float32')])
    for a, b in zip(means(worse), means(x)):
      np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_variable_without_a_gradient_is_named():
  used, lonely = tf.Variable([[1.0]]), tf.Variable([[1.0]], name='lonely')
  losses = lambda x: gradients.linear(x, used)[:, 0]
  with pytest.raises(ValueError, match='lonely'):
    _optimizer().private_gradients_of(losses, tf.ones([2, 1]), [used, lonely])


@pytest.mark.core
def test_frozen_variables_stay_and_take_no_part():
  """Of a layer whose kernel is frozen the bias still learns."""
  model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
  x = tf.ones([4, 3])
  model(x)
  model.layers[0].trainable = False
  frozen = [v.numpy() for v in model.layers[0].variables]
  optimizer = _optimizer(learning_rate=1.0)
  optimizer.minimize(lambda: model(x)[:, 0], model.trainable_variables)
  for a, b in zip(model.layers[0].variables, frozen):
    np.testing.assert_array_equal(a, b)
  kernel = tf.Variable(np.ones([3, 2], 'float32'))
  bias = tf.Variable(np.ones(2, 'float32'))
  means, _ = _optimizer(noise_multiplier=0.0).private_gradients_of(
    lambda x: _losses(x, kernel, bias), x, [bias]
  )
  np.testing.assert_allclose(means[0], np.full(2, np.cos(4)), rtol=1e-5)


@pytest.mark.core
def test_variables_after_the_first_step_are_refused_by_name():
  first = tf.Variable([[1.0]], name='first')
  late = tf.Variable([[1.0]], name='late')
  optimizer = _optimizer()
  x = tf.ones([2, 1])
  one = lambda x: gradients.linear(x, first)[:, 0]
  both = lambda x: gradients.linear(gradients.linear(x, first), late)[:, 0]
  optimizer.private_gradients_of(one, x, [first])
  with pytest.raises(ValueError, match=r"did not have the variables \['late"):
    optimizer.private_gradients_of(both, x, [first, late])
  with gradients.PerExampleTape() as tape:
    losses = both(x)
  with pytest.raises(ValueError, match='late'):
    optimizer.private_gradients(losses, [first, late], tape)
  optimizer.private_gradients_of(one, x, [first])


@pytest.fixture
def mixed():
  keras.mixed_precision.set_global_policy('mixed_float16')
  yield
  keras.mixed_precision.set_global_policy('float32')


def test_mixed_precision_is_refused(mixed):
  with pytest.raises(ValueError, match="global policy 'mixed_float16'"):
    _optimizer()
  layer = keras.layers.Dense(1)
  layer(tf.ones([2, 3]))
  keras.mixed_precision.set_global_policy('float32')
  optimizer = _optimizer()
  losses = lambda: tf.cast(layer(tf.ones([2, 3]))[:, 0], tf.float32)
  with pytest.raises(ValueError, match='the variable dense.*kernel'):
    optimizer.minimize(losses, layer.trainable_variables)


def test_loss_scaling_is_refused_where_it_wraps():
  optimizer = _optimizer()
  with pytest.raises(ValueError, match='LossScaleOptimizer around'):
    keras.mixed_precision.LossScaleOptimizer(optimizer)
  layer = keras.layers.Dense(1, dtype='mixed_float16')
  model = keras.Sequential([layer], name='half')
  model._set_dtype_policy('mixed_float16')
  with pytest.raises(ValueError, match='LossScaleOptimizer around'):
    model.compile(optimizer=optimizer, loss='mse')


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_half_precision_is_refused(dtype):
  kernel = tf.Variable(tf.ones([1, 1], dtype), name='half')
  losses = lambda x: gradients.linear(x, kernel)[:, 0]
  with pytest.raises(ValueError, match='the variable half'):
    _optimizer().private_gradients_of(losses, tf.ones([2, 1], dtype), [kernel])


def test_draws_and_chunks_need_a_function():
  kernel = tf.Variable([[1.0]])
  for arguments in ({'augmentation_multiplicity': 2}, {'chunk_size': 2}):
    with gradients.PerExampleTape() as tape:
      losses = gradients.linear(tf.ones([2, 1]), kernel)[:, 0]
    with pytest.raises(ValueError, match='private_gradients_of'):
      _optimizer(**arguments).private_gradients(losses, [kernel], tape)
  with pytest.raises(ValueError, match='one loss'):
    _optimizer(augmentation_multiplicity=2).private_gradients_of(
      lambda x: tf.reduce_mean(gradients.linear(x, kernel)),
      tf.ones([2, 1]),
      [kernel],
    )


def _step():
  """Returns a function that takes the private gradients of a small loss."""
  kernel, optimizer = tf.Variable([[1.0]]), _optimizer()

  def step():
    with gradients.PerExampleTape() as tape:
      losses = gradients.linear(tf.ones([2, 1]), kernel)[:, 0]
    optimizer.private_gradients(losses, [kernel], tape)

  return step


@pytest.mark.core
def test_tensor_float_32_is_refused_where_there_is_a_gpu(monkeypatch):
  step = _step()
  tf32 = tf.config.experimental
  monkeypatch.setattr(
    tf32, 'tensor_float_32_execution_enabled', lambda: switched
  )
  switched = True
  devices = tf.config.get_visible_devices
  gpu = lambda kind=None: ['a GPU'] if kind == 'GPU' else devices(kind)
  monkeypatch.setattr(tf.config, 'get_visible_devices', lambda kind=None: [])
  step()
  monkeypatch.setattr(tf.config, 'get_visible_devices', gpu)
  with pytest.raises(ValueError, match='enable_tensor_float_32_execution'):
    step()
  switched = False
  step()


@pytest.mark.core
@pytest.mark.parametrize(
  'option', ['auto_mixed_precision', 'auto_mixed_precision_onednn_bfloat16']
)
def test_graphs_that_are_rewritten_to_half_precision_are_refused(option):
  step = _step()
  try:
    tf.config.optimizer.set_experimental_options({option: True})
    with pytest.raises(ValueError, match=f'{option!r}: False'):
      step()
  finally:
    tf.config.optimizer.set_experimental_options({option: False})
  step()


@pytest.mark.parametrize(
  'name', ['TF_SET_ONEDNN_FPMATH_MODE', 'DNNL_DEFAULT_FPMATH_MODE']
)
def test_float32_in_half_precision_by_onednn_is_refused(monkeypatch, name):
  step = _step()
  with monkeypatch.context() as patch:
    patch.setenv(name, 'BF16')
    with pytest.raises(ValueError, match=f'{name}=BF16.*Unset'):
      step()
  monkeypatch.setenv(name, 'strict')
  step()


def test_microbatches_are_of_one_example():
  """TF Privacy clips the mean of each; dropping that would go unnoticed."""
  _optimizer(num_microbatches=4)  # As many as examples.
  for number in (1, 2):
    with pytest.raises(ValueError, match=f'num_microbatches is {number}.*Drop'):
      _optimizer(num_microbatches=number)


def test_gradients_of_a_tape_are_not_applied():
  kernel = tf.Variable([1.0, 2.0])
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(kernel**2)
  gradient = tape.gradient(loss, kernel)
  with pytest.raises(ValueError, match='neither clipped nor noised'):
    _optimizer().apply_gradients([(gradient, kernel)])
  np.testing.assert_array_equal(kernel, [1.0, 2.0])
