"""Networks that give the parameters of bijectors, with per-example rules."""

from tfdpflows.networks.made import MADE

__all__ = ['MADE']
