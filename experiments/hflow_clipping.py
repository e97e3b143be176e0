r"""Clipping methods and sparsity levels: figure 4 of DP-HFlow.

Trains the same DP-HFlow with the same noise, rows and steps, and clips in
different ways:

    python -m experiments.hflow_clipping --dataset=adult --epsilon=1 \
      --output=experiments/results/hflow_clipping_adult.json \
      --figure=docs/hflow_clipping_adult.png

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import functools

from absl import app
from matplotlib.figure import Figure

from experiments import table_settings

SPARSITY = (0.25, 0.5, 0.75, 0.9)
METHODS = ('flat', 'per_layer', 'per_unit')


def settings():
  """Returns the settings by name: arguments of `TabularSynthesizer`.

  #### Example

  >>> settings()['sparsity 0.5']
  {'model': 'hflow', 'clipping': 'sparsification', 'sparsity': 0.5}
  """
  found = {m: {'model': 'hflow', 'clipping': m} for m in METHODS}
  for sparsity in SPARSITY:
    found[f'sparsity {sparsity:g}'] = {
      'model': 'hflow',
      'clipping': 'sparsification',
      'sparsity': sparsity,
    }
  return found


run = functools.partial(table_settings.run, settings())


def draw(results):
  """Returns a figure: scores by clipping method, and by sparsity level.

  Args:
    results: what `run` returned; the first epsilon is drawn.
  """
  epsilon = results['runs'][0]['epsilon']
  figure = Figure(figsize=(9, 3.6), layout='constrained')
  left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.3))
  levels = {0.0: 'flat', **{s: f'sparsity {s:g}' for s in SPARSITY}}
  for number, name in enumerate(results['runs'][0]['scores']):
    of = lambda run, name=name: run['scores'][name]
    find = functools.partial(
      table_settings.mean_and_spread, results, epsilon=epsilon, of=of
    )
    for panel, places in (
      (left, dict(enumerate(METHODS))),
      (right, levels),
    ):
      found = {x: find(setting) for x, setting in places.items()}
      found = {x: pair for x, pair in found.items() if pair}
      means, spreads = zip(*found.values())
      panel.errorbar(
        list(found),
        means,
        spreads,
        fmt='o' if panel is left else 'o-',
        capsize=3,
        color=f'C{number}',
        label=table_settings.LABELS[name],
      )
  left.set_xticks(range(len(METHODS)), [m.replace('_', ' ') for m in METHODS])
  left.set_xlim(-0.5, len(METHODS) - 0.5)
  left.set_xlabel('what is clipped')
  left.set_ylabel('mean of nine classifiers')
  right.set_xlabel('sparsity level')
  right.legend(frameon=False, fontsize=8)
  figure.suptitle(f'DP-HFlow, {results["dataset"]}, epsilon {epsilon:g}')
  return figure


def main(argv):
  """Runs what the flags ask for."""
  table_settings.main(argv, run, draw)


if __name__ == '__main__':
  table_settings.define_flags()
  app.run(main)
