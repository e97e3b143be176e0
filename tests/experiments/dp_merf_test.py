import dp_accounting
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baselines import dp_merf, mean_embedding
from tfdpflows import accounting
from tfdpflows.accounting import BudgetExceededError
from tfdpflows.randomness import Randomness
from tfdpflows.tabular import Field, TableSchema
from tfdpflows.tabular.drafting import draft_schema

SCHEMA = TableSchema(
  [
    Field('age', 'integer', 0, 99, required=True),
    Field('gain', 'number', 0.0, 1e5),
    Field('rate', 'number', enum=(0.0, 25.0, 95.0), required=True),
    Field('city', 'string', enum=('b', 'a', 'c')),
    Field('member', 'boolean', required=True),
    Field('label', 'string', enum=('no', 'yes'), required=True),
  ]
)
SHARE = 0.2


def table(n=600, seed=0):
  rng = np.random.default_rng(seed)
  yes = rng.random(n) < 0.3
  frame = pd.DataFrame(
    {
      'age': np.where(yes, rng.integers(60, 80, n), rng.integers(10, 40, n)),
      'gain': np.where(rng.random(n) < 0.2, np.nan, rng.uniform(0, 1e5, n)),
      'rate': rng.choice([0.0, 25.0, 95.0], n),
      'city': rng.choice(['a', 'b', 'c'], n),
      'member': yes ^ (rng.random(n) < 0.1),
      'label': np.where(yes, 'yes', 'no'),
    }
  )
  frame.loc[rng.random(n) < 0.1, 'city'] = None
  return SCHEMA.validate(frame)


def feature_map(blocks, num_features=40):
  rng = np.random.default_rng(0)
  return mean_embedding.FeatureMap.draw(blocks, num_features, None, rng)


def release(frame, noise_multiplier, blocks=None):
  blocks = blocks or mean_embedding.Blocks.of(SCHEMA, 'label')
  return mean_embedding.noisy_embedding(
    feature_map(blocks),
    *blocks.encode(frame),
    noise_multiplier,
    count_share=SHARE,
    ledger=accounting.PrivacyLedger(),
    randomness=Randomness(seed=3),
  )


class TestSensitivity:
  @settings(max_examples=100, deadline=None)
  @given(
    age=st.floats(width=64),
    gain=st.floats(width=64),
    city=st.sampled_from(['a', 'b', 'c', None, 'elsewhere']),
    label=st.sampled_from(['no', 'yes']),
    target=st.sampled_from(['label', 'city', 'member', 'rate']),
  )
  def test_a_row_moves_the_release_by_one_over_the_multiplier(
    self, age, gain, city, label, target
  ):
    # Rows that no schema allows must be bounded too.
    frame = table(20)
    row = frame.iloc[:1].astype(object).assign(age=age, gain=gain)
    row = row.assign(city=city, label=label)
    more = pd.concat([frame.astype(object), row], ignore_index=True)
    blocks = mean_embedding.Blocks.of(SCHEMA, target)
    sigma = 2.5
    (counts, sums), (more_counts, more_sums) = (
      release(rows, sigma, blocks) for rows in (frame, more)
    )
    # In units of the noise of each part; the noise itself is the same.
    moved = np.hypot(
      np.linalg.norm(more_counts - counts) * np.sqrt(SHARE),
      np.linalg.norm(more_sums - sums) * np.sqrt(1 - SHARE),
    )
    assert moved <= 1 + 1e-9
    # The bound is reached: it is no looser than it must be.
    assert moved >= 1 - 1e-6

  @pytest.mark.parametrize(
    'names', [('age', 'label'), ('city', 'member', 'label')]
  )
  def test_features_of_one_kind_have_norm_one(self, names):
    schema = TableSchema([SCHEMA[name] for name in names])
    blocks = mean_embedding.Blocks.of(schema, 'label')
    features = feature_map(blocks)
    numbers, codes, _ = blocks.encode(table()[list(names)])
    norms = np.linalg.norm(features(numbers, codes), axis=1)
    assert norms == pytest.approx(1)
    assert features(numbers, codes).shape[1] == features.size

  def test_noise_has_the_stated_size(self):
    blocks = mean_embedding.Blocks.of(SCHEMA, 'label')
    exact = mean_embedding.sums_by_class(
      feature_map(blocks), *blocks.encode(table())
    )
    noise = [a - b for a, b in zip(release(table(), 5.0), exact)]
    assert np.std(noise[1]) == pytest.approx(5 / np.sqrt(1 - SHARE), rel=0.2)
    assert np.abs(noise[0]).max() < 5 * 5 / np.sqrt(SHARE)
    assert np.abs(noise[0]).min() > 0

  def test_charges_before_it_looks(self):
    blocks = mean_embedding.Blocks.of(SCHEMA, 'label')
    ledger = accounting.PrivacyLedger(
      budget=accounting.PrivacyBudget(epsilon=0.1, delta=1e-5)
    )
    with pytest.raises(BudgetExceededError):
      mean_embedding.noisy_embedding(
        feature_map(blocks),
        *blocks.encode(table()),
        1.0,
        count_share=SHARE,
        ledger=ledger,
        randomness=Randomness(seed=0),
      )
    assert ledger.epsilon() == 0


