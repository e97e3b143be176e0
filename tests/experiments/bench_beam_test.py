"""The measurement of Beam runs, where Beam is installed."""

import json

import numpy as np
import pandas as pd
import pytest

from experiments import bench_beam, scale_tables
from tfdpflows.tabular import Field, TableSchema

SCHEMA = TableSchema([Field('age', 'integer', minimum=0, maximum=99)])


def _files(folder):
  pytest.importorskip('pyarrow', reason='needs pyarrow')
  folder.mkdir()
  for number in range(3):
    ages = np.random.default_rng(number).integers(0, 100, 50)
    pd.DataFrame({'age': ages}).to_parquet(folder / f'{number}.parquet')
  return str(folder)


def test_run(tmp_path):
  pytest.importorskip('apache_beam', reason='needs Apache Beam')
  path = tmp_path / 'beam.json'
  content = bench_beam.run(
    _files(tmp_path / 'rows'), SCHEMA, workers=[2], files=2, output=str(path)
  )
  (run,) = content['runs']
  assert (run['rows'], run['files'], run['equal']) == (100, 2, True)
  assert json.loads(path.read_text()) == content


def test_section(tmp_path):
  run = {'rows': 2_000_000, 'workers': 4, 'files': 2, 'equal': True}
  times = {'local_seconds': 1.0, 'beam_seconds': 4.0, 'load_average': 2.0}
  content = {'cores': 2, 'environments': [], 'runs': [{**run, **times}]}
  (tmp_path / 'beam.json').write_text(json.dumps(content))
  section = scale_tables.section(tmp_path)
  assert '| 2,000,000 | 4 | 2,000,000 rows/s | 500,000 rows/s |' in section


def test_a_folder_without_files_is_refused(tmp_path):
  with pytest.raises(ValueError, match='no Parquet files'):
    bench_beam.run(str(tmp_path), SCHEMA)
