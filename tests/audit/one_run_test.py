"""Bounds of one run hold as often as they claim, and come close."""

import dataclasses
import itertools

import dp_accounting
import numpy as np
import pytest
from scipy import special, stats

from tfdpflows import accounting, audit

GAUSSIAN_WITHOUT_NOISE = dp_accounting.GaussianDpEvent(0.0)
# Of a binomial count of wrong bounds.
_MOST = lambda runs, p: stats.binom.ppf(0.999, runs, p)


def _randomized_response(rng, m, epsilon):
  included = rng.random(m) < 0.5
  right = rng.random(m) < special.expit(epsilon)
  # The jitter breaks ties without the coin flips.
  return np.where(right, included, ~included) + 0.1 * rng.random(m), included


def _gaussian(rng, m, mu):
  included = rng.random(m) < 0.5
  return mu * included + rng.normal(size=m), included


@pytest.mark.parametrize('num_guesses', [40, 200])
def test_pure_bounds_hold_for_randomized_response(num_guesses):
  rng = np.random.default_rng(0)
  wrong = 0
  for _ in range(400):
    guesses = audit.guess(*_randomized_response(rng, 200, 1.0), num_guesses)
    wrong += guesses.epsilon(confidence=0.9) > 1.0
  # Each guess is right with exactly the probability of the bound: not loose.
  assert 5 <= wrong <= _MOST(400, 0.1)


def test_bounds_at_a_delta_hold_where_delta_reveals_all():
  """Every canary is revealed with probability delta, or all of them are."""
  rng = np.random.default_rng(0)
  m, delta, epsilon = 100, 0.01, 0.5
  for together in (False, True):
    wrong = 0
    for _ in range(400):
      scores, included = _randomized_response(rng, m, epsilon)
      revealed = rng.random(1 if together else m) < delta
      scores = np.where(revealed, 10.0 * included, scores)
      guesses = audit.guess(scores, included, m)
      wrong += guesses.epsilon(delta, confidence=0.9) > epsilon
    assert wrong <= _MOST(400, 0.1)


def test_mu_bounds_hold_for_gaussians():
  rng = np.random.default_rng(0)
  for num_guesses in (50, 200):
    wrong = 0
    for _ in range(100):
      guesses = audit.guess(*_gaussian(rng, 200, 1.0), num_guesses)
      wrong += guesses.mu(0.9) > 1.0
    assert wrong <= _MOST(100, 0.1)


def test_profiles_hold_for_gaussians_and_laplace():
  """p-values of true claims are small no more often than they may be."""
  rng = np.random.default_rng(0)
  for event, noise in (
    (dp_accounting.GaussianDpEvent(1.0), rng.normal),
    (dp_accounting.LaplaceDpEvent(1.0), rng.laplace),
  ):
    small = 0
    for _ in range(30):
      included = rng.random(200) < 0.5
      found = audit.audit_one_run(
        included + noise(size=200),
        included,
        delta=1e-5,
        claim=event,
        num_guesses=[50, 200],
        confidence=0.8,
        accountant='rdp',
      )
      small += found.refuted
    assert small <= _MOST(30, 0.2)


def test_bounds_come_close():
  rng = np.random.default_rng(1)
  response = audit.guess(*_randomized_response(rng, 10_000, 1.0), 10_000)
  assert 0.93 < response.epsilon() < 1.0
  assert 0.8 < response.epsilon(1e-5) <= response.epsilon()
  found = audit.audit_one_run(
    *_gaussian(rng, 10_000, 1.0),
    delta=1e-5,
    claim=dp_accounting.GaussianDpEvent(1.0),
    num_guesses=200,
  )
  # The theorem allows that canaries are revealed together, which noise does
  # not do: the bound stays below mu, also with very many canaries.
  assert 0.6 < found.mu_lower < 1.0
  # At delta 0 a Gaussian has no epsilon: the bound may be any.
  assert found.epsilon_lower < found.epsilon_claimed
  assert found.epsilon_lower_gaussian < found.epsilon_claimed
  assert not found.refuted and 'not refuted' in str(found)


