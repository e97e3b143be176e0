import json

import numpy as np
import pytest
import tensorflow as tf

from experiments import optimizer_comparison, optimizer_tables
from tfdpflows import gradients


def test_smoke(tmp_path):
  path = tmp_path / 'optimizer_comparison.json'
  options = {'names': ['SGD', 'DP-AdamBC'], 'output': str(path), 'smoke': True}
  runs = optimizer_comparison.run(['digits'], **options).runs
  assert [run['optimizer'] for run in runs] == ['SGD'] * 2 + ['DP-AdamBC'] * 2
  assert [run['learning_rate'] for run in runs] == [0.1, 0.3, 1e-4, 3e-4]
  assert all(0.99 < run['epsilon_spent'] <= 1.0 for run in runs)
  assert optimizer_comparison.run(['digits'], **options).runs == runs
  path.write_text(json.dumps({**json.loads(path.read_text()), 'smoke': False}))
  section = optimizer_tables.section(tmp_path)
  assert '| digits | 1 | SGD |' in section


def test_the_variance_of_the_noise_is_subtracted():
  """Steps of gradients that are all noise are those of the floor."""
  optimizer = optimizer_comparison.DPAdamBC(
    clipping=gradients.Flat(2.0),
    noise_multiplier=3.0,
    expected_batch_size=6,
    learning_rate=0.5,
    beta_1=0.0,
    seed=0,
  )
  assert optimizer.noise_stddev == pytest.approx(6.0)
  kernel = tf.Variable(tf.zeros([2]))
  gradient = np.array([1.0, 3.0])
  for _ in range(2):
    optimizer._was_dp_gradients_called = True
    optimizer.apply_gradients([(tf.constant(gradient, tf.float32), kernel)])
  expected = gradient / np.sqrt(np.maximum(gradient**2 - 1, 0.1))
  np.testing.assert_allclose(kernel, -2 * 0.5 * expected, rtol=1e-4)
