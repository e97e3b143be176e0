"""Accountants against closed forms, dp_accounting and each other."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from scipy import optimize, special

from tests.grids import thinned
from tfdpflows import accounting
from tfdpflows.accounting import calibration, mechanisms
from tfdpflows.accounting.mechanisms import (
  EpsilonDelta,
  Gaussian,
  Laplace,
  gaussian,
)
from tfdpflows.accounting.pld import convolution

REPLACE = NeighboringRelation.REPLACE_ONE


def gaussian_delta(epsilon, noise):
  """Balle and Wang 2018, theorem 8, in logs."""
  top = special.log_ndtr(0.5 / noise - epsilon * noise)
  bottom = epsilon + special.log_ndtr(-0.5 / noise - epsilon * noise)
  return math.exp(top) * -math.expm1(bottom - top)


def gaussian_epsilon(delta, noise):
  high = 0.5 / noise**2 + math.sqrt(2 * math.log(1 / delta)) / noise
  if gaussian_delta(0, noise) <= delta:
    return 0.0
  return optimize.brentq(
    lambda x: math.log(gaussian_delta(x, noise) / delta), 0, high, xtol=1e-13
  )


def sampled(q, noise, steps):
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(
      q, dp_accounting.GaussianDpEvent(noise)
    ),
    steps,
  )


@pytest.mark.parametrize('noise', [0.05, 0.3, 1.0, 3.73, 30.0, 3000.0])
@pytest.mark.parametrize('delta', [0.3, 1e-2, 1e-5, 1e-10, 1e-15])
def test_gaussian_is_the_closed_form_from_above(noise, delta):
  event = dp_accounting.GaussianDpEvent(noise)
  epsilon = accounting.compute_epsilon(event, delta)
  exact = gaussian_epsilon(delta, noise)
  assert exact <= epsilon <= exact * (1 + 1e-4) + 1e-7
  made = accounting.create_accountant('pld').compose(event)
  if exact > 0:
    assert delta <= made.get_delta(exact) <= delta * 1.05
  assert accounting.compute_epsilon(event, delta, 'rdp') >= exact


@pytest.mark.parametrize('steps', [2, 100, 10**4])
@pytest.mark.parametrize('noise', [0.3, 1.0, 3.0])
@pytest.mark.parametrize('delta', [1e-2, 1e-6, 1e-14])
def test_convolution_is_the_closed_form_from_above(steps, noise, delta):
  mechanism = Gaussian(noise * math.sqrt(steps))
  part, _ = mechanisms.loss_distributions(mechanism, 1e-4)
  epsilon = convolution.epsilon_at(delta, [(part, steps)], 1e-4)
  exact = gaussian_epsilon(delta, noise)
  assert exact <= epsilon <= exact * (1 + 3e-4)
  assert delta <= convolution.delta_at(exact, [(part, steps)], 1e-4)


@pytest.mark.parametrize('noise', [0.7, 2.0, 20.0])
def test_replace_one_counts_a_gaussian_twice(noise):
  event = dp_accounting.GaussianDpEvent(noise)
  exact = gaussian_epsilon(1e-5, noise / 2)
  pld = accounting.compute_epsilon(event, 1e-5, 'pld', REPLACE)
  assert exact <= pld <= exact * (1 + 1e-6)
  curve = accounting.create_accountant('rdp', REPLACE).compose(event)
  np.testing.assert_allclose(
    curve.rdp, curve.orders / (2 * (noise / 2) ** 2), rtol=1e-12
  )
  assert curve.get_epsilon(1e-5) >= exact


def test_replace_one_counts_laplace_twice():
  event = dp_accounting.LaplaceDpEvent(4.0)
  pld = accounting.compute_epsilon(event, 1e-12, 'pld', REPLACE)
  assert pld == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize('scale', [0.5, 1.0, 3.7, 1e4])
def test_laplace_is_pure(scale):
  event = dp_accounting.LaplaceDpEvent(scale)
  made = accounting.create_accountant('pld').compose(event)
  for share in (0.0, 0.3, 0.9):
    exact = -math.expm1((share - 1) / scale / 2)
    assert exact <= made.get_delta(share / scale) * (1 + 1e-12)
    assert made.get_delta(share / scale) <= exact * 1.001 + 1e-7
  assert made.get_delta(1 / scale + 1.1e-4) < 1e-10


@pytest.mark.parametrize(
  ('epsilon', 'delta'), [(1.0, 0.0), (0.3, 1e-6), (3.0, 1e-3), (1e-5, 0.0)]
)
def test_epsilon_delta_is_itself(epsilon, delta):
  event = accounting.EpsilonDeltaDpEvent(epsilon, delta)
  for name, near in (('pld', 0.02), ('rdp', 1e-9)):
    value = accounting.compute_epsilon(event, delta + 1e-9, name)
    assert value <= epsilon * (1 + near) + 1e-9
    assert value >= epsilon * (1 - 0.01) - 1e-4
    made = accounting.create_accountant(name).compose(event)
    assert made.get_delta(epsilon * 1.01 + 1e-9) >= delta
  assert accounting.compute_epsilon(event, 1e-9) == (
    math.inf if delta else pytest.approx(epsilon, abs=1e-4)
  )


def test_composed_randomized_response_is_binomial():
  # k runs: the loss is epsilon times (heads - tails).
  epsilon, count = 0.25, 20
  event = dp_accounting.SelfComposedDpEvent(
    accounting.EpsilonDeltaDpEvent(epsilon, 1e-7), count
  )
  p = 1 / (1 + math.exp(-epsilon))
  heads = np.arange(count + 1)
  mass = special.comb(count, heads) * p**heads * (1 - p) ** (count - heads)
  loss = epsilon * (2 * heads - count)
  made = accounting.create_accountant('pld').compose(event)
  for at in (0.0, 0.6, 1.3, 2.9):
    pure = np.sum(mass * np.maximum(-np.expm1(at - loss), 0))
    fail = -math.expm1(count * math.log1p(-1e-7))
    exact = fail + (1 - fail) * pure
    assert exact <= made.get_delta(at) <= exact * (1 + 1e-3)


def random_parameters():
  rng = np.random.default_rng(7)
  for _ in range(12):
    q = float(10 ** rng.uniform(-3, -0.2))
    noise = float(10 ** rng.uniform(-0.2, 1.2))
    steps = int(10 ** rng.uniform(0, 3.3))
    delta = float(10 ** rng.uniform(-8, -3))
    yield q, noise, steps, delta


@pytest.mark.parametrize(
  ('q', 'noise', 'steps', 'delta'),
  thinned(random_parameters(), lambda point: point[2] < 150),
)
def test_optimistic_below_pld_below_rdp(q, noise, steps, delta):
  event = sampled(q, noise, steps)
  ours = accounting.compute_epsilon(event, delta)
  theirs = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(delta)
  # The same bound from below, by dp_accounting.
  optimistic = (
    privacy_loss_distribution.from_gaussian_mechanism(
      noise,
      pessimistic_estimate=False,
      sampling_prob=q,
      use_connect_dots=False,
    )
    .self_compose(steps)
    .get_epsilon_for_delta(delta)
  )
  assert optimistic <= ours * (1 + 1e-9) + 1e-9
  assert ours <= theirs * (1 + 1e-5) + 1e-7
  moments = accounting.compute_epsilon(event, delta, 'rdp')
  assert ours <= moments * (1 + 1e-9)
  if steps > 50 and ours > 0.1:
    assert ours >= theirs * 0.99


@pytest.mark.parametrize(
  ('event', 'delta'),
  [
    (
      dp_accounting.PoissonSampledDpEvent(
        0.1, dp_accounting.LaplaceDpEvent(0.8)
      ),
      1e-5,
    ),
    (
      dp_accounting.ComposedDpEvent(
        [
          dp_accounting.SelfComposedDpEvent(
            dp_accounting.LaplaceDpEvent(7.0), 11
          ),
          dp_accounting.GaussianDpEvent(3.0),
          sampled(0.05, 1.3, 60),
          dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(
              0.2, dp_accounting.LaplaceDpEvent(2.0)
            ),
            5,
          ),
        ]
      ),
      1e-6,
    ),
  ],
)
def test_mixtures_agree_with_dp_accounting(event, delta):
  theirs = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(delta)
  ours = accounting.compute_epsilon(event, delta)
  assert ours == pytest.approx(theirs, rel=1e-4)
  assert accounting.compute_epsilon(event, delta, 'rdp') >= ours


def test_order_and_grouping_do_not_matter():
  a, b = sampled(0.05, 1.3, 60), dp_accounting.LaplaceDpEvent(7.0)
  gaussian = dp_accounting.GaussianDpEvent(3.0)
  first = dp_accounting.ComposedDpEvent([a, b, gaussian, gaussian])
  second = dp_accounting.ComposedDpEvent(
    [dp_accounting.SelfComposedDpEvent(gaussian, 2), b, a]
  )
  taken = [
    name
    for name in accounting.accountant_names()
    if accounting.create_accountant(name).supports(first)
  ]
  assert taken == ['advanced', 'basic', 'pld', 'rdp']
  for name in taken:
    assert accounting.compute_epsilon(
      first, 1e-5, name
    ) == accounting.compute_epsilon(second, 1e-5, name)


def test_more_steps_cost_more():
  values = calibration.epsilon_after(
    sampled(0.02, 1.1, 1), [1, 10, 100, 1000, 10**4], delta=1e-5
  )
  assert values == sorted(values)
  assert len(set(values)) == 5


@pytest.mark.parametrize(
  ('q', 'noise'), [(0.01, 1.0), (0.5, 0.3), (1e-4, 2.0), (0.9, 5.0)]
)
def test_renyi_of_sampled_gaussian(q, noise):
  orders = (1.1, 1.5, 2.0, 2.5, 3.0, 5.5, 8.0, 32.0, 256.0)
  theirs = dp_accounting.rdp.RdpAccountant(orders=orders)
  theirs.compose(sampled(q, noise, 1))
  curve = mechanisms.renyi_curve(Gaussian(noise, q), orders)
  np.testing.assert_allclose(curve, theirs.rdp, rtol=1e-4)
  # The integral at whole orders against the finite sum.
  whole = np.array([2.0, 3.0, 5.0, 8.0])
  integral = gaussian._integrated_moments(whole, q, noise)
  exact = [gaussian._whole_moment(int(a), q, noise) for a in whole]
  np.testing.assert_allclose(integral, exact, rtol=1e-9, atol=1e-13)


def test_renyi_chord_is_above_the_integral():
  # Below sigma 0.1 the chord between whole orders stands alone.
  orders = (1.3, 1.7, 2.5, 4.5)
  curve = mechanisms.renyi_curve(Gaussian(0.1, 0.3), orders)
  chord = mechanisms.renyi_curve(Gaussian(0.0999999, 0.3), orders)
  assert np.all(chord >= curve)


def test_renyi_of_laplace_is_the_integral():
  scale, orders = 1.7, (1.2, 2.0, 6.0)
  x = np.linspace(-60, 61, 2_000_001)
  log_p = -np.abs(x) / scale
  log_q = -np.abs(x - 1) / scale
  for order, value in zip(
    orders, mechanisms.renyi_curve(Laplace(scale), orders)
  ):
    moment = np.trapezoid if hasattr(np, 'trapezoid') else np.trapz
    integral = moment(np.exp(order * log_p + (1 - order) * log_q), x)
    exact = math.log(integral / (2 * scale)) / (order - 1)
    assert value == pytest.approx(exact, rel=1e-5)


def test_renyi_of_a_pure_mechanism_is_randomized_response():
  epsilon, orders = 1.3, (1.2, 2.0, 6.0, 500.0)
  p = 1 / (1 + math.exp(-epsilon))
  curve = mechanisms.renyi_curve(EpsilonDelta(epsilon), orders)
  for order, value in zip(orders[:-1], curve):
    moment = p**order * (1 - p) ** (1 - order)
    moment += (1 - p) ** order * p ** (1 - order)
    assert value == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)
  assert np.all(curve <= epsilon)


def test_zcdp_is_a_line_for_rdp_and_refused_by_pld():
  event = accounting.ZCDpEvent(0.02, 0.001)
  made = accounting.create_accountant('rdp').compose(event)
  np.testing.assert_allclose(made.rdp, 0.001 + 0.02 * made.orders)
  nested = dp_accounting.ComposedDpEvent(
    [dp_accounting.GaussianDpEvent(1.0), event]
  )
  with pytest.raises(
    dp_accounting.UnsupportedEventError,
    match=r'subevent ZCDpEvent\(.*Accountants that do: .*rdp, zcdp',
  ):
    accounting.compute_epsilon(nested, 1e-5)


def test_small_delta_is_answered_from_above():
  event = sampled(0.01, 1.0, 1000)
  values = [
    accounting.compute_epsilon(event, delta)
    for delta in (1e-5, 1e-9, 1e-15, 1e-20, 1e-40)
  ]
  assert values == sorted(values)
  assert values[3] < accounting.compute_epsilon(event, 1e-20, 'rdp')
  # The truncated tail is more than this: a looser bound, and it says so.
  made = accounting.create_accountant('pld').compose(event)
  assert values[-1] == accounting.compute_epsilon(event, 1e-40, 'rdp')
  assert 'rdp, which is looser' in made.remarks(1e-40)[0]
  assert made.remarks(1e-20) == ()


def test_huge_losses_do_not_need_huge_memory():
  event = dp_accounting.GaussianDpEvent(0.002)
  exact = gaussian_epsilon(1e-5, 0.002)
  assert exact <= accounting.compute_epsilon(event, 1e-5) <= exact * 1.001


def test_delta_must_be_inside():
  event = dp_accounting.GaussianDpEvent(1.0)
  for name in accounting.accountant_names():
    for delta in (0.0, 1.0, -1.0, math.nan):
      with pytest.raises(ValueError, match='delta must lie inside'):
        accounting.compute_epsilon(event, delta, name)
    with pytest.raises(ValueError, match='epsilon must be zero or more'):
      accounting.create_accountant(name).compose(event).get_delta(-1.0)


def test_parameters_of_accountants():
  with pytest.raises(ValueError, match='value_discretization_interval'):
    accounting.create_accountant('pld', value_discretization_interval=0.0)
  with pytest.raises(ValueError, match='orders'):
    accounting.create_accountant('rdp', orders=[1.0])
  coarse = accounting.compute_epsilon(
    sampled(0.01, 1.0, 1000), 1e-5, value_discretization_interval=1e-2
  )
  assert coarse >= accounting.compute_epsilon(sampled(0.01, 1.0, 1000), 1e-5)


def rare(seed):
  """A pipeline with losses that are rare and very large."""
  rng = np.random.default_rng(seed)
  return dp_accounting.ComposedDpEvent(
    [
      sampled(10 ** rng.uniform(-5, -2), 1 / rng.uniform(5, 300), 1),
      sampled(10 ** rng.uniform(-3, -1), rng.uniform(0.2, 2), 3),
      dp_accounting.GaussianDpEvent(10 ** rng.uniform(-3, 1)),
      accounting.EpsilonDeltaDpEvent(10 ** rng.uniform(-8, 1)),
    ][int(rng.integers(0, 2)) : int(rng.integers(2, 5))]
  )


@pytest.mark.parametrize(
  'seed', thinned(range(24), lambda seed: seed in (0, 2, 3, 4, 5))
)
def test_delta_at_an_epsilon_is_not_above_the_delta_it_is_for(seed):
  delta = 10 ** np.random.default_rng(seed + 99).uniform(-9, -0.5)
  made = accounting.create_accountant('pld').compose(rare(seed))
  epsilon = made.get_epsilon(delta)
  assert made.get_delta(epsilon) <= delta * (1 + 1e-3) + 1e-13


def test_large_losses_far_below_the_first_anchor():
  # The truth is 2.9293; the masses around it were once left out.
  event = dp_accounting.ComposedDpEvent(
    [sampled(1e-3, 1 / 60, 1), sampled(1e-2, 0.3, 1)]
  )
  epsilon = accounting.compute_epsilon(event, 3e-3)
  assert 2.9292 < epsilon < 2.9301
  event = dp_accounting.GaussianDpEvent(1e-3)
  # 501280.5522066116, by the closed form with 60 digits.
  assert accounting.compute_epsilon(event, 0.1) >= 501280.55220661


@pytest.mark.parametrize(
  ('pure', 'delta', 'exact'),
  [
    (1e-8, 1e-17, 9.99999998e-9),
    (2.19e-6, 1e-15, 2.189999998e-6),
    (1e-12, 2e-13, 6e-13),
  ],
)
def test_small_epsilons_are_not_rounded_down(pure, delta, exact):
  event = accounting.EpsilonDeltaDpEvent(pure)
  epsilon = accounting.compute_epsilon(event, delta)
  assert exact * (1 - 1e-12) <= epsilon <= pure


@pytest.mark.parametrize('name', accounting.accountant_names())
def test_counts_of_zero_and_of_other_types(name):
  once = dp_accounting.GaussianDpEvent(2.0)

  def runs(event, count):
    return dp_accounting.SelfComposedDpEvent(event, count)

  def epsilon(event, count=1):
    accountant = accounting.create_accountant(name)
    return accountant.compose(event, count).get_epsilon(1e-5)

  for nothing in (
    runs(once, 0),
    runs(runs(once, 3), 0),
    runs(runs(once, 0), 5),
  ):
    assert epsilon(nothing) == 0
  assert epsilon(once, 0) == 0
  thrice = epsilon(once, 3)
  for count in (3, 3.0, np.int64(3)):
    assert epsilon(runs(once, count)) == thrice
