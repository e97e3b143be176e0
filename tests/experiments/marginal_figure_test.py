import numpy as np
import pandas as pd
import pytest

from experiments import marginal_figure
from tfdpflows.tabular import Field, TableSchema

SCHEMA = TableSchema(
  [
    Field('age', 'integer', 0, 99),
    Field('gain', 'number', 0.0, 1e5, required=True),
    Field('constant', 'integer', 0, 9, required=True),
    Field('city', 'string', enum=tuple(f'c{i:02}' for i in range(20))),
    Field('member', 'boolean', required=True),
  ]
)


def table(n=500, seed=0):
  rng = np.random.default_rng(seed)
  frame = pd.DataFrame(
    {
      'age': pd.array(rng.integers(20, 60, n), 'Int64'),
      'gain': rng.uniform(0, 1e5, n),
      'constant': 3,
      'city': rng.choice([f'c{i:02}' for i in range(5)], n),
      'member': rng.random(n) < 0.3,
    }
  )
  frame.loc[:50, ['age', 'city']] = pd.NA
  return frame


def stairs(panel):
  return [patch.get_data() for patch in panel.patches]


def test_shares_are_overlaid_column_by_column(tmp_path):
  real, made = table(), table(seed=1)
  figure = marginal_figure.draw(real, {'flow': made, 'other': real}, SCHEMA)
  panels = [a for a in figure.axes if a.get_title(loc='left')]
  assert [p.get_title(loc='left') for p in panels] == list(SCHEMA.names)
  age, gain, constant, city, member = map(stairs, panels)
  for column in (age, gain, constant, member):
    assert all(len(column) == 3 for column in (age, gain, constant, member))
    assert [s.values.sum() for s in column] == pytest.approx([1, 1, 1])
  # Whole numbers have bins of their own, missing ones are no number.
  assert np.diff(age[0].edges) == pytest.approx(1)
  counts = np.histogram(made['age'].dropna(), age[0].edges)[0]
  assert age[1].values == pytest.approx(counts / counts.sum(), abs=0.01)
  # Categories come by their real share; the missing ones are one of them.
  assert np.all(np.diff(city[0].values) <= 0)
  assert len(city[0].values) == 12
  assert city[2].values == pytest.approx(city[0].values)
  figure.savefig(tmp_path / 'figure.png', dpi=40)
  assert (tmp_path / 'figure.png').stat().st_size > 1000


@pytest.mark.parametrize('number', [0, 5])
def test_only_so_many_tables_can_be_told_apart(number):
  made = {str(i): table(5) for i in range(number)}
  with pytest.raises(ValueError, match=f'made has {number} tables'):
    marginal_figure.draw(table(5), made, SCHEMA)
