"""Ranges and several values as conditions."""

import numpy as np
import pandas as pd
import pytest

from tests.tabular import small_table
from tfdpflows.cli import main as cli
from tfdpflows.tabular import (
  CellFormat,
  Field,
  TableSchema,
  TabularSynthesizer,
)
from tfdpflows.tabular.row_filter import is_filter, row_filter, validated

pytestmark = pytest.mark.usefixtures('unexported')

SCHEMA = TableSchema(
  [
    Field('age', 'integer', 0, 99),
    Field('gain', 'number', 0.0, 1000.0, required=True),
    Field('city', 'string', enum=('Bonn', 'Ulm', 'Jena')),
    Field('day', 'date', '2020-01-01', '2020-12-31', required=True),
    Field('grade', 'number', enum=(1.0, 2.5, 5.0), required=True),
  ]
)
OVER = pd.Interval(65, np.inf, 'both')


def table(n=1500):
  rng = np.random.default_rng(0)
  frame = pd.DataFrame(
    {
      'age': rng.integers(0, 100, n).astype(float),
      'gain': np.where(rng.random(n) < 0.6, 0.0, rng.uniform(0, 1000, n)),
      'city': rng.choice(['Bonn', 'Ulm', 'Jena'], n),
      'day': pd.Timestamp('2020-01-01')
      + pd.to_timedelta(rng.integers(0, 366, n), 'D'),
      'grade': rng.choice([1.0, 2.5, 5.0], n),
    }
  )
  frame.loc[rng.random(n) < 0.2, 'age'] = np.nan
  frame.loc[rng.random(n) < 0.2, 'city'] = None
  return frame


def met(name, condition, rows=None):
  rows = SCHEMA.validate(table() if rows is None else rows)
  return rows, row_filter(SCHEMA, {name: condition})(rows)


def test_ranges_have_the_ends_that_they_say():
  for closed, wanted in (
    ('both', [1, 2, 3]),
    ('left', [1, 2]),
    ('right', [2, 3]),
    ('neither', [2]),
  ):
    rows = pd.concat([table(5)] * 1, ignore_index=True)
    rows['age'] = [0, 1, 2, 3, 4]
    rows, found = met('age', pd.Interval(1, 3, closed), rows)
    assert rows['age'][found].tolist() == wanted
  rows, found = met('gain', pd.Interval(0, np.inf, 'right'))
  assert (rows['gain'][found] > 0).all() and (rows['gain'][~found] == 0).all()


def test_missing_values_are_in_no_range():
  rows, found = met('age', pd.Interval(-np.inf, np.inf, 'both'))
  assert (found == rows['age'].notna()).all()


def test_dates_and_numbers_of_an_enum():
  first = pd.Timestamp('2020-07-01')
  rows, found = met('day', pd.Interval(first, pd.Timestamp.max, 'left'))
  assert (found == (rows['day'] >= first)).all() and found.any()
  units = pd.Interval(18444.0, np.inf, 'both')  # Since 1970.
  assert (met('day', units)[1] == found).all()
  rows, found = met('grade', pd.Interval(2, 5, 'left'))
  assert (found == (rows['grade'] == 2.5)).all()


def test_several_values():
  rows, found = met('city', ['Ulm', 'Jena'])
  assert (found == rows['city'].isin(['Ulm', 'Jena'])).all()
  rows, found = met('city', {'Ulm', None})
  assert (found == (rows['city'].isna() | (rows['city'] == 'Ulm'))).all()
  rows, found = met('age', [7, 8])
  assert (found == rows['age'].isin([7, 8]).fillna(False)).all()
  assert is_filter(('a',)) and not is_filter('a') and not is_filter(None)


@pytest.mark.parametrize(
  ('conditions', 'message'),
  [
    ({'wage': OVER}, "on column 'wage'"),
    ({'city': OVER}, "'city' is a range, and its type is string"),
    ({'age': pd.Interval(100, 200)}, 'no value of the schema'),
    ({'age': pd.Interval(99, 200)}, 'no value of the schema'),
    ({'age': pd.Interval(-5, 0, 'left')}, 'no value of the schema'),
    ({'city': []}, "'city' has no value"),
    ({'city': ['Rom']}, "'city' is outside of the schema"),
    ({'city': ['Rom']}, "not in the enum. It has 'Bonn', 'Ulm', 'Jena'.$"),
    ({'age': pd.Interval(pd.Timestamp(0), pd.Timestamp(1))}, 'is no integer'),
  ],
)
def test_conditions_that_the_schema_rules_out(conditions, message):
  with pytest.raises(ValueError, match=message):
    row_filter(SCHEMA, conditions)


