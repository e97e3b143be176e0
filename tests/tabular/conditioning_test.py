"""Conditional rows against the conditionals of a density that can be listed."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfdpflows import flows
from tfdpflows.tabular import Field, TableEncoder, TableSchema, conditioning
from tfdpflows.tabular.density import TableDensity

SCHEMA = TableSchema(
  [
    Field('a', 'string', enum=('x', 'y', 'z')),
    Field('b', 'integer', minimum=1, maximum=4, required=True),
    Field('c', 'number', minimum=0, maximum=8),
  ]
)
COLUMNS = TableEncoder(SCHEMA).columns


@pytest.fixture(scope='module')
def density():
  latent = flows.neural_spline_flow(3, 2, (8,), num_bins=4, seed=0)
  rng = np.random.default_rng(2)
  for v in latent.trainable_variables:
    v.assign_add(tf.constant(rng.normal(size=v.shape) * 0.12, v.dtype))
  edges = [np.arange(5.0), np.arange(5.0), [0, 4, 8, COLUMNS[2].size]]
  probabilities = [[0.4, 0.3, 0.2, 0.1], [1, 1, 1, 1], [0.5, 0.4, 0.1]]
  marginals = [
    {'edges': e, 'probabilities': p} for e, p in zip(edges, probabilities)
  ]
  return TableDensity(COLUMNS, marginals, latent)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
  """A weight of a row from half as many points."""
  monkeypatch.setattr(conditioning, '_DRAWS', 16)


def _codes(**conditions):
  return conditioning.encode_conditions(SCHEMA, conditions)


def _sample(density, num_rows, **conditions):
  rng = np.random.default_rng(0)
  return conditioning.sample(
    density, COLUMNS, num_rows, _codes(**conditions), rng
  )


@pytest.fixture(scope='module')
def rows(density):
  return density.sample(60_000, np.random.default_rng(5))


def _shares(rows):
  every = itertools.product(range(4), range(4))
  cells = np.floor(rows[:, :2])
  return np.array([(cells == cell).all(1).mean() for cell in every])


@pytest.mark.core
def test_rows_that_agree_are_exact(density, rows):
  found = _sample(density, 4000, a='y')
  assert found.method == 'exact' and found.effective == 4000
  assert found.codes.shape == (4000, 3)
  assert set(np.floor(found.codes[:, 0])) == {1.0}
  np.testing.assert_allclose(
    _shares(found.codes), _shares(rows[np.floor(rows[:, 0]) == 1]), atol=0.03
  )
  found = _sample(density, 100, a='y', c=None)
  assert found.method == 'exact' and set(np.floor(found.codes[:, 0])) == {1.0}
  assert found.codes[:, 2].min() >= 8


def test_importance_agrees_with_exact_rows(density, rows, monkeypatch):
  monkeypatch.setattr(conditioning, '_reject', lambda *_: None)
  y, few = np.floor(rows[:, 0]) == 1, rows[:, 2] < 4
  for conditions, agree in (({'a': 'y'}, y), ({'a': 'y', 'b': 4}, None)):
    found = _sample(density, 4000, **conditions)
    assert found.method == 'importance' and found.effective > 1000
    if agree is None:
      agree = y & (np.floor(rows[:, 1]) == 3)
    shares = _shares(rows[agree])
    np.testing.assert_allclose(_shares(found.codes), shares, atol=0.03)
    share = np.mean(found.codes[:, 2] < 4)
    assert share == pytest.approx(few[agree].mean(), abs=0.03)


def test_values_of_continuous_columns_are_by_importance(density, rows):
  found = _sample(density, 4000, c=2.5)
  assert found.method == 'importance'
  np.testing.assert_array_equal(found.codes[:, 2], 2.5)
  near = np.abs(rows[:, 2] - 2.5) < 0.25
  np.testing.assert_allclose(
    _shares(found.codes), _shares(rows[near]), atol=0.05
  )


def test_rare_rows_are_not_rejected_for(density, monkeypatch):
  calls = []

  def never(num_rows, rng):
    calls.append(num_rows)
    return np.zeros([num_rows, 3], np.float32)

  monkeypatch.setattr(density, 'sample', never)
  wanted = {0: (1.0, 2.0)}
  rng = np.random.default_rng(0)
  assert conditioning._reject(density, wanted, 10, rng) is None
  assert len(calls) == conditioning._TRIED


def test_few_effective_rows_are_warned_of(density, monkeypatch):
  monkeypatch.setattr(
    conditioning, '_log_weights', lambda d, rows, *_: 4000 * rows[:, 0]
  )
  with pytest.warns(UserWarning, match='worth about .* independent ones'):
    found = _sample(density, 100, c=2.5)
  assert found.codes.shape == (100, 3)


@pytest.mark.parametrize(
  ('conditions', 'message'),
  [
    ({'d': 1}, r"column 'd'; the schema has \['a', 'b', 'c'\]"),
    (
      {'a': 'w'},
      "condition 'a': 'w' .* schema: 'w' is not in the enum. "
      "It has 'x', 'y', 'z'.$",
    ),
    ({'b': 7}, "condition 'b': 7 is outside"),
    ({'b': None}, "condition 'b': None is outside"),
    ({'c': 8.5}, "condition 'c': 8.5 is outside"),
    ({'c': float('inf')}, "condition 'c': inf is outside"),
  ],
)
def test_conditions_outside_of_the_schema(conditions, message):
  with pytest.raises(ValueError, match=message):
    _codes(**conditions)


def test_codes_of_conditions():
  assert _codes(a='z', b=2) == {0: 2.0, 1: 1.0}
  assert _codes(a=None) == {0: 3.0}
  assert COLUMNS[2].value_size < _codes(c=None)[2] < COLUMNS[2].size
