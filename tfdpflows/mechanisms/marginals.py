"""Marginals of several columns with Gaussian noise, and which to measure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import dp_accounting
import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_positive
from tfdpflows.accounting import ExponentialMechanismDpEvent, PrivacyLedger
from tfdpflows.mechanisms.releases import (
  charge_release,
  check_rows,
  differing_rows,
  drawn_by_weight,
  row_weights,
)
from tfdpflows.noise_grid import add_noise
from tfdpflows.randomness import Randomness
from tfdpflows.sampling import Units
from tfdpflows.stored_rows import StoredRows

# Cells of counts that are kept, and groups that a ledger lists.
_MOST_KEPT, _MOST_LISTED = 1 << 25, 256
# Expected counts, the most: the sum of differences to more of them is rounded,
# and one row may move it by more.
MOST_EXPECTED = 1e12


@dataclasses.dataclass(frozen=True, eq=False)
class Marginal:
  """Noisy numbers of rows in every combination of bins of some columns.

  Attributes:
    columns: the numbers of the columns, a tuple of k.
    counts: float64 array of k dimensions, as many rows as were seen plus noise:
      it may be negative.
    std: standard deviation of the noise of each count, in rows.
  """

  columns: tuple
  counts: np.ndarray
  std: float


class BinnedRows:
  """Bins of rows, whose marginals are counted once each.

  For mechanisms that look at the same rows many times. It holds private counts:
  only mechanisms may read it.

  Args:
    codes: see `noisy_marginals`, as the errors.
    sizes: see there.
    units: see there.

  Attributes:
    codes: the codes, in range, in a small type of integers; `StoredRows` if
      they are so.
    sizes: a tuple.
    units: see above.
  """

  def __init__(
    self,
    codes: npt.ArrayLike,
    sizes: Sequence[int],
    units: Optional[Units] = None,
  ):
    codes, self.sizes = _checked(codes, sizes)
    self.units = units
    check_rows(units, len(codes))
    self._stored = isinstance(codes, StoredRows)
    self.codes, self._weights = codes, None
    if not self._stored:
      self.codes = _compact(codes, self.sizes)
      if units is not None:
        self._weights = row_weights(units, len(codes))
    self._counts, self._kept, self._digests = {}, 0, {}

  def fingerprint(self, randomness: Optional[Randomness]) -> np.ndarray:
    """Returns what stands for the codes in a fingerprint: computed once.

    Args:
      randomness: the `Randomness` that keys it; `None` for the codes.
    """
    if randomness is None:
      return self.codes
    key = randomness.key('fingerprint')
    if key not in self._digests:
      found = randomness.table_fingerprint([self.codes])
      self._digests[key] = np.frombuffer(bytes.fromhex(found), np.uint8)
    return self._digests[key]

  def count(self, group: tuple[int, ...]) -> np.ndarray:
    """Returns the number (or weight) of rows per combination of bins."""
    (found,) = self.count_all([group])
    return found

  def count_all(self, groups: Iterable[tuple[int, ...]]) -> list[np.ndarray]:
    """Counts several groups at once, in one pass over stored rows.

    As long as they are few, counts are kept.
    """
    groups = list(groups)
    new = [g for g in dict.fromkeys(groups) if g not in self._counts]
    if self._stored:
      found = _count_stored(self.codes, self.sizes, new, self.units)
    else:
      found = {
        group: count(self.codes, self.sizes, group, self._weights)
        for group in new
      }
    for group, counts in found.items():
      if self._kept + counts.size <= _MOST_KEPT:
        self._kept += counts.size
        self._counts[group] = counts
    return [found[g] if g in found else self._counts[g] for g in groups]


def noisy_marginals(
  codes: npt.ArrayLike | BinnedRows,
  sizes: Sequence[int],
  groups: Sequence[Sequence[int]],
  noise_multiplier: float,
  randomness: Optional[Randomness],
  ledger: PrivacyLedger,
  *,
  label: str = 'joint marginals',
  resume: bool = False,
  units: Optional[Units] = None,
) -> list[Marginal]:
  """Returns noisy marginals of groups of columns, all with the same noise.

  Args:
    codes: integer array `[n, d]`, the bin of each row in each column, or
      `StoredRows` of it; or `BinnedRows` of it, with these sizes and units.
    sizes: the public number of bins of each column, `[d]`; column j has codes
      in `[0, sizes[j])`. A code out of range counts as the nearest bin:
      refusing it would tell of a row.
    groups: sequence of tuples of different numbers of columns, such as
      `[(0, 3), (1, 2, 3)]`.
    noise_multiplier: noise multiplier of the joint release; each count gets
      noise of standard deviation `noise_multiplier * sqrt(len(groups))`.
    randomness: see `tfdpflows.mechanisms`, as the errors.
    ledger: see there.
    label: see there.
    resume: see there.
    units: see there.

  Returns:
    A list of `Marginal`s, one for each group.

  Raises:
    ValueError: for codes that are no integers, or groups out of range.

  #### Formal guarantee

  One row more or less changes one count of every group by one, and one unit the
  counts of a group by one in all: the l2 sensitivity of all counts together is
  `sqrt(len(groups))`, and this is `GaussianDpEvent(noise_multiplier)`. Where
  the ledger's neighbours replace a row two counts of a group change, less than
  the twice as much that accountants take for that. Nothing is clipped, rounded
  or made consistent here.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import accounting, mechanisms
  >>> from tfdpflows.randomness import Randomness
  >>> codes = np.array([[0, 1], [1, 1], [1, 0], [1, 1]])
  >>> pair, = mechanisms.noisy_marginals(
  ...   codes, [2, 2], [(0, 1)], .01, Randomness(seed=0),
  ...   accounting.PrivacyLedger())
  >>> pair.counts.round().astype(int).tolist()
  [[0, 1], [1, 2]]
  """
  rows = as_binned(codes, sizes, units)
  groups = checked_groups(groups, rows.sizes)
  event = dp_accounting.GaussianDpEvent(
    check_positive('noise_multiplier', noise_multiplier)
  )
  if not groups:
    return []
  randomness = charge_release(
    ledger,
    event,
    label=label,
    randomness=randomness,
    facts={
      'release': 'joint marginals',
      'noise_multiplier': noise_multiplier,
      'sizes': rows.sizes,
      'groups': groups,
    },
    arrays=[rows.fingerprint(randomness)],
    resume=resume,
    units=units,
  )
  std = event.noise_multiplier * math.sqrt(len(groups))
  draw = randomness.numpy(str(label)).normal
  return [
    Marginal(group, add_noise(counts, std, draw), std)
    for group, counts in zip(groups, rows.count_all(groups))
  ]


def select_marginal(
  codes: npt.ArrayLike | BinnedRows,
  sizes: Sequence[int],
  groups: Sequence[Sequence[int]],
  expected: Sequence[npt.ArrayLike],
  noise_std: float,
  epsilon: float,
  randomness: Optional[Randomness],
  ledger: PrivacyLedger,
  *,
  label: str = 'selection',
  resume: bool = False,
  units: Optional[Units] = None,
  weights: Optional[Sequence[float]] = None,
) -> int:
  """Chooses the group of columns that a model is most wrong about.

  McKenna et al. 2022, "AIM", equation 1: of the groups r it draws one by the
  exponential mechanism with the utility

      u(r) = w_r (|counts_r - expected_r|_1 - sqrt(2 / pi) noise_std cells_r),

  the error that a measurement could remove, less the one that its noise would
  put there, times the weight of the group.

  Args:
    codes: see `noisy_marginals`, as `sizes`.
    sizes: number of bins of each column.
    groups: those to choose from.
    expected: for each group the counts that the model expects, of shape
      `sizes[group]`; public.
    noise_std: standard deviation of the noise that a measurement would have.
    epsilon: of the exponential mechanism.
    randomness: see `tfdpflows.mechanisms`, as the errors.
    ledger: see there.
    label: see there.
    resume: see there.
    units: see there.
    weights: positive weights of the groups, public; 1 by default.

  Returns:
    The number of the chosen group.

  Raises:
    ValueError: for arguments that `noisy_marginals` refuses, no groups, or
      expected counts of another shape.

  #### Formal guarantee

  One row or unit more or less moves every u by its weight at most, up or down,
  twice that where a row is replaced. With the largest weight as the sensitivity
  it is the exponential mechanism, `ExponentialMechanismDpEvent(epsilon)`, which
  composes by its bounded range.
  """
  rows = as_binned(codes, sizes, units)
  sizes = rows.sizes
  groups = checked_groups(groups, sizes)
  event = ExponentialMechanismDpEvent(check_positive('epsilon', epsilon))
  noise_std = check_positive('noise_std', noise_std)
  if not groups or len(groups) != len(expected):
    raise ValueError(
      f'There are {len(groups)} groups and {len(expected)} arrays of expected '
      'counts; give one for each, and at least one.'
    )
  weights = np.array([1.0] * len(groups) if weights is None else weights, float)
  if weights.shape != (len(groups),) or not (
    np.isfinite(weights).all() and (weights > 0).all()
  ):
    raise ValueError(
      f'weights are {weights.tolist()}; give a positive number for each of the '
      f'{len(groups)} groups.'
    )
  expected = [np.asarray(e, np.float64) for e in expected]
  for group, e in zip(groups, expected):
    _check_expected(e, group, sizes, noise_std)
  randomness = charge_release(
    ledger,
    event,
    label=label,
    randomness=randomness,
    facts={
      'release': 'selection of a marginal',
      'epsilon': epsilon,
      'noise_std': noise_std,
      'sizes': sizes,
      'groups': listed_groups(groups),
    },
    arrays=[
      rows.fingerprint(randomness),
      weights,
      np.concatenate([e.ravel() for e in expected]),
    ],
    resume=resume,
    units=units,
  )
  counts = rows.count_all(groups)
  # With sensitivity 1. Weights are divided first: products with those that were
  # given may be rounded to whole ones or to infinity, which moves by more.
  utilities = (weights / weights.max()) * [
    np.abs(c - e).sum() - math.sqrt(2 / math.pi) * noise_std * e.size
    for c, e in zip(counts, expected)
  ]
  scale = epsilon / (2 * differing_rows(ledger.neighboring_relation))
  return drawn_by_weight(scale * utilities, randomness.numpy(str(label)))


def _check_expected(expected, group, sizes, noise_std):
  """Refuses counts of another shape, and numbers in which a row is lost."""
  shape = tuple(sizes[j] for j in group)
  if noise_std * math.prod(shape) > MOST_EXPECTED:
    raise ValueError(
      f'noise_std is {noise_std:g}; times the {math.prod(shape):,} cells of '
      f'columns {group} it must be {MOST_EXPECTED:g} at most.'
    )
  # NaN is no number up to that either.
  if expected.shape != shape or not np.abs(expected).sum() <= MOST_EXPECTED:
    raise ValueError(
      f'The expected counts of columns {group} have shape {expected.shape}; '
      f'they must be of shape {shape}, and {MOST_EXPECTED:g} in all at most.'
    )


def as_binned(
  codes: npt.ArrayLike | BinnedRows,
  sizes: Sequence[int],
  units: Optional[Units] = None,
) -> BinnedRows:
  """Returns `BinnedRows` of codes, or those that were given.

  Raises:
    ValueError: for `BinnedRows` of other sizes or units.
  """
  if not isinstance(codes, BinnedRows):
    return BinnedRows(codes, sizes, units)
  if tuple(sizes) != codes.sizes or units is not codes.units:
    raise ValueError(
      'sizes or units are not those that the BinnedRows were made with.'
    )
  return codes


def checked_groups(
  groups: Sequence[Sequence[int]], sizes: Sequence[int]
) -> list[tuple[int, ...]]:
  """Returns groups as tuples of numbers of columns.

  Raises:
    ValueError: for a group that does not name different columns.
  """
  groups = [tuple(map(int, group)) for group in groups]
  for group in groups:
    inside = group and min(group) >= 0 and max(group) < len(sizes)
    if not inside or len(set(group)) < len(group):
      raise ValueError(
        f'The group {group} must name different columns, numbers in '
        f'[0, {len(sizes)}).'
      )
  return groups


def listed_groups(groups: list[tuple[int, ...]]) -> Any:
  """Returns groups for a ledger: many of them by their number and a hash."""
  if len(groups) <= _MOST_LISTED:
    return groups
  text = json.dumps(groups).encode()
  return {'number': len(groups), 'sha256': hashlib.sha256(text).hexdigest()}


def count(
  codes: npt.ArrayLike,
  sizes: Sequence[int],
  group: Sequence[int],
  weights: Optional[npt.ArrayLike] = None,
) -> np.ndarray:
  """Returns the number of rows in each combination of bins, `sizes[group]`.

  Args:
    codes: integers `[n, d]`, in range.
    sizes: number of bins of each column, `[d]`.
    group: numbers of the columns.
    weights: of the rows, `[n]`; 1 by default.

  >>> count([[0, 1], [1, 1], [1, 1]], [2, 2], (0, 1)).tolist()
  [[0.0, 1.0], [0.0, 2.0]]
  """
  shape = tuple(sizes[j] for j in group)
  found = _count_cells(np.asarray(codes).T, group, shape, weights)
  return found.astype(np.float64).reshape(shape)


def _count_stored(codes, sizes, groups, units):
  """What `count` gives of `StoredRows`, for each group."""
  shapes = {group: tuple(sizes[j] for j in group) for group in groups}
  counts = {g: np.zeros(math.prod(shape)) for g, shape in shapes.items()}
  used = sorted({j for group in groups for j in group})

  def of_block(start, block):
    weights = None if units is None else units.weights_of(start, len(block))
    columns = {j: _in_range(block[:, j], sizes[j]) for j in used}
    return [_count_cells(columns, g, shapes[g], weights) for g in groups]

  for found in codes.map_blocks(of_block) if groups else ():
    for total, new in zip(counts.values(), found):
      total += new
  return {g: c.reshape(shapes[g]) for g, c in counts.items()}


def _count_cells(columns, group, shape, weights):
  """Counts the cells of a group, of columns by their numbers, in range."""
  # Of small numbers a register holds more.
  small = math.prod(shape) < 1 << 16  # As is the size of each column.
  cell = columns[group[0]].astype(np.uint16 if small else np.intp)
  for j, size in zip(group[1:], shape[1:]):
    # Every sum up to here is below the number of cells.
    cell *= cell.dtype.type(size)
    cell += columns[j].astype(cell.dtype, copy=False)
  return np.bincount(cell, weights, math.prod(shape))


def _checked(codes, sizes):
  if not isinstance(codes, StoredRows):
    codes = np.asarray(codes)
  sizes = tuple(int(size) for size in sizes)
  integers = np.issubdtype(codes.dtype, np.integer)
  if codes.ndim != 2 or codes.shape[1] != len(sizes) or not integers:
    raise ValueError(
      f'codes have shape {codes.shape} and dtype {codes.dtype}; with '
      f'{len(sizes)} sizes they must be integers [num_rows, {len(sizes)}].'
    )
  if min(sizes, default=1) < 1:
    raise ValueError(f'sizes are {sizes}; a column has one bin at least.')
  return codes, sizes


def _compact(codes, sizes):
  """Returns codes in range, `[n, d]`, each column in one piece."""
  dtype = np.min_scalar_type(max(sizes, default=1) - 1)
  found = np.empty(codes.shape[::-1], dtype)
  for j, size in enumerate(sizes):
    found[j] = _in_range(codes[:, j], size)
  return found.T


def _in_range(column, size):
  if np.issubdtype(column.dtype, np.unsignedinteger):
    # Some have no room for larger sizes, and with int64 some become floats.
    last = min(size - 1, np.iinfo(column.dtype).max)
    return np.minimum(column, column.dtype.type(last))
  return np.clip(column.astype(np.int64), 0, size - 1)
