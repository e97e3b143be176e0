"""Fits that are killed or run out of disk, and go on without paying twice."""

import json
import os
import resource
import shutil
import signal
import types
from unittest import mock

import pytest

from tests import forked, unproven
from tests.grids import thinned
from tests.tabular import small_table
from tfdpflows.accounting import LedgerError, PrivacyLedger
from tfdpflows.accounting.ledger import file as ledger_file
from tfdpflows.mechanisms import Histogram
from tfdpflows.tabular import models, work_directory
from tfdpflows.tabular.density import TableDensity
from tfdpflows.tabular.drafting import draft_schema
from tfdpflows.tabular.models import dp_sgd
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.synthesizer import TabularSynthesizer, fit_to_directory

pytestmark = pytest.mark.usefixtures('unexported')

# A fit that kills itself at some moment. Its secret is always the same, so
# that fits can be compared; it is not a seed: the secret is kept in a file.
_FIT = f"""
import contextlib, json, os, signal, sys
import pandas as pd
from tfdpflows.sampling import PoissonSampler
from tfdpflows.tabular import TableSchema, synthesizer
from tfdpflows.tabular.density import TableDensity
from tfdpflows.tabular.models import dp_sgd
import tensorflow as tf
from {unproven.__name__} import unproven

moment, model_dir, table, schema, arguments, without_proof = sys.argv[1:]
os.urandom = lambda size: bytes(range(size))
batches, saves = [], []

def kill(*unused_args, **unused_kwargs):
  os.kill(os.getpid(), signal.SIGKILL)

def batch(self, *args):
  batches.append(1)
  return kill() if len(batches) == 14 else draw(self, *args)

def save(self, *args, **kwargs):
  saves.append(1)
  return keep(self, *args, **kwargs) if len(saves) == 1 else kill()

draw, keep = PoissonSampler.draw, tf.train.CheckpointManager.save
if moment == 'first epoch':
  # The first one is of the start.
  tf.train.CheckpointManager.save = save
elif moment == 'training':
  PoissonSampler.draw = batch
elif moment == 'save':
  TableDensity.export = kill
with contextlib.ExitStack() as stack:
  if without_proof == 'True':
    stack.enter_context(unproven())
  synthesizer.fit_to_directory(
    pd.read_csv(table, float_precision='round_trip'),
    TableSchema.from_json(schema),
    model_dir,
    progress=False,
    **json.loads(arguments),
  )
"""


def _fit(people, model_dir, **arguments):
  return fit_to_directory(
    people.table,
    people.schema,
    model_dir,
    progress=False,
    **{**people.budget, **people.quick, **arguments},
  )


@pytest.fixture(scope='module')
def people():
  return small_table.make()


@pytest.fixture(autouse=True)
def _same_secret(monkeypatch):
  monkeypatch.setattr(os, 'urandom', lambda size: bytes(range(size)))


