"""Work that several threads do ahead of its reader."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

# Calls at one time, and calls ahead of what is asked for.
_THREADS, _AHEAD = 2, 4


def map_ahead(
  function: Callable[[Any], Any], arguments: Iterable[Any]
) -> Iterator[Any]:
  """Yields what `map` does, computed in threads while the caller works.

  Two calls run at a time, where they release the interpreter's lock. Results
  and errors of calls come in the order of the arguments, which one thread asks
  for.

  >>> list(map_ahead(abs, [-1, 2, -3]))
  [1, 2, 3]
  """
  arguments = iter(arguments)
  with futures.ThreadPoolExecutor(_THREADS) as threads:
    waiting = collections.deque()
    while True:
      more = itertools.islice(arguments, _AHEAD - len(waiting))
      waiting.extend(threads.submit(function, argument) for argument in more)
      if not waiting:
        return
      yield waiting.popleft().result()
