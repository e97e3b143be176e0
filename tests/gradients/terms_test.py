"""Terms know masks by content, and examples apart."""

import numpy as np
import pytest
import tensorflow as tf
import uses

from tfdpflows import gradients
from tfdpflows.gradients import columns, terms


@pytest.mark.core
def test_mask_that_is_changed_in_place():
  mask = np.ones([3, 4], np.float32)
  a, d, _ = uses.use(2, 3, 4)
  for column in range(4):
    mask[:, column] = 0
    squared = terms.LinearTerm(mask, [a], [d]).squared_norms()
    by_hand = np.sum(np.square(uses.by_hand(a, d, mask)[0]), (1, 2))
    np.testing.assert_allclose(squared, by_hand, rtol=1e-5, atol=1e-30)


def test_masks_do_not_pile_up():
  a, d, _ = uses.use(2, 3, 4)
  for i in range(3 * columns._MAX_GROUPS):
    columns.column_groups(np.float32([[i, i + 1], [1, 1]]))
    assert len(columns._GROUPS) <= columns._MAX_GROUPS
  known = len(columns._GROUPS)
  whole = terms.LinearTerm(None, [a], [d])
  for seed in range(3):
    mask = tf.constant(np.random.default_rng(seed).random([3, 4]), tf.float32)
    thinned = terms.times(whole, mask)
    by_hand = uses.by_hand(a, d, mask.numpy())[0]
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
