"""What is refused of Keras layers by name, before any number is computed."""

from __future__ import annotations

import functools

import tensorflow as tf
from absl import logging

from tfdpflows._keras import keras


def layers_of(*modules):
  """Returns the Keras layers among modules and all that is inside of them."""
  found = {}
  for module in modules:
    for m in (module, *getattr(module, 'submodules', ())):
      found[id(m)] = m
  return [
    m
    for m in found.values()
    if isinstance(m, keras.layers.Layer)
    and not isinstance(m, keras.metrics.Metric)
  ]


def refuse_layers(layers):
  """Refuses what is known, by name, to break the guarantee.

  Raises:
    ValueError: naming the layer and what to do.
  """
  for layer in layers:
    if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
      raise ValueError(
        f'The layer {layer.name} normalises over the batch, so that an example '
        'changes the gradients of all others and clipping each bounds nothing. '
        'Use LayerNormalization or GroupNormalization, or set `trainable = '
        'False` on it, if its statistics come from public data.'
      )
    precise = layer.compute_dtype == layer.variable_dtype
    if not precise or layer.variable_dtype in ('float16', 'bfloat16'):
      raise ValueError(
        f'The layer {layer.name} computes in {layer.compute_dtype}: squared '
        'norms overflow or vanish in half precision, and what is clipped by '
        "them may exceed the bound. Build the model with dtype 'float32' "
        "(`tf.keras.mixed_precision.set_global_policy('float32')`)."
      )
    if getattr(layer, 'is_adapted', False):
      logging.warning(
        'tfdpflows: the layer %s was adapted. If that was to the private data, '
        'its statistics are not covered by the privacy statement.',
        layer.name,
      )


def refuse_batch_losses(layers):
  """Refuses what `call` adds beside the loss; after the layers have run.

  Raises:
    ValueError: naming the layer and what to do.
  """
  for layer in layers:
    if layer._eager_losses:
      raise ValueError(
        f'The layer {layer.name} adds a loss computed from the batch (add_loss '
        'or activity_regularizer), which would be neither clipped nor noised. '
        'Make it part of compile(loss=...), one number per example.'
      )
    if layer._metrics:
      raise ValueError(
        f'The layer {layer.name} keeps a metric of the private batches '
        '(add_metric), which would be released without noise. Drop it.'
      )


def penalties_of(layers):
  """Returns the weight regularizers, as functions of nothing.

  They depend on weights alone, which are released anyway.

  Raises:
    ValueError: for another loss that a layer adds by a function.
  """
  found = []
  for layer in layers:
    for penalty in layer._callable_losses:
      inner = (
        penalty.args[0] if isinstance(penalty, functools.partial) else None
      )
      if not isinstance(inner, functools.partial) or not all(
        isinstance(a, tf.Variable) for a in inner.args
      ):
        raise ValueError(
          f'The layer {layer.name} adds a loss by a function (add_loss), which '
          'may depend on private rows and would be neither clipped nor noised. '
          'Use a regularizer of its weights, or compile(loss=...).'
        )
      found.append(penalty)
  return found
