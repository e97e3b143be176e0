r"""Writes the tables and the figure of the density experiments from their JSON.

    python -m experiments.density_tables

Replaces the section of `experiments/RESULTS.md` between the two markers, and
`docs/density_lifesci.png`. Nothing is typed by hand but the paper's numbers.
"""

from __future__ import annotations

import json
import os

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments import (
  density_estimation,
  density_methods,
  results_document,
)

# Waites & Cummings 2021 on Life Science, read off their figure: nats by
# epsilon. Means of splits of theirs; their gdp is asymptotic.
PAPER = {
  'paper: DP-NF, gdp': {0.2: 8.5, 1.0: 9.4, 2.0: 10.2, 4.0: 10.75},
  'paper: DP-NF, rdp': {1.0: 8.7, 2.0: 9.3, 4.0: 10.1},
  'paper: DP-MoG, rdp': {1.0: 5.7, 2.0: 8.7, 4.0: 9.1},
}
_STYLES = {
  'DP-NF, pld': {'color': '#009e73', 'linewidth': 3.0},
  'DP-MoG, pld': {'color': '#0072b2', 'linewidth': 2.0},
  'full Gaussian, pld': {'color': '#777777', 'linewidth': 1.5},
  'paper: DP-NF, gdp': {'color': '#009e73', 'linestyle': ':'},
  'paper: DP-NF, rdp': {'color': '#56b4a0', 'linestyle': '-.'},
  'paper: DP-MoG, rdp': {'color': '#0072b2', 'linestyle': ':'},
}
_TUNING = (
  'The recipe of DP-NF was chosen by some sixty fits to training rows of split '
  '0 (21,660 to fit, 2,400 to compare) and then frozen. The test rows of split '
  '0 were not looked at; those of the other splits are among the rows that it '
  'was chosen on. That choice is not part of any epsilon here.'
)
_CEILINGS = {'MAF': '#d55e00', 'spline flow': '#cc79a7'}


def section(folder):
  """Returns the section of the density experiments, in Markdown.

  Args:
    folder: of the JSON files, whose names begin with what they hold; those of
      smoke tests are left out.
  """
  parts = ['## Private densities (DP-NF)']
  for kind, write in _WRITERS.items():
    found = results_document.load_results(folder, f'{kind}_*.json')
    # Life Science is what the paper is about.
    found.sort(key=lambda pair: 'lifesci' not in pair[1])
    for content, name in found:
      parts += write(content)
      parts.append(f'From `experiments/results/{name}`.')
  return '\n\n'.join(parts)


def draw(content):
  """Returns a figure of log-likelihood over epsilon, beside the paper's.

  Args:
    content: of `density_lifesci.json`.
  """
  summary = density_estimation.summarize(content['runs'])
  figure = Figure(figsize=(9.5, 5), layout='constrained')
  ax = figure.subplots()
  for method, style in _STYLES.items():
    points = PAPER.get(method) or {
      e['epsilon']: e['log_prob'] for e in summary if e['method'] == method
    }
    if points:
      places = sorted(points)
      values = [points[place] for place in places]
      ax.plot(places, values, marker='o', label=method, **style)
  for entry in summary:
    if entry['method'] in _CEILINGS:
      ax.axhline(
        entry['log_prob'],
        color=_CEILINGS[entry['method']],
        linestyle='--',
        label=f'{entry["method"]}, not private',
      )
  ax.set_xscale('log')
  ax.set_xticks([0.2, 0.5, 1, 2, 4], ['0.2', '0.5', '1', '2', '4'])
  ax.minorticks_off()
  ax.set_xlabel(f'epsilon (delta = {content["delta"]:g})')
  ax.set_ylabel('test log-likelihood, nats per row')
  ax.set_title('Life Science, rows over their largest norm', loc='left')
  ax.grid(alpha=0.3)
  figure.legend(loc='outside right upper', frameon=False, fontsize=9)
  return figure


