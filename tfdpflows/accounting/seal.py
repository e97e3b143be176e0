"""The last line of a ledger that was merged into another one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional

__all__ = ['describe_seal', 'seal_record', 'source_names']


def source_names(paths: Sequence[Optional[str]], into: Optional[str]):
  """The names of ledgers as seen from the one that they are merged into.

  Args:
    paths: Their files; None for one in memory.
    into: The file of the merged ledger; None for one in memory.

  Returns:
    A list of relative paths, so that they hold when all is moved together.

  ```python
  >>> source_names(['/a/b/first', '/a/second'], '/a/all')
  ['b/first', 'second']

  ```
  """
  if into is None:
    return ['in memory' for _ in paths]
  folder = os.path.dirname(os.path.realpath(into))
  return [
    'in memory'
    if path is None
    else os.path.relpath(os.path.realpath(path), folder)
    for path in paths
  ]


def seal_record(
  path: Optional[str], into: Optional[str], names: Sequence[str]
) -> dict[str, Any]:
  """The record that seals a ledger.

  Args:
    path: Its file; None for one in memory.
    into: The file of the merged ledger; None for one in memory.
    names: The `source_names` of all that are merged.

  Returns:
    A record for `LedgerState.apply`.
  """
  if path is not None and into is not None:
    folder = os.path.dirname(os.path.realpath(path))
    into = os.path.relpath(os.path.realpath(into), folder)
  return {'kind': 'seal', 'into': into, 'sources': sorted(names)}


def describe_seal(path: Optional[str], seal: dict[str, Any]) -> str:
  """Says where a ledger went.

  Args:
    path: Its file; None for one in memory.
    seal: The record.

  Returns:
    A sentence, with what to do.
  """
  what = 'This ledger' if path is None else f'The ledger {path}'
  into = seal['into']
  if into is None:
    return f'{what} was merged into one in memory: continue that one.'
  if path is not None:
    folder = os.path.dirname(os.path.realpath(path))
    into = os.path.normpath(os.path.join(folder, into))
  if os.path.exists(into):
    return f'{what} was merged into {into}: continue that one.'
  return (
    f'{what} was being merged into {into}, which is not there: merge the same '
    f'ledgers again ({", ".join(seal["sources"])}, as seen from '
    f'{os.path.dirname(into)}).'
  )
