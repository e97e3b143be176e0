"""How a batch is drawn, and the `DpEvent` that drawing it this way costs."""

from tfdpflows.sampling.cyclic_poisson import CyclicPoissonSampler
from tfdpflows.sampling.fixed_size import FixedSizeSampler
from tfdpflows.sampling.poisson import PoissonSampler
from tfdpflows.sampling.units import Units

__all__ = [
  'CyclicPoissonSampler',
  'FixedSizeSampler',
  'PoissonSampler',
  'Units',
]