def _estimation(content):
  summary = density_estimation.summarize(content['runs'])
  epsilons = sorted({e['epsilon'] for e in summary if e['epsilon']})
  lines = _by_epsilon(summary, epsilons)
  parts = [
    f'### {content["dataset"]}',
    f'Test log-likelihood in nats per row, mean and standard deviation of 10 '
    f'splits (or of as many as said), by epsilon at delta = '
    f'{content["delta"]:g}. Rows are {content["scaling"]}. {content["note"]}',
    'The private full Gaussian is a DP-MoG of one component, with the wide one '
    'of weight 0.005 that a DP-MoG adds.',
  ]
  if content['dataset'] != 'lifesci':
    return [
      *parts,
      results_document.markdown_table(lines),
      *_side_by_side(summary),
    ]
  for method, points in PAPER.items():
    cells = [f'{points[e]:g}' if e in points else '' for e in epsilons]
    lines.append([method, *cells])
  return [
    *parts,
    "![Test log-likelihood over epsilon, beside the paper's]"
    '(../docs/density_lifesci.png)',
    results_document.markdown_table(lines),
    _TUNING,
    *_fair_test(content['runs'], epsilons),
    *_side_by_side(summary),
  ]


def _by_epsilon(summary, epsilons, usual=10):
  """Lines of a table: log-likelihood by method and epsilon."""
  lines = [['method', *(f'{e:g}' for e in epsilons)]]
  for method in density_methods.METHODS:
    cells = {
      e['epsilon']: _cell(e, usual) for e in summary if e['method'] == method
    }
    if None in cells:
      lines.append([f'{method}, not private', cells[None]])
    elif cells:
      asymptotic = ' (asymptotic)' if method.endswith('gdp') else ''
      lines.append([method + asymptotic, *(cells.get(e, '') for e in epsilons)])
  return lines


def _fair_test(runs, epsilons):
  """The split that the recipe was not chosen on, beside the others."""
  alone, others = (
    density_estimation.summarize([r for r in runs if (r['split'] == 0) == is_0])
    for is_0 in (True, False)
  )
  of = lambda summary, method: {
    e['epsilon']: e['log_prob'] for e in summary if e['method'] == method
  }
  below = ' and '.join(
    ', '.join(
      f'{of(others, method)[epsilon] - value:.2f}'
      for epsilon, value in sorted(of(alone, method).items())
    )
    + f' ({method})'
    for method in ('DP-NF, pld', 'full Gaussian, pld')
    if of(others, method).keys() >= of(alone, method).keys()
  )
  return [
    'Split 0 alone is thus the fair test, and the one by which rows of fewer '
    'than 10 splits compare. In the order of the columns it lies below the '
    f'mean of the other splits by {below}:',
    results_document.markdown_table(_by_epsilon(alone, epsilons, 1)),
  ]


def _side_by_side(summary):
  """Epsilon of the same runs by every accountant, and how long they took."""
  accountants = ('pld', 'rdp', 'gdp')
  lines = [
    ['run', 'budget', *accountants, 'gdp below pld', 'splits', 'seconds']
  ]
  for entry in sorted(summary, key=lambda e: (e['method'], e['epsilon'] or 0)):
    if entry['method'].startswith('DP-NF'):
      found = entry['epsilons']
      lines.append(
        [
          entry['method'],
          f'{entry["epsilon"]:g}',
          *(f'{found[accountant]:.3f}' for accountant in accountants),
          f'{1 - found["gdp"] / found["pld"]:.1%}',
          f'{entry["splits"]}',
          f'{entry["seconds"]:.0f}',
        ]
      )
  if len(lines) == 1:
    return []
  return [
    'Epsilon of the same runs by each accountant (gdp is asymptotic, no upper '
    'bound), and the seconds that all their splits took together on 2 cores, '
    'some of them shared with other work:',
    results_document.markdown_table(lines),
  ]


def _gallery(content):
  epsilons = list(dict.fromkeys(run['epsilon'] for run in content['runs']))
  epsilons = [*sorted(e for e in epsilons if e), None]
  lines = [
    ['data', 'scaling', 'full Gaussian, not private', *map(_label, epsilons)]
  ]
  for data in dict.fromkeys(run['dataset'] for run in content['runs']):
    runs = {r['epsilon']: r for r in content['runs'] if r['dataset'] == data}
    gaussian = f'{runs[None]["full_gaussian"]:.2f}'
    cells = [
      f'{runs[e]["log_prob"]:.2f}' if e in runs else '' for e in epsilons
    ]
    lines.append([data, runs[None]['scaling'], gaussian, *cells])
  return [
    '### Two dimensions',
    '![Data, private densities at several epsilon, and one that is not '
    'private](../docs/density_2d.png)',
    'Test log-likelihood of the pictures in nats per point, split 0, delta = '
    f'{content["runs"][-1]["delta"]:g}.',
    results_document.markdown_table(lines),
  ]


