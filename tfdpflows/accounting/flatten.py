"""Any event as a multiset of the few mechanisms that accountants price.

Composition is commutative for every accountant here, so that an event tree is
worth the same as its leaves and how often each occurs. Leaves that are equal
are counted, not listed: a million steps are one entry.

#### Formal guarantee
Whatever is private for the mechanisms is so for the event. The steps that are
not plain bookkeeping:

Sampling. One row x is added, removed, or replaced by x'. Given all other rows
of the sample, the output without x is w0, with x it is w1, with x' w1'.

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
  with Gaussian noise, the pair of `tfdpflows.accounting.null_rows`; with other
  noise as where x is replaced, below, by the null row or another one, or as if
  it were known whether x is drawn: the one with the smaller largest loss.
  That C, by which the sum moves then, were enough in place of 2C is not true: a
  sample without x has some row y in its place, and in the mixtures (1 - q) w(y)
  + q w(x) and (1 - q) w(y) + q w(0) with y = -x, losses grow like those of w(x)
  against w(0), without a share of 1 - q to damp them.
- Replacing: (1 - q) w0 + q w1 against (1 - q) w0 + q w1'. By advanced joint
  convexity (Balle, Barthe and Gaboardi 2018, theorem 2) the divergence of order
  alpha' = 1 + q (alpha - 1) is at most q times the larger one of w1 against w0
  and of w1 against w1', of order alpha. With a fixed size both replace a row.
  With Poisson sampling the first adds one, which for additive noise costs less
  (what that gives instead of this bound is in `tfdpflows.accounting.pairs`).
  So q H_alpha(P || Q) bounds it, P and Q of the mechanism under replacement,
  and that is H_alpha'((1 - q) Q + q P || Q).

A cap b on a Poisson sample of noise of the Gaussian kind (as in Ganesh 2025,
"Tighter privacy analysis for truncated Poisson sampling"). Let k of the m other
rows be drawn; k says nothing of the row that differs, so that the divergence is
at most the average over k < b and over k >= b (joint convexity).

- k < b, of probability 1 - t, t = P[Binomial(m, q) >= b]: the cap does not
  apply, with the row that differs or without it. The pair is the one of the
  Poisson sample.
- k >= b: without the row that differs, b of the m others are kept, each set of
  b being as likely as any other, whatever k; let that output be w0. The row is
  kept with probability q b / (k + 1), on average over k >= b

      p = b P[Binomial(m + 1, q) >= b + 1] / ((m + 1) t) <= q,

  and then it stands in the place of one of the b, each being as likely as any
  other. So the output is (1 - p) w0 + p w1, w1 being an average over w0's sets
  and over the row that is left out, and each of these replaces a row. Adding or
  removing: the pair of sampling with p, at half the noise. Replacing: with w1
  and w1' at most two from w0 and from each other, theorem 2 of Balle, Barthe
  and Gaboardi 2018 gives what it gives for a fixed size, above. So it does with
  the null row in place of x, which takes the place of one of the b as well.

Adding or removing, m is n or n - 1, whether the table of n rows is the smaller
or the larger one. Both are covered by the smaller t for the second case with
the larger p, the larger t for what is not the first, and for their difference
the second case with q for p: that dominates both cases, as to replace the
output by a fresh one of w0, with probability 1 - p / q, makes (1 - p) w0 + p w1
of (1 - q) w0 + q w1. Where accountants do better without, a mixture counts as
its likeliest part, and a failure with the probability of the others.

Shards. A row that is added or removed touches one shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Optional

import dp_accounting

from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import leaves
from tfdpflows.accounting.mechanism import (
  ABSENT,
  OPPOSITE,
  PRESENT,
  RELATIONS,
  Mechanism,
  RefusedEventError,
  amplified,
  checked,
  joint_noise,
)

__all__ = [
  'RELATIONS',
  'Mechanism',
  'RefusedEventError',
  'flatten',
  'has_stream',
  'joint_noise',
  'merged',
]

Relation = dp_accounting.NeighboringRelation
_SPECIAL = Relation.REPLACE_SPECIAL
_Counts = dict[Mechanism, int]

# Pairs of a larger parameter that costs more, and of one that costs less.
_COSTS_MORE = frozenset({'epsilon_delta', 'bounded_range', 'zcdp'})
_COSTS_LESS = frozenset({'gaussian', 'laplace'})
# Sums with noise.
_ADDITIVE = ('gaussian', 'laplace', 'discrete_laplace')

_WORDS = {
  'bounded_range': 'bounded-range (exponential)',
  'discrete_laplace': 'discrete Laplace',
  'epsilon_delta': '(epsilon, delta)',
  'gaussian': 'Gaussian',
  'laplace': 'Laplace',
  'mixture': 'capped Gaussian',
  'parallel': 'sharded',
  'randomized_response': 'randomized-response',
  'repeat_and_select': 'repeat-and-select',
  'response_or_null': 'randomized-response',
  'zcdp': 'zCDP',
}


def flatten(
  event: dp_accounting.DpEvent,
  relation: Relation = Relation.ADD_OR_REMOVE_ONE,
  count: int = 1,
  totals: Optional[_Counts] = None,
) -> _Counts:
  """Counts the mechanisms of an event.

  Args:
    event: A `DpEvent`, as deep as it likes.
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
  >>> counts = flatten(dp_accounting.GaussianDpEvent(4.0), Relation.REPLACE_ONE)
  >>> [(mechanism.kind, mechanism.parameter) for mechanism in counts]
  [('gaussian', 2.0)]

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
      flatten(event.event, relation, count * int(event.count), totals)
    return totals
  if isinstance(event, dp_accounting.ComposedDpEvent):
    for part in event.events:
      flatten(part, relation, count, totals)
    return totals
  for mechanism, number in _mechanisms(event, relation):
    totals[mechanism] = totals.get(mechanism, 0) + count * number
  return totals


