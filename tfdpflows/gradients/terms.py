"""The per-example gradients of one variable, in whatever form they have.

A term answers for all uses of its variable together. It has

- `squared_norms()`: `[batch]`;
- `weighted_sum(weights, clean)`: the sum over examples with `weights`
  `[batch]`; `clean(x)` zeroes in x `[batch, ...]` the examples to be left out,
  and gives what is left in the precision of the sum, which is that of the
  `weights` too;
- `materialise()`: `[batch] + variable.shape`, or of as many numbers;

and, where an example's gradient is a sum of parts that are never added up by
themselves, and may cancel,

- `lengths()`: two of `[batch]`, in float64: the sum of the lengths of the
  parts, and what may be lost of them. What `squared_norms` gives has a share
  of the first in it, and both decide about the precision of the sum: `parts.py`
  says why.

Where a term has them in closed form, there are two views of itself. Without
them a `StoredTerm` of what `materialise` gives stands in, so that a new kind of
term works with every clipping strategy at once:

- `by_unit()`: a term that has `units()`, the norms of the units, and takes
  `weights` `[batch, units]`. Units are the last axis of the variable;
- `times(mask)`: the gradients times a tensor of the variable's shape.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from tfdpflows.gradients import parts


def by_unit(term: Any) -> Union[LinearTerm, BiasTerm, StoredTerm]:
  """Returns `term.by_unit()`, with a stored gradient where it has none."""
  view = getattr(term, 'by_unit', None)
  return StoredTerm(term.materialise()) if view is None else view()


def times(term: Any, mask: tf.Tensor) -> Union[LinearTerm, StoredTerm]:
  """Returns `term.times(mask)`, with a stored gradient where it has none."""
  view = getattr(term, 'times', None)
  return StoredTerm(term.materialise() * mask) if view is None else view(mask)


class LinearTerm:
  """Kernel of linear maps with one mask: k uses, each [batch, t, in/out].

  Args:
    mask: `[in, out]` or `None`.
    inputs: list of `[batch, t, in]`.
    gradients: list of `[batch, t, out]`.
    varies: whether the mask is another one in each step.
  """

  def __init__(
    self,
    mask: Optional[tf.Tensor],
    inputs: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    varies: bool = False,
  ):
    self._mask, self._varies = mask, varies
    self._a = inputs[0] if len(inputs) == 1 else tf.concat(inputs, 1)
    self._d = gradients[0] if len(inputs) == 1 else tf.concat(gradients, 1)
    self._uses = self._a.shape[1]

  def squared_norms(self) -> tf.Tensor:
    a, d = self._a, self._d
    if self._uses == 1:
      # A tiny input can meet a huge gradient: what its square lost when it
      # was rounded to zero is added again.
      a, d = self.input_squares() + self.lost, self.output_squares() + self.lost
      return tf.reduce_sum(a * d, 1)
    # Cross terms may cancel.
    a, d = tf.cast(a, tf.float64), tf.cast(d, tf.float64)
    if self._mask is None:
      aa = tf.matmul(a, a, transpose_b=True)
      dd = tf.matmul(d, d, transpose_b=True)
      squared = tf.reduce_sum(aa * dd, [1, 2])
    else:
      # |sum_t M * a_t d_t^T|^2: the masked products of all pairs of uses, each
      # pair once, and equal columns of the mask once.
      first, second = np.triu_indices(self._uses)
      pairs = lambda x: (
        tf.gather(x, first, axis=1) * tf.gather(x, second, axis=1)
      )
      columns, members = self._column_groups()
      aa = tf.tensordot(pairs(a), tf.cast(columns, tf.float64) ** 2, 1)
      dd = pairs(d)
      if members is not None:
        dd = tf.tensordot(dd, tf.cast(members, tf.float64), 1)
      by_pair = tf.reduce_sum(aa * dd, 2)
      squared = tf.linalg.matvec(by_pair, np.where(first == second, 1.0, 2.0))
    additions = a.shape[2] + d.shape[2]
    return parts.with_hidden_length(
      squared, self._parts[0], self._a.dtype, additions
    )

  def lengths(self) -> Optional[tuple[tf.Tensor, tf.Tensor]]:
    """Returns two of `[batch]`; `None` of one use and where all is float64."""
    if self._uses == 1 or self._a.dtype == tf.float64:
      return None
    return self._parts

  @functools.cached_property
  def _parts(self):
    return parts.of_products(self._a, self._d, self._largest_factor)

  def input_squares(self) -> tf.Tensor:
    """Returns `[batch, k]`, of one use: |a|^2 under each distinct column."""
    a = _rank_2(self._a)
    if self._mask is None:
      return tf.reduce_sum(a * a, 1, keepdims=True)
    squares = tf.matmul(a * a, self._column_groups()[0] ** 2)
    if (a.shape[1] or 0) <= _SHORT_CHAIN:
      return squares
    # One chain of additions, which may all round downwards.
    return squares * (1 + a.shape[1] * np.finfo(a.dtype.as_numpy_dtype).eps / 2)

  def output_squares(self) -> tf.Tensor:
    """Returns `[batch, k]`, of one use: |d|^2 by group of equal columns."""
    d = _rank_2(self._d)
    if self._mask is None:
      return tf.reduce_sum(d * d, 1, keepdims=True)
    members = self._column_groups()[1]
    return d * d if members is None else tf.matmul(d * d, members)

  @property
  def factors(self) -> bool:
    """Whether the norm is a product of a few squares of inputs and outputs."""
    if self._uses != 1:
      return False
    return self._mask is None or self._column_groups()[1] is not None

  @property
  def lost(self) -> tf.Tensor:
    """What squares of inputs or outputs lost when rounded to zero, at most."""
    return (_lost(self._a, 2) + _lost(self._d, 2)) * self._largest_factor**2

  @property
  def _largest_factor(self):
    """The largest that the mask multiplies by; 1 at least."""
    if self._mask is None:
      return 1.0
    values = tf.get_static_value(self._mask)
    if values is not None:
      return max(1.0, float(np.max(np.abs(values), initial=0.0)))
    return tf.maximum(tf.reduce_max(tf.abs(self._mask)), 1.0)

  def weighted_sum(
    self, weights: tf.Tensor, clean: Callable[[tf.Tensor], tf.Tensor]
  ) -> tf.Tensor:
    a, d = _rank_2(clean(self._a)), _rank_2(clean(self._d))
    if self._uses != 1:
      weights = tf.repeat(weights, tf.shape(self._a)[1])
    by_example = weights.shape.rank == 1
    weights = weights[:, None] if by_example else weights
    if by_example and _narrower(a, d):
      return self._masked(tf.matmul(a * weights, d, transpose_a=True))
    return self._masked(tf.matmul(a, d * weights, transpose_a=True))

  def weighted_sums(
    self, weights: tf.Tensor, clean: Callable[[tf.Tensor], tf.Tensor]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the weighted sums of kernel and bias, of one use, at once."""
    a, d = _rank_2(clean(self._a)), _rank_2(clean(self._d))
    by_example = weights.shape.rank == 1
    weights = weights[:, None] if by_example else weights
    if by_example and _narrower(a, d):
      # One more column costs less than another pass over d.
      a = tf.concat([a * weights, weights], 1)
      both = tf.matmul(a, d, transpose_a=True)
      return self._masked(both[:-1]), both[-1]
    total = tf.matmul(a, d * weights, transpose_a=True)
    return self._masked(total), _column_sums(d, weights)

  @property
  def one_output(self) -> Optional[tf.Tensor]:
    """The gradient at the output, if there is one use; or `None`."""
    return self._d if self._uses == 1 else None

  def _masked(self, total):
    if self._mask is None:
      return total
    # What the mask leaves out is in no norm, and may be infinite.
    return tf.math.multiply_no_nan(total, tf.cast(self._mask, total.dtype))

  def _column_groups(self):
    # Where each step has another mask, looking for equal columns is not worth
    # it.
    return (self._mask, None) if self._varies else column_groups(self._mask)

  def materialise(self) -> tf.Tensor:
    gradients = tf.matmul(self._a, self._d, transpose_a=True)
    return gradients if self._mask is None else gradients * self._mask

  def by_unit(self) -> Union[LinearTerm, StoredTerm]:
    """Column o of one use is a_i d_io under the mask: its norms factor.

    Those of several uses do not (in l1, not at all).
    """
    return self if self._uses == 1 else StoredTerm(self.materialise())

  def units(self) -> Units:
    a = _rank_2(self._a)
    if self._mask is None:
      l1 = tf.reduce_sum(tf.abs(a), 1, keepdims=True)
      squared = tf.reduce_sum(a * a, 1, keepdims=True)
      return Units(l1, squared + _lost(a, 1), None, self._d)
    columns, members = self._column_groups()
    l1 = tf.matmul(tf.abs(a), abs(columns))
    squared = self.input_squares() + _lost(a, 1) * self._largest_factor**2
    return Units(l1, squared, members, self._d)

  def times(self, mask: tf.Tensor) -> Union[LinearTerm, StoredTerm]:
    mask = tf.reshape(mask, [self._a.shape[2], self._d.shape[2]])
    if self._uses != 1:
      return StoredTerm(self.materialise() * mask)
    mask = mask if self._mask is None else self._mask * mask
    return LinearTerm(mask, [self._a], [self._d], varies=True)


