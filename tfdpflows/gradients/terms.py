"""The per-example gradients of one variable, in whatever form they have.

`squared_norms` and `weighted_sums` at the end take the terms of all variables
together: what is computed per example and term is a few numbers, so that on a
CPU the number of operations costs more time than their size, and a bias shares
with the kernel of the same use what both compute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdpflows.gradients import parts

Clean = Callable[[tf.Tensor], tf.Tensor]


class Term:
  """The gradients of one variable, summed over all its uses.

  Subclasses give the first three methods. The others have a default, through
  the stored gradients, so that a new kind of term works with every strategy.
  """

  def squared_norms(self) -> tf.Tensor:
    """Returns `[batch]`."""
    raise NotImplementedError

  def weighted_sum(self, weights: tf.Tensor, clean: Clean) -> tf.Tensor:
    """Returns the sum over examples.

    Args:
      weights: `[batch]`.
      clean: zeroes in a tensor `[batch, ...]` the examples to be left out, and
        casts it to the precision of the sum, which is that of the weights too.
    """
    raise NotImplementedError

  def materialise(self) -> tf.Tensor:
    """Returns `[batch] + variable.shape`, or of as many numbers."""
    raise NotImplementedError

  def lengths(self) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Returns the lengths of parts that may cancel, see `parts.of_products`.

    `None` where gradients are no sums of parts, or all is float64.
    `squared_norms` includes a share of the lengths, and both decide about the
    precision of the sum: `parts.py` has the reasons.
    """
    return None

  def by_unit(self) -> Term:
    """Returns a term with `units()`, whose weights may be `[batch, units]`.

    Units are the last axis of the variable.
    """
    return StoredTerm(self.materialise())

  def times(self, mask: tf.Tensor) -> Term:
    """Returns the gradients times a tensor of the variable's shape."""
    g = self.materialise()
    if mask.shape != g.shape[1:]:
      mask = tf.reshape(mask, tf.shape(g)[1:])
    return StoredTerm(g * mask)


