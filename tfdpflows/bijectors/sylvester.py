"""Sylvester flows."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows import gradients
from tfdpflows.bijectors.constraints import positive, solve_monotone, squeeze
from tfdpflows.bijectors.copies import copies
from tfdpflows.bijectors.one_pass import OnePassInverse


class Sylvester(OnePassInverse):
  """`z = y + Q R tanh(S Q^T y + b)` from data y to base z (`inverse`).

  Van den Berg et al. 2018, equation 13, in the direction of training.
  Q `[d, units]` has orthonormal columns, a product of Householder reflections
  (section 4.2); R and S are upper triangular. By their theorem 2 the map is
  invertible where S is and `R_ii S_ii > -1`; here S_ii is a softplus and R_ii
  the quotient of a number above `constraints.FLOOR - 1` and S_ii. The
  log-determinant is `sum_i log(1 + R_ii S_ii (1 - tanh_i^2))`. `forward` solves
  for one number per unit and row, from the last to the first. It is initialised
  as the identity: R is zero.

  Args:
    event_size: number of columns d.
    units: number M of columns of Q; d by default.
    reflections: number of Householder reflections; without any, Q is the first
      columns of the identity.
    dtype: of the variables.
    seed: for the initial values, or `None`.

  Raises:
    ValueError: for sizes out of range.

  #### Example

  >>> from tfdpflows import bijectors
  >>> bijectors.Sylvester(2).inverse([[1., 2.]]).numpy().round(5).tolist()
  [[1.0, 2.0]]
  """

  def __init__(
    self,
    event_size: int,
    units: int | None = None,
    reflections: int = 1,
    dtype: tf.DType | str = tf.float32,
    seed: int | None = None,
    validate_args: bool = False,
    name: str = 'sylvester',
  ):
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      units = event_size if units is None else int(units)
      if not 1 <= units <= event_size or reflections < 0:
        raise ValueError(
          f'units={units} must be in [1, event_size={event_size}] and '
          f'reflections={reflections} at least 0.'
        )
      self._size, self._units = event_size, units
      rng = np.random.default_rng(seed)
      make = lambda values, name: tf.Variable(values, dtype=dtype, name=name)
      square = [units, units]
      # The triangles as kernels of `linear`, [in, out]: transposed.
      self.outer = make(np.zeros(square), 'outer')
      self.outer_diagonal = make(np.zeros(units), 'outer_diagonal')
      self.inner = make(rng.normal(size=square) / units, 'inner')
      self.inner_diagonal = make(np.zeros(units), 'inner_diagonal')
      self.shift = make(np.zeros(units), 'shift')
      self.normals = [
        make(rng.normal(size=event_size), f'normal_{i}')
        for i in range(reflections)
      ]
      with tf.init_scope():
        mask = np.tril(np.ones(square), -1)
        self._mask = tf.constant(mask, self.shift.dtype)
      super().__init__(
        dtype=self.shift.dtype,
        validate_args=validate_args,
        parameters=parameters,
        name=name,
      )

  def _diagonals(self, x):
    """Returns R_ii and S_ii, one per example."""
    inner = positive(copies(self.inner_diagonal, x))
    product = copies(self.outer_diagonal, x)
    return product * squeeze(product) / inner, inner

  def _normals(self, x):
    """Returns the unit normals of the reflections, one per example."""
    normals = [copies(v, x) for v in self.normals]
    # Noise may bring a normal near zero; a short one reflects less.
    tiny = 1e-12
    return [
      v * tf.math.rsqrt(tf.reduce_sum(v * v, -1, keepdims=True) + tiny)
      for v in normals
    ]

  def _bent(self, y, bend):
    """Returns `y + Q bend(Q^T y)`, and the other result of `bend`."""
    normals = self._normals(y)
    x = y
    for v in normals:
      x -= 2 * v * tf.reduce_sum(v * x, -1, keepdims=True)
    change, rest = bend(x[..., : self._units])
    missing = tf.zeros_like(x[..., self._units :])
    change = tf.concat([change, missing], -1)
    for v in reversed(normals):
      change -= 2 * v * tf.reduce_sum(v * change, -1, keepdims=True)
    return y + change, rest

  def _triangle(self, x, kernel, diagonal):
    batch = x if x.shape.rank > 1 else x[None]
    strict = gradients.linear(batch, kernel, mask=self._mask)
    return x * diagonal + tf.reshape(strict, tf.shape(x))

  def _inverse_and_log_det(self, y):
    outer, inner = self._diagonals(y)

    def bend(x):
      t = self._triangle(x, self.inner, inner) + copies(self.shift, x)
      t = tf.tanh(t)
      log_det = tf.math.log1p(outer * inner * (1 - t * t))
      return self._triangle(t, self.outer, outer), tf.reduce_sum(log_det, -1)

    return self._bent(y, bend)

  def _forward(self, z):
    """With a = S Q^T y and T = S R: `a + T tanh(a + b) = S Q^T z`."""
    outer, inner = self._diagonals(z)
    kernel = lambda k, diagonal: k * self._mask + tf.linalg.diag(diagonal)
    single = self._diagonals(tf.zeros([self._size], z.dtype))
    # [in, out]: S R as kernels is the product in the other order.
    product = tf.matmul(
      kernel(self.outer, single[0]), kernel(self.inner, single[1])
    )

    def bend(x):
      target = self._triangle(x, self.inner, inner)
      bent = [None] * self._units
      for i in reversed(range(self._units)):
        rest = target[..., i] - sum(
          product[j, i] * bent[j] for j in range(i + 1, self._units)
        )
        a = solve_monotone(product[i, i], self.shift[i], rest)
        bent[i] = tf.tanh(a + self.shift[i])
      return -self._triangle(tf.stack(bent, -1), self.outer, outer), None

    return self._bent(z, bend)[0]
