r"""Rows per second and latency of an exported table model, without tfdpflows.

Fits a `TabularSynthesizer`, exports it, and loads the SavedModel in a process
that cannot import tfdpflows, TensorFlow Probability or Keras. What `sample` and
`log_prob` give there is compared with what the library gives:

    python -m experiments.bench_serving --dataset=adult \
      --output=experiments/results/bench_serving_adult.json

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

from experiments import datasets, flag_values
from experiments.results_file import ResultsFile
from tfdpflows.tabular import TabularSynthesizer
from tfdpflows.tabular.raw_values import RawTable

SIZES = (1, 1024, 100_000)
_SEED = 5
_KEYS = ('dataset', 'function', 'size')
# Begins a program: it has none of what made a model.
BLOCKED = """
import sys

class Blocked:
  def find_spec(self, name, path=None, target=None):
    first = name.partition('.')[0]
    if first in ('tfdpflows', 'tensorflow_probability', 'tf_keras'):
      raise ImportError(f'{name} is blocked')

sys.meta_path.insert(0, Blocked())
"""
_SERVER = """
import json, resource, time
import numpy as np
import tensorflow as tf

path, rows, found, sizes, seed, repeats = sys.argv[1:]
start = time.perf_counter()
functions = tf.saved_model.load(path).signatures
loaded = time.perf_counter() - start
rows = {k: tf.constant(v) for k, v in np.load(rows).items()}
count = len(next(iter(rows.values())))
arrays, runs = {}, []
for size in json.loads(sizes):
  given = {
    'sample': {'num_rows': tf.constant(size, tf.int64),
               'seed': tf.constant(int(seed), tf.int64)},
    'log_prob': {k: tf.repeat(v, -(-size // count), 0)[:size]
                 for k, v in rows.items()},
  }
  for name in functions:
    start = time.perf_counter()
    results = functions[name](**given[name])
    seconds = [time.perf_counter() - start]
    for _ in range(int(repeats) if size < 10_000 else 3):
      start = time.perf_counter()
      results = functions[name](**given[name])
      results = {k: v.numpy() for k, v in results.items()}
      seconds.append(time.perf_counter() - start)
    runs.append([name, size, seconds])
    for k, v in results.items():
      if v.dtype == object:
        v = np.array([x.decode() for x in v])
      arrays[f'{name} {size} {k}'] = v
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
np.savez(found, **arrays)
print(json.dumps({'load': loaded, 'runs': runs, 'peak_mib': peak}))
"""


def run(
  dataset='adult', *, model='histogram', sizes=SIZES, output=None, smoke=False
):
  """Exports a model and takes the time of its functions in another process.

  Args:
    dataset: one of `datasets.DATASETS`.
    model: of the `TabularSynthesizer`.
    sizes: numbers of rows.
    output: JSON file to go on with, or `None`.
    smoke: whether to fit 500 rows for one epoch.

  Returns:
    A JSON-able dict with `runs`: for each function and size the median latency
    in seconds, that of the first call, rows per second, and `difference`: the
    largest of log-probabilities, or the share of sampled cells that differ.

  Raises:
    FileNotFoundError: if the table needs the shared folder and it is not there.
  """
  train, holdout, schema, _ = datasets.load(dataset)
  train = schema.validate(train)
  rows = schema.validate(holdout, fitting=False)[: max(sizes)]
  budget = {'epsilon': 1.0, 'delta': 1e-5, 'seed': 0, 'model': model}
  if smoke:
    train, rows = train[:500], rows[:50]
    budget.update(epochs=1, hidden_units=(4,), delta=1e-3)
    sizes = (1, 20)
  results = ResultsFile(
    output, {'epsilon': 1.0, 'model': model, 'smoke': smoke}, _KEYS
  )
  start = time.perf_counter()
  synthesizer = TabularSynthesizer(schema, **budget)
  synthesizer.fit(train, progress=False)
  fitted = time.perf_counter() - start
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'exported')
    start = time.perf_counter()
    synthesizer.export(path)
    exported = time.perf_counter() - start
    size_on_disk = sum(
      os.path.getsize(os.path.join(root, name))
      for root, _, names in os.walk(path)
      for name in names
    )
    raw = RawTable(schema, clip=False)
    np.savez(os.path.join(folder, 'rows.npz'), **_arrays(raw, rows))
    answer = _serve(path, folder, sizes, repeats=3 if smoke else 30)
    found = dict(np.load(os.path.join(folder, 'found.npz')))
  for function, size, (first, *seconds) in answer['runs']:
    results.add(
      {
        'dataset': dataset,
        'function': function,
        'size': size,
        'first_call': first,
        'latency': float(np.median(seconds)),
        'rows_per_second': size / float(np.median(seconds)),
        'difference': _difference(
          synthesizer, raw, rows, found, function, size
        ),
        'fit_seconds': fitted,
        'export_seconds': exported,
        'load_seconds': answer['load'],
        'bytes_on_disk': size_on_disk,
        'peak_mib': answer['peak_mib'],
      }
    )
  return results.content


def _serve(path, folder, sizes, repeats):
  done = subprocess.run(
    [
      sys.executable,
      '-c',
      BLOCKED + _SERVER,
      path,
      os.path.join(folder, 'rows.npz'),
      os.path.join(folder, 'found.npz'),
      json.dumps(list(sizes)),
      str(_SEED),
      str(repeats),
    ],
    # With the variable of tfdpflows, TensorFlow itself would look for tf_keras.
    env={k: v for k, v in os.environ.items() if k != 'TF_USE_LEGACY_KERAS'},
    check=True,
    capture_output=True,
    text=True,
  )
  return json.loads(done.stdout.splitlines()[-1])


def _arrays(raw, table):
  """The columns of a validated table as an exported model takes them."""
  found = {}
  for name, column, (_, cells) in zip(raw.names, raw.columns, table.items()):
    cells = cells.astype(object)
    if column.missing is not None:
      cells = cells.where(~cells.isna(), column.missing)
    kind = column.dtype.as_numpy_dtype
    found[name] = cells.to_numpy(str if kind is object else kind)
  return found


def _difference(synthesizer, raw, rows, found, function, size):
  if function == 'log_prob':
    served = found[f'log_prob {size} log_prob'][: len(rows)]
    # As the server repeats rows to as many.
    repeated = rows.iloc[np.repeat(np.arange(len(rows)), -(-size // len(rows)))]
    own = synthesizer.log_prob(repeated[:size])[: len(served)]
    return float(np.max(np.abs(served - own)))
  want = _arrays(raw, synthesizer.sample(size, seed=_SEED))
  differ = [
    np.mean(
      ~np.isclose(found[f'sample {size} {name}'], cells, 1e-5, 1e-3, True)
      if cells.dtype == np.float64
      else found[f'sample {size} {name}'] != cells
    )
    for name, cells in want.items()
  ]
  return float(np.mean(differ))


def main(argv):
  """Runs what the flags ask for and prints a line for each function."""
  options = flag_values.read(argv)
  try:
    results = run(
      options.dataset,
      model=options.model,
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  for entry in results['runs']:
    print(
      f'{entry["function"]} of {entry["size"]:,} rows: '
      f'{1000 * entry["latency"]:.1f} ms, {entry["rows_per_second"]:,.0f} '
      f'rows/s, difference {entry["difference"]:.2g}'
    )


def _define_flags():
  flags.DEFINE_enum('dataset', 'adult', datasets.DATASETS, 'Table.')
  flags.DEFINE_string('model', 'histogram', 'Model of the synthesizer.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
