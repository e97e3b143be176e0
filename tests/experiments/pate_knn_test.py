"""The experiment on Private-kNN, on images that scikit-learn carries."""

import json

import numpy as np
import pytest

from experiments import pate_knn


def test_smoke(tmp_path):
  output = tmp_path / 'knn.json'
  options = {
    'epsilons': (3.0,),
    'num_queries': (25,),
    'num_neighbors': (60,),
    'sampling_probabilities': (1.0, 0.5),
    'smoke': True,
    'output': str(output),
  }
  results = pate_knn.run('digits', **options)
  assert [run['sampling_probability'] for run in results['runs']] == [1.0, 0.5]
  for run in results['runs']:
    assert 2.9 < run['spent'] <= 3.0
    assert 0.3 < run['correct'] <= 1
    assert 0 <= run['accuracy'] <= 1
  assert json.loads(output.read_text()) == results
  # Nothing is run twice.
  assert pate_knn.run('digits', **options) == results
  assert len(pate_knn.summary(results)) == 2


def test_the_stand_in_has_training_rows_alone():
  x = np.arange(12_000.0)[:, None]
  public = np.full([3, 1], -1.0)
  data = pate_knn.pate_data.PateData(
    'x', x, x[:, 0], public, public, public, public, 10, ''
  )
  found = pate_knn._stand_in(data)
  parts = np.concatenate([found.x, found.pool, found.test_x])
  np.testing.assert_array_equal(parts, x)
  labels = [found.y, found.pool_labels, found.test_y]
  np.testing.assert_array_equal(np.concatenate(labels), x[:, 0])


def test_data_that_are_not_there(monkeypatch, tmp_path):
  monkeypatch.setattr(pate_knn.pate_data, 'SHARED', tmp_path)
  with pytest.raises(FileNotFoundError, match='--dataset=digits'):
    pate_knn.run('mnist')
