import json
import warnings

import numpy as np
import pandas as pd
import pytest

from tfdpflows.tabular import Field, TableSchema
from tfdpflows.tabular.drafting import draft_schema


def people():
  return TableSchema(
    [
      Field('age', 'integer', minimum=0, maximum=120, required=True),
      Field('height', 'number', minimum=0.5, maximum=2.5),
      Field('city', 'string', enum=('Oslo', 'Lima'), required=True),
      Field('member', 'boolean'),
    ]
  )


def table(**changes):
  columns = {
    'age': [30, 40, 50],
    'height': [1.5, np.nan, 1.75],
    'city': ['Oslo', 'Lima', 'Oslo'],
    'member': [True, False, None],
  }
  return pd.DataFrame({**columns, **changes})


def test_json_round_trip(tmp_path):
  path = tmp_path / 'schema.json'
  people().to_json(path)
  assert TableSchema.from_json(path) == people()
  assert list(tmp_path.iterdir()) == [path]
  with pytest.raises(FileExistsError, match='overwrit'):
    people().to_json(path)
  people().to_json(path, overwrite=True)
  raw = json.loads(path.read_text())
  assert raw['fields'][0] == {
    'name': 'age',
    'type': 'integer',
    'constraints': {'required': True, 'minimum': 0, 'maximum': 120},
  }


def test_draft_marks_what_it_read_off_the_data():
  schema = draft_schema(table())
  assert schema.is_draft
  assert schema.draft_marks() == {
    'age': ('minimum', 'maximum', 'required', 'type'),
    'height': ('decimals', 'minimum', 'maximum', 'required', 'type'),
    'city': ('enum', 'required', 'type'),
    'member': ('required', 'type'),
  }
  assert schema['age'].minimum == 30
  assert schema['height'].decimals == 2
  assert schema['city'].enum == ('Lima', 'Oslo')
  assert schema['city'].required
  assert not schema['height'].required
  again = TableSchema.from_dict(json.loads(json.dumps(schema.to_dict())))
  assert again == schema
  assert not people().is_draft


def test_one_missing_value_changes_no_other_row():
  """In pandas it turns a column of integers into floats."""
  schema = TableSchema([Field('code', 'string', enum=('1', '2'))])
  codes = [1, 2, 1, 2]
  whole = schema.validate(pd.DataFrame({'code': codes}), 'clip')
  holed = schema.validate(pd.DataFrame({'code': [*codes, None]}), 'clip')
  assert holed['code'].tolist()[:4] == whole['code'].tolist() == list('1212')


def test_draft_warns_of_a_constant_column_and_refuses_a_blank_one():
  with pytest.warns(UserWarning, match='single value'):
    draft_schema(table(age=7))
  with pytest.raises(ValueError, match="'height': all values are missing"):
    draft_schema(table(height=np.nan))
  with pytest.raises(ValueError, match='no rows'):
    draft_schema(table().iloc[:0])


def test_validate_types_and_order():
  clean = people().validate(table()[['member', 'city', 'height', 'age']])
  assert list(clean) == ['age', 'height', 'city', 'member']
  assert clean['age'].dtype == 'int64'
  assert clean['height'].dtype == 'float64'
  assert clean['member'].dtype == 'boolean'
  assert clean['member'].isna().tolist() == [False, False, True]
  pd.testing.assert_frame_equal(people().validate(clean), clean)


def test_validate_reads_strings():
  raw = pd.DataFrame(
    {
      'age': ['30', ' 40', '50.0'],
      'height': ['1.5', 'NA', '1e0'],
      'city': ['Oslo', 'Lima', 'Oslo'],
      'member': ['true', 'FALSE', ''],
    }
  )
  clean = people().validate(raw)
  assert clean['age'].tolist() == [30, 40, 50]
  assert np.isnan(clean['height'][1])
  assert clean['member'].tolist()[:2] == [True, False]


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'age': [30, 40, 121]}, r"'age', row 3: 121 is outside \[0, 120\]; wid"),
    ({'age': [30, 40.5, 50]}, r"'age', row 2: .*40.5 is no integer"),
    ({'age': ['30', 'x', '50']}, r"'age', row 2: .*'x' is no integer"),
    ({'age': [30, None, 50]}, r"'age', row 2: .*missing but .* required"),
    ({'height': [np.inf, 1, 1]}, r"'height', row 1: .*inf is no number"),
    ({'city': ['Oslo', 'Lima', 'Rome']}, r"'city', row 3: .*'Rome' is not in"),
    ({'city': None}, "'city' has no values"),
    ({'city': ['Oslo', 'Lima', 7]}, "'city', row 3: 7 is not in the enum; add"),
    ({'height': np.nan}, "'height' has no values"),
    (
      {'member': ['yes', 'no', 'no']},
      r"'member', row 1: .*'yes' is no boolean",
    ),
    ({'extra': 1}, "no field 'extra'"),
  ],
)
def test_validate_names_column_row_and_fix(changes, message):
  with pytest.raises(ValueError, match=message):
    people().validate(table(**changes))


