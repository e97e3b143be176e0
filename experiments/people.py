r"""People as the unit of privacy: what bounding their rows costs.

For a table with several rows per person, fits the library's default at one
epsilon per person with k rows used of each, k = 1, 2, 4, 8, or a k that is
chosen privately; and beside it, the same model with rows as the unit, on the
same bounded rows, at the epsilon and delta whose group privacy for k rows is
that of a person. Scores are on all rows of people who were held out:

    python -m experiments.people --dataset=gowalla --seeds=0,1,2 \
      --output=experiments/results/people_gowalla.json

`--dataset=gowalla_density` fits a flow to the places alone instead
(`flows.neural_spline_flow`, under a `TrainingPlan`), and scores its nats per
row, of degrees scaled to [-1, 1].

Seeds make the results reproducible and therefore not private.
"""

from __future__ import annotations

import dataclasses
import gzip
import math
import os
import time

import numpy as np
import pandas as pd
from absl import app, flags, logging

import tfdpflows
from experiments import datasets
from experiments.results_file import ResultsFile
from tfdpflows import evaluation, sampling
from tfdpflows._keras import keras
from tfdpflows.tabular import Field, TableSchema, TabularSynthesizer

PERSON = 'person'
_DENSITY = 'gowalla_density'
DATASETS = ('gowalla', _DENSITY, 'physionet', 'made')
METHODS = ('people', 'people, units', 'rows')
ROWS_PER_PERSON = (1, 2, 4, 8)
_MAX_ROWS_EPSILON = 0.05  # Of the privately chosen number of rows.
_MOST_SCORED = 20_000
_HELD_OUT = 0.2
_SMOKE_PEOPLE = 150


def load(name, smoke=False):
  """Returns the `Split` of one of `DATASETS`, by person.

  Its schema has the privacy unit `person`; held-out rows have no identifier.

  Raises:
    FileNotFoundError: if the folder `shared` is not beside the repository.
  """
  if smoke:
    table, schema, target = _made(_SMOKE_PEOPLE)
  else:
    table, schema, target = {
      'gowalla': _gowalla,
      _DENSITY: _gowalla,
      'physionet': _physionet,
      'made': lambda: _made(100_000),
    }[name]()
  people = np.unique(table[PERSON])
  held_out = np.random.default_rng(0).permutation(people)
  held_out = held_out[: round(_HELD_OUT * len(people))]
  is_held_out = table[PERSON].isin(held_out)
  return datasets.Split(
    table[~is_held_out].reset_index(drop=True),
    table[is_held_out].drop(columns=PERSON).reset_index(drop=True),
    dataclasses.replace(schema, privacy_unit=PERSON),
    target,
  )


def _gowalla():
  """Check-ins in New York: where, at which hour, on which day of the week."""
  path = datasets.SHARED / 'data' / 'gowalla_nyc_checkins.csv.gz'
  with gzip.open(path) as file:
    raw = pd.read_csv(file)
  when = pd.to_datetime(raw['time'])
  table = pd.DataFrame(
    {
      PERSON: raw['user'],
      'lon': raw['lon'],
      'lat': raw['lat'],
      'hour': when.dt.hour,
      'weekday': when.dt.day_name(),
    }
  )
  days = [
    'Monday',
    'Tuesday',
    'Wednesday',
    'Thursday',
    'Friday',
    'Saturday',
    'Sunday',
  ]
  schema = TableSchema(
    [
      # The box that the check-ins were taken from.
      Field('lon', 'number', minimum=-74.259, maximum=-73.701, required=True),
      Field('lat', 'number', minimum=40.484, maximum=40.918, required=True),
      Field('hour', 'integer', minimum=0, maximum=23, required=True),
      Field('weekday', 'string', enum=tuple(days), required=True),
    ]
  )
  return table, schema, 'weekday'


# Physically possible ranges, of monitors and laboratories.
_RANGES = {
  'HR': (0, 300),
  'SysABP': (0, 300),
  'Temp': (20, 45),
  'RespRate': (0, 100),
  'GCS': (3, 15),
  'Urine': (0, 5000),
}


