"""Numbers of a graph that are known without its rows: shapes, axes, counters.

Each is computed for two numbers of rows, by TensorFlow itself, on a few
integers. Of each it is known besides whether it is the same for any number of
rows, or `a * rows + b` with whole numbers a and b, which two values determine;
or whether it may depend on the number of rows in some other way. Then its two
values say nothing of others.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import op_def_registry

# Primes, so that no other size of a tensor is a multiple of the first. (The
# first prime beyond 10,000 is the size of many a hash table.)
ROWS, OTHER_ROWS = 10037, 10039
# How a number depends on the number of rows: not at all, as a * rows + b, or
# perhaps in another way.
CONSTANT, LINEAR, OTHER = range(3)
_LARGEST = 4096
# The number of inputs, from the left or right, that are moved and not computed.
_MOVING = {
  **dict.fromkeys(('Cast', 'ExpandDims', 'GatherV2', 'Identity'), slice(1)),
  **dict.fromkeys(('Reshape', 'ReverseV2', 'Slice', 'Squeeze'), slice(1)),
  **dict.fromkeys(('StridedSlice', 'Tile', 'Transpose', 'Unpack'), slice(1)),
  **dict.fromkeys(('GatherNd', 'StopGradient', 'Snapshot'), slice(1)),
  **dict.fromkeys(('SplitV', 'BroadcastTo', 'EnsureShape'), slice(1)),
  **dict.fromkeys(('Pad', 'PadV2'), slice(1)),
  **dict.fromkeys(('Select', 'SelectV2'), slice(1, None)),
  'Pack': slice(None),
  'Concat': slice(1, None),
  'ConcatV2': slice(-1),
  'Split': slice(1, None),
}
# Operations in NumPy's words, and what they make of `CONSTANT`, `LINEAR` and
# `OTHER`: a product of two linear numbers, 1 + 1, is another.
_ARITHMETIC = {
  'Add': (np.add, np.maximum),
  'AddN': (lambda *x: sum(x), lambda *x: functools.reduce(np.maximum, x)),
  'AddV2': (np.add, np.maximum),
  'Mul': (np.multiply, np.add),
  'Neg': (np.negative, np.positive),
  'Prod': (np.prod, np.sum),
  'Sub': (np.subtract, np.maximum),
  'Sum': (np.sum, functools.partial(np.max, initial=CONSTANT)),
}
_QUOTIENTS = {'FloorDiv', 'RealDiv'}
_ORDERING = {'Equal', 'NotEqual', 'Greater', 'GreaterEqual', 'Less'}
_ORDERING |= {'LessEqual'}
_COMPARING = {
  *_ORDERING,
  *('All', 'Any', 'FloorMod', 'LogicalAnd', 'LogicalNot', 'LogicalOr', 'Max'),
  *('Maximum', 'Min', 'Minimum', 'Range', 'Cumsum'),
  *('Cumprod', 'InvertPermutation', 'ListDiff', 'OnesLike', 'ZerosLike'),
  *('Fill', 'Where', 'Abs', 'Sign', 'ScatterNd', 'OneHot', 'ArgMax', 'Mod'),
  *('TensorScatterUpdate', 'BroadcastArgs', 'Square', 'TruncateDiv'),
}
_FOLDED = {*_MOVING, *_ARITHMETIC, *_QUOTIENTS, *_COMPARING}
_FOLDED |= {'BroadcastGradientArgs', 'ConcatOffset', 'DynamicStitch'}
# Their outputs are of another size where inputs are other numbers.
_OF_SIZES = {'BroadcastTo', 'Fill', 'ListDiff', 'OneHot', 'Range', 'Tile'}
_OF_SIZES |= {'Where'}
# And of these where some inputs are.
_SETTING_SIZES = {
  **dict.fromkeys(('ExpandDims', 'Pad', 'PadV2', 'Reshape'), slice(1, 2)),
  **dict.fromkeys(('All', 'Any', 'ArgMax', 'Max', 'Min'), slice(1, 2)),
  **dict.fromkeys(('Prod', 'Sum', 'Transpose'), slice(1, 2)),
  **dict.fromkeys(('Concat', 'Split'), slice(1)),
  'ConcatV2': slice(-1, None),
  'GatherV2': slice(2, None),
  **dict.fromkeys(('Slice', 'SplitV', 'StridedSlice'), slice(1, None)),
  'ScatterNd': slice(2, None),
}
# Dtypes that hold numbers of rows as they are.
_WIDE = (tf.int32, tf.int64, tf.float32, tf.float64)


class Numbers:
  """A small tensor that is known, for `ROWS` rows and for `OTHER_ROWS`.

  Attributes:
    one: an array, for `ROWS` rows.
    two: for `OTHER_ROWS`.
    form: of the shape of `one`: how each element depends on the number of
      rows, as above; one `OTHER` for all, where the shape does.
  """

  def __init__(self, one: Any, two: Any = None, form: Any = LINEAR):
    self.one = np.asarray(one)
    self.two = self.one if two is None else np.asarray(two)
    if self.one.shape != self.two.shape:
      self.form = np.array(OTHER)
      return
    form = np.minimum(np.broadcast_to(form, self.one.shape), OTHER)
    # Of a * rows + b the difference is an a for each row more.
    with np.errstate(invalid='ignore'):
      more = self.two.astype(np.float64) - self.one.astype(np.float64)
      linear = np.where(more % (OTHER_ROWS - ROWS) == 0, LINEAR, OTHER)
    same = (self.one == self.two) | (two is None)
    linear = np.where(same, CONSTANT, linear)
    self.form = np.where(form == LINEAR, linear, form)

  @property
  def sized(self) -> bool:
    """Whether one of them depends on the number of rows."""
    return bool(np.any(self.form))

  def __getitem__(self, index: Any) -> Numbers:
    """Returns some of them, in a row."""
    form = np.broadcast_to(self.form, self.one.shape).reshape(-1)[index]
    return Numbers(
      self.one.reshape(-1)[index], self.two.reshape(-1)[index], form
    )

  def list(self) -> list[int]:
    return [int(x) for x in self.one.reshape(-1)]

  def astype(self, dtype: Any, shape: Any = None) -> Numbers:
    """Returns them in another dtype, and shape."""
    shape = self.one.shape if shape is None else shape
    one, two = (x.astype(dtype).reshape(shape) for x in (self.one, self.two))
    return Numbers(one, two, self.form.reshape(shape))

  def alike(self, other: Numbers) -> bool:
    """Whether equal numbers have the same bits: zeros may have two signs."""
    return self.one.tobytes() == other.one.tobytes()

  def scales_as(self, shape: Sequence[int]) -> bool:
    """Whether sizes are those of a shape, for any number of rows."""
    if np.any(self.form == OTHER):
      return False
    expected = of_shape(shape)
    return np.array_equal(
      self.one.reshape(-1), expected.one
    ) and np.array_equal(self.two.reshape(-1), expected.two)

  def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns a and b of numbers that are constant or linear."""
    one, two = self.one.astype(np.float64), self.two.astype(np.float64)
    slope = (two - one) / (OTHER_ROWS - ROWS)
    return slope, one - slope * ROWS

  def __eq__(self, other):
    return (
      isinstance(other, Numbers)
      and np.array_equal(self.one, other.one)
      and np.array_equal(self.two, other.two)
      and np.array_equal(self.form, other.form)
    )

  __hash__ = None


