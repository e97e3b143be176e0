"""Training on several replicas: one noise, disjoint rows, workers that agree.

Under `tf.distribute.MirroredStrategy` and `MultiWorkerMirroredStrategy` row i
belongs to replica i mod R of R. All replicas draw the step's batch from the
same random numbers, keep their own rows of it and sum the clipped gradients of
these; the first adds the noise of the whole update to its sum; then all sums
are added up and divided by the expected size of the whole batch. No replica
sees the total without its noise.

#### Formal guarantee

The guarantee of the plan, unchanged. Under Poisson sampling each row has a coin
of its own, so a replica's share is a Poisson sample of its rows with the plan's
q, independent of the other shares, and the shares together are the very batch
that one replica would have drawn. They have no row in common, so the sum of the
clipped sums has the sensitivity of one replica's, and the noise enters it once.
Event, ledger and, up to rounding, weights are those of one replica, and a
training may resume on another number of them, without `replay`. Where the loss
draws random numbers (dropout, dequantization), each replica draws its own,
which no checkpoint keeps: such a training cannot be replayed, see
`TrainingPlan.resume`.

#### Several workers

Under `MultiWorkerMirroredStrategy` every worker runs the same program on the
whole table (an `np.memmap` on a shared disk will do), with its rows in one
order, and with the same secret: `randomness=Randomness(secret=...)`. Tables,
secrets and plans are compared before a batch is drawn: a row at two places
could enter a batch twice. Worker 0, the chief, is given the ledger and charges
all steps of a call of `fit` before any worker draws one; the others keep a copy
in memory. Every update needs the chief's part of the sum. To resume, all
workers restore the checkpoint of the chief, and call `plan.resume` inside of
`strategy.scope()`; TensorFlow needs all of them to save, the others to a folder
that is thrown away. Without a replay the steps of an interrupted call of `fit`
are lost: call `fit(x, epochs=1)` several times. Workers send each other sums
without noise: the network between them has to be as safe as the table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpflows.optimizers.noise import current_strategy

# What the workers of one training must have in common, in this order.
_FACTS = ('random numbers', 'plan', 'step', 'table')
# Shares are padded to a multiple of this.
_CHUNK = 8


def check_state(name: str, state: tf.Variable | None) -> None:
  """Checks that training here can keep `state` alike on all replicas.

  Args:
    name: what it is the state of.
    state: a variable that each replica writes, or `None`.

  Raises:
    ValueError: for an unsupported strategy, or a variable that does not belong
      to it.
  """
  strategy = current_strategy()
  if strategy.num_replicas_in_sync == 1 or state is None:
    return
  if not strategy.extended.variable_created_in_scope(state):
    raise ValueError(
      f'The {name} changes from step to step, and each replica would change '
      'it: make the optimizer inside of strategy.scope().'
    )


def is_first_replica() -> bool:
  """Whether this is the replica that adds the noise.

  Raises:
    RuntimeError: outside of `strategy.run`, where there is no replica.
  """
  if tf.distribute.get_strategy().num_replicas_in_sync == 1:
    return True
  context = tf.distribute.get_replica_context()
  number = None
  if context is not None:
    number = tf.get_static_value(
      tf.convert_to_tensor(context.replica_id_in_sync_group)
    )
  if number is None:
    raise RuntimeError(
      'This is no replica of the strategy: private gradients are taken inside '
      'of strategy.run, as model.fit does.'
    )
  return int(number) == 0


def sum_over_replicas(tensors: Any) -> Any:
  """Returns the sum of each tensor over all replicas, on every replica."""
  if tf.distribute.get_strategy().num_replicas_in_sync == 1:
    return tensors
  context = tf.distribute.get_replica_context()
  return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)


class Workers:
  """The processes that train together under one strategy.

  Args:
    strategy: a `tf.distribute.Strategy`.

  Attributes:
    num_replicas: number of replicas in all processes together.
    replicas: numbers of the replicas of this process, ascending.
    is_chief: whether this process has the first replica. It charges.
  """

  def __init__(self, strategy: tf.distribute.Strategy):
    self._strategy = strategy
    self.num_replicas = strategy.num_replicas_in_sync
    self.replicas = [0]
    if self.num_replicas > 1:
      numbers = self._on_each(lambda context: context.replica_id_in_sync_group)
      self.replicas = list(strategy.experimental_local_results(numbers))
    self.is_chief = 0 in self.replicas
    self.alone = len(self.replicas) == self.num_replicas

  def agree(self, begin: Callable[[], Sequence[Any]]) -> None:
    """Calls `begin` in every process and compares what it returns.

    Where one process fails, all do: none is left waiting for another, and all
    have come here before any goes on.

    Args:
      begin: a function without arguments that returns a list: a value for each
        of `_FACTS`, as bytes or anything with a faithful `repr`, or nothing.

    Raises:
      ValueError: if the processes differ, or another one has failed.
      Exception: what `begin` raised here.
    """
    if self.alone:
      begin()
      return
    error, row = None, np.zeros(1 + len(_FACTS), np.int64)
    try:
      facts = [_digest(fact) for fact in begin()]
      row[1 : 1 + len(facts)] = facts
    except Exception as caught:
      error, row[0] = caught, 1
    rows = self._on_each(lambda unused_context: tf.constant(row[None]))
    rows = self._strategy.gather(rows, axis=0).numpy()
    # One row for each replica is more than one for each process.
    error = error or _disagreement(rows[:: len(self.replicas)])
    if error is not None:
      raise error

  def greatest(self, number: int) -> int:
    """Returns the greatest of the integers of all processes."""
    if self.alone:
      return number
    numbers = self._on_each(
      lambda unused_context: tf.constant([number], tf.int64)
    )
    return int(np.max(self._strategy.gather(numbers, axis=0).numpy()))

  def distribute(
    self, dataset: tf.data.Dataset
  ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """Returns a dataset that hands each element to one replica, in turn.

    Args:
      dataset: a `tf.data.Dataset` with one element for each of `replicas`,
        step by step.
    """
    if self.num_replicas == 1:
      return dataset
    return self._strategy.distribute_datasets_from_function(
      lambda unused_context: dataset
    )

  def shares(
    self, drawn: np.ndarray, weights: np.ndarray
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    """Splits one batch by row: row i goes to replica i mod `num_replicas`.

    Args:
      drawn: numbers of rows `[padded]`.
      weights: `[padded]`, 0 for padding.

    Returns:
      For each of `replicas`, its part of `drawn` and of `weights`, padded.
    """
    if self.num_replicas == 1:
      return [(drawn, weights)]
    return [self._share(drawn, weights, replica) for replica in self.replicas]

  def _on_each(self, value):
    return self._strategy.experimental_distribute_values_from_function(value)

  def _share(self, drawn, weights, replica):
    own = (weights > 0) & (drawn % self.num_replicas == replica)
    padded = _CHUNK * max(1, -(-np.count_nonzero(own) // _CHUNK))
    padding = (0, padded - np.count_nonzero(own))
    return np.pad(drawn[own], padding), np.pad(weights[own], padding)


def _digest(fact):
  data = fact if isinstance(fact, bytes) else repr(fact).encode()
  return int.from_bytes(hashlib.sha256(data).digest()[:8], 'big', signed=True)


def _disagreement(rows):
  """Returns the error of workers whose rows differ, or None."""
  for worker, row in enumerate(rows):
    if row[0]:
      return ValueError(
        f'Worker {worker} of {len(rows)} could not begin; its own error says '
        'why.'
      )
  for worker, row in enumerate(rows):
    for name, value, expected in zip(_FACTS, row[1:], rows[0, 1:]):
      if value != expected:
        return ValueError(
          f'Worker {worker} of {len(rows)} and the chief, worker 0, differ in '
          f'their {name}. Every worker needs the whole table with its rows in '
          'one order, the same plan at the same step (from the checkpoint of '
          'the chief), and the same randomness=Randomness(secret=...).'
        )
  return None
