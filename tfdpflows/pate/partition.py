"""Disjoint shards of the rows, one for each teacher."""

from __future__ import annotations

from typing import Optional

import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_integer
from tfdpflows.randomness import Randomness

_UNIT_BYTES = 8


def partition(
  num_rows: int,
  num_shards: int,
  *,
  randomness: Optional[Randomness] = None,
  units: Optional[npt.ArrayLike] = None,
  label: str = 'partition',
) -> np.ndarray:
  """Returns the shard of each row.

  Every row, or every unit, draws its shard by itself, so that shards differ in
  size, by about the square root of it. Shards of equal size would not do: with
  one row less, others would move from shard to shard.

  Args:
    num_rows: number of rows, without `units` at least one for each shard.
    num_shards: number of shards.
    randomness: `tfdpflows.randomness.Randomness`, whose stream `label` is used
      once; by default one that nobody knows.
    units: `[num_rows]`, such as the person that each row belongs to: all rows
      of one unit go to one shard. Integers or strings, without missing values.
    label: name of the stream.

  Returns:
    int64 `[num_rows]`, from 0 to `num_shards - 1`.

  Raises:
    ValueError: for fewer rows than shards (the number of rows is taken to be
      public; not with `units`, some of which may have many), for units of
      another shape or dtype, or if the stream was used.

  #### Formal guarantee

  Shards are independent and uniform, whatever the rows hold. So the shards of a
  table with one row more are those of the table, with the row in one of them,
  for some random numbers that are as likely: whatever is computed from each
  shard by itself changes for one shard. The same holds for a unit and all its
  rows; for a row that is replaced by another one of the same unit, or without
  units, of the same place; and under REPLACE_ONE with units of other names, two
  shards change: use units under ADD_OR_REMOVE_ONE.

  #### Example

  >>> from tfdpflows.pate import partition
  >>> from tfdpflows.randomness import Randomness
  >>> partition(6, 3, randomness=Randomness(seed=0)).tolist()
  [1, 1, 2, 2, 2, 2]
  >>> shards = partition(4, 3, units=['ann', 'bob', 'ann', 'bob'])
  >>> bool(shards[0] == shards[2] and shards[1] == shards[3])
  True
  """
  num_shards = check_integer('num_shards', num_shards)
  num_rows = check_integer('num_rows', num_rows)
  # Of units the number of rows is private.
  if units is None and num_rows < num_shards:
    raise ValueError(
      f'There are {num_rows} rows for {num_shards} shards; each needs one at '
      'least, and should have many. Take fewer shards.'
    )
  randomness = Randomness() if randomness is None else randomness
  if units is None:
    randomness.claim(label)
    return randomness.numpy(label).integers(num_shards, size=num_rows)
  units = _checked(units, num_rows)
  randomness.claim(label)
  names, places = np.unique(units, return_inverse=True)
  # By name, not by place: the shard of a unit depends on no other unit.
  shards = [
    int.from_bytes(randomness.key(label, str(name))[:_UNIT_BYTES], 'big')
    % num_shards
    for name in names
  ]
  return np.array(shards, np.int64)[places.reshape(-1)]


def _checked(units, num_rows):
  units = np.asarray(units)
  if units.shape != (num_rows,):
    raise ValueError(
      f'units has shape {units.shape}; it must be [{num_rows}], one per row.'
    )
  if units.dtype == object and {type(unit) for unit in units} in ({str}, {int}):
    units = np.array(units.tolist())  # A column of pandas.
  if units.dtype.kind not in 'iuU':
    raise ValueError(
      f'units has dtype {units.dtype}; it must hold integers or strings. '
      "Name missing units first, and take units.astype('str')."
    )
  return units
