"""Private estimates of the types, ranges and categories of columns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

import dp_accounting
import numpy as np
import pandas as pd
from dp_accounting import NeighboringRelation

from tfdpflows._checks import check_fraction, check_positive
from tfdpflows.accounting import EpsilonDeltaDpEvent
from tfdpflows.mechanisms.releases import (
  as_numbers,
  charge_release,
  differing_rows,
  row_weights,
)

if TYPE_CHECKING:
  import numpy.typing as npt

  from tfdpflows.accounting import PrivacyLedger
  from tfdpflows.randomness import Randomness
  from tfdpflows.sampling import Units
  from tfdpflows.tabular.schema import TableSchema

# Bins of numbers end at powers of two: 0, 2**-32, 2**-31, ..., 2**120.
_NUMBER_EXPONENTS = (-32, 120)
_INTEGER_EXPONENTS = (0, 53)
# Probability that an empty bin of the whole histogram passes the threshold.
_FALSE_ALARM = 0.01
# To decide on a type, or whether values are missing, needs less than to find a
# domain.
_WEIGHTS = {'required': 0.5, 'type': 0.5}
_KINDS = ('boolean', 'integer', 'number', 'string')
# The largest share of other values in a column of numbers, and of values that
# are not whole in a column of integers.
_FOREIGN, _FRACTIONAL = 0.05, 0.01


def bounds_event(
  schema: TableSchema,
  epsilon: float,
  delta: float,
  neighboring_relation: NeighboringRelation = (
    NeighboringRelation.ADD_OR_REMOVE_ONE
  ),
) -> dp_accounting.DpEvent:
  """Returns the `DpEvent` of `private_bounds`, `NoOpDpEvent` without marks.

  It costs (`epsilon`, `delta`) where an accountant takes the same relation.
  """
  rows = differing_rows(neighboring_relation)
  parts = [
    # Accountants take the sum to change by as much as `rows` of them.
    dp_accounting.LaplaceDpEvent(rows / eps)
    if kind not in ('enum', 'domain')
    else EpsilonDeltaDpEvent(eps, delta_part)
    for _, kind, eps, delta_part in _plan(schema, epsilon, delta)
  ]
  if not parts:
    return dp_accounting.NoOpDpEvent()
  return dp_accounting.ComposedDpEvent(parts)


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

  Of `schema`, only what is not marked is used, and the names. The budget is
  split evenly over the marked ranges and enums, with half a share for each
  marked `required` and each marked type. A column whose type is marked has a
  share for the type, and one for the range or the enum of that type. Rows
  outside of the new bounds have to be clipped afterwards (`schema.validate(df,
  out_of_range='clip')`): rare categories become missing values, numbers move to
  the nearest bound.

  Args:
    df: `DataFrame` with at least the marked columns. No value is refused; what
      the type of a column cannot hold counts as missing.
    schema: `TableSchema` with marks.
    epsilon: epsilon of all marks together.
    delta: delta of all marked enums and types together.
    randomness: see `tfdpflows.mechanisms`, as the errors.
    ledger: see there.
    label: see there.
    resume: see there.
    units: see there; counts are sums of weights then.

  Returns:
    A `TableSchema` without marks.

  Raises:
    ValueError: if nothing of a column rises above the noise, which is read off
      what was released; or if the type of a column is marked, but not its
      range or enum.

  #### Formal guarantee

  Where a row is added or removed, `private_type` and `private_range` are
  `epsilon_i`-private, and `private_categories` is `(epsilon_i,
  delta_i)`-private; where a row is replaced, they are run with half of both.
  Which of the last two a column of a private type goes through depends on the
  released type, and either costs no more than what is charged. Whether values
  are missing is one count with Laplace noise of scale `1 / epsilon_i`; given
  type and categories it changes by at most 1, whether a row is added, removed
  or replaced. A unit counts as a row does: its weights add up to 1 at most, and
  the categories that it alone has, as many as its rows, share `delta_i`. The
  release is their composition, `bounds_event`, and is
  `(epsilon, delta)`-private by basic composition.
  """
  relation = ledger.neighboring_relation
  plan = _plan(schema, epsilon, delta)
  if not plan:
    return schema
  fields = {field.name: field for field, *_ in plan}
  table = type(schema)(fields.values()).public_part(df)
  weights = row_weights(units, len(df))
  # Rows of weight 0 are not there.
  table = table[weights > 0].reset_index(drop=True)
  weights = weights[weights > 0]
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
      'parts': [_facts(field, kind) for field, kind, *_ in plan],
      **({} if units is None else {'max_rows_per_unit': most}),
    },
    arrays=[
      pd.util.hash_pandas_object(table[name], index=False).to_numpy()
      for name in fields
    ],
    resume=resume,
    units=units,
  )
  rng, rows = randomness.numpy(str(label)), differing_rows(relation)
  for name, kind, eps, delta_part in [(f.name, *rest) for f, *rest in plan]:
    field, column = fields[name], table[name]
    if kind == 'domain':
      kind = {'string': 'enum', 'boolean': None}.get(field.type, 'range')
    changes, found = {}, True
    if kind == 'type':
      found = private_type(schema.kinds(column), eps / rows, rng, weights)
      if found:
        field = _of_type(field, found)
        table[name] = type(schema)([field]).public_part(table[[name]])[name]
    elif kind == 'range':
      changes = found = _range_of(column, weights, field, eps / rows, rng)
    elif kind == 'enum':
      found = private_categories(
        column, eps / rows, delta_part / rows / most, rng, weights
      )
      changes = {'enum': found}
    elif kind == 'required':
      changes = {'required': _is_required(column, weights, field, eps, rng)}
    if not found:
      raise ValueError(
        f'Column {name!r}: no {kind} rises above the noise; spend more on '
        'bounds, or state them in the schema from public knowledge.'
      )
    marks = set(field.from_data) - {kind, *changes}
    fields[name] = dataclasses.replace(field, from_data=marks, **changes)
  return dataclasses.replace(
    schema, fields=[fields.get(field.name, field) for field in schema.fields]
  )


