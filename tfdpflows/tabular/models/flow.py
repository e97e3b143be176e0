"""Table models that are flows over the columns' normal scores."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from tfdpflows import accounting, flows, models, sampling
from tfdpflows._autograph import unconverted
from tfdpflows._keras import tfp
from tfdpflows.randomness import Randomness
from tfdpflows.tabular.density import TableDensity, cells
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models import dp_sgd
from tfdpflows.tabular.models.base import choice, positive, whole, widths

if TYPE_CHECKING:
  from tfdpflows.tabular.fitting import Spending
  from tfdpflows.tabular.work_directory import WorkDirectory


@dataclasses.dataclass(frozen=True)
class FlowModel(dp_sgd.DPSGDModel):
  """A table model that is a flow, trained by maximum likelihood.

  A subclass defines `make_flow` and, where needed, `plan_start`, `start` and
  `finish`.

  Attributes:
    hidden_units: width of each hidden layer.
    num_bins: number of bins, see the model.
    loss_bound: bound of one row's loss in the released progress, in nats.
    dequantization: how points are placed in the cells of discrete columns in
      training and for log-probabilities: 'uniform' or 'variational'.
  """

  has_density: ClassVar[bool] = True
  takes_stored: ClassVar[bool] = True

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
    return (
      columns,
      [m['edges'] for m in marginals],
      [m['probabilities'] for m in marginals],
      flow,
      dequantization,
    )

  def train(
    self,
    distribution: TableDensity,
    codes: np.ndarray,
    spending: Spending,
    work: WorkDirectory,
    *,
    units: sampling.Units | None,
    total: float,
    resume: bool,
    progress: bool,
  ) -> None:
    """See `TableModel`: `start`, DP-SGD, then `finish`."""
    known = self.start(
      distribution,
      codes,
      spending.rounds,
      work.randomness,
      work.ledger,
      total=total,
      units=units,
      resume=resume,
      progress=progress,
    )
    dp_sgd.train(
      TableDensityModel(
        distribution,
        work.randomness.tensorflow('dequantization'),
        self.ema_momentum,
      ),
      dp_sgd.charged_plan(spending.plan, work, units),
      distribution.training_rows(codes),
      settings=self,
      loss_bound=self.loss_bound,
      folder=work.checkpoints,
      resume=resume,
      progress=progress,
    )
    self.finish(distribution, known, work.randomness)

  def notes(self) -> list[str]:
    """See `TableModel`."""
    return [
      f'Clipping: {self.clipping_strategy()!r}. Each step releases, '
      'within the same mechanism, the mean loss of its batch too (each row '
      f'clipped to +-{self.loss_bound:g} nats).'
    ]

  def start(
    self,
    density: TableDensity,
    codes: np.ndarray,
    rounds: tuple,
    randomness: Randomness,
    ledger: accounting.PrivacyLedger,
    *,
    total: float,
    units: sampling.Units | None,
    resume: bool,
    progress: bool,
  ) -> Any:
    """Brings a density near to the table before DP-SGD, by measurements.

    Args:
      density: from `make_distribution`, not trained.
      codes: private codes, float32 `[n, d]`: for mechanisms in `rounds` only.
      rounds: from `plan_start`.
      randomness: the `Randomness` of the fit.
      ledger: charged for every mechanism before it looks at `codes`.
      total: see `train`.
      units: see there.
      resume: whether mechanisms that were charged are repeated.
      progress: whether to show progress bars, in a terminal or notebook.

    Returns:
      What `finish` is to know.
    """

  def finish(
    self, density: TableDensity, known: Any, randomness: Randomness
  ) -> None:
    """Changes a trained density, by post-processing.

    Args:
      density: the density.
      known: what `start` returned.
      randomness: the `Randomness` of the fit.
    """


class TableDensityModel(models.DensityModel):
  """Trains the flow of a `TableDensity` on its `training_rows`.

  The loss, in nats per row, is relative to the untrained model, which has the
  private marginals and independent columns: 0 at the start, negative where the
  flow has learned how columns depend on each other. It is an upper bound
  (`flows.dequantization`) with one point per row, whose place a variational
  dequantization learns along with the flow. A target may count several times.

  Args:
    density: a `TableDensity`.
    generator: `tf.random.Generator` of the dequantization.
    ema_momentum: see `DensityModel`.
  """

  def __init__(
    self,
    density: TableDensity,
    generator: tf.random.Generator,
    ema_momentum: float,
  ):
    super().__init__(density.latent)
    self._density = density
    self._start_average(ema_momentum)
    # As an attribute it has its state in every checkpoint.
    self._generator = generator

  def take_averages(self) -> None:
    """Puts the averaged weights in place, as the end of `fit` does."""
    self._average.assign()

  def _private_variables(self):
    return self._density.trained

  @unconverted
  def _row_losses(self, x):
    uniform = tf.ensure_shape(self._generator.uniform(tf.shape(x)), x.shape)
    return self._density.row_losses(x, uniform)
