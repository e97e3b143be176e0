"""A picture of the scores of several settings of the synthesizer."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments import table_settings


def draw(results):
  """Returns a figure: the scores of every setting, best at the top.

  Args:
    results: what `run` returned; the first epsilon is drawn.
  """
  epsilon = results['runs'][0]['epsilon']
  scores = list(results['runs'][0]['scores'])
  found = {
    setting: [
      table_settings.mean_and_spread(
        results, setting, epsilon, lambda run, name=name: run['scores'][name]
      )
      for name in scores
    ]
    for setting in {run['setting']: None for run in results['runs']}
  }
  order = sorted(found, key=lambda setting: found[setting][0])
  figure = Figure(figsize=(8, 0.42 * len(order) + 1.3), layout='constrained')
  axes = figure.subplots()
  for number, name in enumerate(scores):
    means, spreads = zip(*(found[setting][number] for setting in order))
    axes.errorbar(
      means,
      range(len(order)),
      xerr=spreads,
      fmt='o',
      capsize=3,
      label=table_settings.LABELS[name],
    )
  axes.set_yticks(range(len(order)), order)
  axes.set_xlabel('mean of nine classifiers')
  axes.grid(axis='y', color='#dddddd')
  axes.legend(frameon=False, fontsize=8)
  axes.set_title(f'{results["dataset"]}, epsilon {epsilon:g}', fontsize=10)
  return figure
