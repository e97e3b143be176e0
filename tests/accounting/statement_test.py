"""Statements and the registry."""

import dataclasses
import json
import math
import re
from fractions import Fraction

import dp_accounting
import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st

from tfdpflows import accounting
from tfdpflows.accounting import events_json, mechanisms, registry, rounding
from tfdpflows.accounting.pld.accountant import PLDAccountant
from tfdpflows.accounting.rdp import RDPAccountant

STEP = dp_accounting.PoissonSampledDpEvent(
  0.05, dp_accounting.GaussianDpEvent(2.0)
)


@given(st.floats(0, 1e300), st.integers(1, 8))
def test_rounding_is_upwards(value, digits):
  text = rounding.round_up(value, digits)
  assert Fraction(text) >= Fraction(value)
  assert Fraction(text) <= Fraction(value) * (1 + Fraction(10) ** (1 - digits))


@pytest.fixture
def ledger():
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  )
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
    f'Claim: epsilon <= {rounding.round_up(ledger.epsilon())} at delta=1e-05 '
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
  names = [row['accountant'] for row in data['epsilons']]
  assert names == list(accounting.accountant_names())
  claims = [row['accountant'] for row in data['epsilons'] if row['is_claim']]
  assert claims == ['pld']
  assert events_json.event_from_dict(data['mechanisms'][1]['event']) == STEP
  assert data['mechanisms'][1]['count'] == 20
  assert 'not recorded' in data['sampling']


def test_seed_and_large_delta_are_said():
  ledger = accounting.PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=1.0, delta=1e-3),
    metadata={'seeded': True},
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
  ledger.charge(dp_accounting.GaussianDpEvent(5.0), label='fine')
  ledger.charge(accounting.ZCDpEvent(0.01), label='odd')
  ledger.charge(accounting.ZCDpEvent(0.02), label='odd too')
  with pytest.raises(ValueError, match='delta'):
    accounting.privacy_statement(ledger)
  made = accounting.privacy_statement(ledger, delta=1e-6)
  assert made.accountant == 'rdp'
  text = ' '.join(str(made).split())
  assert (
    '- pld: does not support every mechanism; the first that it refuses: odd '
    '(0.01-zCDP mechanism) (upper bound)' in text
  )


def test_no_privacy_is_said_plainly():
  ledger = accounting.PrivacyLedger()
  ledger.charge(dp_accounting.NonPrivateDpEvent(), label='raw')
  made = accounting.privacy_statement(ledger, delta=1e-6)
  assert 'no privacy' in made.claim
  assert made.to_dict()['epsilon'] is None
  assert math.isinf(made.epsilon)
  json.dumps(made.to_dict(), allow_nan=False)


def test_registry_names():
  assert {'pld', 'rdp'} < set(accounting.accountant_names())
  for name, alias in (('pld', 'prv'), ('rdp', 'moments'), ('rdp', 'ma')):
    made = accounting.create_accountant(alias)
    assert (made.name, made.guarantee) == (name, 'upper_bound')
    assert isinstance(made, dp_accounting.PrivacyAccountant)
  with pytest.raises(ValueError, match=r"Did you mean 'pld'.*pld, rdp"):
    accounting.create_accountant('pdl')
  with pytest.raises(ValueError, match='moments'):
    accounting.create_accountant('Moments')


def test_registration():
  class Loose(RDPAccountant):
    name = 'loose'
    guarantee = 'asymptotic'

  accounting.register_accountant('loose', Loose, aliases=['l'])
  try:
    ledger = accounting.PrivacyLedger(accountant='l')
    ledger.charge(STEP, label='training')
    made = accounting.privacy_statement(ledger, delta=1e-5)
    assert '(loose, asymptotic)' in made.claim
    assert '<=' not in made.claim
    assert 'no proof of privacy' in ' '.join(str(made).split())
    assert 'no proof of privacy' in made.to_markdown()
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
    accounting.register_accountant('prv', RDPAccountant)


