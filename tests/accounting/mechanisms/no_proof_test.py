"""Releases without a proof: in no epsilon, and in every list of releases."""

import json
import math
import os
import signal

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation, dp_event

from tfdpflows import accounting
from tfdpflows.accounting.mechanisms import RELATIONS, no_proof

FLOW = accounting.NoProofDpEvent('ExpM+NF', 1.0)
GAUSSIAN = dp_accounting.GaussianDpEvent(5.0)
BUDGET = accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
WRAPPED = [
  FLOW,
  dp_accounting.SelfComposedDpEvent(FLOW, 3),
  dp_accounting.ComposedDpEvent([GAUSSIAN, FLOW]),
  dp_accounting.PoissonSampledDpEvent(0.1, FLOW),
  dp_accounting.SampledWithoutReplacementDpEvent(100, 10, FLOW),
  dp_event.RepeatAndSelectDpEvent(FLOW, 10.0, 1.0),
  accounting.ParallelDpEvent([GAUSSIAN, FLOW]),
]


def allowing(path=None, **kwargs):
  return accounting.PrivacyLedger(
    path, budget=BUDGET, allow_no_proof=True, **kwargs
  )


@pytest.mark.parametrize('event', WRAPPED, ids=repr)
@pytest.mark.parametrize('relation', RELATIONS, ids=lambda x: x.name)
def test_every_accountant_refuses_it_by_name(event, relation):
  for name in accounting.accountant_names():
    made = accounting.create_accountant(name, relation)
    assert not made.supports(event)
    with pytest.raises(
      dp_accounting.UnsupportedEventError,
      match='NoProof.*(no privacy proof|disjoint shards)',
    ):
      made.compose(event)
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accounting.best_epsilon(event, 1e-5)


@pytest.mark.parametrize(
  ('name', 'nominal'), [('x', -1.0), ('x', math.nan), ('', 1.0), (None, 1.0)]
)
def test_bad_parameters(name, nominal):
  with pytest.raises(ValueError, match=r'name|nominal_epsilon'):
    accounting.NoProofDpEvent(name, nominal)


def test_a_budget_refuses_it_unless_told():
  ledger = accounting.PrivacyLedger(budget=BUDGET)
  for event in WRAPPED[:3]:
    for charge in (
      lambda e: ledger.charge(e, label='flow'),
      lambda e: ledger.reserve(e, 5, 'flow'),
    ):
      with pytest.raises(
        accounting.BudgetExceededError, match="'flow' is refused: it has no pri"
      ) as refusal:
        charge(event)
      assert refusal.value.asked == math.inf
  assert not ledger.entries
  assert ledger.epsilon() == 0


@pytest.mark.parametrize('budget', [BUDGET, None])
def test_no_number_omits_it(budget):
  ledger = accounting.PrivacyLedger(budget=budget, allow_no_proof=bool(budget))
  ledger.charge(GAUSSIAN, label='histograms')
  before = ledger.epsilon(1e-5)
  assert ledger.charge(FLOW, 2, label='flow')
  assert [entry.count for entry in ledger.entries] == [1, 2]
  for name in accounting.accountant_names():
    assert ledger.epsilon(1e-5, name) == math.inf
  assert ledger.epsilon(1e-5, data_dependent=True) == math.inf
  assert ledger.remaining == (0.0 if budget else None)
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accounting.best_epsilon(ledger, 1e-5)
  for event in (ledger.event, ledger.committed_event):
    with pytest.raises(dp_accounting.UnsupportedEventError):
      accounting.compute_epsilon(event, 1e-5)
  statement = accounting.privacy_statement(ledger, delta=1e-5)
  assert statement.epsilon == math.inf
  assert statement.no_proof['proven_epsilon'] == before


def test_the_budget_still_bounds_the_rest():
  ledger = allowing()
  ledger.charge(FLOW, 10, label='flow')
  ledger.charge(GAUSSIAN)
  with pytest.raises(accounting.BudgetExceededError, match='bring epsilon'):
    ledger.charge(dp_accounting.GaussianDpEvent(1.0))
  with pytest.raises(accounting.BudgetExceededError, match='bring epsilon'):
    ledger.charge(
      dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(1.0), FLOW])
    )
  # Where it is hidden in another event, nobody would list it.
  for event in WRAPPED[3:]:
    with pytest.raises(dp_accounting.UnsupportedEventError):
      ledger.charge(event)
  ledger.charge(FLOW, label='flow again')
  assert len(ledger.entries) == 3


