r"""Regression on synthetic rows, tested on real ones: figure 2 of DP-NF.

Each column in turn is predicted from the others by its 5 nearest neighbours
among synthetic rows, as many as there are training rows; real training rows
are the reference:

    python -m experiments.regression_synthetic --epsilon=1 --splits=0,1,2 \
      --output=experiments/results/regression_lifesci.json

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import numpy as np
from absl import app

from experiments import density_binary, density_methods

REAL = 'real rows'
METHODS = (REAL, 'full Gaussian', 'spline flow', 'DP-MoG, pld', 'DP-NF, pld')
_NEIGHBORS = 5


def run(dataset='lifesci', methods=METHODS, **options):
  """Fits methods, samples from them, and predicts held-out rows.

  Args:
    dataset: see `density_methods.run`.
    methods: `REAL`, or names in `density_methods.METHODS`.
    **options: see `density_methods.run`.

  Returns:
    A JSON-able dict; `runs` has `r2`, see `r2_of_neighbors`.
  """
  return density_methods.run(
    one_run, dataset, methods, neighbors=_NEIGHBORS, **options
  )


def one_run(rows, method, epsilon, split, overrides=None):
  """Makes one of the runs; see `density_methods.run`."""
  train, test = rows.split(split)
  learned_from = train
  if method != REAL:
    fit, _ = density_methods.fit(
      train, method, epsilon, rows.delta, split, overrides
    )
    sample = fit.distribution.sample(len(train), seed=[split, 0])
    learned_from = sample.numpy()
  r2 = r2_of_neighbors(learned_from, test)
  return {'r2': float(np.mean(r2)), 'r2_by_column': list(map(float, r2))}


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


def _lines(results):
  for found in results['runs']:
    yield (
      f'{density_methods.label(found)}: R2 {found["r2"]:.4f}, mean of the '
      'columns'
    )


def main(argv):
  """Runs what the flags ask for and prints the scores."""
  density_binary.main(argv, run, _lines)


if __name__ == '__main__':
  density_binary.define_flags()
  app.run(main)
