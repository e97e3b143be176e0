"""PATE-GAN: what a row can change, and what the generator is a function of."""

import os
import shutil
import types

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.tabular import small_table
from tfdpflows import accounting, pate
from tfdpflows.accounting import LedgerError
from tfdpflows.randomness import Randomness
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.models import pategan, stacked
from tfdpflows.tabular.synthesizer import TabularSynthesizer, fit_to_directory

pytestmark = pytest.mark.usefixtures('unexported')

ROW = 7
TINY = {
  'num_teachers': 12,
  'rounds': 3,
  'queries': 8,
  'teacher_steps': 3,
  'student_steps': 2,
  'generator_steps': 2,
  'generator_batch_size': 16,
}


@pytest.fixture(scope='module')
def people():
  return small_table.make()


@pytest.fixture(scope='module')
def codes(people):
  return TableEncoder(people.schema).encode(
    people.schema.validate(people.table)
  )


def _training(people, seed=5):
  """A training that has not begun, and its generator."""
  model = pategan.PATEGANModel.for_table(400, 5, **TINY)
  marginals = [
    {'edges': [0.0, c.size / 2, c.size], 'probabilities': [0.5, 0.5]}
    for c in TableEncoder(people.schema).columns
  ]
  columns = TableEncoder(people.schema).columns
  generator = model.make_distribution(columns, marginals, seed)
  return pategan.PATEGAN(generator, model, Randomness(seed=seed)), generator


def _weights(module):
  return [v.numpy() for v in module.network.variables]


def _fit(training, codes, sigma=5.0, ledger=None, folder=None, resume=False):
  work = types.SimpleNamespace(
    ledger=accounting.PrivacyLedger() if ledger is None else ledger,
    checkpoints=folder,
    resume=resume,
    progress=False,
  )
  training.fit(codes, sigma, work)


@pytest.mark.core
def test_a_row_changes_its_own_teacher_alone(people, codes, monkeypatch):
  """And one vote in each query, before the first answer."""
  shards = np.random.default_rng(0).integers(12, size=400)
  found = []
  for without in (None, ROW):
    training, _ = _training(people)
    rows, places = codes, shards
    if without is not None:
      rows, places = np.delete(codes, ROW, 0), np.delete(shards, ROW)
    sorted_rows = stacked.Shards(rows, places, 12)
    for _ in range(5):
      training._teacher_step(
        sorted_rows.codes, sorted_rows.starts, sorted_rows.sizes
      )
    asked, votes = training._votes()
    weights = [v.numpy() for v in training._teachers.trained]
    found.append((weights, asked.numpy(), votes.numpy()))
  (one, asked, votes), (other, same, moved) = found
  np.testing.assert_array_equal(asked, same)
  for a, b in zip(one, other):
    differs = (a != b).reshape(12, -1).any(1)
    assert np.flatnonzero(differs).tolist() == [shards[ROW]]
  assert np.abs(votes - moved).max() <= 1
  # Half of the queries have each teacher's vote.
  assert votes.sum() == 12 * 4


def test_shards_are_drawn_once_for_all_rounds(people, codes, monkeypatch):
  drawn = []
  partition = pate.partition

  def record(*args, **kwargs):
    drawn.append(args)
    return partition(*args, **kwargs)

  monkeypatch.setattr(pate, 'partition', record)
  _fit(_training(people)[0], codes)
  assert drawn == [(400, 12)]


@pytest.mark.core
def test_the_generator_is_a_function_of_the_answers(people, codes, monkeypatch):
  """Other rows, the same answers: the same generator and the same queries."""
  answers, asked, votes = [], [], []
  original = pate.GNMax.query

  def record(self, given):
    votes.append(given)
    answers.append(original(self, given))
    return answers[-1]

  with monkeypatch.context() as patch:
    patch.setattr(pate.GNMax, 'query', record)
    training, generator = _training(people)
    _fit(training, codes)
    asked.append(training._asked.numpy())
  assert len(answers) == 3
  replay = iter(answers)
  others = []

  def again(self, given):
    others.append(given)
    return next(replay)

  monkeypatch.setattr(pate.GNMax, 'query', again)
  training, same = _training(people)
  _fit(training, codes[::-1] * 0.5)
  np.testing.assert_array_equal(training._asked.numpy(), asked[0])
  for a, b in zip(_weights(generator), _weights(same)):
    np.testing.assert_array_equal(a, b)
  # The teachers were others.
  assert not np.array_equal(votes, others)
  # And other answers make another generator.
  replay = iter([1 - a for a in answers])
  training, other = _training(people)
  _fit(training, codes)
  assert any(
    not np.array_equal(a, b)
    for a, b in zip(_weights(generator), _weights(other))
  )


def test_an_empty_shard_and_a_broken_teacher_vote_on(people, codes):
  training, _ = _training(people)
  initial = [v.numpy() for v in training._teachers.trained]
  shards = np.random.default_rng(0).integers(1, 12, size=400)  # None for 0.
  rows = stacked.Shards(codes, shards, 12)
  for _ in range(3):
    training._teacher_step(rows.codes, rows.starts, rows.sizes)
  for before, after in zip(initial, training._teachers.trained):
    np.testing.assert_array_equal(before[0], after[0])
    assert (before[1:] != after[1:].numpy()).any()
    assert np.isfinite(after).all()
  kernel = training._teachers.trained[0]
  kernel.assign(tf.concat([kernel[:1] * np.nan, kernel[1:]], 0))
  _, votes = training._votes()
  assert votes.numpy().sum() == 12 * 4


