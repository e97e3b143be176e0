"""A ledger file that is replaced, deleted or written to while it is open."""

import logging
import os
import shutil
import subprocess
import sys
import threading

import dp_accounting
import pytest

from tfdpflows import accounting
from tfdpflows.accounting import LedgerError, PrivacyLedger
from tfdpflows.accounting.ledger import file as ledger_file

GAUSSIAN = dp_accounting.GaussianDpEvent(5.2)
BUDGET = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'ledger.jsonl'


@pytest.fixture
def ledger(path):
  with PrivacyLedger(path, budget=BUDGET) as made:
    yield made


def replaced(path, other=None):
  """What editors, git and rsync do."""
  copy = path.with_name('copy')
  shutil.copy(other or path, copy)
  os.replace(copy, path)


def test_two_ledgers_of_one_name_do_not_both_spend_the_budget(ledger, path):
  assert accounting.compute_epsilon(GAUSSIAN, 1e-5) > 0.5
  replaced(path)
  with PrivacyLedger.open(path) as other:
    assert other.charge(GAUSSIAN, label='mine')
    with pytest.raises(LedgerError, match='was replaced by another file'):
      ledger.charge(GAUSSIAN, label='mine too')
  with PrivacyLedger.open(path, read_only=True) as reader:
    assert reader.epsilon() <= BUDGET.epsilon


@pytest.mark.parametrize('also_charged', [False, True])
def test_whatever_is_asked_of_a_replaced_ledger_is_refused(
  path, also_charged, caplog
):
  ledger = PrivacyLedger(path)
  steps = ledger.reserve(GAUSSIAN, 9, 'training')
  if also_charged:
    steps.ensure(2)
  replaced(path)
  for ask in (
    lambda: ledger.charge(GAUSSIAN),
    lambda: ledger.charge(GAUSSIAN, resume=True),
    lambda: ledger.reserve(GAUSSIAN, 2, 'more'),
    lambda: ledger.release('training'),
    lambda: steps.ensure(3),
    steps.release,
    lambda: accounting.merge_ledgers([ledger], path.with_name('merged')),
  ):
    with pytest.raises(LedgerError, match='replaced') as error:
      ask()
    assert f'all {3 if also_charged else 2} lines' in str(error.value)
    assert 'Nothing was charged' in str(error.value)
  assert os.listdir(path.parent) == [path.name]
  with caplog.at_level(logging.WARNING):
    ledger.close()
  assert 'replaced by another file' in caplog.text


def test_deleted_and_moved_ledgers_are_refused_until_they_are_back(
  ledger, path
):
  ledger.charge(GAUSSIAN, label='first')
  away = path.with_name('away')
  os.rename(path, away)
  with pytest.raises(LedgerError, match=r'deleted or moved.*all 2 lines'):
    ledger.charge(dp_accounting.GaussianDpEvent(50.0), label='second')
  os.rename(away, path)
  ledger.charge(dp_accounting.GaussianDpEvent(50.0), label='second')
  os.unlink(path)
  with pytest.raises(LedgerError, match='deleted or moved'):
    ledger.charge(dp_accounting.GaussianDpEvent(50.0), label='third')
  assert [entry.label for entry in ledger.entries] == ['first', 'second']


def test_a_number_that_was_given_to_another_file_is_not_the_same(
  ledger, path, monkeypatch
):
  """Some file systems give the inode of a deleted file away at once."""
  real = os.stat(path)
  os.unlink(path)
  path.write_text('another file')
  monkeypatch.setattr(os, 'stat', lambda *_, **__: real)
  with pytest.raises(LedgerError, match='replaced by another'):
    ledger.charge(GAUSSIAN)


def test_a_file_system_that_counts_no_names(path, monkeypatch):
  real = os.fstat

  def uncounted(descriptor):
    found = list(real(descriptor))
    found[3] = 0
    return os.stat_result(found)

  monkeypatch.setattr(os, 'fstat', uncounted)
  with PrivacyLedger(path) as ledger:
    ledger.charge(GAUSSIAN)
    replaced(path)
    with pytest.raises(LedgerError, match='replaced'):
      ledger.charge(GAUSSIAN)


