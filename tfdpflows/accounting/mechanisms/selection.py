"""The best of a random number of runs, as in a search for hyper-parameters.

#### Formal guarantee
One run has the divergence r(a) at order a. K runs are made and the best one is
given out, where K is drawn without looking at the data:

- from the truncated negative binomial distribution of a shape and 0 < g <= 1
  (shape 1: geometric; shape 0: logarithmic). The divergence of order a is at
  most r(a) + log(E[K]) / (a - 1) + (1 + shape) ((1 - 1/b) r(b) + log(1/g) / b),
  for any order b (Papernot and Steinke 2022, theorem 2);
- from a Poisson distribution. It is at most r(a) + log(E[K]) / (a - 1) + d
  E[K], if one run is (log(1 + 1 / (a - 1)), d)-private (theorem 6).

Where one run is only private except with a probability of f, it is a mixture of
a run that is private and one that reveals everything (Kairouz, Oh and Viswanath
2015). The K runs are all private with a probability of at least 1 - E[K] f.
Given that, K has the weights p_k (1 - f)^k: it is of the same shape, with a
smaller mean and a larger g, and the bounds above hold for that as well.

#### References
Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential
privacy".
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np
from dp_accounting import dp_event
from scipy import special

from tfdpflows.accounting import events, renyi_conversion
from tfdpflows.accounting.mechanisms import base
from tfdpflows.accounting.mechanisms.base import Mechanism, NonPrivate
from tfdpflows.accounting.mechanisms.smooth_sensitivity import RenyiPrivate
from tfdpflows.accounting.mechanisms.votes import DataDependent

_ROUNDING = 1e-14


@dataclasses.dataclass(frozen=True)
class RepeatAndSelect(Mechanism):
  """The best of a random number of runs."""

  name = 'repeat_and_select'
  words = 'repeat-and-select'

  mean: float  # Of the number of runs, 1 or more.
  shape: float  # Of its distribution.
  one_run: tuple[tuple[Mechanism, int], ...]  # Sorted, with counts.

  def inner(self) -> tuple[Mechanism, ...]:
    return tuple(mechanism for mechanism, _ in self.one_run)

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    once = base.total_curve(self.one_run, tuple(orders.tolist()))
    return repeated_curve(orders, once, self.mean, self.shape)

  def pure_epsilon(self) -> float:
    """Theorem 2 of Papernot and Steinke 2022 at infinite orders.

    A Poisson number of runs has no bound, unless one run costs nothing.
    """
    once = base.pure_epsilon(self.one_run)
    return (2 + self.shape) * once if once > 0 else 0.0

  def failure(self) -> float:
    once = base.failure(self.one_run)
    return min(self.mean * once * (1 + _ROUNDING), 1.0)


@events.register(
  dp_event.RepeatAndSelectDpEvent,
  'the best of a random number of runs (mean {0.mean:.6g}, shape '
  '{0.shape:.6g}) of ({inner})',
)
def _(event, relation):
  mean, shape = float(event.mean), float(event.shape)
  if not (1 <= mean < math.inf and shape >= 0):
    raise ValueError(
      f'mean of {event!r} must be a finite number, 1 or more, and shape zero '
      'or more.'
    )
  one = events.decompose(event.event, relation)
  if not one or NonPrivate() in one:
    return list(one.items())
  if any(isinstance(x, DataDependent) for x in _within(one)):
    raise events.RefusedEventError(
      event,
      'costs from private votes hold in one direction, and the best of '
      'several runs needs both; use `data_independent` of it.',
    )
  if any(isinstance(x, RenyiPrivate) and x.delta for x in _within(one)):
    raise events.RefusedEventError(
      event,
      'a Renyi divergence with a delta is that of one direction, and the best '
      'of several runs needs both.',
    )
  return [(RepeatAndSelect(mean, shape, tuple(sorted(one.items()))), 1)]


def _within(mechanisms: Iterable[Mechanism]) -> Iterator[Mechanism]:
  """Yields mechanisms and those that they are made of."""
  for mechanism in mechanisms:
    yield mechanism
    yield from _within(mechanism.inner())


def repeated_curve(
  orders: np.ndarray, curve: np.ndarray, mean: float, shape: float
) -> np.ndarray:
  """Returns the Renyi divergences of the best of K runs, in nats.

  The `curve` are those of one run; `shape` is that of the distribution of K,
  infinite for Poisson.

  Raises:
    ValueError: if mean or shape is outside its range.

  >>> orders = np.array([2.0, 8.0])
  >>> print(repeated_curve(orders, orders * 0.01, 10.0, 1.0).round(3))
  [1.125 1.125]
  """
  mean, shape = _checked(float(mean), float(shape))
  found = curve + math.log(mean) / (orders - 1)
  if shape == math.inf:
    # Downwards, where delta is larger.
    near = np.log1p(1 / (orders - 1)) * (1 - 1e-14)
    once = [
      np.min(renyi_conversion.deltas(orders, curve, epsilon))
      for epsilon in near
    ]
    found = found + mean * np.array(once)
  else:
    halting = _log_inverse_halting(mean, shape)
    once = (1 - 1 / orders) * curve + halting / orders
    found = found + (1 + shape) * np.min(once)
  found = found * (1 + 1e-14)
  # A divergence is no more than one of a higher order.
  upwards = np.argsort(orders)
  least = np.minimum.accumulate(found[upwards][::-1])[::-1]
  result = np.empty_like(found)
  result[upwards] = least
  return result


def _checked(mean, shape):
  if not 1 <= mean < math.inf:
    raise ValueError(
      f'mean, of the number of runs, must be a finite number, 1 or more, not '
      f'{mean}.'
    )
  if not shape >= 0:
    raise ValueError(
      'shape must be 0 (logarithmic), 1 (geometric), any other positive number '
      f'(negative binomial) or infinite (Poisson), not {shape}.'
    )
  return mean, shape


def halting_probability(mean: float, shape: float) -> float:
  """Returns g such that K has this mean or, by rounding, a smaller one.

  Args and errors are those of `repeated_curve`, but that the shape is finite.

  >>> round(halting_probability(4.0, 1.0), 6)
  0.25
  """
  mean, shape = _checked(float(mean), float(shape))
  # The other end of the bisection.
  log_inverse = _log_inverse_halting(mean, shape) * (1 - 4e-13) - 4e-14
  return math.exp(-max(log_inverse, 0.0))


@functools.lru_cache(maxsize=256)
def _log_inverse_halting(mean: float, shape: float) -> float:
  """Returns x = log(1 / g) such that K has this mean, from above.

  The mean is shape (exp(x) - 1) / (1 - exp(-shape x)), or (exp(x) - 1) / x for
  shape 0; it grows with x, and is at least the latter.
  """
  low, high = 0.0, 720.0
  for _ in range(200):
    middle = 0.5 * (low + high)
    if special.exprel(middle) / special.exprel(-shape * middle) < mean:
      low = middle
    else:
      high = middle
  return high * (1 + 1e-13) + 1e-14
