"""The density of a table: private marginals, then a flow."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdpflows import bijectors, models
from tfdpflows._keras import tfp

tfb, tfd = tfp.bijectors, tfp.distributions

# Rows that one call of a compiled function works on.
_BATCH = 8192
# Points per cell over which a discrete row's density is averaged.
_DRAWS = 16


class TableDensity(tf.Module):
  """A density over encoded rows.

  A row of codes x stands for a product of cells and points (`TableEncoder`).
  `x -> z` by each column's private CDF, then a spline flow over z that starts
  at the standard normal: before training the columns are independent with
  their private marginals.

  Args:
    columns: encoded columns, from `TableEncoder.columns`.
    edges: bin edges per column.
    probabilities: private bin probabilities per column.
    latent: a distribution over z, `[d]`.
  """

  def __init__(
    self, columns, edges, probabilities, latent, name='table_density'
  ):
    super().__init__(name=name)
    self.marginal = bijectors.MarginalCDF(edges, probabilities)
    self.latent = latent
    self.distribution = tfd.TransformedDistribution(
      self.latent, tfb.Invert(self.marginal), name='table'
    )
    self._start = np.array([_interval(c)[0] for c in columns], np.float32)
    self._width = np.array([_interval(c)[1] for c in columns], np.float32)
    self._cell = np.array([c.cell for c in columns], np.float32)

  def dequantize(self, x, uniform):
    """Spreads codes evenly over what they stand for.

    Args:
      x: codes `[..., d]`.
      uniform: numbers in [0, 1), `[..., d]`.

    Returns:
      Points `[..., d]`, and the log-volume `[...]` of what they were drawn
      from.
    """
    in_interval = tf.logical_and(self._cell == 0, x >= self._start)
    spread = x + self._cell * uniform
    spread = tf.where(in_interval, self._start + self._width * uniform, spread)
    log_width = np.log(np.where(self._width > 0, self._width, 1))
    volume = tf.where(in_interval, log_width, tf.zeros_like(x))
    return spread, tf.reduce_sum(volume, -1)

  def sample(self, num_rows, rng):
    """Returns codes `[num_rows, d]`, drawn in compiled batches.

    Args:
      num_rows: number of rows.
      rng: `np.random.Generator`.
    """
    # Made at once, so that a table too large for memory fails at once.
    rows = np.empty([num_rows, len(self._cell)], np.float32)
    for start in range(0, num_rows, _BATCH):
      part = self._sample_batch(_seed(rng)).numpy()
      rows[start : start + _BATCH] = part[: num_rows - start]
    return rows

  @tf.function(autograph=False)
  def _sample_batch(self, seed):
    return self.distribution.sample(_BATCH, seed=seed)

  def log_prob(self, x, rng):
    """Returns the log of the mass (discrete) times density of rows.

    A discrete row's mass is the integral of the density over its cells. It is
    estimated from a few random points per row: the estimate of the mass is
    unbiased, its log a little low.

    Args:
      x: codes `[n, d]`.
      rng: `np.random.Generator`.
    """
    parts = []
    step = _BATCH // _DRAWS
    for start in range(0, len(x), step):
      part = x[start : start + step]
      padded = np.pad(part, ((0, step - len(part)), (0, 0)), 'edge')
      uniform = rng.random((_DRAWS,) + padded.shape, np.float32)
      result = self._log_prob_batch(tf.constant(padded), tf.constant(uniform))
      parts.append(result.numpy()[: len(part)])
    return np.concatenate(parts) if parts else np.zeros([0], np.float32)

  @tf.function(autograph=False)
  def _log_prob_batch(self, x, uniform):
    points, volume = self.dequantize(x[None], uniform)
    log_prob = self.distribution.log_prob(points) + volume
    return tf.reduce_logsumexp(log_prob, 0) - np.log(_DRAWS)

  def export(self, path):
    """Writes a SavedModel that needs no tfdpflows.

    Signatures: `log_prob`, of points `x` float32 `[n, d]` (codes plus a
    uniform number for discrete columns), and `sample`, of `num_rows` and a
    `seed` int32 `[2]`.
    """
    d = len(self._cell)

    @tf.function(
      autograph=False, input_signature=[tf.TensorSpec([None, d], name='x')]
    )
    def log_prob(x):
      return {'log_prob': self.distribution.log_prob(tf.identity(x))}

    @tf.function(
      autograph=False,
      input_signature=[
        tf.TensorSpec([], tf.int32, name='num_rows'),
        tf.TensorSpec([2], tf.int32, name='seed'),
      ],
    )
    def sample(num_rows, seed):
      rows = self.distribution.sample(tf.reshape(num_rows, [1]), seed=seed)
      return {'x': tf.ensure_shape(rows, [None, d])}

    module = tf.Module()
    module.variables_ = list(self.latent.trainable_variables)
    tf.saved_model.save(
      module, path, signatures={'log_prob': log_prob, 'sample': sample}
    )


class TableModel(models.DensityModel):
  """Trains the flow of a `TableDensity` on rows of codes.

  The loss is relative to the untrained model, which has the private marginals
  and independent columns: 0 at the start, negative where the flow has learned
  what columns say of each other, in nats per row.

  Args:
    density: a `TableDensity`.
    generator: `tf.random.Generator` of the dequantization.
    ema_momentum: see `DensityModel`.
  """

  def __init__(self, density, generator, ema_momentum):
    super().__init__(density.latent, ema_momentum=ema_momentum)
    self._density = density
    # As an attribute it has its state in every checkpoint.
    self._generator = generator

  def take_averages(self):
    """Puts the averaged weights in place, as the end of `fit` does."""
    self._average.assign()

  def _row_losses(self, x):
    uniform = self._generator.uniform(tf.shape(x))
    points, _ = self._density.dequantize(x, uniform)
    z = self._density.marginal.forward(points)
    independent = self.distribution.distribution.log_prob(z)
    return independent - self.log_prob(z)


def _seed(rng):
  """Returns a seed for TFP."""
  return tf.constant(rng.integers(-(2**31), 2**31, 2, dtype=np.int32))


def _interval(column):
  """Start and width of the interval of continuous missing values, if any."""
  if column.missing and not column.cell:
    return column.value_size, column.size - column.value_size
  return np.inf, 0
