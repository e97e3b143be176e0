import math

import numpy as np
import pandas as pd
import pytest

from tfdpflows import accounting
from tfdpflows.evaluation import compare, verdict
from tfdpflows.evaluation.nearest_rows import nearest_rows
from tfdpflows.evaluation.rare_groups import rare_groups
from tfdpflows.tabular.field import Field
from tfdpflows.tabular.schema import TableSchema

SCHEMA = TableSchema(
  [
    Field('x', 'number', 0.0, 10.0),
    Field('y', 'integer', 0, 10, required=True),
    Field('kind', 'string', enum=('a', 'b', 'c')),
    Field('member', 'boolean', required=True),
  ]
)


def table(n=2000, seed=0, noise=0.3, rare=0.02):
  rng = np.random.default_rng(seed)
  y = rng.integers(0, 11, n)
  kind = np.where(rng.random(n) < rare, 'c', np.where(y > 5, 'a', 'b'))
  return SCHEMA.validate(
    pd.DataFrame(
      {
        'x': np.clip(y + rng.normal(0, noise, n), 0, 10),
        'y': y,
        'kind': kind,
        'member': rng.random(n) < 0.5,
      }
    )
  )


def judged(synthetic):
  comparison = compare(table(), synthetic, SCHEMA)
  return verdict.pair_verdict(comparison)


def test_pairs_are_judged_by_those_that_depend():
  assert judged(table(seed=1)).level == 'good'
  shuffled = table(seed=1)
  shuffled['x'] = shuffled['x'].to_numpy()[::-1]
  found = judged(shuffled)
  assert found.level == 'poor'
  assert 'of 3 pairs' in found.answer
  assert 'not x × y' in found.answer
  alone = table()[['member']].assign(other=table(seed=3)['member'])
  schema = TableSchema(
    [Field(name, 'boolean', required=True) for name in alone]
  )
  open_ = verdict.pair_verdict(compare(alone, alone, schema))
  assert open_.level == 'none'


def test_columns():
  assert verdict.column_verdict([], 3).level == 'good'
  assert verdict.column_verdict(['a'], 3).level == 'poor'
  found = verdict.column_verdict(list('abcd'), 40)
  assert found.level == 'fair'
  assert found.answer.endswith('explains: a, b, c, d.')
  found = verdict.column_verdict(list('abcde'), 40)
  assert found.answer.endswith('explains: a, b, c and 2 more.')
  # Shares say little of a mean where a range is wide.
  found = verdict.column_verdict([], 10, ['amount'])
  assert found.level == 'fair'
  assert '1 has another mean or standard deviation: amount.' in found.answer
  assert verdict.column_verdict([], 3, ['a']).level == 'poor'
  found = verdict.column_verdict(['a'], 10, ['a'])
  assert found.answer == '1 of 10 are farther off than chance explains: a.'
  # More that is wrong makes no better verdict.
  found = verdict.column_verdict(['a'], 10, ['b', 'c'])
  assert found.level == 'poor'
  assert found.answer.endswith(
    '2 have another mean or standard deviation: b, c.'
  )


@pytest.mark.parametrize(
  ('mean', 'std', 'is_off'),
  [
    (0.0, 1.0, False),
    (0.09, 1.2, False),
    (0.11, 1.0, True),
    (0.0, 1.3, True),
    (0.0, 0.7, True),
  ],
)
def test_means_and_standard_deviations(mean, std, is_off):
  x = np.repeat([-1.0, 1.0], 5000)
  assert verdict.mean_or_std_is_off(x, std * x + mean) == is_off
  # Constant columns are what they are, but for rounding.
  assert not verdict.mean_or_std_is_off(np.full(1000, 0.1), np.full(500, 0.1))
  assert verdict.mean_or_std_is_off(np.full(1000, 0.1), np.full(500, 0.2))
  assert not verdict.mean_or_std_is_off(1e308 * x, 1e308 * x)
  # Constant in one table alone, at the same mean; one value that is far out.
  assert verdict.mean_or_std_is_off(0 * x + 5, x + 5)
  assert verdict.mean_or_std_is_off(x + 5, 0 * x + 5)
  assert verdict.mean_or_std_is_off(x, np.append(x, 1e12))
  # Of few rows, or few others, chance explains that too.
  assert not verdict.mean_or_std_is_off(np.full(2, 5.0), x + 5)
  assert not verdict.mean_or_std_is_off(0 * x, np.append(0 * x, 1.0))
  # Of few rows chance explains it, and of heavy tails.
  rng = np.random.default_rng(0)
  amounts = rng.lognormal(0, 1, [2, 50, 1000])
  found = [verdict.mean_or_std_is_off(*pair) for pair in zip(*amounts)]
  assert np.mean(found) < 0.1
  assert not verdict.mean_or_std_is_off(x[4990:5010], x[4990:5010] + 0.2)
  assert not verdict.mean_or_std_is_off(x[:2], x[:2])
  assert not verdict.mean_or_std_is_off(x, x[:0])


