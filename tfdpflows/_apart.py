"""What processes that work for another one begin with.

It imports no TensorFlow: functions of numbers, such as the scores of a shadow
model of scikit-learn, have no use for it, and it takes seconds and hundreds of
megabytes. What a function does use is imported when it is unpickled.
"""

from __future__ import annotations

import os
from typing import Any

import cloudpickle

# Sets which Keras TensorFlow has, before a function may ask for it.
from tfdpflows import _keras  # noqa: F401


def silence() -> None:
  """Lets nothing be printed, by libraries in C++ neither."""
  nothing = os.open(os.devnull, os.O_WRONLY)
  for descriptor in (1, 2):
    os.dup2(nothing, descriptor)
  os.close(nothing)


def run(content: bytes, task: Any) -> Any:
  """Returns what a function gives for a task.

  Args:
    content: the function, pickled by cloudpickle.
    task: its argument.
  """
  return cloudpickle.loads(content)(task)
