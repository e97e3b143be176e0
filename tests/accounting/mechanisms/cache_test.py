"""What is kept, and what makes place for it."""

import threading

import dp_accounting

from tfdpflows.accounting import mechanisms
from tfdpflows.accounting.mechanisms import base, losses
from tfdpflows.accounting.pld import accountant as pld


def counted(room, size_of=lambda _: 1):
  calls = []

  @base.cached(room, size_of)
  def function(x):
    calls.append(x)
    return [x]

  return function, calls


def test_more_than_there_is_room_for_is_found_mostly():
  """An LRU of 24 found none of 25 that were asked for in turn."""
  function, calls = counted(24)
  for _ in range(100):
    for x in range(25):
      assert function(x) == [x]
  assert len(calls) < 25 + 99 * 25 / 4


def test_sizes_count():
  function, calls = counted(100, lambda found: found[0])
  for x in (60, 30, 60, 30):
    function(x)
  assert calls == [60, 30]
  function(90)
  function(90)
  assert calls == [60, 30, 90]
  function(60)
  assert calls == [60, 30, 90, 60]
  # What is too large alone is not kept, or not for long.
  function(1000)
  function(1)
  function(1)
  assert calls.count(1) == 1


def test_threads():
  function, _ = counted(3)
  wrong = []

  def ask():
    for i in range(3000):
      if function(i % 7) != [i % 7]:
        wrong.append(i)

  threads = [threading.Thread(target=ask) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not wrong


def test_loss_distributions_of_many_parameters_are_kept(monkeypatch):
  """More than 24 were computed anew for every price."""
  computed = []
  compute = losses.with_moments

  def count(*args):
    computed.append(args)
    return compute(*args)

  monkeypatch.setattr(losses, 'with_moments', count)
  # What other tests have left in the one of the process is dropped at random.
  empty = base.cached(base._BYTES_KEPT, lambda pair: len(pair[0].masses))
  monkeypatch.setattr(
    mechanisms,
    'loss_distributions',
    empty(mechanisms.loss_distributions.__wrapped__),
  )
  parts = [dp_accounting.LaplaceDpEvent(31.0 + i / 64) for i in range(40)]
  made = pld.PLDAccountant().compose(dp_accounting.ComposedDpEvent(parts))
  made.get_epsilon(1e-6)
  assert len(computed) >= 40
  computed.clear()
  made.get_epsilon(1e-7)
  assert not computed
