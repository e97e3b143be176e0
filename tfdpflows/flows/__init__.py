"""Flows as `tfd.TransformedDistribution`s, and transforms of one column."""

from tfdpflows.flows.autoregressive import (
  histogram_flow,
  masked_autoregressive_flow,
  neural_spline_flow,
)
from tfdpflows.flows.dp_hflow import dp_hflow
from tfdpflows.flows.dp_nf import dp_nf
from tfdpflows.flows.initialization import initialize_privately
from tfdpflows.flows.transforms import Affine, LogisticMixture, Spline

__all__ = [
  'Affine',
  'LogisticMixture',
  'Spline',
  'dp_hflow',
  'dp_nf',
  'histogram_flow',
  'initialize_privately',
  'masked_autoregressive_flow',
  'neural_spline_flow',
]
