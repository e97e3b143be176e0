"""Gaussian noise, and its sources for an optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import tensorflow as tf

from tfdpflows import _observer
from tfdpflows._checks import Home

if TYPE_CHECKING:
  from tfdpflows.optimizers import DPOptimizer
  from tfdpflows.training.step_noise import StepStream

# For each dtype, that of the words that are drawn, and the signed one.
_WORDS = {
  tf.float32: (tf.uint32, tf.int32),
  tf.float64: (tf.uint64, tf.int64),
}

# The bits of a float64 that say which power of two it is above.
_EXPONENT = 0x7FF << 52
# A step of the grid of noisy sums is this power of two below their noise.
_GRID_BITS = 6

# Numbers that are drawn together, approximately.
_GROUP = 2**17
_MOST_GROUPS = 64
_SUPPORTED = (
  tf.distribute.MirroredStrategy,
  tf.distribute.MultiWorkerMirroredStrategy,
  tf.distribute.OneDeviceStrategy,
)


class GeneratorNoise:
  """The noise source of updates without a plan, on one replica.

  A noise source has these three methods, called in this order for each update,
  and the two attributes. `training.step_noise` has the one of a plan.

  Args:
    generator: a `tf.random.Generator`.
    checkpointed: whether checkpoints keep its state. Secret noise was used and
      must not be restored; noise that is to be reproduced must be.

  Attributes:
    plan: the `TrainingPlan` of the updates: `None`.
    checkpointed: what checkpoints of the optimizer keep, a dict by name.
  """

  plan = None

  def __init__(self, generator: tf.random.Generator, checkpointed: bool):
    self.generator = generator
    self.checkpointed = {'noise': generator} if checkpointed else {}
    self._home = Home()

  def __reduce_ex__(self, protocol: int) -> NoReturn:
    raise TypeError(
      'A private optimizer cannot be copied with its noise, which would be '
      'drawn twice: make a new one, as by from_config(optimizer.get_config()).'
    )

  def check(self, optimizer: DPOptimizer, step: tf.Tensor | int | None) -> None:
    """Raises a ValueError for an update that must not be made.

    Args:
      optimizer: the optimizer of the update.
      step: number of the update in its plan, or `None`.
    """
    name = type(optimizer).__name__
    self._home.check(f'This {name} was made')
    if step is not None:
      raise ValueError(
        f'{name} has a `step` and no plan: steps are numbered by the '
        'TrainingPlan that makes the optimizer, plan.optimizer(...).'
      )
    replicas = current_strategy().num_replicas_in_sync
    if replicas > 1:
      raise ValueError(
        f'{name} runs on one replica and finds {replicas}. Take the optimizer '
        'of a TrainingPlan, or train outside of the tf.distribute strategy.'
      )

  def take(self, step: tf.Tensor | int | None) -> tf.random.Generator:
    """Returns the randomness of one update, for `add`."""
    return self.generator

  def add(
    self,
    taken: tf.random.Generator,
    total: tf.Tensor,
    stddev: tf.Tensor | float,
    correlated: bool = False,
  ) -> tf.Tensor:
    """Returns the sum over all replicas, with noise added once.

    Args:
      taken: the result of `take` for the update.
      total: `[size]`, the sum over the examples of this replica.
      stddev: standard deviation of the noise, a scalar.
      correlated: whether the noise may depend on that of earlier updates, as a
        plan says: where all updates together are what is used.
    """
    stddev = tf.cast(stddev, tf.float64)
    noise = normal(taken, total.shape[0], stddev, total.dtype)
    return on_grid(noised(total, noise, stddev), stddev)


def current_strategy() -> tf.distribute.Strategy:
  """Returns the current `tf.distribute` strategy.

  Raises:
    ValueError: for one whose replicas are not known to make every update
      together.
  """
  strategy = tf.distribute.get_strategy()
  if tf.distribute.has_strategy() and not isinstance(strategy, _SUPPORTED):
    raise ValueError(
      f'{type(strategy).__name__} is not supported for private training: noise '
      'must be added once per update, with all replicas in step. Use '
      'tf.distribute.MirroredStrategy or MultiWorkerMirroredStrategy.'
    )
  return strategy


def noised(
  total: tf.Tensor,
  noise: tf.Tensor,
  stddev: tf.Tensor,
  label: str = '',
  step: tf.Tensor | int = -1,
) -> tf.Tensor:
  """Returns a sum with Gaussian noise; what an optimizer releases.

  Args:
    total: `[size]`.
    noise: `[size]`.
    stddev: of the noise, a float64 scalar.
    label: of the charge, for `audit.replay`.
    step: number of the step, if it has one.
  """
  observer = _observer.current()
  if observer is None:
    return total + noise
  return observer.tensor(total, noise, stddev, label, step)


def normal(
  random: tf.random.Generator | StepStream,
  size: int,
  stddev: tf.Tensor | float,
  dtype: tf.DType,
) -> tf.Tensor:
  """Returns `[size]`, independent normal numbers of mean zero.

  By the Box-Muller transform: TensorFlow's own `normal` takes about twice as
  long on a CPU, and has no numbers beyond 5.7 standard deviations.

  Args:
    random: has `uniform_full_int(shape, dtype)` as a `tf.random.Generator`, for
      tf.uint32 and tf.uint64.
    size: integer.
    stddev: standard deviation, a scalar.
    dtype: tf.float32 or tf.float64.
  """
  # Cut where cache lines end, which takes no copy.
  half = -(-size // 32) * 16
  word, signed = _WORDS[dtype]
  words = tf.bitcast(random.uniform_full_int([3, half], word), signed)
  radius = tf.sqrt(-2 * tf.math.log(_uniform(words[:2], dtype)))
  radius *= tf.cast(stddev, dtype)
  # With its sign, the third word is an angle in [-pi, pi].
  angle = tf.cast(words[2], dtype) * (math.pi / signed.max)
  found = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], 0)
  return found[:size]


def on_grid(x: tf.Tensor, stddev: tf.Tensor) -> tf.Tensor:
  """Returns a noisy sum, rounded to multiples of a power of two.

  Which numbers floating-point noise can reach depends on the sum that it is
  added to, and tells of it (Mironov 2012): see `noise_grid`. The sum of all
  replicas is rounded, and not its parts, for this to be post-processing.

  Args:
    x: `[size]`, float32 or float64, with the noise in it.
    stddev: of the noise, a float64 scalar. A step of the grid is from a 128th
      to a 64th of it: rounding adds less than 3e-5 of it to the variance, and
      2^14 or more of the values that noise in float32 has fall into each step.
  """
  bits = tf.bitcast(tf.cast(stddev, tf.float64), tf.int64)
  power = tf.bitcast(tf.bitwise.bitwise_and(bits, _EXPONENT), tf.float64)
  step = tf.cast(power * 2.0**-_GRID_BITS, x.dtype)
  return tf.where(step > 0, tf.round(x / step) * step, x)


def groups(tensors: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
  """Splits the tensors into lists of consecutive ones, to be noised together.

  Noise that fits into a cache is drawn faster and freed soon. There are at most
  twice `_MOST_GROUPS` lists.
  """
  sizes = [t.shape.num_elements() for t in tensors]
  largest = max(_GROUP, sum(sizes) // _MOST_GROUPS)
  found, room = [], 0
  for tensor, size in zip(tensors, sizes):
    if not found or size > room:
      found.append([])
      room = largest
    found[-1].append(tensor)
    room -= size
  return found


def _uniform(words, dtype):
  """Returns numbers in (0, 1], in steps of 2^-62 near 0 (2^-126 in float64).

  Small numbers give long radii: with the 23 bits of TensorFlow's, float32 noise
  would end at 5.7 standard deviations; here it does at 9.3. Two words of 31
  bits each give a small number as many digits as a large one. None of them is
  used for anything else: an angle with the lowest bits would tell how long a
  very long radius is, and so whether a number is noise alone.
  """
  signed = words.dtype
  bits = 8 * signed.size - 1
  words = tf.cast(tf.bitwise.bitwise_and(words, signed.max), dtype)
  return words[0] * 2.0**-bits + (words[1] + 0.5) * 4.0**-bits