class TestDPMerf:
  @pytest.fixture(scope='class')
  def fitted(self):
    model = dp_merf.DPMerf(
      SCHEMA, 50.0, 1e-5, target='label', seed=0, steps=300, num_features=200
    )
    return model.fit(table(4000))

  def test_learns_what_depends_on_the_label(self, fitted):
    rows = fitted.sample(3000, seed=0)
    assert (rows['label'] == 'yes').mean() == pytest.approx(0.3, abs=0.04)
    yes, no = rows[rows['label'] == 'yes'], rows[rows['label'] == 'no']
    assert yes['age'].mean() == pytest.approx(69.5, abs=8)
    assert no['age'].mean() == pytest.approx(24.5, abs=8)
    assert yes['member'].mean() == pytest.approx(0.9, abs=0.1)
    assert no['member'].mean() == pytest.approx(0.1, abs=0.1)
    assert rows['gain'].isna().mean() == pytest.approx(0.2, abs=0.08)
    assert rows['city'].isna().mean() == pytest.approx(0.1, abs=0.06)

  def test_rows_have_the_types_of_the_schema(self, fitted):
    rows = fitted.sample(50)
    assert list(rows.columns) == list(SCHEMA.names)
    assert (rows.dtypes == table(10).dtypes).all()
    assert len(fitted.sample(0)) == 0

  def test_states_what_it_spent(self, fitted):
    statement = fitted.privacy_statement().to_dict()
    assert 49 < fitted.ledger.epsilon() <= 50
    assert 'every row is used' in statement['sampling']
    (entry,) = fitted.ledger.entries
    assert isinstance(entry.event, dp_accounting.GaussianDpEvent)
    assert fitted.ledger.seeded

  def test_is_fitted_once(self, fitted):
    with pytest.raises(ValueError, match='is fitted, its budget spent'):
      fitted.fit(table())

  def test_an_integer_target(self):
    schema = TableSchema(
      [
        Field('x', 'number', 0.0, 1.0, required=True),
        Field('y', 'integer', enum=(0, 1)),
      ]
    )
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
      {'x': rng.random(200), 'y': pd.array(rng.integers(0, 2, 200), 'Int64')}
    )
    frame.loc[:9, 'y'] = pd.NA
    model = dp_merf.DPMerf(schema, 20.0, 1e-3, target='y', seed=0, steps=3)
    rows = model.fit(frame).sample(400, seed=1)
    assert rows['y'].dropna().isin([0, 1]).all()
    assert 0 < rows['y'].isna().sum() < 100

  @pytest.mark.parametrize(
    'arguments, message',
    [
      ({'target': 'nope'}, "target 'nope' is not a column"),
      ({'target': 'age'}, "target 'age' is a range of numbers"),
      ({'num_features': 7}, 'num_features is 7'),
      ({'lengthscale': 0.0}, 'lengthscale is 0.0'),
      ({'count_share': 1.0}, 'count_share is 1.0'),
      ({'steps': 0}, 'steps is 0'),
    ],
  )
  def test_bad_arguments(self, arguments, message):
    with pytest.raises(ValueError, match=message):
      dp_merf.DPMerf(SCHEMA, **{'target': 'label', **arguments})

  def test_refuses_drafts_and_unfitted_use(self):
    with pytest.raises(ValueError, match='schema is a draft'):
      dp_merf.DPMerf(draft_schema(table()), target='label')
    model = dp_merf.DPMerf(SCHEMA, target='label')
    with pytest.raises(ValueError, match='not fitted yet'):
      model.sample(3)
    with pytest.raises(ValueError, match='Nothing was spent'):
      model.privacy_statement()
    with pytest.raises(ValueError, match='only column'):
      dp_merf.DPMerf(TableSchema([SCHEMA['label']]), target='label')
