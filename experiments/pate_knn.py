r"""Private-kNN: accuracy of students by epsilon, on images.

Queries are the inputs of the public pool next to the centres of k-means
clusters, a student learns from the pool with their noisy answers, and all that
is charged is in epsilon:

    python -m experiments.pate_knn --dataset=mnist --epsilon=0.1,0.5 \
      --seeds=0,1,2,3,4 --output=experiments/results/pate_knn_mnist.json

Numbers of queries and neighbours were chosen with `--stand_in`, on training
rows alone. Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import dataclasses
import itertools
import time

import numpy as np
from absl import app, flags, logging

from experiments import flag_values, pate_data, pate_students
from experiments.results_file import ResultsFile
from tfdpflows import accounting, pate
from tfdpflows.randomness import Randomness

DELTA = 1e-5
DATASETS = ('digits', 'mnist')
_KEYS = (
  'epsilon',
  'num_queries',
  'num_neighbors',
  'sampling_probability',
  'seed',
)
# Public rows of the stand-in: a pool, and rows for the accuracy.
_POOL, _TEST = 9000, 1000


def run(
  dataset,
  *,
  epsilons=(0.5,),
  num_queries=(50,),
  num_neighbors=(2000,),
  sampling_probabilities=(1.0,),
  seeds=(0,),
  stand_in=False,
  output=None,
  smoke=False,
):
  """Answers queries and trains students.

  Args:
    dataset: one of `DATASETS`.
    epsilons: budgets, each at `DELTA`.
    num_queries: numbers of queries.
    num_neighbors: numbers of neighbours that vote.
    sampling_probabilities: of the sample of each query.
    seeds: of samples, noise and clusters.
    stand_in: whether to use training rows in place of the pool and the test
      set, to choose parameters by.
    output: JSON file that is written after every run, or `None`.
    smoke: whether to keep 2,000 private and 1,000 public rows.

  Returns:
    A JSON-able dict, with the `runs`.
  """
  data = pate_data.load(dataset)
  if stand_in:
    data = _stand_in(data)
  if smoke:
    data = dataclasses.replace(
      data,
      x=data.x[:2000],
      y=data.y[:2000],
      pool=data.pool[:1000],
      pool_labels=data.pool_labels[:1000],
    )
  header = {
    'dataset': dataset,
    'note': data.note,
    'delta': DELTA,
    'stand_in': stand_in,
    'smoke': smoke,
  }
  results = ResultsFile(output, header, _KEYS)
  for values in itertools.product(
    epsilons, num_queries, num_neighbors, sampling_probabilities, seeds
  ):
    case = dict(zip(_KEYS, values))
    if results.has(**case):
      continue
    start = time.perf_counter()
    found = answer(data, **case)
    results.add({**case, **found, 'seconds': time.perf_counter() - start})
    logging.info('%s: accuracy %.4f', case, found['accuracy'])
  return results.content


def answer(
  data, *, epsilon, num_queries, num_neighbors, sampling_probability, seed
):
  """Answers queries under a budget and trains a student.

  Returns:
    A JSON-able dict: `accuracy` of the student, the `correct` share of the
    answers, `sigma`, `spent`, and what the student finds without noise.
  """
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=epsilon, delta=DELTA)
  )
  chosen = pate_students.choose_queries(data, num_queries, seed)
  knn = pate.PrivateKNN.for_epsilon(
    data.x,
    data.y,
    epsilon=epsilon,
    delta=DELTA,
    num_queries=len(chosen),
    num_classes=data.num_classes,
    num_neighbors=num_neighbors,
    sampling_probability=sampling_probability,
    ledger=ledger,
    randomness=Randomness(seed=seed),
  )
  found = knn.query(data.pool[chosen])
  answers = np.full(len(data.pool), -1)
  answers[chosen] = found
  truth = answers.copy()
  truth[chosen] = data.pool_labels[chosen]
  return {
    'answers': len(chosen),
    'sigma': knn.sigma,
    'correct': float(np.mean(found == data.pool_labels[chosen])),
    'accuracy': pate_students.student_accuracy(data, answers, seed),
    'accuracy_of_true_answers': pate_students.student_accuracy(
      data, truth, seed
    ),
    'spent': ledger.epsilon(),
  }


def _stand_in(data):
  private = len(data.x) - _POOL - _TEST
  parts = slice(private), slice(private, private + _POOL), slice(-_TEST, None)
  (x, y), (pool, labels), (test_x, test_y) = (
    (data.x[part], data.y[part]) for part in parts
  )
  return dataclasses.replace(
    data,
    x=x,
    y=y,
    pool=pool,
    pool_labels=labels,
    test_x=test_x,
    test_y=test_y,
    note='training rows alone, the last 10,000 as pool and test set',
  )


def summary(content):
  """Returns lines with the median of each setting over its seeds, and spread.

  Args:
    content: what `run` returns.
  """
  groups = {}
  for found in content['runs']:
    key = tuple(found[name] for name in _KEYS[:-1])
    groups.setdefault(key, []).append(found)
  lines = []
  for key, runs in groups.items():
    accuracy = [found['accuracy'] for found in runs]
    correct = np.median([found['correct'] for found in runs])
    spent = max(found['spent'] for found in runs)
    lines.append(
      f'{key[1]} queries, {key[2]} neighbours, sampled {key[3]:g}, epsilon '
      f'{spent:.3f}: accuracy {np.median(accuracy):.4f} '
      f'({min(accuracy):.4f} to {max(accuracy):.4f} of {len(runs)}), answers '
      f'correct {correct:.3f}'
    )
  return lines


def main(argv):
  """Runs what the flags ask for and prints it."""
  options = flag_values.read(argv)
  numbers = lambda texts, kind: [kind(text) for text in texts]
  try:
    results = run(
      options.dataset,
      epsilons=numbers(options.epsilon, float),
      num_queries=numbers(options.num_queries, int),
      num_neighbors=numbers(options.num_neighbors, int),
      sampling_probabilities=numbers(options.sampling_probability, float),
      seeds=numbers(options.seeds, int),
      stand_in=options.stand_in,
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  print('\n'.join(summary(results)))


def _define_flags():
  flags.DEFINE_enum('dataset', 'mnist', DATASETS, 'Data set.')
  flags.DEFINE_list('epsilon', ['0.5'], f'Budgets, at delta {DELTA:g}.')
  flags.DEFINE_list('num_queries', ['50'], 'Numbers of queries.')
  flags.DEFINE_list('num_neighbors', ['2000'], 'Numbers of neighbours.')
  flags.DEFINE_list('sampling_probability', ['1'], 'Of each query.')
  flags.DEFINE_list('seeds', ['0'], 'Seeds.')
  flags.DEFINE_bool('stand_in', False, 'Training rows alone.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
