"""Four tables that synthesizers are compared on, each with a public schema.

Adult, Census-Income (KDD), Covertype and the 10 % file of KDD Cup 1999. The
rows come from the folder `shared`; the schemas are the JSON files of
`experiments/schemas`, written from the documentation that each of them names,
never from the rows.
"""

from __future__ import annotations

import functools
import importlib.util
import pathlib

import numpy as np

from tfdpflows.tabular.schema import TableSchema

SCHEMAS = pathlib.Path(__file__).resolve().parent / 'schemas'
TARGETS = {
  'adult': 'income',
  'census': 'income_50k',
  'covertype': 'cover',
  'intrusion': 'label',
}
NAMES = tuple(TARGETS)
_HOLDOUT = 0.2


def schema(name):
  """Returns the public `TableSchema` of one of `NAMES`.

  Raises:
    ValueError: if there is no such table.

  #### Example

  >>> schema('covertype')['Hillshade_9am'].maximum
  255
  """
  _check(name)
  return TableSchema.from_json(SCHEMAS / f'{name}.json')


def read(name, shared):
  """Reads the rows of a table.

  Adult and Census-Income have published splits. The others are split at
  random, one row in five held out, by the same permutation as in
  `shared/tools/tables.py`. Of the intrusion table, rows of the five classes of
  its schema are kept.

  Args:
    name: one of `NAMES`.
    shared: path of the folder `shared`.

  Returns:
    `(train, holdout)`: two DataFrames with the columns of `schema(name)`.

  Raises:
    FileNotFoundError: if `shared` does not hold the rows.
    ValueError: if there is no such table.
  """
  _check(name)
  files = _module(pathlib.Path(shared) / 'data' / 'load.py', name)
  if name == 'adult':
    table = files.adult()
    parts = (table[table['split'] == part] for part in ('train', 'test'))
    return tuple(p.drop(columns='split').reset_index(drop=True) for p in parts)
  if name == 'census':
    return files.census_kdd('train'), files.census_kdd('test')
  if name == 'covertype':
    return _split(files.covertype())
  table = files.kdd99()
  field = schema(name)[TARGETS[name]]
  table.columns = schema(name).names
  return _split(table[table[field.name].isin(field.enum)])


class SharedScorer:
  """What all methods of a comparison are scored by.

  It is `score` of `shared/tools/tables.py`: nine classifiers are trained on at
  most 50,000 rows and tested on at most 20,000 that were held out.

  Args:
    name: one of `NAMES`.
    shared: path of the folder `shared`.

  Raises:
    FileNotFoundError: if `shared` does not hold the rows.
    ValueError: if there is no such table.
  """

  def __init__(self, name, shared):
    _check(name)
    self._name = name
    self._columns = list(schema(name).names)
    self._tables = _module(pathlib.Path(shared) / 'tools' / 'tables.py', name)
    # It reads the rows again for every score.
    self._tables.get = functools.lru_cache(maxsize=1)(self._tables.get)

  def __call__(self, table):
    """Returns means over the classifiers.

    Args:
      table: DataFrame `[n, d]` with the columns of `schema(name)`.

    Returns:
      A dict of `f1` and, where the target has two classes, `auc` and `apc`.
    """
    return self._tables.score(self._name, self._renamed(table))

  def _renamed(self, table):
    """The table with the columns as `shared/tools/tables.py` names them."""
    table = table[self._columns]
    if self._name != 'intrusion':
      return table
    return table.set_axis([f'c{i}' for i in range(table.shape[1])], axis=1)


def _check(name):
  if name not in TARGETS:
    raise ValueError(f'No public table {name!r}. Choose one of {NAMES}.')


def _split(table):
  order = np.random.default_rng(0).permutation(len(table))
  size = int(len(table) * _HOLDOUT)
  return tuple(
    table.iloc[rows].reset_index(drop=True)
    for rows in (order[size:], order[:size])
  )


def _module(path, name):
  if not path.exists():
    raise FileNotFoundError(
      f'Data set {name!r} is read with {path}, which does not exist. Put the '
      "shared folder there, or use the data set 'randhie'."
    )
  spec = importlib.util.spec_from_file_location(f'_tfdpflows_{path.stem}', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
