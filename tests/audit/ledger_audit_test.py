"""Audits of ledgers: below every claim, near it, and honest about the rest."""

import json

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from tests.grids import thinned
from tfdpflows import accounting, audit
from tfdpflows.audit import ledgers, page
from tfdpflows.audit.replaying import Replay

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
GAUSSIAN = dp_accounting.GaussianDpEvent
# Events, how often, and which part of the claim is to be reached: a floor for
# these few runs at this confidence, below what was found.
EVENTS = {
  'Gaussian': (GAUSSIAN(1.0), 1, 0.6),
  'composed Gaussians': (GAUSSIAN(4.0), 16, 0.6),
  'Laplace': (dp_accounting.LaplaceDpEvent(1.0), 1, 0.8),
  'Poisson': (dp_accounting.PoissonSampledDpEvent(0.2, GAUSSIAN(1.0)), 8, 0.4),
  'fixed size': (
    dp_accounting.SampledWithoutReplacementDpEvent(100, 20, GAUSSIAN(2.0)),
    8,
    0.4,
  ),
  'banded': (
    accounting.CyclicPoissonSampledDpEvent(
      0.2, 2, accounting.ToeplitzMechanismDpEvent(1.0, [1.0, 0.5], steps=16)
    ),
    1,
    0.4,
  ),
  'exponential': (accounting.ExponentialMechanismDpEvent(2.0), 1, 0.4),
  'LNMax': (accounting.LNMaxDpEvent(0.5), 1, 0.4),
  'GNMax': (accounting.GNMaxDpEvent(2.0), 1, 0.2),
  'epsilon-delta': (accounting.EpsilonDeltaDpEvent(1.0, 1e-3), 1, 0.9),
}


# Most of the other relation are not for `make test`.
CASES = [
  *((name, 'add') for name in EVENTS),
  *((name, 'replace') for name in EVENTS),
]


@pytest.mark.parametrize('name, relation', thinned(CASES, len(EVENTS) + 1))
def test_no_claim_is_refuted(name, relation):
  event, count, least = EVENTS[name]
  relations = {'replace': {'neighboring_relation': REPLACE}}
  ledger = accounting.PrivacyLedger(**relations.get(relation, {}))
  ledger.charge(event, count, label=name)
  found = audit.audit_ledger(
    ledger, delta=0.01, num_runs=20_000, confidence=0.999, seed=0
  )
  assert not found.refuted
  assert found.complete
  # Votes move alike under both relations, and larger claims need more runs.
  if relation == 'add' or name in ('Gaussian', 'Poisson'):
    assert found.epsilon_lower >= least * min(found.epsilon_claimed, 6)
  # Nothing that was seen is above the claim by more than chance.
  assert (found.roc[:, 1] <= found.claimed_roc[:, 1] + 0.03).all()


EXTREMES = {
  'GNMax': accounting.GNMaxDpEvent(0.001),
  'LNMax': accounting.LNMaxDpEvent(1000.0),
  'LNMax of nothing': accounting.LNMaxDpEvent(1e-300),
  'exponential': accounting.ExponentialMechanismDpEvent(2000.0),
  'exponential of nothing': accounting.ExponentialMechanismDpEvent(1e-300),
  'no noise': GAUSSIAN(0.0),
  'little noise': GAUSSIAN(1e-200),
  'much noise': GAUSSIAN(1e200),
  'little Laplace noise': dp_accounting.LaplaceDpEvent(1e-200),
  'no sample': dp_accounting.PoissonSampledDpEvent(0.0, GAUSSIAN(1.0)),
  'all': dp_accounting.PoissonSampledDpEvent(1.0, GAUSSIAN(1.0)),
  'sample without noise': dp_accounting.PoissonSampledDpEvent(
    0.1, GAUSSIAN(0.0)
  ),
  'large epsilon': accounting.EpsilonDeltaDpEvent(2000.0, 0.0),
}


