"""`tfdpflows fit`: from a table and a schema to a private model."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import tempfile

from tfdpflows.cli import cluster, files, quiet
from tfdpflows.cli.command import Command, UsageError
from tfdpflows.cli.schema import describe_field
from tfdpflows.tabular.models import MODELS

_MEAN_TRIALS = 10.0
_VALUES_EXAMPLE = (
  'Give values by name, such as --hyperparameters=\'{"epochs": 16}\'.'
)
_TUNE_EXAMPLE = (
  'Give the values of hyper-parameters, such as '
  '--tune=\'{"num_bins": [8, 16], "epochs": [16, 64]}\'.'
)

# Flags that are arguments of the same name.
_COMMON = """
  epsilon delta model target out_of_range accountant allow_large_delta seed
"""
_OF_ONE_FIT = """
  bounds_epsilon privacy_unit max_rows_per_unit max_rows_epsilon unit_weighting
"""

# At 10, 50 % for whether a row is in the table may become 99.995 %.
_LARGEST_USUAL = 10


def _define(options):
  options.section('Data')
  files.add_rows(
    options,
    'input',
    'The private rows: {} A row is the unit of privacy, unless there is a '
    '--privacy_unit.',
  )
  options.text(
    'schema',
    'JSON file with the columns, as `tfdpflows schema` drafts it.',
    metavar='FILE',
    required=True,
  )
  files.add_out_of_range(options)
  options.section('Privacy')
  options.number(
    'epsilon',
    'Largest epsilon of all mechanisms of the fit together, above 0.',
    required=True,
  )
  options.number(
    'delta',
    'Delta of the guarantee: nobody learns more than if everything were '
    'published with this probability, and epsilon held else. Well below one '
    'over the number of rows.',
    required=True,
  )
  options.switch(
    'allow_large_delta',
    'Warn of a delta that is not below one over the number of rows, or of '
    'people, and fit nonetheless. Publishing one row in full would be as '
    'private as that.',
  )
  options.number(
    'bounds_epsilon',
    'Epsilon to spend, out of --epsilon, on types, ranges and categories that '
    'the schema marks "fromData", such as 0.1. Without it such a schema is '
    'refused. 0.1 is enough for 20 columns of 20,000 rows; with fewer rows the '
    'fit says how many it needs.',
  )
  options.text(
    'privacy_unit',
    'Column with the identifier of whom to protect, such as person_id: all '
    'rows with one value are protected together. It is not learned. By default '
    'that of the schema, "privacyUnit".',
    metavar='COLUMN',
  )
  options.number(
    'max_rows_per_unit',
    'Largest number of rows of one unit that are used; of units with more, the '
    'others are dropped. Public; needed with a privacy unit.',
    whole=True,
    # As for `sampling.Units`, which is not imported here.
    lower_bound=1,
    upper_bound=1000,
  )
  options.number(
    'max_rows_epsilon',
    'Epsilon to spend, out of --epsilon, on choosing a smaller number of rows '
    'per unit privately.',
  )
  options.choice(
    'unit_weighting',
    ['rows', 'units'],
    'Whether the model is of the rows that are used, or of a random row of a '
    'random unit: that needs less noise, and is unlike the table where units '
    'with many rows are unlike those with few.',
    default='rows',
  )
  options.text(
    'accountant',
    'How epsilon is computed: pld (tight), rdp, or one that you registered.',
    default='pld',
    metavar='NAME',
  )
  options.number(
    'seed',
    'Makes the fit reproducible, for tests and papers. The result is then not '
    'private against anyone who knows the seed.',
    whole=True,
  )
  options.section('Model')
  options.choice(
    'model',
    list(MODELS),
    'What models the dependence between columns: conditional histograms, '
    'splines whose blocks have networks of their own, DP-HFlow; or, for rows '
    'but no densities, DP-GAN or PATE-GAN.',
    default='histogram',
  )
  options.text(
    'target',
    'Column that the rows are to predict from the others, if there is one: '
    'more of the budget goes to it. For --model=histogram.',
    metavar='COLUMN',
  )
  options.text(
    'hyperparameters',
    'Values in place of the defaults of the model, which depend on the numbers '
    'of rows and columns and on epsilon: JSON such as \'{"epochs": 16, '
    '"num_bins": 8}\'. --dry_run shows all.',
    metavar='JSON',
  )
  options.text(
    'tune',
    'Fit with several hyper-parameters and keep the best, privately: JSON with '
    'the values to draw from, such as \'{"num_bins": [8, 16]}\', or a list of '
    'settings to draw from, \'[{"model": "spline"}, {"epochs": 64}]\'. Each '
    'trial has less than half of epsilon, which is worth it where no settings '
    'are known that would do.',
    metavar='JSON',
  )
  options.number(
    'tune_mean_trials',
    'Mean number of trials of --tune, 1 or more; by default 10.',
    lower_bound=1.0,
  )
  options.text(
    'model_dir',
    'Folder to write. Until the model is complete, its files are in '
    'MODEL_DIR.partial.',
    metavar='FOLDER',
    required=True,
  )
  options.switch(
    'overwrite',
    'Replace a model that exists, and drop unfinished work beside it unless '
    '--resume goes on with it.',
  )
  options.switch(
    'resume',
    'Go on with the unfinished work in MODEL_DIR.partial, without charging the '
    'same steps twice.',
  )
  options.switch(
    'dry_run',
    'Read and check the rows, and say what a fit of so many would charge, with '
    'which hyper-parameters, and about how long it takes; then stop. Nothing '
    'is charged or kept, and nothing is said of the rows but their number.',
  )
  options.switch(
    'workers',
    'Train on several machines: the same command is started on each, with '
    'TF_CONFIG, and --input and --model_dir on a disk that all share. Worker 0 '
    'reads the rows and writes the model. Epsilon is that of one machine.',
  )
  options.switch(
    'progress',
    'Show what each phase charges, step, epsilon spent, nats and the time '
    'left: a bar in a terminal, lines of a log elsewhere.',
    default=True,
  )


def _run(values):
  for flag in ('tune', 'resume', 'workers'):
    if values.dry_run and values[flag].value:
      raise UsageError(
        f'--dry_run is for a fit that is begun in one process: leave --{flag} '
        'out.'
      )
  if not values.workers:
    _fit_model(values, None)
    return
  workers = cluster.Cluster.of_environment(os.environ)
  if values.progress:
    quiet.show_info()
  team = workers.team()
  with team.together():
    _fit_model(values, team)
  if not team.is_chief:
    print(
      f'{workers.describe()} is done. The chief, {workers.addresses[0]}, '
      f'writes the model to {values.model_dir}.'
    )


def _fit_model(values, team):
  """Fits and prints; `team` are the workers, `None` for one process."""
  partial = files.partial_dir(values.model_dir)
  # What is there by now may be the chief's.
  chief = team is None or team.is_chief
  if chief:
    _check_folders(values, partial)
  schema, space = _checked(values, chief)
  if values.dry_run:
    _print_plan(schema, values)
    return
  from tfdpflows import accounting
  from tfdpflows.tabular import code_store, work_directory

  before = [work_directory.spent_by(f) for f in (partial, values.model_dir)]
  try:
    synthesizer = _fit(schema, values, partial, team, space)
  except KeyboardInterrupt:
    how = _how_to_go_on(partial, values, before)
    raise KeyboardInterrupt(how or 'Nothing was spent.') from None
  except (OSError, accounting.LedgerError) as error:
    # What is in use is another fit's, and nothing to go on with.
    told = values.resume or any(
      isinstance(e, (FileExistsError, BlockingIOError))
      for e in (error, error.__cause__)
    )
    how = _how_to_go_on(partial, values, before)
    if _has_begun(partial) and how and not told:
      print(how, file=sys.stderr)
    raise
  except Exception:
    if chief:
      # What was read, and no fit has begun with.
      code_store.remove(files.rows_dir(partial))
    how = None if space is None else _how_to_go_on(partial, values, before)
    if how and os.path.isdir(partial):
      print(how, file=sys.stderr)
    raise
  if not chief:
    return
  print(synthesizer.privacy_statement())
  _print_bounds(synthesizer)
  print(f'Wrote the model to {values.model_dir}. Draw rows from it with')
  print(
    f'  tfdpflows sample --model_dir={shlex.quote(values.model_dir)} '
    f'--num_rows={synthesizer.num_examples} --output=synthetic.csv'
  )


def _checked(values, chief):
  """Returns schema and search space, if all can be fitted by the flags."""
  from tfdpflows import accounting
  from tfdpflows.tabular import model_directory
  from tfdpflows.tabular.schema import TableSchema

  if chief and not values.resume:
    model_directory.check_target(values.model_dir, values.overwrite)
  accounting.PrivacyBudget(epsilon=values.epsilon, delta=values.delta)
  accounting.create_accountant(values.accountant)
  if chief and values.epsilon > _LARGEST_USUAL:
    print(
      f'Warning: --epsilon={values.epsilon:g} protects little: values up to '
      f'{_LARGEST_USUAL} are usual.',
      file=sys.stderr,
    )
  schema = TableSchema.from_json(values.schema)
  if values.privacy_unit is not None:
    schema = dataclasses.replace(schema, privacy_unit=values.privacy_unit)
  files.check_target(values.target, schema, values.schema)
  space = _search_space(values)
  if space is not None:
    _check_search(schema, values, space)
  if values.hyperparameters is not None:
    _check_hyperparameters(schema, values)
  _check_marks(schema, values)
  _check_units(schema, values)
  return schema, space


def _print_plan(schema, values):
  """Prints what a fit would charge, of rows that are read and forgotten."""
  place, name = os.path.split(os.path.normpath(values.model_dir))
  with tempfile.TemporaryDirectory(
    prefix=f'{name}.dry_run.', dir=place or os.curdir
  ) as folder:
    table = files.read_private(values, schema, os.path.join(folder, name))
    try:
      with quiet.importing():
        from tfdpflows.tabular.synthesizer import TabularSynthesizer

      synthesizer = TabularSynthesizer(
        schema, **_of_one_fit(values), **_common(values)
      )
      print(synthesizer.plan(synthesizer._count_examples(table)))
    finally:
      _unlock(table)
  print('Nothing was charged. The same command without --dry_run fits.')


def _check_folders(values, partial):
  """Refuses a folder that cannot be written, or not be gone on with."""
  if values.resume and not _has_begun(partial):
    raise UsageError(
      f'There is nothing to resume: {partial} does not exist. Leave --resume '
      'out to start a fit.'
    )
  if not values.resume:
    files.check_place(values.model_dir, values.overwrite)
  if os.path.isdir(partial) and not values.overwrite:
    from tfdpflows.tabular import work_directory

    if work_directory.is_search(partial):
      raise UsageError(work_directory.NO_RESUMING_A_SEARCH.format(partial))
  if os.path.isdir(partial) and not (values.resume or values.overwrite):
    raise UsageError(
      f'{partial} holds a fit that was not finished: go on with it (--resume) '
      'or drop it (--overwrite). What it spent on these rows stays spent.'
    )


def _print_bounds(synthesizer):
  """Prints the domains that were found privately, and what they leave out."""
  found = synthesizer.bounds
  if not found:
    return
  width = max(len(column.name) for column in found)
  print('Found privately, at two standard deviations of the noise:')
  for column in found:
    domain = describe_field(synthesizer.schema[column.name])
    print(f'  {column.name:<{width}}  {domain}: {column}')


def _fit(schema, values, partial, team, space):
  if team is None and space is None:
    table = files.read_private(values, schema, partial)
  else:
    # The chief reads them, and so does a search.
    table = values.input
  try:
    return _fit_table(table, schema, values, team, space)
  finally:
    _unlock(table)


def _unlock(table):
  from tfdpflows.tabular import code_store

  if isinstance(table, code_store.CodeStore):
    table.unlock()


def _fit_table(table, schema, values, team, space):
  with quiet.importing():
    import tensorflow as tf

    from tfdpflows.tabular.synthesizer import fit_to_directory

  if values.progress:
    quiet.show_info()
  # On GPUs it is on by default, and refused by the optimizer.
  tf.config.experimental.enable_tensor_float_32_execution(False)
  if space is not None:
    from tfdpflows.tabular.tuning import tune_to_directory

    return tune_to_directory(
      table,
      schema,
      values.model_dir,
      space=space,
      mean_trials=_mean_trials(values),
      overwrite=values.overwrite,
      progress=values.progress,
      **_common(values),
    )
  return fit_to_directory(
    table,
    schema,
    values.model_dir,
    overwrite=values.overwrite,
    resume=values.resume,
    progress=values.progress,
    team=team,
    **_of_one_fit(values),
    **_common(values),
  )


def _check_marks(schema, values):
  """Refuses a draft schema, unless its private bounds are charged."""
  if not schema.is_draft:
    if values.bounds_epsilon is not None:
      raise UsageError(
        f'--bounds_epsilon pays for what a schema marks "fromData", and '
        f'{values.schema} has no such marks: leave it out.'
      )
    return
  if values.bounds_epsilon is None:
    name, marks = next(iter(schema.draft_marks().items()))
    raise UsageError(
      f'{values.schema} is a draft: column {name!r} marks {", ".join(marks)} '
      'as read off the data. Replace what is marked by what is publicly known '
      'and remove the "fromData" marks, or pay for private bounds with '
      '--bounds_epsilon.'
    )
  if not 0 < values.bounds_epsilon < values.epsilon:
    raise UsageError(
      f'--bounds_epsilon={values.bounds_epsilon:g} must be above 0 and below '
      f'--epsilon={values.epsilon:g}, of which it is a part.'
    )
  if not schema.for_bounds().is_draft:
    raise UsageError(
      f'{values.schema} marks nothing but decimals, which --bounds_epsilon '
      'does not pay for: state them from public knowledge, or remove them, and '
      'leave it out.'
    )


def _check_units(schema, values):
  """Refuses units without a number of rows, and the other way round."""
  if schema.privacy_unit is None:
    for flag in ('max_rows_per_unit', 'max_rows_epsilon'):
      if values[flag].value is not None:
        raise UsageError(
          f'--{flag} is for people, or other units, with several rows: name '
          'the column of their identifier, --privacy_unit=COLUMN.'
        )
  elif values.max_rows_per_unit is None:
    raise UsageError(
      f'The privacy unit is {schema.privacy_unit!r}: give '
      '--max_rows_per_unit, the largest number of rows of one unit that are '
      'used, from public knowledge. --max_rows_epsilon chooses a smaller one '
      'privately.'
    )


def _search_space(values):
  """Returns what `--tune` draws from, `None` without it."""
  if values.tune is None:
    if values.tune_mean_trials is not None:
      raise UsageError(
        '--tune_mean_trials is the number of trials of --tune: give that too, '
        'or leave it out.'
      )
    return None
  for flag, why in (
    ('resume', 'a search that was interrupted begins again, with --overwrite'),
    ('workers', 'a search runs in one process'),
    ('bounds_epsilon', 'each trial would pay for private bounds again'),
    ('hyperparameters', 'give them in --tune, as lists of one value'),
  ):
    if values[flag].value:
      raise UsageError(f'--tune does not go with --{flag}: {why}.')
  space = _from_json('tune', values.tune, _TUNE_EXAMPLE)
  of_lists = isinstance(space, dict) and all(
    isinstance(found, list) for found in space.values()
  )
  of_settings = isinstance(space, list) and all(
    isinstance(found, dict) for found in space
  )
  if not space or not (of_lists or of_settings):
    raise UsageError(
      f'--tune={values.tune} is neither an object of lists nor a list of '
      f'objects. {_TUNE_EXAMPLE}'
    )
  return space


def _from_json(flag, text, example):
  try:
    return json.loads(text, object_pairs_hook=_without_repeats)
  except ValueError as error:
    raise UsageError(f'--{flag} is no JSON ({error}). {example}') from error


def _without_repeats(pairs):
  found = dict(pairs)
  if len(found) < len(pairs):
    names = [name for name, _ in pairs]
    name = next(n for n in names if names.count(n) > 1)
    raise ValueError(f'it names {name!r} twice')
  return found


def _check_search(schema, values, space):
  """Refuses a search that cannot be made, before any row is read."""
  with quiet.importing():
    from tfdpflows.tabular.tuning import check_search

  try:
    check_search(schema, space, _mean_trials(values), _common(values))
  except ValueError as error:
    raise UsageError(f'--tune: {error}') from error


def _hyperparameters(values):
  """Returns the values of `--hyperparameters` by name."""
  if values.hyperparameters is None:
    return {}
  found = _from_json('hyperparameters', values.hyperparameters, _VALUES_EXAMPLE)
  if not isinstance(found, dict):
    raise UsageError(
      f'--hyperparameters={values.hyperparameters} is no JSON object. '
      f'{_VALUES_EXAMPLE}'
    )
  if 'target' in found:
    raise UsageError('--hyperparameters: the target has a flag, --target.')
  return found


def _check_hyperparameters(schema, values):
  """Refuses what the model does not have, before any row is read."""
  found = _hyperparameters(values)
  with quiet.importing():
    from tfdpflows.tabular.encoding import num_columns
    from tfdpflows.tabular.models import model_class

    model = model_class(values.model)
  try:
    model.for_table(1, num_columns(schema), **found)
  except ValueError as error:
    raise UsageError(f'--hyperparameters: {error}') from error


def _mean_trials(values):
  if values.tune_mean_trials is None:
    return _MEAN_TRIALS
  return values.tune_mean_trials


def _of_one_fit(values):
  """Arguments of fits that a search does not have."""
  found = {name: values[name].value for name in _OF_ONE_FIT.split()}
  return {**found, **_hyperparameters(values)}


def _common(values):
  """Arguments of fits that are those of a search too."""
  return {name: values[name].value for name in _COMMON.split()}


def _how_to_go_on(partial, values, before):
  """Returns what to do with what is there; nothing, if it is not of this run.

  `before` names the fits whose ledgers were in `partial` and in the model's
  folder before this run.
  """
  from tfdpflows.tabular import work_directory

  if work_directory.spent_by(values.model_dir) not in (None, before[1]):
    rest = f'; remove {partial}' if os.path.isdir(partial) else ''
    return f'The model in {values.model_dir} is complete{rest}.'
  if values.tune is None or not os.path.isdir(partial):
    return _how_to_resume(partial)
  if work_directory.spent_by(partial) == before[0]:
    return None
  return (
    f'The search is charged, in the ledger in {partial}, and cannot go on: '
    'another one begins with --overwrite. What both spent on these rows counts.'
  )


def _has_begun(partial):
  """Whether there is unfinished work, or rows that were read for it."""
  return any(map(os.path.isdir, (partial, files.rows_dir(partial))))


def _how_to_resume(partial):
  if not _has_begun(partial):
    return 'Nothing was written and nothing was spent.'
  if not os.path.isdir(partial):
    return (
      f'Nothing was spent. The rows that were read are in '
      f'{files.rows_dir(partial)}: run the same command again to read on, or '
      'remove them.'
    )
  return (
    f'Unfinished work and the ledger of what was spent are in {partial}: run '
    'the same command with --resume to go on without charging it twice.'
  )


COMMAND = Command(
  name='fit',
  summary='Learn a private model of a table',
  description="""
    Learns the joint density of the columns. The whole fit is differentially
    private at (epsilon, delta), for tables that differ in one row, or in all
    rows of one person with --privacy_unit. The privacy statement that it prints
    is kept with the model. Errors that name a row are not covered: with
    --out_of_range=clip there are none.

    A fit that was interrupted goes on with --resume.
  """,
  example="""
    tfdpflows fit --input=people.csv --schema=schema.json --epsilon=1 \\
      --delta=1e-5 --model_dir=model
  """,
  define=_define,
  run=_run,
)
