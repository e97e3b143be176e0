"""A search for the hyper-parameters of a table's model, paid for as a whole."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import dp_accounting
import numpy as np
import pandas as pd
from absl import logging

from tfdpflows import accounting, mechanisms, tuning
from tfdpflows.accounting import EpsilonDeltaDpEvent
from tfdpflows.accounting.rounding import round_up
from tfdpflows.mechanisms import marginals
from tfdpflows.mechanisms.histograms import search_edges
from tfdpflows.stored_rows import StoredRows
from tfdpflows.tabular import (
  code_store,
  fitting,
  model_directory,
  models,
  work_directory,
  workers,
)
from tfdpflows.tabular.encoding import TableEncoder, number_of
from tfdpflows.tabular.models.adaptive_marginals import Candidates
from tfdpflows.tabular.models.histogram import bins_of, kept_edges
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.synthesizer import TabularSynthesizer
from tfdpflows.tuning.search import (
  charge_search,
  checked_space,
  trial_budget,
)

# The label of the charge, and those of random numbers.
_LABEL, _BINS, _TRIALS = 'tuning', 'bins of the score', 'trials'
# Share of epsilon and delta that is the trials'; the rest is for the bins in
# which all are scored.
_TRIALS_SHARE = 0.9
# Share of a trial's that is its fit's; the rest is for its score. As squared
# signal-to-noise ratios add up, that has a tenth.
_FIT_SHARE = 0.95
# The score: bins of a column, groups of columns, and rows that are drawn.
_NUM_BINS, _MOST_GROUPS, _ROWS = 8, 4096, 1 << 17
_NOTE = (
  'this model is the best of a random number of trials with other '
  'hyper-parameters, {:g} on average; the epsilon of this statement is that of '
  'the whole search. The number of trials, what shows it (time, progress), and '
  'the other trials are outside of this guarantee'
)
# All settings are checked before anything is charged.
_MOST_SETTINGS = 1000


def tune_to_directory(
  table: Any,
  schema: TableSchema,
  model_dir: str | os.PathLike,
  *,
  space: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
  epsilon: float,
  delta: float,
  mean_trials: float = 10.0,
  overwrite: bool = False,
  progress: bool = True,
  **kwargs: Any,
) -> TabularSynthesizer:
  """Fits with several settings, and writes the best model to a folder.

  A tenth of epsilon finds eight bins for each column. The rest is
  `tuning.random_search`: each trial draws its settings from `space`, and has
  half of that. The score of a trial is how near the pairs of columns, and with
  a target the triples with it, of its rows are to those of the table: the mean
  total variation distance of their marginals in these bins, with noise
  (`mechanisms.noisy_total_variation`). So a search pays where no settings are
  known that would do at less than half of epsilon.

  Until the model is complete, the ledger and the secret of the noise are in
  `model_dir + '.partial'`. A search that was interrupted is charged, and cannot
  go on; another one begins with `overwrite`, and its model has the ledgers of
  both.

  Args:
    table: the private rows, see `TabularSynthesizer.fit`.
    schema: `TableSchema`, without marks and without a privacy unit.
    model_dir: the folder to write.
    space: see `tuning.random_search`; names are those of hyper-parameters of
      the model, and `model`. At most 1,000 settings in all.
    epsilon: of the whole search.
    delta: of the whole search.
    mean_trials: mean number of trials, 1 or more.
    overwrite: whether to replace a model that exists, and to drop unfinished
      work. The ledgers of both are kept.
    progress: whether to show progress. The number of trials is not covered by
      the guarantee, and seen in it.
    **kwargs: further arguments of `TabularSynthesizer`, for all trials.

  Returns:
    The best `TabularSynthesizer`, as loaded from `model_dir`. Its ledger and
    statement are those of the search.

  Raises:
    ValueError: for settings that no model has, an accountant that does not take
      the charge, a schema of a draft or with a privacy unit, a table of one
      column, the scope of a `tf.distribute` strategy, or what
      `TabularSynthesizer.fit` refuses.
    FileExistsError: if the model or unfinished work exists, without
      `overwrite`.
    BudgetExceededError: if the budget of a trial is too small to do anything.

  #### Formal guarantee

  The bins are one Gaussian mechanism within a tenth of epsilon and delta, the
  best trial is that of a `tuning.random_search` within the rest, see there, and
  both together are charged as `EpsilonDeltaDpEvent(epsilon, delta)` (basic
  composition). A trial's fit and score are in a ledger of the trial, which
  refuses more than its part. What is in the folder is a function of the best
  trial alone, and does not tell how many there were. What is not covered is
  what shows that, such as progress and the time that the search took: the
  ledger has that of the charge, and the files have that of their writing.

  #### Example

  >>> import os, tempfile
  >>> import numpy as np, pandas as pd
  >>> from tfdpflows.tabular import Field, TableSchema, tune_to_directory
  >>> schema = TableSchema([
  ...   Field('sex', 'string', enum=('f', 'm'), required=True),
  ...   Field('over_40', 'boolean', required=True),
  ... ])
  >>> rng = np.random.default_rng(0)
  >>> table = pd.DataFrame({
  ...   'sex': rng.choice(['f', 'm'], 1000), 'over_40': rng.random(1000) < .5})
  >>> best = tune_to_directory(
  ...   table, schema, os.path.join(tempfile.mkdtemp(), 'model'),
  ...   space={'epochs': [1, 2]}, epsilon=2., delta=1e-5, mean_trials=1.,
  ...   progress=False)
  >>> best.ledger.epsilon() <= 2., best.model.epochs in (1, 2)
  (True, True)
  """
  settings = {'epsilon': epsilon, 'delta': delta, **kwargs}
  check_search(schema, space, mean_trials, settings)
  whole = TabularSynthesizer(schema, **settings)
  model_dir = os.path.normpath(model_dir)
  work_dir = f'{model_dir}.partial'
  model_directory.bring_back(model_dir, work_dir)
  model_directory.check_target(model_dir, overwrite)
  rows = whole._read(table, work_dir, resume=False, overwrite=overwrite)
  try:
    if isinstance(rows, pd.DataFrame):
      rows = schema.validate(rows, whole.out_of_range)
    whole._check_examples(len(rows))
    whole.model, whole.num_examples = whole._model_for(len(rows)), len(rows)
    _check_settings(space, schema, settings, len(rows))
    trials = _share(whole.budget, _TRIALS_SHARE)
    one = trial_budget(trials.epsilon, trials.delta, mean_trials)
    fit = _share(one, _FIT_SHARE)
    _check_budget(space, schema, settings, len(rows), fit)
    work = whole._work_directory(
      work_dir, rows, resume=False, overwrite=overwrite, search=True
    )
  except BaseException:
    if isinstance(rows, code_store.CodeStore):
      rows.discard(work_dir)
    raise
  with work.ledger:
    if isinstance(rows, code_store.CodeStore):
      rows.move(os.path.join(work_dir, code_store.ROWS))
    charge_search(work.ledger, epsilon, delta, _LABEL, work.randomness)
    search = _Search(rows, schema, settings, progress)
    bins = _share(whole.budget, 1 - _TRIALS_SHARE)
    search.find_bins(bins, whole.accountant, work.randomness)
    best = tuning.random_search(
      search.fit,
      space,
      epsilon=trials.epsilon,
      delta=trials.delta,
      ledger=accounting.PrivacyLedger(
        budget=trials, accountant=whole.accountant
      ),
      mean_trials=mean_trials,
      accountant=whole.accountant,
      randomness=work.randomness,
      label=_TRIALS,
    )
    best.result._warn_of_clipped()  # Not of others, which are not released.
    best.result._take_search(work, whole, _NOTE.format(mean_trials))
    with model_directory.written_aside(
      model_dir, overwrite, workspace=work_dir
    ) as folder:
      best.result._write(folder)
    logging.info(
      'Search: done. Epsilon is %s. Settings: %s. Model: %s.',
      round_up(work.ledger.epsilon(), 3),
      best.hyperparameters,
      model_dir,
    )
  work_directory.remove(work_dir)
  return TabularSynthesizer.load(model_dir)


def check_search(
  schema: TableSchema,
  space: Any,
  mean_trials: float,
  settings: dict[str, Any],
) -> None:
  """Refuses a `tune_to_directory` that cannot be, before any row is read.

  `settings` are arguments of `TabularSynthesizer` that all trials have in
  common.

  Raises:
    ValueError: naming what to change.
  """
  if schema.is_draft or settings.get('bounds_epsilon') is not None:
    raise ValueError(
      'A search takes no draft schema: each trial would pay for private bounds '
      'again. State types and ranges from public knowledge, or find them once '
      'with `mechanisms.private_bounds`.'
    )
  if (
    schema.privacy_unit is not None or settings.get('privacy_unit') is not None
  ):
    raise ValueError(
      'A search protects rows, and there is a privacy unit: fit with settings '
      'that are known, or use `tuning.random_search` with a score of your own.'
    )
  if len(TableEncoder(schema).columns) < 2:
    raise ValueError(
      'The table has one column, whose histogram is all there is to learn: fit '
      'it without a search.'
    )
  if workers.is_in_scope():
    raise ValueError(
      'A search runs in one process: call it outside of the strategy.'
    )
  accountant = settings.get('accountant', 'pld')
  checked_space(space, mean_trials, accountant=accountant)
  _check_settings(space, schema, settings, num_rows=1)
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(
      epsilon=settings['epsilon'], delta=settings['delta']
    ),
    accountant=accountant,
  )
  try:
    ledger.charge(EpsilonDeltaDpEvent(settings['epsilon'], settings['delta']))
  except (accounting.BudgetExceededError, dp_accounting.UnsupportedEventError):
    raise ValueError(
      f'The accountant {accountant!r} counts a search as more than it costs. '
      "Use 'pld' or 'rdp'."
    ) from None


def _share(budget, share):
  return accounting.PrivacyBudget(
    epsilon=share * budget.epsilon, delta=share * budget.delta
  )


def _check_settings(space, schema, settings, num_rows):
  """Refuses settings that no model has, and too many."""
  if isinstance(space, Mapping):
    number = math.prod(len(values) for values in space.values())
    found = (
      dict(zip(space, values)) for values in itertools.product(*space.values())
    )
  else:
    number, found = len(space), iter(space)
  if number > _MOST_SETTINGS:
    raise ValueError(
      f'space has {number} settings in all; give {_MOST_SETTINGS} at most.'
    )
  for setting in found:
    _check_names(setting, settings)
    _synthesizer(schema, settings, setting)._model_for(num_rows)


def _check_names(setting, settings):
  """Refuses names that are no hyper-parameters of the model of a setting."""
  name = setting.get('model', settings.get('model', 'histogram'))
  if not isinstance(name, str):
    raise ValueError(f'space has the model {name!r}; give the name of one.')
  fields = dataclasses.fields(models.model_class(name))
  known = {'model', *(field.name for field in fields)} - {'target'}
  unknown = sorted(set(setting) - known)
  if unknown:
    raise ValueError(
      f'space has {unknown[0]!r}, which is no hyper-parameter of the model '
      f'{name!r} to choose. It has {sorted(known)}.'
    )


def _check_budget(space, schema, settings, num_rows, budget):
  """Refuses values with which no trial could be paid for.

  Each value by itself: all settings together would take long.
  """
  found = space
  if isinstance(space, Mapping):
    found = [{name: v} for name, values in space.items() for v in values]
  for setting in found:
    synthesizer = _synthesizer(schema, settings, setting)
    fitting.split_budget(
      schema,
      num_rows,
      synthesizer._model_for(num_rows),
      budget=budget,
      bounds_epsilon=None,
      accountant=synthesizer.accountant,
    )


def _synthesizer(schema, settings, setting):
  return TabularSynthesizer(schema, **{**settings, **setting})


class _Search:
  """The trials of a search over the same rows."""

  def __init__(self, rows, schema, settings, progress):
    self._rows, self._schema, self._settings = rows, schema, settings
    self._progress = progress
    self._encoder = TableEncoder(schema)
    codes = rows
    if not isinstance(rows, StoredRows):
      codes = self._encoder.encode(rows)
    self._codes, self._cuts, self._binned = codes, None, None

  def find_bins(self, budget, accountant, randomness):
    """Finds the bins of the score, the same ones for all trials.

    Of its own bins a trial with few and large ones would be the nearest to the
    table.
    """
    columns = self._encoder.columns
    histograms = mechanisms.noisy_histograms(
      self._codes,
      columns,
      accounting.calibrate_noise_multiplier(
        dp_accounting.GaussianDpEvent, budget, accountant=accountant
      ),
      randomness,
      accounting.PrivacyLedger(budget=budget, accountant=accountant),
      label=_BINS,
    )
    self._cuts = [
      search_edges(
        np.take(h.edges, kept_edges(column, h.probabilities(), _NUM_BINS)),
        column,
      )
      for column, h in zip(columns, histograms)
    ]
    sizes = [len(cut) + 1 for cut in self._cuts]
    self._binned = marginals.BinnedRows(self._bins(self._codes), sizes)

  def fit(self, trial):
    """Fits and scores with the settings of a trial."""
    seed = None
    if trial.randomness.seeded:
      seed = int.from_bytes(trial.randomness.key('fit')[:4], 'big')
    budget = _share(trial.budget, _FIT_SHARE)
    synthesizer = _synthesizer(
      self._schema,
      self._settings,
      {
        **trial.hyperparameters,
        'epsilon': budget.epsilon,
        'delta': budget.delta,
        # That was settled for the search, whose delta is larger.
        'allow_large_delta': True,
        'seed': seed,
      },
    )
    with warnings.catch_warnings():
      warnings.filterwarnings('ignore', message='delta is ')
      synthesizer._fit(self._rows, None, False, self._progress)
    for entry in synthesizer.ledger.entries:
      trial.ledger.charge(
        entry.event, entry.count, label=entry.label, seeded=seed is not None
      )
    return synthesizer, -self._distance(synthesizer._fitted.distribution, trial)

  def _bins(self, codes):
    return bins_of(codes, self._cuts, [c.cell for c in self._encoder.columns])

  def _distance(self, distribution, trial):
    """The noisy distance of the marginals, charged to the trial."""
    sizes = self._binned.sizes
    target = number_of(self._encoder.columns, self._settings.get('target'))
    groups = _groups(sizes, target)
    # The same rows for the same model.
    rng = np.random.default_rng(0)
    parts = map(self._bins, distribution.sample_blocks(_ROWS, rng))
    model = np.concatenate(list(parts))
    return mechanisms.noisy_total_variation(
      self._binned,
      sizes,
      groups,
      [marginals.count(model, sizes, group) / len(model) for group in groups],
      noise_multiplier=accounting.calibrate_noise_multiplier(
        dp_accounting.GaussianDpEvent,
        trial.budget,
        spent=trial.ledger.event,
        accountant=trial.ledger.accountant,
      ),
      ledger=trial.ledger,
      randomness=trial.randomness,
      label='score',
    )


def _groups(sizes, target):
  """Returns the groups of columns that are scored: all, or some at random."""
  candidates = Candidates(sizes, target)
  numbers = np.arange(len(candidates))
  if len(numbers) > _MOST_GROUPS:
    # The same for all trials.
    rng = np.random.default_rng(0)
    numbers = np.sort(rng.choice(numbers, _MOST_GROUPS, replace=False))
  return candidates.some(numbers)
