"""A log-linear model of binned columns, fitted to marginals of few columns."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np

# One fit: passes of iterative proportional fitting, and when they end early.
_PASSES, _CONVERGED = 5, 1e-3
# Weights of cells with few rows are uncertain: so many rows are added to a cell
# before ratios are taken, and no log-weight moves by more in one fit.
_ADDED_ROWS, _LARGEST_MOVE = 10.0, 1.5
_TINY = 1e-12
# Log-weight of what is ruled out, and fits after that.
_IMPOSSIBLE, _FITS = -60.0, 8


class LogLinearModel:
  """The distribution of maximum entropy with given marginals, by its rows.

  Relative to independent columns with probabilities `p_j` it is

      p(x) = prod_j p_j(x_j) prod_g exp(theta_g(x_g)) / Z,

  with one table of log-weights for each group g of columns whose marginal is
  given (Bishop, Fienberg and Holland 1975, "Discrete multivariate analysis").
  The normalizer is never needed: the model is held as rows, persistent Markov
  chains. `fit` weights the rows by iterative proportional fitting and adds the
  logarithms of the factors to the log-weights; then the rows are drawn anew by
  weight and moved by a sweep of Gibbs sampling. Unlike an inference by junction
  trees it has no limit on how groups may overlap; the price is the error of
  sampling.

  Args:
    probabilities: for each column the positive probabilities of its bins.
    rng: `np.random.Generator` of the rows.
    num_rows: number of rows.
    lazy: whether columns that are in no group of several stay as they were
      drawn, until `redraw_others`. They are independent of all others, so that
      nothing is lost; without them a fit takes a time that grows with the
      number of groups, and not with that of the columns.

  Attributes:
    sizes: number of bins of each column.

  #### Example

  >>> import numpy as np
  >>> model = LogLinearModel([[.5, .5], [.5, .5]], np.random.default_rng(0))
  >>> model.set_marginal((0, 1), [[.5, 0.], [0., .5]])
  >>> for _ in range(8):
  ...   model.fit()
  >>> model.marginal((0, 1)).round(2)
  array([[0.5, 0. ],
         [0. , 0.5]])
  """

  def __init__(
    self,
    probabilities: Sequence[Sequence[float]],
    rng: np.random.Generator,
    num_rows: int = 1 << 15,
    lazy: bool = False,
  ):
    shares = [np.asarray(p, np.float64) for p in probabilities]
    shares = [p / p.sum() for p in shares]
    self.sizes = [len(p) for p in shares]
    self._rng, self._lazy = rng, lazy
    self._given = {(j,): p for j, p in enumerate(shares)}
    self._theta = {
      (j,): np.log(np.maximum(p, _TINY)) for j, p in enumerate(shares)
    }
    # Of each column the groups that it is in, in the order they were given.
    self._groups = [[(j,)] for j in range(len(shares))]
    # Each column in one piece: of a wide table they would be far apart.
    self._columns = np.empty([len(shares), num_rows], np.int32)
    for j, p in enumerate(shares):
      self._columns[j] = rng.choice(len(p), num_rows, p=p)

  @property
  def rows(self) -> np.ndarray:
    """The rows, int32 `[num_rows, d]`, bins."""
    return self._columns.T

  def marginal(self, group: Sequence[int]) -> np.ndarray:
    """Returns the model's probabilities, `sizes[group]`."""
    (found,) = self.marginals([group])
    return found

  def marginals(self, groups: Iterable[Sequence[int]]) -> list[np.ndarray]:
    """Returns the model's probabilities of several groups of columns.

    Where the model is lazy they are products of those of columns that nothing
    connects, and have no error of sampling.
    """
    if not self._lazy:
      return [self._counted(group) for group in groups]
    parts, known, found = self._parts(), {}, []
    for group in groups:
      of_part = {}
      for j in group:
        of_part.setdefault(parts[j], []).append(j)
      factors = []
      for members in map(tuple, of_part.values()):
        if members not in known:
          known[members] = self._counted(members)
        factors.append(known[members])
      product = functools.reduce(np.multiply.outer, factors)
      # Columns of a part need not be beside each other in the group.
      order = [j for members in of_part.values() for j in members]
      axes = [order.index(j) for j in group]
      found.append(product.transpose(axes))
    return found

  def batch(self, rng: np.random.Generator, size: int) -> np.ndarray:
    """Returns some of the rows, drawn with replacement: int32 `[size, d]`."""
    chosen = rng.choice(self._columns.shape[1], size)
    return np.ascontiguousarray(self._columns.take(chosen, 1).T)

  def _counted(self, group):
    """Returns the shares of rows in each combination of bins of a group."""
    shape = [self.sizes[j] for j in group]
    if len(group) == 1 and len(self._groups[group[0]]) == 1 and self._lazy:
      return self._given[tuple(group)]
    counts = np.bincount(self._cells(group), minlength=math.prod(shape))
    return counts.reshape(shape) / self._columns.shape[1]

  def _parts(self):
    """Returns a number for each column: equal where groups connect them."""
    parts = list(range(len(self.sizes)))
    for group in self._theta:
      merged = {parts[j] for j in group}
      if len(merged) > 1:
        least = min(merged)
        parts = [least if part in merged else part for part in parts]
    return parts

  def set_marginal(
    self, group: Sequence[int], probabilities: np.ndarray
  ) -> None:
    """Gives the probabilities, of sum 1, of the bins of a group of columns."""
    group = tuple(group)
    probabilities = np.asarray(probabilities, np.float64)
    self._given[group] = probabilities
    self._add(group, probabilities.shape)

  def forbid(self, pair: Sequence[int], impossible: np.ndarray) -> None:
    """Rules out bins of two columns together; rows that have them move.

    Args:
      pair: numbers of the columns.
      impossible: bool, `sizes[pair]`.
    """
    pair = tuple(pair)
    if pair != tuple(sorted(pair)):
      pair, impossible = pair[::-1], np.transpose(impossible)
    self._add(pair, impossible.shape)
    self._theta[pair] = np.where(impossible, _IMPOSSIBLE, self._theta[pair])
    for _ in range(_FITS):
      self.fit()

  def _add(self, group, shape):
    """Gives a group log-weights of zero, if it has none."""
    if group not in self._theta:
      self._theta[group] = np.zeros(shape)
      for j in group:
        self._groups[j].append(group)

  def fit(self, rate: float = 1.0) -> None:
    """Moves the model towards the marginals that were given, once.

    Args:
      rate: at most 1, how far the log-weights move. Rates 1, 1/2, 1/3, ...
        average out what sampling the rows does to the log-weights.
    """
    self._resample(self._fit_weights(rate))
    drawn = self._joined() if self._lazy else len(self.sizes)
    for j in self._rng.permutation(drawn):
      self._draw(j)

  def grow(self, num_rows: int) -> None:
    """Holds more rows: copies of those that are there, until the next `fit`."""
    size = self._columns.shape[1]
    self._columns = self._columns.take(np.arange(num_rows) % size, 1)

  def redraw_others(self) -> None:
    """Draws the columns anew that are in no group, where the model is lazy."""
    if self._lazy:
      for j, groups in enumerate(self._groups):
        if len(groups) == 1:
          self._draw(j)

  def _joined(self):
    """Returns the numbers of the columns that are in a group of several."""
    return [j for j, groups in enumerate(self._groups) if len(groups) > 1]

  def _cells(self, group):
    """Returns the number of each row's combination of bins, `[num_rows]`."""
    cell = self._columns[group[0]]
    for j in group[1:]:
      cell = cell * np.intp(self.sizes[j])
      cell += self._columns[j]
    return cell

  def _fit_weights(self, rate):
    """Moves the log-weights; returns weights of the rows, of sum 1."""
    n = self._columns.shape[1]
    added = _ADDED_ROWS / n
    weights = np.full(n, 1 / n)
    fitted = self._given
    if self._lazy:
      fitted = [g for g in fitted if len(self._groups[g[0]]) > 1]
    cells = {g: self._cells(g).astype(np.intp) for g in fitted}
    moved = {g: np.zeros(self._given[g].size) for g in fitted}
    for _ in range(_PASSES):
      furthest = 0.0
      for group in fitted:
        wanted = self._given[group].ravel()
        share = np.bincount(cells[group], weights, minlength=len(wanted))
        furthest = max(furthest, np.abs(wanted - share).sum())
        move = np.clip(
          moved[group] + np.log((wanted + added) / (share + added)),
          -_LARGEST_MOVE,
          _LARGEST_MOVE,
        )
        weights *= np.exp(move - moved[group]).take(cells[group])
        weights /= weights.sum()
        moved[group] = move
      if furthest < _CONVERGED:
        break
    for group, move in moved.items():
      self._theta[group] += rate * move.reshape(self._theta[group].shape)
    weights **= rate
    return weights / weights.sum()

  def _resample(self, weights):
    """Draws rows by weight, each as often as possible to the nearest whole."""
    n = len(weights)
    places = (np.arange(n) + self._rng.random()) / n
    chosen = np.searchsorted(np.cumsum(weights), places)
    chosen = np.minimum(chosen, n - 1)
    for j in self._joined() if self._lazy else range(len(self.sizes)):
      self._columns[j] = self._columns[j].take(chosen)

  def _draw(self, j):
    """Draws column j of every row given the other columns."""
    own, *groups = self._groups[j]
    logits = self._theta[own].astype(np.float32)
    if groups:
      # A bin in each row: sums over few bins of many rows take less time so.
      logits = np.repeat(logits[:, None], self._columns.shape[1], 1)
    for group in groups:
      place = group.index(j)
      table = np.moveaxis(self._theta[group], place, 0)
      table = table.reshape(self.sizes[j], -1).astype(np.float32)
      cell = self._cells(group[:place] + group[place + 1 :])
      for k, row in enumerate(table):
        logits[k] += row.take(cell)
    logits -= logits.max(0)
    upto = np.exp(logits, out=logits)
    for k in range(1, len(upto)):  # np.cumsum takes ten times as long.
      upto[k] += upto[k - 1]
    place = self._rng.random(self._columns.shape[1], np.float32) * upto[-1]
    if groups:
      drawn = np.count_nonzero(upto <= place, 0)
    else:
      drawn = np.searchsorted(upto, place, side='right')
    self._columns[j] = np.minimum(drawn, self.sizes[j] - 1)
