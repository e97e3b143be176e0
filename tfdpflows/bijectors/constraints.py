"""Constraints that keep maps invertible, and inverses by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

# Lower bound of diagonals and of slopes.
FLOOR = 1e-3


def positive(x: tf.Tensor) -> tf.Tensor:
  """Returns a softplus that is 1 at zero and above `FLOOR`."""
  return FLOOR + tf.nn.softplus(x + math.log(math.expm1(1 - FLOOR)))


def squeeze(t: tf.Tensor) -> tf.Tensor:
  """Returns f(t) with `t f(t) > FLOOR - 1`, and f = 1 for t >= 0.

  For t < 0, t f(t) is a tanh.
  """
  limit = 1 - FLOOR
  # Bounded away from zero: the branch that is not taken must not be 0 / 0.
  below = tf.minimum(t, -1e-3)
  f = limit * tf.tanh(below / limit) / below
  near = 1 - tf.square(t / limit) / 3
  return tf.where(t >= 0, tf.ones_like(t), tf.where(t < -1e-3, f, near))


def solve_monotone(
  slope: tf.Tensor, shift: tf.Tensor, target: tf.Tensor
) -> tf.Tensor:
  """Returns a with `a + slope * tanh(a + shift) = target`.

  By bisection, and one step of Newton's method that gives the gradients of the
  solution.

  Args:
    slope: above -1; all arguments `[...]`, of shapes that broadcast.
    shift: see above.
    target: see above.
  """
  zero = tf.zeros_like(slope + shift + target)
  slope, shift, target = slope + zero, shift + zero, target + zero
  k, b, c = map(tf.stop_gradient, (slope, shift, target))
  low, high = c - tf.abs(k), c + tf.abs(k)
  a = bisect(lambda x: x + k * tf.tanh(x + b) > c, low, high)
  t = tf.tanh(a + shift)
  gap = a + slope * t - target
  return a - gap / tf.stop_gradient(1 + k * (1 - t * t))


def bisect(
  above: Callable[[tf.Tensor], tf.Tensor], low: tf.Tensor, high: tf.Tensor
) -> tf.Tensor:
  """Returns the root of a monotone function, without gradients.

  Args:
    above: function of `[...]`; whether each is above the root.
    low: `[...]`, not above it.
    high: `[...]`, not below it.
  """
  steps = 8 * low.dtype.size + 8  # One bit each.

  def halve(i, low, high):
    middle = low + (high - low) / 2
    over = above(middle)
    low = tf.where(over, low, middle)
    return i + 1, low, tf.where(over, middle, high)

  _, low, high = tf.while_loop(
    lambda i, low, high: i < steps,
    halve,
    (0, low, high),
    maximum_iterations=steps,
  )
  return tf.stop_gradient(low + (high - low) / 2)
