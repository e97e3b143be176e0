"""What a fit spends its budget on: bounds, marginals, training, guides."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from tfdpflows import accounting, bijectors, flows, mechanisms
from tfdpflows.tabular import guides
from tfdpflows.tabular.binning import knots
from tfdpflows.tabular.density import TableDensity, TableModel, cells
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.training import train
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
    guides: the `guides.Round`s after it.
  """

  bounds: tuple | None
  marginal_noise: float
  plan: TrainingPlan | None
  guides: tuple = ()


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
  schema, num_rows, hyperparameters, budget, bounds_epsilon, accountant
):
  """Returns the `Spending` of a fit.

  The marginals get their share of a Gaussian mechanism's budget, training what
  they and the bounds leave.

  Args:
    schema: `TableSchema`.
    num_rows: number of rows.
    hyperparameters: `Hyperparameters`.
    budget: the `PrivacyBudget`.
    bounds_epsilon: epsilon of private bounds, if the schema has marks.
    accountant: name of the accountant.

  Raises:
    ValueError: if the budget cannot pay for it.
  """
  bounds, spent = None, []
  if schema.is_draft:
    bounds = bounds_epsilon, budget.delta * _BOUNDS_DELTA_SHARE
    spent = [mechanisms.bounds_event(schema, *bounds)]
  noise = accounting.calibrate_noise_multiplier(
    dp_accounting.GaussianDpEvent,
    budget,
    spent=dp_accounting.ComposedDpEvent(spent) if spent else None,
    accountant=accountant,
  )
  if len(schema.fields) == 1:
    return Spending(bounds, noise, None)
  rounds = guides.plan_rounds(
    hyperparameters.guides, noise / np.sqrt(hyperparameters.guide_share)
  )
  spent += [r.event for r in rounds]
  noise /= np.sqrt(hyperparameters.marginal_share)
  spent.append(dp_accounting.GaussianDpEvent(noise))
  plan = TrainingPlan.for_epsilon(
    epsilon=budget.epsilon,
    delta=budget.delta,
    num_examples=num_rows,
    expected_batch_size=hyperparameters.expected_batch_size,
    epochs=hyperparameters.epochs,
    clipping=hyperparameters.clipping_strategy(),
    accountant=accountant,
    spent=dp_accounting.ComposedDpEvent(spent),
  )
  return Spending(bounds, noise, plan, tuple(rounds))


def run_mechanisms(
  table, schema, spending, hyperparameters, work, *, resume, progress
):
  """Runs all mechanisms of a fit, each charged to the ledger before.

  Args:
    table: validated `DataFrame`.
    schema: `TableSchema`.
    spending: from `split_budget`.
    hyperparameters: `Hyperparameters`.
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
  density = make_density(schema, marginals, hyperparameters, seed)
  plan = spending.plan
  if plan is None:
    return Fitted(schema, marginals, density, None)
  train(
    TableModel(
      density,
      randomness.tensorflow('dequantization'),
      hyperparameters.ema_momentum,
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
    learning_rate=hyperparameters.learning_rate,
    loss_bound=hyperparameters.loss_bound,
    num_draws=hyperparameters.num_draws,
    folder=work.checkpoints,
    resume=resume,
    progress=progress,
  )
  if hyperparameters.transform == 'histogram' and hyperparameters.matching:
    seed = int(randomness.numpy('matching').integers(2**31))
    density.latent.bijector.match_marginals(seed=seed)
  if spending.guides:
    guides.guide(
      density,
      codes,
      spending.guides,
      randomness,
      ledger,
      num_rows=len(table),
      target=_number(encoder.columns, hyperparameters),
      resume=resume,
      progress=progress,
    )
  return Fitted(schema, marginals, density, plan.sampler.describe())


def make_density(schema, marginals, hyperparameters, seed=None):
  """Returns the `TableDensity` of marginals, its flow still the identity.

  Columns are points to the flow: what is discrete is placed in its cell first.

  Args:
    schema: `TableSchema`.
    marginals: see `Fitted`.
    hyperparameters: `Hyperparameters`.
    seed: of the initial weights, or `None`.
  """
  columns = TableEncoder(schema).columns
  latent = _make_flow(columns, marginals, hyperparameters, seed)
  dequantization = None
  # Of a table without discrete columns there is nothing to place.
  if hyperparameters.dequantization == 'variational' and any(cells(columns)):
    dequantization = bijectors.VariationalDequantization(
      cells(columns), seed=seed
    )
  weights = None
  if hyperparameters.transform == 'histogram':
    weights = [1.0] * len(columns)
    target = _number(columns, hyperparameters)
    if target is not None:
      weights[target] = hyperparameters.target_weight
  return TableDensity(
    columns,
    [m['edges'] for m in marginals],
    [m['probabilities'] for m in marginals],
    latent,
    dequantization,
    weights,
  )


def _number(columns, hyperparameters):
  """Returns the number of the target, or `None`."""
  if hyperparameters.target is None:
    return None
  return [c.name for c in columns].index(hyperparameters.target)


def _make_flow(columns, marginals, hyperparameters, seed):
  if hyperparameters.transform == 'histogram':
    places = [
      knots(column, m['edges'], m['probabilities'], hyperparameters.num_bins)
      for column, m in zip(columns, marginals)
    ]
    order = list(range(len(columns)))
    target = _number(columns, hyperparameters)
    if target is not None:
      order.append(order.pop(target))
    return flows.histogram_flow(
      places, hyperparameters.hidden_units, order=order, seed=seed
    )
  recipe, options = flows.neural_spline_flow, {}
  if hyperparameters.linear != 'none':
    recipe = flows.dp_hflow
    options = {'linear': hyperparameters.linear, 'rank': hyperparameters.rank}
  return recipe(
    len(columns),
    hyperparameters.num_blocks,
    hyperparameters.hidden_units,
    num_bins=hyperparameters.num_bins,
    shared=hyperparameters.shared,
    seed=seed,
    **options,
  )
