"""Sparsified gradients: part of the coordinates, larger, then clipped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from tfdpflows.gradients.clipping import strategy

if TYPE_CHECKING:
  from tfdpflows.gradients.rules import PerExampleGradients


class StochasticSparsification(strategy.Strategy):
  """Drops small coordinates at random, without bias, then clips (DP-HFlow).

  With sparsity gamma and threshold tau, coordinate j of a gradient becomes

      T(g)_j = g_j                 if |g_j| >= tau
               g_j / (1 - gamma)   otherwise, with probability 1 - gamma
               0                   otherwise, with probability gamma

  so that `E T(g) = g`, and the sum is `sum_i w_i T(g_i) min(1, C / |T(g_i)|)`.
  This reading of the paper's T_{tau,gamma} is ours: of its definition we had
  that it is unbiased, keeps what is at least tau, drops with probability gamma
  and comes before the clip. Neither its code nor its numbers were compared.
  Which coordinates may stay is drawn once per step and is the same for all
  examples. Without a threshold those dropped are dropped for all, which needs
  no stored gradient (Zhu and Blaschko 2021), and their noise is dropped too.
  A finite threshold looks at every coordinate of every example: all gradients
  are stored, so keep `chunk_size` of the optimizer small.

  #### Formal guarantee

  For each outcome of the draw T is a function of one example's gradient, and
  what enters the sum has l2 norm at most `l2_norm_clip` over all variables
  together; the bound holds for every outcome, so the draw needs no secret. It
  depends on `seed` and on the number of the step alone: a step that is
  replayed with the same noise is the same step. Zeroing coordinates that were
  dropped for all, after the noise, is post-processing. Gradients that are not
  finite and padding contribute zero. The bound holds up to the rounding of
  the floating-point sum.

  Args:
    l2_norm_clip: the bound C, positive.
    sparsity: probability gamma of a coordinate to be dropped, in [0, 1).
    threshold: tau; coordinates at least that large stay.
    seed: integer of the draws.

  Raises:
    ValueError: for values out of range.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import gradients
  >>> kernel = tf.Variable(tf.ones([1000, 1]))
  >>> with gradients.PerExampleTape() as tape:
  ...   loss = gradients.linear(tf.ones([1, 1000]), kernel)[:, 0]
  >>> per_example = tape.per_example_gradients(loss, [kernel])
  >>> half = gradients.StochasticSparsification(1000., sparsity=.5)
  >>> total, = half.clip_and_sum(per_example)
  >>> sorted(set(total.numpy().ravel().tolist()))
  [0.0, 2.0]

  #### References

  Lee, Kim, Jeong, Ro. Differentially Private Normalizing Flows for Synthetic
  Tabular Data Generation. AAAI 2022.
  Zhu, Blaschko. Improving Differentially Private SGD via Randomly Sparsified
  Gradients. 2021. arXiv:2112.00845
  """

  def __init__(
    self,
    l2_norm_clip: float,
    sparsity: float,
    threshold: float = math.inf,
    seed: int = 0,
  ):
    super().__init__(l2_norm_clip)
    if not 0 <= sparsity < 1:
      raise ValueError(f'sparsity is {sparsity}; it must be in [0, 1).')
    if not threshold >= 0:
      raise ValueError(f'threshold is {threshold}; it must be at least 0.')
    self.sparsity = float(sparsity)
    self.threshold = float(threshold)
    self.seed = int(seed)
    self.state = strategy.state(0, tf.int32)

  def clip_and_sum(
    self, gradients: PerExampleGradients, weights: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    masks = self._masks(gradients.variables)
    if self.threshold == math.inf:
      gradients = gradients.times(masks)
    else:
      gradients = gradients.transformed(self._sparsified, masks)
    squared = gradients.squared_norms()
    present = strategy.presence(gradients, weights)
    scale = strategy.scale_to(self.l2_norm_clip, strategy.norms(squared))
    return gradients.weighted_sum(scale * present)

  def finish(
    self, means: list[tf.Tensor], statistic: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    if self.threshold == math.inf:
      kept = [mask > 0 for mask in self._masks(means)]
      means = [tf.where(k, m, tf.zeros_like(m)) for k, m in zip(kept, means)]
    self.state.assign_add(1)
    return means

  def _sparsified(self, gradients, mask):
    large = tf.abs(gradients) >= tf.cast(self.threshold, gradients.dtype)
    return tf.where(large, gradients, gradients * mask)

  def _masks(self, like):
    """Returns 1 / (1 - gamma) or 0 by coordinate, for this step."""
    masks = []
    for number, x in enumerate(like):
      key = _mixed(_uint(self.seed % 2**32) + _uint(number))
      key = _mixed(key + tf.cast(self.state, tf.uint32))
      bits = tf.cast(tf.range(x.shape.num_elements()), tf.uint32)
      bits = tf.reshape(_mixed(_mixed(bits) ^ key), x.shape)
      kept = tf.cast(bits, tf.float64) >= self.sparsity * 2.0**32
      masks.append(tf.cast(kept, x.dtype) / (1 - self.sparsity))
    return masks

  def get_config(self) -> dict[str, Any]:
    return {
      'l2_norm_clip': self.l2_norm_clip,
      'sparsity': self.sparsity,
      'threshold': self.threshold,
      'seed': self.seed,
    }


def _mixed(x):
  """The finaliser of MurmurHash3: every bit of x reaches every other.

  The generators of TensorFlow give other numbers under XLA, and a step may be
  replayed without it.
  """
  x = (x ^ tf.bitwise.right_shift(x, _uint(16))) * _uint(0x85EBCA6B)
  x = (x ^ tf.bitwise.right_shift(x, _uint(13))) * _uint(0xC2B2AE35)
  return x ^ tf.bitwise.right_shift(x, _uint(16))


def _uint(x):
  return tf.constant(x, tf.uint32)