def test_leading_zeros_that_are_lost_are_told():
  # Where all are digits of one width, numbers get the zeros again.
  schema = TableSchema([Field('zip', 'string', enum=('01067', 'abroad'))])
  has = r"is not in the enum, which has '01067'; "
  for cells, message in (
    (['abroad', 1067], f'row 2: 1067 {has}numbers have .*tabular.read_table'),
    ([1067.0, None], f'row 1: 1067 {has}numbers have lost'),
    (['abroad', '1067'], f"row 2: '1067' {has}write it so, add it"),
    (['abroad', '1068'], r"row 2: '1068' is not in the enum; add it"),
  ):
    with pytest.raises(ValueError, match=message):
      schema.validate(pd.DataFrame({'zip': cells}))


def test_validate_refuses_the_wrong_shape():
  with pytest.raises(ValueError, match="no column 'city'; add it"):
    people().validate(table().drop(columns='city'))
  with pytest.raises(ValueError, match='one row'):
    people().validate(table()[:1])
  assert len(people().validate(table()[:1], fitting=False)) == 1
  twice = table()
  twice.columns = ['age', 'age', 'city', 'member']
  with pytest.raises(ValueError, match="Two columns are named 'age'"):
    people().validate(twice)
  with pytest.raises(ValueError, match='out_of_range'):
    people().validate(table(), 'ignore')


def test_clip_moves_to_what_is_declared():
  wild = table(
    age=[-5, 300, None], height=[9.0, 0.1, None], city=['Rome', 'Lima', None]
  )
  clean = people().validate(wild, 'clip')
  assert clean['age'].tolist() == [0, 120, 60]
  assert clean['height'].tolist()[:2] == [2.5, 0.5]
  assert clean['city'].tolist() == ['Oslo', 'Lima', 'Oslo']
  optional = TableSchema(
    [Field('x', 'string', enum=('a',)), Field('y', 'integer', enum=(1, 5, 9))]
  )
  clean = optional.validate(
    pd.DataFrame({'x': ['a', 'b'], 'y': [-3, 6]}), 'clip'
  )
  assert clean['x'].isna().tolist() == [False, True]
  assert clean['y'].tolist() == [1, 5]


def test_a_word_for_missing_may_be_declared():
  schema = TableSchema([Field('x', 'string', enum=('NA', 'a'))])
  clean = schema.validate(pd.DataFrame({'x': ['NA', 'a', '']}))
  assert clean['x'].isna().tolist() == [False, False, True]


def test_a_declared_constant_is_legal_and_warned_of():
  schema = TableSchema(
    [Field('x', 'integer', minimum=3, maximum=3, required=True)]
  )
  with pytest.warns(UserWarning, match='constant'):
    schema.validate(pd.DataFrame({'x': [3, 3]}))


def test_a_range_in_which_small_numbers_are_lost_is_warned_of():
  table = pd.DataFrame({'x': [2.5, 7e9]})
  wide = TableSchema([Field('x', 'number', minimum=0, maximum=8e9)])
  with pytest.warns(UserWarning, match="'x' .* to the nearest 1,000, and"):
    wide.validate(table)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    wide.validate(table, fitting=False)
    narrow = TableSchema([Field('x', 'number', minimum=0, maximum=8e8)])
    narrow.validate(table / 10)


