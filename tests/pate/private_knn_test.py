"""Private-kNN: sensitivity by replay on neighbours, charges, answers."""

import itertools
import math
import signal

import dp_accounting
import numpy as np
import pytest
import scipy.stats

from tests import forked
from tests.grids import thinned
from tfdpflows import accounting, audit, pate
from tfdpflows.accounting import mechanisms
from tfdpflows.randomness import Randomness

ADD = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


def make(features, labels, ledger=None, seed=0, **kwargs):
  kwargs = {
    'num_classes': 3,
    'num_neighbors': 3,
    'sampling_probability': 0.5,
    'sigma': 5.0,
    'randomness': Randomness(seed=seed),
    **kwargs,
  }
  ledger = accounting.PrivacyLedger() if ledger is None else ledger
  return pate.PrivateKNN(features, labels, ledger=ledger, **kwargs)


def tables():
  """Small tables: any, with ties, with duplicates of few rows, of one point."""
  for seed in range(12):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 14)), int(rng.integers(1, 40))
    x = rng.uniform(-1, 1, [n, d])
    if seed % 4 == 1:
      x = np.round(x)
    elif seed % 4 == 2:
      x = x[rng.integers(0, min(n, 2), n)]
    elif seed % 4 == 3:
      # Distances that differ in the last digits of a float only.
      x = x[:1] + rng.choice([-1e-8, 0.0, 1e-8], x.shape)
    yield x, rng.integers(0, 3, n), rng.uniform(-1, 1, [7, d]), rng


def votes_of(x, y, queries, draws, **kwargs):
  """Counts of each query, with the number that each row drew."""
  made = make(x, y, **kwargs)
  return [
    made._votes(row, u)
    for row, u in zip(made._scores(made._rounded(queries)), draws)
  ]


@pytest.mark.parametrize('num_neighbors', [1, 2, 5])
def test_a_row_that_is_removed_moves_one_vote_in_and_one_out(num_neighbors):
  largest = 0
  for x, y, queries, rng in tables():
    draws = rng.random([len(queries), len(x)])
    whole = votes_of(x, y, queries, draws, num_neighbors=num_neighbors)
    for row in range(len(x)):
      rest = [
        np.delete(a, row, axis) for a, axis in ((x, 0), (y, 0), (draws, 1))
      ]
      fewer = votes_of(
        rest[0], rest[1], queries, rest[2], num_neighbors=num_neighbors
      )
      for one, other in zip(whole, fewer):
        largest = max(largest, np.sum((one - other) ** 2))
        assert np.sum((one - other) ** 2) <= 2
        assert abs(np.max(one) - np.max(other)) <= 1
        # A row more can only replace a voter, or be one more.
        assert 0 <= np.sum(one) - np.sum(other) <= 1
  assert largest == 2


def test_a_row_that_is_replaced_moves_one_vote():
  largest = 0
  for x, y, queries, rng in tables():
    draws = rng.random([len(queries), len(x)])
    # In the sample of every query.
    draws[:, 0] *= 0.5
    before = votes_of(x, y, queries, draws)
    for _ in range(20):
      others, labels = x.copy(), y.copy()
      others[0] = rng.choice(
        [rng.uniform(-1, 1, x.shape[1]), x[-1], queries[0]]
      )
      labels[0] = rng.integers(0, 3)
      after = votes_of(others, labels, queries, draws)
      for one, other in zip(before, after):
        largest = max(largest, np.sum((one - other) ** 2))
        assert np.sum((one - other) ** 2) <= 2
        assert abs(np.max(one) - np.max(other)) <= 1
  assert largest == 2


