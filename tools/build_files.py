"""Writes the BUILD files of Bazel from the imports of the Python files.

Every module is one target, whose `deps` are the first-party modules that it
imports, inside functions too. Packages from PyPI are no targets: they come on
PYTHONPATH. After adding a module or an import:

    make build-files

`--check` writes nothing and fails where a BUILD file is not as it would be.
A test runs through tools/pytest_main.py, with the conftest.py of its folders.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ('experiments', 'tests', 'tfdpflows', 'tools')
_RUNNER = '//tools:pytest_main.py'
# Files that a module reads where it lies, by their patterns below its folder.
_DATA = {
  'experiments/public_tables.py': ('schemas/*.json',),
  'tests/golden/files.py': ('files/*',),
  'tests/golden/make.py': ('*.json',),
  'tfdpflows/audit/page.py': ('page.html',),
  'tfdpflows/evaluation/page.py': ('report.css',),
  'tfdpflows/evaluation/report.py': ('report.html',),
}
_HEADER = '# Written by tools/build_files.py: run `make build-files`.\n'


class Target(NamedTuple):
  """One target of a BUILD file.

  Attributes:
    kind: 'py_library', 'py_binary' or 'py_test'.
    path: path of its Python file below the root, as `pathlib.PurePosixPath`.
    deps: sorted labels of the targets that the file needs.
    data: sorted paths below its package of the other files that it reads.
  """

  kind: str
  path: pathlib.PurePosixPath
  deps: tuple
  data: tuple = ()

  @property
  def name(self):
    """Name of the target: of the file, or of the package of an `__init__`."""
    return _name(self.path)

  @property
  def package(self):
    """The folder, which is the Bazel package."""
    return str(self.path.parent)

  @property
  def label(self):
    """Label as others write it."""
    return _label(self.path)

  def render(self):
    """Returns the text of the rule."""
    srcs = [self.path.name]
    lines = [f'    name = "{self.name}",']
    if self.kind == 'py_test':
      srcs.append(_RUNNER)
    lines += _list('srcs', srcs)
    if self.kind == 'py_test':
      lines += [f'    args = ["{self.path}"],', f'    main = "{_RUNNER}",']
    elif self.package.split('/')[0] == 'tests':
      lines.append('    testonly = True,')
    lines += _list('data', self.data)
    lines += _list('deps', _relative(self.deps, self.package))
    return '\n'.join([f'{self.kind}(', *lines, ')\n'])


def targets(root=ROOT):
  """Returns a `Target` for every Python file under the first-party folders.

  Args:
    root: root of the repository.

  Returns:
    A list of `Target`, by path.
  """
  files = {
    pathlib.PurePosixPath(path.relative_to(root).as_posix())
    for folder in FOLDERS
    for path in (root / folder).rglob('*.py')
  }
  return [_target(root, path, files) for path in sorted(files)]


def render(root=ROOT):
  """Returns the text of every BUILD file.

  Args:
    root: root of the repository.

  Returns:
    A `dict` from path below the root to text.
  """
  packages = {}
  for target in targets(root):
    packages.setdefault(target.package, []).append(target)
  texts = {'BUILD': _root_text()}
  for package, members in sorted(packages.items()):
    exports = []
    if package == 'tools':
      exports = [f'exports_files(["{_RUNNER.split(":")[1]}"])\n']
    parts = [_preamble(), *exports]
    parts += [target.render() for target in members]
    texts[f'{package}/BUILD'] = '\n'.join(parts)
  return texts


def differences(root=ROOT):
  """Compares the BUILD files that are there with those that should be.

  Args:
    root: root of the repository.

  Returns:
    A list with one line per BUILD file that is missing, stale or needless,
    each with the lines to add (+) and remove (-).
  """
  wanted = render(root)
  found = {
    path.relative_to(root).as_posix(): path.read_text(encoding='utf-8')
    for folder in FOLDERS
    for path in (root / folder).rglob('BUILD')
  }
  if (root / 'BUILD').exists():
    found['BUILD'] = (root / 'BUILD').read_text(encoding='utf-8')
  result = []
  for path in sorted({*wanted, *found}):
    old, new = found.get(path), wanted.get(path)
    if old is None:
      result.append(f'{path} is missing')
    elif new is None:
      result.append(f'{path} is in a folder without Python files')
    elif old != new:
      lines = _changed_lines(old, new) or ['the order of its lines']
      result.append('\n    '.join([f'{path} is not up to date:', *lines]))
  return result


def write(root=ROOT):
  """Writes every BUILD file and removes needless ones.

  Args:
    root: root of the repository.

  Returns:
    The paths that changed, as strings below the root.
  """
  changed = []
  wanted = render(root)
  for path, text in wanted.items():
    file = root / path
    if not file.exists() or file.read_text(encoding='utf-8') != text:
      file.write_text(text, encoding='utf-8')
      changed.append(path)
  for folder in FOLDERS:
    for file in (root / folder).rglob('BUILD'):
      path = file.relative_to(root).as_posix()
      if path not in wanted:
        file.unlink()
        changed.append(path)
  return changed


def first_party_imports(path, root=ROOT, files=None):
  """Returns the first-party files that a Python file imports.

  Imports inside functions count, those for type checkers do not. In an
  `__init__.py` strings count that name a first-party module or a child of the
  package, which is how packages list what they import when it is asked for.

  Args:
    path: path of the file below the root.
    root: root of the repository.
    files: paths of all first-party files; found below the root if `None`.

  Returns:
    A set of paths below the root.
  """
  path = pathlib.PurePosixPath(path)
  if files is None:
    files = {target.path for target in targets(root)}
  tree = ast.parse((root / path).read_text(encoding='utf-8'), str(path))
  found = set()
  for node in _walk(tree, expressions=path.name == '__init__.py'):
    if isinstance(node, ast.Import):
      for alias in node.names:
        found.add(_module_file(alias.name, path, files))
    elif isinstance(node, ast.ImportFrom):
      module = _absolute(node, path)
      for alias in node.names:
        found.add(
          _module_file(f'{module}.{alias.name}', path, files)
          or _module_file(module, path, files)
        )
    elif (
      path.name == '__init__.py'
      and isinstance(node, ast.Constant)
      and isinstance(node.value, str)
      and all(part.isidentifier() for part in node.value.split('.'))
    ):
      child = '.'.join([*path.parent.parts, node.value])
      found.add(_module_file(node.value, path, files))
      found.add(_module_file(child, path, files))
  return found - {None, path}


def _target(root, path, files):
  source = (root / path).read_text(encoding='utf-8')
  needed = first_party_imports(path, root, files)
  kind = 'py_library'
  if path.name.endswith('_test.py'):
    kind = 'py_test'
    fixtures = {folder / 'conftest.py' for folder in path.parents}
    needed |= fixtures & files
  elif path.name == '__main__.py' or '\nif __name__ == ' in source:
    kind = 'py_binary'
  labels = tuple(sorted(_label(p) for p in needed))
  return Target(kind, path, labels, _data(root, path))


def _data(root, path):
  folder = root / path.parent
  found = (
    p for pattern in _DATA.get(str(path), ()) for p in folder.glob(pattern)
  )
  return tuple(sorted(p.relative_to(folder).as_posix() for p in found))


def _walk(node, expressions):
  """Yields the nodes below `node`, without what only type checkers read.

  Imports are statements: `expressions` says whether these are wanted too.
  """
  left = [node]
  while left:
    for child in ast.iter_child_nodes(left.pop()):
      if isinstance(child, ast.expr) and not expressions:
        continue
      if isinstance(child, ast.If) and 'TYPE_CHECKING' in ast.dump(child.test):
        continue
      yield child
      left.append(child)


def _absolute(node, path):
  """Returns the absolute name of the module of a `from` import."""
  if not node.level:
    return node.module
  base = path.parent.parts[: len(path.parent.parts) - node.level + 1]
  return '.'.join([*base, *([node.module] if node.module else [])])


def _module_file(module, importer, files):
  """Returns the first-party file of a dotted name, or `None`."""
  path = pathlib.PurePosixPath(*module.split('.'))
  candidates = [path.with_suffix('.py'), path / '__init__.py']
  if importer.parts[0] == 'tests':
    # pytest puts the folder of a test first on the path.
    candidates += [importer.parent / candidate for candidate in candidates]
  return next((c for c in candidates if c in files), None)


def _name(path):
  return path.parent.name if path.name == '__init__.py' else path.stem


def _label(path):
  return f'//{path.parent}:{_name(path)}'


def _relative(labels, package):
  """Returns labels as buildifier writes them: own ones first and short."""
  own, others = [], []
  for label in labels:
    folder, name = label[2:].split(':')
    if folder == package:
      own.append(f':{name}')
    elif folder.rsplit('/', 1)[-1] == name:
      others.append(f'//{folder}')
    else:
      others.append(label)
  return sorted(own) + sorted(others)


def _list(key, values):
  if not values:
    return []
  if len(values) == 1:
    return [f'    {key} = ["{values[0]}"],']
  items = [f'        "{value}",' for value in values]
  return [f'    {key} = [', *items, '    ],']


def _preamble():
  return (
    _HEADER + '\npackage(default_visibility = ["//visibility:public"])\n\n'
    'licenses(["notice"])\n'
  )


def _root_text():
  return (
    _preamble() + '\nexports_files(["LICENSE"])\n\nalias(\n'
    '    name = "tfdpflows",\n    actual = "//tfdpflows",\n)\n'
  )


def _changed_lines(old, new):
  old, new = old.splitlines(), new.splitlines()
  removed = [f'- {line.strip()}' for line in old if line not in new]
  added = [f'+ {line.strip()}' for line in new if line not in old]
  return removed + added


def main(argv=None):
  """Writes the BUILD files, or checks them; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--check', action='store_true', help='write nothing')
  if parser.parse_args(argv).check:
    found = differences()
    if found:
      print('\n'.join([*found, 'Run `make build-files`.']), file=sys.stderr)
    return 1 if found else 0
  changed = write()
  print('\n'.join(changed) if changed else 'All BUILD files are up to date.')
  return 0


if __name__ == '__main__':
  sys.exit(main())
