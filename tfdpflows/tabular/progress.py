"""One line in the terminal that says how far a fit is."""

from __future__ import annotations

import collections
import math
import shutil
import sys
import time

import dp_accounting
import numpy as np

from tfdpflows import accounting
from tfdpflows._keras import keras

# Points of the training at which the line knows epsilon.
_EPSILONS = 50
# Seconds between two updates.
_PAUSE = 0.1
_BAR = 12


class Line:
  """A line on stderr that is written over, in a terminal or notebook.

  Attributes:
    shown: whether there is one.

  Args:
    wanted: whether there is to be one.
  """

  def __init__(self, wanted=True):
    there = sys.stderr.isatty() or 'ipykernel' in sys.modules
    self.shown = wanted and there
    self._width = 0

  def write(self, text):
    """Shows `text` in place of what was there."""
    if not self.shown:
      return
    text = text[: shutil.get_terminal_size().columns - 1]
    sys.stderr.write(f'\r{text.ljust(self._width)}')
    sys.stderr.flush()
    self._width = len(text)

  def close(self):
    """Ends the line, so that what follows does not stand in it."""
    if self._width:
      print(file=sys.stderr, flush=True)
      self._width = 0


class Rounds:
  """Shows how many rounds are done, epsilon spent so far, and the time left.

  Args:
    what: what a round is, one word.
    total: number of rounds.
    ledger: the `PrivacyLedger` whose epsilon is shown.
    line: the `Line` to write.

  #### Example

  >>> from tfdpflows import accounting
  >>> line = Line(wanted=False)
  >>> rounds = Rounds('guide', 2, accounting.PrivacyLedger(), line)
  >>> rounds.done()
  """

  def __init__(self, what, total, ledger, line):
    self._what, self._total = what, total
    self._ledger, self._line = ledger, line
    self._begun, self._number = time.monotonic(), 0

  def done(self):
    """Says that one more round is done."""
    self._number += 1
    if not self._line.shown:
      return
    taken = time.monotonic() - self._begun
    left = taken / self._number * (self._total - self._number)
    self._line.write(
      f'{_bar(self._number, self._total)} {self._what} {self._number}/'
      f'{self._total}, epsilon {self._ledger.epsilon():.3g}, '
      f'{_clock(left)} left'
    )


class Progress(keras.callbacks.Callback):
  """Shows step, epsilon spent so far, nats and the time left.

  Epsilon is that of the whole ledger. The nats are what the optimizer releases
  with noise, as a mean over the last epoch and its standard error. Written to
  stderr, where that is a terminal or a notebook.

  Args:
    plan: the `TrainingPlan` of the training.
  """

  def __init__(self, plan):
    super().__init__()
    self._plan = plan
    self._line = Line()
    self._sum = 0.0
    self._nats = collections.deque(maxlen=max(plan.sampler.steps_per_epoch, 2))
    self._begun = self._next = time.monotonic()
    # Step and time after the first step, which compiles.
    self._first = None
    if not self._line.shown:
      return
    steps = np.linspace(0, plan.steps, _EPSILONS + 1).round()
    self._steps = np.unique(steps.astype(int))[1:]
    spent = [
      dp_accounting.SelfComposedDpEvent(entry.event, entry.count)
      for entry in plan.ledger.entries
      if entry.label != plan.label and entry.count
    ]
    self._epsilons = accounting.epsilon_after(
      plan.sampler.event(plan.noise_multiplier),
      self._steps.tolist(),
      plan.delta,
      spent=dp_accounting.ComposedDpEvent(spent),
      accountant=plan.accountant,
    )

  def on_train_batch_end(self, batch, logs=None):
    if not self._line.shown:
      return
    if logs and 'loss' in logs:
      # Keras gives the mean since the start of its epoch.
      before = self._sum if batch else 0.0
      self._sum = float(logs['loss']) * (batch + 1)
      self._nats.append(before - self._sum)
    step = int(self.model.optimizer.iterations)
    now = time.monotonic()
    self._first = self._first or (step, now)
    if now >= self._next or step == self._plan.steps:
      self._next = now + _PAUSE
      self._line.write(self._text(step, now))

  def close(self):
    """Ends the line, so that what follows does not stand in it."""
    self._line.close()

  def _text(self, step, now):
    total = self._plan.steps
    # The epsilon of the next point that is known: never too small.
    epsilon = self._epsilons[int(np.searchsorted(self._steps, step))]
    parts = [
      f'{_bar(step, total)} step {step}/{total}',
      f'epsilon {epsilon:.3g}',
    ]
    if len(self._nats) > 1:
      error = np.std(self._nats) / math.sqrt(len(self._nats))
      parts.append(f'{np.mean(self._nats):.2f} ± {error:.2f} nats gained')
    first, start = self._first
    if step == total:
      parts.append(f'{_clock(now - self._begun)} taken')
    elif step > first:
      left = (now - start) / (step - first) * (total - step)
      parts.append(f'{_clock(left)} left')
    return ', '.join(parts)


def _bar(done, total):
  return f'[{"=" * (_BAR * done // total):<{_BAR}}]'


def _clock(seconds):
  minutes, seconds = divmod(math.ceil(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  clock = f'{minutes}:{seconds:02}'
  return f'{hours}:{minutes:02}:{seconds:02}' if hours else clock
