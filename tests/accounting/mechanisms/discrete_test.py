"""Discrete Laplace, randomized response, permute-and-flip: by brute force."""

import functools
import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from tfdpflows import accounting
from tfdpflows.accounting import mechanisms
from tfdpflows.accounting.mechanisms import (
  DiscreteLaplace,
  RandomizedResponse,
  RandomizedResponseOrNull,
  discrete,
)

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
EPSILONS = (0.0, 0.05, 0.3, 0.7, 1.2, 2.0, 3.1)
UPPER_BOUNDS = [
  name
  for name in accounting.accountant_names()
  if accounting.create_accountant(name).guarantee == 'upper_bound'
]


def hockey_stick(epsilon, pairs):
  """Of a composition of pairs of laws, in both directions; exact."""
  first, second = (
    functools.reduce(np.multiply.outer, [np.ravel(pair[i]) for pair in pairs])
    for i in (0, 1)
  )
  weight = math.exp(epsilon)
  return max(
    float(np.sum(np.maximum(p - weight * q, 0)))
    for p, q in ((first, second), (second, first))
  )


def response(value, p, k):
  """The law of the answer of a row; of the null row where it is None."""
  if value is None:
    return np.full(k, 1 / k)
  law = np.full(k, p / k)
  law[value] += 1 - p
  return law


def answers(table, p, k):
  """The law of the answers of all rows of a table."""
  return functools.reduce(
    np.multiply.outer, [response(value, p, k) for value in table]
  )


def shifted_pair(a, shift, reach=60):
  """Both on one domain; the tails are outcomes of their own."""
  z = np.arange(-reach, reach + 1)
  laws = []
  for centre in (shift, 0):
    law = math.tanh(a / 2) * np.exp(-a * np.abs(z - centre))
    low, high = -reach - centre, reach - centre
    law[0] = math.exp(a * low) / (1 + math.exp(-a))
    law[-1] = math.exp(-a * high) / (1 + math.exp(-a))
    laws.append(law)
  return tuple(laws)


def permute_and_flip(scores, epsilon):
  """The law of the choice, by all permutations."""
  scores = np.asarray(scores, np.float64)
  coins = np.exp(epsilon / 2 * (scores - np.max(scores)))
  law = np.zeros(len(scores))
  orders = list(itertools.permutations(range(len(scores))))
  for order in orders:
    left = 1.0 / len(orders)
    for r in order:
      law[r] += left * coins[r]
      left *= 1 - coins[r]
  return law


def covered(event, relation, pairs, names=UPPER_BOUNDS, tight=None):
  """Every claimed delta is above the truth, and one claim not far above."""
  for name in names:
    made = accounting.create_accountant(name, relation).compose(event)
    for epsilon in EPSILONS:
      true = hockey_stick(epsilon, pairs)
      claimed = made.get_delta(epsilon)
      assert true <= claimed * (1 + 1e-12), (name, epsilon)
      if name == 'pld' and tight is not None:
        assert claimed <= true * (1 + tight) + 1e-9, epsilon
      if 1e-6 < true < 1:
        assert hockey_stick(made.get_epsilon(true), pairs) <= true * (1 + 1e-9)


@pytest.mark.parametrize('k', [2, 3, 4])
@pytest.mark.parametrize('p', [0.05, 0.4, 0.9])
def test_randomized_response_of_whole_tables(p, k):
  event = accounting.RandomizedResponseDpEvent(p, k)
  rest = (0, k - 1)
  one = answers((0, *rest), p, k)
  covered(event, REPLACE, [(one, answers((1, *rest), p, k))], tight=1e-4)
  covered(event, SPECIAL, [(one, answers((None, *rest), p, k))], tight=1e-4)


@pytest.mark.parametrize('relation', [REPLACE, SPECIAL])
def test_compositions_of_randomized_response(relation):
  kinds = [(0.3, 2), (0.6, 3), (0.9, 5)]
  other = 1 if relation is REPLACE else None
  event = dp_accounting.ComposedDpEvent(
    [accounting.RandomizedResponseDpEvent(p, k) for p, k in kinds]
  )
  # The answers of one row; all in one direction, as a table has one change.
  pairs = [(response(0, p, k), response(other, p, k)) for p, k in kinds]
  covered(event, relation, pairs, tight=1e-3)


