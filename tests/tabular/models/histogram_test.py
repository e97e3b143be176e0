"""Bins that other columns can depend on."""

import types

import numpy as np
from scipy import special

from tests.tabular import small_table
from tfdpflows.tabular import TabularSynthesizer
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.models import current_settings, histogram

AGE = EncodedColumn('age', 100.0, 1.0, False, True)
CITY = EncodedColumn('city', 100.0, 1.0, False, False)


def _masses(knots):
  return np.diff(special.ndtr([-np.inf, *knots, np.inf]))


def test_neighbours_are_joined_into_even_parts():
  knots = histogram.knots(AGE, np.full(100, 0.01), 8)
  assert len(knots) == 8
  np.testing.assert_allclose(_masses(knots)[:-1], 0.12, atol=1e-4)


def test_heavy_values_stay_apart_and_what_they_leave_is_cut_finer():
  p = np.full(100, 0.001)
  p[[0, 40, 99]] = 0.5, 0.3, 0.103
  # They leave .2: parts have sqrt(.2) / 8 = .056.
  masses = _masses(histogram.knots(AGE, p, 8))
  np.testing.assert_allclose(
    masses, [0.5, 0.039, 0.3, 0.055, 0.003, 0.103], atol=1e-4
  )


def test_a_rare_tail_gets_few_bins():
  p = np.full(100, 0.0001)
  p[0] = 0.9901
  # 32 sqrt(.0099) = 3.2 parts beside the spike.
  assert len(histogram.knots(AGE, p, 32)) == 4


def test_categories_have_bins_of_their_own():
  p = np.arange(1, 101) / np.arange(1, 101).sum()
  knots = histogram.knots(CITY, p, 25)
  np.testing.assert_allclose(_masses(knots), p, atol=1e-4)
  assert len(histogram.knots(CITY, np.ones(100), 5)) == 19


def test_few_bins_are_kept_and_one_has_no_knots():
  assert len(histogram.knots(AGE, [0.2, 0.3, 0.5], 8)) == 2
  assert len(histogram.knots(AGE, [1.0], 8)) == 0


def test_beyond_90_columns_those_that_were_measured_are_connected():
  make = histogram.HistogramModel.for_table
  assert make(100_000, 90, 4.0).connections == 'all'
  wide = make(100_000, 91, 4.0)
  assert wide.connections == 'measured'
  assert wide.epochs * 100_000 / wide.expected_batch_size == 400
  assert make(100_000, 91, 4.0, adaptive_marginals=0).connections == 'all'
  assert make(100_000, 91, 4.0, connections='all').connections == 'all'
  # Models of before had all, however many columns.
  settings = {'model': 'histogram', 'hyperparameters': {'epochs': 2.0}}
  found = current_settings(settings)['hyperparameters']
  assert found['connections'] == 'all'


def test_a_saved_model_has_the_connections_that_were_measured(tmp_path):
  people = small_table.make(num_rows=300, seed=5)
  synthesizer = TabularSynthesizer(
    people.schema,
    **people.budget,
    seed=6,
    **{**people.tiny, 'adaptive_marginals': 3, 'connections': 'measured'},
  )
  with small_table.untrained():
    synthesizer.fit(people.table, progress=False)
  groups = [m['connected'] for m in synthesizer._fitted.marginals]
  assert any(groups)
  assert all(i in groups[j] for i, others in enumerate(groups) for j in others)
  # What is exported below has the same graphs.
  with small_table.unexported():
    synthesizer.save(tmp_path / 'model')
  loaded = TabularSynthesizer.load(tmp_path / 'model')
  rows = people.table[:20]
  np.testing.assert_array_equal(
    loaded.log_prob(rows), synthesizer.log_prob(rows)
  )
  assert loaded.sample(9, seed=1).equals(synthesizer.sample(9, seed=1))
  synthesizer.export(tmp_path / 'exported')


def test_the_expected_time_grows_with_what_is_public():
  """Of rows, columns, bins and steps: the table is not looked at."""

  def seconds(d, n, **settings):
    model = histogram.HistogramModel.for_table(n, d, 4.0, **settings)
    plan = types.SimpleNamespace(
      steps=model.epochs * n / model.expected_batch_size
    )
    spending = types.SimpleNamespace(
      rounds=(None,) * model.adaptive_marginals, plan=plan
    )
    columns = [EncodedColumn(f'{j}', 16.0, 1.0, False, True) for j in range(d)]
    return model.expected_seconds(columns, n, spending)

  assert 20 < seconds(15, 32_000) < 120
  assert seconds(15, 32_000) < seconds(40, 32_000) < seconds(80, 32_000)
  assert seconds(15, 32_000) < seconds(15, 10_000_000)
  assert seconds(500, 10_000) < seconds(500, 10_000, connections='all') / 3
  assert seconds(1000, 10_000) < 3600
