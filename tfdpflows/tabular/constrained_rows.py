"""How rows meet the constraints of a schema, and what is changed where not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tfdpflows.tabular import values
from tfdpflows.tabular.constraints import (
  Computed,
  FixedCombinations,
  Order,
  is_broken,
)

if TYPE_CHECKING:
  from tfdpflows.tabular.field import Field
  from tfdpflows.tabular.schema import TableSchema


class Combinations:
  """The allowed combinations of some columns, as categories.

  Attributes:
    fields: the `Field`s.
    rows: the allowed combinations.
  """

  def __init__(self, constraint: FixedCombinations, schema: TableSchema):
    self.fields = [schema[name] for name in constraint.fields]
    self.rows = constraint.allowed(schema)

  @property
  def frame(self) -> pd.DataFrame:
    """The allowed combinations as a table."""
    return pd.DataFrame(
      {
        field.name: pd.Series([row[i] for row in self.rows], dtype=object)
        for i, field in enumerate(self.fields)
      }
    )

  def find(self, df: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of each row's combination, and if it is allowed.

    Of a row that is not allowed it is that of the first combination with as
    many of its values as any: integers `[n]`, and bool `[n]`.
    """
    columns = [df[field.name] for field in self.fields]
    known = []
    for i in range(len(columns)):
      cells = dict.fromkeys(row[i] for row in self.rows if row[i] is not None)
      known.append({cell: place for place, cell in enumerate(cells)})
    codes = [_places(column, some) for column, some in zip(columns, known)]
    wanted = np.stack(
      [
        [len(some) if row[i] is None else some[row[i]] for row in self.rows]
        for i, some in enumerate(known)
      ],
      1,
    )
    number = {tuple(row): i for i, row in enumerate(wanted.tolist())}
    key = np.zeros(len(df), np.int64)
    for some, places in zip(known, codes):
      # Anew for each column, so that the product does not overflow.
      key = pd.factorize(key * (len(some) + 2) + places + 1)[0]
    _, first = np.unique(key, return_index=True)
    best = np.empty(len(first), np.int64)
    exact = np.empty(len(first), bool)
    for i, row in enumerate(np.stack([places[first] for places in codes], 1)):
      found = number.get(tuple(row.tolist()))
      exact[i] = found is not None
      best[i] = found if exact[i] else (wanted == row).sum(1).argmax()
    return best[key], exact[key]


def _places(column, known):
  """Places of cells among values; their number for NaN, -1 for others."""
  missing = column.isna().to_numpy(bool)
  found = np.full(len(column), len(known), np.int64)
  cells = column.to_numpy(object)[~missing]
  found[~missing] = pd.Index([*known], dtype=object).get_indexer(
    pd.Index(cells, dtype=object)
  )
  return found


def meet(
  table: pd.DataFrame, schema: TableSchema, out_of_range: str
) -> pd.DataFrame:
  """Returns a table whose rows meet the constraints of a schema, or refuses it.

  Args:
    table: columns as `TableSchema.validate` has them.
    schema: the `TableSchema`.
    out_of_range: 'error' refuses the first row that does not; 'clip' changes
      each such row, by itself (`Order.repaired`, `Combinations.find`), and
      computes what is computed.

  Raises:
    CellError: under 'error', naming the row.
  """
  changed = {}
  for constraint in schema.constraints:
    if isinstance(constraint, FixedCombinations):
      found = Combinations(constraint, schema)
      number, exact = found.find(table)
      if out_of_range == 'error' and not exact.all():
        row = int(np.flatnonzero(~exact)[0])
        cells = [_text(table[name].iloc[row]) for name in constraint.fields]
        raise values.CellError(
          constraint.fields[0],
          row,
          f'{", ".join(constraint.fields)} are {", ".join(cells)}, which the '
          f'{constraint.kind} of the schema does not allow; change the row or '
          'the constraint, or set out_of_range to clip.',
        )
      rows = found.frame.iloc[number[~exact]]
      for field in found.fields:
        changed[field.name] = _replaced(
          table[field.name], ~exact, rows[field.name].to_numpy(object)
        )
  order = Order(schema.constraints)
  if order.pairs:
    fields = {name: schema[name] for name in order.columns}
    steps = {name: f.steps(table[name]) for name, f in fields.items()}
    broken = order.broken(steps)
    if out_of_range == 'error' and broken.any():
      raise _broken(order, steps, table, int(np.flatnonzero(broken)[0]))
    some = {name: found[broken] for name, found in steps.items()}
    for name, found in order.repaired(some, schema).items():
      # What is missing stays so, in the type of the column.
      moved = broken.copy()
      moved[broken] = ~np.isnan(found)
      field = fields[name]
      number = found[~np.isnan(found)].astype(np.int64)
      changed[name] = _replaced(table[name], moved, field.of_steps(number))
  table = table.assign(**changed) if changed else table
  for constraint in schema.constraints:
    if isinstance(constraint, Computed):
      table = _computed(table, constraint, schema, out_of_range)
  return table


