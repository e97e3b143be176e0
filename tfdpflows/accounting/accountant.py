"""The base class of the accountants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Optional

import dp_accounting

from tfdpflows.accounting import events, mechanisms
from tfdpflows.accounting.budget import check_delta, check_epsilon
from tfdpflows.accounting.event_bounds import check_event

# Every accountant by its name; `registry.register_accountant` adds to it.
REGISTERED: dict[str, type] = {}

# Characters of an event in a message.
_LONGEST = 200

_Details = dp_accounting.PrivacyAccountant.CompositionErrorDetails


class MechanismAccountant(dp_accounting.PrivacyAccountant):
  """A `dp_accounting.PrivacyAccountant` that counts mechanisms.

  Composing is O(size of the event) and does no numerical work; that is done,
  and kept, when an epsilon is asked for. Subclasses have the numerics:
  `_epsilon_at` and `_delta_at`.

  Attributes:
    name: the name in the registry.
    guarantee: 'upper_bound' or 'asymptotic'.
    neighboring_relations: what two neighbouring tables may be; under any other
      relation every event is refused.
    question: the method of a `Mechanism` that it needs: mechanisms without it
      are refused.

  #### Formal guarantee
  Where `guarantee` is 'upper_bound', the composition, adaptive or not, is
  (`get_epsilon(delta)`, delta)-differentially private, rounding included. With
  a `DataDependentDpEvent` this holds only for the table that its votes came
  from, see `mechanisms.votes`.
  """

  name = 'abstract'
  guarantee = 'upper_bound'
  neighboring_relations = frozenset(events.RELATIONS)
  question: str

  def __init__(
    self,
    neighboring_relation: events.Relation = events.Relation.ADD_OR_REMOVE_ONE,
  ):
    super().__init__(neighboring_relation)
    self._totals: dict[mechanisms.Mechanism, int] = {}

  def compose(
    self, event: dp_accounting.DpEvent, count: int = 1
  ) -> dp_accounting.PrivacyAccountant:
    """Adds what was done, and how often; returns this accountant.

    Raises:
      dp_accounting.UnsupportedEventError: if a part of the event is not
        supported; names it, and the accountants that take the whole.
      TypeError: if it is no event, or the count is not an integer.
      ValueError: if a parameter is outside its range, or the event is too deep
        or too large (`event_bounds`).
    """
    check_event(event, runs=count, composed=True)
    # dp_accounting takes no count of zero, and none of another type.
    count = int(count)
    while isinstance(event, dp_accounting.SelfComposedDpEvent):
      event, count = event.event, count * int(event.count)
    if not count:
      event, count = dp_accounting.NoOpDpEvent(), 1
    try:
      return super().compose(event, count)
    except dp_accounting.UnsupportedEventError as error:
      refused = self._maybe_compose(event, count, False)
      others = [
        name
        for name, cls in sorted(REGISTERED.items())
        if _takes(cls, self.neighboring_relation, event)
      ]
      hint = 'No accountant does.'
      if others:
        hint = f'Accountants that do: {", ".join(others)}.'
      # The whole may be a training and all that was charged before it.
      part = refused.invalid_event
      written = repr(part)
      if len(written) > _LONGEST:
        written = f'{written[:_LONGEST]}...'
      raise dp_accounting.UnsupportedEventError(
        f'{events.describe_event(part)} (the subevent {written}): '
        f'{refused.error_message} {hint}'
      ) from error

  def supports(self, event: dp_accounting.DpEvent) -> bool:
    """Returns whether `compose` takes an event; raises other errors as it."""
    return super().supports(check_event(event, composed=True))

  def get_epsilon(self, target_delta: float) -> float:
    """Returns the smallest epsilon known for a delta, in nats, or infinity.

    Raises:
      ValueError: if the delta is not inside (0, 1).
    """
    target_delta = check_delta(target_delta)
    return (
      math.inf if self._is_non_private() else self._epsilon_at(target_delta)
    )

  def get_delta(self, target_epsilon: float) -> float:
    """Returns the smallest delta known for an epsilon in nats, at most 1.

    Raises:
      ValueError: if the epsilon is negative or not a number.
    """
    target_epsilon = check_epsilon(target_epsilon)
    return 1.0 if self._is_non_private() else self._delta_at(target_epsilon)

  def remarks(self, target_delta: float) -> tuple[str, ...]:
    """Returns sentences that qualify `get_epsilon(target_delta)`, if any."""
    del target_delta
    return ()

  def _epsilon_at(self, delta: float) -> float:
    raise NotImplementedError

  def _delta_at(self, epsilon: float) -> float:
    raise NotImplementedError

  def _readings(self) -> Iterator[dict[mechanisms.Mechanism, int]]:
    """Yields counts that cover what was done, in one or two ways."""
    yield self._totals
    if any(isinstance(x, mechanisms.Mixture) for x in self._totals):
      yield mechanisms.without_mixtures(self._totals.items())

  def _refusal(self, mechanism: mechanisms.Mechanism) -> Optional[str]:
    """Returns why a mechanism with an answer is refused; None if it is not."""
    del mechanism
    return None

  def _reason(self, mechanism: mechanisms.Mechanism) -> Optional[str]:
    if isinstance(mechanism, mechanisms.NonPrivate):
      return None
    if not mechanism.answers(self.question):
      return f'the accountant {self.name!r} does not support this event.'
    for part in mechanism.inner():
      reason = self._reason(part)
      if reason is not None:
        return reason
    return self._refusal(mechanism)

  def _maybe_compose(
    self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional[_Details]:
    if self.neighboring_relation not in self.neighboring_relations:
      names = sorted(relation.name for relation in self.neighboring_relations)
      return _Details(
        event,
        f'the accountant {self.name!r} does not support the neighbouring '
        f'relation {self.neighboring_relation.name}; use {" or ".join(names)}.',
      )
    try:
      totals = mechanisms.decompose(event, self.neighboring_relation, count)
    except events.RefusedEventError as refusal:
      return _Details(refusal.event, str(refusal))
    for mechanism in totals:
      reason = self._reason(mechanism)
      if reason is not None:
        return _Details(self._first_with(event, mechanism), reason)
    if do_compose:
      for mechanism, number in totals.items():
        self._totals[mechanism] = self._totals.get(mechanism, 0) + number
    return None

  def _first_with(self, event, mechanism) -> dp_accounting.DpEvent:
    """Returns the innermost event that became a mechanism."""
    if isinstance(event, dp_accounting.ComposedDpEvent):
      parts = event.events
    elif isinstance(event, dp_accounting.SelfComposedDpEvent):
      parts = [event.event]
    else:
      return event
    for part in parts:
      if mechanism in mechanisms.decompose(part, self.neighboring_relation):
        return self._first_with(part, mechanism)
    return event

  def _is_non_private(self) -> bool:
    return mechanisms.NonPrivate() in self._totals


def _takes(cls, relation, event) -> bool:
  try:
    return cls(neighboring_relation=relation).supports(event)
  except ValueError:
    return False
