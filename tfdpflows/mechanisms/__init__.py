"""One-shot private releases: histograms and bounds."""

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

__all__ = [
  'Histogram',
  'bounds_event',
  'histogram_events',
  'noise_stds',
  'noisy_histogram',
  'noisy_histograms',
  'private_bounds',
  'private_categories',
  'private_range',
]
