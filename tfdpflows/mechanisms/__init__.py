"""One-shot private releases: histograms, marginals, bounds, quantiles."""

from tfdpflows.mechanisms.bounds import (
  bounds_event,
  private_bounds,
  private_categories,
  private_range,
  private_type,
)
from tfdpflows.mechanisms.histograms import (
  Histogram,
  noisy_histograms,
)
from tfdpflows.mechanisms.marginals import (
  Marginal,
  marginals_event,
  noisy_marginals,
  select_marginal,
  selection_event,
)
from tfdpflows.mechanisms.normalization import (
  Normalization,
  normalization_event,
  private_normalization,
)
from tfdpflows.mechanisms.quantile import private_quantile, quantile_event

__all__ = [
  'Histogram',
  'Marginal',
  'Normalization',
  'bounds_event',
  'marginals_event',
  'noisy_histograms',
  'noisy_marginals',
  'normalization_event',
  'private_bounds',
  'private_categories',
  'private_normalization',
  'private_quantile',
  'private_range',
  'private_type',
  'quantile_event',
  'select_marginal',
  'selection_event',
]
