"""Merging ledgers: all they spent is in the new one, and nothing after it."""

import errno
import os
import shutil
import threading

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpflows import accounting
from tfdpflows.accounting import LedgerError, PrivacyLedger, merge_ledgers
from tfdpflows.accounting.ledger import randomness_id

GAUSSIAN = dp_accounting.GaussianDpEvent(5.0)
STEP = dp_accounting.PoissonSampledDpEvent(
  0.05, dp_accounting.GaussianDpEvent(4.0)
)
BUDGET = accounting.PrivacyBudget(epsilon=3.0, delta=1e-5)


@pytest.fixture
def paths(tmp_path):
  """Two ledgers with one budget, and where to merge them."""
  for name in 'ab':
    (tmp_path / name).mkdir()
    with PrivacyLedger(tmp_path / name / 'ledger', budget=BUDGET) as ledger:
      ledger.charge(GAUSSIAN, label='histograms')
      steps = ledger.reserve(STEP, 10, 'training', randomness_id=name)
      steps.ensure(4 if name == 'a' else 7)
  return [tmp_path / 'a/ledger', tmp_path / 'b/ledger'], tmp_path / 'merged'


def contents(*paths):
  return [path.read_bytes() if path.exists() else None for path in paths]


def test_merged_ledger_holds_all_that_was_spent(paths):
  sources, path = paths
  with merge_ledgers(sources, path) as merged:
    assert [
      (x.label, x.event, x.count, x.reserved) for x in merged.entries
    ] == [
      ('histograms (1)', GAUSSIAN, 1, 1),
      ('training (1)', STEP, 4, 10),
      ('histograms (2)', GAUSSIAN, 1, 1),
      ('training (2)', STEP, 7, 10),
    ]
    assert merged.budget == BUDGET
    assert merged.epsilon() == accounting.compute_epsilon(
      dp_accounting.ComposedDpEvent(
        [
          dp_accounting.SelfComposedDpEvent(GAUSSIAN, 2),
          dp_accounting.SelfComposedDpEvent(STEP, 11),
        ]
      ),
      1e-5,
    )
    assert 'a/ledger, b/ledger' in merged.notes[-1]
    entries = merged.entries
  with PrivacyLedger.open(path, budget=BUDGET) as merged:
    assert merged.entries == entries
  assert not [x for x in os.listdir(path.parent) if x.startswith('.')]


def test_sources_are_closed_and_say_where_they_went(paths):
  sources, path = paths
  live = PrivacyLedger.open(sources[0])
  steps = live.reserve(STEP, 10, 'training', resume=True, randomness_id='a')
  merge_ledgers([live, sources[1]], path).close()
  for charge in (
    lambda: live.charge(GAUSSIAN),
    lambda: steps.ensure(5),
    lambda: steps.release(),
    lambda: live.reserve(STEP, 1, 'more'),
    lambda: PrivacyLedger.open(sources[1]),
  ):
    with pytest.raises(LedgerError, match=f'was merged into {path}: continue'):
      charge()
  # What was charged before may still run.
  steps.ensure(4)
  live.close()
  with PrivacyLedger.open(sources[1], read_only=True) as reader:
    assert [x.count for x in reader.entries] == [1, 7]
    assert f'was merged into {path}' in reader.notes[0]
  shutil.move(path.parent, path.parent.with_name('elsewhere'))
  moved = path.parent.with_name('elsewhere')
  with pytest.raises(LedgerError, match=f'into {moved}/merged: continue'):
    PrivacyLedger.open(moved / 'a/ledger')


def test_reservations_are_resumed_with_their_randomness(paths):
  sources, path = paths
  merge_ledgers(sources, path).close()
  with PrivacyLedger.open(path) as merged:
    before = path.read_bytes()
    steps = merged.reserve(STEP, 10, 'training', resume=True, randomness_id='b')
    assert (steps.label, steps.charged, steps.count) == ('training (2)', 7, 10)
    assert path.read_bytes() == before
    steps.ensure(10)
    with pytest.raises(LedgerError, match='other random numbers'):
      merged.reserve(STEP, 10, 'training', resume=True, randomness_id='c')
    with pytest.raises(LedgerError, match='same parameters'):
      merged.reserve(STEP, 11, 'training', resume=True, randomness_id='a')
    with pytest.raises(LedgerError, match='is taken'):
      merged.reserve(STEP, 10, 'training (1)', resume=True, randomness_id='a')
    steps = merged.reserve(STEP, 10, 'training', resume=True, randomness_id='a')
    steps.ensure(5)
    steps.release()
  with PrivacyLedger.open(path) as merged:
    assert [x.count for x in merged.entries] == [1, 5, 1, 10]
    steps = merged.reserve(STEP, 10, 'training', resume=True, randomness_id='a')
    assert (steps.label, steps.charged) == ('training (1)', 5)
    steps.ensure(6)
    assert [x.count for x in merged.entries] == [1, 6, 1, 10]


