r"""Ours beside the mechanisms of dpsynth, on the tables that chose no default.

Writes a section of `docs/understand/tables.md`, of the results of
`experiments.table_defaults`:

    python -m experiments.rival_tables --document=docs/understand/tables.md
"""

from __future__ import annotations

import numpy as np

from experiments import results_document, table_defaults
from experiments.results_document import markdown_table

_RIVALS = {'swift': 'SWIFT', 'aim_gdp': 'AIM-GDP'}
# With the sign of what is better.
_SCORES = {
  'auroc': ('AUROC', 3, 1),
  'average_precision': ('average precision', 3, 1),
  'pair_total_variation': ('pairs', 3, -1),
}


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  names = [name for name, _, _ in _SCORES.values()]
  lines = [
    ['epsilon', 'target', 'rival', 'tables', 'seeds', *names, 'ahead on']
  ]
  for content, _ in results_document.load_results(
    folder, 'table_defaults*.json'
  ):
    runs = [r for r in content['runs'] if _is_held_out(r)]
    settings = {(r['told'], r['epsilon']) for r in runs}
    for told, epsilon in sorted(settings):
      for rival in _RIVALS:
        lines += _line(runs, told, epsilon, rival)
  return (
    'Means over the held-out tables on which both were run, ours / rival. '
    '"Told": the target is known, to dpsynth by a workload of all pairs and '
    'all triples with it. "Pairs" is the total variation distance of pairs of '
    'columns. "Ahead on": tables on which the rival is ahead in AUROC; average '
    'precision; pairs.\n\n' + markdown_table(lines)
  )


def _is_held_out(run):
  name, _, rows = run['table'].partition('@')
  return not rows and name not in table_defaults.CHOSEN


def _line(runs, told, epsilon, rival):
  """Yields the line of a rival in one setting, if there is one."""
  own, other = (
    {
      table: {s: np.mean([r[s] for r in of_table]) for s in _SCORES}
      | {'seeds': len(of_table)}
      for table in {r['table'] for r in runs}
      if (
        of_table := [
          r
          for r in runs
          if (r['table'], r['told'], r['epsilon'], r['method'])
          == (table, told, epsilon, method)
        ]
      )
    }
    for method in ('default', rival)
  )
  tables = sorted(own.keys() & other.keys())
  if not tables:
    return
  behind = [
    [t for t in tables if sign * other[t][s] > sign * own[t][s]]
    for s, (_, _, sign) in _SCORES.items()
  ]
  yield [
    f'{epsilon:g}',
    'told' if told else '',
    _RIVALS[rival],
    str(len(tables)),
    f'{_seeds(own, tables)} / {_seeds(other, tables)}',
    *(
      ' / '.join(
        f'{np.mean([found[t][s] for t in tables]):.{digits}f}'.lstrip('0')
        for found in (own, other)
      )
      for s, (_, digits, _) in _SCORES.items()
    ),
    '; '.join(', '.join(names) or 'none' for names in behind),
  ]


def _seeds(found, tables):
  counts = sorted({found[t]['seeds'] for t in tables})
  return str(counts[0]) if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'


if __name__ == '__main__':
  results_document.run('rivals', 'experiments/rival_tables.py', section)
