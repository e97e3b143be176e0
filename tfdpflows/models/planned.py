"""What Keras models that a plan trains have in common."""

from __future__ import annotations

import tensorflow as tf
from absl import logging

from tfdpflows._keras import keras
from tfdpflows.independence import errors
from tfdpflows.training import replicas


class PlannedModel(keras.Model):
  """A Keras model that trains on the batches that a `TrainingPlan` draws.

  Where the optimizer is one of a plan, `_fit_plan` is how `fit` trains: data
  that the plan did not draw, and arguments that would draw other batches than
  it says, are refused.
  """

  def make_train_function(self, force=False):
    """As in Keras; errors of private steps say nothing of the rows."""
    function = super().make_train_function(force)
    # As the DP optimizers here and those of TF Privacy have it.
    private = hasattr(self.optimizer, '_was_dp_gradients_called')
    if private and not hasattr(function, 'without_rows'):
      function = self.train_function = errors.without_rows(function)
    return function

  def train_on_batch(self, *args, **kwargs):
    """As in Keras; refused under a plan, which draws the batches itself."""
    if getattr(self.optimizer, 'plan', None) is not None:
      raise ValueError(
        'The optimizer carries a plan, which draws the batches: use fit(x).'
      )
    return super().train_on_batch(*args, **kwargs)

  def _check_before_plan(self, plan, spec):
    """Checks the model before the plan charges anything.

    Args:
      plan: the `TrainingPlan`.
      spec: structure of `tf.TensorSpec`, of a batch.

    Raises:
      ValueError: for a model that could not be private, or not replay, or an
        unsupported `tf.distribute` strategy.
    """
    with self.distribute_strategy.scope():
      replicas.current_strategy()
    self._checker.check(spec)
    if plan.replays:
      self._checker.check_replay()

  def _fit_plan(self, plan, data, *args, epochs=None, **kwargs):
    """Trains on `data`: arrays, or what `plan.dataset` gave for them.

    Callbacks see the number of an epoch of the plan, not of this call.
    """
    refused = {'y', 'batch_size', 'shuffle', 'validation_split'}
    refused |= {'class_weight', 'sample_weight', 'steps_per_epoch'}
    refused |= {'initial_epoch'}
    given = sorted(k for k in kwargs if k in refused and kwargs[k] is not None)
    if args or given:
      given = ', '.join(given) or 'positional arguments after the data'
      raise ValueError(
        f'The optimizer carries a plan, which draws the batches: drop {given}.'
      )
    strategy = self.distribute_strategy
    if strategy.num_replicas_in_sync > 1 and self.jit_compile:
      raise ValueError(
        'XLA cannot compile an update of several replicas together: drop '
        'jit_compile=True, or train outside of the tf.distribute strategy.'
      )
    if self.optimizer.loss_bound is None and kwargs.get('verbose') != 0:
      logging.info(
        'The training loss is not shown: it is computed from private rows. '
        'plan.optimizer(..., loss_bound=...) releases it with noise.'
      )
    with strategy.scope(), plan.training(self.optimizer):
      dataset = self._batches(plan, data, epochs)
      per_epoch = plan.sampler.steps_per_epoch
      # Epochs are those of the plan, whoever trains from which step on. They
      # are counted back from where this training ends: what is left over is in
      # its first epoch, since Keras can begin in the middle of one.
      epochs = -(-dataset.stop // per_epoch)
      self._ahead = epochs * per_epoch - dataset.stop
      callbacks = tf.nest.flatten(kwargs.pop('callbacks', None) or [])
      try:
        return keras.Model.fit(
          self,
          dataset,
          epochs=epochs,
          steps_per_epoch=per_epoch,
          callbacks=[*callbacks, _Begin(plan)],
          **kwargs,
        )
      except tf.errors.OpError:
        if not dataset.failures:
          raise
        failure = dataset.failures[-1]
      # Outside of the `except`: what TensorFlow made of it is no context.
      raise failure

  def _batches(self, plan, data, epochs):
    """Returns the plan's dataset of arrays, or `data` if it is one."""
    strategy = self.distribute_strategy
    if not isinstance(
      data, (tf.data.Dataset, tf.distribute.DistributedDataset)
    ):
      steps = plan.left
      if epochs is not None:
        steps = epochs * plan.sampler.steps_per_epoch
      return plan.dataset(data, steps)
    if not plan.drew(data):
      raise ValueError(
        'The optimizer carries a plan, and this dataset is not of its '
        'drawing: its privacy could not be accounted for. Pass the array '
        'itself, or what plan.dataset(x) returned, unchanged.'
      )
    replicas = {s.num_replicas_in_sync for s in (data.strategy, strategy)}
    if data.strategy is not strategy and replicas != {1}:
      raise ValueError(
        'The dataset was made outside of the tf.distribute strategy of the '
        'model, whose replicas would share its rows. Call plan.dataset(x) '
        'inside of strategy.scope(), or pass the array itself.'
      )
    if data.stop <= plan.step:
      raise ValueError(
        f'All batches of this dataset were drawn: it ends at step {data.stop}, '
        f'and the plan is at step {plan.step}. Pass the array itself.'
      )
    return data

  def _maybe_load_initial_counters_from_ckpt(
    self, steps_per_epoch, initial_epoch
  ):
    # Called by Keras after `on_train_begin`. The plan counts its steps itself;
    # what BackupAndRestore has counted may be those of an earlier fit.
    plan = getattr(self.optimizer, 'plan', None)
    if plan is None:
      return super()._maybe_load_initial_counters_from_ckpt(
        steps_per_epoch, initial_epoch
      )
    return divmod(plan.step + self._ahead, steps_per_epoch)


class _Begin(keras.callbacks.Callback):
  """Comes last, since others may restore the optimizer when a fit begins."""

  def __init__(self, plan):
    super().__init__()
    self._plan = plan

  def on_train_begin(self, logs=None):
    self._plan.begin()
