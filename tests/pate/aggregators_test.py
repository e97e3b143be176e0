"""Aggregators: charges before answers, noise as charged, refusals."""

import copy
import math
import pickle
from concurrent import futures

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from tfdpflows import accounting, pate
from tfdpflows.randomness import Randomness

KINDS = {
  'lnmax': lambda **kwargs: pate.LNMax(0.1, **kwargs),
  'gnmax': lambda **kwargs: pate.GNMax(10.0, **kwargs),
  'exponential': lambda **kwargs: pate.ExponentialVote(0.2, **kwargs),
  'confident': lambda **kwargs: pate.ConfidentGNMax(
    60.0, 8.0, 10.0, 4, **kwargs
  ),
  'interactive': lambda **kwargs: Predicted(
    60.0, 8.0, 10.0, 4, confidence=0.9, **kwargs
  ),
  'sparse': lambda **kwargs: pate.SparseVector(50.0, 1.0, 3, **kwargs),
}
VOTES = np.array([[100, 0, 0], [0, 90, 10], [34, 33, 33], [5, 5, 90]])
# What a query costs that is charged: for one, and for three more.
COSTS = {
  'lnmax': lambda n: [(accounting.LNMaxDpEvent(0.1), n)],
  'gnmax': lambda n: [(accounting.GNMaxDpEvent(10.0), n)],
  'exponential': lambda n: [(accounting.ExponentialMechanismDpEvent(0.2), n)],
  'confident': lambda n: [
    (accounting.GNMaxDpEvent(10.0), 4),
    (accounting.VoteThresholdDpEvent(8.0), n),
  ],
  'interactive': lambda n: [
    (accounting.GNMaxDpEvent(10.0), 4),
    (accounting.VoteThresholdDpEvent(8.0), n),
  ],
  'sparse': lambda n: [(accounting.SparseVectorDpEvent(0.5, 0.5), 1)],
}


class Predicted(pate.InteractiveGNMax):
  """Interactive GNMax with a student that knows nothing."""

  def query(self, votes, predictions=None):
    if predictions is None:
      classes = np.shape(votes)[-1]
      predictions = np.full(np.shape(votes), 1 / classes)
    return super().query(votes, predictions)


def made(kind, ledger=None, **kwargs):
  ledger = accounting.PrivacyLedger() if ledger is None else ledger
  kwargs = {'num_teachers': 100, 'num_classes': 3, **kwargs}
  return KINDS[kind](ledger=ledger, **kwargs)


def cost(kind, n):
  """Epsilon of n queries, by what the documentation says."""
  parts = [dp_accounting.SelfComposedDpEvent(*part) for part in COSTS[kind](n)]
  event = dp_accounting.ComposedDpEvent(parts)
  return accounting.compute_epsilon(event, 1e-5)


@pytest.fixture(params=sorted(KINDS))
def kind(request):
  return request.param


def test_every_aggregator_has_a_row():
  shown = {type(made(kind)) for kind in KINDS} - {Predicted}
  public = {getattr(pate, name) for name in pate.__all__}
  kinds = {x for x in public if isinstance(x, type)}
  kinds = {x for x in kinds if issubclass(x, pate.Aggregator)}
  # The last one takes one call; it is in vote_cost_test.
  others = {pate.Aggregator, pate.InteractiveGNMax, pate.BoundedCostGNMax}
  assert kinds - others == shown


def test_answers_are_charged_as_documented(kind):
  ledger = accounting.PrivacyLedger()
  aggregator = made(kind, ledger)
  for n, votes in ((1, VOTES[:1]), (4, VOTES[1:])):
    answers = aggregator.query(votes)
    assert answers.shape == (len(votes),)
    assert answers.dtype == np.int64
    assert ledger.epsilon(1e-5) == pytest.approx(cost(kind, n), rel=1e-6)


