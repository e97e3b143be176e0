"""Scores of regressors trained on synthetic rows and tested on real ones."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd

from tfdpflows.tabular import cells
from tfdpflows.tabular.association import require_columns
from tfdpflows.tabular.features import as_features

REGRESSORS = ('ridge regression', 'random forest', 'gradient boosting')


def regress_on_synthetic(
  real_holdout,
  synthetic,
  schema,
  target,
  *,
  max_train=50_000,
  max_test=20_000,
  seed=0,
):
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
    DataFrame with one row for each of `REGRESSORS` and the columns `r2`, the
    explained share of the variance, and `mae`, the mean absolute error in
    units of the column.

  Raises:
    ImportError: if scikit-learn is not installed.
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
  fields = {field.name: field for field in schema.fields}
  if target not in fields or cells.is_categorical(fields[target]):
    numeric = [f.name for f in schema.fields if not cells.is_categorical(f)]
    raise ValueError(
      f'The target {target!r} is not a numeric column of the schema. Those '
      f'are: {", ".join(numeric) or "none"}.'
    )
  others = [field for field in schema.fields if field.name != target]
  rng = np.random.default_rng(seed)
  kept = []
  for table, limit, what in (
    (real_holdout, max_test, 'the real table'),
    (synthetic, max_train, 'the synthetic table'),
  ):
    require_columns(table, schema.fields, what)
    y = cells.numbers(table[target])
    rows = np.flatnonzero(np.isfinite(y))
    if len(rows) < 2:
      raise ValueError(
        f'Column {target!r} has {len(rows)} values in {what}; scores need two.'
      )
    if len(rows) > limit:
      rows = np.sort(rng.choice(rows, limit, replace=False))
    kept.append((as_features(table.iloc[rows], others), y[rows]))
  (test, truth), (x, y) = kept
  from sklearn import metrics  # noqa: PLC0415 (optional, slow to import)

  scores = pd.DataFrame(
    index=pd.Index(REGRESSORS, name='regressor'), columns=['r2', 'mae']
  )
  for name in REGRESSORS:
    model = _regressor(name, seed)
    with warnings.catch_warnings():
      # Collinear columns, as one-hot ones are, are fitted as they are.
      warnings.simplefilter('ignore')
      predicted = model.fit(x, y).predict(test)
    scores.loc[name, 'r2'] = metrics.r2_score(truth, predicted)
    scores.loc[name, 'mae'] = metrics.mean_absolute_error(truth, predicted)
  return scores.astype(float)


def _regressor(name, seed):
  try:
    from sklearn import (  # noqa: PLC0415 (optional, slow to import)
      ensemble,
      linear_model,
      pipeline,
      preprocessing,
    )
  except ImportError as error:
    raise ImportError(
      'Train-on-synthetic scores need scikit-learn: pip install scikit-learn'
    ) from error
  model = {
    'ridge regression': linear_model.Ridge(),
    'random forest': ensemble.RandomForestRegressor(
      50, max_features=1 / 3, min_samples_leaf=5, random_state=seed
    ),
    'gradient boosting': ensemble.HistGradientBoostingRegressor(
      random_state=seed
    ),
  }[name]
  return pipeline.make_pipeline(preprocessing.StandardScaler(), model)
