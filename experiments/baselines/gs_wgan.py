"""GS-WGAN: a generator that learns from noisy gradients of discriminators.

A baseline of the DP-HFlow paper, as in D. Chen, T. Orekondy and M. Fritz
(2020), *GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially
Private Generators*. Wasserstein discriminators with gradient penalty are
trained without noise, each on its own shard of the rows. For a step of the
generator one of them is drawn, and the gradient of its score by each generated
row is clipped and noised; all that follows is post-processing.

What differs from the paper: every discriminator is trained in every step, not
only the one that is drawn, for otherwise the discriminators would depend on
earlier secret draws, and the amplification by a draw would not be proven; the
divergence is the exact one of such a sample; the generator is that of our
GANs, which begins at the released marginals, is not told the label, and whose
loss keeps it near the marginals.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any, ClassVar

import dp_accounting
import numpy as np
import tensorflow as tf

from tfdpflows import accounting, pate
from tfdpflows import progress as bars
from tfdpflows.mechanisms.releases import charge_release
from tfdpflows.models.base import WeightAverage
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import TabularSynthesizer, fitting
from tfdpflows.tabular.models.base import positive, share, whole
from tfdpflows.tabular.models.gan import GANModel, TableGenerator, adam
from tfdpflows.tabular.models.stacked import Shards, StackedNetworks, batch_rows

# A row that is added or replaced replaces one shard, of which one is drawn.
RELATION = dp_accounting.NeighboringRelation.REPLACE_ONE
_LABEL = 'upstream gradients'
# Rows per discriminator of their default number, and how many at most.
_ROWS_PER_SHARD, _MOST_SHARDS = 32, 1000
# Norms are at most the clip after rounding too.
_ROUNDING = 1e-5
_TINY = 1e-12


@dataclasses.dataclass(frozen=True)
class GSWGANModel(GANModel):
  """Hyper-parameters of `GSWGAN`.

  Defaults were chosen on a made-up table, `tests.tabular.small_table`.

  Attributes:
    num_discriminators: number of discriminators, and of shards of the rows.
    steps: steps of the generator.
    warm_up_steps: steps of the discriminators before the first of these.
    discriminator_steps: steps of the discriminators for each of these.
    discriminator_batch_size: rows of a step, drawn from the shard.
    discriminator_units: width of the hidden layer.
    discriminator_learning_rate: of the discriminators' Adam.
    gradient_penalty: weight of the penalty on gradients of another norm than 1.
    l2_norm_clip: bound of the gradient by one generated row.
  """

  name: ClassVar[str] = 'gs_wgan'

  marginal_share: float = share(0.25)
  generator_learning_rate: float = positive(3e-3)
  marginal_weight: float = positive(2.0)
  num_discriminators: int = whole(1000, 2)
  steps: int = whole(2000, 1)
  warm_up_steps: int = whole(100, 0)
  discriminator_steps: int = whole(2, 1)
  discriminator_batch_size: int = whole(8, 1)
  discriminator_units: int = whole(16, 1)
  discriminator_learning_rate: float = positive(1e-2)
  gradient_penalty: float = positive(10.0)
  l2_norm_clip: float = positive(1.0)

  @classmethod
  def _defaults(cls, num_examples, *unused_args):
    count = max(2, min(num_examples // _ROWS_PER_SHARD, _MOST_SHARDS))
    return {'num_discriminators': count}

  def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """Returns the `DpEvent` of one step: one of all shards, drawn uniformly."""
    return dp_accounting.SampledWithoutReplacementDpEvent(
      self.num_discriminators,
      1,
      dp_accounting.GaussianDpEvent(noise_multiplier),
    )

  def plan_training(
    self,
    num_rows: int,
    *,
    budget: accounting.PrivacyBudget,
    spent: dp_accounting.DpEvent,
    accountant: str,
  ) -> float:
    """Returns the least noise multiplier, see `TableModel`."""
    if num_rows < self.num_discriminators:
      raise ValueError(
        f'num_discriminators is {self.num_discriminators}, and the table has '
        f'{num_rows} rows: each needs one at least, and should have many.'
      )
    return accounting.calibrate_noise_multiplier(
      lambda noise: dp_accounting.SelfComposedDpEvent(
        self.event(noise), self.steps
      ),
      budget,
      spent=spent,
      accountant=accountant,
      neighboring_relation=RELATION,
    )

  def train(self, distribution, codes, spending, work, *, units, total) -> None:
    """See `TableModel`; nothing is resumed."""
    del units, total
    GSWGANTraining(distribution, self, work.randomness).fit(
      codes, spending.plan, work.ledger, progress=work.progress
    )

  def describe_sampling(self, plan: float, privacy_unit: None) -> str:
    """See `TableModel`."""
    del plan, privacy_unit
    return (
      f'one of {self.num_discriminators} disjoint shards for each step, drawn '
      'uniformly and afresh; which one is secret'
    )

  def notes(self) -> list[str]:
    """See `TableModel`."""
    return [
      'GS-WGAN: neighbouring tables differ in one row that is replaced, in its '
      f'place, by another one. What {_LABEL!r} draws one of are shards of the '
      'rows. Discriminators are not released.'
    ]


class GSWGANTraining(tf.Module):
  """The training of a `TableGenerator` on noisy gradients of discriminators.

  #### Formal guarantee

  The generator is a function of the released gradients and of random numbers
  that are independent of the rows. By induction over the steps: discriminator k
  is a function of its shard, of generated rows, that is of earlier releases,
  and of such numbers, among which the earlier draws of discriminators are not:
  all discriminators are trained in every step, without operations across them.
  Which shard a row is in depends on its place alone (`pate.partition`), so that
  replacing the row in its place replaces one shard of K.

  A step releases a function of one shard, drawn uniformly and afresh: B
  gradients, each of norm l2_norm_clip at most, as one vector of norm sqrt(B)
  l2_norm_clip. With Gaussian noise of standard deviation `noise_multiplier *
  sqrt(B) * l2_norm_clip` on each coordinate that is
  `SampledWithoutReplacementDpEvent(K, 1, GaussianDpEvent(noise_multiplier))`
  under replacing an element, of K elements that are shards; the accountants
  count that replacing moves a vector by twice its largest norm.

  All steps are charged before the first one.

  Args:
    generator: the `TableGenerator`.
    settings: the `GSWGANModel`.
    randomness: the `Randomness` of the fit.
  """

  def __init__(
    self,
    generator: TableGenerator,
    settings: GSWGANModel,
    randomness: Randomness,
  ):
    super().__init__(name='gs_wgan')
    self._generator = generator
    self._settings = settings
    self._randomness = randomness
    self._random = randomness.tensorflow('generated rows')
    self._discriminators = StackedNetworks(
      settings.num_discriminators,
      generator.num_indicators,
      settings.discriminator_units,
      randomness.numpy('discriminators'),
    )
    self._discriminator_optimizer = adam(
      settings.discriminator_learning_rate, self._discriminators.trained
    )
    self._weights = generator.network.trainable_variables
    self._optimizer = adam(settings.generator_learning_rate, self._weights)
    self._average = WeightAverage(self._weights, settings.ema_momentum)

  def fit(
    self,
    codes: np.ndarray,
    noise_multiplier: float,
    ledger: accounting.PrivacyLedger,
    *,
    progress: bool,
  ) -> None:
    """Trains to the end.

    Args:
      codes: private codes, float32 `[n, d]`.
      noise_multiplier: of each step.
      ledger: charged for all steps at once, under `RELATION`.
      progress: whether to show a progress bar.
    """
    settings, randomness = self._settings, self._randomness
    if ledger.neighboring_relation is not RELATION:
      raise ValueError(f'The ledger must be for neighbours of {RELATION.name}.')
    charge_release(
      ledger,
      settings.event(noise_multiplier),
      label=_LABEL,
      randomness=randomness,
      facts={'release': 'GSWGAN', **dataclasses.asdict(settings)},
      arrays=[codes],
      count=settings.steps,
    )
    count = settings.num_discriminators
    shards = pate.partition(len(codes), count, randomness=randomness)
    shards = Shards(codes, shards, count)
    rows = shards.codes, shards.starts, shards.sizes
    std = noise_multiplier * settings.l2_norm_clip
    std *= np.sqrt(settings.generator_batch_size)
    size = settings.generator_batch_size, self._generator.num_indicators
    for _ in range(settings.warm_up_steps):
      self._discriminator_step(*rows)
    shown = bars.bar('step', settings.steps, progress, 0)
    for step in range(settings.steps):
      for _ in range(settings.discriminator_steps):
        self._discriminator_step(*rows)
      rng = randomness.numpy(_LABEL, step)
      drawn = tf.constant(rng.integers(count), tf.int32)
      noise = tf.constant(rng.normal(0, std, size), tf.float32)
      self._generator_step(drawn, noise)
      bars.add_one(shown, ledger)
    shown.close()
    self._average.assign()
    seed = int(randomness.numpy('matching').integers(2**31))
    self._generator.match_marginals(seed)

  @tf.function(autograph=False)
  def _discriminator_step(self, codes, starts, sizes):
    settings = self._settings
    batch = settings.discriminator_batch_size
    made, _ = self._generator.make_rows(batch, self._random)
    made = tf.stop_gradient(made)[None]
    shape = [settings.num_discriminators, batch]
    # The same number of draws for each shard, whatever its size.
    uniform = self._random.uniform(shape, dtype=tf.float64)
    rows = batch_rows(uniform, starts, sizes, tf.shape(codes)[0])
    real = self._generator.indicators(tf.gather(codes, tf.reshape(rows, [-1])))
    real = tf.reshape(real, [*shape, -1])
    is_empty = sizes[:, None, None] == 0
    real = tf.where(is_empty, tf.zeros_like(real), real)
    between = self._random.uniform([*shape, 1])
    between = between * real + (1 - between) * made
    variables = self._discriminators.trained
    with tf.GradientTape() as tape:
      with tf.GradientTape() as inner:
        inner.watch(between)
        scores = tf.reduce_sum(self._discriminators(between))
      slopes = inner.gradient(scores, between)
      norms = tf.sqrt(tf.reduce_sum(slopes**2, -1) + _TINY)
      losses = tf.reduce_mean(
        self._discriminators(made)
        - self._discriminators(real)
        + settings.gradient_penalty * (norms - 1) ** 2,
        1,
      )
      losses = tf.where(sizes == 0, tf.zeros_like(losses), losses)
      loss = tf.reduce_sum(losses)
    found = tape.gradient(loss, variables)
    self._discriminator_optimizer.apply_gradients(zip(found, variables))

  def _upstream(self, drawn, made):
    """Returns clipped gradients of the generator's loss by `made`, private.

    Args:
      drawn: number of the discriminator.
      made: `[n, num_indicators]`.

    Returns:
      `[n, num_indicators]`: numbers, each row of norm l2_norm_clip at most.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(made)
      loss = -tf.reduce_sum(self._discriminators.scores_of(drawn, made))
    found = tape.gradient(loss, made)
    # A discriminator without numbers has no gradient, and does not show.
    is_number = tf.reduce_all(tf.math.is_finite(found), 1, keepdims=True)
    found = tf.where(is_number, found, tf.zeros_like(found))
    # By the largest number first: squares of it may be infinite.
    largest = tf.reduce_max(tf.abs(found), 1, keepdims=True)
    found /= tf.maximum(largest, 1.0)
    norms = tf.norm(found, axis=1, keepdims=True)
    bound = self._settings.l2_norm_clip / (1 + _ROUNDING)
    scale = bound / tf.maximum(norms, _TINY)
    return found * tf.minimum(scale, tf.maximum(largest, 1.0))

  @tf.function(autograph=False)
  def _generator_step(self, drawn, noise):
    settings = self._settings
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(self._weights)
      made, probabilities = self._generator.make_rows(
        settings.generator_batch_size, self._random, settings.temperature
      )
      # Released here: nothing below knows more of the rows.
      released = self._upstream(drawn, tf.stop_gradient(made)) + noise
      loss = tf.reduce_mean(tf.reduce_sum(made * released, 1))
      error = self._generator.marginal_error(probabilities)
      loss += settings.marginal_weight * error
    found = tape.gradient(loss, self._weights)
    self._optimizer.apply_gradients(zip(found, self._weights))
    self._average.update()


