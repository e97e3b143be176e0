"""What a loop over rows computes: one row in each turn.

Which turn it is tells the place of a row. So what changes from turn to turn
carries the loop's name (`Value.by_turn`), and does not meet a row of that turn.

Loops fill lists of tensors, of which `tf.TensorArray` is made too. A list of
rows has one element for each row, which is set and read in the turn of that row
alone.
"""

from __future__ import annotations

import numpy as np

from tfdpflows.independence import axis_values, shape_arithmetic
from tfdpflows.independence.axis_values import (
  ALL,
  APART,
  EVEN,
  JOINED,
  LIST,
  PLACE,
  PUBLIC,
  SIZED,
  SOME,
  TURN,
  UNKNOWN,
  JoinedError,
  UnruledError,
  Value,
  joined_if,
  unruled_if,
)
from tfdpflows.independence.shape_arithmetic import ROWS, Numbers

# Of numbers that are all drawn they give such.
TAKING = {
  **dict.fromkeys(('Reshape', 'Squeeze', 'ExpandDims', 'StridedSlice'), 0),
  **dict.fromkeys(('Unpack', 'SplitV', 'GatherV2'), 0),
  'Split': 1,
}
# They make others that nobody knows of what nobody knows. (Of a whole range:
# between two limits there may be one number only.)
DRAWING = {
  *('StatelessRandomGetKeyCounter', 'StatelessRandomGetKeyCounterAlg'),
  *('StatelessRandomUniformFullInt', 'StatelessRandomUniformFullIntV2'),
}


def tagged(value, kind, place=None):
  """Returns the loop that a tag of some kind names, or `None`."""
  tag = value.tag
  if not isinstance(tag, tuple) or tag[0] != kind:
    return None
  return None if place is not None and tag[2] != place else tag[1]


def turn_of(value):
  """Returns which loop's turn a number is that of, or `None`."""
  return tagged(value, 'turn', 0)


def counted(op, inputs, value):
  """Returns a value with a note of how it counts the turns of a loop."""
  counters = [i for i, v in enumerate(inputs) if tagged(v, 'turn') is not None]
  if len(counters) != 1:
    return value
  (place,) = counters
  counter = inputs[place].tag
  if op in ('Identity', 'StopGradient', 'Snapshot'):
    return value._replace(tag=counter)
  one_row = value.shape == (len(inputs),) and not any(
    counter[1] in v.by_turn for v in inputs[1:]
  )
  if op == 'Pack' and place == 0 and one_row:
    return value._replace(tag=counter)  # Where a slice of one row begins.
  if op in ('Add', 'AddV2') and counter[2] == 0 and value.shape == ():
    other = inputs[1 - place].numbers
    if other is not None and not other.sized and other.one.tolist() == 1:
      return value._replace(tag=(*counter[:2], 1))
  return value


def is_turn(node, inputs):
  """Returns whether there is a turn for each row, in a loop, or `None`."""
  if node.op == 'Less':
    index, limit = inputs
    loop = turn_of(index) if index.shape == () else None
    if loop is None or limit.numbers is None or limit.numbers.one.shape != ():
      return None
    if limit.kind == SIZED and one_batch(limit.numbers):
      return Value(SIZED, (), tag=('below', loop))
  if node.op in ('LogicalAnd', 'Identity'):
    loops = {tagged(v, 'below') for v in inputs}
    if len(loops) == 1 and None not in loops:
      return Value(SIZED, (), tag=('below', loops.pop()))
  return None


def one_batch(numbers):
  """Whether one number is that of the rows, for either number of them."""
  return numbers.scales_as([ROWS])


def row_of_turn(node, inputs):
  """Returns one row of this turn, where rows are looked up by its number."""
  if node.op == 'GatherV2':
    rows, index, axis = inputs
    plain = (
      axis_values.is_zero(axis.numbers)
      and index.shape == ()
      and not node.attr['batch_dims'].i
    )
  elif node.op == 'StridedSlice':
    rows, index = inputs[:2]
    first = lambda mask: node.attr[f'{mask}_mask'].i & 1
    plain = first('shrink_axis') and not any(
      first(mask) for mask in ('begin', 'ellipsis', 'new_axis')
    )
  else:
    return None
  loop = turn_of(index)
  if loop is None or not plain:
    return None
  if rows.kind == APART and rows.layout == (0, 1, 1):
    joined_if(any(v.kind != PUBLIC for v in inputs[1:]), axis_values.SIZE)
    after = ('turn', loop, 1)  # Where a slice of one row ends.
    others = [rows, *(v for v in inputs[2:] if v.tag != after)]
    joined_if(any(loop in v.by_turn for v in others), axis_values.PLACES)
    return Value(TURN, tag=loop)
  return None


def in_each_turn(value, loop):
  """Returns what a loop changes from turn to turn."""
  if value.kind in (JOINED, UNKNOWN):
    return value
  return value._replace(by_turn=value.by_turn | {loop})


def inherited(value, inputs, node=None):
  """Returns a value with what else it has of what it is computed from.

  The inputs may also be what decides about it; then no node computes it.
  """
  if value.kind in (JOINED, UNKNOWN):
    return value
  by_turn = value.by_turn.union(*(v.by_turn for v in inputs))
  if value.kind == TURN:
    by_turn -= {value.tag}  # It is of one row, whichever that is.
  drawn = value.drawn
  if node is not None and not drawn:
    drawn = _drawn(node, inputs)
  return value._replace(by_turn=by_turn, drawn=drawn)


