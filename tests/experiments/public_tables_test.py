import importlib.util
import json

import numpy as np
import pandas as pd
import pytest

from experiments import datasets, public_tables
from tests.grids import thinned
from tfdpflows import evaluation

_ROWS = {
  'adult': (32561, 16281),
  'census': (199523, 99762),
  'covertype': (464810, 116202),
  'intrusion': (391249, 97812),
}
needs_shared = pytest.mark.skipif(
  not (datasets.SHARED / 'tools' / 'tables.py').exists(),
  reason='the shared folder is not beside the repository',
)


def shared_module(folder, name):
  path = datasets.SHARED / folder / f'{name}.py'
  spec = importlib.util.spec_from_file_location(f'_test_{name}', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


class TestSchemas:
  @pytest.mark.parametrize('name', public_tables.NAMES)
  def test_is_a_public_statement_with_its_sources(self, name):
    schema = public_tables.schema(name)
    assert not schema.is_draft
    assert all(field.required for field in schema)
    assert schema[public_tables.TARGETS[name]].categories
    raw = json.loads((public_tables.SCHEMAS / f'{name}.json').read_text())
    assert 'uci.edu' in raw['sources'][0]
    assert all(field['description'] for field in raw['fields'])

  def test_unknown_names(self):
    for call in (
      public_tables.schema,
      lambda name: public_tables.read(name, datasets.SHARED),
      lambda name: public_tables.SharedScorer(name, datasets.SHARED),
    ):
      with pytest.raises(ValueError, match="No public table 'randhie'"):
        call('randhie')

  def test_a_folder_without_rows(self, tmp_path):
    with pytest.raises(FileNotFoundError, match='Put the shared folder there'):
      public_tables.read('covertype', tmp_path)
    with pytest.raises(FileNotFoundError, match='Put the shared folder there'):
      public_tables.SharedScorer('covertype', tmp_path)


@needs_shared
class TestRows:
  @pytest.mark.parametrize(
    'name',
    thinned(public_tables.NAMES, lambda x: x == 'adult'),
  )
  def test_all_rows_fit_the_schema(self, name):
    train, holdout, schema, target = datasets.load(name)
    assert (len(train), len(holdout)) == _ROWS[name]
    for table in (train, holdout):
      valid = schema.validate(table)
      assert tuple(valid.columns) == schema.names
      assert len(valid) == len(table)
      assert valid[target].nunique() == len(schema[target].categories)
      # Two numbers a cell at most; strings are shared.
      assert valid.memory_usage().sum() < 16 * valid.size + 1000

  def test_split_is_that_of_the_reference(self):
    tables = shared_module('tools', 'tables')
    for ours, theirs in zip(datasets.load('covertype'), tables.covertype()[:2]):
      pd.testing.assert_frame_equal(ours, theirs)

  def test_intrusion_keeps_the_five_most_frequent_classes(self):
    labels = shared_module('data', 'load').kdd99().iloc[:, -1]
    most = labels.value_counts().index[:5]
    assert tuple(most) == public_tables.schema('intrusion')['label'].enum


@needs_shared
class TestScorer:
  def test_names_the_columns_as_the_reference_does(self, monkeypatch):
    scorer = public_tables.SharedScorer('intrusion', datasets.SHARED)
    asked = []
    monkeypatch.setattr(
      scorer._tables, 'score', lambda name, table: asked.append((name, table))
    )
    names = public_tables.schema('intrusion').names
    scorer(pd.DataFrame({name: [0] for name in reversed(names)}))
    assert asked[0][0] == 'intrusion'
    assert list(asked[0][1].columns) == [f'c{i}' for i in range(42)]

  def test_our_nine_classifiers_agree_with_the_reference(self):
    train, holdout, schema, target = datasets.load('adult')
    train = schema.validate(train)[:700]
    holdout = schema.validate(holdout)[:700]
    # The reference scales columns by the real rows, ours by the synthetic
    # ones; these are both.
    categories = [f.name for f in schema if not f.is_numeric]
    theirs = shared_module('tools', 'tstr').tstr(
      train, holdout, target, categories, train
    )
    ours = evaluation.train_on_synthetic(
      holdout, train, schema, target, classifiers='all'
    ).mean()
    for name, key in (
      ('macro_f1', 'f1'),
      ('auroc', 'auc'),
      ('average_precision', 'apc'),
    ):
      assert ours[name] == pytest.approx(theirs[key], abs=0.03), name
    assert np.isfinite(ours).all()
