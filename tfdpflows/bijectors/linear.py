"""Linear maps that are invertible for all values of their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfdpflows import gradients
from tfdpflows._keras import tfp
from tfdpflows.bijectors.constraints import positive, squeeze
from tfdpflows.bijectors.copies import copies
from tfdpflows.gradients import tape

if TYPE_CHECKING:
  import numpy.typing as npt

tfb = tfp.bijectors


class LULinear(tfb.Bijector):
  """`z = L U y` from data y to base z, L and U triangular (`inverse`).

  The linear layer of Glow (Kingma & Dhariwal 2018, equation 10), without
  solving in the direction of training: L has a unit diagonal, that of U is a
  softplus above `constraints.FLOOR`, and the log-determinant is the sum of its
  logarithms. It is initialised as the identity. With d_z the gradient at z,
  those by the parameters are `dL = d_z (U y)^T` and `dU = L^T d_z y^T` under
  the triangles' masks, and none is stored per example.

  Args:
    event_size: number of columns d.
    permutation: the order of the columns, integers `[d]`: `z = P^T L U P y`.
      By default that of the data.
    dtype: of the variables.

  Raises:
    ValueError: if `permutation` is not a permutation of the columns.

  #### Example

  >>> from tfdpflows import bijectors
  >>> bijectors.LULinear(2).inverse([[1., 2.]]).numpy().round(5).tolist()
  [[1.0, 2.0]]
  """

  def __init__(
    self,
    event_size: int,
    permutation: npt.ArrayLike | None = None,
    dtype: tf.DType | str = tf.float32,
    validate_args: bool = False,
    name: str = 'lu_linear',
  ):
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      order = np.arange(event_size) if permutation is None else permutation
      order = np.asarray(order)
      if sorted(order.tolist()) != list(range(event_size)):
        raise ValueError(
          f'permutation={order.tolist()} is no permutation of {event_size} '
          'columns.'
        )
      self._order, self._back = order, np.argsort(order)
      make = lambda name, *shape: tf.Variable(tf.zeros(shape, dtype), name=name)
      # As kernels of `linear`, [in, out]: transposed.
      self.lower = make('lower', event_size, event_size)
      self.upper = make('upper', event_size, event_size)
      self.diagonal = make('diagonal', event_size)
      dtype = self.diagonal.dtype
      mask = np.triu(np.ones([event_size, event_size]), 1)
      with tf.init_scope():
        self._lower_mask = tf.constant(mask, dtype)
        self._upper_mask = tf.constant(mask.T, dtype)
      super().__init__(
        forward_min_event_ndims=1,
        dtype=dtype,
        validate_args=validate_args,
        parameters=parameters,
        name=name,
      )

  @classmethod
  def _parameter_properties(cls, dtype):
    return {}

  def _inverse(self, y):
    x = tf.gather(y, self._order, axis=-1)
    diagonal = positive(copies(self.diagonal, x))
    u = x * diagonal + _linear(x, self.upper, self._upper_mask)
    z = u + _linear(u, self.lower, self._lower_mask)
    return tf.gather(z, self._back, axis=-1)

  def _inverse_log_det_jacobian(self, y):
    return tf.reduce_sum(tf.math.log(positive(copies(self.diagonal, y))), -1)

  def _forward(self, z):
    size = self._order.size
    flat = tf.reshape(tf.gather(z, self._order, axis=-1), [-1, size])
    one = tf.eye(size, dtype=z.dtype)
    lower = self.lower * self._lower_mask + one
    upper = self.upper * self._upper_mask
    upper += tf.linalg.diag(positive(self.diagonal))
    solve = lambda kernel, b, lower: tf.linalg.triangular_solve(
      kernel, b, lower=lower, adjoint=True
    )
    x = solve(upper, solve(lower, tf.transpose(flat), False), True)
    x = tf.gather(tf.transpose(x), self._back, axis=-1)
    return tf.ensure_shape(tf.reshape(x, tf.shape(z)), z.shape)


class LowRankLinear(tfb.Bijector):
  """`z = (diag(s) + A B) y` from data y to base z, of low rank (`inverse`).

  s is a softplus; `A B` is scaled by a number f in (0, 1], so that the map is
  never singular: with `M = B diag(1/s) A` (r x r), f is 1 unless the symmetric
  part of M has an eigenvalue t < 0, and keeps `f t > FLOOR - 1`. Then every
  eigenvalue of `I + f M` has a positive real part, as have the pivots of its
  elimination, and

      log|det| = sum(log s) + log det(I + f M)   (matrix determinant lemma),

  with the inverse by Woodbury's identity. For rank 1 M is one number. It is
  initialised as the identity: A is zero. The gradients by A and B are
  `d_z (B y)^T` and `A^T d_z y^T`, plus those of f and of the log-determinant,
  which are one matrix for all examples up to a factor: none is stored per
  example.

  Args:
    event_size: number of columns d.
    rank: number of columns of A.
    dtype: of the variables.
    seed: for the initial B, or `None`.

  Raises:
    ValueError: if `rank` is not in [1, event_size].

  #### Example

  >>> from tfdpflows import bijectors
  >>> linear = bijectors.LowRankLinear(3, rank=1)
  >>> linear.inverse([[1., 2., 3.]]).numpy().round(5).tolist()
  [[1.0, 2.0, 3.0]]
  """

  def __init__(
    self,
    event_size: int,
    rank: int = 1,
    dtype: tf.DType | str = tf.float32,
    seed: int | None = None,
    validate_args: bool = False,
    name: str = 'low_rank_linear',
  ):
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      if not 1 <= rank <= event_size:
        raise ValueError(
          f'rank is {rank}; it must be in [1, event_size={event_size}].'
        )
      rng = np.random.default_rng(seed)
      down = rng.normal(size=[event_size, rank]) / np.sqrt(event_size)
      # As kernels of `linear`, [in, out]: B and A transposed.
      self.down = tf.Variable(down, dtype=dtype, name='down')
      self.up = tf.Variable(tf.zeros([rank, event_size], dtype), name='up')
      self.scale = tf.Variable(tf.zeros([event_size], dtype), name='scale')
      super().__init__(
        forward_min_event_ndims=1,
        dtype=self.scale.dtype,
        validate_args=validate_args,
        parameters=parameters,
        name=name,
      )

  @classmethod
  def _parameter_properties(cls, dtype):
    return {}

  def _capacitance(self, scale, down, up):
    """Returns f and `I + f M`, transposed as the kernels are."""
    m = tf.matmul(up / positive(scale), down)
    if m.shape[0] == 1:
      lowest = m[0, 0]
    else:
      lowest = tf.linalg.eigvalsh((m + tf.transpose(m)) / 2)[0]
    f = squeeze(lowest)
    return f, tf.eye(m.shape[0], dtype=m.dtype) + f * m

  def _inverse(self, y):
    f = self._shared(lambda *p: self._capacitance(*p)[0], y)
    scaled = y * positive(copies(self.scale, y))
    return scaled + f[..., None] * _linear(_linear(y, self.down), self.up)

  def _log_det(self, scale, down, up):
    _, m = self._capacitance(scale, down, up)
    total = tf.reduce_sum(tf.math.log(positive(scale)))
    return total + tf.add_n([tf.math.log(p) for p in _pivots(m)])

  def _inverse_log_det_jacobian(self, y):
    return self._shared(self._log_det, y)

  def _shared(self, function, y):
    """Returns a number made of the parameters alone, for each example."""
    parameters = [self.scale, self.down, self.up]
    if y.shape.rank == 1:
      return function(*parameters)
    batch = tf.shape(y)[0]
    value = tape.shared(lambda *p: [function(*p)], parameters, batch)
    return tf.reshape(value, [batch] + [1] * (y.shape.rank - 2))

  def _forward(self, z):
    size = self.scale.shape[0]
    scaled = tf.reshape(z / positive(self.scale), [-1, size])
    f, m = self._capacitance(self.scale, self.down, self.up)
    if m.shape[0] == 1:
      inner = tf.matmul(scaled, self.down) / m
    else:
      inner = tf.matmul(tf.matmul(scaled, self.down), tf.linalg.inv(m))
    y = scaled - f * tf.matmul(inner, self.up / positive(self.scale))
    return tf.ensure_shape(tf.reshape(y, tf.shape(z)), z.shape)


def _linear(x, kernel, mask=None):
  """Returns `gradients.linear`, also of one example without a batch."""
  if x.shape.rank > 1:
    return gradients.linear(x, kernel, mask=mask)
  return gradients.linear(x[None], kernel, mask=mask)[0]


def _pivots(m):
  """Returns the pivots of a matrix, positive where its symmetric part is."""
  found = []
  while m.shape[0]:
    pivot = m[0, 0]
    found.append(pivot)
    m = m[1:, 1:] - m[1:, :1] * m[:1, 1:] / pivot
  return found
