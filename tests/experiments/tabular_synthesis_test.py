import json

import numpy as np
import pytest

from experiments import datasets, tabular_synthesis
from tests.grids import thinned
from tfdpflows.tabular import read_table
from tfdpflows.tabular.schema import TableSchema

pytest.importorskip('statsmodels')


class Ledger:
  def __init__(self, epsilon):
    self._epsilon = epsilon

  def epsilon(self):
    return self._epsilon * 0.99


class Statement:
  def to_dict(self):
    return {'epsilon': 1.0}


class Independent:
  """Shuffles every column: right columns, no dependence, no privacy."""

  def __init__(self, schema, epsilon, delta, seed, fail_at=None):
    if seed == fail_at:
      raise RuntimeError('stopped')
    self.schema = schema
    self.ledger = Ledger(epsilon)

  def fit(self, df):
    self._table = df
    return self

  def sample(self, num_rows, seed=None):
    rng = np.random.default_rng(seed)
    rows = self._table.sample(num_rows, replace=True, random_state=seed)
    return rows.apply(lambda c: c.to_numpy()[rng.permutation(len(c))])

  def privacy_statement(self):
    return Statement()


def smoke(**arguments):
  return tabular_synthesis.run(
    'randhie', smoke=True, synthesizer_class=Independent, **arguments
  )


class TestDatasets:
  def test_randhie_fits_its_public_schema(self):
    train, holdout, schema, target = datasets.randhie()
    assert len(train) + len(holdout) == 20190
    assert len(holdout) == 3973
    assert target in schema.names
    assert not schema.is_draft
    for table in (train, holdout):
      valid = schema.validate(table)
      assert list(valid.columns) == list(schema.names)
      assert len(valid) == len(table)

  def test_written_files_read_back(self, tmp_path):
    target = datasets.write_files('randhie', tmp_path / 'made')
    schema = TableSchema.from_json(tmp_path / 'made' / 'schema.json')
    table = read_table(tmp_path / 'made' / 'train.csv', schema)
    train, _, expected, _ = datasets.randhie()
    assert target == 'idp'
    assert schema == expected
    assert np.allclose(schema.validate(table), schema.validate(train))

  def test_unknown_data_set(self):
    with pytest.raises(ValueError, match="No data set 'nope'"):
      datasets.load('nope')

  def test_missing_shared_folder(self, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, 'SHARED', tmp_path)
    with pytest.raises(FileNotFoundError, match='Put the shared folder there'):
      datasets.load('adult')

  def test_shared_tables_fit_their_schemas(self):
    if not (datasets.SHARED / 'tools' / 'tables.py').exists():
      pytest.skip('the shared folder is not beside the repository')
    train, _, schema, target = datasets.load('adult')
    assert target == 'income'
    assert len(schema.validate(train)) == len(train) == 32561


class TestRun:
  @pytest.mark.parametrize('epsilons', thinned([[1.0], [1.0, 2.0]], 1))
  def test_results(self, epsilons, tmp_path):
    output, figure = tmp_path / 'results.json', tmp_path / 'columns.png'
    results = smoke(
      epsilons=epsilons,
      seeds=(3, 4),
      output=output,
      real_baseline=True,
      figure=figure,
      command=['here'],
    )
    assert figure.read_bytes().startswith(b'\x89PNG')
    assert json.loads(output.read_text()) == results
    assert [(r['epsilon'], r['seed']) for r in results['runs']] == [
      (epsilon, seed) for epsilon in epsilons for seed in (3, 4)
    ]
    assert results['command'] == ['here']
    assert results['versions']['numpy']
    assert results['real']['auroc'] > 0.9
    for run in results['runs']:
      assert run['epsilon_spent'] <= run['epsilon']
      assert run['scores']['auroc'] < 0.8
      assert run['distances']['marginal_total_variation'] < 0.2
      assert 0 < run['distances']['kendall_mae'] < 0.2
      assert run['tasks']['triple_total_variation'] > 0.1
      assert 0 < run['tasks']['range_query_error'] < 0.2
      assert run['tasks']['regression_r2'] < 0.1
      assert run['peak_mib'] > 10
      assert set(run['seconds']) == {'fit', 'sample', 'score'}
    first = results['summary'][0]
    scores = [run['scores']['auroc'] for run in results['runs'][:2]]
    assert first['seeds'] == 2
    assert first['scores']['auroc']['mean'] == pytest.approx(np.mean(scores))
    assert first['scores']['auroc']['std'] == pytest.approx(
      np.std(scores, ddof=1)
    )

  def test_runs_before_a_failure_are_kept(self, tmp_path):
    output = tmp_path / 'results.json'
    with pytest.raises(RuntimeError, match='stopped'):
      smoke(seeds=(0, 1), output=output, hyperparameters={'fail_at': 1})
    results = json.loads(output.read_text())
    assert len(results['runs']) == 1
    assert results['summary'][0]['scores']['auroc']['std'] is None
    assert [path.name for path in tmp_path.iterdir()] == ['results.json']

  def test_runs_are_added_to_earlier_ones(self, tmp_path):
    output = tmp_path / 'results.json'
    smoke(seeds=(0,), output=output, command=['one'])
    first = json.loads(output.read_text())['runs'][0]
    results = smoke(seeds=(0, 1), output=output, resume=True, command=['two'])
    assert results['runs'][0] == first
    assert results['command'] == ['two']
    assert results['earlier_commands'] == [['one']]
    smoke(seeds=(0,), output=output, resume=True, real_baseline=True)
    assert len(json.loads(output.read_text())['real']) == 3
    again = smoke(seeds=(0, 1), output=output, resume=True)
    assert again['summary'] == results['summary']
    assert [run['seed'] for run in results['runs']] == [0, 1]
    assert results['seeds'] == [0, 1]
    assert results['summary'][0]['seeds'] == 2
    with pytest.raises(ValueError, match='runs of another delta'):
      smoke(seeds=(2,), output=output, resume=True, delta=1e-6)

  @pytest.mark.parametrize(
    'method, settings',
    [
      pytest.param(
        'dp_cgan',
        {'epochs': 1, 'hidden_units': (8,)},
        marks=pytest.mark.full,
      ),
      ('gs_wgan', {'steps': 3, 'warm_up_steps': 1}),
    ],
  )
  def test_baselines(self, method, settings):
    results = tabular_synthesis.run(
      'randhie', method=method, smoke=True, hyperparameters=settings
    )
    (run,) = results['runs']
    assert 0.9 < run['epsilon_spent'] <= 1
    assert run['log_likelihood'] is None
    assert run['distances']['marginal_total_variation'] < 0.2

  def test_unknown_method(self):
    with pytest.raises(ValueError, match="No method 'magic'. Choose one of"):
      tabular_synthesis.run('randhie', smoke=True, method='magic')

  def test_results_are_not_replaced_unasked(self, tmp_path):
    output = tmp_path / 'results.json'
    output.write_text('mine')
    with pytest.raises(FileExistsError, match='--overwrite'):
      smoke(output=output)
    assert output.read_text() == 'mine'
