"""A fit: how its budget is split, and its mechanisms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
import pandas as pd

from tfdpflows import accounting, mechanisms, sampling
from tfdpflows.accounting.calibration import (
  charged_noise_multiplier,
  whole_noise_multiplier,
)
from tfdpflows.mechanisms import bounds as bounds_lib
from tfdpflows.progress import log_charge
from tfdpflows.sampling.units import SortedUnits
from tfdpflows.stored_rows import StoredRows
from tfdpflows.tabular.draft_rows import DraftRows
from tfdpflows.tabular.encoding import TableEncoder, num_columns
from tfdpflows.tabular.fitted import FittedTable
from tfdpflows.tabular.models.base import TableModel
from tfdpflows.tabular.models.dp_sgd import DPSGDModel
from tfdpflows.tabular.ordered_codes import OrderedCodes
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.work_directory import WorkDirectory, weights_seed

# The labels of charges, and of their noise.
_BOUNDS, _MARGINALS, _MAX_ROWS = 'bounds', 'marginals', 'max rows per unit'
_HISTOGRAMS = 'histograms of all columns'


class UnitSettings(NamedTuple):
  """Units of privacy that have several rows, and how many of them are used.

  Attributes:
    name: the column of the identifier.
    max_rows_per_unit: the largest number of rows of a unit.
    weighting: see `sampling.Units`.
    max_rows_epsilon: epsilon of choosing a smaller number privately; `None` to
      take the largest.
  """

  name: str
  max_rows_per_unit: int
  weighting: str
  max_rows_epsilon: float | None

  def units(self, ids: pd.Series) -> sampling.Units:
    """Returns the units, before a smaller number of rows is chosen."""
    return sampling.Units(
      ids,
      max_rows_per_unit=self.max_rows_per_unit,
      weighting=self.weighting,
      name=self.name,
    )

  def sorted_units(self, rows_per_unit: np.ndarray) -> sampling.Units:
    """Returns `units` where the rows of each stand together in the table."""
    return SortedUnits(
      rows_per_unit,
      max_rows_per_unit=self.max_rows_per_unit,
      weighting=self.weighting,
      name=self.name,
    )


class Spending(NamedTuple):
  """A budget that is split, before any of it is spent.

  Attributes:
    bounds: `(epsilon, delta)` of private bounds; `None` for a public schema.
    marginal_noise: noise multiplier of the marginals.
    plan: how the model is trained (`TableModel.plan_training`); `None` for one
      column.
    rounds: measurements before training (`TableModel.plan_start`).
    max_rows_epsilon: epsilon of choosing how many rows of a unit are used, or
      `None`.
    charges: of each mechanism, or of several of a kind, a name and the
      `DpEvent`.
  """

  bounds: tuple | None
  marginal_noise: float
  plan: Any
  rounds: tuple = ()
  max_rows_epsilon: float | None = None
  charges: tuple[tuple[str, dp_accounting.DpEvent], ...] = ()


def split_budget(
  schema: TableSchema,
  num_examples: int,
  model: TableModel,
  *,
  budget: accounting.PrivacyBudget,
  bounds_epsilon: float | None,
  accountant: str,
  max_rows_epsilon: float | None = None,
) -> Spending:
  """Returns the `Spending` of a fit.

  The marginals get their share of a Gaussian mechanism's budget, training the
  rest. `num_examples` is the public number of rows, or of units.
  `bounds_epsilon` is the epsilon of private bounds, for a draft schema, and
  `max_rows_epsilon` that of a private number of rows per unit.

  Raises:
    ValueError: if the budget is too small.
  """
  bounds, charges = None, []
  if schema.is_draft:
    # As Gaussian noise they leave most of delta to what follows.
    bounds = bounds_epsilon, budget.delta
    bounds_lib.check_num_rows(schema, *bounds, num_examples)
    event = bounds_lib.bounds_event(schema, *bounds)
    charges.append(('types, ranges and categories', event))
  if max_rows_epsilon is not None:
    event = accounting.ExponentialMechanismDpEvent(max_rows_epsilon)
    charges.append(('number of rows per unit', event))
  noise = accounting.calibrate_noise_multiplier(
    dp_accounting.GaussianDpEvent,
    budget,
    spent=_composed(charges) if charges else None,
    accountant=accountant,
  )
  if num_columns(schema) == 1:
    charges.append((_HISTOGRAMS, dp_accounting.GaussianDpEvent(noise)))
    return Spending(bounds, noise, None, (), max_rows_epsilon, tuple(charges))
  rounds, measured = model.plan_start(noise), []
  if rounds:
    event = dp_accounting.ComposedDpEvent([r.event for r in rounds])
    measured = [('adaptive marginals', event)]
  noise /= np.sqrt(model.marginal_share)
  histograms = _HISTOGRAMS, dp_accounting.GaussianDpEvent(noise)
  # The order decides the last bit of the noise of training, which a fit that
  # is resumed computes again.
  spent = _composed([*charges, *measured, histograms])
  if rounds:
    _check_rounds(spent, budget, accountant)
  plan = model.plan_training(
    num_examples, budget=budget, spent=spent, accountant=accountant
  )
  charges += [histograms, *measured, ('training', plan.event)]
  return Spending(bounds, noise, plan, rounds, max_rows_epsilon, tuple(charges))


def expected_seconds(
  schema: TableSchema,
  num_examples: int,
  model: TableModel,
  spending: Spending,
) -> float | None:
  """Returns about how long a fit takes on two free cores, where it is known.

  A function of public numbers: schema, number of rows or units, and settings.
  Where types and ranges are private nothing is known before.
  """
  if schema.is_draft:
    return None
  columns = TableEncoder(schema).columns
  return model.expected_seconds(columns, num_examples, spending)


def _composed(charges):
  return dp_accounting.ComposedDpEvent([event for _, event in charges])


def _check_rounds(event, budget, accountant):
  """Refuses an accountant that charges measurements for the whole budget."""
  found = accounting.create_accountant(accountant)
  if found.supports(event):
    found.compose(event)
    if found.get_epsilon(budget.delta) < budget.epsilon:
      return
    problem = 'counts the measurements of marginals as the whole budget'
  else:
    problem = 'cannot count the selection of marginals'
  raise ValueError(
    f"The accountant {accountant!r} {problem}. Use 'pld' or 'rdp', or "
    'adaptive_marginals=0 for training alone.'
  )


def run_mechanisms(
  table: pd.DataFrame | StoredRows | DraftRows,
  schema: TableSchema,
  spending: Spending,
  model: TableModel,
  work: WorkDirectory,
  *,
  units: sampling.Units | None = None,
  absent: Sequence[int] = (),
  folder: str | None = None,
  hyperparameters: dict[str, Any] | None = None,
) -> FittedTable:
  """Runs all mechanisms of a fit, each charged to the ledger before.

  Args:
    table: validated `DataFrame`; or of a schema without marks its codes,
      `StoredRows`, and of one with marks its `DraftRows`.
    schema: `TableSchema`.
    spending: from `split_budget`.
    model: the `TableModel`.
    work: the `WorkDirectory`.
    units: the units that are protected, if not rows.
    absent: for audits, numbers of rows that no mechanism sees; with units, all
      rows of the units that these are of. The number of rows, or of units,
      stays that of the table, since it is public.
    folder: where to store the codes of `DraftRows`, `None` for memory.
    hyperparameters: those of the model that were given; of others
      `model.for_total` may find better ones.

  Raises:
    ValueError: for absent rows and a model that DP-SGD does not train.
  """
  absent = list(absent)
  if absent and not isinstance(model, DPSGDModel):
    raise ValueError(
      f'Model {model.name!r} cannot be trained as if rows were absent: that is '
      'known for models that DP-SGD trains. Replace a row instead.'
    )
  randomness, ledger, bounds = work.randomness, work.ledger, ()
  if units is not None:
    # Their rows stay, and weigh nothing.
    units, absent = units.without(absent), []
    if spending.max_rows_epsilon is not None:
      most = mechanisms.private_max_rows(
        units,
        epsilon=spending.max_rows_epsilon,
        ledger=ledger,
        randomness=randomness,
        label=_MAX_ROWS,
        resume=work.resume,
      )
      log_charge(f'At most {most} rows of a unit', ledger, _MAX_ROWS)
      units = units.limited(most)
  if spending.bounds is not None:
    present = table
    if absent:
      present = table.drop(index=table.index[absent])
    schema, bounds = bounds_lib.release_bounds(
      present,
      schema,
      *spending.bounds,
      randomness,
      ledger,
      label=_BOUNDS,
      resume=work.resume,
      units=units,
    )
    log_charge('Types, ranges and categories', ledger, _BOUNDS)
    bounds_lib.warn_of_outside(bounds, spending.bounds[0])
    if isinstance(table, DraftRows):
      table = table.encoded(schema, folder)
    else:
      table = schema.validate(table, 'clip')
  encoder = TableEncoder(schema)
  codes = table
  if not isinstance(table, StoredRows):
    codes = encoder.encode(table)
  elif not model.takes_stored:
    codes = table[:]
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
    resume=work.resume,
    units=units,
  )
  log_charge('Histograms of all columns', ledger, _MARGINALS)
  # How much the rows of units weigh in all is private, and was released.
  total = len(codes)
  if units is not None:
    total = float(histograms[0].counts.sum())
    noise_multiplier = whole_noise_multiplier(work.ledger.budget)
    model = model.for_total(total, noise_multiplier, hyperparameters or {})
  marginals = [
    {
      'name': histogram.name,
      'edges': histogram.edges.tolist(),
      'probabilities': histogram.probabilities().tolist(),
    }
    for histogram in histograms
  ]
  distribution = model.make_distribution(
    encoder.columns, marginals, weights_seed(randomness)
  )
  distribution.constrain(OrderedCodes(encoder))
  # Independent columns are all that there is to learn of one.
  if spending.plan is not None:
    if absent:
      # They keep their place in the sampler; their gradient, NaN, counts as 0.
      codes = codes.copy()
      codes[absent] = np.nan
    work.check_repeated(
      [
        *(m[name] for m in marginals for name in ('edges', 'probabilities')),
        *(v.numpy() for v in distribution.exported_variables()),
      ]
    )
    model.train(distribution, codes, spending, work, units=units, total=total)
    for marginal, learned in zip(marginals, distribution.learned()):
      marginal.update(learned)
  described = None if units is None else units.describe()
  return FittedTable(schema, model, marginals, distribution, described, bounds)
