"""Distances of densities, and theorems checked on laws of finite sets."""

import math

import numpy as np
import pytest

from tfdpflows import expm


def mechanisms(rng, epsilon, tables=6, outcomes=5):
  """A mechanism for some tables, each of which is a neighbour of all others."""
  logs = rng.uniform(-epsilon / 4, epsilon / 4, [tables, outcomes])
  return logs - np.log(np.sum(np.exp(logs), 1, keepdims=True))


def privacy(logs):
  return max(np.max(np.abs(logs - other)) for other in logs)


def test_distance():
  log_p = np.log([0.2, 0.3, 0.5])
  log_q = np.log([0.3, 0.3, 0.4])
  expected = math.log(1.5)
  assert math.isclose(expm.dp_distance(log_p, log_q), expected)
  assert math.isclose(expm.dp_distance(log_q, log_p), expected)
  assert expm.dp_distance(log_p, log_p) == 0
  found = expm.dp_distance(log_p + 3, log_q - 2, normalize=True)
  assert math.isclose(found, expected)
  found = expm.dp_distance(log_p, log_q, lipschitz=2.0, radius=0.25)
  assert math.isclose(found, expected + 0.5)


def test_densities_that_vanish():
  none, half = [-math.inf, 0.0], [math.log(0.5)] * 2
  assert expm.dp_distance(none, half) == math.inf
  assert expm.dp_distance(none, none) == 0
  assert expm.dp_distance(none, none, normalize=True) == 0


def test_a_lipschitz_bound_is_above_the_supremum():
  points = np.linspace(-2, 2, 9)
  log_p, log_q = (lambda x: np.sin(3 * x)), (lambda x: 0.5 * x)
  radius = 0.25
  fine = np.linspace(-2.25, 2.25, 10_001)
  truth = np.abs(log_p(fine) - log_q(fine)).max()
  below = expm.dp_distance(log_p(points), log_q(points))
  above = expm.dp_distance(
    log_p(points), log_q(points), lipschitz=3.5, radius=radius
  )
  assert below <= truth <= above


def test_the_triangle_inequality():
  rng = np.random.default_rng(0)
  for _ in range(50):
    a, b, c = mechanisms(rng, 4.0, 3)
    assert expm.dp_distance(a, c) <= (
      expm.dp_distance(a, b) + expm.dp_distance(b, c) + 1e-12
    )


@pytest.mark.parametrize('seed', range(10))
def test_theorems(seed):
  rng = np.random.default_rng(seed)
  a, b = mechanisms(rng, 1.0), mechanisms(rng, 2.0)
  # Near for every table.
  near = a + rng.uniform(-0.2, 0.2, a.shape)
  near -= np.log(np.sum(np.exp(near), 1, keepdims=True))
  eta = max(map(expm.dp_distance, a, near))
  assert privacy(near) <= expm.epsilon_of_close(privacy(a), eta)
  # Between them: not normalized, which the theorem does not need.
  weight = rng.uniform(size=a.shape)
  between = weight * a + (1 - weight) * b
  distance = max(map(expm.dp_distance, a, b))
  bound = expm.epsilon_of_squeezed(privacy(a), privacy(b), distance)
  assert privacy(between) <= bound
  for fixed in (0.0, 0.3, 1.0):
    mixture = np.log(fixed * np.exp(a) + (1 - fixed) * np.exp(b))
    assert privacy(mixture) <= expm.epsilon_of_mixture(
      privacy(a), privacy(b)
    ) * (1 + 1e-12)


def test_a_weight_of_each_table_is_not_covered():
  # Two mechanisms that ignore the table; which one is used does not.
  a, b = np.log([[0.9, 0.1]] * 2), np.log([[0.1, 0.9]] * 2)
  assert privacy(a) == privacy(b) == 0
  chosen = np.stack([a[0], b[1]])
  assert privacy(chosen) > expm.epsilon_of_mixture(0.0, 0.0) + 2


@pytest.mark.parametrize(
  ('log_p', 'log_q', 'kwargs', 'match'),
  [
    ([0.0], [0.0, 1.0], {}, 'shape'),
    ([], [], {}, 'not empty'),
    ([math.nan], [0.0], {}, 'NaN'),
    ([0.0], [math.inf], {}, 'inf'),
    ([-math.inf], [0.0], {'normalize': True}, 'zero everywhere'),
    ([0.0], [0.0], {'lipschitz': -1.0}, 'lipschitz'),
    ([0.0], [0.0], {'radius': math.nan}, 'radius'),
  ],
)
def test_bad_input(log_p, log_q, kwargs, match):
  with pytest.raises(ValueError, match=match):
    expm.dp_distance(log_p, log_q, **kwargs)


@pytest.mark.parametrize('bad', [-1.0, math.nan])
def test_bad_epsilons(bad):
  for function, count in (
    (expm.epsilon_of_close, 2),
    (expm.epsilon_of_squeezed, 3),
    (expm.epsilon_of_mixture, 2),
  ):
    for place in range(count):
      arguments = [1.0] * count
      arguments[place] = bad
      with pytest.raises(ValueError, match='zero or more'):
        function(*arguments)


def test_lipschitz_bounds_need_densities():
  p, q = np.zeros(3), np.ones(3)
  with pytest.raises(ValueError, match='normalize'):
    expm.dp_distance(p, q, normalize=True, lipschitz=0.5, radius=0.1)
  with pytest.raises(ValueError, match='zero at a point'):
    expm.dp_distance(p, [0.0, 1.0, -np.inf], lipschitz=0.5, radius=0.1)
