"""A fit: how its budget is split, and its mechanisms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
import pandas as pd

from tfdpflows import accounting, mechanisms
from tfdpflows.accounting.calibration import charged_noise_multiplier
from tfdpflows.mechanisms.bounds import bounds_event
from tfdpflows.progress import log_charge
from tfdpflows.tabular.density import TableDistribution
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.models.base import TableModel
from tfdpflows.tabular.models.dp_sgd import DPSGDModel
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.work_directory import WorkDirectory

# The share of delta that private bounds may use; Gaussian noise and sampling
# need most of it.
_BOUNDS_DELTA_SHARE = 0.1
# The labels of charges, and of their noise.
_BOUNDS, _MARGINALS = 'bounds', 'marginals'


class Spending(NamedTuple):
  """A budget that is split, before any of it is spent.

  Attributes:
    bounds: `(epsilon, delta)` of private bounds; `None` for a public schema.
    marginal_noise: noise multiplier of the marginals.
    plan: how the model is trained (`TableModel.plan_training`); `None` for one
      column.
    rounds: measurements after training (`TableModel.plan_refinement`).
  """

  bounds: tuple | None
  marginal_noise: float
  plan: Any
  rounds: tuple = ()


class Fitted(NamedTuple):
  """A schema without marks, its columns' histograms, and what was learned."""

  schema: TableSchema
  marginals: list
  distribution: TableDistribution


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
  plan = model.plan_training(
    num_rows,
    budget=budget,
    spent=dp_accounting.ComposedDpEvent(spent),
    accountant=accountant,
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
  absent: Sequence[int] = (),
) -> Fitted:
  """Runs all mechanisms of a fit, each charged to the ledger before.

  Args:
    table: validated `DataFrame`.
    schema: `TableSchema`.
    spending: from `split_budget`.
    model: the `TableModel`.
    work: the `WorkDirectory`.
    resume: whether to repeat what was charged, with the same randomness.
    progress: whether to show progress: bars in a terminal or notebook, lines of
      the log elsewhere.
    absent: for audits, numbers of rows that no mechanism sees. The number of
      rows stays that of the table, since it is public.

  Raises:
    ValueError: for absent rows and a model that DP-SGD does not train.
  """
  absent = list(absent)
  if absent and not isinstance(model, DPSGDModel):
    raise ValueError(
      f'Model {model.name!r} cannot be trained as if rows were absent: that is '
      'known for models that DP-SGD trains. Replace a row instead.'
    )
  randomness, ledger = work.randomness, work.ledger
  if spending.bounds is not None:
    present = table.drop(index=table.index[absent])
    schema = mechanisms.private_bounds(
      present,
      schema,
      *spending.bounds,
      randomness,
      ledger,
      label=_BOUNDS,
      resume=resume,
    )
    log_charge('Types, ranges and categories', ledger, _BOUNDS)
    table = schema.validate(table, 'clip')
  encoder = TableEncoder(schema)
  codes = encoder.encode(table)
  histograms = mechanisms.noisy_histograms(
    np.delete(codes, absent, 0) if absent else codes,
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
  log_charge('Histograms of all columns', ledger, _MARGINALS)
  marginals = [
    {
      'name': histogram.name,
      'edges': histogram.edges.tolist(),
      'probabilities': histogram.probabilities().tolist(),
    }
    for histogram in histograms
  ]
  seed = int(randomness.numpy('weights').integers(2**31))
  distribution = model.make_distribution(encoder.columns, marginals, seed)
  # Independent columns are all that there is to learn of one.
  if spending.plan is not None:
    if absent:
      # They keep their place in the sampler; their gradient, NaN, counts as 0.
      codes = codes.copy()
      codes[absent] = np.nan
    model.train(
      distribution, codes, spending, work, resume=resume, progress=progress
    )
  return Fitted(schema, marginals, distribution)