def test_accountants_of_the_package_are_not_replaced(monkeypatch):
  """A later `PLDAccountant` would otherwise price every ledger in silence."""

  class Fake(PLDAccountant):
    name = 'pld'

    def get_epsilon(self, target_delta):
      return 0.0

  before = registry.compute_epsilon(STEP, 1e-5)
  for name in accounting.accountant_names():
    Fake.name = name
    with pytest.raises(
      ValueError, match=rf"'{name}' is taken .*choose another"
    ):
      accounting.register_accountant(name, Fake)
  for alias in ('prv', 'moments', 'pld'):
    Fake.name = 'mine'
    with pytest.raises(ValueError, match=f"'{alias}' is taken"):
      accounting.register_accountant('mine', Fake, aliases=[alias])
  # Nor by one that says that it is the same.
  Fake.name = 'pld'
  Fake.__module__ = PLDAccountant.__module__
  Fake.__qualname__ = 'PLDAccountant'
  with pytest.raises(ValueError, match="'pld' is taken"):
    accounting.register_accountant('pld', Fake)
  assert 'mine' not in accounting.accountant_names()
  assert registry.compute_epsilon(STEP, 1e-5) == before
  accounting.register_accountant('pld', PLDAccountant)


def test_only_the_same_class_is_registered_again(monkeypatch):
  monkeypatch.setattr(registry, '_aliases', dict(registry._aliases))
  monkeypatch.setitem(registry._classes, 'mine', None)
  del registry._classes['mine']

  def defined(epsilon):
    class Mine(RDPAccountant):
      name = 'mine'

      def get_epsilon(self, target_delta):
        return epsilon

    return Mine

  class Other(RDPAccountant):
    name = 'mine'

  accounting.register_accountant('mine', defined(1.0))
  # As a cell of a notebook that is run again does.
  accounting.register_accountant('mine', defined(2.0))
  assert registry.compute_epsilon(STEP, 1e-5, 'mine') == 2.0
  with pytest.raises(ValueError, match=r"'mine' is taken .*Mine"):
    accounting.register_accountant('mine', Other)
  with pytest.raises(ValueError, match="name, .*must be 'yours' as well"):
    accounting.register_accountant('yours', Other)
  Other.name = 'yours'
  with pytest.raises(TypeError, match='list of names'):
    accounting.register_accountant('yours', Other, aliases='your')


SECTIONS = (
  'Privacy statement',
  'Unit of privacy',
  'Neighbouring relation',
  'Trust model',
  'central',
  'Sampling',
  'Hyper-parameters',
  'Number of rows',
  'Budget',
  'Mechanisms charged',
  'by accountant',
  'asymptotic',
  'Without amplification by sampling',
  'at other deltas',
  'one over the number of rows',
  'Assumptions',
  'is public',
  'random numbers',
  'floating point',
  'side channels',
  'checkpoints',
)


def test_all_that_is_asked_of_a_statement_is_in_it(ledger):
  made = accounting.privacy_statement(ledger, num_examples=2000)
  for text in (made.to_text(), made.to_markdown()):
    text = ' '.join(text.split())
    positions = [text.find(section) for section in SECTIONS]
    assert -1 not in positions
    assert 'no search over hyper-parameters is charged' in text
  data = made.to_dict()
  for field in ('trust_model', 'hyperparameter_search', 'epsilon_by_delta'):
    assert data[field]


def test_unamplified_epsilon_stands_beside_the_amplified_one(ledger):
  made = accounting.privacy_statement(ledger)
  plain = dp_accounting.ComposedDpEvent(
    [
      dp_accounting.GaussianDpEvent(9.0),
      dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 20),
    ]
  )
  expected = accounting.compute_epsilon(plain, 1e-5)
  assert made.sampled
  assert made.epsilon_without_amplification == pytest.approx(expected)
  assert f'sampling: epsilon <= {rounding.round_up(expected)}' in str(made)
  unsampled = accounting.PrivacyLedger()
  unsampled.charge(dp_accounting.GaussianDpEvent(9.0))
  made = accounting.privacy_statement(unsampled, delta=1e-5)
  assert not made.sampled
  assert made.epsilon_without_amplification == made.epsilon
  assert 'No mechanism is amplified by sampling' in str(made)
  assert made.sampling.startswith('no mechanism is charged as')


