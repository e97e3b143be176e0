"""Writers that are killed: the ledger never says less than what ran."""

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from tests.grids import thinned

ROOT = pathlib.Path(__file__).parents[3]

# Every script forks writers, kills them, and compares what the files say with
# what was run. A forked writer costs milliseconds, a fresh one a second.
PRELUDE = """
import os, random, select, signal, sys, time
import dp_accounting
from tfdpflows.accounting import LedgerError, PrivacyLedger
from tfdpflows.accounting import merge_ledgers

folder, kills, rng = sys.argv[1], int(sys.argv[2]), random.Random(11)
step = dp_accounting.GaussianDpEvent(100.0)

def inside(*names):
  return os.path.join(folder, *names)

def forked(work):
  child = os.fork()
  if child == 0:
    try:
      work()
      os._exit(0)
    except BaseException as error:
      sys.stderr.write(f'the writer failed by itself: {error!r}')
    finally:
      os._exit(1)
  return child

def killed(work, seconds, began=None):
  child = forked(work)
  if began is not None:
    select.select([began], [], [], 60)  # However busy the machine is.
  time.sleep(rng.uniform(0, seconds))
  os.kill(child, signal.SIGKILL)
  _, status = os.waitpid(child, 0)
  if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
    sys.exit(1)

def counts_of(path):
  with PrivacyLedger.open(path, read_only=True) as ledger:
    counts = {}
    for entry in ledger.entries:
      counts[entry.label] = counts.get(entry.label, 0) + entry.count
    return counts
"""

# Chapters of steps, each reserved, run in blocks and ended before its time,
# with charges between them, again and again in one file.
TRAINING = """
BLOCK, CHAPTER, REOPENED = 3, 40, 40

def write():
  log = os.open(ran, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  exists = os.path.exists(path)
  with PrivacyLedger.open(path) if exists else PrivacyLedger(path) as ledger:
    done = done_runs()
    chapters = [x for x in ledger.entries if x.label.startswith('chapter')]
    number = len(chapters)
    if chapters and chapters[-1].count < chapters[-1].reserved:
      number -= 1
    os.write(says, b'.')
    while True:
      label = f'chapter {number}'
      steps = ledger.reserve(
        step, CHAPTER, label, resume=True, randomness_id='me'
      )
      for run in range(done.get(label, 0), CHAPTER - number % 30):
        steps.ensure(run + 1, BLOCK)
        os.write(log, f'{label}\\n'.encode())
      steps.release()
      ledger.charge(step, label='between')
      os.write(log, b'between\\n')
      number += 1

def done_runs():
  done = {}
  with open(ran) as log:
    for label in log.read().splitlines():
      done[label] = done.get(label, 0) + 1
  return done

# Every second one while it opens the ledger or soon after, the others at work.
for kill in range(kills):
  path, ran = (inside(f'{x}{kill // REOPENED}') for x in ('ledger', 'ran'))
  began, says = os.pipe()
  killed(write, 0.015, began if kill % 2 else None)
  os.close(began)
  os.close(says)
  if not os.path.exists(path):
    continue
  counts, done = counts_of(path), done_runs()
  for label in {*counts, *done}:
    over = counts.get(label, 0) - done.get(label, 0)
    if not 0 <= over <= (REOPENED if label == 'between' else BLOCK):
      sys.exit(f'{label}: {over} more charged than ran')
print(kills, sum(done.values()), len(counts))
"""

BIRTH = """
for kill in range(kills):
  path = inside(f'ledger{kill}')
  killed(lambda: (PrivacyLedger(path), time.sleep(9)), 0.004)
  if os.path.exists(path):
    PrivacyLedger.open(path).close()
print(kills)
"""