class LinearTerm(Term):
  """Kernel of linear maps with one mask: k uses, each [batch, t, in/out].

  Args:
    mask: `[in, out]` or `None`.
    inputs: list of `[batch, t, in]`.
    gradients: list of `[batch, t, out]`.
    varies: whether the mask is another one in each step.
  """

  def __init__(
    self,
    mask: tf.Tensor | None,
    inputs: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    varies: bool = False,
  ):
    self._mask, self._varies = mask, varies
    self._a = inputs[0] if len(inputs) == 1 else tf.concat(inputs, 1)
    self._d = gradients[0] if len(inputs) == 1 else tf.concat(gradients, 1)
    self._uses = self._a.shape[1]

  def squared_norms(self) -> tf.Tensor:
    if self._uses == 1:
      # A tiny input can meet a huge gradient: what its square lost when it
      # was rounded to zero is added again.
      a, d = self.input_squares() + self.lost, self.output_squares() + self.lost
      return tf.reduce_sum(a * d, 1)
    # Cross terms may cancel.
    a, d = tf.cast(self._a, tf.float64), tf.cast(self._d, tf.float64)
    if self._mask is None:
      squared = _squared_norms_of_products(a, d)
    else:
      # |sum_t M * a_t d_t^T|^2: the masked products of all pairs of uses, each
      # pair once, and equal columns of the mask once.
      first, second = np.triu_indices(self._uses)
      pairs = lambda x: (
        tf.gather(x, first, axis=1) * tf.gather(x, second, axis=1)
      )
      columns, members = self._groups
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

  def lengths(self) -> tuple[tf.Tensor, tf.Tensor] | None:
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
    squares = tf.matmul(a * a, self._groups[0] ** 2)
    if (a.shape[1] or 0) <= _SHORT_CHAIN:
      return squares
    # One chain of additions, which may all round downwards.
    return squares * (1 + a.shape[1] * np.finfo(a.dtype.as_numpy_dtype).eps / 2)

  def output_squares(self) -> tf.Tensor:
    """Returns `[batch, k]`, of one use: |d|^2 by group of equal columns."""
    d = _rank_2(self._d)
    if self._mask is None:
      return tf.reduce_sum(d * d, 1, keepdims=True)
    members = self._groups[1]
    return d * d if members is None else tf.matmul(d * d, members)

  @property
  def factors(self) -> bool:
    """Whether the norm is a product of a few squares of inputs and outputs."""
    if self._uses != 1:
      return False
    return self._mask is None or self._groups[1] is not None

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
    self,
    weights: tf.Tensor,
    clean: Clean,
    with_bias: bool = False,
  ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """See `Term`; of one use, on demand, with that of its bias as a pair."""
    a, d = _rank_2(clean(self._a)), _rank_2(clean(self._d))
    if self._uses != 1:
      weights = tf.repeat(weights, tf.shape(self._a)[1], axis=0)
    by_example = weights.shape.rank == 1
    weights = weights[:, None] if by_example else weights
    if by_example and _narrower(a, d):
      a = a * weights
      if not with_bias:
        return self._masked(tf.matmul(a, d, transpose_a=True))
      # One more column costs less than another pass over d.
      both = tf.matmul(tf.concat([a, weights], 1), d, transpose_a=True)
      return self._masked(both[:-1]), both[-1]
    total = self._masked(tf.matmul(a, d * weights, transpose_a=True))
    return (total, _column_sums(d, weights)) if with_bias else total

  @property
  def one_output(self) -> tf.Tensor | None:
    """The gradient at the output, if there is one use; or `None`."""
    return self._d if self._uses == 1 else None

  def _masked(self, total):
    if self._mask is None:
      return total
    # What the mask leaves out is in no norm, and may be infinite.
    return tf.math.multiply_no_nan(total, tf.cast(self._mask, total.dtype))

  @functools.cached_property
  def _groups(self):
    """The mask's distinct columns `[in, k]`, and which each output has.

    Outputs with equal columns share `a^2 M`, and the masks of autoregressive
    networks have no more distinct columns than there are degrees. The second
    is 0/1 `[out, k]`, or `None`, with the mask itself, where the mask is not
    known before the step.
    """
    values = None if self._varies else tf.get_static_value(self._mask)
    if values is None:
      return self._mask, None
    columns, inverse = np.unique(values, axis=1, return_inverse=True)
    each = np.eye(columns.shape[1], dtype=columns.dtype)
    return columns, each[inverse.ravel()]

  def materialise(self) -> tf.Tensor:
    gradients = tf.matmul(self._a, self._d, transpose_a=True)
    return gradients if self._mask is None else gradients * self._mask

  def by_unit(self) -> Term:
    # Column o of one use is a_i d_io under the mask: its norms factor. Those
    # of several uses do not (in l1, not at all).
    if self._uses == 1:
      return self
    sizes = self._uses, self._a.shape[2], self._d.shape[2]
    if None not in sizes and self._uses <= _MAX_PAIRED_USES:
      return UsesByUnit(self._mask, [self._a], [self._d])
    return super().by_unit()

  def units(self) -> Units:
    a = _rank_2(self._a)
    if self._mask is None:
      l1, members = tf.reduce_sum(tf.abs(a), 1, keepdims=True), None
    else:
      columns, members = self._groups
      l1 = tf.matmul(tf.abs(a), abs(columns))
    squared = self.input_squares() + _lost(a, 1) * self._largest_factor**2
    return Units(l1, squared, members, self._d)

  def times(self, mask: tf.Tensor) -> Term:
    if self._uses != 1:
      return super().times(mask)
    mask = tf.reshape(mask, [self._a.shape[2], self._d.shape[2]])
    mask = mask if self._mask is None else self._mask * mask
    return LinearTerm(mask, [self._a], [self._d], varies=True)


