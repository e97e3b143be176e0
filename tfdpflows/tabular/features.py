"""Columns of a table as numbers that models of scikit-learn take."""

from __future__ import annotations

import numpy as np

from tfdpflows.tabular import cells


def as_features(table, fields):
  """Returns columns as models take them.

  Args:
    table: DataFrame `[n, d]`.
    fields: the `Field`s of the columns to take.

  Returns:
    float32 array `[n, k]`: numbers, and categories one-hot; where values may
    be missing, whether they are has a column.
  """
  columns = []
  for field in fields:
    if cells.is_categorical(field):
      codes = cells.category_codes(table[field.name], field)
      size = len(cells.declared_values(field))
      one_hot = np.zeros([len(codes), size + 1], np.float32)
      one_hot[np.arange(len(codes)), np.where(codes < 0, size, codes)] = 1
      columns.append(one_hot if not field.required else one_hot[:, :size])
      continue
    values = cells.numbers(table[field.name])
    missing = np.isnan(values)
    if not field.required:
      columns.append(missing[:, None])
    middle = np.mean(cells.declared_values(field) or _bounds(field))
    columns.append(np.where(missing, middle, values)[:, None])
  return np.concatenate(columns, axis=1).astype(np.float32)


def _bounds(field):
  return field.minimum, field.maximum
