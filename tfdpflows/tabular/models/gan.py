"""What the generative adversarial networks of tables have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tfdpflows import gradients
from tfdpflows._keras import keras
from tfdpflows.models.base import WeightAverage
from tfdpflows.randomness import Randomness
from tfdpflows.tabular.density import TableDistribution
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models.base import (
  TableModel,
  fraction,
  positive,
  whole,
  widths,
)
from tfdpflows.tabular.models.histogram import kept_edges

# Uniform numbers are kept from zero before logarithms.
_TINY = 2.0**-24
# Most that matching adds to a logit.
_MOST = 5.0
# Slope of the rectifiers below zero.
LEAK = 0.2


@dataclasses.dataclass(frozen=True)
class GANModel(TableModel):
  """A table model whose rows a `TableGenerator` makes from noise.

  Attributes:
    num_bins: largest number of bins of an ordered column.
    noise_units: how many normal numbers a row is made from.
    generator_units: width of each hidden layer of the generator.
    generator_learning_rate: of the generator's Adam.
    generator_batch_size: rows of a step of the generator.
    temperature: of the softmax whose gradient stands for that of a choice.
    marginal_weight: how many times the divergence from the released marginals
      counts in the loss of the generator.
    hidden_units: width of each hidden layer of what the generator is trained
      against.
    ema_momentum: of the average of the generator's weights over its steps.
  """

  has_density: ClassVar[bool] = False

  num_bins: int = whole(16, 2)
  noise_units: int = whole(32, 1)
  generator_units: tuple = widths((128,))
  generator_learning_rate: float = positive(1e-3)
  generator_batch_size: int = whole(512, 1)
  temperature: float = positive(1.0)
  marginal_weight: float = positive(10.0)
  hidden_units: tuple = widths((64,))
  ema_momentum: float = fraction(0.98)

  def make_distribution(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None = None,
  ) -> TableGenerator:
    """See `TableModel`."""
    return TableGenerator(
      columns,
      marginals,
      num_bins=self.num_bins,
      noise_units=self.noise_units,
      hidden_units=self.generator_units,
      seed=seed,
    )


class TableGenerator(TableDistribution):
  """A network that makes rows from noise: a bin of each column, then a value.

  The bins are unions of bins of the columns' private histograms
  (`histogram.kept_edges`). The network gives each column logits, relative to
  the released probabilities; its last layer is zero at first, so that training
  begins at independent columns with their private marginals. Within a bin,
  values have the distribution of the histogram.

  Discriminators see a row as indicators of its bins: for numbers too, so that
  a row that is drawn differs from a real one in nothing but which bins occur
  together.

  Args:
    columns: encoded columns, from `TableEncoder.columns`.
    marginals: see `TableModel.make_distribution`.
    num_bins: see `histogram.kept_edges`.
    noise_units: how many normal numbers a row is made from.
    hidden_units: width of each hidden layer.
    seed: for the initial weights, or `None`.

  Attributes:
    num_indicators: number of bins of all columns.
    network: the `Network` that training changes.
  """

  def __init__(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    *,
    num_bins: int,
    noise_units: int,
    hidden_units: Sequence[int],
    seed: int | None,
  ):
    super().__init__(columns, name='table_generator')
    inner, masses, fine = [], [], []
    for column, m in zip(columns, marginals):
      e, p = (np.array(m[k], np.float64) for k in ('edges', 'probabilities'))
      kept = kept_edges(column, p, num_bins)
      inner.append(e[kept])
      masses.append(np.add.reduceat(p, np.append(0, kept).astype(int)))
      inside = np.searchsorted(kept, np.arange(len(p)), side='right')
      fine.append((inside, p / masses[-1][inside], e[:-1], e[1:]))
    self._sizes = [len(m) for m in masses]
    self.num_indicators = sum(self._sizes)
    starts = np.cumsum([0, *self._sizes[:-1]])
    self._column = np.repeat(np.arange(len(columns)), self._sizes)
    # A bin ends where the next one begins; all numbers are in one.
    self._low = _float32([np.append(-np.inf, e) for e in inner])
    self._high = _float32([np.append(e, np.inf) for e in inner])
    self._log_masses = _float32([np.log(m) for m in masses])
    self._fine_sizes = [len(f[0]) for f in fine]
    self._fine_bin = np.concatenate([f[0] + s for f, s in zip(fine, starts)])
    self._fine_log_share = _float32([np.log(f[1]) for f in fine])
    self._fine_low = _float32([f[2] for f in fine])
    self._fine_high = _float32([f[3] for f in fine])
    self._noise_units = int(noise_units)
    self.network = Network(
      [noise_units, *hidden_units, self.num_indicators],
      np.random.default_rng(seed),
      last_scale=0.0,
    )

  def indicators(self, codes: tf.Tensor) -> tf.Tensor:
    """Returns the indicators `[n, num_indicators]` of codes `[n, d]`.

    They are NaN for a code that is.
    """
    x = tf.gather(codes, self._column, axis=1)
    is_in = tf.logical_and(x >= self._low, x < self._high)
    return tf.where(tf.math.is_nan(x), x, tf.cast(is_in, x.dtype))

  def make_rows(
    self,
    num_rows: tf.Tensor | int,
    random: tf.random.Generator,
    temperature: float = 1.0,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns indicators of rows that are drawn now, and probabilities.

    Indicators are 0 or 1, with the gradient of a softmax of Gumbel noise in
    their place (straight-through, Jang et al. 2017).

    Returns:
      Indicators `[num_rows, num_indicators]`, and the probabilities that they
      were drawn with.
    """
    # One call for all rows: whether more rows follow changes none of them.
    sizes = [self._noise_units, self.num_indicators]
    uniform = tf.clip_by_value(
      random.uniform([num_rows, sum(sizes)]), _TINY, 1 - _TINY
    )
    uniform, other = tf.split(uniform, sizes, axis=1)
    logits = self._logits(tf.math.ndtri(uniform))
    rows, probabilities = [], []
    for block, noise in zip(
      tf.split(logits, self._sizes, axis=1),
      tf.split(_gumbel(other), self._sizes, axis=1),
    ):
      probabilities.append(tf.nn.softmax(block))
      block += noise
      soft = tf.nn.softmax(block / temperature)
      hard = tf.one_hot(tf.argmax(block, 1), block.shape[1])
      rows.append(soft + tf.stop_gradient(hard - soft))
    return tf.concat(rows, 1), tf.concat(probabilities, 1)

  def marginal_error(self, probabilities: tf.Tensor) -> tf.Tensor:
    """Returns the divergence of the released marginals from the model's.

    Args:
      probabilities: from `make_rows`, whose means are the model's marginals.

    Returns:
      Sum over the columns of Kullback-Leibler divergences, in nats.
    """
    means = tf.reduce_mean(probabilities, 0)
    log_ratio = self._log_masses - tf.math.log(means + _TINY)
    return tf.reduce_sum(tf.exp(self._log_masses) * log_ratio)

  def match_marginals(
    self, seed: int, num_rows: int = 16_384, iterations: int = 20
  ) -> None:
    """Sets the marginals of the model to the released ones.

    One number per bin is added to the logits (iterative proportional fitting),
    computed from rows of the model alone.
    """
    noise = tf.random.stateless_normal([num_rows, self._noise_units], [seed, 0])
    logits = tf.split(self._logits(noise), self._sizes, axis=1)
    parts = []
    for block, wanted in zip(logits, tf.split(self._log_masses, self._sizes)):
      add = tf.zeros_like(wanted)
      for _ in range(iterations):
        mean = tf.reduce_mean(tf.nn.softmax(block + add), 0)
        add += wanted - tf.math.log(mean + _TINY)
      parts.append(tf.clip_by_value(add, -_MOST, _MOST))
    last = self.network.biases[-1]
    last.assign_add(tf.concat(parts, 0))

  def _logits(self, noise):
    return self.network(noise) + self._log_masses

  def _draw(
    self, shape: Sequence[int] | tf.Tensor, seed: tf.Tensor
  ) -> tf.Tensor:
    seeds = tf.random.experimental.stateless_split(seed, 3)
    rows = shape[0]
    noise = tf.random.stateless_normal([rows, self._noise_units], seeds[0])
    logits = [
      tf.nn.log_softmax(block)
      for block in tf.split(self._logits(noise), self._sizes, axis=1)
    ]
    logits = tf.gather(tf.concat(logits, 1), self._fine_bin, axis=1)
    logits += self._fine_log_share
    uniform = tf.random.stateless_uniform([rows, len(self._fine_bin)], seeds[1])
    chosen, start = [], 0
    uniform = tf.clip_by_value(uniform, _TINY, 1 - _TINY)
    for block in tf.split(logits + _gumbel(uniform), self._fine_sizes, axis=1):
      chosen.append(tf.argmax(block, 1) + start)
      start += block.shape[1]
    chosen = tf.stack(chosen, 1)
    low = tf.gather(tf.constant(self._fine_low), chosen)
    high = tf.gather(tf.constant(self._fine_high), chosen)
    place = tf.random.stateless_uniform([rows, len(self.columns)], seeds[2])
    # Rounding must not reach the next bin.
    last = tf.math.nextafter(high, low)
    return tf.minimum(low + place * (high - low), last)

  def saved_parts(self) -> dict[str, tf.Module]:
    """See `TableDistribution`."""
    return {'generator': self.network}


