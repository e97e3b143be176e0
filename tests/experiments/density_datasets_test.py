import numpy as np
import pytest

from experiments import density_datasets


class TestData:
  @pytest.mark.parametrize('name', density_datasets.GENERATED)
  def test_generated_rows_are_in_the_unit_ball(self, name):
    rows = density_datasets.load(name)
    norms = np.linalg.norm(rows.x, axis=1)
    assert rows.x.shape == (30_000, 2)
    assert rows.x.dtype == np.float32
    assert norms.max() <= 1 + 1e-6
    assert norms.max() > 0.7
    assert 'divided by' in rows.scaling

  @pytest.mark.parametrize('name', density_datasets.SHARED)
  def test_shared_rows_are_in_the_unit_ball(self, name):
    try:
      rows = density_datasets.load(name)
    except FileNotFoundError:
      pytest.skip('the shared folder is not beside the repository')
    assert np.isfinite(rows.x).all()
    assert np.linalg.norm(rows.x, axis=1).max() <= 1 + 1e-6
    assert (name == 'lifesci') != rows.note.startswith('partial')

  def test_missing_shared_folder(self, monkeypatch, tmp_path):
    monkeypatch.setattr(density_datasets.datasets, 'SHARED', tmp_path)
    with pytest.raises(FileNotFoundError, match='Put the shared folder there'):
      density_datasets.load('lifesci')

  def test_unknown_data_set(self):
    with pytest.raises(ValueError, match="No data set 'nope'"):
      density_datasets.load('nope')

  def test_every_row_is_tested_once(self):
    parts = [density_datasets.split(26733, i) for i in range(10)]
    tests = np.concatenate([test for _, test in parts])
    assert np.array_equal(np.sort(tests), np.arange(26733))
    for train, test in parts:
      assert len(train) + len(test) == 26733
      assert not set(train) & set(test)
    with pytest.raises(ValueError, match='must be in'):
      density_datasets.split(10, 10)
