"""Lists of tensors, which loops fill and `tf.TensorArray` is made of.

A list of rows has one element for each row, which is set and read in the turn
of that row alone.
"""

from __future__ import annotations

import numpy as np

from tfdpflows.independence import axis_turns, axis_values, shape_arithmetic
from tfdpflows.independence.axis_values import (
  APART,
  LIST,
  PLACE,
  PUBLIC,
  SIZED,
  TURN,
  JoinedError,
  UnruledError,
  Value,
  joined_if,
  unruled_if,
)
from tfdpflows.independence.shape_arithmetic import ROWS, Numbers


def apply(node, inputs):
  """Returns what an operation on lists gives, a value for each output."""
  op, first = node.op, inputs[0]
  turn = [v for v in inputs if v.kind == TURN]
  if op in ('EmptyTensorList', 'TensorListReserve') and turn:
    return [axis_turns.of_turn(inputs)]
  if op == 'EmptyTensorList':
    return [Value(LIST, (), length=0)]
  if op == 'TensorListReserve':
    numbers = inputs[1].numbers
    length = None if numbers is None else int(numbers.one)
    unruled_if(inputs[1].kind not in (PUBLIC, SIZED))
    if numbers is None or (numbers.sized and not numbers.scales_as([ROWS])):
      raise JoinedError(axis_values.SIZE)
    return [Value(LIST, (), length=length)]
  # Lists of single tensors, which one row decides about, are this row's.
  rows = axis_values.is_list_of_rows(first)
  if turn and not (op == 'TensorListSetItem' and rows):
    return axis_turns.alone(node, inputs)
  if op == 'TensorListFromTensor':
    return [_unstacked(first)]
  unruled_if(first.kind != LIST)
  if op == 'TensorListLength':
    length = first.length
    if rows:
      unruled_if(length != ROWS)
      numbers = shape_arithmetic.of_shape([ROWS])
      return [axis_values.numbered(numbers.astype(np.int32, ()))]
    unruled_if(length is None)
    return [axis_values.numbered(Numbers(np.array(length, np.int32)))]
  if op == 'TensorListElementShape':
    element = first.element
    unruled_if(element is None or element.shape is None)
    # That which was stated, of which some sizes may be -1.
    return [Value(SIZED, (len(element.shape),))]
  if op == 'TensorListGetItem':
    index = inputs[1]
    joined_if(index.kind != PUBLIC, 'looks rows of the batch up')
    if first.by_row:
      loop = axis_turns.turn_of(index)
      joined_if(loop is None, 'looks rows of the batch up')
      if loop in first.by_turn:
        raise UnruledError  # It may hold other things in each turn.
      return [Value(TURN, tag=loop)]
    joined_if(rows, 'looks rows of the batch up')
    return [_zeros(node, inputs) if first.element is None else first.element]
  if op == 'TensorListSetItem':
    index, item = inputs[1:3]
    joined_if(index.kind != PUBLIC, 'puts rows at places which rows decide')
    found = _set_item(first, index, item)
    grows = node.attr['resize_if_index_out_of_bounds'].b
    return [found._replace(length=None) if grows else found]
  if op == 'TensorListPushBack':
    item = inputs[1]
    unruled_if(rows)
    return [_pushed(first, item)]
  if op == 'TensorListPopBack':
    unruled_if(rows or first.element is None)
    return [first._replace(length=None), first.element]
  if op == 'TensorListStack':
    return [_stacked(node, first, inputs)]
  raise UnruledError


def _stacked(node, first, inputs):
  element, length = first.element, first.length
  stated = node.attr['num_elements'].i
  if length is None and stated >= 0:
    length = stated
  if first.by_row:
    # In a loop it may have been set in some turns only.
    unruled_if(first.length is None or first.length != ROWS or first.by_turn)
    shape = inputs[1].numbers
    unruled_if(shape is None or shape.sized or np.any(shape.one < 0))
    return axis_values.apart((ROWS, *shape.list()), 0)
  if element is None:
    element = _zeros(node, inputs)
  unruled_if(length is None or element.shape is None)
  unruled_if(element.kind in (LIST, SIZED))
  shape = length, *element.shape
  if element.kind == PUBLIC:
    if first.element is None:
      return axis_values.filled(shape)
    return axis_values.public(shape)
  value = axis_values.even_apart(element)
  unruled_if(value.kind != APART)
  return axis_values.apart(shape, value.axis + 1, value.outer, value.inner)


def _zeros(node, inputs):
  sizes = inputs[-1].numbers
  unruled_if(sizes is None or np.any(sizes.one < 0))
  joined_if(not sizes.scales_as(sizes.list()), axis_values.SIZE)
  return axis_values.filled(tuple(sizes.list()))


def _unstacked(value):
  """Returns the list of what there is along axis 0."""
  value = axis_values.even_apart(value)
  unruled_if(value.kind not in (PUBLIC, APART) or value.shape is None)
  length, *rest = value.shape
  rest = tuple(rest)
  if value.kind == PUBLIC:
    return Value(LIST, (), element=Value(PUBLIC, rest), length=length)
  if value.axis == 0:
    unruled_if(value.layout != (0, 1, 1))
    element = Value(TURN)
    return Value(LIST, (), element=element, by_row=True, length=length)
  element = axis_values.apart(rest, value.axis - 1, value.outer, value.inner)
  return Value(LIST, (), element=element, length=length)


def _set_item(first, index, item):
  joined_if(item.kind == PLACE, axis_values.PLACES)
  if axis_values.is_list_of_rows(first):
    loop = axis_turns.turn_of(index)
    if loop is None or first.length != ROWS:
      raise JoinedError('puts rows at the places of others')
    joined_if(item.kind != PUBLIC and (item.kind, item.tag) != (TURN, loop))
    joined_if(loop in item.by_turn, axis_values.PLACES)
    unruled_if(first.element is not None and not first.by_row)
    return first._replace(element=Value(TURN), by_row=True)
  found = _pushed(first, item)
  # Those that are not set are zeros.
  element = found.element._replace(numbers=None, tag=None)
  return found._replace(element=element, length=first.length)


def _pushed(first, item):
  joined_if(item.kind == PLACE, axis_values.PLACES)
  # Its numbers are those of all turns: what a turn changes has none.
  element = axis_turns.changing(item)
  element = element._replace(numbers=item.numbers, drawn='')
  if first.element is not None:
    element = axis_turns.either(first.element, element)
  length = None if first.length is None else first.length + 1
  return first._replace(element=element, length=length)


def plain(op, inputs):
  """Returns what plain operations make of lists."""
  if op == 'ZerosLike':
    return inputs[0]._replace(element=None, by_row=False)
  if op in ('Identity', 'StopGradient'):
    return inputs[0]
  if op == 'AddN':
    first, *others = inputs
    for other in others:
      first = axis_turns.either(first, other)
    element = first.element
    if element is not None and element.kind != TURN:
      # The sum of what is known.
      element = element._replace(numbers=None, tag=None)
    return first._replace(element=element)
  raise UnruledError
