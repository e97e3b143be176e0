"""The few mechanisms that accountants price."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import dp_accounting
import numpy as np

__all__ = [
  'ABSENT',
  'OPPOSITE',
  'PRESENT',
  'RELATIONS',
  'Mechanism',
  'RefusedEventError',
  'amplified',
  'checked',
  'joint_noise',
]

RELATIONS = (
  dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
  dp_accounting.NeighboringRelation.REPLACE_ONE,
  dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
)


# The joint noise of this many Gaussians is computed with fractions.
_EXACTLY = 8
# Where the row that differs is, see `Mechanism`.
ABSENT, PRESENT, OPPOSITE = range(3)


class Mechanism(NamedTuple):
  """One mechanism, with sensitivity 1 under the relation accounted for.

  Attributes:
    kind: 'gaussian', 'laplace', 'discrete_laplace', 'epsilon_delta',
      'bounded_range', 'zcdp', 'randomized_response', 'response_or_null' (the
      same where the row is null in one table), 'gaussian_or_null' (see
      `null_rows`), 'data_dependent_gnmax', 'data_dependent_lnmax',
      'data_dependent_threshold', 'parallel', 'repeat_and_select', 'mixture' or
      'non_private'.
    parameter: Noise standard deviation (gaussian, gaussian_or_null), noise
      scale (laplace), a of the noise (discrete_laplace), p of the noise
      (randomized responses), epsilon (epsilon_delta, bounded_range), rho
      (zcdp), the noise of the vote or of its check (data_dependent), mean
      number of runs (repeat_and_select).
    probability: Probability q with which sampling takes a row; 1 if there is
      none.
    extra: delta (epsilon_delta), xi (zcdp), how far the sum moves
      (discrete_laplace), buckets (randomized responses), log of a probability
      (data_dependent), shape (repeat_and_select), else 0.
    replaced: What sampling does to the pair (P, Q) that dominates the mechanism
      without it. If `ABSENT` (0), the dominating pairs are (1 - q) Q + q P
      against Q, and the other way round. If `PRESENT` (1), both tables hold the
      row that differs, and the profile is that of (1 - q) Q + q P against Q for
      epsilon >= 0, in either direction. If `OPPOSITE` (2), besides, additive
      noise of twice the parameter is around 0 in both where the row is not
      drawn, and else around something at most 1 from 0; see
      `tfdpflows.accounting.pairs`. Then what is said of 1 holds too, and is
      more.
    parts: The alternatives of 'parallel', each a sorted tuple of pairs of a
      mechanism and a count; the one run of 'repeat_and_select', likewise. Of
      'mixture', which is one of several mechanisms drawn without looking at the
      row that differs, the pairs of a mechanism and its probability, the
      likeliest first.
  """

  kind: str
  parameter: float
  probability: float = 1.0
  extra: float = 0.0
  replaced: int = ABSENT
  parts: tuple = ()


class RefusedEventError(ValueError):
  """An event, or a part of it, that cannot be accounted."""

  def __init__(self, event: dp_accounting.DpEvent, reason: str):
    self.event = event
    super().__init__(reason)


def joint_noise(gaussians: dict[Mechanism, int]) -> float:
  """Noise of the one Gaussian release that several are worth together.

  Args:
    gaussians: How often each of them happens; none is sampled.

  Returns:
    The standard deviation, rounded downwards.

  ```python
  >>> joint_noise({Mechanism('gaussian', 4.0): 4})
  2.0

  ```
  """
  # Relative to the smallest, so that no square leaves the range of floats.
  smallest = min(mechanism.parameter for mechanism in gaussians)
  if list(gaussians.values()) == [1]:
    return smallest
  precision = sum(
    count * (smallest / mechanism.parameter) ** 2
    for mechanism, count in sorted(gaussians.items())
  )
  # Downwards: each summand, each sum and the root are off by a few units in the
  # last place. Never zero, which would be no noise at all.
  if len(gaussians) > _EXACTLY:
    precision *= 1 + (8 + len(gaussians)) * 2.0**-52
  noise = smallest / math.sqrt(precision)
  if len(gaussians) > _EXACTLY:
    return max(math.nextafter(noise, 0.0), 5e-324)
  exact = sum(
    count / Fraction(mechanism.parameter) ** 2
    for mechanism, count in gaussians.items()
  )
  while Fraction(noise) ** 2 * exact > 1:
    noise = math.nextafter(noise, 0.0)
  return max(noise, 5e-324)


def amplified(epsilon: float, probability: float) -> float:
  """Epsilon of a pure mechanism on a sample, log(1 + q (exp(epsilon) - 1)).

  Balle, Barthe and Gaboardi 2018, theorems 8 and 9.

  Args:
    epsilon: Epsilon of the mechanism, in nats.
    probability: Probability with which a row is sampled.

  Returns:
    Epsilon in nats, rounded upwards.

  ```python
  >>> round(amplified(1.0, 0.1), 4)
  0.1586

  ```
  """
  if probability == 1:
    return epsilon
  if epsilon < 700:
    found = math.log1p(probability * math.expm1(epsilon))
  else:
    found = float(
      np.logaddexp(math.log1p(-probability), math.log(probability) + epsilon)
    )
  # Upwards; never so small that it would vanish.
  return math.nextafter(found * (1 + 1e-14), math.inf) if epsilon else 0.0


def checked(
  event: dp_accounting.DpEvent, field: str, lowest: float, highest: float
) -> float:
  """A field of an event as a float.

  Args:
    event: A `DpEvent`.
    field: Name of the field.
    lowest: Smallest value allowed.
    highest: Largest value allowed; may be infinite.

  Returns:
    The value.

  Raises:
    ValueError: If it is not a finite number in that range; names field and
      event.
  """
  try:
    value = float(getattr(event, field))
  except OverflowError:
    value = math.inf
  if not (math.isfinite(value) and lowest <= value <= highest):
    bound = 'a finite number'
    if lowest > -math.inf:
      bound += f' in [{lowest:g}, '
      bound += f'{highest:g}]' if highest < math.inf else 'inf)'
    raise ValueError(f'{field} of {event!r} must be {bound}.')
  return value
