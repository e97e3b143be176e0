"""Noise of which each step takes back a part of that of the steps before."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdpflows.optimizers.noise import normal

if TYPE_CHECKING:
  from tfdpflows.training.step_noise import StepStream


class BandedNoise:
  """Rows of C^-1 z, one for each step, in the order of the steps.

  Row t is `(z_t - c_1 n_(t-1) - ... - c_(b-1) n_(t-b+1)) / c_0`, with n the
  rows before. All are functions of the secret of the plan alone: those that
  this process has not drawn are drawn when a later one is asked for. They are
  kept in no checkpoint, from which the noise could be removed.

  Args:
    coefficients: of C, two or more, see `mechanism.banded_coefficients`.
  """

  def __init__(self, coefficients: tuple[float, ...]):
    self._coefficients = coefficients
    self._past = {}

  def rows(
    self, stream: StepStream, size: int, dtype: tf.DType, allowed: tf.Tensor
  ) -> tf.Tensor:
    """Returns the noise of a step, `[size]`, for z of variance 1.

    Args:
      stream: the `StepStream` of the step, whose next draw it takes.
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
      z = normal(stream.at(step, draw), size, 1.0, dtype)
      row = (z - tf.reduce_sum(others * rows, 0)) / first
      return step + 1, tf.concat([row[None], rows[:-1]], 0)

    begin = drawn.read_value()
    end, rows = tf.while_loop(
      lambda step, unused_rows: tf.logical_and(allowed, step <= stream.step),
      next_row,
      (begin, past.read_value()),
      parallel_iterations=1,
    )
    past.assign(rows)
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
