"""Fits that protect people with several rows: replays, files, bad input."""

import contextlib
import dataclasses
import decimal
import fractions
import json

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.grids import thinned
from tests.tabular import small_table
from tfdpflows import accounting, audit
from tfdpflows.audit import replaying
from tfdpflows.tabular import TableSchema, TabularSynthesizer, fitting
from tfdpflows.tabular.drafting import draft_schema
from tfdpflows.tabular.synthesizer import fit_to_directory

pytestmark = pytest.mark.usefixtures('unexported')

PERSON = 'person'
BUDGET = {'epsilon': 8.0, 'delta': 1e-3, 'accountant': 'rdp'}


@pytest.fixture(scope='module')
def people():
  """The small table, with 80 people of 1 to 9 rows; one has a third of all."""
  made = small_table.make()
  rng = np.random.default_rng(0)
  ids = rng.permutation(np.repeat(np.arange(80), rng.integers(1, 10, 80))[:270])
  ids = np.concatenate([ids, np.full(400 - len(ids), 5)])
  made.table[PERSON] = rng.permutation(ids)
  made.schema = dataclasses.replace(made.schema, privacy_unit=PERSON)
  made.arguments = {**BUDGET, **made.tiny, 'max_rows_per_unit': 3}
  made.quick.update(made.arguments)
  return made


@pytest.fixture(scope='module')
def fitted(people):
  """A quick fit of the table, in memory."""
  with small_table.untrained():
    return TabularSynthesizer(people.schema, seed=0, **people.quick).fit(
      people.table, progress=False
    )


MODELS = {
  'adaptive': {
    'model': 'histogram',
    'target': 'member',
    'adaptive_marginals': 2,
    'max_rows_epsilon': 0.2,
  },
  'units': {'model': 'histogram', 'unit_weighting': 'units'},
  'dpgan': {'model': 'dpgan', 'discriminator_steps': 3},
  'hflow': {
    'model': 'hflow',
    'num_blocks': 1,
    'dequantization': 'variational',
    'clipping': 'per_unit',
  },
}


@pytest.mark.parametrize(
  'name',
  [
    'adaptive',
    *(
      pytest.param(n, marks=pytest.mark.full) for n in MODELS if n != 'adaptive'
    ),
  ],
)
def test_one_person_moves_every_release_by_its_sensitivity(people, name):
  """Of the person with most rows; they are made extreme."""
  table = people.table.copy()
  rows = np.flatnonzero(table[PERSON] == 5)
  table.loc[rows, table.columns[:-1]] = [0, 200, 12, 'Bonn', False]

  def fit(absent):
    synthesizer = TabularSynthesizer(
      people.schema, **{**people.arguments, **MODELS[name]}
    )
    return audit.fit_without(synthesizer, table, absent)

  with small_table.short():
    found = replaying.record(fit, []).replay(rows[:1])
  assert found.passed, found
  moved = {entry.label: entry.moved for entry in found.entries}
  assert moved['DP-SGD'] > 0.01
  # All three rows that are used are in one bin of each column and level.
  assert 0.5 < moved['marginals'] <= 1 + 1e-6
  if name == 'adaptive':
    assert moved['max rows per unit'] == pytest.approx(1)
    assert len(moved) == 3 + 2 * 2


def test_rows_that_are_not_used_change_nothing(people):
  """A person's further rows: how many there are, and what they hold."""
  table = people.table
  # Of equal rows any may be used.
  own = table[table[PERSON] == 5]
  table = pd.concat([table[table[PERSON] != 5], *[own.iloc[:1]] * 4])

  def fit(more):
    given = pd.concat([table, *[own.iloc[:1]] * more], ignore_index=True)
    return TabularSynthesizer(people.schema, **people.quick).fit(
      given, progress=False
    )

  found = audit.replay(fit, 0, 100)
  assert found.passed, found
  assert max(entry.moved for entry in found.entries) < 1e-6


@pytest.mark.parametrize(
  'how', ['shuffled units', 'numbers and texts', 'columns in another order']
)
def test_the_same_people_give_the_same_model(people, fitted, how):
  table = people.table
  other = {
    'shuffled units': table.sort_values(PERSON, kind='stable'),
    'numbers and texts': table.assign(
      **{
        PERSON: [
          str(x) if i % 2 else float(x) for i, x in enumerate(table[PERSON])
        ]
      }
    ),
    'columns in another order': table[table.columns[::-1]],
  }[how]
  # Who is which is settled before anything is measured.
  with small_table.untrained():
    found = TabularSynthesizer(people.schema, seed=0, **people.quick).fit(
      other.reset_index(drop=True), progress=False
    )
  assert found._fitted.marginals == fitted._fitted.marginals
  assert found.num_examples == fitted.num_examples == table[PERSON].nunique()


