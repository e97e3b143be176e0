"""PhysioNet 2012: hours in intensive care, and what became of the patients.

The data of the PhysioNet/Computing in Cardiology Challenge 2012 (Silva, Moody,
Scott, Celi and Mark 2012): one row is one stay. Everything that is applied to
the values is public: the ranges below do not depend on the data.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from experiments import datasets

HOURS = 24
TASKS = ('mortality', 'length_of_stay')

# Usual adult reference intervals, in the units of the challenge, rounded, as
# tables of laboratory values and vital signs print them (from memory of the
# Merck Manual's; limits differ by a few percent between tables). With True,
# on a logarithmic scale: for what spans orders of magnitude in disease. Scores
# and shares have the range in which they are defined; 'Urine' is ml in an hour
# for 0.5 to 2 ml/kg/h at 70 kg; age, height and weight are those of adults.
RANGES = {
  'ALP': (40, 130, True),
  'ALT': (7, 55, True),
  'AST': (8, 48, True),
  'Age': (18, 90, False),
  'Albumin': (3.5, 5.0, False),
  'BUN': (7, 20, True),
  'Bilirubin': (0.1, 1.2, True),
  'Cholesterol': (120, 240, False),
  'Creatinine': (0.6, 1.3, True),
  'DiasABP': (60, 90, False),
  'FiO2': (0.21, 1.0, False),
  'GCS': (3, 15, False),
  'Gender': (0, 1, False),
  'Glucose': (70, 140, True),
  'HCO3': (22, 29, False),
  'HCT': (36, 50, False),
  'HR': (60, 100, False),
  'Height': (150, 190, False),
  'K': (3.5, 5.0, False),
  'Lactate': (0.5, 2.0, True),
  'MAP': (70, 105, False),
  'MechVent': (0, 1, False),
  'Mg': (1.7, 2.4, False),
  'NIDiasABP': (60, 90, False),
  'NIMAP': (70, 105, False),
  'NISysABP': (90, 140, False),
  'Na': (135, 145, False),
  'PaCO2': (35, 45, False),
  'PaO2': (75, 100, True),
  'Platelets': (150, 400, True),
  'RespRate': (12, 20, False),
  'SaO2': (92, 100, False),
  'SysABP': (90, 140, False),
  'Temp': (36.0, 38.0, False),
  'TroponinI': (0.01, 0.4, True),
  'TroponinT': (0.01, 0.1, True),
  'Urine': (35, 140, True),
  'WBC': (4, 11, True),
  'Weight': (50, 100, False),
  'pH': (7.35, 7.45, False),
}
STATIC = ('Age', 'Gender', 'Height')
_UNITS = (1, 2, 3, 4)  # ICUType, as indicators.
# Shares of ones that models start from: what is commonly reported of intensive
# care (10 to 20 % die in the hospital; most stay for longer than three days).
# They were written down after those of set a had been seen, which are 0.139
# and 0.950; whoever takes shares from private rows has to pay for them.
BASE_RATES = {'mortality': 0.15, 'length_of_stay': 0.9}
# Values farther from the middle than this many times half of the interval.
_LIMIT = 4.0


@dataclasses.dataclass
class Stays:
  """Stays in intensive care.

  Attributes:
    x: `[n, hours, 3, features]`, float32: values, standardized (the last
      observed one where missing, 0 before the first), masks, and times since
      the last observation in days. Static features are observed every hour.
    targets: dict of `[n]`, float32: 1, 0, or nan where not known.
    features: names, those of the series first.
    num_series: number of features that are series.
  """

  x: np.ndarray
  targets: dict[str, np.ndarray]
  features: tuple[str, ...]
  num_series: int

  def of_task(self, task):
    """Returns `(x, y)` of the stays with a known target."""
    y = self.targets[task]
    known = np.isfinite(y)
    return self.x[known], y[known]


def flat(x, num_series):
  """Returns the features of a logistic regression.

  Args:
    x: see `Stays`.
    num_series: see `Stays`.

  Returns:
    `[n, hours * num_series + static features]`: the values of every hour, and
    those of static features once.
  """
  series = x[:, :, 0, :num_series].reshape(len(x), -1)
  return np.concatenate([series, x[:, 0, 0, num_series:]], 1)


def summary(x, num_series):
  """Returns fewer features: what a stay was like, not hour by hour.

  Args:
    x: see `Stays`.
    num_series: see `Stays`.

  Returns:
    `[n, 5 * num_series + static features]`: of each series the last value,
    mean, least and largest, and the share of the hours in which it was
    observed; values of static features.
  """
  series = x[:, :, 0, :num_series]
  return np.concatenate(
    [
      series[:, -1],
      series.mean(1),
      series.min(1),
      series.max(1),
      x[:, :, 1, :num_series].mean(1),
      x[:, 0, 0, num_series:],
    ],
    1,
  )


def load(part):
  """Loads the stays of 'a' (to learn from) or 'b' (to test on).

  Raises:
    FileNotFoundError: if the folder `shared` is not beside the repository.
  """
  path = datasets.SHARED / 'data' / f'physionet2012_set_{part}.npz'
  if not path.exists():
    raise FileNotFoundError(
      f'{path} is not there. The data of the challenge is on physionet.org '
      '(challenge-2012).'
    )
  with np.load(path) as file:
    return from_records(file)


def split(y, fraction=0.2, seed=0):
  """Returns `(train, validation)`, the row numbers, stratified by target."""
  rng = np.random.default_rng(seed)
  held_out = np.zeros(len(y), bool)
  for value in (0, 1):
    rows = rng.permutation(np.flatnonzero(y == value))
    held_out[rows[: round(fraction * len(rows))]] = True
  return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def from_records(records, hours=HOURS):
  """Returns the `Stays` of records in long form.

  Args:
    records: mapping with arrays `record`, `minute`, `param`, `value`, one
      element for each measurement, `param_names`, `outcomes` and
      `outcome_columns`.
    hours: number of hours from admission that are used.
  """
  names = [str(name) for name in records['param_names']]
  outcomes = {
    str(name): column
    for name, column in zip(records['outcome_columns'], records['outcomes'].T)
  }
  ids = outcomes['RecordID']
  order = np.argsort(ids)
  row = order[np.searchsorted(ids, records['record'], sorter=order)]
  hour = records['minute'] // 60
  param, value = records['param'], records['value'].astype(np.float64)
  series = [n for n in RANGES if n in names and n not in STATIC]
  columns = []
  for name in series:
    measured = (param == names.index(name)) & (hour < hours)
    # -1 stands for a weight that is not known.
    measured &= np.isfinite(value) & ((value != -1) | (name != 'Weight'))
    columns.append(
      _hourly_means(
        row[measured], hour[measured], value[measured], len(ids), hours
      )
    )
  static = [
    _first(row, param == names.index(n), value, len(ids)) for n in STATIC
  ]
  unit = _first(row, param == names.index('ICUType'), value, len(ids))
  fixed = [standardized(c, n) for n, c in zip(STATIC, static)]
  fixed += [1.0 * (unit == u) for u in _UNITS]
  values = [standardized(c, n) for n, c in zip(series, columns)]
  values += [np.tile(column[:, None], hours) for column in fixed]
  values = np.stack(values, axis=2)
  stay = outcomes['Length_of_stay'].astype(np.float32)
  targets = {
    'mortality': outcomes['In-hospital_death'].astype(np.float32),
    'length_of_stay': np.where(stay < 0, np.nan, stay > 3).astype(np.float32),
  }
  features = (*series, *STATIC, *(f'ICUType {u}' for u in _UNITS))
  return Stays(with_masks(values), targets, features, len(series))


def standardized(values, name):
  """Returns values on a scale where the reference interval is [-1/2, 1/2].

  #### Example

  >>> standardized(np.array([60., 80., 100., 500.]), 'HR').tolist()
  [-0.5, 0.0, 0.5, 2.0]
  """
  low, high, logarithmic = RANGES[name]
  if logarithmic:
    values = np.log(np.maximum(values, low / 100))
    low, high = np.log(low), np.log(high)
  z = (2 * values - low - high) / (high - low)
  return np.clip(z, -_LIMIT, _LIMIT) / 2


def with_masks(values):
  """Returns values, masks and times, float32.

  Args:
    values: `[n, hours, features]`, nan where missing.

  Returns:
    `[n, hours, 3, features]`, see `Stays`.

  #### Example

  >>> x = with_masks(np.array([np.nan, 7., np.nan, np.nan]).reshape(1, 4, 1))
  >>> x[0, :, 0, 0].tolist(), x[0, :, 1, 0].tolist()
  ([0.0, 7.0, 7.0, 7.0], [0.0, 1.0, 0.0, 0.0])
  >>> (24 * x[0, :, 2, 0]).tolist()
  [0.0, 1.0, 1.0, 2.0]
  """
  observed = np.isfinite(values)
  hours = np.arange(values.shape[1])[None, :, None]
  last = np.maximum.accumulate(np.where(observed, hours, -1), axis=1)
  filled = np.take_along_axis(values, np.maximum(last, 0), axis=1)
  filled = np.where(last < 0, 0.0, filled)
  # As in GRU-D: the hours since the last observation before this hour.
  before = np.concatenate([np.zeros_like(last[:, :1]), last[:, :-1]], 1)
  times = (hours - np.maximum(before, 0)) / 24
  return np.stack([filled, observed, times], axis=2).astype(np.float32)


def made(num_stays, seed=0, hours=HOURS):
  """Returns `Stays` that are made up, to try programs on.

  Few variables, of which two tell of the targets.

  Args:
    num_stays: number of rows.
    seed: of the draw.
    hours: see `from_records`.
  """
  rng = np.random.default_rng(seed)
  sick = rng.normal(size=num_stays)
  records = {name: [] for name in ('record', 'minute', 'param', 'value')}
  names = ('HR', 'Lactate', 'GCS', 'Age', 'Gender', 'Height', 'ICUType')
  ids = 1000 + rng.permutation(num_stays)

  def add(record, minute, name, value):
    new = (record, minute, names.index(name), value)
    for key, item in zip(records, new):
      records[key].append(item)

  for record, severity in zip(ids, sick):
    add(record, 0, 'Age', rng.integers(20, 90))
    add(record, 0, 'Gender', rng.integers(0, 2))
    add(record, 0, 'Height', -1)
    add(record, 0, 'ICUType', rng.integers(1, 5))
    for _ in range(rng.integers(5, 20)):
      minute = rng.integers(0, 2 * hours * 60)
      add(record, minute, 'HR', 80 + 15 * severity + rng.normal())
      add(record, minute, 'Lactate', np.exp(severity + rng.normal()))
  death = sick + rng.normal(size=num_stays) > 1
  stay = np.round(4 + 2 * sick + rng.normal(size=num_stays))
  stay = np.where(rng.random(num_stays) < 0.02, -1, np.maximum(stay, 2))
  return from_records(
    {
      **{key: np.array(column) for key, column in records.items()},
      'param_names': np.array(names),
      'outcomes': np.stack([ids, stay, death], 1).astype(np.int32),
      'outcome_columns': np.array(
        ['RecordID', 'Length_of_stay', 'In-hospital_death']
      ),
    },
    hours,
  )


def _hourly_means(row, hour, value, rows, hours):
  """Returns `[rows, hours]`, nan where nothing was measured."""
  at = row * hours + hour
  sums = np.bincount(at, value, rows * hours)
  counts = np.bincount(at, minlength=rows * hours)
  means = np.full(rows * hours, np.nan)
  np.divide(sums, counts, out=means, where=counts > 0)
  return means.reshape(rows, hours)


def _first(row, measured, value, rows):
  """Returns the first value of each row, nan where there is none (or -1)."""
  found = np.full(rows, np.nan)
  chosen = measured & (value >= 0)
  # In reverse, so that the first one stays.
  found[row[chosen][::-1]] = value[chosen][::-1]
  return found
