"""Networks for the parameters of bijectors, with per-example gradients."""

from tfdpflows.networks.made import MADE

__all__ = ['MADE']