@pytest.mark.parametrize(
  ('raw', 'message'),
  [
    ({'type': 'string'}, 'needs "name"'),
    ({'name': 'x', 'type': 'year'}, 'use one of integer'),
    ({'name': 'x', 'type': 'date'}, 'has no minimum'),
    ({'name': 'x', 'type': 'string'}, 'without "enum"'),
    ({'name': 'x', 'type': 'integer'}, 'has no minimum'),
    (
      {'name': 'x', 'type': 'number', 'constraints': {'minimum': 0}},
      'has no maximum',
    ),
    (
      {
        'name': 'x',
        'type': 'number',
        'constraints': {'minimum': 1, 'maximum': 0},
      },
      'swap them',
    ),
    (
      {
        'name': 'x',
        'type': 'integer',
        'constraints': {'minimum': 0.5, 'maximum': 9},
      },
      'whole',
    ),
    ({'name': 'x', 'constraints': {'enum': []}}, 'empty enum'),
    ({'name': 'x', 'constraints': {'enum': ['a', 'a']}}, 'twice'),
    ({'name': 'x', 'constraints': {'enum': ['a', 1]}}, 'lists 1'),
    ({'name': 'x', 'constraints': {'pattern': '.*'}}, "constraint 'pattern'"),
    (
      {'name': 'x', 'constraints': {'enum': ['a']}, 'fromData': ['name']},
      "marks 'name'",
    ),
    ({'name': 'x', 'decimal': 2}, "'decimal'; did you mean 'decimals'"),
    ({'name': 'x', 'constraint': {}}, "did you mean 'constraints'"),
    ({'name': 'x', 'missing_values': ['-']}, "did you mean 'missingValues'"),
    ({'name': 'x', 'required': True}, '\'required\' beside "constraints"; put'),
  ],
)
def test_bad_fields_are_refused_by_name(raw, message):
  with pytest.raises(ValueError, match=message):
    TableSchema.from_dict({'fields': [raw]})


def test_properties_of_the_schema_that_are_misspelt_are_refused():
  field = {'name': 'x', 'type': 'boolean', 'title': 'X', 'rdfType': 'y'}
  described = {'fields': [field], 'title': 'A table', 'primaryKey': 'x'}
  assert TableSchema.from_dict(described).names == ('x',)
  for word, meant in [
    ('constraint', 'constraints'),
    ('fieldMatch', 'fieldsMatch'),
    ('privacyunit', 'privacyUnit'),
  ]:
    with pytest.raises(ValueError, match=f'{word}.; did you mean .{meant}'):
      TableSchema.from_dict({**described, word: []})


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'decimals': 1.5}, 'whole number of digits'),
    ({'decimals': 99}, 'whole number of digits'),
    ({'type': 'integer', 'decimals': 1}, 'only numbers'),
    ({'maximum': 0.04, 'minimum': 0.01, 'decimals': 1}, 'no value with 1'),
    ({'decimals': 15, 'maximum': 1e6}, r'2\*\*53'),
    ({'decimals': 1, 'from_data': ('type',)}, 'state the type too'),
  ],
)
def test_decimals_that_are_refused(changes, message):
  field = {'name': 'x', 'type': 'number', 'minimum': 0, 'maximum': 9}
  with pytest.raises(ValueError, match=message):
    Field(**{**field, **changes})


def test_no_budget_pays_for_decimals():
  schema = draft_schema(table())
  found = schema.for_bounds()
  assert found['height'].decimals is None
  assert 'decimals' not in found['height'].from_data
  assert found['age'] == schema['age']
  with pytest.raises(ValueError, match='no budget pays'):
    schema.public_part(table())


def test_bad_files_are_refused(tmp_path):
  path = tmp_path / 'schema.json'
  for content in (b'{', b'[]', b'{"fields": []}', b'\xff', b'[' * 100000):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r'schema\.json'):
      TableSchema.from_json(path)
  field = Field('x', 'boolean')
  with pytest.raises(ValueError, match="two fields named 'x'"):
    TableSchema([field, field])


@pytest.mark.parametrize('decimals', [-3, 1, 6, 15])
def test_widened_schemas_hold_what_their_fields_can(decimals):
  """One cell that no field can have refused the report of a table."""
  field = Field('x', 'number', 0.0, 1.0, decimals=decimals)
  if decimals < 0:
    field = Field('x', 'number', 0.0, 9000.0, decimals=decimals)
  df = pd.DataFrame({'x': [0.0, 1e300, -1e300]})
  low, high = TableSchema([field]).widened(df)['x'].grid
  assert 2**53 - 8 < -low <= 2**53
  assert 2**53 - 8 < high <= 2**53
  whole = TableSchema([Field('x', 'integer', enum=(1,))])
  df = pd.DataFrame({'x': [2**60, 2**53, 1, -(2**61)]})
  assert whole.widened(df)['x'].enum == (1, 2**53)


def test_a_file_in_another_encoding(tmp_path):
  path = tmp_path / 'schema.json'
  path.write_text('{"fields": []}', encoding='utf-16')
  with pytest.raises(ValueError, match=r'schema\.json is not UTF-8; save it'):
    TableSchema.from_json(path)
