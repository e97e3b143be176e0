"""Noisy expectation maximization (DP-EM, Park et al. 2017), with numpy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Optional, Union

import dp_accounting
import numpy as np

from tfdpflows.mechanisms.moments import (
  MomentNoise,
  Moments,
  clip_norms,
  noisy_moments,
)

__all__ = ['GaussianMixture', 'NoisyEM', 'refine']

# Rows at a time; what belongs to a block stays in the processor's cache.
_BLOCK = 4096
# Rounds that find one Gaussian before it is split, and their share of the
# budget.
_ROUNDS_BEFORE = 3
_SHARE_BEFORE = 0.1
# Rows are clipped this far beyond the typical norm of a standard normal row.
_CLIP_BEYOND = 1.7
_LARGEST_K = 48
# A component whose noisy count is below this many standard deviations of its
# noise stays as it is: dividing by such a count would be dividing by noise.
_SIGNIFICANT = 3.0
# How far a Gaussian is expected to be off at first, in units of its own scale:
# one Gaussian after the first round, and components that were placed at random.
_FAR = 3.0
_NEAR = 1.0
# How far each iteration moves what is right, as components compete for rows;
# one Gaussian has nothing to compete with, and only its clipping changes.
_DRIFT = 0.15
_DRIFT_ALONE = 0.05
# A component's variances shrink or grow by at most this much in one iteration.
_SHRINK = 0.05
_GROW = 10.0
# Share of the covariance that separates the first means of components.
_SPREAD = 0.7
_MIN_WEIGHT = 0.002


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
  def covariances(self) -> np.ndarray:
    """float64 `[k, d, d]`."""
    return self.scales @ self.scales.transpose(0, 2, 1)

  def assign(self, x: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the rows as each component sees them, block by block.

    Args:
      x: float64 array `[n, d]`, finite.

    Yields:
      `(weights [b, k], vectors [k, b, d])`: the posterior probability of each
      component given a row, and the row in the coordinates in which the
      component is a standard normal distribution.
    """
    for rows in _blocks(x):
      logits, vectors = self._terms(rows)
      weights = np.exp(logits - logits.max(axis=1, keepdims=True))
      yield weights / weights.sum(axis=1, keepdims=True), vectors

  def log_prob(self, x: np.ndarray) -> np.ndarray:
    """Returns the log-density of rows `[n, d]`, float64 `[n]`, in nats."""
    x = np.asarray(x, np.float64)
    found = [
      np.logaddexp.reduce(self._terms(rows)[0], axis=1) for rows in _blocks(x)
    ]
    return np.concatenate(found)

  def with_tail(self, tail: GaussianMixture, weight: float) -> GaussianMixture:
    """Adds a wide component, so that a rare row does not cost dozens of nats.

    Args:
      tail: a mixture of one component.
      weight: what it gets, in [0, 1).

    Returns:
      A `GaussianMixture`.
    """
    if not weight:
      return self
    return GaussianMixture(
      np.append((1 - weight) * self.weights, weight),
      np.concatenate([self.means, tail.means]),
      np.concatenate([self.scales, tail.scales]),
    )

  def _terms(self, x):
    """Returns log(weight * density) `[b, k]`, and whitened rows `[k, b, d]`."""
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


