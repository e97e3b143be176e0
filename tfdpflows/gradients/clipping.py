"""Clipping strategies: from per-example gradients to a bounded sum."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdpflows._checks import (
  FLOAT32_RANGE,
  check_float32_range,
  check_fraction,
  check_positive,
)

if TYPE_CHECKING:
  from tfdpflows.gradients.rules import PerExampleGradients


class Strategy:
  """Computes a clipped sum of per-example gradients, of bounded sensitivity.

  Subclasses implement `clip_and_sum` and, if they have further arguments,
  `get_config`; those that change from step to step have a `state`.

  #### Formal guarantee

  Every subclass guarantees: adding or removing one example changes
  `clip_and_sum` by at most `l2_sensitivity` in l2 norm over all variables
  together, whatever the gradients are. An example whose gradient is not
  finite, and padding (weight 0), contribute zero: they are zeroed before the
  sum. The bound holds up to the rounding of the floating-point sum.

  The exception are gradients that come from `tape.jacobian`, for variables
  used without the primitives on a tape without `losses` and `rows` (see
  `PerExampleTape`) and for a plain `tf.GradientTape`: there an example whose
  gradient is not finite stops the step with an error or, where XLA dropped the
  check, makes the sum nan. Both are visible, and not covered by a guarantee.

  Args:
    l2_norm_clip: the bound C, from 1e-9 to 1e9.

  Raises:
    ValueError: for an `l2_norm_clip` out of range.
  """

  # `tf.Variable` that changes from step to step, or `None`.
  state = None
  # By how much one example can change `statistic`; 0 for none.
  statistic_sensitivity = 0.0

  def __init__(self, l2_norm_clip: float):
    _check_clip('l2_norm_clip', l2_norm_clip)
    self.l2_norm_clip = float(l2_norm_clip)

  @property
  def l2_sensitivity(self) -> float | tf.Tensor:
    """The l2 norm by which one example can change the sum, at most."""
    return self.l2_norm_clip

  def clip_and_sum(
    self, gradients: PerExampleGradients, weights: tf.Tensor | None = None
  ) -> list[tf.Tensor]:
    """Returns the clipped sum, one tensor per variable.

    Args:
      gradients: a `PerExampleGradients`.
      weights: `[batch]`, 1 for an example and 0 for padding; values are
        clipped to [0, 1], since a larger one would break the bound.
    """
    raise NotImplementedError

  def statistic(
    self, gradients: PerExampleGradients, weights: tf.Tensor | None = None
  ) -> tf.Tensor | None:
    """Returns a number to release with the sum, or `None`."""
    return None

  def statistic_stddev(
    self, noise_multiplier: float, expected_batch_size: float
  ) -> float:
    """Returns the standard deviation of the noise on the statistic."""
    raise NotImplementedError

  def finish(
    self, means: list[tf.Tensor], statistic: tf.Tensor | None = None
  ) -> list[tf.Tensor]:
    """Updates the state after a step, from what was released alone.

    Args:
      means: the noised sums over the expected batch size, one tensor per
        variable.
      statistic: the noised statistic over the expected batch size, or `None`.

    Returns:
      The means to use.
    """
    return means

  def fresh(self) -> Strategy:
    """Returns this strategy in its initial state, not shared with any other.

    A step that is replayed with the same noise must be the same step; another
    state would reveal the batch.
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


class Flat(Strategy):
  """Clips each example's whole gradient to one l2 norm (Abadi et al. 2016).

  `sum_i w_i g_i min(1, C / |g_i|)` with |g_i| over all variables together:
  adding or removing one example changes it by at most C = `l2_norm_clip`. See
  `Strategy` for the guarantee.

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
    self, gradients: PerExampleGradients, weights: tf.Tensor | None = None
  ) -> list[tf.Tensor]:
    return _clipped_sum(gradients, self.l2_norm_clip, weights)


class Automatic(Strategy):
  """Normalizes each example's whole gradient (Bu et al. 2022, AUTO-S).

  `sum_i w_i g_i C / (|g_i| + gamma)`. No threshold has to be tuned: C only
  scales the sum, as the learning rate does, and has no effect under an
  adaptive optimizer. gamma keeps short gradients shorter than long ones.

  #### Formal guarantee

  `C |g| / (|g| + gamma) < C` for every g: adding or removing one example
  changes the sum by less than `l2_norm_clip`. See `Strategy` for the rest.

  Args:
    l2_norm_clip: the bound C, from 1e-9 to 1e9.
    gamma: in units of the gradient's norm, at least 1e-12 and 1e-12 C, so that
      it matters where the square of a gradient underflows in float32.

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
    self, gradients: PerExampleGradients, weights: tf.Tensor | None = None
  ) -> list[tf.Tensor]:
    squared = gradients.squared_norms()
    present = _presence(gradients, weights)
    clip = tf.cast(self.l2_norm_clip, squared.dtype)
    scale = clip / (_norms(squared) + tf.cast(self.gamma, clip.dtype))
    return gradients.weighted_sum(scale * present, clip)

  def get_config(self) -> dict[str, Any]:
    return {'l2_norm_clip': self.l2_norm_clip, 'gamma': self.gamma}