class GeneratorTraining(tf.Module):
  """Trains a `TableGenerator` against what tells its rows from real ones.

  Nothing here reads rows: a step is a function of the weights of its opponent,
  which must have been released.

  Attributes:
    random: the `tf.random.Generator` of all generated rows, for opponents too.
  """

  def __init__(
    self,
    generator: TableGenerator,
    settings: GANModel,
    randomness: Randomness,
  ):
    super().__init__(name='generator_training')
    self._generator = generator
    self._settings = settings
    self._weights = generator.network.trainable_variables
    self._optimizer = adam(settings.generator_learning_rate, self._weights)
    self._average = WeightAverage(self._weights, settings.ema_momentum)
    self._seed = int(randomness.numpy('matching').integers(2**31))
    self.random = randomness.tensorflow('generated rows')

  def step(self, opponent: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """Moves the weights, so that generated rows score higher.

    Args:
      opponent: gives scores `[n, 1]` of indicators `[n, num_indicators]`, high
        for what looks real.
    """
    settings = self._settings
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(self._weights)
      made, probabilities = self._generator.make_rows(
        settings.generator_batch_size, self.random, settings.temperature
      )
      loss = tf.reduce_mean(tf.nn.softplus(-opponent(made)))
      error = self._generator.marginal_error(probabilities)
      loss += settings.marginal_weight * error
    found = tape.gradient(loss, self._weights)
    self._optimizer.apply_gradients(zip(found, self._weights))
    self._average.update()

  def finish(self) -> None:
    """Puts averaged weights in place, and matches the marginals."""
    self._average.assign()
    self._generator.match_marginals(self._seed)


def adam(
  learning_rate: float, variables: list[tf.Variable]
) -> keras.optimizers.Optimizer:
  """Returns an Adam whose state exists, so that it can be restored."""
  optimizer = keras.optimizers.Adam(learning_rate, beta_1=0.5)
  optimizer.build(variables)
  return optimizer


class Network(tf.Module):
  """A network of dense layers, with leaky rectifiers between them.

  Args:
    sizes: of the input, the hidden layers and the output.
    rng: of the initial weights.
    last_scale: factor of the initial weights of the last layer.
  """

  def __init__(
    self,
    sizes: Sequence[int],
    rng: np.random.Generator,
    last_scale: float = 1.0,
    name: str = 'network',
  ):
    super().__init__(name=name)
    self.kernels, self.biases = [], []
    for i, (fan_in, fan_out) in enumerate(zip(sizes[:-1], sizes[1:])):
      std = np.sqrt(2 / fan_in) * (last_scale if i == len(sizes) - 2 else 1)
      kernel = rng.normal(size=[fan_in, fan_out]) * std
      self.kernels.append(tf.Variable(kernel, dtype=tf.float32))
      self.biases.append(tf.Variable(tf.zeros([fan_out])))

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    """Returns the output `[n, ..., out]` for `[n, ..., in]`."""
    for i, (kernel, bias) in enumerate(zip(self.kernels, self.biases)):
      x = tf.nn.leaky_relu(x, LEAK) if i else x
      x = gradients.linear(x, kernel, bias)
    return x


def _gumbel(uniform):
  return -tf.math.log(-tf.math.log(uniform))


def _float32(arrays):
  return np.concatenate(arrays).astype(np.float32)
