"""The measurement of large tables runs, and its section is written."""

import json
import os

import pytest

from experiments import scale, scale_figure, scale_tables
from tests import forked, unproven
from tests.tabular import small_table

# TensorFlow's import and the proof are not what is tested here.
_FAST = f"""
from {unproven.__name__} import unproven
context = unproven()
context.__enter__()
"""


@pytest.fixture
def fast_processes(tmp_path, monkeypatch):
  """Has the processes that measure begin where TensorFlow is imported."""
  log = tmp_path.parent / f'{tmp_path.name} log'

  def run(script, *arguments):
    assert forked.run(['-c', _FAST + script, *arguments], log) == 0, (
      log.read_text()
    )
    return log.read_text()

  monkeypatch.setattr(scale, '_output', run)


def test_smoke(tmp_path, fast_processes):
  path = tmp_path / 'scale.json'
  rows = tmp_path / 'rows'
  arguments = {'data': str(rows), 'output': str(path), 'smoke': True}
  # The model that rows are drawn from; those that are measured are trained in
  # processes of their own.
  with small_table.untrained():
    content = scale.run('randhie', **arguments)
  (run,) = content['runs']
  assert run['rows'] == 300
  assert run['rows_per_second_read'] > 0
  assert 0.9 < run['epsilon_spent'] <= 1
  assert content['truth']['nats_lost'] == 0
  assert run['scores']['nats_lost'] != 0
  assert json.loads(path.read_text()) == content
  assert sorted(os.listdir(tmp_path)) == ['rows', 'scale.json']
  assert len(os.listdir(rows)) == 3
  # A run that is there is not made again.
  assert scale.run('randhie', **arguments) == content
  path.write_text(json.dumps({**content, 'smoke': False}))
  assert '| randhie | 300 | 1 |' in scale_tables.section(tmp_path)
  assert len(scale_figure.draw(content).axes) == 4
  assert len(os.listdir(rows)) == 3


@pytest.mark.full
def test_csv_gives_the_same_scores(tmp_path):
  parquet, csv = (
    scale.run(
      'randhie',
      data=str(tmp_path / 'rows'),
      file_format=file_format,
      measure_pass=False,
      smoke=True,
    )
    for file_format in ('parquet', 'csv')
  )
  assert csv['runs'][0]['scores'] == parquet['runs'][0]['scores']


@pytest.mark.full
def test_smoke_of_wide_tables(tmp_path):
  path = tmp_path / 'wide.json'
  content = scale.run_wide(
    [(6, 300)], kinds=['mixed'], output=str(path), smoke=True
  )
  (run,) = content['runs']
  assert run['dataset'] == 'wide, mixed'
  assert run['fit_cpu_seconds'] > 0
  assert 0.9 < run['epsilon_spent'] <= 1
  again = scale.run_wide(
    [(6, 300)], kinds=['mixed'], output=str(path), smoke=True
  )
  assert again == content
  path.write_text(json.dumps({**content, 'smoke': False}))
  assert '| wide, mixed | 6 | 300 |' in scale_tables.section(tmp_path)
