"""Dates, times, datetimes and durations: the same from all kinds of files."""

import datetime
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import tensorflow as tf

from tfdpflows.evaluation import compare
from tfdpflows.evaluation.figures import marginal_figure
from tfdpflows.tabular import (
  Field,
  TableEncoder,
  TableSchema,
  code_store,
  read_table,
  write_frames,
)
from tfdpflows.tabular.raw_values import RawTable
from tfdpflows.tabular.sources import Source
from tfdpflows.tabular.times import TimeScale

BERLIN = 'Europe/Berlin'
SCHEMA = TableSchema(
  [
    Field('born', 'date', '1900-01-01', '2020-12-31', required=True),
    Field('paid', 'date', '01.01.2020', '31.12.2029', format='%d.%m.%Y'),
    Field('seen', 'datetime', '2020-01-01', '2030-01-01'),
    Field(
      'sent',
      'datetime',
      '2020-01-01',
      '2021-01-01',
      unit='minute',
      timezone=BERLIN,
    ),
    Field('opens', 'time', unit='minute'),
    Field('stay', 'duration', 'PT0S', 'P30D', unit='hour', required=True),
    Field('lap', 'duration', 'PT0S', 'PT1M', unit='millisecond'),
  ]
)
TEXTS = pd.DataFrame(
  {
    'born': ['1970-01-02', '1900-01-01', '2020-12-31 00:00'],
    'paid': ['24.12.2025', '', '2025-12-24'],
    'seen': ['2025-06-01T10:00:01', 'NA', '2025-06-01 10:00:01.9'],
    # Twice the same hour of the night in which clocks are set back.
    'sent': [
      '2020-10-25T02:30:00+02:00',
      '2020-10-25T02:30+01:00',
      '2020-07-01 10:00:59',
    ],
    'opens': ['08:30', '23:59:59', ''],
    'stay': ['P1DT2H', '36:00:00', '-1 days +26:00:00'],
    'lap': ['PT59.25S', '', '00:00:01.001'],
  }
)
CELLS = pd.DataFrame(
  {
    'born': pd.to_datetime(['1970-01-02', '1900-01-01', '2020-12-31']),
    'paid': [datetime.date(2025, 12, 24), None, datetime.date(2025, 12, 24)],
    'seen': pd.to_datetime(
      ['2025-06-01T10:00:01', None, '2025-06-01T10:00:01.9'], format='ISO8601'
    ),
    'sent': pd.to_datetime(
      ['2020-10-25T00:30', '2020-10-25T01:30', '2020-07-01T08:00:59'],
      format='ISO8601',
      utc=True,
    ),
    'opens': [datetime.time(8, 30), datetime.time(23, 59, 59), None],
    'stay': [
      datetime.timedelta(hours=26),
      np.timedelta64(36, 'h'),
      pd.Timedelta(hours=2),
    ],
    'lap': pd.to_timedelta(['59.25s', None, '1.001s']),
  }
)


def _codes(table):
  return TableEncoder(SCHEMA).encode(SCHEMA.validate(table))


def test_texts_and_cells_of_all_files_give_the_same_codes(tmp_path):
  want = _codes(CELLS)
  days = [(1970, 1, 2), (1900, 1, 1), (2020, 12, 31)]
  start = datetime.date(1900, 1, 1)
  born = [(datetime.date(*day) - start).days for day in days]
  assert want[:, 0].tolist() == born
  assert want[:, 4].tolist() == [8 * 60 + 30, 24 * 60 - 1, 24 * 60]
  assert want[:, 5].tolist() == [26, 36, 2]
  np.testing.assert_array_equal(_codes(TEXTS), want)
  np.testing.assert_array_equal(_codes(CELLS.astype(object)), want)
  TEXTS.to_csv(tmp_path / 'a.csv', index=False)
  pa.parquet.write_table(pa.Table.from_pandas(CELLS), tmp_path / 'a.parquet')
  for name in ('a.csv', 'a.parquet'):
    store = code_store.read(Source.of(tmp_path / name), SCHEMA, 'error')
    np.testing.assert_array_equal(store[:], want)
  read = read_table(tmp_path / 'a.csv', SCHEMA)
  np.testing.assert_array_equal(_codes(read), want)


