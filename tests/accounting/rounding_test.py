"""Prices are never below the truth, not by rounding either.

Reference values were computed with mpmath at 40 digits or more, from the exact
values of the floats, as each comment says.
"""

import math
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event

from tfdpflows import accounting
from tfdpflows.accounting import logarithms, mechanisms, renyi_conversion
from tfdpflows.accounting.mechanisms import Gaussian, Laplace, mechanisms_of
from tfdpflows.accounting.pld import convolution

REPLACE = NeighboringRelation.REPLACE_ONE
LAPLACE = dp_accounting.LaplaceDpEvent


@pytest.mark.parametrize(
  ('noise', 'q', 'exact'),
  [
    # log(1 + q (exp(1 / noise) - 1)), by mpmath.
    (1e3, 0.3, '3.0010501399772392e-4'),
    (1e6, 0.3, '3.0000010500001399e-7'),
    (1e9, 0.3, '3.0000000010499999e-10'),
    (1e9, 1e-6, '1.0000000004999995e-15'),
  ],
)
def test_largest_losses_are_not_below(noise, q, exact):
  top = Laplace(noise, q).loss_range()[1]
  truth = math.log1p(q * math.expm1(1 / noise))
  assert truth == pytest.approx(float(exact), rel=1e-12)
  # log1p and expm1 are off by a few units in the last place at most.
  assert truth * (1 + 1e-15) <= top <= truth * (1 + 1e-14)
  low = Laplace(noise, q).loss_range()[0]
  truth = math.log1p(q * math.expm1(-1 / noise))
  assert truth * (1 + 1e-14) <= low <= truth * (1 + 1e-15)


def test_delta_just_below_the_largest_loss():
  """The true deltas are of bounded range at epsilon 0.2, on 3 of 10 rows."""
  noise, q = 8.953465175591386, 0.3051877823676093
  sample = dp_accounting.PoissonSampledDpEvent(q, LAPLACE(noise))
  made = accounting.create_accountant('pld').compose(sample)
  # With E = 1 / noise and top = log(1 + q (exp(E) - 1)), at top (1 - 2^-40 k)
  # the delta is q (P - exp(l) Q) with P and Q above the loss l without
  # sampling, 1 - exp((l - E) / 2) / 2 and exp(-(l + E) / 2) / 2.
  q, e = Fraction(q), 1 / Fraction(noise)

  def expm1(x):
    # Fractions: the series to x^30, far below the last place for x < 1.
    term, total = Fraction(1), Fraction(0)
    for i in range(1, 31):
      term = term * x / i
      total += term
    return total

  top = math.log1p(float(q * expm1(e)))
  for k in range(1, 40):
    epsilon = top * (1 - k * 2.0**-50)
    # exp(l) = 1 + (exp(epsilon) - 1) / q; at most exp(E), and u close to it.
    ratio = 1 + expm1(Fraction(epsilon)) / q
    if ratio >= 1 + expm1(e):
      continue
    # P - exp(l) Q = 1 - exp((l - E) / 2), from above 0 by (E - l) / 2.
    gap = 1 - ratio / (1 + expm1(e))
    # 1 - sqrt(1 - gap) >= gap / 2.
    assert Fraction(made.get_delta(epsilon)) >= q * gap / 2


def test_replaced_delta_is_not_below_the_one_that_was_found_too_small():
  # Issue 19: 1.434e-16 for a true 1.604e-16, of log(1 + q (exp(2 / noise) - 1))
  # as the largest loss; that bound is no longer used for a Poisson sample, but
  # still for one of fixed size, here with the same largest loss.
  pair = Laplace(8.953465175591386 / 2, 0.3051877823676093, row=1)
  made = accounting.create_accountant('pld', REPLACE)
  made._totals = {pair: 1}
  assert 1.604e-16 <= made.get_delta(0.07360921727811476) < 1e-14


def test_grid_points_are_upwards():
  for interval in (1e-4, 0.1, 1 / 3, 1e-12):
    indices = np.arange(-1000, 1001)
    points = convolution._grid_points(indices, interval)
    for index, point in zip(indices, points):
      assert Fraction(float(point)) >= int(index) * Fraction(interval)
    assert points[1000] == 0


@pytest.mark.parametrize('mean', [2, 3.5])
@pytest.mark.parametrize('delta', [0.25, 0.1])
def test_search_among_runs_that_fail_is_a_number(mean, delta):
  event = dp_event.RepeatAndSelectDpEvent(
    accounting.EpsilonDeltaDpEvent(0.0, delta), mean, math.inf
  )
  at = mean * delta
  for target in (at * (1 - 1e-15), at, at * (1 + 1e-13), at * 1.01):
    if target < 1:
      epsilon = accounting.compute_epsilon(event, target, 'rdp')
      assert epsilon >= 0
      assert epsilon == (0 if target > at * (1 + 1e-12) else epsilon)
  made = accounting.create_accountant('rdp').compose(event)
  # The runs tell nothing but where they fail.
  assert at <= made.get_delta(0.0) <= at * (1 + 1e-12)
  assert mechanisms.pure_epsilon(made._totals.items()) == 0