@pytest.mark.parametrize('name', EXTREMES)
def test_extreme_entries_that_a_ledger_takes(name):
  ledger = accounting.PrivacyLedger()
  try:
    ledger.charge(EXTREMES[name], 2, label=name)
  except ValueError:
    pytest.skip('the ledger refuses it')
  found = audit.audit_ledger(ledger, delta=0.01, num_runs=400, seed=0)
  assert found.complete and not found.refuted
  if found.epsilon_claimed > 100:
    assert found.epsilon_lower > 1
  assert str(found)


@pytest.mark.parametrize('sample_size', thinned([1, 4], 1))
def test_samples_of_a_fixed_size_beside_rows_of_zeros(sample_size):
  """No row takes the place of another one: sums move by one row."""
  relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
  event = dp_accounting.SampledWithoutReplacementDpEvent(
    4, sample_size, GAUSSIAN(1.0)
  )
  ledger = ledger_of(('sample', event), neighboring_relation=relation)
  found = audit.audit_ledger(
    ledger, delta=0.05, num_runs=50_000, confidence=0.999, seed=0
  )
  assert not found.refuted
  assert found.epsilon_lower > 0.1 * found.epsilon_claimed


def ledger_of(*entries, **kwargs):
  ledger = accounting.PrivacyLedger(**kwargs)
  for label, event in entries:
    ledger.charge(event, label=label)
  return ledger


MIXED = [
  ('counts', GAUSSIAN(2.0)),
  ('<b>teachers</b>', accounting.VoteThresholdDpEvent(40.0)),
]


@pytest.fixture(scope='module')
def mixed():
  return audit.audit_ledger(ledger_of(*MIXED), delta=0.01, seed=0)


def test_what_cannot_be_audited_is_listed(mixed):
  assert not mixed.complete
  assert mixed.entries[1].epsilon_lower is None
  assert 'no worst pair' in mixed.entries[1].reason
  assert 0 < mixed.epsilon_lower <= mixed.epsilon_claimed
  found = audit.audit_ledger(ledger_of(MIXED[1]), delta=0.01)
  assert found.epsilon_lower == 0
  assert found.rates is None
  assert not found.could_refute
  assert 'Nothing was attacked.' in str(found)
  assert page._verdict(found, None) == 'Nothing was attacked.'


def test_too_few_runs_to_refute_anything_are_told():
  for runs in (100, 20_000):
    found = audit.audit_ledger(
      ledger_of(('counts', GAUSSIAN(0.5))), delta=1e-3, num_runs=runs, seed=0
    )
    assert found.could_refute == (runs == 20_000)
    for text in (str(found), page._verdict(found, None)):
      assert ('few runs' in text) == (runs == 100)


def test_an_asymptotic_claim_is_marked(mixed, tmp_path):
  assert 'asymptotic' not in str(mixed)
  found = audit.audit_ledger(
    ledger_of(MIXED[0], accountant='gdp'), delta=0.01, num_runs=200, seed=0
  )
  assert '(gdp, asymptotic: no upper bound). Attack' in str(found)
  page.write_page(tmp_path / 'audit.html', found, source='Made up.')
  text = (tmp_path / 'audit.html').read_text(encoding='utf-8')
  assert '(gdp, asymptotic: no upper bound)' in text
  assert 'that the accountant proves' not in text
  content = json.loads((tmp_path / 'audit.json').read_text(encoding='utf-8'))
  assert content['guarantee'] == 'asymptotic'


def test_too_much_is_refuted(monkeypatch):
  """Mechanisms with half of the noise that was charged."""
  losses = ledgers._losses

  def louder(event, *args):
    return losses(GAUSSIAN(event.noise_multiplier / 2), *args)

  monkeypatch.setattr(ledgers, '_losses', louder)
  found = audit.audit_ledger(ledger_of(MIXED[0]), delta=0.01, seed=0)
  assert found.refuted
  assert str(found).endswith('THE ATTACK REFUTES THE CLAIM.')


