"""The rules of Keras layers that come with the library, but convolutions.

Each gives what the `call` of its layer gives, with the layer's options. See
`layers.register_rule` for what a rule is.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from tfdpflows._keras import keras
from tfdpflows.gradients.tape import embedding, linear, per_example

_layers = keras.layers


def plain(layer, x, rank=2):
  """Whether `x` is a tensor of at least this rank, in the layer's precision."""
  return (
    isinstance(x, tf.Tensor)
    and x.shape.rank is not None
    and x.shape.rank >= rank
    and layer.compute_dtype == layer.variable_dtype
  )


def copies(parameter, x, rank=None):
  """One copy per example; with `rank`, of that rank to broadcast with."""
  batch = tf.shape(x)[0]
  found = per_example(parameter, batch)
  missing = 0 if rank is None else rank - found.shape.rank
  if missing > 0:
    shape = [batch] + [1] * missing + parameter.shape.as_list()
    found = tf.reshape(found, shape)
  return found


def dense(layer: keras.layers.Dense, inputs: tf.Tensor) -> tf.Tensor:
  """`Dense`: one `linear`, then the activation."""
  if not plain(layer, inputs):
    return NotImplemented
  x = tf.cast(inputs, layer.compute_dtype)
  y = linear(x, layer.kernel, layer.bias if layer.use_bias else None)
  return y if layer.activation is None else layer.activation(y)


def lookup(layer: keras.layers.Embedding, inputs: tf.Tensor) -> tf.Tensor:
  """`Embedding`: one `embedding`, unless it multiplies by indicators."""
  one_hot = getattr(layer, '_use_one_hot_matmul', False)
  if not plain(layer, inputs, 1) or one_hot or layer.sparse:
    return NotImplemented
  if inputs.dtype not in (tf.int32, tf.int64):
    inputs = tf.cast(inputs, tf.int32)
  return embedding(inputs, layer.embeddings)


def einsum_dense(
  layer: keras.layers.EinsumDense, inputs: tf.Tensor
) -> tf.Tensor:
  """Equations such as 'abc,cde->abde': a matrix product after a reshape."""
  if not plain(layer, inputs):
    return NotImplemented
  kept = _kept_axes(layer.equation, inputs.shape.rank)
  if kept is None:
    return NotImplemented
  kernel = layer.kernel.shape.as_list()
  contracted = inputs.shape.rank - kept
  shape = tf.shape(inputs)[:kept]
  size = tf.TensorShape(kernel[:contracted]).num_elements()
  x = tf.reshape(inputs, tf.concat([shape, [size]], 0))
  y = linear(x, layer.kernel)
  y = tf.reshape(y, tf.concat([shape, kernel[contracted:]], 0))
  y = tf.ensure_shape(y, inputs.shape[:kept] + kernel[contracted:])
  if layer.bias is not None:
    if layer.bias.shape.rank >= y.shape.rank:
      return NotImplemented
    y += copies(layer.bias, y, y.shape.rank)
  return y if layer.activation is None else layer.activation(y)


def _kept_axes(equation, rank):
  """Returns how many first axes of the input an equation keeps.

  `None` unless it is x, k -> y with x = kept + summed, k = summed + new and
  y = kept + new, letter by letter.
  """
  inputs, output = equation.replace(' ', '').split('->')
  x, kernel = inputs.split(',')
  letters = [c for c in 'ABCDEFGHIJKLMNOPQRSTUVWXYZ' if c not in equation]
  dots = ''.join(letters[: rank - len(x.replace('...', ''))])
  x, output = x.replace('...', dots), output.replace('...', dots)
  new = ''.join(c for c in kernel if c not in x)
  summed = kernel[: len(kernel) - len(new)]
  kept = x[: len(x) - len(summed)]
  as_product = (
    kept
    and summed
    and (x, kernel, output) == (kept + summed, summed + new, kept + new)
    and len(set(kept + summed + new)) == len(kept + summed + new)
    and len(x) == rank
  )
  return len(kept) if as_product else None


def layer_normalization(
  layer: keras.layers.LayerNormalization, inputs: tf.Tensor
) -> tf.Tensor:
  """`LayerNormalization`, with a copy of gamma and beta per example."""
  if not plain(layer, inputs):
    return NotImplemented
  x = tf.cast(inputs, layer.compute_dtype)
  axes = sorted(layer.axis)
  if axes[0] == 0:
    return NotImplemented
  mean, variance = tf.nn.moments(x, axes, keepdims=True)
  y = (x - mean) * tf.math.rsqrt(variance + layer.epsilon)
  return _scaled(layer, y, inputs.shape, axes)


def group_normalization(
  layer: keras.layers.GroupNormalization,
  inputs: tf.Tensor,
  mask: tf.Tensor | None = None,
) -> tf.Tensor:
  """`GroupNormalization`, with a copy of gamma and beta per example."""
  axis = layer.axis
  if not plain(layer, inputs, 3) or axis % inputs.shape.rank == 0:
    return NotImplemented
  with attributes(layer, scale=False, center=False):
    y = type(layer).call(layer, tf.cast(inputs, layer.compute_dtype), mask=mask)
  return _scaled(layer, y, inputs.shape, [axis])


