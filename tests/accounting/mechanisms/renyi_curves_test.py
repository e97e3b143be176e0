"""Renyi curves against integrals and other code; what the accountant says."""

import math
import time

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.rdp import rdp_privacy_accountant as theirs
from scipy import special

from tests.grids import thinned
from tfdpflows import accounting
from tfdpflows.accounting import mechanisms, rdp
from tfdpflows.accounting.mechanisms import (
  PRESENT,
  BoundedRange,
  DataDependentGNMax,
  DataDependentLNMax,
  DataDependentThreshold,
  EpsilonDelta,
  Gaussian,
  Laplace,
  RepeatAndSelect,
  ZeroConcentrated,
  gaussian,
  sampled,
  selection,
)
from tfdpflows.accounting.mechanisms.base import cached

CLASSES = {
  'gaussian': Gaussian,
  'laplace': Laplace,
  'bounded_range': BoundedRange,
  'epsilon_delta': EpsilonDelta,
}

REPLACE = NeighboringRelation.REPLACE_ONE
ORDERS = (1.01, 1.1, 1.5, 2.0, 2.5, 3.0, 5.0, 8.5, 16.0, 64.0, 300.0, 2048.0)
A = np.array(ORDERS)


def curve(kind, parameter, orders=ORDERS, **fields):
  mechanism = CLASSES[kind](parameter, **fields)
  return mechanisms.renyi_curve(mechanism, tuple(orders))


def randoms(count, seed):
  return [np.random.default_rng((seed, i)) for i in range(count)]


def moved(masses, ratios, q, order, replaced=False):
  """Divergence of a sample, from masses of Q and ratios dP/dQ."""
  lower, log_r = np.log(masses), np.log1p(q * (ratios - 1))
  if replaced:
    above = log_r > 0
    lower, log_r = lower[above], log_r[above]
    rest = 1 - np.sum(np.exp(lower)) - np.sum(np.exp(lower + log_r))
    logs = [
      lower + order * log_r,
      lower + (1 - order) * log_r,
      [math.log(rest)],
    ]
    return special.logsumexp(np.concatenate(logs)) / (order - 1)
  both = (special.logsumexp(lower + b * log_r) for b in (order, 1 - order))
  return max(both) / (order - 1)


# Gaussian on a sample.


@pytest.mark.parametrize('rng', thinned(randoms(8, 1), 3))
def test_sampled_gaussian_is_the_integral(rng):
  q, sigma = (
    float(10 ** rng.uniform(-9, -0.02)),
    float(10 ** rng.uniform(-1, 2)),
  )
  order = float(1 + 10 ** rng.uniform(-1.5, 1.5))
  plain = curve('gaussian', sigma, [order], sampling_probability=q)[0]
  swapped = curve(
    'gaussian', sigma, [order], sampling_probability=q, row=PRESENT
  )[0]
  with mpmath.workdps(30):
    share, noise = mpmath.mpf(q), mpmath.mpf(sigma)

    def ratio(x):
      return 1 - share + share * mpmath.exp((2 * x - 1) / (2 * noise**2))

    def symmetric(x):
      r = ratio(x)
      excess = (r ** (order - 1) - 1) * (r - r ** (1 - order))
      return mpmath.npdf(x, 0, noise) * excess

    def one_sided(x):
      r = ratio(x)
      return mpmath.npdf(x, 0, noise) * (r**order - 1 - order * (r - 1))

    ends = [noise * k for k in (0.5, 1, 2, 3, 4, 6, 8, 10, 14)]
    far = [14 * noise + order * k / 8 for k in range(1, 10)]
    above = [mpmath.mpf(0.5) + x for x in [0, *ends, *far]]
    below = [mpmath.mpf(0.5) - x for x in reversed(ends)]
    right = mpmath.quad(symmetric, above)
    exact = float(mpmath.log1p(right) / (order - 1))
    assert exact <= swapped <= exact * (1 + 1e-7)
    both = mpmath.quad(one_sided, below + above)
    exact = float(mpmath.log1p(both) / (order - 1))
    assert exact <= plain * (1 + 1e-12)
    # The chord is what is left at the higher orders.
    assert plain <= exact * (1 + (1e-7 if sigma > 0.11 else 0.5))
    assert plain <= swapped


