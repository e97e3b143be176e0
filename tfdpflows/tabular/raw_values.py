"""Values of a table as tensors, encoded and decoded by TensorFlow operations.

What `TableSchema.validate` and `TableEncoder` do with a `DataFrame`, as a graph
that needs nothing but TensorFlow.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from tfdpflows import _saved_model
from tfdpflows.tabular import encoding
from tfdpflows.tabular.constrained_rows import (
  Combinations,
  computed_stand_in,
  tolerance,
)
from tfdpflows.tabular.constraints import Order
from tfdpflows.tabular.encoding import EncodedColumn
from tfdpflows.tabular.field import Field, stand_in
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.values import missing_numbers

_OFFSET = 1e-6  # As in `TableEncoder.decode`.


def tensor_names(names: Sequence[str]) -> list[str]:
  """Returns a name for the tensor of each column, an ASCII identifier.

  >>> tensor_names(['age', 'hours per week', 'hours-per-week', '2nd', 'class'])
  ['age', 'hours_per_week', 'hours_per_week_2', 'column_2nd', 'column_class']
  """
  found = []
  for name in names:
    name = re.sub('[^0-9A-Za-z_]', '_', name)
    if not name[0].isalpha() or keyword.iskeyword(name):
      name = f'column_{name}'
    unique, count = name, 1
    while unique.lower() in (f.lower() for f in found):
      count += 1
      unique = f'{name}_{count}'
    found.append(unique)
  return found


class RawColumn(tf.Module):
  """A column of a schema as a tensor `[n]` of its values.

  Strings are `tf.string`, integers `tf.int64`, numbers `tf.float64` and
  booleans `tf.bool`. Where values may be missing, integers and booleans are
  `tf.float64` too: NaN is a missing value, 1 is true and 0 is false. A missing
  string is empty, or the first of NA, NaN and null where the empty string is a
  category. TensorFlow has no types of time: these are their whole units, as
  integers are, since 1970 in UTC (of datetimes without a time zone, since 1970
  where they are), since midnight, or of the duration.

  Args:
    field: a `Field`.
    column: its `EncodedColumn`.
    clip: whether undeclared values are replaced, as by `TableSchema.validate`,
      instead of an error.

  Attributes:
    dtype: of the tensor.
    missing: what a missing value is, or `None` where there is none.

  Raises:
    ValueError: for a column of strings whose categories include all words for
      a missing value, and that may have one.
  """

  def __init__(self, field: Field, column: EncodedColumn, clip: bool):
    super().__init__(name='column')
    self._field, self._column, self._clip = field, column, clip
    self.missing = None
    if field.type == 'string':
      self.dtype = tf.string
      given = field.cells.missing_values
      words = [w for w in given if w not in field.categories]
      self._words = words
      if not field.required:
        if not words:
          raise ValueError(
            f'Column {field.name!r} may have missing values, and its '
            f'categories include all of {given}: no string is left for one. '
            'Rename a category, or declare the field as required.'
          )
        self.missing = words[0]
    elif field.required and field.type != 'number':
      self.dtype = tf.bool if field.type == 'boolean' else tf.int64
    else:
      self.dtype = tf.float64
      self.missing = None if field.required else math.nan
    self._absent = missing_numbers(field.cells.missing_values, field.enum or ())
    if field.categories is None:
      # As variables, so that no optimizer of graphs makes a product of a
      # quotient, which would round otherwise.
      digits = encoding.digits(column.value_size) if not column.cell else 0
      if field.decimals is not None:
        digits = field.decimals
      self._is_rounded = field.type == 'number' and abs(digits) < 16
      self._scale = tf.Variable(10.0 ** abs(digits), False, dtype=tf.float64)
      self._is_fraction = digits >= 0
    elif field.type == 'string':
      self._table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
          tf.constant(field.categories),
          tf.range(len(field.categories), dtype=tf.int64),
          name=_saved_model.TABLE,
        ),
        default_value=-1,
      )

  def describe(self) -> dict[str, Any]:
    """Returns the column and the form of its tensor, as a JSON-able dict."""
    missing = self.missing
    if isinstance(missing, float):
      missing = 'NaN'
    found = {
      'column': self._field.name,
      'dtype': self.dtype.name,
      'missing': missing,
    }
    if self._field.is_temporal:
      since = {'time': ' since midnight', 'duration': ''}
      found['unit'] = f'{self._field.scale.unit}s' + since.get(
        self._field.type, ' since 1970-01-01'
      )
    return found

  def encode(self, x: tf.Tensor) -> tf.Tensor:
    """Returns codes, float32 `[n]`; see `TableEncoder.encode`.

    Raises:
      InvalidArgumentError: when it runs, naming the column and the row, for a
        value that the schema does not declare; unless it is clipped.
    """
    return tf.cast(self.exact_codes(x), tf.float32)

  def exact_codes(self, x: tf.Tensor) -> tf.Tensor:
    """Returns `encode` in float64, which has room for all whole numbers."""
    field, column = self._field, self._column
    if field.categories is not None:
      codes, missing, undeclared = self._categories(x)
    else:
      codes, missing, undeclared = self._range(x)
    if not self._clip:
      name, what = f'Column {field.name!r}', 'is none of the declared values'
      if field.categories is None:
        low, high = self._ends()
        what = f'is no {field.type} in [{low}, {high}]'
      _refuse(undeclared, name, what, x)
      if field.required:
        _refuse(missing, name, 'is missing, and the field is required', x)
    if field.required:
      blank = self._stand_in_code()
    elif column.cell:
      blank = column.value_size
    else:
      blank = (column.value_size + column.size) / 2
    return tf.where(missing, np.float64(blank), codes)

  def number(self, codes: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of `exact_codes`, float64, NaN for missing ones.

    Not of strings. Numbers with decimals and types of time are whole units.
    """
    field, column = self._field, self._column
    if field.categories is not None:
      values = np.array(field.categories, np.float64)
      place = tf.minimum(tf.cast(codes, tf.int32), len(values) - 1)
      found = tf.gather(tf.constant(values), place)
    else:
      found = codes + float((field.grid or (field.minimum,))[0])
    if not column.missing:
      return found
    return tf.where(codes >= column.value_size, np.float64(np.nan), found)

  def operand(self, codes: tf.Tensor) -> tf.Tensor:
    """Returns `number` as expressions have it: in steps of 1."""
    found = self.number(codes)
    if self._field.decimals is None:
      return found
    return self._clipped(self._of_steps(found))

  def settled(self, number: tf.Tensor, missing: tf.Tensor) -> tf.Tensor:
    """Returns computed numbers in range, see `constrained_rows.settled`.

    Args:
      number: float64 `[n]`.
      missing: bool `[n]`.

    Returns:
      Those of `number`: float64 `[n]`, NaN for missing.
    """
    field = self._field
    if field.type == 'boolean':
      found = tf.cast(tf.not_equal(number, 0), tf.float64)
    elif field.grid is not None:
      if field.decimals is not None:
        number = self._scaled(number)
      first, last = map(float, field.grid)
      found = tf.clip_by_value(tf.round(number), first, last)
    else:
      found = self._clipped(number)
    return tf.where(missing, np.float64(computed_stand_in(field)), found)

  def of_settled(self, number: tf.Tensor) -> tf.Tensor:
    """Returns the values of `settled`."""
    if self._field.decimals is not None:
      number = self._clipped(self._of_steps(number))
    return tf.cast(number, self.dtype)

  def _stand_in_code(self):
    value = stand_in(self._field)
    if self._field.categories is not None:
      return 0.0
    if self._field.is_temporal:
      return float(value - self._field.grid[0])
    if self._field.grid is not None:
      steps = self._field.steps(pd.Series([value]))
      return float(steps[0]) - self._field.grid[0]
    return float(value) - float(self._field.minimum)

  def _categories(self, x):
    """Codes float64, and what is missing and what is not declared."""
    field = self._field
    if field.type == 'string':
      codes = self._table.lookup(x)
      missing = tf.zeros_like(codes, tf.bool)
      for word in self._words:
        missing |= tf.equal(x, word)
    else:
      number = tf.cast(x, tf.float64)
      missing = self._is_missing(number)
      values = np.array(field.categories, np.float64)
      order = np.argsort(values, kind='stable')
      moved = self._clip and field.is_numeric
      if moved and field.type == 'integer':
        number = tf.round(number)
      place = tf.searchsorted(tf.constant(values[order]), number)
      place = tf.minimum(place, len(values) - 1)
      is_same = tf.equal(tf.gather(tf.constant(values[order]), place), number)
      if moved:
        # The middle between two belongs to the smaller one. Middles are
        # rounded: a declared value that is one of them stays what it is.
        ends = (values[order][1:] + values[order][:-1]) / 2
        nearest = tf.zeros_like(place)
        if len(ends):
          nearest = tf.searchsorted(tf.constant(ends), number)
        place = tf.where(is_same, place, nearest)
        is_same = tf.ones_like(is_same)
      codes = tf.gather(tf.constant(order.astype(np.int64)), place)
      codes = tf.where(is_same, codes, -1)
    undeclared = (codes < 0) & ~missing
    if self._clip:
      missing |= undeclared
    return tf.cast(codes, tf.float64), missing, undeclared

  def _ends(self):
    field = self._field
    return field.grid if field.is_temporal else (field.minimum, field.maximum)

  def _is_missing(self, number):
    missing = tf.math.is_nan(number)
    if self._field.is_numeric:
      for value in self._absent:
        missing |= tf.equal(number, value)
    return missing

  def _range(self, x):
    field = self._field
    low, high = map(float, self._ends())
    number = tf.cast(x, tf.float64)
    missing = self._is_missing(number)
    undeclared = ~missing & ((number < low) | (number > high))
    if field.type == 'integer' or field.is_temporal:
      undeclared |= ~missing & (tf.floor(number) != number)
      if self._clip:
        number = tf.round(number)
    if self._clip:
      number = tf.clip_by_value(number, low, high)
    if field.decimals is not None:
      low, high = map(float, field.grid)
      number = tf.clip_by_value(self._steps(number), low, high)
    return number - low, missing, undeclared

  def _steps(self, number):
    """Numbers as multiples of their step, as `Field.steps` has them."""
    return tf.round(self._scaled(number))

  def _scaled(self, number):
    if self._is_fraction:
      return number * self._scale
    return number / self._scale

  def _of_steps(self, number):
    if self._is_fraction:
      return number / self._scale
    return number * self._scale

  def decode(self, x: tf.Tensor) -> tf.Tensor:
    """Returns the values of codes `[n]`; see `TableEncoder.decode`."""
    field, column = self._field, self._column
    missing = None
    if column.cell:
      top = round(column.size) - 1
      codes = tf.cast(tf.clip_by_value(tf.floor(x), 0, top), tf.int64)
      if column.missing:
        missing = tf.equal(codes, top)
        codes = tf.minimum(codes, max(top - 1, 0))
      if field.categories is not None:
        value = tf.gather(self._values(), codes)
      else:
        low = field.minimum if field.grid is None else field.grid[0]
        value = tf.cast(codes, tf.float64) + float(low)
        if field.decimals is not None:
          value = self._clipped(self._of_steps(value))
    else:
      number = column.exact(tf.cast(x, tf.float64), tf.where)
      if column.missing:
        missing = number > column.value_size * (1 + _OFFSET)
      low, high = map(np.float64, field.grid or (field.minimum, field.maximum))
      value = tf.clip_by_value(number + low, low, high)
      if field.decimals is not None:
        value = self._clipped(self._of_steps(tf.round(value)))
      elif field.type == 'integer' or field.is_temporal:
        value = tf.round(value)
      elif self._is_rounded:
        # As `np.round` has it.
        value = self._clipped(self._of_steps(self._steps(value)))
    value = tf.cast(value, self.dtype)
    if missing is None:
      return value
    return tf.where(missing, tf.constant(self.missing, self.dtype), value)

  def _clipped(self, value):
    low, high = self._field.minimum, self._field.maximum
    return tf.clip_by_value(value, np.float64(low), np.float64(high))

  def _values(self):
    if self._field.type == 'string':
      return tf.constant(self._field.categories)
    number = np.array(self._field.categories, np.float64)
    return tf.cast(tf.constant(number), self.dtype)


