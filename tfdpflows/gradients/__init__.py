"""Per-example gradients in one backward pass, and clipping.

Knows nothing of privacy parameters: what it makes is a sum of bounded
contributions, one per example. `tfdpflows.optimizers` adds the noise.
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
from tfdpflows.gradients.layers import (
  register_rule,
)
from tfdpflows.gradients.rules import PerExampleGradients
from tfdpflows.gradients.tape import (
  PerExampleTape,
  embedding,
  linear,
  per_example,
  shared,
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
  'shared',
]