@pytest.mark.parametrize(
  ('auroc', 'real', 'level'),
  [
    (0.89, 0.9, 'good'),
    (0.85, 0.9, 'fair'),
    (0.6, 0.9, 'poor'),
    (0.4, 0.9, 'poor'),
    (0.95, 0.9, 'good'),
    (0.5, 0.52, 'none'),
    (0.5, float('nan'), 'none'),
  ],
)
def test_targets(auroc, real, level):
  assert verdict.target_verdict('t', auroc, real).level == level


def test_rare_groups_are_found_and_judged():
  real = table()
  groups = rare_groups(real, table(seed=1), SCHEMA)
  count = int((real['kind'] == 'c').sum())
  row = groups[groups['group'] == 'kind = c'].iloc[0]
  assert row['rows'] == count
  assert row['real'] == pytest.approx(count / 2000)
  assert (groups['rows'] >= 20).all()
  assert (groups['real'] <= 0.05).all()
  assert groups['rows'].is_monotonic_increasing
  assert verdict.rare_verdict(groups).level == 'good'
  missing = rare_groups(real, table(seed=1, rare=0.0), SCHEMA)
  found = verdict.rare_verdict(missing)
  assert found.level == 'poor'
  assert found.answer.startswith('0 of')
  assert verdict.rare_verdict(groups[:0]).level == 'none'


def test_missing_values_are_no_group():
  real = table()
  real.loc[:99, 'kind'] = None
  groups = rare_groups(real, real, SCHEMA)
  assert not groups['group'].str.contains('None|nan').any()


@pytest.mark.parametrize(
  ('statement', 'level', 'words'),
  [
    ({'epsilon': 0.99991, 'delta': 1e-5}, 'good', 'ε ≤ 1 at δ = 1e-05'),
    ({'epsilon': 1.00001, 'delta': 1e-5}, 'fair', 'ε ≤ 1.0001'),
    ({'epsilon': 11.0, 'delta': 1e-5}, 'poor', '11'),
    ({'epsilon': 1e20, 'delta': 1e-5}, 'poor', f'ε ≤ 1{"0" * 20} at'),
    ({'epsilon': math.inf}, 'poor', 'No finite epsilon'),
    ({'epsilon': None}, 'poor', 'No finite epsilon'),
    (None, 'poor', 'No finite epsilon'),
    ({'epsilon': 1.0, 'delta': 1e-5, 'seeded': True}, 'poor', 'seed'),
    (
      {'epsilon': 1.0, 'delta': 1e-5, 'guarantee': 'asymptotic'},
      'poor',
      'asymptotic',
    ),
    ({'epsilon': 0.5, 'delta': 0.05}, 'poor', 'at δ = 0.05'),
    (
      {'epsilon': 1.0, 'delta': 1e-2, 'num_examples': 100},
      'poor',
      'one over the 100 rows',
    ),
  ],
)
def test_privacy(statement, level, words):
  found = verdict.privacy_verdict(statement)
  assert found.level == level
  assert words in found.answer


def test_what_is_no_proven_bound_is_said_with_every_epsilon():
  statement = {
    'epsilon': 1.0,
    'delta': 1e-5,
    'guarantee': 'asymptotic',
    'seeded': True,
  }
  answer = verdict.privacy_verdict(statement).answer
  assert 'asymptotic' in answer
  assert 'seed' in answer
  assert '≤' not in answer
  words = dict(verdict.plain_privacy(statement))['One person']
  assert 'asymptotic and not proven' in words
  assert 'whoever knows it' in words


