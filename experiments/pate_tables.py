r"""Tables of the experiments on PATE, in RESULTS.md.

python -m experiments.pate_tables
"""

from __future__ import annotations

import json
import pathlib

import numpy as np

from experiments import pate_sweeps_figure, results_document
from experiments.results_file import grouped

_NAMES = {
  'lnmax': 'LNMax',
  'gnmax': 'GNMax',
  'confident': 'Confident GNMax',
  'exponential': 'exponential mechanism',
}
# Student accuracy in percent, and epsilon; data-dependent ones.
_PUBLISHED = {
  'mnist': [
    ['published: LNMax', '2.04 (data-dependent)', '250', '100', '', '98.0'],
    [
      'published: Confident GNMax',
      '1.97 (data-dependent)',
      '250',
      '286 of 640',
      '',
      '98.5',
    ],
  ],
  'adult': [
    ['published: LNMax', '2.66 (data-dependent)', '250', '500', '', '83.0'],
    [
      'published: Confident GNMax',
      '1.90 (data-dependent)',
      '250',
      '924 of 1,500',
      '',
      '83.7',
    ],
  ],
}
_TEXTS = {
  'mnist': (
    'Teachers are support vector machines on histograms of oriented gradients; '
    'queries are the images of the pool next to centres of clusters of the '
    'pool; the student is label spreading.'
  ),
  'adult': (
    'Teachers are linear discriminants with shrinkage, the student is a '
    'logistic regression, and queries are random inputs of the pool. Kind and '
    'number of teachers (400) and number of queries (2,000) were chosen on '
    'training rows: 20,000 of them to train, the others in place of the pool '
    'and the test set (`pate_adult_stand_in.json`); that choice is not part of '
    'epsilon.'
  ),
}


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  parts = ['## PATE']
  for dataset in ('mnist', 'adult'):
    found = _load(folder, f'pate_{dataset}.json')
    if found is not None:
      parts += _students(dataset, found)
  found = _load(folder, 'pate_sweeps_mnist.json')
  if found is not None:
    parts += _sweeps(found)
  found = _load(folder, 'pate_knn_mnist.json')
  if found is not None:
    parts += _neighbors(found)
  found = _load(folder, 'pate_anomaly.json')
  if found is not None:
    parts += _voting(found)
  return '\n\n'.join(parts)


def median_cell(numbers):
  """Returns a median, and the least and largest, in percent.

  #### Example

  >>> median_cell([0.98, 0.985, 0.99])
  '98.5 (98.0 to 99.0)'
  """
  numbers = 100.0 * np.array(numbers)
  middle = f'{np.median(numbers):.1f}'
  if len(numbers) == 1:
    return middle
  return f'{middle} ({numbers.min():.1f} to {numbers.max():.1f})'


def _students(dataset, found):
  lines = [
    [
      'aggregator',
      'epsilon',
      'teachers',
      'answers',
      'answers right, %',
      'student, %',
      'data-dependent epsilon, not publishable',
    ]
  ]
  keys = ('mechanism', 'num_queries', 'num_teachers', 'epsilon', 'agreement')
  runs = found['runs']
  groups = grouped(runs, *keys)
  for key, same in sorted(groups.items(), key=lambda group: str(group[0])):
    answers = f'{np.mean([run["answers"] for run in same]):.0f}'
    name = _NAMES[key[0]]
    if key[0] == 'confident':
      answers += f' of {key[1]}'
      threshold = np.median([run['threshold'] for run in same])
      name += f', threshold {threshold:.0f}'
    costs = [run['data_dependent'] for run in same]
    lines.append(
      [
        name,
        f'{max(run["spent"] for run in same):.2f}',
        str(key[2]),
        answers,
        median_cell([run['correct'] for run in same]),
        median_cell([run['accuracy'] for run in same]),
        '' if None in costs else f'{np.median(costs):.2f}',
      ]
    )
  lines += _PUBLISHED[dataset]
  seeds = len({run['seed'] for run in runs})
  return [
    f'### {dataset}',
    f'{found["note"]}. {_TEXTS[dataset]} Median of {seeds} seeds (least to '
    f'largest) at delta {found["delta"]:g}, neighbours with one row more; '
    'epsilon is the whole cost by the accountant pld, whatever the votes. '
    'Published epsilons were computed from the votes, which is no claim.',
    results_document.markdown_table(lines),
    f'From `experiments/results/pate_{dataset}.json`.',
  ]


