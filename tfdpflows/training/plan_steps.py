"""Which steps of a plan its optimizer may make, and the noise of each."""

from __future__ import annotations

import math

import tensorflow as tf


class PlanSteps:
  """Lets an optimizer make each step of its plan once, in their order.

  #### Formal guarantee

  In one process no two updates have the noise of the same step, whatever is
  restored in between, and none has that of a step which was not charged. What
  is no open step is refused, and where XLA has dropped the refusal the update
  is NaN.

  Args:
    streams: the `StepStreams` of the plan's noise.

  Attributes:
    done: `tf.Variable`, the number of steps that are done; a checkpoint has to
      keep it.
  """

  def __init__(self, streams):
    self._streams = streams
    self.done = _variable()
    # In no checkpoint: what was used stays used when weights are taken back.
    self._next, self._end = _variable(), _variable()
    self._start, self._made = 0, False

  @property
  def unused(self):
    """The first step whose noise this process has not used."""
    return int(self._next.numpy())

  @property
  def made_any(self):
    """Whether a step was ever made."""
    return self._made or self.unused > self._start

  def open(self, start):
    """Lets steps from `start` on be made, as soon as they are charged."""
    self._made = self.made_any
    self._start = start
    self._next.assign(start)
    self._end.assign(start)

  def charged(self, end):
    """Lets steps below `end` be made too."""
    self._end.assign(end)

  def close(self):
    """Lets no step be made from now on."""
    self._end.assign(0)

  def take(self, step):
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
    allowed = tf.logical_and(step >= following, step < end)
    refusal = tf.debugging.Assert(
      allowed,
      [
        'This is no step that the plan has open. It trains in fit only, each '
        'step once. Step, first and end of the open ones:',
        *(step, following, end),
      ],
    )
    after = tf.where(allowed, step + 1, following)
    self._next.assign(after)
    self.done.assign(after)
    # The factor waits for the refusal, if there is one, and until the step
    # counts as made: an update that is broken off cannot leave it unused.
    waits = [self._next.read_value()] + ([] if refusal is None else [refusal])
    with tf.control_dependencies(waits):
      factors = tf.constant([math.nan, 1.0], tf.float64)
      factor = factors[tf.cast(allowed, tf.int32)]
    return self._streams.at(step), factor


def _variable():
  with tf.init_scope():
    return tf.Variable(
      0,
      dtype=tf.int64,
      trainable=False,
      # Alike on all replicas: one may speak for all.
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
