"""MIMIC-III as the file `all_hourly_data.h5` of MIMIC-Extract.

For those who have access to MIMIC-III: the file is made by the pipeline of
Wang et al. 2020 (MIMIC-Extract). It has, among others, the tables `patients`
(one row for each stay, with `mort_icu`, `los_icu` in days and `max_hours`) and
`vitals_labs_mean` (one row for each hour of a stay, and columns
`(variable, 'mean')`). Rows are stays that lasted longer than 30 hours, as in
the benchmarks of that paper: the first 24 hours and a gap of 6.

Reading it takes PyTables: `pip install tfdpflows[mimic]`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments import physionet

_STAY = ['subject_id', 'hadm_id', 'icustay_id']
_GAP = 6
# Names of MIMIC-Extract whose reference intervals are those of `physionet`.
NAMES = {
  'alanine aminotransferase': 'ALT',
  'albumin': 'Albumin',
  'alkaline phosphate': 'ALP',
  'asparate aminotransferase': 'AST',
  'bicarbonate': 'HCO3',
  'bilirubin': 'Bilirubin',
  'blood urea nitrogen': 'BUN',
  'cholesterol': 'Cholesterol',
  'creatinine': 'Creatinine',
  'diastolic blood pressure': 'DiasABP',
  'fraction inspired oxygen': 'FiO2',
  'glascow coma scale total': 'GCS',
  'glucose': 'Glucose',
  'heart rate': 'HR',
  'height': 'Height',
  'hematocrit': 'HCT',
  'lactate': 'Lactate',
  'magnesium': 'Mg',
  'mean blood pressure': 'MAP',
  'oxygen saturation': 'SaO2',
  'partial pressure of carbon dioxide': 'PaCO2',
  'partial pressure of oxygen': 'PaO2',
  'ph': 'pH',
  'platelets': 'Platelets',
  'potassium': 'K',
  'respiratory rate': 'RespRate',
  'sodium': 'Na',
  'systolic blood pressure': 'SysABP',
  'temperature': 'Temp',
  'troponin-i': 'TroponinI',
  'troponin-t': 'TroponinT',
  'weight': 'Weight',
  'white blood cell count': 'WBC',
}


def load(path, names=None, hours=physionet.HOURS):
  """Loads the stays of a file of MIMIC-Extract.

  Args:
    path: of `all_hourly_data.h5`.
    names: dict from variables of the file to names in `physionet.RANGES`, by
      which they are standardized; `NAMES` by default. Others are left out:
      standardized by their own mean they would tell of the rows.
    hours: number of hours that are used.

  Returns:
    `physionet.Stays`.

  Raises:
    ImportError: without PyTables.
    ValueError: if the file has none of the variables.
  """
  try:
    patients = pd.read_hdf(path, 'patients')
    hourly = pd.read_hdf(path, 'vitals_labs_mean')
  except ImportError as error:
    raise ImportError(
      'Files of MIMIC-Extract are read with PyTables: pip install tables'
    ) from error
  return from_tables(patients, hourly, names, hours)


def from_tables(patients, hourly, names=None, hours=physionet.HOURS):
  """Returns the stays of two tables.

  Args:
    patients: indexed by subject_id, hadm_id and icustay_id.
    hourly: indexed by these and hours_in; columns `(variable, 'mean')`.
    names: see `load`.
    hours: see `load`.

  Returns:
    `physionet.Stays`, in the order of `patients`.

  Raises:
    ValueError: if there are none of the variables.
  """
  names = NAMES if names is None else names
  patients = patients[patients['max_hours'] > hours + _GAP]
  stays = patients.reset_index()['icustay_id'].to_numpy()
  hour = hourly.index.get_level_values('hours_in').to_numpy()
  stay = hourly.index.get_level_values('icustay_id').to_numpy()
  place = pd.Index(stays).get_indexer(stay)
  used = (place >= 0) & (hour >= 0) & (hour < hours)
  variables = [v for v in hourly.columns.get_level_values(0) if v in names]
  if not variables:
    raise ValueError('The table has none of the variables in `names`.')
  values = np.full([len(stays), hours, len(variables)], np.nan)
  for i, variable in enumerate(variables):
    column = hourly[(variable, 'mean')].to_numpy(np.float64)[used]
    values[place[used], hour[used], i] = physionet.standardized(
      column, names[variable]
    )
  targets = {
    'mortality': patients['mort_icu'].to_numpy(np.float32),
    'length_of_stay': (patients['los_icu'] > 3).to_numpy(np.float32),
  }
  return physionet.Stays(
    physionet.with_masks(values), targets, tuple(variables), len(variables)
  )


def made(num_stays, seed=0):
  """Returns `patients` and `vitals_labs_mean` of stays that are made up."""
  rng = np.random.default_rng(seed)
  ids = pd.MultiIndex.from_arrays(
    [rng.permutation(num_stays) + first for first in (10, 1000, 20_000)],
    names=_STAY,
  )
  los = rng.exponential(3, num_stays) + 0.5
  patients = pd.DataFrame(
    {
      'gender': rng.choice(['F', 'M'], num_stays),
      'mort_icu': rng.integers(0, 2, num_stays),
      'los_icu': los,
      'max_hours': np.floor(24 * los).astype(int),
    },
    index=ids,
  )
  rows = [
    (*stay, hour)
    for stay, count in zip(ids, patients['max_hours'])
    for hour in range(count)
  ]
  columns = pd.MultiIndex.from_product(
    [['heart rate', 'lactate', 'never heard of'], ['mean']],
    names=['LEVEL2', 'Aggregation Function'],
  )
  values = rng.uniform(1, 100, [len(rows), 3])
  values[rng.random(values.shape) < 0.5] = np.nan
  index = pd.MultiIndex.from_tuples(rows, names=[*_STAY, 'hours_in'])
  return patients, pd.DataFrame(values, index, columns)
