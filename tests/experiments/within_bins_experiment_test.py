import json

from experiments import within_bins, within_bins_tables
from tests.tabular import small_table


def test_smoke(tmp_path):
  path = tmp_path / 'within_bins.json'
  options = {'epsilons': (8.0,), 'output': str(path), 'smoke': True}
  with small_table.untrained():
    found = within_bins.run(['diamonds'], **options)
  assert [run['within'] for run in found.runs] == [False, True]
  assert all(0 < run['kendall_mae'] < 2 for run in found.runs)
  assert within_bins.run(['diamonds'], **options).runs == found.runs
  path.write_text(json.dumps({**json.loads(path.read_text()), 'smoke': False}))
  section = within_bins_tables.section(tmp_path)
  assert section.count('| 8 | yes |') == section.count('| 8 | no |') == 1
