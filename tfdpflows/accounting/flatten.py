"""Any event as a multiset of the few mechanisms that accountants price.

Composition is commutative for every accountant here, so that an event tree is
worth the same as its leaves and how often each occurs. Leaves that are equal
are counted, not listed: a million steps are one entry.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import dp_accounting

from tfdpflows.accounting import events as events_lib

__all__ = [
  'RELATIONS',
  'Mechanism',
  'RefusedEventError',
  'flatten',
  'joint_noise',
]

Relation = dp_accounting.NeighboringRelation
RELATIONS = (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE)


class Mechanism(NamedTuple):
  """One mechanism, with sensitivity 1 under the relation accounted for.

  Attributes:
    kind: 'gaussian', 'laplace', 'epsilon_delta', 'zcdp' or 'non_private'.
    parameter: Noise standard deviation (gaussian), noise scale (laplace),
      epsilon, or rho.
    probability: Probability with which Poisson sampling takes a row; 1 if there
      is none.
    extra: delta (epsilon_delta), xi (zcdp), else 0.
  """

  kind: str
  parameter: float
  probability: float = 1.0
  extra: float = 0.0


class RefusedEventError(Exception):
  """An event cannot be accounted for; says which part of it and why."""

  def __init__(self, event: dp_accounting.DpEvent, message: str):
    super().__init__(message)
    self.event = event


def flatten(
  event: dp_accounting.DpEvent,
  relation: Relation,
  count: int = 1,
  totals: Optional[dict[Mechanism, int]] = None,
) -> dict[Mechanism, int]:
  """Counts the mechanisms of an event.

  Args:
    event: A `DpEvent`, as deep as it likes.
    relation: What two neighbouring tables are. The fields of a `DpEvent` are
      relative to the largest norm C of one row's contribution. Adding or
      removing a row moves a sum by C; replacing one moves it by up to 2C, so
      that under `REPLACE_ONE` the noise counts half.
    count: How often the event happens.
    totals: Counts to add to; a new dict if None.

  Returns:
    `totals`.

  Raises:
    RefusedEventError: If a part of `event` is not supported.
    ValueError: If a parameter is outside its range.

  ```python
  >>> flatten(dp_accounting.GaussianDpEvent(4.0), Relation.REPLACE_ONE)
  {Mechanism(kind='gaussian', parameter=2.0, probability=1.0, extra=0.0): 1}

  ```
  """
  totals = {} if totals is None else totals
  if isinstance(event, dp_accounting.NoOpDpEvent):
    return totals
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    if event.count != int(event.count) or event.count < 0:
      raise ValueError(
        f'The count of {event!r} must be a whole number, zero or more.'
      )
    if event.count > 0:
      flatten(event.event, relation, count * int(event.count), totals)
    return totals
  if isinstance(event, dp_accounting.ComposedDpEvent):
    for part in event.events:
      flatten(part, relation, count, totals)
    return totals
  mechanism = _leaf(event, relation)
  if mechanism is not None:
    totals[mechanism] = totals.get(mechanism, 0) + count
  return totals


def _leaf(
  event: dp_accounting.DpEvent, relation: Relation
) -> Optional[Mechanism]:
  """One leaf as a mechanism; None if it costs nothing."""
  if relation not in RELATIONS:
    raise RefusedEventError(
      event,
      f'the neighbouring relation {relation.name} is not supported; '
      'use ADD_OR_REMOVE_ONE or REPLACE_ONE.',
    )
  moves = 2.0 if relation is Relation.REPLACE_ONE else 1.0
  if isinstance(event, dp_accounting.NonPrivateDpEvent):
    return Mechanism('non_private', math.inf)
  if isinstance(
    event, (dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent)
  ):
    noise = _checked(event, 'noise_multiplier', 0.0, math.inf)
    if noise == 0:
      return Mechanism('non_private', math.inf)
    gaussian = isinstance(event, dp_accounting.GaussianDpEvent)
    return Mechanism('gaussian' if gaussian else 'laplace', noise / moves)
  if isinstance(event, events_lib.EpsilonDeltaDpEvent):
    epsilon = _checked(event, 'epsilon', 0.0, math.inf)
    delta = _checked(event, 'delta', 0.0, 1.0)
    if epsilon == 0 and delta == 0:
      return None
    return Mechanism('epsilon_delta', epsilon, extra=delta)
  if isinstance(event, events_lib.ZCDpEvent):
    rho = _checked(event, 'rho', 0.0, math.inf)
    xi = _checked(event, 'xi', 0.0, math.inf)
    return None if rho == 0 and xi == 0 else Mechanism('zcdp', rho, extra=xi)
  if isinstance(event, dp_accounting.PoissonSampledDpEvent):
    return _poisson_sampled(event, relation)
  raise RefusedEventError(event, 'no accounting is known for this event.')


def _poisson_sampled(
  event: dp_accounting.PoissonSampledDpEvent, relation: Relation
) -> Optional[Mechanism]:
  probability = _checked(event, 'sampling_probability', 0.0, 1.0)
  inner = flatten(event.event, relation)
  if probability == 0 or not inner:
    return None
  if len(inner) == 1 and all(count == 1 for count in inner.values()):
    mechanism = next(iter(inner))
  elif all(mechanism.kind == 'gaussian' for mechanism in inner):
    # Several Gaussian releases on one sample are one with their joint noise.
    mechanism = Mechanism('gaussian', joint_noise(inner))
  else:
    raise RefusedEventError(
      event,
      'several mechanisms on one Poisson sample are only supported where all '
      'of them are Gaussian.',
    )
  if mechanism.kind == 'non_private' or probability == 1:
    return mechanism
  if relation is not Relation.ADD_OR_REMOVE_ONE:
    raise RefusedEventError(
      event,
      'Poisson sampling is only supported with neighbours that add or remove '
      f'one row (ADD_OR_REMOVE_ONE), not with {relation.name}.',
    )
  if mechanism.probability != 1:
    raise RefusedEventError(event, 'a sample of a sample is not supported.')
  if mechanism.kind == 'epsilon_delta':
    # Amplification by sampling (Balle, Barthe and Gaboardi 2018, theorem 8).
    epsilon = _amplified(mechanism.parameter, probability)
    return Mechanism(
      'epsilon_delta', epsilon, extra=probability * mechanism.extra
    )
  if mechanism.kind == 'zcdp':
    raise RefusedEventError(
      event, 'a zCDP mechanism on a Poisson sample is not supported.'
    )
  return mechanism._replace(probability=probability)


def joint_noise(gaussians: dict[Mechanism, int]) -> float:
  """Noise of the one Gaussian release that several are worth together."""
  precision = sum(
    count / mechanism.parameter**2
    for mechanism, count in sorted(gaussians.items())
  )
  return 1 / math.sqrt(precision)


def _amplified(epsilon: float, probability: float) -> float:
  if epsilon > 30:
    return epsilon + math.log(
      probability + (1 - probability) * math.exp(-epsilon)
    )
  return math.log1p(probability * math.expm1(epsilon))


def _checked(
  event: dp_accounting.DpEvent, field: str, lowest: float, highest: float
) -> float:
  value = float(getattr(event, field))
  if not (math.isfinite(value) and lowest <= value <= highest):
    bound = f'[{lowest:g}, {highest:g}]' if highest < math.inf else '[0, inf)'
    raise ValueError(
      f'{field} of {event!r} must be a finite number in {bound}.'
    )
  return value
