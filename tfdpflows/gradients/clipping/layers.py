"""Bounds of their own for layers, and for the units of layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional

import tensorflow as tf

from tfdpflows.gradients.clipping import strategy

if TYPE_CHECKING:
  from tfdpflows.gradients.rules import PerExampleGradients


class PerLayer(strategy.Strategy):
  """Clips each layer's gradient by itself (DP-HFlow; McMahan et al. 2018).

  Layer l with p_l of all p parameters is clipped to `C_l = C sqrt(p_l / p)`:
  `sum_i w_i g_il min(1, C_l / |g_il|)`. A layer with long gradients does not
  shorten those of the others. Layers are kernel and bias of one `linear`, or
  variables whose names agree up to the last `/`, as in Keras. They are found
  when the loss is traced, and must be those of every batch: a loss may not
  choose by the data, in Python, which kernel meets which bias.

  #### Formal guarantee

  Adding or removing one example changes the sum by at most
  `sqrt(sum_l C_l^2) = C sqrt(sum_l p_l / p) = C` in l2 norm over all variables
  together: the thresholds depend on shapes alone. Where anything in its
  gradient is not finite an example contributes zero to all layers; so does
  padding. The bound holds up to the rounding of the floating-point sum.

  Args:
    l2_norm_clip: the bound C, from 1e-9 to 1e9.

  Raises:
    ValueError: for an `l2_norm_clip` out of range.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import gradients
  >>> one, two = tf.Variable([[1.]]), tf.Variable([[1.]])
  >>> with gradients.PerExampleTape() as tape:
  ...   x = tf.constant([[100.]])
  ...   y = gradients.linear(x, one) + gradients.linear(x / 100, two)
  ...   loss = y[:, 0]
  >>> per_example = tape.per_example_gradients(loss, [one, two])
  >>> total = gradients.PerLayer(5.).clip_and_sum(per_example)
  >>> [round(float(t), 3) for t in total]
  [3.536, 1.0]

  #### References

  Lee, Kim, Jeong, Ro. Differentially Private Normalizing Flows for Synthetic
  Tabular Data Generation. AAAI 2022.
  """

  def clip_and_sum(
    self, gradients: PerExampleGradients, weights: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    squared = gradients.variable_squared_norms()
    present = strategy.presence(gradients, weights)
    clips = _clips(gradients, self.l2_norm_clip)
    of = [[float(layer == n) for n in clips] for layer in gradients.layers]
    lengths = strategy.norms(tf.matmul(squared, tf.constant(of, squared.dtype)))
    scales = strategy.scale_to(list(clips.values()), lengths)
    scales = tf.unstack(scales * present[:, None], axis=1)
    scales = dict(zip(clips, scales))
    return gradients.weighted_sum([scales[layer] for layer in gradients.layers])


class PerUnit(strategy.Strategy):
  """Clips the gradient of each unit by itself (DP-HFlow).

  A unit i of layer l is one of its outputs, G[i] the gradient of one example
  by what leads to it: column i of the kernel and entry i of the bias. It is
  clipped to `C_l[i] = C_l sqrt(|G[i]|_1 / sum_j |G[j]|_1)`, with C_l and the
  layers as in `PerLayer`: a unit that matters to this example gets a larger
  share of the layer's threshold. Variables of one layer with different last
  axes have units of their own, and share C_l all the same. The paper gives the
  threshold in one line; that the bias entry of a unit belongs to it, and that
  C_l splits C by the number of parameters, is our reading of it.

  For a linear map that is used once, `G[i] = a d_i` and both norms factor,
  `|a|_1 |d_i|` and `|a|_2 |d_i|` (under a mask with its column's part of a),
  so that no gradient is stored. For one used several times, it is.

  #### Formal guarantee

  The thresholds depend on the example's gradient, and on no other example.
  Whatever that gradient is, its clipped parts have squared length at most
  `sum_l sum_i C_l[i]^2 = sum_l C_l^2 sum_i |G[i]|_1 / sum_j |G[j]|_1
  = sum_l C_l^2 = C^2` (and 0 for a layer where all |G[j]|_1 are 0). Adding or
  removing one example thus changes the sum by at most `l2_norm_clip` in l2
  norm over all variables together. Where anything in its gradient is not
  finite an example contributes zero to all; so does padding. The bound holds
  up to the rounding of the floating-point sum: shares that are computed
  inexactly still add up to one.

  Args:
    l2_norm_clip: the bound C, from 1e-9 to 1e9.

  Raises:
    ValueError: for an `l2_norm_clip` out of range.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import gradients
  >>> kernel = tf.Variable([[1., 1.]])
  >>> with gradients.PerExampleTape() as tape:
  ...   y = gradients.linear(tf.constant([[1.]]), kernel)
  ...   loss = 9 * y[:, 0] + 16 * y[:, 1]
  >>> per_example = tape.per_example_gradients(loss, [kernel])
  >>> total, = gradients.PerUnit(5.).clip_and_sum(per_example)
  >>> total.numpy().round(3).tolist()
  [[3.0, 4.0]]

  #### References

  Lee, Kim, Jeong, Ro. Differentially Private Normalizing Flows for Synthetic
  Tabular Data Generation. AAAI 2022.
  """

  def clip_and_sum(
    self, gradients: PerExampleGradients, weights: Optional[tf.Tensor] = None
  ) -> list[tf.Tensor]:
    gradients = gradients.by_unit()
    units, keys = gradients.units()
    present = strategy.presence(gradients, weights)
    scales = {}
    for layer, clip in _clips(gradients, self.l2_norm_clip).items():
      own = {key: u for key, u in units.items() if key[0] == layer}
      total = tf.add_n([u.total() for u in own.values()])
      clip = tf.math.divide_no_nan(tf.cast(clip, total.dtype), tf.sqrt(total))
      for key, u in own.items():
        scales[key] = u.scale(clip, present)
    return gradients.weighted_sum([scales[key] for key in keys])


def _clips(gradients, clip):
  """Returns C_l by layer: C sqrt(p_l / p), with p the number of parameters."""
  counts = dict.fromkeys(gradients.layers, 0)
  for layer, variable in zip(gradients.layers, gradients.variables):
    counts[layer] += variable.shape.num_elements()
  total = sum(counts.values())
  return {k: clip * math.sqrt(n / total) for k, n in counts.items()}