def test_epsilon_at_several_deltas(ledger):
  made = accounting.privacy_statement(ledger, num_examples=3000, delta=2e-6)
  deltas = [row['delta'] for row in made.epsilon_by_delta]
  assert deltas == sorted(
    [10.0**-k for k in range(3, 10)] + [1 / 3000, 2e-6], reverse=True
  )
  epsilons = [row['epsilon'] for row in made.epsilon_by_delta]
  assert epsilons == sorted(epsilons)
  for row in made.epsilon_by_delta:
    assert row['epsilon'] == ledger.epsilon(row['delta'])
    if row['delta'] == 2e-6:
      assert row['epsilon'] == made.epsilon


def test_search_over_hyperparameters_is_said():
  ledger = accounting.PrivacyLedger(accountant='rdp')
  ledger.charge(
    dp_event.RepeatAndSelectDpEvent(STEP, 10.0, math.inf), label='search'
  )
  made = accounting.privacy_statement(
    ledger, delta=1e-5, hyperparameter_search='ten sizes of batches'
  )
  assert made.hyperparameter_search.startswith(
    'ten sizes of batches; paid for as search (the best of a random number'
  )
  assert 'no search' not in str(made)


VOTE = accounting.GNMaxDpEvent(10.0)


def test_prices_from_private_votes_stand_apart():
  plain = accounting.PrivacyLedger(accountant='rdp')
  ledger = accounting.PrivacyLedger(accountant='rdp')
  for number in range(5):
    plain.charge(VOTE, label='queries')
    ledger.charge(
      accounting.DataDependentDpEvent(VOTE, log_q=-60.0 - number),
      label='queries',
    )
  made = accounting.privacy_statement(ledger, delta=1e-5, data_dependent=True)
  public = accounting.privacy_statement(plain, delta=1e-5)
  silent = accounting.privacy_statement(ledger, delta=1e-5)
  assert silent == public
  assert dataclasses.replace(made, data_dependent=None) == public
  assert [row['count'] for row in made.mechanisms] == [5]
  assert made.data_dependent['epsilon'] < made.epsilon / 2
  for text in (str(made), made.to_markdown()):
    lines = [x for x in text.splitlines() if 'not for publication' in x]
    assert len(lines) == 1
    assert 'private votes' in ' '.join(text.split())
    assert 'must not be published' in ' '.join(text.split())
  for votes in ('log_q', '-60', '-64'):
    assert votes not in json.dumps(made.to_dict())


def test_markdown_is_well_formed(ledger):
  ledger.charge(
    dp_accounting.GaussianDpEvent(50.0), label='a|b\n| *x* `y` <b> [z](u)'
  )
  text = accounting.privacy_statement(ledger, num_examples=2000).to_markdown()
  tables = 0
  width = None
  for line in text.splitlines():
    if not line.startswith('|'):
      width = None
      continue
    cells = len(re.findall(r'(?<!\\)\|', line)) - 1
    tables += width is None
    width = width or cells
    assert cells == width, line
  assert tables == 3
  assert '<b>' not in text
  assert r'a\|b \| \*x\* \`y\` \<b\> \[z\](u)' in text
  assert '| pld | 0.' in text
  assert text.startswith('# Privacy statement\n\n**Claim:** epsilon <= ')


def test_remarks_of_accountants_are_repeated():
  class Chatty(RDPAccountant):
    name = 'chatty'

    def remarks(self, target_delta):
      return (f'rests on tea at {target_delta}.',)

  accounting.register_accountant('chatty', Chatty)
  try:
    ledger = accounting.PrivacyLedger(accountant='chatty')
    ledger.charge(STEP, label='training')
    made = accounting.privacy_statement(ledger, delta=1e-5)
    text = str(made)
    assert 'Claim: ' + made.claim + '\n- rests on tea at 1e-05.' in text
    assert text.count('rests on tea') == 2
    assert made.to_markdown().count('rests on tea at 1e-05') == 2
  finally:
    registry._classes.pop('chatty')
    registry._aliases.pop('chatty')


