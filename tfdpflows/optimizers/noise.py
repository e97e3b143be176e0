"""Gaussian noise for many tensors at once."""

from __future__ import annotations

import math

import tensorflow as tf


def standard_normal_like(generator, tensors):
  """Returns independent standard normal tensors, of one draw by dtype.

  Box and Muller's transform of uniform numbers, written out: TensorFlow's own
  `normal` takes about twice as long on a CPU, and is a fifth of a step.

  Args:
    generator: a `tf.random.Generator`.
    tensors: list of floating-point tensors of known shapes.
  """
  found = [None] * len(tensors)
  for dtype in dict.fromkeys(t.dtype for t in tensors):
    own = [i for i, t in enumerate(tensors) if t.dtype == dtype]
    sizes = [tensors[i].shape.num_elements() for i in own]
    parts = tf.split(_standard_normal(generator, sum(sizes), dtype), sizes)
    for i, part in zip(own, parts):
      found[i] = tf.reshape(part, tensors[i].shape)
  return found


def _standard_normal(generator, size, dtype):
  half = -(-size // 2)
  # In [0, 1): its complement has a logarithm.
  uniform = generator.uniform([2, half], dtype=dtype)
  radius = tf.sqrt(-2 * tf.math.log(1 - uniform[0]))
  angle = 2 * math.pi * uniform[1]
  pairs = [radius * tf.cos(angle), radius * tf.sin(angle)]
  return tf.concat(pairs, 0)[:size]