@pytest.mark.parametrize('change', ['truncated', 'longer', 'older', 'emptied'])
def test_a_file_that_others_wrote_into_is_refused(ledger, path, change):
  older = path.read_bytes()
  ledger.charge(GAUSSIAN, label='first')
  good = path.read_bytes()
  path.write_bytes(
    {
      'truncated': good[:-1],
      'longer': good + b'\n',
      # Of the same size, as `cp` of an older one onto it might be.
      'older': older + b' ' * (len(good) - len(older)),
      'emptied': b'',
    }[change]
  )
  with pytest.raises(LedgerError, match='written to by another program'):
    ledger.charge(dp_accounting.GaussianDpEvent(50.0), label='second')
  path.write_bytes(good)
  ledger.charge(dp_accounting.GaussianDpEvent(50.0), label='second')


def test_replaced_between_the_look_and_the_write(ledger, path, monkeypatch):
  real = os.pwrite

  def replacing(*args):
    monkeypatch.setattr(os, 'pwrite', real)
    replaced(path)
    return real(*args)

  monkeypatch.setattr(os, 'pwrite', replacing)
  with pytest.raises(LedgerError, match=r'replaced.*must not be done'):
    ledger.charge(GAUSSIAN, label='lost')
  assert not ledger.entries
  with pytest.raises(LedgerError, match='open it again'):
    ledger.charge(GAUSSIAN, label='next')
  with PrivacyLedger.open(path) as other:
    assert not other.entries


def test_replaced_between_opening_and_the_lock(path, monkeypatch):
  PrivacyLedger(path).close()
  real = ledger_file.fcntl.flock

  def replacing(*args):
    monkeypatch.setattr(ledger_file.fcntl, 'flock', real)
    replaced(path)
    return real(*args)

  monkeypatch.setattr(ledger_file.fcntl, 'flock', replacing)
  with pytest.raises(LedgerError, match='replaced'):
    PrivacyLedger.open(path)
  PrivacyLedger.open(path).close()


def test_links_are_followed_to_one_file(ledger, path):
  soft, hard = path.with_name('soft'), path.with_name('hard')
  soft.symlink_to(path)
  os.link(path, hard)
  for link in (soft, hard):
    with pytest.raises(LedgerError, match='in use'):
      PrivacyLedger.open(link)
  ledger.close()
  with PrivacyLedger.open(soft) as again:
    again.charge(dp_accounting.GaussianDpEvent(50.0))
    soft.unlink()
    PrivacyLedger(path.with_name('other')).close()
    soft.symlink_to('other')
    with pytest.raises(LedgerError, match='replaced'):
      again.charge(dp_accounting.GaussianDpEvent(50.0))


