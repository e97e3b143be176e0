"""Variables past the primitives: what a bad example can do to the others."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import gradients

BATCH, DRAWS = 5, 2


class _Net:
  """A kernel by `linear`, a scale past the primitives."""

  def __init__(self, dtype='float32'):
    rng = np.random.default_rng(0)
    self.kernel = tf.Variable(rng.normal(size=[4, 3]), dtype=dtype)
    self.scale = tf.Variable(rng.normal(size=[4]), dtype=dtype, name='scale')
    self.variables = [self.kernel, self.scale]
    self.x = rng.normal(size=[BATCH, 4]).astype(dtype)

  def losses(self, x):
    x *= self.scale
    y = tf.reduce_sum(tf.exp(gradients.linear(x, self.kernel)), -1)
    return y + tf.reduce_sum(tf.sqrt(tf.abs(x)), -1)

  def total(self, x, again=True):
    x = tf.convert_to_tensor(x)
    rows = {'losses': self.losses, 'rows': x} if again else {}
    with gradients.PerExampleTape(**rows) as tape:
      loss = self.losses(x)
    found = tape.per_example_gradients(loss, self.variables)
    return gradients.Flat(1.0).clip_and_sum(found)

  def by_jacobian(self, x):
    with tf.GradientTape(persistent=True) as tape:
      loss = self.losses(tf.convert_to_tensor(x))
    found = gradients.PerExampleGradients(tape, loss, self.variables)
    return gradients.Flat(1.0).clip_and_sum(found)


def _compiled(function, mode):
  if mode == 'eager':
    return function
  return tf.function(function, jit_compile=mode == 'xla')


@pytest.mark.parametrize(
  ('poison', 'mode'),
  thinned(
    itertools.product(
      # At 0 the loss is finite, and its gradient is not.
      [1e30, 0.0, np.nan],
      ['eager', 'function', 'xla'],
    ),
    lambda point: point[1] == 'eager' or point[0] == 0,
  ),
)
def test_a_bad_example_contributes_zero_and_spoils_no_other(mode, poison):
  net = _Net()
  x = net.x.copy()
  x[2] = poison
  total = _compiled(net.total, mode)
  for a, b in zip(total(x), total(np.delete(x, 2, 0))):
    assert np.any(b.numpy())
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.core
def test_a_jacobian_with_a_bad_example_is_an_error():
  net = _Net()
  x = net.x.copy()
  x[2] = np.nan
  for function in (lambda x: net.total(x, again=False), net.by_jacobian):
    for mode in ('eager', 'function'):
      with pytest.raises(tf.errors.InvalidArgumentError, match='not finite'):
        _compiled(function, mode)(x)


@pytest.mark.core
def test_a_jacobian_is_refused_under_xla():
  """XLA drops the check: all examples would vanish with the bad one."""
  net = _Net()
  inner = tf.function(lambda x: net.total(x, again=False))
  for function in (
    lambda x: net.total(x, again=False),
    net.by_jacobian,
    lambda x: tf.cond(tf.shape(x)[0] > 0, lambda: inner(x), lambda: inner(-x)),
  ):
    with pytest.raises(ValueError, match='jit_compile') as error:
      _compiled(function, 'xla')(net.x)
    assert 'scale' in str(error.value)


@pytest.mark.core
def test_where_xla_comes_unseen_the_sum_is_nan():
  net = _Net()
  adaptive = gradients.AdaptiveQuantile(1.0)

  @tf.function
  def inner(x):
    with gradients.PerExampleTape() as tape:
      loss = net.losses(x)
    found = tape.per_example_gradients(loss, net.variables)
    return adaptive.clip_and_sum(found) + [adaptive.statistic(found)]

  x = net.x.copy()
  good = inner(tf.constant(x))  # Traced before, and not again below.
  outer = tf.function(lambda x: inner(x), jit_compile=True)
  for a, b in zip(good, outer(tf.constant(x))):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  x[2] = np.nan
  for found in outer(tf.constant(x)):
    assert np.all(np.isnan(found))


@pytest.mark.parametrize('mode', ['eager', 'function', 'xla'])
def test_no_example_at_all(mode):
  net = _Net()
  for total in _compiled(net.total, mode)(net.x[:0]):
    assert not np.any(total.numpy())


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_draws_are_averaged(dtype):
  net = _Net(dtype)
  rows = (
    tf.repeat(net.x, DRAWS, axis=0)
    * tf.linspace(tf.constant(0.5, dtype), 1, BATCH * DRAWS)[:, None]
  )

  def found(**again):
    with gradients.PerExampleTape(**again) as tape:
      loss = net.losses(rows)
      loss = tf.reduce_mean(tf.reshape(loss, [-1, DRAWS]), 1)
    return gradients.PerExampleGradients(
      tape, loss, net.variables, DRAWS
    ).materialise()

  for a, b in zip(found(losses=net.losses, rows=rows), found()):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_rows_of_any_structure():
  net = _Net()
  rows = {'x': tf.constant(net.x), 'y': (tf.range(BATCH), None)}

  def losses(rows):
    factor = tf.cast(rows['y'][0], tf.float32)
    assert rows['y'][1] is None
    return factor * net.losses(rows['x'])

  with gradients.PerExampleTape(losses=losses, rows=rows) as tape:
    loss = losses(rows)
  again = tape.per_example_gradients(loss, net.variables).materialise()
  with gradients.PerExampleTape() as tape:
    loss = losses(rows)
  once = tape.per_example_gradients(loss, net.variables).materialise()
  for a, b in zip(again, once):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_losses_without_rows_are_refused():
  with pytest.raises(ValueError, match='losses and rows together'):
    gradients.PerExampleTape(rows=tf.zeros([3]))


@pytest.mark.core
@pytest.mark.parametrize('mode', ['eager', 'function'])
def test_gradients_may_be_taken_while_the_tape_records(mode):
  net = _Net()
  x = tf.constant(net.x)

  def norms(inside):
    with gradients.PerExampleTape(losses=net.losses, rows=x) as tape:
      loss = net.losses(x)
      if inside:
        return tape.per_example_gradients(loss, net.variables).squared_norms()
    return tape.per_example_gradients(loss, net.variables).squared_norms()

  found = _compiled(lambda: norms(True), mode)()
  np.testing.assert_allclose(found, norms(False), rtol=1e-5)


CONVOLUTIONS = {
  # Name: (shapes of the rows and the filters, the convolution).
  'conv1d': ([5, 4], [2, 2, 6], lambda x, w: tf.nn.conv1d(x, w, 1, 'VALID')),
  'conv2d': (
    [4, 3, 4],
    [2, 2, 1, 8],
    lambda x, w: tf.nn.conv2d(x, w, 2, 'SAME'),
  ),
  'conv2d_padded': (
    [4, 3, 4],
    [2, 2, 4, 3],
    lambda x, w: tf.nn.conv2d(x, w, 1, [[0, 0], [1, 0], [0, 2], [0, 0]]),
  ),
  'conv3d': (
    [2, 3, 2, 4],
    [2, 2, 2, 2, 4],
    # Without XLA a CPU has no gradient of it.
    tf.function(
      lambda x, w: tf.nn.conv3d(x, w, [1] * 5, 'VALID'), jit_compile=True
    ),
  ),
}


@pytest.mark.core
@pytest.mark.parametrize('name', CONVOLUTIONS)
@pytest.mark.parametrize('mode', ['eager', 'function', 'any batch'])
def test_a_convolution_in_groups_has_the_gradient_of_each_example(name, mode):
  """The parallel loop of TensorFlow mixed the examples and the channels."""
  shape, filters, convolve = CONVOLUTIONS[name]
  rng = np.random.default_rng(0)
  w = tf.Variable(rng.normal(size=filters).astype('float32'))
  x = rng.normal(size=[BATCH, *shape]).astype('float32')

  def losses(x):
    y = convolve(x, w)
    return tf.reduce_sum(tf.sin(y), range(1, y.shape.rank))

  def found(x):
    with tf.GradientTape() as tape:
      loss = losses(x)
    return gradients.PerExampleGradients(tape, loss, [w]).materialise()[0]

  if mode != 'eager':
    sizes = [None if mode == 'any batch' else BATCH, *shape]
    found = tf.function(found, [tf.TensorSpec(sizes)])
  found = found(tf.constant(x))
  for i in range(BATCH):
    with tf.GradientTape() as tape:
      loss = losses(tf.constant(x[i : i + 1]))
    alone = tape.gradient(loss, w)
    np.testing.assert_allclose(found[i], alone, rtol=1e-4, atol=1e-5)