def private_type(
  kinds: Iterable[Any],
  epsilon: float,
  rng: np.random.Generator,
  weights: Optional[npt.ArrayLike] = None,
) -> Optional[str]:
  """Returns the narrowest type that holds all but a few values, privately.

  A few are as many as the noise may add, and 5 % of all where the others are
  numbers (1 % where the others are whole). `kinds [n]` has the apparent type of
  each value; entries that are no type are left out. `weights [n]` is what each
  counts, 1 by default. `None` is returned if no count rises above the noise.

  `epsilon`-private where a row is added or removed, as `private_range`: four
  counts with Laplace noise, of which a row changes one.

  >>> kinds = ['integer'] * 900 + ['number'] * 300 + ['string']
  >>> private_type(kinds, 0.5, np.random.default_rng(0))
  'number'
  """
  scale = 1 / epsilon
  counts = dict.fromkeys(_KINDS, 0.0)
  for kind, weight in zip(kinds, _weights(weights, kinds)):
    if kind in counts:
      counts[kind] += weight
  counts = np.array([*counts.values()])
  noisy = counts + rng.laplace(scale=scale, size=len(counts))
  boolean, integer, number, string = noisy
  noise = math.log(1 / (2 * _FALSE_ALARM)) * scale
  total = max(noisy.sum(), 0.0)
  foreign = noise + _FOREIGN * total
  if noisy.max() <= noise:
    return None
  numeric = integer + number
  if string > foreign or (boolean > foreign and numeric > foreign):
    return 'string'
  if boolean > numeric:
    return 'boolean'
  return 'number' if number > noise + _FRACTIONAL * total else 'integer'


def private_range(
  values: npt.ArrayLike,
  epsilon: float,
  rng: np.random.Generator,
  integer: bool = False,
  weights: Optional[npt.ArrayLike] = None,
) -> Optional[tuple[float, float]]:
  """Returns a private range that holds nearly all values, `None` if too few.

  Values are counted in bins that end at signed powers of two, noise is added,
  and the range runs from the lowest bin to the highest one whose noisy count
  passes a threshold that an empty histogram passes with probability 1 %. An end
  that is near zero for the size of the other end is zero. The far end is at
  most about twice what the values need; values in bins of few rows may lie
  outside the range. NaN and infinite values are left out; bounds of an
  `integer` column are whole.

  #### Formal guarantee

  `epsilon`-private where a row is added or removed: the bins are disjoint and
  fixed, so that a row changes one count by 1, and the noise has the scale
  `1 / epsilon`. Reading a range off the noisy counts is post-processing.

  #### Example

  >>> ages = np.random.default_rng(0).integers(18, 91, 5000)
  >>> private_range(ages, 0.5, np.random.default_rng(1), integer=True)
  (0, 127)
  """
  low, high = _INTEGER_EXPONENTS if integer else _NUMBER_EXPONENTS
  positive = np.append(0.0, 2.0 ** np.arange(low, high + 1))
  edges = np.concatenate([-positive[:0:-1], positive])
  values = as_numbers(values, 'values').astype(np.float64)
  weights = _weights(weights, values)[np.isfinite(values)]
  values = values[np.isfinite(values)]
  values = np.clip(values, edges[0], np.nextafter(edges[-1], 0))
  counts = np.histogram(values, edges, weights=weights)[0]
  scale = 1 / epsilon
  noisy = counts + rng.laplace(scale=scale, size=len(counts))
  passed = noisy > math.log(len(counts) / (2 * _FALSE_ALARM)) * scale
  if not passed.any():
    return None
  places = np.flatnonzero(passed)
  found = edges[places[0]], edges[places[-1] + 1]
  # Bins near zero are narrow and hide below the threshold what they hold.
  if 0 < found[0] <= found[1] / 8:
    found = 0.0, found[1]
  if 0 > found[1] >= found[0] / 8:
    found = found[0], 0.0
  if integer:
    # The last bin ends before its edge, except where it is a lone zero or one.
    return int(found[0]), int(max(found[1] - 1, found[0]))
  return float(found[0]), float(found[1])


