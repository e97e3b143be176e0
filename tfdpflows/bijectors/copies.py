"""Copies of small parameters, one for each example."""

from __future__ import annotations

import tensorflow as tf

from tfdpflows import gradients


def copies(
  parameter: tf.Variable | tf.Tensor, x: tf.Tensor, axes: int = 1
) -> tf.Tensor:
  """Returns per-example copies of a parameter that broadcast with x.

  Args:
    parameter: variable of any shape.
    x: `[batch, ..., d]`; the parameter itself is returned for a single `[d]`.
    axes: number of last axes of x that belong to the parameter.

  Returns:
    `[batch, 1, ...] + parameter.shape`, of the rank of x for `axes` axes.
  """
  if x.shape.rank <= axes:
    return tf.convert_to_tensor(parameter)
  batch = tf.shape(x)[0]
  found = gradients.per_example(parameter, batch)
  between = x.shape.rank - 1 - axes
  shape = [batch] + [1] * between + parameter.shape.as_list()
  return tf.reshape(found, shape) if between else found
