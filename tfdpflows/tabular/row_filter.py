"""Conditions on rows other than equality: ranges, and one of several values."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from tfdpflows.tabular.field import Field, typed
from tfdpflows.tabular.schema import TableSchema

# What stands for a row in a decoded table: bool [n].
RowFilter = Callable[[pd.DataFrame], np.ndarray]
_MANY = (list, tuple, set, frozenset)
# Categories that a message names.
_SHOWN = 20


def is_filter(condition: Any) -> bool:
  """Whether a condition is a range or several values."""
  return isinstance(condition, (pd.Interval, *_MANY))


def row_filter(
  schema: TableSchema, conditions: dict[str, Any]
) -> RowFilter | None:
  """Returns which rows of a table meet conditions, `None` without any.

  Args:
    schema: `TableSchema`.
    conditions: dict from names of columns to conditions (`is_filter`): a
      `pandas.Interval` of numbers or times, which missing values are not in
      (of a type of time also in its units), or a list, tuple or set of values,
      `None` for missing.

  Raises:
    ValueError: naming the column, for a condition that the schema rules out.

  #### Example

  >>> import pandas as pd
  >>> from tfdpflows.tabular import Field, TableSchema
  >>> from tfdpflows.tabular.row_filter import row_filter
  >>> schema = TableSchema([Field('age', 'integer', 0, 99)])
  >>> over = row_filter(schema, {'age': pd.Interval(65, np.inf, 'both')})
  >>> over(pd.DataFrame({'age': [64, 65, None]}))
  array([False,  True, False])
  """
  found = {}
  for name, condition in conditions.items():
    field = conditioned(schema, name)
    if isinstance(condition, pd.Interval):
      found[name] = _inside(field, condition)
    else:
      found[name] = _one_of(field, list(condition))
  if not found:
    return None

  def keep(table):
    met = np.ones(len(table), bool)
    for name, condition in found.items():
      met &= condition(table[name])
    return met

  return keep


def conditioned(schema: TableSchema, name: str) -> Field:
  """Returns the field that a condition is on.

  Raises:
    ValueError: if the schema has none of this name.
  """
  if name not in schema.names:
    raise ValueError(
      f'There is a condition on column {name!r}; the schema has '
      f'{list(schema.names)}.'
    )
  return schema[name]


def validated(schema: TableSchema, name: str, value: Any) -> pd.DataFrame:
  """Returns the value that a column is to have, as a table of one row.

  Args:
    schema: `TableSchema`.
    name: of the column.
    value: as it is given, `None` for missing.

  Raises:
    ValueError: naming the column, for a value that the schema rules out.
  """
  return _validated(conditioned(schema, name), [value], f'{name!r}: {value!r}')


def _validated(field, values, condition):
  table = pd.DataFrame({field.name: pd.Series(values, dtype=object)})
  try:
    return TableSchema([field]).validate(table, fitting=False)
  except ValueError as error:
    raise ValueError(
      f'The condition {condition} is outside of the schema: '
      f'{_reason(error, field)}'
    ) from error


def check_has_ranges(field: Field) -> None:
  """Refuses a column whose values have no order, of which a range is asked."""
  if not (field.is_numeric or field.is_temporal):
    raise ValueError(
      f'The condition on column {field.name!r} is a range, and its type is '
      f'{field.type}: give a value, or several.'
    )


def _inside(field: Field, interval: pd.Interval):
  check_has_ranges(field)
  low, high = (_number(field, end) for end in (interval.left, interval.right))
  first, last = _domain(field)
  empty = low == high and interval.closed != 'both'
  if (
    empty
    or high < first
    or low > last
    or (low == last and interval.open_left)
    or (high == first and interval.open_right)
  ):
    first, last = (_shown(field, end) for end in (first, last))
    left = ('[', '(')[interval.open_left] + _shown(field, interval.left)
    right = _shown(field, interval.right) + (']', ')')[interval.open_right]
    raise ValueError(
      f'The condition on column {field.name!r} is {left}, {right}, in which no '
      f'value of the schema is: it has {first} to {last}.'
    )

  def met(column):
    found = typed(column, field, (), clip=True)
    found = found.to_numpy(np.float64, na_value=np.nan)
    above = found > low if interval.open_left else found >= low
    below = found < high if interval.open_right else found <= high
    return above & below

  return met


def _number(field, end):
  """An end of a range as a number; of a type of time, in units."""
  try:
    if field.is_temporal and not isinstance(end, numbers.Real):
      return float(field.scale.count(end))
    return float(end)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f'The condition on column {field.name!r} ends at {end!r}, which is no '
      f'{field.type}.'
    ) from error


def _shown(field, end):
  """The text of an end of a range; of a type of time, not in its units."""
  if not (field.is_temporal and isinstance(end, numbers.Real)):
    return str(end)
  try:
    return field.scale.text(int(end), iso=True)
  except (OverflowError, ValueError):  # Infinite, or beyond the calendar.
    return str(end)


def _reason(error, field):
  """What is wrong with a condition, without advice on a table."""
  problem = getattr(error, 'problem', str(error))
  problem = problem.partition('; ')[0].rstrip('.')
  if ' is not in the enum' in problem:
    found = [repr(value) for value in field.categories]
    more = f' and {len(found) - _SHOWN} more' * (len(found) > _SHOWN)
    return f'{problem}. It has {", ".join(found[:_SHOWN])}{more}.'
  if ' is no boolean' in problem:
    words = field.cells.true_values[0], field.cells.false_values[0]
    return f'{problem}: write {" or ".join(words)}.'
  if ' is no ' in problem and field.is_numeric:
    return f'{problem}{decimal_sign(field)}.'
  return f'{problem}.'


def decimal_sign(field: Field) -> str:
  """Returns what to say of numbers that have another decimal sign than ."""
  sign = field.cells.decimal_char
  return '' if sign == '.' else f': the decimal sign of the column is {sign!r}'


def _domain(field):
  if field.is_temporal:
    return field.grid
  if field.enum is not None:
    return min(field.enum), max(field.enum)
  return field.minimum, field.maximum


def _one_of(field, values):
  if not values:
    raise ValueError(
      f'The condition on column {field.name!r} has no value: give some.'
    )
  wanted = _validated(field, values, f'on column {field.name!r}')[field.name]
  missing = wanted.isna().any()

  def met(column):
    return column.isin(wanted.dropna()).to_numpy(bool) | (
      missing & column.isna().to_numpy(bool)
    )

  return met
