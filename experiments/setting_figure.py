"""A picture of the scores of several settings of the synthesizer."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments import table_settings


def draw(results):
  """Returns a figure: what every setting scores, and how long it takes.

  A panel for each epsilon has mean and standard deviation of the scores over
  the seeds, the last one the seconds of a fit at the first epsilon. The best
  setting at the first epsilon is at the top.

  Args:
    results: what `run` returned.
  """
  runs = results['runs']
  epsilons = sorted({run['epsilon'] for run in runs})
  first = runs[0]['epsilon']
  scores = list(runs[0]['scores'])

  def found(setting, epsilon, of):
    return table_settings.mean_and_spread(results, setting, epsilon, of)

  order = sorted(
    {run['setting']: None for run in runs if run['epsilon'] == first},
    key=lambda setting: found(
      setting, first, lambda run: run['scores'][scores[0]]
    ),
  )
  figure = Figure(
    figsize=(4.4 + 2.6 * len(epsilons), 0.42 * len(order) + 1.3),
    layout='constrained',
  )
  *panels, times = figure.subplots(1, len(epsilons) + 1, sharey=True)
  for axes, epsilon in zip(panels, epsilons):
    for name in scores:
      points = {
        place: found(
          setting, epsilon, lambda run, name=name: run['scores'][name]
        )
        for place, setting in enumerate(order)
      }
      points = {place: point for place, point in points.items() if point}
      means, spreads = zip(*points.values())
      axes.errorbar(
        means,
        list(points),
        xerr=spreads,
        fmt='o',
        capsize=3,
        label=table_settings.LABELS[name],
      )
    axes.set_title(f'{results["dataset"]}, epsilon {epsilon:g}', fontsize=10)
    axes.set_xlabel('mean of nine classifiers')
    axes.grid(axis='y', color='#dddddd')
  panels[0].set_yticks(range(len(order)), order)
  figure.legend(
    *panels[0].get_legend_handles_labels(),
    loc='outside lower center',
    ncols=len(scores),
    frameon=False,
  )
  seconds = [
    found(setting, first, lambda run: run['seconds']['fit'])[0]
    for setting in order
  ]
  times.barh(range(len(order)), seconds, color='#999999', height=0.5)
  times.set_xlabel(f'seconds to fit, epsilon {first:g}')
  return figure
