"""Progress: bars in a terminal or notebook, elsewhere lines of the log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tqdm
from absl import logging

from tfdpflows.accounting import registry
from tfdpflows.accounting.events import describe_event
from tfdpflows.accounting.rounding import round_up

if TYPE_CHECKING:
  from tfdpflows.accounting import PrivacyLedger

# Seconds between two updates of a bar; to the first line of a log, which says
# how long it will take, and between two others.
_PAUSE, _FIRST_LINE, _LINE_PAUSE = 0.1, 5.0, 30.0
FORMAT = '[{bar:12}] {desc} {n_fmt}/{total_fmt}{postfix}, '


def bar(
  what: str,
  total: int,
  wanted: bool = True,
  done: int = 0,
  lines_only: bool = False,
) -> tqdm.tqdm | Lines:
  """Returns a bar on stderr, shown where that is a terminal or a notebook.

  Elsewhere, as in the log file of a batch job, it is `Lines` of absl's log, if
  that has level INFO.

  Args:
    what: what is counted, one word.
    total: how many there are.
    wanted: whether to show one.
    done: how many are done already.
    lines_only: whether to write lines in a terminal too.
  """
  there = sys.stderr.isatty() or 'ipykernel' in sys.modules
  if lines_only or not there:
    return Lines(what, total, wanted and is_logged(), done)
  return tqdm.tqdm(
    desc=what,
    total=total,
    initial=done,
    disable=not wanted,
    file=sys.stderr,
    bar_format=FORMAT + '{remaining} left',
    ascii=' =',
    dynamic_ncols=True,
    mininterval=_PAUSE,
    miniters=1,
  )


def about(seconds: float) -> str:
  """Returns a time in words, as exact as an estimate is.

  Args:
    seconds: the time.

  >>> about(42.), about(95.), about(5000.)
  ('1 minute', '2 minutes', '1.5 hours')
  """
  if seconds >= 3600:
    return f'{round(2 * seconds / 3600) / 2:g} hours'
  minutes = max(round(seconds / 60), 1)
  return f'{minutes} minute' + ('s' if minutes > 1 else '')


def is_logged() -> bool:
  """Whether absl logs at level INFO."""
  return logging.get_verbosity() >= logging.INFO


class Lines:
  """Has the methods of a bar that are needed, and logs a line now and then.

  Args:
    what: see `bar`.
    total: see `bar`.
    wanted: see `bar`.
    done: see `bar`.
  """

  def __init__(self, what: str, total: int, wanted: bool, done: int):
    self.disable, self.n = not wanted, done
    self._what, self._total, self._first = what, total, done
    self._postfix, self._ended = '', False
    self._start = time.monotonic()
    self._timed = None  # When the first update ended, and how many were done.
    self._next = self._start + _FIRST_LINE

  def __enter__(self) -> Lines:
    return self

  def __exit__(self, *unused_args: Any) -> None:
    self.close()

  def set_postfix_str(
    self, text: str | Callable[[], str], refresh: bool = True
  ) -> None:
    """Sets what a line says besides, such as epsilon.

    Args:
      text: the words, or a function that is called for each line.
      refresh: of bars.
    """
    del refresh
    self._postfix = text

  def update(self, n: int = 1) -> None:
    """Counts, and logs a line if it is time."""
    self.n += n
    now = time.monotonic()
    if self.disable or self.n <= self._first:
      return
    if self._timed is None:
      # It compiles, and says nothing of how long others take.
      self._timed = now, self.n
      if now >= self._next:
        self._next = now + _FIRST_LINE
        self._log()
      return
    if now < self._next:
      return
    self._next = now + _LINE_PAUSE
    since, before = self._timed
    rate = (self.n - before) / max(now - since, 1e-9)
    left = tqdm.tqdm.format_interval((self._total - self.n) / rate)
    self._log(f'{rate:.3g} per second, {left} left')

  def close(self) -> None:
    """Logs a last line."""
    if not (self.disable or self._ended):
      taken = time.monotonic() - self._start
      self._log(f'{tqdm.tqdm.format_interval(taken)} taken')
    self._ended = True

  def _log(self, text=''):
    postfix = self._postfix() if callable(self._postfix) else self._postfix
    more = ''.join(f', {words}' for words in (postfix, text) if words)
    logging.info('%s %d/%d%s', self._what, self.n, self._total, more)


def log_charge(what: str, ledger: PrivacyLedger, label: str) -> None:
  """Logs in a line what a mechanism has charged, and epsilon so far.

  Args:
    what: the phase of the work, at the start of a sentence.
    ledger: what was charged.
    label: of the entry.
  """
  if is_logged():
    events = [e.event for e in ledger.entries if e.label == label and e.count]
    charged = '; '.join(map(describe_event, events)) or 'nothing'
    logging.info(
      '%s: charged %s. Epsilon is %s so far%s.',
      what,
      charged,
      round_up(ledger.epsilon(), 3),
      registry.caveat(ledger.accountant),
    )


def add_one(shown: tqdm.tqdm | Lines, ledger: PrivacyLedger) -> None:
  """Advances the bar by one, and shows the epsilon of the ledger."""
  if not shown.disable:
    epsilon = round_up(ledger.epsilon(), 3)
    text = f'epsilon {epsilon}{registry.caveat(ledger.accountant)}'
    shown.set_postfix_str(text, refresh=False)
    shown.update()
