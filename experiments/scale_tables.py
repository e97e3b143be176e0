r"""Writes the section of RESULTS.md on large tables:

python -m experiments.scale_tables
"""

from __future__ import annotations

from experiments import results_document

_HEADER = (
  '| table | rows | epsilon | files | codes | read | peak of reading | fit | '
  'peak of the fit | AUROC | average precision | pairs | nats lost | load |\n'
  '|---|---|---|---|---|---|---|---|---|---|---|---|---|---|'
)
_FORMATS = {'parquet': 'Parquet', 'csv': 'CSV'}
_WIDE_HEADER = (
  '| table | columns | rows | fit | of processors | 3,000 rows drawn | peak | '
  'load average |\n'
  '|---|---|---|---|---|---|---|---|'
)


def section(folder):
  """Returns the section, of the results of `experiments.scale` in a folder."""
  lines = []
  for content, name in results_document.load_results(folder, 'scale*.json'):
    lines += [
      '',
      f'From `{name}`; delta is 1e-9, or a tenth of one over the number of '
      'rows where that is less; the default model. Rows are '
      'those of a model of the small table, the truth; beyond 100 million they '
      'are copies. "Fit" is all of it, reading included, in a process by '
      'itself, on two cores; "load" is the load average at its end, which two '
      'threads of a fit alone bring to 2. Scores are of rows of the fitted '
      'model: of classifiers that learn from 50,000 of them and are tested on '
      'rows of the truth, and of pairs of columns; "nats lost" are the mean '
      'difference of the log-densities of rows of the truth.',
      '',
      _HEADER,
      *map(_row, content['runs']),
      '| rows of the truth | | | | | | | | | '
      + _scores(content['truth'])
      + ' | |',
    ]
  for content, name in results_document.load_results(folder, 'wide*.json'):
    lines += [
      '',
      f'Wide tables, from `{name}`: columns depend on three hidden numbers, '
      'and are answers from 1 to 5, or a third of each these, numbers from 0 '
      'to 100 and 2 to 40 categories; epsilon '
      f'{content["epsilon"]:g}, delta {content["delta"]:g}, the default model. '
      'The peak is that of a process with all in memory, which draws 3,000 '
      'rows at the end. The machine has two cores; a fit that has both for '
      'itself brings the load average to less than 2.',
      '',
      _WIDE_HEADER,
      *map(_wide_row, content['runs']),
    ]
  for content, name in results_document.load_results(folder, 'workers*.json'):
    loads = [run['load_average'] for run in content['runs']]
    first = content['runs'][0]
    lines += [
      '',
      f'One process and two workers on a machine of two cores, from `{name}`: '
      f'steps of training per second, {first["rows"]:,} rows of '
      f'{first["columns"]} columns, the default model. The load average was '
      f'{min(loads):.1f} to {max(loads):.1f}.',
      '',
      '| processes | cores | steps per second, round by round |',
      '|---|---|---|',
    ]
    speeds = {}
    for run in content['runs']:
      key = run['workers'], run['cores']
      speeds.setdefault(key, []).append(f'{run["steps_per_second"]:.1f}')
    lines += [
      f'| {count} | {cores} | {", ".join(found)} |'
      for (count, cores), found in speeds.items()
    ]
  for content, name in results_document.load_results(folder, 'beam*.json'):
    lines += [
      '',
      f'The pass by Apache Beam, from `{name}`: its DirectRunner, with workers '
      f'that are processes of this machine, of {content["cores"]} cores. Its '
      'seconds have the start of the workers in them. Codes are compared with '
      'those of the local pass, byte by byte.',
      '',
      '| rows | workers | local pass | Beam | codes | load average |',
      '|---|---|---|---|---|---|',
      *map(_beam_row, content['runs']),
    ]
  return '\n'.join(['## Large tables', *lines])


def _beam_row(run):
  local, beam = (
    f'{run["rows"] / run[name]:,.0f} rows/s'
    for name in ('local_seconds', 'beam_seconds')
  )
  return (
    f'| {run["rows"]:,} | {run["workers"]} | {local} | {beam} | '
    f'{"equal" if run["equal"] else "different"} | '
    f'{run["load_average"]:.1f} |'
  )


def _wide_row(run):
  return (
    f'| {run["dataset"]} | {run["columns"]:,} | {run["rows"]:,} | '
    f'{run["fit_seconds"]:,.0f} s | {run["fit_cpu_seconds"]:,.0f} s | '
    f'{run["sample_seconds"]:,.0f} s | {run["peak_mib"]:,.0f} MiB | '
    f'{run["load_average"]:.1f} |'
  )


def _row(run):
  mib = 2**20
  return (
    f'| {run["dataset"]} | {run["rows"]:,} | {run["epsilon"]:g} | '
    f'{run["bytes_of_files"] / mib:,.0f} MiB of {_FORMATS[run["format"]]} | '
    f'{_pass(run)} | {run["fit_seconds"]:,.0f} s | '
    f'{run["fit_peak_mib"]:,.0f} MiB | {_scores(run["scores"])} | '
    f'{run["load_average"]:.1f} |'
  )


def _pass(run):
  if 'pass_seconds' not in run:
    return ' | | '
  return (
    f'{run["bytes_of_codes"] / 2**20:,.0f} MiB | '
    f'{run["rows_per_second_read"]:,.0f} rows/s | '
    f'{run["pass_peak_mib"]:,.0f} MiB'
  )


def _scores(scores):
  return (
    f'{scores["auroc"]:.4f} | {scores["average_precision"]:.4f} | '
    f'{scores["pairs"]:.4f} | {scores["nats_lost"]:.3f}'
  )


if __name__ == '__main__':
  results_document.run('scale', 'experiments/scale_tables.py', section)
