"""Exponential moving average of weights."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


class WeightAverage(tf.Module):
  """Averages weights over the steps of a training.

  Computed from released weights alone, so it costs no privacy, and it takes
  out much of the noise that DP-SGD left in them. The momentum grows with the
  number of steps up to its limit, `min(momentum, (1 + t) / (10 + t))`, so that
  the start is forgotten.

  Args:
    variables: the weights, as a list.
    momentum: share of the average that one step leaves, in [0, 1).

  Raises:
    ValueError: if `momentum` is out of range.
  """

  def __init__(
    self,
    variables: Sequence[tf.Variable],
    momentum: float,
    name: str = 'weight_average',
  ):
    super().__init__(name=name)
    if not 0 <= momentum < 1:
      raise ValueError(f'momentum is {momentum}; it must be in [0, 1).')
    self.momentum = float(momentum)
    self._variables = list(variables)
    # On several replicas each would make the same update; one is enough.
    kwargs = {
      'trainable': False,
      'aggregation': tf.VariableAggregation.ONLY_FIRST_REPLICA,
    }
    self._step = tf.Variable(0, dtype=tf.int64, **kwargs)
    self._averages = [tf.Variable(v, **kwargs) for v in variables]

  def is_of(self, variables: Sequence[tf.Variable]) -> bool:
    """Whether these are the weights that are averaged."""
    return [v.ref() for v in variables] == [v.ref() for v in self._variables]

  def update(self) -> None:
    """Takes in the present weights."""
    t = tf.cast(self._step.assign_add(1), tf.float32)
    momentum = tf.minimum(self.momentum, t / (9 + t))
    for average, variable in zip(self._averages, self._variables):
      rest = 1 - tf.cast(momentum, variable.dtype)
      average.assign_add(rest * (variable - average))

  def assign(self) -> None:
    """Puts the averages in the place of the weights, once there are any."""
    if self._step.numpy():
      for average, variable in zip(self._averages, self._variables):
        variable.assign(average)
