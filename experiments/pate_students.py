r"""PATE: accuracy of students, by epsilon, teachers, aggregator and threshold.

Teachers are trained on disjoint shards without noise, queries are answered
under a budget, and a student learns from the public pool with these answers:

    python -m experiments.pate_students --dataset=mnist --epsilon=0.5,1,2.04 \
      --seeds=0,1,2,3,4 --output=experiments/results/pate_mnist.json

Queries are the pool's inputs next to the centres of k-means clusters for
images, and random ones for Adult: both are functions of public inputs alone.
Epsilon is that of the ledger, whatever the votes; the data-dependent one beside
it is computed from private votes and not publishable. Seeds make the results
reproducible and therefore not private.
"""

from __future__ import annotations

import dataclasses
import time

import dp_accounting
import numpy as np
from absl import app, flags, logging

from experiments import flag_values, pate_data
from experiments.results_file import ResultsFile
from tfdpflows import accounting, pate
from tfdpflows.randomness import Randomness

DELTA = 1e-5
MECHANISMS = ('lnmax', 'gnmax', 'confident', 'exponential')
_KEYS = (
  'mechanism',
  'epsilon',
  'num_teachers',
  'num_queries',
  'agreement',
  'seed',
)
# Chosen on training rows of each data set, 50,000 and 20,000 to train and the
# rest in place of the pool and the test set: never on the test set.
_NUM_QUERIES = {'digits': 40, 'mnist': 200, 'adult': 2000}
# Of queries with a check, how many are answered.
_ANSWERED = 0.75


def run(
  dataset,
  *,
  mechanisms=('gnmax',),
  epsilons=(1.0,),
  num_teachers=(250,),
  num_queries=None,
  agreements=(None,),
  seeds=(0,),
  output=None,
  smoke=False,
):
  """Trains teachers and students.

  Args:
    dataset: one of `pate_data.DATASETS`.
    mechanisms: some of `MECHANISMS`.
    epsilons: budgets, each at `DELTA`.
    num_teachers: numbers of teachers.
    num_queries: numbers of queries; the default of the data set if `None`.
    agreements: shares of the teachers that 'confident' asks for, as its
      threshold; `None` for the threshold of the plan.
    seeds: of shards, teachers, noise and student.
    output: JSON file that is written after every run, or `None`.
    smoke: whether to use a few cheap teachers.

  Returns:
    A JSON-able dict, with the `runs`.
  """
  data = pate_data.load(dataset)
  header = {
    'dataset': dataset,
    'note': data.note,
    'delta': DELTA,
    'smoke': smoke,
  }
  results = ResultsFile(output, header, _KEYS)
  num_queries = num_queries or (_NUM_QUERIES[dataset],)
  for seed in seeds:
    for teachers in num_teachers:
      cases = [
        {
          'mechanism': mechanism,
          'epsilon': epsilon,
          'num_teachers': teachers,
          'num_queries': queries,
          'agreement': agreement,
          'seed': seed,
        }
        for mechanism in mechanisms
        for epsilon in epsilons
        for queries in num_queries
        for agreement in (agreements if mechanism == 'confident' else (None,))
      ]
      cases = [case for case in cases if not results.has(**case)]
      if not cases:
        continue
      start = time.perf_counter()
      ensemble = train(data, teachers, seed)
      seconds = time.perf_counter() - start
      for case in cases:
        start = time.perf_counter()
        found = answer(data, ensemble, **case)
        found['seconds'] = time.perf_counter() - start
        results.add({**case, **found, 'seconds_teachers': seconds})
        logging.info('%s: accuracy %.4f', case, found['accuracy'])
  return results.content


def train(data, num_teachers, seed):
  """Returns the trained teachers of a data set."""
  ensemble = pate.TeacherEnsemble(
    TEACHERS[data.name],
    num_teachers,
    data.num_classes,
    randomness=Randomness(seed=seed),
  )
  return ensemble.fit(data.x, data.y)