def _physionet():
  """Stays in intensive care by the hour, 48 rows a patient."""
  path = datasets.SHARED / 'data' / 'physionet2012_set_a.npz'
  with np.load(path) as file:
    records = {name: file[name] for name in file.files}
  names = [str(name) for name in records['param_names']]
  outcome = [str(name) for name in records['outcome_columns']]
  outcomes = pd.DataFrame(records['outcomes'], columns=outcome)
  measured = pd.DataFrame(
    {
      PERSON: records['record'],
      'hour': np.minimum(records['minute'] // 60, 47),
      'name': np.array(names)[records['param']],
      'value': records['value'],
    }
  )
  of = lambda kept: measured[measured['name'].isin(kept)]
  hourly = of(_RANGES).pivot_table(
    index=[PERSON, 'hour'], columns='name', values='value', aggfunc='mean'
  )
  index = pd.MultiIndex.from_product(
    [outcomes['RecordID'].astype(int), range(48)], names=[PERSON, 'hour']
  )
  table = hourly.reindex(index).reset_index()
  static = of(['Age', 'Gender']).pivot_table(
    index=PERSON, columns='name', values='value', aggfunc='first'
  )
  static['died'] = outcomes.set_index('RecordID')['In-hospital_death'] > 0
  table = table.join(static, on=PERSON)
  table['sex'] = table.pop('Gender').map({0.0: 'f', 1.0: 'm'})
  schema = TableSchema(
    [
      Field('hour', 'integer', minimum=0, maximum=47, required=True),
      *(
        Field(name, 'number', minimum=low, maximum=high)
        for name, (low, high) in _RANGES.items()
      ),
      Field('Age', 'number', minimum=15, maximum=90),
      Field('sex', 'string', enum=('f', 'm')),
      Field('died', 'boolean', required=True),
    ]
  )
  for name in (*_RANGES, 'Age'):
    field = schema[name]
    table[name] = table[name].clip(field.minimum, field.maximum)
  return table[[PERSON, *schema.names]], schema, 'died'


def _made(people):
  """Ten rows a person on average, more of those who spend more."""
  rng = np.random.default_rng(0)
  taste = rng.normal(size=people)
  counts = 1 + rng.poisson(np.exp(1.9 + 0.5 * taste))
  person = np.repeat(np.arange(people), counts)
  own, rows = taste[person], len(person)
  group = np.clip(np.round(own + rng.normal(size=rows)), -2, 2) + 2
  amount = np.exp(3 + 0.6 * own + 0.5 * rng.normal(size=rows))
  region = (rng.integers(0, 8, people)[person] + (rng.random(rows) < 0.1)) % 8
  returned = rng.random(rows) < 1 / (1 + np.exp(2 - 0.8 * group))
  table = pd.DataFrame(
    {
      PERSON: person,
      'amount': amount.clip(0, 1000),
      'group': np.array(list('abcde'))[group.astype(int)],
      'region': region.astype(str),
      'items': rng.poisson(1 + amount / 20).clip(0, 50),
      'returned': returned,
    }
  )
  schema = TableSchema(
    [
      Field('amount', 'number', minimum=0, maximum=1000, required=True),
      Field('group', 'string', enum=tuple('abcde'), required=True),
      Field('region', 'string', enum=tuple('01234567'), required=True),
      Field('items', 'integer', minimum=0, maximum=50, required=True),
      Field('returned', 'boolean', required=True),
    ]
  )
  return table, schema, 'returned'


def of_rows(epsilon, delta, k):
  """Returns (epsilon, delta) of a row for which k rows have those given.

  Group privacy: k rows have `k e` and `d (1 + exp(e) + ... + exp((k-1) e))`.

  #### Example

  >>> e, d = of_rows(1., 1e-5, 2)
  >>> e, round(d * (1 + math.exp(e)), 9)
  (0.5, 1e-05)
  """
  share = epsilon / k
  return share, delta / sum(math.exp(i * share) for i in range(k))


def run(
  dataset,
  *,
  epsilon=1.0,
  delta=1e-5,
  seeds=(0,),
  rows_per_person=ROWS_PER_PERSON,
  methods=METHODS,
  output=None,
  smoke=False,
  **hyperparameters,
):
  """Fits and scores each method with each number of rows per person.

  Args:
    dataset: one of `DATASETS`.
    epsilon: of a person.
    delta: of a person.
    seeds: of the fits.
    rows_per_person: numbers of rows of a person that are used; 0 stands for
      one that is chosen privately, at most 16.
    methods: some of `METHODS`.
    output: JSON file that grows run by run, or `None`.
    smoke: whether to take a small made table, to see that all parts work.
    **hyperparameters: of the synthesizer.

  Returns:
    The `ResultsFile`.
  """
  people = load(dataset, smoke)
  schema = people.schema
  train = schema.validate(people.train)
  train[PERSON] = people.train[PERSON].to_numpy()
  holdout = schema.validate(people.holdout, fitting=False)
  holdout = holdout.sample(
    min(len(holdout), _MOST_SCORED), random_state=0
  ).reset_index(drop=True)
  results = ResultsFile(
    output,
    {
      'dataset': dataset,
      'epsilon': epsilon,
      'delta': delta,
      'people': int(train[PERSON].nunique()),
      'rows': len(train),
      'holdout_rows': len(holdout),
      'target': people.target,
      'smoke': smoke,
      'hyperparameters': hyperparameters,
    },
    keys=('method', 'rows_per_person', 'seed'),
  )
  for seed in seeds:
    for k in rows_per_person:
      for method in methods:
        key = {'method': method, 'rows_per_person': k, 'seed': seed}
        # One row per person is the unit, and group privacy needs a number.
        if results.has(**key) or (method == 'rows' and k < 2):
          continue
        start = time.perf_counter()
        if dataset == _DENSITY:
          found = _density(method, train, holdout, k, epsilon, delta, seed)
          seconds = time.perf_counter() - start
        else:
          fitted = _fitted(
            method, train, schema, k, epsilon, delta, seed, hyperparameters
          )
          seconds = time.perf_counter() - start
          found = _scores(fitted, holdout, schema, people.target, seed)
        results.add({**key, **found, 'fit_seconds': round(seconds, 1)})
        logging.info('%s: %s', key, found)
  return results


def _fitted(method, train, schema, k, epsilon, delta, seed, hyperparameters):
  if method != 'rows':
    chosen = {'max_rows_epsilon': _MAX_ROWS_EPSILON * epsilon} if not k else {}
    return TabularSynthesizer(
      schema,
      epsilon=epsilon,
      delta=delta,
      max_rows_per_unit=k or 16,
      unit_weighting='units' if method == 'people, units' else 'rows',
      seed=seed,
      **chosen,
      **hyperparameters,
    ).fit(train, progress=False)
  units = sampling.Units(train[PERSON], name=PERSON, max_rows_per_unit=k)
  used = train[units.row_weights() > 0].drop(columns=PERSON)
  epsilon, delta = of_rows(epsilon, delta, k)
  return TabularSynthesizer(
    dataclasses.replace(schema, privacy_unit=None),
    epsilon=epsilon,
    delta=delta,
    seed=seed,
    **hyperparameters,
  ).fit(used.reset_index(drop=True), progress=False)


def _density(method, train, holdout, k, epsilon, delta, seed):
  """Returns the scores of a flow of the places, in nats per row."""
  if not k:
    raise ValueError('The density takes a given number of rows per person.')
  units = sampling.Units(
    train[PERSON],
    max_rows_per_unit=k,
    name=PERSON,
    weighting='units' if method == 'people, units' else 'rows',
  )
  x = _places(train)
  if method == 'rows':
    x, units = x[units.row_weights() > 0], None
    epsilon, delta = of_rows(epsilon, delta, k)
  examples = len(x) if units is None else units.num_units
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=epsilon,
    delta=delta,
    num_examples=examples,
    # Settings of `density_fitting`, for this number of columns.
    expected_batch_size=examples / 22,
    epochs=15,
    clipping=tfdpflows.gradients.Flat(100.0),
    units=units,
    seed=seed,
  )
  flow = tfdpflows.flows.neural_spline_flow(
    2, num_blocks=2, hidden_units=[64], seed=seed
  )
  model = tfdpflows.DensityModel(flow, ema_momentum=0.99)
  schedule = keras.optimizers.schedules.CosineDecay(3e-3, plan.steps, alpha=0.1)
  model.compile(optimizer=plan.optimizer('adam', learning_rate=schedule))
  model.fit(x, verbose=0)
  return {
    'nats': float(np.mean(model.log_prob(_places(holdout)))),
    'epsilon_spent': plan.ledger.epsilon(),
    'used': None if units is None else units.describe(),
  }


