"""The density of conditional histograms, where float32 is not enough."""

import numpy as np
import pandas as pd
import pytest

from tfdpflows import accounting, mechanisms
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import Field, TableSchema
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.models.histogram import HistogramModel


@pytest.fixture(scope='module')
def spiky():
  """A column of numbers of which some are frequent, with missing ones."""
  rng = np.random.default_rng(0)
  schema = TableSchema(
    [
      Field('years', 'number', minimum=7, maximum=18),
      Field('age', 'integer', minimum=0, maximum=99, required=True),
      Field('city', 'string', enum=('x', 'y', 'z')),
    ]
  )
  years = rng.choice([10.5, 11.0, 18.0, 11.8], 1000, p=[0.4, 0.3, 0.2, 0.1])
  years[:250] = rng.uniform(7, 18, 250).round(5)
  years[::9] = np.nan
  table = pd.DataFrame(
    {
      'years': years,
      'age': rng.integers(20, 60, 1000),
      'city': rng.choice(['x', 'y', None], 1000),
    }
  )
  encoder = TableEncoder(schema)
  codes = encoder.encode(schema.validate(table))
  histograms = mechanisms.noisy_histograms(
    codes, encoder.columns, 0.01, Randomness(seed=0), accounting.PrivacyLedger()
  )
  marginals = [
    {'edges': h.edges, 'probabilities': h.probabilities()} for h in histograms
  ]
  model = HistogramModel(num_bins=8)
  density = model.make_distribution(encoder.columns, marginals, seed=0)
  return density, codes, marginals, encoder.columns


def test_rows_are_in_the_bins_that_the_histograms_counted_them_in(spiky):
  density, codes, *_ = spiky
  bins = density.bins(codes)
  for j, masses in enumerate(density.latent.bijector.masses):
    found = np.bincount(bins[:, j], minlength=len(masses)) / len(codes)
    np.testing.assert_allclose(found, masses, atol=2e-3)


def test_training_is_on_those_bins_and_absent_rows_stay_absent(spiky):
  density, codes, *_ = spiky
  codes = codes[:50].copy()
  codes[3] = np.nan
  rows = density.training_rows(codes)
  assert np.isnan(rows[3]).all()
  rows = np.delete(rows, 3, 0)
  np.testing.assert_array_equal(
    density.latent.bijector.bins(rows), density.bins(np.delete(codes, 3, 0))
  )


def test_log_probabilities_are_those_of_the_histograms(spiky):
  """Columns are independent before training."""
  density, codes, marginals, columns = spiky
  expected = np.zeros(len(codes))
  for j, (marginal, column) in enumerate(zip(marginals, columns)):
    cells = (
      np.searchsorted(
        marginal['edges'], np.minimum(codes[:, j], column.size), side='right'
      )
      - 1
    )
    value = codes[:, j] <= column.value_size
    if not column.cell:
      last = len(marginal['probabilities']) - 1
      cells = np.where(value, np.minimum(cells, last - 1), last)
    chances = np.log(marginal['probabilities'])[cells]
    widths = np.log(np.diff(marginal['edges']))[cells]
    # Missing values have a probability, numbers a density.
    if not column.cell:
      widths = np.where(value, widths, 0)
    expected += chances - widths
  found = density.log_prob(codes, np.random.default_rng(0))
  np.testing.assert_allclose(found, expected, atol=1e-4)
