r"""Audits of trainings: Dirac canaries, one run, and LiRA; JSON and a figure.

- `white_box`: DP-SGD on full batches with Dirac canaries, several runs. Each
  canary is a Gaussian mechanism of its own, so that canaries of all runs are
  independent runs of one attack, and mu has a bound from the whole ROC.
- `one_run`: logistic regression on MNIST (60,000 rows of 784 features) at
  epsilon 2, 4 and 8, delta 1e-5; gradient canaries (white box) and images with
  wrong labels (black box, by the loss). Batches are a quarter of the rows: the
  sum of a canary's gradients sees less of a training with rare batches, whose
  privacy loss is far from Gaussian (at epsilon 4, 118 batches of 1,024 rows,
  a mean that is .28 standard deviations away where 80 of 15,000 have .85).
  `ideal` is the same audit of as many Gaussian mechanisms with the mu of a
  Gaussian of the claimed (epsilon, delta): more than any attack on the training
  can reach on average.
- `preset` of each run of `one_run` is its part of the protocol of the ExpM+NF
  paper (`audit.audit_repeated_runs`): scores l(x, w0) - l(x, w1), m guesses.
- `lira`: an MLP that overfits halves of 4,000 images, without privacy and at
  epsilon 1.

    python -m experiments.audit_training \
      --output=experiments/results/audit_training.json \
      --plot=docs/audit_training.png
"""

from __future__ import annotations

import math
import os
import time

import numpy as np
import tensorflow as tf
from absl import app, flags, logging
from matplotlib.figure import Figure

import tfdpflows
from experiments import flag_values
from experiments.results_file import ResultsFile
from tfdpflows import audit
from tfdpflows.audit.rates import gaussian_epsilon

DELTA = 1e-5
_EPSILONS = (2.0, 4.0, 8.0)
_PARTS = ('white_box', 'one_run', 'lira')
_RATES = np.geomspace(1e-3, 1.0, 25)


def images(data_dir, num_rows, seed=0):
  """Returns `[num_rows, 784]` images in [0, 1] and their labels.

  Those of MNIST where `data_dir` has mnist.npz, else made-up ones.
  """
  path = os.path.join(data_dir, 'mnist.npz')
  rng = np.random.default_rng(seed)
  if not os.path.exists(path):
    y = rng.integers(10, size=num_rows)
    centers = rng.random([10, 784]) < 0.2
    x = np.clip(centers[y] + 0.3 * rng.normal(size=[num_rows, 784]), 0, 1)
    return x.astype(np.float32), y, 'made up'
  with np.load(path) as file:
    x, y = file['x_train'], file['y_train']
  chosen = rng.permutation(len(x))[:num_rows]
  x = x[chosen].reshape([-1, 784]).astype(np.float32) / 255
  return x, y[chosen].astype(np.int64), 'mnist'


def _entropy():
  return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _logistic_regression():
  return tf.keras.Sequential([tf.keras.layers.Dense(10)])


def white_box(data_dir, mu, num_canaries, num_runs, num_rows, steps=4):
  """Scores of Dirac canaries in trainings with a known mu."""
  x, y, _ = images(data_dir, num_rows)
  inside, outside = [], []
  for run in range(num_runs):
    canaries = audit.GradientCanaries(num_canaries)
    # On full batches all steps together are one Gaussian mechanism.
    plan = tfdpflows.TrainingPlan(
      tfdpflows.sampling.PoissonSampler(
        num_examples=num_rows + num_canaries, sampling_probability=1.0
      ),
      tfdpflows.gradients.Flat(1.0),
      noise_multiplier=math.sqrt(steps) / mu,
      steps=steps,
      delta=DELTA,
    )
    one_run = _train(canaries, plan, (x, y), white=True)
    inside.append(one_run.scores[canaries.included])
    outside.append(one_run.scores[~canaries.included])
    logging.info('white_box, mu %g: run %d of %d', mu, run + 1, num_runs)
  inside, outside = map(np.concatenate, (inside, outside))
  roc = audit.Roc(outside, inside)
  rates = audit.error_rates(outside, inside, delta=DELTA, by='mu')
  keep = np.linspace(0, len(roc.false_positive) - 1, 200).astype(int)
  return {
    'mu_claimed': mu,
    'mu_roc': roc.mu(),
    'mu_threshold': rates.mu(),
    'ratio': roc.mu() / mu,
    'mu_moments': float((inside.mean() - outside.mean()) / outside.std()),
    'epsilon_claimed': gaussian_epsilon(mu, DELTA),
    'epsilon_lower_if_gaussian': gaussian_epsilon(roc.mu(), DELTA),
    'num_canaries': num_canaries * num_runs,
    'false_positive': roc.false_positive[keep].tolist(),
    'true_positive': roc.true_positive[keep].tolist(),
  }


