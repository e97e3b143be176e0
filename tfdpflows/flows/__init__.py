"""Recipes that assemble bijectors into `tfd.TransformedDistribution`s."""

from tfdpflows.flows.autoregressive import (
  histogram_flow,
  masked_autoregressive_flow,
  neural_spline_flow,
)
from tfdpflows.flows.dequantized import Dequantized
from tfdpflows.flows.dp_hflow import dp_hflow
from tfdpflows.flows.dp_nf import dp_nf
from tfdpflows.flows.initialization import initialize_privately

__all__ = [
  'Dequantized',
  'dp_hflow',
  'dp_nf',
  'histogram_flow',
  'initialize_privately',
  'masked_autoregressive_flow',
  'neural_spline_flow',
]