class PerLayer(Strategy):
  """Clips the gradient of each layer (DP-HFlow; McMahan et al. 2018).

  Layer l with p_l of all p parameters is clipped to `C_l = C sqrt(p_l / p)`:
  `sum_i w_i g_il min(1, C_l / |g_il|)`, so that long gradients of one layer do
  not shorten those of the others. A layer is the kernel and the bias of one
  `linear`, or variables whose names agree up to the last `/`, as in Keras.
  Layers are found when the loss is traced, and must be the same for every
  batch: a loss may not choose by the data, in Python, which kernel is used
  with which bias.

  #### Formal guarantee

  The thresholds depend on shapes alone: adding or removing one example changes
  the sum by at most `sqrt(sum_l C_l^2) = C sqrt(sum_l p_l / p) = C`. An example
  whose gradient is not finite anywhere contributes zero to all layers. See
  `Strategy` for the rest.

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
    self, gradients: PerExampleGradients, weights: tf.Tensor | None = None
  ) -> list[tf.Tensor]:
    squared = gradients.variable_squared_norms()
    present = _presence(gradients, weights)
    clips = _clips(gradients, self.l2_norm_clip)
    of = [[float(layer == n) for n in clips] for layer in gradients.layers]
    lengths = _norms(tf.matmul(squared, tf.constant(of, squared.dtype)))
    scales = _scale_to(list(clips.values()), lengths)
    scales = tf.unstack(scales * present[:, None], axis=1)
    scales = dict(zip(clips, scales))
    scales = [scales[layer] for layer in gradients.layers]
    return gradients.weighted_sum(scales, self.l2_norm_clip)


class PerUnit(Strategy):
  """Clips the gradient of each unit of each layer (DP-HFlow).

  Unit i of layer l is one of its outputs, with the gradient G[i] of one
  example by column i of the kernel and entry i of the bias. It is clipped to
  `C_l[i] = C_l sqrt(|G[i]|_1 / sum_j |G[j]|_1)`, with C_l and the layers as in
  `PerLayer`. Variables of one layer with different last axes have different
  units, which share C_l. The paper gives the threshold in one line; that the
  bias belongs to the unit, and that C_l splits C by the number of parameters,
  is our reading of it.

  For a linear map that is used once, `G[i] = a d_i` and both norms factor,
  `|a|_1 |d_i|` and `|a|_2 |d_i|` (under a mask with its column's part of a),
  so that no gradient is stored. For one used a few times, those of some
  examples at a time are, to take their norms; for others, all are.

  #### Formal guarantee

  The thresholds depend on the example's gradient, and on no other example.
  Whatever that gradient is, its clipped parts have squared length at most
  `sum_l sum_i C_l[i]^2 = sum_l C_l^2 sum_i |G[i]|_1 / sum_j |G[j]|_1
  = sum_l C_l^2 = C^2` (and 0 for a layer where all |G[j]|_1 are 0): adding or
  removing one example changes the sum by at most C. Shares that are computed
  inexactly still add up to one. An example whose gradient is not finite
  anywhere contributes zero. See `Strategy` for the rest.

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
    self, gradients: PerExampleGradients, weights: tf.Tensor | None = None
  ) -> list[tf.Tensor]:
    gradients = gradients.by_unit()
    units, keys = gradients.units()
    present = _presence(gradients, weights)
    scales = {}
    for layer, clip in _clips(gradients, self.l2_norm_clip).items():
      own = {key: u for key, u in units.items() if key[0] == layer}
      total = tf.add_n([u.total() for u in own.values()])
      clip = tf.math.divide_no_nan(tf.cast(clip, total.dtype), tf.sqrt(total))
      for key, u in own.items():
        scales[key] = u.scale(clip, present)
    return gradients.weighted_sum(
      [scales[key] for key in keys], self.l2_norm_clip
    )


