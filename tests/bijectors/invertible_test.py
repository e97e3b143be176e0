"""Linear, planar and Sylvester maps: invertible whatever their parameters."""

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import bijectors, gradients
from tfdpflows.bijectors import constraints

D = 5
MAPS = {
  'lu': lambda t: bijectors.LULinear(D, [3, 1, 4, 0, 2], t),
  'low_rank_1': lambda t: bijectors.LowRankLinear(D, 1, t, seed=0),
  'low_rank_3': lambda t: bijectors.LowRankLinear(D, 3, t, seed=0),
  'planar': lambda t: bijectors.Planar(D, t, seed=0),
  'sylvester': lambda t: bijectors.Sylvester(D, 3, 2, t, seed=0),
}


def _wild(name, seed, scale, dtype='float64'):
  bijector = MAPS[name](tf.as_dtype(dtype))
  rng = np.random.default_rng(seed)
  for v in bijector.trainable_variables:
    v.assign(rng.normal(size=v.shape) * scale)
  return bijector


def _rows(*shape, seed=1, dtype='float64'):
  values = np.random.default_rng(seed).normal(size=shape + (D,))
  return tf.constant(values, dtype)


@pytest.mark.parametrize('name', MAPS)
@pytest.mark.parametrize('seed', thinned(range(5), 1))
@pytest.mark.parametrize('scale', [1e-3, 1.0, 5.0])
def test_invertible_with_any_parameters(name, seed, scale):
  bijector = _wild(name, seed, scale)
  y = _rows(6)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(y)
    z = bijector.inverse(tf.identity(y))
    outputs = tf.unstack(z, axis=1)
  # `batch_jacobian` would trace and vectorize what is needed a few times.
  jacobian = tf.stack([tape.gradient(o, y) for o in outputs], 1)
  sign, expected = tf.linalg.slogdet(jacobian)
  assert np.all(sign == 1)
  found = bijector.inverse_log_det_jacobian(tf.identity(y), event_ndims=1)
  np.testing.assert_allclose(
    np.broadcast_to(found, 6), expected, rtol=1e-7, atol=1e-7
  )
  back = bijector.forward(tf.identity(z))
  # As many digits as the map's own stretching leaves.
  condition = np.max(np.linalg.cond(jacobian.numpy()))
  np.testing.assert_allclose(back, y, atol=1e-12 * condition * 100)


@pytest.mark.parametrize('name', MAPS)
def test_more_axes_and_single_rows(name):
  bijector = _wild(name, 0, 0.5)
  y = _rows(2, 3)
  flat = tf.reshape(y, [6, D])
  for call in (bijector.inverse, bijector.forward):
    expected = tf.reshape(call(tf.identity(flat)), [2, 3, D])
    np.testing.assert_allclose(call(tf.identity(y)), expected, rtol=1e-9)
    one = call(tf.identity(y[0, 0]))
    np.testing.assert_allclose(one, expected[0, 0], rtol=1e-9)
  log_det = lambda x: np.broadcast_to(
    bijector.inverse_log_det_jacobian(tf.identity(x), event_ndims=1),
    x.shape[:-1],
  )
  np.testing.assert_allclose(log_det(y), log_det(flat).reshape(2, 3))
  np.testing.assert_allclose(log_det(y[0, 0]), log_det(y)[0, 0])


@pytest.mark.core
@pytest.mark.parametrize('name', MAPS)
def test_no_variable_takes_the_slow_way(name, monkeypatch):
  slow = lambda *args, **kwargs: pytest.fail('tape.jacobian was called')
  monkeypatch.setattr(tf.GradientTape, 'jacobian', slow)
  bijector = _wild(name, 0, 0.5)
  with gradients.PerExampleTape() as tape:
    y = _rows(4)
    z = bijector.inverse(y)
    log_det = bijector.inverse_log_det_jacobian(y, event_ndims=1)
    loss = tf.reduce_sum(z * z, 1) - log_det
  tape.per_example_gradients(loss, bijector.trainable_variables).squared_norms()


