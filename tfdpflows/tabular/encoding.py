"""Encodes tables as arrays of codes, and decodes them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tfdpflows.tabular import constrained_rows, constraints, values
from tfdpflows.tabular.field import Field, digits
from tfdpflows.tabular.schema import TableSchema

# Wider integers are treated as continuous and rounded: float32 has no room
# for a fraction beside a larger code.
_WIDEST = 2**20
# The interval of missing values, as a share of a continuous range.
_MISSING_SHARE = 1 / 64


@dataclasses.dataclass(frozen=True)
class EncodedColumn:
  """An encoded column: codes in `[0, size)`.

  Attributes:
    name: name of the column.
    size: end of the support, the missing cell included.
    cell: 1.0 for codes `0, 1, 2, ...` that each stand for `[x, x + 1)`, 0.0
      for continuous values.
    missing: whether the support ends in a cell (continuous: an interval) for
      missing values.
    ordered: whether neighbouring codes are neighbouring values.
    resolution: the least difference between values that decoding keeps.
    fields: names of the fields that it has the values of; by default that of
      its name.
    likely: of values that many rows may share, whatever the table (the bounds,
      and zero), the codes (of cells, their middles), and how far from them
      nothing else can be told in float32.
  """

  name: str
  size: float
  cell: float
  missing: bool
  ordered: bool
  resolution: float = 1.0
  fields: tuple[str, ...] = ()
  likely: tuple[tuple[float, float], ...] = ()

  def __post_init__(self):
    object.__setattr__(self, 'fields', tuple(self.fields) or (self.name,))

  @property
  def value_size(self) -> float:
    """Where values end and, if there is one, the missing cell begins."""
    if not self.missing:
      return self.size
    if self.cell:
      return self.size - self.cell
    return self.size / (1 + _MISSING_SHARE)

  def exact(self, codes: Any, where: Callable[..., Any] = np.where) -> Any:
    """Returns codes, float64, as `likely` ones if they are as good as these.

    Args:
      codes: an array or a tensor.
      where: `np.where`, or `tf.where` for a tensor.
    """
    for code, reach in () if self.cell else self.likely:
      codes = where(abs(codes - code) <= reach, np.float64(code), codes)
    return codes


class TableEncoder:
  """Encodes the fields of a schema as float32 columns, and decodes.

  Each is one column, but for what constraints say: fields of fixed or excluded
  combinations are one column together, whose categories are the combinations
  that are allowed, and fields that are computed are none.

  Categories, booleans and integers become codes (an integer its distance to
  the minimum, a category its place in the enum), numbers their distance to
  the minimum. Numbers with `decimals` are counted in steps, and types of time
  in units, as integers are. Missing values have a cell of their own at the end.

  Args:
    schema: a `TableSchema`.

  Attributes:
    schema: see above.
    columns: the `EncodedColumn`s.
    parts: what each is of, a `Field` or `constrained_rows.Combinations`.
    computed: the `Computed` constraints.

  #### Example

  >>> import pandas as pd
  >>> from tfdpflows.tabular import Field, TableEncoder, TableSchema
  >>> schema = TableSchema([
  ...   Field('age', 'integer', minimum=18, maximum=99, required=True),
  ...   Field('sex', 'string', enum=('f', 'm'), required=True),
  ... ])
  >>> encoder = TableEncoder(schema)
  >>> table = pd.DataFrame({'age': [18, 40], 'sex': ['m', 'f']})
  >>> encoder.encode(schema.validate(table))
  array([[ 0.,  1.],
         [22.,  0.]], dtype=float32)
  >>> encoder.decode([[0.3, 1.9]])
     age sex
  0   18   m
  """

  def __init__(self, schema: TableSchema):
    self.schema = schema
    combined = {
      c.fields[0]: constrained_rows.Combinations(c, schema)
      for c in schema.constraints
      if isinstance(c, constraints.FixedCombinations)
    }
    self.computed = [
      c for c in schema.constraints if isinstance(c, constraints.Computed)
    ]
    others = {f.name for c in combined.values() for f in c.fields[1:]}
    others.update(c.field for c in self.computed)
    self.parts = [
      combined.get(field.name, field)
      for field in schema
      if field.name not in others
    ]
    self.columns = tuple(map(encoded_column, self.parts))

  def is_alone(self, name: str) -> bool:
    """Whether a field is a column by itself, and no others are in it."""
    return any(column.fields == (name,) for column in self.columns)

  def encode(self, df: pd.DataFrame) -> np.ndarray:
    """Returns the codes of a validated table, float32 `[n, d]`.

    Continuous missing values are in the middle of their interval.

    Raises:
      ValueError: for values or combinations that the schema does not declare.
    """
    result = np.empty((len(df), len(self.columns)), np.float32)
    for i in range(len(self.columns)):
      result[:, i] = self.encode_part(i, df)
    return result

  def encode_part(self, number: int, df: pd.DataFrame) -> np.ndarray:
    """Returns one column of `encode`, of a table with its fields at least."""
    part, column = self.parts[number], self.columns[number]
    if isinstance(part, Field):
      return encode_column(df[part.name], part, column)
    found, exact = part.find(df)
    if not exact.all():
      raise _undeclared(column.name)
    return found.astype(np.float32)

  def decode(self, x: np.ndarray) -> pd.DataFrame:
    """Returns the table that codes `[n, d]` stand for.

    Codes may lie anywhere in their cells; out of range, the nearest end counts.
    All values are declared ones.

    Raises:
      ValueError: if the shape is wrong or a code is not a number.
    """
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] != len(self.columns):
      raise ValueError(
        f'`x` has shape {x.shape}; it needs [num_rows, {len(self.columns)}].'
      )
    if np.isnan(x).any():
      raise ValueError('`x` holds NaN; codes are numbers.')
    series = {}
    for i, (part, column) in enumerate(zip(self.parts, self.columns)):
      if isinstance(part, Field):
        series[part.name] = _decode_column(x[:, i], part, column)
        continue
      codes = np.clip(np.floor(x[:, i]), 0, column.size - 1).astype(np.int64)
      for field, known in zip(part.fields, self.combined_codes(part)):
        series[field.name] = _decode_column(
          known[codes], field, encoded_column(field)
        )
    for one in self.computed:
      number = constrained_rows.computed_steps(
        one, self.schema, pd.DataFrame(series, copy=False)
      )
      field = self.schema[one.field]
      series[field.name] = constrained_rows.computed_values(number, field)
    ordered = {name: series[name] for name in self.schema.names}
    return pd.DataFrame(ordered, copy=False)

  @staticmethod
  def combined_codes(part: constrained_rows.Combinations) -> np.ndarray:
    """Returns the code of each field in each combination, `[fields, rows]`.

    In float64: float32 has not room for all integers.
    """
    return np.stack(
      [
        _codes_of(
          values.typed(part.frame[f.name], f.type, f.name, f.enum or ()),
          f,
          encoded_column(f),
        )
        for f in part.fields
      ]
    )


def num_columns(schema: TableSchema) -> int:
  """Returns how many columns a `TableEncoder` has, also of a draft."""
  computed = combined = 0
  for constraint in schema.constraints:
    computed += isinstance(constraint, constraints.Computed)
    if isinstance(constraint, constraints.FixedCombinations):
      combined += len(constraint.fields) - 1
  return len(schema) - computed - combined


def number_of(columns: Sequence[EncodedColumn], name: str | None) -> int | None:
  """Returns the number of the encoded column that holds a field, if one does.

  Raises:
    ValueError: if none does; `None` has no number.
  """
  if name is None:
    return None
  return [name in column.fields for column in columns].index(True)


def _undeclared(name):
  return ValueError(
    f'Column {name!r} holds values that the schema does not declare; pass the '
    'table through `TableSchema.validate` first.'
  )


def encoded_column(
  field: Field | constrained_rows.Combinations,
) -> EncodedColumn:
  """Returns the `EncodedColumn` of a field, or of fields combined."""
  if isinstance(field, constrained_rows.Combinations):
    names = [f.name for f in field.fields]
    size = float(len(field.rows))
    return EncodedColumn(
      ' & '.join(names), size, 1.0, False, False, fields=names
    )
  missing = not field.required
  ordered = field.is_numeric or field.is_temporal
  if field.categories is not None:
    cells = len(field.categories)
    if field.is_numeric:
      ordered = list(field.enum) == sorted(field.enum)
  elif field.is_constant:
    cells = 1
  elif field.grid is not None and field.grid[1] - field.grid[0] < _WIDEST:
    cells = field.grid[1] - field.grid[0] + 1
  else:
    low, high = field.grid or (field.minimum, field.maximum)
    size = float(high) - float(low)
    if not math.isfinite(size) or size > 1e37 or size < 1e-37:
      raise ValueError(
        f'Column {field.name!r} has a range of {size}, which float32 cannot '
        'hold; rescale the column.'
      )
    resolution = 10.0 ** -digits(size) if field.grid is None else 1.0
    likely = _likely(field, low, high)
    reach = lambda x: max(resolution / 2, float(np.spacing(np.float32(x))))
    size *= 1 + _MISSING_SHARE * missing
    return EncodedColumn(
      *(field.name, size, 0.0, missing, True, resolution),
      likely=tuple((code, reach(code)) for code in likely),
    )
  likely = ()
  if field.categories is None and not field.is_constant:
    likely = _likely(field, *field.grid)
  return EncodedColumn(
    *(field.name, float(cells + missing), 1.0, missing, ordered),
    likely=tuple((code + 0.5, 0.5) for code in likely),
  )


def _likely(field, low, high):
  """Bounds, and zero between them, as distances from the lower bound."""
  zero = {-float(low)} if field.is_numeric and low < 0 < high else set()
  return sorted({0.0, float(high) - float(low)} | zero)


def encode_column(
  cells: pd.Series, field: Field, column: EncodedColumn
) -> np.ndarray:
  """Returns the codes of some validated values of a column, float32 `[n]`."""
  return _codes_of(cells, field, column).astype(np.float32)


def _codes_of(cells, field, column):
  missing = cells.isna().to_numpy()
  if column.missing and column.cell:
    blank = column.value_size
  else:
    blank = (column.value_size + column.size) / 2
  if field.categories is not None:
    index = pd.Index(list(field.categories))
    if field.type == 'boolean':
      codes = cells.fillna(field.categories[0]).to_numpy(bool)
      codes = index.get_indexer(codes)
    else:
      codes = index.get_indexer(cells)
    codes = codes.astype(np.float64)
    bad = (codes < 0) & ~missing
  else:
    low, high = field.minimum, field.maximum
    if field.is_temporal:
      low, high = field.grid
      number = field.steps(cells)
    else:
      number = cells.to_numpy(np.float64, na_value=np.nan)
    bad = (number < low) | (number > high)
    if field.decimals is not None:
      number, low = field.steps(cells), field.grid[0]
    codes = number - low
  bad |= missing & (not column.missing)
  if bad.any():
    raise _undeclared(field.name)
  return np.where(missing, blank, codes)


def _decode_column(x, field, column):
  missing = None
  if column.cell:
    top = round(column.size) - 1
    codes = np.clip(np.floor(x), 0, top).astype(np.int64)
    if column.missing:
      missing = codes == top
      codes = np.minimum(codes, max(top - 1, 0))
    if field.categories is not None:
      return _take(field, codes, missing)
    number = codes + (field.minimum if field.grid is None else field.grid[0])
    if field.grid is not None:
      number = field.of_steps(number, missing)
  else:
    x = column.exact(x.astype(np.float64))
    if column.missing:
      missing = x > column.value_size * (1 + 1e-6)
    if field.grid is not None:
      number = np.rint(np.clip(x + field.grid[0], *field.grid))
      number = field.of_steps(number.astype(np.int64), missing)
    else:
      number = np.clip(x + field.minimum, field.minimum, field.maximum)
      # More digits than float32 carries would be noise.
      places = digits(column.value_size)
      if abs(places) < 16:
        number = np.round(number, places)
      number = np.clip(number, field.minimum, field.maximum)
  if field.is_temporal:
    return number
  if field.type == 'number':
    number = np.asarray(number, np.float64)
    return number if missing is None else np.where(missing, np.nan, number)
  if missing is None:
    return number
  return pd.arrays.IntegerArray(number, missing)


def _take(field, codes, missing):
  dtype = {'integer': np.int64, 'number': float, 'boolean': bool}
  table = np.asarray(field.categories, dtype.get(field.type, object))
  result = table[codes]
  if field.type == 'string':
    if missing is not None:
      result[missing] = np.nan
    # Newer versions of pandas would infer another type.
    return pd.Series(result, dtype=object)
  if missing is None:
    return result
  if field.type == 'integer':
    return pd.arrays.IntegerArray(result, missing)
  if field.type == 'boolean':
    return pd.arrays.BooleanArray(result, missing)
  result[missing] = np.nan
  return result