def test_charged_before_votes_are_answered(kind, monkeypatch):
  """Nothing is drawn where the charge fails, and nothing is charged."""
  budget = accounting.PrivacyBudget(epsilon=1e-3, delta=1e-9)
  ledger = accounting.PrivacyLedger(budget=budget)
  aggregator = made(kind, ledger)
  drawn = []
  monkeypatch.setattr(
    Randomness, 'numpy', lambda *args: drawn.append(args) or 1 / 0
  )
  with pytest.raises(accounting.BudgetExceededError):
    aggregator.query(VOTES)
  assert not drawn
  assert not ledger.entries


def test_a_crash_after_the_charge_overstates(kind, tmp_path, monkeypatch):
  path = tmp_path / 'ledger'
  with accounting.PrivacyLedger(path) as ledger:
    aggregator = made(kind, ledger, randomness=Randomness(seed=0))
    # The first that is done with the votes after the charge.
    monkeypatch.setattr(Randomness, 'numpy', lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      aggregator.query(VOTES)
  with accounting.PrivacyLedger.open(path, read_only=True) as ledger:
    assert ledger.epsilon(1e-5) == pytest.approx(cost(kind, len(VOTES)))


def test_resumed_queries_repeat_their_answers(kind, tmp_path):
  path = tmp_path / 'ledger'
  if kind == 'sparse':
    with pytest.raises(ValueError, match='cannot be resumed'):
      made(kind, resume=True, randomness=Randomness(seed=0))
    return
  randomness = Randomness()
  with accounting.PrivacyLedger(path) as ledger:
    aggregator = made(kind, ledger, randomness=randomness)
    first = [aggregator.query(VOTES[:2]), aggregator.query(VOTES[2:])]
    entries = ledger.entries
  with accounting.PrivacyLedger.open(path) as ledger:
    again = Randomness(secret=randomness.secret)
    aggregator = made(kind, ledger, randomness=again, resume=True)
    second = [aggregator.query(VOTES[:2]), aggregator.query(VOTES[2:])]
    assert ledger.entries == entries
  np.testing.assert_array_equal(first, second)
  with accounting.PrivacyLedger.open(path) as ledger:
    again = Randomness(secret=randomness.secret)
    aggregator = made(kind, ledger, randomness=again, resume=True)
    with pytest.raises(accounting.LedgerError, match='table'):
      aggregator.query(VOTES[[0, 2]])


def test_other_votes_have_other_noise_of_one_secret():
  """Also in another ledger."""
  tied = np.tile([50, 50, 0], [400, 1])
  other = np.vstack([tied[1:], [[49, 50, 1]]])
  answers = [
    made('gnmax', randomness=Randomness(secret=bytes(32))).query(votes)
    for votes in (tied, other)
  ]
  assert 0.3 < np.mean(answers[0] == answers[1]) < 0.7


def test_the_same_noise_is_not_used_twice(kind):
  randomness = Randomness(seed=0)
  made(kind, randomness=randomness).query(VOTES)
  with pytest.raises(ValueError, match='used already'):
    made(kind, randomness=randomness).query(VOTES)


@pytest.mark.parametrize(
  ('votes', 'message'),
  [
    (VOTES[:, :2], r'must be \[queries, 3\]'),
    (VOTES[0], r'must be \[queries, 3\]'),
    ([[100.0, 0.0, math.nan]], 'without NaN'),
    ([[99.5, 0.5, 0.0]], 'whole numbers'),
    ([[100, 0, 0], [99, 0, 0]], 'on query 1'),
    ([[101, -1, 0]], 'on query 0'),
    ([[101, 0, 0]], 'one each'),
    ([['a', 'b', 'c']], 'no counts'),
  ],
)
def test_bad_votes_are_refused_and_not_charged(kind, votes, message):
  ledger = accounting.PrivacyLedger()
  with pytest.raises(ValueError, match=message) as raised:
    made(kind, ledger).query(votes)
  assert '101' not in str(raised.value)
  assert '99' not in str(raised.value)
  assert not ledger.entries


def test_a_closed_ledger_answers_nothing(kind, tmp_path):
  ledger = accounting.PrivacyLedger(tmp_path / 'ledger')
  ledger.close()
  with pytest.raises(accounting.LedgerError, match='closed'):
    made(kind, ledger).query(VOTES)


def test_what_was_charged_cannot_be_changed(kind):
  aggregator = made(kind)
  names = [name for name in vars(aggregator) if not name.startswith('_')]
  assert {'num_teachers', 'num_classes', 'ledger', 'label'} < set(names)
  for name in names:
    with pytest.raises(AttributeError, match='cannot be changed'):
      setattr(aggregator, name, 1e-9)


def test_no_queries_cost_nothing(kind):
  ledger = accounting.PrivacyLedger()
  assert made(kind, ledger).query(np.zeros([0, 3], int)).shape == (0,)
  assert not ledger.entries


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda **k: pate.LNMax(-1.0, **k), 'gamma is -1.0'),
    (lambda **k: pate.GNMax(0.0, **k), 'sigma is 0.0'),
    (lambda **k: pate.GNMax(math.nan, **k), 'sigma is nan'),
    (lambda **k: pate.ExponentialVote(0.0, **k), 'epsilon is 0.0'),
    (lambda **k: pate.ConfidentGNMax(-5.0, 1, 1, 1, **k), 'threshold is -5.0'),
    (lambda **k: pate.ConfidentGNMax(5, 0, 1, 1, **k), 'sigma_threshold is 0'),
    (lambda **k: pate.ConfidentGNMax(5, 1, 1, 0, **k), 'max_answers is 0'),
    (
      lambda **k: pate.InteractiveGNMax(5, 1, 1, 1, confidence=2, **k),
      'confidence is 2',
    ),
    (lambda **k: pate.SparseVector(-1, 1.0, 1, **k), 'threshold is -1'),
    (lambda **k: pate.SparseVector(1, 1.0, 0, **k), 'max_positives is 0'),
    (
      lambda **k: pate.SparseVector(1, 1.0, 1, positive_class=3, **k),
      'there are 3 classes',
    ),
    (
      lambda **k: pate.SparseVector(1, 1.0, 1, threshold_share=1.0, **k),
      'threshold_share is 1.0',
    ),
    (lambda **k: pate.GNMax(1.0, **{**k, 'num_teachers': 0}), 'num_teachers'),
    (lambda **k: pate.GNMax(1.0, **{**k, 'num_classes': 1}), 'num_classes'),
    (lambda **k: pate.GNMax(1.0, resume=True, **k), '`randomness` of then'),
  ],
)
def test_bad_parameters(make, message):
  with pytest.raises(ValueError, match=message):
    make(ledger=accounting.PrivacyLedger(), num_teachers=10, num_classes=3)


