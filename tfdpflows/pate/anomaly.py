"""DP-AD: anomalies, by the votes of densities on disjoint shards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from tfdpflows._checks import check_fraction
from tfdpflows.pate.teachers import TeacherEnsemble
from tfdpflows.randomness import Randomness


class AnomalyEnsemble(TeacherEnsemble):
  """Densities on disjoint shards that vote whether a row is an anomaly.

  DP-AD (Waites and Cummings 2021, algorithm 2). Densities are trained without
  noise. Class 1 is "anomaly", for rows whose log-density is below a threshold;
  class 0 is all others. `ExponentialVote` answers each query at the same cost;
  `SparseVector` answers a stream in which anomalies are rare.

  Args:
    make_density: a function without arguments that returns a new density: an
      estimator with `fit(x)` and `score_samples(x)`, such as
      `sklearn.mixture.GaussianMixture`, or a `DensityModel` that is compiled
      with a Keras optimizer.
    num_teachers: number of densities, and of shards.
    threshold: public threshold on the log-density, in nats.
    false_positive_rate: in place of `threshold`, the share of its own shard
      that each density flags, in (0, 1). Each takes its threshold from its own
      shard, so that it is a part of the teacher and costs nothing.
    fit_options: see `TeacherEnsemble`, as `randomness`.
    randomness: see there.
    example: public rows to try a density on.

  Raises:
    ValueError: unless one of `threshold` and `false_positive_rate` is given,
      and in range.

  #### Formal guarantee

  That of `TeacherEnsemble`: a row changes one vote in each query.

  #### Example

  >>> import numpy as np
  >>> from sklearn.mixture import GaussianMixture
  >>> from tfdpflows import accounting, pate
  >>> rows = np.random.default_rng(0).normal(size=[2000, 2])
  >>> densities = pate.AnomalyEnsemble(
  ...   GaussianMixture, 20, false_positive_rate=.01)
  >>> aggregator = pate.ExponentialVote(
  ...   epsilon=1., num_teachers=20, num_classes=2,
  ...   ledger=accounting.PrivacyLedger())
  >>> densities = densities.fit(rows, progress=False)
  >>> aggregator.query(densities.votes([[0., 0.], [9., 9.]])).tolist()
  [0, 1]
  """

  def __init__(
    self,
    make_density: Callable[[], Any],
    num_teachers: int,
    *,
    threshold: Optional[float] = None,
    false_positive_rate: Optional[float] = None,
    fit_options: Optional[dict[str, Any]] = None,
    randomness: Optional[Randomness] = None,
    example: Optional[npt.ArrayLike] = None,
  ):
    if (threshold is None) == (false_positive_rate is None):
      raise ValueError('Give one of threshold and false_positive_rate.')
    if threshold is not None and not math.isfinite(threshold):
      raise ValueError(f'threshold is {threshold}; it must be finite, in nats.')
    if false_positive_rate is not None:
      check_fraction('false_positive_rate', false_positive_rate)
    super().__init__(
      make_density,
      num_teachers,
      2,
      fit_options=fit_options,
      randomness=randomness,
      example=None if example is None else (example, None),
    )
    self.threshold = threshold
    self.false_positive_rate = false_positive_rate

  def scores(self, x: npt.ArrayLike) -> np.ndarray:
    """Returns the log-density of each density; private, as the votes.

    Args:
      x: public rows `[queries, d]`.

    Returns:
      float64 `[num_teachers, queries]`, in nats, NaN where there is none.

    Raises:
      ValueError: as `votes`.
    """
    return self._asked('_scores', x)

  def _scores(self, task):
    x, teachers = task
    found = np.full([self.num_teachers, len(x)], np.nan)
    for t, teacher, model in self._models(x, teachers):
      if teacher.model is not None:
        # As for votes: no row of a shard shows in an error.
        try:
          scores = self._outputs(model, x)
          # Of one number, NumPy would make as many.
          if scores.shape == (len(x),):
            found[t] = scores
        except KeyboardInterrupt:
          raise
        except BaseException:  # As in training.
          found[t] = np.nan
    return found

  def _labels(self, x, y):
    if y is not None:
      raise ValueError('Densities are trained on rows alone: fit(x).')
    return None

  def _settings(self):
    return {
      **super()._settings(),
      'threshold': self.threshold,
      'false_positive_rate': self.false_positive_rate,
    }

  def _outputs(self, model, x):
    x = np.array(x)  # As for votes: it may change its input.
    if hasattr(model, 'score_samples'):
      return np.asarray(model.score_samples(x), np.float64)
    return np.asarray(model.predict_on_batch(x), np.float64)

  def _facts_of(self, model, x):
    if self.threshold is not None:
      return np.array([float(self.threshold)])
    scores = np.nan_to_num(self._outputs(model, x), nan=-np.inf)
    return np.array([np.quantile(scores, self.false_positive_rate)])

  def _classes(self, outputs, facts):
    # What has no density is an anomaly.
    return (~(outputs >= facts[0])).astype(np.int64)

  def _check_outputs(self, found, n):
    if found.shape != (n,):
      raise ValueError(
        f'A density gives numbers of shape {list(found.shape)} for {n} rows; '
        'it must give a log-density for each.'
      )
