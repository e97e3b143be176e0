"""PATE: what a vote of teachers costs, whatever the votes and given them.

Where nearly all teachers agree, hardly anything but the plurality can come out,
whoever is added or removed, and a vote costs far less than its noise says.
Every bound here holds for the table that the votes came from: it bounds the
divergence of what comes out for that table from what comes out for any
neighbour of it, and not the other way round, which can be far larger. It is
computed from private votes, and may not be published as it is.

#### Formal guarantee
Let q bound the probability that anything but the plurality comes out. On a
neighbouring table, let this probability be at most q exp(d), and let the moment
E[(P / P')^(a - 1)] over these other outcomes be at most exp((a - 1) b). Then
the divergence of order a is at most

    log((1 - q) ((1 - q) / (1 - q exp(d)))^(a - 1) + q exp((a - 1) b)) / (a - 1)

- Pure mechanisms (LNMax, Papernot et al. 2017, theorem 3): d = b = epsilon. The
  bound rises with q up to 1 / (exp(epsilon) + 1), so that a bound on the
  probability serves as well as the probability.
- Renyi-private mechanisms (GNMax and the check, Papernot et al. 2018, theorem
  6): with a divergence of epsilon_2 at order mu_2 and of epsilon_1 at an order
  mu_1 >= a, d = epsilon_2 (1 - 1 / mu_2) - log(q) / mu_2 and b = epsilon_1 -
  log(q) / (mu_1 - 1). The bound rises with q under the condition that the
  theorem states. The orders are those of proposition 10, mu_2 = sigma sqrt(-log
  q) and mu_1 = mu_2 + 1.

#### References
Papernot, Abadi, Erlingsson, Goodfellow and Talwar 2017, "Semi-supervised
knowledge transfer for deep learning from private training data". Papernot,
Song, Mironov, Raghunathan, Talwar and Erlingsson 2018, "Scalable private
learning with PATE".
"""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np
from numpy import typing as npt
from scipy import special

from tfdpflows.accounting import events
from tfdpflows.accounting.logarithms import log_expm1
from tfdpflows.accounting.mechanisms.base import (
  Mechanism,
  NonPrivate,
  RefusedEventError,
  event_number,
)
from tfdpflows.accounting.mechanisms.decompose import mechanisms_of
from tfdpflows.accounting.mechanisms.epsilon_delta import (
  epsilon_delta,
  pure_renyi,
)
from tfdpflows.accounting.mechanisms.gaussian import gaussian

__all__ = [
  'DataDependent',
  'DataDependentGNMax',
  'DataDependentLNMax',
  'DataDependentThreshold',
  'data_dependent_event',
  'gnmax_curve',
  'lnmax_curve',
  'log_pr_answered',
  'log_q_gaussian',
  'log_q_laplace',
  'threshold_curve',
]


# Logs of probabilities are kept finite; no smaller one is ever claimed.
_LOWEST = -1e300
# Rounding: of sums, and of a log relative to what it is made of.
_ROUNDING = 1e-12
_ULPS = 2e-15


class DataDependent(Mechanism):
  """A vote at a cost computed from private votes, in one direction only."""

  @property
  def words(self) -> str:
    return self.name


@dataclasses.dataclass(frozen=True)
class DataDependentGNMax(DataDependent):
  """One answer of GNMax, see `gnmax_curve`."""

  name = 'data_dependent_gnmax'

  sigma: float
  log_q: float

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    return gnmax_curve(self.log_q, self.sigma, orders)


@dataclasses.dataclass(frozen=True)
class DataDependentThreshold(DataDependent):
  """One check of Confident GNMax, see `threshold_curve`."""

  name = 'data_dependent_threshold'

  sigma_threshold: float
  log_pr_answered: float

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    return threshold_curve(self.log_pr_answered, self.sigma_threshold, orders)


@dataclasses.dataclass(frozen=True)
class DataDependentLNMax(DataDependent):
  """One answer of LNMax, see `lnmax_curve`."""

  name = 'data_dependent_lnmax'

  gamma: float
  log_q: float

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    curve = lnmax_curve(self.log_q, self.gamma, orders)
    return np.fmin(curve, pure_renyi(2 * self.gamma, orders))

  def pure_epsilon(self) -> float:
    return 2 * self.gamma


