"""Programs of TensorFlow alone, as those that load an exported model."""

from __future__ import annotations

import os
import subprocess
import sys

_BLOCKED = """
import sys

class Blocked:
  def find_spec(self, name, path=None, target=None):
    first = name.partition('.')[0]
    if first in ('tfdpflows', 'tensorflow_probability', 'tf_keras'):
      raise ImportError(f'{name} is blocked')

sys.meta_path.insert(0, Blocked())
# TensorFlow's own Keras is not needed either, and takes seconds.
sys.modules['keras'] = None
"""


def run(code: str, *arguments: str | os.PathLike) -> str:
  """Runs code where there is no tfdpflows, TFP or Keras; returns its output.

  Args:
    code: of Python, with `sys` imported.
    *arguments: its `sys.argv[1:]`.
  """
  # With the variable of tfdpflows, TensorFlow itself would look for tf_keras.
  kept = {k: v for k, v in os.environ.items() if k != 'TF_USE_LEGACY_KERAS'}
  return subprocess.run(
    [sys.executable, '-c', _BLOCKED + code, *arguments],
    env={**kept, 'TF_CPP_MIN_LOG_LEVEL': '3'},
    check=True,
    timeout=300,
    stdout=subprocess.PIPE,
    text=True,
  ).stdout
