"""Fits of which several processes, or devices, train the model together.

The chief, worker 0, does all of a fit but training by itself: it alone reads
the table, holds the ledger, and releases what comes before (histograms,
marginals). The others wait. Then it hands over what they need, in the work
directory on a disk that all share: what was released, the weights to begin
with, and the plan. Each opens the codes that the chief has stored, of which it
reads in training the rows of its own replicas only, and all train as
`tfdpflows.training.replicas` has it. The trained weights come back to a model
of the chief alone, which finishes the fit.

#### Formal guarantee

That of a fit in one process: no mechanism but the training runs elsewhere, and
the training has the event, the charges and, up to rounding, the sums of one
process. Its interrupted steps are made again by as many workers and replicas
only: others would round sums in another order, and the same noise on two sums
would reveal their difference. As there, machines that are resumed on should
have the same processors and libraries. Where the loss draws points, these are
a function of the secret, the step and the replica.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdpflows import atomic
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.optimizers.noise import current_strategy
from tfdpflows.sampling import PoissonSampler
from tfdpflows.tabular import code_store
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.work_directory import weights_seed
from tfdpflows.training.plan import TrainingPlan
from tfdpflows.training.replicas import Workers

if TYPE_CHECKING:
  import numpy as np

  from tfdpflows.stored_rows import StoredRows
  from tfdpflows.tabular.density import TableDensity
  from tfdpflows.tabular.models.flow import FlowModel
  from tfdpflows.tabular.work_directory import WorkDirectory

# In the work directory.
_FOLDER, _HANDED, _START = 'workers', 'handed.json', 'start'
# Of the errors of TensorFlow, those of a worker that cannot be reached.
_LOST = (
  tf.errors.UnavailableError,
  tf.errors.AbortedError,
  tf.errors.CancelledError,
  tf.errors.DeadlineExceededError,
)


class Team:
  """The replicas that train the model of a fit together.

  Args:
    strategy: a `tf.distribute.MirroredStrategy` or
      `MultiWorkerMirroredStrategy`.

  Attributes:
    strategy: see above.
    is_chief: whether this process is the one that does all but training.
    alone: whether all replicas are in this process.
  """

  def __init__(self, strategy: tf.distribute.Strategy):
    self.strategy = strategy
    with strategy.scope():
      current_strategy()  # Refuses those that are not supported.
      self._workers = Workers(strategy)
    self.is_chief, self.alone = self._workers.is_chief, self._workers.alone
    self._told = self.alone

  def __str__(self) -> str:
    of_each = len(self._workers.replicas)
    count = self._workers.num_replicas // of_each
    return f'{count} worker(s) with {of_each} replica(s) each'

  def check(self, schema: Any, data: Any, work_dir: Any) -> None:
    """Refuses what several processes cannot do.

    Raises:
      ValueError: for a schema with marks, a table that is in no files, or no
        work directory.
    """
    if self.alone:
      return
    if work_dir is None:
      raise ValueError(
        'Several workers need a work_dir, on a disk that they share: the chief '
        'hands over there what the others need.'
      )
    if schema.is_draft:
      raise ValueError(
        'Several workers need a schema without "fromData" marks: private '
        'bounds are found by one process. Replace the marks by public '
        'knowledge, or fit in one process.'
      )
    if not isinstance(data, (str, os.PathLike, list, tuple, code_store.Source)):
      raise ValueError(
        f'Several workers take a table that is in files, and this is a '
        f'{type(data).__name__}: write it to a Parquet file, and give its path.'
      )

  @contextlib.contextmanager
  def together(self) -> Iterator[None]:
    """Returns a context for all that a process does of a fit.

    Where one fails before training, the others fail too, as soon as the chief
    is where training would begin.
    """
    # Of an earlier fit of this team the others were told.
    self._told = self.alone
    try:
      yield
    except BaseException:
      if not self._told:
        with contextlib.suppress(Exception):
          self._tell(failed=True)
      raise
    if not self._told:
      self._tell(training=False)

  def _tell(self, failed=False, training=True):
    def begin():
      if failed:
        raise ValueError('It has failed.')
      return []

    self._told = True
    with self._reached():
      self._workers.agree(begin)
      self._workers.greatest(int(training))

  def wait(self) -> bool:
    """Waits for the chief; returns whether there is a model to train.

    Raises:
      ValueError: if the chief has failed.
      ConnectionError: if it is gone.
    """
    self._told = True
    with self._reached():
      self._workers.agree(list)
      return bool(self._workers.greatest(0))

  def train(
    self,
    model: FlowModel,
    density: TableDensity,
    codes: np.ndarray | StoredRows,
    plan: TrainingPlan,
    work: WorkDirectory,
  ) -> None:
    """Trains a density; for the process that leads.

    It has the weights that training begins with, and gets the trained ones.
    """
    marginals = [
      {**histogram, **learned}
      for histogram, learned in zip(density.histograms(), density.learned())
    ]
    with contextlib.ExitStack() as stack:
      if self.alone:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
      else:
        folder = os.path.join(os.path.dirname(work.checkpoints), _FOLDER)
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder, 0o700)
      start = os.path.join(folder, _START)
      tf.train.Checkpoint(**density.saved_parts()).write(start)
      if not self.alone:
        handed = {
          'hyperparameters': dataclasses.asdict(model),
          'marginals': marginals,
          'num_examples': plan.sampler.num_examples,
          # It may have been chosen privately.
          'most_rows': plan.units and plan.units.max_rows_per_unit,
          'resume': work.resume,
          'plan': {
            'sampling_probability': plan.sampler.sampling_probability,
            'noise_multiplier': plan.noise_multiplier,
            'steps': plan.steps,
            'accountant': plan.accountant,
            'delta': plan.delta,
            'label': plan.label,
          },
        }
        path = os.path.join(folder, _HANDED)
        atomic.write_file(path, json.dumps(handed).encode(), private=True)
        self._tell()
        self._compare(lambda: _facts(work, folder, codes))
      trained = self._train(
        model,
        density.columns,
        marginals,
        folder,
        codes,
        plan,
        work,
        saves=work.checkpoints,
      )
      done = os.path.join(folder, 'trained')
      tf.train.Checkpoint(**trained.saved_parts()).write(done)
      parts = tf.train.Checkpoint(**density.saved_parts())
      parts.read(done).assert_existing_objects_matched()

  def follow(
    self,
    work_dir: str,
    begin: Callable[
      [int, bool], tuple[FlowModel, Any, WorkDirectory, StoredRows, Any]
    ],
  ) -> None:
    """Trains with the chief; for all other processes, after `wait`.

    Args:
      work_dir: path of the work directory.
      begin: a function of the number of examples that the chief has found, and
        of whether it resumes a fit; returns the `FlowModel`, the `TableSchema`,
        the `WorkDirectory`, the codes and their `Units` or `None`.

    Raises:
      ValueError: if `begin` fails, or this process and the chief differ.
      ConnectionError: if another process is gone.
    """
    folder, found = os.path.join(work_dir, _FOLDER), []

    def join():
      with open(os.path.join(folder, _HANDED), 'rb') as file:
        handed = json.loads(file.read())
      model, schema, work, codes, units = begin(
        handed['num_examples'], handed['resume']
      )
      found.extend([handed, model, schema, work, codes, units])
      return _facts(work, folder, codes)

    self._compare(join)
    handed, model, schema, work, codes, units = found
    if units is not None:
      units = units.limited(handed['most_rows'])
    model = dataclasses.replace(model, **handed['hyperparameters'])
    plan = _plan(handed, model, work, units)
    # TensorFlow needs all workers to save.
    with tempfile.TemporaryDirectory() as thrown_away:
      self._train(
        model,
        TableEncoder(schema).columns,
        handed['marginals'],
        folder,
        codes,
        plan,
        work,
        saves=thrown_away,
      )

  @contextlib.contextmanager
  def _reached(self):
    """Raises the errors of a worker that is gone as a `ConnectionError`."""
    try:
      yield
    except _LOST as error:
      if self.alone:
        raise
      raise ConnectionError(
        'Another worker is gone, or the connection to it; its own output may '
        'say why. Start all workers again, with resume (--resume) if there is '
        'unfinished work: no step is charged twice.'
      ) from error

  def _compare(self, begin):
    with self._reached():
      self._workers.agree(begin)

  def _train(self, model, columns, marginals, folder, codes, plan, work, saves):
    """Trains a density whose variables are those of all replicas."""
    with self._reached(), self.strategy.scope():
      density = model.make_distribution(
        columns, marginals, weights_seed(work.randomness)
      )
      start = tf.train.Checkpoint(**density.saved_parts())
      start.read(os.path.join(folder, _START)).assert_existing_objects_matched()
      model.train_steps(density, codes, plan, work, saves)
    return density


def team_of_scope() -> Team | None:
  """Returns the `Team` of the current strategy, `None` for one replica."""
  strategy = current_strategy()
  if strategy.num_replicas_in_sync == 1:
    return None
  return Team(strategy)


def is_in_scope() -> bool:
  """Whether the caller is in the scope of a strategy."""
  return tf.distribute.has_strategy()


def out_of_scope(function: Callable[[], Any]) -> Any:
  """Calls a function outside of the strategy's scope that the caller is in.

  There, in a thread of its own, since a scope belongs to a thread: what is done
  before and after training is not for all replicas.
  """
  if not is_in_scope():
    return function()
  result, error = [], []

  def run():
    try:
      result.append(function())
    except BaseException as caught:
      error.append(caught)

  thread = threading.Thread(target=run, name='fit')
  thread.start()
  while thread.is_alive():
    try:
      thread.join()
    except KeyboardInterrupt:
      # Python interrupts the main thread only.
      ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
      )
  if error:
    raise error[0]
  return result[0]


def _facts(work, folder, codes):
  """Returns what all workers are to have in common."""
  with open(os.path.join(folder, _HANDED), 'rb') as file:
    handed = hashlib.sha256(file.read())
  return [
    work.randomness.key('workers'),
    handed.digest(),
    None,
    work.randomness.table_fingerprint([codes]),
  ]


def _plan(handed, model, work, units):
  """Returns the plan of the chief, whose ledger is the one that counts."""
  known = handed['plan']
  return TrainingPlan(
    PoissonSampler(
      num_examples=handed['num_examples'],
      sampling_probability=known.pop('sampling_probability'),
    ),
    model.clipping_strategy(),
    ledger=PrivacyLedger(
      accountant=known['accountant'], privacy_unit=units and units.name
    ),
    randomness=work.randomness,
    units=units,
    **known,
  )
