"""Sums of epsilons, and the theorem of Kairouz, Oh and Viswanath."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from scipy import stats

from tfdpflows import accounting
from tfdpflows.accounting.composition import (
  AdvancedAccountant,
  BasicAccountant,
)
from tfdpflows.accounting.mechanisms import gaussian_profile

ADD, REPLACE = list(NeighboringRelation)[:2]
GAUSSIAN = dp_accounting.GaussianDpEvent
LAPLACE = dp_accounting.LaplaceDpEvent


def several(count, event):
  return dp_accounting.SelfComposedDpEvent(event, count)


def sampled(q, event):
  return dp_accounting.PoissonSampledDpEvent(q, event)


def basic(event, delta, relation=ADD):
  return BasicAccountant(relation).compose(event).get_epsilon(delta)


def advanced(event, delta, relation=ADD):
  return AdvancedAccountant(relation).compose(event).get_epsilon(delta)


def gaussian_epsilon(delta, noise):
  return float(gaussian_profile.epsilon_at(math.log(delta), 1 / noise))


class TestBasic:
  def test_pure_epsilons_add_up(self):
    event = dp_accounting.ComposedDpEvent(
      [
        several(8, LAPLACE(4.0)),
        accounting.ExponentialMechanismDpEvent(0.25),
        accounting.SparseVectorDpEvent(0.1, 0.2),
        sampled(0.1, LAPLACE(0.5)),
        sampled(0.2, accounting.ExponentialMechanismDpEvent(1.0)),
      ]
    )
    total = 2 + 0.25 + 0.3
    total += math.log1p(0.1 * math.expm1(2.0))
    total += math.log1p(0.2 * math.expm1(1.0))
    assert basic(event, 1e-300) == pytest.approx(total, rel=1e-11)
    assert basic(event, 1e-300) >= total

  def test_given_deltas_are_used_to_the_last_bit(self):
    event = several(3, accounting.EpsilonDeltaDpEvent(0.5, 0.125))
    assert basic(event, 0.375) == pytest.approx(1.5)
    assert basic(event, math.nextafter(0.375, 0.0)) == math.inf
    made = BasicAccountant().compose(event)
    assert made.get_delta(1.5 * (1 + 1e-11)) == 0.375
    # Three times 0.1 is more than 0.3, in floats and in the sum of floats.
    event = several(3, accounting.EpsilonDeltaDpEvent(0.5, 0.1))
    assert basic(event, 0.3) == math.inf
    assert BasicAccountant().compose(event).get_delta(2.0) >= 0.1 * 3

  @pytest.mark.parametrize('relation', [ADD, REPLACE])
  def test_even_shares_of_what_is_left(self, relation):
    half = 2 if relation is REPLACE else 1
    event = dp_accounting.ComposedDpEvent(
      [
        several(3, GAUSSIAN(4.0)),
        GAUSSIAN(7.0),
        accounting.EpsilonDeltaDpEvent(0.5, 2e-6),
        LAPLACE(10.0),
      ]
    )
    expected = 3 * gaussian_epsilon(2e-6, 4 / half) + 0.5 + 0.1 * half
    expected += gaussian_epsilon(2e-6, 7 / half)
    assert basic(event, 1e-5, relation) == pytest.approx(expected, rel=1e-9)

  def test_one_gaussian_is_exact(self):
    for noise in (0.1, 1.0, 30.0):
      exact = gaussian_epsilon(1e-5, noise)
      found = basic(GAUSSIAN(noise), 1e-5)
      assert exact <= found <= exact * (1 + 1e-9)

  def test_sampled_gaussian(self):
    q, noise, steps, delta = 0.01, 2.0, 50, 1e-5
    inner = gaussian_epsilon(delta / steps / q, noise)
    expected = steps * math.log1p(q * math.expm1(inner))
    event = several(steps, sampled(q, GAUSSIAN(noise)))
    assert basic(event, delta) == pytest.approx(expected, rel=1e-9)
    # So rarely drawn that delta pays for revealing the row.
    assert basic(sampled(1e-7, GAUSSIAN(1e-3)), 1e-6) == 0

  def test_zcdp_by_conversion(self):
    found = basic(several(2, accounting.ZCDpEvent(0.1, 0.2)), 2e-6)
    made = accounting.create_accountant('zcdp')
    made.compose(accounting.ZCDpEvent(0.1, 0.2))
    assert found == pytest.approx(2 * made.get_epsilon(1e-6), rel=1e-9)

  def test_shards_cost_the_dearest(self):
    shards = [
      several(2, LAPLACE(4.0)),
      GAUSSIAN(3.0),
      dp_accounting.ComposedDpEvent(
        [several(2, GAUSSIAN(9.0)), accounting.EpsilonDeltaDpEvent(0.1, 1e-6)]
      ),
    ]
    event = several(3, accounting.ParallelDpEvent(shards))
    left = (6e-6 - 3e-6) / 3
    dearest = max(
      0.5,
      gaussian_epsilon(left, 3.0),
      # Plain Gaussians of a shard are one.
      gaussian_epsilon(left, 9 / math.sqrt(2)) + 0.1,
    )
    assert basic(event, 6e-6) == pytest.approx(3 * dearest, rel=1e-9)
    assert advanced(event, 6e-6) <= basic(event, 6e-6)
    assert basic(event, 2.9e-6) == math.inf

  def test_truncation_is_paid_for(self):
    event = accounting.TruncatedSubsampledGaussianDpEvent(100, 0.1, 40, 3.0)
    plain = sampled(0.1, GAUSSIAN(3.0))
    assert basic(plain, 1e-5) < basic(event, 1e-5) < basic(plain, 0.9e-5)


class TestAdvanced:
  def theorem(self, epsilons, slack):
    e = np.asarray(epsilons)
    mean, square = np.sum(e * np.tanh(e / 2)), np.sum(e**2)
    return min(
      np.sum(e),
      mean
      + math.sqrt(2 * square * math.log(math.e + math.sqrt(square) / slack)),
      mean + math.sqrt(2 * square * math.log(1 / slack)),
    )

  @pytest.mark.parametrize('slack', [1e-9, 1e-3, 0.3, 0.9])
  def test_pure_mechanisms_are_the_theorem(self, slack):
    parts = [(400, 0.05), (30, 0.2), (2, 0.7), (5000, 1e-3)]
    event = dp_accounting.ComposedDpEvent(
      [several(n, LAPLACE(1 / e)) for n, e in parts]
    )
    every = [e for n, e in parts for _ in range(n)]
    expected = self.theorem(every, slack)
    found = advanced(event, slack)
    assert expected <= found * (1 + 1e-13)
    assert found == pytest.approx(expected, rel=1e-10)

  def test_each_term_is_reached(self):
    cases = [
      ([3.0], 1e-5),  # the sum
      ([0.01] * 5000, 1e-5),  # with the slack alone
      ([0.001] * 1000, 1e-1),  # with its product by S
    ]
    for epsilons, slack in cases:
      event = several(len(epsilons), LAPLACE(1 / epsilons[0]))
      assert advanced(event, slack) == pytest.approx(
        self.theorem(epsilons, slack), rel=1e-10
      )

  def test_gaussians_take_the_best_split(self):
    noise, count, delta = 20.0, 500, 1e-5
    event = several(count, GAUSSIAN(noise))
    found = advanced(event, delta)
    splits = np.geomspace(1e-5, 1 - 1e-5, 300)
    best = min(
      self.theorem(
        [gaussian_epsilon((1 - s) * delta / count, noise)] * count, s * delta
      )
      for s in splits
    )
    assert best * (1 - 1e-3) <= found <= best * (1 + 0.02)

  @pytest.mark.parametrize('seed', range(30))
  def test_never_below_composed_randomized_response(self, seed):
    """The exact price of k pure mechanisms, a sum over a binomial."""
    rng = np.random.default_rng(seed)
    epsilon, count = 10 ** rng.uniform(-3, 0.7), rng.integers(1, 400)
    delta = 10 ** rng.uniform(-12, -0.01)
    event = several(int(count), accounting.EpsilonDeltaDpEvent(epsilon))
    found = advanced(event, delta)
    heads = np.arange(count + 1)
    losses = epsilon * (2 * heads - count)
    masses = stats.binom.pmf(heads, count, 1 / (1 + math.exp(-epsilon)))
    # With k and epsilon alike, the first epsilon that is enough.
    kept = -np.expm1(np.minimum(found - losses, 0))
    exact = np.sum(masses * kept)
    assert exact <= delta * (1 + 1e-9)

  def test_strong_composition_of_training(self):
    # q = 0.01, noise 4, 100 epochs: the example of Abadi et al. 2016, with
    # amplification that is proven.
    event = several(10**4, sampled(0.01, GAUSSIAN(4.0)))
    assert advanced(event, 1e-5) == pytest.approx(14.1957, rel=1e-4)
    assert basic(event, 1e-5) == pytest.approx(223.49, rel=1e-4)


@pytest.mark.parametrize('cls', [BasicAccountant, AdvancedAccountant])
class TestBoth:
  def test_delta_is_the_inverse(self, cls):
    event = dp_accounting.ComposedDpEvent(
      [
        several(100, sampled(0.02, GAUSSIAN(1.5))),
        several(4, LAPLACE(9.0)),
        accounting.ZCDpEvent(0.01),
        accounting.EpsilonDeltaDpEvent(0.1, 1e-7),
      ]
    )
    made = cls().compose(event)
    for delta in (1.1e-7, 1e-5, 1e-2):
      epsilon = made.get_epsilon(delta)
      found = made.get_delta(epsilon)
      assert found == pytest.approx(delta, rel=1e-6)
      assert made.get_epsilon(found) <= epsilon
    assert made.get_delta(0.0) == 1
    assert made.get_delta(math.inf) == pytest.approx(1e-7)

  @pytest.mark.parametrize('epsilon', [0.05, 0.3, 2.0])
  def test_delta_takes_few_steps(self, cls, epsilon, monkeypatch):
    event = dp_accounting.ComposedDpEvent(
      [several(3, GAUSSIAN(2.0)), sampled(0.1, GAUSSIAN(0.7)), LAPLACE(50.0)]
    )
    made = cls().compose(event)
    (counts,) = made._sorted_readings()
    low, high = -800.0, 0.0
    while high - low > 1e-7:
      middle = (low + high) / 2
      fits = made._epsilon(counts, middle) <= epsilon
      low, high = (low, middle) if fits else (middle, high)
    asked = []

    def counted(self, counts, log_left, real=cls._epsilon):
      asked.append(log_left)
      return real(self, counts, log_left)

    monkeypatch.setattr(cls, '_epsilon', counted)
    assert made.get_delta(epsilon) == pytest.approx(math.exp(high), rel=1e-11)
    assert len(asked) <= 20

  def test_monotone_in_delta(self, cls):
    event = dp_accounting.ComposedDpEvent(
      [several(30, GAUSSIAN(9.0)), LAPLACE(3.0), accounting.ZCDpEvent(0.1)]
    )
    made = cls().compose(event)
    found = [made.get_epsilon(d) for d in np.geomspace(1e-30, 0.99, 60)]
    assert np.all(np.diff(found) <= 0)

  def test_nothing_and_everything(self, cls):
    made = cls()
    assert (made.get_epsilon(1e-5), made.get_delta(0.0)) == (0.0, 0.0)
    made.compose(GAUSSIAN(0.0))
    assert (made.get_epsilon(1e-5), made.get_delta(9.0)) == (math.inf, 1.0)
    for delta in (0.0, 1.0, math.nan):
      with pytest.raises(ValueError, match='delta'):
        made.get_epsilon(delta)
    for epsilon in (-1.0, math.nan):
      with pytest.raises(ValueError, match='zero or more'):
        made.get_delta(epsilon)

  @pytest.mark.parametrize('size', [5e-324, 1e-200, 1e-9, 1e9, 1e200, 1.7e308])
  @pytest.mark.parametrize('q', [1e-300, 0.5, 1.0])
  def test_adversarial_parameters(self, cls, size, q):
    for event in (
      sampled(q, GAUSSIAN(size)),
      sampled(q, LAPLACE(size)),
      sampled(q, accounting.EpsilonDeltaDpEvent(size, 1e-310)),
      sampled(q, accounting.ExponentialMechanismDpEvent(size)),
      accounting.ZCDpEvent(size, size),
    ):
      made = cls().compose(several(10**9, event))
      for delta in (1e-300, 0.999999):
        epsilon = made.get_epsilon(delta)
        assert epsilon >= 0
        if epsilon < math.inf:
          assert made.get_delta(epsilon) <= delta * 1.01
    # A pure mechanism is never free, however little it loses.
    assert cls().compose(LAPLACE(1e200)).get_epsilon(1e-300) >= 1e-200

  def test_amplified_epsilons_do_not_cancel(self, cls):
    # log(1 + q exp(epsilon)), where it is next to nothing.
    event = sampled(1e-30, accounting.ExponentialMechanismDpEvent(31.0))
    exact = math.log1p(1e-30 * math.expm1(31.0))
    found = cls().compose(event).get_epsilon(1e-300)
    assert exact <= found <= exact * (1 + 1e-11)
    event = sampled(1e-300, accounting.ExponentialMechanismDpEvent(720.0))
    found = cls().compose(event).get_epsilon(1e-300)
    exact = math.log1p(math.exp(720 - 300 * math.log(10)))
    assert found == pytest.approx(exact, rel=1e-10)

  def test_other_mechanisms_are_refused(self, cls):
    event = dp_event.RepeatAndSelectDpEvent(LAPLACE(1.0), 10, 1)
    with pytest.raises(dp_accounting.UnsupportedEventError):
      cls().compose(event)
