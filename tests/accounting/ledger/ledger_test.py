"""The ledger: charges before they run, refuses, resumes."""

import copy
import json
import math
import os
import time

import dp_accounting
import numpy as np
import pytest

from tfdpflows import accounting
from tfdpflows.accounting import LedgerError, PrivacyLedger

GAUSSIAN = dp_accounting.GaussianDpEvent(5.0)
STEP = dp_accounting.PoissonSampledDpEvent(
  0.05, dp_accounting.GaussianDpEvent(4.0)
)


@pytest.fixture
def budget():
  return accounting.PrivacyBudget(epsilon=1.0, delta=1e-5)


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'ledger.jsonl'


def test_charge_counts_and_says_so(budget):
  ledger = PrivacyLedger(budget=budget)
  assert ledger.epsilon() == 0
  assert ledger.charge(GAUSSIAN, label='histograms')
  assert ledger.charge(STEP, 3, label='steps')
  assert [(x.label, x.event, x.count) for x in ledger.entries] == [
    ('histograms', GAUSSIAN, 1),
    ('steps', STEP, 3),
  ]
  assert ledger.event == dp_accounting.ComposedDpEvent(
    [GAUSSIAN, dp_accounting.SelfComposedDpEvent(STEP, 3)]
  )
  assert ledger.epsilon() == accounting.compute_epsilon(ledger.event, 1e-5)
  assert ledger.epsilon(1e-7) > ledger.epsilon()
  assert ledger.epsilon(accountant='rdp') > ledger.epsilon()
  assert ledger.remaining == pytest.approx(1 - ledger.epsilon())


def test_overspending_is_refused_before_anything_is_written(budget, path):
  with PrivacyLedger(path, budget=budget) as ledger:
    ledger.charge(GAUSSIAN, label='first')
    before, spent = path.read_bytes(), ledger.epsilon()
    with pytest.raises(accounting.BudgetExceededError) as refusal:
      ledger.charge(GAUSSIAN, label='second')
    with pytest.raises(accounting.BudgetExceededError):
      ledger.reserve(STEP, 10**5, 'training')
    assert path.read_bytes() == before
    assert len(ledger.entries) == 1
  error = refusal.value
  assert error.budget == budget
  assert error.spent == spent
  assert error.asked == pytest.approx(
    accounting.compute_epsilon(
      dp_accounting.SelfComposedDpEvent(GAUSSIAN, 2), 1e-5
    )
  )
  assert "'second'" in str(error)
  assert '0.72' in str(error)


def test_a_release_without_privacy_is_refused(budget):
  ledger = PrivacyLedger(budget=budget)
  with pytest.raises(accounting.BudgetExceededError, match='inf'):
    ledger.charge(dp_accounting.GaussianDpEvent(0.0), label='raw')
  free = PrivacyLedger()
  free.charge(dp_accounting.NonPrivateDpEvent(), label='raw')
  assert free.epsilon(1e-5) == math.inf


def test_outstanding_reservations_count(budget):
  ledger = PrivacyLedger(budget=budget)
  steps = ledger.reserve(GAUSSIAN, 1, 'one')
  assert ledger.epsilon() == 0
  with pytest.raises(accounting.BudgetExceededError):
    ledger.charge(GAUSSIAN, label='other')
  steps.release()
  assert ledger.charge(GAUSSIAN, label='other')
  with pytest.raises(LedgerError, match='released'):
    steps.ensure(1)


