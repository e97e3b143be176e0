r"""The table of `experiments.people` in RESULTS.md, and its figure.

python -m experiments.people_tables --figure=docs/people.png
"""

from __future__ import annotations

import numpy as np
from absl import app, flags

from experiments import people, results_document
from experiments.results_document import markdown_table, mean_cell

_SCORES = {
  'nats': 'nats of held-out rows',
  'auroc': 'AUROC',
  'marginal_total_variation': 'column TV',
  'pair_total_variation': 'pair TV',
}
_NAMES = {
  'people': "people, rows count the same ('rows')",
  'people, units': "people, a random row of each ('units')",
  'rows': 'rows, by group privacy',
}
# Lines that lie on each other show both.
_STYLES = {'people': 'C0o-', 'people, units': 'C1s--', 'rows': 'C2^:'}


def section(folder):
  """Returns the section of the results in a folder, as Markdown."""
  parts = [
    '## People as the unit',
    'At most k rows of each person are used. "Rows, by group privacy" is a fit '
    'of rows, of the same rows, at the epsilon and delta of which k rows have '
    'those that are stated. All are scored on all rows of a fifth of the '
    'people, who were held out, at most 20,000. "Private k" is '
    '`max_rows_epsilon`, a twentieth of epsilon. Three quick classifiers '
    'predict the target.',
  ]
  for content, _ in results_document.load_results(folder, 'people_*.json'):
    parts.append(_table(content))
  return '\n\n'.join(parts)


def _table(content):
  lines = [['k', 'protects', *_SCORES.values(), 'fit, s']]
  for k in dict.fromkeys(run['rows_per_person'] for run in content['runs']):
    for method in people.METHODS:
      runs = [
        run
        for run in content['runs']
        if (run['method'], run['rows_per_person']) == (method, k)
      ]
      if not runs:
        continue
      cells = [
        mean_cell([run.get(score) for run in runs], 3) for score in _SCORES
      ]
      seconds = np.mean([run['fit_seconds'] for run in runs])
      lines.append(
        [str(k or 'private'), _NAMES[method], *cells, f'{seconds:.0f}']
      )
  seeds = len({run['seed'] for run in content['runs']})
  return (
    f'### {content["dataset"]}: {content["rows"]:,} rows of '
    f'{content["people"]:,} people\n\nepsilon {content["epsilon"]:g}, delta '
    f'{content["delta"]:g} for a person, target `{content["target"]}`, '
    f'{seeds} seed{"s" * (seeds != 1)}: mean (standard deviation).\n\n'
    f'{markdown_table(lines)}'
  )


def draw(contents):
  """Returns a figure of nats and pair TV over k, one row for each data set."""
  import matplotlib.pyplot as plt

  figure, axes = plt.subplots(
    len(contents), 2, figsize=(9, 2.8 * len(contents)), squeeze=False
  )
  for row, content in zip(axes, contents):
    for axis, score in zip(row, ('nats', 'pair_total_variation')):
      for method in people.METHODS:
        runs = [
          run
          for run in content['runs']
          if run['method'] == method and score in run
        ]
        ks = sorted({r['rows_per_person'] for r in runs} - {0})
        if not ks:
          continue
        of = lambda k, runs=runs, score=score: np.mean(
          [run[score] for run in runs if run['rows_per_person'] == k]
        )
        axis.plot(
          ks, [of(k) for k in ks], _STYLES[method], label=_NAMES[method]
        )
      if not axis.lines:
        axis.set_axis_off()
        continue
      axis.set_xscale('log', base=2)
      axis.set_xticks(people.ROWS_PER_PERSON, people.ROWS_PER_PERSON)
      axis.set_xlabel('rows of a person that are used')
      axis.set_ylabel(_SCORES[score])
      axis.set_title(content['dataset'])
  axes[0, 0].legend(fontsize=7)
  figure.tight_layout()
  return figure


def main(argv):
  script = 'experiments/people_tables.py'
  results_document.main(argv, 'people', script, section)
  if flags.FLAGS.figure:
    found = results_document.load_results(flags.FLAGS.folder, 'people_*.json')
    draw([content for content, _ in found]).savefig(flags.FLAGS.figure, dpi=100)


if __name__ == '__main__':
  results_document.define_flags()
  flags.DEFINE_string('figure', None, 'PNG file to write.')
  app.run(main)
