r"""The flow as a posterior: Bayesian and MAP predictions, table 5 of ExpM+NF.

With p(y | x, theta) proportional to exp(-epsilon loss / 2) the target of
ExpM+NF is a posterior. Many samples of one flow give predictions averaged over
it, and the sample of largest density a MAP estimate:

    python -m experiments.expm_bayes --model=lr \
      --settings=experiments/results/expm_auc_lr.json \
      --output=experiments/results/expm_bayes_lr.json \
      --figure=docs/expm_bayes.png

Nothing here is private: each sample costs what a release does, and none of a
flow has a proof. Credible regions are those of the flow, which is narrower than
its target tends to be. Seeds make the results reproducible.
"""

from __future__ import annotations

import time

import numpy as np
from absl import app, flags, logging

from experiments import (
  expm_auc,
  expm_methods,
  expm_timing,
  flag_values,
  physionet,
)
from experiments.results_file import ResultsFile

EPSILONS = (0.001, 0.01, 0.1, 1.0)
_KEYS = ('model', 'task', 'epsilon')
_LEVEL = 0.9
_BINS = 10
_AT_ONCE = 200


def run(
  model='lr',
  task='mortality',
  epsilons=EPSILONS,
  *,
  settings=None,
  num_samples=10_000,
  output=None,
  smoke=False,
):
  """Fits one flow for every epsilon, and predicts with its samples.

  Args:
    model: one of `expm_methods.MODELS`.
    task: one of `physionet.TASKS`.
    epsilons: of the target.
    settings: see `expm_timing.run`.
    num_samples: number of samples of a flow.
    output: JSON file to go on with, or `None`.
    smoke: a quick run on rows that are made up.

  Returns:
    A JSON-able dict with `runs`: see `predictions`; and the run of SGD, whose
    `epsilon` is `None`, with `map` alone.

  Raises:
    FileNotFoundError: if the folder `shared` is not beside the repository.
  """
  num_samples = 30 if smoke else num_samples
  rows = expm_methods.load(task, model, smoke)
  header = {'num_samples': num_samples, 'level': _LEVEL, 'smoke': smoke}
  results = ResultsFile(output, header, _KEYS)
  for epsilon in (None, *epsilons):
    key = {'model': model, 'task': task, 'epsilon': epsilon}
    if results.has(**key):
      continue
    start = time.perf_counter()
    method = 'sgd' if epsilon is None else 'expm_nf'
    given = expm_timing.settings_of(settings, model, task, method, epsilon)
    if smoke:
      given = expm_auc.smoke_settings(given)
    functional = rows.functional(given.get('units', 10))
    fit = expm_methods.fit(
      method, functional, rows.parts['all'], given, epsilon
    )
    parameters = fit.parameters(num_samples)
    best, theta = 0, None
    if epsilon is not None:
      best = int(np.argmax(_in_blocks(fit.log_target, parameters)))
      theta = regions(parameters)
    found = predictions(functional, parameters, best, *rows.parts['test'])
    results.add(
      {
        **key,
        **found,
        'parameters': theta,
        'settings': given,
        'seconds': time.perf_counter() - start,
      }
    )
    logging.info('%s: %s', key, found['map']['auc'])
  return results.content


def _in_blocks(function, parameters):
  blocks = range(0, len(parameters), _AT_ONCE)
  return np.concatenate(
    [np.asarray(function(parameters[i : i + _AT_ONCE])) for i in blocks]
  )


def regions(parameters):
  """Returns what the samples say of the parameters, one by one.

  Args:
    parameters: `[n, P]`.

  Returns:
    A dict: the share of the parameters whose central credible interval leaves
    out zero (`decided`), the median `width` of these intervals, and those of
    the ten parameters that are farthest from zero in standard deviations
    (`largest`: index, low, median, high).
  """
  ends = (1 - _LEVEL) / 2
  low, middle, high = np.quantile(parameters, [ends, 0.5, 1 - ends], axis=0)
  spread = np.maximum(parameters.std(0), 1e-30)
  first = np.argsort(-np.abs(parameters.mean(0)) / spread)[:10]
  return {
    'decided': float(np.mean((low > 0) | (high < 0))),
    'width': float(np.median(high - low)),
    'largest': [
      [int(i), float(low[i]), float(middle[i]), float(high[i])] for i in first
    ],
  }


