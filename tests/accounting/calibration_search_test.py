"""Steps, sampling and epsilon for a budget: never above it, and near."""

import math
import time

import dp_accounting
import hypothesis
import pytest
from hypothesis import strategies as st

from tests.grids import thinned
from tfdpflows import accounting
from tfdpflows.accounting import calibration

GAUSSIAN = dp_accounting.GaussianDpEvent
ADD, REPLACE = (
  dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
  dp_accounting.NeighboringRelation.REPLACE_ONE,
)


def training(q, sigma, steps):
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(q, GAUSSIAN(sigma)), steps
  )


def price(event, delta, spent=None, name='pld', relation=ADD):
  events = [event] if spent is None else [spent, event]
  return accounting.compute_epsilon(
    dp_accounting.ComposedDpEvent(events), delta, name, relation
  )


# The search itself, on prices that cost nothing to compute.


@hypothesis.given(
  end=st.floats(-8, 8),
  power=st.floats(0.3, 6),
  start=st.floats(-6, 6),
  falling=st.booleans(),
)
@hypothesis.settings(deadline=None, max_examples=200)
def test_search_on_powers(end, power, start, falling):
  calls = []
  sign = -1 if falling else 1

  def cost(x):
    calls.append(x)
    return (x / 10**end) ** (sign * power)

  low, high = (1e9, 1e-9) if falling else (1e-9, 1e9)
  found = calibration.last_within(cost, 1.0, low, high, start=10**start)
  assert cost(found) <= 1
  assert cost(found * (1.001 + 1e-12) ** sign) > 1
  assert cost(found) >= 1 - 1e-3
  assert len(calls) < 50


@hypothesis.given(
  end=st.integers(1, 10**9 - 1),
  power=st.floats(0.3, 3),
  jump=st.floats(0, 100),
)
@hypothesis.settings(deadline=None, max_examples=200)
def test_search_on_whole_numbers(end, power, jump):
  calls = []

  def cost(x):
    calls.append(x)
    assert x == int(x)
    return (x / (end + 0.5)) ** power + (jump if x > end else 0.0)

  found = calibration.last_within(cost, 1.0, 1, 10**9, start=1, whole=True)
  assert found == end
  assert isinstance(found, int)
  assert len(calls) < 50


def test_search_at_the_ends_and_on_prices_without_sense():
  find = calibration.last_within
  assert find(lambda x: 0.0, 1.0, 1, 100, 1, whole=True) == 100
  assert find(lambda x: x, 100, 1, 100, 1, whole=True) == 100
  assert find(lambda x: x, 99.5, 1, 100, 1, whole=True) == 99
  assert find(lambda x: x, 1.0, 1, 100, 1, whole=True) == 1
  assert find(lambda x: x, 0.5, 1, 100, 1, whole=True) is None
  assert find(lambda x: math.nan, 1.0, 1e-3, 1e3, 1.0) is None
  assert find(lambda x: math.inf, 1.0, 1, 1, 1, whole=True) is None
  assert find(lambda x: -math.inf, 1.0, 1, 1, 1, whole=True) == 1
  assert find(lambda x: x, 1e-300, 1e-310, 1.0, 1.0) <= 1e-300
  assert find(lambda x: 1e-300 if x < 2 else 1e300, 1.0, 1e-3, 1e3, 1) < 2
  # Not monotone: what comes out was seen to be affordable.
  cost = lambda x: abs(math.sin(x)) * x
  assert cost(find(cost, 1.0, 1e-3, 1e3, 1.0)) <= 1


# Steps.


@pytest.mark.parametrize('name', ['pld', 'rdp'])
@pytest.mark.parametrize(
  ('q', 'sigma', 'epsilon', 'delta', 'spent'),
  thinned(
    [
      (0.01, 1.0, 1.5, 1e-5, None),
      (0.01, 2.0, 5.0, 1e-6, GAUSSIAN(3.0)),
      (1.0, 300.0, 1.0, 1e-5, None),
      (1.0, 5.0, 1.0, 1e-5, None),
      (1e-4, 1.0, 1.0, 1e-5, accounting.EpsilonDeltaDpEvent(0.3, 1e-7)),
    ],
    4,
  ),
)
def test_one_step_more_is_too_many(q, sigma, epsilon, delta, spent, name):
  budget = accounting.PrivacyBudget(epsilon=epsilon, delta=delta)
  steps = calibration.calibrate_steps(
    lambda steps: training(q, sigma, steps),
    budget,
    spent=spent,
    accountant=name,
  )
  assert isinstance(steps, int)
  assert price(training(q, sigma, steps), delta, spent, name) <= epsilon
  more = price(training(q, sigma, steps + 1), delta, spent, name)
  assert more > epsilon * (1 - 1e-9)


