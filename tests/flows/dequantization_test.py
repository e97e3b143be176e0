"""Where points are placed in cells, and with which density."""

import numpy as np
import pytest
import tensorflow as tf

from tests.grids import thinned
from tfdpflows import bijectors, flows, gradients
from tfdpflows.flows.dequantization import (
  Dequantized,
  UniformDequantization,
  VariationalDequantization,
)

SIZES = [3, 0, 40, 2]
CELLS = [0, 2, 3]


def _variational(moved=0.5, sizes=SIZES, **kwargs):
  found = VariationalDequantization(
    sizes, [6], 3, dtype='float64', seed=0, **kwargs
  )
  rng = np.random.default_rng(1)
  for v in found.trainable_variables:
    v.assign_add(tf.constant(rng.normal(size=v.shape) * moved, v.dtype))
  return found


def _rows(n=7, seed=0):
  rng = np.random.default_rng(seed)
  x = np.stack([rng.integers(k, size=n) for k in (3, 9, 40, 2)], 1)
  x = x + [0, 0.3, 0, 0]
  return tf.constant(x), tf.constant(rng.random([n, 4]))


def test_starts_as_the_uniform_one():
  x, uniform = _rows()
  expected, log_q = UniformDequantization(SIZES, 'float64')(x, uniform)
  np.testing.assert_array_equal(expected, uniform * [1, 0, 1, 1])
  np.testing.assert_array_equal(log_q, np.zeros(7))
  found, log_q = _variational(0.0)(x, uniform)
  np.testing.assert_allclose(found, expected, atol=1e-12)
  np.testing.assert_allclose(log_q, 0, atol=1e-12)


@pytest.mark.parametrize('num_layers', thinned([1, 3, 2], 2))
def test_log_q_is_the_density_of_what_is_drawn(num_layers):
  dequantization = _variational(num_layers=num_layers)
  x, uniform = _rows()
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(uniform)
    u, log_q = dequantization(x, uniform)
  assert np.all((u > 0) | (np.arange(4) == 1)) and np.all(u < 1)
  jacobian = tape.batch_jacobian(
    u, uniform, experimental_use_pfor=False
  ).numpy()
  assert not jacobian[:, 1].any() and not jacobian[:, :, 1].any()
  jacobian = jacobian[:, CELLS][:, :, CELLS]
  expected = -np.linalg.slogdet(jacobian)[1]
  np.testing.assert_allclose(log_q, expected, rtol=1e-8, atol=1e-10)
  assert np.std(log_q) > 0.05


def test_is_conditioned_on_codes_and_on_other_columns():
  dequantization = _variational()
  x, uniform = _rows(1)
  u, _ = dequantization(x, uniform)
  other, _ = dequantization(tf.constant([[0.0, 5.0, 39.0, 0.0]]), uniform)
  assert np.all((np.abs(other - u) > 1e-3)[0, CELLS])
  # A column of points says nothing.
  same, _ = dequantization(x + [0, 1.5, 0, 0], uniform)
  np.testing.assert_array_equal(same, u)
  # Rows are drawn for by themselves, and codes are broadcast.
  many, log_q = dequantization(x, tf.repeat(uniform, 3, 0)[:, None])
  assert many.shape == [3, 1, 4] and log_q.shape == [3, 1]
  np.testing.assert_allclose(many[2, 0], u[0], rtol=1e-12)


@pytest.mark.parametrize('xla', thinned([True, False], 1))
def test_per_example_gradients_equal_jacobian_and_clip(xla):
  dequantization = _variational()
  x, uniform = _rows(3)
  variables = dequantization.trainable_variables
  assert len(variables) == 8

  def losses():
    u, log_q = dequantization(x, uniform)
    return log_q + tf.reduce_sum(tf.sin(3 * u), -1)

  with tf.GradientTape(persistent=True) as tape:
    loss = losses()
  jacobian = tape.jacobian(loss, variables, experimental_use_pfor=False)
  squared = sum(tf.reduce_sum(tf.reshape(j * j, [3, -1]), 1) for j in jacobian)
  clip = float(np.sqrt(np.median(squared)))
  scale = tf.minimum(1, clip / tf.sqrt(squared))

  @tf.function(jit_compile=xla)
  def found():
    with gradients.PerExampleTape() as tape:
      loss = losses()
    per_example = tape.per_example_gradients(loss, variables)
    assert {type(r).__name__ for r in tape.records} == {'Linear'}
    return gradients.Flat(clip).clip_and_sum(per_example)

  for f, j in zip(found(), jacobian):
    expected = tf.tensordot(scale, j, 1)
    np.testing.assert_allclose(f, expected, rtol=1e-6, atol=1e-7)


def test_ends_stay_finite():
  dequantization = VariationalDequantization([1, 2**20], seed=0)
  for v in dequantization.trainable_variables:
    v.assign_add(tf.random.stateless_normal(v.shape, [0, 1]) * 5)
  x = tf.constant([[0.0, 2**20 - 1.0], [0.0, 0.0], [-1.0, 1e30]])
  ends = tf.constant([[0.0, 1 - 2.0**-24], [1.0, 0.5], [0.0, 0.0]])
  with tf.GradientTape() as tape:
    u, log_q = dequantization(x, ends)
  found = tape.gradient([u, log_q], dequantization.trainable_variables)
  assert all(np.isfinite(g).all() for g in [u, log_q, *found])
  assert np.all((u >= 0) & (u <= 1))


def test_one_column():
  dequantization = _variational(sizes=[4])
  assert len(dequantization.trainable_variables) == 4
  u, log_q = dequantization([[3.0]], [[0.2]])
  assert u.shape == [1, 1] and log_q.shape == [1]
  np.testing.assert_allclose(
    dequantization([3.0], [0.2])[1], log_q[0], rtol=1e-12
  )


def test_bad_arguments_are_named():
  for make, message in (
    (lambda: UniformDequantization([2, 1.5]), 'Column 1 has 1.5 cells'),
    (lambda: UniformDequantization([-1]), 'Column 0'),
    (lambda: UniformDequantization([]), 'empty'),
    (lambda: VariationalDequantization([0, None]), 'no column has cells'),
    (lambda: VariationalDequantization([2], [0]), 'at least 1'),
    (
      lambda: bijectors.logistic_mixture.LogisticMixtureCDF(tf.zeros([4])),
      'needs 3 K',
    ),
  ):
    with pytest.raises(ValueError, match=message):
      make()


def test_a_conditional_input_is_passed_on():
  flow = flows.dp_hflow([2, 3], 1, [8], conditional_event_size=1, seed=0)
  many = Dequantized(
    flow.points, flow.dequantization, num_importance_samples=5000, seed=0
  )
  for variable in flow.trainable_variables:
    variable.assign_add(
      0.05 * tf.random.stateless_normal(variable.shape, [0, 1])
    )
  x = tf.constant([[0.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
  c = tf.constant([[-2.0], [-2.0], [2.0]])
  found = many.log_prob(x, conditional_input=c)
  one = [many.log_prob(x[i], conditional_input=c[i]) for i in range(3)]
  np.testing.assert_allclose(found, one, atol=0.05)
  assert abs(found[1] - found[2]) > 0.02
  assert flow.sample([4, 3], conditional_input=c).shape == [4, 3, 2]
