"""Trains the flow of a table step by step: progress, checkpoints, resume."""

from __future__ import annotations

import tensorflow as tf

from tfdpflows._keras import keras
from tfdpflows.tabular import system_errors
from tfdpflows.tabular.progress import Progress


def train(
  model,
  plan,
  codes,
  *,
  learning_rate,
  loss_bound,
  num_draws,
  folder,
  resume,
  progress,
):
  """Trains to the end of the plan.

  Args:
    model: a `TableModel`.
    plan: a `TrainingPlan`.
    codes: float32 `[n, d]`.
    learning_rate: of Adam, at the start.
    loss_bound: see `DPOptimizer`.
    num_draws: see `DPOptimizer`.
    folder: folder of checkpoints, one per epoch, or `None`.
    resume: whether to go on from the checkpoint there, or from the start if
      there is none yet.
    progress: whether to show a progress bar, in a terminal or notebook.

  Raises:
    OSError: if a checkpoint cannot be written or read.
    LedgerError: if the ledger cannot be written.
  """
  schedule = keras.optimizers.schedules.CosineDecay(
    learning_rate, plan.steps, alpha=0.1
  )
  optimizer = plan.optimizer(
    'adam',
    learning_rate=schedule,
    loss_bound=loss_bound,
    num_draws=num_draws,
  )
  model.compile(optimizer=optimizer)
  callbacks = []
  if folder is not None:
    # The slots of Adam must exist to be restored.
    optimizer._create_all_weights(model.trained)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
    latest = manager.latest_checkpoint
    if latest:
      with system_errors.of_file(latest):
        checkpoint.restore(latest).assert_consumed()
    if resume:
      # Model, optimizer, their generators and averages are in the checkpoint,
      # the work directory has checked the rest.
      plan.resume(optimizer, replay=True)
    callbacks.append(_Checkpoints(manager))
  if not plan.remaining_steps:
    model.take_averages()
    return
  shown = Progress(plan) if progress else None
  if shown:
    callbacks.append(shown)
  try:
    with system_errors.of_memory():
      model.fit(codes, verbose=0, callbacks=callbacks)
  finally:
    if shown:
      shown.close()


class _Checkpoints(keras.callbacks.Callback):
  """Saves after every epoch."""

  def __init__(self, manager):
    super().__init__()
    self._manager = manager

  def on_epoch_end(self, epoch, logs=None):
    with system_errors.of_file(self._manager.directory):
      self._manager.save()
