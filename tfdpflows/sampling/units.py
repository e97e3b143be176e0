"""Units of privacy that have several rows: people, households, devices."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfdpflows._checks import Fixed, check_integer

if TYPE_CHECKING:
  import numpy.typing as npt

_WEIGHTINGS = ('rows', 'units')
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Units(Fixed):
  """Which rows of a table belong to which unit, and which of them are used.

  Two tables are then neighbours if one has one unit more, with all its rows. Of
  a unit with more than `max_rows_per_unit` rows only that many are used, chosen
  by a hash of its identifier and of their order among its rows: what other
  units hold changes nothing.

  A `TrainingPlan` with `units` draws units in place of rows, and clips the
  weighted sum of the gradients of a unit's rows as a whole; the releases of
  `tfdpflows.mechanisms` count rows by their weights. A row weighs

  - `1 / max_rows_per_unit` under `weighting='rows'`: what is learned is the
    distribution of the rows that are used, whoever they belong to;
  - one over the number of rows used of its unit under `weighting='units'`: what
    is learned is the distribution of a random row of a random unit. More rows
    per unit cost no accuracy then, but where units with many rows differ from
    those with few, the result differs from the table.

  #### Formal guarantee

  The weights of a unit's rows add up to 1 at most. So adding or removing a unit
  changes a vector of weighted counts, in which a row adds to one entry, by at
  most 1 in l1 norm, and therefore in l2 norm. The number of units is taken to
  be public, as the number of rows is without units. The number of rows is not.

  Args:
    ids: the identifier of the unit of each row, `[n]`: integers or strings, or
      anything of one type that pandas groups by. Rows of a person under two
      identifiers are two units.
    max_rows_per_unit: the largest number of rows of a unit that is used, public
      or released by a mechanism (`mechanisms.private_max_rows`).
    weighting: 'rows' or 'units', see above.
    name: of the identifier, for statements: the name of its column.

  Attributes:
    num_rows: number of rows of the table. It tells of units: not public.
    num_units: number of units, public.
    rows_per_unit: number of rows of each unit, int64 `[num_units]`. Private.
    max_rows_per_unit: see above.
    weighting: see above.
    name: see above.

  Raises:
    ValueError: for values out of range; for an identifier that is missing,
      naming its row; without any row.

  #### Example

  >>> from tfdpflows import sampling
  >>> units = sampling.Units(['ann', 'bob', 'ann', 'ann'], max_rows_per_unit=2)
  >>> units.num_units, units.row_weights().tolist().count(0.5)
  (2, 3)
  """

  def __init__(
    self,
    ids: npt.ArrayLike,
    *,
    max_rows_per_unit: int,
    weighting: str = 'rows',
    name: str = 'unit',
  ):
    self.max_rows_per_unit = check_integer(
      'max_rows_per_unit', max_rows_per_unit
    )
    self.weighting = check_weighting(weighting)
    self.name = str(name)
    codes, identifiers = _factorized(ids, self.name)
    self.num_rows = len(codes)
    self.num_units = len(identifiers)
    self.rows_per_unit = np.bincount(codes, minlength=len(identifiers))
    self._unit_of_row = codes
    self._rows = _chosen(codes, identifiers, self.max_rows_per_unit)

  @property
  def rows(self) -> np.ndarray:
    """The rows that are used, int64 `[num_units, k]`; -1 where there is none.

    k is the largest number of rows of a unit, `max_rows_per_unit` at most.
    """
    return self._rows

  def row_weights(self) -> np.ndarray:
    """Returns the weight of each row of the table, float64 `[num_rows]`.

    It is 0 for a row that is not used.
    """
    weights = np.zeros(self.num_rows)
    used = self._rows >= 0
    weights[self._rows[used]] = self._weights(self._rows)[used]
    return weights

  def batch(
    self, units: np.ndarray, weights: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of a batch of units.

    Args:
      units: numbers of units, `[batch]`.
      weights: `[batch]`, 0 for padding.

    Returns:
      numbers of rows, int64 `[batch, max_rows_per_unit]`, and the factors of
      their losses, float32, of the same shape: their weights times
      `max_rows_per_unit`, so that those of 'rows' are 1. (What a unit adds is
      clipped after that, to as much as one row adds without units.) A unit with
      fewer rows has its first one again, with 0; padding, and units without
      rows, have 0 alone.
    """
    rows = self._rows[units]
    missing = self.max_rows_per_unit - rows.shape[1]
    rows = np.pad(rows, ((0, 0), (0, missing)), constant_values=-1)
    found = self._weights(rows) * self.max_rows_per_unit
    found *= weights[:, None] > 0
    first = np.maximum(rows[:, :1], 0)
    return np.where(rows >= 0, rows, first), found.astype(np.float32)

  def without(self, rows: Iterable[int]) -> Units:
    """Returns the units of a neighbour, for audits.

    Args:
      rows: numbers of rows, of one unit or several: these units keep their
        number, and nothing is used of them.
    """
    absent = np.unique(self._unit_of_row[np.fromiter(rows, np.int64)])
    used, counts = self._rows.copy(), self.rows_per_unit.copy()
    used[absent], counts[absent] = -1, 0
    return self._changed(_rows=used, rows_per_unit=counts)

  def limited(self, max_rows_per_unit: int) -> Units:
    """Returns the units with fewer of their rows: the first that were chosen.

    Args:
      max_rows_per_unit: at most as many as now.

    Raises:
      ValueError: for a number out of range.
    """
    most = check_integer('max_rows_per_unit', max_rows_per_unit)
    if most > self.max_rows_per_unit:
      raise ValueError(
        f'max_rows_per_unit is {most}, and these units have '
        f'{self.max_rows_per_unit} at most. Make new Units of their ids.'
      )
    return self._changed(max_rows_per_unit=most, _rows=self._rows[:, :most])

  def _changed(self, **attributes):
    found = copy.copy(self)
    found.__dict__.update(attributes)
    return found

  def describe(self) -> str:
    """Returns what a unit is and what is used of it, in words."""
    weight = {
      'rows': 'each row counts the same',
      'units': 'the rows of a unit share the weight of one',
    }[self.weighting]
    return (
      f'a unit is all rows with one value of {self.name!r} '
      f'({self.num_units} units); at most {self.max_rows_per_unit} of its rows '
      f'are used, and {weight}'
    )

  def _weights(self, rows):
    """Returns weights of rows `[batch, k]`; 0 where there is no row."""
    used = rows >= 0
    if self.weighting == 'rows':
      return used / self.max_rows_per_unit
    return used / np.maximum(used.sum(1, keepdims=True), 1)


