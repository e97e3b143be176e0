"""The noise is standard normal, independent, and of the right dtypes."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfdpflows.optimizers.noise import normal, on_grid
from tfdpflows.training.step_noise import StepStream


@pytest.mark.core
@pytest.mark.parametrize('xla', [False, True])
@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_normal(xla, dtype):
  generator = tf.random.Generator.from_seed(3, alg='philox')
  size = 30151
  draw = tf.function(
    lambda: normal(generator, size, 2.5, dtype), jit_compile=xla
  )
  z = draw()
  assert z.dtype == dtype
  assert z.shape == [size]
  z, again = z.numpy() / 2.5, draw().numpy() / 2.5
  half = size // 2
  for x in (z, z[:half] * z[half : 2 * half]):
    assert np.all(np.isfinite(x))
  assert scipy.stats.kstest(z, 'norm').pvalue > 1e-4
  # Neither the halves of a draw nor two draws are alike.
  for one, two in (
    (z[:half], z[half : 2 * half]),
    (z**2, again**2),
    (z[:half] ** 2, z[half : 2 * half] ** 2),
  ):
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(len(one))


class _Words:
  """Gives the words that it is told to, of the rows of a draw."""

  def __init__(self, *rows):
    self._rows = rows

  def uniform_full_int(self, shape, dtype):
    rows = [np.broadcast_to(row, shape[1:]) for row in self._rows]
    return tf.constant(np.stack(rows).astype(dtype.as_numpy_dtype))


def _radius(first, second, dtype, size=32):
  z = normal(_Words(first, second, 5), size, 1.0, dtype)
  return np.hypot(*np.reshape(z.numpy(), [2, -1]).astype(np.float64))


@pytest.mark.core
@pytest.mark.parametrize('dtype, bits', [(tf.float32, 31), (tf.float64, 63)])
def test_tails_of_the_radius(dtype, bits):
  """The words of rank k of all 4^bits have the radius of that quantile."""
  ranks = [2**k + j for k in range(bits + 8) for j in (0, 2**k // 2)]
  ranks += [0] * (-len(ranks) % 16)
  words = np.array([divmod(rank, 2**bits) for rank in ranks], np.uint64)
  found = _radius(*words.T, dtype, 2 * len(ranks))
  expected = [
    np.sqrt(2 * (2 * bits * np.log(2) - np.log(rank + 0.5))) for rank in ranks
  ]
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert _radius(0, 0, dtype).max() > 9.2
  found = _radius(2**bits - 1, 2**bits - 1, dtype)
  assert np.all(np.isfinite(found)) and found.max() < 1e-3


@pytest.mark.core
@pytest.mark.parametrize('dtype, bits', [(tf.float32, 32), (tf.float64, 64)])
def test_no_bit_is_of_both_radius_and_angle(dtype, bits):
  """Else a long radius would be known from the angle, noise or not."""
  rng = np.random.default_rng(0)
  n = 512
  words = rng.integers(2**bits, size=[3, n], dtype=np.uint64)
  # Half of them far in the tail.
  words[0, ::2] >>= np.uint64(bits - 4)

  def polar(words):
    z = np.reshape(normal(_Words(*words), 2 * n, 1.0, dtype), [2, n])
    x, y = z.astype(np.float64)
    return np.hypot(x, y), np.arctan2(y, x)

  radius, angle = polar(words)
  for bit in range(bits):
    other = words.copy()
    other[2] ^= np.uint64(1 << bit)
    np.testing.assert_allclose(polar(other)[0], radius, rtol=1e-5, atol=1e-9)
    for row in (0, 1):
      other = words.copy()
      other[row] ^= np.uint64(1 << bit)
      moved, same = polar(other)
      # The angle of the origin is none.
      apart = (moved > 1e-3) & (radius > 1e-3)
      turned = np.abs(np.exp(1j * same) - np.exp(1j * angle))
      assert turned[apart].max() < 1e-5


@pytest.mark.core
def test_radius_and_angle():
  """Uniform, and independent of each other, also close to the tail."""
  rng = np.random.default_rng(0)
  n = 2**16
  words = rng.integers(2**32, size=[3, n], dtype=np.uint32)
  # All of it, and what is beyond 5.1 standard deviations.
  for shift, beyond in ((0, 0.0), (20, 5.1)):
    source = _Words(words[0] >> shift, *words[1:])
    z = normal(source, 2 * n, 1.0, tf.float32)
    x, y = np.reshape(z, [2, n]).astype(np.float64)
    assert np.hypot(x, y).min() >= beyond
    u = np.exp(-(x * x + y * y) / 2) * 2.0 ** max(0, shift - 1)
    angle = np.arctan2(y, x) / (2 * np.pi) + 0.5
    for v in (u, angle, (u + angle) % 1):
      assert scipy.stats.kstest(v, 'uniform').pvalue > 1e-4


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_noise_of_a_step(dtype):
  def noise(step):
    stream = StepStream(bytes(range(24)), step)
    return normal(stream, 17, 3.0, dtype)

  one, two = noise(7), noise(7)
  compiled = tf.function(noise, jit_compile=True)(tf.constant(7))
  assert np.all(one == two)
  np.testing.assert_allclose(one, compiled, rtol=1e-5, atol=1e-6)
  assert not np.any(one == noise(8))


@pytest.mark.core
@pytest.mark.parametrize('xla', [False, True])
@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_a_grid_that_the_noise_alone_decides(xla, dtype):
  rounded = tf.function(on_grid, jit_compile=xla)
  x = tf.constant(np.random.default_rng(0).normal(size=100), dtype)
  for stddev, step in ((1.0, 2**-6), (3.9, 2**-5), (1e-3, 2**-16), (64, 1.0)):
    found = rounded(x, tf.constant(stddev, tf.float64))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.rint(x / step) * step)
  np.testing.assert_array_equal(rounded(x, tf.constant(0.0, tf.float64)), x)
  # What must not be added to is NaN, and stays so.
  nothing = rounded(x * np.nan, tf.constant(np.nan, tf.float64))
  assert np.all(np.isnan(nothing))


def test_updates_are_on_it_however_large_the_sum_is():
  stream = StepStream(bytes(range(24)), 0)
  noise = normal(stream, 1000, 2.0, tf.float32)
  for total in (0.0, 0.3, 1e4 / 3):
    found = on_grid(total + noise, tf.constant(2.0, tf.float64)) * 2**5
    np.testing.assert_array_equal(found, np.rint(found))
