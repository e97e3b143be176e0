"""Drafts: all that can be described, and a list of what cannot."""

import datetime

import numpy as np
import pandas as pd
import pytest

from tfdpflows.tabular import TableSchema, drafting
from tfdpflows.tabular.dialect import CellFormat
from tfdpflows.tabular.drafting import draft_schema

ROWS = 40
RANGE = ('minimum', 'maximum', 'required', 'type')


def _table():
  rng = np.random.default_rng(0)
  days = pd.date_range('2024-01-01', periods=ROWS).strftime('%d.%m.%Y')
  return pd.DataFrame(
    {
      'id': [f'A{i:04}' for i in range(ROWS)],
      'number': np.arange(ROWS) + 1000,
      'note': [f'came on day {i} and left' for i in range(ROWS)],
      'nothing': ['', None] * (ROWS // 2),
      'one': ['x'] * ROWS,
      'age': rng.integers(18, 90, ROWS),
      'price': [f'{i},{i + 10} €' for i in range(ROWS)],
      'day': days,
      'city': rng.choice(['Bonn', 'Köln'], ROWS),
    }
  )


def test_all_that_can_be_described_is_and_the_rest_is_listed():
  schema, findings = drafting.draft(_table())
  assert schema.names == ('number', 'one', 'age', 'city')
  found = {f.column: f for f in findings}
  assert list(found) == [
    'id',
    'number',
    'note',
    'nothing',
    'one',
    'price',
    'day',
  ]
  assert [f.column for f in findings if f.is_drafted] == ['number', 'one']
  assert 'an identifier: 40 different' in found['id'].problem
  # Whose rows are whose is said by what repeats.
  assert '--privacy_unit' not in found['id'].fix
  visits = pd.DataFrame({'who': [f'p{i // 2}' for i in range(3000)]})
  (of_who,) = drafting.draft(visits).findings
  assert '--privacy_unit=who' in of_who.fix
  assert 'free text' in found['note'].problem
  assert 'missing' in found['nothing'].problem
  assert 'single value' in found['one'].problem
  assert '--decimal_char=, --nobare_number' in found['price'].fix
  assert '--date_format' in found['day'].fix
  assert all('--drop=' in f.fix for f in findings)
  # A file that has them is refused, not read without them.
  with pytest.raises(ValueError, match="no field 'id'.*fieldsMatch"):
    schema.validate(_table())
  with pytest.raises(ValueError, match="'id'.*\n.*'note'.*\n.*'nothing'"):
    draft_schema(_table())


def test_whose_rows_they_may_be_is_told_by_the_name():
  who = np.arange(60) // 2
  table = pd.DataFrame(
    {'individual': who, 'Patient.No': who + 7, 'student': who % 2, 'n': who}
  )
  found = drafting.draft(table).findings
  assert [f.column for f in found] == ['individual', 'Patient.No']
  assert '30 different values that repeat' in found[0].problem
  assert '--privacy_unit=individual if' in found[0].fix


def test_which_rows_have_a_value_may_be_learned():
  (field,), (found,) = drafting.draft(pd.DataFrame({'x': ['a', None, 'a']}))
  assert not field.required
  assert found.problem == 'a single value, or none'
  assert '--drop=x if which rows have none says little' in found.fix


def test_times_of_another_notation_are_told():
  table = pd.DataFrame({'at': ['10:00', '9:53', '11:15', ' '] * 9})
  (field,), (found,) = drafting.draft(table)
  assert field.type == 'string'
  assert (
    "4 texts, of which 2 are no times of a day, such as '9:53'" in found.problem
  )
  assert 'write times as 09:05' in found.fix


def test_what_is_dropped_by_name_may_be_in_a_file():
  names = ('age', 'city')
  others = [name for name in _table() if name not in names]
  for options in ({'columns': names}, {'drop': others}):
    schema, findings = drafting.draft(_table(), **options)
    assert schema.names == names
    assert schema.fields_match == 'subset'
    assert not findings
    assert len(schema.validate(_table(), fitting=False)) == ROWS
    assert TableSchema.from_dict(schema.to_dict()) == schema
  with pytest.raises(ValueError, match="no column 'agee'. It has 'id'"):
    drafting.draft(_table(), drop=['agee'])
  with pytest.raises(ValueError, match='one list'):
    drafting.draft(_table(), drop=['age'], columns=['city'])


def test_a_format_makes_columns_of_texts():
  schema, _ = drafting.draft(
    _table(),
    columns=('price', 'day'),
    cells=CellFormat(decimal_char=',', bare_number=False),
    date_format='%d.%m.%Y',
  )
  price, day = schema
  assert (price.type, price.decimals) == ('number', 2)
  assert price.from_data == ('decimals', *RANGE)
  assert (day.type, day.format) == ('date', '%d.%m.%Y')
  assert (day.minimum, day.maximum) == ('2024-01-01', '2024-02-09')
  assert day.from_data == RANGE
  table = pd.DataFrame({'x': ['2024-01-01'] * 2})
  given = {'type': 'date', 'minimum': '2020-01-01', 'maximum': '2030-01-01'}
  for changes, expected in (
    (None, None),
    ({}, '%d.%m.%Y'),
    ({'format': 'default'}, None),
  ):
    overrides = {} if changes is None else {'x': {**given, **changes}}
    schema, _ = drafting.draft(
      table, overrides=overrides, date_format='%d.%m.%Y'
    )
    assert schema['x'].format == expected


@pytest.mark.parametrize(
  ('cells', 'expected'),
  [
    (['2024-01-01', '2024-01-02'], ('date', '2024-01-01', '2024-01-02')),
    (
      ['2024-01-01', '2024-01-02 10:00'],
      ('datetime', '2024-01-01T00:00:00', '2024-01-02T10:00:00'),
    ),
    (
      ['2024-01-01T00:00Z', '2024-01-02T10:00+02:00'],
      ('datetime', '2024-01-01T00:00:00+00:00', '2024-01-02T08:00:00+00:00'),
    ),
    (
      pd.to_datetime(['2024-01-01', None, '2024-01-02']),
      ('date', '2024-01-01', '2024-01-02'),
    ),
    (
      pd.to_datetime(['2024-07-01']).tz_localize('Europe/Berlin'),
      ('datetime', *['2024-07-01T00:00:00+02:00'] * 2),
    ),
    (['10:00', '08:30:00'], ('time', '08:30:00', '10:00:00')),
    (['P1D', '26:00:00'], ('duration', 'P1D', 'P1DT2H')),
    (pd.to_timedelta(['1h', '2h']), ('duration', 'PT1H', 'PT2H')),
    ([datetime.time(1), None], ('time', '01:00:00', '01:00:00')),
    (['2024', '2025'], ('integer', 2024, 2025)),
  ],
)
def test_types_of_time(cells, expected):
  (field,), _ = drafting.draft(pd.DataFrame({'x': cells}))
  assert (field.type, field.minimum, field.maximum) == expected
  assert field.from_data == RANGE


PUBLIC = """name;type;minimum;maximum;enum;required;decimals;format
age;integer;0;120;;true;;
price;number;0;100;;true;2;
city;string;;;Köln|Bonn|Trier;false;;
day;date;01.01.2020;31.12.2029;;true;;%d.%m.%Y
id;string;;;A|B;false;;
number;integer;1;;;;;
"""


def test_overrides_are_filled_in_and_not_marked(tmp_path):
  path = tmp_path / 'public.csv'
  path.write_text(PUBLIC, encoding='utf-8-sig')
  overrides = drafting.read_overrides(path)
  overrides['price'].update(decimalChar=',', bareNumber=False)
  schema, findings = drafting.draft(_table(), overrides=overrides)
  assert [f.column for f in findings if not f.is_drafted] == ['note', 'nothing']
  assert set(schema.draft_marks()) == {'number', 'one'}
  assert schema['age'].to_dict() == {
    'name': 'age',
    'type': 'integer',
    'constraints': {'required': True, 'minimum': 0, 'maximum': 120},
  }
  assert schema['day'].maximum == '2029-12-31'
  assert schema['price'].decimals == 2
  assert schema['city'].enum == ('Köln', 'Bonn', 'Trier')
  assert schema['id'].enum == ('A', 'B')
  number = schema['number']
  assert (number.minimum, number.maximum) == (1, 1000 + ROWS - 1)
  assert number.from_data == ('maximum', 'required')


def test_what_is_public_is_not_read():
  """Where all is given, rows of any kind give the same field."""
  given = {
    'x': {'type': 'integer', 'minimum': 0, 'maximum': 9, 'required': False}
  }
  for cells in ([1, 2], ['a', None], [np.inf, 1e300]):
    schema, findings = drafting.draft(
      pd.DataFrame({'x': cells}), overrides=given
    )
    assert not schema.is_draft
    assert not findings


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('name,mean\nage,3\n', "'mean' is no property"),
    ('type\ninteger\n', 'no column "name"'),
    ('name,type\n,integer\n', 'row 1.*empty or there twice'),
    ('name,type\nage,integer\nage,number\n', 'row 2.*twice'),
    ('name,minimum\nage,0\n', 'row 1.*give the type too'),
    ('name,type,minimum\nage,integer,zero\n', "row 1.*'zero'"),
    ('name,required\nage,perhaps\n', 'write true or false'),
    ('name,decimals\nage,two\n', "'two'"),
    ('name\n"age\n', 'public.csv'),
  ],
)
def test_bad_overrides_are_refused(text, message, tmp_path):
  path = tmp_path / 'public.csv'
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    drafting.read_overrides(path)


