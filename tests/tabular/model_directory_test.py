"""The folder of a finished model: complete or absent, and verified."""

import json
import os
import shutil
import types

import dp_accounting
import pytest

from tests.tabular import small_table
from tfdpflows.accounting import (
  LedgerError,
  PrivacyBudget,
  PrivacyLedger,
  merge_ledgers,
)
from tfdpflows.tabular import model_directory
from tfdpflows.tabular.synthesizer import TabularSynthesizer


@pytest.fixture(scope='module')
def people():
  return small_table.make()


@pytest.fixture(scope='module')
def one_column(people, tmp_path_factory):
  """A model, fitted in a second, and its table."""
  schema = type(people.schema)([people.schema['city']])
  table = people.table[['city']]
  synthesizer = TabularSynthesizer(schema, **people.budget, seed=0)
  synthesizer.fit(table)
  path = tmp_path_factory.mktemp('model') / 'model'
  synthesizer.save(path)
  return types.SimpleNamespace(
    synthesizer=synthesizer, schema=schema, table=table, path=path
  )


@pytest.fixture
def model(one_column, tmp_path):
  """A copy of the model that a test may damage."""
  return shutil.copytree(one_column.path, tmp_path / 'model')


BUDGET = PrivacyBudget(epsilon=1.0, delta=1e-5)


def _ledger(label='marginals', fit=None):
  metadata = {} if fit is None else {'fit': fit}
  ledger = PrivacyLedger(budget=BUDGET, metadata=metadata)
  ledger.charge(dp_accounting.GaussianDpEvent(10.0), label=label)
  return ledger


def _write(path, ledger, earlier=(), **kwargs):
  """Writes a folder that holds ledgers only; returns paths of earlier ones."""
  with model_directory.written_aside(path, **kwargs) as folder:
    folder.add_ledgers(ledger, list(earlier))
    folder.write_json('model.json', folder.header())
  return model_directory.read_ledger(path, model_directory.read_model(path))[1]


def test_files_are_as_open_to_others_as_usual(model):
  mask = os.umask(0)
  os.umask(mask)
  assert model.stat().st_mode & 0o777 == 0o777 & ~mask
  for path in model.rglob('*'):
    if path.is_file():
      assert path.stat().st_mode & 0o777 == 0o666 & ~mask, path
      assert path.suffix not in ('.pkl', '.pickle')


def test_a_failure_leaves_what_was_there(tmp_path):
  def fail(path, overwrite):
    with model_directory.written_aside(path, overwrite) as folder:
      folder.write_text('model.json', '{}')
      raise OSError('disk')

  with pytest.raises(OSError, match='disk'):
    fail(tmp_path / 'model', overwrite=False)
  assert not list(tmp_path.iterdir())
  _write(tmp_path / 'model', _ledger(), overwrite=False)
  before = (tmp_path / 'model' / 'model.json').read_bytes()
  with pytest.raises(OSError, match='disk'):
    fail(tmp_path / 'model', overwrite=True)
  assert (tmp_path / 'model' / 'model.json').read_bytes() == before
  assert os.listdir(tmp_path) == ['model']


def test_what_may_be_overwritten(tmp_path):
  _write(tmp_path / 'model', _ledger(), overwrite=False)
  with pytest.raises(FileExistsError, match='overwrite=True'):
    _write(tmp_path / 'model', _ledger(), overwrite=False)
  (tmp_path / 'photos').mkdir()
  (tmp_path / 'letter.txt').touch()
  for name in ('photos', 'letter.txt'):
    with pytest.raises(FileExistsError, match='is not a model of tfdpflows'):
      _write(tmp_path / name, _ledger(), overwrite=True)
    assert (tmp_path / name).exists()


def test_ledgers_of_what_is_replaced_stay(tmp_path):
  path = tmp_path / 'model'
  assert _write(path, _ledger('first', 'a'), overwrite=True) == []
  assert len(_write(path, _ledger('second', 'b'), overwrite=True)) == 1
  # The same fit again is no further fit.
  assert len(_write(path, _ledger('second', 'b'), overwrite=True)) == 1
  earlier = _write(path, _ledger('third', 'c'), overwrite=True)
  labels = []
  for name in earlier:
    with PrivacyLedger.open(name, read_only=True) as ledger:
      labels += [entry.label for entry in ledger.entries]
  assert labels == ['first', 'second']
  # Known from the work folder as well as from the model: counted once.
  assert len(_write(path, _ledger('4', 'd'), earlier, overwrite=True)) == 3


