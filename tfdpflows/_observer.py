"""What looks into a run: the object of `audit.replay`, while it replays one.

All random numbers, releases and charges of the library pass one of four places:
`Randomness`, its NumPy streams, the noise of the optimizers, and the records of
`PrivacyLedger`. Each asks here whether someone looks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Optional

# For all threads: batches are drawn in one, updates are computed in others.
_observers: list = []


def current() -> Optional[Any]:
  """Returns the observer, `None` in all runs but those of `audit.replay`."""
  return _observers[-1] if _observers else None


@contextlib.contextmanager
def observing(observer: Any) -> Iterator[None]:
  """Returns a context in which `current` is `observer`.

  Raises:
    ValueError: inside of another such context.
  """
  if _observers:
    raise ValueError('One replay runs already: they do not nest.')
  _observers.append(observer)
  try:
    yield
  finally:
    _observers.pop()
