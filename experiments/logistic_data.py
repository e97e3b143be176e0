"""Tables of two classes for private logistic regression, rows of norm one.

Rows are divided by their own l2 norms, which costs nothing, after their
columns were brought to [0, 1] or to indicators by public bounds and
categories.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from experiments import pate_data, physionet, public_tables
from experiments.datasets import SHARED

# Settings are chosen on the first ones, and judged on the others.
CHOICE = ('census', 'covertype', 'mnist')
JUDGED = ('adult', 'physionet_mortality', 'physionet_length_of_stay')
DATASETS = (*CHOICE, *JUDGED, 'digits')
# Of the tables to choose on, that many rows for tests, and at most these.
_TEST = 10_000


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
  """Rows of norm one and their classes.

  Attributes:
    x: rows to learn from, float64 `[n, d]`.
    y: their classes, 0 or 1.
    test_x: other rows.
    test_y: their classes.
  """

  x: np.ndarray
  y: np.ndarray
  test_x: np.ndarray
  test_y: np.ndarray

  def first(self, size):
    """Returns these with `size` rows to learn from at most."""
    return dataclasses.replace(self, x=self.x[:size], y=self.y[:size])


def load(name):
  """Returns the `Rows` of one of `DATASETS`.

  Raises:
    FileNotFoundError: if they need the shared folder and that is not there.
  """
  if name in ('adult', 'digits'):
    found = _of_pate(name)
  elif name == 'mnist':
    found = _mnist()
  elif name in CHOICE:
    found = _of_schema(name)
  else:
    found = _physionet(name.partition('_')[2])
  x, y, test_x, test_y = found
  return Rows(
    unit_rows(x), y.astype(int), unit_rows(test_x), test_y.astype(int)
  )


def unit_rows(x):
  """Returns rows divided by their l2 norms, float64."""
  x = np.asarray(x, np.float64)
  return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _of_pate(name):
  data = pate_data.load(name)
  test_x = np.concatenate([data.pool, data.test_x])
  test_y = np.concatenate([data.pool_labels, data.test_y])
  half = data.num_classes // 2
  return data.x, data.y >= half, test_x, test_y >= half


def _mnist():
  """Odd digits; means of 4 x 4 pixels."""
  x, y, test_x, test_y = pate_data.shared().mnist()
  x, test_x = (
    z.reshape(len(z), 7, 4, 7, 4).mean((2, 4)).reshape(len(z), 49) / 255
    for z in (x, test_x)
  )
  return x, y % 2, test_x, test_y % 2


def _of_schema(name):
  """Census: income above 50,000; Covertype: lodgepole pine."""
  train, held_out = public_tables.read(name, SHARED)
  schema, target = public_tables.schema(name), public_tables.TARGETS[name]
  largest = schema[target].categories[-1] if name == 'census' else None
  order = np.random.default_rng(0).permutation(len(train))
  train, held_out = train.iloc[order], held_out.iloc[:_TEST]
  found = []
  for table in (train, held_out):
    y = table[target]
    y = (y == largest) if name == 'census' else (y.astype(int) == 2)
    found += [_encoded(table, schema, target), y.to_numpy()]
  return found


def _encoded(table, schema, target):
  columns = []
  for field in schema:
    if field.name == target or field.is_constant:
      continue
    values = table[field.name]
    if field.is_numeric:
      width = field.maximum - field.minimum
      scaled = (values.to_numpy(float) - field.minimum) / width
      columns.append(np.clip(np.nan_to_num(scaled), 0, 1)[:, None])
    else:
      columns.append(
        values.to_numpy()[:, None] == np.array(field.categories)[None]
      )
  return np.concatenate(columns, 1).astype(np.float64)


def _physionet(task):
  """Set a to learn from, set b for tests; summaries of the first 24 hours."""
  found = []
  for part in ('a', 'b'):
    stays = physionet.load(part)
    x, y = stays.of_task(task)
    found += [physionet.summary(x, stays.num_series), y]
  return found
