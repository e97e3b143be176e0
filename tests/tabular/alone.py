"""Programs of TensorFlow alone, as those that load an exported model."""

from __future__ import annotations

import os
import subprocess
import sys

from experiments import bench_serving

# TensorFlow's own Keras is not needed either, and takes seconds.
_BLOCKED = bench_serving.BLOCKED + "sys.modules['keras'] = None\n"


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
