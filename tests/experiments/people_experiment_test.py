"""People as the unit of privacy, on a small made table."""

import json
import math

import matplotlib.pyplot as plt
import pytest

from experiments import people, people_tables
from experiments.results_document import load_results
from tests.grids import thinned
from tests.tabular import small_table


@pytest.mark.parametrize(
  ('rows_per_person', 'methods'),
  thinned([((2, 0), ('people', 'rows')), ((1, 2, 0), people.METHODS)], 1),
)
def test_smoke(rows_per_person, methods, tmp_path):
  path = str(tmp_path / 'people_made.json')
  options = {
    'rows_per_person': rows_per_person,
    'methods': methods,
    'output': path,
    'smoke': True,
    'epochs': 1.0,
    'adaptive_marginals': 0,
    'accountant': 'rdp',
  }
  with small_table.untrained():
    found = people.run('made', **options)
  asked = [('people', 2), ('people, units', 2), ('rows', 2)]
  asked += [('people', 0), ('people, units', 0)]
  if 1 in rows_per_person:
    asked = [('people', 1), ('people, units', 1), *asked]
  asked = [(method, number) for method, number in asked if method in methods]
  assert [(r['method'], r['rows_per_person']) for r in found.runs] == asked
  for run in found.runs:
    # A row has the epsilon of which two have that of a person.
    assert run['epsilon_spent'] <= (0.5 if run['method'] == 'rows' else 1.0)
    assert math.isfinite(run['nats'])
  assert 'at most' in found.runs[-1]['used']
  # What is there is not run again.
  assert people.run('made', **options).runs == found.runs

  content = json.loads((tmp_path / 'people_made.json').read_text())
  (tmp_path / 'people_made.json').write_text(
    json.dumps({**content, 'smoke': False})
  )
  section = people_tables.section(tmp_path)
  assert '### made: ' in section
  assert section.count('rows, by group privacy') == 1
  contents = [c for c, _ in load_results(tmp_path, 'people_*.json')]
  figure = people_tables.draw(contents)
  assert len(figure.axes) == 2
  plt.close(figure)


@pytest.mark.parametrize('k', [1, 2, 8])
def test_group_privacy(k):
  epsilon, delta = people.of_rows(2.0, 1e-5, k)
  assert k * epsilon == pytest.approx(2.0)
  together = sum(math.exp(i * epsilon) * delta for i in range(k))
  assert together == pytest.approx(1e-5)
