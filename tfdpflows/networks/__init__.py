"""Networks with per-example gradients: of bijectors' parameters, of series."""

from tfdpflows.networks.grud import GRUD
from tfdpflows.networks.made import MADE

__all__ = ['GRUD', 'MADE']
