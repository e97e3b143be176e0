"""PATE votes of teachers, at a cost that holds for any votes or for given ones.

Where nearly all teachers agree, hardly anything but the plurality can come out,
whichever row is added or removed, and a vote costs far less than its noise
alone guarantees. Each such bound holds for the table that the votes came from:
it bounds the divergence of the output on that table from the output on any
neighbour, and not the other direction, which can be far larger. It is computed
from private votes, and may not be published as it is.

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
Papernot et al. 2017, "Semi-supervised knowledge transfer for deep learning from
private training data". Papernot et al. 2018, "Scalable private learning with
PATE".
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

import attr
import dp_accounting
import numpy as np
from numpy import typing as npt
from scipy import special

from tfdpflows.accounting import events
from tfdpflows.accounting.events import event_number, mechanisms_of
from tfdpflows.accounting.logarithms import log_expm1
from tfdpflows.accounting.mechanisms.base import Mechanism, NonPrivate
from tfdpflows.accounting.mechanisms.epsilon_delta import (
  epsilon_delta,
  pure_renyi,
)
from tfdpflows.accounting.mechanisms.gaussian import gaussian_run

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
  """One answer of GNMax.

  >>> print(DataDependentGNMax(40.0, -30.0).renyi(np.array([2.0, 1000.0])))
  [5.89...e-14 6.25000000e-01]
  """

  name = 'data_dependent_gnmax'

  sigma: float  # Of the noise on each count.
  log_q: float  # From `log_q_gaussian`.

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    """Theorem 6 where it holds and is less than order / sigma^2."""
    a, log_q, sigma = orders, self.log_q, self.sigma
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
    drop = epsilon2 * (1 - 1 / mu2) - log_q / mu2
    curve = _curve(log_q, drop, epsilon1 - log_q / (mu1 - 1), a)
    return np.where(a <= mu1, np.fmin(curve, independent), independent)


@dataclasses.dataclass(frozen=True)
class DataDependentThreshold(DataDependent):
  """One check of Confident GNMax."""

  name = 'data_dependent_threshold'

  sigma_threshold: float  # Of its noise.
  log_pr_answered: float  # Log of the probability that it is passed.

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    """Theorem 6 for the likelier outcome, or order / (2 sigma_threshold^2)."""
    log_pr = min(float(self.log_pr_answered), 0.0)
    # Where the log has been rounded to zero, the outcome is not certain.
    other = float(log_expm1(max(-log_pr, 1e-300))) + log_pr
    # The vote that a row changes moves one count by one. In GNMax it moves two,
    # which is as much as this with sqrt(2) of the noise.
    sigma = math.sqrt(2) * self.sigma_threshold
    return DataDependentGNMax(sigma, min(log_pr, other)).renyi(orders)


@dataclasses.dataclass(frozen=True)
class DataDependentLNMax(DataDependent):
  """One answer of LNMax."""

  name = 'data_dependent_lnmax'

  gamma: float  # The noise on each count has scale 1 / gamma.
  log_q: float  # From `log_q_laplace`.

  def from_votes(self, orders: np.ndarray) -> np.ndarray:
    """Renyi divergences by theorem 3, infinite where it does not hold."""
    epsilon = 2 * self.gamma
    if not self.log_q <= -np.logaddexp(0.0, epsilon):
      return np.full_like(orders, math.inf)
    return _curve(self.log_q, epsilon, epsilon, orders)

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    """That of the votes, or of any 2 gamma-private mechanism."""
    return np.fmin(self.from_votes(orders), pure_renyi(2 * self.gamma, orders))

  def pure_epsilon(self) -> float:
    return 2 * self.gamma


@events.event_class
class LNMaxDpEvent(dp_accounting.DpEvent):
  """PATE: the label with most votes after Laplace noise.

  Attributes:
    gamma: the noise on each count has scale 1 / gamma.

  #### Formal guarantee
  2 gamma-private whatever the votes, as a row changes the vote of one teacher
  (Papernot et al. 2017, section 2), under either neighbouring relation.
  """

  gamma: float


@events.register(
  LNMaxDpEvent, 'PATE vote with Laplace noise (LNMax), gamma {0.gamma:.6g}'
)
def _(event, relation):
  return epsilon_delta(2 * event_number(event, 'gamma'))


@events.event_class
class GNMaxDpEvent(dp_accounting.DpEvent):
  """PATE: the label with most votes after Gaussian noise.

  Attributes:
    sigma: standard deviation of the noise on each count.

  #### Formal guarantee
  Whatever the votes, a Gaussian mechanism of l2 sensitivity sqrt(2) (Papernot
  et al. 2018, proposition 8), under either neighbouring relation.
  """

  sigma: float


@events.register(
  GNMaxDpEvent, 'PATE vote with Gaussian noise (GNMax), sigma {0.sigma:.6g}'
)
def _(event, relation):
  # Two counts move by one each, under every relation: a row belongs to one
  # teacher. Downwards.
  sigma = event_number(event, 'sigma')
  noise = math.nextafter(sigma / math.sqrt(2), 0.0)
  return gaussian_run(max(noise, 5e-324 if sigma else 0.0))


@events.event_class
class ConfidentGNMaxDpEvent(dp_accounting.DpEvent):
  """PATE: GNMax, but only where the teachers agree.

  Attributes:
    threshold: the query is answered if the largest count and Gaussian noise of
      standard deviation `sigma_threshold` reach this together.
    sigma_threshold: the noise of that check.
    sigma: the noise of the answer, as in `GNMaxDpEvent`.
    answered: whether to charge an answer. False is for a query that was turned
      down, in an analysis after the fact. Claims charge an answer for every
      query, as the votes decide how many there are.

  #### Formal guarantee
  The check is a Gaussian mechanism of sensitivity 1, the answer is `GNMax`
  (Papernot et al. 2018, algorithm 1), under either neighbouring relation.

  #### Example

  >>> ConfidentGNMaxDpEvent(300.0, sigma_threshold=200.0, sigma=40.0).answered
  True
  """

  threshold: float
  sigma_threshold: float
  sigma: float
  answered: bool = True


def _describe_confident(event: ConfidentGNMaxDpEvent) -> str:
  down = '' if event.answered else ', turned down'
  return (
    f'PATE vote with a check (Confident GNMax{down}), threshold '
    f'{event.threshold:.6g}, sigma {event.sigma_threshold:.6g} for the check '
    f'and {event.sigma:.6g} for the vote'
  )


@events.register(
  ConfidentGNMaxDpEvent,
  _describe_confident,
  independent=lambda event: attr.evolve(event, answered=True),
)
def _(event, relation):
  event_number(event, 'threshold', -math.inf)
  check = gaussian_run(event_number(event, 'sigma_threshold'))
  if not event.answered:
    return check
  return [*check, *mechanisms_of(GNMaxDpEvent(event.sigma), relation)]


@events.event_class
class VoteThresholdDpEvent(dp_accounting.DpEvent):
  """PATE: whether the teachers agree, without an answer.

  The check of Confident GNMax by itself, for queries whose answers are charged
  by another event.

  Attributes:
    sigma: standard deviation of the noise on the largest count.

  #### Formal guarantee
  A Gaussian mechanism of sensitivity 1, as the row that one teacher has more
  moves one vote, and the largest count by at most one, under either
  neighbouring relation. The same holds for the largest difference of the counts
  and public numbers (Interactive GNMax, Papernot et al. 2018, algorithm 2).
  """

  sigma: float


@events.register(
  VoteThresholdDpEvent, 'PATE check whether teachers agree, sigma {0.sigma:.6g}'
)
def _(event, relation):
  return gaussian_run(event_number(event, 'sigma'))


@events.event_class
class DataDependentDpEvent(dp_accounting.DpEvent):
  """A PATE query at a cost computed from its votes.

  `data_dependent_event` makes it from votes.

  Attributes:
    event: an `LNMaxDpEvent`, `GNMaxDpEvent` or `ConfidentGNMaxDpEvent`.
    log_q: log of a bound on the probability that the answer is not the label
      with most votes; None where no answer is charged.
    log_pr_answered: log of the probability that the check of Confident GNMax is
      passed; None without a check.

  #### Formal guarantee
  The cost bounds the divergence of the output for the table of these votes from
  that for any neighbour, not the other direction (Papernot et al. 2018,
  definition 5 and theorem 6). It is computed from private votes: neither this
  event nor an epsilon that rests on it may be published as it is. Ledgers,
  budgets and claims use `data_independent` of it.

  #### Example

  >>> DataDependentDpEvent(GNMaxDpEvent(40.0), log_q=-20.0).event
  GNMaxDpEvent(sigma=40.0)
  """

  event: dp_accounting.DpEvent
  log_q: Optional[float] = None
  log_pr_answered: Optional[float] = None


@events.register(
  DataDependentDpEvent,
  '{inner}, at a cost computed from private votes',
  independent=lambda event: events.data_independent(event.event),
)
def _(event, relation):
  inner = event.event
  if not isinstance(inner, (LNMaxDpEvent, GNMaxDpEvent, ConfidentGNMaxDpEvent)):
    raise events.RefusedEventError(
      event, 'only LNMax, GNMax and Confident GNMax have such a cost.'
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

  if isinstance(inner, LNMaxDpEvent):
    return [(DataDependentLNMax(float(inner.gamma), log_of('log_q')), 1)]
  found = []
  if isinstance(inner, ConfidentGNMaxDpEvent):
    log_pr = log_of('log_pr_answered')
    sigma = float(inner.sigma_threshold)
    found.append((DataDependentThreshold(sigma, log_pr), 1))
  if getattr(inner, 'answered', True):
    found.append((DataDependentGNMax(float(inner.sigma), log_of('log_q')), 1))
  return found


def data_dependent_event(
  event: dp_accounting.DpEvent, votes: npt.ArrayLike
) -> DataDependentDpEvent:
  """Returns an event of PATE at a cost computed from its votes.

  Args:
    event: an `LNMaxDpEvent`, `GNMaxDpEvent` or `ConfidentGNMaxDpEvent`.
    votes: [classes], how many teachers voted for each class.

  Returns:
    A `DataDependentDpEvent`. It depends on the votes: keep it private.

  Raises:
    TypeError: if the event is none of these.
    ValueError: if the votes are not counts, or there is no noise.

  >>> event = data_dependent_event(GNMaxDpEvent(40.0), [10, 230, 10])
  >>> round(event.log_q, 3)
  -9.204
  """
  if isinstance(event, LNMaxDpEvent):
    return DataDependentDpEvent(event, log_q=log_q_laplace(votes, event.gamma))
  if isinstance(event, GNMaxDpEvent):
    return DataDependentDpEvent(event, log_q=log_q_gaussian(votes, event.sigma))
  if isinstance(event, ConfidentGNMaxDpEvent):
    log_q = log_q_gaussian(votes, event.sigma) if event.answered else None
    log_pr = log_pr_answered(votes, event.threshold, event.sigma_threshold)
    return DataDependentDpEvent(event, log_q, log_pr)
  raise TypeError(
    'event must be an LNMaxDpEvent, a GNMaxDpEvent or a ConfidentGNMaxDpEvent, '
    f'not {event!r}.'
  )


def log_q_laplace(votes: npt.ArrayLike, gamma: float) -> float:
  """Returns a log bound on the probability that LNMax misses the plurality.

  It is the sum over the other classes, whose count is lower by g, of (2 + gamma
  g) / (4 exp(gamma g)) (Papernot et al. 2017, lemma 4), or 1 - 1 / classes.
  Arguments and errors are those of `data_dependent_event` and of its event.

  >>> round(log_q_laplace([30, 10], 0.5), 4)  # log(12 / (4 exp(10)))
  -8.9014
  """
  gamma = _noise('gamma', gamma, zero=True)
  # The terms fall with g, so that a smaller g is a bound.
  with np.errstate(over='ignore'):
    scaled = np.minimum(gamma * _gaps(votes), -_LOWEST)
  return _union(np.log1p(scaled / 2) - math.log(2) - scaled)


def log_q_gaussian(votes: npt.ArrayLike, sigma: float) -> float:
  """Returns a log bound on the probability that GNMax misses the plurality.

  It is the sum over the other classes, whose count is lower by g, of the
  probability that normal noise is above g / (sqrt(2) sigma) (Papernot et al.
  2018, proposition 7), or 1 - 1 / classes.

  >>> round(math.exp(log_q_gaussian([5, 5], 3.0)), 12)
  0.5
  """
  sigma = _noise('sigma', sigma)
  with np.errstate(over='ignore'):
    scaled = _gaps(votes) / math.sqrt(2) / sigma
    return _union(special.log_ndtr(-scaled))


def log_pr_answered(
  votes: npt.ArrayLike, threshold: float, sigma_threshold: float
) -> float:
  """Returns the log probability that a query passes the check.

  >>> math.exp(log_pr_answered([30, 10], 30.0, 5.0))
  0.5
  """
  sigma = _noise('sigma_threshold', sigma_threshold)
  threshold = float(threshold)
  if not math.isfinite(threshold):
    raise ValueError(f'threshold must be a finite number, not {threshold}.')
  above = float(np.max(_counts(votes))) - threshold
  return max(float(special.log_ndtr(above / sigma)), _LOWEST)


def _curve(
  log_q: float, drop: float, growth: float, a: np.ndarray
) -> np.ndarray:
  """Returns the bound at the top, with d and b as `drop` and `growth`.

  Both bases are written as one plus a positive number, so that a result of
  1e-80 is as accurate as any.
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
  """Returns the sum of some logs, rounding included."""
  total = sum(logs)
  with np.errstate(invalid='ignore'):
    above = total + _ULPS * sum(np.abs(x) for x in logs)
  return np.where(np.isfinite(total), above, total)


def _union(logs: np.ndarray) -> float:
  """Returns the log of a sum of probabilities; it is empty for one class."""
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
