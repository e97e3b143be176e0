"""A fit: how its budget is split, its mechanisms, the training of the flow."""

from __future__ import annotations

from typing import NamedTuple

import dp_accounting
import numpy as np
import pandas as pd
import tensorflow as tf

from tfdpflows import accounting, mechanisms, models
from tfdpflows._keras import keras
from tfdpflows.accounting.calibration import charged_noise_multiplier
from tfdpflows.mechanisms.bounds import bounds_event
from tfdpflows.tabular import system_errors
from tfdpflows.tabular.density import TableDensity
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.models.base import TableModel
from tfdpflows.tabular.progress import Progress
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.work_directory import WorkDirectory
from tfdpflows.training.plan import TrainingPlan

# The share of delta that private bounds may use; Gaussian noise and sampling
# need most of it.
_BOUNDS_DELTA_SHARE = 0.1
# The label of their charge, and of their noise.
_MARGINALS = 'marginals'


class Spending(NamedTuple):
  """A budget that is split, before any of it is spent.

  Attributes:
    bounds: `(epsilon, delta)` of private bounds; `None` for a public schema.
    marginal_noise: noise multiplier of the marginals.
    plan: `TrainingPlan` of the flow, not to be run; `None` for one column.
    rounds: measurements after training (`TableModel.plan_refinement`).
  """

  bounds: tuple | None
  marginal_noise: float
  plan: TrainingPlan | None
  rounds: tuple = ()


class Fitted(NamedTuple):
  """A schema without marks, its columns' histograms, and their density."""

  schema: TableSchema
  marginals: list
  density: TableDensity


def split_budget(
  schema: TableSchema,
  num_rows: int,
  model: TableModel,
  *,
  budget: accounting.PrivacyBudget,
  bounds_epsilon: float | None,
  accountant: str,
) -> Spending:
  """Returns the `Spending` of a fit.

  The marginals get their share of a Gaussian mechanism's budget, training the
  rest. `bounds_epsilon` is the epsilon of private bounds, for a draft schema.

  Raises:
    ValueError: if the budget is too small.
  """
  bounds, spent = None, []
  if schema.is_draft:
    bounds = bounds_epsilon, budget.delta * _BOUNDS_DELTA_SHARE
    spent = [bounds_event(schema, *bounds)]
  noise = accounting.calibrate_noise_multiplier(
    dp_accounting.GaussianDpEvent,
    budget,
    spent=dp_accounting.ComposedDpEvent(spent) if spent else None,
    accountant=accountant,
  )
  if len(schema.fields) == 1:
    return Spending(bounds, noise, None)
  rounds = model.plan_refinement(noise)
  spent += [r.event for r in rounds]
  noise /= np.sqrt(model.marginal_share)
  spent.append(dp_accounting.GaussianDpEvent(noise))
  plan = TrainingPlan.for_epsilon(
    epsilon=budget.epsilon,
    delta=budget.delta,
    num_examples=num_rows,
    expected_batch_size=model.expected_batch_size,
    epochs=model.epochs,
    clipping=model.clipping_strategy(),
    accountant=accountant,
    spent=dp_accounting.ComposedDpEvent(spent),
  )
  return Spending(bounds, noise, plan, rounds)


def run_mechanisms(
  table: pd.DataFrame,
  schema: TableSchema,
  spending: Spending,
  model: TableModel,
  work: WorkDirectory,
  *,
  resume: bool,
  progress: bool,
) -> Fitted:
  """Runs all mechanisms of a fit, each charged to the ledger before.

  Args:
    table: validated `DataFrame`.
    schema: `TableSchema`.
    spending: from `split_budget`.
    model: the `TableModel`.
    work: the `WorkDirectory`.
    resume: whether to repeat what was charged, with the same randomness.
    progress: whether to show progress bars, in a terminal or notebook.
  """
  randomness, ledger = work.randomness, work.ledger
  if spending.bounds is not None:
    schema = mechanisms.private_bounds(
      table, schema, *spending.bounds, randomness, ledger, resume=resume
    )
    table = schema.validate(table, 'clip')
  encoder = TableEncoder(schema)
  codes = encoder.encode(table)
  histograms = mechanisms.noisy_histograms(
    codes,
    encoder.columns,
    charged_noise_multiplier(
      dp_accounting.GaussianDpEvent,
      spending.marginal_noise,
      ledger=ledger,
      label=_MARGINALS,
    ),
    randomness,
    ledger,
    label=_MARGINALS,
    resume=resume,
  )
  marginals = [
    {
      'name': histogram.name,
      'edges': histogram.edges.tolist(),
      'probabilities': histogram.probabilities().tolist(),
    }
    for histogram in histograms
  ]
  seed = int(randomness.numpy('weights').integers(2**31))
  density = model.make_density(encoder.columns, marginals, seed)
  plan = spending.plan
  if plan is None:
    return Fitted(schema, marginals, density)
  train(
    TableDensityModel(
      density, randomness.tensorflow('dequantization'), model.ema_momentum
    ),
    TrainingPlan(
      plan.sampler,
      plan.clipping,
      noise_multiplier=charged_noise_multiplier(
        plan.sampler.event,
        plan.noise_multiplier,
        ledger=ledger,
        label=plan.label,
      ),
      steps=plan.steps,
      accountant=plan.accountant,
      delta=plan.delta,
      ledger=ledger,
      randomness=randomness,
    ),
    codes,
    settings=model,
    folder=work.checkpoints,
    resume=resume,
    progress=progress,
  )
  model.refine(
    density,
    codes,
    spending.rounds,
    randomness,
    ledger,
    num_rows=len(table),
    resume=resume,
    progress=progress,
  )
  return Fitted(schema, marginals, density)


class TableDensityModel(models.DensityModel):
  """Trains the flow of a `TableDensity` on rows of codes.

  The loss, in nats per row, is relative to the untrained model, which has the
  private marginals and independent columns: 0 at the start, negative where the
  flow has learned how columns depend on each other. It is an upper bound
  (`flows.dequantization`) with one point per row, whose place a variational
  dequantization learns along with the flow. A target may count several times.

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

  def _private_variables(self):
    return self._density.trained

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
    model: the model to train.
    plan: its plan, with a ledger.
    codes: float32 `[n, d]`.
    settings: the `TableModel`, with the settings of the optimizer.
    folder: folder of checkpoints, one per epoch, or `None`.
    resume: whether to continue from the checkpoint there, if there is one.
    progress: whether to show a progress bar.
  """
  optimizer = plan.optimizer(
    'adam',
    learning_rate=keras.optimizers.schedules.CosineDecay(
      settings.learning_rate, plan.steps, alpha=0.1
    ),
    loss_bound=settings.loss_bound,
    augmentation_multiplicity=settings.augmentation_multiplicity,
  )
  model.compile(optimizer=optimizer)
  callbacks = []
  if folder is not None:
    # The slots of Adam must exist to be restored.
    optimizer._create_all_weights(model._private_variables())
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
