r"""When a search for hyper-parameters that is paid for pays.

Logistic regression by DP-SGD, whose step size, number of steps and sampling
probability are not known: every setting at all of epsilon, and searches
(`tfdpflows.tuning`) that share epsilon between trials and their scores.

    python -m experiments.tuning_search --seeds=0,1,2,3,4 \
      --output=experiments/results/tuning_search.json

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import itertools
import time

import dp_accounting
import numpy as np
from absl import app, logging
from sklearn import metrics

from experiments import flag_values, logistic_data
from experiments.results_file import ResultsFile
from tfdpflows import accounting, mechanisms, tuning
from tfdpflows.models.dp_logistic_regression import DPLogisticRegression
from tfdpflows.randomness import Randomness

DELTA = 1e-5
EPSILONS = (0.1, 0.5, 1.0, 4.0)
SPACE = {
  'step_size': (0.02, 0.2, 2.0, 20.0),
  'steps': (50, 200, 1000),
  'sampling_probability': (0.02, 0.1),
}
# Of a trial's epsilon and delta: the rest is for the score.
_FIT_SHARE = 0.9
_KEYS = ('dataset', 'epsilon', 'method', 'setting', 'mean_trials', 'seed')


def run(
  datasets=('adult',),
  *,
  epsilons=EPSILONS,
  seeds=(0,),
  mean_trials=(5.0, 20.0),
  output=None,
  smoke=False,
):
  """Fits every setting with the first seed, and searches with all of them.

  Args:
    datasets: some of `logistic_data.DATASETS`.
    epsilons: budgets, each at `DELTA`.
    seeds: of the noise.
    mean_trials: mean numbers of trials.
    output: JSON file that grows run by run, or `None`.
    smoke: whether to keep 500 rows and few settings.

  Returns:
    The `ResultsFile`.
  """
  results = ResultsFile(
    output, {'delta': DELTA, 'space': SPACE, 'smoke': smoke}, _KEYS
  )
  settings = [
    dict(zip(SPACE, values)) for values in itertools.product(*SPACE.values())
  ]
  for dataset in datasets:
    rows = logistic_data.load(dataset)
    if smoke:
      rows, settings = rows.first(500), settings[:2]
    for epsilon in epsilons:
      cases = [('fixed', setting, None, seeds[0]) for setting in settings]
      cases += [('default', None, None, seed) for seed in seeds]
      cases += [
        ('search', None, mean, seed)
        for mean, seed in itertools.product(mean_trials, seeds)
      ]
      for method, setting, mean, seed in cases:
        key = dict(zip(_KEYS, (dataset, epsilon, method, setting, mean, seed)))
        if results.has(**key):
          continue
        start = time.perf_counter()
        if method == 'search':
          found = _search(rows, settings, epsilon, mean, seed)
        else:
          found = {'auc': _fixed(rows, setting or {}, epsilon, seed)}
        seconds = round(time.perf_counter() - start, 1)
        results.add({**key, **found, 'seconds': seconds})
        logging.info('%s: %s', key, found)
  return results


def _fixed(rows, setting, epsilon, seed):
  model = DPLogisticRegression(
    epsilon, DELTA, method='dp_sgd', num_examples=len(rows.x), **setting
  ).fit(rows.x, rows.y, randomness=Randomness(seed=seed))
  return _auc(model, rows)


def _search(rows, settings, epsilon, mean_trials, seed):
  trials = []

  def fit(trial):
    trials.append(trial)
    model = DPLogisticRegression(
      _FIT_SHARE * trial.budget.epsilon,
      _FIT_SHARE * trial.budget.delta,
      method='dp_sgd',
      num_examples=len(rows.x),
      **trial.hyperparameters,
    ).fit(rows.x, rows.y, ledger=trial.ledger, randomness=trial.randomness)
    score = mechanisms.noisy_mean(
      # The logistic loss is a score at any scale; few rows pass the bound.
      -np.logaddexp(0, (1 - 2 * rows.y) * model.decision_function(rows.x)),
      lower=-4.0,
      upper=0.0,
      noise_multiplier=accounting.calibrate_noise_multiplier(
        dp_accounting.GaussianDpEvent, trial.budget, spent=trial.ledger.event
      ),
      ledger=trial.ledger,
      randomness=trial.randomness,
      label='score',
    )
    return model, score

  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=epsilon, delta=DELTA)
  )
  best = tuning.random_search(
    fit,
    settings,
    epsilon=epsilon,
    delta=DELTA,
    ledger=ledger,
    mean_trials=mean_trials,
    randomness=Randomness(seed=seed),
  )
  return {
    'auc': _auc(best.result, rows),
    'chosen': best.hyperparameters,
    'score': best.score,
    'epsilon_spent': ledger.epsilon(),
    'trials': len(trials),
  }


def _auc(model, rows):
  odds = model.decision_function(rows.test_x)
  return float(metrics.roc_auc_score(rows.test_y, odds))


def main(argv):
  """Runs what the flags ask for."""
  flag_values.run_all(argv, run, 'datasets')


if __name__ == '__main__':
  flag_values.define('datasets', ['adult'], EPSILONS)
  app.run(main)
