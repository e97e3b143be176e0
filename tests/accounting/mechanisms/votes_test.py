"""What votes of PATE cost: oracles, exact divergences and odd votes."""

import json
import math
import pathlib

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import integrate, special, stats

from tfdpflows import accounting
from tfdpflows.accounting import mechanisms, rdp
from tfdpflows.accounting.mechanisms import (
  DataDependentGNMax,
  DataDependentLNMax,
  DataDependentThreshold,
)
from tfdpflows.accounting.mechanisms import votes as pate

ORACLES = pathlib.Path(__file__).parents[3].parent / 'shared' / 'oracles'
ORDERS = np.array([1.01, 1.1, 1.5, 2, 3, 5, 8, 12, 20, 32, 64, 128, 1000.0])


def oracles():
  path = ORACLES / 'pate.json'
  if not path.exists():
    skipped = pytest.mark.skip(f'{path} is not there')
    return [pytest.param(None, None, marks=skipped)]
  known = json.loads(path.read_text())
  return [(known['orders'], case) for case in known['cases']]


def random_votes(count=60):
  """Votes from unanimous to random, ties among them, and noise for them."""
  rng = np.random.default_rng(3)
  for i in range(count):
    classes = int(rng.integers(2, 12))
    teachers = int(10 ** rng.uniform(0, 4))
    share = rng.dirichlet(np.full(classes, 10 ** rng.uniform(-2, 1)))
    votes = rng.multinomial(teachers, share).astype(float)
    if i % 10 == 0:
      votes[:2] = np.max(votes)
    yield votes, float(teachers * 10 ** rng.uniform(-2.5, 0.5) + 0.2)


def divergences(log_p, log_q):
  """Exact, of two outcomes."""
  first, second = (ORDERS * p - (ORDERS - 1) * q for p, q in zip(log_p, log_q))
  return np.logaddexp(first, second) / (ORDERS - 1)


@pytest.mark.parametrize(('orders', 'case'), oracles())
def test_every_value_of_the_analysis_code(orders, case):
  def close(value, known):
    # Zeros there are powers of e below the range of floats.
    np.testing.assert_allclose(value, known, rtol=1e-9, atol=1e-290)

  votes, sigma = case['votes'], case['sigma']
  orders = np.array(orders)
  log_q = pate.log_q_gaussian(votes, sigma)
  close(log_q, case['log_q_gaussian'])
  close(DataDependentGNMax(sigma, log_q).renyi(orders), case['rdp_gnmax'])
  noise = case['sigma_threshold']
  log_pr = pate.log_pr_answered(votes, case['threshold'], noise)
  close(log_pr, case['log_pr_answered'])
  close(
    DataDependentThreshold(noise, log_pr).renyi(orders), case['rdp_threshold']
  )
  # The oracle has log q of noise whose scale is gamma, and a curve for noise
  # whose scale is 1 / gamma; each is checked by itself. LNMax is the latter.
  gamma = case['gamma_laplace']
  log_q = pate.log_q_laplace(votes, 1 / gamma)
  close(log_q, case['log_q_laplace'])
  close(DataDependentLNMax(gamma, log_q).from_votes(orders), case['rdp_lnmax'])


@pytest.mark.parametrize(('orders', 'case'), oracles())
def test_the_accountant_prices_confident_gnmax_like_the_oracle(orders, case):
  event = pate.data_dependent_event(
    accounting.ConfidentGNMaxDpEvent(
      case['threshold'], case['sigma_threshold'], case['sigma']
    ),
    case['votes'],
  )
  made = rdp.RDPAccountant(orders=orders).compose(event, 7)
  known = 7 * (np.array(case['rdp_gnmax']) + np.array(case['rdp_threshold']))
  np.testing.assert_allclose(made.rdp, known, rtol=1e-9)


@pytest.mark.parametrize(('votes', 'sigma'), random_votes(20))
def test_log_q_bounds_what_simulation_finds(votes, sigma):
  rng = np.random.default_rng(5)
  best = int(np.argmax(votes))
  shape = (20_000, len(votes))
  for log_q, noise in (
    (pate.log_q_gaussian(votes, sigma), rng.normal(0, sigma, shape)),
    (pate.log_q_laplace(votes, 1 / sigma), rng.laplace(0, sigma, shape)),
  ):
    missed = np.mean(np.argmax(votes + noise, axis=1) != best)
    assert missed <= math.exp(log_q) + 5 * math.sqrt(0.25 / 20_000)
    if len(votes) == 2:
      assert missed == pytest.approx(math.exp(log_q), abs=0.02)


