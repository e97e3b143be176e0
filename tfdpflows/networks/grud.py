"""GRU-D: a recurrent network for series with missing values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdpflows import gradients
from tfdpflows._keras import keras


class GRUD(keras.layers.Layer):
  """Gated recurrent unit with trainable decays (Che et al. 2018).

  With the values x_t, the masks m_t (1 where observed) and the times
  delta_t since the last observation of each variable, all products being
  elementwise but those with W, U and V:

      gamma_x = exp(-max(0, w_x delta_t + b_x))
      gamma_h = exp(-max(0, W_h delta_t + b_h))
      x'_t    = m_t x_t + (1 - m_t) gamma_x x_last
      h'      = gamma_h h_{t-1}
      z_t     = sigmoid(W_z x'_t + U_z h' + V_z m_t + b_z)
      r_t     = sigmoid(W_r x'_t + U_r h' + V_r m_t + b_r)
      c_t     = tanh(W_c x'_t + U_c (r_t h') + V_c m_t + b_c)
      h_t     = (1 - z_t) h' + z_t c_t

  The paper decays a missing value to the empirical mean of its variable. Here
  that is zero: standardize by public constants, or by statistics that the
  ledger was charged for. Nothing is read off a batch, and there is no batch
  normalization. The products with the inputs are computed for all steps at
  once, and the recurrence is unrolled; all variables are used through the
  primitives of `tfdpflows.gradients`, so that per-example gradients take one
  backward pass.

  Args:
    units: size of the state.
    name: of the layer.

  Call arguments:
    x: `[batch, steps, 3, features]`: values (the last observed one where
      missing, zero before the first), masks and times. The number of steps is
      static.

  Returns:
    `[batch, units]`, the last state.

  #### References

  Che, Purushotham, Cho, Sontag and Liu 2018, Recurrent neural networks for
  multivariate time series with missing values, Scientific Reports 8.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import networks
  >>> networks.GRUD(units=4)(tf.zeros([5, 24, 3, 7])).shape
  TensorShape([5, 4])
  """

  def __init__(self, units: int, name: str | None = None, **kwargs: Any):
    super().__init__(name=name, **kwargs)
    if units < 1:
      raise ValueError(f'units is {units}; it must be at least 1.')
    self.units = int(units)

  def build(self, input_shape: Any) -> None:
    shape = tuple(input_shape)
    if len(shape) != 4 or shape[2] != 3 or not (shape[1] and shape[3]):
      raise ValueError(
        f'GRUD got {shape}; it takes [batch, steps, 3, features] '
        'with a known number of steps: values, masks and times.'
      )
    for name, sizes in grud_shapes(shape[3], self.units).items():
      weight = self.add_weight(name, sizes, initializer=_INITIALIZERS[name]())
      setattr(self, name, weight)
    super().build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = tf.convert_to_tensor(inputs)
    batch = tf.shape(x)[0]

    def product(x, kernel, bias=None):
      bias = None if bias is None else getattr(self, bias)
      return gradients.linear(x, getattr(self, kernel), bias)

    def copies(parameter):
      return gradients.per_example(getattr(self, parameter), batch)[:, None]

    return grud_states(x, product, copies)

  def get_config(self) -> dict[str, Any]:
    return {**super().get_config(), 'units': self.units}


def grud_shapes(features: int, units: int) -> dict[str, list[int]]:
  """Returns the shapes of the parameters of a `GRUD`, by name, in order."""
  return {
    'input_decay': [features],
    'input_decay_bias': [features],
    'state_decay': [features, units],
    'state_decay_bias': [units],
    'kernel': [2 * features, 3 * units],
    'bias': [3 * units],
    'gate_kernel': [units, 2 * units],
    'candidate_kernel': [units, units],
  }


def grud_states(
  x: tf.Tensor,
  product: Callable[..., tf.Tensor],
  copies: Callable[[str], tf.Tensor],
) -> tf.Tensor:
  """Returns the last state, for parameters that are held elsewhere.

  Args:
    x: `[..., steps, 3, features]`.
    product: function of a tensor `[..., in]` and the names of a kernel and a
      bias (or neither), that returns `[..., out]`.
    copies: function of the name of a vector `[n]`, that returns it in a shape
      to broadcast with `[..., steps, n]`.

  Returns:
    `[..., units]`.
  """
  values, masks, times = tf.unstack(x, 3, axis=-2)
  decay = copies('input_decay') * times + copies('input_decay_bias')
  values *= masks + (1 - masks) * tf.exp(-tf.nn.relu(decay))
  masks = tf.broadcast_to(masks, tf.shape(values))
  inputs = product(tf.concat([values, masks], -1), 'kernel', 'bias')
  decays = tf.exp(
    -tf.nn.relu(product(times, 'state_decay', 'state_decay_bias'))
  )
  units = decays.shape[-1]
  inputs = tf.unstack(inputs, axis=-2)
  decays = tf.unstack(decays, axis=-2)
  state = None
  for given, decay in zip(inputs, decays):
    gates, candidate = given[..., : 2 * units], given[..., 2 * units :]
    if state is None:  # It is zero, and so is what it is multiplied by.
      update = tf.sigmoid(gates[..., :units])
      state = update * tf.tanh(candidate)
      continue
    state *= decay
    gates = tf.sigmoid(gates + product(state, 'gate_kernel'))
    update, reset = gates[..., :units], gates[..., units:]
    candidate = tf.tanh(candidate + product(reset * state, 'candidate_kernel'))
    state += update * (candidate - state)
  return state


# Decays start above zero: where max(0, .) is zero there is no gradient.
_INITIALIZERS = {
  'input_decay': lambda: keras.initializers.RandomUniform(0.0, 0.2),
  'input_decay_bias': keras.initializers.Zeros,
  'state_decay': keras.initializers.GlorotUniform,
  'state_decay_bias': keras.initializers.Zeros,
  'kernel': keras.initializers.GlorotUniform,
  'bias': keras.initializers.Zeros,
  'gate_kernel': keras.initializers.Orthogonal,
  'candidate_kernel': keras.initializers.Orthogonal,
}