def test_of_copies_of_a_ledger_the_longest_stays(tmp_path):
  """A copy that was put back goes on otherwise, or further."""
  paths = {}
  for name, steps, more in [
    ('short', 3, ''),
    ('long', 12, ''),
    ('other', 3, 'x'),
  ]:
    with PrivacyLedger(
      tmp_path / name, budget=BUDGET, metadata={'fit': 'a'}
    ) as ledger:
      ledger.charge(dp_accounting.GaussianDpEvent(90.0), steps, label='steps')
      if more:
        ledger.charge(dp_accounting.GaussianDpEvent(90.0), label=more)
    paths[name] = str(tmp_path / name)

  def kept(*names):
    model = tmp_path / 'model'
    _write(model, _ledger(fit='b'), [paths[n] for n in names], overwrite=True)
    found = []
    for path in sorted((model / 'earlier_ledgers').iterdir()):
      with PrivacyLedger.open(path, read_only=True) as ledger:
        found.append([(e.label, e.count) for e in ledger.entries])
    shutil.rmtree(model)
    return found

  long, other = [('steps', 12)], [('steps', 3), ('x', 1)]
  assert kept('short', 'long') == kept('long', 'short', 'long') == [long]
  # Which is right cannot be told: both count.
  assert kept('short', 'other', 'long') == [other, long]


def test_copies_that_trained_by_themselves_both_count(tmp_path):
  """They have other batches and noise, of one secret and of one table."""
  event, model = dp_accounting.GaussianDpEvent(90.0), tmp_path / 'model'
  with PrivacyLedger(
    tmp_path / 'one', budget=BUDGET, metadata={'fit': 'a'}
  ) as ledger:
    ledger.charge(event, label='marginals')
  shutil.copy(tmp_path / 'one', tmp_path / 'two')
  for name, steps in ('one', 12), ('two', 9):
    with PrivacyLedger.open(tmp_path / name) as ledger:
      ledger.reserve(event, 12, 'training', randomness_id='ab').ensure(steps)
  shutil.copy(tmp_path / 'one', tmp_path / 'again')
  names = [str(tmp_path / name) for name in ('one', 'two', 'again')]
  assert len(_write(model, _ledger(fit='b'), names, overwrite=False)) == 2


def test_copies_that_released_other_sums_both_count(tmp_path):
  """Such as votes of teachers that were rounded otherwise."""
  event, names = dp_accounting.GaussianDpEvent(90.0), []
  for number, votes in enumerate('xyx'):
    names.append(str(tmp_path / f'{number}'))
    with PrivacyLedger(
      names[-1], budget=BUDGET, metadata={'fit': 'a'}
    ) as ledger:
      ledger.charge(event, label='votes', randomness_id=f'ab "{votes}"')
  model = tmp_path / 'model'
  assert len(_write(model, _ledger(fit='b'), names, overwrite=False)) == 2


def test_a_kill_between_the_two_renames(tmp_path):
  path, work = tmp_path / 'model', tmp_path / 'model.partial'
  _write(path, _ledger(fit='a'), overwrite=False)
  work.mkdir()
  os.rename(path, work / 'replaced_model')
  model_directory.bring_back(path, work)
  assert (path / 'model.json').exists()
  assert not list(work.iterdir())
  # Or after both: what was replaced is not brought back.
  shutil.copytree(path, work / 'replaced_model')
  model_directory.bring_back(path, work)
  assert (work / 'replaced_model').exists()


def test_a_workspace_takes_what_a_kill_leaves(tmp_path):
  path, work = tmp_path / 'model', tmp_path / 'model.partial'
  work.mkdir()
  with model_directory.written_aside(path, False, workspace=work) as folder:
    folder.add_ledgers(_ledger(), [])
    assert os.listdir(tmp_path) == ['model.partial']
  assert sorted(os.listdir(tmp_path)) == ['model', 'model.partial']
  assert not list(work.iterdir())


@pytest.mark.parametrize(
  'damage',
  [
    lambda ledger: ledger.unlink(),
    lambda ledger: ledger.write_bytes(b''),
    lambda ledger: ledger.write_bytes(
      ledger.read_bytes().replace(b'"count":1', b'"count":2')
    ),
    lambda ledger: ledger.write_bytes(
      ledger.read_bytes()[: ledger.read_bytes().index(b'\n') + 1]
    ),
    lambda ledger: ledger.write_bytes(ledger.read_bytes()[:-1]),
  ],
  ids=['missing', 'empty', 'edited', 'cut', 'torn'],
)
def test_a_damaged_ledger(damage, model):
  damage(model / 'ledger.jsonl')
  with pytest.raises(LedgerError, match=r'ledger\.jsonl'):
    TabularSynthesizer.load(model)


