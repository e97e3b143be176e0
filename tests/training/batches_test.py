"""Tables of several arrays: rows by number."""

import numpy as np
import pytest

from tfdpflows.training import steps


@pytest.mark.core
def test_rows_of_every_array_and_zeros_for_padding():
  x = steps.arrays(({'a': [1.0, 2.0, 3.0]}, np.array([b'x', b'y', b'z'], 'O')))
  taken = steps.take(x, np.array([2, 0, 0]), np.array([1.0, 1, 0]))
  np.testing.assert_array_equal(taken[0]['a'], [3, 1, 0])
  assert list(taken[1]) == [b'z', b'x', b'']
  np.testing.assert_array_equal(x[0]['a'], [1, 2, 3])
  spec = steps.signature(x)
  assert spec[0]['a'].shape.as_list() == [None]
