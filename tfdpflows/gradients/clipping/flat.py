"""One bound for each example's whole gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from tfdpflows.gradients.clipping import strategy

if TYPE_CHECKING:
  from tfdpflows.gradients.rules import PerExampleGradients


class Flat(strategy.Strategy):
  """Clips each example's whole gradient to one l2 norm (Abadi et al. 2016).

  `sum_i w_i g_i min(1, C / |g_i|)` with |g_i| over all variables together.

  #### Formal guarantee

  Adding or removing one example changes the sum by at most `l2_norm_clip` in
  l2 norm over all variables together, whatever the gradients hold: an example
  whose gradient is not finite, and padding (weight 0), contribute zero, zeroed
  before the sum. The bound holds up to the rounding of the floating-point sum.

  Args:
    l2_norm_clip: the bound C, from 1e-9 to 1e9.

  Raises:
    ValueError: for an `l2_norm_clip` out of range.

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

  def clip_and_sum(
    self, gradients: PerExampleGradients, weights: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    squared = gradients.squared_norms()
    present = strategy.presence(gradients, weights)
    scale = strategy.scale_to(self.l2_norm_clip, strategy.norms(squared))
    return gradients.weighted_sum(scale * present)


class Automatic(strategy.Strategy):
  """Normalises each example's whole gradient (Bu et al. 2022, AUTO-S).

  `sum_i w_i g_i C / (|g_i| + gamma)`: no threshold has to be found, since C
  only scales the sum, as the learning rate does, and an adaptive optimizer is
  blind to it. gamma keeps short gradients shorter than long ones.

  #### Formal guarantee

  `C |g| / (|g| + gamma) < C` for every g: adding or removing one example
  changes the sum by less than `l2_norm_clip` in l2 norm over all variables
  together. Gradients that are not finite and padding contribute zero. The
  bound holds up to the rounding of the floating-point sum.

  Args:
    l2_norm_clip: the bound C, from 1e-9 to 1e9.
    gamma: in units of the gradient's norm, at least 1e-12 and 1e-12 C: in
      float32 a smaller one could vanish beside gradients whose square does.

  Raises:
    ValueError: if one of them is out of range.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import gradients
  >>> kernel = tf.Variable([[1.], [2.]])
  >>> with gradients.PerExampleTape() as tape:
  ...   loss = gradients.linear(tf.constant([[1., 0.], [0., 3.]]), kernel)[:, 0]
  >>> per_example = tape.per_example_gradients(loss, [kernel])
  >>> total, = gradients.Automatic(2., gamma=1.).clip_and_sum(per_example)
  >>> total.numpy().tolist()
  [[1.0], [1.5]]

  #### References

  Bu, Wang, Zha, Karypis. Automatic Clipping: Differentially Private Deep
  Learning Made Easier and Stronger. 2022, equation (4.1). arXiv:2206.07136
  """

  def __init__(self, l2_norm_clip: float, gamma: float = 0.01):
    super().__init__(l2_norm_clip)
    least = 1e-12 * max(1.0, self.l2_norm_clip)
    if not least <= gamma < math.inf:
      raise ValueError(
        f'gamma is {gamma}; with l2_norm_clip={self.l2_norm_clip:g} it must '
        f'be a number of at least {least:g}.'
      )
    self.gamma = float(gamma)

  def clip_and_sum(
    self, gradients: PerExampleGradients, weights: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    squared = gradients.squared_norms()
    present = strategy.presence(gradients, weights)
    clip = tf.cast(self.l2_norm_clip, squared.dtype)
    scale = clip / (strategy.norms(squared) + tf.cast(self.gamma, clip.dtype))
    return gradients.weighted_sum(scale * present)

  def get_config(self) -> dict[str, Any]:
    return {'l2_norm_clip': self.l2_norm_clip, 'gamma': self.gamma}
