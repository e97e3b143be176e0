"""Noisy counts, means and second moments of softly assigned rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import dp_accounting
import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_positive
from tfdpflows.noise_grid import add_noise, round_to_grid

_KINDS = ('gaussian', 'laplace')
# Squares outside of this range would underflow or overflow unseen, and a row
# whose square is zero is not clipped.
_RADII = 1e-100, 1e100


@dataclasses.dataclass(frozen=True)
class MomentNoise:
  """The noise of `noisy_moments`, and its `DpEvent`.

  The noise multiplier is split over the three kinds of moments by the public
  `event_size` alone. If a component is a Gaussian, errors of the variances `A`
  (its count), `B` (each mean) and `C` (each second moment), in units of its own
  scale, lower the log-likelihood by about `(d + 2) A / 4`, `d B / 2` and
  `d (d + 1) C / 8` nats per row; the shares minimize that sum for rows of norm
  `sqrt(d)`.

  Attributes:
    noise_multiplier: the noise of the joint release over its l2 sensitivity;
      with Laplace noise a common factor of all scales.
    event_size: number of columns d.
    radius: norm that the vectors are clipped to, in [1e-100, 1e100].
    kind: 'gaussian', or 'laplace' for counts and means with Laplace noise
      beside second moments with Gaussian noise, as Park et al. 2017 do.

  Raises:
    ValueError: if an attribute is out of range.
  """

  noise_multiplier: float
  event_size: int
  radius: float
  kind: str = 'gaussian'

  def __post_init__(self):
    check_positive('noise_multiplier', self.noise_multiplier)
    check_radius('radius', self.radius)
    if self.event_size < 1:
      raise ValueError(f'event_size is {self.event_size}; it must be >= 1.')
    if self.kind not in _KINDS:
      raise ValueError(f'noise is {self.kind!r}; choose one of {_KINDS}.')

  @property
  def multipliers(self) -> tuple[float, float, float]:
    """Noise over sensitivity of counts, means and second moments."""
    d = self.event_size
    # The l1 norm of means is up to sqrt(d) times as large, and the variance of
    # a Laplace variable is twice the square of its scale.
    worse = 2.0 if self.kind == 'laplace' else 1.0
    costs = np.sqrt(
      [
        worse * (d + 2) / 4,
        (worse * d if self.kind == 'laplace' else 1.0) * d**2 / 2,
        d**3 * (d + 1) / 8,
      ]
    )
    return tuple(
      (self.noise_multiplier / np.sqrt(costs / costs.sum())).tolist()
    )

  @property
  def stds(self) -> tuple[float, float, float]:
    """Standard deviations of the noise in a count, a mean, a second moment.

    In rows times the first and second power of the unit of the vectors. The
    last is that of a diagonal entry; others have `sqrt(1 / 2)` of it.
    """
    count, first, second = self.multipliers
    if self.kind == 'laplace':
      count *= math.sqrt(2)
      first *= math.sqrt(2 * self.event_size)
    return count, first * self.radius, second * self.radius**2

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The `DpEvent` of one call of `noisy_moments`."""
    if self.kind == 'gaussian':
      return dp_accounting.GaussianDpEvent(self.noise_multiplier)
    count, first, second = self.multipliers
    return dp_accounting.ComposedDpEvent(
      [
        dp_accounting.LaplaceDpEvent(count),
        dp_accounting.LaplaceDpEvent(first),
        dp_accounting.GaussianDpEvent(second),
      ]
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
  """Sums over rows, float64, each weighted by its part in a component.

  Attributes:
    counts: `[k]`, sums of weights.
    first: `[k, d]`, sums of weighted vectors.
    second: `[k, d, d]`, sums of weighted outer products; symmetric.
  """

  counts: np.ndarray
  first: np.ndarray
  second: np.ndarray


def noisy_moments(
  parts: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
  num_components: int,
  noise: MomentNoise,
  rng: np.random.Generator,
) -> Moments:
  """Returns noisy moments of weighted vectors. Charges nothing.

  The caller charges `noise.event` before the rows are read. Whatever comes in
  is bounded here: weights of a row are made nonnegative and scaled down to a
  sum of at most one, vectors are clipped to `noise.radius`, and a row with
  anything that is not finite counts for nothing.

  Args:
    parts: an iterable of `(weights [b, k], vectors [k, b, d])`, block by block
      of rows: how much of a row belongs to each component, and the row as that
      component sees it.
    num_components: number of components k.
    noise: a `MomentNoise`.
    rng: `np.random.Generator` of the noise.

  Returns:
    `Moments`.

  #### Formal guarantee

  If the weights and vectors of a row are functions of this row and of what is
  public, the release costs `noise.event` under adding or removing one row.

  Let the row have weights `w_k >= 0` of sum at most 1 and vectors of norm at
  most r. It adds `(w_k / s_0, w_k z_k / s_1, w_k z_k z_k' / s_2)` to the sums
  in units of their noise, where symmetric matrices are measured in the
  Frobenius norm (that is: by their diagonal and by sqrt(2) times their upper
  triangle, whose noise is independent and of equal size). Its squared norm is
  at most `sum_k w_k^2 (1 / s_0^2 + r^2 / s_1^2 + r^4 / s_2^2)`, and
  `sum_k w_k^2 <= 1`, so that it does not grow with the number of components.
  The bracket is `1 / noise_multiplier^2` by the choice of `MomentNoise`: one
  Gaussian mechanism.

  With Laplace noise, the counts have l1 sensitivity `sum_k w_k <= 1` and the
  means `sum_k w_k |z_k|_1 <= sqrt(d) r`. Laplace noise on several numbers whose
  shifts add up to D is no worse than on one number shifted by D: a chain of
  tables that shifts one number after the other has at least the trade-off
  function of the shifts applied in turn (as Dong, Roth and Su 2022 prove group
  privacy, theorem 2.14), and for shifts of one number with log-concave noise
  that is the trade-off function of their sum. The three parts are composed.

  Replacing a row moves every sum by at most twice what one row adds, which is
  how accountants take these events under `REPLACE_ONE`.

  All of this holds for real numbers. Sums are rounded, and the rounding of one
  row's vectors may depend on how many rows there are.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows.mechanisms import moments
  >>> x = np.random.default_rng(0).normal(size=[1, 500, 2])
  >>> noise = moments.MomentNoise(2., event_size=2, radius=3.)
  >>> found = moments.noisy_moments(
  ...   [(np.ones([500, 1]), x)], 1, noise, np.random.default_rng(1))
  >>> found.second.shape
  (1, 2, 2)
  """
  k, d = num_components, noise.event_size
  sums = _sums(parts, k, d, noise.radius)
  count, first, second = noise.stds
  draw = rng.normal
  if noise.kind == 'laplace':
    count, first = count / math.sqrt(2), first / math.sqrt(2)
    draw = rng.laplace
  counts = add_noise(sums.counts, count, draw)
  means = add_noise(sums.first, first, draw)
  half = rng.normal(scale=second, size=[k, d, d])
  squares = sums.second + (half + half.transpose(0, 2, 1)) / 2
  return Moments(
    counts,
    means,
    # All but the diagonal have half the variance.
    round_to_grid(squares, second / math.sqrt(2)),
  )


def _sums(parts, k, d, radius):
  """The moments without noise, of what is left after bounding."""
  counts, first, second = np.zeros(k), np.zeros([k, d]), np.zeros([k, d, d])
  for weights, vectors in parts:
    weights, vectors = _bounded(
      np.asarray(weights, np.float64), np.asarray(vectors, np.float64), radius
    )
    weighted = vectors * weights.T[:, :, None]
    counts += weights.sum(axis=0)
    first += weighted.sum(axis=1)
    second += np.matmul(weighted.transpose(0, 2, 1), vectors)
  # A product of matrices need not be symmetric to the last digit.
  return Moments(counts, first, (second + second.transpose(0, 2, 1)) / 2)


def _bounded(weights, vectors, radius):
  """Returns weights and vectors of a block that are within their bounds."""
  finite = np.isfinite(weights).all(1) & np.isfinite(vectors).all((0, 2))
  if not finite.all():
    # Replaced, not multiplied: 0 * nan is nan.
    weights = np.where(finite[:, None], weights, 0.0)
    vectors = np.where(finite[None, :, None], vectors, 0.0)
  weights = np.maximum(weights, 0.0)
  weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1.0)
  return weights, clip_norms(vectors, radius)


