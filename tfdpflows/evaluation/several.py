"""Several fits of one table beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from tfdpflows.accounting import PrivacyStatement
from tfdpflows.evaluation import scores
from tfdpflows.evaluation.comparison import compare
from tfdpflows.evaluation.rare_groups import kept, rare_groups
from tfdpflows.tabular.schema import TableSchema


class SyntheticTable(NamedTuple):
  """Synthetic rows, and the privacy statement of the model they come from.

  Attributes:
    rows: a `pandas.DataFrame`.
    statement: a `PrivacyStatement`, its `dict`, a text, or `None`.
  """

  rows: pd.DataFrame
  statement: PrivacyStatement | dict[str, Any] | str | None = None


def compare_fits(
  real: pd.DataFrame,
  fits: Mapping[str, SyntheticTable],
  schema: TableSchema,
  *,
  target: str | None = None,
  classifiers: str | Sequence[str] = 'quick',
  seed: int = 0,
  progress: bool = True,
) -> pd.DataFrame:
  """Compares several synthetic tables with the same real one.

  The numbers are not private. Nor is a choice among fits by them: if the rows
  are those of the fits, or of the same people, it is not covered by any of the
  statements. `tfdpflows.tuning.random_search` pays for such a choice.

  Args:
    real: DataFrame of real rows, best ones that were held out of all fits.
    fits: a `SyntheticTable` for each name.
    schema: the `TableSchema` of all.
    target: column that classifiers predict, see `train_on_synthetic`.
    classifiers: see there.
    seed: see there.
    progress: whether to show how many classifiers are trained.

  Returns:
    DataFrame with a row for each fit, and the columns `epsilon` and `delta`
    (NaN without a statement), `guarantee` ('upper_bound', or 'asymptotic' where
    epsilon is none; 'none' without a statement), the means of
    `Comparison.summary`, `rare_groups_kept`, the share of rare groups that have
    between half and twice their share of the rows (NaN without such groups),
    and with a target `macro_f1`, `auroc` and `average_precision`.

  Raises:
    ValueError: naming the fit, for a table that does not fit the schema.

  #### Example

  >>> import pandas as pd
  >>> from tfdpflows.evaluation import SyntheticTable, compare_fits
  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([Field('age', 'integer', 0, 3, required=True)])
  >>> real = pd.DataFrame({'age': [0, 1, 2, 3]})
  >>> found = compare_fits(real, {
  ...   'good': SyntheticTable(real, {'epsilon': 2., 'delta': 1e-5}),
  ...   'bad': SyntheticTable(pd.DataFrame({'age': [0, 0]}))}, schema)
  >>> found['marginal_total_variation'].to_dict()
  {'good': 0.0, 'bad': 0.75}
  """
  found = {}
  for name, fit in fits.items():
    try:
      rows = schema.validate(fit.rows, fitting=False)
    except ValueError as error:
      raise ValueError(f'The synthetic table {name!r}: {error}') from error
    groups = rare_groups(real, rows, schema)
    found[name] = {
      **_claim(fit.statement),
      **compare(real, rows, schema).summary(),
      'rare_groups_kept': float(kept(groups).mean()),
    }
    if target is not None:
      scored = scores.score(
        real,
        rows,
        schema,
        target,
        real_train=None,
        classifiers=classifiers,
        seed=seed,
        fits={},
        progress=progress,
      )
      found[name].update(scored.mean())
  return pd.DataFrame.from_dict(found, orient='index')


def _claim(statement):
  if isinstance(statement, PrivacyStatement):
    statement = statement.to_dict()
  if not isinstance(statement, dict):
    return {'epsilon': math.nan, 'delta': math.nan, 'guarantee': 'none'}
  found = {key: statement.get(key, math.nan) for key in ('epsilon', 'delta')}
  return {**found, 'guarantee': statement.get('guarantee', 'upper_bound')}
