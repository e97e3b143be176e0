"""The synthesizer: what it releases, what it refuses, what it can be asked."""

import itertools
import os
import warnings

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.tabular import alone, small_table
from tfdpflows.mechanisms import histograms
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import Field, fitting, read_table
from tfdpflows.tabular.drafting import draft_schema
from tfdpflows.tabular.encoding import TableEncoder
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.synthesizer import TabularSynthesizer


@pytest.fixture(scope='module')
def people():
  return small_table.make()


@pytest.fixture(scope='module')
def fitted(people):
  # By the accountant that is the default.
  budget = {**people.budget, 'accountant': 'pld'}
  # With this seed age and income are found to be nearly a function of each
  # other.
  synthesizer = TabularSynthesizer(
    people.schema, **budget, seed=3, **people.tiny
  )
  with small_table.short():
    return synthesizer.fit(people.table, progress=False)


@pytest.fixture(scope='module')
def saved(fitted, tmp_path_factory):
  folder = tmp_path_factory.mktemp('saved')
  fitted.save(folder / 'model')
  assert os.listdir(folder) == ['model']
  return folder / 'model'


@pytest.mark.core
def test_only_declared_values_of_declared_types(fitted, people):
  rows = fitted.sample(3000, seed=0)
  assert rows.dtypes.astype(str).to_dict() == {
    'age': 'int64',
    'income': 'float64',
    'visits': 'Int64',
    'city': 'object',
    'member': 'bool',
  }
  assert rows['age'].between(0, 99).all()
  assert rows['income'].dropna().between(0, 200).all()
  assert rows['visits'].dropna().between(0, 12).all()
  assert set(rows['city'].dropna()) == {'Bonn', 'Köln', 'Trier'}
  for name in ('income', 'visits', 'city'):
    share = people.table[name].isna().mean()
    assert rows[name].isna().mean() == pytest.approx(share, abs=0.04)
  # What is sampled can be validated, scored and learned from again.
  pd.testing.assert_frame_equal(people.schema.validate(rows), rows)
  assert np.isfinite(fitted.log_prob(rows)).all()
  assert len(fitted.sample(0)) == 0


def test_samples_by_seed(fitted):
  rows = fitted.sample(100, seed=3)
  pd.testing.assert_frame_equal(rows, fitted.sample(100, seed=3))
  pd.testing.assert_frame_equal(rows[:40], fitted.sample(40, seed=3))
  assert not rows.equals(fitted.sample(100, seed=4))
  assert not fitted.sample(100).equals(fitted.sample(100))
  for bad in (-1, 1.5):
    with pytest.raises(ValueError, match='num_rows'):
      fitted.sample(bad)
  with pytest.raises(ValueError, match='seed'):
    fitted.sample(1, seed=-1)


def test_log_prob_of_rows_with_missing_values(fitted, people):
  log_prob = fitted.log_prob(people.table)
  assert log_prob.shape == (len(people.table),)
  assert log_prob.dtype == np.float32
  assert np.isfinite(log_prob).all()
  # The order and number of rows do not matter, nor does the index.
  shuffled = people.table.iloc[[7, 3, 20]]
  assert shuffled.isna().to_numpy().any()
  np.testing.assert_allclose(
    fitted.log_prob(shuffled), log_prob[[7, 3, 20]], atol=0.3
  )
  bad = people.table.assign(age=120)
  with pytest.raises(ValueError, match=r"'age', row 1: .*outside \[0, 99\]"):
    fitted.log_prob(bad)


@pytest.mark.core
def test_round_trip_through_a_folder(fitted, saved, people, tmp_path):
  loaded = TabularSynthesizer.load(saved)
  np.testing.assert_array_equal(
    loaded.log_prob(people.table), fitted.log_prob(people.table)
  )
  pd.testing.assert_frame_equal(
    loaded.sample(50, seed=2), fitted.sample(50, seed=2)
  )
  assert str(loaded.privacy_statement()) == str(fitted.privacy_statement())
  assert loaded.schema == fitted.schema
  assert loaded.ledger.epsilon() == fitted.ledger.epsilon()
  # A loaded model has spent its budget and can be saved again.
  with pytest.raises(ValueError, match='budget spent'):
    loaded.fit(people.table)
  with small_table.unexported():
    loaded.save(tmp_path / 'copy')
  copy = TabularSynthesizer.load(tmp_path / 'copy')
  assert copy.ledger.metadata == loaded.ledger.metadata


