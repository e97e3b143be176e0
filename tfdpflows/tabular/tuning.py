"""A search for the hyper-parameters of a table's model, paid for as a whole."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dp_accounting
import numpy as np
import pandas as pd
from absl import logging

from tfdpflows import accounting, mechanisms, tuning
from tfdpflows.mechanisms import marginals
from tfdpflows.mechanisms.histograms import search_edges
from tfdpflows.stored_rows import MappedRows, StoredRows
from tfdpflows.tabular import code_store, model_directory, work_directory
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.models.adaptive_marginals import Candidates
from tfdpflows.tabular.models.histogram import kept_edges
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.synthesizer import TabularSynthesizer
from tfdpflows.tuning.search import checked_space

if TYPE_CHECKING:
  from tfdpflows.tabular.density import TableDistribution

_LABEL = 'tuning'
# Share of a trial's epsilon and delta that is its fit's; the rest is its
# score's. As squared signal-to-noise ratios add up, that has a tenth.
_FIT_SHARE = 0.95
# The score: bins of a column, groups of columns, and rows that are drawn.
_NUM_BINS, _MOST_GROUPS, _ROWS = 8, 4096, 1 << 17
_NOTE = (
  'Search: this model is the best of a random number of trials with other '
  'hyper-parameters, {:g} on average; the epsilon above is that of the whole '
  'search. The number of trials, what shows it (time, progress), and the other '
  'trials are outside of this guarantee.'
)
# What all trials of a search have in common.
_FIXED = frozenset(
  [
    *('epsilon', 'delta', 'bounds_epsilon', 'accountant', 'allow_large_delta'),
    *('out_of_range', 'privacy_unit', 'max_rows_per_unit', 'max_rows_epsilon'),
    *('unit_weighting', 'seed', 'target', 'schema'),
  ]
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

  It is `tuning.random_search`: each trial draws its settings from `space`, and
  has half of epsilon. The score of a trial is how near the pairs of its
  columns, and with a target the triples with it, are to those of the rows: the
  mean total variation distance of their marginals in eight bins a column, with
  noise (`mechanisms.noisy_total_variation`). A search is worth its cost where
  no settings are known that would do at half of epsilon; those that
  `TabularSynthesizer` takes by itself hardly ever are worse than that.

  Until the model is complete, the ledger and the secret of the noise are in
  `model_dir + '.partial'`. A search that was interrupted is charged; another
  one begins with `overwrite`, and its model has the ledgers of both.

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
    ValueError: for settings that no model has, a schema of a draft or with a
      privacy unit, a table of one column, or what `TabularSynthesizer.fit`
      refuses.
    FileExistsError: if the model or unfinished work exists, without
      `overwrite`.
    BudgetExceededError: if the budget of a trial is too small to do anything.

  #### Formal guarantee

  The model is the best trial of `tuning.random_search`, see there; a trial's
  fit and score are in the ledger of the trial, which refuses more than its
  share. What is not covered is there too: progress, and the time it took.

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
  if schema.is_draft or kwargs.get('bounds_epsilon') is not None:
    raise ValueError(
      'A search takes no draft schema: each trial would pay for private bounds '
      'again. State types and ranges from public knowledge, or find them once '
      'with `mechanisms.private_bounds`.'
    )
  if schema.privacy_unit is not None or kwargs.get('privacy_unit') is not None:
    raise ValueError(
      'A search protects rows, and there is a privacy unit: fit with settings '
      'that are known, or use `tuning.random_search` with a score of your own.'
    )
  if len(TableEncoder(schema).columns) < 2:
    raise ValueError(
      'The table has one column, whose histogram is all there is to learn: fit '
      'it without a search.'
    )
  settings = {'epsilon': epsilon, 'delta': delta, **kwargs}
  whole = TabularSynthesizer(schema, **settings)
  model_dir = os.path.normpath(model_dir)
  work_dir = f'{model_dir}.partial'
  model_directory.bring_back(model_dir, work_dir)
  model_directory.check_target(model_dir, overwrite)
  rows = whole._read(table, work_dir, resume=False, overwrite=overwrite)
  try:
    if isinstance(rows, pd.DataFrame):
      rows = schema.validate(rows, whole.out_of_range)
    whole._check_delta(len(rows), 'row')
    checked_space(space, mean_trials, accountant=whole.accountant)
    _check_settings(space, schema, settings, len(rows))
    work = work_directory.WorkDirectory(
      work_dir,
      resume=False,
      settings={**whole._settings(), 'num_rows': len(rows)},
      table=rows,
      seed=whole.seed,
      budget=whole.budget,
      accountant=whole.accountant,
      overwrite=overwrite,
    )
  except ValueError:
    if isinstance(rows, code_store.CodeStore):
      rows.discard(work_dir)
    raise
  with work.ledger:
    if isinstance(rows, code_store.CodeStore):
      rows.move(os.path.join(work_dir, code_store.ROWS))
    search = _Search(rows, schema, settings, progress)
    best = tuning.random_search(
      search.fit,
      space,
      epsilon=epsilon,
      delta=delta,
      ledger=work.ledger,
      mean_trials=mean_trials,
      accountant=whole.accountant,
      randomness=work.randomness,
      label=_LABEL,
    )
    best.result._take_search(work, whole, _NOTE.format(mean_trials))
    with model_directory.written_aside(
      model_dir, overwrite, workspace=work_dir
    ) as folder:
      best.result._write(folder)
    logging.info(
      'Search: done. Epsilon is %.3g. Settings: %s. Model: %s.',
      work.ledger.epsilon(),
      best.hyperparameters,
      model_dir,
    )
  work_directory.remove(work_dir)
  return TabularSynthesizer.load(model_dir)


def _check_settings(space, schema, settings, num_rows):
  """Refuses settings that no model has, before anything is charged."""
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
    fixed = sorted(_FIXED & set(setting))
    if fixed:
      raise ValueError(
        f'space has {fixed[0]!r}, which all trials have in common: give it as '
        'an argument.'
      )
    TabularSynthesizer(schema, **{**settings, **setting})._model_for(num_rows)


class _Search:
  """The trials of a search over the same rows."""

  def __init__(self, rows, schema, settings, progress):
    self._rows, self._schema, self._settings = rows, schema, settings
    self._progress = progress
    self._encoder = TableEncoder(schema)
    self._codes = rows
    if not isinstance(rows, StoredRows):
      self._codes = self._encoder.encode(rows)

  def fit(self, trial: tuning.Trial) -> tuple[TabularSynthesizer, float]:
    """Fits and scores with the settings of a trial."""
    seed = None
    if trial.randomness.seeded:
      seed = int.from_bytes(trial.randomness.key('fit')[:4], 'big')
    synthesizer = TabularSynthesizer(
      self._schema,
      **{
        **self._settings,
        **trial.hyperparameters,
        'epsilon': _FIT_SHARE * trial.budget.epsilon,
        'delta': _FIT_SHARE * trial.budget.delta,
        # That was settled for the search, whose delta is larger.
        'allow_large_delta': True,
        'seed': seed,
      },
    )
    synthesizer._fit(self._rows, None, False, self._progress)
    for entry in synthesizer.ledger.entries:
      trial.ledger.charge(
        entry.event, entry.count, label=entry.label, seeded=seed is not None
      )
    return synthesizer, -self._distance(synthesizer, trial)

  def _distance(self, synthesizer, trial):
    """Returns the noisy distance of the marginals, charged to the trial."""
    columns = self._encoder.columns
    cuts = [
      search_edges(
        np.take(m['edges'], kept_edges(column, m['probabilities'], _NUM_BINS)),
        column,
      )
      for column, m in zip(columns, synthesizer._marginals)
    ]
    sizes = [len(cut) + 1 for cut in cuts]
    groups = _groups(sizes, self._target())
    model = _model_bins(synthesizer._distribution, cuts)
    return mechanisms.noisy_total_variation(
      _bins(self._codes, cuts),
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

  def _target(self):
    """Returns the number of the column with the target, or `None`."""
    target = self._settings.get('target')
    if target is None:
      return None
    return [target in column.fields for column in self._encoder.columns].index(
      True
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


def _bins(codes, cuts):
  """Returns the bins of codes, in memory or `StoredRows`."""

  def bins(x):
    found = np.empty(x.shape, np.uint16, order='F')
    for j, cut in enumerate(cuts):
      column = x[:, j].astype(np.float64)
      found[:, j] = np.searchsorted(cut, column, side='right')
    return found

  if isinstance(codes, StoredRows):
    return MappedRows(codes, bins, cuts)
  return bins(codes)


def _model_bins(distribution: TableDistribution, cuts: list) -> np.ndarray:
  """Returns the bins of rows of a model, the same ones for the same model."""
  rng = np.random.default_rng(0)
  parts = [_bins(x, cuts) for x in distribution.sample_blocks(_ROWS, rng)]
  return np.concatenate(parts)