def test_ensure_writes_ahead_in_blocks(budget, path):
  with PrivacyLedger(path, budget=budget) as ledger:
    steps = ledger.reserve(STEP, 95, 'training')
    lines = len(path.read_text().splitlines())
    for step in range(95):
      steps.ensure(step + 1, block=10)
      assert steps.charged >= step + 1
      assert steps.charged == min(-(-(step + 1) // 10) * 10, 95)
    assert len(path.read_text().splitlines()) == lines + 10
    with pytest.raises(
      accounting.BudgetExceededError, match='95 runs'
    ) as refusal:
      steps.ensure(96)
    assert refusal.value.budget == budget
    assert refusal.value.asked > refusal.value.spent
    assert steps.charged == 95
    steps.release()
  assert ledger.entries[0].count == ledger.entries[0].reserved == 95
  with pytest.raises(ValueError, match='an integer'):
    steps.ensure(1.5)
  with pytest.raises(ValueError, match='block'):
    steps.ensure(1, block=0)


def test_reservation_without_a_budget_still_has_an_end():
  steps = PrivacyLedger().reserve(STEP, 5, 'training')
  with pytest.raises(accounting.BudgetExceededError, match='run 6') as refusal:
    steps.ensure(6)
  assert refusal.value.budget is None
  assert steps.charged == 0


def test_labels_of_reservations_are_unique(budget):
  ledger = PrivacyLedger(budget=budget)
  ledger.reserve(STEP, 5, 'training')
  with pytest.raises(LedgerError, match='taken'):
    ledger.reserve(STEP, 5, 'training')
  with pytest.raises(LedgerError, match="'training' is taken"):
    ledger.reserve(STEP, 6, 'training')


def test_reopened_ledger_resumes_without_paying_twice(budget, path):
  with PrivacyLedger(path, budget=budget, metadata={'seeded': True}) as ledger:
    assert ledger.charge(GAUSSIAN, label='histograms', resume=True)
    steps = ledger.reserve(STEP, 100, 'training')
    steps.ensure(37, block=20)
    spent, entries = ledger.epsilon(), ledger.entries
  with PrivacyLedger.open(path, budget=budget) as ledger:
    assert ledger.metadata == {'seeded': True}
    assert ledger.budget == budget
    assert ledger.entries == entries
    assert ledger.epsilon() == spent
    before = path.read_bytes()
    assert not ledger.charge(GAUSSIAN, label='histograms', resume=True)
    steps = ledger.reserve(STEP, 100, 'training', resume=True)
    assert (steps.charged, steps.count, steps.label) == (40, 100, 'training')
    steps.ensure(40)
    assert path.read_bytes() == before
    steps.ensure(41, 20)
    assert steps.charged == 60
    # One old charge stands for one new one, not for many.
    with pytest.raises(accounting.BudgetExceededError):
      ledger.charge(GAUSSIAN, label='histograms', resume=True)


def test_resuming_something_else_is_refused(budget, path):
  with PrivacyLedger(path, budget=budget) as ledger:
    ledger.charge(GAUSSIAN, label='histograms')
    ledger.reserve(STEP, 100, 'training')
  with PrivacyLedger.open(path) as ledger:
    before = path.read_bytes()
    with pytest.raises(LedgerError, match='same parameters'):
      ledger.reserve(STEP, 101, 'training', resume=True)
    with pytest.raises(LedgerError, match='same parameters'):
      ledger.reserve(GAUSSIAN, 100, 'training', resume=True)
    with pytest.raises(LedgerError, match='is taken'):
      ledger.reserve(STEP, 100, 'training')
    other = dp_accounting.GaussianDpEvent(6.0)
    with pytest.raises(LedgerError, match='same parameters'):
      ledger.charge(other, label='histograms', resume=True)
    with pytest.raises(LedgerError, match='same parameters'):
      ledger.charge(STEP, 100, label='training', resume=True)
    assert path.read_bytes() == before
  with pytest.raises(LedgerError, match='cannot become'):
    PrivacyLedger.open(
      path, budget=accounting.PrivacyBudget(epsilon=2.0, delta=1e-5)
    )


def test_other_random_numbers_do_not_resume(path):
  with PrivacyLedger(path) as ledger:
    ledger.reserve(STEP, 10, 'training', randomness_id='a').ensure(5)
  ledger = PrivacyLedger.open(path)
  with pytest.raises(LedgerError, match='other random numbers'):
    ledger.reserve(STEP, 10, 'training', resume=True, randomness_id='b')
  ledger.close()
  with PrivacyLedger.open(path) as ledger:
    steps = ledger.reserve(STEP, 10, 'training', resume=True, randomness_id='a')
    assert steps.charged == 5


def test_a_charge_is_for_its_random_numbers(path):
  with PrivacyLedger(path) as ledger:
    ledger.charge(
      GAUSSIAN, label='bounds', randomness_id='a {"q": 1}', seeded=True
    )
    assert ledger.seeded
    # One noise is charged once, whatever it is used for.
    for identity in ('a', 'a {"q": 1}', 'a {"q": 2}'):
      with pytest.raises(LedgerError, match='used twice'):
        ledger.charge(GAUSSIAN, label='bounds', randomness_id=identity)
    ledger.charge(GAUSSIAN, label='bounds', randomness_id='b {"q": 1}')
  for identity, message in (
    ('', 'other random numbers'),
    ('c {"q": 1}', 'other random numbers'),
    ('a {"q": 2}', 'another q: 1, and not 2'),
  ):
    with PrivacyLedger.open(path) as ledger:
      assert ledger.seeded
      with pytest.raises(LedgerError, match=message):
        ledger.charge(
          GAUSSIAN, label='bounds', randomness_id=identity, resume=True
        )
  with PrivacyLedger.open(path) as ledger:
    for identity in ('b {"q": 1}', 'a {"q": 1}'):
      assert not ledger.charge(
        GAUSSIAN, label='bounds', randomness_id=identity, resume=True
      )
    assert len(ledger.entries) == 2


def test_released_reservation_is_paid_again_when_resumed(budget, path):
  with PrivacyLedger(path, budget=budget) as ledger:
    steps = ledger.reserve(STEP, 100, 'training')
    steps.ensure(30)
    steps.release()
    steps.release()
  with PrivacyLedger.open(path) as ledger:
    steps = ledger.reserve(STEP, 100, 'training', resume=True)
    assert (steps.charged, steps.released) == (30, False)
    steps.ensure(100)
    assert ledger.entries[0].count == 100
  with PrivacyLedger.open(path) as ledger:
    assert ledger.entries[0].count == 100


def test_released_reservation_does_not_reopen_over_the_budget(path):
  needed = accounting.compute_epsilon(
    dp_accounting.SelfComposedDpEvent(STEP, 100), 1e-5
  )
  budget = accounting.PrivacyBudget(epsilon=needed, delta=1e-5)
  with PrivacyLedger(path, budget=budget) as ledger:
    steps = ledger.reserve(STEP, 100, 'training')
    steps.ensure(50)
    steps.release()
    ledger.charge(STEP, 10, label='else')
  with PrivacyLedger.open(path) as ledger:
    before = path.read_bytes()
    with pytest.raises(accounting.BudgetExceededError):
      ledger.reserve(STEP, 100, 'training', resume=True)
    assert path.read_bytes() == before


def test_budget_that_is_met_exactly_is_not_exceeded():
  event = dp_accounting.ComposedDpEvent(
    [GAUSSIAN, dp_accounting.SelfComposedDpEvent(STEP, 40)]
  )
  needed = accounting.compute_epsilon(event, 1e-5)
  ledger = PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=needed, delta=1e-5)
  )
  steps = ledger.reserve(STEP, 40, 'training')
  steps.ensure(7)
  ledger.charge(GAUSSIAN, label='histograms')
  steps.ensure(40)
  assert ledger.epsilon() == needed
  assert ledger.remaining == 0


