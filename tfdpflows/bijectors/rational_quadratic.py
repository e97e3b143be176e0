"""Monotone rational-quadratic splines, under `vectorized_map` and XLA too."""

from __future__ import annotations

import math

import tensorflow as tf

from tfdpflows._keras import tfp

tfb = tfp.bijectors


class RationalQuadraticSpline(tfb.Bijector):
  """A monotone rational-quadratic spline on [-bound, bound].

  Durkan et al. 2019, "Neural spline flows", equations 4 to 8. Between two
  knots (x0, y0), (x1, y1) with slopes d0, d1, s = (y1-y0)/(x1-x0) and
  t = (x-x0)/(x1-x0),

      y = y0 + (y1-y0) (s t^2 + d0 t (1-t)) / (s + (d0 + d1 - 2s) t (1-t)),

  and the identity outside of [-bound, bound]. Widths, heights (softmaxes) and
  slopes (softpluses of the parameters) are floored. Parameters of zero give the
  identity.

  Args:
    params: `[..., 3 * num_bins - 1]`: num_bins widths, num_bins heights and
      num_bins - 1 inner slopes, unconstrained.
    bound: half the width of the interval.
    min_bin: floor of widths and heights, as a share of the interval.
    min_slope: floor of the slopes.

  Raises:
    ValueError: if the last axis of `params` is not `3 * num_bins - 1`.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import bijectors
  >>> spline = bijectors.RationalQuadraticSpline(tf.zeros([23]))
  >>> spline.forward([-9., .5, 9.]).numpy().tolist()
  [-9.0, 0.5, 9.0]
  """

  def __init__(
    self,
    params: tf.Tensor,
    bound: float = 5.0,
    min_bin: float = 1e-3,
    min_slope: float = 1e-3,
    validate_args: bool = False,
    name: str = 'rational_quadratic_spline',
  ):
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      self._params = tf.convert_to_tensor(params)
      size = self._params.shape[-1]
      if size is None or (size + 1) % 3 or size < 5:
        raise ValueError(
          f'params has {size} values on its last axis; a spline with K bins '
          'needs 3 K - 1, K >= 2.'
        )
      self._num_bins = (size + 1) // 3
      if not 0 < min_bin * self._num_bins < 1:
        raise ValueError(
          f'min_bin={min_bin} times {self._num_bins} bins must be below 1.'
        )
      self._bound = float(bound)
      self._min_bin = float(min_bin)
      self._min_slope = float(min_slope)
      self._knots = self._make_knots()
      super().__init__(
        forward_min_event_ndims=0,
        dtype=self._params.dtype,
        validate_args=validate_args,
        parameters=parameters,
        name=name,
      )

  @staticmethod
  def num_params(num_bins: int) -> int:
    """Returns how many parameters a spline with `num_bins` bins has."""
    return 3 * num_bins - 1

  @classmethod
  def _parameter_properties(cls, dtype):
    return {'params': tfp.util.ParameterProperties(event_ndims=1)}

  def _make_knots(self):
    """Returns knots x, y `[..., K + 1]` and slopes at them."""
    k = self._num_bins
    widths, heights, slopes = tf.split(self._params, [k, k, k - 1], -1)
    x, y = self._positions(widths), self._positions(heights)
    # softplus(0 + shift) + min_slope = 1.
    shift = math.log(math.expm1(1 - self._min_slope))
    slopes = tf.nn.softplus(slopes + shift) + self._min_slope
    one = tf.ones_like(x[..., :1])
    # tf.concat and not tf.pad: `vectorized_map` loses the padding value.
    return x, y, tf.concat([one, slopes, one], -1)

  def _positions(self, logits):
    share = tf.nn.softmax(logits)
    share = self._min_bin + (1 - self._min_bin * self._num_bins) * share
    inner = tf.cumsum(share, -1)[..., :-1] * (2 * self._bound) - self._bound
    end = tf.fill(tf.shape(inner[..., :1]), tf.cast(self._bound, inner.dtype))
    return tf.concat([-end, inner, end], -1)

  def _bin(self, value, knots):
    """Returns a function of `[..., K + 1]`, its values at the ends of bins."""
    passed = tf.cast(value[..., None] >= knots[..., 1:-1], value.dtype)
    one = tf.ones_like(passed[..., :1])
    lower = tf.concat([one, passed], -1)
    upper = tf.concat([passed, tf.zeros_like(one)], -1)
    here = lower - upper  # One-hot over the K bins.

    def pick(values):
      return (
        tf.reduce_sum(values[..., :-1] * here, -1),
        tf.reduce_sum(values[..., 1:] * here, -1),
      )

    return pick

  def _inside(self, value):
    """Returns the value clipped to the interval, and where it was inside.

    So that the branch of `tf.where` that is not taken has finite gradients.
    """
    clipped = tf.clip_by_value(value, -self._bound, self._bound)
    return clipped, tf.abs(value) < self._bound

  def _segment(self, value, knots):
    pick = self._bin(value, knots)
    x, y, slopes = self._knots
    (x0, x1), (y0, y1), (d0, d1) = pick(x), pick(y), pick(slopes)
    return x0, x1 - x0, y0, y1 - y0, d0, d1

  @staticmethod
  def _log_slope(t, s, d0, d1):
    """Returns log dy/dx at position t of a segment."""
    u = t * (1 - t)
    numerator = d1 * t * t + 2 * s * u + d0 * (1 - t) * (1 - t)
    denominator = s + (d0 + d1 - 2 * s) * u
    return (
      2 * tf.math.log(s) + tf.math.log(numerator) - 2 * tf.math.log(denominator)
    )

  def _forward(self, x):
    clipped, inside = self._inside(x)
    x0, width, y0, height, d0, d1 = self._segment(clipped, self._knots[0])
    t, s = (clipped - x0) / width, height / width
    u = t * (1 - t)
    y = y0 + height * (s * t * t + d0 * u) / (s + (d0 + d1 - 2 * s) * u)
    return tf.where(inside, y, x)

  def _forward_log_det_jacobian(self, x):
    clipped, inside = self._inside(x)
    x0, width, _, height, d0, d1 = self._segment(clipped, self._knots[0])
    log_slope = self._log_slope((clipped - x0) / width, height / width, d0, d1)
    return tf.where(inside, log_slope, tf.zeros_like(log_slope))

  def _position(self, y):
    """Returns t of the root, its segment and where y was inside."""
    clipped, inside = self._inside(y)
    x0, width, y0, height, d0, d1 = self._segment(clipped, self._knots[1])
    s, rest = height / width, clipped - y0
    a = height * (s - d0) + rest * (d0 + d1 - 2 * s)
    b = height * d0 - rest * (d0 + d1 - 2 * s)
    c = -s * rest
    # The form of the root that does not cancel; b > 0 and c <= 0.
    root = tf.sqrt(tf.maximum(b * b - 4 * a * c, 0))
    t = tf.clip_by_value(2 * c / (-b - root), 0, 1)
    return t, x0, width, s, d0, d1, inside

  def _inverse(self, y):
    t, x0, width, _, _, _, inside = self._position(y)
    return tf.where(inside, x0 + t * width, y)

  def _inverse_log_det_jacobian(self, y):
    t, _, _, s, d0, d1, inside = self._position(y)
    log_slope = self._log_slope(t, s, d0, d1)
    return tf.where(inside, -log_slope, tf.zeros_like(log_slope))
