"""The CDF of a mixture of logistic distributions."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows._keras import tfp
from tfdpflows.bijectors.constraints import bisect

tfb = tfp.bijectors

# A tanh bounds the absolute values of log-scales by this.
_MAX_LOG_SCALE = 4.0
# Inputs are clipped to this share of the largest float.
_SHARE_OF_LARGEST = 1e-4


class LogisticMixtureCDF(tfb.Bijector):
  """`y = sum_k w_k sigmoid((x - m_k) / s_k)`, or its logit.

  Ho et al. 2019, "Flow++", equation 13, without the affine map, which is the
  case of equal components. Computed from the logarithms of both tails, so that
  neither is lost to rounding.

  The inverse is by bisection. With z the logit of y, x is between the smallest
  and the largest of `m_k + s_k z`, the solutions for each component alone. Its
  gradients are those of the implicit function, `dx = (dz - df) / f'(x)`, with
  f' floored at the precision of the float: where components are so far apart
  that f is flat between them, x is not known more precisely.

  With `logit`, parameters of zero give the identity. So that components do not
  stay equal, the parameter of the k-th mean is multiplied by a gain, from 0.5
  to 1.5, and that of the k-th log-scale by one from 1.5 to 0.5.

  Args:
    params: `[..., 3 * num_components]`: logits of the weights, means and
      log-scales, unconstrained.
    logit: whether y is the logit of the CDF, as in a flow over the line, and
      not in (0, 1).

  Raises:
    ValueError: if the last axis of `params` is no multiple of three.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows.bijectors.logistic_mixture import LogisticMixtureCDF
  >>> params = tf.constant([0., 1., -2., 2., 0., -1.])  # Means -1 and 3.
  >>> cdf = LogisticMixtureCDF(params)
  >>> y = cdf.forward([-3., 0., 3.])
  >>> [round(float(p), 2) for p in y]
  [0.03, 0.2, 0.63]
  >>> [round(float(x), 4) for x in cdf.inverse(tf.identity(y))]
  [-3.0, 0.0, 3.0]
  """

  def __init__(
    self,
    params: tf.Tensor,
    logit: bool = False,
    validate_args: bool = False,
    name: str = 'logistic_mixture_cdf',
  ):
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      self._params = tf.convert_to_tensor(params)
      size = self._params.shape[-1]
      if size is None or size % 3 or not size:
        raise ValueError(
          f'params has {size} values on its last axis; a mixture of K '
          'components needs 3 K.'
        )
      self._logit = bool(logit)
      weights, means, scales = tf.split(self._params, 3, -1)
      gains = np.linspace(0.5, 1.5, size // 3) if size > 3 else np.ones(1)
      gains = gains.astype(self._params.dtype.as_numpy_dtype)
      self._log_weights = tf.nn.log_softmax(weights)
      self._means = means * gains
      scales = scales * gains[::-1] / _MAX_LOG_SCALE
      self._log_scales = _MAX_LOG_SCALE * tf.tanh(scales)
      super().__init__(
        forward_min_event_ndims=0,
        dtype=self._params.dtype,
        validate_args=validate_args,
        parameters=parameters,
        name=name,
      )

  @staticmethod
  def num_params(num_components: int) -> int:
    """Returns how many parameters `num_components` components have."""
    return 3 * num_components

  @classmethod
  def _parameter_properties(cls, dtype):
    return {'params': tfp.util.ParameterProperties(event_ndims=1)}

  def _limited(self, value):
    limit = self.dtype.max * _SHARE_OF_LARGEST
    return tf.clip_by_value(value, -limit, limit)

  def _map(self, x):
    """Returns the logit of the CDF at x, and the logarithm of its slope.

    With a the tail that is at least a half and b the other one, z is +-(log a
    - log b), and the slope is `sum_k w_k a_k b_k / s_k / (a b)`: the mean of
    `a_k / s_k` over the components, weighted by their shares in b, over a. No
    two large numbers are subtracted.
    """
    x = self._limited(x)[..., None]
    a = (x - self._means) * tf.exp(-self._log_scales)
    middle = tf.reduce_sum(tf.exp(self._log_weights) * tf.tanh(a / 2), -1)
    one = tf.ones_like(middle)
    sign = tf.stop_gradient(tf.where(middle >= 0, one, -one))
    a = a * sign[..., None]
    near = self._log_weights + tf.math.log_sigmoid(a)
    far = self._log_weights + tf.math.log_sigmoid(-a)
    log_near = tf.reduce_logsumexp(near, -1)
    z = sign * (log_near - tf.reduce_logsumexp(far, -1))
    shares = tf.nn.log_softmax(far)
    slopes = shares + tf.math.log_sigmoid(a) - self._log_scales
    return z, tf.reduce_logsumexp(slopes, -1) - log_near

  def _forward(self, x):
    z, _ = self._map(x)
    return z if self._logit else tf.sigmoid(z)

  def _forward_log_det_jacobian(self, x):
    z, log_slope = self._map(x)
    if self._logit:
      return log_slope
    return log_slope + tf.math.log_sigmoid(z) + tf.math.log_sigmoid(-z)

  def _inverse(self, y):
    z = self._limited(y) if self._logit else _safe_logit(y)
    known = tf.stop_gradient(z)
    low, high = map(tf.stop_gradient, self._bracket(z))
    x = bisect(lambda x: tf.stop_gradient(self._map(x)[0]) > known, low, high)
    found, log_slope = self._map(x)
    flat = np.log(np.finfo(self.dtype.as_numpy_dtype).eps)
    slope = tf.exp(tf.maximum(tf.stop_gradient(log_slope), flat))
    # Of value zero: rounding in the gap, over a small slope, would change x.
    gap = found - z
    return x - (gap - tf.stop_gradient(gap)) / slope

  def _bracket(self, z):
    alone = self._means + tf.exp(self._log_scales) * z[..., None]
    return tf.reduce_min(alone, -1), tf.reduce_max(alone, -1)


def _safe_logit(y):
  """Returns the logit of y clipped into (0, 1)."""
  kind = np.finfo(y.dtype.as_numpy_dtype)
  y = tf.clip_by_value(y, kind.tiny, 1 - kind.epsneg)
  return tf.math.log(y) - tf.math.log1p(-y)
