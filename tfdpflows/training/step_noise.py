"""The noise of a plan's steps: each a function of a secret and its number."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdpflows.optimizers.noise import (
  current_strategy,
  noised,
  normal,
  on_grid,
)
from tfdpflows.training import replicas
from tfdpflows.training.banded_noise import BandedNoise

if TYPE_CHECKING:
  from tfdpflows.optimizers import DPOptimizer
  from tfdpflows.training.steps import TrainingSteps

_PHILOX = 1
_KEY_BYTES = 24
# Draws of one step: each has a counter of its own, and blocks without end.
_DRAWS = 256
# Arguments of an optimizer that change how sums are computed, not what of.
_FREE = ('name', 'chunk_size')
# What an update releases of the rows depends on these, and on the clipping.
_NOISE = 'sampling or noise_multiplier'
_SETTINGS = ('loss_bound', 'expected_batch_size', 'augmentation_multiplicity')
# Arguments that ledgers know by another name.
_RECORDED_AS = {'augmentation_multiplicity': 'num_draws'}


class StepNoise:
  """The noise of an optimizer's steps: the state machine, inside of the graph.

  Steps `[start, end)` are open: `open` sets the start, each charge moves the
  end, each update the start, and `close` leaves none. An update takes the noise
  of an open step, which leaves that one and all before it done.

  #### Formal guarantee

  In one process no two updates have the noise of the same step, whatever is
  restored in between, and none has that of a step which was not charged. What
  is no open step is refused, and where XLA has dropped the refusal the update
  is NaN. On several replicas the first one adds the noise of the whole update,
  before anybody sees the sum.

  Args:
    steps: the `TrainingSteps` of the plan.

  Attributes:
    steps: see above.
    plan: the `TrainingPlan`.
    optimizer: the one optimizer that this is for.
    facts: what its updates depend on, for the ledger.
    done: `tf.Variable`, the number of steps that are done, which checkpoints
      keep.
  """

  def __init__(self, steps: TrainingSteps):
    self.steps, self.plan = steps, steps.plan
    self.optimizer, self.facts = None, None
    coefficients = self.plan.mechanism.coefficients
    self._banded = None
    if len(coefficients) > 1:
      self._banded = BandedNoise(coefficients, self._stream_of_rows)
    self.done = _variable()
    self.checkpointed = {'plan_step': self.done}
    # In no checkpoint: what was used stays used when weights are taken back.
    self._next, self._end = _variable(), _variable()
    # Secrets are no constants of graphs, which callbacks and profilers write
    # down: TensorBoard does. This one is for all replicas, others by name.
    self._key = _variable(_words(os.urandom(_KEY_BYTES)))
    self._known_key, self._other_keys = None, {}
    self._start, self._made = 0, False

  def belongs_to(self, optimizer: DPOptimizer) -> None:
    """Notes the optimizer, as soon as it is made."""
    self.optimizer, self.facts = optimizer, _facts_of(optimizer)
    self._settings = {**self._settings_of(optimizer), _NOISE: self.steps.event}

  def begin(self) -> None:
    """Refuses an optimizer that was changed, before a training of it."""
    self.check_settings(self.optimizer)
    # Once there are steps, its hyperparameters are those of the last one.
    if not int(self.done.numpy()):
      self.facts = _facts_of(self.optimizer)

  @property
  def unused(self) -> int:
    """The first step whose noise this process has not used."""
    return int(self._next.numpy())

  @property
  def made_any(self) -> bool:
    """Whether a step was ever made."""
    return self._made or self.unused > self._start

  def open(self, start: int) -> None:
    """Lets steps from `start` on be made, as soon as they are charged."""
    self._made = self.made_any
    self._start = start
    self._next.assign(start)
    self._end.assign(start)

  def charged(self, end: int) -> None:
    """Lets steps below `end` be made too."""
    self._set_key()
    self._end.assign(end)

  def close(self) -> None:
    """Lets no step be made from now on."""
    self._end.assign(0)

  def check(self, optimizer: DPOptimizer, step: tf.Tensor | int | None) -> None:
    """Refuses an update for what is known without its rows, its step."""
    if step is None or not self.steps.is_trained(self):
      raise ValueError(
        'The optimizer of a plan updates in PrivateModel.fit and '
        'DensityModel.fit only, on batches that the plan draws and charges '
        'for, and with their `step`. Train a Keras model as '
        'tfdpflows.PrivateModel(model). For a loop of your own, where nothing '
        'is charged, make the optimizer by itself: '
        f'{type(optimizer).__name__}(...).'
      )
    self.check_settings(optimizer)
    replicas.check_state('clipping', optimizer.clipping.state)
    replicas.check_state('plan', self.done)

  def check_settings(self, optimizer: DPOptimizer) -> None:
    """Refuses an optimizer that was changed since the plan made it."""
    now = self._settings_of(optimizer)
    changed = [name for name in now if now[name] != self._settings[name]]
    if changed:
      raise ValueError(
        'The plan or its optimizer was changed after it was made, in '
        f'{", ".join(changed)}: what is charged, and may be replayed, is for '
        'other sums. Make a new plan.'
      )

  def _settings_of(self, optimizer):
    """Returns what an update releases of the rows, as the optimizer is now."""
    config = json.dumps(optimizer.clipping.get_config(), default=_plain)
    return {
      _NOISE: self.plan.mechanism.event(optimizer.noise_multiplier),
      # Another one that is alike would have another state.
      'clipping': (optimizer.clipping, config),
      **{name: getattr(optimizer, name) for name in _SETTINGS},
    }

  def take(self, step: tf.Tensor) -> tuple[StepStream, tf.Tensor]:
    """Makes a step, once.

    Args:
      step: its number, int64 scalar.

    Returns:
      Its `StepStream`, and 1, or NaN for a step that may not be made: a factor
      of the noise, so that nothing is released.

    Raises:
      tf.errors.InvalidArgumentError: for a step that may not be made; where it
        is computed, not where the graph is made.
    """
    step = tf.convert_to_tensor(step, tf.int64)
    # A batch may be drawn, and charged, while the update is computed already.
    with tf.control_dependencies([step]):
      following, end = self._next.read_value(), self._end.read_value()
      restored, key = self.done.read_value(), self._key.read_value()
    allowed = tf.logical_and(step >= following, step < end)
    # Else a callback has restored the optimizer of another training.
    allowed = tf.logical_and(allowed, restored <= following)
    refusal = tf.debugging.Assert(
      allowed,
      [
        'This is no step that the plan has open. Step, first and end of the '
        'open ones, and steps of the optimizer, which may be restored:',
        *(step, following, end, restored),
      ],
    )
    after = tf.where(allowed, step + 1, following)
    self._next.assign(after)
    self.done.assign(after)
    # The factor waits for the refusal, if there is one, and until the step
    # counts as made: an update that is broken off cannot leave it unused.
    waits = [self._next.read_value()] + ([] if refusal is None else [refusal])
    with tf.control_dependencies(waits):
      # Not by an index, of which XLA would compile each value.
      one = tf.constant(1.0, tf.float64)
      factor = tf.where(allowed, one, tf.constant(math.nan, tf.float64))
    return StepStream(key, step), factor

  def generator_states(
    self, step: tf.Tensor | int, sizes: Sequence[int]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns states of a step for the generators that layers draw from.

    Args:
      step: its number.
      sizes: of the states, int64 vectors.

    Returns:
      Those for the step, and those to leave behind.
    """
    key = self.plan.randomness.key('layers', self.plan.label)
    stream = self._stream(step, key)
    draws = [stream.uniform_full_int([sum(sizes)]) for _ in range(2)]
    return tuple(tf.split(tf.bitcast(x, tf.int64), list(sizes)) for x in draws)

  def add(
    self,
    taken: tuple[StepStream, tf.Tensor],
    total: tf.Tensor,
    stddev: tf.Tensor | float,
    correlated: bool = False,
  ) -> tf.Tensor:
    """Returns the sum over all replicas, with noise added once."""
    stream, factor = taken
    stddev = tf.cast(stddev, tf.float64) * factor
    size, dtype = total.shape[0], total.dtype
    if current_strategy().num_replicas_in_sync > 1:
      # In float32 the first replica's sum would be rounded by itself, to digits
      # that tell how large it is.
      total = tf.cast(total, tf.float64)
    # One replica adds the noise of all, before anybody sees the whole sum.
    if replicas.is_first_replica():
      if correlated and self._banded is not None:
        allowed = tf.math.is_finite(factor)
        noise = self._banded.rows(stream, size, dtype, allowed)
        noise *= tf.cast(stddev, dtype)
      else:
        noise = normal(stream, size, stddev, dtype)
      noise = tf.cast(noise, total.dtype)
      total = noised(total, noise, stddev, self.plan.label, stream.step)
    total = on_grid(replicas.sum_over_replicas(total), stddev)
    return tf.cast(total, dtype)

  def _set_key(self):
    """Sets the key of the noise that is independent from step to step.

    Copies of one ledger may go on with two tables: with one noise the
    difference of what they release would have none.
    """
    of_table = ('table', self.steps.table) if self.steps.other_table else ()
    key = self.steps.randomness.key('noise', self.plan.label, *of_table)
    if key != self._known_key:
      self._key.assign(_words(key))
      self._known_key = key

  def _stream(self, step, key):
    """Returns the stream of a step of a key, on one replica."""
    if key not in self._other_keys:
      self._other_keys[key] = _variable(_words(key))
    return StepStream(self._other_keys[key].read_value(), step)

  def _stream_of_rows(self, step, *kind):
    """Returns the stream of a step of z, for vectors of one kind.

    And for one table, in one order: a new process may resume with another one,
    whose rows are in other parts. What a row adds there must not meet what it
    added before in noise that depends on each other.
    """
    steps, label = self.steps, self.plan.label
    key = steps.randomness.key('noise', label, steps.table, *kind)
    return self._stream(step, key)