@pytest.fixture(scope='module')
def reference(people, tmp_path_factory):
  """The same fit, not interrupted."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(os, 'urandom', lambda size: bytes(range(size)))
    return TabularSynthesizer(
      people.schema, **people.budget, **people.quick
    ).fit(
      people.table,
      work_dir=tmp_path_factory.mktemp('reference') / 'work',
      progress=False,
    )


@pytest.fixture
def killed(people, tmp_path, moment):
  """The folder of a fit that was killed at a moment."""
  people.table.to_csv(tmp_path / 'table.csv', index=False)
  people.schema.to_json(tmp_path / 'schema.json')
  arguments = json.dumps({**people.budget, **people.quick})
  (tmp_path / 'fit').mkdir()
  # It is proven in the full tests, as what goes on with it is.
  without_proof = unproven.is_unproven()
  words = ['table.csv', 'schema.json', arguments, str(without_proof)]
  log = tmp_path / 'log.txt'
  program = ['-c', _FIT, moment, 'fit/model', *words]
  status = forked.run(program, log, folder=tmp_path)
  assert status == -signal.SIGKILL, log.read_text()
  return tmp_path / 'fit'


def _check(model_dir, reference):
  """The model is there, alone, and the one of the uninterrupted fit."""
  assert os.listdir(model_dir.parent) == ['model']
  model = TabularSynthesizer.load(model_dir)
  assert model.ledger.entries == reference.ledger.entries
  small_table.assert_same_model(model, reference)


def _charged(partial):
  with PrivacyLedger.open(partial / 'ledger.jsonl', read_only=True) as ledger:
    return {entry.label: entry.count for entry in ledger.entries}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('moment', 'charged'),
  thinned(
    [('training', {14}), ('first epoch', range(8, 17)), ('save', {16})], 1
  ),
)
def test_killed_fit_goes_on(moment, charged, killed, reference, people):
  model_dir = killed / 'model'
  partial = killed / 'model.partial'
  assert os.listdir(killed) == ['model.partial']
  assert (partial / 'secret').exists()
  # Written ahead, in blocks of a step, since an epoch has eight.
  before = _charged(partial)
  assert before['marginals'] == 1
  assert before['DP-SGD'] in charged
  # The first is of the start.
  assert (partial / 'checkpoints').exists()
  with pytest.raises(FileExistsError, match='was not finished'):
    _fit(people, model_dir)
  with pytest.raises(ValueError, match=r'another epsilon: 8\.0, and not 9\.0'):
    _fit(people, model_dir, resume=True, epsilon=9.0)
  assert _charged(partial) == before
  if moment == 'save':
    # Without its checkpoint a fit starts over, and still pays nothing.
    (index,) = (partial / 'checkpoints').glob('*.index')
    content = index.read_bytes()
    index.write_bytes(content[:-20])
    with pytest.raises(OSError, match='checkpoints/ckpt'):
      _fit(people, model_dir, resume=True)
    shutil.rmtree(partial / 'checkpoints')
  _fit(people, model_dir, resume=True)
  _check(model_dir, reference)


def test_a_ledger_from_before_the_checkpoint_is_refused(people, tmp_path):
  """Also where no step is left, so that none is charged."""
  work = tmp_path / 'work'
  path, train = work / 'ledger.jsonl', dp_sgd.train

  def copied(*args, **kwargs):
    shutil.copy(path, tmp_path / 'copy')
    train(*args, **kwargs)

  def fit(**arguments):
    return TabularSynthesizer(
      people.schema, **people.budget, **people.quick
    ).fit(people.table, work_dir=work, progress=False, **arguments)

  with mock.patch.object(dp_sgd, 'train', copied):
    fit().ledger.close()
  shutil.copy(tmp_path / 'copy', path)
  with pytest.raises(LedgerError, match="'DP-SGD', of which .* has charged 0"):
    fit(resume=True)


@pytest.mark.parametrize('model', ['spline', 'dpgan', 'pategan'])
def test_what_is_rounded_otherwise_is_not_trained_again(
  model, people, tmp_path, monkeypatch
):
  """The same noise on two sums would show their difference."""
  work = tmp_path / 'work'
  fit = lambda **arguments: TabularSynthesizer(
    people.schema, model=model, hidden_units=(4,), **people.budget
  ).fit(people.table, work_dir=work, progress=False, **arguments)
  with monkeypatch.context() as patch:
    patch.setattr(models.model_class(model), 'train', _interrupted)
    for resume in (False, True):
      with pytest.raises(KeyboardInterrupt):
        fit(resume=resume)
  probabilities = Histogram.probabilities
  other = lambda self: probabilities(self) * (1 + 1e-15)
  monkeypatch.setattr(Histogram, 'probabilities', other)
  with pytest.raises(ValueError, match='where numbers are rounded otherwise'):
    fit(resume=True)


def _interrupted(*unused_args, **unused_kwargs):
  raise KeyboardInterrupt


def _full(*unused_args):
  raise OSError(28, os.strerror(28))


def test_a_bad_day(reference, people, tmp_path, monkeypatch):
  """One failure after another, each in a clear error, and nothing is lost."""
  model_dir, partial = tmp_path / 'model', tmp_path / 'model.partial'
  write = ledger_file._write

  def full(descriptor, data, offset):
    _full() if b'"advance"' in data else write(descriptor, data, offset)

  # The disk is full when the ledger is written, where TensorFlow draws.
  with monkeypatch.context() as patch:
    patch.setattr(ledger_file, '_write', full)
    with pytest.raises(LedgerError, match='^Cannot write .*No space left'):
      _fit(people, model_dir)
  assert _charged(partial)['DP-SGD'] == 0

  # It is full when a checkpoint is written, by TensorFlow too.
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
  try:
    with pytest.raises(OSError, match='checkpoints'):
      _fit(people, model_dir, resume=True)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert 8 <= _charged(partial)['DP-SGD'] <= 16

  # And when the model is.
  with monkeypatch.context() as patch:
    patch.setattr(TableDensity, 'export', _full)
    with pytest.raises(OSError, match='No space left'):
      _fit(people, model_dir, resume=True)
  assert os.listdir(tmp_path) == ['model.partial']

  # At last only the work is left to be removed.
  with monkeypatch.context() as patch:
    patch.setattr(work_directory, 'remove', _full)
    with pytest.raises(OSError, match='No space left'):
      _fit(people, model_dir, resume=True)
  assert sorted(os.listdir(tmp_path)) == ['model', 'model.partial']
  written = (model_dir / 'model.json').stat().st_mtime_ns
  _fit(people, model_dir, resume=True)
  assert (model_dir / 'model.json').stat().st_mtime_ns == written
  assert not (model_dir / 'earlier_ledgers').exists()
  _check(model_dir, reference)


def test_draft_is_resumed_and_overwritten(people, tmp_path, monkeypatch):
  table = people.table[['age', 'city']]
  draft = types.SimpleNamespace(
    table=table,
    schema=draft_schema(table),
    budget=people.budget,
    quick={**people.quick, 'bounds_epsilon': 4.0},
  )

  def stop(*args, **kwargs):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(dp_sgd, 'train', stop)
    with pytest.raises(KeyboardInterrupt):
      _fit(draft, tmp_path / 'model')
  before = _charged(tmp_path / 'model.partial')
  assert 'DP-SGD' not in before and set(before.values()) == {1}
  model = _fit(draft, tmp_path / 'model', resume=True)
  counts = {e.label: e.count for e in model.ledger.entries}
  assert counts == {**before, 'DP-SGD': 16}
  assert model.ledger.epsilon() <= 8

  # Values that the schema does not allow drop nothing and replace nothing.
  bad = types.SimpleNamespace(**{**vars(draft), 'schema': model.schema})
  bad.table = table.assign(age=-1)
  bad.quick = people.quick
  with pytest.raises(ValueError, match="'age', row 1"):
    _fit(bad, tmp_path / 'model', overwrite=True)
  with pytest.raises(FileExistsError, match='exists'):
    _fit(bad, tmp_path / 'model')
  assert os.listdir(tmp_path) == ['model']

  # What the replaced model spent stays spent.
  monkeypatch.setattr(os, 'urandom', lambda size: bytes(range(1, size + 1)))
  bad.table = table
  bad.schema = TableSchema([people.schema['age'], people.schema['city']])
  with small_table.untrained():
    model = _fit(bad, tmp_path / 'model', overwrite=True)
  statement = str(model.privacy_statement())
  assert 'earlier_ledgers/001.jsonl' in statement.replace('\n  ', ' ')
  assert os.listdir(tmp_path) == ['model']
