"""Trains the flow of a table step by step: progress, checkpoints, resume."""

from __future__ import annotations

import dp_accounting
import numpy as np
import tensorflow as tf

from tfdpflows import accounting
from tfdpflows._keras import keras

# Points of the training at which the progress bar knows epsilon.
_EPSILONS = 50


def train(model, plan, codes, *, learning_rate, loss_bound, folder, progress):
  """Trains to the end of the plan.

  Args:
    model: a `TableModel`.
    plan: a `TrainingPlan`.
    codes: float32 `[n, d]`.
    learning_rate: of Adam, at the start.
    loss_bound: see `DPOptimizer`.
    folder: folder of checkpoints, one per epoch, or `None`. If it holds one,
      the training goes on from there.
    progress: whether to show a progress bar.
  """
  schedule = keras.optimizers.schedules.CosineDecay(
    learning_rate, plan.steps, alpha=0.1
  )
  optimizer = plan.optimizer(
    'adam', learning_rate=schedule, loss_bound=loss_bound
  )
  model.compile(optimizer=optimizer)
  callbacks = []
  if folder is not None:
    # The slots of Adam must exist to be restored.
    optimizer._create_all_weights(model.distribution.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
    if manager.latest_checkpoint:
      checkpoint.restore(manager.latest_checkpoint).assert_consumed()
      plan.resume(int(optimizer.iterations))
    callbacks.append(_Checkpoints(manager))
  if progress:
    callbacks.append(_Progress(plan))
  if plan.left:
    model.fit(codes, verbose=0, callbacks=callbacks)


class _Checkpoints(keras.callbacks.Callback):
  """Saves after every epoch."""

  def __init__(self, manager):
    super().__init__()
    self._manager = manager

  def on_epoch_end(self, epoch, logs=None):
    self._manager.save()


class _Progress(keras.callbacks.Callback):
  """Shows step, epsilon spent so far, nats and the time left.

  Epsilon is that of the whole ledger. The nats are what the optimizer releases
  with noise, as a running mean over an epoch.
  """

  def __init__(self, plan):
    super().__init__()
    self._plan = plan
    self._bar = keras.utils.Progbar(
      plan.steps, stateful_metrics=['epsilon', 'nats gained'], unit_name='step'
    )
    self._losses = []
    steps = np.linspace(0, plan.steps, _EPSILONS + 1).round()
    self._steps = np.unique(steps.astype(int))[1:]
    spent = [
      dp_accounting.SelfComposedDpEvent(entry.event, entry.count)
      for entry in plan.ledger.entries
      if entry.label != plan.label and entry.count
    ]
    self._epsilons = accounting.epsilon_after(
      plan.sampler.event(plan.noise_multiplier),
      self._steps.tolist(),
      plan.delta,
      spent=dp_accounting.ComposedDpEvent(spent),
      accountant=plan.accountant,
    )

  def on_train_batch_end(self, batch, logs=None):
    step = int(self.model.optimizer.iterations)
    # The epsilon of the next point that is known: never too small.
    epsilon = self._epsilons[int(np.searchsorted(self._steps, step))]
    values = [('epsilon', epsilon)]
    if logs and 'loss' in logs:
      values.append(('nats gained', -float(logs['loss'])))
    self._bar.update(step, values)
