"""Copies of stored rows are the rows, however they are read."""

import os
import stat

import numpy as np
import pytest

from tfdpflows import stored_rows
from tfdpflows.stored_rows import BlockFile, MappedRows, StoredRows


class _Rows(StoredRows):
  dtype, digest = np.dtype('int64'), np.arange(32, dtype=np.uint8)

  def __init__(self, values):
    self._values, self.shape = values, values.shape

  def __getitem__(self, which):
    return self._values[which]


@pytest.fixture
def values(monkeypatch):
  monkeypatch.setattr(stored_rows, 'BLOCK', 8)
  return np.random.default_rng(0).integers(0, 200, [21, 3])


@pytest.mark.parametrize(
  'which',
  [
    slice(None),
    slice(0, 8),
    slice(16, 24),
    slice(3, 19),
    slice(5, 5),
    np.array([20, 0, 7, 8]),
    np.array([[1, 2], [19, 15]]),
  ],
  ids=str,
)
def test_any_rows_are_those_of_the_original(values, tmp_path, which):
  copy = BlockFile(_Rows(values), str(tmp_path / 'rows'), np.uint8)
  np.testing.assert_array_equal(copy[which], values[which])
  assert copy[which].dtype == np.uint8


def test_blocks_are_read_in_order(values, tmp_path):
  copy = BlockFile(_Rows(values), str(tmp_path / 'rows'), np.uint8)
  found = list(copy.map_blocks(lambda start, block: (start, block)))
  assert [start for start, _ in found] == [0, 8, 16]
  np.testing.assert_array_equal(np.concatenate([b for _, b in found]), values)


def test_a_copy_is_private_to_the_user_and_counts_as_the_original(
  values, tmp_path
):
  path = tmp_path / 'rows'
  rows = MappedRows(_Rows(values), lambda x: x + 1, [1])
  copy = BlockFile(rows, str(path), np.uint8)
  assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
  np.testing.assert_array_equal(copy.digest, rows.digest)
  copy.remove()
  assert not path.exists()


def test_no_link_is_followed(values, tmp_path):
  (tmp_path / 'link').symlink_to(tmp_path / 'elsewhere')
  with pytest.raises(OSError):
    BlockFile(_Rows(values), str(tmp_path / 'link'), np.uint8)
