r"""Columns of synthetic tables over the real ones: figure 3 of DP-HFlow.

Draws the histogram of every column of held-out rows, with those of rows made by
DP-HFlow and by the library's default model, and measures how far they are:

    python -m experiments.hflow_marginals --dataset=adult --epsilon=1 \
      --output=experiments/results/hflow_marginals_adult.json \
      --figure=docs/hflow_marginals_adult.png

The real rows are drawn as they are, without privacy. Seeds make the results
reproducible and therefore not private.
"""

from __future__ import annotations

from absl import app, flags

from experiments import marginal_figure, table_settings
from tfdpflows import evaluation

SETTINGS = {
  'DP-HFlow': {'model': 'hflow'},
  'conditional histograms': {'model': 'histogram'},
}
_MEASURES = ('total_variation', 'wasserstein')


def run(figure=None, **options):
  """Fits both models, samples, measures every column and draws it.

  Args:
    figure: PNG file of the last run of each model, or `None`.
    **options: see `table_settings.run`.

  Returns:
    What `table_settings.run` does, with `columns` in every run: by column its
    total variation, and the Wasserstein distance as a share of the declared
    range, `None` for categories.
  """
  made, real = {}, None

  def look(setting, holdout, rows, schema):
    nonlocal real
    real = holdout, schema
    made[setting] = rows
    marginals = evaluation.compare(holdout, rows, schema).marginals
    return {
      'columns': {
        column: {
          name: float(found[name]) if found[name] == found[name] else None
          for name in _MEASURES
        }
        for column, found in marginals.iterrows()
      }
    }

  results = table_settings.run(SETTINGS, look=look, **options)
  if figure:
    drawn = marginal_figure.draw(real[0], made, real[1])
    drawn.savefig(figure, dpi=80)
  return results


def main(argv):
  """Runs what the flags ask for."""
  table_settings.main(argv, run, figure=flags.FLAGS.figure)


if __name__ == '__main__':
  table_settings.define_flags()
  app.run(main)
