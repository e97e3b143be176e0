"""What a fit leaves: a distribution of rows, and one that has a density."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfdpflows import _saved_model, bijectors, flows
from tfdpflows._keras import tfp
from tfdpflows._memory import release_graph_tensors
from tfdpflows._threads import map_ahead
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.ordered_codes import OrderedCodes

tfb, tfd = tfp.bijectors, tfp.distributions

# Rows that one call of a compiled function works on.
BATCH = 8192
# Points per cell over which a discrete row's density is averaged.
DRAWS = 16
# Where inequalities are to be met: how often rows are drawn at most, and
# batches by which the share of rows that meet them is estimated.
_MOST_DRAWS, _COUNTED = 100, 16


def cells(columns: Sequence[EncodedColumn]) -> list[int]:
  """Returns the number of cells of each encoded column, 0 for points."""
  return [round(c.size) if c.cell else 0 for c in columns]


class TableDistribution(tf.Module, abc.ABC):
  """A distribution over encoded rows, to draw from.

  Args:
    columns: encoded columns, from `TableEncoder.columns`.

  Attributes:
    columns: see above, as an array.
  """

  def __init__(self, columns: Sequence[EncodedColumn], name: str):
    super().__init__(name=name)
    # An array is what checkpoints do not look into.
    self.columns = np.empty(len(columns), object)
    self.columns[:] = list(columns)
    self._order = None

  def constrain(self, order: OrderedCodes) -> None:
    """Lets all rows meet some inequalities.

    What is drawn are rows of the model that do.
    """
    self._order = order if order.pairs else None

  def is_broken(self, x: np.ndarray) -> np.ndarray:
    """Returns which rows of codes `[n, d]` break an inequality, bool `[n]`."""
    if self._order is None:
      return np.zeros(len(x), bool)
    return self._order.broken(tf.constant(x)).numpy()

  def sample(self, num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """Returns codes `[num_rows, d]`, drawn in compiled batches."""
    # Made at once, so that a table too large for memory fails at once.
    rows = np.empty([num_rows, len(self.columns)], np.float32)
    start = 0
    for part in self.sample_blocks(num_rows, rng):
      rows[start : start + len(part)] = part
      start += len(part)
    return rows

  def sample_blocks(
    self, num_rows: int, rng: np.random.Generator
  ) -> Iterator[np.ndarray]:
    """Yields the codes that `sample` returns, some rows at a time.

    The next ones are drawn while the caller works on these.
    """
    count = -(-num_rows // BATCH)
    if count:
      # Traced in this thread; the others only run it.
      self._sample_batch.get_concrete_function(tf.TensorSpec([2], tf.int32))

    def draw(seed):
      return self._sample_batch(tf.constant(seed)).numpy()

    seeds = (
      rng.integers(-(2**31), 2**31, 2, dtype=np.int32) for _ in range(count)
    )
    # One batch alone leaves processors idle between operations.
    for number, rows in enumerate(map_ahead(draw, seeds)):
      yield rows[: num_rows - number * BATCH]
    release_graph_tensors()

  @tf.function(autograph=False)
  def _sample_batch(self, seed):
    return self.draw([BATCH], seed)

  def draw(
    self, shape: Sequence[int] | tf.Tensor, seed: tf.Tensor
  ) -> tf.Tensor:
    """Returns codes `shape + [d]`, for a shape `[num_rows]`."""
    if self._order is None:
      return self._draw(shape, seed)
    wanted = tf.convert_to_tensor(shape)[0]

    most = _MOST_DRAWS * (1 + wanted // BATCH)

    def more(number, rows):
      return (tf.shape(rows)[0] < wanted) & (number < most)

    def add(number, rows):
      # The first rows are those that are drawn where nothing is to be met.
      other = tf.random.experimental.stateless_fold_in(seed, number)
      # As many at once however few are wanted: the same rows come first.
      new = self._draw([BATCH], tf.where(number > 0, other, seed))
      new = tf.boolean_mask(new, ~self._order.broken(new))
      return number + 1, tf.concat([rows, new], 0)

    d = len(self.columns)
    _, rows = tf.while_loop(
      more,
      add,
      [tf.constant(0), tf.zeros([0, d])],
      shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, d])],
    )
    check = tf.debugging.Assert(
      tf.shape(rows)[0] >= wanted,
      [
        'The model has too few rows that meet the inequalities of the schema '
        f'to draw, in {_MOST_DRAWS} times as many:',
        tf.shape(rows)[0],
      ],
    )
    with tf.control_dependencies([check]):
      rows = rows[:wanted]
    return tf.reshape(rows, tf.concat([shape, [d]], 0))

  @abc.abstractmethod
  def _draw(
    self, shape: Sequence[int] | tf.Tensor, seed: tf.Tensor
  ) -> tf.Tensor:
    """Returns `draw`, of rows that need not meet inequalities."""

  def learned(self) -> list[dict]:
    """Returns what `TableModel.make_distribution` is to know of each column.

    Beside its histogram, of a distribution that was learned; released numbers.
    """
    return [{} for _ in self.columns]

  @abc.abstractmethod
  def saved_parts(self) -> dict[str, tf.Module]:
    """Returns what holds the weights, by its name in the saved model."""

  def export(self, path: str) -> None:
    """Writes a SavedModel that needs no tfdpflows.

    It has the signature `sample`, of `num_rows` and a `seed` int32 `[2]`, which
    gives codes `x` float32 `[num_rows, d]`, and those of `_signatures`.
    """
    d = len(self.columns)

    @tf.function(
      autograph=False,
      input_signature=[
        tf.TensorSpec([], tf.int32, name='num_rows'),
        tf.TensorSpec([2], tf.int32, name='seed'),
      ],
    )
    def sample(num_rows, seed):
      rows = self.draw(tf.reshape(num_rows, [1]), seed)
      return {'x': tf.ensure_shape(rows, [None, d])}

    module = tf.Module()
    module.variables_ = self.exported_variables()
    _saved_model.write(module, path, {**self._signatures(), 'sample': sample})

  def exported_variables(self) -> list[tf.Variable]:
    """Returns the variables that graphs of this distribution read."""
    return [v for part in self.saved_parts().values() for v in part.variables]

  def _signatures(self):
    return {}


class TableDensity(TableDistribution):
  """A density over encoded rows.

  A row of codes stands for a product of cells and points (`TableEncoder`); the
  dequantization places points in the cells. Each column's private CDF maps a
  point x to its normal score z, which has the density `latent`, a flow that
  starts at the standard normal: before training the columns are independent
  with their private marginals.

  Args:
    columns: encoded columns, from `TableEncoder.columns`.
    marginals: see `TableModel.make_distribution`.
    latent: a distribution over z, `[d]`.
    dequantization: a `VariationalDequantization` of the `cells` of
      the columns; uniform by default.
  """

  def __init__(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    latent: tfd.TransformedDistribution,
    dequantization: flows.dequantization.UniformDequantization | None = None,
  ):
    super().__init__(columns, name='table_density')
    self.marginal = bijectors.MarginalCDF(
      [m['edges'] for m in marginals], [m['probabilities'] for m in marginals]
    )
    self.latent = latent
    self.distribution = tfd.TransformedDistribution(
      self.latent, tfb.Invert(self.marginal), name='table'
    )
    intervals = np.array([_missing_interval(c) for c in columns], np.float32)
    self._start, self._width = intervals.T
    self._cell = np.array([c.cell for c in columns], np.float32)
    if dequantization is None:
      dequantization = flows.dequantization.UniformDequantization(
        cells(columns)
      )
    self.dequantization = dequantization
    self._log_normalizer = None

  def histograms(self) -> list[dict]:
    """Returns `edges` and `probabilities` of each column, as given."""
    given = self.marginal.parameters
    return [
      {'edges': e, 'probabilities': p}
      for e, p in zip(given['edges'], given['probabilities'])
    ]

  @property
  def trained(self) -> list[tf.Variable]:
    """The variables that training changes, as a list."""
    placing = self.dequantization.trainable_variables
    return [*self.latent.trainable_variables, *placing]

  def dequantize(
    self, x: tf.Tensor, uniform: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Places points in the cells of codes.

    Args:
      x: codes `[..., d]`.
      uniform: numbers in [0, 1), `[..., d]`, as many as there are points.

    Returns:
      Points `[..., d]`; the log-volume `[...]` of the cells that they were
      drawn from; and their log-density `[...]` relative to the uniform one.
    """
    in_interval = self._in_interval(x)
    u, log_q = self.dequantization(x, uniform)
    # Rounding must not reach the next cell.
    spread = tf.minimum(x + u, tf.math.nextafter(x + 1, x))
    # Nor may the largest value be taken for a missing one, where it ends.
    spread = tf.minimum(spread, np.nextafter(self._start, np.float32(0)))
    spread = tf.where(in_interval, self._start + self._width * uniform, spread)
    return spread, self.volume(x), log_q

  def volume(self, x: tf.Tensor) -> tf.Tensor:
    """Returns the log-volumes `[...]` of the cells of codes `[..., d]`."""
    log_width = np.log(np.where(self._width > 0, self._width, 1))
    volume = tf.where(self._in_interval(x), log_width, tf.zeros_like(x))
    return tf.reduce_sum(volume, -1)

  def _in_interval(self, x):
    """Whether codes are missing values that have an interval."""
    return tf.logical_and(self._cell == 0, x > self._start + self._width / 4)

  def gains(self, points: tf.Tensor) -> tf.Tensor:
    """Returns log-densities relative to independent columns, in nats `[n]`.

    Args:
      points: from `dequantize`, `[n, d]`.
    """
    # The marginals and the volume cancel.
    z = self.marginal.forward(points)
    independent = self.latent.distribution.log_prob(z)
    return self.latent.log_prob(tf.identity(z)) - independent

  def training_rows(self, codes: np.ndarray) -> np.ndarray:
    """Returns what `row_losses` takes of codes `[n, d]`, float32 `[n, d]`."""
    return codes

  def row_losses(self, rows: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Returns upper bounds `[n]` of the negative `gains` of rows.

    Args:
      rows: some of `training_rows`.
      uniform: numbers in [0, 1), `[n, d]`.
    """
    points, _, log_q = self.dequantize(rows, uniform)
    return log_q - self.gains(points)

  def _draw(
    self, shape: Sequence[int] | tf.Tensor, seed: tf.Tensor
  ) -> tf.Tensor:
    return self.distribution.sample(shape, seed=seed)

  @property
  def log_normalizer(self) -> float:
    """The log of the share of the rows of `_draw` that `draw` keeps.

    It is estimated from 131,072 rows, the same ones at each call; 0 where there
    is nothing to meet.
    """
    if self._order is None:
      return 0.0
    if self._log_normalizer is None:
      with tf.init_scope():
        shares = [
          self._share(tf.constant([number, 0])).numpy()
          for number in range(_COUNTED)
        ]
      self._log_normalizer = float(np.log(max(np.mean(shares), 1e-9)))
    return self._log_normalizer

  @tf.function(autograph=False)
  def _share(self, seed):
    met = ~self._order.broken(self._draw([BATCH], seed))
    return tf.reduce_mean(tf.cast(met, tf.float64))

  def log_correction(self, x: tf.Tensor) -> tf.Tensor:
    """Returns what inequalities add to log-densities of codes `[n, d]`.

    Returns:
      float32 `[n]`, -inf for rows that break one.
    """
    if self._order is None:
      return tf.zeros(tf.shape(x)[:1])
    met = tf.fill(tf.shape(x)[:1], -self.log_normalizer)
    return tf.where(self._order.broken(x, rounded=True), -np.inf, met)

  def log_within(
    self, x: tf.Tensor, scores: tf.Tensor | None = None
  ) -> tf.Tensor:
    """Returns log-densities of values within bins, relative to `distribution`.

    Args:
      x: codes `[..., d]`.
      scores: their normal scores, where the codes were computed from these.

    Returns:
      float32 `[...]`.
    """
    del scores
    return tf.zeros(tf.shape(x)[:-1])

  def saved_parts(self) -> dict[str, tf.Module]:
    """See `TableDistribution`."""
    parts = {'flow': self.latent}
    if self.dequantization.variables:
      parts['dequantization'] = self.dequantization
    return parts

  def log_prob(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns the log of the mass (discrete) times density of codes `[n, d]`.

    A discrete row's mass is the integral of the density over its cells. It is
    estimated without bias from 16 points per row, by importance sampling; its
    log is a lower bound in expectation (Burda et al. 2016).
    """
    parts = []
    step = BATCH // DRAWS
    for start in range(0, len(x), step):
      part = x[start : start + step]
      padded = np.pad(part, ((0, step - len(part)), (0, 0)), 'edge')
      uniform = rng.random((DRAWS,) + padded.shape, np.float32)
      result = self._log_prob_batch(tf.constant(padded), tf.constant(uniform))
      parts.append(result.numpy()[: len(part)])
    release_graph_tensors()
    return np.concatenate(parts) if parts else np.zeros([0], np.float32)

  @tf.function(autograph=False)
  def _log_prob_batch(self, x, uniform):
    return self.estimate_log_prob(x, uniform)

  def estimate_log_prob(self, x: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Returns estimates `[n]` of the log-masses of codes `[n, d]`.

    Args:
      x: codes.
      uniform: numbers in [0, 1), `[draws, n, d]`.
    """
    points, volume, log_q = self.dequantize(x[None], uniform)
    log_prob = self.distribution.log_prob(points) + volume - log_q
    found = tf.reduce_logsumexp(log_prob, 0) - np.log(DRAWS)
    return found + self.log_correction(x)

  def exported_variables(self) -> list[tf.Variable]:
    """See `TableDistribution`."""
    return [*self.trained, *self.latent.non_trainable_variables]

  def _signatures(self):
    """`log_prob` of points `x` float32 `[n, d]`: codes, plus a uniform number
    for discrete columns.
    """

    @tf.function(
      autograph=False,
      input_signature=[tf.TensorSpec([None, len(self.columns)], name='x')],
    )
    def log_prob(x):
      found = self.distribution.log_prob(tf.identity(x))
      return {'log_prob': found + self.log_correction(x)}

    return {'log_prob': log_prob}


def _missing_interval(column):
  """Start and width of the interval of continuous missing values, if any."""
  if column.missing and not column.cell:
    return column.value_size, column.size - column.value_size
  return np.inf, 0