class BiasTerm:
  """Bias of one use of a linear map: the gradient d at its output.

  Args:
    gradients: `[batch, 1, out]`.

  Attributes:
  """

  def __init__(self, gradients: tf.Tensor):
    self._d = gradients

  @property
  def output(self) -> tf.Tensor:
    """The gradient at the output."""
    return self._d

  def squared_norms(self) -> tf.Tensor:
    d = _rank_2(self._d)
    return tf.reduce_sum(d * d, 1) + _lost(d, 1)

  def weighted_sum(
    self, weights: tf.Tensor, clean: Callable[[tf.Tensor], tf.Tensor]
  ) -> tf.Tensor:
    weights = weights[:, None] if weights.shape.rank == 1 else weights
    return _column_sums(_rank_2(clean(self._d)), weights)

  def materialise(self) -> tf.Tensor:
    return _rank_2(self._d)

  def by_unit(self) -> BiasTerm:
    return self

  def units(self) -> Units:
    one = tf.ones_like(_rank_2(self._d)[:, :1])
    return Units(one, one, None, self._d)


class StoredTerm:
  """A variable whose per-example gradients exist as a tensor."""

  def __init__(self, gradients: tf.Tensor):
    self._gradients = gradients

  def squared_norms(self) -> tf.Tensor:
    g = self._gradients
    if g.shape.rank != 2:
      g = tf.reshape(g, [tf.shape(g)[0], -1])
    return tf.reduce_sum(g * g, 1) + _lost(g, 1)

  def weighted_sum(
    self, weights: tf.Tensor, clean: Callable[[tf.Tensor], tf.Tensor]
  ) -> tf.Tensor:
    g = clean(self._gradients)
    if weights.shape.rank == 1:
      return tf.tensordot(weights, g, 1)
    total = tf.reduce_sum(_units_last(g) * weights[:, None], 0)
    return tf.reshape(total, tf.shape(g)[1:])

  def materialise(self) -> tf.Tensor:
    return self._gradients

  def by_unit(self) -> StoredTerm:
    return self

  def units(self) -> Units:
    g = _units_last(self._gradients)
    squared = tf.reduce_sum(g * g, 1) + _lost(g, 1)
    return Units(tf.reduce_sum(tf.abs(g), 1), squared, None, None)

  def times(self, mask: tf.Tensor) -> StoredTerm:
    g = self._gradients
    return StoredTerm(g * tf.reshape(mask, tf.shape(g)[1:]))


