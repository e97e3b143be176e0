"""Calibration never exceeds, and comes within a thousandth."""

import math
import time

import dp_accounting
import pytest

from tests.grids import thinned
from tfdpflows import accounting
from tfdpflows.accounting import calibration

GAUSSIAN = dp_accounting.GaussianDpEvent


def training(q, steps):
  def make_event(noise_multiplier):
    return dp_accounting.SelfComposedDpEvent(
      dp_accounting.PoissonSampledDpEvent(q, GAUSSIAN(noise_multiplier)), steps
    )

  return make_event


@pytest.mark.parametrize(
  ('q', 'steps', 'epsilon', 'delta', 'spent'),
  thinned(
    [
      (0.0625, 500, 1.0, 1e-5, None),
      (0.0625, 500, 1.0, 1e-5, GAUSSIAN(8.0)),
      (0.01, 10**4, 3.0, 1e-6, None),
      (0.1, 300, 0.1, 1e-5, None),
      (0.1, 300, 10.0, 1e-5, accounting.EpsilonDeltaDpEvent(1.0, 1e-6)),
      (1.0, 1, 1.0, 1e-5, None),
      (0.001, 100, 8.0, 1e-5, None),
    ],
    6,
  ),
)
@pytest.mark.parametrize('name', ['pld', 'rdp'])
def test_calibration(q, steps, epsilon, delta, spent, name):
  make_event, budget = (
    training(q, steps),
    accounting.PrivacyBudget(epsilon=epsilon, delta=delta),
  )
  start = time.process_time()
  sigma = accounting.calibrate_noise_multiplier(
    make_event, budget, spent=spent, accountant=name
  )
  assert time.process_time() - start < 5

  def price(noise_multiplier):
    parts = [make_event(noise_multiplier)] + ([spent] if spent else [])
    return accounting.compute_epsilon(
      dp_accounting.ComposedDpEvent(parts), delta, name
    )

  assert price(sigma) <= epsilon
  assert price(sigma) >= epsilon * (1 - 1e-3)
  assert price(sigma / (1 + 1e-3)) > epsilon


def test_calibrated_pipeline_fits_a_ledger():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  histograms = GAUSSIAN(9.0)
  make_event = training(0.0625, 320)
  sigma = accounting.calibrate_noise_multiplier(
    make_event, budget, spent=histograms
  )
  ledger = accounting.PrivacyLedger(budget=budget)
  ledger.charge(histograms, label='histograms')
  event = make_event(sigma)
  steps = ledger.reserve(event.event, event.count, 'training')
  steps.ensure(320)
  assert 0.999 <= ledger.epsilon() <= 1


def test_a_budget_that_is_spent():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  with pytest.raises(
    accounting.BudgetExceededError, match='Nothing is left'
  ) as error:
    accounting.calibrate_noise_multiplier(GAUSSIAN, budget, spent=GAUSSIAN(2.0))
  assert error.value.budget == budget
  assert error.value.spent > 1
  # A part that no noise makes smaller.
  with pytest.raises(accounting.BudgetExceededError, match='No noise'):
    accounting.calibrate_noise_multiplier(
      lambda sigma: dp_accounting.ComposedDpEvent(
        [GAUSSIAN(sigma), GAUSSIAN(2.0)]
      ),
      budget,
    )
  step = lambda n: dp_accounting.SelfComposedDpEvent(GAUSSIAN(0.5), n)
  with pytest.raises(accounting.BudgetExceededError, match='epsilon to 9.99'):
    accounting.calibrate_steps(step, budget)
  with pytest.raises(
    accounting.BudgetExceededError, match='charged separately'
  ):
    accounting.calibrate_steps(step, budget, spent=GAUSSIAN(50.0))


def test_an_event_that_costs_little_without_noise():
  sigma = accounting.calibrate_noise_multiplier(
    lambda sigma: accounting.EpsilonDeltaDpEvent(min(0.5, 1 / sigma), 0.0),
    accounting.PrivacyBudget(epsilon=1.0, delta=1e-5),
  )
  assert sigma <= 1e-3


def test_a_jump_is_approached_from_the_safe_side():
  def make_event(noise_multiplier):
    return GAUSSIAN(2.0 if noise_multiplier < 7.5 else 40.0)

  sigma = accounting.calibrate_noise_multiplier(
    make_event, accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  )
  assert 7.5 <= sigma <= 7.5 * 1.001


def test_bad_arguments():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  with pytest.raises(TypeError, match='budget is of type tuple; .*such as'):
    accounting.calibrate_noise_multiplier(GAUSSIAN, (1.0, 1e-5))
  with pytest.raises(ValueError, match='tolerance'):
    accounting.calibrate_noise_multiplier(GAUSSIAN, budget, tolerance=0)
  with pytest.raises(ValueError, match='Unknown accountant'):
    accounting.calibrate_noise_multiplier(GAUSSIAN, budget, accountant='x')
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accounting.calibrate_noise_multiplier(
      lambda _: dp_accounting.UnsupportedDpEvent(), budget
    )
  for epsilon, delta in (
    (0.0, 1e-5),
    (-1.0, 1e-5),
    (math.inf, 1e-5),
    (math.nan, 1e-5),
    (1.0, 0.0),
    (1.0, 1.0),
    (1.0, math.nan),
    ('1', 1e-5),
    (True, 1e-5),
    (1.0, '1e-5'),
  ):
    with pytest.raises(ValueError, match='must'):
      accounting.PrivacyBudget(epsilon=epsilon, delta=delta)


def test_curve_of_epsilon():
  step = dp_accounting.PoissonSampledDpEvent(0.05, GAUSSIAN(2.0))
  spent = GAUSSIAN(8.0)
  curve = calibration.epsilon_after(
    step, [0, 1, 50, 7], delta=1e-5, spent=spent
  )
  assert curve[0] == accounting.compute_epsilon(spent, 1e-5)
  assert curve[2] == accounting.compute_epsilon(
    dp_accounting.ComposedDpEvent(
      [spent, dp_accounting.SelfComposedDpEvent(step, 50)]
    ),
    1e-5,
  )
  assert curve[0] < curve[1] < curve[3] < curve[2]

  def seconds(counts):
    start = time.process_time()
    calibration.epsilon_after(step, counts, delta=1e-5, spent=spent)
    return time.process_time() - start

  # A ratio, because cores that are busy or slow slow both.
  alone = min(seconds([count]) for count in (95, 245, 495))
  assert seconds(range(0, 500, 10)) < 4 * 50 * alone


def test_curve_does_not_depend_on_votes():
  vote = accounting.GNMaxDpEvent(40.0)
  priced = accounting.DataDependentDpEvent(vote, log_q=-50.0)
  for spent in (None, priced):
    assert calibration.epsilon_after(
      priced, [100], delta=1e-6, spent=spent, accountant='rdp'
    ) == calibration.epsilon_after(
      vote, [100], delta=1e-6, spent=spent and vote, accountant='rdp'
    )