def test_random_numbers_of_a_merged_reservation_are_not_reserved_again():
  event = dp_accounting.GaussianDpEvent(5.0)
  sources = PrivacyLedger(), PrivacyLedger()
  for number, source in enumerate(sources):
    source.reserve(event, 2, 'training', randomness_id=f'k{number} {{}}')
  merged = merge_ledgers(sources)
  # Its label is free: the two are called training (1) and (2) now.
  with pytest.raises(LedgerError, match='merged into this one: noise must not'):
    merged.reserve(event, 2, 'training', randomness_id='k0 {"rows": "others"}')
  merged.reserve(event, 2, 'training', randomness_id='k2 {}')


def test_charges_and_reservations_of_nobody_are_not_resumed(tmp_path):
  """One source may not have paid yet what another one has."""
  sources = [tmp_path / 'a', tmp_path / 'b']
  with PrivacyLedger(sources[0], budget=BUDGET) as ledger:
    ledger.charge(GAUSSIAN, label='histograms')
    ledger.reserve(STEP, 10, 'training').ensure(4)
  PrivacyLedger(sources[1], budget=BUDGET).close()
  with merge_ledgers(sources, tmp_path / 'merged') as merged:
    assert [x.label for x in merged.entries] == ['histograms', 'training']
    assert [x.reserved for x in merged.entries] == [1, 4]
    assert merged.charge(GAUSSIAN, label='histograms', resume=True)
    with pytest.raises(LedgerError, match='is taken'):
      merged.reserve(STEP, 10, 'training', resume=True)
  with PrivacyLedger.open(tmp_path / 'merged') as merged:
    assert not merged.charge(GAUSSIAN, label='histograms', resume=True)
    assert merged.charge(GAUSSIAN, label='histograms', resume=True)


def test_merged_charges_keep_their_randomness_and_seeds():
  sources = [PrivacyLedger(), PrivacyLedger()]
  for ledger, name in zip(sources, 'ab'):
    ledger.charge(
      GAUSSIAN, label='bounds', randomness_id=name, seeded=name == 'b'
    )
  merged = merge_ledgers(sources)
  assert merged.seeded
  with pytest.raises(LedgerError, match='used twice'):
    merged.charge(GAUSSIAN, label='new', randomness_id='a')
  assert not merged.charge(
    GAUSSIAN, label='bounds', randomness_id='a', resume=True
  )
  assert len(merged.entries) == 2


def test_trainings_by_one_secret_cannot_be_told_apart():
  """One that was repeated, such as in another ledger."""
  ledgers = [PrivacyLedger() for _ in range(2)]
  for ledger in ledgers:
    ledger.reserve(STEP, 10, 'training', randomness_id='a').ensure(4)
  merged = merge_ledgers(ledgers)
  with pytest.raises(LedgerError, match='2 reservations for the same random'):
    merged.reserve(STEP, 10, 'training', resume=True, randomness_id='a')
  assert sum(x.count for x in merged.entries) == 8


def test_labels_stay_unique(tmp_path):
  ledgers = [PrivacyLedger() for _ in range(2)]
  for ledger in ledgers:
    ledger.reserve(STEP, 2, 'training', randomness_id='x').ensure(1)
  ledgers[0].reserve(STEP, 2, 'training (2)', randomness_id='y').ensure(2)
  ledgers[0].charge(GAUSSIAN, label='query')
  ledgers[0].charge(GAUSSIAN, label='query')
  merged = merge_ledgers(ledgers)
  assert [x.label for x in merged.entries] == [
    'training (1)',
    'training (2)',
    'query',
    'query',
    'training (2) (2)',
  ]


