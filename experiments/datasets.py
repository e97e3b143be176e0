"""Tables to try the synthesizer on, each with a schema that is public.

As a binary, writes one as CSV files with its schema, for the command line:

    python -m experiments.datasets --output_dir=/tmp/randhie
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib

import numpy as np
import pandas as pd
from absl import app, flags

from experiments import flag_values, public_tables
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.table import write_table

SHARED = pathlib.Path(__file__).resolve().parents[2] / 'shared'
SHARED_TABLES = public_tables.NAMES
DATASETS = ('randhie', *SHARED_TABLES)
# What regressors predict.
NUMERIC_TARGETS = {
  'randhie': 'disea',
  'adult': 'age',
  'census': 'age',
  'covertype': 'Elevation',
  'intrusion': 'count',
}


@dataclasses.dataclass(frozen=True)
class Split:
  """A table in two parts.

  Attributes:
    train: DataFrame to learn from.
    holdout: DataFrame of other rows.
    schema: their `TableSchema`.
    target: the column that classifiers predict.
  """

  train: pd.DataFrame
  holdout: pd.DataFrame
  schema: TableSchema
  target: str


def randhie():
  """Loads the RAND Health Insurance Experiment as shipped by statsmodels.

  20,190 rows of 10 columns; a row is one person in one year of the study. Rows
  of the same person follow each other, so the table is split by runs of rows
  with the same baseline health: nobody is in both parts.

  The schema (`randhie_schema`) comes from the documentation of the experiment,
  never from the rows. Because a person has up to five rows, a guarantee for
  one row is a guarantee for one person-year.

  Returns:
    `(train, holdout, schema, target)`: two DataFrames (16,217 and 3,973 rows),
    their `TableSchema`, and the target column 'idp', whether the family had
    the plan with an individual deductible. It follows from the coinsurance,
    the incentive and the expenditure limit taken together, so that a table
    which gets only the single columns right cannot predict it.

  Raises:
    ImportError: if statsmodels is not installed.
  """
  try:
    from statsmodels.datasets import randhie as source
  except ImportError as error:
    raise ImportError(
      'The demo table comes with statsmodels: pip install statsmodels'
    ) from error
  table = source.load_pandas().data
  schema = randhie_schema()
  for field in schema.fields:
    if field.type == 'integer':
      table[field.name] = table[field.name].astype(np.int64)
  baseline = table[['physlm', 'disea', 'hlthg', 'hlthf', 'hlthp']]
  person = (baseline != baseline.shift()).any(axis=1).cumsum().to_numpy()
  shuffled = np.random.default_rng(0).permutation(person.max() + 1)
  held_out = np.isin(person, shuffled[: len(shuffled) // 5])
  train = table[~held_out].reset_index(drop=True)
  holdout = table[held_out].reset_index(drop=True)
  return train, holdout, schema, 'idp'


def randhie_schema():
  """Returns the `TableSchema` of `randhie`, from public documentation.

  Sources: the variable definitions of statsmodels
  (https://www.statsmodels.org/stable/datasets/generated/randhie.html) and the
  design of the experiment (J. Newhouse et al. (1993), *Free for All? Lessons
  from the RAND Health Insurance Experiment*).

  - mdvis: outpatient visits in a year, at most one a day.
  - lncoins: ln(coinsurance + 1); the plans had a coinsurance of 0, 25, 50, 95
    or 100 percent. The file has six digits after the point.
  - lpi: ln(max(1, yearly participation incentive)). The incentive covered the
    largest loss against the family's former insurance, which is bounded by the
    expenditure limit of 1,000 dollars before adjustments to prices; twice that
    leaves room for them.
  - fmde: ln(max(1, limit / coinsurance share)), limit at most 1,000 dollars,
    share at least 25 percent: at most ln(4000), rounded up at four digits.
  - physlm: 1 for a physical limitation; shares in between are imputed.
  - disea: chronic diseases, as a percentage of those that were asked about.
  - idp, hlthg, hlthf, hlthp: indicators.
  """
  indicator = {'type': 'integer', 'constraints': {'enum': [0, 1]}}
  coinsurance = [0.0, 3.258096, 3.931826, 4.564348, 4.61512]

  def between(kind, low, high):
    return {'type': kind, 'constraints': {'minimum': low, 'maximum': high}}

  columns = {
    'mdvis': between('integer', 0, 365),
    'lncoins': {'type': 'number', 'constraints': {'enum': coinsurance}},
    'idp': indicator,
    'lpi': between('number', 0.0, round(math.log(2000), 4)),
    'fmde': between('number', 0.0, round(math.log(4000) + 5e-5, 4)),
    'physlm': between('number', 0.0, 1.0),
    'disea': between('number', 0.0, 100.0),
    'hlthg': indicator,
    'hlthf': indicator,
    'hlthp': indicator,
  }
  fields = [
    {
      'name': name,
      'type': column['type'],
      'constraints': {**column['constraints'], 'required': True},
    }
    for name, column in columns.items()
  ]
  return TableSchema.from_dict({'fields': fields})


def load(name):
  """Loads one of `DATASETS`.

  Args:
    name: 'randhie', or one of `SHARED_TABLES`, which are read from the folder
      `shared` beside the repository.

  Returns:
    `(train, holdout, schema, target)`. The rows are as they were read;
    `schema.validate` gives their columns the types of the schema.

  Raises:
    FileNotFoundError: if the table needs the shared folder and it is not there.
    ValueError: if there is no such data set.
  """
  if name == 'randhie':
    return randhie()
  if name not in SHARED_TABLES:
    raise ValueError(f'No data set {name!r}. Choose one of {DATASETS}.')
  train, holdout = public_tables.read(name, SHARED)
  return train, holdout, public_tables.schema(name), public_tables.TARGETS[name]


def write_files(name, output_dir):
  """Writes train.csv, holdout.csv and schema.json of a data set.

  Args:
    name: One of `DATASETS`.
    output_dir: Folder to write to; made if it does not exist. Files of these
      names are replaced.

  Returns:
    The name of the target column.
  """
  train, holdout, schema, target = load(name)
  os.makedirs(output_dir, exist_ok=True)
  write_table(train, os.path.join(output_dir, 'train.csv'))
  write_table(holdout, os.path.join(output_dir, 'holdout.csv'))
  schema.to_json(os.path.join(output_dir, 'schema.json'), overwrite=True)
  return target


def main(argv):
  """Writes the data set that the flags ask for."""
  options = flag_values.read(argv)
  name, output_dir = options.table, options.output_dir
  target = write_files(name, output_dir)
  print(
    f'Wrote train.csv, holdout.csv and schema.json of {name} to {output_dir}; '
    f'the target column is {target}.'
  )


if __name__ == '__main__':
  flags.DEFINE_enum('table', 'randhie', DATASETS, 'Data set to write.')
  flags.DEFINE_string('output_dir', None, 'Folder to write to.', required=True)
  app.run(main)
