r"""Draws what synthetic tables are worth over epsilon, and over time.

    python -m experiments.tabular_figure --figure=docs/tabular_scores.png

Reads the JSON files that `experiments.tabular_synthesis` and
`experiments.peers.compare` wrote.
"""

from __future__ import annotations

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments import flag_values, public_tables
from experiments.results_document import ROOT, load_results
from experiments.tabular_tables import NAMES, NOT_PRIVATE

_EPSILONS = (0.5, 1, 2, 4, 8)
_EPSILON = 1.0


def draw(contents):
  """Returns a figure with a column of panels for each data set.

  Above, macro-F1 over epsilon, with the spread over seeds; below, macro-F1 over
  the seconds of a fit at epsilon 1. A dashed line is what classifiers reach
  that learn from the real rows.

  Args:
    contents: sequence of what `tabular_synthesis.run` returned.

  Raises:
    ValueError: if there are no results.
  """
  datasets = [
    name
    for name in (*public_tables.NAMES, 'randhie')
    if any(content['dataset'] == name for content in contents)
  ]
  if not datasets:
    raise ValueError('There are no results to draw; run the experiments first.')
  figure = Figure(figsize=(3.2 * len(datasets), 6), layout='constrained')
  panels = figure.subplots(2, len(datasets), sharey='col', squeeze=False)
  for (above, below), dataset in zip(panels.T, datasets):
    above.set_title(dataset, fontsize=10)
    for content in contents:
      if content['dataset'] == dataset:
        _over_epsilon(above, content)
        _over_time(below, content)
        _real(content, above, below)
    above.set_xscale('log', base=2)
    above.set_xlim(0.4, 10)
    above.set_xticks(_EPSILONS, [f'{epsilon:g}' for epsilon in _EPSILONS])
    below.set_xscale('log')
    below.set_xlim(10, 5000)
    above.set_xlabel('epsilon')
    below.set_xlabel('seconds to fit, epsilon 1')
    for panel in (above, below):
      panel.grid(color='#e5e5e5')
  for panel in panels[:, 0]:
    panel.set_ylabel('macro-F1 on real rows')
  found = {}
  for panel in panels.flat:
    handles, labels = panel.get_legend_handles_labels()
    found.update(zip(labels, handles))
  figure.legend(
    list(found.values()),
    list(found),
    loc='outside lower center',
    ncols=min(len(found), 6),
    frameon=False,
  )
  return figure


def _over_epsilon(panel, content):
  points = []
  for epsilon in sorted({run['epsilon'] for run in content['runs']}):
    if epsilon < NOT_PRIVATE:
      points.append((epsilon, *_scores(content, epsilon)))
  if points:
    style = {'marker': 'o', 'capsize': 3, 'ms': 4, **_style(content)}
    panel.errorbar(*zip(*points), **style)


def _over_time(panel, content):
  runs = [run for run in content['runs'] if run['epsilon'] == _EPSILON]
  if runs:
    mean, spread = _scores(content, _EPSILON)
    seconds = np.mean([run['seconds']['fit'] for run in runs])
    style = {'marker': 'o', 'capsize': 3, **_style(content)}
    panel.errorbar([seconds], [mean], [spread], **style)


def _real(content, *panels):
  for panel in panels if content.get('real') else ():
    panel.axhline(
      content['real']['macro_f1'], color='#888888', ls='--', label='real rows'
    )


def _scores(content, epsilon):
  found = [
    run['scores']['macro_f1']
    for run in content['runs']
    if run['epsilon'] == epsilon
  ]
  return np.mean(found), np.std(found, ddof=1) if len(found) > 1 else 0.0


def _style(content):
  method = content.get('method', 'flow')
  number = list(NAMES).index(method)
  # There are ten colours.
  style = {'color': f'C{number}', 'label': NAMES[method]}
  return {**style, 'ls': ':'} if number > 9 else style


def load(folder):
  """Returns the contents of `tabular_*.json`, smoke runs left out."""
  return [content for content, _ in load_results(folder, 'tabular_*.json')]


def main(argv):
  """Draws what the flags ask for."""
  options = flag_values.read(argv)
  draw(load(options.folder)).savefig(options.figure, dpi=80)


if __name__ == '__main__':
  flags.DEFINE_string(
    'folder', str(ROOT / 'experiments' / 'results'), 'Folder of the JSON files.'
  )
  flags.DEFINE_string('figure', None, 'PNG file to write.', required=True)
  app.run(main)
