"""A log-linear model is the distribution of maximum entropy with marginals."""

import numpy as np
import pytest

from tfdpflows.mechanisms import marginals
from tfdpflows.tabular.models.log_linear import LogLinearModel


def _fitted(given, sizes, rounds=12, num_rows=1 << 15, seed=0):
  rng = np.random.default_rng(seed)
  columns = [np.full(s, 1 / s) for s in sizes]
  for group, p in given.items():
    for axis, j in enumerate(group):
      rest = tuple(i for i in range(len(group)) if i != axis)
      columns[j] = np.sum(p, rest)
  model = LogLinearModel(columns, rng, num_rows)
  for group, probabilities in given.items():
    model.set_marginal(group, probabilities)
  for number in range(rounds):
    model.fit(rate=min(1.0, 4 / (number + 1)))
  return model


def _truth():
  return np.random.default_rng(0).dirichlet(np.ones(27)).reshape(3, 3, 3)


def test_it_has_the_marginals_that_it_was_given():
  truth = _truth()
  given = {(0, 1): truth.sum(2), (1, 2): truth.sum(0), (2,): truth.sum((0, 1))}
  model = _fitted(given, [3] * 3)
  for group, probabilities in given.items():
    np.testing.assert_allclose(model.marginal(group), probabilities, atol=0.01)


def test_of_all_such_distributions_it_has_the_largest_entropy():
  """Columns 0 and 2 are independent given column 1."""
  truth = _truth()
  first, second = truth.sum(2), truth.sum(0)
  model = _fitted({(0, 1): first, (1, 2): second}, [3] * 3)
  middle = first.sum(0)
  expected = first[:, :, None] * second[None] / middle[None, :, None]
  np.testing.assert_allclose(model.marginal((0, 1, 2)), expected, atol=0.01)


def test_groups_may_overlap_in_a_circle():
  """No junction tree has these three as its cliques."""
  truth = _truth()
  given = {(0, 1): truth.sum(2), (1, 2): truth.sum(0), (0, 2): truth.sum(1)}
  model = _fitted(given, [3] * 3, rounds=30)
  for group, probabilities in given.items():
    np.testing.assert_allclose(model.marginal(group), probabilities, atol=0.01)


def test_marginals_that_disagree_do_not_drive_it_apart():
  """Both say that two columns are equal, and disagree about how often 1."""
  given = {(0, 1): np.diag([0.7, 0.3]), (1, 2): np.diag([0.3, 0.7])}
  model = _fitted(given, [2] * 3, rounds=60)
  assert 0.2 < model.marginal((1,))[0] < 0.8
  assert all(np.abs(t).max() < 30 for t in model._theta.values())


def test_impossible_combinations_vanish_and_may_come_back():
  equal = np.diag([0.5, 0.5])
  model = _fitted({(0, 1): equal}, [2, 2])
  assert np.mean(model.rows[:, 0] != model.rows[:, 1]) < 1e-3
  model.set_marginal((0, 1), np.full([2, 2], 0.25))
  for _ in range(20):
    model.fit()
  np.testing.assert_allclose(model.marginal((0, 1)), 0.25, atol=0.02)


@pytest.mark.parametrize('group', [(0,), (0, 1), (0, 1, 2)])
def test_marginals_are_those_of_its_rows(group):
  model = _fitted({}, [2, 3, 4], rounds=1, num_rows=1000)
  np.testing.assert_allclose(
    model.marginal(group),
    marginals.count(model.rows, [2, 3, 4], group) / 1000,
  )
  assert model.rows.min() >= 0
  assert (model.rows.max(0) == [1, 2, 3]).all()


def test_equal_seeds_give_equal_rows():
  given = {(0, 1): np.array([[0.4, 0.1], [0.2, 0.3]])}
  one, two = (_fitted(given, [2, 2], rounds=3, seed=5) for _ in range(2))
  np.testing.assert_array_equal(one.rows, two.rows)


def test_marginals_are_those_of_the_rows():
  model = LogLinearModel(
    [[0.2, 0.8], [0.1, 0.4, 0.5], [0.5, 0.5]], np.random.default_rng(0), 500
  )
  groups = [(0, 1), (2, 1), (0, 1, 2), (1,)]
  for group, found in zip(groups, model.marginals(groups)):
    wanted = marginals.count(model.rows, model.sizes, group) / 500
    assert (found == wanted).all()
    assert (model.marginal(group) == wanted).all()