@pytest.mark.parametrize('end', ['csv', 'parquet', 'feather', 'tfrecord'])
def test_what_is_written_is_read(end, tmp_path):
  clean = SCHEMA.validate(CELLS)
  path = tmp_path / f'a.{end}'
  write_frames([clean[:2], clean[2:]], path, SCHEMA)
  table = Source.of(path).to_frame(SCHEMA)
  pd.testing.assert_frame_equal(SCHEMA.validate(table), clean)
  if end == 'csv':
    assert path.read_text().splitlines()[1:3] == [
      '1970-01-02,24.12.2025,2025-06-01T10:00:01,2020-10-25T02:30:00+02:00,'
      '08:30:00,P1DT2H,PT59.25S',
      '1900-01-01,,,2020-10-25T02:30:00+01:00,23:59:00,P1DT12H,',
    ]
  if end == 'parquet':
    kinds = pa.parquet.read_schema(path).types
    assert [str(kind) for kind in kinds] == [
      'date32[day]',
      'date32[day]',
      # Parquet has no seconds.
      'timestamp[ms]',
      f'timestamp[ms, tz={BERLIN}]',
      'time32[ms]',
      'duration[s]',
      'duration[ms]',
    ]


def test_decoded_values_are_those_of_pandas():
  clean = SCHEMA.validate(CELLS)
  assert clean.dtypes.astype(str).tolist() == [
    'datetime64[s]',
    'datetime64[s]',
    'datetime64[s]',
    f'datetime64[s, {BERLIN}]',
    'object',
    'timedelta64[s]',
    'timedelta64[ms]',
  ]
  pd.testing.assert_frame_equal(SCHEMA.validate(clean), clean)
  encoder = TableEncoder(SCHEMA)
  exact = [n for n in SCHEMA.names if n != 'seen']
  found = encoder.decode(encoder.encode(clean) + 0.3)
  pd.testing.assert_frame_equal(found[exact], clean[exact])
  # A range of more than 2**24 seconds: float32 is what codes are.
  off = (found['seen'] - clean['seen']).abs().max()
  assert off < datetime.timedelta(seconds=32)


def test_whatever_is_decoded_is_legal():
  encoder = TableEncoder(SCHEMA)
  sizes = np.array([c.size for c in encoder.columns])
  x = np.random.default_rng(0).random([500, len(sizes)]) * sizes
  x[0], x[1] = 0, np.nextafter(sizes, 0)
  table = encoder.decode(x.astype(np.float32))
  SCHEMA.validate(table)


def test_years_that_nanoseconds_have_not():
  schema = TableSchema([Field('d', 'date', '0001-01-01', '9999-12-31')])
  table = pd.DataFrame({'d': ['0001-01-01', '9999-12-31', '1500-02-28']})
  encoder = TableEncoder(schema)
  found = encoder.decode(encoder.encode(schema.validate(table)))
  assert schema['d'].scale.texts(found['d']).tolist() == table['d'].tolist()


@pytest.mark.parametrize(
  ('name', 'cell', 'message'),
  [
    ('born', '1970-02-30', "row 1: '1970-02-30' is no date; write it as ISO"),
    ('born', '2021-01-01', "'2021-01-01.*' is outside .1900-01-01, 2020-12-31"),
    ('born', '2020-01-01T10:00', 'is no date'),
    ('born', pd.Timestamp('2020-01-01 10:00'), 'is no date'),
    ('born', 20200101, 'is no date'),
    ('born', '', 'missing'),
    ('paid', '12/24/2025', r'as %d\.%m\.%Y or as ISO'),
    ('seen', '2025-06-01T10:00Z', 'no datetime.* has no timezone'),
    ('opens', '24:00', 'is no time'),
    ('opens', '9:05', r'has it, such as 09:05 or 09:05:30\.$'),
    ('stay', 'P1M', 'write it as P1DT2H3M4S'),
    ('stay', 5, 'is no duration'),
  ],
)
def test_bad_cells_are_refused_or_clipped(name, cell, message):
  schema = TableSchema([SCHEMA[name]])
  table = pd.DataFrame({name: pd.Series([cell, cell], dtype=object)})
  with pytest.raises(ValueError, match=message):
    schema.validate(table)
  clean = schema.validate(table, 'clip')
  pd.testing.assert_frame_equal(schema.validate(clean, 'clip'), clean)
  assert TableEncoder(schema).encode(clean).shape == (2, 1)


