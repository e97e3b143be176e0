"""Encodes tables as arrays of codes, and decodes them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd

from tfdpflows.tabular.schema import Field, TableSchema, typed

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
  """

  name: str
  size: float
  cell: float
  missing: bool
  ordered: bool
  resolution: float = 1.0

  @property
  def value_size(self) -> float:
    """Where values end and, if there is one, the missing cell begins."""
    if not self.missing:
      return self.size
    if self.cell:
      return self.size - self.cell
    return self.size / (1 + _MISSING_SHARE)


class TableEncoder:
  """Encodes every field of a schema as one float32 column, and decodes.

  Categories, booleans and integers become codes (an integer its distance to
  the minimum, a category its place in the enum), numbers their distance to
  the minimum. Numbers with `decimals` are counted in steps, and types of time
  in units, as integers are. Missing values have a cell of their own at the end.

  Args:
    schema: a `TableSchema`.

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
    self.columns = tuple(_encoded(field) for field in schema.fields)

  def encode(self, df: pd.DataFrame) -> np.ndarray:
    """Returns the codes of a validated table, float32 `[n, d]`.

    Continuous missing values are in the middle of their interval.
    """
    result = np.empty((len(df), len(self.columns)), np.float32)
    for i, (field, column) in enumerate(zip(self.schema.fields, self.columns)):
      result[:, i] = encode_column(df[field.name], field, column)
    return result

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
    series = {
      field.name: _decode_column(x[:, i], field, column)
      for i, (field, column) in enumerate(zip(self.schema.fields, self.columns))
    }
    return pd.DataFrame(series, copy=False)


def _encoded(field):
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
    size *= 1 + _MISSING_SHARE * missing
    return EncodedColumn(field.name, size, 0.0, missing, True, resolution)
  return EncodedColumn(
    field.name, float(cells + missing), 1.0, missing, ordered
  )


def digits(size: float) -> int:
  """Returns how many digits behind the point float32 has for such a range.

  >>> digits(99.0), digits(1e6)
  (5, 1)
  """
  return 7 - math.ceil(math.log10(size))


def steps(values: pd.Series, field: Field) -> np.ndarray:
  """Returns validated values of a field with a `grid` as multiples of its step.

  Returns:
    float64 `[n]`, NaN where the value is missing.

  >>> from tfdpflows.tabular import Field
  >>> price = Field('price', 'number', minimum=0, maximum=9, decimals=1)
  >>> steps(pd.Series([0.3, 7.96]), price)
  array([ 3., 80.])
  """
  if field.is_temporal:
    values = typed(values, field, (), clip=True)
  number = values.to_numpy(np.float64, na_value=np.nan)
  if field.decimals is None:
    return number
  scale = 10.0 ** abs(field.decimals)
  number = number * scale if field.decimals >= 0 else number / scale
  return np.clip(np.rint(number), *field.grid)


def _of_steps(number, field):
  """What multiples of the step are; the inverse of `steps`."""
  if field.decimals is None:
    return number
  # The float nearest to the digits: both numbers are exact.
  scale = 10.0 ** abs(field.decimals)
  number = number / scale if field.decimals >= 0 else number * scale
  return np.clip(number, field.minimum, field.maximum) + 0.0


def encode_column(
  values: pd.Series, field: Field, column: EncodedColumn
) -> np.ndarray:
  """Returns the codes of some validated values of a column, float32 `[n]`."""
  missing = values.isna().to_numpy()
  if column.missing and column.cell:
    blank = column.value_size
  else:
    blank = (column.value_size + column.size) / 2
  if field.categories is not None:
    index = pd.Index(list(field.categories))
    if field.type == 'boolean':
      codes = values.fillna(field.categories[0]).to_numpy(bool)
      codes = index.get_indexer(codes)
    else:
      codes = index.get_indexer(values)
    codes = codes.astype(np.float64)
    bad = (codes < 0) & ~missing
  else:
    low, high = field.minimum, field.maximum
    if field.is_temporal:
      low, high = field.grid
      number = steps(values, field)
    else:
      number = values.to_numpy(np.float64, na_value=np.nan)
    bad = (number < low) | (number > high)
    if field.decimals is not None:
      number, low = steps(values, field), field.grid[0]
    codes = number - low
  bad |= missing & (not column.missing)
  if bad.any():
    raise ValueError(
      f'Column {field.name!r} holds values that the schema does not declare; '
      'pass the table through `TableSchema.validate` first.'
    )
  return np.where(missing, blank, codes).astype(np.float32)


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
    number = _of_steps(number, field)
  else:
    x = x.astype(np.float64)
    if column.missing:
      missing = x > column.value_size * (1 + 1e-6)
    if field.grid is not None:
      number = np.rint(np.clip(x + field.grid[0], *field.grid))
      number = _of_steps(number.astype(np.int64), field)
    else:
      number = np.clip(x + field.minimum, field.minimum, field.maximum)
      # More digits than float32 carries would be noise.
      places = digits(column.value_size)
      if abs(places) < 16:
        number = np.round(number, places)
      number = np.clip(number, field.minimum, field.maximum)
  if field.is_temporal:
    return field.scale.values(number, missing)
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
