"""Events that dp_accounting 0.4.3 lacks, and every event in words.

An event is the price tag of a mechanism: all that an accountant has to know
about it. Where a later version of dp_accounting has an event for the same
mechanism, the class here has its name and its fields.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Optional

import attr
import dp_accounting
from dp_accounting import dp_event

__all__ = [
  'ConfidentGNMaxDpEvent',
  'DataDependentDpEvent',
  'EpsilonDeltaDpEvent',
  'ExponentialMechanismDpEvent',
  'GNMaxDpEvent',
  'LNMaxDpEvent',
  'ParallelDpEvent',
  'RepeatAndSelectDpEvent',
  'ReportNoisyMaxDpEvent',
  'SparseVectorDpEvent',
  'TruncatedSubsampledGaussianDpEvent',
  'ZCDpEvent',
  'data_independent',
  'describe_event',
]

# dp_accounting 0.4.3 has it, and does not name it at its top.
RepeatAndSelectDpEvent = dp_event.RepeatAndSelectDpEvent

_event = attr.s(frozen=True, slots=True, auto_attribs=True)


@_event
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


@_event
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


@_event
class TruncatedSubsampledGaussianDpEvent(dp_accounting.DpEvent):
  """A Gaussian mechanism on a Poisson sample of capped size.

  A sample of more than `truncated_batch_size` rows is cut down to that many,
  chosen without looking at them.

  Attributes:
    dataset_size: Number of rows n; public.
    sampling_probability: Probability q of each row to be drawn.
    truncated_batch_size: The cap b.
    noise_multiplier: Noise standard deviation over the clipping norm.

  #### Formal guarantee
  Where the other rows do not fill the sample, accounted as the mechanism
  without the cap, else as one that replaces a row of the sample with the
  probability that the row in question is kept (Ganesh 2025);
  `tfdpflows.accounting.flatten` has the proof.

  ```python
  >>> TruncatedSubsampledGaussianDpEvent(1000, 0.1, 150, 1.0).dataset_size
  1000

  ```
  """

  dataset_size: int
  sampling_probability: float
  truncated_batch_size: int
  noise_multiplier: float


@_event
class ExponentialMechanismDpEvent(dp_accounting.DpEvent):
  """A choice by the exponential mechanism (McSherry and Talwar 2007).

  Attributes:
    epsilon: The candidate r is chosen with probability proportional to
      exp(epsilon * u(r) / (2 * sensitivity of u)); without the 2 where one more
      row can only raise every u, or only lower every u, and neighbours add or
      remove a row.

  #### Formal guarantee
  Under the neighbouring relation that the sensitivity was taken for, the log
  ratios of the probabilities of all candidates lie within an interval of length
  epsilon: the mechanism is epsilon-bounded-range (Durfee and Rogers 2019),
  which is epsilon-private and composes like an (epsilon / 2)-private one.

  ```python
  >>> ExponentialMechanismDpEvent(epsilon=0.1)
  ExponentialMechanismDpEvent(epsilon=0.1)

  ```
  """

  epsilon: float


@_event
class ReportNoisyMaxDpEvent(dp_accounting.DpEvent):
  """The name of the largest of several noisy scores, without its value.

  Attributes:
    epsilon: The noise has scale 2 * sensitivity / epsilon; half of that where
      one more row can only raise every score, or only lower every score, and
      neighbours add or remove a row.
    noise: 'laplace', 'exponential' (the same law as permute-and-flip, McKenna
      and Sheldon 2020) or 'gumbel' (the same law as the exponential mechanism).

  #### Formal guarantee
  epsilon-private (Dwork and Roth 2014, claim 3.9; Ding et al. 2021); with
  Gumbel noise epsilon-bounded-range.

  ```python
  >>> ReportNoisyMaxDpEvent(epsilon=0.1).noise
  'laplace'

  ```
  """

  epsilon: float
  noise: str = 'laplace'


@_event
class SparseVectorDpEvent(dp_accounting.DpEvent):
  """The sparse vector technique: which queries are above a threshold.

  In the form of Lyu, Su and Li 2017, algorithm 7, with queries of sensitivity D
  and at most c positive answers, however many queries there are.

  Attributes:
    epsilon_threshold: The threshold is noised once, by Laplace noise of scale
      D / epsilon_threshold.
    epsilon_queries: Each query is noised by Laplace noise of scale
      2 c D / epsilon_queries; c D / epsilon_queries where one more row can only
      raise every query, or only lower every query, and neighbours add or remove
      a row.
    epsilon_answers: Positive queries are answered with fresh Laplace noise of
      scale c D / epsilon_answers; zero if they are not answered.

  #### Formal guarantee
  Private at the sum of the three (theorems 4 and 5 there).

  ```python
  >>> SparseVectorDpEvent(epsilon_threshold=0.1, epsilon_queries=0.2)
  SparseVectorDpEvent(epsilon_threshold=0.1, epsilon_queries=0.2, ...=0.0)

  ```
  """

  epsilon_threshold: float
  epsilon_queries: float
  epsilon_answers: float = 0.0


@_event
class LNMaxDpEvent(dp_accounting.DpEvent):
  """PATE: the label with most votes after Laplace noise.

  Attributes:
    gamma: The noise on each count has scale 1 / gamma.

  #### Formal guarantee
  2 gamma-private whatever the votes, as a row changes the vote of one teacher
  (Papernot et al. 2017, section 2), under either neighbouring relation.

  ```python
  >>> LNMaxDpEvent(gamma=0.05)
  LNMaxDpEvent(gamma=0.05)

  ```
  """

  gamma: float


@_event
class GNMaxDpEvent(dp_accounting.DpEvent):
  """PATE: the label with most votes after Gaussian noise.

  Attributes:
    sigma: Standard deviation of the noise on each count.

  #### Formal guarantee
  Whatever the votes, a Gaussian mechanism of l2 sensitivity sqrt(2) (Papernot
  et al. 2018, proposition 8), under either neighbouring relation.

  ```python
  >>> GNMaxDpEvent(sigma=40.0)
  GNMaxDpEvent(sigma=40.0)

  ```
  """

  sigma: float


@_event
class ConfidentGNMaxDpEvent(dp_accounting.DpEvent):
  """PATE: GNMax, but only where the teachers agree.

  Attributes:
    threshold: The query is answered if the largest count and Gaussian noise of
      standard deviation `sigma_threshold` reach this together.
    sigma_threshold: The noise of that check.
    sigma: The noise of the answer, as in `GNMaxDpEvent`.
    answered: Whether to charge an answer. False is for a query that was turned
      down, in an analysis after the fact. Claims charge an answer for every
      query, as the votes decide how many there are.

  #### Formal guarantee
  The check is a Gaussian mechanism of sensitivity 1, the answer is `GNMax`
  (Papernot et al. 2018, algorithm 1), under either neighbouring relation.

  ```python
  >>> ConfidentGNMaxDpEvent(300.0, sigma_threshold=200.0, sigma=40.0).answered
  True

  ```
  """

  threshold: float
  sigma_threshold: float
  sigma: float
  answered: bool = True


@_event
class DataDependentDpEvent(dp_accounting.DpEvent):
  """A PATE query at the price that its votes allow.

  Made by `tfdpflows.accounting.data_dependent_event`, from votes.

  Attributes:
    event: An `LNMaxDpEvent`, `GNMaxDpEvent` or `ConfidentGNMaxDpEvent`.
    log_q: Log of a bound on the probability that the answer is not the label
      with most votes; None where no answer is charged.
    log_pr_answered: Log of the probability that the check of Confident GNMax is
      passed; None without a check.

  #### Formal guarantee
  The price bounds how far what comes out for the table of these votes is from
  what comes out for any neighbour of it, not the other way round (Papernot et
  al. 2018, definition 5 and theorem 6). It is computed from private votes:
  neither this event nor an epsilon that rests on it may be published as it is.
  Ledgers, budgets and claims therefore use `data_independent` of it.

  ```python
  >>> DataDependentDpEvent(GNMaxDpEvent(40.0), log_q=-20.0).event
  GNMaxDpEvent(sigma=40.0)

  ```
  """

  event: dp_accounting.DpEvent
  log_q: Optional[float] = None
  log_pr_answered: Optional[float] = None


@_event
class ParallelDpEvent(dp_accounting.DpEvent):
  """Mechanisms that each read their own shard of the rows.

  Attributes:
    events: One event for each shard.

  #### Formal guarantee
  Which shard a row belongs to must depend on nothing but the row itself, or be
  drawn at random without looking at the rows. A row that is added or removed
  then touches one shard, and all together cost what the dearest costs (McSherry
  2009, theorem 4). A row that is replaced may touch two, so that the event is
  for `ADD_OR_REMOVE_ONE` only.

  ```python
  >>> ParallelDpEvent([dp_accounting.LaplaceDpEvent(1.0)] * 2).events
  (LaplaceDpEvent(noise_multiplier=1.0), LaplaceDpEvent(noise_multiplier=1.0))

  ```
  """

  events: Sequence[dp_accounting.DpEvent] = attr.ib(converter=tuple)


def data_independent(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
  """An event with every price that depends on private votes made independent.

  Args:
    event: Any `DpEvent`.

  Returns:
    An event that costs at least as much and tells nothing about the table.

  ```python
  >>> data_independent(DataDependentDpEvent(GNMaxDpEvent(40.0), log_q=-20.0))
  GNMaxDpEvent(sigma=40.0)

  ```
  """
  while isinstance(event, DataDependentDpEvent):
    event = event.event
  if isinstance(event, ConfidentGNMaxDpEvent):
    return attr.evolve(event, answered=True)
  if isinstance(event, (dp_accounting.ComposedDpEvent, ParallelDpEvent)):
    return attr.evolve(
      event, events=[data_independent(x) for x in event.events]
    )
  if isinstance(getattr(event, 'event', None), dp_accounting.DpEvent):
    return attr.evolve(event, event=data_independent(event.event))
  return event


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
  if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
    return (
      f'{describe_event(event.event)}, on {event.sample_size} of '
      f'{event.source_dataset_size} rows drawn without replacement'
    )
  if isinstance(event, TruncatedSubsampledGaussianDpEvent):
    return (
      f'Gaussian mechanism, noise multiplier {event.noise_multiplier:.6g}, on '
      f'a Poisson sample with probability {event.sampling_probability:.6g} of '
      f'{event.dataset_size} rows, cut to {event.truncated_batch_size} rows'
    )
  if isinstance(event, ExponentialMechanismDpEvent):
    return f'exponential mechanism, epsilon {event.epsilon:.6g}'
  if isinstance(event, ReportNoisyMaxDpEvent):
    return f'report noisy max, {event.noise} noise, epsilon {event.epsilon:.6g}'
  if isinstance(event, SparseVectorDpEvent):
    text = (
      f'sparse vector technique, epsilon {event.epsilon_threshold:.6g} for the '
      f'threshold and {event.epsilon_queries:.6g} for the queries'
    )
    if event.epsilon_answers:
      text += f' and {event.epsilon_answers:.6g} for the answers'
    return text
  if isinstance(event, LNMaxDpEvent):
    return f'PATE vote with Laplace noise (LNMax), gamma {event.gamma:.6g}'
  if isinstance(event, GNMaxDpEvent):
    return f'PATE vote with Gaussian noise (GNMax), sigma {event.sigma:.6g}'
  if isinstance(event, ConfidentGNMaxDpEvent):
    down = '' if event.answered else ', turned down'
    return (
      f'PATE vote with a check (Confident GNMax{down}), threshold '
      f'{event.threshold:.6g}, sigma {event.sigma_threshold:.6g} for the check '
      f'and {event.sigma:.6g} for the vote'
    )
  if isinstance(event, DataDependentDpEvent):
    return (
      f'{describe_event(event.event)}, at a price computed from private votes'
    )
  if isinstance(event, ParallelDpEvent):
    parts = collections.Counter(describe_event(x) for x in event.events)
    shards = [f'{n} x ({text})' for text, n in parts.items()]
    return 'on disjoint shards of the rows: ' + ' | '.join(shards)
  if isinstance(event, RepeatAndSelectDpEvent):
    return (
      f'the best of a random number of runs (mean {event.mean:.6g}, shape '
      f'{event.shape:.6g}) of ({describe_event(event.event)})'
    )
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    return f'{event.count} x ({describe_event(event.event)})'
  if isinstance(event, dp_accounting.ComposedDpEvent):
    parts = [describe_event(part) for part in event.events]
    return ' + '.join(f'({part})' for part in parts) or 'nothing'
  return repr(event)