def test_merged_ledgers_can_be_merged(paths, tmp_path):
  sources, path = paths
  merge_ledgers(sources, path).close()
  with PrivacyLedger(tmp_path / 'c', budget=BUDGET) as ledger:
    ledger.charge(GAUSSIAN, label='histograms (2)')
  with merge_ledgers([path, tmp_path / 'c'], tmp_path / 'all') as merged:
    assert [x.count for x in merged.entries] == [1, 4, 1, 7, 1]
    steps = merged.reserve(STEP, 10, 'training', resume=True, randomness_id='b')
    assert (steps.label, steps.charged) == ('training (2)', 7)


def test_budget_that_is_spent_already_is_refused(paths):
  sources, path = paths
  before = contents(*sources, path)
  with PrivacyLedger.open(sources[0], read_only=True) as one:
    alone = one.epsilon()
  with pytest.raises(accounting.BudgetExceededError) as refusal:
    merge_ledgers(
      sources, path, budget=accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
    )
  error = refusal.value
  assert alone < error.spent < error.asked
  for number in ('1 at', f'{error.spent:.7g}', f'{error.asked:.7g}'):
    assert number in str(error)
  assert 'lower than what is spent already' in str(error)
  assert contents(*sources, path) == before
  for source in sources:
    PrivacyLedger.open(source).close()
  # The budget of each is no budget for both.
  budget = accounting.PrivacyBudget(epsilon=alone, delta=1e-5)
  ledgers = [PrivacyLedger(budget=budget) for _ in range(2)]
  for ledger in ledgers:
    ledger.charge(GAUSSIAN)
  with pytest.raises(accounting.BudgetExceededError):
    merge_ledgers(ledgers)
  assert ledgers[0].charge(STEP)
  assert merge_ledgers(ledgers, budget=BUDGET).budget == BUDGET


def test_reservations_count_against_the_budget(tmp_path):
  ledgers = [PrivacyLedger(budget=BUDGET) for _ in range(2)]
  for ledger in ledgers:
    ledger.reserve(GAUSSIAN, 8, 'all', randomness_id='x')
  with pytest.raises(accounting.BudgetExceededError, match='charged 0, and'):
    merge_ledgers(ledgers)


@pytest.mark.parametrize(
  ('changed', 'message'),
  [
    (
      {
        'neighboring_relation': dp_accounting.NeighboringRelation.REPLACE_ONE,
        'path': None,
      },
      'in memory is ADD_OR_REMOVE_ONE.*REPLACE_ONE.*keep them apart',
    ),
    (
      {'budget': accounting.PrivacyBudget(epsilon=2.0, delta=1e-5)},
      'Give the budget',
    ),
    ({'accountant': 'rdp'}, 'pld.*rdp.*Give the accountant'),
  ],
)
def test_ledgers_that_differ(changed, message):
  ledgers = [
    PrivacyLedger(budget=BUDGET),
    PrivacyLedger(**{'budget': BUDGET, **changed}),
  ]
  with pytest.raises(ValueError, match=message):
    merge_ledgers(ledgers)
  for ledger in ledgers:
    ledger.charge(GAUSSIAN)


def test_bad_sources(paths, tmp_path):
  sources, path = paths
  before = contents(*sources, path)
  memory = PrivacyLedger(budget=BUDGET)
  reader = PrivacyLedger.open(sources[0], read_only=True)
  closed = PrivacyLedger.open(sources[0])
  closed.close()
  for bad, error, message in (
    ([], ValueError, 'nothing to merge'),
    ([sources[0], str(sources[0])], ValueError, 'given 2 times'),
    ([memory, memory], ValueError, 'given 2 times'),
    ([sources[0], memory], ValueError, 'only ledgers in files'),
    ([sources[1], reader], LedgerError, 'read only'),
    ([sources[1], closed], LedgerError, 'closed'),
    ([sources[0], tmp_path / 'no'], LedgerError, 'There is no ledger'),
    ([sources[0], tmp_path / 'a'], LedgerError, 'Cannot open'),
  ):
    with pytest.raises(error, match=message):
      merge_ledgers(bad, path)
    assert contents(*sources, path) == before
  with pytest.raises(ValueError, match='path of a new file'):
    merge_ledgers(sources)
  with pytest.raises(LedgerError, match='never overwritten'):
    merge_ledgers([sources[0]], sources[1])
  with pytest.raises(LedgerError, match='Cannot create'):
    merge_ledgers(sources, tmp_path / 'no' / 'folder')
  with (
    PrivacyLedger.open(sources[1]),
    pytest.raises(LedgerError, match='in use'),
  ):
    merge_ledgers(sources, path)
  with pytest.raises(ValueError, match='Unknown accountant'):
    merge_ledgers(sources, path, accountant='pdl')
  assert contents(*sources, path) == before


