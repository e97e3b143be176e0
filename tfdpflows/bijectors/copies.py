"""Small parameters of a bijector, one copy for each example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

import tensorflow as tf

from tfdpflows import gradients


def copies(
  parameter: Union[tf.Variable, tf.Tensor], x: tf.Tensor, axes: int = 1
) -> tf.Tensor:
  """Returns a parameter in the shape in which it meets a batch.

  Args:
    parameter: variable of any shape.
    x: `[batch, ..., d]`; the parameter itself is returned for a single `[d]`.
    axes: number of last axes of x that belong to the parameter.

  Returns:
    `[batch, 1, ...] + parameter.shape`, with as many ones as there are axes
    between the batch and those of the parameter.
  """
  if x.shape.rank <= axes:
    return tf.convert_to_tensor(parameter)
  batch = tf.shape(x)[0]
  found = gradients.per_example(parameter, batch)
  between = x.shape.rank - 1 - axes
  shape = [batch] + [1] * between + parameter.shape.as_list()
  return tf.reshape(found, shape) if between else found


def shared(
  function: Callable[..., list[tf.Tensor]],
  parameters: Sequence[tf.Variable],
  x: tf.Tensor,
) -> list[tf.Tensor]:
  """Returns values of parameters alone, each in the shape of a batch.

  Args:
    function: of the parameters, returns a list of scalars.
    parameters: list of variables.
    x: `[batch, ..., d]`, or a single `[d]`.

  Returns:
    A list of `[batch, 1, ...]`, of one rank less than x.
  """
  if x.shape.rank == 1:
    return function(*parameters)
  batch = tf.shape(x)[0]
  values = gradients.shared(function, parameters, batch)
  shape = [batch] + [1] * (x.shape.rank - 2)
  return [tf.reshape(v, shape) for v in tf.unstack(values, axis=1)]
