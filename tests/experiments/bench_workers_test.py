"""The measurement of two workers runs."""

import json

import pytest

from experiments import bench_workers

pytestmark = [pytest.mark.slow, pytest.mark.full]


def test_smoke(tmp_path):
  path = tmp_path / 'workers.json'
  content = bench_workers.run(output=str(path), smoke=True)
  assert json.loads(path.read_text()) == content
  assert [run['workers'] for run in content['runs']] == [1, 1, 2]
  assert len({run['epsilon_spent'] for run in content['runs']}) == 1
  assert all(ratio > 0 for ratio in bench_workers.ratios(content).values())
