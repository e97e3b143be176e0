"""DP-SGD as Keras optimizers."""

from __future__ import annotations

import difflib
import inspect
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tfdpflows import _observer
from tfdpflows import gradients as gradients_lib
from tfdpflows._autograph import unconverted
from tfdpflows._checks import (
  check_float32_range,
  check_integer,
  check_nonnegative,
  check_positive,
  check_type,
)
from tfdpflows._keras import (
  VectorizedDPKerasAdagradOptimizer,
  VectorizedDPKerasAdamOptimizer,
  VectorizedDPKerasSGDOptimizer,
  keras,
)
from tfdpflows.gradients import rules
from tfdpflows.optimizers.noise import (
  GeneratorNoise,
  current_strategy,
  groups,
)
from tfdpflows.randomness import Randomness

# Noise multiplier of the gradient over that of the loss: the noise of the
# gradient grows by half a percent for it.
_LOSS_SHARE = 0.1
# Numbers of noise that need no memory to speak of.
_LITTLE = 2**20
# Rows of a chunk by default; with more a step is hardly faster on a CPU.
_CHUNK_ROWS = 2048
# What Keras takes besides arguments that have a name.
_OF_OPTIMIZERS = 'clipnorm', 'clipvalue', 'decay', 'global_clipnorm', 'lr'
# What a user has no use for, or a plan gives.
_UNSHOWN = {
  *('self', 'args', 'kwargs', 'lr', 'gradient_aggregator', 'noise_source'),
  *('gradient_transformers', 'num_microbatches'),
  'unconnected_gradients_to_zero',
}
# What oneDNN may compute float32 in, by the environment.
_FPMATH = (
  *('TF_SET_ONEDNN_FPMATH_MODE', 'ONEDNN_DEFAULT_FPMATH_MODE'),
  'DNNL_DEFAULT_FPMATH_MODE',
)
# Up to so many rows float32 sums round by about a thousandth of a row.
_MANY_ROWS = 2**14


