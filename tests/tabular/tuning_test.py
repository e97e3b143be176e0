"""A search for the hyper-parameters of a table's model."""

import os

import pytest

from tests.tabular import small_table
from tfdpflows import accounting, mechanisms
from tfdpflows.accounting import EpsilonDeltaDpEvent
from tfdpflows.tabular import TabularSynthesizer, tune_to_directory
from tfdpflows.tabular.schema import TableSchema
from tfdpflows.tabular.synthesizer import fit_to_directory

SMALL = small_table.make()
SPACE = {'epochs': [1, 2], 'num_bins': [4, 8]}
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


@pytest.fixture(scope='module')
def searched(tmp_path_factory):
  """A model of the best of several trials, and what each of them spent."""
  folder = tmp_path_factory.mktemp('searched')
  path = str(folder / 'people.csv')
  SMALL.table.to_csv(path, index=False)
  fits, distance = [], mechanisms.noisy_total_variation

  def noted(*args, **kwargs):
    fits.append(kwargs['ledger'])
    return distance(*args, **kwargs)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(mechanisms, 'noisy_total_variation', noted)
    best = _tune(
      str(folder / 'model'), [path], seed=3, mean_trials=4.0, target='member'
    )
  return folder, best, fits


def test_the_statement_is_of_the_whole_search(searched):
  folder, best, fits = searched
  assert len(fits) > 1
  (entry,) = best.ledger.entries
  assert entry.event == EpsilonDeltaDpEvent(8.0, 1e-4)
  statement = best.privacy_statement()
  assert statement.epsilon == 8.0
  assert statement.seeded
  assert 'best of a random number of trials' in str(statement)
  assert (best.budget.epsilon, best.seed) == (8.0, 3)
  # What is written is what is loaded, and nothing is left.
  assert sorted(os.listdir(folder)) == ['model', 'people.csv']
  text = (folder / 'model' / 'statement.txt').read_text()
  assert text == f'{statement}\n'
  assert len(best.sample(5)) == 5


def test_trials_have_their_part_of_the_budget(searched):
  _, best, fits = searched
  for ledger in fits:
    assert ledger.budget == accounting.PrivacyBudget(epsilon=4.0, delta=2.5e-5)
    assert 3.9 < ledger.epsilon() <= 4.0
    labels = [entry.label for entry in ledger.entries]
    assert labels == ['marginals', 'DP-SGD', 'score']
  for name, values in SPACE.items():
    assert getattr(best.model, name) in values
  assert best.model.hidden_units == (8,)
  assert best.model.target == 'member'


def test_the_best_score_wins(tmp_path, monkeypatch):
  """A score tells a model of the rows from independent columns."""
  distances = []
  score = mechanisms.noisy_total_variation

  def noted(*args, **kwargs):
    distances.append(score(*args, **kwargs))
    return distances[-1]

  monkeypatch.setattr(mechanisms, 'noisy_total_variation', noted)
  best = _tune(
    str(tmp_path / 'model'),
    small_table.make(4000).table,
    seed=1,
    mean_trials=3.0,
    epsilon=40.0,
    delta=1e-5,
    expected_batch_size=400,
    space={'learning_rate': [1e-9, 0.03], 'epochs': [10]},
  )
  assert len(distances) > 1 and max(distances) - min(distances) > 0.01
  assert best.model.learning_rate == 0.03


def test_the_trials_are_independent_of_each_other(tmp_path):
  """Noise that two trials share would leave when one is subtracted."""
  keys = []
  claim = accounting.PrivacyLedger.charge

  def noted(self, *args, **kwargs):
    keys.append(kwargs.get('randomness_id'))
    return claim(self, *args, **kwargs)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(accounting.PrivacyLedger, 'charge', noted)
    _tune(
      str(tmp_path / 'model'),
      mean_trials=4.0,
      seed=3,
      space={'epochs': [1], 'num_bins': [4]},
    )
  keys = [key for key in keys if key is not None]
  assert len(keys) > 4 and len(set(keys)) == len(keys)


def test_overwriting_keeps_what_was_spent(tmp_path):
  model_dir = str(tmp_path / 'model')
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
  best = _tune(model_dir, overwrite=True)
  assert 'it spent epsilon 8 at' in str(best.privacy_statement())
  assert os.listdir(tmp_path) == ['model']


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'space': {'bins': [4]}}, "Unknown hyper-parameters \\['bins'\\]"),
    ({'space': {'num_bins': [4, -1]}}, 'num_bins is -1'),
    ({'space': {'epsilon': [4.0]}}, "space has 'epsilon', which all trials"),
    ({'space': {'target': ['member']}}, "space has 'target'"),
    ({'space': {'epochs': range(1, 1002)}}, '1001 settings'),
    ({'space': {}}, 'space is empty'),
    ({'space': [{'model': 'none'}]}, "model is 'none'"),
    ({'mean_trials': 0.5}, 'mean'),
    ({'delta': 0.01}, 'publishing one row in full'),
    ({'accountant': 'gdp'}, 'no upper bound'),
    ({'bounds_epsilon': 1.0}, 'no draft schema'),
    ({'privacy_unit': 'person'}, 'protects rows'),
    ({'schema': TableSchema(SMALL.schema.fields[:1])}, 'one column'),
    ({'table': SMALL.table.assign(age=-1)}, "'age'"),
  ],
)
def test_refusals_write_nothing(kwargs, message, tmp_path):
  with pytest.raises(ValueError, match=message):
    _tune(str(tmp_path / 'model'), **kwargs)
  assert os.listdir(tmp_path) == []
