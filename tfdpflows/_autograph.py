"""What AutoGraph is told of the code of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import converter
from tensorflow.python.autograph.impl import api

# A decorator of functions that decide nothing in Python by a tensor's value:
# rewriting them would take seconds of each first step. Nor is what they call
# rewritten, other than Keras layers and losses, and functions given to
# `converted`.
unconverted = api.autograph_artifact

# As `tf.function` has them.
_OPTIONS = converter.ConversionOptions(recursive=True, optional_features=None)


@unconverted
def converted(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a user's function, rewritten where it becomes part of a graph.

  Unless AutoGraph is switched off. Errors are left as they are: `tf.function`
  adds the lines of the program that they come from.

  Args:
    function: any function of tensors that `unconverted` code calls.
  """

  @unconverted
  def call(*args, **kwargs):
    if tf.executing_eagerly():
      return function(*args, **kwargs)
    return api.converted_call(function, args, kwargs, options=_OPTIONS)

  return call
