r"""The table of optimizers, in RESULTS.md.

python -m experiments.optimizer_tables
"""

from __future__ import annotations

from experiments import results_document
from experiments.banded_tables import best_rate
from experiments.results_document import markdown_table, mean_cell
from experiments.results_file import grouped

_TEXT = (
  'A classifier of images (MNIST, one hidden layer of 128 units; accuracy on '
  'test rows) and a masked autoregressive flow (life sciences, 3 blocks of 2 x '
  '64 units; nats of test rows), {steps} steps with batches of {batch} on '
  'average, delta {delta:g}; each optimizer has the same noise. The learning '
  'rate is the best of five on a tenth of the rows that nothing is trained on, '
  'by the first seed: not charged, for all alike. DP-AdamBC and "corrected" '
  'subtract the variance of the noise from the second moment (Tang et al. '
  '2024). Mean (standard deviation) over seeds; * where the learning rate is '
  'the smallest or largest of those tried.'
)


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  parts = ['## Optimizers']
  for content, _ in results_document.load_results(
    folder, 'optimizer_comparison*.json'
  ):
    parts.append(
      _TEXT.format(**{k: content[k] for k in ('steps', 'batch', 'delta')})
    )
    parts.append(_table(content['runs']))
  return '\n\n'.join(parts)


def _table(runs):
  lines = [['task', 'epsilon', 'optimizer', 'learning rate', 'seeds', 'score']]
  groups = grouped(runs, 'task', 'epsilon', 'optimizer')
  for (task, epsilon, optimizer), found in groups.items():
    chosen, tried, scores = best_rate(found)
    rate = chosen['learning_rate']
    mark = '*' if rate in (min(tried), max(tried)) else ''
    lines.append(
      [
        task,
        f'{epsilon:g}',
        optimizer,
        f'{rate:g}{mark}',
        str(len(scores)),
        mean_cell(scores),
      ]
    )
  return markdown_table(lines)


if __name__ == '__main__':
  results_document.run('optimizers', 'experiments/optimizer_tables.py', section)