def _places(table):
  """Returns longitude and latitude, scaled by the public box to [-1, 1]."""
  center, half = np.array([-73.98, 40.701]), np.array([0.279, 0.217])
  return ((table[['lon', 'lat']] - center) / half).to_numpy(np.float32)


def _scores(fitted, holdout, schema, target, seed):
  rows = fitted.sample(len(holdout), seed=seed)
  compared = evaluation.compare(holdout, rows, schema).summary()
  scored = evaluation.train_on_synthetic(
    holdout, rows, schema, target, classifiers='quick'
  )
  return {
    'nats': float(np.mean(fitted.log_prob(holdout))),
    'auroc': float(scored['auroc'].mean()),
    **{name: float(value) for name, value in compared.items()},
    'epsilon_spent': fitted.ledger.epsilon(),
    'used': fitted._fitted.units,
  }


def main(argv):
  del argv
  flag = flags.FLAGS
  run(
    flag.dataset,
    epsilon=flag.epsilon,
    seeds=[int(seed) for seed in flag.seeds],
    rows_per_person=[int(k) for k in flag.rows_per_person],
    methods=flag.methods,
    output=flag.output and os.path.abspath(flag.output),
    smoke=flag.smoke,
  )


if __name__ == '__main__':
  flags.DEFINE_enum('dataset', 'gowalla', DATASETS, 'Table.')
  flags.DEFINE_float('epsilon', 1.0, 'Epsilon of a person.')
  flags.DEFINE_list('seeds', ['0'], 'Seeds.')
  flags.DEFINE_list(
    'rows_per_person',
    ['1', '2', '4', '8', '0'],
    'Rows of a person that are used; 0 to choose privately.',
  )
  flags.DEFINE_multi_enum('methods', list(METHODS), METHODS, 'Which methods.')
  flags.DEFINE_string('output', None, 'JSON file of results.')
  flags.DEFINE_bool('smoke', False, 'A small made table.')
  app.run(main)