def test_gaussian_steps_are_a_quotient_of_squares():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  one = calibration.calibrate_noise_multiplier(GAUSSIAN, budget, tolerance=1e-8)
  for relation, factor in ((ADD, 1), (REPLACE, 4)):
    steps = calibration.calibrate_steps(
      lambda n: dp_accounting.SelfComposedDpEvent(GAUSSIAN(10_000.0), n),
      budget,
      neighboring_relation=relation,
    )
    exact = (10_000 / one) ** 2 / factor
    assert steps == pytest.approx(exact, rel=1e-6)


def test_steps_without_end():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  free = lambda steps: dp_accounting.SelfComposedDpEvent(
    dp_accounting.NoOpDpEvent(), steps
  )
  assert calibration.calibrate_steps(free, budget) == 10**9
  some = lambda steps: training(1.0, 1.0e3, steps)
  assert calibration.calibrate_steps(some, budget, max_steps=50) == 50
  assert calibration.calibrate_steps(some, budget, max_steps=1) == 1


def test_not_even_one_step():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  with pytest.raises(
    accounting.BudgetExceededError,
    match=r'Not even one step fits.* from 0\.9\d+,.* to 1\.0\d+ at delta=1e-05',
  ) as error:
    calibration.calibrate_steps(
      lambda steps: training(1.0, 10.0, steps), budget, spent=GAUSSIAN(4.0)
    )
  assert error.value.spent < 1 < error.value.asked
  with pytest.raises(accounting.BudgetExceededError, match='Nothing is left'):
    calibration.calibrate_steps(
      lambda steps: training(1.0, 10.0, steps), budget, spent=GAUSSIAN(2.0)
    )
  with pytest.raises(accounting.BudgetExceededError, match='to inf at'):
    calibration.calibrate_steps(
      lambda steps: dp_accounting.NonPrivateDpEvent(), budget
    )


@pytest.mark.parametrize('steps', [0, -1, 1.5, math.nan, math.inf])
def test_limits_that_make_no_sense(steps):
  with pytest.raises(ValueError, match='max_steps'):
    calibration.calibrate_steps(
      lambda n: training(1.0, 10.0, n),
      accounting.PrivacyBudget(epsilon=1.0, delta=1e-5),
      max_steps=steps,
    )


# Sampling probability.


@pytest.mark.parametrize('name', ['pld', 'rdp'])
@pytest.mark.parametrize(
  ('sigma', 'steps', 'epsilon', 'delta', 'spent'),
  thinned(
    [
      (1.0, 1000, 2.0, 1e-5, None),
      (2.0, 100, 0.5, 1e-6, GAUSSIAN(20.0)),
      (1.0, 10**6, 1.0, 1e-5, None),
      (20.0, 1000, 3.0, 1e-5, None),
    ],
    2,
  ),
)
def test_a_larger_probability_is_too_large(
  sigma, steps, epsilon, delta, spent, name
):
  q = calibration.calibrate_sampling_probability(
    lambda q: training(q, sigma, steps),
    accounting.PrivacyBudget(epsilon=epsilon, delta=delta),
    spent=spent,
    accountant=name,
  )
  found = price(training(q, sigma, steps), delta, spent, name)
  assert epsilon * (1 - 1e-3) <= found <= epsilon
  assert price(training(q * 1.001, sigma, steps), delta, spent, name) > epsilon


def test_every_row_in_every_batch():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  q = calibration.calibrate_sampling_probability(
    lambda q: training(q, 1e3, 10), budget
  )
  assert q == 1.0


def test_no_probability_is_small_enough():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  with pytest.raises(
    accounting.BudgetExceededError, match=r'Not even a .* of 1e-12 fits'
  ):
    calibration.calibrate_sampling_probability(lambda q: GAUSSIAN(2.0), budget)
  with pytest.raises(ValueError, match='tolerance'):
    calibration.calibrate_sampling_probability(
      lambda q: training(q, 1.0, 1), budget, tolerance=math.nan
    )


# Epsilon.


@hypothesis.given(
  q=st.floats(1e-3, 0.5),
  sigma=st.floats(0.7, 20),
  steps=st.integers(1, 300),
  spent=st.floats(1, 50),
)
@hypothesis.settings(deadline=None, max_examples=15)
def test_a_budget_of_that_epsilon_admits_the_pipeline(q, sigma, steps, spent):
  delta, before = 1e-6, GAUSSIAN(spent)
  event = training(q, sigma, steps)
  epsilon = calibration.calibrate_epsilon(
    event, delta, spent=before, accountant='rdp'
  )
  assert epsilon <= price(event, delta, before, 'rdp') * (1 + 1e-8)
  budget = accounting.PrivacyBudget(epsilon=epsilon, delta=delta)
  ledger = accounting.PrivacyLedger(budget=budget, accountant='rdp')
  # Not in the order in which it was priced.
  ledger.reserve(event.event, steps, 'training').ensure(steps)
  ledger.charge(before, label='before')
  # And it is the way back from the number of steps.
  again = calibration.calibrate_steps(
    lambda n: training(q, sigma, n),
    budget,
    spent=before,
    accountant='rdp',
    max_steps=1000,
  )
  assert again >= steps


