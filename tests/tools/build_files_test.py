"""The BUILD files say what the Python files import."""

import ast
import collections
import os
import shutil
import subprocess

import pytest

from tools import build_files

ROOT = build_files.ROOT
OFFLINE = ROOT.parent / 'shared' / 'tools' / 'bazel-offline'
RUNNER = '//tools:pytest_main.py'

in_checkout = pytest.mark.skipif(
  not (ROOT / 'WORKSPACE').exists(),
  reason='the BUILD files are not here (installed package or Bazel sandbox)',
)


def _declared():
  """Returns `{package: [keywords of each py_* rule]}` of the BUILD files."""
  result = collections.defaultdict(list)
  for folder in build_files.FOLDERS:
    for path in (ROOT / folder).rglob('BUILD'):
      package = path.parent.relative_to(ROOT).as_posix()
      for statement in ast.parse(path.read_text()).body:
        call = statement.value
        if call.func.id.startswith('py_'):
          rule = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
          result[package].append(rule)
  return result


@pytest.fixture(scope='module')
def targets():
  """Those of the checkout: all files are parsed for them."""
  return build_files.targets()


@in_checkout
def test_build_files_are_up_to_date(targets, monkeypatch):
  monkeypatch.setattr(build_files, 'targets', lambda root: targets)
  found = build_files.differences()
  fix = 'Run `make build-files` and commit what it changes.'
  assert not found, '\n'.join(['', *found, fix])


@in_checkout
def test_every_file_is_in_exactly_one_target():
  owners = collections.Counter(
    f'{package}/{source}'
    for package, rules in _declared().items()
    for rule in rules
    for source in rule['srcs']
    if source != RUNNER
  )
  files = {
    path.relative_to(ROOT).as_posix()
    for folder in build_files.FOLDERS
    for path in (ROOT / folder).rglob('*.py')
  }
  assert set(owners) == files, 'Run `make build-files`.'
  assert set(owners.values()) == {1}


@in_checkout
def test_declared_deps_are_targets():
  labels, deps = set(), set()
  for package, rules in _declared().items():
    for rule in rules:
      labels.add(f'//{package}:{rule["name"]}')
      for dep in rule.get('deps', []):
        if dep.startswith(':'):
          dep = f'//{package}{dep}'
        elif ':' not in dep:
          dep = f'{dep}:{dep.rsplit("/", 1)[-1]}'
        deps.add(dep)
  assert deps <= labels


@in_checkout
def test_modules_have_the_files_that_they_read():
  (target,) = (
    rule
    for rule in _declared()['experiments']
    if rule['name'] == 'public_tables'
  )
  found = sorted((ROOT / 'experiments' / 'schemas').iterdir())
  assert target['data'] == [f'schemas/{path.name}' for path in found]


@in_checkout
def test_the_report_has_its_template_and_style():
  data = {
    rule['name']: rule.get('data')
    for rule in _declared()['tfdpflows/evaluation']
  }
  assert data['report'] == ['report.html']
  assert data['page'] == ['report.css']


@in_checkout
def test_no_target_needs_itself(targets):
  needs = {t.label: t.deps for t in targets}
  done = set()

  def visit(label, path):
    assert label not in path, (
      f'{" -> ".join([*path, label])}: import the module that is needed, not '
      'the package around it.'
    )
    if label not in done:
      for dep in needs[label]:
        visit(dep, (*path, label))
      done.add(label)

  for label in needs:
    visit(label, ())


@pytest.fixture
def tree(tmp_path):
  """A repository with one import of every kind."""
  files = {
    'tfdpflows/__init__.py': "_LAZY = {'Model': 'tfdpflows.models.density'}\n"
    "_SUBPACKAGES = ('models',)\n",
    'tfdpflows/seeds.py': (
      'from typing import TYPE_CHECKING\n'
      'if TYPE_CHECKING:\n  from tfdpflows.models import density\n'
    ),
    'tfdpflows/models/__init__.py': 'from tfdpflows.models import density\n',
    'tfdpflows/models/density.py': (
      'import numpy as np\n\n\n'
      'def f():\n  from tfdpflows import seeds\n  return seeds, np\n'
    ),
    'tfdpflows/models/relative.py': (
      'from . import density\nfrom .. import seeds\n'
    ),
    'tests/conftest.py': '',
    'tests/models/helper.py': 'import tfdpflows.seeds\n',
    'tests/models/density_test.py': (
      'import helper\nfrom tfdpflows.models import Model, density\n'
    ),
    'experiments/bench.py': "\nif __name__ == '__main__':\n  pass\n",
  }
  for name, text in files.items():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return tmp_path


def test_finds_imports_of_every_kind(tree):
  found = {t.label: (t.kind, t.deps) for t in build_files.targets(tree)}
  library, density = 'py_library', '//tfdpflows/models:density'
  assert found == {
    '//experiments:bench': ('py_binary', ()),
    '//tests:conftest': (library, ()),
    '//tests/models:helper': (library, ('//tfdpflows:seeds',)),
    '//tests/models:density_test': (
      'py_test',
      (
        '//tests/models:helper',
        '//tests:conftest',
        '//tfdpflows/models:density',
        '//tfdpflows/models:models',
      ),
    ),
    '//tfdpflows:seeds': (library, ()),
    '//tfdpflows:tfdpflows': (library, (density, '//tfdpflows/models:models')),
    '//tfdpflows/models:models': (library, (density,)),
    '//tfdpflows/models:density': (library, ('//tfdpflows:seeds',)),
    '//tfdpflows/models:relative': (library, (density, '//tfdpflows:seeds')),
  }


def test_differences_name_what_to_change(tree):
  assert 'tfdpflows/BUILD is missing' in build_files.differences(tree)
  assert 'tfdpflows/models/BUILD' in build_files.write(tree)
  assert build_files.differences(tree) == []
  assert build_files.write(tree) == []

  (tree / 'tfdpflows' / 'seeds.py').write_text('from tfdpflows import models\n')
  (tree / 'tests' / 'empty').mkdir()
  (tree / 'tests' / 'empty' / 'BUILD').write_text('')
  stale, needless = sorted(build_files.differences(tree), reverse=True)
  assert stale.startswith('tfdpflows/BUILD is not up to date')
  assert '+ deps = ["//tfdpflows/models"],' in stale
  assert needless == 'tests/empty/BUILD is in a folder without Python files'
  assert set(build_files.write(tree)) == {
    'tfdpflows/BUILD',
    'tests/empty/BUILD',
  }


@in_checkout
def test_bazel_reads_the_build_files(tmp_path):
  if 'TEST_SRCDIR' in os.environ:
    pytest.skip('Bazel is running this test and so has read them')
  if shutil.which('bazel') is None:
    pytest.skip('bazel is not installed')
  if not OFFLINE.exists():
    pytest.skip(f'{OFFLINE} is not there')
  # A copy, so that Bazel leaves no links and no locks in the checkout.
  for folder in build_files.FOLDERS:
    shutil.copytree(ROOT / folder, tmp_path / 'checkout' / folder)
  for file in ('WORKSPACE', 'BUILD', '.bazelignore'):
    shutil.copy(ROOT / file, tmp_path / 'checkout' / file)
  result = subprocess.run(
    [str(OFFLINE), 'query', '//...'],
    cwd=tmp_path / 'checkout',
    env={**os.environ, 'TEST_TMPDIR': str(tmp_path / 'bazel')},
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )
  assert result.returncode == 0, result.stderr
  labels = set(result.stdout.split())
  assert {'//:tfdpflows', '//tests/tools:build_files_test'} <= labels
