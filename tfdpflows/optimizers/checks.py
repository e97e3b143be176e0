"""What DP-Keras optimizers refuse, by name."""

from __future__ import annotations

import tensorflow as tf

from tfdpflows._keras import keras


def check_loss(loss):
  """Raises a ValueError for a loss that is not one per example."""
  if loss.shape.rank != 1:
    raise ValueError(
      f'The loss has shape {loss.shape}; per-example gradients need one loss '
      'per example, shape [batch]. Do not average it first (in Keras: '
      '`reduction=NONE`).'
    )
  if loss.dtype not in (tf.float32, tf.float64):
    raise mixed_precision(f'a loss of {loss.dtype.name}')


def check_weights(weights):
  """Raises a ValueError for weights that would be broadcast."""
  if weights.shape.rank != 1:
    raise ValueError(
      f'weights have shape {weights.shape}; they must be [batch], one for '
      'each example.'
    )


def mixed_precision(what):
  """Returns the error that says why mixed precision is refused."""
  return ValueError(
    f'Mixed precision is refused: there is {what}. In half precision gradients '
    'overflow beyond 65504 and norms round by parts in a thousand, so that '
    'clipping bounds nothing. Use '
    "tf.keras.mixed_precision.set_global_policy('float32') before the model "
    'is made, and no LossScaleOptimizer.'
  )


def refuse_mixed_precision_policy():
  """Raises a ValueError where new layers would compute in half precision."""
  policy = keras.mixed_precision.global_policy()
  if policy.compute_dtype in ('float16', 'bfloat16'):
    raise mixed_precision(f'the global policy {policy.name!r}')


def refuse_tf32():
  """Raises a ValueError where GPUs would multiply matrices in TensorFloat-32.

  Squared norms are products too, and uses of one variable that cancel may
  leave a gradient tens of times as long as the clip.
  """
  if (
    tf.config.get_visible_devices('GPU')
    and tf.config.experimental.tensor_float_32_execution_enabled()
  ):
    raise ValueError(
      'TensorFloat-32 is refused: there is a GPU, whose matrix products would '
      'round to 10 bits, so that clipping bounds nothing. Call '
      'tf.config.experimental.enable_tensor_float_32_execution(False) before '
      'training (it is on by default).'
    )


def refuse_mixed_precision(variables):
  """Raises a ValueError for variables that are in half precision, or cast.

  Also where products would be, see `refuse_tf32`.
  """
  refuse_tf32()
  refuse_mixed_precision_policy()
  for v in variables:
    # Keras has such variables where a layer computes in another precision.
    cast = type(v).__name__.startswith('AutoCast')
    if cast or v.dtype not in (tf.float32, tf.float64):
      raise mixed_precision(f'the variable {v.name}')


def refuse_mixed_dtypes(variables):
  """Raises a ValueError for variables of both float32 and float64."""
  first = variables[0]
  for v in variables:
    if v.dtype != first.dtype:
      raise ValueError(
        f'The variable {v.name} is {v.dtype.name}, and {first.name} is '
        f'{first.dtype.name}: norms are taken over all of them. Make the whole '
        'model in one dtype.'
      )


def refuse_new_variables(known, variables):
  """Raises a ValueError for variables that the first update did not have.

  Args:
    known: set of their references.
    variables: those of this update.
  """
  new = [v.name for v in variables if v.ref() not in known]
  if new:
    raise ValueError(
      f'The first update did not have the variables {new}: they were made, or '
      'made trainable, after it. Build the whole model before it trains (call '
      'it once on rows that are public), and take a new optimizer after '
      'changing what is trainable.'
    )
