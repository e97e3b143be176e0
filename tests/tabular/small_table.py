"""A small table, its schema, and hyper-parameters for fits of seconds."""

import contextlib
import types
from unittest import mock

import numpy as np
import pandas as pd

from tfdpflows.tabular import Field, density
from tfdpflows.tabular.models import adaptive_marginals, dp_sgd
from tfdpflows.tabular.schema import TableSchema


def make(num_rows=400, seed=0):
  """Returns rows of five kinds of columns, three with missing values.

  Returns:
    A namespace of
    - table: the `DataFrame`;
    - schema: its `TableSchema`;
    - tiny: hyper-parameters for 16 steps of a small flow;
    - quick: the same for the default model, without measured marginals, whose
      rows take it longer to learn than these steps;
    - budget: epsilon and delta, by the accountant that takes least time.
  """
  rng = np.random.default_rng(seed)
  age = rng.integers(18, 90, num_rows)
  table = pd.DataFrame(
    {
      'age': age,
      'income': (age + rng.normal(0, 5, num_rows)).clip(0, 200),
      'visits': pd.array(rng.integers(0, 9, num_rows), dtype='Int64'),
      'city': rng.choice(['Bonn', 'Köln', 'Trier'], num_rows),
      'member': age > 50,
    }
  )
  table.loc[::20, 'income'] = np.nan
  table.loc[::25, 'visits'] = pd.NA
  table.loc[::30, 'city'] = None
  schema = TableSchema(
    [
      Field('age', 'integer', minimum=0, maximum=99, required=True),
      Field('income', 'number', minimum=0, maximum=200),
      Field('visits', 'integer', minimum=0, maximum=12),
      Field('city', 'string', enum=('Trier', 'Köln', 'Bonn')),
      Field('member', 'boolean', required=True),
    ]
  )
  tiny = {'epochs': 2, 'hidden_units': (16,), 'expected_batch_size': 50}
  return types.SimpleNamespace(
    table=table,
    schema=schema,
    tiny=tiny,
    quick={**tiny, 'adaptive_marginals': 0},
    budget={'epsilon': 8.0, 'delta': 1e-4, 'accountant': 'rdp'},
  )


@contextlib.contextmanager
def untrained():
  """Lets fits end before DP-SGD, for what is settled before it.

  All that comes before is as always: bounds, marginals, plans and charges.

  Yields:
    The `Mock` that is called in place of `dp_sgd.train`.
  """
  with mock.patch.object(dp_sgd, 'train', return_value=None) as train:
    yield train


@contextlib.contextmanager
def unexported():
  """Leaves the SavedModel out of folders of models, where no test reads it.

  Its graphs take longer than the steps of a small fit. Models are loaded from
  their weights.
  """
  with mock.patch.object(density.TableDistribution, 'export'):
    yield


@contextlib.contextmanager
def short():
  """Makes what is trained on measured marginals quick."""
  with mock.patch.object(adaptive_marginals, '_STEPS', 60):
    yield


def assert_same_model(one, other):
  """Compares all that rows are drawn from, to the last bit."""
  assert one.schema == other.schema
  assert one._fitted.marginals == other._fitted.marginals
  parts = [
    {
      name: [variable.numpy() for variable in part.variables]
      for name, part in synthesizer._fitted.distribution.saved_parts().items()
    }
    for synthesizer in (one, other)
  ]
  assert parts[0].keys() == parts[1].keys()
  for name, arrays in parts[0].items():
    assert len(arrays) == len(parts[1][name])
    for a, b in zip(arrays, parts[1][name]):
      np.testing.assert_array_equal(a, b)
