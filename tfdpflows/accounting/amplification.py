"""What the mechanisms cost where sampling hides nothing."""

from __future__ import annotations

import math

import attr
import dp_accounting

from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting.event_bounds import check_event
from tfdpflows.accounting.mechanisms import cyclic_blocks, overflow

__all__ = ['without_amplification']


def without_amplification(
  event: dp_accounting.DpEvent,
) -> dp_accounting.DpEvent:
  """An event with every sampled mechanism as if it took every row.

  Args:
    event: Any `DpEvent`.

  Returns:
    An event without sampling.

  #### Formal guarantee
  Whatever is private for the result is so for `event` even towards somebody who
  knows which rows were drawn. Given these, and whether the row that differs was
  drawn, a step is the mechanism itself or tells nothing of that row. Under
  ADD_OR_REMOVE_ONE, a sample of fixed size without the row has another one in
  its place, for which a sample of all of one row stands here. Where a Poisson
  sample was cut to size, the outputs differ by more only if the cap was
  reached, which has the probability that is added.

  ```python
  >>> without_amplification(dp_accounting.PoissonSampledDpEvent(
  ...     0.01, dp_accounting.GaussianDpEvent(2.0)))
  GaussianDpEvent(noise_multiplier=2.0)

  ```
  """
  check_event(event, composed=True)
  if isinstance(event, dp_accounting.PoissonSampledDpEvent):
    return without_amplification(event.event)
  if isinstance(event, events_lib.CyclicPoissonSampledDpEvent):
    noise, count = cyclic_blocks(event)
    if noise == math.inf:
      return dp_accounting.NoOpDpEvent()
    step = dp_accounting.GaussianDpEvent(noise)
    return dp_accounting.SelfComposedDpEvent(step, count)
  if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
    inner = without_amplification(event.event)
    return dp_accounting.SampledWithoutReplacementDpEvent(1, 1, inner)
  if isinstance(event, events_lib.TruncatedSubsampledGaussianDpEvent):
    failure = overflow(event)
    step = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    if not failure:
      return step
    reveals = events_lib.EpsilonDeltaDpEvent(0.0, failure)
    return dp_accounting.ComposedDpEvent([step, reveals])
  if isinstance(
    event, (dp_accounting.ComposedDpEvent, events_lib.ParallelDpEvent)
  ):
    parts = [without_amplification(part) for part in event.events]
    return attr.evolve(event, events=parts)
  if isinstance(getattr(event, 'event', None), dp_accounting.DpEvent):
    return attr.evolve(event, event=without_amplification(event.event))
  return event
