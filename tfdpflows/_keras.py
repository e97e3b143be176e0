"""The versions of Keras, TFP and TF Privacy: no other module depends on them.

TFP 0.22 and TF Privacy 0.9 need Keras 2. On TensorFlow 2.16 and later that is
the package `tf-keras`, which `tf.keras` is only if `TF_USE_LEGACY_KERAS=1` is
in the environment before `tf.keras` is first accessed. Keras 3, which silently
does not track the variables of a flow, is refused.

Importing this module sets the variable (unless it is set already) and imports
nothing; TensorFlow and the others are imported on first access to one of the
names in `__all__`.
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
  """Returns TFP, which without Keras 2 fails with obscure errors."""
  _keras_2()
  import tensorflow_probability as tfp  # noqa: PLC0415

  return tfp


def _tf_privacy_optimizers():
  """Returns TF Privacy's module of vectorized DP-Keras optimizers.

  `tensorflow_privacy/__init__.py` imports parts of tensorflow_estimator that
  TensorFlow 2.16 and later no longer have; `sys.skip_tf_privacy_import` makes
  it import nothing. Where the whole package can be imported, it is.
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
