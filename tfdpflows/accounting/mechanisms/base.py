"""What accountants ask of a mechanism, and of several together."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import threading
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Callable, ClassVar, NamedTuple, Optional, TypeVar

import dp_accounting
import numpy as np

from tfdpflows.accounting import events
from tfdpflows.accounting.mechanisms.losses import LossPair

_Function = TypeVar('_Function', bound=Callable)

# Rounding of sums and of a few products, of amplified epsilons, and of curves.
_ROUNDING = 1e-14
_UP = 1 + 1e-12
_ULPS = 2e-15
# A divergence that is not zero is at least this.
_LEAST = 1e-300
# Curves that are kept, of some 2 KiB each, and bytes of loss distributions.
_CURVES_KEPT = 8192
_BYTES_KEPT = 2**28


class ZCDPGuarantee(NamedTuple):
  """(xi, rho)-zCDP except with probability 1 - exp(log_kept)."""

  rho: float
  xi: float = 0.0
  log_kept: float = 0.0

  @classmethod
  def above(cls, rho: float) -> ZCDPGuarantee:
    """Returns the guarantee with xi = 0 and the next float above a rho."""
    return cls(math.nextafter(rho, math.inf))


class Mechanism:
  """One mechanism, with sensitivity 1 under the relation accounted for.

  Subclasses are frozen dataclasses. An accountant asks one of five questions,
  `renyi`, `zcdp`, `epsilon_at`, `loss_distributions` or `gaussian_mu`, and
  refuses a mechanism that does not override that method. Every answer is an
  upper bound, rounding included, and holds in both directions unless a subclass
  states otherwise.

  A new mechanism is one file, with this class, the event, `events.register`
  and the proof, and one row in
  `tests/accounting/mechanisms/mechanism_contract_test.py`.

  Attributes:
    name: name in remarks; mechanisms are summed in the order of their names,
      then of their fields.
    words: name in error messages.
    takes_delta: whether `epsilon_at` depends on delta.
    worst: for each field, which of two values costs more, `min` or `max`, the
      other fields being equal.
    shards_compare: whether the first field in `worst` decides which of two
      shards costs more.
  """

  name: ClassVar[str]
  words: ClassVar[str]
  takes_delta: ClassVar[bool] = False
  worst: ClassVar[Mapping[str, Callable]] = {}
  shards_compare: ClassVar[bool] = False

  @property
  def on_sample(self) -> bool:
    """Whether it runs on a random sample of the rows."""
    return getattr(self, 'sampling_probability', 1) < 1

  @property
  def work(self) -> float:
    """Time of a Renyi curve, in units of that of a Gaussian on a sample."""
    return 1.0 if self.on_sample else 0.0

  def __lt__(self, other: Mechanism) -> bool:
    return self._key < other._key

  @functools.cached_property
  def _key(self) -> tuple:
    fields = dataclasses.fields(self)
    return (self.name, *(getattr(self, field.name) for field in fields))

  def answers(self, question: str) -> bool:
    """Whether the mechanism overrides the method of this name."""
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
    """Renyi divergences in nats at orders above 1."""
    raise NotImplementedError

  def zcdp(self) -> ZCDPGuarantee:
    """A zero-concentrated guarantee."""
    raise NotImplementedError

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    """Epsilon at logs of delta, where `given_delta` comes on top."""
    raise NotImplementedError

  def loss_distributions(self, interval: float) -> LossPair:
    """Distributions of the privacy loss in both directions, on a grid.

    The first is for the table with one more row on top (P), the second for that
    table below (Q); the same object twice where the mechanism is symmetric.
    """
    raise NotImplementedError

  def gaussian_mu(self) -> float:
    """Mu of one run in the Gaussian limit of many."""
    raise NotImplementedError

  # What goes with an answer.

  def pure_epsilon(self) -> float:
    """The divergence of infinite order, but for `failure`."""
    return math.inf

  def failure(self) -> float:
    """Probability with which it reveals everything, apart from all else."""
    return 0.0

  def given_delta(self) -> Fraction:
    """The delta that comes on top of that of `epsilon_at`, exactly."""
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
    """The loss of an atom; a grid for this mechanism alone should hold it."""
    return max(map(abs, self.loss_range()))


class PureMechanism(Mechanism):
  """A mechanism with a largest loss, which may be on a sample."""

  sampling_probability = 1.0

  def unsampled_epsilon(self) -> float:
    """The largest absolute loss without a sample, from above."""
    raise NotImplementedError

  def pure_epsilon(self) -> float:
    return amplified(self.unsampled_epsilon(), self.sampling_probability)

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    epsilons = np.full_like(log_delta, self.unsampled_epsilon())
    return amplified_epsilons(epsilons, self.sampling_probability)


# Pairs of a mechanism and how often it is run.
Composition = Iterable[tuple[Mechanism, int]]


@dataclasses.dataclass(frozen=True)
class NonPrivate(Mechanism):
  """A release without privacy; every accountant takes it."""

  name = 'non_private'
  words = 'non_private'


@events.register(dp_accounting.NonPrivateDpEvent, 'a release without privacy')
def _(event, relation):
  return [(NonPrivate(), 1)]


def cached(
  capacity: int, size_of: Callable[..., int] = lambda _: 1
) -> Callable[[_Function], _Function]:
  """Returns a decorator that keeps results, which may not be None.

  Beyond the capacity, results chosen at random are dropped: an LRU cache would
  find nothing for a caller that asks for one more than the capacity, in the
  same order again and again. By default the size of every result is one.
  """

  def decorate(function: _Function) -> _Function:
    results: dict[tuple, object] = {}
    keys: list[tuple] = []
    used = 0
    lock, choice = threading.Lock(), random.Random(0)

    @functools.wraps(function)
    def asked(*args):
      nonlocal used
      found = results.get(args)
      if found is not None:
        return found
      found = function(*args)
      with lock:
        if args not in results:
          used += size_of(found)
          while keys and used > capacity:
            place = choice.randrange(len(keys))
            keys[place], keys[-1] = keys[-1], keys[place]
            used -= size_of(results.pop(keys.pop()))
          keys.append(args)
          results[args] = found
      return found

    return asked

  return decorate


@cached(_CURVES_KEPT)
def renyi_curve(mechanism: Mechanism, orders: tuple[float, ...]) -> np.ndarray:
  """Returns the Renyi divergences of a mechanism, larger of both directions.

  Of an (epsilon, delta) one, those of its pure part; see `failure`. Of a
  data-dependent one, of what comes out for the table from what comes out for a
  neighbour; see `votes`. Infinite where no bound is known, or where the
  numerics fail.
  """
  a = np.array(orders, np.float64)
  with np.errstate(all='ignore'):
    curve = mechanism.renyi(a)
    curve = np.where(np.isnan(curve), math.inf, curve) * (1 + _ULPS)
  curve = np.maximum(curve, _LEAST)
  curve.flags.writeable = False
  return curve


@cached(_BYTES_KEPT, lambda pair: 16 * max(len(x.masses) for x in pair))
def loss_distributions(mechanism: Mechanism, interval: float) -> LossPair:
  """Returns `Mechanism.loss_distributions`, kept for the process."""
  return mechanism.loss_distributions(interval)


def total_curve(
  composition: Composition, orders: tuple[float, ...]
) -> np.ndarray:
  """Returns the Renyi divergences of a composition: the sum (Mironov 2017)."""
  curve = np.zeros(len(orders))
  # A fixed order of summands, whatever order they were composed in.
  composition = sorted(composition)
  with np.errstate(over='ignore'):
    for mechanism, count in composition:
      curve = curve + float(count) * renyi_curve(mechanism, orders)
  return curve * (1 + _ROUNDING) if len(composition) > 1 else curve


def total_zcdp(composition: Composition) -> ZCDPGuarantee:
  """Returns the sums of rho, xi and log_kept, from above."""
  each = [(mechanism.zcdp(), count) for mechanism, count in composition]
  upwards = 1 + _ROUNDING * (1 + len(each))
  sums = [sum(count * part[i] for part, count in each) for i in range(3)]
  return ZCDPGuarantee(*(total * upwards for total in sums))


def pure_epsilon(composition: Composition) -> float:
  """Returns the divergence of infinite order, in nats.

  The composition is private at this epsilon but for `failure`; it is infinite
  if a mechanism is not pure.

  >>> from tfdpflows.accounting.mechanisms import Laplace
  >>> pure_epsilon([(Laplace(2.0), 3)])
  1.5...
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
  """Returns the probability that a mechanism reveals everything, from above.

  An (epsilon, delta) mechanism is, with probability 1 - delta, a pure one
  (Kairouz, Oh and Viswanath 2015).

  >>> from tfdpflows.accounting.mechanisms import EpsilonDelta
  >>> failure([(EpsilonDelta(1.0, 1e-6), 1)])
  1e-06
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
  """Returns the exact sum of the deltas that are given."""
  return sum(
    (count * mechanism.given_delta() for mechanism, count in composition),
    Fraction(0),
  )


def count_approximate(composition: Composition) -> int:
  """Returns how many runs have an epsilon that depends on a share of delta."""
  return sum(
    count * mechanism.count_approximate() for mechanism, count in composition
  )


def summed_epsilons(
  composition: Composition, log_delta: np.ndarray
) -> np.ndarray:
  """Returns the sum of the epsilons, at an even share of delta each."""
  log_share = log_delta - math.log(max(count_approximate(composition), 1))
  total = np.zeros_like(log_delta)
  with np.errstate(over='ignore'):
    for mechanism, count in composition:
      total = total + float(count) * mechanism.epsilon_at(log_share)
    return total * _UP


def amplified(epsilon: float, probability: float) -> float:
  """Returns epsilon of a pure mechanism on a sample, rounded upwards.

  It is log(1 + q (exp(epsilon) - 1)) (Balle, Barthe and Gaboardi 2018, theorems
  8 and 9).
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
  """Returns a log less a bound on the rounding of a few sums of logs."""
  return log - 1e-13 * (20 + np.abs(log))