def check_weighting(weighting: str) -> str:
  """Returns the name of a weighting of rows, if it is one."""
  if weighting not in _WEIGHTINGS:
    raise ValueError(
      f'weighting is {weighting!r}; it must be one of {_WEIGHTINGS}.'
    )
  return weighting


def in_words(unit: str | None) -> tuple[str, str]:
  """Returns what an example is called, one and several; a row if no unit is."""
  if unit is None:
    return 'row', 'rows'
  return f'value of {unit}', f'values of {unit}'


def _factorized(ids, name):
  """Returns the number of each row's unit, and the identifiers by number."""
  if getattr(ids, 'ndim', 1) != 1:
    raise ValueError(
      f'ids have shape {ids.shape}; give one identifier for each row, [n].'
    )
  ids = pd.Series(ids).reset_index(drop=True)
  if not len(ids):
    raise ValueError('ids are empty; a table has at least one row.')
  missing = ids.isna().to_numpy()
  if missing.any():
    raise ValueError(
      f'The unit {name!r} of row {np.flatnonzero(missing)[0] + 1} is missing '
      f'({missing.sum()} of {len(ids)} are). Whose rows these are is not '
      'known: drop them, or give each its identifier.'
    )
  if ids.dtype == object and pd.api.types.infer_dtype(ids) not in (
    'string',
    'integer',
    'bytes',
  ):
    # 7 and '7' would be two units, and the person protected half.
    raise ValueError(
      f'The units {name!r} are of several types, or of one that is not '
      "supported (object). Make them strings: ids.astype('str')."
    )
  if pd.api.types.is_numeric_dtype(ids.dtype):
    return pd.factorize(ids)
  # pandas takes texts for equal that are so up to a NUL character.
  known = {}
  codes = [known.setdefault(x, len(known)) for x in ids.astype(object)]
  return np.array(codes, np.int64), np.array([*known, None], object)[:-1]


def _chosen(codes, identifiers, most):
  """Returns numbers of rows `[units, k]`, -1 where there is none."""
  # Rows by unit, in the order of the table.
  by_unit = np.argsort(codes, kind='stable')
  counts = np.bincount(codes, minlength=len(identifiers))
  starts = np.cumsum(counts) - counts
  place = np.empty(len(codes), np.uint64)
  place[by_unit] = np.arange(len(codes)) - np.repeat(starts, counts)
  hashed = pd.util.hash_array(np.asarray(identifiers))[codes]
  order = np.lexsort((_mixed(hashed + _MIX * place), codes))
  place[order] = np.arange(len(codes)) - np.repeat(starts, counts)
  used = order[place[order] < most]
  found = np.full([len(identifiers), min(most, counts.max())], -1)
  found[codes[used], place[used].astype(np.int64)] = used
  return found


def _mixed(x):
  """Returns the finaliser of SplitMix64 of unsigned integers."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))