def test_a_relation_without_a_proof_is_refused():
  relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
  ledger = accounting.PrivacyLedger(neighboring_relation=relation)
  with pytest.raises(ValueError, match='REPLACE_SPECIAL'):
    made('gnmax', ledger)


@pytest.mark.parametrize('kind', ['confident', 'sparse'])
def test_threads_share_the_number_of_answers(kind):
  votes = np.tile([0, 100, 0], [3, 1])
  aggregator = made(kind)
  with futures.ThreadPoolExecutor(6) as pool:
    tasks = [pool.submit(aggregator.query, votes) for _ in range(6)]
  found = [task.result() for task in tasks if task.exception() is None]
  answers = np.concatenate(found)
  most = 4 if kind == 'confident' else 3
  assert np.sum(answers == 1) <= most


def test_copies_and_forks_are_refused(kind):
  aggregator = made(kind)
  aggregator.query(VOTES)
  for copied in (copy.copy, copy.deepcopy, pickle.dumps):
    with pytest.raises(TypeError, match='cannot be copied'):
      copied(aggregator)
  aggregator._home._process = -1
  with pytest.raises(accounting.LedgerError, match='forked'):
    aggregator.query(VOTES)


@pytest.mark.parametrize(
  'votes',
  [
    np.array([[2**62, 2**62, 2**62, 2**62 + 10]]),
    np.array([[2**64 - 1, 11, 0, 0]], np.uint64),
    np.array([[2048, 1, 0, 0]], np.float16),
    np.ma.array([[10, 0, 0, 0]], mask=[[0, 1, 0, 0]]),
  ],
  ids=['int64', 'uint64', 'float16', 'masked'],
)
def test_sums_that_wrap_are_no_votes(votes):
  for teachers in (10, 2048):
    aggregator = made('gnmax', num_teachers=teachers, num_classes=4)
    with pytest.raises(ValueError, match='votes|query 0'):
      aggregator.query(votes)


