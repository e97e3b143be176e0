"""The folder of an unfinished fit: what it takes to go on with one."""

import json
import os
import shutil

import dp_accounting
import pandas as pd
import pytest

from tfdpflows.accounting import LedgerError, PrivacyBudget, PrivacyLedger
from tfdpflows.tabular import work_directory
from tfdpflows.tabular.work_directory import WorkDirectory

TABLE = pd.DataFrame({'a': [1, 2, 3], 'b': ['x', None, 'y']})
SETTINGS = {'epsilon': 1.0, 'seed': None, 'schema': {'fields': ['a'] * 100}}
ARGUMENTS = {
  'settings': SETTINGS,
  'table': TABLE,
  'seed': None,
  'budget': PrivacyBudget(epsilon=1.0, delta=1e-5),
  'accountant': 'pld',
}


def _open(path, **changes):
  return WorkDirectory(path, **{**ARGUMENTS, 'resume': True, **changes})


@pytest.fixture
def path(tmp_path):
  """A fit that stopped after one charge."""
  work = _open(tmp_path / 'work', resume=False)
  work.ledger.charge(dp_accounting.GaussianDpEvent(10.0), label='marginals')
  work.ledger.close()
  return tmp_path / 'work'


def test_resume_goes_on_with_ledger_and_randomness(path):
  first = _open(path)
  assert [e.label for e in first.ledger.entries] == ['marginals']
  secret = first.randomness.secret
  first.ledger.close()
  assert _open(path).randomness.secret == secret


def test_only_the_user_may_read_it(path):
  assert path.stat().st_mode & 0o777 == 0o700
  for name in ('secret', 'settings.json', 'ledger.jsonl'):
    assert (path / name).stat().st_mode & 0o777 == 0o600
  assert sorted(os.listdir(path.parent)) == ['work']


def test_a_seed_needs_no_secret(tmp_path):
  work = _open(tmp_path / 'work', resume=False, seed=3)
  assert not (tmp_path / 'work' / 'secret').exists()
  assert work.ledger.metadata['seeded']


def test_in_memory():
  work = _open(None, resume=False)
  assert work.checkpoints is None
  assert work.ledger.path is None
  with pytest.raises(ValueError, match='no work_dir to resume from'):
    _open(None)


def test_what_exists_is_not_begun_again(path):
  with pytest.raises(FileExistsError, match='was not finished'):
    _open(path, resume=False)
  with pytest.raises(FileNotFoundError, match='/none does not exist: make it'):
    _open(path / 'none' / 'x', resume=False)
  with pytest.raises(FileNotFoundError, match='nothing to resume'):
    _open(path.parent / 'other')


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'table': TABLE.assign(a=[1, 2, 4])}, 'another table'),
    ({'table': TABLE.iloc[::-1].reset_index(drop=True)}, 'another table'),
    ({'seed': 1}, 'another table'),
    (
      {'settings': {**SETTINGS, 'epsilon': 2.0}},
      'another epsilon: 1.0, and not 2.0. Resume with the same arguments',
    ),
    ({'settings': {**SETTINGS, 'seed': 1}}, 'another seed: None, and not 1'),
    # What is long is not printed.
    ({'settings': {**SETTINGS, 'schema': {}}}, r'another schema\. Resume'),
  ],
)
def test_resume_with_something_else(changes, message, path):
  before = (path / 'ledger.jsonl').read_bytes()
  with pytest.raises(ValueError, match=message):
    _open(path, **changes)
  assert (path / 'ledger.jsonl').read_bytes() == before


def test_another_budget_than_that_of_the_ledger(path):
  with pytest.raises(LedgerError, match='budget'):
    _open(path, budget=PrivacyBudget(epsilon=2.0, delta=1e-5))


def test_another_version(path):
  settings = json.loads((path / 'settings.json').read_text())
  settings['library_version'] = '0.0.1'
  (path / 'settings.json').write_text(json.dumps(settings))
  with pytest.raises(ValueError, match=r'begun by tfdpflows 0\.0\.1'):
    _open(path)


@pytest.mark.parametrize('name', ['secret', 'settings.json'])
def test_missing_or_damaged_files(name, path):
  content = (path / name).read_bytes()
  (path / name).write_bytes(content[:-1])
  with pytest.raises(ValueError, match=f'resumed: its {name} is damaged'):
    _open(path)
  (path / name).unlink()
  with pytest.raises(ValueError, match=f'{name} is missing. Overwrite it'):
    _open(path)


def test_another_secret(path):
  (path / 'secret').write_bytes(bytes(32))
  with pytest.raises(ValueError, match='another table'):
    _open(path)


def test_missing_or_edited_ledger(path):
  ledger = path / 'ledger.jsonl'
  content = ledger.read_bytes()
  for damaged in (
    content.replace(b'10.0', b'99.0'),
    content[: content.index(b'\n') + 1],
    b'',
  ):
    ledger.write_bytes(damaged)
    with pytest.raises(LedgerError):
      _open(path)
  ledger.unlink()
  with pytest.raises(LedgerError, match='no ledger'):
    _open(path)


def test_overwriting_keeps_the_ledgers(path):
  for count in (1, 2):
    work = _open(path, resume=False, overwrite=True)
    assert not work.ledger.entries
    assert len(work.earlier_ledgers) == count
    work.ledger.close()
    assert sorted(os.listdir(path.parent)) == ['work']
  with PrivacyLedger.open(work.earlier_ledgers[0], read_only=True) as earlier:
    assert [e.label for e in earlier.entries] == ['marginals']
  assert 'spent epsilon 0' in work_directory.describe_earlier(
    work.earlier_ledgers[0]
  )
  with open(work.earlier_ledgers[0], 'a') as file:
    file.write('x\n')
  assert 'cannot be read any more' in work_directory.describe_earlier(
    work.earlier_ledgers[0]
  )


def test_a_kill_between_dropping_and_beginning_loses_no_ledger(path):
  work_directory._drop(path)
  assert not path.exists()
  work = _open(path, resume=False)
  assert len(work.earlier_ledgers) == 1
  assert sorted(os.listdir(path.parent)) == ['work']


def test_a_fit_that_runs_is_not_dropped(path):
  work = _open(path)
  with pytest.raises(LedgerError, match='in use'):
    _open(path, resume=False, overwrite=True)
  with pytest.raises(LedgerError, match='in use'):
    _open(path)
  assert (path / 'secret').exists()
  work.ledger.close()
  _open(path, resume=False, overwrite=True)


def test_a_failure_to_begin_leaves_nothing(tmp_path, monkeypatch):
  def full(*args, **kwargs):
    raise OSError(28, os.strerror(28))

  monkeypatch.setattr(work_directory.atomic, 'write_file', full)
  with pytest.raises(OSError, match='No space left'):
    _open(tmp_path / 'work', resume=False)
  assert not list(tmp_path.iterdir())


def test_the_secret_goes_first(path, monkeypatch):
  def killed(path):
    raise InterruptedError

  monkeypatch.setattr(shutil, 'rmtree', killed)
  with pytest.raises(InterruptedError):
    work_directory.remove(path)
  assert not (path / 'secret').exists()
  monkeypatch.undo()
  work_directory.remove(path)
  assert not path.exists()
