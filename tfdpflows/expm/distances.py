"""Distances of densities, and what a bound for all tables would imply.

Every theorem here is about mechanisms: its bounds must hold for every table. A
distance that was computed for one table, however small it is, implies no
privacy, neither for other tables nor for this one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from tfdpflows._checks import check_nonnegative
from tfdpflows.mechanisms.releases import as_numbers

if TYPE_CHECKING:
  import numpy.typing as npt

_UP = 1 + 1e-14


def dp_distance(
  log_p: npt.ArrayLike,
  log_q: npt.ArrayLike,
  *,
  normalize: bool = False,
  lipschitz: float = 0.0,
  radius: float = 0.0,
) -> float:
  """Returns the largest |log p - log q| over points, or a bound beyond them.

  Args:
    log_p: logs of a density at points of the parameters, any shape.
    log_q: logs of another one, at the same points.
    normalize: whether to normalize both over the points first, as laws on these
      points. Needed for logs that are known up to a constant; what lies between
      and beyond the points is then not seen at all.
    lipschitz: a constant L with |f(a) - f(b)| <= L |a - b|, f = log p - log q.
      Not with `normalize`, whose constants are not those of the densities.
    radius: how far a parameter may be from the nearest point.

  Returns:
    The largest difference, plus `lipschitz * radius`. Without these two it is
    the distance on the points, and a bound from below on the supremum. With
    them it is a bound from above, for all parameters within `radius` of a
    point. Infinite if only one density vanishes at a point; where both do, the
    difference counts as zero.

  Raises:
    ValueError: for shapes that differ, no points, NaN, +inf, or negative
      numbers; or a Lipschitz constant with `normalize` or -inf.

  #### Formal guarantee

  None. Definition 7.1 of Bridges, Tombs and Stanley 2023 is a distance for one
  table, which depends on its rows and is private like them. `epsilon_of_close`
  needs a bound that holds for all tables: that of one proves nothing about
  others.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import expm
  >>> p, q = np.log([.5, .5]), np.log([.25, .75])
  >>> round(expm.dp_distance(p, q), 4)
  0.6931
  """
  log_p = as_numbers(log_p, 'log_p').astype(np.float64)
  log_q = as_numbers(log_q, 'log_q').astype(np.float64)
  if log_p.shape != log_q.shape or not log_p.size:
    raise ValueError(
      f'log_p has shape {log_p.shape} and log_q {log_q.shape}; they must be '
      'the same, and not empty.'
    )
  check_nonnegative('lipschitz', lipschitz)
  check_nonnegative('radius', radius)
  for name, value in (('log_p', log_p), ('log_q', log_q)):
    if np.isnan(value).any() or np.isposinf(value).any():
      raise ValueError(f'{name} has NaN or +inf.')
    if normalize and np.isneginf(value).all():
      raise ValueError(f'{name} is zero everywhere and cannot be normalized.')
  if lipschitz * radius:
    if normalize:
      raise ValueError(
        'lipschitz and radius bound a difference of normalized densities; with '
        'normalize=True their constants are only estimated from the points.'
      )
    if np.isneginf(log_p).any() or np.isneginf(log_q).any():
      raise ValueError(
        'A density is zero at a point, where log p - log q has no Lipschitz '
        'constant: leave out lipschitz and radius.'
      )
  if normalize:
    log_p = log_p - special.logsumexp(log_p)
    log_q = log_q - special.logsumexp(log_q)
  both = np.isneginf(log_p) & np.isneginf(log_q)
  with np.errstate(invalid='ignore'):
    gap = np.where(both, 0.0, np.abs(log_p - log_q))
  return float(np.max(gap)) + lipschitz * radius


def epsilon_of_close(epsilon: float, distance: float) -> float:
  """Returns epsilon of a mechanism near an epsilon-private one.

  Args:
    epsilon: of the mechanism p, delta being zero.
    distance: eta, with |log p - log q| <= eta for every table and parameter.

  Returns:
    epsilon + 2 eta: q is private with it (Bridges, Tombs and Stanley 2023,
    theorem 7.3).

  #### Formal guarantee

  As stated, if the distance is a bound for all tables. `dp_distance` of one
  table is none.

  #### Example

  >>> from tfdpflows import expm
  >>> round(expm.epsilon_of_close(1., .25), 6)
  1.5
  """
  return math.nextafter(
    (_check('epsilon', epsilon) + 2 * _check('distance', distance)) * _UP,
    math.inf,
  )


def epsilon_of_squeezed(
  epsilon_a: float, epsilon_b: float, distance: float
) -> float:
  """Returns epsilon of a mechanism whose density lies between two others.

  Args:
    epsilon_a: of the mechanism a, delta being zero.
    epsilon_b: of the mechanism b.
    distance: with |log a - log b| <= distance for every table and parameter.

  Returns:
    max(epsilon_a, epsilon_b) + distance: c is private with it, if min(a, b) <=
    c <= max(a, b) for every table and parameter (Bridges, Tombs and Stanley
    2023, theorem 7.6).

  #### Formal guarantee

  As stated, if both conditions hold for all tables; that they hold for one
  proves nothing. Two exponential mechanisms of one utility on R^P with
  different epsilons have an infinite distance unless the utility is bounded.

  #### Example

  >>> from tfdpflows import expm
  >>> round(expm.epsilon_of_squeezed(1., 2., .5), 6)
  2.5
  """
  largest = epsilon_of_mixture(epsilon_a, epsilon_b)
  return math.nextafter(
    (largest + _check('distance', distance)) * _UP, math.inf
  )


def epsilon_of_mixture(epsilon_a: float, epsilon_b: float) -> float:
  """Returns epsilon of a mixture of two mechanisms with fixed weights.

  Args:
    epsilon_a: of the mechanism a, delta being zero.
    epsilon_b: of the mechanism b.

  Returns:
    The larger one: w a + (1 - w) b is private with it for any w in [0, 1] that
    does not depend on the table (Bridges, Tombs and Stanley 2023, theorem 7.7,
    the projection theorem).

  #### Formal guarantee

  As stated, with the same w for all tables. A density that lies on the segment
  between a and b for one table, with a w of its own, is not covered.

  #### Example

  >>> from tfdpflows import expm
  >>> expm.epsilon_of_mixture(1., 2.)
  2.0
  """
  return max(_check('epsilon_a', epsilon_a), _check('epsilon_b', epsilon_b))


def _check(name: str, value: float) -> float:
  if not value >= 0:
    raise ValueError(f'{name} is {value}; it must be zero or more.')
  return float(value)