@pytest.mark.parametrize('d', [1, 7, 324, 5000])
def test_distances_are_exact_and_those_of_two_rows_alone(d):
  rng = np.random.default_rng(d)
  x = np.concatenate(
    [rng.uniform(-1, 1, [60, d]), np.ones([2, d]), -np.ones([1, d])]
  )
  queries = np.concatenate([rng.uniform(-1, 1, [9, d]), np.ones([1, d])])
  made = make(x, np.zeros(len(x)))
  rounded, asked = made._rounded(x), made._rounded(queries)
  scores = made._scores(asked)
  exact = [
    [
      sum(int(a) * (int(a) - 2 * int(b)) for a, b in zip(row, q))
      for row in rounded
    ]
    for q in asked
  ]
  assert scores.tolist() == exact
  for rows in ([3], [0, 62], rng.permutation(63)[:17]):
    part = make(x[rows], np.zeros(len(rows)))
    for i in range(10):
      np.testing.assert_array_equal(
        part._scores(asked[i : i + 1])[0], scores[i, rows]
      )


def test_votes_are_those_of_the_nearest_rows():
  rng = np.random.default_rng(1)
  x, y = rng.uniform(-1, 1, [300, 4]), rng.integers(0, 3, 300)
  queries = rng.uniform(-1, 1, [20, 4])
  draws = rng.random([20, 300])
  found = votes_of(x, y, queries, draws, num_neighbors=11)
  for query, u, votes in zip(queries, draws, found):
    order = np.argsort(np.sum((x - query) ** 2, axis=1))
    nearest = [row for row in order if u[row] < 0.5][:11]
    np.testing.assert_array_equal(votes, np.bincount(y[nearest], minlength=3))


def test_equal_distances_are_drawn_by_lot():
  x, y = np.zeros([40, 2]), np.arange(40) % 2
  made = make(
    x, y, num_classes=2, num_neighbors=1, sampling_probability=1.0, sigma=1e-3
  )
  answers = made.query(np.ones([2000, 2]))
  assert scipy.stats.binomtest(int(np.sum(answers)), 2000).pvalue > 1e-4


def test_rows_that_cannot_vote_are_as_if_absent():
  x = np.random.default_rng(0).uniform(-1, 1, [6, 3])
  y = np.array([0.0, 1, 2, 1, 0, 2])
  origin = [0.0, 0.0, 0.0]
  unusable = [([np.nan, 0, 0], 0), ([0, np.inf, 0], 1)]
  unusable += [(origin, label) for label in (3, -1, 0.5, 1e300)]
  unusable += [(origin, label) for label in (np.nan, np.inf)]
  more = np.concatenate([x, [row for row, _ in unusable]])
  made = make(more, np.concatenate([y, [label for _, label in unusable]]))
  same = make(x, y)
  np.testing.assert_array_equal(made._features, same._features)
  np.testing.assert_array_equal(made._labels, same._labels)
  for none in (make(more[6:], [7.0] * 8), make(np.zeros([0, 3]), np.zeros(0))):
    assert set(none.query(np.zeros([50, 3]))) == {0, 1, 2}


def test_features_beyond_the_bound_are_clipped():
  x = np.array([[-1e300], [5.0], [0.5]])
  a = make(x, np.arange(3), feature_bound=2.0)
  b = make(np.clip(x, -2, 2), np.arange(3), feature_bound=2.0)
  np.testing.assert_array_equal(a._features, b._features)
  assert np.argsort(a._scores(a._rounded(np.array([[1e9]])))[0]).tolist() == [
    1,
    2,
    0,
  ]


def test_answers_of_clear_votes_are_right():
  rng = np.random.default_rng(0)
  centers = np.eye(4)
  y = np.repeat(np.arange(4), 500)
  x = centers[y] + rng.normal(0, 0.1, [2000, 4])
  made = make(
    x, y, num_classes=4, num_neighbors=60, sampling_probability=0.3, sigma=8.0
  )
  queries = np.repeat(centers, 25, axis=0)
  np.testing.assert_array_equal(
    made.query(queries), np.repeat(np.arange(4), 25)
  )
  # Again as many voters of two classes: refused, mostly.
  check = {'threshold': 45.0, 'sigma_threshold': 3.0}
  made = make(
    x, y, num_classes=4, num_neighbors=60, sampling_probability=0.3, sigma=8.0,
    **check,
  )  # fmt: skip
  between = (centers[0] + centers[1]) / 2
  answers = made.query(np.concatenate([queries, np.tile(between, [100, 1])]))
  np.testing.assert_array_equal(answers[:100], np.repeat(np.arange(4), 25))
  assert np.mean(answers[100:] == -1) > 0.9
  assert made.answered == np.sum(answers >= 0)