@pytest.mark.parametrize('rng', thinned(randoms(8, 2)[::-1], 3))
def test_replaced_is_never_looser_than_dp_accounting(rng):
  q, sigma = (
    float(10 ** rng.uniform(-5, -0.02)),
    float(10 ** rng.uniform(-0.7, 1)),
  )
  orders = [1.5, 2.0, 3.0, 7.0, 12.0, 40.0, 100.0, 256.0]
  ours = curve('gaussian', sigma, orders, sampling_probability=q, row=PRESENT)
  known = theirs._compute_rdp_sample_wor_gaussian(q, sigma, orders)
  assert np.all(ours <= known * (1 + 1e-9))
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.SampledWithoutReplacementDpEvent(
      10**6, round(q * 10**6), dp_accounting.GaussianDpEvent(2 * sigma)
    ),
    100,
  )
  if round(q * 10**6):
    made = rdp.RDPAccountant(REPLACE).compose(event)
    # Their noise is per replaced row; ours is halved.
    wor = theirs._compute_rdp_sample_wor_gaussian(
      round(q * 10**6) / 10**6, sigma, made.orders[:120]
    )
    assert np.all(made.rdp[:120] <= 100 * wor * (1 + 1e-9))


@pytest.mark.parametrize('replaced', [False, True])
@pytest.mark.parametrize('rng', randoms(10, 3))
def test_sampled_gaussian_is_below_its_pair_moved_to_a_grid(rng, replaced):
  # Moving the mass to a grid and keeping the mean of dP/dQ only adds to it.
  q, sigma = (
    float(10 ** rng.uniform(-4, -0.02)),
    float(10 ** rng.uniform(-0.2, 1)),
  )
  bound = 14 / sigma + 30 / sigma**2
  edges = np.linspace(-bound, bound, 40_001)
  upper, lower = CLASSES['gaussian'](sigma).masses(edges)
  kept = (lower > 0) & (upper > 0)
  orders = np.array([1.2, 2.0, 4.5, 9.0])
  coarse = [
    moved(lower[kept], upper[kept] / lower[kept], q, order, replaced)
    for order in orders
  ]
  ours = curve(
    'gaussian', sigma, orders, sampling_probability=q, row=int(replaced)
  )
  np.testing.assert_allclose(ours, coarse, rtol=2e-3, atol=1e-11)


@pytest.mark.parametrize('replaced', [False, True])
def test_small_q_keeps_its_accuracy(replaced):
  # The excess of the moment is quadratic in q.
  for sigma in (0.5, 2.0, 300.0):
    values = [
      curve(
        'gaussian', sigma, [2.0], sampling_probability=q, row=int(replaced)
      )[0]
      / q**2
      for q in (1e-6, 1e-9, 1e-12)
    ]
    np.testing.assert_allclose(values, values[2], rtol=2e-3)


def test_sampling_all_rows_is_no_sampling():
  q = 1 - 1e-12
  for sigma in (0.05, 0.3, 3.0, 300.0):
    for replaced in (False, True):
      sampled = curve(
        'gaussian', sigma, sampling_probability=q, row=int(replaced)
      )
      plain = curve('gaussian', sigma)
      assert np.all(sampled <= plain)
      np.testing.assert_allclose(
        sampled, plain, rtol=1e-2 if sigma > 0.1 else 1
      )


@pytest.mark.parametrize('replaced', [False, True])
@pytest.mark.parametrize(
  ('kind', 'lossy'), [('gaussian', 0), ('laplace', 0), ('bounded_range', 1e-9)]
)
def test_sampling_helps_and_orders_cost_more(kind, lossy, replaced):
  for parameter in (0.2, 1.0, 7.0):
    plain = curve(kind, parameter)
    last = np.zeros(len(ORDERS))
    for q in (1e-12, 1e-4, 0.3, 0.999):
      sampled = curve(
        kind, parameter, sampling_probability=q, row=int(replaced)
      )
      assert np.all(sampled <= plain * (1 + 2e-5) + lossy)
      assert np.all(sampled >= last * (1 - 1e-9))
      assert np.all(np.diff(sampled) >= -1e-6 * sampled[1:])
      last = sampled


