"""Per-example gradients that are one matrix for all, up to a factor."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


class SharedTerm:
  """`sum_t a_it d_it^T + sum_k c_ik J_k`: linear uses and shared values.

  With the products of example i, and k x k numbers that are the same for all,

      |g_i|^2 = |sum_t a_it d_it^T|^2 + 2 sum_kt c_ik a_it^T J_k d_it
                + c_i^T (J J^T) c_i,

  so that no example's gradient is stored. The three may cancel: they are added
  up in float64, and what rounding (of the sum of gradients too) may still hide
  is added, so that no example can pass for a shorter one.

  Args:
    inputs: `[batch, t, in]`, or `None` without linear uses.
    gradients: at the outputs, `[batch, t, out]`, or `None`.
    coefficients: gradients at the shared values, `[batch, k]`.
    jacobians: of the shared values, `[k] + variable.shape`.
  """

  def __init__(self, inputs, gradients, coefficients, jacobians):
    self._a, self._d = inputs, gradients
    self._c = coefficients
    self._shape = jacobians.shape[1:]
    self._j = tf.reshape(jacobians, [jacobians.shape[0], -1])

  def squared_norms(self):
    c, j = tf.cast(self._c, tf.float64), tf.cast(self._j, tf.float64)
    products = tf.matmul(j, j, transpose_b=True)
    squared = tf.reduce_sum(tf.matmul(c, products) * c, 1)
    lengths = tf.linalg.matvec(
      tf.abs(c), tf.sqrt(tf.linalg.diag_part(products))
    )
    terms = j.shape[0] + 2
    if self._a is not None:
      a, d = tf.cast(self._a, tf.float64), tf.cast(self._d, tf.float64)
      aa = tf.matmul(a, a, transpose_b=True)
      dd = tf.matmul(d, d, transpose_b=True)
      squared += tf.reduce_sum(aa * dd, [1, 2])
      j = tf.reshape(j, [-1, a.shape[2], d.shape[2]])
      inner = tf.einsum('kio,bto->bkti', j, d)
      inner = tf.reduce_sum(inner * a[:, None], [2, 3])
      squared += 2 * tf.reduce_sum(c * inner, 1)
      lengths += tf.reduce_sum(tf.norm(a, axis=2) * tf.norm(d, axis=2), 1)
      terms += a.shape[2] + d.shape[2]
    # The sum of gradients rounds each part: a hundred times that, added in
    # quadrature, leaves less than 1e-4 of the bound to chance.
    precision = np.finfo(self._c.dtype.as_numpy_dtype).eps
    hidden = 4 * terms * np.finfo(np.float64).eps + (100 * precision) ** 2
    squared = tf.maximum(squared, 0) + hidden * lengths**2
    lost = tf.cast(terms * tf.size(self._j), self._c.dtype)
    tiny = np.finfo(self._c.dtype.as_numpy_dtype).tiny
    return tf.cast(squared, self._c.dtype) + lost * tiny

  def weighted_sum(self, weights, clean):
    c = tf.reduce_sum(clean(self._c) * weights[:, None], 0)
    total = tf.linalg.matvec(self._j, c, transpose_a=True)
    if self._a is None:
      return total
    a, d = clean(self._a), clean(self._d) * weights[:, None, None]
    products = tf.tensordot(a, d, [[0, 1], [0, 1]])
    return products + tf.reshape(total, tf.shape(products))

  def materialise(self):
    found = tf.matmul(self._c, self._j)
    if self._a is not None:
      products = tf.matmul(self._a, self._d, transpose_a=True)
      found += tf.reshape(products, tf.shape(found))
    return tf.reshape(found, [-1, *self._shape])
