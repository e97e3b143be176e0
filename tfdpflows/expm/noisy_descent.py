"""Noisy gradient descent on strongly convex functions, and its limit.

A table has a function F, strongly convex and smooth with constants that hold
for all tables, and one row changes its gradient by at most G. The last point of
a noisy descent on F is private at a cost that stays bounded however many steps
there are. With small steps it is a Langevin chain for the density proportional
to exp(-beta F), the regularized exponential mechanism (Gopi, Lee and Liu 2022).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import dp_accounting
import numpy as np

from tfdpflows._checks import check_integer, check_positive
from tfdpflows.noise_grid import round_to_grid

_UP = 1 + 1e-9


@dataclasses.dataclass(frozen=True)
class NoisyDescent:
  """Gradient descent with Gaussian noise in every gradient.

  From a public start, `theta <- theta - step_size * (gradient of F + Z)` with
  fresh `Z ~ N(0, noise_std^2 I)`, for a fixed number of steps. The last point
  is released, and no other one.

  Attributes:
    sensitivity: the l2 norm G by which one row changes the gradient at any
      point, under the neighbouring relation of `event`: for a sum over rows,
      the norm of one row's gradient (accountants count it twice where a row is
      replaced).
    strong_convexity: m > 0, such that `F - m / 2 |theta|^2` is convex, for
      every table.
    smoothness: M >= m, such that `M / 2 |theta|^2 - F` is convex, for every
      table.
    step_size: inside (0, 2 / M).
    noise_std: standard deviation of the noise in each entry of the gradient.
    steps: number of steps.

  Raises:
    ValueError: if an attribute is out of range.

  #### Formal guarantee

  Two tables that differ in a row, and the same noise: a step maps a point x to
  f(x) + Z and to f'(x) + Z, Z ~ N(0, s^2 I) with s = step_size * noise_std.
  Both maps shrink distances by c = max(|1 - step_size m|, |1 - step_size M|) <
  1, and |f(x) - f'(x)| <= r = step_size G everywhere.

  Let X be the points with f, and X' those with f'. Let Y start like both of
  them and follow f', moved towards X by a part of what it is away from it:

      Y_(t+1) = f'(Y_t) + p_t (f(X_t) - f'(Y_t)) + Z_t,    p_T = 1,

  so that Y_T = X_T. With z_t >= |X_t - Y_t|, z_0 = 0, and a move of at most
  a_t <= c z_t + r, what is left is z_(t+1) = c z_t + r - a_t. Given Y_t, the
  next point is a mixture of N(f'(Y_t) + v, s^2 I) with |v| <= a_t, and that of
  X' is N(f'(Y_t), s^2 I): no further apart than a Gaussian mechanism with mu =
  a_t / s, as trade-off functions of mixtures are above the least of the parts.
  So by composition X_T = Y_T and X'_T are no further apart than a Gaussian
  mechanism with mu^2 = sum of (a_t / s)^2. Every choice of moves with z_T = 0
  is a bound. By Cauchy's inequality the least is a_t = K c^(T - t), t from 1
  on, with K = r sum c^j / sum c^(2 j), j < T; then z_t >= 0, as r - a_t changes
  its sign once, from above. It gives

      mu = (r / s) (1 + c + ... + c^(T-1)) / sqrt(1 + c^2 + ... + c^(2 (T-1)))
         = (G / noise_std) sqrt((1 - c^T) / (1 + c^T) * (1 + c) / (1 - c)),

  which is at most sqrt(T) G / noise_std, the composition of all gradients, and
  bounded in T. It is charged as that Gaussian mechanism. This is the shifted
  interpolation of Bok, Su and Altschuler 2024. It holds for real numbers, and
  for the last point alone.

  #### References

  Bok, Su and Altschuler 2024, "Shifted interpolation for differential privacy".

  #### Example

  >>> from tfdpflows import expm
  >>> descent = expm.NoisyDescent(
  ...   sensitivity=1., strong_convexity=1., smoothness=5., step_size=.1,
  ...   noise_std=20., steps=10_000)
  >>> round(descent.mu, 4), round(descent.steps ** .5 / 20, 4)
  (0.2179, 5.0)
  """

  sensitivity: float
  strong_convexity: float
  smoothness: float
  step_size: float
  noise_std: float
  steps: int

  def __post_init__(self):
    for name in ('sensitivity', 'strong_convexity', 'step_size', 'noise_std'):
      check_positive(name, getattr(self, name))
    check_positive('smoothness', self.smoothness)
    check_integer('steps', self.steps)
    if self.smoothness < self.strong_convexity:
      raise ValueError(
        f'smoothness is {self.smoothness}, below the strong convexity '
        f'{self.strong_convexity}: no function has both.'
      )
    if not self.step_size * self.smoothness < 2:
      raise ValueError(
        f'step_size is {self.step_size}; it must be below 2 / smoothness = '
        f'{2 / self.smoothness}: longer steps need not shrink distances, which '
        'the proof needs.'
      )

  @property
  def contraction(self) -> float:
    """The factor c by which a step shrinks distances, from above."""
    return 1 - self._shrinkage

  @property
  def mu(self) -> float:
    """Mu of the Gaussian mechanism that it costs as much as, from above."""
    return (
      amplitude(self._shrinkage, self.steps) * self.sensitivity * _UP
    ) / self.noise_std

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The `DpEvent` of the last point."""
    return dp_accounting.GaussianDpEvent(1 / self.mu)

  @property
  def inverse_temperature(self) -> float:
    """The beta of the density exp(-beta F) that the points settle at.

    Up to an error that vanishes with the step size: the privacy does not
    depend on it.
    """
    return 2 / (self.step_size * self.noise_std**2)

  @property
  def _shrinkage(self) -> float:
    """1 - c, from below."""
    return shrinkage(self.step_size, self.strong_convexity, self.smoothness)

  def run(
    self,
    gradient: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    rng: np.random.Generator,
  ) -> np.ndarray:
    """Returns the last point. Charges nothing: charge `event` before.

    Args:
      gradient: the gradient of F at a point `[d]`.
      start: a public point `[d]`.
      rng: `np.random.Generator` of the noise.
    """
    point = np.array(start, np.float64)
    for _ in range(self.steps):
      noise = rng.normal(scale=self.noise_std, size=point.shape)
      moved = point - self.step_size * np.asarray(gradient(point), np.float64)
      point = moved - self.step_size * noise
    # The last noise is in it. Rounding earlier points would move two of them
    # apart that the proof takes to come closer.
    return round_to_grid(point, self.step_size * self.noise_std)