# What is charged.


def test_every_query_is_charged_before_it_is_answered(monkeypatch):
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=2.0, delta=1e-5)
  )
  made = make(np.zeros([9, 2]), np.zeros(9), ledger, sigma=10.0)
  seen = []
  answer = made._answer
  monkeypatch.setattr(
    made,
    '_answer',
    lambda *args: seen.append(ledger.epsilon()) or answer(*args),
  )
  made.query(np.zeros([5, 2]))
  made.query(np.zeros([1, 2]))
  sampled = dp_accounting.PoissonSampledDpEvent(
    0.5, accounting.GNMaxDpEvent(10.0)
  )
  epsilons = [
    accounting.compute_epsilon(
      dp_accounting.SelfComposedDpEvent(sampled, count), 1e-5
    )
    for count in (5, 6)
  ]
  assert seen[:5] == pytest.approx([epsilons[0]] * 5)
  assert seen[5] == pytest.approx(epsilons[1])
  assert [entry.label for entry in ledger.entries] == [
    'private kNN, call 1',
    'private kNN, call 2',
  ]


def test_queries_beyond_the_budget_are_refused_unanswered(monkeypatch):
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  )
  made = make(np.zeros([9, 2]), np.zeros(9), ledger, sigma=10.0)
  made.query(np.zeros([10, 2]))
  spent = ledger.epsilon()

  def never(*args):
    raise AssertionError('A query was answered.')

  monkeypatch.setattr(made, '_answer', never)
  with pytest.raises(
    accounting.BudgetExceededError, match='private kNN, call 2'
  ):
    made.query(np.zeros([500, 2]))
  assert ledger.epsilon() == spent
  monkeypatch.undo()
  # The refused call has used up nothing.
  assert len(made.query(np.zeros([3, 2]))) == 3
  assert len(made.query(np.zeros([0, 2]))) == 0
  assert len(ledger.entries) == 2


def test_no_more_than_max_answers_all_charged_in_advance():
  ledger = accounting.PrivacyLedger()
  made = make(
    np.zeros([9, 2]), np.zeros(9), ledger, threshold=-1e6, sigma_threshold=4.0,
    max_answers=7,
  )  # fmt: skip
  found = [made.query(np.zeros([n, 2])) for n in (5, 10)]
  assert np.sum(np.concatenate(found) >= 0) == 7 == made.answered
  assert set(found[1][2:]) == {-1}
  with pytest.raises(accounting.BudgetExceededError, match='its 7 answers'):
    made.query(np.zeros([1, 2]))
  sampled = lambda event: dp_accounting.PoissonSampledDpEvent(0.5, event)
  expected = [
    (sampled(accounting.VoteThresholdDpEvent(4.0)), 15),
    (sampled(accounting.GNMaxDpEvent(5.0)), 7),
  ]
  composed = dp_accounting.ComposedDpEvent(
    [dp_accounting.SelfComposedDpEvent(*pair) for pair in expected]
  )
  assert mechanisms.decompose(ledger.event) == mechanisms.decompose(composed)
  assert made.event(15) == composed


def test_check_and_answer_of_a_cap_draw_samples_of_their_own():
  # One row that is in about half of the samples: if the answer had the sample
  # of the check, which only passes with the row, it would always see it.
  made = make(
    np.zeros([1, 2]), [1], num_classes=2, sigma=1e-6, threshold=0.5,
    sigma_threshold=1e-6, max_answers=10**6,
  )  # fmt: skip
  answers = made.query(np.zeros([2000, 2]))
  passed = answers[answers >= 0]
  assert scipy.stats.binomtest(len(passed), 2000, 0.5).pvalue > 1e-4
  # Without the row, both counts are zero and noise decides.
  assert (
    scipy.stats.binomtest(int(sum(passed)), len(passed), 0.75).pvalue > 1e-4
  )


