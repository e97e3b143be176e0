import functools
import json
import pathlib
import subprocess
import sys

import pytest
from absl import app

from experiments import (
  hflow_ablation,
  hflow_clipping,
  hflow_dequantization,
  setting_figure,
  setting_tables,
  synthesizer_ablation,
  table_settings,
)
from tests.grids import thinned
from tests.tabular import small_table

pytest.importorskip('statsmodels')

BINARIES = {
  'hflow_ablation': (hflow_ablation, 'DP-HFlow', 'conditional histograms'),
  'hflow_clipping': (hflow_clipping, 'flat', 'sparsity 0.9'),
  'hflow_dequantization': (hflow_dequantization, 'uniform', 'variational'),
}
DRAW = {
  'hflow_ablation': setting_figure.draw,
  'hflow_clipping': hflow_clipping.draw,
  'hflow_dequantization': hflow_dequantization.draw,
}


def finished(settings, epsilons=(1.0, 2.0), seeds=(0, 1), **changes):
  """What a file of many runs has, without the fits."""
  runs = [
    {
      'setting': setting,
      'epsilon': epsilon,
      'seed': seed,
      'epsilon_spent': 0.99 * epsilon,
      'scores': {'macro_f1': 0.5 + seed / 10, 'auroc': 0.7},
      'distances': {'kendall_rmse': 0.04, 'pair_total_variation': None},
      'log_likelihood': None,
      'seconds': {'fit': 61.0},
    }
    for setting in settings
    for epsilon in epsilons
    for seed in seeds
  ]
  return {
    'dataset': 'adult',
    'settings': {setting: {} for setting in settings},
    'smoke': False,
    'delta': 1e-5,
    'train_rows': 32561,
    'runs': runs,
    **changes,
  }


@pytest.mark.parametrize('name', thinned(BINARIES, 1))
def test_smoke(name, tmp_path, monkeypatch):
  module, *settings = BINARIES[name]
  output = tmp_path / 'results.json'
  arguments = {'dataset': 'randhie', 'smoke': True, 'output': output}
  with small_table.untrained():
    results = module.run(**arguments)
  assert json.loads(output.read_text()) == results
  assert [run['setting'] for run in results['runs']] == settings
  for run in results['runs']:
    assert 0 < run['epsilon_spent'] <= run['epsilon']
    assert -100 < run['log_likelihood'] < 100
  DRAW[name](results).savefig(tmp_path / 'figure.png', dpi=40)
  assert (tmp_path / 'figure.png').read_bytes().startswith(b'\x89PNG')

  def no_fit(*_):
    raise AssertionError('The file has this run.')

  monkeypatch.setattr(table_settings.tabular_synthesis, 'one_run', no_fit)
  assert module.run(**arguments) == results
  with pytest.raises(ValueError, match='runs of another delta'):
    module.run(**arguments, delta=1e-6)


@pytest.mark.full
def test_binary(tmp_path):
  output, figure = tmp_path / 'results.json', tmp_path / 'figure.png'
  run = subprocess.run(
    [
      sys.executable,
      '-m',
      'experiments.hflow_marginals',
      '--smoke',
      '--dataset=randhie',
      '--seeds=0',
      '--only=conditional histograms',
      f'--output={output}',
      f'--figure={figure}',
    ],
    cwd=pathlib.Path(__file__).parents[2],
    capture_output=True,
    text=True,
    check=True,
  )
  assert 'conditional histograms, epsilon 1, seed 0: macro-F1' in run.stdout
  assert figure.read_bytes().startswith(b'\x89PNG')
  for run in json.loads(output.read_text())['runs']:
    assert len(run['columns']) == 5
    target = run['columns']['idp']
    assert 0 <= target['total_variation'] < 1
    assert 0 <= target['wasserstein'] < 1