def test_epsilon_of_what_costs_nothing_or_everything():
  assert calibration.calibrate_epsilon(dp_accounting.NoOpDpEvent(), 1e-5) > 0
  for event in (
    dp_accounting.NonPrivateDpEvent(),
    accounting.EpsilonDeltaDpEvent(1.0, 1e-4),
  ):
    with pytest.raises(ValueError, match='No finite epsilon'):
      calibration.calibrate_epsilon(event, 1e-5)
  for delta in (0.0, 1.0, -1.0, math.nan):
    with pytest.raises(ValueError, match='delta must'):
      calibration.calibrate_epsilon(GAUSSIAN(1.0), delta)


# What is common to all.


def test_replacing_a_row_costs_more():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  for search, cheaper in (
    (calibration.calibrate_noise_multiplier, -1),
    (calibration.calibrate_epsilon, None),
  ):
    if cheaper is None:
      one, two = (
        search(GAUSSIAN(4.0), 1e-5, neighboring_relation=r)
        for r in (ADD, REPLACE)
      )
      assert two > 1.5 * one
    else:
      one, two = (
        search(GAUSSIAN, budget, neighboring_relation=r) for r in (ADD, REPLACE)
      )
      assert two == pytest.approx(2 * one, rel=2e-3)


def test_private_votes_do_not_decide():
  """A price that depends on votes is no base for a choice of noise."""
  cheap = lambda sigma: accounting.DataDependentDpEvent(
    accounting.GNMaxDpEvent(sigma), log_q=-500.0
  )
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  one, two = (
    calibration.calibrate_noise_multiplier(make, budget)
    for make in (cheap, accounting.GNMaxDpEvent)
  )
  assert one == two


@pytest.mark.parametrize(
  'search',
  [
    calibration.calibrate_noise_multiplier,
    calibration.calibrate_steps,
    calibration.calibrate_sampling_probability,
  ],
)
def test_parameters_that_make_no_sense(search):
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  with pytest.raises(ValueError, match="Did you mean 'pld'"):
    search(lambda x: GAUSSIAN(1.0), budget, accountant='pdl')
  with pytest.raises(dp_accounting.UnsupportedEventError):
    search(lambda x: dp_accounting.UnsupportedDpEvent(), budget)
  with pytest.raises(ValueError, match='noise_multiplier'):
    search(lambda x: GAUSSIAN(math.nan), budget)


def test_an_asymptotic_accountant_has_to_be_named():
  """Nothing but its name makes a search rest on an approximation."""
  for search in (
    calibration.calibrate_noise_multiplier,
    calibration.calibrate_steps,
    calibration.calibrate_sampling_probability,
    calibration.calibrate_epsilon,
  ):
    default = search.__kwdefaults__['accountant']
    assert accounting.create_accountant(default).guarantee == 'upper_bound'


# Time.


def test_a_search_ends_with_the_best_point_when_it_is_over():
  calls = []

  def cost(x):
    calls.append(x)
    return x

  find = lambda number, **kwargs: calibration.last_within(
    cost, 3.0, 1e-3, 1e3, is_over=lambda: len(calls) >= number, **kwargs
  )
  assert find(math.inf, start=1.0) == pytest.approx(3.0, rel=1e-3)
  calls.clear()
  assert find(1, start=1.0) == 1.0
  assert len(calls) == 1
  calls.clear()
  # Not before there is one that fits.
  assert find(1, start=100.0) <= 3.0
  assert len(calls) > 1
  calls.clear()
  found = find(4, start=1.0)
  assert len(calls) == 4
  assert found == max(x for x in calls if x <= 3)


@pytest.mark.parametrize('limit', [-1.0, math.nan])
def test_time_limit_of_a_search_is_checked(limit):
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  with pytest.raises(ValueError, match='time_limit must be zero or more'):
    calibration.calibrate_noise_multiplier(GAUSSIAN, budget, time_limit=limit)


def test_time_limit_is_that_of_the_whole_search():
  """At delta=0.5 a search took 150 s: each price was within its own 20 s."""
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=0.5)
  make_event = lambda sigma: training(0.01, sigma, 50)
  start = time.thread_time()
  with pytest.warns(RuntimeWarning, match='ended after 2 s, at .* within'):
    sigma = calibration.calibrate_noise_multiplier(
      make_event, budget, time_limit=2.0
    )
  # One price more than the limit allows.
  assert time.thread_time() - start < 2 + 10
  assert price(make_event(sigma), 0.5) <= 1.0