@dataclasses.dataclass(frozen=True)
class NoisyEM:
  """The rounds of DP-EM: their noise, what they cost, and what they do.

  Attributes:
    noise_multiplier: of all rounds together, as one Gaussian release.
    event_size: number of columns d.
    num_iterations: rounds after the first ones.
    l2_norm_bound: bound of the norm of a row.
    kind: of noise, 'gaussian' or 'laplace'.
    adaptive: whether all rounds but the first see whitened rows.

  #### Formal guarantee

  `run` costs `event`, which is a function of the attributes alone: nothing but
  one `noisy_moments` a round reads the rows, and each sees a row through
  parameters from earlier rounds. Charge it before.
  """

  noise_multiplier: float
  event_size: int
  num_iterations: int
  l2_norm_bound: float
  kind: str
  adaptive: bool

  @property
  def noises(self) -> list[MomentNoise]:
    """The noise of every round."""
    before = _ROUNDS_BEFORE if self.adaptive else 1
    rounds = before + self.num_iterations
    first = 1.0
    if self.num_iterations:
      first = _SHARE_BEFORE if self.adaptive else 1 / rounds
    shares = [first / before] * before
    shares += [(1 - first) / max(self.num_iterations, 1)] * self.num_iterations
    radii = [self.l2_norm_bound] * rounds
    if self.adaptive:
      radii[1:] = [math.sqrt(self.event_size) + _CLIP_BEYOND] * (rounds - 1)
    return [
      MomentNoise(
        self.noise_multiplier / math.sqrt(share),
        self.event_size,
        radius,
        self.kind,
      )
      for share, radius in zip(shares, radii)
    ]

  @property
  def event(self) -> dp_accounting.ComposedDpEvent:
    """The `DpEvent` of all rounds."""
    return dp_accounting.ComposedDpEvent([noise.event for noise in self.noises])

  def run(
    self,
    x: np.ndarray,
    num_components: Optional[int],
    floor: float,
    rng: np.random.Generator,
  ) -> tuple[GaussianMixture, GaussianMixture]:
    """Runs all rounds. Nothing but `noisy_moments` sees the rows.

    Args:
      x: float64 `[n, d]`. Rows that are not finite are left out, the others are
        clipped to the radius of the first round.
      num_components: number of components, or `None` to choose it.
      floor: smallest eigenvalue of a covariance.
      rng: of noise and starting points.

    Returns:
      The last mixture, and the one of the first round.
    """
    noises = self.noises
    radius = noises[0].radius
    x = clip_norms(x[np.isfinite(x).all(axis=1)], radius)
    last_before = len(noises) - self.num_iterations - 1
    mixture = _as_wide_as(radius, self.event_size)
    uncertainty = np.full([2, 1], _FAR**2)
    for number, noise in enumerate(noises):
      whiten = self.adaptive and number > 0
      moments = noisy_moments(
        mixture.assign(x) if whiten else _not_whitened(mixture, x),
        len(mixture.weights),
        noise,
        rng,
      )
      if whiten:
        mixture, uncertainty = refine(
          moments, noise, mixture, uncertainty, floor
        )
      else:
        mixture = _estimate(moments, noise, mixture, floor)
      if number == 0:
        first = mixture
      if number == last_before and self.num_iterations:
        # Every row is counted once, whatever the number of components.
        count = float(moments.counts.sum())
        k = num_components or _choose_num_components(count, noises[-1])
        if k > 1:
          mixture = _split(mixture, k, rng)
          uncertainty = np.full([2, k], _NEAR**2)
    return mixture, first


def refine(
  moments: Moments,
  noise: MomentNoise,
  mixture: GaussianMixture,
  uncertainty: np.ndarray,
  floor: float,
) -> tuple[GaussianMixture, np.ndarray]:
  """Returns components from moments of rows in the components' coordinates.

  There a component that fits has mean 0 and covariance I. The deviation from
  these is estimated by a Kalman filter: where its expected variance is `v^2`
  per entry and that of the noise `s^2`, the estimate is `v^2 / (v^2 + s^2)` of
  the measured one, with an error of variance `v^2 s^2 / (v^2 + s^2)`, to which
  the drift is added.

  Args:
    moments: of vectors from `mixture.assign`.
    noise: of their release.
    mixture: the one before.
    uncertainty: float64 `[2, k]`, the `v^2` of means and of covariances.
    floor: smallest eigenvalue allowed.

  Returns:
    A `GaussianMixture` and its uncertainty.
  """
  counts, found = _trusted(moments, noise)
  variances = (np.array(noise.stds[1:])[:, None] / counts) ** 2
  gain = uncertainty / (uncertainty + variances)
  drift = _DRIFT if len(counts) > 1 else _DRIFT_ALONE
  means = moments.first / counts[:, None]
  seen = moments.second / counts[:, None, None] - _outer(means)
  means = means * gain[0][:, None]
  share = gain[1][:, None, None]
  inner = project_covariances(
    (1 - share) * np.eye(noise.event_size) + share * seen, _SHRINK, _GROW
  )
  scales = mixture.scales
  covariances = project_covariances(
    scales @ inner @ scales.transpose(0, 2, 1), floor
  )
  means = mixture.means + (scales @ means[..., None])[..., 0]
  refined = _replace(mixture, moments, noise, found, means, covariances)
  return refined, gain * variances + drift**2


