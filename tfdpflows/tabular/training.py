"""Trains the flow of a table step by step: progress, checkpoints, resume."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows import models
from tfdpflows._keras import keras
from tfdpflows.tabular import system_errors
from tfdpflows.tabular.density import TableDensity
from tfdpflows.tabular.models.base import TableModel
from tfdpflows.tabular.progress import Progress
from tfdpflows.training.plan import TrainingPlan


class TableDensityModel(models.DensityModel):
  """Trains the flow of a `TableDensity` on rows of codes.

  The loss is relative to the untrained model, which has the private marginals
  and independent columns: 0 at the start, negative where the flow has learned
  what columns say of each other, in nats per row, where a target may count
  several times. It is a bound: that of the log-probability from below
  (`flows.dequantization`), with one point per row, whose place a
  variational dequantization learns along with the flow.

  Args:
    density: a `TableDensity`.
    generator: `tf.random.Generator` of the dequantization.
    ema_momentum: see `DensityModel`.
  """

  def __init__(
    self,
    density: TableDensity,
    generator: tf.random.Generator,
    ema_momentum: float,
  ):
    super().__init__(density.latent)
    self._density = density
    self._start_average(ema_momentum)
    # As an attribute it has its state in every checkpoint.
    self._generator = generator

  def take_averages(self) -> None:
    """Puts the averaged weights in place, as the end of `fit` does."""
    self._average.assign()

  @property
  def trained(self) -> list[tf.Variable]:
    """The variables that training changes, as a list."""
    return self._density.trained

  def _private_variables(self):
    return self.trained

  def _row_losses(self, x):
    uniform = tf.ensure_shape(self._generator.uniform(tf.shape(x)), x.shape)
    points, _, log_q = self._density.dequantize(x, uniform)
    return log_q - self._density.gains(points)


def train(
  model: TableDensityModel,
  plan: TrainingPlan,
  codes: np.ndarray,
  *,
  settings: TableModel,
  folder: str | None,
  resume: bool,
  progress: bool,
) -> None:
  """Trains to the end of the plan.

  Args:
    model: what is trained.
    plan: how, and where it is charged.
    codes: float32 `[n, d]`.
    settings: the `TableModel`, for what the optimizer needs.
    folder: folder of checkpoints, one per epoch, or `None`.
    resume: whether to go on from the checkpoint there, or from the start if
      there is none yet.
    progress: whether to show a progress bar, in a terminal or notebook.

  Raises:
    OSError: if a checkpoint cannot be written or read.
    LedgerError: if the ledger cannot be written.
  """
  schedule = keras.optimizers.schedules.CosineDecay(
    settings.learning_rate, plan.steps, alpha=0.1
  )
  optimizer = plan.optimizer(
    'adam',
    learning_rate=schedule,
    loss_bound=settings.loss_bound,
    augmentation_multiplicity=settings.augmentation_multiplicity,
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
  shown = Progress(plan, progress)
  try:
    with system_errors.of_memory():
      model.fit(codes, verbose=0, callbacks=[*callbacks, shown])
  finally:
    shown.close()


class _Checkpoints(keras.callbacks.Callback):
  """Saves after every epoch."""

  def __init__(self, manager):
    super().__init__()
    self._manager = manager

  def on_epoch_end(self, epoch, logs=None):
    with system_errors.of_file(self._manager.directory):
      self._manager.save()
