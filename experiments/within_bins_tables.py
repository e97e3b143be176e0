r"""The table of values within bins, in RESULTS.md.

python -m experiments.within_bins_tables
"""

from __future__ import annotations

from experiments import results_document
from experiments.results_document import markdown_table, mean_cell
from experiments.results_file import grouped

_SCORES = {
  'nats': ('nats', 2),
  'kendall_mae': ('Kendall error', 4),
  'pair_total_variation': ('pair TV', 4),
  'auroc': ('AUROC', 3),
  'average_precision': ('AP', 3),
  'seconds': ('fit, s', 0),
}
_TEXT = (
  'Tables in which columns nearly determine each other, fitted with values '
  'within bins and without (`within_bins`), told no target, at delta '
  '{delta:g}. Diamonds decided how they are modelled, the others nothing; '
  '`name@n` is a table of which n rows are learned from. Nats and the mean '
  "absolute error of Kendall's tau, over all pairs of columns, are of held-out "
  'rows; classifiers as in "The defaults on other tables". Mean (standard '
  'deviation) over seeds.'
)


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  parts = ['## Values within bins']
  for content, _ in results_document.load_results(folder, 'within_bins*.json'):
    parts += [_TEXT.format(delta=content['delta']), _table(content['runs'])]
  return '\n\n'.join(parts)


def _table(runs):
  names = [name for name, _ in _SCORES.values()]
  lines = [['table', 'rows x columns', 'epsilon', 'within bins', *names]]
  groups = grouped(runs, 'table', 'epsilon', 'within')
  for (table, epsilon, within), found in groups.items():
    lines.append(
      [
        table,
        f'{found[0]["rows"]:,} x {found[0]["columns"]}',
        f'{epsilon:g}',
        'yes' if within else 'no',
        *(
          mean_cell([run[score] for run in found], digits)
          for score, (_, digits) in _SCORES.items()
        ),
      ]
    )
  return markdown_table(lines)


if __name__ == '__main__':
  results_document.run(
    'within bins', 'experiments/within_bins_tables.py', section
  )
