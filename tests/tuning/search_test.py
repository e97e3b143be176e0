"""A search for hyper-parameters that is paid for."""

import math

import dp_accounting
import numpy as np
import pytest
import scipy.special
import scipy.stats

from tfdpflows import accounting, mechanisms, tuning
from tfdpflows.accounting import EpsilonDeltaDpEvent
from tfdpflows.accounting.mechanisms.selection import halting_probability
from tfdpflows.randomness import Randomness

REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


def _charging(score):
  """A fit of no cost to speak of, and the score of its hyper-parameters."""

  def fit(trial):
    trial.ledger.charge(EpsilonDeltaDpEvent(1e-3, 1e-9))
    return 'model', score(trial)

  return fit


def _search(fit, space=None, ledger=None, seed=0, **kwargs):
  return tuning.random_search(
    fit,
    {'x': [1, 2, 3]} if space is None else space,
    ledger=accounting.PrivacyLedger() if ledger is None else ledger,
    randomness=Randomness(seed=seed),
    **{'epsilon': 1.0, 'delta': 1e-5, **kwargs},
  )


def _law(mean, shape, size=4000):
  """Probabilities of 1, 2, ... by the definition."""
  k = np.arange(1, size)
  log = k * math.log1p(-halting_probability(mean, shape))
  if shape:
    log += scipy.special.gammaln(k + shape) - scipy.special.gammaln(k + 1)
  else:
    log -= np.log(k)
  found = np.exp(log - scipy.special.logsumexp(log))
  assert np.sum(found * k) == pytest.approx(mean, rel=1e-6)
  return found


@pytest.mark.parametrize('mean', [1.0, 1.5, 10.0])
@pytest.mark.parametrize('shape', [0.0, 0.5, 1.0, 3.0])
def test_the_number_of_trials_has_its_law(mean, shape):
  rng = np.random.default_rng(0)
  drawn = [tuning.draw_num_trials(mean, shape, rng) for _ in range(20_000)]
  if mean == 1:
    assert set(drawn) == {1}
    return
  law = _law(mean, shape)
  counts = np.bincount(drawn)[1:]
  edge = int(np.flatnonzero(law * len(drawn) > 10)[-1])
  observed = [*counts[:edge], counts[edge:].sum()]
  expected = np.array([*law[:edge], law[edge:].sum()]) * len(drawn)
  assert scipy.stats.chisquare(observed, expected).pvalue > 1e-3


def test_the_best_score_wins_and_missing_scores_lose():
  found = _search(
    _charging(
      lambda t: (
        t.hyperparameters['x'] if t.hyperparameters['x'] < 3 else math.nan
      )
    ),
    mean_trials=30.0,
    shape=1.0,
  )
  assert found.hyperparameters == {'x': 2}
  assert found.score == 2.0
  assert found.result == 'model'
  lost = _search(_charging(lambda t: math.nan))
  assert lost.score == -math.inf


def test_ties_are_broken_evenly_and_draws_are_independent():
  space = [{'x': 0}, {'x': 1, 'y': 2}]
  drawn, chosen = [], []
  for seed in range(300):
    fit = _charging(lambda t: drawn.append(t.hyperparameters['x']) or 0.0)
    found = _search(fit, space, seed=seed, shape=1.0, mean_trials=4.0)
    chosen.append(found.hyperparameters['x'])
  assert scipy.stats.binomtest(sum(drawn), len(drawn)).pvalue > 1e-3
  assert scipy.stats.binomtest(sum(chosen), len(chosen)).pvalue > 1e-3
  # The first of equal trials is no likelier than others.
  assert 1000 < len(drawn) < 1400


