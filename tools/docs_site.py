"""Hooks of MkDocs: pages made while the site is built, and links out of docs/.

MkDocs loads this file by its path (`hooks` in mkdocs.yml). Files such as
experiments/RESULTS.md, which scripts write where they are, become pages whole;
the reference is made from the public names and from `--help`. Links between
Markdown files are written for the repository; those that leave docs/ are
changed to where the page is on the site.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Pages of the site that are files elsewhere in the repository.
OUTSIDE = {
  'changelog.md': 'CHANGELOG.md',
  'contributing.md': 'CONTRIBUTING.md',
  'results.md': 'experiments/RESULTS.md',
  'security.md': 'SECURITY.md',
}
_SITE = {source: page for page, source in OUTSIDE.items()}
_LINK = re.compile(r'(\]\()([^)\s#:]+)(#[^)\s]*)?(\))')


def on_files(files, config):
  """Adds the pages that are no files of docs/.

  Args:
    files: `mkdocs.structure.files.Files`.
    config: of MkDocs.

  Returns:
    `files`.
  """
  pages = {
    page: (ROOT / source).read_text(encoding='utf-8')
    for page, source in OUTSIDE.items()
  }
  pages.update(reference())
  for path, text in pages.items():
    files.append(File.generated(config, path, content=text))
  return files


def on_page_markdown(markdown, page, config, files):
  """Changes links to files outside of docs/ to links to their pages.

  Args:
    markdown: text of the page.
    page: `mkdocs.structure.pages.Page`.
    config: of MkDocs.
    files: of the site.

  Returns:
    The text with other links.
  """
  del config, files
  path = page.file.src_uri
  source = OUTSIDE.get(path, f'docs/{path}')
  return _LINK.sub(lambda found: _relink(found, source, path), markdown)


def _relink(found, source, page):
  target = posixpath.normpath(
    posixpath.join(posixpath.dirname(source), found[2])
  )
  if target in _SITE:
    target = _SITE[target]
  elif target.startswith('docs/'):
    target = target[len('docs/') :]
  else:
    return found[0]  # MkDocs says so where there is no such page.
  link = posixpath.relpath(target, posixpath.dirname(page) or '.')
  return f'{found[1]}{link}{found[3] or ""}{found[4]}'


def reference() -> dict[str, str]:
  """Makes the pages of the reference.

  Returns:
    A dict from path in docs/ to Markdown.
  """
  # MkDocs started as a program does not have the repository on its path.
  if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  api = importlib.import_module('tools.api')
  commands = importlib.import_module('tests.golden.commands')

  pages = {}
  for package, members in api.names().items():
    if package != 'tfdpflows':
      name = package.split('.')[1]
      pages[f'reference/{name}.md'] = _package_page(package, members)
  parts = ['# Commands\n']
  for command in commands.COMMANDS:
    shown = '\n'.join(commands.value(command, '--help')[1:])
    parts.append(f'## tfdpflows {command}\n\n```text\n{shown.strip()}\n```\n')
  pages['reference/commands.md'] = '\n'.join(parts)
  return pages


def _package_page(package, members):
  module = importlib.import_module(package)
  parts = [f'# {package}\n\n{inspect.getdoc(module)}\n']
  plain = []
  for name in members:
    value = getattr(module, name)
    where = getattr(value, '__module__', None)
    named = getattr(value, '__qualname__', None)
    if inspect.ismodule(value):
      where, named = value.__name__, ''
    if not where or named is None or not where.startswith('tfdpflows'):
      plain.append(name)
      continue
    path = f'{where}.{named}'.rstrip('.')
    options = f'    options:\n      heading: {name}\n      toc_label: {name}\n'
    parts.append(f'::: {path}\n{options}')
  if plain:
    parts.insert(1, 'Also ' + ', '.join(f'`{n}`' for n in plain) + '.\n')
  return '\n'.join(parts)
