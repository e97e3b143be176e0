"""Errors of private steps, without what they say of the rows.

TensorFlow's errors quote values: one label out of range prints all labels of
the batch. What is raised in their place has a text that is fixed before any
row is read, no cause and no context, so that no traceback shows them either.
That there is an error at all still tells of the rows, and TensorFlow's own
log, on the standard error of the process, is written before Python hears of
it: `graph_scan` refuses, before the first row, what could raise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
  from tfdpflows._keras import keras

_FAILED = (
  'A private batch could not be computed. What the error says is not shown: '
  'it may quote rows. That there is one is outside of the privacy guarantee '
  'already: do not publish it, nor that training ended here. To see the '
  'reason, train the same model on rows that are public or made up.'
)
_MEMORY = (
  'TensorFlow ran out of memory in a private step. Give the optimizer a '
  'smaller chunk_size, or the plan a smaller expected batch.'
)
_WORKERS = (
  'A private step was broken off: a worker or a device could not be reached. '
  'The output of the other processes may say why.'
)
# The start of the text of `StepNoise.take`, which tells of no row.
NO_STEP = 'This is no step that the plan has open.'
_KINDS = {
  tf.errors.ResourceExhaustedError: _MEMORY,
  tf.errors.UnavailableError: _WORKERS,
  tf.errors.AbortedError: _WORKERS,
  tf.errors.CancelledError: _WORKERS,
  tf.errors.DeadlineExceededError: _WORKERS,
}


def without_rows(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns the function with errors of TensorFlow replaced.

  Errors of Python are left: outside of eager execution they come from making
  the graph, before any row is read, and are of use.
  """

  @functools.wraps(function)
  def run(*args, **kwargs):
    try:
      return function(*args, **kwargs)
    except tf.errors.OpError as caught:
      if _is_end(caught):
        raise
      error = _replaced(caught)
    # Not in the `except`, where the old one would be its context.
    raise error

  run.without_rows = True
  return run


def of_training(
  function: Callable[..., Any], optimizer: keras.optimizers.Optimizer
) -> Callable[..., Any]:
  """Returns the function that Keras calls for each batch, `without_rows`.

  Where the optimizer is not private it is left as it is.
  """
  # As the DP optimizers here and those of TF Privacy have it.
  private = hasattr(optimizer, '_was_dp_gradients_called')
  if not private or hasattr(function, 'without_rows'):
    return function
  return without_rows(function)


def call(function: Callable[..., Any], *args: Any) -> Any:
  """Calls a function of private rows; any error is replaced.

  Where a graph is made nothing is: there are no values yet.
  """
  if not tf.executing_eagerly():
    return function(*args)
  try:
    return function(*args)
  except Exception as caught:
    error = _replaced(caught)
  raise error


def _is_end(error):
  """Whether this is how a dataset ends, which Keras has to see."""
  return (
    isinstance(error, tf.errors.OutOfRangeError)
    and 'End of sequence' in error.message
  )


def _replaced(error):
  message = getattr(error, 'message', None)
  if isinstance(message, str) and NO_STEP in message:
    text = (
      f'{NO_STEP} It trains in fit only, each step once, with an optimizer '
      'whose steps it has charged: restore none within an epoch.'
    )
    return tf.errors.InvalidArgumentError(None, None, text)
  for kind, text in _KINDS.items():
    if type(error) is kind:
      return kind(None, None, text)
  return tf.errors.InvalidArgumentError(None, None, _FAILED)
