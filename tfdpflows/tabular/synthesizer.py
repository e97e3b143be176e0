"""A private density of a table, and synthetic rows from it."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from absl import logging

from tfdpflows import accounting
from tfdpflows._checks import check_integer, check_type
from tfdpflows.accounting import registry
from tfdpflows.accounting.calibration import whole_noise_multiplier
from tfdpflows.accounting.rounding import delta_text, round_up
from tfdpflows.mechanisms import histograms
from tfdpflows.mechanisms.bounds import ColumnBounds
from tfdpflows.sampling import units as sampling
from tfdpflows.tabular import (
  code_store,
  draft_rows,
  fit_plan,
  fitting,
  model_card,
  model_directory,
  models,
  raw_values,
  serving,
  system_errors,
  work_directory,
  workers,
)
from tfdpflows.tabular.encoding import TableEncoder, num_columns
from tfdpflows.tabular.fitted import FittedTable
from tfdpflows.tabular.schema import (
  TableSchema,
  check_out_of_range,
  check_schema,
)
from tfdpflows.tabular.sources import Source


class TabularSynthesizer:
  """Learns the joint density of a mixed table under differential privacy.

  Every column's distribution is measured by a noisy histogram and made
  standard normal by its CDF; an autoregressive flow, trained with DP-SGD,
  learns the dependence of the columns. `model` chooses it (`tabular.models`):
  'histogram' gives each column a histogram that depends on the bins of those
  before it (`flows.histogram_flow`), and starts from noisy marginals of groups
  of columns that are selected privately; 'spline' has blocks of splines,
  'hflow' is DP-HFlow (`flows.dp_hflow`), with a linear layer before each block
  of splines and one network for all of them. 'dpgan' and 'pategan' have no
  density: a network makes rows from noise, trained against a discriminator that
  DP-SGD trains, or against a student of teachers' noisy votes (PATE).

  #### Formal guarantee

  What `fit` leaves behind (the model, samples, log-densities of rows that are
  not private, the progress it shows, but for times) is (epsilon,
  delta)-differentially private under adding or removing one row. Schema and
  number of rows count as public. With a `privacy_unit` it is so under adding or
  removing all rows with one value of that column; the number of its values
  counts as public, and that of rows does not (`sampling.Units`). Every
  mechanism is in the `ledger`, charged before it ran. Not covered are a `seed`,
  log-densities of private rows, and refusals under `out_of_range='error'`.

  Args:
    schema: a `TableSchema`. Its types, bounds and categories count as public,
      except what is marked as read off the data, which needs `bounds_epsilon`.
    epsilon: the budget, with `delta`, for all that `fit` does.
    delta: see `epsilon`; must be below one over the number of rows, or of
      units, and should be well below.
    model: 'histogram', 'spline', 'hflow', 'dpgan' or 'pategan'.
    target: name of the column, if any, that matters most: the one to predict
      from the others. For 'histogram'.
    bounds_epsilon: the part of `epsilon` for private bounds, where the schema
      is a draft.
    accountant: name of the accountant: 'pld' or 'rdp'. 'basic', 'advanced' and
      'gdp', whose epsilon is no upper bound, are refused by 'histogram' unless
      `adaptive_marginals` is 0.
    allow_large_delta: whether a delta of one over the number of rows, or more,
      is warned of and not refused: publishing one row in full, drawn at random,
      would be as private as that.
    out_of_range: 'error' refuses values that the schema does not declare;
      'clip' replaces them, see `TableSchema.validate`.
    privacy_unit: name of the column whose values are the units of privacy, such
      as 'person_id'; by default that of the schema. It is not learned.
    max_rows_per_unit: the largest number of rows of a unit that are used;
      public, and needed where there is a `privacy_unit`.
    max_rows_epsilon: the part of `epsilon` for choosing a smaller number
      privately, see `mechanisms.private_max_rows`; by default none is chosen.
    unit_weighting: 'rows' learns the distribution of the rows that are used,
      'units' that of a random row of a random unit, see `sampling.Units`.
    seed: for tests and papers: makes everything reproducible, and the result
      not private against anyone who knows the seed.
    **hyperparameters: of the model, see its class in `tabular.models`.

  Attributes:
    model: the `TableModel` with its hyper-parameters; those that depend on the
      number of rows are right once it is fitted.
    ledger: the `PrivacyLedger`, once it is fitted.
    num_examples: the public number of rows, or of units, once it is fitted.
    bounds: for each column of which a draft schema marked a domain, what is
      known of the rows that the private one leaves out
      (`mechanisms.bounds.ColumnBounds`), once it is fitted.

  Raises:
    TypeError: for a `schema` that is no `TableSchema`, such as its path.
    ValueError: for arguments out of range, a model or an accountant that there
      is not, or hyper-parameters that the model has not.

  #### Example

  >>> import numpy as np, pandas as pd
  >>> from tfdpflows.tabular import Field, TableSchema, TabularSynthesizer
  >>> schema = TableSchema([
  ...   Field('age', 'integer', minimum=0, maximum=99, required=True),
  ...   Field('sex', 'string', enum=('f', 'm'), required=True),
  ... ])
  >>> rng = np.random.default_rng(0)
  >>> table = pd.DataFrame({
  ...   'age': rng.integers(20, 60, 1000), 'sex': rng.choice(['f', 'm'], 1000)})
  >>> synthesizer = TabularSynthesizer(schema, epsilon=1., delta=1e-5, epochs=1)
  >>> synthesizer.fit(table, progress=False).sample(3).shape
  (3, 2)
  >>> synthesizer.ledger.epsilon() <= 1.
  True
  """

  def __init__(
    self,
    schema: TableSchema,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    model: str = 'histogram',
    target: str | None = None,
    bounds_epsilon: float | None = None,
    accountant: str = 'pld',
    allow_large_delta: bool = False,
    out_of_range: str = 'error',
    privacy_unit: str | None = None,
    max_rows_per_unit: int | None = None,
    max_rows_epsilon: float | None = None,
    unit_weighting: str = 'rows',
    seed: int | None = None,
    **hyperparameters: Any,
  ):
    check_schema(schema)
    if privacy_unit is not None:
      schema = dataclasses.replace(schema, privacy_unit=privacy_unit)
    self.schema = schema
    self.budget = accounting.PrivacyBudget(epsilon=epsilon, delta=delta)
    self.accountant = accountant
    self.allow_large_delta = allow_large_delta
    accounting.create_accountant(accountant)  # Refuses a name that is none.
    check_out_of_range(out_of_range)
    self.out_of_range = out_of_range
    if bounds_epsilon is not None and not 0 < bounds_epsilon < epsilon:
      raise ValueError(
        f'bounds_epsilon is {bounds_epsilon}; it is a part of epsilon and '
        f'must be between 0 and {epsilon}.'
      )
    self.bounds_epsilon = bounds_epsilon
    if bounds_epsilon is not None:
      schema = self.schema = schema.for_bounds()
    self.seed = None if seed is None else int(seed)
    if target is not None and target not in self.schema.names:
      raise ValueError(
        f'target is {target!r}, which is no column of the schema. Its columns '
        f'are {list(self.schema.names)}.'
      )
    if any(
      target == c.columns[0] for c in schema.constraints if c.kind == 'computed'
    ):
      raise ValueError(
        f'target is {target!r}, which is computed from other columns, and not '
        'learned: leave that constraint out, or name another target.'
      )
    self.target = target
    self._model_class = models.model_class(model)
    self._hyperparameters = hyperparameters
    if target is not None:
      self._hyperparameters = {**hyperparameters, 'target': target}
      takers = [
        name
        for name in models.MODELS
        if 'target' in models.model_class(name).__dataclass_fields__
      ]
      if model not in takers:
        raise ValueError(
          f'target is {target!r}, which only model='
          f'{" or ".join(map(repr, takers))} takes.'
        )
    self._unit_settings = _unit_settings(
      schema.privacy_unit,
      max_rows_per_unit,
      unit_weighting,
      max_rows_epsilon,
      epsilon - (bounds_epsilon or 0.0),
    )
    self.model = self._model_for(1)
    if self._unit_settings is not None and not self._model_class.takes_units:
      takers = [n for n in models.MODELS if models.model_class(n).takes_units]
      raise ValueError(
        f'Model {model!r} protects rows, and the privacy unit is '
        f'{schema.privacy_unit!r}. Use one of {takers}.'
      )
    self.ledger = None
    self._earlier_ledgers = []
    self.num_examples = None
    self._search = None
    self._sampling = None
    self._fitted = None

  def _model_for(self, num_examples):
    noise_multiplier = whole_noise_multiplier(self.budget)
    units = self._unit_settings
    if units is not None and units.weighting == 'rows':
      # The noise is that of as many rows as a unit may have; how many it has is
      # private until the histograms are released (`TableModel.for_total`), and
      # may be anything from one to that.
      noise_multiplier *= math.sqrt(units.max_rows_per_unit)
    return self._model_class.for_table(
      num_examples,
      num_columns(self.schema),
      noise_multiplier,
      **self._hyperparameters,
    )

  def plan(self, num_examples: int) -> fit_plan.FitPlan:
    """Returns what `fit` would charge, without reading or charging anything.

    Args:
      num_examples: the public number of rows, or of values of the privacy unit.

    Returns:
      A `FitPlan`: each mechanism and its epsilon, the hyper-parameters, and
      about how long it takes. Its text says it all.

    Raises:
      ValueError: as `fit`, for a draft schema without `bounds_epsilon`, or with
        too few rows for it, and for a delta that is not below one over
        `num_examples`.
      TypeError: for what is no number.
      BudgetExceededError: as `fit`.

    #### Example

    >>> from tfdpflows.tabular import Field, TableSchema, TabularSynthesizer
    >>> schema = TableSchema([
    ...   Field('age', 'integer', minimum=0, maximum=99, required=True),
    ...   Field('sex', 'string', enum=('f', 'm'), required=True),
    ... ])
    >>> plan = TabularSynthesizer(schema, epsilon=1., delta=1e-5).plan(10_000)
    >>> [name for name, _ in plan.charges]
    ['histograms of all columns', 'adaptive marginals', 'training']
    >>> .99 < plan.epsilon() <= 1.
    True
    """
    num_examples = check_integer('num_examples', num_examples)
    self._check_marks()
    self._check_examples(num_examples)
    model = self._model_for(num_examples)
    spending = self._split_budget(num_examples, model)
    units = self._unit_settings
    return fit_plan.FitPlan(
      num_examples,
      self.schema.privacy_unit,
      model,
      spending.charges,
      self.budget,
      self.accountant,
      self._count_std(spending),
      fitting.expected_seconds(self.schema, num_examples, model, spending),
      units and units.max_rows_per_unit,
      units and units.weighting,
    )

  def fit(
    self,
    data: Any,
    work_dir: str | os.PathLike | None = None,
    resume: bool = False,
    progress: bool = True,
  ) -> TabularSynthesizer:
    """Fits the density.

    Inside of `strategy.scope()`, of a `tf.distribute.MirroredStrategy` or
    `MultiWorkerMirroredStrategy`, all replicas train the model
    (`tabular.workers`). Several workers call this with the same arguments, with
    paths of files and a `work_dir` on a disk that they share; only that of
    worker 0, the chief, is fitted then. All fits of a process need the same
    strategy object: TensorFlow takes the sums of a second one for those of the
    first, and training ends with an error where their sizes differ.

    Args:
      data: the rows, with the columns of the schema: a `DataFrame`; or what
        `tabular.sources.Source.of` takes, such as the path of a CSV, Parquet,
        Arrow or TFRecord file, a list, pattern or folder of them, a
        `tf.data.Dataset` of dicts, or a table of pyarrow.
      work_dir: folder that does not exist yet, for the ledger and for
        checkpoints; it holds the secret that all noise derives from, until
        the caller deletes it. Without one all is in memory.
      resume: whether to continue an interrupted fit of the same table in
        `work_dir`. Charged steps are replayed with the same randomness, not
        charged again.
      progress: whether to show progress: a bar in a terminal or notebook,
        elsewhere lines of absl's log at INFO.

    Returns:
      The synthesizer.

    Raises:
      ValueError: for wrong columns or no rows; under 'error', naming the column
        and row that the schema does not allow; for a draft schema without
        `bounds_epsilon`, or with too few rows for it; for a delta that is not
        below one over the number of rows; for a synthesizer that is fitted.
      BudgetExceededError: if the budget is too small to do anything.
      LedgerError: if the ledger in `work_dir` was edited, or cannot be written.
      OSError: if `work_dir` cannot be written, or another worker is gone.
    """
    team = workers.team_of_scope()

    def run():
      if team is None:
        return self._fit(data, work_dir, resume, progress)
      return self._fit_together(team, data, work_dir, resume, progress)

    workers.out_of_scope(run)
    self._warn_of_clipped()
    return self

  def _fit_together(self, team, data, work_dir, resume, progress):
    """Fits in one of several processes that train together."""
    with team.together():
      if team.is_chief:
        return self._fit(data, work_dir, resume, progress, team=team)
      self._check_replicas(team, data, work_dir)
      if team.wait():
        path = os.fspath(work_dir)
        team.follow(path, lambda *handed: self._joined(team, path, *handed))
      return self

  def _check_replicas(self, team, data, work_dir):
    """Refuses what several replicas cannot fit."""
    if not self._model_class.takes_replicas:
      takers = [
        n for n in models.MODELS if models.model_class(n).takes_replicas
      ]
      raise ValueError(
        f'Model {self.model.name!r} is trained on one replica. Use one of '
        f'{takers}, or fit outside of the strategy (without --workers).'
      )
    team.check(self.schema, data, work_dir)

  def _joined(self, team, path, examples, resume):
    """Returns model, schema, work, codes and units of the chief's fit."""
    self.model = self._model_for(examples)
    self.num_examples = examples
    settings, units = self._unit_settings, None
    codes = code_store.of_chief(
      self.schema,
      self.out_of_range,
      os.path.join(path, code_store.ROWS),
      settings and settings.max_rows_per_unit,
    )
    if settings is not None:
      units = settings.sorted_units(codes.rows_per_unit)
    work = self._work_directory(path, codes, resume=resume, team=team)
    return self.model, self.schema, work, codes, units

  def _fit(
    self,
    data,
    work_dir,
    resume,
    progress,
    overwrite=False,
    absent=(),
    team=None,
  ):
    """Fits; `overwrite` says whether to replace unfinished work.

    `absent` has numbers of rows that no mechanism sees, for audits, and `team`
    the `Team` that trains.
    """
    if team is not None:
      self._check_replicas(team, data, work_dir)
    if self.ledger is not None:
      raise ValueError(
        'This synthesizer is fitted, its budget spent. Make a new one; on the '
        'same rows both budgets count.'
      )
    self._check_marks()
    data = self._read(data, work_dir, resume, overwrite)
    if isinstance(data, code_store.CodeStore) and work_dir is not None:
      # It was interrupted after its rows were read, before it spent anything.
      resume = resume and os.path.lexists(work_dir)
    if isinstance(data, pd.DataFrame):
      table, units, columns, absent = self._validated(data, absent)
    else:
      if absent:
        raise ValueError('Rows can be absent from a DataFrame only.')
      table, units, columns = data, None, {}
      if self._unit_settings is not None:
        units = self._unit_settings.sorted_units(data.rows_per_unit)
    examples = len(table) if units is None else units.num_units
    try:
      spending, work = self._begin(
        table.assign(**columns) if columns else table,
        examples,
        work_dir,
        resume=resume,
        overwrite=overwrite,
        team=team,
        progress=progress,
      )
    except BaseException as error:
      if isinstance(table, code_store.CodeStore):
        # Also by another fit, which has begun there since.
        refusals = ValueError, accounting.LedgerError, FileExistsError
        if work_dir is not None and isinstance(error, refusals):
          table.discard(os.fspath(work_dir))
        table.unlock()
      raise
    seconds = fitting.expected_seconds(
      self.schema, examples, self.model, spending
    )
    logging.info(
      'Fit: %d %s, %d columns, model %s, within epsilon %g at delta %s%s.'
      '%s Ledger and unfinished work: %s.',
      examples,
      'rows' if units is None else f'values of {units.name}',
      len(self.schema.fields),
      self.model.name,
      self.budget.epsilon,
      delta_text(self.budget.delta),
      registry.credit(self.accountant),
      '' if seconds is None else f' {fit_plan.describe_time(seconds)}',
      'in memory' if work_dir is None else os.fspath(work_dir),
    )
    said = None
    if self._unit_settings is None:
      said = fit_plan.say_if_noise(self._count_std(spending), examples)
    if said:
      logging.warning('tfdpflows: %s', said)
    self.ledger = work.ledger
    self._earlier_ledgers = work.earlier_ledgers
    folder = None
    if work_dir is not None:
      folder = os.path.join(os.fspath(work_dir), code_store.ROWS)
    try:
      if folder is not None and isinstance(table, code_store.CodeStore):
        table.move(folder)
      self._fitted = fitting.run_mechanisms(
        table,
        self.schema,
        spending,
        self.model,
        work,
        units=units,
        absent=absent,
        folder=folder,
        hyperparameters=self._hyperparameters,
      )
    except BaseException:
      # Unlocks it, so that another synthesizer can go on with it.
      self.ledger.close()
      raise
    self.schema, self.model = self._fitted.schema, self._fitted.model
    if spending.plan is not None:
      self._sampling = self.model.describe_sampling(
        spending.plan, self.schema.privacy_unit
      )
    return self

  def _warn_of_clipped(self):
    """Warns of columns that were clipped, or not read, nearly altogether."""
    if self.out_of_range == 'clip' and self._fitted is not None:
      for said in self._fitted.what_was_clipped():
        warnings.warn(said, stacklevel=3)

  def _begin(self, table, examples, work_dir, **options):
    """Returns the `Spending` of a fit and its `WorkDirectory`."""
    self.model = self._model_for(examples)
    self.num_examples = examples
    self._check_examples(examples)
    # A budget that is too small is refused before anything is written.
    spending = self._split_budget(examples, self.model)
    return spending, self._work_directory(work_dir, table, **options)

  def _work_directory(self, path, table, **kwargs):
    return work_directory.WorkDirectory(
      path,
      settings=self._settings(),
      table=table,
      seed=self.seed,
      budget=self.budget,
      accountant=self.accountant,
      privacy_unit=self.schema.privacy_unit,
      **kwargs,
    )

  def _count_std(self, spending):
    units = self._unit_settings
    if self.schema.is_draft or (units and units.max_rows_epsilon is not None):
      return None
    stds = histograms.noise_stds(
      TableEncoder(self.schema).columns, spending.marginal_noise
    )
    # Of rows that weigh less than 1, the noise is that of as many more.
    per_row = 1
    if units is not None and units.weighting == 'rows':
      per_row = units.max_rows_per_unit
    return per_row * float(np.median([of_column[0] for of_column in stds]))

  def _split_budget(self, examples, model):
    return fitting.split_budget(
      self.schema,
      examples,
      model,
      budget=self.budget,
      bounds_epsilon=self.bounds_epsilon,
      accountant=self.accountant,
      max_rows_epsilon=(
        self._unit_settings and self._unit_settings.max_rows_epsilon
      ),
    )

  def _check_marks(self):
    if self.schema.is_draft and self.bounds_epsilon is None:
      column, marks = next(iter(self.schema.draft_marks().items()))
      raise ValueError(
        f'The schema is a draft: of column {column!r}, {", ".join(marks)} '
        'came from the data. Replace them by public knowledge and remove the '
        'marks, or pay for private bounds with bounds_epsilon.'
      )

  def _check_examples(self, examples):
    """Refuses a delta that allows to publish a row, unless that is allowed."""
    what = 'row' if self._unit_settings is None else 'unit'
    if what == 'unit' and examples < 2:
      raise ValueError(
        f'All rows have the same {self.schema.privacy_unit!r}; a distribution '
        'needs at least two.'
      )
    if self.budget.delta * examples < 1:
      return
    said = (
      f'delta is {self.budget.delta:g}, and one over the number of {what}s '
      f'{1 / examples:.2g}: publishing one {what} in full would be as private '
      'as that. Choose delta well below'
    )
    if not self.allow_large_delta:
      raise ValueError(
        f'{said}, or set allow_large_delta (--allow_large_delta) if this is '
        'what you want.'
      )
    warnings.warn(f'{said}.', stacklevel=5)

  def _validated(self, df, absent):
    """Returns the validated table, its units, further columns, absent rows."""
    units, columns = None, {}
    if self._unit_settings is not None:
      ids = self.schema.unit_ids(df, self.out_of_range)
      known = ids.notna().to_numpy()
      df, ids = df[known].reset_index(drop=True), ids[known]
      # Numbers of rows among those whose unit is known.
      places = np.cumsum(known) - 1
      absent = [int(places[row]) for row in absent if known[row]]
      units = self._unit_settings.units(ids)
      columns = {self.schema.privacy_unit: ids.to_numpy()}
    table = self.schema.validate(df, self.out_of_range)
    return table, units, columns, absent

  def _read(self, data, work_dir, resume, overwrite):
    """Returns a table as a `DataFrame`, its codes or its `DraftRows`."""
    known = (pd.DataFrame, code_store.CodeStore, draft_rows.DraftRows)
    if isinstance(data, known):
      return data
    source = Source.of(data, self.schema.dialect)
    if self.schema.is_draft:
      # Types and ranges are found privately first.
      return draft_rows.of_source(source, self.schema, self.out_of_range)
    return code_store.stored(
      source,
      self.schema,
      self.out_of_range,
      None if work_dir is None else os.fspath(work_dir),
      resume=resume,
      overwrite=overwrite,
      max_rows_per_unit=(
        self._unit_settings and self._unit_settings.max_rows_per_unit
      ),
    )

  def _refit_arguments(self):
    """Arguments of a synthesizer that fits as this one, with public bounds."""
    units = self._unit_settings
    return {
      'epsilon': self.budget.epsilon,
      'delta': self.budget.delta,
      'accountant': self.accountant,
      # That was settled when it was fitted.
      'allow_large_delta': True,
      'out_of_range': self.out_of_range,
      'max_rows_per_unit': units and units.max_rows_per_unit,
      'max_rows_epsilon': units and units.max_rows_epsilon,
      'unit_weighting': units.weighting if units else 'rows',
      'model': self.model.name,
      **dataclasses.asdict(self.model),
    }

  def _count_examples(self, data):
    """Returns the number of rows of a table, or of its units."""
    settings = self._unit_settings
    if settings is None:
      return len(data)
    if isinstance(data, code_store.CodeStore):
      return settings.sorted_units(data.rows_per_unit).num_units
    ids = self.schema.unit_ids(data, self.out_of_range)
    return settings.units(ids.dropna()).num_units

  def _settings(self):
    """What a resumed fit must agree with."""
    return {
      'schema': self.schema.to_dict(),
      'epsilon': self.budget.epsilon,
      'delta': self.budget.delta,
      'bounds_epsilon': self.bounds_epsilon,
      'accountant': self.accountant,
      'out_of_range': self.out_of_range,
      'seed': self.seed,
      # The number of units, where there are any.
      'num_rows': self.num_examples,
      'units': self._unit_settings and self._unit_settings._asdict(),
      'model': self.model.name,
      'hyperparameters': dataclasses.asdict(self.model),
    }

  @property
  def bounds(self) -> tuple[ColumnBounds, ...]:
    """What private bounds leave out, of each column that a draft marks."""
    return () if self._fitted is None else self._fitted.bounds

  @property
  def is_best_of_search(self) -> bool:
    """Whether this is the best of several fits (`tune_to_directory`)."""
    return self._search is not None

  def _take_search(
    self,
    work: work_directory.WorkDirectory,
    whole: TabularSynthesizer,
    note: str,
  ) -> None:
    """Makes the best trial of a search a model with the cost of the search.

    `whole` has the budget and the seed of the search, statements the `note`.
    """
    self.ledger = work.ledger
    self._earlier_ledgers = work.earlier_ledgers
    self.budget, self.seed = whole.budget, whole.seed
    # Its own batches are no part of what is claimed.
    self._sampling = None
    self._search = note

  def _check_fitted(self):
    if self._fitted is None:
      raise ValueError('The synthesizer is not fitted yet: call fit(df) first.')

  def _check_density(self):
    if not self.model.has_density:
      names = [n for n in models.MODELS if models.model_class(n).has_density]
      raise ValueError(
        f'Model {self.model.name!r} has no density, and log_prob needs one: '
        'rows can only be drawn from it. Models with a density are '
        f'{", ".join(map(repr, names))}.'
      )

  def sample(
    self,
    num_rows: int,
    seed: int | None = None,
    conditions: dict[str, Any] | None = None,
  ) -> pd.DataFrame:
    """Draws synthetic rows.

    Args:
      num_rows: number of rows, 0 or more.
      seed: for rows that can be drawn again; `None` for fresh ones.
      conditions: dict of values that columns must have, such as `{'sex': 'f'}`,
        `None` for missing; a list of values, of which it must have one; or a
        `pandas.Interval`, such as `pd.Interval(65, np.inf, 'both')`. Rejection
        sampling is exact; where rows that have values are too rare, and for
        values of continuous columns, it is importance resampling
        (`conditioning.sample`), which is approximate.

    Returns:
      A `DataFrame` with the columns, types and values of the schema, before
      which are its identifiers. With conditions, `attrs['conditions']` has the
      `method`, 'exact' or 'importance', and the effective sample size,
      `effective_rows`.

    Raises:
      TypeError: for `conditions` that are no dict.
      ValueError: before `fit`; for a number out of range, or a condition that
        the schema does not allow, naming the column; for one that needs
        resampling, of a model without a density; or where rows in a range are
        too rare.
    """
    rng = self._sampling_rng(num_rows, seed)
    if conditions is not None:
      check_type('conditions', conditions, Mapping, "{'sex': 'f'}")
    return self._fitted.sample(int(num_rows), rng, conditions)

  def sample_frames(
    self, num_rows: int, seed: int | None = None
  ) -> Iterator[pd.DataFrame]:
    """Yields the rows of `sample`, without conditions, in parts.

    So many as `sinks.write_frames` writes to a file need no memory.

    Args:
      num_rows: see `sample`, as the errors.
      seed: see there.
    """
    rng = self._sampling_rng(num_rows, seed)
    return self._fitted.sample_frames(int(num_rows), rng)

  def _sampling_rng(self, num_rows, seed):
    """Returns the generator of `sample`, and checks its arguments."""
    self._check_fitted()
    check_integer('num_rows', num_rows, 0)
    if seed is not None:
      seed = check_integer('seed', seed, 0)
    return np.random.default_rng(seed)

  def log_prob(
    self, df: pd.DataFrame, out_of_range: str | None = None
  ) -> np.ndarray:
    """Returns the log-density of rows, in nats, float32 `[n]`.

    Categories, integers and missing values count with their probability, other
    numbers with their density in the units of the column. By 'histogram', the
    default model, that is exact; by 'spline' and 'hflow' a probability is an
    unbiased estimate from 16 points per row, the same for each call, so that
    its logarithm is a lower bound in expectation. Where the schema has
    inequalities, the normalizing constant is estimated from 131,072 rows. The
    result for private rows is not private.

    Args:
      df: `DataFrame` with the columns of the schema.
      out_of_range: what to do with values that the schema does not declare: see
        there, and by default what the fit did. Under 'clip' a row has the
        density of the row that it becomes.

    Raises:
      TypeError: for a `df` that is no `DataFrame`.
      ValueError: before `fit`; for a model without a density; under 'error' for
        a value that is not declared.
    """
    check_type('df', df, pd.DataFrame, "tabular.read_table('rows.csv', schema)")
    return np.concatenate(list(self.log_prob_frames([df], out_of_range)))

  def log_prob_frames(
    self, frames: Iterable[pd.DataFrame], out_of_range: str | None = None
  ) -> Iterator[np.ndarray]:
    """Yields what `log_prob` gives for rows that come in parts.

    The same numbers, of as many rows as there are, in the memory of a few.

    Args:
      frames: the rows, each part as `log_prob` takes it.
      out_of_range: see there, as the errors.

    Yields:
      Parts of the result, float32, which may be longer or shorter than those of
      the rows.
    """
    self._check_density()
    self._check_fitted()
    return self._fitted.log_probs(frames, out_of_range or self.out_of_range)

  def privacy_statement(self) -> accounting.PrivacyStatement:
    """Returns the `PrivacyStatement` of all that the fit spent.

    Raises:
      ValueError: before `fit`.
    """
    if self.ledger is None:
      raise ValueError('Nothing was spent yet: call fit(df) first.')
    return self._statement(self._earlier_ledgers)

  def _statement(self, earlier):
    notes, extra = [], {}
    if self._sampling is not None:
      extra = {'sampling': self._sampling}
    if num_columns(self.schema) > 1:
      notes += self.model.notes()
    if self._search is not None:
      extra['hyperparameter_search'] = self._search
    if self.out_of_range == 'error':
      notes.append(
        "Refusals (out_of_range='error'): a value that the schema does not "
        'declare ends a fit with an error that names its row. Whether one did, '
        'and what the error says, is outside of this guarantee; '
        "out_of_range='clip' refuses no value."
      )
    units = None if self._fitted is None else self._fitted.units
    if units is not None:
      notes.append(f'Units: {units}.')
      if self.out_of_range == 'error':
        notes.append(
          'The same holds of an identifier that is missing or cannot be read, '
          "which out_of_range='clip' leaves out with its row."
        )
    notes += [work_directory.describe_earlier(path) for path in earlier]
    return accounting.privacy_statement(
      self.ledger, num_examples=self.num_examples, notes=notes, **extra
    )

  def save(self, model_dir: str | os.PathLike, overwrite: bool = False) -> None:
    """Writes the model to a folder: complete, or not at all.

    Args:
      model_dir: the folder. It gets the schema, the ledger, the statement,
        the weights, and a SavedModel that needs no tfdpflows.
      overwrite: whether to replace a model that is there. Its ledger is kept
        in the new folder.

    Raises:
      FileExistsError: if `model_dir` exists and may not be replaced.
    """
    self._check_fitted()
    with model_directory.written_aside(model_dir, overwrite) as folder:
      self._write(folder)

  def _write(self, folder):
    self.schema.to_json(folder.path('schema.json'))
    earlier = folder.add_ledgers(self.ledger, self._earlier_ledgers)
    self._fitted.write_weights(folder.path('weights', 'flow'))
    exported = folder.path('saved_model')
    with system_errors.of_file(exported):
      self._fitted.distribution.export(exported)
    folder.write_json(
      'model.json',
      {
        **folder.header(),
        'settings': self._settings(),
        'sampling': self._sampling,
        'units': self._fitted.units,
        'search': self._search,
        'bounds': [found._asdict() for found in self.bounds],
        'marginals': self._fitted.marginals,
      },
    )
    statement = self._statement(earlier)
    folder.write_json('statement.json', statement.to_dict())
    folder.write_text('statement.txt', f'{statement}\n')

  def export(
    self,
    path: str | os.PathLike,
    overwrite: bool = False,
    metrics: dict[str, float] | None = None,
  ) -> None:
    """Writes a SavedModel that takes and gives raw values, and a model card.

    It needs TensorFlow alone, neither tfdpflows nor TensorFlow Probability nor
    Keras, and has the signatures

    - `sample`, of `num_rows` and `seed`, int64 scalars: one tensor for each
      column, with the rows that `sample(num_rows, seed)` gives here;
    - `log_prob`, of one tensor `[n]` for each column: `log_prob`, float32
      `[n]`, as the method gives it here, up to rounding. Values that the schema
      does not declare are an error, or replaced where `out_of_range` is 'clip'.
      Models without a density ('dpgan', 'pategan') have no such signature.

    Strings are `tf.string`, integers int64, numbers float64 and booleans bool.
    Integers and booleans of columns that are not `required` are float64 too,
    NaN where they are missing; a missing string is empty. Names of tensors are
    those of columns, with `_` for what no identifier has; `model_card.json`
    lists them. It and `model_card.md` have the schema, the public number of
    rows, the privacy statement and the limits of the model.

    #### Formal guarantee

    The folder is post-processing of what the `ledger` was charged for. It holds
    no counter of the process that wrote it, which might depend on how many
    batches were empty, say: equal weights give equal bytes.

    Args:
      path: the folder.
      overwrite: whether to replace an export that is there.
      metrics: numbers for the card, by name. They are published with it: on
        private rows they are private, unless they were charged for.

    Raises:
      FileExistsError: if `path` exists and may not be replaced.
      ValueError: for a model that is not fitted, metrics that are not finite,
        or a column with no word left for missing values.

    #### Example

    >>> import os, tempfile
    >>> import numpy as np, pandas as pd, tensorflow as tf
    >>> from tfdpflows.tabular import Field, TableSchema, TabularSynthesizer
    >>> schema = TableSchema(
    ...   [Field('sex', 'string', enum=('f', 'm'), required=True)])
    >>> table = pd.DataFrame({'sex': ['f', 'm'] * 500})
    >>> synthesizer = TabularSynthesizer(schema, epsilon=1., delta=1e-5)
    >>> _ = synthesizer.fit(table, progress=False)
    >>> path = os.path.join(tempfile.mkdtemp(), 'exported')
    >>> synthesizer.export(path)
    >>> model = tf.saved_model.load(path)
    >>> rows = model.signatures['sample'](
    ...   num_rows=tf.constant(5, tf.int64), seed=tf.constant(0, tf.int64))
    >>> [x.decode() for x in rows['sex'].numpy()] == list(
    ...   synthesizer.sample(5, seed=0)['sex'])
    True
    """
    self._check_fitted()
    table = raw_values.RawTable(self.schema, clip=self.out_of_range == 'clip')
    statement = self.privacy_statement()
    card = model_card.make(
      self.model,
      self.schema,
      num_examples=self.num_examples,
      tensors=table.describe(),
      statement=statement.to_dict(),
      metrics=metrics,
      seeded=self.seed is not None,
      out_of_range=self.out_of_range,
    )
    text = model_card.to_markdown(card, statement.to_markdown())
    with serving.written_aside(path, overwrite) as folder:
      with system_errors.of_file(folder):
        serving.save(folder, self._fitted.distribution, table)
      serving.write_card(folder, card, text)

  @classmethod
  def load(cls, model_dir: str | os.PathLike) -> TabularSynthesizer:
    """Reads a model that `save` wrote.

    Raises:
      FileNotFoundError: if there is no model.
      LedgerError: if its ledger is missing or was edited.
      ValueError: if another version wrote it.
    """
    model = model_directory.read_model(model_dir)
    try:
      return cls._from_directory(model_dir, model)
    except (LookupError, TypeError) as error:
      raise ValueError(
        f'{model_dir}/model.json is damaged ({error!r}). Restore it from a '
        'copy.'
      ) from error

  @classmethod
  def _from_directory(cls, model_dir, model):
    settings = models.current_settings(model['settings'])
    units = settings.get('units') or {}
    schema = TableSchema.from_json(os.path.join(model_dir, 'schema.json'))
    given = TableSchema.from_dict(settings['schema'])
    # What cells mean; how files are written may be said otherwise. Of a draft
    # the fields are those that the fit has found.
    if given.constraints != schema.constraints or not (
      given.is_draft or given.fields == schema.fields
    ):
      raise ValueError(
        f'{model_dir}/schema.json was edited: its fields or constraints are '
        'not those that the model has learned. Restore it from a copy, or from '
        '"settings", "schema" in model.json.'
      )
    self = cls(
      schema,
      epsilon=settings['epsilon'],
      delta=settings['delta'],
      model=settings['model'],
      bounds_epsilon=settings['bounds_epsilon'],
      accountant=settings['accountant'],
      out_of_range=settings['out_of_range'],
      max_rows_per_unit=units.get('max_rows_per_unit'),
      max_rows_epsilon=units.get('max_rows_epsilon'),
      unit_weighting=units.get('weighting', 'rows'),
      seed=settings['seed'],
      **settings['hyperparameters'],
    )
    self.ledger, self._earlier_ledgers = model_directory.read_ledger(
      model_dir, model
    )
    if self.ledger.privacy_unit != self.schema.privacy_unit:
      self.ledger.close()
      raise ValueError(
        f'{model_dir}/schema.json has the privacy unit '
        f'{self.schema.privacy_unit!r}, and the ledger of the model '
        f'{self.ledger.privacy_unit!r}. Restore the schema from a copy.'
      )
    self.num_examples = settings['num_rows']
    self._sampling = model['sampling']
    self._search = model.get('search')
    self._fitted = FittedTable.read(
      os.path.join(model_dir, 'weights', 'flow'),
      self.schema,
      self.model,
      model['marginals'],
      units=model.get('units'),
      bounds=tuple(ColumnBounds(**found) for found in model.get('bounds', ())),
    )
    return self


