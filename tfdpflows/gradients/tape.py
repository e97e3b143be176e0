"""A gradient tape with per-example gradients, and its primitives.

The gradient of a sum over examples mixes the examples at one place only: where
a parameter is applied to the batch. The primitives here record what is needed
to separate them, so that one backward pass to their outputs is enough.
`rules.py` turns the records into norms and clipped sums.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdpflows import _memory
from tfdpflows.gradients.rules import (
  Convolution,
  Copies,
  Linear,
  Lookup,
  PerExampleGradients,
  Shared,
)

_ACTIVE = threading.local()


class PerExampleTape(tf.GradientTape):
  """A `tf.GradientTape` that also gives per-example gradients.

  It records the primitives (`linear`, `per_example`, `embedding`), except those
  inside of a nested `tf.function`, loop or branch. Variables that are used
  there, or without a primitive, take a slower path, with the same result:

  - With `losses` and `rows`, their gradients are computed example by example,
    from the rows again. Nothing an example holds reaches another one.
  - Without, they come from `tape.jacobian`, which cannot keep an example that
    is not finite apart from the others. Such an example is an error when it
    runs (whoever sees the error learns that the example is there), and under
    `jit_compile=True`, where the check would be dropped, these variables are
    refused.

  #### Formal guarantee

  The gradient of example i is a function of row i and of the parameters,
  whatever the other rows hold, if element i of the loss is and the backward
  pass keeps rows apart, as that of TensorFlow's own operations does (a
  `tf.custom_gradient` that clips the gradients of a whole batch does not);
  variables that come from `tape.jacobian` are the exception named above.

  Args:
    watch_accessed_variables: as in `tf.GradientTape`.
    losses: the function that the tape records: of the rows, returns `[batch]`,
      of which element i depends on row i alone. If it draws random numbers,
      those of the second computation are others.
    rows: structure of tensors `[batch, ...]`.

  Raises:
    ValueError: for only one of `losses` and `rows`.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import gradients
  >>> kernel = tf.Variable([[1.], [2.]])
  >>> with gradients.PerExampleTape() as tape:
  ...   loss = gradients.linear(tf.constant([[1., 0.], [0., 3.]]), kernel)[:, 0]
  >>> per_example = tape.per_example_gradients(loss, [kernel])
  >>> per_example.squared_norms().numpy().tolist()
  [1.0, 9.0]
  """

  def __init__(
    self,
    watch_accessed_variables: bool = True,
    losses: Callable[[Any], tf.Tensor] | None = None,
    rows: Any = None,
  ):
    super().__init__(
      persistent=True, watch_accessed_variables=watch_accessed_variables
    )
    if (losses is None) != (rows is None):
      raise ValueError(
        'PerExampleTape takes losses and rows together: the losses are '
        'computed again from the rows.'
      )
    self.losses = None if losses is None else _unseen(losses)
    self.rows = rows
    self.records = []
    self._context = None

  def __enter__(self):
    if tf.executing_eagerly():
      # Of the same tensors, or no gradient reaches what they were made of.
      _memory.forget_bijector_results()
    _stack().append(self)
    self._context = _context()
    return super().__enter__()

  def __exit__(self, typ, value, traceback):
    _stack().remove(self)
    return super().__exit__(typ, value, traceback)

  def per_example_gradients(
    self, loss: tf.Tensor, variables: Sequence[tf.Variable]
  ) -> PerExampleGradients:
    """Returns the gradient of each example's loss, unevaluated.

    Args:
      loss: `[batch]`, the loss of each example; element i may depend on row i
        of the batch alone.
      variables: the trainable variables, as a flat list.

    Returns:
      A `PerExampleGradients`.

    Raises:
      ValueError: if `loss` is not a vector, if its length differs from the
        batch that a primitive saw, or a variable has no gradient.
    """
    return PerExampleGradients(self, loss, variables)


def linear(
  x: tf.Tensor,
  kernel: tf.Variable | tf.Tensor,
  bias: tf.Variable | tf.Tensor | None = None,
  mask: tf.Tensor | None = None,
) -> tf.Tensor:
  """Returns `x @ (kernel * mask) + bias`, with per-example gradients.

  Args:
    x: `[batch, ..., in]`. Axis 0 is the axis of examples.
    kernel: variable (or tensor) `[in, out]`; one of another shape is read as
      `[in, rest]`, in the order of its elements.
    bias: variable (or tensor) `[out]`, or `None`.
    mask: 0/1 tensor `[in, out]`, or `None`. Multiplied in the forward pass, so
      that no masked weight ever has a gradient. Variables that the mask, or a
      bias which is no variable, was computed from take the slow path.

  Returns:
    `[batch, ..., out]`.
  """
  x = tf.convert_to_tensor(x)
  if isinstance(mask, tf.Variable):
    mask = tf.convert_to_tensor(mask)
  tape = _recording(kernel)
  weights, offset = _without_gradient(tape, kernel, bias)
  if mask is not None:
    weights = weights * mask
  if weights.shape.rank != 2:
    weights = tf.reshape(weights, [x.shape[-1], -1])
  y = tf.matmul(x, weights)
  if bias is not None:
    y = y + offset
  if tape is None:
    return y
  tape.watch(y)
  tape.records.append(Linear(kernel, bias, mask, x, y))
  return y


def _without_gradient(tape, kernel, bias):
  """Returns them; of what a tape records gradients flow by the record alone."""
  if tape is None:
    return kernel, bias
  if isinstance(bias, tf.Variable):
    bias = tf.stop_gradient(bias)
  return tf.stop_gradient(kernel), bias


def convolution(
  x: tf.Tensor,
  kernel: tf.Variable,
  convolve: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
  gradients: Callable[[tf.Tensor, tf.Tensor], Any],
) -> tf.Tensor:
  """Returns `convolve(x, kernel)`, with per-example gradients.

  Args:
    x: `[batch, ...]`.
    kernel: variable.
    convolve: a function of inputs and kernel that returns `[batch, ...]`, and
      is linear in each.
    gradients: a function of inputs and of the gradient at the output, which
      keeps examples apart. Returns those by the kernel, `[batch, ...]` with the
      elements of the kernel in their order; or, where it is cheaper to store,
      two tensors `[batch, t, in]` and `[batch, t, out]` of which they are the
      product over t.

  Returns:
    `[batch, ...]`.
  """
  tape = _recording(kernel)
  if tape is None:
    return convolve(x, kernel)
  y = convolve(x, tf.stop_gradient(kernel))
  tape.watch(y)
  tape.records.append(Convolution(kernel, gradients, x, y))
  return y


def per_example(
  parameter: tf.Variable | tf.Tensor, batch: int | tf.Tensor
) -> tf.Tensor:
  """Returns one copy of a parameter per example, with per-example gradients.

  For parameters that are small enough to be stored once per example: biases,
  scales, low-rank and LU factors, spline logits.

  Args:
    parameter: variable (or tensor) of any shape.
    batch: number of examples, a scalar integer.

  Returns:
    `[batch] + parameter.shape`.
  """
  copies = tf.broadcast_to(
    parameter, tf.concat([[batch], tf.shape(parameter)], 0)
  )
  tape = _recording(parameter)
  if tape is None:
    return copies
  copies = tf.stop_gradient(copies)
  tape.watch(copies)
  tape.records.append(Copies(parameter, copies))
  return copies


def embedding(ids: tf.Tensor, table: tf.Variable | tf.Tensor) -> tf.Tensor:
  """Returns rows of a table, with per-example gradients.

  Args:
    ids: integer tensor `[batch, ...]`. Axis 0 is the axis of examples. The
      result is zero for an id that is no row of the table, on every device: an
      error would show that some example has it.
    table: variable (or tensor) `[vocabulary, dim]`.

  Returns:
    `[batch, ..., dim]`.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import gradients
  >>> table = tf.Variable(tf.zeros([1000, 1]))
  >>> with gradients.PerExampleTape() as tape:
  ...   found = gradients.embedding(tf.constant([[7, 7], [7, 8]]), table)
  ...   loss = tf.reduce_sum(found, [1, 2])
  >>> per_example = tape.per_example_gradients(loss, [table])
  >>> per_example.squared_norms().numpy().tolist()
  [4.0, 2.0]
  """
  tape = _recording(table)
  if tape is None:
    return _rows_of(table, ids)
  y = _rows_of(tf.stop_gradient(table), ids)
  tape.watch(y)
  tape.records.append(Lookup(table, ids, y))
  return y


def shared(
  function: Callable[..., Sequence[tf.Tensor]],
  parameters: Sequence[tf.Variable | tf.Tensor],
  batch: int | tf.Tensor,
) -> tf.Tensor:
  """Returns values of parameters alone, such as log-determinants, per example.

  The gradient of example i by a parameter is `sum_k c_ik J_k`, with its
  gradient `c_i` at the k values and their Jacobian J, which is computed once.

  Args:
    function: of the parameters, in this order; returns a list of k scalars.
      Other variables that it uses take the slow path.
    parameters: list of variables (or tensors).
    batch: number of examples, a scalar integer.

  Returns:
    `[batch, k]`.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import gradients
  >>> from tfdpflows.gradients.tape import shared
  >>> log_scale = tf.Variable([1., 2.])
  >>> with gradients.PerExampleTape() as tape:
  ...   total = shared(lambda s: [tf.reduce_sum(s)], [log_scale], 3)
  ...   loss = total[:, 0] * [1., 2., 3.]
  >>> per_example = tape.per_example_gradients(loss, [log_scale])
  >>> per_example.squared_norms().numpy().tolist()
  [2.0, 8.0, 18.0]
  """
  tape = _recording(parameters[0])
  if tape is None or not all(isinstance(p, tf.Variable) for p in parameters):
    values = tf.stack(function(*parameters))
    return tf.broadcast_to(values, [batch, values.shape[0]])
  fixed = [tf.stop_gradient(p) for p in parameters]
  with tf.GradientTape(persistent=True) as inner:
    inner.watch(fixed)
    values = function(*fixed)
  zero = tf.UnconnectedGradients.ZERO
  rows = [inner.gradient(v, fixed, unconnected_gradients=zero) for v in values]
  jacobians = [tf.stop_gradient(tf.stack(of_one)) for of_one in zip(*rows)]
  # By the parameters nothing flows here: they were stopped before.
  values = tf.stack(values)
  output = tf.broadcast_to(values, [batch, len(rows)])
  tape.watch(output)
  tape.records.append(Shared(list(parameters), jacobians, output))
  return output


def _rows_of(table, ids):
  ids = tf.convert_to_tensor(ids)
  size = tf.cast(tf.shape(table)[0], ids.dtype)
  named = tf.logical_and(ids >= 0, ids < size)
  found = tf.gather(table, tf.where(named, ids, tf.zeros_like(ids)))
  return tf.where(named[..., None], found, tf.zeros_like(found))


def _unseen(function):
  """Returns the function, run without any tape recording it."""

  def run(*args):
    stack = _stack()
    stack.append(None)
    try:
      return function(*args)
    finally:
      stack.pop()

  return run


def _stack():
  if not hasattr(_ACTIVE, 'stack'):
    _ACTIVE.stack = []
  return _ACTIVE.stack


def _context():
  """Returns the graph that operations are added to, `None` when eager."""
  return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _recording(parameter):
  """Returns the innermost tape if it can see what is computed here."""
  stack = _stack()
  if not stack or stack[-1] is None or not isinstance(parameter, tf.Variable):
    return None
  # A tensor made inside a nested function, loop or branch belongs to that
  # graph: the tape outside can neither watch it nor differentiate by it.
  tape = stack[-1]
  return tape if tape._context is _context() else None
