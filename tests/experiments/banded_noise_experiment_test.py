import dataclasses
import json

import pytest

from experiments import banded_noise, banded_tables


def test_smoke(tmp_path):
  path = tmp_path / 'banded_noise.json'
  options = {'epsilons': (8.0,), 'output': str(path), 'smoke': True}
  found = banded_noise.run(['digits'], **options)
  assert [run['noise'] for run in found.runs] == ['independent'] * 2 + [
    'banded'
  ] * 2
  assert [run['bands'] for run in found.runs] == [1, 1, 2, 2]
  assert all(7.9 < run['epsilon_spent'] <= 8.0 for run in found.runs)
  assert banded_noise.run(['digits'], **options).runs == found.runs
  path.write_text(json.dumps({**json.loads(path.read_text()), 'smoke': False}))
  section = banded_tables.section(tmp_path)
  assert section.count('| 8 |') == 2 and '| banded | 2 |' in section


@pytest.mark.full
def test_smoke_of_a_flow(monkeypatch):
  """With one learning rate there is nothing to choose."""
  task = banded_noise.TASKS['pinwheel']()
  one = dataclasses.replace(task, learning_rates=task.learning_rates[:1])
  monkeypatch.setitem(banded_noise.TASKS, 'pinwheel', lambda: one)
  monkeypatch.setattr(banded_noise, 'NOISE', ('banded',))
  flows = banded_noise.run(['pinwheel'], epsilons=(1.0,), smoke=True).runs
  assert all(-50.0 < run['test'] < 10.0 for run in flows)
