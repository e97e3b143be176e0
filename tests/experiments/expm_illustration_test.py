"""The illustration: grids hold densities, distances are those of the laws."""

import json

import numpy as np
import pytest

from experiments import expm_illustration

AXES = [np.linspace(-1.0, 1.0, 41), np.linspace(-2.0, 2.0, 31)]


def gaussian(scale):
  x, y = np.meshgrid(*AXES, indexing='ij')
  weights = np.exp(-(x**2 + y**2 / 4) / 2 / scale**2)
  return weights / weights.sum()


def test_compared():
  one, other = gaussian(0.3), gaussian(0.15)
  same = expm_illustration.compared(AXES, one, one)
  assert same['dp_distance_on_grid'] == 0
  assert same['total_variation_on_grid'] == 0
  assert same['volume_ratio'] == pytest.approx(1)
  found = expm_illustration.compared(AXES, one, other)
  assert found['volume_ratio'] == pytest.approx(0.25, abs=0.02)
  assert found['deviation'] == pytest.approx([0.3, 0.6], abs=0.02)
  assert found['dp_distance_on_99_percent'] < found['dp_distance_on_grid']


def test_the_box_holds_the_density():
  mechanism = expm_illustration.target(1.0, 50)
  axes, weights = expm_illustration.box(mechanism, 41)
  edges = [weights[0], weights[-1], weights[:, 0], weights[:, -1]]
  assert max(edge.sum() for edge in edges) < 0.01
  assert weights.sum() == pytest.approx(1)
  assert (weights > 1e-4).sum() > 100
  assert [len(axis) for axis in axes] == [41, 41]


def test_smoke(tmp_path):
  output, plot = tmp_path / 'results.json', tmp_path / 'plot.png'
  expm_illustration.run(
    epsilons=[1.0], n=50, output=output, plot=plot, smoke=True
  )
  content = json.loads(output.read_text())
  assert [run['flow'] for run in content['runs']] == ['planar', 'sylvester']
  assert content['seed'] == 0
  assert content['environments'][0]['versions']['tensorflow']
  for run in content['runs']:
    assert run['seconds'] > 0
    assert run['dp_distance_on_grid'] >= run['dp_distance_on_99_percent'] > 0
  assert plot.stat().st_size > 1000
  lines = list(expm_illustration._lines(content))
  assert lines[0].startswith('epsilon 1, planar: volume')