def test_budgets_of_trials_and_of_the_search():
  seen = []

  def fit(trial):
    seen.append(trial)
    trial.ledger.charge(
      EpsilonDeltaDpEvent(trial.budget.epsilon, trial.budget.delta)
    )
    return None, 0.0

  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  ledger = accounting.PrivacyLedger(
    budget=budget, neighboring_relation=REPLACE_ONE, privacy_unit='who'
  )
  _search(
    lambda t: (
      (
        t.ledger.charge(
          EpsilonDeltaDpEvent(t.budget.epsilon, t.budget.delta),
          privacy_unit='who',
        ),
        seen.append(t),
      )
      and (None, 0.0)
    ),
    ledger=ledger,
    mean_trials=5.0,
    shape=1.0,
  )
  for trial in seen:
    assert trial.budget.epsilon == pytest.approx(1 / 3)
    assert trial.budget.delta == pytest.approx(2e-6)
    assert trial.ledger.neighboring_relation == REPLACE_ONE
    assert trial.ledger.privacy_unit == 'who'
  (entry,) = ledger.entries
  assert entry.event == EpsilonDeltaDpEvent(1.0, 1e-5)
  assert ledger.epsilon() <= 1.0
  with pytest.raises(accounting.BudgetExceededError):
    _search(fit, ledger=ledger, label='another')
  assert len(ledger.entries) == 1


def test_the_claim_is_at_least_that_of_dp_accounting_s_event():
  # In Renyi terms the same selection is no cheaper than what is charged.
  for mean in (1.0, 3.0, 30.0):
    for shape in (0.0, 1.0):
      event = dp_accounting.dp_event.RepeatAndSelectDpEvent(
        EpsilonDeltaDpEvent(0.3, 1e-7), mean, shape
      )
      renyi = accounting.compute_epsilon(event, 2e-7 * mean, 'rdp')
      assert renyi <= (2 + shape) * 0.3 + 0.05


def test_the_best_of_randomized_responses_is_within_the_claim():
  # Exactly, for the worst trial: a released bit, whose score prefers 1.
  once = 0.5
  truth = math.exp(once) / (1 + math.exp(once))
  for mean in (1.5, 4.0, 20.0):
    for shape in (0.0, 0.5, 1.0):
      law = _law(mean, shape, 20_000)
      k = np.arange(1, 20_000)
      zero = [np.sum(law * (1 - p) ** k) for p in (truth, 1 - truth)]
      found = abs(math.log(zero[0] / zero[1]))
      assert once < found <= (2 + shape) * once + 1e-9
      one = [1 - z for z in zero]
      assert abs(math.log(one[0] / one[1])) <= (2 + shape) * once


def test_a_trial_that_spends_too_much_or_nothing_is_refused():
  def greedy(trial):
    mechanisms.noisy_mean(
      np.zeros(5),
      lower=0.0,
      upper=1.0,
      noise_multiplier=1.0,
      ledger=trial.ledger,
      randomness=trial.randomness,
    )
    return None, 0.0

  with pytest.raises(accounting.BudgetExceededError, match='mean'):
    _search(greedy)
  with pytest.raises(ValueError, match='charged nothing to trial.ledger'):
    _search(lambda trial: (None, 0.0))


def test_noise_of_a_seed_is_no_secret_of_a_search_without_one():
  # The same noise in each trial, and a ledger that would not say so.
  def fit(trial):
    mean = mechanisms.noisy_mean(
      np.zeros(5),
      lower=0.0,
      upper=1.0,
      noise_multiplier=1e3,
      ledger=trial.ledger,
      randomness=Randomness(seed=3),
    )
    return mean, mean

  arguments = {'epsilon': 1.0, 'delta': 1e-5}
  with pytest.raises(ValueError, match='noise from a seed'):
    tuning.random_search(
      fit, [{}], ledger=accounting.PrivacyLedger(), **arguments
    )
  ledger = accounting.PrivacyLedger()
  _search(fit, ledger=ledger)
  assert ledger.seeded


