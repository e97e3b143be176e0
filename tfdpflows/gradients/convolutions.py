"""The rules of convolutions.

An entry of a kernel, at one place of its window and from one channel to another
one, multiplies the inputs at T positions: the per-example gradient is a sum of
T products for each place, of a slice of the padded inputs (a *tap*) and the
gradient `d` at the output. With K places, `a` the taps side by side,

    g_i[k] = tap_k(x_i)^T d_i,    g_i = a_i^T d_i    (a_i is [T, K in]),

and for a transposed convolution, which is the gradient of one, with x and d in
each other's place. Mostly g_i is no larger than a_i, or not by much. Then it is
stored, one place after another, and a_i, K times as large as the inputs, never
is. With few positions and many channels a_i is recorded, as inputs of `linear`
would be. Both take no more memory than gradients that are computed one by one.

A convolution in groups is one of each group, which are taken for examples. That
of one channel each (depthwise) is a sum of products of numbers; there is an
operation of TensorFlow for the sum over examples, and with the examples as
channels it does not add them up.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdpflows._keras import keras
from tfdpflows.gradients import fallback
from tfdpflows.gradients.keras_rules import attributes, copies, plain
from tfdpflows.gradients.tape import convolution

_layers = keras.layers
# Output channels for each position from which on patches are recorded: the norm
# takes the products of all pairs of them.
_FEW_POSITIONS = 4
# Numbers in a patch that are multiplied at once: for a product of its own each
# place has too few channels.
_SMALL_PATCH = 128


class Window(NamedTuple):
  """What a kernel is laid on, along each axis in space."""

  sizes: tuple[int, ...]
  strides: tuple[int, ...]
  rates: tuple[int, ...]
  causal: bool

  @classmethod
  def of(cls, layer: keras.layers.Layer) -> Window:
    """Returns the window of a layer."""
    causal = layer.padding == 'causal'
    return cls(layer.kernel_size, layer.strides, layer.dilation_rate, causal)

  def spanned(self, x: tf.Tensor, outputs: tf.TensorShape) -> tf.Tensor:
    """Returns what the windows of all outputs reach of x, zeros beyond.

    Along each axis that is a multiple of the stride.
    """
    pads, ends = [[0, 0]], [None]
    for n, m, size, stride, rate in zip(
      x.shape[1:-1], outputs, self.sizes, self.strides, self.rates
    ):
      reach = rate * (size - 1)
      span = (m - 1) * stride + reach + 1
      # As 'same' has it; a 'valid' one reaches nothing beyond.
      before = reach if self.causal else max(span - n, 0) // 2
      end = -(-span // stride) * stride
      pads.append([before, max(end - n - before, 0)])
      ends.append(end)
    if np.any(pads):
      x = tf.pad(x, [*pads, [0, 0]])
    if x.shape[1:-1] != ends[1:]:
      x = x[tuple(slice(end) for end in ends)]
    return x

  def taps(self, x: tf.Tensor, outputs: tf.TensorShape) -> list[tf.Tensor]:
    """Returns `[batch, *outputs, channels]` for each place of the kernel."""
    x, rank = self.spanned(x, outputs), len(outputs)
    # Slices with strides are slow; those of each phase of them need none.
    sizes = [(n // s, s) for n, s in zip(x.shape[1:-1], self.strides)]
    phases = tf.reshape(x, [-1, *itertools.chain(*sizes), x.shape[-1]])
    odd, even = range(1, 2 * rank, 2), range(2, 2 * rank + 1, 2)
    phases = tf.transpose(phases, [*even, 0, *odd, 2 * rank + 1])
    found = []
    for place in itertools.product(*map(range, self.sizes)):
      starts, phase = zip(
        *map(divmod, map(operator.mul, place, self.rates), self.strides)
      )
      slices = [slice(i, i + m) for i, m in zip(starts, outputs)]
      found.append(phases[(*phase, slice(None), *slices)])
    return found


def _products(window, x, d):
  """Returns `[batch, K, in, out]`, the gradients of the kernel."""
  taps = [_positions(tap) for tap in window.taps(x, d.shape[1:-1])]
  size, d = x.shape[-1], _positions(d)
  if len(taps) * size > _SMALL_PATCH:
    return tf.stack([tf.matmul(tap, d, transpose_a=True) for tap in taps], 1)
  rows = tf.transpose(tf.stack(taps, 1), [0, 1, 3, 2])
  found = tf.matmul(tf.reshape(rows, [-1, len(taps) * size, d.shape[1]]), d)
  return tf.reshape(found, [-1, len(taps), size, d.shape[-1]])


def _factors(window, x, d):
  """Returns `[batch, T, K * in]` and `[batch, T, out]`."""
  patches = tf.concat(window.taps(x, d.shape[1:-1]), -1)
  return _positions(patches), _positions(d)


def _in_groups(window, groups, x, d):
  """Returns `[batch, K, in, groups, out]`, with the groups in the batch."""

  def apart(x):
    size = x.shape[-1] // groups
    grouped = tf.reshape(x, [-1, x.shape[1:-1].num_elements(), groups, size])
    grouped = tf.transpose(grouped, [0, 2, 1, 3])
    return tf.reshape(grouped, [-1, *x.shape[1:-1], size])

  found = _products(window, apart(x), apart(d))
  found = tf.reshape(found, [-1, groups, *found.shape[1:]])
  return tf.transpose(found, [0, 2, 3, 1, 4])


def _depthwise(window, x, d):
  """Returns `[batch, K, in, out]`, of `out` outputs for each channel."""
  channels = x.shape[-1]
  outputs, multiplier = d.shape[1:-1], d.shape[-1] // channels
  alike = len(set(window.strides)) == 1 and max(window.rates) == 1
  # XLA takes gigabytes for so many channels.
  if fallback.under_xla() or len(outputs) != 2 or not alike:
    axes = list(range(1, 1 + len(outputs)))
    d = tf.reshape(d, [-1, *outputs, channels, multiplier])
    sums = [
      tf.reduce_sum(tap[..., None] * d, axes) for tap in window.taps(x, outputs)
    ]
    return tf.stack(sums, 1)

  def as_channels(x):
    """[batch, rows, columns, channels] as [1, rows, columns, all channels]."""
    shape = [1, *x.shape[1:-1], tf.shape(x)[0] * x.shape[-1]]
    return tf.reshape(tf.transpose(x, [1, 2, 0, 3]), shape)

  batch = tf.shape(x)[0]
  # Nor may XLA have it where it chooses by itself what it compiles.
  with _uncompiled():
    found = tf.nn.depthwise_conv2d_backprop_filter(
      as_channels(window.spanned(x, outputs)),
      [*window.sizes, batch * channels, multiplier],
      as_channels(d),
      [1, *window.strides, 1],
      'VALID',
    )
  found = tf.reshape(
    found, [np.prod(window.sizes), batch, channels, multiplier]
  )
  return tf.transpose(found, [1, 0, 2, 3])


def _uncompiled():
  if tf.executing_eagerly():
    return contextlib.nullcontext()
  return tf.xla.experimental.jit_scope(compile_ops=False)


def _positions(x):
  """[batch, *space, channels] as [batch, positions, channels]."""
  return tf.reshape(x, [-1, x.shape[1:-1].num_elements(), x.shape[-1]])


def _own(layer, name='kernel'):
  """Returns what a layer computes of its inputs and this kernel, no more."""

  def call(x, kernel):
    # No variables, or their gradients would be computed once more.
    with attributes(layer, **{name: kernel}, use_bias=False, activation=None):
      return type(layer).call(layer, x)

  return call


def _convolution_rule(compute):
  """Returns the rule, given how to compute all but bias and activation.

  `compute(layer, x)` gets inputs in the layer's precision and of a known size.
  """

  @functools.wraps(compute)
  def rule(layer, inputs):
    rank = layer.rank + 2
    known = (
      plain(layer, inputs, rank)
      and inputs.shape.rank == rank
      and inputs.shape[1:].is_fully_defined()
      and layer.data_format == 'channels_last'
    )
    if not known:
      return NotImplemented
    y = compute(layer, tf.cast(inputs, layer.compute_dtype))
    if layer.use_bias:
      y += copies(layer.bias, y, y.shape.rank)
    return y if layer.activation is None else layer.activation(y)

  return rule


def _gradients(
  window: Window, positions: tf.TensorShape, width: int
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor | tuple[tf.Tensor, tf.Tensor]]:
  """Returns how to get from x and d to the gradients of a kernel."""
  few = _FEW_POSITIONS * positions.num_elements() <= width
  compute = _factors if few else _products
  return lambda x, d: compute(window, x, d)


@_convolution_rule
def convolve(
  layer: keras.layers.Conv1D | keras.layers.Conv2D | keras.layers.Conv3D,
  x: tf.Tensor,
) -> tf.Tensor:
  """`Conv1D`, `Conv2D` and `Conv3D`, also in groups."""
  window, outputs = Window.of(layer), layer.compute_output_shape(x.shape)
  if layer.groups > 1:
    gradients = lambda x, d: _in_groups(window, layer.groups, x, d)
  else:
    gradients = _gradients(window, outputs[1:-1], layer.filters)
  return convolution(x, layer.kernel, _own(layer), gradients)


@_convolution_rule
def transposed(
  layer: keras.layers.Conv1DTranspose
  | keras.layers.Conv2DTranspose
  | keras.layers.Conv3DTranspose,
  x: tf.Tensor,
) -> tf.Tensor:
  """`Conv1DTranspose`, `Conv2DTranspose` and `Conv3DTranspose`."""
  gradients = _gradients(Window.of(layer), x.shape[1:-1], x.shape[-1])
  back = lambda x, d: gradients(d, x)
  return convolution(x, layer.kernel, _own(layer), back)


@_convolution_rule
def depthwise(
  layer: keras.layers.DepthwiseConv1D | keras.layers.DepthwiseConv2D,
  x: tf.Tensor,
) -> tf.Tensor:
  """`DepthwiseConv1D` and `DepthwiseConv2D`."""
  window = Window.of(layer)
  return convolution(
    x,
    layer.depthwise_kernel,
    _own(layer, 'depthwise_kernel'),
    lambda x, d: _depthwise(window, x, d),
  )


@_convolution_rule
def separable(
  layer: keras.layers.SeparableConv1D | keras.layers.SeparableConv2D,
  x: tf.Tensor,
) -> tf.Tensor:
  """`SeparableConv1D` and `SeparableConv2D`: depthwise, then one of size 1."""
  window, outputs = Window.of(layer), layer.compute_output_shape(x.shape)
  axes = [1] * (2 - layer.rank)  # That images have before those of the layer.

  def by_channel(x, kernel):
    x = window.spanned(x, outputs[1:-1])
    y = tf.nn.depthwise_conv2d(
      tf.reshape(x, [-1, *axes, *x.shape[1:]]),
      tf.reshape(kernel, [*axes, *kernel.shape]),
      [1, *layer.strides[:1] * 2, 1],
      'VALID',
      dilations=[*axes, *layer.dilation_rate],
    )
    return tf.reshape(y, [-1, *outputs[1:-1], y.shape[-1]])

  y = convolution(
    x,
    layer.depthwise_kernel,
    by_channel,
    lambda x, d: _depthwise(window, x, d),
  )
  one = (1,) * layer.rank
  y = convolution(
    y,
    layer.pointwise_kernel,
    tf.nn.convolution,
    _gradients(Window(one, one, one, False), outputs[1:-1], layer.filters),
  )
  return tf.ensure_shape(y, outputs)


RULES = {
  _layers.Conv1D: convolve,
  _layers.Conv2D: convolve,
  _layers.Conv3D: convolve,
  _layers.Conv1DTranspose: transposed,
  _layers.Conv2DTranspose: transposed,
  _layers.Conv3DTranspose: transposed,
  _layers.DepthwiseConv1D: depthwise,
  _layers.DepthwiseConv2D: depthwise,
  _layers.SeparableConv1D: separable,
  _layers.SeparableConv2D: separable,
}
