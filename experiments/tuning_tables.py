r"""The table of searches for hyper-parameters, in RESULTS.md.

python -m experiments.tuning_tables
"""

from __future__ import annotations

import numpy as np

from experiments import results_document
from experiments.results_document import markdown_table, mean_cell
from experiments.results_file import grouped

_TEXT = (
  'Logistic regression by DP-SGD (`DPLogisticRegression`), AUC on test rows. '
  'Settings at all of epsilon, one fit each: the worst, the median and the '
  'best of {count}, which takes the test rows to know and is not private. The '
  'default was chosen on other tables. A search (`tuning.random_search`) draws '
  'from the same settings and pays for all of its trials and scores out of '
  'epsilon. Mean (standard deviation) over seeds, at delta {delta:g}.'
)


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  parts = ['## Searches for hyper-parameters']
  for content, _ in results_document.load_results(
    folder, 'tuning_search*.json'
  ):
    runs = content['runs']
    count = int(np.prod([len(values) for values in content['space'].values()]))
    parts.append(_TEXT.format(count=count, delta=content['delta']))
    for dataset, of_dataset in grouped(runs, 'dataset').items():
      parts += [f'### {dataset}', _table(of_dataset)]
  return '\n\n'.join(parts)


def _table(runs):
  means = sorted({run['mean_trials'] for run in runs} - {None})
  lines = [
    [
      'epsilon',
      'worst',
      'median',
      'best',
      'default',
      *(f'search, {mean:g} trials on average' for mean in means),
    ]
  ]
  for epsilon, found in sorted(grouped(runs, 'epsilon').items()):
    auc = {
      key: [run['auc'] for run in same]
      for key, same in grouped(found, 'method', 'mean_trials').items()
    }
    fixed = auc['fixed', None]
    quantiles = [f'{np.quantile(fixed, q):.3f}' for q in (0, 0.5, 1)]
    lines.append(
      [
        f'{epsilon:g}',
        *quantiles,
        mean_cell(auc.get(('default', None), [])),
        *(mean_cell(auc.get(('search', mean), [])) for mean in means),
      ]
    )
  return markdown_table(lines)


if __name__ == '__main__':
  results_document.run('tuning', 'experiments/tuning_tables.py', section)
