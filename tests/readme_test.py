"""The Python of the README, and of pages of single examples, runs as it is."""

import contextlib
import os
import re
import subprocess
import sys

import pytest

import tfdpflows
from experiments import datasets
from tests.grids import thinned
from tests.tabular import small_table
from tests.unproven import unproven
from tfdpflows.tabular import TableSchema
from tfdpflows.tabular.models.histogram import HistogramModel
from tools import doc_pages

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The others run from top to bottom, in tests/tools/doc_pages_test.py.
PAGES = ('README.md', *(f'docs/{page}' for page in doc_pages.STANDALONE))


def _examples():
  found = []
  for page in PAGES:
    with open(os.path.join(ROOT, page), encoding='utf-8') as file:
      found += re.findall(r'```python\n(.*?)```', file.read(), re.DOTALL)
  return found


@pytest.fixture(scope='module')
def people():
  train, _, schema, _ = datasets.randhie()
  fields = [schema[name] for name in ('mdvis', 'idp', 'physlm', 'disea')]
  schema = TableSchema(fields)
  return train[list(schema.names)].head(600), schema


# The first one of the README has no line that the page on tables has not, and
# runs as a part of that; of the page on training, one is the classifier of
# docs/learn/classifier.md, and one differs from the second one of the README in
# defaults that it names.
IN_README, ON_TABLES = 0, 14
ALIKE = IN_README, 6, 10


def test_the_page_on_tables_has_the_example_of_the_readme():
  short, long = (_examples()[n].splitlines() for n in (IN_README, ON_TABLES))
  assert [line for line in long if line in short] == short
  assert len(long) == len(short) + 1


@pytest.mark.slow
@pytest.mark.parametrize(
  'number', thinned(range(len(_examples())), lambda n: n not in ALIKE)
)
def test_example_runs(number, people, tmp_path, monkeypatch, capsys):
  """Where TensorFlow is imported, which takes a program seconds."""
  table, schema = people
  table.to_csv(tmp_path / 'people.csv', index=False)
  schema.to_json(tmp_path / 'schema.json')
  monkeypatch.chdir(tmp_path)
  # Of 16 steps, in place of 512: no example shows what they learn.
  monkeypatch.setattr(HistogramModel, 'epochs', 1.0)
  code = _examples()[number]
  # Models of tables are proven in docs/learn/table.md.
  own = 'DensityModel' in code or 'PrivateModel' in code
  with small_table.short(), contextlib.nullcontext() if own else unproven():
    exec(compile(code, 'example', 'exec'), {'__name__': '__main__'})
  assert 'Claim: epsilon <= ' in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize('number', [IN_README, ON_TABLES])
def test_an_example_is_a_program(number, people, tmp_path):
  table, schema = people
  table.to_csv(tmp_path / 'people.csv', index=False)
  schema.to_json(tmp_path / 'schema.json')
  found = subprocess.run(
    [sys.executable, '-c', _examples()[number]],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': ROOT, 'TF_CPP_MIN_LOG_LEVEL': '3'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert found.returncode == 0, found.stderr
  assert 'Claim: epsilon <= ' in found.stdout


@pytest.mark.core
def test_contributing_names_what_is_there():
  with open(os.path.join(ROOT, 'CONTRIBUTING.md'), encoding='utf-8') as file:
    named = re.findall(
      r'`((?:tfdpflows|tests|experiments)/[\w/.]+)`', file.read()
    )
  assert len(named) > 8
  missing = [n for n in named if not os.path.exists(os.path.join(ROOT, n))]
  assert not missing


@pytest.mark.core
def test_the_citation_is_of_this_version():
  with open(os.path.join(ROOT, 'CITATION.cff'), encoding='utf-8') as file:
    assert f'\nversion: {tfdpflows.__version__}\n' in file.read()
