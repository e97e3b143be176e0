r"""What noise that is correlated over steps is worth.

A classifier of images by SGD and a flow by Adam are trained with independent
and with banded noise (`TrainingPlan(noise=...)`) at the same epsilon, batch and
number of steps. The learning rate of each is the best of four on rows apart, by
one seed: not charged, for both alike.

    python -m experiments.banded_noise --seeds=0,1,2 \
      --output=experiments/results/banded_noise.json

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time

import numpy as np
import tensorflow as tf
from absl import app, logging
from sklearn import datasets as sklearn_datasets

import tfdpflows
from experiments import density_datasets, flag_values, pate_data
from experiments.results_file import ResultsFile
from tfdpflows import _keras, flows, gradients

keras = _keras.keras
DELTA = 1e-5
EPSILONS = (1.0, 3.0, 8.0)
NOISE = ('independent', 'banded')
STEPS, BATCH = 1000, 600
# Rows of the unit ball are about as wide as the base of a flow after it.
_SCALE = 8.0
_KEYS = ('task', 'epsilon', 'noise', 'learning_rate', 'seed')


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
  """Something to learn.

  Attributes:
    rows: what is trained on, arrays.
    apart: rows that choose the learning rate.
    test: rows that are scored.
    model: a function of a seed that returns a model of this library.
    compile: keyword arguments of its `compile`, without the optimizer.
    optimizer: its name.
    clip: the clipping norm.
    learning_rates: those to choose from.
    score: a function of the model and rows; larger is better.
  """

  rows: tuple
  apart: tuple
  test: tuple
  model: object
  compile: dict
  optimizer: str
  clip: float
  learning_rates: tuple
  score: object


def _images(x, y, test_x, test_y, size):
  x, test_x = (a.reshape(len(a), -1).astype(np.float32) for a in (x, test_x))
  kept = len(x) - len(x) // 10

  def model(seed):
    keras.utils.set_random_seed(seed)
    network = keras.Sequential(
      [keras.layers.Dense(128, 'tanh'), keras.layers.Dense(10)]
    )
    network(x[:1])
    return tfdpflows.PrivateModel(network)

  def score(model, rows):
    found = np.argmax(model.model(rows[0]).numpy(), 1)
    return float(np.mean(found == rows[1]))

  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  return Task(
    (x[:kept] / size, y[:kept]),
    (x[kept:] / size, y[kept:]),
    (test_x / size, test_y),
    model,
    {'loss': loss},
    'sgd',
    1.0,
    (1.0, 2.0, 4.0, 8.0),
    score,
  )


def _digits():
  x, y = sklearn_datasets.load_digits(return_X_y=True)
  return _images(x[:1500], y[:1500], x[1500:], y[1500:], 16.0)


def _mnist():
  x, y, test_x, test_y = pate_data.shared().mnist()
  return _images(x, y.astype(int), test_x, test_y.astype(int), 255.0)


def _density(name):
  rows = density_datasets.load(name)
  train, test = (part * _SCALE for part in rows.split(0))
  kept = len(train) - len(train) // 10

  def model(seed):
    return tfdpflows.DensityModel(
      flows.masked_autoregressive_flow(
        train.shape[1], 3, (64, 64), activation='tanh', seed=seed
      )
    )

  def score(model, rows):
    log_probs = tf.function(model.distribution.log_prob)(rows[0])
    # Of rows in the unit ball; a few that are far off do not decide.
    return float(
      tf.reduce_mean(tf.maximum(log_probs, -50.0))
      + train.shape[1] * np.log(_SCALE)
    )

  return Task(
    (train[:kept],),
    (train[kept:],),
    (test,),
    model,
    {},
    'adam',
    5.0,
    (0.003, 0.01, 0.03, 0.1),
    score,
  )


TASKS = {
  'digits': _digits,
  'lifesci': functools.partial(_density, 'lifesci'),
  'mnist': _mnist,
  'pinwheel': functools.partial(_density, 'pinwheel'),
}


def run(
  tasks=('mnist', 'lifesci'),
  *,
  epsilons=EPSILONS,
  seeds=(0,),
  output=None,
  smoke=False,
):
  """Trains each task with both kinds of noise.

  Args:
    tasks: some of `TASKS`.
    epsilons: budgets, each at `DELTA`.
    seeds: of weights and noise; the first one chooses the learning rate.
    output: JSON file that grows run by run, or `None`.
    smoke: whether to make five steps only, with two learning rates.

  Returns:
    The `ResultsFile`.
  """
  results = ResultsFile(
    output,
    {'delta': DELTA, 'steps': STEPS, 'batch': BATCH, 'smoke': smoke},
    _KEYS,
  )
  for name in tasks:
    task = TASKS[name]()
    if smoke:
      task = dataclasses.replace(task, learning_rates=task.learning_rates[:2])
    for epsilon, noise in itertools.product(epsilons, NOISE):
      run_best(
        results,
        task,
        task.learning_rates,
        seeds,
        {'task': name, 'epsilon': epsilon, 'noise': noise},
        noise=noise,
      )
  return results


def run_best(results, task, rates, seeds, key, **settings):
  """Trains with the rate that is best on rows apart, by the first seed.

  Args:
    results: the `ResultsFile`; runs that it has are not made again.
    task: a `Task`.
    rates: learning rates to choose from.
    seeds: all that the best one is trained with.
    key: dict with 'epsilon', and what else names a run.
    **settings: of `_train`.
  """

  def trained(rate, seed):
    named = {**key, 'learning_rate': rate, 'seed': seed}
    if not results.has(**named):
      smoke = results.content['smoke']
      found = _train(task, rate, seed, smoke, key['epsilon'], **settings)
      results.add({**named, **found})
      logging.info('%s: %s', named, found)
    (run,) = (r for r in results.runs if named.items() <= r.items())
    return run

  best = max(rates, key=lambda rate: trained(rate, seeds[0])['apart'])
  for seed in seeds:
    trained(best, seed)


def _train(
  task,
  learning_rate,
  seed,
  smoke,
  epsilon,
  noise='independent',
  optimizer=None,
  **settings,
):
  """Trains once; `optimizer` is that of the task by default."""
  start = time.perf_counter()
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=epsilon,
    delta=DELTA,
    num_examples=len(task.rows[0]),
    expected_batch_size=100 if smoke else BATCH,
    steps=5 if smoke else STEPS,
    clipping=gradients.Flat(task.clip),
    noise=noise,
    accountant='rdp' if smoke else 'pld',
    seed=seed,
  )
  model = task.model(seed)
  model.compile(
    optimizer=plan.optimizer(
      optimizer or task.optimizer, learning_rate=learning_rate, **settings
    ),
    **task.compile,
  )
  model.fit(*task.rows, verbose=0)
  return {
    'apart': task.score(model, task.apart),
    'test': task.score(model, task.test),
    'bands': plan.sampler.parts,
    'noise_multiplier': plan.noise_multiplier,
    'error_of_sums': plan.mechanism.error(plan.noise_multiplier),
    'epsilon_spent': plan.ledger.epsilon(),
    'seconds': round(time.perf_counter() - start, 1),
  }


def main(argv):
  """Runs what the flags ask for."""
  flag_values.run_all(argv, run, 'tasks')


if __name__ == '__main__':
  flag_values.define('tasks', ['mnist', 'lifesci'], EPSILONS)
  app.run(main)
