"""The Python of the README and of the docs runs as it stands."""

import os
import re
import subprocess
import sys

import pytest

from experiments import datasets

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


PAGES = ('README.md', 'docs/accounting.md', 'docs/training.md')


def _examples():
  found = []
  for page in PAGES:
    with open(os.path.join(ROOT, page), encoding='utf-8') as file:
      found += re.findall(r'```python\n(.*?)```', file.read(), re.DOTALL)
  return found


def _write_files(folder, num_rows):
  train, _, schema, _ = datasets.randhie()
  train.head(num_rows).to_csv(folder / 'people.csv', index=False)
  schema.to_json(folder / 'schema.json')


@pytest.mark.slow
@pytest.mark.parametrize('number', range(len(_examples())))
def test_example_runs(number, tmp_path, monkeypatch, capsys):
  """In this process, with one epoch where the page has more."""
  _write_files(tmp_path, 300)
  monkeypatch.chdir(tmp_path)
  code = re.sub(r'epochs=\d\d', 'epochs=1', _examples()[number])
  exec(compile(code, f'example {number}', 'exec'), {'__name__': '__main__'})
  assert 'Claim: epsilon <= ' in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize('number', range(len(_examples())))
def test_example_runs_as_it_stands(number, tmp_path):
  _write_files(tmp_path, 1500)
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
