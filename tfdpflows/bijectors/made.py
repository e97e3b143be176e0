"""MADE: a network whose output i depends on inputs before i alone."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows import gradients


class MADE(tf.Module):
  """Masked autoencoder for distribution estimation (Germain et al. 2015).

  Hidden units carry degrees 1..event_size-1 in ascending order; a weight is
  kept where the degree of its input does not exceed that of its output (is
  less, in the last layer). The masks are multiplied in the forward pass, so
  that a masked weight never has a gradient: with DP-SGD, gradient on weights
  that do nothing would use up the clipping norm. The last layer starts at
  zero, which makes the identity of every transform in this package.

  One network can serve several blocks of a flow (`num_conditions`), as in
  DP-HFlow: it is told the number of the block by an embedding of it, a vector
  added in the first layer. With DP-SGD fewer parameters are less noise.

  Args:
    params: number of outputs per input column.
    event_size: number of columns d.
    hidden_units: width of each hidden layer.
    activation: name of a function in `tf.nn`.
    dtype: of the variables.
    seed: for the initial weights, or `None`.
    num_conditions: number of blocks that share the network; each takes
      `conditioned(block)` in its place.

  Raises:
    ValueError: for sizes that are not positive.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import bijectors
  >>> made = bijectors.MADE(params=2, event_size=3, hidden_units=[16])
  >>> made(tf.zeros([5, 3])).shape
  TensorShape([5, 3, 2])
  """

  def __init__(
    self,
    params,
    event_size,
    hidden_units=(100, 100),
    activation='relu',
    dtype=tf.float32,
    seed=None,
    num_conditions=1,
    name='made',
  ):
    super().__init__(name=name)
    if min([params, event_size, num_conditions, *hidden_units]) < 1:
      raise ValueError(
        f'params={params}, event_size={event_size}, num_conditions='
        f'{num_conditions} and hidden_units={list(hidden_units)} must all be '
        'at least 1.'
      )
    self.params = int(params)
    self.event_size = int(event_size)
    self.hidden_units = tuple(int(h) for h in hidden_units)
    self._activation = getattr(tf.nn, activation)
    rng = np.random.default_rng(seed)
    dtype = tf.as_dtype(dtype)
    masks = self._masks()
    self._kernels, self._biases, self._masks = [], [], []
    for i, mask in enumerate(masks):
      last = i == len(masks) - 1
      # He's scale, for the inputs that the mask leaves to each unit.
      std = 0 if last else np.sqrt(2 / np.maximum(mask.sum(0), 1))
      kernel = mask * rng.normal(size=mask.shape) * std
      self._kernels.append(tf.Variable(kernel, dtype=dtype, name=f'kernel_{i}'))
      # In the first layer each condition has one of its own, made below.
      if i or num_conditions == 1:
        self._biases.append(
          tf.Variable(tf.zeros([mask.shape[1]], dtype), name=f'bias_{i}')
        )
      with tf.init_scope():
        self._masks.append(tf.constant(mask, dtype))
    # Conditions that start alike would be slow to part.
    self._first_biases = self._biases[:1]
    if num_conditions > 1:
      std = 1.0 if hidden_units else 0.0
      values = rng.normal(size=[num_conditions, masks[0].shape[1]]) * std
      self._first_biases = [
        tf.Variable(value, dtype=dtype, name=f'embedding_{i}')
        for i, value in enumerate(values)
      ]

  def _degrees(self, units):
    """Degrees 1..d-1 in ascending order, spread evenly over the units."""
    return np.sort(np.arange(units) % max(self.event_size - 1, 1)) + 1

  def _masks(self):
    columns = np.arange(1, self.event_size + 1)
    degrees = [columns] + [self._degrees(h) for h in self.hidden_units]
    masks = [a[:, None] <= b for a, b in zip(degrees[:-1], degrees[1:])]
    last = degrees[-1][:, None] < columns
    return masks + [np.repeat(last, self.params, 1)]

  def conditioned(self, number):
    """Returns the network as block `number` of `num_conditions` has it."""
    if not 0 <= number < len(self._first_biases):
      raise ValueError(
        f'There is no condition {number}; the network has '
        f'{len(self._first_biases)}.'
      )
    return _Conditioned(self, number)

  def _bias(self, layer, condition):
    if layer == 0:
      return self._first_biases[condition]
    return self._biases[layer - len(self._kernels)]  # From the end.

  def __call__(self, x, condition=0):
    """Returns the parameters of every column.

    Args:
      x: `[..., event_size]`.
      condition: number of the block that asks; see `conditioned`.

    Returns:
      `[..., event_size, params]`.
    """
    h = x[None] if x.shape.rank == 1 else x
    last = len(self._kernels) - 1
    for i in range(last + 1):
      bias = self._bias(i, condition)
      h = gradients.linear(h, self._kernels[i], bias, self._masks[i])
      if i < last:
        h = self._activation(h)
    shape = tf.concat([tf.shape(x), [self.params]], 0)
    y = tf.reshape(h, shape)
    return tf.ensure_shape(y, x.shape + [self.params])

  def columns(self, condition=0):
    """Evaluates the network column by column, at the cost of one pass.

    Yields, for each column j in turn, a function from the columns before it
    (a list of j tensors `[n]`) to its parameters `[n, params]`. Since degrees
    ascend, the units that column j adds are one slice of every layer, and all
    others are known already: sampling d columns costs one network pass and
    not d. The functions must be called in order.
    """
    starts = [0] * len(self.hidden_units)
    known = [[] for _ in self.hidden_units]
    for j in range(self.event_size):
      ends = [
        int(np.searchsorted(self._degrees(h), j, side='right'))
        for h in self.hidden_units
      ]
      yield lambda x, j=j, s=tuple(starts), e=tuple(ends): self._column(
        x, j, s, e, known, condition
      )
      starts = ends

  def _column(self, x, j, starts, ends, known, condition):
    """Adds the hidden units of degree j, returns the parameters of column j."""
    h = x
    for layer, (start, end) in enumerate(zip(starts, ends)):
      if end > start:
        rows = len(h) if layer == 0 else ends[layer - 1]
        kernel = self._kernels[layer][:rows, start:end]
        inputs = tf.stack(h, 1) if layer == 0 else tf.concat(h, 1)
        bias = self._bias(layer, condition)[start:end]
        z = tf.matmul(inputs, kernel) + bias
        known[layer].append(self._activation(z))
      h = known[layer]
    out = slice(j * self.params, (j + 1) * self.params)
    bias = self._bias(len(self._kernels) - 1, condition)[out]
    if self.hidden_units and not h:
      return bias  # Column 0 depends on nothing.
    if not self.hidden_units:
      if not x:
        return bias
      h = [tf.stack(x, 1)]
    rows = ends[-1] if self.hidden_units else len(x)
    return tf.matmul(tf.concat(h, 1), self._kernels[-1][:rows, out]) + bias


class _Conditioned(tf.Module):
  """A `MADE` as one of the blocks that share it has it."""

  def __init__(self, network, number):
    super().__init__(name=f'{network.name}_{number}')
    self._network, self._number = network, number
    self.params, self.event_size = network.params, network.event_size

  def __call__(self, x):
    return self._network(x, self._number)

  def columns(self):
    return self._network.columns(self._number)
