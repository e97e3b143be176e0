"""What events stand for: mechanisms, a line of text, a kind in files.

`register` defines these for a class of events, once, beside its proof in
`mechanisms`. All accountants here compose commutatively, so that an event
counts as its innermost events and how often each occurs: a million equal steps
are one entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

import attr
import dp_accounting

from tfdpflows.accounting.event_bounds import check_event

if TYPE_CHECKING:
  from tfdpflows.accounting.mechanisms.base import Mechanism

_Event = dp_accounting.DpEvent
Relation = dp_accounting.NeighboringRelation
RELATIONS = (
  Relation.ADD_OR_REMOVE_ONE,
  Relation.REPLACE_ONE,
  Relation.REPLACE_SPECIAL,
)

# Makes a class of events: `dp_accounting`'s own are made like this.
event_class = attr.s(frozen=True, slots=True, auto_attribs=True)

# The classes that a file may name.
KINDS: dict[str, type] = {}


class RefusedEventError(ValueError):
  """An event, or a part of it, that cannot be accounted."""

  def __init__(self, event: _Event, reason: str):
    self.event = event
    super().__init__(reason)


class _Rule(NamedTuple):
  describe: Union[str, Callable[[_Event], str]]
  mechanisms: Callable[[_Event, Relation], Iterable[tuple[Mechanism, int]]]
  independent: Callable[[_Event], _Event]


_RULES: dict[type, _Rule] = {}


def register(
  cls: type,
  describe: Union[str, Callable[[_Event], str]],
  *,
  kind: Optional[str] = None,
  independent: Callable[[_Event], _Event] = lambda event: event,
) -> Callable:
  """Returns a decorator of the function that gives the mechanisms of an event.

  Args:
    cls: the class of the event.
    describe: the event as a line of text: a function of the event, or a format
      string for the event, `{0.epsilon:.6g}`, and for its `{inner}` event.
    kind: its name in files; None for the name of the class without 'DpEvent'.
    independent: see `data_independent`.
  """

  def decorate(function: Callable) -> Callable:
    KINDS[kind or cls.__name__[: -len('DpEvent')]] = cls
    _RULES[cls] = _Rule(describe, function, independent)
    return function

  return decorate


def _rule(event: _Event) -> Optional[_Rule]:
  return next((_RULES[x] for x in type(event).__mro__ if x in _RULES), None)


def decompose(
  event: _Event,
  relation: Relation = Relation.ADD_OR_REMOVE_ONE,
  count: int = 1,
  totals: Optional[dict[Mechanism, int]] = None,
) -> dict[Mechanism, int]:
  """Counts the mechanisms of an event.

  Args:
    event: a `DpEvent`.
    relation: what two neighbouring tables are. The fields of a `DpEvent` are
      relative to the largest norm C of one row's contribution. Adding or
      removing a row moves a sum by C, and so does the null row of
      `REPLACE_SPECIAL` in its place; replacing one moves it by up to 2C, so
      that under `REPLACE_ONE` the noise counts half.
    count: how often the event happens.
    totals: counts to add to; a new dict if None.

  Returns:
    `totals`. Whatever is private for these mechanisms is so for the event.

  Raises:
    RefusedEventError: if a part of `event` is not supported.
    ValueError: if a parameter is outside its range.

  >>> decompose(dp_accounting.GaussianDpEvent(4.0), Relation.REPLACE_ONE)
  {Gaussian(noise_multiplier=2.0, sampling_probability=1.0, row=0): 1}
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
        f'The count of {event!r} must be an integer, zero or more.'
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


def mechanisms_of(
  event: _Event, relation: Relation
) -> Iterable[tuple[Mechanism, int]]:
  """Returns the mechanisms of one event that is no composition, with counts.

  There are none if it costs nothing. Raises as `decompose`.
  """
  rule = _rule(event)
  if rule is None:
    raise RefusedEventError(event, 'no accounting is known for this event.')
  return rule.mechanisms(event, relation)


def describe_event(event: _Event) -> str:
  """Returns an event as a line of text, for statements and error messages.

  The `repr` stands for one that is not registered.

  >>> print(describe_event(dp_accounting.SelfComposedDpEvent(
  ...     dp_accounting.PoissonSampledDpEvent(
  ...         0.01, dp_accounting.GaussianDpEvent(1.5)), 300)))
  300 x (Gaussian mechanism, noise multiplier 1.5, on a Poisson sample with
  probability 0.01)
  """
  check_event(event, composed=True)
  rule = _rule(event)
  if rule is None:
    return repr(event)
  if callable(rule.describe):
    return rule.describe(event)
  inner = getattr(event, 'event', None)
  return rule.describe.format(event, inner=inner and describe_event(inner))


def data_independent(event: _Event) -> _Event:
  """Replaces costs computed from private votes by data-independent ones.

  The result costs at least as much and does not depend on the table.

  >>> from tfdpflows.accounting import GNMaxDpEvent
  >>> from tfdpflows.accounting import DataDependentDpEvent
  >>> data_independent(DataDependentDpEvent(GNMaxDpEvent(40.0), log_q=-20.0))
  GNMaxDpEvent(sigma=40.0)
  """
  check_event(event, composed=True)
  rule = _rule(event)
  event = event if rule is None else rule.independent(event)
  return replace_inner(event, data_independent)


def replace_inner(event: _Event, change: Callable[[_Event], _Event]) -> _Event:
  """Returns an event with `change` applied to the events that it holds."""
  parts = getattr(event, 'events', None)
  if isinstance(parts, (list, tuple)) and attr.has(type(event)):
    return attr.evolve(event, events=[change(x) for x in parts])
  if isinstance(getattr(event, 'event', None), _Event):
    return attr.evolve(event, event=change(event.event))
  return event


def event_number(
  event: _Event, field: str, lowest: float = 0.0, highest: float = math.inf
) -> float:
  """Returns a field of an event as a float.

  Raises:
    ValueError: if it is not a finite number from `lowest` to `highest`.
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


@register(dp_accounting.NoOpDpEvent, 'nothing')
def _(event, relation):
  return []


@register(dp_accounting.SelfComposedDpEvent, '{0.count} x ({inner})')
@register(
  dp_accounting.ComposedDpEvent,
  lambda event: (
    ' + '.join(f'({describe_event(part)})' for part in event.events)
    or 'nothing'
  ),
)
def _(event, relation):
  return decompose(event, relation).items()
