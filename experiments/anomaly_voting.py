r"""DP-AD: anomalies by votes of densities on shards: figure 8 of DP-NF.

Part 'figure' is the figure: half-moons, ten shards, mixtures of Gaussians and
flows, each with the threshold that is best for it, and the probability that one
query is answered correctly, by the epsilon of that query. Part 'queries' has
anomalies of Life Science under a whole budget for a number of queries, beside a
private density, which answers as many queries as one likes:

    python -m experiments.anomaly_voting --seeds=0,1,2,3,4 \
      --output=experiments/results/pate_anomaly.json \
      --plot=docs/anomaly_voting.png

Thresholds are chosen on half of the queries, which count as public, and results
are those of the other half. Seeds make the results reproducible and therefore
not private.
"""

from __future__ import annotations

import functools
import time

import dp_accounting
import numpy as np
from absl import app, flags, logging
from matplotlib.figure import Figure
from scipy import special

from experiments import (
  anomaly_detection,
  density_binary,
  density_datasets,
  density_methods,
  flag_values,
)
from experiments.results_file import ResultsFile
from tfdpflows import accounting, flows, models, pate
from tfdpflows._keras import keras
from tfdpflows.randomness import Randomness

PARTS = ('figure', 'queries')
DELTA = 1e-5
# Of one query, for the figure.
EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
# Numbers of queries under one budget, and of shards for them.
QUERIES = (1, 10, 100, 1000, 10_000)
BUDGETS = (1.0,)
SHARDS = 10
_MORE_SHARDS = (10, 50)
_KEYS = ('part', 'method', 'seed')
_DENSITIES = {'mixture': 'mixtures of Gaussians', 'flow': 'flows'}
_SMOKE_ROWS, _SMOKE_SHARDS = 600, 2


def run(parts=PARTS, *, seeds=(0,), output=None, plot=None, smoke=False):
  """Trains densities and asks them.

  Args:
    parts: some of `PARTS`.
    seeds: of rows, shards and densities.
    output: JSON file that is written after every run, or `None`.
    plot: PNG file, or `None`.
    smoke: whether to use 600 rows, two shards, and half-moons in place of
      Life Science.

  Returns:
    A JSON-able dict, with the `runs`.
  """
  results = ResultsFile(output, {'delta': DELTA, 'smoke': smoke}, _KEYS)
  for seed in seeds:
    for part in parts:
      for method, make in _METHODS[part].items():
        case = {'part': part, 'method': method, 'seed': seed}
        if results.has(**case):
          continue
        start = time.perf_counter()
        found = make(seed, smoke)
        found['seconds'] = time.perf_counter() - start
        results.add({**case, **found})
        logging.info('%s: %.0f s', case, found['seconds'])
        keras.backend.clear_session()
  if plot is not None:
    draw(results.runs).savefig(plot, dpi=100)
  return results.content


def probabilities_correct(votes, labels, epsilon):
  """Returns the mean probability of a correct answer to one query.

  Exactly: `ExponentialVote` draws class j in proportion to `exp(epsilon n_j /
  2)` (algorithm 2).

  Args:
    votes: `[queries, 2]`.
    labels: `[queries]`, 1 for anomalies.
    epsilon: of one query.
  """
  difference = epsilon / 2 * (votes[:, 1] - votes[:, 0])
  return float(np.mean(special.expit(np.where(labels, 1, -1) * difference)))


@functools.cache
def epsilon_of_one(queries, budget):
  """Returns the epsilon of each of some queries under one budget."""
  scale = accounting.calibrate_noise_multiplier(
    lambda scale: dp_accounting.SelfComposedDpEvent(
      accounting.ExponentialMechanismDpEvent(1 / scale), queries
    ),
    accounting.PrivacyBudget(epsilon=budget, delta=DELTA),
  )
  return 1 / scale


def draw(runs):
  """Returns the figure of the runs."""
  figure = Figure(figsize=(11, 4), layout='constrained')
  left, right = figure.subplots(1, 2)
  _draw_part(left, runs, 'figure', EPSILONS, _DENSITIES)
  left.set(
    xscale='log',
    xlabel='epsilon of one query',
    ylabel='probability of a correct answer',
    title=f'Half-moons, {SHARDS} shards',
  )
  names = {method: method for method in _METHODS['queries']}
  _draw_part(right, runs, 'queries', QUERIES, names)
  right.set(
    xscale='log',
    xlabel='number of queries',
    ylabel='share of correct answers',
    title=f'Life Science, epsilon {BUDGETS[0]:g} for all queries',
  )
  for axes in (left, right):
    axes.grid(alpha=0.3)
    axes.set_ylim(0.45, 1.0)
    if axes.lines:
      axes.legend()
  return figure


def _draw_part(axes, runs, part, x, names):
  """Draws the methods of one part, mean and standard deviation."""
  for method, name in names.items():
    found = [
      run['correct']
      for run in runs
      if (run['part'], run['method']) == (part, method)
    ]
    if not found:
      continue
    mean, spread = np.mean(found, 0), np.std(found, 0)
    (line,) = axes.plot(x, mean, marker='o', markersize=3, label=name)
    axes.fill_between(
      x, mean - spread, mean + spread, alpha=0.2, color=line.get_color()
    )


