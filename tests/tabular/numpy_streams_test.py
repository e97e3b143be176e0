"""The numbers of NumPy's generator, made by TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows.tabular import numpy_streams


@tf.function(autograph=False)
def _bits(seed):
  state, increment = numpy_streams.seeded(seed)
  found = []
  for _ in range(3):
    state = numpy_streams.step(state, increment)
    found.append(numpy_streams.halves(numpy_streams.word(state)))
  return tf.concat(found, 0)


def test_seeds_of_one_word_and_of_two():
  for seed in (0, 1, 2**31, 2**32 - 1, 2**32, 2**40 + 7, 2**63 - 1):
    want = np.random.default_rng(seed).integers(0, 2**32, 6, dtype=np.uint32)
    found = _bits(tf.constant(seed, tf.int64)).numpy()
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize('columns', thinned([1, 2, 5], 2))
def test_uniform_blocks(columns):
  rng = np.random.default_rng(3)
  want = [rng.random([4, 6, columns], np.float32) for _ in range(4)]
  blocks = numpy_streams.UniformBlocks(3, 4, 6, columns)
  call = tf.function(blocks, autograph=False)
  for block, rows in ((0, 6), (1, 1), (3, 5)):
    found = call(tf.constant(block), tf.constant(rows)).numpy()
    np.testing.assert_array_equal(found, want[block][:, :rows])
