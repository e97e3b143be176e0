r"""The table of correlated noise, in RESULTS.md.

python -m experiments.banded_tables
"""

from __future__ import annotations

from experiments import banded_noise, results_document
from experiments.results_document import markdown_table, mean_cell
from experiments.results_file import grouped

_TEXT = (
  'A classifier of images (MNIST, one hidden layer of 128 units, SGD; accuracy '
  'on test rows) and a masked autoregressive flow (life sciences, 3 blocks of '
  '2 x 64 units, Adam; nats of test rows) with independent and banded noise '
  '(`TrainingPlan.for_epsilon(noise=...)`), {steps} steps with batches of '
  '{batch} on average and delta {delta:g}. The learning rate is the best of '
  'four on a tenth of the rows that nothing is trained on, by the first seed: '
  'not charged, for both alike. Noise in sums is that of the sums of gradients '
  'over steps, over the clip. Mean (standard deviation) over seeds.'
)


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  parts = ['## Correlated noise']
  for content, _ in results_document.load_results(folder, 'banded_noise*.json'):
    parts.append(
      _TEXT.format(**{k: content[k] for k in ('steps', 'batch', 'delta')})
    )
    for task, runs in grouped(content['runs'], 'task').items():
      parts += [f'### {task}', _table(runs)]
  return '\n\n'.join(parts)


def _table(runs):
  lines = [
    ['epsilon', 'noise', 'bands', 'noise in sums', 'learning rate', 'score']
  ]
  for epsilon, same in sorted(grouped(runs, 'epsilon').items()):
    groups = grouped(same, 'noise')
    for noise in banded_noise.NOISE:
      chosen, _, scores = best_rate(groups[noise])
      lines.append(
        [
          f'{epsilon:g}',
          noise,
          str(chosen['bands']),
          f'{chosen["error_of_sums"]:.3g}',
          f'{chosen["learning_rate"]:g}',
          mean_cell(scores),
        ]
      )
  return markdown_table(lines)


def best_rate(runs):
  """Returns what the first seed chose of runs with several learning rates.

  Args:
    runs: those of `banded_noise.run_best`, of one key.

  Returns:
    The run of the first seed with the rate that is best on rows apart, the set
    of rates that it was chosen from, and the scores of all seeds with it.
  """
  first = [run for run in runs if run['seed'] == runs[0]['seed']]
  chosen = max(first, key=lambda run: run['apart'])
  rate = chosen['learning_rate']
  scores = [run['test'] for run in runs if run['learning_rate'] == rate]
  return chosen, {run['learning_rate'] for run in first}, scores


if __name__ == '__main__':
  results_document.run('banded', 'experiments/banded_tables.py', section)
