"""A threshold that follows a quantile of the gradients' norms, privately."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from tfdpflows._checks import check_fraction, check_positive
from tfdpflows.gradients.clipping import strategy

if TYPE_CHECKING:
  from tfdpflows.gradients.rules import PerExampleGradients


class AdaptiveQuantile(strategy.Strategy):
  """Clips to a private estimate of a quantile of norms (Andrew et al. 2021).

  Each step clips to the threshold C_t of the moment, as `Flat` does, and
  counts the examples that it leaves unclipped. The noised share b of these
  moves the threshold, `C_{t+1} = C_t exp(-eta (b - target_quantile))`.

  #### Formal guarantee

  One step with noise multiplier z costs `GaussianDpEvent(z)`, as every other
  step does: the count is paid for. With b_i = 1 for an example left
  unclipped, the step releases

      sum_i clip(g_i) / C_t    sensitivity 1,    noise z_delta
      sum_i (b_i - 1/2)        sensitivity 1/2,  noise sigma_b
      z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)

  Divide each of the two by the standard deviation of its noise. Adding or
  removing one example moves the pair by at most
  `sqrt(1 / z_delta^2 + (1/2)^2 / sigma_b^2) = 1 / z` in l2 norm, and the noise
  of the pair is standard normal: the pair is one Gaussian mechanism of noise
  multiplier z (Andrew et al. 2021, Theorem 1). C_t is a function of earlier
  releases, so that composition over the steps is that of any adaptive
  sequence of Gaussian mechanisms. `tfdpflows.optimizers` raises the noise of
  the gradient to z_delta; the event of a plan stays as it is.

  Gradients that are not finite contribute zero to the sum and count as
  clipped; padding contributes zero to both.

  Args:
    initial_clip: the first threshold, from 1e-9 to 1e9; all others too.
    target_quantile: share of examples to leave unclipped, in (0, 1).
    learning_rate: eta, positive.
    count_stddev: sigma_b, the noise on the count; must be above half the noise
      multiplier. By default a twentieth of the expected batch size, as in the
      paper, and at least five noise multipliers: the gradient's noise then
      grows by 0.5 % at most.

  Raises:
    ValueError: for values out of range.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import gradients
  >>> clipping = gradients.AdaptiveQuantile(1., target_quantile=.5)
  >>> _ = clipping.finish([], statistic=.5)  # All were left unclipped.
  >>> round(float(clipping.l2_sensitivity), 3)
  0.905

  #### References

  Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private Learning with
  Adaptive Clipping. NeurIPS 2021. arXiv:1905.03871
  """

  statistic_sensitivity = 0.5

  def __init__(
    self,
    initial_clip: float = 1.0,
    target_quantile: float = 0.5,
    learning_rate: float = 0.2,
    count_stddev: Optional[float] = None,
  ):
    strategy.check_clip(initial_clip=initial_clip)
    check_positive('learning_rate', learning_rate)
    if count_stddev is not None:
      count_stddev = check_positive('count_stddev', count_stddev)
    self.initial_clip = float(initial_clip)
    self.target_quantile = check_fraction('target_quantile', target_quantile)
    self.learning_rate = float(learning_rate)
    self.count_stddev = count_stddev
    # The logarithm, over the initial threshold.
    self.state = strategy.state(0.0, tf.float64)

  @property
  def l2_sensitivity(self) -> tf.Tensor:
    """The threshold of this step: a tensor."""
    return self.initial_clip * tf.exp(self.state)

  def clip_and_sum(
    self, gradients: PerExampleGradients, weights: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    squared = gradients.squared_norms()
    present = strategy.presence(gradients, weights)
    scale = strategy.scale_to(self.l2_sensitivity, strategy.norms(squared))
    return gradients.weighted_sum(scale * present)

  def statistic(
    self, gradients: PerExampleGradients, weights: Optional[tf.Tensor] = None
  ) -> tf.Tensor:
    """Returns `sum_i w_i (b_i - 1/2)`, b_i = 1 where |g_i| <= C_t."""
    squared = gradients.squared_norms()
    finite = tf.math.is_finite(squared)
    # Those that are not finite are there, and clipped.
    weight = strategy.bounded(weights, squared)
    clip = tf.cast(self.l2_sensitivity, squared.dtype)
    below = tf.logical_and(finite, strategy.norms(squared) <= clip)
    count = tf.reduce_sum(weight * (tf.cast(below, weight.dtype) - 0.5))
    return count + gradients.nan_if_mixed(count.dtype)

  def statistic_stddev(
    self, noise_multiplier: float, expected_batch_size: float
  ) -> float:
    if self.count_stddev is None:
      return max(expected_batch_size / 20, 5 * noise_multiplier)
    if not self.count_stddev > noise_multiplier / 2:
      raise ValueError(
        f'count_stddev is {self.count_stddev}; with noise_multiplier='
        f'{noise_multiplier:g} it must be above {noise_multiplier / 2:g}, or '
        'the count alone would cost more than the step.'
      )
    return self.count_stddev

  def finish(
    self, means: list[tf.Tensor], statistic: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    """Moves the threshold; see `Strategy.finish`."""
    share = tf.cast(statistic, tf.float64) + 0.5
    state = self.state - self.learning_rate * (share - self.target_quantile)
    bounds = strategy.SMALLEST_CLIP, strategy.LARGEST_CLIP
    low, high = (math.log(b / self.initial_clip) for b in bounds)
    self.state.assign(tf.clip_by_value(state, low, high))
    return means

  def get_config(self) -> dict[str, Any]:
    return {
      'initial_clip': self.initial_clip,
      'target_quantile': self.target_quantile,
      'learning_rate': self.learning_rate,
      'count_stddev': self.count_stddev,
    }
