"""Groups of few rows: whether a synthetic table has them, and how many."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from tfdpflows.evaluation import discretization
from tfdpflows.tabular.schema import TableSchema

# Shares of the real rows that a group may have, and the fewest rows: the share
# of fewer is not known well in either table.
_LARGEST, _FEWEST = 0.05, 20
# A group is there if its share is wrong by at most this factor.
_FACTOR = 2.0
# Pairs of more columns would take long and fill the page.
_MOST_COLUMNS = 24


def rare_groups(
  real: pd.DataFrame, synthetic: pd.DataFrame, schema: TableSchema
) -> pd.DataFrame:
  """Compares the shares of rare categories, and of rare pairs of them.

  Both tables are as `TableSchema.validate` returns them.

  Returns:
    DataFrame with a row for each group of at most 5 % and at least 20 of the
    real rows, the smallest first: `group`, text that names columns and values;
    `rows`, the number of real rows; `real` and `synthetic`, shares. Its
    `attrs['pairs_of']` is the number of columns whose pairs are looked at, the
    first 24, where there are more, else `None`.

  >>> import pandas as pd
  >>> from tfdpflows.evaluation.rare_groups import rare_groups
  >>> from tfdpflows.tabular import Field, TableSchema
  >>> schema = TableSchema([Field('a', 'string', enum=('x', 'y'))])
  >>> real = pd.DataFrame({'a': ['x'] * 960 + ['y'] * 40})
  >>> synthetic = pd.DataFrame({'a': ['x'] * 99 + ['y']})
  >>> rare_groups(real, synthetic, schema).to_dict('records')
  [{'group': 'a = y', 'rows': 40, 'real': 0.04, 'synthetic': 0.01}]
  """
  schema, real, synthetic = discretization.numeric(schema, real, synthetic)
  columns = []
  for field in schema.fields:
    values = discretization.declared_values(field)
    if field.is_numeric or len(values) < 2:
      continue
    codes = discretization.coded(field, real, synthetic)
    columns.append((field.name, values, codes))
  found = []
  for group in itertools.chain(
    itertools.combinations(columns, 1),
    itertools.combinations(columns[:_MOST_COLUMNS], 2),
  ):
    sizes = [len(values) for _, values, _ in group]
    counts, others = (
      _counts([codes[i] for _, _, codes in group], sizes) for i in (0, 1)
    )
    for cell, rows in counts.items():
      if rows < _FEWEST or rows / len(real) > _LARGEST:
        continue
      names = [
        f'{name} = {values[k]}'
        for (name, values, _), k in zip(group, np.unravel_index(cell, sizes))
      ]
      found.append(
        {
          'group': ', '.join(names),
          'rows': rows,
          'real': rows / len(real),
          'synthetic': others.get(cell, 0) / max(len(synthetic), 1),
        }
      )
  table = pd.DataFrame(found, columns=['group', 'rows', 'real', 'synthetic'])
  table = table.sort_values('rows', kind='stable', ignore_index=True)
  is_wide = len(columns) > _MOST_COLUMNS
  table.attrs['pairs_of'] = _MOST_COLUMNS if is_wide else None
  return table


def _counts(codes, sizes):
  """Numbers of rows of the cells that have any, in order: there are many."""
  known = np.all([c >= 0 for c in codes], axis=0)
  cells = np.ravel_multi_index([c[known] for c in codes], sizes)
  return dict(zip(*(a.tolist() for a in np.unique(cells, return_counts=True))))


def kept(groups: pd.DataFrame) -> pd.Series:
  """Returns which of some `rare_groups` have half to twice their share, bool.

  >>> kept(pd.DataFrame({'real': [.04, .02], 'synthetic': [.03, .05]})).tolist()
  [True, False]
  """
  ratio = groups['synthetic'] / groups['real']
  return ratio.between(1 / _FACTOR, _FACTOR)
