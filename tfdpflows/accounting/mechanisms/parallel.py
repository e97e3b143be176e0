"""Mechanisms that each read their own shard of the rows.

#### Formal guarantee
A row that is added or removed touches one shard, so that all together cost what
the one that costs most does.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import attr
import dp_accounting
import numpy as np

from tfdpflows.accounting import events
from tfdpflows.accounting.mechanisms import base
from tfdpflows.accounting.mechanisms.gaussian import joined

# Sorted.
_Shard = tuple[tuple[base.Mechanism, int], ...]


@dataclasses.dataclass(frozen=True)
class Parallel(base.Mechanism):
  """One of several compositions, whichever costs most."""

  name = 'parallel'
  words = 'sharded'

  shards: tuple[_Shard, ...]

  def inner(self) -> tuple[base.Mechanism, ...]:
    return tuple(mechanism for shard in self.shards for mechanism, _ in shard)

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    """A row that is added or removed is in one of the shards."""
    key = tuple(orders.tolist())
    return np.max([base.total_curve(x, key) for x in self.shards], axis=0)

  def zcdp(self) -> base.ZCDPGuarantee:
    shards = [base.total_zcdp(shard) for shard in self.shards]
    return base.ZCDPGuarantee(
      max(shard.rho for shard in shards),
      max(shard.xi for shard in shards),
      min(shard.log_kept for shard in shards),
    )

  def pure_epsilon(self) -> float:
    return max(base.pure_epsilon(shard) for shard in self.shards)

  def failure(self) -> float:
    return max(base.failure(shard) for shard in self.shards)

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    return np.max(
      [base.summed_epsilons(x, log_delta) for x in self.shards], axis=0
    )

  def given_delta(self) -> Fraction:
    return max(base.given_delta(shard) for shard in self.shards)

  def count_approximate(self) -> int:
    return int(any(base.count_approximate(shard) for shard in self.shards))


@events.event_class
class ParallelDpEvent(dp_accounting.DpEvent):
  """Mechanisms that each read their own shard of the rows.

  Attributes:
    events: one event for each shard.

  #### Formal guarantee
  Which shard a row belongs to must depend on nothing but the row itself, or be
  drawn at random without looking at the rows. A row that is added or removed
  then touches one shard, and all together cost what the most expensive one does
  (McSherry 2009, theorem 4). A row that is replaced may touch two, so that the
  event is for `ADD_OR_REMOVE_ONE` only.

  #### Example

  >>> ParallelDpEvent([dp_accounting.LaplaceDpEvent(1.0)] * 2).events
  (LaplaceDpEvent(noise_multiplier=1.0), LaplaceDpEvent(noise_multiplier=1.0))
  """

  events: Sequence[dp_accounting.DpEvent] = attr.ib(converter=tuple)


def _describe(event: ParallelDpEvent) -> str:
  parts = collections.Counter(events.describe_event(x) for x in event.events)
  shards = [f'{n} x ({text})' for text, n in parts.items()]
  return 'on disjoint shards of the rows: ' + ' | '.join(shards)


@events.register(ParallelDpEvent, _describe)
def _(event, relation):
  if relation is not events.Relation.ADD_OR_REMOVE_ONE:
    raise events.RefusedEventError(
      event,
      'a row that is replaced may touch two shards, as may one that the null '
      'row takes the place of: disjoint shards are only '
      f'supported with ADD_OR_REMOVE_ONE, not with {relation.name}.',
    )
  shards = {
    tuple(sorted(joined(events.decompose(part, relation)).items()))
    for part in event.events
  }
  shards = sorted(shards - {()})
  if not shards:
    return []
  for worst in shards:
    if all(_covers(worst, other) for other in shards):
      return list(worst)
  return [(Parallel(tuple(shards)), 1)]


def _covers(
  worst: Sequence[tuple[base.Mechanism, int]],
  other: Sequence[tuple[base.Mechanism, int]],
) -> bool:
  """Whether each mechanism of one plainly costs at least as much."""
  left = list(worst)
  if any(isinstance(mechanism, base.NonPrivate) for mechanism, _ in left):
    return True
  for mechanism, count in other:
    matches = [
      (worse, number)
      for worse, number in left
      if number >= count and worse.costs_no_less(mechanism)
    ]
    if not matches:
      return False
    left.remove(matches[0])
  return True
