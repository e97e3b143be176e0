"""Data of the experiments on PATE: private rows, a public pool, a test set.

The pool is public and without labels; the test set serves for nothing but the
accuracy that is reported.
"""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import pandas as pd

from experiments import hog
from experiments.datasets import SHARED

DATASETS = ('digits', 'mnist', 'adult')
# Public bounds of the numeric columns of Adult; wide ones by their logarithm.
_ADULT = {
  'age': 90.0,
  'education-num': 16.0,
  'hours-per-week': 99.0,
}
_ADULT_WIDE = {'capital-gain': 1e5, 'capital-loss': 5e3}
# The last rows of Adult's test set, for the accuracy; the others are the pool.
_ADULT_TEST = 4000


@dataclasses.dataclass(frozen=True, eq=False)
class PateData:
  """Features and labels.

  Attributes:
    name: of the data set.
    x: private features, float32 `[n, d]`.
    y: private labels, int64 `[n]`.
    pool: public features, float32 `[m, d]`.
    pool_labels: labels of the pool, for reports alone.
    test_x: features of the test set.
    test_y: labels of the test set.
    num_classes: number of classes.
    note: what the parts are.
  """

  name: str
  x: np.ndarray
  y: np.ndarray
  pool: np.ndarray
  pool_labels: np.ndarray
  test_x: np.ndarray
  test_y: np.ndarray
  num_classes: int
  note: str


def load(name):
  """Returns the `PateData` of a name.

  Raises:
    FileNotFoundError: if it needs the shared folder and that is not there.
  """
  return {'digits': _digits, 'mnist': _mnist, 'adult': _adult}[name]()


def _digits():
  """Small images that scikit-learn carries, for smoke runs."""
  from sklearn import datasets

  x, y = datasets.load_digits(return_X_y=True)
  x = (x / 16).astype(np.float32)
  return PateData(
    'digits',
    x[:1200],
    y[:1200],
    x[1200:1600],
    y[1200:1600],
    x[1600:],
    y[1600:],
    10,
    'private: 1,200 rows; pool: the next 400; test: the last 197',
  )


def _mnist():
  x, y, test_x, test_y = shared().mnist()
  features, test = hog.hog(x), hog.hog(test_x)
  test_y = test_y.astype(np.int64)
  return PateData(
    'mnist',
    features,
    y.astype(np.int64),
    test[:9000],
    test_y[:9000],
    test[9000:],
    test_y[9000:],
    10,
    'histograms of oriented gradients; private: 60,000 training images; pool: '
    'the first 9,000 test images; test: the last 1,000',
  )


def _adult():
  table = shared().adult()
  label = table.columns[-2]
  y = table[label].str.contains('>50K').to_numpy().astype(np.int64)
  numbers = [
    np.clip(table[name].to_numpy(float) / bound, 0, 1)
    for name, bound in _ADULT.items()
  ] + [
    np.log1p(np.clip(table[name].to_numpy(float), 0, bound)) / np.log(bound)
    for name, bound in _ADULT_WIDE.items()
  ]
  names = [
    name
    for name in table.columns
    if not pd.api.types.is_numeric_dtype(table[name])
    and name not in (label, 'split')
  ]
  categories = pd.get_dummies(table[names]).to_numpy(np.float32)
  x = np.concatenate([np.stack(numbers, 1), categories], 1).astype(np.float32)
  private = (table['split'] == 'train').to_numpy()
  others = np.flatnonzero(~private)
  pool, test = others[:-_ADULT_TEST], others[-_ADULT_TEST:]
  return PateData(
    'adult',
    x[private],
    y[private],
    x[pool],
    y[pool],
    x[test],
    y[test],
    2,
    'public categories and bounds; private: 32,561 training rows; pool: the '
    f'first {len(pool):,} test rows; test: the last {_ADULT_TEST:,}',
  )


def shared():
  """Returns the module of readers of the shared folder."""
  path = SHARED / 'data' / 'load.py'
  if not path.exists():
    raise FileNotFoundError(
      f'{path} is not there; take --dataset=digits, which needs no files.'
    )
  spec = importlib.util.spec_from_file_location('shared_load', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