def test_noise_is_rounded_downwards():
  rng = np.random.default_rng(0)
  for _ in range(300):
    sigma = float(10 ** rng.uniform(-3, 9))
    ((vote, _),) = mechanisms_of(accounting.GNMaxDpEvent(sigma), REPLACE)
    assert 2 * Fraction(vote.noise_multiplier) ** 2 <= Fraction(sigma) ** 2
    many = {
      Gaussian(float(10 ** rng.uniform(-2, 4))): int(rng.integers(1, 50))
      for _ in range(int(rng.integers(1, 14)))
    }
    precision = sum(
      n / Fraction(m.noise_multiplier) ** 2 for m, n in many.items()
    )
    joint = Fraction(mechanisms.joint_noise(many))
    assert 1 - 1e-14 <= joint**2 * precision <= 1


def test_shares_and_deltas_of_samples_are_rounded_upwards():
  rng = np.random.default_rng(0)
  for _ in range(300):
    n = int(rng.integers(2, 10**6))
    m = int(rng.integers(1, n))
    event = dp_accounting.SampledWithoutReplacementDpEvent(
      n, m, dp_accounting.GaussianDpEvent(1.0)
    )
    (sampled,) = mechanisms.decompose(event, REPLACE)
    assert Fraction(sampled.sampling_probability) >= Fraction(m, n)
    q, delta = float(rng.uniform()), float(10 ** rng.uniform(-30, -1))
    event = dp_accounting.PoissonSampledDpEvent(
      q, accounting.EpsilonDeltaDpEvent(0.3, delta)
    )
    (sampled,) = mechanisms.decompose(event)
    assert Fraction(sampled.delta) >= Fraction(q) * Fraction(delta)


def test_probabilities_too_small_for_a_float_are_not_none():
  assert logarithms.exp_upwards(-1e6) > 0
  assert logarithms.exp_upwards(-math.inf) == 0
  orders = np.array([2.0, 64.0])
  assert np.all(renyi_conversion.deltas(orders, orders / 2, 1e6) > 0)
  for name in ('rdp', 'zcdp', 'gdp', 'basic', 'pld'):
    made = accounting.create_accountant(name)
    made.compose(dp_accounting.GaussianDpEvent(1.0))
    assert made.get_delta(1e4) > 0


def test_delta_left_by_failures_is_rounded_downwards():
  # 1e-5 - failure is not a float; a larger one would be a smaller epsilon.
  pure, failing = accounting.ZCDpEvent(0.1), 3.3333333333e-6
  event = dp_accounting.ComposedDpEvent(
    [pure, accounting.EpsilonDeltaDpEvent(0.0, failing)]
  )
  left = float(Fraction(1e-5) - Fraction(failing))
  if Fraction(left) > Fraction(1e-5) - Fraction(failing):
    left = math.nextafter(left, 0.0)
  assert accounting.compute_epsilon(
    event, 1e-5, 'rdp'
  ) >= accounting.compute_epsilon(pure, left, 'rdp')


@pytest.mark.parametrize('share', [0.1, 0.5, 0.999])
def test_failures_are_taken_off_delta(share):
  """Without the subtraction epsilon would be that of the rest at all of delta.

  The rest is a Gaussian mechanism, for which less delta is more epsilon; the
  composition reveals everything with probability `share * delta`, so that no
  epsilon below the exact one of the rest at what is left may be stated.
  """
  delta, rest = 1e-5, dp_accounting.GaussianDpEvent(1.0)
  failing = accounting.EpsilonDeltaDpEvent(0.0, share * delta)
  event = dp_accounting.ComposedDpEvent([rest, failing])
  epsilon = accounting.compute_epsilon(event, delta, 'rdp')
  left = accounting.compute_epsilon(rest, delta * (1 - share), 'rdp')
  assert epsilon == pytest.approx(left, rel=1e-9)
  assert epsilon > accounting.compute_epsilon(rest, delta, 'rdp') * 1.002
  # And the other way round.
  made = accounting.create_accountant('rdp').compose(event)
  alone = accounting.create_accountant('rdp').compose(rest)
  assert made.get_delta(4.0) == pytest.approx(
    alone.get_delta(4.0) + share * delta, rel=1e-9
  )