def test_clipped_cells():
  wild = pd.DataFrame(
    {
      'born': ['1066-10-14', None, '2020-02-03T23:59'],
      'paid': ['x', '9999-12-31', ''],
      'seen': ['2025-06-01T10:00Z', '1999-01-01', np.inf],
      'sent': ['x', '2030-01-01', '2020-01-01T00:00:00+14:00'],
      'opens': [3, '8:30', datetime.datetime(2020, 1, 1)],
      'stay': ['P99999D', None, '-PT1S'],
      'lap': ['x', b'x', []],
    }
  )
  clean = SCHEMA.validate(wild, 'clip')
  born = clean['born'].astype(str).tolist()
  assert born == ['1900-01-01', '1960-07-02', '2020-02-03']
  assert clean['paid'].astype(str).tolist()[1] == '2029-12-31'
  assert clean['stay'].dt.days.tolist() == [30, 15, 0]
  for name in ('opens', 'lap'):
    assert clean[name].isna().all()


def test_json_round_trip():
  raw = json.loads(json.dumps(SCHEMA.to_dict()))
  assert TableSchema.from_dict(raw) == SCHEMA
  assert raw['fields'][1]['constraints']['minimum'] == '2020-01-01'
  assert raw['fields'][1]['format'] == '%d.%m.%Y'
  assert SCHEMA['opens'].maximum == '23:59:00'
  assert SCHEMA['sent'].minimum == '2020-01-01T00:00:00+01:00'


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'minimum': None}, 'has no minimum'),
    ({'minimum': '01.01.2020'}, 'no date; write it as 2026-11-25'),
    ({'minimum': '2021-01-02'}, 'swap them'),
    ({'unit': 'hour'}, 'use day'),
    ({'timezone': 'UTC'}, 'timezone; remove'),
    ({'format': '%d.%m.'}, 'read again'),
    ({'type': 'datetime', 'timezone': 'Mars'}, 'not known'),
    ({'type': 'duration', 'minimum': 'PT1S', 'unit': 'day'}, 'whole day'),
    (
      {'type': 'datetime', 'minimum': '0001-01-01', 'unit': 'microsecond'},
      '53',
    ),
    ({'enum': ('2020-01-01',)}, 'enum'),
    ({'decimals': 1}, 'only numbers'),
  ],
)
def test_bad_fields_are_refused(changes, message):
  field = {'minimum': '2020-01-01', 'maximum': '2021-01-01', 'type': 'date'}
  with pytest.raises(ValueError, match=message):
    Field('x', **{**field, **changes})


def test_no_budget_pays_for_times():
  field = Field('d', 'date', '2020-01-01', '2021-01-01', from_data=('minimum',))
  schema = TableSchema([field])
  table = pd.DataFrame({'d': ['2020-01-01']})
  for function in (schema.for_bounds, lambda: schema.public_part(table)):
    with pytest.raises(ValueError, match="'d' of type date marks minimum"):
      function()


def test_tensors_are_units():
  encoder = TableEncoder(SCHEMA)
  raw = RawTable(SCHEMA, clip=False)
  clean = SCHEMA.validate(CELLS)
  codes = encoder.encode(clean)
  values = tf.function(raw.decode, autograph=False)(tf.constant(codes))
  assert values['born'].numpy().tolist() == [1, -25567, 18627]
  assert values['stay'].dtype == tf.int64
  np.testing.assert_array_equal(np.isnan(values['lap']), [False, True, False])
  np.testing.assert_array_equal(raw.encode(values), codes)
  units = {d['column']: d['unit'] for d in raw.describe()}
  assert units['born'] == 'days since 1970-01-01'
  assert units['lap'] == 'milliseconds'
  with pytest.raises(tf.errors.InvalidArgumentError, match="'born', row"):
    raw.columns[0].encode(tf.constant([10**6], tf.int64))
  clipped = RawTable(SCHEMA, clip=True).columns[0]
  np.testing.assert_array_equal(
    clipped.encode(tf.constant([-(10**6)], tf.int64)), [0]
  )


def test_reports_compare_them():
  clean = SCHEMA.validate(CELLS)
  found = compare(clean, clean[::-1].reset_index(drop=True), SCHEMA)
  assert found.marginals['type'].tolist() == [f.type for f in SCHEMA]
  assert (found.marginals['total_variation'] == 0).all()
  assert np.isfinite(found.marginals['wasserstein']).all()
  figure = marginal_figure(clean['paid'], clean['paid'], SCHEMA['paid'])
  assert '24.12.2025' in figure


def test_texts_of_durations_are_read_again():
  scale = TimeScale('duration', unit='microsecond')
  for count in (0, 1, -1, 10**6, -90 * 10**9, 86_400_000_000, 123_456_789_012):
    assert scale.count(scale.text(count)) == count