@pytest.mark.parametrize('sensitivity', [1, 2, 5])
@pytest.mark.parametrize('a', [0.2, 0.8, 2.5])
def test_discrete_laplace_of_one_number(a, sensitivity):
  event = accounting.DiscreteLaplaceDpEvent(a, sensitivity)
  for relation, shift in (
    (ADD, sensitivity),
    (SPECIAL, sensitivity),
    (REPLACE, 2 * sensitivity),
  ):
    covered(event, relation, [shifted_pair(a, shift)], tight=1e-4)


@pytest.mark.parametrize('a', [0.3, 1.1])
def test_discrete_laplace_of_vectors(a):
  event = accounting.DiscreteLaplaceDpEvent(a, 3)
  for parts in ((3,), (2, 1), (1, 2), (1, 1, 1), (1, 1), (2, -1)):
    reach = 60 if len(parts) < 3 else 25
    pairs = [shifted_pair(a, part, reach) for part in parts]
    covered(event, ADD, pairs, ['pld', 'rdp'])


def test_compositions_of_discrete_laplace():
  event = dp_accounting.ComposedDpEvent(
    [
      accounting.DiscreteLaplaceDpEvent(0.4, 1),
      accounting.DiscreteLaplaceDpEvent(0.3, 2),
      accounting.DiscreteLaplaceDpEvent(0.2, 3),
    ]
  )
  pairs = [shifted_pair(*x, 30) for x in ((0.4, 1), (0.3, 2), (0.2, 3))]
  covered(event, ADD, pairs, tight=1e-3)


@pytest.mark.parametrize('relation', [ADD, REPLACE, SPECIAL])
def test_discrete_laplace_on_a_sample(relation):
  a, q = 0.7, 0.3
  event = dp_accounting.PoissonSampledDpEvent(
    q, accounting.DiscreteLaplaceDpEvent(a, 2)
  )
  moved_by = {ADD: (2, 0), SPECIAL: (2, 0), REPLACE: (2, -2)}[relation]
  z = np.arange(-60, 61)
  laws = [math.tanh(a / 2) * np.exp(-a * np.abs(z - s)) for s in (*moved_by, 0)]
  mixed = [q * law + (1 - q) * laws[2] for law in laws[:2]]
  covered(event, relation, [mixed], ['pld', 'rdp', 'basic', 'advanced'])
  twice = dp_accounting.SelfComposedDpEvent(event, 2)
  covered(twice, relation, [mixed, mixed], ['pld', 'rdp', 'basic', 'advanced'])


@pytest.mark.parametrize('n', [3, 4])
def test_discrete_laplace_on_a_sample_of_fixed_size(n):
  a, m = 0.9, 2
  event = dp_accounting.SampledWithoutReplacementDpEvent(
    n, m, accounting.DiscreteLaplaceDpEvent(a, 1)
  )
  z = np.arange(-60, 61)

  def law(table):
    samples = list(itertools.combinations(table, m))
    return sum(
      math.tanh(a / 2) * np.exp(-a * np.abs(z - sum(sample)))
      for sample in samples
    ) / len(samples)

  for rest in itertools.product((-1, 0, 1), repeat=n - 1):
    for row, relation, other in (
      (1, REPLACE, (-1, *rest)),
      (1, SPECIAL, (0, *rest)),
      (1, ADD, rest),
    ):
      if len(other) >= m:
        pair = law((row, *rest)), law(other)
        covered(event, relation, [pair], ['pld', 'rdp'])


