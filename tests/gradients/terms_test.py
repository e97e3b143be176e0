"""Terms know masks by content, and examples apart."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import uses

from tests.grids import thinned
from tfdpflows import gradients
from tfdpflows.gradients import terms


@pytest.mark.core
def test_mask_that_is_changed_in_place():
  mask = np.ones([3, 4], np.float32)
  a, d, _ = uses.use(2, 3, 4)
  for column in range(4):
    mask[:, column] = 0
    squared = terms.LinearTerm(mask, [a], [d]).squared_norms()
    by_hand = np.sum(np.square(uses.by_hand(a, d, mask)[0]), (1, 2))
    np.testing.assert_allclose(squared, by_hand, rtol=1e-5, atol=1e-30)


def test_mask_of_one_step():
  a, d, _ = uses.use(2, 3, 4)
  whole = terms.LinearTerm(None, [a], [d])
  for seed in range(3):
    mask = tf.constant(np.random.default_rng(seed).random([3, 4]), tf.float32)
    found = whole.times(mask)
    by_hand = uses.by_hand(a, d, mask.numpy())[0]
    np.testing.assert_allclose(
      found.squared_norms(), np.sum(by_hand**2, (1, 2)), rtol=1e-5
    )


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


def _clipper(losses, kernel, clipping, xla=False):
  """Returns the function of rows that gives the clipped sum, traced once."""

  @tf.function(jit_compile=xla)
  def total(rows):
    with gradients.PerExampleTape() as tape:
      loss = losses(rows)
    found = tape.per_example_gradients(loss, [kernel])
    return clipping.clip_and_sum(found)[0]

  def clipped(rows):
    rows = tf.nest.map_structure(lambda x: tf.constant(x, tf.float32), rows)
    return np.float64(total(rows).numpy())

  return clipped


@pytest.mark.parametrize(
  ('strategy', 'xla'),
  thinned(
    itertools.product(
      [gradients.Flat, gradients.PerLayer, gradients.PerUnit], [False, True]
    ),
    lambda point: not point[1] or point[0] is gradients.PerUnit,
  ),
)
def test_a_part_that_is_too_small_for_float32_leaves_no_other(strategy, xla):
  """Of parts +4.4 g and -3.4 g the second was lost when it was weighted."""
  kernel = tf.Variable(tf.zeros([8, 8]))
  losses = lambda rows: tf.reduce_sum(
    gradients.linear(rows[0], kernel) * rows[1], [1, 2]
  )
  a, d = np.zeros([2, 2, 8]), np.zeros([2, 2, 8])
  length, large = 1e18, 3e38
  a[0, :, 0], d[0, :, 0] = [1, large], [4.4 * length, -3.4 * length / large]
  a[1, 0, 1], d[1, 0, 1] = 1, 1
  clipped = _clipper(losses, kernel, strategy(1.0), xla)
  with_it = clipped((a, d))
  a[0], d[0] = 0, 0
  without = clipped((a, d))
  assert np.linalg.norm(with_it - without) <= 1 + 1e-4


@pytest.mark.parametrize(
  ('factor', 'xla'),
  thinned(
    itertools.product([2.0, 100.0, 1e4], [False, True]),
    lambda point: not point[1] or point[0] == 1e4,
  ),
)
def test_what_squares_lose_is_scaled_with_them(factor, xla):
  """The square of 1.08e-19 is rounded to zero before it is multiplied."""
  rows = np.float32([[1.08e-19]])
  kernel = tf.Variable(tf.zeros([1, 2000]))
  losses = lambda x, mask=None: (
    1e18 * tf.reduce_sum(gradients.linear(x, kernel, mask=mask), 1)
  )
  clipping = gradients.StochasticSparsification(1.0, 1 - 1 / factor)
  found = _clipper(losses, kernel, clipping, xla)(rows)
  assert np.linalg.norm(found) <= 1 + 1e-4
  mask = tf.fill([1, 2000], tf.constant(factor))
  masked = lambda x: losses(x, mask)
  found = _clipper(masked, kernel, gradients.Flat(1.0), xla)(rows)
  assert np.linalg.norm(found) <= 1 + 1e-4


@pytest.mark.core
@pytest.mark.parametrize(
  ('strategy', 'xla'),
  thinned(
    itertools.product([gradients.Flat, gradients.PerUnit], [False, True]),
    lambda point: not point[1] or point[0] is gradients.PerUnit,
  ),
)
def test_what_a_mask_leaves_out_may_overflow(strategy, xla):
  """1.8e19 * 1.8e19 is in no norm, and twice that no number of float32."""
  kernel = tf.Variable(tf.zeros([2, 2]))
  mask = np.eye(2, dtype='f')
  losses = lambda rows: tf.reduce_sum(
    gradients.linear(rows[0], kernel, mask=mask) * rows[1], 1
  )
  a = np.tile(np.float32([1.8e19, 1e-19]), [20, 1])
  d = np.tile(np.float32([1e-19, 1.8e19]), [20, 1])
  found = _clipper(losses, kernel, strategy(10.0), xla)((a, d))
  assert np.all(np.isfinite(found))
  np.testing.assert_array_equal(found * (1 - mask), 0)


@pytest.mark.parametrize(
  ('together', 'masked', 'xla'),
  thinned(
    itertools.product([1, 100, 10**6], [False, True], [False, True]),
    lambda point: (
      point[2] == point[1] if point[0] == 10**6 else point == (1, True, False)
    ),
  ),
)
def test_units_of_several_uses_are_those_of_stored_gradients(
  together, masked, xla, monkeypatch
):
  monkeypatch.setattr(terms, '_IN_CACHE', together)
  rng = np.random.default_rng(0)
  kernel = tf.Variable(tf.zeros([6, 8]), name='a/kernel')
  bias = tf.Variable(tf.zeros([8]), name='a/bias')
  mask = np.tri(6, 8, dtype='f') if masked else None
  rows = rng.normal(size=[37, 3, 6]), rng.normal(size=[37, 3, 8])
  rows[0][3, 1, 2] = np.nan

  @tf.function(jit_compile=xla)
  def totals(a, d):
    with gradients.PerExampleTape() as tape:
      y = [
        gradients.linear(x, kernel, bias, mask) for x in tf.unstack(a, axis=1)
      ]
      loss = tf.reduce_sum(tf.stack(y, 1) * d, [1, 2])
    found = tape.per_example_gradients(loss, [kernel, bias])
    assert isinstance(found.by_unit()._terms[0], terms.UsesByUnit)
    stored = found.transformed(tf.identity)
    return [gradients.PerUnit(2.0).clip_and_sum(g) for g in (found, stored)]

  found, stored = totals(*(tf.constant(x, tf.float32) for x in rows))
  for one, two in zip(found, stored):
    assert np.all(np.isfinite(one))
    # Units with parts much longer than themselves are a little shorter.
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.core
@pytest.mark.parametrize(
  ('masked', 'xla'),
  thinned(
    itertools.product([False, True], [False, True]),
    lambda point: point[0] == point[1],
  ),
)
def test_no_rows_are_a_batch(masked, xla):
  kernel = tf.Variable(tf.zeros([6, 8]))
  mask = np.tri(6, 8, dtype='f') if masked else None
  losses = lambda rows: tf.reduce_sum(
    gradients.linear(rows[0], kernel, mask=mask) * rows[1], [1, 2]
  )
  clipping = gradients.PerUnit(1.0)

  @tf.function(
    jit_compile=xla,
    input_signature=[tf.TensorSpec([None, 3, n], tf.float32) for n in (6, 8)],
  )
  def total(a, d):
    with gradients.PerExampleTape() as tape:
      loss = losses((a, d))
    found = tape.per_example_gradients(loss, [kernel])
    return clipping.clip_and_sum(found)[0]

  np.testing.assert_array_equal(
    total(tf.zeros([0, 3, 6]), tf.zeros([0, 3, 8])), 0
  )
  found = total(tf.ones([2, 3, 6]), tf.ones([2, 3, 8]))
  assert np.all(np.isfinite(found)) and np.linalg.norm(found) > 1


@pytest.mark.parametrize(
  'strategy', [gradients.Flat, gradients.PerLayer, gradients.PerUnit]
)
@pytest.mark.parametrize('row', ['not finite', 'of the length of the clip'])
def test_a_row_decides_nothing_about_how_others_are_summed(row, strategy):
  """Of many rows along one direction the precision of a sum shows."""
  kernel = tf.Variable(tf.zeros([20, 20]))
  losses = lambda rows: tf.reduce_sum(
    gradients.linear(rows[0], kernel) * rows[1], [1, 2]
  )
  finite = row != 'not finite'
  # Parts 7.9 times as long as the clip, and 8.3 times as the gradient.
  length, parts = (0.95, 7.9) if finite else (0.9563778, 3.0)
  a, d = np.zeros([4000, 2, 20]), np.zeros([4000, 2, 20])
  a[:, :, 0] = 1
  d[:, 0, 0], d[:, 1, 0] = (parts + length) / 2, (length - parts) / 2
  d[0] = 0
  clipped = _clipper(losses, kernel, strategy(1.0))
  without = clipped((a, d))
  d[0, 0, 0] = 1 if finite else np.nan
  with_it = clipped((a, d))
  most = 1 + 2e-3 if finite else 1e-4
  assert np.linalg.norm(with_it - without) <= most


def test_coefficients_may_be_large_where_the_jacobian_is_small():
  kernel = tf.Variable([0.0])

  def losses(x):
    function = lambda k: [tf.reduce_sum(k) * 1e-36]
    return gradients.tape.shared(function, [kernel], tf.shape(x)[0])[:, 0] * x

  rows = np.full([400], 1e36)
  found = _clipper(losses, kernel, gradients.Flat(1.0))(rows)
  np.testing.assert_allclose(found, 400, rtol=1e-4)


@pytest.mark.parametrize('inputs', [1000, 5000, 30000])
def test_long_chains_of_squares_do_not_escape_the_clip(inputs):
  mask = np.tri(inputs, 2, dtype='f')
  mask[:] = 1
  mask[-1, 1] = 0
  kernel = tf.Variable(tf.zeros([inputs, 2]))
  losses = lambda x: gradients.linear(x, kernel, mask=mask)[:, 0]
  clipped = _clipper(losses, kernel, gradients.Flat(1.0))
  for value in (1.0, 1.1, 3.5, 12.2):
    found = clipped(np.full([1, inputs], value))
    assert np.linalg.norm(found) <= 1 + 1e-4
