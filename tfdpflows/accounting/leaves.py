"""Events that hold no other event, as mechanisms."""

from __future__ import annotations

import math
from typing import NamedTuple

import dp_accounting
from scipy import special

from tfdpflows.accounting import events as events_lib
from tfdpflows.accounting.mechanism import Mechanism, RefusedEventError, checked

__all__ = ['Cap', 'cap', 'leaf', 'overflow']

_NON_PRIVATE = Mechanism('non_private', math.inf)
# Of the probability that the rest of a sample fills it, relative.
_TAIL_ERROR = 1e-9
_NOISES = ('laplace', 'exponential', 'gumbel')


def leaf(
  event: dp_accounting.DpEvent, relation: dp_accounting.NeighboringRelation
) -> list[Mechanism]:
  """The mechanisms of a leaf; none if it costs nothing.

  Args:
    event: A `DpEvent` without events in it.
    relation: What two neighbouring tables are. The events of PATE cost the same
      under all: a row belongs to one teacher.

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
  return min(tail * (1 + _TAIL_ERROR) + 1e-300, 1.0)


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
  if relation is not dp_accounting.NeighboringRelation.REPLACE_ONE:
    others.append(n)
  least, most, share = 1.0, 0.0, 0.0
  for m in others:
    full = _binomial_tail(m, b, q)
    least = min(least, max(full * (1 - _TAIL_ERROR) - 1e-300, 0.0))
    most = max(most, min(full * (1 + _TAIL_ERROR) + 1e-300, 1.0))
    if b > m or q == 0:
      continue
    kept = q
    if full > 1e-290:
      kept = b / (m + 1) * _binomial_tail(m + 1, b + 1, q) / full
    share = max(share, min(kept * (1 + 3 * _TAIL_ERROR), q))
  if all(b > m for m in others) or q == 0:
    return Cap(0.0, 0.0, q)
  return Cap(least, most, share)


def _binomial_tail(n: int, least: int, q: float) -> float:
  """P[Binomial(n, q) >= least], up to a share of 1e-9."""
  if least <= 0:
    return 1.0
  if least > n or q == 0:
    return 0.0
  return float(special.betainc(least, n - least + 1, q))


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
