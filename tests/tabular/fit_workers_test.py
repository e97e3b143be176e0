"""Fits by two real worker processes over loopback, and one of them killed."""

import json
import os
import shutil
import signal
import stat

import numpy as np
import pytest

from tests import worker_processes
from tests.tabular import fit_worker, small_table
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.tabular.synthesizer import TabularSynthesizer, fit_to_directory

# Of one pair of workers, most of it TensorFlow's start. On a busy machine that
# is slow; a hang costs this much once.
TIMEOUT = 240

pytestmark = pytest.mark.slow


def _started(folder, phase, count=2):
  """Starts the workers and kills what is left of them in the end."""
  ports = worker_processes.free_ports(count)
  cluster = {'worker': [f'127.0.0.1:{port}' for port in ports]}
  tasks = [{'type': 'worker', 'index': index} for index in range(count)]
  return worker_processes.started(
    folder,
    phase,
    [[fit_worker.__file__, str(folder), phase]] * count,
    [
      {'TF_CONFIG': json.dumps({'cluster': cluster, 'task': task})}
      for task in tasks
    ]
    if count > 1
    else None,
  )


@pytest.fixture(scope='module')
def people():
  return small_table.make()


@pytest.fixture(scope='module')
def folder(people, tmp_path_factory):
  """Where one fit was run whole, and another stopped before its training."""
  folder = tmp_path_factory.mktemp('fits')
  people.schema.to_json(folder / 'schema.json')
  table = people.table.assign(person=np.arange(len(people.table)) // 2)
  table.to_csv(folder / 'people.csv', index=False)
  people.table.to_csv(folder / 'rows.csv', index=False)
  people.table.assign(age=200).to_csv(folder / 'bad.csv', index=False)
  _run_to_the_end(folder, 'begin')
  return folder


@pytest.fixture(scope='module')
def killed(folder):
  """The folder where a fit was killed in training, too, and gone on with."""
  with _started(folder, 'kill') as (chief, other):
    assert other.wait(TIMEOUT) == -signal.SIGKILL, _log(folder, 'kill 1')
    # It notices within seconds.
    assert chief.wait(60) == 0, _log(folder, 'kill 0')
  shutil.copytree(folder / 'killed.partial', folder / 'copied.partial')
  _run_to_the_end(folder, 'resume')
  return folder


def _run_to_the_end(folder, phase):
  with _started(folder, phase) as workers:
    for index, worker in enumerate(workers):
      assert worker.wait(TIMEOUT) == 0, _log(folder, f'{phase} {index}')


def _log(folder, name):
  return (folder / f'{name}.log').read_text()[-3000:]


def _read(folder, phase):
  return [
    json.loads((folder / f'{i} {phase}.json').read_text()) for i in (0, 1)
  ]


def _charges(synthesizer):
  return [(e.label, e.event, e.count) for e in synthesizer.ledger.entries]


def _check_alike(one, two, people):
  assert two.ledger.epsilon() == one.ledger.epsilon()
  assert _charges(two) == _charges(one)
  np.testing.assert_allclose(
    two.log_prob(people.table), one.log_prob(people.table), rtol=0, atol=1e-4
  )


@pytest.mark.full
def test_two_devices_fit_as_one(folder, people):
  with _started(folder, 'mirrored', count=1) as (process,):
    one = TabularSynthesizer(people.schema, **fit_worker.settings(people))
    one.fit(people.table, progress=False)
    assert process.wait(TIMEOUT) == 0, _log(folder, 'mirrored 0')
  _check_alike(one, TabularSynthesizer.load(folder / 'mirrored'), people)


def _check_as_one_process(folder, people, name, table, schema, phase, **more):
  one = TabularSynthesizer(schema, **fit_worker.settings(people, **more))
  with small_table.short():
    one.fit(
      str(folder / table), str(folder / f'one {name}.partial'), progress=False
    )
  _check_alike(one, TabularSynthesizer.load(folder / name), people)
  assert not (folder / f'{name}.partial').exists()
  chief, other = _read(folder, phase)
  assert [chief[name], other[name]] == ['TabularSynthesizer', 'NoneType']


def test_two_workers_fit_as_one_process(folder, people, monkeypatch):
  monkeypatch.setattr(os, 'urandom', fit_worker.secret)
  schema = fit_worker.of_people(people.schema)
  _check_as_one_process(
    folder, people, 'people', 'people.csv', schema, 'begin', **fit_worker.UNITS
  )


@pytest.mark.full
def test_two_workers_fit_rows_as_one_process(folder, people):
  _run_to_the_end(folder, 'rows')
  _check_as_one_process(
    folder, people, 'whole', 'rows.csv', people.schema, 'rows'
  )


def test_what_one_does_wrong_ends_both(folder):
  chief, other = _read(folder, 'begin')
  assert "'age'" in chief['bad'] and 'bad.csv' in chief['bad']
  assert 'Worker 0 of 2 could not begin' in other['bad']
  assert not list(folder.glob('bad.partial*'))
  assert 'delta is 0.01' in chief['large delta']
  assert 'Worker 0 of 2 could not begin' in other['large delta']
  assert 'another epsilon' in other['other']
  assert 'Worker 1 of 2 could not begin' in chief['other']
  for index, found in enumerate((chief, other)):
    assert "'dpgan' is trained on one replica" in found['gan']
    log = _log(folder, f'begin {index}')
    assert found['stopped'] == 'InterruptedError: No training.', log


@pytest.mark.full
def test_killed_worker_is_noticed_and_its_steps_are_made_again(killed, people):
  chief = json.loads((killed / '0 killed.json').read_text())
  assert chief['killed'].startswith('ConnectionError: Another worker is gone')
  assert not (killed / '1 killed.json').exists()
  with PrivacyLedger.open(
    killed / 'copied.partial' / 'ledger.jsonl', read_only=True
  ) as ledger:
    # All steps are charged before any is made.
    assert {e.label: e.count for e in ledger.entries}['DP-SGD'] == 8
  assert [r['killed'] for r in _read(killed, 'resume')] == [
    'TabularSynthesizer',
    'NoneType',
  ]
  whole = TabularSynthesizer.load(killed / 'people')
  resumed = TabularSynthesizer.load(killed / 'killed')
  assert _charges(whole) == _charges(resumed)
  np.testing.assert_array_equal(
    whole.log_prob(people.table), resumed.log_prob(people.table)
  )


def test_another_number_of_replicas_does_not_resume(folder, people):
  with pytest.raises(ValueError, match='begun by 2 worker.*one process'):
    fit_to_directory(
      str(folder / 'people.csv'),
      fit_worker.of_people(people.schema),
      folder / 'stopped',
      progress=False,
      resume=True,
      **fit_worker.settings(people, **fit_worker.UNITS),
    )


def test_work_is_private_to_the_user(folder):
  partial = folder / 'stopped.partial'
  for path in (partial, partial / 'workers', partial / 'rows'):
    assert not stat.S_IMODE(path.stat().st_mode) & 0o077
  assert not stat.S_IMODE((partial / 'secret').stat().st_mode) & 0o077
