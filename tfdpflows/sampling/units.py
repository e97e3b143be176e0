"""Units of privacy that have several rows: people, households, devices."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd

from tfdpflows._checks import Fixed, check_integer, check_type

_WEIGHTINGS = ('rows', 'units')
_MOST_ROWS = 1000
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
    is learned is the distribution of a random row of a random unit. Counts need
    no more noise for more rows per unit then, but where units with many rows
    differ from those with few, the result differs from the table.

  #### Formal guarantee

  The weights of a unit's rows add up to 1 at most. So adding or removing a unit
  changes a vector of weighted counts, in which a row adds to one entry, by at
  most 1 in l1 norm, and therefore in l2 norm. The number of units is taken to
  be public, as the number of rows is without units. The number of rows is not.

  Args:
    ids: the identifier of the unit of each row, `[n]`: integers, strings, or
      other values by their `str`. Each is read by itself: 7, 7.0 and '7' are
      one. (A column that pandas made floats of has lost the last digits of
      integers beyond 2^53: give those as text.)
    max_rows_per_unit: the largest number of rows of a unit that is used, at
      most 1,000; public, or released by a mechanism
      (`mechanisms.private_max_rows`).
    name: of the identifier, for ledgers and statements: that of its column.
    weighting: 'rows' or 'units', see above.

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
  >>> units = sampling.Units(
  ...   ['ann', 'bob', 'ann', 'ann'], max_rows_per_unit=2, name='person')
  >>> units.num_units, units.row_weights().tolist().count(0.5)
  (2, 3)
  """

  def __init__(
    self,
    ids: npt.ArrayLike,
    *,
    max_rows_per_unit: int,
    name: str,
    weighting: str = 'rows',
  ):
    self.max_rows_per_unit = check_max_rows(max_rows_per_unit)
    self.weighting = check_weighting(weighting)
    self.name = str(name)
    codes, texts = _factorized(ids, self.name)
    self.num_rows = len(codes)
    self.num_units = len(texts)
    self.rows_per_unit = np.bincount(codes, minlength=len(texts))
    self._unit_of_row = codes
    # Where the rows of each unit begin, which stand in the order of choice.
    self._starts = np.cumsum(self.rows_per_unit) - self.rows_per_unit
    self._rows = _in_order(codes, texts, self._starts)

  def row_weights(self) -> np.ndarray:
    """Returns the weight of each row of the table, float64 `[num_rows]`.

    It is 0 for a row that is not used.
    """
    unit = self._unit_of_row[self._rows]
    place = np.arange(self.num_rows) - self._starts[unit]
    used, weight = self._used(unit)
    weights = np.zeros(self.num_rows)
    weights[self._rows] = (place < used) * weight
    return weights

  def weights_of(self, start: int, count: int) -> np.ndarray:
    """Returns some of `row_weights`: those of `count` rows from `start` on."""
    return self.row_weights()[start : start + count]

  def weight_arrays(self) -> list[np.ndarray]:
    """Returns what `row_weights` are a function of."""
    return [self.row_weights()]

  def arrays(self) -> list[np.ndarray]:
    """Returns what tells these units from others of as many rows."""
    return [self._unit_of_row, *self.weight_arrays()]

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
    place = np.arange(self.max_rows_per_unit)
    counts, weight = self._used(units)
    used = (place < counts[:, None]) & (weights[:, None] > 0)
    # Of a unit without rows some row, which padding replaces.
    rows = np.where(used, self._starts[units, None] + place, 0)
    rows = np.where(used, rows, rows[:, :1])
    factors = used * (weight[:, None] * self.max_rows_per_unit)
    return self._numbers(rows), factors.astype(np.float32)

  def without(self, rows: Iterable[int]) -> Units:
    """Returns the units of a neighbour, for audits.

    Args:
      rows: numbers of rows, of one unit or several: these units keep their
        number, and nothing is used of them.
    """
    counts = self.rows_per_unit.copy()
    counts[self._units_of(np.fromiter(rows, np.int64))] = 0
    return self._changed(rows_per_unit=counts)

  def limited(self, max_rows_per_unit: int) -> Units:
    """Returns the units with fewer of their rows: the first that were chosen.

    Args:
      max_rows_per_unit: at most as many as now.

    Raises:
      ValueError: for a number out of range.
    """
    most = check_max_rows(max_rows_per_unit)
    if most > self.max_rows_per_unit:
      raise ValueError(
        f'max_rows_per_unit is {most}, and these units have '
        f'{self.max_rows_per_unit} at most. Make new Units of their ids.'
      )
    return self._changed(max_rows_per_unit=most)

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

  def _numbers(self, places):
    """Returns the numbers of the rows at places in the order of choice."""
    return self._rows[places]

  def _units_of(self, rows):
    return self._unit_of_row[rows]

  def _used(self, units):
    """Returns how many rows of units are used, and the weight of each."""
    used = np.minimum(self.rows_per_unit[units], self.max_rows_per_unit)
    if self.weighting == 'rows':
      return used, np.full(len(used), 1 / self.max_rows_per_unit)
    return used, 1 / np.maximum(used, 1)

  def _changed(self, **attributes):
    found = copy.copy(self)
    found.__dict__.update(attributes)
    return found


