"""The plan of a private training: sampling, clipping, noise and their cost."""

from __future__ import annotations

import functools
import math
import threading
from typing import TYPE_CHECKING, Any

import dp_accounting

from tfdpflows import accounting, gradients, optimizers, sampling
from tfdpflows._checks import (
  Fixed,
  check_fraction,
  check_integer,
  check_number,
  check_positive,
  check_type,
)
from tfdpflows.accounting import registry
from tfdpflows.accounting.calibration import charged_noise_multiplier
from tfdpflows.accounting.ledger import check_ledger
from tfdpflows.accounting.rounding import round_up
from tfdpflows.randomness import Randomness
from tfdpflows.sampling.units import check_units
from tfdpflows.training.mechanism import BANDED, INDEPENDENT, Mechanism
from tfdpflows.training.step_noise import StepNoise
from tfdpflows.training.steps import TrainingSteps

if TYPE_CHECKING:
  import tensorflow as tf

  from tfdpflows.sampling.sampler import Sampler

_OPTIMIZERS = {
  'adabelief': optimizers.DPKerasAdaBelief,
  'adagrad': optimizers.DPKerasAdagrad,
  'adam': optimizers.DPKerasAdam,
  'sgd': optimizers.DPKerasSGD,
}
# Arguments of optimizers that a plan gives.
_OF_PLAN = {
  *('clipping', 'expected_batch_size', 'l2_norm_clip', 'noise_generator'),
  *('noise_multiplier', 'noise_source', 'seed'),
}
_LABEL = 'DP-SGD'
_MOST_BANDS = 64


