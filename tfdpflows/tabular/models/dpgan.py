"""DP-GAN: a generator against a discriminator that DP-SGD trains."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from tfdpflows import sampling
from tfdpflows.independence import Checker
from tfdpflows.models.base import PrivatelyTrained
from tfdpflows.randomness import Randomness
from tfdpflows.tabular.models import dp_sgd
from tfdpflows.tabular.models.base import (
  fraction,
  positive,
  share,
  whole,
)
from tfdpflows.tabular.models.gan import (
  GANModel,
  GeneratorTraining,
  Network,
  TableGenerator,
)

if TYPE_CHECKING:
  from tfdpflows.tabular.fitting import Spending
  from tfdpflows.tabular.work_directory import WorkDirectory


@dataclasses.dataclass(frozen=True)
class DPGANModel(GANModel, dp_sgd.DPSGDModel):
  """DP-GAN (Xie et al. 2018): DP-SGD trains the discriminator alone.

  Attributes:
    discriminator_steps: steps of the discriminator for one of the generator
      (Bie et al. 2023: as many as it takes for the discriminator to be better
      than its noise).
    discriminator_momentum: of the average of the discriminator's weights that
      the generator is trained against.
    augmentation_multiplicity: generated rows that each real one is compared
      with in a step.

  #### Example

  >>> DPGANModel.for_table(32_000, 9).expected_batch_size
  2000.0
  """

  name: ClassVar[str] = 'dpgan'

  marginal_share: float = share(0.25)
  epochs: float = positive(64.0)
  l2_norm_clip: float = positive(1.0)
  learning_rate: float = positive(0.01)
  generator_learning_rate: float = positive(3e-4)
  discriminator_steps: int = whole(1, 1)
  discriminator_momentum: float = fraction(0.9)

  def train(
    self,
    distribution: TableGenerator,
    codes: np.ndarray,
    spending: Spending,
    work: WorkDirectory,
    *,
    units: sampling.Units | None,
    total: float,
  ) -> None:
    """See `TableModel`."""
    del total
    training = DPGAN(distribution, self, work.randomness)
    dp_sgd.train(
      training,
      dp_sgd.charged_plan(spending.plan, work, units),
      codes,
      work,
      settings=self,
      loss_bound=None,
    )
    training.finish()


class DPGAN(PrivatelyTrained):
  """Trains a `TableGenerator` and a discriminator on rows of codes.

  The loss of a row x is that of the discriminator D on this row and on one that
  the generator makes for it, `-log D(x) - log(1 - D(G(z)))`: what a row brings
  to an update, its generated row included, is clipped as one. After every
  `discriminator_steps` updates the generator has a step against the average of
  the discriminators so far, in which there is far less noise.

  #### Formal guarantee

  Only the discriminator's loss reads rows, and `DPOptimizer` releases its
  weights. The noise z comes from a stream of its own, and the generator's steps
  are functions of that and of the discriminator's weights: the generator is
  post-processing.
  """

  def __init__(
    self,
    generator: TableGenerator,
    settings: DPGANModel,
    randomness: Randomness,
  ):
    super().__init__(name='dpgan')
    self._generator = generator
    self._settings = settings
    # As attributes, these have their state in every checkpoint.
    self._training = GeneratorTraining(generator, settings, randomness)
    self._discriminator, self._discriminator_average = (
      Network(
        [generator.num_indicators, *settings.hidden_units, 1],
        randomness.numpy('discriminator'),
      )
      for _ in range(2)
    )
    self._checker = Checker(
      self,
      lambda rows, training: (self._row_losses(rows), []),
      self._private_variables,
      [self._discriminator],
      'The loss of the discriminator',
    )

  def take_averages(self) -> None:
    """For `dp_sgd.train`: `finish` does it."""

  def finish(self) -> None:
    """Ends the training of the generator."""
    self._training.finish()

  def _private_variables(self):
    return self._discriminator.trainable_variables

  def _row_losses(self, codes):
    real = self._generator.indicators(codes)
    count = tf.shape(codes)[0]
    made, _ = self._generator.make_rows(count, self._training.random)
    made = tf.ensure_shape(tf.stop_gradient(made), real.shape)
    scores = self._discriminator(tf.stack([real, made], 1))[..., 0]
    return tf.nn.softplus(-scores[:, 0]) + tf.nn.softplus(scores[:, 1])

  def train_step(self, data: Any) -> dict[str, tf.Tensor]:
    rows, weights, step = data
    self._checker.check_in_step(rows)
    logs = self._update(rows, weights, step, None)
    rest = 1 - self._settings.discriminator_momentum
    average = self._discriminator_average
    for mean, now in zip(average.variables, self._discriminator.variables):
      mean.assign_add(rest * (now - mean))
    due = (step + 1) % self._settings.discriminator_steps == 0
    tf.cond(due, lambda: self._training.step(average), lambda: None)
    return logs
