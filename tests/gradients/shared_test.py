"""Values of parameters alone, with one gradient for all up to a factor."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import gradients

BATCH = 6


def _case(dtype='float32', linear=True, stored=False):
  rng = np.random.default_rng(0)
  kernel = tf.Variable(rng.normal(size=[3, 4]), dtype=dtype, name='l/kernel')
  scale = tf.Variable(rng.normal(size=[4]), dtype=dtype, name='l/scale')
  x = tf.constant(rng.normal(size=[BATCH, 3]), dtype)
  function = lambda k, s: [
    tf.reduce_sum(tf.sin(k) * s),
    tf.reduce_sum(k**2) * tf.exp(s[0]),
  ]

  def loss():
    values = gradients.tape.shared(function, [kernel, scale], BATCH)
    found = values[:, 0] * x[:, 0] + tf.sin(values[:, 1] * x[:, 1])
    if linear:
      found += tf.reduce_sum(gradients.linear(x, kernel) ** 2, 1)
    if stored:
      copies, scales = (
        gradients.per_example(v, BATCH) for v in (kernel, scale)
      )
      found += tf.reduce_sum(tf.linalg.matvec(copies, x[:, :1] * scales), 1)
    return found

  return loss, [kernel, scale]


@pytest.mark.core
@pytest.mark.parametrize(
  ('mode', 'dtype', 'linear', 'stored'),
  thinned(
    itertools.product(
      ('eager', 'function', 'xla'),
      ('float32', 'float64'),
      (False, True),
      (False, True),
    ),
    lambda point: (
      point[0] == 'eager' or point[1:] == ('float32', True, point[0] == 'xla')
    ),
  ),
)
def test_equals_jacobian_and_clip(mode, dtype, linear, stored):
  loss, variables = _case(dtype, linear, stored)
  with tf.GradientTape(persistent=True) as tape:
    value = loss()
  jacobian = [
    tape.jacobian(value, v, experimental_use_pfor=False) for v in variables
  ]
  squared = sum(
    tf.reduce_sum(tf.reshape(j * j, [BATCH, -1]), 1) for j in jacobian
  )
  clip = float(np.sqrt(np.median(squared)))

  def run():
    with gradients.PerExampleTape() as tape:
      value = loss()
    found = tape.per_example_gradients(value, variables)
    return (
      found.squared_norms(),
      gradients.Flat(clip).clip_and_sum(found),
      found.materialise(),
    )

  if mode != 'eager':
    run = tf.function(run, jit_compile=mode == 'xla')
  found_squared, total, materialised = run()
  rtol = 1e-5 if dtype == 'float32' else 1e-7
  np.testing.assert_allclose(found_squared, squared, rtol=4 * rtol)
  scale = tf.minimum(1.0, clip / tf.sqrt(squared))
  scale = tf.cast(scale, dtype)
  for t, m, j in zip(total, materialised, jacobian):
    expected = tf.tensordot(scale, j, 1)
    atol = rtol * np.abs(expected).max()
    np.testing.assert_allclose(t, expected, rtol=rtol, atol=atol)
    np.testing.assert_allclose(m, j, rtol=10 * rtol, atol=10 * atol)


def test_without_a_tape_it_is_plain():
  loss, variables = _case()
  with tf.GradientTape() as tape:
    value = tf.reduce_sum(loss())
  assert all(g is not None for g in tape.gradient(value, variables))


@pytest.mark.core
@pytest.mark.parametrize('xla', [False, True])
def test_parts_that_cancel_do_not_escape_the_clip(xla):
  """The product's gradient and the shared one cancel but for rounding."""
  rng = np.random.default_rng(0)
  size = 300
  a = rng.normal(size=size).astype('float32')
  direction = tf.constant(a[:, None])
  kernel = tf.Variable(np.zeros([size, 1], 'float32'))

  @tf.function(jit_compile=xla)
  def total(factor):
    with gradients.PerExampleTape() as tape:
      y = gradients.linear(tf.constant(a[None]), kernel)[:, 0]
      function = lambda k: [tf.reduce_sum(k * direction)]
      value = gradients.tape.shared(function, [kernel], 1)[:, 0]
      loss = (y - value * (1 + 1e-7)) * factor
    found = tape.per_example_gradients(loss, [kernel])
    return gradients.Flat(0.5).clip_and_sum(found)[0]

  for scale in np.float32([1e-38, 1e30, 1e-19, 1.0, 1e9, 1e15]):
    found = total(tf.constant([scale])).numpy()
    assert np.linalg.norm(found.astype('float64')) <= 0.5 * (1 + 1e-4)


