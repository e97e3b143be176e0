r"""Private logistic regression: AUC by method and epsilon.

The setting of each method is chosen on some tables, and judged on others
(`logistic_data`). Both are told the same: the settings, the number of rows and
delta. First all settings on tables to choose on, then the chosen ones on the
others:

    python -m experiments.logistic_regression --part=choice --seeds=0,1 \
      --output=experiments/results/logistic_choice.json
    python -m experiments.logistic_regression --part=scores \
      --choice=experiments/results/logistic_choice.json \
      --output=experiments/results/logistic_regression.json

The tables to choose on are taken for public: nothing is charged for them. Seeds
make the results reproducible and therefore not private.
"""

from __future__ import annotations

import itertools
import json
import math
import pathlib
import time

import dp_accounting
import numpy as np
from absl import app, flags, logging
from scipy import optimize, special, stats
from sklearn import linear_model, metrics

from experiments import flag_values, logistic_data
from experiments.results_file import ResultsFile
from tfdpflows import accounting
from tfdpflows.models.dp_logistic_regression import (
  METHODS,
  DPLogisticRegression,
)
from tfdpflows.randomness import Randomness

DELTA = 1e-5
EPSILONS = (0.01, 0.1, 1.0, 8.0)
NOT_PRIVATE, AMP = 'not_private', 'amp'
ALL = (NOT_PRIVATE, *METHODS[1:], AMP)
# Numbers of rows of the tables to choose on, if these have at most so many
# numbers: what takes longer is left out.
SIZES = (4_000, 16_000)
_NUMBERS = 2_100_000
# Of rows of norm one and a constant feature of one.
_NORM = math.sqrt(2)
_KEYS = ('part', 'dataset', 'size', 'method', 'setting', 'epsilon', 'seed')


def settings(method):
  """Returns the settings of a method that are tried, as dicts.

  `factor` is that of the regularization, see `fit`.
  """
  grids = {
    'objective_perturbation': {'factor': (0.06, 0.12, 0.25, 0.5, 1, 2)},
    'output_perturbation': {'factor': (0.12, 0.25, 0.5, 1, 2)},
    'noisy_gradient_descent': {
      'factor': (0.06, 0.25, 1),
      'steps': (100, 400),
    },
    'exponential_mechanism': {'factor': (0.5, 1, 2, 4, 8)},
    'dp_sgd': {
      'steps': (200, 1000),
      'step_size': (0.5, 2, 8),
      'sampling_probability': (0.02, 0.1),
    },
    AMP: {'ratio': (1.3, 1.6, 2.0, 3.0)},
  }
  grid = grids.get(method, {})
  return [
    dict(zip(grid, values)) for values in itertools.product(*grid.values())
  ]


def run(
  part,
  *,
  datasets,
  methods=ALL,
  epsilons=EPSILONS,
  seeds=(0,),
  choice=None,
  output=None,
  smoke=False,
):
  """Fits methods at budgets.

  Args:
    part: 'choice' tries all settings, 'scores' the chosen one of a method.
    datasets: some of `logistic_data.DATASETS`.
    methods: some of `ALL`.
    epsilons: budgets, each at `DELTA`.
    seeds: of the noise.
    choice: what `run` returned for 'choice'; with 'scores', `None` takes the
      defaults of the estimator.
    output: JSON file that is written after every run, or `None`.
    smoke: whether to keep 500 rows.

  Returns:
    A JSON-able dict, with the `runs`.
  """
  results = ResultsFile(output, {'delta': DELTA, 'smoke': smoke}, _KEYS)
  for dataset in datasets:
    rows = logistic_data.load(dataset)
    sizes = [500] if smoke else SIZES if part == 'choice' else [len(rows.x)]
    if part == 'choice':
      sizes = [z for z in sizes if z * rows.x.shape[1] <= _NUMBERS]
    for size, method in itertools.product(sizes, methods):
      tried = settings(method) if part == 'choice' else [{}]
      if part == 'scores' and choice is not None:
        tried = [chosen(choice, method)]
      long = part == 'choice' and size == SIZES[-1]
      if long and method == 'exponential_mechanism':
        continue  # Minutes for each chain.
      for setting, epsilon, seed in itertools.product(tried, epsilons, seeds):
        if method == NOT_PRIVATE:
          epsilon, seed = None, 0
        case = {
          'part': part,
          'dataset': dataset,
          'size': size,
          'method': method,
          'setting': setting,
          'epsilon': epsilon,
          'seed': seed,
        }
        if results.has(**case):
          continue
        results.add({**case, **fit(rows.first(size), **case)})
        logging.info('%s: AUC %.4f', case, results.runs[-1]['auc'])
  return results.content