def test_overrides_that_do_not_fit_end_the_draft():
  for given in (
    {'type': 'integer', 'minimum': 9, 'maximum': 0},
    {'type': 'year'},
    {'average': 3},
    {'type': 'string', 'enum': '345'},
  ):
    with pytest.raises(ValueError, match="'age'"):
      drafting.draft(_table(), overrides={'age': given})
  with pytest.raises(ValueError, match="no column 'wage'"):
    drafting.draft(_table(), overrides={'wage': {}})


def test_words_between_numbers_are_pointed_out():
  ages = [*map(str, range(20, 80)), 'unknown', '?'] * 3
  found = drafting.draft(pd.DataFrame({'age': ages}))
  (finding,) = found.findings
  assert finding.is_drafted
  assert finding.problem == '62 texts, of which 2 are no numbers'
  # Those that are missing by default too: the flags replace them.
  words = ["'?'", 'unknown', '', 'NA', 'NaN', 'null']
  flags = [f'--missing_values={word}' for word in words]
  assert finding.fix == f'{" ".join(flags)} if these are missing values'
  few = drafting.draft(pd.DataFrame({'age': ['1', '2', 'x', 'y'] * 5}))
  assert not few.findings


EUROS = CellFormat(decimal_char=',', group_char='.', bare_number=False)
OF_EUROS = '--decimal_char=, --group_char=. --nobare_number'
NONE = ' '.join(f'--missing_values={w}' for w in ('', 'NA', 'NaN', 'null'))


