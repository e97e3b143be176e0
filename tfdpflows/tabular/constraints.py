"""What is publicly known of several columns of a table together.

Constraints are statements of a schema, as ranges are: none is read off rows.
How rows meet them is in `constrained_rows`. The names are those of the
Synthetic Data Vault, where it has such a constraint.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import graphlib
import itertools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tfdpflows.tabular.expressions import Expression

if TYPE_CHECKING:
  from tfdpflows.tabular.schema import TableSchema

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

  >>> import pandas as pd
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

  >>> import pandas as pd
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
          fix = ' (write true or false)' if field.type == 'boolean' else ''
          raise self._error(
            f'has the row {list(row)}, and {value!r} is no value that the '
            f'schema declares for {field.name!r}{fix}'
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

  >>> import pandas as pd
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
    scales = {one.name: one.scale for one in operands if one.is_temporal}
    for pair in self.parsed.sides:
      units = [scales[name].unit for name in pair if name in scales]
      if len(set(units)) > 1:
        raise self._error(
          f'of the column {field.name!r} takes {pair[0]!r}, counted in '
          f'{units[0]}s, together with {pair[1]!r}, in {units[1]}s. Give both '
          'the same type or "unit", or multiply one: a day has 1440 minutes'
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
        f'{"a list" if is_list else "a string"}.'
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
    ValueError: if the comparisons form a cycle.
  """

  def __init__(self, constraints: Sequence[Constraint]):
    gaps = {}
    for c in constraints:
      if isinstance(c, Inequality):
        pair = c.low, c.high
        gaps[pair] = max(gaps.get(pair, 0), c.gap)
    sorter = graphlib.TopologicalSorter()
    for low, high in gaps:
      sorter.add(high, low)
    try:
      sorter.prepare()
    except graphlib.CycleError as error:
      raise ValueError(
        f'The inequalities on {", ".join(sorted(set(error.args[1])))} form a '
        'cycle; remove one.'
      ) from None
    pairs = []
    while sorter.is_active():
      ready = sorter.get_ready()
      pairs += [(*pair, gap) for pair, gap in gaps.items() if pair[0] in ready]
      sorter.done(*ready)
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

  def broken(self, steps: dict[Any, Any]) -> Any:
    """Returns which rows break an inequality, bool `[n]`.

    Args:
      steps: for each column float64 `[n]`, NaN where it is missing; arrays of
        NumPy or tensors.
    """
    return functools.reduce(
      operator.or_,
      [
        is_broken(steps[low], steps[high], gap) for low, high, gap in self.pairs
      ],
    )

  def repaired(
    self, steps: dict[str, Any], schema: TableSchema, xp: Any = np
  ) -> dict[str, Any]:
    """Returns steps that meet the inequalities, each row by itself.

    A value that is too low is raised to the one that it must not be below;
    where that has no room, the other is lowered. What is compared with missing
    values alone stays.

    Args:
      steps: see `broken`.
      schema: the `TableSchema`.
      xp: NumPy, or TensorFlow for tensors.
    """
    # Comparisons with NaN are false: what is missing stays, and moves nothing.
    raised = lambda own, least: xp.where(own < least, least, own)
    lowered = lambda own, most: xp.where(own > most, most, own)
    steps = dict(steps)
    for low, high, gap in self.pairs:
      steps[high] = raised(steps[high], steps[low] + gap)
    for name, found in steps.items():
      steps[name] = lowered(found, np.float64(schema[name].grid[1]))
    for low, high, gap in reversed(self.pairs):
      steps[low] = lowered(steps[low], steps[high] - gap)
    return steps


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
