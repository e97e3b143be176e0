"""A search for the hyper-parameters of a table's model."""

import json
import os
import types

import pytest
import tensorflow as tf

from tests.tabular import small_table
from tfdpflows import accounting, mechanisms
from tfdpflows.accounting import EpsilonDeltaDpEvent
from tfdpflows.tabular import (
  TabularSynthesizer,
  tune_to_directory,
  tuning,
)
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.synthesizer import fit_to_directory
from tfdpflows.tuning import search

pytestmark = pytest.mark.usefixtures('unexported')

SMALL = small_table.make()
SPACE = {'epochs': [1, 2], 'num_bins': [4, 8]}
# With the second rate a model learns nothing.
RATES = {'learning_rate': [0.03, 1e-9], 'epochs': [4]}
COMMON = {'hidden_units': (8,), 'expected_batch_size': 50}
BUDGET = {'epsilon': 8.0, 'delta': 1e-4, 'accountant': 'rdp'}


def _tune(model_dir, table=SMALL.table, schema=SMALL.schema, **kwargs):
  kwargs = {
    **COMMON,
    **BUDGET,
    'space': SPACE,
    'mean_trials': 1.0,
    'progress': False,
    'adaptive_marginals': 0,
    **kwargs,
  }
  return tune_to_directory(table, schema, model_dir, **kwargs)


