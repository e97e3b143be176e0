"""What every mechanism promises: no answer is below what it says of itself.

A mechanism has one row: an instance, and pairs of distributions that it may
produce under its relation, each computed directly here, without the code of the
package. Of every pair and every two of them in a row, the exact profile is
compared with what each accountant says. A new mechanism adds its row.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import special, stats

from tests.grids import thinned
from tfdpflows import accounting
from tfdpflows.accounting import mechanisms
from tfdpflows.accounting.mechanisms import (
  OPPOSITE,
  PRESENT,
  BoundedRange,
  DataDependentGNMax,
  DataDependentLNMax,
  DataDependentThreshold,
  DiscreteLaplace,
  EpsilonDelta,
  Gaussian,
  Laplace,
  Mixture,
  NullRowGaussian,
  ObjectivePerturbation,
  Parallel,
  RandomizedResponse,
  RandomizedResponseOrNull,
  RenyiPrivate,
  RepeatAndSelect,
  SmoothSensitivity,
  ZeroConcentrated,
)

QUESTIONS = {
  'basic': 'epsilon_at',
  'advanced': 'epsilon_at',
  'gdp': 'gaussian_mu',
  'pld': 'loss_distributions',
  'rdp': 'renyi',
  'zcdp': 'zcdp',
}
ORDERS = (1.1, 2.0, 3.5, 16.0)
EPSILONS = (0.0, 0.6, 2.0)


# Pairs, as two arrays of masses of the same outcomes.


def cells(upper, lower):
  """Two laws on the line, between many points.

  What is told apart less is no further apart, so that the profile of the cells
  is a bound from below on that of the densities.
  """
  edges = np.linspace(-60.0, 60.0, 6001)
  return upper(edges), lower(edges)


def masses(law, edges):
  """On the side of the tail, where differences keep their accuracy."""
  below, above = np.diff(law.cdf(edges)), -np.diff(law.sf(edges))
  return np.where(edges[:-1] < law.mean(), below, above)


def normal(place, scale):
  return lambda edges: masses(stats.norm(place, scale), edges)


def laplace(place, scale):
  return lambda edges: masses(stats.laplace(place, scale), edges)


def mixed(q, one, other):
  return lambda edges: q * one(edges) + (1 - q) * other(edges)


def both(pair):
  return [pair, pair[::-1]]


def noises(noise, scale):
  return both(cells(noise(1.0, scale), noise(0.0, scale)))


def sampled(noise, scale, q):
  """A row that is added to a Poisson sample, or removed."""
  base = noise(0.0, scale)
  return both(cells(mixed(q, noise(1.0, scale), base), base))


def exchanged(noise, scale, q):
  """A row of a sample of fixed size: 1, or -1, among rows of -1, 0 or 1."""
  found = []
  for rest in (-0.5, 0.0, 0.5):
    one, other = (
      mixed(q, noise(x, scale), noise(rest, scale)) for x in (0.5, -0.5)
    )
    found += both(cells(one, other))
  return found


def geometric(a, shift, q=1.0):
  z = np.arange(-400, 401)
  law = lambda place: np.tanh(a / 2) * np.exp(-a * np.abs(z - place))
  return both((q * law(shift) + (1 - q) * law(0), law(0)))


def answers(p, k, null=False):
  one = np.full(k, p / k)
  other = np.full(k, 1 / k) if null else np.full(k, p / k)
  one[0] += 1 - p
  if not null:
    other[1] += 1 - p
  return both((one, other))


def choices(epsilon, q=1.0):
  """Exponential mechanisms on scores that move by one at most."""
  found = []
  for before, after in (([0, 0], [1, 0]), ([0, 0, 0], [1, 0, -1]), ([2], [2])):
    one, other = (
      special.softmax(epsilon / 2 * np.array(x, np.float64))
      for x in (after, before)
    )
    if len(before) == 2:
      # One more row can only raise a score: all of epsilon.
      one, other = (
        special.softmax(epsilon * np.array(x, np.float64))
        for x in (after, before)
      )
    found += both((q * one + (1 - q) * other, other))
  return found


def flips(epsilon):
  """Permute-and-flip with two candidates, from a tie to an advantage of 2."""
  y = math.exp(-epsilon)
  return both((np.array([1 - y / 2, y / 2]), np.array([0.5, 0.5])))


def revealing(epsilon, delta):
  truth = (1 - delta) / (1 + math.exp(-epsilon))
  return both(
    (
      np.array([delta, truth, 1 - delta - truth, 0.0]),
      np.array([0.0, 1 - delta - truth, truth, delta]),
    )
  )


def null_rows(sigma, q):
  found = []
  for rest in (-1.0, -0.3, 0.0, 1.0):
    base = normal(rest, sigma)
    found += both(
      cells(
        mixed(q, normal(1.0, sigma), base), mixed(q, normal(0.0, sigma), base)
      )
    )
  return found


def rescaled(sigma, beta, shift):
  """Smooth sensitivities of 1 and of exp(beta), and less of a difference."""
  kappa, larger = 1 + shift * math.expm1(beta), math.exp(beta)
  one = normal(0.0, sigma)
  found = []
  for scale, place in ((larger, kappa), (larger, 0.0), (1.0, 1.0)):
    found += both(cells(normal(place, sigma * scale), one))
  return found


def perturbed(sigma, regularization, replaced=False):
  """Minimizers of logistic losses of rows in [-1, 1], on the line.

  They fall with the linear term, whose value at a point is one less derivative.
  """
  points = np.sort(
    np.concatenate([np.linspace(-40.0, 40.0, 4001), np.linspace(-3, 3, 4001)])
  )

  def law(rows):
    slope = regularization * points
    for row in rows:
      slope = slope - row * special.expit(-row * points)
    below, above = special.ndtr(slope / sigma), special.ndtr(-slope / sigma)
    return np.where(slope[:-1] < 0, np.diff(below), -np.diff(above))

  found = []
  for rest in ([], [0.5], [1.0, -1.0], [1.0] * 4):
    for one in (1.0, -1.0, 0.6):
      other = [-one] if replaced else []
      found += both((law([*rest, one]), law([*rest, *other])))
  return found


def some_at(order, divergence, delta):
  """A Gaussian with this divergence, and a failure that reveals the table."""
  sigma = math.sqrt(order / 2 / divergence)
  found = []
  for upper, lower in noises(normal, sigma):
    kept = np.append((1 - delta) * upper, delta)
    found.append((kept, np.append(lower, 0.0)))
  return found


def best_of_geometric(pairs, mean):
  """The outcome of the lowest number among a geometric number of runs."""
  found = []
  for pair in pairs:
    laws = []
    for law in pair:
      above = np.cumsum(law[::-1])[::-1]
      above = np.append(above, 0.0)
      # P[all of K runs are at or after an outcome], K geometric from 1 on.
      g = 1 / mean
      survive = g * above / (1 - (1 - g) * above)
      laws.append(survive[:-1] - survive[1:])
    found.append(tuple(laws))
  return found


LIKELY, RARE = Gaussian(2.0, 0.2), Gaussian(1.0, 0.3)
MIXTURE = Mixture(((LIKELY, 0.9), (RARE, 0.1)))


def mixture():
  """It is known which part was drawn."""
  parts = (0.9, sampled(normal, 2.0, 0.2)), (0.1, sampled(normal, 1.0, 0.3))
  found = []
  for direction in (0, 1):
    pairs = [(weight, pair[direction]) for weight, pair in parts]
    found.append(
      tuple(np.concatenate([w * pair[i] for w, pair in pairs]) for i in (0, 1))
    )
  return found


# The mechanisms, and which accountants take them.
ALL, BOUNDS = set(QUESTIONS), set(QUESTIONS) - {'gdp'}
ON_SAMPLE = BOUNDS - {'zcdp'}
ROWS = [
  (Gaussian(1.3), noises(normal, 1.3), ALL),
  (Gaussian(0.8, 0.2), sampled(normal, 0.8, 0.2), ALL - {'zcdp'}),
  (Gaussian(0.8, 0.2, PRESENT), exchanged(normal, 0.8, 0.2), ALL - {'zcdp'}),
  (
    Gaussian(0.8, 0.2, OPPOSITE),
    both(
      cells(
        mixed(0.2, normal(1.0, 1.6), normal(0.0, 1.6)),
        mixed(0.2, normal(-1.0, 1.6), normal(0.0, 1.6)),
      )
    ),
    ALL - {'zcdp'},
  ),
  (NullRowGaussian(1.1, 0.3), null_rows(1.1, 0.3), ON_SAMPLE),
  (Laplace(1.5), noises(laplace, 1.5), BOUNDS),
  (Laplace(1.5, 0.3), sampled(laplace, 1.5, 0.3), ON_SAMPLE),
  (Laplace(1.5, 0.3, PRESENT), exchanged(laplace, 1.5, 0.3), ON_SAMPLE),
  (
    Laplace(1.5, 0.3, OPPOSITE),
    both(
      cells(
        mixed(0.3, laplace(1.0, 3.0), laplace(0.0, 3.0)),
        mixed(0.3, laplace(-1.0, 3.0), laplace(0.0, 3.0)),
      )
    ),
    ON_SAMPLE,
  ),
  (DiscreteLaplace(0.4, 3.0), geometric(0.4, 3), BOUNDS),
  (DiscreteLaplace(0.4, 3.0, 0.3), geometric(0.4, 3, 0.3), ON_SAMPLE),
  (RandomizedResponse(0.4, 3.0), answers(0.4, 3), BOUNDS),
  (RandomizedResponseOrNull(0.4, 3.0), answers(0.4, 3, null=True), BOUNDS),
  (BoundedRange(1.0), choices(1.0), BOUNDS),
  (BoundedRange(1.0, 0.3), choices(1.0, 0.3), ON_SAMPLE),
  (EpsilonDelta(0.8), flips(0.8), BOUNDS),
  (EpsilonDelta(0.8, 0.01), revealing(0.8, 0.01), BOUNDS),
  # What has this guarantee with equality.
  (ZeroConcentrated(0.2), noises(normal, math.sqrt(2.5)), BOUNDS - {'pld'}),
  (MIXTURE, mixture(), ON_SAMPLE),
  (ObjectivePerturbation(0.9, 2.5), perturbed(0.9, 0.4), BOUNDS - {'zcdp'}),
  (
    ObjectivePerturbation(2.0, 0.5, True),
    perturbed(2.0, 2.0, replaced=True),
    BOUNDS - {'zcdp'},
  ),
  (SmoothSensitivity(4.0, 0.02, 3.0), rescaled(4.0, 0.02, 3.0), {'rdp'}),
  (RenyiPrivate(16.0, 1.0, 0.01), some_at(16.0, 1.0, 0.01), {'rdp'}),
  (
    Parallel((((Gaussian(2.0), 1),), ((Laplace(2.0), 1),))),
    [*noises(normal, 2.0), *noises(laplace, 2.0)],
    BOUNDS - {'pld'},
  ),
  (
    RepeatAndSelect(3.0, 1.0, ((RandomizedResponse(0.4, 3.0), 1),)),
    best_of_geometric(answers(0.4, 3), 3.0),
    {'rdp'},
  ),
  # Of these, what they say is compared with votes in votes_test.
  (DataDependentGNMax(10.0, -9.0), [], {'rdp'}),
  (DataDependentThreshold(10.0, -1.0), [], {'rdp'}),
  (DataDependentLNMax(0.1, -9.0), [], {'rdp'}),
]
IDS = [repr(mechanism)[:60] for mechanism, _, _ in ROWS]
DIRECT = [row[:2] for row in ROWS if row[1]]
DIRECT_IDS = [repr(mechanism)[:60] for mechanism, _ in DIRECT]


def profile(pair, epsilon):
  """The smallest delta at an epsilon."""
  upper, lower = pair
  return float(np.sum(np.maximum(upper - math.exp(epsilon) * lower, 0.0)))


def twice(one, other):
  """The pair of two mechanisms, one after the other, with fewer cells."""
  grouped = []
  for pair in (one, other):
    if len(pair[0]) > 400:
      starts = np.arange(0, len(pair[0]), len(pair[0]) // 200)
      pair = tuple(np.add.reduceat(masses, starts) for masses in pair)
    grouped.append(pair)
  return tuple(np.outer(*laws).ravel() for laws in zip(*grouped))


def composed(name, mechanism, count):
  made = accounting.create_accountant(name)
  made._totals = {mechanism: count}
  return made


def test_every_mechanism_has_a_row():
  def subclasses(cls):
    for sub in cls.__subclasses__():
      yield sub
      yield from subclasses(sub)

  ours = {
    cls
    for cls in subclasses(mechanisms.Mechanism)
    if cls.__module__.startswith('tfdpflows.')
    and dataclasses.is_dataclass(cls)
    and cls is not mechanisms.NonPrivate
  }
  assert ours == {type(mechanism) for mechanism, _, _ in ROWS}


@pytest.mark.parametrize(('mechanism', 'pairs', 'taken'), ROWS, ids=IDS)
def test_who_takes_it(mechanism, pairs, taken):
  del pairs
  for name, question in QUESTIONS.items():
    made = accounting.create_accountant(name)
    assert made.question == question
    assert (made._reason(mechanism) is None) == (name in taken), name
    if not mechanism.answers(question) and question != 'epsilon_at':
      arguments = {'renyi': [np.array([2.0])], 'loss_distributions': [0.1]}
      with pytest.raises(NotImplementedError):
        getattr(mechanism, question)(*arguments.get(question, []))


@pytest.mark.parametrize(
  ('count', 'mechanism', 'pairs'),
  thinned(
    [(count, *row) for count in (1, 2) for row in DIRECT],
    # Twice is one after the other: for one mechanism of all.
    lambda point: point[0] == 1 or point[1] is DIRECT[0][0],
  ),
  ids=[f'{count}-{name}' for count in (1, 2) for name in DIRECT_IDS],
)
def test_deltas_are_not_below_the_profile(mechanism, pairs, count):
  if count == 2:
    # The row is in the same table both times.
    pairs = [
      twice(*two)
      for direction in (pairs[::2], pairs[1::2])
      for two in itertools.product(direction, direction)
    ]
  exact = {x: max(profile(pair, x) for pair in pairs) for x in EPSILONS}
  for name in QUESTIONS:
    made = composed(name, mechanism, count)
    limit = name == 'gdp' and mechanism.on_sample
    if limit or made._reason(mechanism) is not None:
      continue
    for epsilon, delta in exact.items():
      found = made.get_delta(epsilon)
      assert found >= delta * (1 - 1e-9) - 1e-14, (name, epsilon)
      if 0 < delta < 1:
        # And back.
        enough = min(made.get_epsilon(delta), 700.0)
        least = max(profile(pair, enough) for pair in pairs)
        assert least <= delta * (1 + 1e-9) + 1e-14, (name, delta)


@pytest.mark.parametrize(('mechanism', 'pairs'), DIRECT, ids=DIRECT_IDS)
def test_divergences_are_not_below_the_exact_ones(mechanism, pairs):
  curve = mechanisms.renyi_curve(mechanism, ORDERS)
  failure = mechanism.failure()
  for order, bound in zip(ORDERS, curve):
    for upper, lower in pairs:
      if failure:
        continue
      kept = (upper > 0) & (lower > 0)
      with np.errstate(over='ignore'):
        logs = order * np.log(upper[kept]) - (order - 1) * np.log(lower[kept])
      exact = special.logsumexp(logs) / (order - 1)
      assert bound >= exact - 1e-9, order
  if mechanism.answers('zcdp'):
    # As many questions to it as there are curves above it.
    rho, xi, _ = mechanism.zcdp()
    if not mechanism.on_sample:
      orders = np.array(ORDERS)
      with np.errstate(all='ignore'):
        assert np.all(curve <= (xi + rho * orders) * (1 + 1e-9))


@pytest.mark.parametrize(('mechanism', 'pairs', 'taken'), ROWS, ids=IDS)
def test_they_are_values(mechanism, pairs, taken):
  del pairs, taken
  same = dataclasses.replace(mechanism)
  assert same == mechanism
  assert hash(same) == hash(mechanism)
  assert not mechanism < same
  assert mechanism.costs_no_less(same)
  with pytest.raises(dataclasses.FrozenInstanceError):
    mechanism.name = 'other'
  order = sorted(row[0] for row in ROWS)
  order.reverse()
  assert sorted(order) == order[::-1]


@pytest.mark.parametrize(
  'mechanism', [row[0] for row in ROWS if row[0].worst], ids=repr
)
def test_what_costs_more_does(mechanism):
  """Of the fields in `worst`, moved to either side."""
  numbers = {'noise_multiplier', 'epsilon', 'rho', 'noise_parameter'}
  for field, worst in mechanism.worst.items():
    value = getattr(mechanism, field)
    step = 1.0 if field == 'sensitivity' else 0.1 * value
    if value + step > 1 and field == 'sampling_probability':
      continue
    more = worst(value - step, value + step)
    dearer = dataclasses.replace(mechanism, **{field: more})
    assert np.all(
      mechanisms.renyi_curve(dearer, ORDERS)
      >= mechanisms.renyi_curve(mechanism, ORDERS) * (1 - 1e-9)
    )
    if mechanism.shards_compare and field in numbers:
      assert dearer.costs_no_less(mechanism)
      assert not mechanism.costs_no_less(dearer)
