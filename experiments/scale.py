r"""Fits of tables that are larger than memory need be: seconds and memory.

A `TabularSynthesizer` is fitted to a small table; its rows, as many as asked
for, are the large one, whose truth is therefore known. They are written as
Parquet, in files of a million. Then a process by itself reads them into a store
of codes, and another one fits a model to them:

    python -m experiments.scale --rows=1000000 --rows=5000000 \
      --output=experiments/results/scale.json

The data are deleted at the end of each run. Seeds make the results reproducible
and therefore not private.

Wide tables are made as well, of columns that depend on three hidden numbers: a
process by itself fits a model to one, and draws 3,000 rows of it:

    python -m experiments.scale --wide=200x3000 --wide=136x137000 \
      --output=experiments/results/wide.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import pandas as pd
from absl import app, flags

from experiments import datasets
from experiments.results_file import ResultsFile
from tfdpflows.tabular import Field, TableSchema, TabularSynthesizer, sinks

EPSILON, DELTA = 1.0, 1e-9
_SEED = 0
_KEYS = ('dataset', 'columns', 'rows')
# Of wide tables: all columns the answers to questions, from 1 to 5; or a third
# of each these, numbers from 0 to 100, and 2 to 40 categories.
KINDS = ('answers', 'mixed')
# Rows of a file.
_SHARD = 1_000_000
# Seconds and the peak of memory of a process that has nothing else to do.
_MEASURED = """
import json, sys, time
from tfdpflows.tabular import TableSchema

what, data, schema, folder, arguments = sys.argv[1:]
schema = TableSchema.from_json(schema)
if what == 'pass':
  from tfdpflows.tabular import code_store, sources
  source = sources.Source.of(data)
  work = lambda: len(code_store.read(source, schema, 'error', folder))
else:
  from tfdpflows.tabular.synthesizer import fit_to_directory
  work = lambda: fit_to_directory(
    data, schema, folder, progress=False, **json.loads(arguments)
  ).ledger.epsilon()
start = time.perf_counter()
result = work()
seconds = time.perf_counter() - start
# Of this program: what the kernel says of resources begins with the parent's.
with open('/proc/self/status') as file:
  (peak,) = [int(l.split()[1]) / 1024 for l in file if l.startswith('VmHWM')]
print(json.dumps({'result': result, 'seconds': seconds, 'peak_mib': peak}))
"""


_MEASURED_WIDE = """
import json, sys, time
from experiments import scale

kind, columns, rows, arguments = sys.argv[1:]
table, schema = scale.wide_table(kind, int(columns), int(rows))
from tfdpflows.tabular import TabularSynthesizer
synthesizer = TabularSynthesizer(schema, **json.loads(arguments))
start, cpu = time.perf_counter(), time.process_time()
synthesizer.fit(table, progress=False)
fitted, used = time.perf_counter(), time.process_time() - cpu
synthesizer.sample(3000, seed=0)
with open('/proc/self/status') as file:
  (peak,) = [int(l.split()[1]) / 1024 for l in file if l.startswith('VmHWM')]