def _drawn(node, inputs):
  """Returns what of an output is drawn at random, see `Value`."""
  op, drawn = node.op, [v.drawn for v in inputs]
  if op in ('Identity', 'Bitcast'):
    return drawn[0]
  if op in DRAWING:
    return ALL if any(drawn) else ''
  if op == 'BitwiseXor':
    # With constants: what is not known may be of the same numbers.
    for one, other in (inputs, inputs[::-1]):
      if other.numbers is not None and other.shape in ((), one.shape):
        return one.drawn
    return ''
  if op == 'Pack' and not node.attr['axis'].i:
    if all(part == ALL for part in drawn):
      return ALL
    return SOME if ALL in drawn else ''
  found = drawn[TAKING[op]] if op in TAKING else ''
  if found == SOME and not (op == 'StridedSlice' and _is_columns(node, inputs)):
    return ''
  return found


def _is_columns(node, inputs):
  """Whether a slice takes all along axis 0."""
  first = lambda mask: node.attr[f'{mask}_mask'].i & 1
  strides = inputs[3].numbers
  return (
    strides is not None
    and strides[:1].scales_as([1])
    and first('begin')
    and first('end')
    and not any(map(first, ('ellipsis', 'new_axis', 'shrink_axis')))
  )


def refuse_places(values):
  """Refuses one row beside what tells its place."""
  loops = {v.tag for v in values if v.kind == TURN}
  for value in values:
    if value.kind != TURN and loops & value.by_turn:
      if value.kind == LIST:
        raise UnruledError  # It may grow from turn to turn, and no more.
      raise JoinedError(axis_values.PLACES)


def of_turn(values):
  """Returns what is computed from one row, and from what is of no row."""
  loops = {v.tag for v in values if v.kind == TURN}
  refuse_places(values)
  lists = [v for v in values if v.kind == LIST]
  others = any(v.kind not in (PUBLIC, TURN, LIST) for v in values)
  if (
    others
    or len(loops) != 1
    or any(
      axis_values.is_list_of_rows(v)
      or (v.element is not None and v.element.kind != PUBLIC)
      for v in lists
    )
  ):
    raise JoinedError(axis_values.TOGETHER)
  return Value(TURN, tag=loops.pop())


def alone(node, inputs):
  """Returns what any operation gives of one row alone: it is of this row."""
  return [of_turn(inputs)] * shape_arithmetic.count_outputs(node)


def changing(value):
  """Returns a value without what holds in one turn of a loop only."""
  tag = value.tag
  if isinstance(tag, tuple) and tag[0] in ('turn', 'below'):
    tag = None
  return value._replace(numbers=None, tag=tag)


def either(a, b):
  """Returns what is known of a value that is one of two."""
  # `inherited` joins these.
  names = a.names if a.names == b.names else None
  a, b = (
    v._replace(by_turn=frozenset(), drawn='', names=names) for v in (a, b)
  )
  if a == b:
    return a
  for kind in (JOINED, UNKNOWN):
    for v in (a, b):
      if v.kind == kind:
        return v._replace(tag=None)
  kinds = {a.kind, b.kind}
  if TURN in kinds:
    return of_turn([a, b])
  if SIZED in kinds:
    joined_if(not kinds <= {SIZED, PUBLIC}, axis_values.SIZE)
    return Value(SIZED)
  if kinds == {LIST}:
    return _either_list(a, b)
  unruled_if(LIST in kinds)
  if kinds == {PUBLIC}:
    shape = a.shape if a.shape == b.shape else None
    tag = a.tag if a.tag == b.tag else None
    if a.tag != b.tag and any(map(axis_values.is_for_some, (a.tag, b.tag))):
      raise UnruledError
    same = a.numbers is not None and a.numbers == b.numbers
    return Value(PUBLIC, shape, numbers=a.numbers if same else None, tag=tag)
  unruled_if(PUBLIC in kinds or a.shape != b.shape)
  joined_if(PLACE in kinds, axis_values.PLACES)
  if kinds == {EVEN}:
    return Value(EVEN, a.shape)
  layouts = {v.layout for v in (a, b) if v.kind == APART}
  joined_if(len(layouts) != 1)
  return axis_values.apart(a.shape, *layouts.pop())


def _either_list(a, b):
  length = a.length if a.length == b.length else None
  if a.element is None or b.element is None:
    one = b if a.element is None else a
    unruled_if(one.by_row and length is None)
    return one._replace(length=length)
  if a.by_row or b.by_row:
    unruled_if(a != b)
    return a
  return a._replace(element=either(a.element, b.element), length=length)


def of_list(node, inputs):
  """Returns what an operation on lists gives, a value for each output."""
  op, first = node.op, inputs[0]
  turn = [v for v in inputs if v.kind == TURN]
  if op in ('EmptyTensorList', 'TensorListReserve') and turn:
    return [of_turn(inputs)]
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
    return alone(node, inputs)
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
      loop = turn_of(index)
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
    loop = turn_of(index)
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
  element = changing(item)
  element = element._replace(numbers=item.numbers, drawn='', names=None)
  if first.element is not None:
    element = either(first.element, element)
  length = None if first.length is None else first.length + 1
  return first._replace(element=element, length=length)


def plain_list(op, inputs):
  """Returns what plain operations make of lists."""
  if op == 'ZerosLike':
    return inputs[0]._replace(element=None, by_row=False)
  if op in ('Identity', 'StopGradient'):
    return inputs[0]
  if op == 'AddN':
    first, *others = inputs
    for other in others:
      first = either(first, other)
    element = first.element
    if element is not None and element.kind != TURN:
      # The sum of what is known.
      element = element._replace(numbers=None, tag=None)
    return first._replace(element=element)
  raise UnruledError
