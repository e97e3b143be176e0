"""Private answers to queries, from the votes of teachers.

Every aggregator is made with

- `num_teachers` and `num_classes`: each teacher has one vote per query;
- `ledger`: the `PrivacyLedger` that is charged before a query is answered;
- `randomness`: a `tfdpflows.randomness.Randomness`, or `None` for one that
  nobody knows;
- `label`: name of its charges in the ledger and of its streams of random
  numbers; one label serves one aggregator;
- `seeded`: whether shards or teachers came from a seed that may be known, which
  statements then report; `TeacherEnsemble.aggregator` knows it;
- `privacy_unit`: the name of the units whose rows all train one teacher, as the
  ledger has it; `None` for rows. `TeacherEnsemble.aggregator` knows that too;
- `resume`: whether queries that the ledger has charged under this label, by an
  earlier process, are repeated: in the same order, with the same votes,
  parameters and `randomness`, which gives the same answers again;

and has one method, `query`. It takes votes, int `[queries, num_classes]`: how
many teachers vote for each class. It returns answers, int64 `[queries]`: a
class, or -1 where there is no answer. Queries of one call are charged together,
and refused together.

#### Formal guarantee

The votes come from teachers of which each was trained on its own shard of the
rows (`partition`), and are about inputs that depend on the rows through earlier
answers alone. Then neighbouring tables change the vote of one teacher,
the same one in all queries, and the answers are as private as the events that
are charged for them. The votes themselves are private: they must go nowhere
else. So is whether there is an error: a message names queries, no votes.

#### References

Papernot et al. 2017, "Semi-supervised knowledge transfer for deep learning from
private training data". Papernot et al. 2018, "Scalable private learning with
PATE". Lyu, Su and Li 2017, "Understanding the sparse vector technique for
differential privacy".
"""

from __future__ import annotations

import abc
import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import numpy.typing as npt
from absl import logging
from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from tfdpflows._checks import (
  Fixed,
  Home,
  check_fraction,
  check_integer,
  check_positive,
)
from tfdpflows.accounting import (
  BudgetExceededError,
  ExponentialMechanismDpEvent,
  GNMaxDpEvent,
  LedgerError,
  LNMaxDpEvent,
  PrivacyLedger,
  SparseVectorDpEvent,
  VoteThresholdDpEvent,
)
from tfdpflows.accounting.ledger import check_ledger
from tfdpflows.mechanisms.releases import charge_release, differing_rows
from tfdpflows.randomness import Randomness

NO_ANSWER = -1
# Positive answers of the sparse vector technique to queries without a vote.
_MOST_BY_CHANCE = 0.05
# Predictions that are counted at one time.
_CHUNK = 1 << 24