def _anomalies(content):
  areas = {
    f'AUC, {columns} replaced': lambda run, c=columns: run['anomalies'][c][
      'auc'
    ]
    for columns in content['runs'][0]['anomalies']
  }
  return [
    f'### Anomalies: {content["dataset"]}',
    'Held-out rows against rows in which so many of their columns were '
    f'replaced by values from the tails, {content["tail"]:.0%} at either end; '
    'area under the ROC curve, mean of the splits.',
    _means(content['runs'], 'method', areas),
  ]


def _regression(content):
  return [
    f'### Regression on synthetic rows: {content["dataset"]}',
    f'Each column predicted from the others by its {content["neighbors"]} '
    'nearest neighbours among the rows learned from; R2 on held-out rows, mean '
    'of the columns and splits.',
    _means(content['runs'], 'method', {'R2': lambda run: run['r2']}),
  ]


def _marginals(content):
  return [
    f'### Synthetic rows: {content["dataset"]}',
    '![Histograms of the columns and densities of two principal components, '
    'of real rows and of synthetic ones](../docs/density_marginals.png)',
    'Kolmogorov-Smirnov distance from held-out rows, mean of the columns.',
    _means(content['runs'], 'method', {'distance': lambda run: run['ks']}),
  ]


def _priors(content):
  columns = {
    'nats': lambda run: run['log_prob'],
    'flow alone': lambda run: run['flow'],
    'full Gaussian, not private': lambda run: run['full_gaussian'],
  }
  return [
    f'### Priors and initialization: {content["dataset"]}',
    f'Test log-likelihood in nats per row, mean of the splits; rows are '
    f'{content["scaling"]}. The public prior comes from '
    f'{content["public_rows"]} public rows. All variants have the same spline '
    'flow; the affine one of the recipe gives more from a mixture (see Two '
    'dimensions), and from one Gaussian leaves many rows without density.',
    _means(content['runs'], 'variant', columns, digits=3),
  ]


# By the first word of a file's name, in the order of the document.
_WRITERS = {
  'density': _estimation,
  'gallery': _gallery,
  'anomaly': _anomalies,
  'marginals': _marginals,
  'regression': _regression,
  'priors': _priors,
}


def _means(runs, kind, columns, digits=4):
  """A table of means over splits, by what a run is called and its epsilon."""
  groups = {}
  for run in runs:
    groups.setdefault((run[kind], run['epsilon']), []).append(run)
  lines = [[kind, 'epsilon', 'splits', *columns]]
  # Those without privacy first.
  for name, epsilon in sorted(groups, key=lambda key: key[1] is not None):
    same = groups[name, epsilon]
    means = [
      np.mean([value(run) for run in same]) for value in columns.values()
    ]
    cells = [f'{mean:.{digits}f}' for mean in means]
    lines.append([name, _label(epsilon), f'{len(same)}', *cells])
  return results_document.markdown_table(lines)


def _label(epsilon):
  return 'not private' if epsilon is None else f'epsilon {epsilon:g}'


def _cell(entry, usual):
  """Mean, standard deviation, and number of splits where it is another."""
  deviation = f' ± {entry["std"]:.2f}' if entry['std'] is not None else ''
  splits = f' ({entry["splits"]})' if entry['splits'] != usual else ''
  return f'{entry["log_prob"]:.2f}{deviation}{splits}'


def main(argv):
  """Writes the section and the figure."""
  results_document.main(
    argv, 'density', 'experiments/density_tables.py', section
  )
  options = flags.FLAGS
  lifesci = os.path.join(options.folder, 'density_lifesci.json')
  if options.plot and os.path.exists(lifesci):
    with open(lifesci, encoding='utf-8') as file:
      draw(json.load(file)).savefig(options.plot, dpi=100)


def _define_flags():
  results_document.define_flags()
  flags.DEFINE_string(
    'plot',
    str(results_document.ROOT / 'docs' / 'density_lifesci.png'),
    'PNG file to write.',
  )


if __name__ == '__main__':
  _define_flags()
  app.run(main)