@pytest.mark.parametrize('name', BINARIES)
def test_draws_all_runs(name):
  module = BINARIES[name][0]
  settings = getattr(module, 'settings', dict)()
  results = finished(settings)
  for run in results['runs']:
    run['log_likelihood'] = -30.0
  figure = DRAW[name](results)
  assert 'adult' in figure.get_suptitle() or figure.axes[0].get_title()


def test_the_target_of_the_data_set_is_filled_in(monkeypatch):
  def look(synthesizer, *_):
    assert synthesizer.target == 'idp'
    raise InterruptedError

  monkeypatch.setattr(table_settings.tabular_synthesis, 'one_run', look)
  with pytest.raises(InterruptedError):
    synthesizer_ablation.run(dataset='randhie', smoke=True)


def test_only_the_settings_that_are_named(monkeypatch):
  def no_fit(synthesizer, *_):
    raise InterruptedError(synthesizer.model.name)

  monkeypatch.setattr(table_settings.tabular_synthesis, 'one_run', no_fit)
  run = functools.partial(hflow_ablation.run, dataset='randhie', smoke=True)
  for setting, model in (
    ('conditional histograms', 'histogram'),
    ('splines', 'spline'),
  ):
    with pytest.raises(InterruptedError, match=model):
      run(only=[setting])
  with pytest.raises(ValueError, match=r"No setting 'flows'.*'DP-HFlow'"):
    run(only=['flows'])


def test_spread_over_seeds():
  results = finished(['a', 'b'])
  of = lambda run: run['scores']['macro_f1']
  mean, spread = table_settings.mean_and_spread(results, 'a', 2.0, of)
  assert mean == pytest.approx(0.55)
  assert spread == pytest.approx(0.5**0.5 / 10)
  absent = table_settings.mean_and_spread(results, 'a', 4.0, of)
  assert absent is None


def test_absent_data_is_skipped_with_a_reason(capsys, monkeypatch):
  def absent(**_):
    raise FileNotFoundError('no folder')

  options = {
    'dataset': 'adult',
    'epsilon': ['1'],
    'seeds': ['0'],
    'output': None,
    'figure': None,
    'only': None,
    'smoke': False,
  }
  namespace = type('Flags', (), options)
  monkeypatch.setattr(table_settings.flags, 'FLAGS', namespace)
  table_settings.main(['here'], absent)
  assert capsys.readouterr().out == 'Skipped: no folder\n'
  with pytest.raises(app.UsageError, match='more'):
    table_settings.main(['here', 'more'], absent)


class TestTables:
  def test_has_a_line_for_each_setting_and_epsilon(self, tmp_path):
    content = finished(['flat', 'per_layer'])
    (tmp_path / 'hflow_clipping_adult.json').write_text(json.dumps(content))
    smoke = finished(['uniform'], smoke=True)
    (tmp_path / 'hflow_dequantization_x.json').write_text(json.dumps(smoke))
    text = setting_tables.section(tmp_path)
    assert 'Clipping and sparsity (figure 4): adult' in text
    assert 'Dequantization' not in text
    assert '99.00% of each epsilon' in text
    lines = [line for line in text.splitlines() if line.startswith('| per_l')]
    cells = [cell.strip() for cell in lines[1].strip('|').split('|')]
    assert len(lines) == 2
    assert cells[:5] == [
      'per_layer',
      '2',
      '2',
      '0.550 (0.071)',
      '0.700 (0.000)',
    ]
    assert cells[5:] == ['', '', '0.0400 (0.0000)', '', '', '61']

  def test_columns(self, tmp_path):
    content = finished(['DP-HFlow'], seeds=[0])
    for run in content['runs']:
      run['columns'] = {
        'age': {'total_variation': 0.1, 'wasserstein': 0.02},
        'city': {'total_variation': 0.3, 'wasserstein': None},
      }
    (tmp_path / 'hflow_marginals_adult.json').write_text(json.dumps(content))
    text = setting_tables.section(tmp_path)
    assert '| age | 0.1000 | 0.0200 |' in text
    assert '| city | 0.3000 |  |' in text
