"""AdaBelief, against its definition and on pure noise."""

import numpy as np
import pytest
import tensorflow as tf

from tfdpflows import gradients, optimizers


def _optimizer(**kwargs):
  return optimizers.DPKerasAdaBelief(
    **{
      'l2_norm_clip': 1.0,
      'noise_multiplier': 1.0,
      'expected_batch_size': 8,
      'learning_rate': 0.1,
      'seed': 0,
      **kwargs,
    }
  )


def _expected(start, found, sigma=None, beta_1=0.9, beta_2=0.999):
  x = start.astype('float64')
  m = s = q = p = 0.0
  for t, g in enumerate(found, 1):
    m = beta_1 * m + (1 - beta_1) * g
    s = beta_2 * s + (1 - beta_2) * (g - m) ** 2 + 1e-16
    s_hat = s / (1 - beta_2**t)
    if sigma is not None:
      p = beta_2 * p + (1 - beta_2) * beta_1**2 * (sigma**2 + q)
      q = beta_1**2 * q + (1 - beta_1) ** 2 * sigma**2
      noise = p / (1 - beta_2**t)
      s_hat = np.maximum(s_hat - noise, 0.1 * noise)
    x = x - 0.1 * m / (1 - beta_1**t) / (np.sqrt(s_hat) + 1e-16)
  return x


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('correction', [False, True])
@pytest.mark.parametrize('xla', [False, True])
def test_equals_its_definition(dtype, correction, xla):
  rng = np.random.default_rng(0)
  found = rng.normal(size=[6, 4]).astype(dtype)
  x = tf.Variable(np.ones(4, dtype))
  optimizer = _optimizer(noise_variance_correction=correction)
  optimizer._was_dp_gradients_called = True
  optimizer._create_all_weights([x])

  @tf.function(jit_compile=xla)
  def step(g):
    optimizer.apply_gradients([(g, x)])

  for g in found:
    step(tf.constant(g))
  sigma = 1 / 8 if correction else None
  np.testing.assert_allclose(x, _expected(np.ones(4), found, sigma), rtol=2e-4)


def test_the_variance_of_the_noise_is_what_is_subtracted():
  """On gradients that are zero, the second moment is noise alone."""
  kernel = tf.Variable(tf.zeros([100, 100]))
  optimizer = _optimizer(beta_2=0.9)

  @tf.function
  def step():
    with gradients.PerExampleTape() as tape:
      losses = tf.reduce_sum(gradients.linear(tf.zeros([4, 100]), kernel), 1)
    means, _ = optimizer.private_gradients(losses, [kernel], tape)
    optimizer.apply_gradients(zip(means, [kernel]))

  optimizer.noise_variance_correction = True
  for _ in range(5):
    step()
    found = np.mean(optimizer.get_slot(kernel, 'v'))
    noise = float(optimizer.get_slot(kernel, 'v_noise'))
    np.testing.assert_allclose(noise, found, rtol=0.03)
    found = np.var(optimizer.get_slot(kernel, 'm'))
    noise = float(optimizer.get_slot(kernel, 'm_noise'))
    np.testing.assert_allclose(noise, found, rtol=0.06)


def test_bad_input():
  with pytest.raises(ValueError, match='amsgrad'):
    _optimizer(amsgrad=True)
  table = tf.Variable(tf.zeros([3, 2]), name='table')
  optimizer = _optimizer()
  optimizer._was_dp_gradients_called = True
  sparse = tf.IndexedSlices(tf.ones([1, 2]), [0], [3, 2])
  with pytest.raises(ValueError, match='table'):
    optimizer.apply_gradients([(sparse, table)])
