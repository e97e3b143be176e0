r"""Writes the tables of the synthesis experiments from their JSON.

    python -m experiments.tabular_tables

Replaces its section of `experiments/RESULTS.md`. Nothing is typed by hand but
the numbers of others: those of the paper, and what earlier runs of this
project's issue measured.
"""

from __future__ import annotations

import json

import numpy as np

from experiments import public_tables, results_document
from experiments.results_document import (
  load_results,
  markdown_table,
  mean_cell,
)
from experiments.results_file import grouped

# What "no privacy" is run as: noise that nobody can see, clipping as ever.
NOT_PRIVATE = 1e6
METRICS = ('macro_f1', 'auroc', 'average_precision')
NAMES = {
  'flow': 'TabularSynthesizer',
  'dpgan': "TabularSynthesizer, model='dpgan'",
  'pategan': "TabularSynthesizer, model='pategan'",
  'dp_merf': 'DP-MERF, written here',
  'dp_cgan': 'DP-CGAN, written here',
  'gs_wgan': 'GS-WGAN, written here',
  'mst': 'MST (dpmm)',
  'aim': 'AIM (dpmm)',
  'privbayes': 'PrivBayes (dpmm)',
  'ctgan': 'CTGAN (ctgan)',
  # Of an older version.
  'training_alone': 'TabularSynthesizer, training alone',
}
# Macro-F1, AUROC, average precision at epsilon 1: Lee, Kim, Jeong and Ro
# (2022), DP-HFlow. Their Intrusion has classes grouped in a way of its own.
PAPER = {
  'adult': {'paper: DP-HFlow': ('.56', '.75', '.50')},
  'census': {'paper: DP-HFlow': ('.52', '.78', '.17')},
  'covertype': {
    'paper: DP-HFlow': ('.22', '', '', '.0717', '.0482'),
    'paper: DP-MERF': ('.31',),
  },
  'intrusion': {'paper: DP-HFlow': ('.40',)},
}
# Measured before by the same scorer (tstr.py), but with a domain that was read
# off the table. Real rows: the classifiers on the training rows.
BEFORE = {
  'adult': {
    'MST, before': ('.630', '.793', '.542', '', '', '', '', '122'),
    'AIM, before': ('.748', '.877', '.696', '', '', '', '', '2541'),
    'real rows, before': ('.759', '.889', '.728'),
  },
  'census': {
    'MST, before': ('.529', '.796', '.273', '', '', '', '', '690'),
    'real rows, before': ('.698', '.897', '.521'),
  },
  'covertype': {
    'MST, before': ('.308', '', '', '', '', '', '', '120'),
    'real rows, before': ('.563',),
  },
  'intrusion': {
    'MST, before': ('.585', '', '', '', '', '', '', '595'),
    'real rows, before': ('.877',),
  },
}
# What was asked at epsilon 1 of the first release, and of the one after.
ASKED = {
  'adult': {
    '**asked first**': ('.67', '.85', '.62'),
    '**asked next**': ('.75', '.88', '.70', '', '', '', '', '240'),
  },
  'census': {'**asked first**': ('.60', '.86', '.33')},
  'covertype': {
    '**asked first**': ('.38', '', '', '.030', '.020', '', '', '600'),
    '**asked next**': ('.45',),
  },
  'intrusion': {
    '**asked first**': ('.60',),
    '**asked next**': ('.70',),
  },
}
_HEAD = (
  'method',
  'epsilon',
  'seeds',
  'macro-F1',
  'AUROC',
  'AP',
  'Kendall RMSE',
  'Kendall MAE',
  'column TV',
  'pair TV',
  'fit, s',
  'peak, MiB',
)
_TASK_HEAD = (
  'method',
  'epsilon',
  'seeds',
  'triple TV',
  'range error',
  'R2',
  'held-out nats',
)
_DIFFERS = (
  'What differs from the paper: the schemas are public documents '
  '(`experiments/schemas`), and everything that touches rows is charged; '
  'classifiers learn from at most 50,000 synthetic rows and are tested on at '
  'most 20,000 real ones that were held out (published splits of Adult and '
  'Census-Income, random 80/20 of the others); Intrusion is the five most '
  'frequent classes of the 10 % file, where the paper groups classes in its '
  'own way; Kendall tau is over all pairs of columns, categories by their '
  'place in the schema, of at most 20,000 rows. TabularSynthesizer, '
  'DP-MERF and DP-CGAN are told which column is the target, other GANs and '
  'dpmm have no such argument. '
  'AUROC and AP are computed from scores, for two classes only. Column TV is '
  'the mean total variation of single columns, pair TV that of all pairs, '
  'triple TV that of 200 triples, in at most 8 cells each way; range error '
  'is the mean error of 1,000 shares of rows with conditions on three columns; '
  'R2 that of three regressors of a numeric column, which learn from 20,000 '
  'synthetic rows. "Not private" is epsilon 1e6 with the same clipping, and '
  'for CTGAN no privacy at all. Neighbours have one row more or less; for '
  'GS-WGAN one row is replaced, which takes twice the noise on marginals. Rows '
  'marked "before" were measured earlier in this project with a domain read '
  'off the table, and are no part of the JSON files. Seeds make runs '
  'reproducible, hence not private. Where AIM has fewer than 80 MB for its '
  'model and 16 rounds for each column, as its authors have them, it is so '
  'that a fit ends within an hour. Times are of two cores that other work '
  'shared; the peak is that of the process up to the end of sampling, all '
  'seeds included.'
)


