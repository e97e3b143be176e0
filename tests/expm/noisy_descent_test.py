"""Noisy descents: claims against chains whose densities are computed."""

import dataclasses
import itertools
import math

import dp_accounting
import numpy as np
import pytest
from scipy import special, stats

from tests.grids import thinned
from tfdpflows import accounting, expm
from tfdpflows.accounting.mechanisms import gaussian_profile

EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0)
DESCENT = expm.NoisyDescent(
  sensitivity=1.0,
  strong_convexity=0.5,
  smoothness=1.5,
  step_size=0.4,
  noise_std=2.0,
  steps=7,
)


def profile(upper, lower):
  return np.array(
    [np.sum(np.maximum(upper - math.exp(x) * lower, 0)) for x in EPSILONS]
  )


def claim(mu):
  return np.exp([gaussian_profile.log_delta_at(x, mu) for x in EPSILONS])


def slope(points, rows, regularization):
  """Derivative of logistic losses, each of curvature 1/4 at most."""
  total = regularization * points
  for row in rows:
    total = total - row * special.expit(-row * points)
  return total


def chain(descent, rows):
  """Masses of the last point on a grid, and the grid."""
  spread = descent.step_size * descent.noise_std
  steps = min(descent.steps, 2 / (1 - descent.contraction))
  reach = 9 * spread * math.sqrt(steps) + 4
  grid = np.linspace(-reach, reach, 1201)
  width = grid[1] - grid[0]
  assert width < spread / 4
  size, convexity = descent.step_size, descent.strong_convexity
  moved = grid - size * slope(grid, rows, convexity)
  kernel = stats.norm.pdf(grid[:, None], moved, spread) * width
  start = -size * slope(np.zeros(1), rows, convexity)
  masses = stats.norm.pdf(grid, start, spread) * width
  for _ in range(descent.steps - 1):
    masses = kernel @ masses
  assert masses.sum() == pytest.approx(1, abs=1e-6)
  return masses, grid


@pytest.mark.parametrize(
  ('step_size', 'steps'),
  thinned(
    itertools.product([0.1, 1.2, 0.6], [1, 7, 40, 2]),
    # Each number of steps, with steps of either size.
    lambda point: point in ((1.2, 1), (0.1, 7), (1.2, 40)),
  ),
)
def test_claim_holds_for_chains_on_the_line(steps, step_size):
  descent = dataclasses.replace(DESCENT, steps=steps, step_size=step_size)
  for rest in ([], [1.0, 1.0], [-1.0, 0.5]):
    for row in (1.0, -1.0):
      tables = chain(descent, rest)[0], chain(descent, [*rest, row])[0]
      for pair in (tables, tables[::-1]):
        assert np.all(profile(*pair) <= claim(descent.mu) + 1e-6)


@pytest.mark.parametrize('steps', [1, 3, 50])
@pytest.mark.parametrize('step_size', [0.05, 0.7, 1.3])
def test_is_reached_by_squares(steps, step_size):
  """With F = h x^2 / 2, and G x added or not, the points are normal.

  The last one moves by a sum of powers of |1 - step_size h|, and h is m or M.
  """
  descent = dataclasses.replace(DESCENT, steps=steps, step_size=step_size)
  c = max(abs(1 - step_size * h) for h in (0.5, 1.5))
  assert descent.contraction == pytest.approx(c)
  powers = c ** np.arange(steps)
  shift = step_size * powers.sum()
  spread = step_size * 2.0 * math.sqrt((powers**2).sum())
  assert shift / spread <= descent.mu <= shift / spread * (1 + 1e-6)
  assert descent.mu <= math.sqrt(steps) / 2 * (1 + 1e-8)


def test_cost_is_bounded_in_steps():
  many = dataclasses.replace(DESCENT, steps=10**9)
  c = many.contraction
  assert many.mu == pytest.approx(0.5 * math.sqrt((1 + c) / (1 - c)))
  assert many.event == dp_accounting.GaussianDpEvent(1 / many.mu)


