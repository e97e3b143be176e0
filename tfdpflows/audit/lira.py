"""The likelihood-ratio attack, LiRA: which rows was a model trained on?

Shadow models are trained on random halves of the rows. For each row the scores
of the models that had it, and of those that had not, are fitted by a Gaussian
each; the attack on a target model is the ratio of the two densities at its
score. Every shadow model is the target once, of the attack by all others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Optional

import numpy as np
import numpy.typing as npt
from scipy import special

from tfdpflows._checks import check_integer
from tfdpflows.pate import processes

# With fewer models on one side of a row, its own spread is too inexact.
_OWN_SPREAD = 16
# Least spread, of scores that do not vary.
_LEAST_SPREAD = 1e-9


@dataclasses.dataclass(frozen=True)
class ShadowScores:
  """Scores of all rows by models that were trained on random halves of them.

  Attributes:
    scores: `[num_models, num_rows]`, such as `logit_scores` of the losses, or
      the exact log-density of a flow. The higher, the better the row is known.
    included: bool `[num_models, num_rows]`, what each model was trained on.
  """

  scores: npt.NDArray
  included: npt.NDArray

  def __post_init__(self):
    if self.scores.ndim != 2 or self.scores.shape != self.included.shape:
      raise ValueError(
        f'scores has shape {list(self.scores.shape)} and included '
        f'{list(self.included.shape)}; both must be [num_models, num_rows].'
      )
    if not np.isfinite(self.scores).all():
      raise ValueError('scores holds numbers that are not finite.')
    if self.included.dtype != bool:
      raise ValueError(f'included holds {self.included.dtype}, not bool.')


def train_shadows(
  train: Callable[[npt.NDArray, int], npt.ArrayLike],
  num_rows: int,
  num_models: int,
  *,
  seed: int = 0,
  num_processes: int = 1,
) -> ShadowScores:
  """Trains models on random halves of the rows, in processes of their own.

  Every row is in exactly half of the models. Nothing is charged: the rows must
  be public or made up, or the scores be treated as they are, private.

  Args:
    train: a function of `included`, bool `[num_rows]`, and of a seed, which
      trains a model on the included rows and returns `[num_rows]` scores of all
      rows. It is sent to the processes by cloudpickle: make Keras models inside
      of it.
    num_rows: number of rows.
    num_models: an even number, 6 or more, the targets among them.
    seed: of the halves, and of the seeds.
    num_processes: how many models are trained at one time.

  Returns:
    The `ShadowScores`.

  Raises:
    ValueError: for an odd number of models, fewer than 6, or scores of another
      shape or that are not finite.
  """
  num_rows = check_integer('num_rows', num_rows)
  num_models = check_integer('num_models', num_models, 6)
  if num_models % 2:
    raise ValueError(f'num_models is {num_models}; it must be even.')
  rng = np.random.default_rng(seed)
  ranks = np.argsort(rng.random([num_models, num_rows]), axis=0)
  included = ranks < num_models // 2
  seeds = rng.integers(2**31, size=num_models).tolist()

  def run(task):
    number, mask, seed = task
    return number, np.asarray(train(mask, seed), np.float64)

  scores = np.empty([num_models, num_rows])
  tasks = [(i, included[i], seeds[i]) for i in range(num_models)]
  for number, found in processes.each(run, tasks, num_processes):
    if found.shape != (num_rows,):
      raise ValueError(
        f'train returned scores of shape {list(found.shape)}; they must be '
        f'[num_rows] = [{num_rows}].'
      )
    scores[number] = found
  return ShadowScores(scores, included)


def logit_scores(losses: npt.ArrayLike) -> npt.NDArray:
  """Returns `log(p / (1 - p))` for the probabilities `p = exp(-loss)`.

  The logit of the probability of the right class is nearly Gaussian over
  models, as LiRA needs it. Losses of densities are not logits of anything: use
  the log-density itself.

  #### Example

  >>> logit_scores([np.log(2.), 100.]).tolist()
  [0.0, -100.0]
  """
  losses = np.asarray(losses, np.float64)
  with np.errstate(divide='ignore'):
    logits = -losses - np.log(-np.expm1(-losses))
  # A loss of zero in float32 is that of a probability next to one.
  return np.clip(logits, -100.0, 40.0)


class Lira:
  """The attack on every model by all the others.

  Online, the models that had a row are part of the attack; offline they are
  not, as if the row were new, and a score is as suspicious as it is high among
  the models without the row.

  It is an attack, and no bound: success says that rows are recognised, failure
  nothing of better attacks. What it finds depends on real rows if the rows are
  real, and then is private.

  Args:
    shadows: scores of the models.
    online: see above.
    fixed_variance: whether all rows share one variance (for models with, and
      one for models without them), which needs fewer models; by default where
      there are fewer than 16 on one side of a row.

  Attributes:
    scores: `[num_models, num_rows]`, the attack's; the higher, the more likely
      the target had the row.
    included: as in `shadows`.

  #### Example

  >>> rng = np.random.default_rng(0)
  >>> included = rng.random([40, 500]) < .5
  >>> scores = rng.normal(size=500) + 4 * included + rng.normal(size=[40, 500])
  >>> attack = Lira(ShadowScores(scores, included))
  >>> bool(np.median(attack.true_positive_rates([.01])) > .8)
  True

  #### References

  - Carlini et al. 2022, Membership inference attacks from first principles.
  """

  def __init__(
    self,
    shadows: ShadowScores,
    *,
    online: bool = True,
    fixed_variance: Optional[bool] = None,
  ):
    scores, included = shadows.scores, shadows.included
    self.included = included
    others = {
      side: _Others(scores, np.equal(included, side)) for side in (True, False)
    }
    least = min(int(x.count.min()) for x in others.values())
    if least < 2:
      raise ValueError(
        'A row has fewer than two other models on one side: train more.'
      )
    if fixed_variance is None:
      fixed_variance = least < _OWN_SPREAD
    out_mean, out_spread = others[False].fit(fixed_variance)
    standardized = (scores - out_mean) / out_spread
    self._standardized = {False: standardized}
    in_mean, in_spread = others[True].fit(fixed_variance)
    self._standardized[True] = (scores - in_mean) / in_spread
    if online:
      self.scores = (
        0.5 * standardized**2
        + np.log(out_spread)
        - 0.5 * self._standardized[True] ** 2
        - np.log(in_spread)
      )
    else:
      self.scores = -special.log_ndtr(-standardized)

  def true_positive_rates(
    self, false_positive_rates: npt.ArrayLike
  ) -> npt.NDArray:
    """Returns `[num_models, num_rates]`, on the ROC of each target.

    Thresholds with at most that share of false positives; below one over the
    number of rows that a target did not have, none is left.
    """
    rates = np.asarray(false_positive_rates, np.float64)
    found = []
    for scores, included in zip(self.scores, self.included):
      outside = np.sort(scores[~included])[::-1]
      allowed = np.floor(rates * len(outside) + 1e-9).astype(int)
      allowed = np.minimum(allowed, len(outside))
      # Above the first score that must not be taken for a member.
      threshold = np.append(outside, -np.inf)[allowed]
      inside = np.sort(scores[included])
      below = np.searchsorted(inside, threshold, side='right')
      found.append(1 - below / len(inside))
    return np.array(found)

  def band(self, false_positive_rates: npt.ArrayLike) -> npt.NDArray:
    """Returns `[3, num_rates]`: 5 %, median and 95 % over the targets."""
    rates = self.true_positive_rates(false_positive_rates)
    return np.quantile(rates, [0.05, 0.5, 0.95], axis=0)

  def quantiles(
    self, num: int = 99, *, member: bool = False
  ) -> tuple[npt.NDArray, npt.NDArray]:
    """Returns the points of a Q-Q plot of the scores against the Gaussian fit.

    On the diagonal, scores over models are Gaussian, as the attack assumes.

    Args:
      num: number of points.
      member: of scores of rows that a model had, or that it had not.

    Returns:
      `[num]` quantiles of the standard normal, and of the scores minus their
      mean over the other models, over their standard deviation.
    """
    levels = (np.arange(num) + 0.5) / num
    values = self._standardized[member][self.included == member]
    return special.ndtri(levels), np.quantile(values, levels)


class _Others:
  """Mean and spread of the scores of other models on one side of a row.

  One model is left out on either side, the target itself and the next one of
  the other side: fits from one more model on one side would tell which side the
  target is of.
  """

  def __init__(self, scores, side):
    left_out = _next_on(side)
    count = side.sum(0) - 1
    self.count = np.broadcast_to(count, scores.shape)
    self._mean, self._variance = np.empty_like(scores), np.empty_like(scores)
    models = np.arange(len(scores))[:, None]
    # From the models that stay alone: of sums that held the target too, the
    # rounding would tell that it was among them.
    with np.errstate(invalid='ignore', divide='ignore'):
      for target in range(len(scores)):
        kept = side & (models != left_out[target])
        mean = np.where(kept, scores, 0.0).sum(0) / count
        squares = np.where(kept, scores - mean, 0.0) ** 2
        self._mean[target] = mean
        self._variance[target] = squares.sum(0) / (count - 1)

  def fit(self, fixed_variance):
    variance = self._variance
    if fixed_variance:
      variance = np.mean(variance, axis=1, keepdims=True)
    spread = np.sqrt(np.maximum(variance, 0.0))
    # The mean of few models is inexact too.
    spread = spread * np.sqrt(1 + 1 / self.count)
    return self._mean, np.maximum(spread, _LEAST_SPREAD)


def _next_on(side):
  """Returns which model, from each one on, is the first on a side; -1 if none.

  Of each row: `[num_models, num_rows]`.
  """
  found = np.empty(side.shape, np.int64)
  following = np.full(side.shape[1], -1)
  # Twice around, as the first one may follow the last.
  for i in [*range(len(side))[::-1]] * 2:
    following = np.where(side[i], i, following)
    found[i] = following
  return found
