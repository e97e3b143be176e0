"""The steps of a training: their order, their batches and their charges."""

from __future__ import annotations

import contextlib
import math
import threading
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdpflows._memory import dataset_from_generator, release_graph_tensors
from tfdpflows.accounting.ledger import LedgerError, randomness_id
from tfdpflows.optimizers.noise import current_strategy
from tfdpflows.randomness import Randomness
from tfdpflows.sampling.fixed_size import FixedSizeSampler
from tfdpflows.stored_rows import StoredRows
from tfdpflows.training import replicas
from tfdpflows.training.mechanism import BANDED
from tfdpflows.training.step_noise import StepNoise

if TYPE_CHECKING:
  from tfdpflows.optimizers import DPOptimizer
  from tfdpflows.training.plan import TrainingPlan


class TrainingSteps:
  """The state machine of a plan: which step comes next, and who may make it.

  Steps are made in the order of their numbers. One is first *planned*; then
  *charged* to the ledger, in blocks; then *drawn*, for the training that runs;
  and *done* when its noise was used, or may have been: no optimizer makes it
  again in this process. Other ways are

  | from    | to      | when                                                  |
  |---------|---------|-------------------------------------------------------|
  | drawn   | done    | the update of a later step is computed                |
  | drawn   | charged | the training ends before its update                   |
  | charged | done    | its batch is drawn outside of any training; or        |
  |         |         | `resume` finds that an earlier process has charged it |
  | done    | charged | `resume` with `replay` finds the optimizer before it, |
  |         |         | and this process has not made it                      |

  The plan reserves all steps in the ledger at its first `dataset`, or at
  `resume` without `replay`; after either it cannot `resume`. All datasets are
  of one table. One optimizer trains at a time, in the context of `train`, and
  only the one that has made a step may train again. `begin`, `train_on`,
  `epoch_and_batch` and updates are for that context. Everything else raises a
  ValueError before anything is charged or drawn.

  Args:
    plan: the `TrainingPlan`.

  Attributes:
    plan: see above.
    event: the `DpEvent` of a charge, as the plan was made.
    next: number of the first step that is not drawn.
    replays: whether steps of an earlier process may be made again.
    table: fingerprint of the table, known before a batch is drawn.
    randomness: the `Randomness` of batches and noise, once steps are reserved:
      that of the plan if it has a seed, else one of this reservation alone.
    other_table: whether the ledger does not say that this is the table that the
      training began with.
  """

  def __init__(self, plan: TrainingPlan):
    self.plan = plan
    self.event = plan.mechanism.event(plan.noise_multiplier)
    self.next = 0
    self.replays = False
    self._reservation = self.table = None
    self.other_table = False
    self.randomness = plan.randomness
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
    steps = max(self.next, self._charged_steps)
    self._charged_earlier = self.next = workers.greatest(steps)

  @contextlib.contextmanager
  def train(
    self, optimizer: DPOptimizer, compiled: bool = False
  ) -> Iterator[None]:
    """Returns a context in which `optimizer` may update, and no other.

    Each update has to be one that a batch was drawn and charged for, once.

    Args:
      optimizer: made by this plan.
      compiled: whether XLA compiles its steps. A training that is resumed has
        to be compiled as it was before: operations on random numbers differ,
        and steps that are made again with the same noise would too.

    Raises:
      ValueError: during another training; once another optimizer has trained;
        for one that was not made by this plan, or was changed since.
    """
    noise = self._noise_of(optimizer)
    noise.begin()
    current_strategy()  # Refuses those that are not supported.
    if self._training is not None:
      raise ValueError('The plan is training another model right now.')
    if self._trained not in (None, noise):
      raise ValueError(
        'Another optimizer of this plan has trained, '
        f'{self._trained.optimizer._name}: {optimizer._name} would see its '
        'batches again under other noise. Go on with that one, or make a new '
        'plan.'
      )
    self._training = types.SimpleNamespace(
      noise=noise, stop=None, compiled=compiled
    )
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
      release_graph_tensors()

  def begin(self) -> None:
    """Finds the step at which the training begins, before its first update.

    `train` has done it, and callbacks may have restored the optimizer since.

    Raises:
      ValueError: if workers would begin at different steps, or for an optimizer
        restored from a training that this plan has not charged.
    """
    workers = replicas.Workers(current_strategy())
    step = self._first_open()

    def checked():
      self._check_restored()
      return [None, None, step]

    workers.agree(checked)
    with self._lock:
      self.next = step
      self._current.noise.open(step)

  @property
  def spent(self) -> int:
    """Steps below were made, or may have been, by this process or before it.

    Whatever was restored since.
    """
    noises = [self._trained, self._training and self._training.noise]
    unused = [noise.unused for noise in noises if noise is not None]
    return max(self._handed_out, self._charged_earlier, *unused)

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
    self, x: Any, steps: int | None = None, few_sizes: bool = False
  ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """See `TrainingPlan.dataset`.

    Args:
      x: arrays.
      steps: number of batches, all that are left by default.
      few_sizes: whether to pad batches to very few sizes, for steps that XLA
        compiles anew for every size.
    """
    x = arrays(x)
    strategy, plan = current_strategy(), self.plan
    if plan.mechanism.noise == BANDED and strategy.num_replicas_in_sync > 1:
      raise ValueError(
        'Banded noise is drawn on one replica: train outside of the '
        "tf.distribute strategy, or with noise='independent'."
      )
    workers = replicas.Workers(strategy)
    steps = plan.remaining_steps if steps is None else steps
    workers.agree(lambda: self._check(x, steps, workers))
    workers.agree(lambda: self._pay(x, steps, workers))
    # That of the chief: the others reserve in ledgers of their own.
    nonce = workers.greatest(
      self._reservation._nonce if workers.is_chief else 0
    )
    if nonce:
      # Two trainings of one secret and label, in two ledgers, would have the
      # same batches and noise, whatever their tables and models are.
      self.randomness = Randomness(
        secret=plan.randomness.key('noise', plan.label, 'training', nonce)
      )
    stop = self.next + steps
    failures = []
    sizes = _sizes(plan.sampler) if few_sizes else ()

    def draw():
      failures.clear()
      training = self._training
      try:
        while (step := self._draw(training, stop)) is not None:
          drawn = plan.sampler.draw_step(self.randomness, plan.label, step)
          for share, weights in workers.shares(*_pad_to(sizes, *drawn)):
            if plan.units is not None:
              share, weights = plan.units.batch(share, weights)
            yield take(x, share, weights), weights, step
      except Exception as error:
        # Of which TensorFlow raises the text only.
        failures.append(error)
        raise

    rows, weights = signature(x), tf.TensorSpec([None])
    elements = rows
    if plan.units is not None:
      weights = tf.TensorSpec([None, plan.units.max_rows_per_unit])
      elements = tf.nest.map_structure(
        lambda s: tf.TensorSpec(weights.shape + s.shape[1:], s.dtype), rows
      )
    options = tf.data.Options()
    # There is nothing to tune, and the thread that tunes can sleep for a minute
    # before it lets an iterator go.
    options.autotune.enabled = False
    dataset = workers.distribute(
      dataset_from_generator(
        draw, (elements, weights, tf.TensorSpec([], tf.int64))
      ).with_options(options)
    )
    dataset.origin = types.SimpleNamespace(
      steps=self,
      stop=stop,
      strategy=strategy,
      signature=rows,
      failures=failures,
    )
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
    plan, units = self.plan, self.plan.units
    sizes = {len(array): None for array in tf.nest.flatten(x)}
    if len(sizes) > 1:
      raise ValueError(
        f'The arrays of x have {" and ".join(map(str, sizes))} rows; row i of '
        'one belongs to row i of the others: give as many of each.'
      )
    for array in tf.nest.flatten(x):
      if units is not None and len(array) != units.num_rows:
        raise ValueError(
          f'x has {len(array)} rows, and the units of the plan are those of '
          f'{units.num_rows}. Make Units, and a plan, of the ids of these rows.'
        )
      if units is None and len(array) != plan.sampler.num_examples:
        raise ValueError(
          f'x has {len(array)} rows, the plan is for '
          f'{plan.sampler.num_examples}. '
          'Make a new plan with num_examples=len(x).'
        )
    if not plan.remaining_steps:
      raise ValueError(
        f'All {plan.steps} steps of the plan were made, and are charged. To '
        'train these weights longer, make a plan for what both trainings cost '
        'together: TrainingPlan.for_epsilon(epsilon=..., spent=ledger.'
        "committed_event, ledger=ledger, label='another', ...), where ledger "
        'is the one that this plan has charged, with a budget for both; '
        'without ledger= a new one is made of what was spent. A plan that '
        'knows nothing of these steps would claim less than the weights cost.'
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
    clipping = type(plan.clipping).__name__, plan.clipping.get_config()
    return [
      plan.randomness.key('workers', plan.label),
      (self.event, clipping, self._facts, plan.steps, steps, plan.label),
      self.next,
      self._fingerprint(x),
    ]

  def _fingerprint(self, x):
    arrays = tf.nest.flatten(x)
    if self.plan.units is not None:
      arrays += self.plan.units.arrays()
    return self.plan.randomness.table_fingerprint(arrays)

  @property
  def _random_name(self):
    """Names the random numbers in the ledger."""
    return self.plan.randomness.key('owner', self.plan.label).hex()

  @property
  def _facts(self):
    """What the updates of the training depend on; for the ledger."""
    if self._training is None:
      return {'optimizer': None}
    facts = self._training.noise.facts
    return {**facts, 'jit_compile': True} if self._training.compiled else facts

  def _reserve(self, identity, workers, resume):
    plan = self.plan
    if not resume and any(e.label == plan.label for e in plan.ledger.entries):
      raise LedgerError(
        f'The label {plan.label!r} is taken in this ledger. To go on with the '
        'training that it was charged for, restore it and call '
        'plan.resume(optimizer) before fit; for another training give the plan '
        'a label of its own, label=...'
      )
    reservation = plan.ledger.reserve(
      self.event,
      plan.mechanism.charges(plan.steps),
      plan.label,
      resume=resume,
      randomness_id=identity,
      seeded=plan.randomness.seeded,
      privacy_unit=plan.privacy_unit,
    )
    # The account of a worker that is not the chief begins anew.
    charges = plan.mechanism.charges(self.next)
    if resume and workers.is_chief and reservation.charged < charges:
      charged = reservation.charged * plan.sampler.parts
      raise ValueError(
        f'The optimizer has made {self.next} steps, and the ledger has charged '
        f'{charged}: it is not the ledger of that training. Give the plan the '
        'one it was charged to, PrivacyLedger.open(path); under several '
        'workers resume inside of strategy.scope().'
      )
    self._reservation = reservation
    return []

  def _pay(self, x, steps, workers):
    table = self._fingerprint(x)
    if self._reservation is None:
      facts = {**self._facts, 'table': table}
      identity = randomness_id(self._random_name, facts)
      self._reserve(identity, workers, resume=self.replays)
      if self.replays:
        self._charged_earlier = self._charged_steps
    if self.table is None:
      # What was reserved before a batch was known says nothing of the table.
      known = self._reservation._facts.get('table')
      self.table, self.other_table = table, table != known
    if self.table != table:
      raise ValueError(
        'x is not the table that this plan has drawn batches of: one plan '
        'trains on one table. Make a new plan.'
      )
    if not workers.alone:
      # The others would not wait for the chief to charge block by block.
      self._reservation.ensure(self.plan.mechanism.charges(self.next + steps))
    return []

  def _draw(self, training, stop):
    """Draws the next step below `stop`, charged; returns its number.

    `None` where there is none left, or `training` is over.
    """
    # A block is what an interrupted training may lose, see `resume`.
    mechanism = self.plan.mechanism
    block = mechanism.charges(max(1, self.plan.sampler.steps_per_epoch // 10))
    with self._lock:
      step = self.next
      if step >= stop or self._training is not training:
        return None
      self._reservation.ensure(mechanism.charges(step + 1), block)
      self.next = step + 1
      if training is None:
        self._handed_out = self.next
      else:
        training.noise.charged(self.next)
      return step

  @property
  def charged(self) -> int:
    """Number of steps that the ledger has charged for."""
    return 0 if self._reservation is None else self._charged_steps

  @property
  def _charged_steps(self):
    charged = self._reservation.charged * self.plan.sampler.parts
    return min(charged, self.plan.steps)

  def _first_open(self):
    """Returns the first step that the optimizer in training may make."""
    noise = self._current.noise
    done, unused = int(noise.done.numpy()), max(noise.unused, self._handed_out)
    if self.replays and done >= unused:
      return done
    # Weights that were taken back repeat nothing of what the earlier process
    # did: its steps are not theirs.
    return max(unused, self._charged_earlier)

  def _check_restored(self):
    """Refuses weights of steps that are in no charge of this plan's ledger."""
    noise = self._current.noise
    if self.replays and self._reservation is None:
      return  # What an earlier process has charged is known when it is opened.
    done = int(noise.done.numpy())
    known = (
      self._charged_steps
      if self.replays
      else max(noise.unused, self._charged_earlier)
    )
    if done > known:
      raise ValueError(
        f'The optimizer has made {done} steps, and this plan knows of {known}: '
        'it was restored from a training that this plan has not charged, and '
        'the statement would leave those steps out. Open the ledger of that '
        'training, PrivacyLedger.open(path), make the plan with it and the '
        'same randomness, and call plan.resume(optimizer) before fit: see '
        'docs/how-to/resume.md.'
      )

  def _noise_of(self, optimizer):
    noise = getattr(optimizer, 'noise_source', None)
    if isinstance(noise, StepNoise) and (
      noise.steps is self and noise.optimizer is optimizer
    ):
      return noise
    raise ValueError(
      f'{optimizer._name} was not made by this plan: take plan.optimizer(...).'
    )


def arrays(x: Any, name: str = 'x') -> Any:
  """Tuples and dicts, in any depth, of whatever makes an array, as arrays.

  `StoredRows` stay what they are.
  """
  if isinstance(x, StoredRows):
    return x
  if isinstance(x, dict):
    return {key: arrays(value, f'{name}[{key!r}]') for key, value in x.items()}
  if isinstance(x, tuple):
    parts = enumerate(x)
    return tuple(arrays(part, f'{name}[{i}]') for i, part in parts)
  return _array(x, name)


def _array(x, name):
  """Returns an array; refuses what NumPy would take for a single object."""
  kind = type(x).__name__
  if (
    hasattr(x, '__next__')
    or (hasattr(x, '__getitem__') and hasattr(x, 'on_epoch_end'))
    or isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset))
  ):
    raise TypeError(
      f'{name} is a {kind}, which draws batches of its own, and a plan draws '
      'them from all rows: give the rows as arrays.'
    )
  if hasattr(x, 'tocsr') or isinstance(x, (tf.SparseTensor, tf.RaggedTensor)):
    raise TypeError(
      f'{name} is a {kind}: give a dense array, of which every row has the '
      'same shape (toarray, tf.sparse.to_dense, to_tensor).'
    )
  try:
    array = np.asarray(x)
  except ValueError:
    raise ValueError(
      f'{name} is a {kind} of rows of several lengths: give an array, of which '
      'every row has the same shape; pad the shorter ones.'
    ) from None
  try:
    tf.as_dtype(array.dtype)
  except TypeError:
    raise TypeError(
      f'{name} is of {array.dtype}, which TensorFlow does not have: give '
      'numbers, such as days since a public date.'
    ) from None
  return array


def signature(x: Any) -> Any:
  """`tf.TensorSpec` of any number of rows of every array."""
  return tf.nest.map_structure(
    lambda a: tf.TensorSpec((None,) + a.shape[1:], tf.as_dtype(a.dtype)), x
  )


def _sizes(sampler):
  """Returns sizes that batches are padded to, none where all have one size.

  Three standard deviations above the mean hold nearly every Poisson batch, and
  six all but one in a billion.
  """
  if isinstance(sampler, FixedSizeSampler):
    return []
  mean = sampler.expected_batch_size
  sizes = [8 * math.ceil((mean + z * math.sqrt(mean)) / 8) for z in (3, 6)]
  return [*sizes, *(sizes[-1] * 2**i for i in range(1, 64))]


def _pad_to(sizes, drawn, weights):
  """Pads a batch to the first of `sizes` that holds its rows, if any."""
  count = np.count_nonzero(weights)  # Rows come first.
  for size in sizes:
    if size >= count:
      padding = (0, size - count)
      return np.pad(drawn[:count], padding), np.pad(weights[:count], padding)
  return drawn, weights


def take(x: Any, drawn: np.ndarray, weights: np.ndarray) -> Any:
  """Rows of every array by number; examples of weight 0 are padding: zeros.

  What is text to TensorFlow comes as bytes, whatever it is in the array: on a
  value that it cannot convert TensorFlow would end, and quote the batch.
  """
  padding = weights == 0 if weights.ndim == 1 else (weights == 0).all(1)

  def rows_of(array):
    rows = array[drawn]
    rows[padding] = b'' if array.dtype == object else array.dtype.type()
    if array.dtype.kind not in 'OU':
      return rows
    text = np.empty(rows.shape, object)
    text.reshape(-1)[:] = [_bytes(value) for value in rows.reshape(-1)]
    return text

  return tf.nest.map_structure(rows_of, x)


def _bytes(value):
  if isinstance(value, bytes):
    return value
  try:
    return str(value).encode('utf-8', 'replace')
  except Exception:
    return b''