_WITHOUT_US = """
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
points = np.load(sys.argv[2])
log_prob = model.signatures['log_prob'](x=tf.constant(points))['log_prob']
sample = model.signatures['sample'](
  num_rows=tf.constant(7), seed=tf.constant([1, 2]))['x']
np.savez(sys.argv[3], log_prob=log_prob.numpy(), sample=sample.numpy())
"""


def test_saved_model_needs_no_tfdpflows(fitted, saved, people, tmp_path):
  codes = TableEncoder(people.schema).encode(
    people.schema.validate(people.table)
  )
  points = codes + np.float32(0.5)
  np.save(tmp_path / 'points.npy', points)
  alone.run(
    _WITHOUT_US,
    saved / 'saved_model',
    tmp_path / 'points.npy',
    tmp_path / 'result.npz',
  )
  result = np.load(tmp_path / 'result.npz')
  density = fitted._fitted.distribution
  # Age and income are nearly functions of each other.
  assert density._within is not None
  log_prob = density.distribution.log_prob(points)
  np.testing.assert_allclose(
    result['log_prob'], log_prob + density.log_correction(points), atol=1e-4
  )
  np.testing.assert_allclose(
    result['sample'], density.draw([7], tf.constant([1, 2])), atol=1e-3
  )
  rows = TableEncoder(people.schema).decode(result['sample'])
  people.schema.validate(rows)


@pytest.mark.core
def test_ledger_and_statement(fitted, people):
  ledger = fitted.ledger
  assert 0.99 * 8 < ledger.epsilon() <= 8
  labels = [(e.label, e.count) for e in ledger.entries]
  assert labels[0] == ('marginals', 1)
  # Two rounds for each of five columns.
  assert labels[1:-1] == [
    (f'{what} {number}', 1)
    for number in range(1, 11)
    for what in ('selection', 'marginal')
  ]
  assert labels[-1] == ('DP-SGD', 16)
  statement = fitted.privacy_statement()
  assert statement.epsilon <= 8
  assert 'seeded' in str(statement)
  assert 'Number of rows: 400' in str(statement)
  assert 'Poisson' in str(statement)
  unseeded = TabularSynthesizer(people.schema, **people.budget, **people.quick)
  with pytest.raises(ValueError, match='Nothing was spent'):
    unseeded.privacy_statement()


def test_not_fitted_or_fitted_twice(fitted, people, tmp_path):
  with pytest.raises(ValueError, match='budget spent'):
    fitted.fit(people.table)
  fresh = TabularSynthesizer(people.schema)
  for call in (
    lambda: fresh.sample(1),
    lambda: fresh.log_prob(people.table),
    lambda: fresh.save(tmp_path / 'model'),
  ):
    with pytest.raises(ValueError, match='not fitted yet'):
      call()
  assert not list(tmp_path.iterdir())


def test_probabilities_of_all_rows_sum_to_one():
  fields = [
    Field('a', 'string', enum=('x', 'y', 'z')),
    Field('b', 'boolean', required=True),
    Field('c', 'integer', minimum=1, maximum=4, required=True),
  ]
  rng = np.random.default_rng(1)
  c = rng.integers(1, 5, 500)
  table = pd.DataFrame(
    {'a': np.where(c > 2, 'x', 'z'), 'b': rng.random(500) < c / 5, 'c': c}
  )
  table.loc[::9, 'a'] = None
  synthesizer = TabularSynthesizer(
    TableSchema(fields),
    epsilon=20.0,
    delta=1e-4,
    accountant='rdp',
    seed=2,
    epochs=4,
    hidden_units=(16,),
    expected_batch_size=100,
  )
  with small_table.short():
    synthesizer.fit(table, progress=False)
  every = pd.DataFrame(
    itertools.product(['x', 'y', 'z', None], [False, True], range(1, 5)),
    columns=['a', 'b', 'c'],
  )
  probability = np.exp(synthesizer.log_prob(every).astype(np.float64))
  assert probability.sum() == pytest.approx(1, abs=0.03)
  # And they are those of the samples.
  rows = synthesizer.sample(20_000, seed=0).fillna({'a': '-'})
  share = rows.value_counts(normalize=True)
  keys = every.fillna({'a': '-'}).itertuples(index=False, name=None)
  seen = np.array([share.get(key, 0) for key in keys])
  np.testing.assert_allclose(seen, probability, atol=0.03)


