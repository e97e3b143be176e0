"""A whole fit, replayed on neighbouring tables with the same noise."""

import functools

import numpy as np
import pandas as pd
import pytest

from tests.grids import thinned
from tests.tabular import small_table
from tfdpflows import audit
from tfdpflows.audit import replaying
from tfdpflows.tabular import TabularSynthesizer

ROW = 7
MODELS = {
  'adaptive': {
    'model': 'histogram',
    'target': 'member',
    'adaptive_marginals': 3,
  },
  'hflow': {
    'model': 'hflow',
    'num_blocks': 1,
    'dequantization': 'variational',
    'clipping': 'per_layer',
  },
  'dpgan': {'model': 'dpgan', 'discriminator_steps': 3},
}


@pytest.fixture(scope='module')
def people():
  return small_table.make()


@pytest.fixture(scope='module')
def record(people):
  """Returns a function of a model and a row: the recorded fit.

  Each fit is made once, and replayed in several tests.
  """

  @functools.cache
  def record(name, row):
    table = people.table.copy()
    if row == 'extreme':
      columns = ['age', 'income', 'visits', 'city']
      table.loc[ROW, columns] = [0, 200, 12, 'Bonn']
    fit = lambda given: run(people, given.get('table', table), name, given)
    with small_table.short():
      return replaying.record(fit, {})

  return record


def run(people, table, name, given):
  """Fits; `absent` is the number of a row that is not there."""
  synthesizer = TabularSynthesizer(
    people.schema, **people.budget, **people.tiny, **MODELS[name]
  )
  fitted = audit.fit_without(synthesizer, table, given.get('absent', ()))
  assert fitted.ledger.epsilon() <= people.budget['epsilon']
  return fitted


CASES = [
  ('adaptive', 'extreme'),
  ('hflow', 'ordinary'),
  ('dpgan', 'ordinary'),
]


@pytest.mark.parametrize(
  'name, row',
  thinned(
    [*CASES, ('adaptive', 'ordinary')],
    lambda point: point in CASES and point[0] != 'hflow',
  ),
)
def test_one_row_moves_every_release_by_its_sensitivity(
  people, name, row, record
):
  with small_table.short():
    found = record(name, row).replay({'absent': [ROW]})
  assert found.passed, found
  counts, *rounds, training = found.entries
  # One Gaussian mechanism over all columns and levels.
  assert counts.releases >= len(people.schema.fields)
  assert 0.5 < counts.moved <= 1 + 1e-6
  # And one for each step, with its loss; the row is in some batches only.
  steps = np.array(training.movements)
  assert len(steps) == training.count == 16
  assert 0 < (steps > 1e-6).sum() < len(steps)
  # A choice by utilities of sensitivity 1 and a Gaussian mechanism per round.
  assert len(rounds) == 2 * MODELS[name].get('adaptive_marginals', 0)
  assert [x.norm for x in rounds] == ['range', 'l2'] * (len(rounds) // 2)
  assert all(0 < x.moved <= 1 + 1e-9 for x in rounds[::2])
  np.testing.assert_allclose([x.moved for x in rounds[1::2]], 1)


@pytest.mark.parametrize('name, row', thinned(CASES, 1))
def test_nothing_but_the_releases_depends_on_the_rows(
  people, name, row, record
):
  """Other rows, the same releases: the same model."""
  table = people.table
  other = pd.concat([table[200:], table[:200]])
  other['member'] = ~other['member'].astype(bool)
  with small_table.short():
    found = record(name, row).replay({'table': other.reset_index(drop=True)})
  assert not found.differences
  assert not any(entry.problem for entry in found.entries)
  assert found.entries[-1].moved > 1
