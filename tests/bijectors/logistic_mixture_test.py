"""The mixture's CDF against its formula, and its inverse at its worst."""

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows._keras import keras, tfp
from tfdpflows.bijectors import logistic_mixture

tfd = tfp.distributions


def _mixture(weights, means, scales, dtype='float64', logit=False):
  """The bijector of a mixture given by what it consists of."""
  k = len(weights)
  gains = np.linspace(0.5, 1.5, k)
  log_scales = np.arctanh(np.log(scales) / 4) * 4 / gains[::-1]
  params = np.concatenate([np.log(weights), means / gains, log_scales])
  return logistic_mixture.LogisticMixtureCDF(tf.constant(params, dtype), logit)


def _expected(weights, means, scales):
  return tfd.MixtureSameFamily(
    tfd.Categorical(probs=tf.constant(weights, tf.float64)),
    tfd.Logistic(tf.constant(means, tf.float64), np.array(scales)),
  )


def test_is_the_cdf_of_the_mixture():
  parts = [0.2, 0.5, 0.3], [-4.0, 0.0, 3.0], [0.3, 1.0, 2.0]
  cdf, expected = _mixture(*parts), _expected(*parts)
  x = tf.constant(np.linspace(-12, 12, 50))
  np.testing.assert_allclose(cdf.forward(x), expected.cdf(x), rtol=1e-10)
  np.testing.assert_allclose(
    cdf.forward_log_det_jacobian(tf.identity(x), event_ndims=0),
    expected.log_prob(x),
    rtol=1e-9,
  )
  np.testing.assert_allclose(
    cdf.inverse(cdf.forward(tf.identity(x))), x, atol=1e-9
  )
  logit = _mixture(*parts, logit=True)
  p = expected.cdf(x)
  np.testing.assert_allclose(
    logit.forward(x), tf.math.log(p) - tf.math.log1p(-p), atol=1e-9
  )


@pytest.mark.parametrize(
  ('logit', 'dtype'),
  thinned(
    [
      (False, 'float32'),
      (True, 'float64'),
      (False, 'float64'),
      (True, 'float32'),
    ],
    2,
  ),
)
def test_extremes_are_finite_and_ordered(dtype, logit):
  cdf = _mixture([0.999, 0.001], [-50.0, 50.0], [0.02, 50.0], dtype, logit)
  large = np.finfo(dtype).max
  x = np.array([0, 1e-30, 1, 1e4, 1e6, 1e20, large, np.inf])
  x = np.sort(np.concatenate([-x, x])).astype(dtype)
  for direction in ('forward', 'inverse'):
    value = tf.constant(x)
    with tf.GradientTape() as tape:
      tape.watch(value)
      y = getattr(cdf, direction)(tf.identity(value))
      log_det = getattr(cdf, f'{direction}_log_det_jacobian')(
        tf.identity(value), event_ndims=0
      )
    assert np.isfinite(y).all() and np.all(np.diff(y) >= 0)
    assert np.isfinite(log_det).all()
    assert np.isfinite(tape.gradient(y, value)).all()


def test_tails_keep_their_precision():
  """In float32 as in float64, where logarithms of both tails are large."""
  parts = [0.5, 0.5], [-1.0, 1.0], [0.5, 2.0]
  x = np.array([-1e6, -300.0, -20.0, 0.0, 20.0, 300.0, 1e6])
  found = _mixture(*parts, 'float32', logit=True)
  exact = _mixture(*parts, logit=True)
  z = found.forward(x.astype('float32'))
  slope = found.forward_log_det_jacobian(x.astype('float32'), 0).numpy()
  np.testing.assert_allclose(z, exact.forward(x), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(
    slope, exact.forward_log_det_jacobian(x, 0), rtol=1e-4, atol=1e-5
  )
  # There the broadest component is alone.
  np.testing.assert_allclose(slope[[0, -1]], -np.log(2), rtol=1e-4)


def test_inverse_converges_on_a_plateau():
  """Between far components the CDF is flat to the last bit of the float."""
  cdf = _mixture([0.5, 0.5], [-40.0, 40.0], [0.05, 0.05], logit=True)
  z = tf.constant([-30.0, -1e-3, 0.0, 1e-3, 30.0], tf.float64)
  x = cdf.inverse(z)
  np.testing.assert_allclose(cdf.forward(tf.identity(x)), z, atol=1e-9)
  assert np.all(np.diff(x) > 0)


def test_gradients_of_the_inverse_are_those_of_the_implicit_function():
  rng = np.random.default_rng(0)
  params = tf.constant(rng.normal(size=[9]))
  y = tf.constant([0.05, 0.4, 0.9], tf.float64)

  @tf.function
  def inverse(params, y):
    return logistic_mixture.LogisticMixtureCDF(params).inverse(y)

  with tf.GradientTape(persistent=True) as tape:
    tape.watch([params, y])
    x = inverse(params, y)
  by_params = tape.jacobian(x, params, experimental_use_pfor=False).numpy()
  step = 1e-5
  for i in range(9):
    one = np.eye(9)[i] * step
    difference = inverse(params + one, y) - inverse(params - one, y)
    np.testing.assert_allclose(
      by_params[:, i], difference / (2 * step), rtol=1e-5, atol=1e-8
    )
  difference = inverse(params, y + step) - inverse(params, y - step)
  np.testing.assert_allclose(
    tape.gradient(x, y), difference / (2 * step), rtol=1e-4
  )


def test_components_that_start_alike_part():
  """On two clusters, from parameters zero."""
  x = tf.constant([[-3.0], [-3.2], [2.8], [3.0], [3.5]])
  params = tf.Variable(tf.zeros([1, 6]))
  optimizer = keras.optimizers.legacy.Adam(0.1)

  @tf.function
  def step():
    with tf.GradientTape() as tape:
      cdf = logistic_mixture.LogisticMixtureCDF(params, logit=True)
      z = cdf.forward(x)
      log_p = tf.math.log_sigmoid(z) + tf.math.log_sigmoid(-z)
      log_p += cdf.forward_log_det_jacobian(tf.identity(x), 0)
      loss = -tf.reduce_mean(log_p)
    optimizer.minimize(loss, [params], tape=tape)
    return loss

  losses = [float(step()) for _ in range(300)]
  one = tfd.Logistic(0.5, 1.8).log_prob(x)
  assert losses[-1] < -float(tf.reduce_mean(one)) - 0.5
