r"""Utility of private synthetic tables: train on synthetic rows, test on real.

For every epsilon and seed, fits a `TabularSynthesizer` on the training part of
a table, samples as many rows, trains nine classifiers on them, and scores them
on real rows that were held out. Writes one JSON file, again after every run:

    python -m experiments.tabular_synthesis --dataset=randhie --epsilon=1 \
      --seeds=0,1,2 --output=/tmp/randhie.json

Seeds make the results reproducible and therefore not private; fit without one
to release a table.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import time

import numpy as np
from absl import app, flags, logging

from experiments import datasets, flag_values, synthesis_scores
from experiments.results_file import grouped
from experiments.run_record import command_line, versions, write_json

_GANS = ('dpgan', 'pategan')
_BASELINES = ('dp_merf', 'dp_cgan', 'gs_wgan')
METHODS = ('flow', *_GANS, *_BASELINES, 'mst', 'aim', 'privbayes', 'ctgan')
_SMOKE_ROWS = 1000


def run(
  dataset,
  *,
  epsilons=(1.0,),
  seeds=(0,),
  delta=1e-5,
  output=None,
  overwrite=False,
  smoke=False,
  real_baseline=False,
  hyperparameters=None,
  synthesizer_class=None,
  command=None,
  method='flow',
  resume=False,
  figure=None,
):
  """Fits, samples and scores over epsilons and seeds.

  Args:
    dataset: One of `datasets.DATASETS`.
    epsilons: Privacy budgets.
    seeds: Seeds of the fits; one run for each at every epsilon.
    delta: Delta of all budgets.
    output: JSON file to write after every run, or `None`.
    overwrite: Whether an existing `output` may be replaced.
    smoke: Whether to use 1,000 rows and three classifiers, to see that all
      parts work together; the scores then mean little.
    real_baseline: Whether to train the classifiers on the real rows as well.
    hyperparameters: Dict of further arguments of the synthesizer; the
      library's defaults are used for the rest.
    synthesizer_class: Class to use instead of that of `method`.
    command: Command line to note in the results.
    method: One of `METHODS`: our flow, a model of ours without a density, a
      baseline, or a peer in its own environment.
    resume: Whether to keep the runs that `output` has, and go on after them.
    figure: PNG file for histograms of the columns of the last run over those
      of the held-out rows, or `None`.

  Returns:
    A JSON-able dict: `runs` has an entry for each epsilon and seed with the
    epsilon spent (`None` without privacy), scores, distances to the held-out
    rows, what the rows are worth for other tasks, the mean log-density of
    held-out rows in nats, wall times in seconds and the most memory held up to
    the end of sampling in MiB;
    `summary` has mean and standard deviation over the seeds.

  Raises:
    FileExistsError: if `output` is there and neither `overwrite` nor `resume`.
    ValueError: if there is no such data set or method, or `output` holds runs
      of another kind.
  """
  exists = output and os.path.exists(output)
  if exists and not (overwrite or resume):
    raise FileExistsError(
      f'{output} exists. Give another --output, --resume to add runs to it, or '
      '--overwrite to replace it.'
    )
  hyperparameters = dict(hyperparameters or {})
  train, holdout, schema, target = datasets.load(dataset)
  if synthesizer_class is None:
    synthesizer_class = _synthesizer_class(method, target)
  if smoke:
    train, holdout = (
      table.sample(min(len(table), _SMOKE_ROWS), random_state=0)
      for table in (train, holdout)
    )
  train = schema.validate(train)
  holdout = schema.validate(holdout, fitting=False)
  scorer = synthesis_scores.Scorer(dataset, holdout, schema, target, smoke)
  results = {
    'command': command,
    'dataset': dataset,
    'method': method,
    'smoke': smoke,
    'target': target,
    'train_rows': len(train),
    'holdout_rows': len(holdout),
    'delta': delta,
    'epsilons': list(epsilons),
    'seeds': list(seeds),
    'hyperparameters': hyperparameters,
    'classifiers': scorer.classifiers,
    'machine': {'cpus': os.cpu_count(), 'platform': platform.platform()},
    'versions': versions(),
    'runs': [],
  }
  if exists and not overwrite:
    _take_over(results, output)
  if real_baseline and 'real' not in results:
    results['real'] = scorer(train)
    if output and results['runs']:
      results['summary'] = summarize(results['runs'])
      write_json(output, results)
  done = {(run['epsilon'], run['seed']) for run in results['runs']}
  for epsilon in epsilons:
    for seed in seeds:
      if (epsilon, seed) in done:
        continue
      synthesizer = synthesizer_class(
        schema, epsilon=epsilon, delta=delta, seed=seed, **hyperparameters
      )
      found, rows = one_run(synthesizer, train, scorer, seed)
      results['runs'].append(found)
      results['runs'][-1].update(epsilon=epsilon, seed=seed)
      results['summary'] = summarize(results['runs'])
      logging.info('%s', json.dumps(results['runs'][-1]['scores']))
      if output:
        write_json(output, results)
      if figure:
        from experiments import marginal_figure

        name = f'{method}, epsilon {epsilon:g}'
        drawn = marginal_figure.draw(holdout, {name: rows}, schema)
        drawn.savefig(figure, dpi=80)
  # Not only after a run: a file that is complete may be asked for again.
  results['summary'] = summarize(results['runs'])
  return results


def summarize(runs):
  """Returns mean and standard deviation of the scores for every epsilon.

  Args:
    runs: The `runs` of the results.

  Returns:
    A list of dicts, one per epsilon: the number of `seeds`, and for each score
    and wall time a dict of `mean` and `std` (of a sample; `None` for one run).

  #### Example

  >>> runs = [{'epsilon': 1., 'epsilon_spent': .9, 'scores': {'auroc': a},
  ...          'seconds': {'fit': 2.}} for a in (.8, .9)]
  >>> summarize(runs)[0]['scores']['auroc']['mean']
  0.85
  """
  summary = []
  for epsilon, same in grouped(runs, 'epsilon').items():
    spent = [run['epsilon_spent'] for run in same]
    entry = {
      'epsilon': epsilon,
      'largest_epsilon_spent': None if None in spent else max(spent),
      'seeds': len(same),
    }
    for key in ('scores', 'seconds'):
      entry[key] = {
        name: _mean_and_std([run[key][name] for run in same])
        for name in same[0][key]
      }
    summary.append(entry)
  return summary


def _synthesizer_class(method, target):
  """What makes a synthesizer of (schema, epsilon, delta, seed, ...)."""
  if method == 'flow':
    from tfdpflows import tabular

    def synthesizer(schema, model='histogram', **arguments):
      if model == 'histogram':  # The others know no target.
        arguments = {'target': target, **arguments}
      return tabular.TabularSynthesizer(
        # One delta for tables of all sizes, to compare them.
        schema,
        model=model,
        allow_large_delta=True,
        **arguments,
      )

    return synthesizer
  if method in _GANS:
    from tfdpflows import tabular

    return functools.partial(
      tabular.TabularSynthesizer, model=method, allow_large_delta=True
    )
  if method == 'dp_merf':
    from experiments.baselines import dp_merf

    return functools.partial(dp_merf.DPMerf, target=target)
  if method == 'dp_cgan':
    from experiments.baselines import dp_cgan

    return functools.partial(dp_cgan.DPCGAN, target=target)
  if method == 'gs_wgan':
    from experiments.baselines import gs_wgan

    return gs_wgan.GSWGAN
  if method == 'ctgan':
    from experiments.peers import ctgan_synthesizer

    return ctgan_synthesizer.CtganSynthesizer
  if method in METHODS:
    from experiments.peers import dpmm_synthesizer

    return functools.partial(dpmm_synthesizer.DpmmSynthesizer, method=method)
  raise ValueError(f'No method {method!r}. Choose one of {METHODS}.')


def _take_over(results, path):
  """Adds the runs of an earlier file of the same kind."""
  with open(path, encoding='utf-8') as file:
    earlier = json.load(file)
  earlier.setdefault('method', 'flow')  # Files from before there were others.
  same = ('dataset', 'method', 'smoke', 'delta', 'hyperparameters')
  for key in same:
    if earlier.get(key) != results[key]:
      raise ValueError(
        f'{path} holds runs of another {key} ({earlier.get(key)!r}). Give '
        'another --output, or --overwrite to replace it.'
      )
  results['runs'] = earlier['runs']
  for key in ('epsilons', 'seeds'):
    results[key] = list(dict.fromkeys([*earlier[key], *results[key]]))
  if 'real' in earlier:
    results['real'] = earlier['real']
  commands = [*earlier.get('earlier_commands', []), earlier['command']]
  results['earlier_commands'] = [
    command
    for i, command in enumerate(commands)
    if command != results['command'] and command not in commands[:i]
  ]


def one_run(synthesizer, train, scorer, seed):
  """Fits, samples and scores.

  Args:
    synthesizer: what is not fitted yet.
    train: DataFrame of the rows to learn from.
    scorer: `synthesis_scores.Scorer`.
    seed: of the sample.

  Returns:
    `(found, rows)`: a JSON-able dict, see `run`, and the synthetic rows.
  """
  times = [time.perf_counter()]
  synthesizer.fit(train)
  times.append(time.perf_counter())
  synthetic = synthesizer.sample(len(train), seed=seed)
  times.append(time.perf_counter())
  # A peer fits in a process of its own.
  peak = getattr(synthesizer, 'peak_mib', None)
  peak = synthesis_scores.peak_memory() if peak is None else peak
  scores = scorer(synthetic)
  times.append(time.perf_counter())
  spent = float(synthesizer.ledger.epsilon())
  found = {
    'epsilon_spent': spent if np.isfinite(spent) else None,
    'scores': scores,
    'distances': scorer.distances(synthetic),
    'tasks': scorer.tasks(synthetic),
    'log_likelihood': scorer.log_likelihood(synthesizer),
    'seconds': dict(zip(('fit', 'sample', 'score'), np.diff(times).tolist())),
    'rows_per_second': len(train) / (times[2] - times[1]),
    'peak_mib': peak,
    'privacy_statement': synthesizer.privacy_statement().to_dict(),
  }
  return found, synthetic


def _mean_and_std(numbers):
  std = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
  return {'mean': float(np.mean(numbers)), 'std': std}


def main(argv):
  """Runs what the flags ask for and prints the summary."""
  options = flag_values.read(argv)
  try:
    hyperparameters = json.loads(options.hyperparameters)
  except json.JSONDecodeError as error:
    raise app.UsageError(
      f'--hyperparameters is not JSON ({error}). Give an object such as '
      '\'{"epochs": 10}\'.'
    ) from error
  results = run(
    options.dataset,
    epsilons=[float(epsilon) for epsilon in options.epsilon],
    seeds=[int(seed) for seed in options.seeds],
    delta=options.delta,
    output=options.output,
    overwrite=options.overwrite,
    method=options.method,
    resume=options.resume,
    figure=options.figure,
    smoke=options.smoke,
    real_baseline=options.real_baseline,
    hyperparameters=hyperparameters,
    command=command_line(),
  )
  print(json.dumps(results['summary'], indent=2))


def _define_flags():
  flags.DEFINE_enum('dataset', 'randhie', datasets.DATASETS, 'Data set.')
  flags.DEFINE_enum('method', 'flow', METHODS, 'What makes the rows.')
  flags.DEFINE_bool('resume', False, 'Whether to add runs to --output.')
  flags.DEFINE_list('epsilon', ['1'], 'Privacy budgets, comma-separated.')
  flags.DEFINE_list('seeds', ['0', '1', '2'], 'Seeds, comma-separated.')
  flags.DEFINE_float('delta', 1e-5, 'Delta of the budgets.')
  flags.DEFINE_string('output', None, 'JSON file to write.', required=True)
  flags.DEFINE_string('figure', None, 'PNG file of histograms to write.')
  flags.DEFINE_bool('overwrite', False, 'Whether --output may be replaced.')
  flags.DEFINE_bool('smoke', False, 'A quick run on few rows.')
  flags.DEFINE_bool('real_baseline', False, 'Whether to score real rows too.')
  flags.DEFINE_string(
    'hyperparameters', '{}', 'JSON object of arguments of the synthesizer.'
  )


if __name__ == '__main__':
  _define_flags()
  app.run(main)
