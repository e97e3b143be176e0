"""Seeded synthetic tables, log-densities and scores of every table model."""

from __future__ import annotations

import pandas as pd

from tests.tabular import small_table
from tfdpflows.tabular import TabularSynthesizer

TINY = small_table.make().tiny
# Without measured marginals: a sampled chain goes elsewhere by one bit.
_HISTOGRAM = {'model': 'histogram', 'adaptive_marginals': 0, 'num_bins': 16}
MODELS = {
  'histogram': _HISTOGRAM,
  'histogram_target': {**_HISTOGRAM, 'target': 'member'},
  'histogram_unmatched': {**_HISTOGRAM, 'matching': False},
  'spline': {'model': 'spline', 'num_blocks': 1},
  'spline_sparsified': {
    'model': 'spline',
    'num_blocks': 1,
    'clipping': 'sparsification',
    'sparsity': 0.5,
    'linear': 'lu',
  },
  'hflow': {'model': 'hflow', 'num_blocks': 2},
  'hflow_variational': {
    'model': 'hflow',
    'num_blocks': 1,
    'dequantization': 'variational',
    'clipping': 'per_unit',
  },
}


def table():
  """Returns the small table of 300 rows, and its schema."""
  people = small_table.make(num_rows=300, seed=5)
  return people.table, people.schema


def fitted(name):
  """A synthesizer, fitted with a seed.

  Args:
    name: A key of `MODELS`.

  Returns:
    A `TabularSynthesizer`.
  """
  rows, schema = table()
  synthesizer = TabularSynthesizer(
    schema, epsilon=8.0, delta=1e-4, seed=6, **{**TINY, **MODELS[name]}
  )
  return synthesizer.fit(rows, progress=False)


def values(synthesizer):
  """What a synthesizer says and draws.

  Args:
    synthesizer: One of `fitted`, or what was loaded from its folder.

  Returns:
    A dict of the CSV of ten synthetic rows, two of them drawn on conditions,
    log-densities, and what was spent.
  """
  rows, _ = table()
  drawn = [
    synthesizer.sample(8, seed=7),
    synthesizer.sample(2, seed=8, conditions={'city': 'Bonn'}),
  ]
  return {
    'csv': pd.concat(drawn).to_csv(index=False, float_format='%.6g'),
    'log_prob': [float(f'{x:.7g}') for x in synthesizer.log_prob(rows[:5])],
    'epsilon': synthesizer.ledger.epsilon().hex(),
    'labels': [entry.label for entry in synthesizer.ledger.entries],
  }


def make():
  """Everything that the file holds.

  Returns:
    What `json.dumps` takes.
  """
  return {name: values(fitted(name)) for name in MODELS}
