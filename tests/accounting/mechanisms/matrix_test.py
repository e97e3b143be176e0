"""Tree aggregation and matrix mechanisms: sensitivities by brute force."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event

from tfdpflows import accounting
from tfdpflows.accounting import mechanisms
from tfdpflows.accounting.mechanisms import matrix as streams

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
Tree = dp_event.SingleEpochTreeAggregationDpEvent


def tree_matrix(steps):
  """One row for each node that is complete after some step."""
  rows = []
  size = 1
  while size <= steps:
    for start in range(0, steps - size + 1, size):
      row = np.zeros(steps)
      row[start : start + size] = 1
      rows.append(row)
    size *= 2
  return np.array(rows)


def patterns(steps, b, k):
  for size in range(1, k + 1):
    for steps_of_row in itertools.combinations(range(steps), size):
      if all(y - x >= b for x, y in itertools.pairwise(steps_of_row)):
        yield list(steps_of_row)


def exact(matrix, b, k):
  """The largest norm over patterns, all contributions along one line.

  That is the sensitivity where no entry of C^T C is negative; else a number
  below it, as are those of random directions.
  """
  rng = np.random.default_rng(0)
  found = 0.0
  for pattern in patterns(len(matrix), b, k):
    columns = matrix[:, pattern]
    for signs in itertools.product((1, -1), repeat=len(pattern) - 1):
      moved = columns @ np.array([1, *signs])
      found = max(found, float(np.linalg.norm(moved)))
    directions = rng.normal(size=(len(pattern), 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    found = max(found, float(np.linalg.norm(columns @ directions)))
  return found


def toeplitz(coefficients, steps):
  matrix = np.zeros((steps, steps))
  for lag, c in enumerate(coefficients[:steps]):
    matrix += c * np.eye(steps, k=-lag)
  return matrix


def rows(matrix):
  return tuple(tuple(row[: t + 1]) for t, row in enumerate(matrix.tolist()))


@pytest.mark.parametrize('steps', [*range(1, 40), 63, 64, 65, 127, 128])
def test_depth_of_a_tree(steps):
  nodes = np.sum(tree_matrix(steps), axis=0)
  assert streams.tree_depth(steps) == np.max(nodes)


@pytest.mark.parametrize(
  ('counts', 'depth'), [(1, 1), (8, 4), ([3, 9, 2], 4), ((7,), 3), (10**6, 20)]
)
def test_trees_are_one_gaussian_release(counts, depth):
  for relation, factor in ((SPECIAL, 1), (REPLACE, 2)):
    plain = dp_accounting.GaussianDpEvent(10.0 / factor / math.sqrt(depth))
    for name in accounting.accountant_names():
      found = accounting.compute_epsilon(
        Tree(10.0, counts), 1e-5, name, relation
      )
      expected = accounting.compute_epsilon(plain, 1e-5, name)
      assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize('seed', range(12))
def test_matrices(seed):
  rng = np.random.default_rng(seed)
  steps = int(rng.integers(1, 8))
  matrix = np.tril(rng.normal(size=(steps, steps)))
  if seed % 3 == 0:
    matrix = np.abs(matrix)
  width = int(rng.integers(1, steps + 1))
  banded = np.triu(matrix, -(width - 1))
  for b in range(1, steps + 1):
    for k in range(1, steps + 1):
      found = streams.matrix_sensitivity(rows(matrix), b, k)
      assert exact(matrix, b, k) <= found
      if k == 1:
        norms = np.linalg.norm(matrix, axis=0)
        assert found == pytest.approx(np.max(norms), rel=1e-12)
      if width <= b:
        # Columns that a row moves have no entry in common.
        found = streams.matrix_sensitivity(rows(banded), b, k)
        true = exact(banded, b, k)
        assert true <= found <= true * (1 + 1e-12)
    everything = streams.matrix_sensitivity(rows(matrix), b, None)
    assert everything == streams.matrix_sensitivity(rows(matrix), b, steps)


@pytest.mark.parametrize('seed', range(12))
def test_toeplitz(seed):
  rng = np.random.default_rng(seed)
  steps = int(rng.integers(1, 8))
  length = int(rng.integers(1, steps + 3))
  signed = rng.normal(size=length)
  falling = np.sort(np.abs(signed))[::-1]
  for b in range(1, steps + 1):
    for k in range(1, steps + 1):
      for coefficients in (signed, falling):
        found = streams.toeplitz_sensitivity(tuple(coefficients), steps, b, k)
        true = exact(toeplitz(coefficients, steps), b, k)
        assert true <= found
        sharp = coefficients is falling or length <= b or k == 1
        if sharp:
          assert found <= true * (1 + 1e-12)
    assert streams.toeplitz_sensitivity(
      tuple(signed), steps, b, None
    ) == streams.toeplitz_sensitivity(tuple(signed), steps, b, steps)


def test_square_root_of_prefix_sums():
  # The coefficients of 1 / sqrt(1 - x); Fichtenberger, Henzinger and Upadhyay.
  coefficients = [1.0]
  for t in range(1, 1000):
    coefficients.append(coefficients[-1] * (2 * t - 1) / (2 * t))
  event = accounting.ToeplitzMechanismDpEvent(5.0, coefficients, 1000)
  norm = math.sqrt(math.fsum(c * c for c in coefficients))
  found = accounting.compute_epsilon(event, 1e-6, 'pld', SPECIAL)
  plain = dp_accounting.GaussianDpEvent(5.0 / norm)
  assert found == pytest.approx(accounting.compute_epsilon(plain, 1e-6))
  matrix = accounting.MatrixMechanismDpEvent(
    5.0, rows(toeplitz(coefficients, 200))
  )
  shorter = accounting.ToeplitzMechanismDpEvent(5.0, coefficients, 200)
  assert accounting.compute_epsilon(
    matrix, 1e-6, 'pld', SPECIAL
  ) == pytest.approx(accounting.compute_epsilon(shorter, 1e-6, 'pld', SPECIAL))
  # Four epochs of 250 steps, in the same order.
  epochs = accounting.ToeplitzMechanismDpEvent(5.0, coefficients, 1000, 250, 4)
  once = accounting.compute_epsilon(epochs, 1e-6, 'pld', SPECIAL)
  four = dp_accounting.GaussianDpEvent(5.0 / norm / 2)
  assert once > accounting.compute_epsilon(four, 1e-6)


def test_identity_is_the_gaussian_mechanism():
  event = accounting.MatrixMechanismDpEvent(3.0, [[1], [0, 1], [0, 0, 1]])
  for relation in (SPECIAL, REPLACE):
    for name in accounting.accountant_names():
      gaussian = dp_accounting.GaussianDpEvent(3.0)
      assert accounting.compute_epsilon(
        event, 1e-5, name, relation
      ) == pytest.approx(
        accounting.compute_epsilon(gaussian, 1e-5, name, relation)
      )


def test_scale_does_not_leave_the_range_of_floats():
  for scale in (1e-200, 1e200):
    found = streams.matrix_sensitivity(((scale,), (scale, scale)), 1, 2)
    assert found == pytest.approx(scale * math.sqrt(5))
    found = streams.toeplitz_sensitivity((scale, scale), 2, 1, 2)
    assert found == pytest.approx(scale * math.sqrt(5))
  assert streams.matrix_sensitivity(((0.0,),)) == 0
  event = accounting.ToeplitzMechanismDpEvent(1.0, [0.0], 5)
  assert accounting.compute_epsilon(event, 1e-5, 'pld', SPECIAL) == 0


@pytest.mark.parametrize(
  ('event', 'words'),
  [
    (Tree(-1.0, 4), 'noise_multiplier'),
    (Tree(1.0, []), 'step_counts'),
    (Tree(1.0, [4, -1]), 'step_counts'),
    (Tree(1.0, 4.5), 'step_counts'),
    (accounting.MatrixMechanismDpEvent(1.0, []), 'strategy has 0 rows'),
    (accounting.MatrixMechanismDpEvent(1.0, [[1, 2], [0, 1]]), 'Row 0'),
    (accounting.MatrixMechanismDpEvent(1.0, [[1], [1]]), 'Row 1'),
    (accounting.MatrixMechanismDpEvent(1.0, [[math.nan]]), 'finite'),
    (accounting.MatrixMechanismDpEvent(1.0, [[1]], 0), 'min_separation'),
    (accounting.MatrixMechanismDpEvent(1.0, [[1]], 1, 0), 'max_particip'),
    (accounting.ToeplitzMechanismDpEvent(1.0, [], 5), 'coefficients'),
    (accounting.ToeplitzMechanismDpEvent(1.0, [math.inf], 5), 'coefficients'),
    (accounting.ToeplitzMechanismDpEvent(1.0, [1], 0), 'steps'),
    (accounting.ToeplitzMechanismDpEvent(1.0, [1], 2.5), 'steps'),
  ],
)
def test_parameters_out_of_range_are_named(event, words):
  for name in accounting.accountant_names():
    with pytest.raises(ValueError, match=words):
      accounting.compute_epsilon(event, 1e-5, name, SPECIAL)


@pytest.mark.parametrize(
  'event',
  [
    Tree(4.0, [8, 8]),
    accounting.MatrixMechanismDpEvent(4.0, [[1], [0.5, 1]]),
    accounting.ToeplitzMechanismDpEvent(4.0, [1, 0.5], 10),
  ],
)
def test_what_is_not_proven_is_refused_by_name(event):
  for name in accounting.accountant_names():
    with pytest.raises(dp_accounting.UnsupportedEventError, match='stream'):
      accounting.compute_epsilon(event, 1e-5, name, ADD)
    for relation in (REPLACE, SPECIAL):
      for sampled in (
        dp_accounting.PoissonSampledDpEvent(0.5, event),
        dp_accounting.SampledWithoutReplacementDpEvent(
          10, 5, dp_accounting.ComposedDpEvent([event, event])
        ),
      ):
        with pytest.raises(
          dp_accounting.UnsupportedEventError, match='on a sample'
        ):
          accounting.compute_epsilon(sampled, 1e-5, name, relation)


@pytest.mark.parametrize(
  ('noise', 'counts', 'count', 'rdp'),
  # dp_accounting 0.6.0, rdp, which is its only accountant of trees.
  [
    (14.6, [2, 8], 5, 1.4222661384305257),
    (2.36, [2, 1000], 20, 48.003942313835),
    (24.7, [100, 7], 5, 1.0918545702101552),
  ],
)
def test_beside_dp_accounting(noise, counts, count, rdp):
  event = dp_accounting.SelfComposedDpEvent(Tree(noise, counts), count)
  found = accounting.compute_epsilon(event, 1e-6, 'rdp', SPECIAL)
  assert found == pytest.approx(rdp, rel=1e-9)
  assert accounting.compute_epsilon(event, 1e-6, 'pld', SPECIAL) < 0.96 * rdp


def cyclic(q, parts, event):
  return accounting.CyclicPoissonSampledDpEvent(q, parts, event)


@pytest.mark.parametrize('relation', [ADD, REPLACE, SPECIAL])
def test_banded_strategies_are_amplified(relation):
  banded = accounting.ToeplitzMechanismDpEvent(4.0, [0.6, 0.8], 100)
  step = dp_accounting.PoissonSampledDpEvent(
    0.05, dp_accounting.GaussianDpEvent(4.0)
  )
  for parts, count in ((2, 50), (3, 34), (200, 1)):
    plain = dp_accounting.SelfComposedDpEvent(step, count)
    for name in ('pld', 'rdp', 'basic', 'advanced', 'gdp'):
      assert accounting.compute_epsilon(
        cyclic(0.05, parts, banded), 1e-5, name, relation
      ) == pytest.approx(
        accounting.compute_epsilon(plain, 1e-5, name, relation), rel=1e-9
      )
  full = accounting.MatrixMechanismDpEvent(4.0, rows(toeplitz([0.6, 0.8], 100)))
  assert accounting.compute_epsilon(
    cyclic(0.05, 2, full), 1e-5, 'pld', relation
  ) == pytest.approx(
    accounting.compute_epsilon(cyclic(0.05, 2, banded), 1e-5, 'pld', relation)
  )
  unamplified = mechanisms.without_amplification(cyclic(0.05, 2, banded))
  assert accounting.compute_epsilon(
    unamplified, 1e-5, 'pld', relation
  ) == pytest.approx(
    accounting.compute_epsilon(
      dp_accounting.GaussianDpEvent(4.0 / math.sqrt(50)), 1e-5, 'pld', relation
    )
  )


@pytest.mark.parametrize('matrix', [False, True])
def test_banded_outputs_by_simulation(matrix):
  # Steps 0 to 5, two bands, two parts, of which the row is in the first.
  coefficients, sigma, q = (1.0, 0.7), 1.1, 0.3
  c = toeplitz(coefficients, 6)
  event = accounting.ToeplitzMechanismDpEvent(sigma, coefficients, 6)
  if matrix:
    event = accounting.MatrixMechanismDpEvent(sigma, rows(c))
  made = accounting.create_accountant('pld', SPECIAL)
  made.compose(cyclic(q, 2, event))
  rng = np.random.default_rng(1)
  coins = list(itertools.product((0, 1), repeat=3))
  weights = [q ** sum(x) * (1 - q) ** (3 - sum(x)) for x in coins]
  means = np.array([c[:, [0, 2, 4]] @ np.array(x) for x in coins])
  number = 400_000

  def losses(drawn):
    y = sigma * rng.normal(size=(number, 6))
    if drawn:
      y += means[rng.choice(len(coins), size=number, p=weights)]
    ratios = (y @ means.T - np.sum(means**2, axis=1) / 2) / sigma**2
    return np.log(np.exp(ratios) @ np.array(weights))

  with_row, without = losses(True), -losses(False)
  for epsilon in (0.0, 0.3, 0.8):
    claimed = made.get_delta(epsilon)
    found = []
    for loss in (with_row, without):
      gains = np.maximum(-np.expm1(epsilon - loss), 0)
      error = 5 * np.std(gains) / math.sqrt(number)
      assert np.mean(gains) <= claimed + error
      found.append(np.mean(gains) + error)
    assert claimed <= 1.02 * max(found)


@pytest.mark.parametrize(
  ('event', 'error', 'words'),
  [
    (
      cyclic(0.1, 1, accounting.ToeplitzMechanismDpEvent(4.0, [1, 0.5], 9)),
      ValueError,
      '2 bands.*1',
    ),
    (
      cyclic(0.1, 2, accounting.MatrixMechanismDpEvent(4.0, rows(np.tri(3)))),
      ValueError,
      '3 bands.*2',
    ),
    (
      cyclic(1.1, 2, accounting.ToeplitzMechanismDpEvent(4.0, [1, 0.5], 9)),
      ValueError,
      'sampling_probability',
    ),
    (
      cyclic(0.1, 2.5, accounting.ToeplitzMechanismDpEvent(4.0, [1, 0.5], 9)),
      ValueError,
      'parts',
    ),
    (
      cyclic(0.1, 2, dp_accounting.GaussianDpEvent(4.0)),
      dp_accounting.UnsupportedEventError,
      'only matrix mechanisms',
    ),
    (
      dp_accounting.PoissonSampledDpEvent(
        0.5,
        cyclic(0.1, 2, accounting.ToeplitzMechanismDpEvent(4.0, [1, 0.5], 9)),
      ),
      dp_accounting.UnsupportedEventError,
      'on a sample',
    ),
  ],
)
def test_parts_that_are_not_taken(event, error, words):
  with pytest.raises(error, match=words):
    accounting.compute_epsilon(event, 1e-5, 'pld', SPECIAL)


def test_bands_of_zeros_are_no_bands():
  event = accounting.ToeplitzMechanismDpEvent(4.0, [1, 0.5, 0.0, 0.0], 9)
  accounting.compute_epsilon(cyclic(0.1, 2, event), 1e-5, 'pld', SPECIAL)
  nothing = accounting.ToeplitzMechanismDpEvent(4.0, [0.0], 9)
  assert (
    accounting.compute_epsilon(cyclic(0.1, 2, nothing), 1e-5, 'pld', ADD) == 0
  )


def test_calibration():
  budget = accounting.PrivacyBudget(epsilon=2.0, delta=1e-6)
  for make in (
    lambda noise: Tree(noise, [100] * 3),
    lambda noise: accounting.ToeplitzMechanismDpEvent(noise, [1, 0.5], 100),
  ):
    noise = accounting.calibrate_noise_multiplier(
      make, budget, neighboring_relation=SPECIAL
    )
    found = accounting.compute_epsilon(make(noise), 1e-6, 'pld', SPECIAL)
    assert 1.99 < found <= 2
