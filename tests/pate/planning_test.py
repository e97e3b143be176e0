"""Noise that fits into a budget, and what it means."""

import dp_accounting
import numpy as np
import pytest

from tfdpflows import accounting, pate

BUDGET = accounting.PrivacyBudget(epsilon=2.0, delta=1e-5)


@pytest.mark.parametrize('max_answers', [None, 40])
def test_a_plan_uses_its_budget(max_answers):
  plan = pate.plan_queries(
    BUDGET,
    num_teachers=250,
    num_classes=3,
    num_queries=100,
    max_answers=max_answers,
  )
  epsilon = accounting.compute_epsilon(plan.event, 1e-5)
  assert 1.99 < epsilon <= 2.0
  ledger = accounting.PrivacyLedger(budget=BUDGET)
  aggregator = plan.aggregator(ledger=ledger)
  votes = np.tile([250, 0, 0], [50, 1])
  answers = aggregator.query(votes)
  assert (answers >= 0).sum() <= (max_answers or 50)
  if max_answers is None:
    aggregator.query(votes)
  assert ledger.epsilon() <= 2.0
  if max_answers is None:
    with pytest.raises(accounting.BudgetExceededError):
      aggregator.query(votes[:1])


def test_what_was_spent_counts():
  spent = accounting.GNMaxDpEvent(10.0)
  plans = [
    pate.plan_queries(
      BUDGET, num_teachers=100, num_classes=2, num_queries=10, spent=spent
    )
    for spent in (None, spent)
  ]
  assert plans[1].sigma > plans[0].sigma


def test_probabilities_are_those_of_the_mechanism():
  plan = pate.plan_queries(
    BUDGET,
    num_teachers=200,
    num_classes=2,
    num_queries=60,
    max_answers=60,
    agreement=0.7,
  )
  runs = 20_000
  votes = np.tile([140, 60], [runs, 1])
  free = {'ledger': accounting.PrivacyLedger()}
  confident = pate.ConfidentGNMax(
    plan.threshold,
    plan.sigma_threshold,
    plan.sigma,
    runs,
    num_teachers=200,
    num_classes=2,
    **free,
  )
  answers = confident.query(votes)
  assert np.mean(answers >= 0) == pytest.approx(
    plan.probability_answered, abs=0.02
  )
  given = answers[answers >= 0]
  assert np.mean(given == 1) == pytest.approx(plan.probability_wrong, abs=0.02)


@pytest.mark.parametrize('classes', [3, 10])
@pytest.mark.parametrize('agreement', [0.3, 0.6, 0.9])
def test_the_probability_of_a_wrong_answer_is_a_bound(classes, agreement):
  plan = pate.plan_queries(
    BUDGET,
    num_teachers=200,
    num_classes=classes,
    num_queries=400,
    agreement=agreement,
  )
  most = round(200 * agreement)
  rng = np.random.default_rng(0)
  for concentration in (0.1, 100.0):
    for _ in range(20):
      others = rng.multinomial(
        200 - most, rng.dirichlet(np.full(classes - 1, concentration))
      )
      if others.max() > most:
        continue
      votes = np.concatenate([[most], others])
      noise = rng.normal(0, plan.sigma, [4000, classes])
      wrong = np.mean(np.argmax(votes + noise, 1) != 0)
      assert wrong <= plan.probability_wrong + 0.03


def test_a_plan_is_for_its_teachers():
  teachers = pate.TeacherEnsemble(object, 100, 3)
  plan = pate.plan_queries(
    BUDGET, num_teachers=100, num_classes=2, num_queries=10
  )
  with pytest.raises(ValueError, match='num_classes 2, and the ensemble has 3'):
    plan.aggregator(teachers, ledger=accounting.PrivacyLedger())


def test_data_dependent_epsilon_of_queries_without_an_answer():
  event = accounting.ConfidentGNMaxDpEvent(200.0, 50.0, 10.0)
  votes = [[130, 120]] * 20
  epsilons = [
    pate.data_dependent_epsilon(event, votes, 1e-5, answered=given)
    for given in ([False] * 20, [True] * 20, None)
  ]
  assert epsilons[0] < epsilons[1] == epsilons[2]
  with pytest.raises(ValueError, match=r'must be \[20\]'):
    pate.data_dependent_epsilon(event, votes, 1e-5, answered=[True])
  with pytest.raises(ValueError, match='no counts'):
    pate.data_dependent_epsilon(event, [[248.7, 1.3]], 1e-5)


def test_data_dependent_epsilon_wants_the_event_first():
  with pytest.raises(TypeError, match='event is of type list; it must be a Dp'):
    pate.data_dependent_epsilon([[250, 0]], 40.0, 1e-5)


def test_data_dependent_epsilon_is_less_where_teachers_agree():
  event = accounting.GNMaxDpEvent(40.0)
  agreed = pate.data_dependent_epsilon(event, [[250, 0, 0]] * 50, 1e-5)
  divided = pate.data_dependent_epsilon(event, [[85, 85, 80]] * 50, 1e-5)
  fixed = accounting.compute_epsilon(
    accounting.PrivacyLedger().event, 1e-5, 'rdp'
  )
  assert fixed < agreed < divided / 3


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'agreement': 1.0}, 'agreement is 1.0'),
    ({'check_share': 0.0}, 'check_share is 0.0'),
    ({'max_answers': 11}, 'there are 10 queries'),
    ({'max_answers': 0}, 'max_answers is 0'),
    ({'num_queries': 0}, 'num_queries is 0'),
  ],
)
def test_bad_arguments(options, message):
  options = {
    'num_teachers': 100,
    'num_classes': 2,
    'num_queries': 10,
    **options,
  }
  with pytest.raises(ValueError, match=message):
    pate.plan_queries(BUDGET, **options)


def test_a_plan_is_for_the_relation_of_its_ledger():
  relation = dp_accounting.NeighboringRelation.REPLACE_ONE
  ledger = accounting.PrivacyLedger(
    budget=BUDGET, neighboring_relation=relation
  )
  ledger.charge(dp_accounting.GaussianDpEvent(4.0), label='before')
  options = {
    'num_teachers': 100,
    'num_classes': 3,
    'num_queries': 20,
    'spent': ledger.committed_event,
  }
  other = pate.plan_queries(BUDGET, **options)
  with pytest.raises(ValueError, match='neighboring_relation=ledger.neigh'):
    other.aggregator(ledger=ledger)
  plan = pate.plan_queries(BUDGET, neighboring_relation=relation, **options)
  assert plan.sigma > 1.1 * other.sigma
  plan.aggregator(ledger=ledger).query(np.tile([100, 0, 0], [20, 1]))
  assert 1.99 < ledger.epsilon() <= 2.0
  with pytest.raises(ValueError, match='SPECIAL'):
    pate.plan_queries(
      BUDGET,
      neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
      **options,
    )
