import math

import dp_accounting
import numpy as np
import pandas as pd
import pytest

from tfdpflows import mechanisms
from tfdpflows.mechanisms import bounds
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import Field, TableSchema


class Ledger:
  neighboring_relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

  def __init__(self):
    self.charges = []

  def charge(self, event, count=1, *, label, **extra):
    self.charges.append((event, label, extra))


def table(n=4000, seed=0):
  rng = np.random.default_rng(seed)
  return pd.DataFrame(
    {
      'age': rng.integers(18, 91, n),
      'debt': np.where(rng.random(n) < 0.3, np.nan, -rng.random(n) * 1000),
      'city': rng.choice(['Oslo', 'Lima', 'Rome'], n),
      'member': rng.random(n) < 0.5,
    }
  )


def test_marks_are_replaced_and_paid_for():
  df = table()
  df.loc[0, 'city'] = 'my full name'
  df.loc[1, 'age'] = 10**9
  draft = TableSchema.draft(df)
  ledger = Ledger()
  source = Randomness(seed=1)
  schema = mechanisms.private_bounds(df, draft, 2.0, 1e-6, source, ledger)
  assert not schema.is_draft
  assert 0 <= schema['age'].minimum <= 18
  assert 90 <= schema['age'].maximum < 256
  assert -1024 <= schema['debt'].minimum <= -900
  assert schema['debt'].maximum == 0
  assert not schema['debt'].required
  assert schema['city'].enum == ('Lima', 'Oslo', 'Rome')
  assert schema['member'].required
  clean = schema.validate(df, 'clip')
  assert clean['age'].max() == schema['age'].maximum
  [(event, label, _)] = ledger.charges
  assert label == 'bounds'
  assert event == bounds.bounds_event(draft, 2.0, 1e-6)
  spent = [
    1 / e.noise_multiplier
    if isinstance(e, dp_accounting.LaplaceDpEvent)
    else e.epsilon
    for e in event.events
  ]
  assert sum(spent) == pytest.approx(2.0)
  deltas = [getattr(e, 'delta', 0.0) for e in event.events]
  assert sum(deltas) == pytest.approx(1e-6)


def test_the_accountant_takes_the_event():
  from tfdpflows import accounting

  event = bounds.bounds_event(TableSchema.draft(table()), 0.5, 1e-7)
  accountant = accounting.create_accountant('pld')
  accountant.compose(event)
  assert accountant.get_epsilon(2e-7) <= 0.5 * 1.001


def test_what_is_public_stays_and_costs_nothing():
  public = TableSchema([Field('age', 'integer', minimum=0, maximum=99)])
  ledger = Ledger()
  same = mechanisms.private_bounds(
    table()[['age']], public, 1.0, 0.0, Randomness(seed=0), ledger
  )
  assert same == public
  assert not ledger.charges
  half = TableSchema(
    [Field('age', 'integer', minimum=5, maximum=99, from_data=('maximum',))]
  )
  found = mechanisms.private_bounds(
    table()[['age']], half, 1.0, 0.0, Randomness(seed=0), ledger
  )
  assert found['age'].minimum >= 5
  assert found['age'].maximum >= 90


def test_a_column_that_is_not_there_is_named():
  schema = TableSchema.draft(table()[['age', 'city']])
  with pytest.raises(ValueError, match="no column 'city'"):
    mechanisms.private_bounds(
      table()[['age']], schema, 1.0, 1e-6, Randomness(seed=0), Ledger()
    )


def test_categories_are_known_by_type_and_value():
  """Which of two equal values stood first must not give them their name."""
  rng = np.random.default_rng(0)
  for first in (0.0, -0.0, False, 0):
    column = [first, *[0] * 500, *[0.0] * 500, [1], float('nan'), None, b'x']
    found = bounds.private_categories(column, epsilon=1.0, delta=1e-6, rng=rng)
    assert [(type(c).__name__, str(c)) for c in found] == [
      ('float', '0.0'),
      ('int', '0'),
    ]


def test_only_marked_values_of_the_draft_are_forgotten():
  # The numbers in a draft came from the data: they must not matter.
  df = table()[['age']]
  results = []
  for low, high in ((18, 90), (-7, 10**6)):
    draft = TableSchema(
      [Field('age', 'integer', low, high, from_data=('minimum', 'maximum'))]
    )
    source = Randomness(seed=3)
    results.append(
      mechanisms.private_bounds(df, draft, 1.0, 0.0, source, Ledger())
    )
  assert results[0] == results[1]


def test_too_little_data_says_what_to_do():
  df = table(5)
  with pytest.raises(ValueError, match="'age': no type rises above"):
    mechanisms.private_bounds(
      df,
      TableSchema.draft(df),
      0.1,
      1e-6,
      Randomness(seed=0),
      Ledger(),
    )
  for epsilon in (0.0, -1.0, math.inf, math.nan):
    with pytest.raises(ValueError, match='epsilon'):
      bounds.bounds_event(TableSchema.draft(df), epsilon, 1e-6)
  with pytest.raises(ValueError, match='delta'):
    bounds.bounds_event(TableSchema.draft(df), 1.0, 0.0)


@pytest.mark.parametrize(
  ('values', 'integer', 'low', 'high'),
  [
    (np.zeros(500), True, 0, 0),
    (np.full(500, -7.0), True, -8, -5),
    (np.full(500, 0.01), False, 2**-7, 2**-6),
    (np.full(500, 1e300), False, 2.0**119, 2.0**120),
  ],
)
def test_ranges_hold_the_values(values, integer, low, high):
  found = bounds.private_range(
    values, epsilon=1.0, rng=np.random.default_rng(0), integer=integer
  )
  assert found == (low, high)


def test_categories_of_a_categorical_column_need_rows():
  column = pd.Series(['a'] * 300).astype(pd.CategoricalDtype(['a', 'secret']))
  for seed in range(50):
    found = bounds.private_categories(
      column, epsilon=0.1, delta=0.2, rng=np.random.default_rng(seed)
    )
    assert 'secret' not in found


def test_a_single_row_shows_with_chance_delta():
  epsilon, delta, runs = 1.0, 0.05, 4000
  shown = sum(
    bool(
      bounds.private_categories(
        ['me'], epsilon=epsilon, delta=delta, rng=np.random.default_rng(s)
      )
    )
    for s in range(runs)
  )
  assert shown / runs == pytest.approx(delta, abs=5 * math.sqrt(delta / runs))


@pytest.mark.parametrize('rows', [3, 5, 8])
def test_neighbours_are_hard_to_tell_apart(rows):
  # Empirical check of (epsilon, delta) on the outcome 'is selected'.
  epsilon, delta, runs = 0.8, 0.01, 4000

  def shown(count, first_seed):
    return np.mean(
      [
        bool(
          bounds.private_categories(
            ['c'] * count,
            epsilon=epsilon,
            delta=delta,
            rng=np.random.default_rng(first_seed + s),
          )
        )
        for s in range(runs)
      ]
    )

  one, two = shown(rows, 0), shown(rows + 1, runs)
  slack = 5 / math.sqrt(runs)
  for p, q in ((one, two), (two, one), (1 - one, 1 - two), (1 - two, 1 - one)):
    assert p <= math.exp(epsilon) * q + delta + slack
