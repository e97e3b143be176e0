"""Figures of the report, drawn by matplotlib as inline SVG.

Colours are variables of the page's style sheet and letters are those of the
page: a figure follows the reader's light or dark setting, prints sharply, and
can be read out. Every bar and cell has a tooltip.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings

import markupsafe
import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import patches, ticker
from matplotlib.figure import Figure

from tfdpflows.evaluation import discretization
from tfdpflows.tabular.field import Field
from tfdpflows.tabular.schema import TableSchema

# Colours while matplotlib draws, and what the page has in their place.
_REAL, _SYNTHETIC, _DOT = '#a9c8e8', '#d3541a', '#3f7fc1'
_TEXT, _AXIS, _EMPTY = '#566373', '#dde2e8', '#eef1f4'
_PLUS, _MINUS = '#1f6fb8', '#c2410c'
_INK, _ON_STRONG, _CLEAR = '#16202c', '#fffffe', '#fffffd'
_ON_PAGE = {
  _REAL: 'var(--real-fill)',
  _SYNTHETIC: 'var(--made)',
  _DOT: 'var(--real)',
  _TEXT: 'var(--soft)',
  _AXIS: 'var(--rule)',
  _EMPTY: 'var(--empty)',
  _PLUS: 'var(--plus)',
  _MINUS: 'var(--minus)',
  _INK: 'var(--ink)',
  _ON_STRONG: 'var(--on-strong)',
  _CLEAR: 'transparent',
}
_WIDTH, _HEIGHT = 270, 168
_LABEL = {'fontsize': 11, 'color': _TEXT}
_LETTERS = 16  # of a name, at most
# Width of a letter of a label in pixels.
_LETTER = 6.5
_MAX_BARS = 8
_MAX_BINS = 40
_MAX_NUMBERED = 12


def marginal_figure(real: pd.Series, synthetic: pd.Series, field: Field) -> str:
  """Draws one column of two tables over each other, as an `<svg>` element.

  It has bars for categories and short enums, otherwise a histogram between the
  0.2 % and 99.8 % quantiles of both columns, with other values in the first and
  last bin.
  """
  label = _label
  if field.is_temporal:
    scale = field.scale
    label = lambda count: scale.text(round(float(count)))
    tables = (column.to_frame(field.name) for column in (real, synthetic))
    schema, *tables = discretization.numeric(TableSchema([field]), *tables)
    field = schema[field.name]
    real, synthetic = (table[field.name] for table in tables)
  declared = discretization.declared_values(field)
  if not field.is_numeric or 0 < len(declared) <= _MAX_BARS:
    return _bars(*_category_shares(real, synthetic, field), field.name)
  columns = [discretization.finite(column) for column in (real, synthetic)]
  return _histogram(*columns, field, label)


def matrix_figure(matrix: pd.DataFrame, title: str) -> str:
  """Draws a square matrix of values in [-1, 1] as coloured cells.

  The `title` is for screen readers. Up to 12 columns the values are printed in
  the cells. Returns an `<svg>` element.
  """
  names = [str(name) for name in matrix.index]
  numbered = len(names) <= _MAX_NUMBERED
  size, font = (34, 10.5) if numbered else (20, 9)
  margin = min(max(map(len, names)), _LETTERS) * font * 0.63 + 8
  side = size * len(names)
  drawing = _Drawing(margin + side + 2, margin + side + 2)
  axes = drawing.axes(margin, margin, side, side)
  axes.set(xlim=(0, len(names)), ylim=(len(names), 0))
  labels = [_short(name) for name in names]
  at = np.arange(len(names)) + 0.5
  axes.set_xticks(at, labels, rotation=90, fontsize=font)
  axes.set_yticks(at, labels, fontsize=font)
  axes.xaxis.tick_top()
  axes.tick_params(length=0, pad=5)
  for (i, j), value in np.ndenumerate(matrix.to_numpy()):
    strength = min(abs(value), 1.0) if np.isfinite(value) else 0.0
    colour, alpha = _PLUS if value >= 0 else _MINUS, strength
    tip = f'{names[i]} and {names[j]}: {value:+.2f}'
    if i == j:
      colour, alpha, tip = _EMPTY, 1.0, None
    axes.add_patch(
      patches.FancyBboxPatch(
        (j + 0.02, i + 0.02),
        0.96,
        0.96,
        boxstyle='round,pad=0,rounding_size=0.07',
        facecolor=colour,
        edgecolor='none',
        # Without any colour it would have no tooltip.
        alpha=max(alpha, 1e-3),
        gid=drawing.group('cell', tip),
      )
    )
    if numbered and i != j and abs(value) >= 0.005:
      number = f'{value:.2f}'.replace('0.', '.', 1)
      axes.text(
        j + 0.5,
        i + 0.5,
        number.replace('-', '\N{MINUS SIGN}'),
        ha='center',
        va='center_baseline',
        fontsize=10,
        color=_ON_STRONG if strength > 0.7 else _INK,
      )
  return drawing.svg(title, 'matrix')


def score_figure(synthetic: float, real: float, title: str) -> str:
  """Draws two AUROCs as dots on a line from 0.5, that of guessing, to 1."""
  drawing = _Drawing(160, 22)
  axes = drawing.axes(0, 0, 160, 22)
  axes.set(xlim=(0, 160), ylim=(0, 22))
  axes.set_axis_off()
  at = [
    6 + 148 * (min(max(score, 0.5), 1.0) - 0.5) / 0.5
    for score in (synthetic, real)
  ]
  axes.plot([6, 154], [11, 11], color=_AXIS, linewidth=1.2)
  axes.plot(at, [11, 11], color=_TEXT, linewidth=2, alpha=0.6)
  for x, colour in zip(reversed(at), (_DOT, _SYNTHETIC)):
    axes.add_patch(
      patches.Circle((x, 11), 5, color=colour, linewidth=0, zorder=3)
    )
  return drawing.svg(title, 'scores')


def roc_figure(claimed: np.ndarray, seen: np.ndarray, title: str) -> str:
  """Draws the ROC of an attack below that which a privacy claim allows.

  Both are `[n, 2]`, false- and true-positive rates; what was seen may be empty.
  """
  drawing = _Drawing(420, 330)
  axes = drawing.axes(52, 12, 270, 270)
  axes.spines[['left', 'bottom']].set(visible=True)
  axes.set(xlim=(0, 1), ylim=(0, 1))
  axes.set_xticks(np.linspace(0, 1, 5))
  axes.set_yticks(np.linspace(0, 1, 5))
  axes.tick_params(labelsize=11)
  axes.set_xlabel('false-positive rate', **_LABEL)
  axes.set_ylabel('true-positive rate', **_LABEL)
  # Not by `fill_between`, which a page draws by a name.
  under = np.concatenate([claimed, [[1.0, 0.0], [0.0, 0.0]]])
  axes.fill(*under.T, color=_EMPTY, linewidth=0)
  axes.plot([0, 1], [0, 1], color=_AXIS, linewidth=1.2, linestyle='--')
  lines = [(claimed, _DOT, 'claim'), (seen, _SYNTHETIC, 'attack')]
  for number, (line, colour, name) in enumerate(lines):
    if len(line):
      axes.plot(*line.T, color=colour, linewidth=2)
      y = 0.94 - 0.08 * number
      axes.plot([1.05, 1.1], [y, y], color=colour, linewidth=2)
      axes.text(1.13, y, name, va='center', **_LABEL)
  return drawing.svg(title, 'roc')


def _category_shares(real, synthetic, field):
  """Shares in both tables and names of the categories that are drawn."""
  p, q = discretization.common_shares(real, synthetic, field)
  declared = discretization.declared_values(field)
  kept = list(range(len(declared)))
  if field.type == 'string':
    kept.sort(key=lambda i: -p[i])
  others = kept[_MAX_BARS - 1 :] if len(kept) > _MAX_BARS else []
  groups = [([i], _label(declared[i])) for i in kept if i not in others]
  if others:
    groups.append((others, f'{len(others)} others'))
  if p[-1] or q[-1]:
    groups.append(([-1], 'missing'))
  shares = [(p[i].sum(), q[i].sum()) for i, _ in groups]
  return *np.transpose(shares), [label for _, label in groups]


def _bars(p, q, labels, name):
  left = 12 + min(max(map(len, labels)), _LETTERS) * 7.1
  drawing = _Drawing(_WIDTH, _HEIGHT)
  axes = drawing.axes(left, 0, _WIDTH - 48 - left, _HEIGHT)
  # No bar is thicker than a fifth of the figure allows.
  rows, middle = max(len(labels) + 0.5, 5.5), (len(labels) - 1) / 2
  axes.set(
    xlim=(0, max(*p, *q, 1e-9)), ylim=(middle + rows / 2, middle - rows / 2)
  )
  axes.set_yticks(range(len(labels)), map(_short, labels), fontsize=11)
  axes.set_xticks([])
  axes.tick_params(length=0, pad=6)
  for i, (real, synthetic, label) in enumerate(zip(p, q, labels)):
    tip = f'{label}: real {real:.1%}, synthetic {synthetic:.1%}'
    axes.barh(
      i, real, 0.6, color=_REAL, gid=drawing.group('real', tip), clip_on=False
    )
    axes.plot(
      [synthetic, synthetic],
      [i - 0.36, i + 0.36],
      color=_SYNTHETIC,
      linewidth=3.2,
      solid_capstyle='round',
      gid=drawing.group('made', tip),
      clip_on=False,
    )
    axes.annotate(
      _percent(real),
      (max(real, synthetic), i),
      (7, 0),
      textcoords='offset points',
      va='center_baseline',
      **_LABEL,
    )
  return drawing.svg(f'Shares of the categories of {name}')


def _histogram(real, synthetic, field, label):
  title = f'Histogram of {field.name}'
  drawing = _Drawing(_WIDTH, _HEIGHT)
  if not len(real) or not len(synthetic):
    text = 'no values in one of the tables'
    drawing.figure.text(0.5, 0.5, text, ha='center', **_LABEL)
    return drawing.svg(title)
  edges = _histogram_edges(np.concatenate([real, synthetic]), field)
  p, q = (
    np.histogram(np.clip(c, edges[0], edges[-1]), edges)[0] / len(c)
    for c in (real, synthetic)
  )
  highest = max(p.max(), q.max())
  # A square root keeps a tail visible beside a bar of most of the rows.
  power = 0.5 if highest > 0.5 and len(p) > _MAX_BARS else 1.0
  axes = drawing.axes(8, 22, _WIDTH - 16, 118)
  axes.set(xlim=(edges[0], edges[-1]), ylim=(0, highest**power))
  axes.stairs(p**power, edges, fill=True, color=_REAL)
  for low, high, *shares in zip(edges, edges[1:], p, q):
    tip = (
      f'{label(low)} to {label(high)}: real {shares[0]:.2%}, '
      f'synthetic {shares[1]:.2%}'
    )
    axes.axvspan(
      low, high, color=_CLEAR, linewidth=0, gid=drawing.group('tip', tip)
    )
  axes.stairs(q**power, edges, color=_SYNTHETIC, linewidth=1.9)
  axes.set_yticks([])
  whole = field.type == 'integer'
  ticks = _ticks(edges[0], edges[-1], whole, _WIDTH - 16, label)
  axes.set_xticks(ticks, map(label, ticks), fontsize=11)
  axes.tick_params(length=0, pad=6)
  axes.spines['bottom'].set_visible(True)
  drawing.figure.text(
    1 - 8 / _WIDTH,
    1 - 13 / _HEIGHT,
    f'highest bar {_percent(highest)}'
    + (', square-root scale' if power < 1 else ''),
    ha='right',
    **_LABEL,
  )
  return drawing.svg(title)


def _histogram_edges(pooled, field):
  low, high = np.quantile(pooled, [0.002, 0.998])
  if field.type == 'integer' or field.enum:
    low, high = math.floor(low), math.ceil(high)
    width = math.ceil((high - low + 1) / _MAX_BINS)
    count = max(1, math.ceil((high - low + 1) / width))
    return low - 0.5 + width * np.arange(count + 1)
  if high <= low:
    low, high = low - 0.5, high + 0.5
  return np.linspace(low, high, _MAX_BINS + 1)


def _ticks(low, high, whole, width, label):
  """Returns as many ticks as there is room for their labels in pixels."""
  for most in range(6, 0, -1):
    locator = ticker.MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=whole)
    ticks = locator.tick_values(low, high)
    ticks = ticks[(ticks >= low) & (ticks <= high)]
    widths = [_LETTER * len(label(tick)) for tick in ticks]
    at = (ticks - low) / (high - low) * width
    # Half a label may stand out over each end.
    gaps = np.diff(at) - (np.array(widths[:-1]) + widths[1:]) / 2
    if not len(gaps) or gaps.min() >= _LETTER:
      break
  return ticks


class _Drawing:
  """A figure of matplotlib in pixels, and how it becomes part of a page."""

  def __init__(self, width, height):
    self._size = width, height
    self._groups = []
    self.figure = Figure((width / 72, height / 72), dpi=72, frameon=False)

  def axes(self, left, top, width, height):
    """Returns axes without a frame, their letters in the colour of texts."""
    w, h = self._size
    place = left / w, 1 - (top + height) / h, width / w, height / h
    axes = self.figure.add_axes(place, frame_on=True)
    axes.patch.set_visible(False)
    axes.spines[:].set(visible=False, color=_AXIS, linewidth=1.2)
    # Marks of ticks would be drawn by names, as what is clipped.
    axes.tick_params(labelcolor=_TEXT, color=_AXIS, length=0)
    return axes

  def group(self, kind: str, tip: str | None) -> str:
    """Returns the `gid` of an artist that gets a class and a tooltip."""
    self._groups.append((kind, tip))
    return f'group-{len(self._groups) - 1}'

  def svg(self, title: str, kind: str | None = None) -> str:
    """Returns the `<svg>` element, of class `kind`."""
    for artist in self.figure.findobj():
      # Clipping would be by names that have to be unique in the page.
      artist.set_clip_on(False)
    settings = {'svg.fonttype': 'none', 'text.parse_math': False}
    file = io.StringIO()
    with warnings.catch_warnings(), mpl.rc_context(settings):
      # Letters that the fonts of matplotlib lack; the page has its own.
      warnings.simplefilter('ignore')
      self.figure.savefig(file, format='svg', metadata={'Date': None})
    body = file.getvalue()
    body = body[body.index('<g id="figure_1">') : body.rindex('</svg>')]
    body = re.sub(r'<!--.*?-->|<defs>.*?</defs>', '', body, flags=re.DOTALL)
    body = re.sub(r'\s*\n\s*', '\n', re.sub('<[^>]*>', self._tag, body))
    width, height = self._size
    title = html.escape(title)
    kind = f' class="{kind}"' if kind else ''
    return markupsafe.Markup(
      f'<svg{kind} viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
      f'aria-label="{title}"><title>{title}</title>{body}</svg>'
    )

  def _tag(self, found):
    """A tag of matplotlib's as the page needs it."""
    tag = found[0]
    group = re.match(r'<g id="group-(\d+)"', tag)
    if group:
      kind, tip = self._groups[int(group[1])]
      tip = '' if tip is None else f'<title>{html.escape(tip)}</title>'
      return f'<g class="{kind}">{tip}'
    tag = re.sub(r' id="[^"]*"', '', tag)
    tag = re.sub(r'font: ([\d.]+px)[^;"]*', r'font-size: \1', tag)
    for colour, value in _ON_PAGE.items():
      tag = tag.replace(colour, value)
    return re.sub(r' d="[^"]*"', _short_path, tag)


def _short_path(found):
  path = re.sub(r'(\.\d)\d+', r'\1', found[0])
  return re.sub(r'\s*([A-Za-z])\s+', r'\1', path.replace('\n', ' '))


def _label(value):
  if isinstance(value, (bool, np.bool_)):
    return 'true' if value else 'false'
  if isinstance(value, (int, float, np.number)):
    value = float(value)
    if value and abs(value) < 1e-3:
      return f'{value:.3g}'
    for least, size, unit in (
      (1e9, 1e9, 'G'),
      (1e6, 1e6, 'M'),
      (1e4, 1e3, 'k'),
    ):
      if abs(value) >= least:
        return f'{value / size:.4g}{unit}'
    return f'{value:,.4g}'
  return str(value)


def _percent(share):
  if 0 < share < 0.01:
    return f'{share:.2%}' if share >= 0.001 else '<0.1%'
  return f'{share:.0%}'


def _short(text):
  text = ' '.join(text.split())
  if len(text) <= _LETTERS:
    return text
  return text[: _LETTERS - 1] + '\N{HORIZONTAL ELLIPSIS}'