def _mechanisms(
  event: dp_accounting.DpEvent, relation: Relation
) -> Iterable[tuple[Mechanism, int]]:
  """What one run of an event that is no composition comes to."""
  if isinstance(event, dp_accounting.PoissonSampledDpEvent):
    q = checked(event, 'sampling_probability', 0.0, 1.0)
    return _sampled(event, relation, q, relation)
  if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
    q, inner = _share(event), Relation.REPLACE_ONE
    if relation is Relation.REPLACE_SPECIAL and q == 1:
      inner = relation
    return _sampled(event, relation, q, inner)
  if isinstance(event, events_lib.TruncatedSubsampledGaussianDpEvent):
    return list(_truncated(event, relation).items())
  if isinstance(event, events_lib.CyclicPoissonSampledDpEvent):
    noise, count = leaves.cyclic(event)
    q = checked(event, 'sampling_probability', 0.0, 1.0)
    if noise == math.inf:
      return []
    step = dp_accounting.PoissonSampledDpEvent(
      q, dp_accounting.GaussianDpEvent(noise)
    )
    return flatten(step, relation, count).items()
  if isinstance(event, events_lib.ParallelDpEvent):
    return _parallel(event, relation)
  if isinstance(event, events_lib.RepeatAndSelectDpEvent):
    return _repeat_and_select(event, relation)
  return [(mechanism, 1) for mechanism in leaves.leaf(event, relation)]


def _truncated(
  event: events_lib.TruncatedSubsampledGaussianDpEvent, relation: Relation
) -> _Counts:
  """A capped Poisson sample, see the proof above."""
  q = checked(event, 'sampling_probability', 0.0, 1.0)
  gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
  cap = leaves.cap(event, relation)
  plain = flatten(dp_accounting.PoissonSampledDpEvent(q, gaussian), relation)
  private = not any(kind == 'non_private' for kind in _kinds(plain.items()))
  if cap.most == 0 or not plain or not private:
    return plain
  (uncapped,) = plain
  (exchange,) = flatten(gaussian, Relation.REPLACE_ONE)

  def on_sample(probability: float) -> Mechanism:
    if probability == 1:
      return exchange
    removed = relation is Relation.ADD_OR_REMOVE_ONE
    replaced = ABSENT if removed else PRESENT
    return exchange._replace(probability=probability, replaced=replaced)

  weights: dict[Mechanism, float] = {}
  for part, weight in (
    (uncapped, 1 - cap.most if cap.most < 1 else 0.0),
    (on_sample(cap.share), cap.least),
    (on_sample(q), cap.most - cap.least),
  ):
    if weight > 0:
      # Upwards: a sum of more than one is only more.
      weight = min(math.nextafter(weight, 2.0), 1.0)
      weights[part] = min(weights.get(part, 0.0) + weight, 1.0)
  parts = sorted(weights.items(), key=lambda pair: (-pair[1], pair[0]))
  if len(parts) == 1:
    return {parts[0][0]: 1}
  return {Mechanism('mixture', 0.0, parts=tuple(parts)): 1}


