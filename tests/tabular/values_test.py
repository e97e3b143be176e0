"""Under 'clip' no value is refused, and no row speaks for another."""

import datetime
import decimal
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.grids import thinned
from tests.tabular import small_table
from tfdpflows import accounting, mechanisms
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import (
  Field,
  TableEncoder,
  TableSchema,
  TabularSynthesizer,
  read_table,
  values,
)
from tfdpflows.tabular.work_directory import WorkDirectory


class Hostile:
  """A cell that can neither be read, nor compared, nor hashed."""

  __hash__ = None

  def __str__(self):
    raise RuntimeError('no text')

  def __repr__(self):
    return 'Hostile()'

  def __eq__(self, other):
    raise RuntimeError('no comparison')

  def __float__(self):
    raise RuntimeError('no number')

  def __array__(self, *args, **kwargs):
    raise RuntimeError('no array')


NASTY = [
  None,
  math.nan,
  pd.NA,
  pd.NaT,
  math.inf,
  -math.inf,
  -0.0,
  3.5,
  True,
  np.bool_(False),
  2**63,
  10**400,
  -(10**5000),
  np.longdouble(1e300),
  np.float16(2.5),
  decimal.Decimal('1e9999'),
  decimal.Decimal('sNaN'),
  1 + 2j,
  '',
  ' ',
  'NA',
  'nan',
  '-inf',
  '1e999',
  ' 7 ',
  '7.0',
  '007',
  '1_0',
  '１２',
  '0x10',
  '9' * 5000,
  'true',
  'a',
  'a\0b',
  'half \ud800 of a character',
  b'a',
  datetime.date(2020, 1, 1),
  pd.Timestamp('2020-01-01', tz='UTC'),
  pd.Interval(0, 1),
  [1, [2]],
  {'a': [1]},
  {1, 2},
  (1,),
  np.array([1, 2]),
  pd.Series([1]),
  Hostile(),
  len,
]
CELLS = st.one_of(
  st.sampled_from(NASTY),
  st.integers(-3, 12),
  st.integers(),
  st.floats(),
  st.text(max_size=3),
  st.sampled_from(['a', 'b', '0', 'False']),
)


def _schema(required, from_data=()):
  """Every kind of column; marked as read off the data as far as it can be."""

  def field(name, kind, *args, **kwargs):
    made = Field(name, kind, *args, required=required, **kwargs)
    parts = [
      mark
      for mark in from_data
      if mark in ('required', 'type') or getattr(made, mark) is not None
    ]
    return Field(
      name, kind, *args, required=required, from_data=parts, **kwargs
    )

  return TableSchema(
    [
      field('integer', 'integer', -1, 9),
      field('wide', 'integer', -(2**53), 2**53),
      field('number', 'number', -1.5, 9.0),
      field('grades', 'integer', enum=(1, 5, 9)),
      field('doses', 'number', enum=(0.5, 2.0)),
      field('word', 'string', enum=('a', 'b', '7', '', 'True')),
      field('flag', 'boolean'),
      field('yes', 'boolean', enum=(True,)),
      field('one', 'number', 3.0, 3.0),
    ]
  )


ALL_MARKS = ('minimum', 'maximum', 'enum', 'required', 'type')


def _table(cells, inferred=False):
  """The same cells in all columns; with types of pandas where it has some."""
  try:
    column = pd.Series(cells, dtype=None if inferred else object)
  except (OverflowError, TypeError, ValueError):  # Of pandas, not of ours.
    column = pd.Series(cells, dtype=object)
  return pd.DataFrame(dict.fromkeys(_schema(True).names, column))


def _same_rows(one, two, rows):
  """Whether the rows agree; types may differ in how they hold missing ones."""
  for name in one:
    a, b = one[name], two[name]
    assert a.dtype == b.dtype
    for row in rows:
      x, y = a.iloc[row], b.iloc[row]
      assert (pd.isna(x) and pd.isna(y)) or x == y, (name, x, y)


TABLES = given(
  st.lists(CELLS, min_size=2, max_size=6),
  CELLS,
  st.booleans(),
  st.booleans(),
  st.sampled_from([(), ALL_MARKS, ('required',)]),
)


