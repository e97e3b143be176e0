"""Noise of PATE, from a budget."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional, Union

import attr
import numpy as np
import numpy.typing as npt
from dp_accounting import (
  ComposedDpEvent,
  DpEvent,
  NeighboringRelation,
  SelfComposedDpEvent,
)
from scipy import special

from tfdpflows._checks import check_fraction, check_integer, check_type
from tfdpflows.accounting import (
  ConfidentGNMaxDpEvent,
  GNMaxDpEvent,
  PrivacyBudget,
  PrivacyLedger,
  VoteThresholdDpEvent,
  calibrate_noise_multiplier,
  compute_epsilon,
)
from tfdpflows.accounting.mechanisms.votes import data_dependent_event
from tfdpflows.mechanisms.releases import differing_rows
from tfdpflows.pate.aggregators import (
  ConfidentGNMax,
  GNMax,
  checked_votes,
)
from tfdpflows.pate.teachers import TeacherEnsemble

# How far the threshold is below the expected agreement, in standard deviations
# of the noise: such a query passes with a probability of 84 %.
_BELOW = 1.0


@dataclasses.dataclass(frozen=True)
class QueryPlan:
  """Noise of GNMax or Confident GNMax; `plan_queries` makes it.

  Attributes:
    num_teachers: number of teachers.
    num_classes: number of classes.
    num_queries: how many queries may be asked.
    max_answers: how many of them are answered at most.
    sigma: standard deviation of the noise on each count.
    threshold: on the largest count; `None` for GNMax, without a check.
    sigma_threshold: standard deviation of the noise of the check, or `None`.
    probability_answered: of passing the check, at the expected agreement.
    probability_wrong: a bound on the probability that an answer is not the
      plurality, at the expected agreement, however other votes are spread.
    event: the `DpEvent` of all.
    neighboring_relation: for which the noise was calibrated.
  """

  num_teachers: int
  num_classes: int
  num_queries: int
  max_answers: int
  sigma: float
  threshold: Optional[float]
  sigma_threshold: Optional[float]
  probability_answered: float
  probability_wrong: float
  event: DpEvent
  neighboring_relation: NeighboringRelation = (
    NeighboringRelation.ADD_OR_REMOVE_ONE
  )

  def aggregator(
    self,
    teachers: Optional[TeacherEnsemble] = None,
    *,
    ledger: PrivacyLedger,
    **kwargs: Any,
  ) -> Union[GNMax, ConfidentGNMax]:
    """Returns the aggregator.

    Args:
      teachers: whose votes they are; if it is `None`, say `seeded` yourself.
      ledger: see the module `aggregators`.
      **kwargs: see there.

    Raises:
      ValueError: for another number of teachers or classes than planned, or a
        ledger with another neighboring relation.
    """
    own, other = self.neighboring_relation, ledger.neighboring_relation
    if own != other:
      raise ValueError(
        f'The plan is for {own.name}, and the ledger has {other.name}, '
        'under which the same noise may cost more: give plan_queries '
        'neighboring_relation=ledger.neighboring_relation.'
      )
    kind, parameters = GNMax, (self.sigma,)
    if self.threshold is not None:
      kind = ConfidentGNMax
      parameters = (
        self.threshold,
        self.sigma_threshold,
        self.sigma,
        self.max_answers,
      )
    sizes = {'num_teachers': self.num_teachers, 'num_classes': self.num_classes}
    if teachers is None:
      return kind(*parameters, **sizes, ledger=ledger, **kwargs)
    for name, planned in sizes.items():
      if getattr(teachers, name) != planned:
        raise ValueError(
          f'The plan is for {name} {planned}, and the ensemble has '
          f'{getattr(teachers, name)}.'
        )
    return teachers.aggregator(kind, *parameters, ledger=ledger, **kwargs)


def plan_queries(
  budget: PrivacyBudget,
  *,
  num_teachers: int,
  num_classes: int,
  num_queries: int,
  max_answers: Optional[int] = None,
  agreement: float = 0.9,
  check_share: float = 0.2,
  spent: Optional[DpEvent] = None,
  accountant: str = 'pld',
  neighboring_relation: NeighboringRelation = (
    NeighboringRelation.ADD_OR_REMOVE_ONE
  ),
) -> QueryPlan:
  """Returns the noise with which queries fit into a budget.

  The cost does not depend on the votes. Of the Gaussian budget, `sum
  (sensitivity / sigma)^2`, the checks get `check_share`, the answers the rest.
  The threshold is such that a query with the expected agreement passes with a
  probability of 84 %. Checks are not cheap: with few teachers, or many queries
  for each answer, their noise is above the agreement and they choose nothing;
  then leave them out and ask less.

  Args:
    budget: of all queries.
    num_teachers: number of teachers.
    num_classes: number of classes.
    num_queries: how many queries may be asked.
    max_answers: how many of them may be answered; all, without a check, if it
      is `None`.
    agreement: public guess of the share of teachers with the most frequent
      vote, for queries that should be answered, in (0, 1).
    check_share: share of the budget for checks, in (0, 1).
    spent: what the budget has to cover besides, such as a ledger's
      `committed_event`.
    accountant: name of the accountant.
    neighboring_relation: that of the ledger.

  Returns:
    A `QueryPlan`, whose `aggregator` answers the queries.

  Raises:
    BudgetExceededError: if `spent` alone exceeds the budget.
    ValueError: for a number out of range, or a neighboring relation for which
      nothing is proven.

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> budget = accounting.PrivacyBudget(epsilon=2., delta=1e-5)
  >>> plan = pate.plan_queries(
  ...   budget, num_teachers=250, num_classes=10, num_queries=200,
  ...   max_answers=100)
  >>> round(plan.threshold), round(plan.sigma_threshold), round(plan.sigma)
  (162, 63, 32)
  """
  num_teachers = check_integer('num_teachers', num_teachers)
  num_classes = check_integer('num_classes', num_classes, 2)
  num_queries = check_integer('num_queries', num_queries)
  agreement = check_fraction('agreement', agreement)
  check_share = check_fraction('check_share', check_share)
  if max_answers is not None:
    max_answers = check_integer('max_answers', max_answers)
    if max_answers > num_queries:
      raise ValueError(
        f'max_answers is {max_answers}; there are {num_queries} queries.'
      )
  answers = num_queries if max_answers is None else max_answers
  # Event, count, and standard deviation over a common noise.
  parts = [(GNMaxDpEvent, answers, math.sqrt(2 * answers))]
  if max_answers is not None:
    ratio = math.sqrt((1 - check_share) / check_share * num_queries)
    parts.append((VoteThresholdDpEvent, num_queries, ratio))

  def make_event(noise):
    return ComposedDpEvent(
      [
        SelfComposedDpEvent(event(noise * scale), count)
        for event, count, scale in parts
      ]
    )

  differing_rows(neighboring_relation)  # Refuses what is not proven.
  noise = calibrate_noise_multiplier(
    make_event,
    budget,
    spent=spent,
    accountant=accountant,
    neighboring_relation=neighboring_relation,
  )
  sigmas = [noise * scale for _, _, scale in parts]
  threshold = sigma_threshold = None
  answered = 1.0
  if max_answers is not None:
    sigma_threshold = sigmas[1]
    threshold = max(agreement * num_teachers - _BELOW * sigma_threshold, 0.0)
    above = (agreement * num_teachers - threshold) / sigma_threshold
    answered = float(special.ndtr(above))
  return QueryPlan(
    num_teachers=num_teachers,
    num_classes=num_classes,
    num_queries=num_queries,
    max_answers=answers,
    sigma=sigmas[0],
    threshold=threshold,
    sigma_threshold=sigma_threshold,
    probability_answered=answered,
    probability_wrong=_probability_wrong(
      agreement, num_classes, num_teachers / sigmas[0]
    ),
    event=make_event(noise),
    neighboring_relation=neighboring_relation,
  )


def _probability_wrong(agreement, num_classes, teachers):
  """Returns a bound on the probability that GNMax misses the plurality.

  A union bound over the other classes, whose terms are convex in the number of
  their votes: the sum is largest where as many as possible have as many votes
  as the plurality, one has the rest and others none.

  Args:
    agreement: share of the votes for the plurality.
    num_classes: number of classes.
    teachers: number of teachers, over the standard deviation of the noise.
  """
  shares = np.zeros(num_classes - 1)
  left = 1 - agreement
  for i in range(num_classes - 1):
    shares[i] = min(left, agreement)
    left -= shares[i]
  gaps = (agreement - shares) * teachers
  return float(min(np.sum(special.ndtr(-gaps / math.sqrt(2))), 1.0))


def data_dependent_epsilon(
  event: DpEvent,
  votes: npt.ArrayLike,
  delta: float,
  *,
  answered: Optional[npt.ArrayLike] = None,
) -> float:
  """Returns epsilon of queries by their votes; private, not to be published.

  It is computed from private votes, holds for these rows against their
  neighbours and not the other way round, and depends on the rows itself: it
  tells how much looser the published cost is. `smooth_sensitivity` publishes
  such a number, at a cost.

  Args:
    event: of one query: an `LNMaxDpEvent`, `GNMaxDpEvent` or
      `ConfidentGNMaxDpEvent`.
    votes: int `[queries, num_classes]`.
    delta: inside (0, 1).
    answered: bool `[queries]`, for `ConfidentGNMaxDpEvent`: which passed their
      check; all by default.

  Raises:
    TypeError: for an `event` that is no `DpEvent`.
    ValueError: for votes that are none, or `answered` of another shape.

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> votes = [[248, 2, 0]] * 100
  >>> round(pate.data_dependent_epsilon(
  ...   accounting.GNMaxDpEvent(40.), votes, 1e-5), 2)
  0.2
  """
  check_type('event', event, DpEvent, 'accounting.GNMaxDpEvent(sigma)')
  votes = np.asarray(votes)
  votes = checked_votes(votes, int(np.sum(votes[:1])), votes.shape[-1])
  events = [event] * len(votes)
  if answered is not None:
    answered = np.asarray(answered)
    confident = isinstance(event, ConfidentGNMaxDpEvent)
    if not confident or answered.shape != (len(votes),):
      raise ValueError(
        f'answered has shape {answered.shape}; it must be [{len(votes)}], and '
        'the event a ConfidentGNMaxDpEvent.'
      )
    events = [attr.evolve(event, answered=bool(a)) for a in answered]
  events = [data_dependent_event(*pair) for pair in zip(events, votes)]
  return compute_epsilon(ComposedDpEvent(events), delta, 'rdp')
