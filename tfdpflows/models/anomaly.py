"""Anomalies: rows to which a density gives too little likelihood."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Optional, Union

import numpy as np
import tensorflow as tf

from tfdpflows import _saved_model
from tfdpflows._keras import tfp
from tfdpflows.independence import errors
from tfdpflows.independence.comparison import check_function
from tfdpflows.independence.keras_layers import refuse_batch_statistics
from tfdpflows.mechanisms import private_quantile
from tfdpflows.mechanisms.releases import as_numbers

if TYPE_CHECKING:
  import numpy.typing as npt

  from tfdpflows.accounting import PrivacyLedger
  from tfdpflows.atomic import PathLike
  from tfdpflows.models.density import DensityModel
  from tfdpflows.models.dp_mog import DPMoG
  from tfdpflows.randomness import Randomness

# Rows that are scored at one time.
_CHUNK = 8192
# Rows that a model is known by, in what is kept of a charge.
_NUM_ROWS = 7
# Private rows are scored so many at a time, always.
_PLACES = 1024


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


class AnomalyDetector:
  """Flags rows whose log-density under a model is below a threshold.

  As in Waites & Cummings 2021. The score of a row is `-log_prob`, in nats; a
  row is an anomaly if its score is above the threshold. A row that the model
  gives no density, or for which its log-density is not a number, has the score
  infinity and is an anomaly.

  #### Formal guarantee

  The detector is computed from the model and the threshold alone: it is as
  private as these. A threshold that is given, or that comes from public rows
  (`from_public`), costs nothing; one from private rows (`from_private`) is
  charged. What is scored is not protected: a score tells of the row it is
  for, and `evaluate` of all its rows.

  Args:
    model: a `tfd.Distribution` over `[d]`, or anything that has one as
      `distribution`, such as a `DensityModel`.
    threshold: the score above which a row is an anomaly, in nats; public. It
      is rounded to the dtype of the model, so that a saved detector agrees.

  Raises:
    ValueError: if `model` is no distribution over rows or has a layer that
      mixes rows (batch normalization), or the threshold is not finite.

  #### Example

  >>> import tensorflow as tf, tfdpflows
  >>> flow = tfdpflows.flows.dp_nf(2, num_blocks=1)
  >>> detector = tfdpflows.models.AnomalyDetector(flow, threshold=5.)
  >>> detector.predict([[0., 0.], [4., 4.]]).tolist()
  [False, True]
  """

  def __init__(
    self,
    model: Union[tfp.distributions.Distribution, DensityModel, DPMoG],
    threshold: float,
  ):
    distribution = model
    # Flows have their base under that name.
    if not isinstance(model, tfp.distributions.Distribution):
      distribution = getattr(model, 'distribution', None)
    if (
      distribution is None
      or distribution.event_shape.rank != 1
      or distribution.batch_shape.rank != 0
    ):
      raise ValueError(
        f'{type(model).__name__} is no distribution over rows: give a '
        'tfd.Distribution with event shape [d] and batch shape [], or a model '
        'that has one as `distribution`.'
      )
    refuse_batch_statistics(distribution)
    with np.errstate(over='ignore'):
      rounded = np.asarray(threshold, distribution.dtype.as_numpy_dtype)
    if not np.isfinite(rounded):
      raise ValueError(
        f'threshold is {threshold}; give the score above which to flag, finite '
        f'in {distribution.dtype.name}: rows without density score infinity.'
      )
    self.distribution = distribution
    self.threshold = float(rounded)

  @classmethod
  def from_public(
    cls,
    model: Union[tfp.distributions.Distribution, DensityModel, DPMoG],
    x: npt.ArrayLike,
    false_positive_rate: float,
  ) -> AnomalyDetector:
    """Makes a detector with a threshold from rows that are public.

    Args:
      model: see the class.
      x: public rows `[n, d]`, without anomalies; samples of the model are such.
      false_positive_rate: the largest share of them to be flagged, in [0, 1).

    Raises:
      ValueError: for a number out of range, without rows, for a row with NaN,
        which is named, or if the model gives no density to more rows than may
        be flagged.
    """
    _check_rate(false_positive_rate)
    scores = cls(model, 0.0).score(x)
    if not len(scores):
      raise ValueError('x has no rows to take a threshold from.')
    # The smallest score that at most this share of the rows is above.
    above = math.floor(false_positive_rate * len(scores) + 1e-9)
    threshold = np.sort(scores)[len(scores) - 1 - above]
    if threshold == math.inf:
      raise ValueError(
        f'The model gives no density to {np.isinf(scores).sum()} of '
        f'{len(scores)} rows of x, and false_positive_rate='
        f'{false_positive_rate} lets {above} of them be flagged: no threshold '
        'does that. Look at the model, or give a larger rate.'
      )
    return cls(model, threshold)

  @classmethod
  def from_private(
    cls,
    model: Union[tfp.distributions.Distribution, DensityModel, DPMoG],
    x: npt.ArrayLike,
    *,
    false_positive_rate: float,
    epsilon: float,
    bounds: tuple[float, float],
    ledger: PrivacyLedger,
    randomness: Optional[Randomness] = None,
    label: str = 'anomaly threshold',
    resume: bool = False,
  ) -> AnomalyDetector:
    """Makes a detector with a threshold from private rows, and charges it.

    Args:
      model: see the class.
      x: rows `[n, d]`; those that the model was trained on may serve.
      false_positive_rate: about the share of them to be flagged, in [0, 1).
      epsilon: of this release. `false_positive_rate * n` should be far above
        `10 / epsilon`, see `mechanisms.private_quantile`.
      bounds: public bounds (lower, upper) of the threshold, in nats.
      ledger: `PrivacyLedger` that is charged before anything is computed from
        `x`, but for a fingerprint that says nothing without the secret.
      randomness: `tfdpflows.randomness.Randomness`; by default one that nobody
        knows.
      label: label of the charge.
      resume: whether this call repeats one that the ledger has charged under
        that label, with the same model, rows, parameters and `randomness`.

    Raises:
      ValueError: for a shape, dtype or number out of range; for a model that
        mixes rows, is random or keeps something of them; or to resume without
        `randomness`. Never for what is in the rows: those with NaN count as
        having the score `upper`.
      BudgetExceededError: if the ledger refuses the charge; nothing is
        released.
      LedgerError: to resume with another model, table, parameter or secret.

    #### Formal guarantee

    The model is fixed, so that a row has one score and changes no other one,
    not in the last bit either: rows are scored in batches of one size, whatever
    their number. (In others how a row is rounded depends on how many there are,
    and many rows alike would have other scores for one row less.) That it does
    not depend on the place in a batch is checked before on probe rows, as is
    that rows are not mixed: that finds mistakes, and is no proof. It is
    `mechanisms.private_quantile` of the scores at `1 - false_positive_rate`,
    `ExponentialMechanismDpEvent(epsilon)`.
    """
    _check_rate(false_positive_rate)
    detector = cls(model, 0.0)
    rows = detector._rows(x)
    lower, upper = bounds
    threshold = private_quantile(
      lambda: errors.call(detector._scores_apart, rows),
      1 - false_positive_rate,
      lower=lower,
      upper=upper,
      epsilon=epsilon,
      ledger=ledger,
      randomness=randomness,
      label=label,
      resume=resume,
      source=[rows, *detector._known_by()],
    )
    return cls(model, threshold)

  def score(self, x: npt.ArrayLike) -> np.ndarray:
    """Returns `-log_prob` of rows, in nats.

    Args:
      x: rows `[n, d]`.

    Returns:
      float64 array `[n]`; infinite where the model gives a row no density.

    Raises:
      ValueError: for another shape, or for a row with NaN, which is named.
    """
    rows = self._rows(x)
    missing = np.flatnonzero(np.isnan(rows).any(1))
    if len(missing):
      raise ValueError(
        f'Row {missing[0]} of x has NaN ({len(missing)} of {len(rows)} rows '
        'do). Drop such rows, or fill them in as for training.'
      )
    return self._scores(rows)

  def predict(self, x: npt.ArrayLike) -> np.ndarray:
    """Returns whether rows are anomalies, bool `[n]`; see `score`."""
    return self.score(x) > self.threshold

  def evaluate(
    self, x: npt.ArrayLike, labels: npt.ArrayLike
  ) -> AnomalyEvaluation:
    """Returns how well the scores tell anomalies from other rows.

    Args:
      x: rows `[n, d]`.
      labels: `[n]`, 1 (or True) for anomalies and 0 (or False) for others.

    Returns:
      An `AnomalyEvaluation`. It tells of the rows: it is public if they are.

    Raises:
      ValueError: for labels of another length or other values, or if there is
        only one kind; see also `score`.
    """
    return evaluate_scores(self.score(x), np.asarray(labels), self.threshold)

  def save(self, path: PathLike) -> None:
    """Writes a SavedModel that loads without this package.

    Its signature `score_anomaly` takes `rows` `[n, d]` and gives `score`,
    `is_anomaly` and `threshold`, each `[n]`; the signature `log_prob` gives
    `log_prob`. Both fail on a row with NaN, and name it.

    It has no counters of the process, as of the trials of a search before.

    Args:
      path: the folder.
    """
    size, dtype = self.distribution.event_shape[0], self.distribution.dtype
    spec = tf.TensorSpec([None, size], dtype, name='rows')
    log_prob = tf.function(self._log_prob_of_clean_rows, [spec])

    @tf.function(input_signature=[spec])
    def score_anomaly(rows):
      scores = _scores_of(self._log_prob_of_clean_rows(rows)['log_prob'])
      threshold = tf.fill(tf.shape(scores), tf.cast(self.threshold, dtype))
      return {
        'score': scores,
        'is_anomaly': scores > threshold,
        'threshold': threshold,
      }

    module = tf.Module()
    module.distribution = self.distribution
    signatures = {'score_anomaly': score_anomaly, 'log_prob': log_prob}
    _saved_model.write(module, path, signatures)

  def _log_prob_of_clean_rows(self, rows):
    missing = tf.reduce_any(tf.math.is_nan(rows), 1)
    check = tf.debugging.Assert(
      tf.logical_not(tf.reduce_any(missing)),
      ['Rows with NaN, by number:', tf.where(missing)[:, 0]],
    )
    with tf.control_dependencies([check]):
      return {'log_prob': self._log_prob(rows)}

  def _log_prob(self, rows):
    # TFP keeps results by input tensor.
    return self.distribution.log_prob(tf.identity(rows))

  def _known_by(self):
    """Returns arrays that tell the model from others; refuses some models."""
    variables = self.distribution.variables
    shape = self.distribution.event_shape.as_list()
    check_function(
      self._log_prob,
      f'The density {self.distribution.name!r}',
      shape,
      self.distribution.dtype,
      variables,
    )
    self._check_places()
    rows = tf.constant(self._made_up(_NUM_ROWS))
    known = np.asarray(self._log_prob(rows), np.float64)
    return [*(v.numpy() for v in variables), known]

  def _made_up(self, count):
    """Returns rows `[count, d]`, some that are repeated."""
    shape = self.distribution.event_shape.as_list()
    rows = np.random.default_rng(0).uniform(size=[_NUM_ROWS, *shape])
    rows = rows.astype(self.distribution.dtype.as_numpy_dtype)
    return rows[np.arange(count) % _NUM_ROWS]

  def _check_places(self):
    """Refuses a model that rounds by the place of a row in `_PLACES`."""
    rows = self._made_up(_NUM_ROWS + _PLACES)
    scores = None
    for shift in range(_NUM_ROWS):
      # As `_scores` has them, of which private rows are the others.
      log_prob = self._log_prob(tf.constant(rows[shift : shift + _PLACES]))
      found = _scores_of(log_prob).numpy()
      if scores is None:
        scores = found[np.arange(len(rows)) % _NUM_ROWS]
      if not np.array_equal(found, scores[shift : shift + _PLACES]):
        raise ValueError(
          f'The density {self.distribution.name!r} gives equal rows other '
          'numbers by their place in a batch, if only in the last digits, so '
          'that one row less could move the scores of others. Take the '
          'threshold from public rows, or samples of the model: '
          'AnomalyDetector.from_public.'
        )

  def _rows(self, x):
    x = as_numbers(x)
    with np.errstate(over='ignore'):
      rows = x.astype(self.distribution.dtype.as_numpy_dtype)
    size = self.distribution.event_shape[0]
    if rows.ndim != 2 or rows.shape[1] != size:
      raise ValueError(f'x has shape {rows.shape}; it must be [n, {size}].')
    return rows

  def _scores(self, rows, size=_CHUNK):
    scores = [
      _scores_of(self._log_prob(rows[start : start + size])).numpy()
      for start in range(0, len(rows), size)
    ]
    return np.concatenate([np.zeros(0), *scores])

  def _scores_apart(self, rows):
    """Returns `_scores`, each a function of its row alone: `_check_places`."""
    padding = self._made_up(-len(rows) % _PLACES)
    return self._scores(np.concatenate([rows, padding]), _PLACES)[: len(rows)]


def _scores_of(log_prob):
  # Far out the log-density overflows, in places to inf - inf.
  infinite = tf.fill(tf.shape(log_prob), tf.cast(math.inf, log_prob.dtype))
  return tf.where(tf.math.is_nan(log_prob), infinite, -log_prob)


def _check_rate(rate):
  if not 0 <= rate < 1:
    raise ValueError(
      f'false_positive_rate is {rate}; it must be a share in [0, 1).'
    )


def evaluate_scores(
  scores: np.ndarray, labels: np.ndarray, threshold: float
) -> AnomalyEvaluation:
  """Returns the `AnomalyEvaluation` of scores; above `threshold` is flagged."""
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
