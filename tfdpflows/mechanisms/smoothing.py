"""Posterior means of counts released with Gaussian noise: post-processing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

# Chances that a boundary between two neighbouring bins is a change point,
# tried in turn and weighted by how well each explains the release.
_CHANGE_PROBABILITIES = (0.001, 0.01, 0.04, 0.15, 0.4, 0.8)
# Chances that no row is in a run of neighbouring bins, tried in turn as well:
# ranges are often declared wider than values reach, and spikes have nothing
# between them, but where each run has few rows none is empty.
_EMPTY = (0.02, 0.5, 0.98)
# The odds that values end before an end of the declared range, at any bin
# alike. Without them dozens of bins beyond all values would each hold something
# in a column of spikes, and so of many runs.
_ENDS = 1.0
# No count is less, in units of the noise; thousands of bins together must not
# weigh anything beside a spike.
_FLOOR = 0.001


def posterior_counts(
  noisy: npt.ArrayLike,
  std: float,
  total: float,
  *,
  ordered: bool,
  may_end: bool = False,
) -> np.ndarray:
  """Returns nonnegative counts that sum to `total`, given noisy ones.

  Every true count (or, for ordered bins, the common count of a run of bins
  between two change points) is given a half-normal prior whose scale is mixed
  over a grid from a fraction of the noise up to the total. Unordered bins learn
  the mixture from the release itself (empirical Bayes). Ordered bins are
  averaged over all partitions into runs, each of which may be empty, as in the
  product partition model of Barry and Hartigan (1993), so that an isolated
  spike stays sharp while a smooth stretch is averaged over many bins. The sum
  is then moved to `total` by changing every count in proportion to its
  covariance with the sum.

  Args:
    noisy: float array `[k]`, counts plus independent `N(0, std**2)` noise.
    std: standard deviation of the noise, in rows.
    total: the sum of the counts, in rows; nonnegative.
    ordered: whether neighbouring bins are likely to have similar counts.
    may_end: whether the bins are of a declared range, at whose ends there may
      be no values.

  >>> posterior_counts([990.0, -8.0, 3.0], 10.0, 1000.0, ordered=False).round()
  array([994.,   2.,   3.])
  """
  noisy = np.asarray(noisy, np.float64)
  if noisy.size == 1:
    return np.full(1, float(max(total, 0.0)))
  top = max(total, noisy.max(), 2 * std)
  if ordered:
    mean, variance = _runs(noisy, std, top, may_end)
  else:
    mean, variance = _cells(noisy, std, top)
  return match_total(mean, variance, total, floor=_FLOOR * std)


def is_flat(
  noisy: npt.ArrayLike, std: float, total: float, *, tests: int = 1
) -> bool:
  """Tests whether the counts of neighbouring bins could all be equal.

  That is so if no run of neighbours departs from its share of the total by more
  than the largest of that many normal variables would. `tests` is the number of
  such tests that are made together; the rest is as in `posterior_counts`.

  >>> is_flat([4.0, 7.0, 5.0], 2.0, 16.0), is_flat([0.0, 16.0, 0.0], 2.0, 16.0)
  (True, False)
  """
  noisy = np.asarray(noisy, np.float64)
  k = len(noisy)
  sums = np.concatenate([[0.0], np.cumsum(noisy - total / k)])
  first, last = np.triu_indices(k)
  z = (sums[last + 1] - sums[first]) / (std * np.sqrt(last - first + 1.0))
  return bool(np.abs(z).max() < np.sqrt(2 * np.log(max(k * tests, 2))) + 0.5)


def match_total(
  mean: npt.ArrayLike, variance: npt.ArrayLike, total: float, floor: float = 0.0
) -> np.ndarray:
  """Moves estimates to a given sum, in proportion to their variances.

  No entry becomes less than `floor`, or `total / (2 * k)` if that is less.
  """
  mean, variance = np.asarray(mean, float), np.asarray(variance, float)
  total = max(float(total), 0.0)
  floor = min(floor, total / (2 * len(mean)))
  free = np.ones(len(mean), bool)
  result = mean.copy()
  for _ in range(len(mean)):
    gap = total - floor * np.count_nonzero(~free) - mean[free].sum()
    result[free] = mean[free] + gap * variance[free] / variance[free].sum()
    result[~free] = floor
    low = free & (result < floor)
    if not low.any() or low.sum() == free.sum():
      break
    free &= ~low
  result = np.maximum(result, floor)
  if total > 0 and floor > 0:
    above = result - floor
    rest = total - floor * len(result)
    result = floor + above * (rest / max(above.sum(), 1e-300))
  return result


def _half_normal(y, variance, scale):
  """Log evidence, mean and variance of a half-normal count seen with noise."""
  spread = variance + scale**2
  location = y * (scale**2 / spread)
  width = np.sqrt(variance * scale**2 / spread)
  z = location / width
  log_cdf = special.log_ndtr(z)
  evidence = np.log(2.0) + log_cdf
  evidence = evidence - 0.5 * (y**2 / spread + np.log(2 * np.pi * spread))
  hazard = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_cdf)
  mean = np.maximum(location + width * hazard, 0.0)
  return evidence, mean, width**2 * np.maximum(1 - hazard * (hazard + z), 1e-12)


def _mix(log_weights, mean, variance):
  """Mean and variance of mixtures along the last axis."""
  weights = special.softmax(log_weights, axis=-1)
  center = (weights * mean).sum(-1)
  spread = (weights * (variance + mean**2)).sum(-1) - center**2
  return center, np.maximum(spread, 1e-12)


def _cells(noisy, std, top):
  """Posterior of unordered counts; the prior's scales are learned by EM."""
  scales = np.geomspace(std / 8, top, 24)
  evidence, mean, variance = _half_normal(noisy[:, None], std**2, scales)
  log_prior = np.full(len(scales), -np.log(len(scales)))
  for _ in range(50):
    weights = special.softmax(evidence + log_prior, axis=-1).sum(0)
    weights = weights + 1 / len(scales)
    log_prior = np.log(weights / weights.sum())
  return _mix(evidence + log_prior, mean, variance)


