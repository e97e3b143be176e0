r"""Draws students by number of teachers, and refusals by threshold.

    python -m experiments.pate_sweeps_figure --output=docs/pate_sweeps.png

From `pate_sweeps_mnist.json`, which `experiments.pate_students` wrote.
"""

from __future__ import annotations

import json

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments import flag_values, results_document


def draw(results):
  """Returns the figure of the runs of `pate_students`.

  Left: accuracy of students of `GNMax` by number of teachers. Right: share of
  queries that the check of `ConfidentGNMax` refuses, by its threshold as a
  share of the teachers. Lines are means, dots are seeds.

  Args:
    results: what `pate_students.run` returned.
  """
  figure = Figure(figsize=(10, 4), layout='constrained')
  left, right = figure.subplots(1, 2)
  runs = [run for run in results['runs'] if run['mechanism'] == 'gnmax']
  for epsilon in sorted({run['epsilon'] for run in runs}):
    same = [run for run in runs if run['epsilon'] == epsilon]
    sigma = same[0]['sigma']
    label = f'epsilon {epsilon:g} (noise {sigma:.0f} votes)'
    _line(left, same, 'num_teachers', lambda run: run['accuracy'], label)
  counts = sorted({run['num_teachers'] for run in runs})
  left.set(
    xscale='log',
    xlabel='number of teachers',
    ylabel='accuracy of the student',
    ylim=(0, 1.03),
    title='GNMax, 200 queries',
  )
  left.set_xticks(counts, [str(count) for count in counts])
  left.minorticks_off()
  runs = [run for run in results['runs'] if run['mechanism'] == 'confident']
  for epsilon in sorted({run['epsilon'] for run in runs}):
    same = [run for run in runs if run['epsilon'] == epsilon]
    sigma = same[0]['sigma_threshold']
    label = f'epsilon {epsilon:g} (noise of the check {sigma:.0f} votes)'
    _line(right, same, 'agreement', refused, label)
  right.set(
    xlabel='threshold, as a share of the teachers',
    ylabel='share of queries that are refused',
    ylim=(0, None),
    title='Confident GNMax, 250 teachers',
  )
  for axes in (left, right):
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
  return figure


def refused(run):
  """Returns the share of the queries checked in a run that were refused.

  #### Example

  >>> refused({'refused': 30, 'checked': 120})
  0.25
  """
  return run['refused'] / run['checked']


def _line(axes, runs, x, y, label):
  places = sorted({run[x] for run in runs})
  found = [[y(run) for run in runs if run[x] == place] for place in places]
  means = [np.mean(values) for values in found]
  (line,) = axes.plot(places, means, label=label)
  for place, values in zip(places, found):
    axes.plot(
      [place] * len(values), values, 'o', markersize=4, color=line.get_color()
    )


def main(argv):
  """Draws the figure."""
  options = flag_values.read(argv)
  with open(options.results, encoding='utf-8') as file:
    results = json.load(file)
  draw(results).savefig(options.output, dpi=100)


def _define_flags():
  folder = results_document.ROOT / 'experiments' / 'results'
  flags.DEFINE_string(
    'results', str(folder / 'pate_sweeps_mnist.json'), 'JSON file to read.'
  )
  flags.DEFINE_string('output', None, 'PNG file to write.', required=True)


if __name__ == '__main__':
  _define_flags()
  app.run(main)
