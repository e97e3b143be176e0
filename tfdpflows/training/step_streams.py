"""Random numbers that are a function of a secret and of a step alone."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_PHILOX = 1
_BYTES = 24
# Draws of one step: each has a counter of its own, and blocks without end.
_DRAWS = 256


class StepStreams:
  """One stream of random numbers for each step of a training.

  Philox (Salmon et al. 2011) with a counter of 128 bits for a state: nothing
  is kept from step to step, so that no checkpoint, no restore and no batch
  that was drawn in vain can put the noise of one step on the batch of another.
  The numbers are the same in graphs, eagerly and compiled by XLA, which those
  of `tf.random.stateless_uniform` are not.

  Args:
    key: 24 secret bytes: Philox's key, and where its counter starts.

  Raises:
    ValueError: for another number of bytes.

  #### Example

  >>> from tfdpflows.training.step_streams import StepStreams
  >>> streams = StepStreams(bytes(range(24)))
  >>> a = streams.at(7).uniform_full_int([2])
  >>> bool(tf.reduce_all(a == streams.at(7).uniform_full_int([2])))
  True
  """

  def __init__(self, key):
    if len(key) != _BYTES:
      raise ValueError(f'The key has {len(key)} bytes; it needs {_BYTES}.')
    self._key = np.frombuffer(key, np.uint64)

  def at(self, step):
    """Returns the `StepStream` of a step, an integer or a scalar tensor."""
    return StepStream(self._key, tf.cast(step, tf.uint64))


class StepStream:
  """The random numbers of one step; each draw is independent of the others."""

  def __init__(self, key, step):
    self._key = key[:1]
    # Draws differ in the upper half; the lower one counts blocks of a draw,
    # of which there are far less than 2^64.
    self._low, self._high = key[1], key[2] + step * _DRAWS
    self._draws = 0

  def uniform_full_int(self, shape, dtype=tf.uint64):
    """Returns random words, as `tf.random.Generator.uniform_full_int` does.

    Args:
      shape: of the result, a list of integers.
      dtype: tf.uint32 or tf.uint64.

    Raises:
      ValueError: after 256 draws.
    """
    if self._draws == _DRAWS:
      raise ValueError(
        f'A step has {_DRAWS} draws, and they are used up: draw more numbers '
        'at a time.'
      )
    counter = tf.stack([tf.constant(self._low), self._high + self._draws])
    self._draws += 1
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=shape, key=self._key, counter=counter, alg=_PHILOX, dtype=dtype
    )