def count_votes(predictions: npt.ArrayLike, num_classes: int) -> np.ndarray:
  """Returns how many teachers vote for each class.

  Args:
    predictions: int `[num_teachers, queries]`, the class that each votes for.
    num_classes: number of classes.

  Returns:
    int32 `[queries, num_classes]`.

  Raises:
    ValueError: for another shape or dtype, or a class out of range.

  #### Example

  >>> from tfdpflows.pate import count_votes
  >>> count_votes([[0, 2], [0, 1], [1, 2]], 3).tolist()
  [[2, 1, 0], [0, 1, 2]]
  """
  predictions = np.asarray(predictions)
  if predictions.ndim != 2 or predictions.dtype.kind not in 'iu':
    raise ValueError(
      f'predictions have shape {predictions.shape} and dtype '
      f'{predictions.dtype}; they must be integers [teachers, queries].'
    )
  teachers, queries = predictions.shape
  counts = np.zeros([queries, num_classes], np.int32)
  step = max(_CHUNK // max(teachers, 1), 1)
  for start in range(0, queries, step):
    part = predictions[:, start : start + step]
    for c in range(num_classes):
      counts[start : start + step, c] = np.count_nonzero(part == c, axis=0)
  if (counts.sum(1) != teachers).any():
    raise ValueError(
      f'A prediction is no class: all must be from 0 to {num_classes - 1}.'
    )
  return counts


def checked_votes(
  votes: npt.ArrayLike, num_teachers: int, num_classes: int
) -> np.ndarray:
  """Returns votes as int64 `[queries, num_classes]`, if they are counts.

  Raises:
    ValueError: if a row is not one vote of each teacher.
  """
  if isinstance(votes, np.ma.MaskedArray):
    raise ValueError('votes are a masked array: fill it first.')
  votes = np.asarray(votes)
  if votes.ndim != 2 or votes.shape[1] != num_classes:
    raise ValueError(
      f'votes have shape {list(votes.shape)}; they must be [queries, '
      f'{num_classes}], how many teachers vote for each class.'
    )
  if votes.dtype.kind not in 'iu':
    whole = votes.dtype.kind == 'f' and np.isfinite(votes).all()
    if not (whole and (votes == np.floor(votes)).all()):
      raise ValueError(
        f'votes have dtype {votes.dtype} and are no counts: they must be '
        'whole numbers, without NaN. Count votes with pate.count_votes.'
      )
  # Each by itself first: no sum is too large.
  bad = ((votes < 0) | (votes > num_teachers)).any(1)
  bad[~bad] = votes[~bad].astype(np.int64).sum(1) != num_teachers
  if bad.any():
    raise ValueError(
      f'The votes on query {int(np.argmax(bad))} are not those of '
      f'{num_teachers} teachers, one each: counts must be zero or more '
      'and have that sum.'
    )
  return votes.astype(np.int64)


def _checked_threshold(threshold):
  if not 0 <= float(threshold) < np.inf:
    raise ValueError(
      f'threshold is {threshold}; it must be a number of votes, zero or more.'
    )
  return float(threshold)


class OneAtATime(Fixed):
  """What counts its answers: in one process, and in one thread at a time.

  Copies would count by themselves, and draw the same noise.
  """

  def __init__(self):
    self._lock = threading.RLock()
    self._answering = False
    self._home = Home()

  def __reduce_ex__(self, protocol):
    raise TypeError(
      f'A {type(self).__name__} counts its answers and cannot be copied: make '
      'a new one, with a charge of its own.'
    )

  @contextlib.contextmanager
  def _alone(self) -> Iterator[None]:
    """Keeps other calls out until this one has counted what it answers.

    Other threads wait. A call inside of another one, from a signal handler or a
    ledger's code, cannot wait for it and is refused.
    """
    self._home.check(
      f'This {type(self).__name__} was made',
      'which does not know what is answered here. Ask it there.',
      LedgerError,
    )
    with self._lock:
      if self._answering:
        raise LedgerError(
          f'This {type(self).__name__} is asked while it answers an earlier '
          'call of the same thread. Ask it again after that.'
        )
      self._answering = True
      try:
        yield
      finally:
        self._answering = False


class Aggregator(OneAtATime, abc.ABC):
  """Answers queries from votes, privately; see the module `aggregators`.

  A new one has the names of its parameters, and `_answer`, which charges what
  it runs before it draws noise.

  Attributes:
    num_teachers: number of votes on each query.
    num_classes: number of classes.
    ledger: the `PrivacyLedger`.
    label: of its charges.
  """

  _LABEL = 'votes'
  # Its own public parameters.
  _PARAMETERS: tuple[str, ...] = ()

  def __init__(
    self,
    *,
    num_teachers: int,
    num_classes: int,
    ledger: PrivacyLedger,
    randomness: Optional[Randomness] = None,
    label: Optional[str] = None,
    resume: bool = False,
    seeded: bool = False,
    privacy_unit: Optional[str] = None,
  ):
    super().__init__()
    self.num_teachers = check_integer('num_teachers', num_teachers)
    self.num_classes = check_integer('num_classes', num_classes, 2)
    self.ledger = ledger
    self.label = self._LABEL if label is None else str(label)
    if resume and randomness is None:
      raise ValueError(
        'resume=True repeats queries, which takes the same random numbers: '
        'give the `randomness` of then, made from its `secret`.'
      )
    check_ledger(ledger)
    differing_rows(ledger.neighboring_relation)
    self._randomness = Randomness() if randomness is None else randomness
    self._resume = resume
    self._seeded = bool(seeded)
    self._privacy_unit = privacy_unit
    self._calls = 0

  def query(self, votes: npt.ArrayLike) -> np.ndarray:
    """Charges the ledger, then returns an answer to each query.

    Args:
      votes: int `[queries, num_classes]`; each row sums to `num_teachers`.

    Returns:
      int64 `[queries]`: a class, or -1 where there is no answer.

    Raises:
      ValueError: for votes that are none, or to repeat other queries.
      BudgetExceededError: if the ledger refuses the charge, or nothing is left
        of a number of answers: nothing is answered.
      LedgerError: if the ledger is closed or cannot be written, to repeat
        queries with other votes, parameters or random numbers, or for a call
        inside of another one.
    """
    votes = self._checked(votes)
    return self._locked(votes)

  def _locked(self, votes, *args):
    if not len(votes):
      return np.zeros(0, np.int64)
    with self._alone():
      return self._answer(votes, *args)

  @abc.abstractmethod
  def _answer(self, votes: np.ndarray) -> np.ndarray:
    """Returns answers to votes that are checked."""

  def _facts(self) -> dict[str, Any]:
    """Returns the public parameters, for the ledger."""
    return {name: getattr(self, name) for name in self._PARAMETERS}

  def _charged(
    self,
    event: DpEvent,
    arrays: list,
    count: int,
    **facts: Any,
  ) -> np.random.Generator:
    """Charges runs of an event; returns random numbers for these alone."""
    label = self._next_label()
    randomness = charge_release(
      self.ledger,
      event,
      label=label,
      randomness=self._randomness,
      facts={
        'release': type(self).__name__,
        'num_teachers': self.num_teachers,
        'num_classes': self.num_classes,
        **self._facts(),
        **facts,
      },
      arrays=arrays,
      count=count,
      resume=self._resume,
      seeded=self._seeded,
      privacy_unit=self._privacy_unit,
    )
    return randomness.numpy(label)

  def _next_label(self):
    self._calls += 1
    return f'{self.label} {self._calls}'

  def _checked(self, votes):
    return checked_votes(votes, self.num_teachers, self.num_classes)

  def _used_up(self, what: str) -> BudgetExceededError:
    return BudgetExceededError(
      self.ledger.budget,
      None,
      None,
      message=(
        f'{self.label!r} has given its {what}; nothing was charged. Make '
        'another aggregator, if the budget has room for it.'
      ),
    )


class LNMax(Aggregator):
  """The class with most votes after Laplace noise (Papernot et al. 2017).

  Args:
    gamma: the noise on each count has the scale `1 / gamma`.
    **kwargs: see the module `aggregators`.

  #### Formal guarantee

  `LNMaxDpEvent(gamma)` per query, 2 gamma-private.

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> aggregator = pate.LNMax(
  ...   gamma=.05, num_teachers=250, num_classes=3,
  ...   ledger=accounting.PrivacyLedger())
  >>> aggregator.query([[0, 250, 0], [250, 0, 0]]).tolist()
  [1, 0]
  """

  _PARAMETERS = ('gamma',)

  def __init__(self, gamma: float, **kwargs: Any):
    super().__init__(**kwargs)
    self.gamma = check_positive('gamma', gamma)

  def _answer(self, votes):
    rng = self._charged(LNMaxDpEvent(self.gamma), [votes], len(votes))
    noise = rng.laplace(scale=1 / self.gamma, size=votes.shape)
    return np.argmax(votes + noise, axis=1)


class GNMax(Aggregator):
  """The class with most votes after Gaussian noise (Papernot et al. 2018).

  Args:
    sigma: standard deviation of the noise on each count.
    **kwargs: see the module `aggregators`.

  #### Formal guarantee

  `GNMaxDpEvent(sigma)` per query: a Gaussian mechanism of l2 sensitivity
  sqrt(2), as a vote that changes leaves one class and goes to another.

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> ledger = accounting.PrivacyLedger(
  ...   budget=accounting.PrivacyBudget(epsilon=1., delta=1e-5))
  >>> aggregator = pate.GNMax(
  ...   sigma=40., num_teachers=250, num_classes=3, ledger=ledger)
  >>> aggregator.query([[0, 250, 0], [250, 0, 0]]).tolist()
  [1, 0]
  >>> round(ledger.epsilon(), 3)
  0.16
  """

  _PARAMETERS = ('sigma',)

  def __init__(self, sigma: float, **kwargs: Any):
    super().__init__(**kwargs)
    self.sigma = check_positive('sigma', sigma)

  def _answer(self, votes):
    rng = self._charged(GNMaxDpEvent(self.sigma), [votes], len(votes))
    return np.argmax(votes + rng.normal(0, self.sigma, votes.shape), axis=1)


class ExponentialVote(Aggregator):
  """A class drawn by the exponential mechanism, the votes being its utility.

  Class j is drawn with a probability proportional to `exp(epsilon n_j / 2)`, as
  in DP-AD (Waites and Cummings 2021, algorithm 2).

  Args:
    epsilon: of one query.
    **kwargs: see the module `aggregators`.

  #### Formal guarantee

  A vote that changes moves each count by at most 1, so that a query is
  `ExponentialMechanismDpEvent(epsilon)`.

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> aggregator = pate.ExponentialVote(
  ...   epsilon=1., num_teachers=100, num_classes=2,
  ...   ledger=accounting.PrivacyLedger())
  >>> aggregator.query([[98, 2]]).tolist()
  [0]
  """

  _PARAMETERS = ('epsilon',)

  def __init__(self, epsilon: float, **kwargs: Any):
    super().__init__(**kwargs)
    self.epsilon = check_positive('epsilon', epsilon)

  def _answer(self, votes):
    event = ExponentialMechanismDpEvent(self.epsilon)
    rng = self._charged(event, [votes], len(votes))
    utility = self.epsilon / 2 * votes
    return np.argmax(utility + rng.gumbel(size=votes.shape), axis=1)


class ConfidentGNMax(Aggregator):
  """GNMax, for queries on which teachers agree (Papernot et al. 2018).

  A query is answered if its largest count and Gaussian noise reach a threshold
  together (algorithm 1), until `max_answers` were given.

  Args:
    threshold: on the largest count, such as 0.8 of the teachers.
    sigma_threshold: standard deviation of the noise of that check.
    sigma: standard deviation of the noise on each count of an answer.
    max_answers: the largest number of answers; public. All of them are charged
      with the first query, and each query for its check.
    **kwargs: see the module `aggregators`.

  #### Formal guarantee

  A query is a Gaussian mechanism of sensitivity 1 (`VoteThresholdDpEvent`);
  where its outcome is positive, one of sensitivity sqrt(2) (`GNMaxDpEvent`)
  follows. So noisy outcomes decide which queries have an answer. But where
  Gaussian mechanisms are chosen one after another, by outcomes of earlier ones,
  and `sum (sensitivity / sigma)^2` is bounded by a public number, all together
  are as private as one Gaussian mechanism with that sum (Smith and Thakurta
  2022, "Fully adaptive composition for Gaussian differential privacy"). That
  is what is charged: a check for each query, and `max_answers` answers, whether
  they are given or not.

  The number of queries has to be public, or bounded by a public number: those
  of one call are all charged, also after the last answer. Where queries are
  asked one by one until the answers are used up, how many there are tells of
  the votes, and the ledger's epsilon does too: claim what as many checks cost
  as there might have been.

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> aggregator = pate.ConfidentGNMax(
  ...   threshold=200., sigma_threshold=10., sigma=20., max_answers=5,
  ...   num_teachers=250, num_classes=3, ledger=accounting.PrivacyLedger())
  >>> aggregator.query([[0, 250, 0], [100, 90, 60]]).tolist()
  [1, -1]
  """

  _PARAMETERS = ('threshold', 'sigma_threshold', 'sigma', 'max_answers')

  def __init__(
    self,
    threshold: float,
    sigma_threshold: float,
    sigma: float,
    max_answers: int,
    **kwargs: Any,
  ):
    super().__init__(**kwargs)
    self.threshold = _checked_threshold(threshold)
    self.sigma_threshold = check_positive('sigma_threshold', sigma_threshold)
    self.sigma = check_positive('sigma', sigma)
    self.max_answers = check_integer('max_answers', max_answers)
    self._num_answered = 0
    self._answers_charged = False

  @property
  def num_answered(self) -> int:
    """How many answers the teachers have given."""
    return self._num_answered

  def _answer(self, votes, public=None):
    left = self.max_answers - self._num_answered
    if not left:
      raise self._used_up(f'{self.max_answers} answers')
    event, count = VoteThresholdDpEvent(self.sigma_threshold), len(votes)
    if not self._answers_charged:
      answer = GNMaxDpEvent(self.sigma)
      event = ComposedDpEvent(
        [
          SelfComposedDpEvent(answer, self.max_answers),
          SelfComposedDpEvent(event, count),
        ]
      )
      count = 1
    given = [votes] if public is None else [votes, public]
    rng = self._charged(event, given, count, answered=self._num_answered)
    self._answers_charged = True
    counts = votes if public is None else votes - public
    noise = rng.normal(0, self.sigma_threshold, len(votes))
    agreed = counts.max(1) + noise >= self.threshold
    agreed &= np.cumsum(agreed) <= left
    noise = rng.normal(0, self.sigma, votes.shape)
    self._num_answered += int(agreed.sum())
    return np.where(agreed, np.argmax(votes + noise, axis=1), NO_ANSWER)


class InteractiveGNMax(ConfidentGNMax):
  """GNMax, for queries where teachers contradict a student.

  The student predicts first. Where the largest difference between votes and its
  prediction, with noise, reaches the threshold, the teachers answer; elsewhere
  its prediction is the answer, if it is sure of it (Papernot et al. 2018,
  algorithm 2).

  Args:
    threshold: on the largest difference `n_j - num_teachers * p_j`, in votes.
    sigma_threshold: as for `ConfidentGNMax`, as the next two.
    sigma: see there.
    max_answers: see there; for answers of the teachers.
    confidence: the probability above which the student's prediction is taken.
    **kwargs: see the module `aggregators`.

  #### Formal guarantee

  That of `ConfidentGNMax`: the predictions are those of a student trained on
  earlier answers, and a vote that changes moves the largest difference by at
  most 1.

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> aggregator = pate.InteractiveGNMax(
  ...   threshold=150., sigma_threshold=10., sigma=20., max_answers=5,
  ...   confidence=.9, num_teachers=250, num_classes=2,
  ...   ledger=accounting.PrivacyLedger())
  >>> votes = [[0, 250], [0, 250], [120, 130]]
  >>> aggregator.query(votes, [[.9, .1], [.01, .99], [.5, .5]]).tolist()
  [1, 1, -1]
  >>> aggregator.num_answered
  1
  """

  _PARAMETERS = (*ConfidentGNMax._PARAMETERS, 'confidence')

  def __init__(
    self,
    threshold: float,
    sigma_threshold: float,
    sigma: float,
    max_answers: int,
    *,
    confidence: float,
    **kwargs: Any,
  ):
    super().__init__(threshold, sigma_threshold, sigma, max_answers, **kwargs)
    if not 0 <= confidence <= 1:
      raise ValueError(
        f'confidence is {confidence}; it must be a probability, in [0, 1].'
      )
    self.confidence = float(confidence)

  def query(  # The student's prediction is a part of these queries.
    self, votes: npt.ArrayLike, predictions: npt.ArrayLike
  ) -> np.ndarray:
    """As `Aggregator.query`.

    Args:
      votes: int `[queries, num_classes]`.
      predictions: float `[queries, num_classes]`, the student's probabilities.
    """
    votes = self._checked(votes)
    p = np.asarray(predictions, np.float64)
    valid = p.shape == votes.shape and bool(((p >= 0) & (p <= 1)).all())
    if not (valid and np.allclose(p.sum(1), 1, atol=1e-3)):
      raise ValueError(
        f'predictions have shape {list(p.shape)}; they must be probabilities '
        f'{list(votes.shape)}, which sum to 1 for each query.'
      )
    answers = self._locked(votes, self.num_teachers * p)
    sure = (answers == NO_ANSWER) & (p.max(1) > self.confidence)
    return np.where(sure, np.argmax(p, axis=1), answers)


class SparseVector(Aggregator):
  """Which queries have many votes for one class, for streams where few have.

  The sparse vector technique (Lyu et al. 2017, algorithm 7): the cost is for
  `max_positives` positive answers, however many queries there are. The noise on
  the votes of a query is Laplace noise of scale `2 max_positives / (epsilon (1
  - threshold_share))`, 43 votes for 30 positives at epsilon 1.5: that has to be
  far below the threshold, or noise alone uses up the positive answers.

  Args:
    threshold: a query is positive where the votes for `positive_class` are at
      least this, with noise on both.
    epsilon: of all queries together.
    max_positives: the largest number of positive answers; public. After that
      nothing is answered any more.
    positive_class: the class that is rare.
    threshold_share: share of `epsilon` for the noise on the threshold; by
      default what leaves least noise on their difference, `1 / (1 + (2 c)^(2 /
      3))` for c positive answers.
    **kwargs: see the module `aggregators`; `num_classes` is 2 by default.

  #### Formal guarantee

  A vote that changes moves the number of votes for one class by at most 1, in
  some queries up and in others down. `SparseVectorDpEvent` with both shares of
  `epsilon`, which is charged once, before the first query. The noise on the
  threshold is drawn once.

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> ledger = accounting.PrivacyLedger()
  >>> aggregator = pate.SparseVector(
  ...   threshold=50., epsilon=1., max_positives=2, num_teachers=100,
  ...   ledger=ledger)
  >>> aggregator.query([[100, 0], [98, 2], [0, 100]]).tolist()
  [0, 0, 1]
  >>> len(ledger.entries)
  1
  """

  _PARAMETERS = (
    'threshold',
    'epsilon',
    'max_positives',
    'positive_class',
    'threshold_share',
  )

  def __init__(
    self,
    threshold: float,
    epsilon: float,
    max_positives: int,
    *,
    positive_class: int = 1,
    threshold_share: Optional[float] = None,
    num_classes: int = 2,
    **kwargs: Any,
  ):
    super().__init__(num_classes=num_classes, **kwargs)
    if self._resume:
      raise ValueError(
        'A stream of the sparse vector technique cannot be resumed: its ledger '
        'does not know what was asked, and the same noise on other votes would '
        'reveal their difference. Begin another one.'
      )
    self.threshold = _checked_threshold(threshold)
    self.epsilon = check_positive('epsilon', epsilon)
    self.max_positives = check_integer('max_positives', max_positives)
    self.positive_class = check_integer('positive_class', positive_class, 0)
    if self.positive_class >= num_classes:
      raise ValueError(
        f'positive_class is {positive_class}; there are {num_classes} classes, '
        'counted from 0.'
      )
    if threshold_share is None:
      threshold_share = 1 / (1 + (2 * self.max_positives) ** (2 / 3))
    self.threshold_share = check_fraction('threshold_share', threshold_share)
    # Both parts are what the noise is for, and their sum is charged.
    first = self.epsilon * self.threshold_share
    self._parts = first, self.epsilon - first
    self._scale = 2 * self.max_positives / self._parts[1]
    self._num_positives = 0
    self._rng = None
    by_chance = 0.5 * math.exp(-self.threshold / self._scale)
    if by_chance > _MOST_BY_CHANCE:
      logging.warning(
        'tfdpflows: a query without a vote for class %d is positive with a '
        'probability of %.0f %%, by noise of scale %.0f on its votes and a '
        'threshold of %g. Ask for fewer positives, raise the threshold, or '
        'take more teachers.',
        self.positive_class,
        100 * by_chance,
        self._scale,
        self.threshold,
      )

  @property
  def num_positives(self) -> int:
    """How many positive answers were given."""
    return self._num_positives

  def _answer(self, votes):
    left = self.max_positives - self._num_positives
    if not left:
      raise self._used_up(f'{self.max_positives} positive answers')
    if self._rng is None:
      self._rng = self._charged(SparseVectorDpEvent(*self._parts), [], 1)
      noise = self._rng.laplace(scale=1 / self._parts[0])
      self._noisy_threshold = self.threshold + noise
    found = np.full(len(votes), NO_ANSWER, np.int64)
    counts = votes[:, self.positive_class]
    noisy = counts + self._rng.laplace(scale=self._scale, size=len(votes))
    positive = noisy >= self._noisy_threshold
    answered = np.cumsum(positive) - positive < left
    found[answered] = positive[answered]
    self._num_positives += int((positive & answered).sum())
    return found
