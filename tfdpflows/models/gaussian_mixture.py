"""Mixtures of Gaussians as arrays, for fitting with numpy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

# Rows at a time; what belongs to a block stays in the processor's cache.
_BLOCK = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianMixture:
  """The parameters of a mixture of k Gaussians over d columns.

  Attributes:
    weights: float64 `[k]`, positive, of sum 1.
    means: float64 `[k, d]`.
    scales: float64 `[k, d, d]`, lower triangular with positive diagonal; the
      covariance is `scale @ scale.T`.
  """

  weights: np.ndarray
  means: np.ndarray
  scales: np.ndarray

  @property
  def covariances(self):
    """float64 `[k, d, d]`."""
    return self.scales @ self.scales.transpose(0, 2, 1)

  def assign(self, x):
    """Yields how each component sees the rows, block by block.

    Args:
      x: float64 array `[n, d]`, finite.

    Yields:
      `(weights [b, k], vectors [k, b, d])`: the posterior probability of each
      component given a row, and the row in the coordinates in which the
      component is a standard normal distribution.
    """
    for rows in np.array_split(x, max(1, math.ceil(len(x) / _BLOCK))):
      logits, vectors = self._terms(rows)
      weights = np.exp(logits - logits.max(axis=1, keepdims=True))
      yield weights / weights.sum(axis=1, keepdims=True), vectors

  def log_prob(self, x):
    """Returns the log-density of rows `[n, d]`, float64 `[n]`, in nats."""
    x = np.asarray(x, np.float64)
    found = [
      np.logaddexp.reduce(self._terms(rows)[0], axis=1)
      for rows in np.array_split(x, max(1, math.ceil(len(x) / _BLOCK)))
    ]
    return np.concatenate(found)

  def _terms(self, x):
    """Log of weight times density `[b, k]`, and whitened rows `[k, b, d]`."""
    inverses = np.linalg.inv(self.scales)
    vectors = (x[None] - self.means[:, None]) @ inverses.transpose(0, 2, 1)
    diagonals = np.diagonal(self.scales, axis1=1, axis2=2)
    constants = (
      np.log(self.weights)
      - np.log(diagonals).sum(axis=1)
      - 0.5 * x.shape[1] * math.log(2 * math.pi)
    )
    squares = np.einsum('kbd,kbd->bk', vectors, vectors)
    return constants - 0.5 * squares, vectors


def project_covariances(covariances, lowest, highest=np.inf):
  """The nearest symmetric matrices with eigenvalues in a range.

  Args:
    covariances: float64 `[..., d, d]`.
    lowest: smallest eigenvalue allowed, `[...]` or a number.
    highest: largest one.

  Returns:
    float64 `[..., d, d]`.
  """
  covariances = (covariances + np.swapaxes(covariances, -1, -2)) / 2
  values, vectors = np.linalg.eigh(covariances)
  values = np.clip(
    values, np.asarray(lowest)[..., None], np.asarray(highest)[..., None]
  )
  return (vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2)
