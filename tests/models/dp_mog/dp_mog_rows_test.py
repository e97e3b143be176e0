"""What a mixture takes as rows, and that a refusal tells nothing of them."""

import four_clusters
import numpy as np
import pandas as pd
import pytest

from tfdpflows import accounting, models
from tfdpflows.models.dp_mog.dp_mog import as_matrix


def frame(values, dtype):
  return pd.DataFrame({'b': [0.5, 0.5], 'a': pd.Series(values, dtype=dtype)})


@pytest.mark.parametrize(
  'x, message',
  [
    (np.zeros(3), r'\[num_rows, d\]'),
    (np.zeros([3, 0]), r'\[num_rows, d\]'),
    (frame([0.1, 0.2], object), "Column 'a' has dtype object"),
    (frame([0.1, 10**400], object), "Column 'a' has dtype object"),
    (frame(['0.1', '0.2'], 'string'), "Column 'a' has dtype str"),
    (frame([0.1, 0.2], 'category'), "Column 'a' has dtype category"),
    (frame([0.1, 0.2], complex), "Column 'a' has dtype complex128"),
    (frame([1, 2], 'datetime64[ns]'), "Column 'a' has dtype datetime64"),
    (np.array([[0.1, 0.2]], object), 'dtype object'),
    (np.array([['0.1', '0.2']]), 'dtype <U3'),
    (np.array([[0.1, 0.2j]]), 'dtype complex128'),
    (np.ma.masked_array(np.zeros([3, 1]), mask=False), 'masked array'),
    ([[0.1, 0.2]], 'x is a list'),
    ([[0.1, None]], 'x is a list'),
  ],
)
def test_what_is_no_matrix_of_numbers_is_refused_by_its_type(x, message):
  ledger = accounting.PrivacyLedger()
  with pytest.raises(ValueError, match=message):
    models.DPMoG().fit(x, **four_clusters.BUDGET, ledger=ledger)
  assert not ledger.entries


@pytest.mark.parametrize(
  'values, dtype',
  [
    ([0.1, None], 'Float64'),
    ([1, None], 'Int64'),
    ([True, None], 'boolean'),
    ([0.1, np.nan], 'Sparse[float]'),
    ([0.1, np.nan], float),
  ],
)
def test_missing_values_are_nan_whatever_the_column(values, dtype):
  found = as_matrix(frame(values, dtype))
  np.testing.assert_allclose(found, [[0.5, float(values[0])], [0.5, np.nan]])
  # Without one, the same column must not be another case.
  whole = as_matrix(frame([values[0]] * 2, dtype))
  np.testing.assert_allclose(whole, [[0.5, float(values[0])]] * 2)


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'int64', 'bool'])
def test_numbers_of_any_kind_will_do(dtype):
  x = np.array([[1, 0], [0, 1]], dtype)
  found = as_matrix(x)
  assert found.dtype == np.float64
  np.testing.assert_array_equal(found, x)
  np.testing.assert_array_equal(as_matrix(pd.DataFrame(x)), x)


def test_what_no_float64_holds_is_not_finite():
  huge = np.array([['1e400', '1']]).astype(np.longdouble)
  np.testing.assert_array_equal(as_matrix(huge), [[np.inf, 1]])


def test_a_frame_of_numbers_is_fitted():
  x = pd.DataFrame(four_clusters.make(50)[0], columns=['a', 'b'])
  mixture = models.DPMoG(1, 1).fit(x, **four_clusters.BUDGET)
  assert mixture.parameters.means.shape[1] == 2
