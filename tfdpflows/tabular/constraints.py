"""What is publicly known of several columns of a table together.

Constraints are statements of a schema, as ranges are: none is read off rows.
The names are those of the Synthetic Data Vault, where it has such a constraint.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from tfdpflows.tabular import values
from tfdpflows.tabular.expressions import Expression

if TYPE_CHECKING:
  from tfdpflows.tabular.schema import Field, TableSchema

# Combinations of values are the categories of one column of a model.
_MOST_COMBINATIONS = 1 << 16


class Constraint(abc.ABC):
  """A public statement about several columns.

  Attributes:
    kind: its "type" in a schema file.
    columns: names of the columns that it is about.
  """

  kind: ClassVar[str]

  @property
  @abc.abstractmethod
  def columns(self) -> tuple[str, ...]:
    """Names of the columns that it is about."""

  @abc.abstractmethod
  def check(self, schema: TableSchema) -> None:
    """Refuses a schema whose columns it cannot be about.

    Raises:
      ValueError: naming the column and what to do.
    """

  @abc.abstractmethod
  def to_dict(self) -> dict[str, Any]:
    """Returns the constraint as a JSON-able `dict`."""

  def _error(self, text):
    return ValueError(f'The {self.kind} constraint {text}.')

  def _fields(self, schema):
    """Its fields in a schema, which must be public."""
    found = []
    for name in self.columns:
      if name not in schema.names:
        raise self._error(
          f'is about the column {name!r}, of which the schema has no field; '
          'correct the name'
        )
      field = schema[name]
      if field.from_data:
        raise self._error(
          f'is about the column {name!r}, which marks '
          f'{", ".join(field.from_data)} as read off the data: state them from '
          'public knowledge, and remove the marks'
        )
      found.append(field)
    return found


@dataclasses.dataclass(frozen=True)
class Inequality(Constraint):
  """One column is never above another, where neither is missing.

  Both are integers, numbers with the same `decimals`, or of a type of time with
  the same unit.

  Attributes:
    low: name of the column with the smaller values.
    high: name of the column with the larger values.
    strict: whether the two are never equal.

  #### Example

  >>> from tfdpflows.tabular import Field, Inequality, TableSchema
  >>> schema = TableSchema(
  ...   [Field('first', 'date', '2020-01-01', '2029-12-31', required=True),
  ...    Field('last', 'date', '2020-01-01', '2029-12-31', required=True)],
  ...   constraints=[Inequality('first', 'last')])
  >>> table = pd.DataFrame({'first': ['2020-03-01', '2021-01-01'],
  ...                       'last': ['2020-04-01', '2020-12-31']})
  >>> schema.validate(table, 'clip')['last'].astype(str).tolist()
  ['2020-04-01', '2021-01-01']
  """

  kind: ClassVar[str] = 'inequality'

  low: str
  high: str
  strict: bool = False

  @property
  def columns(self) -> tuple[str, ...]:
    """See `Constraint`."""
    return self.low, self.high

  @property
  def gap(self) -> int:
    """The least difference of the columns, in steps."""
    return int(self.strict)

  def check(self, schema: TableSchema) -> None:
    """See `Constraint`."""
    if not isinstance(self.strict, bool):
      raise self._error(f'has strict={self.strict!r}; write true or false')
    if self.low == self.high:
      raise self._error(f'has {self.low!r} on both sides; name two columns')
    low, high = self._fields(schema)
    for field in (low, high):
      if field.grid is None:
        raise self._error(
          f'is about the column {field.name!r}, whose values are not counted '
          'in steps. It needs integers, numbers with "decimals" or a type of '
          'time, with minimum and maximum'
        )
    if _scale(low) != _scale(high):
      raise self._error(
        f'compares {self.low!r} and {self.high!r}, which are not counted in '
        'the same steps. Give both the same type of time, unit and time zone, '
        'or the same "decimals" (integers have 0)'
      )

  def to_dict(self) -> dict[str, Any]:
    """See `Constraint`."""
    found = {'type': self.kind, 'low': self.low, 'high': self.high}
    return {**found, 'strict': True} if self.strict else found


@dataclasses.dataclass(frozen=True)
class FixedCombinations(Constraint):
  """Columns whose values occur together in given combinations only.

  A model learns them as one column with a category for each combination, so
  that none else is ever drawn, and associations of these columns are exact.

  Attributes:
    fields: names of the columns; integers, strings, booleans, or numbers with
      an enum.
    rows: the combinations, each a tuple with a value for each column, `None`
      for missing.

  #### Example

  >>> from tfdpflows.tabular import Field, FixedCombinations, TableSchema
  >>> schema = TableSchema(
  ...   [Field('city', 'string', enum=('Bonn', 'Ulm'), required=True),
  ...    Field('state', 'string', enum=('BW', 'NW'), required=True)],
  ...   constraints=[FixedCombinations(
  ...     ['city', 'state'], [['Bonn', 'NW'], ['Ulm', 'BW']])])
  >>> table = pd.DataFrame({'city': ['Bonn', 'Ulm'], 'state': ['NW', 'NW']})
  >>> schema.validate(table, 'clip').values.tolist()
  [['Bonn', 'NW'], ['Bonn', 'NW']]
  """

  kind: ClassVar[str] = 'fixedCombinations'

  fields: tuple[str, ...]
  rows: tuple[tuple, ...]

  def __post_init__(self):
    object.__setattr__(self, 'fields', tuple(self.fields))
    object.__setattr__(self, 'rows', tuple(tuple(row) for row in self.rows))

  @property
  def columns(self) -> tuple[str, ...]:
    """See `Constraint`."""
    return self.fields

  def check(self, schema: TableSchema) -> None:
    """See `Constraint`."""
    fields = self._fields(schema)
    if len(set(self.fields)) != len(self.fields) or len(self.fields) < 2:
      raise self._error(
        f'is about the columns {list(self.fields)}; name two or more, each once'
      )
    for field in fields:
      if field.is_temporal or (field.grid is None and field.categories is None):
        raise self._error(
          f'is about the column {field.name!r} of type {field.type}, which has '
          'no categories. It needs integers, strings, booleans or an enum'
        )
      if field.decimals is not None:
        raise self._error(
          f'is about the column {field.name!r} with "decimals"; give its '
          'values as an enum instead'
        )
    allowed = [_allowed(field) for field in fields]
    for row in self.rows:
      if len(row) != len(fields):
        raise self._error(
          f'has the row {list(row)}; it needs a value for each of '
          f'{list(self.fields)}'
        )
      for field, allows, value in zip(fields, allowed, row):
        if not allows(value):
          raise self._error(
            f'has the row {list(row)}, and {value!r} is no value that the '
            f'schema declares for {field.name!r}'
          )
    if len(set(self.rows)) != len(self.rows):
      raise self._error('has a row twice; remove one')
    count = len(self.allowed(schema))
    if not 1 <= count <= _MOST_COMBINATIONS:
      raise self._error(
        f'allows {count} combinations of '
        f'{list(self.fields)}; a model needs 1 to {_MOST_COMBINATIONS}'
      )

  def allowed(self, schema: TableSchema) -> list[tuple]:
    """Returns the combinations that are allowed, in a fixed order."""
    del schema
    return list(self.rows)

  def to_dict(self) -> dict[str, Any]:
    """See `Constraint`."""
    return {
      'type': self.kind,
      'fields': list(self.fields),
      'rows': [list(row) for row in self.rows],
    }


@dataclasses.dataclass(frozen=True)
class ExcludedCombinations(FixedCombinations):
  """Columns of which some values never occur together: structural zeros.

  All other combinations of declared values are allowed, and are the categories
  of one column of a model.

  Attributes:
    fields: names of the columns, see `FixedCombinations`.
    rows: the combinations that are ruled out.

  #### Example

  >>> from tfdpflows.tabular import ExcludedCombinations, Field, TableSchema
  >>> schema = TableSchema(
  ...   [Field('sex', 'string', enum=('f', 'm'), required=True),
  ...    Field('pregnant', 'boolean', required=True)],
  ...   constraints=[ExcludedCombinations(['sex', 'pregnant'], [['m', True]])])
  >>> schema.constraints[0].allowed(schema)
  [('f', False), ('f', True), ('m', False)]
  """

  kind: ClassVar[str] = 'excludedCombinations'

  def allowed(self, schema: TableSchema) -> list[tuple]:
    """See `FixedCombinations`."""
    domains = [_domain(schema[name]) for name in self.fields]
    size = int(np.prod([float(len(domain)) for domain in domains]))
    if size > _MOST_COMBINATIONS:
      raise self._error(
        f'is about {list(self.fields)}, which have {size} combinations; a '
        f'model needs {_MOST_COMBINATIONS} at most. List those that are '
        'allowed (fixedCombinations), or leave a column out'
      )
    out = set(self.rows)
    return [row for row in itertools.product(*domains) if row not in out]


@dataclasses.dataclass(frozen=True)
class Computed(Constraint):
  """A column that is computed from others, and not learned.

  Attributes:
    field: name of the column; an integer, a number, a boolean or a type of
      time.
    expression: of names of columns and numbers, see `expressions.Expression`.
      Types of time count in their units: a date in days since 1970. Where one
      of these columns is missing, or the result is no finite number, the column
      is missing too; or the middle of its range, if it is required. A result
      out of the range becomes its nearest end.

  #### Example

  >>> from tfdpflows.tabular import Computed, Field, TableSchema
  >>> schema = TableSchema(
  ...   [Field('net', 'integer', 0, 99), Field('tax', 'integer', 0, 9),
  ...    Field('gross', 'integer', 0, 108)],
  ...   constraints=[Computed('gross', 'net + tax')])
  >>> schema.validate(pd.DataFrame(
  ...   {'net': [9, 5], 'tax': [1, 2], 'gross': [10, 0]}), 'clip')[
  ...     'gross'].tolist()
  [10, 7]
  """

  kind: ClassVar[str] = 'computed'

  field: str
  expression: str

  def __post_init__(self):
    # Refuses what is no expression.
    self.parsed  # noqa: B018

  @property
  def parsed(self) -> Expression:
    """The `Expression`."""
    try:
      return Expression(self.expression)
    except ValueError as error:
      raise self._error(f'of the column {self.field!r} has {error}') from error

  @property
  def columns(self) -> tuple[str, ...]:
    """See `Constraint`; first the one that is computed."""
    return self.field, *self.parsed.names

  def check(self, schema: TableSchema) -> None:
    """See `Constraint`."""
    field, *operands = self._fields(schema)
    if field in operands:
      raise self._error(f'computes the column {field.name!r} from itself')
    if not operands:
      raise self._error(f'of the column {field.name!r} names no other column')
    for one in (field, *operands):
      if one.type == 'string' or (one is field and one.enum is not None):
        raise self._error(
          f'is about the column {one.name!r}, which is a string or has an '
          'enum; it needs numbers, booleans or types of time'
        )

  def to_dict(self) -> dict[str, Any]:
    """See `Constraint`."""
    return {
      'type': self.kind,
      'field': self.field,
      'expression': self.expression,
    }


_KINDS = (Inequality, FixedCombinations, ExcludedCombinations, Computed)


def from_dict(raw: Any) -> Constraint:
  """Returns the constraint that a `dict` of a schema file describes.

  Raises:
    ValueError: for what is none.
  """
  kinds = {kind.kind: kind for kind in _KINDS}
  if not isinstance(raw, dict) or raw.get('type') not in [*kinds]:
    raise ValueError(
      f'The schema has the constraint {raw!r}; it needs a "type", one of '
      f'{", ".join(kinds)}.'
    )
  kind = kinds[raw['type']]
  given = {key: value for key, value in raw.items() if key != 'type'}
  names = {f.name: f for f in dataclasses.fields(kind)}
  needed = [n for n, f in names.items() if f.default is dataclasses.MISSING]
  for key in (*given, *needed):
    if key not in names or key not in given:
      raise ValueError(
        f'The {kind.kind} constraint has {", ".join(given) or "nothing"}; it '
        f'needs {", ".join(needed)}, and may have '
        f'{", ".join(set(names) - set(needed)) or "nothing else"}.'
      )
  for key in given:
    is_list = key in ('fields', 'rows')
    ok = isinstance(given[key], (list, tuple) if is_list else (str, bool))
    if ok and key == 'rows':
      ok = all(isinstance(row, (list, tuple)) for row in given[key])
    if not ok:
      raise ValueError(
        f'The {kind.kind} constraint has {key}={given[key]!r}; it needs '
        f'{"a list" if is_list else "a text"}.'
      )
  return kind(**given)


def check(constraints: Sequence[Constraint], schema: TableSchema) -> None:
  """Refuses constraints that a schema cannot have, alone or together.

  Raises:
    ValueError: naming the column and what to do.
  """
  combined, computed, compared = set(), set(), set()
  for constraint in constraints:
    if not isinstance(constraint, Constraint):
      raise ValueError(
        f'The schema has the constraint {constraint!r}; use Inequality, '
        'FixedCombinations, ExcludedCombinations or Computed.'
      )
    constraint.check(schema)
    if isinstance(constraint, Computed):
      later = (
        set(constraint.columns[1:])
        & {c.field for c in constraints if isinstance(c, Computed)} - computed
      )
      if constraint.field in computed:
        raise ValueError(f'The column {constraint.field!r} is computed twice.')
      if later:
        raise ValueError(
          f'The column {constraint.field!r} is computed from {min(later)!r}, '
          'which is computed itself: list that constraint before.'
        )
      computed.add(constraint.field)
    elif isinstance(constraint, FixedCombinations):
      twice = combined & set(constraint.columns)
      if twice:
        raise ValueError(
          f'The column {min(twice)!r} is in two constraints on combinations: '
          'state them as one, of all their columns.'
        )
      combined.update(constraint.columns)
    else:
      compared.update(constraint.columns)
  for name in sorted(computed & (combined | compared)):
    raise ValueError(
      f'The column {name!r} is computed, and another constraint is about it: '
      'state that of the columns which it is computed from.'
    )
  for name in sorted(combined & compared):
    raise ValueError(
      f'The column {name!r} is in an inequality and in combinations: rule out '
      'the combinations that break the inequality, and drop the latter.'
    )
  if compared:
    Order(constraints).highest(schema)


def is_broken(low: Any, high: Any, gap: int) -> Any:
  """Returns where steps break an inequality; NaN breaks none.

  Without the sum, which float64 has not for the largest integers.
  """
  return low >= high if gap else low > high


class Order:
  """The inequalities of a schema, together.

  Args:
    constraints: of which those that are an `Inequality` count.

  Attributes:
    pairs: tuples of the lower column, the higher one and the least difference,
      sorted so that a column is higher in no pair after one in which it is
      lower.

  Raises:
    ValueError: if the columns are compared in a circle.
  """

  def __init__(self, constraints: Sequence[Constraint]):
    gaps = {}
    for c in constraints:
      if isinstance(c, Inequality):
        pair = c.low, c.high
        gaps[pair] = max(gaps.get(pair, 0), c.gap)
    pairs, names = [], {name for pair in gaps for name in pair}
    while names:
      first = sorted(
        name
        for name in names
        if not any(high == name and low in names for low, high in gaps)
      )
      if not first:
        raise ValueError(
          f'The inequalities compare {", ".join(sorted(names))} in a circle; '
          'remove one.'
        )
      pairs += [(*pair, gap) for pair, gap in gaps.items() if pair[0] in first]
      names -= set(first)
    self.pairs = pairs

  @property
  def columns(self) -> tuple[str, ...]:
    """Names of the columns."""
    return tuple(dict.fromkeys(n for pair in self.pairs for n in pair[:2]))

  def highest(self, schema: TableSchema) -> dict[str, int]:
    """Returns the largest value of each column that others allow, in steps.

    Raises:
      ValueError: where there is none.
    """
    top = {name: schema[name].grid[1] for name in self.columns}
    for low, high, gap in reversed(self.pairs):
      top[low] = min(top[low], top[high] - gap)
    for name, value in top.items():
      if value < schema[name].grid[0]:
        raise ValueError(
          f'No value of the column {name!r} meets the inequalities: the least '
          'is above what the other columns allow. Change the ranges.'
        )
    return top

  def broken(self, steps: dict[str, np.ndarray]) -> np.ndarray:
    """Returns which rows break an inequality, bool `[n]`.

    Args:
      steps: for each column float64 `[n]`, NaN where it is missing.
    """
    found = np.zeros(len(next(iter(steps.values()))), bool)
    for low, high, gap in self.pairs:
      found |= is_broken(steps[low], steps[high], gap)
    return found

  def repaired(
    self, steps: dict[str, np.ndarray], schema: TableSchema
  ) -> dict[str, np.ndarray]:
    """Returns steps that meet the inequalities, each row by itself.

    A value that is too low is raised to the one that it must not be below;
    where that has no room, the other is lowered. What is compared with missing
    values alone stays.
    """
    steps = {name: found.copy() for name, found in steps.items()}
    for low, high, gap in self.pairs:
      raised = np.fmax(steps[high], steps[low] + gap)
      steps[high] = np.where(np.isnan(steps[high]), np.nan, raised)
    for name, found in steps.items():
      steps[name] = np.minimum(found, schema[name].grid[1])
    for low, high, gap in reversed(self.pairs):
      lowered = np.fmin(steps[low], steps[high] - gap)
      steps[low] = np.where(np.isnan(steps[low]), np.nan, lowered)
    return steps


class Combinations:
  """The allowed combinations of some columns, as categories.

  Args:
    constraint: a `FixedCombinations`.
    schema: its `TableSchema`.

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
    many of its values as any.

    Args:
      df: a validated table.

    Returns:
      Integers `[n]`, and bool `[n]`.
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
    stand_in = 0.0
  elif field.grid is not None:
    found = np.clip(np.rint(field.scaled(number)), *field.grid)
    stand_in = float(sum(field.grid) // 2)
  else:
    found = np.clip(number, field.minimum, field.maximum)
    stand_in = field.minimum / 2 + field.maximum / 2
  return np.where(missing, stand_in if field.required else np.nan, found)


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
      raise values.CellError(
        field.name,
        row,
        f'the value is {_text(given.iloc[row])}, and {constraint.expression} '
        f'is {_text(cells.iloc[row])}; change the row or the constraint, or '
        'set out_of_range to clip.',
      )
  return table.assign(**{field.name: cells})


def _scale(field):
  if field.is_temporal:
    return field.type, field.scale.unit, field.timezone
  return 'number', field.decimals or 0


def _domain(field):
  """All values that a field of categories or integers declares."""
  if field.categories is not None:
    found = list(field.categories)
  elif field.grid[1] - field.grid[0] < _MOST_COMBINATIONS:
    found = list(range(field.grid[0], field.grid[1] + 1))
  else:
    raise ValueError(
      f'The column {field.name!r} has too many values for combinations; give '
      'it an enum.'
    )
  return found if field.required else [*found, None]


def _allowed(field):
  """Which values a field of categories or integers declares, a function."""
  # True is 1 for Python.
  known = {(isinstance(v, bool), v) for v in field.categories or ()}

  def allows(value):
    if value is None:
      return not field.required
    if field.categories is None:
      is_whole = isinstance(value, int) and not isinstance(value, bool)
      return is_whole and field.grid[0] <= value <= field.grid[1]
    try:
      return (isinstance(value, bool), value) in known
    except TypeError:  # Lists are not hashed.
      return False

  return allows