class Units:
  """Norms of the gradients of units: `l1 |d|`, and `sqrt(squared) |d|` in l2.

  Args:
    l1: `[batch, k]`; k is 1 or the number of units, or there are `members`.
    squared: `[batch, k]`.
    members: 0/1 `[units, k]`, which of the k each unit has; or `None`.
    d: `[batch, 1, units]`, or `None` for ones.
  """

  def __init__(
    self,
    l1: tf.Tensor,
    squared: tf.Tensor,
    members: Optional[tf.Tensor],
    d: Optional[tf.Tensor],
  ):
    self._l1, self._squared, self._members, self._d = l1, squared, members, d
    self.count = l1.shape[1] if d is None else d.shape[2]

  def joined(self, other: Units) -> Units:
    """Returns the norms of units that have both gradients."""
    if self._d is not other._d:
      one, two = self._plain(), other._plain()
    elif self._members is None and other._members is not None:
      one, two = other, self
    else:
      one, two = self, other
    if two._members is not None and two._members is not one._members:
      one, two = self._plain(), other._plain()
    l1, squared = one._l1 + two._l1, one._squared + two._squared
    return Units(l1, squared, one._members, one._d)

  def _plain(self):
    if self._d is None:
      return self
    d = self._d[:, 0]
    l1, squared = self._by_unit(self._l1), self._by_unit(self._squared)
    # What the square of d lost when it was rounded to zero.
    tiny = np.finfo(d.dtype.as_numpy_dtype).tiny
    return Units(l1 * tf.abs(d), squared * (d * d + tiny), None, None)

  def _by_unit(self, x):
    if self._members is None:
      return x
    return tf.matmul(x, self._members, transpose_b=True)

  def total(self) -> tf.Tensor:
    """Returns `[batch]`: the sum of the l1 norms."""
    if self._d is None:
      return tf.reduce_sum(self._l1, 1)
    lengths = tf.abs(self._d[:, 0])
    if self._members is not None:
      lengths = tf.matmul(lengths, self._members)
    return tf.reduce_sum(self._l1 * lengths, 1)

  def sum_of_squares(self) -> tf.Tensor:
    """Returns `[batch]`, which is finite where the l2 norms are."""
    return tf.reduce_sum(self._squared, 1)

  def scale(self, clip: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
    """Returns `[batch, units]`: weights that clip each unit.

    Unit i is clipped to `clip sqrt(l1_i)` in l2.

    Args:
      clip: `[batch]`.
      present: `[batch]`, what to multiply the weights by.
    """
    clip, present = clip[:, None], present[:, None]
    tiny = np.finfo(clip.dtype.as_numpy_dtype).tiny
    lengths = tf.sqrt(tf.maximum(self._squared, tiny))
    scale = present * (clip * tf.sqrt(self._l1) / lengths)
    if self._d is not None:
      d = tf.maximum(tf.abs(self._d[:, 0]), tiny)
      scale = self._by_unit(scale) * tf.math.rsqrt(d)
    return tf.minimum(present, scale)


def linear_term(
  mask: Optional[tf.Tensor],
  inputs: Sequence[tf.Tensor],
  gradients: Sequence[tf.Tensor],
) -> Union[LinearTerm, StoredTerm]:
  """Returns the term of a kernel, from all its uses under one mask.

  Args:
    mask: `[in, out]` or `None`.
    inputs: `[batch, t, in]` each.
    gradients: at the outputs, `[batch, t, out]` each.
  """
  term = LinearTerm(mask, inputs, gradients)
  uses = [a.shape[1] for a in inputs]
  total = None if None in uses else sum(uses)
  if mask is not None:
    stored = total is None or total > _MAX_PAIRED_USES
  else:
    # No larger than the two matrices that its norm is computed from.
    size = inputs[0].shape[-1] * gradients[0].shape[-1]
    stored = total is not None and total > 1 and size <= 4 * total**2
  # What is clipped and what is summed are then the same numbers.
  return StoredTerm(term.materialise()) if stored else term


# Rounding by this many additions is not worth a margin.
_SHORT_CHAIN = 1024
# Above this many uses of one masked kernel, all pairs of uses cost more than
# storing its per-example gradient.
_MAX_PAIRED_USES = 8


# The groups of masks by their content.
_GROUPS = {}
# Models have few masks, but a program may go through many models.
_MAX_GROUPS = 64


def column_groups(
  mask: Union[tf.Tensor, np.ndarray],
) -> tuple[Union[tf.Tensor, np.ndarray], Optional[np.ndarray]]:
  """Returns a mask's distinct columns `[in, k]`, and who has them `[out, k]`.

  Outputs with equal columns share `a^2 M`, and the masks of autoregressive
  networks have no more distinct columns than there are degrees. A mask that is
  not known before the step counts as all distinct: members are `None`.

  Args:
    mask: `[in, out]`, a tensor or an array.
  """
  values = tf.get_static_value(mask)
  if values is None:
    return mask, None
  # By content: an array may be changed in place, and another one may get the
  # address of one that is gone.
  content = hashlib.sha256(np.ascontiguousarray(values)).digest()
  key = values.shape, values.dtype.str, content
  found = _GROUPS.get(key)
  if found is None:
    columns, inverse = np.unique(values, axis=1, return_inverse=True)
    members = np.eye(columns.shape[1], dtype=columns.dtype)[inverse.ravel()]
    found = columns, members
    if len(_GROUPS) >= _MAX_GROUPS:
      _GROUPS.clear()
    _GROUPS[key] = found
  return found


def _column_sums(x, weights):
  """Returns the sum over axis 0 with weights `[n, 1]`, or those of `x`."""
  if weights.shape[1] == 1:
    weights = tf.transpose(weights)
  else:
    x, weights = x * weights, tf.ones([1, tf.shape(x)[0]], x.dtype)
  # Several times faster than `tf.reduce_sum` over this axis on a CPU.
  return tf.matmul(weights, x)[0]


def _lost(x, axis):
  """What the squares of x lost along an axis when they were rounded to zero."""
  size = x.shape[axis]
  if size is None:
    size = tf.cast(tf.shape(x)[axis], x.dtype)
  return size * np.finfo(x.dtype.as_numpy_dtype).tiny


def _rank_2(x):
  """[batch, t, n] as [batch * t, n]."""
  # For t = 1 this undoes the reshape of the rules, and both vanish from the
  # graph. A slice would not.
  return tf.reshape(
    x, [-1, tf.shape(x)[2] if x.shape[2] is None else x.shape[2]]
  )


def _narrower(a, d):
  """Whether a is the cheaper one to multiply by weights."""
  return a.shape[1] is not None and a.shape[1] < d.shape[1]


def _units_last(g):
  """[batch, ..., units] as [batch, n, units]; a scalar is one unit."""
  units = g.shape[-1] if g.shape.rank > 1 else 1
  return tf.reshape(g, [tf.shape(g)[0], -1, units])
