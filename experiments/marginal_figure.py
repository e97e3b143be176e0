"""Histograms of the columns of a real table with synthetic ones over them."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from tfdpflows.evaluation import discretization

_BINS = 40
_MOST_CATEGORIES = 12
_PANELS_A_ROW = 4
_COLOURS = ('#d55e00', '#0072b2', '#009e73', '#cc79a7')


def draw(real, made, schema):
  """Returns a figure with one panel for each column.

  Categories are ordered by their real share, the 12 most frequent at most.
  Numbers are counted in 40 bins between the 0.5 % and 99.5 % quantile of the
  real column; what lies outside is in the bins at the ends.

  Args:
    real: DataFrame `[n, d]`.
    made: dict of DataFrames by the name of what made them, at most four.
    schema: the `TableSchema` of all.

  Returns:
    A `matplotlib.figure.Figure`.

  Raises:
    ValueError: if there is nothing to draw, or too much.
  """
  if not 1 <= len(made) <= len(_COLOURS):
    raise ValueError(
      f'made has {len(made)} tables; give 1 to {len(_COLOURS)} of them.'
    )
  fields = list(schema.fields)
  rows = -(-len(fields) // _PANELS_A_ROW)
  figure = Figure(figsize=(13, 2.4 * rows), layout='constrained')
  panels = figure.subplots(rows, _PANELS_A_ROW, squeeze=False).ravel()
  for panel in panels[len(fields) :]:
    panel.set_axis_off()
  for panel, field in zip(panels, fields):
    columns = [real[field.name], *(t[field.name] for t in made.values())]
    shares = (
      _category_shares(columns, field)
      if not field.is_numeric
      else _number_shares(columns, field)
    )
    _panel(panel, field, shares, list(made))
  panels[0].legend(fontsize=7, frameon=False)
  return figure


def _panel(panel, field, shares, names):
  edges, real, others = shares
  panel.stairs(real, edges, fill=True, color='#bbbbbb', label='real')
  for name, share, colour in zip(names, others, _COLOURS):
    panel.stairs(share, edges, color=colour, linewidth=1.5, label=name)
  panel.set_title(field.name, fontsize=9, loc='left')
  panel.set_yticks([])
  if not field.is_numeric:
    panel.set_xticks([])
  else:
    panel.tick_params(labelsize=7)
  panel.margins(x=0)


def _category_shares(columns, field):
  size = len(discretization.declared_values(field))
  counts = []
  for column in columns:
    codes = discretization.category_codes(column, field)
    codes = np.where(codes < 0, size, codes)
    counts.append(np.bincount(codes, minlength=size + 1) / max(len(codes), 1))
  order = np.argsort(-counts[0], kind='stable')[:_MOST_CATEGORIES]
  edges = np.arange(len(order) + 1)
  return edges, counts[0][order], [c[order] for c in counts[1:]]


def _number_shares(columns, field):
  values = [discretization.numbers(column) for column in columns]
  values = [v[np.isfinite(v)] for v in values]
  low, high = (
    np.quantile(values[0], [0.005, 0.995]) if len(values[0]) else (0, 1)
  )
  if high <= low:
    low, high = low - 0.5, high + 0.5
  edges = np.linspace(low, high, _BINS + 1)
  if field.type == 'integer':
    # Bins of whole numbers, or some bins would hold more of them than others.
    width = max(1, int(np.ceil((high - low + 1) / _BINS)))
    edges = np.arange(np.floor(low) - 0.5, high + 0.5 + width, width)
  shares = [
    np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0] / max(len(v), 1)
    for v in values
  ]
  return edges, shares[0], shares[1:]
