"""Probe rows: made up from what is public of the data, and unusual ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpflows.stored_rows import StoredRows

# What a model may not expect, and a table may hold.
_UNUSUAL_FLOATS = (0.0, -0.5, -1.0, 2.0, 30.0, -1e3, 1e6, 1e30, -1e30)
_UNUSUAL_FLOATS += (float('nan'), float('inf'), float('-inf'))
_UNUSUAL_INTEGERS = (0, -1, 2, 3, 10, 255, 1000, -1000, 10**6)
_UNUSUAL_INTEGERS += (-(2**31), 2**31 - 1, -(2**63), 2**63 - 1)
_UNUSUAL_STRINGS = ('', ' ', '-1', '7', 'nan', 'a b, c', '[UNK]', '\u00e9')
_UNUSUAL_STRINGS += (b'\xff\xfe', b'{"a"', 100 * 'x', 100 * 'a ')
# More of these than an axis of the data has, so that examples are distinct.
_BATCHES = (3, 5, 7, 11, 13, 17)
_UNKNOWN_LENGTH = 8
# What sizes of other rows a model may look at: a maximum beyond 1, a clip of
# the norm of the whole batch, a test for values that are not finite.
_FACTORS = {
  30.0: 'large numbers',
  -1e3: 'large negative numbers',
  1e6: 'huge numbers',
  float('nan'): 'nan',
  float('inf'): 'inf',
}


# Of integers, a scale or an id; of text, more words than others have.
_INTEGER_FACTORS = (2, 30, 255, -1000)
_LONG_TEXT = 20 * ' a b'
_TEXT = (
  'text of 40 words (if text is filled up to the longest one of a batch, give '
  'TextVectorization an output_sequence_length)'
)


def spec_of(rows: Any) -> Any:
  """Returns what is public of arrays or tensors: `tf.TensorSpec`s of them."""
  return tf.nest.map_structure(_spec, rows)


def made_up(spec: Any) -> tuple[Any, Any]:
  """Returns rows for a structure of `tf.TensorSpec`, and as many others.

  Floats are in (0, 1), integers 0 or 1, strings 'a' or 'b': both of them in
  each row that has room, as one of zeros may mean one that is masked entirely.
  """
  flat = tf.nest.flatten(spec)
  known = {d for s in flat for d in s.shape[1:].as_list()}
  batch = next((b for b in _BATCHES if b not in known), _BATCHES[0])
  rng = np.random.default_rng(0)
  one, other = [], []
  for s in flat:
    lengths = [_UNKNOWN_LENGTH if d is None else d for d in s.shape[1:]]
    bits = _both(rng.integers(0, 2, [batch, *lengths]))
    if s.dtype == tf.string:
      pair = [np.where(b, 'a', 'b') for b in (bits, 1 - bits)]
    elif s.dtype.is_floating:
      pair = [rng.random(bits.shape) for _ in range(2)]
    else:
      pair = [bits, 1 - bits]
    for into, values in zip((one, other), pair):
      into.append(tf.cast(tf.constant(values), s.dtype))
  pack = functools.partial(tf.nest.pack_sequence_as, spec)
  return pack(one), pack(other)


def _both(bits):
  """Returns bits that are not all the same along their last long axis."""
  axis = max((i for i, n in enumerate(bits.shape) if i and n > 1), default=0)
  if not axis:
    return bits
  bits = np.moveaxis(bits, axis, -1)
  same = bits.min(-1) == bits.max(-1)
  bits[..., -1] = np.where(same, 1 - bits[..., -1], bits[..., -1])
  return np.moveaxis(bits, -1, axis)


def repeated(x: Any, shape: Sequence[int]) -> Any:
  """Returns rows, or their `tf.TensorSpec`, as `[batch, *shape, ...]`."""
  shape = [x.shape[0], *shape, *x.shape[1:]]
  if isinstance(x, tf.TensorSpec):
    return tf.TensorSpec(shape, x.dtype)
  for axis in range(1, len(shape) - x.shape.rank + 1):
    x = tf.expand_dims(x, axis)
  return tf.broadcast_to(x, shape)


def with_other_last_bits(rows: Any, sign: int) -> Any:
  """Returns rows of which each float is moved by its rounding, up or down."""

  def move(x):
    if not x.dtype.is_floating:
      return x
    signs = np.where(np.arange(np.prod(x.shape)) % 2, sign, -sign)
    moved = 1 + np.finfo(x.dtype.as_numpy_dtype).eps * signs.reshape(x.shape)
    return x * tf.cast(moved, x.dtype)

  return tf.nest.map_structure(move, rows)


def missing(rows: Any) -> Any:
  """Returns rows in which every second float is NaN."""

  def remove(x):
    if not x.dtype.is_floating:
      return x
    odd = np.arange(np.prod(x.shape)).reshape(x.shape) % 2 == 1
    return tf.where(odd, tf.cast(float('nan'), x.dtype), x)

  return tf.nest.map_structure(remove, rows)


def extreme(
  others: Any, floats_only: bool = False
) -> Iterator[tuple[Any, str]]:
  """Yields others that are no made-up rows, and what they hold.

  With `floats_only` without what lookups fail at.
  """
  flat = tf.nest.flatten(others)
  times = lambda factor: lambda x: x * tf.cast(factor, x.dtype)
  cases = [
    (lambda t: t.is_floating, times(factor), what)
    for factor, what in _FACTORS.items()
  ]
  for factor in () if floats_only else _INTEGER_FACTORS:
    kind = lambda t, factor=factor: t.is_integer and (t.min <= factor <= t.max)
    cases.append((kind, times(factor), f'integers times {factor}'))
  longer = lambda x: tf.strings.join([x, tf.fill(tf.shape(x), _LONG_TEXT)])
  empty = lambda x: tf.fill(tf.shape(x), '')
  if not floats_only:
    cases.append((lambda t: t == tf.string, longer, _TEXT))
    cases.append((lambda t: t == tf.string, empty, 'empty text'))
  for is_kind, change, what in cases:
    if any(is_kind(x.dtype) for x in flat):
      changed = [change(x) if is_kind(x.dtype) else x for x in flat]
      yield tf.nest.pack_sequence_as(others, changed), what


def unusual(rows: Any) -> Iterator[tuple[Any, str]]:
  """Yields rows of which the first two are unusual, and what they hold.

  The first holds one value in all places, the second in its first place.
  """
  flat = tf.nest.flatten(rows)
  kinds = (
    (lambda t: t.is_floating, _UNUSUAL_FLOATS),
    (lambda t: t.is_integer, _UNUSUAL_INTEGERS),
    (lambda t: t == tf.string, _UNUSUAL_STRINGS),
  )
  for is_kind, values in kinds:
    if not any(is_kind(x.dtype) for x in flat):
      continue
    for value in values:
      changed = [_set(x, value) if is_kind(x.dtype) else x for x in flat]
      yield tf.nest.pack_sequence_as(rows, changed), repr(value)


def _set(x, value):
  array = x.numpy()
  if array.dtype.kind in 'iu':
    limits = np.iinfo(array.dtype)
    value = min(max(value, limits.min), limits.max)
  if x.dtype == tf.string and isinstance(value, str):
    value = value.encode()
  array[0] = value
  if array.size:
    array.reshape(len(array), -1)[1, 0] = value
  return tf.constant(array, x.dtype)


def rows_for(spec: Any, example: Any) -> tuple[Any, Any]:
  """Returns rows, public ones if given, and others that differ in each."""
  if example is None:
    return made_up(spec)
  rows = [
    tf.cast(tf.convert_to_tensor(x), s.dtype)
    for x, s in zip(tf.nest.flatten(example), tf.nest.flatten(spec))
  ]
  if any(x.shape[0] < 2 for x in rows):
    raise ValueError('`example` must have at least two rows, not two alike.')
  others = [tf.roll(x, 1, 0) for x in rows]
  pack = functools.partial(tf.nest.pack_sequence_as, spec)
  return pack(rows), pack(others)


def _spec(x):
  if isinstance(x, (tf.Tensor, tf.TensorSpec, StoredRows)):
    return tf.TensorSpec([None, *x.shape[1:]], x.dtype)
  x = np.asarray(x)
  return tf.TensorSpec((None,) + x.shape[1:], tf.as_dtype(x.dtype))
