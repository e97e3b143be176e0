"""Encoding and decoding by TensorFlow, beside that of tables."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tfdpflows.tabular import Field, TableEncoder, TableSchema
from tfdpflows.tabular.raw_values import RawTable, tensor_names

SCHEMA = TableSchema(
  [
    Field('whole', 'integer', minimum=-3, maximum=9, required=True),
    Field('whole or none', 'integer', minimum=0, maximum=9),
    Field('wide', 'integer', minimum=0, maximum=2**30),
    Field('grades', 'integer', enum=(5, 1, 3)),
    Field('doses', 'number', enum=(0.5, 0.25, 2.0), required=True),
    Field('length', 'number', minimum=-1.5, maximum=99.0, required=True),
    Field('income', 'number', minimum=0, maximum=3e8),
    Field('weight', 'number', minimum=-0.35, maximum=99, decimals=1),
    Field('price', 'number', minimum=0, maximum=1e6, decimals=2),
    Field('thousands', 'number', minimum=0, maximum=1e5, decimals=-3),
    Field('city', 'string', enum=('Trier', 'Köln', 'NA')),
    Field('sex', 'string', enum=('m', 'f'), required=True),
    Field('member', 'boolean'),
    Field('adult', 'boolean', required=True),
    Field('one', 'number', minimum=4.5, maximum=4.5),
  ]
)


def _table(clip):
  encoder = TableEncoder(SCHEMA)
  return encoder, RawTable(SCHEMA, clip)


def tensors(raw, df):
  """The columns of a validated table as tensors; NA in whatever type."""
  found = {}
  for name, column, series in zip(raw.names, raw.columns, df.items()):
    cells = series[1].astype(object)
    if column.missing is not None:
      cells = cells.where(~cells.isna(), column.missing)
    found[name] = tf.constant(
      cells.to_numpy(column.dtype.as_numpy_dtype), column.dtype
    )
  return found


def frame(raw, values):
  """The table of tensors of values."""
  columns = {}
  for name, column, field in zip(raw.names, raw.columns, SCHEMA):
    cells = pd.Series(values[name].numpy()).astype(object)
    if column.dtype == tf.string:
      cells = cells.map(lambda text: text.decode())
      cells = cells.where(cells != column.missing, None)
    columns[field.name] = cells
  return pd.DataFrame(columns)


def test_rows_of_the_model_decode_and_encode_the_same():
  encoder, raw = _table(clip=False)
  rng = np.random.default_rng(0)
  sizes = np.array([c.size for c in encoder.columns], np.float32)
  codes = rng.random([500, len(sizes)], np.float32) * sizes
  for i, column in enumerate(encoder.columns):
    near = [
      max(code + reach * share, 0.0)
      for code, reach in column.likely
      for share in (-1.5, -0.9, 0.0, 0.3, 1.5)
    ]
    codes[: len(near), i] = near
  want = encoder.decode(codes)
  values = tf.function(raw.decode, autograph=False)(tf.constant(codes))
  pd.testing.assert_frame_equal(
    SCHEMA.validate(frame(raw, values), fitting=False),
    SCHEMA.validate(want, fitting=False),
    check_exact=True,
  )
  found = tf.function(raw.encode, autograph=False)(values)
  want = encoder.encode(SCHEMA.validate(want, fitting=False))
  np.testing.assert_array_equal(found, want)


def test_clipped_values():
  nan = np.nan
  given = {
    'whole': [-9, 12, 4],
    'whole_or_none': [2.5, np.inf, nan],
    'wide': [-np.inf, 7.4, nan],
    'grades': [2.0, 4.0, 99.0],
    'doses': [nan, 0.375, -1.0],
    'length': [nan, -np.inf, 98.0],
    'income': [nan, 4e8, -0.0],
    'weight': [nan, -0.34, 7.06],
    'price': [nan, 1e9, 17.125],
    'thousands': [nan, 1499.0, -1.0],
    'city': ['Paris', 'NA', ''],
    'sex': ['', 'x', 'f'],
    'member': [0.5, nan, 1.0],
    'adult': [True, False, True],
    'one': [nan, 3.0, 4.5],
  }
  encoder, raw = _table(clip=True)
  table = pd.DataFrame(dict(zip(SCHEMA.names, given.values())))
  want = SCHEMA.validate(table, 'clip', fitting=False)
  values = {
    name: tf.constant(given[name], column.dtype)
    for name, column in zip(raw.names, raw.columns)
  }
  np.testing.assert_array_equal(raw.encode(values), encoder.encode(want))


def test_clipping_moves_no_declared_value():
  # The middle of the two largest is rounded to the larger one.
  enum = (2**53, 2**53 - 1, 5)
  schema = TableSchema([Field('n', 'integer', enum=enum, required=True)])
  raw = RawTable(schema, clip=True)
  np.testing.assert_array_equal(
    raw.encode({'n': tf.constant([*enum, 6], tf.int64)})[:, 0], [0, 1, 2, 2]
  )


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('whole', 10),
    ('whole_or_none', 2.5),
    ('wide', np.inf),
    ('grades', 2.0),
    ('doses', np.nan),
    ('length', 100.0),
    ('length', np.nan),
    ('city', 'Paris'),
    ('city', b'\xff'),
    ('sex', ''),
    ('member', 0.5),
  ],
)
def test_undeclared_values_are_errors_that_name_the_column(name, value):
  _, raw = _table(clip=False)
  place = raw.names.index(name)
  column = raw.columns[place]
  with pytest.raises(tf.errors.InvalidArgumentError) as caught:
    column.encode(tf.constant([value], column.dtype))
  assert SCHEMA.names[place] in str(caught.value)
  table = pd.DataFrame({SCHEMA.names[place]: [value]})
  one = TableSchema([SCHEMA.fields[place]])
  with pytest.raises(ValueError, match='Column'):
    one.validate(table, fitting=False)


def test_a_column_needs_a_word_for_missing_values():
  schema = TableSchema(
    [Field('x', 'string', enum=('', 'NA', 'NaN', 'null', 'a'))]
  )
  with pytest.raises(ValueError, match="Column 'x' may have missing values"):
    RawTable(schema, clip=False)


def test_names_are_unique_identifiers():
  names = ['a-b', 'a b', 'A_b', 'é', 'from', '_x']
  assert tensor_names(names) == [
    'a_b',
    'a_b_2',
    'A_b_3',
    'column__',
    'column_from',
    'column__x',
  ]