def _estimate(moments, noise, mixture, floor):
  """Returns components from moments, about zero, of rows in their own units.

  Eigenvalues of covariances are raised to at least the spectral norm of the
  noise, about `sqrt(2 d)` times that of a diagonal entry. Where there are too
  few rows the component of `mixture` stays.
  """
  counts, found = _trusted(moments, noise)
  means = moments.first / counts[:, None]
  covariances = moments.second / counts[:, None, None] - _outer(means)
  noise_size = noise.stds[2] * math.sqrt(2 * noise.event_size) / counts
  # No variance is larger than that of the ball.
  lowest = np.minimum(noise_size, noise.radius**2 / noise.event_size)
  covariances = project_covariances(
    covariances, np.maximum(lowest, floor), max(noise.radius**2, floor)
  )
  return _replace(mixture, moments, noise, found, means, covariances)


def _as_wide_as(radius, event_size):
  """Returns one Gaussian as wide as the ball."""
  scale = radius / math.sqrt(event_size)
  return GaussianMixture(
    np.ones(1), np.zeros([1, event_size]), scale * np.eye(event_size)[None]
  )


def _choose_num_components(count, noise):
  """Returns a number of components that suits the noise: `s^(-3/4)`.

  s is the noise of an entry of the covariance of all rows, in its own units, in
  one iteration. Found on covertype, UCI power, randhie, Gowalla (New York) and
  two artificial mixtures at epsilon 0.2, 1 and 4.
  """
  relative = noise.stds[2] / max(count, 1.0)
  return int(np.clip(relative ** (-0.75), 1, _LARGEST_K))


def _split(mixture, num_components, rng):
  """Returns random components whose mixture is about one Gaussian."""
  d = mixture.means.shape[1]
  steps = math.sqrt(_SPREAD) * rng.normal(size=[num_components, d])
  scale = mixture.scales[0]
  return GaussianMixture(
    np.full(num_components, 1 / num_components),
    mixture.means + steps @ scale.T,
    np.repeat(math.sqrt(1 - _SPREAD) * scale[None], num_components, axis=0),
  )


def _trusted(moments, noise):
  """Returns counts to divide by, and which of them are significant."""
  least = _SIGNIFICANT * noise.stds[0]
  return np.maximum(moments.counts, least), moments.counts > least


def _replace(mixture, moments, noise, found, means, covariances):
  """Returns new components where rows were found, old ones elsewhere."""
  counts = np.maximum(moments.counts, noise.stds[0])
  least = min(_MIN_WEIGHT, 0.1 / len(counts))
  weights = np.maximum(counts / counts.sum(), least)
  return GaussianMixture(
    weights / weights.sum(),
    np.where(found[:, None], means, mixture.means),
    np.where(
      found[:, None, None], np.linalg.cholesky(covariances), mixture.scales
    ),
  )


def _not_whitened(mixture, x):
  """Yields as `assign` does, with the rows in their own coordinates."""
  for rows, (weights, vectors) in zip(_blocks(x), mixture.assign(x)):
    yield weights, np.broadcast_to(rows, vectors.shape)


def _blocks(x):
  return np.array_split(x, max(1, math.ceil(len(x) / _BLOCK)))


def _outer(vectors):
  return vectors[:, :, None] * vectors[:, None, :]


def project_covariances(
  covariances: np.ndarray,
  lowest: Union[float, np.ndarray],
  highest: Union[float, np.ndarray] = np.inf,
) -> np.ndarray:
  """Returns the nearest symmetric matrices with eigenvalues in a range.

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
