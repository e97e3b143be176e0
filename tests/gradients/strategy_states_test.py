"""Strategies that change from step to step."""

import numpy as np
import pytest
import tensorflow as tf

from tfdpflows import gradients


def test_sparsification_is_unbiased_and_changes_with_the_step():
  rng = np.random.default_rng(0)
  kernel, bias = tf.Variable(rng.normal(size=[4, 5])), tf.Variable(np.ones(5))
  with gradients.PerExampleTape() as tape:
    y = gradients.linear(tf.constant(rng.normal(size=[6, 4])), kernel, bias)
    losses = tf.reduce_sum(y**3, 1)
  found = tape.per_example_gradients(losses, [kernel, bias])
  strategy = gradients.StochasticSparsification(1e6, 0.5)
  whole = gradients.Flat(1e6).clip_and_sum(found)
  draws = []

  @tf.function
  def step():
    total, again = (strategy.clip_and_sum(found) for _ in range(2))
    return total, again, strategy.finish([t + 1 for t in total])

  for _ in range(100):
    total, again, noised = step()
    for a, b in zip(total, again):  # One mask per step, however often.
      np.testing.assert_array_equal(a, b)
    draws.append(np.concatenate([np.ravel(t) for t in total]))
    # Noise where everybody was dropped is dropped.
    noised = np.concatenate([np.ravel(t) for t in noised])
    assert np.all((noised == 0) | (noised == draws[-1] + 1))
    assert 0.1 < np.mean(noised == 0) < 0.9
  whole = np.concatenate([np.ravel(t) for t in whole])
  error = np.mean(draws, 0) - whole
  assert np.all(np.abs(error) <= 5 * np.abs(whole) / 10 + 1e-6)
  assert strategy.fresh().state.numpy() == 0


@pytest.mark.core
def test_adaptive_quantile_counts_and_follows_it():
  rng = np.random.default_rng(0)
  kernel = tf.Variable([[1.0]])
  x = np.exp(rng.normal(size=[1000, 1])).astype('float32')
  with gradients.PerExampleTape() as tape:
    losses = gradients.linear(tf.constant(x), kernel)[:, 0]
  found = tape.per_example_gradients(losses, [kernel])
  strategy = gradients.AdaptiveQuantile(20.0, 0.7, learning_rate=0.5)
  assert float(strategy.statistic(found)) == np.sum((x <= 20) - 0.5)
  for _ in range(60):
    share = strategy.statistic(found) / 1000
    strategy.finish([], share)
  np.testing.assert_allclose(
    float(strategy.l2_sensitivity), np.quantile(x, 0.7), rtol=0.05
  )
  assert float(strategy.fresh().l2_sensitivity) == 20.0


def test_what_one_example_can_change_of_the_count():
  kernel = tf.Variable([[1.0]])

  def count(x, weights=None):
    with gradients.PerExampleTape() as tape:
      losses = gradients.linear(tf.constant(x, shape=[len(x), 1]), kernel)[:, 0]
    found = tape.per_example_gradients(losses, [kernel])
    return float(gradients.AdaptiveQuantile(1.0).statistic(found, weights))

  # Rows that are not finite are absent, as they are of the gradient.
  assert count([0.5, 1.0, 2.0, np.nan, np.inf]) == 2 * 0.5 - 0.5
  assert count([np.nan, np.inf, 1e30]) == 0.0
  assert count([0.5, np.nan], tf.constant([1.0, 1.0])) == 0.5
  assert count([0.5, 0.5, 3.0], tf.constant([1.0, 0.0, np.nan])) == 0.5
  assert count([0.5], tf.constant([7.0])) == 0.5
