"""Networks that are trained side by side, each on its own shard of the rows."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows.tabular.models.gan import LEAK


class StackedNetworks(tf.Module):
  """Networks with one hidden layer, one beside the other.

  No operation mixes numbers of two networks, so that a loss that is a sum over
  them has, for each, the gradient of its own part.

  Args:
    count: number of networks.
    inputs: number of inputs of each.
    units: width of the hidden layer.
    rng: of the initial weights.
    name: of the module.

  Attributes:
    trained: the variables; the first axis of each are the networks.
  """

  def __init__(
    self,
    count: int,
    inputs: int,
    units: int,
    rng: np.random.Generator,
    name: str = 'stacked_networks',
  ):
    super().__init__(name=name)
    self.trained = []
    for fan_in, fan_out in ((inputs, units), (units, 1)):
      kernel = rng.normal(size=[count, fan_in, fan_out], scale=fan_in**-0.5)
      self.trained.append(tf.Variable(kernel, dtype=tf.float32))
      self.trained.append(tf.Variable(tf.zeros([count, 1, fan_out])))

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    """Returns scores `[count, n]` of `[count, n, inputs]`."""
    return _scores(self.trained, x)

  def scores_of(self, number: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the scores `[n]` that one network gives to `[n, inputs]`."""
    return _scores([tf.gather(v, number) for v in self.trained], x)


class Shards:
  """Codes in the order of their shards.

  Args:
    codes: `[n, d]`.
    shards: `[n]`, the shard of each row.
    count: number of shards.

  Attributes:
    codes: `[n, d]`, in the order of the shards.
    starts: `[count]`, where each shard begins.
    sizes: `[count]`, how many rows it has.
  """

  def __init__(self, codes: np.ndarray, shards: np.ndarray, count: int):
    sizes = np.bincount(shards, minlength=count)
    self.codes = tf.constant(codes[np.argsort(shards, kind='stable')])
    self.starts = tf.constant(np.cumsum(sizes) - sizes, tf.float64)
    self.sizes = tf.constant(sizes, tf.float64)


def batch_rows(
  uniform: tf.Tensor,
  starts: tf.Tensor,
  sizes: tf.Tensor,
  num_rows: tf.Tensor | int,
) -> tf.Tensor:
  """Returns rows of `Shards`, drawn with replacement from each shard.

  Args:
    uniform: float64 `[count, n]` in [0, 1): a draw of a shard depends on its
      own number and size.
    starts: `Shards.starts`.
    sizes: `Shards.sizes`.
    num_rows: of all shards; what is drawn from a shard without rows is some
      row, to be left out.

  Returns:
    int32 `[count, n]`.
  """
  inside = tf.floor(uniform * sizes[:, None])
  inside = tf.minimum(inside, tf.maximum(sizes - 1, 0)[:, None])
  rows = tf.cast(starts[:, None] + inside, tf.int32)
  return tf.minimum(rows, num_rows - 1)


def _scores(weights, x):
  kernel, bias, last_kernel, last_bias = weights
  x = tf.nn.leaky_relu(tf.matmul(x, kernel) + bias, LEAK)
  return (tf.matmul(x, last_kernel) + last_bias)[..., 0]
