"""TFP bijectors whose parameters have fast per-example gradients."""

from tfdpflows.bijectors.actnorm import ActNorm
from tfdpflows.bijectors.autoregressive_histogram import (
  AutoregressiveHistogram,
)
from tfdpflows.bijectors.linear import LowRankLinear, LULinear
from tfdpflows.bijectors.marginal import MarginalCDF
from tfdpflows.bijectors.masked_autoregressive import MaskedAutoregressive
from tfdpflows.bijectors.planar import Planar
from tfdpflows.bijectors.rational_quadratic import RationalQuadraticSpline
from tfdpflows.bijectors.sylvester import Sylvester

__all__ = [
  'ActNorm',
  'AutoregressiveHistogram',
  'LULinear',
  'LowRankLinear',
  'MarginalCDF',
  'MaskedAutoregressive',
  'Planar',
  'RationalQuadraticSpline',
  'Sylvester',
]
