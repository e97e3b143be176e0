"""Which Keras: chosen while possible, refused clearly afterwards."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from tests.grids import thinned

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLD = int(tf.__version__.split('.')[1]) < 16


def _run(code, **environment):
  env = {k: v for k, v in os.environ.items() if k != 'TF_USE_LEGACY_KERAS'}
  env.update(PYTHONPATH=ROOT, TF_CPP_MIN_LOG_LEVEL='3', **environment)
  return subprocess.run(
    [sys.executable, '-c', code],
    env=env,
    capture_output=True,
    text=True,
    check=False,
  )


@pytest.mark.core
def test_tfdpflows_first_chooses_keras_2():
  found = _run(
    'import tfdpflows, tensorflow as tf\n'
    'tfdpflows.DensityModel\n'
    'from tfdpflows import _keras\n'
    'assert issubclass(tfdpflows.DensityModel, tf.keras.Model)\n'
    'import sys\n'
    'assert not hasattr(sys, "skip_tf_privacy_import")\n'
    'print(_keras.VectorizedDPKerasAdamOptimizer.__name__)'
  )
  assert found.returncode == 0, found.stderr
  assert 'DPOptimizerClass' in found.stdout


@pytest.mark.core
@pytest.mark.skipif(OLD, reason='TensorFlow < 2.16 has no Keras 3')
@pytest.mark.parametrize(
  'name', thinned(['DensityModel', 'flows', 'bijectors'], 1)
)
def test_keras_3_is_refused_with_what_to_do(name):
  found = _run(
    'import tensorflow as tf\n'
    'tf.keras.layers.Dense\n'
    f'import tfdpflows; tfdpflows.{name}'
  )
  last = found.stderr.strip().splitlines()[-1]
  assert last.startswith('ImportError'), found.stderr
  assert 'Keras 3' in last
  assert 'TF_USE_LEGACY_KERAS=1' in last


@pytest.mark.full
@pytest.mark.skipif(OLD, reason='TensorFlow < 2.16 has no Keras 3')
def test_an_explicit_choice_is_not_overruled():
  found = _run('import tfdpflows; tfdpflows.flows', TF_USE_LEGACY_KERAS='0')
  assert 'TF_USE_LEGACY_KERAS=1' in found.stderr


def test_import_is_cheap():
  """No TensorFlow, and well under a second."""
  code = 'import tfdpflows, sys, time; '
  code += 'print("tensorflow" in sys.modules, time.process_time())'
  found = _run(code)
  imported, seconds = found.stdout.split()
  assert imported == 'False', found.stderr
  assert float(seconds) < 5  # Python's own start included.


def test_unknown_names():
  import tfdpflows
  from tfdpflows import _keras

  for module in (tfdpflows, _keras):
    with pytest.raises(AttributeError, match='no attribute'):
      module.nothing
  assert set(tfdpflows.__all__) <= set(dir(tfdpflows))
