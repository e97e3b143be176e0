"""Pieces of a page of HTML: the page, its tables, what is escaped in them."""

from __future__ import annotations

import html

from tfdpflows.evaluation import report_style


class Raw(str):
  """Markup that goes into a table as it is; everything else is escaped."""

  __slots__ = ()


def page(title, body):
  """Returns a page that loads nothing and runs nothing."""
  return (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="referrer" content="no-referrer">\n'
    '<meta http-equiv="Content-Security-Policy" content="default-src '
    "'none'; style-src 'unsafe-inline'\">\n"
    f'<title>{html.escape(title)}</title>\n'
    f'<style>{report_style.CSS}</style>\n</head>\n'
    f'<body>\n<main>{body}</main>\n</body>\n</html>\n'
  )


def table(caption, heads, rows):
  """Returns a table that scrolls where it does not fit.

  Args:
    caption: What it shows.
    heads: Names of the columns; `(name, names below it)` for a group of them.
    rows: `(name, cells, class)` of each row.

  Returns:
    Markup in which only `Raw` cells are not escaped.
  """
  first, second = [], []
  deep = any(isinstance(head, tuple) for head in heads)
  for head in heads:
    if isinstance(head, tuple):
      name, below = head
      first.append(
        f'<th scope="colgroup" colspan="{len(below)}">{_cell(name)}</th>'
      )
      second += [f'<th scope="col">{_cell(name)}</th>' for name in below]
    else:
      span = ' rowspan="2"' if deep else ''
      first.append(f'<th scope="col"{span}>{_cell(head)}</th>')
  head = f'<tr>{"".join(first)}</tr>'
  if deep:
    head += f'<tr class="below">{"".join(second)}</tr>'
  body = ''.join(
    f'<tr{f" class={kind}" if kind else ""}><th scope="row">{_cell(name)}</th>'
    + ''.join(f'<td>{_cell(value)}</td>' for value in cells)
    + '</tr>'
    for name, cells, kind in rows
  )
  return (
    '<div class="card scroll" tabindex="0"><table>'
    f'<caption>{_cell(caption)}</caption>'
    f'<thead>{head}</thead><tbody>{body}</tbody></table></div>'
  )


def tiles(entries):
  """Returns a row of figures, one for each `(name, value, hint)`."""
  body = ''.join(
    f'<div class="tile"><dt>{_cell(name)}</dt><dd><div class="value">'
    f'{_cell(value)}</div><div class="hint">{_cell(hint)}</div></dd></div>'
    for name, value, hint in entries
  )
  return f'<dl class="tiles">{body}</dl>'


def _cell(value):
  return value if isinstance(value, Raw) else html.escape(str(value))
