import json

import pytest

from experiments import bench_serving, results_document, tabular_tables


def run(seed, **changes):
  return {
    'epsilon': 1.0,
    'seed': seed,
    'epsilon_spent': 0.99,
    'scores': {'macro_f1': 0.6 + seed / 10, 'auroc': 0.8},
    'distances': {
      'kendall_rmse': 0.04,
      'kendall_mae': 0.03,
      'marginal_total_variation': None,
    },
    'seconds': {'fit': 60.0, 'sample': 1.0, 'score': 1.0},
    'peak_mib': 1000.0 + seed,
    'privacy_statement': {'accountant': 'pld', 'sampling': 'Poisson'},
    **changes,
  }


def write(folder, name, **changes):
  content = {
    'dataset': 'adult',
    'method': 'flow',
    'smoke': False,
    'target': 'income',
    'train_rows': 32561,
    'holdout_rows': 16281,
    'delta': 1e-5,
    'hyperparameters': {},
    'runs': [run(0), run(1)],
    **changes,
  }
  (folder / f'tabular_{name}.json').write_text(json.dumps(content))


def rows(text, first):
  return [
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in text.splitlines()
    if line.startswith(f'| {first}')
  ]


class TestSection:
  def test_has_means_beside_the_paper(self, tmp_path):
    write(tmp_path, 'adult')
    text = tabular_tables.section(tmp_path)
    (ours,) = rows(text, 'TabularSynthesizer')
    assert ours[:5] == [
      'TabularSynthesizer',
      '1',
      '2',
      '0.650 (0.071)',
      '0.800 (0.000)',
    ]
    assert ours[5:] == [
      '',
      '0.0400 (0.0000)',
      '0.0300 (0.0000)',
      '',
      '',
      '60',
      '1001',
    ]
    assert rows(text, 'paper: DP-HFlow')[0][3:6] == ['.56', '.75', '.50']
    assert rows(text, '**asked first**')[0][3] == '.67'
    assert '99.00% of epsilon at most, delta = 1e-05, accountant: pld' in text
    assert 'sampling: Poisson' in text

  def test_what_is_not_private_claims_nothing(self, tmp_path):
    runs = [run(0, epsilon=1e6, epsilon_spent=None)]
    write(tmp_path, 'adult_ctgan', method='ctgan', runs=runs)
    text = tabular_tables.section(tmp_path)
    assert rows(text, 'CTGAN')[0][1] == 'not private'
    assert '- CTGAN (ctgan): not private at all.' in text
    assert 'of epsilon at most' not in text

  def test_all_tables_are_as_wide_as_their_heads(self, tmp_path):
    for name in ('adult', 'census', 'covertype', 'intrusion', 'randhie'):
      write(tmp_path, name, dataset=name, runs=[run(0)])
    text = tabular_tables.section(tmp_path)
    widths = {
      line.count('|') for line in text.splitlines() if line.startswith('|')
    }
    assert widths == {len(tabular_tables._HEAD) + 1}

  def test_methods_have_lines_of_their_own(self, tmp_path):
    write(tmp_path, 'adult')
    write(tmp_path, 'adult_mst', method='mst', note='Paused in between')
    write(tmp_path, 'adult_tuned', hyperparameters={'epochs': 5})
    text = tabular_tables.section(tmp_path)
    assert len(rows(text, 'TabularSynthesizer')) == 2
    assert 'TabularSynthesizer {"epochs": 5}' in text
    assert len(rows(text, 'MST (dpmm)')) == 1
    assert '; Paused in between.' in text

  def test_a_delta_above_one_over_the_rows_is_named(self, tmp_path):
    write(tmp_path, 'adult')
    assert 'too large for a release' not in tabular_tables.section(tmp_path)
    write(tmp_path, 'covertype', dataset='covertype', train_rows=464810)
    assert 'too large for a release' in tabular_tables.section(tmp_path)

  def test_smoke_runs_and_empty_files_are_left_out(self, tmp_path):
    write(tmp_path, 'adult', smoke=True)
    write(tmp_path, 'census', dataset='census', runs=[])
    assert not rows(tabular_tables.section(tmp_path), 'TabularSynthesizer')


class TestReplaceSection:
  def test_leaves_the_rest_alone(self):
    text = '# Results\n\nmine\n'
    for new in ('first', 'second'):
      text = results_document.replace_section(text, 'a', 'a.py', new)
      text = results_document.replace_section(text, 'b', 'b.py', 'other')
    assert text.count('a:begin') == text.count('b:end') == 1
    assert 'first' not in text
    assert text.index('mine') < text.index('second') < text.index('other')

  def test_half_a_section_is_refused(self):
    text = results_document.replace_section('# Results', 'a', 'a.py', 'new')
    with pytest.raises(ValueError, match='only one of'):
      results_document.replace_section(
        text.replace('<!-- a:end -->', ''), 'a', 'a.py', 'new'
      )


@pytest.mark.full
def test_exported_models_are_served_as_they_are(tmp_path):
  results = bench_serving.run(
    'randhie', output=str(tmp_path / 'serving.json'), smoke=True
  )
  assert [run['function'] for run in results['runs']] == 2 * [
    'sample',
    'log_prob',
  ]
  assert max(run['difference'] for run in results['runs']) < 1e-3
  assert '| `log_prob` | 20 |' in tabular_tables.serving_table(results['runs'])