def test_log_q_of_two_classes_is_exact():
  for gap in (0.0, 1.0, 5.0, 15.0):
    exact = stats.norm.logsf(gap, scale=3 * math.sqrt(2))
    assert pate.log_q_gaussian([gap + 4, 4], 3.0) == pytest.approx(
      exact, rel=1e-12
    )
    # The difference of two Laplace variables of scale one.
    exact = integrate.quad(lambda x: (1 + x) * math.exp(-x) / 4, gap, np.inf)[0]
    assert pate.log_q_laplace([gap + 4, 4], 1.0) == pytest.approx(
      math.log(exact), rel=1e-7
    )


def test_gnmax_of_two_classes_is_above_the_exact_divergence():
  # One teacher changes its vote, so that the gap changes by two.
  rng = np.random.default_rng(11)
  helped = 0
  for _ in range(300):
    sigma = float(10 ** rng.uniform(-0.3, 2))
    gap = float(rng.integers(0, int(20 * sigma) + 2))
    event = accounting.GNMaxDpEvent(sigma)
    price = pate.data_dependent_event(event, [gap + 3, 3])
    curve = DataDependentGNMax(sigma, price.log_q).renyi(ORDERS)
    helped += int(np.any(curve < 0.9 * ORDERS / sigma**2))
    root = math.sqrt(2) * sigma
    here = special.log_ndtr(np.array([gap, -gap]) / root)
    for other in (gap - 2, gap + 2, gap - 1, gap + 1):
      there = special.log_ndtr(np.array([other, -other]) / root)
      exact = divergences(here, there)
      assert np.all(exact <= curve * (1 + 1e-9) + 1e-13)
  assert helped > 100


def test_lnmax_of_two_classes_is_above_the_exact_divergence():
  def outcome(gap, gamma):
    less = math.log1p(gamma * abs(gap) / 2) - math.log(2) - gamma * abs(gap)
    more = math.log1p(-math.exp(less))
    return [more, less] if gap >= 0 else [less, more]

  rng = np.random.default_rng(12)
  for _ in range(300):
    gamma = float(10 ** rng.uniform(-2, 0.5))
    gap = float(rng.integers(0, int(15 / gamma) + 2))
    price = pate.data_dependent_event(accounting.LNMaxDpEvent(gamma), [gap, 0])
    mechanism = DataDependentLNMax(gamma, price.log_q)
    curve = mechanisms.renyi_curve(mechanism, tuple(ORDERS.tolist()))
    for other in (gap - 2, gap + 2):
      exact = divergences(outcome(gap, gamma), outcome(other, gamma))
      assert np.all(exact <= curve * (1 + 1e-9) + 1e-13)


def test_threshold_is_above_the_exact_divergence():
  rng = np.random.default_rng(13)
  for _ in range(300):
    sigma = float(10 ** rng.uniform(-0.3, 2))
    top = float(rng.integers(0, 1000))
    threshold = top + float(rng.normal(0, 8 * sigma))
    log_pr = pate.log_pr_answered([top, 0], threshold, sigma)
    curve = DataDependentThreshold(sigma, log_pr).renyi(ORDERS)
    assert np.all(curve <= ORDERS / (2 * sigma**2) * (1 + 1e-12))
    here = special.log_ndtr(np.array([1, -1]) * (top - threshold) / sigma)
    for other in (top - 1, top + 1):
      there = special.log_ndtr(np.array([1, -1]) * (other - threshold) / sigma)
      exact = divergences(here, there)
      assert np.all(exact <= curve * (1 + 1e-9) + 1e-13)


@pytest.mark.parametrize(('votes', 'sigma'), random_votes())
def test_never_dearer_than_whatever_the_votes(votes, sigma):
  for event in (
    accounting.GNMaxDpEvent(sigma),
    accounting.LNMaxDpEvent(1 / sigma),
    accounting.ConfidentGNMaxDpEvent(
      0.6 * float(np.sum(votes)), 1.5 * sigma, sigma
    ),
    accounting.ConfidentGNMaxDpEvent(3.0, sigma, sigma, answered=False),
  ):
    price = pate.data_dependent_event(event, votes)
    dear = rdp.RDPAccountant(orders=ORDERS).compose(event).rdp
    cheap = rdp.RDPAccountant(orders=ORDERS).compose(price).rdp
    assert np.all(np.isfinite(cheap)) and np.all(cheap > 0)
    assert np.all(cheap <= dear * (1 + 1e-9))
    # Of a higher order, never less.
    assert np.all(np.diff(cheap) >= -1e-12 * cheap[1:])


@pytest.mark.parametrize(('votes', 'sigma'), random_votes(30))
def test_a_larger_bound_on_the_probability_never_costs_less(votes, sigma):
  del votes
  log_q = -np.geomspace(1e-3, 600.0, 200)[::-1]
  curves = [DataDependentGNMax(sigma, x).renyi(ORDERS) for x in log_q]
  assert np.all(np.diff(curves, axis=0) >= -1e-9 * np.array(curves)[1:])
  curves = np.array(
    [DataDependentLNMax(1 / sigma, x).from_votes(ORDERS) for x in log_q]
  )
  finite = np.isfinite(curves)
  assert np.all(finite[:-1] | ~finite[1:])
  curves = np.where(finite, curves, 1e300)
  assert np.all(np.diff(curves, axis=0) >= -1e-9 * curves[1:])