class SortedUnits(Units):
  """Units whose rows stand together in the table, in the order of choice.

  For tables that are not in memory: what is kept is a number for each unit, and
  rows that are not used are not in the table.

  Args:
    rows_per_unit: number of rows of each unit in the table, `[num_units]`, at
      least one.
    max_rows_per_unit: see `Units`, as the others.
    name: see there.
    weighting: see there.

  #### Example

  >>> units = SortedUnits(np.array([2, 1]), max_rows_per_unit=2, name='person')
  >>> units.row_weights().tolist()
  [0.5, 0.5, 0.5]
  """

  def __init__(
    self,
    rows_per_unit: np.ndarray,
    *,
    max_rows_per_unit: int,
    name: str,
    weighting: str = 'rows',
  ):
    self.max_rows_per_unit = check_max_rows(max_rows_per_unit)
    self.weighting = check_weighting(weighting)
    self.name = str(name)
    self.rows_per_unit = np.asarray(rows_per_unit)
    self.num_units = len(self.rows_per_unit)
    ends = np.cumsum(self.rows_per_unit, dtype=np.int64)
    self.num_rows = int(ends[-1])
    self._starts = ends - self.rows_per_unit

  def row_weights(self) -> np.ndarray:
    """See `Units`."""
    return self.weights_of(0, self.num_rows)

  def weights_of(self, start: int, count: int) -> np.ndarray:
    """See `Units`."""
    rows = np.arange(start, start + count)
    units = self._units_of(rows)
    used, weight = self._used(units)
    return (rows - self._starts[units] < used) * weight

  def weight_arrays(self) -> list[np.ndarray]:
    """See `Units`."""
    settings = [self.max_rows_per_unit, _WEIGHTINGS.index(self.weighting)]
    return [self.rows_per_unit, np.array(settings)]

  def arrays(self) -> list[np.ndarray]:
    """See `Units`."""
    return self.weight_arrays()

  def _numbers(self, places):
    return places

  def _units_of(self, rows):
    return np.searchsorted(self._starts, rows, side='right') - 1


# Of a row: a digest that names its unit, and a hash that chooses among rows.
IDENTITY = np.dtype([('high', 'u8'), ('low', 'u8'), ('order', 'u8')])


def identities(texts: Iterable[str]) -> np.ndarray:
  """Returns the `IDENTITY` of units, by their texts.

  Two texts have the same digest of 128 bits with a probability of 2^-128.
  """
  found = []
  for text in texts:
    data = text.encode('utf-8', 'surrogatepass')
    digest = hashlib.blake2b(data, digest_size=16).digest()
    high, low = np.frombuffer(digest, '<u8')
    found.append((high, low, _hash(text)))
  return np.array(found, IDENTITY)


