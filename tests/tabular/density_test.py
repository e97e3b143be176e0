"""The density of encoded rows."""

import numpy as np
import pytest
import tensorflow as tf

from tfdpflows import flows
from tfdpflows.tabular.density import TableDensity
from tfdpflows.tabular.encoding import EncodedColumn

COLUMNS = (
  EncodedColumn('cells', 5.0, 1.0, True, False),
  EncodedColumn('real', 65.0, 0.0, True, True),
)
EDGES = [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 16.0, 64.0, 65.0]]
PROBABILITIES = [[0.3, 0.1, 0.2, 0.25, 0.15], [0.5, 0.3, 0.2]]


def _density(noise=0.0):
  """Independent columns, or a flow with random weights."""
  latent = flows.neural_spline_flow(2, 1, (8,), seed=0)
  rng = np.random.default_rng(0)
  for variable in latent.trainable_variables:
    variable.assign_add(rng.normal(0, noise, variable.shape))
  marginals = [
    {'edges': e, 'probabilities': p} for e, p in zip(EDGES, PROBABILITIES)
  ]
  return TableDensity(COLUMNS, marginals, latent)


@pytest.mark.core
def test_untrained_density_is_that_of_the_marginals():
  x = np.array([[0, 8], [3, 20], [4, 64.5]], np.float32)
  expected = np.log([0.3 * 0.5 / 16, 0.25 * 0.3 / 48, 0.15 * 0.2])
  log_prob = _density().log_prob(x, np.random.default_rng(0))
  np.testing.assert_allclose(log_prob, expected, rtol=1e-4)


@pytest.mark.core
def test_dequantization_stays_in_its_cell():
  density = _density()
  x = np.array([[0, 8], [3, 63.99], [4, 64.5]], np.float32)
  for uniform in (0.0, 0.5, 0.999):
    points, volume, log_q = density.dequantize(x, np.full_like(x, uniform))
    np.testing.assert_array_equal(np.floor(points[:, 0]), [0, 3, 4])
    # Numbers stay as they are; a missing one is spread over its interval.
    np.testing.assert_array_equal(points[:2, 1], x[:2, 1])
    assert 64 <= points[2, 1] <= 65
    np.testing.assert_allclose(volume, [0, 0, np.log(1.0)], atol=1e-6)
    np.testing.assert_array_equal(log_q, 0)


def test_mass_is_one():
  density = _density(noise=0.05)
  cells = np.repeat(np.arange(5.0), 650)
  grid = np.tile(np.arange(0, 65, 0.1) + 0.05, 5)
  x = np.stack([cells, grid], -1).astype(np.float32)
  inside = x[:, 1] < 64
  # The code of a missing value is the middle of their interval.
  x[~inside, 1] = 64.5
  mass = np.exp(density.log_prob(x, np.random.default_rng(0)).astype(float))
  # The density over numbers, and once per cell the mass of missing ones.
  total = mass[inside].sum() * 0.1 + mass[~inside].sum() / 10
  assert total == pytest.approx(1, abs=0.02)


def test_log_prob_does_not_depend_on_the_batch():
  density = _density(noise=0.3)
  x = np.array([[1.0, 3.0]] * 1100, np.float32)
  log_prob = density.log_prob(x, np.random.default_rng(0))
  assert log_prob.shape == (1100,)
  assert log_prob.std() < 0.2
  assert density.log_prob(x[:0], np.random.default_rng(0)).shape == (0,)


def test_samples():
  density = _density(noise=0.3)
  rows = density.sample(9000, np.random.default_rng(1))
  assert rows.shape == (9000, 2)
  assert rows.dtype == np.float32
  assert (rows >= 0).all() and (rows <= [5, 65]).all()
  again = density.sample(100, np.random.default_rng(1))
  np.testing.assert_array_equal(again, rows[:100])
  assert density.sample(0, np.random.default_rng(1)).shape == (0, 2)
  with pytest.raises(MemoryError):
    density.sample(10**14, np.random.default_rng(1))


def test_export(tmp_path):
  density = _density(noise=0.3)
  density.export(str(tmp_path / 'model'))
  signatures = tf.saved_model.load(str(tmp_path / 'model')).signatures
  x = density.sample(5, np.random.default_rng(0))
  np.testing.assert_allclose(
    signatures['log_prob'](x=tf.constant(x))['log_prob'],
    density.distribution.log_prob(x),
    rtol=1e-4,
    atol=1e-4,
  )
  drawn = signatures['sample'](num_rows=3, seed=tf.constant([1, 2]))['x']
  assert drawn.shape == (3, 2)
