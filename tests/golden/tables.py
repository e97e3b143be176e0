"""Seeded synthetic tables, log-densities and scores of every table model."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tfdpflows.tabular import Field, TableSchema, TabularSynthesizer

TINY = {
  'epochs': 2,
  'hidden_units': (16,),
  'expected_batch_size': 50,
}
MODELS = {
  'histogram': {'model': 'histogram'},
  'histogram_target': {'model': 'histogram', 'target': 'member'},
  'histogram_unmatched': {'model': 'histogram', 'matching': False},
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
  """A table of five kinds of columns, three with missing values, of 300 rows.

  Returns:
    A `DataFrame`, and its `TableSchema`.
  """
  rng, n = np.random.default_rng(5), 300
  age = rng.integers(18, 90, n)
  rows = pd.DataFrame(
    {
      'age': age,
      'income': (age + rng.normal(0, 5, n)).clip(0, 200),
      'visits': pd.array(rng.integers(0, 9, n), dtype='Int64'),
      'city': rng.choice(['Bonn', 'Köln', 'Trier'], n),
      'member': age > 50,
    }
  )
  rows.loc[::20, 'income'] = np.nan
  rows.loc[::25, 'visits'] = pd.NA
  rows.loc[::30, 'city'] = None
  schema = TableSchema(
    [
      Field('age', 'integer', minimum=0, maximum=99, required=True),
      Field('income', 'number', minimum=0, maximum=200),
      Field('visits', 'integer', minimum=0, maximum=12),
      Field('city', 'string', enum=('Trier', 'Köln', 'Bonn')),
      Field('member', 'boolean', required=True),
    ]
  )
  return rows, schema


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
