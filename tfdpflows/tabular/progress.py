"""Progress bars of a fit, in a terminal or notebook."""

from __future__ import annotations

import collections
import math
from typing import Any

import dp_accounting
import numpy as np

from tfdpflows._keras import keras
from tfdpflows.accounting import calibration
from tfdpflows.progress import FORMAT, bar
from tfdpflows.training.plan import TrainingPlan

# Points of the training at which the bar knows epsilon.
_EPSILONS = 50


class Progress(keras.callbacks.Callback):
  """Shows step, epsilon spent so far, nats and the time left.

  Epsilon is that of the whole ledger. The nats are what the optimizer releases
  with noise, as a mean over the last epoch and its standard error.

  Args:
    plan: the `TrainingPlan` of the training.
    wanted: whether to show anything.
  """

  def __init__(self, plan: TrainingPlan, wanted: bool = True):
    super().__init__()
    done = plan.steps - plan.remaining_steps
    self._bar = bar('step', plan.steps, wanted, done)
    self._sum = 0.0
    self._nats = collections.deque(maxlen=max(plan.sampler.steps_per_epoch, 2))
    if self._bar.disable:
      return
    steps = np.linspace(0, plan.steps, _EPSILONS + 1).round()
    self._steps = np.unique(steps.astype(int))[1:]
    spent = [
      dp_accounting.SelfComposedDpEvent(entry.event, entry.count)
      for entry in plan.ledger.entries
      if entry.label != plan.label and entry.count
    ]
    self._epsilons = calibration.epsilon_after(
      plan.sampler.event(plan.noise_multiplier),
      self._steps.tolist(),
      delta=plan.delta,
      spent=dp_accounting.ComposedDpEvent(spent),
      accountant=plan.accountant,
    )

  def on_train_batch_end(
    self, batch: int, logs: dict[str, Any] | None = None
  ) -> None:
    if self._bar.disable:
      return
    if logs and 'loss' in logs:
      # Keras gives the mean since the start of its epoch.
      before = self._sum if batch else 0.0
      self._sum = float(logs['loss']) * (batch + 1)
      self._nats.append(before - self._sum)
    step = int(self.model.optimizer.iterations)
    self._bar.set_postfix_str(self._text(step), refresh=False)
    self._bar.update(step - self._bar.n)

  def close(self) -> None:
    """Ends the bar, and its line."""
    self._bar.bar_format = FORMAT + '{elapsed} taken'
    self._bar.close()

  def _text(self, step):
    # The epsilon of the next point that is known: never too small.
    epsilon = self._epsilons[int(np.searchsorted(self._steps, step))]
    text = f'epsilon {epsilon:.3g}'
    if len(self._nats) > 1:
      error = np.std(self._nats) / math.sqrt(len(self._nats))
      text += f', {np.mean(self._nats):.2f} ± {error:.2f} nats gained'
    return text
