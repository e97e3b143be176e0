"""Dependence of values within bins, where a column nearly decides another.

A model of bins knows nothing of where in its bin a value is. For most pairs of
columns that is all there is to know; where one is nearly a function of the
other (a diamond's length and its weight) most of it is missing. Bins are
therefore divided into parts, and a tree of such pairs says which parts go
together, given the bins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy import special

from tfdpflows import mechanisms
from tfdpflows.mechanisms import histograms
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.ordered_codes import Bins, connected

# Parts of a bin.
PARTS = 4
# Mutual information of the bins of a pair, over that of a function, from where
# on there is something to learn within them.
_DEPENDENT = 0.4
# Rows in bins that have parts, of all.
_LEAST_MASS = 0.1
# A bin with fewer different numbers is a spike, and not divided.
_FEWEST_NUMBERS = 16
# Newton's method: steps, how much of one is tried, and the largest weight.
_STEPS, _TRIED, _LARGEST_WEIGHT = 40, 0.5 ** np.arange(12), 15.0
# Least variance of the weights, and what keeps their equations regular.
_LEAST_VARIANCE, _RIDGE = 1e-4, 1e-2
_TINY = 1e-12
# Logarithm of the share of a part without values, whatever the weights.
_IMPOSSIBLE = -1e4


class Parts(NamedTuple):
  """The bins of a column, each in parts of equal probability, if it can be.

  Parts of discrete columns are whole cells; some have no values.

  Attributes:
    cuts: float64 `[b * PARTS - 1]`, the codes where parts meet.
    ends: float64 `[b * PARTS + 1]`, the column's cumulative probabilities where
      parts begin and end.
    histogram: the `Bins`.
  """

  cuts: np.ndarray
  ends: np.ndarray
  histogram: Bins

  @property
  def shares(self) -> np.ndarray:
    """The probability of each part in its bin, `[b, PARTS]`."""
    found = np.diff(self.ends).reshape(-1, PARTS)
    return found / np.maximum(found.sum(1, keepdims=True), _TINY)

  @property
  def log_shares(self) -> np.ndarray:
    """The logarithm of `shares`, -10,000 of parts without values."""
    shares = self.shares
    return np.where(shares > 0, np.log(np.maximum(shares, _TINY)), _IMPOSSIBLE)

  @property
  def divided(self) -> np.ndarray:
    """Which bins have several parts with values, bool `[b]`."""
    return (self.shares > 0).sum(1) > 1

  def find(self, codes: tf.Tensor, bins: tf.Tensor | None = None) -> tf.Tensor:
    """Returns the numbers of the parts that codes are in, int32.

    Args:
      codes: of any shape.
      bins: their bins, if they are known better than by the rounded codes.
    """
    codes = tf.cast(codes, tf.float64)
    found = tf.searchsorted(tf.constant(self.cuts), codes, side='right')
    if bins is None:
      return found
    # The nearest part of that bin that has values.
    place = np.arange(PARTS)
    gaps = np.abs(place[:, None] - place)[None] + PARTS * (
      self.shares[:, None] <= 0
    )
    nearest = np.argmin(gaps, 2).astype(np.int32)
    first = bins * PARTS
    inside = tf.clip_by_value(found - first, 0, PARTS - 1)
    return first + tf.gather(tf.constant(nearest.ravel()), first + inside)

  def draw(self, parts: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Returns codes float32 `[n]` in parts, by the column's histogram.

    Args:
      parts: their numbers, `[n]`.
      uniform: float64 numbers in [0, 1), `[n]`.
    """
    low, high = (tf.gather(e, parts) for e in (self.ends[:-1], self.ends[1:]))
    codes = self.histogram.codes_at(low + (high - low) * uniform)
    # Rounding must not move them out of their parts.
    edges = self.histogram.edges
    starts = np.concatenate([edges[:1], self.cuts])
    ends = np.concatenate([self.cuts, edges[-1:]])
    first, last = starts.astype(np.float32), ends.astype(np.float32)
    first = np.where(first < starts, np.nextafter(first, np.inf), first)
    last = np.where(last >= ends, np.nextafter(last, -np.inf), last)
    return tf.clip_by_value(
      tf.cast(codes, tf.float32), *(tf.gather(e, parts) for e in (first, last))
    )