def _money(end):
  return [f'{i}.{i % 900 + 100},50{end}' for i in range(1, 900)]


@pytest.mark.parametrize(
  ('texts', 'options', 'problem', 'fix'),
  [
    # Words for missing values make no free text of money.
    (
      [*_money(' €'), 'n/a', 'k.A.', '-'],
      {'cells': EUROS},
      'different texts in 902 rows, of which 3 are no numbers',
      f'--missing_values=- --missing_values=k.A. --missing_values=n/a {NONE} '
      'if these are missing values, or --drop=x',
    ),
    (
      [*_money(' €'), 'n/a'],
      {},
      'different texts in 900 rows, of which 1 is no number',
      f'{OF_EUROS} --missing_values=n/a {NONE} if they are numbers and this is '
      'a missing value, or --drop=x',
    ),
    (_money(' EUR'), {}, '899 rows', f'{OF_EUROS} if they are numbers, or'),
    (_money(''), {}, '', '--decimal_char=, --group_char=. if they are numbers'),
    (
      ['1.5', '2.5', '3.75', 'x'] * 5,
      {'cells': EUROS},
      '4 texts, of which 1 is no number',
      '--decimal_char=. --missing_values=x',
    ),
    # Codes are no numbers, whatever else is in the column.
    (['01067', *(f'{i}' for i in range(10_000, 10_050))], {}, 'an ident', ''),
    ([f'{i}{"ABCDEFG"[i % 7]}' for i in range(50)], {}, 'an identifier', ''),
    # What does not fit a format that was given.
    (
      [*(f'{i:02}.03.2024' for i in range(1, 29)), '3/14/24', '3/15/24', '-'],
      {'date_format': '%d.%m.%Y'},
      ", of which 2 do not fit --date_format=%d.%m.%Y, such as '3/14/24'",
      'write all dates in one format',
    ),
    (
      [*(f'{i:02}.03.2024' for i in range(1, 29)), '-'],
      {'date_format': '%d.%m.%Y'},
      ', of which 1 is no date',
      f'--missing_values=- {NONE} if this is a missing value',
    ),
  ],
)
def test_texts_that_mostly_are_numbers_or_dates(texts, options, problem, fix):
  (finding,) = drafting.draft(pd.DataFrame({'x': texts}), **options).findings
  assert problem in finding.problem
  assert fix in finding.fix


