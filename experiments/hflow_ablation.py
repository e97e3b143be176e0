r"""What the parts of DP-HFlow are worth, beside the library's other models.

    python -m experiments.hflow_ablation --dataset=adult --epsilon=1 \
      --output=experiments/results/hflow_ablation_adult.json \
      --figure=docs/hflow_ablation.png

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import functools

from absl import app
from matplotlib.figure import Figure

from experiments import table_settings


def settings():
  """Returns the settings by name: arguments of `TabularSynthesizer`."""
  return {
    'DP-HFlow': {'model': 'hflow'},
    'LU for low rank': {'model': 'hflow', 'linear': 'lu'},
    'no linear layers': {'model': 'hflow', 'linear': 'none'},
    'a network for each block': {'model': 'hflow', 'shared': False},
    'one block': {'model': 'hflow', 'num_blocks': 1},
    'splines': {'model': 'spline'},
    'conditional histograms': {'model': 'histogram'},
  }


run = functools.partial(table_settings.run, settings())


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


def main(argv):
  """Runs what the flags ask for."""
  table_settings.main(argv, run, draw)


if __name__ == '__main__':
  table_settings.define_flags()
  app.run(main)
