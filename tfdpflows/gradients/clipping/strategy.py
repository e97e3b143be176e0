"""What all clipping strategies have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Union

import tensorflow as tf

if TYPE_CHECKING:
  import numpy.typing as npt

  from tfdpflows.gradients.rules import PerExampleGradients


class Strategy:
  """A clipping strategy: from per-example gradients to a bounded sum.

  Subclasses give `clip_and_sum` and, if they have arguments of their own,
  `get_config`; those that change from step to step keep a `state`.

  #### Formal guarantee

  What each subclass has to keep: adding or removing one example changes
  `clip_and_sum` by at most `l2_sensitivity` in l2 norm over all variables
  together, whatever the gradients hold. An example whose gradient is not
  finite, and padding (weight 0), contribute zero, zeroed before the sum. The
  bound holds up to the rounding of the floating-point sum.

  The exception is `tape.jacobian`, for variables that no primitive noted on a
  tape without `losses` and `rows` (see `PerExampleTape`) and for a plain
  `tf.GradientTape`: there an example whose gradient is not finite stops the
  step with an error, or where XLA took the check away makes the sum nan. Both
  are plain to see, and no guarantee covers what they tell.

  Args:
    l2_norm_clip: the bound C, from 1e-9 to 1e9.

  Raises:
    ValueError: for an `l2_norm_clip` out of range.
  """

  # `tf.Variable` of what changes from step to step, or `None`.
  state = None
  # What one example can change of `statistic`; 0 for none.
  statistic_sensitivity = 0.0

  def __init__(self, l2_norm_clip: float):
    check_clip(l2_norm_clip=l2_norm_clip)
    self.l2_norm_clip = float(l2_norm_clip)

  @property
  def l2_sensitivity(self) -> Union[float, tf.Tensor]:
    """What one added or removed example can change, in l2 norm."""
    return self.l2_norm_clip

  def clip_and_sum(
    self, gradients: PerExampleGradients, weights: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    """Returns the clipped sum, one tensor per variable.

    Args:
      gradients: a `PerExampleGradients`.
      weights: `[batch]`, 1 for an example and 0 for padding; values are
        clipped to [0, 1], since a larger one would break the bound.
    """
    raise NotImplementedError

  def statistic(
    self, gradients: PerExampleGradients, weights: Optional[tf.Tensor] = None
  ) -> Optional[tf.Tensor]:
    """Returns a number to release beside the sum, or `None`."""
    return None

  def statistic_stddev(
    self, noise_multiplier: float, expected_batch_size: float
  ) -> float:
    """Returns the standard deviation of the noise on the statistic."""
    raise NotImplementedError

  def finish(
    self, means: list[tf.Tensor], statistic: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    """Ends a step: changes the state, and what is released, by nothing private.

    Args:
      means: the noised sums over the expected batch size, one tensor per
        variable.
      statistic: the noised statistic over the expected batch size, or `None`.

    Returns:
      The means to use.
    """
    return means

  def fresh(self) -> Strategy:
    """Returns this strategy in its first state, not shared with any other.

    A step that is replayed with the same noise must be the same step; a state
    that had moved on would reveal the batch.
    """
    return self if self.state is None else type(self)(**self.get_config())

  def get_config(self) -> dict[str, Any]:
    """Returns the constructor's arguments."""
    return {'l2_norm_clip': self.l2_norm_clip}

  def __repr__(self):
    config = self.get_config().items()
    values = ', '.join(
      f'{k}={v:g}' if isinstance(v, float) else f'{k}={v}' for k, v in config
    )
    return f'{type(self).__name__}({values})'


# Where the squares of gradients as long as C neither vanish nor overflow in
# float32, whatever share of C a layer of a million parameters has.
SMALLEST_CLIP, LARGEST_CLIP = 1e-9, 1e9


def check_clip(**values: float) -> None:
  """Raises a ValueError for a bound that float32 cannot keep."""
  for name, value in values.items():
    if not SMALLEST_CLIP <= value <= LARGEST_CLIP:
      raise ValueError(
        f'{name} is {value}; it must be from {SMALLEST_CLIP:g} to '
        f'{LARGEST_CLIP:g}. Beyond, the squares of gradients vanish or '
        'overflow in float32: scale the loss.'
      )


def state(value: npt.ArrayLike, dtype: tf.DType) -> tf.Variable:
  """Returns a variable for the state of a strategy, alike on all replicas."""
  with tf.init_scope():
    return tf.Variable(
      value,
      dtype=dtype,
      trainable=False,
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def presence(
  gradients: PerExampleGradients, weights: Optional[tf.Tensor] = None
) -> tf.Tensor:
  """Returns `[batch]`: each example's weight in [0, 1].

  0 for one that is not finite, or whose weight is not.

  Args:
    gradients: a `PerExampleGradients`.
    weights: as in `Strategy.clip_and_sum`.
  """
  present = tf.cast(gradients.finite(), gradients.variables[0].dtype)
  return present if weights is None else present * bounded(weights, present)


def bounded(weights: Optional[npt.ArrayLike], like: tf.Tensor) -> tf.Tensor:
  """Returns weights in [0, 1], 0 where they are not finite; 1 by default.

  Args:
    weights: `[batch]`, anything that becomes a tensor; or `None`.
    like: `[batch]`.

  Raises:
    ValueError: for weights of another shape, which would be broadcast.
  """
  if weights is None:
    return tf.ones_like(like)
  weights = tf.convert_to_tensor(weights)
  known = weights.shape.rank == 1
  if not (known and weights.shape.is_compatible_with(like.shape)):
    raise ValueError(
      f'weights have shape {weights.shape}; they must be [batch], one for '
      f'each example of a batch of shape {like.shape}.'
    )
  weights = tf.cast(weights, like.dtype)
  weights = tf.where(tf.math.is_finite(weights), weights, tf.zeros_like(like))
  return tf.clip_by_value(weights, 0.0, 1.0)


def norms(squared_norms: tf.Tensor) -> tf.Tensor:
  """Returns their roots, and 1 where they are not finite."""
  finite = tf.math.is_finite(squared_norms)
  return tf.sqrt(tf.where(finite, squared_norms, tf.ones_like(squared_norms)))


def scale_to(clip: Union[float, tf.Tensor], lengths: tf.Tensor) -> tf.Tensor:
  """Returns what makes `lengths` at most `clip`: min(1, clip / length)."""
  clip = tf.cast(clip, lengths.dtype)
  # Dividing by the larger of the two is exact for short gradients and needs
  # no epsilon for those of norm zero.
  return tf.math.divide_no_nan(clip, tf.maximum(lengths, clip))
