"""Keras layers: which are refused by name, and how their calls are observed."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tfdpflows._keras import keras, tfp

_BATCH_STATISTICS = (
  tfp.bijectors.BatchNormalization,
  keras.layers.BatchNormalization,
)


def _pass_over_dropout_masks():
  """Has `submodules` pass over the dropout masks that cells of RNNs keep.

  They are kept by graph. Of two graphs, as there are for a loop, TensorFlow
  cannot sort the keys, and fails to list any module.
  """
  (mixin,) = (
    parent
    for parent in keras.layers.SimpleRNNCell.__mro__
    if parent.__name__ == 'DropoutRNNCellMixin'
  )
  ignored = set(keras.layers.Layer._TF_MODULE_IGNORED_PROPERTIES)
  ignored |= {'_dropout_mask_cache', '_recurrent_dropout_mask_cache'}
  mixin._TF_MODULE_IGNORED_PROPERTIES = frozenset(ignored)


_pass_over_dropout_masks()


def layers_of(*modules: Any) -> list[keras.layers.Layer]:
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


def refuse_batch_statistics(*parts: Any) -> None:
  """Refuses layers that mix rows and keep their statistics, by name."""
  for part in parts:
    for module in (part, *getattr(part, 'submodules', ())):
      if isinstance(module, _BATCH_STATISTICS):
        raise ValueError(
          f'{type(module).__name__} {module.name!r} mixes the rows of a batch '
          'and keeps their mean: what one row changes behind it has no bound. '
          'Take it out; bijectors.ActNorm does its work.'
        )


def refuse_layers(*modules: Any) -> None:
  """Refuses what is known, by name, to break the guarantee."""
  for module in modules:
    if not isinstance(module, keras.Model):
      refuse_batch_statistics(module)
  for layer in layers_of(*modules):
    if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
      raise ValueError(
        f'The layer {layer.name} normalizes over the batch, so that an example '
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


def refuse_batch_losses(layers: Sequence[keras.layers.Layer]) -> None:
  """Refuses what `call` adds beside the loss; after the layers have run."""
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


def penalties_of(
  layers: Sequence[keras.layers.Layer],
) -> list[Callable[[], tf.Tensor]]:
  """Returns the weight regularizers, as functions of nothing.

  They depend on weights alone, which are released anyway. Other losses that a
  layer adds by a function are refused.
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


def random_layers(
  layers: Sequence[keras.layers.Layer],
) -> list[keras.layers.Layer]:
  """Returns the layers that draw random numbers in training, as Keras does."""
  return [
    layer
    for layer in layers
    if isinstance(layer, keras.__internal__.layers.BaseRandomLayer)
    and 'training' in inspect.signature(layer.call).parameters
  ]


def without_randomness(
  layers: Sequence[keras.layers.Layer],
) -> contextlib.AbstractContextManager[None]:
  """Context in which random layers compute as in inference."""
  return _changed(
    random_layers(layers),
    lambda unused_layer, call: (
      lambda *args, **kwargs: call(*args, **{**kwargs, 'training': False})
    ),
  )


def observed(
  layers: Sequence[keras.layers.Layer], outputs: list[tuple[str, tf.Tensor]]
) -> contextlib.AbstractContextManager[None]:
  """Context in which outputs get a layer's description and each tensor."""

  def change(layer, call):
    def recorded(*args, **kwargs):
      result = call(*args, **kwargs)
      for x in tf.nest.flatten(result):
        outputs.append((f'The layer {layer.name}', x))
      return result

    return recorded

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
