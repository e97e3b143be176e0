"""Results of functions that are kept as long as there is room for them."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ['cached']

_Function = TypeVar('_Function', bound=Callable)


def cached(
  room: int, size_of: Callable[..., int] = lambda _: 1
) -> Callable[[_Function], _Function]:
  """Keeps the results of a function of hashable arguments.

  No result may be None. Where there is no room left, results chosen at random
  make place. What was used longest ago must not go first: whoever asks for one
  more than there is room for, in one order again and again, would find none.

  Args:
    room: How much is kept, in the units of `size_of`.
    size_of: Size of a result; by default every result is one.

  Returns:
    A decorator.

  ```python
  >>> @cached(2)
  ... def square(x):
  ...   print(f'computes {x} * {x}')
  ...   return x * x
  >>> square(3), square(3)
  computes 3 * 3
  (9, 9)

  ```
  """

  def decorate(function: _Function) -> _Function:
    results: dict[tuple, object] = {}
    keys: list[tuple] = []
    used = 0
    lock, choice = threading.Lock(), random.Random(0)

    @functools.wraps(function)
    def asked(*args):
      nonlocal used
      found = results.get(args)
      if found is not None:
        return found
      found = function(*args)
      with lock:
        if args not in results:
          used += size_of(found)
          while keys and used > room:
            place = choice.randrange(len(keys))
            keys[place], keys[-1] = keys[-1], keys[place]
            used -= size_of(results.pop(keys.pop()))
          keys.append(args)
          results[args] = found
      return found

    return asked

  return decorate