def test_refusals():
  with pytest.raises(ValueError, match='charged nothing'):
    audit.audit_ledger(accounting.PrivacyLedger(), delta=0.01)
  with pytest.raises(ValueError, match='no delta'):
    audit.audit_ledger(ledger_of(MIXED[0]))
  for delta in (0.0, 1.0):
    with pytest.raises(ValueError, match=f'delta is {delta}'):
      audit.audit_ledger(ledger_of(MIXED[0]), delta=delta)


def test_page(mixed, tmp_path):
  path = tmp_path / 'audit.html'
  page.write_page(path, mixed, source='Of a test & more.')
  text = path.read_text(encoding='utf-8')
  assert '&lt;b&gt;teachers' in text and '<b>teachers' not in text
  assert 'Of a test &amp; more.' in text
  assert 'does not refute the claim' in text
  content = json.loads((tmp_path / 'audit.json').read_text())
  assert content['entries'][0]['label'] == 'counts'
  assert content['complete'] is False
  assert len(content['roc']['claimed']) == len(content['roc']['attack'])
  assert 'private' not in str(content)
  # That of a replay reads rows, and says so in both files.
  replayed = page.as_dict(
    mixed, source='', replay=Replay((), (), distance=1), row=3
  )
  assert 'is not private' in replayed['replay']['note']
  with pytest.raises(ValueError, match='must end in'):
    page.write_page(tmp_path / 'audit.htm', mixed, source='')
  assert sorted(x.name for x in tmp_path.iterdir()) == [
    'audit.html',
    'audit.json',
  ]


def test_a_page_that_cannot_be_written_leaves_no_json(
  mixed, tmp_path, monkeypatch
):
  write = page.atomic.write_file

  def full(path, content):
    if str(path).endswith('.html'):
      raise OSError('No space left on device')
    write(path, content)

  monkeypatch.setattr(page.atomic, 'write_file', full)
  with pytest.raises(OSError, match='No space'):
    page.write_page(tmp_path / 'audit.html', mixed, source='')
  assert not list(tmp_path.iterdir())


def test_roc_is_below_the_claim_where_nothing_was_seen():
  """Some outputs are of one table only, in so few runs."""
  found = audit.audit_ledger(
    ledger_of(('a', GAUSSIAN(0.3))), delta=0.01, seed=0
  )
  assert (found.roc[:, 1] <= found.claimed_roc[:, 1] + 0.03).all()


def test_bar_counts_all_runs(monkeypatch):
  class Shown:
    n, total, closed = 0, None, False

    def update(self, number=1):
      self.n += number

    def close(self):
      self.closed = True

  shown = Shown()

  def bar(what, total, wanted):
    shown.total = total
    return shown

  monkeypatch.setattr(ledgers.progress, 'bar', bar)
  sampled = dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN(1.0))
  laplace = dp_accounting.LaplaceDpEvent(1.0)
  twice = dp_accounting.SelfComposedDpEvent(
    dp_accounting.ComposedDpEvent([laplace, GAUSSIAN(1.0)]), 2
  )
  ledger = ledger_of(*MIXED, ('laplace', twice))
  ledger.charge(sampled, 7, label='steps')
  audit.audit_ledger(ledger, delta=0.01, num_runs=100)
  assert shown.closed
  assert shown.n == shown.total == 2 * (1 + 1 + 3 + 7)


def test_claimed_roc():
  found = ledgers.claimed_roc(GAUSSIAN(1.0))
  assert np.all(np.diff(found[:, 1]) >= 0)
  # That of two Gaussians, up to the epsilons that are asked.
  exact = stats.norm.cdf(stats.norm.ppf(found[1:-1, 0]) + 1)
  assert np.all(found[1:-1, 1] >= exact - 1e-9)
  assert np.max(found[1:-1, 1] - exact) < 0.03
