"""Scores of models trained on synthetic rows and tested on real ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from tfdpflows import progress as progress_lib
from tfdpflows.evaluation import discretization
from tfdpflows.evaluation.association import require_columns
from tfdpflows.tabular.schema import TableSchema

_MAX_CLASSES = 20
# So many rows are learned from, by default.
MAX_TRAIN = 50_000
_SMALL = 4_000_000
# Features times classes, beyond which classifiers take many minutes: they then
# learn from fewer rows, and boosting stops early.
_LARGE, _LARGE_TRAIN = 2500, 5000
# Squares of larger numbers, which scaling takes, are infinite in float32; and
# where they stand among others, trees take no larger ones.
_MOST_FLOAT32, _MOST = 1e18, 1e30
_METRICS = ('macro_f1', 'auroc', 'average_precision')
QUICK_CLASSIFIERS = 'logistic regression', 'random forest', 'gradient boosting'
ALL_CLASSIFIERS = (
  *QUICK_CLASSIFIERS,
  'decision tree',
  'AdaBoost',
  'bagging',
  'naive Bayes',
  'linear discriminant',
  'neural network',
)


def train_on_synthetic(
  real_holdout: pd.DataFrame,
  synthetic: pd.DataFrame,
  schema: TableSchema,
  target: str,
  *,
  real_train: pd.DataFrame | None = None,
  classifiers: str | Sequence[str] = 'quick',
  max_train: int = MAX_TRAIN,
  max_test: int = 20_000,
  seed: int = 0,
) -> pd.DataFrame:
  """Trains classifiers on synthetic rows and scores them on real ones.

  A numeric target with more than 20 values is replaced by whether the value is
  above the cut that halves the real rows most evenly (`target_labels`).

  With more than 2,500 features times classes, the features being numbers and
  categories one by one, classifiers learn from 5,000 rows at most, real and
  synthetic ones alike, and gradient boosting has coarser bins and stops early:
  both scores are somewhat lower, and comparable.

  Args:
    real_holdout: DataFrame of real rows to score on; rows whose target is
      missing are left out.
    synthetic: DataFrame of synthetic rows to train on.
    schema: the `TableSchema` of both.
    target: name of the column to predict from all others.
    real_train: optional DataFrame of other real rows: the same classifiers are
      also trained on them, for comparison.
    classifiers: 'quick' (3), 'all' (9), or a sequence of names out of
      `ALL_CLASSIFIERS`.
    max_train: largest number of rows to train on, drawn at random.
    max_test: largest number of rows to score on, drawn at random.
    seed: seed of the draws and of the classifiers.

  Returns:
    DataFrame with one row per classifier and the columns `macro_f1`, `auroc`
    and `average_precision`; with `real_train` also `real_macro_f1`,
    `real_auroc` and `real_average_precision`. For two classes, the average
    precision is that of the class which is rarer in `real_holdout`; for more,
    both areas are means over the classes, one against the rest. Its
    `attrs['few_rows']` is 5,000 where that is how many rows are learned from,
    else `None`.

  Raises:
    ValueError: if `target` is not in the schema, cannot be a class label, or
      `real_holdout` has rows of one class only.

  #### Example

  >>> import numpy as np, pandas as pd
  >>> from tfdpflows.tabular import TableSchema
  >>> schema = TableSchema.from_dict({'fields': [
  ...     {'name': 'age', 'type': 'integer',
  ...      'constraints': {'minimum': 0, 'maximum': 99, 'required': True}},
  ...     {'name': 'adult', 'type': 'boolean',
  ...      'constraints': {'required': True}}]})
  >>> table = pd.DataFrame({'age': np.arange(100) % 60})
  >>> table['adult'] = table['age'] >= 18
  >>> scores = train_on_synthetic(table, table, schema, 'adult',
  ...                             classifiers=['decision tree'])
  >>> scores.round(2).to_dict('index')['decision tree']['auroc']
  1.0
  """
  return score(
    real_holdout,
    synthetic,
    schema,
    target,
    real_train=real_train,
    classifiers=classifiers,
    max_train=max_train,
    max_test=max_test,
    seed=seed,
    fits={},
  )


def score(
  real_holdout: pd.DataFrame,
  synthetic: pd.DataFrame,
  schema: TableSchema,
  target: str,
  real_train: pd.DataFrame | None,
  classifiers: str | Sequence[str],
  max_train: int = MAX_TRAIN,
  max_test: int = 20_000,
  *,
  seed: int,
  fits: dict,
  progress: bool = False,
) -> pd.DataFrame:
  """Does what `train_on_synthetic` does, and keeps what it learned.

  `fits` is what was learned from synthetic rows, to be added to: from the same
  rows nothing is learned again. `progress` says whether to show it.
  """
  names = _names(classifiers)
  tables = [real_holdout, synthetic]
  if real_train is not None:
    tables.append(real_train)
  for table in tables:
    require_columns(table, schema, 'one of the tables')
  schema, *tables = discretization.numeric(schema, *tables)
  labels, _ = target_labels(schema, target, *tables)
  rng = np.random.default_rng(seed)
  limits = [max_test] + [max_train] * (len(tables) - 1)
  (features, truth), *trainings = (
    _drawn(table, schema, target, label, label >= 0, limit, rng)
    for table, label, limit in zip(tables, labels, limits)
  )
  if len(np.unique(truth)) < 2:
    raise ValueError(
      f'The real rows have a single class of {target!r}; scores need at least '
      'two. Choose another target column, or more real rows.'
    )
  classes = max(int(y.max(initial=0)) for _, y in trainings) + 1
  large = features.shape[1] * (classes if classes > 2 else 1) > _LARGE
  if large:
    trainings = [_fewer(x, y, rng) for x, y in trainings]
  scores = pd.DataFrame(index=pd.Index(names, name='classifier'))
  total = len(names) * len(trainings)
  with progress_lib.bar('classifiers', total, progress) as shown:
    for prefix, (x, y) in zip(('', 'real_'), trainings):
      for name in names:
        # Of real rows no second score is asked for.
        known = {} if prefix else fits
        values = _score(name, x, y, features, truth, seed, large, known)
        scores.loc[name, [prefix + metric for metric in _METRICS]] = values
        shown.update()
  scores.attrs['few_rows'] = _LARGE_TRAIN if large else None
  return scores


def regress_on_synthetic(
  real_holdout: pd.DataFrame,
  synthetic: pd.DataFrame,
  schema: TableSchema,
  target: str,
  *,
  max_train: int = MAX_TRAIN,
  max_test: int = 20_000,
  seed: int = 0,
) -> pd.DataFrame:
  """Trains regressors on synthetic rows and scores them on real ones.

  Args:
    real_holdout: DataFrame of real rows to score on; rows whose target is
      missing are left out.
    synthetic: DataFrame of synthetic rows to train on.
    schema: the `TableSchema` of both.
    target: name of the numeric column to predict from all others.
    max_train: largest number of rows to train on, drawn at random.
    max_test: largest number of rows to score on, drawn at random.
    seed: seed of the draws and of the regressors.

  Returns:
    DataFrame with the rows 'ridge regression', 'random forest' and 'gradient
    boosting' and the columns `r2`, the explained share of the variance, and
    `mae`, the mean absolute error in units of the column.

  Raises:
    ValueError: if `target` is not a numeric field, or a table has fewer than
      two rows with a value of it.

  #### Example

  >>> import numpy as np, pandas as pd
  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([Field('x', 'number', 0., 1., required=True),
  ...                       Field('y', 'number', 0., 2., required=True)])
  >>> x = np.linspace(0, 1, 50)
  >>> table = pd.DataFrame({'x': x, 'y': 2 * x})
  >>> scores = regress_on_synthetic(table, table, schema, 'y')
  >>> bool(scores.loc['ridge regression', 'r2'] > .95)
  True
  """
  fields = {f.name: discretization.numeric_field(f) for f in schema.fields}
  if target not in fields or not fields[target].is_numeric:
    numeric = [f.name for f in fields.values() if f.is_numeric]
    raise ValueError(
      f'The target {target!r} is not a numeric column of the schema. Those '
      f'are: {", ".join(numeric) or "none"}.'
    )
  tables, names = (real_holdout, synthetic), ('the real', 'the synthetic')
  for table, what in zip(tables, names):
    require_columns(table, schema, f'{what} table')
  schema, *tables = discretization.numeric(schema, *tables)
  rng = np.random.default_rng(seed)
  kept = []
  for table, limit, what in zip(tables, (max_test, max_train), names):
    y = discretization.numbers(table[target])
    known = np.isfinite(y)
    if known.sum() < 2:
      raise ValueError(
        f'Column {target!r} has {known.sum()} values in {what} table; scores '
        'need two.'
      )
    kept.append(_drawn(table, schema, target, y, known, limit, rng))
  (test, truth), (x, y) = kept
  from sklearn import (  # noqa: PLC0415 (slow to import)
    ensemble,
    linear_model,
    metrics,
    pipeline,
    preprocessing,
  )

  regressors = {
    'ridge regression': linear_model.Ridge(),
    'random forest': ensemble.RandomForestRegressor(
      50, max_features=1 / 3, min_samples_leaf=5, random_state=seed
    ),
    'gradient boosting': ensemble.HistGradientBoostingRegressor(
      random_state=seed
    ),
  }
  scores = pd.DataFrame(
    index=pd.Index(regressors, name='regressor'), columns=['r2', 'mae']
  )
  for name, regressor in regressors.items():
    model = pipeline.make_pipeline(preprocessing.StandardScaler(), regressor)
    with warnings.catch_warnings():
      # Collinear columns, as one-hot ones are, are fitted as they are.
      warnings.simplefilter('ignore')
      predicted = model.fit(x, y).predict(test)
    scores.loc[name, 'r2'] = metrics.r2_score(truth, predicted)
    scores.loc[name, 'mae'] = metrics.mean_absolute_error(truth, predicted)
  return scores.astype(float)


def target_labels(
  schema: TableSchema, target: str, *tables: pd.DataFrame
) -> tuple[list[np.ndarray], str]:
  """Turns the target column of tables into class labels.

  A numeric column with many values is cut at one value, by the first table.

  Returns:
    `(labels, description)`: one int64 array `[n]` per table, -1 where the
    target is missing, and a description of what is predicted.

  Raises:
    ValueError: if `target` is not a field, or has too few or too many classes.
  """
  fields = {field.name: field for field in schema.fields}
  if target not in fields:
    raise ValueError(
      f'The target {target!r} is not a column of the schema. Its columns are: '
      f'{", ".join(fields)}.'
    )
  schema, *tables = discretization.numeric(schema, *tables)
  field = schema[target]
  columns = [table[target] for table in tables]
  if not field.is_numeric:
    size = len(discretization.declared_values(field))
    if not 2 <= size <= _MAX_CLASSES:
      raise ValueError(
        f'The target {target!r} has {size} categories; scores take 2 to '
        f'{_MAX_CLASSES}. Choose another target column.'
      )
    labels = [
      discretization.category_codes(column, field) for column in columns
    ]
    return labels, f'the category of {target}'
  values = [discretization.numbers(column) for column in columns]
  declared = discretization.declared_values(field)
  few = not declared and field.maximum - field.minimum < _MAX_CLASSES
  if few and field.type == 'integer':
    declared = tuple(range(field.minimum, field.maximum + 1))
  if 2 <= len(declared) <= _MAX_CLASSES:
    edges = discretization.bin_edges(declared, len(declared))
    description = f'the value of {target}'
  else:
    distinct, counts = np.unique(
      values[0][np.isfinite(values[0])], return_counts=True
    )
    if len(distinct) < 2:
      raise ValueError(
        f'The target {target!r} is constant in the real rows; there is nothing '
        'to predict. Choose another target column.'
      )
    share = np.cumsum(counts)[:-1] / counts.sum()
    cut = int(np.argmin(np.abs(share - 0.5)))
    edges = distinct[cut : cut + 2].mean(keepdims=True)
    shown = f'{distinct[cut]:.15g}'
    if fields[target].is_temporal:
      shown = fields[target].scale.text(int(distinct[cut]))
    description = f'whether {target} is above {shown}'
  labels = [
    np.where(np.isnan(v), -1, np.searchsorted(edges, v)) for v in values
  ]
  return labels, description


def constant_scores(truth: np.ndarray) -> dict[str, float]:
  """Returns the scores of always guessing the most frequent class.

  Args:
    truth: labels `[n]`, integers; negative ones are ignored.
  """
  truth = np.asarray(truth)
  shares = np.bincount(truth[truth >= 0]) / max((truth >= 0).sum(), 1)
  shares = shares[shares > 0]
  top = shares.max()
  precision = shares.min() if len(shares) == 2 else shares.mean()
  f1 = 2 * top / (1 + top) / len(shares)
  return dict(zip(_METRICS, (float(f1), 0.5, float(precision))))


def _names(classifiers):
  if isinstance(classifiers, str):
    groups = {'quick': QUICK_CLASSIFIERS, 'all': ALL_CLASSIFIERS}
    classifiers = groups.get(classifiers, (classifiers,))
  unknown = [name for name in classifiers if name not in ALL_CLASSIFIERS]
  if unknown:
    raise ValueError(
      f"Unknown classifiers {unknown}. Give 'quick', 'all' or some of: "
      f'{", ".join(ALL_CLASSIFIERS)}.'
    )
  return list(classifiers)


def _fewer(x, y, rng):
  """Returns as many rows as classifiers of many features take."""
  if len(y) <= _LARGE_TRAIN:
    return x, y
  rows = np.sort(rng.choice(len(y), _LARGE_TRAIN, replace=False))
  return x[rows], y[rows]


def _classifier(name, seed, large=False):
  from sklearn import (  # noqa: PLC0415 (slow to import)
    discriminant_analysis,
    ensemble,
    linear_model,
    naive_bayes,
    neural_network,
    pipeline,
    preprocessing,
    tree,
  )

  few = {
    'max_iter': 25,
    'learning_rate': 0.2,
    'max_bins': 32,
    'max_leaf_nodes': 15,
    'early_stopping': True,
  }
  make = {
    'logistic regression': lambda: linear_model.LogisticRegression(
      max_iter=100 if large else 500
    ),
    'random forest': lambda: ensemble.RandomForestClassifier(
      100, min_samples_leaf=3, n_jobs=-1, random_state=seed
    ),
    'gradient boosting': lambda: ensemble.HistGradientBoostingClassifier(
      random_state=seed, **(few if large else {})
    ),
    'decision tree': lambda: tree.DecisionTreeClassifier(
      max_depth=12, random_state=seed
    ),
    'AdaBoost': lambda: ensemble.AdaBoostClassifier(random_state=seed),
    'bagging': lambda: ensemble.BaggingClassifier(n_jobs=-1, random_state=seed),
    'naive Bayes': naive_bayes.GaussianNB,
    'linear discriminant': discriminant_analysis.LinearDiscriminantAnalysis,
    'neural network': lambda: neural_network.MLPClassifier(
      (64,), max_iter=30, random_state=seed
    ),
  }
  return pipeline.make_pipeline(preprocessing.StandardScaler(), make[name]())


def _fitted(name, rows, seed, large, fits):
  """Returns a classifier of rows: one of `fits`, if they are the same."""
  if (name, large) in fits:
    known, model = fits[name, large]
    if all(np.array_equal(a, b) for a, b in zip(known, rows)):
      return model
  model = _classifier(name, seed, large).fit(*rows)
  fits[name, large] = (rows, model)
  return model


def _score(name, x, y, features, truth, seed, large, fits):
  if len(np.unique(y)) < 2:
    return list(constant_scores(truth).values())
  import threadpoolctl  # noqa: PLC0415 (comes with scikit-learn)
  from sklearn import metrics  # noqa: PLC0415 (slow to import)

  # On small tables threads that wait for each other cost more than they save.
  threads = 1 if x.size < _SMALL else None
  limits = threadpoolctl.threadpool_limits(threads)
  with limits, warnings.catch_warnings():
    # Unconverged or collinear fits are scored as they are.
    warnings.simplefilter('ignore')
    model = _fitted(name, (x, y), seed, large, fits)
    predicted = model.predict(features)
    known = model.predict_proba(features)
  probabilities = np.zeros([len(truth), max(truth.max(), y.max()) + 1])
  probabilities[:, model.classes_] = known
  present, counts = np.unique(truth, return_counts=True)
  if len(present) == 2:
    present = present[[np.argmin(counts)]]
  areas = [
    (
      metrics.roc_auc_score(truth == label, probabilities[:, label]),
      metrics.average_precision_score(truth == label, probabilities[:, label]),
    )
    for label in present
  ]
  f1 = metrics.f1_score(truth, predicted, average='macro')
  return [float(f1), *np.mean(areas, axis=0).tolist()]


def _drawn(table, schema, target, y, known, limit, rng):
  """Returns features and target of rows whose target is known."""
  rows = np.flatnonzero(known)
  if len(rows) > limit:
    rows = np.sort(rng.choice(rows, limit, replace=False))
  fields = [field for field in schema.fields if field.name != target]
  return _features(table.iloc[rows], fields), y[rows]


def _features(table, fields):
  """Columns as models take them, `[n, k]`, float64 where float32 is too coarse.

  Numbers, and categories one-hot; where values may be missing, whether they are
  has a column.
  """
  columns, kind = [], np.float32
  for field in fields:
    if not field.is_numeric:
      codes = discretization.category_codes(table[field.name], field)
      size = len(discretization.declared_values(field))
      one_hot = np.zeros([len(codes), size + 1], np.float32)
      one_hot[np.arange(len(codes)), np.where(codes < 0, size, codes)] = 1
      columns.append(one_hot if not field.required else one_hot[:, :size])
      continue
    values = discretization.numbers(table[field.name]).clip(-_MOST, _MOST)
    missing = np.isnan(values)
    if not field.required:
      columns.append(missing[:, None])
    middle = np.mean(
      discretization.declared_values(field) or (field.minimum, field.maximum)
    )
    middle = np.clip(middle, -_MOST, _MOST)
    columns.append(np.where(missing, middle, values)[:, None])
    if not _fits_float32(values[~missing]):
      kind = np.float64
  return np.concatenate(columns, axis=1).astype(kind)


def _fits_float32(values):
  """Whether values far from zero, and close together, are still told apart."""
  largest = np.abs(values).max(initial=0.0)
  spread = np.ptp(values) if len(values) else 0.0
  return largest < _MOST_FLOAT32 and (not spread or spread > 1e-4 * largest)
