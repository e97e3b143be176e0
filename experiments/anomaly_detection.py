r"""Anomalies by their likelihood under private densities: figure 5 of DP-NF.

Anomalies are held-out rows in which some columns were replaced by values from
the tails of these columns; all columns give the easiest anomalies, one the
hardest. Every method scores the same rows by `models.AnomalyDetector`:

    python -m experiments.anomaly_detection --epsilon=1 --splits=0,1,2 \
      --output=experiments/results/anomaly_lifesci.json

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import numpy as np
from absl import app

from experiments import density_binary, density_methods
from tfdpflows import models

METHODS = ('full Gaussian', 'MAF', 'spline flow', 'DP-MoG, pld', 'DP-NF, pld')
NUM_COLUMNS = (1, 3, 10)
# The share of a column's values that counts as each of its tails.
_TAIL = 0.05
_FALSE_POSITIVE_RATE = 0.05


def run(dataset='lifesci', methods=METHODS, **options):
  """Fits methods, and scores held-out rows and anomalies made of them.

  Args:
    dataset: see `density_methods.run`.
    methods: see `density_methods.run`.
    **options: see `density_methods.run`.

  Returns:
    A JSON-able dict; `runs` has, for each number of columns, the `auc` and the
    true positive rate at a false positive rate of 5 %.
  """
  return density_methods.run(one_run, dataset, methods, tail=_TAIL, **options)


def one_run(rows, method, epsilon, split, overrides=None):
  """Makes one of the runs; see `density_methods.run`."""
  train, test = rows.split(split)
  fit, _ = density_methods.fit(
    train, method, epsilon, rows.delta, split, overrides
  )
  return {'anomalies': _evaluate(fit, test, split)}


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


def _lines(results):
  for found in results['runs']:
    areas = ', '.join(
      f'{columns} columns {entry["auc"]:.4f}'
      for columns, entry in found['anomalies'].items()
    )
    yield f'{density_methods.label(found)}: AUC {areas}'


def main(argv):
  """Runs what the flags ask for and prints the areas."""
  density_binary.main(argv, run, _lines)


if __name__ == '__main__':
  density_binary.define_flags()
  app.run(main)
