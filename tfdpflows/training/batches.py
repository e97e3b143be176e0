"""Batches of a table: arrays that belong together row by row."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
  from tfdpflows.sampling import FixedSizeSampler, PoissonSampler
  from tfdpflows.training.replicas import Workers


def dataset(
  x: Any,
  sampler: PoissonSampler | FixedSizeSampler,
  workers: Workers,
  *,
  begin: Callable[[], Callable[[], int | None]],
  randomness: Callable[[int], np.random.Generator],
) -> tf.data.Dataset | tf.distribute.DistributedDataset:
  """Returns the batches of steps, in their order, as they are asked for.

  Args:
    x: arrays, see `arrays`.
    sampler: how a batch is drawn, such as a `PoissonSampler`.
    workers: `replicas.Workers`, each replica of which gets its share.
    begin: a function without arguments, called when batches begin to be asked
      for; gives a function that returns the next step, or `None` at the end.
    randomness: a function from a step to a fresh `np.random.Generator`.

  Returns:
    A dataset of (rows, weights, step), distributed where there are replicas.
    Its attribute `origin` has the `signature` of the rows, and a list
    `failures` that gets what was raised where a batch was drawn, of which
    TensorFlow raises the text only.
  """
  numbers = np.arange(sampler.num_examples)
  failures = []

  def draw():
    failures.clear()
    try:
      next_step = begin()
      while (step := next_step()) is not None:
        drawn = sampler.batch(numbers, randomness(step))
        for share, weights in workers.shares(*drawn):
          yield take(x, share, weights), weights, step
    except Exception as error:
      failures.append(error)
      raise

  weights, step = tf.TensorSpec([None]), tf.TensorSpec([], tf.int64)
  options = tf.data.Options()
  # There is nothing to tune, and the thread that tunes can sleep for a minute
  # before it lets an iterator go.
  options.autotune.enabled = False
  found = workers.distribute(
    tf.data.Dataset.from_generator(
      draw, output_signature=(signature(x), weights, step)
    ).with_options(options)
  )
  found.origin = types.SimpleNamespace(
    signature=signature(x), failures=failures
  )
  return found


def arrays(x: Any) -> Any:
  """Tuples and dicts, in any depth, of whatever makes an array, as arrays."""
  if isinstance(x, dict):
    return {key: arrays(value) for key, value in x.items()}
  return tuple(map(arrays, x)) if isinstance(x, tuple) else np.asarray(x)


def signature(x: Any) -> Any:
  """`tf.TensorSpec` of any number of rows of every array."""
  return tf.nest.map_structure(
    lambda a: tf.TensorSpec((None,) + a.shape[1:], tf.as_dtype(a.dtype)), x
  )


def take(x: Any, drawn: np.ndarray, weights: np.ndarray) -> Any:
  """Rows of every array by number; those of weight 0 are padding: zeros.

  What is text to TensorFlow comes as bytes, whatever it is in the array: on a
  value that it cannot convert TensorFlow would end, and quote the batch.
  """

  def rows_of(array):
    rows = array[drawn]
    rows[weights == 0] = b'' if array.dtype == object else array.dtype.type()
    if array.dtype.kind not in 'OU':
      return rows
    text = np.empty(rows.shape, object)
    text.reshape(-1)[:] = [_bytes(value) for value in rows.reshape(-1)]
    return text

  return tf.nest.map_structure(rows_of, x)


def _bytes(value):
  if isinstance(value, bytes):
    return value
  try:
    return str(value).encode('utf-8', 'replace')
  except Exception:
    return b''
