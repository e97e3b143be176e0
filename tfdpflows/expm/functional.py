"""Binary classifiers as functions of their parameters, many at a time.

A sampler of parameters evaluates the loss of N models on the same rows. Each
class here computes the N models by one batched matrix product, and makes a
Keras model with the same parameters.
"""

from __future__ import annotations

import abc

import numpy as np
import tensorflow as tf

from tfdpflows import networks
from tfdpflows._keras import keras
from tfdpflows.networks.grud import grud_shapes, grud_states


class FunctionalModel(abc.ABC):
  """A binary classifier as a function of a flat vector of parameters.

  The vector holds the weights of the Keras model in the order of its
  `get_weights()`, each in the order of its elements. The last of them is the
  bias of the logit, less `offset`: at a vector of zeros all logits are
  `offset`.
  """

  def __init__(
    self,
    shapes: dict[str, list[int]],
    row_shape: list[int],
    offset: float = 0.0,
  ):
    self._shapes = shapes
    self.offset = float(offset)
    self.row_shape = tuple(row_shape)

  @property
  def num_parameters(self) -> int:
    """The number of parameters P."""
    return sum(int(np.prod(shape)) for shape in self._shapes.values())

  def __call__(self, parameters: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the probability of class 1.

    Args:
      parameters: `[N, P]`, a vector for each model.
      x: `[B] + row_shape`.

    Returns:
      `[N, B]`, in [0, 1].

    Raises:
      ValueError: for parameters or rows of another shape.
    """
    parameters, x = tf.convert_to_tensor(parameters), tf.convert_to_tensor(x)
    for name, found, wanted in (
      ('parameters', parameters, [None, self.num_parameters]),
      ('x', x, [None, *self.row_shape]),
    ):
      if not found.shape.is_compatible_with(wanted):
        raise ValueError(
          f'{name} has shape {tuple(found.shape)}; it must be '
          f'[n, {", ".join(map(str, wanted[1:]))}].'
        )
    return tf.sigmoid(self.logits(parameters, x))

  @abc.abstractmethod
  def logits(self, parameters: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the logits of class 1, `[N, B]`; see `__call__`."""

  @abc.abstractmethod
  def keras_model(self, dropout: float = 0.0) -> keras.Model:
    """Returns a new Keras model, built, that gives logits `[B, 1]`.

    Args:
      dropout: rate of dropout before the last layer.
    """

  def to_vector(self, model: keras.Model) -> np.ndarray:
    """Returns the weights of a `keras_model` as one vector `[P]`."""
    vector = np.concatenate([np.ravel(w) for w in model.get_weights()])
    vector[-1] -= self.offset
    return vector

  def from_vector(
    self, parameters: np.ndarray | tf.Tensor, dropout: float = 0.0
  ) -> keras.Model:
    """Returns a `keras_model` with these parameters, `[P]`.

    Raises:
      ValueError: for a vector of another length.
    """
    vector = np.asarray(parameters)
    if vector.shape != (self.num_parameters,):
      raise ValueError(
        f'The parameters have shape {vector.shape}; the model has '
        f'{self.num_parameters} of them.'
      )
    model = self.keras_model(dropout)
    vector = vector.copy()
    vector[-1] += self.offset
    split = self._split(vector[None])
    model.set_weights([np.asarray(weight[0]) for weight in split.values()])
    return model

  def _sequential(self, layers, dropout, initializer='glorot_uniform'):
    layers = [keras.layers.InputLayer(self.row_shape), *layers]
    if dropout:
      layers.append(keras.layers.Dropout(dropout))
    last = keras.layers.Dense(
      1,
      kernel_initializer=initializer,
      bias_initializer=keras.initializers.Constant(self.offset),
    )
    return keras.Sequential([*layers, last])

  def _split(self, parameters):
    """Returns the weights by name, each `[N] + shape`."""
    parameters = tf.convert_to_tensor(parameters)
    sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
    return {
      name: tf.reshape(part, [-1, *shape])
      for (name, shape), part in zip(
        self._shapes.items(), tf.split(parameters, sizes, axis=-1)
      )
    }


class LogisticRegression(FunctionalModel):
  """Logistic regression, of all N parameter vectors by one matrix product.

  Args:
    num_features: number of features; rows are `[B, num_features]`.
    offset: public constant in all logits, such as the logit of a share of class
      1 that is known beforehand.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows.expm import functional
  >>> model = functional.LogisticRegression(num_features=7)
  >>> model.num_parameters
  8
  >>> model(tf.zeros([3, 8]), tf.zeros([5, 7])).shape
  TensorShape([3, 5])
  """

  def __init__(self, num_features: int, offset: float = 0.0):
    shapes = {'kernel': [num_features, 1], 'bias': [1]}
    super().__init__(shapes, [num_features], offset)

  def logits(self, parameters: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    parameters = tf.convert_to_tensor(parameters)
    x = tf.cast(x, parameters.dtype)
    products = tf.matmul(parameters[:, :-1], x, transpose_b=True)
    return products + parameters[:, -1:] + self.offset

  def keras_model(self, dropout: float = 0.0) -> keras.Model:
    return self._sequential([], dropout, 'zeros')


class GRUD(FunctionalModel):
  """GRU-D with a logistic last layer; see `networks.GRUD`.

  Args:
    num_features: number of variables.
    num_steps: number of steps, such as hours.
    units: size of the state.
    offset: see `LogisticRegression`.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows.expm import functional
  >>> model = functional.GRUD(num_features=7, num_steps=24, units=4)
  >>> parameters = tf.zeros([3, model.num_parameters])
  >>> model(parameters, tf.zeros([5, 24, 3, 7])).shape
  TensorShape([3, 5])
  """

  def __init__(
    self,
    num_features: int,
    num_steps: int,
    units: int,
    offset: float = 0.0,
  ):
    self.units = units
    shapes = grud_shapes(num_features, units)
    shapes.update(last_kernel=[units, 1], last_bias=[1])
    super().__init__(shapes, [num_steps, 3, num_features], offset)

  def logits(self, parameters: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    weights = self._split(parameters)
    x = tf.cast(x, weights['kernel'].dtype)[None]

    def product(x, kernel, bias=None):
      y = _products(x, weights[kernel])
      if bias is None:
        return y
      shape = [-1] + [1] * (y.shape.rank - 2) + [y.shape[-1]]
      return y + tf.reshape(weights[bias], shape)

    state = grud_states(x, product, lambda name: weights[name][:, None, None])
    return product(state, 'last_kernel', 'last_bias')[..., 0] + self.offset

  def keras_model(self, dropout: float = 0.0) -> keras.Model:
    return self._sequential([networks.GRUD(self.units)], dropout)


def _products(x, kernels):
  """Returns the products with N kernels.

  Args:
    x: `[N, ..., in]`; or `[1, ..., in]`, the same for all.
    kernels: `[N, in, out]`.

  Returns:
    `[N, ..., out]`.
  """
  size, outputs = kernels.shape[1:]
  between = tf.shape(x)[1:-1]
  if x.shape[0] == 1:
    # Of all kernels side by side.
    wide = tf.reshape(tf.transpose(kernels, [1, 0, 2]), [size, -1])
    y = tf.matmul(tf.reshape(x, [-1, size]), wide)
    y = tf.transpose(
      tf.reshape(y, [-1, tf.shape(kernels)[0], outputs]), [1, 0, 2]
    )
  else:
    y = tf.matmul(tf.reshape(x, [tf.shape(x)[0], -1, size]), kernels)
  y = tf.reshape(y, tf.concat([[-1], between, [outputs]], 0))
  return tf.ensure_shape(
    y, [kernels.shape[0], *x.shape[1:-1].as_list(), outputs]
  )
