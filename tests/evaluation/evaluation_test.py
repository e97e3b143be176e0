import numpy as np
import pandas as pd
import pytest

from tfdpflows import evaluation
from tfdpflows.evaluation import association, discretization
from tfdpflows.evaluation import scores as model_scores
from tfdpflows.tabular.field import Field
from tfdpflows.tabular.schema import TableSchema

SCHEMA = TableSchema(
  [
    Field('age', 'integer', 0, 99, required=True),
    Field('gain', 'number', 0.0, 1e5, required=True),
    Field('rate', 'number', enum=(0.0, 25.0, 95.0), required=True),
    Field('city', 'string', enum=('b', 'a', 'c')),
    Field('member', 'boolean', required=True),
  ]
)


def table(n=2000, seed=0):
  rng = np.random.default_rng(seed)
  age = rng.integers(0, 100, n)
  frame = pd.DataFrame(
    {
      'age': age,
      'gain': np.where(rng.random(n) < 0.9, 0, rng.uniform(1, 1e5, n)),
      'rate': rng.choice([0.0, 25.0, 95.0], n),
      'city': np.where(age < 30, 'a', rng.choice(['b', 'c'], n)),
      'member': age + rng.normal(0, 10, n) > 50,
    }
  )
  frame.loc[rng.random(n) < 0.1, 'city'] = None
  return SCHEMA.validate(frame)


def shuffled(frame, seed=1):
  rng = np.random.default_rng(seed)
  return frame.apply(lambda c: c.iloc[rng.permutation(len(c))].to_numpy())


def test_a_path_is_no_schema():
  with pytest.raises(TypeError, match=r'schema is of type str; .*from_json'):
    evaluation.compare(table(5), table(5), 'schema.json')


class TestCells:
  def test_atoms_lie_inside_their_cells(self):
    values = np.concatenate([np.zeros(900), np.linspace(10, 20, 100)])
    edges = discretization.bin_edges(values, 8)
    assert len(edges) <= 7
    assert edges[0] == pytest.approx(5)
    assert not np.isin(edges, values).any()

  def test_cells_hold_similar_mass(self):
    values = np.random.default_rng(0).lognormal(size=10_000)
    counts = np.bincount(
      np.searchsorted(discretization.bin_edges(values, 16), values)
    )
    assert len(counts) == 16
    assert counts.min() > 600

  @pytest.mark.parametrize('values', [[], [3.0], [np.nan, 3.0, 3.0]])
  def test_few_values_make_one_cell(self, values):
    assert len(discretization.bin_edges(values, 8)) == 0

  def test_codes_cover_missing_values_and_undeclared_ones(self):
    field = Field('x', 'string', enum=('nan', 'a'))
    codes = discretization.category_codes(
      pd.Series(['a', 'nan', None, 'zz']), field
    )
    assert codes.tolist() == [1, 0, -1, -1]

  def test_booleans_of_every_dtype(self):
    field = Field('x', 'boolean')
    for column in (
      pd.Series([True, False]),
      pd.array([True, False], dtype='boolean'),
      pd.Series(['true', 'False']),
      pd.Series([1, 0]),
    ):
      codes = discretization.category_codes(pd.Series(column), field)
      assert codes.tolist() == [1, 0]


class TestCompare:
  def test_equal_tables_have_no_distance(self):
    real = table()
    comparison = evaluation.compare(real, real, SCHEMA)
    assert np.allclose(comparison.marginals['total_variation'], 0)
    assert np.allclose(comparison.pairs, 0)
    assert comparison.summary()['association_error'] == 0

  def test_by_chance_is_what_two_samples_differ_by(self):
    pairs = [
      evaluation.compare(table(seed=s), table(4000, s + 99), SCHEMA).marginals
      for s in range(8)
    ]
    mean = sum(pair['total_variation'] for pair in pairs) / len(pairs)
    expected = sum(pair['by_chance'] for pair in pairs) / len(pairs)
    assert np.all(np.abs(mean / expected - 1) < 0.5)
    assert (mean / expected).mean() == pytest.approx(1, abs=0.15)

  def test_shuffling_columns_leaves_marginals_and_breaks_pairs(self):
    real = table()
    comparison = evaluation.compare(real, shuffled(real), SCHEMA)
    assert np.allclose(comparison.marginals['total_variation'], 0)
    assert comparison.pairs.loc['age', 'city'] > 0.2
    difference = comparison.association_difference()
    assert difference.loc['age', 'member'] < -0.5
    assert abs(difference.loc['age', 'rate']) < 0.1

  def test_wasserstein_is_a_share_of_the_declared_range(self):
    real = table()
    moved = real.assign(age=(real['age'] + 10).clip(0, 99))
    distance = evaluation.compare(real, moved, SCHEMA).marginals
    expected = (moved['age'] - real['age']).mean() / 99
    assert distance.loc['age', 'wasserstein'] == pytest.approx(expected)
    assert distance.loc['rate', 'wasserstein'] == 0
    assert np.isnan(distance.loc['city', 'wasserstein'])

  def test_missing_values_are_a_difference(self):
    real = table()
    filled = real.assign(city=real['city'].fillna('a'))
    row = evaluation.compare(real, filled, SCHEMA).marginals.loc['city']
    share = real['city'].isna().mean()
    assert row['total_variation'] == pytest.approx(share)
    assert row['missing_real'] == pytest.approx(share)
    assert row['missing_synthetic'] == 0

  def test_numbers_that_are_all_missing(self):
    schema = TableSchema([Field('x', 'number', 0, 1)])
    real = pd.DataFrame({'x': [0.2, 0.4]})
    empty = pd.DataFrame({'x': [np.nan, np.nan]})
    row = evaluation.compare(real, empty, schema).marginals.loc['x']
    assert row['total_variation'] == 1
    assert np.isnan(row['wasserstein'])

  def test_errors_name_the_column_and_the_table(self):
    real = table(50)
    with pytest.raises(ValueError, match="'age' of the schema is not in the s"):
      evaluation.compare(real, real.drop(columns='age'), SCHEMA)
    with pytest.raises(ValueError, match='no rows in the real table'):
      evaluation.compare(real[:0], real, SCHEMA)


