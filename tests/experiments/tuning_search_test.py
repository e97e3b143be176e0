import json

from experiments import tuning_search, tuning_tables


def test_smoke(tmp_path):
  path = tmp_path / 'tuning_search.json'
  options = {
    'epsilons': (1.0,),
    'mean_trials': (2.0,),
    'output': str(path),
    'smoke': True,
  }
  found = tuning_search.run(['digits'], **options)
  assert [run['method'] for run in found.runs] == [
    'fixed',
    'fixed',
    'default',
    'search',
  ]
  assert found.runs[-1]['epsilon_spent'] <= 1.0
  assert found.runs[-1]['chosen']['step_size'] == 0.02
  assert tuning_search.run(['digits'], **options).runs == found.runs
  path.write_text(json.dumps({**json.loads(path.read_text()), 'smoke': False}))
  section = tuning_tables.section(tmp_path)
  assert 'search, 2 trials on average' in section
  assert section.count('| 1 |') == 1