@pytest.mark.parametrize('epsilon', [0.2, 1.0, 3.0])
def test_permute_and_flip(epsilon):
  event = accounting.PermuteAndFlipDpEvent(epsilon)
  grid = [
    scores
    for size in (2, 3)
    for scores in itertools.product((0, 0.5, 1, 2), repeat=size)
  ]
  worst = 0.0
  for scores in grid:
    for moves in itertools.product((-1, 0, 1), repeat=len(scores)):
      other = np.add(scores, moves)
      pair = (
        permute_and_flip(scores, epsilon),
        permute_and_flip(other, epsilon),
      )
      ratio = np.log(pair[0]) - np.log(pair[1])
      assert np.max(np.abs(ratio)) <= epsilon * (1 + 1e-12)
      worst = max(worst, float(np.ptp(ratio)))
      for x in (0.0, 0.4 * epsilon, 0.9 * epsilon):
        p = 1 / (1 + math.exp(-epsilon))
        claim = max(p - math.exp(x) * (1 - p), 0)
        assert hockey_stick(x, [pair]) <= claim * (1 + 1e-12)
  # Not bounded-range, so that it must not be composed like that.
  assert worst > 1.2 * epsilon if epsilon < 2 else worst > epsilon
  for relation in (ADD, REPLACE, SPECIAL):
    for name in UPPER_BOUNDS:
      assert accounting.compute_epsilon(
        event, 1e-9, name, relation
      ) == pytest.approx(
        accounting.compute_epsilon(
          accounting.EpsilonDeltaDpEvent(epsilon), 1e-9, name, relation
        )
      )


def test_compositions_of_permute_and_flip():
  worst = []
  for epsilon in (0.5, 0.8, 1.5):
    # One gains and the others lose.
    pair = [permute_and_flip(x, epsilon) for x in ((0, 1, 1), (1, 0, 0))]
    worst.append((epsilon, pair))
  for number in (2, 3):
    event = dp_accounting.ComposedDpEvent(
      [accounting.PermuteAndFlipDpEvent(x) for x, _ in worst[:number]]
    )
    covered(event, ADD, [pair for _, pair in worst[:number]])


def test_bounded_range_would_be_too_little_for_permute_and_flip():
  epsilon, count = 0.1, 30
  one = permute_and_flip((0, 1), epsilon)
  p = one[0]
  # A binomial number of wins of the first, against the mirror image.
  wins = np.arange(count + 1)
  binomial = np.array([math.comb(count, int(w)) for w in wins], float)
  laws = [binomial * x**wins * (1 - x) ** (count - wins) for x in (p, 1 - p)]
  pair = [tuple(laws)]
  flips = dp_accounting.SelfComposedDpEvent(
    accounting.PermuteAndFlipDpEvent(epsilon), count
  )
  choices = dp_accounting.SelfComposedDpEvent(
    accounting.ExponentialMechanismDpEvent(epsilon), count
  )
  true = hockey_stick(0.5, pair)
  assert true <= accounting.create_accountant().compose(flips).get_delta(0.5)
  assert true > accounting.create_accountant().compose(choices).get_delta(0.5)


def exact_renyi(pair, order):
  return max(
    math.log(float(np.sum(p * (p / q) ** (order - 1)))) / (order - 1)
    for p, q in (pair, pair[::-1])
  )


@pytest.mark.parametrize('order', [1.1, 2.0, 7.5, 64.0])
@pytest.mark.parametrize(
  ('mechanism', 'pair'),
  [
    (
      DiscreteLaplace(0.5, 3.0),
      shifted_pair(0.5, 3),
    ),
    (
      DiscreteLaplace(2.0, 1.0),
      shifted_pair(2.0, 1, 9),
    ),
    (
      RandomizedResponse(0.3, 5.0),
      (response(0, 0.3, 5), response(1, 0.3, 5)),
    ),
    (
      RandomizedResponseOrNull(0.3, 5.0),
      (response(0, 0.3, 5), response(None, 0.3, 5)),
    ),
    (
      RandomizedResponseOrNull(0.9, 2.0),
      (response(0, 0.9, 2), response(None, 0.9, 2)),
    ),
  ],
)
def test_renyi_divergences(mechanism, pair, order):
  (curve,) = mechanisms.renyi_curve(mechanism, (order,))
  true = exact_renyi(pair, order)
  assert true * (1 - 1e-13) <= curve <= true * (1 + 1e-8)


