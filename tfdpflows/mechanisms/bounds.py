"""Private types, ranges and categories of columns that nobody may vouch for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

import dp_accounting
import numpy as np
import pandas as pd
from dp_accounting import NeighboringRelation

from tfdpflows._checks import check_positive
from tfdpflows.accounting import events
from tfdpflows.mechanisms.charges import charge_release
from tfdpflows.mechanisms.checks import touched
from tfdpflows.mechanisms.rows import as_numbers

if TYPE_CHECKING:
  import numpy.typing as npt

  from tfdpflows.accounting import PrivacyLedger
  from tfdpflows.randomness import Randomness
  from tfdpflows.tabular.schema import TableSchema

# Bins of numbers end at powers of two: 0, 2**-32, 2**-31, ..., 2**120.
_NUMBER_EXPONENTS = (-32, 120)
_INTEGER_EXPONENTS = (0, 53)
# Chance that an empty bin of the whole histogram passes the threshold.
_FALSE_ALARM = 0.01
# To decide on a type, or whether values are missing, needs less than to find a
# domain.
_WEIGHTS = {'required': 0.5, 'type': 0.5}
_KINDS = ('boolean', 'integer', 'number', 'string')
# A column of numbers stays one if this share of its values is something else,
# and one of whole numbers if this share is not whole.
_FOREIGN, _FRACTIONAL = 0.05, 0.01
_RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE


def bounds_event(
  schema: TableSchema,
  epsilon: float,
  delta: float,
  neighboring_relation: NeighboringRelation = _RELATION,
) -> dp_accounting.DpEvent:
  """Returns the `DpEvent` that `private_bounds` costs.

  Args:
    schema: `TableSchema` with marks.
    epsilon: epsilon of the whole release.
    delta: delta of the whole release; used if an enum or a type is marked.
    neighboring_relation: that of the ledger. Whichever it is, the event costs
      (`epsilon`, `delta`) where an accountant takes the same one.

  Returns:
    A `dp_accounting.ComposedDpEvent`, or `NoOpDpEvent` without marks.

  Raises:
    ValueError: if a budget is not positive, the relation not supported, or the
      type of a column marked, but not what it rests on.
  """
  rows = touched(neighboring_relation)
  parts = [
    # Accountants take the sum to move by as much as `rows` of them.
    dp_accounting.LaplaceDpEvent(rows / eps)
    if kind not in ('enum', 'domain')
    else events.EpsilonDeltaDpEvent(eps, delta_part)
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
) -> TableSchema:
  """Returns the schema with every mark replaced by a private estimate.

  Only what is not marked enters of `schema`, besides the names. The budget is
  split evenly over the marked ranges and enums, half a share going to each
  marked `required` and to each marked type. A column whose type is marked pays
  for a type, and for the range or the enum of that type. Rows beyond the new
  bounds have to be clipped afterwards (`schema.validate(df,
  out_of_range='clip')`): rare categories become missing values, numbers move to
  the nearest bound.

  Args:
    df: `DataFrame` with at least the marked columns. No value is refused; what
      the type of a column cannot hold counts as missing.
    schema: `TableSchema` with marks.
    epsilon: epsilon to spend on all marks together.
    delta: delta to spend on marked enums and types, together.
    randomness: `tfdpflows.randomness.Randomness`, of which the stream `label`
      is used; `None` for one that nobody knows.
    ledger: `PrivacyLedger` that is charged before anything is computed from
      the table, but for a fingerprint that says nothing without the secret.
    label: label of the charge.
    resume: whether a charge of that label that is already in the ledger pays
      for this call: a repeated one, with the same table, parameters and
      `randomness`.

  Returns:
    A `TableSchema` without marks.

  Raises:
    ValueError: if a budget is not positive; nothing of a column rises above
      the noise, which is read off what was released; `randomness` was used
      under this label before; or to resume without it.
    BudgetExceededError: if the ledger refuses the charge.
    LedgerError: to resume with another table, parameter or secret.

  #### Formal guarantee

  Under the neighbouring relation of the ledger: types are found by
  `private_type` and ranges by `private_range`, which are `epsilon_i`-private,
  and categories by `private_categories`, which is `(epsilon_i,
  delta_i)`-private. Which of the two last a column of a private type goes
  through depends on the type that was released, and either costs no more than
  what is charged. Whether values are missing is one count with Laplace noise of
  scale `1 / epsilon_i`; given type and categories it moves by 1 at most,
  whether a row is added, removed or replaced. The release is their composition,
  `bounds_event`, and is `(epsilon, delta)`-private by basic composition. The
  noise is drawn in floating point and is not proof against floating-point
  attacks.
  """
  relation = ledger.neighboring_relation
  plan = _plan(schema, epsilon, delta)
  if not plan:
    return schema
  fields = {field.name: field for field, *_ in plan}
  table = type(schema)(fields.values()).public_part(df)
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
    },
    arrays=[
      pd.util.hash_pandas_object(table[name], index=False).to_numpy()
      for name in fields
    ],
    resume=resume,
  )
  rng = randomness.numpy(str(label))
  for name, kind, eps, delta_part in [(f.name, *rest) for f, *rest in plan]:
    field, column = fields[name], table[name]
    if kind == 'domain':
      kind = {'string': 'enum', 'boolean': None}.get(field.type, 'range')
    changes = {}
    if kind == 'type':
      found = private_type(
        schema.kinds(column),
        epsilon=eps,
        rng=rng,
        neighboring_relation=relation,
      )
      if found is None:
        raise ValueError(_too_few(name, 'type'))
      field = _of_type(field, found)
      table[name] = type(schema)([field]).public_part(table[[name]])[name]
    elif kind == 'range':
      changes = _range_of(column, field, eps, rng, relation)
    elif kind == 'enum':
      changes['enum'] = private_categories(
        column,
        epsilon=eps,
        delta=delta_part,
        rng=rng,
        neighboring_relation=relation,
      )
      if not changes['enum']:
        raise ValueError(_too_few(name, 'enum'))
    elif kind == 'required':
      changes['required'] = _is_required(column, field, eps, rng)
    marks = set(field.from_data) - {kind, *changes}
    fields[name] = dataclasses.replace(field, from_data=marks, **changes)
  return type(schema)(fields.get(field.name, field) for field in schema.fields)


def private_type(
  kinds: Iterable[Any],
  *,
  epsilon: float,
  rng: np.random.Generator,
  neighboring_relation: NeighboringRelation = _RELATION,
) -> Optional[str]:
  """Returns the type of a column, privately.

  Args:
    kinds: array `[n]` of 'boolean', 'integer', 'number' and 'string', what each
      value looks like; whatever else is there is left out.
    epsilon: epsilon to spend.
    rng: `np.random.Generator` of the noise.
    neighboring_relation: what two neighbouring tables are.

  Returns:
    The narrowest of them that holds all values but a few: as many as noise
    looks like, and a twentieth of all where the others are numbers (a
    hundredth where the others are whole). `None` if there are no more than
    noise looks like of any.

  #### Formal guarantee

  `epsilon`-private under `neighboring_relation`, as `private_range` is: four
  counts with Laplace noise, of which a row moves one.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows.mechanisms import private_type
  >>> private_type(
  ...   ['integer'] * 900 + ['number'] * 300 + ['string'],
  ...   epsilon=0.5, rng=np.random.default_rng(0))
  'number'
  """
  check_positive('epsilon', epsilon)
  scale = touched(neighboring_relation) / epsilon
  kinds = [kind for kind in kinds if isinstance(kind, str)]
  counts = np.array([kinds.count(kind) for kind in _KINDS], np.float64)
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
  *,
  epsilon: float,
  rng: np.random.Generator,
  integer: bool = False,
  neighboring_relation: NeighboringRelation = _RELATION,
) -> Optional[tuple[float, float]]:
  """Returns a private range that holds nearly all values.

  Values are counted in bins that end at signed powers of two, noise is added,
  and the range runs from the lowest bin to the highest one whose noisy count
  passes a threshold that an empty histogram passes with a chance of 1 %. An
  end that is near zero for the size of the other end is zero. The far end is
  at most about twice what the values need; values in bins of few rows may lie
  outside the range.

  Args:
    values: array `[n]` of numbers; NaN and infinite ones are left out.
    epsilon: epsilon to spend.
    rng: `np.random.Generator` of the noise.
    integer: whether values are whole; bounds are then whole too.
    neighboring_relation: what two neighbouring tables are; where a row is
      replaced, there is twice the noise.

  Returns:
    `(low, high)`, or `None` if no bin passes the threshold.

  #### Formal guarantee

  `epsilon`-private under `neighboring_relation`: the bins are disjoint and
  fixed, so that a row added or removed moves one count by 1, and a row replaced
  moves two of them. The noise has 1 and 2 over epsilon as its scale. Reading a
  range off the noisy counts is post-processing.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows.mechanisms import private_range
  >>> ages = np.random.default_rng(0).integers(18, 91, 5000)
  >>> private_range(
  ...   ages, epsilon=0.5, rng=np.random.default_rng(1), integer=True
  ... )
  (0, 127)
  """
  check_positive('epsilon', epsilon)
  low, high = _INTEGER_EXPONENTS if integer else _NUMBER_EXPONENTS
  positive = np.append(0.0, 2.0 ** np.arange(low, high + 1))
  edges = np.concatenate([-positive[:0:-1], positive])
  values = as_numbers(values, 'values').astype(np.float64)
  values = values[np.isfinite(values)]
  values = np.clip(values, edges[0], np.nextafter(edges[-1], 0))
  counts = np.histogram(values, edges)[0]
  scale = touched(neighboring_relation) / epsilon
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
  *,
  epsilon: float,
  delta: float,
  rng: np.random.Generator,
  neighboring_relation: NeighboringRelation = _RELATION,
) -> tuple[Any, ...]:
  """Returns the categories that enough rows have, privately.

  Args:
    column: `pandas.Series` or array `[n]` of texts, booleans and numbers;
      missing values and whatever else there is are left out.
    epsilon: epsilon to spend.
    delta: delta to spend.
    rng: `np.random.Generator` of the noise.
    neighboring_relation: what two neighbouring tables are; where a row is
      replaced, half of epsilon and delta is spent on each category it touches.

  Returns:
    A sorted tuple of the categories whose noisy count passes
    `1 + log(1 / (2 * delta)) / epsilon`.

  #### Formal guarantee

  `(epsilon, delta)`-private for one row added or removed (Korolova et al.,
  2009): a row touches one category. If others have it too, its noisy count is
  a Laplace mechanism; if the row is the only one, the category shows with a
  chance of `delta` at most. A row that is replaced touches two categories,
  whose noise is independent: the release is then the composition of two that
  are `(epsilon / 2, delta / 2)`-private.

  #### Example

  >>> import numpy as np
  >>> from tfdpflows.mechanisms import private_categories
  >>> private_categories(
  ...   ['red'] * 500 + ['blue'] * 400 + ['my name'],
  ...   epsilon=0.5, delta=1e-6, rng=np.random.default_rng(0),
  ... )
  ('blue', 'red')
  """
  check_positive('epsilon', epsilon)
  if not 0 < delta < 1:
    raise ValueError(f'delta is {delta}; it must be between 0 and 1.')
  rows = touched(neighboring_relation)
  epsilon, delta = epsilon / rows, delta / rows
  categories, counts = _counted(column)
  noise = rng.laplace(scale=1 / epsilon, size=len(counts))
  passed = counts + noise >= 1 - math.log(2 * delta) / epsilon
  return tuple(c for c, shown in zip(categories, passed) if shown)


def _counted(column):
  """Returns the categories of a column in order, and how many rows have each.

  Categories that Python takes for equal (1, 1.0 and True) are told apart: which
  of them stood first, and gave the name, would tell of a row.
  """
  counts = {}
  for value in column:
    value = _plain(value)
    if value is not None:
      key = type(value).__name__, value
      counts[key] = counts.get(key, 0) + 1
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
  """The field with a type, and with marks where it needs more."""
  marks = {'minimum', 'maximum'} if found in ('integer', 'number') else set()
  # What stands there is marked, and nobody looks at it.
  return dataclasses.replace(
    field,
    type=found,
    minimum=0 if marks else None,
    maximum=0 if marks else None,
    enum=('?',) if found == 'string' else None,
    from_data=(
      *sorted(marks),
      *(['enum'] if found == 'string' else []),
      *(['required'] if 'required' in field.from_data else []),
    ),
  )


def _plan(schema, epsilon, delta):
  """The marked parts `(field, kind, epsilon, delta)` and their budgets."""
  parts = []
  for field in schema.fields:
    if 'type' in field.from_data:
      _check_rests_on_data(field)
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
  if any(enums) and not 0 < delta < 1:
    raise ValueError(
      f'delta is {delta}; categories and types read off the data need one '
      'between 0 and 1.'
    )
  weights = [_WEIGHTS.get(kind, 1.0) for _, kind in parts]
  total = sum(weights)
  return [
    (field, kind, epsilon * w / total, delta / sum(enums) if enum else 0.0)
    for (field, kind), w, enum in zip(parts, weights, enums)
  ]


def _check_rests_on_data(field):
  """Refuses a type that is marked beside a public range or enum."""
  public = [
    name
    for name in ('minimum', 'maximum', 'enum')
    if getattr(field, name) is not None and name not in field.from_data
  ]
  if public:
    raise ValueError(
      f'Column {field.name!r} marks its type as read off the data, but not its '
      f'{public[0]}, which is of that type: remove "type" from its "fromData" '
      f'too, or mark {public[0]}.'
    )


def _facts(field, kind):
  """What of a marked field enters besides its rows; it is public."""
  bounds = [
    getattr(field, name)
    for name in ('minimum', 'maximum')
    if kind == 'range' and name not in field.from_data
  ]
  known = None if 'type' in field.from_data else field.type
  return [field.name, known, kind, *bounds]


def _too_few(name, what):
  return (
    f'Column {name!r}: no {what} rises above the noise; spend more on bounds, '
    'or state them in the schema from public knowledge.'
  )


def _range_of(column, field, epsilon, rng, neighboring_relation):
  values = column.to_numpy(np.float64, na_value=np.nan)
  # A bound that is public still holds.
  low = -np.inf if 'minimum' in field.from_data else field.minimum
  high = np.inf if 'maximum' in field.from_data else field.maximum
  found = private_range(
    np.clip(values, low, high),
    epsilon=epsilon,
    rng=rng,
    integer=field.type == 'integer',
    neighboring_relation=neighboring_relation,
  )
  if found is None:
    raise ValueError(_too_few(field.name, 'range'))
  return {
    'minimum': min(max(found[0], low), high),
    'maximum': max(min(found[1], high), low),
  }


def _is_required(column, field, epsilon, rng):
  missing = column.isna()
  if field.enum is not None:
    missing |= ~column.isin(field.enum)
  noisy = int(missing.sum()) + rng.laplace(scale=1 / epsilon)
  # Passed by a table without missing values with a chance of one in ten.
  return bool(noisy <= math.log(5) / epsilon)