# Pure mechanisms.


@pytest.mark.parametrize('replaced', [False, True])
@pytest.mark.parametrize('rng', randoms(8, 4))
@pytest.mark.parametrize('kind', ['laplace', 'bounded_range'])
def test_sampled_pairs_are_the_integral(kind, rng, replaced):
  q, epsilon = (
    float(rng.uniform(0.001, 0.999)),
    float(10 ** rng.uniform(-2, 0.6)),
  )
  parameter = 1 / epsilon if kind == 'laplace' else epsilon
  edges = np.linspace(-epsilon, epsilon, 100_001)
  inner = edges.copy()
  inner[0], inner[-1] = -np.inf, np.inf
  upper, lower = CLASSES[kind](parameter).masses(inner)
  ratios = upper / lower
  ours = sampled.sampled_renyi(CLASSES[kind](parameter, q, replaced), A[:9])
  for order, value in zip(A[:9], ours):
    exact = moved(lower, ratios, q, order, replaced)
    assert exact * (1 - 1e-4) - 1e-12 <= value <= exact * (1 + 2e-3) + 1e-12
  both = curve(kind, parameter, sampling_probability=q, row=int(replaced))
  pure = curve('epsilon_delta', math.log1p(q * math.expm1(epsilon)))
  assert np.all(both <= pure * (1 + 1e-12))


@pytest.mark.parametrize(
  'epsilon', [1e-8, 1e-6, 1e-3, 0.1, 1.0, 7.0, 60.0, 1e3]
)
def test_bounded_range_is_the_worst_offset(epsilon):
  ours = curve('bounded_range', epsilon)
  assert np.all(ours <= A * epsilon**2 / 8 * (1 + 1e-12))
  assert np.all(ours <= epsilon * (1 + 1e-12))
  with mpmath.workdps(60):
    E = mpmath.mpf(epsilon)

    def value(t, a):
      p = (mpmath.exp(E) - mpmath.exp(t)) / mpmath.expm1(E)
      moment = p * mpmath.exp((a - 1) * t)
      moment += (1 - p) * mpmath.exp((a - 1) * (t - E))
      return mpmath.log(moment) / (a - 1)

    for order, bound in zip(ORDERS, ours):
      a = mpmath.mpf(order)
      top = mpmath.exp(E) - mpmath.exp(-(a - 1) * E)
      peak = mpmath.log((a - 1) * top / (a * -mpmath.expm1(-(a - 1) * E)))
      assert -1e-50 <= peak <= E
      best = value(peak, a)
      # It is the largest one: no offset of a fine grid gives more.
      for k in range(21):
        assert value(E * k / 20, a) <= best + mpmath.mpf(10) ** -50
      assert best <= bound <= best * (1 + mpmath.mpf('1e-6'))


@pytest.mark.parametrize('scale', [1e-3, 0.02, 0.3, 1.0, 30.0, 1e4, 1e9])
def test_laplace_and_randomized_response_are_closed_forms(scale):
  with mpmath.workdps(60):
    x = 1 / mpmath.mpf(scale)
    p = 1 / (1 + mpmath.exp(-x))
    laplace, pure = curve('laplace', scale), curve('epsilon_delta', 1 / scale)
    for i, order in enumerate(ORDERS):
      a = mpmath.mpf(order)
      moment = a * mpmath.exp((a - 1) * x) + (a - 1) * mpmath.exp(-a * x)
      exact = mpmath.log(moment / (2 * a - 1)) / (a - 1)
      assert exact <= laplace[i] * (1 + 1e-14)
      assert laplace[i] <= exact * (1 + mpmath.mpf('1e-4'))
      # p^a (1 - p)^(1 - a) and its mirror, with p / (1 - p) = exp(x).
      moment = p * mpmath.exp((a - 1) * x) + (1 - p) * mpmath.exp((1 - a) * x)
      exact = mpmath.log(moment) / (a - 1)
      assert exact <= pure[i] * (1 + 1e-14)
      assert pure[i] <= exact * (1 + mpmath.mpf('1e-9'))


