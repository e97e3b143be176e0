r"""The tables of `experiments.table_defaults` in RESULTS.md.

python -m experiments.table_defaults_tables
"""

from __future__ import annotations

import itertools

import numpy as np

from experiments import results_document, table_defaults
from experiments.results_document import markdown_table, mean_cell

_SCORES = {
  'auroc': ('AUROC', 3),
  'average_precision': ('AP', 3),
  'pair_total_variation': ('pair TV', 4),
  'nats': ('nats', 2),
}


_NAMES = {
  'search': 'search of settings',
  'random': 'one of its settings',
  'swift': 'SWIFT (dpsynth)',
  'aim_gdp': 'AIM-GDP (dpsynth)',
  'dpsynth_aim': 'AIM (dpsynth)',
  'dpsynth_mst': 'MST (dpsynth)',
}


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  parts = [
    '## The defaults on other tables',
    'Tables of health, work and schooling, with a fifth of the rows held out, '
    'told which column is the target or not. "Training alone" is DP-SGD from '
    'independent columns with 16 bins, the default before. Mechanisms of '
    'dpsynth (google/dpsynth) have its defaults; told, their workload is all '
    'pairs and all triples with the target, of weight 1 each. "Search of '
    'settings" is the best of five trials on average (`tune_to_directory`), '
    'all within epsilon, and "one of its settings" a trial drawn at random '
    'with all of epsilon. Categories and '
    'bounds are those of the whole table, for all alike; `name@n` is a table '
    'of which n rows are learned from. Three quick classifiers learn from at '
    'most 20,000 synthetic rows; pair TV is to the rows that were learned '
    'from; nats are of held-out rows, where a method has a density. Mean '
    '(standard deviation) over seeds. Times are of two cores that other work '
    'shared.',
  ]
  for content, _ in results_document.load_results(
    folder, 'table_defaults*.json'
  ):
    runs = content['runs']
    for epsilon, told in sorted({(r['epsilon'], r['told']) for r in runs}):
      parts.append(_table(content, epsilon, told))
  return '\n\n'.join(parts)


def _table(content, epsilon, told):
  runs = [
    run
    for run in content['runs']
    if (run['epsilon'], run['told']) == (epsilon, told)
  ]
  names = [name for name, _ in _SCORES.values()]
  lines = [['table', 'rows x columns', 'method', 'seeds', *names, 'fit, s']]
  tables = dict.fromkeys(run['table'] for run in runs)
  chosen = [t for t in tables if t.split('@')[0] in table_defaults.CHOSEN]
  groups = {
    'defaults were chosen on these': chosen,
    'held out': [t for t in tables if t not in chosen],
  }
  for group, members in groups.items():
    found = {method: {} for method in table_defaults.METHODS}
    for table, method in itertools.product(members, found):
      own = [r for r in runs if (r['table'], r['method']) == (table, method)]
      if not own:
        continue
      found[method][table] = {
        score: _mean(run[score] for run in own) for score in _SCORES
      }
      lines.append(
        [
          table,
          f'{own[0]["rows"]:,} x {own[0]["columns"]}',
          _NAMES.get(method, method),
          str(len(own)),
          *(
            mean_cell([r[score] for r in own], digits)
            for score, (_, digits) in _SCORES.items()
          ),
          f'{np.mean([r["fit_seconds"] for r in own]):.0f}',
        ]
      )
    lines += _means(group, found)
  return (
    f'### epsilon {epsilon:g}, {"told the target" if told else "no target"}'
    f'\n\ndelta {content["delta"]:g}.\n\n{markdown_table(lines)}'
  )


def _means(group, found):
  """Lines of means over tables: of a method, and of the default on the same."""
  subsets = {}
  for method, scores in found.items():
    subsets.setdefault(tuple(scores), []).append(method)
  for tables, methods in subsets.items():
    if not tables:
      continue
    every = len(tables) == max(map(len, subsets))
    label = group if every else ', '.join(tables)
    if 'default' not in methods and set(tables) <= set(found['default']):
      methods = ['default', *methods]
    for method in methods:
      yield [
        f'**mean: {label}**',
        '',
        _NAMES.get(method, method),
        '',
        *(
          mean_cell([_mean(found[method][t][score] for t in tables)], digits)
          for score, (_, digits) in _SCORES.items()
        ),
      ]


def _mean(numbers):
  numbers = [number for number in numbers if number is not None]
  return float(np.mean(numbers)) if numbers else None


if __name__ == '__main__':
  results_document.run(
    'table defaults', 'experiments/table_defaults_tables.py', section
  )
