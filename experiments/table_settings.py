"""What binaries share that compare settings of the synthesizer on one table.

A binary names its settings and draws what came of them; fitting, scoring, the
file of results and the flags are here.
"""

from __future__ import annotations

import os

from absl import flags, logging

from experiments import (
  datasets,
  flag_values,
  synthesis_scores,
  tabular_synthesis,
)
from experiments.results_file import ResultsFile
from tfdpflows import tabular
from tfdpflows._keras import keras
from tfdpflows.tabular.schema import TableSchema

KEYS = ('setting', 'epsilon', 'seed')
# Stands for the target of the data set, whichever it is.
TARGET = 'the target'
# How the scores are called where people read them.
LABELS = {
  'macro_f1': 'macro-F1',
  'auroc': 'AUROC',
  'average_precision': 'average precision',
}
_SMOKE_ROWS, _SMOKE_COLUMNS = 600, 4
_SMOKE = {
  'epochs': 1.0,
  'hidden_units': (8,),
  'num_bins': 4,
  'accountant': 'rdp',
}
_SMOKE_FLOW = {'num_blocks': 1, **_SMOKE}
_SMOKE_HISTOGRAM = {'adaptive_marginals': 0, **_SMOKE}


def run(
  settings,
  dataset='adult',
  *,
  epsilons=(1.0,),
  seeds=(0,),
  delta=1e-5,
  output=None,
  smoke=False,
  look=None,
  only=None,
):
  """Fits, samples and scores settings over epsilons and seeds.

  Args:
    settings: dict by name of arguments of `TabularSynthesizer`, with `TARGET`
      for the column that classifiers predict.
    dataset: one of `datasets.DATASETS`.
    epsilons: privacy budgets.
    seeds: of the fits.
    delta: of all budgets.
    output: JSON file that is written after every run, and gone on with; or
      `None`.
    smoke: whether to fit the first and the last of the settings only, with 600
      rows of five columns, tiny models and three classifiers, to see that all
      parts work together; the numbers then mean little.
    look: function of the setting's name, the held-out rows, the synthetic ones
      and the schema, that returns a dict for the run; or `None`. With it, runs
      that `output` holds are made again.
    only: names of the settings to fit now, or `None` for all.

  Returns:
    A JSON-able dict: the `settings`, and `runs` as those of
    `tabular_synthesis.run`, each with its `setting`.

  Raises:
    FileNotFoundError: if the data set needs the shared folder.
    ValueError: if `output` holds other runs, or `only` names no setting.
  """
  unknown = sorted(set(only or ()) - set(settings))
  if unknown:
    raise ValueError(
      f'No setting {unknown[0]!r}. Choose among {list(settings)}.'
    )
  train, holdout, schema, target = datasets.load(dataset)
  if smoke:
    chosen = [name for name in settings if not only or name in only]
    settings = {name: settings[name] for name in (chosen[0], chosen[-1])}
    others = [field for field in schema if field.name != target]
    schema = TableSchema([*others[:_SMOKE_COLUMNS], schema[target]])
    train, holdout = (
      table[list(schema.names)].sample(_SMOKE_ROWS, random_state=0)
      for table in (train, holdout)
    )
  train = schema.validate(train)
  holdout = schema.validate(holdout, fitting=False)
  scorer = synthesis_scores.Scorer(dataset, holdout, schema, target, smoke)
  header = {
    'dataset': dataset,
    'settings': settings,
    'delta': delta,
    'smoke': smoke,
    'target': target,
    'train_rows': len(train),
    'holdout_rows': len(holdout),
    'classifiers': scorer.classifiers,
    'cpus': os.cpu_count(),
  }
  results = ResultsFile(output, header, KEYS)
  for epsilon in epsilons:
    for seed in seeds:
      for name, arguments in settings.items():
        key = {'setting': name, 'epsilon': epsilon, 'seed': seed}
        if only and name not in only:
          continue
        if results.has(**key) and look is None:
          continue
        given = {k: target if v == TARGET else v for k, v in arguments.items()}
        if smoke:
          flow = given.get('model') in ('hflow', 'spline')
          given.update(_SMOKE_FLOW if flow else _SMOKE_HISTOGRAM)
        synthesizer = tabular.TabularSynthesizer(
          schema,
          epsilon=epsilon,
          delta=delta,
          allow_large_delta=True,
          seed=seed,
          **given,
        )
        found, rows = tabular_synthesis.one_run(
          synthesizer, train, scorer, seed
        )
        if look is not None:
          found.update(look(name, holdout, rows, schema))
        results.add({**key, **found})
        logging.info('%s: %s', key, found['scores'])
        keras.backend.clear_session()
  return results.content


