r"""Fits of tables that are larger than memory need be: seconds and memory.

A `TabularSynthesizer` is fitted to a small table; its rows, as many as asked
for, are the large one, whose truth is therefore known. They are written as
Parquet, in files of a million. Then a process by itself reads them into a store
of codes, and others fit models to them, whose rows are compared with further
rows of the truth: by classifiers that learn from them, by pairs of columns, and
by log-densities:

    python -m experiments.scale --rows=1000000 --rows=10000000 \
      --epsilon=.1 --epsilon=1 --output=experiments/results/scale.json

The data are deleted at the end of each run, unless `--data` names a folder that
keeps them. Rows beyond 100 million are copies of these: files of the same
content, which cost as much to read. Seeds make the results reproducible and
therefore not private.

Wide tables are made as well, of columns that depend on three hidden numbers: a
process by itself fits a model to one, and draws 3,000 rows of it:

    python -m experiments.scale --wide=200x3000 --wide=136x137000 \
      --output=experiments/results/wide.json
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import pandas as pd
from absl import app, flags

from experiments import datasets, flag_values, scale_figure
from experiments.results_file import ResultsFile
from tfdpflows import evaluation
from tfdpflows.tabular import Field, TableSchema, TabularSynthesizer, sinks

EPSILON = 1.0
_SEED = 0
_KEYS = ('dataset', 'columns', 'rows', 'format', 'epsilon')
_WIDE_KEYS = ('dataset', 'columns', 'rows')
# Seeds beyond those of files, of rows that are learned from and scored on.
_LEARNED, _HELD_OUT = 10**6, 10**6 + 1
# Of wide tables: all columns the answers to questions, from 1 to 5; or a third
# of each these, numbers from 0 to 100, and 2 to 40 categories.
KINDS = ('answers', 'mixed')
# Rows of a file, and files of rows that are drawn.
_SHARD, _DRAWN = 1_000_000, 100
# Seconds and the peak of memory of a process that has nothing else to do.
_MEASURED = """
import json, sys, time
from tfdpflows.tabular import TableSchema

what, folder, name, arguments = sys.argv[1:]
schema = TableSchema.from_json(f'{folder}/schema.json')
data, folder = f'{folder}/files', f'{folder}/{name}'
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


def run(
  dataset='adult',
  *,
  rows=(1_000_000,),
  epsilons=(EPSILON,),
  file_format='parquet',
  measure_pass=True,
  data=None,
  output=None,
  smoke=False,
):
  """Makes tables of some sizes, and measures the pass and fits.

  Args:
    dataset: one of `datasets.DATASETS`.
    rows: numbers of rows.
    epsilons: of the fits.
    file_format: 'parquet', or 'csv' for one CSV file of the same rows.
    measure_pass: whether to measure the pass by itself too.
    data: folder that keeps the files of rows, and has some of them already;
      `None` for one that is deleted.
    output: JSON file to go on with, or `None`.
    smoke: whether to make 300 rows in three files, for tiny models.

  Returns:
    A JSON-able dict with `runs`: for each number of rows and epsilon the
    seconds that it took to make them, to read them and to fit a model, the
    peaks of memory and the scores; and with `truth`, the scores of rows of the
    very model that all rows are drawn from.

  Raises:
    FileNotFoundError: if the table needs the shared folder and it is not there.
  """
  train, _, schema, target = datasets.load(dataset)
  tiny, shard, scored = {}, _SHARD, 50_000
  if smoke:
    train, rows, shard, scored = train[:300], (300,), 100, 500
    tiny = {
      'epochs': 1,
      'hidden_units': [4],
      'adaptive_marginals': 0,
      'accountant': 'rdp',
    }
  results = ResultsFile(output, {'smoke': smoke}, _KEYS)
  sizes = {}
  for count in rows:
    known = {
      'dataset': dataset,
      'columns': len(schema),
      'rows': count,
      'format': file_format,
    }
    wanted = [e for e in epsilons if not results.has(**known, epsilon=e)]
    if wanted:
      sizes[count] = known, wanted
  if not sizes and 'truth' in results.content:
    return results.content
  small = TabularSynthesizer(
    schema, epsilon=8.0, delta=1e-5, seed=_SEED, **tiny
  )
  small.fit(train, progress=False)
  truth = _Truth(small, target, scored)
  for count, (known, wanted) in sizes.items():
    # On the disk of the rows, whose files it links to.
    place = data and os.path.dirname(os.path.abspath(data))
    with tempfile.TemporaryDirectory(dir=place) as folder:
      read = _write(small, count, shard, file_format, folder, data)
      if measure_pass:
        read.update(_read(folder, count))
      for epsilon in wanted:
        # Well below one over the number of rows.
        budget = {'epsilon': epsilon, 'delta': min(1e-9, 0.1 / count)}
        found = _fit(folder, {**budget, **tiny}, truth)
        results.add({**known, **budget, **read, **found})
  if 'truth' not in results.content:
    results.content['truth'] = truth.scores(small)
    # Written again, with it.
    results.add(results.runs[-1])
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
    output, {'epsilon': EPSILON, 'delta': 1e-6, 'smoke': smoke}, _WIDE_KEYS
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


