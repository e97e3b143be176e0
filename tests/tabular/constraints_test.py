"""Constraints between columns: validation, models, exports, out of core."""

import contextlib
import dataclasses
import itertools
import time

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.grids import thinned
from tests.tabular import small_table
from tfdpflows.tabular import (
  Computed,
  ExcludedCombinations,
  Field,
  FixedCombinations,
  Inequality,
  TableEncoder,
  TableSchema,
  TabularSynthesizer,
  code_store,
  density,
  read_table,
  write_frames,
)
from tfdpflows.tabular.expressions import Expression
from tfdpflows.tabular.ordered_codes import Bins, OrderedBins, OrderedCodes
from tfdpflows.tabular.raw_values import RawTable
from tfdpflows.tabular.sources import Source

DAYS = '2020-01-01', '2024-12-31'
# By the accountant that takes least time.
BUDGET = {'epsilon': 2.0, 'delta': 1e-5, 'accountant': 'rdp'}
FIELDS = (
  Field('city', 'string', enum=tuple('abcde'), required=True),
  Field('state', 'string', enum=('X', 'Y', 'Z')),
  Field('first', 'date', *DAYS, required=True),
  Field('last', 'date', *DAYS),
  Field('sex', 'string', enum=('f', 'm'), required=True),
  Field('pregnant', 'boolean', required=True),
  Field('net', 'number', 0, 600, decimals=2, required=True),
  Field('tax', 'number', 0, 200, decimals=2, required=True),
  Field('gross', 'number', 0, 800, decimals=2, required=True),
  Field('days', 'integer', 0, 2000),
)
CITIES = (('a', 'X'), ('b', 'X'), ('c', 'Y'), ('d', 'Y'), ('e', None))
CONSTRAINTS = (
  Inequality('first', 'last'),
  FixedCombinations(('city', 'state'), CITIES),
  ExcludedCombinations(('sex', 'pregnant'), (('m', True),)),
  Computed('gross', 'net + tax'),
  Computed('days', 'last - first'),
)
SCHEMA = TableSchema(
  FIELDS, constraints=CONSTRAINTS, identifiers={'id': 'P{:06d}'}
)


def _table(rows=1500, seed=0):
  rng = np.random.default_rng(seed)
  city = rng.integers(0, 5, rows)
  sex = rng.integers(0, 2, rows)
  first = rng.integers(0, 1000, rows)
  last = np.minimum(first + rng.geometric(1 / 60, rows) - 1, 1826)
  net = np.round(rng.uniform(0, 500, rows), 2)
  table = pd.DataFrame(
    {
      'city': [CITIES[i][0] for i in city],
      'state': [CITIES[i][1] for i in city],
      'first': np.datetime64(DAYS[0]) + first,
      'last': np.datetime64(DAYS[0]) + last,
      'sex': np.array(['f', 'm'])[sex],
      'pregnant': (sex == 0) & (rng.random(rows) < 0.2),
      'net': net,
      'tax': np.round(net / 5, 2),
    }
  )
  table['gross'] = (table['net'] + table['tax']).round(2)
  table['days'] = last - first
  open_ended = rng.random(rows) < 0.1
  table.loc[open_ended, 'last'] = pd.NaT
  table['days'] = table['days'].astype('Int64').mask(open_ended)
  return table


def test_a_schema_file_has_constraints_and_identifiers(tmp_path):
  SCHEMA.to_json(tmp_path / 'schema.json')
  assert TableSchema.from_json(tmp_path / 'schema.json') == SCHEMA


def test_what_meets_the_constraints_stays_as_it_is():
  plain = dataclasses.replace(SCHEMA, constraints=())
  pd.testing.assert_frame_equal(
    SCHEMA.validate(_table()), plain.validate(_table())
  )


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'last': pd.Timestamp('2019-12-31')}, 'is outside'),
    (
      {'first': pd.Timestamp('2024-12-31')},
      "'first', row 4: .*must be at most",
    ),
    ({'state': 'Z'}, "city, state are '.', 'Z', which the fixedCombinations"),
    ({'sex': 'm', 'pregnant': True}, 'the excludedCombinations of the schema'),
    ({'gross': 7.5}, r"'gross', row 4: .*the value is 7.5, and net \+ tax is"),
    ({'days': None}, "'days', row 4: .*the value is missing, and last - first"),
  ],
)
def test_a_row_that_breaks_one_is_refused_by_its_number(changes, said):
  table = _table(10)
  table.loc[3, 'last'] = pd.Timestamp('2022-01-01')
  table.loc[3, 'first'] = pd.Timestamp('2021-01-01')
  table.loc[3, 'days'] = 365
  SCHEMA.validate(table)
  for name, cell in changes.items():
    table.loc[3, name] = cell
  with pytest.raises(ValueError, match=said):
    SCHEMA.validate(table)