class GSWGAN(TabularSynthesizer):
  """Synthesizes tables, with the interface of `TabularSynthesizer`.

  #### Formal guarantee

  What `fit` leaves behind is (epsilon, delta)-differentially private under
  replacing one row, in its place, by any other one: marginals and training are
  charged to one ledger of that relation. Schema and number of rows count as
  public. A `seed` and floating-point attacks on the noise are outside of it.

  Args:
    schema: a `TableSchema` without marks.
    epsilon: the budget, with `delta`.
    delta: see `epsilon`.
    accountant: name of the accountant.
    seed: for tests and papers: not private against anyone who knows it.
    **hyperparameters: of `GSWGANModel`.
  """

  def __init__(
    self,
    schema,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    *,
    accountant: str = 'pld',
    seed: int | None = None,
    **hyperparameters: Any,
  ):
    super().__init__(
      schema,
      epsilon=epsilon,
      delta=delta,
      accountant=accountant,
      model='pategan',
      seed=seed,
    )
    if schema.is_draft:
      raise ValueError(
        'The schema is a draft: replace what came from the data by public '
        'knowledge and remove the marks.'
      )
    self._model_class = GSWGANModel
    self._hyperparameters = hyperparameters
    self.model = self._model_for(1)

  def _fit(self, df, work_dir, resume, progress, overwrite=False):
    if work_dir is not None or resume or overwrite:
      raise ValueError('GS-WGAN is fitted in memory: give no work_dir.')
    if self.ledger is not None:
      raise ValueError(
        'This synthesizer is fitted, its budget spent. Make a new one; on the '
        'same rows both budgets count.'
      )
    table = self.schema.validate(df, self.out_of_range)
    self.model = self._model_for(len(table))
    self.num_examples = len(table)
    spending = self._split_budget(len(table))
    randomness = Randomness(self.seed)
    self.ledger = accounting.PrivacyLedger(
      budget=self.budget,
      accountant=self.accountant,
      neighboring_relation=RELATION,
      metadata={'seeded': randomness.seeded},
    )
    self._fitted = fitting.run_mechanisms(
      table,
      self.schema,
      spending,
      self.model,
      types.SimpleNamespace(
        randomness=randomness,
        ledger=self.ledger,
        team=None,
        resume=False,
        progress=progress,
        # It is never resumed.
        check_repeated=lambda unused_arrays: None,
      ),
    )
    if spending.plan is not None:
      self._sampling = self.model.describe_sampling(spending.plan, None)
    return self

  def _split_budget(self, num_rows):
    """As `fitting.split_budget`, under `RELATION`."""
    given = {
      'accountant': self.accountant,
      'neighboring_relation': RELATION,
    }
    noise = accounting.calibrate_noise_multiplier(
      dp_accounting.GaussianDpEvent, self.budget, **given
    )
    if len(self.schema.fields) == 1:
      return fitting.Spending(None, noise, None)
    noise /= np.sqrt(self.model.marginal_share)
    plan = self.model.plan_training(
      num_rows,
      budget=self.budget,
      spent=dp_accounting.GaussianDpEvent(noise),
      accountant=self.accountant,
    )
    return fitting.Spending(None, noise, plan)
