"""What a fit spends its budget on: bounds, marginals, training, refinement."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np
import pandas as pd

from tfdpflows import accounting, mechanisms
from tfdpflows.mechanisms.bounds import bounds_event
from tfdpflows.tabular.density import TableDensity
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.models.base import TableModel
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.training import TableDensityModel, train
from tfdpflows.tabular.work_directory import WorkDirectory
from tfdpflows.training.plan import TrainingPlan

# The share of delta that private bounds may use; Gaussian noise and sampling
# need most of it.
_BOUNDS_DELTA_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Spending:
  """How a budget is split, before any of it is spent.

  Attributes:
    bounds: `(epsilon, delta)` of private bounds, or `None` for a schema that
      is public.
    marginal_noise: noise multiplier of the marginals.
    plan: `TrainingPlan` of the flow, not to be run; `None` for a table of one
      column, which depends on nothing.
    rounds: what the model measures after it (`TableModel.plan_refinement`).
  """

  bounds: tuple | None
  marginal_noise: float
  plan: TrainingPlan | None
  rounds: tuple = ()


@dataclasses.dataclass(frozen=True)
class Fitted:
  """What the mechanisms of a fit released, and what was made of it.

  Attributes:
    schema: `TableSchema` without marks.
    marginals: per column a dict of `name`, `edges` and `probabilities`.
    density: the `TableDensity`.
    sampling: how batches were drawn, in words, or `None`.
  """

  schema: TableSchema
  marginals: list
  density: TableDensity
  sampling: str | None


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

  The marginals get their share of a Gaussian mechanism's budget, training what
  they and the bounds leave.

  Args:
    schema: `TableSchema`.
    num_rows: number of rows.
    model: the `TableModel`.
    budget: the `PrivacyBudget`.
    bounds_epsilon: epsilon of private bounds, if the schema has marks.
    accountant: name of the accountant.

  Raises:
    ValueError: if the budget cannot pay for it.
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
    resume: whether to repeat what was paid, with the same randomness.
    progress: whether to show a progress bar, in a terminal or notebook.

  Returns:
    A `Fitted`.
  """
  randomness, ledger = work.randomness, work.ledger
  if spending.bounds is not None:
    schema = mechanisms.private_bounds(
      table,
      schema,
      *spending.bounds,
      randomness,
      ledger,
      resume=resume,
    )
    table = schema.validate(table, 'clip')
  encoder = TableEncoder(schema)
  codes = encoder.encode(table)
  histograms = mechanisms.noisy_histograms(
    codes,
    encoder.columns,
    spending.marginal_noise,
    randomness,
    ledger,
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
    return Fitted(schema, marginals, density, None)
  train(
    TableDensityModel(
      density,
      randomness.tensorflow('dequantization'),
      model.ema_momentum,
    ),
    TrainingPlan(
      plan.sampler,
      plan.clipping,
      noise_multiplier=plan.noise_multiplier,
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
  return Fitted(schema, marginals, density, plan.sampler.describe())
