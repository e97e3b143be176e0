"""Time of one private training step, beside its peers, in one run.

The model is a masked autoregressive flow. Steps of all variants are
interleaved, so that what else the machine does falls on all alike.

  python -m experiments.bench_step --output=bench_step.json
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdpflows
from experiments.tabular_synthesis import versions, write_json
from tfdpflows import _keras

FLAGS = flags.FLAGS


def _model(event_size, num_blocks, hidden_units, optimizer, jit_compile):
  flow = tfdpflows.flows.masked_autoregressive_flow(
    event_size, num_blocks, hidden_units, seed=0
  )
  model = tfdpflows.DensityModel(flow)
  model.compile(optimizer=optimizer, jit_compile=jit_compile)
  return model


def _variants(batch, tf_privacy, xla):
  private = {
    'l2_norm_clip': 1.0,
    'noise_multiplier': 1.0,
    'learning_rate': 1e-3,
  }
  ours = lambda: tfdpflows.optimizers.DPKerasAdam(
    expected_batch_size=batch, **private
  )
  plain = lambda: _keras.keras.optimizers.legacy.Adam(1e-3)
  found = {
    'not private': (plain, False),
    'tfdpflows DPKerasAdam': (ours, False),
  }
  if xla:
    found['not private, XLA'] = (plain, True)
    found['tfdpflows DPKerasAdam, XLA'] = (ours, True)
  if tf_privacy:
    theirs = lambda: _keras.VectorizedDPKerasAdamOptimizer(**private)
    found['TF Privacy VectorizedDPKerasAdam'] = (theirs, False)
  return found


def run(
  event_size=10,
  num_blocks=5,
  hidden_units=(256, 256),
  batch=1024,
  rounds=30,
  tf_privacy=True,
  tf_privacy_rounds=3,
  xla=True,
):
  """Returns a dict of variant -> median milliseconds, and ratios.

  Args:
    event_size: number of columns.
    num_blocks: blocks of the flow.
    hidden_units: width of each hidden layer.
    batch: rows of a step.
    rounds: steps of each variant that are timed, after three that are not.
    tf_privacy: whether to time TF Privacy's optimizer too.
    tf_privacy_rounds: steps of it; it is slow.
    xla: whether to time the variants compiled by XLA too.
  """
  x = np.random.default_rng(0).normal(size=[batch, event_size])
  x = tf.constant(x.astype('float32'))
  steps, times = {}, {}
  for name, (optimizer, jit) in _variants(batch, tf_privacy, xla).items():
    model = _model(event_size, num_blocks, hidden_units, optimizer(), jit)
    function = tf.function(model.train_step, jit_compile=jit)
    steps[name], times[name] = function, []

  def timed(name):
    start = time.perf_counter()
    tf.nest.map_structure(
      lambda t: t.numpy(), steps[name]((x,)) or tf.zeros([])
    )
    return time.perf_counter() - start

  slow = [n for n in steps if n.startswith('TF Privacy')]
  for name in steps:
    for _ in range(1 if name in slow else 3):
      timed(name)
  for i in range(rounds):
    for name in steps:
      if name not in slow or i < tf_privacy_rounds:
        times[name].append(1e3 * timed(name))
  medians = {name: statistics.median(t) for name, t in times.items()}
  floor = medians['not private']
  return {
    'model': {
      'event_size': event_size,
      'num_blocks': num_blocks,
      'hidden_units': list(hidden_units),
      'batch': batch,
    },
    'median_ms': medians,
    'ratio_to_not_private': {n: m / floor for n, m in medians.items()},
    'steps_timed': {n: len(t) for n, t in times.items()},
    'cores': os.cpu_count(),
    'machine': platform.machine(),
    'versions': versions(),
    'command': ' '.join(sys.argv),
  }


def main(argv):
  del argv
  if FLAGS.smoke:
    result = run(3, 2, (8,), batch=16, rounds=2, tf_privacy_rounds=1)
  else:
    result = run(rounds=FLAGS.rounds, tf_privacy=FLAGS.tf_privacy)
  print(f'{"one training step":40} {"median ms":>10} {"ratio":>8}')
  for name, ratio in result['ratio_to_not_private'].items():
    print(f'{name:40} {result["median_ms"][name]:10.1f} {ratio:8.2f}')
  if FLAGS.output:
    write_json(FLAGS.output, result)
  else:
    print(json.dumps(result['model']))


if __name__ == '__main__':
  flags.DEFINE_string('output', None, 'JSON file to write.')
  flags.DEFINE_integer('rounds', 30, 'Steps of each variant that are timed.')
  flags.DEFINE_boolean('tf_privacy', True, "Time TF Privacy's optimizer too.")
  flags.DEFINE_boolean('smoke', False, 'A tiny run, to see that it works.')
  app.run(main)
