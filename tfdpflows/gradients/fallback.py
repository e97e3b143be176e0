"""Per-example gradients of variables that were used without the primitives.

Given the losses as a function of the rows, each example is computed by itself,
and nothing that it holds can reach another one. Otherwise `tape.jacobian` is
used. It adds the whole batch up with weights 0 and 1: one example which is not
finite makes all others nan, since `0 * nan` is nan. Leaving all of them out
would be no bounded change, so that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.python.ops import control_flow_util

from tfdpflows._autograph import converted
from tfdpflows.gradients import grouped


def one_by_one(
  losses: Callable[[Any], tf.Tensor],
  rows: Any,
  variables: Sequence[tf.Variable],
  draws: int = 1,
  padded: bool = True,
) -> list[tf.Tensor]:
  """Returns the gradients of each example's loss, computed by itself.

  Args:
    losses: a function of rows, returns `[n]`, one loss per row.
    rows: structure of tensors `[batch * draws, ...]`; `None` stays out of it.
    variables: list of variables.
    draws: number of rows that an example has in a row; their losses are
      averaged.
    padded: whether to compute one example of zeros besides, where there may be
      none: XLA cannot compile a loop over nothing.

  Returns:
    `[batch] + variable.shape` for each variable.
  """
  call = converted(losses)
  flat = tf.nest.flatten(rows)
  examples = [tf.convert_to_tensor(x) for x in flat if x is not None]
  padded = padded and not examples[0].shape[0]
  if padded:
    examples = [
      tf.pad(x, [[0, draws]] + [[0, 0]] * (x.shape.rank - 1)) for x in examples
    ]
  examples = [by_example(x, draws) for x in examples]

  def gradients(example):
    found = iter(example)
    row = [None if x is None else next(found) for x in flat]
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(call(tf.nest.pack_sequence_as(rows, row)))
    zero = tf.UnconnectedGradients.ZERO
    found = tape.gradient(loss, variables, unconnected_gradients=zero)
    return [tf.convert_to_tensor(g) for g in found]

  signature = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
  found = tf.map_fn(gradients, examples, fn_output_signature=signature)
  return [g[:-1] if padded else g for g in found]


def by_example(x: tf.Tensor, draws: int) -> tf.Tensor:
  """Returns `[batch * draws, ...]` as `[batch, draws, ...]`."""
  sizes = [tf.shape(x)[i] if n is None else n for i, n in enumerate(x.shape)]
  return tf.reshape(x, [-1, draws, *sizes[1:]])


def jacobians(
  tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor | None]:
  """Returns `[batch] + variable.shape` for each, `None` if not connected.

  Raises:
    ValueError: under XLA, which would drop the check of the values.
    tf.errors.InvalidArgumentError: when it runs, if a value is not finite.
  """
  names = ', '.join(v.name for v in variables)
  if under_xla():
    raise ValueError(
      f'These variables were used without the primitives of tfdpflows.'
      f'gradients: {names}. Their per-example gradients would come from '
      'tape.jacobian, where an example that is not finite spoils all others, '
      'and XLA drops the check for that. Use linear, per_example or embedding, '
      'PerExampleTape(losses=..., rows=...), or compile without '
      'jit_compile=True.'
    )
  grouped.mend()
  return [
    None if found is None else _checked(found, variable)
    for found, variable in zip(tape.jacobian(loss, variables), variables)
  ]


def _checked(jacobian, variable):
  return tf.debugging.check_numerics(
    tf.convert_to_tensor(jacobian),
    'A per-example gradient is not finite, and was mixed with the others in '
    f'tape.jacobian for the variable {variable.name}. Use it through '
    'tfdpflows.gradients.linear or per_example, use PerExampleTape(losses=..., '
    'rows=...), or remove the example',
  )


def nan_if_mixed(jacobians: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
  """Returns 0, or nan where one of the Jacobians is not finite.

  Where XLA compiles a step without being asked to (auto-clustering, or a
  function that had been traced before) the check is dropped silently. A sum
  that is nan is as visible as the error would have been, where one of zeros
  would look like that of an empty batch.
  """
  if not jacobians:
    return tf.zeros([], dtype)
  kept = [tf.reduce_all(tf.math.is_finite(j)) for j in jacobians]
  nan = tf.constant(float('nan'), dtype)
  return tf.where(tf.reduce_all(kept), tf.zeros([], dtype), nan)


def under_xla() -> bool:
  """Returns whether a jit-compiled function, or a part of it, is traced."""
  # TensorFlow has no public name for it. Its own while loops ask the same.
  if tf.executing_eagerly():
    return False
  graph = tf.compat.v1.get_default_graph()
  return control_flow_util.GraphOrParentsInXlaContext(graph)


_LOGGED = set()


def log(variable: tf.Variable) -> None:
  """Logs once that a variable takes the slow path."""
  if variable.name not in _LOGGED:
    _LOGGED.add(variable.name)
    logging.info(
      'tfdpflows: %s %s is used without `linear` or `per_example`; its '
      'per-example gradients are computed one by one, or by tape.jacobian, '
      'which is slower.',
      variable.name,
      variable.shape,
    )