@pytest.mark.parametrize(
  ('name', 'cells', 'is_noted'),
  [
    ('person_id', [f'p{i}' for i in range(50)], True),
    ('PersonID', [*range(50)], True),
    ('Person ID', [*range(50)], True),
    ('who', [f'p{i}' for i in range(300)], True),
    ('paid', [*'abcd'], False),
    ('city', [f'c{i}' for i in range(50)], False),
  ],
)
def test_identifiers_that_repeat_are_pointed_out(name, cells, is_noted):
  findings = drafting.draft(pd.DataFrame({name: cells * 3})).findings
  assert len(findings) == is_noted
  for finding in findings:
    assert finding.is_drafted
    assert finding.problem.endswith('an identifier, or a code?')
    assert '--privacy_unit=' in finding.fix and '--identifier=' in finding.fix


def test_numbers_of_many_digits_are_codes():
  """As floats some of them would be one."""
  ids = [str(10**15 + 7 * i) for i in range(50)]
  found = drafting.draft(pd.DataFrame({'case': ids, 'age': [1, 2] * 25}))
  (finding,) = found.findings
  assert finding.column == 'case'
  assert '--identifier=' in finding.fix


def test_values_with_commas_between_them_are_no_list(tmp_path):
  path = tmp_path / 'public.csv'
  path.write_text('name,type,enum\nsex,string,"m,w,d"\n')
  with pytest.raises(ValueError, match='row 1: enum is .* between values'):
    drafting.read_overrides(path)


def test_an_override_that_no_value_has_is_named():
  table = pd.DataFrame({'group': ['a', 'b', 'a']})
  overrides = {'group': {'type': 'integer', 'minimum': 0}}
  with pytest.raises(ValueError, match="'group': no value is of the type 'int"):
    drafting.draft(table, overrides=overrides)


def test_a_format_in_which_no_date_can_be_written_is_refused():
  with pytest.raises(ValueError, match="date_format has format 'DD.MM.YYYY'"):
    drafting.draft(_table(), date_format='DD.MM.YYYY')


def test_times_beyond_the_calendar_are_a_finding():
  far = np.array(['12000-01-01', '2000-01-01'], 'M8[s]')
  found = drafting.draft(pd.DataFrame({'far': far, 'x': [1, 2]}))
  assert found.schema.names == ('x',)
  assert 'out of range of the calendar' in found.findings[0].problem
  assert found.findings[0].problem[-1] != '.'  # It is a part of a sentence.


def test_identifiers_are_not_described_and_made_anew():
  table = pd.DataFrame({'id': [f'A{i}' for i in range(30)], 'age': range(30)})
  (finding,) = (f for f in drafting.draft(table).findings if f.column == 'id')
  assert '--identifier=' in finding.fix
  found = drafting.draft(table, identifiers={'id': 'A{}'})
  assert found.schema.names == ('age',)
  assert found.schema.identifiers == {'id': 'A{}'}
  assert found.schema.fields_match == 'equal'
  assert 'id' not in [f.column for f in found.findings]
  with pytest.raises(ValueError, match="no column 'key'"):
    drafting.draft(table, identifiers={'key': 'A{}'})


def test_the_error_of_an_identifier_says_how_to_go_on():
  people = [f'p{i // 3}' for i in range(3600)]
  df = pd.DataFrame({'who': people, 'age': np.arange(3600) % 80})
  with pytest.raises(ValueError, match=r"drop=\['who'\].*is the privacy_unit"):
    draft_schema(df)
  assert draft_schema(df, drop=['who']).names == ('age',)
  assert draft_schema(df, privacy_unit='who').privacy_unit == 'who'