def test_plain_words_come_from_the_statement():
  ledger = accounting.PrivacyLedger()
  ledger.charge(accounting.EpsilonDeltaDpEvent(1.0, 1e-6), label='bounds')
  statement = accounting.privacy_statement(
    ledger, delta=1e-5, num_examples=1000
  ).to_dict()
  found = dict(verdict.plain_privacy(statement, clipped=1234))
  assert 'Whether a row had a part' in found['One person']
  assert 'factor of 2.8 at most' in found['One person']
  # That of Gaussian noise may be larger 16 times as often, see `epsilon.md`.
  assert 'but for' not in found['One person']
  assert '1e-05, everything were published' in found['One person']
  assert 'k rows' in found['Several rows of a person']
  assert 'paid for' in found['Ranges and categories']
  assert '1,234 values' in found['Values outside of them']
  assert verdict.plain_privacy(None) == []
  units = dict(
    verdict.plain_privacy({'epsilon': 30.0, 'unit': 'a person, with all rows'})
  )
  assert 'more than 100 million' in units['One person']
  assert 'however many rows' in units['Several rows of a person']
  assert 'count as public' in units['Ranges and categories']
  assert units['Values outside of them'].startswith('None')


def test_rare_groups_of_a_wide_table():
  names = [f'c{i}' for i in range(30)]
  schema = TableSchema(
    [Field(name, 'boolean', required=True) for name in names]
  )
  real = pd.DataFrame({n: np.arange(1000) % 2 == 0 for n in names})
  real['c29'] = np.arange(1000) < 30
  synthetic = real.assign(c29=False)
  groups = rare_groups(real, synthetic, schema)
  assert groups['group'].tolist() == ['c29 = True']
  found = verdict.rare_verdict(groups)
  assert found.level == 'poor'
  assert 'of the first 24 columns' in found.answer
  few = rare_groups(real, synthetic, TableSchema(schema.fields[:24]))
  assert 'columns' not in verdict.rare_verdict(few).answer


def test_nearest_rows():
  real = table(300)
  copies = nearest_rows(real, real, SCHEMA)
  assert (copies.synthetic == 0).all()
  assert (copies.real > 0).any()
  far = real.assign(x=np.nan)
  found = nearest_rows(real, far, SCHEMA)
  # One column of four is missing on one side.
  assert (found.synthetic >= 0.25 - 1e-9).all()
  both = nearest_rows(far, far, SCHEMA)
  assert (both.synthetic == 0).all()
  assert not len(nearest_rows(real[:1], real, SCHEMA).real)


def test_equal_rows_are_looked_up_among_all():
  real = table(9000)
  found = nearest_rows(real, real[::-1], SCHEMA)
  assert len(found.synthetic) == 2000
  assert found.synthetic_equal == 1.0
  assert found.real_equal == real.duplicated(keep=False).mean()
  half = pd.concat([real[:3000], real[:3000].assign(x=np.nan)])
  assert nearest_rows(real, half, SCHEMA).synthetic_equal == 0.5
  reread = real.assign(x=real['x'] + 1e-13)
  assert nearest_rows(real, reread, SCHEMA).synthetic_equal > 0.99
  assert verdict.copies_verdict(1.0, found.real_equal).level == 'poor'


def test_dates_are_compared_as_numbers():
  schema = TableSchema(
    [
      Field(
        'day',
        'date',
        minimum='2020-01-01',
        maximum='2020-12-31',
        required=True,
      )
    ]
  )
  real = schema.validate(pd.DataFrame({'day': ['2020-01-01', '2020-07-01']}))
  found = nearest_rows(real, real, schema)
  assert (found.synthetic == 0).all()
  assert found.real[0] == pytest.approx(182 / 365)
  assert rare_groups(real, real, schema).empty


@pytest.mark.parametrize(
  'statement',
  [
    {'epsilon': 1.0, 'delta': None, 'mechanisms': None, 'num_examples': '12'},
    {'epsilon': 1.0, 'delta': 1e-5, 'mechanisms': ['a'], 'num_examples': '12'},
    {'epsilon': 1.0, 'delta': '1e-5', 'unit': None},
  ],
)
def test_statements_of_other_programs(statement):
  assert verdict.privacy_verdict(statement).question == 'Privacy'
  topics = dict(verdict.plain_privacy(statement))
  assert ('One person' in topics) == isinstance(statement['delta'], float)


def test_rare_groups_of_very_many_categories():
  # A table of all pairs would take gigabytes.
  names = tuple(map(str, range(100_000)))
  fields = [Field(name, 'string', enum=names) for name in 'ab']
  table = pd.DataFrame({name: ['1'] * 40 + ['2'] * 960 for name in 'ab'})
  groups = rare_groups(table, table[::2], TableSchema(fields))
  assert groups['group'].tolist() == ['a = 1', 'b = 1', 'a = 1, b = 1']
  assert groups['real'].tolist() == groups['synthetic'].tolist() == [0.04] * 3
