"""The noise is standard normal, independent, and of the right dtypes."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfdpflows.optimizers.noise import standard_normal_like
from tfdpflows.step_streams import StepStreams


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


class _Words:
  """Gives the words that it is told to, of both rows of a draw."""

  def __init__(self, first, second):
    self._rows = first, second

  def uniform_full_int(self, shape, dtype):
    rows = [np.broadcast_to(row, shape[1:]) for row in self._rows]
    return tf.constant(np.stack(rows).astype(dtype.as_numpy_dtype))


def _radius(first, second, dtype, size=32):
  (z,) = standard_normal_like(_Words(first, second), [tf.zeros([size], dtype)])
  return np.hypot(*np.reshape(z.numpy(), [2, -1]).astype(np.float64))


@pytest.mark.core
@pytest.mark.parametrize('dtype, bits', [(tf.float32, 46), (tf.float64, 78)])
def test_tails_of_the_radius(dtype, bits):
  """The word of rank k of all 2^bits has the radius of that quantile."""
  rank = np.array([2**k + j for k in range(16) for j in (0, 2**k // 2)])
  # The rank is within the lowest 15 bits, or just beyond them.
  found = _radius(rank >> 15, rank & (2**15 - 1), dtype, 2 * len(rank))
  expected = np.sqrt(2 * (bits * np.log(2) - np.log(rank + 0.5)))
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert _radius(0, 0, dtype).max() > 7.9
  most = np.iinfo(np.int64 if dtype == tf.float64 else np.int32).max
  found = _radius(most, 2**15 - 1, dtype)
  assert np.all(np.isfinite(found)) and found.max() < 1e-3


@pytest.mark.core
def test_radius_and_angle():
  """Uniform, and independent of each other, also close to the tail."""
  rng = np.random.default_rng(0)
  n = 2**16
  words = rng.integers(2**32, size=[2, n], dtype=np.uint32)
  # All of it, and what is beyond 5.1 standard deviations.
  for shift, beyond in ((0, 0.0), (20, 5.1)):
    source = _Words(words[0] >> shift, words[1])
    (z,) = standard_normal_like(source, [tf.zeros([2 * n])])
    x, y = np.reshape(z, [2, n]).astype(np.float64)
    assert np.hypot(x, y).min() >= beyond
    u = np.exp(-(x * x + y * y) / 2) * 2.0 ** max(0, shift - 1)
    angle = np.arctan2(y, x) / (2 * np.pi) + 0.5
    for v in (u, angle, (u + angle) % 1):
      assert scipy.stats.kstest(v, 'uniform').pvalue > 1e-4


def test_noise_of_a_step():
  stream = lambda step: StepStreams(bytes(range(24))).at(step)
  like = [tf.zeros([3, 5]), tf.zeros([2], tf.float64)]
  one, two = (standard_normal_like(stream(7), like) for _ in range(2))
  compiled = tf.function(
    lambda step: standard_normal_like(stream(step), like), jit_compile=True
  )(tf.constant(7))
  for a, b, c in zip(one, two, compiled):
    assert np.all(a == b)
    np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-6)
  assert not np.any(one[0] == standard_normal_like(stream(8), like)[0])
