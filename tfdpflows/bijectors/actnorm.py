"""A scale and a shift per column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tfdpflows._keras import tfp
from tfdpflows.bijectors.copies import copies

if TYPE_CHECKING:
  import numpy.typing as npt

tfb = tfp.bijectors


class ActNorm(tfb.Bijector):
  """`y = x * exp(log_scale) + shift`, learned per column (Kingma et al. 2018).

  It is initialised as the identity, not from the first batch as in Glow, which
  is private data. `normalize` sets it from public or private statistics, see
  `flows.initialize_privately`.

  Args:
    event_size: number of columns d.
    dtype: of the variables.

  #### Example

  >>> from tfdpflows import bijectors
  >>> bijectors.ActNorm(2).forward([[1., 2.]]).numpy().tolist()
  [[1.0, 2.0]]
  """

  def __init__(
    self,
    event_size: int,
    dtype: tf.DType | str = tf.float32,
    validate_args: bool = False,
    name: str = 'actnorm',
  ):
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      self.log_scale = tf.Variable(
        tf.zeros([event_size], dtype), name='log_scale'
      )
      self.shift = tf.Variable(tf.zeros([event_size], dtype), name='shift')
      super().__init__(
        forward_min_event_ndims=1,
        dtype=self.shift.dtype,
        validate_args=validate_args,
        parameters=parameters,
        name=name,
      )

  def normalize(self, mean: npt.ArrayLike, std: npt.ArrayLike) -> None:
    """Sets shift and scale, so that `inverse` standardizes the columns.

    Args:
      mean: `[d]`, public or released by a private mechanism, as `std`.
      std: `[d]`, positive.
    """
    dtype = self.shift.dtype
    self.shift.assign(tf.cast(mean, dtype))
    self.log_scale.assign(tf.math.log(tf.cast(std, dtype)))

  @classmethod
  def _parameter_properties(cls, dtype):
    return {}

  def _forward(self, x):
    return x * tf.exp(copies(self.log_scale, x)) + copies(self.shift, x)

  def _forward_log_det_jacobian(self, x):
    return tf.reduce_sum(copies(self.log_scale, x), -1)

  def _inverse(self, y):
    return (y - copies(self.shift, y)) * tf.exp(-copies(self.log_scale, y))
