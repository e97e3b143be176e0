"""Gaussian noise, and where an optimizer takes it from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
  from tfdpflows.optimizers import DPOptimizer
  from tfdpflows.training.steps import StepStream

# Per type of number: the words that are drawn, and their signed twins.
_WORDS = {
  tf.float32: (tf.uint32, tf.int32),
  tf.float64: (tf.uint64, tf.int64),
}

# Numbers that are drawn together, about.
_GROUP = 2**17
_MOST_GROUPS = 64
_SUPPORTED = (
  tf.distribute.MirroredStrategy,
  tf.distribute.MultiWorkerMirroredStrategy,
  tf.distribute.OneDeviceStrategy,
)


class GeneratorNoise:
  """A noise source for updates without a plan, on one replica.

  What gives the updates of one optimizer their noise has three methods, called
  in this order, and the two attributes; `training.steps` has the other one.

  Args:
    generator: a `tf.random.Generator`.
    checkpointed: whether checkpoints keep its state. Secret noise must not go
      back with a checkpoint, it was used; what is meant to be reproduced has
      to.

  Attributes:
    plan: the `TrainingPlan` whose steps the updates are: `None`.
    checkpointed: dict of what checkpoints of the optimizer keep, by name.
  """

  plan = None

  def __init__(self, generator: tf.random.Generator, checkpointed: bool):
    self.generator = generator
    self.checkpointed = {'noise': generator} if checkpointed else {}

  def check(self, optimizer: DPOptimizer, step: tf.Tensor | int | None) -> None:
    """Refuses an update for what is known without its rows.

    Args:
      optimizer: the optimizer that is about to update.
      step: number of the update in its plan, or `None`.

    Raises:
      ValueError: for an update that must not be made.
    """
    name = type(optimizer).__name__
    if step is not None:
      raise ValueError(
        f'{name} has a `step` and no plan: steps are numbered by the '
        'TrainingPlan that makes the optimizer, plan.optimizer(...).'
      )
    replicas = current_strategy().num_replicas_in_sync
    if replicas > 1:
      raise ValueError(
        f'{name} runs on one replica and finds {replicas}: nobody has dealt '
        'the rows out to them. Take the optimizer of a TrainingPlan, or train '
        'outside of the tf.distribute strategy.'
      )

  def take(self, step: tf.Tensor | int | None) -> tf.random.Generator:
    """Returns the randomness of one update, for `add`."""
    return self.generator

  def add(
    self,
    taken: tf.random.Generator,
    total: tf.Tensor,
    stddev: tf.Tensor | float,
  ) -> tf.Tensor:
    """Returns the sum over all replicas, with noise added once.

    Args:
      taken: what `take` returned for the update.
      total: `[size]`, the sum over the examples of this replica.
      stddev: standard deviation of the noise, a scalar.
    """
    stddev = tf.cast(stddev, tf.float64)
    return total + normal(taken, total.shape[0], stddev, total.dtype)


def current_strategy() -> tf.distribute.Strategy:
  """Returns the `tf.distribute` strategy in force.

  Raises:
    ValueError: for a strategy whose replicas do not make every update
      together, or of which this was never shown.
  """
  strategy = tf.distribute.get_strategy()
  if tf.distribute.has_strategy() and not isinstance(strategy, _SUPPORTED):
    raise ValueError(
      f'{type(strategy).__name__} is not supported for private training: the '
      'noise of an update has to enter once, with all replicas in step. Use '
      'tf.distribute.MirroredStrategy or MultiWorkerMirroredStrategy.'
    )
  return strategy


def normal(
  random: tf.random.Generator | StepStream,
  size: int,
  stddev: tf.Tensor | float,
  dtype: tf.DType,
) -> tf.Tensor:
  """Returns `[size]`, independent normal numbers of mean zero.

  Box and Muller's transform of uniform numbers, written out: TensorFlow's own
  `normal` takes about twice as long on a CPU, and ends at 5.7 standard
  deviations.

  Args:
    random: has `uniform_full_int(shape, dtype)`, as a `tf.random.Generator`;
      words of tf.uint32 and tf.uint64 are drawn.
    size: integer.
    stddev: standard deviation, a scalar.
    dtype: tf.float32 or tf.float64.
  """
  # Cut where cache lines end, which takes no copy.
  half = -(-size // 32) * 16
  word, signed = _WORDS[dtype]
  words = tf.bitcast(random.uniform_full_int([2, half], word), signed)
  radius = tf.sqrt(-2 * tf.math.log(_uniform(words, dtype)))
  radius *= tf.cast(stddev, dtype)
  # The sign makes half a turn of it.
  angle = tf.cast(words[1], dtype) * (math.pi / signed.max)
  found = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], 0)
  return found[:size]


def groups(tensors: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
  """Returns the tensors as lists of consecutive ones, to be noised together.

  Numbers of a group that fit into a cache are drawn faster and leave memory
  soon. There are at most twice `_MOST_GROUPS`.
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
  """Returns numbers in (0, 1], in steps of 2^-46 near 0 (2^-78 in float64).

  The radius is as long as they are small: with the 23 bits of TensorFlow's
  float32 noise would end at 5.7 standard deviations, and here does at 8.1.
  Beyond the 31 bits of the first word come the lowest 15 of the second. In
  the angle these are less than 1e-4, so that they can serve twice.
  """
  signed = words.dtype
  bits = 8 * signed.size - 1
  coarse = tf.cast(tf.bitwise.bitwise_and(words[0], signed.max), dtype)
  fine = tf.cast(tf.bitwise.bitwise_and(words[1], 2**15 - 1), dtype)
  return coarse * 2.0**-bits + (fine + 0.5) * 2.0 ** -(bits + 15)
