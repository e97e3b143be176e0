"""Events on random samples, with and without amplification.

#### Formal guarantee
One row x is added, removed, or replaced by x'. Given all other rows of the
sample, the output without x is w0, with x it is w1, with x' w1'.

- Poisson, adding or removing: w0 against (1 - q) w0 + q w1, for which the pair
  of the mechanism itself is enough (Zhu, Dong and Wang 2022, theorem 11).
- Fixed size m of n without replacement, adding or removing: a sample without x
  holds some row y in its place, so that w0 is an average of outputs that are
  each w1 with x replaced by y. The pair is the same with q = m / n, but of a
  mechanism with neighbours that replace a row, and so half the noise.
- Poisson, with the null row in place of x, and additive noise: the null row
  adds nothing to the sum, so that with it the output is w0, sampled or not. It
  is as if x were removed.
- Fixed size, with the null row in place of x, and additive noise: if all are
  taken, w1 against the output with the null row, as without a sample. Else,
  with Gaussian noise, the pair of `null_row`; with other noise as where x is
  replaced, below, by the null row or another one, or as if it were known
  whether x is drawn: the one with the smaller largest loss. That C, by which
  the sum moves then, were enough in place of 2C is not true: a sample without x
  has some row y in its place, and in the mixtures (1 - q) w(y) + q w(x) and (1
  - q) w(y) + q w(0) with y = -x, losses grow like those of w(x) against w(0),
  without a share of 1 - q to damp them.
- Replacing: (1 - q) w0 + q w1 against (1 - q) w0 + q w1'. By advanced joint
  convexity (Balle, Barthe and Gaboardi 2018, theorem 2) the divergence of order
  alpha' = 1 + q (alpha - 1) is at most q times the larger one of w1 against w0
  and of w1 against w1', of order alpha. With a fixed size both replace a row.
  With Poisson sampling the first adds one, which for additive noise costs less
  (what that gives instead of this bound is in `sampled`). So q H_alpha(P || Q)
  bounds it, P and Q of the mechanism under replacement, and that is H_alpha'((1
  - q) Q + q P || Q).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from fractions import Fraction

import dp_accounting

from tfdpflows.accounting import events
from tfdpflows.accounting.event_bounds import check_event
from tfdpflows.accounting.events import (
  RefusedEventError,
  Relation,
  decompose,
  event_number,
)
from tfdpflows.accounting.mechanisms import base, capped, matrix
from tfdpflows.accounting.mechanisms.bounded_range import BoundedRange
from tfdpflows.accounting.mechanisms.discrete import DiscreteLaplace
from tfdpflows.accounting.mechanisms.epsilon_delta import (
  EpsilonDelta,
  EpsilonDeltaDpEvent,
)
from tfdpflows.accounting.mechanisms.gaussian import Gaussian, joint_noise
from tfdpflows.accounting.mechanisms.laplace import Laplace
from tfdpflows.accounting.mechanisms.null_row import NullRowGaussian
from tfdpflows.accounting.mechanisms.sampled import ABSENT, OPPOSITE, PRESENT

# Sums with noise.
_ADDITIVE = (Gaussian, Laplace, DiscreteLaplace)


@events.register(
  dp_accounting.PoissonSampledDpEvent,
  '{inner}, on a Poisson sample with probability {0.sampling_probability:.6g}',
)
def _(event, relation):
  q = event_number(event, 'sampling_probability', 0.0, 1.0)
  return _sampled(event, relation, q, relation)


@events.register(
  dp_accounting.SampledWithoutReplacementDpEvent,
  '{inner}, on {0.sample_size} of '
  '{0.source_dataset_size} rows drawn without replacement',
)
def _(event, relation):
  n = event_number(event, 'source_dataset_size', 1)
  m = event_number(event, 'sample_size', 0, n)
  if n != int(n) or m != int(m):
    raise ValueError(f'The sizes of {event!r} must be integers.')
  # Upwards, as a larger sample costs more.
  q, exact = m / n, Fraction(int(m), int(n))
  if Fraction(q) < exact:
    q = math.nextafter(q, 1.0)
  inner = Relation.REPLACE_ONE
  if relation is Relation.REPLACE_SPECIAL and q == 1:
    inner = relation
  return _sampled(event, relation, q, inner)


def _sampled(
  event, relation: Relation, probability: float, inner_relation: Relation
) -> Iterable[tuple[base.Mechanism, int]]:
  """Returns the mechanism of a sample, see the proof above."""
  if matrix.has_stream(event.event):
    raise RefusedEventError(
      event,
      'a stream of sums on a sample is not supported: a row that is not drawn '
      'may move all later ones to other steps.',
    )
  inner = decompose(event.event, inner_relation)
  if probability == 0 or not inner:
    return []
  mechanism = _single(event, inner)
  if isinstance(mechanism, base.NonPrivate):
    return [(mechanism, 1)]
  if getattr(mechanism, 'sampling_probability', 1) != 1:
    raise RefusedEventError(event, 'a sample of a sample is not supported.')
  poisson = isinstance(event, dp_accounting.PoissonSampledDpEvent)
  # The pair of a row replaced stands for a null row in a sample of fixed size.
  row = PRESENT
  if relation is Relation.ADD_OR_REMOVE_ONE or (
    poisson and relation is Relation.REPLACE_SPECIAL
  ):
    row = ABSENT
  # The proof needs another relation than that of the accountant here, and the
  # cost under both is known for additive noise only; or it needs a null row
  # that adds nothing, as in a sum.
  taken = _ADDITIVE
  if (poisson, relation) in (
    (True, Relation.ADD_OR_REMOVE_ONE),
    (False, Relation.REPLACE_ONE),
  ):
    taken = (*taken, BoundedRange, EpsilonDelta)
  whole = probability == 1 and relation is inner_relation
  if not isinstance(mechanism, taken) and not whole:
    raise RefusedEventError(
      event,
      f'a {mechanism.words} mechanism on a sample drawn like this is not '
      f'supported under {relation.name}, only '
      f'{", ".join(cls.words for cls in taken)} ones.',
    )
  if probability == 1:
    return [(mechanism, 1)]
  if isinstance(mechanism, EpsilonDelta):
    found = mechanism.sampled(probability)
    return [] if found is None else [(found, 1)]
  if not poisson and relation is Relation.REPLACE_SPECIAL:
    null = _single(event, decompose(event.event, relation))
    if not isinstance(mechanism, Gaussian):
      known = base.amplified(mechanism.loss_bound(), probability)
      if known >= null.loss_bound():
        return [(null, 1)]
    # Votes move as much by a null row as by another one.
    elif null == Gaussian(2 * mechanism.noise_multiplier):
      return [(NullRowGaussian(null.noise_multiplier, probability), 1)]
  if relation is Relation.REPLACE_ONE and poisson:
    # Not for votes, which a row that is added moves as far as one replaced.
    adding = _single(event, decompose(event.event, Relation.ADD_OR_REMOVE_ONE))
    if isinstance(mechanism, (Gaussian, Laplace)) and (
      adding.noise_multiplier >= 2 * mechanism.noise_multiplier
    ):
      row = OPPOSITE
  found = dataclasses.replace(
    mechanism, sampling_probability=probability, row=row
  )
  return [(found, 1)]


def _single(event, inner: dict[base.Mechanism, int]) -> base.Mechanism:
  """Returns all that happens on one sample as one mechanism."""
  if base.NonPrivate() in inner:
    return base.NonPrivate()
  if len(inner) == 1 and all(count == 1 for count in inner.values()):
    return next(iter(inner))
  if all(isinstance(x, Gaussian) and not x.on_sample for x in inner):
    # Several Gaussian releases on one sample are one with their joint noise.
    return Gaussian(joint_noise(inner))
  raise RefusedEventError(
    event,
    'several mechanisms on one sample are only supported where all of them are '
    'Gaussian.',
  )


def without_amplification(
  event: dp_accounting.DpEvent,
) -> dp_accounting.DpEvent:
  """Returns an event in which every sampled mechanism takes every row.

  #### Formal guarantee
  Whatever is private for the result is so for `event` even against an attacker
  who knows which rows were drawn. Given these, and whether the row that differs
  was drawn, a step is the mechanism itself or is independent of that row. Under
  ADD_OR_REMOVE_ONE, a sample of fixed size without the row has another one in
  its place, for which a sample of all of one row stands here. Where a Poisson
  sample was cut to size, the outputs differ by more only if the cap was
  reached, which has the probability that is added.

  #### Example

  >>> without_amplification(dp_accounting.PoissonSampledDpEvent(
  ...     0.01, dp_accounting.GaussianDpEvent(2.0)))
  GaussianDpEvent(noise_multiplier=2.0)
  """
  check_event(event, composed=True)
  if isinstance(event, dp_accounting.PoissonSampledDpEvent):
    return without_amplification(event.event)
  if isinstance(event, matrix.CyclicPoissonSampledDpEvent):
    noise, count = matrix.cyclic_blocks(event)
    if noise == math.inf:
      return dp_accounting.NoOpDpEvent()
    step = dp_accounting.GaussianDpEvent(noise)
    return dp_accounting.SelfComposedDpEvent(step, count)
  if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
    inner = without_amplification(event.event)
    return dp_accounting.SampledWithoutReplacementDpEvent(1, 1, inner)
  if isinstance(event, capped.TruncatedSubsampledGaussianDpEvent):
    failure = capped.overflow(event)
    step = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    if not failure:
      return step
    reveals = EpsilonDeltaDpEvent(0.0, failure)
    return dp_accounting.ComposedDpEvent([step, reveals])
  return events.replace_inner(event, without_amplification)