def test_ledgers_of_models_can_be_merged(one_column, model, tmp_path):
  other = shutil.copytree(model, tmp_path / 'other')
  os.remove(other / 'ledger.jsonl')
  with PrivacyLedger(other / 'ledger.jsonl', budget=BUDGET) as ledger:
    ledger.charge(dp_accounting.GaussianDpEvent(100.0), label='marginals')
  paths = [folder / 'ledger.jsonl' for folder in (model, other)]
  before = paths[0].read_bytes()
  budget = PrivacyBudget(epsilon=100.0, delta=1e-4)
  merge_ledgers(
    paths, tmp_path / 'year.jsonl', budget=budget, accountant='pld'
  ).close()
  assert paths[0].read_bytes() != before
  loaded = TabularSynthesizer.load(model)
  assert loaded.ledger.event == one_column.synthesizer.ledger.event
  assert loaded.privacy_statement().claim
  # Saved again, too; and what follows the merge is noticed as ever.
  loaded.save(tmp_path / 'again')
  TabularSynthesizer.load(tmp_path / 'again')
  paths[0].write_bytes(before[: before.rindex(b'{')])
  with pytest.raises(LedgerError, match='cut off'):
    TabularSynthesizer.load(model)


def test_a_ledger_of_another_fit(model, tmp_path):
  other = _ledger()
  with PrivacyLedger(tmp_path / 'other.jsonl', budget=other.budget) as ledger:
    ledger.charge(dp_accounting.GaussianDpEvent(100.0), label='marginals')
  shutil.copy(tmp_path / 'other.jsonl', model / 'ledger.jsonl')
  with pytest.raises(LedgerError, match='not the ledger that this model'):
    TabularSynthesizer.load(model)


def test_earlier_ledgers_are_verified_too(one_column, model):
  again = TabularSynthesizer(
    one_column.schema, epsilon=2.0, delta=1e-5, seed=1
  ).fit(one_column.table)
  again.save(model, overwrite=True)
  statement = str(TabularSynthesizer.load(model).privacy_statement())
  assert 'earlier_ledgers/001.jsonl' in statement.replace('\n  ', ' ')
  assert (model / 'statement.txt').read_text() == f'{statement}\n'
  # Saved over itself it is the same model.
  with small_table.unexported():
    again.save(model, overwrite=True)
    TabularSynthesizer.load(model).save(model, overwrite=True)
  assert len(list((model / 'earlier_ledgers').iterdir())) == 1
  (model / 'earlier_ledgers' / '001.jsonl').unlink()
  with pytest.raises(LedgerError, match='earlier_ledgers/001'):
    TabularSynthesizer.load(model)


def test_a_folder_that_is_no_model(tmp_path, model):
  with pytest.raises(FileNotFoundError, match='holds no model'):
    TabularSynthesizer.load(tmp_path)
  for content in ('', '[1]', '{"fo'):
    (model / 'model.json').write_text(content)
    with pytest.raises(ValueError, match=r'model\.json is damaged'):
      TabularSynthesizer.load(model)


def test_a_model_of_another_version(model):
  content = json.loads((model / 'model.json').read_text())
  content.update(format_version=99, library_version='7.0')
  (model / 'model.json').write_text(json.dumps(content))
  with pytest.raises(
    ValueError, match=r'version 99, written by tfdpflows 7\.0'
  ):
    TabularSynthesizer.load(model)


@pytest.mark.parametrize('name', ['settings', 'marginals', 'ledgers_sha256'])
def test_a_model_without_a_part(name, model):
  content = json.loads((model / 'model.json').read_text())
  del content[name]
  (model / 'model.json').write_text(json.dumps(content))
  with pytest.raises(ValueError, match=rf"model\.json is damaged .*'{name}'"):
    TabularSynthesizer.load(model)


def test_an_edited_schema(model):
  """How files are written may be said otherwise, and what cells mean not."""
  path = model / 'schema.json'
  content = json.loads(path.read_text())
  path.write_text(json.dumps({**content, 'dialect': {'delimiter': ';'}}))
  TabularSynthesizer.load(model).ledger.close()
  content['fields'][0]['constraints']['enum'].reverse()
  path.write_text(json.dumps(content))
  with pytest.raises(ValueError, match=r'model/schema\.json was edited'):
    TabularSynthesizer.load(model)


def test_damaged_weights(model):
  weights = model / 'weights' / 'flow.index'
  weights.write_bytes(weights.read_bytes()[:-40])
  with pytest.raises(OSError, match='weights/flow'):
    TabularSynthesizer.load(model)
  shutil.rmtree(model / 'weights')
  with pytest.raises(OSError, match='weights/flow'):
    TabularSynthesizer.load(model)
