"""Adaptive histograms of single columns with Gaussian noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

import dp_accounting
import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_positive
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.mechanisms import smoothing
from tfdpflows.mechanisms.releases import (
  as_numbers,
  charge_release,
  check_rows,
  row_weights,
)
from tfdpflows.noise_grid import add_noise
from tfdpflows.randomness import Randomness
from tfdpflows.sampling import Units
from tfdpflows.stored_rows import StoredRows

if TYPE_CHECKING:
  from tfdpflows.tabular.encoding import EncodedColumn

_MAX_BINS = 64
_LEVELS = 3
# The weight of each further level as a share of the one before: they are there
# for spikes, which stand out of more noise.
_DEEPER = 0.25
# One bin per cell needs no second level, which is more accurate up to this many
# times `max_bins` cells.
_CELLS_PER_BIN = 4
# A bin is refined if its noisy count is at least this many standard deviations,
# and this share of all rows: none of the 256 bins that are kept in the end is
# much lighter, and of a billion rows a million bins stand out of the noise.
_HEAVY = 4.0
_LEAST_SHARE = 1e-4
_MAX_SIZE = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Histogram:
  """Private histogram of one encoded column, after smoothing.

  Attributes:
    name: name of the column.
    edges: float64 array `[k + 1]`, increasing, from 0 to the column's size.
    counts: float64 array `[k]`, estimated rows in every bin; positive.
    std: standard deviation of the noise at the first level, in rows.
  """

  name: str
  edges: np.ndarray
  counts: np.ndarray
  std: float

  def probabilities(self) -> np.ndarray:
    """Returns float64 `[k]`: positive, of sum 1."""
    return self.counts / self.counts.sum()


def noise_stds(
  columns: Sequence[EncodedColumn],
  noise_multiplier: float,
  *,
  max_bins: int = _MAX_BINS,
  levels: int = _LEVELS,
) -> list[tuple[float, ...]]:
  """Returns the standard deviations of the noise, by column and level.

  The joint release of all levels is one Gaussian mechanism: with weights `w`,
  a level of weight `w_i` has standard deviation
  `noise_multiplier * sqrt(sum(w) / w_i)`, so that the squared sensitivities
  in units of the noise add up to `1 / noise_multiplier**2`. The weights follow
  from the public sizes alone: a level of `b` bins gets `b**(1/3)`, halfway
  between the same noise for every column and `b**(2/3)`, which would minimize
  the summed absolute error of all bins at the cost of the small columns. The
  first `levels` resolve a distribution; each further one, which tells a spike
  from its surroundings, has a quarter of the weight of the one before.
  """
  weights = [
    [
      bins ** (1 / 3) * _DEEPER ** max(level + 1 - levels, 0)
      for level, bins in enumerate(_level_bins(column, max_bins))
    ]
    for column in columns
  ]
  scale = check_positive('noise_multiplier', noise_multiplier)
  scale *= math.sqrt(sum(map(sum, weights)))
  return [tuple(scale / math.sqrt(w) for w in row) for row in weights]


def noisy_histograms(
  x: npt.ArrayLike,
  columns: Sequence[EncodedColumn],
  noise_multiplier: float,
  randomness: Optional[Randomness],
  ledger: PrivacyLedger,
  *,
  label: str = 'marginals',
  resume: bool = False,
  max_bins: int = _MAX_BINS,
  levels: int = _LEVELS,
  units: Optional[Units] = None,
) -> list[Histogram]:
  """Returns a private histogram of every column of an encoded table.

  Args:
    x: float array `[n, d]`, an encoded table; or `StoredRows` of it, which are
      counted block by block, to the same numbers.
    columns: `d` encoded columns: `name`, `size`, `cell`, `missing`, `ordered`,
      `resolution`, and perhaps `likely`, see `EncodedColumn`.
    noise_multiplier: noise multiplier of the joint release.
    randomness: see `tfdpflows.mechanisms`, as the errors; column `name` draws
      from its stream `(label, name)`.
    ledger: see there; all columns and levels are one charge.
    label: see there.
    resume: see there.
    max_bins: most bins per level and parent.
    levels: how many levels have the full weight, see `noise_stds`.
    units: see `tfdpflows.mechanisms`; counts are sums of weights then.

  Returns:
    A list of `d` `Histogram`s.

  Raises:
    ValueError: if shapes disagree, two columns have one name, or `x` holds
      other things than real numbers.

  #### Formal guarantee

  Adding or removing one row changes one bin by one at every level of every
  column, so a level is a Gaussian mechanism of l2 sensitivity 1; so it is where
  a unit is added or removed, whose weights add up to 1 at most (the square root
  of 2 where the ledger's neighbours replace a row, less than the 2 that
  accountants take for that). Which bins the next level refines depends on
  earlier noisy counts alone. The adaptive composition of Gaussian mechanisms
  whose noise is fixed beforehand is dominated by the one Gaussian mechanism of
  the summed precision, which is `GaussianDpEvent(noise_multiplier)`. Smoothing
  is post-processing.
  """
  stored = isinstance(x, StoredRows)
  if not stored:
    x = as_numbers(x, shape=('num_rows', len(columns)))
  if not columns:
    return []
  check_rows(units, len(x))
  names = [column.name for column in columns]
  if len(set(names)) < len(names):
    raise ValueError(f'Two columns have the same name: {names}.')
  stds = noise_stds(columns, noise_multiplier, max_bins=max_bins, levels=levels)
  randomness = charge_release(
    ledger,
    dp_accounting.GaussianDpEvent(float(noise_multiplier)),
    label=label,
    randomness=randomness,
    facts={
      'release': 'histograms',
      'noise_multiplier': noise_multiplier,
      'max_bins': max_bins,
      'levels': levels,
      'columns': [
        [
          c.name,
          c.size,
          c.cell,
          bool(c.missing),
          bool(c.ordered),
          c.resolution,
          *map(list, _likely(c)),
        ]
        for c in columns
      ],
    },
    arrays=[x],
    resume=resume,
    units=units,
  )
  rngs = [randomness.numpy(str(label), column.name) for column in columns]
  if stored:
    releases = _release_stored(x, columns, stds, rngs, max_bins, units)
  else:
    weights = row_weights(units, len(x))
    releases = [
      _release(x[:, i], column, stds[i], rngs[i], max_bins, weights)
      for i, column in enumerate(columns)
    ]
  # All columns count the same rows, so their totals are pooled.
  precision = [1 / (len(r[0][1]) * s[0] ** 2) for r, s in zip(releases, stds)]
  totals = [r[0][1].sum() for r in releases]
  total = max(float(np.average(totals, weights=precision)), 1.0)
  return [
    _estimate(release, column, std, total)
    for release, column, std in zip(releases, columns, stds)
  ]


def _value_size(column):
  """Where the values end and the interval of missing ones begins."""
  if not column.missing:
    return float(column.size)
  return float(column.size - (column.cell or column.size / 65))


def _largest_value(column):
  """The largest code of a continuous column that is taken for a value.

  The largest value belongs to the last bin, not to the missing ones, and the
  rounding of float32 must not carry it over.
  """
  end = _value_size(column)
  return end + (column.size - end) / 4


def search_edges(edges: npt.ArrayLike, column: EncodedColumn) -> np.ndarray:
  """Returns edges among which codes are found in the bins that count them.

  The edges are of one histogram or of several joined; those that are returned,
  float64, are for `np.searchsorted(edges, codes, side='right')`.
  """
  edges = np.asarray(edges, np.float64)
  if column.cell:
    return edges
  above = np.nextafter(_largest_value(column), np.inf)
  return np.where(edges == _value_size(column), above, edges)


def _level_bins(column, max_bins):
  """Bins per parent at every level; a function of public sizes alone."""
  cells = math.ceil(_value_size(column) / _finest(column))
  few = cells <= _CELLS_PER_BIN * max_bins or not column.ordered
  if column.cell and few:
    return [max(cells, 1) + bool(column.missing)]
  bins = [max_bins + bool(column.missing)]
  rest = cells / max_bins
  while rest > 1:
    bins.append(max_bins if rest > max_bins else math.ceil(rest))
    rest /= max_bins
  return bins


def _finest(column):
  """The narrowest bin that can tell a value from the next one."""
  # Points are rounded to the nearest value, so that half of it is on one side.
  return column.cell or column.resolution / 2


def _split(low, high, cell, bins):
  """Edges of at most `bins` bins of equal width, in whole cells."""
  if not cell:
    return np.linspace(low, high, bins + 1)
  width = cell * max(math.ceil(round((high - low) / cell) / bins), 1)
  # Only the last bin may be narrower.
  return np.append(np.arange(low, high - cell / 2, width), high)


def _release(x, column, stds, rng, max_bins, weights=None):
  """All levels of one column: `[(edges [m, 2], counts [m], parent [m])]`."""
  values = _counted(np.asarray(x, np.float64), column)
  order = np.argsort(values, kind='stable')
  values = values[order]
  # The weight of all rows before each one.
  below = np.arange(len(values) + 1.0)
  if weights is not None:
    below = np.append(0.0, np.cumsum(weights[order]))
  levels = _levels(column, stds, rng, max_bins)
  bounds = next(levels)
  while True:
    places = np.searchsorted(values, bounds)
    places[:, 1][bounds[:, 1] >= column.size] = len(values)
    counts = below[places[:, 1]] - below[places[:, 0]]
    try:
      bounds = levels.send(counts)
    except StopIteration as stop:
      return stop.value


def _release_stored(x, columns, stds, rngs, max_bins, units):
  """What `_release` gives of each column of `StoredRows`.

  All columns are counted in one pass over the rows, and refined together.
  """
  levels = [_levels(*of, max_bins) for of in zip(columns, stds, rngs)]
  releases = [None] * len(columns)
  bounds = {i: next(level) for i, level in enumerate(levels)}
  # How many rows have each code says all at once, where codes are cells.
  edges = {
    i: np.arange(round(c.size) + 1.0) for i, c in enumerate(columns) if c.cell
  }
  below = {}
  while bounds:
    points = {i: np.unique(b) for i, b in bounds.items() if not columns[i].cell}
    edges.update(points)
    below.update(_weights_below(x, points if below else edges, columns, units))
    waiting, bounds = bounds, {}
    for i, bound in waiting.items():
      found = below[i][np.searchsorted(edges[i], bound)]
      found[:, 1][bound[:, 1] >= columns[i].size] = below[i][-1]
      try:
        bounds[i] = levels[i].send(found[:, 1] - found[:, 0])
      except StopIteration as stop:
        releases[i] = stop.value
  return releases


def _weights_below(x, edges, columns, units):
  """The weight of the rows below each edge, and last of all rows.

  Args:
    x: `StoredRows`.
    edges: increasing, for some columns by number.
    columns: encoded columns.
    units: the units, or `None`.
  """
  counts = {i: np.zeros(len(edge) + 1) for i, edge in edges.items()}

  def of_block(start, block):
    weights = None if units is None else units.weights_of(start, len(block))
    found = []
    for i, edge in edges.items():
      if columns[i].cell:
        place = block[:, i].astype(np.int64) + 1
      else:
        values = _counted(block[:, i].astype(np.float64), columns[i])
        if weights is None:
          # Of sorted values places among many edges are found several times as
          # fast, and without weights the order of rows does not matter.
          values = np.sort(values)
        place = np.searchsorted(edge, values, side='right')
      if len(edge) < len(block):
        place = np.bincount(place, weights, len(edge) + 1)
      found.append(place)
    return found, 1 if weights is None else weights

  for found, weights in x.map_blocks(of_block) if edges else ():
    for total, new in zip(counts.values(), found):
      if len(new) == len(total):
        total += new
      else:
        # Of so many edges counts of each block would be the larger arrays.
        np.add.at(total, new, weights)
  return {i: np.cumsum(count) for i, count in counts.items()}


def _counted(values, column):
  """Values as they are counted, float64."""
  if column.cell:
    return values
  is_value = values <= _largest_value(column)
  last = np.nextafter(_value_size(column), 0.0)
  return np.where(is_value, np.minimum(values, last), values)


def _levels(column, stds, rng, max_bins):
  """Yields the bounds of the bins of a level, and takes the counts of them.

  Returns all levels: `[(edges [m, 2], noisy counts [m], parent [m])]`.
  """
  end = _value_size(column)
  bins = _level_bins(column, max_bins)[0] - bool(column.missing)
  edges = _split(0.0, end, column.cell, bins)
  bounds = np.stack([edges[:-1], edges[1:]], axis=-1)
  if column.missing:
    bounds = np.concatenate([bounds, [[end, float(column.size)]]])
  parent = np.full(len(bounds), -1)
  likely = _likely_spikes(column)
  levels = []
  for level, std in enumerate(stds):
    counts = yield bounds
    noisy = add_noise(counts, std, rng.normal)
    spikes = np.zeros(len(bounds), bool)
    if level == 1:
      bounds, noisy, parent, spikes = _with_clear_spikes(
        bounds, noisy, parent, likely, _HEAVY * std
      )
    levels.append((bounds, noisy, parent))
    if level + 1 == len(stds):
      break
    least = _LEAST_SHARE * levels[0][1].sum()
    heavy = noisy > max(_HEAVY * max(std, stds[level + 1]), least)
    heavy &= ~spikes
    widths = bounds[:, 1] - bounds[:, 0]
    heavy &= widths > (1.5 if column.cell else 1.0) * _finest(column)
    most = np.full(len(widths), max_bins)
    if not column.cell:
      # Far from zero, float32 cannot tell points apart that are closer.
      closest = np.spacing(bounds[:, 1].astype(np.float32))
      most = np.minimum(most, (widths / closest).astype(int))
      heavy &= most > 1
    heavy &= bounds[:, 0] < end
    parts = [
      _split(bounds[i, 0], bounds[i, 1], column.cell, most[i])
      for i in np.flatnonzero(heavy)
    ]
    if not parts:
      break
    if level == 0:
      parts = [_cut_out(edges, likely) for edges in parts]
    parent = np.repeat(np.flatnonzero(heavy), [len(p) - 1 for p in parts])
    bounds = np.concatenate([np.stack([p[:-1], p[1:]], -1) for p in parts])
  return levels


def _likely(column):
  return getattr(column, 'likely', ())


def _likely_spikes(column):
  """Where the values are that many rows may share, `[k, 2]`, in order."""
  found = np.reshape(_likely(column), (-1, 2))
  found = np.stack([found[:, 0] - found[:, 1], found.sum(1)], 1)
  return np.clip(found, 0.0, _value_size(column))


def _cut_out(edges, likely):
  """Edges of bins among which likely spikes are bins of their own."""
  for low, high in np.clip(likely, edges[0], edges[-1]):
    outside = (edges <= low) | (edges >= high)
    edges = np.unique([*edges[outside], low, high])
  return edges


def _with_clear_spikes(bounds, noisy, parent, likely, least):
  """Returns bins of which likely spikes that are not clear are none.

  They go to the bins beside them. The last that is returned is which bins are
  spikes.
  """
  within = (bounds[:, :1] >= likely[:, 0]) & (bounds[:, 1:] <= likely[:, 1])
  clear = within.any(1) & (noisy > least)
  unclear = within.any(1) & ~clear
  same = parent[1:] == parent[:-1]
  joined = same & (unclear[1:] | unclear[:-1]) & ~(clear[1:] | clear[:-1])
  starts = np.flatnonzero(np.append(True, ~joined))
  lasts = np.append(starts[1:], len(bounds)) - 1
  bounds = np.stack([bounds[starts, 0], bounds[lasts, 1]], -1)
  noisy = np.add.reduceat(noisy, starts)
  return bounds, noisy, parent[starts], clear[starts]


def _estimate(levels, column, stds, total):
  """Smoothed histogram of the noisy levels; post-processing."""
  noisy = [level[1].copy() for level in levels]
  variances = [np.full(len(n), s**2) for n, s in zip(noisy, stds)]
  # From the finest level up: a parent is measured twice, by its own count and
  # by the sum of its children; both are weighted by their precision.
  for level in range(len(levels) - 1, 0, -1):
    parent = levels[level][2]
    sums = np.zeros(len(noisy[level - 1]))
    spread = np.zeros(len(noisy[level - 1]))
    np.add.at(sums, parent, noisy[level])
    np.add.at(spread, parent, variances[level])
    split = np.unique(parent)
    own = variances[level - 1][split]
    share = own / (own + spread[split])
    noisy[level - 1][split] += share * (sums[split] - noisy[level - 1][split])
    variances[level - 1][split] = own * (1 - share)
  counts = [_first_level(noisy[0], stds[0], total, column)]
  for level in range(1, len(levels)):
    parent = levels[level][2]
    result = np.empty(len(parent))
    starts = np.flatnonzero(np.diff(parent, prepend=-1))
    for rows in np.split(np.arange(len(parent)), starts[1:]):
      mass = counts[level - 1][parent[rows[0]]]
      seen, std = noisy[level][rows], stds[level]
      if smoothing.is_flat(seen, std, mass, tests=len(starts)):
        widths = levels[level][0][rows, 1] - levels[level][0][rows, 0]
        result[rows] = mass * widths / widths.sum()
      else:
        result[rows] = smoothing.posterior_counts(seen, std, mass, ordered=True)
    counts.append(result)
  edges, counts = _leaves(levels, counts, column)
  return Histogram(column.name, edges, counts, float(stds[0]))


def _first_level(noisy, std, total, column):
  """Counts of the first level; the missing bin is no neighbour of others."""
  if not (column.missing and column.ordered and len(noisy) > 2):
    return smoothing.posterior_counts(
      noisy, std, total, ordered=column.ordered, may_end=True
    )
  # The total is known better than the sum of the other bins.
  missing = smoothing.posterior_counts(
    [total - noisy[-1], noisy[-1]], std, total, ordered=False
  )[1]
  counts = smoothing.posterior_counts(
    noisy[:-1], std, total - missing, ordered=True, may_end=True
  )
  return np.append(counts, missing)


def _leaves(levels, counts, column):
  """Bins that no level refined, in order, merged if there are too many."""
  lows, masses = [], []
  for level, (bounds, _, _) in enumerate(levels):
    leaf = np.ones(len(bounds), bool)
    if level + 1 < len(levels):
      leaf[levels[level + 1][2]] = False
    lows.append(bounds[leaf, 0])
    masses.append(counts[level][leaf])
  lows, masses = np.concatenate(lows), np.concatenate(masses)
  order = np.argsort(lows)
  edges = np.append(lows[order], float(column.size))
  if len(levels) == 1:
    return edges, masses[order]
  return _merge(edges, masses[order], bool(column.missing))


def _merge(edges, counts, keep_last):
  """Joins neighbours of nearly equal density until few enough are left."""
  total = counts.sum()
  limit = 1e-6 * total
  while True:
    widths = np.diff(edges)
    share = widths[:-1] / (widths[:-1] + widths[1:])
    cost = np.abs(counts[:-1] - share * (counts[:-1] + counts[1:]))
    if keep_last:
      cost[-1] = np.inf
    low = cost <= limit
    # Joins must not overlap; a join goes first where it is a local minimum.
    ahead = np.append(cost[1:], np.inf)
    behind = np.insert(cost[:-1], 0, np.inf)
    chosen = low & (cost < behind) & (cost <= ahead)
    if not chosen.any():
      if len(counts) <= _MAX_SIZE:
        return edges, counts
      limit *= 1.5
      continue
    where = np.flatnonzero(chosen)
    where = where[np.diff(where, prepend=-2) > 1]
    counts[where] += counts[where + 1]
    counts = np.delete(counts, where + 1)
    edges = np.delete(edges, where + 1)
