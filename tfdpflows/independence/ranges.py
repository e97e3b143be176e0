"""Ranges of numbers in a graph, for whatever is in its variables and rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

# The least and the largest.
Span = tuple[float, float]
# Of these the first input says it all.
_KEEPING = {
  *('BroadcastTo', 'ExpandDims', 'Gather', 'GatherV2', 'Identity', 'Max'),
  *('Min', 'PreventGradient', 'Reshape', 'ReverseV2', 'Roll', 'Slice'),
  *('Snapshot', 'Squeeze', 'StopGradient', 'StridedSlice', 'Tile', 'Transpose'),
}
# Gives some element of its inputs at these places.
_ONE_OF = {
  'ConcatV2': slice(0, -1),
  'Pack': slice(None),
  'PadV2': slice(0, None, 2),
  'Select': slice(1, None),
  'SelectV2': slice(1, None),
}
_BOOLEANS = {'Equal', 'NotEqual', 'Less', 'LessEqual', 'Greater'}
_BOOLEANS |= {'GreaterEqual', 'LogicalAnd', 'LogicalOr', 'LogicalNot'}
_BOOLEANS |= {'IsNan', 'IsInf', 'IsFinite', 'Any', 'All'}
_WIDE = (tf.int32, tf.int64, tf.float32, tf.float64)
# Give the shape of their input, of which sizes are taken to be this at most.
_SHAPES = {'Rank', 'Shape', 'ShapeN', 'Size'}
LARGEST = 2**22
_FITTING = 2**30
_ALL = -(2**63), 2**63
_ARITHMETIC = {
  'Add': operator.add,
  'AddV2': operator.add,
  'Mul': operator.mul,
  'Sub': operator.sub,
}


def constant(span: Optional[Span]) -> Optional[float]:
  """Returns the number that a range has, if it is one."""
  return span[0] if span is not None and span[0] == span[1] else None


def is_small(span: Optional[Span]) -> bool:
  """Whether numbers are such that float32 can count up to a sum of few."""
  return span is not None and max(map(abs, span)) <= LARGEST


def after(node: Any, inputs: Sequence[Any], dims: Sequence) -> Optional[Span]:
  """Returns the range of what a node gives, or `None` for any numbers.

  What has a range is finite, and of integers no sum or product has one that may
  begin anew at the other end of its dtype. Inputs have `span` and `dims`; the
  argument `dims` has the static shapes of what the node gives.
  """
  op, spans = node.op, [flow.span for flow in inputs]
  if op == 'Const':
    value = tf.make_ndarray(node.attr['value'].tensor)
    known = (
      value.size and value.dtype.kind in 'iubf' and np.isfinite(value).all()
    )
    return (value.min().item(), value.max().item()) if known else None
  if op in _SHAPES:
    return 0, LARGEST
  if op in _BOOLEANS or op in ('OnesLike', 'ZerosLike'):
    return 0, 1
  if op in ('ArgMax', 'ArgMin'):
    return _below(_size(inputs[0], constant(spans[1])))
  if op == 'TopKV2' and not _is_integer(node):
    return _below(_size(inputs[0], -1))
  if op in ('LowerBound', 'UpperBound'):
    size = _size(inputs[0], -1)
    return None if size is None else (0, size)
  if op == 'Bucketize':
    return 0, len(node.attr['boundaries'].list.f)
  # NaN is not clipped.
  if op in ('Maximum', 'Minimum') and (None not in spans or _is_integer(node)):
    return _clipped(spans, max if op == 'Maximum' else min)
  if op == 'FloorMod' and _is_integer(node):
    return _below(constant(spans[1]))
  if op == 'Sum':
    count = _count(inputs[0].dims, dims[0] if dims else None)
    spans.append(None if count is None else (count, count))
    op, spans = 'Mul', [spans[0], spans[2]]
  if op == 'Fill':
    return spans[1]
  if op in _ONE_OF:
    spans = spans[_ONE_OF[op]]
    if not spans or None in spans:
      return None
    return min(low for low, _ in spans), max(high for _, high in spans)
  if op == 'Cast':
    if tf.as_dtype(node.attr['DstT'].type) not in _WIDE or not _fits(*spans):
      return None
    return math.floor(spans[0][0]), math.ceil(spans[0][1])
  if op in _KEEPING:
    return spans[0]
  if op in _ARITHMETIC and _fits(*spans):
    ends = [_ARITHMETIC[op](a, b) for a in spans[0] for b in spans[1]]
    found = min(ends), max(ends)
    return found if _fits(found) else None
  return None


def _fits(*spans):
  """Whether these are known and far from the ends of int32."""
  return None not in spans and max(map(abs, sum(spans, ()))) <= _FITTING


def _is_integer(node):
  return tf.as_dtype(node.attr['T'].type).is_integer


def _size(flow, axis):
  return None if flow.dims is None or axis is None else flow.dims[axis]


def _below(size):
  return (0, size - 1) if size is not None and size > 0 else None


def _clipped(spans, choose):
  """Returns the range of the larger, or smaller, of two of one dtype."""
  ends = [_ALL if span is None else span for span in spans]
  return tuple(choose(pair) for pair in zip(*ends))


def _count(whole, left):
  """Returns how many elements are summed to one."""
  if whole is None or left is None:
    return None
  rest = list(whole)
  for size in left:
    if size in rest:
      rest.remove(size)
    elif size != 1:
      return None
  return None if None in rest else int(np.prod(rest))