def _runs(noisy, std, top, may_end):
  """Returns means `[k]` of ordered counts, and covariances with their sum."""
  k = len(noisy)
  first, last = np.triu_indices(k)
  length = (last - first + 1).astype(np.float64)
  sums = np.concatenate([[0.0], np.cumsum(noisy)])
  squares = np.concatenate([[0.0], np.cumsum((noisy / std) ** 2)])
  average = (sums[last + 1] - sums[first]) / length
  within = squares[last + 1] - squares[first] - length * (average / std) ** 2
  variance = std**2 / length
  scales = np.geomspace(std / 8, top, 8)
  parts = _half_normal(average[:, None], variance[:, None], scales)
  # Of an empty run all is noise.
  empty = -0.5 * (average**2 / variance + np.log(2 * np.pi * variance))
  parts = [np.column_stack([empty, parts[0]])] + [
    np.pad(part, ((0, 0), (1, 0))) for part in parts[1:]
  ]
  around = 0.5 * np.log(2 * np.pi * variance) - 0.5 * within
  around -= 0.5 * length * np.log(2 * np.pi * std**2)
  # Of the bins before each one, and from each one on, that they hold nothing.
  before, behind = np.full(k + 1, -np.inf), np.full(k + 1, -np.inf)
  if may_end:
    nothing = empty + around + np.log(_ENDS / k)
    before[last[first == 0] + 1] = nothing[first == 0]
    behind[first[last == k - 1]] = nothing[last == k - 1]
  before[0] = behind[k] = 0.0
  change = np.array(_CHANGE_PROBABILITIES)
  log_evidence, means, seconds, with_sums = [], [], [], []
  for chance_of_empty in _EMPTY:
    prior = np.full(len(scales) + 1, (1 - chance_of_empty) / len(scales))
    prior[0] = chance_of_empty
    weighted = parts[0] + np.log(prior)
    run_mean, run_variance = _mix(weighted, *parts[1:])
    table = np.full((k, k), -np.inf)
    table[first, last] = special.logsumexp(weighted, axis=-1) + around
    evidence, chances = _partitions(table, before, behind, change)
    log_evidence.append(special.logsumexp(evidence))
    weights = special.softmax(evidence)
    chance = np.tensordot(weights, chances, 1)[first, last]
    means.append(_cover(first, last, k, chance * run_mean))
    seconds.append(_cover(first, last, k, chance * run_mean**2))
    # The errors of the bins of a run are equal, so that their covariance with
    # the sum is the variance times the length of the run.
    with_sums.append(_cover(first, last, k, chance * run_variance * length))
  weights = special.softmax(log_evidence)
  center, second, with_sum = (
    weights @ np.array(x) for x in (means, seconds, with_sums)
  )
  return center, np.maximum(second - center**2 + with_sum, 1e-9 * std**2)


def _partitions(table, before, behind, change):
  """Weighs all partitions of `k` bins into runs.

  `table [k, k]` has the log likelihood of the run from bin i to bin j. Values
  may begin after and end before any bin, which is no change point: `before`
  and `behind`, `[k + 1]`, have the log weights of that, for the bins before bin
  i and from bin i on. `change [c]` are the chances of a change point at a
  boundary. Returns the log evidence `[c]` of each chance, and the probability
  `[c, k, k]` of every run given it.
  """
  k = len(table)
  steps = np.arange(k)
  inside = np.maximum(steps[None, :] - steps[:, None], 0)
  scores = table + np.log1p(-change)[:, None, None] * inside
  turn = np.log(change)
  # Of all runs up to a bin, and from a bin on.
  upto = np.full((len(change), k + 1), -np.inf)
  begun = np.tile(before, (len(change), 1))
  rest = np.tile(behind, (len(change), 1))
  for j in range(k):
    begun[:, j] = np.logaddexp(begun[:, j], turn + upto[:, j])
    upto[:, j + 1] = _log_sum(begun[:, : j + 1] + scores[:, : j + 1, j])
    i = k - 1 - j
    further = turn + _log_sum(rest[:, i + 1 :] + scores[:, i, i:])
    rest[:, i] = np.logaddexp(rest[:, i], further)
  evidence = _log_sum(upto + behind)
  joint = begun[:, :k, None] + scores + rest[:, None, 1:]
  return evidence, np.exp(joint - evidence[:, None, None])


def _log_sum(terms):
  top = terms.max(-1)
  return top + np.log(np.exp(terms - top[:, None]).sum(-1))


def _cover(first, last, k, values):
  """Sums `values` of runs `[first, last]` over every bin that they cover."""
  steps = np.zeros(k + 1)
  np.add.at(steps, first, values)
  np.add.at(steps, last + 1, -values)
  return np.cumsum(steps)[:k]
