"""What every accountant of this package has in common."""

from __future__ import annotations

from typing import Optional

import dp_accounting

from tfdpflows.accounting import flatten as flatten_lib

__all__ = ['MechanismAccountant']

_Details = dp_accounting.PrivacyAccountant.CompositionErrorDetails


class MechanismAccountant(dp_accounting.PrivacyAccountant):
  """A `dp_accounting.PrivacyAccountant` that counts mechanisms.

  Composing is O(size of the event) and does no numerical work; that is done,
  and remembered, when an epsilon is asked for. Subclasses price the counts.

  Attributes:
    name: The name in the registry.
    guarantee: 'upper_bound' or 'asymptotic'.
    kinds: The kinds of `Mechanism` it can price.
  """

  name = 'abstract'
  guarantee = 'upper_bound'
  kinds = frozenset()

  def __init__(
    self,
    neighboring_relation: dp_accounting.NeighboringRelation = (
      dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    ),
  ):
    super().__init__(neighboring_relation)
    self._totals: dict[flatten_lib.Mechanism, int] = {}

  def _maybe_compose(
    self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional[_Details]:
    try:
      totals = flatten_lib.flatten(event, self.neighboring_relation, count)
    except flatten_lib.RefusedEventError as refusal:
      return _Details(refusal.event, str(refusal))
    for mechanism in totals:
      if mechanism.kind != 'non_private' and mechanism.kind not in self.kinds:
        return _Details(
          self._first_of_kind(event, mechanism),
          f'the accountant {self.name!r} does not support this event.',
        )
    if do_compose:
      for mechanism, number in totals.items():
        self._totals[mechanism] = self._totals.get(mechanism, 0) + number
    return None

  def _first_of_kind(self, event, mechanism) -> dp_accounting.DpEvent:
    """The innermost event that became a mechanism."""
    if isinstance(event, dp_accounting.ComposedDpEvent):
      parts = event.events
    elif isinstance(event, dp_accounting.SelfComposedDpEvent):
      parts = [event.event]
    else:
      return event
    for part in parts:
      if mechanism in flatten_lib.flatten(part, self.neighboring_relation):
        return self._first_of_kind(part, mechanism)
    return event

  def _is_non_private(self) -> bool:
    return any(mechanism.kind == 'non_private' for mechanism in self._totals)
