"""Which random numbers are drawn by the same seeds.

Two draws by one seed are no independent numbers: that of the first row is the
first number of a draw of one, so that to compare them tells which row is the
first. So each element of a tensor that is drawn has a name here, of where it
was drawn, which stays with it where it is moved: draws by the same names have
the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdpflows.independence import axis_rules, axis_turns, shape_arithmetic
from tfdpflows.independence.axis_values import (
  ALL,
  PUBLIC,
  SIZED,
  JoinedError,
  UnruledError,
  Value,
)

_XOR = 'xor'
_SAME = (
  'draws by the seed of another draw, of which it gives other rows numbers'
)
# Seeds, and states of generators, are smaller.
_MOST = 4096


class Draws:
  """The draws of a graph by seeds or states of generators."""

  def __init__(self):
    self._seen = {}

  def add(self, node: Any, inputs: Sequence[Value], path: str) -> None:
    """Notes a draw by a seed.

    Args:
      node: a `NodeDef`; if it draws by none, nothing is done.
      inputs: what is known of its inputs.
      path: of the node.

    Raises:
      JoinedError: where another one has the same seed, and other numbers for
        the rows.
      UnruledError: where that is not known.
    """
    places = axis_rules.seeds_of(node.op)
    if not places:
      return
    seed = tuple(name for i in places for name in _names(inputs[i]))
    if len(places) > 1:
      # Of a counter that is a little larger most numbers are the same.
      turned = lambda name: isinstance(name, tuple) and name[0] == _XOR
      seed = tuple(None if turned(name) else name for name in seed)
    rest = [v for i, v in enumerate(inputs) if i not in places]
    known = all(v.numbers is not None for v in rest)
    # Two that are alike give each row the same numbers.
    kind = _kind(node), tuple(_text(v) for v in rest) if known else path
    sized = any(v.kind == SIZED for v in rest)
    for other, seeds in self._seen.items():
      for its_seed, its_sized in seeds.items():
        if other == kind or not (sized or its_sized):
          continue
        if len(seed) != len(its_seed):
          raise UnruledError
        pairs = [(a, b) for a, b in zip(seed, its_seed) if a != b]
        if not pairs and None not in seed:
          raise JoinedError(_SAME)
        if all(None in pair for pair in pairs):
          raise UnruledError
    self._seen.setdefault(kind, {})[seed] = sized


def named(
  node: Any, inputs: Sequence[Value], outputs: Sequence[Value], path: str
) -> list[Value]:
  """Returns outputs with names of what of them is drawn.

  Args:
    node: a `NodeDef`.
    inputs: what is known of its inputs.
    outputs: what is known of its outputs.
    path: of the node.
  """
  if not any(v.kind == PUBLIC and v.drawn for v in outputs):
    return list(outputs)
  sizes = [None if v.shape is None else math.prod(v.shape) for v in outputs]
  if any(size is None or size > _MOST for size in sizes):
    return list(outputs)
  found = _found(node, inputs, outputs, sizes, path)
  return [
    v._replace(names=tuple(n)) if v.drawn and len(n) == size else v
    for v, n, size in zip(outputs, found, sizes)
  ]


def _found(node, inputs, outputs, sizes, path):
  op = node.op
  if op in ('Identity', 'Bitcast'):
    return [_names(inputs[0])]
  if op in axis_turns.TAKING or op == 'Pack':
    return _moved(node, inputs) or [()] * len(outputs)
  if op == 'BitwiseXor':
    pair = [_broadcast(v, outputs[0].shape) for v in inputs]
    return [[_xor(*names) for names in zip(*pair)]]
  if op in axis_turns.DRAWING:
    # They make the same of the same.
    given = tuple(name for v in inputs for name in _names(v))
    if None in given:
      return [()] * len(outputs)
    path = _kind(node), given
  elif any(v.drawn != ALL for v in outputs):
    return [()] * len(outputs)
  return [[(path, i, k) for k in range(size)] for i, size in enumerate(sizes)]


def _xor(one, other):
  """Returns the name of an element with some bits turned by a constant."""
  if isinstance(one, int) and isinstance(other, int):
    return one ^ other
  name, bits = (other, one) if isinstance(one, int) else (one, other)
  if not (isinstance(name, tuple) and isinstance(bits, int)):
    return None
  if name[0] == _XOR:
    _, name, more = name
    bits ^= more
  return (_XOR, name, bits) if bits else name


def _moved(node, inputs):
  """Returns the names of what is moved and not computed, if that is known."""
  place = axis_turns.TAKING.get(node.op)
  moved = range(len(inputs)) if place is None else [place]
  names, given = [], []
  for i, v in enumerate(inputs):
    if i not in moved:
      if v.numbers is None or v.numbers.sized:
        return None
      given.append(v.numbers.one)
      continue
    if v.shape is None:
      return None
    own = _names(v)
    places = np.arange(len(names), len(names) + len(own))
    given.append(places.reshape(v.shape).astype(_dtype(node)))
    names += own
  found = shape_arithmetic.run(node, given)
  return [[names[int(i)] for i in x.reshape(-1)] for x in found]


def _dtype(node):
  kind = 'Tparams' if 'Gather' in node.op else 'T'
  return shape_arithmetic.attr_value(node.attr[kind]).as_numpy_dtype


def _broadcast(value, shape):
  """Returns the names of elements of a value that is broadcast to a shape."""
  if value.shape is None:
    return [None] * math.prod(shape)
  names = _names(value)
  places = np.arange(len(names)).reshape(value.shape)
  return [names[i] for i in np.broadcast_to(places, shape).reshape(-1)]


def _names(value):
  """Returns the names of all elements, `None` where there is none."""
  if value.names is not None:
    return value.names
  if value.numbers is not None and not value.numbers.sized:
    return tuple(value.numbers.one.reshape(-1).tolist())
  return (None,) * (1 if value.shape is None else math.prod(value.shape))


def _text(value):
  return str(value.numbers.one.tolist())


def _kind(node):
  """Returns a text of an operation with its attributes."""
  attrs = {k: str(v) for k, v in node.attr.items() if not k.startswith('_')}
  return node.op, str(sorted(attrs.items()))
