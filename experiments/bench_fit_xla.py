"""Whole trainings with `compile(jit_compile=True)`, beside plain ones.

Two models train by turns, an epoch each, so that what else the machine does
falls on both alike; compilations are the programs that XLA writes down:

  python -m experiments.bench_fit_xla --output=bench_fit_xla.json
"""

from __future__ import annotations

import os
import pathlib
import re
import statistics
import tempfile
import time

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS


def run(num_examples=20_480, batch=1024, epochs=6, shape=None):
  """Trains a masked autoregressive flow in both ways.

  Args:
    num_examples: rows of the table.
    batch: expected batch size.
    epochs: of each training.
    shape: arguments of `flows.masked_autoregressive_flow`.

  Returns:
    A dict of way -> list of milliseconds, one for each step.
  """
  import tfdpflows
  from tfdpflows._keras import keras

  class Times(keras.callbacks.Callback):
    """Milliseconds of each step, up to the update of the weights."""

    def __init__(self):
      super().__init__()
      self.found = []

    def on_train_batch_begin(self, batch, logs=None):
      self._begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
      self.model.optimizer.iterations.numpy()
      self.found.append(1e3 * (time.perf_counter() - self._begin))

  shape = shape or {
    'event_size': 10,
    'num_blocks': 5,
    'hidden_units': [256, 256],
  }
  rng = np.random.default_rng(0)
  x = rng.normal(size=[num_examples, shape['event_size']]).astype('float32')
  models, times = {}, {'plain': Times(), 'XLA': Times()}
  for name in times:
    flow = tfdpflows.flows.masked_autoregressive_flow(**shape)
    plan = tfdpflows.TrainingPlan.for_epsilon(
      epsilon=1.0,
      delta=1e-5,
      num_examples=num_examples,
      expected_batch_size=batch,
      epochs=epochs,
      clipping=tfdpflows.gradients.Flat(10.0),
      # Quicker to calibrate; steps cost the same with any noise.
      accountant='rdp',
    )
    model = models[name] = tfdpflows.DensityModel(flow)
    model.compile(
      plan.optimizer('adam', learning_rate=1e-3), jit_compile=name == 'XLA'
    )
  for _ in range(epochs):
    for name, model in models.items():
      model.fit(x, epochs=1, verbose=0, callbacks=[times[name]])
  return {name: callback.found for name, callback in times.items()}


def summarize(times, compilations):
  """Returns medians without the steps that compile, which are the slowest.

  Args:
    times: of `run`.
    compilations: how many steps of XLA's compile.

  Returns:
    A dict of medians in milliseconds, their ratio, the number of compilations
    and their seconds.

  #### Example

  >>> found = summarize({'plain': [9., 2., 2.], 'XLA': [2000., 4., 4.]}, 1)
  >>> found['ratio'], found['compilation_seconds']
  (2.0, [2.0])
  """
  # The plain step is traced once.
  plain, compiled = sorted(times['plain'])[:-1], sorted(times['XLA'])
  last = len(compiled) - max(compilations, 1)
  medians = [statistics.median(plain), statistics.median(compiled[:last])]
  return {
    'steps': len(compiled),
    'plain_ms': medians[0],
    'xla_ms': medians[1],
    'ratio': medians[1] / medians[0],
    'compilations': compilations,
    'compilation_seconds': [round(t / 1e3, 2) for t in compiled[last:]],
  }


def count_programs(folder):
  """Returns how many programs of `run_step` XLA has written to a folder."""
  names = [path.name for path in pathlib.Path(folder).glob('*.txt')]
  found = {re.match(r'module_\d+', n) for n in names if 'run_step' in n}
  return len({match.group() for match in found if match})


def main(unused_argv):
  from experiments.run_record import versions, write_json

  with tempfile.TemporaryDirectory() as folder:
    # Read when XLA is first used.
    os.environ['XLA_FLAGS'] = (
      f'--xla_dump_to={folder} --xla_dump_hlo_as_text '
      '--xla_dump_hlo_module_re=.*run_step.*'
    )
    times = run(epochs=FLAGS.epochs)
    found = summarize(times, count_programs(folder))
  print(found)
  if FLAGS.output:
    write_json(FLAGS.output, {**found, 'versions': versions()})


if __name__ == '__main__':
  flags.DEFINE_integer('epochs', 6, 'Epochs of each training.')
  flags.DEFINE_string('output', None, 'JSON file to write.')
  app.run(main)