def _scaled(layer, y, whole, axes):
  """Multiplies by gamma and adds beta, of these axes, if the layer has them."""
  shape = [1] * whole.rank
  for axis in axes:
    shape[axis] = whole[axis]
  shape[0] = -1  # Of the copies: the examples.
  if layer.gamma is not None:
    y *= tf.reshape(copies(layer.gamma, y), shape)
  if layer.beta is not None:
    y += tf.reshape(copies(layer.beta, y), shape)
  return tf.ensure_shape(y, whole)


def _by_gate(layer):
  """Whether dropout takes another mask for each gate."""
  dropout = layer.dropout or layer.recurrent_dropout
  return layer.implementation == 1 and dropout


def _dropped(layer, inputs, training, count):
  if not 0.0 < layer.dropout < 1.0:
    return inputs
  masks = layer.get_dropout_mask_for_cell(inputs, training, count=count)
  return inputs * masks[0]


def gru_cell(
  layer: keras.layers.GRUCell,
  inputs: tf.Tensor,
  states: Any,
  training: bool | None = None,
) -> tuple[tf.Tensor, Any]:
  """`GRUCell` with `reset_after`: two products, and a copy of the biases."""
  if not plain(layer, inputs) or not layer.reset_after or _by_gate(layer):
    return NotImplemented
  nested = tf.nest.is_nested(states)
  h = states[0] if nested else states
  x = linear(_dropped(layer, inputs, training, 3), layer.kernel)
  inner = linear(h, layer.recurrent_kernel)
  if layer.use_bias:
    bias = copies(layer.bias, inputs)
    x, inner = x + bias[:, 0], inner + bias[:, 1]
  x_z, x_r, x_h = tf.split(x, 3, axis=-1)
  h_z, h_r, h_h = tf.split(inner, 3, axis=-1)
  z = layer.recurrent_activation(x_z + h_z)
  r = layer.recurrent_activation(x_r + h_r)
  h = z * h + (1 - z) * layer.activation(x_h + r * h_h)
  return h, [h] if nested else h


def lstm_cell(
  layer: keras.layers.LSTMCell,
  inputs: tf.Tensor,
  states: Any,
  training: bool | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """`LSTMCell`: the products of all four gates at once."""
  if not plain(layer, inputs) or _by_gate(layer):
    return NotImplemented
  h, c = states[0], states[1]
  bias = layer.bias if layer.use_bias else None
  x = linear(_dropped(layer, inputs, training, 4), layer.kernel, bias)
  gates = x + linear(h, layer.recurrent_kernel)
  i, f, g, o = tf.split(gates, 4, axis=1)
  c = layer.recurrent_activation(f) * c + layer.recurrent_activation(
    i
  ) * layer.activation(g)
  h = layer.recurrent_activation(o) * layer.activation(c)
  return h, [h, c]


def simple_rnn_cell(
  layer: keras.layers.SimpleRNNCell,
  inputs: tf.Tensor,
  states: Any,
  training: bool | None = None,
) -> tuple[tf.Tensor, Any]:
  """`SimpleRNNCell`: a product of the inputs, and one of the state."""
  if not plain(layer, inputs):
    return NotImplemented
  nested = tf.nest.is_nested(states)
  h = states[0] if nested else states
  mask = layer.get_dropout_mask_for_cell(inputs, training)
  x = inputs if mask is None else inputs * mask
  y = linear(x, layer.kernel, layer.bias if layer.use_bias else None)
  mask = layer.get_recurrent_dropout_mask_for_cell(h, training)
  y += linear(h if mask is None else h * mask, layer.recurrent_kernel)
  if layer.activation is not None:
    y = layer.activation(y)
  return y, [y] if nested else y


def recurrent(
  layer: keras.layers.RNN, inputs: tf.Tensor, *args: Any, **kwargs: Any
) -> Any:
  """Unrolls the loop: the tape cannot record the primitives inside of one."""
  x = tf.nest.flatten(inputs)[0]
  time = 0 if layer.time_major else 1
  known = isinstance(x, tf.Tensor) and x.shape.rank and x.shape[time]
  if not known or layer.stateful:
    return NotImplemented
  with attributes(layer, unroll=True, _could_use_gpu_kernel=False):
    return type(layer).call(layer, inputs, *args, **kwargs)


@contextlib.contextmanager
def attributes(layer, **values):
  """Sets attributes of a layer for a while, past Keras."""
  current = vars(layer)
  old = {name: current[name] for name in values if name in current}
  current.update({name: values[name] for name in old})
  try:
    yield
  finally:
    current.update(old)


def time_distributed(
  layer: keras.layers.TimeDistributed,
  inputs: tf.Tensor,
  training: bool | None = None,
  mask: tf.Tensor | None = None,
) -> tf.Tensor:
  """Keras would fold the time into the batch; `Dense` does without."""
  if not plain(layer, inputs, 3) or type(layer.layer) is not _layers.Dense:
    return NotImplemented
  return layer.layer(inputs)


RULES = {
  _layers.Dense: dense,
  _layers.Embedding: lookup,
  _layers.EinsumDense: einsum_dense,
  _layers.LayerNormalization: layer_normalization,
  _layers.GroupNormalization: group_normalization,
  _layers.GRUCell: gru_cell,
  _layers.LSTMCell: lstm_cell,
  _layers.SimpleRNNCell: simple_rnn_cell,
  _layers.GRU: recurrent,
  _layers.LSTM: recurrent,
  _layers.RNN: recurrent,
  _layers.SimpleRNN: recurrent,
  _layers.TimeDistributed: time_distributed,
}