@pytest.mark.parametrize('trained', thinned([False, True], 1))
def test_drafts_are_paid_for_by_people(people, trained):
  draft = draft_schema(people.table, privacy_unit=PERSON)
  assert PERSON not in draft.names
  arguments = {
    **people.quick,
    'epsilon': 40.0,
    'unit_weighting': 'units',
  }
  fits = []

  def fit(absent):
    synthesizer = TabularSynthesizer(draft, bounds_epsilon=30.0, **arguments)
    fits.append(audit.fit_without(synthesizer, people.table, absent))
    return fits[-1]

  rows = np.flatnonzero(people.table[PERSON] == 5)
  with contextlib.nullcontext() if trained else small_table.untrained():
    found = audit.replay(fit, [], rows)
  entries = {entry.label: entry for entry in found.entries}
  assert entries['bounds'].problem or not entries['bounds'].exceeds
  assert not any(entry.exceeds for entry in found.entries), found
  # That of all people.
  fitted = fits[0]
  assert fitted.schema.privacy_unit == PERSON
  assert not fitted.schema.is_draft
  assert fitted.ledger.epsilon() <= arguments['epsilon']


def test_files(people, tmp_path):
  """Saved, loaded, exported and stated."""
  path = str(tmp_path / 'model')
  with small_table.untrained():
    fit_to_directory(
      people.table,
      people.schema,
      path,
      progress=False,
      max_rows_epsilon=0.2,
      seed=0,
      **people.quick,
    )
  loaded = TabularSynthesizer.load(path)
  assert PERSON not in loaded.sample(5)
  assert loaded.num_examples == people.table[PERSON].nunique()
  assert loaded.ledger.privacy_unit == PERSON
  statement = ' '.join(str(loaded.privacy_statement()).split())
  for part in (
    "Unit of privacy: all rows of the table with one value of 'person'",
    f'Number of units: {loaded.num_examples}',
    'The number of units is public; that of rows is not.',
    'each value of person joins each batch',
    'of its rows are used, and each row counts the same',
    'max rows per unit: exponential mechanism',
  ):
    assert part in statement
  for given in (people.table, people.table.drop(columns=PERSON)):
    assert np.isfinite(loaded.log_prob(given)).all()
  # That there are 400 rows is nowhere.
  model = json.loads((tmp_path / 'model' / 'model.json').read_text())
  assert model['settings']['num_rows'] == loaded.num_examples
  export = str(tmp_path / 'exported')
  loaded.export(export)
  card = json.loads((tmp_path / 'exported' / 'model_card.json').read_text())
  assert card['data']['num_units'] == loaded.num_examples
  assert card['data']['privacy_unit'] == PERSON
  assert 'num_rows' not in card['data']
  assert set(tf.saved_model.load(export).signatures) == {'sample', 'log_prob'}
  loaded.ledger.close()


def test_a_fit_in_memory_is_saved_with_its_unit(people, fitted, tmp_path):
  path = tmp_path / 'model'
  fitted.save(path)
  loaded = TabularSynthesizer.load(path)
  assert loaded.ledger.privacy_unit == PERSON
  assert str(loaded.privacy_statement()) == str(fitted.privacy_statement())
  loaded.ledger.close()
  # A schema that says otherwise is not that of the model.
  schema = dataclasses.replace(people.schema, privacy_unit='household')
  schema.to_json(path / 'schema.json', overwrite=True)
  with pytest.raises(ValueError, match="unit 'household', and the ledger"):
    TabularSynthesizer.load(path)


def test_a_fit_of_other_people_is_not_resumed(people, tmp_path):
  path = str(tmp_path / 'work')
  make = lambda **kwargs: TabularSynthesizer(
    people.schema, **{**people.quick, **kwargs}
  )
  with small_table.untrained():
    make().fit(people.table, work_dir=path, progress=False).ledger.close()
  other = people.table.assign(**{PERSON: people.table[PERSON][::-1].to_numpy()})
  with pytest.raises(ValueError, match='begun with another table'):
    make().fit(other, work_dir=path, resume=True, progress=False)
  with pytest.raises(ValueError, match='begun with another units'):
    make(max_rows_per_unit=2).fit(
      people.table, work_dir=path, resume=True, progress=False
    )
  again = make().fit(people.table, work_dir=path, resume=True, progress=False)
  labels = [entry.label for entry in again.ledger.entries]
  assert len(labels) == len(set(labels))
  assert (labels[0], labels[-1]) == ('marginals', 'DP-SGD')
  again.ledger.close()