def shrinkage(
  step_size: float, strong_convexity: float, smoothness: float
) -> float:
  """Returns 1 - c, c the factor by which a gradient step shrinks distances."""
  return min(step_size * strong_convexity, 2 - step_size * smoothness) * (
    1 - 1e-12
  )


def amplitude(shrunk: float, steps: int) -> float:
  """Returns sqrt((1 - c^T) / (1 + c^T) * (1 + c) / (1 - c)), c = 1 - shrunk.

  By how much the sensitivity of a single gradient counts.
  """
  power = steps * math.log1p(-shrunk) if shrunk < 1 else -math.inf
  bounded = -math.expm1(power) / (1 + math.exp(power)) * (2 - shrunk) / shrunk
  return math.sqrt(min(bounded, steps))


def exponential_mechanism_mu(
  sensitivity: float, strong_convexity: float
) -> float:
  """Returns mu of the Gaussian mechanism that sampling costs as much as.

  Args:
    sensitivity: the l2 norm G by which one row changes the gradient of U at any
      point: the Lipschitz constant of the difference.
    strong_convexity: m > 0 of U, for every table.

  Returns:
    G / sqrt(m), for one sample of the density proportional to exp(-U).

  #### Formal guarantee

  A sample of exp(-U) and one of exp(-U') are no further apart than N(0, 1) and
  N(G / sqrt(m), 1), if U - U' is G-Lipschitz and both are m-strongly convex
  (Gopi, Lee and Liu 2022). For U = k (F + mu / 2 |theta|^2), F the average of n
  losses with gradients of norm L at most, m is k mu, and G is k L / n where the
  loss of a row becomes zero, so that the result is L sqrt(k / mu) / n. Where a
  row is replaced, two gradients may be opposite: G, and the result, are twice
  as large.

  For smooth U it also follows from `NoisyDescent`: noise_std^2 = 2 / step_size
  makes it a Langevin chain for exp(-U), for which mu^2 <= G^2 / m * (1 -
  step_size m / 2) for any number of steps. With step_size to zero and then
  steps to infinity its law converges to exp(-U), and trade-off functions with
  it.

  #### References

  Gopi, Lee and Liu 2022, "Private convex optimization via exponential
  mechanism".

  #### Example

  >>> from tfdpflows import expm
  >>> expm.exponential_mechanism_mu(1., 16.)
  0.25
  """
  check_positive('sensitivity', sensitivity)
  check_positive('strong_convexity', strong_convexity)
  return sensitivity / math.sqrt(strong_convexity)
