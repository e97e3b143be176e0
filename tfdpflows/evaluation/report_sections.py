"""Sections of the report: columns, associations, what the numbers mean."""

from __future__ import annotations

import html

import numpy as np

from tfdpflows.evaluation import report_figures, report_html

_LISTED_PAIRS = 10
# A column is pointed out when it is off by more than chance explains.
_FAR, _LEAST = 2.0, 0.05

METHODS = """
<section aria-labelledby="methods"><h2 id="methods">How to read the numbers</h2>
<p><b>Distance of a column</b>: total variation, half the sum of the absolute
differences between the shares of its cells. 0 means equal, 1 disjoint. Open
ranges are cut into at most 32 cells that hold equal shares of the real rows.
<b>By chance</b> is the distance that two samples of these sizes from one and
the same distribution would show on average.</p>
<p><b>Moved by</b>: the average distance a value has to be moved for the two
columns to agree (1-Wasserstein), as a share of the declared range.</p>
<p><b>Association</b>: Pearson's correlation for two numeric columns, the
correlation ratio for a numeric and a categorical one, Cramer's V for two
categorical ones; the last two are corrected for bias and have no sign.</p>
<p><b>Distance of a pair</b>: total variation over the cells of two columns
together, each cut into at most 8 cells unless it is categorical.</p>
</section>
"""


def marginals(comparison, real, synthetic, schema):
  """Returns the section that draws the columns over each other."""
  cards = []
  for field in schema.fields:
    row = comparison.marginals.loc[field.name]
    distance = row['total_variation']
    far = distance > max(_FAR * row['by_chance'], _LEAST)
    figure = report_figures.marginal_figure(
      real[field.name], synthetic[field.name], field
    )
    cards.append(
      f'<figure class="card"><header><h3>{html.escape(field.name)}</h3>'
      f'<span class="badge{" far" if far else ""}" title="total variation">'
      f'distance {distance:.3f}</span></header>{figure}</figure>'
    )
  return (
    '<section aria-labelledby="columns"><h2 id="columns">Columns</h2>'
    '<p class="lead">Shares of the rows in each table. Where the orange line '
    'or mark follows the blue bars, the synthetic column is right.</p>'
    '<ul class="legend"><li><span class="key real"></span>real</li>'
    '<li><span class="key made"></span>synthetic</li></ul>'
    f'<div class="grid">{"".join(cards)}</div>'
    f'{_marginal_table(comparison)}</section>'
  )


def _marginal_table(comparison):
  table = comparison.marginals
  missing = table[['missing_real', 'missing_synthetic']].to_numpy()
  with_missing = bool((missing > 0).any())
  heads = ['column', 'type', 'distance', 'by chance', 'moved by']
  if with_missing:
    heads += ['missing, real', 'missing, synthetic']
  rows = []
  for name, row in table.iterrows():
    moved = row['wasserstein']
    cells = [
      row['type'],
      f'{row["total_variation"]:.3f}',
      f'{row["by_chance"]:.3f}',
      '–' if np.isnan(moved) else f'{moved:.2%}',
    ]
    if with_missing:
      cells += [f'{row[f"missing_{k}"]:.1%}' for k in ('real', 'synthetic')]
    rows.append((name, cells, ''))
  return report_html.table(
    'Distances between the real and the synthetic column, and the share of the '
    'declared range that values are off by.',
    heads,
    rows,
  )


def associations(comparison):
  """Returns the section that draws the association matrices."""
  if len(comparison.marginals) < 2:
    return ''
  wide = ' wide' if len(comparison.marginals) > 16 else ''
  figures = [
    ('Real', comparison.association_real, 'in the real table'),
    ('Synthetic', comparison.association_synthetic, 'in the synthetic table'),
    (
      'Synthetic minus real',
      comparison.association_difference(),
      'synthetic minus real',
    ),
  ]
  cards = ''.join(
    f'<figure class="card"><figcaption>{name}</figcaption>'
    + report_figures.matrix_figure(matrix, f'Associations of columns, {what}')
    + '</figure>'
    for name, matrix, what in figures
  )
  return (
    '<section aria-labelledby="associations"><h2 id="associations">'
    'Associations</h2><p class="lead">How strongly each pair of columns '
    'depends on each other, from −1 to 1.</p><ul class="legend">'
    '<li><span class="key plus"></span>positive</li>'
    '<li><span class="key minus"></span>negative</li></ul>'
    f'<div class="matrices{wide}">{cards}</div>'
    f'{_pair_table(comparison)}</section>'
  )


def _pair_table(comparison):
  difference = comparison.association_difference()
  first, second = np.triu_indices(len(difference), k=1)
  pairs = comparison.pairs.to_numpy()[first, second]
  order = np.argsort(-pairs)[:_LISTED_PAIRS]
  names = list(difference.index)
  rows = []
  for k in order:
    i, j = first[k], second[k]
    numbers = [
      _signed(matrix.iloc[i, j])
      for matrix in (
        comparison.association_real,
        comparison.association_synthetic,
        difference,
      )
    ]
    name = f'{names[i]} × {names[j]}'
    rows.append((name, [f'{pairs[k]:.3f}', *numbers], ''))
  heads = ['pair', 'distance', 'real', 'synthetic', 'difference']
  what = 'The pairs' if len(pairs) <= len(rows) else f'The {len(rows)} pairs'
  return report_html.table(
    f'{what} of columns that differ most, with their associations.', heads, rows
  )


def _signed(value):
  text = f'{value:+.2f}'.replace('-', '−')
  return '0.00' if text[1:] == '0.00' else text
