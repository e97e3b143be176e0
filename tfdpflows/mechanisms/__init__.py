"""One-shot private releases: histograms, bounds, moments, quantiles."""

from tfdpflows.mechanisms.bounds import (
  bounds_event,
  private_bounds,
  private_categories,
  private_range,
)
from tfdpflows.mechanisms.histograms import (
  Histogram,
  histogram_events,
  noise_stds,
  noisy_histogram,
  noisy_histograms,
)
from tfdpflows.mechanisms.moments import MomentNoise, Moments, noisy_moments
from tfdpflows.mechanisms.normalization import (
  Normalization,
  normalization_event,
  private_normalization,
)
from tfdpflows.mechanisms.quantile import private_quantile, quantile_event

__all__ = [
  'Histogram',
  'MomentNoise',
  'Moments',
  'Normalization',
  'bounds_event',
  'histogram_events',
  'noise_stds',
  'noisy_histogram',
  'noisy_histograms',
  'noisy_moments',
  'normalization_event',
  'private_bounds',
  'private_categories',
  'private_normalization',
  'private_quantile',
  'private_range',
  'quantile_event',
]
