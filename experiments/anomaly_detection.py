r"""Anomalies by their likelihood under private densities: figure 5 of DP-NF.

Anomalies are held-out rows in which some columns were replaced by values from
the tails of these columns; all columns give the easiest anomalies, one the
hardest. Every method scores the same rows by `models.AnomalyDetector`:

    python -m experiments.anomaly_detection --epsilon=1 --splits=0,1,2 \
      --output=experiments/results/anomaly_lifesci.json

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from absl import app, flags, logging

from experiments import density_datasets, density_estimation
from experiments.results_file import ResultsFile
from tfdpflows import models
from tfdpflows._keras import keras

METHODS = ('full Gaussian', 'spline flow', 'DP-MoG, pld', 'DP-NF, pld')
NUM_COLUMNS = (1, 3, 10)
# The share of a column's values that counts as each of its tails.
_TAIL = 0.05
_FALSE_POSITIVE_RATE = 0.05
_SMOKE_ROWS = 600


def run(
  dataset='lifesci',
  *,
  methods=METHODS,
  epsilons=(1.0,),
  splits=(0,),
  output=None,
  smoke=False,
  command=None,
):
  """Fits methods, and scores held-out rows and anomalies made of them.

  Args:
    dataset: one of `density_datasets.NAMES`.
    methods: names in `density_estimation.METHODS`.
    epsilons: budgets of the private ones.
    splits: which of ten splits of cross-validation.
    output: JSON file that is written after every run, and gone on with; or
      `None`.
    smoke: whether to use 600 rows and tiny models.
    command: command line to note in the results.

  Returns:
    A JSON-able dict; `runs` has, for each number of columns, the `auc` and the
    true positive rate at a false positive rate of 5 %.

  Raises:
    FileNotFoundError: if the data set needs the shared folder.
    ValueError: if `output` holds other runs.
  """
  rows = density_datasets.load(dataset)
  x = rows.x[:_SMOKE_ROWS] if smoke else rows.x
  overrides = {}
  if smoke:
    overrides = {'epochs': 1.0, 'num_blocks': 1, 'hidden_units': (8,)}
  header = {
    'dataset': dataset,
    'scaling': rows.scaling,
    'delta': rows.delta,
    'smoke': smoke,
    'tail': _TAIL,
  }
  results = ResultsFile(output, header, ('method', 'epsilon', 'split'))
  for split in splits:
    train, test = (x[part] for part in density_datasets.split(len(x), split))
    for method in methods:
      private = density_estimation.METHODS[method][1] is not None
      for epsilon in epsilons if private else (None,):
        if results.has(method=method, epsilon=epsilon, split=split):
          continue
        start = time.perf_counter()
        fit, _ = density_estimation.fit_method(
          train, method, epsilon, rows.delta, split, overrides
        )
        found = {
          'method': method,
          'epsilon': epsilon,
          'split': split,
          'anomalies': _evaluate(fit, test, split),
          'seconds': time.perf_counter() - start,
        }
        results.add(found, command)
        logging.info('%s, epsilon %s: %s', method, epsilon, found['anomalies'])
        keras.backend.clear_session()
  return results.content


def tail_uniform(x, num_columns, rng):
  """Makes anomalies of rows, by values from the tails of some columns.

  The tails of a column are from its smallest value to its 5 % quantile and
  from its 95 % quantile to its largest value; a value is uniform over both.

  Args:
    x: rows `[n, d]`.
    num_columns: how many columns of each row are replaced, drawn at random.
    rng: `np.random.Generator`.

  Returns:
    An array like `x`.
  """
  low, start, stop, high = np.quantile(x, [0, _TAIL, 1 - _TAIL, 1], axis=0)
  along = rng.random(x.shape) * (start - low + high - stop)
  tail = np.where(along < start - low, low + along, stop + along - start + low)
  order = np.argsort(rng.random(x.shape), axis=1)
  return np.where(order < num_columns, tail, x).astype(x.dtype)


def _evaluate(fit, test, seed):
  """AUC and true positive rate by number of columns."""
  detector = models.AnomalyDetector(fit.distribution, threshold=0.0)
  found = {}
  for num_columns in NUM_COLUMNS:
    if num_columns > test.shape[1]:
      continue
    anomalies = tail_uniform(test, num_columns, np.random.default_rng(seed))
    labels = np.repeat([0, 1], len(test))
    roc = detector.evaluate(np.concatenate([test, anomalies]), labels)
    rate = np.interp(
      _FALSE_POSITIVE_RATE, roc.false_positive_rates, roc.true_positive_rates
    )
    found[str(num_columns)] = {
      'auc': roc.auc,
      'true_positive_rate': float(rate),
    }
  return found


def main(argv):
  """Runs what the flags ask for and prints the areas."""
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {argv[1:]}')
  options = flags.FLAGS
  try:
    results = run(
      options.dataset,
      epsilons=[float(epsilon) for epsilon in options.epsilon],
      splits=[int(split) for split in options.splits],
      output=options.output,
      smoke=options.smoke,
      command=sys.orig_argv if hasattr(sys, 'orig_argv') else sys.argv,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  for found in results['runs']:
    areas = ', '.join(
      f'{columns} columns {entry["auc"]:.4f}'
      for columns, entry in found['anomalies'].items()
    )
    print(
      f'{found["method"]}, epsilon {found["epsilon"]}, split {found["split"]}: '
      f'AUC {areas}'
    )


def _define_flags():
  flags.DEFINE_enum('dataset', 'lifesci', density_datasets.NAMES, 'Data set.')
  flags.DEFINE_list('epsilon', ['1'], 'Budgets.')
  flags.DEFINE_list('splits', ['0'], 'Which of ten splits, comma-separated.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_bool('smoke', False, 'A quick run on few rows.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
