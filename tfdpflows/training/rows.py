"""Arrays that belong together row by row: a table, and labels perhaps."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_BLOCK = 65536


def arrays(x):
  """Tuples and dicts, in any depth, of whatever makes an array, as arrays."""
  if isinstance(x, dict):
    return {key: arrays(value) for key, value in x.items()}
  return tuple(map(arrays, x)) if isinstance(x, tuple) else np.asarray(x)


def signature(x):
  """`tf.TensorSpec` of any number of rows of every array."""
  return tf.nest.map_structure(
    lambda a: tf.TensorSpec((None,) + a.shape[1:], tf.as_dtype(a.dtype)), x
  )


def fingerprints(x, randomness):
  """Digests of every array, that say nothing without the `Randomness`.

  Block by block: an array may be a file that is larger than the memory.
  """
  return [
    randomness.fingerprint(_plain(array[start : start + _BLOCK]))
    for array in tf.nest.flatten(x)
    for start in range(0, len(array), _BLOCK)
  ]


def take(x, drawn, weights):
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


def _plain(array):
  # The bytes of an array of objects are where they lie in memory.
  if array.dtype != object:
    return array
  return np.array([_repr(value) for value in array.ravel()])


def _repr(value):
  try:
    return repr(value)
  except Exception:  # Whatever a row holds, training goes on.
    return ''