class TrainingPlan(Fixed):
  """How a model is trained privately, and what that costs.

  The plan makes the optimizer, draws the batches and charges the ledger, so
  that none of these can disagree with the others.

  #### Formal guarantee

  All updates of the plan's optimizer on the plan's batches together cost
  `event`, under the neighbouring relation of the ledger (by default adding or
  removing one row). Every batch is charged before it is drawn, in blocks of a
  tenth of an epoch: after a crash the ledger may count steps that never ran,
  and never misses one that did.

  The noise of a step is a function of the secret, of the reservation in the
  ledger and of the step's number alone, which comes with its batch: with
  another ledger the same secret and label give other batches and noise, but for
  a `seed`. One optimizer trains, as the plan made it:
  changed clipping, noise or loss bounds are refused. No step is made twice:
  batches that were drawn and not trained on are drawn again, and when weights
  are taken back, from a checkpoint say, the steps in between are lost. For a
  new process see `resume`, and the conditions of its `replay`; for several
  replicas, where all of this holds too, `tfdpflows.training.replicas`.

  With `units` the plan draws units in place of rows, each example is a unit
  with the rows that are used of it, and neighbours differ by one unit:
  `sampling.Units`. The loss of a unit is the weighted sum of its rows' losses,
  whose gradient is clipped as a whole. The charge is marked with the name of
  the unit, and a ledger of rows refuses it.

  With `noise='banded'` a step takes back a part of the noise of the steps
  before it, so that sums of gradients over many steps, which are what training
  is made of, have less noise at the same epsilon: a matrix mechanism on cyclic
  Poisson samples (Choquette-Choo et al. 2023; `training.mechanism`). A charge
  is for as many steps as there are parts, and made before the first of them.
  This noise is a function of the table, and of the number of weights, too: with
  another table, or rows in another order, a training that is resumed takes back
  nothing of the noise before.

  Args:
    sampler: a sampler, such as `sampling.PoissonSampler`.
    clipping: a clipping strategy, such as `gradients.Flat`.
    noise_multiplier: standard deviation of the noise over the sensitivity.
    steps: number of updates.
    accountant: name of the accountant that computes epsilon.
    delta: the delta at which epsilon is stated.
    ledger: the `PrivacyLedger` to charge; by default one in memory whose budget
      is the cost of this plan.
    label: name of the training in the ledger.
    seed: for tests and papers; a seeded training is not private against
      anyone who knows the seed.
    randomness: a `Randomness` that replaces `seed`.
    units: the `sampling.Units` that are protected, in place of rows; the
      sampler then draws `units.num_units` examples.
    noise: 'independent' from step to step, or 'banded', which needs a
      `sampling.CyclicPoissonSampler` of two parts or more and has as many bands
      as there are parts. Trained on one replica.

  Attributes:
    mechanism: the `training.mechanism.Mechanism` of sampler, noise and steps.

  Raises:
    TypeError: for a `ledger` that is no `PrivacyLedger`, or `units` that are no
      `sampling.Units`.
    ValueError: for values out of range, or a ledger of another privacy unit.

  #### Example

  >>> import tfdpflows
  >>> plan = tfdpflows.TrainingPlan(
  ...   tfdpflows.sampling.PoissonSampler(
  ...     num_examples=10_000, sampling_probability=.01),
  ...   tfdpflows.gradients.Flat(1.), noise_multiplier=1., steps=1000,
  ...   accountant='pld', delta=1e-5)
  >>> round(plan.epsilon(), 2)
  1.83
  """

  def __init__(
    self,
    sampler: Sampler,
    clipping: gradients.Strategy,
    *,
    noise_multiplier: float,
    steps: int,
    accountant: str = 'pld',
    delta: float = 1e-5,
    ledger: accounting.PrivacyLedger | None = None,
    label: str = _LABEL,
    seed: int | None = None,
    randomness: Randomness | None = None,
    units: sampling.Units | None = None,
    noise: str = 'independent',
  ):
    check_type('clipping', clipping, gradients.Strategy, 'gradients.Flat(1.0)')
    if ledger is not None:
      check_ledger(ledger)
    check_number('noise_multiplier', noise_multiplier)
    if not noise_multiplier > 0:
      raise ValueError(
        f'noise_multiplier is {noise_multiplier}; it must be positive. '
        'Without noise there is no finite epsilon.'
      )
    if seed is not None and randomness is not None:
      raise ValueError('Give either `seed` or `randomness`, not both.')
    check_units(units)
    if units is not None and units.num_units != sampler.num_examples:
      raise ValueError(
        f'The sampler draws from {sampler.num_examples} examples, and there '
        f'are {units.num_units} units. Make it with num_examples='
        'units.num_units.'
      )
    self.sampler = sampler
    self.units = units
    self.clipping = clipping
    self.noise_multiplier = float(noise_multiplier)
    self.steps = check_integer('steps', steps)
    self.mechanism = Mechanism(sampler, noise, self.steps)
    self.accountant = accountant
    self.delta = check_fraction('delta', delta)
    self.label = label
    self.randomness = Randomness(seed) if randomness is None else randomness
    self.randomness.claim('plan', label)
    self._ledger, self._lock = ledger, threading.RLock()
    self._steps = TrainingSteps(self)

  @classmethod
  def for_epsilon(
    cls,
    *,
    epsilon: float,
    delta: float,
    clipping: gradients.Strategy,
    num_examples: int | None = None,
    expected_batch_size: float | None = None,
    sampler: Sampler | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    accountant: str = 'pld',
    spent: dp_accounting.DpEvent | None = None,
    units: sampling.Units | None = None,
    noise: str = 'independent',
    bands: int | None = None,
    **kwargs: Any,
  ) -> TrainingPlan:
    """Makes a plan with the least noise for a budget.

    Args:
      epsilon: the budget, together with `delta`.
      delta: see `epsilon`.
      clipping: a clipping strategy, such as `gradients.Flat(10.)`.
      num_examples: number of rows, which is public, for Poisson batches; by
        default that of `units`.
      expected_batch_size: mean size of a Poisson batch, in units if there are
        any.
      sampler: a sampler in place of these two, such as
        `sampling.FixedSizeSampler`.
      epochs: passes over the data, on average.
      steps: number of updates, in place of `epochs`.
      accountant: name of the accountant.
      spent: `DpEvent` of other mechanisms in the same budget.
      units: see the class.
      noise: see the class. With 'banded' batches are cyclic Poisson samples, of
        `num_examples` and `expected_batch_size`; give no `sampler`.
      bands: number of bands of the noise, and of parts of the rows; by default
        the power of two, up to 64, with which sums over steps have the least
        noise. Where that is 1, noise is independent.
      **kwargs: further arguments of the plan.

    Returns:
      A `TrainingPlan` whose epsilon, with `spent`, is at most `epsilon` and
      within 0.1 % of it. Where `ledger` was charged for such a training under
      its label, with the same noise but for rounding, it has the noise of that
      charge, to the last bit.

    Raises:
      TypeError: for a `ledger` that is no `PrivacyLedger`, `units` that are no
        `sampling.Units`, or sizes that are no numbers.
      ValueError: for values out of range, or a budget that `spent` exceeds.
    """
    if (epochs is None) == (steps is None):
      raise ValueError('Give one of `epochs` and `steps`.')
    check_units(units)
    if units is not None and sampler is None and num_examples is None:
      num_examples = units.num_units
    sizes = num_examples, expected_batch_size
    for name, value in (
      ('num_examples', num_examples),
      ('expected_batch_size', expected_batch_size),
    ):
      if value is not None:
        check_number(name, value)
    if epochs is not None:
      epochs = check_positive('epochs', epochs)
    if sizes.count(None) != (0 if sampler is None else 2):
      raise ValueError(
        'Give either `num_examples` and `expected_batch_size`, for Poisson '
        'batches, or `sampler`.'
      )
    if sampler is None and not 0 < expected_batch_size <= num_examples:
      raise ValueError(
        f'expected_batch_size is {expected_batch_size}; it must be in '
        f'(0, num_examples={num_examples}].'
      )
    if bands is not None and (sampler is not None or noise != BANDED):
      raise ValueError(
        "`bands` is for noise='banded' with `num_examples` and "
        '`expected_batch_size`; a sampler has as many bands as parts.'
      )
    budget = accounting.PrivacyBudget(epsilon=epsilon, delta=delta)
    if kwargs.get('ledger') is not None:
      check_ledger(kwargs['ledger'])
    chooses_bands = sampler is None and noise == BANDED
    if sampler is None:
      sampler = sampling.PoissonSampler(
        num_examples=num_examples,
        sampling_probability=expected_batch_size / num_examples,
      )
    if steps is None:
      steps = max(1, round(epochs * sampler.steps_per_epoch))
    calibrate = functools.partial(
      accounting.calibrate_noise_multiplier,
      budget=budget,
      spent=spent,
      accountant=accountant,
      neighboring_relation=_relation(kwargs.get('ledger')),
    )
    if chooses_bands:
      mechanism, noise_multiplier = _banded(sampler, steps, bands, calibrate)
    else:
      mechanism = Mechanism(sampler, noise, steps)
      noise_multiplier = calibrate(mechanism.event_of_all)
    noise_multiplier = charged_noise_multiplier(
      mechanism.event,
      noise_multiplier,
      ledger=kwargs.get('ledger'),
      label=kwargs.get('label', _LABEL),
    )
    plan = cls(
      mechanism.sampler,
      clipping,
      noise_multiplier=noise_multiplier,
      steps=steps,
      accountant=accountant,
      delta=delta,
      units=units,
      noise=mechanism.noise,
      **kwargs,
    )
    if plan._ledger is None:
      plan._make_ledger(budget)
      if spent is not None:
        plan.ledger.charge(
          spent, label='other mechanisms', privacy_unit=plan.privacy_unit
        )
    return plan

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The `DpEvent` of the whole training."""
    return self.mechanism.event_of_all(self.noise_multiplier)

  def event_after(self, steps: int) -> dp_accounting.DpEvent:
    """Returns the `DpEvent` of the first steps.

    Args:
      steps: how many, from 0 to all.
    """
    charges = self.mechanism.charges(steps)
    if not charges:
      return dp_accounting.NoOpDpEvent()
    return dp_accounting.SelfComposedDpEvent(self._steps.event, charges)

  @property
  def step(self) -> int:
    """The next step to be drawn: number of steps that are done or drawn."""
    return self._steps.next

  @property
  def remaining_steps(self) -> int:
    """Number of steps that have not been drawn yet."""
    return self.steps - self.step

  def __copy__(self) -> TrainingPlan:
    # Another one would not see which steps this one makes.
    return self

  @property
  def ledger(self) -> accounting.PrivacyLedger:
    """The `PrivacyLedger` that is charged."""
    with self._lock:  # Or two threads would make one each.
      if self._ledger is None:
        self._make_ledger(self._own_budget())
      return self._ledger

  def _own_budget(self):
    """Returns what this training costs alone, as a budget."""
    epsilon = self.epsilon()
    if epsilon == math.inf:
      raise ValueError(
        f'noise_multiplier={self.noise_multiplier:g} is too little noise for '
        'any finite epsilon; give more, or TrainingPlan.for_epsilon.'
      )
    if not epsilon:
      # A budget is above zero; and a statement of 0 would say nothing.
      raise ValueError(
        f'delta={self.delta:g} alone covers this plan, at an epsilon of 0: '
        'the chance that an example is drawn at all, or shows behind the '
        'noise, is smaller. Give a delta well below that chance. Or correct '
        f'the plan: {self.sampler.describe(self.privacy_unit)}, '
        f'steps={self.steps}, noise_multiplier={self.noise_multiplier:g}.'
      )
    return accounting.PrivacyBudget(epsilon=epsilon, delta=self.delta)

  @property
  def privacy_unit(self) -> str | None:
    """The name of the units that are protected, `None` for rows."""
    return None if self.units is None else self.units.name

  def _make_ledger(self, budget):
    self._ledger = accounting.PrivacyLedger(
      budget=budget,
      accountant=self.accountant,
      privacy_unit=self.privacy_unit,
      metadata={'seeded': self.randomness.seeded},
    )

  def epsilon(self, steps: int | None = None) -> float:
    """Returns epsilon of this training alone, after `steps` or all steps.

    The neighbouring relation is that of the ledger.
    """
    relation = _relation(self._ledger)
    accountant = accounting.create_accountant(self.accountant, relation)
    steps = self.steps if steps is None else steps
    accountant.compose(self.event_after(steps))
    return accountant.get_epsilon(self.delta)

  def privacy_statement(self) -> accounting.PrivacyStatement:
    """Returns what has been spent so far, as a `PrivacyStatement`."""
    notes = [f'Clipping: {self.clipping!r}.']
    if self.mechanism.noise == BANDED:
      notes.append(
        f'Noise: each step takes back a part of that of the steps before it, '
        f'by a matrix of {len(self.mechanism.coefficients)} bands.'
      )
    if self.units is not None:
      notes.append(f'Units: {self.units.describe()}.')
    charged = self._steps.charged
    if 0 < charged < self.steps:
      caveat = registry.caveat(self.accountant)
      notes.append(
        f'Steps: {charged} of {self.steps} of {self.label!r} are charged. If '
        'outputs decided that it ends there (EarlyStopping, scores that were '
        'good enough), the claim is that of all steps: this training alone '
        f'then costs epsilon {round_up(self.epsilon())}{caveat}.'
      )
    return accounting.privacy_statement(
      self.ledger,
      num_examples=self.sampler.num_examples,
      sampling=self.sampler.describe(self.privacy_unit),
      notes=notes,
      seeded=self.randomness.seeded,
    )

  def optimizer(
    self, name: str | type[optimizers.DPOptimizer] = 'adam', **kwargs: Any
  ) -> optimizers.DPOptimizer:
    """Makes the optimizer of this plan.

    Args:
      name: 'adam', 'adabelief', 'sgd' or 'adagrad'; or a subclass of
        `optimizers.DPOptimizer`.
      **kwargs: of the Keras optimizer, such as `learning_rate`; also
        `loss_bound`, see `optimizers.DPOptimizer`.

    Raises:
      TypeError: for arguments that the optimizer does not have, or that are
        those of the plan, or a learning rate that is neither a number nor a
        schedule.
      ValueError: for another name, values out of range, or
        `noise_variance_correction` with banded noise.
    """
    made, base = _OPTIMIZERS.get(name, name), optimizers.DPOptimizer
    if not (isinstance(made, type) and issubclass(made, base)):
      raise ValueError(
        f'There is no optimizer {name!r}; there are {sorted(_OPTIMIZERS)}, and '
        'subclasses of optimizers.DPOptimizer.'
      )
    if self.mechanism.noise == BANDED and kwargs.get(
      'noise_variance_correction'
    ):
      raise ValueError(
        'noise_variance_correction is for noise that is independent from step '
        "to step, and that of the plan is 'banded': leave it out."
      )
    given = sorted(_OF_PLAN.intersection(kwargs))
    if given:
      raise TypeError(
        f'{" and ".join(given)} of the optimizer '
        f'{"is that" if len(given) == 1 else "are those"} of the plan: drop '
        f'{"it" if len(given) == 1 else "them"} here. The plan has '
        f'noise_multiplier={self.noise_multiplier:g} and '
        f'clipping={self.clipping!r}; for others make another plan, '
        'TrainingPlan(sampler, clipping, noise_multiplier=..., steps=...).'
      )
    noise_source = StepNoise(self._steps)
    optimizer = made(
      clipping=self.clipping,
      noise_multiplier=self.noise_multiplier,
      expected_batch_size=self.sampler.expected_batch_size,
      noise_source=noise_source,
      **kwargs,
    )
    noise_source.belongs_to(optimizer)
    return optimizer

  def resume(
    self, optimizer: optimizers.DPOptimizer, *, replay: bool = False
  ) -> None:
    """Goes on with a training that was interrupted, in a new process.

    The training goes on after the last step that the ledger has charged, with
    noise that was never used, in whatever state model and optimizer are.
    Charged steps that the checkpoint does not have are lost (also those charged
    ahead, a tenth of an epoch and what was prefetched): there are fewer updates
    than planned, at the same cost. Under several workers call this in the scope
    of their strategy. One process alone may go on: copies of one ledger that
    both do, with one table, have the same noise, and the difference of what
    they release has none; what they spend adds up, and neither ledger knows it.

    With `replay` these steps are made again instead: same batch, same noise,
    nothing new revealed, nothing charged again, and the result is that of a
    training that was never interrupted. That is private only where the sums of
    these steps are the same as before: the difference of two sums with one
    noise has no noise. The ledger checks the random numbers, the table, the
    sampling, the clipping and the arguments of the optimizer; batches have to
    be drawn by `fit`. The caller guarantees

    - the weights: model and optimizer are restored from one checkpoint of the
      interrupted training, with all that depends on earlier steps (averages);
      without a checkpoint they are those that it began with; and nothing but
      its steps ever changed them;
    - the hyperparameters, such as the learning rate, at each step: nothing sets
      them from outside, by counting epochs of one process for instance;
    - callbacks: none has changed or restored weights or optimizer
      (`BackupAndRestore`), and none does now;
    - the model and its loss: they are the same, and their random numbers come
      from generators that the checkpoint keeps, as many at a time as then;
    - how sums are computed: `chunk_size`, the padding of batches, XLA and the
      number of replicas are as they were. Else sums are rounded otherwise, and
      whoever sees the results of both trainings sees that difference of
      rounding without noise;
    - the past: no process resumed it without `replay` after that checkpoint.

    Args:
      optimizer: the optimizer of this plan, restored from the checkpoint; as it
        was made, if there is none.
      replay: see above.

    Raises:
      ValueError: if this plan has drawn batches already; for another plan's
        optimizer, one restored without its `plan_step`, or one that has made
        more steps than the ledger has charged.
      BudgetExceededError: if the ledger refuses the whole training.
      LedgerError: if the ledger has charged for other random numbers.
    """
    self._steps.resume(optimizer, replay=replay)

  def dataset(
    self, x: Any, steps: int | None = None
  ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """Returns the plan's next batches, each charged before it is drawn.

    In the scope of a `tf.distribute` strategy these are the shares of its
    replicas, as a `tf.distribute.DistributedDataset`. Batches that are drawn
    outside of `fit` are not trained on by `fit`. A training whose dataset is
    made here, and not by `fit(x)`, cannot be replayed: the ledger does not know
    its optimizer.

    Args:
      x: array `[num_rows, ...]`, all rows of the table, or a tuple or dict of
        such arrays, in any depth, that belong together row by row.
      steps: number of batches; all that are left by default.

    Returns:
      A `tf.data.Dataset` of (rows, weights, step): see the sampler; rows have
      the structure of `x`, and step is the number of the batch, an int64
      scalar. With `units` see `Units.batch`: rows are `[batch, k, ...]`, and
      weights `[batch, k]`.

    Raises:
      ValueError: if `x` has another number of rows than planned, or is not the
        table of earlier batches; if the plan has fewer steps left; for an
        unsupported `tf.distribute` strategy; if the workers of one disagree,
        or one of them has failed.
      BudgetExceededError: if the ledger refuses the whole training.
    """
    return self._steps.dataset(x, steps)


def _relation(ledger):
  """Returns the neighbouring relation of a ledger, or the default."""
  if ledger is None:
    return dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  return ledger.neighboring_relation


def _banded(sampler, steps, bands, calibrate):
  """Returns the `Mechanism` with banded noise, and its noise multiplier.

  Args:
    sampler: the `PoissonSampler` of independent noise.
    steps: number of steps.
    bands: see `TrainingPlan.for_epsilon`.
    calibrate: returns the noise multiplier of a function of it to a `DpEvent`.
  """

  def calibrated(mechanism):
    return mechanism, calibrate(mechanism.event_of_all)

  def with_bands(bands):
    probability = bands * sampler.sampling_probability
    if not (bands >= 2 and probability <= 1):
      raise ValueError(
        f'bands is {bands}; it must be 2 or more, and at most num_examples / '
        f'expected_batch_size, {1 / sampler.sampling_probability:g}: a batch '
        'has only rows of the part whose turn it is.'
      )
    cyclic = sampling.CyclicPoissonSampler(
      num_examples=sampler.num_examples,
      sampling_probability=probability,
      parts=bands,
    )
    return calibrated(Mechanism(cyclic, BANDED, steps))

  if bands is not None:
    return with_bands(check_integer('bands', bands))
  best, noise_multiplier = calibrated(Mechanism(sampler, INDEPENDENT, steps))
  bands = 2
  while bands <= min(_MOST_BANDS, 1 / sampler.sampling_probability):
    found, multiplier = with_bands(bands)
    if found.error(multiplier) >= best.error(noise_multiplier):
      break
    best, noise_multiplier, bands = found, multiplier, 2 * bands
  return best, noise_multiplier
