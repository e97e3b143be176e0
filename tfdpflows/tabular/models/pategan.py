"""PATE-GAN: a generator against a student of teachers' noisy votes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import dp_accounting
import numpy as np
import tensorflow as tf

from tfdpflows import accounting, pate, sampling
from tfdpflows import progress as bars
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import system_errors
from tfdpflows.tabular.models.base import positive, share, whole
from tfdpflows.tabular.models.dp_sgd import check_charged
from tfdpflows.tabular.models.gan import (
  GANModel,
  GeneratorTraining,
  Network,
  TableGenerator,
  adam,
)
from tfdpflows.tabular.models.stacked import Shards, StackedNetworks, batch_rows

if TYPE_CHECKING:
  from tfdpflows.tabular.fitting import Spending
  from tfdpflows.tabular.work_directory import WorkDirectory

# Rows per teacher of the default number of teachers, and how many at most.
_ROWS_PER_TEACHER, _MOST_TEACHERS = 16, 1000
_LABEL = 'votes'
# Answers in a step of the student.
_STUDENT_BATCH = 64


@dataclasses.dataclass(frozen=True)
class PATEGANModel(GANModel):
  """PATE-GAN (Jordon et al. 2019), with votes of `pate.GNMax`.

  In each round the teachers are trained further, each on its own shard and on
  generated rows; they vote on new generated rows; a student is trained on the
  answers, and the generator against the student.

  Attributes:
    num_teachers: number of teachers, and of shards of the rows.
    rounds: number of rounds.
    queries: generated rows that are voted on in a round.
    teacher_steps: steps of each teacher in a round.
    teacher_batch_size: rows of a step, drawn from the shard.
    teacher_units: width of the hidden layer of a teacher.
    teacher_learning_rate: of the teachers' Adam.
    student_steps: steps of the student in a round.
    student_learning_rate: of the student's Adam.
    memory: how many rounds' answers the student is trained on.
    generator_steps: steps of the generator in a round.

  #### Example

  >>> PATEGANModel.for_table(8_000, 9).num_teachers
  500
  """

  name: ClassVar[str] = 'pategan'

  marginal_share: float = share(0.25)
  num_teachers: int = whole(200, 2)
  rounds: int = whole(40, 1)
  queries: int = whole(32, 2)
  teacher_steps: int = whole(10, 1)
  teacher_batch_size: int = whole(16, 1)
  teacher_units: int = whole(8, 1)
  teacher_learning_rate: float = positive(1e-2)
  student_steps: int = whole(20, 1)
  student_learning_rate: float = positive(1e-3)
  memory: int = whole(10, 1)
  generator_steps: int = whole(5, 1)

  @classmethod
  def _defaults(cls, num_examples, *unused_args):
    teachers = min(num_examples // _ROWS_PER_TEACHER, _MOST_TEACHERS)
    return {'num_teachers': max(teachers, 2)}

  def plan_training(
    self,
    num_examples: int,
    *,
    budget: accounting.PrivacyBudget,
    spent: dp_accounting.DpEvent,
    accountant: str,
  ) -> pate.QueryPlan:
    """See `TableModel`: the least noise for all votes.

    Raises:
      ValueError: if there are fewer rows than teachers.
    """
    if num_examples < self.num_teachers:
      raise ValueError(
        f'num_teachers is {self.num_teachers}, and the table has '
        f'{num_examples} rows: each teacher needs one at least, and should '
        'have many.'
      )
    return pate.plan_queries(
      budget,
      num_teachers=self.num_teachers,
      num_classes=2,
      num_queries=self.rounds * self.queries,
      spent=spent,
      accountant=accountant,
    )

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
    del units, total  # Shards are of rows.
    training = PATEGAN(distribution, self, work.randomness)
    training.fit(codes, spending.plan.sigma, work)

  def describe_sampling(
    self, plan: pate.QueryPlan, privacy_unit: str | None
  ) -> None:
    """See `TableModel`: no rows are sampled."""

  def notes(self) -> list[str]:
    """See `TableModel`."""
    return [
      f'PATE: the rows are split once, at random, into {self.num_teachers} '
      'disjoint shards, and each trains one teacher. Teachers only vote, and '
      'all votes are charged at a cost that does not depend on them.'
    ]


class PATEGAN(tf.Module):
  """The training of a `TableGenerator` on answers of teachers.

  #### Formal guarantee

  All that leaves this class, the generator, is a function of the answers and of
  random numbers that are independent of the rows. By induction over the rounds:
  what the generator, the student and the queries are is a function of earlier
  answers. Teacher t is a function of its shard, of generated rows and of such
  numbers: the stacked networks have no operation across teachers, batches are
  drawn by place within the shard, and Adam's state is coordinate by coordinate.
  Each row draws its shard by itself, once (`pate.partition`). So one row, added
  or removed, or replaced in its place, changes one vote in each query, which
  are the queries that `pate.GNMax` charges and answers. A teacher whose weights
  are no numbers votes for the first half of the queries, one without rows by
  its initial weights: neither ends the training, or shows.

  A teacher votes for that half of the queries of a round which look more real
  to it than the rest. That is a function of the teacher and of the queries, as
  any vote, and says more than votes of teachers that take nearly all rows for
  generated.

  **After a kill.** The state is saved once a round: right after its answers,
  and with them. A query whose answer was not saved was used for nothing. It is
  asked again under the same charge, which `pate.GNMax` allows for the same
  votes and noise alone, so that the answer is the same too; for other votes, of
  teachers that rounding took elsewhere, it raises a `LedgerError`, and the fit
  ends there. What follows on the answers is post-processing, and is computed
  anew. So no query is answered twice with different noise or votes, and each
  was charged before it was answered.

  The saved state holds the teachers: it is as private as the rows.
  """

  def __init__(
    self,
    generator: TableGenerator,
    settings: PATEGANModel,
    randomness: Randomness,
  ):
    super().__init__(name='pategan')
    self._generator = generator
    self._settings = settings
    self._randomness = randomness
    inputs = generator.num_indicators
    self._teachers = StackedNetworks(
      settings.num_teachers,
      inputs,
      settings.teacher_units,
      randomness.numpy('teachers'),
      name='teachers',
    )
    self._student = Network(
      [inputs, *settings.hidden_units, 1],
      randomness.numpy('student'),
      name='student',
    )
    self._training = GeneratorTraining(generator, settings, randomness)
    self._random = self._training.random
    self._teacher_optimizer = adam(
      settings.teacher_learning_rate, self._teachers.trained
    )
    self._student_optimizer = adam(
      settings.student_learning_rate, self._student.trainable_variables
    )
    queries = settings.rounds * settings.queries
    self._asked = tf.Variable(tf.zeros([queries, inputs]), trainable=False)
    self._answers = tf.Variable(tf.zeros([queries]), trainable=False)
    # How many rounds have their answers.
    self._answered = tf.Variable(0, dtype=tf.int64, trainable=False)

  def fit(self, codes: np.ndarray, sigma: float, work: WorkDirectory) -> None:
    """Trains to the end.

    Args:
      codes: private codes, float32 `[n, d]`.
      sigma: standard deviation of the noise on each count of votes.
      work: see `TableModel.train`; its ledger is charged for each vote before
        that is taken.
    """
    settings, ledger = self._settings, work.ledger
    shards = pate.partition(
      len(codes), settings.num_teachers, randomness=self._randomness
    )
    shards = Shards(codes, shards, settings.num_teachers)
    manager = self._manager(work.checkpoints)
    start = int(self._answered.numpy())
    for number in range(start):
      check_charged(
        ledger,
        f'{_LABEL} {number + 1} 1',  # Its first query, of all rows at once.
        settings.queries,
        manager.latest_checkpoint,
      )
    shown = bars.bar('round', settings.rounds, work.progress, start)
    if start:
      self._learn_from_answers(start - 1)
    for number in range(start, settings.rounds):
      self._ask(shards, number, sigma, work)
      if manager is not None:
        with system_errors.of_file(manager.directory):
          manager.save()
      self._learn_from_answers(number)
      bars.add_one(shown, ledger)
    shown.close()
    self._training.finish()

  def _manager(self, folder):
    if folder is None:
      return None
    checkpoint = tf.train.Checkpoint(state=self)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
    latest = manager.latest_checkpoint
    if latest:
      with system_errors.of_file(latest):
        checkpoint.restore(latest).assert_consumed()
    return manager

  def _ask(self, shards, number, sigma, work):
    """Trains the teachers, and has a round's queries answered."""
    settings = self._settings
    for _ in range(settings.teacher_steps):
      self._teacher_step(shards.codes, shards.starts, shards.sizes)
    asked, votes = self._votes()
    aggregator = pate.GNMax(
      sigma=sigma,
      num_teachers=settings.num_teachers,
      num_classes=2,
      ledger=work.ledger,
      randomness=self._randomness,
      label=f'{_LABEL} {number + 1}',
      resume=work.resume,
    )
    votes = votes.numpy().astype(np.int64)
    answers = aggregator.query(
      np.stack([settings.num_teachers - votes, votes], 1)
    )
    places = slice(number * settings.queries, (number + 1) * settings.queries)
    self._asked[places].assign(asked)
    self._answers[places].assign(answers.astype(np.float32))
    self._answered.assign(number + 1)

  @tf.function(autograph=False)
  def _teacher_step(self, codes, starts, sizes):
    settings = self._settings
    count = settings.teacher_batch_size
    made, _ = self._generator.make_rows(count, self._random)
    made = tf.stop_gradient(made)
    # The same number of draws for each shard, whatever its size.
    uniform = self._random.uniform(
      [settings.num_teachers, count], dtype=tf.float64
    )
    rows = batch_rows(uniform, starts, sizes, tf.shape(codes)[0])
    real = self._generator.indicators(tf.gather(codes, tf.reshape(rows, [-1])))
    real = tf.reshape(real, [settings.num_teachers, count, -1])
    is_empty = sizes[:, None, None] == 0
    real = tf.where(is_empty, tf.zeros_like(real), real)
    variables = self._teachers.trained
    with tf.GradientTape() as tape:
      of_real = self._teachers(real)
      of_made = self._teachers(made[None])
      losses = tf.reduce_mean(
        tf.nn.softplus(-of_real) + tf.nn.softplus(of_made), 1
      )
      losses = tf.where(sizes == 0, tf.zeros_like(losses), losses)
      loss = tf.reduce_sum(losses)
    found = tape.gradient(loss, variables)
    self._teacher_optimizer.apply_gradients(zip(found, variables))

  @tf.function(autograph=False)
  def _votes(self):
    """Returns new rows, and how many teachers vote for each."""
    settings = self._settings
    asked, _ = self._generator.make_rows(settings.queries, self._random)
    scores = self._teachers(asked[None])
    # Of what is no number the order would not be defined.
    scores = tf.where(tf.math.is_nan(scores), tf.zeros_like(scores), scores)
    order = tf.argsort(scores, axis=1, direction='DESCENDING', stable=True)
    place = tf.argsort(order, axis=1)
    votes = tf.reduce_sum(tf.cast(place < settings.queries // 2, tf.int32), 0)
    return asked, votes

  def _learn_from_answers(self, number):
    settings = self._settings
    end = (number + 1) * settings.queries
    start = max(0, end - settings.memory * settings.queries)
    limits = tf.constant(start), tf.constant(end)
    for _ in range(settings.student_steps):
      self._student_step(*limits)
    for _ in range(settings.generator_steps):
      self._generator_step()

  @tf.function(autograph=False)
  def _student_step(self, start, end):
    rows = self._random.uniform([_STUDENT_BATCH], start, end, tf.int32)
    asked = tf.gather(self._asked, rows)
    answers = tf.gather(self._answers, rows)
    variables = self._student.trainable_variables
    with tf.GradientTape() as tape:
      scores = self._student(asked)[:, 0]
      losses = tf.nn.sigmoid_cross_entropy_with_logits(answers, scores)
      loss = tf.reduce_mean(losses)
    found = tape.gradient(loss, variables)
    self._student_optimizer.apply_gradients(zip(found, variables))

  @tf.function(autograph=False)
  def _generator_step(self):
    self._training.step(self._student)
