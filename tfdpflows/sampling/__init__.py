"""How a batch is drawn, and the `DpEvent` that drawing it this way costs."""

from tfdpflows.sampling.poisson import PoissonSampler

__all__ = ['PoissonSampler']
