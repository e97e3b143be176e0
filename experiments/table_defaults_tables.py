r"""The tables of `experiments.table_defaults` in RESULTS.md.

python -m experiments.table_defaults_tables
"""

from __future__ import annotations

import numpy as np
from absl import app

from experiments import results_document, table_defaults
from experiments.results_document import markdown_table, mean_cell

_SCORES = {
  'auroc': ('AUROC', 3),
  'average_precision': ('AP', 3),
  'pair_total_variation': ('pair TV', 4),
  'nats': ('nats', 2),
}


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  parts = [
    '## The defaults on other tables',
    'Tables of health, work and schooling, with a fifth of the rows held out, '
    'told which column is the target or not. "Training alone" is DP-SGD from '
    'independent columns with 16 bins, the default before. Categories and '
    'bounds are those of the whole table, for both alike. Three quick '
    'classifiers learn from at most 20,000 synthetic rows; pair TV is to the '
    'rows that were learned from; nats are of held-out rows. Mean (standard '
    'deviation) over seeds.',
  ]
  for content, _ in results_document.load_results(
    folder, 'table_defaults*.json'
  ):
    runs = content['runs']
    for epsilon in sorted({run['epsilon'] for run in runs}):
      for told in (False, True):
        parts.append(_table(content, epsilon, told))
  return '\n\n'.join(parts)


def _table(content, epsilon, told):
  runs = [
    run
    for run in content['runs']
    if (run['epsilon'], run['told']) == (epsilon, told)
  ]
  names = [name for name, _ in _SCORES.values()]
  lines = [['table', 'rows x columns', 'method', *names, 'fit, s']]
  groups = {
    'defaults were chosen on these': table_defaults.CHOSEN,
    'held out': [
      t for t in table_defaults.TABLES if t not in table_defaults.CHOSEN
    ],
  }
  for group, tables in groups.items():
    found = {m: {s: [] for s in _SCORES} for m in table_defaults.METHODS}
    for table in tables:
      for method in table_defaults.METHODS:
        own = [r for r in runs if (r['table'], r['method']) == (table, method)]
        if not own:
          continue
        for score in _SCORES:
          found[method][score].append(np.mean([r[score] for r in own]))
        lines.append(
          [
            table,
            f'{own[0]["rows"]:,} x {own[0]["columns"]}',
            method,
            *(
              mean_cell([r[score] for r in own], digits)
              for score, (_, digits) in _SCORES.items()
            ),
            f'{np.mean([r["fit_seconds"] for r in own]):.0f}',
          ]
        )
    for method, scores in found.items():
      if scores['auroc']:
        means = [
          f'**{np.mean(scores[score]):.{digits}f}**'
          for score, (_, digits) in _SCORES.items()
        ]
        lines.append([f'**mean: {group}**', '', method, *means, ''])
  seeds = len({run['seed'] for run in runs})
  return (
    f'### epsilon {epsilon:g}, {"told the target" if told else "no target"}'
    f'\n\ndelta {content["delta"]:g}, {seeds} seed{"s" * (seeds != 1)}.\n\n'
    f'{markdown_table(lines)}'
  )


if __name__ == '__main__':
  results_document.define_flags()
  app.run(
    lambda argv: results_document.main(
      argv,
      'table defaults',
      'experiments/table_defaults_tables.py',
      section,
    )
  )