def section(folder):
  """Returns the section of the synthesis experiments, in Markdown.

  Args:
    folder: of the JSON files `tabular_*.json`; smoke runs are left out.
  """
  contents = {}
  for content, name in load_results(folder, 'tabular_*.json'):
    contents.setdefault(content['dataset'], []).append((content, name))
  parts = ['## Synthetic tables', _DIFFERS]
  for dataset in public_tables.NAMES:
    if dataset in contents:
      parts += _dataset(dataset, contents.pop(dataset))
  for dataset, found in contents.items():
    parts += _dataset(dataset, found)
  for content, _ in load_results(folder, 'bench_serving_*.json'):
    parts.append(serving_table(content['runs']))
  return '\n\n'.join(parts)


def serving_table(runs):
  """Returns latency and throughput, of the runs of `bench_serving`."""
  first = runs[0]
  lines = [
    ['function', 'rows', 'median, ms', 'first call, ms', 'rows/s', 'difference']
  ]
  for run in runs:
    lines.append(
      [
        f'`{run["function"]}`',
        f'{run["size"]:,}',
        f'{1000 * run["latency"]:.1f}',
        f'{1000 * run["first_call"]:.0f}',
        f'{run["rows_per_second"]:,.0f}',
        f'{run["difference"]:.1g}',
      ]
    )
  text = (
    f'An exported model of {first["dataset"]}, '
    f'{first["bytes_on_disk"] / 1e6:.2f} MB, in a process without tfdpflows '
    f'and TensorFlow Probability; loaded in {first["load_seconds"]:.1f} s, '
    f'{first["peak_mib"]:,.0f} MiB at most. Difference to the library: the '
    'largest of log-probabilities, or the share of sampled cells that differ. '
    'Two cores, on which other experiments ran.'
  )
  return f'### Exported models\n\n{text}\n\n{markdown_table(lines)}'


