"""The accountant of privacy loss distributions: tight, always from above."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import NamedTuple, Optional

import dp_accounting

from tfdpflows.accounting import accountant, composition, mechanisms, rdp, zcdp
from tfdpflows.accounting.budget import (
  check_delta,
  check_epsilon,
  check_time_limit,
)
from tfdpflows.accounting.events import Relation
from tfdpflows.accounting.mechanisms.bounded_range import (
  BoundedRange,
  adaptive_profile,
)
from tfdpflows.accounting.pld import convolution

# More grid points than this for one mechanism, and the grid is made coarser.
_MAX_POINTS = 2**20
# The grid is made finer where it would matter and costs less points than this,
# or than this times the root of the number of losses.
_FINE_POINTS = 2**18
_FINE_POINTS_PER_ROOT = 300

# Of more losses than this, rounding leaves no bound.
_MOST_LOSSES = 10**15
# No grid is finer than this.
_FINEST = 1e-12
# Mechanisms on samples of which 'rdp' computes the curves when time is up: as
# many anyway, and so many more for each second of the limit, which is a third
# of the time that they take.
_COARSE = 32
_COARSE_PER_SECOND = 20
# Another accountant is named where its value is less by more than this share.
_NOTABLE = 1e-3
# Results kept, for the process and for an accountant.
_REMEMBERED = 4096

_Mechanism = mechanisms.Mechanism
_Counts = tuple[tuple[_Mechanism, int], ...]


class PLDAccountant(accountant.MechanismAccountant):
  """Accounts by composing privacy loss distributions numerically.

  Takes Gaussian, Laplace, exponential (bounded-range) and (epsilon, delta)
  mechanisms, also on samples, discrete Laplace noise and randomized response.
  Results are remembered for the process, so that asking after each block of a
  training run takes next to no time.

  Where another accountant of this package has a smaller bound, as when the
  numerics take too long or end without a finite epsilon (at a delta below about
  1e-29), that one is returned, with a sentence in `remarks` or `delta_remarks`.
  For exponential mechanisms alone, all at one epsilon, the optimum over all
  adaptive choices is computed, see `mechanisms.bounded_range`.

  Args:
    neighboring_relation: what two neighbouring tables are.
    value_discretization_interval: distance of the grid of losses, in nats. It
      is doubled until the arrays fit into memory, where losses are very large.
    time_limit: seconds that one epsilon or delta may take, about; it is looked
      at between the pieces of work. May be infinite.

  Raises:
    ValueError: if the interval is not a positive number, or the limit is
      negative.

  #### Formal guarantee
  Discretization, truncation and the rounding of Fourier transforms are bounded
  and added; see `mechanisms.losses` and `pld.convolution`. A result of another
  accountant has its own guarantee; which one is the smallest depends on the
  events alone.

  #### References
  Sommer, Meiser and Mohammadi 2019; Koskela, Jalko and Honkela 2020; Doroshenko
  et al. 2022; Zhu, Dong and Wang 2022.

  #### Example

  >>> accountant = PLDAccountant()
  >>> step = dp_accounting.PoissonSampledDpEvent(
  ...     0.01, dp_accounting.GaussianDpEvent(1.0))
  >>> accountant.compose(step, 1000).get_epsilon(1e-5)
  1.828...
  """

  name = 'pld'
  guarantee = 'upper_bound'
  question = 'loss_distributions'

  def __init__(
    self,
    neighboring_relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    *,
    value_discretization_interval: float = 1e-4,
    time_limit: float = 20.0,
  ):
    super().__init__(neighboring_relation)
    interval = float(value_discretization_interval)
    if not 0 < interval <= 1:
      raise ValueError(
        'value_discretization_interval must lie in (0, 1], for example 1e-4, '
        f'not {interval}.'
      )
    self._interval = interval
    self._time_limit = check_time_limit(time_limit)
    # What was answered, so that values and remarks cannot disagree.
    self._answers: dict[tuple, _Answer] = {}

  def is_surely_within(self, epsilon: float, delta: float) -> bool:
    """Whether zCDP says that `get_epsilon(delta)` is at most epsilon.

    Epsilon is never more than by zCDP (`_compared`), which takes no time to
    find: of a hundred charges that stay far below a budget, loss distributions
    need not be composed for each. `False` says nothing.
    """
    if self._is_non_private():
      return False
    other = zcdp.ZCDPAccountant(self.neighboring_relation)
    totals = dict(mechanisms.joined(self._totals))
    if any(other._reason(mechanism) is not None for mechanism in totals):
      return False
    other._totals = totals
    return bool(other.get_epsilon(check_delta(delta)) <= epsilon)

  def _epsilon_at(self, delta: float) -> float:
    return self._epsilon(delta).value

  def _delta_at(self, epsilon: float) -> float:
    return self._delta(epsilon).value

  def remarks(self, target_delta: float) -> tuple[str, ...]:
    """Returns a sentence that qualifies `get_epsilon(target_delta)`, if any.

    >>> accountant = PLDAccountant(time_limit=0.0)
    >>> event = dp_accounting.LaplaceDpEvent(3.25)
    >>> accountant.compose(event, 10).remarks(1e-6)
    ('pld: the limit of 0 s was passed at delta=1e-06; the value is that of
    rdp, which is looser.',)
    """
    remark = self._epsilon(check_delta(target_delta)).remark
    return (remark,) if remark else ()

  def delta_remarks(self, target_epsilon: float) -> tuple[str, ...]:
    """Returns a sentence that qualifies `get_delta(target_epsilon)`, if any."""
    remark = self._delta(check_epsilon(target_epsilon)).remark
    return (remark,) if remark else ()

  def _epsilon(self, delta: float) -> _Answer:
    answer = self._answer(_Question(True, delta, math.inf, f'delta={delta:g}'))
    # The grid blurs the ends of bounded losses, and may end above their sum.
    pure = mechanisms.pure_epsilon(self._totals.items())
    failure = mechanisms.failure(self._totals.items())
    if pure <= answer.value and failure <= delta:
      return _Answer(pure)
    return answer

  def _delta(self, epsilon: float) -> _Answer:
    answer = self._answer(
      _Question(False, epsilon, 1.0, f'epsilon={epsilon:g}')
    )
    pure = mechanisms.pure_epsilon(self._totals.items())
    failure = abs(mechanisms.failure(self._totals.items()))
    if pure <= epsilon and failure <= answer.value:
      return _Answer(failure)
    return answer

  def _answer(self, question: _Question) -> _Answer:
    """Returns an epsilon or delta, that of another accountant if it is less."""
    if self._is_non_private():
      return _Answer(question.nothing)
    # All plain Gaussians as one: that is no error, and one distribution less.
    counts = tuple(sorted(mechanisms.joined(self._totals).items()))
    if not counts:
      return _Answer(0.0)
    if (question, counts) not in self._answers:
      answer = self._compared(question, self._exact(question, counts), counts)
      _remember(self._answers, (question, counts), answer)
    return self._answers[question, counts]

  def _exact(self, question: _Question, counts: _Counts) -> _Answer:
    """Returns the value by loss distributions, or half a sentence why not."""
    key = (question, counts, self._interval)
    if key not in _RESULTS:
      check = functools.partial(
        _check_time, time.monotonic() + self._time_limit
      )
      try:
        value = _worse_direction(counts, self._interval, question, check)
      except _OutOfTimeError:
        return _Answer(
          question.nothing,
          f'pld: the limit of {self._time_limit:g} s was passed at '
          f'{question.where}',
        )
      _remember(_RESULTS, key, value)
    if _RESULTS[key] < question.nothing:
      return _Answer(_RESULTS[key])
    return _Answer(
      question.nothing,
      f'pld: no bound from loss distributions at {question.where}',
    )

  def _compared(
    self, question: _Question, answer: _Answer, counts: _Counts
  ) -> _Answer:
    """Returns an answer, or that of another accountant if it is less."""
    others = [
      composition.BasicAccountant,
      composition.AdvancedAccountant,
      zcdp.ZCDPAccountant,
    ]
    # Divergences of mechanisms on a sample take longer than everything else,
    # and are looser than loss distributions except where those give no bound.
    # For many exponential mechanisms the pair of one is loose.
    sampled = any(mechanism.on_sample for mechanism, _ in counts)
    envelope = any(
      isinstance(mechanism, BoundedRange) for mechanism, _ in counts
    )
    if answer.remark or envelope or not sampled:
      others.append(rdp.RDPAccountant)
    most = max(_COARSE, _COARSE_PER_SECOND * self._time_limit)
    # All plain Gaussians are one there, too.
    totals = dict(counts)
    few = _coarser(totals, most)
    value, name = self._adaptive(question, counts), 'bounded range'
    for cls in others:
      other = cls(self.neighboring_relation)
      if all(other._reason(mechanism) is None for mechanism, _ in counts):
        fast = answer.remark or cls is rdp.RDPAccountant
        other._totals = few if fast else totals
        found = question.ask(other, min(value, answer.value))
        # Not a number is no bound.
        if found < value:
          value, name = found, cls.name
    if not value < answer.value:
      if not answer.remark:
        return answer
      return answer._replace(
        remark=f'{answer.remark}, and none from any other.'
      )
    remark = None
    if name == 'bounded range':
      pass
    elif answer.remark:
      remark = f'{answer.remark}; the value is that of {name}, which is looser.'
      if len(few) < len(counts):
        remark += (
          f' To save time it counts {len(counts)} kinds of mechanisms as '
          f'{len(few)} that cost no less.'
        )
    elif value < answer.value * (1 - _NOTABLE):
      remark = (
        f'pld: the value at {question.where} is that of {name}, which is '
        'tighter here.'
      )
    return _Answer(value, remark)

  def _adaptive(self, question: _Question, counts: _Counts) -> float:
    """Returns the optimum if all are exponential, at the largest epsilon."""
    number = sum(count for _, count in counts)
    if number < 2 or not all(
      isinstance(mechanism, BoundedRange) and not mechanism.on_sample
      for mechanism, _ in counts
    ):
      return question.nothing
    epsilon = max(mechanism.epsilon for mechanism, _ in counts)
    profile = adaptive_profile(epsilon, number)
    if profile is None:
      return question.nothing
    bound = profile.epsilon_at if question.of_epsilon else profile.delta_at
    return bound(question.at)


class _Question(NamedTuple):
  """A request for an epsilon or a delta."""

  of_epsilon: bool  # Whether epsilon is wanted, else delta.
  at: float  # The delta or epsilon.
  nothing: float  # The value that always holds.
  where: str  # The delta or epsilon in words.

  def ask(self, other: dp_accounting.PrivacyAccountant, known: float) -> float:
    """Returns the value of another accountant, or `nothing` if not below.

    Some accountants find a delta by many epsilons; one tells whether there is
    more to find than a rounding below what is `known`.
    """
    if self.of_epsilon:
      return other.get_epsilon(self.at)
    less = known * (1 - 2e-7)
    if 0 < less < 1 and other.get_epsilon(less) > self.at:
      return self.nothing
    return other.get_delta(self.at)


class _Answer(NamedTuple):
  value: float
  remark: Optional[str] = None


class _OutOfTimeError(Exception):
  """More time was spent than is allowed."""


def _check_time(end: float) -> None:
  if time.monotonic() >= end:
    raise _OutOfTimeError()


# Values by loss distributions alone, by question.
_RESULTS: dict[tuple, float] = {}


def _remember(results: dict, key: tuple, value) -> None:
  while len(results) >= _REMEMBERED:
    results.pop(next(iter(results)), None)
  results[key] = value


def _coarser(
  totals: dict[_Mechanism, int], most: float
) -> dict[_Mechanism, int]:
  """Returns counts of mechanisms that cost no less, few of them on samples.

  Those on samples of about one size, with about one parameter, are counted as
  the worst of these: with the largest probability q and the least noise or
  largest epsilon; so are randomized responses over equal numbers of buckets.

  - A range of losses lies within a larger one.
  - More noise is less noise and some more, for Gaussian and Laplace noise, for
    randomized answers, and for discrete Laplace noise: with y < y', a geometric
    variable of y' is one of y plus an independent one, which is zero with
    probability (1 - y') y / ((1 - y) y'), and else geometric of y'. There a
    larger shift is easier to see, as thresholds are the best tests.
  - With p = q / q', (1 - q) Q + q P is p ((1 - q') Q + q' P) + (1 - p) Q, so
    that by joint convexity it is no further from Q than what it is made of. For
    the pair of a null row, both sides of which hold (1 - q) N(-1), likewise.
  - Of mixtures, each part counts as the worst of that place, with the largest
    of its weights: more than one in sum is only more.

  There are about `most` of these, or `totals` itself is returned.
  """
  sampled = {x: _coordinates(x) for x in totals if x.work}
  if sum(x.work for x in sampled) <= most:
    return totals
  width = 1e-3
  logs = [[math.log(x) for x in numbers] for _, numbers in sampled.values()]
  least = [
    min(each) for each in itertools.zip_longest(*logs, fillvalue=math.inf)
  ]
  while True:
    cells: dict[tuple, list] = {}
    for mechanism, (form, numbers) in sampled.items():
      place = [
        math.floor((math.log(number) - low) / width)
        for number, low in zip(numbers, least)
      ]
      cells.setdefault((form, *place), []).append(mechanism)
    work = sum(members[0].work for members in cells.values())
    if work <= most or width > 1e4:
      break
    width *= 2
  result = {x: totals[x] for x in totals if x not in sampled}
  for members in cells.values():
    worst = functools.reduce(_worst_of, members)
    count = sum(totals[x] for x in members)
    result[worst] = result.get(worst, 0) + count
  return result


def _coordinates(mechanism: _Mechanism) -> tuple[tuple, tuple[float, ...]]:
  """Returns what mechanisms of a group share, and what they are close in."""
  if isinstance(mechanism, mechanisms.Mixture):
    parts = [(_coordinates(part), weight) for part, weight in mechanism.parts]
    form = (type(mechanism), *(shared for (shared, _), _ in parts))
    return form, sum(((*near, weight) for (_, near), weight in parts), ())
  fields = [field.name for field in dataclasses.fields(mechanism)]
  shared = [getattr(mechanism, x) for x in fields if x not in mechanism.worst]
  near = [getattr(mechanism, field) for field in mechanism.worst]
  return (type(mechanism), *shared), tuple(near)


def _worst_of(one: _Mechanism, other: _Mechanism) -> _Mechanism:
  """Returns a mechanism that costs no less than either of two of one form."""
  if isinstance(one, mechanisms.Mixture):
    return mechanisms.Mixture(
      tuple(
        (_worst_of(part, another), max(weight, at_least))
        for (part, weight), (another, at_least) in zip(one.parts, other.parts)
      )
    )
  worst = {
    field: worst(getattr(one, field), getattr(other, field))
    for field, worst in one.worst.items()
  }
  return dataclasses.replace(one, **worst)


def _worse_direction(
  counts: _Counts,
  interval: float,
  question: _Question,
  check: Callable[[], None],
) -> float:
  """Returns the larger value of both directions, on a grid that fits."""
  if sum(count for _, count in counts) > _MOST_LOSSES:
    return question.nothing
  ranges = []
  for mechanism, _ in counts:
    check()
    ranges.append(mechanism.loss_range())
  width = max(high - low for low, high in ranges)
  interval = _fine_enough(counts, width, interval)
  while interval <= convolution.COARSEST:
    if width / interval > _MAX_POINTS:
      interval *= 2
      continue
    pairs = []
    for mechanism, _ in counts:
      check()
      pairs.append(mechanisms.loss_distributions(mechanism, interval))
    directions = [[pair[0] for pair in pairs]]
    if any(remove is not add for remove, add in pairs):
      directions.append([pair[1] for pair in pairs])
    numbers = [count for _, count in counts]
    bound = (
      convolution.epsilon_at if question.of_epsilon else convolution.delta_at
    )
    try:
      return max(
        bound(question.at, list(zip(parts, numbers)), interval, check)
        for parts in directions
      )
    except convolution.GridTooFineError as error:
      # On a coarser grid another tilt may do with a smaller window.
      interval *= 2 ** max(int(math.log2(error.excess)) // 2, 1)
  return question.nothing


def _fine_enough(counts: _Counts, width: float, interval: float) -> float:
  """Returns a finer interval where the grid would blur much smaller losses.

  A grid adds up to interval^2 / 4 to the variance of each loss. Any grid gives
  an upper bound; this only chooses a tighter one.
  """
  steps = sum(count for _, count in counts)
  scales = [mechanism.loss_scale() for mechanism, _ in counts]
  # Not `scale**2`, which raises where this is infinite.
  variance = sum(x * x * count for x, (_, count) in zip(scales, counts))
  width = max(width, 20 * math.sqrt(variance))
  points = max(_FINE_POINTS, _FINE_POINTS_PER_ROOT * math.sqrt(steps))
  while (
    steps * interval**2 / 4 > 1e-4 * variance
    and 2 * width / interval < points
    and interval > _FINEST
  ):
    interval /= 2
  largest = counts[0][0].largest_step() if len(counts) == 1 else None
  if largest is not None and interval < largest < interval * _MAX_POINTS:
    interval = largest / math.ceil(largest / interval)
  return interval