class UsesByUnit(LinearTerm):
  """A kernel with a few uses, whose units are clipped one by one.

  The l1 norm of a unit does not factor: it takes the gradients themselves. They
  are computed for a few examples at a time, which stay in a processor's cache,
  and are gone when their norms are known; the clipped sum is that of the parts.
  """

  def by_unit(self) -> UsesByUnit:
    return self

  def lengths(self) -> tuple[tf.Tensor, tf.Tensor] | None:
    """As that of `Term`, with `[batch, units]`."""
    return None if self._a.dtype == tf.float64 else self._parts

  @functools.cached_property
  def _parts(self):
    factor = self._largest_factor
    return parts.of_products(self._a, self._d, factor, of_units=True)

  def units(self) -> Units:
    size, dtype = self._a.shape[2] * self._d.shape[2], self._a.dtype
    batch = tf.shape(self._a)[0]
    count = tf.minimum(max(_IN_CACHE // size, 1), tf.maximum(batch, 1))
    mask = self._mask
    if mask is not None:
      mask = tf.transpose(tf.cast(mask, dtype))

    def norms(x):
      # Sums over the last axis are the fastest.
      g = tf.matmul(x[1], x[0], transpose_a=True)
      g = g if mask is None else g * mask
      return tf.reduce_sum(tf.abs(g), 2), tf.reduce_sum(g * g, 2)

    l1, squared = tf.map_fn(
      norms,
      tuple(_in_chunks(x, count) for x in (self._a, self._d)),
      parallel_iterations=4,
      fn_output_signature=(dtype, dtype),
    )
    units = self._d.shape[2]
    l1, squared = (tf.reshape(x, [-1, units])[:batch] for x in (l1, squared))
    lost = _lost(self._a, 2) * self._largest_factor**2
    squared = tf.cast(squared + lost, tf.float64)
    squared = parts.with_hidden_length(
      squared, self._parts[0], dtype, of_units=True
    )
    return Units(l1, squared, None, None)


def linear_term(
  mask: tf.Tensor | None,
  inputs: Sequence[tf.Tensor],
  gradients: Sequence[tf.Tensor],
) -> LinearTerm | StoredTerm:
  """Returns a `LinearTerm`, stored where that takes less; same arguments."""
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


class BiasTerm(Term):
  """Bias of one use of a linear map: the gradient at its output.

  Args:
    output: `[batch, 1, out]`.
  """

  def __init__(self, output: tf.Tensor):
    self.output = output

  def squared_norms(self) -> tf.Tensor:
    d = self.materialise()
    return tf.reduce_sum(d * d, 1) + _lost(d, 1)

  def weighted_sum(self, weights: tf.Tensor, clean: Clean) -> tf.Tensor:
    weights = weights[:, None] if weights.shape.rank == 1 else weights
    return _column_sums(_rank_2(clean(self.output)), weights)

  def materialise(self) -> tf.Tensor:
    return _rank_2(self.output)

  def by_unit(self) -> BiasTerm:
    return self

  def units(self) -> Units:
    one = tf.ones_like(self.materialise()[:, :1])
    return Units(one, one, None, self.output)


class StoredTerm(Term):
  """A variable whose per-example gradients exist as a tensor."""

  def __init__(self, gradients: tf.Tensor):
    self._gradients = gradients

  def squared_norms(self) -> tf.Tensor:
    g = self._gradients
    if g.shape.rank != 2:
      g = tf.reshape(g, [tf.shape(g)[0], -1])
    return tf.reduce_sum(g * g, 1) + _lost(g, 1)

  def weighted_sum(self, weights: tf.Tensor, clean: Clean) -> tf.Tensor:
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


class EmbeddingTerm(Term):
  """A table `[vocabulary, dim]`, of which example i used t rows.

  Its gradient of one example is zero but for those rows, where it is the sum
  of the output gradients at the positions that name the same row. These sums,
  `[batch, t, dim]` as the output gradients themselves, are all that is kept:
  `[batch, vocabulary, dim]` is never made. What is clipped and what is added
  are the same numbers, so that positions which cancel cannot hide a length
  from the norm. An id that is no row of the table names nothing: its position
  is left out of the norm and of the sum.

  Args:
    table: the variable.
    ids: integer tensors `[batch, ...]`, one per use.
    gradients: output gradients `[batch, ..., dim]`, one per use.
  """

  def __init__(
    self,
    table: tf.Variable,
    ids: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
  ):
    self._shape = table.shape
    batch = tf.shape(gradients[0])[0]
    single = len(ids) == 1 and ids[0].shape[1:].num_elements() == 1
    shapes = [[batch, _positions(i), self._shape[1]] for i in ids]
    ids = [tf.reshape(i, s[:2]) for i, s in zip(ids, shapes)]
    ids = tf.concat([tf.cast(i, tf.int64) for i in ids], 1)
    rows = tf.concat([tf.reshape(g, s) for g, s in zip(gradients, shapes)], 1)
    # Where looking such an id up is no error (XLA, GPU), it must not end up in
    # the rows of another example.
    named = tf.logical_and(ids >= 0, ids < self._shape[0])
    ids = tf.where(named, ids, -tf.ones_like(ids))
    rows = tf.where(named[..., None], rows, tf.zeros_like(rows))
    if not single:
      ids, rows = _sum_equal(ids, rows)
    self._ids, self._rows = ids, rows

  def squared_norms(self) -> tf.Tensor:
    rows = self._rows
    squared = tf.reduce_sum(rows * rows, [1, 2])
    # What the squares lost when they were rounded to zero.
    size = tf.shape(rows)[1] * tf.shape(rows)[2]
    return squared + tf.cast(size, rows.dtype) * _tiny(rows.dtype)

  def weighted_sum(self, weights: tf.Tensor, clean: Clean) -> tf.Tensor:
    rows = clean(self._rows) * weights[:, None, None]
    return self._scatter(rows, self._ids, self._shape[0])

  def materialise(self) -> tf.Tensor:
    batch, vocabulary = tf.shape(self._rows)[0], self._shape[0]
    start = tf.range(tf.cast(batch, tf.int64))[:, None] * vocabulary
    ids = tf.where(self._ids < 0, self._ids, self._ids + start)
    found = self._scatter(self._rows, ids, batch * vocabulary)
    return tf.reshape(found, [batch, vocabulary, self._shape[1]])

  def _scatter(self, rows, ids, size):
    rows = tf.reshape(rows, [-1, self._shape[1]])
    return tf.math.unsorted_segment_sum(rows, tf.reshape(ids, [-1]), size)


class SharedTerm(Term):
  """`sum_t a_it d_it^T + sum_k c_ik J_k`: linear uses and shared values.

  With the products of example i, and k x k numbers that are the same for all,

      |g_i|^2 = |sum_t a_it d_it^T|^2 + 2 sum_kt c_ik a_it^T J_k d_it
                + c_i^T (J J^T) c_i,

  so that no example's gradient is stored. The three may cancel: `parts.py` has
  what keeps that harmless.

  Args:
    inputs: `[batch, t, in]`, or `None` without linear uses.
    gradients: at the outputs, `[batch, t, out]`, or `None`.
    coefficients: gradients at the shared values, `[batch, k]`.
    jacobians: of the shared values, `[k] + variable.shape`.
  """

  def __init__(
    self,
    inputs: tf.Tensor | None,
    gradients: tf.Tensor | None,
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
      squared += _squared_norms_of_products(a, d)
      j = tf.reshape(j, [-1, a.shape[2], d.shape[2]])
      inner = tf.einsum('kio,bto->bkti', j, d)
      inner = tf.reduce_sum(inner * a[:, None], [2, 3])
      squared += 2 * tf.reduce_sum(c * inner, 1)
      additions += a.shape[2] + d.shape[2]
    squared = parts.with_hidden_length(
      squared, self._parts[0], self._c.dtype, additions
    )
    lost = tf.cast(additions * tf.size(self._j), self._c.dtype)
    return squared + lost * _tiny(self._c.dtype)

  def lengths(self) -> tuple[tf.Tensor, tf.Tensor] | None:
    return None if self._c.dtype == tf.float64 else self._parts

  @functools.cached_property
  def _parts(self):
    c, j = tf.cast(self._c, tf.float64), tf.cast(self._j, tf.float64)
    lengths = tf.linalg.matvec(tf.abs(c), tf.norm(j, axis=1))
    if self._a is None:
      return lengths, tf.zeros_like(lengths)
    products, lost = parts.of_products(self._a, self._d)
    return lengths + products, lost

  def weighted_sum(self, weights: tf.Tensor, clean: Clean) -> tf.Tensor:
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
    members: tf.Tensor | None,
    d: tf.Tensor | None,
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
    squared = squared * (d * d + _tiny(d.dtype))
    return Units(l1 * tf.abs(d), squared, None, None)

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
    tiny = _tiny(clip.dtype)
    lengths = tf.sqrt(tf.maximum(self._squared, tiny))
    scale = present * (clip * tf.sqrt(self._l1) / lengths)
    if self._d is not None:
      d = tf.maximum(tf.abs(self._d[:, 0]), tiny)
      scale = self._by_unit(scale) * tf.math.rsqrt(d)
    return tf.minimum(present, scale)


def squared_norms(terms: Sequence[Term]) -> tf.Tensor:
  """Returns `[batch, len(terms)]`: the squared l2 norms, a column per term.

  Where one norm of an example is not finite, its others may be nan.
  """
  kernels = _kernels(terms)
  factored = [k for k in dict.fromkeys(kernels) if k and k.factors]
  alone = [i for i, k in enumerate(kernels) if k not in factored]
  norms = [terms[i].squared_norms() for i in alone]
  if not factored:
    return tf.stack(norms, 1)
  inputs = [k.input_squares() for k in factored]
  outputs = [k.output_squares() for k in factored]
  sizes = [x.shape[1] for x in inputs]
  starts = np.cumsum([0, *sizes])
  # A tiny input can meet a huge gradient: what their squares lost when they
  # were rounded to zero is added again.
  rounded = sum(k.lost for k in factored)
  inputs = tf.concat(inputs, 1) + rounded
  outputs = tf.concat(outputs, 1) + rounded
  values = [inputs * outputs, outputs]
  values += [tf.stack(norms, 1)] if norms else []
  # Which of these numbers each term's norm has.
  total = starts[-1]
  has = np.zeros([2 * total + len(alone), len(terms)])
  for i, (term, kernel) in enumerate(zip(terms, kernels)):
    if kernel in factored:
      place = factored.index(kernel)
      start = starts[place] + (0 if term is kernel else total)
      has[start : start + sizes[place], i] = 1
  for row, i in enumerate(alone, start=2 * total):
    has[row, i] = 1
  return tf.matmul(tf.concat(values, 1), tf.constant(has, inputs.dtype))


def weighted_sums(
  terms: Sequence[Term], weights: Sequence[tf.Tensor], clean: Clean
) -> list[tf.Tensor]:
  """Returns `weighted_sum` of each term, with its own entry of `weights`."""
  places = {term: i for i, term in enumerate(terms)}
  found = [None] * len(terms)
  for i, (term, kernel) in enumerate(zip(terms, _kernels(terms))):
    if kernel in (None, term) or weights[places[kernel]] is not weights[i]:
      continue
    both = kernel.weighted_sum(clean(weights[i]), clean, with_bias=True)
    found[places[kernel]], found[i] = both
  return [
    term.weighted_sum(clean(w), clean) if total is None else total
    for term, w, total in zip(terms, weights, found)
  ]


def _kernels(terms):
  """Returns for each term the kernel of its use: of a kernel, itself."""
  kernels = [t for t in terms if isinstance(t, LinearTerm)]
  by_output = {id(t.one_output): t for t in kernels if t.one_output is not None}
  found = []
  for term in terms:
    if isinstance(term, BiasTerm):
      found.append(by_output.get(id(term.output)))
    else:
      found.append(term if isinstance(term, LinearTerm) else None)
  return found


# Numbers of gradients that are computed together: 6 MB in float32, several of
# them at a time.
_IN_CACHE = 3 * 2**19
# Rounding by this many additions is not worth a margin.
_SHORT_CHAIN = 1024
# Above this many uses of one masked kernel, all pairs of uses cost more than
# storing its per-example gradient.
_MAX_PAIRED_USES = 8


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
  return size * _tiny(x.dtype)


def _tiny(dtype):
  return np.finfo(dtype.as_numpy_dtype).tiny


def _squared_norms_of_products(a, d):
  """Returns |sum_t a_t d_t^T|^2, from the products of all pairs of t."""
  aa = tf.matmul(a, a, transpose_b=True)
  dd = tf.matmul(d, d, transpose_b=True)
  return tf.reduce_sum(aa * dd, [1, 2])


def _rank_2(x):
  """[batch, t, n] as [batch * t, n]."""
  # For t = 1 this undoes the reshape of the rules, and both vanish from the
  # graph. A slice would not.
  return tf.reshape(
    x, [-1, tf.shape(x)[2] if x.shape[2] is None else x.shape[2]]
  )


def _in_chunks(x, count):
  """[batch, t, n] as [chunks, count, t, n] with zeros behind; at least one."""
  batch = tf.shape(x)[0]
  missing = tf.math.floormod(-tf.maximum(batch, 1), count)
  missing += tf.maximum(1 - batch, 0)
  x = tf.pad(x, [[0, missing], [0, 0], [0, 0]])
  return tf.reshape(x, [-1, count, *x.shape[1:]])


def _narrower(a, d):
  """Whether a is the cheaper one to multiply by weights."""
  return a.shape[1] is not None and a.shape[1] < d.shape[1]


def _units_last(g):
  """[batch, ..., units] as [batch, n, units]; a scalar is one unit."""
  units = g.shape[-1] if g.shape.rank > 1 else 1
  return tf.reshape(g, [tf.shape(g)[0], -1, units])


def _positions(ids):
  """Number of ids per example, as an `int` where that is known."""
  if ids.shape[1:].is_fully_defined():
    return ids.shape[1:].num_elements()
  return tf.reduce_prod(tf.shape(ids)[1:])


def _sum_equal(ids, rows):
  """Sums each example's rows of equal ids.

  Returns:
    ids `[batch, t]`, each but once and negative where nothing is left, and the
    sums `[batch, t, dim]`.
  """
  batch, uses = tf.shape(ids)[0], tf.shape(ids)[1]
  order = tf.argsort(ids, axis=1)
  ids = tf.gather(ids, order, batch_dims=1)
  rows = tf.gather(rows, order, batch_dims=1)
  previous = tf.concat([ids[:, :1], ids[:, :-1]], 1)
  group = tf.cumsum(tf.cast(ids != previous, tf.int32), 1)
  group = tf.reshape(group + uses * tf.range(batch)[:, None], [-1])
  shape = tf.shape(rows)
  rows = tf.reshape(rows, [-1, shape[2]])
  # The maximum over nothing is the least integer, and no row of the table.
  ids = tf.math.unsorted_segment_max(tf.reshape(ids, [-1]), group, batch * uses)
  rows = tf.math.unsorted_segment_sum(rows, group, batch * uses)
  return tf.reshape(ids, shape[:2]), tf.reshape(rows, shape)