print(json.dumps({
  'fit_seconds': fitted - start,
  'fit_cpu_seconds': used,
  'sample_seconds': time.perf_counter() - fitted,
  'peak_mib': peak,
  'epsilon_spent': synthesizer.ledger.epsilon(),
}))
"""


def run(dataset='adult', *, rows=(1_000_000,), output=None, smoke=False):
  """Makes tables of some sizes, and measures the pass and a fit.

  Args:
    dataset: one of `datasets.DATASETS`.
    rows: numbers of rows.
    output: JSON file to go on with, or `None`.
    smoke: whether to make 300 rows in three files, for a tiny model.

  Returns:
    A JSON-able dict with `runs`: for each number of rows the seconds that it
    took to make them, to read them and to fit a model, and the peaks of memory.

  Raises:
    FileNotFoundError: if the table needs the shared folder and it is not there.
  """
  train, _, schema, _ = datasets.load(dataset)
  tiny, shard = {}, _SHARD
  if smoke:
    train, rows, shard = train[:300], (300,), 100
    tiny = {'epochs': 1, 'hidden_units': [4], 'adaptive_marginals': 0}
  results = ResultsFile(
    output, {'epsilon': EPSILON, 'delta': DELTA, 'smoke': smoke}, _KEYS
  )
  small = TabularSynthesizer(
    schema, epsilon=8.0, delta=1e-5, seed=_SEED, **tiny
  )
  small.fit(train, progress=False)
  for count in rows:
    known = {'dataset': dataset, 'columns': len(schema), 'rows': count}
    if results.has(**known):
      continue
    with tempfile.TemporaryDirectory() as folder:
      found = _measure(small, count, shard, folder, tiny)
    results.add({**known, **found})
  return results.content


def run_wide(sizes, *, kinds=KINDS, output=None, smoke=False):
  """Fits models to wide tables, and measures time and memory.

  Args:
    sizes: pairs of a number of columns and one of rows.
    kinds: of the tables, some of `KINDS`.
    output: JSON file to go on with, or `None`.
    smoke: whether to fit tiny models.

  Returns:
    A JSON-able dict with `runs`.
  """
  tiny = {'epochs': 1, 'hidden_units': [4], 'adaptive_marginals': 2}
  results = ResultsFile(
    output, {'epsilon': EPSILON, 'delta': 1e-6, 'smoke': smoke}, _KEYS
  )
  arguments = {'epsilon': EPSILON, 'delta': 1e-6, 'seed': _SEED}
  for columns, rows in sizes:
    for kind in kinds:
      known = {'dataset': f'wide, {kind}', 'columns': columns, 'rows': rows}
      if results.has(**known):
        continue
      found = _process(
        kind,
        str(columns),
        str(rows),
        {**arguments, **(tiny if smoke else {})},
        script=_MEASURED_WIDE,
      )
      results.add({**known, **found, 'load_average': os.getloadavg()[1]})
  return results.content


def wide_table(kind, columns, rows, seed=0):
  """Returns a wide table whose columns depend on each other, and its schema.

  Args:
    kind: one of `KINDS`.
    columns: their number.
    rows: their number.
    seed: of the numbers.
  """
  rng = np.random.default_rng(seed)
  hidden = rng.normal(size=[rows, 3])
  table, fields = {}, []
  for j in range(columns):
    name = f'q{j}'
    x = hidden @ rng.normal(0, 0.6, 3) + rng.normal(size=rows)
    number = j % 3 if kind == 'mixed' else 0
    if number == 1:
      table[name] = np.clip(np.round(50 + 15 * x), 0, 100).astype(int)
      fields.append(Field(name, 'integer', 0, 100, required=True))
    elif number == 2:
      size = int(rng.integers(2, 41))
      names = tuple(f'c{k}' for k in rng.permutation(size))
      cuts = np.quantile(x, np.arange(1, size) / size)
      table[name] = np.array(names, object)[np.searchsorted(cuts, x)]
      fields.append(Field(name, 'string', enum=names, required=True))
    else:
      table[name] = np.clip(np.round(3 + x), 1, 5).astype(int)
      fields.append(Field(name, 'integer', 1, 5, required=True))
  return pd.DataFrame(table), TableSchema(fields)


def _measure(small, count, shard, folder, tiny):
  data = os.path.join(folder, 'data')
  os.mkdir(data)
  start = time.perf_counter()
  for number, first in enumerate(range(0, count, shard)):
    sinks.write_frames(
      small.sample_frames(min(shard, count - first), seed=number),
      os.path.join(data, f'{number:05}.parquet'),
      small.schema,
    )
  made = time.perf_counter() - start
  schema = os.path.join(folder, 'schema.json')
  small.schema.to_json(schema)
  codes, model = os.path.join(folder, 'rows'), os.path.join(folder, 'model')
  arguments = {'epsilon': EPSILON, 'delta': DELTA, 'seed': _SEED, **tiny}
  read = _process('pass', data, schema, codes, arguments)
  bytes_of_codes = os.path.getsize(os.path.join(codes, 'codes'))
  for name in os.listdir(codes):
    os.unlink(os.path.join(codes, name))
  fitted = _process('fit', data, schema, model, arguments)
  return {
    'make_seconds': made,
    'rows_per_second_made': count / made,
    'bytes_of_parquet': sum(
      os.path.getsize(os.path.join(data, name)) for name in os.listdir(data)
    ),
    'bytes_of_codes': bytes_of_codes,
    'pass_seconds': read['seconds'],
    'rows_per_second_read': count / read['seconds'],
    'pass_peak_mib': read['peak_mib'],
    'fit_seconds': fitted['seconds'],
    'fit_peak_mib': fitted['peak_mib'],
    'epsilon_spent': fitted['result'],
    'load_average': os.getloadavg()[1],
  }


def _process(*arguments, script=_MEASURED):
  *words, settings = arguments
  done = subprocess.run(
    [sys.executable, '-c', script, *words, json.dumps(settings)],
    check=True,
    capture_output=True,
    text=True,
  )
  return json.loads(done.stdout.splitlines()[-1])


def main(argv):
  """Runs what the flags ask for and prints a line for each table."""
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {argv[1:]}')
  options = flags.FLAGS
  if options.wide:
    sizes = [tuple(map(int, size.split('x'))) for size in options.wide]
    kinds = options.kind or KINDS
    results = run_wide(
      sizes, kinds=kinds, output=options.output, smoke=options.smoke
    )
    for entry in results['runs']:
      print(
        f'{entry["dataset"]}, {entry["columns"]} columns, {entry["rows"]:,} '
        f'rows: fitted in {entry["fit_seconds"]:.0f} s '
        f'({entry["fit_cpu_seconds"]:.0f} s of processors) with '
        f'{entry["peak_mib"]:,.0f} MiB'
      )
    return
  try:
    results = run(
      options.dataset,
      rows=[int(count) for count in options.rows],
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  for entry in results['runs']:
    print(
      f'{entry["rows"]:,} rows: made at {entry["rows_per_second_made"]:,.0f} '
      f'rows/s, read at {entry["rows_per_second_read"]:,.0f} rows/s, fitted in '
      f'{entry["fit_seconds"]:.0f} s with {entry["fit_peak_mib"]:,.0f} MiB'
    )


def _define_flags():
  flags.DEFINE_enum('dataset', 'adult', datasets.DATASETS, 'Small table.')
  flags.DEFINE_multi_integer('rows', [1_000_000], 'Rows of a large one.')
  flags.DEFINE_multi_string(
    'wide', [], 'Columns and rows of a wide table, such as 200x3000, instead.'
  )
  flags.DEFINE_multi_enum('kind', [], KINDS, 'Wide tables; all by default.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
