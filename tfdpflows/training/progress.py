"""Callbacks that tell how far a training is, and what it has spent."""

from __future__ import annotations

import collections
import functools
import math
import time
from typing import Any

import dp_accounting
import numpy as np
from absl import logging

from tfdpflows import progress
from tfdpflows._keras import keras
from tfdpflows.accounting import calibration, registry
from tfdpflows.accounting.events import describe_event
from tfdpflows.accounting.mechanisms import no_proof
from tfdpflows.accounting.rounding import delta_text, round_up
from tfdpflows.training.plan import TrainingPlan

# Points of the training at which a progress bar knows epsilon.
_EPSILONS = 50


class EpsilonLogger(keras.callbacks.Callback):
  """Adds what is spent, and the speed, to the logs of each epoch.

  At the end of an epoch `epsilon` is that of all in the plan's ledger with the
  steps made so far, by this process or an earlier one, at the plan's delta, and
  `steps_per_second` the mean over the epoch. Where the plan's accountant proves
  no upper bound (gdp), the first is called `asymptotic_epsilon`. Weights that
  are taken back take no step back. Keras's `History` has both, and so have
  callbacks that come after this one in the list: `TensorBoard`, `CSVLogger`, an
  `EarlyStopping` of `monitor='epsilon'`.

  The ledger is charged ahead, by a tenth of an epoch and what is prefetched:
  where a training is stopped, the plan's `privacy_statement()` may say a little
  more.

  Raises:
    ValueError: when training begins, if the optimizer has no `TrainingPlan`.

  #### Example

  >>> import numpy as np, tfdpflows
  >>> x = np.random.default_rng(0).normal(size=[500, 2]).astype('float32')
  >>> plan = tfdpflows.TrainingPlan.for_epsilon(
  ...   epsilon=1., delta=1e-4, num_examples=500, expected_batch_size=100,
  ...   epochs=2, clipping=tfdpflows.gradients.Flat(5.))
  >>> flow = tfdpflows.flows.masked_autoregressive_flow(2, num_blocks=1)
  >>> model = tfdpflows.DensityModel(flow)
  >>> model.compile(optimizer=plan.optimizer('adam', learning_rate=1e-3))
  >>> callbacks = [tfdpflows.training.EpsilonLogger()]
  >>> history = model.fit(x, verbose=0, callbacks=callbacks).history
  >>> [round(epsilon, 2) for epsilon in history['epsilon']]
  [0.72, 1.0]
  """

  @staticmethod
  def names(plan: TrainingPlan | None) -> tuple[str, str]:
    """Returns the names of epsilon and of the speed in the logs."""
    asymptotic = plan is not None and registry.caveat(plan.accountant)
    return 'asymptotic_epsilon' if asymptotic else 'epsilon', 'steps_per_second'

  def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
    """See Keras."""
    if getattr(self.model.optimizer, 'plan', None) is None:
      raise ValueError(
        'EpsilonLogger logs what a TrainingPlan has spent: compile the model '
        'with plan.optimizer(...).'
      )

  def on_epoch_begin(
    self, epoch: int, logs: dict[str, Any] | None = None
  ) -> None:
    """See Keras."""
    self._begin = time.monotonic(), self.model.optimizer.noise_source.unused

  def on_epoch_end(
    self, epoch: int, logs: dict[str, Any] | None = None
  ) -> None:
    """See Keras."""
    if logs is None:
      return
    start, first = self._begin
    noise = self.model.optimizer.noise_source
    done = noise.unused
    values = (
      epsilon_after(noise.plan, noise.steps.spent),
      (done - first) / max(time.monotonic() - start, 1e-9),
    )
    logs.update(zip(self.names(noise.plan), values))


