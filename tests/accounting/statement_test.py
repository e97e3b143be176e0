"""Statements and the registry."""

import json
import math
from fractions import Fraction

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdpflows import accounting
from tfdpflows.accounting import registry, statement

STEP = dp_accounting.PoissonSampledDpEvent(
  0.05, dp_accounting.GaussianDpEvent(2.0)
)


@given(st.floats(0, 1e300), st.integers(1, 8))
def test_rounding_is_upwards(value, digits):
  text = statement.round_up(value, digits)
  assert Fraction(text) >= Fraction(value)
  assert Fraction(text) <= Fraction(value) * (1 + Fraction(10) ** (1 - digits))


@pytest.fixture
def ledger():
  ledger = accounting.PrivacyLedger(budget=accounting.PrivacyBudget(1.0, 1e-5))
  ledger.charge(dp_accounting.GaussianDpEvent(9.0), label='histograms')
  ledger.reserve(STEP, 50, 'training').ensure(20)
  return ledger


def test_statement_says_what_was_charged(ledger):
  made = accounting.privacy_statement(
    ledger, num_examples=2000, sampling='Poisson', notes=['a note']
  )
  text = made.to_text()
  assert text == str(made)
  assert max(map(len, text.splitlines())) <= 80
  for part in (
    f'Claim: epsilon <= {statement.round_up(ledger.epsilon())} at delta=1e-05 '
    '(pld, upper bound)',
    'Unit of privacy: one row of the table',
    'add or remove one',
    'Sampling: Poisson',
    'Number of rows: 2000',
    '- histograms: Gaussian mechanism, noise multiplier 9',
    '- training: 20 x Gaussian mechanism, noise multiplier 2',
    '30 more reserved and not used',
    '- pld: ',
    '(upper bound, the claim)',
    '- rdp: ',
    'floating point',
    '- a note',
  ):
    assert ' '.join(part.split()) in ' '.join(text.split())
  assert 'seeded' not in text


def test_statement_is_json(ledger):
  made = accounting.privacy_statement(ledger, num_examples=2000)
  data = json.loads(json.dumps(made.to_dict(), allow_nan=False))
  assert data['epsilon'] == ledger.epsilon()
  assert data['delta'] == 1e-5
  assert data['claim'] == made.claim
  assert data['neighboring_relation'] == 'ADD_OR_REMOVE_ONE'
  assert [row['accountant'] for row in data['epsilons']] == ['pld', 'rdp']
  assert [row['is_claim'] for row in data['epsilons']] == [True, False]
  assert accounting.event_from_dict(data['mechanisms'][1]['event']) == STEP
  assert data['mechanisms'][1]['count'] == 20
  assert 'not recorded' in data['sampling']


def test_seed_and_large_delta_are_said():
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(1.0, 1e-3), metadata={'seeded': True}
  )
  made = accounting.privacy_statement(ledger, num_examples=1000)
  text = str(made)
  assert 'seeded: not private against anyone who knows the seed' in text
  assert 'one over the number of rows' in text
  assert made.seeded
  assert '- none' in text
  assert made.epsilon == 0


def test_other_accountants_may_not_support_it():
  ledger = accounting.PrivacyLedger(accountant='rdp')
  ledger.charge(accounting.ZCDpEvent(0.01))
  with pytest.raises(ValueError, match='delta'):
    accounting.privacy_statement(ledger)
  made = accounting.privacy_statement(ledger, delta=1e-6)
  assert made.accountant == 'rdp'
  assert '- pld: does not support every mechanism' in str(made)


def test_no_privacy_is_said_plainly():
  ledger = accounting.PrivacyLedger()
  ledger.charge(dp_accounting.NonPrivateDpEvent(), label='raw')
  made = accounting.privacy_statement(ledger, delta=1e-6)
  assert 'no privacy' in made.claim
  assert made.to_dict()['epsilon'] is None
  assert math.isinf(made.epsilon)
  json.dumps(made.to_dict(), allow_nan=False)


def test_registry_names():
  assert accounting.accountant_names() == ('pld', 'rdp')
  for name, alias in (('pld', 'prv'), ('rdp', 'moments'), ('rdp', 'ma')):
    made = accounting.create_accountant(alias)
    assert (made.name, made.guarantee) == (name, 'upper_bound')
    assert isinstance(made, dp_accounting.PrivacyAccountant)
  with pytest.raises(ValueError, match=r"Did you mean 'pld'.*pld, rdp"):
    accounting.create_accountant('pdl')
  with pytest.raises(ValueError, match='moments'):
    accounting.create_accountant('Moments')


def test_registration():
  class Loose(accounting.RDPAccountant):
    name = 'loose'
    guarantee = 'asymptotic'

  accounting.register_accountant('loose', Loose, aliases=['l'])
  try:
    ledger = accounting.PrivacyLedger(accountant='l')
    ledger.charge(STEP, label='training')
    made = accounting.privacy_statement(ledger, delta=1e-5)
    assert '(loose, asymptotic)' in made.claim
    with pytest.raises(ValueError, match='taken'):
      accounting.register_accountant('other', Loose, aliases=['l'])
  finally:
    registry._classes.pop('loose')
    for alias in ('loose', 'l'):
      registry._aliases.pop(alias)
  with pytest.raises(TypeError, match='subclass'):
    accounting.register_accountant('x', int)
  Loose.guarantee = 'perfect'
  with pytest.raises(ValueError, match='guarantee'):
    accounting.register_accountant('x', Loose)
  with pytest.raises(ValueError, match='taken'):
    accounting.register_accountant('prv', accounting.RDPAccountant)