@pytest.mark.parametrize(
  'count', [0, -1, 1.5, True, math.nan, math.inf, '2', None]
)
def test_bad_counts(budget, path, count):
  ledger = PrivacyLedger(path, budget=budget)
  before = path.read_bytes()
  steps = PrivacyLedger().reserve(STEP, 5, 'training')
  for charge in (
    lambda: ledger.charge(GAUSSIAN, count, label='x'),
    lambda: ledger.reserve(GAUSSIAN, count, 'x'),
  ):
    with pytest.raises(ValueError, match="The count of 'x' must be an integer"):
      charge()
  if count not in (0, True, '2', None):
    with pytest.raises(ValueError, match='total must be an integer'):
      steps.ensure(count)
  assert path.read_bytes() == before


@pytest.mark.parametrize(
  ('event', 'field'),
  [
    (dp_accounting.GaussianDpEvent(-1.0), 'noise_multiplier of .*-1.0'),
    (dp_accounting.LaplaceDpEvent(-1e-300), 'noise_multiplier'),
    (accounting.EpsilonDeltaDpEvent(-0.1), 'epsilon of'),
    (accounting.EpsilonDeltaDpEvent(0.1, 1.5), r'delta of .*\[0, 1\]'),
    (
      dp_accounting.PoissonSampledDpEvent(1.5, GAUSSIAN),
      r'sampling_probability of .*\[0, 1\]',
    ),
    (dp_accounting.PoissonSampledDpEvent(-0.5, GAUSSIAN), 'sampling_probab'),
  ],
)
def test_bad_parameters_are_named(budget, path, event, field):
  ledger = PrivacyLedger(path, budget=budget)
  before = path.read_bytes()
  for charge in (
    lambda: ledger.charge(event, label='x'),
    lambda: PrivacyLedger().charge(event, label='x'),
    lambda: ledger.reserve(event, 3, 'x'),
  ):
    with pytest.raises(ValueError, match=field):
      charge()
  assert path.read_bytes() == before


