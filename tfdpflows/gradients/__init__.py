"""Per-example gradients in one backward pass, and clipping.

Knows nothing of privacy parameters: what it makes is a sum of bounded
contributions, one per example. `tfdpflows.optimizers` adds the noise.
"""

from tfdpflows.gradients.clipping import Flat
from tfdpflows.gradients.rules import PerExampleGradients
from tfdpflows.gradients.tape import PerExampleTape, linear, per_example

__all__ = [
  'Flat',
  'PerExampleGradients',
  'PerExampleTape',
  'linear',
  'per_example',
]
