"""Events that are too deep or too large are refused where they enter."""

import json
import math
import sys

import dp_accounting
import pytest

from tfdpflows import accounting
from tfdpflows.accounting import (
  LedgerError,
  PrivacyLedger,
  calibration,
  event_bounds,
  events,
  events_json,
  mechanisms,
)

GAUSSIAN = dp_accounting.GaussianDpEvent(100.0)
Composed = dp_accounting.ComposedDpEvent
SelfComposed = dp_accounting.SelfComposedDpEvent


def nested(depth, event=GAUSSIAN):
  """`depth` events within each other."""
  for _ in range(depth - 1):
    event = Composed([event])
  return event


def circle():
  event = Composed([GAUSSIAN])
  event.events.append(event)
  return event


def many():
  """2^60 parts, made of 60."""
  event = GAUSSIAN
  for _ in range(60):
    event = Composed([event, event])
  return event


BAD = {
  'a level too deep': (nested(event_bounds.MAX_DEPTH + 17), 'nested too deep'),
  '400 deep': (nested(400), 'nested too deep'),
  '3,000 deep': (nested(3000), 'nested too deep'),
  '100,000 deep': (nested(100_000), 'nested too deep'),
  'deep counts': (
    SelfComposed(SelfComposed(SelfComposed(GAUSSIAN, 10**9), 10**30), 10**30),
    'too many runs|an integer',
  ),
  'deep sample': (
    dp_accounting.PoissonSampledDpEvent(0.1, nested(3000)),
    'nested too deep',
  ),
  'deep shards': (
    accounting.ParallelDpEvent([GAUSSIAN, nested(400)]),
    'nested too deep',
  ),
  'circle': (circle(), 'nested too deep'),
  '10^400 runs': (SelfComposed(GAUSSIAN, 10**400), 'an integer'),
  '10^5000 runs': (SelfComposed(GAUSSIAN, 10**5000), 'an integer'),
  'NaN runs': (SelfComposed(GAUSSIAN, math.nan), 'an integer'),
  'infinitely many runs': (SelfComposed(GAUSSIAN, math.inf), 'an integer'),
  'half a run': (SelfComposed(GAUSSIAN, 0.5), 'an integer'),
  'fewer than no runs': (SelfComposed(GAUSSIAN, -1), 'an integer'),
  'runs in words': (SelfComposed(GAUSSIAN, 'two'), 'an integer'),
  'generator': (Composed(x for x in [GAUSSIAN] * 3), 'list or tuple'),
  'no event': (Composed(['event']), 'must be a dp_accounting.DpEvent'),
  'large noise': (dp_accounting.GaussianDpEvent(10**400), '300 digits'),
  'large sample': (
    dp_accounting.SampledWithoutReplacementDpEvent(10**5000, 1, GAUSSIAN),
    '300 digits',
  ),
}
ENTRANCES = {
  'charge': lambda event: PrivacyLedger().charge(event),
  'labelled': lambda event: PrivacyLedger().charge(event, label='a'),
  'resumed': lambda event: PrivacyLedger().charge(
    event, label='a', resume=True
  ),
  'reserve': lambda event: PrivacyLedger().reserve(event, 1, 'training'),
  'to_dict': events_json.event_to_dict,
  'describe': events.describe_event,
  'data_independent': events.data_independent,
  'without_amplification': mechanisms.without_amplification,
  'best_epsilon': lambda event: accounting.best_epsilon(event, 1e-5),
  'compute_epsilon': lambda event: accounting.compute_epsilon(event, 1e-5),
  'calibrate_epsilon': lambda e: calibration.calibrate_epsilon(e, 1e-5),
  'epsilon_after': lambda e: calibration.epsilon_after(e, [1], delta=1e-5),
  **{
    f'{name} {what}': lambda event, name=name, what=what: getattr(
      accounting.create_accountant(name), what
    )(event)
    for name in accounting.accountant_names()
    for what in ('compose', 'supports')
  },
}


@pytest.mark.parametrize('entrance', sorted(ENTRANCES))
@pytest.mark.parametrize('bad', sorted(BAD))
def test_bad_events_are_refused_in_words(bad, entrance):
  event, message = BAD[bad]
  with pytest.raises((TypeError, ValueError), match=message) as error:
    ENTRANCES[entrance](event)
  assert not isinstance(error.value, accounting.BudgetExceededError)
  assert len(str(error.value)) < 400


def test_many_parts_are_not_walked_to_the_end():
  for entrance in ('charge', 'to_dict', 'pld compose'):
    with pytest.raises(ValueError, match='too many parts'):
      ENTRANCES[entrance](many())


@pytest.mark.parametrize('entrance', sorted(ENTRANCES))
def test_the_largest_events_are_taken(entrance):
  for event in (
    nested(event_bounds.MAX_DEPTH),
    SelfComposed(SelfComposed(GAUSSIAN, 10**6), 10**9),
    dp_accounting.GaussianDpEvent(2**996),
  ):
    ENTRANCES[entrance](event)