# Distributions.


def frequencies(aggregator, votes, runs=40_000):
  answers = aggregator.query(np.tile(votes, [runs, 1]))
  return np.bincount(answers + 1, minlength=len(votes) + 1) / runs


def test_lnmax_has_the_noise_it_is_charged_for():
  aggregator = pate.LNMax(
    0.1, num_teachers=20, num_classes=2, ledger=accounting.PrivacyLedger()
  )
  found = frequencies(aggregator, [15, 5])[1]
  # P(second above first), for the difference of two Laplace variables.
  z = 1.0
  other = (2 + z) / 4 * math.exp(-z)
  assert found == pytest.approx(1 - other, abs=0.01)


def test_gnmax_has_the_noise_it_is_charged_for():
  aggregator = pate.GNMax(
    8.0, num_teachers=20, num_classes=2, ledger=accounting.PrivacyLedger()
  )
  found = frequencies(aggregator, [15, 5])[1]
  assert found == pytest.approx(stats.norm.cdf(10 / math.sqrt(2) / 8), abs=0.01)


def test_exponential_vote_is_the_exponential_mechanism():
  aggregator = pate.ExponentialVote(
    0.3, num_teachers=20, num_classes=3, ledger=accounting.PrivacyLedger()
  )
  weights = np.exp(0.15 * np.array([12, 6, 2]))
  found = frequencies(aggregator, [12, 6, 2])[1:]
  np.testing.assert_allclose(found, weights / weights.sum(), atol=0.01)


def test_confident_gnmax_checks_the_largest_count():
  runs = 40_000
  aggregator = pate.ConfidentGNMax(
    15.0,
    5.0,
    1.0,
    runs,
    num_teachers=20,
    num_classes=2,
    ledger=accounting.PrivacyLedger(),
  )
  found = frequencies(aggregator, [18, 2], runs)
  assert 1 - found[0] == pytest.approx(stats.norm.cdf(3 / 5), abs=0.01)
  assert aggregator.num_answered == round((1 - found[0]) * runs)


def test_answers_end_at_their_cap_and_nothing_more_is_charged():
  ledger = accounting.PrivacyLedger()
  aggregator = made('confident', ledger)
  answers = aggregator.query(np.tile([100, 0, 0], [10, 1]))
  assert answers.tolist() == [0] * 4 + [-1] * 6
  epsilon = ledger.epsilon(1e-5)
  with pytest.raises(accounting.BudgetExceededError, match='its 4 answers'):
    aggregator.query(VOTES)
  assert ledger.epsilon(1e-5) == epsilon


def test_interactive_answers_where_teachers_contradict():
  aggregator = pate.InteractiveGNMax(
    50.0,
    1.0,
    1.0,
    10,
    confidence=0.8,
    num_teachers=100,
    num_classes=2,
    ledger=accounting.PrivacyLedger(),
  )
  votes = [[0, 100], [100, 0], [50, 50]]
  predictions = [[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]]
  assert aggregator.query(votes, predictions).tolist() == [1, 0, -1]
  assert aggregator.num_answered == 1
  for bad in (predictions[:2], [[2.0, -1.0]] * 3, [[0.5, 0.1]] * 3):
    with pytest.raises(ValueError, match='must be probabilities'):
      aggregator.query(votes, bad)