def test_events_that_the_accountant_refuses(tmp_path):
  ledgers = [PrivacyLedger(accountant='rdp') for _ in range(2)]
  ledgers[1].charge(accounting.ZCDpEvent(0.1))
  with pytest.raises(dp_accounting.UnsupportedEventError, match='ZCDp'):
    merge_ledgers(ledgers, accountant='pld')
  assert merge_ledgers(ledgers).accountant == 'rdp'


def test_interrupted_merge_is_completed_by_the_same_call(paths, monkeypatch):
  sources, path = paths
  real = os.fsync
  calls = []

  def fails(descriptor):
    calls.append(descriptor)
    if len(calls) == 4:  # Twice for the new file, then once for each source.
      raise OSError(errno.ENOSPC, 'No space left on device')
    real(descriptor)

  monkeypatch.setattr(os, 'fsync', fails)
  with pytest.raises(LedgerError, match='No space'):
    merge_ledgers(sources, path)
  monkeypatch.undo()
  assert not path.exists()
  with pytest.raises(LedgerError, match=r'not there: merge the same.*b/ledger'):
    PrivacyLedger.open(sources[0])
  with PrivacyLedger.open(sources[1]) as ledger:
    ledger.charge(GAUSSIAN, label='late')
  PrivacyLedger(path.with_name('c'), budget=BUDGET).close()
  for others in ([sources[0]], [*sources, path.with_name('c')]):
    with pytest.raises(LedgerError, match='merge the same ledgers'):
      merge_ledgers(others, path)
  with pytest.raises(LedgerError, match='merge the same ledgers'):
    merge_ledgers(sources, path.with_name('other'))
  with merge_ledgers(sources, path) as merged:
    assert 'late' in [x.label for x in merged.entries]
    merged.charge(GAUSSIAN, label='after')
    count = len(merged.entries)
  # And once more, when all is done: nothing happens.
  with merge_ledgers(reversed(sources), path, budget=BUDGET) as merged:
    assert len(merged.entries) == count
  with pytest.raises(LedgerError, match='was merged into'):
    merge_ledgers(sources, path.with_name('other'))
  path.unlink()
  with merge_ledgers(sources, path) as merged:
    assert len(merged.entries) == count - 1


def test_another_file_under_the_name_is_never_touched(paths):
  sources, path = paths
  path.write_text('mine')
  with pytest.raises(LedgerError, match='never overwritten'):
    merge_ledgers(sources, path)
  assert path.read_text() == 'mine'
  for source in sources:
    PrivacyLedger.open(source).close()


def test_seed_and_metadata_come_along(tmp_path):
  ledgers = [
    PrivacyLedger(),
    PrivacyLedger(metadata={'seeded': True, 'fit': 1}),
  ]
  merged = merge_ledgers(ledgers, tmp_path / 'merged', metadata={'a': 2})
  assert merged.metadata['seeded'] is True
  assert merged.metadata['a'] == 2
  assert merged.metadata['merged_from'][1]['metadata']['fit'] == 1
  assert accounting.privacy_statement(merged, delta=1e-5).seeded
  merged.close()
  with pytest.raises(LedgerError, match='This ledger was merged into .*merged'):
    ledgers[0].charge(GAUSSIAN)


def test_threads_that_charge_during_a_merge(tmp_path):
  ledgers = [PrivacyLedger() for _ in range(2)]
  charged = [0, 0]

  def charge(number):
    try:
      while True:
        ledgers[number].charge(GAUSSIAN)
        charged[number] += 1
    except LedgerError:
      pass

  threads = [threading.Thread(target=charge, args=(i,)) for i in range(2)]
  for thread in threads:
    thread.start()
  merged = merge_ledgers(ledgers)
  for thread in threads:
    thread.join()
  assert sum(x.count for x in merged.entries) == sum(charged)