def _share(event: dp_accounting.SampledWithoutReplacementDpEvent) -> float:
  n = checked(event, 'source_dataset_size', 1, math.inf)
  m = checked(event, 'sample_size', 0, n)
  if n != int(n) or m != int(m):
    raise ValueError(f'The sizes of {event!r} must be whole numbers.')
  # Upwards, as a larger sample costs more.
  share = m / n
  exact = Fraction(int(m), int(n))
  return share if Fraction(share) >= exact else math.nextafter(share, 1.0)


def _sampled(
  event, relation: Relation, probability: float, inner_relation: Relation
) -> list[tuple[Mechanism, int]]:
  """The mechanism of a sample, see the proof above."""
  if has_stream(event.event):
    raise RefusedEventError(
      event,
      'a stream of sums on a sample is not supported: a row that is not drawn '
      'may move all later ones to other steps.',
    )
  inner = flatten(event.event, inner_relation)
  if probability == 0 or not inner:
    return []
  mechanism = _single(event, inner)
  if mechanism.kind == 'non_private':
    return [(mechanism, 1)]
  if mechanism.probability != 1:
    raise RefusedEventError(event, 'a sample of a sample is not supported.')
  poisson = isinstance(event, dp_accounting.PoissonSampledDpEvent)
  # The pair of a row replaced stands for a null row in a sample of fixed size.
  replaced = PRESENT
  if relation is Relation.ADD_OR_REMOVE_ONE or (
    poisson and relation is Relation.REPLACE_SPECIAL
  ):
    replaced = ABSENT
  # The proof needs another relation than that of the accountant here, and only
  # additive noise says what it costs under both; or a null row that leaves no
  # trace, as in a sum.
  taken = _ADDITIVE
  if (poisson, relation) in (
    (True, Relation.ADD_OR_REMOVE_ONE),
    (False, Relation.REPLACE_ONE),
  ):
    taken = (*taken, 'bounded_range', 'epsilon_delta')
  whole = probability == 1 and relation is inner_relation
  if mechanism.kind not in taken and not whole:
    raise RefusedEventError(
      event,
      f'a {_WORDS.get(mechanism.kind, mechanism.kind)} mechanism on a sample '
      f'drawn like this is not supported under {relation.name}, only '
      f'{", ".join(_WORDS[kind] for kind in taken)} ones.',
    )
  if probability == 1:
    return [(mechanism, 1)]
  if mechanism.kind == 'epsilon_delta':
    epsilon = amplified(mechanism.parameter, probability)
    delta = mechanism.extra
    if delta > 0:
      delta = min(math.nextafter(probability * delta, 1.0), delta)
    if epsilon == 0 and delta == 0:
      return []
    return [(Mechanism('epsilon_delta', epsilon, extra=delta), 1)]
  if not poisson and relation is _SPECIAL:
    null = _single(event, flatten(event.event, relation))
    if mechanism.kind != 'gaussian':
      if amplified(_epsilon(mechanism), probability) >= _epsilon(null):
        return [(null, 1)]
    # Votes move as much by a null row as by another one.
    elif null == mechanism._replace(parameter=2 * mechanism.parameter):
      null = null._replace(kind='gaussian_or_null', probability=probability)
      return [(null, 1)]
  if relation is Relation.REPLACE_ONE and poisson:
    # Not for votes, which a row that is added moves as far as one replaced.
    adding = _single(event, flatten(event.event, Relation.ADD_OR_REMOVE_ONE))
    if (
      adding == mechanism._replace(parameter=adding.parameter)
      and adding.parameter >= 2 * mechanism.parameter
    ):
      replaced = OPPOSITE
  return [(mechanism._replace(probability=probability, replaced=replaced), 1)]


def _epsilon(mechanism: Mechanism) -> float:
  """The largest loss of Laplace noise, to choose by."""
  if mechanism.kind == 'laplace':
    return 1 / mechanism.parameter
  return mechanism.parameter * mechanism.extra


def has_stream(event: dp_accounting.DpEvent) -> bool:
  """Whether an event is, or holds, tree aggregation or a matrix mechanism.

  Args:
    event: Any `DpEvent`.

  Returns:
    A boolean.

  ```python
  >>> has_stream(events_lib.SingleEpochTreeAggregationDpEvent(4.0, 8))
  True

  ```
  """
  if isinstance(event, leaves.STREAMS):
    return True
  parts = getattr(event, 'events', None) or [getattr(event, 'event', None)]
  return any(
    has_stream(x) for x in parts if isinstance(x, dp_accounting.DpEvent)
  )