def private_categories(
  column: Iterable[Any],
  epsilon: float,
  delta: float,
  rng: np.random.Generator,
  weights: Optional[npt.ArrayLike] = None,
) -> tuple[Any, ...]:
  """Returns the categories that enough rows have, privately, sorted.

  These are the strings, booleans and numbers whose noisy count passes
  `1 + log(1 / (2 * delta)) / epsilon`; other values are left out. `weights [n]`
  is what each counts, 1 by default.

  #### Formal guarantee

  `(epsilon, delta)`-private where a row is added or removed (Korolova et al.,
  2009). The row has one category. If others have it too, its noisy count is a
  Laplace mechanism; if the row is the only one, the category is released with
  probability `delta` at most. Replacing a row changes two categories, whose
  noise is independent: then the release is a composition of two such ones.
  Where a unit of k rows, whose weights add up to 1, is added or removed, it is
  the only one in k categories at most: `(epsilon, k delta)`-private.

  #### Example

  >>> colours = ['red'] * 500 + ['blue'] * 400 + ['my name']
  >>> private_categories(colours, 0.5, 1e-6, np.random.default_rng(0))
  ('blue', 'red')
  """
  categories, counts = _counted(column, _weights(weights, column))
  noise = rng.laplace(scale=1 / epsilon, size=len(counts))
  passed = counts + noise >= 1 - math.log(2 * delta) / epsilon
  return tuple(c for c, shown in zip(categories, passed) if shown)


def _weights(weights, values):
  return np.ones(len(values)) if weights is None else np.asarray(weights)


def _counted(column, weights):
  """Returns the categories of a column in order, and the weight of each.

  Categories that Python takes for equal (1, 1.0 and True) are told apart: which
  of them stood first, and gave the name, would tell of a row.
  """
  counts = {}
  for value, weight in zip(column, weights):
    value = _plain(value)
    if value is not None:
      key = type(value).__name__, value
      counts[key] = counts.get(key, 0.0) + weight
  keys = sorted(counts)
  return [value for _, value in keys], np.array([counts[k] for k in keys])


def _plain(value):
  """A category as Python's own type; `None` for what is missing or none."""
  if isinstance(value, str):
    return str(value)
  if isinstance(value, (bool, np.bool_)):
    return bool(value)
  if isinstance(value, (int, np.integer)):
    return int(value)
  if isinstance(value, (float, np.floating)) and np.isfinite(value):
    return float(value) + 0.0
  return None


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


def _plan(schema, epsilon, delta):
  """The marked parts `(field, kind, epsilon, delta)` and their budgets."""
  parts = []
  for field in schema.fields:
    if 'type' in field.from_data:
      _check_domain_is_marked(field)
      parts += [(field, 'type'), (field, 'domain')]
    elif {'minimum', 'maximum'} & set(field.from_data):
      parts.append((field, 'range'))
    elif 'enum' in field.from_data:
      parts.append((field, 'enum'))
    if 'required' in field.from_data:
      parts.append((field, 'required'))
  if not parts:
    return []
  check_positive('epsilon', epsilon)
  enums = [kind in ('enum', 'domain') for _, kind in parts]
  if any(enums):
    check_fraction('delta', delta)
  weights = [_WEIGHTS.get(kind, 1.0) for _, kind in parts]
  total = sum(weights)
  return [
    (field, kind, epsilon * w / total, delta / sum(enums) if enum else 0.0)
    for (field, kind), w, enum in zip(parts, weights, enums)
  ]


def _check_domain_is_marked(field):
  """Refuses a type that is marked beside a public range or enum."""
  for name in ('minimum', 'maximum', 'enum'):
    if getattr(field, name) is not None and name not in field.from_data:
      raise ValueError(
        f'Column {field.name!r} marks its type as read off the data, but not '
        f'its {name}: mark {name}, or remove "type" from its "fromData".'
      )


def _facts(field, kind):
  """The public facts about a marked field that its estimate depends on."""
  bounds = [
    getattr(field, name)
    for name in ('minimum', 'maximum')
    if kind == 'range' and name not in field.from_data
  ]
  known = None if 'type' in field.from_data else field.type
  return [field.name, known, kind, *bounds]


def _range_of(column, weights, field, epsilon, rng):
  values = column.to_numpy(np.float64, na_value=np.nan)
  # A bound that is public still holds.
  low = -np.inf if 'minimum' in field.from_data else field.minimum
  high = np.inf if 'maximum' in field.from_data else field.maximum
  found = private_range(
    np.clip(values, low, high), epsilon, rng, field.type == 'integer', weights
  )
  if found is None:
    return None
  return {
    'minimum': min(max(found[0], low), high),
    'maximum': max(min(found[1], high), low),
  }


def _is_required(column, weights, field, epsilon, rng):
  missing = column.isna()
  if field.enum is not None:
    missing |= ~column.isin(field.enum)
  noisy = weights[missing.to_numpy(bool)].sum() + rng.laplace(scale=1 / epsilon)
  # A table without missing values fails this with probability 10 %.
  return bool(noisy <= math.log(5) / epsilon)
