"""Where the axis of rows goes in each operation of TensorFlow.

A rule gets what is known of the inputs of one operation, and returns it for the
outputs. It raises a `JoinedError` where an output may depend on several rows or
on their number, and an `UnruledError` where it does not know. No value counts
as apart that is not returned as such.

The rules are about what the documentation of TensorFlow states of an operation:
that row i of `tf.matmul(x, w)` is computed from row i of x, say.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfdpflows.independence.axis_values import (
  ALL,
  APART,
  EVEN,
  JOINED,
  PLACE,
  PLACES,
  PUBLIC,
  RESERVED,
  SIZE,
  SIZED,
  TOGETHER,
  Finding,
  JoinedError,
  UnruledError,
  Value,
  apart,
  even_apart,
  filled,
  has_rows,
  joined_if,
  settled,
  unruled_if,
)
from tfdpflows.independence.shape_arithmetic import ROWS, Numbers, attr_value

# They hold any place in a row.
_WIDE = (tf.int32, tf.int64)
# Whole numbers between limits so far apart are drawn anew in every step.
_MANY = 2**31
_KNOWN = (
  'draws the same numbers in each step, which differ by the place of a row '
  '(let a tf.random.Generator draw them, or their seed)'
)


class Call(NamedTuple):
  """One operation with its inputs."""

  node: Any  # A `NodeDef`.
  inputs: Sequence[Value]
  shapes: Sequence[Optional[tuple[int, ...]]]  # Of the outputs.

  def attr(self, name: str, default: Any = None) -> Any:
    if name not in self.node.attr:
      return default
    return attr_value(self.node.attr[name])

  def numbers(self, place: int) -> Numbers:
    found = self.inputs[place].numbers
    unruled_if(found is None)
    return found

  def fixed(self, place: int) -> list[int]:
    """Returns numbers that must not depend on the number of rows."""
    found = self.numbers(place)
    joined_if(found.sized, SIZE)
    return found.list()

  def shape(self, place: int = 0) -> tuple[int, ...]:
    """Returns the shape of an output."""
    found = self.shapes[place]
    unruled_if(found is None)
    return found


def _drawn(shape):
  """Returns random numbers, none of which belongs to another row."""
  return even_apart(filled(shape))


def _common(values, rank, left=()):
  """Returns the layout that values of rows share, aligned from the right.

  The rank is that of the result; those on the `left` are aligned from the left.
  """
  layout = None
  for v in values:
    if v.of_rows:
      shift = 0 if v in left else rank - len(v.shape)
      own = v.axis + shift, v.outer, v.inner
      joined_if(layout is not None and own != layout)
      layout = own
  for v in values:
    if v.kind == EVEN:
      even = even_apart(v)
      axis = even.axis + (0 if v in left else rank - len(v.shape))
      if layout is None:
        layout = axis, even.outer, even.inner
      elif layout[0] != axis:
        raise JoinedError(SIZE)
  return layout


def _elementwise(call):
  """Broadcasts its inputs from the right."""
  shape = call.shape()
  layout = _common(call.inputs, len(shape))
  values = [v for v in call.inputs if v.kind != PUBLIC]
  single = all(
    v.shape is not None and math.prod(v.shape) == 1
    for v in call.inputs
    if v.kind == PUBLIC
  )
  if single and all(v.kind == EVEN for v in values):
    return [settled(Value(EVEN, s)) for s in call.shapes]
  return [apart(s, *layout) for s in call.shapes]


def _select(call):
  condition = call.inputs[0]
  shape = call.shape()
  unruled_if(condition.shape is None)
  left = ()
  if len(condition.shape) == 1 and len(shape) > 1:
    left = (condition,)
  unruled_if(condition.kind == PUBLIC and left)
  layout = _common(call.inputs, len(shape), left)
  return [apart(shape, *layout)]


def _same(call):
  """Gives the elements of its first input in their order."""
  value = call.inputs[0]
  if 'String' in call.node.op or 'Base64' in call.node.op:
    value = value._replace(tag=None)  # Of a hash nothing is known.
  if value.kind == EVEN:
    return [settled(Value(EVEN, s)) for s in call.shapes]
  return [_reshaped(value, s) for s in call.shapes]


def _reshaped(value, shape):
  """Returns a value in another shape, of the same elements in this order."""
  unruled_if(shape is None)
  before = math.prod(value.shape[: value.axis]) * value.outer
  after = value.inner * math.prod(value.shape[value.axis + 1 :])
  axes = [i for i, n in enumerate(shape) if n and n % ROWS == 0]
  joined_if(len(axes) != 1, 'puts parts of rows together in a new shape')
  (axis,) = axes
  first, last = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
  if not (first and last and before % first == 0 and after % last == 0):
    raise JoinedError('puts parts of rows together in a new shape')
  outer, inner = before // first, after // last
  if shape[axis] != outer * ROWS * inner:
    raise JoinedError('puts parts of rows together in a new shape')
  joined_if(value.tag == 'first' and tuple(shape) != value.shape, PLACES)
  return apart(shape, axis, outer, inner, value.kind, value.tag)


def _reshape(call):
  numbers = call.numbers(1)
  for i, (one, size) in enumerate(zip(numbers.list(), call.shape())):
    expected = [-1] if one == -1 else [size]
    joined_if(not numbers[i : i + 1].scales_as(expected), SIZE)
  return _same(call)


def _cast(call):
  found = _same(call)
  if call.node.op == 'Squeeze' and not call.attr('squeeze_dims'):
    raise JoinedError(
      'drops all axes of size 1, and so that of the rows in a batch of one row '
      '(name the axis)'
    )
  if call.node.op == 'Cast' and call.attr('DstT') not in (tf.int32, tf.int64):
    return [v._replace(tag=None) for v in found]
  return found


def _bitcast(call):
  unruled_if(call.shape() != call.inputs[0].shape)
  return _cast(call)


def _public_rest(call, first=1):
  """Raises unless inputs from some place on are of no row."""
  joined_if(any(v.kind != PUBLIC for v in call.inputs[first:]))


def _axes(numbers, rank):
  unruled_if(any(not -rank <= n < rank for n in numbers))
  return {n % rank for n in numbers}


def _reduce(call):
  value = even_apart(call.inputs[0])
  joined_if(not value.of_rows or call.inputs[1].kind not in (PUBLIC, SIZED))
  rank = len(value.shape)
  axes = _axes(call.fixed(1), rank)
  joined_if(value.axis in axes)
  tag = None
  if call.node.op.startswith('Arg'):
    (axis,) = axes
    if call.attr('output_type') in _WIDE:
      tag = ('within', value.shape[axis])
  keep = call.attr('keep_dims', False)
  lost = 0 if keep else sum(a < value.axis for a in axes)
  axis = value.axis - lost
  return [
    apart(s, axis, value.outer, value.inner, tag=tag) for s in call.shapes
  ]


def _along(axes_of, why=TOGETHER):
  """Returns the rule of what computes along some axes, which it keeps."""

  def rule(call):
    value = even_apart(call.inputs[0])
    _public_rest(call)
    axes = _axes(axes_of(call), len(value.shape))
    joined_if(value.axis in axes, why)
    return [apart(s, *value.layout) for s in call.shapes]

  return rule


_LAST = lambda call: [-1]


def _top(call):
  found = _along(_LAST)(call)
  if call.attr('index_type', tf.int32) not in _WIDE:
    return found
  size = call.inputs[0].shape[-1]
  return [found[0], found[1]._replace(tag=('within', size))]


def _einsum(call):
  return _contracted(call, call.attr('equation').decode())


def _contracted(call, equation):
  left, output = equation.replace(' ', '').split('->')
  terms = left.split(',')
  labels = []
  ranks = []
  for term, v in zip(terms, call.inputs):
    unruled_if(v.shape is None)
    ranks.append(len(v.shape) - len(term.replace('...', '')))
  extra = max([r for r, t in zip(ranks, terms) if '...' in t], default=0)
  # Labels of the ellipsis, from the left; broadcast from the right.
  dots = [f'.{i}' for i in range(extra)]
  for term, rank in zip(terms, ranks):
    head, _, tail = term.partition('...')
    own = dots[extra - rank :] if '...' in term else []
    labels.append([*head, *own, *tail])
  head, found, tail = output.partition('...')
  result = [*head, *(dots if found else []), *tail]
  layout = None
  for v, own in zip(call.inputs, labels):
    v = even_apart(v)
    if v.of_rows:
      label = own[v.axis]
      joined_if(own.count(label) > 1 or label not in result)
      joined_if(layout not in (None, (label, v.outer, v.inner)))
      layout = label, v.outer, v.inner
  label, outer, inner = layout
  joined_if(result.count(label) > 1)
  for v, own in zip(call.inputs, labels):
    # What is of no row meets rows as one number, broadcast.
    if v.kind == PUBLIC and label in own and v.shape[own.index(label)] != 1:
      raise UnruledError
  return [apart(call.shape(), result.index(label), outer, inner)]


def _matmul(call):
  a, b = 'ik', 'kj'
  first = call.attr('transpose_a', False) or call.attr('adj_x', False)
  second = call.attr('transpose_b', False) or call.attr('adj_y', False)
  a, b = a[::-1] if first else a, b[::-1] if second else b
  dots = '...' if call.node.op.startswith('Batch') else ''
  return _contracted(call, f'{dots}{a},{dots}{b}->{dots}ij')


def _transpose(call):
  value = call.inputs[0]
  order = call.fixed(1)
  if value.kind == EVEN:
    return [settled(Value(EVEN, call.shape()))]
  rank = len(value.shape)
  order = [n % rank for n in order]
  unruled_if(sorted(order) != list(range(rank)))
  axis = order.index(value.axis)
  return [apart(call.shape(), axis, value.outer, value.inner)]


def _concat(call):
  if call.node.op == 'Concat':
    at, *values = call.inputs
  else:
    *values, at = call.inputs
  unruled_if(at.numbers is None or at.numbers.sized)
  shape = call.shape()
  axis = at.numbers.list()[0] % len(shape)
  if all(v.kind == EVEN for v in values):
    values = [even_apart(v) for v in values]
  layout = _common(values, len(shape))
  if layout[0] != axis:
    return [_columns(apart(shape, *layout), values, axis)]
  values = [even_apart(v) for v in values]
  joined_if(not all(v.of_rows for v in values))
  # Whole batches, one after the other.
  inner = values[0].inner
  joined_if(any(v.inner != inner for v in values))
  joined_if(any(v.kind == PLACE for v in values), PLACES)
  return [apart(shape, axis, sum(v.outer for v in values), inner)]


def _columns(found, values, axis):
  """Returns a value with a note of the row's number in the first column."""
  if all(v.kind != PLACE for v in values):
    return found
  first = values[0]
  size = 1 if len(first.shape) < len(found.shape) else first.shape[axis]
  last = axis == len(found.shape) - 1
  if not last or first.kind != PLACE or first.tag is not None or size != 1:
    raise JoinedError(PLACES)
  joined_if(any(v.kind == PLACE for v in values[1:]), PLACES)
  return found._replace(kind=PLACE, tag='first')


