"""Table models that DP-SGD trains."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, ClassVar

import dp_accounting
import numpy as np
import tensorflow as tf

from tfdpflows import accounting, atomic, gradients, sampling
from tfdpflows._keras import keras
from tfdpflows.accounting.calibration import charged_noise_multiplier
from tfdpflows.models.base import PrivatelyTrained
from tfdpflows.optimizers.noise import current_strategy
from tfdpflows.tabular import system_errors
from tfdpflows.tabular.models.base import (
  TableModel,
  choice,
  fraction,
  positive,
  whole,
)
from tfdpflows.training import progress as training_progress
from tfdpflows.training import replicas
from tfdpflows.training.plan import TrainingPlan

if TYPE_CHECKING:
  from tfdpflows.tabular.work_directory import WorkDirectory

# Larger tables gain nothing by larger batches or more steps.
_LARGEST_BATCH, _MOST_STEPS = 4000.0, 1000
# More rows than a batch has.
_ALL = 2**31 - 1
_CLIPPING = {
  'flat': gradients.Flat,
  'per_layer': gradients.PerLayer,
  'per_unit': gradients.PerUnit,
  'sparsification': gradients.StochasticSparsification,
}


class Progress(training_progress.Progress):
  """Shows the loss as nats gained: see `training.progress.Progress`."""

  def _loss_text(self, mean, error):
    return f'{-mean:.2f} ± {error:.2f} nats gained'


@dataclasses.dataclass(frozen=True)
class DPSGDModel(TableModel):
  """A table model that DP-SGD trains, under a `TrainingPlan`.

  Attributes:
    expected_batch_size: mean size of a Poisson batch.
    epochs: passes over the table, on average.
    l2_norm_clip: bound of the gradient of a row, or of a unit.
    clipping: 'flat', 'per_layer', 'per_unit' or 'sparsification', see
      `tfdpflows.gradients`.
    sparsity: share of the coordinates that each step drops, for clipping
      'sparsification'.
    learning_rate: of Adam, before it decays along half a cosine.
    ema_momentum: of the average of the weights over the steps.
    augmentation_multiplicity: points per row and step, whose gradients are
      averaged before they are clipped.

  Raises:
    ValueError: for a value out of range.
  """

  takes_units: ClassVar[bool] = True

  expected_batch_size: float = positive(2000.0)
  epochs: float = positive(20.0)
  l2_norm_clip: float = positive(10.0)
  clipping: str = choice('flat', _CLIPPING)
  sparsity: float = fraction(0.0)
  learning_rate: float = positive(2e-3)
  ema_momentum: float = fraction(0.99)
  augmentation_multiplicity: int = whole(1, 1)

  def __post_init__(self):
    super().__post_init__()
    if self.sparsity and self.clipping != 'sparsification':
      raise ValueError(
        f'sparsity is {self.sparsity} and clipping {self.clipping!r}; only '
        "clipping='sparsification' drops coordinates."
      )

  @classmethod
  def _defaults(
    cls, num_examples, num_columns, noise_multiplier, hyperparameters
  ):
    # A sixteenth of a small table, so that 16 steps make an epoch at most.
    batch = max(1.0, min(_LARGEST_BATCH, num_examples / 16))
    given = hyperparameters.get('expected_batch_size', batch)
    most = cls._most_epochs(num_examples, given)
    return {'expected_batch_size': batch, 'epochs': min(cls.epochs, most)}

  @staticmethod
  def _most_epochs(num_examples, batch):
    return _MOST_STEPS * batch / max(num_examples, 1)

  def clipping_strategy(self) -> gradients.Strategy:
    """Returns the `gradients.Strategy` of `clipping` and its settings."""
    settings = {}
    if self.clipping == 'sparsification':
      settings['sparsity'] = self.sparsity
    return _CLIPPING[self.clipping](self.l2_norm_clip, **settings)

  def plan_training(
    self,
    num_examples: int,
    *,
    budget: accounting.PrivacyBudget,
    spent: dp_accounting.DpEvent,
    accountant: str,
  ) -> TrainingPlan:
    """See `TableModel`; the plan is not to be run."""
    return TrainingPlan.for_epsilon(
      epsilon=budget.epsilon,
      delta=budget.delta,
      num_examples=num_examples,
      expected_batch_size=self.expected_batch_size,
      epochs=self.epochs,
      clipping=self.clipping_strategy(),
      accountant=accountant,
      spent=spent,
    )

  def describe_sampling(
    self, plan: TrainingPlan, privacy_unit: str | None
  ) -> str:
    """See `TableModel`."""
    return plan.sampler.describe(privacy_unit)

  def notes(self) -> list[str]:
    """See `TableModel`."""
    return [f'Clipping: {self.clipping_strategy()!r}.']


def charged_plan(
  plan: TrainingPlan, work: WorkDirectory, units: sampling.Units | None
) -> TrainingPlan:
  """Returns a plan to run, on the ledger of a fit and with its randomness."""
  return TrainingPlan(
    plan.sampler,
    plan.clipping,
    noise_multiplier=charged_noise_multiplier(
      plan.sampler.event,
      plan.noise_multiplier,
      ledger=work.ledger,
      label=plan.label,
    ),
    steps=plan.steps,
    accountant=plan.accountant,
    delta=plan.delta,
    ledger=work.ledger,
    randomness=work.randomness,
    units=units,
  )


def train(
  model: PrivatelyTrained,
  plan: TrainingPlan,
  codes: np.ndarray,
  work: WorkDirectory,
  *,
  settings: DPSGDModel,
  loss_bound: float | None,
  saves: str | None = None,
  whole: bool = False,
) -> None:
  """Trains to the end of the plan.

  In the scope of a `tf.distribute` strategy on all of its replicas.

  Args:
    model: the model to train, with `take_averages`.
    plan: its plan, with a ledger.
    codes: float32 `[n, d]`.
    work: the `WorkDirectory`, with a folder of checkpoints, one per epoch; a
      fit that is resumed goes on from the one there, if there is one.
    settings: the `DPSGDModel`, with the settings of the optimizer.
    loss_bound: bound of one row's loss, to release its mean; or `None`.
    saves: where to save checkpoints, if not in that folder.
    whole: whether the sums of a step are computed of all rows of a replica at
      once, as a loss needs that is random by the step alone.

  Raises:
    ValueError: if steps were charged, their checkpoint is gone, and what comes
      before training has ended at other weights.
  """
  optimizer = plan.optimizer(
    'adam',
    learning_rate=keras.optimizers.schedules.CosineDecay(
      settings.learning_rate, plan.steps, alpha=0.1
    ),
    loss_bound=loss_bound,
    augmentation_multiplicity=settings.augmentation_multiplicity,
    chunk_size=_ALL if whole else None,
  )
  model.compile(optimizer=optimizer)
  callbacks, folder = [], work.checkpoints
  if folder is not None or tf.distribute.has_strategy():
    # The slots of Adam must exist to be restored, and the number of the step
    # before a graph reads it.
    optimizer._create_all_weights(model._private_variables())
  if folder is not None:
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(
      checkpoint, saves or folder, max_to_keep=1
    )
    workers = replicas.Workers(current_strategy())
    found = []

    def restore():
      latest = tf.train.latest_checkpoint(folder)
      found.append(latest)
      with system_errors.of_file(latest or folder):
        if latest:
          checkpoint.restore(latest).assert_consumed()
          if workers.is_chief:
            check_charged(
              plan.ledger,
              plan.label,
              plan.mechanism.charges(int(optimizer.plan_step.numpy())),
              latest,
            )
        elif workers.is_chief:
          # Steps that are repeated begin at the same weights, to the last bit.
          _check_start(model, plan, folder)
      if workers.alone:
        return []
      # All are to make the same step of the same weights.
      weights = plan.randomness.table_fingerprint(_weights(model))
      return [None, bool(latest), int(optimizer.plan_step.numpy()), weights]

    # Before the chief saves anything that others would find.
    workers.agree(restore)
    if not found[0]:
      with system_errors.of_file(folder):
        manager.save()
    if work.resume:
      # Model, optimizer, their generators and averages are in the checkpoint,
      # the work directory has checked the rest.
      plan.resume(optimizer, replay=True)
    callbacks.append(_Checkpoints(manager))
  if not plan.remaining_steps:
    model.take_averages()
    return
  shown = Progress(plan, work.progress)
  try:
    with system_errors.of_memory():
      model.fit(codes, verbose=0, callbacks=[*callbacks, shown])
  finally:
    shown.close()


def check_charged(
  ledger: accounting.PrivacyLedger, label: str, count: int, saved: str
) -> None:
  """Refuses a ledger that has not charged what a saved state was made by.

  Such as one of a copy that was made before: it would claim too little.

  Raises:
    LedgerError: if there are fewer charges of the label than `count`.
  """
  charged = sum(e.count for e in ledger.entries if e.label == label)
  if charged < count:
    raise accounting.LedgerError(
      f'{saved} was trained by {count} releases {label!r}, of which '
      f'{ledger.path} has charged {charged}: it is not the ledger of that '
      'training, or an older copy. Restore it; without it nobody can say what '
      'was spent.'
    )


def _check_start(model, plan, folder):
  """Refuses to repeat steps from other weights than they were made from.

  Without a checkpoint all that comes before training is computed again, which
  other processors and libraries round otherwise: the same noise on two sums
  would reveal their difference. So beside the folder is a fingerprint.
  """
  path = f'{folder}.start'
  start = plan.randomness.table_fingerprint(_weights(model)).encode()
  entries = plan.ledger.entries
  if any(entry.label == plan.label and entry.count for entry in entries):
    known = None
    if os.path.exists(path):
      with open(path, 'rb') as file:
        known = file.read()
    if known != start:
      raise ValueError(
        f'{folder} has no checkpoint, and its steps cannot be repeated without '
        'one: training would begin at other weights than it did. Restore it, '
        'resume where the fit was begun, or overwrite it; what it spent on '
        'these rows stays spent.'
      )
  else:
    atomic.write_file(path, start, private=True)


def _weights(model):
  return [v.numpy().ravel() for v in model._private_variables()]


class _Checkpoints(keras.callbacks.Callback):
  """Saves after every epoch."""

  def __init__(self, manager):
    super().__init__()
    self._manager = manager

  def on_epoch_end(self, epoch, logs=None):
    with system_errors.of_file(self._manager.directory):
      self._manager.save()
