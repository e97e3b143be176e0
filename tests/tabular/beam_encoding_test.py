"""Shards that a pipeline encodes, and the pipeline itself where Beam is."""

import dataclasses
import json
import os
import sys

import numpy as np
import pandas as pd
import pytest

from tests.tabular import small_table
from tfdpflows.tabular import (
  Field,
  TableSchema,
  TabularSynthesizer,
  beam_encoding,
  code_store,
)
from tfdpflows.tabular.sources import Source

SCHEMA = TableSchema(
  [
    Field('age', 'integer', 0, 120, required=True),
    Field('wage', 'number', 0, 1e6),
    Field('sex', 'string', enum=('f', 'm')),
  ]
)
UNITS = TableSchema(SCHEMA.fields, 'person')


@pytest.fixture
def files(tmp_path):
  """Four CSV files, of 150 rows each and people with rows in several."""
  rng = np.random.default_rng(0)
  os.mkdir(tmp_path / 'rows')
  for number in range(4):
    table = pd.DataFrame(
      {
        'person': rng.integers(0, 90, 150),
        'age': rng.integers(18, 90, 150),
        'wage': rng.lognormal(9, 1, 150).round(2),
        'sex': rng.choice(['f', 'm', ''], 150),
      }
    )
    table.to_csv(tmp_path / 'rows' / f'{number}.csv', index=False)
  return str(tmp_path / 'rows' / '*.csv')


def _subset(schema):
  return TableSchema(schema.fields, schema.privacy_unit, fields_match='subset')


def _encode(data, schema, folder, out_of_range='error'):
  """What the pipeline does, in this process and the other way round."""
  code_store.make_private(str(folder))
  parts = list(enumerate(Source.of(data).parts))
  for number, part in reversed(parts):
    shard = beam_encoding.Shard(str(folder), number, part.name, part.identity)
    if not shard.is_current(code_store.facts(schema, out_of_range)):
      shard.write(part, code_store.ChunkEncoder(schema, out_of_range))


@pytest.mark.parametrize('schema', [_subset(SCHEMA), UNITS])
def test_rows_of_shards_are_those_of_the_files(files, tmp_path, schema):
  most = None if schema.privacy_unit is None else 3
  _encode(files, schema, tmp_path / 'shards')
  found = beam_encoding.shards(tmp_path / 'shards', files, schema)
  one, other = (
    code_store.read(source, schema, 'error', folder, most)
    for source, folder in (
      (Source.of(files), None),
      (found, str(tmp_path / 'store')),
    )
  )
  np.testing.assert_array_equal(one[:], other[:])
  np.testing.assert_array_equal(one.digest, other.digest)
  if most is not None:
    np.testing.assert_array_equal(one.rows_per_unit, other.rows_per_unit)
  for path in (tmp_path / 'shards').iterdir():
    assert not os.stat(path).st_mode & 0o077


def test_a_fit_of_shards_is_that_of_the_files(files, tmp_path):
  schema = _subset(SCHEMA)
  _encode(files, schema, tmp_path / 'shards')
  found = beam_encoding.shards(tmp_path / 'shards', files, schema)
  fits, codes = [], []
  for data in (files, found):
    with small_table.untrained() as train:
      fitted = TabularSynthesizer(
        schema,
        epsilon=1.0,
        delta=1e-5,
        accountant='rdp',
        seed=0,
        epochs=1,
        adaptive_marginals=0,
      )
      fits.append(fitted.fit(data, progress=False))
    codes.append(train.call_args.args[2][:])
  small_table.assert_same_model(*fits)
  np.testing.assert_array_equal(*codes)


def test_shards_that_are_not_of_these_files_are_refused(files, tmp_path):
  schema, folder = _subset(SCHEMA), tmp_path / 'shards'
  with pytest.raises(ValueError, match=r'0\.csv was not encoded with'):
    beam_encoding.shards(folder, files, schema)
  _encode(files, schema, folder)
  with pytest.raises(ValueError, match='was not encoded with this schema'):
    beam_encoding.shards(folder, files, schema, out_of_range='clip')
  changed = os.path.join(os.path.dirname(files), '2.csv')
  with open(changed, 'a', encoding='utf-8') as file:
    file.write('1,50,3.5,f\n')
  with pytest.raises(ValueError, match=r'2\.csv was not encoded'):
    beam_encoding.shards(folder, files, schema)
  (codes,) = folder.glob('000001-*.codes')
  before = os.stat(codes).st_mtime_ns
  _encode(files, schema, folder)
  # Only what has changed is encoded again.
  assert os.stat(codes).st_mtime_ns == before
  assert len([*folder.glob('000002-*')]) == 2
  found = beam_encoding.shards(folder, files, schema)
  assert len(code_store.read(found, schema, 'error')) == 601