class Progress(keras.callbacks.Callback):
  """Shows step, epsilon spent so far, the released loss and the time left.

  Epsilon is that of the whole ledger. The loss is what the optimizer releases
  with noise, as a mean over the last epoch and its standard error. What is
  charged, and to which ledger, is logged at INFO when training begins.

  Args:
    plan: the `TrainingPlan` of the training.
    wanted: whether to show anything.
    lines_only: whether to log lines in a terminal too, and show no bar.
  """

  def __init__(
    self, plan: TrainingPlan, wanted: bool = True, lines_only: bool = False
  ):
    super().__init__()
    self._plan = plan
    done = plan.steps - plan.remaining_steps
    self._bar = progress.bar('step', plan.steps, wanted, done, lines_only)
    self._sum = 0.0
    self._losses = collections.deque(
      maxlen=max(plan.sampler.steps_per_epoch, 2)
    )
    points = np.linspace(0, plan.steps, _EPSILONS + 1).round()
    self._points, self._epsilons = np.unique(points.astype(int)), {}

  def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
    """See Keras."""
    if self._bar.disable or not progress.is_logged():
      return
    plan, noise = self._plan, self.model.optimizer.noise_source
    parts = plan.sampler.parts
    logging.info(
      'Training: %d of %d steps are left. %s charged as: %s. Epsilon is '
      '%s now and %s at the end, at delta %s%s. Ledger: %s.',
      plan.steps - noise.unused,
      plan.steps,
      'Each is' if parts == 1 else f'Each {parts} of them are',
      describe_event(plan.event.event),
      round_up(epsilon_after(plan, noise.steps.spent), 3),
      round_up(epsilon_after(plan, plan.steps), 3),
      delta_text(plan.delta),
      registry.credit(plan.accountant),
      plan.ledger.path or 'in memory',
    )

  def on_train_batch_end(
    self, batch: int, logs: dict[str, Any] | None = None
  ) -> None:
    """See Keras."""
    if self._bar.disable:
      return
    if logs and 'loss' in logs:
      # Keras gives the mean since the start of its epoch.
      before = self._sum if batch else 0.0
      self._sum = float(logs['loss']) * (batch + 1)
      self._losses.append(self._sum - before)
    noise = self.model.optimizer.noise_source
    # Few lines are logged, and epsilon takes as long as several steps do.
    text = functools.partial(self._text, noise.steps.spent)
    late = isinstance(self._bar, progress.Lines)
    self._bar.set_postfix_str(text if late else text(), refresh=False)
    self._bar.update(noise.unused - self._bar.n)

  def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
    """See Keras."""
    self.close()

  def close(self) -> None:
    """Ends the bar, and its line."""
    self._bar.bar_format = progress.FORMAT + '{elapsed} taken'
    self._bar.close()

  def _text(self, spent):
    # The epsilon of the next point that is known: never too small.
    point = int(self._points[np.searchsorted(self._points, spent)])
    if point not in self._epsilons:
      self._epsilons[point] = epsilon_after(self._plan, point)
    text = f'epsilon {round_up(self._epsilons[point], 3)}'
    text += registry.caveat(self._plan.accountant)
    if len(self._losses) > 1:
      error = np.std(self._losses) / math.sqrt(len(self._losses))
      text += f', {self._loss_text(np.mean(self._losses), error)}'
    return text

  def _loss_text(self, mean, error):
    return f'loss {mean:.3g} ± {error:.2g}'


def epsilon_after(plan: TrainingPlan, steps: int) -> float:
  """Returns epsilon of a plan's ledger after so many steps of the plan.

  Args:
    plan: the `TrainingPlan`.
    steps: number of its steps.

  Returns:
    Epsilon, infinite where the ledger has a mechanism without a proof.
  """
  ledger = plan.ledger
  others = list(ledger.entries)
  runs = plan.mechanism.charges(plan.steps)
  for entry in others:
    # Others may have the label of the plan, but not all else too.
    if (entry.label, entry.reserved) == (plan.label, runs) and (
      entry.event == plan.event.event
    ):
      others.remove(entry)
      break
  spent, unproven = no_proof.split(
    dp_accounting.ComposedDpEvent(
      [
        dp_accounting.SelfComposedDpEvent(entry.event, entry.count)
        for entry in others
        if entry.count
      ]
    )
  )
  if unproven:
    return math.inf
  (epsilon,) = calibration.epsilon_after(
    plan.event.event,
    [plan.mechanism.charges(steps)],
    delta=plan.delta,
    spent=spent,
    accountant=plan.accountant,
    neighboring_relation=ledger.neighboring_relation,
  )
  return epsilon
