"""The random numbers of a step: apart from all others, alike everywhere."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfdpflows.randomness import Randomness
from tfdpflows.training.step_noise import StepStream


@pytest.mark.core
@pytest.mark.parametrize('dtype', ['uint32', 'uint64'])
def test_streams_by_step_are_apart_and_alike_in_graphs_and_xla(dtype):
  key = Randomness(seed=0).key('noise', 'a')[:24]

  def draw(step):
    stream = StepStream(key, step)
    return (
      stream.uniform_full_int([2, 401], dtype),
      stream.uniform_full_int([802], dtype),
    )

  found = []
  for step in (0, 1, 2, 255, 256, 2**40):
    eager, graph, xla = (
      [x.numpy().ravel() for x in f(tf.constant(step, tf.int64))]
      for f in (draw, tf.function(draw), tf.function(draw, jit_compile=True))
    )
    np.testing.assert_array_equal(eager, graph)
    np.testing.assert_array_equal(eager, xla)
    found += eager
  other = StepStream(Randomness(seed=0).key('noise', 'b')[:24], 0)
  found = np.stack([*found, other.uniform_full_int([802], dtype)])
  assert found.dtype == dtype
  # Chance gives one of 2^32 twice about once in a hundred times.
  assert len(np.unique(found)) > found.size - 3
  found = found / 2.0 ** (8 * found.itemsize)
  assert np.max(np.abs(np.corrcoef(found) - np.eye(len(found)))) < 0.2
  assert scipy.stats.kstest(found.ravel(), 'uniform').pvalue > 1e-4


def test_draws_of_a_step_end_before_those_of_the_next():
  stream = StepStream(Randomness(seed=0).key('noise')[:24], 0)
  for _ in range(256):
    stream.uniform_full_int([1])
  with pytest.raises(ValueError, match='used up'):
    stream.uniform_full_int([1])