def _unit_settings(name, most, weighting, epsilon, budget):
  """Returns `fitting.UnitSettings`, `None` for rows; checks the arguments."""
  sampling.check_weighting(weighting)
  if name is None:
    given = {'max_rows_per_unit': most, 'max_rows_epsilon': epsilon}
    for argument, value in given.items():
      if value is not None:
        raise ValueError(
          f'{argument} is {value}, and there is no privacy_unit: name the '
          'column of the identifier.'
        )
    return None
  if most is None:
    raise ValueError(
      f'The privacy unit is {name!r}: give max_rows_per_unit, the largest '
      'number of rows of one unit that are used. It must be known without the '
      'data; max_rows_epsilon chooses a smaller one privately.'
    )
  if epsilon is not None and not 0 < epsilon < budget:
    raise ValueError(
      f'max_rows_epsilon is {epsilon}; it is a part of epsilon, and must be '
      f'above 0 and below {budget:g}, what is left of it.'
    )
  most = check_integer('max_rows_per_unit', most)
  return fitting.UnitSettings(name, most, weighting, epsilon)


def fit_to_directory(
  table: Any,
  schema: TableSchema,
  model_dir: str | os.PathLike,
  *,
  epsilon: float,
  delta: float,
  overwrite: bool = False,
  resume: bool = False,
  progress: bool = True,
  team: workers.Team | None = None,
  **kwargs: Any,
) -> TabularSynthesizer | None:
  """Fits a synthesizer and writes it to a folder, in the way of a long job.

  Until the model is complete, ledger, checkpoints and the secret of the noise
  are in `model_dir + '.partial'`. A fit that was killed continues from there
  with `resume`, without charging anything twice. With several workers, see
  `TabularSynthesizer.fit`, the chief alone writes the model.

  Args:
    table: the private rows, see `TabularSynthesizer.fit`.
    schema: `TableSchema`.
    model_dir: the folder to write.
    epsilon: see `TabularSynthesizer`.
    delta: see `TabularSynthesizer`.
    overwrite: whether to replace a model that exists, and to drop unfinished
      work. The ledgers of both are kept.
    resume: whether to go on with unfinished work.
    progress: whether to show progress: a bar in a terminal or notebook,
      elsewhere lines of absl's log at INFO.
    team: the `workers.Team` that trains; by default that of the scope, if this
      is called inside of one.
    **kwargs: further arguments of `TabularSynthesizer`.

  Returns:
    The fitted `TabularSynthesizer`, as loaded from `model_dir`; `None` for a
    worker that is not the chief.

  Raises:
    FileExistsError: if the model or unfinished work exists, without `overwrite`
      or `resume`.
    FileNotFoundError: if there is nothing to resume.
  """
  model_dir = os.path.normpath(model_dir)
  settings = {'epsilon': epsilon, 'delta': delta, **kwargs}
  choices = {'overwrite': overwrite, 'resume': resume, 'progress': progress}
  if team is None and workers.is_in_scope():
    team = workers.team_of_scope()
    return workers.out_of_scope(
      lambda: fit_to_directory(
        table, schema, model_dir, team=team, **choices, **settings
      )
    )
  if team is None:
    return _to_directory(table, schema, model_dir, settings, None, **choices)
  with team.together():
    if team.is_chief:
      return _to_directory(table, schema, model_dir, settings, team, **choices)
    TabularSynthesizer(schema, **settings)._fit_together(
      team, table, _work_dir(model_dir), resume, progress
    )
  return None


def _work_dir(model_dir):
  return f'{model_dir}.partial'


def _to_directory(
  table, schema, model_dir, settings, team, *, overwrite, resume, progress
):
  work_dir = _work_dir(model_dir)
  ledger = os.path.join(work_dir, work_directory.LEDGER)
  model_directory.bring_back(model_dir, work_dir)
  # A kill may have come when only the work was left to be removed.
  complete = resume and model_directory.is_complete(model_dir, ledger)
  if not complete:
    model_directory.check_target(model_dir, overwrite)
  synthesizer = TabularSynthesizer(schema, **settings)
  synthesizer._fit(table, work_dir, resume, progress, overwrite, team=team)
  synthesizer._warn_of_clipped()
  with synthesizer.ledger:
    if not complete:
      with model_directory.written_aside(
        model_dir, overwrite, workspace=work_dir
      ) as folder:
        synthesizer._write(folder)
    logging.info(
      'Fit: done. Epsilon is %s%s. Model: %s.',
      round_up(synthesizer.ledger.epsilon(), 3),
      registry.caveat(synthesizer.ledger.accountant),
      model_dir,
    )
  # A ledger whose file goes while it is open warns of it.
  work_directory.remove(work_dir)
  return TabularSynthesizer.load(model_dir)
