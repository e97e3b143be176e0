"""Noise of which each step takes back a part of that of the steps before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdpflows.optimizers.noise import normal

if TYPE_CHECKING:
  from tfdpflows.training.step_noise import StepStream


# In place of a number of rows, while they are written.
_BROKEN = -1


class BandedNoise:
  """Rows of C^-1 z, one for each step, in the order of the steps.

  Row t is `(z_t - c_1 n_(t-1) - ... - c_(b-1) n_(t-b+1)) / c_0`, with n the
  rows before. All are functions of z alone: those that this process has not
  drawn are drawn when a later one is asked for. They are kept in no checkpoint,
  from which the noise could be removed.

  Vectors of another size, type or draw of a step have a z of their own, and so
  are a matrix mechanism of their own. With one z for all, the rows of the steps
  before would be drawn from random words that other vectors were made of, in
  another way: C times the noise would not be independent from step to step.

  Args:
    coefficients: of C, two or more, see `mechanism.banded_coefficients`.
    stream_of: a function of a step, and of the number of the draw, the size and
      the name of the dtype, that returns the `StepStream` of z: for each three
      another one.
  """

  def __init__(
    self,
    coefficients: tuple[float, ...],
    stream_of: Callable[[tf.Tensor, int, int, str], StepStream],
  ):
    self._coefficients, self._stream_of = coefficients, stream_of
    self._past = {}

  def rows(
    self, stream: StepStream, size: int, dtype: tf.DType, allowed: tf.Tensor
  ) -> tf.Tensor:
    """Returns the noise of a step, `[size]`, for z of variance 1.

    Args:
      stream: the `StepStream` of the step, whose next draw this counts as.
      size: integer.
      dtype: tf.float32 or tf.float64.
      allowed: whether the step may be made; if not, nothing is drawn.

    Returns:
      `[size]`; NaN for a step that is not after those it was asked for before.
    """
    draw = stream.draws
    stream.draws += 1
    past, drawn = self._state(draw, size, dtype)
    first, *others = self._coefficients
    first = tf.constant(first, dtype)
    others = tf.constant(others, dtype)[:, None]

    def next_row(step, rows):
      random = self._stream_of(step, draw, size, dtype.name)
      z = normal(random, size, 1.0, dtype)
      row = (z - tf.reduce_sum(others * rows, 0)) / first
      return step + 1, tf.concat([row[None], rows[:-1]], 0)

    # After an update that was broken off between the two they may not fit
    # together: all rows are drawn anew.
    broken = drawn.read_value() < 0
    begin = tf.where(broken, tf.constant(0, tf.int64), drawn.read_value())
    kept = tf.where(broken, tf.zeros(past.shape, dtype), past.read_value())
    end, rows = tf.while_loop(
      lambda step, unused_rows: tf.logical_and(allowed, step <= stream.step),
      next_row,
      (begin, kept),
      parallel_iterations=1,
    )
    with tf.control_dependencies([end, rows]):
      breaks = drawn.assign(tf.constant(_BROKEN, tf.int64))
    with tf.control_dependencies([breaks]):
      written = past.assign(rows)
    with tf.control_dependencies([written]):
      drawn.assign(end)
    # Else these are the noise of a later step, which must not be used twice.
    is_next = tf.logical_and(allowed, begin <= stream.step)
    return tf.where(is_next, rows[0], tf.constant(math.nan, dtype))

  def _state(self, draw, size, dtype):
    """Returns the last rows of a draw, and the number of the first to come."""
    key = draw, size, dtype
    if key not in self._past:
      with tf.init_scope():
        shape = [len(self._coefficients) - 1, size]
        self._past[key] = (
          tf.Variable(tf.zeros(shape, dtype), trainable=False),
          tf.Variable(0, dtype=tf.int64, trainable=False),
        )
    return self._past[key]
