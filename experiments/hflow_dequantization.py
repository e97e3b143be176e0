r"""Uniform against variational dequantization: figure 5 of DP-HFlow.

    python -m experiments.hflow_dequantization --dataset=adult \
      --epsilon=1,2,4,8 \
      --output=experiments/results/hflow_dequantization_adult.json \
      --figure=docs/hflow_dequantization_adult.png

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import functools

from absl import app
from matplotlib.figure import Figure

from experiments import table_settings

KINDS = ('uniform', 'variational')


def settings():
  """Returns the settings by name: arguments of `TabularSynthesizer`."""
  return {k: {'model': 'hflow', 'dequantization': k} for k in KINDS}


run = functools.partial(table_settings.run, settings())


def draw(results):
  """Returns a figure: scores, and log-likelihood of held-out rows, by epsilon.

  Args:
    results: what `run` returned.
  """
  epsilons = sorted({run['epsilon'] for run in results['runs']})
  panels = {
    table_settings.LABELS[name]: lambda run, name=name: run['scores'][name]
    for name in results['runs'][0]['scores']
  }
  panels['held-out nats per row'] = lambda run: run['log_likelihood']
  figure = Figure(figsize=(3.1 * len(panels), 3.2), layout='constrained')
  axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for panel, (label, of) in zip(axes, panels.items()):
    for kind in KINDS:
      found = [
        table_settings.mean_and_spread(results, kind, epsilon, of)
        for epsilon in epsilons
      ]
      points = [(e, *pair) for e, pair in zip(epsilons, found) if pair]
      if points:
        panel.errorbar(*zip(*points), fmt='o-', capsize=3, label=kind)
    panel.set_xscale('log', base=2)
    panel.set_xticks(epsilons, [f'{epsilon:g}' for epsilon in epsilons])
    panel.set_xlabel('epsilon')
    panel.set_title(label, fontsize=10)
  axes[0].legend(frameon=False)
  figure.suptitle(f'DP-HFlow, {results["dataset"]}')
  return figure


def main(argv):
  """Runs what the flags ask for."""
  table_settings.main(argv, run, draw)


if __name__ == '__main__':
  table_settings.define_flags(epsilons=(1.0, 2.0, 4.0, 8.0))
  app.run(main)
