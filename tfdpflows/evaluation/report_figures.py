"""Figures of the report as inline SVG, coloured by the page's style sheet.

Inline SVG follows the reader's light or dark setting, prints sharply, needs no
script and no font file, and can be read out by a screen reader.
"""

from __future__ import annotations

import html
import math

import numpy as np

from tfdpflows.evaluation import discretization

_WIDTH, _HEIGHT = 270, 168
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 262, 22, 140
_NAME = 16  # letters
_MAX_BARS = 8
_MAX_BINS = 40


def marginal_figure(real, synthetic, field):
  """Draws one column of two tables over each other.

  Args:
    real: Column of the real table.
    synthetic: Column of the synthetic table.
    field: The `Field` of the column.

  Returns:
    An `<svg>` element: bars for categories and short enums, otherwise a
    histogram between the 0.2 % and 99.8 % quantiles of both columns (what is
    outside is counted in the first and last bin).
  """
  declared = discretization.declared_values(field)
  if not field.is_numeric or 0 < len(declared) <= _MAX_BARS:
    p, q, labels = _category_shares(real, synthetic, field)
    return _bars(p, q, labels, field.name)
  columns = [discretization.numbers(column) for column in (real, synthetic)]
  columns = [column[np.isfinite(column)] for column in columns]
  return _histogram(*columns, field)


def matrix_figure(matrix, title, *, limit=1.0):
  """Draws a square matrix of values in [-limit, limit] as coloured cells.

  Args:
    matrix: DataFrame `[d, d]`.
    title: What the matrix shows, for screen readers.
    limit: Value of the strongest colour.

  Returns:
    An `<svg>` element; up to 12 columns the values are printed in the cells.
  """
  names = [str(name) for name in matrix.index]
  size = 34 if len(names) <= 12 else 20
  font = 10.5 if len(names) <= 12 else 9
  letters = min(max(map(len, names)), _NAME)
  margin = letters * font * 0.63 + 8
  side = size * len(names)
  full = margin + side + 2
  parts = [_open(full, full, title, 'matrix')]
  for i, name in enumerate(names):
    middle = margin + size * (i + 0.5)
    label = _text(_short(name, _NAME))
    parts.append(
      f'<text class="name" x="{margin - 6:.1f}" y="{middle + 3.5:.1f}" '
      f'text-anchor="end" font-size="{font}">{label}</text>'
      f'<text class="name" font-size="{font}" transform="translate('
      f'{middle + 3.5:.1f} {margin - 6:.1f}) rotate(-90)">{label}</text>'
    )
  values = matrix.to_numpy()
  for i, j in np.ndindex(values.shape):
    if i == j:
      parts.append(_diagonal_cell(margin + size * i, size))
      continue
    parts.append(
      _matrix_cell(
        values[i, j],
        margin + size * j,
        margin + size * i,
        size,
        f'{names[i]} and {names[j]}: {values[i, j]:+.2f}',
        limit,
        len(names) <= 12,
      )
    )
  return ''.join(parts) + '</svg>'


def score_figure(synthetic, real, title):
  """Draws two scores in [0, 1] as dots on a line, `real` may be `None`."""
  parts = [_open(160, 22, title, 'dumbbell')]
  parts.append('<line class="axis" x1="6" y1="11" x2="154" y2="11"/>')
  place = [6 + 148 * min(max(s or 0.0, 0.0), 1.0) for s in (synthetic, real)]
  if real is not None:
    parts.append(
      f'<line class="gap" x1="{place[0]:.1f}" y1="11" x2="{place[1]:.1f}" '
      f'y2="11"/><circle class="real" cx="{place[1]:.1f}" cy="11" r="5"/>'
    )
  parts.append(f'<circle class="made" cx="{place[0]:.1f}" cy="11" r="5"/>')
  return ''.join(parts) + '</svg>'