@pytest.mark.parametrize('number', [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused(budget, number):
  ledger = PrivacyLedger(budget=budget)
  for event, field in (
    (dp_accounting.GaussianDpEvent(number), 'Gaussian.noise_multiplier'),
    (accounting.ZCDpEvent(number), 'ZCDp.rho'),
    (dp_accounting.PoissonSampledDpEvent(number, GAUSSIAN), 'probability'),
  ):
    with pytest.raises(ValueError, match=field):
      ledger.charge(event, label='x')
  assert ledger.entries == ()


@pytest.mark.parametrize('delta', [0.0, 1.0, -1e-5, 1.5, math.nan, math.inf])
def test_bad_deltas_are_refused(delta):
  with pytest.raises(ValueError, match=r'delta must lie inside \(0, 1\)'):
    accounting.PrivacyBudget(epsilon=1.0, delta=delta)
  with pytest.raises(ValueError, match=r'delta must lie inside \(0, 1\)'):
    PrivacyLedger().epsilon(delta)
  with pytest.raises(ValueError, match=r'delta must lie inside \(0, 1\)'):
    accounting.privacy_statement(PrivacyLedger(), delta=delta)


@pytest.mark.parametrize(
  'event',
  [
    dp_accounting.GaussianDpEvent(0.0),
    dp_accounting.LaplaceDpEvent(0.0),
    dp_accounting.PoissonSampledDpEvent(
      0.1, dp_accounting.GaussianDpEvent(0.0)
    ),
    dp_accounting.NonPrivateDpEvent(),
  ],
)
def test_an_event_without_noise_is_said_plainly(budget, event):
  ledger = PrivacyLedger(budget=budget)
  ledger.charge(GAUSSIAN)
  with pytest.raises(
    accounting.BudgetExceededError, match="'raw' is refused.*no noise.*infinite"
  ) as refusal:
    ledger.charge(event, label='raw')
  assert refusal.value.asked == math.inf
  assert refusal.value.spent == ledger.epsilon()
  assert len(ledger.entries) == 1


def test_too_much_delta_has_no_finite_epsilon(budget):
  ledger = PrivacyLedger(budget=budget)
  with pytest.raises(accounting.BudgetExceededError, match='no finite epsilon'):
    ledger.charge(accounting.EpsilonDeltaDpEvent(0.1, 1e-4), label='x')


def test_bad_arguments(budget, path):
  ledger = PrivacyLedger(path, budget=budget)
  before = path.read_bytes()
  with pytest.raises(dp_accounting.UnsupportedEventError, match='rdp'):
    ledger.charge(accounting.ZCDpEvent(0.1), label='x')
  with pytest.raises(TypeError, match='UnsupportedDpEvent.*Known events'):
    ledger.charge(dp_accounting.UnsupportedDpEvent(), label='x')
  with pytest.raises(
    ValueError, match=r"Unknown accountant 'pdl'.*Did you mean 'pld'.*rdp"
  ):
    PrivacyLedger(accountant='pdl')
  with pytest.raises(TypeError, match='budget is of type tuple; .*such as'):
    PrivacyLedger(budget=(1.0, 1e-5))
  with pytest.raises(ValueError, match='Unknown accountant'):
    ledger.epsilon(accountant='pdl')
  with pytest.raises(dp_accounting.UnsupportedEventError, match='ZCDp'):
    PrivacyLedger().charge(accounting.ZCDpEvent(0.1))
  with pytest.raises(ValueError, match='no delta'):
    PrivacyLedger().epsilon()
  assert path.read_bytes() == before
  assert ledger.charge(GAUSSIAN, np.int64(1), label='numpy count')
  ledger.close()


def test_replace_one_is_kept_in_the_file(path):
  relation = dp_accounting.NeighboringRelation.REPLACE_ONE
  with PrivacyLedger(path, neighboring_relation=relation) as ledger:
    ledger.charge(GAUSSIAN)
  with PrivacyLedger.open(path) as ledger:
    assert ledger.neighboring_relation == relation
    assert ledger.epsilon(1e-5) == accounting.compute_epsilon(
      dp_accounting.GaussianDpEvent(2.5), 1e-5
    )


TINY = dp_accounting.PoissonSampledDpEvent(
  0.001, dp_accounting.GaussianDpEvent(4.0)
)


def test_million_steps_stay_fast():
  ledger = PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=3.0, delta=1e-5)
  )
  steps = ledger.reserve(TINY, 10**6, 'training')
  steps.ensure(10**6 - 1000)
  start = time.process_time()
  for step in range(10**6 - 1000, 10**6):
    steps.ensure(step + 1)
  assert time.process_time() - start < 0.2
  first = ledger.epsilon()
  start = time.process_time()
  for _ in range(100):
    assert ledger.epsilon() == first
  assert time.process_time() - start < 0.2