def _sweeps(found):
  """What changes with the number of teachers, and with the threshold."""
  runs = found['runs']
  seeds = len({run['seed'] for run in runs})
  parts = [
    '### Number of teachers and threshold, on mnist',
    'Data, queries and student as above, 200 queries; mean of '
    f'{seeds} seeds (standard deviation). Votes of more teachers are less '
    'often outweighed by the noise, which the budget alone decides. With a '
    'check, at most 150 queries are answered; the share that it refuses is of '
    'the queries before the last answer.',
    '![Accuracy of students over the number of teachers, and refused queries '
    'over the threshold](../docs/pate_sweeps.png)',
  ]
  for mechanism, key, head in (
    ('gnmax', 'num_teachers', 'GNMax: student, %, by teachers'),
    ('confident', 'agreement', 'Confident GNMax, 250 teachers, by threshold'),
  ):
    same = [run for run in runs if run['mechanism'] == mechanism]
    values = sorted({run[key] for run in same})
    lines = [[head, *(f'{value:g}' for value in values)]]
    for epsilon in sorted({run['epsilon'] for run in same}):
      rows = {'student, %': lambda run: 100 * run['accuracy']}
      if mechanism == 'confident':
        rows['refused, %'] = lambda run: 100 * pate_sweeps_figure.refused(run)
      for name, of in rows.items():
        cells = [
          results_document.mean_cell(
            [
              of(run)
              for run in same
              if run[key] == value and run['epsilon'] == epsilon
            ],
            1,
          )
          for value in values
        ]
        lines.append([f'epsilon {epsilon:g}, {name}', *cells])
    parts.append(results_document.markdown_table(lines))
  parts.append('From `experiments/results/pate_sweeps_mnist.json`.')
  return parts


def _neighbors(found):
  lines = [
    [
      'Private-kNN',
      'epsilon',
      'queries',
      'neighbours',
      'answers right, %',
      'student, %',
    ]
  ]
  keys = ('sampling_probability', 'num_neighbors', 'num_queries', 'epsilon')
  runs = found['runs']
  for key, same in sorted(grouped(runs, *keys).items()):
    lines.append(
      [
        'all rows' if key[0] == 1 else f'samples of {key[0]:.0%}',
        f'{max(run["spent"] for run in same):.3f}',
        f'{np.mean([run["answers"] for run in same]):.0f}',
        str(key[1]),
        median_cell([run['correct'] for run in same]),
        median_cell([run['accuracy'] for run in same]),
      ]
    )
  lines.append(['published (screened)', '0.47', '735', '300', '', '98.8'])
  seeds = len({run['seed'] for run in runs})
  return [
    '### Private-kNN on mnist',
    f'{found["note"]}. Queries and student as above; without a check. Median '
    f'of {seeds} seeds (least to largest) at delta {found["delta"]:g}, '
    'neighbours with one row more; epsilon is the whole cost by the accountant '
    'pld. Numbers of queries and of neighbours were chosen on training rows '
    '(`pate_knn_stand_in.json`); that choice is not part of epsilon.',
    results_document.markdown_table(lines),
    'From `experiments/results/pate_knn_mnist.json`.',
  ]


def _voting(found):
  figure = [run for run in found['runs'] if run['part'] == 'figure']
  queries = [run for run in found['runs'] if run['part'] == 'queries']
  parts = [
    '### DP-AD',
    'The probability of a correct answer. Left: one query about half-moons, by '
    'its epsilon, with ten shards (figure 8 of DP-NF). Right: Life Science, '
    'with three columns of each anomaly from the tails, epsilon 1 at delta '
    f'{found["delta"]:g} for all queries together, beside `AnomalyDetector` on '
    'a DP-NF of the same epsilon.',
    '![Probability of a correct answer over epsilon, and over the number of '
    'queries](../docs/anomaly_voting.png)',
  ]
  for runs, name, what in (
    (figure, 'epsilons', 'half-moons, epsilon of one query'),
    (queries, 'queries', 'Life Science, number of queries'),
  ):
    if not runs:
      continue
    lines = [[what, *(f'{x:g}' for x in runs[0][name])]]
    for method, found_of in grouped(runs, 'method').items():
      same = [run['correct'] for run in found_of]
      lines.append(
        [
          method,
          *(
            results_document.mean_cell([row[i] for row in same])
            for i in range(len(same[0]))
          ),
        ]
      )
    parts.append(results_document.markdown_table(lines))
  seeds = len({run['seed'] for run in found['runs']})
  parts.append(
    f'Seeds: {seeds}; means and, where there are several, standard deviations. '
    'From `experiments/results/pate_anomaly.json`. Flows are spline flows, '
    'mixtures have eight components: no better, no worse, where the paper has '
    'flows above mixtures. The private density is ahead for any number of '
    'queries; DP-AD comes near it for few, with many shards.'
  )
  return parts


def _load(folder, name):
  path = pathlib.Path(folder) / name
  if not path.exists():
    return None
  found = json.loads(path.read_text())
  return None if found['smoke'] or not found['runs'] else found


if __name__ == '__main__':
  results_document.run('pate', 'experiments/pate_tables.py', section)
