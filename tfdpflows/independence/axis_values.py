"""What is known of a tensor that is followed from the rows of a batch on.

The values are those of `axes`, which says what they mean. A value is made by
the functions here, which raise where its shape does not fit its kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tfdpflows.independence import shape_arithmetic
from tfdpflows.independence.shape_arithmetic import ROWS, Numbers

# Kinds of values.
PUBLIC = 'public'  # Of no row, nor of the number of rows.
SIZED = 'sized'  # Of no row, but of the number of rows.
EVEN = 'even'  # All elements are one number of no row; a size is of rows.
APART = 'apart'  # Along one axis of row i each.
PLACE = 'place'  # As `APART`, and it holds the number of the row.
TURN = 'turn'  # Of one row alone, that of this turn of a loop over rows.
LIST = 'list'  # A list of tensors.
JOINED = 'joined'  # Perhaps of several rows, or of their number.
UNKNOWN = 'unknown'  # Not known.

# How much of a tensor is drawn at random.
ALL, SOME = 'all', 'some'
# Tags of what some operations alone may read: gradients of one; what draws
# random numbers, of the state of a generator; a sum, of the axes to sum over
# (`Axes`); and what gives the sum its shape.
RESERVED, STATE, SUMMED = 'reserved', 'state', 'summed'
SIZE = 'computes with the number of rows in the batch'
PLACES = 'computes with the place of a row in the batch'
TOGETHER = 'takes rows together'


class Finding(NamedTuple):
  """Where rows meet, or what has no rule."""

  op: str
  path: str
  why: str


class Axes(NamedTuple):
  """A tag of axes to sum over: `more` are those that are added for one row."""

  more: tuple[int, ...]


def is_for_some(tag: Any) -> bool:
  """Whether a tag is of what some operations alone may read."""
  return tag in (RESERVED, STATE, SUMMED) or isinstance(tag, Axes)


class Value(NamedTuple):
  """What is known of a tensor."""

  kind: str
  shape: Optional[tuple[int, ...]] = None  # For `ROWS` rows.
  # Of `APART` and `PLACE`: the axis of the rows, which has `outer * ROWS *
  # inner` elements in this order.
  axis: int = 0
  outer: int = 1
  inner: int = 1
  numbers: Optional[Numbers] = None  # Where they are known.
  # Of `LIST` the value of each, `None` for zeros; whether element i, which is a
  # `TURN`, is of row i; and a size for `ROWS` rows.
  element: Any = None
  by_row: bool = False
  length: Optional[int] = None
  tag: Any = None  # What else is known, see `axes`.
  finding: Optional[Finding] = None  # Of `JOINED` and `UNKNOWN`.
  # The loops in whose turns it may hold different things. Where turns are of
  # rows it tells their places.
  by_turn: frozenset[str] = frozenset()
  # Of `PUBLIC`: `ALL` if all elements are random numbers that are drawn anew,
  # or made from them; `SOME` if all at one index of axis 0 are.
  drawn: str = ''
  # Of what is drawn, where known: one for each element, see `axis_draws`.
  names: Optional[tuple] = None

  @property
  def of_rows(self) -> bool:
    return self.kind in (APART, PLACE)

  @property
  def layout(self):
    return self.axis, self.outer, self.inner


class JoinedError(Exception):
  """Rows meet in an operation."""


class UnruledError(Exception):
  """An operation, or this use of it, has no rule."""


def joined_if(condition: Any, why: str = TOGETHER) -> None:
  """Raises a `JoinedError` if rows meet."""
  if condition:
    raise JoinedError(why)


def unruled_if(condition: Any) -> None:
  """Raises an `UnruledError` if there is no rule for what is so."""
  if condition:
    raise UnruledError


def has_rows(shape: Optional[Sequence[int]]) -> bool:
  """Whether a size in a shape for `ROWS` rows is that of rows."""
  return shape is not None and any(n and n % ROWS == 0 for n in shape)


def settled(value: Value) -> Value:
  """Returns a value of a computed kind, or raises where sizes do not fit it."""
  if value.kind in (PUBLIC, APART, PLACE, EVEN) and value.shape is not None:
    sizes = [n for n in value.shape if n and n % ROWS == 0]
    rest = math.prod(n // ROWS for n in sizes)
    if value.kind == PUBLIC:
      joined_if(sizes, SIZE)
    elif len(sizes) != 1 or (rest and rest % ROWS == 0):
      raise JoinedError(SIZE)
    elif value.kind != EVEN:
      size = value.shape[value.axis]
      unruled_if(size != value.outer * ROWS * value.inner)
  elif value.kind in (APART, PLACE, EVEN):
    raise UnruledError
  return value


def even_apart(value: Value) -> Value:
  """Returns a value of equal elements as one of which each is of a row."""
  if value.kind != EVEN:
    return value
  (axis,) = (i for i, n in enumerate(value.shape) if n and n % ROWS == 0)
  inner = value.shape[axis] // ROWS
  return Value(APART, value.shape, axis, 1, inner)


def public(shape: Optional[tuple[int, ...]], **kwargs: Any) -> Value:
  """Returns a value of no row."""
  return settled(Value(PUBLIC, shape, **kwargs))


def apart(shape, axis, outer=1, inner=1, kind=APART, tag=None) -> Value:
  """Returns a value of rows along an axis, after a look at its shape."""
  unruled_if(shape is None)
  axis = axis + len(shape) if axis < 0 else axis
  return settled(Value(kind, tuple(shape), axis, outer, inner, tag=tag))


def filled(shape: Optional[tuple[int, ...]]) -> Value:
  """Returns a value of which all elements are the same."""
  if has_rows(shape):
    return settled(Value(EVEN, shape))
  return Value(PUBLIC, shape)


def numbered(numbers):
  """Returns the value of known numbers."""
  kind = SIZED if numbers.sized else PUBLIC
  return Value(kind, numbers.one.shape, numbers=numbers)


def is_zero(numbers):
  """Whether numbers are known, and the integer 0."""
  return (
    numbers is not None
    and not numbers.sized
    and numbers.one.dtype.kind == 'i'
    and numbers.one.tolist() == 0
  )


def is_list_of_rows(value):
  """Whether a list has, or is to have, an element for each row."""
  of_rows = bool(value.length) and value.length % ROWS == 0
  return value.kind == LIST and (value.by_row or of_rows)


def sizes(node, value):
  """Returns the value of a shape, rank or size."""
  dtype = node.attr['out_type'].type or node.attr['shape_type'].type
  dtype = tf.as_dtype(dtype or tf.int32.as_datatype_enum).as_numpy_dtype
  if value.kind in (TURN, LIST) or value.shape is None:
    if value.kind == TURN:
      return Value(TURN)
    return Value(PUBLIC) if value.kind == PUBLIC else unruled()
  found = shape_arithmetic.of_shape(value.shape)
  if node.op == 'Rank':
    return numbered(Numbers(np.array(len(value.shape), dtype)))
  if node.op == 'Size':
    one, two = (np.array(np.prod(x), dtype) for x in (found.one, found.two))
    return numbered(Numbers(one, two))
  return numbered(found.astype(dtype))


def unruled():
  """Raises, in an expression."""
  raise UnruledError