def divide(histogram: Bins, column: EncodedColumn) -> Parts:
  """Returns the `Parts` of the bins of an encoded column.

  >>> column = EncodedColumn('age', 6., 1., missing=False, ordered=True)
  >>> cuts = np.array([4.])
  >>> even = Bins(cuts, cuts, np.arange(7.), np.full(6, 1 / 6))
  >>> divide(even, column).cuts
  array([1., 2., 3., 4., 4., 5., 6.])
  """
  edges, upto = histogram.cumulative
  starts, ends = (code[:, None] for code in histogram.codes)
  low, high = (end[:, None] for end in histogram.ends)
  places = low + (high - low) * np.arange(1, PARTS) / PARTS
  codes = np.clip(np.interp(places, upto, edges), starts, ends)
  if column.cell:
    codes = np.round(codes)
  else:
    if column.missing:
      # The interval of missing values is one value.
      codes = np.clip(np.minimum(codes, column.value_size), starts, ends)
    step = np.maximum(np.spacing(ends.astype(np.float32)), column.resolution)
    is_spike = (ends - starts) / step < _FEWEST_NUMBERS
    codes = np.where(is_spike, starts, codes)
  cuts = np.concatenate([codes, ends], 1).ravel()[:-1]
  found = np.interp(cuts, edges, upto)
  # Where a histogram is flat the ends of bins are as they were given.
  found[PARTS - 1 :: PARTS] = histogram.ends[1][:-1]
  return Parts(
    histograms.search_edges(cuts, column),
    np.concatenate([[0.0], found, [1.0]]),
    histogram,
  )


