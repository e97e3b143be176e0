"""The steps of a training: the batch, the noise and the charge of each."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdpflows.accounting.ledger import randomness_id
from tfdpflows.optimizers.noise import current_strategy, normal
from tfdpflows.training import batches, replicas

if TYPE_CHECKING:
  from tfdpflows.optimizers import DPOptimizer
  from tfdpflows.training.plan import TrainingPlan

# Arguments of an optimizer that change how sums are computed, not what of.
_FREE = ('name', 'chunk_size')
# Arguments that ledgers know by another name.
_RECORDED_AS = {'augmentation_multiplicity': 'num_draws'}


class TrainingSteps:
  """Which step comes next, and who may make it: the state machine of a plan.

  #### States of a step

  Steps are made in the order of their numbers. Each is in one of four states:

  - planned: nothing of it has happened.
  - charged: the ledger holds its charge.
  - drawn: its batch was drawn, for the training that runs.
  - done: its noise was used, or may have been. An optimizer never makes it
    again in this process.

  | from    | to      | when                                                  |
  |---------|---------|-------------------------------------------------------|
  | planned | charged | before its batch is drawn, in blocks                  |
  | charged | drawn   | the dataset of the training is asked for a batch      |
  | drawn   | done    | its update is computed, or that of a later step       |
  | drawn   | charged | the training ends before that: it is drawn again      |
  | charged | done    | its batch is drawn outside of any training: nobody    |
  |         |         | knows what for                                        |
  | charged | done    | `resume` finds that an earlier process has charged it |
  | done    | charged | `resume` with `replay` finds the optimizer before it, |
  |         |         | and this process has not made it                      |

  #### States of the plan

  | state    | call                                    | next state         |
  |----------|-----------------------------------------|--------------------|
  | new      | `resume`                                | new or idle: with  |
  |          |                                         | `replay` it is the |
  |          |                                         | dataset that pays  |
  | new      | `dataset`                               | idle               |
  | idle     | `dataset`, on the same table            | idle               |
  | new or   | `train`, with an optimizer of the plan; | training           |
  | idle     | with the same one after its first step  |                    |
  | training | `dataset`, `begin`, `train_on`,         | training           |
  |          | `epoch_and_batch`, updates              |                    |
  | training | the end of `train`'s context            | idle               |

  Everything else raises a ValueError before anything is charged or drawn; an
  update that is no open step is refused by `StepNoise`. What pays is the first
  `dataset`, or `resume` without `replay`: it reserves all steps in the ledger.

  Args:
    plan: the `TrainingPlan`.

  Attributes:
    plan: see above.
    next: number of the first step that is not drawn.
    replays: whether steps of an earlier process may be made again.
  """

  def __init__(self, plan: TrainingPlan):
    self.plan = plan
    self.next = 0
    self.replays = False
    self._reservation = self._table = None
    # Steps below were charged by an earlier process, which may have made them.
    self._charged_earlier = 0
    # Steps below were drawn outside of any training.
    self._handed_out = 0
    # What trains now: the noise, and the step at which its dataset ends.
    self._training = None
    # The `StepNoise` that has made steps, or is to make them again.
    self._trained = None
    self._lock = threading.Lock()

  def resume(self, optimizer: DPOptimizer, *, replay: bool) -> None:
    """See `TrainingPlan.resume`."""
    if self._reservation is not None or self._training is not None:
      raise ValueError(
        'The plan has begun to draw batches; only a new plan with the same '
        'randomness can resume.'
      )
    noise = self._noise_of(optimizer)
    step = int(noise.done.numpy())
    updates = int(optimizer.iterations.numpy())
    if updates and not step:
      raise ValueError(
        f'The optimizer has made {updates} updates, and none of them is a step '
        'of this plan: which noise it has used cannot be told. Restore the '
        'whole optimizer with tf.train.Checkpoint, or train it under a new '
        'plan without plan.resume.'
      )
    self.replays, self._trained, self.next = replay, noise, step
    if replay:
      return  # Of which table is known when batches are drawn.
    workers = replicas.Workers(current_strategy())
    workers.agree(
      lambda: self._reserve(self._random_name, workers, resume=True)
    )
    steps = max(self.next, self._reservation.charged)
    self._charged_earlier = self.next = workers.greatest(steps)

  @contextlib.contextmanager
  def train(self, optimizer: DPOptimizer) -> Iterator[None]:
    """Returns a context in which `optimizer` may update, and no other.

    Each update has to be one that a batch was drawn and charged for, once.

    Raises:
      ValueError: during another training; once another optimizer has trained;
        for one that was not made by this plan, or that is not like the one
        that steps were charged for.
    """
    noise = self._noise_of(optimizer)
    current_strategy()  # Refuses those that are not supported.
    if self._training is not None:
      raise ValueError('The plan is training another model right now.')
    if self._trained not in (None, noise):
      raise ValueError(
        'Another optimizer of this plan has trained, '
        f'{self._trained.optimizer._name}: {optimizer._name} would see its '
        'batches again under other noise. Go on with that one, or make a new '
        'plan, with its own budget.'
      )
    self._training = types.SimpleNamespace(noise=noise, stop=None)
    try:
      self.begin()
      yield
    finally:
      with self._lock:  # Or a batch that is being drawn would open its step.
        noise.close()
        self.next = self._first_open()
        if noise.made_any:
          self._trained = noise
        self._training = None

  def begin(self) -> None:
    """Finds the step at which the training begins, before its first update.

    `train` has done it, and callbacks may have restored the optimizer since.

    Raises:
      ValueError: if workers would begin at different steps.
    """
    workers = replicas.Workers(current_strategy())
    step = self._first_open()
    workers.agree(lambda: [None, None, step])
    with self._lock:
      self.next = step
      self._current.noise.open(step)

  def is_trained(self, noise: StepNoise) -> bool:
    """Whether the training that runs is that of a `StepNoise`."""
    return self._training is not None and self._training.noise is noise

  def epoch_and_batch(self) -> tuple[int, int]:
    """Returns where the training begins: in which epoch, at which batch.

    Epochs are those of the plan, whoever trains from which step on. They are
    counted back from where this training ends: what is left over is in its
    first epoch, since Keras can begin in the middle of one.
    """
    per_epoch = self.plan.sampler.steps_per_epoch
    return divmod(self.next + -self._current.stop % per_epoch, per_epoch)

  def dataset(
    self, x: Any, steps: int | None = None
  ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """See `TrainingPlan.dataset`."""
    x = batches.arrays(x)
    strategy = current_strategy()
    workers = replicas.Workers(strategy)
    steps = self.plan.remaining_steps if steps is None else steps
    workers.agree(lambda: self._check(x, steps, workers))
    workers.agree(lambda: self._pay(x, steps, workers))
    stop = self.next + steps
    plan = self.plan
    dataset = batches.dataset(
      x,
      plan.sampler,
      workers,
      begin=lambda: self._drawing(stop),
      randomness=lambda step: plan.randomness.numpy('batch', plan.label, step),
    )
    dataset.origin.steps, dataset.origin.stop = self, stop
    dataset.origin.strategy = strategy
    return dataset

  def train_on(
    self, dataset: tf.data.Dataset | tf.distribute.DistributedDataset
  ) -> None:
    """Notes what the training that runs is on, a dataset of this plan."""
    self._current.stop = dataset.origin.stop

  def drew(self, dataset: Any) -> bool:
    """Whether `dataset` comes from this plan, unchanged."""
    origin = getattr(dataset, 'origin', None)
    return origin is not None and origin.steps is self

  @property
  def _current(self):
    if self._training is None:
      raise ValueError('The plan trains no model right now: call fit.')
    return self._training

  def _check(self, x, steps, workers):
    """Returns what all workers must have in common."""
    plan = self.plan
    for array in tf.nest.flatten(x):
      if len(array) != plan.sampler.num_examples:
        raise ValueError(
          f'x has {len(array)} rows, the plan is for '
          f'{plan.sampler.num_examples}. '
          'Make a new plan with num_examples=len(x).'
        )
    if not 0 < steps <= plan.remaining_steps:
      raise ValueError(
        f'The plan has {plan.remaining_steps} of {plan.steps} steps left, '
        f'{steps} were asked for. A longer training needs a new plan, with its '
        'own noise.'
      )
    if workers.alone:
      return []
    if not workers.is_chief and plan.ledger.path is not None:
      raise ValueError(
        f'{plan.ledger.path} was given to a worker that is not the chief, and '
        'the chief charges for all. Give `ledger` to the plan of worker 0 only.'
      )
    event = plan.sampler.event(plan.noise_multiplier)
    clipping = type(plan.clipping).__name__, plan.clipping.get_config()
    return [
      plan.randomness.key('workers', plan.label),
      (event, clipping, self._facts, plan.steps, steps, plan.label),
      self.next,
      plan.randomness.table_fingerprint(tf.nest.flatten(x)),
    ]

  @property
  def _random_name(self):
    """Names the random numbers in the ledger."""
    return self.plan.randomness.key('owner', self.plan.label).hex()

  @property
  def _facts(self):
    """What the updates of the training depend on; for the ledger."""
    if self._training is None:
      return {'optimizer': None}
    return self._training.noise.facts

  def _reserve(self, identity, workers, resume):
    plan = self.plan
    reservation = plan.ledger.reserve(
      plan.sampler.event(plan.noise_multiplier),
      plan.steps,
      plan.label,
      resume=resume,
      randomness_id=identity,
    )
    # The account of a worker that is not the chief begins anew.
    if resume and workers.is_chief and reservation.charged < self.next:
      raise ValueError(
        f'The optimizer has made {self.next} steps, and the ledger has charged '
        f'{reservation.charged}: it is not the ledger of that training. Give '
        'the plan the one it was charged to, PrivacyLedger.open(path); under '
        'several workers resume inside of strategy.scope().'
      )
    self._reservation = reservation
    return []

  def _pay(self, x, steps, workers):
    table = self.plan.randomness.table_fingerprint(tf.nest.flatten(x))
    if self._reservation is None:
      facts = {**self._facts, 'table': table}
      identity = randomness_id(self._random_name, facts)
      self._reserve(identity, workers, resume=self.replays)
      if self.replays:
        self._charged_earlier = self._reservation.charged
    self._table = self._table or table
    if self._table != table:
      raise ValueError(
        'x is not the table that this plan has drawn batches of: one plan '
        'trains on one table. Make a new plan.'
      )
    if not workers.alone:
      # The others would not wait for the chief to charge block by block.
      self._reservation.ensure(self.next + steps)
    return []

  def _drawing(self, stop):
    """Returns a function that draws the next step below `stop`, charged.

    It returns `None` where there is none left. What draws for a training draws
    nothing once that is over.
    """
    training = self._training
    # A block is what an interrupted training may lose, see `resume`.
    block = max(1, self.plan.sampler.steps_per_epoch // 10)

    def draw():
      with self._lock:
        step = self.next
        if step >= stop or self._training is not training:
          return None
        self._reservation.ensure(step + 1, block)
        self.next = step + 1
        if training is None:
          self._handed_out = self.next
        else:
          training.noise.charged(self.next)
        return step

    return draw

  def _first_open(self):
    """Returns the first step that the optimizer in training may make."""
    noise = self._current.noise
    done, unused = int(noise.done.numpy()), max(noise.unused, self._handed_out)
    if self.replays and done >= unused:
      return done
    # Weights that were taken back repeat nothing of what the earlier process
    # did: its steps are not theirs.
    return max(unused, self._charged_earlier)

  def _noise_of(self, optimizer):
    noise = getattr(optimizer, 'noise_source', None)
    if isinstance(noise, StepNoise) and (
      noise.steps is self and noise.optimizer is optimizer
    ):
      return noise
    raise ValueError(
      f'{optimizer._name} was not made by this plan: take plan.optimizer(...).'
    )


class StepNoise:
  """The noise of an optimizer's steps: the state machine, inside of the graph.

  Steps `[start, end)` are open: `open` sets the start, each charge moves the
  end, each update the start, and `close` leaves none. An update takes the noise
  of an open step, which leaves that one and all before it done.

  #### Formal guarantee

  In one process no two updates have the noise of the same step, whatever is
  restored in between, and none has that of a step which was not charged. What
  is no open step is refused, and where XLA has dropped the refusal the update
  is NaN. On several replicas the first one adds the noise of the whole update,
  before anybody sees the sum.

  Args:
    steps: the `TrainingSteps` of the plan.

  Attributes:
    steps: see above.
    plan: the `TrainingPlan`.
    optimizer: the one optimizer that this is for.
    facts: what its updates depend on, as it was made.
    done: `tf.Variable`, the number of steps that are done, which checkpoints
      keep.
  """

  def __init__(self, steps: TrainingSteps):
    self.steps, self.plan = steps, steps.plan
    self.optimizer, self.facts = None, None
    key = self.plan.randomness.key('noise', self.plan.label)
    self._key = key[:_KEY_BYTES]
    self.done = _variable()
    self.checkpointed = {'plan_step': self.done}
    # In no checkpoint: what was used stays used when weights are taken back.
    self._next, self._end = _variable(), _variable()
    self._start, self._made = 0, False

  def belongs_to(self, optimizer: DPOptimizer) -> None:
    """Notes the optimizer, as soon as it is made."""
    self.optimizer, self.facts = optimizer, _facts_of(optimizer)

  @property
  def unused(self) -> int:
    """The first step whose noise this process has not used."""
    return int(self._next.numpy())

  @property
  def made_any(self) -> bool:
    """Whether a step was ever made."""
    return self._made or self.unused > self._start

  def open(self, start: int) -> None:
    """Lets steps from `start` on be made, as soon as they are charged."""
    self._made = self.made_any
    self._start = start
    self._next.assign(start)
    self._end.assign(start)

  def charged(self, end: int) -> None:
    """Lets steps below `end` be made too."""
    self._end.assign(end)

  def close(self) -> None:
    """Lets no step be made from now on."""
    self._end.assign(0)

  def check(self, optimizer: DPOptimizer, step: tf.Tensor | int | None) -> None:
    """Refuses an update for what is known without its rows, its step."""
    if step is None or not self.steps.is_trained(self):
      raise ValueError(
        'The optimizer of a plan updates in PrivateModel.fit and '
        'DensityModel.fit only, on batches that the plan draws and charges '
        'for, and with their `step`. For a loop of your own make the optimizer '
        f'by itself: {type(optimizer).__name__}(...).'
      )
    if optimizer.noise_multiplier != self.plan.noise_multiplier:
      raise ValueError(
        f'The noise_multiplier of the optimizer is '
        f'{optimizer.noise_multiplier:g}, and the plan charges for '
        f'{self.plan.noise_multiplier:g}. Make a new plan for other noise.'
      )
    replicas.check_state('clipping', optimizer.clipping.state)
    replicas.check_state('plan', self.done)

  def take(self, step: tf.Tensor) -> tuple[StepStream, tf.Tensor]:
    """Makes a step, once.

    Args:
      step: its number, int64 scalar.

    Returns:
      Its `StepStream`, and 1, or NaN for a step that may not be made: a factor
      of the noise, so that nothing is released.

    Raises:
      tf.errors.InvalidArgumentError: for a step that may not be made; where it
        is computed, not where the graph is made.
    """
    step = tf.convert_to_tensor(step, tf.int64)
    # A batch may be drawn, and charged, while the update is computed already.
    with tf.control_dependencies([step]):
      following, end = self._next.read_value(), self._end.read_value()
    allowed = tf.logical_and(step >= following, step < end)
    refusal = tf.debugging.Assert(
      allowed,
      [
        'This is no step that the plan has open. It trains in fit only, each '
        'step once. Step, first and end of the open ones:',
        *(step, following, end),
      ],
    )
    after = tf.where(allowed, step + 1, following)
    self._next.assign(after)
    self.done.assign(after)
    # The factor waits for the refusal, if there is one, and until the step
    # counts as made: an update that is broken off cannot leave it unused.
    waits = [self._next.read_value()] + ([] if refusal is None else [refusal])
    with tf.control_dependencies(waits):
      factors = tf.constant([math.nan, 1.0], tf.float64)
      factor = factors[tf.cast(allowed, tf.int32)]
    return StepStream(self._key, step), factor

  def add(
    self,
    taken: tuple[StepStream, tf.Tensor],
    total: tf.Tensor,
    stddev: tf.Tensor | float,
  ) -> tf.Tensor:
    """Returns the sum over all replicas, with noise added once."""
    stream, factor = taken
    # One replica adds the noise of all, before anybody sees the whole sum.
    if replicas.is_first_replica():
      stddev = tf.cast(stddev, tf.float64) * factor
      total += normal(stream, total.shape[0], stddev, total.dtype)
    return replicas.sum_over_replicas(total)


_PHILOX = 1
_KEY_BYTES = 24
# Draws of one step: each has a counter of its own, and blocks without end.
_DRAWS = 256


class StepStream:
  """Random numbers that are a function of a secret and of a step alone.

  Philox (Salmon et al. 2011) with a counter of 128 bits for a state: nothing
  is kept from step to step, so that no checkpoint, no restore and no batch
  that was drawn in vain can put the noise of one step on the batch of another.
  The numbers are the same in graphs, eagerly and compiled by XLA, which those
  of `tf.random.stateless_uniform` are not. Each draw is independent of the
  others.

  Args:
    key: 24 secret bytes: Philox's key, and where its counter starts.
    step: the number of the step, an integer or a scalar tensor.

  Raises:
    ValueError: for another number of bytes.

  #### Example

  >>> from tfdpflows.training.steps import StepStream
  >>> key = bytes(range(24))
  >>> a = StepStream(key, 7).uniform_full_int([2])
  >>> bool(tf.reduce_all(a == StepStream(key, 7).uniform_full_int([2])))
  True
  """

  def __init__(self, key: bytes, step: tf.Tensor | int):
    if len(key) != _KEY_BYTES:
      raise ValueError(f'The key has {len(key)} bytes; it needs {_KEY_BYTES}.')
    key = np.frombuffer(key, np.uint64)
    self._key = key[:1]
    # Draws differ in the upper half; the lower one counts blocks of a draw,
    # of which there are far less than 2^64.
    self._low = key[1]
    self._high = key[2] + tf.cast(step, tf.uint64) * _DRAWS
    self._draws = 0

  def uniform_full_int(
    self, shape: Sequence[int], dtype: tf.DType = tf.uint64
  ) -> tf.Tensor:
    """Returns random words, as `tf.random.Generator.uniform_full_int` does.

    Args:
      shape: of the result, a list of integers.
      dtype: tf.uint32 or tf.uint64.

    Raises:
      ValueError: after 256 draws.
    """
    if self._draws == _DRAWS:
      raise ValueError(
        f'A step has {_DRAWS} draws, and they are used up: draw more numbers '
        'at a time.'
      )
    counter = tf.stack([tf.constant(self._low), self._high + self._draws])
    self._draws += 1
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=shape, key=self._key, counter=counter, alg=_PHILOX, dtype=dtype
    )


def _variable():
  with tf.init_scope():
    return tf.Variable(
      0,
      dtype=tf.int64,
      trainable=False,
      # Alike on all replicas: one may speak for all.
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _facts_of(optimizer) -> dict[str, Any]:
  """Returns what the updates of an optimizer depend on, JSON-able.

  Besides what it releases (clipping, bound of the loss, augmentation) that is
  how it makes weights of it: they are where the next gradients are taken.
  """
  config = {
    _RECORDED_AS.get(name, name): value
    for name, value in optimizer.get_config().items()
    if name not in _FREE
  }
  config = {'optimizer': type(optimizer).__name__, **config}
  return json.loads(json.dumps(config, default=_plain))


def _plain(value):
  array = np.asarray(value)
  return repr(value) if array.dtype == object else array.tolist()
