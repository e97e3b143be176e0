"""Processes of their own: what comes back, what is shown, how they end."""

import os
import sys
import threading

import pytest

from tfdpflows.pate import processes


def test_results_come_from_another_process_which_prints_nothing(capfd):
  def work(task):
    print('SECRET')
    os.write(1, b'SECRET')
    os.write(2, b'SECRET')
    return task, os.getpid()

  found = [sorted(processes.each(work, range(5), 1)) for _ in range(2)]
  assert [task for task, _ in found[0]] == list(range(5))
  # One process for all, and for the next call.
  [pid] = {pid for part in found for _, pid in part}
  assert pid != os.getpid()
  assert 'SECRET' not in ''.join(capfd.readouterr())


def test_tensorflow_is_imported_where_a_function_needs_it():
  # No other test has as many.
  found = processes.each(lambda name: name in sys.modules, ['tensorflow'], 3)
  assert list(found) == [False]


def test_a_process_that_ends_is_told_and_replaced():
  with pytest.raises(RuntimeError, match='from outside or crashed'):
    list(processes.each(os._exit, [3], 1))
  assert list(processes.each(abs, [-3], 1)) == [3]
  with pytest.raises(ZeroDivisionError):
    list(processes.each(lambda x: 1 / x, [0], 1))


def test_no_work_goes_on_that_nobody_waits_for():
  working = processes.each(lambda _: os.getpid(), range(100), 1)
  next(working)
  assert processes._executors
  working.close()
  assert (os.getpid(), 1) not in processes._executors


def test_what_cannot_be_sent_is_told():
  lock = threading.Lock()
  with pytest.raises(ValueError, match=r'cannot be sent there: .*\. Make'):
    list(processes.each(lambda _: lock, [1], 1))
