"""Error rates of an attack, and what they prove of the mechanism.

An attack tells from an output which of two neighbouring tables it came from. No
attack on an (epsilon, delta)-private mechanism has small error rates of both
kinds, so that rates that were seen bound epsilon from below.
"""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np
import numpy.typing as npt
from scipy import special

from tfdpflows._checks import check_fraction
from tfdpflows.accounting import compute_epsilon

# Thresholds that are tried on the first half of the runs.
_THRESHOLDS = 400
# Confidence of their bounds, the next one where those before find nothing.
_CERTAIN = (1 - 1e-3 / _THRESHOLDS, 0.99, 0.5)


@dataclasses.dataclass(frozen=True)
class ErrorRates:
  """Upper bounds on the error rates of one attack, which hold together.

  The attack takes an output for one of the second table where its score is
  above a threshold, or below: `above`. Each property is a lower bound on what
  the mechanism reveals with this confidence, whatever the attack was, as no
  test tells two distributions apart better than they differ.

  Attributes:
    false_positive: probability that an output of the first table is taken for
      one of the second.
    false_negative: that one of the second is taken for one of the first.
    confidence: probability, over the runs, that both bounds hold.
    threshold: of the score.
    above: on which side of it the second table is.

  #### Example

  >>> rates = ErrorRates(.01, .4, confidence=.95)
  >>> round(rates.epsilon(delta=1e-5), 3), round(rates.mu(), 3)
  (4.094, 2.58)
  """

  false_positive: float
  false_negative: float
  confidence: float
  threshold: float = math.nan
  above: bool = True

  def epsilon(self, delta: float) -> float:
    """Returns the least epsilon, in nats, that these rates leave at a delta.

    For an (epsilon, delta)-private mechanism neither `1 - fn - delta` is above
    `exp(epsilon) fp` nor `1 - fp - delta` above `exp(epsilon) fn` (Kairouz, Oh
    and Viswanath 2015, theorem 2.1).
    """
    check_delta(delta)
    fp, fn = self.false_positive, self.false_negative
    found = [_log_ratio(1 - fn - delta, fp), _log_ratio(1 - fp - delta, fn)]
    return max(0.0, *found)

  def delta(self, epsilon: float) -> float:
    """Returns the least delta that these rates leave at an epsilon.

    The hockey-stick divergence of the two outcomes, in the worse direction.
    """
    fp, fn = self.false_positive, self.false_negative
    factor = math.exp(min(epsilon, 700.0))
    return max(0.0, 1 - fn - factor * fp, 1 - fp - factor * fn)

  def mu(self) -> float:
    """Returns the least mu for which the mechanism can be mu-GDP.

    Of the trade-off function of two Gaussians (Dong, Roth and Su 2022,
    equation 6); audits by it: Nasr et al. 2023, section 4. A mechanism that is
    not Gaussian is mu-GDP for some larger mu only.
    """
    rates = np.array([self.false_positive, self.false_negative])
    return max(0.0, float(-np.sum(special.ndtri(rates))))

  def renyi(self, order: float) -> float:
    """Returns a lower bound on the Renyi divergence of an order above 1.

    That of the attack's answers, which processing cannot increase (van Erven
    and Harremoes 2014, theorem 9), in the worse direction.
    """
    if not 1 + 1e-6 <= order < math.inf:
      raise ValueError(
        f'order is {order}; it must be finite, and at least 1 + 1e-6.'
      )
    fp, fn = self.false_positive, self.false_negative
    if fp + fn >= 1:
      return 0.0
    pairs = (1 - fn, fp), (1 - fp, fn)
    found = max(_binary_renyi(*pair, order) for pair in pairs)
    # Rounded down: near order 1, and of rates that nearly add to 1, digits are
    # lost.
    rounding = 1e-9 * found + 4e-16 * order / (order - 1)
    return max(0.0, found - rounding)


def error_rates(
  scores: npt.ArrayLike,
  other_scores: npt.ArrayLike,
  *,
  delta: float,
  confidence: float = 0.95,
  by: str = 'epsilon',
) -> ErrorRates:
  """Bounds the error rates of the best threshold of a score.

  The threshold and its side are chosen on the first half of the runs, the rates
  are those of the second, with Clopper-Pearson bounds: their confidence is not
  spent on the choice.

  Args:
    scores: `[runs]`, of independent runs on the first table; in no order that
      depends on their values.
    other_scores: `[other_runs]`, of runs on its neighbour.
    delta: in [0, 1), that the threshold is chosen for.
    confidence: in (0, 1).
    by: 'epsilon', or 'mu' for a threshold that gives the largest `mu()`.

  Returns:
    The `ErrorRates`.

  Raises:
    ValueError: for arguments out of range, scores that are NaN, or fewer than
      10 runs.

  #### Example

  >>> rng = np.random.default_rng(0)
  >>> first, second = rng.normal(size=100_000), rng.normal(1., size=100_000)
  >>> found = error_rates(first, second, delta=0., by='mu')
  >>> print(round(found.mu(), 2))
  0.99
  """
  check_fraction('confidence', confidence)
  check_delta(delta)
  if by not in ('epsilon', 'mu'):
    raise ValueError(f"by is {by!r}; it must be 'epsilon' or 'mu'.")
  first, second = (
    _checked(name, x)
    for name, x in (('scores', scores), ('other_scores', other_scores))
  )
  halves = [np.array_split(x, 2) for x in (first, second)]
  value = lambda rates: rates.epsilon(delta) if by == 'epsilon' else rates.mu()
  # The best of many is one that was lucky, unless all bounds hold; of few runs
  # none then says anything, and a lucky one is better than any.
  for certain in _CERTAIN:
    candidates = _candidates(halves[0][0], halves[1][0], certain)
    chosen = max(candidates, key=value)
    if value(chosen) > 0:
      break
  thresholds = np.array([chosen.threshold])
  (found,) = _rates(
    halves[0][1], halves[1][1], thresholds, chosen.above, confidence
  )
  return found