def _diagonal_cell(place, size):
  return (
    f'<rect class="diagonal" x="{place:.1f}" y="{place:.1f}" '
    f'width="{size - 1.5}" height="{size - 1.5}" rx="2.5"/>'
  )


def _matrix_cell(value, x, y, size, title, limit, printed):
  strength = min(abs(value) / limit, 1.0) if np.isfinite(value) else 0.0
  sign = 'plus' if value >= 0 else 'minus'
  cell = (
    f'<g><title>{_text(title)}</title><rect class="cell {sign}" x="{x:.1f}" '
    f'y="{y:.1f}" width="{size - 1.5}" height="{size - 1.5}" rx="2.5" '
    f'fill-opacity="{strength:.3f}"/>'
  )
  if printed and abs(value) >= 0.005:
    number = f'{value:.2f}'.replace('0.', '.', 1).replace('-', '\N{MINUS SIGN}')
    strong = ' strong' if strength > 0.7 else ''
    cell += (
      f'<text class="number{strong}" x="{x + size / 2 - 0.75:.1f}" '
      f'y="{y + size / 2 + 3:.1f}" text-anchor="middle">{number}</text>'
    )
  return cell + '</g>'


def _category_shares(real, synthetic, field):
  first, second, size = discretization.shared_cells(real, synthetic, field)
  p, q = (np.bincount(c, minlength=size) / len(c) for c in (first, second))
  declared = discretization.declared_values(field)
  labels = [_label(value) for value in declared] + ['missing']
  kept = list(range(len(declared)))
  if not field.is_numeric and field.type != 'boolean':
    kept.sort(key=lambda i: -p[i])
  other = kept[_MAX_BARS - 1 :] if len(kept) > _MAX_BARS else []
  kept = kept[: len(kept) - len(other)]
  shares = [(p[i], q[i], labels[i]) for i in kept]
  if other:
    name = f'{len(other)} others'
    shares.append((p[other].sum(), q[other].sum(), name))
  if p[-1] or q[-1]:
    shares.append((p[-1], q[-1], 'missing'))
  return zip(*shares)


def _bars(p, q, labels, name):
  p, q, labels = list(p), list(q), list(labels)
  step = min(34.0, (_BOTTOM + 20 - _TOP + 8) / len(labels))
  thick = min(20.0, step * 0.66)
  letters = min(max(map(len, labels)), _NAME)
  left = 12 + letters * 7.1
  right = _RIGHT - 40
  top = (_HEIGHT - step * len(labels)) / 2
  scale = (right - left) / max(*p, *q, 1e-9)
  parts = [_open(_WIDTH, _HEIGHT, f'Shares of the categories of {name}', '')]
  for i, (real, synthetic, label) in enumerate(zip(p, q, labels)):
    y = top + step * i + (step - thick) / 2
    x = left + synthetic * scale
    parts.append(
      f'<g><title>{_text(label)}: real {real:.1%}, synthetic {synthetic:.1%}'
      f'</title><text class="tick" x="{left - 6:.1f}" '
      f'y="{y + thick / 2 + 3.7:.1f}" text-anchor="end">'
      f'{_text(_short(label, _NAME))}</text>'
      f'<rect class="real" x="{left:.1f}" y="{y:.1f}" '
      f'width="{max(real * scale, 0.8):.1f}" height="{thick:.1f}" rx="2"/>'
      f'<rect class="made" x="{x - 1.6:.1f}" y="{y - 2.5:.1f}" width="3.2" '
      f'height="{thick + 5:.1f}" rx="1.6"/>'
      f'<text class="tick" x="{left + max(real, synthetic) * scale + 7:.1f}" '
      f'y="{y + thick / 2 + 3.7:.1f}">{_percent(real)}</text></g>'
    )
  return ''.join(parts) + '</svg>'


