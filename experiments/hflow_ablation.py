r"""What the parts of DP-HFlow are worth, beside the library's other models.

    python -m experiments.hflow_ablation --dataset=adult --epsilon=1 \
      --output=experiments/results/hflow_ablation_adult.json \
      --figure=docs/hflow_ablation_adult.png

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import functools

from absl import app

from experiments import setting_figure, table_settings


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


def main(argv):
  """Runs what the flags ask for."""
  table_settings.main(argv, run, setting_figure.draw)


if __name__ == '__main__':
  table_settings.define_flags()
  app.run(main)
