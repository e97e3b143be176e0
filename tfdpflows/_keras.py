"""Which Keras, TFP and TF Privacy this is: the only file that knows.

TFP 0.22 and TF Privacy 0.9 speak Keras 2. On TensorFlow 2.16 and later that
is the package `tf-keras`, and `tf.keras` means it only when
`TF_USE_LEGACY_KERAS=1` is in the environment before `tf.keras` is first
touched. Under Keras 3 the variables of a flow are not tracked, without any
error, so that is refused here.

Importing this module sets the variable (unless it is set already) and imports
nothing; TensorFlow and the others follow when one of the names in `__all__` is
first asked for.
"""

from __future__ import annotations

import os
import sys

__all__ = [
  'VectorizedDPKerasAdagradOptimizer',
  'VectorizedDPKerasAdamOptimizer',
  'VectorizedDPKerasSGDOptimizer',
  'keras',
  'tfp',
]

_HELP = (
  'tfdpflows needs Keras 2, and `tf.keras` is Keras {version} in this '
  'process. Import tfdpflows before anything touches `tf.keras`, or set '
  'TF_USE_LEGACY_KERAS=1 in the environment before Python starts; on '
  'TensorFlow >= 2.16 `pip install tf-keras` as well.'
)

os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')


def _keras_2():
  """Returns `tf.keras` if it is Keras 2."""
  import tensorflow as tf  # noqa: PLC0415 (nothing may touch Keras before)

  try:
    keras = tf.keras
    # tf-keras has no `__version__` there; Keras 3 has.
    version = getattr(keras, '__version__', '2')
  except ImportError as error:
    raise ImportError(
      'tfdpflows needs Keras 2: `pip install tf-keras` in the version of your '
      f'TensorFlow ({tf.__version__}).'
    ) from error
  if not version.startswith('2'):
    raise ImportError(_HELP.format(version=version))
  return keras


def _tfp():
  """Returns TFP, which finds Keras 2 or fails in places that do not say so."""
  _keras_2()
  import tensorflow_probability as tfp  # noqa: PLC0415

  return tfp


def _tf_privacy_optimizers():
  """Returns TF Privacy's module of vectorized DP-Keras optimizers.

  `tensorflow_privacy/__init__.py` imports parts of tensorflow_estimator that
  TensorFlow 2.16 and later no longer have. `sys.skip_tf_privacy_import` is
  that file's own switch to do nothing. Where the whole package can be
  imported it is, so that nobody finds an empty one later.
  """
  _keras_2()
  import tensorflow as tf  # noqa: PLC0415

  minor = int(tf.__version__.split('.')[1])
  switched = hasattr(sys, 'skip_tf_privacy_import')
  skip = minor >= 16 and not switched
  if skip:
    sys.skip_tf_privacy_import = True
  try:
    from tensorflow_privacy.privacy.optimizers import (  # noqa: PLC0415
      dp_optimizer_keras_vectorized as optimizers,
    )
  finally:
    if skip:
      del sys.skip_tf_privacy_import
  return optimizers


def __getattr__(name):
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  if name == 'keras':
    value = _keras_2()
  elif name == 'tfp':
    value = _tfp()
  else:
    value = getattr(_tf_privacy_optimizers(), name)
  globals()[name] = value
  return value