def _histogram(real, synthetic, field):
  title = f'Histogram of {field.name}'
  pooled = np.concatenate([real, synthetic])
  if not len(real) or not len(synthetic):
    return (
      _open(_WIDTH, _HEIGHT, title, '')
      + '<text class="tick" x="135" y="84" text-anchor="middle">'
      'no values in one of the tables</text></svg>'
    )
  edges = _histogram_edges(pooled, field)
  p, q = (
    np.histogram(np.clip(c, edges[0], edges[-1]), edges)[0] / len(c)
    for c in (real, synthetic)
  )
  highest = max(p.max(), q.max())
  # A square root keeps a tail visible beside a bar of most of the rows.
  power = 0.5 if highest > 0.5 and len(p) > _MAX_BARS else 1.0
  p_y, q_y = (
    _BOTTOM - (_BOTTOM - _TOP) * (r / highest) ** power for r in (p, q)
  )
  x = _LEFT + (_RIGHT - _LEFT) * (edges - edges[0]) / (edges[-1] - edges[0])
  parts = [_open(_WIDTH, _HEIGHT, title, '')]
  for k, (real_y, real_p, synthetic_p) in enumerate(zip(p_y, p, q)):
    span = f'{_label(edges[k])} to {_label(edges[k + 1])}'
    parts.append(
      f'<g><title>{span}: real {real_p:.2%}, synthetic {synthetic_p:.2%}'
      f'</title><rect class="hover" x="{x[k]:.1f}" y="{_TOP}" '
      f'width="{x[k + 1] - x[k]:.2f}" height="{_BOTTOM - _TOP}"/>'
      f'<rect class="real" x="{x[k] + 0.4:.2f}" y="{real_y:.1f}" '
      f'width="{max(x[k + 1] - x[k] - 0.8, 0.6):.2f}" '
      f'height="{_BOTTOM - real_y:.1f}"/></g>'
    )
  steps = ''.join(f'V{y:.1f}H{end:.1f}' for y, end in zip(q_y, x[1:]))
  parts.append(
    f'<path class="line" d="M{x[0]:.1f} {_BOTTOM}{steps}V{_BOTTOM}"/>'
    f'<line class="axis" x1="{_LEFT}" y1="{_BOTTOM}" x2="{_RIGHT}" '
    f'y2="{_BOTTOM}"/>'
  )
  scale = ', square-root scale' if power < 1 else ''
  parts.append(
    f'<text class="tick" x="{_RIGHT}" y="13" text-anchor="end">'
    f'highest bar {_percent(highest)}{scale}</text>'
  )
  for tick in _ticks(edges[0], edges[-1], field.type == 'integer'):
    at = _LEFT + (_RIGHT - _LEFT) * (tick - edges[0]) / (edges[-1] - edges[0])
    parts.append(
      f'<line class="axis" x1="{at:.1f}" y1="{_BOTTOM}" x2="{at:.1f}" '
      f'y2="{_BOTTOM + 4}"/><text class="tick" x="{at:.1f}" '
      f'y="{_BOTTOM + 17}" text-anchor="middle">{_label(tick)}</text>'
    )
  return ''.join(parts) + '</svg>'


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


def _ticks(low, high, whole):
  step = 10.0 ** math.floor(math.log10(high - low))
  for part in (0.1, 0.2, 0.25, 0.5, 1.0):
    if (high - low) / (step * part) <= 5.5:
      step *= part
      break
  if whole:
    step = max(1.0, round(step))
  first = math.ceil(low / step)
  last = math.floor(high / step)
  return [k * step for k in range(first, last + 1)]


def _open(width, height, title, kind):
  name = f' class="{kind}"' if kind else ''
  return (
    f'<svg{name} viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
    f'aria-label="{_text(title)}"><title>{_text(title)}</title>'
  )


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


def _short(text, size):
  return (
    text if len(text) <= size else text[: size - 1] + '\N{HORIZONTAL ELLIPSIS}'
  )


def _text(text):
  return html.escape(str(text), quote=True)