@mechanisms_of.register(events.LNMaxDpEvent)
def _(event, relation):
  return epsilon_delta(2 * event_number(event, 'gamma'))


@mechanisms_of.register(events.GNMaxDpEvent)
def _(event, relation):
  # Two counts move by one each, under every relation: a row belongs to one
  # teacher. Downwards.
  sigma = event_number(event, 'sigma')
  noise = math.nextafter(sigma / math.sqrt(2), 0.0)
  return gaussian(max(noise, 5e-324 if sigma else 0.0))


@mechanisms_of.register(events.ConfidentGNMaxDpEvent)
def _(event, relation):
  event_number(event, 'threshold', -math.inf)
  check = gaussian(event_number(event, 'sigma_threshold'))
  if not event.answered:
    return check
  return [*check, *mechanisms_of(events.GNMaxDpEvent(event.sigma), relation)]


@mechanisms_of.register(events.DataDependentDpEvent)
def _(event, relation):
  inner = event.event
  answered, checks = True, False
  if isinstance(inner, events.LNMaxDpEvent):
    answer, noise = DataDependentLNMax, inner.gamma
  elif isinstance(inner, events.GNMaxDpEvent):
    answer, noise = DataDependentGNMax, inner.sigma
  elif isinstance(inner, events.ConfidentGNMaxDpEvent):
    answer, noise = DataDependentGNMax, inner.sigma
    answered, checks = inner.answered, True
  else:
    raise RefusedEventError(
      event, 'only LNMax, GNMax and Confident GNMax have such a price.'
    )
  plain = mechanisms_of(inner, relation)  # Checks the parameters.
  if not plain or (NonPrivate(), 1) in plain:
    return plain

  def log_of(field: str) -> float:
    if getattr(event, field) is None:
      raise ValueError(
        f'{field} of {event!r} is missing: make the event from votes, with '
        'data_dependent_event.'
      )
    return event_number(event, field, -math.inf)

  found = []
  if checks:
    log_pr = log_of('log_pr_answered')
    sigma = float(inner.sigma_threshold)
    found.append((DataDependentThreshold(sigma, log_pr), 1))
  if answered:
    found.append((answer(float(noise), log_of('log_q')), 1))
  return found


def data_dependent_event(
  event: dp_accounting.DpEvent, votes: npt.ArrayLike
) -> events.DataDependentDpEvent:
  """An event of PATE at the price that its votes allow.

  Args:
    event: An `LNMaxDpEvent`, `GNMaxDpEvent` or `ConfidentGNMaxDpEvent`.
    votes: [classes], how many teachers voted for each class.

  Returns:
    A `DataDependentDpEvent`. It tells of the votes: keep it private.

  Raises:
    TypeError: If the event is none of these.
    ValueError: If the votes are not counts, or there is no noise.

  ```python
  >>> event = data_dependent_event(events.GNMaxDpEvent(40.0), [10, 230, 10])
  >>> round(event.log_q, 3)
  -9.204

  ```
  """
  if isinstance(event, events.LNMaxDpEvent):
    return events.DataDependentDpEvent(
      event, log_q=log_q_laplace(votes, event.gamma)
    )
  if isinstance(event, events.GNMaxDpEvent):
    return events.DataDependentDpEvent(
      event, log_q=log_q_gaussian(votes, event.sigma)
    )
  if isinstance(event, events.ConfidentGNMaxDpEvent):
    return events.DataDependentDpEvent(
      event,
      log_q=log_q_gaussian(votes, event.sigma) if event.answered else None,
      log_pr_answered=log_pr_answered(
        votes, event.threshold, event.sigma_threshold
      ),
    )
  raise TypeError(
    'event must be an LNMaxDpEvent, a GNMaxDpEvent or a ConfidentGNMaxDpEvent, '
    f'not {event!r}.'
  )