class _Truth:
  """The model that all rows are drawn from, and scores beside it."""

  def __init__(self, small, target, count):
    self._small, self._target, self._count = small, target, count
    self._held_out = small.sample(count, seed=_HELD_OUT)
    self._log_prob = small.log_prob(self._held_out)

  def scores(self, model):
    """Returns scores of a fitted model, a dict."""
    table = model.sample(self._count, seed=_LEARNED)
    learned = evaluation.train_on_synthetic(
      self._held_out, table, self._small.schema, self._target
    )
    pairs = evaluation.marginal_errors(
      self._held_out, table, self._small.schema
    )
    lost = self._log_prob - model.log_prob(self._held_out)
    return {
      **{name: float(value) for name, value in learned.mean().items()},
      'pairs': float(np.mean(list(pairs.values()))),
      # Of the divergence of the model from the truth, and of that mean.
      'nats_lost': float(np.mean(lost)),
      'nats_lost_error': float(np.std(lost) / len(lost) ** 0.5),
    }


def _write(small, count, shard, file_format, folder, data):
  """Makes a table."""
  start = time.perf_counter()
  made, files = _make(small, count, shard, data or os.path.join(folder, 'data'))
  seconds = time.perf_counter() - start
  # A folder of links: that which keeps the files may have more of them.
  linked = os.path.join(folder, 'files')
  os.mkdir(linked)
  if file_format == 'csv':
    frames = (small.schema.validate(pd.read_parquet(path)) for path in files)
    files = [os.path.join(linked, 'rows.csv')]
    sinks.write_frames(frames, files[0], small.schema)
  else:
    for path in files:
      os.link(path, os.path.join(linked, os.path.basename(path)))
  small.schema.to_json(os.path.join(folder, 'schema.json'))
  return {
    'rows_drawn': made,
    'make_seconds': seconds,
    'rows_per_second_made': made / seconds,
    'bytes_of_files': sum(map(os.path.getsize, files)),
  }


def _read(folder, count):
  """Measures the pass over a table."""
  found = _process('pass', folder, 'rows', {})
  bytes_of_codes = os.path.getsize(os.path.join(folder, 'rows', 'codes'))
  shutil.rmtree(os.path.join(folder, 'rows'))
  return {
    'bytes_of_codes': bytes_of_codes,
    'pass_seconds': found['seconds'],
    'rows_per_second_read': count / found['seconds'],
    'pass_peak_mib': found['peak_mib'],
    'pass_load_average': os.getloadavg()[0],
  }


def _fit(folder, arguments, truth):
  """Measures a fit of all, the pass included, and scores its model."""
  found = _process('fit', folder, 'model', {**arguments, 'seed': _SEED})
  load = os.getloadavg()[1]
  model = os.path.join(folder, 'model')
  scores = truth.scores(TabularSynthesizer.load(model))
  shutil.rmtree(model)
  return {
    'fit_seconds': found['seconds'],
    'fit_peak_mib': found['peak_mib'],
    'epsilon_spent': found['result'],
    'load_average': load,
    'scores': scores,
  }


def _make(small, count, shard, folder):
  """Makes the files of a table that are not there; returns rows and paths."""
  os.makedirs(folder, exist_ok=True)
  made, paths = 0, []
  for number, first in enumerate(range(0, count, shard)):
    paths.append(os.path.join(folder, f'{number:05}.parquet'))
    if os.path.exists(paths[-1]):
      continue
    if number >= _DRAWN:
      shutil.copyfile(paths[number % _DRAWN], paths[-1])
      continue
    rows = min(shard, count - first)
    made += sinks.write_frames(
      small.sample_frames(rows, seed=number), paths[-1], small.schema
    )
  return made, paths


def _process(*arguments, script=_MEASURED):
  *words, settings = arguments
  output = _output(script, *words, json.dumps(settings))
  return json.loads(output.splitlines()[-1])


def _output(script, *arguments):
  return subprocess.run(
    [sys.executable, '-c', script, *arguments],
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  ).stdout


def main(argv):
  """Runs what the flags ask for and prints a line for each table."""
  options = flag_values.read(argv)
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
      epsilons=options.epsilon,
      file_format=options.format,
      measure_pass=options.measure_pass,
      data=options.data,
      output=options.output,
      smoke=options.smoke,
    )
  except FileNotFoundError as error:
    print(f'Skipped: {error}')
    return
  if options.plot:
    scale_figure.draw(results).savefig(options.plot, dpi=110)
  for entry in results['runs']:
    print(
      f'{entry["rows"]:,} rows: fitted in {entry["fit_seconds"]:.0f} s with '
      f'{entry["fit_peak_mib"]:,.0f} MiB at '
      f'epsilon {entry["epsilon"]:g}'
    )


def _define_flags():
  flags.DEFINE_enum('dataset', 'adult', datasets.DATASETS, 'Small table.')
  flags.DEFINE_multi_integer('rows', [1_000_000], 'Rows of a large one.')
  flags.DEFINE_multi_float('epsilon', [EPSILON], 'Of the fits.')
  flags.DEFINE_enum('format', 'parquet', ['parquet', 'csv'], 'Of the rows.')
  flags.DEFINE_bool('measure_pass', True, 'Whether to time the pass alone.')
  flags.DEFINE_string('data', None, 'Folder that keeps the rows.')
  flags.DEFINE_multi_string(
    'wide', [], 'Columns and rows of a wide table, such as 200x3000, instead.'
  )
  flags.DEFINE_multi_enum('kind', [], KINDS, 'Wide tables; all by default.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')
  flags.DEFINE_string('plot', None, 'Picture of the scores to write.')
  flags.DEFINE_bool('smoke', False, 'A quick run.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