def test_values_outside_are_counted_and_schemas_widened():
  schema = TableSchema(
    [
      Field('day', 'date', '2020-01-01', '2020-12-31', format='%d.%m.%Y'),
      Field('span', 'duration', 'P0D', 'P2D', unit='hour'),
      Field(
        'at',
        'datetime',
        '2020-01-01T00:00:00',
        '2020-12-31T00:00:00',
        timezone='Europe/Berlin',
        unit='minute',
      ),
    ]
  )
  rows = pd.DataFrame(
    {
      'day': ['05.03.2020', '31.12.2019', '02.02.2022', 'no day', None],
      'span': ['P1D', 'P3D', '-P1D', None, 'P1DT30M'],
      'at': [
        '2020-06-01T12:00:00',
        '2021-06-01T12:00:00+02:00',
        '2019-06-01T12:00:00',
        None,
        None,
      ],
    }
  )
  assert schema.count_clipped(rows) == {'day': 3, 'span': 2, 'at': 2}
  wide = schema.widened(rows)
  assert wide.count_clipped(rows) == {'day': 1}
  assert schema.widened(rows[:1]) == schema
  read = wide.validate(rows, 'clip', fitting=False)
  assert str(read['day'].max().date()) == '2022-02-02'
  assert read['span'].max() == pd.Timedelta(days=3)


@pytest.mark.parametrize(
  ('kind', 'unit', 'form'),
  [
    ('time', None, '%I:%M:%S'),
    ('datetime', 'minute', '%d.%m.%Y %I:%M'),
    ('time', 'millisecond', '%H:%M:%S'),
    # The bounds are kept as ISO 8601, which this would read otherwise.
    ('date', None, '%Y-%d-%m'),
  ],
)
def test_formats_that_lose_something_are_refused(kind, unit, form):
  with pytest.raises(ValueError, match='written and read again'):
    TimeScale(kind, unit, form)


@pytest.mark.parametrize(
  ('scale', 'first', 'last'),
  [
    (TimeScale('date', format='%d.%m.%Y'), '0001-01-01', '0001-02-01'),
    (TimeScale('date', format='%d.%m.%y'), '1967-12-20', '1969-01-10'),
    (
      TimeScale('datetime', 'minute', '%d.%m.%Y %H:%M', 'Europe/Berlin'),
      '2025-10-26T00:00Z',
      '2025-10-26T02:00Z',
    ),
  ],
)
def test_what_is_written_in_a_format_is_read_as_the_same_value(
  scale, first, last
):
  counts = range(scale.count(first), scale.count(last))
  assert [scale.count(scale.text(count)) for count in counts] == list(counts)


def test_no_other_cell_decides_how_a_time_is_read():
  # pandas keeps the types of Python only beside cells of other types.
  berlin = TimeScale('datetime', timezone='Europe/Berlin')
  early = datetime.timezone(datetime.timedelta(hours=14))
  for value in (
    datetime.datetime(2025, 10, 26, 2, 30, fold=1),
    datetime.datetime(1, 1, 1, tzinfo=early),
  ):
    alone, _ = berlin.counts(pd.Series([value]), True)
    beside, bad = berlin.counts(pd.Series([value, 'x'], dtype=object), True)
    assert (alone[0], bad[0]) == (beside[0], False)


def test_values_beyond_the_room_for_them_stay_beyond():
  scale = TimeScale('datetime')
  far = pd.Series(np.array([2**62, -(2**62)], 'M8[s]'))
  for cells in (far, far.astype(object)):
    counts, bad = scale.counts(cells, True)
    assert not bad.any()
    assert counts[0] > scale.count('9999-12-31') > 0 > counts[1]
  with pytest.raises(ValueError, match='beyond'):
    Field('x', 'duration', 'PT0S', 'P99999999D', unit='day')
  with pytest.raises(ValueError, match='out of the calendar'):
    Field('x', 'datetime', '0001-01-01', '2000-01-01', timezone='Europe/Berlin')


def test_text_of_a_negative_duration_is_cut_as_its_value():
  scale = TimeScale('duration')
  for value in ('-PT0.0000005S', '-00:00:00.0000005', pd.Timedelta(-500, 'ns')):
    assert scale.count(value) == -1
  assert scale.count('-PT1.0000000S') == -1


def test_types_of_arrow_with_a_time_zone():
  pa = pytest.importorskip('pyarrow')
  dtype = pd.ArrowDtype(pa.timestamp('us', 'Europe/Berlin'))
  cells = pd.Series([pd.Timestamp('2020-07-01T12:00Z')]).astype(dtype)
  _, bad = TimeScale('datetime').counts(cells, False)
  assert bad.all()
  counts, bad = TimeScale('datetime', timezone='UTC').counts(cells, False)
  assert not bad.any()
  assert counts[0] == 1593604800
