"""Stays in intensive care: PhysioNet 2012, and MIMIC-Extract's layout."""

import importlib.metadata

import numpy as np
import pytest

from experiments import mimic, physionet


def _has_pytables():
  # The name of the module is also that of a file beside some tests.
  try:
    importlib.metadata.version('tables')
  except importlib.metadata.PackageNotFoundError:
    return False
  return True


def _records(rows, outcomes):
  names = ['HR', 'Lactate', 'Age', 'Gender', 'Height', 'ICUType']
  record, minute, param, value = zip(*rows)
  return {
    'record': np.array(record),
    'minute': np.array(minute),
    'param': np.array([names.index(name) for name in param]),
    'value': np.array(value, np.float32),
    'param_names': np.array(names),
    'outcomes': np.array(outcomes),
    'outcome_columns': np.array(
      ['RecordID', 'Length_of_stay', 'In-hospital_death']
    ),
  }


def test_hours_are_means_and_the_last_value_is_carried():
  stays = physionet.from_records(
    _records(
      [
        (7, 0, 'Age', 54),
        (7, 0, 'Height', -1),
        (7, 61, 'HR', 90),
        (7, 119, 'HR', 110),
        (5, 0, 'ICUType', 2),
        (7, 60 * 24, 'HR', 500),  # After the first day.
      ],
      [[7, 4, 1], [5, -1, 0]],
    )
  )
  hr = stays.features.index('HR')
  values, masks, times = stays.x[0, :, :, hr].T
  np.testing.assert_allclose(values, [0, *[0.5] * 23])
  np.testing.assert_array_equal(masks, [0, 1, *[0] * 22])
  np.testing.assert_allclose(24 * times, [0, 1, *range(1, 23)], rtol=1e-6)
  age, height = (stays.features.index(name) for name in ('Age', 'Height'))
  assert np.all(stays.x[0, :, :2, age] == [0, 1])
  assert np.all(stays.x[0, :, :2, height] == 0)
  unit = stays.features.index('ICUType 2')
  assert np.all(stays.x[:, 0, 0, unit] == [0, 1])
  np.testing.assert_array_equal(stays.targets['mortality'], [1, 0])
  np.testing.assert_array_equal(stays.targets['length_of_stay'], [1, np.nan])
  x, y = stays.of_task('length_of_stay')
  assert len(x) == len(y) == 1


def test_a_row_is_a_function_of_its_own_records():
  """Standardization is public: other rows change nothing."""
  rng = np.random.default_rng(0)
  rows = [
    (record, minute, 'Lactate', value)
    for record, minute, value in zip(
      rng.integers(0, 4, 50), rng.integers(0, 1440, 50), rng.lognormal(size=50)
    )
  ]
  outcomes = [[record, 5, 0] for record in range(4)]
  whole = physionet.from_records(_records(rows, outcomes))
  for one in range(4):
    own = [row for row in rows if row[0] == one]
    alone = physionet.from_records(_records(own, [[one, 5, 0]]))
    np.testing.assert_array_equal(alone.x[0], whole.x[one])


def test_features_of_logistic_regressions():
  stays = physionet.made(40)
  assert np.all(np.isfinite(stays.x)) and np.abs(stays.x[:, :, 0]).max() <= 2
  series, others = stays.num_series, len(stays.features) - stays.num_series
  assert physionet.flat(stays.x, series).shape == (40, 24 * series + others)
  assert physionet.summary(stays.x, series).shape == (40, 5 * series + others)


def test_split_is_stratified():
  y = np.repeat([0.0, 1.0], [80, 20])
  train, validation = physionet.split(y)
  assert sorted([*train, *validation]) == list(range(100))
  assert y[validation].sum() == 4 and len(validation) == 20


def test_set_a():
  try:
    stays = physionet.load('a')
  except FileNotFoundError as error:
    pytest.skip(str(error))
  assert stays.x.shape == (4000, 24, 3, 44)
  assert stays.targets['mortality'].sum() == 554


def test_tables_of_mimic_extract():
  patients, hourly = mimic.made(30)
  stays = mimic.from_tables(patients, hourly)
  kept = patients[patients['max_hours'] > 30]
  assert stays.x.shape == (len(kept), 24, 3, 2)
  assert stays.features == ('heart rate', 'lactate')
  one = hourly.sort_index().loc[kept.index[3]]
  one = one[('lactate', 'mean')].to_numpy()[:24]
  seen = np.isfinite(one)
  np.testing.assert_array_equal(stays.x[3, :, 1, 1], seen)
  expected = physionet.standardized(one[seen], 'Lactate')
  np.testing.assert_allclose(stays.x[3, seen, 0, 1], expected, rtol=1e-6)
  np.testing.assert_array_equal(
    stays.targets['length_of_stay'], kept['los_icu'] > 3
  )
  np.testing.assert_array_equal(stays.targets['mortality'], kept['mort_icu'])
  with pytest.raises(ValueError, match='none of the variables'):
    mimic.from_tables(patients, hourly, {})


def test_file_of_mimic_extract(tmp_path):
  if not _has_pytables():
    pytest.skip('PyTables is not installed: pip install tfdpflows[mimic]')
  patients, hourly = mimic.made(12)
  path = tmp_path / 'all_hourly_data.h5'
  patients.to_hdf(path, key='patients')
  hourly.to_hdf(path, key='vitals_labs_mean')
  found, expected = mimic.load(path), mimic.from_tables(patients, hourly)
  np.testing.assert_array_equal(found.x, expected.x)
  for task in physionet.TASKS:
    np.testing.assert_array_equal(found.targets[task], expected.targets[task])


@pytest.mark.skipif(_has_pytables(), reason='PyTables is installed')
def test_without_pytables_the_error_names_it(tmp_path):
  path = tmp_path / 'all_hourly_data.h5'
  path.write_bytes(b'')
  with pytest.raises(ImportError, match='pip install tables'):
    mimic.load(path)
