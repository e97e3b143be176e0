"""Sums over a batch in the memory of a part of it."""

from __future__ import annotations

import tensorflow as tf


def sum_over_chunks(function, tensors, size, zeros):
  """Returns the sum of `function(chunk)` over consecutive chunks of a batch.

  The chunks are of one length, as few as can be: a batch of 1,100 is two of
  550, if `size` is 1,024.

  Args:
    function: of a structure as `tensors`, with fewer rows.
    tensors: structure of tensors `[batch, ...]`; zeros are appended to them.
    size: length of the longest chunk.
    zeros: structure of what the function returns, for no chunk at all.
  """
  first = tf.nest.flatten(tensors)[0]
  known = first.shape[0] is not None
  batch = first.shape[0] if known else tf.shape(first)[0]
  if known and batch <= size:
    return function(tensors)
  count = -(-batch // size)
  length = -(-batch // (max(count, 1) if known else tf.maximum(count, 1)))

  def split(x):
    padding = [[0, count * length - batch]] + [[0, 0]] * (x.shape.rank - 1)
    sizes = [tf.shape(x)[i] if n is None else n for i, n in enumerate(x.shape)]
    return tf.reshape(tf.pad(x, padding), [count, length, *sizes[1:]])

  parts = tf.nest.map_structure(split, tensors)

  def body(i, sums):
    found = function(tf.nest.map_structure(lambda x: x[i], parts))
    return i + 1, tf.nest.map_structure(tf.add, sums, found)

  # One chunk after the other, or all would be in memory together.
  return tf.while_loop(
    lambda i, unused_sums: i < count, body, (0, zeros), parallel_iterations=1
  )[1]