def log_q_laplace(votes: npt.ArrayLike, gamma: float) -> float:
  """Bounds the probability that LNMax does not answer the plurality.

  Args:
    votes: [classes], how many teachers voted for each class.
    gamma: The noise on each count has scale 1 / gamma.

  Returns:
    Log of the bound: the sum over the other classes, whose count is lower by g,
    of (2 + gamma g) / (4 exp(gamma g)) (Papernot et al. 2017, lemma 4), or 1 -
    1 / classes.

  Raises:
    ValueError: If the votes are not counts, or gamma is not a number.

  ```python
  >>> round(log_q_laplace([30, 10], 0.5), 4)  # log(12 / (4 exp(10)))
  -8.9014

  ```
  """
  gamma = _noise('gamma', gamma, zero=True)
  # The terms fall with g, so that a smaller g is a bound.
  with np.errstate(over='ignore'):
    scaled = np.minimum(gamma * _gaps(votes), -_LOWEST)
  return _union(np.log1p(scaled / 2) - math.log(2) - scaled)


def log_q_gaussian(votes: npt.ArrayLike, sigma: float) -> float:
  """Bounds the probability that GNMax does not answer the plurality.

  Args:
    votes: [classes], how many teachers voted for each class.
    sigma: Standard deviation of the noise on each count.

  Returns:
    Log of the bound: the sum over the other classes, whose count is lower by g,
    of the probability that normal noise is above g / (sqrt(2) sigma) (Papernot
    et al. 2018, proposition 7), or 1 - 1 / classes.

  Raises:
    ValueError: If the votes are not counts, or sigma is not above zero.

  ```python
  >>> round(math.exp(log_q_gaussian([5, 5], 3.0)), 12)
  0.5

  ```
  """
  sigma = _noise('sigma', sigma)
  with np.errstate(over='ignore'):
    scaled = _gaps(votes) / math.sqrt(2) / sigma
    return _union(special.log_ndtr(-scaled))


def log_pr_answered(
  votes: npt.ArrayLike, threshold: float, sigma_threshold: float
) -> float:
  """Probability that a query passes the check of Confident GNMax.

  Args:
    votes: [classes], how many teachers voted for each class.
    threshold: What the largest count and the noise must reach together.
    sigma_threshold: Standard deviation of that noise.

  Returns:
    Log of the probability.

  Raises:
    ValueError: If the votes are not counts, the threshold is not a finite
      number, or the noise is not above zero.

  ```python
  >>> math.exp(log_pr_answered([30, 10], 30.0, 5.0))
  0.5

  ```
  """
  sigma = _noise('sigma_threshold', sigma_threshold)
  threshold = float(threshold)
  if not math.isfinite(threshold):
    raise ValueError(f'threshold must be a finite number, not {threshold}.')
  above = float(np.max(_counts(votes))) - threshold
  return max(float(special.log_ndtr(above / sigma)), _LOWEST)


def gnmax_curve(
  log_q: float, sigma: float, orders: npt.ArrayLike
) -> np.ndarray:
  """Renyi divergences of one answer of GNMax.

  Args:
    log_q: Log of a bound on the probability of any answer but the plurality,
      from `log_q_gaussian`.
    sigma: Standard deviation of the noise on each count, above zero.
    orders: Above 1.

  Returns:
    Float64, shaped as `orders`, in nats: theorem 6 where it holds and is less
    than order / sigma^2, what an answer costs whatever the votes.

  ```python
  >>> print(gnmax_curve(-30.0, 40.0, [2.0, 1000.0]))
  [5.89...e-14 6.25000000e-01]

  ```
  """
  a = np.asarray(orders, np.float64)
  independent = a / sigma / sigma
  mu2 = sigma * math.sqrt(max(-log_q, 0.0))
  if not mu2 > 1:
    return independent
  mu1 = mu2 + 1
  epsilon1, epsilon2 = mu1 / sigma / sigma, mu2 / sigma / sigma
  rising = (mu2 - 1) * epsilon2 - mu2 * (
    math.log1p(1 / (mu1 - 1)) + math.log1p(1 / (mu2 - 1))
  )
  if not log_q <= rising:
    return independent
  curve = _curve(
    log_q,
    epsilon2 * (1 - 1 / mu2) - log_q / mu2,
    epsilon1 - log_q / (mu1 - 1),
    a,
  )
  return np.where(a <= mu1, np.fmin(curve, independent), independent)


