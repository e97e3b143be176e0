"""Errors of marginals and of range queries, and scores of regressors."""

import numpy as np
import pandas as pd
import pytest

from tfdpflows import evaluation
from tfdpflows.evaluation import query_errors
from tfdpflows.tabular import Field
from tfdpflows.tabular.schema import TableSchema

SCHEMA = TableSchema(
  [
    Field('age', 'integer', 0, 99),
    Field('income', 'number', 0.0, 500.0, required=True),
    Field('city', 'string', enum=('a', 'b', 'c')),
    Field('member', 'boolean', required=True),
  ]
)


def table(n=4000, seed=0):
  rng = np.random.default_rng(seed)
  age = rng.integers(20, 60, n)
  frame = pd.DataFrame(
    {
      'age': pd.array(age, 'Int64'),
      'income': 5.0 * age + rng.uniform(0, 50, n),
      'city': np.array(['a', 'b', 'c'])[age % 3],
      'member': age > 40,
    }
  )
  frame.loc[::9, 'age'] = pd.NA
  frame.loc[::7, 'city'] = None
  return frame


def shuffled(frame):
  rng = np.random.default_rng(1)
  return frame.apply(lambda c: c.to_numpy()[rng.permutation(len(c))])


class TestMarginalErrors:
  def test_every_marginal_of_an_order(self):
    real = table()
    for order, count in ((1, 4), (2, 6), (3, 4), (4, 1)):
      errors = evaluation.marginal_errors(real, real, SCHEMA, order)
      assert len(errors) == count
      assert set(errors.values()) == {0.0}
      assert all(len(names) == order for names in errors)

  def test_agrees_with_a_cross_table(self):
    real, other = table(), shuffled(table(seed=1))
    error = evaluation.marginal_errors(real, other, SCHEMA)['city', 'member']
    shares = [
      pd.crosstab(f['city'].fillna('-'), f['member'], normalize=True)
      for f in (real, other)
    ]
    expected = (shares[0] - shares[1]).abs().to_numpy().sum() / 2
    assert error == pytest.approx(expected)

  def test_shuffling_leaves_columns_and_breaks_triples(self):
    real = table()
    other = shuffled(real)
    means = [
      np.mean(list(evaluation.marginal_errors(real, other, SCHEMA, k).values()))
      for k in (1, 2, 3)
    ]
    assert means[0] == 0
    assert 0.2 < means[1] < means[2]

  def test_as_many_as_asked_are_drawn_once_each(self):
    real = table(50)
    drawn = evaluation.marginal_errors(real, real, SCHEMA, 2, most=4)
    assert len(drawn) == 4
    again = evaluation.marginal_errors(real, real, SCHEMA, 2, most=4)
    assert list(again) == list(drawn)

  def test_many_cells_are_counted_where_rows_are(self, monkeypatch):
    real, other = table(), shuffled(table())
    expected = evaluation.marginal_errors(real, other, SCHEMA, 3)
    monkeypatch.setattr(query_errors, '_MOST_CELLS', 1)
    assert evaluation.marginal_errors(real, other, SCHEMA, 3) == pytest.approx(
      expected
    )

  @pytest.mark.parametrize('order', [0, 5])
  def test_order(self, order):
    with pytest.raises(ValueError, match=f'order is {order}.*in \\[1, 4\\]'):
      evaluation.marginal_errors(table(), table(), SCHEMA, order)


class TestRangeQueryErrors:
  def test_equal_tables_have_no_error(self):
    errors = evaluation.range_query_errors(table(), table(), SCHEMA)
    assert errors.shape == (1000,)
    assert not errors.any()

  def test_dependence_is_missed(self):
    real = table()
    options = {'num_queries': 300, 'order': 2}
    alike = evaluation.range_query_errors(
      real, table(seed=5), SCHEMA, **options
    )
    broken = evaluation.range_query_errors(
      real, shuffled(real), SCHEMA, **options
    )
    assert alike.mean() < 0.01 < broken.mean()
    # Single columns are as they were.
    options['order'] = 1
    errors = evaluation.range_query_errors(
      real, shuffled(real), SCHEMA, **options
    )
    assert not errors.any()

  def test_queries_of_more_columns_than_there_are(self):
    errors = evaluation.range_query_errors(
      table(), table(seed=1), SCHEMA, num_queries=20, order=9
    )
    assert errors.max() < 0.1

  def test_a_column_without_values(self):
    real = table(40)
    real['age'] = pd.array([pd.NA] * 40, 'Int64')
    errors = evaluation.range_query_errors(
      real, table(40), SCHEMA, num_queries=20, order=4
    )
    assert not errors.any()

  @pytest.mark.parametrize(
    'measure', [evaluation.marginal_errors, evaluation.range_query_errors]
  )
  def test_wrong_tables(self, measure):
    with pytest.raises(ValueError, match="Column 'city'.*not in the synth"):
      measure(table(), table().drop(columns='city'), SCHEMA)
    with pytest.raises(ValueError, match='no rows in the real table'):
      measure(table(0), table(), SCHEMA)


class TestRegressOnSynthetic:
  def test_real_rows_teach_and_shuffled_rows_do_not(self):
    real = table(1500)
    good = evaluation.regress_on_synthetic(
      table(1000, seed=1), real, SCHEMA, 'income'
    )
    bad = evaluation.regress_on_synthetic(
      table(1000, seed=1), shuffled(real), SCHEMA, 'income'
    )
    assert list(good.columns) == ['r2', 'mae']
    assert (good['r2'] > 0.8).all()
    assert (good['mae'] < 30).all()
    assert (bad['r2'] < 0.1).all()

  def test_missing_targets_are_left_out_and_limits_kept(self):
    scores = evaluation.regress_on_synthetic(
      table(500), table(500), SCHEMA, 'age', max_train=100, max_test=50
    )
    assert np.isfinite(scores.to_numpy()).all()

  @pytest.mark.parametrize('target', ['city', 'member', 'nope'])
  def test_target(self, target):
    with pytest.raises(ValueError, match='numeric.*are: age, income'):
      evaluation.regress_on_synthetic(table(), table(), SCHEMA, target)

  def test_too_few_values(self):
    with pytest.raises(ValueError, match="'age' has 0 values in the synth"):
      evaluation.regress_on_synthetic(table(), table(1), SCHEMA, 'age')