def test_bounded_range_beats_pure_and_sparse_vector_does_not():
  pure = rdp.RDPAccountant().compose(accounting.EpsilonDeltaDpEvent(0.1), 100)
  chosen = rdp.RDPAccountant().compose(
    accounting.ExponentialMechanismDpEvent(0.1), 100
  )
  above = rdp.RDPAccountant().compose(
    accounting.SparseVectorDpEvent(0.05, 0.03, 0.02), 100
  )
  assert chosen.get_epsilon(1e-6) < 0.6 * pure.get_epsilon(1e-6)
  assert above.get_epsilon(1e-6) == pytest.approx(pure.get_epsilon(1e-6))
  gumbel = rdp.RDPAccountant().compose(
    accounting.ReportNoisyMaxDpEvent(0.1, 'gumbel'), 100
  )
  assert gumbel.get_epsilon(1e-6) == chosen.get_epsilon(1e-6)


# Mechanisms made of others.


@pytest.mark.parametrize('rng', randoms(15, 5))
@pytest.mark.parametrize('shape', [0.0, 0.3, 1.0, 20.0, math.inf])
def test_repeat_and_select_agrees_with_dp_accounting(rng, shape):
  orders = np.sort(1 + 10 ** rng.uniform(-1, 2.5, 20))
  once = orders * 10 ** rng.uniform(-4, 0)
  mean = 2 + float(10 ** rng.uniform(-1, 3))
  ours = selection.repeated_curve(orders, once, mean, shape)
  known = theirs._compute_rdp_repeat_and_select(orders, once, mean, shape)
  # They leave this out for Poisson: a divergence grows with its order.
  known = np.minimum.accumulate(known[::-1])[::-1]
  assert np.all(ours <= known * (1 + 1e-12))
  # Their gamma is the best one to 1e-9, from below.
  slack = 0 if shape in (1, math.inf) else 1e-9 * (1 + shape)
  np.testing.assert_allclose(ours, known, rtol=1e-9, atol=slack)


@pytest.mark.parametrize('shape', [0.0, 0.5, 1.0, 3.0, math.inf])
def test_repeat_and_select_is_above_the_exact_divergence(shape):
  # Best of K runs of randomized response, the truth being the better answer.
  epsilon, mean = 0.5, 5.0
  k = np.arange(1, 20_000)
  if shape == math.inf:
    k = np.arange(0, 400)
    weights = np.exp(k * math.log(mean) - mean - special.gammaln(k + 1))
  else:
    x = selection._log_inverse_halting(mean, shape)
    gamma = math.exp(-x)
    logs = k * math.log1p(-gamma) - special.gammaln(k + 1)
    logs += special.gammaln(k + shape) - special.gammaln(1 + shape)
    weights = np.exp(logs - special.logsumexp(logs))
  assert np.sum(k * weights) == pytest.approx(mean, rel=1e-6)

  def best(p):
    lost = float(np.sum(weights * (1 - p) ** k))
    none = float(weights[0]) if shape == math.inf else 0.0
    return np.array([1 - lost, lost - none, none])

  up = 1 / (1 + math.exp(-epsilon))
  mechanism = RepeatAndSelect(mean, shape, ((EpsilonDelta(epsilon), 1),))
  bound = mechanisms.renyi_curve(mechanism, ORDERS)
  pure = mechanisms.pure_epsilon([(mechanism, 1)])
  for p, q in ((up, 1 - up), (1 - up, up)):
    first, second = best(p), best(q)
    some = first > 0
    ratio = first[some] / second[some]
    assert np.max(np.log(ratio)) <= pure
    for order, value in zip(ORDERS, bound):
      exact = (
        math.log(np.sum(first[some] * ratio ** (order - 1)))
        if (order < 300)
        else 0.0
      )
      assert exact / (order - 1) <= value


