"""From noisy moments to mixtures of Gaussians: post-processing, all public."""

from __future__ import annotations

import math

import numpy as np

from tfdpflows.models.gaussian_mixture import (
  GaussianMixture,
  project_covariances,
)

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


def prior(event_size, l2_norm_bound):
  """One Gaussian as wide as the ball, and the `doubt` after the first round."""
  scale = l2_norm_bound / math.sqrt(event_size)
  mixture = GaussianMixture(
    np.ones(1), np.zeros([1, event_size]), scale * np.eye(event_size)[None]
  )
  return mixture, np.full([2, 1], _FAR**2)


def estimate(moments, noise, mixture, floor):
  """Components from moments of rows in their own units.

  Covariances are moved to the nearest ones whose eigenvalues are at least the
  size that the noise alone would give them, its spectral norm: about
  `sqrt(2 d)` times the noise of a diagonal entry.

  Args:
    moments: `Moments` about zero.
    noise: the `MomentNoise` of the release; its radius bounds the rows.
    mixture: `GaussianMixture` to keep where there are too few rows.
    floor: smallest eigenvalue allowed.

  Returns:
    A `GaussianMixture`.
  """
  counts, found = _trusted(moments, noise)
  means = moments.first / counts[:, None]
  covariances = moments.second / counts[:, None, None] - _outer(means)
  noise_size = noise.stds[2] * math.sqrt(2 * noise.event_size) / counts
  # Noise larger than the ball says nothing; the ball does.
  lowest = np.minimum(noise_size, noise.radius**2 / noise.event_size)
  covariances = project_covariances(
    covariances, np.maximum(lowest, floor), max(noise.radius**2, floor)
  )
  return _replace(mixture, moments, noise, found, means, covariances)


def refine(moments, noise, mixture, doubt, floor):
  """Components from moments of rows in the components' own coordinates.

  There a component that fits has mean 0 and covariance I. What the moments say
  instead is believed as far as its noise allows, by a Kalman filter: where an
  error of variance `v^2` per entry is expected and the noise has variance
  `s^2`, the estimate is `v^2 / (v^2 + s^2)` of what they say, and leaves an
  error of variance `v^2 s^2 / (v^2 + s^2)`, to which the drift is added.

  Args:
    moments: `Moments` of vectors from `mixture.assign`.
    noise: the `MomentNoise` of the release.
    mixture: the `GaussianMixture` that saw the rows so.
    doubt: float64 `[2, k]`, the `v^2` of means and of covariances.
    floor: smallest eigenvalue allowed.

  Returns:
    A `GaussianMixture` and the `doubt` about it.
  """
  counts, found = _trusted(moments, noise)
  variances = (np.array(noise.stds[1:])[:, None] / counts) ** 2
  belief = doubt / (doubt + variances)
  drift = _DRIFT if len(counts) > 1 else _DRIFT_ALONE
  means = moments.first / counts[:, None]
  seen = moments.second / counts[:, None, None] - _outer(means)
  means = means * belief[0][:, None]
  share = belief[1][:, None, None]
  inner = project_covariances(
    (1 - share) * np.eye(noise.event_size) + share * seen, _SHRINK, _GROW
  )
  scales = mixture.scales
  covariances = project_covariances(
    scales @ inner @ scales.transpose(0, 2, 1), floor
  )
  means = mixture.means + (scales @ means[..., None])[..., 0]
  refined = _replace(mixture, moments, noise, found, means, covariances)
  return refined, belief * variances + drift**2


def choose_num_components(count, noise, largest):
  """Number of components that the noise leaves room for.

  `s^(-3/4)`, where s is the noise of an entry of the covariance of all rows, in
  its own units, in one iteration; found on covertype, UCI power, randhie,
  Gowalla (New York) and two artificial mixtures at epsilon 0.2, 1 and 4.

  Args:
    count: noisy number of rows.
    noise: `MomentNoise` of one iteration.
    largest: largest number allowed.
  """
  relative = noise.stds[2] / max(count, 1.0)
  return int(np.clip(relative ** (-0.75), 1, largest))


def split(mixture, doubt, num_components, rng):
  """Random components whose mixture looks about like one Gaussian.

  Args:
    mixture: `GaussianMixture` of one component.
    doubt: the doubt about it.
    num_components: number of components to make; with one, nothing changes.
    rng: `np.random.Generator`.

  Returns:
    A `GaussianMixture` and the doubt about it.
  """
  if num_components == 1:
    return mixture, doubt
  d = mixture.means.shape[1]
  steps = math.sqrt(_SPREAD) * rng.normal(size=[num_components, d])
  scale = mixture.scales[0]
  parts = GaussianMixture(
    np.full(num_components, 1 / num_components),
    mixture.means + steps @ scale.T,
    np.repeat(math.sqrt(1 - _SPREAD) * scale[None], num_components, axis=0),
  )
  return parts, np.full([2, num_components], _NEAR**2)


def add_tail(mixture, tail, weight):
  """Adds a wide component, so that a rare row does not cost dozens of nats.

  Args:
    mixture: `GaussianMixture`.
    tail: `GaussianMixture` of one component.
    weight: what it gets, in [0, 1).
  """
  if not weight:
    return mixture
  return GaussianMixture(
    np.append((1 - weight) * mixture.weights, weight),
    np.concatenate([mixture.means, tail.means]),
    np.concatenate([mixture.scales, tail.scales]),
  )


def _outer(vectors):
  return vectors[:, :, None] * vectors[:, None, :]


def _trusted(moments, noise):
  """Counts that may be divided by, and which of them are real."""
  least = _SIGNIFICANT * noise.stds[0]
  return np.maximum(moments.counts, least), moments.counts > least


def _replace(mixture, moments, noise, found, means, covariances):
  """The new components where rows were found, and the old ones elsewhere."""
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
