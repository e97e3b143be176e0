r"""The pass over a table by Apache Beam, beside the one of this process.

Beam's DirectRunner encodes the Parquet files of a folder with some numbers of
workers, processes of this machine. What they wrote is compared with the codes
of the local pass, byte by byte:

    python -m experiments.bench_beam --data=rows --schema=schema.json \
      --workers=1 --workers=4 --output=experiments/results/beam.json

It needs `pip install tfdpflows[beam]`, and files, such as those that
`experiments.scale --data=rows` keeps.
"""

from __future__ import annotations

import glob
import os
import tempfile
import time

from absl import app, flags

from experiments import flag_values
from experiments.results_file import ResultsFile
from tfdpflows.tabular import TableSchema, beam_encoding, code_store, sources


def run(data, schema, *, workers=(1, 4), files=None, output=None):
  """Encodes the files of a folder, and compares.

  Args:
    data: folder of Parquet files.
    schema: their `TableSchema`.
    workers: numbers of workers.
    files: how many of the files; all by default.
    output: JSON file to go on with, or `None`.

  Returns:
    A JSON-able dict with `runs`: the rows, the seconds of the local pass and of
    the pipeline, and whether rows are equal.

  Raises:
    ImportError: without Apache Beam.
    ValueError: for a folder without Parquet files.
  """
  paths = sorted(glob.glob(os.path.join(data, '*.parquet')))[:files]
  if not paths:
    raise ValueError(f'{data} has no Parquet files.')
  results = ResultsFile(output, {'cores': os.cpu_count()}, ('rows', 'workers'))
  for count in workers:
    with tempfile.TemporaryDirectory() as folder:
      start = time.perf_counter()
      local = code_store.read(
        sources.Source.of(paths), schema, 'error', os.path.join(folder, 'rows')
      )
      read = time.perf_counter()
      shards = beam_encoding.encode(
        paths,
        schema,
        os.path.join(folder, 'shards'),
        options=[
          '--direct_running_mode=multi_processing',
          f'--direct_num_workers={count}',
        ],
      )
      encoded = time.perf_counter()
      again = code_store.read(
        shards, schema, 'error', os.path.join(folder, 'again')
      )
      results.add(
        {
          'rows': len(local),
          'workers': count,
          'files': len(paths),
          'local_seconds': read - start,
          'beam_seconds': encoded - read,
          # The digest is of all bytes.
          'equal': local.digest.tolist() == again.digest.tolist(),
          'load_average': os.getloadavg()[0],
        }
      )
  return results.content


def main(argv):
  """Runs what the flags ask for and prints a line for each."""
  options = flag_values.read(argv)
  results = run(
    options.data,
    TableSchema.from_json(options.schema),
    workers=[int(count) for count in options.workers],
    files=options.files,
    output=options.output,
  )
  for entry in results['runs']:
    rates = [
      entry['rows'] / entry[name] for name in ('local_seconds', 'beam_seconds')
    ]
    print(
      f'{entry["rows"]:,} rows: {rates[0]:,.0f} rows/s here, {rates[1]:,.0f} '
      f'rows/s by {entry["workers"]} workers, '
      f'{"equal" if entry["equal"] else "DIFFERENT"}.'
    )


def _define_flags():
  flags.DEFINE_string('data', None, 'Folder of Parquet files.', required=True)
  flags.DEFINE_string('schema', None, 'Their schema.', required=True)
  flags.DEFINE_multi_integer('workers', [1, 4], 'Numbers of workers.')
  flags.DEFINE_integer('files', None, 'How many files; all by default.')
  flags.DEFINE_string('output', None, 'JSON file to write or go on with.')


if __name__ == '__main__':
  _define_flags()
  app.run(main)