def _broken_table(rows=300, seed=1):
  """Columns that know nothing of each other."""
  rng = np.random.default_rng(seed)
  table = _table(rows, seed)
  for name in table:
    table[name] = table[name].to_numpy(object)[rng.permutation(rows)]
  return table


def test_clip_changes_each_row_by_itself_so_that_it_meets_them():
  table = _broken_table()
  found = SCHEMA.validate(table, 'clip')
  pd.testing.assert_frame_equal(SCHEMA.validate(found), found)
  assert (found['first'] == pd.to_datetime(table['first'])).mean() > 0.3
  for row in range(0, 300, 25):
    alone = SCHEMA.validate(table[row : row + 1], 'clip', fitting=False)
    pd.testing.assert_frame_equal(
      alone, found[row : row + 1].reset_index(drop=True)
    )


def test_a_text_of_a_combination_is_missing_as_others_are():
  schema = TableSchema(
    FIELDS[:2],
    constraints=[FixedCombinations(('city', 'state'), [('e', None)])],
  )
  table = pd.DataFrame({'city': ['e', 'e'], 'state': ['X', None]})
  found = schema.validate(table, 'clip')['state']
  assert [type(cell) for cell in found] == [float] * 2


def test_counts_of_clipped_cells_include_those_of_broken_rows():
  table = _table(20)
  table.loc[[3, 5], 'gross'] = 1.0
  table.loc[7, 'sex'], table.loc[7, 'pregnant'] = 'm', True
  counts = SCHEMA.count_clipped(table)
  assert counts['gross'] == 2
  assert counts.get('sex', 0) + counts.get('pregnant', 0) == 1


def test_a_chain_of_inequalities_is_repaired_within_the_ranges():
  fields = [
    Field('a', 'integer', 0, 9),
    Field('b', 'integer', 3, 8),
    Field('c', 'integer', 0, 5),
  ]
  schema = TableSchema(
    fields, constraints=[Inequality('b', 'c'), Inequality('a', 'b', True)]
  )
  rows = itertools.product([*range(10), None], [3, 8, None], [0, 4, 5, None])
  table = pd.DataFrame(rows, columns=['a', 'b', 'c'], dtype='Int64')
  found = schema.validate(table, 'clip')
  assert (found['a'] < found['b']).fillna(True).all()
  assert (found['b'] <= found['c']).fillna(True).all()
  assert found.isna().equals(table.isna())
  met = (table['a'] < table['b']).fillna(True)
  met &= (table['b'] <= table['c']).fillna(True)
  pd.testing.assert_frame_equal(found[met], schema.validate(table, 'clip')[met])
  assert (found[met] == table[met]).fillna(True).all().all()


@pytest.mark.parametrize(
  ('constraints', 'said'),
  [
    ([Inequality('first', 'nowhere')], "the column 'nowhere', of which"),
    ([Inequality('first', 'first')], "has 'first' on both sides"),
    ([Inequality('first', 'days')], 'not counted in the same steps'),
    ([Inequality('sex', 'city')], "'sex', whose values are not counted"),
    (
      [Inequality('net', 'tax'), Inequality('tax', 'net')],
      'on net, tax form a cycle',
    ),
    ([FixedCombinations(['sex'], [['f']])], 'name two or more'),
    ([FixedCombinations(['sex', 'first'], [])], "'first' of type date"),
    ([FixedCombinations(['sex', 'net'], [])], 'has no categories|"decimals"'),
    ([FixedCombinations(['sex', 'city'], [['f']])], r"has the row \['f'\]"),
    (
      [FixedCombinations(['sex', 'city'], [['f', 'z']])],
      "'z' is no value that the schema declares for 'city'",
    ),
    (
      [FixedCombinations(['sex', 'city'], [['f', None]])],
      "None is no value that the schema declares for 'city'",
    ),
    (
      [FixedCombinations(['sex', 'city'], [['f', 'a'], ['f', 'a']])],
      'has a row twice',
    ),
    ([FixedCombinations(['sex', 'city'], [])], 'allows 0 combinations'),
    (
      [
        FixedCombinations(['sex', 'city'], [['f', 'a']]),
        FixedCombinations(['city', 'state'], [['a', 'X']]),
      ],
      "'city' is in two constraints on combinations",
    ),
    ([Computed('gross', 'gross + 1')], 'from itself'),
    ([Computed('gross', '1 + 2')], 'names no other column'),
    ([Computed('sex', 'net + 1')], "the column 'sex', which is a string"),
    ([Computed('gross', 'elsewhere')], "column 'elsewhere', of which"),
    (
      [Computed('gross', 'tax + 1'), Computed('tax', 'net / 5')],
      'list that constraint before',
    ),
    (
      [Computed('gross', 'net + 1'), Inequality('net', 'gross')],
      "'gross' is computed, and another constraint",
    ),
  ],
)
def test_constraints_that_cannot_be_are_refused(constraints, said):
  with pytest.raises(ValueError, match=said):
    TableSchema(FIELDS, constraints=constraints)