def _train(canaries, plan, table, *, white, learning_rate=0.5, **kwargs):
  """Returns the audit of a training of the logistic regression."""
  model = _logistic_regression()
  loss = _entropy()
  if white:
    model, loss = canaries.model(model), canaries.loss(loss)
  model = tfdpflows.PrivateModel(model)
  model.compile(plan.optimizer('sgd', learning_rate=learning_rate), loss)
  one_run = audit.OneRunAudit(canaries, **kwargs)
  x, y = canaries.insert(table)
  if not white:
    model.model.build([None, x.shape[1]])
  model.fit(x, y, callbacks=[one_run], verbose=0)
  return one_run


def one_run(data_dir, epsilon, attack, num_canaries, num_rows, epochs, run):
  """Bounds from one training at an epsilon, beside those of an ideal attack."""
  x, y, source = images(data_dir, num_rows + num_canaries, seed=run)
  table = x[:num_rows], y[:num_rows]
  if attack == 'white_box':
    canaries = audit.GradientCanaries(num_canaries)
  else:
    wrong = (y[num_rows:] + 1 + np.arange(num_canaries) % 9) % 10
    canaries = audit.Canaries((x[num_rows:], wrong))
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=epsilon,
    delta=DELTA,
    num_examples=num_rows + num_canaries,
    expected_batch_size=num_rows / 4,
    epochs=epochs,
    clipping=tfdpflows.gradients.Flat(1.0),
  )
  audited = _train(canaries, plan, table, white=attack == 'white_box')
  found = audited.result()
  preset = audit.guess(audited.scores, canaries.included, num_canaries)
  rng = np.random.default_rng(run)
  included = rng.random(num_canaries) < 0.5
  mu = _mu_of(epsilon)
  ideal = audit.audit_one_run(
    mu * included + rng.normal(size=num_canaries), included, delta=DELTA
  )
  scores = audited.scores
  inside, outside = scores[canaries.included], scores[~canaries.included]
  return {
    'data': source,
    'epsilon_claimed': found.epsilon_claimed,
    'epsilon_lower': found.epsilon_lower,
    'epsilon_lower_pure': found.epsilon_lower_pure,
    'mu_lower': found.mu_lower,
    'epsilon_lower_if_gaussian': found.epsilon_lower_gaussian,
    'p_value': found.p_value,
    'refuted': found.refuted,
    'preset': [preset.epsilon(), preset.epsilon(DELTA)],
    'gap': float((inside.mean() - outside.mean()) / outside.std()),
    'mu_of_the_claim': mu,
    'ideal': [ideal.epsilon_lower, ideal.epsilon_lower_gaussian],
    'num_canaries': num_canaries,
  }


def _mu_of(epsilon):
  """Returns mu of the Gaussian mechanism with this epsilon at `DELTA`."""
  low, high = 1e-3, 20.0
  for _ in range(40):
    middle = (low + high) / 2
    if gaussian_epsilon(middle, DELTA) < epsilon:
      low = middle
    else:
      high = middle
  return low