def fit(rows, *, method, setting, epsilon, seed, **ignored):
  """Returns a JSON-able dict: scores and seconds of a fit.

  Args:
    rows: `logistic_data.Rows`.
    method: one of `ALL`.
    setting: arguments of the estimator, or instead of its regularization a
      `factor` of the squared norm and the noise multiplier.
    epsilon: the budget, at `DELTA`.
    seed: of the noise.
    **ignored: not used.
  """
  del ignored
  start = time.perf_counter()
  if method == NOT_PRIVATE:
    model = linear_model.LogisticRegression(C=100, max_iter=1000)
    model.fit(rows.x, rows.y)
  elif method == AMP:
    model = _amp(rows, epsilon, np.random.default_rng(seed), **setting)
  else:
    setting = dict(setting)
    factor = setting.pop('factor', None)
    if factor is not None:
      setting['regularization'] = _regularization(
        method, factor, epsilon, *rows.x.shape
      )
    model = DPLogisticRegression(
      epsilon, DELTA, method=method, num_examples=len(rows.x), **setting
    ).fit(rows.x, rows.y, randomness=Randomness(seed=seed))
  seconds = time.perf_counter() - start
  odds = model.decision_function(rows.test_x)
  return {
    'auc': float(metrics.roc_auc_score(rows.test_y, odds)),
    'accuracy': float(np.mean((odds > 0) == rows.test_y)),
    'seconds': seconds,
  }


def chosen(content, method):
  """Returns the setting with the best mean share of the AUC without privacy.

  Args:
    content: what `run` returned for 'choice'.
    method: one of `ALL`.

  Returns:
    A setting, a dict. Tables, sizes and epsilons count the same.
  """
  groups, best = {}, {}
  for found in content['runs']:
    table = found['dataset'], found['size']
    if found['method'] == NOT_PRIVATE:
      best[table] = found['auc']
    if found['method'] == method:
      key = json.dumps(found['setting'], sort_keys=True)
      group = groups.setdefault(key, {})
      group.setdefault((*table, found['epsilon']), []).append(found['auc'])
  if not groups:
    return {}

  def share(key):
    return np.mean(
      [np.mean(auc) / best[case[:2]] for case, auc in groups[key].items()]
    )

  return json.loads(max(groups, key=share))


def _regularization(method, factor, epsilon, size, num_features):
  noise = accounting.calibrate_noise_multiplier(
    dp_accounting.GaussianDpEvent,
    accounting.PrivacyBudget(epsilon=epsilon, delta=DELTA),
  )
  units = factor * noise
  if method == 'objective_perturbation':
    units = max(1 / epsilon, units)
  if method == 'output_perturbation':
    units *= math.sqrt(num_features + 1)
  if method == 'exponential_mechanism':
    units = max(units, size / 1600)
  return _NORM**2 * units


class _Linear:
  """A classifier with given weights, the last one of a constant feature."""

  def __init__(self, weights):
    self._weights = weights

  def decision_function(self, x):
    return x @ self._weights[:-1] + self._weights[-1]


