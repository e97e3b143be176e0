"""Clipping strategies: from per-example gradients to a bounded sum."""

from __future__ import annotations

import tensorflow as tf


class Flat:
  """Clips each example's whole gradient to one l2 norm (Abadi et al. 2016).

  `sum_i w_i g_i min(1, C / |g_i|)` with |g_i| over all variables together.

  #### Formal guarantee

  Adding or removing one example changes the sum by at most `l2_norm_clip` in
  l2 norm over all variables together, whatever the gradients hold: an example
  whose gradient is not finite, and padding (weight 0), contribute zero, zeroed
  before the sum. The bound holds up to the rounding of the floating-point sum.

  Args:
    l2_norm_clip: the bound C, positive.

  Raises:
    ValueError: if `l2_norm_clip` is not a positive, finite number.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import gradients
  >>> kernel = tf.Variable([[1.], [2.]])
  >>> with gradients.PerExampleTape() as tape:
  ...   loss = gradients.linear(tf.constant([[1., 0.], [0., 3.]]), kernel)[:, 0]
  >>> per_example = tape.per_example_gradients(loss, [kernel])
  >>> total, = gradients.Flat(2.).clip_and_sum(per_example)
  >>> total.numpy().tolist()
  [[1.0], [2.0]]
  """

  name = 'flat'

  def __init__(self, l2_norm_clip):
    if not 0 < l2_norm_clip < float('inf'):
      raise ValueError(
        f'l2_norm_clip is {l2_norm_clip}; it must be a positive number.'
      )
    self.l2_norm_clip = float(l2_norm_clip)

  @property
  def l2_sensitivity(self):
    """What one added or removed example can change, in l2 norm."""
    return self.l2_norm_clip

  def clip_and_sum(self, gradients, weights=None):
    """Returns the clipped sum, one tensor per variable.

    Args:
      gradients: a `PerExampleGradients`.
      weights: `[batch]`, 1 for an example and 0 for padding; values are
        clipped to [0, 1], since a larger one would break the bound.

    Raises:
      ValueError: for weights of another shape, which would be broadcast.
    """
    if weights is not None and weights.shape.rank != 1:
      raise ValueError(
        f'weights have shape {weights.shape}; they must be [batch], one for '
        'each example.'
      )
    squared = gradients.squared_norms()
    finite = tf.math.is_finite(squared)
    norms = tf.sqrt(tf.where(finite, squared, tf.ones_like(squared)))
    clip = tf.cast(self.l2_norm_clip, norms.dtype)
    # Dividing by the larger of the two is exact for short gradients and needs
    # no epsilon for those of norm zero.
    scale = clip / tf.maximum(norms, clip)
    scale = tf.where(finite, scale, tf.zeros_like(scale))
    if weights is not None:
      weights = tf.clip_by_value(tf.cast(weights, scale.dtype), 0.0, 1.0)
      usable = tf.math.is_finite(weights)
      scale = tf.where(usable, scale * weights, tf.zeros_like(scale))
    return gradients.weighted_sum(scale)

  def get_config(self):
    """Returns the constructor's arguments."""
    return {'l2_norm_clip': self.l2_norm_clip}

  def __repr__(self):
    return f'Flat(l2_norm_clip={self.l2_norm_clip:g})'
