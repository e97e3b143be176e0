"""A gradient tape that sees per-example gradients, and its two primitives.

The gradient of a sum over examples mixes the examples at one place only: where
a parameter meets the batch. The two primitives here note what is needed to
unmix them, so that one backward pass to their outputs is enough. Rules turn
the notes into norms and clipped sums (`rules.py`).
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tfdpflows.gradients.rules import PerExampleGradients

_ACTIVE = threading.local()


class Linear(NamedTuple):
  """One use of `linear`: its input and its output."""

  kernel: Any
  bias: Any
  mask: Optional[tf.Tensor]
  inputs: tf.Tensor  # [batch, ..., in]
  output: tf.Tensor  # [batch, ..., out]


class Copies(NamedTuple):
  """One use of `per_example`: a copy of `parameter` for every example."""

  parameter: Any
  output: tf.Tensor  # [batch] + parameter.shape


class PerExampleTape(tf.GradientTape):
  """A `tf.GradientTape` that also yields per-example gradients.

  While it records, `linear` and `per_example` note what they did. Primitives
  that run inside a nested `tf.function`, loop or branch are out of its sight;
  their variables then take the slow way, with the same result.

  Args:
    watch_accessed_variables: as in `tf.GradientTape`.

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

  def __init__(self, watch_accessed_variables=True):
    super().__init__(
      persistent=True, watch_accessed_variables=watch_accessed_variables
    )
    self.records = []
    self._context = None

  def __enter__(self):
    _stack().append(self)
    self._context = _context()
    return super().__enter__()

  def __exit__(self, typ, value, traceback):
    _stack().remove(self)
    return super().__exit__(typ, value, traceback)

  def per_example_gradients(self, loss, variables):
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
    return PerExampleGradients(self, loss, variables, self.records)


def linear(x, kernel, bias=None, mask=None):
  """`x @ (kernel * mask) + bias`, noted by the `PerExampleTape` in force.

  Args:
    x: `[batch, ..., in]`. Axis 0 is the axis of examples.
    kernel: variable (or tensor) `[in, out]`.
    bias: variable (or tensor) `[out]`, or `None`.
    mask: 0/1 tensor `[in, out]`, or `None`. Multiplied in the forward pass, so
      that no masked weight ever has a gradient.

  Returns:
    `[batch, ..., out]`.
  """
  weights = kernel if mask is None else kernel * mask
  tape = _recording(kernel)
  if tape is None:
    y = tf.matmul(x, weights)
    return y if bias is None else y + bias
  y = tf.matmul(x, tf.stop_gradient(weights))
  if bias is not None:
    y = y + tf.stop_gradient(bias)
  tape.watch(y)
  tape.records.append(Linear(kernel, bias, mask, x, y))
  return y


def per_example(parameter, batch):
  """One copy of a small parameter per example: its gradient is per example.

  For biases, scales, low-rank and LU factors, spline logits: parameters that
  are small enough to be stored once per example.

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


def _stack():
  if not hasattr(_ACTIVE, 'stack'):
    _ACTIVE.stack = []
  return _ACTIVE.stack


def _context():
  """Identifies the graph in which operations are being recorded, if any."""
  return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _recording(parameter):
  """Returns the innermost tape if it can see what is computed here."""
  stack = _stack()
  if not stack or not isinstance(parameter, tf.Variable):
    return None
  # A tensor made inside a nested function, loop or branch belongs to that
  # graph: the tape outside can neither watch it nor differentiate by it.
  tape = stack[-1]
  return tape if tape._context is _context() else None