@pytest.mark.parametrize(
  'field',
  [
    Field('age', 'integer', minimum=0, maximum=99, required=True),
    Field('income', 'number', minimum=0, maximum=200),
    Field('city', 'string', enum=('Bonn', 'Köln', 'Trier')),
  ],
  ids=lambda field: field.name,
)
def test_table_of_one_column(field, people):
  synthesizer = TabularSynthesizer(
    TableSchema([field]), epsilon=4.0, delta=1e-4, seed=0
  )
  table = people.table[[field.name]]
  synthesizer.fit(table, progress=False)
  assert [e.label for e in synthesizer.ledger.entries] == ['marginals']
  # Nothing is kept for a training that one column has no use for.
  assert 3.99 < synthesizer.ledger.epsilon() <= 4.0
  assert 'Clipping' not in str(synthesizer.privacy_statement())
  rows = synthesizer.sample(2000, seed=0)
  missing = rows[field.name].isna().mean()
  assert missing == pytest.approx(table[field.name].isna().mean(), abs=0.03)
  assert np.isfinite(synthesizer.log_prob(table)).all()
  if field.type == 'number':
    grid = np.linspace(0, 200, 2001)[:-1] + 0.05
    grid = pd.DataFrame({field.name: grid})
    mass = np.exp(synthesizer.log_prob(grid).astype(np.float64)).sum() * 0.1
    none = synthesizer.log_prob(pd.DataFrame({field.name: [np.nan]}))
    assert mass + np.exp(none[0]) == pytest.approx(1, abs=0.01)


def test_draft_is_refused_or_paid_for(people):
  table = people.table[['age', 'city']]
  draft = draft_schema(table)
  with pytest.raises(ValueError, match="draft: of column 'age', minimum"):
    TabularSynthesizer(draft, **people.budget).fit(table)
  synthesizer = TabularSynthesizer(
    draft,
    **people.budget,
    bounds_epsilon=4.0,
    seed=0,
    **people.tiny,
    adaptive_marginals=1,
  )
  with small_table.short():
    synthesizer.fit(table, progress=False)
  assert not synthesizer.schema.is_draft
  labels = [e.label for e in synthesizer.ledger.entries]
  assert labels[:3] == ['bounds', 'marginals', 'selection 1']
  assert labels[-1] == 'DP-SGD'
  assert synthesizer.ledger.epsilon() <= 8
  synthesizer.schema.validate(synthesizer.sample(100))
  assert 'bounds' in str(synthesizer.privacy_statement())


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'epsilon': 0}, 'epsilon'),
    ({'epsilon': float('nan')}, 'epsilon'),
    ({'epsilon': 'one'}, "epsilon must be a number, not 'one'"),
    ({'delta': 0}, 'delta'),
    ({'delta': 1}, 'delta'),
    ({'bounds_epsilon': 2}, 'bounds_epsilon'),
    ({'accountant': 'pdl'}, 'pld'),
    ({'out_of_range': 'ignore'}, 'out_of_range'),
    ({'epoch': 1}, 'epoch'),
    ({'epochs': 0}, 'epochs'),
    ({'ema_momentum': 1}, 'ema_momentum'),
    ({'hidden_units': ()}, 'hidden_units'),
    ({'hidden_units': (8, 0)}, 'hidden_units'),
    ({'num_blocks': 1.5}, 'num_blocks'),
    ({'num_bins': 1}, 'num_bins'),
  ],
)
def test_bad_arguments_are_refused_at_once(arguments, message, people):
  with pytest.raises(ValueError, match=message):
    TabularSynthesizer(people.schema, **arguments)


