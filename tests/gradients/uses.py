"""One use of a linear map, and its gradients by hand."""

import numpy as np
import tensorflow as tf


def use(batch, inputs, outputs, masked=True, seed=0):
  rng = np.random.default_rng(seed)
  a = rng.normal(size=[batch, 1, inputs]).astype(np.float32)
  d = rng.normal(size=[batch, 1, outputs]).astype(np.float32)
  mask = (rng.random([inputs, 3]) < 0.5)[:, rng.integers(3, size=outputs)]
  return tf.constant(a), tf.constant(d), mask.astype('f') if masked else None


def by_hand(a, d, mask):
  kernel = a[:, 0, :, None] * d[:, 0, None]
  return (kernel if mask is None else kernel * mask), np.asarray(d)[:, 0]
