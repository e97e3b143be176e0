"""PATE must not leak: what finds each way in which implementations have.

Public implementations were found to draw the rows of each teacher anew, to
train teachers again on other rows, to scale rows by their own extremes, to
answer without a charge, and to have less noise than they claim. Each is made
again here by a small change, and must be found; ours has none.
"""

import dp_accounting
import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from tfdpflows import accounting, audit, pate
from tfdpflows._keras import keras
from tfdpflows.pate import teachers as teachers_lib
from tfdpflows.randomness import Randomness

TEACHERS = 8


def table(n=160):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[n, 2])
  return x, (x[:, 0] > 0).astype(int)


def neighbours():
  """Tables that differ in one row, as far away as a row can be."""
  x, y = table()
  other_x, other_y = x.copy(), y.copy()
  other_x[-1], other_y[-1] = [1e3, -1e3], 1 - y[-1]
  return (x, y), (other_x, other_y), (x[:-1], y[:-1])


def votes_of_each(ensemble, queries):
  """[teachers, queries]: what each votes."""
  return np.array(
    [
      ensemble._vote(t, teacher, teacher.model, queries)
      for t, teacher in enumerate(ensemble._teachers)
    ]
  )


def changed_teachers(make, sessions=1):
  """How many teachers one row changes, over all that they are asked."""
  queries = np.random.default_rng(1).normal(scale=2, size=[400, 2])
  found = []
  for x, y in neighbours():
    ensemble = make(GaussianNB, TEACHERS, 2, randomness=Randomness(seed=3))
    votes = []
    for _ in range(sessions):
      ensemble.fit(x, y, progress=False)
      votes.append(votes_of_each(ensemble, queries))
    found.append(np.concatenate(votes, axis=1))
  return max((found[0] != other).any(1).sum() for other in found[1:])


class Resampled(pate.TeacherEnsemble):
  """Each teacher draws its rows from all."""

  def fit(self, x, y, **kwargs):
    self._all = x, y
    return super().fit(x, y, **kwargs)

  def _train(self, task):
    t, rows, _, seed = task
    x, y = self._all
    drawn = np.random.default_rng(seed).integers(len(x), size=6 * len(rows))
    return super()._train((t, x[drawn], y[drawn], seed))


class Refitted(pate.TeacherEnsemble):
  """Teachers are trained on new shards for each session of queries."""

  def fit(self, x, y, **kwargs):
    self._teachers = None
    session = self.__dict__.setdefault('_sessions', [])
    session.append(1)
    self._randomness = Randomness(seed=100 + len(session))
    return super().fit(x, y, **kwargs)


class Scaled(pate.TeacherEnsemble):
  """Rows are scaled by their own extremes."""

  def fit(self, x, y, **kwargs):
    x = (x - x.min(0)) / (x.max(0) - x.min(0))
    return super().fit(np.round(x, 1), y, **kwargs)


def test_a_row_changes_one_teacher():
  assert changed_teachers(pate.TeacherEnsemble) <= 1


def test_resampled_rows_are_found():
  assert changed_teachers(Resampled) > 1


def test_teachers_that_are_trained_again_are_found():
  with pytest.raises(ValueError, match='trained already'):
    changed_teachers(pate.TeacherEnsemble, sessions=2)
  assert changed_teachers(Refitted, sessions=4) > 1


def test_raw_extremes_are_found():
  assert changed_teachers(Scaled) > 1


# Charges.


def uncharged(make, queries=20):
  """Epsilon of what was answered, less that of what was charged."""
  ledger = accounting.PrivacyLedger()
  aggregator = make(5.0, num_teachers=TEACHERS, num_classes=2, ledger=ledger)
  answered = 0
  for _ in range(queries):
    answered += int((aggregator.query([[TEACHERS, 0]]) >= 0).sum())
  events = [accounting.GNMaxDpEvent(5.0)] * answered
  spent = accounting.compute_epsilon(
    dp_accounting.ComposedDpEvent(events), 1e-5
  )
  return spent - ledger.epsilon(1e-5)


class FirstCharged(pate.GNMax):
  """Charges its first query alone."""

  def _charged(self, event, arrays, count, **facts):
    if self._calls:
      return self._randomness.numpy(self._next_label())
    return super()._charged(event, arrays, count, **facts)