@pytest.mark.parametrize('name', ['lu', 'low_rank'])
def test_no_gradient_of_a_matrix_is_stored_per_example(name):
  batch, size, rank = 64, 40, 10
  bijector = {
    'lu': lambda: bijectors.LULinear(size),
    'low_rank': lambda: bijectors.LowRankLinear(size, rank, seed=0),
  }[name]()

  @tf.function
  def step(y):
    with gradients.PerExampleTape() as tape:
      z = bijector.inverse(y)
      log_det = bijector.inverse_log_det_jacobian(y, event_ndims=1)
      loss = tf.reduce_sum(z * z, 1) - log_det
    found = tape.per_example_gradients(loss, bijector.trainable_variables)
    return gradients.Flat(1.0).clip_and_sum(found)

  graph = step.get_concrete_function(tf.TensorSpec([batch, size])).graph
  sizes = [
    t.shape.num_elements() or 0
    for op in graph.get_operations()
    for t in op.outputs
    if t.shape.rank is not None
  ]
  assert max(sizes) < batch * size * rank


def test_starts_as_the_identity_and_learns_a_covariance():
  """Few steps of gradient descent: both directions of the parameters work."""
  rng = np.random.default_rng(0)
  mixing = np.eye(D) + 0.5 * rng.normal(size=[D, D])
  y = tf.constant(rng.normal(size=[400, D]) @ mixing)
  for name in ('lu', 'low_rank_3', 'planar', 'sylvester'):
    bijector = MAPS[name](tf.float64)

    @tf.function
    def loss(bijector=bijector):
      x = tf.identity(y)
      z = bijector.inverse(x)
      log_det = bijector.inverse_log_det_jacobian(x, event_ndims=1)
      return tf.reduce_mean(tf.reduce_sum(z * z, 1) / 2 - log_det)

    start = float(loss())
    np.testing.assert_allclose(start, np.mean(np.sum(y**2, 1)) / 2, rtol=1e-9)
    variables = bijector.trainable_variables
    for _ in range(40):
      with tf.GradientTape() as tape:
        value = loss()
      for v, g in zip(variables, tape.gradient(value, variables)):
        v.assign_sub(0.02 * g)
    assert float(loss()) < start - 0.02


def test_squeeze_is_smooth_and_bounded():
  t = tf.constant(np.r_[np.linspace(-50, 3, 2001), -1e-3, -1e-9, 0, 1e-9])
  with tf.GradientTape() as tape:
    tape.watch(t)
    value = t * constraints.squeeze(t)
  slope = tape.gradient(value, t)
  assert np.all(value > -1)
  assert np.all(value[t >= 0] == t[t >= 0])
  assert np.all(np.isfinite(slope)) and np.all(slope >= -1e-9)
  np.testing.assert_allclose(slope[-4:], 1, atol=1e-5)


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_solve_monotone_and_its_gradients(dtype):
  rng = np.random.default_rng(0)
  slope = tf.constant(rng.uniform(-0.99, 5, 200), dtype)
  shift = tf.constant(rng.normal(size=200) * 3, dtype)
  target = tf.constant(rng.normal(size=200) * 5, dtype)
  with tf.GradientTape() as tape:
    tape.watch([slope, shift, target])
    a = constraints.solve_monotone(slope, shift, target)
  tolerance = 1e-4 if dtype == 'float32' else 1e-10
  t = np.tanh(a + shift)
  np.testing.assert_allclose(a + slope * t, target, atol=tolerance)
  bent = 1 + slope * (1 - t * t)
  expected = (-t / bent, -slope * (1 - t * t) / bent, 1 / bent)
  for found, e in zip(tape.gradient(a, [slope, shift, target]), expected):
    np.testing.assert_allclose(found, e, rtol=100 * tolerance, atol=tolerance)


def test_bad_input():
  with pytest.raises(ValueError, match='no permutation of 3 columns'):
    bijectors.LULinear(3, [0, 1, 1])
  for rank in (0, 4):
    with pytest.raises(ValueError, match='rank is'):
      bijectors.LowRankLinear(3, rank)
  for arguments in ({'units': 4}, {'units': 0}, {'reflections': -1}):
    with pytest.raises(ValueError, match='units='):
      bijectors.Sylvester(3, **arguments)