def predictions(model, parameters, best, x, y):
  """Returns how good the predictions of samples are.

  Args:
    model: a functional model.
    parameters: `[n, P]`.
    best: index of the sample that is the MAP estimate.
    x: test rows.
    y: their targets.

  Returns:
    A dict: of the mean over the samples (`bayes`) and of the one (`map`) the
    `auc`, the `brier` score, the expected `calibration_error` and the `curve`
    (mean prediction, share of ones and number of rows in each bin); and the
    mean `width` of the credible intervals of predictions.
  """
  found = expm_methods.probabilities(model, parameters, x)
  ends = (1 - _LEVEL) / 2
  low, high = np.quantile(found, [ends, 1 - ends], axis=0)
  return {
    'bayes': scores(found.mean(0, dtype=np.float64), y),
    'map': scores(found[best].astype(np.float64), y),
    'width': float(np.mean(high - low)),
  }


def scores(predicted, y):
  """Returns AUC, Brier score and calibration of predictions.

  #### Example

  >>> found = scores(np.array([0.1, 0.2, 0.9, 0.7]), np.array([0, 0, 1, 1]))
  >>> found['auc'], round(found['calibration_error'], 3)
  (1.0, 0.175)
  """
  bins = np.minimum((predicted * _BINS).astype(int), _BINS - 1)
  curve, error = [], 0.0
  for number in range(_BINS):
    inside = bins == number
    if inside.any():
      mean, share = predicted[inside].mean(), y[inside].mean()
      curve.append([float(mean), float(share), int(inside.sum())])
      error += inside.mean() * abs(mean - share)
  return {
    'auc': float(expm_methods.auc(predicted[None], y)[0]),
    'brier': float(np.mean((predicted - y) ** 2)),
    'calibration_error': float(error),
    'curve': curve,
  }


def draw(runs):
  """Returns a figure: calibration curves, and intervals of parameters."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(9, 3.6), layout='constrained')
  left, right = figure.subplots(1, 2)
  left.plot([0, 1], [0, 1], color='gray', lw=0.8)
  for number, run_ in enumerate(runs):
    flow = run_['epsilon'] is not None
    label = f'Bayes, epsilon {run_["epsilon"]:g}' if flow else 'SGD'
    curve = np.array(run_['bayes' if flow else 'map']['curve'])
    left.plot(curve[:, 0], curve[:, 1], 'o-', ms=3, label=label)
    if not flow:
      continue
    largest = np.array(run_['parameters']['largest'])
    largest /= np.abs(largest[:, 1:]).max()
    x = np.arange(len(largest)) + 0.15 * number
    right.errorbar(
      x,
      largest[:, 2],
      [largest[:, 2] - largest[:, 1], largest[:, 3] - largest[:, 2]],
      fmt='o',
      ms=3,
      color=f'C{number}',
    )
  right.axhline(0, color='gray', lw=0.8)
  left.set_xlabel('predicted')
  left.set_ylabel('observed')
  left.legend(frameon=False, fontsize=8)
  right.set_xlabel('the ten parameters farthest from zero')
  right.set_ylabel(f'{_LEVEL:.0%} intervals, scaled')
  return figure


def main(argv):
  """Runs what the flags ask for, prints and draws."""
  options = flag_values.read(argv)
  try:
    results = run(
      options.model,
      options.task,
      settings=expm_timing.read_settings(options.settings),
      num_samples=options.num_samples,
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  for found in results['runs']:
    print(
      f'epsilon {found["epsilon"]}: Bayesian AUC {found["bayes"]["auc"]:.3f}, '
      f'MAP {found["map"]["auc"]:.3f}'
    )
  if options.figure:
    draw(results['runs']).savefig(options.figure, dpi=80)


def _define_flags():
  flags.DEFINE_enum('model', 'lr', expm_methods.MODELS, 'Model.')
  flags.DEFINE_enum('task', 'mortality', physionet.TASKS, 'Task.')
  flags.DEFINE_string('settings', None, 'JSON file of expm_auc.')
  flags.DEFINE_integer('num_samples', 10_000, 'Samples of a flow.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_string('figure', None, 'PNG file to draw.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
