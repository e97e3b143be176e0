"""What a fit learned: rows and densities in the values of a schema."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from tfdpflows.mechanisms.bounds import ColumnBounds
from tfdpflows.tabular import conditioning, system_errors
from tfdpflows.tabular.density import TableDistribution
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.field import stand_in
from tfdpflows.tabular.models.base import TableModel
from tfdpflows.tabular.ordered_codes import OrderedCodes
from tfdpflows.tabular.row_filter import is_filter, row_filter
from tfdpflows.tabular.schema import TableSchema

# Shares of values that are warned of, under 'clip': at an end of a range, or
# missing; and in the first category, which is often that of most rows.
_MOST, _HARDLY_OTHERS = 0.75, 0.98
# Rows of a part of a sample.
_FRAME = 1 << 16


@dataclasses.dataclass(frozen=True)
class FittedTable:
  """A learned distribution of encoded rows, and the schema that decodes them.

  All of it is released: it was computed from what the fit charged for.

  Attributes:
    schema: `TableSchema` without marks.
    model: the `TableModel` that was trained.
    marginals: a dict for each encoded column, with the edges and probabilities
      of its histogram and what the model keeps beside them.
    distribution: the `TableDistribution`.
    units: what a statement says of the units whose rows were used; `None` where
      rows are protected.
    bounds: what private bounds leave out.
  """

  schema: TableSchema
  model: TableModel
  marginals: list
  distribution: TableDistribution
  units: str | None = None
  bounds: tuple[ColumnBounds, ...] = ()

  def sample(
    self,
    num_rows: int,
    rng: np.random.Generator,
    conditions: dict[str, Any] | None = None,
  ) -> pd.DataFrame:
    """Returns rows: see `TabularSynthesizer.sample`."""
    encoder = TableEncoder(self.schema)
    if not conditions:
      codes = self.distribution.sample(num_rows, rng)
      return self._with_identifiers(encoder.decode(codes))
    filters = {
      # Of columns that are encoded with others, rows are told by their values.
      n: c if is_filter(c) else [c]
      for n, c in conditions.items()
      if is_filter(c) or not encoder.is_alone(n)
    }
    values = {n: c for n, c in conditions.items() if n not in filters}
    codes = conditioning.encode_conditions(self.schema, values)
    met = row_filter(self.schema, filters)
    found = conditioning.sample(
      self.distribution,
      encoder.columns,
      num_rows,
      codes,
      rng,
      None if met is None else lambda rows: met(encoder.decode(rows)),
    )
    table = self._with_identifiers(encoder.decode(found.codes))
    table.attrs['conditions'] = {
      'method': found.method,
      'effective_rows': found.effective,
    }
    return table

  def sample_frames(
    self, num_rows: int, rng: np.random.Generator
  ) -> Iterator[pd.DataFrame]:
    """Yields the rows of `sample`, without conditions, in parts."""
    encoder, parts, waiting, made = TableEncoder(self.schema), [], 0, 0
    for part in self.distribution.sample_blocks(num_rows, rng):
      parts.append(part)
      waiting += len(part)
      if waiting >= _FRAME:
        table = encoder.decode(np.concatenate(parts))
        yield self._with_identifiers(table, made)
        parts, waiting, made = [], 0, made + waiting
    if parts or not num_rows:
      empty = np.empty([0, len(encoder.columns)], np.float32)
      table = encoder.decode(np.concatenate([empty, *parts]))
      yield self._with_identifiers(table, made)

  def _with_identifiers(self, table, made=0):
    """Puts new identifiers before the columns of rows, after `made` others."""
    for name, text in reversed(self.schema.identifiers.items()):
      numbers = range(made + 1, made + 1 + len(table))
      cells = pd.Series(map(text.format, numbers), table.index, object)
      table.insert(0, name, cells)
    return table

  def log_probs(
    self, frames: Iterable[pd.DataFrame], out_of_range: str
  ) -> Iterator[np.ndarray]:
    """Yields log-densities: see `TabularSynthesizer.log_prob_frames`."""
    encoder, rng = TableEncoder(self.schema), np.random.default_rng(0)
    codes = (
      encoder.encode(self.schema.validate(df, out_of_range, fitting=False))
      for df in frames
    )
    rows = bad = first = 0
    for part in _of_equal_size(codes, _FRAME):
      found = self.distribution.log_prob(part, rng)
      not_finite = np.flatnonzero(~np.isfinite(found))
      if len(not_finite) and not bad:
        first = rows + not_finite[0] + 1
      rows, bad = rows + len(found), bad + len(not_finite)
      yield found
    if bad:
      warnings.warn(
        f'{bad} of {rows} rows have no finite log-probability, the first is '
        f'row {first}: float32 cannot hold their density.',
        stacklevel=3,
      )

  def what_was_clipped(self) -> Iterator[str]:
    """Yields columns that 'clip' moved, or could not read, nearly altogether.

    By the released histograms alone: how many values were clipped is private.
    """
    columns = TableEncoder(self.schema).columns
    for column, marginal in zip(columns, self.marginals):
      field = self.schema[column.fields[0]]
      if len(column.fields) > 1 or field.is_constant:
        continue
      for share, what in _what_clipping_makes(
        field, column.value_size, marginal
      ):
        yield (
          f'Column {column.name!r}: {share:.0%} of the values, by the noisy '
          f'histogram, are {what}'
        )

  def write_weights(self, path: str) -> None:
    """Writes all that the distribution learned, for `read`."""
    with system_errors.of_file(path):
      self._checkpoint().write(path)

  @classmethod
  def read(
    cls,
    path: str,
    schema: TableSchema,
    model: TableModel,
    marginals: list,
    **released: Any,
  ) -> FittedTable:
    """Returns what `write_weights` wrote, with what is kept beside it."""
    encoder = TableEncoder(schema)
    distribution = model.make_distribution(encoder.columns, marginals)
    distribution.constrain(OrderedCodes(encoder))
    self = cls(schema, model, marginals, distribution, **released)
    with system_errors.of_file(path):
      self._checkpoint().read(path).assert_existing_objects_matched()
    return self

  def _checkpoint(self):
    return tf.train.Checkpoint(**self.distribution.saved_parts())


def _what_clipping_makes(field, value_size, marginal):
  """Yields shares of values that clipping may have made, and what they are."""
  edges = np.array(marginal['edges'])
  inside = edges[:-1] < value_size
  shares = np.array(marginal['probabilities'])
  unread = (
    'or could not be read. Do the notations of the schema, such as '
    'decimalChar, trueValues, format and the categories, match the values?'
  )
  found = [(_MOST, shares[~inside].sum(), f'missing, {unread}')]
  shares = shares[inside] / max(shares[inside].sum(), 1e-9)
  if field.categories is None:
    unit = 'or were clipped to it. Are the bounds in the unit of the values?'
    found.append(
      (_MOST, shares[-1], f'at the maximum, {field.maximum}, {unit}')
    )
    # Many columns have hardly anything but zeros.
    if field.minimum != 0:
      found.append(
        (_MOST, shares[0], f'at the minimum, {field.minimum}, {unit}')
      )
    middle = np.searchsorted(edges[1:], _middle(field, value_size), 'right')
    # One at an end says nothing that is not said above.
    if field.required and 0 < middle < len(shares) - 1:
      found.append(
        (_MOST, shares[middle], f'in the middle of the range, {unread}')
      )
  elif field.required:
    first = f'{field.categories[0]!r}, the first category, {unread}'
    found.append((_HARDLY_OTHERS, shares[0], first))
  return [(share, what) for most, share, what in found if share > most]


def _middle(field, value_size):
  """The code of what stands for a missing value."""
  if field.is_temporal or field.type == 'integer':
    return stand_in(field) - field.grid[0]
  return value_size / 2


def _of_equal_size(parts, size):
  """Yields rows of codes, so many at a time; the last ones may be fewer.

  Which random numbers a row gets then does not depend on how rows came.
  """
  waiting, count = [], 0
  for part in parts:
    waiting.append(part)
    count += len(part)
    if count >= size:
      whole = np.concatenate(waiting)
      ends = range(size, count + 1, size)
      yield from (whole[end - size : end] for end in ends)
      waiting = [whole[ends[-1] :]]
      count -= ends[-1]
  if count:
    yield np.concatenate(waiting)
