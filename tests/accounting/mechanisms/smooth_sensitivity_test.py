"""Gaussian noise with a scale that depends on the table."""

import functools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import integrate, special, stats

from tfdpflows import accounting
from tfdpflows.accounting import mechanisms, rdp
from tfdpflows.accounting.mechanisms import RenyiPrivate, SmoothSensitivity


def _moment_density(one, law, order, x):
  return math.exp(order * one.logpdf(x) - (order - 1) * law.logpdf(x))


def test_never_below_the_exact_divergence():
  rng = np.random.default_rng(0)
  for _ in range(60):
    sigma, beta = 10 ** rng.uniform(-0.5, 1.5), 10 ** rng.uniform(-3, -0.5)
    shift = rng.choice([0.0, 10.0 * rng.random()])
    order = 1 + (1 / -math.expm1(-2 * beta) - 1) * rng.uniform(0.05, 0.7)
    (bound,) = mechanisms.renyi_curve(
      SmoothSensitivity(sigma, beta, shift), (order,)
    )
    # The smooth sensitivities, and numbers as far apart as they allow.
    scale, other = math.exp(rng.uniform(-beta, beta)), 1.0
    if rng.random() < 0.5:
      scale = math.exp(beta)
    number = rng.choice([-1.0, 1.0]) * min(scale, other)
    one = stats.norm(number + shift * scale, sigma * scale)
    law = stats.norm(shift * other, sigma * other)
    density = functools.partial(_moment_density, one, law, order)
    # The integrand is a normal density, at this place, of this width.
    weights = np.array([order / one.var(), -(order - 1) / law.var()])
    precision = np.sum(weights)
    middle = weights @ [one.mean(), law.mean()] / precision
    width = precision**-0.5
    with np.errstate(over='ignore'):
      if not middle * middle * precision < 600:
        continue
    moment, _ = integrate.quad(
      density, middle - 12 * width, middle + 12 * width, points=[middle]
    )
    assert math.log(moment) / (order - 1) <= bound * (1 + 1e-9) + 1e-12


def _published(order, sigma, beta):
  """Papernot et al. 2018, theorem 23, as in their code."""
  return order * math.exp(2 * beta) / sigma**2 + (
    beta * order - 0.5 * math.log(1 - 2 * order * beta)
  ) / (order - 1)


def test_less_than_the_published_formula_at_low_orders():
  for beta in (0.001, 0.005, 0.012):
    for sigma in (1.0, 10.0, 100.0):
      for order in (1.5, 8.0, 20.0):
        mechanism = SmoothSensitivity(sigma, beta)
        (found,) = mechanisms.renyi_curve(mechanism, (order,))
        assert order / 2 / sigma**2 < found < _published(order, sigma, beta)


def test_the_published_formula_is_no_bound_at_high_orders():
  beta, sigma, order = 0.02, 1.0, 20.0
  one, law = stats.norm(1.0, math.exp(beta)), stats.norm(0.0, 1.0)
  # The log of the moment, on a grid, as it is beyond the range of floats.
  x = np.linspace(-100, 300, 400_001)
  logs = order * one.logpdf(x) - (order - 1) * law.logpdf(x)
  moment = special.logsumexp(logs) + math.log(x[1] - x[0])
  exact = moment / (order - 1)
  (bound,) = mechanisms.renyi_curve(SmoothSensitivity(sigma, beta), (order,))
  assert exact == pytest.approx(bound, rel=1e-6)
  assert _published(order, sigma, beta) < exact / 2


def test_no_bound_beyond_the_largest_order():
  beta = 0.05
  last = 1 / -math.expm1(-2 * beta)
  found = mechanisms.renyi_curve(
    SmoothSensitivity(5.0, beta), (last - 1e-6, last + 1e-6, 1e6)
  )
  assert np.isfinite(found[0]) and np.all(np.isinf(found[1:]))
  (still,) = mechanisms.renyi_curve(SmoothSensitivity(5.0, 0.0), (1e3,))
  assert still == pytest.approx(1e3 / 50)


def test_a_failure_is_taken_off_delta():
  event = accounting.RenyiDpEvent(20.0, 0.1, 1e-6)
  made = rdp.RDPAccountant(orders=[10.0, 20.0, 40.0]).compose(event)
  np.testing.assert_array_equal(made.rdp[:2] >= 0.1, True)
  assert made.rdp[2] == math.inf
  plain = rdp.RDPAccountant(orders=[10.0, 20.0, 40.0]).compose(
    accounting.RenyiDpEvent(20.0, 0.1)
  )
  assert made.get_epsilon(1e-5) == pytest.approx(plain.get_epsilon(9e-6))
  assert made.get_epsilon(1e-7) == math.inf


@pytest.mark.parametrize(
  'event',
  [
    accounting.RenyiDpEvent(1.0, 0.1),
    accounting.RenyiDpEvent(2.0, -0.1),
    accounting.RenyiDpEvent(2.0, 0.1, 1.5),
    accounting.SmoothSensitivityDpEvent(-1.0, 0.1),
    accounting.SmoothSensitivityDpEvent(1.0, math.nan),
    accounting.SmoothSensitivityDpEvent(1.0, 0.1, -1.0),
  ],
  ids=repr,
)
def test_values_out_of_range_are_named(event):
  with pytest.raises(ValueError, match='must be'):
    mechanisms.decompose(event)


def test_without_noise_there_is_no_privacy():
  for event in (
    accounting.SmoothSensitivityDpEvent(0.0, 0.1),
    accounting.RenyiDpEvent(2.0, 0.1, 1.0),
  ):
    assert accounting.compute_epsilon(event, 1e-5, 'rdp') == math.inf


def test_the_best_of_several_runs_needs_both_directions():
  select = lambda event: dp_event.RepeatAndSelectDpEvent(event, 5.0, 1.0)
  known = accounting.RenyiDpEvent(20.0, 0.1)
  assert RenyiPrivate(20.0, 0.1) in mechanisms.decompose(known)
  mechanisms.decompose(select(known))
  with pytest.raises(mechanisms.RefusedEventError, match='one direction'):
    mechanisms.decompose(select(accounting.RenyiDpEvent(20.0, 0.1, 1e-6)))
  with pytest.raises(dp_accounting.UnsupportedEventError, match='rdp'):
    accounting.compute_epsilon(known, 1e-5, 'pld')


@pytest.mark.parametrize('ratio', [1.001, 1.1, 2.0])
def test_a_failure_counts_for_small_epsilons(ratio):
  # Two outcomes with this ratio, one way and the other, and one more that each
  # law has alone. Without its own, the moment of order 2 is one: divergence 0.
  mass = 1 / (ratio**2 + 1 / ratio)
  failure = 1 - (1 + ratio) * mass
  event = accounting.RenyiDpEvent(2.0, 0.0, failure)
  total_variation = (ratio - 1) * mass + failure
  accountant = rdp.RDPAccountant().compose(event)
  assert accountant.get_delta(0.0) >= total_variation
  assert accountant.get_epsilon(0.9 * total_variation) > 0