_entries = st.lists(
  st.tuples(
    st.sampled_from('xyz'),
    st.sampled_from([GAUSSIAN, STEP]),
    st.integers(1, 5),
    st.sampled_from(['charge', 'open', 'released']),
    st.sampled_from(['', 'me']),
  ),
  max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(st.lists(_entries, min_size=1, max_size=3))
def test_nothing_is_lost_whatever_was_charged(several):
  ledgers = []
  for entries in several:
    ledger = PrivacyLedger()
    for label, event, count, kind, name in entries:
      if kind == 'charge':
        ledger.charge(event, count, label=label)
      elif all(x.label != label for x in ledger.entries):
        steps = ledger.reserve(event, 2 * count, label, randomness_id=name)
        steps.ensure(count)
        if kind == 'released':
          steps.release()
    ledgers.append(ledger)
  merged = merge_ledgers(ledgers)
  for event in (GAUSSIAN, STEP):
    spent, in_all = (
      sum(x.count for y in z for x in y.entries if x.event == event)
      for z in ([merged], ledgers)
    )
    assert spent == in_all
  assert len(merged.entries) == sum(len(x.entries) for x in ledgers)


def test_copies_of_one_ledger_are_not_merged(paths):
  """Both may have gone on, with the same noise."""
  (first, _), path = paths
  shutil.copy(first, first.with_name('copy'))
  for source in (first, first.with_name('copy')):
    with PrivacyLedger.open(source) as ledger:
      kwargs = {'resume': True, 'randomness_id': 'a'}
      ledger.reserve(STEP, 10, 'training', **kwargs).ensure(6)
  with pytest.raises(LedgerError, match="copies of one in which 'training'"):
    merge_ledgers([first, first.with_name('copy')], path)
  assert not path.exists()
  PrivacyLedger.open(first).close()


def test_nor_is_a_ledger_that_is_open_with_its_copy(tmp_path):
  first, copy = tmp_path / 'a', tmp_path / 'b'
  with PrivacyLedger(first) as ledger:
    ledger.reserve(STEP, 10, 'training', randomness_id='a').ensure(4)
    shutil.copy(first, copy)
    with pytest.raises(LedgerError, match="copies of one in which 'training'"):
      merge_ledgers([ledger, copy], tmp_path / 'c')


def test_a_copy_is_told_after_a_merge_too(paths):
  (first, second), path = paths
  copy = first.with_name('copy')
  shutil.copy(first, copy)
  merge_ledgers([first, second], path).close()
  for source in (path, copy):
    with PrivacyLedger.open(source) as ledger:
      kwargs = {'resume': True, 'randomness_id': 'a'}
      ledger.reserve(STEP, 10, 'training', **kwargs).ensure(6)
  with pytest.raises(LedgerError, match="copies of one in which 'training"):
    merge_ledgers([path, copy], path.with_name('again'))


def test_merged_reservations_keep_their_random_numbers(paths):
  sources, path = paths
  nonces = []
  for source in sources:
    with PrivacyLedger.open(source) as ledger:
      nonces += [x.nonce for x in ledger._state.entries if x.nonce]
  merge_ledgers(sources, path).close()
  with PrivacyLedger.open(path) as ledger:
    found = [x.nonce for x in ledger._state.entries if x.nonce]
  assert found == nonces and len(set(nonces)) == len(nonces) > 0


def test_the_same_noise_on_two_sums_is_not_merged():
  """Their difference has none, and no epsilon holds for both."""

  def ledger(facts):
    made = PrivacyLedger()
    # A training that goes on with new noise says nothing of its sums.
    identity = 'noise' if facts is None else randomness_id('noise', facts)
    made.charge(GAUSSIAN, label='votes', randomness_id=identity)
    return made

  with pytest.raises(LedgerError, match='Nothing was merged'):
    merge_ledgers([ledger({'table': 1}), ledger({'table': 2})])
  with pytest.raises(LedgerError, match='Nothing was merged'):
    merge_ledgers([ledger({'table': 1}), ledger(None)])
  # Repeated as it was, it tells nothing new.
  assert len(merge_ledgers([ledger({}), ledger({})]).entries) == 2