def test_times_of_other_units_are_not_computed_with():
  seen = Field('seen', 'datetime', '2020-01-01', '2021-01-01', unit='minute')
  fields = [*FIELDS, seen, Field('age', 'integer', 0, 999)]
  computed = Computed('age', 'floor((seen - first) / 365)')
  said = "'seen', counted in minutes, together with 'first', in days"
  with pytest.raises(ValueError, match=said):
    TableSchema(fields, constraints=[computed])
  computed = Computed('age', 'floor(seen / 1440 - first)')
  TableSchema(fields, constraints=[computed])


@pytest.mark.parametrize(
  'expression',
  [
    'net +',
    '__import__("os").getcwd()',
    'net.real',
    '9 < net < 10',
    'x' * 999,
    '(' * 150 + '1' + ')' * 149,
    '"text"',
    'lambda: 0',
    'net # tax',
    'max(net)',
    '[net]',
  ],
)
def test_expressions_are_arithmetic_and_nothing_else(expression):
  with pytest.raises(ValueError, match="computed constraint of the column 'g'"):
    Computed('g', expression)


@pytest.mark.parametrize(
  ('expression', 'expected'),
  [
    ('a + 2 * b', [7.0, np.nan]),
    ('-(a - b) / `c d`', [0.2, np.nan]),
    ('max(a, b) ** 2 // 2', [4.0, np.nan]),
    ('floor(`c d` / 2) % 3', [2.0, 2.0]),
    ('abs(min(a, -b))', [3.0, np.nan]),
    ('a / 0', [np.inf, np.inf]),
    ('a // .1', [10.0, 20.0]),
    ('-a // (a - 2)', [1.0, -np.inf]),
    ('9 ** 9 ** 9 + a', [np.inf, np.inf]),
  ],
)
def test_expressions_are_the_same_in_numpy_and_tensorflow(expression, expected):
  columns = {'a': [1.0, 2.0], 'b': [3.0, np.nan], 'c d': [10.0, 10.0]}
  columns = {name: np.array(cells) for name, cells in columns.items()}
  parsed = Expression(expression)
  with np.errstate(all='ignore'):
    found = parsed(columns, np)
  np.testing.assert_allclose(found, expected)
  tensors = {name: tf.constant(cells) for name, cells in columns.items()}
  np.testing.assert_allclose(parsed(tensors, tf), expected)


@pytest.mark.parametrize(
  ('expression', 'names'),
  [
    ('\u00b5 + \u03bc', ('\u00b5', '\u03bc')),
    ('`a b` + _quoted_0_', ('a b', '_quoted_0_')),
    ('1e3 * größe + `a#b`', ('größe', 'a#b')),
  ],
)
def test_names_of_columns_are_taken_as_they_are(expression, names):
  assert Expression(expression).names == names


def test_a_long_list_of_combinations_takes_seconds():
  fields = [
    Field('a', 'integer', 0, 65535, required=True),
    Field('b', 'string', enum=tuple(f'{i}' for i in range(500))),
  ]
  rows = [(i, f'{i % 500}') for i in range(65536)]
  start = time.process_time()
  schema = TableSchema(fields, constraints=[FixedCombinations('ab', rows)])
  table = pd.DataFrame({'a': [1, 65535, 7], 'b': ['1', '35', '8']})
  found = schema.validate(table, 'clip')
  assert time.process_time() - start < 5
  assert found['b'].tolist() == ['1', '35', '7']


@pytest.mark.parametrize('in_graph', [False, True])
def test_what_is_compared_with_missing_values_alone_stays(in_graph):
  fields = [
    Field('a', 'integer', 0, 99),
    Field('b', 'integer', 0, 9),
    Field('c', 'integer', 0, 2**53),
    Field('d', 'integer', 0, 2**53),
  ]
  schema = TableSchema(
    fields, constraints=[Inequality('a', 'b'), Inequality('c', 'd', True)]
  )
  rows = [[50, None, 5, 2], [50, 3, None, 2], [5, 5, 2**53, 2**53]]
  table = pd.DataFrame(rows, columns=schema.names, dtype='Int64')
  expected = [[50, None, 5, 6], [9, 9, None, 2], [5, 5, 2**53 - 1, 2**53]]
  found = schema.validate(table, 'clip')
  if in_graph:
    raw = RawTable(schema, True)
    given = {
      name: tf.constant(table[name].to_numpy(float, na_value=np.nan))
      for name in raw.names
    }
    np.testing.assert_array_equal(
      raw.encode(given), TableEncoder(schema).encode(found)
    )
  found = found.astype(object)
  assert found.where(found.notna(), None).to_numpy().tolist() == expected


