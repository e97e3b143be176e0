"""How well scores tell anomalies from other rows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import numpy.typing as npt


@dataclasses.dataclass(frozen=True, eq=False)
class AnomalyEvaluation:
  """The receiver operating characteristic of scores, and a point on it.

  Attributes:
    false_positive_rates: float64 `[k]`, rising from 0 to 1: the share of
      ordinary rows with a score of `thresholds` or above.
    true_positive_rates: float64 `[k]`, the same share of anomalies.
    thresholds: float64 `[k]`, falling from infinity (which flags nothing).
    auc: the area below that curve: the probability that an anomaly scores
      above an ordinary row, equal scores counting half.
    false_positive_rate: share of ordinary rows that the detector flags.
    true_positive_rate: share of anomalies that the detector flags.
  """

  false_positive_rates: np.ndarray
  true_positive_rates: np.ndarray
  thresholds: np.ndarray
  auc: float
  false_positive_rate: float
  true_positive_rate: float


def evaluate_scores(
  scores: npt.ArrayLike, labels: npt.ArrayLike, threshold: float
) -> AnomalyEvaluation:
  """Returns the `AnomalyEvaluation` of scores.

  Args:
    scores: float array `[n]`, high for anomalies; may be infinite.
    labels: `[n]`, 1 (or True) for anomalies and 0 (or False) for others.
    threshold: scores above it are flagged.

  Raises:
    ValueError: for labels of another length or other values, or if there is
      only one kind.

  #### Example

  >>> from tfdpflows.models.anomaly_evaluation import evaluate_scores
  >>> evaluate_scores([1., 2., 3., 4.], [0, 1, 0, 1], 2.5).auc
  0.75
  """
  scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
  if labels.shape != scores.shape or not np.isin(labels, [0, 1]).all():
    raise ValueError(
      f'labels have shape {labels.shape} and values '
      f'{np.unique(labels)[:5].tolist()}; they must be [{len(scores)}] of 0, '
      'for ordinary rows, and 1, for anomalies.'
    )
  labels = labels.astype(bool)
  if not 0 < labels.sum() < len(labels):
    raise ValueError(
      f'labels name {labels.sum()} anomalies and {(~labels).sum()} other rows; '
      'both kinds are needed.'
    )
  from sklearn import metrics  # noqa: PLC0415 (slow to import)

  # scikit-learn takes no infinite scores, but their ranks.
  levels, ranks = np.unique(scores, return_inverse=True)
  fpr, tpr, places = metrics.roc_curve(labels, ranks, drop_intermediate=False)
  flagged = scores > threshold
  return AnomalyEvaluation(
    false_positive_rates=fpr,
    true_positive_rates=tpr,
    thresholds=np.append(np.inf, levels[places[1:].astype(int)]),
    auc=float(metrics.auc(fpr, tpr)),
    false_positive_rate=float(flagged[~labels].mean()),
    true_positive_rate=float(flagged[labels].mean()),
  )