def _refuse(bad, columns, what, x=None):
  """Ends a graph with an error, if any row is bad; it names the first."""
  is_good = tf.logical_not(tf.reduce_any(bad))
  said = [f'{columns}, row', tf.where(bad)[:1, 0] + 1]
  if x is None:
    said.append(f': {what}.')
  else:
    value = tf.boolean_mask(x, bad)[:1]
    if value.dtype == tf.string:
      # In Python other bytes would end an error of TensorFlow with another one.
      value = tf.strings.unicode_transcode(value, 'UTF-8', 'UTF-8')
    said += [': a value', value, f'{what}.']
  tf.debugging.Assert(is_good, said)


class _Constrained:
  """Values of fields as codes of columns, where constraints make them others.

  What `constrained_rows.meet` and `TableEncoder` do with a `DataFrame`.
  """

  def __init__(self, encoder, columns, clip, one):
    self._encoder, self._clip, self._one = encoder, clip, one
    schema = encoder.schema
    self._fields = dict(zip(schema.names, columns))
    self._order = Order(schema.constraints)
    self._grids = {n: schema[n].grid for n in self._order.columns}

  def encode(self, codes):
    """Returns float32 `[n, d]` of a dict of exact codes of fields, `[n]`."""
    codes = dict(codes)
    if self._order.pairs:
      codes.update(self._ordered(codes))
    for constraint in self._encoder.computed if not self._clip else ():
      self._check_computed(constraint, codes)
    parts = []
    for part in self._encoder.parts:
      if isinstance(part, Combinations):
        parts.append(self._combined(part, codes))
      else:
        parts.append(codes[part.name])
    return tf.stack([tf.cast(part, tf.float32) for part in parts], 1)

  def decode(self, x):
    """Returns a dict of values of fields, of codes `[n, d]`."""
    codes = {}
    for i, part in enumerate(self._encoder.parts):
      if isinstance(part, Combinations):
        known = self._encoder.combined_codes(part)
        place = tf.clip_by_value(tf.floor(x[:, i]), 0, known.shape[1] - 1)
        for field, table in zip(part.fields, known):
          place = tf.cast(place, tf.int32)
          codes[field.name] = tf.gather(tf.constant(table), place)
      else:
        codes[part.name] = x[:, i]
    found = {n: self._fields[n].decode(code) for n, code in codes.items()}
    for constraint in self._encoder.computed:
      names = constraint.parsed.names
      numbers = {name: tf.cast(found[name], tf.float64) for name in names}
      field = self._fields[constraint.field]
      settled = self._computed(constraint, numbers)
      found[constraint.field] = field.of_settled(settled)
    return found

  def _assert(self, bad, columns, what):
    _refuse(bad, f'Columns {", ".join(map(repr, columns))}', what)

  def _ordered(self, codes):
    steps = {n: self._fields[n].number(codes[n]) for n in self._grids}
    broken = self._order.broken(steps)
    if not self._clip:
      self._assert(broken, self._grids, 'an inequality of the schema is broken')
      return {}
    steps = self._order.repaired(steps, self._encoder.schema, tf)
    found = {}
    for name, number in steps.items():
      code = number - self._grids[name][0]
      moved = broken & ~tf.math.is_nan(number)
      found[name] = tf.where(moved, code, codes[name])
    return found

  def _combined(self, part, codes):
    known = self._encoder.combined_codes(part).astype(np.int64)
    given = [tf.cast(codes[field.name], tf.int64) for field in part.fields]
    # Codes of a wide column reach up to its size.
    columns = map(encoding.encoded_column, part.fields)
    sizes = [round(column.size) + 2 for column in columns]
    strides = np.cumprod([1, *sizes[:0:-1]], dtype=np.int64)[::-1]
    keys = strides @ known
    order = np.argsort(keys)
    key = tf.add_n([g * s for g, s in zip(given, strides)])
    place = tf.searchsorted(tf.constant(keys[order]), key)
    number = tf.gather(tf.constant(order), tf.minimum(place, len(keys) - 1))
    found = tf.unstack(tf.gather(tf.constant(known.T), number), axis=1)
    # Keys of several wide columns overflow.
    exact = tf.reduce_all([tf.equal(*pair) for pair in zip(given, found)], 0)
    if not self._clip:
      names = [field.name for field in part.fields]
      self._assert(~exact, names, 'the combination is not allowed')
      return tf.cast(number, tf.float32)
    # As `Combinations.find`: the first with as many of the values as any.
    others = tf.boolean_mask(tf.stack(given, 1), ~exact)
    agree = tf.reduce_sum(
      tf.cast(tf.equal(others[:, :, None], known[None]), tf.int32), 1
    )
    number = tf.tensor_scatter_nd_update(
      number, tf.where(~exact), tf.argmax(agree, 1)
    )
    return tf.cast(number, tf.float32)

  def _computed(self, constraint, numbers):
    """A computed column as `RawColumn.settled` has it, of its operands."""
    # A product with a variable: graphs are rewritten so that constants are
    # multiplied by each other, and not divided by, which rounds otherwise.
    number = constraint.parsed(
      numbers, tf, lambda value: np.float64(value) * self._one
    )
    number = tf.cast(number, tf.float64)
    missing = tf.reduce_any([tf.math.is_nan(x) for x in numbers.values()], 0)
    missing |= ~tf.math.is_finite(number)
    return self._fields[constraint.field].settled(number, missing)

  def _check_computed(self, constraint, codes):
    field = self._encoder.schema[constraint.field]
    names = constraint.parsed.names
    numbers = {n: self._fields[n].operand(codes[n]) for n in names}
    found = self._computed(constraint, numbers)
    given = self._fields[field.name].number(codes[field.name])
    both_missing = tf.math.is_nan(given) & tf.math.is_nan(found)
    self._assert(
      # Comparisons with NaN are false.
      ~(tf.abs(given - found) <= tolerance(field)) & ~both_missing,
      [field.name],
      f'the value is not {constraint.expression}',
    )


