r"""Attacks on SGD, DP-SGD, ExpM+NF and what is proven: section 6 of ExpM+NF.

Models are trained on random halves of set a of PhysioNet 2012, and each is
attacked twice: by LiRA, the other models its shadows, and by the audit of one
run as the paper sets it up (all rows are canaries, scores l(x, w0) - l(x, w1),
a guess for every row, and of all runs the 95th percentile of the bounds):

    python -m experiments.expm_attacks --model=lr_summary \
      --settings=experiments/results/expm_auc_lr_summary.json \
      --output=experiments/results/expm_attacks_lr_summary.json \
      --figure=docs/expm_attacks.png

Attacks prove no privacy: that they find nothing says little. What is found
depends on the rows and is not private.
"""

from __future__ import annotations

import functools
import json
import time

import numpy as np
from absl import app, flags, logging

from experiments import (
  expm_auc,
  expm_methods,
  expm_timing,
  flag_values,
  logistic_data,
  physionet,
)
from experiments.results_file import ResultsFile
from tfdpflows import DPLogisticRegression, audit
from tfdpflows.randomness import Randomness

CELLS = (
  ('sgd', None),
  ('dp_sgd', 1.0),
  ('dp_sgd', 10.0),
  ('expm_nf', 1e-3),
  ('expm_nf', 1.0),
  ('expm_nf', 10.0),
)
# Methods of `DPLogisticRegression`, for logistic regression on summaries.
PROVEN = (('objective_perturbation', 1.0), ('exponential_mechanism', 1.0))
_KEYS = ('model', 'task', 'method', 'epsilon')
_RATES = np.geomspace(1e-3, 1.0, 25)


def run(
  model='lr_summary',
  task='mortality',
  cells=CELLS,
  *,
  settings=None,
  num_models=50,
  num_processes=1,
  output=None,
  smoke=False,
):
  """Trains models on halves of the rows, and attacks each.

  Args:
    model: one of `expm_methods.MODELS`.
    task: one of `physionet.TASKS`.
    cells: pairs of method and epsilon.
    settings: see `expm_timing.run`.
    num_models: for every cell; an even number.
    num_processes: how many are trained at one time.
    output: JSON file to go on with, or `None`.
    smoke: a quick run on rows that are made up.

  Returns:
    A JSON-able dict with `runs`: `one_run`, bounds on epsilon (delta 0, and
    that of the claims) of every model, and their 95th percentiles, and the
    share of `correct` guesses; `lira`, rates of true positives at
    `false_positive`: 5 %, median and 95 % over the models, and at 1e-3 their
    mean, beside that of guessing at random.

  Raises:
    FileNotFoundError: if the folder `shared` is not beside the repository.
  """
  num_models = 6 if smoke else num_models
  rows = expm_methods.load(task, model, smoke)
  x, y = rows.parts['all']
  header = {
    'rows': len(y),
    'num_models': num_models,
    'delta': expm_methods.DELTA,
    'false_positive': _RATES.tolist(),
    'smoke': smoke,
  }
  results = ResultsFile(output, header, _KEYS)
  for method, epsilon in cells:
    key = {'model': model, 'task': task, 'method': method, 'epsilon': epsilon}
    if results.has(**key):
      continue
    start = time.perf_counter()
    if method in dict(PROVEN):
      given = {}
      train = functools.partial(_train_proven, x, y, method, epsilon)
      begin = np.zeros(len(y))
    else:
      given = expm_timing.settings_of(settings, model, task, method, epsilon)
      if smoke:
        given = expm_auc.smoke_settings(given)
      train = functools.partial(_train, rows, method, epsilon, given)
      functional = rows.functional(given.get('units', 10))
      begin = functional.to_vector(functional.keras_model())[None]
      begin = _scores(functional, begin, x, y)
    shadows = audit.train_shadows(
      train, len(y), num_models, num_processes=num_processes
    )
    found = {
      'one_run': one_run(shadows, begin),
      'lira': {
        'online': _lira(shadows, True),
        'offline': _lira(shadows, False),
        'chance_at_1e-3': _chance(shadows.included),
      },
    }
    seconds = time.perf_counter() - start
    results.add({**key, **found, 'settings': given, 'seconds': seconds})
    logging.info('%s: %s', key, found['one_run']['percentile_95'])
  return results.content


def _train(rows, method, epsilon, given, included, seed):
  x, y = rows.parts['all']
  functional = rows.functional(given.get('units', 10))
  fit = expm_methods.fit(
    method, functional, (x[included], y[included]), given, epsilon, seed
  )
  return _scores(functional, fit.parameters(1), x, y)


def _train_proven(x, y, method, epsilon, included, seed):
  x = logistic_data.unit_rows(x)
  model = DPLogisticRegression(
    epsilon,
    expm_methods.DELTA,
    method=method,
    num_examples=int(np.sum(included)),
  )
  model.fit(
    x[included], y[included].astype(int), randomness=Randomness(seed=seed)
  )
  return np.where(np.asarray(y) > 0.5, 1, -1) * model.decision_function(x)


