"""How close the columns of a synthetic table, and their pairs, are to real."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from tfdpflows.evaluation import discretization
from tfdpflows.evaluation.association import association_matrix, require_tables
from tfdpflows.evaluation.query_errors import marginal_errors
from tfdpflows.tabular.schema import TableSchema


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The result of `compare`.

  Attributes:
    marginals: DataFrame with one row per column of the table:
      `type`; `total_variation` in [0, 1]; `by_chance`, the expected total
      variation of two samples of these sizes from the same distribution;
      `wasserstein`, the Wasserstein distance as a share of the declared range
      (NaN for categories); `missing_real` and `missing_synthetic`, shares of
      the rows.
    pairs: DataFrame `[d, d]`, total variation of every pair of columns, each
      cut into at most 8 bins (categories stay whole); 0 on the diagonal.
    association_real: DataFrame `[d, d]`, how strongly the columns of the real
      table depend on each other: Pearson's correlation of numbers, the
      correlation ratio of a number and a category, Cramer's V of categories.
    association_synthetic: that of the synthetic table.
  """

  marginals: pd.DataFrame
  pairs: pd.DataFrame
  association_real: pd.DataFrame
  association_synthetic: pd.DataFrame

  def association_difference(self) -> pd.DataFrame:
    """Returns synthetic minus real association, DataFrame `[d, d]`."""
    return self.association_synthetic - self.association_real

  def summary(self) -> dict[str, float]:
    """Returns means over columns and pairs: a dict of floats, JSON-able."""
    upper = np.triu_indices(len(self.pairs), k=1)
    pairs = self.pairs.to_numpy()[upper]
    errors = np.abs(self.association_difference().to_numpy())[upper]
    distances = self.marginals['wasserstein'].dropna()
    return {
      'marginal_total_variation': _mean(self.marginals['total_variation']),
      'marginal_by_chance': _mean(self.marginals['by_chance']),
      'marginal_wasserstein': _mean(distances),
      'pair_total_variation': _mean(pairs),
      'association_error': _mean(errors),
    }


def compare(
  real: pd.DataFrame, synthetic: pd.DataFrame, schema: TableSchema
) -> Comparison:
  """Compares the columns of two tables, and the pairs of their columns.

  Args:
    real: DataFrame `[n, d]` of real rows, best ones that were held out, as
      `TableSchema.validate` returns it.
    synthetic: DataFrame `[m, d]` of synthetic rows.
    schema: the `TableSchema` of both.

  Returns:
    A `Comparison`.

  Raises:
    ValueError: if a column of the schema is missing in one of the tables, or
      one of them has no rows.

  #### Example

  >>> import numpy as np, pandas as pd
  >>> from tfdpflows.tabular import TableSchema
  >>> schema = TableSchema.from_dict({'fields': [
  ...     {'name': 'age', 'type': 'integer',
  ...      'constraints': {'minimum': 0, 'maximum': 9, 'required': True}}]})
  >>> real = pd.DataFrame({'age': [0, 1, 2, 3]})
  >>> synthetic = pd.DataFrame({'age': [0, 1, 2, 2]})
  >>> compare(real, synthetic, schema).marginals.loc['age', 'total_variation']
  0.25
  """
  require_tables(real, synthetic, schema)
  types = [field.type for field in schema.fields]
  schema, real, synthetic = discretization.numeric(schema, real, synthetic)
  marginals = pd.DataFrame(
    [
      {'type': kind, **_marginal(real[f.name], synthetic[f.name], f)}
      for kind, f in zip(types, schema.fields)
    ],
    index=pd.Index(schema.names, name='column'),
  )
  return Comparison(
    marginals=marginals,
    pairs=_pairs(real, synthetic, schema),
    association_real=association_matrix(real, schema),
    association_synthetic=association_matrix(synthetic, schema),
  )


def _marginal(real, synthetic, field):
  p, q = discretization.common_shares(real, synthetic, field)
  n, m = len(real), len(synthetic)
  # E|P - Q| of two multinomial samples, by the normal approximation.
  pooled = (n * p + m * q) / (n + m)
  spread = pooled * (1 - pooled) * (1 / n + 1 / m)
  return {
    'total_variation': float(np.abs(p - q).sum() / 2),
    'by_chance': float(np.sqrt(2 / np.pi * spread).sum() / 2),
    'wasserstein': _wasserstein(real, synthetic, field),
    'missing_real': float(real.isna().mean()),
    'missing_synthetic': float(synthetic.isna().mean()),
  }


def _wasserstein(real, synthetic, field):
  if not field.is_numeric:
    return float('nan')
  low, high = discretization.declared_range(field)
  columns = [discretization.finite(column) for column in (real, synthetic)]
  if high <= low or not all(map(len, columns)):
    return 0.0 if high <= low else float('nan')
  from scipy import stats  # noqa: PLC0415 (slow to import)

  return float(stats.wasserstein_distance(*columns) / (high - low))


def _pairs(real, synthetic, schema):
  names = list(schema.names)
  pairs = pd.DataFrame(0.0, index=names, columns=names)
  if len(names) > 1:
    every = len(names) ** 2
    found = marginal_errors(real, synthetic, schema, 2, most=every)
    for (first, second), distance in found.items():
      pairs.loc[first, second] = pairs.loc[second, first] = distance
  return pairs


def _mean(values):
  return float(np.mean(values)) if len(values) else float('nan')
