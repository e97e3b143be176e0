"""What the Keras models of this package have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdpflows._keras import keras
from tfdpflows.independence import errors
from tfdpflows.training import fit as fit_lib


class PrivatelyTrained(keras.Model):
  """A Keras model that trains under the plan of its optimizer.

  Subclasses have a `Checker` as `_checker`, and `_private_variables`.
  """

  def __init__(self, name: str | None):
    super().__init__(name=name)
    # Not of the class: Keras keeps no such attributes in checkpoints.
    self._average = None

  @property
  def checked_independence(self) -> str:
    """Whether no example changes what another one adds to an update.

    'proven', 'tested' or 'declared', see `independence.Checker`; '' before the
    first step.
    """
    return self._checker.independence

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """As in Keras; examples are checked anew."""
    self._checker.forget()
    super().compile(*args, **kwargs)

  def make_train_function(self, force: bool = False) -> Callable[..., Any]:
    """As in Keras; errors of private steps say nothing of the rows."""
    noise = getattr(self.optimizer, 'noise_source', None)
    # `train_on_batch` comes here too.
    if getattr(noise, 'plan', None) and not noise.steps.is_trained(noise):
      raise ValueError(f'{fit_lib.DRAWN}use fit(x).')
    function = super().make_train_function(force)
    self.train_function = errors.of_training(function, self.optimizer)
    return self.train_function

  def _maybe_load_initial_counters_from_ckpt(self, *args):
    # Where Keras begins. A plan counts its steps itself; what
    # `BackupAndRestore` has counted may be those of an earlier fit.
    if getattr(self.optimizer, 'plan', None):
      return self.optimizer.noise_source.steps.epoch_and_batch()
    return super()._maybe_load_initial_counters_from_ckpt(*args)

  def fit(
    self, x: Any = None, *args: Any, **kwargs: Any
  ) -> keras.callbacks.History:
    """Trains, as `keras.Model.fit` does.

    Args:
      x: rows; or, under a plan, what `plan.dataset` gave for them.
      *args: of `keras.Model.fit`, without a plan only.
      **kwargs: of `keras.Model.fit`. Under a plan `epochs` is for how many of
        the plan's epochs to train, by default for all that are left;
        validation data count as public. That the model can be evaluated on
        them is tried before anything is charged.

    Returns:
      Keras's `History`.

    Raises:
      ValueError: for a model that could not be private; and under a plan, for
        data that it did not draw, arguments that would draw other batches, or
        validation data that the model cannot be evaluated on.
      tf.errors.InvalidArgumentError: under a DP optimizer, if a batch cannot
        be computed, with a text that is fixed. It tells that there is such a
        row: do not publish it.
      BudgetExceededError: if the plan's ledger refuses the training.
      LedgerError: if the plan's ledger cannot be written.
    """
    self._check_compiled()
    if getattr(self.optimizer, 'plan', None) is None:
      history = super().fit(x, *args, **kwargs)
    else:
      history = fit_lib.fit(self, x, self._check_rows, *args, **kwargs)
    if self._average is not None:
      self._average.assign()
    return history

  def _check_compiled(self):
    if self.optimizer is None:
      raise RuntimeError(
        'The model is not compiled: call compile(plan.optimizer(...)), for a '
        'PrivateModel with a loss, before fit.'
      )

  # Whether `save` writes a file from which Keras makes a model.
  saves_whole = False

  def save(self, *args: Any, **kwargs: Any) -> None:
    """Raises a `NotImplementedError`, unless a subclass can be saved whole."""
    raise NotImplementedError(
      f'Keras has no file for a whole {type(self).__name__}: write its weights '
      'with save_weights(path), and load them into one that was made the same '
      'way.'
    )

  def _check_rows(self, rows, replays):
    try:
      self._checker.check_before_plan(rows, replays)
    except ValueError as error:
      text = [
        name for name, part in self._named(rows).items() if _text_in(part)
      ]
      if not text or 'cannot be computed on' not in str(error):
        raise
      raise ValueError(
        f'{" and ".join(text)} is of text or other objects, and the model '
        'cannot be computed on that: give arrays of numbers, or a model that '
        'begins with a layer that takes text, such as StringLookup. (Columns '
        'of a DataFrame with text among them are objects all of them.)'
      ) from error
    variables = list(self._private_variables())
    self.optimizer._check_variables(variables)
    # A function of TensorFlow that makes variables is traced twice.
    with self.distribute_strategy.scope():
      self.optimizer._create_all_weights(variables)

  def _named(self, rows):
    """Returns the parts of rows by the name of the argument."""
    return {'x': rows}

  def _update(self, rows, weights, step, metric, penalties=()):
    """Makes a private step; returns its logs.

    Args:
      rows: as the checker takes them.
      weights: `[batch]`, or `None`.
      step: of the plan, or `None`.
      metric: `keras.metrics.Mean` of the released losses.
      penalties: gradients to add that hold nothing private, `None` for zero.
    """
    variables = list(self._private_variables())
    means, loss = self._checker.private_gradients(rows, weights, step)
    if penalties:
      means = [m if p is None else m + p for m, p in zip(means, penalties)]
    self.optimizer.apply_gradients(zip(means, variables))
    if loss is None:
      return {}
    metric.update_state(loss)
    return {'loss': metric.result()}

  def _start_average(self, momentum):
    """Averages the weights from now on, if there is a momentum, and weights."""
    variables = [] if momentum is None else list(self._private_variables())
    if variables and not (self._average and self._average.is_of(variables)):
      self._average = WeightAverage(variables, momentum)


def _text_in(rows):
  """Whether an array, or a `tf.TensorSpec`, is of text to TensorFlow."""
  return any(
    tf.as_dtype(part.dtype) == tf.string for part in tf.nest.flatten(rows)
  )


class WeightAverage(tf.Module):
  """An exponential moving average of weights over the steps of a training.

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