def test_a_seed_repeats_a_search_and_noise_is_used_once():
  def fit(trial):
    trial.ledger.charge(EpsilonDeltaDpEvent(1e-3, 1e-9))
    return trial.randomness.secret, trial.randomness.numpy('a').random()

  first, again, other = (_search(fit, seed=s) for s in (1, 1, 2))
  assert first == again != other
  ledger = accounting.PrivacyLedger()
  randomness = Randomness()
  arguments = {'epsilon': 1.0, 'delta': 1e-5, 'ledger': ledger}
  tuning.random_search(fit, [{}], randomness=randomness, **arguments)
  assert not ledger.seeded
  with pytest.raises(ValueError, match='used already'):
    tuning.random_search(fit, [{}], randomness=randomness, **arguments)
  assert len(ledger.entries) == 1
  _search(fit, ledger=ledger, label='seeded')
  assert ledger.seeded


def test_searches_of_one_secret_have_two_noises():
  found = []

  def fit(trial):
    found.append(trial.randomness.secret)
    trial.ledger.charge(dp_accounting.GaussianDpEvent(100.0))
    return None, 0.0

  for _ in range(2):
    tuning.random_search(
      fit,
      {'a': [1]},
      epsilon=1.0,
      delta=1e-5,
      ledger=accounting.PrivacyLedger(),
      mean_trials=50.0,
      randomness=Randomness(secret=bytes(32)),
    )
  assert len(set(found)) == len(found)


def test_a_statement_says_that_the_search_is_paid_for(tmp_path):
  """Under any label, and read again from a file."""
  budget = accounting.PrivacyBudget(epsilon=2.0, delta=1e-4)
  path = tmp_path / 'ledger.jsonl'
  with accounting.PrivacyLedger(path, budget=budget) as ledger:
    _search(_charging(lambda trial: 0.0), ledger=ledger, label='of mine')
  with accounting.PrivacyLedger.open(path) as ledger:
    said = accounting.privacy_statement(ledger).hyperparameter_search
  assert said.startswith('paid for as of mine ((1, 1e-05)-differentially')
  other = accounting.PrivacyLedger(budget=budget)
  other.charge(EpsilonDeltaDpEvent(1.0, 1e-5), label='of mine')
  assert (
    'no search' in accounting.privacy_statement(other).hyperparameter_search
  )


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'space': {}}, 'space is empty'),
    ({'space': []}, 'space is empty'),
    ({'space': {'x': []}}, "no value for 'x'"),
    ({'epsilon': 0.0}, 'epsilon is 0.0'),
    ({'delta': 1.0}, 'delta is 1.0'),
    ({'mean_trials': 0.5}, '1 or more'),
    ({'shape': -1.0}, 'shape must be 0'),
    ({'shape': math.inf}, 'Poisson number of trials has no bound'),
    ({'shape': math.nan}, 'shape'),
    ({'shape': 1e-12}, 'Use 0'),
    ({'accountant': 'gdp'}, 'no upper bound'),
    ({'accountant': 'none'}, 'none'),
  ],
)
def test_bad_arguments_charge_nothing(kwargs, message):
  ledger = accounting.PrivacyLedger()
  with pytest.raises(ValueError, match=message):
    _search(_charging(lambda t: 0.0), ledger=ledger, **kwargs)
  assert not ledger.entries


def test_trials_do_not_share_what_they_are_given():
  space = {'units': [[4], [4]]}

  def fit(trial):
    trial.ledger.charge(EpsilonDeltaDpEvent(1e-3, 1e-9))
    trial.hyperparameters['units'].append(1)
    return len(trial.hyperparameters['units']), 0.0

  assert _search(fit, space, mean_trials=20.0).result == 2
  assert _search(fit, [{'units': [4]}], mean_trials=20.0).result == 2
  assert space == {'units': [[4], [4]]}


def test_a_fit_that_is_no_function_or_returns_no_pair_is_refused():
  ledger = accounting.PrivacyLedger()
  with pytest.raises(TypeError, match='fit is of type str; .*a function'):
    _search('fit', ledger=ledger)
  assert not ledger.entries
  with pytest.raises(TypeError, match=r'type float; .*pair \(result, score\)'):
    _search(lambda trial: 0.5)


@pytest.mark.parametrize('score', ['high', None, 10**400, 1j])
def test_a_score_that_is_no_number_is_refused(score):
  with pytest.raises(ValueError, match='no number that a float holds'):
    _search(_charging(lambda t: score))