def _dataset(dataset, found):
  found.sort(key=lambda pair: list(NAMES).index(_method(pair[0])))
  first = found[0][0]
  lines = [list(_HEAD)]
  for content, _ in found:
    lines += _lines(content)
  for content, _ in found:
    if 'real' in content:
      scores = [content['real'].get(name) for name in METRICS]
      cells = ['' if score is None else f'{score:.3f}' for score in scores]
      lines.append(['real rows', '', '', *cells])
  for others in (PAPER, BEFORE, ASKED):
    for name, numbers in others.get(dataset, {}).items():
      epsilon = '' if name.startswith('real rows') else '1'
      lines.append([name, epsilon, '', *numbers])
  tasks = [line for content, _ in found for line in _task_lines(content)]
  files = ', '.join(f'`{name}`' for _, name in found)
  warning = ''
  if first['delta'] * first['train_rows'] >= 1:
    warning = (
      ' This delta is for comparison with the other tables; it is above one '
      'over the number of rows, too large for a release.'
    )
  return [
    f'### {dataset}',
    f'{first["train_rows"]:,} rows to learn from, {first["holdout_rows"]:,} '
    f'held out, target `{first["target"]}`, delta = {first["delta"]:g}.'
    f'{warning} Mean and, in brackets, standard deviation over seeds. '
    f'`experiments/results`: {files}',
    markdown_table(lines),
    *([markdown_table([list(_TASK_HEAD), *tasks])] if tasks else []),
    '\n'.join(_privacy(content) for content, _ in found),
  ]


def _lines(content):
  """A line for each epsilon of one file."""
  lines = []
  for epsilon, runs in sorted(grouped(content['runs'], 'epsilon').items()):
    line = [_name(content), _epsilon(epsilon), str(len(runs))]
    line += [
      mean_cell(run['scores'].get(name) for run in runs) for name in METRICS
    ]
    line += [
      mean_cell((run['distances'].get(name) for run in runs), digits)
      for name, digits in (
        ('kendall_rmse', 4),
        ('kendall_mae', 4),
        ('marginal_total_variation', 3),
        ('pair_total_variation', 4),
      )
    ]
    line.append(f'{np.mean([run["seconds"]["fit"] for run in runs]):.0f}')
    peaks = [run['peak_mib'] for run in runs if run.get('peak_mib')]
    line.append(f'{max(peaks):.0f}' if peaks else '')
    lines.append(line)
  return lines


def _task_lines(content):
  """A line for each epsilon whose runs were tried at other tasks too."""
  lines = []
  tried = [run for run in content['runs'] if 'tasks' in run]
  for epsilon, runs in sorted(grouped(tried, 'epsilon').items()):
    cells = [
      mean_cell((run['tasks'].get(name) for run in runs), digits)
      for name, digits in (
        ('triple_total_variation', 3),
        ('range_query_error', 4),
        ('regression_r2', 3),
      )
    ]
    cells.append(mean_cell((run['log_likelihood'] for run in runs), 2))
    lines.append([_name(content), _epsilon(epsilon), str(len(runs)), *cells])
  return lines


def _epsilon(epsilon):
  return 'not private' if epsilon >= NOT_PRIVATE else f'{epsilon:g}'


def _privacy(content):
  """What the runs of a file spent, by whom accounted, and how rows came in."""
  runs = content['runs']
  statement = runs[0]['privacy_statement']
  if any(run['epsilon_spent'] is None for run in runs):
    return f'- {_name(content)}: not private at all.'
  shares = [run['epsilon_spent'] / run['epsilon'] for run in runs]
  words = [
    f'- {_name(content)}: {max(shares):.2%} of epsilon at most, delta = '
    f'{content["delta"]:g}, accountant: {statement["accountant"]}',
    f'sampling: {statement["sampling"]}',
  ]
  if statement.get('neighboring_relation') == 'REPLACE_ONE':
    words.append('neighbours with one row replaced')
  if content.get('note'):
    words.append(content['note'])
  return '; '.join(words) + '.'


def _name(content):
  name = NAMES[_method(content)]
  settings = content.get('hyperparameters')
  return f'{name} {json.dumps(settings)}' if settings else name


def _method(content):
  return content.get('method', 'flow')


if __name__ == '__main__':
  results_document.run('tabular', 'experiments/tabular_tables.py', section)
