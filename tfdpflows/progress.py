"""Progress bars, in a terminal or notebook."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import tqdm

if TYPE_CHECKING:
  from tfdpflows.accounting import PrivacyLedger

# Seconds between two updates.
_PAUSE = 0.1
FORMAT = '[{bar:12}] {desc} {n_fmt}/{total_fmt}{postfix}, '


def bar(what: str, total: int, wanted: bool = True, done: int = 0) -> tqdm.tqdm:
  """Returns a bar on stderr, shown where that is a terminal or a notebook.

  Args:
    what: what is counted, one word.
    total: how many there are.
    wanted: whether to show one.
    done: how many are done already.
  """
  there = sys.stderr.isatty() or 'ipykernel' in sys.modules
  return tqdm.tqdm(
    desc=what,
    total=total,
    initial=done,
    disable=not (wanted and there),
    file=sys.stderr,
    bar_format=FORMAT + '{remaining} left',
    ascii=' =',
    dynamic_ncols=True,
    mininterval=_PAUSE,
    miniters=1,
  )


def add_one(shown: tqdm.tqdm, ledger: PrivacyLedger) -> None:
  """Advances the bar by one, and shows the epsilon of the ledger."""
  if not shown.disable:
    shown.set_postfix_str(f'epsilon {ledger.epsilon():.3g}', refresh=False)
    shown.update()