def test_a_path_is_no_schema_and_a_list_no_conditions(fitted, people):
  for reads in (TabularSynthesizer, lambda x: read_table('rows.csv', x)):
    with pytest.raises(TypeError, match=r'schema .* str; .*from_json\(path\)'):
      reads('schema.json')
  with pytest.raises(TypeError, match="conditions .* list; .*{'sex': 'f'}"):
    fitted.sample(1, conditions=['age'])


def test_what_cannot_be_planned_writes_nothing(people, tmp_path):
  too_large = TabularSynthesizer(people.schema, expected_batch_size=401)
  with pytest.raises(ValueError, match='expected_batch_size'):
    too_large.fit(people.table, tmp_path / 'work')
  assert not list(tmp_path.iterdir())
  assert too_large.ledger is None


def test_delta_of_one_row_is_refused_or_warned_of(people, monkeypatch):
  def stop(*args, **kwargs):
    raise InterruptedError

  monkeypatch.setattr(fitting, 'split_budget', stop)
  said = r'one over the number of rows 0\.0025'
  budget = {'epsilon': 1.0, 'delta': 1 / 400}
  with pytest.raises(ValueError, match=f'{said}.*--allow_large_delta'):
    TabularSynthesizer(people.schema, **budget).fit(people.table)
  synthesizer = TabularSynthesizer(
    people.schema, **budget, allow_large_delta=True
  )
  with (
    pytest.warns(UserWarning, match=said),
    pytest.raises(InterruptedError),
  ):
    synthesizer.fit(people.table)


def test_columns_at_one_end_are_warned_of():
  """By what is released: how many values were clipped is private."""
  metres = np.random.default_rng(0).normal(1.7, 0.1, 1000)
  table = pd.DataFrame({'cm': metres, 'right': metres, 'zero': 0})
  table.loc[::5, 'cm'] = np.nan
  schema = TableSchema(
    [
      Field('cm', 'number', 100, 250),
      Field('right', 'number', 1, 2.5),
      Field('zero', 'integer', 0, 9),
    ]
  )
  synthesizer = TabularSynthesizer(
    schema, epsilon=4.0, delta=1e-5, accountant='rdp', out_of_range='clip'
  )
  with (
    small_table.untrained(),
    small_table.short(),
    pytest.warns(UserWarning, match='bounds in the unit') as caught,
  ):
    synthesizer.fit(table, progress=False)
  assert [str(w.message)[:12] for w in caught] == ["Column 'cm':"]
  synthesizer.out_of_range = 'error'  # Nothing was clipped then.
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    synthesizer._warn_of_clipped()


def test_columns_that_could_not_be_read_are_warned_of():
  comma = [f'{x:.2f}'.replace('.', ',') for x in np.linspace(1, 99, 1000)]
  table = pd.DataFrame(
    {
      'amount': comma,
      'needed': comma,
      'flag': 'Y',
      'kind': 'a',
      'sure': [*['no'] * 950, *['yes'] * 50],
      'zero': 0,
      'count': 'x',
      'one': 1,
    }
  )
  schema = TableSchema(
    [
      Field('amount', 'number', 0, 100),
      Field('needed', 'number', 0, 100, required=True),
      Field('flag', 'boolean'),
      Field('kind', 'string', enum=('A', 'B'), required=True),
      Field('sure', 'string', enum=('no', 'yes'), required=True),
      Field('zero', 'integer', 0, 9, required=True),
      Field('count', 'integer', 0, 9, required=True),
      Field('one', 'integer', 0, 1, required=True),
    ]
  )
  synthesizer = TabularSynthesizer(
    schema, epsilon=4.0, delta=1e-5, accountant='rdp', out_of_range='clip'
  )
  with (
    small_table.untrained(),
    small_table.short(),
    pytest.warns(UserWarning, match='the notations of the schema') as caught,
  ):
    synthesizer.fit(table, progress=False)
  said = [str(w.message) for w in caught]
  assert [text.split("'")[1] for text in said] == [
    'amount',
    'needed',
    'flag',
    'kind',
    'count',
    'one',
  ]
  whats = [
    'missing',
    'in the middle of the',
    'missing',
    "'A', the first cat",
    'in the middle of the',
    'at the maximum',
  ]
  for text, what in zip(said, whats):
    assert f'are {what}' in text


