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

from experiments import density_binary, density_estimation

REAL = 'real rows'
METHODS = (REAL, 'full Gaussian', 'spline flow', 'DP-MoG, pld', 'DP-NF, pld')
_NEIGHBORS = 5


def run(
  dataset='lifesci',
  *,
  methods=METHODS,
  epsilons=(1.0,),
  splits=(0,),
  output=None,
  smoke=False,
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

  Returns:
    A JSON-able dict; `runs` has `r2`, see `r2_of_neighbors`.

  Raises:
    FileNotFoundError: if the data set needs the shared folder.
    ValueError: if `output` holds other runs.
  """
  rows = density_binary.load(dataset, smoke)
  overrides = density_binary.overrides(smoke)

  def one_run(method, epsilon, split):
    train, test = rows.split(split)
    learned_from = train
    if method != REAL:
      fit, _ = density_estimation.fit_method(
        train, method, epsilon, rows.delta, split, overrides
      )
      sample = fit.distribution.sample(len(train), seed=[split, 0])
      learned_from = sample.numpy()
    r2 = r2_of_neighbors(learned_from, test)
    return {'r2': float(np.mean(r2)), 'r2_by_column': list(map(float, r2))}

  results = density_binary.results_file(
    output, density_estimation.KEYS, rows, smoke, neighbors=_NEIGHBORS
  )
  cases = density_estimation.cases(methods, epsilons, splits)
  density_binary.sweep(results, cases, one_run)
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


def _lines(results):
  for found in results['runs']:
    yield (
      f'{density_estimation.label(found)}: R2 {found["r2"]:.4f}, mean of the '
      'columns'
    )


def main(argv):
  """Runs what the flags ask for and prints the scores."""
  density_binary.main(argv, run, _lines)


if __name__ == '__main__':
  density_binary.define_flags()
  app.run(main)
