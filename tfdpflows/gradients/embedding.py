"""Per-example gradients of a table that examples look rows up in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf


class EmbeddingTerm:
  """A table `[vocabulary, dim]`, of which example i used t rows.

  Its gradient of one example is zero but for those rows, where it is the sum
  of the output gradients at the positions that name the same row. These sums,
  `[batch, t, dim]` as the output gradients themselves, are all that is kept:
  `[batch, vocabulary, dim]` is never made. What is clipped and what is added
  are the same numbers, so that positions which cancel cannot hide a length
  from the norm. An id that is no row of the table names nothing: its position
  is left out of the norm and of the sum.

  Args:
    table: the variable.
    ids: integer tensors `[batch, ...]`, one per use.
    gradients: output gradients `[batch, ..., dim]`, one per use.
  """

  def __init__(
    self,
    table: tf.Variable,
    ids: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
  ):
    self._shape = table.shape
    batch = tf.shape(gradients[0])[0]
    single = len(ids) == 1 and ids[0].shape[1:].num_elements() == 1
    shapes = [[batch, _positions(i), self._shape[1]] for i in ids]
    ids = [tf.reshape(i, s[:2]) for i, s in zip(ids, shapes)]
    ids = tf.concat([tf.cast(i, tf.int64) for i in ids], 1)
    rows = tf.concat([tf.reshape(g, s) for g, s in zip(gradients, shapes)], 1)
    # Where looking such an id up is no error (XLA, GPU), it must not end up in
    # the rows of another example.
    named = tf.logical_and(ids >= 0, ids < self._shape[0])
    ids = tf.where(named, ids, -tf.ones_like(ids))
    rows = tf.where(named[..., None], rows, tf.zeros_like(rows))
    if not single:
      ids, rows = _sum_equal(ids, rows)
    self._ids, self._rows = ids, rows

  def squared_norms(self) -> tf.Tensor:
    rows = self._rows
    squared = tf.reduce_sum(rows * rows, [1, 2])
    # What the squares lost when they were rounded to zero.
    lost = np.finfo(rows.dtype.as_numpy_dtype).tiny
    size = tf.shape(rows)[1] * tf.shape(rows)[2]
    return squared + tf.cast(size, rows.dtype) * lost

  def weighted_sum(
    self, weights: tf.Tensor, clean: Callable[[tf.Tensor], tf.Tensor]
  ) -> tf.Tensor:
    rows = clean(self._rows) * weights[:, None, None]
    return self._scatter(rows, self._ids, self._shape[0])

  def materialise(self) -> tf.Tensor:
    batch, vocabulary = tf.shape(self._rows)[0], self._shape[0]
    start = tf.range(tf.cast(batch, tf.int64))[:, None] * vocabulary
    ids = tf.where(self._ids < 0, self._ids, self._ids + start)
    found = self._scatter(self._rows, ids, batch * vocabulary)
    return tf.reshape(found, [batch, vocabulary, self._shape[1]])

  def _scatter(self, rows, ids, size):
    rows = tf.reshape(rows, [-1, self._shape[1]])
    return tf.math.unsorted_segment_sum(rows, tf.reshape(ids, [-1]), size)


def _positions(ids):
  """Number of ids per example, as an `int` where that is known."""
  if ids.shape[1:].is_fully_defined():
    return ids.shape[1:].num_elements()
  return tf.reduce_prod(tf.shape(ids)[1:])


def _sum_equal(ids, rows):
  """Sums each example's rows of equal ids.

  Returns:
    ids `[batch, t]`, each but once and negative where nothing is left, and the
    sums `[batch, t, dim]`.
  """
  batch, uses = tf.shape(ids)[0], tf.shape(ids)[1]
  order = tf.argsort(ids, axis=1)
  ids = tf.gather(ids, order, batch_dims=1)
  rows = tf.gather(rows, order, batch_dims=1)
  previous = tf.concat([ids[:, :1], ids[:, :-1]], 1)
  group = tf.cumsum(tf.cast(ids != previous, tf.int32), 1)
  group = tf.reshape(group + uses * tf.range(batch)[:, None], [-1])
  shape = tf.shape(rows)
  rows = tf.reshape(rows, [-1, shape[2]])
  # The maximum over nothing is the least integer, and no row of the table.
  ids = tf.math.unsorted_segment_max(tf.reshape(ids, [-1]), group, batch * uses)
  rows = tf.math.unsorted_segment_sum(rows, group, batch * uses)
  return tf.reshape(ids, shape[:2]), tf.reshape(rows, shape)