@pytest.mark.parametrize(
  'votes',
  [[7.0], [0.0], [0, 0, 0], [5, 5], [1e300, 1e-300], [1e308, 0], [3, 3, 3, 0]],
)
@pytest.mark.parametrize('noise', [1e-150, 1e-3, 1.0, 40.0, 1e200])
def test_odd_votes(votes, noise):
  for event in (
    accounting.GNMaxDpEvent(noise),
    accounting.LNMaxDpEvent(1 / noise),
    accounting.ConfidentGNMaxDpEvent(2.0, noise, noise),
    accounting.ConfidentGNMaxDpEvent(-1e308, noise, noise),
  ):
    price = pate.data_dependent_event(event, votes)
    accountant = rdp.RDPAccountant().compose(price, 10**9)
    epsilon = accountant.get_epsilon(1e-6)
    assert not math.isnan(epsilon) and epsilon >= 0
    assert not np.any(np.isnan(accountant.rdp))
    assert np.all(accountant.rdp > 0)
    dear = rdp.RDPAccountant().compose(event, 10**9).get_epsilon(1e-6)
    assert epsilon <= dear * (1 + 1e-9)


def test_one_class_costs_next_to_nothing():
  price = pate.data_dependent_event(accounting.GNMaxDpEvent(40.0), [250.0])
  assert rdp.RDPAccountant().compose(price, 10**9).get_epsilon(1e-6) == 0


def test_unanimous_votes_are_nearly_free_and_ties_are_not():
  event = accounting.GNMaxDpEvent(40.0)

  def cost(votes, count):
    price = pate.data_dependent_event(event, votes)
    return rdp.RDPAccountant().compose(price, count).get_epsilon(1e-6)

  dear = rdp.RDPAccountant().compose(event, 1000).get_epsilon(1e-6)
  assert cost([1000, 0, 0], 1000) < dear / 10
  assert cost([500, 500, 0], 1000) == pytest.approx(dear, rel=1e-9)


@pytest.mark.parametrize(
  ('votes', 'match'),
  [
    ([1.0, math.nan], 'votes must be counts, .* one is nan'),
    ([math.inf, 1.0], 'votes must be counts, .* one is inf'),
    ([-1.0, 2.0], r'votes must be counts, .* one is -1\.0'),
    ([], 'votes must be a list'),
    ([[1, 2]], r'votes must be a list .* shape \[1, 2\]'),
    (3.0, 'votes must be a list'),
  ],
)
def test_what_is_no_count_is_refused(votes, match):
  for event in (
    accounting.GNMaxDpEvent(1.0),
    accounting.LNMaxDpEvent(1.0),
    accounting.ConfidentGNMaxDpEvent(1.0, 1.0, 1.0, answered=False),
  ):
    with pytest.raises(ValueError, match=match):
      pate.data_dependent_event(event, votes)


@pytest.mark.parametrize('noise', [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_noise_is_refused(noise):
  votes = [3, 1]
  with pytest.raises(ValueError, match='sigma must be a finite number above'):
    pate.data_dependent_event(accounting.GNMaxDpEvent(noise), votes)
  with pytest.raises(ValueError, match='sigma_threshold must be a finite'):
    pate.data_dependent_event(
      accounting.ConfidentGNMaxDpEvent(1.0, noise, 1.0), votes
    )
  if noise != 0:
    with pytest.raises(ValueError, match='gamma must be a finite number zero'):
      pate.data_dependent_event(accounting.LNMaxDpEvent(noise), votes)
  with pytest.raises(ValueError, match='threshold must be a finite'):
    pate.data_dependent_event(
      accounting.ConfidentGNMaxDpEvent(math.nan, 1.0, 1.0), votes
    )
  with pytest.raises(TypeError, match='event must be an LNMaxDpEvent'):
    pate.data_dependent_event(dp_accounting.GaussianDpEvent(1.0), votes)


def test_both_relations_cost_the_same():
  price = pate.data_dependent_event(
    accounting.ConfidentGNMaxDpEvent(60.0, 20.0, 10.0), [90, 5, 5]
  )
  costs = {
    rdp.RDPAccountant(relation).compose(price, 100).get_epsilon(1e-5)
    for relation in (
      NeighboringRelation.ADD_OR_REMOVE_ONE,
      NeighboringRelation.REPLACE_ONE,
    )
  }
  assert len(costs) == 1