@pytest.mark.parametrize(
  ('raw', 'said'),
  [
    ('inequality', 'needs a "type"'),
    ({'type': ['inequality']}, 'needs a "type"'),
    ({'type': 'unique'}, 'one of inequality, fixedCombinations'),
    ({'type': 'inequality', 'low': 'first'}, 'it needs low, high'),
    (
      {'type': 'inequality', 'low': 'first', 'high': 'last', 'gap': 2},
      'it needs low, high, and may have strict',
    ),
    ({'type': 'fixedCombinations', 'fields': 'sex', 'rows': []}, 'a list'),
    ({'type': 'fixedCombinations', 'fields': ['sex'], 'rows': [1]}, 'a list'),
    ({'type': 'computed', 'field': 'gross', 'expression': 3}, 'a string'),
  ],
)
def test_a_schema_file_says_what_is_wrong_with_a_constraint(raw, said):
  content = {**TableSchema(FIELDS).to_dict(), 'constraints': [raw]}
  with pytest.raises(ValueError, match=said):
    TableSchema.from_dict(content)


def test_inequalities_that_the_ranges_rule_out_are_refused():
  fields = [Field('a', 'integer', 5, 9), Field('b', 'integer', 0, 5)]
  TableSchema(fields, constraints=[Inequality('a', 'b')])
  with pytest.raises(ValueError, match="No value of the column 'a'"):
    TableSchema(fields, constraints=[Inequality('a', 'b', strict=True)])


def test_columns_read_off_the_data_have_no_constraints():
  fields = [
    Field('a', 'integer', 0, 9, from_data=('minimum',)),
    Field('b', 'integer', 0, 5),
  ]
  with pytest.raises(ValueError, match='marks minimum as read off the data'):
    TableSchema(fields, constraints=[Inequality('a', 'b')])


@pytest.mark.parametrize(
  ('identifiers', 'said'),
  [
    ({'sex': '{}'}, "identifier 'sex' of the schema has the name of a field"),
    ({'who': '{}'}, "identifier 'who' .* has the name of the privacy unit"),
    ({'': '{}'}, 'An identifier of the schema has an empty name'),
    ({'id': 'P'}, 'give a text with {}'),
    ({'id': '{name}'}, 'give a text with {}'),
    ({'id': 7}, 'give a text with {}'),
  ],
)
def test_identifiers_that_are_none_are_refused(identifiers, said):
  with pytest.raises(ValueError, match=said):
    TableSchema(FIELDS, 'who', identifiers=identifiers)


def test_encoding_has_one_column_for_combinations_and_none_for_computed():
  encoder = TableEncoder(SCHEMA)
  assert [c.name for c in encoder.columns] == [
    *('city & state', 'first', 'last', 'sex & pregnant', 'net', 'tax'),
  ]
  table = SCHEMA.validate(_table())
  found = encoder.decode(encoder.encode(table))
  pd.testing.assert_frame_equal(found, table, check_dtype=False)
  # Every code is a row that meets what is not an inequality.
  rng = np.random.default_rng(0)
  sizes = [c.size for c in encoder.columns]
  rows = encoder.decode(rng.uniform(0, sizes, [500, 6]).astype(np.float32))
  dataclasses.replace(SCHEMA, constraints=CONSTRAINTS[1:]).validate(rows)


MODELS = 'histogram', 'dpgan', 'spline'


def _with(*names):
  """Runs a test with some of the models, in the full tests with all."""
  return pytest.mark.parametrize(
    'fitted', thinned(MODELS, lambda name: name in names), indirect=True
  )


@pytest.fixture(scope='module')
def fitted(request):
  settings, training = {'epochs': 1}, contextlib.nullcontext()
  if request.param == 'histogram':
    settings['adaptive_marginals'] = 0
  if request.param == 'dpgan':
    # Rows of any generator meet them.
    training = small_table.untrained()
  with training:
    return TabularSynthesizer(
      SCHEMA, **BUDGET, model=request.param, seed=0, **settings
    ).fit(_table(), progress=False)


@pytest.fixture(scope='module')
def drawn(fitted):
  return fitted.sample(10_000, seed=0)


@pytest.fixture
def few_counted(monkeypatch):
  """Of how many rows meet inequalities, a rough estimate will do."""
  monkeypatch.setattr(density, '_COUNTED', 1)


