"""Events that dp_accounting 0.4.3 lacks, and every event in words.

An event is the price tag of a mechanism: all that an accountant has to know
about it. Where a later version of dp_accounting has an event for the same
mechanism, the class here has its name and its fields.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, Optional

import attr
import dp_accounting
import numpy as np
from dp_accounting import dp_event

from tfdpflows.accounting.event_bounds import check_event

__all__ = [
  'ConfidentGNMaxDpEvent',
  'CyclicPoissonSampledDpEvent',
  'DataDependentDpEvent',
  'DiscreteLaplaceDpEvent',
  'EpsilonDeltaDpEvent',
  'ExponentialMechanismDpEvent',
  'GNMaxDpEvent',
  'LNMaxDpEvent',
  'MatrixMechanismDpEvent',
  'ParallelDpEvent',
  'PermuteAndFlipDpEvent',
  'RandomizedResponseDpEvent',
  'RepeatAndSelectDpEvent',
  'ReportNoisyMaxDpEvent',
  'SingleEpochTreeAggregationDpEvent',
  'SparseVectorDpEvent',
  'ToeplitzMechanismDpEvent',
  'TruncatedSubsampledGaussianDpEvent',
  'ZCDpEvent',
  'data_independent',
  'describe_event',
]

# dp_accounting 0.4.3 has them, and does not name them at its top. Of the tree,
# `tfdpflows.accounting.mechanisms.matrix` has what its cost rests on.
RepeatAndSelectDpEvent = dp_event.RepeatAndSelectDpEvent
SingleEpochTreeAggregationDpEvent = dp_event.SingleEpochTreeAggregationDpEvent

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
class DiscreteLaplaceDpEvent(dp_accounting.DpEvent):
  """A sum of whole numbers with discrete Laplace (two-sided geometric) noise.

  Each coordinate of the sum gets its own noise, which is z with probability
  tanh(a/2) exp(-a |z|). Drawn exactly (Canonne, Kamath and Steinke 2020), it
  has no low-order bits that could tell.

  Attributes:
    noise_parameter: a, above zero.
    sensitivity: The largest l1 norm of the whole numbers that one row
      contributes; a replaced row may move the sum by twice that.

  #### Formal guarantee
  The privacy losses are known one by one, see `mechanisms.discrete`; the
  mechanism is (a * sensitivity)-private (Ghosh, Roughgarden and Sundararajan
  2012).

  ```python
  >>> DiscreteLaplaceDpEvent(noise_parameter=0.5, sensitivity=1)
  DiscreteLaplaceDpEvent(noise_parameter=0.5, sensitivity=1)

  ```
  """

  noise_parameter: float
  sensitivity: int


@_event
class RandomizedResponseDpEvent(dp_accounting.DpEvent):
  """Every row answers for itself, with noise (Warner 1965).

  The answer of a row is one of k buckets: with probability 1 - p the bucket of
  the row, else any of the k, each with the same probability.

  Attributes:
    noise_parameter: p, in [0, 1]; at zero nothing is private.
    num_buckets: k, 1 or more.

  #### Formal guarantee
  All answers may be published: only that of one row changes, and it is
  independent of the others. Its laws are known, for a row that is replaced by
  another (`REPLACE_ONE`), and by the null row (`REPLACE_SPECIAL`), which has to
  answer any bucket with the same probability. With `ADD_OR_REMOVE_ONE` the
  number of answers would tell, and the event is refused; so it is on a sample.

  ```python
  >>> RandomizedResponseDpEvent(noise_parameter=0.5, num_buckets=2)
  RandomizedResponseDpEvent(noise_parameter=0.5, num_buckets=2)

  ```
  """

  noise_parameter: float
  num_buckets: int


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
  `tfdpflows.accounting.mechanisms.capped` has the proof.

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
      remove a row or put the null row in its place.

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
      neighbours add or remove a row or put the null row in its place.
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
class PermuteAndFlipDpEvent(dp_accounting.DpEvent):
  """A choice by permute-and-flip (McKenna and Sheldon 2020).

  Attributes:
    epsilon: Candidates are looked at in random order, and the candidate r is
      taken with probability exp(epsilon * (u(r) - largest u) / (2 * sensitivity
      of u)); without the 2 where one more row can only raise every u, or only
      lower every u, and neighbours add or remove a row or put the null row in
      its place.

  #### Formal guarantee
  Under the neighbouring relation that the sensitivity was taken for, epsilon-
  private (theorem 1 there); the same law as report noisy max with exponential
  noise (Ding et al. 2021). It is not epsilon-bounded-range: where one of two
  candidates gains 2 on the other from a tie, at sensitivity 1, the log ratios
  of their probabilities are log(2 - exp(-epsilon)) and -epsilon, further apart
  than epsilon. So it is not composed like the exponential mechanism.

  ```python
  >>> PermuteAndFlipDpEvent(epsilon=0.1)
  PermuteAndFlipDpEvent(epsilon=0.1)

  ```
  """

  epsilon: float


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
      a row or put the null row in its place.
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


def _rows(strategy: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
  return tuple(tuple(map(float, row)) for row in strategy)


def _numbers(coefficients: Sequence[float]) -> tuple[float, ...]:
  return tuple(map(float, coefficients))


@_event
class MatrixMechanismDpEvent(dp_accounting.DpEvent):
  """A stream of sums with correlated Gaussian noise: C x + z, or B (C x + z).

  Row t of x is the sum of step t, to which each row of the table contributes a
  vector of l2 norm C at most; z has independent coordinates.

  Attributes:
    noise_multiplier: Standard deviation of z over C.
    strategy: The lower triangular matrix C, row by row, each with as many
      numbers as there are steps or up to the diagonal only. B does not matter.
    min_separation: The steps that one row takes part in are at least this far
      apart.
    max_participations: How many they are at most; None for as many as fit.

  #### Formal guarantee
  A Gaussian mechanism with the sensitivity of
  `tfdpflows.accounting.mechanisms.matrix`, also where sums depend on earlier
  outputs (Denisov et al. 2022, theorem 2.1). Which steps a row takes part in
  must not depend on other rows: so the event is for `REPLACE_SPECIAL` and, with
  the same steps for both rows, `REPLACE_ONE`; a row that is removed from a
  stream may move all later ones. Nothing is amplified by sampling.

  ```python
  >>> MatrixMechanismDpEvent(4.0, [[1], [0.5, 1]]).strategy
  ((1.0,), (0.5, 1.0))

  ```
  """

  noise_multiplier: float
  strategy: Sequence[Sequence[float]] = attr.ib(converter=_rows)
  min_separation: int = 1
  max_participations: Optional[int] = 1


@_event
class ToeplitzMechanismDpEvent(dp_accounting.DpEvent):
  """`MatrixMechanismDpEvent` with the same coefficients in every column.

  Attributes:
    noise_multiplier: As there.
    coefficients: Of the first column of C, from the diagonal down; what is
      missing is zero.
    steps: Number of rows and columns of C.
    min_separation: As there.
    max_participations: As there.

  #### Formal guarantee
  As there; with coefficients that are not negative and do not grow, or no more
  of them than `min_separation`, the sensitivity is exact.

  ```python
  >>> ToeplitzMechanismDpEvent(4.0, [1, 0.5], steps=100).coefficients
  (1.0, 0.5)

  ```
  """

  noise_multiplier: float
  coefficients: Sequence[float] = attr.ib(converter=_numbers)
  steps: int
  min_separation: int = 1
  max_participations: Optional[int] = 1


@_event
class CyclicPoissonSampledDpEvent(dp_accounting.DpEvent):
  """A banded matrix mechanism on Poisson samples of parts that take turns.

  Step t draws each row of part t mod `parts` of the table, independently, with
  probability `sampling_probability`, and no row of the others (Choquette-Choo
  et al. 2023, '(Amplified) banded matrix factorization', algorithm 2).

  Attributes:
    sampling_probability: That of each row in the steps of its part.
    parts: Number of parts, at least the number of bands of the strategy.
    event: A `MatrixMechanismDpEvent` or `ToeplitzMechanismDpEvent`; its
      participations, which the parts determine, are not used.

  #### Formal guarantee
  Which part a row belongs to must depend on chance or, with
  `ADD_OR_REMOVE_ONE`, on nothing but the row itself; with the other relations,
  whatever is in its place must belong to the same part. With n steps it is
  ceil(n / parts) times a Gaussian mechanism on a Poisson sample, with the noise
  over the largest norm of a column (theorem 4 there).

  Proof. Let the coins of all other rows be known. A row may be drawn in steps
  `parts` apart, and a draw moves the outputs of less than that many steps, from
  its own one on. So these steps make a block, and blocks do not overlap. Given
  all before the block, a row that is drawn adds one vector g, of norm C at
  most, times the column of the step to the means of the block's outputs; all
  else in these is a function of earlier outputs. So the ratio of densities is
  that of two Gaussians at the distance |g| times the norm of the column, mixed
  with the probability of the draw; and blocks compose.

  ```python
  >>> CyclicPoissonSampledDpEvent(
  ...     0.1, 2, ToeplitzMechanismDpEvent(4.0, [1, 0.5], steps=100)).parts
  2

  ```
  """

  sampling_probability: float
  parts: int
  event: dp_accounting.DpEvent


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
  check_event(event, composed=True)
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


def _steps_in_words(step_counts: Any) -> str:
  counts = np.ravel(step_counts).tolist()
  parts = collections.Counter(counts).items()
  return ', '.join(
    f'{steps}' if number == 1 else f'{number} x {steps}'
    for steps, number in parts
  )


def _participation_in_words(event: dp_accounting.DpEvent) -> str:
  if event.max_participations == 1:
    return 'every row in one step'
  most = event.max_participations
  limit = '' if most is None else f'at most {most} '
  return f'every row in {limit}steps at least {event.min_separation} apart'


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
  check_event(event, composed=True)
  if isinstance(event, dp_accounting.NoOpDpEvent):
    return 'nothing'
  if isinstance(event, dp_accounting.NonPrivateDpEvent):
    return 'a release without privacy'
  if isinstance(event, dp_accounting.GaussianDpEvent):
    return f'Gaussian mechanism, noise multiplier {event.noise_multiplier:.6g}'
  if isinstance(event, dp_accounting.LaplaceDpEvent):
    return f'Laplace mechanism, noise multiplier {event.noise_multiplier:.6g}'
  if isinstance(event, DiscreteLaplaceDpEvent):
    return (
      f'discrete Laplace mechanism, noise parameter {event.noise_parameter:.6g}'
      f', sensitivity {event.sensitivity}'
    )
  if isinstance(event, RandomizedResponseDpEvent):
    return (
      f'randomized response of every row over {event.num_buckets} buckets, '
      f'noise parameter {event.noise_parameter:.6g}'
    )
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
  if isinstance(event, PermuteAndFlipDpEvent):
    return f'permute-and-flip, epsilon {event.epsilon:.6g}'
  if isinstance(event, SingleEpochTreeAggregationDpEvent):
    return (
      'tree aggregation, every row in one leaf, noise multiplier '
      f'{event.noise_multiplier:.6g} at each node, steps of each tree: '
      f'{_steps_in_words(event.step_counts)}'
    )
  if isinstance(event, (MatrixMechanismDpEvent, ToeplitzMechanismDpEvent)):
    toeplitz = isinstance(event, ToeplitzMechanismDpEvent)
    steps = event.steps if toeplitz else len(event.strategy)
    bands = (
      f'Toeplitz with {len(event.coefficients)} bands, ' if toeplitz else ''
    )
    return (
      f'matrix mechanism, {bands}{steps} steps, noise multiplier '
      f'{event.noise_multiplier:.6g} before the sensitivity of the strategy, '
      f'{_participation_in_words(event)}'
    )
  if isinstance(event, CyclicPoissonSampledDpEvent):
    return (
      f'{describe_event(event.event)}; for each step a Poisson sample with '
      f'probability {event.sampling_probability:.6g} of one of {event.parts} '
      'parts in turn'
    )
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
