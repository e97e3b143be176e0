"""One of two worker processes; `workers_test.py` starts them.

Usage: worker.py INDEX PORT,PORT FOLDER begin|resume
"""

import json
import os
import pathlib
import signal
import sys

import numpy as np
import small_training
import tensorflow as tf

from tests.unproven import unproven
from tfdpflows import _keras, accounting
from tfdpflows.randomness import Randomness

# In the middle of the second of three epochs, of which two are paid for then.
KILLED_AFTER = 5
SECRET = bytes(32)


def main(index, ports, folder, phase):
  cluster = {'worker': [f'127.0.0.1:{port}' for port in ports.split(',')]}
  task = {'type': 'worker', 'index': int(index)}
  os.environ['TF_CONFIG'] = json.dumps({'cluster': cluster, 'task': task})
  worker = Worker(int(index), pathlib.Path(folder))
  if phase == 'begin':
    worker.refusals()
    worker.whole()
    # The model is the same, and was proven.
    with unproven():
      worker.interrupted()
  else:
    with unproven():
      worker.resumed()


class Worker:
  """What both workers do, and leave in a folder that they share."""

  def __init__(self, index, folder):
    # Has to be there before TensorFlow does anything.
    self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
    self.index = index
    self.folder = folder
    self.is_chief = index == 0

  def refusals(self):
    """What one worker does wrong stops both, in words and uncharged."""
    x = small_training.table()
    found = []
    for mistake in (
      lambda: {'x': x[:-1]},
      lambda: {'x': x[::-1]},
      lambda: {'seed': 1},
      lambda: {'clip': 2.0},
      lambda: {'ledger': self._ledger('other.jsonl')},
    ):
      kwargs = mistake() if self.index == 1 else {}
      found.append(self._refusal(**{'x': x, **kwargs}))
    budget = accounting.PrivacyBudget(epsilon=0.1, delta=1e-4)
    poor = self._plan(lambda: accounting.PrivacyLedger(budget=budget)).ledger
    found.append(self._refusal(x, ledger=poor))
    self._write('refusals.json', found)

  def whole(self):
    """One training without interruption, and one update that is all noise."""
    plan = self._plan(lambda: self._ledger('whole.jsonl'))
    model = small_training.flow_model(plan, self.strategy)
    model.fit(small_training.table(), verbose=0)
    self._save_weights('whole', model)
    noise = small_training.noise_of_one_update(self.strategy)
    np.save(self.folder / f'noise-{self.index}.npy', noise)
    entry = plan.ledger.entries[0]
    found = [entry.count, plan.ledger.epsilon(), plan.epsilon()]
    self._write('whole.json', found)
    plan.ledger.close()

  def interrupted(self):
    """Worker 1 is killed; what becomes of the chief is its own affair."""
    plan = self._plan(lambda: self._ledger('interrupted.jsonl'), secret=SECRET)
    model = small_training.flow_model(plan, self.strategy)
    callbacks = [self._checkpoints(model)]
    if self.index == 1:
      callbacks.append(_Killed(model.optimizer))
    model.fit(small_training.table(), epochs=2, verbose=0, callbacks=callbacks)
    self._write('went on', None)

  def resumed(self):
    path = self.folder / 'interrupted.jsonl'
    plan = self._plan(
      lambda: accounting.PrivacyLedger.open(path), secret=SECRET
    )
    model = small_training.flow_model(plan, self.strategy)
    small_training.Checkpoints(model, str(self.folder / 'chief')).restore(-1)
    with self.strategy.scope():
      plan.resume(model.optimizer)
    found = [
      plan.remaining_steps,
      *(entry.count for entry in plan.ledger.entries),
    ]
    callbacks = [self._checkpoints(model)]
    model.fit(small_training.table(), verbose=0, callbacks=callbacks)
    self._save_weights('resumed', model)
    self._write('resumed.json', [*found, plan.ledger.entries[0].count])
    self._write('secret', plan._steps.randomness.secret.hex())
    plan.ledger.close()

  def _plan(self, make_ledger, **kwargs):
    ledger = make_ledger() if self.is_chief else None
    if kwargs:
      kwargs = {'randomness': Randomness(**kwargs)}
    return small_training.plan(ledger=ledger, **kwargs)

  def _ledger(self, name):
    budget = accounting.PrivacyBudget(epsilon=50.0, delta=1e-4)
    return accounting.PrivacyLedger(self.folder / name, budget=budget)

  def _refusal(self, x, **kwargs):
    """Returns the words, and the number of entries in the ledger."""
    plan = small_training.plan(**kwargs)
    with self.strategy.scope():
      try:
        plan.dataset(x)
      except ValueError as error:
        return str(error), len(plan.ledger.entries)
    return None

  def _checkpoints(self, model):
    # All have to save, since metrics are summed over the workers for it.
    name = 'chief' if self.is_chief else 'thrown away'
    return small_training.Checkpoints(model, str(self.folder / name))

  def _save_weights(self, name, model):
    path = self.folder / f'{name}-{self.index}.npz'
    np.savez(path, *small_training.weights_of(model))

  def _write(self, name, value):
    (self.folder / f'{self.index} {name}').write_text(json.dumps(value))


class _Killed(_keras.keras.callbacks.Callback):
  def __init__(self, optimizer):
    super().__init__()
    self._optimizer = optimizer

  def on_train_batch_end(self, batch, logs=None):
    if self._optimizer.iterations.numpy() == KILLED_AFTER:
      os.kill(os.getpid(), signal.SIGKILL)


if __name__ == '__main__':
  main(*sys.argv[1:])
