"""Univariate transforms, the argument of an autoregressive bijector.

A univariate transform is a callable from parameters `[..., num_params]` to a
TFP bijector over `[...]`, with the attribute `num_params`. Parameters of zero
give the identity.
"""

from __future__ import annotations

import tensorflow as tf

from tfdpflows._checks import (
  check_integer,
  check_nonnegative,
  check_positive,
)
from tfdpflows._keras import tfp
from tfdpflows.bijectors.logistic_mixture import LogisticMixtureCDF
from tfdpflows.bijectors.rational_quadratic import RationalQuadraticSpline

tfb = tfp.bijectors


class Affine:
  """`x -> x * exp(log_scale) + shift`: the transform of MAF.

  Args:
    max_log_scale: bound of the absolute log-scale, by a tanh.
  """

  num_params = 2

  def __init__(self, max_log_scale: float = 5.0):
    self.max_log_scale = check_nonnegative('max_log_scale', max_log_scale)

  def __call__(self, params):
    log_scale = self.max_log_scale * tf.tanh(
      params[..., 1] / self.max_log_scale
    )
    return _ShiftedScale(params[..., 0], log_scale)


class _ShiftedScale(tfb.Bijector):
  """`x -> x * exp(log_scale) + shift`.

  A chain of TFP's `Shift` and `Scale` would give the same, and add 40
  operations to a graph, for log-determinants that are zero and their shapes.
  """

  def __init__(self, shift, log_scale, name='shifted_scale'):
    parameters = dict(locals())
    self.shift, self.log_scale = shift, log_scale
    super().__init__(
      forward_min_event_ndims=0,
      is_constant_jacobian=True,
      dtype=shift.dtype,
      parameters=parameters,
      name=name,
    )

  @classmethod
  def _parameter_properties(cls, dtype):
    properties = tfp.util.ParameterProperties()
    return {'shift': properties, 'log_scale': properties}

  def _forward(self, x):
    return x * tf.exp(self.log_scale) + self.shift

  def _inverse(self, y):
    return (y - self.shift) * tf.exp(-self.log_scale)

  def _forward_log_det_jacobian(self, x):
    return self.log_scale


class Spline:
  """A monotone rational-quadratic spline, the identity outside an interval.

  Args:
    num_bins: bins between the knots.
    bound: the spline acts on [-bound, bound].
  """

  def __init__(self, num_bins: int = 8, bound: float = 5.0):
    self.num_bins = check_integer('num_bins', num_bins, 2)
    self.bound = check_positive('bound', bound)
    self.num_params = RationalQuadraticSpline.num_params(self.num_bins)

  def __call__(self, params):
    return tfb.Invert(RationalQuadraticSpline(params, bound=self.bound))


class LogisticMixture:
  """The logit of the CDF of a mixture of logistic distributions (Flow++).

  In closed form from data to base; sampling is by bisection.

  Args:
    num_components: components of the mixture.
  """

  def __init__(self, num_components: int = 8):
    self.num_components = check_integer('num_components', num_components)
    self.num_params = LogisticMixtureCDF.num_params(self.num_components)

  def __call__(self, params):
    return tfb.Invert(LogisticMixtureCDF(params, logit=True))