def test_sparse_vector_noises_the_threshold_once():
  """All queries of one stream share it, so that equal ones agree often."""
  agreed = []
  for seed in range(200):
    aggregator = pate.SparseVector(
      50.0,
      2.0,
      1000,
      threshold_share=0.001,
      num_teachers=100,
      ledger=accounting.PrivacyLedger(),
      randomness=Randomness(seed=seed),
    )
    answers = aggregator.query(np.tile([50, 50], [20, 1]))
    agreed.append(np.mean(answers))
  # Noise of scale 500 on the threshold, and of 1,000 on each query.
  assert np.std(agreed) > 1.5 * math.sqrt(0.25 / 20)


@pytest.mark.parametrize(
  ('threshold', 'max_positives', 'said'), [(30.0, 30, '25 %'), (50.0, 2, None)]
)
def test_sparse_vector_warns_where_noise_answers(
  caplog, threshold, max_positives, said
):
  ledger = accounting.PrivacyLedger()
  aggregator = pate.SparseVector(
    threshold, 1.5, max_positives, num_teachers=60, ledger=ledger
  )
  assert (said or '') in caplog.text
  assert bool(caplog.text) == (said is not None)
  if said:  # Noise alone uses up the positive answers.
    aggregator.query([[60, 0]] * 2000)
    assert aggregator.num_positives == max_positives


def test_sparse_vector_stops_after_its_positives():
  ledger = accounting.PrivacyLedger()
  aggregator = pate.SparseVector(50.0, 50.0, 2, num_teachers=100, ledger=ledger)
  stream = np.array([[100, 0], [0, 100], [100, 0], [0, 100], [0, 100]])
  assert aggregator.query(stream).tolist() == [0, 1, 0, 1, -1]
  assert aggregator.num_positives == 2
  with pytest.raises(accounting.BudgetExceededError, match='2 positive'):
    aggregator.query(stream)
  assert len(ledger.entries) == 1


def test_count_votes():
  rng = np.random.default_rng(0)
  predictions = rng.integers(0, 4, [30, 50])
  counts = pate.count_votes(predictions, 4)
  expected = [np.bincount(column, minlength=4) for column in predictions.T]
  np.testing.assert_array_equal(counts, expected)
  for bad in ([[0, 4]], [[-1, 0]]):
    with pytest.raises(ValueError, match='no class'):
      pate.count_votes(bad, 4)
  with pytest.raises(ValueError, match='must be integers'):
    pate.count_votes([[0.5]], 2)


class Calls(accounting.PrivacyLedger):
  """Runs code of its user after a charge."""

  after = staticmethod(lambda: None)

  def charge(self, *args, **kwargs):
    super().charge(*args, **kwargs)
    self.after()


@pytest.mark.parametrize('kind', sorted(KINDS))
def test_a_query_inside_of_a_query_is_refused(kind):
  """It would count answers up to `max_answers` that both of them give."""
  ledger = Calls()
  aggregator = made(kind, ledger)
  ledger.after = lambda: aggregator.query(VOTES)
  with pytest.raises(accounting.LedgerError, match='while it answers'):
    aggregator.query(VOTES)
  ledger.after = lambda: None
  assert len(aggregator.query(VOTES)) == len(VOTES)


@pytest.mark.parametrize('name', ['sigma', 'ledger', 'max_answers'])
def test_what_is_charged_for_cannot_be_removed(name):
  aggregator = made('confident')
  with pytest.raises(AttributeError, match=f'{name} of a ConfidentGNMax'):
    delattr(aggregator, name)
