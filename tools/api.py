"""Writes docs/api.md: every public name, with the first line of its docstring.

    make api

`--check` writes nothing and fails where the page is not as it would be.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pathlib
import re
import sys

import tfdpflows

PATH = pathlib.Path(__file__).resolve().parents[1] / 'docs' / 'api.md'
_HEADER = """# Public names

Everything that the library promises to keep. What is not here is private, and
may change without notice. Written by `make api`.
"""


def names() -> dict[str, list[str]]:
  """Public names by package.

  Returns:
    A dict from the name of a package to sorted names in it; that of
    `tfdpflows` itself has what is no package.
  """
  found = {
    'tfdpflows': [n for n in tfdpflows.__all__ if not _is_package(n)],
  }
  for name in sorted(filter(_is_package, tfdpflows.__all__)):
    package = importlib.import_module(f'tfdpflows.{name}')
    found[f'tfdpflows.{name}'] = sorted(package.__all__)
  return found


def page() -> str:
  """The text of docs/api.md.

  Returns:
    Markdown.
  """
  lines = [_HEADER]
  for package, members in names().items():
    module = importlib.import_module(package)
    lines.append(f'## {package}\n\n{_summary(module)}\n')
    for name in members:
      value = getattr(module, name)
      text = '' if isinstance(value, str) else f': {_summary(value)}'
      lines.append(f'- `{name}`{text}')
    lines.append('')
  return '\n'.join(lines)


def _is_package(name):
  return inspect.ismodule(getattr(tfdpflows, name))


def _summary(value):
  text = inspect.getdoc(value) or ''
  first = text.split('\n\n')[0]
  return re.sub(r'\s+', ' ', first).strip()


def main() -> None:
  """Writes the page, or checks it."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--check', action='store_true')
  if not parser.parse_args().check:
    PATH.write_text(page())
  elif PATH.read_text() != page():
    sys.exit('docs/api.md is not up to date: run `make api`.')


if __name__ == '__main__':
  main()