def answer(
  data,
  ensemble,
  *,
  mechanism,
  epsilon,
  num_teachers,
  num_queries,
  agreement,
  seed,
):
  """Answers queries under a budget and trains a student.

  Returns:
    A JSON-able dict: `accuracy` of the student, `answers`, their `correct`
    share, `refused`, how many of the `checked` queries failed the check, the
    parameters of the aggregator, `spent` and `data_dependent`.
  """
  del num_teachers  # The ensemble has them.
  budget = accounting.PrivacyBudget(epsilon=epsilon, delta=DELTA)
  ledger = accounting.PrivacyLedger(budget=budget)
  aggregator, facts = _aggregator(
    mechanism,
    budget,
    ensemble,
    num_queries,
    agreement,
    ledger=ledger,
    # Of its own for each case: the ensemble has the streams of the seed.
    randomness=Randomness(seed=1000 + seed),
  )
  chosen = choose_queries(data, num_queries, seed)
  votes = ensemble.votes(data.pool[chosen])
  found = aggregator.query(votes)
  answers = np.full(len(data.pool), -1)
  answers[chosen] = found
  given = found >= 0
  right = found == data.pool_labels[chosen]
  checked = len(given)
  if given.sum() == facts.get('max_answers'):
    # After the last of all answers nothing is answered any more.
    checked = int(np.flatnonzero(given)[-1]) + 1
  return {
    **facts,
    'accuracy': student_accuracy(data, answers, seed),
    'answers': int(given.sum()),
    'checked': checked,
    'refused': checked - int(given.sum()),
    'correct': float(right[given].mean()) if given.any() else None,
    'plurality_correct': float(
      np.mean(votes.argmax(1) == data.pool_labels[chosen])
    ),
    'spent': ledger.epsilon(),
    'data_dependent': _data_dependent(mechanism, facts, votes, given),
  }


def choose_queries(data, num_queries, seed):
  """Returns which inputs of the pool to ask for, from the pool alone."""
  if data.num_classes == 2:
    rng = np.random.default_rng(seed)
    return rng.choice(len(data.pool), num_queries, replace=False)
  from sklearn import cluster

  means = cluster.KMeans(num_queries, n_init=1, max_iter=30, random_state=seed)
  distances = means.fit_transform(data.pool)
  # One input may be next to two centres.
  return np.unique(np.argmin(distances, axis=0))


def student_accuracy(data, answers, seed):
  """Returns the accuracy of a student of answers, -1 where there is none."""
  if (answers >= 0).any() and len(np.unique(answers[answers >= 0])) > 1:
    student = STUDENTS[data.name](seed)
    if data.num_classes == 2:
      given = answers >= 0
      student.fit(data.pool[given], answers[given])
    else:
      student.fit(data.pool, answers)
    predicted = student.predict(data.test_x)
  else:
    predicted = np.full(len(data.test_y), max(int(answers.max()), 0))
  return float(np.mean(predicted == data.test_y))


def _aggregator(mechanism, budget, ensemble, num_queries, agreement, **given):
  """Returns an aggregator of the votes, and its parameters by name."""
  if mechanism in ('gnmax', 'confident'):
    answers = None
    if mechanism == 'confident':
      answers = max(int(_ANSWERED * num_queries), 1)
    plan = pate.plan_queries(
      budget,
      num_teachers=ensemble.num_teachers,
      num_classes=ensemble.num_classes,
      num_queries=num_queries,
      max_answers=answers,
    )
    facts = {'sigma': plan.sigma}
    if answers is not None:
      if agreement is not None:
        # The noise does not depend on it.
        threshold = agreement * ensemble.num_teachers
        plan = dataclasses.replace(plan, threshold=threshold)
      facts = {
        'threshold': plan.threshold,
        'sigma_threshold': plan.sigma_threshold,
        'sigma': plan.sigma,
        'max_answers': answers,
      }
    return plan.aggregator(ensemble, **given), facts
  # Noise of scale 1 / gamma; an epsilon of each query for the other.
  kind, name, event = {
    'lnmax': (pate.LNMax, 'gamma', accounting.LNMaxDpEvent),
    'exponential': (
      pate.ExponentialVote,
      'epsilon_per_query',
      accounting.ExponentialMechanismDpEvent,
    ),
  }[mechanism]
  noise = accounting.calibrate_noise_multiplier(
    lambda scale: dp_accounting.SelfComposedDpEvent(
      event(1 / scale), num_queries
    ),
    budget,
  )
  return ensemble.aggregator(kind, 1 / noise, **given), {name: 1 / noise}