def lira(data_dir, epsilon, num_models, num_rows, epochs, num_processes):
  """The attack on models that overfit, or at an epsilon where it is given."""
  x, y, source = images(data_dir, num_rows)

  def train(included, seed):
    tf.keras.utils.set_random_seed(seed)
    network = tf.keras.Sequential(
      [tf.keras.layers.Dense(64, 'relu'), tf.keras.layers.Dense(10)]
    )
    rows = x[included], y[included]
    if epsilon is None:
      network.compile(tf.keras.optimizers.Adam(3e-3), _entropy())
      network.fit(*rows, batch_size=128, epochs=epochs, verbose=0)
    else:
      plan = tfdpflows.TrainingPlan.for_epsilon(
        epsilon=epsilon,
        delta=DELTA,
        num_examples=int(included.sum()),
        expected_batch_size=128,
        epochs=epochs,
        clipping=tfdpflows.gradients.Flat(1.0),
        accountant='rdp',
      )
      model = tfdpflows.PrivateModel(network)
      model.compile(plan.optimizer('adam', learning_rate=3e-3), _entropy())
      model.fit(*rows, verbose=0)
    logits = network.predict(x, batch_size=2000, verbose=0).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    own = np.take_along_axis(logits, y[:, None], 1)[:, 0]
    np.put_along_axis(logits, y[:, None], -np.inf, 1)
    # log p / (1 - p), without a probability that rounds to one.
    return own - np.log(np.exp(logits).sum(1) + 1e-30)

  # Every row is in half of the models; a model has about half of the rows, and
  # that number is public.
  shadows = audit.train_shadows(
    train, num_rows, num_models, num_processes=num_processes
  )
  found = {'data': source, 'num_models': num_models, 'num_rows': num_rows}
  found['false_positive'] = _RATES.tolist()
  for name, online in (('online', True), ('offline', False)):
    attack = audit.Lira(shadows, online=online)
    found[name] = attack.band(_RATES).tolist()
    found[f'{name}_at_1e-3'] = attack.band([1e-3])[:, 0].tolist()
    found[f'{name}_mean_at_1e-3'] = float(
      attack.true_positive_rates([1e-3]).mean()
    )
  found['chance_at_1e-3'] = _chance(shadows.included)
  found['quantiles'] = [q.tolist() for q in attack.quantiles(99)]
  return found


def _chance(included):
  """Rate of true positives above the k + 1 highest of equal scores."""
  outside = np.sum(~included, 1)
  return float(np.mean((np.floor(1e-3 * outside) + 1) / (outside + 1)))


def draw(runs, path):
  """Draws the figure of docs/understand/auditing.md."""
  figure = Figure(figsize=(10, 7), layout='constrained')
  (roc, bars), (attack, points) = figure.subplots(2, 2)
  colors = ('#0072b2', '#d55e00', '#009e73')
  whites = [run for run in runs if run['part'] == 'white_box']
  for run, color in zip(whites, colors):
    label = f'μ = {run["mu_claimed"]:g}: seen {run["mu_roc"]:.3f}'
    roc.plot(run['false_positive'], run['true_positive'], color, label=label)
  roc.plot([0, 1], [0, 1], '#999999', linestyle=':')
  roc.set(
    title='Dirac canaries, full batches',
    xlabel='false positives',
    ylabel='true positives',
  )
  ones = [run for run in runs if run['part'] == 'one_run']
  epsilons = sorted({run['epsilon'] for run in ones})
  mean = lambda of: np.mean(of) if len(of) else 0.0
  for i, (name, value) in enumerate(
    (
      ('ideal attack', lambda run: run['ideal'][0]),
      ('white box', lambda run: run['epsilon_lower']),
      ('black box', lambda run: run['epsilon_lower']),
    )
  ):
    wanted = 'black_box' if name == 'black box' else 'white_box'
    heights = [
      mean(
        [
          value(run)
          for run in ones
          if run['epsilon'] == epsilon and run['attack'] == wanted
        ]
      )
      for epsilon in epsilons
    ]
    bars.bar(
      np.arange(len(epsilons)) + 0.25 * (i - 1),
      heights,
      0.23,
      color=colors[i],
      label=name,
    )
  bars.set(
    title='One run: lower bound on ε (mean of runs)',
    xlabel='claimed ε',
    ylabel='ε at δ = 1e-5',
    xticks=range(len(epsilons)),
    xticklabels=[f'{epsilon:g}' for epsilon in epsilons],
  )
  bars.legend(fontsize=8)
  for run, color in zip(
    [run for run in runs if run['part'] == 'lira'], colors[::-1]
  ):
    name = f'ε = {run["epsilon"]:g}' if run['epsilon'] else 'not private'
    points.plot(*run['quantiles'], '.', color=color, label=name)
    low, median, high = np.maximum(run['online'], 1e-4)
    attack.loglog(run['false_positive'], median, color, label=name)
    attack.fill_between(
      run['false_positive'], low, high, color=color, alpha=0.2
    )
  attack.plot([1e-3, 1], [1e-3, 1], '#999999', linestyle=':')
  attack.set(
    title='LiRA, online: median, 5–95 % of targets',
    xlabel='false positives',
    ylabel='true positives',
    ylim=(5e-4, 1.2),
  )
  points.plot([-3, 3], [-3, 3], '#999999', linestyle=':')
  points.set(
    title='LiRA: Q-Q plot of scores of rows that were not in',
    xlabel='quantiles of the standard normal',
    ylabel='standardized scores',
  )
  for axes in (roc, attack, points):
    if axes.get_legend_handles_labels()[0]:
      axes.legend(loc='lower right', fontsize=8)
  figure.savefig(path, dpi=110)


