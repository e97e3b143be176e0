"""Private logistic regression against its peers."""

import json
import math

import dp_accounting
import pytest

from experiments import (
  logistic_regression,
  logistic_tables,
  results_document,
)
from tests.grids import thinned
from tfdpflows import accounting

RESULTS = results_document.ROOT / 'experiments' / 'results'


@pytest.mark.parametrize(
  'methods',
  thinned(
    [
      ['not_private', 'objective_perturbation', 'amp'],
      ['not_private', 'dp_sgd'],
    ],
    1,
  ),
)
def test_a_smoke_run_goes_on_where_it_stopped(methods, tmp_path):
  arguments = {
    'datasets': ['digits'],
    'methods': methods,
    'epsilons': (8.0,),
    'output': tmp_path / 'smoke.json',
    'smoke': True,
  }
  scores = logistic_regression.run('scores', **arguments)
  assert {run['method'] for run in scores['runs']} == set(arguments['methods'])
  assert max(run['auc'] for run in scores['runs']) > 0.8
  assert len(logistic_tables.table(scores['runs'])) == 2 + len(methods)
  again = logistic_regression.run('scores', **arguments)
  assert again['runs'] == scores['runs']


def test_the_choice_is_the_best_mean_share():
  def runs(setting, *auc):
    return [
      {
        'dataset': 'census',
        'size': 10,
        'method': 'dp_sgd',
        'setting': setting,
        'epsilon': 1.0,
        'auc': x,
      }
      for x in auc
    ]

  content = {
    'runs': [
      *runs({'steps': 1}, 0.9, 0.5),
      *runs({'steps': 2}, 0.7, 0.8),
      *({**run, 'method': 'not_private'} for run in runs({}, 0.9)),
    ]
  }
  assert logistic_regression.chosen(content, 'dp_sgd') == {'steps': 2}
  assert logistic_regression.chosen(content, 'amp') == {}


@pytest.mark.parametrize('epsilon', logistic_regression.EPSILONS)
def test_the_peer_has_no_more_noise_than_its_bound_asks_for(epsilon):
  sigma, weight = logistic_regression.amp_noise(epsilon, 1.3)
  gaussian = accounting.calibrate_noise_multiplier(
    dp_accounting.GaussianDpEvent,
    accounting.PrivacyBudget(epsilon=epsilon, delta=logistic_regression.DELTA),
  )
  assert sigma == pytest.approx(1.3 * math.sqrt(2) * gaussian)
  assert weight >= 1 / epsilon


def test_the_table_of_the_committed_results():
  path = RESULTS / 'logistic_regression.json'
  text = logistic_tables.section(RESULTS)
  assert text.startswith('## Private logistic regression')
  for dataset in {
    run['dataset'] for run in json.loads(path.read_text())['runs']
  }:
    assert f'### {dataset}' in text