@pytest.mark.parametrize('on_disk', [False, True])
def test_the_millionth_step_takes_as_long_as_the_first(path, on_disk):
  number = 200 if on_disk else 1000
  with PrivacyLedger(path if on_disk else None) as ledger:
    steps = ledger.reserve(TINY, 10**6, 'training')

    def median_time(start):
      """Over blocks: what else the machine does is left out."""
      times = []
      for block in range(start, start + number, number // 20):
        before = time.process_time_ns()
        for step in range(block, block + number // 20):
          steps.ensure(step + 1)
        times.append(time.process_time_ns() - before)
      return sorted(times)[len(times) // 2]

    first = median_time(0)
    if on_disk:
      steps.ensure(10**6 - number)
    else:
      # Each for itself, as a training with blocks of one writes them.
      for step in range(number, 10**5):
        steps.ensure(step + 1)
      steps.ensure(10**6 - number)
    last = median_time(10**6 - number)
    assert steps.charged == 10**6
  assert last < 5 * first + 10**6


def test_epsilon_of_a_million_steps_takes_no_longer():
  """Twice the grid and one more multiplication for each doubling at most."""

  def seconds(count):
    # With a noise of its own, so that nothing is answered from memory.
    times = []
    for extra in range(3):
      step = dp_accounting.PoissonSampledDpEvent(
        0.001, dp_accounting.GaussianDpEvent(4.0 + extra / 1000 + count / 1e9)
      )
      ledger = PrivacyLedger()
      ledger.reserve(step, count, 'training').ensure(count)
      start = time.process_time()
      ledger.epsilon(1e-5)
      times.append(time.process_time() - start)
    return min(times)

  assert seconds(10**6) < 20 * seconds(10**3) + 0.5


def test_many_charges_stay_small():
  ledger = PrivacyLedger()
  for number in range(2000):
    ledger.charge(GAUSSIAN, label=f'query {number % 7}')
  assert ledger.event == dp_accounting.ComposedDpEvent(
    [dp_accounting.SelfComposedDpEvent(GAUSSIAN, 2000)]
  )
  assert len(ledger.entries) == 2000


VOTE = accounting.GNMaxDpEvent(10.0)
LOW_COST = accounting.DataDependentDpEvent(VOTE, log_q=-60.0)


def test_no_refusal_and_no_claim_depends_on_private_votes(path):
  budget = accounting.PrivacyBudget(
    epsilon=accounting.compute_epsilon(
      dp_accounting.SelfComposedDpEvent(VOTE, 5), 1e-5, 'rdp'
    ),
    delta=1e-5,
  )
  with PrivacyLedger(path, budget=budget, accountant='rdp') as ledger:
    for number in range(4):
      ledger.charge(
        accounting.DataDependentDpEvent(VOTE, log_q=-60.0 - number),
        label='queries',
      )
    steps = ledger.reserve(LOW_COST, 1, 'last')
    assert ledger.remaining == 0
    with pytest.raises(accounting.BudgetExceededError):
      ledger.charge(LOW_COST, label='one too many')
    with pytest.raises(accounting.BudgetExceededError):
      steps.ensure(2)
    steps.ensure(1)
    assert ledger.epsilon() == budget.epsilon
    low = ledger.epsilon(data_dependent=True)
    assert low < ledger.epsilon() / 2
    assert ledger.committed_event == dp_accounting.ComposedDpEvent(
      [dp_accounting.SelfComposedDpEvent(VOTE, 5)]
    )
  with PrivacyLedger.open(path) as ledger:
    assert ledger.entries[0].event == LOW_COST
    assert ledger.epsilon() == budget.epsilon
    assert ledger.epsilon(data_dependent=True) == low
    with pytest.raises(accounting.BudgetExceededError):
      ledger.charge(LOW_COST, label='one too many')


def test_accountants_without_votes_take_the_charge():
  """The cost without votes is a plain Gaussian, whoever made the event."""
  ledger = PrivacyLedger(
    budget=accounting.PrivacyBudget(epsilon=3.0, delta=1e-5)
  )
  ledger.charge(LOW_COST, label='query')
  assert ledger.epsilon() == accounting.compute_epsilon(VOTE, 1e-5)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='rdp'):
    ledger.epsilon(data_dependent=True)


def test_a_budget_below_what_is_spent_is_refused_with_the_numbers(path, budget):
  with PrivacyLedger(path, budget=budget) as ledger:
    ledger.charge(GAUSSIAN)
    spent = ledger.epsilon()
  before = path.read_bytes()
  with pytest.raises(
    LedgerError, match=f'lower than what is spent already: epsilon {spent:.7g}'
  ) as error:
    PrivacyLedger.open(
      path, budget=accounting.PrivacyBudget(epsilon=0.5, delta=1e-5)
    )
  assert 'epsilon=0.5' in str(error.value)
  with pytest.raises(LedgerError, match='cannot become') as error:
    PrivacyLedger.open(
      path, budget=accounting.PrivacyBudget(epsilon=0.9, delta=1e-5)
    )
  assert 'lower' not in str(error.value)
  assert path.read_bytes() == before
  PrivacyLedger.open(path, budget=budget).close()


def test_file_is_json_lines_people_can_read(budget, path):
  with PrivacyLedger(
    path, budget=budget, metadata={'data': 'randhie'}
  ) as ledger:
    ledger.charge(GAUSSIAN, label='histograms')
  header, line = map(json.loads, path.read_text().splitlines())
  assert header['format'] == 'tfdpflows-privacy-ledger'
  assert header['format_version'] == 1
  assert header['budget'] == {'epsilon': 1.0, 'delta': 1e-05}
  assert header['metadata'] == {'data': 'randhie'}
  assert line['label'] == 'histograms'
  assert line['event'] == {'kind': 'Gaussian', 'noise_multiplier': 5.0}


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs os.fork')
def test_a_forked_process_cannot_charge(tmp_path):
  ledger = accounting.PrivacyLedger(tmp_path / 'ledger')
  child = os.fork()
  if child == 0:
    try:
      ledger.charge(GAUSSIAN, label='child')
    except accounting.LedgerError as error:
      os._exit(7 if 'forked' in str(error) else 1)
    os._exit(0)
  assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
  ledger.charge(GAUSSIAN, label='parent')
  ledger.close()
  with accounting.PrivacyLedger.open(tmp_path / 'ledger') as again:
    assert [entry.label for entry in again.entries] == ['parent']


def test_a_copy_is_the_ledger_itself():
  """Another one would not see what is charged to this one."""
  ledger = accounting.PrivacyLedger()
  other = copy.copy(ledger)
  before = other.epsilon(1e-5)
  ledger.charge(dp_accounting.GaussianDpEvent(2.0))
  assert before == 0 < other.epsilon(1e-5)


def test_an_interrupted_charge_is_not_written_over(
  tmp_path, monkeypatch, caplog
):
  path = tmp_path / 'ledger'
  ledger = accounting.PrivacyLedger(path)

  def interrupted(unused_descriptor):
    raise KeyboardInterrupt

  with monkeypatch.context() as patched:
    patched.setattr(os, 'fsync', interrupted)
    with pytest.raises(KeyboardInterrupt):
      ledger.charge(GAUSSIAN, label='a label that is long')
  with pytest.raises(accounting.LedgerError, match='was interrupted while'):
    ledger.charge(GAUSSIAN, label='short')
  ledger.close()
  assert not caplog.records
  with accounting.PrivacyLedger.open(path) as again:
    assert again.charge(GAUSSIAN, label='short')


def test_no_resume_depends_on_votes(tmp_path):
  vote = accounting.GNMaxDpEvent(40.0)
  path = tmp_path / 'ledger'
  with accounting.PrivacyLedger(path, accountant='rdp') as ledger:
    ledger.charge(accounting.DataDependentDpEvent(vote, -20.0), label='vote')
  with accounting.PrivacyLedger.open(path) as ledger:
    event = accounting.DataDependentDpEvent(vote, -19.0)
    assert not ledger.charge(event, label='vote', resume=True)


def test_a_ledger_is_for_one_privacy_unit(tmp_path):
  path = str(tmp_path / 'ledger.jsonl')
  event = dp_accounting.GaussianDpEvent(5.0)
  with accounting.PrivacyLedger(path, privacy_unit='person') as people:
    people.charge(event, label='a', privacy_unit='person')
    people.reserve(event, 2, 'b', privacy_unit='person').ensure(1)
    for unit in (None, 'household'):
      with pytest.raises(ValueError, match="this ledger is for units 'person'"):
        people.charge(event, label='c', privacy_unit=unit)
      with pytest.raises(ValueError, match="this ledger is for units 'person'"):
        people.reserve(event, 2, 'd', privacy_unit=unit)
  with accounting.PrivacyLedger.open(path) as people:
    assert people.privacy_unit == 'person'
    assert [entry.label for entry in people.entries] == ['a', 'b']
  rows = accounting.PrivacyLedger()
  with pytest.raises(ValueError, match='this ledger is for rows'):
    rows.charge(event, privacy_unit='person')
  memory = accounting.PrivacyLedger(privacy_unit='person')
  memory.charge(event, label='c', privacy_unit='person')
  with pytest.raises(ValueError, match='privacy_unit of the ledger'):
    accounting.merge_ledgers([memory, rows])
  other = accounting.PrivacyLedger(privacy_unit='person')
  merged = accounting.merge_ledgers([memory, other])
  assert merged.privacy_unit == 'person'
  statement = accounting.privacy_statement(merged, delta=1e-5)
  assert statement.to_dict()['privacy_unit'] == 'person'
  assert (
    'privacy_unit'
    not in accounting.privacy_statement(rows, delta=1e-5).to_dict()
  )
