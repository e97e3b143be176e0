import csv as csv_module
import gzip
import io
import os
import threading
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdpflows.tabular import Field, TableSchema, read_table, write_table
from tfdpflows.tabular import table as table_module


@pytest.fixture
def csv(tmp_path):
  def write(content):
    path = tmp_path / 'table.csv'
    path.write_bytes(
      content if isinstance(content, bytes) else content.encode()
    )
    return path

  return write


def test_types_are_inferred(csv):
  table = read_table(
    csv('a,b,c,d,e,f\n1,1.5,true,007,x,\n-2,NA,False,100,NaN,\n')
  )
  assert table['a'].tolist() == [1, -2]
  assert table['b'].dtype == 'float64'
  assert table['b'].isna().tolist() == [False, True]
  assert table['c'].tolist() == [True, False]
  assert table['d'].tolist() == ['007', '100']
  assert table['e'].isna().tolist() == [False, True]
  assert table['f'].isna().all()


def test_numbers_of_many_digits_stay_text(csv):
  """Floats have no more than 15: identifiers would become one another."""
  table = read_table(csv(f'id,x\n{10**18},1\n{10**18 + 1},2\n'))
  assert table['id'].tolist() == [str(10**18), str(10**18 + 1)]


@pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='needs os.mkfifo')
def test_the_line_of_an_error_is_not_looked_for_in_a_pipe(tmp_path):
  """Opened again it would wait for a second writer."""
  path = tmp_path / 'pipe'
  os.mkfifo(path)
  writer = threading.Thread(
    target=path.write_text, args=('a\n1\nold\n',), daemon=True
  )
  writer.start()
  schema = TableSchema([Field('a', 'integer', 0, 9, required=True)])
  with pytest.raises(ValueError, match="Column 'a', row 2: 'old' is no"):
    read_table(path, schema)


def test_types_follow_the_schema(csv):
  schema = TableSchema(
    [
      Field('a', 'string', enum=('1', 'NA')),
      Field('b', 'number', minimum=0, maximum=1),
    ]
  )
  table = read_table(csv('b,a\n7,1\nNA,NA\n'), schema)
  assert table['a'].tolist() == ['1', 'NA']
  assert table['b'].tolist()[0] == 7
  with pytest.raises(ValueError, match=r"'b', row 2 \(line 3 .*'x' is no num"):
    read_table(csv('b,a\n7,1\nx,1\n'), schema)


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    ('', 'the file is empty'),
    ('\n\n', 'the file is empty'),
    ('a,b\n', 'no rows'),
    ('a,b,a\n1,2,3\n', "two columns are named 'a'"),
    ('a,,b\n1,2,3\n', 'column 2 has no name'),
    ('a,b\n1,2\n3\n', 'line 3 has 1 cells, the header has 2'),
    ('a,b\n1,2,3\n', 'line 2 has 3 cells, the header has 2; quote'),
    (
      'a;b;c\n1;2,5;3\n',
      'line 2 has 2 cells, the header has 1; if semicolons are between the '
      r'cells, name them in the schema \("dialect": {"delimiter": ";"}\), else '
      'quote cells that contain commas',
    ),
    ('a\tb\n1,2,3\n', r'if tabs are .*"delimiter": "\\t"'),
    (
      'a,b\nß,2\n'.encode('utf-16-le'),
      r'UTF-16 without .*"encoding": "utf-16-le',
    ),
    (
      'a,b\r\nß,2\n'.encode('utf-16-be'),
      r'UTF-16 without .*iconv -f utf-16-be',
    ),
    ('a,b\n1,"2\n2"\n3,4,5\n', 'line 4 has 3 cells'),
    (b'a,b\n1,2\n3,\xe9t\xe9\n', r'line 3 is not UTF-8 \(byte 0xe9\)'),
    ('a,b\n1,"2\n', 'unexpected end of data'),
  ],
)
def test_bad_files_are_refused_by_line(csv, content, message):
  path = csv(content)
  with pytest.raises(ValueError, match=message) as caught:
    read_table(path)
  assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize('start', [b'a,b\r', b'\ra,b\r', b'a,b\n'])
def test_no_row_decides_whether_a_file_is_utf_16(start, csv):
  end = start[-1:]
  path = csv(start + b'x\0y\0z\0z\0z\0z\0,1' + end + b'y,2' + end)
  schema = TableSchema(
    [Field('a', 'string', enum=('x', 'y')), Field('b', 'integer', 0, 9)]
  )
  assert read_table(path, schema, 'clip')['b'].tolist() == [1, 2]


def test_a_byte_order_mark_and_blank_lines_do_no_harm(csv):
  table = read_table(csv(b'\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,4\r\n'))
  assert table.to_dict('list') == {'a': [1, 3], 'b': [2, 4]}
  single = read_table(csv('a\n1\n\n3\n'))
  assert single['a'].isna().tolist() == [False, True, False]


def test_written_tables_read_back(tmp_path):
  table = pd.DataFrame(
    {
      'i': pd.array([1, None, 3], 'Int64'),
      'f': [0.1, np.nan, 1e-9],
      'b': pd.array([True, None, False], 'boolean'),
      's': pd.Series(['a,"b"', 'ü\nv', np.nan], dtype=object),
    }
  )
  for name in ('t.csv', 't.csv.gz'):
    write_table(table, tmp_path / name)
    write_table(table, tmp_path / name)
    pd.testing.assert_frame_equal(read_table(tmp_path / name), table)
  assert sorted(p.name for p in tmp_path.iterdir()) == ['t.csv', 't.csv.gz']
  text = gzip.decompress((tmp_path / 't.csv.gz').read_bytes())
  assert text == (tmp_path / 't.csv').read_bytes()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
  path = tmp_path / 't.csv'
  path.write_text('old')

  def full(*args, **kwargs):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(pd.DataFrame, 'to_csv', full)
  with pytest.raises(OSError, match='No space'):
    write_table(pd.DataFrame({'a': [1]}), path)
  assert path.read_text() == 'old'
  assert list(tmp_path.iterdir()) == [path]


def test_quotes_that_are_never_closed_take_no_longer():
  """A file of one quote after the other is read in one go."""
  text = 'x,y\n' + 'a","\n' * 20_000
  begun = time.process_time()
  rows = list(table_module._lines(io.StringIO(text, newline=''), clip=True))
  assert time.process_time() - begun < 2
  assert rows[0] == (1, ['x', 'y'])
  assert len(rows) == 2 or rows[-1] == (20_001, ['a"', '"'])


def _lines_one_by_one(text):
  """Reads on after every line whose quote swallows the rest of the file."""
  physical = list(io.StringIO(text, newline=''))
  start = 0
  while start < len(physical):
    lines = csv_module.reader(physical[start:])
    first, is_open = start, False
    for cells in lines:
      after = start + lines.line_num
      is_open = after == len(physical) and table_module._is_open(
        physical[first:]
      )
      if is_open:
        break
      yield after, cells
      first = after
    if not is_open:
      return
    (cells,) = csv_module.reader(
      [physical[first]], quoting=csv_module.QUOTE_NONE
    )
    yield first + 1, cells
    start = first + 1


@given(st.text('a",\n\r', max_size=40))
def test_lines_are_those_of_reading_on_after_each_open_quote(text):
  expected = list(_lines_one_by_one(text))
  assert (
    list(table_module._lines(io.StringIO(text, newline=''), clip=True))
    == expected
  )
