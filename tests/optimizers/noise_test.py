"""The noise is standard normal, independent, and of the right dtypes."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfdpflows.optimizers.noise import standard_normal_like


@pytest.mark.core
@pytest.mark.parametrize('xla', [False, True])
def test_standard_normal(xla):
  generator = tf.random.Generator.from_seed(3, alg='philox')
  like = [tf.zeros([101, 150]), tf.zeros([], tf.float64), tf.zeros([15001])]
  draw = tf.function(
    lambda: standard_normal_like(generator, like), jit_compile=xla
  )
  a, scalar, b = draw()
  assert (a.dtype, scalar.dtype, b.dtype) == (
    tf.float32,
    tf.float64,
    tf.float32,
  )
  assert (a.shape, scalar.shape, b.shape) == ([101, 150], [], [15001])
  for z in (np.ravel(a), b.numpy(), np.abs(b), np.ravel(a)[:15001] * b):
    assert np.all(np.isfinite(z))
  for z in (np.ravel(a), b.numpy()):
    assert scipy.stats.kstest(z, 'norm').pvalue > 1e-4
  # Neither the halves of a draw nor two draws are alike.
  both = np.concatenate([np.ravel(a), b])
  half = len(both) // 2
  again = np.concatenate([np.ravel(t) for t in (draw()[0], draw()[2])])
  for one, two in (
    (both[:half], both[half : 2 * half]),
    (both**2, again**2),
    (both[:half] ** 2, both[half : 2 * half] ** 2),
  ):
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(len(one))