def test_a_pipeline_that_was_stopped_leaves_no_rows_of_another_schema(
  files, tmp_path, monkeypatch
):
  schema, folder = _subset(SCHEMA), tmp_path / 'shards'
  *fields, sex = schema.fields
  sex = dataclasses.replace(sex, enum=sex.enum[::-1])
  other = dataclasses.replace(schema, fields=[*fields, sex])
  _encode(files, schema, folder)
  expected = code_store.read(
    beam_encoding.shards(folder, files, schema), schema, 'error'
  )[:]

  def stop(*args, **kwargs):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(beam_encoding.atomic, 'write_file', stop)
    with pytest.raises(KeyboardInterrupt):
      _encode(files, other, folder)
  found = beam_encoding.shards(folder, files, schema)
  with pytest.raises(ValueError, match='is damaged: run the pipeline again'):
    code_store.read(found, schema, 'error')
  _encode(files, schema, folder)
  np.testing.assert_array_equal(
    code_store.read(found, schema, 'error')[:], expected
  )
  # One that is replaced while a fit begins is not read.
  _encode(files, other, folder)
  with pytest.raises(ValueError, match='was not encoded with this schema'):
    code_store.read(found, schema, 'error')


def test_a_bad_row_is_named_and_mended(files, tmp_path):
  schema, folder = _subset(SCHEMA), tmp_path / 'shards'
  paths = [os.path.join(os.path.dirname(files), f'{n}.csv') for n in (3, 1)]
  contents = []
  for path in paths:
    with open(path, encoding='utf-8') as file:
      contents.append(file.read())
    with open(path, 'a', encoding='utf-8') as file:
      file.write('1,500,3.5,f\n')
  _encode(files, schema, folder)
  with pytest.raises(ValueError, match=r"1\.csv: Column 'age', row 151"):
    beam_encoding.shards(folder, files, schema)
  for path, content in zip(paths, contents):
    with open(path, 'w', encoding='utf-8') as file:
      file.write(content)
  _encode(files, schema, folder)
  found = beam_encoding.shards(folder, files, schema)
  assert len(code_store.read(found, schema, 'error')) == 600


def test_a_damaged_shard_is_refused(files, tmp_path):
  schema, folder = _subset(SCHEMA), tmp_path / 'shards'
  _encode(files, schema, folder)
  (codes,) = folder.glob('000002-*.codes')
  with open(codes, 'r+b') as file:
    file.truncate(10)
  found = beam_encoding.shards(folder, files, schema)
  with pytest.raises(ValueError, match='000002 is damaged'):
    code_store.read(found, schema, 'error')
  _encode(files, schema, folder)
  assert len(code_store.read(found, schema, 'error')) == 600
  # One that was not finished has no facts, or half of them.
  (folder / '000003.json').write_text('{"fac')
  with pytest.raises(ValueError, match=r'3\.csv was not encoded'):
    beam_encoding.shards(folder, files, schema)


def test_without_beam_an_error_says_what_to_install(
  files, tmp_path, monkeypatch
):
  monkeypatch.setitem(sys.modules, 'apache_beam', None)
  with pytest.raises(ImportError, match=r'pip install tfdpflows\[beam\]'):
    beam_encoding.encode(files, SCHEMA, tmp_path / 'shards')


def test_the_pipeline(files, tmp_path):
  pytest.importorskip('apache_beam', reason='needs Apache Beam')
  schema, folder = _subset(SCHEMA), tmp_path / 'shards'
  found = beam_encoding.encode(files, schema, folder)
  store = code_store.read(found, schema, 'error')
  expected = code_store.read(Source.of(files), schema, 'error')
  np.testing.assert_array_equal(store[:], expected[:])
  kept = [json.loads(p.read_text()) for p in sorted(folder.glob('*.json'))]
  assert sum(one['rows'] for one in kept) == 600
  fields = [Field('age', 'integer', 0, 9, from_data=('minimum',))]
  with pytest.raises(ValueError, match='is a draft'):
    beam_encoding.encode(files, TableSchema(fields), folder)
  with pytest.raises(ValueError, match='in no files'):
    beam_encoding.encode(small_table.make(5).table, SCHEMA, folder)