def largest_epsilon(num_runs: int, delta: float, confidence: float) -> float:
  """Returns the epsilon that `error_rates` proves of an attack without errors.

  Claims from there on cannot be refuted by so many runs on each table.

  >>> scores = np.zeros(100), np.ones(100)
  >>> found = error_rates(*scores, delta=.01, confidence=.9).epsilon(.01)
  >>> found == largest_epsilon(100, .01, .9)
  True
  """
  none = np.zeros(num_runs), np.ones(num_runs)
  halves = (np.array_split(x, 2)[1] for x in none)
  (rates,) = _rates(*halves, np.zeros(1), True, confidence)
  return rates.epsilon(delta)


class Roc:
  """The whole ROC of an attack, with a band that holds at all thresholds.

  The band is from the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart
  for the distributions of both scores. Unlike `error_rates` it needs no second
  half of the runs to choose a threshold, and is wider far out, where rates are
  small.

  `mu`, `delta` and `renyi` are bounds, and all of them hold together with
  probability `confidence`. `delta_estimate` and `renyi_estimate` are plug-in
  estimates: they prove nothing, and may be above the truth.

  Args:
    scores: `[runs]`, of independent runs on the first table.
    other_scores: `[other_runs]`, of runs on its neighbour.
    confidence: in (0, 1).

  Raises:
    ValueError: for arguments out of range, scores that are NaN, or fewer than
      10 runs.

  #### Example

  >>> rng = np.random.default_rng(0)
  >>> roc = Roc(rng.normal(size=100_000), rng.normal(1., size=100_000))
  >>> print(round(roc.mu(), 2), round(roc.delta(1.), 2))
  0.98 0.11
  >>> print(round(roc.renyi_estimate(2.), 1))
  1.0

  #### References

  - Massart 1990, The tight constant in the Dvoretzky-Kiefer-Wolfowitz
    inequality.
  - Nasr et al. 2023, Tight auditing of differentially private machine learning:
    mu from the ROC.
  """

  def __init__(
    self,
    scores: npt.ArrayLike,
    other_scores: npt.ArrayLike,
    *,
    confidence: float = 0.95,
  ):
    check_fraction('confidence', confidence)
    first, second = (
      np.sort(_checked(name, x))
      for name, x in (('scores', scores), ('other_scores', other_scores))
    )
    self.confidence = confidence
    # Each of two bands may fail with half of the rest.
    self._widths = [
      math.sqrt(math.log(4 / (1 - confidence)) / (2 * len(x)))
      for x in (first, second)
    ]
    both = np.unique(np.concatenate([first, second]))
    self._above = [
      1 - np.searchsorted(x, both, side='right') / len(x)
      for x in (first, second)
    ]

  @property
  def false_positive(self) -> npt.NDArray:
    """`[thresholds]`, as they were seen, of the attack 'above'."""
    return self._above[0]

  @property
  def true_positive(self) -> npt.NDArray:
    """`[thresholds]`, as they were seen, of the attack 'above'."""
    return self._above[1]

  def _pairs(self, width=1.0):
    """Yields pairs (p, q): one table has at least p, the other at most q."""
    (fp, tp), (a, b) = self._above, (width * w for w in self._widths)
    clip = lambda x: np.clip(x, 0.0, 1.0)
    yield clip(tp - b), clip(fp + a)
    yield clip(fp - a), clip(tp + b)
    yield clip(1 - tp - b), clip(1 - fp + a)
    yield clip(1 - fp - a), clip(1 - tp + b)

  def mu(self) -> float:
    """Returns the least mu for which the mechanism can be mu-GDP."""
    best = 0.0
    for p, q in self._pairs():
      usable = (p > 0) & (q < 1)
      found = special.ndtri(p[usable]) - special.ndtri(q[usable])
      best = max(best, float(np.max(found, initial=0.0)))
    return best

  def delta(self, epsilon: float) -> float:
    """Returns a lower bound on the hockey-stick divergence at an epsilon."""
    return self._hockey_stick(epsilon, 1.0)

  def delta_estimate(self, epsilon: float) -> float:
    """Returns the hockey-stick divergence of the scores that were seen."""
    return self._hockey_stick(epsilon, 0.0)

  def _hockey_stick(self, epsilon, width):
    factor = math.exp(min(epsilon, 700.0))
    return max(
      float(np.max(p - factor * q, initial=0.0)) for p, q in self._pairs(width)
    )

  def renyi(self, order: float) -> float:
    """Returns a lower bound on the Renyi divergence of an order above 1.

    Of the best attack with one threshold, see `ErrorRates.renyi`.
    """
    (fp, tp), (a, b) = self._above, self._widths
    best = 0.0
    for false, true in ((fp + a, tp - b), (1 - fp + a, 1 - tp - b)):
      for i in np.unique(np.linspace(0, len(fp) - 1, 200).astype(int)):
        rates = ErrorRates(
          min(1.0, float(false[i])),
          min(1.0, float(1 - true[i])),
          self.confidence,
        )
        best = max(best, rates.renyi(order))
    return best

  def renyi_estimate(self, order: float, num_bins: int = 100) -> float:
    """Returns the Renyi divergence of the scores in bins, as they were seen.

    In the worse direction. Bins lose some of the divergence, counts of few
    runs add to it: compare several `num_bins`.
    """
    ErrorRates(0.5, 0.5, self.confidence).renyi(order)  # Checks the order.
    fp, tp = self._above
    middle = (fp + tp) / 2
    cuts = np.unique(
      np.searchsorted(-middle, -np.linspace(0, 1, num_bins + 1)[1:-1])
    )
    cuts = cuts[cuts < len(fp)]
    p, q = (np.diff(np.concatenate([[1.0], x[cuts], [0.0]])) for x in (tp, fp))
    p, q = np.maximum(-p, 0.0), np.maximum(-q, 0.0)
    found = 0.0
    for a, b in ((p, q), (q, p)):
      used = (a > 0) & (b > 0)
      terms = order * np.log(a[used]) + (1 - order) * np.log(b[used])
      found = max(found, float(special.logsumexp(terms)) / (order - 1))
    return found


