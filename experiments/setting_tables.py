r"""Writes the tables of what settings of the synthesizer are worth.

    python -m experiments.setting_tables

Replaces its section of `experiments/RESULTS.md`. Nothing is typed by hand but
what the settings are about.
"""

from __future__ import annotations

from experiments import results_document, table_settings
from experiments.results_document import (
  load_results,
  markdown_table,
  mean_cell,
)

_INTRODUCTION = (
  'What the parts of the default synthesizer are worth, and those of DP-HFlow, '
  'with the figures of Lee, Kim, Jeong and Ro (2022). Models of one table '
  'differ in nothing but the '
  'setting that the row names; these runs chose no default. Means of '
  'nine classifiers that learn from synthetic rows and are tested on held-out '
  'ones; mean and, in brackets, standard deviation over seeds. Seeds make runs '
  'reproducible, hence not private. Times are of two cores that other work '
  'shared.'
)
# By the start of a file's name: title, and what is compared.
_SECTIONS = {
  'synthesizer_ablation': (
    'Parts of the default synthesizer',
    'Each changes one thing in the first, which is an earlier default than '
    'that of the tables above: training alone, with 16 bins. The target is the '
    'last column anyway, so that without a target the fit is that of a target '
    'which weighs as the others. Splines and DP-HFlow are in a table below.',
  ),
  'hflow_clipping': (
    'Clipping and sparsity (figure 4)',
    'The paper proposes clipping by unit and stochastic sparsification for '
    'their better ratio of signal to noise.',
  ),
  'hflow_dequantization': (
    'Dequantization (figure 5)',
    'Uniform against variational dequantization of categories and integers.',
  ),
  'hflow_marginals': (
    'Columns (figure 3)',
    'Distance of every column to the held-out rows. Wasserstein is a share of '
    'the declared range, for columns of numbers.',
  ),
  'hflow_ablation': (
    'Parts of DP-HFlow, and the other models',
    'All are told nothing of the target.',
  ),
}
_HEAD = (
  'setting',
  'epsilon',
  'seeds',
  *table_settings.LABELS.values(),
  'held-out nats',
  'Kendall RMSE',
  'column TV',
  'pair TV',
  'fit, s',
)


def section(folder):
  """Returns the section, in Markdown.

  Args:
    folder: of the JSON files; smoke runs are left out.
  """
  parts = ['## What settings are worth', _INTRODUCTION]
  for name, (title, words) in _SECTIONS.items():
    for content, file_name in load_results(folder, f'{name}_*.json'):
      spent = max(
        run['epsilon_spent'] / run['epsilon'] for run in content['runs']
      )
      parts += [
        f'### {title}: {content["dataset"]}',
        f'{words} {content["train_rows"]:,} rows to learn from, delta = '
        f'{content["delta"]:g}, {spent:.2%} of each epsilon spent at most. '
        f'`experiments/results`: `{file_name}`',
        markdown_table([list(_HEAD), *_lines(content)]),
      ]
      if 'columns' in content['runs'][0]:
        parts.append(markdown_table(_columns(content)))
      stem = file_name.removesuffix('.json')
      parts.append(f'![{title}](../docs/{stem}.png)')
  return '\n\n'.join(parts)


def _lines(content):
  lines = []
  numbers = [
    *((3, ('scores', name)) for name in table_settings.LABELS),
    (2, ('log_likelihood',)),
    (4, ('distances', 'kendall_rmse')),
    (3, ('distances', 'marginal_total_variation')),
    (4, ('distances', 'pair_total_variation')),
    (0, ('seconds', 'fit')),
  ]
  for epsilon in sorted({run['epsilon'] for run in content['runs']}):
    for setting in content['settings']:
      seeds = len(table_settings.runs_of(content, setting, epsilon))
      if seeds:
        cells = [_cell(content, setting, epsilon, *n) for n in numbers]
        lines.append([setting, f'{epsilon:g}', str(seeds), *cells])
  return lines


def _columns(content):
  """A line for each column: what every model missed of it."""
  epsilon = content['runs'][0]['epsilon']
  settings = list(content['settings'])
  head = ['column', *(f'{s}, TV' for s in settings)]
  lines = [[*head, *(f'{s}, Wasserstein' for s in settings)]]
  for column in content['runs'][0]['columns']:
    lines.append(
      [column]
      + [
        _cell(content, setting, epsilon, 4, ('columns', column, measure))
        for measure in ('total_variation', 'wasserstein')
        for setting in settings
      ]
    )
  return lines


def _cell(content, setting, epsilon, digits, path):
  found = []
  for run in table_settings.runs_of(content, setting, epsilon):
    for name in path:
      run = run.get(name) if run else None
    found.append(run)
  return mean_cell(found, digits, spread=digits > 0)


if __name__ == '__main__':
  results_document.run('settings', 'experiments/setting_tables.py', section)