def runs_of(results, setting, epsilon):
  """Returns the runs of a setting at an epsilon, one for each seed.

  #### Example

  >>> runs = [{'setting': 'a', 'epsilon': 1.0, 'seed': seed} for seed in (0, 1)]
  >>> [run['seed'] for run in runs_of({'runs': runs}, 'a', 1.0)]
  [0, 1]
  """
  return [
    run
    for run in results['runs']
    if run['setting'] == setting and run['epsilon'] == epsilon
  ]


def mean_and_spread(results, setting, epsilon, of):
  """Returns mean and standard deviation of a number over the seeds.

  Args:
    results: what `run` returned.
    setting: name.
    epsilon: budget.
    of: function of a run that returns the number; runs without one, `None`,
      are left out.

  Returns:
    Two floats; the second is 0 for one seed. `None` if there is no such run.

  #### Example

  >>> runs = [{'setting': 'a', 'epsilon': 1., 'seed': s, 'n': n}
  ...         for s, n in ((0, 1.), (1, 3.))]
  >>> mean_and_spread({'runs': runs}, 'a', 1., lambda run: run['n'])
  (2.0, 1.4142135623730951)
  """
  numbers = [of(run) for run in runs_of(results, setting, epsilon)]
  numbers = [number for number in numbers if number is not None]
  if not numbers:
    return None
  mean = sum(numbers) / len(numbers)
  spread = sum((n - mean) ** 2 for n in numbers) / max(len(numbers) - 1, 1)
  return mean, spread**0.5


def main(argv, run, draw=None, **arguments):
  """Runs what the flags ask for, draws it and prints the scores.

  Args:
    argv: what absl left of the command line.
    run: function of `dataset`, `epsilons`, `seeds`, `output` and `smoke`.
    draw: function of what it returns, that returns a `Figure`; or `None`.
    **arguments: more of `run`.
  """
  options = flag_values.read(argv)
  if options.only:
    arguments['only'] = options.only
  try:
    results = run(
      dataset=options.dataset,
      epsilons=[float(epsilon) for epsilon in options.epsilon],
      seeds=[int(seed) for seed in options.seeds],
      output=options.output,
      smoke=options.smoke,
      **arguments,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  if draw and options.figure:
    draw(results).savefig(options.figure, dpi=80)
  for found in results['runs']:
    scores = ', '.join(
      f'{LABELS[k]} {v:.3f}' for k, v in found['scores'].items()
    )
    print(
      f'{found["setting"]}, epsilon {found["epsilon"]:g}, seed '
      f'{found["seed"]}: {scores}, {found["log_likelihood"]:.2f} nats, fit in '
      f'{found["seconds"]["fit"]:.0f} s'
    )


def define_flags(epsilons=(1.0,)):
  """Defines the flags that these binaries have."""
  flags.DEFINE_enum('dataset', 'adult', datasets.DATASETS, 'Data set.')
  flags.DEFINE_list('epsilon', list(map(str, epsilons)), 'Budgets.')
  flags.DEFINE_list('seeds', ['0', '1'], 'Seeds, comma-separated.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_string('figure', None, 'PNG file to write.')
  flags.DEFINE_multi_string('only', None, 'A setting; all, unless named here.')
  flags.DEFINE_bool('smoke', False, 'A quick run on few rows.')
