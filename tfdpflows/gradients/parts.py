"""Gradients that are sums of parts which may cancel, and how they are summed.

A kernel that is used several times, or a parameter of shared values, has
per-example gradients `g_i = sum_t p_it` that are never added up by themselves:
the clipped sum `sum_i c_i g_i` adds the parts of all examples at once. An
example with parts +P and -P has a short gradient, so that its parts pass the
clip; while only one of the two is in a partial sum of a matrix product, what
the other examples add beside it is rounded away. In float32 a single example
with parts of 1e5 C can so move the sum by more than 2 C.

Two bounds keep that from happening, for any kind of part. With `l_i = sum_t
|p_it|` and the clip C, that is `c_i |g_i| <= C`:

1. `with_hidden_length` adds `l_i / K` to the norm, in quadrature, with
   K = 2.5e5, so that `c_i l_i <= K C` whatever cancels. A gradient with parts a
   hundred times as long as itself is clipped by 8e-8 more than it had to be.
2. `short` finds the examples with `c_i l_i <= R C`, with R = 8: those of
   ordinary data, whose parts are no more than a few times as long as their sum.
   They are added up in float32. The others are added up by themselves, in
   float64, in a step that has any. No example decides this for another one.

#### Formal guarantee

Of the parts of example i, those in a partial sum are together as long as `q`,
with `|q| <= (l_i + |g_i|) / 2`: q is at most as long as the parts in it, and as
`g_i` and the parts that are not in it. Each later addition to this partial sum
rounds by `u |q|` more than without the example, at most (u is 2^-24 in float32,
2^-53 in float64), until its other parts come. If `D` additions follow, adding
or removing example i moves the sum, beside its own part of at most C, by

    float32:  D 2^-24 (R + 1) / 2 C  = 2.7e-7 D C,  1e-4 C for D = 376,
    float64:  D 2^-53 (K + 1) / 2 C  = 1.4e-11 D C, 1.4e-5 C for D = 1e6

in l2 norm, to first order in u. 376 is the longest chain of additions in the
matrix products of Eigen and oneDNN that was observed; longer ones add in
proportion. A product that is too small for float32 is lost: `short` counts
2^24 times what this may take from a part for a part of its length, so that no
more than `R 2^-24 C` is lost.

This is beside what every sum of n numbers in float32 is off by, `n u sum_i c_i
l_i` at most, in any order: with one use of each kernel `l_i = |g_i|`. Other
examples change that error, too; docs/understand/gradients.md has by how much.

Units that are clipped one by one (`PerUnit`) have parts of their own, and the
same bounds: in 1 with K = 2,500, in 2 with `l_i`, `|g_i|` and `c_i l_i` the
lengths of what all units have together. Their gradients are sums of at most
eight parts in float32, which are off by `b = 6e-7 l` at most, so that what is
clipped to C is no longer than `sqrt(1 + (b K)^2) C < (1 + 2e-6) C`.

It is assumed that products and sums are those of IEEE 754 in the precision of
the activations, in any order. Matrix products that round their inputs to fewer
bits are no such products: TensorFloat-32 is refused by the optimizers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# 1 / K, the share of the length of the parts that is in the norm.
_HIDDEN = 4e-6
# The same for units, whose gradients are added up in float32 to be measured.
_HIDDEN_OF_UNITS = 4e-4
# R, from 2 to 10: what is below takes float64 for ordinary sequences, what is
# above rounds more away.
_RATIO = 8.0


def with_hidden_length(
  squared: tf.Tensor,
  lengths: tf.Tensor,
  dtype: tf.DType,
  additions: int | tf.Tensor = 0,
  of_units: bool = False,
) -> tf.Tensor:
  """Returns squared norms that no parts escape by cancelling.

  Args:
    squared: `[batch]` or `[batch, units]`, float64, the squared norms as
      computed.
    lengths: of the same shape, float64, the lengths of the parts, added up.
    dtype: of the result.
    additions: number of products that one of `squared` is the sum of: what
      cancels in it leaves a rounding error, which may be negative.
    of_units: whether these are norms of units that were stored.
  """
  share = _HIDDEN_OF_UNITS if of_units else _HIDDEN
  hidden = share**2 + 4 * additions * np.finfo(np.float64).eps
  return tf.cast(tf.maximum(squared, 0) + hidden * lengths**2, dtype)


def of_products(
  a: tf.Tensor,
  d: tf.Tensor,
  factor: float | tf.Tensor = 1.0,
  of_units: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the sum of the lengths of parts `a_t d_t^T`, and what they lose.

  Args:
    a: `[batch, t, in]`, one factor of the parts.
    d: `[batch, t, out]`, the other one. Either is multiplied by weights first.
    factor: the largest that a mask multiplies by.
    of_units: whether each output has parts of its own.

  Returns:
    Two of `[batch]`, or `[batch, out]` of units, in float64: the lengths of the
    parts, added up, and 2^24 times what products lose that are too small for
    float32.
  """
  inputs, outputs = a.shape[2], 1 if of_units else d.shape[2]
  a, d = tf.cast(a, tf.float64), tf.cast(d, tf.float64)
  of_a = tf.norm(a, axis=2, keepdims=of_units)
  of_d = tf.abs(d) if of_units else tf.norm(d, axis=2)
  lost = of_a * np.sqrt(outputs) + of_d * np.sqrt(inputs)
  lost *= 2.0**24 * np.finfo(np.float32).tiny
  factor = tf.cast(factor, tf.float64)
  return tuple(tf.reduce_sum(x, 1) * factor for x in (of_a * of_d, lost))


def short(
  lengths: Sequence[tuple[tf.Tensor, tf.Tensor] | None],
  weights: Sequence[tf.Tensor],
  bound: float | tf.Tensor,
) -> tf.Tensor:
  """Returns `[batch]`: whether parts are not much longer than is clipped to.

  False where anything is not finite. It depends on no other example.

  Args:
    lengths: for each variable a pair, of `[batch]` or `[batch, units]`, the
      lengths and what may be lost; or `None`.
    weights: for each variable `[batch]`, or `[batch, units]`.
    bound: C, the l2 norm of what is summed of an example, at most.
  """
  parts = []
  for w, pair in zip(weights, lengths):
    if pair is not None:
      length, lost = pair
      w = tf.cast(w, tf.float64)
      part = (w * length + tf.where(w > 0, lost, 0)) ** 2
      parts.append(part if part.shape.rank == 1 else tf.reduce_sum(part, 1))
  return tf.add_n(parts) <= (_RATIO * tf.cast(bound, tf.float64)) ** 2