def run(
  parts=_PARTS, *, num_runs=5, data_dir='', output=None, smoke=False, plot=None
):
  """Runs audits that a file of results does not have.

  Args:
    parts: some of 'white_box', 'one_run' and 'lira'.
    num_runs: trainings of each one-run audit.
    data_dir: where mnist.npz is; images are made up where it is not.
    output: JSON file to go on with, or `None`.
    smoke: tiny settings, to see that it runs.
    plot: figure to draw, or `None`.

  Returns:
    A JSON-able dict with `runs`.
  """
  header = {'delta': DELTA, 'smoke': smoke}
  keys = 'part', 'mu', 'epsilon', 'attack', 'run'
  results = ResultsFile(output, header, keys)
  for part in parts:
    for key, function, settings in _PLANS[part](num_runs, smoke):
      key = {**dict.fromkeys(keys), 'run': 0, 'part': part, **key}
      if results.has(**key):
        continue
      start = time.time()
      found = function(data_dir, **settings)
      wall = round(time.time() - start, 1)
      results.add({**key, **found, 'settings': settings, 'wall_seconds': wall})
      short = {k: v for k, v in found.items() if not isinstance(v, list)}
      logging.info('%s: %s, %s s', key, short, wall)
  if plot:
    draw(results.runs, plot)
  return results.content


def _white_boxes(num_runs, smoke):
  """Yields the values that tell runs apart, what runs, and its settings."""
  del num_runs
  for mu in (1.0,) if smoke else (0.5, 1.0, 2.0):
    yield (
      {'mu': mu},
      white_box,
      {
        'mu': mu,
        'num_canaries': 300 if smoke else 4000,
        # The smaller mu is, the more canaries a bound close to it needs.
        'num_runs': 1 if smoke else {0.5: 20, 1.0: 10, 2.0: 5}[mu],
        'num_rows': 100 if smoke else 1000,
      },
    )


def _one_runs(num_runs, smoke):
  for number in range(1 if smoke else num_runs):
    for epsilon in _EPSILONS[:1] if smoke else _EPSILONS:
      for attack in ('white_box', 'black_box'):
        key = {'epsilon': epsilon, 'attack': attack, 'run': number}
        yield (
          key,
          one_run,
          {
            **key,
            'num_canaries': 50 if smoke else 1000,
            'num_rows': 200 if smoke else 59_000,
            'epochs': 1 if smoke else 20,
          },
        )


def _liras(num_runs, smoke):
  del num_runs
  for epsilon in (None,) if smoke else (None, 1.0):
    yield (
      {'epsilon': epsilon},
      lira,
      {
        'epsilon': epsilon,
        'num_models': 6 if smoke else 32,
        'num_rows': 80 if smoke else 4000,
        'epochs': 1 if smoke else (40 if epsilon is None else 20),
        'num_processes': 1,
      },
    )


_PLANS = {'white_box': _white_boxes, 'one_run': _one_runs, 'lira': _liras}


def main(argv):
  """Runs what the flags ask for."""
  options = flag_values.read(argv)
  run(
    options.parts,
    num_runs=options.num_runs,
    data_dir=options.data_dir,
    output=options.output,
    smoke=options.smoke,
    plot=options.plot,
  )


def define_flags():
  """Defines the flags of the program."""
  flags.DEFINE_string('output', None, 'JSON file of the results.')
  flags.DEFINE_string('plot', None, 'Figure of the results.')
  flags.DEFINE_string('data_dir', '../shared/data', 'Where mnist.npz is.')
  flags.DEFINE_multi_enum('parts', list(_PARTS), _PARTS, 'What to run.')
  flags.DEFINE_integer('num_runs', 5, 'Trainings of each one-run audit.')
  flags.DEFINE_bool('smoke', False, 'Tiny settings, to see that it runs.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
