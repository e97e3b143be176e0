r"""Chooses teachers and queries for PATE on Adult, on its training rows alone.

Training rows are split into 20,000 to train on and others that stand for the
pool and for the test set. Teachers are as many as leave each the rows that it
would have of all, and the noise of the plan is scaled with their number:

    python -m experiments.pate_adult_choice \
      --output=experiments/results/pate_adult_stand_in.json

This search reads the private rows and is not part of any epsilon.
"""

from __future__ import annotations

import numpy as np
from absl import app, flags, logging

from experiments import flag_values, pate_data, pate_students
from experiments.results_file import ResultsFile
from tfdpflows import accounting, pate

EPSILON = 1.9
_TRAIN, _POOL = 20_000, 7561
_DRAWS = 3


def _logistic(strength):
  from sklearn import linear_model

  return linear_model.LogisticRegression(C=strength, max_iter=200)


TEACHERS = {
  'logistic, C 3': lambda: _logistic(3.0),
  'logistic, C 10': lambda: _logistic(10.0),
  'discriminant': pate_students.TEACHERS['adult'],
}


def run(
  *,
  num_teachers=(250, 400),
  num_queries=(500, 1000, 2000, 4000),
  splits=(0, 1, 2),
  output=None,
  rows=None,
):
  """Trains teachers and students on splits of the training rows.

  Args:
    num_teachers: numbers of teachers of all rows.
    num_queries: numbers of queries.
    splits: seeds of the splits.
    output: JSON file that is written after every run, or `None`.
    rows: how many rows to take, for a quick run; all if it is `None`.

  Returns:
    A JSON-able dict, with the `runs`: each with the mean `accuracy` of students
    of three draws of queries and noise, and that of the `plurality`.
  """
  data = pate_data.load('adult')
  x, y = data.x[:rows], data.y[:rows]
  scale = _TRAIN / len(data.x)
  header = {'epsilon': EPSILON, 'delta': pate_students.DELTA, 'rows': len(x)}
  keys = ('teachers', 'num_teachers', 'num_queries', 'split')
  results = ResultsFile(output, header, keys)
  sizes = [int(len(x) * scale), int(len(x) * _POOL / len(data.x))]
  for split in splits:
    rng = np.random.default_rng(100 + split)
    train, pool, test = np.split(rng.permutation(len(x)), np.cumsum(sizes))
    asked = np.concatenate([x[pool], x[test]])
    for name, make in TEACHERS.items():
      for count in num_teachers:
        scaled = round(count * scale)
        shards = rng.integers(scaled, size=len(train))
        votes = _votes(make, x[train], y[train], shards, asked)
        yes, of_test = np.split(votes, [len(pool)])
        found = {'plurality': float(np.mean((of_test > scaled / 2) == y[test]))}
        for queries in num_queries:
          accuracies = [
            _student(x[pool], yes, scaled, queries, scale, x[test], y[test], s)
            for s in range(_DRAWS)
          ]
          found['accuracy'] = float(np.mean(accuracies))
          key = dict(zip(keys, (name, count, queries, split)))
          results.add({**key, **found})
          logging.info('%s: %.4f', key, found['accuracy'])
  return results.content


def _votes(make, x, y, shards, asked):
  """Returns how many teachers vote for class 1, `[len(asked)]`."""
  votes = np.zeros(len(asked), np.int64)
  for shard in np.unique(shards):
    rows = shards == shard
    if len(np.unique(y[rows])) == 2:
      votes += make().fit(x[rows], y[rows]).predict(asked)
  return votes


def _student(pool, yes, teachers, queries, scale, test_x, test_y, seed):
  """Returns the accuracy of a student of noisy answers."""
  budget = accounting.PrivacyBudget(epsilon=EPSILON, delta=pate_students.DELTA)
  plan = pate.plan_queries(
    budget, num_teachers=teachers, num_classes=2, num_queries=queries
  )
  rng = np.random.default_rng([seed, queries])
  chosen = rng.choice(len(pool), min(queries, len(pool)), replace=False)
  noise = rng.normal(0, plan.sigma * scale, [2, len(chosen)])
  counts = np.stack([teachers - yes[chosen], yes[chosen]])
  student = pate_students.STUDENTS['adult'](seed)
  student.fit(pool[chosen], np.argmax(counts + noise, axis=0))
  return np.mean(student.predict(test_x) == test_y)


def main(argv):
  """Runs it and prints the means over the splits."""
  options = flag_values.read(argv)
  try:
    results = run(output=options.output)
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  found = {}
  for one in results['runs']:
    key = one['teachers'], one['num_teachers'], one['num_queries']
    found.setdefault(key, []).append(one['accuracy'])
  for key, accuracies in sorted(found.items(), key=lambda e: -np.mean(e[1])):
    print(f'{key}: {np.mean(accuracies):.4f}')


if __name__ == '__main__':
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  app.run(main)
