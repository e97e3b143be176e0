import json
import pathlib

import numpy as np
import pytest
from absl import flags

from experiments import (
  anomaly_detection,
  density_2d,
  density_binary,
  density_datasets,
  density_estimation,
  density_marginals,
  density_priors,
  density_tables,
  regression_synthetic,
  results_document,
)

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
  'define',
  [
    density_binary.define_flags,
    density_2d._define_flags,
    density_estimation._define_flags,
    density_marginals._define_flags,
    density_priors._define_flags,
    density_tables._define_flags,
  ],
)
def test_flags_have_values_that_parse(define):
  before = set(flags.FLAGS)
  try:
    define()
  finally:
    for name in set(flags.FLAGS) - before:
      delattr(flags.FLAGS, name)


class TestPictures:
  def test_smoke(self, tmp_path):
    found = density_2d.run(
      ['pinwheel'],
      epsilons=[1.0],
      plot=tmp_path / 'plot.png',
      output=tmp_path / 'results.json',
      smoke=True,
    )
    assert (tmp_path / 'plot.png').read_bytes().startswith(b'\x89PNG')
    assert [run['epsilon'] for run in found['runs']] == [None, 1.0]


class TestMarginals:
  def test_smoke(self, tmp_path):
    found = density_marginals.run(
      'pinwheel', plot=tmp_path / 'plot.png', smoke=True
    )
    assert (tmp_path / 'plot.png').read_bytes().startswith(b'\x89PNG')
    assert [run['method'] for run in found['runs']] == [
      'real rows',
      'DP-MoG, pld',
      'DP-NF, pld',
    ]
    assert all(0 < run['ks'] < 1 for run in found['runs'])


class TestAnomalies:
  def test_values_come_from_the_tails(self):
    rng = np.random.default_rng(0)
    x = rng.normal(size=[1000, 4])
    low, high = np.quantile(x, [0.05, 0.95], axis=0)
    found = anomaly_detection.tail_uniform(x, 2, rng)
    changed = found != x
    assert (changed.sum(1) == 2).all()
    outside = (found <= low) | (found >= high)
    assert outside[changed].all()
    assert (found >= x.min(0)).all()
    assert (found <= x.max(0)).all()

  def test_smoke(self, tmp_path):
    output = tmp_path / 'results.json'
    found = anomaly_detection.run(
      'pinwheel',
      methods=['full Gaussian', 'DP-MoG, pld'],
      smoke=True,
      output=output,
    )
    assert json.loads(output.read_text()) == found
    assert [run['epsilon'] for run in found['runs']] == [None, 1.0]
    for run in found['runs']:
      assert 0 <= run['anomalies']['1']['auc'] <= 1


class TestPriors:
  def test_smoke(self, tmp_path):
    output = tmp_path / 'results.json'
    variants = ['standard normal, DP-NF-INIT']
    found = density_priors.run(
      'pinwheel', variants=variants, smoke=True, output=output
    )
    assert json.loads(output.read_text()) == found
    assert [run['variant'] for run in found['runs']] == variants
    for run in found['runs']:
      assert 0.99 < run['epsilon_spent'] <= 1.0
      assert np.isfinite(run['log_prob'])

  def test_public_rows_are_not_trained_on(self):
    x = np.arange(100, dtype=np.float32)[:, None]
    rows = density_datasets.Rows('mine', x, 1e-5, 'none')
    rest, public = density_priors._public_part(rows, 30)
    assert len(rest.x) == 70
    assert not set(rest.x[:, 0]) & set(public[:, 0])


class TestRegression:
  def test_neighbors_predict_what_depends(self):
    pytest.importorskip('sklearn')
    x = np.random.default_rng(0).normal(size=[400, 2])
    x = np.concatenate([x, x[:, :1]], 1)
    x[0] = np.nan
    r2 = regression_synthetic.r2_of_neighbors(x[:300], x[300:])
    assert r2[0] > 0.5
    assert r2[1] < 0.2

  def test_smoke(self, tmp_path):
    pytest.importorskip('sklearn')
    output = tmp_path / 'results.json'
    found = regression_synthetic.run(
      'pinwheel',
      methods=['real rows', 'DP-MoG, pld'],
      smoke=True,
      output=output,
    )
    assert json.loads(output.read_text()) == found
    assert [run['epsilon'] for run in found['runs']] == [None, 1.0]


class TestTables:
  def test_tables_and_figure_come_from_the_json(self, tmp_path):
    runs = [
      {
        'method': method,
        'epsilon': epsilon,
        'split': split,
        'log_prob': 9.0 + split,
        'seconds': 1.0,
        **more,
      }
      for split in range(2)
      for method, epsilon, more in (
        ('full Gaussian', None, {}),
        ('MAF', None, {}),
        ('DP-NF, gdp', 1.0, {'epsilons': {'pld': 1.1, 'rdp': 1.2, 'gdp': 1.0}}),
      )
    ]
    content = {
      'dataset': 'lifesci',
      'delta': 1e-5,
      'scaling': 'over 2',
      'note': '',
      'runs': runs,
    }
    (tmp_path / 'density_lifesci.json').write_text(json.dumps(content))
    text = density_tables.section(tmp_path)
    assert '| DP-NF, gdp (asymptotic) | 9.50 ± 0.71 (2) |' in text
    assert '| DP-NF, gdp (asymptotic) | 9.00 |' in text
    assert '| DP-NF, gdp | 1 | 1.100 | 1.200 | 1.000 | 9.1% | 2 | 2 |' in text
    assert '| paper: DP-NF, gdp | 9.4 |' in text
    assert 'Rows are over 2.' in text
    density_tables.draw(content).savefig(tmp_path / 'plot.png')
    replace = lambda text, new: results_document.replace_section(
      text, 'density', 'experiments/density_tables.py', new
    )
    once = replace('# Results\n\n## Other\n', text)
    again = replace(once + '\n## After\n', 'new')
    assert '## Other' in again
    assert '## After' in again
    assert '9.50' not in again

  def test_results_of_the_repository(self):
    text = density_tables.section(ROOT / 'experiments' / 'results')
    assert text.startswith('## Private densities')