@pytest.mark.parametrize('a', [1e-9, 1e-3, 0.2, 1.0, 4.0, 50.0, 800.0])
@pytest.mark.parametrize('shift', [1, 2, 3, 17, 1000])
def test_closed_form_of_discrete_laplace(a, shift):
  pair = DiscreteLaplace(a, float(shift)).pair()
  assert np.sum(pair.upper) == pytest.approx(1, rel=1e-13)
  assert np.sum(pair.lower) == pytest.approx(1, rel=1e-13)
  orders = np.array([1.01, 1.5, 2.0, 10.0, 300.0])
  summed = discrete.renyi_of_pair(pair, orders)
  closed = discrete.discrete_laplace_renyi(a, float(shift), orders)
  assert closed == pytest.approx(summed, rel=1e-6)
  assert np.all(closed >= summed * (1 - 1e-7))
  # The rho is the mean loss, and no divergence is above its line.
  rho = discrete.discrete_laplace_rho(a, float(shift))
  mean = float(np.sum(pair.upper * pair.losses))
  assert rho == pytest.approx(mean, rel=1e-6 if a * shift > 1e-4 else 1e-2)
  assert np.all(summed <= orders * rho * (1 + 2e-8))


@pytest.mark.parametrize('q', [1.0, 0.2])
@pytest.mark.parametrize('replaced', [False, True])
def test_grouped_losses_are_no_less(q, replaced):
  mechanism = DiscreteLaplace(1e-3, 2000.0, q, row=replaced)
  fine, coarse = mechanism.pair(), mechanism.pair(50)
  assert len(coarse.losses) < 300 < len(fine.losses)
  for epsilon in np.linspace(0, 2.2, 23):
    for one, two in ((fine, coarse), (fine.swapped(), coarse.swapped())):
      exact, bound = (
        float(np.sum(x.upper * np.maximum(-np.expm1(epsilon - x.losses), 0)))
        for x in (one, two)
      )
      assert exact <= bound * (1 + 1e-12) + 1e-17
      assert bound <= exact * 1.01 + 1e-6


def test_small_parameter_is_the_laplace_mechanism():
  laplace = dp_accounting.SelfComposedDpEvent(
    dp_accounting.LaplaceDpEvent(5.0), 10
  )
  discrete = dp_accounting.SelfComposedDpEvent(
    accounting.DiscreteLaplaceDpEvent(2e-7, 10**6), 10
  )
  for name in UPPER_BOUNDS:
    expected = accounting.compute_epsilon(laplace, 1e-6, name)
    found = accounting.compute_epsilon(discrete, 1e-6, name)
    assert found == pytest.approx(expected, rel=1e-4), name


def test_sensitivity_one_is_the_worst_pure_mechanism():
  discrete = accounting.DiscreteLaplaceDpEvent(0.3, 1)
  pure = accounting.EpsilonDeltaDpEvent(0.3)
  for name in UPPER_BOUNDS:
    for event in (discrete, pure):
      many = dp_accounting.SelfComposedDpEvent(event, 40)
      assert accounting.compute_epsilon(many, 1e-6, name) == pytest.approx(
        accounting.compute_epsilon(
          dp_accounting.SelfComposedDpEvent(pure, 40), 1e-6, name
        ),
        rel=1e-6,
      )


def test_both_directions_of_a_null_row_are_composed():
  # Losses of the one direction are larger for a small p, of the other one for
  # many buckets; together they are what the worse of both composes to.
  event = dp_accounting.ComposedDpEvent(
    [
      dp_accounting.SelfComposedDpEvent(
        accounting.RandomizedResponseDpEvent(0.05, 2), 2
      ),
      accounting.RandomizedResponseDpEvent(0.9, 6),
    ]
  )
  pairs = [(response(0, 0.05, 2), response(None, 0.05, 2))] * 2
  pairs.append((response(0, 0.9, 6), response(None, 0.9, 6)))
  covered(event, SPECIAL, pairs, tight=1e-3)
  remove, add = mechanisms.loss_distributions(
    RandomizedResponseOrNull(0.05, 2.0), 1e-3
  )
  assert remove is not add and add.lower + len(add.masses) > 2900