class FinerRows(NamedTuple):
  """A table's parts, to be counted.

  Attributes:
    parts: the `Parts` of columns, by number, of those that are divided.
    sizes: number of parts of each column; of bins, if it is not divided.
    load: function that returns the private parts of the rows, int `[n, d]`.
  """

  parts: dict[int, Parts]
  sizes: tuple[int, ...]
  load: Callable[[], np.ndarray]

  def expected(self, pair: tuple[int, int], counts: np.ndarray) -> np.ndarray:
    """Returns the counts of parts of two columns, independent in their bins."""
    one, other = (self.parts[j].shares for j in pair)
    found = np.einsum('ab,ap,bq->apbq', counts, one, other)
    return found.reshape([self.sizes[j] for j in pair])

  def of_bins(self, marginal: mechanisms.Marginal) -> mechanisms.Marginal:
    """Returns what a measured pair of parts says of the pair's bins."""
    first, second = (self.sizes[j] // PARTS for j in marginal.columns)
    counts = marginal.counts.reshape(first, PARTS, second, PARTS)
    return mechanisms.Marginal(
      marginal.columns, counts.sum((1, 3)), PARTS * marginal.std
    )

  def edge(self, marginal: mechanisms.Marginal, counts: np.ndarray) -> Edge:
    """Returns the `Edge` of a pair, of its noisy counts and those of bins."""
    shares = [self.parts[j].shares for j in marginal.columns]
    weights = fit_weights(marginal.counts, counts, shares, marginal.std)
    return Edge(tuple(marginal.columns), weights)


class Edge(NamedTuple):
  """A pair of columns, and what their parts have to do with each other.

  Attributes:
    columns: numbers of the two columns.
    weights: float `[b, b', 5]`, for each pair of bins the weights of
      `statistics` in the log-density of their parts.
  """

  columns: tuple[int, int]
  weights: np.ndarray


def statistics() -> np.ndarray:
  """Returns five functions of two parts, `[PARTS, PARTS, 5]`.

  Each is linear and quadratic, and their product; in [-1, 1].
  """
  t = (np.arange(PARTS) + 0.5) / PARTS * 2 - 1
  line = t / np.abs(t).max()
  curve = t**2 - np.mean(t**2)
  curve /= np.abs(curve).max()
  one = np.ones(PARTS)
  pairs = [(line, one), (one, line), (curve, one), (one, curve), (line, line)]
  return np.stack([np.outer(*pair) for pair in pairs], -1)


def dependent_pairs(
  marginals: Iterable[tuple[tuple[int, int], np.ndarray]],
  parts: dict[int, Parts],
) -> list[tuple[int, int]]:
  """Returns the pairs of columns that are nearly functions of each other.

  Args:
    marginals: pairs of two numbers of columns and the probabilities of their
      bins together, as they were released.
    parts: the `Parts` of columns, by number.

  Returns:
    The pairs whose mutual information, in bins that have several parts, is .4
    or more of that of a function of the column with fewer bins, if a tenth of
    all rows is there. The ones with the most of it are first.
  """
  found = []
  for pair, p in marginals:
    p = p[np.ix_(*(parts[j].divided for j in pair))]
    mass = p.sum()
    if mass < _LEAST_MASS or min(p.shape) < 2:
      continue
    p = p / mass
    independent = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
    ratio = np.maximum(p, _TINY) / np.maximum(independent, _TINY)
    information = np.sum(p * np.log(ratio))
    if information >= _DEPENDENT * np.log(min(p.shape)):
      found.append((mass * information, pair))
  return [pair for _, pair in sorted(found, reverse=True)]


def open_pairs(
  pairs: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
  """Returns the pairs that close no cycle with those that are taken.

  >>> open_pairs([(0, 1), (0, 2), (2, 3)], taken=[(0, 1), (1, 2)])
  [(2, 3)]
  """
  groups = connected(taken)
  return [pair for pair in pairs if not any(g.issuperset(pair) for g in groups)]


def forest_size(pairs: Sequence[tuple[int, int]]) -> int:
  """Returns how many of some pairs can be taken without a cycle.

  >>> forest_size([(0, 1), (0, 2), (1, 2), (3, 4)])
  3
  """
  return sum(len(group) - 1 for group in connected(pairs))


def fit_weights(
  counts: np.ndarray,
  expected: np.ndarray,
  shares: Sequence[np.ndarray],
  std: float,
) -> np.ndarray:
  """Returns the `Edge.weights` of a pair, of noisy counts of their parts.

  In a pair of bins with m rows the parts have probabilities proportional to
  `q exp(weights . statistics)`, with q those of independent values. The weights
  are the mode of their posterior, given the sums of the statistics over the
  noisy counts, and a normal prior whose variance is estimated from how much
  larger the sums are than their noise (empirical Bayes).

  Args:
    counts: `[b * PARTS, b' * PARTS]`, noisy.
    expected: `[b, b']`, numbers of rows in pairs of bins, as they are known.
    shares: of the two columns, see `Parts`.
    std: standard deviation of the noise of a count.
  """
  first, second = (len(share) for share in shares)
  counts = counts.reshape(first, PARTS, second, PARTS).transpose(0, 2, 1, 3)
  counts = counts.reshape(first * second, -1)
  base = np.einsum('ap,bq->abpq', *shares).reshape(first * second, -1)
  # Parts without values have noise alone.
  counts = np.where(base > 0, counts, 0.0)
  rows = np.maximum(expected.ravel(), 0.0)[:, None]
  functions = statistics().reshape(PARTS**2, -1)
  size = functions.shape[1]
  mean = base @ functions
  spread = np.maximum(base @ functions**2 - mean**2, _TINY)
  sums = counts @ functions
  # The noise of `sums - total * mean`, of which the weights are estimated.
  noise = std**2 * ((base > 0) @ functions**2)
  # A weight is about what a sum has too much, over its variance.
  held = np.maximum(rows, 1.0) * spread
  guess = (sums - rows * mean) / held
  trust = np.where(spread > 1e-6, rows**2, 0.0)
  trust = trust / np.maximum(trust.sum(0), _TINY)
  error = (noise + held) / held**2
  variance = (trust * (guess**2 - error)).sum(0)
  # Of few bins the noise alone may be larger than it should be.
  variance -= np.sqrt(2 * ((trust * error) ** 2).sum(0))
  variance = np.maximum(variance, _LEAST_VARIANCE)
  ridge = (1 + noise / held) / variance
  log_base = np.where(base > 0, np.log(np.maximum(base, _TINY)), _IMPOSSIBLE)
  ridge += _RIDGE

  def log_posterior(weights):
    exponents = log_base + weights @ functions.T
    found = np.sum((sums - ridge * weights / 2) * weights, -1)
    return found - rows[:, 0] * special.logsumexp(exponents, axis=-1)

  weights = np.zeros([len(base), size])
  for _ in range(_STEPS):
    p = special.softmax(log_base + weights @ functions.T, axis=1)
    mean = p @ functions
    slope = sums - rows * mean - ridge * weights
    second_moments = np.einsum('ns,sa,sb->nab', p, functions, functions)
    bend = rows[..., None] * (
      second_moments - mean[:, :, None] * mean[:, None, :]
    )
    bend += np.einsum('na,ab->nab', ridge, np.eye(size))
    move = np.linalg.solve(bend, slope[..., None])[..., 0]
    # A whole step may go too far, where values nearly determine each other: of
    # its parts the best, or none.
    tried = weights + np.append(_TRIED, 0.0)[:, None, None] * move
    tried = np.clip(tried, -_LARGEST_WEIGHT, _LARGEST_WEIGHT)
    best = np.argmax(log_posterior(tried), 0)
    weights = tried[best, np.arange(len(base))]
  return weights.reshape(first, second, size).astype(np.float32)


class WithinBins:
  """A forest over parts of bins, given all bins.

  With b the bins of a row, s the parts of its values and q the shares of parts
  in their bins,

      p(s | b) ~ prod_j q_j(s_j | b_j) prod_(i, j) r_ij(s_i, s_j | b_i, b_j),

  where an edge's factor r is its density relative to that of independent parts,
  so that for a tree this is the distribution in which all of its pairs have
  theirs. Sums over parts are taken by message passing: exactly, in time
  proportional to the number of edges.

  Args:
    parts: the `Parts` of columns, by number; of all that are in an edge.
    edges: `Edge`s without a cycle.
  """

  def __init__(self, parts: dict[int, Parts], edges: Sequence[Edge]):
    self._parts = {j: parts[j] for edge in edges for j in edge.columns}
    self.edges = list(edges)
    # Pairs of a column and its parent, the ones farther from a root first, and
    # the tables of their factors.
    self._upward, self._roots = [], []
    left, found = list(edges), set()
    while left:
      if not any(found & set(edge.columns) for edge in left):
        self._roots.append(left[0].columns[1])
        found.add(left[0].columns[1])
      edge = next(e for e in left if found & set(e.columns))
      left.remove(edge)
      (parent,) = found & set(edge.columns)
      table = self._factors(edge)
      child, other = edge.columns
      if child == parent:
        child, table = other, np.transpose(table, (1, 0, 3, 2))
      found.add(child)
      self._upward.insert(0, (child, parent, table))

  def _factors(self, edge):
    """Returns `log r`, `[b, b', PARTS, PARTS]`."""
    shares = [self._parts[j].shares for j in edge.columns]
    base = np.einsum('ap,bq->abpq', *shares)
    log_ratio = np.einsum('pqk,abk->abpq', statistics(), edge.weights)
    total = np.sum(base * np.exp(log_ratio), (2, 3), keepdims=True)
    return log_ratio - np.log(np.maximum(total, _TINY))

  def log_prob(
    self, x: tf.Tensor, bins: dict[int, tf.Tensor] | None = None
  ) -> tf.Tensor:
    """Returns log-densities of codes `[n, d]` relative to independent values.

    They are given that rows are in the bins that they are in: float64 `[n]`.

    Args:
      x: codes.
      bins: as in `moved`; by default those that the codes are in.
    """
    found = {
      j: p.find(x[:, j], None if bins is None else bins[j])
      for j, p in self._parts.items()
    }
    bins = {j: number // PARTS for j, number in found.items()}
    parts = {j: number % PARTS for j, number in found.items()}
    messages, tables = self._messages(bins)
    total = -tf.add_n(
      [tf.reduce_logsumexp(messages[j], 1) for j in self._roots]
    )
    for (child, parent, _), table in zip(self._upward, tables):
      row = tf.gather(table, parts[child], axis=1, batch_dims=1)
      total += tf.gather(row, parts[parent], axis=1, batch_dims=1)
    return total

  def moved(
    self, x: tf.Tensor, bins: dict[int, tf.Tensor], seed: tf.Tensor
  ) -> tf.Tensor:
    """Returns codes `[n, d]` with other values in the same bins, drawn anew.

    Bins that are not divided, as spikes and missing values, keep theirs.

    Args:
      x: codes `[n, d]`.
      bins: of each column the bins of the rows, int32 `[n]`. Rounded codes may
        be in others: a spike is a few units in the last place wide.
      seed: int32 `[2]`.
    """
    messages, tables = self._messages(bins)
    # The first rows have the same numbers however many there are.
    uniform = tf.random.stateless_uniform(
      [tf.shape(x)[0], 2 * len(self._parts)], seed, dtype=tf.float64
    )
    uniform = iter(tf.unstack(uniform, axis=1))
    parts = {j: _draw(messages[j], next(uniform)) for j in self._roots}
    for (child, parent, _), table in zip(self._upward[::-1], tables[::-1]):
      of_parent = tf.gather(table, parts[parent], axis=2, batch_dims=1)
      parts[child] = _draw(messages[child] + of_parent, next(uniform))
    columns = tf.unstack(x, axis=1)
    for j, part in parts.items():
      drawn = self._parts[j].draw(bins[j] * PARTS + part, next(uniform))
      divided = tf.gather(self._parts[j].divided, bins[j])
      columns[j] = tf.where(divided, drawn, columns[j])
    return tf.stack(columns, 1)

  def _messages(self, bins):
    """Passes messages to the roots.

    Returns:
      For each column the logarithms of its shares times the messages that it
      got, `[n, PARTS]`, and for each edge upward its factors,
      `[n, PARTS, PARTS]`.
    """
    found = {
      j: tf.gather(tf.constant(p.log_shares), bins[j])
      for j, p in self._parts.items()
    }
    tables = []
    for child, parent, table in self._upward:
      flat = tf.constant(table.reshape(-1, PARTS, PARTS))
      tables.append(
        tf.gather(flat, bins[child] * table.shape[1] + bins[parent])
      )
      sent = tables[-1] + found[child][:, :, None]
      found[parent] += tf.reduce_logsumexp(sent, 1)
    return found, tables


def _draw(logits, uniform):
  """Returns parts `[n]` of unnormalized log-probabilities `[n, PARTS]`."""
  upto = tf.cumsum(tf.nn.softmax(logits), axis=1)
  # A little less than 1, so that rounding leaves it below the last one.
  place = uniform[:, None] * (1 - 1e-12) * upto[:, -1:]
  return tf.reduce_sum(tf.cast(upto <= place, tf.int32), 1)
