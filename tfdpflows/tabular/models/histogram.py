"""Conditional histograms: each column's bins given those of the ones before."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfdpflows import accounting, bijectors, flows
from tfdpflows._keras import tfp
from tfdpflows.randomness import Randomness
from tfdpflows.tabular.density import BATCH, TableDensity
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models import adaptive_marginals
from tfdpflows.tabular.models.base import positive, share, whole, widths
from tfdpflows.tabular.models.flow import FlowModel

# A bin with this multiple of an equal share is not joined to the ones before.
_HEAVY = 0.5
# Neighbouring categories have nothing in common: they are joined only where
# there are more than this many times `num_bins`.
_CATEGORIES = 4


@dataclasses.dataclass(frozen=True)
class HistogramModel(FlowModel):
  """One histogram for each column, a function of the bins before it.

  `num_bins` is the largest number of bins of an ordered column (`knots`).

  Attributes:
    target: name of the column to predict from the others; the last one in the
      order of the flow, so that it depends on all others.
    target_weight: how many times its log-probability counts in training.
    matching: whether the marginals of the trained flow are set to the released
      histograms.
    adaptive_marginals: how many joint marginals of columns are selected and
      measured after training, and fitted by the model (`adaptive_marginals`).
    adaptive_share: share of the budget that goes to them, as `marginal_share`.

  #### Example

  >>> HistogramModel.for_table(32_000, 9).epochs
  62.5
  """

  name: ClassVar[str] = 'histogram'

  marginal_share: float = share(0.25)
  hidden_units: tuple = widths((64,))
  num_bins: int = whole(16, 2)
  epochs: float = positive(64.0)
  l2_norm_clip: float = positive(12.0)
  learning_rate: float = positive(0.015)
  target: str | None = None
  target_weight: float = positive(4.0)
  matching: bool = True
  adaptive_marginals: int = whole(0, 0)
  adaptive_share: float = share(0.2)

  def __post_init__(self):
    super().__post_init__()
    if not self.adaptive_marginals:
      return
    if self.marginal_share + self.adaptive_share >= 1:
      raise ValueError(
        f'marginal_share is {self.marginal_share} and adaptive_share '
        f'{self.adaptive_share}; they must leave a share for training.'
      )
    if not self.matching:
      raise ValueError(
        f'adaptive_marginals is {self.adaptive_marginals} and matching '
        f'{self.matching}; adaptive marginals need matching.'
      )

  def _target_number(self, names):
    """Returns the number of the target, or `None`."""
    return None if self.target is None else list(names).index(self.target)

  def make_flow(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None,
  ) -> tfp.distributions.TransformedDistribution:
    """See `TableModel`; the target comes last."""
    places = [
      knots(column, m['edges'], m['probabilities'], self.num_bins)
      for column, m in zip(columns, marginals)
    ]
    order = list(range(len(columns)))
    target = self._target_number(c.name for c in columns)
    if target is not None:
      order.append(order.pop(target))
    return flows.histogram_flow(
      places, self.hidden_units, order=order, seed=seed
    )

  def make_distribution(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None = None,
  ) -> HistogramDensity:
    """See `TableModel`."""
    weights = [1.0] * len(columns)
    target = self._target_number(c.name for c in columns)
    if target is not None:
      weights[target] = self.target_weight
    return HistogramDensity(
      *self._density_arguments(columns, marginals, seed), weights
    )

  def plan_refinement(self, noise_multiplier: float) -> tuple:
    """See `TableModel`: the rounds of adaptive measurement."""
    return adaptive_marginals.plan_rounds(
      self.adaptive_marginals, noise_multiplier / np.sqrt(self.adaptive_share)
    )

  def refine(
    self,
    density: HistogramDensity,
    codes: Any,
    rounds: tuple,
    randomness: Randomness,
    ledger: accounting.PrivacyLedger,
    **options: Any,
  ) -> None:
    """See `TableModel`: matching, then the rounds."""
    if self.matching:
      seed = int(randomness.numpy('matching').integers(2**31))
      density.latent.bijector.match_marginals(seed=seed)
    if rounds:
      adaptive_marginals.refine(
        density,
        codes,
        rounds,
        randomness,
        ledger,
        target=self._target_number(density.names),
        **options,
      )


class HistogramDensity(TableDensity):
  """A `TableDensity` whose flow is a `flows.histogram_flow`.

  `weights` are factors of the columns' log-probabilities in training, by
  default 1.
  """

  def __init__(
    self,
    columns: Sequence[EncodedColumn],
    edges: Sequence[Sequence[float]],
    probabilities: Sequence[Sequence[float]],
    latent: tfp.distributions.TransformedDistribution,
    dequantization: flows.dequantization.UniformDequantization | None = None,
    weights: Sequence[float] | None = None,
  ):
    super().__init__(columns, edges, probabilities, latent, dequantization)
    if weights is None:
      weights = [1.0] * len(columns)
    self._weights = np.array(weights, np.float32)

  def gains(self, points: tf.Tensor) -> tf.Tensor:
    """See `TableDensity`; here columns count by their weights."""
    ratios = self.latent.bijector.log_ratios(self.marginal.forward(points))
    return tf.reduce_sum(ratios * self._weights, -1)

  def bins(self, x: np.ndarray) -> np.ndarray:
    """Returns the bin of each code or point `[n, d]`, int32 `[n, d]`."""
    parts = [np.zeros([0, len(self.names)], np.int32)]
    for start in range(0, len(x), BATCH):
      part = np.asarray(x[start : start + BATCH], np.float32)
      padded = np.pad(part, ((0, BATCH - len(part)), (0, 0)), 'edge')
      parts.append(self._bins_batch(tf.constant(padded)).numpy()[: len(part)])
    return np.concatenate(parts)

  @tf.function(autograph=False)
  def _bins_batch(self, x):
    # Edges lie between cells, so that any point of a cell will do.
    middle = tf.where(self._cell > 0, tf.floor(x) + 0.5 * self._cell, x)
    return self.latent.bijector.bins(self.marginal.forward(middle))


def knots(
  column: EncodedColumn,
  edges: Sequence[float],
  probabilities: Sequence[float],
  num_bins: int,
) -> np.ndarray:
  """Returns the normal scores of the edges between the bins of a column.

  >>> from tfdpflows.tabular.encoding import EncodedColumn
  >>> age = EncodedColumn('age', 8., 1., missing=False, ordered=True)
  >>> knots(age, range(9), [1 / 8] * 8, num_bins=2)
  array([0.])
  """
  edges = np.asarray(edges, np.float64)
  kept = kept_edges(column, probabilities, num_bins)
  if not len(kept):
    return np.zeros(0)
  cdf = bijectors.MarginalCDF([edges], [probabilities], tf.float64)
  return cdf.forward(edges[kept][:, None]).numpy()[:, 0]


def kept_edges(
  column: EncodedColumn, probabilities: Sequence[float], num_bins: int
) -> np.ndarray:
  """Returns the numbers of the inner edges of a histogram that bins keep.

  Neighbouring bins of the private histogram are joined until they hold about
  `1 / num_bins` of the rows; heavy ones, such as a spike at zero, stay single.
  Where spikes leave a share r of the rows, these get `num_bins * sqrt(r)` bins:
  fewer than a whole column, more than their share. Categories are not joined,
  up to four times as many.
  """
  if column.cell and not column.ordered:
    num_bins *= _CATEGORIES
  if len(probabilities) > num_bins:
    return _joined(np.asarray(probabilities), num_bins)
  return np.arange(1, len(probabilities))


def _joined(probabilities, num_bins):
  """Returns the numbers of the edges that remain between joined bins."""
  share = np.sum(probabilities) / num_bins
  spikes = probabilities >= share
  rest = np.sum(probabilities[~spikes]) / np.sum(probabilities)
  share *= np.sqrt(rest)
  kept, mass = [], 0.0
  for i, p in enumerate(probabilities):
    if mass and (p >= _HEAVY * share or mass + p > share):
      kept.append(i)
      mass = 0.0
    mass += p
  return np.array(kept, int)
