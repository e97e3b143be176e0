"""Tables of several arrays: rows by number, and what tells two apart."""

import numpy as np
import pytest

from tfdpflows.randomness import Randomness
from tfdpflows.training import batches


@pytest.mark.core
def test_rows_of_every_array_and_zeros_for_padding():
  x = batches.arrays(
    ({'a': [1.0, 2.0, 3.0]}, np.array([b'x', b'y', b'z'], 'O'))
  )
  taken = batches.take(x, np.array([2, 0, 0]), np.array([1.0, 1, 0]))
  np.testing.assert_array_equal(taken[0]['a'], [3, 1, 0])
  assert list(taken[1]) == [b'z', b'x', b'']
  np.testing.assert_array_equal(x[0]['a'], [1, 2, 3])
  spec = batches.signature(x)
  assert spec[0]['a'].shape.as_list() == [None]


def test_fingerprints_tell_tables_apart_in_any_process(monkeypatch):
  monkeypatch.setattr(batches, '_BLOCK', 2)
  text = np.array(['a', 'é', 'c'], object)
  x = {'n': np.arange(3), 't': text}
  found = batches.fingerprints(x, Randomness(seed=0))
  assert len(found) == 4
  # Objects of the same value elsewhere in memory.
  same = {'n': np.arange(3), 't': np.array([chr(ord(c)) for c in text], 'O')}
  assert batches.fingerprints(same, Randomness(seed=0)) == found
  for other in (
    {'n': np.arange(3)[::-1], 't': text},
    {'n': np.arange(3), 't': text[[1, 0, 2]]},
  ):
    assert batches.fingerprints(other, Randomness(seed=0)) != found
  assert batches.fingerprints(x, Randomness(seed=1)) != found