def test_statement():
  ledger = allowing()
  ledger.charge(GAUSSIAN, label='histograms')
  ledger.charge(FLOW, 2, label='flow')
  ledger.charge(FLOW, 1, label='another')
  plain = accounting.PrivacyLedger(budget=BUDGET)
  plain.charge(GAUSSIAN, label='histograms')
  proven = accounting.privacy_statement(plain)
  made = accounting.privacy_statement(ledger, num_examples=100)
  begins = (
    'no privacy proof: 3 releases not covered by any epsilon: 3 x ExpM+NF '
    '(nominal epsilon 1). Of the proven releases alone: '
  )
  assert made.claim == begins + proven.claim
  assert proven.no_proof is None
  assert 'no_proof' not in proven.to_dict()
  for text in (str(made), made.to_markdown()):
    text = ' '.join(text.split())
    assert begins in text
    assert 'NO PRIVACY PROOF: ExpM+NF, nominal epsilon 1' in text
    assert 'no guarantee' in text
    # Every number of the tables says what it is of.
    assert text.count('(proven releases alone)') == 6 + 8
  data = json.loads(json.dumps(made.to_dict(), allow_nan=False))
  assert data['epsilon'] is None
  assert data['epsilon_without_amplification'] is None
  rows = data['epsilons'] + data['epsilon_by_delta']
  assert {row['epsilon'] for row in rows} == {None}
  assert all(row['proven_epsilon'] for row in rows)
  assert data['no_proof']['releases'] == 3


def test_file_round_trip(tmp_path):
  path = tmp_path / 'ledger'
  with allowing(path) as ledger:
    ledger.charge(GAUSSIAN)
    ledger.charge(FLOW, 4, label='flow')
  with accounting.PrivacyLedger.open(path, budget=BUDGET) as ledger:
    assert ledger.allow_no_proof
    assert ledger.entries[1].event == FLOW
    assert ledger.entries[1].count == 4
    assert ledger.epsilon() == math.inf
    ledger.charge(FLOW, label='flow')
  plain = tmp_path / 'plain'
  accounting.PrivacyLedger(plain, budget=BUDGET).close()
  assert b'allow_no_proof' not in plain.read_bytes()
  with accounting.PrivacyLedger.open(plain) as ledger:
    assert not ledger.allow_no_proof
    with pytest.raises(accounting.BudgetExceededError):
      ledger.charge(FLOW)


def test_merge():
  sources = allowing(), accounting.PrivacyLedger(budget=BUDGET)
  sources[0].charge(FLOW, 2)
  sources[1].charge(GAUSSIAN)
  merged = accounting.merge_ledgers(sources)
  assert merged.allow_no_proof
  assert merged.epsilon() == math.inf
  assert accounting.privacy_statement(merged).no_proof['releases'] == 2
  free = accounting.PrivacyLedger()
  free.charge(FLOW)
  with pytest.raises(
    accounting.BudgetExceededError, match='Nothing was merged'
  ):
    accounting.merge_ledgers([free], budget=BUDGET)
  assert accounting.merge_ledgers([free]).epsilon(1e-5) == math.inf


def test_killed_between_charge_and_draw(tmp_path):
  path, drawn = tmp_path / 'ledger', tmp_path / 'drawn'
  child = os.fork()
  if child == 0:
    try:
      ledger = allowing(path)
      ledger.charge(FLOW, label='flow', count=2)
      os.kill(os.getpid(), signal.SIGKILL)
      drawn.touch()
    finally:
      os._exit(1)
  _, status = os.waitpid(child, 0)
  assert os.WIFSIGNALED(status)
  assert not drawn.exists()
  with accounting.PrivacyLedger.open(path) as ledger:
    assert [x.count for x in ledger.entries] == [2]
    assert ledger.epsilon() == math.inf


def test_split_leaves_what_is_proven():
  event = dp_accounting.ComposedDpEvent(
    [dp_accounting.SelfComposedDpEvent(GAUSSIAN, 2), GAUSSIAN]
  )
  assert no_proof.split(event)[0] is event
  mixed = dp_accounting.SelfComposedDpEvent(
    dp_accounting.ComposedDpEvent([event, FLOW]), 3
  )
  proven, unproven = no_proof.split(mixed, 2)
  assert unproven == [(FLOW, 6)]
  relation = NeighboringRelation.ADD_OR_REMOVE_ONE
  assert accounting.mechanisms.decompose(
    proven, relation
  ) == accounting.mechanisms.decompose(
    dp_accounting.SelfComposedDpEvent(event, 3), relation
  )