@pytest.mark.parametrize('relation', [ADD, REPLACE], ids=lambda x: x.name)
def test_events_are_at_the_noise_of_two_votes(relation):
  def only(**kwargs):
    event = pate.private_knn_event(1, sampling_probability=0.2, **kwargs)
    (mechanism,) = mechanisms.decompose(event, relation)
    assert mechanism.sampling_probability == 0.2
    return mechanism

  assert only(sigma=6.0).noise_multiplier == pytest.approx(6 / math.sqrt(2))
  both = only(sigma=6.0, threshold=30.0, sigma_threshold=9.0)
  assert both.noise_multiplier == pytest.approx((2 / 36 + 1 / 81) ** -0.5)
  accounting.compute_epsilon(
    pate.private_knn_event(50, sampling_probability=0.2, sigma=6.0),
    1e-5,
    neighboring_relation=relation,
  )


@pytest.mark.parametrize(
  ('check', 'relation'),
  thinned(
    itertools.product(
      (
        {},
        {'threshold': 20.0, 'sigma_threshold': 100.0},
        {'threshold': 20.0, 'sigma_threshold': 100.0, 'max_answers': 30},
      ),
      (ADD, REPLACE),
    ),
    # Each way once, and either relation.
    lambda point: (len(point[0]) == 2) == (point[1] is REPLACE),
  ),
)
def test_for_epsilon_finds_the_least_noise(relation, check):
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  ledger = accounting.PrivacyLedger(
    budget=budget, neighboring_relation=relation
  )
  ledger.charge(dp_accounting.GaussianDpEvent(20.0), label='before')
  made = pate.PrivateKNN.for_epsilon(
    np.zeros([9, 2]), np.zeros(9), epsilon=1.0, delta=1e-5, num_queries=60,
    ledger=ledger, num_classes=3, num_neighbors=5, sampling_probability=0.1,
    **check,
  )  # fmt: skip
  assert len(ledger.entries) == 1
  for _ in range(3):
    made.query(np.zeros([20, 2]))
  assert 0.99 < ledger.epsilon() <= 1.0
  with pytest.raises(accounting.BudgetExceededError):
    made.query(np.zeros([5000, 2]))


@pytest.mark.parametrize('check', [False, True])
def test_no_attack_sees_more_than_the_claim(check):
  # The last row is nearest, and the only one of its label.
  options = {
    'num_classes': 2,
    'num_neighbors': 3,
    'sampling_probability': 0.6,
    'sigma': 1.5,
  }
  if check:
    options.update(threshold=2.5, sigma_threshold=3.0)
  runs, delta = 20_000, 1e-3
  x, y = np.array([[0.5]] * 20 + [[0.0]]), np.array([0] * 20 + [1])
  tables = [(x, y), (x[:20], y[:20])]
  answers = [
    make(*table, seed=seed, **options).query(np.zeros([runs, 1]))
    for seed, table in enumerate(tables)
  ]
  event = make(x, y, **options).event(1)
  claim = accounting.compute_epsilon(event, delta)
  # An answer against the two others, in both directions.
  found = max(
    audit.error_rates(
      *(given == answer for given in answers), delta=delta, confidence=0.9998
    ).epsilon(delta)
    for answer in (-1, 0, 1)
  )
  assert found <= claim
  # It is an attack, that would refute a much smaller claim.
  assert found > claim / (6 if check else 3)


