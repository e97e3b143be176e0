"""Any event as a multiset of the few mechanisms that accountants know.

Composition is commutative for every accountant here, so that an event tree is
worth the same as its leaves and how often each occurs. Equal ones are counted,
not listed: a million steps are one entry.

#### Formal guarantee
Whatever is private for the mechanisms is so for the event. What is not plain
bookkeeping is derived where the function for the event is: samples in
`sampling` and `capped`, streams in `matrix`, shards in `parallel`, votes in
`votes`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Optional

import dp_accounting

from tfdpflows.accounting.mechanisms.base import (
  RELATIONS,
  Mechanism,
  NonPrivate,
  RefusedEventError,
  Relation,
)

__all__ = ['decompose', 'mechanisms_of']


def decompose(
  event: dp_accounting.DpEvent,
  relation: Relation = Relation.ADD_OR_REMOVE_ONE,
  count: int = 1,
  totals: Optional[dict[Mechanism, int]] = None,
) -> dict[Mechanism, int]:
  """Counts the mechanisms of an event.

  Args:
    event: A `DpEvent`.
    relation: What two neighbouring tables are. The fields of a `DpEvent` are
      relative to the largest norm C of one row's contribution. Adding or
      removing a row moves a sum by C, and so does the null row of
      `REPLACE_SPECIAL` in its place; replacing one moves it by up to 2C, so
      that under `REPLACE_ONE` the noise counts half.
    count: How often the event happens.
    totals: Counts to add to; a new dict if None.

  Returns:
    `totals`.

  Raises:
    RefusedEventError: If a part of `event` is not supported.
    ValueError: If a parameter is outside its range.

  ```python
  >>> decompose(dp_accounting.GaussianDpEvent(4.0), Relation.REPLACE_ONE)
  {Gaussian(noise_multiplier=2.0, sampling_probability=1.0, row=0): 1}

  ```
  """
  totals = {} if totals is None else totals
  if relation not in RELATIONS:
    raise RefusedEventError(
      event,
      f'the neighbouring relation {relation.name} is not supported; '
      f'use {" or ".join(known.name for known in RELATIONS)}.',
    )
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    if event.count != int(event.count) or event.count < 0:
      raise ValueError(
        f'The count of {event!r} must be a whole number, zero or more.'
      )
    if event.count > 0:
      decompose(event.event, relation, count * int(event.count), totals)
    return totals
  if isinstance(event, dp_accounting.ComposedDpEvent):
    for part in event.events:
      decompose(part, relation, count, totals)
    return totals
  for mechanism, number in mechanisms_of(event, relation):
    totals[mechanism] = totals.get(mechanism, 0) + count * number
  return totals


@functools.singledispatch
def mechanisms_of(
  event: dp_accounting.DpEvent, relation: Relation
) -> Iterable[tuple[Mechanism, int]]:
  """The mechanisms of one run of an event that is no composition.

  A class of events is made known by `mechanisms_of.register`.

  Args:
    event: A `DpEvent`.
    relation: What two neighbouring tables are.

  Returns:
    Pairs of a mechanism and a count; none if it costs nothing.

  Raises:
    RefusedEventError: If the event is not known, or not under this relation.
    ValueError: If a parameter is outside its range.

  ```python
  >>> from tfdpflows.accounting.events import LNMaxDpEvent
  >>> mechanisms_of(LNMaxDpEvent(0.05), Relation.ADD_OR_REMOVE_ONE)
  [(EpsilonDelta(epsilon=0.1, delta=0.0), 1)]

  ```
  """
  raise RefusedEventError(event, 'no accounting is known for this event.')


@mechanisms_of.register(dp_accounting.NoOpDpEvent)
def _(event, relation):
  return []


@mechanisms_of.register(dp_accounting.NonPrivateDpEvent)
def _(event, relation):
  return [(NonPrivate(), 1)]