@pytest.mark.parametrize(
  ('mean', 'shape', 'match'),
  [
    (0.9, 1.0, 'mean'),
    (math.nan, 1.0, 'mean'),
    (math.inf, 1.0, 'mean'),
    (2.0, -0.1, 'shape'),
    (2.0, math.nan, 'shape'),
  ],
)
def test_bad_searches_are_refused_by_name(mean, shape, match):
  with pytest.raises(ValueError, match=f'^{match}'):
    selection.repeated_curve(A, A, mean, shape)
  event = dp_event.RepeatAndSelectDpEvent(
    dp_accounting.GaussianDpEvent(1.0), mean, shape
  )
  with pytest.raises(ValueError, match='mean'):
    rdp.RDPAccountant().compose(event)


@pytest.mark.parametrize('mean', [1.0, 1 + 1e-12, 1e9, 1e300])
@pytest.mark.parametrize('shape', [0.0, 1e-300, 1.0, 1e9, math.inf])
def test_extreme_searches_have_a_price(mean, shape):
  value = selection.repeated_curve(A, A * 1e-3, mean, shape)
  assert np.all(value >= A * 1e-3) and not np.any(np.isnan(value))


def test_failures_of_a_search_add_up():
  once = accounting.EpsilonDeltaDpEvent(0.1, 1e-7)
  event = dp_event.RepeatAndSelectDpEvent(once, 10.0, 1.0)
  made = rdp.RDPAccountant().compose(event, 3)
  assert made._best(3.1e-6, made.rdp)[0] < math.inf
  assert made.get_epsilon(2.9e-6) == math.inf
  assert made.get_delta(3 * 3 * 0.1 + 1e-9) == pytest.approx(3e-6, rel=1e-5)


def test_parallel_costs_what_the_dearest_shard_costs():
  gaussian, laplace = (
    dp_accounting.GaussianDpEvent(4.0),
    dp_accounting.LaplaceDpEvent(3.0),
  )
  event = accounting.ParallelDpEvent([gaussian, laplace, laplace])
  made = rdp.RDPAccountant().compose(event, 5).rdp
  single = [
    rdp.RDPAccountant().compose(part, 5).rdp for part in (gaussian, laplace)
  ]
  np.testing.assert_allclose(made, np.maximum(*single), rtol=1e-12)
  assert np.any(single[0] > single[1]) and np.any(single[0] < single[1])
  pure = accounting.ParallelDpEvent(
    [laplace, accounting.EpsilonDeltaDpEvent(0.2, 1e-6)]
  )
  made = rdp.RDPAccountant().compose(pure, 2)
  assert made.get_epsilon(1e-6) == math.inf
  assert made.get_epsilon(2.1e-6) <= 2 / 3 * (1 + 1e-9)
  assert made.get_delta(0.7) == pytest.approx(2e-6, rel=1e-5)


# The accountant.


def test_delta_of_a_release_can_be_all_of_the_delta():
  made = rdp.RDPAccountant().compose(accounting.EpsilonDeltaDpEvent(0.3, 1e-6))
  assert made.get_epsilon(1e-6) == pytest.approx(0.3, rel=1e-12)
  assert made.get_epsilon(9.9e-7) == math.inf
  assert made.get_delta(0.3001) == 1e-6


def test_the_boundary_of_the_orders_is_said():
  gaussian = dp_accounting.GaussianDpEvent(1.0)
  few = rdp.RDPAccountant(orders=[1.5, 2, 3]).compose(gaussian)
  (text,) = few.remarks(1e-6)
  assert 'rests on the largest order 3: other orders might' in text
  many = rdp.RDPAccountant(orders=[50.0, 20, 10.0]).compose(gaussian)
  (text,) = many.remarks(1e-6)
  assert 'rests on the smallest order 10' in text
  assert rdp.RDPAccountant().compose(gaussian).remarks(1e-6) == ()
  # Where it does not matter: no cost, or the pure guarantee is better.
  tiny = rdp.RDPAccountant(orders=[2.0]).compose(
    dp_accounting.GaussianDpEvent(1e9)
  )
  assert tiny.get_epsilon(1e-6) == 0 and tiny.remarks(1e-6) == ()
  pure = rdp.RDPAccountant(orders=[2.0]).compose(
    dp_accounting.LaplaceDpEvent(1.0)
  )
  assert pure.get_epsilon(1e-6) == pytest.approx(1.0)
  assert pure.remarks(1e-6) == ()
  assert rdp.RDPAccountant().remarks(1e-6) == ()


