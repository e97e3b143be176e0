"""Releases without a proof of privacy: listed, and composed by no accountant.

No profile, curve or bound of such a release is known, so that there is nothing
to compose. A ledger and its statements list it; the only number that they hold
of it is a parameter of the method, and no guarantee.
"""

from __future__ import annotations

from typing import Optional

import attr
import dp_accounting

from tfdpflows.accounting import events


@events.event_class
class NoProofDpEvent(dp_accounting.DpEvent):
  """A release of which no privacy is proven.

  Attributes:
    name: the method.
    nominal_epsilon: the epsilon that its author aims at, zero or more: a
      parameter of the method, of which nothing is proven.

  #### Formal guarantee
  None. Every accountant refuses it. `PrivacyLedger.epsilon` of a ledger that
  has charged it is infinite, and a `PrivacyStatement` lists it apart from the
  epsilon of the proven releases.

  #### Example

  >>> from tfdpflows.accounting import PrivacyLedger
  >>> ledger = PrivacyLedger()
  >>> ledger.charge(NoProofDpEvent('ExpM+NF', nominal_epsilon=1.0))
  True
  >>> ledger.epsilon(1e-5)
  inf
  """

  name: str
  nominal_epsilon: float

  def __attrs_post_init__(self):
    # No accountant checks them later.
    if not isinstance(self.name, str) or not self.name:
      raise ValueError(f'name is {self.name!r}; it must be a string.')
    events.event_number(self, 'nominal_epsilon')


@events.register(
  NoProofDpEvent,
  'NO PRIVACY PROOF: {0.name}, nominal epsilon {0.nominal_epsilon:.6g}, not '
  'covered by any epsilon',
)
def _(event, relation):
  raise events.RefusedEventError(
    event,
    'it has no privacy proof, so that it cannot be part of an epsilon. '
    'PrivacyLedger.charge lists it beside the proven releases.',
  )


def split(
  event: dp_accounting.DpEvent, count: int = 1
) -> tuple[dp_accounting.DpEvent, list[tuple[NoProofDpEvent, int]]]:
  """Separates proven releases from those without a proof.

  Returns:
    The event without the `NoProofDpEvent`s of its compositions, the same object
    if it has none; and these, each with how often it happens. One inside of
    another event, such as a sampled one, is left where accountants refuse it.

  >>> gaussian = dp_accounting.GaussianDpEvent(2.0)
  >>> found = dp_accounting.ComposedDpEvent(
  ...     [gaussian, NoProofDpEvent('ExpM+NF', 1.0)])
  >>> split(found)
  (ComposedDpEvent(events=[GaussianDpEvent(noise_multiplier=2.0)]),
   [(NoProofDpEvent(name='ExpM+NF', nominal_epsilon=1.0), 1)])
  """
  proven, unproven = _split(event, count)
  return dp_accounting.NoOpDpEvent() if proven is None else proven, unproven


def _split(
  event: dp_accounting.DpEvent, count: int
) -> tuple[Optional[dp_accounting.DpEvent], list[tuple[NoProofDpEvent, int]]]:
  """As `split`, with None where nothing is left."""
  if isinstance(event, NoProofDpEvent):
    return None, [(event, count)] if count else []
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    inner, unproven = _split(event.event, count * int(event.count))
    if inner is event.event:
      return event, unproven
    return None if inner is None else attr.evolve(event, event=inner), unproven
  if not isinstance(event, dp_accounting.ComposedDpEvent):
    return event, []
  parts, unproven = [], []
  for part in event.events:
    proven, rest = _split(part, count)
    parts += [] if proven is None else [proven]
    unproven += rest
  same = len(parts) == len(event.events) and all(
    one is other for one, other in zip(parts, event.events)
  )
  return event if same else attr.evolve(event, events=parts), unproven