@pytest.mark.filterwarnings('ignore:Column .* is declared')
@settings(max_examples=40, deadline=None)
@TABLES
@example(NASTY, 'x', False, True, ())
@example(NASTY, math.inf, True, True, ())
@example([None, None], 1, True, True, ())
@example([math.inf, 'a', 'a\0b'], None, False, False, ALL_MARKS)
@example(['a', 'a\0b', 'c'], 'a\0c', False, False, ALL_MARKS)
@example([2**60 + 1, None], 7, False, True, ALL_MARKS)
@example([pd.Interval(0, 1), None], pd.NA, False, True, ALL_MARKS)
@example([pd.Interval(1, 2.5), None], 7, False, True, ALL_MARKS)
def test_no_row_is_refused_or_changes_another(
  cells, other, required, inferred, marks
):
  _check_rows(cells, other, required, inferred, marks)


@pytest.mark.full
@pytest.mark.filterwarnings('ignore:Column .* is declared')
@settings(max_examples=400, deadline=None)
@TABLES
def test_no_row_of_more_tables_is_refused_or_changes_another(
  cells, other, required, inferred, marks
):
  _check_rows(cells, other, required, inferred, marks)


def _check_rows(cells, other, required, inferred, marks):
  schema = _schema(required, marks)
  table = schema.validate(_table(cells, inferred), 'clip')
  # The row that changes may change the type that pandas gives to the column.
  neighbour = schema.validate(_table([*cells[:-1], other], inferred), 'clip')
  _same_rows(table, neighbour, range(len(cells) - 1))
  # What is private is all of one kind, for hashes and for the mechanisms.
  pd.util.hash_pandas_object(table, index=False)
  pd.testing.assert_frame_equal(schema.validate(table, 'clip'), table)
  if marks:
    return
  encoder = TableEncoder(schema)
  codes = encoder.encode(table)
  assert np.isfinite(codes).all()
  assert (codes >= 0).all()
  assert (codes <= [column.size for column in encoder.columns]).all()
  if required:
    assert not table.isna().any(axis=None)


@pytest.mark.filterwarnings('ignore:Column .* is declared')
@pytest.mark.parametrize('marks', [(), ALL_MARKS], ids=['public', 'marked'])
@pytest.mark.parametrize(
  'cell', thinned([7, '7', 0.25, np.float32(0.1), True], 2)
)
def test_the_type_that_pandas_infers_for_one_cell_changes_no_other(cell, marks):
  schema = _schema(False, marks)
  expected = schema.validate(_table([cell, cell]), 'clip')
  for other in (*NASTY, 1j, 2**64, np.timedelta64(1, 'D')):
    table = schema.validate(_table([cell, cell, other], True), 'clip')
    _same_rows(table, expected, range(2))


@pytest.mark.filterwarnings('ignore:Column .* is declared')
@pytest.mark.parametrize(
  'cell',
  [
    np.datetime64('2020-01-01'),
    np.datetime64('2020-01-01T10:30:00.123456789'),
    datetime.datetime(2020, 1, 1, 10, 30),
    np.timedelta64(3, 'h'),
    datetime.timedelta(days=1),
  ],
  ids=repr,
)
def test_times_read_alike_beside_any_cell(cell):
  """Pandas makes another class of them where a column has nothing else."""
  for kind in ('string', 'number', 'integer', 'boolean'):
    alone = values.typed(pd.Series([cell] * 2), kind, 'x', clip=True)
    beside = pd.Series([cell, 'other'], dtype=object)
    beside = values.typed(beside, kind, 'x', clip=True)
    pd.testing.assert_series_equal(alone[:1], beside[:1])


class _Hostile(str):
  """A text of which every method raises."""

  __slots__ = ()

  def _fail(self, *unused_args, **unused_kwargs):
    raise RuntimeError

  __eq__ = __ne__ = __lt__ = __hash__ = __str__ = __repr__ = __len__ = _fail
  __contains__ = __iter__ = __getitem__ = __float__ = __bool__ = _fail
  isascii = encode = strip = __format__ = _fail


@pytest.mark.parametrize('marks', [(), ('type',)])
def test_texts_of_other_classes_are_texts(marks):
  schema = TableSchema(
    [
      Field('n', 'number', 0, 9, from_data=marks),
      Field('b', 'boolean', from_data=marks),
      Field('s', 'string', enum=('a', 'é', 'NA'), from_data=marks),
    ]
  )
  cells = ['7', 'true', 'a', 'é', 'NA', 'null', '\ud800', '']
  plain = pd.DataFrame(dict.fromkeys(schema.names, cells), dtype=object)
  hostile = pd.DataFrame(
    {name: [_Hostile(cell) for cell in cells] for name in schema.names},
    dtype=object,
  )
  expected = schema.validate(plain, 'clip')
  pd.testing.assert_frame_equal(schema.validate(hostile, 'clip'), expected)
  for name in schema.names:
    assert {type(c) for c in schema.validate(hostile, 'clip')[name]} == {
      type(c) for c in expected[name]
    }


