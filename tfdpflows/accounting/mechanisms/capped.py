"""Gaussian noise on a Poisson sample whose size is capped, and mixtures.

#### Formal guarantee
A cap b on a Poisson sample of noise of the Gaussian kind (as in Ganesh 2025,
"Tighter privacy analysis for truncated Poisson sampling"). Let k of the m other
rows be drawn; k is independent of the row that differs, so that the divergence
is at most the average over k < b and over k >= b (joint convexity).

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
  and Gaboardi 2018 gives what it gives for a fixed size (`sampling`). So it
  does with the null row in place of x, which takes the place of one of the b as
  well.

Adding or removing, m is n or n - 1, whether the table of n rows is the smaller
or the larger one. Both are covered by the smaller t for the second case with
the larger p, the larger t for what is not the first, and for their difference
the second case with q for p: that dominates both cases, as to replace the
output by a fresh one of w0, with probability 1 - p / q, makes (1 - p) w0 + p w1
of (1 - q) w0 + q w1. Where accountants do better without, a mixture counts as
its likeliest part, and a failure with the probability of the others.

One of several mechanisms is drawn, with probabilities that have nothing to do
with the row that differs: by joint convexity the average of their divergences
is a bound, and that is the divergence of the average of their distributions of
losses.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import dp_accounting
import numpy as np
from scipy import special

from tfdpflows.accounting import events
from tfdpflows.accounting.events import Relation, decompose, event_number
from tfdpflows.accounting.mechanisms import base, losses
from tfdpflows.accounting.mechanisms.epsilon_delta import EpsilonDelta
from tfdpflows.accounting.mechanisms.sampled import ABSENT, PRESENT

_EPS = float(np.finfo(np.float64).eps)
_ROUNDING = 1e-14


@dataclasses.dataclass(frozen=True)
class Mixture(base.Mechanism):
  """One of several mechanisms, drawn independently of the row that differs."""

  name = 'mixture'
  words = 'capped Gaussian'
  takes_delta = True
  on_sample = True

  # With their probabilities, the likeliest first. The sum may be above one, by
  # rounding.
  parts: tuple[tuple[base.Mechanism, float], ...]

  @property
  def work(self) -> float:
    return sum(part.work for part, _ in self.parts)

  def inner(self) -> tuple[base.Mechanism, ...]:
    return tuple(part for part, _ in self.parts)

  def renyi(self, orders: np.ndarray) -> np.ndarray:
    """The moment is the average of those of the parts."""
    a, key = orders, tuple(orders.tolist())
    moments = [
      math.log(weight) + (a - 1) * base.renyi_curve(part, key)
      for part, weight in self.parts
    ]
    moment = np.logaddexp.reduce(moments, axis=0)
    return (moment + _ROUNDING * (1 + np.abs(moment))) / (a - 1)

  def pure_epsilon(self) -> float:
    return max(part.pure_epsilon() for part in self.inner())

  def epsilon_at(self, log_delta: np.ndarray) -> np.ndarray:
    """The average of divergences is no more than the largest."""
    return np.max([part.epsilon_at(log_delta) for part in self.inner()], axis=0)

  def loss_range(self) -> tuple[float, float]:
    ranges = [part.loss_range() for part in self.inner()]
    return min(low for low, _ in ranges), max(high for _, high in ranges)

  def loss_scale(self) -> float:
    scales = [
      math.sqrt(weight) * part.loss_scale() for part, weight in self.parts
    ]
    return math.hypot(*scales)

  def largest_step(self) -> None:
    return None

  def loss_distributions(self, interval: float) -> losses.LossPair:
    """The average of the distributions of the parts."""
    parts = [
      (base.loss_distributions(part, interval), weight)
      for part, weight in self.parts
    ]
    symmetric = all(remove is add for (remove, add), _ in parts)
    found = []
    for direction in range(1 if symmetric else 2):
      each = [(pair[direction], weight) for pair, weight in parts]
      lower = min(part.lower for part, _ in each)
      size = max(part.lower + len(part.masses) for part, _ in each) - lower
      masses, infinity = np.zeros(size), 0.0
      for part, weight in each:
        start = part.lower - lower
        masses[start : start + len(part.masses)] += weight * part.masses
        infinity += weight * part.infinity
      infinity = min(infinity * (1 + 8 * _EPS), 1.0)
      found.append(losses.with_moments(lower, masses, infinity))
    return found[0], found[-1]


def without_mixtures(
  composition: base.Composition,
) -> dict[base.Mechanism, int]:
  """Returns the likeliest part of each mixture, and a failure for the others.

  What is private for these counts is so for `composition`. Mixtures that are
  parts of other mechanisms stay.

  >>> from tfdpflows.accounting.mechanisms import Gaussian
  >>> mixture = Mixture(((Gaussian(2.0), 0.75), (Gaussian(1.0), 0.25)))
  >>> [mechanism.name for mechanism in without_mixtures([(mixture, 1)])]
  ['gaussian', 'epsilon_delta']
  """
  found: dict[base.Mechanism, int] = {}
  for mechanism, count in composition:
    left = [mechanism]
    if isinstance(mechanism, Mixture):
      rest = math.fsum(weight for _, weight in mechanism.parts[1:])
      if len(mechanism.parts) > 2:
        rest = min(math.nextafter(rest, 2.0), 1.0)
      left = [mechanism.parts[0][0], EpsilonDelta(0.0, rest)]
    for part in left:
      found[part] = found.get(part, 0) + count
  return found


@events.event_class
class TruncatedSubsampledGaussianDpEvent(dp_accounting.DpEvent):
  """A Gaussian mechanism on a Poisson sample of capped size.

  A sample of more than `truncated_batch_size` rows is cut down to that many,
  chosen without looking at them.

  Attributes:
    dataset_size: number of rows n; public.
    sampling_probability: probability q of each row to be drawn.
    truncated_batch_size: the cap b.
    noise_multiplier: noise standard deviation over the clipping norm.

  #### Formal guarantee
  Where the other rows do not fill the sample, accounted as the mechanism
  without the cap, else as one that replaces a row of the sample with the
  probability that the row in question is kept (Ganesh 2025);
  `tfdpflows.accounting.mechanisms.capped` has the proof.
  """

  dataset_size: int
  sampling_probability: float
  truncated_batch_size: int
  noise_multiplier: float


@events.register(
  TruncatedSubsampledGaussianDpEvent,
  'Gaussian mechanism, noise multiplier {0.noise_multiplier:.6g}, on '
  'a Poisson sample with probability {0.sampling_probability:.6g} of '
  '{0.dataset_size} rows, cut to {0.truncated_batch_size} rows',
)
def _(event, relation):
  q = event_number(event, 'sampling_probability', 0.0, 1.0)
  gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
  limit = cap(event, relation)
  plain = decompose(dp_accounting.PoissonSampledDpEvent(q, gaussian), relation)
  if limit.most == 0 or not plain or base.NonPrivate() in plain:
    return list(plain.items())
  (uncapped,) = plain
  (exchange,) = decompose(gaussian, Relation.REPLACE_ONE)

  def on_sample(probability: float) -> base.Mechanism:
    if probability == 1:
      return exchange
    row = ABSENT if relation is Relation.ADD_OR_REMOVE_ONE else PRESENT
    return dataclasses.replace(
      exchange, sampling_probability=probability, row=row
    )

  weights: dict[base.Mechanism, float] = {}
  for part, weight in (
    (uncapped, 1 - limit.most if limit.most < 1 else 0.0),
    (on_sample(limit.share), limit.least),
    (on_sample(q), limit.most - limit.least),
  ):
    if weight > 0:
      # Upwards: a sum of more than one is only more.
      weight = min(math.nextafter(weight, 2.0), 1.0)
      weights[part] = min(weights.get(part, 0.0) + weight, 1.0)
  parts = sorted(weights.items(), key=lambda pair: (-pair[1], pair[0]))
  if len(parts) == 1:
    return [(parts[0][0], 1)]
  return [(Mixture(tuple(parts)), 1)]


def overflow(event: TruncatedSubsampledGaussianDpEvent) -> float:
  """Returns P[Binomial(n, q) >= cap], rounded upwards.

  Raises:
    ValueError: if a parameter is outside its range.

  >>> overflow(TruncatedSubsampledGaussianDpEvent(3, 0.5, 3, 1.0))
  0.125...
  """
  n = event_number(event, 'dataset_size', 1, math.inf)
  least = event_number(event, 'truncated_batch_size', 1, math.inf)
  q = event_number(event, 'sampling_probability', 0.0, 1.0)
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
  """The effect of the cap, as in the proof above."""

  least: float  # Probability that the other rows fill the sample, from below.
  most: float  # The same from above.
  share: float  # That the row that differs is then kept, from above.


def cap(event: TruncatedSubsampledGaussianDpEvent, relation: Relation) -> Cap:
  """Returns the effect of the cap of an event.

  Raises:
    ValueError: if a parameter is outside its range.

  >>> relation = Relation.REPLACE_ONE
  >>> event = TruncatedSubsampledGaussianDpEvent(3, 0.5, 1, 1.0)
  >>> cap(event, relation)
  Cap(least=0.7499999..., most=0.7500000..., share=0.2222222...)
  """
  most = overflow(event)  # Checks the parameters.
  n, b = int(event.dataset_size), int(event.truncated_batch_size)
  q = float(event.sampling_probability)
  others = [n - 1]
  if relation is Relation.ADD_OR_REMOVE_ONE:
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
  """Returns a bound on the relative error of `_binomial_tail`.

  Against 60 digits the error was a tenth of this.
  """
  return min(1e-9 + 4 * n * 2.0**-53, 0.1)


def _binomial_tail(n: int, least: int, q: float) -> float:
  """Returns P[Binomial(n, q) >= least], up to a share of `_tail_error(n)`."""
  if least <= 0:
    return 1.0
  if least > n or q == 0:
    return 0.0
  return float(special.betainc(least, n - least + 1, q))