class TestAssociation:
  def test_matrix_is_symmetric_with_ones(self):
    matrix = association.association_matrix(table(), SCHEMA)
    assert list(matrix.index) == list(SCHEMA.names)
    assert np.allclose(matrix, matrix.T)
    assert np.allclose(np.diag(matrix), 1)
    assert matrix.to_numpy().min() >= -1
    assert matrix.to_numpy().max() <= 1

  def test_pearson_agrees_with_numpy(self):
    frame = table()
    matrix = association.association_matrix(frame, SCHEMA)
    expected = np.corrcoef(frame['age'], frame['gain'])[0, 1]
    assert matrix.loc['age', 'gain'] == pytest.approx(expected)

  def test_bias_of_independent_categories_is_removed(self):
    rng = np.random.default_rng(0)
    names = tuple(map(str, range(30)))
    schema = TableSchema(
      [
        Field('a', 'string', enum=names),
        Field('b', 'string', enum=names),
        Field('x', 'number', 0, 1),
      ]
    )
    frame = pd.DataFrame(
      {
        'a': rng.choice(names, 1000),
        'b': rng.choice(names, 1000),
        'x': rng.random(1000),
      }
    )
    matrix = association.association_matrix(frame, schema)
    assert matrix.loc['a', 'b'] < 0.08
    assert matrix.loc['a', 'x'] < 0.1
    copied = association.association_matrix(frame.assign(b=frame['a']), schema)
    assert copied.loc['a', 'b'] > 0.99

  def test_constant_columns_have_no_association(self):
    frame = table().assign(age=3, member=True)
    matrix = association.association_matrix(frame, SCHEMA)
    off = matrix.drop(columns='age').loc['age']
    assert np.allclose(off, 0)
    assert np.allclose(matrix.drop(columns='member').loc['member'], 0)


