"""Rows of files of all kinds: in order, all of them, and a uniform sample."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.tabular import small_table
from tfdpflows.tabular import Field, TableSchema, row_blocks
from tfdpflows.tabular.sources import Source
from tfdpflows.tabular.table import write_table


@pytest.fixture(scope='module')
def people():
  return small_table.make(num_rows=200)


@pytest.fixture
def paths(people, tmp_path):
  """The table in a CSV file and a Parquet file of several blocks."""
  write_table(people.table[:70], tmp_path / 'a.csv')
  rest = pa.Table.from_pandas(people.table[70:], preserve_index=False)
  pa.parquet.write_table(rest, tmp_path / 'b.parquet', row_group_size=30)
  return [tmp_path / 'a.csv', tmp_path / 'b.parquet']


def test_rows_of_files_are_those_of_the_data_frame(people, paths):
  expected = people.schema.validate(people.table)
  for how in ('error', 'clip'):
    found = row_blocks.read_rows(Source.of(paths), people.schema, how)
    pd.testing.assert_frame_equal(found, expected)
  blocks = list(row_blocks.blocks(Source.of(paths), people.schema))
  assert [block.first for block in blocks][:2] == [0, 0]
  assert sum(len(block.cells) for block in blocks) == 200


def test_errors_name_file_row_and_column(people, paths):
  table = people.table[70:].copy()
  table.loc[75, 'city'] = 'Rom'
  table = pa.Table.from_pandas(table, preserve_index=False)
  pa.parquet.write_table(table, paths[1], row_group_size=2)
  message = r"b\.parquet: Column 'city', row 6: .*'Rom' is not in the enum"
  read = row_blocks.read_rows
  with pytest.raises(ValueError, match=message):
    read(Source.of(paths), people.schema, 'error')
  with pytest.raises(ValueError, match=message):
    row_blocks.sample_rows(Source.of(paths), people.schema, 'error', 9, 0)
  assert len(read(Source.of(paths), people.schema, 'clip')) == 200
  pa.parquet.write_table(table.drop_columns(['age']), paths[1])
  with pytest.raises(ValueError, match=r"b\.parquet: .* no column 'age'"):
    read(Source.of(paths), people.schema, 'clip')
  pa.parquet.write_table(table[:0], paths[1])
  with pytest.raises(ValueError, match=r'no rows; .*b\.parquet'):
    read(Source.of(paths[1]), people.schema, 'clip')
  pa.parquet.write_table(table[:1], paths[1])
  with pytest.raises(ValueError, match='one row'):
    read(Source.of(paths[1]), people.schema, 'clip')


def test_identifiers_are_read_as_a_fit_reads_them(tmp_path):
  schema = TableSchema(
    [Field('n', 'integer', minimum=0, maximum=9)], privacy_unit='who'
  )
  path = tmp_path / 'a.parquet'
  table = pa.table({'who': [7.0, 7.5, None], 'n': [1, 2, 3]})
  pa.parquet.write_table(table, path)
  found = row_blocks.read_rows(Source.of(path), schema, 'clip', units=True)
  assert found['who'].fillna('-').tolist() == ['7', '-', '-']
  pa.parquet.write_table(table.drop_columns(['who']), path)
  with pytest.raises(ValueError, match=r"a\.parquet: .*'who', which is the pr"):
    row_blocks.read_rows(Source.of(path), schema, 'clip', units=True)
  assert len(row_blocks.read_rows(Source.of(path), schema, 'clip')) == 3
  none = pa.table({'who': [None, None], 'n': [1, 2]})
  pa.parquet.write_table(none, path)
  with pytest.raises(ValueError, match='only missing ones'):
    row_blocks.read_rows(Source.of(path), schema, 'clip', units=True)


def _numbers(folder, sizes):
  """Files of the numbers from 0 on, so many in each."""
  ends = np.cumsum([0, *sizes])
  for i, (start, end) in enumerate(zip(ends, ends[1:])):
    column = {'n': np.arange(start, end)}
    if i % 2:
      write_table(pd.DataFrame(column), folder / f'{i}.csv')
    else:
      pa.parquet.write_table(pa.table(column), folder / f'{i}.parquet')
  return Source.of(folder)


NUMBERS = TableSchema(
  [Field('n', 'integer', minimum=0, maximum=999, required=True)]
)


@pytest.mark.parametrize('how', ['error', 'clip'])
def test_a_sample_does_not_depend_on_the_files(tmp_path, how):
  found = []
  for sizes in ([1000], [1, 399, 600], [500, 300, 100, 100]):
    folder = tmp_path / str(len(sizes))
    folder.mkdir()
    source = _numbers(folder, sizes)
    sample = row_blocks.sample_rows(source, NUMBERS, how, 100, seed=3)
    assert sample.of == 1000
    found.append(pd.to_numeric(sample.rows['n']).tolist())
  assert found[0] == found[1] == found[2]
  assert len(found[0]) == 100
  assert found[0] == sorted(set(found[0]))
  whole = row_blocks.sample_rows(source, NUMBERS, how, 1000, seed=3)
  assert pd.to_numeric(whole.rows['n']).tolist() == list(range(1000))
  other = row_blocks.sample_rows(source, NUMBERS, how, 100, seed=4)
  assert pd.to_numeric(other.rows['n']).tolist() != found[0]


def test_each_row_is_as_likely_in_a_sample():
  table = pa.table({'n': np.arange(16)})
  counts = np.zeros(16)
  for seed in range(400):
    batches = table.to_batches(max_chunksize=6)
    reader = pa.RecordBatchReader.from_batches(table.schema, batches)
    sample = row_blocks.sample_rows(
      Source.of(reader), NUMBERS, 'error', 8, seed
    )
    counts[sample.rows['n']] += 1
  # Of 16 counts none is further from 200 than 4.5 standard deviations.
  assert counts.sum() == 3200
  assert np.abs(counts - 200).max() < 4.5 * np.sqrt(400 * 0.5 * 0.5)
