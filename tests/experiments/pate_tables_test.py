"""Tables of the experiments on PATE."""

import json

from experiments import pate_sweeps_figure, pate_tables, results_document


def test_tables_of_the_committed_results():
  text = pate_tables.section(results_document.ROOT / 'experiments' / 'results')
  assert text.startswith('## PATE')


def test_tables_of_smoke_runs_are_left_out(tmp_path):
  (tmp_path / 'pate_mnist.json').write_text('{"smoke": true, "runs": [1]}')
  assert pate_tables.section(tmp_path) == '## PATE'


def test_the_figure_of_the_sweeps(tmp_path):
  path = results_document.ROOT / 'experiments/results/pate_sweeps_mnist.json'
  figure = pate_sweeps_figure.draw(json.loads(path.read_text()))
  left, right = figure.axes
  # A line and the dots of each number of teachers, or threshold.
  assert len(left.lines) == 2 * (1 + 4)
  assert len(right.lines) == 2 * (1 + 5)
  figure.savefig(tmp_path / 'sweeps.png')
