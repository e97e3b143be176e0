"""Recipes that assemble bijectors into `tfd.TransformedDistribution`s."""

from tfdpflows.flows.autoregressive import (
  masked_autoregressive_flow,
  neural_spline_flow,
)

__all__ = ['masked_autoregressive_flow', 'neural_spline_flow']
