"""Reservations whose program is gone do not hold the budget for ever."""

import dp_accounting
import pytest

from tfdpflows import accounting, cli
from tfdpflows.accounting import LedgerError, PrivacyLedger

GAUSSIAN = dp_accounting.GaussianDpEvent(50.0)
BUDGET = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)


@pytest.fixture
def path(tmp_path):
  """A ledger with a reservation of nearly all, of a program that is gone."""
  path = tmp_path / 'ledger.jsonl'
  with PrivacyLedger(path, budget=BUDGET) as ledger:
    ledger.reserve(GAUSSIAN, 170, 'training', randomness_id='gone').ensure(30)
  return path


def test_a_refusal_says_what_is_reserved(path):
  with PrivacyLedger.open(path) as ledger:
    with pytest.raises(
      accounting.BudgetExceededError,
      match=r"not charged: 'training' \(140 of 170 runs\)\. PrivacyLedger\.rel",
    ):
      ledger.charge(GAUSSIAN, count=100)
    assert ledger.release('training') == 140
    ledger.charge(GAUSSIAN, count=100)
    with pytest.raises(accounting.BudgetExceededError) as error:
      ledger.charge(GAUSSIAN, count=100)
    assert 'release' not in str(error.value)


def test_what_was_charged_stays(path):
  with PrivacyLedger.open(path) as ledger:
    before = ledger.epsilon()
    assert ledger.release('training') == 140
    assert ledger.release('training') == 0
    assert ledger.epsilon() == before
    assert ledger.entries[0].count == ledger.entries[0].reserved == 30
  with PrivacyLedger.open(path) as ledger:
    assert ledger.epsilon() == before
    assert ledger.release('training') == 0


def test_its_program_may_go_on_if_it_pays(path):
  with PrivacyLedger.open(path) as ledger:
    ledger.release('training')
    ledger.charge(GAUSSIAN, count=100)
  ledger = PrivacyLedger.open(path)
  with pytest.raises(accounting.BudgetExceededError):
    ledger.reserve(GAUSSIAN, 170, 'training', randomness_id='gone', resume=True)
  ledger.close()
  with PrivacyLedger.open(path) as ledger:
    assert ledger.entries[0].count == 30
    other = ledger.reserve(GAUSSIAN, 10, 'other')
    other.ensure(1)
    assert ledger.release('other') == 9
    with pytest.raises(LedgerError, match='was released after 1 of 10'):
      other.ensure(2)
    other.release()


def test_no_reservation_of_that_name(path):
  with PrivacyLedger.open(path) as ledger:
    with pytest.raises(LedgerError, match=r"no reservation 'x'.*'training' \("):
      ledger.release('x')
    ledger.release('training')
    with pytest.raises(LedgerError, match='No reservation holds anything'):
      ledger.release('x')
  reader = PrivacyLedger.open(path, read_only=True)
  with pytest.raises(LedgerError, match='read only'):
    reader.release('training')


def test_on_the_command_line(path, capsys):
  argv = ['account', f'--ledger={path}', '--release=training']
  with PrivacyLedger.open(path):
    assert cli.main(argv) == 2
    assert 'in use' in capsys.readouterr().err
  assert cli.main(argv) == 0
  out, err = capsys.readouterr()
  assert "'training' released 140 runs" in err
  assert '30' in out
  assert cli.main([*argv[:2], '--release=x']) == 2
  assert f'--ledger={path}: There is no reservation' in capsys.readouterr().err
  assert cli.main(['account', '--release=training']) == 2
  assert '--release is for' in capsys.readouterr().err
  with PrivacyLedger.open(path) as ledger:
    assert ledger.entries[0].reserved == 30


@pytest.mark.parametrize('first', ['charge', 'reserve'])
def test_a_charge_of_the_same_label_frees_nothing(first):
  ledger = PrivacyLedger(budget=BUDGET)
  if first == 'charge':
    ledger.charge(GAUSSIAN, label='training')
    with pytest.raises(LedgerError, match='is taken'):
      ledger.reserve(GAUSSIAN, 170, 'training')
    with pytest.raises(LedgerError, match='no reservation'):
      ledger.release('training')
    return
  steps = ledger.reserve(GAUSSIAN, 170, 'training')
  before = ledger.remaining
  ledger.charge(GAUSSIAN, label='training')
  assert ledger.remaining < before
  with pytest.raises(accounting.BudgetExceededError):
    ledger.charge(GAUSSIAN, count=100)
  steps.ensure(170)
  assert sum(entry.count for entry in ledger.entries) == 171
