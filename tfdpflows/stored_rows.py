"""Rows of a table that are not in memory."""

from __future__ import annotations

import abc
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from tfdpflows._threads import map_ahead

if TYPE_CHECKING:
  import pandas as pd

# Rows that are read at one time.
BLOCK = 1 << 16

__all__ = ['BLOCK', 'BlockFile', 'MappedRows', 'StoredRows', 'TableParts']


class StoredRows(abc.ABC):
  """Rows `[n, d]` that are read when they are asked for.

  `rows[numbers]` and `rows[start:stop]` are arrays in memory. Mechanisms that
  take an array of rows and say so take these too, and read them block by block.

  Attributes:
    shape: `(n, d)`.
    dtype: of the arrays.
    digest: uint8 `[32]`, a SHA-256 of all that the rows are a function of.
      Rows that differ have different ones.
    path: of the file that they are in, in a folder that is private to the user;
      `None` for rows that are in none.
  """

  shape: tuple[int, int]
  dtype: np.dtype
  digest: np.ndarray
  path: Union[str, None] = None

  def __len__(self) -> int:
    return self.shape[0]

  @property
  def ndim(self) -> int:
    """Number of dimensions."""
    return len(self.shape)

  @abc.abstractmethod
  def __getitem__(self, which: Union[slice, np.ndarray]) -> np.ndarray:
    """Returns rows in memory.

    Args:
      which: a slice without a step, or numbers of rows, an array of any shape.
    """

  def __array__(self, *args, **kwargs):
    # NumPy would read all rows, one by one.
    raise TypeError('These rows are read in parts; rows[:] has all in memory.')

  def map_blocks(
    self, function: Callable[[int, np.ndarray], Any]
  ) -> Iterator[Any]:
    """Yields a function of the number of a row and of a block from there on.

    It is called in threads, for all rows in their order.
    """
    return map_ahead(
      lambda start: function(start, self[start : start + BLOCK]),
      range(0, len(self), BLOCK),
    )


class MappedRows(StoredRows):
  """A function of stored rows, row by row.

  Args:
    rows: `StoredRows`.
    function: of rows `[n, d]`; returns as many, `[n, k]`.
    facts: arrays that tell this function from others.

  #### Example

  >>> class Numbers(StoredRows):
  ...   shape, dtype = (5, 1), np.dtype('int64')
  ...   digest = np.zeros(32, np.uint8)
  ...   def __getitem__(self, which):
  ...     return np.arange(5)[which][..., None]
  >>> MappedRows(Numbers(), lambda x: 2. * x, [2.])[1:3].tolist()
  [[2.0], [4.0]]
  """

  def __init__(
    self,
    rows: StoredRows,
    function: Callable[[np.ndarray], np.ndarray],
    facts: Iterable[np.ndarray],
  ):
    self._rows, self._function = rows, function
    probe = function(rows[:1])
    self.shape = (len(rows), probe.shape[1])
    self.dtype = probe.dtype
    digest = hashlib.sha256(rows.digest.tobytes())
    for fact in facts:
      fact = np.ascontiguousarray(fact)
      digest.update(f'{fact.dtype}{fact.shape}'.encode())
      digest.update(fact.tobytes())
    self.digest = np.frombuffer(digest.digest(), np.uint8)

  def __getitem__(self, which):
    found = self._rows[which]
    if found.ndim == 2:
      return self._function(found)
    flat = self._function(found.reshape(-1, found.shape[-1]))
    return flat.reshape(*found.shape[:-1], -1)


class TableParts(abc.ABC):
  """A table of columns of any types that is read in parts, several times.

  Attributes:
    digest: uint8 `[32]`, a SHA-256 of all that the rows are a function of.
  """

  digest: np.ndarray

  @abc.abstractmethod
  def __len__(self) -> int:
    """Returns the number of rows."""

  @abc.abstractmethod
  def frames(
    self, names: Collection[str] | None = None
  ) -> Iterator[pd.DataFrame]:
    """Yields the rows, some at a time, in the same order each time.

    Args:
      names: the columns that are needed, all by default.
    """


class BlockFile(StoredRows):
  """A copy of stored rows in a file: block after block, columns apart.

  For small integers that are read many times, and take long to compute.

  Args:
    rows: `StoredRows` of integers.
    path: the file, private to the user; one that is there is replaced.
    dtype: of the integers.

  Raises:
    OSError: if the file cannot be written.
  """

  def __init__(self, rows: StoredRows, path: str, dtype: np.dtype):
    self.path, self.dtype = path, np.dtype(dtype)
    self.shape, self.digest = rows.shape, rows.digest
    self._block = BLOCK
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), 'wb') as file:
      for columns in rows.map_blocks(
        lambda unused_start, block: np.ascontiguousarray(block.T, self.dtype)
      ):
        file.write(columns)

  def __getitem__(self, which):
    n, d = self.shape
    if isinstance(which, slice):
      start, stop, _ = which.indices(n)
      if start % self._block == 0 and stop == min(start + self._block, n):
        size, offset = (stop - start) * d, start * d * self.dtype.itemsize
        found = np.fromfile(self.path, self.dtype, size, offset=offset)
        return found.reshape(d, stop - start).T
      which = np.arange(start, max(start, stop))
    start = which // self._block * self._block
    length = np.minimum(self._block, n - start)
    first = start * d + which - start
    places = first[..., None] + length[..., None] * np.arange(d)
    return np.memmap(self.path, self.dtype, 'r')[places]

  def remove(self) -> None:
    """Removes the file; the rows cannot be read any more."""
    os.unlink(self.path)