def check_radius(name: str, radius: float) -> None:
  """Raises a `ValueError` for a radius outside of [1e-100, 1e100]."""
  smallest, largest = _RADII
  if not smallest <= radius <= largest:
    raise ValueError(
      f'{name} is {radius}; it must be in [{smallest:g}, {largest:g}]. Give '
      'the rows another unit.'
    )


def clip_norms(vectors: np.ndarray, radius: float) -> np.ndarray:
  """Scales vectors `[..., d]` down to an l2 norm of at most `radius`.

  They must be finite; nothing overflows.
  """
  check_radius('radius', radius)
  with np.errstate(over='ignore'):
    squares = np.einsum('...i,...i->...', vectors, vectors)
  if not np.isfinite(squares).all():
    largest = np.maximum(np.abs(vectors).max(axis=-1, keepdims=True), 1.0)
    scaled = vectors / largest
    norms = np.sqrt(np.einsum('...i,...i->...', scaled, scaled))[..., None]
    with np.errstate(over='ignore'):
      factor = radius / np.maximum(norms, np.finfo(float).tiny)
    return scaled * np.minimum(largest, factor)
  norms = np.sqrt(squares)[..., None]
  if (norms <= radius).all():
    return vectors
  return vectors * np.minimum(1.0, radius / np.maximum(norms, radius / 2))
