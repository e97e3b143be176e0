"""Private estimates of the types, ranges and categories of a table's columns.

What is estimated of one column is in `mechanisms.domains`.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import dp_accounting
import numpy as np
import pandas as pd
from dp_accounting import NeighboringRelation

from tfdpflows import accounting
from tfdpflows._checks import check_fraction, check_positive
from tfdpflows.accounting import PrivacyLedger
from tfdpflows.accounting.calibration import whole_noise_multiplier
from tfdpflows.accounting.ledger import check_ledger
from tfdpflows.accounting.rounding import round_up
from tfdpflows.mechanisms.domains import (
  Bins,
  Categories,
  Noise,
  lowest_seen,
  measure_left,
  private_type,
)
from tfdpflows.mechanisms.releases import (
  charge_release,
  differing_rows,
  row_weights,
)
from tfdpflows.randomness import Randomness
from tfdpflows.sampling import Units
from tfdpflows.stored_rows import TableParts

if TYPE_CHECKING:
  from tfdpflows.tabular.field import Field
  from tfdpflows.tabular.schema import TableSchema

# What becomes of a cell: `None` before, clipped or made missing, kept.
_OUTCOMES = ('missing', 'outside', 'inside')
# Of domains there are two looks; the second one is divided by how many of the
# rows the first one leaves unexplained, and this share of them more.
_LOOKS, _FIRST, _NEED = 2, 0.5, 0.01
# What a column's counts weigh: of the kinds of its cells, of its domain, and of
# what the domain leaves out.
_WEIGHTS = {'type': 0.3, 'domain': 1.0, 'outcome': 0.4}
# A category must stand higher above the noise than the end of a range, which is
# moved outwards.
_DOMAIN_WEIGHTS = {'enum': 2.0, 'range': 1.0}
# The share of delta for categories that one row alone has.
_CATEGORIES_DELTA = 0.1
# A column may be required if it is shown that no more are missing.
_MISSING = 0.01
# The share of rows outside that is warned of, where there may be as many, and
# the noise, in standard deviations, that they must stand out of.
_LARGE, _SURE = 0.05, 2.5


class ColumnBounds(NamedTuple):
  """What was released of the rows that a private domain leaves out.

  Attributes:
    name: name of the column.
    outside: about how many rows have a value that the schema found does not
      hold: numbers that clipping moves, others that it makes missing.
    std: standard deviation of the noise of `outside`, in rows.
    rows: about how many rows the table has; with units, their weight.
  """

  name: str
  outside: float
  std: float
  rows: float

  @property
  def is_large(self) -> bool:
    """Whether it stands out of the noise, and may be more than 5 %."""
    most = self.outside + self.std
    return self.outside > _SURE * self.std and most > _LARGE * self.rows

  def __str__(self) -> str:
    outside = max(self.outside, 0.0)
    return (
      f'about {outside:,.0f} of {self.rows:,.0f} rows outside (+- '
      f'{2 * self.std:,.0f})'
    )


class Bounds(NamedTuple):
  """A `TableSchema` without marks, and `ColumnBounds` of those that had one."""

  schema: TableSchema
  columns: tuple[ColumnBounds, ...]


def bounds_event(
  schema: TableSchema,
  epsilon: float,
  delta: float,
  neighboring_relation: NeighboringRelation = (
    NeighboringRelation.ADD_OR_REMOVE_ONE
  ),
) -> dp_accounting.DpEvent:
  """Returns the `DpEvent` of `private_bounds`, `NoOpDpEvent` without marks.

  Its mechanism is (`epsilon`, `delta`)-private: one Gaussian mechanism, and a
  tenth of `delta` where there may be categories. It composes with others as
  these do, for which `pld` is tight; accountants that are not may charge more
  for it alone, such as .111 for .1 under `rdp` and `zcdp`.
  """
  rows = differing_rows(neighboring_relation)
  plan = _plan(schema, epsilon, delta)
  if not plan.fields:
    return dp_accounting.NoOpDpEvent()
  if not plan.gaussian:
    return accounting.EpsilonDeltaDpEvent(epsilon)
  # Accountants take the sum to change by as much as `rows` of them.
  event = dp_accounting.GaussianDpEvent(rows * plan.multiplier)
  if not plan.delta:
    return event
  return dp_accounting.ComposedDpEvent(
    [event, accounting.EpsilonDeltaDpEvent(0.0, plan.delta)]
  )


def private_bounds(
  df: pd.DataFrame,
  schema: TableSchema,
  epsilon: float,
  delta: float,
  randomness: Optional[Randomness],
  ledger: PrivacyLedger,
  *,
  label: str = 'bounds',
  resume: bool = False,
  units: Optional[Units] = None,
) -> TableSchema:
  """Returns the schema with every mark replaced by a private estimate.

  Of `schema`, only what is not marked is used, and the names. Three counts are
  made of a column: of the kinds of its cells, where the type is marked; of its
  values, by powers of two or by categories; and of the rows that the domain
  found leaves out. Rows outside of the new bounds have to be clipped afterwards
  (`schema.validate(df, out_of_range='clip')`): rare categories become missing
  values, numbers move to the nearest bound. A warning names the columns where
  this may be more than one row in twenty.

  Args:
    df: `DataFrame` with at least the marked columns. No value is refused; what
      the type of a column cannot hold counts as missing.
    schema: `TableSchema` with marks.
    epsilon: epsilon of all marks together.
    delta: delta of all marks together. With 0, for ranges and `required` of
      columns whose types are public, the noise is that of Laplace, which is
      larger where there are more than a few columns.
    randomness: see `tfdpflows.mechanisms`, as the errors.
    ledger: see there.
    label: see there.
    resume: see there.
    units: see there; counts are sums of weights then.

  Returns:
    A `TableSchema` without marks.

  Raises:
    ValueError: if nothing of a column rises above the noise, which is read off
      what was released; if the type of a column is marked, but not its range or
      enum; or if a range or enum is marked that a column has not.

  #### Formal guarantee

  All counts are one Gaussian mechanism. Adding or removing a row changes one
  count by 1 among the kinds of each column, one among its bins or categories
  and one of the last three; so does a unit, whose weights add up to 1 at most,
  in the l2 norm. With precisions (one over the variance of the noise) that add
  up to `1 / z**2` over all of these, the release is that of noise multiplier z:
  how the precision for bins and categories is shared among columns depends on
  the kinds released before, and not how much it is (Smith and Thakurta 2022,
  fully adaptive composition of Gaussian mechanisms). The second look at
  categories is at those of all columns together, and only at rows whose
  category was not shown, which is one mechanism with all of their precision
  (`measure_left`). A category is counted only where some row has it (Korolova
  et al. 2009): where it is one row's, it is shown with probability `delta_i` at
  most, and these add up to a tenth of `delta` over columns, and over the
  categories that a unit alone has, as many as its rows. z is that of an
  (`epsilon`, `.9 delta`)-private Gaussian mechanism, or of all of `delta` where
  there can be no categories. Where a row is replaced, z and one over `delta_i`
  are twice what they are else. With `delta` 0 the scales of Laplace noise take
  the place of precisions, and add up to `epsilon`.
  """
  found = release_bounds(
    df,
    schema,
    epsilon,
    delta,
    randomness,
    ledger,
    label=label,
    resume=resume,
    units=units,
  )
  warn_of_outside(found.columns, epsilon)
  return found.schema


def release_bounds(
  df: Union[pd.DataFrame, TableParts],
  schema: TableSchema,
  epsilon: float,
  delta: float,
  randomness: Optional[Randomness],
  ledger: PrivacyLedger,
  *,
  label: str = 'bounds',
  resume: bool = False,
  units: Optional[Units] = None,
) -> Bounds:
  """Returns what `private_bounds` does, and how many rows are outside.

  Also of a table in parts, which is read four times at most, and without units:
  then what is released is that of the table in memory, to the last bit.
  """
  check_ledger(ledger)
  relation = ledger.neighboring_relation
  rows = differing_rows(relation)
  plan = _plan(schema, epsilon, delta)
  if not plan.fields:
    return Bounds(schema, ())
  fields = dict(plan.fields)
  kind = _Parts if isinstance(df, TableParts) else _Whole
  table = kind(df, type(schema)(fields.values()), units)
  most = 1 if units is None else units.max_rows_per_unit
  randomness = charge_release(
    ledger,
    bounds_event(schema, epsilon, delta, relation),
    label=label,
    randomness=randomness,
    facts={
      'release': 'bounds',
      'epsilon': epsilon,
      'delta': delta,
      'parts': [_facts(field) for field in fields.values()],
      **({} if units is None else {'max_rows_per_unit': most}),
    },
    arrays=table.arrays(),
    resume=resume,
    units=units,
  )
  rng = randomness.numpy(str(label))
  # Each of them replaces fields by those that are found.
  _find_types(table, fields, plan.noise('type', rows), rng)
  domains = table.domains(fields, plan.delta_of_column / rows / most)
  _find_domains(table, fields, domains, plan, rows, rng)
  found = _count_outside(table, fields, plan.noise('outcome', rows), rng)
  return Bounds(
    dataclasses.replace(
      schema, fields=[fields.get(field.name, field) for field in schema.fields]
    ),
    # Not of those whose `required` alone was marked.
    tuple(
      column
      for column in found
      if column.name in domains or 'type' in plan.fields[column.name].from_data
    ),
  )


def _find_types(table, fields, noise, rng):
  """Finds the types that are marked, and reads the columns as of these."""
  types, lost = {}, {}
  for name, counts in table.kinds().items():
    found = private_type([*counts], noise, rng, [*counts.values()])
    if not found:
      lost[name] = 'type'
      continue
    fields[name] = _of_type(fields[name], found)
    # Nothing stands in for what is missing: it would be counted twice.
    types[name] = dataclasses.replace(fields[name], required=False)
  _refuse_lost(lost)
  table.set_types(types)


def _find_domains(table, fields, domains, plan, rows, rng):
  """Finds the ranges and categories that are marked, by two looks."""
  # At all columns evenly, and then by need.
  weights = {name: _DOMAIN_WEIGHTS[d.kind] for name, d in domains.items()}
  whole = plan.shares['domain']
  for name, share in _divided(weights, _FIRST * whole).items():
    domains[name].measure(plan.noise(share, rows), rng)
  shares = _divided(_needs(domains, weights), (1 - _FIRST) * whole)
  for name, share in shares.items():
    if isinstance(domains[name], Bins):
      domains[name].measure(plan.noise(share, rows), rng)
  left = {n: s for n, s in shares.items() if isinstance(domains[n], Categories)}
  if left:
    table.measure_left(
      {name: domains[name] for name in left},
      [*left.values()],
      plan.noise(sum(left.values()), rows),
      rng,
    )
  lost = {}
  for name, domain in domains.items():
    changes = domain.constraints()
    if changes is None:
      lost[name] = domain.kind
      continue
    # A bound that is public still holds.
    field = fields[name]
    marks = set(field.from_data) & {'required'}
    fields[name] = dataclasses.replace(field, from_data=marks, **changes)
  _refuse_lost(lost)


def _count_outside(table, fields, noise, rng):
  """Returns the `ColumnBounds` of fields; finds whether they are required."""
  outcomes = {
    name: noise.add(counts, rng)
    for name, counts in table.outcomes(fields).items()
  }
  # All columns have the same rows.
  total = max(float(np.mean([*outcomes.values()]) * len(_OUTCOMES)), 1.0)
  two = Noise(math.sqrt(2) * noise.scale, noise.gaussian)
  columns = []
  for name, (missing, outside, _) in outcomes.items():
    columns.append(ColumnBounds(name, float(outside), noise.std, total))
    if 'required' in fields[name].from_data:
      most_missing = missing + outside + two.quantile(0.1)
      required = bool(most_missing <= _MISSING * total)
      fields[name] = dataclasses.replace(
        fields[name], required=required, from_data=()
      )
  return columns


class _Table:
  """The marked columns of a table, and what is counted of them.

  Each count is made in one pass over the parts of the table. Whole numbers have
  no rounding, and the other sums are those of the rows in their order: in parts
  they are the same as in memory, to the last bit.
  """

  def __init__(self, schema):
    self._schema = schema

  def _frames(self, names):
    """Yields parts of columns, which cells were present, and weights of rows.

    Columns whose types were marked are of the types that were `set_types`.
    """
    raise NotImplementedError

  def kinds(self):
    """What the cells of each kind count, of columns whose types are marked."""
    marked = [field.name for field in self._schema if 'type' in field.from_data]
    found = {name: collections.Counter() for name in marked}
    for table, _, weights in self._frames(marked) if marked else ():
      for name, counts in found.items():
        places, kinds = pd.factorize(
          self._schema.kinds(table[name]), use_na_sentinel=False
        )
        counts.update(dict(zip(kinds, np.bincount(places, weights))))
    return found

  def domains(self, fields, delta):
    """The `Bins` or `Categories` of each field of which a domain is marked."""
    fields = {
      n: f for n, f in fields.items() if set(f.from_data) - {'required'}
    }
    found, seen = {}, {}
    for table, _, weights in self._frames(fields) if fields else ():
      for name, field in fields.items():
        marks, column = set(field.from_data), table[name]
        if 'enum' in marks:
          part = Categories(column, weights, delta=delta / _LOOKS)
          seen.setdefault(name, collections.Counter()).update(part.counted())
        elif marks & {'minimum', 'maximum'}:
          limits = (
            -math.inf if 'minimum' in marks else field.minimum,
            math.inf if 'maximum' in marks else field.maximum,
          )
          values = column.to_numpy(np.float64, na_value=np.nan)
          part = Bins(values, field.type == 'integer', weights, limits)
          if name in found:
            found[name].include(part)
          else:
            found[name] = part
    # A category counts for all rows that have it.
    for name, known in seen.items():
      found[name] = Categories(
        [category for _, category in known],
        np.array([*known.values()], np.float64),
        delta=delta / _LOOKS,
      )
    return {name: found[name] for name in fields if name in found}

  def measure_left(self, categories, shares, noise, rng):
    """See `measure_left`; `categories` of columns by their names."""
    frames = (
      ([table[name] for name in categories], weights)
      for table, _, weights in self._frames(categories)
    )
    measure_left([*categories.values()], frames, shares, noise, rng)

  def outcomes(self, fields):
    """How many rows of each column have which of `_OUTCOMES`."""
    counts = {name: np.zeros(len(_OUTCOMES)) for name in fields}
    for table, were_present, weights in self._frames(fields):
      for name, field in fields.items():
        counts[name] += _outcome(
          field, table[name], were_present[name], weights
        )
    return counts


class _Whole(_Table):
  """That of a table in memory, where rows have weights."""

  def __init__(self, df, schema, units):
    super().__init__(schema)
    table, weights = schema.public_part(df), row_weights(units, len(df))
    # Rows of weight 0 are not there.
    self._table = table[weights > 0].reset_index(drop=True)
    self._weights = weights[weights > 0]
    self._were_present = self._table.notna()

  def _frames(self, names):
    yield self._table, self._were_present, self._weights

  def arrays(self):
    """Arrays that all counts are a function of."""
    return [
      pd.util.hash_pandas_object(self._table[name], index=False).to_numpy()
      for name in self._table
    ]

  def set_types(self, fields):
    """Reads columns whose types were marked again, as those of fields."""
    _set_types(self._table, self._schema, fields)


class _Parts(_Table):
  """That of a table in parts, which are read again for each count."""

  def __init__(self, table, schema, units):
    if units is not None:
      raise ValueError('Bounds of units are of a table in memory: give that.')
    super().__init__(schema)
    self._source, self._types = table, {}

  def _frames(self, names):
    schema = type(self._schema)([self._schema[name] for name in names])
    types = {n: field for n, field in self._types.items() if n in schema.names}
    for df in self._source.frames(schema.names):
      table = schema.public_part(df)
      were_present = table.notna()
      _set_types(table, schema, types)
      yield table, were_present, np.ones(len(table))

  def arrays(self):
    return [self._source.digest]

  def set_types(self, fields):
    self._types = fields


def _set_types(table, schema, fields):
  """Reads columns of text as those of fields, in place."""
  for name, field in fields.items():
    table[name] = type(schema)([field]).public_part(table[[name]])[name]


def warn_of_outside(columns: Iterable[ColumnBounds], epsilon: float) -> None:
  """Warns of columns of which bounds leave out more than one row in twenty."""
  large = [column for column in columns if column.is_large]
  if large:
    named = '; '.join(f'{column.name!r}, {column}' for column in large)
    # What is not seen shrinks as the noise does.
    factor = 2 * max(c.outside / c.rows for c in large) / _LARGE
    warnings.warn(
      f'Private bounds may leave out more than 5 % of {named}: these are '
      'clipped or become missing. State ranges or categories in the schema '
      'from public knowledge; or spend about '
      f'{max(factor, 2) * epsilon:.2g} on bounds in place of {epsilon:g}.',
      stacklevel=3,
    )


def check_num_rows(
  schema: TableSchema, epsilon: float, delta: float, num_rows: int
) -> None:
  """Warns of few rows, or units, by their public number.

  Raises:
    ValueError: if a value needs half of the rows to be seen.
  """
  plan = _plan(schema, epsilon, delta)
  if not plan.fields:
    return
  marked = [f for f in plan.fields.values() if set(f.from_data) - {'required'}]
  if not marked:
    return
  noise = plan.noise(plan.shares['domain'] / len(marked), 1)
  needed = lowest_seen(noise)
  if needed <= _LARGE * num_rows:
    return
  enough = needed / _LARGE
  # Rounded up: what is given already would not be enough.
  spend = round_up(epsilon * enough / num_rows, digits=2)
  said = (
    f'Private bounds of {len(plan.fields)} columns at epsilon {epsilon:g} see '
    f'values that {needed:,.0f} rows or more have, and there are '
    f'{num_rows:,}: %s. Give about {enough:,.0f} rows, or spend about '
    f'{spend} on bounds; or state ranges, categories and types in the '
    'schema from public knowledge.'
  )
  if needed > num_rows / 2:
    raise ValueError(said % 'too few to find any')
  warnings.warn(said % 'ranges may leave out more than 5 %', stacklevel=5)


def _refuse_lost(lost):
  """Refuses columns, a dict, of whose type, range or enum nothing is seen."""
  if lost:
    named = ', '.join(f'the {what} of {name!r}' for name, what in lost.items())
    raise ValueError(
      f'Nothing rises above the noise for {named}; spend more on bounds, or '
      'state them in the schema from public knowledge.'
    )


def _needs(domains, weights):
  """What a second look at each column is worth, when the first was taken."""
  explained = {name: d.explained() for name, d in domains.items()}
  # All columns have the same rows, of which nearly all are explained in most.
  rows = max(float(np.quantile([*explained.values(), 1.0], 0.75)), 1.0)
  return {
    name: weights[name] * (max(1 - part / rows, 0) + _NEED) ** 2
    for name, part in explained.items()
  }


def _divided(weights, share):
  total = sum(weights.values())
  return {name: share * weight / total for name, weight in weights.items()}


def _of_type(field, found):
  """The field with a type, and with marks where that type needs more."""
  marks = {
    'integer': {'minimum', 'maximum'},
    'number': {'minimum', 'maximum'},
    'string': {'enum'},
  }.get(found, set())
  # The values are placeholders: they are marked, and nothing reads them.
  return dataclasses.replace(
    field,
    type=found,
    minimum=0 if 'minimum' in marks else None,
    maximum=0 if 'maximum' in marks else None,
    enum=('?',) if 'enum' in marks else None,
    from_data=marks | ({'required'} & set(field.from_data)),
  )


class _Plan(NamedTuple):
  """How precision is shared among the counts of columns.

  Attributes:
    fields: the marked fields, by name.
    multiplier: the Gaussian noise of a count that had all of it; or one over
      epsilon, for Laplace noise.
    gaussian: which noise.
    delta_of_column: delta of the categories of a column.
    delta: of all columns.
    shares: of the type and the outcome of each column, and of the domains of
      all columns together.
  """

  fields: dict[str, Field]
  multiplier: float = 0.0
  gaussian: bool = True
  delta_of_column: float = 0.0
  delta: float = 0.0
  shares: Any = None

  def noise(self, share, rows):
    """The `Noise` of a share, by name or as a number."""
    share = self.shares.get(share, share)
    part = math.sqrt(share) if self.gaussian else share
    return Noise(rows * self.multiplier / part, self.gaussian)


def _plan(schema, epsilon, delta):
  """The `_Plan` of the marks of a schema."""
  fields = {field.name: field for field in schema.fields if field.from_data}
  if not fields:
    return _Plan(fields)
  check_positive('epsilon', epsilon)
  counts = dict.fromkeys(_WEIGHTS, 0)
  num_enums = 0
  for field in fields.values():
    marks = set(field.from_data)
    if 'type' in marks:
      _check_domain_is_marked(field)
    else:
      _check_marks_are_of_it(field)
    num_enums += bool(marks & {'type', 'enum'})
    counts['type'] += 'type' in marks
    counts['domain'] += marks != {'required'}
    counts['outcome'] += 1
  total = sum(_WEIGHTS[name] * count for name, count in counts.items())
  shares = {name: weight / total for name, weight in _WEIGHTS.items()}
  # Which of the columns have which part of this, looks at them tell.
  shares['domain'] *= counts['domain']
  if delta or num_enums:
    check_fraction('delta', delta)
  if not delta:
    return _Plan(fields, 1 / epsilon, False, 0.0, 0.0, shares)
  of_categories = _CATEGORIES_DELTA * delta if num_enums else 0.0
  multiplier = whole_noise_multiplier(
    accounting.PrivacyBudget(epsilon=epsilon, delta=delta - of_categories)
  )
  return _Plan(
    fields,
    multiplier,
    True,
    of_categories / max(num_enums, 1),
    of_categories,
    shares,
  )


def _check_domain_is_marked(field):
  """Refuses a type that is marked beside a public range or enum."""
  for name in ('minimum', 'maximum', 'enum'):
    if getattr(field, name) is not None and name not in field.from_data:
      raise ValueError(
        f'Column {field.name!r} marks its type as read off the data, but not '
        f'its {name}: mark {name}, or remove "type" from its "fromData".'
      )


def _check_marks_are_of_it(field):
  """Refuses the mark of a range or enum that a field has not."""
  for name in ('minimum', 'maximum', 'enum'):
    is_implied = name == 'enum' and field.type == 'boolean'
    marked = name in field.from_data and not is_implied
    if marked and getattr(field, name) is None:
      raise ValueError(
        f'Column {field.name!r} marks its {name} as read off the data, and has '
        f'none: give {name}, or remove it from its "fromData".'
      )


def _facts(field):
  """The public facts about a marked field that its estimate depends on."""
  marks = set(field.from_data)
  if 'type' in marks:  # The domain that is marked beside it tells of the data.
    # Of equal texts, how they are read makes other values.
    return [field.name, None, 'required' in marks, field.cells.to_dict()]
  bounds = [
    getattr(field, name)
    for name in ('minimum', 'maximum', 'enum')
    if name not in marks
  ]
  return [field.name, field.type, sorted(marks), bounds]


def _outcome(field, column, were_present, weights):
  """How many rows there are of each of `_OUTCOMES`."""
  were_present = were_present.to_numpy(bool)
  held = column.notna().to_numpy(bool)
  if field.enum is not None:
    held = held & column.isin(field.enum).to_numpy(bool)
  elif field.is_numeric:
    values = column.to_numpy(np.float64, na_value=np.nan)
    held = held & (values >= field.minimum) & (values <= field.maximum)
  return [
    weights[rows].sum() for rows in (~were_present, were_present & ~held, held)
  ]