def test_what_cells_become():
  """The table in docs/how-to/columns.md."""
  cells = ['7', 7, 7.5, math.inf, '-inf', -3, 'x', 'true', True, b'7', None]
  clean = _schema(False).validate(_table(cells), 'clip')
  na = None
  for name, expected in {
    'integer': [7, 7, 8, 9, -1, -1, na, na, 1, na, na],
    'number': [7, 7, 7.5, 9, -1.5, -1.5, na, na, 1, na, na],
    'grades': [5, 5, 9, 9, 1, 1, na, na, 1, na, na],
    'doses': [2, 2, 2, 2, 0.5, 0.5, na, na, 0.5, na, na],
    'word': ['7', '7', na, na, na, na, na, na, 'True', na, na],
    'flag': [na, na, na, na, na, na, na, True, True, na, na],
  }.items():
    found = [na if pd.isna(v) else v for v in clean[name]]
    assert found == expected, name
  filled = _schema(True).validate(_table(['x', None]), 'clip')
  assert filled.loc[1].tolist() == [4, 0, 3.75, 1, 0.5, 'a', False, True, 3.0]


@pytest.mark.parametrize('clip', [False, True])
def test_numbers_get_the_zeros_that_pandas_took_from_codes(clip):
  cells = [1067, 1067.0, np.int64(4109), '1067', '01067', None, True, 7.5, 67]
  column = pd.Series(cells, dtype=object)
  typed = values.typed(column, 'string', 'zip', ('01067', '04109'), clip)
  assert typed.fillna('').tolist() == [
    '01067',
    '01067',
    '04109',
    '1067',
    '01067',
    '',
    'True',
    '7.5',
    '67',
  ]
  # Other categories say nothing of zeros.
  for categories in [('01067', '4109'), ('a1067', 'b1067'), ()]:
    typed = values.typed(column, 'string', 'zip', categories, clip)
    assert typed.fillna('').tolist()[:3] == ['1067', '1067', '4109']


def test_the_least_of_numpys_integers_are_not_warned_of():
  """They have no absolute value: a warning told of one such cell."""
  cells = [np.int8(-128), np.int64(-(2**63)), 7]
  schema, ids = _schema(False), pd.Series(cells, dtype=object)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    found = schema.validate(_table(cells), 'clip')
    assert values.beyond_floats(ids).tolist() == [False, True, False]
  assert found['integer'].tolist() == [-1, -1, 7]


def test_the_errors_still_name_what_is_wrong():
  for name, cell, message in (
    ('integer', 3.5, '3.5 is no integer'),
    ('number', math.inf, 'inf is no number'),
    ('number', 'abc', "'abc' is no number; .*decimalChar.*bareNumber"),
    ('word', 'c', "'c' is not in the enum"),
    ('flag', 'maybe', "'maybe' is no boolean; write true or .*falseValues"),
  ):
    schema = TableSchema([_schema(False)[name]])
    table = _table([None, cell])[[name]]
    with pytest.raises(ValueError, match=f"'{name}', row 2: .*{message}"):
      schema.validate(table)
  schema = _schema(False)
  for table, message in (
    (_table(['a', 'b']).drop(columns='word'), "no column 'word'"),
    (_table(['a', 'b']).assign(more=1), "no field 'more'"),
    (_table([]), 'no rows'),
    (_table(['a']), 'one row'),
  ):
    with pytest.raises(ValueError, match=message):
      schema.validate(table, 'clip')


def test_rows_may_share_an_index():
  table = _table(['a', 7, math.inf, None])
  table.index = [5, 5, 5, 5]
  expected = _schema(False).validate(_table(['a', 7, math.inf, None]), 'clip')
  pd.testing.assert_frame_equal(
    _schema(False).validate(table, 'clip'), expected
  )


def test_what_is_marked_bounds_nothing_that_is_fitted():
  """Whoever drafted the schema may have read it off other private rows."""
  marked = TableSchema(
    [
      Field('n', 'integer', 3, 4, from_data=('minimum', 'maximum')),
      Field('s', 'string', enum=('a',), from_data=('enum', 'required')),
      Field('half', 'integer', 3, 4, from_data=('maximum',)),
    ]
  )
  table = pd.DataFrame({'n': [1, 9], 's': ['b', None], 'half': [1, 9]})
  for mode in ('error', 'clip'):
    if mode == 'error':
      with pytest.raises(ValueError, match="'half', row 1"):
        marked.validate(table)
      table['half'] = [3, 9]
    found = marked.validate(table, mode)
    assert found['n'].tolist() == [1, 9]
    assert found['s'].tolist()[0] == 'b'
    assert found['half'].tolist() == [3, 9]
  with pytest.raises(ValueError, match="'n', row 1"):
    marked.validate(table, fitting=False)


