"""A log-linear model of binned columns, fitted to marginals of few columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tfdpflows.mechanisms import marginals

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

  Attributes:
    sizes: number of bins of each column.
    rows: int32 `[num_rows, d]`, bins.

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
  ):
    shares = [np.asarray(p, np.float64) for p in probabilities]
    shares = [p / p.sum() for p in shares]
    self.sizes = [len(p) for p in shares]
    self._rng = rng
    self._given = {(j,): p for j, p in enumerate(shares)}
    self._theta = {
      (j,): np.log(np.maximum(p, _TINY)) for j, p in enumerate(shares)
    }
    self.rows = np.stack(
      [rng.choice(len(p), num_rows, p=p) for p in shares], 1
    ).astype(np.int32)

  def marginal(self, group: Sequence[int]) -> np.ndarray:
    """Returns the model's probabilities, `sizes[group]`."""
    (found,) = self.marginals([group])
    return found

  def marginals(self, groups: Iterable[Sequence[int]]) -> list[np.ndarray]:
    """Returns the model's probabilities of several groups of columns."""
    # Each column in one piece: of a wide table they would be far apart.
    columns = np.ascontiguousarray(self.rows.T, np.intp)
    found = []
    for group in groups:
      shape = [self.sizes[j] for j in group]
      cell = columns[group[0]]
      for j in group[1:]:
        cell = cell * self.sizes[j] + columns[j]
      counts = np.bincount(cell, minlength=math.prod(shape))
      found.append(counts.reshape(shape) / len(self.rows))
    return found

  def set_marginal(
    self, group: Sequence[int], probabilities: np.ndarray
  ) -> None:
    """Gives the probabilities, of sum 1, of the bins of a group of columns."""
    group = tuple(group)
    probabilities = np.asarray(probabilities, np.float64)
    self._given[group] = probabilities
    self._theta.setdefault(group, np.zeros(probabilities.shape))

  def forbid(self, pair: Sequence[int], impossible: np.ndarray) -> None:
    """Rules out bins of two columns together; rows that have them move.

    Args:
      pair: numbers of the columns.
      impossible: bool, `sizes[pair]`.
    """
    pair = tuple(pair)
    if pair != tuple(sorted(pair)):
      pair, impossible = pair[::-1], np.transpose(impossible)
    known = self._theta.get(pair, np.zeros(impossible.shape))
    self._theta[pair] = np.where(impossible, _IMPOSSIBLE, known)
    for _ in range(_FITS):
      self.fit()

  def fit(self, rate: float = 1.0) -> None:
    """Moves the model towards the marginals that were given, once.

    Args:
      rate: at most 1, how far the log-weights move. Rates 1, 1/2, 1/3, ...
        average out what sampling the rows does to the log-weights.
    """
    self._resample(self._fit_weights(rate))
    for j in self._rng.permutation(len(self.sizes)):
      self._draw(j)

  def _fit_weights(self, rate):
    """Moves the log-weights; returns weights of the rows, of sum 1."""
    added = _ADDED_ROWS / len(self.rows)
    weights = np.full(len(self.rows), 1 / len(self.rows))
    cells = {g: marginals.cells(self.rows, self.sizes, g) for g in self._given}
    moved = {g: np.zeros(given.size) for g, given in self._given.items()}
    for _ in range(_PASSES):
      furthest = 0.0
      for group, given in self._given.items():
        wanted = given.ravel()
        share = np.bincount(cells[group], weights, minlength=len(wanted))
        furthest = max(furthest, np.abs(wanted - share).sum())
        move = np.clip(
          moved[group] + np.log((wanted + added) / (share + added)),
          -_LARGEST_MOVE,
          _LARGEST_MOVE,
        )
        weights *= np.exp(move - moved[group])[cells[group]]
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
    self.rows = self.rows[np.minimum(chosen, n - 1)]

  def _draw(self, j):
    """Draws column j of every row given the other columns."""
    size = self.sizes[j]
    logits = np.zeros((len(self.rows), size), np.float32)
    for group, theta in self._theta.items():
      if j not in group:
        continue
      others = [i for i in group if i != j]
      table = np.moveaxis(theta, group.index(j), -1).reshape(-1, size)
      table = table.astype(np.float32)
      if others:
        cell = marginals.cells(self.rows, self.sizes, others)
        logits += table[cell]
      else:
        logits += table
    logits -= logits.max(1, keepdims=True)
    upto = np.cumsum(np.exp(logits, out=logits), 1)
    place = self._rng.random(len(upto), np.float32) * upto[:, -1]
    drawn = (upto <= place[:, None]).sum(1)
    self.rows[:, j] = np.minimum(drawn, size - 1)