def _text(cell):
  return 'missing' if pd.isna(cell) else repr(cell)


def _broken(order, steps, table, row):
  for low, high, gap in order.pairs:
    if is_broken(steps[low][row], steps[high][row], gap):
      comparison = 'below' if gap else 'at most'
      return values.CellError(
        low,
        row,
        f'{table[low].iloc[row]} must be {comparison} {high!r}, which is '
        f'{table[high].iloc[row]}; change the row or the constraint, or set '
        'out_of_range to clip.',
      )
  raise AssertionError('No inequality is broken.')


def _replaced(column, which, cells):
  """A column with other cells where `which` is true, in its own type."""
  if not which.any():
    return column
  column = column.copy()
  cells = pd.Series(cells, dtype=object)
  if column.dtype == object:
    # As `TableSchema.validate` has what is missing.
    cells = cells.where(cells.notna(), np.nan)
  else:
    cells = cells.where(cells.notna(), None).astype(column.dtype)
  column[which] = cells.array
  return column


def computed_steps(
  constraint: Computed, schema: TableSchema, table: pd.DataFrame
) -> np.ndarray:
  """Returns a computed column as numbers, float64 `[n]`, NaN for missing.

  They are steps of a column that has them, else values; and for booleans 0 and
  1.
  """
  operands = {
    name: _number(table[name], schema[name]) for name in constraint.parsed.names
  }
  with np.errstate(all='ignore'):
    found = constraint.parsed(operands, np)
  missing = np.any([np.isnan(x) for x in operands.values()], 0)
  found = np.asarray(found, np.float64)
  return settled(found, missing | ~np.isfinite(found), schema[constraint.field])


def settled(number: np.ndarray, missing: np.ndarray, field: Field):
  """Returns computed numbers in the range of a field, as `computed_steps`."""
  if field.type == 'boolean':
    found = (number != 0).astype(np.float64)
  elif field.grid is not None:
    found = np.clip(np.rint(field.scaled(number)), *field.grid)
  else:
    found = np.clip(number, field.minimum, field.maximum)
  return np.where(missing, computed_stand_in(field), found)


def computed_stand_in(field: Field) -> float:
  """Returns what stands for a missing number of a computed column."""
  if not field.required:
    return np.nan
  if field.type == 'boolean':
    return 0.0
  if field.grid is not None:
    return float(sum(field.grid) // 2)
  return field.minimum / 2 + field.maximum / 2


def _number(column, field):
  """A column as an operand: counts of time, numbers, or 0 and 1."""
  if field.is_temporal:
    return field.steps(column)
  return column.astype('Float64').to_numpy(np.float64, na_value=np.nan)


def computed_values(number: np.ndarray, field: Field) -> Any:
  """Returns the cells of a column that was computed, of `computed_steps`."""
  missing = np.isnan(number)
  filled = np.where(missing, 0, number)
  if field.type == 'boolean':
    found = pd.array(filled != 0, dtype='boolean')
  elif field.grid is not None:
    found = field.of_steps(filled.astype(np.int64), missing)
    if field.type != 'integer':
      return found
    found = pd.array(found, dtype='Int64')
  else:
    return number
  found[missing] = pd.NA
  return found.to_numpy() if field.required else found


def tolerance(field: Field) -> float:
  """Returns by how much a value may differ from the one that is computed.

  In steps of a field that has them, since other programs round the last digit
  otherwise.
  """
  if field.type == 'boolean':
    return 0.0
  if field.grid is not None:
    return 1.0
  return 1e-6 * (field.maximum - field.minimum)


def _computed(table, constraint, schema, out_of_range):
  field = schema[constraint.field]
  number = computed_steps(constraint, schema, table)
  cells = pd.Series(computed_values(number, field)).set_axis(table.index)
  if field.required and field.type in ('integer', 'boolean'):
    cells = cells.astype('int64' if field.type == 'integer' else 'bool')
  if out_of_range == 'error':
    given = table[field.name]
    before = field.steps(given) if field.grid else _number(given, field)
    far = ~(np.abs(before - number) <= tolerance(field))
    far &= ~(np.isnan(before) & np.isnan(number))
    if far.any():
      row = int(np.flatnonzero(far)[0])
      scales = [schema[name].scale for name in constraint.parsed.names]
      units = sorted({f'{scale.unit}s' for scale in scales if scale})
      counted = f' (times count in {" and ".join(units)})' if units else ''
      raise values.CellError(
        field.name,
        row,
        f'the value is {_text(given.iloc[row])}, and {constraint.expression} '
        f'is {_text(cells.iloc[row])}{counted}; change the row or the '
        'constraint, or set out_of_range to clip.',
      )
  return table.assign(**{field.name: cells})