def _data_dependent(mechanism, facts, votes, given):
  """Returns the cost by the votes, not publishable; `None` if unknown."""
  if mechanism == 'exponential':
    return None
  if mechanism == 'lnmax':
    event = accounting.LNMaxDpEvent(facts['gamma'])
    return pate.data_dependent_epsilon(event, votes, DELTA)
  if mechanism == 'gnmax':
    event = accounting.GNMaxDpEvent(facts['sigma'])
    return pate.data_dependent_epsilon(event, votes, DELTA)
  event = accounting.ConfidentGNMaxDpEvent(
    facts['threshold'], facts['sigma_threshold'], facts['sigma']
  )
  return pate.data_dependent_epsilon(event, votes, DELTA, answered=given)


def _svc():
  from sklearn import svm

  return svm.SVC(C=5, gamma=2.0)


def _discriminant():
  from sklearn import discriminant_analysis

  # Shrunk little, teachers of few rows still vote for the rare class.
  return discriminant_analysis.LinearDiscriminantAnalysis(
    solver='lsqr', shrinkage=0.1
  )


def _bayes():
  from sklearn import naive_bayes

  return naive_bayes.BernoulliNB(binarize=0.5)


def _spread(unused_seed):
  from sklearn import semi_supervised

  return semi_supervised.LabelSpreading(
    kernel='knn', n_neighbors=7, alpha=0.2, max_iter=200
  )


def _logistic(unused_seed):
  from sklearn import linear_model

  return linear_model.LogisticRegression(C=1.0, max_iter=500)


TEACHERS = {'digits': _bayes, 'mnist': _svc, 'adult': _discriminant}
STUDENTS = {'digits': _spread, 'mnist': _spread, 'adult': _logistic}


def main(argv):
  """Runs what the flags ask for and prints it."""
  options = flag_values.read(argv)
  numbers = lambda texts: [int(text) for text in texts]
  try:
    results = run(
      options.dataset,
      mechanisms=options.mechanism,
      epsilons=[float(epsilon) for epsilon in options.epsilon],
      num_teachers=numbers(options.num_teachers),
      num_queries=numbers(options.num_queries),
      agreements=[float(share) for share in options.agreement] or (None,),
      seeds=numbers(options.seeds),
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  for found in results['runs']:
    print(
      f'{found["mechanism"]}, {found["num_teachers"]} teachers, '
      f'{found["answers"]} of {found["num_queries"]} queries, epsilon '
      f'{found["spent"]:.3f}, seed {found["seed"]}: '
      f'accuracy {found["accuracy"]:.4f}'
    )


def _define_flags():
  flags.DEFINE_enum('dataset', 'mnist', pate_data.DATASETS, 'Data set.')
  flags.DEFINE_list('mechanism', ['gnmax'], f'Some of {MECHANISMS}.')
  flags.DEFINE_list('epsilon', ['1'], f'Budgets, at delta {DELTA:g}.')
  flags.DEFINE_list('num_teachers', ['250'], 'Numbers of teachers.')
  flags.DEFINE_list('num_queries', [], 'Numbers of queries.')
  flags.DEFINE_list('agreement', [], 'Shares of teachers, as thresholds.')
  flags.DEFINE_list('seeds', ['0'], 'Seeds.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
