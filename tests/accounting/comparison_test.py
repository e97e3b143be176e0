"""All accountants on random pipelines, against each other and from below.

Each upper bound must lie above what some concrete mechanism costs that the
events allow; that is computed by dp_accounting, rounding losses downwards.
"""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld_lib

from tests.grids import thinned
from tfdpflows import accounting
from tfdpflows.accounting.mechanisms import decompose, gaussian_profile

ADD, REPLACE = list(NeighboringRelation)[:2]
GRID = 5e-4
OPTIMISTIC = {
  'value_discretization_interval': GRID,
  'pessimistic_estimate': False,
}
BUCKETS = {**OPTIMISTIC, 'use_connect_dots': False}


def randomized_response(epsilon, delta):
  truth = (1 - delta) / (1 + math.exp(-epsilon))
  upper = {'yes': truth, 'no': truth * math.exp(-epsilon), 'told': delta}
  lower = {'yes': upper['no'], 'no': upper['yes'], 'other': delta}
  return coins(lower, upper)


def coins(lower, upper):
  logs = [
    {key: math.log(mass) for key, mass in masses.items() if mass > 0}
    for masses in (lower, upper)
  ]
  return pld_lib.from_two_probability_mass_functions(*logs, **OPTIMISTIC)


def several(count, event):
  return dp_accounting.SelfComposedDpEvent(event, int(count))


def noisy(rng, relation):
  """One release with additive noise, maybe on a sample, and its price."""
  halved = 2 if relation is REPLACE else 1
  q = 1.0 if rng.random() < 0.4 else 10 ** rng.uniform(-2.5, -0.3)
  if rng.random() < 0.7:
    noise = 10 ** rng.uniform(-0.2, 1.3)
    event, make = dp_accounting.GaussianDpEvent(noise), 'gaussian'
  else:
    noise = 10 ** rng.uniform(0.2, 1.7)
    event, make = dp_accounting.LaplaceDpEvent(noise), 'laplace'
  price = None
  if q == 1 or relation is ADD:
    price = getattr(pld_lib, f'from_{make}_mechanism')(
      noise / halved, sampling_prob=q, **BUCKETS
    )
  if q < 1:
    if rng.random() < 0.7:
      event = dp_accounting.PoissonSampledDpEvent(q, event)
    else:
      # A concrete price is known where the sample is the table.
      event = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, max(int(1000 * q), 1), event
      )
      price = None
  return event, price


def other(rng):
  """One release that costs the same under both relations, and its price."""
  epsilon = 10 ** rng.uniform(-2, 0.3)
  kind = rng.integers(4)
  if kind == 0:
    delta = float(rng.choice([0.0, 1e-8, 1e-5]))
    return (
      accounting.EpsilonDeltaDpEvent(epsilon, delta),
      randomized_response(epsilon, delta),
    )
  if kind == 1:
    # The Gaussian mechanism has this guarantee.
    return (
      accounting.ZCDpEvent(epsilon**2 / 8, 0.0),
      pld_lib.from_gaussian_mechanism(2 / epsilon, **BUCKETS),
    )
  if kind == 2:
    # A candidate loses epsilon / 2 and another gains it. As log ratios lie
    # between t - epsilon and t, t follows from how likely the one is.
    t = epsilon * rng.uniform(0.2, 0.8)
    p = -math.expm1(t - epsilon) / -math.expm1(-epsilon)
    q = p * math.exp(-t)
    return accounting.ExponentialMechanismDpEvent(epsilon), coins(
      {'one': q, 'other': 1 - q}, {'one': p, 'other': 1 - p}
    )
  return (
    accounting.ParallelDpEvent(
      [
        accounting.EpsilonDeltaDpEvent(epsilon),
        dp_accounting.GaussianDpEvent(3 / epsilon),
      ]
    ),
    pld_lib.from_gaussian_mechanism(3 / epsilon, **BUCKETS),
  )


def pipeline(rng, relation):
  """An event, and a price that no accountant may undercut."""
  parts, price = [], None
  for _ in range(rng.integers(1, 5)):
    if rng.random() < 0.6:
      event, one = noisy(rng, relation)
      count = int(10 ** rng.uniform(0, 1.8))
    else:
      event, one = other(rng)
      count = int(10 ** rng.uniform(0, 1.3))
    if isinstance(event, accounting.ParallelDpEvent) and relation is REPLACE:
      continue
    parts.append(several(count, event))
    if one is not None:
      one = one.self_compose(count)
      price = one if price is None else price.compose(one)
  return dp_accounting.ComposedDpEvent(parts), price