# Epsilon by dp_accounting 0.6.0, at delta = 1e-6: pld, and rdp where it has it.
PEERS = [
  (
    accounting.DiscreteLaplaceDpEvent(0.0231, 2),
    80,
    ADD,
    1.7817601753594605,
    None,
  ),
  (
    accounting.DiscreteLaplaceDpEvent(0.0092, 1),
    80,
    ADD,
    0.31673142384629355,
    None,
  ),
  (
    accounting.DiscreteLaplaceDpEvent(0.0051, 1),
    2,
    ADD,
    0.010196020314271753,
    None,
  ),
  (
    accounting.DiscreteLaplaceDpEvent(0.2902, 2),
    80,
    ADD,
    32.00091843888347,
    None,
  ),
  (
    accounting.RandomizedResponseDpEvent(0.765, 3),
    20,
    REPLACE,
    12.305625514265529,
    12.50960634929159,
  ),
  (
    accounting.RandomizedResponseDpEvent(0.412, 3),
    2,
    REPLACE,
    3.328598099249383,
    3.333564934919563,
  ),
  (
    accounting.RandomizedResponseDpEvent(0.942, 3),
    2,
    REPLACE,
    0.3391927737049576,
    0.34282070480722576,
  ),
  (
    accounting.RandomizedResponseDpEvent(0.367, 3),
    1,
    REPLACE,
    1.820498676080324,
    1.825887532014883,
  ),
  (
    accounting.RandomizedResponseDpEvent(0.885, 2),
    1,
    SPECIAL,
    0.12219799999800011,
    0.12724229674261245,
  ),
  (
    accounting.RandomizedResponseDpEvent(0.173, 2),
    20,
    SPECIAL,
    32.725744697258285,
    34.19987563038254,
  ),
  (
    accounting.RandomizedResponseDpEvent(0.298, 3),
    2,
    SPECIAL,
    2.421397749997469,
    2.4262831127896547,
  ),
  (
    accounting.RandomizedResponseDpEvent(0.273, 10),
    2,
    SPECIAL,
    4.041398242431881,
    4.046440936296646,
  ),
  (
    accounting.DiscreteLaplaceDpEvent(1.6333, 3),
    2,
    SPECIAL,
    9.799798571294968,
    None,
  ),
  (
    accounting.DiscreteLaplaceDpEvent(1.7189, 1),
    5,
    SPECIAL,
    8.594497719372905,
    None,
  ),
  (
    accounting.DiscreteLaplaceDpEvent(0.0102, 1),
    2,
    SPECIAL,
    0.02039604048180173,
    None,
  ),
  (
    accounting.DiscreteLaplaceDpEvent(0.0071, 3),
    2,
    SPECIAL,
    0.04259602824147733,
    None,
  ),
]


@pytest.mark.parametrize(('event', 'count', 'relation', 'pld', 'rdp'), PEERS)
def test_beside_dp_accounting(event, count, relation, pld, rdp):
  many = dp_accounting.SelfComposedDpEvent(event, count)
  found = accounting.compute_epsilon(many, 1e-6, 'pld', relation)
  assert found <= pld * (1 + 1e-6)
  assert found >= pld * 0.99
  if rdp is not None:
    found = accounting.compute_epsilon(many, 1e-6, 'rdp', relation)
    assert 0.95 * rdp <= found <= rdp * (1 + 1e-6)


