"""The experiment on PATE, on images that scikit-learn carries."""

import json

import pytest

from experiments import pate_students


def test_smoke(tmp_path):
  output = tmp_path / 'pate.json'
  options = {
    'mechanisms': pate_students.MECHANISMS,
    'epsilons': (8.0,),
    'num_teachers': (10,),
    'agreements': (0.6,),
    'smoke': True,
    'output': str(output),
  }
  results = pate_students.run('digits', **options)
  assert [run['mechanism'] for run in results['runs']] == list(
    pate_students.MECHANISMS
  )
  for run in results['runs']:
    assert run['spent'] <= 8.0
    assert 0 <= run['answers'] <= run['num_queries']
    assert 0 <= run['accuracy'] <= 1
  assert json.loads(output.read_text()) == results
  # Nothing is run twice.
  assert pate_students.run('digits', **options) == results


def test_data_that_are_not_there(monkeypatch, tmp_path):
  monkeypatch.setattr(pate_students.pate_data, 'SHARED', tmp_path)
  with pytest.raises(FileNotFoundError, match='--dataset=digits'):
    pate_students.run('mnist')