@pytest.mark.parametrize('required', [True, False])
def test_bounds_take_any_table(required):
  schema = _schema(required, ALL_MARKS)
  rng = np.random.default_rng(0)
  columns = {
    'integer': rng.integers(0, 50, 3000),
    'wide': rng.integers(0, 50, 3000).astype(str),
    'number': rng.normal(size=3000),
    'grades': rng.choice(['true', 'false'], 3000),
    'doses': rng.choice([0.5, 2.0], 3000),
    'word': rng.choice(['x', 'y'], 3000),
    'flag': rng.choice([True, False], 3000),
    'yes': rng.choice(['1.5', '2'], 3000),
    'one': rng.choice(['01', '02'], 3000),
  }
  table = pd.DataFrame(
    {k: pd.Series([*v, *NASTY], dtype=object) for k, v in columns.items()}
  )
  ledger = accounting.PrivacyLedger()
  found = mechanisms.private_bounds(
    table, schema, 50.0, 1e-3, Randomness(seed=0), ledger
  )
  assert not found.is_draft
  assert {field.name: field.type for field in found} == {
    'integer': 'integer',
    'wide': 'integer',
    'number': 'number',
    'grades': 'boolean',
    'doses': 'number',
    'word': 'string',
    'flag': 'boolean',
    'yes': 'number',
    'one': 'string',
  }
  assert found['word'].enum == ('x', 'y')
  assert found['one'].enum == ('01', '02')
  assert ledger.epsilon(1e-3) <= 50.0 * 1.001
  codes = TableEncoder(found).encode(found.validate(table, 'clip'))
  assert np.isfinite(codes).all()


def test_the_type_of_a_draft_decides_nothing():
  rng = np.random.default_rng(0)
  table = pd.DataFrame({'a': rng.integers(0, 50, 2000)})
  marks = ('minimum', 'maximum', 'enum', 'required', 'type')
  results, ledgers = [], []
  for field in (
    Field('a', 'integer', 0, 9, from_data=(marks[0], marks[1], *marks[3:])),
    Field('a', 'number', -1, 9, from_data=(marks[0], marks[1], *marks[3:])),
    Field('a', 'string', enum=('x',), from_data=marks[2:]),
    Field('a', 'boolean', from_data=marks[3:]),
  ):
    ledger = accounting.PrivacyLedger()
    results.append(
      mechanisms.private_bounds(
        table, TableSchema([field]), 5.0, 1e-5, Randomness(seed=3), ledger
      )
    )
    (entry,) = ledger._state.entries
    ledgers.append((entry.event, entry.randomness_id))
  assert len(set(results)) == 1
  assert results[0]['a'].type == 'integer'
  # Nor is it written into the ledger.
  assert all(found == ledgers[0] for found in ledgers)


def test_a_public_range_has_a_public_type():
  field = Field('a', 'integer', 0, 9, from_data=('maximum', 'type'))
  with pytest.raises(ValueError, match="'a' marks its type .* its minimum"):
    mechanisms.bounds.bounds_event(TableSchema([field]), 1.0, 1e-6)


@pytest.fixture
def csv(tmp_path):
  def write(content):
    path = tmp_path / 'table.csv'
    path.write_bytes(content)
    return path

  return write


CSV_SCHEMA = TableSchema(
  [
    Field('n', 'number', 0, 9),
    Field('w', 'string', enum=('a', 'b\nc'), required=True),
  ]
)