def test_examples_that_are_not_finite_contribute_zero():
  kernel = tf.Variable([[1.0], [2.0]])
  x = tf.constant([[1.0, 0.0], [np.nan, 1.0]])
  with gradients.PerExampleTape() as tape:
    value = gradients.tape.shared(lambda k: [tf.reduce_sum(k**2)], [kernel], 2)
    loss = gradients.linear(x, kernel)[:, 0] + value[:, 0] * x[:, 0]
  found = tape.per_example_gradients(loss, [kernel])
  (total,) = gradients.Flat(100.0).clip_and_sum(found)
  np.testing.assert_allclose(total[:, 0], [3, 4], rtol=1e-4)


@pytest.mark.core
@pytest.mark.parametrize('linear', [False, True])
def test_stored_gradients_have_the_shape_of_the_variable(linear):
  """Units are counted on the last axis of what is stored."""
  loss, variables = _case(linear=linear)
  with gradients.PerExampleTape() as tape:
    value = loss()
  found = tape.per_example_gradients(value, variables)
  for term, variable in zip(found._terms, variables):
    assert term.materialise().shape == [BATCH, *variable.shape]
  units, _ = found.by_unit().units()
  assert {count for _, count in units} == {4}
  with tf.GradientTape(persistent=True) as tape:
    value = loss()
  slow = gradients.PerExampleGradients(tape, value, variables)
  totals = (gradients.PerUnit(0.1).clip_and_sum(g) for g in (found, slow))
  for a, b in zip(*totals):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.core
@pytest.mark.parametrize('uses', [1, 300])
def test_parts_that_cancel_leave_no_rounding_errors_above_the_clip(uses):
  """Of 8 examples, one has parts of size 1e4 that cancel in float64 alone.

  Uses of the kernel cancel each other, and so do two shared values, whose
  sum is made in the precision of the activations.
  """
  rng = np.random.default_rng(3)
  kernel = tf.Variable(np.zeros([5, 1], 'float32'))
  direction = tf.constant(rng.normal(size=[5, 1]), tf.float32)
  a = rng.normal(size=[8, 2 * uses, 5])
  d = rng.normal(size=[8, 2 * uses]) * 1e-3
  c = rng.normal(size=[8, 2]) * 1e-3
  a[0] *= 1e4
  a[0, uses:], d[0, uses:] = a[0, :uses], -d[0, :uses]
  c[0] = 1e4, -1e4

  def clipped(rows):
    ai, di, ci = (tf.constant(r[rows], tf.float32) for r in (a, d, c))
    with gradients.PerExampleTape() as tape:
      y = gradients.linear(ai, kernel)[..., 0]
      value = lambda k: tf.reduce_sum(k * direction)
      values = gradients.tape.shared(
        lambda k: [value(k), value(k)], [kernel], ci.shape[0]
      )
      loss = tf.reduce_sum(y * di, 1) + tf.reduce_sum(values * ci, 1)
    found = tape.per_example_gradients(loss, [kernel])
    return gradients.Flat(1e-3).clip_and_sum(found)[0].numpy()

  change = clipped(np.arange(8)) - clipped(np.arange(1, 8))
  assert np.linalg.norm(change) <= 1e-3 * (1 + 1e-3)


@pytest.mark.core
def test_other_variables_of_the_function_keep_their_gradient():
  kernel, other = tf.Variable([[1.0], [2.0]]), tf.Variable(3.0)

  def loss():
    computed = tf.sin(other)
    function = lambda k: [tf.reduce_sum(k) * other * computed]
    return gradients.tape.shared(function, [kernel], 4)[:, 0] * [1.0, 2, 3, 4]

  with tf.GradientTape(persistent=True) as tape:
    value = loss()
  expected = tape.jacobian(value, [kernel, other])
  with gradients.PerExampleTape() as tape:
    value = loss()
  found = tape.per_example_gradients(value, [kernel, other]).materialise()
  for a, b in zip(found, expected):
    np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.core
@pytest.mark.parametrize('xla', [False, True])
def test_an_example_whose_parts_cancel_rounds_no_other_away(xla):
  """Beside its huge parts the gradients of many others are tiny."""
  batch, size = 4096, 16
  rng = np.random.default_rng(0)
  kernel = tf.Variable(np.eye(size, dtype='float32'))
  direction = rng.normal(size=[size, size]).astype('float32')
  factors = np.zeros([batch, 2], 'float32')
  factors[0] = 1e8, -1e8
  factors[1:, 0] = 1e-3 / np.linalg.norm(direction)

  @tf.function(jit_compile=xla)
  def total(weights):
    value = lambda k: tf.reduce_sum(k * direction)
    with gradients.PerExampleTape() as tape:
      values = gradients.tape.shared(lambda k: [value(k)] * 2, [kernel], batch)
      loss = tf.reduce_sum(values * factors, 1)
    found = tape.per_example_gradients(loss, [kernel])
    return gradients.Flat(1.0).clip_and_sum(found, weights)[0]

  weights = np.ones(batch, 'float32')
  whole = total(tf.constant(weights))
  weights[0] = 0
  change = np.linalg.norm(whole - total(tf.constant(weights)))
  assert change <= 1 + 1e-3
