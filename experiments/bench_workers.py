r"""Training of a table's model, by one process and by two workers.

Two workers on one machine cannot be faster than one process with its cores;
what is measured is what it costs that they send each other sums.

    python -m experiments.bench_workers --rounds=3 \
      --output=experiments/results/workers.json

`cores` are those of a process: 'two' lets one process have both, 'one' binds it
to the first; two workers have one each. Steps are those of the second half of
the training, when all graphs are made.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile

from absl import app, flags

from experiments import flag_values, scale
from experiments.results_file import ResultsFile
from tfdpflows.tabular import sinks

_DELTA = 1e-9
_KEYS = ('cores', 'workers', 'rows', 'round')
# The cores of each process.
CASES = (('two', [None]), ('one', [0]), ('one each', [0, 1]))
_FIT = """
import json, os, sys, time
import numpy as np
from tfdpflows._keras import keras
from tfdpflows.cli import cluster
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.training import progress

data, schema, folder, arguments = sys.argv[1:]
team = None
if 'TF_CONFIG' in os.environ:
  team = cluster.Cluster.of_environment(os.environ).team()
from tfdpflows.tabular.models import dp_sgd
from tfdpflows.tabular.synthesizer import fit_to_directory

times = []

class Timed(dp_sgd.Progress):
  def on_train_batch_end(self, batch, logs=None):
    times.append(time.perf_counter())
    super().on_train_batch_end(batch, logs)

dp_sgd.Progress = Timed
start = time.perf_counter()
found = fit_to_directory(
  data, TableSchema.from_json(schema), folder, progress=False, team=team,
  **json.loads(arguments))
half = len(times) // 2
print(json.dumps({
  'steps': len(times),
  'steps_per_second': (len(times) - 1 - half) / (times[-1] - times[half]),
  'fit_seconds': time.perf_counter() - start,
  'epsilon_spent': None if found is None else found.ledger.epsilon(),
}))
"""


def run(*, rows=200_000, columns=15, rounds=1, output=None, smoke=False):
  """Fits one table by one process with two cores, with one, and two workers.

  Args:
    rows: of the table, which is made up (`scale.wide_table`).
    columns: of the table.
    rounds: how often each is measured, one after the other.
    output: JSON file to go on with, or `None`.
    smoke: whether to fit a tiny model to 300 rows.

  Returns:
    A JSON-able dict with `runs`.
  """
  arguments = {
    'epsilon': scale.EPSILON,
    'delta': _DELTA,
    'seed': 0,
    # Steps are those of a whole fit; fewer of them do.
    'epochs': 4,
    'adaptive_marginals': 2,
  }
  if smoke:
    rows, columns = 300, 3
    arguments.update(epochs=1, hidden_units=[4], adaptive_marginals=0)
  header = {'epsilon': scale.EPSILON, 'delta': _DELTA, 'smoke': smoke}
  results = ResultsFile(output, header, _KEYS)
  table, schema = scale.wide_table('mixed', columns, rows)
  with tempfile.TemporaryDirectory() as folder:
    data = os.path.join(folder, 'data.parquet')
    sinks.write_frames([table], data, schema)
    path = os.path.join(folder, 'schema.json')
    schema.to_json(path)
    for number, (cores, bound) in itertools.product(range(rounds), CASES):
      known = {
        'cores': cores,
        'workers': len(bound),
        'rows': rows,
        'round': number,
      }
      if results.has(**known):
        continue
      model = os.path.join(folder, f'{cores} {number}')
      found = _fit(bound, data, path, model, json.dumps(arguments))
      results.add(
        {
          **known,
          'columns': columns,
          **found,
          'load_average': os.getloadavg()[1],
        }
      )
  return results.content


def _fit(bound, *arguments):
  """Fits by as many processes as there are cores; returns the chief's times."""
  with socket.socket() as one, socket.socket() as other:
    for free in (one, other):
      free.bind(('127.0.0.1', 0))
    ports = [free.getsockname()[1] for free in (one, other)]
  processes = []
  try:
    for index, core in enumerate(bound):
      environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'}
      environment.pop('TF_CONFIG', None)
      if len(bound) > 1:
        environment['TF_CONFIG'] = json.dumps(
          {
            'cluster': {'worker': [f'127.0.0.1:{port}' for port in ports]},
            'task': {'type': 'worker', 'index': index},
          }
        )
      command = [] if core is None else ['taskset', '-c', str(core)]
      processes.append(
        subprocess.Popen(
          [*command, sys.executable, '-c', _FIT, *arguments],
          env=environment,
          stdout=subprocess.PIPE,
          text=True,
        )
      )
    said = [process.communicate()[0] for process in processes]
  finally:
    for process in processes:
      process.kill()
      process.wait()
  codes = [process.returncode for process in processes]
  if any(codes):
    raise RuntimeError(f'The processes ended with {codes}.')
  return json.loads(said[0].splitlines()[-1])


def ratios(content):
  """Returns steps per second of two workers over those of one process.

  Args:
    content: what `run` returned.

  Returns:
    A dict by the `cores` of the one process.
  """
  speeds = {}
  for entry in content['runs']:
    key = entry['cores'], entry['workers']
    speeds.setdefault(key, []).append(entry['steps_per_second'])
  middle = {key: statistics.median(found) for key, found in speeds.items()}
  return {
    cores: middle['one each', 2] / middle[cores, 1] for cores in ('two', 'one')
  }


def main(argv):
  """Runs what the flags ask for and prints a line for each case."""
  options = flag_values.read(argv)
  content = run(
    rows=options.rows,
    rounds=options.rounds,
    output=options.output,
    smoke=options.smoke,
  )
  for entry in content['runs']:
    print(
      f'{entry["workers"]} process(es), cores: {entry["cores"]}: '
      f'{entry["steps_per_second"]:.2f} steps/s, '
      f'fitted in {entry["fit_seconds"]:.0f} s'
    )
  for cores, ratio in ratios(content).items():
    print(f'Two workers make {ratio:.2f} times the steps of {cores} core(s).')


def _define_flags():
  flags.DEFINE_integer('rows', 200_000, 'Rows of the table.')
  flags.DEFINE_integer('rounds', 1, 'How often each is measured.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