@pytest.mark.parametrize('regularization', [0.3, 2.0])
def test_samples_of_the_density_are_no_further_apart(regularization):
  grid = np.linspace(-60, 60, 100_001)

  def masses(rows):
    loss = regularization * grid**2 / 2
    for row in rows:
      loss = loss - special.log_expit(row * grid)
    return special.softmax(-loss)

  mu = expm.exponential_mechanism_mu(1.0, regularization)
  twice = expm.exponential_mechanism_mu(2.0, regularization)
  for rest in ([], [1.0] * 5, [-1.0, 0.5], [1.0] * 40):
    for one in (1.0, -1.0, 0.5):
      tables = masses(rest), masses([*rest, one])
      for pair in (tables, tables[::-1]):
        assert np.all(profile(*pair) <= claim(mu) + 1e-9)
      exchanged = tables[1], masses([*rest, -one])
      assert np.all(profile(*exchanged) <= claim(twice) + 1e-9)


def test_langevin_chain_costs_at_most_what_a_sample_does():
  sample = expm.exponential_mechanism_mu(1.0, 0.5)
  for step_size in (1e-4, 0.1, 0.6):
    langevin = dataclasses.replace(
      DESCENT,
      step_size=step_size,
      noise_std=math.sqrt(2 / step_size),
      steps=10**8,
    )
    assert langevin.inverse_temperature == pytest.approx(1)
    assert langevin.mu <= sample * (1 + 1e-8)
    if step_size == 1e-4:
      assert langevin.mu == pytest.approx(sample, rel=1e-3)


def test_settles_at_the_density():
  descent = dataclasses.replace(
    DESCENT, step_size=0.05, noise_std=math.sqrt(40), steps=400
  )
  masses, grid = chain(descent, [1.0, 1.0])
  loss = 0.25 * grid**2 - 2 * special.log_expit(grid)
  assert np.abs(masses - special.softmax(-loss)).sum() / 2 < 0.02


def test_frozen_noise_keeps_neighbours_near():
  rows = np.random.default_rng(0).uniform(-1, 1, 4)
  gradient = lambda rows: lambda x: slope(x, rows, 0.5)
  ends = [
    DESCENT.run(gradient(some), np.zeros(1), np.random.default_rng(1))
    for some in (rows, rows[:-1])
  ]
  c = DESCENT.contraction
  reach = DESCENT.step_size * (1 - c**7) / (1 - c)
  assert 0 < abs(ends[0] - ends[1]) <= reach


def test_noise_is_that_of_the_claim():
  ends = [
    DESCENT.run(lambda x: 0.5 * x, np.zeros(2000), np.random.default_rng(seed))
    for seed in range(3)
  ]
  c = 1 - 0.4 * 0.5
  spread = 0.8 * math.sqrt((1 - c**14) / (1 - c**2))
  assert np.std(ends) == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'step_size': 1.4}, 'below 2 / smoothness'),
    ({'smoothness': 0.4}, 'below the strong convexity'),
    ({'steps': 0}, 'steps'),
    ({'noise_std': 0.0}, 'noise_std'),
    ({'noise_std': math.nan}, 'noise_std'),
    ({'sensitivity': -1.0}, 'sensitivity'),
    ({'strong_convexity': 0.0}, 'strong_convexity'),
  ],
)
def test_refuses(change, words):
  with pytest.raises(ValueError, match=words):
    dataclasses.replace(DESCENT, **change)


def test_replaced_row_counts_twice():
  relation = dp_accounting.NeighboringRelation.REPLACE_ONE
  found = accounting.compute_epsilon(DESCENT.event, 1e-5, 'pld', relation)
  whole = dp_accounting.GaussianDpEvent(0.5 / DESCENT.mu)
  assert found == pytest.approx(accounting.compute_epsilon(whole, 1e-5))
