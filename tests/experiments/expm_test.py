"""SGD, DP-SGD and ExpM+NF on stays that are made up."""

import numpy as np
import pytest
from sklearn import metrics

from experiments import (
  expm_attacks,
  expm_auc,
  expm_bayes,
  expm_methods,
  expm_tables,
  expm_timing,
)
from tests.grids import thinned
from tfdpflows import audit


def test_auc_grows_cell_by_cell_and_is_drawn(tmp_path):
  options = {
    'models': ['lr_summary'],
    'tasks': ['mortality'],
    'epsilons': [1.0],
    'output': str(tmp_path / 'expm_auc_lr.json'),
    'smoke': True,
  }
  first = expm_auc.run(methods=['sgd'], **options)
  results = expm_auc.run(**options)
  assert results['runs'][: len(first['runs'])] == first['runs']
  tests = [run for run in results['runs'] if run['part'] == 'test']
  assert [(run['method'], run['epsilon']) for run in tests] == [
    ('sgd', None),
    ('dp_sgd', 1.0),
    ('expm_nf', 1.0),
  ]
  assert [len(run['aucs']) for run in tests] == [1, 1, 101]
  for run in tests:
    assert all(0 <= value <= 1 for value in run['aucs'])
    if run['method'] == 'dp_sgd':
      assert run['statement']['spent'] <= run['epsilon']
  summary = expm_auc.summarize(results['runs'])
  assert summary[0]['share'] == 1.0
  expm_auc.draw(summary).savefig(tmp_path / 'figure.png')
  table = expm_tables.auc_table(summary)
  assert 'no privacy proof' in table
  # Smoke runs are in no document.
  assert '| model |' not in expm_tables.section(tmp_path)

  cases = expm_timing.CASES[::2]
  timing = expm_timing.run(
    'lr_summary', settings=results['runs'], cases=cases, smoke=True
  )
  entries = expm_timing.summarize(timing['runs'])
  assert [entry['method'] for entry in entries] == [*expm_methods.METHODS]
  for entry in entries:
    assert (entry['calibration'] > 0) == (entry['method'] == 'dp_sgd')
    assert entry['training'] <= entry['total']
  assert len(expm_tables.timing_table(entries).splitlines()) == 2 + 2 + 3


def test_bayes(tmp_path):
  results = expm_bayes.run('lr_summary', epsilons=[1.0], smoke=True)
  sgd, flow = results['runs']
  assert sgd['bayes']['auc'] == sgd['map']['auc'] and sgd['width'] == 0
  assert flow['width'] > 0 and 0 <= flow['parameters']['decided'] <= 1
  assert sum(n for _, _, n in flow['map']['curve']) == 300
  expm_bayes.draw(results['runs']).savefig(tmp_path / 'figure.png')
  assert '| SGD |' in expm_tables.bayes_table(results['runs'])


@pytest.mark.parametrize(
  'cells',
  thinned(
    [
      [('sgd', None), expm_attacks.PROVEN[0]],
      # Trained for the figure of the AUC above, too.
      [('sgd', None), ('expm_nf', 1.0), expm_attacks.PROVEN[0]],
    ],
    1,
  ),
)
def test_attacks(cells, tmp_path):
  results = expm_attacks.run(
    cells=cells,
    output=str(tmp_path / 'attacks.json'),
    smoke=True,
  )
  for run in results['runs']:
    assert len(run['one_run']['correct']) == 6
    assert 0.3 < np.mean(run['one_run']['correct']) < 0.9
    assert len(run['lira']['online']['band']) == 3
  expm_attacks.draw(results).savefig(tmp_path / 'figure.png')
  assert '| SGD' in expm_tables.attacks_table(results['runs'])
  proven = {
    'part': 'scores',
    'dataset': 'physionet_mortality',
    'method': expm_attacks.PROVEN[0][0],
    'epsilon': 1.0,
    'auc': 0.7574,
    'seconds': 2.0,
  }
  table = expm_tables.proofs_table(results['runs'], [], [proven])
  assert '| objective perturbation | 1 | 0.757 | 1 | 2.0 |' in table


def test_attacks_find_what_models_know_by_heart():
  rng = np.random.default_rng(0)
  included = rng.random([20, 400]) < 0.5
  begin = np.zeros(400)
  known = audit.ShadowScores(
    4.0 * included + rng.normal(size=[20, 400]), included
  )
  unknown = audit.ShadowScores(rng.normal(size=[20, 400]), included)
  assert expm_attacks.one_run(known, begin)['percentile_95']['delta_0'] > 2
  assert expm_attacks.one_run(unknown, begin)['percentile_95']['delta_0'] < 0.3


def test_settings_are_those_of_the_best_validation_at_the_nearest_budget():
  cell = {'model': 'lr', 'task': 'mortality', 'method': 'dp_sgd'}
  runs = [
    {'part': 'choice', **cell, 'epsilon': e, 'auc': a, 'settings': s}
    for e, a, s in ((1.0, 0.6, 'a'), (1.0, 0.7, 'b'), (0.1, 0.9, 'c'))
  ]
  assert expm_auc.chosen(runs, **cell, epsilon=1.0) == 'b'
  assert expm_timing.settings_of(runs, **cell, epsilon=3.0) == 'b'
  assert expm_timing.settings_of(runs, **cell, epsilon=1e-4) == 'c'


@pytest.mark.parametrize('method', expm_methods.METHODS)
@pytest.mark.parametrize('model', ['lr', 'gru_d'])
def test_candidates_differ_and_repeat(method, model):
  found = expm_methods.candidates(method, model, 8)
  assert found == expm_methods.candidates(method, model, 8)
  assert len({str(settings) for settings in found}) == 8


def test_auc_is_that_of_scikit_learn():
  rng = np.random.default_rng(0)
  y = rng.integers(0, 2, 50)
  scores = np.round(rng.normal(size=[3, 50]) + y, 1)  # With ties.
  expected = [metrics.roc_auc_score(y, row) for row in scores]
  np.testing.assert_allclose(expm_methods.auc(scores, y), expected)


def test_test_rows_are_of_the_other_set():
  task = expm_methods.load('mortality', 'lr', smoke=True)
  sizes = {part: len(y) for part, (_, y) in task.parts.items()}
  assert sizes['train'] + sizes['validation'] == sizes['all']
  learned = {row.tobytes() for row in task.parts['all'][0]}
  assert not any(row.tobytes() in learned for row in task.parts['test'][0])
