"""Table models that are flows over the columns' normal scores."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import tensorflow as tf

from tfdpflows import flows, models, sampling
from tfdpflows._autograph import unconverted
from tfdpflows._keras import tfp
from tfdpflows.tabular.density import TableDensity, cells
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models import dp_sgd
from tfdpflows.tabular.models.base import choice, positive, whole, widths
from tfdpflows.training.step_noise import StepStream

if TYPE_CHECKING:
  from tfdpflows.stored_rows import StoredRows
  from tfdpflows.tabular.fitting import Spending
  from tfdpflows.tabular.work_directory import WorkDirectory
  from tfdpflows.training.plan import TrainingPlan


@dataclasses.dataclass(frozen=True)
class FlowModel(dp_sgd.DPSGDModel):
  """A table model that is a flow, trained by maximum likelihood.

  A subclass defines `make_flow`.

  Attributes:
    hidden_units: width of each hidden layer.
    num_bins: number of bins, see the model.
    loss_bound: bound of one row's loss in the released progress, in nats.
    dequantization: how points are placed in the cells of discrete columns in
      training and for log-probabilities: 'uniform' or 'variational'.
  """

  has_density: ClassVar[bool] = True
  takes_stored: ClassVar[bool] = True
  takes_replicas: ClassVar[bool] = True

  hidden_units: tuple = widths((128, 128))
  num_bins: int = whole(8, 2)
  loss_bound: float = positive(20.0)
  dequantization: str = choice('uniform', ('uniform', 'variational'))

  @abc.abstractmethod
  def make_flow(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None,
  ) -> tfp.distributions.TransformedDistribution:
    """Returns the flow over the columns' normal scores, still the identity.

    Args:
      columns: encoded columns.
      marginals: for each a dict of its private `edges` and `probabilities`.
      seed: of the initial weights, or `None`.
    """

  def make_distribution(
    self,
    columns: Sequence[EncodedColumn],
    marginals: Sequence[dict],
    seed: int | None = None,
  ) -> TableDensity:
    """See `TableModel`."""
    return TableDensity(*self._density_arguments(columns, marginals, seed))

  def _density_arguments(self, columns, marginals, seed):
    flow = self.make_flow(columns, marginals, seed)
    dequantization = None
    if self.dequantization == 'variational' and any(cells(columns)):
      dequantization = flows.dequantization.VariationalDequantization(
        cells(columns), seed=seed
      )
    return columns, marginals, flow, dequantization

  def train(
    self,
    distribution: TableDensity,
    codes: np.ndarray,
    spending: Spending,
    work: WorkDirectory,
    *,
    units: sampling.Units | None,
    total: float,
  ) -> None:
    """See `TableModel`: by DP-SGD."""
    del total
    plan = dp_sgd.charged_plan(spending.plan, work, units)
    if work.team is None:
      self.train_steps(distribution, codes, plan, work)
    else:
      work.team.train(self, distribution, codes, plan, work)

  def train_steps(
    self,
    density: TableDensity,
    codes: np.ndarray | StoredRows,
    plan: TrainingPlan,
    work: WorkDirectory,
    saves: str | None = None,
  ) -> None:
    """Trains a density by DP-SGD, from the weights that it has.

    Args:
      density: from `make_distribution`.
      codes: private codes, see `train`.
      plan: the plan to run.
      work: see `train`.
      saves: where to save checkpoints, if not where they are resumed from.
    """
    if work.team is None:
      points = work.randomness.tensorflow('dequantization')
    else:
      points = StepPoints(work.randomness.key('dequantization'))
    dp_sgd.train(
      TableDensityModel(density, points, self.ema_momentum),
      plan,
      density.training_rows(codes),
      work,
      settings=self,
      loss_bound=self.loss_bound,
      saves=saves,
      # In chunks the rows at one place of all would have the same points: one
      # row taken away would give others to all behind it.
      whole=work.team is not None,
    )

  def notes(self) -> list[str]:
    """See `TableModel`."""
    return [
      f'Clipping: {self.clipping_strategy()!r}. Each step releases, '
      'within the same mechanism, the mean loss of its batch too (each row '
      f'clipped to +-{self.loss_bound:g} nats).'
    ]


class TableDensityModel(models.DensityModel):
  """Trains the flow of a `TableDensity` on its `training_rows`.

  The loss, in nats per row, is relative to the untrained model, which has the
  private marginals and independent columns: 0 at the start, negative where the
  flow has learned how columns depend on each other. It is an upper bound
  (`flows.dequantization`) with one point per row, whose place a variational
  dequantization learns along with the flow. A target may count several times.

  Args:
    density: a `TableDensity`.
    points: of the dequantization, a `tf.random.Generator` or `StepPoints`.
    ema_momentum: see `DensityModel`.
  """

  def __init__(
    self,
    density: TableDensity,
    points: tf.random.Generator | StepPoints,
    ema_momentum: float,
  ):
    super().__init__(density.latent)
    self._density = density
    self._start_average(ema_momentum)
    # As an attribute it has its state in every checkpoint.
    self._generator = points

  def take_averages(self) -> None:
    """Puts the averaged weights in place, as the end of `fit` does."""
    self._average.assign()

  def _private_variables(self):
    return self._density.trained

  @unconverted
  def _row_losses(self, x):
    if isinstance(self._generator, StepPoints):
      uniform = self._generator.uniform(tf.shape(x), self.optimizer.iterations)
    else:
      uniform = self._generator.uniform(tf.shape(x))
    uniform = tf.ensure_shape(uniform, x.shape)
    return self._density.row_losses(x, uniform)


class StepPoints:
  """Uniform numbers that are a function of a secret, a step and a replica.

  On several replicas no checkpoint keeps the state of a generator: a step that
  is made again would have another sum, with the same noise. A replica takes
  them once in a step, for all of its rows.

  Args:
    key: secret bytes, 24 at least.
  """

  def __init__(self, key: bytes):
    self._key = key[:24]

  def uniform(self, shape: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Returns float32 numbers in [0, 1) for a replica, inside of its step."""
    context = tf.distribute.get_replica_context()
    # There is none where a graph is made to be looked at only.
    replica = 0 if context is None else context.replica_id_in_sync_group
    count = tf.distribute.get_strategy().num_replicas_in_sync
    number = tf.cast(step, tf.int64) * count + tf.cast(replica, tf.int64)
    words = StepStream(self._key, number).uniform_full_int(shape, tf.uint32)
    words = tf.bitcast(tf.bitwise.right_shift(words, np.uint32(8)), tf.int32)
    return tf.cast(words, tf.float32) * 2.0**-24