class TestTrainOnSynthetic:
  def test_real_rows_teach_and_shuffled_rows_do_not(self):
    train, holdout = table(), table(seed=5)
    scores = evaluation.train_on_synthetic(
      holdout,
      shuffled(train),
      SCHEMA,
      'member',
      real_train=train,
      classifiers=['logistic regression', 'gradient boosting'],
    )
    assert list(scores.index) == ['logistic regression', 'gradient boosting']
    assert scores['real_auroc'].min() > 0.95
    assert scores['auroc'].max() < 0.7
    assert scores['real_macro_f1'].min() > 0.85

  @pytest.mark.parametrize('low', [0, 10**9, 10**15, 1e25])
  def test_numbers_far_from_zero_are_told_apart(self, low):
    high = low + 19 if low < 1e25 else 2 * low
    kind = 'integer' if low < 1e25 else 'number'
    fields = [Field('x', kind, low, high), Field('above', 'boolean')]
    x = np.tile(np.linspace(low, high, 20), 20)
    frame = pd.DataFrame({'x': x, 'above': x > np.median(x)})
    scores = evaluation.train_on_synthetic(
      frame, frame, TableSchema(fields), 'above'
    )
    assert scores['auroc'].min() > 0.99

  def test_agrees_with_sklearn_on_a_clean_table(self):
    frame = table()
    columns = ['macro_f1', 'auroc', 'average_precision']
    scores = evaluation.train_on_synthetic(frame, frame, SCHEMA, 'city')
    assert list(scores.columns) == columns
    assert scores.to_numpy().min() > 0
    assert scores.to_numpy().max() <= 1

  def test_many_features_are_learned_from_few_rows(self, monkeypatch):
    train, holdout = table(600), table(300, seed=5)
    monkeypatch.setattr(model_scores, '_LARGE', 10)
    monkeypatch.setattr(model_scores, '_LARGE_TRAIN', 400)
    sizes, classifier = [], model_scores._classifier

    def look(name, seed, large):
      found = classifier(name, seed, large)
      fit = found.fit
      found.fit = lambda x, y: sizes.append(len(x)) or fit(x, y)
      return found

    monkeypatch.setattr(model_scores, '_classifier', look)
    scores = evaluation.train_on_synthetic(
      holdout, train, SCHEMA, 'city', real_train=train
    )
    assert scores.attrs['few_rows'] == 400
    assert sizes == [400] * 6
    # Two classes are as much work as one.
    monkeypatch.setattr(model_scores, '_LARGE', 100)
    scores = evaluation.train_on_synthetic(holdout, train, SCHEMA, 'member')
    assert scores.attrs['few_rows'] is None

  def test_what_is_learned_from_the_same_rows_is_not_learned_again(self):
    train, holdout, other = table(300), table(200, seed=5), table(200, seed=6)
    fits = {}
    for half in (holdout, other):
      known = dict(fits)
      found = model_scores.score(
        half,
        train,
        SCHEMA,
        'city',
        real_train=other,
        classifiers='quick',
        seed=3,
        fits=fits,
      )
      expected = evaluation.train_on_synthetic(
        half, train, SCHEMA, 'city', real_train=other, seed=3
      )
      pd.testing.assert_frame_equal(found, expected)
      assert len(fits) == 3
      assert all(fits[key] is known[key] for key in known)

  def test_all_nine_classifiers_run_and_repeat(self):
    frame = table(300)
    first, second = (
      evaluation.train_on_synthetic(
        frame, frame, SCHEMA, 'member', classifiers='all'
      )
      for _ in range(2)
    )
    assert len(first) == 9
    pd.testing.assert_frame_equal(first, second)

  def test_one_synthetic_class_scores_as_a_constant_guess(self):
    frame = table()
    scores = evaluation.train_on_synthetic(
      frame, frame.assign(member=True), SCHEMA, 'member'
    )
    labels, _ = model_scores.target_labels(SCHEMA, 'member', frame)
    guess = model_scores.constant_scores(labels[0])
    assert scores['auroc'].tolist() == [0.5] * 3
    assert scores['macro_f1'].iloc[0] == pytest.approx(guess['macro_f1'])

  def test_limits_are_kept(self):
    frame = table()
    scores = evaluation.train_on_synthetic(
      frame,
      frame,
      SCHEMA,
      'member',
      classifiers='decision tree',
      max_train=100,
      max_test=50,
    )
    assert len(scores) == 1

  def test_the_cut_of_a_target_is_told_in_full(self):
    fields = [
      Field('day', 'date', '2020-01-01', '2020-12-31'),
      Field('wage', 'integer', 0, 10**8),
    ]
    days, wages = ['2020-02-01', '2020-05-01'], [12_345_678, 87_654_321]
    frame = pd.DataFrame({'day': days, 'wage': wages})
    schema = TableSchema(fields)
    frame = schema.validate(frame)
    for name, value in (('day', '2020-02-01'), ('wage', '12345678')):
      _, words = model_scores.target_labels(schema, name, frame)
      assert words == f'whether {name} is above {value}'

  def test_targets(self):
    frame = table()
    labels, words = model_scores.target_labels(SCHEMA, 'age', frame)
    assert labels[0].mean() == pytest.approx(0.5, abs=0.02)
    assert 'age is above' in words
    labels, _ = model_scores.target_labels(SCHEMA, 'rate', frame)
    assert set(labels[0]) == {0, 1, 2}
    labels, _ = model_scores.target_labels(SCHEMA, 'city', frame)
    assert set(labels[0]) == {-1, 0, 1, 2}

  def test_errors_say_what_to_do(self):
    frame = table(100)
    with pytest.raises(ValueError, match="'nope' is not a column"):
      evaluation.train_on_synthetic(frame, frame, SCHEMA, 'nope')
    with pytest.raises(ValueError, match='single class'):
      evaluation.train_on_synthetic(
        frame.assign(member=False), frame, SCHEMA, 'member'
      )
    with pytest.raises(ValueError, match='is constant in the real'):
      model_scores.target_labels(SCHEMA, 'age', frame.assign(age=7))
    with pytest.raises(ValueError, match="Give 'quick', 'all'"):
      evaluation.train_on_synthetic(
        frame, frame, SCHEMA, 'member', classifiers='magic'
      )
