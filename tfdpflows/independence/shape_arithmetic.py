"""Numbers of a graph that are known without its rows: shapes, axes, counters.

Each is computed for two numbers of rows, by TensorFlow itself, on a few
integers: it is known then which of them depend on how many rows there are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import op_def_registry

# Primes, so that no other size of a tensor is a multiple of the first.
ROWS, OTHER_ROWS = 10007, 10009
_LARGEST = 4096
# The number of inputs, from the left or right, that are moved and not computed.
_MOVING = {
  **dict.fromkeys(('Cast', 'ExpandDims', 'GatherV2', 'Identity'), slice(1)),
  **dict.fromkeys(('Reshape', 'ReverseV2', 'Slice', 'Squeeze'), slice(1)),
  **dict.fromkeys(('StridedSlice', 'Tile', 'Transpose', 'Unpack'), slice(1)),
  **dict.fromkeys(('GatherNd', 'StopGradient', 'Snapshot'), slice(1)),
  **dict.fromkeys(('SplitV', 'BroadcastTo', 'EnsureShape'), slice(1)),
  **dict.fromkeys(('Pad', 'PadV2'), slice(1)),
  **dict.fromkeys(('Pack', 'Concat', 'AddN'), slice(None)),
  'ConcatV2': slice(-1),
  'Split': slice(1, None),
}
_EXACT = {'Add', 'AddV2', 'FloorDiv', 'Mul', 'Neg', 'Prod', 'RealDiv', 'Sub'}
_EXACT |= {'Sum', 'ConcatOffset'}
_COMPARING = {
  *('All', 'Any', 'Equal', 'FloorMod', 'Greater', 'GreaterEqual', 'Less'),
  *('LessEqual', 'LogicalAnd', 'LogicalNot', 'LogicalOr', 'Max', 'Maximum'),
  *('Min', 'Minimum', 'NotEqual', 'Range', 'Select', 'SelectV2', 'Cumsum'),
  *('Cumprod', 'InvertPermutation', 'ListDiff', 'OnesLike', 'ZerosLike'),
  *('Fill', 'Where', 'Abs', 'Sign', 'ScatterNd', 'OneHot', 'ArgMax', 'Mod'),
  *('TensorScatterUpdate', 'BroadcastArgs', 'Square', 'TruncateDiv'),
}
_FOLDED = {*_MOVING, *_EXACT, *_COMPARING, 'BroadcastGradientArgs'}
_FOLDED |= {'DynamicStitch'}


class Numbers:
  """A small tensor that is known, for `ROWS` rows and for `OTHER_ROWS`.

  Attributes:
    one: an array, for `ROWS` rows.
    two: for `OTHER_ROWS`.
    mark: bool, of the shape of `one`: which elements depend on the number of
      rows; one `True` for all, where the shape does.
  """

  def __init__(self, one: Any, two: Any = None, mark: Any = None):
    self.one = np.asarray(one)
    self.two = self.one if two is None else np.asarray(two)
    if self.one.shape != self.two.shape:
      self.mark = np.array(True)
    elif mark is None:
      self.mark = self.one != self.two
    else:
      self.mark = np.broadcast_to(mark, self.one.shape)

  @property
  def sized(self) -> bool:
    """Whether one of them depends on the number of rows."""
    return bool(np.any(self.mark))

  def list(self) -> list[int]:
    return [int(x) for x in self.one.reshape(-1)]

  def astype(self, dtype: Any, shape: Any = None) -> Numbers:
    """Returns them in another dtype, and shape."""
    shape = self.one.shape if shape is None else shape
    one, two = (x.astype(dtype).reshape(shape) for x in (self.one, self.two))
    return Numbers(one, two)

  def alike(self, other: Numbers) -> bool:
    """Whether equal numbers have the same bits: zeros may have two signs."""
    return self.one.tobytes() == other.one.tobytes()

  def scales_as(self, shape: Sequence[int]) -> bool:
    """Whether sizes are those of a shape for either number of rows."""
    expected = [
      n // ROWS * OTHER_ROWS if n > 0 and n % ROWS == 0 else n for n in shape
    ]
    two = [int(x) for x in self.two.reshape(-1)]
    return self.list() == list(shape) and two == expected

  def __eq__(self, other):
    return (
      isinstance(other, Numbers)
      and np.array_equal(self.one, other.one)
      and np.array_equal(self.two, other.two)
      and np.array_equal(self.mark, other.mark)
    )

  __hash__ = None


def of_shape(shape: Sequence[int]) -> Numbers:
  """Returns the sizes of a tensor whose shape for `ROWS` rows is given."""
  two = [n // ROWS * OTHER_ROWS if n % ROWS == 0 else n for n in shape]
  return Numbers(np.array(shape, np.int64), np.array(two, np.int64))


def is_folded(op: str) -> bool:
  """Returns whether `fold` knows an operation."""
  return op in _FOLDED


def fold(node: Any, inputs: Sequence[Numbers]) -> Optional[list[Numbers]]:
  """Returns what a node gives, or `None` for what is too large.

  Args:
    node: a `NodeDef`, of an operation that `is_folded`.
    inputs: its inputs, all known.
  """
  op = node.op
  if op not in _FOLDED or any(
    x.size > _LARGEST for i in inputs for x in (i.one, i.two)
  ):
    return None
  sized = any(i.sized for i in inputs)
  if sized and op in ('BroadcastTo', 'Fill', 'OneHot', 'Range', 'Tile'):
    return None
  ones = run(node, [i.one for i in inputs])
  if not sized:
    return [Numbers(x) for x in ones]
  twos = run(node, [i.two for i in inputs])
  if op != 'BroadcastGradientArgs' and any(
    a.shape != b.shape for a, b in zip(ones, twos)
  ):
    return None
  if op == 'BroadcastGradientArgs':
    # Which axes are summed over: for one row other ones of size 1, too.
    same = all(np.array_equal(a, b) for a, b in zip(ones, twos))
    return [Numbers(x) for x in ones] if same else None
  if op in _MOVING or op == 'DynamicStitch':
    chosen = _MOVING.get(op, slice(len(inputs) // 2, None))
    places = range(len(inputs))[chosen]
    rest = [x for i, x in enumerate(inputs) if i not in places]
    plain = all(x.mark.shape == x.one.shape for x in inputs)
    if plain and not any(x.sized for x in rest) and op != 'AddN':
      marks = [
        x.mark.astype(x.one.dtype)
        if i in places
        else np.zeros_like(x.one)
        if (op, i) == ('PadV2', 2)
        else x.one
        for i, x in enumerate(inputs)
      ]
      marks = [m.astype(bool) for m in run(node, marks)]
      return [Numbers(*x) for x in zip(ones, twos, marks)]
  numbers = [x for i in inputs for x in (i.one, i.two)] + ones + twos
  exact = op in _EXACT and all(map(_is_small, numbers))
  if op in ('FloorDiv', 'RealDiv'):
    with np.errstate(all='ignore'):
      exact = all(
        np.all(a == b * q)
        for a, b, q in (
          (inputs[0].one, inputs[1].one, ones[0]),
          (inputs[0].two, inputs[1].two, twos[0]),
        )
      )
  return [Numbers(a, b, None if exact else True) for a, b in zip(ones, twos)]


def _is_small(array):
  """Whether it has whole numbers far from where they are rounded or wrap."""
  return bool(np.all(np.abs(array.astype(np.float64)) < 2**22)) and (
    array.dtype.kind != 'f' or np.array_equal(array, np.round(array))
  )


def run(node: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
  """Runs the operation of a node on a few numbers."""
  attrs = []
  for attr in op_def_registry.get(node.op).attr:
    value = attr_value(node.attr[attr.name])
    if isinstance(value, tf.DType):
      value = value.as_datatype_enum
    attrs += [attr.name, value]
  with tf.init_scope(), tf.device('CPU'):
    found = execute.execute(
      node.op.encode(),
      output_names(node)[None],
      [tf.constant(x) for x in inputs],
      tuple(attrs),
      context.context(),
    )
  return [x.numpy() for x in found]


def attr_value(attr: Any) -> Any:
  """Returns the value of an attribute of a node."""
  kind = attr.WhichOneof('value')
  if kind == 'type':
    return tf.as_dtype(attr.type)
  if kind == 'shape':
    return tf.TensorShape(attr.shape)
  if kind != 'list':
    return getattr(attr, kind)
  for name in ('i', 's', 'f', 'b'):
    values = getattr(attr.list, name)
    if len(values):
      return list(values)
  return [int(t) for t in attr.list.type]


@functools.lru_cache(None)
def _arguments(op):
  definition = op_def_registry.get(op)
  return None if definition is None else tuple(definition.output_arg)


def data_inputs(node: Any) -> list[str]:
  """Returns the inputs of a node but those that only order operations."""
  return [name for name in node.input if not name.startswith('^')]


def functions_of(node: Any) -> list[str]:
  """Returns the names of the functions that a node calls."""
  found = []
  for value in node.attr.values():
    if value.HasField('func'):
      found.append(value.func.name)
    found += [f.name for f in value.list.func]
  return found


def output_names(node: Any) -> dict[str, int]:
  """Returns for each name of outputs in a function the first one's index."""
  found, index = {}, 0
  for argument in _arguments(node.op) or ():
    found[argument.name] = index
    if argument.number_attr:
      index += node.attr[argument.number_attr].i
    elif argument.type_list_attr:
      index += len(node.attr[argument.type_list_attr].list.type)
    else:
      index += 1
  found[None] = index
  return found


def count_outputs(node: Any) -> int:
  """Returns how many outputs a node has."""
  if node.op in ('Placeholder', '_Arg'):
    return 1
  return output_names(node)[None]