def test_bins_are_as_many_as_the_rows_that_are_found(people, tmp_path):
  """How many rows people have is released; until then a guess stands for it."""
  table = small_table.make(num_rows=18_000).table
  table[PERSON] = np.arange(18_000) % 2_000

  def fit(table, folder, **kwargs):
    kwargs = {
      **people.quick,
      'epsilon': 30.0,
      'delta': 1e-4,
      'max_rows_per_unit': 9,
      **kwargs,
    }
    synthesizer = TabularSynthesizer(people.schema, seed=0, **kwargs)
    bins = [synthesizer.plan(table[PERSON].nunique()).model.num_bins]
    with small_table.untrained():
      synthesizer.fit(table, str(tmp_path / folder), progress=False)
    synthesizer.ledger.close()
    return synthesizer, [*bins, synthesizer.model.num_bins]

  assert fit(table, 'many')[1] == [7, 12]
  # Of each person one row, where nine were possible: the guess is three.
  one = table.drop_duplicates(PERSON)
  assert fit(one, 'few')[1] == [7, 4]
  assert fit(one, 'given', num_bins=9)[1] == [9, 9]
  # A limit that is chosen privately is what rows weigh by.
  limited, bins = fit(one, 'limited', max_rows_epsilon=1.0)
  assert bins == [7, 12]
  limited.save(tmp_path / 'model')
  loaded = TabularSynthesizer.load(tmp_path / 'model')
  assert loaded.model == limited.model
  rows = one.head(20)
  np.testing.assert_allclose(loaded.log_prob(rows), limited.log_prob(rows))
  loaded.ledger.close()


def test_missing_identifiers(people):
  table = people.table.astype({PERSON: object})
  table.loc[[3, 8], PERSON] = None
  table.loc[9, PERSON] = 'NA'
  make = lambda **kwargs: TabularSynthesizer(
    people.schema, seed=0, **people.quick, **kwargs
  )
  with pytest.raises(ValueError, match=r"'person', row 4: .*unit is missing"):
    make().fit(table, progress=False)
  # Under 'clip' their rows are not there.
  with small_table.untrained():
    found = make(out_of_range='clip').fit(table, progress=False)
    other = make(out_of_range='clip').fit(
      people.table.drop([3, 8, 9]).reset_index(drop=True), progress=False
    )
  assert found._fitted.marginals == other._fitted.marginals
  with pytest.raises(ValueError, match='only missing ones'):
    make(out_of_range='clip').fit(
      people.table.assign(**{PERSON: None}), progress=False
    )


def test_who_is_left_out_for_an_audit(people, monkeypatch):
  """Rows are counted in the table as given, whose identifiers are."""
  table = people.table.astype({PERSON: object})
  table.loc[[0, 3], PERSON] = None
  seen = []
  monkeypatch.setattr(
    fitting, 'run_mechanisms', lambda *args, **kwargs: seen.append(kwargs)
  )
  synthesizer = TabularSynthesizer(
    people.schema, out_of_range='clip', **people.quick
  )
  with pytest.raises(AttributeError):
    audit.fit_without(synthesizer, table, [3, 7, 399])
  kept = table[PERSON].dropna().reset_index(drop=True)
  (kwargs,) = seen
  assert kwargs['units'].num_rows == 398
  assert kept[kwargs['absent']].tolist() == table[PERSON][[7, 399]].tolist()


def test_identifiers_that_are_one(people):
  make = lambda ids: people.schema.unit_ids(pd.DataFrame({PERSON: ids}), 'clip')
  one = [7, 7.0, '7', '7.0', ' 7', np.int8(7), '7 ']
  for ids in (one, pd.Series(one, dtype=object)):
    assert make(ids).tolist() == ['7'] * 7
  others = ['007', '+7', '7.5', 'a', True]
  assert make(others).nunique() == 5
  # Of a column of floats the last digits are gone, and one cell makes a column
  # one of floats.
  large = np.array([2**53 + 1, 2**53 + 2])
  for ids in (large, large.astype(float), large.astype(object)):
    table = pd.DataFrame({PERSON: [*pd.Series(ids), 7]}, dtype=ids.dtype)
    found = people.schema.unit_ids(table, 'clip')
    assert found.isna().tolist() == [True, True, False]
  with pytest.raises(ValueError, match=r'row 1: .*is beyond 2\*\*53'):
    people.schema.unit_ids(pd.DataFrame({PERSON: large}))
  texts = pd.DataFrame({PERSON: large.astype(str)})
  for mode in ('error', 'clip'):
    assert people.schema.unit_ids(texts, mode).nunique() == 2


