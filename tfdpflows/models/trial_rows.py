"""Rows to try a model on, made up from what is public of the data."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

# More of these than an axis of the data has, so that examples are told apart.
_BATCHES = (3, 5, 7, 11, 13, 17)
_UNKNOWN_LENGTH = 8


def spec_of(rows):
  """Returns what is public of arrays or tensors: `tf.TensorSpec`s of them."""
  return tf.nest.map_structure(_spec, rows)


def made_up(spec):
  """Returns rows for a structure of `tf.TensorSpec`, and as many others.

  Floats are in (0, 1), integers 0 or 1, strings 'a' or 'b'.
  """
  flat = tf.nest.flatten(spec)
  known = {d for s in flat for d in s.shape[1:].as_list()}
  batch = next((b for b in _BATCHES if b not in known), _BATCHES[0])
  rng = np.random.default_rng(0)
  one, other = [], []
  for s in flat:
    lengths = [_UNKNOWN_LENGTH if d is None else d for d in s.shape[1:]]
    bits = rng.integers(0, 2, [batch, *lengths])
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


def rows_for(spec, example):
  """Returns rows and others that differ in every row.

  Args:
    spec: structure of `tf.TensorSpec`.
    example: rows that are public, as the spec says, or `None`.

  Raises:
    ValueError: if there is but one row in `example`.
  """
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
  if isinstance(x, (tf.Tensor, tf.TensorSpec)):
    return tf.TensorSpec([None, *x.shape[1:]], x.dtype)
  x = np.asarray(x)
  return tf.TensorSpec((None,) + x.shape[1:], tf.as_dtype(x.dtype))
