"""The distribution of codes that a density over points gives."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows._checks import check_integer
from tfdpflows._keras import tfp
from tfdpflows.randomness import Randomness

tfd = tfp.distributions


class Dequantized(tfd.Distribution):
  """Codes, as cells of points that have a density.

  `log_prob` is an estimate, drawn anew at every call: the logarithm of the mean
  of `p(x + u) / q(u | x)` over `num_importance_samples` draws of u. That mean
  is the mass of the row without bias, and so its logarithm is, in expectation,
  a lower bound of the log-probability: the evidence lower bound for one draw,
  the importance weighted one (Burda et al. 2016) for more, closer with each
  draw. Variables of the dequantization are trained with those of the density.
  In training one draw is meant, and `augmentation_multiplicity` of the
  optimizer for a mean of several.

  Args:
    distribution: a `tfd.Distribution` over points `[d]`.
    dequantization: a `bijectors.UniformDequantization`, or a
      `VariationalDequantization`.
    num_importance_samples: draws of u per row.
    seed: of these draws, for tests; `None` for one that nobody knows.

  Raises:
    ValueError: if the two are over other numbers of columns, or
      `num_importance_samples` is no positive integer.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import flows
  >>> flow = flows.dp_hflow([2, 5], num_blocks=1)
  >>> round(float(flow.log_prob([1., 3.])), 3)  # log(1 / 10)
  -2.303
  """

  def __init__(
    self,
    distribution,
    dequantization,
    num_importance_samples=1,
    seed=None,
    validate_args=False,
    allow_nan_stats=True,
    name='dequantized',
  ):
    parameters = dict(locals())
    size = dequantization.sizes.size
    if distribution.event_shape.as_list() != [size]:
      raise ValueError(
        f'The distribution has event shape {distribution.event_shape}, the '
        f'dequantization {size} columns.'
      )
    self.points = distribution
    self.dequantization = dequantization
    self.num_importance_samples = check_integer(
      'num_importance_samples', num_importance_samples
    )
    # An attribute, so that checkpoints keep its state.
    self._generator = Randomness(seed).tensorflow('dequantization')
    super().__init__(
      dtype=distribution.dtype,
      reparameterization_type=tfd.NOT_REPARAMETERIZED,
      validate_args=validate_args,
      allow_nan_stats=allow_nan_stats,
      parameters=parameters,
      name=name,
    )

  @classmethod
  def _parameter_properties(cls, dtype, num_classes=None):
    return {}

  def _batch_shape(self):
    return tf.TensorShape([])

  def _batch_shape_tensor(self):
    return tf.constant([], tf.int32)

  def _event_shape(self):
    return self.points.event_shape

  def _event_shape_tensor(self):
    return self.points.event_shape_tensor()

  def _log_prob(self, x):
    if self.num_importance_samples == 1:
      return self._draw(x)
    # Draws behind the examples, where per-example gradients take them.
    shape = tf.concat(
      [tf.shape(x)[:-1], [self.num_importance_samples], tf.shape(x)[-1:]], 0
    )
    found = self._draw(tf.broadcast_to(x[..., None, :], shape))
    return tf.reduce_logsumexp(found, -1) - np.log(self.num_importance_samples)

  def _draw(self, x):
    uniform = self._generator.uniform(tf.shape(x), dtype=self.dtype)
    u, log_q = self.dequantization(x, tf.ensure_shape(uniform, x.shape))
    return self.points.log_prob(x + u) - log_q

  def _sample_n(self, n, seed=None):
    points = self.points.sample(n, seed=seed)
    sizes = self.dequantization.sizes
    top = np.maximum(sizes - 1, 0).astype(self.dtype.as_numpy_dtype)
    codes = tf.clip_by_value(tf.floor(points), 0, top)
    return tf.where(sizes > 0, codes, points)
