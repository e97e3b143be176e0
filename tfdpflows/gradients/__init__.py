"""Per-example gradients in one backward pass, and clipping.

The result is a sum of bounded contributions, one per example, without noise:
`tfdpflows.optimizers` adds that.
"""

from tfdpflows.gradients.clipping import (
  AdaptiveQuantile,
  Automatic,
  Flat,
  PerLayer,
  PerUnit,
  StochasticSparsification,
  Strategy,
)
from tfdpflows.gradients.layers import register_rule
from tfdpflows.gradients.rules import PerExampleGradients
from tfdpflows.gradients.tape import (
  PerExampleTape,
  embedding,
  linear,
  per_example,
)

__all__ = [
  'AdaptiveQuantile',
  'Automatic',
  'Flat',
  'PerExampleGradients',
  'PerExampleTape',
  'PerLayer',
  'PerUnit',
  'StochasticSparsification',
  'Strategy',
  'embedding',
  'linear',
  'per_example',
  'register_rule',
]
