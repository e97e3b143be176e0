"""Private-kNN: labels for public rows by a vote of their private neighbours."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Optional

import dp_accounting
import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_integer, check_positive
from tfdpflows.accounting import (
  BudgetExceededError,
  ConfidentGNMaxDpEvent,
  GNMaxDpEvent,
  PrivacyBudget,
  PrivacyLedger,
  VoteThresholdDpEvent,
  calibrate_noise_multiplier,
)
from tfdpflows.accounting.ledger import check_ledger
from tfdpflows.mechanisms.releases import (
  as_numbers,
  charge_release,
  differing_rows,
)
from tfdpflows.pate.aggregators import NO_ANSWER, OneAtATime
from tfdpflows.randomness import Randomness, drawn_below
from tfdpflows.sampling.poisson import checked_probability

# Whole numbers below this are exact in float64, and so are their sums.
_EXACT = 2**53
# Scores, of 8 bytes each, that are computed at one time.
_SCORES = 2**23


class PrivateKNN(OneAtATime):
  """Answers queries by a noisy vote of the nearest private rows.

  Each query draws a fresh Poisson sample of the private rows. The nearest
  `num_neighbors` of the sample vote with their labels, Gaussian noise is added
  to the counts, and the label with the largest one is the answer. With a
  `threshold` only those queries are answered whose largest count, with noise of
  its own, reaches it.

  Args:
    features: float array `[n, d]`, made from private rows by a public function
      of one row at a time, such as an encoder trained on public data. To the
      last bit: a network rounds by the number of rows in a batch, so call it on
      batches of one size, the last one padded.
    labels: array `[n]` of whole numbers in [0, num_classes).
    num_classes: public number of classes.
    num_neighbors: how many rows vote.
    sampling_probability: with which a query takes a row, in (0, 1].
    sigma: standard deviation of the noise on each count.
    ledger: the `PrivacyLedger` that each call is charged to before it answers.
    threshold: a query is answered if its largest count with noise reaches this;
      all are answered by default. Public, as are all arguments but features and
      labels.
    sigma_threshold: standard deviation of the noise of that check.
    max_answers: the most queries that are answered, for a `threshold`; without,
      every query is charged an answer, given or not. All of these answers are
      charged by the first call; then a query costs its check alone. Calls
      after the last one are refused.
    feature_bound: features are clipped to [-feature_bound, feature_bound].
    randomness: a `tfdpflows.randomness.Randomness`; `None` for one that nobody
      knows.
    label: of the charges and of the random streams, with the number of the
      call.

  Raises:
    ValueError: for a shape, dtype or number out of range, or a neighbouring
      relation for which nothing is proven. No error depends on what features
      and labels hold: a row with a feature that is not finite, or a label that
      is no class, never votes.

  #### Formal guarantee

  Let one row be added to the sample of a query. If it is not among the nearest
  `num_neighbors`, nobody's vote changes. If it is, its vote is added, and that
  of the last of the nearest is lost where there were as many already. So the
  counts move by at most sqrt(2) in l2 norm, and their maximum by at most one.
  If one row of the sample is replaced by another, both sets of voters are those
  without that row, but for one that each may have on top or in place of the
  last: again two counts change by one each, and the maximum by one. So under
  either relation the counts with noise are what `GNMaxDpEvent(sigma)` stands
  for, check and answer on one sample are `ConfidentGNMaxDpEvent`, and a query
  is a `PoissonSampledDpEvent` of these. This holds whatever earlier answers the
  query was chosen by, so that queries compose adaptively.

  It needs one order of the rows by distance, in which no row depends on others.

  - Distances are exact. Features are rounded to whole multiples of
    `feature_bound / L`, each by itself, with `4 d L^2 <= 2^53`: every product
    and every partial sum is a whole number below 2^53 (times that unit), which
    float64 holds, in whatever order a matrix product adds them. In floats the
    last digits of a distance would depend on the other rows of its block, and a
    row that is removed could exchange more than one vote.
  - Each row draws one uniform number per query, a multiple of 2^-53. It is in
    the sample if that is below `sampling_probability`, rounded down to such a
    multiple, and the smaller number comes first among equal distances. Given
    the numbers of all other rows, that of one more row changes nothing about
    them.

  With `max_answers`, check and answer draw samples of their own. Which queries
  pass is an output, and whether a row was in the sample of a check may not be
  concluded from it for the answer. n checks and at most m answers are then no
  worse than n and m of them in a fixed order: let (P, Q) dominate a check and
  (P', Q') an answer, that is, let each be a function of one draw from its pair,
  with the row and without it (Blackwell). Draw n times from the first and m
  times from the second pair; the whole adaptive sequence is a function of these
  draws, which takes the next one of either kind whenever it checks or answers,
  and may leave some over. (Composition of sampled mechanisms by realised costs
  would be no proof.) All m are charged before the first answer, as the number
  of charges must not depend on outputs. Nor must n: all queries of a call are
  charged, and where calls go on until the answers are used up, claim what as
  many checks cost as there might have been.

  #### References

  Zhu, Yu, Chandraker, Wang 2020, "Private-kNN: practical differential privacy
  for computer vision". Papernot et al. 2018, "Scalable private learning with
  PATE", for the check.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows import accounting, pate
  >>> from tfdpflows.randomness import Randomness
  >>> x = np.random.default_rng(0).uniform(-1, 1, [20_000, 2])
  >>> knn = pate.PrivateKNN(
  ...   x, x[:, 0] > 0, num_classes=2, num_neighbors=200,
  ...   sampling_probability=.2, sigma=20., randomness=Randomness(seed=0),
  ...   ledger=accounting.PrivacyLedger())
  >>> knn.query([[-.5, 0.], [.5, .9]])
  array([0, 1])
  >>> knn.ledger.epsilon(1e-5) < .6
  True
  """

  def __init__(
    self,
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    num_classes: int,
    num_neighbors: int,
    sampling_probability: float,
    sigma: float,
    ledger: PrivacyLedger,
    threshold: Optional[float] = None,
    sigma_threshold: Optional[float] = None,
    max_answers: Optional[int] = None,
    feature_bound: float = 1.0,
    randomness: Optional[Randomness] = None,
    label: str = 'private kNN',
  ):
    super().__init__()
    self.num_classes = check_integer('num_classes', num_classes)
    self.num_neighbors = check_integer('num_neighbors', num_neighbors)
    self.sampling_probability = float(sampling_probability)
    self.sigma = float(sigma)
    self.threshold = None if threshold is None else float(threshold)
    self.sigma_threshold = (
      None if sigma_threshold is None else float(sigma_threshold)
    )
    self.max_answers = max_answers
    self.feature_bound = check_positive('feature_bound', feature_bound)
    self.ledger = ledger
    self.label = str(label)
    check_ledger(ledger)
    differing_rows(ledger.neighboring_relation)
    self.event(1)  # Checks the parameters.
    self._below = drawn_below(self.sampling_probability)
    features = as_numbers(features, 'features', ('n', 'd'))
    labels = as_numbers(labels, 'labels', (len(features),))
    self.num_features = features.shape[1]
    if not self.num_features:
      raise ValueError('features has no columns.')
    self._level = math.isqrt(_EXACT // 4 // self.num_features)
    self._repeatable = randomness is not None
    self._randomness = Randomness() if randomness is None else randomness
    self._table = self._randomness.table_fingerprint([features, labels])
    # Which warnings or errors of NumPy there are depends on the rows.
    with np.errstate(all='ignore'):
      usable = np.isfinite(features).all(1) & np.isfinite(labels)
      usable &= (labels >= 0) & (labels < num_classes)
      usable &= np.floor(labels) == labels
      self._labels = labels[usable].astype(np.int64)
      self._features = self._rounded(features[usable])
      self._squares = np.sum(self._features**2, axis=1)
    self._calls = 0
    self._answered = 0

  @classmethod
  def for_epsilon(
    cls,
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    epsilon: float,
    delta: float,
    num_queries: int,
    ledger: PrivacyLedger,
    **kwargs: Any,
  ) -> PrivateKNN:
    """Makes one with the least noise for a number of queries.

    Args:
      features: see `PrivateKNN`, as the errors.
      labels: see `PrivateKNN`.
      epsilon: of all that the ledger has charged or reserved and the queries
        together, by the accountant of the ledger.
      delta: see `epsilon`.
      num_queries: how many queries there will be in all.
      ledger: see `PrivateKNN`.
      **kwargs: further arguments of `PrivateKNN`; `sigma_threshold` is kept as
        it is given.

    Returns:
      A `PrivateKNN`. Nothing is charged yet.

    Raises:
      BudgetExceededError: if no noise is enough.

    #### Example

    >>> import numpy as np
    >>> from tfdpflows import accounting, pate
    >>> knn = pate.PrivateKNN.for_epsilon(
    ...   np.zeros([9, 2]), np.zeros(9), epsilon=1., delta=1e-5,
    ...   num_queries=100, num_classes=3, num_neighbors=5,
    ...   sampling_probability=.1, ledger=accounting.PrivacyLedger())
    >>> 5 < knn.sigma < 9
    True
    """
    num_queries = check_integer('num_queries', num_queries)
    options = (
      'sampling_probability',
      'threshold',
      'sigma_threshold',
      'max_answers',
    )
    options = {key: kwargs[key] for key in options if key in kwargs}
    sigma = calibrate_noise_multiplier(
      lambda sigma: private_knn_event(num_queries, sigma=sigma, **options),
      PrivacyBudget(epsilon=epsilon, delta=delta),
      spent=ledger.committed_event,
      accountant=ledger.accountant,
      neighboring_relation=ledger.neighboring_relation,
    )
    return cls(features, labels, sigma=sigma, ledger=ledger, **kwargs)

  def event(self, num_queries: int) -> dp_accounting.DpEvent:
    """Returns the event of the first queries; see `private_knn_event`."""
    return private_knn_event(
      num_queries,
      sampling_probability=self.sampling_probability,
      sigma=self.sigma,
      threshold=self.threshold,
      sigma_threshold=self.sigma_threshold,
      max_answers=self.max_answers,
    )

  @property
  def answered(self) -> int:
    """How many queries were answered so far."""
    return self._answered

  def query(
    self, public_features: npt.ArrayLike, *, resume: bool = False
  ) -> np.ndarray:
    """Returns labels of public rows.

    Args:
      public_features: float array `[m, d]`, made as the private features were,
        from public rows. They may be chosen by earlier answers.
      resume: whether a charge that is already in the ledger covers this call: a
        repeated one, of another process with the same secret, tables, arguments
        and calls before it.

    Returns:
      int64 `[m]`; -1 for a query that was not answered.

    Raises:
      BudgetExceededError: if not all of the queries are within the budget of
        the ledger, or all `max_answers` were given; none is answered then.
      LedgerError: if the ledger cannot be charged, or the call to resume had
        other arguments.
      ValueError: for a shape or dtype out of range, or values that are not
        finite.
    """
    queries = as_numbers(
      public_features, 'public_features', ('m', self.num_features)
    )
    bad = np.flatnonzero(~np.isfinite(queries).all(1))
    if bad.size:
      raise ValueError(
        f'public_features has values that are not finite, in row {bad[0]}.'
      )
    if resume and not self._repeatable:
      raise ValueError(
        'resume=True repeats a call with the same random numbers: give the '
        '`randomness` of then, made from its `secret`.'
      )
    if not len(queries):
      return np.zeros(0, np.int64)
    queries = self._rounded(queries)
    with self._alone():
      return self._answers(queries, resume)

  def _answers(self, queries, resume):
    if self._is_used_up():
      raise BudgetExceededError(
        self.ledger.budget,
        None,
        None,
        message=(
          f'{self.label!r} has given its {self.max_answers} answers; nothing '
          'was charged.'
        ),
      )
    label = f'{self.label}, call {self._calls + 1}'
    randomness = charge_release(
      self.ledger,
      self._event_of_call(len(queries)),
      label=label,
      randomness=self._randomness,
      facts={
        'release': 'private kNN',
        'num_classes': self.num_classes,
        'num_neighbors': self.num_neighbors,
        'sampling_probability': self.sampling_probability,
        'sigma': self.sigma,
        'threshold': self.threshold,
        'sigma_threshold': self.sigma_threshold,
        'max_answers': self.max_answers,
        'feature_bound': self.feature_bound,
        'queries': hashlib.sha256(queries.tobytes()).hexdigest(),
      },
      arrays=[np.frombuffer(self._table.encode(), np.uint8)],
      resume=resume,
    )
    self._calls += 1
    answers = np.empty(len(queries), np.int64)
    block = max(1, _SCORES // max(1, len(self._labels)))
    for start in range(0, len(queries), block):
      scores = self._scores(queries[start : start + block])
      for i, row in enumerate(scores, start):
        answers[i] = self._answer(row, randomness.numpy(label, i))
    return answers

  def _is_used_up(self):
    return self.max_answers is not None and self._answered >= self.max_answers

  def _event_of_call(self, num_queries: int) -> dp_accounting.DpEvent:
    event = self.event(num_queries)
    if self._calls and self.max_answers is not None:
      # All answers are in the charge of the first call.
      event, _ = event.events
    return event

  def _answer(self, scores: np.ndarray, rng: np.random.Generator) -> int:
    if self._is_used_up():
      return NO_ANSWER
    votes = self._votes(scores, rng.random(len(scores)))
    if self.threshold is not None:
      top = np.max(votes) + rng.normal(0.0, self.sigma_threshold)
      if top < self.threshold:
        return NO_ANSWER
      if self.max_answers is not None:
        votes = self._votes(scores, rng.random(len(scores)))
    self._answered += 1
    return int(np.argmax(votes + rng.normal(0.0, self.sigma, len(votes))))

  def _votes(self, scores: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Counts the labels of the nearest rows of a sample.

    Args:
      scores: exact float64 `[n]` that rise with the distance.
      draws: float64 `[n]`, the number that each row drew.

    Returns:
      int64 `[num_classes]`.
    """
    sample = np.flatnonzero(draws < self._below)
    near = scores[sample]
    if len(sample) > self.num_neighbors:
      last = np.partition(near, self.num_neighbors - 1)[self.num_neighbors - 1]
      tied = sample[near == last]
      sample = sample[near < last]
      by_draw = np.argsort(draws[tied], kind='stable')
      tied = tied[by_draw[: self.num_neighbors - len(sample)]]
      sample = np.concatenate([sample, tied])
    return np.bincount(self._labels[sample], minlength=self.num_classes)

  def _scores(self, queries: np.ndarray) -> np.ndarray:
    """Squared distances less the squared norms of the queries, `[m, n]`."""
    products = queries @ self._features.T
    products *= -2
    products += self._squares
    return products

  def _rounded(self, features: np.ndarray) -> np.ndarray:
    """Whole numbers in [-L, L], elementwise."""
    with np.errstate(all='ignore'):
      features = features.astype(np.float64)
      features = np.clip(features, -self.feature_bound, self.feature_bound)
      features /= self.feature_bound
      features *= self._level
      return np.rint(features, out=features)