def test_neighbours_differ_by_one_count_before_noise(people):
  """With the same noise, one row moves one bin of each column by one."""
  encoder = TableEncoder(people.schema)
  codes = encoder.encode(people.schema.validate(people.table))
  randomness = Randomness(seed=5)
  for i, column in enumerate(encoder.columns):
    stds = histograms.noise_stds(encoder.columns, 3.0)[i]
    (edges, counts, _), *_ = histograms._release(
      codes[:, i], column, stds, randomness.numpy('m', column.name), 64
    )
    (edges_less, counts_less, _), *_ = histograms._release(
      codes[1:, i], column, stds, randomness.numpy('m', column.name), 64
    )
    np.testing.assert_array_equal(edges, edges_less)
    difference = np.sort(counts - counts_less)
    np.testing.assert_allclose(difference[:-1], 0, atol=1e-9)
    assert difference[-1] == pytest.approx(1)


@pytest.mark.parametrize(
  'field_type, minimum, maximum, decimals',
  [
    ('number', 0, 1e6, None),
    ('integer', 0, 2**31, None),
    # So many cents that float32 has no number for each.
    ('number', -1e6, 1e6, 2),
  ],
)
def test_a_spike_at_zero_with_a_heavy_tail(
  field_type, minimum, maximum, decimals
):
  rng = np.random.default_rng(0)
  gains = np.where(rng.random(3000) < 0.9, 0, 100 * rng.pareto(1.1, 3000) + 1)
  gains = gains.clip(0, 1e6).round(2)
  if field_type == 'integer':
    gains = np.rint(gains).astype(np.int64)
  table = pd.DataFrame({'gain': gains, 'member': rng.random(3000) < 0.5})
  field = Field(
    *('gain', field_type),
    minimum=minimum,
    maximum=maximum,
    decimals=decimals,
    required=True,
  )
  schema = TableSchema([field, Field('member', 'boolean', required=True)])
  # What is asked of single columns is settled before training.
  with small_table.untrained(), small_table.short():
    fitted = TabularSynthesizer(
      schema,
      epsilon=4.0,
      delta=1e-5,
      accountant='rdp',
      seed=0,
      epochs=1,
      hidden_units=(16,),
      expected_batch_size=100,
    ).fit(table, progress=False)
  rows = fitted.sample(4000, seed=1)
  assert (rows['gain'] == 0).mean() == pytest.approx(0.9, abs=0.05)
  above = rows['gain'][rows['gain'] > 0]
  expected = np.median(gains[gains > 0])
  assert expected / 3 < above.median() < 3 * expected


def test_infinite_log_probabilities_are_told(fitted, people, monkeypatch):
  distribution = type(fitted._fitted.distribution)
  monkeypatch.setattr(
    distribution, 'log_prob', lambda *_: np.array([0.0, -np.inf])
  )
  with pytest.warns(UserWarning, match='1 of 2 rows.*the first is row 2'):
    found = fitted.log_prob(people.table[:2])
  assert found[1] == -np.inf


def test_values_that_are_very_rare_have_a_log_probability():
  """Without visible noise, a value that no row has is next to impossible."""
  rng = np.random.default_rng(0)
  table = pd.DataFrame({'age': rng.integers(17, 80, 2000)})
  table.loc[:40, 'age'] = 90
  table['member'] = table['age'] > 50
  schema = TableSchema(
    [
      Field('age', 'integer', minimum=17, maximum=90, required=True),
      Field('member', 'boolean', required=True),
    ]
  )
  fitted = TabularSynthesizer(
    schema,
    epsilon=1e6,
    delta=1e-5,
    seed=1,
    accountant='rdp',
    epochs=1,
    hidden_units=(16,),
    expected_batch_size=100,
  ).fit(table, progress=False)
  rare = pd.DataFrame({'age': [89, 85], 'member': [True, False]})
  assert np.isfinite(fitted.log_prob(rare)).all()
