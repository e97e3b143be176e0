"""Invertible maps, as TFP bijectors whose parameters have per-example rules."""

from tfdpflows.bijectors.actnorm import ActNorm
from tfdpflows.bijectors.autoregressive_histogram import (
  AutoregressiveHistogram,
)
from tfdpflows.bijectors.dequantization import (
  UniformDequantization,
  VariationalDequantization,
)
from tfdpflows.bijectors.linear import LowRankLinear, LULinear
from tfdpflows.bijectors.logistic_mixture import LogisticMixtureCDF
from tfdpflows.bijectors.made import MADE
from tfdpflows.bijectors.marginal import MarginalCDF
from tfdpflows.bijectors.masked_autoregressive import MaskedAutoregressive
from tfdpflows.bijectors.planar import Planar
from tfdpflows.bijectors.rational_quadratic import RationalQuadraticSpline
from tfdpflows.bijectors.sylvester import Sylvester
from tfdpflows.bijectors.univariate import Affine, LogisticMixture, Spline

__all__ = [
  'ActNorm',
  'Affine',
  'AutoregressiveHistogram',
  'LULinear',
  'LogisticMixture',
  'LogisticMixtureCDF',
  'LowRankLinear',
  'MADE',
  'MarginalCDF',
  'MaskedAutoregressive',
  'Planar',
  'RationalQuadraticSpline',
  'Spline',
  'Sylvester',
  'UniformDequantization',
  'VariationalDequantization',
]
