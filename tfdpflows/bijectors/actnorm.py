"""A scale and a shift per column that start at the identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import tensorflow as tf

from tfdpflows._keras import tfp
from tfdpflows.bijectors.copies import copies

if TYPE_CHECKING:
  import numpy.typing as npt

tfb = tfp.bijectors


class ActNorm(tfb.Bijector):
  """`y = x * exp(log_scale) + shift`, learned per column (Kingma et al. 2018).

  Glow initialises it from the first batch, which reads private data without
  paying; this one starts at the identity. `normalize` sets it from means and
  standard deviations that are public or paid for, see
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
    dtype: Union[tf.DType, str] = tf.float32,
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
        dtype=dtype,
        validate_args=validate_args,
        parameters=parameters,
        name=name,
      )

  def normalize(self, mean: npt.ArrayLike, std: npt.ArrayLike) -> None:
    """Sets scale and shift to those of the columns of `forward`.

    `inverse` then takes columns of these means and standard deviations to
    means 0 and standard deviations 1.

    Args:
      mean: `[d]`.
      std: `[d]`, positive. Nothing is checked: it must be public, or private
        by a mechanism.
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
