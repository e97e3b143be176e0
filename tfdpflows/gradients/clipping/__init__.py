"""Clipping strategies: from per-example gradients to a bounded sum."""

from tfdpflows.gradients.clipping.adaptive import AdaptiveQuantile
from tfdpflows.gradients.clipping.flat import Automatic, Flat
from tfdpflows.gradients.clipping.layers import PerLayer, PerUnit
from tfdpflows.gradients.clipping.sparsification import (
  StochasticSparsification,
)
from tfdpflows.gradients.clipping.strategy import Strategy

__all__ = [
  'AdaptiveQuantile',
  'Automatic',
  'Flat',
  'PerLayer',
  'PerUnit',
  'StochasticSparsification',
  'Strategy',
]