def test_killed_while_it_answers_everything_is_charged(tmp_path):
  path = str(tmp_path / 'ledger')
  code = f"""
import os, signal
import numpy as np
from tfdpflows import accounting, pate
made = pate.PrivateKNN(
  np.zeros([9, 2]), np.zeros(9), num_classes=2, num_neighbors=3,
  sampling_probability=.5, sigma=5., ledger=accounting.PrivacyLedger({path!r}))
answer = made._answer
def dies(*args):
  if made.answered == 3:
    os.kill(os.getpid(), signal.SIGKILL)
  return answer(*args)
made._answer = dies
made.query(np.zeros([10, 2]))
"""
  log = tmp_path / 'log.txt'
  assert forked.run(['-c', code], log) == -signal.SIGKILL, log.read_text()
  with accounting.PrivacyLedger.open(path) as ledger:
    expected = pate.private_knn_event(10, sampling_probability=0.5, sigma=5.0)
    assert mechanisms.decompose(ledger.event) == mechanisms.decompose(expected)


def test_other_rows_have_other_noise_of_one_secret():
  x, y, queries = np.zeros([2, 1]), np.zeros(2), np.zeros([400, 1])
  answers = [
    make(x, labels, sigma=99.0, randomness=Randomness(secret=bytes(32))).query(
      queries
    )
    for labels in (y, y + 1)
  ]
  assert np.mean(answers[0] == answers[1]) < 0.5


def test_a_call_that_is_resumed_gives_the_same_answers(tmp_path):
  path = tmp_path / 'ledger'
  x = np.random.default_rng(0).uniform(-1, 1, [30, 2])
  y = np.arange(30) % 3
  queries = x[:10] + 0.01
  with accounting.PrivacyLedger(path) as ledger:
    first = make(x, y, ledger).query(queries)
  with accounting.PrivacyLedger.open(path) as ledger:
    made = make(x, y, ledger)
    np.testing.assert_array_equal(made.query(queries, resume=True), first)
    made.query(queries)
    assert len(ledger.entries) == 2
  for change in (
    {'x': x + 1e-9},
    {'y': y[::-1]},
    {'queries': queries + 0.01},
    {'num_neighbors': 4},
    {'seed': 1},
  ):
    with accounting.PrivacyLedger.open(path) as ledger:
      other = {'x': x, 'y': y, 'queries': queries, **change}
      asked = other.pop('queries')
      made = make(other.pop('x'), other.pop('y'), ledger, **other)
      with pytest.raises(accounting.LedgerError):
        made.query(asked, resume=True)
  with pytest.raises(ValueError, match='give the `randomness` of then'):
    make(x, y, randomness=None).query(queries, resume=True)


def test_the_same_noise_is_not_used_twice():
  ledger, randomness = accounting.PrivacyLedger(), Randomness(seed=3)
  one = make(np.zeros([3, 1]), np.zeros(3), ledger, randomness=randomness)
  other = make(np.zeros([3, 1]), np.zeros(3), ledger, randomness=randomness)
  one.query([[0.0]])
  with pytest.raises(ValueError, match='must not be used twice'):
    other.query([[0.0]])
  again = make(np.zeros([3, 1]), np.zeros(3), ledger, seed=3)
  with pytest.raises(accounting.LedgerError, match='must not be used twice'):
    again.query([[0.0]])


