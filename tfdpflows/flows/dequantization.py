"""Densities of codes by dequantization.

A code k stands for the cell [k, k + 1), and a density p over points gives it
the mass `P(k) = int_0^1 p(k + u) du`. With u drawn from any density q(u | k),

    log P(k) >= E_q[log p(k + u) - log q(u | k)]   (Jensen's inequality),

with equality where q is proportional to p in the cell, and the mean of
`p(k + u) / q(u | k)` is P(k) itself, without bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdpflows import gradients
from tfdpflows._checks import check_integer
from tfdpflows._keras import tfp
from tfdpflows.bijectors.logistic_mixture import LogisticMixtureCDF
from tfdpflows.randomness import Randomness

tfd = tfp.distributions


class UniformDequantization(tf.Module):
  """Draws u uniformly in [0, 1).

  Args:
    sizes: for each column the number of its cells, or 0 for a column of points,
      where u is 0.
    dtype: of codes and points.

  Raises:
    ValueError: naming the column, for a size that is no whole number.

  #### Example

  >>> from tfdpflows.flows.dequantization import UniformDequantization
  >>> dequantization = UniformDequantization([3, 0])
  >>> u, log_q = dequantization([[2., 7.5]], [[.25, .25]])
  >>> u.numpy().tolist(), log_q.numpy().tolist()
  ([[0.25, 0.0]], [0.0])
  """

  def __init__(
    self,
    sizes: Sequence[int],
    dtype: tf.DType | str = tf.float32,
    name: str = 'uniform_dequantization',
  ):
    super().__init__(name=name)
    self.sizes = _checked(sizes)
    self.dtype = tf.as_dtype(dtype)
    self._cell = (self.sizes > 0).astype(self.dtype.as_numpy_dtype)

  def __call__(self, x, uniform):
    """Returns u `[..., d]` and log q(u | x) `[...]`.

    Args:
      x: codes `[..., d]`; they begin at 0.
      uniform: random numbers, uniform in [0, 1), `[..., d]`; x broadcasts to
        their shape.
    """
    u = tf.convert_to_tensor(uniform, self.dtype) * self._cell
    return u, tf.zeros_like(u[..., 0])


class VariationalDequantization(UniformDequantization):
  """Draws u given the row, by a flow that is trained with the density.

  Ho et al. 2019, "Flow++", section 3.1: logistic noise goes through coupling
  layers that are conditioned on the row, each the logit of the CDF of a mixture
  of logistic distributions (`LogisticMixtureCDF`), and through a sigmoid. A
  layer transforms every second one of the columns that have cells, by a network
  of the codes of the row and of the other columns' u. With logistic noise
  (theirs is normal) q is initially uniform: the last layers are zero.

  The input of the networks for a code is one of at most `max_features`
  indicators, which adjacent cells share where there are more.

  Args:
    sizes: see `UniformDequantization`.
    hidden_units: width of each hidden layer of a network.
    num_components: components of each mixture.
    num_layers: coupling layers.
    max_features: most indicators per column.
    dtype: of codes, points and variables.
    seed: for the initial weights, or `None`.

  Raises:
    ValueError: if no column has cells; for sizes that are not positive.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows.flows.dequantization import VariationalDequantization
  >>> dequantization = VariationalDequantization([3, 0, 2], seed=0)
  >>> x = tf.constant([[2., 7.5, 1.]])
  >>> u, log_q = dequantization(x, [[.25, .5, .75]])
  >>> u.numpy().round(5).tolist(), abs(log_q.numpy().round(5)).tolist()
  ([[0.25, 0.0, 0.75]], [0.0])
  """

  def __init__(
    self,
    sizes: Sequence[int],
    hidden_units: Sequence[int] = (32,),
    num_components: int = 4,
    num_layers: int = 2,
    max_features: int = 16,
    dtype: tf.DType | str = tf.float32,
    seed: int | None = None,
    name: str = 'variational_dequantization',
  ):
    super().__init__(sizes, dtype, name)
    if min([num_components, num_layers, max_features, *hidden_units]) < 1:
      raise ValueError(
        f'num_components={num_components}, num_layers={num_layers}, '
        f'max_features={max_features} and hidden_units={list(hidden_units)} '
        'must all be at least 1.'
      )
    self._columns = np.flatnonzero(self.sizes)
    if not self._columns.size:
      raise ValueError(
        f'sizes={self.sizes.tolist()}: no column has cells, so that there is '
        'nothing to dequantize.'
      )
    self._num_components = int(num_components)
    cells = self.sizes[self._columns]
    self._features = np.minimum(cells, max_features)
    self._per_cell = (self._features / cells).astype(np.float64)
    rng = np.random.default_rng(seed)
    self._networks = []
    for layer in range(num_layers):
      moved, kept, _ = self._halves(layer)
      if not moved.size:
        continue  # The second layer of a single column.
      network = _Dense(
        [self._features.sum() + kept.size, *hidden_units],
        moved.size * LogisticMixtureCDF.num_params(self._num_components),
        self.dtype,
        rng,
        name=f'coupling_{layer}',
      )
      self._networks.append(network)

  def _halves(self, layer):
    """Returns which columns a layer moves and keeps, and the inverse order."""
    order = np.arange(self._columns.size)
    moved = order[layer % 2 :: 2]
    kept = np.setdiff1d(order, moved)
    return moved, kept, np.argsort(np.concatenate([moved, kept]))

  def __call__(self, x, uniform):
    uniform = tf.convert_to_tensor(uniform, self.dtype)
    x = tf.broadcast_to(tf.cast(x, self.dtype), tf.shape(uniform))
    x = tf.ensure_shape(x, uniform.shape)
    codes = self._encode(tf.gather(x, self._columns, axis=-1))
    v, log_q = _logistic(tf.gather(uniform, self._columns, axis=-1))
    for layer, network in enumerate(self._networks):
      moved, kept, back = self._halves(layer)
      chosen, rest = tf.gather(v, moved, axis=-1), tf.gather(v, kept, axis=-1)
      params = network(tf.concat([codes, 2 * tf.sigmoid(rest) - 1], -1))
      transform = self._transform(params, chosen)
      log_det = transform.forward_log_det_jacobian(chosen, event_ndims=0)
      log_q -= tf.reduce_sum(log_det, -1)
      v = tf.concat([transform.forward(chosen), rest], -1)
      v = tf.gather(v, back, axis=-1)
    log_slope = tf.math.log_sigmoid(v) + tf.math.log_sigmoid(-v)
    log_q -= tf.reduce_sum(log_slope, -1)
    # Columns of points take the zero behind the others.
    u = tf.concat([tf.sigmoid(v), tf.zeros_like(v[..., :1])], -1)
    place = np.full(self.sizes.size, self._columns.size)
    place[self._columns] = np.arange(self._columns.size)
    return tf.gather(u, place, axis=-1), log_q

  def _transform(self, params, x):
    size = LogisticMixtureCDF.num_params(self._num_components)
    params = tf.reshape(params, tf.concat([tf.shape(x), [size]], 0))
    params = tf.ensure_shape(params, x.shape + [size])
    return LogisticMixtureCDF(params, logit=True)

  def _encode(self, codes):
    """Returns the indicators of codes, side by side."""
    place = tf.floor(codes * self._per_cell.astype(self.dtype.as_numpy_dtype))
    top = tf.constant(self._features - 1, self.dtype)
    place = tf.clip_by_value(place, 0, top)
    return tf.concat(
      [
        tf.one_hot(tf.cast(place[..., j], tf.int32), int(n), dtype=self.dtype)
        for j, n in enumerate(self._features)
      ],
      -1,
    )


class Dequantized(tfd.Distribution):
  """The distribution of codes whose cells have a density over points.

  `log_prob` is a random estimate: the logarithm of the mean of
  `p(x + u) / q(u | x)` over `num_importance_samples` draws of u. The mean is an
  unbiased estimate of the mass of the row, so that its logarithm is, in
  expectation, a lower bound of the log-probability: the evidence lower bound
  for one draw, the importance weighted one (Burda et al. 2016), which is
  tighter, for more. Variables of the dequantization are trained with those of
  the density, and a conditional input is passed on to it. Train with one draw,
  and `augmentation_multiplicity` of the optimizer for a mean over several.

  Args:
    distribution: a `tfd.Distribution` over points `[d]`.
    dequantization: a `UniformDequantization`, or a
      `VariationalDequantization`.
    num_importance_samples: draws of u per row.
    seed: of these draws, for tests; secret by default.

  Raises:
    ValueError: if the numbers of columns differ, or
      `num_importance_samples` is not a positive integer.

  #### Example

  >>> import tensorflow as tf
  >>> from tfdpflows import flows
  >>> flow = flows.dp_hflow([2, 5], num_blocks=1)
  >>> round(float(flow.log_prob([1., 3.])), 3)  # log(1 / 10)
  -2.303
  """

  def __init__(
    self,
    distribution: tfd.Distribution,
    dequantization: UniformDequantization,
    num_importance_samples: int = 1,
    seed: int | None = None,
    validate_args: bool = False,
    allow_nan_stats: bool = True,
    name: str = 'dequantized',
  ):
    parameters = dict(locals())
    size = dequantization.sizes.size
    if distribution.event_shape.as_list() != [size]:
      raise ValueError(
        f'The distribution has event shape {distribution.event_shape}, the '
        f'dequantization {size} columns.'
      )
    self.points = distribution
    self.dequantization = dequantization
    self.num_importance_samples = check_integer(
      'num_importance_samples', num_importance_samples
    )
    # An attribute, so that checkpoints keep its state.
    self._generator = Randomness(seed).tensorflow('dequantization')
    super().__init__(
      dtype=distribution.dtype,
      reparameterization_type=tfd.NOT_REPARAMETERIZED,
      validate_args=validate_args,
      allow_nan_stats=allow_nan_stats,
      parameters=parameters,
      name=name,
    )

  @classmethod
  def _parameter_properties(cls, dtype, num_classes=None):
    return {}

  def _batch_shape(self):
    return tf.TensorShape([])

  def _batch_shape_tensor(self):
    return tf.constant([], tf.int32)

  def _event_shape(self):
    return self.points.event_shape

  def _event_shape_tensor(self):
    return self.points.event_shape_tensor()

  def _log_prob(self, x, **kwargs):
    if self.num_importance_samples == 1:
      return self._draw(x, **kwargs)
    # Axis 0 must be the examples, for per-example gradients.
    shape = tf.concat(
      [tf.shape(x)[:-1], [self.num_importance_samples], tf.shape(x)[-1:]], 0
    )
    of_draws = {key: _for_draws(c) for key, c in kwargs.items()}
    found = self._draw(tf.broadcast_to(x[..., None, :], shape), **of_draws)
    return tf.reduce_logsumexp(found, -1) - np.log(self.num_importance_samples)

  def _draw(self, x, **kwargs):
    uniform = self._generator.uniform(tf.shape(x), dtype=self.dtype)
    u, log_q = self.dequantization(x, tf.ensure_shape(uniform, x.shape))
    return self.points.log_prob(x + u, **kwargs) - log_q

  def _call_sample_n(self, sample_shape, seed, **kwargs):
    # Not `_sample_n`, whose rows are all on one axis: a conditional input is
    # broadcast to `sample_shape`.
    points = self.points.sample(sample_shape, seed=seed, **kwargs)
    sizes = self.dequantization.sizes
    top = np.maximum(sizes - 1, 0).astype(self.dtype.as_numpy_dtype)
    codes = tf.clip_by_value(tf.floor(points), 0, top)
    return tf.where(sizes > 0, codes, points)


def _for_draws(c):
  """Returns a conditional input for rows that are repeated."""
  c = tf.convert_to_tensor(c)
  return c if c.shape.rank == 1 else c[..., None, :]


def _logistic(uniform):
  """Returns logistic noise from uniform numbers, and its joint log-density."""
  tiny = 2.0**-24
  uniform = tf.clip_by_value(uniform, tiny, 1 - tiny)
  v = tf.math.log(uniform) - tf.math.log1p(-uniform)
  log_q = tf.math.log(uniform) + tf.math.log1p(-uniform)
  return v, tf.reduce_sum(log_q, -1)


class _Dense(tf.Module):
  """A network of dense layers; the last one is initialised with zeros."""

  def __init__(self, sizes, outputs, dtype, rng, name):
    super().__init__(name=name)
    self._kernels, self._biases = [], []
    sizes = [*sizes, outputs]
    for i, (fan_in, fan_out) in enumerate(zip(sizes[:-1], sizes[1:])):
      last = i == len(sizes) - 2
      std = 0 if last else np.sqrt(2 / fan_in)
      kernel = rng.normal(size=[fan_in, fan_out]) * std
      self._kernels.append(tf.Variable(kernel, dtype=dtype, name=f'kernel_{i}'))
      self._biases.append(
        tf.Variable(tf.zeros([fan_out], dtype), name=f'bias_{i}')
      )

  def __call__(self, x):
    h = x[None] if x.shape.rank == 1 else x
    for i, (kernel, bias) in enumerate(zip(self._kernels, self._biases)):
      h = gradients.linear(tf.nn.relu(h) if i else h, kernel, bias)
    return h[0] if x.shape.rank == 1 else h


def _checked(sizes):
  found = [0 if size is None else size for size in sizes]
  for j, size in enumerate(found):
    if size != int(size) or size < 0:
      raise ValueError(
        f'Column {j} has {size} cells; give a whole number, 0 for a column of '
        'points.'
      )
  if not found:
    raise ValueError('sizes is empty; give the number of cells per column.')
  return np.array(found, np.int64)