def test_too_few_canaries_to_refute_anything_are_told():
  for m in (20, 10_000):
    included = np.random.default_rng(0).random(m) < 0.5
    found = audit.audit_one_run(
      included, included, delta=1e-5, claim=dp_accounting.GaussianDpEvent(1.0)
    )
    assert found.refuted == found.could_refute == (m == 10_000)
    assert ('no guesses could of so few' in str(found)) == (m == 20)
  bounds = audit.audit_one_run(included, included, delta=1e-5)
  assert 'few' not in str(bounds)
  for event in (dp_accounting.GaussianDpEvent(0.1), GAUSSIAN_WITHOUT_NOISE):
    nothing = audit.audit_one_run(included, included, delta=1e-5, claim=event)
    assert not nothing.could_refute


@pytest.mark.parametrize('ledger', [False, True])
def test_false_claims_are_refuted(ledger):
  rng = np.random.default_rng(0)
  claim = dp_accounting.GaussianDpEvent(2.0)
  if ledger:
    claim = accounting.PrivacyLedger()
    claim.charge(dp_accounting.GaussianDpEvent(2.0), label='noise')
  found = audit.audit_one_run(
    *_gaussian(rng, 2000, 1.0), delta=1e-5, claim=claim
  )
  assert found.refuted and found.p_value < 1e-3 and 'REFUTED' in str(found)
  found = dataclasses.replace(
    found, epsilon_claimed=0.99974, epsilon_lower=0.56789
  )
  # Rounded to the safe side.
  assert 'epsilon <= 0.9998 at' in str(found)
  assert 'epsilon >= 0.5678 at' in str(found)
  marked = str(dataclasses.replace(found, accountant='gdp'))
  assert '(gdp, asymptotic: no upper bound): REFUTED' in marked
  assert 'asymptotic' not in str(found)


def test_repeated_runs_report_the_third_largest_of_50():
  rng = np.random.default_rng(0)
  trained = []

  def train(number):
    trained.append(number)
    return _gaussian(rng, 100, 0.7)

  found = audit.audit_repeated_runs(train, delta=1e-3)
  assert trained == [*range(50)]
  assert found.bounds.shape == (50, 2)
  for bounds, reported in zip(
    found.bounds.T, (found.epsilon_lower_pure, found.epsilon_lower)
  ):
    assert reported == np.sort(bounds)[-3] > 0
  assert (found.bounds[:, 1] <= found.bounds[:, 0]).all()
  assert 'no bound' in str(found)
  with pytest.raises(ValueError, match='num_runs is 0'):
    audit.audit_repeated_runs(train, num_runs=0)
  with pytest.raises(ValueError, match='delta is 0'):
    audit.audit_repeated_runs(train, delta=0.0)


def test_p_values_are_those_of_the_reference():
  """Appendix D of Steinke, Nasr and Jagielski 2023, as it is printed."""

  def reference(m, r, v, epsilon, delta):
    q = 1 / (1 + np.exp(-epsilon))
    beta = stats.binom.sf(v - 1, r, q)
    alpha = total = 0.0
    for i in range(1, v + 1):
      total += stats.binom.pmf(v - i, r, q)
      alpha = max(alpha, total / i)
    found = beta + alpha * delta * 2 * m
    # Near 1 it is no upper bound, see below.
    return 1.0 if delta and found > 0.5 else min(found, 1.0)

  for m, r, v in ((1000, 100, 90), (1000, 1000, 560), (50, 20, 20)):
    for epsilon in (0.1, 1.0, 3.0):
      for delta in (0.0, 1e-5, 1e-2):
        assert audit.Guesses(m, r, v).p_value(epsilon, delta) == pytest.approx(
          reference(m, r, v, epsilon, delta), rel=1e-6
        )


