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


class _Plain:
  """The same model row by row, as its formulas have it."""

  def __init__(self, probabilities, rng, num_rows):
    self.sizes = [len(p) for p in probabilities]
    self.rng = rng
    self.given = {(j,): p for j, p in enumerate(probabilities)}
    self.theta = {(j,): np.log(p) for j, p in enumerate(probabilities)}
    self.rows = np.stack(
      [rng.choice(len(p), num_rows, p=p) for p in probabilities], 1
    )

  def cells(self, group):
    return np.ravel_multi_index(
      tuple(self.rows[:, j] for j in group),
      tuple(self.sizes[j] for j in group),
    )

  def set_marginal(self, group, p):
    self.given[group] = p
    self.theta.setdefault(group, np.zeros(p.shape))

  def fit(self, rate):
    n = len(self.rows)
    added, weights = 10.0 / n, np.full(n, 1 / n)
    cells = {g: self.cells(g) for g in self.given}
    moved = {g: np.zeros(p.size) for g, p in self.given.items()}
    for _ in range(5):
      furthest = 0.0
      for g, p in self.given.items():
        share = np.bincount(cells[g], weights, p.size)
        furthest = max(furthest, np.abs(p.ravel() - share).sum())
        ratio = np.log((p.ravel() + added) / (share + added))
        move = np.clip(moved[g] + ratio, -1.5, 1.5)
        weights *= np.exp(move - moved[g])[cells[g]]
        weights /= weights.sum()
        moved[g] = move
      if furthest < 1e-3:
        break
    for g, move in moved.items():
      self.theta[g] += rate * move.reshape(self.theta[g].shape)
    weights **= rate
    weights /= weights.sum()
    places = (np.arange(n) + self.rng.random()) / n
    chosen = np.searchsorted(np.cumsum(weights), places)
    self.rows = self.rows[np.minimum(chosen, n - 1)]
    for j in self.rng.permutation(len(self.sizes)):
      self.draw(j)

  def draw(self, j):
    logits = np.zeros([len(self.rows), self.sizes[j]], np.float32)
    for group, theta in self.theta.items():
      if j in group:
        others = [i for i in group if i != j]
        table = np.moveaxis(theta, group.index(j), -1)
        table = table.reshape(-1, self.sizes[j]).astype(np.float32)
        logits += table[self.cells(others)] if others else table
    logits -= logits.max(1, keepdims=True)
    upto = np.cumsum(np.exp(logits), 1)
    place = self.rng.random(len(upto), np.float32) * upto[:, -1]
    drawn = (upto <= place[:, None]).sum(1)
    self.rows[:, j] = np.minimum(drawn, self.sizes[j] - 1)


def test_column_by_column_it_has_the_same_rows_to_the_last_bit():
  rng = np.random.default_rng(0)
  sizes = [2, 5, 3, 16, 4, 1]
  probabilities = [rng.dirichlet(np.full(k, 2.0)) for k in sizes]
  one = LogLinearModel(probabilities, np.random.default_rng(1), 5000)
  two = _Plain(probabilities, np.random.default_rng(1), 5000)
  for rate, group in zip((1, 1, 1, 0.5), [(0, 1), (3, 2), (1, 2, 4), (0, 1)]):
    shape = [sizes[j] for j in group]
    given = rng.dirichlet(np.ones(np.prod(shape))).reshape(shape)
    for model in (one, two):
      model.set_marginal(group, given)
      model.fit(rate)
    np.testing.assert_array_equal(one.rows, two.rows)
  for seed in range(3):
    np.testing.assert_array_equal(
      one.batch(np.random.default_rng(seed), 50),
      np.random.default_rng(seed).choice(two.rows, 50),
    )


def test_a_lazy_model_has_the_marginals_and_leaves_other_columns():
  rng = np.random.default_rng(0)
  sizes = [3, 4, 2, 5, 3]
  probabilities = [rng.dirichlet(np.full(k, 3.0)) for k in sizes]
  model = LogLinearModel(probabilities, rng, 1 << 14, lazy=True)
  given = {(0, 3): rng.dirichlet(np.ones(15)).reshape(3, 5)}
  given[(3, 4)] = given[0, 3].sum(0)[:, None] * rng.dirichlet(np.ones(3), 5)
  before = model.rows.copy()
  for group, p in given.items():
    for place, j in enumerate(group):
      model.set_marginal((j,), p.sum(1 - place))
    model.set_marginal(group, p)
  for number in range(12):
    model.fit(1 / max(number - 5, 1))
  for group, p in given.items():
    np.testing.assert_allclose(model.marginal(group), p, atol=0.02)
  np.testing.assert_array_equal(model.rows[:, [1, 2]], before[:, [1, 2]])
  # What nothing connects is a product, and has no error of sampling.
  one, two, three = model.marginals([(1, 2), (4, 1), (0, 1, 3)])
  np.testing.assert_allclose(one, np.outer(probabilities[1], probabilities[2]))
  np.testing.assert_allclose(
    two, np.outer(model.marginal([4]), probabilities[1])
  )
  wanted = np.einsum('ac,b->abc', model.marginal([0, 3]), probabilities[1])
  np.testing.assert_allclose(three, wanted)
  model.redraw_others()
  assert (model.rows[:, [1, 2]] != before[:, [1, 2]]).any()
  found = np.bincount(model.rows[:, 1]) / (1 << 14)
  np.testing.assert_allclose(found, probabilities[1], atol=0.02)


def test_of_more_rows_the_error_of_sampling_is_smaller():
  truth = _truth()
  given = {(0, 1): truth.sum(2), (1, 2): truth.sum(0), (0, 2): truth.sum(1)}
  model = _fitted(given, [3] * 3, rounds=12, num_rows=2048)
  before = model.marginal((0, 1, 2))
  model.grow(1 << 16)
  np.testing.assert_allclose(model.marginal((0, 1, 2)), before)
  for number in range(12):
    model.fit(rate=1 / (number + 1))
  assert model.rows.shape == (1 << 16, 3)
  for group, probabilities in given.items():
    np.testing.assert_allclose(model.marginal(group), probabilities, atol=5e-3)
