import numpy as np
import pytest
import tensorflow as tf

from tfdpflows import bijectors


@pytest.mark.parametrize('rare', [1e-6, 1e-9, 1e-20, 1e-300])
@pytest.mark.parametrize('place', [0, 1, 2, 3])
def test_rare_bins_have_their_density(rare, place):
  """Also where the CDF has no digits left for their mass."""
  p = np.full(4, 1 / 3)
  p[place] = rare
  x = np.array([[place + 0.5]])
  log_dets = {}
  for dtype in (tf.float32, tf.float64):
    marginal = bijectors.MarginalCDF([[0.0, 1, 2, 3, 4]], [p], dtype)
    z = marginal.forward(tf.constant(x, dtype))
    log_det = marginal.forward_log_det_jacobian(tf.constant(x, dtype), 1)
    # What remains when the density of z is taken off is that of x.
    log_dets[dtype] = float(log_det[0] - z[0, 0] ** 2 / 2)
  expected = np.log(rare) + np.log(2 * np.pi) / 2
  assert log_dets[tf.float64] == pytest.approx(expected, abs=1e-4)
  least = np.log(np.finfo(np.float32).tiny) + np.log(2 * np.pi) / 2
  assert log_dets[tf.float32] == pytest.approx(max(expected, least), abs=1e-4)


def test_narrow_bins_far_from_zero_have_their_density():
  """Their width has few digits as a difference of two edges."""
  edges = [0.0, 1e6, 1e6 + 0.3, 2e6]
  marginal = bijectors.MarginalCDF([edges], [[0.25, 0.5, 0.25]])
  x = tf.constant([[1e6 + 0.15]])
  log_det = marginal.forward_log_det_jacobian(x, 1)
  z = marginal.forward(x)
  found = float(log_det[0] - z[0, 0] ** 2 / 2 - np.log(2 * np.pi) / 2)
  assert found == pytest.approx(np.log(0.5 / 0.3), abs=1e-3)