def test_orders_without_a_number_are_left_out_and_said():
  made = rdp.RDPAccountant(orders=[2.0, 8.0, 1e300, 1e305])
  made.compose(dp_accounting.GaussianDpEvent(1e-4))
  epsilon = made.get_epsilon(1e-6)
  assert epsilon == rdp.RDPAccountant(orders=[2.0, 8.0]).compose(
    dp_accounting.GaussianDpEvent(1e-4)
  ).get_epsilon(1e-6)
  texts = made.remarks(1e-6)
  assert 'left out order 1e+305: ' in texts[-1]
  assert 'gaussian' in texts[-1]
  assert np.isinf(made.rdp[-1]) and np.all(np.isfinite(made.rdp[:3]))
  # A sum that leaves the range of floats, and numerics that fail.
  made = rdp.RDPAccountant(orders=[2.0, 1e300])
  made.compose(dp_accounting.GaussianDpEvent(1.0), 10**9)
  assert 'the sum' in made.remarks(1e-6)[-1]
  nothing = rdp.RDPAccountant(orders=[1e300]).compose(
    dp_accounting.GaussianDpEvent(1e-10)
  )
  assert nothing.get_epsilon(1e-6) == math.inf
  assert 'left out' in nothing.remarks(1e-6)[0]


def test_nan_is_never_small(monkeypatch):
  def broken(a, *args):
    return np.where(a > 3, math.nan, 0.1 * a)

  monkeypatch.setattr(gaussian, 'sampled_gaussian_renyi', broken)
  made = rdp.RDPAccountant(orders=[2.0, 3.0, 4.0])
  step = dp_accounting.PoissonSampledDpEvent(
    0.1234567, dp_accounting.GaussianDpEvent(1.0)
  )
  made.compose(step)
  assert made.get_epsilon_and_optimal_order(1e-6)[1] == 3.0
  said = made.remarks(1e-6)
  assert 'largest order 3' in said[0]
  assert 'left out order 4: the divergence, that of a gaussian' in said[1]


@pytest.mark.parametrize('count', [1, 10**9])
@pytest.mark.parametrize(
  'mechanism',
  [
    make(parameter)
    for parameter in (1e-300, 1e-5, 1.0, 1e5, 1e300)
    for make in (
      Gaussian,
      lambda x: Gaussian(x, 1e-300),
      lambda x: Gaussian(x, 0.5),
      lambda x: Gaussian(x, 1 - 1e-16, PRESENT),
      lambda x: Gaussian(x, 1e-300, PRESENT),
      Laplace,
      lambda x: Laplace(x, 1e-300),
      lambda x: Laplace(x, 0.5, PRESENT),
      BoundedRange,
      lambda x: BoundedRange(x, 1e-9, PRESENT),
      lambda x: EpsilonDelta(x, 1e-300),
      lambda x: ZeroConcentrated(x, 1e-300),
      lambda x: DataDependentGNMax(x, -50.0),
      lambda x: DataDependentLNMax(x, -1e300),
      lambda x: DataDependentThreshold(x, 0.0),
    )
  ],
  ids=str,
)
def test_adversarial_parameters_are_never_free_and_never_nan(mechanism, count):
  made = rdp.RDPAccountant()
  made._totals[mechanism] = count
  assert np.all(made.rdp > 0)
  for delta in (1e-300, 1e-5, 0.999):
    epsilon = made.get_epsilon(delta)
    assert epsilon >= 0
    assert isinstance(made.remarks(delta), tuple)
    # What is claimed at an epsilon is consistent with what it was claimed for.
    if delta > 1e-290 and epsilon < 1e290:
      assert made.get_delta(epsilon * (1 + 1e-9) + 1e-12) <= delta * (1 + 1e-6)
  assert 0 <= made.get_delta(1.0) <= 1
  assert made.get_delta(0.0) >= made.get_delta(1.0)


