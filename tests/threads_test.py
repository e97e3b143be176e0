"""Work ahead of its reader: in order, bounded, and errors where they belong."""

import itertools
import threading

import pytest

from tfdpflows._threads import map_ahead


def test_results_are_in_order_though_later_calls_end_first():
  second = threading.Event()

  def call(number):
    if number == 0:
      # Ends only when the next one has.
      assert second.wait(60)
    elif number == 1:
      second.set()
    return number

  assert list(map_ahead(call, range(10))) == list(range(10))


def test_few_are_computed_ahead_of_what_is_asked_for():
  asked = []

  def arguments():
    for number in itertools.count():
      asked.append(number)
      yield number

  results = map_ahead(abs, arguments())
  assert [next(results), next(results)] == [0, 1]
  results.close()
  assert len(asked) <= 6


def test_an_error_comes_in_its_place():
  results = map_ahead(lambda x: 1 / x, [1, 2, 0, 4])
  assert [next(results), next(results)] == [1, 0.5]
  with pytest.raises(ZeroDivisionError):
    next(results)
