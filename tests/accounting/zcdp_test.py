"""Constants of zCDP against exact curves, and the conversion."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import integrate, optimize

from tfdpflows import accounting
from tfdpflows.accounting.mechanisms import gaussian_profile, zero_concentrated
from tfdpflows.accounting.zcdp import ZCDPAccountant

ADD, REPLACE = list(NeighboringRelation)[:2]
ORDERS = 1 + np.geomspace(1e-4, 1e4, 81)
EPSILONS = [1e-3, 0.09, 0.11, 0.5, 1.0, 3.0, 7.9, 8.1, 20.0]


def rho_of(event, relation=ADD):
  return ZCDPAccountant(relation).compose(event).rho


def two_point_curve(p, q, orders=ORDERS):
  """Renyi divergences of a coin with probability p against one with q."""
  with np.errstate(divide='ignore'):
    terms = np.array(
      [
        orders * np.log(a) + (1 - orders) * np.log(b)
        for a, b in ((p, q), (1 - p, 1 - q))
      ]
    )
  return np.logaddexp(*terms) / (orders - 1)


@pytest.mark.parametrize('epsilon', EPSILONS)
def test_pure(epsilon):
  rho = rho_of(accounting.EpsilonDeltaDpEvent(epsilon))
  p = 1 / (1 + math.exp(-epsilon))
  curve = two_point_curve(p, 1 - p)
  assert np.all(curve <= rho * ORDERS * (1 + 1e-9) + 1e-11)
  # The order one is reached.
  assert curve[0] == pytest.approx(rho, rel=1e-3)
  assert rho <= epsilon**2 / 2


@pytest.mark.parametrize('epsilon', EPSILONS)
def test_laplace(epsilon):
  rho = rho_of(dp_accounting.LaplaceDpEvent(1 / epsilon))
  # Mironov 2017, table II.
  curve = np.logaddexp(
    np.log(ORDERS / (2 * ORDERS - 1)) + (ORDERS - 1) * epsilon,
    np.log((ORDERS - 1) / (2 * ORDERS - 1)) - ORDERS * epsilon,
  ) / (ORDERS - 1)
  assert np.all(curve <= rho * ORDERS * (1 + 1e-9) + 1e-11)
  divergence, _ = integrate.quad(
    lambda x: 0.5 * math.exp(-abs(x)) * (abs(x - epsilon) - abs(x)),
    -40,
    40,
    points=[0, epsilon],
    limit=200,
  )
  assert rho == pytest.approx(divergence, rel=1e-5)
  assert rho <= rho_of(accounting.EpsilonDeltaDpEvent(epsilon))


@pytest.mark.parametrize('epsilon', EPSILONS)
def test_bounded_range(epsilon):
  rho = rho_of(accounting.ExponentialMechanismDpEvent(epsilon))
  assert rho <= epsilon**2 / 8 * (1 + 1e-13)
  for t in np.linspace(0.02, 0.98, 25) * epsilon:
    # The losses t and t - epsilon, Dong, Durfee and Rogers 2020, lemma 3.2.
    p = -math.expm1(t - epsilon) / -math.expm1(-epsilon)
    curve = two_point_curve(p, p * math.exp(-t))
    assert np.all(curve <= rho * ORDERS * (1 + 1e-9) + 1e-11)
  report = accounting.ReportNoisyMaxDpEvent(epsilon, noise='gumbel')
  assert rho_of(report) == rho


def test_what_adds_up():
  event = dp_accounting.ComposedDpEvent(
    [
      dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 32),
      accounting.ZCDpEvent(0.25, 0.5),
      accounting.ZCDpEvent(0.5),
      accounting.EpsilonDeltaDpEvent(0.1, 1e-6),
      accounting.LNMaxDpEvent(0.05),
    ]
  )
  for relation, times in ((ADD, 1), (REPLACE, 4)):
    made = ZCDPAccountant(relation).compose(event)
    rho = times * 1.0 + 0.75 + 0.2 * math.tanh(0.05)
    assert rho <= made.rho <= rho * (1 + 1e-12)
    assert 0.5 <= made.xi <= 0.5 * (1 + 1e-12)
    assert made.get_epsilon(1e-6) == math.inf
    assert made.get_epsilon(2e-6) == pytest.approx(
      float(zero_concentrated.zcdp_epsilon(rho, 0.5, math.log(1e-6))), rel=1e-6
    )
    assert made.get_delta(50.0) >= 1e-6


def test_shards_cost_the_dearest_of_each():
  shards = [
    dp_accounting.GaussianDpEvent(1.0),
    accounting.ZCDpEvent(0.1, 0.3),
    accounting.EpsilonDeltaDpEvent(0.1, 1e-6),
  ]
  event = accounting.ParallelDpEvent(shards)
  made = ZCDPAccountant().compose(event).compose(event)
  assert made.rho == pytest.approx(1.0)
  assert made.xi == pytest.approx(0.6)
  for shard in shards:
    alone = ZCDPAccountant().compose(shard).compose(shard)
    assert alone.get_epsilon(1e-5) <= made.get_epsilon(1e-5)


def test_conversion_takes_the_best_order():
  rng = np.random.default_rng(1)
  for _ in range(200):
    rho = 10 ** rng.uniform(-10, 4)
    xi = rng.choice([0.0, 10 ** rng.uniform(-4, 1)])
    log_delta = -(10 ** rng.uniform(-1, 2.8))
    found = float(zero_concentrated.zcdp_epsilon(rho, xi, log_delta))
    x = np.exp(np.linspace(-40, 60, 20001))
    every = (1 + x) * rho + xi - np.log1p(1 / x)
    every = every - (log_delta + np.log1p(x)) / x
    assert found <= max(np.min(every), 0.0) * (1 + 1e-12) + 1e-13
    if found > 0:
      assert found >= np.min(every) * (1 - 1e-4)
      log_back = zero_concentrated.zcdp_log_delta(rho, xi, found)
      assert log_back == pytest.approx(log_delta, rel=1e-3)
      if rho > 1e-8:
        assert log_back <= log_delta + 1e-9 * (1 + abs(log_delta))


def test_a_gaussian_is_never_below_its_closed_form():
  rng = np.random.default_rng(2)
  noise = 10 ** rng.uniform(-2, 4, 500)
  log_delta = -(10 ** rng.uniform(-1, 2.8, 500))
  found = zero_concentrated.zcdp_epsilon(0.5 / noise**2, 0.0, log_delta)
  assert np.all(
    found >= gaussian_profile.epsilon_at(log_delta, 1 / noise) * (1 - 1e-9)
  )


def test_a_pure_offset_is_pure():
  made = ZCDPAccountant().compose(accounting.ZCDpEvent(0.0, 0.7))
  assert made.get_epsilon(1e-12) == pytest.approx(0.7)
  assert made.get_delta(0.7 * (1 + 1e-12)) == 0
  assert made.get_delta(0.69) > 0
  assert made.get_delta(math.inf) == 0


def test_sampling_is_refused_with_the_reason():
  for event in (
    dp_accounting.GaussianDpEvent(1.0),
    dp_accounting.LaplaceDpEvent(1.0),
    accounting.ExponentialMechanismDpEvent(1.0),
  ):
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, event)
    with pytest.raises(
      dp_accounting.UnsupportedEventError, match='does not amplify'
    ):
      ZCDPAccountant().compose(sampled)
    shards = accounting.ParallelDpEvent(
      [sampled, dp_accounting.GaussianDpEvent(9.0)]
    )
    with pytest.raises(
      dp_accounting.UnsupportedEventError, match='does not amplify'
    ):
      ZCDPAccountant().compose(shards)
  # Of all that is composed, the part that is not supported alone is named.
  others = [dp_accounting.GaussianDpEvent(9.0 + i) for i in range(30)]
  with pytest.raises(
    dp_accounting.UnsupportedEventError,
    match='^exponential mechanism.*on a Poisson sample.*zcdp.*do: ',
  ) as error:
    ZCDPAccountant().compose(dp_accounting.ComposedDpEvent([*others, sampled]))
  assert len(str(error.value)) < 500
  # A pure guarantee on a sample is one that is smaller.
  pure = dp_accounting.PoissonSampledDpEvent(
    0.1, accounting.EpsilonDeltaDpEvent(1.0)
  )
  epsilon = math.log1p(0.1 * math.expm1(1.0))
  assert rho_of(pure) == pytest.approx(epsilon * math.tanh(epsilon / 2))


def test_nothing_and_everything():
  made = ZCDPAccountant()
  assert (made.rho, made.xi) == (0.0, 0.0)
  assert (made.get_epsilon(1e-5), made.get_delta(0.0)) == (0.0, 0.0)
  made.compose(dp_accounting.NonPrivateDpEvent())
  assert (made.get_epsilon(1e-5), made.get_delta(9.0)) == (math.inf, 1.0)
  for delta in (0.0, 1.0, math.nan):
    with pytest.raises(ValueError, match='delta'):
      made.get_epsilon(delta)
  for epsilon in (-1.0, math.nan):
    with pytest.raises(ValueError, match='zero or more'):
      made.get_delta(epsilon)


@pytest.mark.parametrize('size', [5e-324, 1e-200, 1e-9, 1e9, 1e200, 1.7e308])
@pytest.mark.parametrize('delta', [1e-300, 1e-5, 0.999999])
def test_adversarial_parameters(size, delta):
  for event in (
    dp_accounting.GaussianDpEvent(size),
    dp_accounting.LaplaceDpEvent(size),
    accounting.EpsilonDeltaDpEvent(size, 1e-301),
    accounting.ExponentialMechanismDpEvent(size),
    accounting.ZCDpEvent(size, size),
  ):
    event = dp_accounting.SelfComposedDpEvent(event, 10**6)
    made = ZCDPAccountant().compose(event)
    assert made.rho > 0
    epsilon = made.get_epsilon(delta)
    assert epsilon >= 0
    if 0 < epsilon < math.inf:
      assert made.get_delta(epsilon * (1 + 1e-9)) <= delta * 1.01
      assert made.get_delta(0.0) >= delta * (1 - 1e-9)


def test_best_order_solves_its_equation():
  # The derivative in the docstring, by differences.
  rho, log_delta = 0.3, -12.0
  f = lambda x: (
    (1 + x) * rho - math.log1p(1 / x) - (log_delta + math.log1p(x)) / x
  )
  x = optimize.brentq(lambda x: rho * x**2 + math.log1p(x) + log_delta, 1, 99)
  assert abs(f(x * 1.001) - f(x * 0.999)) < 1e-6
  assert float(
    zero_concentrated.zcdp_epsilon(rho, 0.0, log_delta)
  ) == pytest.approx(f(x))