def _amp(rows, epsilon, rng, ratio=1.3):
  """Approximate minima perturbation as Redberg et al. 2023 calibrate it.

  The regularization grows from 2 beta / epsilon until the noise is at most
  `ratio` times that of the Gaussian mechanism (they take 1.3). Renyi bound of
  their theorem for general linear models. The minimizer is taken for exact, so
  that nothing is spent on the output noise: better than theirs by that.
  """
  sigma, weight = amp_noise(epsilon, ratio)
  u = np.concatenate([rows.x, np.ones([len(rows.x), 1])], 1)
  u *= np.where(rows.y, 1.0, -1.0)[:, None]
  linear = rng.normal(scale=sigma, size=u.shape[1])

  def objective(theta):
    odds = u @ theta
    value = -special.log_expit(odds).sum()
    value += weight / 2 * theta @ theta + linear @ theta
    slope = -special.expit(-odds) @ u + weight * theta + linear
    return value, slope

  start = np.zeros(u.shape[1])
  options = {'maxiter': 2000, 'gtol': 1e-4, 'ftol': 1e-15}
  found = optimize.minimize(
    objective, start, jac=True, method='L-BFGS-B', options=options
  )
  return _Linear(found.x)


def amp_noise(epsilon, ratio):
  """Returns `(sigma, regularization)`, see `_amp`.

  #### Example

  >>> sigma, weight = amp_noise(1., 1.3)
  >>> bool(4.8 < sigma < 7), bool(weight > 1)
  (True, True)
  """
  smoothness = _NORM**2 / 4
  largest = (
    ratio
    * _NORM
    * accounting.calibrate_noise_multiplier(
      dp_accounting.GaussianDpEvent,
      accounting.PrivacyBudget(epsilon=epsilon, delta=DELTA),
    )
  )
  orders = np.concatenate(
    [np.linspace(1.01, 10, 200), np.geomspace(10, 1e5, 600)]
  )
  t, scale = orders - 1, _NORM / largest
  folded = (scale * t) ** 2 / 2 + math.log(2) + stats.norm.logcdf(scale * t)
  gaussian = scale**2 / 2 + folded / t
  # The conversion of Canonne, Kamath and Steinke 2020.
  converted = np.log1p(-1 / orders) - (math.log(DELTA) + np.log(orders)) / t
  least = np.min(gaussian + converted)
  if least >= epsilon:
    raise ValueError(
      f'No regularization reaches epsilon {epsilon:g} with {ratio:g} times the '
      'noise of the Gaussian mechanism.'
    )
  # -log(1 - smoothness / weight) is what is left of epsilon.
  weight = smoothness / -math.expm1(-(epsilon - least))
  return largest, max(weight, 2 * smoothness / epsilon)


def main(argv):
  """Runs what the flags ask for."""
  options = flag_values.read(argv)
  part = options.part
  datasets = options.datasets or (
    logistic_data.CHOICE if part == 'choice' else logistic_data.JUDGED
  )
  choice = None
  if options.choice:
    choice = json.loads(pathlib.Path(options.choice).read_text())
  try:
    run(
      part,
      datasets=datasets,
      methods=options.methods,
      epsilons=[float(text) for text in options.epsilon],
      seeds=[int(text) for text in options.seeds],
      choice=choice,
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')


def _define_flags():
  flags.DEFINE_enum('part', 'scores', ['choice', 'scores'], 'What to run.')
  flags.DEFINE_multi_enum(
    'datasets', None, logistic_data.DATASETS, 'Tables; by default of the part.'
  )
  flags.DEFINE_multi_enum('methods', ALL, ALL, 'Methods.')
  flags.DEFINE_list(
    'epsilon', [f'{x:g}' for x in EPSILONS], f'Budgets, at delta {DELTA:g}.'
  )
  flags.DEFINE_list('seeds', [str(x) for x in range(10)], 'Seeds.')
  flags.DEFINE_string('choice', None, 'JSON file of the part choice.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
