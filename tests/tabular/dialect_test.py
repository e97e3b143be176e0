"""CSV as it comes: the same rows in another dialect are the same table."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from tfdpflows.tabular import (
  Field,
  TableEncoder,
  TableSchema,
  code_store,
  read_table,
  values,
  write_frames,
)
from tfdpflows.tabular.dialect import CellFormat, Dialect
from tfdpflows.tabular.drafting import draft_schema
from tfdpflows.tabular.sources import Source

EUROS = CellFormat(
  missing_values=('', '-', '-99'),
  decimal_char=',',
  group_char='.',
  bare_number=False,
)
WORDS = CellFormat(true_values=('ja',), false_values=('nein',))
SCHEMA = TableSchema(
  [
    Field('Größe', 'number', 0, 300, decimals=1, cells=EUROS),
    Field('Einkommen', 'number', 0, 1e5, decimals=2, cells=EUROS),
    Field('Kinder', 'integer', 0, 20, cells=EUROS),
    Field('Ort', 'string', enum=('Köln', 'Bonn; Beuel', '1,5')),
    Field('Mitglied', 'boolean', cells=WORDS),
  ],
  dialect=Dialect(';', 'cp1252'),
)
CSV = (
  'Größe;Einkommen;Kinder;Ort;Mitglied\n'
  '170,2;1.234,50 €;2;Köln;ja\n'
  '-;-99;-99;"Bonn; Beuel";nein\n'
  '3;€ 0,5;"0";1,5;\n'
  ';12.345.678 €;1;;ja\n'
)
TABLE = pd.DataFrame(
  {
    'Größe': [170.2, np.nan, 3.0, np.nan],
    'Einkommen': [1234.5, -99, 0.5, 12345678],
    'Kinder': [2, -99, 0, 1],
    'Ort': ['Köln', 'Bonn; Beuel', '1,5', None],
    'Mitglied': [True, False, None, True],
  }
)


def _codes(table):
  clean = SCHEMA.validate(table, 'clip')
  return TableEncoder(SCHEMA).encode(clean)


def test_a_file_in_its_dialect_gives_the_codes_of_the_data_frame(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_bytes(CSV.encode('cp1252'))
  pa.parquet.write_table(pa.Table.from_pandas(TABLE), tmp_path / 'a.parquet')
  want = _codes(TABLE)
  np.testing.assert_array_equal(_codes(read_table(path, SCHEMA, 'clip')), want)
  for name in ('a.csv', 'a.parquet'):
    source = Source.of(tmp_path / name, SCHEMA.dialect)
    store = code_store.read(source, SCHEMA, 'clip')
    np.testing.assert_array_equal(store[:], want)


@pytest.mark.parametrize('encoding', ['cp1252', 'utf-8', 'utf-8-sig', 'utf-16'])
@pytest.mark.parametrize('name', ['a.csv', 'a.csv.gz'])
def test_what_is_written_is_read(name, encoding, tmp_path):
  schema = TableSchema(SCHEMA.fields, dialect=Dialect(';', encoding))
  clean = schema.validate(TABLE, 'clip')
  path = tmp_path / name
  parts = (clean[:2], clean[2:])
  assert write_frames(parts, path, schema) == 4
  pd.testing.assert_frame_equal(
    schema.validate(read_table(path, schema)), clean, check_exact=True
  )
  if name == 'a.csv':
    lines = path.read_bytes().decode(encoding).splitlines()
    assert lines[:2] == [
      'Größe;Einkommen;Kinder;Ort;Mitglied',
      '170,2;1234,5;2;Köln;ja',
    ]


def test_a_schema_in_json_has_the_words_of_frictionless():
  raw = json.loads(json.dumps(SCHEMA.to_dict()))
  assert raw['dialect'] == {'delimiter': ';'}
  assert raw['encoding'] == 'cp1252'
  assert raw['fields'][0]['decimalChar'] == ','
  assert raw['fields'][0]['bareNumber'] is False
  assert raw['fields'][4]['trueValues'] == ['ja']
  assert TableSchema.from_dict(raw) == SCHEMA
  # What Frictionless writes by default changes nothing.
  raw['dialect']['quoteChar'] = '"'
  raw['fieldsMatch'] = 'exact'
  assert TableSchema.from_dict(raw) == SCHEMA
  # Of the whole table, where a column has no words of its own.
  raw['missingValues'] = ['?']
  found = TableSchema.from_dict(raw)
  assert found['Ort'].cells.missing_values == ('?',)
  assert found['Kinder'] == SCHEMA['Kinder']


@pytest.mark.parametrize(
  ('text', 'number'),
  [
    ('1.234,5', 1234.5),
    ('1234,5', 1234.5),
    ('-€ 1.234,50', -1234.5),
    ('€ -5', -5),
    ('\u22125 %', -5),
    ('12,5%', 12.5),
    ('kr. 7', 7),
    ('1,5e3', 1500),
    (' ,5 ', 0.5),
    ('1.5', None),
    ('1.23,5', None),
    ('01.02.2020', None),
    ('(5)', None),
    ('-€-5', None),
    ('3-4', None),
    ('', None),
    ('x' * 100_000 + '-', None),
  ],
)
def test_numbers(text, number):
  found = EUROS.plain(text)
  assert found is None if number is None else float(found) == number


def test_blanks_between_groups_are_of_all_kinds():
  cells = CellFormat(group_char=' ')
  for blank in ' \u00a0\u202f':
    assert cells.plain(f'1{blank}234.5') == '1234.5'
  assert cells.plain('12 34') is None


@pytest.mark.parametrize(
  ('start', 'found'),
  [
    ('a;b,c;d\n1,5;2;3\n', Dialect(';')),
    ('a\tb\n1;2;3;4\t5\n', Dialect('\t')),
    ('a\n1;2;3\n', Dialect(',')),
    ('"a;b;c",d\n', Dialect(',')),
    ('\ufeffa;b\n', Dialect(';', 'utf-8-sig')),
  ],
)
def test_a_dialect_is_found_in_the_header(start, found, tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text(start, encoding='utf-8')
  assert Dialect.of_file(path) == found


def test_a_dialect_is_found_by_the_byte_order_mark(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text('ä;b\n1;2\n', encoding='utf-16')
  assert Dialect.of_file(path) == Dialect(';', 'utf-16')
  path.write_bytes('ä|b\n'.encode('cp1252'))
  assert Dialect.of_file(path, encoding='cp1252').delimiter == '|'
  assert Dialect.of_file(path, delimiter=';').delimiter == ';'


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'dialect': {'delimiter': ';;'}}, 'delimiter'),
    ({'dialect': {'quoteChar': "'"}}, 'quoteChar'),
    ({'dialect': ';'}, 'an object'),
    ({'encoding': 'rot13'}, 'rot13'),
    ({'encoding': 'ascii', 'name': 'é'}, "'é'.* cannot write"),
    ({'decimalChar': '5'}, 'decimalChar'),
    ({'decimalChar': ',', 'groupChar': ','}, 'cannot be the same'),
    ({'missingValues': []}, 'missingValues'),
    ({'missingValues': [-99]}, 'missingValues'),
    ({'trueValues': ['0']}, 'true and false'),
    ({'bareNumber': 'no'}, 'bareNumber'),
  ],
)
def test_bad_formats_are_refused(changes, message):
  field = {'name': 'x', 'type': 'boolean'}
  of_table = {
    k: changes.pop(k) for k in ('dialect', 'encoding') if k in changes
  }
  with pytest.raises(ValueError, match=message):
    TableSchema.from_dict({'fields': [{**field, **changes}], **of_table})


def test_a_file_in_another_encoding_is_refused_by_its_line(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_bytes('a;b\n1;2\n3;ä\n'.encode('cp1252'))
  schema = TableSchema([Field('a', 'boolean')], dialect=Dialect(';'))
  with pytest.raises(ValueError, match='line 3 is not UTF-8.*"encoding"'):
    read_table(path, schema)
  assert len(read_table(path, schema, 'clip')) == 2
  for name in ('utf-16-le', 'utf-16-be'):
    path.write_bytes('\ufeffa;b\n1;2\n'.encode(name))
    for how in ('error', 'clip'):
      with pytest.raises(ValueError, match='is UTF-16, by .*iconv -f utf-16'):
        read_table(path, schema, how)
  path.write_bytes(b'PK\x03\x04;')
  with pytest.raises(ValueError, match='ZIP archive.*save its sheet as CSV'):
    read_table(path, schema, 'clip')
  path.write_bytes(b'\xff\xfea\x00\n\x00\x00\xd8\n\x00')
  schema = TableSchema([Field('a', 'boolean')], dialect=Dialect(';', 'utf-16'))
  with pytest.raises(ValueError, match='not UTF-16'):
    read_table(path, schema)


def test_clip_refuses_no_row_of_a_dialect(tmp_path):
  path = tmp_path / 'a.csv'
  schema = TableSchema(
    [Field('a', 'integer', 0, 9), Field('b', 'boolean')], dialect=Dialect(';')
  )
  path.write_text('a;b\n1;true\n2\n3;false;4\n5;"true\n6;true\n')
  found = read_table(path, schema, 'clip')
  assert found['a'].tolist()[:3] == [1, 2, 3]
  assert len(found) == 5


def test_private_types_read_the_format():
  marked = ('minimum', 'maximum', 'type', 'required')
  schema = TableSchema(
    [Field('x', 'number', 0, 0, None, False, marked, cells=EUROS)]
  )
  texts = pd.Series(['1.234,5', '7', '5 %', 'x', '-', '1.5'], name='x')
  kinds = ['number', 'integer', 'integer', 'string', None, 'string']
  assert schema.kinds(texts).tolist() == kinds
  # Numbers that are no texts have those of the file.
  text = schema.public_part(pd.DataFrame({'x': [1234.5, 7.0]}))['x']
  assert text.tolist() == ['1234,5', '7']
  marked = ('type', 'required')
  schema = TableSchema([Field('x', 'boolean', from_data=marked, cells=WORDS)])
  text = schema.public_part(pd.DataFrame({'x': [True, False]}))['x']
  assert text.tolist() == ['ja', 'nein']
  assert schema.kinds(text).tolist() == ['boolean'] * 2


def test_a_sentence_with_a_number_is_no_number():
  texts = pd.Series(['EUR 5', '5kg', 'R$ 5', 'A12', '5 times a day', '7'])
  kinds = [*['integer'] * 3, 'string', 'string', 'integer']
  assert values.kinds(texts, EUROS).tolist() == kinds


def test_an_identifier_that_says_missing_is_none():
  schema = TableSchema([Field('x', 'integer', 0, 9, cells=EUROS)], 'who')
  table = pd.DataFrame({'x': [1, 2, 3], 'who': ['a', '-99', -99]})
  assert schema.unit_ids(table, 'clip').isna().tolist() == [False, True, True]


def test_a_draft_in_a_dialect():
  columns = [line.split(';') for line in ('a;b', '1,5;12 %', '2;-99')]
  table = pd.DataFrame(columns[1:], columns=columns[0])
  schema = draft_schema(table, dialect=Dialect(';'), cells=EUROS)
  assert [(f.name, f.type, f.minimum, f.maximum) for f in schema] == [
    ('a', 'number', 1.5, 2.0),
    ('b', 'integer', 12, 12),
  ]
  # It says nothing of the rows which columns have the format.
  assert {f.cells for f in schema} == {EUROS}


@pytest.mark.parametrize(
  'encoding', ['utf-7', 'iso2022_jp', 'iso-2022-kr', 'hz', 'unicode_escape']
)
def test_encodings_in_which_cells_change_later_ones_are_refused(encoding):
  with pytest.raises(ValueError, match='how others are read'):
    Dialect(',', encoding)


def test_what_cannot_be_written_or_told_apart_is_refused():
  with pytest.raises(ValueError, match='cannot write the delimiter'):
    Dialect('€', 'latin-1')
  for field in (
    Field('b', 'boolean', cells=CellFormat(true_values=('✓',))),
    Field('n', 'number', 0, 9, cells=CellFormat(decimal_char='€')),
    Field('i', 'integer', 0, 9, cells=CellFormat(missing_values=('–',))),
  ):
    with pytest.raises(ValueError, match='cannot write'):
      TableSchema([field], dialect=Dialect(';', 'latin-1'))
  with pytest.raises(ValueError, match="'NA' for a value, and for a missing"):
    Field('b', 'boolean', cells=CellFormat(false_values=('NA', 'no')))
  cells = CellFormat(missing_values=('NA',), false_values=('',))
  found = TableSchema([Field('b', 'boolean', cells=cells)]).validate(
    pd.DataFrame({'b': ['true', '', 'NA']}), fitting=False
  )
  assert found['b'].tolist() == [True, False, pd.NA]
  with pytest.raises(ValueError, match='without NUL'):
    CellFormat(true_values=('a\0',))
