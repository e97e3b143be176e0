"""Ctrl-C at any moment: the ledger opens again, and knows all that ran."""

import os
import pathlib
import random
import signal
import sys
import tempfile
from concurrent import futures

import dp_accounting
import pytest

from tfdpflows import accounting, atomic
from tfdpflows.accounting import LedgerError, PrivacyLedger
from tfdpflows.accounting import ledger as ledger_lib

STRIDE = 211
GAUSSIAN = dp_accounting.GaussianDpEvent(100.0)
# Where what is written and what is known of it can fall apart.
FILES = {
  atomic.__file__,
  *map(str, pathlib.Path(ledger_lib.__file__).parent.glob('*.py')),
}


@pytest.fixture
def folder():
  """What an interrupt leaves is what the kernel has: no disk is needed."""
  memory = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
  with tempfile.TemporaryDirectory(dir=memory) as name:
    yield pathlib.Path(name)


@pytest.fixture(params=['file', 'memory'])
def path(request, folder):
  return folder / 'ledger' if request.param == 'file' else None


class Interrupted:
  """Raises KeyboardInterrupt before one bytecode of the files above."""

  def __init__(self, at):
    self.left = at

  def _trace(self, frame, kind, unused_argument):
    code = frame.f_code
    # Python itself holds back what is raised in `__del__`.
    if code.co_filename not in FILES or code.co_name == '__del__':
      return None
    frame.f_trace_opcodes = True
    if kind == 'opcode':
      self.left -= 1
      if self.left == 0:
        sys.settrace(None)
        raise KeyboardInterrupt
    return self._trace

  def __enter__(self):
    self.before = sys.gettrace()
    sys.settrace(self._trace)
    return self

  def __exit__(self, *unused_args):
    sys.settrace(self.before)


class Work:
  """Charges and reservations of one ledger, and how often each of them ran."""

  def __init__(self, path):
    self.path = path
    self.interrupts = 0
    self.charges = self.steps = self.asked = 0
    self.ledger = None

  def opened(self):
    """The ledger, after an interrupt opened again where it says so."""
    if self.path is None:
      self.ledger = self.ledger or PrivacyLedger()
    elif self.ledger is None and os.path.exists(self.path):
      self.ledger = PrivacyLedger.open(self.path)
    elif self.ledger is None:
      self.ledger = PrivacyLedger(self.path)
    return self.ledger

  def charge(self):
    self.asked += 1
    self.opened().charge(GAUSSIAN, label='charge')
    self.charges += 1

  def step(self, number):
    label = f'steps {number % 2}'
    try:
      self.ledger = self.opened()
      reservation = self.ledger.reserve(GAUSSIAN, 9, label, resume=True)
    except LedgerError as error:
      # In memory, nothing is resumed.
      if 'is taken' not in str(error):
        raise
      reservation = ledger_lib.Reservation(
        self.ledger, self.ledger._state.sums.reserved[label]
      )
    for run in range(reservation.charged, reservation.charged + 2):
      reservation.ensure(run + 1, block=1 + number % 3)
      self.steps += 1
    if number % 4 == 3:
      reservation.release()

  def closed(self):
    ledger, self.ledger = self.ledger, None
    if ledger is not None:
      ledger.close()

  def run(self):
    tasks = [
      self.charge,
      lambda: self.step(0),
      lambda: self.step(1),
      self.charge,
      lambda: self.step(3),
      self.closed if self.path else self.charge,
      self.charge,
      lambda: self.step(2),
      self.charge,
    ]
    for task in tasks:
      try:
        task()
      except KeyboardInterrupt:
        self.interrupts += 1
      except LedgerError as error:
        # Refused for good; the message says to open it again.
        if 'open it again' not in str(error):
          raise
        self.closed()
        task()

  def check(self):
    """What is known, now and from the file, is at least what ran."""
    ledgers = []
    if self.ledger is not None:
      ledgers.append((self.ledger.entries, self.ledger.event))
      self.closed()
    if self.path is not None:
      # On a busy machine the signal may come before there is a file.
      with self.opened() as ledger:
        assert ledger.charge(GAUSSIAN, label='charge')
        self.charges += 1
        self.asked += 1
        ledgers.append((ledger.entries, ledger.event))
    for entries, event in ledgers:
      counts = {'charge': 0, 'steps 0': 0, 'steps 1': 0}
      for entry in entries:
        counts[entry.label] += entry.count
      assert counts['charge'] <= self.asked
      steps = counts['steps 0'] + counts['steps 1']
      assert steps <= 18
      total = sum(getattr(part, 'count', 1) for part in event.events)
      assert total == steps + counts['charge']
    # Only the last one knows of the charge that was made to see that it can be.
    assert steps >= self.steps
    assert counts['charge'] >= self.charges


