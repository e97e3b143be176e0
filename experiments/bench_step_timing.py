"""Times of several things in one run, so that they can be compared."""

from __future__ import annotations

import statistics
import time


def interleave(calls, rounds, few=(), few_rounds=3, warm_up=3, progress=None):
  """Times calls by turns, so that what else the machine does falls on all.

  The order within a round moves on from round to round.

  Args:
    calls: a dict of name -> function without arguments.
    rounds: how often each is timed.
    few: names of those that are slow: timed in the first `few_rounds` rounds
      only, and called once before that.
    few_rounds: see `few`.
    warm_up: calls of the others before the first that is timed.
    progress: called with a line of words now and then.

  Returns:
    A dict of name -> milliseconds, one for each round.
  """
  for name, call in calls.items():
    for _ in range(1 if name in few else warm_up):
      call()
    if progress:
      progress(f'ready: {name}')
  names = list(calls)
  times = {name: [] for name in names}
  for i in range(rounds):
    start = i % len(names)
    for name in names[start:] + names[:start]:
      if name in few and i >= few_rounds:
        continue
      before = time.perf_counter()
      calls[name]()
      times[name].append(1e3 * (time.perf_counter() - before))
  return times


def summarize(times, floor):
  """Returns medians, and ratios to a floor.

  Args:
    times: of `interleave`.
    floor: a function from a name to that of what it is compared to.

  Returns:
    A dict of name -> dict of `median_ms` and `quartiles_ms`; `ratio` to the
    floor in the same round, the median over the rounds, its
    `ratio_quartiles`, and `floor`; and `rounds`.

  #### Example

  >>> found = summarize({'a': [1., 2., 3.], 'b': [3., 4., 5.]}, lambda _: 'a')
  >>> found['b']['median_ms'], found['b']['ratio']
  (4.0, 2.0)
  """
  result = {}
  for name, found in times.items():
    base = times[floor(name)]
    by_round = [one / other for one, other in zip(found, base)]
    result[name] = {
      'median_ms': statistics.median(found),
      'quartiles_ms': quartiles(found),
      'ratio': statistics.median(by_round),
      'ratio_quartiles': quartiles(by_round),
      'floor': floor(name),
      'rounds': len(found),
    }
  return result


def quartiles(values):
  """Returns the first and the third quartile; of one value, it twice."""
  if len(values) == 1:
    return [values[0]] * 2
  first, _, third = statistics.quantiles(values, n=4, method='inclusive')
  return [first, third]
