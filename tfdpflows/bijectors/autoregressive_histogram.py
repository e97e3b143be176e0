"""An autoregressive bijector of conditional histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from scipy import special

from tfdpflows.bijectors.one_pass import OnePassInverse
from tfdpflows.networks.made import MADE

if TYPE_CHECKING:
  import numpy.typing as npt

# A tanh bounds how far logits are from those of the standard normal: no bin
# has probability zero, and the exponentials cannot overflow.
_MOST = 20.0
# Beyond so many standard deviations the map is a shift.
_FAR = 10.0
_TINY = 1e-30
# Bins of less mass are weighted as if they had this much.
_RARE = 1e-3
# Bins of a column whose sums one product gives.
_MOST_SUMMED = 128
# With `connections`: columns whose bins are summed together, and the change of
# a logit at which matching ends early.
_BLOCK, _MATCHED = 16, 1e-3


class AutoregressiveHistogram(OnePassInverse):
  """Models each column by a histogram given the bins of earlier columns.

  The bins of each column are given by knots. From data to base (`inverse`),
  `x_j -> Phi^{-1}(F_j(Phi(x_j) | bins of x_1 ... x_{j-1}))`, with Phi the
  standard normal CDF and F_j piecewise linear: bin k, of mass `w_k` under a
  standard normal, has the probability

      p_k = softmax_k(log w_k + MADE(bins before j)_jk),

  and within it x_j is a truncated standard normal. It is the piecewise linear
  warp of Müller et al. 2019, "Neural importance sampling" (section 4.2), with
  given bins, in the autoregressive order of a MADE whose inputs are indicators
  of the bins. It is initialised as the identity.

  After a `MarginalCDF`, with knots at the ends of its categories, it is an
  autoregressive model of categories, and an exact density of numbers as well.
  That one category excludes another takes a smooth map many weights; here it
  takes one, which DP-SGD learns in few steps.

  DP-SGD adds the same noise to every weight, and the weights of a rare bin get
  gradients from few rows. On the direct connections the indicator of bin k is
  therefore `w_k^(-1/4)` instead of 1 (over the root mean square of that in its
  column): preconditioning by the frequencies that the histograms, released
  before, estimate (Li et al. 2022, "Private adaptive optimization with side
  information"). It changes the optimization, not the set of densities.

  Args:
    knots: one ascending array per column, the boundaries between its bins; k
      bins have k - 1 of them.
    hidden_units: width of each hidden layer of the `MADE`, which has direct
      connections as well.
    dtype: of the variables and the data.
    seed: for the initial weights, or `None`.
    order: the autoregressive order, a permutation of the columns' numbers; by
      default that of the data.
    connections: for each column the numbers of those that it has direct
      connections with, see `MADE`; all by default.

  Raises:
    ValueError: naming the column, if its knots do not ascend strictly or are
      beyond 10 standard deviations; for an order that is no permutation, or
      connections with columns that are not there.

  #### Example

  >>> from tfdpflows import bijectors
  >>> histogram = bijectors.AutoregressiveHistogram([[0.], [-1., 1.]])
  >>> histogram.inverse([[.5, 2.]]).numpy().round(5).tolist()
  [[0.5, 2.0]]
  """

  def __init__(
    self,
    knots: Sequence[npt.ArrayLike],
    hidden_units: Sequence[int] = (64,),
    dtype: tf.DType | str = tf.float32,
    seed: int | None = None,
    order: Sequence[int] | None = None,
    validate_args: bool = False,
    name: str = 'autoregressive_histogram',
    connections: Sequence[Sequence[int]] | None = None,
  ):
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      dtype = tf.as_dtype(dtype)
      knots = [_checked(j, k) for j, k in enumerate(knots)]
      order = range(len(knots)) if order is None else order
      if sorted(order) != list(range(len(knots))):
        raise ValueError(
          f'order is {list(order)}; it must be a permutation of '
          f'{len(knots)} columns.'
        )
      # Columns are in that order from here on.
      self._order, self._back = list(order), np.argsort(order).tolist()
      knots = [knots[j] for j in order]
      below, mass, above = _tables(knots)
      sizes = [len(k) + 1 for k in knots]
      self._ends = np.cumsum([0, *sizes])
      column = np.repeat(np.arange(len(sizes)), sizes)
      with tf.init_scope():
        # Per bin, all columns in a row: mass below, in and above.
        self._below = tf.constant(below, dtype)
        self._mass = tf.constant(mass, dtype)
        self._above = tf.constant(above, dtype)
        self._column = tf.constant(column)
        self._not_last = tf.constant(above > 0, dtype)
        # Where the next bin of the column begins; nowhere, after the last.
        after = np.where(above > 0, np.roll(below, -1), np.inf)
        self._after = tf.constant(after, dtype)
        within = np.concatenate([np.arange(size) for size in sizes])
        self._within = tf.constant(within, dtype)
        middles = special.ndtri(below + mass / 2)
        self._middles = tf.constant(np.clip(middles, -_FAR, _FAR), dtype)
        # Sums over the bins of each column; with `connections` of a few at a
        # time, since most of one matrix would be zeros.
        step = len(sizes) if connections is None else _BLOCK
        self._starts = range(0, len(sizes), step)
        self._sums = [
          tf.constant(np.repeat(np.eye(len(few)), few, axis=0), dtype)
          for few in (sizes[j : j + step] for j in self._starts)
        ]
      self._network = MADE(
        sizes,
        len(sizes),
        hidden_units,
        dtype=dtype,
        seed=seed,
        inputs=sizes,
        direct=_indicator_scales(mass, column),
        connections=connections and self._in_order(connections),
      )
      self._offset = tf.Variable(
        tf.zeros([len(column)], dtype), trainable=False, name='offset'
      )
      super().__init__(
        validate_args=validate_args, parameters=parameters, name=name
      )

  def _weights(self, outputs, bins=slice(None)):
    """Returns the unnormalized probabilities of bins."""
    bounded = _MOST * tf.tanh(outputs / _MOST)
    return self._mass[bins] * tf.exp(bounded + self._offset[bins])

  def connect(self, connections: Sequence[Sequence[int]]) -> None:
    """Replaces the direct connections, where there are `connections`.

    The new ones are zero.

    Args:
      connections: for each column the numbers of those that it has direct
        connections with, in the order of the data.

    Raises:
      ValueError: for another number of columns, or one that is not there.
    """
    self._network.connect(self._in_order(connections))

  def _in_order(self, connections):
    if len(connections) != len(self._order):
      raise ValueError(
        f'There are connections of {len(connections)} columns; give them for '
        f'each of the {len(self._order)}.'
      )
    place = dict(zip(self._order, range(len(self._order))))
    wrong = {i for others in connections for i in others} - place.keys()
    if wrong:
      raise ValueError(f'Columns are connected with {sorted(wrong)}.')
    return [[place[i] for i in connections[j]] for j in self._order]

  def _pick(self, values):
    if len(self._sums) == 1:
      return tf.matmul(values, self._sums[0])
    sizes = [int(sums.shape[0]) for sums in self._sums]
    parts = tf.split(values, sizes, 1)
    return tf.concat([tf.matmul(*pair) for pair in zip(parts, self._sums)], 1)

  def _repeated(self, values):
    """Returns the value of each column for all of its bins, `[n, bins]`."""
    sizes = [int(sums.shape[1]) for sums in self._sums]
    parts = tf.split(values, sizes, 1)
    return tf.concat(
      [
        tf.matmul(part, sums, transpose_b=True)
        for part, sums in zip(parts, self._sums)
      ],
      1,
    )

  def _ordered(self, y):
    flat = tf.reshape(y, [-1, len(self._order)])
    return tf.gather(flat, self._order, axis=1)

  def _reordered(self, flat, like):
    y = tf.reshape(tf.gather(flat, self._back, axis=1), tf.shape(like))
    return tf.ensure_shape(y, like.shape)

  def _indicators(self, z):
    """Returns indicators of the bins below z `[n, d]`, and of its own."""
    if len(self._sums) > 1:
      # Fewer operations on as many numbers as there are bins.
      u = self._repeated(_cdf(z))
      passed = u >= self._after
      here = tf.logical_and(u >= self._below, tf.logical_not(passed))
      return tf.cast(passed, z.dtype), tf.cast(here, z.dtype)
    u = tf.gather(_cdf(z), self._column, axis=1)
    reached = tf.cast(u >= self._below, z.dtype)
    # Where the next bin is reached too; a last bin has none.
    passed = tf.roll(reached, -1, 1) * self._not_last
    return passed, reached - passed

  def _in_bins(self, z):
    """Returns `_indicators(z)`, and the weights of all bins."""
    passed, here = self._indicators(z)
    return passed, here, self._weights(self._network(here))

  def log_ratios(self, y: tf.Tensor) -> tf.Tensor:
    """Returns `log(p_k / w_k)` for the bin of each column, `[..., d]`.

    Their sum is the log-density of the row minus that of a standard normal.

    Args:
      y: data `[..., d]`.
    """
    z = tf.clip_by_value(self._ordered(y), -_FAR, _FAR)
    _, here, weights = self._in_bins(z)
    share = self._pick(weights * here) / self._pick(weights)
    ratio = share / self._pick(self._mass * here)
    return self._reordered(tf.math.log(ratio), y)

  @property
  def masses(self) -> list[np.ndarray]:
    """The masses of the bins of each column under a standard normal.

    A list of arrays in the order of the data.
    """
    masses = np.split(self._mass.numpy(), self._ends[1:-1])
    return [masses[j] for j in self._back]

  @property
  def num_bins(self) -> list[int]:
    """The number of bins of each column, a list in the order of the data."""
    sizes = np.diff(self._ends)
    return [int(sizes[j]) for j in self._back]

  def bins(self, y: tf.Tensor) -> tf.Tensor:
    """Returns the number of the bin of each column, int32 `[..., d]`.

    Args:
      y: data `[..., d]`.
    """
    z = tf.clip_by_value(self._ordered(y), -_FAR, _FAR)
    here = self._indicators(z)[1]
    found = self._reordered(self._pick(here * self._within), y)
    return tf.cast(tf.round(found), tf.int32)

  def middle(self, bins: tf.Tensor) -> tf.Tensor:
    """Returns data `[..., d]` in the middles of bins, by normal mass.

    Args:
      bins: their numbers, integers `[..., d]`.
    """
    starts = tf.constant([self._ends[j] for j in self._back], tf.int32)
    return tf.gather(self._middles, tf.cast(bins, tf.int32) + starts)

  def _inverse_and_log_det(self, y):
    flat = self._ordered(y)
    z = tf.clip_by_value(flat, -_FAR, _FAR)
    passed, here, weights = self._in_bins(z)
    source = [
      self._pick(t * here) for t in (self._below, self._mass, self._above)
    ]
    target = [
      self._pick(weights * part) / self._pick(weights)
      for part in (passed, here, 1 - here - passed)
    ]
    x = _move(z, source, target)
    log_det = tf.math.log(target[1] / source[1]) + (x**2 - z**2) / 2
    log_det = tf.reduce_sum(log_det, 1)
    return (
      self._reordered(x + flat - z, y),
      tf.ensure_shape(tf.reshape(log_det, tf.shape(y)[:-1]), y.shape[:-1]),
    )

  def _one_hot(self, number, j):
    """Returns indicators `[n, k]` of the bins of column j."""
    size = int(self._ends[j + 1] - self._ends[j])
    return tf.one_hot(number, size, dtype=self._mass.dtype)

  def _forward(self, x):
    flat = self._ordered(x)
    clipped = tf.clip_by_value(flat, -_FAR, _FAR)
    columns, indicators, moves = [], [], []
    tables = tf.stack([self._below, self._mass, self._above], 1)
    for j, outputs_of in enumerate(self._network.columns()):
      bins = slice(self._ends[j], self._ends[j + 1])
      z = clipped[:, j]
      weights = self._weights(outputs_of(indicators), bins)
      weights = tf.broadcast_to(weights, [tf.shape(z)[0], weights.shape[-1]])
      number, source = _found(z, weights)
      target = tf.unstack(tf.gather(tables[bins], number), axis=1)
      indicators.append(self._one_hot(number, j))
      if len(self._sums) == 1:
        columns.append(_move(z, source, target))
      else:
        moves.append([*source, *target])
    if moves:
      # All columns at once: most operations of a wide table would be these.
      parts = [tf.stack(part, 1) for part in zip(*moves)]
      moved = _move(clipped, parts[:3], parts[3:])
    else:
      moved = tf.stack(columns, 1)
    return self._reordered(moved + flat - clipped, x)

  def match_marginals(
    self,
    num_rows: int = 32_768,
    seed: int | None = None,
    iterations: int = 20,
    probabilities: Sequence[npt.ArrayLike] | None = None,
  ) -> None:
    """Fits the probabilities of the bins of single columns to given ones.

    Clipping biases DP-SGD against rare bins. After a `MarginalCDF` the marginal
    of each column is known to be standard normal. Column by column, one number
    per bin is added to the logits, so that over rows of the model each bin has
    its probability (iterative proportional fitting). This uses the model
    alone, no private data.

    Args:
      num_rows: number of rows that are sampled.
      seed: for the rows, or `None`.
      iterations: of the fitting of each column.
      probabilities: for each column, in the order of the data, positive
        probabilities of its bins, of sum 1; by default the `masses`.
    """
    if probabilities is None:
      wanted = self._mass
    else:
      ordered = [np.asarray(probabilities[j]) for j in self._order]
      if [len(p) for p in ordered] != np.diff(self._ends).tolist():
        raise ValueError(
          f'There are probabilities of {[len(p) for p in probabilities]} bins '
          f'in each column; give them for {self.num_bins}.'
        )
      wanted = tf.constant(np.concatenate(ordered), self._mass.dtype)
    rng = np.random.default_rng(seed)
    indicators = []
    for j, outputs_of in enumerate(self._network.columns()):
      bins = slice(self._ends[j], self._ends[j + 1])
      outputs = outputs_of(indicators)
      add = self._fit_offset(outputs, bins, wanted[bins], iterations)
      self._offset[bins].assign(self._offset[bins] + add)
      weights = self._weights(outputs, bins)
      weights = tf.broadcast_to(weights, [num_rows, weights.shape[-1]])
      z = tf.constant(rng.normal(size=num_rows), weights.dtype)
      number, _ = _found(z, weights)
      indicators.append(self._one_hot(number, j))

  def _fit_offset(self, outputs, bins, wanted, iterations):
    weights = self._weights(outputs, bins)
    weights = tf.reshape(weights, [-1, weights.shape[-1]])
    add = tf.zeros_like(wanted)
    for _ in range(iterations):
      moved = weights * tf.exp(add)
      moved /= tf.reduce_sum(moved, 1, keepdims=True)
      ratio = wanted / tf.maximum(tf.reduce_mean(moved, 0), _TINY)
      add += tf.math.log(ratio)
      if len(self._sums) > 1 and np.abs(np.log(ratio.numpy())).max() < _MATCHED:
        break
    return tf.clip_by_value(add, -_MOST, _MOST)


def _indicator_scales(mass, column):
  scale = np.maximum(mass, _RARE) ** -0.25
  return scale / np.sqrt(np.bincount(column, scale**2 * mass))[column]


def _checked(j, knots):
  knots = np.asarray(knots, np.float64)
  if knots.ndim != 1 or not np.all(np.diff(knots) > 0):
    raise ValueError(
      f'Column {j}: knots must ascend strictly; got {knots.tolist()}.'
    )
  if not np.all(np.abs(knots) < _FAR):
    raise ValueError(
      f'Column {j}: knots must lie between {-_FAR:g} and {_FAR:g}; got '
      f'{knots.tolist()}.'
    )
  return knots


def _tables(knots):
  """Returns standard normal mass below, in and above every bin, in float64."""
  tables = []
  for k in knots:
    upto = np.concatenate([[0], special.ndtr(k), [1]])
    beyond = np.concatenate([[1], special.ndtr(-k), [0]])
    # The smaller of the two has more digits.
    mass = np.where(upto[1:] < 0.5, np.diff(upto), -np.diff(beyond))
    tables.append([upto[:-1], mass, beyond[1:]])
  return np.concatenate(tables, 1)


def _cdf(z):
  return 0.5 * tf.math.erfc(-z * np.sqrt(0.5).astype(z.dtype.as_numpy_dtype))


def _found(z, weights):
  """Returns the bin of each z, given the masses of bins up to a factor.

  Args:
    z: `[n]`.
    weights: `[n, k]`.

  Returns:
    Its number, int32 `[n]`, and the masses `[n]` below, in and above it.
  """
  size = weights.shape[1]
  if size > _MOST_SUMMED:
    below = tf.cumsum(weights, 1, exclusive=True)
    above = tf.cumsum(weights, 1, exclusive=True, reverse=True)
  else:
    # Several times as fast as cumulative sums.
    before = np.triu(np.ones([size, size]), 1)
    below, above = (
      tf.matmul(weights, tf.constant(matrix, weights.dtype))
      for matrix in (before, before.T)
    )
  total = below[:, -1] + weights[:, -1]
  reached = _cdf(z)[:, None] * total[:, None] >= below
  # The first bin is always reached, unless something is not a number.
  number = tf.reduce_sum(tf.cast(reached, z.dtype), 1)
  number = tf.maximum(tf.cast(number, tf.int32) - 1, 0)
  masses = [
    tf.gather(part, number, batch_dims=1) / total
    for part in (below, weights, above)
  ]
  return number, masses


def _move(z, source, target):
  """Maps z linearly in Phi(z) from one interval to another.

  Args:
    z: any shape.
    source: mass of a standard normal below, in and above the interval of z.
    target: the same of the other interval.
  """
  below, mass, above = source
  place = tf.where(z < 0, _cdf(z) - below, mass - (_cdf(-z) - above))
  place = tf.clip_by_value(place / mass, 0, 1)
  low = target[0] + target[1] * place
  high = target[2] + target[1] * (1 - place)
  tail = tf.clip_by_value(tf.minimum(low, high), _TINY, 0.5)
  return tf.cast(tf.where(low < high, 1, -1), z.dtype) * tf.math.ndtri(tail)