def interrupted_at(at, path):
  """Whether the work was long enough to be interrupted there."""
  work = Work(path)
  with Interrupted(at) as interrupt:
    work.run()
    sys.settrace(None)
  work.check()
  return interrupt.left <= 0


def test_an_interrupt_at_any_bytecode_leaves_a_ledger_that_knows_all(path):
  """With STRIDE = 1, at each of some 40,000 on disk and in memory."""

  def interrupt_everywhere():
    at, tried = 1, 0
    while interrupted_at(at, path):
      at += STRIDE
      tried += 1
      if path is not None:
        os.unlink(path)
    return tried

  # An interrupt at the end of an `except` leaves its exception behind in the
  # thread, as the context of all that are raised later.
  with futures.ThreadPoolExecutor(1) as thread:
    assert thread.submit(interrupt_everywhere).result() > 5000 / STRIDE


def test_signals_at_random_leave_a_ledger_that_knows_all(folder):
  rng = random.Random(5)

  def interrupt(*unused_args):
    raise KeyboardInterrupt

  before = signal.signal(signal.SIGALRM, interrupt)
  hit = 0
  try:
    for number in range(300):
      work = Work(folder / f'{number}')
      try:
        try:
          # On a busy machine the signal may arrive before this returns.
          signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 1e-2))
          work.run()
        finally:
          # The signal may arrive here too, and ends in this call.
          signal.setitimer(signal.ITIMER_REAL, 0)
      except KeyboardInterrupt:
        # While an earlier one was being dealt with, or at the end.
        pass
      hit += work.interrupts
      work.check()
  finally:
    signal.signal(signal.SIGALRM, before)
  assert hit > 30


def test_an_interrupted_merge_is_completed_by_the_next(folder):
  at, tried = 1, 0
  done = False
  while not done:
    tried += 1
    sources, merged = [folder / 'a', folder / 'b'], folder / 'merged'
    for source in sources:
      with PrivacyLedger(source) as ledger:
        ledger.charge(GAUSSIAN, label='charge')
        ledger.reserve(GAUSSIAN, 9, 'steps', randomness_id=source.name).ensure(
          2
        )
    interrupt = Interrupted(at)
    try:
      with interrupt:
        accounting.merge_ledgers(sources, merged).close()
    except KeyboardInterrupt:
      pass
    sys.settrace(None)
    done = interrupt.left > 0
    if not merged.exists():
      # What can still be charged counts as well.
      for source in sources:
        try:
          with PrivacyLedger.open(source) as ledger:
            ledger.charge(GAUSSIAN, label='late')
        except LedgerError as error:
          if 'merged' not in str(error):
            raise
    charged = 0
    for source in sources:
      with PrivacyLedger.open(source, read_only=True) as ledger:
        charged += sum(entry.count for entry in ledger.entries)
    with accounting.merge_ledgers(sources, merged) as ledger:
      assert sum(entry.count for entry in ledger.entries) == charged
      ledger.reserve(
        GAUSSIAN, 9, 'steps', randomness_id='b', resume=True
      ).ensure(3)
    assert sorted(x.name for x in folder.iterdir()) == ['a', 'b', 'merged']
    for path in (*sources, merged):
      path.unlink()
    at += STRIDE
  assert tried > 5000 / STRIDE
