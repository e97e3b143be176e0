"""What AutoGraph is told of the code of this package."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.autograph.impl import api

# A decorator of functions that decide nothing in Python by a tensor's value:
# rewriting them would take seconds of each first step. Nor is what they call
# rewritten, other than Keras layers and losses, and functions given to
# `converted`.
unconverted = api.autograph_artifact


def converted(function):
  """Returns a user's function, rewritten where AutoGraph is at work.

  Args:
    function: any function of tensors that `unconverted` code calls.
  """
  internal = tf.__internal__.autograph
  return internal.tf_convert(function, internal.control_status_ctx())