def gaussian_epsilon(mu: float, delta: float) -> float:
  """Returns epsilon at a delta of a Gaussian mechanism with this mu."""
  if not mu:
    return 0.0
  return compute_epsilon(dp_accounting.GaussianDpEvent(1 / mu), delta)


def check_delta(delta: float) -> None:
  """Raises a `ValueError` for a delta outside [0, 1)."""
  if not 0 <= delta < 1:
    raise ValueError(f'delta is {delta}; it must be in [0, 1).')


def _checked(name, scores):
  scores = np.asarray(scores, np.float64)
  if scores.ndim != 1 or len(scores) < 10:
    raise ValueError(
      f'{name} has shape {list(scores.shape)}; it must be [runs], of at least '
      '10 runs.'
    )
  if np.isnan(scores).any():
    raise ValueError(
      f'{name} holds NaN. Score an output that has no score as infinite, or '
      'minus infinite, by what it speaks for.'
    )
  return scores


def _candidates(first, second, confidence):
  """Returns the rates of thresholds between the scores of both tables."""
  both = np.unique(np.concatenate([first, second]))
  if len(both) > _THRESHOLDS:
    # As many in the tails as in the middle: tests of small rates are there.
    ends = np.geomspace(1, len(both) // 2, _THRESHOLDS // 2).astype(int) - 1
    both = both[np.unique(np.concatenate([ends, len(both) - 1 - ends]))]
  return [
    rates
    for above in (True, False)
    for rates in _rates(first, second, both, above, confidence)
  ]


def _rates(first, second, thresholds, above, confidence):
  """Returns the rates at each of the thresholds, each by itself."""
  wrong = []
  for scores, counts_above in ((first, above), (second, not above)):
    below = np.searchsorted(np.sort(scores), thresholds, side='right')
    count = len(scores) - below if counts_above else below
    # Clopper-Pearson, with half of what may fail.
    failure = (1 - confidence) / 2
    rest = np.maximum(len(scores) - count, 1)
    bound = special.betaincinv(count + 1, rest, 1 - failure)
    wrong.append(np.where(count == len(scores), 1.0, bound))
  return [
    ErrorRates(float(fp), float(fn), confidence, float(threshold), above)
    for fp, fn, threshold in zip(*wrong, thresholds)
  ]


def _log_ratio(above, below):
  if above <= 0:
    return -math.inf
  return math.log(above / below) if below > 0 else math.inf


def _binary_renyi(p, q, order):
  """Returns the divergence of Bernoulli(p) from Bernoulli(q)."""
  logs = lambda x: np.log([x, 1 - x])
  with np.errstate(divide='ignore'):
    terms = order * logs(p) + (1 - order) * logs(q)
  return float(np.logaddexp(*terms) / (order - 1))