def _figure(density):
  def one_run(seed, smoke):
    rng = np.random.default_rng(seed)
    n = _SMOKE_ROWS if smoke else 30_000
    rows = density_datasets.half_moons(n, rng).astype(np.float32)
    test = density_datasets.half_moons(2000, rng).astype(np.float32)
    # Anomalies: uniform in the box of the rows.
    low, high = test.min(0), test.max(0)
    fake = rng.uniform(low, high, [2000, 2]).astype(np.float32)
    shards = _SMOKE_SHARDS if smoke else SHARDS
    scores, labels = _scores(_make(density, smoke), shards, rows, test, fake)
    votes, labels, threshold = _voted(scores, labels, seed)
    return {
      'threshold': threshold,
      'epsilons': EPSILONS,
      'correct': [probabilities_correct(votes, labels, e) for e in EPSILONS],
      'not_private': _plurality_correct(votes, labels),
    }

  return one_run


def _queries(shards):
  def one_run(seed, smoke):
    train, test, fake = _life_science(seed, smoke)
    make = _make('mixture', smoke)
    asked = _SMOKE_SHARDS if smoke else shards
    scores, labels = _scores(make, asked, train, test, fake)
    votes, labels, threshold = _voted(scores, labels, seed)
    return {
      'threshold': threshold,
      'queries': QUERIES,
      'correct': [
        probabilities_correct(votes, labels, epsilon_of_one(n, BUDGETS[0]))
        for n in QUERIES
      ],
      'not_private': _plurality_correct(votes, labels),
    }

  return one_run


def _private_density(seed, smoke):
  train, test, fake = _life_science(seed, smoke)
  overrides = density_binary.overrides(smoke)
  fit, _ = density_methods.fit(
    train, 'DP-NF, pld', BUDGETS[0], DELTA, seed, overrides
  )
  detector = models.AnomalyDetector(fit.distribution, threshold=0.0)
  scores = np.concatenate([detector.score(test), detector.score(fake)])
  labels = np.repeat([0, 1], [len(test), len(fake)])
  chosen, kept = _halves(len(labels), seed)
  threshold = _best(-scores[chosen][None], labels[chosen])
  correct = np.mean((scores[kept] > -threshold) == labels[kept])
  return {
    'threshold': threshold,
    'queries': QUERIES,
    'correct': [float(correct)] * len(QUERIES),
  }


def _life_science(seed, smoke):
  rows = density_binary.load('half_moons' if smoke else 'lifesci', smoke)
  train, test = rows.split(seed)
  rng = np.random.default_rng(seed)
  columns = min(3, test.shape[1])
  return train, test, anomaly_detection.tail_uniform(test, columns, rng)


def _make(density, smoke):
  """Returns a function that makes a density, and arguments of its fit."""
  if density == 'mixture':
    from sklearn import mixture

    return lambda: mixture.GaussianMixture(3 if smoke else 8), {}

  # Chosen on half-moons of another seed than those of the results.
  epochs, batch_size = (1 if smoke else 60), 100

  def make():
    model = models.DensityModel(
      flows.neural_spline_flow(
        2,
        num_blocks=1 if smoke else 3,
        hidden_units=(8,) if smoke else (64, 64),
        num_bins=8,
      )
    )
    rate = keras.optimizers.schedules.CosineDecay(3e-3, epochs * 30)
    model.compile(optimizer=keras.optimizers.Adam(rate))
    # Else the first step makes its variables, and is traced twice.
    model.optimizer.build(model.trainable_variables)
    return model

  return make, {'epochs': epochs, 'batch_size': batch_size}


def _scores(density, shards, train, test, fake):
  """Returns log-densities `[shards, queries]` and labels of all queries."""
  make, options = density
  ensemble = pate.AnomalyEnsemble(
    make,
    shards,
    threshold=0.0,
    fit_options=options,
    randomness=Randomness(seed=0),
  ).fit(train)
  queries = np.concatenate([test, fake])
  labels = np.repeat([0, 1], [len(test), len(fake)])
  return ensemble.scores(queries), labels


def _voted(scores, labels, seed):
  """Returns votes and labels of one half, by the other's best threshold."""
  chosen, kept = _halves(len(labels), seed)
  threshold = _best(scores[:, chosen], labels[chosen])
  votes = pate.count_votes((~(scores[:, kept] >= threshold)).astype(int), 2)
  return votes, labels[kept], threshold


def _halves(n, seed):
  order = np.random.default_rng(seed).permutation(n)
  return order[: n // 2], order[n // 2 :]


def _best(scores, labels):
  """Returns the threshold with which most votes are correct."""
  found = np.quantile(scores[np.isfinite(scores)], np.linspace(0, 1, 400))
  right = [np.mean((scores < tau) == labels) for tau in found]
  return float(found[int(np.argmax(right))])


def _plurality_correct(votes, labels):
  return float(np.mean((votes[:, 1] > votes[:, 0]) == labels))


_METHODS = {
  'figure': {density: _figure(density) for density in _DENSITIES},
  'queries': {
    **{f'DP-AD, {k} shards': _queries(k) for k in _MORE_SHARDS},
    'DP-NF': _private_density,
  },
}


def main(argv):
  """Runs what the flags ask for and prints it."""
  options = flag_values.read(argv)
  try:
    results = run(
      options.parts,
      seeds=[int(seed) for seed in options.seeds],
      output=options.output,
      plot=options.plot,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  for found in results['runs']:
    correct = ', '.join(f'{value:.3f}' for value in found['correct'])
    print(f'{found["part"]}, {found["method"]}, {found["seed"]}: {correct}')


def _define_flags():
  flags.DEFINE_list('parts', list(PARTS), 'Parts of the figure.')
  flags.DEFINE_list('seeds', ['0'], 'Seeds.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_string('plot', None, 'PNG file to write.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
