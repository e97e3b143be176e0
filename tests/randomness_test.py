"""Streams of random numbers: replayable, apart, from one secret."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfdpflows.randomness import Randomness


@pytest.mark.core
def test_streams_are_functions_of_secret_and_name():
  a = Randomness()
  b = Randomness(secret=a.secret)
  for stream in (('batch', 3), ('noise',), ('batch', '3')):
    assert a.numpy(*stream).normal() == b.numpy(*stream).normal()
    assert (
      a.tensorflow(*stream).normal([]).numpy()
      == b.tensorflow(*stream).normal([]).numpy()
    )
  draws = [
    a.numpy(*stream).normal()
    for stream in (('batch', 3), ('batch', 4), ('batch', '3'), ('batch/int:3',))
  ]
  assert len(set(draws)) == 4
  assert Randomness().numpy('x').normal() != Randomness().numpy('x').normal()


def test_seed_marks_and_fingerprint_needs_the_secret():
  assert not Randomness().seeded
  assert Randomness(seed=0).seeded
  x = np.arange(6.0)
  a = Randomness(seed=0)
  assert a.fingerprint(x) == Randomness(seed=0).fingerprint(x)
  assert a.fingerprint(x) != Randomness(seed=1).fingerprint(x)
  assert a.fingerprint(x) != a.fingerprint(x.reshape(2, 3))
  assert a.fingerprint(x) != a.fingerprint(x + 1)


@pytest.mark.core
@pytest.mark.parametrize('dtype', ['uint32', 'uint64'])
def test_streams_by_step_are_apart_and_alike_in_graphs_and_xla(dtype):
  streams = Randomness(seed=0).by_step('noise', 'a')

  def draw(step):
    stream = streams.at(step)
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
  other = Randomness(seed=0).by_step('noise', 'b').at(0)
  found = np.stack([*found, other.uniform_full_int([802], dtype)])
  assert found.dtype == dtype
  # Chance gives one of 2^32 twice about once in a hundred times.
  assert len(np.unique(found)) > found.size - 3
  found = found / 2.0 ** (8 * found.itemsize)
  assert np.max(np.abs(np.corrcoef(found) - np.eye(len(found)))) < 0.2
  assert scipy.stats.kstest(found.ravel(), 'uniform').pvalue > 1e-4


def test_draws_of_a_step_end_before_those_of_the_next():
  stream = Randomness(seed=0).by_step('noise').at(0)
  for _ in range(256):
    stream.uniform_full_int([1])
  with pytest.raises(ValueError, match='used up'):
    stream.uniform_full_int([1])


@pytest.mark.core
@pytest.mark.parametrize('label', [0.5, True, None, b'a', ('a',)])
def test_what_would_be_rounded_names_no_stream(label):
  """0.5 and 0.9 had the same noise."""
  randomness = Randomness(seed=0)
  for use in (randomness.key, randomness.numpy, randomness.claim):
    with pytest.raises(TypeError, match='label that is a str or an int'):
      use('noise', label)
  assert randomness.key(np.int64(3)) == randomness.key(3)


def test_bad_input():
  with pytest.raises(ValueError, match='either'):
    Randomness(seed=1, secret=b'0' * 32)
  with pytest.raises(ValueError, match='5 bytes'):
    Randomness(secret=b'short')
