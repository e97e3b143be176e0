"""DP-SGD in the shape of Keras optimizers."""

from __future__ import annotations

import math

import tensorflow as tf

from tfdpflows import gradients as gradients_lib
from tfdpflows._keras import (
  VectorizedDPKerasAdagradOptimizer,
  VectorizedDPKerasAdamOptimizer,
  VectorizedDPKerasSGDOptimizer,
)
from tfdpflows.randomness import Randomness

# The share of the noise's scale that the released loss may claim: it adds half
# a percent to the noise of the gradient.
_LOSS_SHARE = 0.1


class DPOptimizer:
  """What the DP-Keras optimizers here add to those of TF Privacy.

  Per-example gradients in one backward pass, any clipping strategy, and a
  noised sum that is right for Poisson sampling: divided by the expected batch
  size, a public constant, and noised also when the batch is empty.

  #### Formal guarantee

  One update releases the clipped sum of the gradients (and of the losses,
  where `loss_bound` is given) with Gaussian noise of standard deviation
  `noise_multiplier` times its l2 sensitivity to adding or removing one
  example: the event `GaussianDpEvent(noise_multiplier)` before any
  amplification by sampling. The noise is drawn in floating point by Philox,
  seeded from the operating system; it is not proof against attacks on
  floating-point noise.

  Args:
    l2_norm_clip: the clipping norm, for `gradients.Flat(l2_norm_clip)`.
    noise_multiplier: standard deviation of the noise over the sensitivity.
    expected_batch_size: what the noised sum is divided by.
    clipping: a clipping strategy, instead of `l2_norm_clip`.
    loss_bound: releases each batch's mean loss too, with each example's loss
      clipped to [-loss_bound, loss_bound] and the same noise multiplier; the
      joint sensitivity grows by 0.5 %. `None` releases no loss.
    seed: for tests and papers; noise that can be predicted protects nobody.
    noise_generator: a `tf.random.Generator` that replaces `seed`. No two
      optimizers may use the same stream: their noise would cancel.
    plan: the `TrainingPlan` that made this optimizer.
    **kwargs: of the Keras optimizer, such as `learning_rate`.

  Raises:
    ValueError: for values out of range.
  """

  def __init__(
    self,
    *,
    noise_multiplier,
    expected_batch_size,
    l2_norm_clip=None,
    clipping=None,
    loss_bound=None,
    seed=None,
    noise_generator=None,
    plan=None,
    **kwargs,
  ):
    if (l2_norm_clip is None) == (clipping is None):
      raise ValueError('Give one of `l2_norm_clip` and `clipping`.')
    if clipping is None:
      clipping = gradients_lib.Flat(l2_norm_clip)
    if not 0 <= noise_multiplier < math.inf:
      raise ValueError(
        f'noise_multiplier is {noise_multiplier}; it must be a number >= 0.'
      )
    if not 0 < expected_batch_size < math.inf:
      raise ValueError(
        f'expected_batch_size is {expected_batch_size}; it must be positive.'
      )
    if loss_bound is not None and not 0 < loss_bound < math.inf:
      raise ValueError(f'loss_bound is {loss_bound}; it must be positive.')
    if seed is not None and noise_generator is not None:
      raise ValueError('Give either `seed` or `noise_generator`, not both.')
    super().__init__(
      l2_norm_clip=clipping.l2_sensitivity,
      noise_multiplier=noise_multiplier,
      **kwargs,
    )
    self.clipping = clipping
    self.noise_multiplier = float(noise_multiplier)
    self.expected_batch_size = float(expected_batch_size)
    self.loss_bound = None if loss_bound is None else float(loss_bound)
    self.plan = plan
    if noise_generator is None:
      with tf.init_scope():
        noise_generator = Randomness(seed).tensorflow('noise')
    # Keras 2 optimizers track by name only. Noise that a checkpoint did not
    # keep would start again, on other batches.
    self._noise = self._track_trackable(noise_generator, 'noise')

  @property
  def noise_stddev(self):
    """Standard deviation of the noise on the sum of clipped gradients."""
    sensitivity = self.clipping.l2_sensitivity
    if self.loss_bound is not None:
      sensitivity *= math.hypot(1, _LOSS_SHARE)
    return self.noise_multiplier * sensitivity

  def private_gradients(self, loss, variables, tape, weights=None):
    """Returns the noised mean gradients, and the noised mean loss or `None`.

    Args:
      loss: `[batch]`, one loss per example.
      variables: flat list of variables.
      tape: a `PerExampleTape`; a plain `tf.GradientTape` takes the slow way.
      weights: `[batch]`, 0 for padding; all ones by default.

    Raises:
      ValueError: if the loss is not one per example, under more than one
        replica, or for the optimizer of a plan outside of
        `DensityModel.fit`, where nothing would be charged.
    """
    if self.plan is not None and not self.plan.trains(self):
      raise ValueError(
        'The optimizer of a plan updates in DensityModel.fit only, on batches '
        'that the plan draws and charges for. For a loop of your own make the '
        f'optimizer by itself: {type(self).__name__}(...).'
      )
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
      raise ValueError(
        f'{type(self).__name__} runs on one replica and finds {replicas}: '
        'each would add the noise of the whole update. Train outside of the '
        'tf.distribute strategy.'
      )
    if weights is not None:
      weights = tf.convert_to_tensor(weights)
    self._was_dp_gradients_called = True
    if isinstance(tape, gradients_lib.PerExampleTape):
      per_example = tape.per_example_gradients(loss, variables)
    else:
      per_example = gradients_lib.PerExampleGradients.from_jacobian(
        tape, loss, variables
      )
    total = self.clipping.clip_and_sum(per_example, weights)
    means = [self._noised_mean(t, self.noise_stddev) for t in total]
    return means, self._private_loss(loss, weights)

  def _noised_mean(self, total, stddev):
    noise = self._noise.normal(
      tf.shape(total), stddev=stddev, dtype=total.dtype
    )
    return (total + noise) / tf.cast(self.expected_batch_size, total.dtype)

  def _private_loss(self, loss, weights):
    if self.loss_bound is None:
      return None
    usable = tf.math.is_finite(loss)
    if weights is not None:
      usable = tf.logical_and(usable, weights > 0)
    bounded = tf.clip_by_value(loss, -self.loss_bound, self.loss_bound)
    total = tf.reduce_sum(tf.where(usable, bounded, tf.zeros_like(loss)))
    # In units in which one example moves the loss by _LOSS_SHARE * C the noise
    # is noise_stddev, as for every other coordinate of the release.
    unit = self.loss_bound / (_LOSS_SHARE * self.clipping.l2_sensitivity)
    return self._noised_mean(total, self.noise_stddev * unit)

  def _compute_gradients(self, loss, var_list, grad_loss=None, tape=None):
    if not callable(loss) and tape is None:
      raise ValueError('`tape` is required when a tensor loss is passed.')
    if callable(loss):
      with gradients_lib.PerExampleTape() as tape:
        loss = loss()
    if callable(var_list):
      var_list = var_list()
    variables = tf.nest.flatten(var_list)
    means, _ = self.private_gradients(loss, variables, tape)
    return list(zip(means, variables))

  def get_gradients(self, loss, params):
    raise ValueError(
      f'{type(self).__name__} works in TensorFlow 2 style only: use '
      '`minimize`, `model.fit` or `private_gradients`.'
    )

  def get_config(self):
    """Returns all arguments, those of privacy included (not seed, nor plan)."""
    config = super().get_config()
    config.update(
      clipping={
        'class_name': type(self.clipping).__name__,
        'config': self.clipping.get_config(),
      },
      noise_multiplier=self.noise_multiplier,
      expected_batch_size=self.expected_batch_size,
      loss_bound=self.loss_bound,
    )
    return config

  @classmethod
  def from_config(cls, config, custom_objects=None):
    """Makes an optimizer from `get_config()`, with fresh noise."""
    config = dict(config)
    clipping = config.pop('clipping')
    strategy = getattr(gradients_lib, clipping['class_name'])
    return cls(clipping=strategy(**clipping['config']), **config)