def _scores(functional, parameters, x, y):
  """Returns log p / (1 - p) of the right class, `[rows]`."""
  logits = expm_methods.probabilities(functional, parameters, x, logits=True)
  return np.where(np.asarray(y) > 0.5, 1, -1) * logits[0].astype(np.float64)


def one_run(shadows, begin):
  """Returns the bounds of the audit of one run, for every model.

  Args:
    shadows: an `audit.ShadowScores` of log p / (1 - p).
    begin: `[rows]`, the same before the training.
  """
  bounds, correct = [], []
  for scores, included in zip(shadows.scores, shadows.included):
    # The loss is log(1 + exp(-score)).
    decrease = np.logaddexp(0, -begin) - np.logaddexp(0, -scores)
    guesses = audit.guess(decrease, included, len(decrease))
    bounds.append([guesses.epsilon(), guesses.epsilon(expm_methods.DELTA)])
    correct.append(guesses.num_correct / guesses.num_guesses)
  pure, approximate = np.quantile(bounds, 0.95, axis=0).tolist()
  return {
    'percentile_95': {'delta_0': pure, 'delta': approximate},
    'bounds': bounds,
    'correct': correct,
  }


def _lira(shadows, online):
  attack = audit.Lira(shadows, online=online)
  at = attack.true_positive_rates([1e-3])[:, 0]
  return {
    'band': attack.band(_RATES).tolist(),
    'mean_at_1e-3': float(at.mean()),
    'standard_error_at_1e-3': float(at.std(ddof=1) / len(at) ** 0.5),
  }


def _chance(included):
  """Rate of true positives of scores that are drawn at random."""
  outside = np.sum(~included, 1)
  return float(np.mean((np.floor(1e-3 * outside) + 1) / (outside + 1)))


def draw(content):
  """Returns a figure: the ROC of LiRA, and the guesses of the one-run audit.

  Args:
    content: what `run` returned.
  """
  from matplotlib.figure import Figure

  figure = Figure(figsize=(9, 3.6), layout='constrained')
  roc, bars = figure.subplots(1, 2)
  rates = content['false_positive']
  names = []
  for i, entry in enumerate(content['runs']):
    label = expm_auc.LABELS[entry['method']].split(',')[0]
    if entry['epsilon'] is not None:
      label += f', {entry["epsilon"]:g}'
    names.append(label)
    low, median, high = np.maximum(entry['lira']['online']['band'], 1e-4)
    roc.loglog(rates, median, color=f'C{i}', label=label)
    roc.fill_between(rates, low, high, color=f'C{i}', alpha=0.12)
  roc.plot([1e-3, 1], [1e-3, 1], color='gray', ls=':')
  roc.set(
    title='LiRA, online: median, 5 to 95 % of models',
    xlabel='false positives',
    ylabel='true positives',
    ylim=(3e-4, 1.2),
  )
  roc.legend(frameon=False, fontsize=8)
  bars.boxplot(
    [entry['one_run']['correct'] for entry in content['runs']], whis=(5, 95)
  )
  bars.set_xticks(range(1, len(names) + 1), names, rotation=30, ha='right')
  bars.axhline(0.5, color='gray', ls=':')
  bars.set_title('audit of one run: share of correct guesses')
  return figure


def main(argv):
  """Runs what the flags ask for, prints the attacks and draws."""
  options = flag_values.read(argv)
  settings = None
  if options.settings:
    with open(options.settings, encoding='utf-8') as file:
      settings = json.load(file)['runs']
  try:
    results = run(
      options.model,
      options.task,
      CELLS + (PROVEN if options.model == 'lr_summary' else ()),
      settings=settings,
      num_models=options.num_models,
      num_processes=options.num_processes,
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  for entry in results['runs']:
    print(
      f'{entry["method"]} {entry["epsilon"]}: one run at least '
      f'{entry["one_run"]["percentile_95"]["delta_0"]:.3f}, LiRA '
      f'{entry["lira"]["online"]["mean_at_1e-3"]:.4f} at 1e-3'
    )
  if options.figure:
    draw(results).savefig(options.figure, dpi=80)


def _define_flags():
  models, tasks = list(expm_methods.MODELS), list(physionet.TASKS)
  flags.DEFINE_enum('model', 'lr_summary', models, 'Model.')
  flags.DEFINE_enum('task', 'mortality', tasks, 'Task.')
  flags.DEFINE_string('settings', None, 'JSON file of expm_auc.')
  flags.DEFINE_integer('num_models', 50, 'Models of each method.')
  flags.DEFINE_integer('num_processes', 1, 'Models trained at one time.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_string('figure', None, 'PNG file to draw.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
