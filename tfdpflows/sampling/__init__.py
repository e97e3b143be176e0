"""How a batch is drawn, and the `DpEvent` that drawing it this way costs."""

from tfdpflows.sampling.fixed_size import FixedSizeSampler
from tfdpflows.sampling.poisson import PoissonSampler
from tfdpflows.sampling.units import Units

__all__ = ['FixedSizeSampler', 'PoissonSampler', 'Units']
