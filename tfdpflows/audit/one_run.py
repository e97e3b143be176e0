"""Lower bounds from guesses of which canaries one training has seen.

Each canary is put into the table with probability 1/2, independently; after one
run the auditor guesses for some of them whether they were in. Guesses that are
too often right refute a claim.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import dp_accounting
import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tfdpflows import accounting
from tfdpflows._checks import check_fraction, check_integer
from tfdpflows.accounting import registry
from tfdpflows.accounting.rounding import delta_text, round_down, round_up
from tfdpflows.audit.rates import check_delta, gaussian_epsilon

_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
# The largest epsilon or mu that is looked for.
_LARGEST = 64.0
# Numbers of guesses, as parts of the canaries.
_SHARES = (2, 5, 10, 20, 50)
# P-values with a delta above this are no upper bounds, see `Guesses.p_value`.
_NEAR_ONE = 0.5
# Where the privacy profile of a claim is taken, as parts of its epsilon; more
# points take long and give little.
_PROFILE = np.concatenate([[0.0], np.geomspace(0.02, 1.0, 11)])


@dataclasses.dataclass(frozen=True)
class Guesses:
  """How many guesses of one run were right, and what that refutes.

  Attributes:
    num_canaries: m, of which each was in the table with probability 1/2.
    num_guesses: r, of how many of them it was guessed. It was fixed before the
      run; which ones may depend on the output.
    num_correct: v, of the guesses.

  #### Example

  >>> guesses = Guesses(num_canaries=1000, num_guesses=100, num_correct=90)
  >>> round(guesses.epsilon(), 2), round(guesses.epsilon(delta=1e-4), 2)
  (1.63, 1.58)
  >>> round(guesses.mu(), 2)
  0.6
  """

  num_canaries: int
  num_guesses: int
  num_correct: int

  def __post_init__(self):
    if not (
      0 <= self.num_correct <= self.num_guesses <= self.num_canaries
      and self.num_canaries > 0
    ):
      raise ValueError(
        f'{self}: it must be 0 <= num_correct <= num_guesses <= num_canaries, '
        'with at least one canary.'
      )

  def p_value(self, epsilon: float, delta: float = 0.0) -> float:
    """Returns the p-value of an (epsilon, delta) claim.

    For delta 0, no run of an epsilon-private mechanism has at least as many
    correct guesses with a larger probability: it is the tail of a binomial
    distribution, that of randomized response. A delta adds `2 m delta max_i
    P[v - i <= B < v] / i`, as Steinke, Nasr and Jagielski 2023 have it in
    theorem 5.2. Taken literally, that is no upper bound where it is near 1: of
    2 guesses at epsilon 1 and delta 0.1, at least one is right with probability
    0.962, and it gives 0.957. So what is above 1/2 is 1 here, which refutes
    nothing. With a delta, smaller values are not proven here either: no
    violation was found among those below 1/5, in 591 cases that were searched.
    """
    check_delta(delta)
    v, r = self.num_correct, self.num_guesses
    q = special.expit(epsilon)
    tail = stats.binom.sf(v - 1, r, q)
    if delta:
      i = np.arange(1, v + 1)
      between = stats.binom.sf(v - i - 1, r, q) - tail
      tail += 2 * self.num_canaries * delta * np.max(between / i, initial=0.0)
      if tail > _NEAR_ONE:
        return 1.0
    return float(min(tail, 1.0))

  def epsilon(self, delta: float = 0.0, confidence: float = 0.95) -> float:
    """Returns a lower bound on epsilon at a delta, with this confidence."""
    check_fraction('confidence', confidence)
    refuted = lambda epsilon: self.p_value(epsilon, delta) < 1 - confidence
    return _largest(refuted)

  def mu(self, confidence: float = 0.95) -> float:
    """Returns a lower bound on the mu of Gaussian differential privacy.

    A mechanism that is not Gaussian is mu-GDP for some larger mu only: the
    epsilon of a Gaussian mechanism with this mu is no bound for it.
    """
    check_fraction('confidence', confidence)
    level = 1 - confidence
    return _largest(
      lambda mu: self._refutes(
        lambda x: float(special.ndtr(special.ndtri(x) - mu)), level
      )
    )

  def p_value_of_profile(
    self, epsilons: Sequence[float], deltas: Sequence[float]
  ) -> float:
    """Returns the p-value of many (epsilon, delta) claims that hold together.

    It is a test of the trade-off function that the claims imply, which is more
    powerful than that of any one of them (Mahloujifar, Melis and Chaudhuri
    2024, algorithm of section 3).

    Args:
      epsilons: at least one, each zero or more.
      deltas: as many, in [0, 1].
    """
    delta = np.asarray(deltas, np.float64)
    factor = np.exp(np.asarray(epsilons, np.float64))

    def least_wrong(x):
      """Probability of a wrong guess, where that of a right one is x."""
      found = np.maximum((x - delta) / factor, 1 - delta - (1 - x) * factor)
      return float(np.clip(np.max(found), 0.0, 1.0))

    if not self._refutes(least_wrong, 1.0):
      return 1.0
    holds = lambda log: not self._refutes(least_wrong, math.exp(log))
    return math.exp(_bisected(holds, -25.0, 0.0)[1])

  def _refutes(self, least_wrong: Callable[[float], float], level: float):
    """Whether so many correct guesses have a probability below `level`.

    Under the claim, what is right with probability x for a canary that is in
    (or not in) is wrong for it otherwise at least with `least_wrong(x)`. Here
    `right` is the probability that one canary, chosen at random, is guessed
    rightly and at least i guesses are right; `wrong` that it is guessed
    wrongly and at least i - 1 are. Steps go from i = v down; together they
    cannot exceed that a canary is guessed at all.
    """
    m, r, v = self.num_canaries, self.num_guesses, self.num_correct
    right, wrong = level * v / m, level * (r - v) / m
    for i in range(v - 1, -1, -1):
      after = max(wrong, least_wrong(right))
      if after == wrong:
        break
      right = min(right + i / (r - i) * (after - wrong), 1.0)
      wrong = after
      if right + wrong > r / m:
        return True
    return right + wrong > r / m * (1 + 1e-12)


@dataclasses.dataclass(frozen=True)
class OneRunBounds:
  """What the guesses of one run prove, beside what is claimed.

  Attributes:
    epsilon_claimed: of the claim at `delta`; `None` without one.
    epsilon_lower: lower bound on epsilon at `delta`.
    epsilon_lower_pure: lower bound on epsilon at delta 0. It proves nothing
      against a claim at a larger delta.
    mu_lower: lower bound on mu, if the mechanism is mu-GDP.
    epsilon_lower_gaussian: epsilon at `delta` of a Gaussian mechanism with
      `mu_lower`: no bound for a mechanism that is not Gaussian.
    p_value: of the whole privacy profile of the claim; `None` without one.
    delta: see above.
    confidence: of each bound: the probability that it is one.
    guesses: `Guesses`, for each number of guesses that was tried.
    accountant: that the claim is stated by.
    could_refute: whether guesses that are all right would refute the claim.
  """

  epsilon_claimed: float | None
  epsilon_lower: float
  epsilon_lower_pure: float
  mu_lower: float
  epsilon_lower_gaussian: float
  p_value: float | None
  delta: float
  confidence: float
  guesses: tuple[Guesses, ...]
  accountant: str = 'pld'
  could_refute: bool = True

  @property
  def refuted(self) -> bool:
    """Whether the profile of the claim is refuted, with this confidence."""
    return self.p_value is not None and self.p_value < 1 - self.confidence

  def __str__(self) -> str:
    claim = 'No claim.'
    if self.epsilon_claimed is not None:
      verdict = 'REFUTED' if self.refuted else 'not refuted'
      if not self.could_refute:
        verdict += ', and no guesses could of so few canaries'
      claim = (
        f'Claim: epsilon <= {round_up(self.epsilon_claimed)} at delta '
        f'{delta_text(self.delta)}{registry.caveat(self.accountant)}: '
        f'{verdict} (p-value {self.p_value:.2g}).'
      )
    m = self.guesses[0].num_canaries
    return (
      f'{claim} One run, {m:,} canaries: epsilon >= '
      f'{round_down(self.epsilon_lower)} at delta {self.delta:g}, >= '
      f'{round_down(self.epsilon_lower_pure)} at delta 0; mu >= '
      f'{round_down(self.mu_lower)} if Gaussian (confidence '
      f'{self.confidence:g}).'
    )


def guess(
  scores: npt.ArrayLike, included: npt.ArrayLike, num_guesses: int
) -> Guesses:
  """Guesses that canaries with high scores were in, and with low ones not.

  Half of the guesses are of each kind; the canaries between are left out.

  Args:
    scores: `[num_canaries]`; the higher, the more likely the canary was in.
      They depend on the output of the run, and not on `included`.
    included: bool `[num_canaries]`, which ones were in.
    num_guesses: from 1 to the number of canaries, fixed before the run.

  Returns:
    The `Guesses`.

  Raises:
    ValueError: for arguments out of range, or scores that are NaN.
  """
  scores = np.asarray(scores, np.float64)
  included = np.asarray(included, bool)
  if scores.ndim != 1 or scores.shape != included.shape:
    raise ValueError(
      f'scores has shape {list(scores.shape)} and included '
      f'{list(included.shape)}; both must be [num_canaries].'
    )
  if np.isnan(scores).any():
    raise ValueError('scores holds NaN. Score such a canary as infinite.')
  num_guesses = check_integer('num_guesses', num_guesses)
  if num_guesses > len(scores):
    raise ValueError(
      f'num_guesses is {num_guesses}; there are {len(scores)} canaries.'
    )
  order = np.argsort(scores, kind='stable')
  num_out = num_guesses // 2
  num_in = num_guesses - num_out
  correct = np.sum(~included[order[:num_out]])
  correct += np.sum(included[order[len(order) - num_in :]])
  return Guesses(len(scores), num_guesses, int(correct))


def audit_one_run(
  scores: npt.ArrayLike,
  included: npt.ArrayLike,
  *,
  delta: float,
  claim: dp_accounting.DpEvent | accounting.PrivacyLedger | None = None,
  num_guesses: int | Sequence[int] | None = None,
  confidence: float = 0.95,
  accountant: str = 'pld',
  neighboring_relation: dp_accounting.NeighboringRelation = _RELATION,
) -> OneRunBounds:
  """Bounds epsilon from the scores of the canaries of one run.

  #### Formal guarantee

  If each canary was in the table with probability 1/2, independently of all
  else, and to put it in or not is to go to a neighbouring table of the claim,
  then each bound holds with probability `confidence` over the run and the coin
  flips. Several numbers of guesses share what may fail. Of `epsilon_lower`, at
  `delta`, that rests on a theorem that is not proven for all its values, see
  `Guesses.p_value`.

  Args:
    scores: `[num_canaries]`, see `guess`.
    included: bool `[num_canaries]`, which canaries were in.
    delta: in (0, 1), at which epsilon is claimed.
    claim: the event that the run costs, or a ledger that was charged for it,
      whose neighbouring relation counts; `None` for bounds alone.
    num_guesses: one number or several, fixed before the run; by default a
      half, a fifth, a tenth, a 20th and a 50th of the canaries.
    confidence: of each bound.
    accountant: that the claim is stated by.
    neighboring_relation: of the claim, for an event.

  Returns:
    The `OneRunBounds`; print them for the claim and what is proven.

  Raises:
    ValueError: for arguments out of range.

  #### Example

  >>> rng = np.random.default_rng(0)
  >>> included = rng.random(2000) < .5
  >>> scores = included + rng.normal(size=2000)
  >>> found = audit_one_run(
  ...   scores, included, delta=1e-5, claim=dp_accounting.GaussianDpEvent(1.))
  >>> found.refuted, .5 < found.mu_lower < 1.
  (False, True)

  #### References

  - Steinke, Nasr and Jagielski 2023, Privacy auditing with one (1) training
    run.
  - Mahloujifar, Melis and Chaudhuri 2024, Auditing f-differential privacy in
    one run.
  """
  check_fraction('confidence', confidence)
  check_fraction('delta', delta)
  m = np.size(scores)
  if num_guesses is None:
    num_guesses = sorted({max(1, m // k) for k in _SHARES})
  if not np.size(num_guesses):
    raise ValueError(
      'num_guesses is empty; give one number or several, or leave it out.'
    )
  all_guesses = tuple(
    guess(scores, included, k) for k in np.atleast_1d(num_guesses)
  )
  share = 1 - (1 - confidence) / len(all_guesses)
  best = lambda bound: max(bound(guesses) for guesses in all_guesses)
  mu = best(lambda guesses: guesses.mu(share))
  claimed, p_value, could_refute = None, None, True
  if claim is not None:
    if isinstance(claim, accounting.PrivacyLedger):
      neighboring_relation = claim.neighboring_relation
      claim = claim.committed_event
    known = accounting.create_accountant(accountant, neighboring_relation)
    known.compose(claim)
    claimed = known.get_epsilon(delta)
    p_value, could_refute = 1.0, False
    if math.isfinite(claimed):
      epsilons = (claimed * _PROFILE).tolist()
      profile = [*map(known.get_delta, epsilons[:-1]), delta]
      p_value, least = (
        len(guesses)
        * min(g.p_value_of_profile(epsilons, profile) for g in guesses)
        for guesses in (all_guesses, [_all_right(g) for g in all_guesses])
      )
      p_value, could_refute = min(1.0, p_value), least < 1 - confidence
  return OneRunBounds(
    epsilon_claimed=claimed,
    epsilon_lower=best(lambda guesses: guesses.epsilon(delta, share)),
    epsilon_lower_pure=best(lambda guesses: guesses.epsilon(0.0, share)),
    mu_lower=mu,
    epsilon_lower_gaussian=gaussian_epsilon(mu, delta),
    p_value=p_value,
    delta=delta,
    confidence=confidence,
    guesses=all_guesses,
    accountant=accountant,
    could_refute=could_refute,
  )


def _all_right(guesses):
  return dataclasses.replace(guesses, num_correct=guesses.num_guesses)


@dataclasses.dataclass(frozen=True)
class RepeatedBounds:
  """Bounds of audits of several runs, and a percentile of them.

  Attributes:
    epsilon_lower_pure: the percentile of the bounds at delta 0.
    epsilon_lower: that of the bounds at `delta`.
    confidence: of each bound by itself, and the percentile. The percentile is
      no bound of this confidence: of 50 bounds with 95 % each, more than two
      are wrong with a probability of up to .46.
    delta: see above.
    bounds: `[num_runs, 2]`, of each run at delta 0 and at `delta`.
  """

  epsilon_lower_pure: float
  epsilon_lower: float
  confidence: float
  delta: float
  bounds: npt.NDArray

  def __str__(self) -> str:
    return (
      f'{100 * self.confidence:g} % percentile of {len(self.bounds)} runs: '
      f'epsilon {self.epsilon_lower_pure:.4g} at delta 0, '
      f'{self.epsilon_lower:.4g} at delta {self.delta:g} (a percentile, no '
      'bound).'
    )


def audit_repeated_runs(
  train: Callable[[int], tuple[npt.ArrayLike, npt.ArrayLike]],
  *,
  num_runs: int = 50,
  delta: float = 1e-5,
  confidence: float = 0.95,
) -> RepeatedBounds:
  """The protocol of the ExpM+NF paper: a guess for every canary, many runs.

  As it is described there: half of the canaries with the highest scores are
  guessed to be in, all others not; of each run a bound is computed, and that
  percentile of all is reported (the third largest of 50), at delta 0 and at
  `delta`. It is for comparisons with that paper: `audit_one_run` has bounds.

  Args:
    train: a function of the number of a run, from 0, which trains once, and
      returns `[num_canaries]` scores and `included`, as `OneRunAudit` and
      `Canaries` have them. The score of the paper is the loss before the
      training minus that after it, which is that of `OneRunAudit`.
    num_runs: how many there are.
    delta: in (0, 1).
    confidence: of each bound, and the percentile.

  Returns:
    The `RepeatedBounds`.

  Raises:
    ValueError: for arguments out of range.

  #### Example

  >>> def train(number):
  ...   rng = np.random.default_rng(number)
  ...   included = rng.random(500) < .5
  ...   return included + rng.normal(size=500), included
  >>> print(audit_repeated_runs(train, num_runs=20))
  95 % percentile of 20 runs: epsilon 0.7... at delta 0, ...

  #### References

  - Steinke, Nasr and Jagielski 2023, Privacy auditing with one (1) training
    run.
  - Bridges et al. 2023, section 6.2: ExpM+NF, the protocol.
  """
  num_runs = check_integer('num_runs', num_runs)
  check_fraction('delta', delta)
  check_fraction('confidence', confidence)
  bounds = []
  for number in range(num_runs):
    scores, included = train(number)
    guesses = guess(scores, included, np.size(scores))
    bounds.append(
      [guesses.epsilon(at, confidence=confidence) for at in (0.0, delta)]
    )
  bounds = np.array(bounds)
  rank = math.ceil(confidence * num_runs - 1e-9)
  pure, approximate = np.sort(bounds, 0)[rank - 1].tolist()
  return RepeatedBounds(pure, approximate, confidence, delta, bounds)


def _largest(refuted: Callable[[float], bool]) -> float:
  """Returns the end of the refuted values that begin at 0; 0 if there is none.

  Not the largest one that is refuted: beyond the true one any might be.
  """
  if not refuted(0.0):
    return 0.0
  low, step = 0.0, 1 / 16
  while refuted(low + step):
    low += step
    step = max(1 / 16, low / 4)
    if low >= _LARGEST:
      return low
  return _bisected(refuted, low, low + step)[0]


def _bisected(holds, low, high):
  """Narrows an interval in which something holds up to a number."""
  for _ in range(14):
    middle = (low + high) / 2
    low, high = (middle, high) if holds(middle) else (low, middle)
  return low, high