@_with('histogram', 'dpgan')
def test_synthetic_rows_meet_the_constraints(fitted, drawn):
  rows = drawn
  assert list(rows) == ['id', *SCHEMA.names]
  assert rows['id'].iloc[[0, -1]].tolist() == ['P000001', 'P010000']
  SCHEMA.validate(rows)
  if fitted.model.has_density:
    assert rows['last'].isna().mean() == pytest.approx(0.1, abs=0.05)


@_with('dpgan')
def test_parts_of_a_sample_have_identifiers_of_their_own(
  fitted, drawn, tmp_path, monkeypatch
):
  monkeypatch.setattr('tfdpflows.tabular.fitted._FRAME', 1 << 13)
  rows = drawn
  parts = list(fitted.sample_frames(10_000, seed=0))
  assert len(parts) > 1
  parts = pd.concat(parts, ignore_index=True)
  assert parts['id'].is_unique
  pd.testing.assert_frame_equal(parts, rows)
  for name in ('a.csv', 'a.parquet', 'a.tfrecord'):
    path = tmp_path / name
    write_frames([rows[:50], rows[50:100]], path, SCHEMA)
    if name == 'a.csv':
      again = read_table(path, SCHEMA)
      assert again['id'].tolist() == rows['id'][:100].tolist()
      SCHEMA.validate(again)
    elif name == 'a.parquet':
      assert pd.read_parquet(path)['id'].iloc[99] == 'P000100'


@_with('dpgan')
def test_conditions_on_columns_with_constraints(fitted):
  rows = fitted.sample(
    50,
    seed=0,
    conditions={'state': 'X', 'days': pd.Interval(1, 500, 'both')},
  )
  assert set(rows['city']) == {'a', 'b'}
  assert rows['days'].between(1, 500).all()
  SCHEMA.validate(rows)


@_with('histogram', 'dpgan')
@pytest.mark.usefixtures('few_counted')
def test_a_saved_model_has_the_same_rows(fitted, tmp_path):
  # What is exported has a test below.
  with small_table.unexported():
    fitted.save(tmp_path / 'model')
  loaded = TabularSynthesizer.load(tmp_path / 'model')
  small_table.assert_same_model(loaded, fitted)
  if fitted.model.name == 'histogram':
    # Rows are drawn with it, by a graph that takes seconds to make.
    assert loaded._fitted.distribution._ordered is not None
  else:
    pd.testing.assert_frame_equal(
      loaded.sample(200, seed=3), fitted.sample(200, seed=3)
    )


def _values(table, dtypes):
  """A table as the tensors of an exported model."""
  found = {}
  for name, dtype in dtypes.items():
    column = table[name]
    if dtype == tf.string:
      cells = column.fillna('').tolist()
    elif str(column.dtype).startswith('datetime'):
      cells = FIELDS[2].steps(column)
    else:
      cells = column.astype('Float64').to_numpy(float, na_value=np.nan)
    found[name] = tf.cast(tf.constant(cells), dtype)
  return found


@_with('histogram')
@pytest.mark.usefixtures('few_counted')
def test_an_export_meets_them_without_the_library(fitted, tmp_path):
  fitted.export(tmp_path / 'exported')
  model = tf.saved_model.load(str(tmp_path / 'exported'))
  drawn = model.signatures['sample'](
    num_rows=tf.constant(300, tf.int64), seed=tf.constant(5, tf.int64)
  )
  rows = fitted.sample(300, seed=5)
  for name in ('gross', 'net'):
    np.testing.assert_array_equal(drawn[name].numpy(), rows[name])
  for name in ('first', 'last'):
    np.testing.assert_array_equal(
      drawn[name].numpy(), FIELDS[3].steps(rows[name])
    )
  np.testing.assert_array_equal(
    drawn['days'].numpy(), rows['days'].to_numpy(float, na_value=np.nan)
  )
  states = [text.decode() for text in drawn['state'].numpy()]
  assert states == rows['state'].fillna('').tolist()
  if not fitted.model.has_density:
    return
  score = model.signatures['log_prob']
  tensors = score.structured_input_signature[1]
  dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
  expected = fitted.log_prob(rows)
  found = score(**_values(rows, dtypes))['log_prob']
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  changed = SCHEMA.validate(_broken_table(seed=2), 'clip')
  assert np.isfinite(fitted.log_prob(changed)).all()
  for name, said in [('net', 'gross'), ('state', 'combination')]:
    broken = rows.copy()
    broken[name] = broken[name].to_numpy(object)[::-1]
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
      score(**_values(broken, dtypes))


def _fit_clipped(data):
  """Of rows that are encoded, what training makes does not matter."""
  with small_table.untrained():
    return TabularSynthesizer(
      SCHEMA,
      **BUDGET,
      seed=0,
      epochs=1,
      adaptive_marginals=0,
      out_of_range='clip',
    ).fit(data, progress=False)


