"""Rows of files whose types and ranges are found privately, read in parts."""

from __future__ import annotations

import collections
import functools
import hashlib
from collections.abc import Collection, Iterator

import numpy as np
import pandas as pd

from tfdpflows.stored_rows import TableParts
from tfdpflows.tabular import code_store, row_blocks
from tfdpflows.tabular import schema as schemas
from tfdpflows.tabular.code_store import CodeStore
from tfdpflows.tabular.declared import check_informative
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.sources import Part, Source

# More rows are read again for each count, which takes about twice as long. In
# memory 10^6 rows of 15 columns need 2.2 GB.
_MOST_IN_MEMORY = 1 << 18


class DraftRows(TableParts):
  """The rows of files, of a schema with marks and without a privacy unit.

  They are read once to check them, which releases nothing, then for each count
  of the private bounds, and in the end to encode them: the table is never in
  memory. What is learned is what is learned of it in memory, to the last bit.

  Args:
    source: the `Source`, of files that can be read again.
    schema: `TableSchema` with marks, as `TableSchema.for_bounds` returns it.
    out_of_range: see `TableSchema.validate`.

  Attributes:
    in_memory: all rows, if they are few; else `None`.

  Raises:
    ValueError: for what `TableSchema.validate` refuses, naming file, row and
      column.
    OSError: if a file cannot be read.
  """

  def __init__(self, source: Source, schema: TableSchema, out_of_range: str):
    self._source, self._schema = source, schema
    self._out_of_range = out_of_range
    self._num_rows, present = 0, np.zeros(len(schema), bool)
    digests, kept = collections.defaultdict(hashlib.sha256), []
    for part in source.parts:
      for frame in self._frames_of(part):
        self._num_rows += len(frame)
        kept.append(frame)
        if self._num_rows > _MOST_IN_MEMORY:
          kept = []
        present |= frame.notna().any().to_numpy(bool)
        _add(digests, frame)
    self._digests = {name: found.digest() for name, found in digests.items()}
    # All rows, if they are so few that they need not be read again.
    self.in_memory = pd.concat(kept, ignore_index=True) if kept else None
    digest = hashlib.sha256(out_of_range.encode())
    for found in self._digests.values():
      digest.update(found)
    self.digest = np.frombuffer(digest.digest(), np.uint8)
    if not self._num_rows:
      raise source.no_rows()
    schemas.check_num_rows(self._num_rows, schema)
    schema.warn_of_columns()
    if out_of_range != 'clip':
      for is_present, field in zip(present, schema):
        check_informative(is_present, field)

  def __len__(self) -> int:
    return self._num_rows

  def frames(
    self, names: Collection[str] | None = None
  ) -> Iterator[pd.DataFrame]:
    """Yields rows as `TableSchema.validate` returns them for fitting.

    Raises:
      ValueError: in the end, if these are not the rows that were read first.
    """
    digests = collections.defaultdict(hashlib.sha256)
    for part in self._source.parts:
      for frame in self._frames_of(part, names):
        _add(digests, frame)
        yield frame
    # Sizes and times of files do not tell of all changes: a copy may keep both.
    # The digest stands for all counts, whose noise is the same when resumed.
    for name, found in digests.items():
      if found.digest() != self._digests[name]:
        files = ', '.join(part.name for part in self._source.parts)
        raise ValueError(
          f'{files}: the rows changed between two passes, in column {name!r}. '
          'Fit when nothing writes the files.'
        )

  def _frames_of(self, part, names=None):
    schema, how = self._schema, self._out_of_range
    for block in row_blocks.blocks_of(part, schema, how):
      with code_store.of_part(part, block.first):
        found = schema.validate_part(block.cells, how, names)
      yield found

  def encoded(self, schema: TableSchema, folder: str | None) -> CodeStore:
    """Returns the codes of the rows under the bounds that were found.

    Args:
      schema: the `TableSchema` without marks. No row is refused.
      folder: where to store them, see `code_store.read`.
    """

    def validated(part, unused_names, unused_clip):
      for frame in self._frames_of(part):
        yield dict(frame.items())

    parts = [
      Part(part.name, part.identity, functools.partial(validated, part))
      for part in self._source.parts
    ]
    source = Source(tuple(parts))
    if folder is not None:
      found = code_store.reopen(source, schema, 'clip', folder)
      if found is not None:
        return found
    return code_store.read(source, schema, 'clip', folder)


def _add(digests, frame):
  """Adds rows to a digest of each column, whatever the parts they are in."""
  for name, column in frame.items():
    hashes = pd.util.hash_pandas_object(column, index=False).to_numpy()
    digests[name].update(hashes.tobytes())


def of_source(
  source: Source, schema: TableSchema, out_of_range: str
) -> DraftRows | pd.DataFrame:
  """Returns the rows of a table and a schema with marks for a fit.

  A stream is read once. Whose rows are dropped and what each weighs, where
  units are protected, is of all rows in memory.
  """
  if source.identity is None or schema.privacy_unit is not None:
    return source.to_frame(schema, out_of_range)
  rows = DraftRows(source, schema.for_bounds(), out_of_range)
  return rows if rows.in_memory is None else rows.in_memory
