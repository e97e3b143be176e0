"""What accountants ask of a mechanism, and of several together."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Callable, ClassVar, NamedTuple, Optional

import dp_accounting
import numpy as np

from tfdpflows.accounting.cache import cached
from tfdpflows.accounting.mechanisms.losses import LossDistribution

__all__ = [
  'RELATIONS',
  'Composition',
  'Mechanism',
  'NonPrivate',
  'RefusedEventError',
  'Relation',
  'ZCDPGuarantee',
  'amplified',
  'amplified_epsilons',
  'count_approximate',
  'event_number',
  'failure',
  'given_delta',
  'loss_distributions',
  'lower_log',
  'pure_epsilon',
  'renyi_curve',
  'summed_epsilons',
  'total_curve',
  'total_zcdp',
]

Relation = dp_accounting.NeighboringRelation
RELATIONS = (
  Relation.ADD_OR_REMOVE_ONE,
  Relation.REPLACE_ONE,
  Relation.REPLACE_SPECIAL,
)

# Rounding of sums and of a few products, of amplified epsilons, and of curves.
_ROUNDING = 1e-14
_UP = 1 + 1e-12
_ULPS = 2e-15
# Nothing that is not free is said to cost less.
_LEAST = 1e-300
# Curves that are kept, of some 2 KiB each, and bytes of loss distributions.
_CURVES_KEPT = 8192
_BYTES_KEPT = 2**28


class RefusedEventError(ValueError):
  """An event, or a part of it, that cannot be accounted."""

  def __init__(self, event: dp_accounting.DpEvent, reason: str):
    self.event = event
    super().__init__(reason)


class ZCDPGuarantee(NamedTuple):
  """(xi, rho)-zCDP but for a failure, kept away with probability exp(log_kept).

  Attributes:
    rho: Zero or more.
    xi: Zero or more.
    log_kept: Zero or less.
  """

  rho: float
  xi: float = 0.0
  log_kept: float = 0.0


class Mechanism:
  """One mechanism, with sensitivity 1 under the relation accounted for.

  Subclasses are frozen dataclasses. Each answers the questions that it can by
  overriding a method; an accountant refuses a mechanism that does not answer
  the one that the accountant asks. Divergences are the larger ones of both
  directions, unless a subclass says otherwise. Every answer is an upper bound,
  rounding included.

  A new mechanism is a subclass, with a function for its event that is
  registered with `decompose.mechanisms_of`, and a row in
  `tests/accounting/mechanisms/mechanism_contract_test.py`.

  Attributes:
    name: Name in remarks; mechanisms are summed in the order of their names,
      then of their fields.
    words: Name in error messages.
    on_sample: Whether it is a mechanism on a sample, which takes accountants
      long.
    takes_delta: Whether `epsilon_at` depends on delta.
    worst: For fields, `min` or `max`: what of several values costs most, the
      other fields being equal. The first is the one that decides which of two
      shards costs more.
    shards_compare: Whether it does.
    work: How long a Renyi curve takes, relative to that of a Gaussian mechanism
      on a sample; zero if it is next to nothing.
  """

  name: ClassVar[str]
  words: ClassVar[str]
  takes_delta: ClassVar[bool] = False
  worst: ClassVar[Mapping[str, Callable]] = {}
  shards_compare: ClassVar[bool] = False

  @property
  def on_sample(self) -> bool:
    return False

  @property
  def work(self) -> float:
    return 0.0

  def __lt__(self, other: Mechanism) -> bool:
    return self._key < other._key

  @functools.cached_property
  def _key(self) -> tuple:
    fields = dataclasses.fields(self)
    return (self.name, *(getattr(self, field.name) for field in fields))

  def answers(self, question: str) -> bool:
    """Whether the mechanism answers a question, the name of a method."""
    return getattr(type(self), question) is not getattr(Mechanism, question)

  def inner(self) -> tuple[Mechanism, ...]:
    """The mechanisms that this one is made of."""
    return ()

  def costs_no_less(self, other: Mechanism) -> bool:
    """Whether it plainly costs at least as much as another mechanism."""
    if self == other:
      return True
    if type(self) is not type(other) or not self.shards_compare:
      return False
    field, worst = next(iter(self.worst.items()))
    value, others = getattr(self, field), getattr(other, field)
    if dataclasses.replace(self, **{field: others}) != other:
      return False
    return worst(value, others) == value

  # The questions of accountants.

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    """Renyi divergences in nats at orders above 1, see `renyi_curve`."""
    raise NotImplementedError

  def zcdp(self) -> ZCDPGuarantee:
    """A zero-concentrated guarantee."""
    raise NotImplementedError

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    """Epsilon at logs of delta, besides `given_delta`."""
    raise NotImplementedError

  def loss_distributions(
    self, interval: float
  ) -> tuple[LossDistribution, LossDistribution]:
    """Distributions of the privacy loss, see the function of that name."""
    raise NotImplementedError

  def gaussian_mu(self) -> float:
    """Mu of the Gaussian limit of many runs, for one of them."""
    raise NotImplementedError

  # What goes with an answer.

  def pure_epsilon(self) -> float:
    """The divergence of infinite order, but for `failure`."""
    return math.inf

  def failure(self) -> float:
    """Probability with which it reveals everything, apart from all else."""
    return 0.0

  def given_delta(self) -> Fraction:
    """The delta that `epsilon_at` needs besides, exactly."""
    return Fraction(0)

  def count_approximate(self) -> int:
    """How many shares of delta `epsilon_at` takes, zero or one."""
    return int(self.takes_delta)

  def loss_range(self) -> tuple[float, float]:
    """The smallest and the largest finite loss in nats, rounded outwards."""
    raise NotImplementedError

  def loss_scale(self) -> float:
    """Roughly the standard deviation of the loss, to choose a grid by."""
    raise NotImplementedError

  def largest_step(self) -> Optional[float]:
    """A loss that should be on the grid, where there are no other mechanisms.

    It is the one where an atom or the last step of a density is.
    """
    return max(map(abs, self.loss_range()))


Composition = Iterable[tuple[Mechanism, int]]


@dataclasses.dataclass(frozen=True)
class NonPrivate(Mechanism):
  """A release without privacy; every accountant takes it."""

  name = 'non_private'
  words = 'non_private'


@cached(_CURVES_KEPT)
def renyi_curve(mechanism: Mechanism, orders: tuple[float, ...]) -> np.ndarray:
  """Renyi divergences of a mechanism, the larger of both directions.

  Args:
    mechanism: A mechanism. Of an (epsilon, delta) one, that of its pure part;
      see `failure`. Of a data-dependent one, of what comes out for the table
      from what comes out for a neighbour; see `votes`.
    orders: Orders above 1.

  Returns:
    Float64 [len(orders)], in nats; read-only. Infinite where no bound is known,
    or where the numerics fail.

  ```python
  >>> from tfdpflows.accounting.mechanisms import Gaussian
  >>> print(renyi_curve(Gaussian(2.0), (2.0, 4.0)))
  [0.25 0.5 ]

  ```
  """
  a = np.array(orders, np.float64)
  with np.errstate(all='ignore'):
    curve = mechanism.renyi(a)
    curve = np.where(np.isnan(curve), math.inf, curve) * (1 + _ULPS)
  curve = np.maximum(curve, _LEAST)
  curve.flags.writeable = False
  return curve


@cached(_BYTES_KEPT, lambda pair: 16 * max(len(x.masses) for x in pair))
def loss_distributions(
  mechanism: Mechanism, interval: float
) -> tuple[LossDistribution, LossDistribution]:
  """The loss distributions of a mechanism, in both directions.

  Args:
    mechanism: One with loss distributions.
    interval: Distance of the grid points, in nats.

  Returns:
    The distribution where the table with one more row is on top (P) and the one
    where it is below (Q). They are the same object where the mechanism is
    symmetric.

  ```python
  >>> from tfdpflows.accounting.mechanisms import Laplace
  >>> remove, add = loss_distributions(Laplace(1.0), 0.01)
  >>> remove is add, remove.lower, len(remove.masses)
  (True, -100, 201)

  ```
  """
  return mechanism.loss_distributions(interval)


def total_curve(
  composition: Composition, orders: tuple[float, ...]
) -> np.ndarray:
  """Renyi divergences of a composition: the sum (Mironov 2017).

  Args:
    composition: Pairs of a mechanism and how often it is run.
    orders: Orders above 1.

  Returns:
    Float64 [len(orders)], in nats.

  ```python
  >>> from tfdpflows.accounting.mechanisms import ZeroConcentrated
  >>> print(total_curve([(ZeroConcentrated(0.1), 3)], (2.0,)))
  [0.6]

  ```
  """
  curve = np.zeros(len(orders))
  # A fixed order of summands, whatever order they were composed in.
  composition = sorted(composition)
  with np.errstate(over='ignore'):
    for mechanism, count in composition:
      curve = curve + float(count) * renyi_curve(mechanism, orders)
  return curve * (1 + _ROUNDING) if len(composition) > 1 else curve


def total_zcdp(composition: Composition) -> ZCDPGuarantee:
  """The sums of rho, xi and log_kept.

  Args:
    composition: Pairs of a mechanism and how often it is run.

  Returns:
    A `ZCDPGuarantee`, from above.
  """
  each = [(mechanism.zcdp(), count) for mechanism, count in composition]
  upwards = 1 + _ROUNDING * (1 + len(each))
  return ZCDPGuarantee(
    *(
      sum(count * part[field] for part, count in each) * upwards
      for field in range(3)
    )
  )


def pure_epsilon(composition: Composition) -> float:
  """The divergence of infinite order, where every mechanism has one.

  Args:
    composition: Pairs of a mechanism and how often it is run.

  Returns:
    Epsilon in nats: the composition is epsilon-private but for `failure`;
    infinite if a mechanism is not pure.

  ```python
  >>> from tfdpflows.accounting.mechanisms import Laplace
  >>> pure_epsilon([(Laplace(2.0), 3)])
  1.5...

  ```
  """
  composition = list(composition)
  if len(composition) == 1 and composition[0][1] == 1:
    return composition[0][0].pure_epsilon()
  total = sum(
    count * mechanism.pure_epsilon() for mechanism, count in sorted(composition)
  )
  # Where it is above zero, it is not rounded to that.
  return math.nextafter(total * (1 + _ROUNDING), math.inf) if total else 0.0


def failure(composition: Composition) -> float:
  """Probability that an (epsilon, delta) mechanism reveals everything.

  An (epsilon, delta) mechanism is, with probability 1 - delta, a pure one
  (Kairouz, Oh and Viswanath 2015).

  Args:
    composition: Pairs of a mechanism and how often it is run.

  Returns:
    The probability that any one does, in [0, 1], from above.

  ```python
  >>> from tfdpflows.accounting.mechanisms import EpsilonDelta
  >>> failure([(EpsilonDelta(1.0, 1e-6), 1)])
  1e-06

  ```
  """
  each = [
    (mechanism.failure(), count) for mechanism, count in sorted(composition)
  ]
  each = [(delta, count) for delta, count in each if delta > 0]
  if len(each) == 1 and each[0][1] == 1:
    return each[0][0]
  kept = sum(
    count * math.log1p(-delta) if delta < 1 else -math.inf
    for delta, count in each
  )
  return min(-math.expm1(kept) * (1 + 1e-12), 1.0)


def given_delta(composition: Composition) -> Fraction:
  """The sum of the deltas that cannot be chosen, exactly."""
  total = Fraction(0)
  for mechanism, count in composition:
    total += count * mechanism.given_delta()
  return total


def count_approximate(composition: Composition) -> int:
  """The number of runs whose epsilon depends on their share of delta."""
  return sum(
    count * mechanism.count_approximate() for mechanism, count in composition
  )


def summed_epsilons(
  composition: Composition, log_delta: np.ndarray
) -> np.ndarray:
  """The sum of the epsilons, at an even share of delta each.

  Args:
    composition: Pairs of a mechanism and how often it is run.
    log_delta: Logs of the delta of all, besides `given_delta`.

  Returns:
    Float64, shaped as `log_delta`, in nats.
  """
  log_share = log_delta - math.log(max(count_approximate(composition), 1))
  total = np.zeros_like(log_delta)
  with np.errstate(over='ignore'):
    for mechanism, count in composition:
      total = total + float(count) * mechanism.epsilon_at(log_share)
    return total * _UP


def amplified(epsilon: float, probability: float) -> float:
  """Epsilon of a pure mechanism on a sample, log(1 + q (exp(epsilon) - 1)).

  Balle, Barthe and Gaboardi 2018, theorems 8 and 9.

  Args:
    epsilon: Epsilon of the mechanism, in nats.
    probability: Probability with which a row is sampled.

  Returns:
    Epsilon in nats, rounded upwards.

  ```python
  >>> round(amplified(1.0, 0.1), 4)
  0.1586

  ```
  """
  if probability == 1:
    return epsilon
  if epsilon < 700:
    found = math.log1p(probability * math.expm1(epsilon))
  else:
    found = float(
      np.logaddexp(math.log1p(-probability), math.log(probability) + epsilon)
    )
  # Upwards; never so small that it would vanish.
  return math.nextafter(found * (1 + 1e-14), math.inf) if epsilon else 0.0


def amplified_epsilons(epsilon: np.ndarray, probability: float) -> np.ndarray:
  """`amplified` for an array of epsilons, some of which may be infinite."""
  if probability == 1:
    return epsilon
  q = probability
  moderate = np.log1p(q * np.expm1(np.minimum(epsilon, 700.0)))
  large = np.logaddexp(math.log1p(-q), math.log(q) + epsilon)
  found = np.where(epsilon < 700, moderate, large) * _UP
  return np.where(epsilon > 0, np.nextafter(found, np.inf), 0.0)


def lower_log(log: np.ndarray) -> np.ndarray:
  """A log that came from a few sums of others, by more than their errors."""
  return log - 1e-13 * (20 + np.abs(log))


def event_number(
  event: dp_accounting.DpEvent,
  field: str,
  lowest: float = 0.0,
  highest: float = math.inf,
) -> float:
  """A field of an event as a float.

  Args:
    event: A `DpEvent`.
    field: Name of the field.
    lowest: Smallest value allowed.
    highest: Largest value allowed; may be infinite.

  Returns:
    The value.

  Raises:
    ValueError: If it is not a finite number in that range; names field and
      event.
  """
  try:
    value = float(getattr(event, field))
  except OverflowError:
    value = math.inf
  if not (math.isfinite(value) and lowest <= value <= highest):
    bound = 'a finite number'
    if lowest > -math.inf:
      bound += f' in [{lowest:g}, '
      bound += f'{highest:g}]' if highest < math.inf else 'inf)'
    raise ValueError(f'{field} of {event!r} must be {bound}.')
  return value
