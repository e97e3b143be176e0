import json
import os
import pathlib
import subprocess
import sys

import pytest

from experiments import accounting_comparison

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def results(tmp_path_factory):
  folder = tmp_path_factory.mktemp('comparison')
  found = accounting_comparison.run(
    folder / 'results.json',
    folder / 'figure.png',
    smoke=True,
    command=['here'],
  )
  return folder, found


def test_files_are_written_once(results):
  folder, found = results
  assert json.loads((folder / 'results.json').read_text()) == found
  assert found['command'] == ['here']
  assert found['seconds'] > 0
  assert found['versions']['dp-accounting']
  assert (folder / 'figure.png').read_bytes().startswith(b'\x89PNG')
  with pytest.raises(FileExistsError, match='--overwrite'):
    accounting_comparison.run(folder / 'results.json', smoke=True)
  with pytest.raises(FileExistsError, match='--overwrite'):
    accounting_comparison.run(plot=folder / 'figure.png', smoke=True)


def test_hundred_epochs_are_those_of_the_paper(results):
  _, found = results
  found = found['figures']['abadi_2016']
  at = found['epochs'].index(100)
  names = set(found['published']) - {'epochs'}
  # The second was chosen for coming near, so that it only guards the curve.
  assert names == {
    'moments accountant of 2016',
    'strong composition of 2016, reconstructed',
  }
  for name in names:
    published = found['published'][name]
    assert found['epsilon'][name][at] == pytest.approx(published, rel=0.02)


def test_every_accountant_is_there_and_in_order(results):
  _, found = results
  order = ['gdp', 'pld', 'rdp', 'advanced', 'basic', 'zcdp']
  for figure in found['figures'].values():
    epsilon = figure['epsilon']
    assert set(found['guarantee']) <= set(epsilon)
    for values in epsilon.values():
      assert values == sorted(values)
    last = [epsilon[name][-1] for name in order]
    assert last == sorted(last)
  # The interval that prv_accountant 0.2.0 certifies for the same training.
  pld = found['figures']['life_science']['epsilon']['pld'][-1]
  assert 0.7390 <= pld <= 0.7592


def test_figure_says_what_is_asymptotic(results):
  _, found = results
  figure = accounting_comparison.draw(found)
  for ax in figure.axes:
    labels = [text.get_text() for text in ax.texts]
    assert any('gdp, asymptotic' in label for label in labels)
    dashed = [line for line in ax.lines if line.get_linestyle() == '--']
    assert len(dashed) == 1
    assert ax.get_yscale() == 'log'


def test_needs_no_tensorflow():
  code = (
    'import sys, experiments.accounting_comparison\n'
    "print(any(x.split('.')[0] == 'tensorflow' for x in sys.modules))"
  )
  result = subprocess.run(
    [sys.executable, '-c', code],
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=60,
    check=True,
  )
  assert result.stdout.strip() == 'False'
