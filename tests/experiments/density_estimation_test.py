import json

import numpy as np
import pytest

from experiments import density_binary, density_estimation
from tests import forked
from tests.grids import thinned

SMALL = density_binary.overrides(smoke=True)


class TestRun:
  def test_runs_go_on_where_they_stopped(self, tmp_path, monkeypatch):
    output = tmp_path / 'results.json'
    kwargs = {'smoke': True, 'output': output}
    methods = ['DP-MoG, pld']
    first = density_estimation.run(
      'pinwheel', methods=methods, epsilons=[1.0], **kwargs
    )
    assert [run['method'] for run in first['runs']] == [
      'full Gaussian',
      'full Gaussian, pld',
      'DP-MoG, pld',
    ]
    for run in first['runs'][1:]:
      assert run['epsilons']['pld'] <= 1.0
      assert run['guarantee'] == 'upper_bound'
    monkeypatch.setattr(density_estimation, 'one_run', pytest.fail)
    again = density_estimation.run(
      'pinwheel', methods=methods, epsilons=[1.0], **kwargs
    )
    assert again['runs'] == first['runs']
    assert json.loads(output.read_text())['runs'] == first['runs']
    summary = {e['method']: e for e in again['summary']}
    entry = summary['DP-MoG, pld']
    assert entry['full_gaussian'] == summary['full Gaussian']['log_prob']
    assert entry['splits'] == 1
    assert entry['std'] is None
    with pytest.raises(ValueError, match='another dataset'):
      density_estimation.run('half_moons', methods=methods, **kwargs)

  def test_dp_nf_by_gdp_says_that_it_is_asymptotic(self):
    rows = density_binary.load('pinwheel', smoke=True)
    run = density_estimation.one_run(rows, 'DP-NF, gdp', 1.0, 0, SMALL)
    assert run['guarantee'] == 'asymptotic'
    assert run['epsilons']['gdp'] <= 1.0
    assert set(run['epsilons']) == {'pld', 'rdp', 'gdp'}
    assert {'flow', 'worst_row_of_flow', 'noise_multiplier'} <= set(run)

  @pytest.mark.parametrize('method', thinned(['MAF', 'spline flow'], 1))
  def test_ceilings_are_not_private(self, method):
    rows = density_binary.load('pinwheel', smoke=True)
    run = density_estimation.one_run(rows, method, None, 0, SMALL)
    assert 'epsilons' not in run
    assert np.isfinite(run['log_prob'])

  def test_unknown_method(self):
    with pytest.raises(ValueError, match="Unknown methods \\['nope'\\]"):
      density_estimation.run('pinwheel', methods=['nope'])

  def test_binary(self, tmp_path):
    output = tmp_path / 'results.json'
    log = tmp_path / 'log.txt'
    status = forked.run(
      [
        '-m',
        'experiments.density_estimation',
        '--smoke',
        '--dataset=half_moons',
        '--methods=DP-MoG, zcdp',
        '--epsilon=1',
        f'--output={output}',
      ],
      log,
    )
    said = log.read_text()
    assert status == 0, said
    assert 'divided by 2' in said
    assert 'DP-MoG, zcdp' in said
    assert len(json.loads(output.read_text())['runs']) == 3