def test_a_billion_steps_are_a_sum():
  step = dp_accounting.PoissonSampledDpEvent(
    1e-6, dp_accounting.GaussianDpEvent(1.0)
  )
  one = rdp.RDPAccountant().compose(step)
  many = rdp.RDPAccountant().compose(step, 10**9)
  np.testing.assert_allclose(many.rdp, 1e9 * one.rdp)
  # 10^9 q^2 (exp(1) - 1) / 2 and the tail of a Gaussian of that divergence.
  assert 0.1 < many.get_epsilon(1e-5) < 0.4


def test_large_orders_serve_small_epsilons():
  event = dp_accounting.GaussianDpEvent(3e3)
  old = rdp.RDPAccountant(orders=rdp._DEFAULT_ORDERS[:-5]).compose(event)
  new = rdp.RDPAccountant().compose(event)
  assert new.get_epsilon(1e-6) < 0.5 * old.get_epsilon(1e-6)
  assert old.remarks(1e-6) and not new.remarks(1e-6)
  exact = accounting.compute_epsilon(event, 1e-6, 'pld')
  assert exact <= new.get_epsilon(1e-6)


@pytest.mark.parametrize(
  'relation', [NeighboringRelation.ADD_OR_REMOVE_ONE, REPLACE]
)
@pytest.mark.parametrize('rng', randoms(5, 6))
def test_pld_is_below_for_samples_of_fixed_size(rng, relation):
  # Not so for exponential mechanisms: their pair stands for all offsets of the
  # losses at once, of which a Renyi curve takes the worst.
  gaussian = dp_accounting.GaussianDpEvent(float(10 ** rng.uniform(0, 1)))
  step = dp_accounting.SampledWithoutReplacementDpEvent(1000, 37, gaussian)
  event = dp_accounting.SelfComposedDpEvent(step, int(rng.integers(1, 300)))
  pld, moments = (
    accounting.compute_epsilon(event, 1e-6, name, relation)
    for name in ('pld', 'rdp')
  )
  assert 0.5 * moments < pld <= moments * (1 + 1e-6)


def test_a_cold_price_is_fast():
  best = 1e9
  for i in range(5):
    step = dp_accounting.PoissonSampledDpEvent(
      0.01, dp_accounting.GaussianDpEvent(1.0 + 1e-7 * (i + 3))
    )
    made = rdp.RDPAccountant().compose(step, 10**4)
    start = time.process_time()
    made.get_epsilon(1e-5)
    best = min(best, time.process_time() - start)
  assert best < 0.1


def test_curves_of_more_mechanisms_than_are_remembered():
  """In one order again and again: of 600, with room for 512, none was found."""
  made = []

  def counted(mechanism, orders):
    made.append(mechanism)
    return np.zeros(len(orders))

  remembered = cached(512)(counted)
  for _ in range(20):
    for i in range(600):
      assert remembered(ZeroConcentrated(1.0 + i), (2.0,)).shape == (1,)
  assert 600 <= len(made) < 0.4 * 20 * 600
  made.clear()
  # And others take their place.
  for _ in range(20):
    for i in range(300):
      remembered(ZeroConcentrated(1000.0 + i), (2.0,))
  assert len(made) < 1200


def test_curves_of_1000_mechanisms_are_computed_once():
  noises = [Laplace(7.0 + i / 999) for i in range(1000)]
  parts = [(noise, 1) for noise in noises]
  first = mechanisms.total_curve(parts, ORDERS)
  kept = [mechanisms.renyi_curve(noise, ORDERS) for noise in noises]
  assert np.array_equal(mechanisms.total_curve(parts, ORDERS), first)
  for noise, known in zip(noises, kept):
    assert mechanisms.renyi_curve(noise, ORDERS) is known


@pytest.mark.parametrize('scale', [1e8, 3e12, 62869345705168.54])
def test_tiny_losses_on_a_sample_are_not_rounded_down(scale):
  """Differences of masses are nothing but rounding there."""
  orders = np.array([2.0, 33.0, 2048.0])
  for probability in (0.01, 0.3):
    curve = mechanisms.renyi_curve(
      mechanisms.Laplace(scale, probability), tuple(orders)
    )
    # The first term; the next is a third of 1 / scale less.
    least = orders * (probability / scale) ** 2 / 2
    assert np.all(curve >= least * (1 - 1 / scale))
    np.testing.assert_allclose(curve, least, rtol=1e-6)