def test_the_table_is_copied():
  x, y = np.zeros([3, 1]), np.zeros(3, np.int64)
  made = make(x, y)
  x[:], y[:] = 1.0, 2
  assert not np.any(made._features) and not np.any(made._labels)
  with pytest.raises(AttributeError, match='sigma of a PrivateKNN'):
    made.sigma = 1.0


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'num_neighbors': -1}, 'num_neighbors is -1'),
    ({'num_neighbors': 1.5}, 'num_neighbors is 1.5'),
    ({'num_classes': 0}, 'num_classes is 0'),
    ({'sampling_probability': 0.0}, 'sampling_probability is 0.0'),
    ({'sampling_probability': 1.1}, 'sampling_probability is 1.1'),
    ({'sampling_probability': math.nan}, 'sampling_probability is nan'),
    ({'sigma': 0.0}, 'sigma is 0.0'),
    ({'sigma': math.nan}, 'sigma is nan'),
    ({'feature_bound': math.inf}, 'feature_bound is inf'),
    ({'threshold': 3.0}, 'Give both `threshold` and `sigma_threshold`'),
    ({'threshold': math.nan, 'sigma_threshold': 1.0}, 'threshold is nan'),
    ({'threshold': 1.0, 'sigma_threshold': 0.0}, 'sigma_threshold is 0.0'),
    ({'max_answers': 3}, 'max_answers needs a `threshold`'),
    (
      {'threshold': 1.0, 'sigma_threshold': 1.0, 'max_answers': 0},
      'max_answers is 0',
    ),
    ({'features': np.zeros(3)}, r'features has shape \(3,\)'),
    ({'features': np.zeros([3, 0])}, 'features has no columns'),
    ({'features': np.full([3, 2], 'a')}, 'features has dtype'),
    ({'labels': np.zeros(2)}, r'labels has shape \(2,\); it must be \[3\]'),
    ({'labels': np.zeros([3, 1])}, 'labels has shape'),
    (
      {
        'ledger': accounting.PrivacyLedger(
          neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL
        )
      },
      'REPLACE_SPECIAL is not supported',
    ),
  ],
)
def test_bad_arguments_are_named(change, message):
  arguments = {'features': np.zeros([3, 2]), 'labels': np.zeros(3), **change}
  with pytest.raises(ValueError, match=message):
    make(arguments.pop('features'), arguments.pop('labels'), **arguments)


def test_bad_queries_are_named_and_not_charged(tmp_path):
  ledger = accounting.PrivacyLedger(tmp_path / 'ledger')
  made = make(np.zeros([3, 2]), np.zeros(3), ledger)
  for queries, message in (
    ([[0.0, 0.0], [0.0, math.nan]], 'not finite, in row 1'),
    ([[math.inf, 0.0]], 'not finite, in row 0'),
    ([0.0, 0.0], r'public_features has shape \(2,\)'),
    ([[0.0]], r'must be \[m, 2\]'),
  ):
    with pytest.raises(ValueError, match=message):
      made.query(queries)
  assert ledger.entries == ()
  ledger.close()
  with pytest.raises(accounting.LedgerError):
    made.query([[0.0, 0.0]])


@pytest.mark.parametrize('dtype', [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize('how', ['warn', 'raise'])
def test_what_rows_hold_shows_in_no_warning(dtype, how, recwarn):
  """Nor in an error, where NumPy is told to raise."""
  signaling = np.array([0x7F800001], np.uint32).view(np.float32)[0]
  largest = np.finfo(dtype).max
  values = [np.nan, np.inf, -np.inf, signaling, largest, np.finfo(dtype).tiny]
  with np.errstate(all=how):
    for bound in (1e-310, 1.0, 1e308):
      for value in values:
        x, y = np.zeros([3, 2], dtype), np.zeros(3, dtype)
        with np.errstate(all='ignore'):
          x[0, 0] = y[1] = value
        knn = pate.PrivateKNN(
          x,
          y,
          num_classes=2,
          num_neighbors=2,
          sampling_probability=0.5,
          sigma=1.0,
          feature_bound=bound,
          ledger=accounting.PrivacyLedger(),
        )
        knn.query(np.zeros([2, 2]))
  # The garbage collector may warn at any time of what other tests left open.
  found = [w for w in recwarn.list if w.category is not ResourceWarning]
  assert not [str(w) for w in found]


def test_no_row_is_drawn_with_more_than_its_probability():
  """`rng.random()` is 0 with a probability of 2^-53."""
  knn = pate.PrivateKNN(
    np.zeros([4, 1]),
    np.zeros(4),
    num_classes=2,
    num_neighbors=2,
    sampling_probability=1e-30,
    sigma=1.0,
    ledger=accounting.PrivacyLedger(),
  )
  assert knn._votes(np.zeros(4), np.zeros(4)).tolist() == [0, 0]