def test_cells_without_any_identifier(people):
  for ids in ([], [None, np.nan], [np.nan] * 2):
    column = pd.Series(ids, dtype=object)
    assert people.schema.unit_ids_of(column, 'clip').isna().all()


@pytest.mark.parametrize(
  'one',
  [
    'a\0',
    'a\ud800',
    'M\ufffdller',
    10**18 + 1,
    np.uint64(2**63 + 1),
    decimal.Decimal(10**18 + 1),
    decimal.Decimal('0.12345678901234567890'),
    fractions.Fraction(1, 3),
  ],
)
def test_no_two_people_become_one(people, one):
  table = pd.DataFrame({PERSON: pd.Series([one, 'other'], dtype=object)})
  assert people.schema.unit_ids(table, 'clip').isna().tolist() == [True, False]
  if isinstance(one, str):
    with pytest.raises(
      ValueError, match='a character that cannot be a part of text'
    ):
      people.schema.unit_ids(table)


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'max_rows_per_unit': None}, "unit is 'person': give max_rows_per_unit"),
    ({'max_rows_per_unit': 0}, 'max_rows_per_unit is 0'),
    ({'max_rows_epsilon': 9.0}, 'max_rows_epsilon is 9.0; it is a part of'),
    ({'unit_weighting': 'mean'}, "weighting is 'mean'"),
    ({'model': 'pategan'}, "'pategan' protects rows, and the privacy unit"),
    ({'privacy_unit': 'age'}, "has a field 'age', which is its privacy unit"),
  ],
)
def test_bad_arguments_are_named(people, arguments, message):
  arguments = {**BUDGET, 'max_rows_per_unit': 3, **arguments}
  with pytest.raises(ValueError, match=message):
    TabularSynthesizer(people.schema, **arguments)


def test_bad_tables_are_named(people):
  rows = dataclasses.replace(people.schema, privacy_unit=None)
  with pytest.raises(ValueError, match='there is no privacy_unit'):
    TabularSynthesizer(rows, max_rows_per_unit=3)
  synthesizer = TabularSynthesizer(
    rows, privacy_unit='household', **people.quick
  )
  with pytest.raises(ValueError, match="no column 'household'"):
    synthesizer.fit(people.table, progress=False)
  with pytest.raises(ValueError, match="no column 'household'"):
    draft_schema(people.table, privacy_unit='household')
  with pytest.raises(ValueError, match="did you mean 'privacyUnit'"):
    TableSchema.from_dict({**rows.to_dict(), 'privacy_unit': PERSON})
  with pytest.raises(ValueError, match='privacy unit of the schema is 7'):
    TableSchema.from_dict({**rows.to_dict(), 'privacyUnit': 7})
  # A delta of one over the number of people is too large.
  with pytest.raises(ValueError, match='one over the number of units'):
    TabularSynthesizer(
      people.schema, **{**people.quick, 'delta': 0.05, 'epochs': 1}
    ).fit(people.table, progress=False)


def test_a_schema_names_its_unit(people, tmp_path):
  path = tmp_path / 'schema.json'
  people.schema.to_json(path)
  assert TableSchema.from_json(path) == people.schema
  assert json.loads(path.read_text())['privacyUnit'] == PERSON
  with pytest.raises(ValueError, match='this ledger is for rows'):
    accounting.PrivacyLedger().charge(
      accounting.EpsilonDeltaDpEvent(1.0, 0.0), privacy_unit=PERSON
    )


def test_the_number_of_people_is_public_and_that_of_rows_is_not(people):
  table = people.table[1:3].assign(**{PERSON: 7})
  for rows in (1, 2):
    synthesizer = TabularSynthesizer(people.schema, **people.arguments)
    with pytest.raises(ValueError, match="All rows have the same 'person'"):
      synthesizer.fit(table[:rows], progress=False)