def chosen_rows(
  rows: np.ndarray, ids: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Chooses the rows that `Units` uses, of units with all their rows.

  Args:
    rows: their numbers, increasing, int64 `[n]`.
    ids: `IDENTITY` of the unit of each, `[n]`.
    most: largest number of rows of a unit.

  Returns:
    For each unit the number of its first row and how many are used; and the
    numbers of those, unit by unit, in the order of choice.
  """
  by_unit = np.lexsort((ids['low'], ids['high']))
  rows, ids = rows[by_unit], ids[by_unit]
  new = np.ones(len(rows), bool)
  new[1:] = (ids['high'][1:] != ids['high'][:-1]) | (
    ids['low'][1:] != ids['low'][:-1]
  )
  starts = np.flatnonzero(new)
  unit = np.cumsum(new) - 1
  place = np.arange(len(rows)) - starts[unit]
  hashes = _mixed(ids['order'] + _MIX * place.astype(np.uint64))
  order = np.lexsort((hashes, unit))
  counts = np.diff(np.append(starts, len(rows)))
  # Units stand where they stood: the same places are those of the choice.
  return rows[starts], np.minimum(counts, most), rows[order[place < most]]


def check_units(units: Units | None) -> None:
  """Refuses identifiers in place of `Units`; `None` is none."""
  if units is not None:
    check_type(
      'units',
      units,
      Units,
      "sampling.Units(ids, max_rows_per_unit=4, name='person_id')",
    )


def check_max_rows(most: int) -> int:
  """Returns `max_rows_per_unit`, if it is in range."""
  most = check_integer('max_rows_per_unit', most)
  if most > _MOST_ROWS:
    # Each unit of a batch is padded to as many.
    raise ValueError(
      f'max_rows_per_unit is {most}; it must be at most {_MOST_ROWS}.'
    )
  return most


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
  """Returns the number of each row's unit, and a text of each unit."""
  if isinstance(ids, (str, bytes, dict, set)) or getattr(ids, 'ndim', 1) != 1:
    raise ValueError(
      f'ids are a {type(ids).__name__} of shape {np.shape(ids)}; give one '
      'identifier for each row, [n].'
    )
  cells = _cells(ids)
  if not len(cells):
    raise ValueError('ids are empty; a table has at least one row.')
  # What other cells hold must not decide how one is read.
  codes, distinct = _distinct(cells)
  missing = np.array([_is_missing(value) for value in distinct])
  if missing.any():
    rows = np.flatnonzero(missing[codes])
    raise ValueError(
      f'The unit {name!r} of row {rows[0] + 1} is missing ({len(rows)} of '
      f'{len(codes)} are). Whose rows these are is not known: drop them, or '
      'give each its identifier.'
    )
  known = {}
  units = np.array(
    [known.setdefault(_text(value), len(known)) for value in distinct]
  )
  return units[codes], list(known)


def _cells(ids):
  """Returns an array: of numbers as it is, of anything else of objects."""
  dtype = getattr(ids, 'dtype', None)
  if isinstance(dtype, np.dtype) and dtype.kind in 'biuf':
    return np.asarray(ids)
  values = list(ids)
  cells = np.empty(len(values), object)
  cells[:] = values
  return cells


def _distinct(cells):
  """Returns the number of the distinct value of each cell, and the values."""
  if cells.dtype != object:
    codes, distinct = pd.factorize(cells, use_na_sentinel=False)
    return codes, distinct.tolist()
  # Of equal ones the first would give others its text: decimals 7 and 7.0, or
  # one time in two zones. What has no hash, and nan, is told apart by place.
  known, codes, distinct = {}, [], []
  for number, value in enumerate(cells):
    try:
      key = value
      if type(value) is not str:
        key = type(value).__name__, repr(value), value
      place = known.setdefault(key, len(distinct))
    except TypeError:
      place = known.setdefault(number, len(distinct))
    if place == len(distinct):
      distinct.append(value)
    codes.append(place)
  return np.array(codes, np.int64), distinct


def _is_missing(value):
  return pd.api.types.is_scalar(value) and bool(pd.isna(value))


def _text(value):
  """Returns the text of an identifier, a function of that alone."""
  if isinstance(value, bytes):
    return value.decode('utf-8', 'surrogateescape')
  if isinstance(value, (float, np.floating)) and float(value).is_integer():
    value = int(value)
  return str(value)


def _in_order(codes, texts, starts):
  """Returns row numbers by unit, those of each in the order of choice."""
  # Rows by unit, in the order of the table.
  by_unit = np.argsort(codes, kind='stable')
  place = np.empty(len(codes), np.uint64)
  place[by_unit] = np.arange(len(codes)) - starts[codes[by_unit]]
  hashes = np.array([_hash(text) for text in texts])[codes]
  return np.lexsort((_mixed(hashes + _MIX * place), codes))


def _hash(text):
  data = text.encode('utf-8', 'surrogatepass')
  digest = hashlib.blake2b(data, digest_size=8).digest()
  return np.uint64(int.from_bytes(digest, 'little'))


def _mixed(x):
  """Returns the finaliser of SplitMix64 of unsigned integers."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))