def private_knn_event(
  num_queries: int,
  *,
  sampling_probability: float,
  sigma: float,
  threshold: Optional[float] = None,
  sigma_threshold: Optional[float] = None,
  max_answers: Optional[int] = None,
) -> dp_accounting.DpEvent:
  """Returns the event of queries of `PrivateKNN`, all that it answers included.

  Args:
    num_queries: how many there are in all.
    sampling_probability: see `PrivateKNN`, as all others and the proof.
    sigma: see there.
    threshold: see there.
    sigma_threshold: see there.
    max_answers: see there.

  Raises:
    ValueError: for values out of range.

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> event = pate.private_knn_event(
  ...   735, sampling_probability=.05, sigma=20.)
  >>> round(accounting.compute_epsilon(event, 1e-5), 2)
  0.33
  """
  q = checked_probability(sampling_probability)
  sigma = check_positive('sigma', sigma)
  repeated = dp_accounting.SelfComposedDpEvent
  sampled = lambda event: dp_accounting.PoissonSampledDpEvent(q, event)
  if (threshold is None) != (sigma_threshold is None):
    raise ValueError('Give both `threshold` and `sigma_threshold`, or neither.')
  if threshold is None:
    if max_answers is not None:
      raise ValueError('max_answers needs a `threshold`.')
    return repeated(sampled(GNMaxDpEvent(sigma)), num_queries)
  if not math.isfinite(threshold):
    raise ValueError(f'threshold is {threshold}; it must be finite.')
  sigma_threshold = check_positive('sigma_threshold', sigma_threshold)
  if max_answers is None:
    event = ConfidentGNMaxDpEvent(threshold, sigma_threshold, sigma)
    return repeated(sampled(event), num_queries)
  check = VoteThresholdDpEvent(sigma_threshold)
  answers = check_integer('max_answers', max_answers)
  return dp_accounting.ComposedDpEvent(
    [
      repeated(sampled(check), num_queries),
      repeated(sampled(GNMaxDpEvent(sigma)), answers),
    ]
  )
