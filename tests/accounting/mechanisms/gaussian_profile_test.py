"""The closed form of one Gaussian release, from above."""

import math

import numpy as np
import pytest

from tfdpflows.accounting.mechanisms import gaussian_profile

# epsilon, mu and the log of delta, by mpmath with 120 digits.
EXACT = [
  (0.0, 1e-8, -19.339619277157038),
  (1e-9, 1e-8, -19.467834057525213),
  (3.6e-7, 1e-8, -674.5089655689311),
  (1e-3, 1e-3, -9.392376384039412),
  (0.03, 1e-3, -464.61740916430443),
  (0.0, 1.0, -0.9599163336956223),
  (1.0, 1.0, -2.0640664465003904),
  (4.0, 1.0, -9.962761831307708),
  (37.0, 1.0, -674.2677784588983),
  (2.0, 3.0, -0.37706109998274323),
  (30.0, 3.0, -40.55823702805258),
  (4950.0, 100.0, -0.37407622385854067),
  (5300.0, 100.0, -6.640116922583556),
  (500000.0, 1e3, -0.6939453828015328),
  (536000.0, 1e3, -652.5386224395273),
]


@pytest.mark.parametrize(('epsilon', 'mu', 'log_delta'), EXACT)
def test_closed_form(epsilon, mu, log_delta):
  found = gaussian_profile.log_delta_at(epsilon, mu)
  # Four units in the last place of epsilon are (a + 1) / mu as much in the log.
  moved = 1e-15 * epsilon * (epsilon / mu + 1) / mu
  assert log_delta <= found <= log_delta + 1e-9 + 2 * moved
  back = gaussian_profile.epsilon_at(log_delta, mu)
  assert epsilon <= back <= epsilon * (1 + 1e-9) + 2e-8 * mu


def test_both_ways_over_the_whole_range():
  rng = np.random.default_rng(0)
  mu = 10 ** rng.uniform(-8, 3, 5000)
  log_delta = -(10 ** rng.uniform(-3, 2.84, 5000))
  epsilon = gaussian_profile.epsilon_at(log_delta, mu)
  assert np.all(gaussian_profile.log_delta_at(epsilon, mu) <= log_delta)
  # It is the smallest but for rounding.
  lower = epsilon * (1 - 1e-9)
  some = epsilon > 0
  assert np.sum(some) > 2000
  assert np.all(
    gaussian_profile.log_delta_at(lower, mu)[some] > log_delta[some]
  )


def test_monotone():
  epsilon = np.linspace(0, 20, 4001)
  for mu in (1e-3, 0.999, 1.001, 4.0):
    log_delta = gaussian_profile.log_delta_at(epsilon * mu, mu)
    assert np.all(np.diff(log_delta) < 1e-9)
  mu = np.geomspace(0.01, 100, 4001)
  assert np.all(np.diff(gaussian_profile.log_delta_at(1.0, mu)) > -1e-9)


@pytest.mark.parametrize('mu', [5e-324, 1e-300, 1e-30, 1e20, 1e150])
@pytest.mark.parametrize('log_delta', [-1e-9, -10.0, -744.0])
def test_extreme_noise(mu, log_delta):
  epsilon = gaussian_profile.epsilon_at(log_delta, mu)
  with np.errstate(over='ignore'):
    far = math.sqrt(-2 * log_delta) * 1.01
    assert 0 <= epsilon <= mu * (mu / 2 + far) * 1.01
    assert epsilon >= mu * mu / 2 * (mu >= 1e20)
  assert gaussian_profile.log_delta_at(epsilon, mu) <= log_delta


def test_what_has_no_price_costs_nothing_or_everything():
  inf, nan = math.inf, math.nan
  assert gaussian_profile.epsilon_at(-10.0, 0.0) == 0
  assert gaussian_profile.epsilon_at(0.0, 3.0) == 0
  for log_delta, mu in [(-10.0, 1e300), (-10.0, inf), (-10.0, nan)]:
    assert gaussian_profile.epsilon_at(log_delta, mu) == inf
  for log_delta in (-inf, -1001.0, nan):
    assert gaussian_profile.epsilon_at(log_delta, 1.0) == inf
  assert gaussian_profile.log_delta_at(1.0, inf) == 0
  assert gaussian_profile.log_delta_at(nan, 1.0) == 0
  assert gaussian_profile.log_delta_at(inf, 1.0) < -1000