@pytest.mark.parametrize(
  ('event', 'words'),
  [
    (accounting.DiscreteLaplaceDpEvent(0.0, 1), 'noise_parameter.*above zero'),
    (accounting.DiscreteLaplaceDpEvent(-1.0, 1), 'noise_parameter'),
    (accounting.DiscreteLaplaceDpEvent(math.nan, 1), 'noise_parameter'),
    (accounting.DiscreteLaplaceDpEvent(1.0, 1.5), 'sensitivity.*integer'),
    (accounting.DiscreteLaplaceDpEvent(1.0, -1), 'sensitivity'),
    (accounting.RandomizedResponseDpEvent(1.1, 2), 'noise_parameter'),
    (accounting.RandomizedResponseDpEvent(0.5, 0), 'num_buckets'),
    (accounting.RandomizedResponseDpEvent(0.5, 2.5), 'num_buckets.*integer'),
    (accounting.PermuteAndFlipDpEvent(-0.1), 'epsilon'),
  ],
)
def test_parameters_out_of_range_are_named(event, words):
  for name in accounting.accountant_names():
    with pytest.raises(ValueError, match=words):
      accounting.compute_epsilon(event, 1e-5, name, REPLACE)


@pytest.mark.parametrize('relation', [REPLACE, SPECIAL])
@pytest.mark.parametrize('name', UPPER_BOUNDS)
def test_ends_of_the_range(name, relation):
  nothing = [
    accounting.RandomizedResponseDpEvent(1.0, 5),
    accounting.RandomizedResponseDpEvent(0.0, 1),
    accounting.DiscreteLaplaceDpEvent(1.0, 0),
    accounting.PermuteAndFlipDpEvent(0.0),
  ]
  for event in nothing:
    assert accounting.compute_epsilon(event, 1e-5, name, relation) == 0
  for event in (
    accounting.RandomizedResponseDpEvent(0.0, 5),
    accounting.DiscreteLaplaceDpEvent(1e308, 1000),
  ):
    found = accounting.compute_epsilon(event, 1e-5, name, relation)
    assert found == math.inf
  for event in (
    accounting.RandomizedResponseDpEvent(1e-300, 5),
    accounting.RandomizedResponseDpEvent(1 - 1e-12, 10**15),
    accounting.RandomizedResponseDpEvent(0.5, 2**53),
    accounting.DiscreteLaplaceDpEvent(1e-300, 1),
    accounting.DiscreteLaplaceDpEvent(1e-12, 2**51),
    accounting.DiscreteLaplaceDpEvent(300.0, 2),
  ):
    found = accounting.compute_epsilon(event, 1e-5, name, relation)
    assert 0 <= found < math.inf or name == 'zcdp'


@pytest.mark.parametrize(
  ('event', 'relation', 'words'),
  [
    (accounting.RandomizedResponseDpEvent(0.5, 2), ADD, 'adds an answer'),
    (
      dp_accounting.PoissonSampledDpEvent(
        0.5, accounting.RandomizedResponseDpEvent(0.5, 2)
      ),
      SPECIAL,
      'randomized-response mechanism on a sample',
    ),
    (
      dp_accounting.SampledWithoutReplacementDpEvent(
        10, 5, accounting.RandomizedResponseDpEvent(0.5, 2)
      ),
      REPLACE,
      'randomized-response mechanism on a sample',
    ),
  ],
)
def test_what_is_not_proven_is_refused_by_name(event, relation, words):
  for name in accounting.accountant_names():
    with pytest.raises(dp_accounting.UnsupportedEventError, match=words):
      accounting.compute_epsilon(event, 1e-5, name, relation)


def test_calibration():
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-6)
  scale = accounting.calibrate_noise_multiplier(
    lambda scale: dp_accounting.SelfComposedDpEvent(
      accounting.DiscreteLaplaceDpEvent(1 / scale, 2), 5
    ),
    budget,
  )
  spent = dp_accounting.SelfComposedDpEvent(
    accounting.DiscreteLaplaceDpEvent(1 / scale, 2), 5
  )
  assert 0.998 < accounting.compute_epsilon(spent, 1e-6) <= 1
  # Truth, not noise, is what must not cost less.
  truth = accounting.calibrate_sampling_probability(
    lambda x: accounting.RandomizedResponseDpEvent(1 - x, 4),
    budget,
    neighboring_relation=REPLACE,
  )
  exact = math.expm1(1.0) / (math.expm1(1.0) + 4)
  assert truth == pytest.approx(exact, rel=2e-3)