class AdaptiveQuantile(Strategy):
  """Clips to a private estimate of a quantile of norms (Andrew et al. 2021).

  Step t clips to the threshold C_t, as `Flat` does, and counts the examples
  that are not clipped. Their noised share b updates the threshold:
  `C_{t+1} = C_t exp(-eta (b - target_quantile))`.

  #### Formal guarantee

  One step with noise multiplier z, its count included, is a
  `GaussianDpEvent(z)`. With b_i = 1 for an example that is not clipped, the
  step releases

      sum_i clip(g_i) / C_t    sensitivity 1,    noise z_delta
      sum_i (b_i - 1/2)        sensitivity 1/2,  noise sigma_b
      z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)

  Divide each of the two by the standard deviation of its noise. Adding or
  removing one example moves the pair by at most
  `sqrt(1 / z_delta^2 + (1/2)^2 / sigma_b^2) = 1 / z` in l2 norm, and the noise
  of the pair is standard normal: the pair is one Gaussian mechanism of noise
  multiplier z (Andrew et al. 2021, Theorem 1). C_t is a function of earlier
  releases, so that the steps compose as any adaptive sequence of Gaussian
  mechanisms. `tfdpflows.optimizers` raises the noise of the gradient to
  z_delta; the event of a plan stays the same.

  Gradients that are not finite, and padding, contribute zero to both sums, as
  an example that is absent. An example that is replaced is one removed and one
  added, and moves the pair by twice as much at most.

  Args:
    initial_clip: the first threshold. All are kept between 1e-9 and 1e9.
    target_quantile: share of examples that are not clipped, in (0, 1).
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
  >>> _ = clipping.finish([], statistic=.5)  # No example was clipped.
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
    count_stddev: float | None = None,
  ):
    _check_clip('initial_clip', initial_clip)
    check_positive('learning_rate', learning_rate)
    if count_stddev is not None:
      count_stddev = check_positive('count_stddev', count_stddev)
    self.initial_clip = float(initial_clip)
    self.target_quantile = check_fraction('target_quantile', target_quantile)
    self.learning_rate = float(learning_rate)
    self.count_stddev = count_stddev
    # The logarithm, over the initial threshold.
    self.state = _state(0.0, tf.float64)

  @property
  def l2_sensitivity(self) -> tf.Tensor:
    """The threshold of this step: a tensor."""
    return self.initial_clip * tf.exp(self.state)

  def clip_and_sum(
    self, gradients: PerExampleGradients, weights: tf.Tensor | None = None
  ) -> list[tf.Tensor]:
    return _clipped_sum(gradients, self.l2_sensitivity, weights)

  def statistic(
    self, gradients: PerExampleGradients, weights: tf.Tensor | None = None
  ) -> tf.Tensor:
    """Returns `sum_i w_i (b_i - 1/2)`, b_i = 1 where |g_i| <= C_t.

    Of finite gradients: one that is not is no part of the other sum either.
    """
    squared = gradients.squared_norms()
    weight = tf.cast(_presence(gradients, weights), squared.dtype)
    clip = tf.cast(self.l2_sensitivity, squared.dtype)
    below = _norms(squared) <= clip
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
        'the count alone costs more than the step.'
      )
    return self.count_stddev

  def finish(
    self, means: list[tf.Tensor], statistic: tf.Tensor | None = None
  ) -> list[tf.Tensor]:
    """Updates the threshold; see `Strategy.finish`."""
    share = tf.cast(statistic, tf.float64) + 0.5
    state = self.state - self.learning_rate * (share - self.target_quantile)
    low, high = (math.log(b / self.initial_clip) for b in FLOAT32_RANGE)
    self.state.assign(tf.clip_by_value(state, low, high))
    return means

  def get_config(self) -> dict[str, Any]:
    return {
      'initial_clip': self.initial_clip,
      'target_quantile': self.target_quantile,
      'learning_rate': self.learning_rate,
      'count_stddev': self.count_stddev,
    }


class StochasticSparsification(Strategy):
  """Drops small coordinates at random, without bias, then clips (DP-HFlow).

  With sparsity gamma and threshold tau, coordinate j of a gradient becomes

      T(g)_j = g_j                 if |g_j| >= tau
               g_j / (1 - gamma)   otherwise, with probability 1 - gamma
               0                   otherwise, with probability gamma

  so that `E T(g) = g`, and the sum is `sum_i w_i T(g_i) min(1, C / |T(g_i)|)`.
  The coordinates that may be dropped are drawn once per step, for all examples.
  Without a threshold they are zero for all, which needs no stored gradient (Zhu
  and Blaschko 2021), and their noise is dropped too. A finite threshold is
  compared with every coordinate of every example: all gradients are stored, so
  keep `chunk_size` of the optimizer small.

  This T is our reading of DP-HFlow's T_{tau,gamma}, of which the paper states
  that it is unbiased, keeps what is at least tau, drops with probability gamma
  and comes before the clip. It was not compared with the authors' code or
  numbers.

  #### Formal guarantee

  For each outcome of the draw, T(g_i) is a function of example i's gradient
  and is clipped to `l2_norm_clip`: the bound holds for every outcome, and the
  draw need not be secret. It depends on `seed` and on the number of the step
  alone: a step that is replayed with the same noise is the same step. Zeroing
  dropped coordinates after the noise is post-processing. See `Strategy` for
  the rest.

  Args:
    l2_norm_clip: the bound C, from 1e-9 to 1e9.
    sparsity: probability gamma of a coordinate to be dropped, in [0, 1).
    threshold: tau; coordinates at least that large are kept.
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
    self.state = _state(0, tf.int32)

  def clip_and_sum(
    self, gradients: PerExampleGradients, weights: tf.Tensor | None = None
  ) -> list[tf.Tensor]:
    masks = self._masks(gradients.variables)
    if self.threshold == math.inf:
      gradients = gradients.times(masks)
    else:
      gradients = gradients.transformed(self._sparsified, masks)
    return _clipped_sum(gradients, self.l2_norm_clip, weights)

  def finish(
    self, means: list[tf.Tensor], statistic: tf.Tensor | None = None
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


def _check_clip(name, value):
  why = 'Beyond, squares of gradients leave float32: scale the loss.'
  check_float32_range(name, value, why)


def _state(value, dtype):
  """Returns a variable for the state of a strategy, alike on all replicas."""
  with tf.init_scope():
    return tf.Variable(
      value,
      dtype=dtype,
      trainable=False,
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _clipped_sum(gradients, clip, weights):
  """Returns `sum_i w_i g_i min(1, clip / |g_i|)`."""
  squared = gradients.squared_norms()
  present = _presence(gradients, weights)
  scale = _scale_to(clip, _norms(squared))
  return gradients.weighted_sum(scale * present, clip)


def _presence(gradients, weights):
  """Returns `[batch]`, weights in [0, 1]; 0 where a gradient is not finite."""
  present = tf.cast(gradients.finite(), gradients.variables[0].dtype)
  return present if weights is None else present * _bounded(weights, present)


def _bounded(weights, like):
  """Returns weights in [0, 1], 0 where they are not finite; 1 by default."""
  if weights is None:
    return tf.ones_like(like)
  weights = tf.convert_to_tensor(weights)
  known = weights.shape.rank == 1
  # Weights of another shape would be broadcast.
  if not (known and weights.shape.is_compatible_with(like.shape)):
    raise ValueError(
      f'weights have shape {weights.shape}; they must be [batch], one for '
      f'each example of a batch of shape {like.shape}.'
    )
  weights = tf.cast(weights, like.dtype)
  weights = tf.where(tf.math.is_finite(weights), weights, tf.zeros_like(like))
  return tf.clip_by_value(weights, 0.0, 1.0)


def _norms(squared_norms):
  """Returns the square roots, and 1 where they are not finite."""
  finite = tf.math.is_finite(squared_norms)
  return tf.sqrt(tf.where(finite, squared_norms, tf.ones_like(squared_norms)))


def _scale_to(clip, lengths):
  """Returns `min(1, clip / lengths)`."""
  clip = tf.cast(clip, lengths.dtype)
  # Dividing by the larger of the two is exact for short gradients and needs
  # no epsilon for those of norm zero.
  return tf.math.divide_no_nan(clip, tf.maximum(lengths, clip))


def _clips(gradients, clip):
  """Returns C_l by layer: C sqrt(p_l / p), with p the number of parameters."""
  counts = dict.fromkeys(gradients.layers, 0)
  for layer, variable in zip(gradients.layers, gradients.variables):
    counts[layer] += variable.shape.num_elements()
  total = sum(counts.values())
  return {k: clip * math.sqrt(n / total) for k, n in counts.items()}


def _mixed(x):
  """Returns the finaliser of MurmurHash3.

  TensorFlow's generators give other numbers under XLA, and a step may be
  replayed without it.
  """
  x = (x ^ tf.bitwise.right_shift(x, _uint(16))) * _uint(0x85EBCA6B)
  x = (x ^ tf.bitwise.right_shift(x, _uint(13))) * _uint(0xC2B2AE35)
  return x ^ tf.bitwise.right_shift(x, _uint(16))


def _uint(x):
  return tf.constant(x, tf.uint32)