def test_what_is_charged(people, codes):
  """Each query, before it is answered; nothing above the budget."""
  plan = pategan.PATEGANModel.for_table(400, 5, **TINY)
  budget = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  found = plan.plan_training(
    400, budget=budget, spent=accounting.GNMaxDpEvent(50.0), accountant='pld'
  )
  assert found.num_queries == 24
  ledger = accounting.PrivacyLedger(budget=budget)
  ledger.charge(accounting.GNMaxDpEvent(50.0), label='before')
  training, _ = _training(people)
  _fit(training, codes, found.sigma, ledger)
  assert 0.99 < ledger.epsilon() <= 1.0
  counts = [e.count for e in ledger.entries if e.label.startswith('votes')]
  assert counts == [8, 8, 8]
  # Training stops before the round that would be too much.
  ledger = accounting.PrivacyLedger(budget=budget)
  training, _ = _training(people)
  with pytest.raises(accounting.BudgetExceededError):
    _fit(training, codes, 0.75 * found.sigma, ledger)
  assert 0 < ledger.epsilon() <= 1.0
  assert training._answered.numpy() == len(ledger.entries) < 3


def test_fewer_rows_than_teachers(people):
  synthesizer = TabularSynthesizer(
    people.schema, **people.budget, model='pategan', num_teachers=30
  )
  with pytest.raises(ValueError, match='num_teachers is 30.* has 20 rows'):
    synthesizer.fit(people.table[:20], progress=False)
  assert synthesizer.ledger is None


class TestResume:
  def _fit(self, people, folder, **arguments):
    return fit_to_directory(
      people.table,
      people.schema,
      folder,
      model='pategan',
      progress=False,
      **{**people.budget, **TINY, **arguments},
    )

  @pytest.fixture(autouse=True)
  def _same_secret(self, monkeypatch):
    monkeypatch.setattr(os, 'urandom', lambda size: bytes(range(size)))

  @pytest.fixture(scope='class')
  def expected(self, people, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(os, 'urandom', lambda size: bytes(range(size)))
      return self._fit(people, tmp_path_factory.mktemp('expected') / 'model')

  def _interrupted(self, people, folder, monkeypatch):
    """Stops between the second round's answers and their being saved."""
    save, saved = tf.train.CheckpointManager.save, []

    def stop(self, *args, **kwargs):
      saved.append(1)
      if len(saved) == 2:
        raise OSError('no disk')
      return save(self, *args, **kwargs)

    with monkeypatch.context() as patch:
      patch.setattr(tf.train.CheckpointManager, 'save', stop)
      with pytest.raises(OSError, match='no disk'):
        self._fit(people, folder)
    path = folder.parent / 'model.partial' / 'ledger.jsonl'
    with accounting.PrivacyLedger.open(path, read_only=True) as ledger:
      # Charged, and maybe answered.
      assert [e.label for e in ledger.entries] == [
        'marginals', 'votes 1 1', 'votes 2 1'
      ]  # fmt: skip

  def test_goes_on(self, people, expected, tmp_path, monkeypatch):
    """The same rows, and nothing charged twice."""
    self._interrupted(people, tmp_path / 'model', monkeypatch)
    resumed = self._fit(people, tmp_path / 'model', resume=True)
    assert resumed.ledger.entries == expected.ledger.entries
    assert resumed.ledger.epsilon() <= people.budget['epsilon']
    pd.testing.assert_frame_equal(
      resumed.sample(500, seed=0), expected.sample(500, seed=0)
    )

  def test_a_ledger_from_before_the_saved_round_is_refused(
    self, people, tmp_path, monkeypatch
  ):
    path, ask = (
      tmp_path / 'model.partial' / 'ledger.jsonl',
      pategan.PATEGAN._ask,
    )

    def copied(self, shards, number, *args):
      if not number:
        shutil.copy(path, tmp_path / 'copy')
      return ask(self, shards, number, *args)

    with monkeypatch.context() as patch:
      patch.setattr(pategan.PATEGAN, '_ask', copied)
      self._interrupted(people, tmp_path / 'model', monkeypatch)
    shutil.copy(tmp_path / 'copy', path)
    with pytest.raises(LedgerError, match='an older copy'):
      self._fit(people, tmp_path / 'model', resume=True)

  def test_other_votes_are_not_answered(self, people, tmp_path, monkeypatch):
    """The noise of an answer that may be known is for the same votes alone."""
    self._interrupted(people, tmp_path / 'model', monkeypatch)
    votes = pategan.PATEGAN._votes
    monkeypatch.setattr(
      pategan.PATEGAN,
      '_votes',
      lambda self: (lambda asked, v: (asked, 12 - v))(*votes(self)),
    )
    with pytest.raises(LedgerError):
      self._fit(people, tmp_path / 'model', resume=True)
