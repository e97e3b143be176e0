"""Inequalities between columns, on codes: what breaks them, and how often.

A model gives every row a bin of each column and a value within it. Which bins
can meet the inequalities is known without any data; so is, from the released
histograms, which share of the values of some bins does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdpflows.tabular.constraints import Order, is_broken
from tfdpflows.tabular.encoding import TableEncoder

# Values of a bin, by which the share of those that meet is estimated: all pairs
# of them of two columns, and as many random combinations of more columns.
_POINTS, _COMBINED = 512, 4096
# As in `TableEncoder.decode`.
_OFFSET = 1e-6
_TINY = 1e-300


class Pair(NamedTuple):
  """Numbers of two columns, the lower first, and their least difference."""

  low: int
  high: int
  gap: int


class OrderedCodes:
  """The inequalities of a schema, on the codes of its columns.

  Attributes:
    pairs: list of `Pair`, empty without inequalities.
    columns: numbers of the columns that are compared.
  """

  def __init__(self, encoder: TableEncoder):
    schema = encoder.schema
    numbers = {c.name: i for i, c in enumerate(encoder.columns)}
    self.pairs = [
      Pair(numbers[low], numbers[high], gap)
      for low, high, gap in Order(schema.constraints).pairs
    ]
    self.columns = sorted({j for pair in self.pairs for j in pair[:2]})
    self._encoded = {j: encoder.columns[j] for j in self.columns}
    self._grids = {
      j: schema[encoder.columns[j].name].grid for j in self.columns
    }

  def steps(self, codes: tf.Tensor, column: int) -> tf.Tensor:
    """Returns codes of a column as multiples of its step, NaN for missing."""
    encoded, (first, last) = self._encoded[column], self._grids[column]
    x = tf.cast(codes, tf.float64)
    if encoded.cell:
      top = round(encoded.size) - 1
      found = tf.clip_by_value(tf.floor(x), 0, top)
      missing = tf.equal(found, top)
      found += first
    else:
      x = encoded.exact(x, tf.where)
      missing = x > encoded.value_size * (1 + _OFFSET)
      found = tf.round(tf.clip_by_value(x + first, first, last))
    if not encoded.missing:
      return found
    return tf.where(missing, np.float64(np.nan), found)

  def broken(self, x: tf.Tensor, rounded: bool = False) -> tf.Tensor:
    """Returns which rows of codes `[..., d]` break one, bool `[...]`.

    Args:
      x: the codes.
      rounded: whether they stand for rows that may meet all of them: of more
        than 2^24 steps float32 has no room for each, and a row is then broken
        only if it is so by more than is rounded.
    """
    steps = {j: self.steps(x[..., j], j) for j in self.columns}
    slack = {j: self._slack(j) if rounded else 0.0 for j in self.columns}
    return tf.reduce_any(
      [
        is_broken(
          steps[p.low], steps[p.high] + slack[p.low] + slack[p.high], p.gap
        )
        for p in self.pairs
      ],
      0,
    )

  def _slack(self, column):
    encoded = self._encoded[column]
    if encoded.cell or encoded.size < 2**24:
      return 0.0
    return float(np.spacing(np.float32(encoded.size)))


class Bins(NamedTuple):
  """The bins of a column, and how values are spread within them.

  Attributes:
    cuts: float64 `[b - 1]`, the edges of the histogram where bins meet.
    search_cuts: float64 `[b - 1]`, the same to find the bins of codes among
      (`histograms.search_edges`).
    edges: float64 `[m + 1]`, the edges of the column's histogram.
    probabilities: float64 `[m]`, of its cells, which are even in themselves.
  """

  cuts: np.ndarray
  search_cuts: np.ndarray
  edges: np.ndarray
  probabilities: np.ndarray

  @property
  def log_densities(self) -> np.ndarray:
    """The log-density in each cell of the histogram."""
    return np.log(self.probabilities / np.diff(self.edges))

  @property
  def ends(self) -> tuple[np.ndarray, np.ndarray]:
    """The cumulative probabilities where bins begin and end."""
    edges, upto = self.cumulative
    inner = np.interp(self.cuts, edges, upto)
    return np.append(0.0, inner), np.append(inner, 1.0)

  @property
  def codes(self) -> tuple[np.ndarray, np.ndarray]:
    """The codes where bins begin and end."""
    return (
      np.append(self.edges[0], self.cuts),
      np.append(self.cuts, self.edges[-1]),
    )

  @property
  def cumulative(self) -> tuple[np.ndarray, np.ndarray]:
    """The edges, and the probability below each."""
    upto = np.cumsum(self.probabilities) / np.sum(self.probabilities)
    return self.edges, np.append(0.0, upto)

  def codes_at(self, place: tf.Tensor) -> tf.Tensor:
    """Returns the codes, float64, at cumulative probabilities of any shape."""
    edges, upto = self.cumulative
    place = tf.convert_to_tensor(place, tf.float64)
    cell = tf.searchsorted(
      tf.constant(upto[1:-1]), tf.reshape(place, [-1]), side='right'
    )
    cell = tf.reshape(cell, tf.shape(place))
    start, below, slope = (
      tf.gather(tf.constant(table), cell)
      for table in (
        edges[:-1],
        upto[:-1],
        np.diff(edges) / np.maximum(np.diff(upto), _TINY),
      )
    )
    return start + slope * (place - below)


class OrderedBins:
  """Inequalities between columns that a model divides into bins."""

  def __init__(self, order: OrderedCodes, bins: dict[int, Bins]):
    self._order, self._bins = order, bins
    lowest, highest = {}, {}
    for j, some in bins.items():
      firsts, lasts = some.codes
      # A missing value is no end: it breaks nothing.
      first = order.steps(firsts, j).numpy()
      last = order.steps(np.nextafter(lasts, -np.inf), j).numpy()
      lowest[j] = np.where(np.isnan(first) | np.isnan(last), -np.inf, first)
      highest[j] = np.where(np.isnan(last), np.inf, last)
    self.possible = {
      pair: ~is_broken(
        lowest[pair.low][:, None], highest[pair.high][None, :], pair.gap
      )
      for pair in order.pairs
    }
    self._shares = {}
    self._points = {}
    for group in connected(order.pairs):
      pairs = [p for p in order.pairs if p.low in group]
      if len(pairs) == 1:
        self._shares[pairs[0]] = self._share(
          pairs[0], self._steps(pairs[0].low), self._steps(pairs[0].high)
        )
      else:
        # Each column in an order of its own, so that they are independent.
        rng = np.random.default_rng(0)
        self._points[tuple(pairs)] = {
          j: rng.permuted(self._steps(j, _COMBINED), axis=1) for j in group
        }

  def _steps(self, j, count=_POINTS):
    """Steps of values in each bin of a column, evenly, `[bins, count]`."""
    low, high = (end[:, None] for end in self._bins[j].ends)
    place = low + (high - low) * (np.arange(count) + 0.5) / count
    return self._order.steps(self._codes(j, place), j).numpy()

  def _share(self, pair, low, high):
    """The share of values of two bins that meet, `[bins, bins]`."""
    low = low + pair.gap
    share = np.empty((len(low), len(high)))
    for k, some in enumerate(high):
      known = np.sort(some[~np.isnan(some)])
      below = np.searchsorted(known, low)
      below[np.isnan(low)] = 0
      share[:, k] = 1 - below.mean(1) / len(some)
    least = np.where(self.possible[pair], 1 / (2 * len(low[0])), 0)
    return np.maximum(share * self.possible[pair], least)

  def found(self, x: tf.Tensor) -> dict[int, tf.Tensor]:
    """Returns the bin of each column that is compared, of codes `[n, d]`."""
    return {
      j: tf.searchsorted(
        tf.constant(some.search_cuts, tf.float64),
        tf.cast(x[:, j], tf.float64),
        side='right',
      )
      for j, some in self._bins.items()
    }

  def log_share(self, x: tf.Tensor) -> tf.Tensor:
    """Returns the log of the share of values that meet, in the bins of rows.

    It is -inf for bins in which none do.

    Args:
      x: codes `[n, d]`.

    Returns:
      float64 `[n]`.
    """
    bins = self.found(x)
    total = tf.zeros(tf.shape(x)[:1], tf.float64)
    for pair, table in self._shares.items():
      place = bins[pair.low] * table.shape[1] + bins[pair.high]
      total += tf.gather(
        tf.constant(np.log(np.maximum(table, _TINY)).ravel()), place
      )
    for pairs, points in self._points.items():
      steps = {j: tf.gather(tf.constant(p), bins[j]) for j, p in points.items()}
      broken = tf.reduce_any(
        [is_broken(steps[p.low], steps[p.high], p.gap) for p in pairs], 0
      )
      met = tf.reduce_mean(tf.cast(~broken, tf.float64), 1)
      total += tf.math.log(tf.maximum(met, 1 / (2 * _COMBINED)))
    return tf.where(self.is_possible(bins), total, np.float64(-np.inf))

  def is_possible(self, bins: dict[int, tf.Tensor]) -> tf.Tensor:
    """Returns whether values in bins can meet, bool `[n]`.

    Args:
      bins: of each column that is compared the bins of rows, int `[n]`.
    """
    found = tf.ones_like(next(iter(bins.values())), tf.bool)
    for pair, table in self.possible.items():
      place = bins[pair.low] * table.shape[1] + bins[pair.high]
      found &= tf.gather(tf.constant(table.ravel()), place)
    return found

  def moved(
    self,
    x: tf.Tensor,
    bins: dict[int, tf.Tensor],
    which: tf.Tensor,
    seed: tf.Tensor,
  ) -> tf.Tensor:
    """Returns codes `[n, d]`, some with other values in the same bins.

    Args:
      x: codes `[n, d]`.
      bins: those of the rows, see `is_possible`. Rounded codes may be in
        others: a spike is a few units in the last place wide.
      which: bool `[n]`, the rows that are drawn again.
      seed: int32 `[2]`.
    """
    columns = tf.unstack(x, axis=1)
    uniform = tf.random.stateless_uniform(
      [len(self._bins), tf.shape(x)[0]], seed, dtype=tf.float64
    )
    for i, (j, some) in enumerate(self._bins.items()):
      low, high = (tf.gather(tf.constant(e), bins[j]) for e in some.ends)
      place = low + (high - low) * uniform[i]
      codes = self._codes(j, place, bins[j])
      columns[j] = tf.where(which, codes, columns[j])
    return tf.stack(columns, 1)

  def _codes(self, j, place, bins=None):
    """Codes in float32, at cumulative probabilities of values in bins.

    Without `bins` there is a row of probabilities for each bin.
    """
    some = self._bins[j]
    if bins is None:
      ends = [end[:, None] for end in some.codes]
    else:
      ends = [tf.gather(tf.constant(end), bins) for end in some.codes]
    codes = some.codes_at(place)
    # Rounding must not move them out of their bins.
    low, high = (tf.cast(end, tf.float32) for end in ends)
    return tf.clip_by_value(
      tf.cast(codes, tf.float32), low, tf.math.nextafter(high, low)
    )


def connected(pairs: Sequence[tuple[int, ...]]) -> list[set[int]]:
  """Returns the groups of columns that pairs connect with each other.

  Args:
    pairs: whose first two parts are numbers of columns.

  >>> connected([(0, 1), (2, 3), (1, 4)])
  [{2, 3}, {0, 1, 4}]
  """
  groups = []
  for pair in pairs:
    touched = [g for g in groups if not g.isdisjoint(pair[:2])]
    groups = [g for g in groups if g not in touched]
    groups.append(set(pair[:2]).union(*touched))
  return groups
