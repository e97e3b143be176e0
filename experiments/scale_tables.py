r"""Writes the section of RESULTS.md on large tables:

python -m experiments.scale_tables
"""

from __future__ import annotations

from absl import app

from experiments import results_document

_HEADER = (
  '| table | rows | Parquet | codes | written | read | peak of reading | fit | '
  'peak of the fit |\n'
  '|---|---|---|---|---|---|---|---|---|'
)
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
      f'From `{name}`; epsilon {content["epsilon"]:g}, delta '
      f'{content["delta"]:g}, the default model. Rows are those of a fitted '
      'model of the small table. "Fit" is all of it, reading included, in a '
      'process by itself; other work was running on the machine, of two cores '
      '(load average '
      + ', '.join(f'{r["load_average"]:.1f}' for r in content['runs'])
      + ').',
      '',
      _HEADER,
      *map(_row, content['runs']),
    ]
  for content, name in results_document.load_results(folder, 'wide*.json'):
    lines += [
      '',
      f'Wide tables, from `{name}`: columns depend on three hidden numbers, '
      'and are answers from 1 to 5, or a third of each these, numbers from 0 '
      'to 100 and 2 to 40 categories; epsilon '
      f'{content["epsilon"]:g}, delta {content["delta"]:g}, the default model. '
      'The peak is that of a process with all in memory, which draws 3,000 '
      'rows at the end. Other work was running on the machine, of two cores: '
      'with both for itself a fit takes from half of the time of processors to '
      'all of it.',
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
      f'{first["columns"]} columns, the default model. Other work was running '
      f'(load average {min(loads):.1f} to {max(loads):.1f}), so that single '
      'numbers say little.',
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
  return '\n'.join(['## Large tables', *lines])


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
    f'| {run["dataset"]} | {run["rows"]:,} | '
    f'{run["bytes_of_parquet"] / mib:,.0f} MiB | '
    f'{run["bytes_of_codes"] / mib:,.0f} MiB | '
    f'{run["rows_per_second_made"]:,.0f} rows/s | '
    f'{run["rows_per_second_read"]:,.0f} rows/s | '
    f'{run["pass_peak_mib"]:,.0f} MiB | {run["fit_seconds"]:,.0f} s | '
    f'{run["fit_peak_mib"]:,.0f} MiB |'
  )


def main(argv):
  """Replaces the section of the document that the flags name."""
  results_document.main(argv, 'scale', 'experiments/scale_tables.py', section)


if __name__ == '__main__':
  results_document.define_flags()
  app.run(main)