def threshold_curve(
  log_pr_answered: float, sigma_threshold: float, orders: npt.ArrayLike
) -> np.ndarray:
  """Renyi divergences of the check of Confident GNMax.

  Args:
    log_pr_answered: Log of the probability that it is passed.
    sigma_threshold: Standard deviation of its noise, above zero.
    orders: Above 1.

  Returns:
    Float64, shaped as `orders`, in nats: theorem 6 for the likelier of the two
    outcomes, or order / (2 sigma_threshold^2), which holds whatever the votes.

  ```python
  >>> print(threshold_curve(math.log(0.5), 40.0, [2.0]))  # not of any help
  [0.000625]

  ```
  """
  log_pr = min(float(log_pr_answered), 0.0)
  # Where the log has been rounded to zero, not all is certain.
  other = float(log_expm1(max(-log_pr, 1e-300))) + log_pr
  # The vote that a row changes moves one count by one. In GNMax it moves two,
  # which is as much as this with sqrt(2) of the noise.
  return gnmax_curve(min(log_pr, other), math.sqrt(2) * sigma_threshold, orders)


def lnmax_curve(
  log_q: float, gamma: float, orders: npt.ArrayLike
) -> np.ndarray:
  """Renyi divergences of one answer of LNMax, as far as the votes say.

  Args:
    log_q: Log of a bound on the probability of any answer but the plurality,
      from `log_q_laplace`.
    gamma: The noise on each count has scale 1 / gamma.
    orders: Above 1.

  Returns:
    Float64, shaped as `orders`, in nats; infinite where theorem 3 does not
    hold. An answer is also 2 gamma-private, whatever the votes.

  ```python
  >>> print(lnmax_curve(-30.0, 0.05, [2.0]))
  [1.96...e-14]

  ```
  """
  a = np.asarray(orders, np.float64)
  epsilon = 2 * gamma
  if not log_q <= -np.logaddexp(0.0, epsilon):
    return np.full_like(a, math.inf)
  return _curve(log_q, epsilon, epsilon, a)


def _curve(
  log_q: float, drop: float, growth: float, a: np.ndarray
) -> np.ndarray:
  """The formula at the top, d and b of which are `drop` and `growth`.

  Both bases are written as one plus what is positive, so that a result of 1e-80
  is as accurate as any.
  """
  log_rest = float(log_expm1(-log_q)) + log_q  # log(1 - q)
  # (1 - q exp(d)) / (1 - q) = 1 - shift
  shift = _up(log_q, float(log_expm1(drop)), -log_rest)
  shift = math.exp(min(float(shift), 1.0)) * (1 + _ROUNDING)
  if shift >= 1:
    return np.full_like(a, math.inf)
  likely = _up(log_rest, log_expm1((a - 1) * -math.log1p(-shift)))
  unlikely = _up(log_q, log_expm1((a - 1) * growth))
  excess = np.logaddexp(likely, unlikely)
  return np.logaddexp(0.0, excess) / (a - 1) * (1 + _ROUNDING)


def _up(*logs):
  """The sum of some logs, and of their rounding."""
  total = sum(logs)
  with np.errstate(invalid='ignore'):
    above = total + _ULPS * sum(np.abs(x) for x in logs)
  return np.where(np.isfinite(total), above, total)


def _union(logs: np.ndarray) -> float:
  """Log of a sum of probabilities, none if there is but one class."""
  if not logs.size:
    return _LOWEST
  log_q = max(float(special.logsumexp(logs)), _LOWEST)
  # The plurality is no less likely than any other class.
  cap = math.log1p(-1 / (logs.size + 1))
  return min(log_q - _ULPS * log_q, cap)


def _gaps(votes: npt.ArrayLike) -> np.ndarray:
  counts = _counts(votes)
  first = int(np.argmax(counts))
  return counts[first] - np.delete(counts, first)


def _counts(votes: npt.ArrayLike) -> np.ndarray:
  counts = np.asarray(votes, np.float64)
  if counts.ndim != 1 or not counts.size:
    raise ValueError(
      'votes must be a list with one count for each class, not an array of '
      f'shape {list(counts.shape)}.'
    )
  bad = counts[~((counts >= 0) & (counts < math.inf))]
  if bad.size:
    raise ValueError(
      f'votes must be counts, finite and zero or more, but one is {bad[0]}.'
    )
  return counts


def _noise(name: str, value: float, zero: bool = False) -> float:
  value = float(value)
  if not (0 < value < math.inf or (zero and value == 0)):
    least = 'zero or more' if zero else 'above zero'
    raise ValueError(f'{name} must be a finite number {least}, not {value}.')
  return value
