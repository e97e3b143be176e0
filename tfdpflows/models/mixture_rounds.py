"""The rounds of DP-EM: how much noise each has, and what it does."""

from __future__ import annotations

import math

import numpy as np

from tfdpflows.mechanisms.moments import MomentNoise, clip_norms, noisy_moments
from tfdpflows.models import mixture_updates

# Rounds that find one Gaussian before it is split, and their share of the
# budget.
_ROUNDS_BEFORE = 3
_SHARE_BEFORE = 0.1
# Rows are clipped this far beyond the typical norm of a standard normal row.
_CLIP_BEYOND = 1.7
_LARGEST_K = 48


def round_noises(
  noise_multiplier, event_size, num_iterations, l2_norm_bound, noise, adaptive
):
  """Returns the `MomentNoise` of every round, of public numbers alone.

  Args:
    noise_multiplier: of all rounds together, as one Gaussian release.
    event_size: number of columns d.
    num_iterations: rounds after the first ones.
    l2_norm_bound: bound of the norm of a row.
    noise: 'gaussian' or 'laplace'.
    adaptive: whether all rounds but the first see whitened rows.
  """
  before = _ROUNDS_BEFORE if adaptive else 1
  rounds = before + num_iterations
  first = 1.0
  if num_iterations:
    first = _SHARE_BEFORE if adaptive else 1 / rounds
  shares = [first / before] * before
  shares += [(1 - first) / max(num_iterations, 1)] * num_iterations
  radii = [l2_norm_bound] * rounds
  if adaptive:
    radii[1:] = [math.sqrt(event_size) + _CLIP_BEYOND] * (rounds - 1)
  return [
    MomentNoise(noise_multiplier / math.sqrt(share), event_size, radius, noise)
    for share, radius in zip(shares, radii)
  ]


def run_rounds(x, noises, num_iterations, num_components, adaptive, floor, rng):
  """Runs all rounds. Nothing but `noisy_moments` sees the rows.

  Args:
    x: float64 `[n, d]`. Rows that are not finite are left out, the others are
      clipped to the radius of the first round.
    noises: from `round_noises`, charged before.
    num_iterations: as there.
    num_components: number of components, or `None` to choose it.
    adaptive: as there.
    floor: smallest eigenvalue of a covariance.
    rng: `np.random.Generator` of noise and starting points.

  Returns:
    The last `GaussianMixture`, and the one of the first round.
  """
  x = clip_norms(x[np.isfinite(x).all(axis=1)], noises[0].radius)
  last_before = len(noises) - num_iterations - 1
  mixture, doubt = mixture_updates.prior(x.shape[1], noises[0].radius)
  for number, noise in enumerate(noises):
    whiten = adaptive and number > 0
    moments = noisy_moments(
      mixture.assign(x) if whiten else _as_they_are(mixture, x),
      len(mixture.weights),
      noise,
      rng,
    )
    if whiten:
      mixture, doubt = mixture_updates.refine(
        moments, noise, mixture, doubt, floor
      )
    else:
      mixture = mixture_updates.estimate(moments, noise, mixture, floor)
    if number == 0:
      first = mixture
    if number == last_before and num_iterations:
      # Every row is counted once, whatever the number of components.
      count = float(moments.counts.sum())
      mixture, doubt = mixture_updates.split(
        mixture,
        doubt,
        num_components
        or mixture_updates.choose_num_components(count, noises[-1], _LARGEST_K),
        rng,
      )
  return mixture, first


def _as_they_are(mixture, x):
  """How much of each row belongs to which component, and the row itself."""
  start = 0
  for weights, vectors in mixture.assign(x):
    rows = x[start : start + len(weights)]
    start += len(weights)
    yield weights, np.broadcast_to(rows, vectors.shape)
