"""Events that dp_accounting 0.4.3 lacks, and every event in words.

An event is the price tag of a mechanism: all that an accountant has to know
about it. The two classes here have the names and the fields that later
versions of dp_accounting gave to the same events.
"""

from __future__ import annotations

import attr
import dp_accounting

__all__ = ['EpsilonDeltaDpEvent', 'ZCDpEvent', 'describe_event']


@attr.s(frozen=True, slots=True, auto_attribs=True)
class EpsilonDeltaDpEvent(dp_accounting.DpEvent):
  """A mechanism of which only an (epsilon, delta) guarantee is known.

  Attributes:
    epsilon: The epsilon of the guarantee, in nats; zero or more.
    delta: The delta of the guarantee, in [0, 1).

  #### Formal guarantee
  The mechanism must be (epsilon, delta)-differentially private under the
  neighbouring relation of the accountant that the event is handed to. It is
  accounted as the worst mechanism with that guarantee: with probability delta
  it reveals everything, and else it is randomized response at epsilon (Kairouz,
  Oh and Viswanath 2015).

  ```python
  >>> EpsilonDeltaDpEvent(epsilon=0.5, delta=0.0)
  EpsilonDeltaDpEvent(epsilon=0.5, delta=0.0)

  ```
  """

  epsilon: float
  delta: float = 0.0


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ZCDpEvent(dp_accounting.DpEvent):
  """A mechanism of which only a zero-concentrated guarantee is known.

  Attributes:
    rho: The Renyi divergence of every order alpha > 1 is at most
      `xi + rho * alpha`; zero or more.
    xi: The offset of that bound; zero or more.

  #### Formal guarantee
  The bound must hold in both directions under the neighbouring relation of the
  accountant (Bun and Steinke 2016, definitions 1.1 and 8.1).

  ```python
  >>> ZCDpEvent(rho=0.125)
  ZCDpEvent(rho=0.125, xi=0.0)

  ```
  """

  rho: float
  xi: float = 0.0


def describe_event(event: dp_accounting.DpEvent) -> str:
  """Says an event in words, for statements and error messages.

  Args:
    event: Any `DpEvent`.

  Returns:
    One line of text. An event that is not known here is said by its `repr`.

  ```python
  >>> print(describe_event(dp_accounting.SelfComposedDpEvent(
  ...     dp_accounting.PoissonSampledDpEvent(
  ...         0.01, dp_accounting.GaussianDpEvent(1.5)), 300)))
  300 x (Gaussian mechanism, noise multiplier 1.5, on a Poisson sample with
  probability 0.01)

  ```
  """
  if isinstance(event, dp_accounting.NoOpDpEvent):
    return 'nothing'
  if isinstance(event, dp_accounting.NonPrivateDpEvent):
    return 'a release without privacy'
  if isinstance(event, dp_accounting.GaussianDpEvent):
    return f'Gaussian mechanism, noise multiplier {event.noise_multiplier:.6g}'
  if isinstance(event, dp_accounting.LaplaceDpEvent):
    return f'Laplace mechanism, noise multiplier {event.noise_multiplier:.6g}'
  if isinstance(event, EpsilonDeltaDpEvent):
    if event.delta == 0:
      return f'{event.epsilon:.6g}-differentially private mechanism'
    return (
      f'({event.epsilon:.6g}, {event.delta:.6g})-differentially private '
      'mechanism'
    )
  if isinstance(event, ZCDpEvent):
    offset = f' with offset {event.xi:.6g}' if event.xi else ''
    return f'{event.rho:.6g}-zCDP mechanism{offset}'
  if isinstance(event, dp_accounting.PoissonSampledDpEvent):
    return (
      f'{describe_event(event.event)}, on a Poisson sample with probability '
      f'{event.sampling_probability:.6g}'
    )
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    return f'{event.count} x ({describe_event(event.event)})'
  if isinstance(event, dp_accounting.ComposedDpEvent):
    parts = [describe_event(part) for part in event.events]
    return ' + '.join(f'({part})' for part in parts) or 'nothing'
  return repr(event)