def _pack(call):
  shape = call.shape()
  axis = call.attr('axis', 0) % len(shape)
  values = call.inputs
  if all(v.kind == EVEN for v in values):
    values = [even_apart(v) for v in values]
  layout = _common(values, len(shape) - 1)
  place, outer, inner = layout
  found = apart(shape, place + (place >= axis), outer, inner)
  return [_columns(found, values, axis)]


def _unpack(call):
  value = even_apart(call.inputs[0])
  axis = call.attr('axis', 0) % len(value.shape)
  joined_if(axis == value.axis, 'takes single rows out of the batch')
  place = value.axis - (axis < value.axis)
  return [apart(s, place, value.outer, value.inner) for s in call.shapes]


def _split(call):
  if call.node.op == 'Split':
    axis, value = call.fixed(0)[0], call.inputs[1]
  else:
    axis, value = call.fixed(2)[0], call.inputs[0]
    call.fixed(1)
  value = even_apart(value)
  if axis % len(value.shape) == value.axis:
    count = len(call.shapes)
    if call.node.op != 'Split' or value.outer % count:
      raise JoinedError('splits the batch')
    value = value._replace(outer=value.outer // count)
  return [apart(s, *value.layout) for s in call.shapes]


def _pad(call):
  value = even_apart(call.inputs[0])
  _public_rest(call._replace(inputs=call.inputs[2:]), 0)
  pairs = call.fixed(1)
  if pairs[2 * value.axis : 2 * value.axis + 2] != [0, 0]:
    raise JoinedError('moves rows to the places of others')
  return [apart(call.shape(), *value.layout)]


def _slice(call):
  value = even_apart(call.inputs[0])
  begin, size = call.numbers(1), call.numbers(2)
  joined_if(not value.of_rows)
  rank = len(value.shape)
  rest = [i for i in range(rank) if i != value.axis]
  a = value.axis
  whole = any(size[a : a + 1].scales_as([n]) for n in (-1, value.shape[a]))
  joined_if(not _are(begin, a, 0) or not whole, 'takes some rows of the batch')
  joined_if(begin[rest].sized or size[rest].sized, SIZE)
  return [apart(call.shape(), *value.layout)]


def _parsed(call, rank, first):
  """Returns of each axis of a strided slice whether it is whole, and its place.

  That is its axis in the result, or `None`. The input `first` has the begins;
  ends and strides follow.
  """
  begin, end, stride = (call.inputs[first + i].numbers for i in range(3))
  masks = {
    name: call.attr(f'{name}_mask', 0) or 0
    for name in ('begin', 'end', 'ellipsis', 'new_axis', 'shrink_axis')
  }
  has = lambda name, i: bool(masks[name] >> i & 1)
  known = [x for x in (begin, end, stride) if x is not None]
  unruled_if(not known)
  count = len(known[0].one)
  news = sum(
    has('new_axis', i) and not has('ellipsis', i) for i in range(count)
  )
  dots = [i for i in range(count) if has('ellipsis', i)]
  unruled_if(len(dots) > 1)
  given = count - news - len(dots)
  unruled_if(given > rank)
  found, place = [], 0
  for i in range(count):
    if has('ellipsis', i):
      for _ in range(rank - given):
        found.append((True, place))
        place += 1
    elif has('new_axis', i):
      place += 1
    elif has('shrink_axis', i):
      found.append((False, None))
    else:
      whole = (
        has('begin', i) or (begin is not None and _are(begin, i, 0))
      ) and (stride is not None and _are(stride, i, 1))
      found.append((whole and (has('end', i) or (end, i)), place))
      place += 1
  while len(found) < rank:
    found.append((True, place))
    place += 1
  return found


def _are(numbers, i, n):
  return numbers[i : i + 1].scales_as([n])


def _is_whole(whole, size):
  """Whether a slice of rows takes all: to its end, or to their number."""
  if isinstance(whole, tuple):
    end, i = whole
    if end is None:
      return False
    return end[i : i + 1].scales_as([size])
  return whole


def _strided_slice(call):
  value = even_apart(call.inputs[0])
  if any(v.kind not in (PUBLIC, SIZED) for v in call.inputs[1:]):
    # An index computed from rows, on another axis or not.
    raise JoinedError(TOGETHER)
  joined_if(not value.of_rows, SIZE)
  whole, place = _parsed(call, len(value.shape), 1)[value.axis]
  if not _is_whole(whole, value.shape[value.axis]):
    raise JoinedError('takes some rows of the batch')
  for v in call.inputs[1:]:
    joined_if(v.kind == SIZED and v.numbers is None, SIZE)
    if v.numbers is not None and v.numbers.sized:
      joined_if(v is not call.inputs[2] or not isinstance(whole, tuple), SIZE)
      joined_if(list(np.flatnonzero(v.numbers[:].form)) != [whole[1]], SIZE)
  return [apart(call.shape(), place, value.outer, value.inner)]


def _strided_slice_grad(call):
  value = even_apart(call.inputs[4])
  joined_if(any(v.kind not in (PUBLIC, SIZED) for v in call.inputs[:4]))
  for i in (1, 2, 3):
    unruled_if(call.inputs[i].numbers is None or call.inputs[i].numbers.sized)
  shape = call.shape()
  unruled_if(not call.numbers(0).scales_as(shape))
  found = _parsed(call, len(shape), 1)
  axes = [i for i, (_, place) in enumerate(found) if place == value.axis]
  joined_if(len(axes) != 1, 'puts rows at the places of others')
  (axis,) = axes
  if not _is_whole(found[axis][0], shape[axis]):
    raise JoinedError('puts rows at the places of others')
  return [apart(shape, axis, value.outer, value.inner)]


def _tile(call):
  value = call.inputs[0]
  numbers = call.numbers(1)
  shape = call.shape()
  if value.kind == EVEN:
    call.fixed(1)
    return [settled(Value(EVEN, shape))]
  if value.kind == PUBLIC:
    unruled_if(value.shape is None)
    axes = [i for i, n in enumerate(numbers.list()) if n % ROWS == 0 and n]
    joined_if(len(axes) != 1 or not numbers.scales_as(numbers.list()), SIZE)
    (axis,) = axes
    count = numbers.list()[axis] // ROWS
    return [apart(shape, axis, count, value.shape[axis])]
  times = call.fixed(1)[value.axis]
  if value.kind == PLACE and (times != 1 or value.tag == 'first'):
    raise JoinedError(PLACES)
  outer, tag = value.outer * times, value.tag
  return [apart(shape, value.axis, outer, value.inner, value.kind, tag)]


def _broadcast_to(call):
  value = call.inputs[0]
  numbers = call.numbers(1)
  shape = call.shape()
  joined_if(not numbers.scales_as(shape), SIZE)
  unruled_if(value.shape is None)
  if value.kind == EVEN or (
    math.prod(value.shape) == 1 and value.kind == PUBLIC
  ):
    return [filled(shape)]
  if value.kind == PUBLIC:
    return [_drawn(shape)]
  joined_if(value.tag == 'first', PLACES)
  axis = value.axis + len(shape) - len(value.shape)
  return [apart(shape, axis, value.outer, value.inner, value.kind, value.tag)]


def _fill(call):
  unruled_if(call.inputs[1].kind != PUBLIC)
  numbers = call.numbers(0)
  joined_if(not numbers.scales_as(call.shape()), SIZE)
  return [filled(call.shape())]


def _range(call):
  unruled_if(call.inputs[0].numbers is None or call.inputs[2].numbers is None)
  unruled_if(call.inputs[2].numbers.one.dtype.kind != 'i')
  start, (step,) = call.fixed(0), call.fixed(2)
  if start != [0] or step < 1 or not call.numbers(1).scales_as([ROWS * step]):
    raise JoinedError(PLACES)
  tag = None if step == 1 else ('flat', step)
  return [apart((ROWS,), 0, kind=PLACE, tag=tag)]


def _random(call):
  """Draws numbers of a shape; of seeds and limits that are no row's."""
  place = 2 if call.node.op in _OF_GENERATORS else 0
  for i, v in enumerate(call.inputs):
    joined_if(i != place and v.kind != PUBLIC)
  shape = call.shape()
  joined_if(not call.numbers(place).scales_as(shape), SIZE)
  found = _drawn(shape)
  seeds = [call.inputs[i] for i in seeds_of(call.node.op)]
  if found.kind != PUBLIC and not all(v.drawn for v in seeds):
    raise JoinedError(_KNOWN)
  return [found._replace(drawn=drawn_by(call.node.op, call.inputs))]


def _random_by_rate(call):
  """Draws numbers of a shape for each element of its second input."""
  size, rate = call.inputs[0], even_apart(call.inputs[1])
  shape = call.shape()
  unruled_if(rate.shape is None)
  more = len(shape) - len(rate.shape)
  if rate.of_rows:
    call.fixed(0)
    return [apart(shape, rate.axis + more, rate.outer, rate.inner)]
  if size.kind == PUBLIC or not call.numbers(0).scales_as(shape[:more]):
    raise JoinedError(SIZE)
  return [_drawn(shape)]


def drawn_by(op: str, inputs: Sequence[Value]) -> str:
  """Returns how much of its output an operation draws anew in every step."""
  if op not in _RANDOM or op.startswith('Stateless'):
    return ''
  if op.endswith('UniformInt'):
    limits = [v.numbers for v in inputs[-2:]]
    if None in limits or any(x.sized or x.one.size != 1 for x in limits):
      return ''
    least, most = (int(x.one) for x in limits)
    # Of few numbers some steps would draw the same.
    return ALL if most - least >= _MANY else ''
  return ALL


def draws_by_state(op: str) -> bool:
  """Whether an operation draws by a key and a counter."""
  return op.startswith('Stateless') and op.endswith('V2') and op in _RANDOM


@functools.lru_cache(None)
def seeds_of(op: str) -> tuple[int, ...]:
  """Returns which inputs are what an operation draws by: a seed, or a state."""
  draws = op.startswith('Stateless') or op == 'RandomIndexShuffle'
  if not draws or 'GetKeyCounter' in op:
    return ()
  inputs = op_def_registry.get(op).input_arg
  return tuple(
    i for i, x in enumerate(inputs) if x.name in ('seed', 'key', 'counter')
  )


def _batch_first(*places):
  """Returns the rule of what computes each index of axis 0 by itself.

  The inputs at these places have that axis; all others are of no row.
  """

  def rule(call):
    values = []
    for i, v in enumerate(call.inputs):
      if i in places:
        values.append(even_apart(v))
      elif v.kind not in (PUBLIC, SIZED):
        raise JoinedError(TOGETHER)
    layouts = {v.layout for v in values if v.of_rows}
    joined_if(len(layouts) != 1 or not all(v.of_rows for v in values))
    (layout,) = layouts
    joined_if(layout[0] != 0)
    for name in ('ksize', 'strides', 'rates', 'dilations'):
      joined_if((call.attr(name) or [1])[0] != 1)
    joined_if(call.node.op == 'AdjustContrastv2' and len(call.shape()) < 4)
    for v in call.inputs:
      if v.kind == SIZED and not (
        v.numbers is not None and v.numbers.scales_as(call.shape())
      ):
        raise JoinedError(SIZE)
    return [apart(s, *layout) for s in call.shapes]

  return rule


def _transformed_images(call):
  # One transform is for all, or each image has its own.
  places = (0,) if call.inputs[1].kind == PUBLIC else (0, 1)
  return _batch_first(*places)(call)


def _normalized(call):
  """Batch normalization, which joins all but the channels if it trains."""
  value, *rest = [even_apart(v) for v in call.inputs]
  grad = 'Grad' in call.node.op
  training = call.attr('is_training', True)
  data_format = (call.attr('data_format') or b'NHWC').decode()
  channel = data_format.index('C')
  images = [value] + ([rest[0]] if grad else [])
  others = rest[1:] if grad else rest
  layouts = {v.layout for v in images if v.of_rows}
  joined_if(len(layouts) != 1)
  (layout,) = layouts
  vectors = {v.layout for v in others if v.of_rows}
  if layout[0] == channel:
    of_vector = (0, *layout[1:])
    joined_if(vectors - {of_vector})
    rest = [_of_channels(call, s, of_vector) for s in call.shapes[1:]]
  elif training or vectors:
    raise JoinedError('normalizes over the batch')
  elif grad:
    rest = [_of_channels(call, None, None) for s in call.shapes[1:]]
  else:
    rest = [Value(PUBLIC, s) for s in call.shapes[1:]]
  return [apart(call.shapes[0], *layout), *rest]


def _of_channels(call, shape, layout):
  if shape is not None and len(shape) == 1 and has_rows(shape):
    return apart(shape, *layout)
  if 'Grad' not in call.node.op:
    # For the gradient alone, in a form of its own.
    return Value(PUBLIC, tag=RESERVED)
  return Value(JOINED, finding=Finding(call.node.op, call.node.name, TOGETHER))


def _gather(call):
  op = call.node.op
  values, indices = call.inputs[:2]
  batch_dims = call.attr('batch_dims', 0) or 0
  axis = 0
  if op == 'ResourceGather':
    values = values._replace(shape=values.tag and values.tag[1])
  if op == 'GatherV2':
    (axis,) = call.fixed(2)
  values, indices = even_apart(values), even_apart(indices)
  unruled_if(values.shape is None or indices.shape is None)
  rank = len(values.shape)
  axis = axis % rank
  width = len(indices.shape)
  if batch_dims < 0:
    batch_dims += width
  layouts = []
  joined_if(PLACE in (values.kind, indices.kind), PLACES)
  if values.of_rows:
    place = values.axis
    joined_if(place == axis, 'looks rows of the batch up')
    if place > axis:
      place += width - batch_dims - 1
    layouts.append((place, values.outer, values.inner))
  if indices.of_rows:
    place = indices.axis
    if place >= batch_dims:
      place += axis - batch_dims
      joined_if(values.of_rows, 'looks rows of the batch up')
    layouts.append((place, indices.outer, indices.inner))
  joined_if(len(set(layouts)) != 1, 'looks rows of the batch up')
  return [apart(call.shape(), *layouts[0])]


def _gather_nd(call):
  values, indices = (even_apart(v) for v in call.inputs)
  if values.kind == PUBLIC:
    joined_if(indices.axis == len(indices.shape) - 1 or indices.kind == PLACE)
    return [apart(call.shape(), *indices.layout)]
  if (
    indices.kind == PLACE
    and indices.tag == 'first'
    and values.kind == APART
    and values.layout == (0, 1, 1)
    and (indices.outer, indices.inner) == (1, 1)
  ):
    return [apart(call.shape(), *indices.layout)]
  raise JoinedError('looks rows of the batch up')


def _one_hot(call):
  indices, _, *rest = call.inputs
  unruled_if(any(v.kind != PUBLIC for v in rest))
  call.fixed(1)
  indices = even_apart(indices)
  rank = len(indices.shape) + 1
  axis = call.attr('axis', -1)
  axis = rank - 1 if axis == -1 else axis
  place = indices.axis + (indices.axis >= axis)
  return [apart(call.shape(), place, indices.outer, indices.inner)]


def _search(call):
  table, values = (even_apart(v) for v in call.inputs)
  if table.kind == PUBLIC:
    return [apart(call.shape(), *values.layout)]
  if not (table.of_rows and values.of_rows) or table.layout != values.layout:
    raise JoinedError(TOGETHER)
  joined_if(table.axis != 0)
  return [apart(call.shape(), *table.layout)]


def _segments(call):
  data, ids = even_apart(call.inputs[0]), call.inputs[1]
  joined_if(ids.kind != PUBLIC or ids.shape is None, 'adds rows up by segments')
  call.fixed(2) if len(call.inputs) > 2 else None
  rank = len(ids.shape)
  joined_if(data.axis < rank, 'adds rows up by segments')
  return [apart(call.shape(), data.axis - rank + 1, data.outer, data.inner)]


def _matrices(call):
  """Computes with the last two axes, of each matrix by itself."""
  values = [even_apart(v) for v in call.inputs]
  ranks = [len(v.shape) for v in values if v.shape is not None]
  unruled_if(len(ranks) < len(values))
  rank = max(ranks)
  layout = _common(values, rank)
  op = call.node.op
  columns = op in ('MatrixTriangularSolve', 'MatrixSolve')
  if columns and values[0].kind == PUBLIC and layout[0] == rank - 1:
    return [apart(call.shape(), *layout)]
  joined_if(layout[0] >= rank - 2)
  return [apart(s, *layout) for s in call.shapes]


def _diagonal(call):
  """Makes a matrix of the last axis, or the other way round."""
  value = even_apart(call.inputs[0])
  _public_rest(call)
  # One diagonal, or a band of several, which is a matrix itself.
  band = len(call.inputs) > 1 and len(call.fixed(1)) > 1
  taken = 2 if band or 'Part' in call.node.op else 1
  joined_if(value.axis >= len(value.shape) - taken)
  return [apart(call.shape(), *value.layout)]


def _lookup(call):
  _, keys, default = call.inputs
  unruled_if(default.kind != PUBLIC)
  keys = even_apart(keys)
  return [apart(call.shape(), *keys.layout)]


def _space_to_batch(call):
  value = even_apart(call.inputs[0])
  blocks = math.prod(call.fixed(1))
  call.fixed(2)
  joined_if(value.axis)
  if call.node.op == 'SpaceToBatchND':
    outer = value.outer * blocks
  elif value.outer % blocks:
    raise JoinedError(TOGETHER)
  else:
    outer = value.outer // blocks
  return [apart(call.shape(), 0, outer, value.inner)]


def _joins(call):
  raise JoinedError(TOGETHER)


def _cross_entropy(call):
  logits, labels = (even_apart(v) for v in call.inputs)
  rank = 1 if call.node.op.startswith('Sparse') else 2
  layouts = []
  for v, width in ((logits, 2), (labels, rank)):
    unruled_if(v.shape is None or len(v.shape) != width)
    if v.of_rows:
      layouts.append(v.layout)
    elif v.shape[0] != 1:
      raise UnruledError
  joined_if(len(set(layouts)) != 1 or layouts[0][0] != 0)
  return [apart(s, *layouts[0]) for s in call.shapes]


def _names(text):
  return frozenset(text.split())


ELEMENTWISE = _names("""
  Abs Acos Acosh Add AddN AddV2 Angle ApproximateEqual Asin Asinh Atan Atan2
  Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0
  BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc BitwiseAnd BitwiseOr
  BitwiseXor Bucketize Ceil ClipByValue Complex ComplexAbs Conj Cos Cosh Dawsn
  Digamma Div DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expint Expm1
  Floor FloorDiv FloorMod FresnelCos FresnelSin Greater GreaterEqual Igamma
  IgammaGradA Igammac Imag Inv InvGrad Invert IsFinite IsInf IsNan LeakyRelu
  LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd
  LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter
  NotEqual Polygamma PopulationCount Pow Real RealDiv Reciprocal
  ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift Rint Round Rsqrt
  RsqrtGrad Selu SeluGrad SelectV2 Sigmoid SigmoidGrad Sign Sin Sinh Softplus
  SoftplusGrad Softsign SoftsignGrad Spence Sqrt SqrtGrad Square
  SquaredDifference Sub Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy
  Xlog1py Xlogy Zeta AccumulateNV2 StringJoin RandomGammaGrad
""")
_RANDOM = _names("""
  RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt
  StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomNormal
  StatelessRandomNormalV2 StatelessTruncatedNormal StatelessTruncatedNormalV2
  StatelessRandomUniformInt StatelessRandomUniformIntV2
  StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
  StatefulStandardNormalV2 StatefulUniform StatefulTruncatedNormal
  StatefulUniformInt StatefulUniformFullInt
""")
_RANDOM_BY_RATE = _names('RandomGamma RandomPoissonV2')
_OF_GENERATORS = _names("""
  StatefulStandardNormalV2 StatefulUniform StatefulTruncatedNormal
  StatefulUniformInt StatefulUniformFullInt
""")
# Rules, and the operations that each is of.
_RULES = (
  (_elementwise, ELEMENTWISE),
  (_random, _RANDOM),
  (_random_by_rate, _RANDOM_BY_RATE),
  (
    _cast,
    _names("""
      Identity StopGradient PreventGradient Snapshot CheckNumerics EnsureShape
      CheckNumericsV2 ExpandDims Squeeze PlaceholderWithDefault AsString Cast
      StringLower StringUpper StringStrip StringLength StaticRegexReplace
      StaticRegexFullMatch StringToHashBucket StringToHashBucketFast
      StringToHashBucketStrong StringToNumber EncodeBase64 DecodeBase64
    """),
  ),
  (
    _reduce,
    _names('All Any Max Mean Min Prod Sum EuclideanNorm ArgMax ArgMin'),
  ),
  (
    _along(lambda call: call.fixed(1)),
    _names('Cumsum Cumprod CumulativeLogsumexp ReverseV2'),
  ),
  (_along(_LAST), _names('FFT IFFT IRFFT LogSoftmax RFFT Softmax')),
  (_along(lambda call: call.fixed(2)), {'Roll'}),
  (_along(lambda call: ()), {'BiasAdd'}),
  (_along(lambda call: (-2, -1)), {'MatrixBandPart'}),
  (_along(lambda call: (0,), 'shuffles rows'), {'RandomShuffle'}),
  (
    _batch_first(0),
    _names("""
      Conv2D Conv3D DepthwiseConv2dNative MaxPool AvgPool MaxPool3D AvgPool3D
      LRN ResizeBilinear ResizeNearestNeighbor ResizeNearestNeighborGrad
      ResizeBicubic ResizeArea Dilation2D AdjustContrastv2 AdjustHue
      AdjustSaturation ExtractImagePatches SpaceToDepth DepthToSpace
      DenseBincount Multinomial
    """),
  ),
  (_batch_first(0, 1), {'ResizeBilinearGrad'}),
  (
    _batch_first(0, 1, 2),
    _names('MaxPoolGrad MaxPool3DGrad MaxPoolGradGrad LRNGrad'),
  ),
  (_batch_first(1), _names('AvgPoolGrad AvgPool3DGrad')),
  (
    _batch_first(2),
    _names("""
      Conv2DBackpropInput Conv3DBackpropInputV2
      DepthwiseConv2dNativeBackpropInput
    """),
  ),
  (
    _transformed_images,
    _names('ImageProjectiveTransformV2 ImageProjectiveTransformV3'),
  ),
  (
    _matrices,
    _names("""
      Cholesky CholeskyGrad MatrixInverse MatrixDeterminant LogMatrixDeterminant
      MatrixSolve MatrixTriangularSolve Qr Svd SelfAdjointEigV2
      MatrixExponential MatrixLogarithm MatrixSquareRoot
    """),
  ),
  (
    _diagonal,
    _names("""
      MatrixDiag MatrixDiagV2 MatrixDiagV3
      MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3
    """),
  ),
  (
    _segments,
    _names("""
      SegmentSum SegmentMean SegmentMax SegmentMin SegmentProd
      UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin
      UnsortedSegmentProd
    """),
  ),
  (
    _joins,
    _names("""
      BiasAddGrad Conv2DBackpropFilter Conv3DBackpropFilterV2 L2Loss
      DepthwiseConv2dNativeBackpropFilter
    """),
  ),
  (
    _normalized,
    _names("""
      FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3
      FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3
    """),
  ),
  (
    _cross_entropy,
    _names("""
      SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits
    """),
  ),
  (_matmul, _names('MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3')),
  (_gather, _names('Gather GatherV2 ResourceGather')),
  (_space_to_batch, _names('SpaceToBatchND BatchToSpaceND')),
  (_concat, _names('Concat ConcatV2')),
  (_pad, _names('MirrorPad Pad PadV2')),
  (_search, _names('LowerBound UpperBound')),
  (_split, _names('Split SplitV')),
  (_top, _names('TopK TopKV2')),
  (_bitcast, {'Bitcast'}),
  (_broadcast_to, {'BroadcastTo'}),
  (_einsum, {'Einsum'}),
  (_fill, {'Fill'}),
  (_gather_nd, {'GatherNd'}),
  (_lookup, {'LookupTableFindV2'}),
  (_one_hot, {'OneHot'}),
  (_pack, {'Pack'}),
  (_range, {'Range'}),
  (_reshape, {'Reshape'}),
  (_select, {'Select'}),
  (_slice, {'Slice'}),
  (_strided_slice, {'StridedSlice'}),
  (_strided_slice_grad, {'StridedSliceGrad'}),
  (_tile, {'Tile'}),
  (_transpose, {'Transpose'}),
  (_unpack, {'Unpack'}),
)
RULES: dict[str, Callable[[Call], list[Value]]] = {
  op: rule for rule, ops in _RULES for op in ops
}


def _times(call):
  """Row numbers times k: where the k elements of each row begin."""
  first, second = call.inputs
  place, other = (first, second) if first.kind == PLACE else (second, first)
  numbers = other.numbers
  if other.kind != PUBLIC or numbers is None or numbers.one.size != 1:
    raise JoinedError(PLACES)
  unruled_if(numbers.one.dtype.kind != 'i')
  times = int(numbers.one.reshape(-1)[0])
  joined_if(place.tag is not None or times < 1, PLACES)
  layout = _common(call.inputs, len(call.shape()))
  return apart(call.shape(), *layout, kind=PLACE, tag=('flat', times))


def _plus(call):
  """Where the elements of each row are: what is added is a place in the row."""
  first, second = call.inputs
  place, other = (first, second) if first.kind == PLACE else (second, first)
  joined_if(place.tag is None or place.tag[0] != 'flat', PLACES)
  layout = _common(call.inputs, len(call.shape()))
  if _is_within(other, place.tag[1]):
    # With more added it may be a place of another row.
    tag = ('within row', place.tag[1])
    return apart(call.shape(), *layout, kind=PLACE, tag=tag)
  if other.kind == APART:
    # Out of range it would be in another row. Nothing is known of its range.
    raise UnruledError
  raise JoinedError(PLACES)


def _is_within(value, size):
  """Whether integers are known to be from 0 to less than a size."""
  if value.kind == APART:
    tag = value.tag
    return isinstance(tag, tuple) and tag[0] == 'within' and tag[1] <= size
  if value.kind != PUBLIC or value.numbers is None:
    return False
  one = value.numbers.one
  return one.size > 0 and one.min() >= 0 and one.max() < size


def _by_number(call):
  """Looks each row up at its own number, or its elements at their places."""
  rows, place = call.inputs[:2]
  if rows.kind == PLACE or place.kind != PLACE or call.attr('batch_dims', 0):
    raise JoinedError(PLACES)
  if rows.kind != APART or rows.axis or call.fixed(2) != [0]:
    raise JoinedError('looks rows of the batch up')
  size = 1 if place.tag is None else place.tag[1]
  if place.tag == 'first' or (rows.outer, rows.inner) != (1, size):
    raise JoinedError('looks rows of the batch up')
  return apart(call.shape(), *place.layout)


def _add_at(call):
  """Adds elements of each row up at places of the same row."""
  if call.node.op == 'ScatterNd':
    place, data, size = call.inputs
    flat = place.shape is not None and place.shape[1:] == (1,)
  else:
    data, place, size = call.inputs
    flat = place.shape is not None and len(place.shape) == 1
  data = even_apart(data)
  joined_if(place.kind != PLACE or data.kind != APART or not flat, PLACES)
  times = 1 if place.tag is None else place.tag[1]
  joined_if(place.tag == 'first' or data.axis or place.axis, PLACES)
  joined_if((data.outer, data.inner) != (place.outer, place.inner), PLACES)
  shape = call.shape()
  if size.numbers is None or not size.numbers[:1].scales_as([ROWS * times]):
    raise JoinedError(PLACES)
  return apart(shape, 0, 1, times)


# With numbers of rows.
PLACED: dict[str, Callable[[Call], Value]] = {
  'Add': _plus,
  'AddV2': _plus,
  'GatherV2': _by_number,
  'Mul': _times,
  'ScatterNd': _add_at,
  'UnsortedSegmentSum': _add_at,
}
# May hold a row's number as they hold what is computed from it.
KEEPING_PLACE = _names("""
  BroadcastTo Cast ConcatV2 ExpandDims GatherNd
""")
KEEPING_PLACE |= {'Identity', 'Pack', 'Reshape', 'Squeeze', 'Tile'}
# Get sizes and places of these inputs.
SHAPED = {
  **dict.fromkeys(_names('BroadcastTo Pad PadV2 Reshape Tile'), frozenset([1])),
  **dict.fromkeys(_RANDOM | _RANDOM_BY_RATE, frozenset([0])),
  **dict.fromkeys(_OF_GENERATORS, frozenset([2])),
  'Fill': {0},
  'Range': {0, 1, 2},
  'Slice': {1, 2},
  'StridedSlice': {1, 2, 3},
  'StridedSliceGrad': {0, 1, 2, 3},
  'AvgPoolGrad': {0},
  'AvgPool3DGrad': {0},
  'Conv2DBackpropInput': {0},
  'Conv3DBackpropInputV2': {0},
  'DepthwiseConv2dNativeBackpropInput': {0},
}
