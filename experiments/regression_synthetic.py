r"""Regression on synthetic rows, tested on real ones: figure 2 of DP-NF.

Each column in turn is predicted from the others by its 5 nearest neighbours
among synthetic rows, as many as there are training rows; real training rows
are the reference:

    python -m experiments.regression_synthetic --epsilon=1 --splits=0,1,2 \
      --output=experiments/results/regression_lifesci.json

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from absl import app, flags, logging

from experiments import density_datasets, density_estimation
from experiments.results_file import ResultsFile
from tfdpflows._keras import keras

REAL = 'real rows'
METHODS = (REAL, 'full Gaussian', 'spline flow', 'DP-MoG, pld', 'DP-NF, pld')
_NEIGHBORS = 5
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
  """Fits methods, samples from them, and predicts held-out rows.

  Args:
    dataset: one of `density_datasets.NAMES`.
    methods: `REAL`, or names in `density_estimation.METHODS`.
    epsilons: budgets of the private ones.
    splits: which of ten splits of cross-validation.
    output: JSON file that is written after every run, and gone on with; or
      `None`.
    smoke: whether to use 600 rows and tiny models.
    command: command line to note in the results.

  Returns:
    A JSON-able dict; `runs` has `r2`, see `r2_of_neighbors`.

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
    'neighbors': _NEIGHBORS,
  }
  results = ResultsFile(output, header, ('method', 'epsilon', 'split'))
  for split in splits:
    train, test = (x[part] for part in density_datasets.split(len(x), split))
    for method in methods:
      known = density_estimation.METHODS.get(method)
      for epsilon in epsilons if known and known[1] else (None,):
        if results.has(method=method, epsilon=epsilon, split=split):
          continue
        start = time.perf_counter()
        synthetic = train
        if known:
          fit, _ = density_estimation.fit_method(
            train, method, epsilon, rows.delta, split, overrides
          )
          sample = fit.distribution.sample(len(train), seed=[split, 0])
          synthetic = sample.numpy()
        r2 = r2_of_neighbors(synthetic, test)
        results.add(
          {
            'method': method,
            'epsilon': epsilon,
            'split': split,
            'r2': float(np.mean(r2)),
            'r2_by_column': list(map(float, r2)),
            'seconds': time.perf_counter() - start,
          },
          command,
        )
        logging.info('%s, epsilon %s: %.4f', method, epsilon, np.mean(r2))
        keras.backend.clear_session()
  return results.content


def r2_of_neighbors(train, test):
  """Returns how well nearest neighbours predict each column from the others.

  Args:
    train: rows `[n, d]` to learn from; those that are not finite are left out.
    test: rows `[m, d]`.

  Returns:
    The coefficient of determination of each column, float64 `[d]`: 1 is
    perfect, 0 is as good as the mean of the test rows.
  """
  # Only this experiment needs it.
  from sklearn.neighbors import KNeighborsRegressor

  train = train[np.isfinite(train).all(1)]
  found = []
  for column in range(test.shape[1]):
    regressor = KNeighborsRegressor(_NEIGHBORS)
    regressor.fit(np.delete(train, column, 1), train[:, column])
    found.append(regressor.score(np.delete(test, column, 1), test[:, column]))
  return np.array(found)


def main(argv):
  """Runs what the flags ask for and prints the scores."""
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
    print(
      f'{found["method"]}, epsilon {found["epsilon"]}, split {found["split"]}: '
      f'R2 {found["r2"]:.4f}, mean of the columns'
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
