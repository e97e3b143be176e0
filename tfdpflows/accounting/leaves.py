"""Events that hold no other event, as mechanisms."""

from __future__ import annotations

import math
from typing import NamedTuple

import dp_accounting
import numpy as np
from scipy import special

from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting import strategies
from tfdpflows.accounting.mechanism import Mechanism, RefusedEventError, checked

__all__ = ['STREAMS', 'Cap', 'cap', 'cyclic', 'leaf', 'overflow']

_NON_PRIVATE = Mechanism('non_private', math.inf)
_NOISES = ('laplace', 'exponential', 'gumbel')
# Events of which the order of the rows matters.
STREAMS = (
  events_lib.SingleEpochTreeAggregationDpEvent,
  events_lib.MatrixMechanismDpEvent,
  events_lib.ToeplitzMechanismDpEvent,
)
# Whole numbers up to this are floats.
_LARGEST_WHOLE = 2**53


def leaf(
  event: dp_accounting.DpEvent, relation: dp_accounting.NeighboringRelation
) -> list[Mechanism]:
  """The mechanisms of a leaf; none if it costs nothing.

  Args:
    event: A `DpEvent` without events in it.
    relation: What two neighbouring tables are. The events of PATE cost the same
      under all: a row belongs to one teacher. The null row of REPLACE_SPECIAL
      adds nothing to a sum, which moves by C as where a row is removed.

  Returns:
    A list of mechanisms.

  Raises:
    RefusedEventError: If the event is not known.
    ValueError: If a parameter is outside its range.

  ```python
  >>> relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  >>> [m.kind for m in leaf(events_lib.LNMaxDpEvent(0.05), relation)]
  ['epsilon_delta']

  ```
  """
  if isinstance(event, dp_accounting.NoOpDpEvent):
    return []
  if isinstance(event, dp_accounting.NonPrivateDpEvent):
    return [_NON_PRIVATE]
  if isinstance(
    event, (dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent)
  ):
    gaussian = isinstance(event, dp_accounting.GaussianDpEvent)
    noise = checked(event, 'noise_multiplier', 0.0, math.inf)
    if relation is dp_accounting.NeighboringRelation.REPLACE_ONE:
      noise = noise / 2
    return [_noisy('gaussian' if gaussian else 'laplace', noise)]
  if isinstance(event, events_lib.DiscreteLaplaceDpEvent):
    return _discrete_laplace(event, relation)
  if isinstance(event, events_lib.RandomizedResponseDpEvent):
    return _randomized_response(event, relation)
  if isinstance(event, STREAMS):
    return _stream(event, relation)
  if isinstance(event, events_lib.EpsilonDeltaDpEvent):
    return _epsilon_delta(
      checked(event, 'epsilon', 0.0, math.inf),
      checked(event, 'delta', 0.0, 1.0),
    )
  if isinstance(event, events_lib.ZCDpEvent):
    rho = checked(event, 'rho', 0.0, math.inf)
    xi = checked(event, 'xi', 0.0, math.inf)
    return [Mechanism('zcdp', rho, extra=xi)] if rho or xi else []
  if isinstance(event, events_lib.ExponentialMechanismDpEvent):
    return _bounded_range(checked(event, 'epsilon', 0.0, math.inf))
  if isinstance(event, events_lib.PermuteAndFlipDpEvent):
    return _epsilon_delta(checked(event, 'epsilon', 0.0, math.inf), 0.0)
  if isinstance(event, events_lib.ReportNoisyMaxDpEvent):
    epsilon = checked(event, 'epsilon', 0.0, math.inf)
    if event.noise not in _NOISES:
      raise ValueError(
        f'noise of {event!r} must be one of {", ".join(_NOISES)}; for Gaussian '
        'noise on votes there is GNMaxDpEvent.'
      )
    if event.noise == 'gumbel':
      return _bounded_range(epsilon)
    return _epsilon_delta(epsilon, 0.0)
  if isinstance(event, events_lib.SparseVectorDpEvent):
    fields = ('epsilon_threshold', 'epsilon_queries', 'epsilon_answers')
    parts = [checked(event, field, 0.0, math.inf) for field in fields]
    # The sum of three floats, upwards.
    return _epsilon_delta(math.fsum(parts) * (1 + 1e-15), 0.0)
  return _vote(event)


