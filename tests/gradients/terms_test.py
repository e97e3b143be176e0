"""Terms know masks by content, and examples apart."""

import numpy as np
import pytest
import tensorflow as tf

from tfdpflows import gradients
from tfdpflows.gradients import columns, terms


def _use(batch, inputs, outputs, masked=True, seed=0):
  rng = np.random.default_rng(seed)
  a = rng.normal(size=[batch, 1, inputs]).astype(np.float32)
  d = rng.normal(size=[batch, 1, outputs]).astype(np.float32)
  mask = (rng.random([inputs, 3]) < 0.5)[:, rng.integers(3, size=outputs)]
  return tf.constant(a), tf.constant(d), mask.astype('f') if masked else None


def _by_hand(a, d, mask):
  kernel = a[:, 0, :, None] * d[:, 0, None]
  return (kernel if mask is None else kernel * mask), np.asarray(d)[:, 0]


@pytest.mark.core
def test_mask_that_is_changed_in_place():
  mask = np.ones([3, 4], np.float32)
  a, d, _ = _use(2, 3, 4)
  for column in range(4):
    mask[:, column] = 0
    squared = terms.LinearTerm(mask, [a], [d]).squared_norms()
    by_hand = np.sum(np.square(_by_hand(a, d, mask)[0]), (1, 2))
    np.testing.assert_allclose(squared, by_hand, rtol=1e-5, atol=1e-30)


def test_masks_do_not_pile_up():
  a, d, _ = _use(2, 3, 4)
  for i in range(3 * columns._MAX_GROUPS):
    columns.column_groups(np.float32([[i, i + 1], [1, 1]]))
    assert len(columns._GROUPS) <= columns._MAX_GROUPS
  known = len(columns._GROUPS)
  whole = terms.LinearTerm(None, [a], [d])
  for seed in range(3):
    mask = tf.constant(np.random.default_rng(seed).random([3, 4]), tf.float32)
    thinned = terms.times(whole, mask)
    by_hand = _by_hand(a, d, mask.numpy())[0]
    np.testing.assert_allclose(
      thinned.squared_norms(), np.sum(by_hand**2, (1, 2)), rtol=1e-5
    )
  assert len(columns._GROUPS) == known


@pytest.mark.core
def test_example_that_is_not_finite_adds_nothing_to_bias_or_kernel():
  kernel, bias = tf.Variable(tf.ones([2, 8])), tf.Variable(tf.ones([8]))
  x = tf.constant([[1.0, 2.0], [np.nan, 1.0], [3e38, 3e38], [0.5, 0.0]])

  def total(rows):
    with gradients.PerExampleTape() as tape:
      y = gradients.linear(rows, kernel, bias)
      loss = tf.reduce_sum(y * y, 1)
    per_example = tape.per_example_gradients(loss, [kernel, bias])
    return gradients.Flat(1.0).clip_and_sum(per_example)

  kept = tf.gather(x, [0, 3])
  for found, expected in zip(total(x), total(kept)):
    np.testing.assert_allclose(found, expected, rtol=1e-5)
