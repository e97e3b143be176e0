"""How close the columns of a synthetic table, and their pairs, are to real."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from tfdpflows.evaluation import discretization
from tfdpflows.evaluation.association import association_matrix, require_tables

_PAIR_BINS = 8


@dataclasses.dataclass(frozen=True)
class Comparison:
  """What `compare` found.

  Attributes:
    marginals: DataFrame with one row per column of the table:
      `type`; `total_variation` in [0, 1]; `by_chance`, the total variation
      that two samples of these sizes from one and the same distribution would
      have on average; `wasserstein`, the mean distance that a value has to be
      moved, as a share of the declared range (NaN for categories);
      `missing_real` and `missing_synthetic`, shares of the rows.
    pairs: DataFrame `[d, d]`, total variation of every pair of columns, each
      cut into at most 8 cells (categories stay whole); 0 on the diagonal.
    association_real: `association_matrix` of the real table.
    association_synthetic: `association_matrix` of the synthetic table.
    num_real: Rows of the real table.
    num_synthetic: Rows of the synthetic table.
  """

  marginals: pd.DataFrame
  pairs: pd.DataFrame
  association_real: pd.DataFrame
  association_synthetic: pd.DataFrame
  num_real: int
  num_synthetic: int

  def association_difference(self):
    """Returns synthetic minus real association, DataFrame `[d, d]`."""
    return self.association_synthetic - self.association_real

  def summary(self):
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


def compare(real, synthetic, schema):
  """Compares the columns of two tables, and the pairs of their columns.

  Args:
    real: DataFrame `[n, d]` of real rows, best ones that were held out, as
      `TableSchema.validate` returns it.
    synthetic: DataFrame `[m, d]` of synthetic rows.
    schema: The `TableSchema` of both.

  Returns:
    A `Comparison`.

  Raises:
    ValueError: if a column of the schema is missing in one of the tables, or
      one of them has no rows.

  #### Example

  >>> import numpy as np, pandas as pd
  >>> from tfdpflows.tabular.schema import TableSchema
  >>> schema = TableSchema.from_dict({'fields': [
  ...     {'name': 'age', 'type': 'integer',
  ...      'constraints': {'minimum': 0, 'maximum': 9, 'required': True}}]})
  >>> real = pd.DataFrame({'age': [0, 1, 2, 3]})
  >>> synthetic = pd.DataFrame({'age': [0, 1, 2, 2]})
  >>> compare(real, synthetic, schema).marginals.loc['age', 'total_variation']
  0.25
  """
  require_tables(real, synthetic, schema)
  fields = list(schema.fields)
  marginals = pd.DataFrame(
    [_marginal(real[f.name], synthetic[f.name], f) for f in fields],
    index=pd.Index([f.name for f in fields], name='column'),
  )
  return Comparison(
    marginals=marginals,
    pairs=_pairs(real, synthetic, fields),
    association_real=association_matrix(real, schema),
    association_synthetic=association_matrix(synthetic, schema),
    num_real=len(real),
    num_synthetic=len(synthetic),
  )


def _marginal(real, synthetic, field):
  first, second, size = discretization.common_bins(real, synthetic, field)
  p, q = (np.bincount(c, minlength=size) / len(c) for c in (first, second))
  # E|P - Q| of two multinomial samples, by the normal approximation.
  pooled = np.bincount(np.concatenate([first, second]), minlength=size)
  pooled = pooled / pooled.sum()
  spread = pooled * (1 - pooled) * (1 / len(first) + 1 / len(second))
  return {
    'type': field.type,
    'total_variation': float(np.abs(p - q).sum() / 2),
    'by_chance': float(np.sqrt(2 / np.pi * spread).sum() / 2),
    'wasserstein': _wasserstein(real, synthetic, field),
    'missing_real': float(real.isna().mean()),
    'missing_synthetic': float(synthetic.isna().mean()),
  }


def _wasserstein(real, synthetic, field):
  if not field.is_numeric:
    return float('nan')
  declared = discretization.declared_values(field)
  low, high = field.minimum, field.maximum
  if declared:
    low, high = declared[0], declared[-1]
  columns = [discretization.numbers(column) for column in (real, synthetic)]
  columns = [column[np.isfinite(column)] for column in columns]
  if high <= low or not all(map(len, columns)):
    return 0.0 if high <= low else float('nan')
  from scipy import stats  # noqa: PLC0415 (slow to import)

  return float(stats.wasserstein_distance(*columns) / (high - low))


def _pairs(real, synthetic, fields):
  coded = [
    discretization.common_bins(real[f.name], synthetic[f.name], f, _PAIR_BINS)
    for f in fields
  ]
  distances = np.zeros([len(fields)] * 2)
  for i, (real_i, synthetic_i, _) in enumerate(coded):
    for j, (real_j, synthetic_j, size) in enumerate(coded[:i]):
      p = _shares(real_i * size + real_j)
      q = _shares(synthetic_i * size + synthetic_j)
      wide = max(len(p), len(q))
      p, q = (np.pad(r, (0, wide - len(r))) for r in (p, q))
      distances[i, j] = distances[j, i] = np.abs(p - q).sum() / 2
  names = [field.name for field in fields]
  return pd.DataFrame(distances, index=names, columns=names)


def _shares(codes):
  return np.bincount(codes) / len(codes)


def _mean(values):
  return float(np.mean(values)) if len(values) else float('nan')