def overflow(event: events_lib.TruncatedSubsampledGaussianDpEvent) -> float:
  """Probability that the cap on a Poisson sample can matter.

  Args:
    event: The event of one sample.

  Returns:
    P[Binomial(n, q) >= cap], rounded upwards.

  Raises:
    ValueError: If a parameter is outside its range.

  ```python
  >>> overflow(events_lib.TruncatedSubsampledGaussianDpEvent(3, 0.5, 3, 1.0))
  0.125...

  ```
  """
  n = checked(event, 'dataset_size', 1, math.inf)
  least = checked(event, 'truncated_batch_size', 1, math.inf)
  q = checked(event, 'sampling_probability', 0.0, 1.0)
  if n != int(n) or least != int(least):
    raise ValueError(
      f'dataset_size and truncated_batch_size of {event!r} must be whole '
      'numbers.'
    )
  if least > n or q == 0:
    return 0.0
  tail = _binomial_tail(int(n), int(least), q)
  return min(tail * (1 + _tail_error(n)) + 1e-300, 1.0)


class Cap(NamedTuple):
  """What a cap on a Poisson sample does, see `tfdpflows.accounting.flatten`.

  Attributes:
    least: Probability that the other rows fill the sample, from below.
    most: The same from above.
    share: Probability with which the row that differs is then kept, from above.
  """

  least: float
  most: float
  share: float


def cap(
  event: events_lib.TruncatedSubsampledGaussianDpEvent,
  relation: dp_accounting.NeighboringRelation,
) -> Cap:
  """What the cap on a Poisson sample does.

  Args:
    event: The event of one sample.
    relation: What two neighbouring tables are.

  Returns:
    A `Cap`.

  Raises:
    ValueError: If a parameter is outside its range.

  ```python
  >>> relation = dp_accounting.NeighboringRelation.REPLACE_ONE
  >>> event = events_lib.TruncatedSubsampledGaussianDpEvent(3, 0.5, 1, 1.0)
  >>> cap(event, relation)
  Cap(least=0.7499999..., most=0.7500000..., share=0.2222222...)

  ```
  """
  most = overflow(event)  # Checks the parameters.
  n, b = int(event.dataset_size), int(event.truncated_batch_size)
  q = float(event.sampling_probability)
  others = [n - 1]
  if relation is dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE:
    others.append(n)
  least, most, share = 1.0, 0.0, 0.0
  for m in others:
    full, error = _binomial_tail(m, b, q), _tail_error(m + 1)
    least = min(least, max(full * (1 - error) - 1e-300, 0.0))
    most = max(most, min(full * (1 + error) + 1e-300, 1.0))
    if b > m or q == 0:
      continue
    kept = q
    if full > 1e-290:
      kept = b / (m + 1) * _binomial_tail(m + 1, b + 1, q) / full
    share = max(share, min(kept * (1 + 3 * error), q))
  if all(b > m for m in others) or q == 0:
    return Cap(0.0, 0.0, q)
  return Cap(least, most, share)


def _tail_error(n: float) -> float:
  """Of `_binomial_tail`, relative: beside 60 digits it was a tenth of this."""
  return min(1e-9 + 4 * n * 2.0**-53, 0.1)


def _binomial_tail(n: int, least: int, q: float) -> float:
  """P[Binomial(n, q) >= least], up to a share of `_tail_error(n)`."""
  if least <= 0:
    return 1.0
  if least > n or q == 0:
    return 0.0
  return float(special.betainc(least, n - least + 1, q))


