"""A picture of what more rows are good for."""

from __future__ import annotations

from matplotlib.figure import Figure

_PANELS = {
  'auroc': 'AUROC',
  'average_precision': 'average precision',
  'pairs': 'error of pairs',
  'nats_lost': 'nats per row lost to the truth',
}


def draw(results):
  """Returns a figure: scores over the number of rows, a line for each epsilon.

  Args:
    results: what `scale.run` returned.
  """
  runs = sorted(results['runs'], key=lambda run: run['rows'])
  epsilons = sorted({run['epsilon'] for run in runs})
  figure = Figure(figsize=(11, 2.9), layout='constrained')
  for axes, (name, title) in zip(
    figure.subplots(1, len(_PANELS)).flat, _PANELS.items()
  ):
    for epsilon in epsilons:
      found = [run for run in runs if run['epsilon'] == epsilon]
      axes.plot(
        [run['rows'] for run in found],
        [run['scores'][name] for run in found],
        'o-',
        label=f'epsilon {epsilon:g}',
      )
    axes.axhline(
      results['truth'][name], color='#888888', linestyle=':', label='truth'
    )
    axes.set_xscale('log')
    axes.set_xlabel('rows')
    axes.set_title(title, fontsize=10)
    axes.grid(color='#dddddd')
  axes.legend(fontsize=8)
  return figure
