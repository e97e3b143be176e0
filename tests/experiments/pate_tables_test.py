"""Tables of the experiments on PATE."""

from experiments import pate_tables, results_document


def test_tables_of_the_committed_results():
  text = pate_tables.section(results_document.ROOT / 'experiments' / 'results')
  assert text.startswith('## PATE')


def test_tables_of_smoke_runs_are_left_out(tmp_path):
  (tmp_path / 'pate_mnist.json').write_text('{"smoke": true, "runs": [1]}')
  assert pate_tables.section(tmp_path) == '## PATE'