@pytest.fixture(autouse=True, scope='module')
def _few_rows():
  """A score of few rows of a model does."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tuning, '_ROWS', 1 << 13)
    yield


@pytest.fixture(scope='module')
def searched(tmp_path_factory):
  """A model of the better of two trials, and what each of them spent."""
  folder = tmp_path_factory.mktemp('searched')
  path = str(folder / 'people.csv')
  small_table.make(4000).table.to_csv(path, index=False)
  fits, codes, keys, distances = [], [], [], []
  distance = mechanisms.noisy_total_variation
  charge = accounting.PrivacyLedger.charge

  def noted(scored, *args, **kwargs):
    fits.append(kwargs['ledger'])
    codes.append(scored)
    distances.append(distance(scored, *args, **kwargs))
    return distances[-1]

  def noted_charge(self, *args, **kwargs):
    keys.append(kwargs.get('randomness_id'))
    return charge(self, *args, **kwargs)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(mechanisms, 'noisy_total_variation', noted)
    patch.setattr(accounting.PrivacyLedger, 'charge', noted_charge)
    # With this seed there is a trial of each rate.
    best = _tune(
      str(folder / 'model'),
      [path],
      seed=14,
      epsilon=40.0,
      mean_trials=4.0,
      target='member',
      expected_batch_size=400,
      space=RATES,
    )
  return types.SimpleNamespace(
    folder=folder,
    best=best,
    fits=fits,
    codes=codes,
    keys=keys,
    distances=distances,
  )


def test_the_statement_is_of_the_whole_search(searched):
  folder, best = searched.folder, searched.best
  assert len(searched.fits) > 1
  (entry,) = best.ledger.entries
  assert entry.event == EpsilonDeltaDpEvent(40.0, 1e-4)
  statement = best.privacy_statement()
  assert statement.epsilon == 40.0
  assert statement.seeded
  assert 'best of a random number' in statement.hyperparameter_search
  assert 'Poisson' not in str(statement)
  assert (best.budget.epsilon, best.seed) == (40.0, 14)
  # What is written is what is loaded, and nothing is left.
  assert sorted(os.listdir(folder)) == ['model', 'people.csv']
  text = (folder / 'model' / 'statement.txt').read_text()
  assert text == f'{statement}\n'
  assert len(best.sample(5)) == 5


def test_trials_have_their_part_of_the_budget(searched):
  best = searched.best
  for ledger in searched.fits:
    # Half of nine tenths, and of delta a quarter: there are four on average.
    budget = ledger.budget
    assert (budget.epsilon, budget.delta) == pytest.approx((18, 2.25e-5))
    assert 17.5 < ledger.epsilon() <= budget.epsilon
    labels = [entry.label for entry in ledger.entries]
    assert labels == ['marginals', 'DP-SGD', 'score']
  for name, values in RATES.items():
    assert getattr(best.model, name) in values
  assert best.model.hidden_units == (8,)
  assert best.model.target == 'member'


def test_the_best_score_wins(searched):
  """A score tells a model of the rows from independent columns."""
  first, second = searched.distances
  assert first - second > 0.01
  assert searched.best.model.learning_rate == 0.03


def test_the_trials_are_independent_of_each_other(searched):
  """Noise that two trials share would leave when one is subtracted."""
  keys = [key for key in searched.keys if key is not None]
  assert len(keys) > 4 and len(set(keys)) == len(keys)


def test_all_trials_are_scored_in_the_same_bins(searched):
  """Of its own bins one with few and large ones would be nearest."""
  assert len(searched.codes) > 1
  assert all(codes is searched.codes[0] for codes in searched.codes)


def test_the_folder_does_not_tell_how_many_trials_there_were(
  tmp_path, monkeypatch
):
  written = []
  for number in (1, 3):
    monkeypatch.setattr(search, 'draw_num_trials', lambda *_, n=number: n)
    # The first trial wins.
    scores = iter(range(number))
    monkeypatch.setattr(
      tuning._Search,
      '_distance',
      lambda *_, scores=scores: float(next(scores)),
    )
    folder = tmp_path / str(number)
    with small_table.untrained():
      _tune(str(folder), seed=3, space={'epochs': [1, 2], 'num_bins': [4]})
    written.append(
      {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob('*')
        if file.is_file()
      }
    )
  one, three = written
  assert one.keys() == three.keys()
  # A ledger has the time, and a random name of the fit.
  different = [name for name in one if one[name] != three[name]]
  assert sorted(different) == ['ledger.jsonl', 'model.json']
  models = [json.loads(files['model.json']) for files in written]
  for model in models:
    del model['ledgers_sha256']
  assert models[0] == models[1]


def test_a_search_inside_of_a_strategy_is_refused(tmp_path):
  strategy = tf.distribute.MirroredStrategy(['cpu:0'])
  with strategy.scope(), pytest.raises(ValueError, match='outside of the str'):
    _tune(str(tmp_path / 'model'))


def test_overwriting_keeps_what_was_spent(tmp_path):
  model_dir = str(tmp_path / 'model')
  with small_table.untrained():
    fit_to_directory(
      SMALL.table,
      SMALL.schema,
      model_dir,
      progress=False,
      **SMALL.quick,
      **BUDGET,
    )
    with pytest.raises(FileExistsError, match='exists'):
      _tune(model_dir)
    best = _tune(model_dir, overwrite=True)
  assert 'An earlier fit was replaced' in str(best.privacy_statement())


def test_a_search_that_stops_is_charged(tmp_path, monkeypatch):
  model_dir = str(tmp_path / 'model')

  def stop(*_, **__):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(TabularSynthesizer, '_fit', stop)
    with pytest.raises(KeyboardInterrupt):
      _tune(model_dir)
  assert os.listdir(tmp_path) == ['model.partial']
  with pytest.raises(FileExistsError, match='not finished'):
    _tune(model_dir)
  with small_table.untrained():
    best = _tune(model_dir, overwrite=True)
  assert 'it spent epsilon 8 at' in str(best.privacy_statement())
  assert os.listdir(tmp_path) == ['model']


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'space': {'bins': [4]}}, "space has 'bins', which is no hyper-param"),
    # What it has are its fields, not what the class has.
    ({'space': {'has_density': [True]}}, r"It has \['adaptive_m(?!.*has_dens)"),
    ({'space': {'num_bins': [4, -1]}}, 'num_bins is -1'),
    ({'space': {'epsilon': [4.0]}}, "space has 'epsilon'"),
    ({'space': {'target': ['member']}}, "space has 'target'"),
    ({'space': {'num_examples': [5]}}, "space has 'num_examples'"),
    ({'space': {'epochs': range(1, 1002)}}, '1001 settings'),
    ({'space': {'epochs': ['1']}}, "epochs is the text '1'; it must be"),
    ({'space': [{'epochs': [1, 2]}]}, r'epochs is \[1, 2\]; it must be'),
    ({'space': {'hidden_units': [8]}}, 'hidden_units is 8; it must be'),
    ({'space': {'target_weight': [4.0, 1e300]}}, 'target_weight is 1e.300'),
    ({'space': {'l2_norm_clip': [1e-30]}}, 'l2_norm_clip is 1e-30'),
    ({'space': {'epochs': 5}}, "space has 5 for 'epochs'"),
    ({'space': None}, 'space is None'),
    ({'space': {}}, 'space is empty'),
    ({'space': [[1]]}, 'must have dicts'),
    ({'space': [{'model': 'none'}]}, "model is 'none'"),
    ({'space': {'model': [['x']]}}, 'give the name of one'),
    # Known with the number of rows only.
    ({'space': {'expected_batch_size': [50, 4000]}}, 'expected_batch_size is'),
    ({'mean_trials': 0.5}, 'mean'),
    ({'mean_trials': 1e18}, '1e.06 at most'),
    ({'delta': 0.01}, 'publishing one row in full'),
    ({'accountant': 'gdp'}, 'no upper bound'),
    ({'accountant': 'basic'}, 'more than it costs'),
    ({'bounds_epsilon': 1.0}, 'no draft schema'),
    ({'privacy_unit': 'person'}, 'protects rows'),
    ({'schema': TableSchema(SMALL.schema.fields[:1])}, 'one column'),
    ({'table': SMALL.table.assign(age=-1)}, "'age'"),
  ],
)
def test_refusals_write_nothing(kwargs, message, tmp_path):
  table = kwargs.pop('table', SMALL.table)
  path = str(tmp_path / 'people.csv')
  table.to_csv(path, index=False)
  with pytest.raises(ValueError, match=message):
    _tune(str(tmp_path / 'model'), [path], **kwargs)
  assert os.listdir(tmp_path) == ['people.csv']


def test_an_unfinished_fit_is_kept_by_a_search_that_is_refused(tmp_path):
  work = tmp_path / 'model.partial'
  synthesizer = TabularSynthesizer(SMALL.schema, **SMALL.quick, **BUDGET)
  with small_table.untrained():
    synthesizer.fit(SMALL.table, str(work), progress=False)
  synthesizer.ledger.close()
  before = sorted(os.listdir(work))
  for kwargs in ({'accountant': 'zcdp'}, {'space': {'num_bins': [-1]}}):
    with pytest.raises(ValueError):
      _tune(str(tmp_path / 'model'), overwrite=True, **kwargs)
  with pytest.raises(FileNotFoundError):
    _tune(str(tmp_path / 'model'), 'none.csv', overwrite=True)
  assert sorted(os.listdir(work)) == before