# Two ledgers are charged, merged, and the merged one is charged.
MERGING = """
def merge_round():
  here = inside(str(number))
  sources, merged = [f'{here}-a', f'{here}-b'], f'{here}-merged'

  def write():
    log = os.open(f'{here}-ran', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for source in sources:
      with PrivacyLedger(source) as ledger:
        steps = ledger.reserve(step, 9, 'training', randomness_id=source)
        for run in range(2):
          steps.ensure(run + 1)
          os.write(log, b'.')
    with merge_ledgers(sources, merged) as ledger:
      steps = ledger.reserve(
        step, 9, 'training', randomness_id=sources[1], resume=True
      )
      for run in range(2, 4):
        steps.ensure(run + 1)
        os.write(log, b'.')

  def check():
    ran = 0
    if os.path.exists(f'{here}-ran'):
      ran = os.path.getsize(f'{here}-ran')
    there = [source for source in sources if os.path.exists(source)]
    if os.path.exists(merged):
      spent = sum(counts_of(merged).values())
      for source in sources:
        try:
          PrivacyLedger.open(source)
          sys.exit(f'{source} can be charged after the merge')
        except LedgerError as error:
          assert 'was merged into' in str(error), error
    else:
      spent = sum(sum(counts_of(source).values()) for source in there)
    if not ran <= spent <= ran + 1:
      sys.exit(f'{ran} steps ran and {spent} are charged')
    if there == sources:
      # What can still be charged must be in it.
      for source in sources:
        try:
          with PrivacyLedger.open(source) as ledger:
            ledger.charge(step, label='late')
            spent += 1
        except LedgerError as error:
          assert 'merged into' in str(error), error
      with merge_ledgers(sources, merged) as ledger:
        if sum(entry.count for entry in ledger.entries) != spent:
          sys.exit(f'{spent} were charged, and now {ledger.entries}')
    return ran

  return write, check
"""

RANDOM_MERGES = """
number = 'timed'
write, check = merge_round()
start = time.perf_counter()
os.waitpid(forked(write), 0)
seconds = time.perf_counter() - start
assert check() == 6
for number in range(kills):
  write, check = merge_round()
  killed(write, 1.2 * seconds)
  check()
print(kills)
"""

# Dies at each call that changes a file, once before it, once in its middle; the
# head of a file, within one sector, is written whole or not at all.
EVERY_CALL = """
CALLS = ['pwrite', 'fsync', 'ftruncate', 'link', 'unlink', 'open', 'write']

def dying(work, last, half):
  count = 0

  def wrapped(name, real):
    def call(*args, **kwargs):
      nonlocal count
      count += 1
      if count == last:
        if half and name == 'pwrite' and len(args[1]) != 75:
          real(args[0], args[1][:len(args[1]) // 2], args[2])
        elif half:
          real(*args, **kwargs)
        os._exit(7)
      return real(*args, **kwargs)
    return call

  for name in CALLS:
    setattr(os, name, wrapped(name, getattr(os, name)))
  work()

died = 0
for half in (False, True):
  last, status = 0, 7
  while status == 7:
    last += 1
    number = f'{last}-{half}'
    write, check = merge_round()
    _, status = os.waitpid(forked(lambda: dying(write, last, half)), 0)
    status = os.WEXITSTATUS(status)
    check()
    died += status == 7
  if status:
    sys.exit(status)
print(died)
"""


def run(kills, *scripts):
  """What a script prints, as numbers."""
  # What a killed process leaves is what the kernel has: a disk would only make
  # it slower.
  memory = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
  with tempfile.TemporaryDirectory(dir=memory) as folder:
    result = subprocess.run(
      [sys.executable, '-c', PRELUDE + ''.join(scripts), folder, str(kills)],
      env={**os.environ, 'PYTHONPATH': str(ROOT)},
      capture_output=True,
      text=True,
      timeout=240,
      check=False,
    )
  assert result.returncode == 0, result.stdout + result.stderr
  return [int(word) for word in result.stdout.split()]


@pytest.mark.parametrize('kills', thinned([80, 200], 1))
def test_killed_writers_never_understate(kills):
  done, steps, chapters = run(kills, TRAINING)
  assert done == kills
  assert steps > 20
  assert chapters > 3


@pytest.mark.parametrize('kills', thinned([30, 60], 1))
def test_killed_at_birth_leaves_a_whole_ledger_or_none(kills):
  assert run(kills, BIRTH) == [kills]


@pytest.mark.parametrize('kills', thinned([20, 50], 1))
def test_killed_merges_lose_nothing_and_can_be_completed(kills):
  assert run(kills, MERGING, RANDOM_MERGES) == [kills]


def test_a_merge_may_die_at_every_call_to_the_system():
  [died] = run(0, MERGING, EVERY_CALL)
  assert died > 80
