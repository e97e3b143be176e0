"""Rules: how the call of a Keras layer is written with the primitives."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from absl import logging

if TYPE_CHECKING:
  from tfdpflows._keras import keras

_RULES = {}
_LOGGED = set()


def register_rule(
  layer_class: type[keras.layers.Layer],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """Decorates the rule of a Keras layer: its call, written with the primitives.

  A rule is a function `rule(layer, *args, **kwargs)` that takes the arguments
  of the layer's `call` and returns the same result, computed with `linear`,
  `per_example` and `embedding` wherever a variable of the layer is applied to
  the batch. `tfdpflows.PrivateModel` uses it in place of `call`, and the
  variables of the layer get per-example gradients in one backward pass. For
  options that it does not support a rule returns `NotImplemented`: the layer's
  own `call` runs, and its variables take the slow path. Rules run without
  AutoGraph, and may call `type(layer).call(layer, ...)`. A rule holds for
  layers of exactly this class, not of subclasses.

  Args:
    layer_class: a subclass of `tf.keras.layers.Layer`.

  Returns:
    A decorator, which returns the rule itself.

  #### Example

  >>> import tensorflow as tf
  >>> import tfdpflows
  >>> class Scale(tf.keras.layers.Layer):
  ...   def build(self, shape):
  ...     self.factor = self.add_weight('factor', shape[1:], initializer='ones')
  ...   def call(self, x):
  ...     return x * self.factor
  >>> @tfdpflows.gradients.register_rule(Scale)
  ... def scale(layer, x):
  ...   return x * tfdpflows.gradients.per_example(layer.factor, tf.shape(x)[0])
  """

  def register(rule):
    _RULES[layer_class] = rule
    return rule

  return register


def rule_of(layer: keras.layers.Layer) -> Callable[..., Any] | None:
  """Returns the rule of a layer, or `None`."""
  # A call that was set on the layer itself may compute anything.
  if 'call' in vars(layer):
    return None
  rule = _RULES.get(type(layer))
  return _library().get(type(layer)) if rule is None else rule


def is_library_rule(layer: keras.layers.Layer) -> bool:
  """Returns whether the rule of a layer is the library's own."""
  rule = rule_of(layer)
  return rule is not None and rule is _library().get(type(layer))


@functools.cache
def _library():
  # Loads Keras, which the primitives do without.
  from tfdpflows.gradients import convolutions, keras_rules  # noqa: PLC0415

  return {**keras_rules.RULES, **convolutions.RULES}


@contextlib.contextmanager
def layer_rules(layers: Sequence[keras.layers.Layer]) -> Iterator[None]:
  """Replaces the calls of those of the `layers` that have a rule, meanwhile.

  Args:
    layers: Keras layers, as a list; not used by another thread meanwhile.
  """
  changed = []
  context = tf.__internal__.autograph.control_status_ctx()
  try:
    for layer in layers:
      rule = rule_of(layer)
      if rule is not None:
        # Past Keras, which would track it.
        vars(layer)['call'] = _call_by(rule, layer, context)
        changed.append(layer)
    yield
  finally:
    for layer in changed:
      vars(layer).pop('call', None)


def _call_by(rule, layer, context):
  own = layer.call

  @tf.autograph.experimental.do_not_convert
  @functools.wraps(own)
  def call(*args, **kwargs):
    result = rule(layer, *args, **kwargs)
    if result is not NotImplemented:
      return result
    _log_options(layer)
    return tf.__internal__.autograph.tf_convert(own, context)(*args, **kwargs)

  return call


def _log_options(layer):
  if layer.name not in _LOGGED:
    _LOGGED.add(layer.name)
    logging.info(
      'tfdpflows: the rule of %s does not support all options of the layer %s; '
      'its gradients are computed example by example, which is slower.',
      type(layer).__name__,
      layer.name,
    )