class StepStream:
  """Random numbers that are a function of a secret and of a step alone.

  Philox (Salmon et al. 2011) with a counter of 128 bits: there is no state from
  step to step that a checkpoint could restore. The numbers are the same in
  graphs, eagerly and compiled by XLA, which those of
  `tf.random.stateless_uniform` are not. Draws are independent of each other.

  Args:
    key: 24 secret bytes: Philox's key, and where its counter starts. As bytes
      they are a constant of the graph; or as a tensor of them, int64 `[3]`.
    step: the number of the step, an integer or a scalar tensor.

  Raises:
    ValueError: for another number of bytes.

  #### Example

  >>> from tfdpflows.training.step_noise import StepStream
  >>> key = bytes(range(24))
  >>> a = StepStream(key, 7).uniform_full_int([2])
  >>> bool(tf.reduce_all(a == StepStream(key, 7).uniform_full_int([2])))
  True
  """

  def __init__(self, key: bytes | tf.Tensor, step: tf.Tensor | int):
    if isinstance(key, bytes):
      if len(key) != _KEY_BYTES:
        raise ValueError(
          f'The key has {len(key)} bytes; it needs {_KEY_BYTES}.'
        )
      key = tf.constant(_words(key))
    # Draws differ in the upper half of the counter; the lower one counts blocks
    # of a draw, of which there are far less than 2^64.
    self._key, self._low, start = (
      tf.bitcast(key[i], tf.uint64) for i in range(3)
    )
    self.step = step
    self._high = start + tf.cast(step, tf.uint64) * _DRAWS
    self.draws = 0

  def uniform_full_int(
    self, shape: Sequence[int], dtype: tf.DType = tf.uint64
  ) -> tf.Tensor:
    """Returns random words, as `tf.random.Generator.uniform_full_int` does.

    Args:
      shape: of the result, a list of integers.
      dtype: tf.uint32 or tf.uint64.

    Raises:
      ValueError: after 256 draws.
    """
    if self.draws == _DRAWS:
      raise ValueError(
        f'A step has {_DRAWS} draws, and they are used up: draw more numbers '
        'at a time.'
      )
    counter = tf.stack([self._low, self._high + self.draws])
    self.draws += 1
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=shape,
      key=self._key[None],
      counter=counter,
      alg=_PHILOX,
      dtype=dtype,
    )


def _words(key):
  """Returns the 24 bytes that a `StepStream` takes of a key, int64 `[3]`."""
  return np.frombuffer(key[:_KEY_BYTES], np.int64)


def _variable(value=0):
  with tf.init_scope():
    return tf.Variable(
      value,
      dtype=tf.int64,
      trainable=False,
      # Alike on all replicas: one may speak for all.
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _facts_of(optimizer) -> dict[str, Any]:
  """Returns what the updates of an optimizer depend on, JSON-able.

  The hyperparameters too: they decide where the next gradients are taken.
  """
  config = {
    _RECORDED_AS.get(name, name): value
    for name, value in optimizer.get_config().items()
    if name not in _FREE
  }
  # Those that Keras keeps in variables are rounded as soon as these are made.
  for name in optimizer._hyper.keys() & config.keys():
    if isinstance(config[name], (float, np.floating)):
      config[name] = float(str(np.float32(config[name])))
  config = {'optimizer': type(optimizer).__name__, **config}
  return json.loads(json.dumps(config, default=_plain))


def _plain(value):
  array = np.asarray(value)
  return repr(value) if array.dtype == object else array.tolist()