@pytest.mark.parametrize(
  ('line', 'cells'),
  [
    (b'5', (5, 'a')),
    (b'5,b,7,8', (5, 'a')),
    (b',,,', (None, 'a')),
    (b'\xff,\xe9', (None, 'a')),
    (b'5\0,a', (None, 'a')),
    (b'x,"b\nc"', (None, 'b\nc')),
    (b'5,"a', (5, 'a')),
    (b'5,"a"b', (5, 'a')),
    (b'"', (None, 'a')),
    (b'"5,a', (None, 'a')),
    (b'5,' + b'x' * 200_000, (5, 'a')),
    (b'\xef\xbb\xbf5,a', (None, 'a')),
  ],
  ids=map(str, range(12)),
)
def test_no_line_of_a_file_is_refused_or_changes_another(csv, line, cells):
  path = csv(b'n,w\n1,a\n' + line + b'\n2,"b\nc"\n3,a\n')
  if line in (b'5,"a', b'"', b'"5,a'):
    # A quote reaches as far as the next one, and no further.
    path = csv(b'n,w\n1,a\n' + line + b'\n2,a\n3,a\n')
  table = CSV_SCHEMA.validate(read_table(path, CSV_SCHEMA, 'clip'), 'clip')
  assert table['n'].tolist()[0::2][:1] == [1]
  assert table['n'].tolist()[2:] == [2, 3]
  found = tuple(None if pd.isna(v) else v for v in table.loc[1])
  assert found == cells


@settings(max_examples=100, deadline=None)
@given(
  st.lists(
    st.one_of(
      st.binary(max_size=8),
      st.text('01a,"\n\r.\'', max_size=8).map(str.encode),
    ),
    max_size=6,
  )
)
def test_no_file_is_refused_for_its_rows(tmp_path_factory, lines):
  path = tmp_path_factory.mktemp('csv') / 't.csv'
  path.write_bytes(b'\n'.join([b'n,w', b'1,a', *lines, b'3,a', b'']))
  table = read_table(path, CSV_SCHEMA, 'clip')
  if len(table) > 1:
    CSV_SCHEMA.validate(table, 'clip')
  assert table['n'][0] == 1


def test_a_draft_reads_what_its_type_cannot_hold(csv):
  draft = TableSchema(
    [
      Field('n', 'integer', 0, 9, from_data=('minimum', 'maximum', 'type')),
      Field('w', 'string', enum=('a',)),
    ]
  )
  path = csv(b'n,w\n1.5,a\nx,a\n')
  assert read_table(path, draft)['n'].tolist() == ['1.5', 'x']


def test_resuming_takes_any_table(tmp_path):
  table = _schema(False).validate(_table(NASTY), 'clip')
  arguments = {
    'settings': {},
    'table': table,
    'seed': None,
    'budget': accounting.PrivacyBudget(epsilon=1.0, delta=1e-5),
    'accountant': 'pld',
  }
  path = str(tmp_path / 'work')
  WorkDirectory(path, resume=False, **arguments).ledger.close()
  again = _schema(False).validate(_table(NASTY), 'clip')
  arguments['table'] = again
  WorkDirectory(path, resume=True, **arguments).ledger.close()


@pytest.fixture(scope='module')
def people():
  return small_table.make()


ODD_CELLS = {
  'numbers and objects': {
    'age': [math.inf, -math.inf, 3.5, 'abc'],
    'income': [math.inf, -math.inf, 3.5, 'abc'],
    'visits': [10**400, 'x', [1], None],
    'city': [b'x', {}, 7, '\ud800'],
  },
  'no required values': {'age': None, 'member': 'neither'},
  'no values': dict.fromkeys(('income', 'visits', 'city')),
  'constant': {
    'age': 5,
    'income': 7.0,
    'visits': 1,
    'city': 'Bonn',
    'member': True,
  },
}


@pytest.mark.parametrize('name', thinned(ODD_CELLS, 1))
def test_a_fit_goes_on_whatever_the_cells_hold(people, name):
  table = people.table.astype(object)
  for column, cells in ODD_CELLS[name].items():
    if isinstance(cells, list):
      table[column] = pd.Series(
        [*cells, *table[column].tolist()[len(cells) :]], dtype=object
      )
    else:
      table[column] = pd.Series([cells] * len(table), dtype=object)
  synthesizer = TabularSynthesizer(
    people.schema, **people.budget, out_of_range='clip', seed=0, **people.quick
  )
  synthesizer.fit(table, progress=False)
  rows = synthesizer.sample(50, seed=0)
  people.schema.validate(rows, fitting=False)
  assert np.isfinite(synthesizer.log_prob(rows)).all()
  assert 'Refusals' not in str(synthesizer.privacy_statement())


def test_the_statement_says_that_a_refusal_is_outside(people):
  synthesizer = TabularSynthesizer(people.schema, **people.budget)
  synthesizer.ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=8.0, delta=1e-4)
  )
  synthesizer.num_examples = 400
  statement = str(synthesizer.privacy_statement())
  said = ' '.join(statement.split())
  assert 'is outside of this guarantee' in said
  assert "out_of_range='clip' refuses no value" in said
