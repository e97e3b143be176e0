r"""What the parts of the default synthesizer are worth.

    python -m experiments.synthesizer_ablation --dataset=adult --epsilon=1 \
      --output=experiments/results/synthesizer_ablation_adult.json \
      --figure=docs/synthesizer_ablation_adult.png

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import functools

from absl import app

from experiments import setting_figure, table_settings


def settings():
  """Returns the settings by name: arguments of `TabularSynthesizer`.

  Each but the last three changes one thing in the first.

  #### Example

  >>> settings()['without a target']
  {}
  """
  target = {'target': table_settings.TARGET}
  return {
    'default, told the target': target,
    'target weighs as the others': {**target, 'target_weight': 1.0},
    'columns not matched': {**target, 'matching': False},
    'weights not averaged': {**target, 'ema_momentum': 0.0},
    'a tenth of the budget to marginals': {**target, 'marginal_share': 0.1},
    '8 bins': {**target, 'num_bins': 8},
    '32 bins': {**target, 'num_bins': 32},
    'training alone': {**target, 'adaptive_marginals': 0, 'num_bins': 16},
    'without a target': {},
    'splines': {'model': 'spline'},
    'DP-HFlow': {'model': 'hflow'},
  }


run = functools.partial(table_settings.run, settings())


def main(argv):
  """Runs what the flags ask for."""
  table_settings.main(argv, run, setting_figure.draw)


if __name__ == '__main__':
  table_settings.define_flags()
  app.run(main)