def test_p_values_are_not_below_the_truth():
  """A mechanism of two canaries that the theorem, near 1, is wrong for."""
  epsilon, delta = 1.0, 0.1
  factor = np.exp(epsilon)
  # The probability of an output, by how many of two bits of it are wrong.
  both = (1 - delta * (factor + 2)) / (1 + factor) ** 2
  one = factor * both + delta
  by_wrong = np.array([factor * one, one, both])
  bits = list(itertools.product((0, 1), repeat=2))
  law = {
    s: np.array([by_wrong[sum(np.not_equal(s, o))] for o in bits]) for s in bits
  }
  for s, t in itertools.permutations(bits, 2):
    assert law[s].sum() == pytest.approx(1)
    if sum(np.not_equal(s, t)) == 1:
      lost = np.maximum(law[s] - factor * law[t], 0).sum()
      assert lost <= delta + 1e-12
  for right, probability in ((1, 1 - both), (2, by_wrong[0])):
    found = audit.Guesses(2, 2, right).p_value(epsilon, delta)
    assert found >= probability


def test_profile_of_pure_privacy_is_that_of_randomized_response():
  """Without delta the test of the profile is nearly that of epsilon."""
  guesses = audit.Guesses(200, 200, 160)
  of_epsilon = guesses.p_value(1.0)
  assert of_epsilon <= guesses.p_value_of_profile([1.0], [0.0])
  assert guesses.p_value_of_profile([0.1], [0.0]) < 1e-6
  assert guesses.p_value_of_profile([20.0], [0.0]) == 1.0


def test_tables_of_guesses():
  scores = np.arange(10.0)
  included = scores > 4
  assert audit.guess(scores, included, 10) == audit.Guesses(10, 10, 10)
  assert audit.guess(-scores, included, 5) == audit.Guesses(10, 5, 0)
  assert audit.Guesses(10, 5, 0).epsilon() == 0.0
  assert audit.Guesses(10, 5, 0).mu() == 0.0


def test_bad_guesses_are_named():
  for arguments, message in (
    (([0.0], [True], 2), 'there are 1 canaries'),
    (([0.0, 1.0], [True], 1), r'included \[1\]'),
    (([np.nan], [True], 1), 'scores holds NaN'),
    (([0.0], [True], 0), 'num_guesses is 0'),
  ):
    with pytest.raises(ValueError, match=message):
      audit.guess(*arguments)
  with pytest.raises(ValueError, match='num_correct'):
    audit.Guesses(10, 5, 6)
  with pytest.raises(ValueError, match=r'delta is 1\.5'):
    audit.Guesses(10, 5, 5).epsilon(1.5)


def test_bands_of_the_roc():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=100_000), rng.normal(1.0, size=100_000)
  roc = audit.Roc(first, second)
  exact = lambda epsilon: (
    special.ndtr(0.5 - epsilon) - np.exp(epsilon) * special.ndtr(-0.5 - epsilon)
  )
  assert 0.95 < roc.mu() < 1.0
  for epsilon in (0.0, 0.5, 1.0):
    assert 0.85 * exact(epsilon) < roc.delta(epsilon) < exact(epsilon)
    assert roc.delta_estimate(epsilon) == pytest.approx(
      exact(epsilon), abs=0.01
    )
  # Half of the order is the divergence.
  assert 0.3 < roc.renyi(2.0) < 1.0 and roc.renyi(8.0) < 4.0
  assert roc.renyi_estimate(2.0) == pytest.approx(1.0, abs=0.1)
  assert audit.Roc(second, first).mu() == pytest.approx(roc.mu())


def test_bands_of_the_roc_hold():
  rng = np.random.default_rng(0)
  wrong = 0
  for _ in range(200):
    first, second = rng.normal(size=[2, 500])
    wrong += audit.Roc(first, second + 1.0, confidence=0.8).mu() > 1.0
  assert wrong <= _MOST(200, 0.2)


def test_no_number_of_guesses_is_refused():
  with pytest.raises(ValueError, match='num_guesses is empty'):
    audit.audit_one_run(
      np.arange(9.0), np.arange(9) > 4, delta=0.1, num_guesses=[]
    )
