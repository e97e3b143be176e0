"""Writers that are killed: the ledger never says less than what ran."""

import os
import pathlib
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).parents[2]

# Forks writers, kills each at a random moment, and compares what the file says
# with what was run. A forked writer costs milliseconds, a fresh one a second.
CRASHES = """
import os, random, signal, sys, time
import dp_accounting
from tfdpflows.accounting import PrivacyLedger, LedgerError

folder, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
step = dp_accounting.GaussianDpEvent(100.0)
path, ran = os.path.join(folder, 'ledger'), os.path.join(folder, 'ran')
BLOCK, STEPS = 3, 10**7

def write():
  log = os.open(ran, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  if os.path.exists(path):
    ledger = PrivacyLedger.open(path)
  else:
    ledger = PrivacyLedger(path)
  steps = ledger.reserve(step, STEPS, 'training', resume=True)
  run = os.fstat(log).st_size
  while True:
    steps.ensure(run + 1, BLOCK)
    os.write(log, b'.')
    run += 1
    if run % 7 == 0:
      ledger.charge(step, label='between')

def spent():
  with PrivacyLedger.open(path, read_only=True) as ledger:
    counts = {}
    for entry in ledger.entries:
      counts[entry.label] = counts.get(entry.label, 0) + entry.count
    return counts

most = torn = 0
for kill in range(kills):
  child = os.fork()
  if child == 0:
    try:
      write()
    finally:
      os._exit(1)
  time.sleep(rng.uniform(0, 0.02))
  os.kill(child, signal.SIGKILL)
  _, status = os.waitpid(child, 0)
  if not os.WIFSIGNALED(status):
    sys.exit('the writer failed by itself')
  if os.path.exists(path):
    counts, run = spent(), os.path.getsize(ran)
    over = counts.get('training', 0) - run
    if not 0 <= over <= BLOCK:
      sys.exit(f'{run} steps ran and {counts} are charged')
    if counts.get('between', 0) < run // 7 - kill - 1:
      sys.exit(f'too few charges: {counts} after {run} steps')
    most = max(most, run)
print(kills, most)
"""


def test_killed_writers_never_understate(tmp_path):
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  result = subprocess.run(
    [sys.executable, '-c', CRASHES, str(tmp_path), '60', '11'],
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  kills, steps = map(int, result.stdout.split())
  assert kills == 60
  assert steps > 60


def test_killed_at_birth_leaves_a_whole_ledger_or_none(tmp_path):
  code = textwrap.dedent("""
    import os, random, signal, sys, time
    from tfdpflows.accounting import PrivacyLedger
    rng = random.Random(3)
    for kill in range(40):
      path = os.path.join(sys.argv[1], f'ledger{kill}')
      child = os.fork()
      if child == 0:
        PrivacyLedger(path)
        time.sleep(9)
        os._exit(1)
      time.sleep(rng.uniform(0, 0.004))
      os.kill(child, signal.SIGKILL)
      os.waitpid(child, 0)
      if os.path.exists(path):
        PrivacyLedger.open(path).close()
  """)
  result = subprocess.run(
    [sys.executable, '-c', code, str(tmp_path)],
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )
  assert result.returncode == 0, result.stderr