def test_queries_are_not_free():
  assert uncharged(pate.GNMax) <= 1e-6
  assert uncharged(FirstCharged) > 0.5


# Noise.


def lower_bound(make, votes, other, runs=120_000):
  """A bound below the epsilon of one query, with 99.99 % confidence.

  Each run is a query of its own; of all sets of answers, single classes are
  enough for a choice by noisy counts.
  """
  answers = [
    make(
      num_teachers=sum(votes),
      num_classes=len(votes),
      ledger=accounting.PrivacyLedger(),
      randomness=Randomness(seed=seed),
    ).query(np.tile(table, [runs, 1]))
    for seed, table in enumerate((votes, other))
  ]
  return max(
    audit.error_rates(
      answers[0] == c, answers[1] == c, delta=0.0, confidence=0.9999
    ).epsilon(0.0)
    for c in range(len(votes))
  )


PURE = {
  'lnmax': (lambda **kwargs: pate.LNMax(0.5, **kwargs), 1.0),
  'exponential': (lambda **kwargs: pate.ExponentialVote(1.0, **kwargs), 1.0),
}
PAIRS = [([4, 4], [3, 5]), ([6, 2], [5, 3]), ([1, 3, 4], [1, 4, 3])]


@pytest.mark.parametrize('name', sorted(PURE))
@pytest.mark.parametrize('pair', PAIRS, ids=str)
def test_audits_stay_below_the_claim(name, pair):
  make, epsilon = PURE[name]
  assert lower_bound(make, *pair) <= epsilon


class Inverted(pate.LNMax):
  """Noise of scale gamma, and not 1 / gamma."""

  def _answer(self, votes):
    rng = self._charged(
      accounting.LNMaxDpEvent(self.gamma), [votes], len(votes)
    )
    return np.argmax(votes + rng.laplace(scale=self.gamma, size=votes.shape), 1)


class Misplaced(pate.ExponentialVote):
  """`exp(epsilon) n / 2` for `exp(epsilon n / 2)`, in the log."""

  def _answer(self, votes):
    event = accounting.ExponentialMechanismDpEvent(self.epsilon)
    rng = self._charged(event, [votes], len(votes))
    utility = np.exp(self.epsilon) * votes / 2
    return np.argmax(utility + rng.gumbel(size=votes.shape), 1)


@pytest.mark.parametrize(
  'make',
  [
    lambda **kwargs: Inverted(0.5, **kwargs),
    lambda **kwargs: Misplaced(1.0, **kwargs),
  ],
  ids=['inverted scale', 'misplaced exponent'],
)
def test_too_little_noise_is_found(make):
  assert max(lower_bound(make, *pair) for pair in PAIRS) > 1.0


# Students.


def test_a_student_is_a_function_of_the_answers():
  """Other private rows and the same answers give the same student."""

  class Forced(pate.GNMax):
    def _answer(self, votes):
      super()._answer(votes)
      return np.arange(len(votes)) % 2

  queries = np.random.default_rng(5).normal(size=[60, 2]).astype('float32')
  weights = []
  for x, y in neighbours()[:2]:
    trained = pate.TeacherEnsemble(GaussianNB, TEACHERS, 2).fit(
      x, y, progress=False
    )
    aggregator = Forced(
      2.0,
      num_teachers=TEACHERS,
      num_classes=2,
      ledger=accounting.PrivacyLedger(),
    )
    answers = aggregator.query(trained.votes(queries))
    keras.utils.set_random_seed(0)
    student = keras.Sequential([keras.layers.Dense(2)])
    student.compile(optimizer=keras.optimizers.SGD(0.1))
    pate.fit_student(student, queries, answers, steps=3, seed=1)
    weights.append(student.get_weights())
  for one, other in zip(*weights):
    np.testing.assert_array_equal(one, other)


def test_teachers_of_one_answer_vote_alone():
  teacher = teachers_lib.Teacher(None, np.array([1.0]))
  ensemble = pate.TeacherEnsemble(GaussianNB, 3, 2)
  ensemble._teachers, ensemble._shape = [teacher] * 3, (5,)
  assert ensemble.votes(np.zeros([2, 5])).tolist() == [[0, 3], [0, 3]]
