r"""Seconds of SGD, DP-SGD and ExpM+NF: tables 2 and 6 of ExpM+NF.

All methods train by turns in one process, with the settings that `expm_auc`
chose on validation rows:

    python -m experiments.expm_timing --model=lr --task=mortality \
      --settings=experiments/results/expm_auc_lr.json \
      --output=experiments/results/expm_timing_lr.json

The time is that of a whole training: the calibration of the noise of DP-SGD,
tracing, and all steps. Seeds make the results reproducible and therefore not
private.
"""

from __future__ import annotations

import json
import os
import time

import numpy as np
from absl import app, flags, logging

from experiments import expm_auc, expm_methods, flag_values, physionet
from experiments.results_file import ResultsFile, grouped

_KEYS = ('model', 'task', 'method', 'loss', 'round')
# Method and loss; ExpM+NF has one loss.
CASES = (
  ('sgd', 'l2'),
  ('sgd', 'bce'),
  ('dp_sgd', 'l2'),
  ('dp_sgd', 'bce'),
  ('expm_nf', None),
)


def run(
  model='lr',
  task='mortality',
  epsilon=1.0,
  *,
  settings=None,
  rounds=10,
  cases=CASES,
  output=None,
  smoke=False,
):
  """Trains with every method in every round.

  Args:
    model: one of `expm_methods.MODELS`.
    task: one of `physionet.TASKS`.
    epsilon: of DP-SGD and of ExpM+NF.
    settings: `runs` of `expm_auc.run`, of which those chosen for the nearest
      epsilon are taken; the first of the grid by default.
    rounds: number of trainings of each method.
    cases: some of `CASES`.
    output: JSON file to go on with, or `None`.
    smoke: a quick run on rows that are made up.

  Returns:
    A JSON-able dict with `runs`, each with the `seconds` of its parts, the
    `total`, the number of `steps` and the `load` of the machine.

  Raises:
    FileNotFoundError: if the folder `shared` is not beside the repository.
  """
  rounds = 1 if smoke else rounds
  rows = expm_methods.load(task, model, smoke)
  header = {
    'epsilon': epsilon,
    'delta': expm_methods.DELTA,
    'rows': len(rows.parts['all'][1]),
    'cpus': os.cpu_count(),
    'smoke': smoke,
  }
  results = ResultsFile(output, header, _KEYS)
  for number in range(rounds):
    for method, loss in cases:
      cell = {'model': model, 'task': task, 'method': method, 'loss': loss}
      if results.has(**cell, round=number):
        continue
      given = settings_of(settings, model, task, method, epsilon)
      if loss is not None:
        given = {**given, 'loss': loss}
      if smoke:
        given = expm_auc.smoke_settings(given)
      functional = rows.functional(given.get('units', 10))
      start = time.perf_counter()
      fit = expm_methods.fit(
        method, functional, rows.parts['all'], given, epsilon, seed=number
      )
      total = time.perf_counter() - start
      results.add(
        {
          **cell,
          'round': number,
          'seconds': fit.seconds,
          'total': total,
          'steps': fit.steps,
          'settings': given,
          'load': os.getloadavg()[0],
        }
      )
      logging.info('%s %s: %.1f s', method, loss, total)
  return results.content


def settings_of(runs, model, task, method, epsilon):
  """Returns chosen settings, the first of the grid without `runs`."""
  if not runs:
    return expm_methods.candidates(method, model, 1)[0]
  tuned = sorted(
    {
      run['epsilon']
      for run in runs
      if run['part'] == 'choice' and run['method'] == method
    }
    - {None}
  )
  at = expm_auc.nearest(epsilon, tuned) if tuned else None
  return expm_auc.chosen(runs, model, task, method, at)


def summarize(runs):
  """Returns the medians of every method.

  Args:
    runs: of `run`.

  Returns:
    A list of dicts: `model`, `task`, `method`, `loss`, `rounds`, medians
    `calibration`, `training` (with tracing), `total` (and their `quartiles`),
    in seconds, `step` in ms, without tracing, and the `load` of the machine.
  """
  found = []
  names = 'model', 'task', 'method', 'loss'
  for key, same in grouped(runs, *names).items():
    seconds = [run['seconds'] for run in same]
    median = lambda values: float(np.median(list(values)))
    found.append(
      {
        **dict(zip(names, key)),
        'rounds': len(same),
        'calibration': median(s.get('calibration', 0.0) for s in seconds),
        'training': median(
          s['training'] + s.get('first_step', 0.0) for s in seconds
        ),
        'step': median(
          1000 * run['seconds']['training'] / max(run['steps'] - 1, 1)
          for run in same
        ),
        'total': median(run['total'] for run in same),
        'load': median(run['load'] for run in same),
        'quartiles': np.quantile(
          [run['total'] for run in same], [0.25, 0.75]
        ).tolist(),
      }
    )
  return found


def read_settings(path):
  """Returns the runs of a file of `expm_auc`; none for `None`."""
  if path is None:
    return None
  with open(path, encoding='utf-8') as file:
    return json.load(file)['runs']


def main(argv):
  """Runs what the flags ask for and prints the medians."""
  options = flag_values.read(argv)
  try:
    results = run(
      options.model,
      options.task,
      options.epsilon,
      settings=read_settings(options.settings),
      rounds=options.rounds,
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  for entry in summarize(results['runs']):
    print(
      f'{entry["method"]} {entry["loss"] or ""}: {entry["total"]:.2f} s, of '
      f'which calibration {entry["calibration"]:.2f}; {entry["step"]:.2f} ms '
      'a step'
    )


def _define_flags():
  flags.DEFINE_enum('model', 'lr', expm_methods.MODELS, 'Model.')
  flags.DEFINE_enum('task', 'mortality', physionet.TASKS, 'Task.')
  flags.DEFINE_float('epsilon', 1.0, 'Budget.')
  flags.DEFINE_string('settings', None, 'JSON file of expm_auc.')
  flags.DEFINE_integer('rounds', 10, 'Trainings of each method.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