def _discrete_laplace(
  event: events_lib.DiscreteLaplaceDpEvent,
  relation: dp_accounting.NeighboringRelation,
) -> list[Mechanism]:
  a = checked(event, 'noise_parameter', 0.0, math.inf)
  if a == 0:
    raise ValueError(
      f'noise_parameter of {event!r} must be above zero: there is no such '
      'noise. Less of it is more noise.'
    )
  shift = checked(event, 'sensitivity', 0, _LARGEST_WHOLE // 2)
  if shift != int(shift):
    raise ValueError(f'sensitivity of {event!r} must be a whole number.')
  if relation is dp_accounting.NeighboringRelation.REPLACE_ONE:
    shift *= 2
  if shift == 0:
    return []
  if not math.isfinite(a * shift):
    return [_NON_PRIVATE]
  return [Mechanism('discrete_laplace', a, extra=shift)]


def _randomized_response(
  event: events_lib.RandomizedResponseDpEvent,
  relation: dp_accounting.NeighboringRelation,
) -> list[Mechanism]:
  p = checked(event, 'noise_parameter', 0.0, 1.0)
  k = checked(event, 'num_buckets', 1, _LARGEST_WHOLE)
  if k != int(k):
    raise ValueError(f'num_buckets of {event!r} must be a whole number.')
  relations = dp_accounting.NeighboringRelation
  if relation is relations.ADD_OR_REMOVE_ONE:
    raise RefusedEventError(
      event,
      'a row that is added adds an answer: randomized response is only '
      'supported with REPLACE_ONE and REPLACE_SPECIAL, not with '
      f'{relation.name}.',
    )
  if k == 1 or p == 1:
    return []
  if p == 0:
    return [_NON_PRIVATE]
  replaced = relation is relations.REPLACE_ONE
  kind = 'randomized_response' if replaced else 'response_or_null'
  return [Mechanism(kind, p, extra=k)]


def _stream(
  event: dp_accounting.DpEvent, relation: dp_accounting.NeighboringRelation
) -> list[Mechanism]:
  """Sums over a stream with Gaussian noise, as one Gaussian release.

  Tree aggregation: a row is in one leaf of one tree, and the sum of each node
  above it, `tree_depth` with the leaf, moves by C at most; Gaussian releases
  add up by their squares, so that all nodes are one release of sensitivity C
  sqrt(depth), whatever depends on earlier ones (Kairouz et al. 2021, appendix
  D). Matrix mechanisms: `strategies`.
  """
  noise = checked(event, 'noise_multiplier', 0.0, math.inf)
  relations = dp_accounting.NeighboringRelation
  if relation is relations.ADD_OR_REMOVE_ONE:
    raise RefusedEventError(
      event,
      'a row that is removed from a stream may move all later ones to other '
      'steps: streams are only supported with REPLACE_SPECIAL and REPLACE_ONE, '
      f'not with {relation.name}.',
    )
  if isinstance(event, events_lib.SingleEpochTreeAggregationDpEvent):
    sensitivity = math.sqrt(_depth(event)) * (1 + 1e-15)
  else:
    separation = event.min_separation, event.max_participations
    try:
      if isinstance(event, events_lib.ToeplitzMechanismDpEvent):
        sensitivity = strategies.toeplitz_sensitivity(
          event.coefficients, event.steps, *separation
        )
      else:
        sensitivity = strategies.matrix_sensitivity(event.strategy, *separation)
    except ValueError as error:
      name = type(event).__name__
      raise ValueError(f'A {name} cannot be priced: {error}') from error
  if sensitivity == 0:
    return []
  if relation is relations.REPLACE_ONE:
    noise = noise / 2
  return [_noisy('gaussian', noise / sensitivity)]


def _depth(event: events_lib.SingleEpochTreeAggregationDpEvent) -> int:
  counts = event.step_counts
  if not isinstance(counts, (list, tuple)):
    counts = [counts]
  if not counts or not all(
    not isinstance(x, (str, bool)) and 0 <= x < math.inf and x == int(x)
    for x in counts
  ):
    raise ValueError(
      f'step_counts of {event!r} must be a whole number, zero or more, or a '
      'list of such numbers, at least one.'
    )
  return max(strategies.tree_depth(int(x)) for x in counts)


def cyclic(
  event: events_lib.CyclicPoissonSampledDpEvent,
) -> tuple[float, int]:
  """The noise of each block of a cyclic event, and how many there are.

  Args:
    event: The event.

  Returns:
    A pair: standard deviation over the sensitivity of a row that is drawn,
    infinite if that is zero; and the largest number of steps of a part.

  Raises:
    RefusedEventError: If the event in it is no matrix mechanism.
    ValueError: If a parameter is outside its range, or the strategy has more
      bands than there are parts.

  ```python
  >>> banded = events_lib.ToeplitzMechanismDpEvent(4.0, [2.0], steps=3)
  >>> cyclic(events_lib.CyclicPoissonSampledDpEvent(0.1, 2, banded))
  (1.999..., 2)

  ```
  """
  inner = event.event
  parts = checked(event, 'parts', 1, _LARGEST_WHOLE)
  if parts != int(parts):
    raise ValueError(f'parts of {event!r} must be a whole number.')
  try:
    if isinstance(inner, events_lib.ToeplitzMechanismDpEvent):
      steps = inner.steps
      norm = strategies.toeplitz_sensitivity(inner.coefficients, steps)
      kept = np.flatnonzero(inner.coefficients[:steps])
      bands = int(kept[-1]) + 1 if kept.size else 0
    elif isinstance(inner, events_lib.MatrixMechanismDpEvent):
      steps = len(inner.strategy)
      norm = strategies.matrix_sensitivity(inner.strategy)
      bands = max(
        (
          t - int(np.flatnonzero(row)[0]) + 1
          for t, row in enumerate(inner.strategy)
          if np.any(row)
        ),
        default=0,
      )
    else:
      raise RefusedEventError(
        event, 'only matrix mechanisms are taken on samples of parts in turn.'
      )
  except RefusedEventError:
    raise
  except ValueError as error:
    raise ValueError(
      f'{type(inner).__name__} cannot be priced: {error}'
    ) from error
  if bands > parts:
    raise ValueError(
      f'The strategy has {bands} bands, more than there are parts '
      f'({int(parts)}): what a row adds in two of its steps would overlap. '
      'Take more parts, or a strategy with less bands.'
    )
  noise = checked(inner, 'noise_multiplier', 0.0, math.inf)
  return noise / norm if norm > 0 else math.inf, math.ceil(steps / parts)


def _vote(event: dp_accounting.DpEvent) -> list[Mechanism]:
  """Votes of teachers; a row changes the vote of one of them."""
  if isinstance(event, events_lib.LNMaxDpEvent):
    return _epsilon_delta(2 * checked(event, 'gamma', 0.0, math.inf), 0.0)
  if isinstance(event, events_lib.GNMaxDpEvent):
    # Two counts move by one each. Downwards.
    sigma = checked(event, 'sigma', 0.0, math.inf)
    noise = math.nextafter(sigma / math.sqrt(2), 0.0)
    return [_noisy('gaussian', max(noise, 5e-324 if sigma else 0.0))]
  if isinstance(event, events_lib.ConfidentGNMaxDpEvent):
    checked(event, 'threshold', -math.inf, math.inf)
    check = _noisy('gaussian', checked(event, 'sigma_threshold', 0.0, math.inf))
    answer = events_lib.GNMaxDpEvent(event.sigma)
    return [check, *(_vote(answer) if event.answered else [])]
  if isinstance(event, events_lib.DataDependentDpEvent):
    return _data_dependent(event)
  raise RefusedEventError(event, 'no accounting is known for this event.')


def _data_dependent(event: events_lib.DataDependentDpEvent) -> list[Mechanism]:
  inner = event.event
  answered, checks = True, False
  if isinstance(inner, events_lib.LNMaxDpEvent):
    kind, noise = 'data_dependent_lnmax', inner.gamma
  elif isinstance(inner, events_lib.GNMaxDpEvent):
    kind, noise = 'data_dependent_gnmax', inner.sigma
  elif isinstance(inner, events_lib.ConfidentGNMaxDpEvent):
    kind, noise = 'data_dependent_gnmax', inner.sigma
    answered, checks = inner.answered, True
  else:
    raise RefusedEventError(
      event, 'only LNMax, GNMax and Confident GNMax have such a price.'
    )
  plain = _vote(inner)  # Checks the parameters.
  if not plain or _NON_PRIVATE in plain:
    return plain
  found = []
  for wanted, field, name, parameter in (
    (checks, 'log_pr_answered', 'data_dependent_threshold', None),
    (answered, 'log_q', kind, noise),
  ):
    if not wanted:
      continue
    if getattr(event, field) is None:
      raise ValueError(
        f'{field} of {event!r} is missing: make the event from votes, with '
        'data_dependent_event.'
      )
    value = checked(event, field, -math.inf, math.inf)
    if parameter is None:
      parameter = inner.sigma_threshold
    found.append(Mechanism(name, float(parameter), extra=value))
  return found


def _noisy(kind: str, noise: float) -> Mechanism:
  return Mechanism(kind, noise) if noise > 0 else _NON_PRIVATE


def _epsilon_delta(epsilon: float, delta: float) -> list[Mechanism]:
  if epsilon == 0 and delta == 0:
    return []
  return [Mechanism('epsilon_delta', epsilon, extra=delta)]


def _bounded_range(epsilon: float) -> list[Mechanism]:
  return [Mechanism('bounded_range', epsilon)] if epsilon > 0 else []