def test_values_are_refused_with_those_that_there_are():
  cells = CellFormat(decimal_char=',', true_values=('Y',), false_values=('N',))
  schema = TableSchema(
    [
      Field('loss', 'boolean', cells=cells),
      Field('amount', 'number', 0, 9999, cells=cells),
      Field('zip', 'string', enum=[f'{i:02}' for i in range(25)]),
    ]
  )
  for name, value, message in (
    ('loss', 'true', "'true' is no boolean: write Y or N.$"),
    ('amount', '10.5', "no number: the decimal sign of the column is ','.$"),
    ('zip', 'x', "It has '00', .*, '19' and 5 more.$"),
    ('kind', 'x', "on column 'kind'"),
  ):
    with pytest.raises(ValueError, match=message):
      validated(schema, name, value)
  assert validated(schema, 'amount', '10,5')['amount'].tolist() == [10.5]


@pytest.fixture(scope='module')
def synthesizer():
  with small_table.untrained(), small_table.short():
    return TabularSynthesizer(
      SCHEMA,
      epsilon=5.0,
      delta=1e-5,
      accountant='rdp',
      epochs=1.0,
      adaptive_marginals=2,
    ).fit(table(), progress=False)


def test_sampled_rows_meet_them_and_are_rows_of_the_model(synthesizer):
  conditions = {'age': OVER, 'city': ['Ulm', 'Jena'], 'grade': 5.0}
  rows = synthesizer.sample(300, seed=0, conditions=conditions)
  assert len(rows) == 300
  assert (rows['age'] >= 65).all()
  assert set(rows['city']) == {'Ulm', 'Jena'}
  assert (rows['grade'] == 5).all()
  assert rows.attrs['conditions'] == {
    'method': 'exact',
    'effective_rows': 300.0,
  }
  every = synthesizer.sample(20_000, seed=1)
  every = every[every['city'].isin(['Ulm', 'Jena']) & (every['grade'] == 5)]
  share = (every['age'] >= 90).sum() / (every['age'] >= 65).sum()
  assert abs((rows['age'] >= 90).mean() - share) < 0.1


def test_rare_rows_are_refused(synthesizer):
  # Not resampled, as equal values would be.
  with pytest.raises(ValueError, match='Hardly any row'):
    synthesizer.sample(
      100_000,
      seed=0,
      conditions={
        'gain': pd.Interval(500.0, 500.001),
        'age': pd.Interval(98, 99),
      },
    )


def test_the_command_line(synthesizer, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  synthesizer.save('model')
  argv = ['sample', '--model_dir=model', '--num_rows=50', '--output=a.csv']
  conditions = ['age>=65', 'age<70', 'city=Ulm|Bonn', 'day>2020-06-30']
  assert cli([*argv, *(f'--condition={c}' for c in conditions)]) == 0
  rows = pd.read_csv('a.csv')
  assert len(rows) == 50
  assert rows['age'].between(65, 69).all()
  assert set(rows['city']) <= {'Ulm', 'Bonn'}
  assert (rows['day'] > '2020-06-30').all()
  argv.append('--overwrite')
  for text, message in (
    ('age', 'no =, >=, <=, > or <'),
    ('wage>3', "on column 'wage'"),
    ('age>old', "'old' is no number"),
    ('day>=old', "'old' is no date"),
    ('city>Bonn', "'city' is a range, and its type is string"),
    ('age>=100', 'no value of the schema'),
    ('age>=old', '--condition=age>=old is a range'),
    ('city=Rom', "not in the enum. It has 'Bonn', 'Ulm', 'Jena'."),
    (
      'day>=2025-06-01',
      'is [2025-06-01, inf], in which no value of the schema is: it has '
      '2020-01-01 to 2020-12-31.',
    ),
  ):
    assert cli([*argv, f'--condition={text}']) == 2
    assert message in capsys.readouterr().err
  for pair in (['age>1', 'age>2'], ['age=1', 'age<2'], ['age<2', 'age=1']):
    assert cli([*argv, *(f'--condition={c}' for c in pair)]) == 2
    assert 'two conditions' in capsys.readouterr().err
  assert cli([*argv, '--condition=age>5', '--condition=age<3']) == 2
  assert 'no value' in capsys.readouterr().err