def of_shape(shape: Sequence[int]) -> Numbers:
  """Returns the sizes of a tensor whose shape for `ROWS` rows is given."""
  two = [
    n // ROWS * OTHER_ROWS if n > 0 and n % ROWS == 0 else n for n in shape
  ]
  return Numbers(np.array(shape, np.int64), np.array(two, np.int64))


def is_folded(op: str) -> bool:
  """Returns whether `fold` knows an operation."""
  return op in _FOLDED


def fold(node: Any, inputs: Sequence[Numbers]) -> Optional[list[Numbers]]:
  """Returns what a node of a folded operation gives, `None` if too large."""
  op = node.op
  if op not in _FOLDED or any(
    x.size > _LARGEST for i in inputs for x in (i.one, i.two)
  ):
    return None
  sized = any(i.sized for i in inputs)
  if sized and op in _OF_SIZES:
    return None
  # Of what sets the size of an output two values say nothing.
  setting = _SETTING_SIZES.get(op, slice(0))
  if op == 'DynamicStitch':
    setting = slice(len(inputs) // 2)
  if any(i.sized for i in inputs[setting]):
    return None
  ones = run(node, [i.one for i in inputs])
  if not sized:
    return [Numbers(x) for x in ones]
  twos = run(node, [i.two for i in inputs])
  if op == 'BroadcastGradientArgs':
    # Which axes are summed over.
    return [Numbers(x) for x in ones] if _broadcast(inputs) else None
  if any(a.shape != b.shape for a, b in zip(ones, twos)):
    return None
  forms = _forms(node, inputs, ones, twos)
  if forms is None:
    forms = [OTHER] * len(ones)
  return [Numbers(*x) for x in zip(ones, twos, forms)]


def axes_of_one_row(
  node: Any, shapes: Sequence[Numbers]
) -> list[tuple[int, ...]]:
  """Returns axes that `BroadcastGradientArgs` gives for one row alone.

  Those of each output that are not among the axes for more rows: of both shapes
  the size is 1 there.
  """
  ones = []
  for x in shapes:
    slope, base = x.coefficients()
    ones.append(np.rint(slope + base).astype(x.one.dtype))
  several = run(node, [x.one for x in shapes])
  return [
    tuple(sorted({*a.tolist()} - {*b.tolist()}))
    for a, b in zip(run(node, ones), several)
  ]


def _broadcast(shapes):
  """Whether shapes broadcast alike for any number of rows, from one on.

  Each size is constant or some number of rows, or their multiple, and all sizes
  of an axis that are not one are the same.
  """
  if any(np.any(s.form == OTHER) for s in shapes):
    return False
  rank = max(s.one.size for s in shapes)
  for place in range(1, rank + 1):
    sizes = {
      tuple(float(x.reshape(-1)[-place]) for x in s.coefficients())
      for s in shapes
      if s.one.size >= place
    } - {(0.0, 1.0)}
    if len(sizes) > 1 or any(slope and base for slope, base in sizes):
      return False
  return True


def _forms(node, inputs, ones, twos):
  """Returns how outputs depend on the number of rows; `None` if in any way."""
  op = node.op
  if op == 'BroadcastArgs':
    return [LINEAR] if _broadcast(inputs) else None
  if any(x.form.shape != x.one.shape for x in inputs):
    return None
  if op in _MOVING or op == 'DynamicStitch':
    return _moved_forms(node, inputs, ones, twos)
  if op in _QUOTIENTS:
    return [_quotient_form(*inputs, ones[0])]
  if op in _ORDERING:
    return [_order_form(*inputs)]
  if op == 'ConcatOffset':
    mixed = any(np.any(x.form == OTHER) for x in inputs) or inputs[0].sized
    return None if mixed else [LINEAR] * len(ones)
  along = {}
  if op in ('Max', 'Min', 'Prod', 'Sum'):
    *inputs, axes = inputs  # These set sizes, and so are constant.
    along['axis'] = tuple(int(axis) for axis in axes.one.reshape(-1))
    along['keepdims'] = node.attr['keep_dims'].b
  if op in ('Max', 'Min', 'Maximum', 'Minimum'):
    return [_extreme_form(op, inputs, along)]
  if op not in _ARITHMETIC:
    return None
  compute, formed = (functools.partial(f, **along) for f in _ARITHMETIC[op])
  for found, given in (
    (ones[0], [x.one for x in inputs]),
    (twos[0], [x.two for x in inputs]),
  ):
    expected = compute(*(x.astype(np.float64) for x in given))
    # Nothing is rounded, or has begun anew at the other end of its dtype.
    if not (_is_whole(found) and np.array_equal(found, expected)):
      return None
  return [formed(*(x.form for x in inputs))]


def _extreme_form(op, inputs, along):
  """Returns the forms of extremes.

  They are linear where one of the numbers is the extreme for one row, and with
  every further row.
  """
  parts = [(x.form, *x.coefficients()) for x in inputs]
  if len(parts) == 2:
    parts = [np.stack(np.broadcast_arrays(*pair)) for pair in zip(*parts)]
    along = {'axis': 0}
  else:
    (parts,) = parts
  form, slope, base = parts
  known = np.max(form, initial=CONSTANT, **along) != OTHER
  sign = 1 if op.startswith('Max') else -1
  leading = True
  for numbers in (sign * slope, sign * (slope + base)):
    most = np.max(numbers, initial=-np.inf, **{**along, 'keepdims': True})
    leading = leading & (numbers == most)
  return np.where(known & np.any(leading, **along), LINEAR, OTHER)


def _is_whole(array):
  """Whether it has whole numbers, which are far from where they are rounded."""
  return array.dtype.kind != 'f' or bool(
    np.all(np.abs(array) < 2**22) and np.array_equal(array, np.round(array))
  )


def _quotient_form(number, divisor, quotient):
  """Returns the forms of quotients, linear where there is no remainder."""
  (a, b), (c, d) = number.coefficients(), divisor.coefficients()
  with np.errstate(all='ignore'):
    by_constant = (divisor.form == CONSTANT) & (a % d == 0) & (b % d == 0)
    by_rows = (d == 0) & (quotient * c == a) & (b == 0)
  known = (number.form != OTHER) & (divisor.form != OTHER)
  return np.where(known & (by_constant | by_rows), LINEAR, OTHER)


def _order_form(first, second):
  """Returns the forms of comparisons, constant where whole numbers are equal.

  Not where one is larger: either may be too large for its dtype.
  """
  known = (first.form != OTHER) & (second.form != OTHER)
  known &= first.one.dtype.kind == 'i'
  same = [a == b for a, b in zip(first.coefficients(), second.coefficients())]
  return np.where(known & same[0] & same[1], CONSTANT, OTHER)


def _moved_forms(node, inputs, ones, twos):
  """Returns the forms of elements that are moved and not computed."""
  moved = _MOVING.get(node.op, slice(len(inputs) // 2, None))
  places = range(len(inputs))[moved]
  if any(x.sized for i, x in enumerate(inputs) if i not in places):
    return None
  if node.op == 'Cast':
    (given,) = inputs
    same = np.array_equal(given.one, ones[0])
    same &= np.array_equal(given.two, twos[0])
    for name in ('SrcT', 'DstT'):
      same &= tf.as_dtype(node.attr[name].type) in _WIDE
    return [given.form if same else np.where(given.form, OTHER, CONSTANT)]
  # In place of the elements, what they are; truths are not linear.
  found = run(
    node,
    [
      x.form.astype(x.one.dtype)
      if i in places
      else np.zeros_like(x.one)
      if (node.op, i) == ('PadV2', 2)
      else x.one
      for i, x in enumerate(inputs)
    ],
  )
  return [np.where(x, OTHER, 0) if x.dtype == bool else x for x in found]


def run(node: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
  """Runs the operation of a node on a few numbers."""
  attrs = []
  for attr in op_def_registry.get(node.op).attr:
    value = attr_value(node.attr[attr.name])
    if isinstance(value, tf.DType):
      value = value.as_datatype_enum
    attrs += [attr.name, value]
  with tf.init_scope(), tf.device('CPU'):
    given, count = [tf.constant(x) for x in inputs], output_names(node)[None]
    found = execute.execute(
      node.op.encode(), count, given, tuple(attrs), context.context()
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
  """Returns how many outputs a node has, or 1 for none."""
  if node.op in ('Placeholder', '_Arg'):
    return 1
  return max(1, output_names(node)[None])
