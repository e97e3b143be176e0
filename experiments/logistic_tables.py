r"""Tables of private logistic regression, in RESULTS.md.

python -m experiments.logistic_tables
"""

from __future__ import annotations

import json
import pathlib

import numpy as np

from experiments import results_document
from experiments.logistic_regression import ALL, AMP, NOT_PRIVATE, chosen
from experiments.results_file import grouped

_NAMES = {AMP: 'AMP, calibrated as by Redberg et al. 2023'}
_TEXT = (
  'AUC on test rows: mean over seeds, and the standard deviation over them, at '
  'delta 1e-5, a row added or removed, `pld`. Rows are divided by '
  'their norms. The settings of each method were chosen on other tables '
  '(`logistic_choice.json`: Census-Income, Covertype, MNIST), which are taken '
  'for public. Seconds: the median of a fit with all rows at epsilon 1, '
  'calibration included, one core of a shared machine.'
)


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  lines = ['## Private logistic regression']
  path = pathlib.Path(folder) / 'logistic_regression.json'
  content = json.loads(path.read_text()) if path.exists() else {}
  if not content.get('runs') or content['smoke']:
    return lines[0]
  lines += ['', _TEXT]
  for dataset, runs in grouped(content['runs'], 'dataset').items():
    lines += ['', f'### {dataset}', '', *table(runs)]
  choice = pathlib.Path(folder) / 'logistic_choice.json'
  if choice.exists():
    lines += ['', *_settings(json.loads(choice.read_text()))]
  return '\n'.join(lines)


def table(runs):
  """Returns lines of a table of the runs with one data set."""
  epsilons = sorted({run['epsilon'] for run in runs if run['epsilon']})
  head = [f'epsilon {epsilon:g}' for epsilon in epsilons]
  lines = [_line(['method', *head, 'seeds', 'seconds'])]
  lines.append('|---' * (len(head) + 3) + '|')
  for method in ALL:
    of_method = [run for run in runs if run['method'] == method]
    if not of_method:
      continue
    cells = [_NAMES.get(method, method.replace('_', ' '))]
    for epsilon in epsilons:
      auc = [
        run['auc']
        for run in of_method
        if run['epsilon'] == epsilon or method == NOT_PRIVATE
      ]
      spread = f' ± {np.std(auc, ddof=1):.4f}' if len(auc) > 1 else ''
      cells.append(f'{np.mean(auc):.4f}{spread}' if auc else '')
    cells.append(str(len({run['seed'] for run in of_method})))
    seconds = [
      run['seconds'] for run in of_method if run['epsilon'] in (None, 1.0)
    ]
    cells.append(f'{np.median(seconds):.1f}' if seconds else '')
    lines.append(_line(cells))
  return lines


def _settings(content):
  """Returns lines that name the chosen settings."""
  lines = ['Chosen settings (`factor` in units of z B², see the binary):', '']
  for method in ALL[1:]:
    found = chosen(content, method)
    if found:
      text = ', '.join(f'{key} {value:g}' for key, value in found.items())
      lines.append(f'- {method.replace("_", " ")}: {text}')
  return lines


def _line(cells):
  return f'| {" | ".join(cells)} |'


if __name__ == '__main__':
  results_document.run('logistic', 'experiments/logistic_tables.py', section)
