"""The cost of given votes, published or tested through its smooth sensitivity.

Where nearly all teachers agree, answers reveal far less than their noise alone
guarantees (`tfdpflows.accounting.mechanisms.votes`). But that cost is computed
from private votes. Here it has a smooth upper bound on its sensitivity, with
which noise can hide it:

- `release_vote_cost` publishes it, for answers that were charged in full. What
  that gives is not differential privacy at the published epsilon, see there.
- `BoundedCostGNMax` answers only where a private test finds the cost to be
  within a public bound. At that bound it is differentially private, and this is
  what is charged.

#### The cost of votes
All queries are fixed before the first answer, so that neighbouring tables
change the vote of one teacher in all of them, and nothing else. Let a be the
order, and D(x) the divergence of order a of all answers on the table x from
those on any neighbour of it. It is at most a sum over queries, a function of
each query's counts alone:

- GNMax with noise sigma misses the plurality with a probability of at most q =
  sum_j Phi(-(n_1 - n_j) / (sqrt(2) sigma)), n_1 the largest of m counts. Let
  the gap g be the number for which q = (m - 1) Phi(-g / (sqrt(2) sigma)). The
  cost F(g) is that of `DataDependentGNMax` with the q of g rounded down to a
  whole number of steps, or the largest of those for larger gaps: theorem 6 of
  Papernot et al. 2018 holds for any upper bound on q that fulfils its condition
  (and elsewhere it is a / sigma^2). So F falls with the gap by construction.
- With a check, the answer is 'none' with probability 1 - p, p = Phi((n_1 -
  threshold) / sigma_threshold), and otherwise that of GNMax. On a neighbour n_1
  is at most one more or less, p is p', and exp of (a - 1) times the divergence
  is at most A + B exp((a - 1) F(g)), A = (1 - p)^a (1 - p')^(1 - a), B = p^a
  p'^(1 - a). As log(A + B E) <= log(A + B) + B (E - 1) / (A + B), it is at most

      C(n_1) + W(n_1) (exp((a - 1) F(g)) - 1) / (a - 1),

  C = log(A + B) / (a - 1) and W = B / (A + B), both the larger one over p', W
  made to rise with n_1; and at most what the noise alone guarantees. Here the
  number of answers, itself an output, counts at its law: a sum over the queries
  that happened to be answered (or over their expected number, as in the
  published code) is no divergence of anything.

#### Smooth sensitivity
A vote that changes moves n_1 by at most one, and the gap by at most 2. (As x ->
Phi(Phi^-1(x) + c) is concave for c > 0 and convex for c < 0, Jensen's
inequality over the m - 1 terms of q bounds it by that of m - 1 gaps of g - 2
each, or g + 2. If another class becomes the plurality, its q is less than that
of the old one, as all its gaps are larger; and the other way round.) In steps
it is at most `_REACH` of them, one more than there are in 2 votes, which leaves
room for rounding. With G the function of the gap that W is multiplied by, one
query's cost changes by at most

    L(n, k) = dC(n) + dW(n) G(k - reach) + W(n) dG(k),

dC, dW and dG being the largest change to a neighbouring place. U(n, k, d) is
that with each factor at its largest over n within d and k within d steps of
`_REACH`. A change of one vote in every query moves all n and k by one such step
at most, so that U(v, d) <= U(v', d + 1) for neighbours v and v', and

    S(v) = max_d exp(-beta d) sum_i U(v_i, d)

is at least the change of the cost from v to any neighbour, and at most
exp(beta) S(v').

The sum is rounded once, and to cover that a constant is added to each
U(v_i, d): it is far more than the rounding, for the noise to have digits. What
has noise is rounded up to a public grid, for its low bits not to tell S (see
`tfdpflows.noise_grid`).

#### References
Papernot et al. 2018, "Scalable private learning with PATE", section 5 and
appendix B. Nissim, Raskhodnikova and Smith 2007. Redberg, Zhu and Wang 2023,
"Generalized PTR: user-friendly recipes for data-adaptive algorithms with
differential privacy". Ligett et al. 2017, "Accuracy first", for ex-post
privacy.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt
from dp_accounting import ComposedDpEvent
from scipy import ndimage, special

from tfdpflows._checks import check_fraction, check_integer, check_positive
from tfdpflows.accounting import (
  PrivacyLedger,
  RenyiDpEvent,
  SmoothSensitivityDpEvent,
)
from tfdpflows.accounting.mechanisms import (
  DataDependentGNMax,
  SmoothSensitivity,
  renyi_curve,
)
from tfdpflows.mechanisms.releases import charge_release
from tfdpflows.noise_grid import grid_step
from tfdpflows.pate.aggregators import NO_ANSWER, Aggregator, checked_votes
from tfdpflows.randomness import Randomness

# Gaps are rounded down to multiples of this; a vote moves a gap by two at most.
_STEP = 0.125
_REACH = round(2 / _STEP) + 1
# Costs are computed at every so many of them.
_EVERY = 2
# Gaps of this many deviations of the noise are as good as larger ones.
_WIDEST = 200
# Rounding of costs: relative, and of logs that cancel.
_ROUNDING = 1e-11
# The least sensitivity of a query, over the largest cost, and the steps of a
# released cost of all queries, as a power of two below their largest.
_LEAST, _STEP_BITS = 2.0**-32, 25
_SLACK = 1e-12
# Sums and products of such costs are finite: exp of the first is below 1e261.
_LARGEST_EXPONENT = 600
_LARGEST = 1e30


class VoteCost(NamedTuple):
  """What answers cost on given votes. Private, as the votes are.

  Attributes:
    divergence: bound on the Renyi divergence of all answers.
    smooth_sensitivity: smooth upper bound on its local sensitivity.
  """

  divergence: float
  smooth_sensitivity: float


@dataclasses.dataclass(frozen=True)
class ReleasedCost:
  """A cost that may be published, see `release_vote_cost`.

  Attributes:
    order: of the divergences.
    divergence: of all answers, or more but for `failure`.
    own_divergence: of its own release.
    failure: probability that `divergence` is too small.
  """

  order: float
  divergence: float
  own_divergence: float
  failure: float

  def epsilon(self, delta: float) -> float:
    """Returns the epsilon that is exceeded with a probability below `delta`.

    See `release_vote_cost`; `delta` includes `failure`.

    Raises:
      ValueError: if delta is not in (failure, 1).
    """
    if not self.failure < delta < 1:
      raise ValueError(
        f'delta is {delta}; it must be in ({self.failure:g}, 1), above the '
        'failure of the release.'
      )
    tail = -math.log(delta - self.failure) / (self.order - 1)
    total = self.divergence + self.own_divergence + tail
    return math.nextafter(total * (1 + 1e-14), math.inf)


def release_vote_cost(
  votes: npt.ArrayLike,
  *,
  num_teachers: int,
  sigma: float,
  order: float,
  ledger: PrivacyLedger,
  beta: float,
  sigma_release: float,
  failure: float,
  threshold: Optional[float] = None,
  sigma_threshold: Optional[float] = None,
  randomness: Optional[Randomness] = None,
  label: str = 'vote cost',
  resume: bool = False,
  privacy_unit: Optional[str] = None,
) -> ReleasedCost:
  """Publishes what answers of GNMax or Confident GNMax cost on their votes.

  Args:
    votes: int `[queries, num_classes]`, of all queries of the answers; each row
      sums to `num_teachers`. The queries must not depend on answers.
    num_teachers: number of teachers.
    sigma: noise of GNMax.
    order: of the Renyi divergence, above 1.
    ledger: the `PrivacyLedger`; of the accountant 'rdp', if it has a budget.
    beta: of the smooth sensitivity, above zero. Public, as all parameters: to
      choose it by the votes would reveal more. At most `0.4 / order` leaves
      most of the noise to the votes.
    sigma_release: standard deviation of the noise over the smooth sensitivity.
    failure: probability that the published cost is too small.
    threshold: of the check of Confident GNMax; no check by default.
    sigma_threshold: noise of the check.
    randomness: see `tfdpflows.mechanisms`, as the next two and the errors.
    label: see there.
    resume: see there.
    privacy_unit: see the module `aggregators`.

  Returns:
    A `ReleasedCost`.

  #### Formal guarantee

  `SmoothSensitivityDpEvent(sigma_release, beta, shift)` is charged for the
  release, before anything is computed from the votes. With shift =
  sigma_release Phi^-1(1 - failure) what is published is, on every table, at
  least the divergence but for a probability of `failure`.

  For all neighbours x and x', let P and P' be the laws of the answers together
  with this release. Then `epsilon(delta)`, a function of the release, is
  exceeded by log(dP / dP') with a probability under P of at most `delta`: by
  Markov's inequality for the moment of order a, and `failure`. This is ex-post
  privacy (Ligett et al. 2017): the loss of what was released on this table is,
  almost surely, no more than what is published.

  It is not (epsilon, delta)-differential privacy at the published epsilon. That
  is a property of what answers may be for all tables, and GNMax answers on any:
  it is as private as its noise makes it, which is what its aggregator charges
  and what the ledger and privacy statements go on to say. An epsilon that is
  published after the answers takes nothing off. Papernot et al. 2018 publish an
  unbiased number that is too small every second time, after parameters were
  chosen by the votes, and show no more than that publishing it is private. To
  pay less than the noise guarantees, use `BoundedCostGNMax`.

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> from tfdpflows.randomness import Randomness
  >>> ledger = accounting.PrivacyLedger(accountant='rdp')
  >>> cost = pate.release_vote_cost(
  ...   [[0, 1960, 40]] * 300, num_teachers=2000, sigma=50., order=20.,
  ...   beta=.01, sigma_release=20., failure=1e-6, ledger=ledger,
  ...   randomness=Randomness(seed=0))
  >>> round(cost.epsilon(1e-5), 2)  # 1.95 by their noise
  0.77
  """
  num_teachers = check_integer('num_teachers', num_teachers)
  table = _Table(num_teachers, sigma, order, threshold, sigma_threshold)
  votes = np.asarray(votes)
  if votes.ndim != 2 or votes.shape[1] < 2:
    raise ValueError(
      f'votes have shape {list(votes.shape)}; they must be [queries, classes].'
    )
  event, own = _release_event(order, beta, sigma_release, failure)
  label = str(label)
  votes = checked_votes(votes, num_teachers, votes.shape[1])
  randomness = charge_release(
    ledger,
    event,
    label=label,
    randomness=randomness,
    facts={
      'release': 'vote cost',
      'num_teachers': num_teachers,
      'sigma': sigma,
      'order': order,
      'beta': beta,
      'sigma_release': sigma_release,
      'failure': failure,
      'threshold': threshold,
      'sigma_threshold': sigma_threshold,
    },
    arrays=[votes],
    resume=resume,
    privacy_unit=privacy_unit,
  )
  cost = table.cost(votes, event.beta)
  largest = table.largest * len(votes)
  noisy = _noisy(cost, event, randomness.numpy(label), largest)
  # The cost is never more than by the noise alone, nor less than nothing.
  noisy = min(max(0.0, noisy), largest)
  return ReleasedCost(float(order), noisy, own, float(failure))


class BoundedCostGNMax(Aggregator):
  """GNMax at the cost of given votes, if a test finds it within a bound.

  All queries are in one call. Their cost on the votes is compared, with noise,
  with a public bound; if it is found to be within, all are answered by GNMax,
  else none. What is charged depends on the bound, not on the noise of GNMax.

  Args:
    sigma: noise of GNMax.
    max_divergence: the bound on the Renyi divergence of all answers.
    order: of that divergence, best one of `RDPAccountant().orders`.
    beta: of the smooth sensitivity; public, as all parameters.
    sigma_test: noise of the test over the smooth sensitivity.
    failure: probability that the test passes where it should not.
    threshold: as in `ConfidentGNMax`, without a largest number of answers; no
      check by default.
    sigma_threshold: see there.
    **kwargs: see the module `aggregators`. The ledger must be of the accountant
      'rdp', if it has a budget.

  #### Formal guarantee

  The test publishes f + S (shift + sigma_test Z), with the cost f and its
  smooth sensitivity S, which is `SmoothSensitivityDpEvent`; it passes if that
  is at most the bound. The answers are `RenyiDpEvent` at the order, the bound
  and the failure. Let P and Q be the laws of what the test publishes together
  with the answers, on this table and on a neighbour:

  - If f is at most the bound, the answers on this table have at most that
    divergence from those on any neighbour; given what the test published,
    whether there are any is decided on both alike. The integral of P^a Q^(1 -
    a) is at most that of the test times exp((a - 1) max_divergence).
  - Else the test passes with a probability of at most `failure`. Let P0 be P
    where it fails and zero elsewhere: nothing is answered there under P or Q,
    and the integral of P0^a Q^(1 - a) is at most that of the test.

  Either holds for each of two neighbours against the other one, which is
  (epsilon, delta)-differential privacy (a generalized propose-test-release).

  #### Example

  >>> from tfdpflows import accounting, pate
  >>> ledger = accounting.PrivacyLedger(accountant='rdp')
  >>> aggregator = pate.BoundedCostGNMax(
  ...   sigma=50., max_divergence=.02, order=20., beta=.01, sigma_test=20.,
  ...   failure=1e-6, num_teachers=2000, num_classes=3, ledger=ledger)
  >>> aggregator.query([[0, 1960, 40]] * 300)[:3].tolist()
  [1, 1, 1]
  >>> round(ledger.epsilon(1e-5), 2)  # 1.95 by their noise
  0.58
  """

  _LABEL = 'tested votes'

  def __init__(
    self,
    *,
    sigma: float,
    max_divergence: float,
    order: float,
    beta: float,
    sigma_test: float,
    failure: float,
    threshold: Optional[float] = None,
    sigma_threshold: Optional[float] = None,
    **kwargs: Any,
  ):
    super().__init__(**kwargs)
    self.sigma = sigma
    self.max_divergence = check_positive('max_divergence', max_divergence)
    self.threshold, self.sigma_threshold = threshold, sigma_threshold
    self._table = _Table(
      self.num_teachers, sigma, order, threshold, sigma_threshold
    )
    self._test, _ = _release_event(order, beta, sigma_test, failure)
    self._answers = RenyiDpEvent(order, self.max_divergence, failure)
    self._asked = False

  def _facts(self):
    return {
      'sigma': self.sigma,
      'max_divergence': self.max_divergence,
      'order': self._answers.order,
      'beta': self._test.beta,
      'sigma_test': self._test.sigma,
      'failure': self._answers.delta,
      'threshold': self.threshold,
      'sigma_threshold': self.sigma_threshold,
    }

  def _answer(self, votes):
    if self._asked:
      raise ValueError(
        f'{self.label!r} was asked before: all queries must be in one call, as '
        'later ones might depend on its answers. Make another aggregator.'
      )
    event = ComposedDpEvent([self._test, self._answers])
    rng = self._charged(event, [votes], 1)
    # Not where the ledger refused: nothing was answered then.
    self._asked = True
    cost = self._table.cost(votes, self._test.beta)
    noisy = _noisy(cost, self._test, rng, self._table.largest * len(votes))
    if not noisy <= self.max_divergence:
      return np.full(len(votes), NO_ANSWER)
    answers = np.argmax(votes + rng.normal(0, self.sigma, votes.shape), axis=1)
    if self.threshold is None:
      return answers
    noise = rng.normal(0, self.sigma_threshold, len(votes))
    return np.where(votes.max(1) + noise >= self.threshold, answers, NO_ANSWER)


def _release_event(order, beta, sigma, failure):
  """Returns the event of a noisy cost, and its divergence."""
  sigma = check_positive('sigma of the release', sigma)
  beta = check_positive('beta', beta)
  failure = check_fraction('failure', failure)
  shift = max(sigma * float(-special.ndtri(failure)), 0.0) * (1 + _ROUNDING)
  mechanism = SmoothSensitivity(sigma, beta, shift)
  (own,) = renyi_curve(mechanism, (float(order),))
  if own == math.inf:
    raise ValueError(
      f'beta is {beta}; for the order {order:g} it must be below '
      f'{-0.5 * math.log1p(-1 / order):g}.'
    )
  return SmoothSensitivityDpEvent(sigma, beta, shift), float(own)


def _noisy(
  cost: VoteCost,
  event: SmoothSensitivityDpEvent,
  rng: np.random.Generator,
  largest: float,
) -> float:
  noise = event.shift + event.sigma * rng.normal()
  noisy = cost.divergence + cost.smooth_sensitivity * noise
  # The size of the noise is private: a grid must depend on public numbers. Up,
  # for a cost not to be understated.
  step = grid_step(largest, _STEP_BITS)
  return float(np.ceil(noisy / step) * step)


class _Table:
  """Costs by the largest count n and the rounded gap k; see the module.

  Attributes:
    largest: the cost of a query whatever its votes.
  """

  def __init__(self, num_teachers, sigma, order, threshold, sigma_threshold):
    self._sigma = check_positive('sigma', sigma)
    if not 1 < order < math.inf:
      raise ValueError(f'order is {order}; it must be finite and above 1.')
    if (threshold is None) != (sigma_threshold is None):
      raise ValueError(
        'Give both `threshold` and `sigma_threshold`, or neither.'
      )
    self._teachers = num_teachers
    self._order = float(order)
    self._has_check = threshold is not None
    if self._has_check:
      sigma_threshold = check_positive('sigma_threshold', sigma_threshold)
      if not math.isfinite(threshold):
        raise ValueError(f'threshold is {threshold}; it must be finite.')
    # What overflowed would be compared with nothing, and released as it is.
    answer = self._order * (1 / self._sigma) * (1 / self._sigma)
    check = (abs(threshold or 0) + num_teachers) / (sigma_threshold or 1)
    if max(answer, check) > _LARGEST or (
      self._has_check and (self._order - 1) * answer > _LARGEST_EXPONENT
    ):
      raise ValueError(
        f'With the noise {self._sigma:g}, the order {self._order:g} and the '
        f'threshold {threshold}, the cost of an answer is too large to be '
        'computed: take more noise or a lower order.'
      )
    if answer < 1 / _LARGEST:
      raise ValueError(
        f'With the noise {self._sigma:g}, the cost of an answer is too small '
        'to be computed: take less noise.'
      )
    self.largest = answer
    counts = np.arange(num_teachers + 1)
    self._check, self._passed = np.zeros(len(counts)), np.ones(len(counts))
    if self._has_check:
      self.largest += self._order / 2 * (1 / sigma_threshold) ** 2
      self._check, self._passed = _checks(
        (counts - threshold) / sigma_threshold, self._order
      )
    self._answers: dict[int, np.ndarray] = {}

  def cost(self, votes: np.ndarray, beta: float) -> VoteCost:
    """Returns the cost of votes that are checked."""
    if not len(votes):
      return VoteCost(0.0, 0.0)
    answers = self._answers.get(votes.shape[1])
    if answers is None:
      answers = self._answers_by_gap(votes.shape[1])
      self._answers[votes.shape[1]] = answers
    counts = votes.max(1)
    gaps = np.clip(self._gaps(votes), 0, len(answers) - 1)
    states, times = np.unique(
      np.stack([counts, gaps]), axis=1, return_counts=True
    )
    counts, gaps = states
    each = self._check[counts] + self._passed[counts] * answers[gaps]
    each = np.minimum(each, self.largest) * (1 + _ROUNDING)
    # Exact before it is rounded, in whatever order votes come.
    total = math.fsum(np.repeat(each, times))
    return VoteCost(total, self._smooth(counts, gaps, times, answers, beta))

  def _answers_by_gap(self, num_classes: int) -> np.ndarray:
    """Costs of an answer, by the gap in steps; they fall."""
    a, sigma = self._order, self._sigma
    # Gaps beyond 14 deviations of their noise cost no less than the last one.
    widest = min(self._teachers, 20 * sigma + 4)
    gaps = _EVERY * _STEP * np.arange(math.floor(widest / _STEP / _EVERY) + 1)
    logs = special.log_ndtr(-gaps / math.sqrt(2) / sigma)
    logs += math.log(num_classes - 1) + _SLACK * (1 - logs)
    logs = np.minimum(logs, math.log1p(-1 / num_classes))
    costs = np.array(
      [DataDependentGNMax(sigma, x).renyi(np.array([a]))[0] for x in logs]
    )
    costs[0] = a * (1 / sigma) * (1 / sigma)
    costs = np.repeat(np.maximum.accumulate(costs[::-1])[::-1], _EVERY)
    # Far from where costs change, they are less sensitive.
    more = math.floor(min(self._teachers, _WIDEST * sigma) / _STEP) + 1
    costs = np.pad(costs, (0, max(more - len(costs), 0)), mode='edge')
    if self._has_check:
      costs = np.expm1((a - 1) * costs) / (a - 1)
    return costs * (1 + _ROUNDING)

  def _gaps(self, votes: np.ndarray) -> np.ndarray:
    """Gaps in steps, rounded down."""
    scale = math.sqrt(2) * self._sigma
    rows = np.arange(len(votes))
    best = np.argmax(votes, axis=1)
    logs = special.log_ndtr((votes - votes[rows, best][:, None]) / scale)
    logs[rows, best] = -np.inf
    mean = special.logsumexp(logs, axis=1) - math.log(votes.shape[1] - 1)
    # Far beyond the table there is no need of the inverse, nor is it accurate.
    gaps = -scale * special.ndtri_exp(np.clip(mean, -1e4, math.log(0.5)))
    return np.floor((gaps - _ROUNDING * (1 + gaps)) / _STEP).astype(np.int64)

  def _smooth(self, counts, gaps, times, answers, beta) -> float:
    least = _LEAST * self.largest
    check, passed = self._check, self._passed
    d_check, d_passed = _largest_change(check, 1), _largest_change(passed, 1)
    d_answers = _largest_change(answers, _REACH)
    last = max(len(check), len(answers) // _REACH + 1)
    most = d_check.max() + d_passed.max() * answers[0] + d_answers.max() + least
    most *= times.sum()
    found = 0.0
    for distance in range(last + 1):
      discount = math.exp(-beta * distance)
      if discount * most <= found:
        break
      nearest = np.maximum(gaps - (distance + 1) * _REACH, 0)
      passing = np.minimum(counts + distance, len(passed) - 1)
      bound = d_check[counts] + d_passed[counts] * answers[nearest]
      bound += passed[passing] * d_answers[gaps] + least
      found = max(found, discount * float(times @ bound))
      # Within one more step.
      d_check, d_passed = _widened(d_check, 1), _widened(d_passed, 1)
      d_answers = _widened(d_answers, _REACH)
    return found * (1 + _ROUNDING)


def _checks(z: np.ndarray, a: float) -> tuple[np.ndarray, np.ndarray]:
  """Returns C and W of each largest count.

  Args:
    z: how many deviations of its noise each count is above the threshold.
    a: the order.
  """
  step = z[1] - z[0]
  cost, passed = np.zeros_like(z), np.zeros_like(z)
  yes, no = special.log_ndtr(z), special.log_ndtr(-z)
  for other in (z - step, z + step):
    refused = a * no - (a - 1) * special.log_ndtr(-other)
    accepted = a * yes - (a - 1) * special.log_ndtr(other)
    total = np.logaddexp(refused, accepted)
    cost = np.maximum(cost, total / (a - 1))
    passed = np.maximum(passed, np.exp(accepted - total))
  # It is one Gaussian number of sensitivity one that is compared.
  # What cancels is divided by a - 1.
  cost = np.minimum(cost + _SLACK * a / min(a - 1, 1.0), a / 2 * step * step)
  passed = np.minimum(passed * (1 + _ROUNDING), 1.0)
  return cost * (1 + _ROUNDING), np.maximum.accumulate(passed)


def _largest_change(values: np.ndarray, reach: int) -> np.ndarray:
  """Largest change to a place within reach, of what is monotone or not."""
  size = 2 * reach + 1
  high = ndimage.maximum_filter1d(values, size, mode='nearest')
  low = ndimage.minimum_filter1d(values, size, mode='nearest')
  return np.maximum(high - values, values - low) * (1 + _ROUNDING)


def _widened(values: np.ndarray, reach: int) -> np.ndarray:
  return ndimage.maximum_filter1d(values, 2 * reach + 1, mode='nearest')