class DPKerasSGD(DPOptimizer, VectorizedDPKerasSGDOptimizer):
  """Gradient descent on noised gradients; `DPOptimizer` has the arguments.

  #### Example

  >>> from tfdpflows import optimizers
  >>> optimizer = optimizers.DPKerasSGD(
  ...   l2_norm_clip=1., noise_multiplier=1.1, expected_batch_size=256,
  ...   learning_rate=.1)
  >>> optimizer.get_config()['noise_multiplier']
  1.1
  """


class DPKerasAdam(DPOptimizer, VectorizedDPKerasAdamOptimizer):
  """Adam on noised gradients; `DPOptimizer` has the arguments.

  #### Example

  >>> from tfdpflows import optimizers
  >>> optimizer = optimizers.DPKerasAdam(
  ...   l2_norm_clip=1., noise_multiplier=1.1, expected_batch_size=256)
  >>> optimizer.noise_stddev
  1.1
  """


class DPKerasAdagrad(DPOptimizer, VectorizedDPKerasAdagradOptimizer):
  """Adagrad on noised gradients; `DPOptimizer` has the arguments.

  #### Example

  >>> from tfdpflows import optimizers
  >>> optimizer = optimizers.DPKerasAdagrad(
  ...   l2_norm_clip=2., noise_multiplier=1.1, expected_batch_size=256)
  >>> optimizer.clipping
  Flat(l2_norm_clip=2)
  """