def upper_bounds(event, relation, delta):
  found = {}
  for name in accounting.accountant_names():
    made = accounting.create_accountant(name, relation)
    if made.guarantee == 'upper_bound' and made.supports(event):
      found[name] = made.compose(event).get_epsilon(delta)
  return found


@pytest.mark.parametrize('relation', [ADD, REPLACE])
@pytest.mark.parametrize('seed', thinned(range(24), 6))
def test_no_bound_is_below_a_mechanism_that_has_the_events(seed, relation):
  rng = np.random.default_rng([seed, relation is REPLACE])
  event, price = pipeline(rng, relation)
  delta = 10 ** rng.uniform(-9, -2)
  found = upper_bounds(event, relation, delta)
  assert {'basic', 'advanced'} <= set(found)
  assert found['advanced'] <= found['basic']
  if price is not None:
    # Half a point of the grid for each rounding of the result.
    lowest = price.get_epsilon_for_delta(delta) - GRID
    for name, epsilon in found.items():
      assert epsilon >= lowest, name
  if 'pld' in found:
    above = {'basic', 'advanced'}
    if all(m.name != 'bounded_range' for m in decompose(event, relation)):
      # There, the pair of pld is worse than any one mechanism.
      above |= {'rdp', 'zcdp'}
    for name in above & set(found):
      assert found[name] >= found['pld'] * (1 - 1e-3) - 1e-4, name
  best = accounting.best_epsilon(event, delta, relation)
  assert best.epsilon == min(found.values())
  assert found[best.accountant] == best.epsilon


@pytest.mark.parametrize(
  ('relation', 'events'), thinned([(ADD, 6), (ADD, 20), (REPLACE, 20)], 1)
)
def test_pure_gaussians_and_the_closed_form(relation, events):
  rng = np.random.default_rng(5)
  halved = 2 if relation is REPLACE else 1
  for _ in range(events):
    noises = 10 ** rng.uniform(-0.5, 2.5, rng.integers(1, 4))
    counts = (10 ** rng.uniform(0, 4, len(noises))).astype(int)
    event = dp_accounting.ComposedDpEvent(
      [
        several(n, dp_accounting.GaussianDpEvent(s))
        for n, s in zip(counts, noises)
      ]
    )
    mu = halved * math.sqrt(np.sum(counts / noises**2))
    delta = 10 ** rng.uniform(-12, -2)
    exact = float(gaussian_profile.epsilon_at(math.log(delta), mu))
    found = upper_bounds(event, relation, delta)
    gdp = accounting.create_accountant('gdp', relation).compose(event)
    assert gdp.exact
    assert gdp.get_epsilon(delta) == pytest.approx(exact, rel=1e-9, abs=1e-12)
    assert found['pld'] >= exact * (1 - 1e-9)
    assert found['rdp'] >= found['pld'] * (1 - 1e-6)
    assert found['zcdp'] >= found['pld'] * (1 - 1e-6)
    assert found['basic'] >= found['advanced'] >= exact * (1 - 1e-9)


@pytest.mark.parametrize('seed', thinned(range(8), lambda seed: seed % 4 == 1))
def test_deltas_invert_epsilons(seed):
  rng = np.random.default_rng([seed, 7])
  event, _ = pipeline(rng, ADD)
  delta = 10 ** rng.uniform(-7, -2)
  for name in accounting.accountant_names():
    made = accounting.create_accountant(name)
    if not made.supports(event):
      continue
    made.compose(event)
    epsilon = made.get_epsilon(delta)
    if 0 < epsilon < math.inf:
      assert made.get_delta(epsilon * (1 + 1e-6) + 1e-6) <= delta * 1.001
      assert made.get_delta(0.0) >= made.get_delta(epsilon)


def test_training_orders_the_accountants():
  # The order that the figures show, on parameters of no oracle.
  event = several(
    3000,
    dp_accounting.PoissonSampledDpEvent(
      0.013, dp_accounting.GaussianDpEvent(1.7)
    ),
  )
  price = {
    name: accounting.compute_epsilon(event, 3e-6, name)
    for name in ('gdp', 'pld', 'rdp', 'advanced', 'basic')
  }
  assert list(price.values()) == sorted(price.values())
