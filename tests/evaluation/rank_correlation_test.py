import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tfdpflows import evaluation
from tfdpflows.evaluation import association
from tfdpflows.tabular import Field, TableSchema

SCHEMA = TableSchema(
  [
    Field('x', 'number', 0.0, 10.0, required=True),
    Field('y', 'integer', 0, 9),
    Field('z', 'string', enum=('low', 'middle', 'high'), required=True),
    Field('w', 'boolean', required=True),
  ]
)


def table(n=400, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.uniform(0, 10, n)
  y = pd.Series(np.floor(x)).astype('Int64')
  y[rng.random(n) < 0.1] = pd.NA
  return pd.DataFrame(
    {
      'x': x,
      'y': y,
      'z': np.array(['low', 'middle', 'high'])[(x // 4).astype(int)],
      'w': rng.random(n) < x / 10,
    }
  )


class TestKendallMatrix:
  def test_agrees_with_scipy_without_missing_rows(self):
    frame = table()
    matrix = association.kendall_matrix(frame, SCHEMA)
    assert list(matrix.index) == list(matrix.columns) == list(SCHEMA.names)
    assert np.allclose(matrix, matrix.T)
    assert np.allclose(np.diag(matrix), 1)
    present = frame['y'].notna()
    expected = stats.kendalltau(
      frame['x'][present], frame['y'][present].astype(int)
    )[0]
    assert matrix.loc['x', 'y'] == pytest.approx(expected)
    codes = frame['z'].map({'low': 0, 'middle': 1, 'high': 2})
    expected = stats.kendalltau(codes, frame['w'])[0]
    assert matrix.loc['z', 'w'] == pytest.approx(expected)

  def test_two_columns_of_two_values_have_their_correlation(self):
    frame = table().assign(z=lambda t: np.where(t['x'] > 5, 'low', 'high'))
    tau = association.kendall_matrix(frame, SCHEMA).loc['z', 'w']
    expected = np.corrcoef(frame['z'] == 'high', frame['w'])[0, 1]
    assert tau == pytest.approx(expected)

  def test_increasing_functions_do_not_matter(self):
    frame = table()
    bent = frame.assign(x=frame['x'] ** 3 / 100)
    pd.testing.assert_frame_equal(
      association.kendall_matrix(frame, SCHEMA),
      association.kendall_matrix(bent, SCHEMA),
    )

  def test_a_constant_column_has_no_order(self):
    matrix = association.kendall_matrix(table().assign(z='low'), SCHEMA)
    assert matrix['z'].drop('z').tolist() == [0, 0, 0]

  def test_rows_are_drawn_by_the_seed(self):
    frame = table(2000)
    draws = [
      association.kendall_matrix(frame, SCHEMA, max_rows=500, seed=seed)
      for seed in (0, 0, 1)
    ]
    assert draws[0].equals(draws[1])
    assert not draws[0].equals(draws[2])
    whole = association.kendall_matrix(frame, SCHEMA)
    assert np.allclose(draws[0], whole, atol=0.1)

  def test_errors_say_what_to_do(self):
    with pytest.raises(ValueError, match="Column 'x' of the schema"):
      association.kendall_matrix(table().drop(columns='x'), SCHEMA)
    with pytest.raises(ValueError, match='no rows in the table'):
      association.kendall_matrix(table()[:0], SCHEMA)
    with pytest.raises(ValueError, match='max_rows is 1'):
      association.kendall_matrix(table(), SCHEMA, max_rows=1)


class TestKendallErrors:
  def test_of_a_table_and_itself(self):
    found = evaluation.kendall_errors(table(), table(), SCHEMA)
    assert found == {'kendall_rmse': 0, 'kendall_mae': 0}

  def test_are_means_over_pairs(self):
    frame = table()
    rng = np.random.default_rng(1)
    shuffled = frame.assign(x=rng.permutation(frame['x']))
    difference = association.kendall_matrix(
      shuffled, SCHEMA
    ) - association.kendall_matrix(frame, SCHEMA)
    # Only the three pairs of x have changed, out of six.
    changed = difference.loc['x', ['y', 'z', 'w']]
    found = evaluation.kendall_errors(frame, shuffled, SCHEMA)
    assert found['kendall_mae'] == pytest.approx(changed.abs().sum() / 6)
    assert found['kendall_rmse'] == pytest.approx(
      np.sqrt((changed**2).sum() / 6)
    )

  def test_one_column_has_no_pairs(self):
    schema = TableSchema([Field('x', 'number', 0.0, 10.0, required=True)])
    found = evaluation.kendall_errors(table(), table(), schema)
    assert found == {'kendall_rmse': 0.0, 'kendall_mae': 0.0}