def test_infinite_epsilons_are_words_and_nulls():
  ledger = accounting.PrivacyLedger()
  ledger.charge(
    dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.NonPrivateDpEvent()),
    label='raw',
  )
  made = accounting.privacy_statement(ledger, delta=1e-6, num_examples=10)
  data = json.loads(json.dumps(made.to_dict(), allow_nan=False))
  assert data['epsilon_without_amplification'] is None
  assert {row['epsilon'] for row in data['epsilon_by_delta']} == {None}
  for text in (str(made), made.to_markdown()):
    assert 'no finite epsilon' in text


def test_what_was_merged_is_said(tmp_path):
  paths = [tmp_path / 'a', tmp_path / 'b']
  for path in paths:
    accounting.PrivacyLedger(path).close()
  accounting.merge_ledgers(paths, tmp_path / 'c').close()
  for path, word in ((paths[0], 'was merged into'), (tmp_path / 'c', 'a, b')):
    with accounting.PrivacyLedger.open(path, read_only=True) as ledger:
      made = accounting.privacy_statement(ledger, delta=1e-5)
    assert word in ' '.join(str(made).split())


@pytest.mark.parametrize('relation', mechanisms.RELATIONS)
@pytest.mark.parametrize(
  'event',
  [
    STEP,
    dp_accounting.SampledWithoutReplacementDpEvent(
      100, 7, dp_accounting.GaussianDpEvent(2.0)
    ),
    accounting.TruncatedSubsampledGaussianDpEvent(1000, 0.05, 140, 2.0),
    dp_accounting.ComposedDpEvent([STEP, dp_accounting.GaussianDpEvent(3.0)]),
    dp_accounting.PoissonSampledDpEvent(1.0, STEP.event),
  ],
)
def test_sampling_only_ever_helps(event, relation):
  event = dp_accounting.SelfComposedDpEvent(event, 3)
  plain = mechanisms.without_amplification(event)
  assert 'Sampled' not in repr(plain).replace(
    'SampledWithoutReplacementDpEvent(source_dataset_size=1, sample_size=1', ''
  )
  assert mechanisms.without_amplification(plain) == plain
  for delta in (1e-3, 1e-6):
    amplified, unamplified = (
      accounting.compute_epsilon(
        x, delta, 'pld', relation, value_discretization_interval=1e-3
      )
      for x in (event, plain)
    )
    assert amplified <= unamplified * (1 + 1e-6)


def test_like_mechanisms_are_one_line():
  ledger = accounting.PrivacyLedger()
  ledger.charge(dp_accounting.GaussianDpEvent(2.0), label='histograms')
  for number, noise in enumerate((40.0, 30.0, 20.5), 1):
    ledger.charge(
      accounting.ExponentialMechanismDpEvent(0.125), label=f'selection {number}'
    )
    ledger.charge(
      dp_accounting.GaussianDpEvent(noise), label=f'marginal {number}'
    )
  ledger.charge(dp_accounting.GaussianDpEvent(9.0), label='column 7', count=2)
  statement = accounting.privacy_statement(ledger, delta=1e-5)
  text = ' '.join(statement.to_text().split())
  listed = text[text.index('charged:') : text.index('Epsilon at')]
  assert listed.count('- ') == 4
  assert '- selection 1 to 3: 3 x exponential mechanism' in listed.lower()
  assert (
    '- marginal 1 to 3: 3 x Gaussian mechanism, noise multiplier 20.5 to 40 '
    in listed
  )
  assert '- column 7: 2 x Gaussian mechanism, noise multiplier 9' in listed
  assert '| marginal 1 to 3 |' in statement.to_markdown()
  # The data have all of them.
  assert len(statement.to_dict()['mechanisms']) == 8


def test_unlike_mechanisms_stay_apart():
  ledger = accounting.PrivacyLedger()
  ledger.charge(dp_accounting.GaussianDpEvent(2.0), label='round 1')
  ledger.charge(dp_accounting.LaplaceDpEvent(2.0), label='round 2')
  ledger.charge(dp_accounting.GaussianDpEvent(2.0), label='sound 3')
  text = accounting.privacy_statement(ledger, delta=1e-5).to_text()
  assert all(f'- {x}:' in text for x in ('round 1', 'round 2', 'sound 3'))
