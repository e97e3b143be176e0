"""Per-example gradients that are one matrix for all, up to a factor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Optional

import numpy as np
import tensorflow as tf

from tfdpflows.gradients import parts


class SharedTerm:
  """`sum_t a_it d_it^T + sum_k c_ik J_k`: linear uses and shared values.

  With the products of example i, and k x k numbers that are the same for all,

      |g_i|^2 = |sum_t a_it d_it^T|^2 + 2 sum_kt c_ik a_it^T J_k d_it
                + c_i^T (J J^T) c_i,

  so that no example's gradient is stored. The three may cancel: `parts.py` says
  what keeps that harmless.

  Args:
    inputs: `[batch, t, in]`, or `None` without linear uses.
    gradients: at the outputs, `[batch, t, out]`, or `None`.
    coefficients: gradients at the shared values, `[batch, k]`.
    jacobians: of the shared values, `[k] + variable.shape`.
  """

  def __init__(
    self,
    inputs: Optional[tf.Tensor],
    gradients: Optional[tf.Tensor],
    coefficients: tf.Tensor,
    jacobians: tf.Tensor,
  ):
    self._a, self._d = inputs, gradients
    self._c = coefficients
    self._shape = jacobians.shape[1:]
    self._j = tf.reshape(jacobians, [jacobians.shape[0], -1])

  def squared_norms(self) -> tf.Tensor:
    c, j = tf.cast(self._c, tf.float64), tf.cast(self._j, tf.float64)
    products = tf.matmul(j, j, transpose_b=True)
    squared = tf.reduce_sum(tf.matmul(c, products) * c, 1)
    additions = j.shape[0] + 2
    if self._a is not None:
      a, d = tf.cast(self._a, tf.float64), tf.cast(self._d, tf.float64)
      aa = tf.matmul(a, a, transpose_b=True)
      dd = tf.matmul(d, d, transpose_b=True)
      squared += tf.reduce_sum(aa * dd, [1, 2])
      j = tf.reshape(j, [-1, a.shape[2], d.shape[2]])
      inner = tf.einsum('kio,bto->bkti', j, d)
      inner = tf.reduce_sum(inner * a[:, None], [2, 3])
      squared += 2 * tf.reduce_sum(c * inner, 1)
      additions += a.shape[2] + d.shape[2]
    squared = parts.with_hidden_length(
      squared, self._parts[0], self._c.dtype, additions
    )
    lost = tf.cast(additions * tf.size(self._j), self._c.dtype)
    return squared + lost * np.finfo(self._c.dtype.as_numpy_dtype).tiny

  def lengths(self) -> Optional[tuple[tf.Tensor, tf.Tensor]]:
    """Returns two of `[batch]`, or `None` where all is float64."""
    return None if self._c.dtype == tf.float64 else self._parts

  @functools.cached_property
  def _parts(self):
    c, j = tf.cast(self._c, tf.float64), tf.cast(self._j, tf.float64)
    lengths = tf.linalg.matvec(tf.abs(c), tf.norm(j, axis=1))
    if self._a is None:
      return lengths, tf.zeros_like(lengths)
    products, lost = parts.of_products(self._a, self._d)
    return lengths + products, lost

  def weighted_sum(
    self, weights: tf.Tensor, clean: Callable[[tf.Tensor], tf.Tensor]
  ) -> tf.Tensor:
    # In float64: coefficients may be large where the Jacobian is small.
    c = tf.cast(clean(self._c), tf.float64)
    c = tf.linalg.matvec(c, tf.cast(weights, tf.float64), transpose_a=True)
    j = tf.cast(self._j, tf.float64)
    total = tf.linalg.matvec(j, c, transpose_a=True)
    if self._a is not None:
      d = clean(self._d) * weights[:, None, None]
      products = tf.tensordot(clean(self._a), d, [[0, 1], [0, 1]])
      products = tf.cast(products, tf.float64)
      total = products + tf.reshape(total, tf.shape(products))
    return total

  def materialise(self) -> tf.Tensor:
    found = tf.matmul(self._c, self._j)
    if self._a is not None:
      products = tf.matmul(self._a, self._d, transpose_a=True)
      found += tf.reshape(products, tf.shape(found))
    return tf.reshape(found, [-1, *self._shape])
