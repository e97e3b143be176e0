"""Costs of given votes: against exact ones, on all neighbours, and released."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from scipy import special

from tests.grids import thinned
from tfdpflows import accounting, pate
from tfdpflows.accounting import mechanisms
from tfdpflows.pate import smooth_sensitivity
from tfdpflows.randomness import Randomness

BETA = 0.05
CHECK = {'threshold': 3.0, 'sigma_threshold': 0.8}
# What the code of Papernot et al. 2018 gives (tensorflow/privacy,
# research/pate_2018/smooth_sensitivity.py): votes, sigma, order, beta, the
# divergence, and the largest of its local sensitivities, discounted.
PEER = [
  ([990, 10, 0], 50.0, 20.0, 0.02, 6.6314e-42, 7.8068e-08),
  ([700, 200, 100], 50.0, 20.0, 0.02, 2.3971e-12, 9.4861e-06),
  ([600, 390, 10], 40.0, 8.0, 0.05, 4.4606e-05, 3.7466e-05),
  ([180, 15, 5], 10.0, 5.0, 0.05, 2.1460e-29, 3.2432e-04),
  ([240, 4, 3, 2, 1], 20.0, 12.0, 0.03, 7.2777e-15, 1.9364e-04),
  ([130, 100, 10, 5, 5], 20.0, 12.0, 0.03, 0.03, 2.4278e-03),
]


def table(num_teachers, sigma, order, threshold=None, sigma_threshold=None):
  return smooth_sensitivity._Table(
    num_teachers, sigma, order, threshold, sigma_threshold
  )


def all_votes(num_teachers, num_classes):
  places = itertools.product(range(num_teachers + 1), repeat=num_classes)
  return [votes for votes in places if sum(votes) == num_teachers]


def neighbors(votes):
  """All counts that one changed vote makes of counts, themselves included."""
  found = {tuple(votes)}
  for a, b in itertools.permutations(range(len(votes)), 2):
    if votes[a]:
      other = list(votes)
      other[a] -= 1
      other[b] += 1
      found.add(tuple(other))
  return found


@pytest.mark.parametrize('check', [{}, CHECK], ids=['all', 'check'])
@pytest.mark.parametrize('sigma', [0.3, 0.9, 4.0])
def test_smooth_over_all_neighbours(sigma, check):
  """Of two queries, whose votes may change at once."""
  costs = table(4, sigma, 3.0, **check)
  single = all_votes(4, 3)
  known = {
    pair: costs.cost(np.array(pair), BETA)
    for pair in itertools.product(single, repeat=2)
  }
  changed = 0
  for pair, here in known.items():
    for other in itertools.product(*map(neighbors, pair)):
      there = known[other]
      difference = abs(here.divergence - there.divergence)
      assert difference <= here.smooth_sensitivity
      assert here.smooth_sensitivity <= (
        math.exp(BETA) * there.smooth_sensitivity * (1 + 1e-9)
      )
      changed += difference > 1e-3 * here.smooth_sensitivity
  # With other noise, no votes of four cost less than by the noise.
  assert changed or sigma != (4.0 if check else 0.9)


@pytest.mark.parametrize('check', [False, True])
def test_smooth_along_random_walks(check):
  rng = np.random.default_rng(0)
  for sigma, order in ((3.0, 2.0), (8.0, 6.0)):
    options = (30.0 + sigma, 1.5 * sigma) if check else ()
    costs = table(80, sigma, order, *options)
    votes = rng.multinomial(80, [0.7, 0.2, 0.1, 0.0], 5)
    here = costs.cost(votes, BETA)
    tight = 0
    for _ in range(60):
      other = np.array(
        [rng.permutation(sorted(neighbors(row)))[0] for row in votes]
      )
      there = costs.cost(other, BETA)
      difference = abs(here.divergence - there.divergence)
      least = min(here.smooth_sensitivity, there.smooth_sensitivity)
      assert difference <= least
      tight = max(tight, difference / least)
      ratio = here.smooth_sensitivity / there.smooth_sensitivity
      assert abs(math.log(ratio)) <= BETA * (1 + 1e-9)
      votes, here = other, there
    assert tight > 1e-5


def outcomes(votes, sigma, threshold=None, sigma_threshold=None):
  """Logs of the law of one answer of two classes, and of none."""
  gap = (votes[0] - votes[1]) / math.sqrt(2) / sigma
  answers = special.log_ndtr(np.array([gap, -gap]))
  if threshold is None:
    return answers
  z = (max(votes) - threshold) / sigma_threshold
  return np.append(answers + special.log_ndtr(z), special.log_ndtr(-z))


def divergence(one, other, order):
  moment = special.logsumexp(order * one - (order - 1) * other)
  return moment / (order - 1)


@pytest.mark.parametrize('check', [False, True])
def test_never_below_the_exact_divergence(check):
  rng = np.random.default_rng(1)
  helped = 0
  for _ in range(75):
    teachers = int(rng.integers(2, 60))
    sigma, order = 10 ** rng.uniform(-0.3, 1.2), 1 + 10 ** rng.uniform(-1, 1.3)
    options = ()
    if check:
      options = teachers * rng.uniform(0.4, 1.1), 10 ** rng.uniform(-0.3, 1.2)
    first = int(rng.integers(0, teachers + 1))
    votes = first, teachers - first
    cost = table(teachers, sigma, order, *options).cost(np.array([votes]), BETA)
    helped += cost.divergence < 0.5 * order / sigma**2
    here = outcomes(votes, sigma, *options)
    for other in neighbors(votes):
      there = outcomes(other, sigma, *options)
      exact = divergence(here, there, order)
      assert exact <= cost.divergence * (1 + 1e-9) + 1e-9
  assert helped > 10


def test_a_query_costs_no_more_than_by_its_noise():
  rng = np.random.default_rng(2)
  for sigma in (0.5, 5.0, 50.0):
    made = table(100, sigma, 8.0)
    votes = rng.multinomial(100, rng.dirichlet(np.ones(5)), 20)
    for row in votes:
      cost = made.cost(row[None], BETA)
      assert 0 < cost.divergence <= made.largest * (1 + 1e-9)
    whole = made.cost(votes, BETA).divergence
    parts = sum(made.cost(row[None], BETA).divergence for row in votes)
    assert whole == pytest.approx(parts, rel=1e-9)
  assert made.cost(votes[:0], BETA) == (0.0, 0.0)


@pytest.mark.parametrize(('votes', 'sigma', 'order', 'beta', 'rdp', 'ss'), PEER)
def test_close_to_and_never_below_the_published_code(
  votes, sigma, order, beta, rdp, ss
):
  cost = table(sum(votes), sigma, order).cost(np.array([votes]), beta)
  assert rdp * (1 - 1e-3) < cost.divergence < 1.1 * rdp
  assert ss * (1 - 1e-3) < cost.smooth_sensitivity < 2.5 * ss


def test_order_of_classes_and_queries_does_not_matter():
  made = table(50, 4.0, 6.0, 30.0, 5.0)
  votes = np.random.default_rng(3).multinomial(50, [0.6, 0.3, 0.1], 9)
  one, other = made.cost(votes, BETA), made.cost(votes[::-1, ::-1], BETA)
  assert one == pytest.approx(other, rel=1e-9)


# Releases.

AGREED = np.array([[0, 480, 20]] * 40)
SPLIT = np.array([[240, 250, 10]] * 40)


def release(votes=AGREED, ledger=None, seed=0, **kwargs):
  kwargs = {
    'num_teachers': 500,
    'sigma': 30.0,
    'order': 16.0,
    'beta': 0.02,
    'sigma_release': 10.0,
    'failure': 1e-6,
    **kwargs,
  }
  if ledger is None:
    ledger = accounting.PrivacyLedger(accountant='rdp')
  return pate.release_vote_cost(
    votes, ledger=ledger, randomness=Randomness(seed=seed), **kwargs
  )


def test_the_noise_covers_the_rounding_of_a_sum():
  # All costs are the same here, and no vote changes any; in other orders of
  # other counts they add up to another last digit.
  costs = table(100, 50.0, 8.0)
  votes = np.tile([60, 40], (203, 1))
  other = votes.copy()
  other[:67], other[67:134] = [61, 39], [59, 41]
  here, there = costs.cost(votes, 0.01), costs.cost(other, 0.01)
  assert here.divergence == there.divergence
  for cost in here, there:
    assert cost.smooth_sensitivity > 1e4 * np.spacing(cost.divergence)


@pytest.mark.parametrize('queries', thinned([30_000, 10], 1))
def test_what_is_released_is_on_a_public_grid(queries):
  votes = np.tile([0, 1320, 680], (queries, 1))
  largest = queries * table(2000, 50.0, 20.0).largest
  step = 2.0 ** (math.floor(math.log2(largest)) - 25)
  for seed in range(3):
    found = pate.release_vote_cost(
      votes,
      num_teachers=2000,
      sigma=50.0,
      order=20.0,
      beta=0.01,
      sigma_release=20.0,
      failure=1e-6,
      ledger=accounting.PrivacyLedger(accountant='rdp'),
      randomness=Randomness(seed=seed),
    ).divergence
    assert 0 < found < largest
    assert found / step == round(found / step)


def test_charged_before_anything_is_computed(monkeypatch):
  def fails(*args):
    raise KeyboardInterrupt

  monkeypatch.setattr(smooth_sensitivity._Table, 'cost', fails)
  ledger = accounting.PrivacyLedger(
    accountant='rdp', budget=accounting.PrivacyBudget(epsilon=3.0, delta=1e-5)
  )
  with pytest.raises(KeyboardInterrupt):
    release(ledger=ledger)
  (entry,) = ledger.entries
  event = entry.event
  assert (event.sigma, event.beta) == (10.0, 0.02)
  assert event.shift == pytest.approx(10 * -special.ndtri(1e-6))
  with pytest.raises(accounting.BudgetExceededError):
    release(ledger=ledger, seed=1, sigma_release=0.5)
  assert len(ledger.entries) == 1


def test_the_published_cost_is_no_less_but_for_its_failure(monkeypatch):
  exact = table(500, 30.0, 16.0).cost(np.array(AGREED), 0.02)
  monkeypatch.setattr(smooth_sensitivity._Table, 'cost', lambda *args: exact)
  costs = [release(seed=seed, failure=0.2) for seed in range(60)]
  below = np.mean([cost.divergence < exact.divergence for cost in costs])
  # 0.2, and its error; where it cannot be negative it is never less.
  assert 0 < below < 0.4
  # It is noise of the smooth sensitivity.
  spread = np.std([cost.divergence for cost in costs])
  assert spread == pytest.approx(10 * exact.smooth_sensitivity, rel=0.4)
  monkeypatch.undo()
  largest = 16 / 900 * len(AGREED)
  for seed in range(3):
    assert 0 <= release(SPLIT, seed=seed).divergence <= largest


def test_epsilon_is_of_answers_and_release():
  cost = release()
  (own,) = mechanisms.renyi_curve(
    mechanisms.SmoothSensitivity(10.0, 0.02, 10 * -special.ndtri(1e-6)), (16.0,)
  )
  assert cost.own_divergence == pytest.approx(own)
  expected = cost.divergence + own - math.log(9e-6) / 15
  assert cost.epsilon(1e-5) == pytest.approx(expected)
  for delta in (1e-6, 0.0, 1.0):
    with pytest.raises(ValueError, match='above the failure'):
      cost.epsilon(delta)


def bounded(ledger=None, seed=0, **kwargs):
  kwargs = {
    'num_teachers': 500,
    'num_classes': 3,
    'sigma': 30.0,
    'order': 16.0,
    'beta': 0.02,
    'sigma_test': 10.0,
    'failure': 1e-6,
    'max_divergence': 0.3,
    **kwargs,
  }
  if ledger is None:
    ledger = accounting.PrivacyLedger(accountant='rdp')
  return pate.BoundedCostGNMax(
    ledger=ledger, randomness=Randomness(seed=seed), **kwargs
  )


def test_answers_only_where_the_test_passes_at_the_same_charge():
  epsilons = []
  for votes, expected in ((AGREED, {1}), (SPLIT, {-1})):
    made = bounded()
    assert set(made.query(votes)) == expected
    epsilons.append(made.ledger.epsilon(1e-5))
    (entry,) = made.ledger.entries
    answers = entry.event.events[1]
    assert answers == accounting.RenyiDpEvent(16.0, 0.3, 1e-6)
  assert epsilons[0] == epsilons[1]
  with pytest.raises(ValueError, match='all queries must be in one call'):
    made.query(AGREED)


def test_a_refused_charge_is_no_answer():
  spent = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=0.01, delta=1e-5), accountant='rdp'
  )
  made = bounded(ledger=spent)
  for _ in range(2):
    with pytest.raises(accounting.BudgetExceededError):
      made.query(AGREED)


def test_many_queries_cost_less_than_by_their_noise():
  votes = np.array([[0, 1990, 10]] * 400)
  made = bounded(num_teachers=2000, beta=0.012, max_divergence=0.1)
  assert set(made.query(votes)) == {1}
  plain = accounting.compute_epsilon(
    dp_accounting.SelfComposedDpEvent(accounting.GNMaxDpEvent(30.0), 400), 1e-5
  )
  assert made.ledger.epsilon(1e-5) < 0.5 * plain


def test_the_test_fails_to_fail_no_more_often_than_charged(monkeypatch):
  # A bound just below the cost.
  exact = table(500, 30.0, 16.0).cost(np.array(AGREED), 0.02)
  monkeypatch.setattr(smooth_sensitivity._Table, 'cost', lambda *args: exact)
  passed = [
    bounded(
      seed=seed, failure=0.1, max_divergence=exact.divergence * (1 - 1e-6)
    ).query(AGREED)[0] >= 0
    for seed in range(100)
  ]  # fmt: skip
  assert 0 < np.mean(passed) < 0.2


def test_a_crash_after_the_charge_overstates(tmp_path, monkeypatch):
  path = tmp_path / 'ledger'
  with accounting.PrivacyLedger(path, accountant='rdp') as ledger:
    made = bounded(ledger)
    monkeypatch.setattr(smooth_sensitivity._Table, 'cost', lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      made.query(AGREED)
    charged = ledger.event
  monkeypatch.undo()
  with accounting.PrivacyLedger.open(path) as ledger:
    assert ledger.event == charged and len(charged.events) == 1
    # The same call again, with the same noise.
    answers = bounded(ledger, resume=True).query(AGREED)
    np.testing.assert_array_equal(answers, bounded().query(AGREED))
    assert len(ledger.entries) == 1


def test_the_check_turns_queries_down():
  votes = np.concatenate([AGREED, SPLIT])
  made = bounded(threshold=400.0, sigma_threshold=20.0, max_divergence=5.0)
  answers = made.query(votes)
  np.testing.assert_array_equal(answers, [1] * 40 + [-1] * 40)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'order': 1.0}, 'order is 1.0'),
    ({'order': 40.0}, 'beta is 0.02; for the order 40'),
    ({'beta': 0.0}, 'beta is 0.0'),
    ({'failure': 0.0}, 'failure is 0.0'),
    ({'failure': math.nan}, 'failure is nan'),
    ({'sigma': 0.0}, 'sigma is 0.0'),
    ({'threshold': 3.0}, 'Give both'),
    ({'threshold': math.inf, 'sigma_threshold': 1.0}, 'threshold is inf'),
    ({'num_teachers': 0}, 'num_teachers is 0'),
    # NaN would pass the test, and be released without noise.
    ({**CHECK, 'sigma': 0.4, 'beta': 1e-3}, 'too large to be computed'),
    ({'threshold': 1e200, 'sigma_threshold': 1.0}, 'too large to be computed'),
    ({'sigma': 1e-200}, 'too large to be computed'),
    ({'sigma': 1e155}, 'too small to be computed'),
  ],
)
def test_bad_arguments_are_named(change, message):
  for make in (release, bounded):
    ledger = accounting.PrivacyLedger(accountant='rdp')
    with pytest.raises(ValueError, match=message):
      make(ledger=ledger, **change)
    assert ledger.entries == ()
  for votes, message in (
    ([[1, 2, 3]], 'not those of 500 teachers'),
    ([500, 0, 0], 'votes have shape'),
    ([[500.5, -0.5, 0.0]], 'no counts'),
  ):
    with pytest.raises(ValueError, match=message):
      release(votes)
