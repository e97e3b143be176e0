"""Keras layers whose calls are changed for a while: watched, or at rest."""

from __future__ import annotations

import contextlib
import functools
import inspect

import tensorflow as tf

from tfdpflows._keras import keras


def random_layers(layers):
  """Returns the layers that draw random numbers in training, as Keras does."""
  return [
    layer
    for layer in layers
    if isinstance(layer, keras.__internal__.layers.BaseRandomLayer)
    and 'training' in inspect.signature(layer.call).parameters
  ]


def at_rest(layers):
  """Context in which random layers run as in inference."""
  return _changed(
    random_layers(layers),
    lambda unused_layer, call: (
      lambda *args, **kwargs: call(*args, **{**kwargs, 'training': False})
    ),
  )


def watched(layers, seen):
  """Context in which what layers give is noted.

  Args:
    layers: Keras layers.
    seen: list that gets pairs of a layer's description and a tensor.
  """

  def change(layer, call):
    def noted(*args, **kwargs):
      result = call(*args, **kwargs)
      for x in tf.nest.flatten(result):
        seen.append((f'The layer {layer.name}', x))
      return result

    return noted

  return _changed(layers, change)


@contextlib.contextmanager
def _changed(layers, change):
  old = [vars(layer).get('call') for layer in layers]
  # Keras converts by AutoGraph what it finds to be the call of a layer.
  context = tf.__internal__.autograph.control_status_ctx()
  convert = tf.__internal__.autograph.tf_convert
  try:
    for layer in layers:
      own = layer.call
      changed = change(layer, convert(own, context))
      changed = functools.wraps(own)(changed)
      # Past Keras, which would track it.
      vars(layer)['call'] = tf.autograph.experimental.do_not_convert(changed)
    yield
  finally:
    for layer, call in zip(layers, old):
      vars(layer).pop('call', None)
      if call is not None:
        vars(layer)['call'] = call