def _single(event, inner: _Counts) -> Mechanism:
  """Everything that happens on one sample as one mechanism."""
  if any(mechanism.kind == 'non_private' for mechanism in inner):
    return Mechanism('non_private', math.inf)
  if len(inner) == 1 and all(count == 1 for count in inner.values()):
    return next(iter(inner))
  if all(mechanism.probability == 1 for mechanism in inner):
    kinds = {mechanism.kind for mechanism in inner}
    if kinds == {'gaussian'}:
      # Several Gaussian releases on one sample are one with their joint noise.
      return Mechanism('gaussian', joint_noise(inner))
  raise RefusedEventError(
    event,
    'several mechanisms on one sample are only supported where all of them are '
    'Gaussian.',
  )


def _parallel(event, relation: Relation) -> list[tuple[Mechanism, int]]:
  if relation is not Relation.ADD_OR_REMOVE_ONE:
    raise RefusedEventError(
      event,
      'a row that is replaced may touch two shards, as may one that the null '
      'row takes the place of: disjoint shards are only '
      f'supported with ADD_OR_REMOVE_ONE, not with {relation.name}.',
    )
  alternatives = {
    tuple(sorted(merged(flatten(part, relation)).items()))
    for part in event.events
  }
  alternatives = sorted(alternatives - {()})
  if not alternatives:
    return []
  for worst in alternatives:
    if all(_covers(worst, other) for other in alternatives):
      return list(worst)
  return [(Mechanism('parallel', 0.0, parts=tuple(alternatives)), 1)]


def merged(counts: _Counts) -> _Counts:
  """The same with all Gaussians on the whole table as one.

  The composition of Gaussian releases is a Gaussian release.
  """
  plain = {
    mechanism: count
    for mechanism, count in counts.items()
    if mechanism.kind == 'gaussian' and mechanism.probability == 1
  }
  rest = {m: count for m, count in counts.items() if m not in plain}
  if plain:
    rest[Mechanism('gaussian', joint_noise(plain))] = 1
  return rest


def _covers(
  worst: Sequence[tuple[Mechanism, int]], other: Sequence[tuple[Mechanism, int]]
) -> bool:
  """Whether each mechanism of one is plainly no cheaper in the other."""
  left = list(worst)
  if any(mechanism.kind == 'non_private' for mechanism, _ in left):
    return True
  for mechanism, count in other:
    match = next(
      (pair for pair in left if _no_cheaper(*pair, mechanism, count)), None
    )
    if match is None:
      return False
    left.remove(match)
  return True


def _no_cheaper(
  worse: Mechanism, worse_count: int, mechanism: Mechanism, count: int
) -> bool:
  if worse_count < count:
    return False
  if worse == mechanism:
    return True
  if worse._replace(parameter=mechanism.parameter) != mechanism:
    return False
  if mechanism.kind in _COSTS_MORE:
    return worse.parameter >= mechanism.parameter
  return (
    mechanism.kind in _COSTS_LESS and worse.parameter <= mechanism.parameter
  )


def _repeat_and_select(
  event: events_lib.RepeatAndSelectDpEvent, relation: Relation
) -> list[tuple[Mechanism, int]]:
  mean, shape = float(event.mean), float(event.shape)
  if not (1 <= mean < math.inf and shape >= 0):
    raise ValueError(
      f'mean of {event!r} must be a finite number, 1 or more, and shape zero '
      'or more.'
    )
  one = flatten(event.event, relation)
  if not one or any(mechanism.kind == 'non_private' for mechanism in one):
    return list(one.items())
  if any(kind.startswith('data_dependent') for kind in _kinds(one.items())):
    raise RefusedEventError(
      event,
      'prices from private votes hold in one direction, and the best of '
      'several runs takes both; use `data_independent` of it.',
    )
  parts = tuple(sorted(one.items()))
  return [(Mechanism('repeat_and_select', mean, extra=shape, parts=parts), 1)]


def _kinds(counts: Iterable[tuple[Mechanism, int]]) -> set[str]:
  """The kinds of mechanisms, and of those that are parts of them."""
  found = set()
  for mechanism, _ in counts:
    found.add(mechanism.kind)
    if mechanism.kind == 'parallel':
      found.update(*map(_kinds, mechanism.parts))
    elif mechanism.kind in ('repeat_and_select', 'mixture'):
      found |= _kinds(mechanism.parts)
  return found