class DPOptimizer:
  """The base class of the DP-Keras optimizers.

  It adds to those of TF Privacy: per-example gradients in one backward pass,
  any clipping strategy, and a noised sum that is valid for Poisson sampling:
  divided by the expected batch size, a public constant, and noised also when
  the batch is empty.

  #### Formal guarantee

  One update releases the clipped sum of the gradients and, where they are
  asked for, the sum of the losses and the statistic of an adaptive clipping
  strategy. Each part k has Gaussian noise of z_k times its l2 sensitivity to
  adding or removing one example, with `sum_k z_k^-2 = noise_multiplier^-2`:
  divided by their noise, all parts together move by at most
  `1 / noise_multiplier`, so that the update is the event
  `GaussianDpEvent(noise_multiplier)` before any amplification by sampling. The
  noise is drawn in floating point by Philox, seeded from the operating system,
  and noisy sums are rounded to a public grid (`noise_grid`). Sums are float32,
  and float64 over the chunks of a batch of which more than 16,384 rows are
  expected: one row moves them by the sensitivity, and by up to some hundredths
  of it more where thousands of rows were made for it.

  Args:
    l2_norm_clip: the clipping norm, for `gradients.Flat(l2_norm_clip)`.
    noise_multiplier: standard deviation of the noise over the sensitivity.
    expected_batch_size: the noised sum is divided by this.
    clipping: a clipping strategy, instead of `l2_norm_clip`.
    loss_bound: releases each batch's mean loss too, with each example's loss
      clipped to [-loss_bound, loss_bound]; the noise of the gradient grows by
      0.5 % for it. `None` releases no loss.
    augmentation_multiplicity: rows per example in `private_gradients_of` (De et
      al. 2022), such as draws of its augmentation or dequantization: their
      gradients are averaged before the example is clipped.
    chunk_size: largest number of examples that `private_gradients_of` computes
      at one time: memory is that of a chunk, whatever the batch, and noise is
      added once. By default 2048 rows, if more are expected.
    seed: for tests and papers; predictable noise does not protect.
    noise_generator: a `tf.random.Generator` that replaces `seed`. No two
      optimizers may use the same stream: their noise would cancel. With it, or
      with `seed`, checkpoints keep the state of the noise, from which all of
      it can be computed, and restoring one in the same process repeats used
      noise; else they do not.
    noise_source: as `noise.GeneratorNoise`, replaces both: how a `TrainingPlan`
      makes its optimizers. Noise is then a function of the plan's secret and
      of the step alone.
    **kwargs: of the Keras optimizer, such as `learning_rate`.

  Attributes:
    plan: the `TrainingPlan` that made this optimizer, or `None`.
    plan_step: under a plan, an int64 variable that checkpoints keep: the number
      of steps done.

  Raises:
    TypeError: for arguments that neither this class nor the Keras optimizer
      has, or a learning rate that is neither a number nor a schedule.
    ValueError: for values out of range.
  """

  def __init__(
    self,
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    l2_norm_clip: float | None = None,
    clipping: gradients_lib.Strategy | None = None,
    loss_bound: float | None = None,
    augmentation_multiplicity: int = 1,
    chunk_size: int | None = None,
    seed: int | None = None,
    noise_generator: tf.random.Generator | None = None,
    noise_source: GeneratorNoise | None = None,
    **kwargs: Any,
  ):
    if (l2_norm_clip is None) == (clipping is None):
      raise ValueError('Give one of `l2_norm_clip` and `clipping`.')
    if not 0 <= noise_multiplier < math.inf:
      raise ValueError(
        f'noise_multiplier is {noise_multiplier}; it must be a number >= 0.'
      )
    if clipping is not None:
      check_type('clipping', clipping, gradients_lib.Strategy, 'Flat(1.0)')
    sources = {
      'seed': seed,
      'noise_generator': noise_generator,
      'noise_source': noise_source,
    }
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
      raise ValueError(f'Give either `{given[0]}` or `{given[1]}`, not both.')
    _check_keras_arguments(type(self), kwargs)
    _check_microbatches(
      kwargs.pop('num_microbatches', None), expected_batch_size
    )
    _refuse_mixed_precision_policy()
    clipping = (clipping or gradients_lib.Flat(l2_norm_clip)).fresh()
    super().__init__(
      l2_norm_clip=float(clipping.l2_sensitivity),
      noise_multiplier=noise_multiplier,
      **kwargs,
    )
    self.clipping = clipping
    self.noise_multiplier = float(noise_multiplier)
    self.expected_batch_size = check_positive(
      'expected_batch_size', expected_batch_size
    )
    if loss_bound is not None:
      why = 'Beyond, sums of losses leave float32: scale the loss.'
      loss_bound = check_float32_range('loss_bound', loss_bound, why)
    self.loss_bound = loss_bound
    self.augmentation_multiplicity = check_integer(
      'augmentation_multiplicity', augmentation_multiplicity
    )
    if chunk_size is not None:
      chunk_size = check_integer('chunk_size', chunk_size)
    self.chunk_size = chunk_size
    self._variables_of_first_update = None
    self._noise_multipliers()
    if noise_source is None:
      seeded = bool(given)
      if noise_generator is None:
        with tf.init_scope():
          noise_generator = Randomness(seed).tensorflow('noise')
      noise_source = GeneratorNoise(noise_generator, checkpointed=seeded)
    self.noise_source = noise_source
    self.plan = noise_source.plan
    # Keras 2 optimizers track by name only.
    for name, state in noise_source.checkpointed.items():
      setattr(self, name, self._track_trackable(state, name))
    if clipping.state is not None:
      self._track_trackable(clipping.state, 'clipping')

  @property
  def _is_wrapped_by_loss_scale_optimizer(self):
    return False

  @_is_wrapped_by_loss_scale_optimizer.setter
  def _is_wrapped_by_loss_scale_optimizer(self, value):
    # How Keras begins to wrap, in `compile` too.
    raise _mixed_precision(f'a LossScaleOptimizer around {self._name}')

  @property
  def noise_stddev(self) -> float:
    """Standard deviation of the noise on the sum of clipped gradients."""
    return self._noise_multipliers()[0] * self.clipping.l2_sensitivity

  def _noise_multipliers(self):
    """Of gradient, loss and statistic; see the formal guarantee."""
    z, loss, statistic = self.noise_multiplier, math.inf, math.inf
    if z == 0:
      return 0.0, 0.0, 0.0
    gradient = z
    if self.loss_bound is not None:
      gradient = z * math.hypot(1, _LOSS_SHARE)
      loss = gradient / _LOSS_SHARE
    if self.clipping.statistic_sensitivity:
      stddev = self.clipping.statistic_stddev(
        gradient, self.expected_batch_size
      )
      statistic = stddev / self.clipping.statistic_sensitivity
      gradient = (gradient**-2 - statistic**-2) ** -0.5
    return gradient, loss, statistic

  def private_gradients(
    self,
    loss: tf.Tensor,
    variables: Sequence[tf.Variable],
    tape: tf.GradientTape,
    weights: tf.Tensor | None = None,
    step: tf.Tensor | int | None = None,
  ) -> tuple[list[tf.Tensor], tf.Tensor | None]:
    """Returns the noised mean gradients and the noised mean loss, or `None`.

    Args:
      loss: `[batch]`, one loss per example.
      variables: flat list of variables.
      tape: a `PerExampleTape`; a plain `tf.GradientTape` takes the slow path.
      weights: `[batch]`, 0 for padding; all ones by default.
      step: the number of the batch, as `plan.dataset` gives it; with a plan
        only.

    Raises:
      ValueError: if the loss is not one per example; for variables that the
        first update did not have, of two dtypes or in mixed precision; with
        several replicas but no plan, or an unsupported `tf.distribute`
        strategy; or for the optimizer of a plan outside of `fit`, where nothing
        is charged, or without `step`.
      tf.errors.InvalidArgumentError: for a step that is not the next one of the
        plan.
    """
    if self.augmentation_multiplicity > 1 or self.chunk_size is not None:
      raise ValueError(
        'augmentation_multiplicity and chunk_size need the losses as a '
        f'function of the rows: {type(self).__name__}.private_gradients_of, '
        'which tfdpflows.DensityModel calls.'
      )
    self.check_step(variables, step)
    sums = self._sums(loss, variables, tape, weights)
    return self._release(sums, variables[0].dtype, step)

  def private_gradients_of(
    self,
    losses: Callable,
    rows: Any,
    variables: Sequence[tf.Variable],
    weights: tf.Tensor | None = None,
    step: tf.Tensor | int | None = None,
  ) -> tuple[list[tf.Tensor], tf.Tensor | None]:
    """Returns the same as `private_gradients`, with draws and chunks.

    Args:
      losses: a function of rows that returns `[batch]`, one loss per row, which
        must depend on this row alone. It is called with each row repeated
        `augmentation_multiplicity` times, and with at most `chunk_size`
        examples at one time, the last ones zeros of weight 0.
      rows: a tensor `[batch, ...]`, or a structure of them.
      variables: flat list of variables.
      weights: `[batch]`, 0 for padding; all ones by default. Or `[batch, k]`,
        where an example has k rows (`sampling.Units.batch`): factors of the
        losses of its rows, all 0 for padding. `rows` are then `[batch, k,
        ...]`, `losses` is called with `[n, ...]` all the same, and the gradient
        of an example is that of the sum of its rows' losses times their
        factors. A k-th of that sum is the loss that `loss_bound` releases.
      step: see `private_gradients`.
    """
    sums = lambda rows, weights: self.sums_of(losses, rows, variables, weights)
    return self.noised(sums, rows, variables, weights, step)

  def noised(
    self,
    sums: Callable,
    rows: Any,
    variables: Sequence[tf.Variable],
    weights: tf.Tensor | None,
    step: tf.Tensor | int | None,
  ) -> tuple[list[tf.Tensor], tf.Tensor | None]:
    """As `private_gradients_of`, where `sums` computes `sums_of`.

    Args:
      sums: a function of rows and weights; `independence.Checker` gives the
        graph that it has checked.
      rows: see `private_gradients_of`.
      variables: see there.
      weights: see there.
      step: see there.
    """
    self.check_step(variables, step)
    rows = tf.nest.map_structure(tf.convert_to_tensor, rows)
    if weights is not None:
      weights = tf.convert_to_tensor(weights)
    rows_of_one = self.augmentation_multiplicity * _rows_per_example(weights)
    size = max(1, _CHUNK_ROWS // rows_of_one)
    if self.chunk_size is None and self.expected_batch_size <= size:
      return self._release(sums(rows, weights), variables[0].dtype, step)
    if weights is None:
      batch = tf.shape(tf.nest.flatten(rows)[0])[:1]
      weights = tf.ones(batch, variables[0].dtype)
    total = sum_over_chunks(
      lambda part: sums(*part),
      (rows, tf.convert_to_tensor(weights)),
      self.chunk_size or size,
      self._no_sums(variables),
    )
    return self._release(total, variables[0].dtype, step)

  def sums_of(
    self,
    losses: Callable,
    rows: Any,
    variables: Sequence[tf.Variable],
    weights: tf.Tensor | None,
  ) -> dict[str, Any]:
    """Returns the sums over rows that a step releases, before noise."""
    draws, count = self.augmentation_multiplicity, _rows_per_example(weights)
    if weights is not None and weights.shape.rank == 2:
      losses, rows = _weighted_rows(losses, rows, weights)
      weights = tf.cast(tf.reduce_any(weights > 0, 1), weights.dtype)
    if draws > 1:
      rows = tf.nest.map_structure(lambda x: tf.repeat(x, draws, axis=0), rows)
    with gradients_lib.PerExampleTape(losses=losses, rows=rows) as tape:
      loss = losses(rows)
      if draws * count > 1:
        _check_loss(loss)
        loss = tf.reduce_mean(tf.reshape(loss, [-1, draws * count]), 1)
    return self._sums(loss, variables, tape, weights, draws, count)

  @unconverted
  def _sums(self, loss, variables, tape, weights, draws=1, rows=1):
    """Returns the sums over the examples that are released, before noise.

    `draws` is the number of draws of each of the `rows` of an example.
    """
    _check_loss(loss)
    if weights is not None:
      weights = tf.convert_to_tensor(weights)
      if weights.shape.rank != 1:
        raise ValueError(
          f'weights have shape {weights.shape}; they must be [batch], one for '
          'each example.'
        )
    per_example = gradients_lib.PerExampleGradients(
      tape, loss, variables, draws * rows
    )
    sums = {'gradients': self.clipping.clip_and_sum(per_example, weights)}
    dtype = variables[0].dtype
    if self.loss_bound is not None:
      total = self._bounded_loss(loss / rows, weights)
      sums['loss'] = tf.cast(total, dtype)
    if self.clipping.statistic_sensitivity:
      statistic = self.clipping.statistic(per_example, weights)
      sums['statistic'] = tf.cast(statistic, dtype)
    return sums

  def _no_sums(self, variables):
    # The rounding of a float32 sum of many rows is more than a row adds.
    many = self.expected_batch_size > _MANY_ROWS
    dtype = tf.float64 if many else variables[0].dtype
    sums = {'gradients': [tf.zeros(v.shape, dtype) for v in variables]}
    if self.loss_bound is not None:
      sums['loss'] = tf.zeros([], dtype)
    if self.clipping.statistic_sensitivity:
      sums['statistic'] = tf.zeros([], dtype)
    return sums

  def _release(self, sums, dtype, step):
    """Adds the noise of one update; returns mean gradients and mean loss.

    They have the `dtype` of variables; the sums may have more digits.
    """
    taken = self.noise_source.take(step)
    _, loss_noise, statistic_noise = self._noise_multipliers()
    means = self._noised_means(
      sums['gradients'], self.noise_stddev, taken, correlated=True
    )
    loss = statistic = None
    if 'loss' in sums:
      stddev = loss_noise * self.loss_bound
      (loss,) = self._noised_means([sums['loss']], stddev, taken)
      loss = tf.cast(loss, dtype)
    if 'statistic' in sums:
      stddev = statistic_noise * self.clipping.statistic_sensitivity
      (statistic,) = self._noised_means([sums['statistic']], stddev, taken)
    self._was_dp_gradients_called = True
    means = [tf.cast(mean, dtype) for mean in means]
    return self.clipping.finish(means, statistic), loss

  def _noised_means(self, totals, stddev, taken, correlated=False):
    means = []
    # Much noise is drawn group by group, and after the sums: it is not in
    # memory together with the activations. A processor that waits in between
    # draws little noise. Replicas sum all groups in one order, and observers
    # see them in it.
    waits = (
      sum(t.shape.num_elements() for t in totals) > _LITTLE
      or current_strategy().num_replicas_in_sync > 1
      or _observer.current() is not None
    )
    for group in groups(totals):
      with tf.control_dependencies((means[-1:] or group[:1]) if waits else []):
        means += self._noised_group(group, stddev, taken, correlated)
    return means

  def _noised_group(self, totals, stddev, taken, correlated):
    # As one vector: fewer operations than for each tensor.
    sizes = [t.shape.num_elements() for t in totals]
    flat = tf.concat([tf.reshape(t, [-1]) for t in totals], 0)
    flat = self.noise_source.add(taken, flat, stddev, correlated)
    flat /= tf.cast(self.expected_batch_size, flat.dtype)
    parts = tf.split(flat, sizes)
    return [tf.reshape(part, t.shape) for part, t in zip(parts, totals)]

  def _bounded_loss(self, loss, weights):
    usable = tf.math.is_finite(loss)
    if weights is not None:
      usable = tf.logical_and(usable, weights > 0)
    bounded = tf.clip_by_value(loss, -self.loss_bound, self.loss_bound)
    return tf.reduce_sum(tf.where(usable, bounded, tf.zeros_like(loss)))

  def check_step(
    self, variables: Sequence[tf.Variable], step: tf.Tensor | int | None
  ) -> None:
    """Raises the errors of `private_gradients` that need no rows."""
    self.noise_source.check(self, step)
    _refuse_tf32()
    _refuse_rewritten_precision()
    _refuse_mixed_precision_policy()
    self._variables_of_first_update = self._check_variables(variables)

  def _check_variables(self, variables):
    """Returns the variables of the first update, which these must be of."""
    known = self._variables_of_first_update or {v.ref() for v in variables}
    _check_variables(variables, known)
    return known

  def _aggregate_gradients(self, grads_and_vars):
    # `private_gradients` has summed over the replicas already.
    return grads_and_vars

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

  def apply_gradients(self, *args: Any, **kwargs: Any) -> tf.Operation:
    """As in Keras, once there were private gradients."""
    if not self._was_dp_gradients_called:
      raise ValueError(
        f'{type(self).__name__} was given gradients to apply, and has computed '
        'none: those of a tf.GradientTape are neither clipped nor noised. Take '
        'what private_gradients_of returns, or train the model as '
        'tfdpflows.PrivateModel(model), with the optimizer of a plan.'
      )
    return super().apply_gradients(*args, **kwargs)

  def get_gradients(
    self, loss: tf.Tensor, params: Sequence[tf.Variable]
  ) -> NoReturn:
    raise ValueError(
      f'{type(self).__name__} works in TensorFlow 2 style only: use '
      '`minimize`, `model.fit` or `private_gradients`.'
    )

  def get_config(self) -> dict[str, Any]:
    """Returns all arguments but those of the noise."""
    config = super().get_config()
    config.update(
      clipping={
        'class_name': type(self.clipping).__name__,
        'config': self.clipping.get_config(),
      },
      noise_multiplier=self.noise_multiplier,
      expected_batch_size=self.expected_batch_size,
      loss_bound=self.loss_bound,
      augmentation_multiplicity=self.augmentation_multiplicity,
      chunk_size=self.chunk_size,
    )
    return config

  @classmethod
  def from_config(
    cls, config: dict[str, Any], custom_objects: dict | None = None
  ) -> DPOptimizer:
    """Makes an optimizer from `get_config()`, with fresh noise."""
    config = dict(config)
    clipping = config['clipping']
    known = {**vars(gradients_lib), **(custom_objects or {})}
    if clipping['class_name'] not in known:
      raise ValueError(
        f'There is no clipping strategy {clipping["class_name"]!r}; give it in '
        'custom_objects.'
      )
    strategy = known[clipping['class_name']]
    config['clipping'] = strategy(**clipping['config'])
    return super().from_config(config, custom_objects)


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


def sum_over_chunks(
  function: Callable[[Any], Any], tensors: Any, size: int, zeros: Any
) -> Any:
  """Returns the sum of `function(chunk)` over consecutive chunks of a batch.

  There are as few as possible, of one length: a batch of 1,100 is two of 550,
  if `size` is 1,024.

  Args:
    function: of a structure as `tensors`, with fewer rows.
    tensors: structure of tensors `[batch, ...]`; zeros are appended to them.
    size: length of the longest chunk.
    zeros: the sum over no chunk, in the dtypes of the result.
  """
  first = tf.nest.flatten(tensors)[0]
  known = first.shape[0] is not None
  batch = first.shape[0] if known else tf.shape(first)[0]
  if known and batch <= size:
    return function(tensors)
  count = -(-batch // size)
  length = -(-batch // (max(count, 1) if known else tf.maximum(count, 1)))

  def split(x):
    padding = [[0, count * length - batch]] + [[0, 0]] * (x.shape.rank - 1)
    sizes = [tf.shape(x)[i] if n is None else n for i, n in enumerate(x.shape)]
    return tf.reshape(tf.pad(x, padding), [count, length, *sizes[1:]])

  parts = tf.nest.map_structure(split, tensors)

  def body(i, sums):
    found = function(tf.nest.map_structure(lambda x: x[i], parts))
    add = lambda total, x: total + tf.cast(x, total.dtype)
    return i + 1, tf.nest.map_structure(add, sums, found)

  # One chunk after the other, or all would be in memory together.
  return tf.while_loop(
    lambda i, unused_sums: i < count, body, (0, zeros), parallel_iterations=1
  )[1]


def _rows_per_example(weights):
  if weights is None or weights.shape.rank != 2:
    return 1
  return weights.shape[1]


def _weighted_rows(losses, rows, weights):
  """Returns losses of rows, with a weight each, whose mean is an example's.

  Args:
    losses: a function of rows `[n, ...]`.
    rows: structure of tensors `[batch, k, ...]`.
    weights: `[batch, k]`.

  Returns:
    A function of pairs of rows and weights, and the pair, `[batch * k, ...]`.
  """

  def flat(x):
    sizes = [tf.shape(x)[i] if n is None else n for i, n in enumerate(x.shape)]
    return tf.reshape(x, [-1, *sizes[2:]])

  def weighted(pair):
    rows, factors = pair
    loss = losses(rows)
    return loss * tf.cast(factors, loss.dtype)

  rows = tf.nest.map_structure(lambda x: flat(tf.convert_to_tensor(x)), rows)
  return weighted, (rows, flat(weights * weights.shape[1]))


def _check_microbatches(number, expected_batch_size):
  """Refuses microbatches, as TF Privacy has them, of more than one example."""
  if number not in (None, expected_batch_size):
    raise ValueError(
      f'num_microbatches is {number}: here the gradient of each example is '
      'clipped by itself, as with microbatches of one example in TF Privacy. '
      'Drop num_microbatches.'
    )


def _check_keras_arguments(cls, given):
  """Refuses arguments that Keras refuses in other words, or in training."""
  known = set(_OF_OPTIMIZERS)
  for base in cls.__mro__:
    known.update(inspect.signature(base.__init__).parameters)
  for name in given:
    if name in known:
      continue
    near = difflib.get_close_matches(name, known, 1)
    hint = f'; do you mean {near[0]}' if near else ''
    if 'accumulation' in name:
      hint = (
        '; batches of any size are computed in chunks already, and noise is '
        'added once: see chunk_size'
      )
    raise TypeError(
      f'{cls.__name__} has no argument {name}{hint}. It takes '
      f'{", ".join(sorted(known - _UNSHOWN))}.'
    )
  for name in ('learning_rate', 'lr'):
    rate = given.get(name, 0.0)
    # A schedule is callable, too, and may be a configuration.
    if callable(rate) or tf.is_tensor(rate) or isinstance(rate, dict):
      continue
    if isinstance(rate, (str, bytes)):
      raise TypeError(
        f'{name} is {rate!r}; it must be a number, such as 1e-3, or a schedule '
        'of tf.keras.optimizers.schedules.'
      )
    # Zero is where schedules and callbacks begin.
    check_nonnegative(name, rate)


def _check_loss(loss):
  """Raises a ValueError for a loss that is not one exact number per example."""
  rules.check_loss(loss)
  if loss.dtype not in (tf.float32, tf.float64):
    raise _mixed_precision(f'a loss of {loss.dtype.name}')


def _mixed_precision(what):
  return ValueError(
    f'Mixed precision is refused: there is {what}. In half precision gradients '
    'overflow and norms are too inexact for clipping to bound anything. Use '
    "tf.keras.mixed_precision.set_global_policy('float32') before the model "
    'is made, and no LossScaleOptimizer.'
  )


def _refuse_mixed_precision_policy():
  """Raises a ValueError where new layers would compute in half precision."""
  policy = keras.mixed_precision.global_policy()
  if policy.compute_dtype in ('float16', 'bfloat16'):
    raise _mixed_precision(f'the global policy {policy.name!r}')


def _refuse_tf32():
  """Raises a ValueError where GPUs would multiply matrices in TensorFloat-32.

  Squared norms are such products: where uses of a variable cancel, a gradient
  could stay tens of times as long as the clip.
  """
  if (
    tf.config.get_visible_devices('GPU')
    and tf.config.experimental.tensor_float_32_execution_enabled()
  ):
    raise ValueError(
      'TensorFloat-32 is refused: matrix products on the GPU would round to 10 '
      'bits, so that clipping bounds nothing. Call tf.config.experimental.'
      'enable_tensor_float_32_execution(False) before training.'
    )


def _refuse_rewritten_precision():
  """Raises a ValueError where float32 is computed in half precision.

  By graphs that are rewritten, or by oneDNN, of which not all processors do.
  """
  for name in _FPMATH:
    mode = os.environ.get(name, '')
    if mode.upper() not in ('', 'STRICT'):
      raise ValueError(
        f'{name}={mode} in the environment is refused: matrix products may be '
        'in half precision, so that clipping bounds nothing. Unset it before '
        'the program starts.'
      )
  options = tf.config.optimizer.get_experimental_options()
  for name, is_on in options.items():
    if name.startswith('auto_mixed_precision') and is_on:
      raise ValueError(
        f'The graph option {name!r} is refused: matrix products would be in '
        'half precision, so that clipping bounds nothing. Call tf.config.'
        f'optimizer.set_experimental_options({{{name!r}: False}}) before '
        'training.'
      )


def _check_variables(variables, known):
  """Raises a ValueError for variables in half or mixed precision, or new."""
  for v in variables:
    # Keras has such variables where a layer computes in another precision.
    cast = type(v).__name__.startswith('AutoCast')
    if cast or v.dtype not in (tf.float32, tf.float64):
      raise _mixed_precision(f'the variable {v.name}')
  first = variables[0]
  for v in variables:
    if v.dtype != first.dtype:
      raise ValueError(
        f'The variable {v.name} is {v.dtype.name}, and {first.name} is '
        f'{first.dtype.name}: norms are taken over all of them. Make the whole '
        'model in one dtype.'
      )
  new = [v.name for v in variables if v.ref() not in known]
  if new:
    raise ValueError(
      f'The first update did not have the variables {new}. Build the whole '
      'model before it trains (call it once on public rows). After changing '
      'what is trainable take a new optimizer; where this one is of a plan, of '
      'a new plan that knows the cost of this one: TrainingPlan.for_epsilon('
      "epsilon=..., spent=plan.ledger.committed_event, label='another', ...)."
    )
