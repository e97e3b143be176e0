"""Rows of a table that is read in parts: some at a time, all, or a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from tfdpflows.tabular import code_store
from tfdpflows.tabular import schema as schemas
from tfdpflows.tabular.declared import check_informative
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.sources import Part, Source, cells, joined, wanted


class Block(NamedTuple):
  """Rows that follow each other in a part of a table.

  Attributes:
    part: the `Part`.
    first: number of the first row in the part, from 0.
    cells: `DataFrame` of the columns that the schema has a use for, with the
      cells as they are.
  """

  part: Part
  first: int
  cells: pd.DataFrame

  def validated(
    self, schema: TableSchema, out_of_range: str, units: bool = False
  ) -> pd.DataFrame:
    """Returns the rows in the types of a schema without marks.

    Args:
      schema: the `TableSchema`.
      out_of_range: see `TableSchema.validate`.
      units: whether the result has the identifiers of the privacy unit, as a
        fit reads them.

    Raises:
      ValueError: for what is refused, naming the part, its row and the column.
    """
    with code_store.of_part(self.part, self.first):
      found = schema.validate(self.cells, out_of_range, fitting=False)
      if not units:
        return found
      column = self.cells[schema.privacy_unit]
      ids = schema.unit_ids_of(
        code_store.known_everywhere(column), out_of_range
      )
      return found.assign(**{schema.privacy_unit: ids.to_numpy()})


def blocks(
  source: Source,
  schema: TableSchema,
  out_of_range: str = 'error',
  units: bool = False,
) -> Iterator[Block]:
  """Yields the rows of a table in order.

  Args:
    source: the `Source`.
    schema: `TableSchema`, of which each part must have the columns.
    out_of_range: 'clip' refuses no row of a file, see `read_table`.
    units: whether the column of the privacy unit is needed too.

  Raises:
    ValueError: naming the part, if it is damaged or has other columns; or if
      the table has no rows.
    OSError: if a part cannot be read.

  #### Example

  >>> import os, tempfile
  >>> from tfdpflows.tabular import Field, TableSchema, row_blocks
  >>> from tfdpflows.tabular.sources import Source
  >>> path = os.path.join(tempfile.mkdtemp(), 'ages.csv')
  >>> with open(path, 'w') as file:
  ...   _ = file.write('age\\n31\\n64\\n')
  >>> schema = TableSchema([Field('age', 'integer', minimum=0, maximum=99)])
  >>> [block.validated(schema, 'error')['age'].tolist()
  ...  for block in row_blocks.blocks(Source.of(path), schema)]
  [[31, 64]]
  """
  is_empty = True
  for part in source.parts:
    for block in blocks_of(part, schema, out_of_range, units):
      is_empty = False
      yield block
  if is_empty:
    raise source.no_rows()


def blocks_of(
  part: Part, schema: TableSchema, out_of_range: str, units: bool = False
) -> Iterator[Block]:
  """Yields what `blocks` does of a part of a table, which may have no rows."""
  first, names = 0, None
  for chunk in part.read(wanted(schema), out_of_range == 'clip'):
    if names is None:
      code_store.check_columns(part, names := list(chunk), schema, units)
    known = [name for name in wanted(schema) if name in chunk]
    found = pd.DataFrame({name: cells(chunk[name]) for name in known})
    if len(found):
      yield Block(part, first, found)
      first += len(found)


def read_rows(
  source: Source, schema: TableSchema, out_of_range: str, units: bool = False
) -> pd.DataFrame:
  """Returns all rows of `blocks`, validated (`Block.validated`), to be learned.

  Raises:
    ValueError: see there, and `TableSchema.validate`.
    OSError: see `blocks`.
  """
  found = [
    block.validated(schema, out_of_range, units)
    for block in blocks(source, schema, out_of_range, units)
  ]
  table = pd.concat(found, ignore_index=True)
  if units and table[schema.privacy_unit].isna().all():
    raise schema.no_identifiers()
  _check_learned(table, schema, out_of_range, source)
  return table


class Sample(NamedTuple):
  """Rows of a table, drawn uniformly without replacement.

  Attributes:
    rows: `DataFrame`, in the order of the table.
    of: how many rows the table has.
  """

  rows: pd.DataFrame
  of: int


def sample_rows(
  source: Source,
  schema: TableSchema,
  out_of_range: str,
  most: int,
  seed: int,
) -> Sample:
  """Returns the rows of a table, a uniform sample if there are too many.

  A function of the seed and the rows: how they are spread over files, and of
  which format these are, does not matter.

  Args:
    source: see `blocks`.
    schema: see there.
    out_of_range: 'error' checks each row of the table, and gives the rows in
      the types of the schema; 'clip' refuses none, and gives the cells as they
      are.
    most: the most rows of the sample.
    seed: of the sample.

  Raises:
    ValueError: see `blocks` and `TableSchema.validate`.
    OSError: see `blocks`.
  """
  rng, total, kept = np.random.default_rng(seed), 0, _Smallest(most)
  for block in blocks(source, schema, out_of_range):
    rows = block.cells
    if out_of_range == 'error':
      rows = block.validated(schema, out_of_range)
    # Of a sample without replacement those with the smallest numbers are one.
    kept.add(rng.random(len(rows)), rows)
    total += len(rows)
  rows = kept.rows()
  _check_learned(rows, schema, out_of_range, source)
  return Sample(rows, total)


class _Smallest:
  """The rows with the smallest keys, `most` at most, in their order."""

  def __init__(self, most):
    self._most, self._below = most, np.inf
    self._keys, self._rows, self._waiting = [], [], 0

  def add(self, keys, rows):
    if (is_small := keys < self._below).any():
      self._keys.append(keys[is_small])
      self._rows.append(rows[is_small])
      self._waiting += int(is_small.sum())
    if self._waiting > 2 * self._most:
      self._drop()

  def rows(self):
    self._drop()
    columns = zip(*(rows.items() for rows in self._rows))
    return pd.DataFrame(
      {
        parts[0][0]: joined(
          [column.reset_index(drop=True) for _, column in parts]
        )
        for parts in columns
      }
    )

  def _drop(self):
    if self._waiting <= self._most:
      return
    keys = np.concatenate(self._keys)
    # Of equal ones the first, whichever have been dropped before.
    order = np.argsort(keys, kind='stable')[: self._most]
    is_kept = np.zeros(len(keys), bool)
    is_kept[order] = True
    ends = np.cumsum([len(rows) for rows in self._rows])[:-1]
    parts = np.split(is_kept, ends)
    self._rows = [rows[part] for rows, part in zip(self._rows, parts)]
    self._keys = [found[part] for found, part in zip(self._keys, parts)]
    self._waiting, self._below = self._most, keys[order[-1]]


def _check_learned(table, schema, out_of_range, source):
  """Refuses a table of which nothing can be learned; names its parts."""
  try:
    schemas.check_num_rows(len(table), schema)
    if out_of_range != 'clip':
      for field in schema:
        check_informative(not table[field.name].isna().all(), field)
  except ValueError as error:
    names = ', '.join(part.name for part in source.parts)
    raise ValueError(f'{names}: {error}') from None