class RawTable(tf.Module):
  """The columns of a schema as tensors of values.

  Identifiers are none of them.

  Args:
    schema: a `TableSchema`.
    clip: see `RawColumn`; rows that break a constraint are changed too.

  Attributes:
    names: of the tensors, one for each field.
    columns: the `RawColumn`s.
  """

  def __init__(self, schema: TableSchema, clip: bool):
    super().__init__(name='raw_table')
    self.names = tuple(tensor_names(schema.names))
    encoder = encoding.TableEncoder(schema)
    self.columns = [
      RawColumn(field, encoding.encoded_column(field), clip) for field in schema
    ]
    # As one function: what they are made of is no part of the exported model.
    self._one = None
    if encoder.computed:
      self._one = tf.Variable(1.0, False, dtype=tf.float64)
    rows = _Constrained(encoder, self.columns, clip, self._one)
    self._rows = lambda: rows
    self._fields = schema.names

  def encode(self, values: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns codes, float32 `[n, d]`, of a dict of tensors `[n]`."""
    codes = [c.exact_codes(values[n]) for n, c in zip(self.names, self.columns)]
    return self._rows().encode(dict(zip(self._fields, codes)))

  def decode(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns a dict of tensors `[n]`, of codes `[n, d]`."""
    values = self._rows().decode(x)
    return {
      name: values[field] for name, field in zip(self.names, self._fields)
    }

  def describe(self) -> list[dict[str, Any]]:
    """Returns what the tensors are, a JSON-able list."""
    return [
      {'tensor': name, **column.describe()}
      for name, column in zip(self.names, self.columns)
    ]
