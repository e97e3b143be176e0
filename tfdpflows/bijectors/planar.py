"""Planar flows."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows.bijectors.constraints import solve_monotone, squeeze
from tfdpflows.bijectors.copies import copies
from tfdpflows.bijectors.one_pass import OnePassInverse


class Planar(OnePassInverse):
  """`z = y + v tanh(w . y + b)` from data y to base z (`inverse`).

  Rezende & Mohamed 2015, equation 10, in the direction of training, with the
  log-determinant `log(1 + (w . v)(1 - tanh^2))` (equation 12). It is invertible
  where `w . v > -1`. Their v adds to u a multiple of w / |w|^2, which noise on
  the parameters can make huge; here `v = u f(w . u)` with f = 1 for
  `w . u >= 0` and a tanh below. `forward` solves for one number per row. It is
  initialised as the identity: u is zero.

  Args:
    event_size: number of columns d.
    dtype: of the variables.
    seed: for the initial w, or `None`.

  #### Example

  >>> from tfdpflows import bijectors
  >>> bijectors.Planar(2).inverse([[1., 2.]]).numpy().tolist()
  [[1.0, 2.0]]
  """

  def __init__(
    self,
    event_size: int,
    dtype: tf.DType | str = tf.float32,
    seed: int | None = None,
    validate_args: bool = False,
    name: str = 'planar',
  ):
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      rng = np.random.default_rng(seed)
      w = rng.normal(size=[event_size]) / np.sqrt(event_size)
      self.w = tf.Variable(w, dtype=dtype, name='w')
      self.u = tf.Variable(tf.zeros([event_size], dtype), name='u')
      self.b = tf.Variable(tf.zeros([], dtype), name='b')
      super().__init__(
        dtype=self.w.dtype,
        validate_args=validate_args,
        parameters=parameters,
        name=name,
      )

  def _parts(self, x):
    """Returns w, v, b and w . v, one per example."""
    w, u = copies(self.w, x), copies(self.u, x)
    slope = tf.reduce_sum(w * u, -1)
    f = squeeze(slope)
    b = copies(self.b, x[..., 0], axes=0)
    return w, u * f[..., None], b, slope * f

  def _inverse_and_log_det(self, y):
    w, v, b, slope = self._parts(y)
    t = tf.tanh(tf.reduce_sum(w * y, -1) + b)
    return y + v * t[..., None], tf.math.log1p(slope * (1 - t * t))

  def _forward(self, z):
    w, v, b, slope = self._parts(z)
    a = solve_monotone(slope, b, tf.reduce_sum(w * z, -1))
    return z - v * tf.tanh(a + b)[..., None]
