"""Bounds on the depth and the size of an event, checked wherever one enters.

Any other process must be able to read what is written: a JSON parser, `repr`
and every recursion over an event fail at some depth, Python prints no integer
of more than 4,300 digits, and no float is above 2^1024. So events are checked
first, without recursion.
"""

from __future__ import annotations

import functools
import numbers
from typing import Any

import attr
import dp_accounting

# Events within each other; how many there are in all; and the product of the
# counts around any one of them.
MAX_DEPTH = 64
MAX_PARTS = 10**6
MAX_RUNS = 10**15
# What ledgers, statements and calibrations put around an event that is within
# the bounds, and what their counts add up to.
_AROUND = 16
_MAX_TOTAL = 10**60
_MAX_BITS = 1000


def check_event(
  event: dp_accounting.DpEvent, *, runs: int = 1, composed: bool = False
) -> dp_accounting.DpEvent:
  """Returns an event, or refuses it as too deep or too large.

  Args:
    event: a `DpEvent`.
    runs: how often it happens.
    composed: whether the event may be one that was put together from several
      that were checked before, such as all of a ledger.

  Raises:
    TypeError: if it is no `DpEvent`, or the parts of a composition are not in a
      list or tuple.
    ValueError: if it is nested too deep, has too many parts, or counts too many
      runs.

  >>> event = dp_accounting.GaussianDpEvent(1.0)
  >>> _ = check_event(dp_accounting.SelfComposedDpEvent(event, 10**15))
  >>> check_event(dp_accounting.SelfComposedDpEvent(event, 10**16))
  Traceback (most recent call last):
  ...
  ValueError: A count must be an integer, ... at most 10^15, not ...
  """
  deepest = MAX_DEPTH + (_AROUND if composed else 0)
  most = _MAX_TOTAL if composed else MAX_RUNS
  found, left = 0, [(event, 1, _whole(runs, most))]
  while left:
    part, depth, runs = left.pop()
    found += 1
    if not isinstance(part, dp_accounting.DpEvent):
      raise TypeError(
        f'An event must be a dp_accounting.DpEvent, not a '
        f'{type(part).__name__}.'
      )
    # Also where an event holds itself.
    if depth > deepest:
      raise ValueError(
        f'The event is nested too deep: at most {MAX_DEPTH} events within each '
        'other are accounted. Put the parts of nested ComposedDpEvents into '
        'one, and multiply the counts of nested SelfComposedDpEvents.'
      )
    if found > MAX_PARTS:
      raise ValueError(
        f'The event has too many parts: at most {MAX_PARTS:,} are accounted at '
        'once. Count equal ones with SelfComposedDpEvent.'
      )
    if isinstance(part, dp_accounting.SelfComposedDpEvent):
      runs *= _whole(part.count, most)
      if runs > most:
        raise ValueError(
          f'The event counts too many runs: at most 10^{len(str(most)) - 1} '
          'runs of one mechanism are accounted.'
        )
    for inner in _inner(part):
      left.append((inner, depth + 1, runs))
  return event


def _whole(count: Any, most: int) -> int:
  """Returns a count as an int, compared before it is converted or printed."""
  if type(count) is int and 0 <= count <= most:
    return count
  if not isinstance(count, numbers.Real):
    raise TypeError(
      f'A count must be an integer, not a {type(count).__name__}.'
    )
  if not 0 <= count <= most or count % 1:
    shown = repr(count) if -most <= count <= most else 'that many'
    raise ValueError(
      'A count must be an integer, zero or more and at most '
      f'10^{len(str(most)) - 1}, not {"NaN" if count != count else shown}.'
    )
  return int(count)


def _inner(event: dp_accounting.DpEvent) -> list[dp_accounting.DpEvent]:
  """Returns the events that an event holds; checks its numbers as well."""
  found: list[dp_accounting.DpEvent] = []
  for name in _field_names(type(event)) or getattr(event, '__dict__', ()):
    value = getattr(event, name)
    if isinstance(value, dp_accounting.DpEvent):
      found.append(value)
    elif name == 'events':
      # A generator would be read once, and cost nothing the second time.
      if not isinstance(value, (list, tuple)):
        raise TypeError(
          f'The events of a {type(event).__name__} must be in a list or tuple, '
          f'not in a {type(value).__name__}.'
        )
      found += value
    elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
      raise ValueError(
        f'{name} of a {type(event).__name__} is a number of more than 300 '
        'digits, which cannot be accounted.'
      )
  return found


@functools.lru_cache(maxsize=256)
def _field_names(cls: type) -> tuple[str, ...]:
  if not attr.has(cls):
    return ()
  return tuple(field.name for field in attr.fields(cls))
