"""The file of a DP-MoG: what comes back, and what must not."""

import json

import dp_accounting
import four_clusters
import numpy as np
import pytest

import tfdpflows
from tfdpflows import accounting, models
from tfdpflows.accounting import LedgerError, PrivacyBudget
from tfdpflows.accounting.mechanisms.votes import data_dependent_event

_VOTES = np.array([240, 5, 5])


@pytest.fixture(scope='module')
def fitted():
  return models.DPMoG(3, 2).fit(
    four_clusters.make(2_000)[0], **four_clusters.BUDGET, seed=1
  )


def reloaded(mixture, tmp_path):
  mixture.save(tmp_path / 'mixture.json')
  return models.DPMoG.load(tmp_path / 'mixture.json')


def test_is_saved_and_loaded(fitted, tmp_path):
  path = tmp_path / 'mixture.json'
  fitted.save(path)
  loaded = models.DPMoG.load(path)
  for name in ('weights', 'means', 'scales'):
    np.testing.assert_array_equal(
      getattr(loaded.parameters, name), getattr(fitted.parameters, name)
    )
  assert loaded.event == fitted.event
  assert str(loaded.privacy_statement()) == str(fitted.privacy_statement())
  assert loaded.get_config() == fitted.get_config()


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda c: c.update(format_version=2), 'version 2'),
    (lambda c: c.pop('format'), 'no file of a DPMoG'),
    (lambda c: c.pop('scales'), 'is damaged'),
    (lambda c: c['weights'].pop(), 'is damaged'),
    (lambda c: c['weights'].__setitem__(0, -1.0), 'is damaged'),
    (lambda c: c['ledger'].update(budget={'epsilon': 0.5}), 'is damaged'),
  ],
)
def test_a_damaged_file_is_refused(fitted, tmp_path, change, message):
  path = tmp_path / 'mixture.json'
  fitted.save(path)
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))
  with pytest.raises(ValueError, match=message):
    models.DPMoG.load(path)


@pytest.fixture
def shared(tmp_path):
  """A ledger on disk: private votes, a fit, and a training half done."""
  path = tmp_path / 'ledger.jsonl'
  ledger = accounting.PrivacyLedger(
    path,
    budget=PrivacyBudget(epsilon=9.0, delta=1e-5),
    metadata={'secret': 'of the table'},
  )
  votes = data_dependent_event(accounting.GNMaxDpEvent(40.0), _VOTES)
  assert isinstance(votes, accounting.DataDependentDpEvent)
  ledger.charge(votes, 3, label='votes')
  ledger.reserve(dp_accounting.GaussianDpEvent(9.0), 7, 'unused').release()
  training = ledger.reserve(dp_accounting.GaussianDpEvent(50.0), 9, 'training')
  training.ensure(4)
  mixture = models.DPMoG(1, 0).fit(
    four_clusters.make(50)[0], epsilon=0.3, delta=1e-6, ledger=ledger
  )
  yield mixture
  ledger.close()


def test_the_file_tells_nothing_of_votes_and_metadata(shared, tmp_path):
  shared.save(tmp_path / 'mixture.json')
  text = (tmp_path / 'mixture.json').read_text()
  assert 'GNMax' in text
  for private in ('log_q', 'DataDependent', 'of the table', str(tmp_path)):
    assert private not in text


def test_the_account_adds_up_what_was_charged_and_reserved(shared, tmp_path):
  account = reloaded(shared, tmp_path).ledger
  ledger = shared.ledger
  assert account.epsilon() == pytest.approx(ledger.epsilon())
  assert account.remaining == pytest.approx(ledger.remaining)
  counts = [(x.label, x.count, x.reserved) for x in account.entries]
  assert counts == [
    ('votes', 3, 3),
    ('training', 4, 9),
    ('DP-MoG', 1, 1),
  ]


def test_the_account_pays_for_nothing(shared, tmp_path):
  account = reloaded(shared, tmp_path).ledger
  event = dp_accounting.GaussianDpEvent(900.0)
  twice = reloaded(reloaded(shared, tmp_path), tmp_path).ledger
  x = four_clusters.make(300)[0]
  plan = tfdpflows.TrainingPlan.for_epsilon(
    epsilon=1.0,
    delta=1e-5,
    num_examples=300,
    expected_batch_size=150,
    epochs=1,
    clipping=tfdpflows.gradients.Flat(5.0),
    ledger=account,
  )
  for charge in (
    lambda: account.charge(event),
    lambda: account.charge(event, label='more', resume=True),
    lambda: account.reserve(event, 10, 'more'),
    lambda: account.reserve(
      event, 9, 'training', resume=True, randomness_id='me'
    ),
    lambda: twice.charge(event),
    lambda: accounting.merge_ledgers([account]),
    lambda: plan.dataset(x),
    lambda: models.DPMoG(1, 0).fit(x, epsilon=0.01, delta=1e-7, ledger=account),
  ):
    with pytest.raises(LedgerError, match=r'original ledger, ledger\.jsonl'):
      charge()
  assert len(account.entries) == 3


def test_the_account_names_a_ledger_in_memory_as_such(fitted, tmp_path):
  with pytest.raises(LedgerError, match='which was in memory'):
    reloaded(fitted, tmp_path).ledger.charge(
      dp_accounting.GaussianDpEvent(900.0)
    )