@pytest.mark.parametrize(
  'count', [10**15 + 1, 10**400, 10**5000, 1e16], ids=['1', '2', '3', '4']
)
def test_counts_of_charges_are_bounded(count):
  ledger = PrivacyLedger()
  for ask in (
    lambda: ledger.charge(GAUSSIAN, count=count),
    lambda: ledger.reserve(GAUSSIAN, count, 'training'),
  ):
    with pytest.raises(ValueError, match=r'at most 10\^15, not'):
      ask()
  with pytest.raises(ValueError, match='too many runs'):
    ledger.charge(SelfComposed(GAUSSIAN, 10**8), count=10**8)
  assert not ledger.entries


def test_counts_of_accountants_are_bounded():
  made = accounting.create_accountant('rdp')
  with pytest.raises(ValueError, match='an integer'):
    made.compose(GAUSSIAN, 10**400)


def test_a_generator_is_not_free():
  """It was read by one look at it, and cost nothing at the next."""
  ledger = PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)
  )
  for _ in range(3):
    with pytest.raises(TypeError, match='list or tuple, not in a generator'):
      ledger.charge(Composed(GAUSSIAN for _ in range(10)))
  assert not ledger.entries


def test_what_a_ledger_took_it_can_read_anywhere(tmp_path):
  """Also where the stack is nearly full, as within a deep program."""
  path = tmp_path / 'ledger'
  deepest = nested(event_bounds.MAX_DEPTH)
  with PrivacyLedger(path) as ledger:
    ledger.charge(deepest, count=10**15)
    ledger.charge(deepest, count=10**15)
    ledger.reserve(
      SelfComposed(nested(event_bounds.MAX_DEPTH - 1), 10), 10**14, 'training'
    ).ensure(10**14)
    epsilon = ledger.epsilon(1e-5)
    assert accounting.privacy_statement(ledger, delta=1e-5).to_dict()
    assert accounting.best_epsilon(ledger, 1e-5).epsilon <= epsilon

  def read(left):
    if left:
      return read(left - 1)
    with PrivacyLedger.open(path) as again:
      return again.epsilon(1e-5)

  assert read(0) == epsilon
  assert read(400) == epsilon
  with PrivacyLedger.open(path) as again:
    merged = accounting.merge_ledgers([again], tmp_path / 'merged')
    assert merged.epsilon(1e-5) == epsilon
    merged.close()


def deep_json(depth):
  return '{"kind":"Composed","events":[' * depth + '1' + ']}' * depth


@pytest.mark.parametrize('depth', [65, 300, 400, 3000, 100_000])
def test_deep_json_is_refused(depth):
  limit = sys.getrecursionlimit()
  sys.setrecursionlimit(max(limit, 3 * min(depth, 4000)))
  try:
    data = json.loads(deep_json(min(depth, 3000)))
    with pytest.raises(ValueError, match='nested too deep'):
      events_json.event_from_dict(data)
  finally:
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
  ('data', 'message'),
  [
    ({'kind': 'Gaussian', 'noise_multiplier': 10**400}, 'finite float'),
    (
      {
        'kind': 'SelfComposed',
        'event': {'kind': 'NoOp'},
        'count': 10**400,
      },
      'finite int',
    ),
    (
      {'kind': 'SelfComposed', 'event': {'kind': 'NoOp'}, 'count': -1},
      'an integer',
    ),
    ({'kind': 'Gaussian', 'noise_multiplier': [1] * 10**6}, 'real number'),
    ({'kind': 'x' * 10**6}, 'Unknown kind'),
  ],
  ids=['noise', 'count', 'negative', 'list', 'kind'],
)
def test_large_json_is_refused(data, message):
  with pytest.raises((TypeError, ValueError), match=message) as error:
    events_json.event_from_dict(data)
  assert len(str(error.value)) < 1000


@pytest.mark.parametrize('depth', [401, 5000])
def test_metadata_that_could_not_be_read_is_refused(tmp_path, depth):
  deep = []
  for _ in range(depth):
    deep = [deep]
  for path in (None, tmp_path / 'ledger'):
    with pytest.raises(ValueError, match='metadata is nested too deep'):
      PrivacyLedger(path, metadata={'deep': deep})
    with pytest.raises(ValueError, match='300 digits'):
      PrivacyLedger(path, metadata={'large': 10**400})
  assert not list(tmp_path.iterdir())


def test_a_ledger_with_a_deep_event_is_refused_in_words(tmp_path):
  """Of another program, with a chain that is right."""
  from tfdpflows.accounting.ledger import file as ledger_file

  noise = {'kind': 'Gaussian', 'noise_multiplier': 1.0}
  for number, (event, count) in enumerate(
    [
      (json.loads(deep_json(70)), 1),
      (noise, 10**200),
      ({'kind': 'SelfComposed', 'event': noise, 'count': 10**200}, 1),
    ]
  ):
    path = tmp_path / f'{number}'
    with PrivacyLedger(path) as ledger:
      ledger.charge(GAUSSIAN, label='one')
    record = {'kind': 'charge', 'label': 'x', 'event': event, 'count': count}
    file = ledger_file.LedgerFile.open(path)
    file.append(record)
    file.close()
    with pytest.raises(LedgerError, match='line 3: not a valid record'):
      PrivacyLedger.open(path)
