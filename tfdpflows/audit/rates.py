"""Error rates of an attack, and what they prove of the mechanism.

An attack tells from an output which of two neighbouring tables it came from. No
attack on an (epsilon, delta)-private mechanism has small error rates of both
kinds, so that rates that were seen bound epsilon from below.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from tfdpflows._checks import check_fraction

# Thresholds that are tried on the first half of the runs.
_THRESHOLDS = 400


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
    _check(delta)
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
    # Rounded down: near order 1 digits are lost.
    return (1 - 1e-9) * max(_binary_renyi(*pair, order) for pair in pairs)


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
  _check(delta)
  if by not in ('epsilon', 'mu'):
    raise ValueError(f"by is {by!r}; it must be 'epsilon' or 'mu'.")
  first, second = (
    _checked(name, x)
    for name, x in (('scores', scores), ('other_scores', other_scores))
  )
  halves = [np.array_split(x, 2) for x in (first, second)]
  value = lambda rates: rates.epsilon(delta) if by == 'epsilon' else rates.mu()
  # The best of many is one that was lucky, unless all bounds hold.
  candidates = _candidates(halves[0][0], halves[1][0], 1 - 1e-3 / _THRESHOLDS)
  chosen = max(candidates, key=value)
  thresholds = np.array([chosen.threshold])
  (found,) = _rates(
    halves[0][1], halves[1][1], thresholds, chosen.above, confidence
  )
  return found


def _check(delta):
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