def test_graphs_change_broken_rows_as_clip_does():
  broken = _broken_table(seed=2)
  raw = RawTable(SCHEMA, True)
  dtypes = {name: x.dtype for name, x in zip(raw.names, raw.columns)}
  np.testing.assert_array_equal(
    raw.encode(_values(SCHEMA_PLAIN.validate(broken), dtypes)),
    TableEncoder(SCHEMA).encode(SCHEMA.validate(broken, 'clip')),
  )


SCHEMA_PLAIN = dataclasses.replace(SCHEMA, constraints=())


def _number(name, last, **details):
  return Field(name, 'number', 0, last, required=True, **details)


def _integer(name, first, last):
  return Field(name, 'integer', first, last, required=True)


@pytest.mark.parametrize(
  ('fields', 'constraint', 'rows'),
  [
    pytest.param(
      [
        _number('net', 1e6, decimals=2),
        _number('tax', 1e5, decimals=2),
        _number('gross', 2e6, decimals=2),
      ],
      Computed('gross', 'net + tax'),
      [[float(n), n / 100, n * 1.01] for n in range(636_961, 637_061)],
      id='a sum of many cents',
    ),
    pytest.param(
      [_integer('low', 0, 2 * 10**9), _integer('high', 7, 2 * 10**9)],
      Inequality('low', 'high', strict=True),
      [[n, n + 1] for n in range(10**9, 10**9 + 100)],
      id='an inequality of large numbers',
    ),
    pytest.param(
      [Field('place', 'string', enum=('x', 'y')), _integer('code', 0, 10**9)],
      FixedCombinations(
        ['place', 'code'], [['x', 10**9], ['y', 0], ['x', 10**9 - 1]]
      ),
      [['x', 10**9], ['y', 0], ['x', 10**9 - 1]],
      id='combinations of large numbers',
    ),
    pytest.param(
      [_integer('x', 0, 400), _integer('z', 0, 9)],
      Computed('z', 'floor(x / 49)'),
      [[x, x // 49] for x in range(401)],
      id='a quotient of a constant',
    ),
    pytest.param(
      [_integer('x', 0, 400), Field('z', 'boolean', required=True)],
      Computed('z', 'x / 49 * 49 >= x'),
      [[x, np.float64(x) / 49 * 49 >= x] for x in range(401)],
      id='a quotient, and a product',
    ),
    pytest.param(
      [_integer('x', 0, 400), _number('z', 9)],
      Computed('z', 'x / 49'),
      [[x, x / 49] for x in range(401)],
      id='a number of all digits',
    ),
  ],
)
@pytest.mark.parametrize('clip', [False, True])
def test_rows_are_the_same_in_graphs_to_the_last_digit(
  fields, constraint, rows, clip
):
  schema = TableSchema(fields, constraints=[constraint])
  table = schema.validate(
    pd.DataFrame(rows, columns=schema.names), 'clip' if clip else 'error'
  )
  encoder, raw = TableEncoder(schema), RawTable(schema, clip)
  codes = encoder.encode(table)
  given = {
    name: tf.constant(table[name].to_numpy(), column.dtype)
    for name, column in zip(raw.names, raw.columns)
  }
  encode = tf.function(raw.encode, autograph=False)
  np.testing.assert_array_equal(encode(given), codes)
  decode = tf.function(raw.decode, autograph=False)
  decoded = encoder.decode(codes)
  for name, tensor in decode(tf.constant(codes)).items():
    cells = tensor.numpy()
    if tensor.dtype == tf.string:
      cells = cells.astype(str)
    np.testing.assert_array_equal(cells, decoded[name])
  if not isinstance(constraint, Inequality):
    # Of these, float32 has rows that no model draws.
    assert not schema.count_clipped(decoded)


def test_an_export_tells_missing_values_from_the_largest():
  fields = [Field('x', 'integer', 0, 9), Field('z', 'integer', 0, 9)]
  schema = TableSchema(fields, constraints=[Computed('z', 'x')])
  given = {'x': tf.constant([9.0]), 'z': tf.constant([np.nan])}
  with pytest.raises(tf.errors.InvalidArgumentError, match='the value is not'):
    RawTable(schema, False).encode(given)


def test_rows_out_of_core_are_those_in_memory(tmp_path):
  # Rows of some that are broken, by file.
  table = pd.concat([_table(400), _broken_table(200)], ignore_index=True)
  for number in range(3):
    part = table[number * 200 : (number + 1) * 200]
    write_frames(
      [SCHEMA_PLAIN.validate(part)], tmp_path / f'{number}.csv', SCHEMA_PLAIN
    )
  source = Source.of(str(tmp_path / '*.csv'))
  codes = TableEncoder(SCHEMA).encode(SCHEMA.validate(table, 'clip'))
  np.testing.assert_array_equal(
    code_store.read(source, SCHEMA, 'clip')[:], codes
  )
  models = [_fit_clipped(data) for data in (table, str(tmp_path / '*.csv'))]
  small_table.assert_same_model(*models)
  with pytest.raises(ValueError, match=r'2\.csv: Column .* row'):
    TabularSynthesizer(SCHEMA, **BUDGET).fit(
      str(tmp_path / '*.csv'), progress=False
    )


@pytest.mark.parametrize('width', [2, 3])
def test_densities_within_bins_sum_to_one(width):
  """Over all values of the columns, however many are compared."""
  names = 'abc'[:width]
  fields = [Field(name, 'integer', 0, 11) for name in names]
  schema = TableSchema(
    fields,
    constraints=[
      Inequality(*pair, strict=True) for pair in zip(names, names[1:])
    ],
  )
  order = OrderedCodes(TableEncoder(schema))
  rng = np.random.default_rng(0)
  histogram = rng.dirichlet(np.ones(13), width)
  cuts = np.array([3.0, 8.0])
  bins = OrderedBins(
    order,
    {j: Bins(cuts, cuts, np.arange(14.0), histogram[j]) for j in range(width)},
  )
  cells = np.array(list(itertools.product(range(13), repeat=width)), np.float32)
  place = np.searchsorted(cuts, cells, side='right')
  mass = np.ones(len(cells))
  for j in range(width):
    total = np.bincount(
      np.searchsorted(cuts, np.arange(13.0), 'right'), histogram[j]
    )
    mass *= histogram[j][cells[:, j].astype(int)] / total[place[:, j]]
  broken = order.broken(cells).numpy()
  possible = bins.is_possible(bins.found(cells)).numpy()
  assert not possible[place[:, 0] > place[:, 1]].all()
  assert (broken | possible).all()
  density = np.where(broken, 0, mass * np.exp(-bins.log_share(cells).numpy()))
  sums = pd.Series(density).groupby([str(p) for p in place.tolist()]).sum()
  # Bins in which nothing can meet have none.
  allowed = sums[sums > 0]
  np.testing.assert_allclose(allowed, 1, atol=0.1 if width > 2 else 0.02)


def test_values_that_move_stay_in_their_bins_and_are_spread_as_before():
  fields = [Field('a', 'integer', 0, 99), Field('b', 'integer', 0, 99)]
  schema = TableSchema(fields, constraints=[Inequality('a', 'b')])
  order = OrderedCodes(TableEncoder(schema))
  edges = np.append(np.arange(0.0, 101, 10), 101)
  p = np.linspace(1, 2, 11) / np.linspace(1, 2, 11).sum()
  cuts = np.array([30.0, 70.0])
  bins = OrderedBins(order, {j: Bins(cuts, cuts, edges, p) for j in range(2)})
  rng = np.random.default_rng(0)
  rows = rng.uniform(0, 101, [50_000, 2]).astype(np.float32)
  every = np.ones(len(rows), bool)
  moved = bins.moved(rows, bins.found(rows), every, [1, 2]).numpy()
  found = np.searchsorted(cuts, moved, side='right')
  np.testing.assert_array_equal(found, np.searchsorted(cuts, rows, 'right'))
  counts = np.histogram(moved[:, 0], edges)[0]
  expected = p * len(rows) * np.array([30, 40, 31]).repeat([3, 4, 4]) / 101
  expected /= np.array([p[:3].sum(), p[3:7].sum(), p[7:].sum()]).repeat(
    [3, 4, 4]
  )
  np.testing.assert_allclose(counts, expected, rtol=0.05)


def test_a_target_in_combinations_is_learned_with_them():
  with small_table.untrained(), small_table.short():
    fitted = TabularSynthesizer(
      SCHEMA, **BUDGET, target='pregnant', seed=0, epochs=1
    ).fit(_table(400), progress=False)
  assert fitted._fitted.distribution.latent.bijector._order[-1] == 3
  with pytest.raises(ValueError, match="target is 'gross', which is computed"):
    TabularSynthesizer(SCHEMA, target='gross')


@pytest.mark.parametrize(
  ('model', 'bins'),
  thinned((('histogram', 3), ('histogram', 8), ('spline', 8)), 1),
)
def test_log_densities_are_those_of_the_rows_that_are_drawn(
  model, bins, monkeypatch
):
  """Of two columns with few values, that are all counted."""
  fields = [
    Field('a', 'integer', 0, 5, required=True),
    Field('b', 'integer', 0, 5, required=True),
  ]
  schema = TableSchema(fields, constraints=[Inequality('a', 'b')])
  rng = np.random.default_rng(0)
  a = rng.integers(0, 6, 3000)
  table = pd.DataFrame(
    {'a': a, 'b': np.minimum(5, a + rng.integers(0, 3, 3000))}
  )
  cells = pd.DataFrame(
    [(i, j) for i in range(6) for j in range(i, 6)], columns=['a', 'b']
  )
  # A spline has measured nothing that it could start from.
  trained = contextlib.nullcontext()
  with small_table.untrained() if model == 'histogram' else trained:
    fitted = TabularSynthesizer(
      schema,
      **BUDGET,
      model=model,
      seed=0,
      num_bins=bins,
      epochs=2,
    ).fit(table, progress=False)
  # Points a row, from which a spline's are estimated.
  monkeypatch.setattr(density, 'DRAWS', 512)
  found = np.exp(fitted.log_prob(cells).astype(float))
  assert found.sum() == pytest.approx(1, abs=0.02)
  rows = fitted.sample(200_000, seed=0)
  share = rows.value_counts(['a', 'b'], normalize=True)
  drawn = share.reindex(pd.MultiIndex.from_frame(cells)).fillna(0)
  atol = 0.004 if model == 'histogram' else 0.03
  np.testing.assert_allclose(found, drawn.to_numpy(), atol=atol)


@pytest.mark.usefixtures('few_counted')
def test_rows_of_wide_ranges_that_are_rounded_have_a_density():
  """Neighbouring steps of more than 2^24 have one float32."""
  fields = [
    Field('low', 'integer', 0, 2**40, required=True),
    Field('high', 'integer', 0, 2**40, required=True),
  ]
  schema = TableSchema(fields, constraints=[Inequality('low', 'high', True)])
  rng = np.random.default_rng(0)
  low = rng.integers(0, 2**40, 300)
  high = np.minimum(low + rng.integers(1, 2**38, 300), 2**40)
  high[:50] = low[:50] + 1
  table = pd.DataFrame({'low': low, 'high': high})
  with small_table.untrained(), small_table.short():
    fitted = TabularSynthesizer(
      schema, **BUDGET, seed=0, epochs=1, adaptive_marginals=0
    ).fit(table, progress=False)
  assert np.isfinite(fitted.log_prob(table)).all()
  rows = fitted.sample(5000, seed=0)
  assert (rows['low'] < rows['high']).all()


def test_missing_texts_of_changed_rows_are_those_of_others():
  table = _table(20)
  table.loc[3, ['city', 'state']] = 'e', 'X'
  found = SCHEMA.validate(table, 'clip')
  pd.testing.assert_frame_equal(SCHEMA.validate(found, 'clip'), found)
  missing = found['state'][found['state'].isna()]
  assert all(cell is not None for cell in missing)


@pytest.mark.full
def test_log_densities_are_right_where_few_values_meet(monkeypatch):
  monkeypatch.setattr(density, '_COUNTED', 8)
  rng = np.random.default_rng(0)
  table = pd.DataFrame(
    {
      'a': rng.integers(0, 30, 1500),
      'b': np.where(rng.random(1500) < 0.5, 0, rng.integers(0, 30, 1500)),
      'c': rng.integers(0, 30, 1500),
    }
  )
  table['b'] = table['b'].astype('Int64').mask(rng.random(1500) < 0.5)
  fields = [Field(x, 'integer', 0, 29, required=x != 'b') for x in 'abc']
  schema = TableSchema(
    fields, constraints=[Inequality('a', 'b'), Inequality('b', 'c')]
  )
  fitted = TabularSynthesizer(
    schema,
    epsilon=3.0,
    delta=1e-5,
    accountant='rdp',
    seed=1,
    out_of_range='clip',
    epochs=0.1,
    num_bins=2,
    adaptive_marginals=0,
    matching=False,
  ).fit(table, progress=False)
  rows = fitted.sample(40_000, seed=0)
  cells = itertools.product(range(30), [*range(30), None], range(30))
  known = pd.DataFrame(cells, columns=['a', 'b', 'c'], dtype='Int64')
  plain = dataclasses.replace(schema, constraints=())
  known = schema.validate(plain.validate(known), 'clip').drop_duplicates()
  known = known.reset_index(drop=True)
  log_prob = fitted.log_prob(known)
  counts = rows.fillna(-1).value_counts()
  found = np.array(
    [counts.get(tuple(row), 0) for row in known.fillna(-1).to_numpy()]
  )
  shares = np.exp(log_prob.astype(np.float64))
  assert shares.sum() == pytest.approx(1, abs=0.02)
  ordered = fitted._fitted.distribution._ordered
  log_share = ordered.log_share(TableEncoder(schema).encode(known)).numpy()
  few = log_share < np.log(0.01)
  assert found[few].sum() > 400
  assert shares[few].sum() == pytest.approx(found[few].sum() / 40_000, rel=0.15)