def test_another_working_folder_is_another_matter(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with PrivacyLedger('ledger.jsonl') as ledger:
    (tmp_path / 'below').mkdir()
    monkeypatch.chdir('below')
    ledger.charge(GAUSSIAN)
  assert not os.listdir('.')


def test_what_is_no_file_is_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  for path in (tmp_path / 'pipe', tmp_path, '/dev/zero'):
    for read_only in (False, True):
      with pytest.raises(LedgerError, match='Cannot open'):
        PrivacyLedger.open(path, read_only=read_only)


# ------------------------------------------------------------- left behind


def test_files_of_killed_creations_are_removed(path):
  kill = (
    'import os, sys\n'
    'from tfdpflows import atomic\n'
    'from tfdpflows.accounting import PrivacyLedger\n'
    'publish = atomic.publish\n'
    'def die(*args):\n'
    '  {}\n'
    '  os._exit(9)\n'
    'atomic.publish = die\n'
    'PrivacyLedger(sys.argv[1])\n'
  )
  for when in ('pass', 'publish(*args)'):
    script = [sys.executable, '-c', kill.format(when), str(path)]
    assert subprocess.run(script, check=False).returncode == 9
    left = [x.name for x in path.parent.iterdir() if x != path]
    assert len(left) == 1
    assert left[0].startswith('.ledger.jsonl.')
    if path.exists():
      assert os.stat(path).st_nlink == 2
      PrivacyLedger.open(path).close()
    else:
      PrivacyLedger(path).close()
      os.rename(path, path.with_name('made'))
      os.unlink(path.with_name('made'))
    assert [x.name for x in path.parent.iterdir()] in ([], [path.name])


def test_only_what_is_left_behind_is_removed(path):
  others = {
    '.ledger.jsonl.123.new': True,
    '.ledger.jsonl.77-0123abcd.new': True,
    '.ledger.jsonl.new': False,
    '.ledger.jsonl.backup.new': False,
    '.ledger.jsonl.1.new.bak': False,
    '.other.jsonl.123.new': False,
    '.ledger.jsonl.٣.new': False,
    '.ledger.jsonl.9.new': False,
  }
  for name in others:
    path.with_name(name).write_bytes(b'{"head":"0000')
  path.with_name('.ledger.jsonl.9.new').write_text('somebody else wrote it')
  path.with_name('.ledger.jsonl.8.new').symlink_to('.other.jsonl.123.new')
  with open(path.with_name('.ledger.jsonl.10.new'), 'wb') as live:
    ledger_file.fcntl.flock(live, ledger_file.fcntl.LOCK_EX)
    PrivacyLedger(path).close()
  left = {x.name for x in path.parent.iterdir()}
  kept = {name for name, stale in others.items() if not stale}
  assert left == {
    *kept,
    path.name,
    '.ledger.jsonl.8.new',
    '.ledger.jsonl.10.new',
  }


def test_creations_at_once_make_one_whole_ledger(path):
  """Of threads too, which have one process number."""
  for _ in range(40):
    made, barrier = [], threading.Barrier(4)

    def create(made=made, barrier=barrier):
      barrier.wait()
      try:
        made.append(PrivacyLedger(path))
      except LedgerError as error:
        made.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    [ledger] = [x for x in made if isinstance(x, PrivacyLedger)]
    assert all('exists' in x for x in made if x is not ledger)
    ledger.charge(GAUSSIAN)
    ledger.close()
    with PrivacyLedger.open(path) as again:
      assert len(again.entries) == 1
    assert os.listdir(path.parent) == [path.name]
    path.unlink()


def test_a_ledger_that_is_gone_holds_no_lock(path):
  ledger = PrivacyLedger(path)
  del ledger
  PrivacyLedger.open(path).close()


# -------------------------------------------------------------------- forks


def in_a_fork(work):
  """What a forked process says of a piece of work: 'done', or an error."""
  reads, writes = os.pipe()
  child = os.fork()
  if child == 0:
    try:
      work()
      said = 'done'
    except LedgerError as error:
      said = str(error)
    except BaseException as error:
      said = repr(error)
    os.write(writes, said.encode())
    os._exit(0)
  os.waitpid(child, 0)
  os.close(writes)
  with os.fdopen(reads, 'rb') as pipe:
    return pipe.read().decode()


@pytest.mark.parametrize('on_disk', [False, True])
def test_a_forked_process_charges_nothing(path, on_disk):
  if on_disk:
    with PrivacyLedger(path) as earlier:
      earlier.charge(GAUSSIAN, label='earlier')
    ledger = PrivacyLedger.open(path)
  else:
    ledger = PrivacyLedger()
  with ledger:
    steps = ledger.reserve(GAUSSIAN, 9, 'training')
    steps.ensure(5)
    before = ledger.entries
    for ask in (
      lambda: ledger.charge(GAUSSIAN),
      lambda: ledger.charge(GAUSSIAN, label='earlier', resume=True),
      lambda: ledger.reserve(GAUSSIAN, 2, 'more'),
      lambda: ledger.release('training'),
      lambda: steps.ensure(6),
      # It is charged, and the other process runs it.
      lambda: steps.ensure(5),
      steps.release,
    ):
      assert 'forked from' in in_a_fork(ask)
    assert ledger.entries == before
    steps.ensure(6)
    assert ledger.entries[-1].count == 6


def test_a_forked_merge_is_refused():
  first, second = PrivacyLedger(), PrivacyLedger()
  first.charge(GAUSSIAN)
  said = in_a_fork(lambda: accounting.merge_ledgers([first, second]))
  assert 'forked from' in said
  first.charge(GAUSSIAN)
